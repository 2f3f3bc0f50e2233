"""The commands of kernel ridge regression: training, one per method, and prediction with a saved model."""

from __future__ import annotations

from cacore.comm import Communicator
from cacore.learn.method import Method
from cacore.run import command
from cacore.run.family import AnyFamily
from cacore.run.launch import run


def _load() -> AnyFamily:
    """The family of ridge regression; imported here, since it loads compiled code that --help does not need."""
    from cakrr.ridge_family import Ridge

    return Ridge()


def train(method: Method, comm: Communicator, argv: list[str] | None = None) -> None:
    """Train as the command of `method` does, but do not end the process; collective."""
    command.train(method, lambda options: _load(), comm, argv)


def main(method: Method, argv: list[str] | None = None) -> None:
    """Run the command of `method`, ``python -m cakrr.METHOD DATA``, and end the process."""
    run(lambda comm: train(method, comm, argv), method.prog, argv=argv)


def main_predict(argv: list[str] | None = None) -> None:
    """Run ``python -m cakrr.predict MODEL DATA``, and end the process."""
    prog, flags = "cakrr.predict", ("probability", "std", "interval", "adaptive")
    run(lambda comm: command.predict(_load, prog, comm, argv, flags), prog, argv=argv)
