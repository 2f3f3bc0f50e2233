"""Each row to its closest centre with room, on any number of ranks.

The listings (Algorithms 3 and 9) take the rows one after another. Taken in a fixed order, that is
the serial dictatorship of matching theory, and it has one outcome, which deferred acceptance finds
in parallel: every row asks its closest centre, every centre keeps the earliest rows up to its
capacity and publishes the place in the order at which it closed, and the rows it refused ask their
closest centre among those still open to them. Closing places only move earlier, and each round
settles at least one more of them for good, so there are at most P rounds, of one Allreduce of a few
histograms each. The outcome is the listing's own for a shuffled file, whatever the order of the file
and the number of ranks.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from partition.assign import PartRows

_BINS = 64


def capacities(n: int, P: int, population: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Rows per part, n in all, that differ by at most 1; the larger parts go to the larger `population`."""
    room = np.full(P, n // P, np.int64)
    largest = np.arange(P) if population is None else np.argsort(-population, kind="stable")
    room[largest[: n % P]] += 1
    return room


def settle(
    rows: PartRows,
    centers: NDArray[np.float64],
    room: NDArray[np.int64],
    labels: NDArray[np.int32],
    members: NDArray[np.int64],
) -> int:
    """Give each of `members` its closest centre with room, the rows coming in the order of ``rows.order``.

    Parameters
    ----------
    rows : PartRows
    centers : ndarray, shape (P, d)
    room : ndarray of int64, shape (P,)
        Rows each part can take; together at least the number of members on all ranks.
    labels : ndarray of int32, shape (n_local,)
        Rewritten for the members.
    members : ndarray of int64
        This rank's rows that take part.

    Returns
    -------
    int
        Rounds taken, at most P.
    """
    P = len(centers)
    cutoff = np.where(room > 0, rows.n, 0)
    asking, rounds = members, 0
    while True:
        rows.nearest_open(centers, cutoff, labels, asking)
        rounds += 1
        held = rows.comm.allreduce(np.bincount(labels[members], minlength=P))
        over = held > room
        if not over.any():
            return rounds
        full = np.flatnonzero(over)
        cutoff[full] = smallest(rows.order, labels, members, full, room[full], rows.n, rows.comm)
        asking = members[rows.order[members] >= cutoff[labels[members]]]


def smallest(
    values: NDArray[np.int64],
    labels: NDArray[np.int32],
    members: NDArray[np.int64],
    parts: NDArray[np.int64],
    k: NDArray[np.int64],
    stop: int,
    comm: Communicator,
) -> NDArray[np.int64]:
    """For each of `parts`, the value that exactly `k` or fewer of its members on all ranks are below.

    It is the k-th smallest (from 0) of the members' values, which lie in ``0 .. stop-1``. Every part
    has more than k members. The bracket shrinks 64-fold a round: ``log64(stop)`` Allreduces of
    64 x len(parts) counts.
    """
    slot = np.full(max(int(labels.max(initial=0)), int(parts.max())) + 1, -1, np.int64)
    slot[parts] = np.arange(len(parts))
    low, below = np.zeros(len(parts), np.int64), np.zeros(len(parts), np.int64)
    width = np.int64(stop)
    while width > 1:
        width = -(-width // _BINS)
        counts = np.zeros((len(parts), _BINS), np.int64)
        _histogram(values, labels, members, slot, low, width, counts)
        reached = below[:, None] + np.cumsum(comm.allreduce(counts), axis=1)
        bin_ = (reached <= k[:, None]).sum(axis=1)
        below = np.where(bin_ > 0, np.take_along_axis(reached, np.maximum(bin_ - 1, 0)[:, None], 1)[:, 0], below)
        low = low + bin_ * width
    return low


@numba.njit(cache=True, nogil=True)
def _histogram(
    values: Any, labels: Any, members: Any, slot: Any, low: Any, width: Any, counts: Any
) -> None:  # pragma: no cover - compiled
    """Count the members' values by part and bin of `width` from the part's `low`; those outside all bins do not count.

    values: int64 (n_local,); labels: int32 (n_local,); members: int64 (m,); slot: int64, a part's row of `counts` or
    -1; low: int64 (parts,); width: int64; counts: int64 (parts, bins).
    """
    for i in members:
        s = slot[labels[i]]
        if s >= 0:
            b = values[i] - low[s]
            if b >= 0 and b < width * counts.shape[1]:
                counts[s, b // width] += 1
