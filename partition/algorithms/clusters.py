"""Parts around centres: K-means (Algorithms 2 and 7), FCFS (3), balanced K-means (4) and K-balance (9).

K-means finds centres by Lloyd's iteration, in one level, or in two for many parts. One level takes one Allreduce per
round: every round compares each row with P centres and reduces P x d numbers over all ranks. In two levels there are
about sqrt(P) groups of about sqrt(P) parts. K-means finds the groups; then the rows of a group move to a team of ranks,
which finds the centres of the group's parts as if there were no other rows. At the end the parts are compared across
groups: all that follows, from the rows' labels to equal sizes, is the same as in one level.

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
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.arrays import Ints, Longs
from cacore.checks import at_least_zero, whole, yes_or_no
from cacore.comm import Communicator
from cacore.comm.ranks import team
from cacore.data.dataset import Samples
from cacore.errors import InputError
from partition.base import Algorithm, PartRows, power_of_two
from partition.redistribute import assign_owners, redistribute

LLOYD = {"tol": at_least_zero, "max_iter": whole(0)}  # checks of the parameters of `k_means`
# Most parts whose centres are found in one level. Every round compares a row with P centres, in two levels with about
# 2 sqrt(P), once the rows have moved. 1,024 parts of a million rows on 64 ranks: 2.86 s in one level, 0.56 s in two
# (`python -m benchmarks divide`, docs/scaling.md). 128 itself is by that count of operations, not by a measurement.
ONE_LEVEL = 128
_BINS = 64  # counts per part and round: 4 rounds for 16 million rows, and 512 bytes per part in each (not measured)
# Numbers that a network sends in the time of one more message: 1 us at 8 GB/s. 4,096 parts on 64 ranks take 0.203 s by
# the parts' owners, and 0.335 s by histograms (`python -m benchmarks divide`, docs/scaling.md).
_MESSAGE = 1000

_BALANCED = {"ratio": yes_or_no, "recompute_centers": yes_or_no}

# -- K-means ------------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False, kw_only=True)
class KMeans(Algorithm, name="kmeans"):
    """K-means: each row belongs to the part of its nearest centre; the sizes of the parts follow the data.

    Parameters
    ----------
    n_parts : int
    tol : float
        Stop after a round in which at most this share of the rows changes part.
    max_iter : int
        Largest number of rounds.
    random_state : int, RandomState or None

    Attributes
    ----------
    n_iter_ : int
        Number of rounds.

    Notes
    -----
    2 n P d flops and one Allreduce of P x (d+1) numbers per round. Beyond 128 parts, the centres are found in two
    levels (:func:`two_levels`). No part is empty, even if many rows are equal.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from partition import KMeans
    >>> X, y = make_blobs([50, 100, 150, 100], random_state=0)
    >>> parts = KMeans(n_parts=4, random_state=0).fit(X)
    >>> int(parts.sizes_.sum()), parts.centers_.shape
    (400, (4, 2))
    """

    checks = Algorithm.checks | LLOYD

    tol: float = 1e-3
    max_iter: int = 500

    def _partition(
        self, rows: PartRows, y: NDArray[np.generic] | None
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        labels, centers, sizes, self.n_iter_ = k_means(rows, self.n_parts, self.tol, self.max_iter)
        _fill_empty(rows, labels, centers, sizes)
        return labels, centers


def k_means(rows: PartRows, P: int, tol: float, max_iter: int) -> Found:
    """Find P centres by K-means, in two levels if there are many; collective. The result is that of :func:`lloyd`."""
    one_level = partial(lloyd, tol=tol, max_iter=max_iter)
    return one_level(rows, P) if P <= ONE_LEVEL else two_levels(rows, P, one_level)


def lloyd(rows: PartRows, P: int, tol: float, max_iter: int) -> Found:
    """Run Lloyd's iteration from P random rows; collective.

    Returns
    -------
    labels : ndarray of int32, shape (n_local,)
        Number of the nearest of the returned centres.
    centers : ndarray, shape (P, d)
    sizes : ndarray of int64, shape (P,)
        0 is possible: with many equal rows, two centres may coincide, and the lower number takes all their rows.
    n_iter : int
        Number of rounds.
    """
    d = rows.X.shape[1]
    centers = rows.take(rows.shuffle.row(np.arange(P)))
    labels = np.full(len(rows), -1, np.int32)
    n_iter, moving, fewest = 0, True, P + 1
    while moving and n_iter < max_iter:
        n_iter += 1
        sums, counts, changed = rows.step(centers, labels)
        total = rows.comm.allreduce(np.concatenate([sums.ravel(), counts, [changed]]))
        sizes = total[P * d : P * d + P]
        centers = np.where(sizes[:, None] > 0, total[: P * d].reshape(P, d) / np.maximum(sizes, 1)[:, None], centers)
        empty = np.flatnonzero(sizes == 0)
        reseeded = _reseed(rows, labels, centers, empty)
        # Reseed only while it leaves fewer parts empty: there may be fewer distinct rows than parts.
        moving = total[-1] > float(tol) * rows.n or (reseeded > 0 and len(empty) < fewest)
        fewest = min(fewest, len(empty))
    _, counts, _ = rows.step(centers, labels, sums=False)
    return labels, centers, rows.comm.allreduce(counts), n_iter


def _reseed(rows: PartRows, labels: NDArray[np.int32], centers: NDArray[np.float64], empty: NDArray[np.intp]) -> int:
    """Move the centres of empty parts to the rows farthest from their own centres; return the number moved."""
    if not empty.size:
        return 0
    far = rows.squared_distances(centers, labels)
    here = np.lexsort((rows.order, -far))[: empty.size]
    farthest = rows.comm.allgather(np.column_stack([far[here], rows.first + here.astype(np.float64)]))
    farthest = farthest[np.lexsort((farthest[:, 1], -farthest[:, 0]))][: empty.size]
    # The mean of equal rows differs from them by rounding errors: such a distance must not seed a part.
    farthest = farthest[farthest[:, 0] > 1e-20 * np.square(centers).sum(axis=1).max()]
    if len(farthest):
        centers[empty[: len(farthest)]] = rows.take(farthest[:, 1].astype(np.int64))
    return len(farthest)


def _fill_empty(
    rows: PartRows, labels: NDArray[np.int32], centers: NDArray[np.float64], sizes: NDArray[np.int64]
) -> None:
    """Give each empty part one row of the largest part, since every part needs rows to train on."""
    for part in np.flatnonzero(sizes == 0):
        donor = int(np.argmax(sizes))
        place = rows.order[np.flatnonzero(labels == donor)].min(initial=rows.n)
        first = rows.shuffle.row(rows.comm.allreduce(np.array([place]), "min"))
        if rows.first <= first[0] < rows.first + len(rows):
            labels[first[0] - rows.first] = part
        centers[part] = rows.take(first)[0]
        sizes[donor] -= 1
        sizes[part] += 1


Found = tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.int64], int]  # labels, centres, sizes, rounds


def two_levels(rows: PartRows, P: int, one_level: Callable[[PartRows, int], Found]) -> Found:
    """Find P centres, and the nearest one of each row; collective.

    Parameters
    ----------
    rows : PartRows
    P : int
    one_level : callable
        ``one_level(rows, k)`` divides rows around k centres, and returns labels, centres, sizes and the number of
        rounds.

    Returns
    -------
    labels : ndarray of int32, shape (n_local,)
        Number of the nearest centre.
    centers : ndarray, shape (P, d)
    sizes : ndarray of int64, shape (P,)
    rounds : int
        Number of rounds of the groups, and the largest one within a group.

    Notes
    -----
    About 2 n sqrt(P) d flops per round and 2 n P d at the end. Each row is sent once, P x d numbers to all ranks, and
    about sqrt(P) x d numbers per round. A rank holds its share of the largest group besides its own rows. The rows of a
    group are sorted by their place in the shuffled order, so that the centres do not depend on the number of ranks.
    """
    groups, _, population, rounds = one_level(rows, round(P**0.5))
    parts = apportioned(P, population)
    centers, group_rounds = _centers(rows, groups, population, parts, one_level)
    labels = np.full(len(rows), -1, np.int32)
    _, counts, _ = rows.step(centers, labels, sums=False)
    return labels, centers, rows.comm.allreduce(counts), rounds + group_rounds


def apportioned(P: int, population: NDArray[np.int64]) -> NDArray[np.int64]:
    """Share P parts among groups in proportion to their rows: at least one per group with rows, at most one per row."""
    exact, least = P * population / population.sum(), np.minimum(population, 1)
    parts = np.clip(exact.astype(np.int64), least, population)
    while missing := P - int(parts.sum()):
        step = 1 if missing > 0 else -1
        may = np.flatnonzero(parts < population if missing > 0 else parts > least)
        lacks = step * (exact - parts)[may]
        parts[may[np.argsort(-lacks, kind="stable")[: abs(missing)]]] += step
    return np.asarray(parts)


def _centers(
    rows: PartRows, groups: NDArray[np.int32], sizes: NDArray[np.int64], parts: NDArray[np.int64],
    one_level: Callable[[PartRows, int], Found],
) -> tuple[NDArray[np.float64], int]:  # fmt: skip
    """Centres of the parts of all groups, and the largest number of rounds in a group; collective."""
    comm, G, starts = rows.comm, len(parts), np.append(0, np.cumsum(parts))
    alone = comm.size <= G  # each group on one rank; otherwise each rank in the team of one group
    if alone:
        owners, cells, mine = assign_owners(sizes, comm.size, lambda m: m), groups, 0
    else:
        first = np.append(0, np.cumsum(apportioned(comm.size, np.where(sizes > 0, np.maximum(sizes, comm.size), 0))))
        owners, mine = np.arange(comm.size), int(np.searchsorted(first, comm.rank, "right")) - 1
        cells = (first[groups] + rows.order * np.diff(first)[groups] // rows.n).astype(np.int32)
    moved = redistribute(Samples(rows.X, {"order": rows.order}), cells, owners, comm, order="order")
    own_centers, numbers, rounds = [np.zeros((0, rows.X.shape[1]))], [np.zeros(0, np.int64)], 0
    with nullcontext(Communicator()) if alone else team(comm, mine) as ranks:
        for cell, rows_of_cell in moved:
            group = cell if alone else mine
            if parts[group]:
                held = PartRows(moved.subset(rows_of_cell).X, ranks, rows.seed + 1 + group)
                _, centers, _, taken = one_level(held, int(parts[group]))
                rounds = max(rounds, taken)
                if ranks.rank == 0:
                    own_centers.append(centers)
                    numbers.append(np.arange(starts[group], starts[group + 1]))
    all_centers = np.empty((int(starts[-1]), rows.X.shape[1]))
    all_centers[comm.allgather(np.concatenate(numbers))] = comm.allgather(np.concatenate(own_centers))
    return all_centers, int(comm.allreduce(np.array([rounds]), "max")[0])


# -- parts of equal size ------------------------------------------------------------------------------


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
