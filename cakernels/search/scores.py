"""Errors by which candidates are compared: sums that add up over ranks, or scikit-learn's scores of all ranks' rows.

Beside them stand those of a model that knows no features: the mean, the most frequent class, or the class frequencies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.labels import class_codes
from cacore.io.words import number, percent
from cacore.metrics import ERRORS
from cakernels.search.data import CLASSIFICATION, REGRESSION, Data

LOG_LOSS = "log_loss"
Rated: TypeAlias = tuple[float, float]  # a score or its error, and its standard deviation by chance


@dataclass(frozen=True)
class Score:
    """A score of predictions, and the error that a search minimises.

    The predictions are numbers, labels or, with `of_probabilities`, probabilities of the classes, shape (m, k). Labels
    reach `loss` and `rate` as codes: places among the classes, -1 for another label.

    Attributes
    ----------
    name : str
        That of scikit-learn, whose score it equals.
    task : {"regression", "classification"}
    loss : callable or None
        ``loss(y, predicted)``, one number per row: the error is a mean of it.
    finish : callable
        Error from the weighted mean loss, over all rows or, if `by_class`, over the rows of each class.
    by_class : bool
    rate : callable or None
        ``rate(y, predicted, weights, k)``, for a score that is no mean over rows: from the rows of all ranks.
    of_probabilities : bool
    """

    name: str
    task: str
    loss: Callable[[NDArray[Any], NDArray[Any]], NDArray[np.float64]] | None = None
    finish: Callable[[float], float] = float
    by_class: bool = False
    rate: Callable[[NDArray[Any], NDArray[Any], NDArray[np.float64], int], Rated] | None = None
    of_probabilities: bool = False

    def error(self, data: Data, rows: NDArray[np.bool_], predicted: NDArray[Any], comm: Communicator) -> float:
        """Error of the predictions for this rank's rows in the mask, over all ranks; collective, see :meth:`rated`."""
        return self.rated(data, rows, predicted, comm)[0]

    def rated(self, data: Data, rows: NDArray[np.bool_], predicted: NDArray[Any], comm: Communicator) -> Rated:
        """Error of the predictions for this rank's rows in the mask, over all ranks, and its deviation by chance.

        The error is infinite where it is undefined. The deviation is that for independent rows, 0 for numbers and
        probabilities. One Allreduce of three numbers per class, or an Allgather of the targets and predictions.
        """
        y, w = data.targets(rows)
        y, predicted = _coded(data, y), _coded(data, np.asarray(predicted))
        if self.rate is not None:
            with comm.uncounted():
                y, predicted, w = comm.allgather(y), comm.allgather(predicted), comm.allgather(w)
                if not np.isfinite(predicted).all():
                    return math.inf, 0.0
                score, deviation = self.rate(y, predicted, w, len(data.classes))
            return (1.0 - score if math.isfinite(score) else math.inf), deviation
        with np.errstate(over="ignore", invalid="ignore"):
            loss = self._losses(y, predicted)
        means, shares = self._means(data, y, w, loss, comm)
        total = self.finish(float(means.mean())) if len(means) else math.inf
        spread = (means * (1.0 - means) * shares).sum() if self.by_labels else 0.0
        return (total if math.isfinite(total) else math.inf), math.sqrt(float(spread)) / max(len(means), 1)

    @property
    def by_labels(self) -> bool:
        """True if every row counts as right or wrong."""
        return self.loss is _wrong

    def _losses(self, y: NDArray[Any], predicted: NDArray[Any]) -> NDArray[np.float64]:
        """Loss of each row, of several targets their mean."""
        assert self.loss is not None
        loss = np.asarray(self.loss(y, predicted), np.float64)
        return loss if loss.ndim == 1 else loss.mean(axis=1)

    def squared(
        self, data: Data, rows: NDArray[np.bool_], P: NDArray[np.float64], comm: Communicator
    ) -> float:  # fmt: skip
        """Squared error of the probabilities `P`, shape (m, k), of this rank's rows in the mask; collective.

        It is added up over the classes, as a mean over all ranks' rows or, if `by_class`, over the rows of each class.
        """
        y, w = data.targets(rows)
        y = _coded(data, y)
        squares = np.square(P - (y[:, None] == np.arange(P.shape[1]))).sum(axis=1)
        return float(self._means(data, y, w, squares, comm)[0].mean())

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
        """True if predictions `new` have a smaller loss than `old` by more than the difference's deviation; collective.

        The deviation is that of the sum over the rows of the mask: for accuracy, the root of the number of rows at
        which one of them is right and the other wrong (McNemar). Two Allreduces, of at most two numbers per class.
        Where the error is no mean over rows, any smaller error is enough.
        """
        if self.rate is not None:
            return self.error(data, rows, new, comm) < self.error(data, rows, old, comm)
        y, w = data.targets(rows)
        y = _coded(data, y)
        gain = self._losses(y, _coded(data, old)) - self._losses(y, _coded(data, new))
        with comm.uncounted():
            if self.by_class:
                _, weight = comm.allreduce(self._sums(data, y, w, gain))
                w = w / weight[y]
            total, square = comm.allreduce(np.array([w @ gain, w**2 @ gain**2]))
        return bool(total > math.sqrt(square))

    def _sums(
        self, data: Data, y: NDArray[Any], w: NDArray[np.float64], loss: NDArray[np.float64]
    ) -> NDArray[np.float64]:  # fmt: skip
        """Weighted sums of the loss, and of the weights: of all of this rank's rows, or of those of each class."""
        groups = len(data.classes) + 1 if self.by_class else 1  # the last one of other labels, which are -1
        of = y % groups if self.by_class else np.zeros(len(y), np.int64)
        sums = np.stack([np.bincount(of, w * loss, groups), np.bincount(of, w, groups)])
        return np.asarray(sums, np.float64)  # without rows, bincount returns integers

    def value(self, error: float) -> float:
        """The score as users know it: the error, or 1 less the error; NaN if the error is infinite."""
        return math.nan if math.isinf(error) else error if self.name in ERRORS else 1.0 - error

    def text(self, value: float) -> str:
        """Text of a :meth:`value`, in per cent for a share of right labels."""
        return percent(value) if self.by_labels else number(value)

    def formatted(self, error: float) -> str:
        """Text of the score with this error."""
        return self.text(self.value(error))


