"""Decisions on held-out rows, to which probabilities are fitted, and the number of folds that hold rows out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from cacore.data.holdout import FOLDS

# 20,000 rows of ijcnn1: two folds, as these say, have a log loss of 0.0471, and one 0.0500 (68f41550). Five folds of a
# set of 5,000 rows are all that it has; more than two parameters need, and each fold costs a training.
ENOUGH = 5000  # held-out rows per two-class problem, if it has that many
_OF_A_CLASS = 500  # held-out rows of its smaller class


@dataclass(frozen=True, eq=False)
class LeftOutDecisions:
    """This rank's decisions on held-out rows.

    Attributes
    ----------
    decisions : ndarray of float64, shape (N,)
        Large if the row is likely to belong to the first class of its pair, or to the class against the rest.
    first : ndarray of bool, shape (N,)
        True if the row does belong to that class.
    problem : ndarray of int64, shape (N,)
        Number of the pair, in the order (0, 1), (0, 2), ..., (1, 2), ..., or of the class.
    weights : ndarray of float64, shape (N,), or None
        Weights of the rows, those of classes not included; None for 1 each.
    """

    decisions: NDArray[np.float64]
    first: NDArray[np.bool_]
    problem: NDArray[np.int64]
    weights: NDArray[np.float64] | None = None

    @classmethod
    def of_pairs(
        cls, D: NDArray[np.float64], codes: NDArray[np.int64], k: int, weights: NDArray[np.float64] | None = None
    ) -> LeftOutDecisions:  # fmt: skip
        """Decisions of the pairs that contain a row's class, from those of all pairs, shape (n, k (k - 1) / 2).

        Missing decisions are NaN.
        """
        sets = []
        for pair, (i, j) in enumerate(combinations(range(k), 2)):
            rows = np.flatnonzero(((codes == i) | (codes == j)) & ~np.isnan(D[:, pair]))
            w = None if weights is None else weights[rows]
            sets.append(cls(D[rows, pair], codes[rows] == i, np.full(len(rows), pair), w))
        return cls.stacked(sets)

    @classmethod
    def of_classes(
        cls, D: NDArray[np.float64], codes: NDArray[np.int64], k: int, weights: NDArray[np.float64] | None = None
    ) -> LeftOutDecisions:  # fmt: skip
        """Decisions of each of k classes against the rest, shape (n, k), one problem per class."""
        problem = np.tile(np.arange(k), len(D))
        return cls(D.ravel(), problem == codes.repeat(k), problem, None if weights is None else weights.repeat(k))

    @classmethod
    def stacked(cls, sets: Sequence[LeftOutDecisions]) -> LeftOutDecisions:
        """Concatenation of several sets of decisions."""
        none = cls(np.zeros(0), np.zeros(0, np.bool_), np.zeros(0, np.int64))
        all_sets = [none, *sets]
        names = ("decisions", "first", "problem", "row_weights")
        return cls(*(np.concatenate([getattr(decisions, name) for decisions in all_sets]) for name in names))

    @property
    def row_weights(self) -> NDArray[np.float64]:
        """Weight of each decision."""
        return np.ones(len(self.decisions)) if self.weights is None else self.weights


def folds_to_leave_out(counts: NDArray[np.int64]) -> int:
    """Number of folds to hold out for calibration, for two or more classes.

    Parameters
    ----------
    counts : ndarray of int64, shape (k,)
        Rows of each class on all ranks.

    Returns
    -------
    int
        Enough folds to hold out 5,000 rows of each pair of classes and 500 of each class, or else all folds. The two
        parameters of a sigmoid need no more rows, and each fold costs one training on the other folds.
    """
    least, *_ = np.sort(counts)
    pair = int(np.sort(counts)[:2].sum())
    share = max(ENOUGH / max(1, pair), _OF_A_CLASS / max(1, int(least)))
    return int(np.clip(np.ceil(FOLDS * share), 1, FOLDS))


def pairs_of(classes: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """Numbers of the pairs of the given classes (ascending) among all pairs of k classes."""
    first, second = (classes[side] for side in np.triu_indices(len(classes), 1))
    return np.asarray(first * (2 * k - first - 1) // 2 + second - first - 1)
