"""Rows of the kernel matrix over the active columns: computed once and kept within a memory limit.

:class:`KernelRows` computes rows of K for SMO, and :func:`gram_of` makes it for a part. :class:`RowCache` stores rows
in memory and replaces the least recently used first. Kernel values from another device need one new module: a class
with the methods of :class:`KernelRows` that :mod:`casvm.solver.smo` calls, and a function that passes it to
:func:`casvm.solver.smo.solve`, registered as a solver (:mod:`cacore.svm.options`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numba
import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.compiled.vectors import STEP
from cacore.data.rows import Rows
from cacore.kernels import Kernel
from cacore.kernels.columns import Columns, Layout, weighted
from cacore.kernels.evaluate import Parameters, finish, with_zeros
from cacore.kernels.given import Precomputed, given_kernel, numbered
from cacore.kernels.panels import add_norms, add_rows
from cacore.kernels.precision import Accuracy
from cacore.kernels.sums import meet_at
from cacore.machine import threads
from cacore.machine.threads import blocks, for_blocks, in_order
from cacore.svm.problem import precision

if TYPE_CHECKING:
    from cacore.arrays import Doubles, Ints, Longs, Reals

Vector = NDArray[np.float64]
Index = NDArray[np.int64]


def padded(size: int) -> int:
    """The size rounded up to a multiple of STEP, the elements that a pass over rows takes per turn."""
    return max(1, -(-size // STEP)) * STEP


class Shrinkable(Protocol):
    """The part of a kernel matrix that shrinking uses.

    Attributes
    ----------
    dtype : dtype
        Type of the kernel values that are kept.
    """

    dtype: np.dtype[Any]

    @property
    def rows_computed(self) -> int:
        """Rows of K computed over the active columns so far."""

    @property
    def values_computed(self) -> int:
        """Kernel values computed so far."""

    @property
    def values_read(self) -> int:
        """Kernel values read again from memory so far."""

    def restrict(self, places: Index) -> None:
        """Keep only the active columns at these places, ascending."""

    def copies(self, columns: int) -> bool:
        """True if restricting to so many columns copies the kernel cache (expensive; shrink rarely)."""

    def activate(self, rows: Index) -> None:
        """Make these columns active; kept values may be discarded."""


def gram_of(
    X: Rows, kernel: Kernel | None, largest_bound: float, tol: float, cache_bytes: int, size: float = 1.0
) -> KernelRows:
    """The kernel matrix of a part.

    Parameters
    ----------
    X, kernel, cache_bytes
        See :class:`cacore.svm.dual.PartSolver`.
    largest_bound, tol : float
        Bound of |beta| and tolerance of the solver, which decide whether single precision suffices.
    size : float
        Margin, or half the range of the targets; rounding of a tenth of it is refused.
    """
    if kernel is None:  # rows copied over the active columns are read much faster than the matrix itself
        X, kernel = numbered(X.shape[0], np.float64), given_kernel(Precomputed(np.asarray(X)))
    dtype = precision(X.shape, kernel.largest(X, np.float64), largest_bound, tol)
    layout = Layout.of(X, kernel, dtype, None, Accuracy.of_solution(largest_bound, tol, size))
    return KernelRows(X, kernel, dtype, cache_bytes, layout)


LINES = 64  # rows copied per task
_DOUBT = 20  # calls that a fetched row survives without being read: the solver may have asked for it in vain


@dataclass(frozen=True)
class RowTable:
    """Rows of K in memory.

    Attributes
    ----------
    K : ndarray, shape (slots, >= active columns), C-contiguous
    where : ndarray of int64
        The row of `K` that holds each active row's kernel values, or -1.
    used : ndarray of int64, shape (slots,)
        Time at which each slot was last read; readers set it to `now`.
    now : int
    """

    K: NDArray[np.floating]
    where: Index
    used: Index
    now: int


class RowCache:
    """Slots of one row each in one array; the least recently used row is replaced first."""

    def __init__(self, memory: NDArray[np.floating], columns: int, n: int) -> None:
        self._memory, self.slot, self._now = memory, np.full(n, -1), 0
        self._row, self._used = np.full(0, -1), np.zeros(0, np.int64)
        self._shape(columns)

    def _shape(self, columns: int) -> None:
        stride = padded(columns)
        slots = min(len(self.slot), self._memory.size // max(1, stride))
        self.values = self._memory[: slots * stride].reshape(slots, stride)
        added = slots - len(self._row)
        self._row = np.append(self._row, np.full(added, -1))
        self._used = np.append(self._used, np.zeros(added, np.int64))

    def table(self, active: Index) -> RowTable:
        """See :class:`RowTable`."""
        return RowTable(self.values, self.slot[active], self._used, self._now)

    def places(self, rows: Index, keep: NDArray[np.bool_]) -> tuple[Index, NDArray[np.bool_]]:
        """A slot for each row to `keep`, or -1 if none is left, and a mask of the rows already cached."""
        self._now += 1
        slots = self.slot[rows]
        cached = slots >= 0
        self._used[slots[cached]] = self._now
        wanted = np.flatnonzero(~cached & keep)
        if wanted.size:
            oldest = np.arange(len(self._used))
            if len(wanted) < len(oldest):
                # Ties go to the lower slot, whatever the partition does with them.
                age = self._used * len(oldest) + oldest
                oldest = np.argpartition(age, len(wanted))[: len(wanted)]
            oldest = np.sort(oldest[self._used[oldest] < self._now])
            slots[wanted[: len(oldest)]] = oldest
            gone = self._row[oldest]
            self.slot[gone[gone >= 0]] = -1
            taken = rows[wanted[: len(oldest)]]
            self._row[oldest], self.slot[taken], self._used[oldest] = taken, oldest, self._now
        return slots, cached

    def doubt(self, slots: Index) -> None:
        """Mark these rows as not read yet: until they are read, they are among the first to be replaced."""
        self._used[slots[slots >= 0]] = self._now - _DOUBT

    def drop(self, rows: Index) -> None:
        """Discard these rows if they are kept."""
        slots = self.slot[rows]
        slots = slots[slots >= 0]
        self._row[slots], self._used[slots], self.slot[rows] = -1, 0, -1

    @property
    def count(self) -> int:
        """Number of rows kept."""
        return int(np.count_nonzero(self._row >= 0))

    @property
    def end(self) -> int:
        """End of the memory in use, in numbers from its beginning."""
        return (int(np.flatnonzero(self._row >= 0).max(initial=-1)) + 1) * self.values.shape[1]

    def copy(self, whole: RowCache, columns: Index, wanted: Index) -> None:
        """Copy the wanted rows of `whole` over these columns into this empty cache."""
        slots = np.sort(whole.slot[wanted])
        slots = slots[slots >= 0][: len(self._row)]
        places = np.arange(len(slots))
        self._row[places] = whole._row[slots]
        self._used[places] = whole._used[slots]
        self.slot[self._row[places]] = places
        self._now = whole._now
        whole.read(slots, columns, self.values, places)

    def read(self, slots: Index, columns: Index, out: NDArray[np.floating], into: Index) -> None:
        """``out[into, :k] = values[slots][:, columns]``, of k columns."""
        for_blocks(
            lambda lo, hi: _copy(self.values, slots[lo:hi], columns, out, into[lo:hi]), blocks(len(slots), LINES)
        )

    def restrict(self, columns: Index) -> None:
        """Cut every row to the columns `columns` and compact the rows, which makes room for more."""
        last = int(np.flatnonzero(self._row >= 0).max(initial=-1)) + 1
        old, new, done = self.values.shape[1], padded(len(columns)), 0
        while done < last:
            # Rows whose new places lie before all their old ones can move side by side.
            until = min(last, max(done + 1, done * old // max(1, new)))
            tasks = [(done + a, done + b) for a, b in blocks(until - done, LINES)]
            for_blocks(lambda lo, hi: _cut(self._memory, lo, hi, old, new, columns), tasks)
            done = until
        self._shape(len(columns))


@numba.njit(cache=True, nogil=True)
def _cut(memory: Reals, lo: int, hi: int, old: int, new: int, columns: Longs) -> None:  # pragma: no cover - compiled
    """Copy the columns `columns` of rows `lo` to `hi` to their new places in the same memory, followed by zeros.

    Row r begins at r * old and moves to r * new, where it overlaps no row yet to be moved.
    """
    for row in range(lo, hi):
        for k in range(columns.size):
            memory[row * new + k] = memory[row * old + columns[k]]
        for k in range(columns.size, new):
            memory[row * new + k] = 0


@numba.njit(cache=True, nogil=True)
def _copy(values: Reals, slots: Longs, columns: Longs, out: Reals, into: Longs) -> None:  # pragma: no cover - compiled
    """Copy some columns of some rows: ``out[into, :k] = values[slots][:, columns]``, for k columns."""
    for i in range(slots.size):
        row, line = values[slots[i]], out[into[i]]
        for k in range(columns.size):
            line[k] = row[columns[k]]


_SOME = 2048  # rows computed per product
# Cost of storing a value in memory not touched yet (page faults), in units of reading one: 7 to 50, depending on the
# system. Rows that have cost less to compute are computed again: this halves the time of ijcnn1.
TOUCH = 15.0
# Price from which the values of a square are computed once per pair of rows: of 2,048 rows, in ms, all 3.1 and half
# 3.3 for 12 nonzeros, 3.7 and 3.6 for 30, 8.7 and 6.2 for 90, 5.2 if the values of 1,024 rows are kept.
_MIRRORED = 10.0
_STRIP = 128  # rows of a square computed at a time
_TILE = 256, 512  # rows and columns of K in double precision held at a time, 1 MiB per thread
_APART = 16  # numbers between the rows of a square, so that those of a column do not lie in one set of a cache
# Price from which kept kernel values of a square are read instead of computed again. Reasoned: a square takes scattered
# columns of a kept row, each of which costs more than a value that is read in order.
_EXPENSIVE = 30.0


class KernelRows:
    """Kernel values of `X` with itself.

    Parameters
    ----------
    X : ndarray or CSR, shape (n, d)
        Not changed; copied only in the form that its products need.
    kernel : Kernel
    dtype : dtype
        Type of the kernel values that are computed and kept.
    cache_bytes : int
        Bytes for the packed rows and the cache together.
    layout : Layout, optional
        By default chosen for `X`.
    sources : ndarray or CSR, shape (s, d), optional
        The rows of K, if they differ from `X`, its columns. A caller that changes some of them calls
        :meth:`forget`.

    Notes
    -----
    2 n nnz flops per row of K, with nnz the nonzeros of a row of `X` (or 2 n d if a matrix product is faster); n
    numbers of memory per cached row. A row is cached once computing it has cost more than fresh memory: an expensive
    row at once, a cheap one after a few uses. The least recently used rows are replaced.
    """

    def __init__(
        self, X: Rows, kernel: Kernel, dtype: DTypeLike, cache_bytes: int, layout: Layout | None = None,
        sources: Rows | None = None,
    ) -> None:  # fmt: skip
        self.X, self.kernel, self.dtype = X, kernel, np.dtype(dtype)
        self.n = int(X.shape[0])
        self.layout = layout or Layout.of(X, kernel, self.dtype)
        self.sources = X if sources is None else sources
        self.n_rows = int(self.sources.shape[0])
        self.price = self.layout.price
        self.rows_computed = self.values_computed = self.values_read = 0
        self._scratch = np.zeros(0, self.dtype)
        self._square = np.zeros((0, 0), self.dtype)  # the last one of :meth:`square_from`
        self._numbers = np.zeros(0, np.int64)  # and its rows, as :meth:`arranged` was told
        self._whole: NDArray[np.floating] | None = None  # the last square, if it was that of all rows: K itself
        self._reused = False  # True if a dual begins with K
        self._spent = np.zeros(self.n_rows)  # cost per value of computing each row without keeping it
        kernel.largest(X, self.dtype)
        self._diagonal = kernel.diagonal(X)
        room = max(0, cache_bytes - self.layout.nbytes(X)) // self.dtype.itemsize
        self._memory = np.zeros(min(room, self.n_rows * padded(self.n)), self.dtype)
        self._all: RowCache | None = None
        self._cache = RowCache(self._memory, self.n, self.n_rows)
        self._turn_to(np.arange(self.n))

    def activate(self, rows: Index) -> None:
        """Make these columns active; kept values may be discarded.

        Rows kept over all columns stay, if there is room.
        """
        if not self._keep_all(len(rows)):
            self._cache = RowCache(self._memory, len(rows), self.n_rows)
        self._turn_to(rows)

    def restrict(self, places: Index) -> None:
        """Keep only the active columns at these places, ascending.

        Cached rows are cut to these columns.
        """
        if not self._keep_all(len(places)):
            self._cache.restrict(places)
        self._turn_to(self.active[places])

    def resume(self, rows: int, values: int) -> None:
        """Count rows and kernel values that a killed run computed."""
        self.rows_computed += rows
        self.values_computed += values

    def restart(self) -> None:
        """Make all columns active for another dual of the same rows; values kept over all columns stay."""
        self._reused = self._whole is not None
        if len(self.active) == self.n:
            return
        self._cache = self._all or RowCache(self._memory, self.n, self.n_rows)
        self._all = None
        self._turn_to(np.arange(self.n))

    def _rows_to_cut(self, columns: Index) -> Index:
        """The rows kept over all columns that are cut to these columns at once; others are when they are needed."""
        return columns if self.sources is self.X else columns[:0]

    def copies(self, columns: int) -> bool:
        """True if restricting to so many columns copies the kernel cache (expensive; shrink rarely)."""
        whole = self._all or (self._cache if len(self.active) == self.n else None)
        return whole is not None and self._memory.size - whole.end >= (whole.count + 1024) * padded(columns)

    def _keep_all(self, columns: int) -> bool:
        """Keep the rows over all columns and start a second cache behind them; return True if there is room."""
        if not self.copies(columns):
            self._all = None
            return False
        whole = self._all = self._all or self._cache
        self._cache = RowCache(self._memory[whole.end :], columns, self.n_rows)
        return True

    def _turn_to(self, rows: Index) -> None:
        self.active = rows
        self.columns = self.layout.columns(self.X, None if len(rows) == self.n else rows)
        if self._all is not None:
            self._cache.copy(self._all, rows, self._rows_to_cut(rows))

    def square(self, rows: Index) -> NDArray[np.floating]:
        """K(rows, rows), padded as :func:`padded` says; valid until the next call.

        Expensive values are read if their row or column is kept.
        """
        if self._reused and self._whole is not None and len(rows) == self.n:
            self.values_read += self.n**2
            return self._whole
        K, self._square = self._square_of(padded(len(rows))), self._square[:0]
        self._whole = K if len(rows) == self.n and self.sources is self.X else None
        slots = np.full(len(rows), -1)
        if self.price > _EXPENSIVE and self.sources is self.X:
            slots = self._cache.slot[rows]
        cached, fresh = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        fresh_square = np.empty((len(fresh),) * 2, self.dtype) if cached.size else K
        self._fill(fresh_square, rows[fresh], 0)
        if cached.size:
            self.values_read += len(cached) * len(rows)
            self._cache.read(slots[cached], np.searchsorted(self.active, rows), K, cached)
            for_blocks(
                lambda lo, hi: _copy_fresh(fresh_square[lo:hi], cached, fresh, fresh[lo:hi], K),
                blocks(len(fresh), LINES),
            )
        return K

    def arranged(self, rows: Index, numbers: Index) -> tuple[Index, Index]:
        """The order of a working set's rows in which its kernel values cost least, and those that stay from the last.

        Parameters
        ----------
        rows, numbers : ndarray of int64
            The rows, and ascending numbers that tell them from all others for good; rows may change their places.

        Returns
        -------
        order, stay : ndarray of int64
            See :func:`staying`.
        """
        order, stay = staying(self._numbers, numbers)
        self._numbers = numbers[order]
        return order, stay

    def square_from(self, rows: Index, stay: Index) -> NDArray[np.floating]:
        """K(rows, rows), of which the values of the first ``len(stay)`` rows are kept from the last square.

        Parameters
        ----------
        rows : ndarray of int64
        stay : ndarray of int64, ascending
            Places of these rows in the last square.

        Returns
        -------
        ndarray, shape (>= size, >= padded(size))
            Valid until the next call.
        """
        size, stay = padded(len(rows)), stay if self.price >= _MIRRORED else stay[:0]
        if size > len(self._square):
            self._square, stay = self._square_of(size), stay[:0]
        _compact(self._square, stay)
        self._fill(self._square, rows, len(stay))
        return self._square

    def _square_of(self, size: int) -> NDArray[np.floating]:
        """Memory for a square, which the next call uses again."""
        stride = size + _APART
        if self._scratch.size < size * stride:
            self._scratch = np.zeros(size * stride, self.dtype)
        return self._scratch[: size * stride].reshape(size, stride)

    def _fill(self, K: NDArray[np.floating], rows: Index, first: int) -> None:
        """Compute K(rows, rows) but for the values of the first rows with each other; half of it by symmetry."""
        size, columns = len(rows), self.layout.columns(self.sources, rows)
        if self.price < _MIRRORED:
            A = self.layout.rows(self.sources, rows)
            for_blocks(partial(columns.add, self.kernel, A, store=K), columns.tasks(2 * threads.current()))
            self.values_computed += size * size
            return

        def work(lo: int, hi: int) -> None:
            A = self.layout.rows(self.sources, rows[lo:hi])
            columns.add(self.kernel, A, 0, hi, store=K[lo:hi])
            K[:lo, lo:hi] = K[lo:hi, :lo].T

        tasks = [(first + lo, first + hi) for lo, hi in reversed(blocks(size - first, _STRIP))]  # the longest first
        for_blocks(work, tasks)
        self.values_computed += sum((hi - lo) * hi for lo, hi in tasks)

    def subtract(self, rows: Index, change: Vector, v: Vector, keep: NDArray[np.bool_]) -> None:
        """``v -= change @ K(rows, active)``; rows marked in `keep` may be cached: they will likely recur."""
        whole = self._whole
        if self._reused and whole is not None and len(self.active) == self.n:
            tasks = self.columns.tasks(2 * threads.current())
            for_blocks(lambda lo, hi: add_rows(whole, rows, -change, v, lo, hi), tasks)
            self.values_read += len(rows) * self.n
            return
        for lo, hi in blocks(len(rows), _SOME):
            self._subtract(rows[lo:hi], change[lo:hi], v, keep[lo:hi])

    def _subtract(self, rows: Index, change: Vector, v: Vector, keep: NDArray[np.bool_]) -> None:
        aside = np.full(len(rows), -1) if self._all is None else self._all.slot[rows]
        keep = (keep & (self._spent[rows] + self.price >= TOUCH)) | (aside >= 0)
        slots, cached = self._cache.places(rows, keep)
        if self._all is not None:
            again = np.flatnonzero(~cached & (slots >= 0) & (aside >= 0))
            self._all.read(aside[again], self.active, self._cache.values, slots[again])
            cached[again] = True
        self._spent[rows[~cached]] += self.price
        cached_change, at = change[cached], slots[cached]
        missing, weights, into = self.layout.rows(self.sources, rows[~cached]), -change[~cached], slots[~cached]
        store = self._cache.values

        def work(lo: int, hi: int) -> None:
            if at.size:
                add_rows(store, at, -cached_change, v, lo, hi)
            if weights.size:
                self.columns.add(self.kernel, missing, lo, hi, weights, v, store, into)

        for_blocks(work, self.columns.tasks(2 * threads.current()))
        self.rows_computed += len(weights)
        self.values_computed += len(weights) * len(v)
        self.values_read += at.size * len(v)

    def diagonal(self) -> Vector:
        """K_ii of the active columns."""
        return self._diagonal[self.active]

    def fetch(self, rows: Index) -> None:
        """Compute these rows over the active columns and keep them."""
        slots, cached = self._cache.places(rows, np.ones(len(rows), np.bool_))
        missing, into = self.layout.rows(self.sources, rows[~cached]), slots[~cached]
        self._cache.doubt(into)
        add = partial(self.columns.add, self.kernel, missing, store=self._cache.values, places=into)
        for_blocks(add, self.columns.tasks(2 * threads.current()))
        self.rows_computed += len(into)
        self.values_computed += len(into) * len(self.active)

    def table(self) -> RowTable:
        """The kept rows, over the active columns."""
        return self._cache.table(self.active)

    def outside(self, rows: Index, change: Vector, columns: Index, exact: bool = False) -> Vector:
        """``change @ K(rows, columns)``, for any columns; `exact`: in double precision."""
        total, stored = np.zeros(len(columns)), np.zeros(len(rows), np.bool_)
        if self._all is not None and not exact:
            slots = self._all.slot[rows]
            stored, store = slots >= 0, self._all.values
            at, weights = slots[stored], change[stored]

            tasks = blocks(len(columns), 4096)
            for_blocks(lambda lo, hi: _add_columns(store, at, weights, columns[lo:hi], total[lo:hi]), tasks)
        rows, change = rows[~stored], change[~stored]
        self.values_read += int(np.count_nonzero(stored)) * len(columns)
        self.values_computed += len(rows) * len(columns)
        return total + self.product(self.sources, rows, change, columns, exact)

    def quadratics(self, rows: Index, betas: Vector) -> Vector:
        """``b @ K(rows, rows) @ b`` in double precision for each row b of `betas`, shape (t, len(rows)); shape (t,)."""
        return np.einsum("ti,ti->t", betas, self.products(rows, betas))

    def products(self, rows: Index, betas: Vector) -> Vector:
        """``K(rows, rows) @ b`` in double precision for each row b of `betas`, shape (t, len(rows)); of that shape.

        All of `betas` share one computation of half of K.
        """
        layout, sums = replace(self.layout, dtype=np.dtype(np.float64)), np.zeros(betas.shape)
        for lo, hi in blocks(len(rows), _TILE[1]):
            work = partial(
                self._of_tile, layout, layout.columns(self.X, rows[lo:hi]), rows[lo:], betas[:, lo:], hi - lo
            )
            tasks = blocks(len(rows) - lo, _TILE[0])
            with in_order(work, tasks) as tiles:
                for (begin, end), (below, above) in zip(tasks, tiles, strict=True):
                    sums[:, lo:hi] += below
                    if begin >= hi - lo:  # below the square on the diagonal: by symmetry
                        sums[:, lo + begin : lo + end] += above
        return sums

    def _of_tile(
        self, layout: Layout, side: Columns, rows: Index, betas: Vector, width: int, lo: int, hi: int
    ) -> tuple[Vector, Vector]:
        """``betas[:, lo:hi] @ K`` and ``K @ betas[:, :width]`` for K of rows lo to hi and the first `width`, `side`."""
        K, below, above = np.empty((hi - lo, width)), np.zeros((len(betas), width)), np.zeros((len(betas), hi - lo))
        side.add(self.kernel, layout.rows(self.sources, rows[lo:hi]), 0, width, store=K)
        _sums_of_both(K, betas[:, lo:hi].copy(), betas[:, :width].copy(), below, above)
        return below, above

    def forget(self, rows: Index) -> None:
        """Discard these rows of the sources: their slots are about to be reused."""
        self._spent[rows] = 0.0
        self._cache.drop(rows)
        if self._all is not None:
            self._all.drop(rows)

    def product(self, X: Rows, rows: Index, change: Vector, columns: Index, exact: bool = False) -> Vector:
        """``change @ K(X[rows], columns)``; `exact`: in double precision."""
        layout = replace(self.layout, dtype=np.dtype(np.float64)) if exact else self.layout
        return weighted(self.kernel, layout, X, rows, change, self.X, columns)


# Packed rows and their norms; room for the numbers of a row and their columns; the kernel; the first panels of both
# classes; rows of the first class; rows of K computed so far, shape (1,).
RowSource: TypeAlias = "tuple[Reals, Reals, Reals, Ints, Parameters, int, int, int, Longs]"


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def fetch(source: RowSource, row: int, K: Reals, where: Longs) -> None:  # pragma: no cover - compiled
    """Compute a row of K.

    Parameters
    ----------
    source : tuple
        The rows of two classes, see :attr:`casvm.solver.class_pairs.PairRows.source`.
    row : int
        Row of the pair.
    K : float32 or float64, shape (n, stride)
    where : int64, shape (n,)
        Updated.
    """
    data, norms, values, columns, kernel, first, second, n, computed = source
    W, panel, measure = data.shape[2], data.shape[1] * data.shape[2], kernel[4]
    place = first * W + row if row < n else second * W + row - n
    x, lane, count = data[place // W], place % W, 0
    for c in range(x.shape[0]):
        values[count], columns[count] = x[c, lane], c
        count += with_zeros(measure) or x[c, lane] != 0
    slot = computed[0]
    where[row], computed[0] = slot, slot + 1
    for at, end, start in ((0, n, first), (n, where.size, second)):
        for p in range(-(-(end - at) // W)):
            to = slot * K.shape[1] + at + p * W
            meet_at(values, columns, 0, count, data, (start + p) * panel, K, to, kernel)
    for at, end, start in ((0, n, first), (n, where.size, second)):
        begin, size = start * W, end - at
        add_norms(K[slot : slot + 1, at:], 1, norms, begin, begin + size, measure)
        finish(K[slot, at:end], norms[place], norms[begin : begin + size], kernel)
    K[slot, where.size :] = 0  # what vector instructions read beyond the last row must be finite


@numba.njit(cache=True, nogil=True)
def _compact(K: Reals, places: Longs) -> None:  # pragma: no cover - compiled
    """``K[:k, :k] = K[kept][:, kept]`` in place; `places` is int64, shape (k,), ascending, K float32 or float64."""
    for i in range(places.size):
        line, row = K[i], K[places[i]]
        for k in range(places.size):
            line[k] = row[places[k]]


@numba.njit(cache=True, nogil=True)
def _add_columns(
    values: Reals, slots: Longs, change: Doubles, columns: Longs, total: Doubles
) -> None:  # pragma: no cover - compiled
    """Sum products with some columns of kept rows of K: ``total += change @ values[slots][:, columns]``."""
    for i in range(slots.size):
        row, c = values[slots[i]], change[i]
        for k in range(columns.size):
            total[k] += c * np.float64(row[columns[k]])


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})
def _sums_of_both(
    K: Doubles, below: Doubles, above: Doubles, row_sums: Doubles, column_sums: Doubles
) -> None:  # pragma: no cover - compiled
    """``row_sums += below @ K`` and ``column_sums += above @ K.T`` in one pass over K, shape (m, k).

    `below` and `column_sums` have shape (t, m), `above` and `row_sums` (t, k). For so few vectors this takes half as
    long as matrix products.
    """
    for i in range(len(K)):
        row = K[i]
        for t in range(len(below)):
            p, line, weights, total = below[t, i], row_sums[t], above[t], 0.0
            for k in range(line.size):
                line[k] += p * row[k]
            for k in range(line.size):
                total += weights[k] * row[k]
            column_sums[t, i] += total


@numba.njit(cache=True, nogil=True)
def _copy_fresh(
    fresh_square: Reals, cached: Longs, all_fresh: Longs, fresh: Longs, K: Reals
) -> None:  # pragma: no cover - compiled
    """Fill the rows `fresh` of a square `K`: from `fresh_square`, and by symmetry from the cached rows.

    `cached` are the rows of K that are filled in, and `all_fresh` all others, the columns of `fresh_square`.
    """
    for r in range(fresh.size):
        i, line, row = fresh[r], K[fresh[r]], fresh_square[r]
        for k in range(all_fresh.size):
            line[all_fresh[k]] = row[k]
        for k in cached:
            line[k] = K[k, i]


def staying(before: Index, numbers: Index) -> tuple[Index, Index]:
    """Rows of a working set that were in the one before.

    Parameters
    ----------
    before, numbers : ndarray of int64
        Rows of both working sets; `numbers` ascending.

    Returns
    -------
    order : ndarray of int64, shape (len(numbers),)
        Places in `numbers`: of rows that stay, as `before` has them, then of the others.
    stay : ndarray of int64
        Places in `before` of the rows that stay, ascending.
    """
    at = np.searchsorted(numbers, before)
    stay = np.flatnonzero(np.append(numbers, -1)[at] == before)
    others = np.ones(len(numbers), np.bool_)
    others[at[stay]] = False
    return np.concatenate([at[stay], np.flatnonzero(others)]), stay