def _coded(data: Data, y: NDArray[Any]) -> NDArray[Any]:
    """Places of labels among the classes, -1 for others; numbers and probabilities as they are."""
    return class_codes(y, data.classes) if len(data.classes) and y.ndim == 1 else y


def _squares(y: NDArray[np.float64], predicted: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.square(np.asarray(predicted, np.float64) - y))


def _gaps(y: NDArray[np.float64], predicted: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.abs(np.asarray(predicted, np.float64) - y))


def _wrong(y: NDArray[np.int64], predicted: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray(predicted != y, np.float64)


def _surprises(y: NDArray[np.int64], P: NDArray[np.float64]) -> NDArray[np.float64]:
    true = np.where(y >= 0, P[np.arange(len(P)), y], 0.0)
    return np.asarray(-np.log(np.clip(true, np.finfo(np.float64).eps, 1.0)))


def _r2(y: NDArray[np.float64], predicted: NDArray[np.float64], w: NDArray[np.float64], k: int) -> Rated:
    from sklearn.metrics import r2_score

    score = float(r2_score(y, predicted, sample_weight=w))
    return (0.0 if abs(score) < 1e-12 else score), 0.0  # of the mean: 0 but for rounding


def _f1(y: NDArray[np.int64], predicted: NDArray[np.int64], w: NDArray[np.float64], k: int) -> Rated:
    """F1 score of the second of two classes, or its mean over the classes that occur; deviation by the delta method."""
    from sklearn.metrics import f1_score

    there = np.array([1]) if k == 2 else np.union1d(y, predicted)
    influence = np.zeros(len(y))
    for c in there:
        both, either = (y == c) & (predicted == c), (y == c).astype(float) + (predicted == c)
        total = w @ either or 1.0
        influence += w * (2.0 * both - (2.0 * (w @ both) / total) * either) / total / len(there)
    score = f1_score(y, predicted, labels=there, average="macro", sample_weight=w, zero_division=0.0)
    return float(score), float(np.linalg.norm(influence))


def _ranking(name: str) -> Callable[[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], int], Rated]:
    """A score of scikit-learn for the second of two classes, or its mean over classes against the rest; NaN for one."""

    def rate(y: NDArray[np.int64], P: NDArray[np.float64], w: NDArray[np.float64], k: int) -> Rated:
        from sklearn import metrics

        score = getattr(metrics, name)
        there = [c for c in ([1] if k == 2 else range(k)) if 0 < np.count_nonzero(y == c) < len(y)]
        values = [score(y == c, P[:, c], sample_weight=w) for c in there]
        return (float(np.mean(values)) if values else math.nan), 0.0

    return rate


