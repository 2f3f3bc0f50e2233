"""Errors by which candidates are compared, as sums that add up over ranks.

Beside them stand those of a model that knows no features: of the mean, or of the most frequent class.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cakernels.search.data import CLASSIFICATION, REGRESSION, Data


@dataclass(frozen=True)
class Score:
    """A score of predictions, and the error that a search minimises.

    Attributes
    ----------
    name : str
    task : {"regression", "classification"}
    loss : callable
        ``loss(y, predicted)``, one number per row.
    finish : callable
        Error from the weighted mean loss, over all rows or, if `by_class`, over the rows of each class.
    by_class : bool
    """

    name: str
    task: str
    loss: Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]
    finish: Callable[[float], float]
    by_class: bool = False

    def error(self, data: Data, rows: NDArray[np.bool_], predicted: NDArray[Any], comm: Communicator) -> float:
        """Error of the predictions for this rank's rows in the mask, over all ranks; one Allreduce."""
        y, w = data.targets(rows)
        with np.errstate(over="ignore", invalid="ignore"):
            loss = np.asarray(self.loss(y, predicted), np.float64)
            loss = loss if loss.ndim == 1 else loss.mean(axis=1)
        means, _ = self._means(data, y, w, loss, comm)
        total = self.finish(float(means.mean())) if len(means) else math.inf
        return total if math.isfinite(total) else math.inf

    def sure(
        self, data: Data, rows: NDArray[np.bool_], P: NDArray[np.float64], labels: NDArray[Any], comm: Communicator
    ) -> tuple[float, float]:  # fmt: skip
        """How far chance may decide between classifiers: two numbers from this rank's rows in the mask; collective.

        The squared error of the probabilities `P`, shape (m, k), added up over the classes, as a mean over the rows;
        and the standard deviation of the share of wrong `labels`, as that of independent rows.
        """
        y, w = data.targets(rows)
        squares = np.square(P - (y[:, None] == data.classes)).sum(axis=1)
        squared, _ = self._means(data, y, w, squares, comm)
        wrong, shares = self._means(data, y, w, self.loss(y, labels), comm)
        deviation = math.sqrt(float((wrong * (1.0 - wrong) * shares).sum())) / max(len(wrong), 1)
        return float(squared.mean()), deviation

    def _means(
        self, data: Data, y: NDArray[Any], w: NDArray[np.float64], loss: NDArray[np.float64], comm: Communicator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
        """Weighted mean loss of all rows or of each class that has some, and the variance of such a mean of unit ones.

        One Allreduce of three numbers per class.
        """
        sums = np.vstack([self._sums(data, y, w, loss), self._sums(data, y, w, w)[:1]])
        with comm.uncounted():
            total, weight, squares = comm.allreduce(sums)
        there = weight > 0
        return total[there] / weight[there], squares[there] / weight[there] ** 2

    def clearly_better(
        self, data: Data, rows: NDArray[np.bool_], new: NDArray[Any], old: NDArray[Any], comm: Communicator
    ) -> bool:  # fmt: skip
        """True if labels `new` have a smaller loss than `old` by more than the deviation of the difference; collective.

        The deviation is that of the sum over the rows of the mask: for accuracy, the root of the number of rows at
        which one of them is right and the other wrong (McNemar). Two Allreduces, of at most two numbers per class.
        """
        y, w = data.targets(rows)
        gain = self.loss(y, old) - self.loss(y, new)
        with comm.uncounted():
            if self.by_class:
                _, weight = comm.allreduce(self._sums(data, y, w, gain))
                w = w / weight[np.searchsorted(data.classes, y)]
            total, square = comm.allreduce(np.array([w @ gain, w**2 @ gain**2]))
        return bool(total > math.sqrt(square))

    def _sums(
        self, data: Data, y: NDArray[Any], w: NDArray[np.float64], loss: NDArray[np.float64]
    ) -> NDArray[np.float64]:  # fmt: skip
        """Weighted sums of the loss, and of the weights: of all of this rank's rows, or of those of each class."""
        groups = len(data.classes) if self.by_class else 1
        of = np.searchsorted(data.classes, y) if self.by_class else np.zeros(len(y), np.int64)
        return np.stack([np.bincount(of, w * loss, groups), np.bincount(of, w, groups)])

    def value(self, error: float) -> float:
        """The score as users know it: the error, or the share of right answers; NaN if the error is infinite."""
        return math.nan if math.isinf(error) else error if self.task == REGRESSION else 1.0 - error

    def formatted(self, error: float) -> str:
        """The score as users know it: an error, or the share of right answers in per cent."""
        return f"{error:.4g}" if self.task == REGRESSION else f"{100 * (1 - error):.2f} %"


def _squares(y: NDArray[np.float64], predicted: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.square(np.asarray(predicted, np.float64) - y))


def _gaps(y: NDArray[np.float64], predicted: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.abs(np.asarray(predicted, np.float64) - y))


def _wrong(y: NDArray[np.generic], predicted: NDArray[np.generic]) -> NDArray[np.float64]:
    return np.asarray(np.asarray(predicted) != y, np.float64)


def _same(mean: float) -> float:
    return mean


SCORES = {
    score.name: score
    for score in (
        Score("rmse", REGRESSION, _squares, math.sqrt),
        Score("mae", REGRESSION, _gaps, _same),
        Score("accuracy", CLASSIFICATION, _wrong, _same),
        Score("balanced_accuracy", CLASSIFICATION, _wrong, _same, by_class=True),
    )
}
DEFAULTS = {REGRESSION: "rmse", CLASSIFICATION: "accuracy"}


@dataclass(frozen=True)
class Baseline:
    """One prediction for every row.

    Attributes
    ----------
    value : ndarray, shape () or (t,)
        The mean target, or the most frequent label.
    name : str
        Text for tables and messages.
    """

    value: NDArray[Any]
    name: str

    @classmethod
    def of(cls, data: Data, comm: Communicator) -> Baseline:
        """The weighted mean target, or the most frequent class, the first of equally frequent ones; collective."""
        y, w = data.targets(np.ones(len(data.y), np.bool_))
        if data.task == REGRESSION:
            with comm.uncounted(), np.errstate(over="ignore", invalid="ignore"):
                total = comm.allreduce(np.append(w @ np.asarray(y, np.float64).reshape(len(y), -1), w.sum()))
                mean = np.asarray(total[:-1] / total[-1])
            return cls(mean.reshape(data.y.shape[1:]), "the mean")
        with comm.uncounted():
            weights = comm.allreduce(np.bincount(np.searchsorted(data.classes, y), w, len(data.classes)))
        label = data.classes[int(np.argmax(weights))]
        return cls(np.asarray(label), f"the most frequent class, {label.item()!r}")

    def predicted(self, rows: int) -> NDArray[Any]:
        """The predictions for so many rows."""
        return np.broadcast_to(self.value, (rows, *self.value.shape)).copy()
