"""Kernel columns: rows packed once for all threads, an LRU cache per thread, and the evaluation of columns.

A thread's cache holds columns restricted to the thread's rows. Everything that depends on the precision of kernel
values, and on how rows are stored, is in this module. Its functions are compiled apart from Asy-GCD's loop and called
by address (:mod:`cacore.compiled.pointers`), so that the loop is compiled once for all.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types
from numba.types import Type
from numpy.typing import DTypeLike, NDArray

from asygcd.solver import greedy
from cacore.arrays import Doubles, Integers, Ints, Longs, Reals
from cacore.compiled.pointers import Bundle, BundleType, address, caller
from cacore.compiled.vectors import ROW_AND_VIOLATION
from cacore.data.rows import Rows, is_sparse, shifted
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.kernels import wide as wide_passes
from cacore.kernels.columns import Layout
from cacore.kernels.evaluate import Parameters
from cacore.kernels.panels import Panels, accumulate, add_rows, nonzeros, panel_norms
from cacore.kernels.precision import WIDEST, Accuracy
from cacore.kernels.sums import room, width
from cacore.kernels.wide import Features, Wide
from cacore.machine import memory

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
    columns : Bundle of :class:`CachedColumns`
        Rows and kept kernel values.
    fill, add, advance, pack : int
        Addresses of the functions of :mod:`asygcd.solver.kernel_columns` for their precision and form.
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
def resident(cache: ColumnCache, wanted: Longs, slots: Longs) -> None:  # pragma: no cover - compiled
    """Load the `wanted` columns, at most as many as there are slots, and write their places to `slots`."""
    missing = 0
    for k in range(wanted.size):
        slot = cache.slot[wanted[k]]
        if slot < 0:
            slot = _make_room(cache, wanted[k])
            slots[k] = -1 - slot
            missing += 1
        else:
            slots[k] = slot
        _use(cache.links, slot)
    cache.counts[HITS] += wanted.size - missing
    cache.counts[MISSES] += missing
    if missing:
        rows, places = np.empty(missing, np.int64), np.empty(missing, np.int64)
        at = 0
        for k in range(wanted.size):
            if slots[k] < 0:
                slots[k] = -1 - slots[k]
                rows[at], places[at] = wanted[k], slots[k]
                at += 1
        cache.counts[VALUES] += missing * cache.size[0]
        fill(cache.fill, cache.columns, rows, places)


@numba.njit(cache=True, nogil=True)
def _make_room(cache: ColumnCache, column: int) -> int:  # pragma: no cover - compiled
    """Give the least recently used slot to `column`, and return it."""
    slot = cache.links[cache.held.size, BEFORE]
    if cache.held[slot] >= 0:
        cache.slot[cache.held[slot]] = -1
    cache.held[slot], cache.slot[column] = column, slot
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
def forget(cache: ColumnCache) -> None:  # pragma: no cover - compiled
    """Empty the cache, since the thread's rows have changed."""
    ring = cache.held.size
    for slot in range(ring):
        if cache.held[slot] >= 0:
            cache.slot[cache.held[slot]] = -1
            cache.held[slot] = -1
    link(cache.links)


@numba.njit(cache=True, nogil=True)
def link(links: Longs) -> None:  # pragma: no cover - compiled
    """Initialise the ring of unused slots; the last slot is taken first."""
    ring = links.shape[0] - 1
    for slot in range(ring + 1):
        links[slot, NEXT] = slot + 1 if slot < ring else 0
        links[slot, BEFORE] = slot - 1 if slot > 0 else ring


ALIGNED = 16  # numbers; the kept columns begin at multiples of it

_INDEX, _REAL = types.int64[::1], types.float64[::1]
# Types of arguments; the first stands for a bundle of `CachedColumns`.
_FILL = types.int64, _INDEX, _INDEX
_ADD = types.int64, _INDEX, _REAL, _REAL
_ADVANCE = types.int64, types.int64, types.float64, _REAL, _REAL, _REAL, _REAL
_PACK = types.int64, types.int64, _INDEX

# Calls by address: of the function, of a bundle of `CachedColumns`, and the other arguments of the functions below.
fill, add, pack = (caller(types.none, *kinds) for kinds in (_FILL, _ADD, _PACK))
advance = caller(ROW_AND_VIOLATION, *_ADVANCE)
_accumulate = caller(types.none)


