"""The commands' interface to families of regressors: predictions, standard deviations and intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.io.predictions import Column
from cacore.metrics import errors
from cacore.metrics.probabilistic import gaussian_scores, interval_metrics
from cacore.run.family import Answering, ModelT


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


class RegressionAnswering(Answering[ModelT, Predicted], Generic[ModelT]):
    """Models that predict numbers with their uncertainty, as the predicting command sees them."""

    def judged(self, model: ModelT, rows: Dataset, answers: Predicted, comm: Communicator) -> dict[str, object]:
        """Errors of the predictions; collective."""
        with comm.phase("predict"):
            return answers.metrics(rows.target(), comm)

    def intervals(self, rows: Dataset, answers: Predicted, comm: Communicator) -> dict[str, object]:
        """Mean width and coverage of the intervals; collective."""
        with comm.phase("predict"):
            return answers.intervals(rows.y, comm)

    def predictions(self, model: ModelT, answers: Predicted, decisions: bool) -> dict[str, Column]:
        """Column ``prediction``, or ``mean`` and the requested ones; one column per target if there are several."""
        return dict(answers.by_target())
