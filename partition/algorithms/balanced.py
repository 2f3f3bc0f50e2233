"""Partitioners with parts of equal size: FCFS (Algorithm 3), balanced K-means (4) and K-balance (9)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.checks import yes_or_no
from cacore.errors import InputError
from partition.algorithms.kmeans import LLOYD, k_means
from partition.assign import PartRows, capacities, power_of_two, settle, smallest
from partition.base import Algorithm

_BALANCED = {"ratio": yes_or_no, "recompute_centers": yes_or_no}


@dataclass(eq=False, repr=False, kw_only=True)
class FCFS(Algorithm, name="fcfs"):
    """First come, first served: P random rows are the centres, and each row takes the closest centre with room.

    Parameters
    ----------
    n_parts : int
    ratio : bool
        Balance every class as well as the parts' sizes; `fit` then needs y.
    recompute_centers : bool
        Replace the random rows by the means of the parts as the final centres.
    random_state : int, RandomState or None

    Notes
    -----
    Sizes differ by at most 1. Rows are assigned in a shuffled order that does not depend on the number of ranks, so
    the order of the rows in the file does not matter. O(n P d) flops, no K-means.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from partition import FCFS
    >>> X, y = make_blobs([50, 100, 150, 100], random_state=0)
    >>> parts = FCFS(n_parts=4, ratio=True, random_state=0).fit(X, y > 1)
    >>> parts.sizes_.tolist()
    [100, 100, 100, 100]
    """

    balances_classes = True
    checks = Algorithm.checks | _BALANCED

    ratio: bool = False
    recompute_centers: bool = True

    def _partition(
        self, rows: PartRows, y: NDArray[np.generic] | None
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        P = self.n_parts
        centers = rows.take(rows.shuffle.row(np.arange(P)))
        labels = np.full(len(rows), -1, np.int32)
        for members, room in _balanced_together(rows, y, self.ratio, P):
            settle(rows, centers, room, labels, members)
        return labels, rows.means(labels, P)[0] if self.recompute_centers else centers


@dataclass(eq=False, repr=False, kw_only=True)
class BalancedKMeans(Algorithm, name="bkm"):
    """K-means, after which the farthest rows of parts that are too large move to their closest part with room.

    Parameters
    ----------
    n_parts : int
    ratio : bool
        Balance every class as well as the parts' sizes; `fit` then needs y.
    recompute_centers : bool
        Replace the K-means centres by the means of the balanced parts.
    tol, max_iter
        Parameters of K-means; see :class:`KMeans`.
    random_state : int, RandomState or None

    Attributes
    ----------
    n_iter_ : int
        Number of K-means rounds.

    Notes
    -----
    Sizes differ by at most 1. K-means, then O(n P d) flops, and selections from parts that are too large
    (:func:`partition.assign.smallest`).

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from partition import BalancedKMeans
    >>> X, y = make_blobs([50, 100, 150, 100], random_state=0)
    >>> parts = BalancedKMeans(n_parts=4, random_state=0).fit(X)
    >>> parts.sizes_.tolist()
    [100, 100, 100, 100]
    """

    balances_classes = True
    checks = Algorithm.checks | _BALANCED | LLOYD

    ratio: bool = False
    recompute_centers: bool = False
    tol: float = 1e-3
    max_iter: int = 500

    def _partition(
        self, rows: PartRows, y: NDArray[np.generic] | None
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        P = self.n_parts
        labels, centers, sizes, self.n_iter_ = k_means(rows, P, self.tol, self.max_iter)
        # `smallest` selects integers: the bits of non-negative floats, read as integers, have the same order.
        squares = rows.squared_distances(centers, labels) / power_of_two(centers) ** 2
        with np.errstate(over="ignore"):  # an overflow to infinity is still the farthest
            far = squares.astype(np.float32).view(np.int32).astype(np.int64)
        for members, room in _balanced_together(rows, y, self.ratio, P, sizes):
            self._move_farthest(rows, centers, room, labels, members, far)
        return labels, rows.means(labels, P)[0] if self.recompute_centers else centers

    def _move_farthest(
        self,
        rows: PartRows,
        centers: NDArray[np.float64],
        room: NDArray[np.int64],
        labels: NDArray[np.int32],
        members: NDArray[np.int64],
        far: NDArray[np.int64],
    ) -> None:
        P = self.n_parts
        held = rows.comm.allreduce(np.bincount(labels[members], minlength=P))
        full = np.flatnonzero(held > room)
        if not full.size:
            return
        # A part that is too large keeps the rows nearer than its edge distance, and the earliest rows at that distance.
        edge = np.full(P, np.iinfo(np.int64).max)
        edge[full] = smallest(far, labels, members, full, room[full], 1 << 31, rows.comm)
        limit = edge[labels[members]]
        inside = rows.comm.allreduce(np.bincount(labels[members][far[members] < limit], minlength=P))
        on_edge = members[far[members] == limit]
        last = np.full(P, rows.n)
        last[full] = smallest(rows.order, labels, on_edge, full, (room - inside)[full], rows.n, rows.comm)
        leaves = (far[members] > limit) | ((far[members] == limit) & (rows.order[members] >= last[labels[members]]))
        settle(rows, centers, room - np.minimum(held, room), labels, members[leaves])


@dataclass(eq=False, repr=False, kw_only=True)
class KBalance(Algorithm, name="kbalance"):
    """K-means determines the centres; then each row takes the closest centre with room.

    Parameters
    ----------
    n_parts : int
    recompute_centers : bool
        Replace the K-means centres by the means of the balanced parts. Keeping the K-means centres routes new rows
        better: MSE 0.286 against 0.309 on California housing, P = 16.
    tol, max_iter
        Parameters of K-means; see :class:`KMeans`.
    random_state : int, RandomState or None

    Attributes
    ----------
    n_iter_ : int
        Number of K-means rounds.

    Notes
    -----
    Sizes differ by at most 1. Rows are assigned in a shuffled order that does not depend on the number of ranks.
    K-means, then O(n P d) flops and at most P rounds of selections from the parts that are too large
    (:func:`partition.assign.smallest`).

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from partition import KBalance
    >>> X, y = make_blobs([50, 100, 150, 100], random_state=0)
    >>> parts = KBalance(n_parts=4, random_state=0).fit(X)
    >>> parts.sizes_.tolist()
    [100, 100, 100, 100]
    >>> parts.predict(X[:5]).shape
    (5,)
    """

    checks = Algorithm.checks | LLOYD | {"recompute_centers": yes_or_no}

    recompute_centers: bool = False
    tol: float = 1e-3
    max_iter: int = 500

    def _partition(
        self, rows: PartRows, y: NDArray[np.generic] | None
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        P = self.n_parts
        labels, centers, sizes, self.n_iter_ = k_means(rows, P, self.tol, self.max_iter)
        settle(rows, centers, capacities(rows.n, P, sizes), labels, np.arange(len(rows)), labelled=True)
        return labels, rows.means(labels, P)[0] if self.recompute_centers else centers


def _balanced_together(
    rows: PartRows, y: NDArray[np.generic] | None, ratio: bool, P: int, population: NDArray[np.int64] | None = None
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the rows to balance together and their capacity in each part: all rows at once, or class by class.

    If P does not divide the size of a class, some parts take one row more. These parts follow those that took one
    more of the previous class, so sizes differ by at most 1 within each class and in total.
    """
    if not ratio:
        yield np.arange(len(rows)), capacities(rows.n, P, population)
        return
    with rows.comm.agreed():
        if y is None:
            raise InputError("ratio=True balances classes: pass y to fit")
        if y.dtype.kind not in "biuf":
            raise InputError("ratio=True needs classes that are numbers; encode y first")
    assert y is not None
    taken = 0
    for value in np.unique(rows.comm.allgather(np.unique(y.astype(np.float64)))):
        members = np.flatnonzero(y == value)
        n = int(rows.comm.allreduce(np.array([len(members)]))[0])
        yield members, np.roll(capacities(n, P), taken)
        taken += n % P