class CachedColumns(NamedTuple):
    """All rows, a thread's rows, and kept columns of K over the latter.

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
        For wide rows, space for those of a working set, as CSR; otherwise empty.
    size : ndarray of int64, shape (2,)
        Number of the thread's rows, and the distance of consecutive kept columns in `memory`.
    calls : ndarray of int64, shape (4,)
        Address of the kernel function, degree, and measure; with `reals`, see :func:`cacore.kernels.evaluate.finish`.
        Then, unless rows are wide, the address of :func:`cacore.kernels.panels.accumulate`.
    reals : ndarray, shape (2,)
        The kernel's gamma and coef0.
    memory : ndarray
        The kept columns of K, one after the other; see :func:`store`.
    """

    values: NDArray[np.floating]
    columns: NDArray[np.int32]
    starts: NDArray[np.signedinteger]
    squares: NDArray[np.floating]
    middles: NDArray[np.int64]
    data: NDArray[np.floating]
    data_squares: NDArray[np.floating]
    list_values: NDArray[np.floating]
    list_rows: NDArray[np.int32]
    list_starts: NDArray[np.signedinteger]
    own_values: NDArray[np.floating]
    own_columns: NDArray[np.int32]
    own_starts: NDArray[np.signedinteger]
    own_middles: NDArray[np.int64]
    size: NDArray[np.int64]
    calls: NDArray[np.int64]
    reals: NDArray[np.floating]
    memory: NDArray[np.floating]


def addresses(columns: Bundle) -> tuple[int, int, int, int]:
    """Addresses of the functions to fill, add, advance and pack, for this bundle of :class:`CachedColumns`."""
    wide, kind = len(columns.fields.list_starts) > 0, columns.kind
    if not wide:
        columns.fields.calls[3] = address(accumulate, types.none, _accumulated(kind))
    return (
        address(_fill_wide if wide else _fill_panels, types.none, (kind, *_FILL[1:])),
        address(_add, types.none, (kind, *_ADD[1:])),
        address(_advance, ROW_AND_VIOLATION, (kind, *_ADVANCE[1:])),
        address(_pack_wide if wide else _pack_panels, types.none, (kind, *_PACK[1:])),
    )


def _accumulated(bundle: BundleType) -> tuple[Type, ...]:
    """Types of the arguments of :func:`cacore.kernels.panels.accumulate`: predictions need the same."""
    of: dict[str, Any] = bundle.fields
    size = types.int64
    real = of["reals"].dtype
    rows = (of[name] for name in ("data", "data_squares", "values", "columns", "starts", "squares"))
    kernel, store = types.Tuple([size, real, real, size, size]), types.Array(of["memory"].dtype, 2, "C")
    return *rows, kernel, size, size, _REAL, _REAL, store, _INDEX


@numba.njit(cache=True, nogil=True)
def store(cached: CachedColumns) -> Reals:  # pragma: no cover - compiled
    """The kept columns, shape (>= slots, >= rows)."""
    stride = cached.size[1]
    slots = cached.memory.size // stride
    return cached.memory[: slots * stride].reshape(slots, stride)


@numba.njit(cache=True, nogil=True)
def _gathered(cached: CachedColumns, rows: Longs) -> tuple[Reals, Ints, Integers, Reals]:  # pragma: no cover - compiled
    """Values, columns, starts and squared norms of these rows, as CSR."""
    starts = np.zeros(rows.size + 1, cached.starts.dtype)  # as for predictions, which share the compiled code
    for k in range(rows.size):
        starts[k + 1] = starts[k] + cached.starts[rows[k] + 1] - cached.starts[rows[k]]
    values, columns = np.empty(starts[-1], cached.values.dtype), np.empty(starts[-1], np.int32)
    squares = np.empty(rows.size, cached.values.dtype)
    for k in range(rows.size):
        at, first = starts[k], cached.starts[rows[k]]
        for q in range(first, cached.starts[rows[k] + 1]):
            values[at], columns[at] = cached.values[q], cached.columns[q]
            at += 1
        squares[k] = cached.squares[rows[k]]
    return values, columns, starts, squares


@numba.njit(cache=True, nogil=True)
def _kernel(cached: CachedColumns) -> Parameters:  # pragma: no cover - compiled
    """The kernel's parameters as :func:`cacore.kernels.evaluate.finish` takes them."""
    return cached.calls[0], cached.reals[0], cached.reals[1], cached.calls[1], cached.calls[2]


