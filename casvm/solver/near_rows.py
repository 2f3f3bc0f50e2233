"""Rows of a kernel matrix most of whose values vanish: each row holds only the blocks of columns near it.

:func:`share_near` estimates how many rows are near each other, and so whether this pays.

Rows are ordered as the leaves of a k-d tree, so that neighbours follow each other. A few consecutive rows then have a
small bounding box (:class:`cacore.near.boxes.Boxes`); two groups with boxes beyond the cutoff radius are skipped.

Products over the active columns compute their values anew each time; a working set's own values are kept while it is
solved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numba
import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.arrays import Reals
from cacore.data.rows import Rows, dense
from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.kernels.panels import Panels, accumulate, nonzeros
from cacore.kernels.sums import width
from cacore.machine import threads
from cacore.machine.threads import blocks, for_blocks
from cacore.near.boxes import Boxes, Runs
from casvm.solver.kernel_rows import Index, Vector

if TYPE_CHECKING:
    from cacore.arrays import Doubles, Integers, Ints, Longs
    from cacore.kernels.evaluate import Parameters


# Largest change of a gradient by neglected kernel values, as a share of the tolerance. The cutoff radii of one process
# (near_smo.near_values) and of all ranks (distributed.AllRows) both come from it, so that they neglect the same values.
VANISHED = 1e-3
_SAMPLED = 500  # rows from which the share of near pairs is estimated


def share_near(X: Rows, kernel: Kernel, squared: float) -> float:
    """Estimate from a sample the share of pairs of rows within this squared distance, which the kernel defines."""
    from scipy.spatial.distance import cdist  # a sixth of the start of a command, which wide kernels do not need

    step = max(1, X.shape[0] // _SAMPLED)
    sample = dense(X[::step]).astype(np.float64)
    norm = "chebyshev" if kernel.separable else "euclidean"  # see cacore.kernels.near
    return float(np.mean(squared >= np.square(cdist(sample, sample, norm))))


_GROUP = 16  # rows per group of a product, whose values are not kept
_LEAST = 64  # rows that always fit in the pool: a pair needs two at a time


class Near(NamedTuple):
    """Arrays with which compiled code computes and keeps a row of K; filled by :class:`NearRows`.

    Attributes
    ----------
    data, norms : ndarray of float32 or float64, shape (panels, d, width), (panels * width,)
        The active columns, as :class:`cacore.kernels.panels.Panels`.
    values, columns, starts, squares : ndarray
        All n rows as CSR, of the type of `data`, int32, and int32 or int64, shape (nnz,), (nnz,), (n + 1,); and their
        squared norms, shape (n,).
    kernel : tuple
        Parameters for :func:`cacore.kernels.evaluate.finish`.
    runs : Runs
        Near blocks of groups of as many rows as a panel has.
    pool : ndarray of float32 or float64, shape (room,)
        Kept values: for each row its runs, one after the other.
    place : ndarray of int64, shape (n,)
        Start of each row in `pool`, or -1.
    used : ndarray of int64, shape (n,)
        Time at which each row was last read.
    counts : ndarray of int64, shape (4,)
        Numbers of `pool` in use; rows computed, values computed and values read so far.
    rows : ndarray of int64, shape (active columns,)
        The active rows.
    """

    data: NDArray[np.floating]
    norms: NDArray[np.floating]
    values: NDArray[np.floating]
    columns: NDArray[np.int32]
    starts: NDArray[np.signedinteger]
    squares: NDArray[np.floating]
    kernel: Parameters
    runs: Runs
    pool: NDArray[np.floating]
    place: Index
    used: Index
    counts: Index
    rows: Index


TAKEN, ROWS, VALUES, READ = range(4)  # places in the counts


class NearRows:
    """Kernel values of rows with each other, without those of distant pairs.

    Parameters
    ----------
    X : ndarray or CSR, shape (n, d)
        Ordered by :func:`cacore.kernels.near.spatial_order`. Not changed.
    kernel : Kernel
        A function of the squared distance.
    dtype : dtype
        Type of the kept kernel values.
    layout : Layout
        Packed.
    cutoff : float
        Squared distance beyond which values are left out.
    cache_bytes : int
        Memory for the rows (as CSR and packed) and the kept values.
    n_own : int, optional
        Number of rows, the first ones, that are columns. Behind the active columns then stands the bias: one more
        row, in a group of its own, without kernel values.
    pool : ndarray of `dtype`, optional
        Memory for the kept values, in place of memory of its own; not used if it is too small.

    Notes
    -----
    2 nnz flops and one number of memory per value that is not left out.
    """

    def __init__(
        self, X: Rows, kernel: Kernel, dtype: DTypeLike, layout: Layout, cutoff: float, cache_bytes: int,
        n_own: int | None = None, pool: NDArray[np.floating] | None = None,
    ) -> None:  # fmt: skip
        self.X, self.kernel, self.dtype, self.layout, self.cutoff = X, kernel, np.dtype(dtype), layout, cutoff
        self.n, self.width = int(X.shape[0]), width(layout.dtype)
        self._points = nonzeros(X, layout.dtype, layout.shift, None, layout.measure)
        self.biased, self.own_columns = n_own is not None, np.arange(self.n if n_own is None else n_own)
        self._boxes = self._around(np.arange(self.n), self.width)
        self._columns = self._around(self.own_columns, self.width) if self.biased else self._boxes
        self._runs = self._boxes.near(self._columns, cutoff)
        csr = self._points.X
        packed = layout.nbytes(X) + csr.data.nbytes + csr.indices.nbytes + csr.indptr.nbytes
        self.room = max(0, cache_bytes - packed) // self.dtype.itemsize
        self._pool = np.zeros(0, self.dtype) if pool is None else pool
        self._counts = np.zeros(4, np.int64)
        # Behind the rows a whole group: the bias has a number there.
        self._place, self._used = np.full(self.n + 2 * self.width, -1), np.zeros(self.n + 2 * self.width, np.int64)
        self.active, self._begun = self.own_columns, False

    @property
    def diagonal(self) -> float:
        """K_ii, the same for all rows."""
        return float(self.kernel.of_squares(np.zeros(1))[0])

    @property
    def size(self) -> int:
        """Number of kernel values that are not left out."""
        rows = np.diff(np.append(np.arange(0, self.n, self.width), self.n))
        return int(rows @ self._runs.blocks) * self.width

    @property
    def fits(self) -> bool:
        """True if memory holds enough rows for keeping them to pay."""
        return self.room >= min(self.size, 1024 * self.width * int(self._runs.blocks.max(initial=0)))

    @property
    def rows_computed(self) -> int:
        """See :class:`casvm.solver.kernel_rows.KernelRows`."""
        return int(self._counts[ROWS])

    @property
    def values_computed(self) -> int:
        """See :class:`casvm.solver.kernel_rows.KernelRows`."""
        return int(self._counts[VALUES])

    @property
    def values_read(self) -> int:
        """See :class:`casvm.solver.kernel_rows.KernelRows`."""
        return int(self._counts[READ])

    def resume(self, rows: int, values: int) -> None:
        """Count rows and kernel values that a killed run computed."""
        self._counts[[ROWS, VALUES]] += rows, values

    def _around(self, rows: Index, size: int) -> Boxes:
        """Boxes of groups of `size` of these rows."""
        return Boxes.of_points(self._points, rows, size, self.kernel.separable)

    def begin(self) -> None:
        """Make all columns active. The first call allocates the memory; later ones keep its rows if they still fit."""
        if self._begun and len(self.active) == len(self.own_columns):
            return
        self.active, self._begun = self.own_columns, True
        least = _LEAST * self.width * int(self._runs.blocks.max(initial=0))
        if self._pool.size < min(least, self.size):
            self._pool = np.zeros(min(max(self.room, least), self.size), self.dtype)
        self.activate(self.active)

    def activate(self, rows: Index) -> None:
        """See :class:`casvm.solver.kernel_rows.KernelRows`."""
        self.active, layout = rows, self.layout
        all_active = len(rows) == len(self.own_columns)
        panels = Panels(self.X, layout.dtype, layout.shift, None if len(rows) == self.n else rows, layout.measure)
        self._active = self._columns if all_active else self._around(rows, self.width)
        self.runs = self._runs if all_active else self._boxes.near(self._active, self.cutoff)
        self._place[:], self._counts[TAKEN] = -1, 0
        if self.biased:
            bias = -(-self.n // self.width) * self.width
            rows = np.append(rows, np.full(-len(rows) % self.width + 1, bias))  # padding is never chosen
            starts, blocks_ = self.runs.starts, self.runs.blocks
            self.runs = self.runs._replace(starts=np.append(starts, starts[-1]), blocks=np.append(blocks_, 0))
        csr = self._points.X
        self.near = Near(
            panels.data, panels.norms, csr.data, csr.indices, csr.indptr, self._points.squares,
            self.kernel.parameters(panels.data.dtype, panels.measure), self.runs, self._pool, self._place, self._used,
            self._counts, rows,
        )  # fmt: skip

    def restrict(self, staying: Index) -> None:
        """See :class:`casvm.solver.kernel_rows.KernelRows`; kept values are cut to these columns."""
        before, places = self.runs, self._place.copy()
        self.activate(self.active[staying])
        places[self.own_columns], active_places = -1, places[self.active]
        places[self.active] = (
            active_places  # own rows that are no longer active will hardly move; those of other ranks may
        )
        rows = np.flatnonzero(places[: self.n] >= 0)
        rows = rows[np.argsort(places[rows])]
        self._counts[TAKEN] = _cut(self._pool, rows, places[rows], before, staying, self.runs, self.width, self._place)

    @property
    def mean(self) -> float:
        """Mean number of kernel values of a row over the active columns."""
        return self.width * float(self.runs.blocks.mean())

    @property
    def holds(self) -> int:
        """Number of rows of K, over the active columns and of mean length, that fit in memory."""
        return int(self._pool.size / max(1.0, self.mean))

    def among(self, rows: Index) -> NearRows:
        """The kernel values of these rows with each other, in the memory of this matrix, which discards its own."""
        self._place[:], self._counts[TAKEN] = -1, 0
        gram = NearRows(self.X[rows], self.kernel, self.dtype, self.layout, self.cutoff, 0, len(rows), self._pool)
        gram.begin()
        return gram

    def copies(self, columns: int) -> bool:
        """See :class:`casvm.solver.kernel_rows.KernelRows`."""
        return True

    def make_room(self) -> None:
        """Discard the least recently read rows until half of the memory is free."""
        lengths = self.runs.blocks[np.arange(self.n) // self.width] * self.width
        staying = np.flatnonzero(self._place[: self.n] >= 0)
        staying = staying[np.argsort(-self._used[staying], kind="stable")]
        staying = staying[np.cumsum(lengths[staying]) <= self._pool.size // 2]
        staying = staying[np.argsort(self._place[staying])]
        before, ends = self._place[staying], np.cumsum(lengths[staying])
        self._place[:] = -1
        self._place[staying] = ends - lengths[staying]
        for begin, length, end in zip(before.tolist(), lengths[staying].tolist(), ends.tolist(), strict=True):
            self._pool[end - length : end] = self._pool[begin : begin + length]
        self._counts[TAKEN] = int(ends[-1]) if len(ends) else 0

    def subtract(self, rows: Index, change: Vector, v: Vector) -> None:
        """``v -= change @ K(rows, active)``, for `v` of all panels; rows of K are kept. One thread."""
        done, now = 0, int(self._used.max(initial=0)) + 1
        while True:
            done = _subtract(self.near, rows, change, v, now, done)
            if done == len(rows):
                return
            self.make_room()

    def without(self, rows: Index, change: Vector, v: Vector) -> Vector:
        """``v - change @ K(rows, active)``, for v of the active rows; rows of K are kept. One thread."""
        total = np.zeros(len(self.near.data) * self.width)
        total[: len(v)] = v
        self.subtract(rows, change, total)
        return total[: len(v)]

    def product(self, rows: Index, change: Vector, columns: Index, exact: bool = False) -> Vector:
        """``change @ K(rows, columns)``, for any columns; `exact`: in double precision.

        2 nnz flops per value that is not left out, on all threads.
        """
        dtype, layout = np.dtype(np.float64) if exact else self.layout.dtype, self.layout
        if columns is self.active and not exact:
            data, norms, boxes = self.near.data, self.near.norms, self._active
        else:
            panels = Panels(self.X, dtype, layout.shift, columns, layout.measure)
            data, norms, boxes = panels.data, panels.norms, self._around(columns, width(dtype))
        points = nonzeros(self.X, dtype, layout.shift, rows, layout.measure)
        W, csr = data.shape[2], points.X
        total = np.zeros(len(data) * W)
        runs = self._around(rows, _GROUP).near(boxes, self.cutoff)
        parameters, store = self.kernel.parameters(dtype, layout.measure), np.empty((0, 0), dtype)
        if not exact:
            store = np.empty((0, 0), self.dtype)

        def work(lo: int, hi: int) -> None:
            _add(
                data, norms, csr.data, csr.indices, csr.indptr, points.squares, parameters, runs, change, store, _GROUP,
                lo, hi, total,
            )  # fmt: skip

        count = len(data)
        for_blocks(work, blocks(count, max(1, -(-count // (8 * threads.current())))))
        self._counts[VALUES] += int(runs.blocks.sum()) * _GROUP * W
        return total[: len(columns)]

    def quadratics(self, rows: Index, betas: Vector) -> Vector:
        """See :class:`casvm.solver.kernel_rows.KernelRows`; one pass for each of `betas`."""
        return np.array([self.product(rows, beta, rows, exact=True) @ beta for beta in betas])


@numba.njit(cache=True, nogil=True)
def row_of(near: Near, row: int, now: int) -> int:  # pragma: no cover - compiled
    """Start of this row of K in the pool, computed unless it is kept; -1 if there is no room for it.

    Parameters
    ----------
    near : Near
    row, now : int
        The row's number; the current time.
    """
    W, runs = near.data.shape[2], near.runs
    group = row // W
    size = runs.blocks[group] * W
    near.used[row] = now
    if near.place[row] >= 0:
        near.counts[READ] += size
        return near.place[row]
    begin = near.counts[TAKEN]
    if begin + size > near.pool.size:
        return -1
    at, places = begin, np.zeros(1, np.int64)
    none = np.empty(0)
    for k in range(runs.starts[group], runs.starts[group + 1]):
        first, last = runs.first[k], runs.last[k]
        length = (last - first) * W
        store = near.pool[at : at + length].reshape(1, length)
        accumulate(
            near.data[first:last], near.norms[first * W : last * W], near.values, near.columns,
            near.starts[row : row + 2], near.squares[row : row + 1], near.kernel, 0, length, none, none, store, places,
        )  # fmt: skip
        at += length
    near.place[row], near.counts[TAKEN] = begin, at
    near.counts[ROWS] += 1
    near.counts[VALUES] += size
    return begin


@numba.njit(cache=True, nogil=True)
def _subtract(
    near: Near, rows: Longs, change: Doubles, v: Doubles, now: int, begin: int
) -> int:  # pragma: no cover - compiled
    """Perform :meth:`NearRows.subtract` from row `begin` on; return the first row for which there is no room."""
    W, runs = near.data.shape[2], near.runs
    for k in range(begin, rows.size):
        at, group, by = row_of(near, rows[k], now), rows[k] // W, change[k]
        if at < 0:
            return k
        for r in range(runs.starts[group], runs.starts[group + 1]):
            first, size = runs.first[r] * W, (runs.last[r] - runs.first[r]) * W
            row, part = near.pool[at : at + size], v[first : first + size]
            for column in range(size):  # of vectors of its own, which makes it vector instructions
                part[column] -= by * row[column]
            at += size
    return int(rows.size)


@numba.njit(cache=True, nogil=True)
def _cut(
    pool: Reals, rows: Longs, places: Longs, before: Runs, columns: Longs, after: Runs, W: int, place: Longs
) -> int:  # pragma: no cover - compiled
    """Cut rows to some of their columns and compact them; update `place`, and return the numbers in use.

    `rows` and their `places`, ascending, have shape (m,); `before` and `after` are the near blocks of each group of W
    rows; `columns` is each column's number before the cut.
    """
    at, where = 0, np.full(before.last.max(), -1)
    for k in range(rows.size):
        group, count = rows[k] // W, places[k]
        line, q = np.zeros(after.blocks[group] * W, pool.dtype), 0
        if at + line.size > (places[k + 1] if k + 1 < rows.size else pool.size):
            continue  # it would overwrite the next row
        for r in range(before.starts[group], before.starts[group + 1]):
            for block in range(before.first[r], before.last[r]):
                where[block] = count
                count += W
        end, shift, near = 0, 0, False  # of the last column's block
        for r in range(after.starts[group], after.starts[group + 1]):
            for column in range(after.first[r] * W, min(columns.size, after.last[r] * W)):
                old = columns[column]
                if old >= end:
                    block = old // W
                    end = (block + 1) * W
                    near = block < where.size and where[block] >= 0
                    shift = where[block] - block * W if near else 0
                if near:
                    line[q] = pool[shift + old]
                q += 1
        for r in range(before.starts[group], before.starts[group + 1]):
            where[before.first[r] : before.last[r]] = -1
        pool[at : at + line.size] = line
        place[rows[k]] = at
        at += line.size
    return at


@numba.njit(cache=True, nogil=True)
def _add(
    data: Reals, norms: Reals, values: Reals, columns: Ints, starts: Integers, squares: Reals, kernel: Parameters,
    runs: Runs, change: Doubles, store: Reals, group: int, lo: int, hi: int, total: Doubles,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """``total += change @ K(rows, panels lo to hi)``, by runs of groups of `group` rows; arrays as in :class:`Near`."""
    W, places = data.shape[2], np.zeros(0, np.int64)
    for g in range(runs.blocks.size):
        a, b = g * group, min(squares.size, (g + 1) * group)
        for k in range(runs.starts[g], runs.starts[g + 1]):
            first, last = max(lo, runs.first[k]), min(hi, runs.last[k])
            if first < last:
                accumulate(
                    data[first:last], norms[first * W : last * W], values, columns, starts[a : b + 1], squares[a:b],
                    kernel, 0, (last - first) * W, change[a:b], total[first * W : last * W], store, places,
                )  # fmt: skip
