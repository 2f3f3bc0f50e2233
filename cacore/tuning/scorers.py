"""Scores of classifiers, named as in scikit-learn, from counts that add up over parts, folds and ranks.

These scores depend only on the counts of right, predicted and true rows of each class. So no rows are sent: the counts
of all parts are added up, and their score is that of all rows together. Other scores, such as the area under the ROC
curve, are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.errors import InputError

Counts = NDArray[Any]

RIGHT, PREDICTED, TRUE = range(3)  # indices of the counts


def counted(codes: NDArray[np.int64], predicted: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """Counts of rows by class, shape (3, k): rightly predicted, predicted, and true members of each class."""
    right = np.bincount(codes[codes == predicted], minlength=k)
    return np.stack([right, np.bincount(predicted, minlength=k), np.bincount(codes, minlength=k)])


def _divided(over: NDArray[Any], under: NDArray[Any]) -> NDArray[np.float64]:
    """Quotient that is 0 where the denominator is 0, like scikit-learn's default for ``zero_division``."""
    return np.asarray(np.divide(over, under, out=np.zeros(np.shape(over)), where=np.asarray(under) > 0))


def _accuracy(counts: Counts) -> NDArray[np.float64]:
    return _divided(counts[..., RIGHT, :].sum(-1), counts[..., TRUE, :].sum(-1))


def _balanced_accuracy(counts: Counts) -> NDArray[np.float64]:
    there = counts[..., TRUE, :] > 0
    return _divided(_recall(counts).sum(-1), there.sum(-1))


def _precision(counts: Counts) -> NDArray[np.float64]:
    return _divided(counts[..., RIGHT, :], counts[..., PREDICTED, :])


def _recall(counts: Counts) -> NDArray[np.float64]:
    return _divided(counts[..., RIGHT, :], counts[..., TRUE, :])


def _f1(counts: Counts) -> NDArray[np.float64]:
    return _divided(2.0 * counts[..., RIGHT, :], counts[..., PREDICTED, :] + counts[..., TRUE, :])


def _jaccard(counts: Counts) -> NDArray[np.float64]:
    right = counts[..., RIGHT, :]
    return _divided(right, counts[..., PREDICTED, :] + counts[..., TRUE, :] - right)


def _binary(of_classes: Callable[[Counts], NDArray[np.float64]]) -> Callable[[Counts], NDArray[np.float64]]:
    return lambda counts: of_classes(counts)[..., 1]


def _macro(of_classes: Callable[[Counts], NDArray[np.float64]]) -> Callable[[Counts], NDArray[np.float64]]:
    def score(counts: Counts) -> NDArray[np.float64]:
        there = (counts[..., PREDICTED, :] + counts[..., TRUE, :]) > 0  # as in scikit-learn, only labels that occur
        return _divided(np.where(there, of_classes(counts), 0.0).sum(-1), there.sum(-1))

    return score


def _weighted(of_classes: Callable[[Counts], NDArray[np.float64]]) -> Callable[[Counts], NDArray[np.float64]]:
    def score(counts: Counts) -> NDArray[np.float64]:
        true = counts[..., TRUE, :]
        return _divided((of_classes(counts) * true).sum(-1), true.sum(-1))

    return score


def _micro(of_classes: Callable[[Counts], NDArray[np.float64]]) -> Callable[[Counts], NDArray[np.float64]]:
    return lambda counts: of_classes(counts.sum(-1, keepdims=True))[..., 0]


_OF_CLASSES = {"f1": _f1, "jaccard": _jaccard, "precision": _precision, "recall": _recall}
_AVERAGES = {"": _binary, "_macro": _macro, "_micro": _micro, "_weighted": _weighted}

SCORERS: dict[str, Callable[[Counts], NDArray[np.float64]]] = {
    "accuracy": _accuracy, "balanced_accuracy": _balanced_accuracy,
    **{name + suffix: of(score) for name, score in _OF_CLASSES.items() for suffix, of in _AVERAGES.items()},
}  # fmt: skip


def scorer(value: object, name: str) -> str:
    """The name of a score, checked; the InputError names the option `name`."""
    if isinstance(value, str) and value in SCORERS:
        return value
    shown = value if isinstance(value, str) and name.startswith("-") else repr(value)
    raise InputError(f"{name} {shown}: it must be a score that adds up over parts: {', '.join(SCORERS)}")


def scores(name: str, counts: Counts) -> NDArray[np.float64]:
    """Scores, shape (...), from counts, shape (..., 3, k); NaN where no row was judged.

    Raises
    ------
    InputError
        If the score is defined for two classes only and there are more.
    """
    k = counts.shape[-1]
    if name in _OF_CLASSES and k != 2:
        raise InputError(f"scoring = {name}: it is for two classes, but there are {k}; use {name}_macro")
    judged = counts[..., TRUE, :].sum(-1) > 0
    return np.where(judged, SCORERS[name](counts), np.nan)


def spread(name: str, counts: Counts) -> NDArray[np.float64]:
    """Approximate standard error of each score, shape (...), as if it were a share of the rows that it depends on.

    Accuracy depends on all judged rows. Other scores may depend on the rarest class, so only its rows count.
    """
    true = counts[..., TRUE, :]
    rows = true.sum(-1) if name in ("accuracy", "f1_micro", "precision_micro", "recall_micro") else true.min(-1)
    score = np.clip(np.nan_to_num(scores(name, counts)), 0.0, 1.0)
    rows = np.maximum(rows, 1)
    return np.asarray(np.sqrt((score * (1.0 - score) + 1.0 / rows) / rows))