@numba.njit(cache=True, nogil=True)
def _fill_panels(cached: CachedColumns, rows: Longs, places: Longs) -> None:  # pragma: no cover - compiled
    """Compute the kernel values of `rows` with the thread's rows, into the slots `places`."""
    values, columns, starts, squares = _gathered(cached, rows)
    none = np.empty(0)
    _accumulate(
        cached.calls[3], cached.data, cached.data_squares, values, columns, starts, squares, _kernel(cached), 0,
        cached.size[0], none, none, store(cached), places,
    )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _fill_wide(cached: CachedColumns, rows: Longs, places: Longs) -> None:  # pragma: no cover - compiled
    """:func:`_fill_panels` for wide rows."""
    values, columns, starts, squares = _gathered(cached, rows)
    none, middles = np.empty(0), np.empty(rows.size, np.int64)
    for k in range(rows.size):
        middles[k] = starts[k] + cached.middles[rows[k]] - cached.starts[rows[k]]
    sides = (
        cached.data, cached.data_squares, cached.list_values, cached.list_rows, cached.list_starts, values, columns,
        starts, middles, squares,
    )  # fmt: skip
    wide_passes.accumulate(sides, _kernel(cached), np.int64(0), cached.size[0], none, none, store(cached), places)


@numba.njit(cache=True, nogil=True)
def _add(cached: CachedColumns, slots: Longs, steps: Doubles, r: Doubles) -> None:  # pragma: no cover - compiled
    """Add the columns in these slots, times `steps`, to `r`, shape (<= rows,)."""
    add_rows(store(cached), slots, steps, r, np.int64(0), r.size)


@numba.njit(cache=True, nogil=True)
def _advance(
    cached: CachedColumns, slot: int, change: float, beta: Doubles, r: Doubles, low: Doubles, high: Doubles
) -> tuple[int, float]:  # pragma: no cover - compiled
    """Apply :func:`asygcd.solver.greedy.advance` to the column in this slot."""
    at = slot * cached.size[1]
    return greedy.advance(beta, r, low, high, cached.memory[at : at + beta.size], change)


