"""``cakernels predict MODEL DATA``: predict with a model of any family, which its file names."""

from __future__ import annotations

from cacore.run import command
from cacore.run.family import Loader
from cacore.run.launch import run

PROG = "cakernels predict"


def _load() -> Loader:
    """The loader of models; it imports compiled code, which --help does without."""
    from cakernels.families import AllModels

    return AllModels()


def main(argv: list[str] | None = None) -> None:
    """Run the command, and end the process."""
    run(lambda comm: command.predict(_load, PROG, comm, argv, command.OWN), PROG, argv=argv)
