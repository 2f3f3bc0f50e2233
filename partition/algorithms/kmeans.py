"""K-means parts (Algorithms 2 and 7): Lloyd's iteration, in one level, or in two for many parts.

One level takes one Allreduce per round. With P centres, every round compares each row with P centres and reduces P x d
numbers over all ranks.

In two levels there are about sqrt(P) groups of about sqrt(P) parts. K-means finds the groups; then the rows of a group
move to a team of ranks, which finds the centres of the group's parts as if there were no other rows. At the end the
parts are compared across groups: all that follows, from the rows' labels to equal sizes, is the same as in one level.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from cacore.checks import at_least_zero, whole
from cacore.comm import Communicator
from cacore.comm.ranks import team
from cacore.data.dataset import Samples
from partition.base import Algorithm, PartRows
from partition.redistribute import assign_owners, redistribute

LLOYD = {"tol": at_least_zero, "max_iter": whole(0)}  # checks of the parameters of `k_means`
# Most parts whose centres are found in one level. Every round compares a row with P centres, in two levels with about
# 2 sqrt(P), once the rows have moved. 1,024 parts of a million rows on 64 ranks: 2.86 s in one level, 0.56 s in two
# (`python -m benchmarks divide`, docs/scaling.md). 128 itself is by that count of operations, not by a measurement.
ONE_LEVEL = 128


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
    levels (:mod:`partition.algorithms.kmeans`). No part is empty, even if many rows are equal.

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
