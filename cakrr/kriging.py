"""The former place of kriging: ``python -m cakrr.kriging`` says in one line where it is now."""

from __future__ import annotations

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.run.launch import run


def _moved(comm: Communicator) -> None:
    raise InputError("kriging is a package of its own: use python -m cakriging, with the same arguments")


if __name__ == "__main__":
    run(_moved, "cakrr.kriging")
