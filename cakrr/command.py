"""The commands of kernel ridge regression: training, one per method, and prediction with a saved model."""

from __future__ import annotations

from cacore.comm import Communicator
from cacore.learn.method import Method
from cacore.run import command
from cacore.run.family import AnyFamily
from cacore.run.launch import run
from cakrr.method import RidgeMethod


def _load(method: Method) -> AnyFamily:
    """The family that trains `method`; it imports compiled code, which --help does without."""
    if isinstance(method, RidgeMethod):
        from cakrr.family import Ridge

        return Ridge()
    from cakrr.kriging.family import Kriged

    return Kriged()


def _of_models() -> AnyFamily:
    """The family that loads saved models of any kind."""
    from cakrr.saved import SavedModels

    return SavedModels()


def train(method: Method, comm: Communicator, argv: list[str] | None = None) -> None:
    """Train as the command of `method` does, but do not end the process; collective."""
    command.train(method, lambda options: _load(method), comm, argv)


def main(method: Method, argv: list[str] | None = None) -> None:
    """Run the command of `method`, ``python -m cakrr.METHOD DATA``, and end the process."""
    run(lambda comm: train(method, comm, argv), method.prog, argv=argv)


def main_predict(argv: list[str] | None = None) -> None:
    """Run ``python -m cakrr.predict MODEL DATA``, and end the process."""
    prog, own = "cakrr.predict", ("probability", "std", "interval", "adaptive")
    run(lambda comm: command.predict(_of_models, prog, comm, argv, own), prog, argv=argv)
