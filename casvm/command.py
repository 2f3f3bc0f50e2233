"""The commands of kernel SVMs: training, with one command per method, and prediction with a saved model."""

from __future__ import annotations

from typing import Any

from cacore.comm import Communicator
from cacore.learn.method import Method
from cacore.run import command
from cacore.run.family import AnyFamily
from cacore.run.launch import run
from casvm.options import SVMMethod


def _load(method: Method, options: Any) -> AnyFamily:
    """The family that trains `method`; it imports compiled code, which --help does without."""
    if isinstance(method, SVMMethod):
        return _of_models()
    if options.quantile is not None:
        from casvm.svm_family import Quantiles

        return Quantiles()
    from casvm.svm_family import Values

    return Values()


def _of_models() -> AnyFamily:
    """The family that loads saved models of any kind."""
    from casvm.svm_family import SupportVectors

    return SupportVectors()


def train(method: Method, comm: Communicator, argv: list[str] | None = None) -> None:
    """Train as the command of `method` does, but do not end the process; collective."""
    command.train(method, lambda options: _load(method, options), comm, argv)


def main(method: Method, argv: list[str] | None = None) -> None:
    """Run the command of `method`, ``python -m casvm.METHOD DATA``, and end the process."""
    run(lambda comm: train(method, comm, argv), method.prog, argv=argv)


def main_predict(argv: list[str] | None = None) -> None:
    """Run ``python -m casvm.predict MODEL DATA``, and end the process."""
    prog, flags = "casvm.predict", ("decisions", "probability", "interval")
    run(lambda comm: command.predict(_of_models, prog, comm, argv, flags), prog, argv=argv)