SCORES = {
    score.name: score
    for score in (
        Score("rmse", REGRESSION, _squares, math.sqrt),
        Score("mae", REGRESSION, _gaps),
        Score("r2", REGRESSION, rate=_r2),
        Score("pinball", REGRESSION, _gaps, lambda mean: 0.5 * mean),  # of the median
        Score("accuracy", CLASSIFICATION, _wrong),
        Score("balanced_accuracy", CLASSIFICATION, _wrong, by_class=True),
        Score("f1", CLASSIFICATION, rate=_f1),
        Score(LOG_LOSS, CLASSIFICATION, _surprises, of_probabilities=True),
        Score("roc_auc", CLASSIFICATION, rate=_ranking("roc_auc_score"), of_probabilities=True),
        Score("average_precision", CLASSIFICATION, rate=_ranking("average_precision_score"), of_probabilities=True),
    )
}
DEFAULTS = {REGRESSION: "rmse", CLASSIFICATION: "accuracy"}


def default(task: str, probability: str | None) -> str:
    """Name of the score that chooses, where the user names none: of probabilities if they are asked for."""
    return DEFAULTS[task] if probability in (None, "none") else LOG_LOSS


@dataclass(frozen=True)
class Baseline:
    """One prediction for every row.

    Attributes
    ----------
    value : ndarray, shape () or (t,)
        The mean target, the most frequent label, or the shares of the classes.
    name : str
        Text for tables and messages.
    """

    value: NDArray[Any]
    name: str

    @classmethod
    def of(cls, data: Data, comm: Communicator, of_probabilities: bool = False) -> Baseline:
        """The weighted mean target, or the most frequent class, the first of equally frequent ones; collective.

        With `of_probabilities`, the weighted shares of the classes.
        """
        y, w = data.targets(np.ones(len(data.y), np.bool_))
        if data.task == REGRESSION:
            with comm.uncounted(), np.errstate(over="ignore", invalid="ignore"):
                y = np.asarray(y, np.float64).reshape(len(y), math.prod(y.shape[1:]))  # a rank may have no rows
                total = comm.allreduce(np.append(w @ y, w.sum()))
                mean = np.asarray(total[:-1] / total[-1])
            return cls(mean.reshape(data.y.shape[1:]), "the mean")
        with comm.uncounted():
            weights = comm.allreduce(np.bincount(np.searchsorted(data.classes, y), w, len(data.classes)))
        if of_probabilities:
            return cls(weights / weights.sum(), "the frequencies of the classes")
        label = data.classes[int(np.argmax(weights))]
        return cls(np.asarray(label), f"the most frequent class, {label.item()!r}")

    def predicted(self, rows: int) -> NDArray[Any]:
        """The predictions for so many rows."""
        return np.broadcast_to(self.value, (rows, *self.value.shape)).copy()
