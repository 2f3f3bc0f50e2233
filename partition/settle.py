"""Assignment of each row to its closest centre with room, on any number of ranks.

Algorithms 3 and 9 assign the rows one after another. In matching theory this is a serial dictatorship, and its outcome
is unique for a given order of the rows. Deferred acceptance finds the same outcome in parallel:

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
from typing import TYPE_CHECKING

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from partition.assign import PartRows

if TYPE_CHECKING:
    from cacore.arrays import Ints, Longs

_BINS = 64
_MESSAGE = 1000  # numbers that a network sends in the time of one more message


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
    """See :func:`smallest`: the values of each part go to one rank, which sorts them.

    `slots` has the place in `k` of each member's part, or -1. Part and value travel as one number, 8 bytes per member.
    """
    there = np.flatnonzero(slots >= 0)
    owner = slots[there] % comm.size
    keys = (slots[there] * stop + values[members[there]])[np.argsort(owner, kind="stable")]
    keys = np.sort(comm.alltoall(keys, np.bincount(owner, minlength=comm.size))[0])
    own = np.arange(comm.rank, len(k), comm.size)
    chosen = keys[np.searchsorted(keys, own * stop) + k[own]] - own * stop
    found = np.empty(len(k), np.int64)
    found[np.argsort(np.arange(len(k)) % comm.size, kind="stable")] = comm.allgather(chosen)
    return found


def _by_histograms(
    values: NDArray[np.int64], labels: NDArray[np.int32], members: NDArray[np.int64], slot: NDArray[np.int64],
    k: NDArray[np.int64], stop: int, comm: Communicator,
) -> NDArray[np.int64]:  # fmt: skip
    """See :func:`smallest`: each round narrows the brackets of all parts 64-fold."""
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
