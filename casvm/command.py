"""The commands of kernel SVMs: training, with one command per method, and prediction with a saved model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cacore.learn.method import Method
from cacore.run.command import Commands
from casvm.options import ValueMethod

if TYPE_CHECKING:
    from cacore.run.family import AnyFamily


def _family(method: Method | None, options: Any) -> AnyFamily:
    """The family that trains `method`, or loads any model; it imports compiled code, which --help does without."""
    from casvm import svm_family

    if not isinstance(method, ValueMethod):
        return svm_family.SupportVectors()
    if options.quantile is not None:
        return svm_family.Quantiles()
    return svm_family.Outliers() if method.one_class else svm_family.Values()


COMMANDS = Commands("casvm", _family, ("decisions", "probability", "interval"))
train, main, main_predict = COMMANDS.train, COMMANDS.main, COMMANDS.main_predict
