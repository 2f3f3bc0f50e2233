"""The commands of Asy-GCD: train, and predict with a saved model."""

from __future__ import annotations

from cacore.comm import Communicator
from cacore.learn.method import Method
from cacore.run import command
from cacore.run.family import AnyFamily
from cacore.run.launch import run


def _load() -> AnyFamily:
    """Load the family; imported here, since it loads compiled code that --help does not need."""
    from asygcd.asygcd_family import AsyGCDFamily

    return AsyGCDFamily()


def train(method: Method, comm: Communicator, argv: list[str] | None = None) -> None:
    """Run the training command of `method` on `comm`; collective."""
    command.train(method, lambda options: _load(), comm, argv)


def main(method: Method, argv: list[str] | None = None) -> None:
    """Run the command of `method`, ``python -m asygcd DATA``, and end the process."""
    run(lambda comm: train(method, comm, argv), method.prog, argv=argv)


def main_predict(argv: list[str] | None = None) -> None:
    """Run ``python -m asygcd.predict MODEL DATA``, and end the process."""
    prog, flags = "asygcd.predict", ("decisions", "probability")
    run(lambda comm: command.predict(_load, prog, comm, argv, flags), prog, argv=argv)
