"""Decisions on rows that had no part in the model: which rows are left out, and what is kept of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.tuning.folds import FOLDS

ENOUGH = 5000  # rows of a problem of two classes that are left out, if it has so many
_OF_A_CLASS = 500  # and of the smaller class


@dataclass(frozen=True, eq=False)
class LeftOut:
    """This rank's decisions on rows that were left out.

    Attributes
    ----------
    decisions : ndarray of float64, shape (N,)
        Large where a row is likely to be of the first class of its pair, or of the class against the rest.
    first : ndarray of bool, shape (N,)
        Whether it is.
    problem : ndarray of int64, shape (N,)
        The pair, in the order (0, 1), (0, 2), ..., (1, 2), ..., or the class.
    """

    decisions: NDArray[np.float64]
    first: NDArray[np.bool_]
    problem: NDArray[np.int64]

    @classmethod
    def of_pairs(cls, D: NDArray[np.float64], codes: NDArray[np.int64], k: int) -> LeftOut:
        """Of the decisions of all pairs of k classes, shape (n, k (k - 1) / 2), those that a row's class has part in.

        A decision that is not there is NaN.
        """
        found = []
        for pair, (i, j) in enumerate(combinations(range(k), 2)):
            rows = np.flatnonzero(((codes == i) | (codes == j)) & ~np.isnan(D[:, pair]))
            found.append(cls(D[rows, pair], codes[rows] == i, np.full(len(rows), pair)))
        return cls.stacked(found)

    @classmethod
    def of_classes(cls, D: NDArray[np.float64], codes: NDArray[np.int64], k: int) -> LeftOut:
        """Of the decisions of each of k classes against the rest, shape (n, k)."""
        problem = np.tile(np.arange(k), len(D))
        return cls(D.ravel(), problem == codes.repeat(k), problem)

    @classmethod
    def stacked(cls, some: Sequence[LeftOut]) -> LeftOut:
        """All of them, one after the other."""
        none = cls(np.zeros(0), np.zeros(0, np.bool_), np.zeros(0, np.int64))
        every = [none, *some]
        names = ("decisions", "first", "problem")
        return cls(*(np.concatenate([getattr(one, name) for one in every]) for name in names))


def folds_to_leave_out(counts: NDArray[np.int64]) -> int:
    """Of how many of the folds rows are left out for two classes or more.

    Parameters
    ----------
    counts : ndarray of int64, shape (k,)
        Rows of each class, over all ranks.

    Returns
    -------
    int
        So many that 5,000 rows of each pair of classes are left out, and 500 of each class, or all: two numbers of a
        sigmoid take no more, and each fold costs a training on the others.
    """
    least, *_ = np.sort(counts)
    pair = int(np.sort(counts)[:2].sum())
    share = max(ENOUGH / max(1, pair), _OF_A_CLASS / max(1, int(least)))
    return int(np.clip(np.ceil(FOLDS * share), 1, FOLDS))


def global_folds(codes: NDArray[np.int64], k: int, comm: Communicator) -> NDArray[np.int64]:
    """The fold of each of this rank's rows: every class is dealt in the order of all ranks' rows; collective.

    One Allgather of k counts, so that the folds are the same on any number of ranks.
    """
    counts = comm.allgather(np.bincount(codes, minlength=k).astype(np.int64)[None])
    dealt = counts[: comm.rank].sum(axis=0) if comm.rank else np.zeros(k, np.int64)
    order = np.argsort(codes, kind="stable")
    place = np.empty(len(codes), np.int64)
    starts = np.cumsum(counts[comm.rank]) - counts[comm.rank]
    place[order] = np.arange(len(codes)) - starts[codes[order]]
    # A class goes on from the fold where the one before it ended.
    total = counts.sum(axis=0)
    return np.asarray((place + dealt[codes] + (np.cumsum(total) - total)[codes]) % FOLDS)


def pairs_of(classes: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """The numbers of all pairs of some of k classes, which ascend, among those of all of them."""
    first, second = (classes[side] for side in np.triu_indices(len(classes), 1))
    return np.asarray(first * (2 * k - first - 1) // 2 + second - first - 1)
