"""The result of ``cakrr.predict``: the columns it writes, and their metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import AnyRows
from cacore.errors import InputError
from cacore.machine import memory
from cacore.metrics import errors
from cacore.metrics.probabilistic import gaussian_scores, interval_metrics
from cakrr.uncertainty.answer import IntervalRequest, answered, parts_sharing

if TYPE_CHECKING:
    from cakrr.model import KRRModel

if TYPE_CHECKING:
    from cacore.run.job import Predicting


@dataclass
class Predicted:
    """Predictions for this rank's rows and their uncertainty, all of shape (n_local,) or (n_local, t).

    Attributes
    ----------
    mean : ndarray
    std : ndarray or None
        Standard deviations of new targets.
    ends : tuple of two ndarrays, or None
        Lower and upper ends of intervals.
    facts : dict
        Entries of the report about the intervals.
    probabilities : ndarray, shape (n_local, k), or None
        Probabilities of a classifier's classes.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64] | None
    ends: tuple[NDArray[np.float64], NDArray[np.float64]] | None
    facts: dict[str, Any]
    probabilities: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, model: KRRModel, X: AnyRows, job: Predicting, comm: Communicator) -> Predicted:
        """Predict what the command requests, computing standard deviations only once; collective."""
        with comm.phase("predict"):
            mean, std, ends = answered(model, X, request(job), comm, memory.limit_per_rank(comm, job.memory_limit))
        shown = std if job.std else None
        if job.probability:
            return cls(mean, shown, None, {}, model.probabilities(mean))
        if ends is None or model.calibration is None:
            return cls(mean, shown, None, {})
        facts = {
            "asked": job.interval, "adaptive": job.adaptive, "rows": model.calibration.rows,
            "calibration_rows": model.calibration.n,
        }  # fmt: skip
        if job.interval and job.adaptive == "parts" and (shared := parts_sharing(model, job.interval, comm)):
            facts["parts_sharing_a_width"] = shared
        return cls(mean, shown, ends, facts)

    @property
    def columns(self) -> dict[str, NDArray[np.float64]]:
        """Columns of the file, by name."""
        if self.std is None and self.ends is None:
            return {"prediction": self.mean}
        found = {"mean": self.mean}
        if self.std is not None:
            found["std"] = self.std
        if self.ends is not None:
            found["lower"], found["upper"] = self.ends
        return found

    def by_target(self) -> dict[str, NDArray[np.float64]]:
        """Columns of the file, by name; one per target if there are several."""
        if self.mean.ndim == 1:
            return self.columns
        return {f"{name} {j}": values[:, j] for name, values in self.columns.items() for j in range(values.shape[1])}

    def metrics(self, y: NDArray[np.floating], comm: Communicator) -> dict[str, object]:
        """Errors; with standard deviations also scores of the predictive normal distributions; collective."""
        found: dict[str, Any] = errors.regression_metrics(y, self.mean, comm)
        return found if self.std is None else found | gaussian_scores(y, self.mean, self.std, comm)

    def intervals(self, y: NDArray[np.floating] | None, comm: Communicator) -> dict[str, object]:
        """Entries of the report about the intervals, if there are any; collective."""
        return {} if self.ends is None else self.facts | interval_metrics(y, *self.ends, comm)


def check(model: KRRModel, job: Predicting) -> None:
    """Raise an InputError if the model cannot do what the command requests."""
    if job.probability and model.classes is None:
        raise InputError(
            "--probability: the model predicts numbers and has no classes; train it with --classify, or by "
            "cakernels fit with --task classification"
        )
    request(job).check(model)


def request(job: Predicting) -> IntervalRequest:
    """The standard deviations and intervals that the command requests."""
    return IntervalRequest(job.std, job.interval, job.adaptive)
