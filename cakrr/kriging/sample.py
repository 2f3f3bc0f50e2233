"""Points from which the parameters of a covariance are estimated: all, or a sample that every rank has.

Half of a sample are random points, and half are 10 blocks of neighbouring ones, which show the covariance nearby.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from cacore.comm import Communicator

BLOCKS = 10  # of neighbouring points


@dataclass
class Sample:
    """Points on every rank, in their shuffled order.

    Attributes
    ----------
    X : ndarray, shape (s, d)
    y : ndarray, shape (s,)
    F : ndarray, shape (s, p)
        Functions of the drift.
    errors : ndarray, shape (s,)
        Known variance of each value's error.
    blocks : int
        Number of the last points, which are in blocks of neighbours only; the others are random ones.
    """

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    F: NDArray[np.float64]
    errors: NDArray[np.float64]
    blocks: int = 0

    @classmethod
    def of(
        cls, X: NDArray[np.float64], values: NDArray[np.float64], place: NDArray[np.int64], n: int, most: int,
        comm: Communicator,
    ) -> Sample:  # fmt: skip
        """All n points, or a sample of at most `most` of them; collective.

        Parameters
        ----------
        X : ndarray, shape (n_local, d)
        values : ndarray, shape (n_local, 2 + p)
            Value, variance of its error, functions of the drift.
        place : ndarray of int64, shape (n_local,)
            Places in the shuffled order.
        n, most : int
            At least 2 `BLOCKS` points are allowed.

        Notes
        -----
        Every rank receives the sample: points of d + p + 3 numbers. Random points that lie in a block count once, so
        that there are slightly fewer than `most`.
        """
        near = most // 2 // BLOCKS  # points of a block
        random = n if n <= most else most - BLOCKS * near
        chosen = place < random
        if random < n:
            chosen |= _blocks(X, place, near, comm)
        d = X.shape[1]
        rows = comm.allgather(np.column_stack([place, X, values])[chosen])
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        X, values = np.ascontiguousarray(rows[:, 1 : d + 1]), rows[:, d + 1 :]
        return cls(X, values[:, 0].copy(), values[:, 2:].copy(), values[:, 1].copy(), len(rows) - random)

    def __len__(self) -> int:
        return len(self.X)

    def noise(self, sill: float | None, nugget: float, ratio: float | None) -> NDArray[np.float64]:
        """Variance of each value's noise over the sill; `ratio` is that of the nugget, where the sill is unknown."""
        return np.full(len(self), ratio) if ratio is not None else (nugget + self.errors) / (sill or 1.0)


def _blocks(X: NDArray[np.float64], place: NDArray[np.int64], near: int, comm: Communicator) -> NDArray[np.bool_]:
    """True for the `near` points nearest to each of the first points of the shuffled order; collective."""
    first = comm.allgather(np.column_stack([place, X])[place < BLOCKS])
    centers = first[np.argsort(first[:, 0]), 1:]
    chosen = np.zeros(len(X), np.bool_)
    tree = cKDTree(X) if len(X) else None
    for center in centers:
        r, who = (np.zeros(0), np.zeros(0, np.int64)) if tree is None else tree.query(center, min(near, len(X)))
        r, who = np.atleast_1d(r), np.atleast_1d(who)
        every = np.sort(comm.allgather(r))
        chosen[who[r <= every[min(near, len(every)) - 1]]] = True
    return chosen