@numba.njit(cache=True, nogil=True)
def _empty_panels(cached: CachedColumns, rows: int) -> tuple[Reals, Reals]:  # pragma: no cover - compiled
    """The first panels and squared norms of the thread's rows, zeroed, for `rows` rows."""
    panels = -(-rows // cached.data.shape[2])
    data, squares = cached.data[:panels], cached.data_squares[: panels * cached.data.shape[2]]
    for p in range(panels):
        for c in range(data.shape[1]):
            for k in range(data.shape[2]):
                data[p, c, k] = 0
    for k in range(squares.size):
        squares[k] = 0
    cached.size[0], cached.size[1] = rows, -(-rows // ALIGNED) * ALIGNED
    return data, squares


@numba.njit(cache=True, nogil=True)
def _pack_panels(cached: CachedColumns, first: int, rows: Longs) -> None:  # pragma: no cover - compiled
    """Pack the rows at `first` + `rows`, which become the thread's own; kept columns lose their meaning."""
    data, squares = _empty_panels(cached, rows.size)
    W = data.shape[2]
    for k in range(rows.size):
        row = first + rows[k]
        for q in range(cached.starts[row], cached.starts[row + 1]):
            data[k // W, cached.columns[q], k % W] += cached.values[q]
    panel_norms(data, cached.calls[2], squares)


@numba.njit(cache=True, nogil=True)
def _pack_wide(cached: CachedColumns, first: int, rows: Longs) -> None:  # pragma: no cover - compiled
    """:func:`_pack_panels` for wide rows."""
    data, squares = _empty_panels(cached, rows.size)
    starts, middles, at = cached.own_starts[: rows.size + 1], cached.own_middles[: rows.size], 0
    for k in range(rows.size):
        row = first + rows[k]
        starts[k], middles[k], squares[k] = at, at + cached.middles[row] - cached.starts[row], cached.squares[row]
        for q in range(cached.starts[row], cached.starts[row + 1]):
            cached.own_values[at], cached.own_columns[at] = cached.values[q], cached.columns[q]
            at += 1
    starts[rows.size] = at
    cached.list_starts[:] = 0
    wide_passes.pack(cached.own_values, cached.own_columns, starts, middles, data)
    wide_passes.enlist(
        cached.own_values, cached.own_columns, starts, middles, data.shape[1], np.int64(0), cached.list_starts[0],
        cached.list_values, cached.list_rows,
    )  # fmt: skip


Index = NDArray[np.int64]

_FEW, _SHARE = 256, 2  # a working set holds at most 256 rows, or half of the block if that is more


class KernelCaches:
    """Kernel matrix of `X`, for threads that each cache some of its columns.

    Parameters
    ----------
    X : ndarray or CSR, shape (n, d)
        Not changed.
    kernel : Kernel
    order, bounds : ndarray of int64, shape (n,), (T + 1,)
        The blocks; see :func:`asygcd.solver.shared_state.blocks`.
    cache_bytes : int
        Size of all caches together; each thread gets the same share.
    dtype : dtype
        Type of the cached values.
    by_rows : bool
        True if each thread caches columns over its own rows only, False if over all rows.
    accuracy : Accuracy, optional
        Of the kernel values; see :meth:`cacore.kernels.columns.Layout.of`.

    Attributes
    ----------
    dtype : dtype
        Type of the cached values.
    diagonal : ndarray of float64, shape (n,)
        Diagonal of K, in the order of the blocks, like all rows here.
    largest : float
        Upper bound of all |kernel values|.
    room : list of int
        Most rows of each thread's working set.
    whole : list of ColumnCache
        Each thread's cache.
    near : list of ColumnCache
        Each thread's cache of columns over its working set; only with `by_rows`, and empty at first.

    Raises
    ------
    InputError
        If the cache does not hold two columns per thread, or kernel values overflow.

    Notes
    -----
    Memory: all nonzeros with their indices; n d numbers for the packed rows, or what :class:`cacore.kernels.wide.Wide`
    needs for sparse rows of more than 4,096 features; half as many again for the working sets; and the cache.
    """

    def __init__(
        self, X: Rows, kernel: Kernel, order: Index, bounds: Index, cache_bytes: int, dtype: DTypeLike, by_rows: bool,
        accuracy: Accuracy | None = None,
    ) -> None:  # fmt: skip
        if not kernel.compiled:
            raise InputError("Asy-GCD cannot evaluate a callable kernel: use SMOSVC, or CASVC with the solver smo")
        if kernel.separable and is_sparse(X) and X.shape[1] > WIDEST:
            raise InputError(
                f"Asy-GCD: the {kernel.kind} kernel needs dense rows, too large with {X.shape[1]:,} features: use "
                f"SMOSVC, or at most {WIDEST:,} features"
            )
        self._X, self.dtype, self.n = X, np.dtype(dtype), len(order)
        self._layout = Layout.of(X, kernel, self.dtype, None, accuracy)
        if self._layout.features is not None:
            self._X = shifted(X, self._layout.shift)
        self._kernel = kernel.parameters(np.dtype(self._layout.dtype), self._layout.measure)
        self.largest = kernel.largest(X, self.dtype)
        self.diagonal = kernel.diagonal(X)[order]
        blocks = [order[lo:hi] for lo, hi in pairwise(bounds)]
        threads = len(blocks)
        self.room = [min(len(rows), max(_FEW, len(rows) // _SHARE)) if by_rows else 0 for rows in blocks]
        lengths = [
            _padded(len(rows) if by_rows else self.n) + _padded(spare)
            for rows, spare in zip(blocks, self.room, strict=True)
        ]
        each = cache_bytes // threads // self.dtype.itemsize
        if each < 2 * max(lengths):
            needed = 2 * threads * max(lengths) * self.dtype.itemsize
            raise InputError(
                f"a cache of {cache_bytes:,} bytes does not hold two columns of {self.n:,} kernel values for each of "
                f"{threads} threads: {needed:,} bytes would; raise it, or use fewer threads"
            )
        self._rows = self._arranged(order)
        slots = [min(self.n, each // length) for length in lengths]
        self.near: list[ColumnCache] = []
        if by_rows:
            self.whole = [
                self._columns(self._packed(rows), len(rows), s) for rows, s in zip(blocks, slots, strict=True)
            ]
            counts = np.split(np.diff(self._rows[2]), bounds[1:-1])
            self.near = [
                self._columns(self._room(lengths_of, capacity), capacity, s)
                for lengths_of, capacity, s in zip(counts, self.room, slots, strict=True)
            ]
        else:
            packed = self._packed(order)
            self.whole = [self._columns(packed, self.n, s) for s in slots]

    def counts(self) -> tuple[Index, int]:
        """Hits and misses of each thread so far, shape (T, 2), and the number of kernel values computed."""
        values = sum(int(columns.counts[VALUES]) for columns in [*self.whole, *self.near])
        return np.array([columns.counts[[HITS, MISSES]] for columns in self.whole]), values

    def _arranged(self, order: Index) -> tuple[NDArray[np.generic], ...]:
        """All rows in the form of the first five fields of :class:`CachedColumns`."""
        layout = self._layout
        if layout.features is None:
            points = nonzeros(self._X, layout.dtype, layout.shift, order, layout.measure)
            csr, none = points.X, np.zeros(0, np.int64)
            return csr.data, csr.indices, csr.indptr, points.squares, none
        rows = layout.rows(self._X, order)
        return rows.values, rows.features, rows.starts, rows.norms, rows.middles

    def _packed(self, rows: Index) -> tuple[NDArray[np.generic], ...]:
        """`rows` in panels and lists, without space for a working set."""
        layout, none = self._layout, self._empty(0, 0)
        if layout.features is None:
            panels = Panels(self._X, layout.dtype, layout.shift, rows, layout.measure)
            return panels.data, panels.norms, *none[2:]
        wide = Wide(self._X, layout.features, layout.dtype, rows, layout.measure)
        return wide.data, wide.norms, wide.values, wide.rows, wide.starts, *none[5:]

    def _room(self, nonzeros: Index, rows: int) -> tuple[NDArray[np.generic], ...]:
        """Space for `rows` rows of a block, given the number of nonzeros of each of its rows."""
        return self._empty(rows, int(np.sort(nonzeros)[-rows:].sum()))

    def _empty(self, rows: int, numbers: int) -> tuple[NDArray[np.generic], ...]:
        """Empty panels and lists, and space for a working set of `rows` rows, if wide, with `numbers` nonzeros."""
        features, real = self._layout.features, self._layout.dtype
        panels = -(-rows // width(real))
        packed, lists = (self._X.shape[1], 0) if features is None else (features.packed, features.listed + 1)
        listed, starts = (numbers, rows) if lists else (0, 0)
        data = room((panels, packed, width(real)), real)
        return (
            data, np.zeros(panels * width(real), real), np.zeros(listed, real), np.zeros(listed, np.int32),
            np.zeros((1 if lists else 0, lists), np.int32), np.zeros(listed, real), np.zeros(listed, np.int32),
            np.zeros(starts + 1, np.int64), np.zeros(starts, np.int64),
        )  # fmt: skip

    def _columns(self, packed: tuple[NDArray[np.generic], ...], rows: int, slots: int) -> ColumnCache:
        size, reals = np.array([rows, _padded(rows)]), np.array(self._kernel[1:3], self._layout.dtype)
        calls = np.array([self._kernel[0], *self._kernel[3:], 0], np.int64)
        memory = np.empty(slots * _padded(rows), self.dtype)
        columns = Bundle(CachedColumns._make((*self._rows, *packed, size, calls, reals, memory)))
        links = np.empty((slots + 1, 2), np.int64)
        link(links)
        return ColumnCache(
            size, np.full(slots, -1), np.full(self.n, -1), links, np.zeros(3, np.int64), columns, *addresses(columns)
        )


def _padded(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


def least_cache(n: int, threads: int, dtype: DTypeLike) -> int:
    """Bytes of cache that hold two columns per thread, for blocks of any size."""
    return 2 * threads * 2 * _padded(n) * int(np.dtype(dtype).itemsize)


def check_memory(X: Rows, threads: int, cache_bytes: int, limit: int) -> None:
    """Check that packed rows, nonzeros, the threads' state and the cache fit into `limit` bytes.

    Raises
    ------
    MemoryLimitError
        If they do not; the message has the figures.
    """
    n, d = X.shape
    if is_sparse(X):
        wide = d > WIDEST
        packed = (32 if wide else 12) * X.nnz + 12 * n * (Features.of(X).packed if wide else d)
    else:
        packed = 24 * n * d
    cache = min(cache_bytes, 8 * 2 * n * n * threads)  # a cache never holds more than all n columns
    needed = packed + 40 * n * threads + cache
    memory.require(needed, limit, "storing packed rows and the kernel cache", "use a smaller cache, or fewer rows")
