"""Each thread's LRU cache of kernel columns, restricted to the thread's rows and computed in panels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.kernels import wide_passes
from cacore.kernels.panels import accumulate
from cacore.kernels.values import Parameters

HITS, MISSES, VALUES = range(3)  # indices into `ColumnCache.counts`
NEXT, BEFORE = 0, 1  # columns of `ColumnCache.links`
ALIGNED = 16  # numbers; the kept columns begin at multiples of it


class ColumnCache(NamedTuple):
    """One thread's cache of columns of K over its rows; :func:`resident` fills it.

    Attributes
    ----------
    values, columns, starts, squares, middles : ndarray
        All n rows as CSR, with their squared norms. For wide rows they are arranged as
        :class:`cacore.kernels.wide.Arranged`; otherwise `middles` is empty.
    data, data_squares : ndarray
        This thread's rows in panels (:mod:`cacore.kernels.panels`); for wide rows, their packed features.
    list_values, list_rows, list_starts : ndarray
        For wide rows, their listed features (:class:`cacore.kernels.wide.Wide`); otherwise empty.
    own_values, own_columns, own_starts, own_middles : ndarray
        Space for the rows of a working set, as CSR; otherwise empty.
    size : ndarray of int64, shape (2,)
        Number of the thread's rows, and the distance of consecutive kept columns in `memory`.
    kernel : tuple
        The kernel's parameters for compiled code; see :func:`cacore.kernels.evaluate.finish`.
    memory : ndarray
        The kept columns of K, one after the other; see :func:`store`.
    held, slot : ndarray of int64, shape (slots,), (n,)
        Column in each slot, and slot of each column, or -1.
    links : ndarray of int64, shape (slots + 1, 2)
        Doubly linked ring of the slots from the most to the least recently used; the last line is its head.
    counts : ndarray of int64, shape (3,)
        Hits, misses, and number of kernel values computed.
    """

    values: NDArray[np.floating]
    columns: NDArray[np.int32]
    starts: NDArray[np.int64]
    squares: NDArray[np.floating]
    middles: NDArray[np.int64]
    data: NDArray[np.floating]
    data_squares: NDArray[np.floating]
    list_values: NDArray[np.floating]
    list_rows: NDArray[np.int32]
    list_starts: NDArray[np.int64]
    own_values: NDArray[np.floating]
    own_columns: NDArray[np.int32]
    own_starts: NDArray[np.int64]
    own_middles: NDArray[np.int64]
    size: NDArray[np.int64]
    kernel: Parameters
    memory: NDArray[np.floating]
    held: NDArray[np.int64]
    slot: NDArray[np.int64]
    links: NDArray[np.int64]
    counts: NDArray[np.int64]


@numba.njit(cache=True, nogil=True)
def store(own: Any) -> Any:  # pragma: no cover - compiled
    """The kept columns, shape (slots, >= rows)."""
    slots, stride = own.held.size, own.size[1]
    return own.memory[: slots * stride].reshape(slots, stride)


@numba.njit(cache=True, nogil=True)
def resident(own: Any, wanted: Any, slots: Any) -> None:  # pragma: no cover - compiled
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
        _compute(own, rows, places)


@numba.njit(cache=True, nogil=True)
def _make_room(own: Any, column: Any) -> Any:  # pragma: no cover - compiled
    """Give the least recently used slot to `column`, and return it."""
    slot = own.links[own.held.size, BEFORE]
    if own.held[slot] >= 0:
        own.slot[own.held[slot]] = -1
    own.held[slot], own.slot[column] = column, slot
    return slot


@numba.njit(cache=True, nogil=True)
def _use(links: Any, slot: Any) -> None:  # pragma: no cover - compiled
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
def forget(own: Any) -> None:  # pragma: no cover - compiled
    """Empty the cache, since the thread's rows have changed."""
    ring = own.held.size
    for slot in range(ring):
        if own.held[slot] >= 0:
            own.slot[own.held[slot]] = -1
            own.held[slot] = -1
    link(own.links)


@numba.njit(cache=True, nogil=True)
def link(links: Any) -> None:  # pragma: no cover - compiled
    """Initialise the ring of unused slots; the last slot is taken first."""
    ring = links.shape[0] - 1
    for slot in range(ring + 1):
        links[slot, NEXT] = slot + 1 if slot < ring else 0
        links[slot, BEFORE] = slot - 1 if slot > 0 else ring


@numba.njit(cache=True, nogil=True)
def _compute(own: Any, rows: Any, places: Any) -> None:  # pragma: no cover - compiled
    """Compute the kernel values of `rows` with the thread's rows, into the slots `places`."""
    own.counts[VALUES] += rows.size * own.size[0]
    starts = np.zeros(rows.size + 1, np.int64)
    for k in range(rows.size):
        starts[k + 1] = starts[k] + own.starts[rows[k] + 1] - own.starts[rows[k]]
    values, columns = np.empty(starts[-1], own.values.dtype), np.empty(starts[-1], np.int32)
    squares = np.empty(rows.size, own.values.dtype)
    for k in range(rows.size):
        at, to = own.starts[rows[k]], own.starts[rows[k] + 1]
        values[starts[k] : starts[k + 1]] = own.values[at:to]
        columns[starts[k] : starts[k + 1]] = own.columns[at:to]
        squares[k] = own.squares[rows[k]]
    kept, none = store(own), np.empty(0)
    if not own.list_starts.size:
        accumulate(
            own.data, own.data_squares, values, columns, starts, squares, own.kernel, 0, own.size[0], none, none, kept,
            places,
        )  # fmt: skip
        return
    middles = np.empty(rows.size, np.int64)
    for k in range(rows.size):
        middles[k] = starts[k] + own.middles[rows[k]] - own.starts[rows[k]]
    sides = (
        own.data, own.data_squares, own.list_values, own.list_rows, own.list_starts, values, columns, starts, middles,
        squares,
    )  # fmt: skip
    wide_passes.accumulate(sides, own.kernel, 0, own.size[0], none, none, kept, places)
