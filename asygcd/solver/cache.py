"""Each thread's LRU cache of kernel columns, restricted to the thread's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from asygcd.solver.bundle import Bundle
from asygcd.solver.columns import fill

if TYPE_CHECKING:
    from cacore.arrays import Longs

HITS, MISSES, VALUES = range(3)  # indices into `ColumnCache.counts`
NEXT, BEFORE = 0, 1  # columns of `ColumnCache.links`


class ColumnCache(NamedTuple):
    """One thread's cache of columns of K over its rows; :func:`resident` fills it.

    It is the same for both precisions and for all forms of rows, and so is the code that uses it.

    Attributes
    ----------
    size : ndarray of int64, shape (2,)
        Number of the thread's rows, and the distance of consecutive kept columns in memory.
    held, slot : ndarray of int64, shape (slots,), (n,)
        Column in each slot, and slot of each column, or -1.
    links : ndarray of int64, shape (slots + 1, 2)
        Doubly linked ring of the slots from the most to the least recently used; the last line is its head.
    counts : ndarray of int64, shape (3,)
        Hits, misses, and number of kernel values computed.
    columns : Bundle of :class:`asygcd.solver.columns.CachedColumns`
        Rows and kept kernel values.
    fill, add, advance, pack : int
        Addresses of the functions of :mod:`asygcd.solver.columns` for their precision and form.
    """

    size: NDArray[np.int64]
    held: NDArray[np.int64]
    slot: NDArray[np.int64]
    links: NDArray[np.int64]
    counts: NDArray[np.int64]
    columns: Bundle
    fill: int
    add: int
    advance: int
    pack: int


@numba.njit(cache=True, nogil=True)
def resident(own: ColumnCache, wanted: Longs, slots: Longs) -> None:  # pragma: no cover - compiled
    """Load the `wanted` columns, at most as many as there are slots, and write their places to `slots`."""
    missing = 0
    for k in range(wanted.size):
        slot = own.slot[wanted[k]]
        if slot < 0:
            slot = _make_room(own, wanted[k])
            slots[k] = -1 - slot
            missing += 1
        else:
            slots[k] = slot
        _use(own.links, slot)
    own.counts[HITS] += wanted.size - missing
    own.counts[MISSES] += missing
    if missing:
        rows, places = np.empty(missing, np.int64), np.empty(missing, np.int64)
        at = 0
        for k in range(wanted.size):
            if slots[k] < 0:
                slots[k] = -1 - slots[k]
                rows[at], places[at] = wanted[k], slots[k]
                at += 1
        own.counts[VALUES] += missing * own.size[0]
        fill(own.fill, own.columns, rows, places)


@numba.njit(cache=True, nogil=True)
def _make_room(own: ColumnCache, column: int) -> int:  # pragma: no cover - compiled
    """Give the least recently used slot to `column`, and return it."""
    slot = own.links[own.held.size, BEFORE]
    if own.held[slot] >= 0:
        own.slot[own.held[slot]] = -1
    own.held[slot], own.slot[column] = column, slot
    return slot


@numba.njit(cache=True, nogil=True)
def _use(links: Longs, slot: int) -> None:  # pragma: no cover - compiled
    """Mark `slot` as the most recently used."""
    ring = links.shape[0] - 1
    first = links[ring, NEXT]
    if first == slot:
        return
    after, before = links[slot, NEXT], links[slot, BEFORE]
    links[before, NEXT], links[after, BEFORE] = after, before
    links[slot, NEXT], links[slot, BEFORE] = first, ring
    links[first, BEFORE], links[ring, NEXT] = slot, slot


@numba.njit(cache=True, nogil=True)
def forget(own: ColumnCache) -> None:  # pragma: no cover - compiled
    """Empty the cache, since the thread's rows have changed."""
    ring = own.held.size
    for slot in range(ring):
        if own.held[slot] >= 0:
            own.slot[own.held[slot]] = -1
            own.held[slot] = -1
    link(own.links)


@numba.njit(cache=True, nogil=True)
def link(links: Longs) -> None:  # pragma: no cover - compiled
    """Initialise the ring of unused slots; the last slot is taken first."""
    ring = links.shape[0] - 1
    for slot in range(ring + 1):
        links[slot, NEXT] = slot + 1 if slot < ring else 0
        links[slot, BEFORE] = slot - 1 if slot > 0 else ring
