"""Quantile regressions in the commands: a column per quantile, pinball losses, and intervals."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.errors import InputError
from cacore.io.predictions import Column
from cacore.metrics.probabilistic import interval_metrics
from cacore.metrics.quantiles import quantile_metrics
from cacore.run.job import Predicting, Training
from casvm.fit import SVMFit
from casvm.model.quantiles import Ends, QuantileModel
from casvm.model.svr import SVRModel
from casvm.value_family import Values
from casvm.value_options import ValueMethod, ValueOptions


@dataclass
class PredictedQuantiles:
    """Quantiles of this rank's rows, ascending, shape (n_local, t); and ends of intervals, and facts about them."""

    values: NDArray[np.float64]
    ends: Ends | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class Quantiles(Values):
    """The family of quantile regressions: one real number per row and level."""

    score: ClassVar[str] = "minus the mean pinball loss on rows left out"

    def check(self, method: ValueMethod, job: Training, options: ValueOptions, comm: Communicator) -> dict[str, Path]:
        """Refuse --libsvm."""
        if job.libsvm is not None:
            raise InputError("--libsvm: LIBSVM's format has no quantiles; save --model instead")
        return {}

    def tested(self, model: SVRModel, test: Dataset, comm: Communicator) -> dict[str, NDArray[np.float64]]:
        """Quantiles of this rank's test rows; collective."""
        return {"values": _quantiles(model).quantiles(model.decision_function(test.X, comm))}

    def metrics(
        self, model: SVRModel, test: Dataset, answers: dict[str, NDArray[np.float64]], comm: Communicator
    ) -> dict[str, object]:
        """Pinball losses of the test rows, and the share of targets below each quantile; collective."""
        return self.judged(model, test, PredictedQuantiles(answers["values"]), comm)

    def judged(
        self, model: SVRModel, rows: Dataset, answers: PredictedQuantiles, comm: Communicator
    ) -> dict[str, object]:
        """Pinball losses, and the share of targets below each quantile; collective."""
        with comm.phase("predict"):
            return quantile_metrics(rows.target(), answers.values, _quantiles(model).levels, comm)

    def report(
        self, method: ValueMethod, fitted: SVMFit[SVRModel], options: ValueOptions, job: Training
    ) -> dict[str, Any]:
        """Fields of the report: also the levels, and the share of rows that intervals are calibrated on."""
        made = super().report(method, fitted, options, job)
        made["params"] |= {"quantile": list(options.levels), "calibrate": options.calibrate}
        return made

    def notes(self, method: ValueMethod, fitted: SVMFit[SVRModel], options: ValueOptions) -> list[str]:
        """Notes; also on the rows that intervals are calibrated on."""
        notes = super().notes(method, fitted, options)
        if options.calibrate is not None:
            notes.append(f"a share of {options.calibrate:g} of the rows was held out to calibrate the quantiles")
        return notes

    def check_interval(self, model: SVRModel, job: Predicting) -> None:
        """Refuse intervals of a model without calibration, or of a coverage that it cannot reach."""
        if job.adaptive is not None:
            raise InputError("--adaptive: intervals of quantiles have a width for each row already; leave it out")
        if job.interval is not None:
            _quantiles(model).width(job.interval)

    def answers(self, model: SVRModel, rows: Dataset, job: Predicting, comm: Communicator) -> PredictedQuantiles:
        """Quantiles of this rank's rows, and the ends of their intervals if requested; collective."""
        raw, kept = model.decision_function(rows.X, comm), _quantiles(model).calibration
        values = _quantiles(model).quantiles(raw)
        if job.interval is None or kept is None:
            return PredictedQuantiles(values)
        facts = {"asked": job.interval, "adaptive": None, "rows": kept.rows, "calibration_rows": kept.n}
        return PredictedQuantiles(values, _quantiles(model).ends(raw, job.interval), facts)

    def intervals(self, rows: Dataset, answers: PredictedQuantiles, comm: Communicator) -> dict[str, object]:
        """Coverage and mean width of the intervals; collective."""
        if answers.ends is None:
            return {}
        with comm.phase("predict"):
            return answers.facts | interval_metrics(rows.y, *answers.ends, comm)

    def predictions(self, model: SVRModel, answers: PredictedQuantiles, decisions: bool) -> dict[str, Column]:
        """A column per quantile, such as ``quantile 0.1``, and ``lower`` and ``upper`` ends of intervals."""
        names = [f"quantile {level:g}" for level in _quantiles(model).levels]
        columns: dict[str, Column] = dict(zip(names, np.ascontiguousarray(answers.values.T), strict=True))
        return columns | ({} if answers.ends is None else dict(zip(("lower", "upper"), answers.ends, strict=True)))


def _quantiles(model: SVRModel) -> QuantileModel:
    assert isinstance(model, QuantileModel)
    return model
