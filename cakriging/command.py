"""The commands of kriging: training, and prediction with a saved model."""

from __future__ import annotations

from cacore.comm import Communicator
from cacore.learn.method import Method
from cacore.run import command
from cacore.run.family import AnyFamily
from cacore.run.launch import run


def _load() -> AnyFamily:
    """The family of kriging; imported here, since it loads compiled code that ``--help`` does not need."""
    from cakriging.kriging_family import Kriged

    return Kriged()


def train(method: Method, comm: Communicator, argv: list[str] | None = None) -> None:
    """Run the training command on `comm`, without ending the process; collective."""
    command.train(method, lambda options: _load(), comm, argv)


def main(method: Method, argv: list[str] | None = None) -> None:
    """Run ``python -m cakriging DATA``, and end the process."""
    run(lambda comm: train(method, comm, argv), method.prog, argv=argv)


def main_predict(argv: list[str] | None = None) -> None:
    """Run ``python -m cakriging.predict MODEL DATA``, and end the process."""
    prog, flags = "cakriging.predict", ("std", "interval")
    run(lambda comm: command.predict(_load, prog, comm, argv, flags), prog, argv=argv)
