"""Partitioners with parts of equal size: FCFS (Algorithm 3), balanced K-means (4) and K-balance (9).

If parts have limited room, Algorithms 3 and 9 assign the rows one after another. In matching theory this is a serial
dictatorship, and its outcome is unique for a given order of the rows. Deferred acceptance finds the same outcome in
parallel:

1. Every row applies to its closest centre.
2. Every centre accepts the earliest rows up to its capacity, and announces its cutoff: the place in the order from
   which it rejects rows.
3. Every rejected row applies to its closest centre among those whose cutoff is later than the row's place.

Cutoffs only move earlier, and each round makes at least one more of them final. Hence there are at most P rounds, in
practice some 15 to 35. The outcome is that of the listing on a shuffled file; it depends neither on the order of the
rows in the file nor on the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.checks import yes_or_no
from cacore.comm import Communicator
from cacore.errors import InputError
from partition.algorithms.kmeans import LLOYD, k_means
from partition.base import Algorithm, PartRows, power_of_two

if TYPE_CHECKING:
    from cacore.arrays import Ints, Longs

_BINS = 64  # counts per part and round: 4 rounds for 16 million rows, and 512 bytes per part in each (not measured)
# Numbers that a network sends in the time of one more message: 1 us at 8 GB/s. 4,096 parts on 64 ranks take 0.203 s by
# the parts' owners, and 0.335 s by histograms (`python -m benchmarks divide`, docs/scaling.md).
_MESSAGE = 1000

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
            deferred_acceptance(rows, centers, room, labels, members)
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
    (:func:`kth_smallest`).

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
        # `kth_smallest` selects integers: the bits of non-negative floats, read as integers, have the same order.
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
        edge[full] = kth_smallest(far, labels, members, full, room[full], 1 << 31, rows.comm)
        limit = edge[labels[members]]
        inside = rows.comm.allreduce(np.bincount(labels[members][far[members] < limit], minlength=P))
        on_edge = members[far[members] == limit]
        last = np.full(P, rows.n)
        last[full] = kth_smallest(rows.order, labels, on_edge, full, (room - inside)[full], rows.n, rows.comm)
        leaves = (far[members] > limit) | ((far[members] == limit) & (rows.order[members] >= last[labels[members]]))
        deferred_acceptance(rows, centers, room - np.minimum(held, room), labels, members[leaves])


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
    (:func:`kth_smallest`).

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
        deferred_acceptance(rows, centers, capacities(rows.n, P, sizes), labels, np.arange(len(rows)), labelled=True)
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


def capacities(n: int, P: int, population: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Capacities with sum n that differ by at most 1; parts with the largest `population` get the extra rows."""
    room = np.full(P, n // P, np.int64)
    largest = np.arange(P) if population is None else np.argsort(-population, kind="stable")
    room[largest[: n % P]] += 1
    return room


def deferred_acceptance(
    rows: PartRows,
    centers: NDArray[np.float64],
    room: NDArray[np.int64],
    labels: NDArray[np.int32],
    members: NDArray[np.int64],
    labelled: bool = False,
) -> int:
    """Assign `members`, in the order ``rows.order``, each to its closest centre with room; collective.

    Parameters
    ----------
    rows : PartRows
    centers : ndarray, shape (P, d)
    room : ndarray of int64, shape (P,)
        Capacity of each part; the sum is at least the number of members on all ranks.
    labels : ndarray of int32, shape (n_local,)
        Overwritten for the members.
    members : ndarray of int64
        Indices of this rank's rows to assign.
    labelled : bool
        True if the members' labels are their closest centres already; every part must have room.

    Returns
    -------
    int
        Number of rounds, at most P.
    """
    P = len(centers)
    cutoff = np.where(room > 0, rows.n, 0)
    asking, rounds = members[:0] if labelled else members, 0
    while True:
        rows.nearest_open(centers, cutoff, labels, asking)
        rounds += 1
        held = rows.comm.allreduce(np.bincount(labels[members], minlength=P))
        over = held > room
        if not over.any():
            return rounds
        full = np.flatnonzero(over)
        cutoff[full] = kth_smallest(rows.order, labels, members, full, room[full], rows.n, rows.comm)
        asking = members[rows.order[members] >= cutoff[labels[members]]]


def kth_smallest(
    values: NDArray[np.int64],
    labels: NDArray[np.int32],
    members: NDArray[np.int64],
    parts: NDArray[np.int64],
    k: NDArray[np.int64],
    stop: int,
    comm: Communicator,
) -> NDArray[np.int64]:
    """The k-th smallest value (from 0) among the members of each of `parts` on all ranks; collective.

    The values lie in ``0 .. stop-1``, and every part has more than k members.

    Notes
    -----
    Either ``log64(stop)`` Allreduces of 64 x len(parts) counts, or, where parts are so many and so small that this is
    faster, one Alltoall of the members' values and one Allgather of len(parts) numbers.
    """
    slot = np.full(max(int(labels.max(initial=0)), int(parts.max())) + 1, -1, np.int64)
    slot[parts] = np.arange(len(parts))
    counted = _BINS * math.ceil(math.log(stop, _BINS)) * len(parts)
    if int(k.sum()) / comm.size + _MESSAGE * comm.size < counted:
        return _by_owners(values, slot[labels[members]], members, k, stop, comm)
    return _by_histograms(values, labels, members, slot, k, stop, comm)


def _by_owners(
    values: NDArray[np.int64], slots: NDArray[np.int64], members: NDArray[np.int64], k: NDArray[np.int64], stop: int,
    comm: Communicator,
) -> NDArray[np.int64]:  # fmt: skip
    """See :func:`kth_smallest`: the values of each part go to one rank, which sorts them.

    `slots` has the place in `k` of each member's part, or -1. Part and value travel as one number, 8 bytes per member.
    """
    there = np.flatnonzero(slots >= 0)
    owner = slots[there] % comm.size
    keys = (slots[there] * stop + values[members[there]])[np.argsort(owner, kind="stable")]
    keys = np.sort(comm.alltoall(keys, np.bincount(owner, minlength=comm.size))[0])
    own_parts = np.arange(comm.rank, len(k), comm.size)
    chosen = keys[np.searchsorted(keys, own_parts * stop) + k[own_parts]] - own_parts * stop
    values_of_parts = np.empty(len(k), np.int64)
    values_of_parts[np.argsort(np.arange(len(k)) % comm.size, kind="stable")] = comm.allgather(chosen)
    return values_of_parts


def _by_histograms(
    values: NDArray[np.int64], labels: NDArray[np.int32], members: NDArray[np.int64], slot: NDArray[np.int64],
    k: NDArray[np.int64], stop: int, comm: Communicator,
) -> NDArray[np.int64]:  # fmt: skip
    """See :func:`kth_smallest`: each round narrows the brackets of all parts 64-fold."""
    parts = len(k)
    low, below = np.zeros(parts, np.int64), np.zeros(parts, np.int64)
    width = np.int64(stop)
    while width > 1:
        width = -(-width // _BINS)
        counts = np.zeros((parts, _BINS), np.int64)
        _histogram(values, labels, members, slot, low, width, counts)
        reached = below[:, None] + np.cumsum(comm.allreduce(counts), axis=1)
        bin_ = (reached <= k[:, None]).sum(axis=1)
        below = np.where(bin_ > 0, np.take_along_axis(reached, np.maximum(bin_ - 1, 0)[:, None], 1)[:, 0], below)
        low = low + bin_ * width
    return low


@numba.njit(cache=True, nogil=True)
def _histogram(
    values: Longs, labels: Ints, members: Longs, slot: Longs, low: Longs, width: int, counts: Longs
) -> None:  # pragma: no cover - compiled
    """Count the members' values per part in bins of `width` that begin at the part's `low`; ignore other values.

    values: int64 (n_local,); labels: int32 (n_local,); members: int64 (m,); slot: int64, each part's row of `counts`
    or -1; low: int64 (parts,); width: int64; counts: int64 (parts, bins).
    """
    for i in members:
        s = slot[labels[i]]
        if s >= 0:
            b = values[i] - low[s]
            if b >= 0 and b < width * counts.shape[1]:
                counts[s, b // width] += 1
