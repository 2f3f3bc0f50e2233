"""The task of support vector quantile regression, and the intervals around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from cacore.comm import Communicator
from cacore.data.aside import set_aside
from cacore.data.dataset import Dataset
from cacore.probability.quantiles import check_held_out
from casvm.fit import SVMFit
from casvm.model.quantiles import QuantileModel
from casvm.model.svr import SVRModel
from casvm.tasks.values import ValuesTask
from casvm.value_options import ValueMethod, ValueOptions

Trainer = Callable[[ValueMethod, Dataset, ValueOptions, Communicator], SVMFit[SVRModel]]


@dataclass(kw_only=True)
class QuantilesTask(ValuesTask):
    """Quantiles of the target: one real output per row and level, which differ in the bounds of their duals only."""

    def model(self, **where: Any) -> QuantileModel:
        """The model with these parts."""
        quantile = self.options.quantile
        assert quantile is not None
        return QuantileModel(quantile=quantile, **self.described(), **where)


def calibrated(
    fit: Trainer, method: ValueMethod, train: Dataset, options: ValueOptions, comm: Communicator
) -> SVMFit[SVRModel]:
    """Train with `fit`, and calibrate intervals on a share of the rows that it never sees, if requested; collective.

    Held-out rows are used neither for the features' mean and deviation, nor for partitioning, the choice of C and
    gamma, or the model. So their scores are those of new rows. They cost a prediction, and 8 Allreduces of up to 256
    counts per stored score.
    """
    if options.calibrate is None:
        return fit(method, train, options, comm)
    with comm.agreed():
        options.checked(method, comm.size)
    train, aside = set_aside(train, options.calibrate, options.seed, comm)
    aside = aside.weighted()
    held_out = comm.offset(aside.X.shape[0])[1]
    with comm.agreed():
        check_held_out(options.levels, held_out)
    fitted = fit(method, train, replace(options, calibrate=None), comm)
    model = fitted.model
    assert isinstance(model, QuantileModel)
    values = model.decision_function(aside.X, comm)
    with comm.phase("train"):
        model.calibrate(values, aside.target().astype(float), comm)
    return fitted
