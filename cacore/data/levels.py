"""Levels of features: a column of 0 and 1 for each value of a feature that takes few whole numbers.

Such numbers are often codes of categories, whose differences mean nothing. With a column per value, any two different
values are about equally far apart, as they are for the splits of a decision tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.errors import InputError

FEWEST, MOST = 3, 20  # numbers of levels; one column tells two values apart as well as two do
_EXACT = 2.0**24  # whole numbers up to this one are exact in single precision
_GLANCE = 1_000  # rows that show most features to have more values


@dataclass(frozen=True, eq=False)
class Levels:
    """Columns made from the features: one for each level of some features, and the other features as they are.

    Attributes
    ----------
    feature : ndarray of int64, shape (d',)
        Feature of each column, ascending. A feature has one column, or one per level.
    value : ndarray of float64, shape (d',)
        Level of the column's feature at which the column is 1, while it is 0 elsewhere; 0 for a feature as it is.
    """

    feature: NDArray[np.int64]
    value: NDArray[np.float64]

    @property
    def n_features(self) -> int:
        """Number of features, d."""
        return int(self.feature[-1]) + 1

    @property
    def indicates(self) -> NDArray[np.bool_]:
        """Mask of the columns that stand for a level, shape (d',)."""
        return np.bincount(self.feature)[self.feature] > 1

    def apply(self, X: NDArray[np.floating]) -> NDArray[np.floating]:
        """The columns, shape (n, d'), for rows of shape (n, d), in their dtype; a value without a column gives 0."""
        out = np.take(X, self.feature, axis=1)
        for column in np.flatnonzero(self.indicates):
            out[:, column] = X[:, self.feature[column]] == self.value[column]
        return out

    def summed(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers for the columns, shape (d',), added up for each feature, shape (d,)."""
        return np.asarray(np.bincount(self.feature, values))

    def check(self) -> None:
        """Raise an InputError if the arrays of a model file are not valid."""
        steps = np.diff(self.feature, prepend=0)
        if self.feature[:1].any() or not np.isin(steps, (0, 1)).all():
            raise InputError("level_features: not the features in their order")


def levels_of(X: NDArray[np.floating], comm: Communicator) -> Levels | None:
    """The levels of the features with 3 to 20 different whole numbers; None if there are none. Collective.

    Parameters
    ----------
    X : ndarray, shape (n_local, d)
        This rank's rows; finite.
    comm : Communicator

    Notes
    -----
    One Allgather of 20 d numbers per rank. n d log(n) comparisons for features of few whole numbers.
    """
    own = np.full((X.shape[1], MOST), np.inf)  # too many values are -inf, missing ones inf
    for j in range(X.shape[1]):
        values = np.unique(X[:_GLANCE, j])
        if len(values) <= MOST:
            values = np.unique(X[:, j])
        whole = len(values) <= MOST and bool((values == np.rint(values)).all() and (np.abs(values) <= _EXACT).all())
        own[j, : len(values) if whole else MOST] = values if whole else -np.inf
    every = comm.allgather(own[None])
    features, columns = [], []
    for j in range(X.shape[1]):
        values = np.unique(every[:, j])
        values = values[values < np.inf]
        some = FEWEST <= len(values) <= MOST and np.isfinite(values).all()
        columns.append(values if some else np.zeros(1))
        features.append(np.full(len(columns[-1]), j))
    made = Levels(np.concatenate(features).astype(np.int64), np.concatenate(columns))
    return made if len(made.feature) > X.shape[1] else None
