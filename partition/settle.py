"""Assignment of each row to its closest centre with room, on any number of ranks.

Algorithms 3 and 9 assign the rows one after another. In matching theory this is a serial dictatorship, and its outcome
is unique for a given order of the rows. Deferred acceptance finds the same outcome in parallel:

1. Every row applies to its closest centre.
2. Every centre accepts the earliest rows up to its capacity, and announces its cutoff: the place in the order from
   which it rejects rows.
3. Every rejected row applies to its closest centre among those whose cutoff is later than the row's place.

Cutoffs only move earlier, and each round makes at least one more of them final. Hence there are at most P rounds, each
with a few Allreduces of histograms. The outcome is that of the listing on a shuffled file; it depends neither on the
order of the rows in the file nor on the number of ranks.
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
    """Capacities with sum n that differ by at most 1; parts with the largest `population` get the extra rows."""
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

    Returns
    -------
    int
        Number of rounds, at most P.
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
    """The k-th smallest value (from 0) among the members of each of `parts` on all ranks; collective.

    The values lie in ``0 .. stop-1``, and every part has more than k members. Each round narrows the bracket 64-fold:
    ``log64(stop)`` Allreduces of 64 x len(parts) counts.
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
