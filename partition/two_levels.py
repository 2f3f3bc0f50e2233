"""Centres of many parts by K-means in two levels.

With P centres in one level, every round of K-means compares each row with P centres and reduces P x d numbers over all
ranks. In two levels there are about sqrt(P) groups of about sqrt(P) parts. K-means finds the groups; then the rows of a
group move to a team of ranks, which finds the centres of the group's parts as if there were no other rows. At the end
the parts are compared across groups: what follows, from the rows' labels to equal sizes, is the same as in one level.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.comm.team import team
from cacore.data.dataset import Samples
from partition.assign import PartRows
from partition.redistribute import assign_owners, redistribute

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
    centers, more = _centers(rows, groups, population, parts, one_level)
    labels = np.full(len(rows), -1, np.int32)
    _, counts, _ = rows.step(centers, labels, sums=False)
    return labels, centers, rows.comm.allreduce(counts), rounds + more


def apportioned(P: int, population: NDArray[np.int64]) -> NDArray[np.int64]:
    """Share P parts among groups in proportion to their rows: at least one per group with rows, at most one per row."""
    exact, least = P * population / population.sum(), np.minimum(population, 1)
    parts = np.clip(exact.astype(np.int64), least, population)
    while left := P - int(parts.sum()):
        step = 1 if left > 0 else -1
        may = np.flatnonzero(parts < population if left > 0 else parts > least)
        lacks = step * (exact - parts)[may]
        parts[may[np.argsort(-lacks, kind="stable")[: abs(left)]]] += step
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
    found, numbers, rounds = [np.zeros((0, rows.X.shape[1]))], [np.zeros(0, np.int64)], 0
    with nullcontext(Communicator()) if alone else team(comm, mine) as ranks:
        for cell, some in moved:
            group = cell if alone else mine
            if parts[group]:
                held = PartRows(moved.some(some).X, ranks, rows.seed + 1 + group)
                _, centers, _, taken = one_level(held, int(parts[group]))
                rounds = max(rounds, taken)
                if ranks.rank == 0:
                    found.append(centers)
                    numbers.append(np.arange(starts[group], starts[group + 1]))
    every = np.empty((int(starts[-1]), rows.X.shape[1]))
    every[comm.allgather(np.concatenate(numbers))] = comm.allgather(np.concatenate(found))
    return every, int(comm.allreduce(np.array([rounds]), "max")[0])
