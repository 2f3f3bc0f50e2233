"""Kernel values between sparse rows and rows packed into panels: fast if most features are 0, or if there are few.

A matrix product of rows with d features multiplies all d of them. Most data have many zeros: a9a has 14 nonzeros in
123, covtype 12 in 54, mnist 150 in 784. Here the columns lie in panels, feature by feature, so that each nonzero of a
row meets a whole panel in vector registers. The kernel function, and the product with coefficients, follow while the
values are in cache. The sums are those of products or, for kernels of the l1 distance, of differences; a product over
the features multiplies factors (:mod:`cacore.kernels.sums`).
"""

from __future__ import annotations

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike, NDArray

from cacore.arrays import Doubles, Integers, Ints, Longs, Reals
from cacore.data.rows import Rows, dense, is_sparse
from cacore.kernels.evaluate import DIFFERENCES, NONZEROS, PRODUCTS, Parameters, with_zeros
from cacore.kernels.sums import CACHE_BYTES, GROUP, hand_over, meet_at, pack, portions, room, taken, width
from cacore.kernels.values import Kernel, Nonzeros
from cacore.machine.threads import blocks, for_blocks

_PIECE = 1 << 16  # numbers of dense rows compressed at a time
ROWS = 16  # rows of a tile at most, which bounds the memory pages of kernel values written at a time


class Panels:
    """Rows packed as columns of kernel values.

    Parameters
    ----------
    X : ndarray or CSR, shape (n, d)
        Not changed.
    dtype : dtype
        Type of the packed values: float32 or float64.
    shift : ndarray, shape (d,), or None
        Vector subtracted from the rows, which become dense; see :class:`cacore.kernels.values.Points`.
    rows : ndarray of int64, shape (n,), optional
        Numbers of the rows of `X` to pack, in order; all rows by default. They are gathered block by block.
    measure : {PRODUCTS, NONZEROS, WHOLE, FACTORS, DIFFERENCES}
        Terms of the sums, see :func:`cacore.kernels.sums.meet`.

    Attributes
    ----------
    n : int
        Number of packed rows.
    data : ndarray, shape (ceil(n / width), d, width)
    norms : ndarray, shape (ceil(n / width) * width,)
        Squared norms, or l1 norms for the measure NONZEROS; 0 for WHOLE, FACTORS and DIFFERENCES.

    Notes
    -----
    Stores n d numbers of `dtype`; packing passes over them once, on all threads.
    """

    def __init__(
        self, X: Rows, dtype: DTypeLike, shift: NDArray[np.floating] | None = None,
        rows: NDArray[np.int64] | None = None, measure: int = PRODUCTS,
    ) -> None:  # fmt: skip
        self.n, self.measure = int(X.shape[0] if rows is None else len(rows)), measure
        count, W = -(-self.n // width(dtype)), width(dtype)
        self.data = room((count, X.shape[1], W), dtype)
        self.norms = np.zeros(count * W, dtype)

        def fill(lo: int, hi: int) -> None:
            part = slice(lo * W, hi * W)
            block = X[part if rows is None else rows[part]]
            if is_sparse(block) and shift is None:
                pack_csr(block.data, block.indices, block.indptr, self.data[lo:hi])
            else:
                pack(_shifted(block, shift, dtype), self.data[lo:hi])
            panel_norms(self.data[lo:hi], measure, self.norms[lo * W : hi * W])

        for_blocks(fill, portions(count, X.shape[1] * W))

    def tasks(self, count: int) -> list[tuple[int, int]]:
        """At most `count` ranges of columns; all but the last end at a panel's end."""
        W = self.data.shape[2]
        return [(lo * W, min(hi * W, self.n)) for lo, hi in blocks(len(self.data), max(1, -(-len(self.data) // count)))]

    def add(
        self, kernel: Kernel, A: Nonzeros, lo: int, hi: int, coefficients: NDArray[np.float64] | None = None,
        total: NDArray[np.float64] | None = None, store: NDArray[np.floating] | None = None,
        places: NDArray[np.int64] | None = None,
    ) -> None:  # fmt: skip
        """Compute kernel values of the rows `A` with columns lo to hi; add them to `total`, store them, or both.

        Runs in the calling thread.

        Parameters
        ----------
        kernel : Kernel
        A : Nonzeros
            Rows from :func:`nonzeros`, with the same dtype, shift and measure.
        lo, hi : int
            A range from :meth:`tasks`.
        coefficients : ndarray of float64, shape (len(A),)
        total : ndarray of float64, shape (n,), optional
            ``total[lo:hi] += coefficients @ K(A, columns lo to hi)``.
        store : ndarray, shape (slots, >= n), C-contiguous, optional
            Row places[i] receives the values of row i, unless places[i] is negative. Its dtype may be shorter than
            that of the values; `total` adds up the values as rounded to that dtype.
        places : ndarray of int64, shape (len(A),), optional
            By default 0, 1, and so on.

        Notes
        -----
        2 nnz(A) (hi - lo) flops, with nnz(A) the nonzeros of all rows of `A`. Per row, `total` reads and writes
        8 (hi - lo) bytes in cache; `store` takes one number per value.
        """
        outputs = taken(len(A), hi, self.data.dtype, coefficients, total, store, places)
        assert (self.measure in (PRODUCTS, DIFFERENCES)) == (kernel.measure() == PRODUCTS)
        accumulate(
            self.data, self.norms, A.X.data, A.X.indices, A.X.indptr, A.squares,
            kernel.parameters(self.data.dtype, self.measure), lo, hi, *outputs,
        )  # fmt: skip


def nonzeros(
    X: Rows, dtype: DTypeLike, shift: NDArray[np.floating] | None = None, rows: NDArray[np.int64] | None = None,
    measure: int = PRODUCTS,
) -> Nonzeros:  # fmt: skip
    """The nonzeros of `X`, shifted, as rows for :meth:`Panels.add`; one pass over the values.

    Parameters
    ----------
    X : ndarray or CSR, shape (m, d)
        Not changed.
    dtype, shift, measure
        The same as for the panels. The measures WHOLE, FACTORS and DIFFERENCES keep zeros as well.
    rows : ndarray of int64, optional
        Numbers of the rows of `X` to take; all rows by default.
    """
    points = object.__new__(Nonzeros)
    m = X.shape[0] if rows is None else len(rows)
    if is_sparse(X) and not with_zeros(measure) and shift is None:
        X = X if rows is None else X[rows]
        csr = sp.csr_matrix((X.data.astype(dtype), X.indices.astype(np.int32), X.indptr.astype(np.int64)), X.shape)
        csr.sum_duplicates()  # in the copy: the norm needs the square of the sum of duplicate entries
    else:
        chosen, offset = np.arange(m) if rows is None else rows, np.zeros(X.shape[1]) if shift is None else shift
        like, whole, pieces = np.zeros(0, dtype), with_zeros(measure), []
        # Block by block: large temporary arrays would cost more than the work on them.
        for lo, hi in blocks(m, max(256, _PIECE // max(1, X.shape[1]))):
            if is_sparse(X):
                pieces.append(_compress(dense(X[chosen[lo:hi]]), np.arange(hi - lo), offset, like, whole))
            else:
                pieces.append(_compress(X, chosen[lo:hi], offset, like, whole))
        csr = sp.csr_matrix(pieces[0] if len(pieces) == 1 else _stacked(pieces, like), (m, X.shape[1]))
    squares = np.zeros(m, csr.dtype) if measure == DIFFERENCES else _norms(csr.data, csr.indptr)
    points.X, points.shift, points.squares, points.gaps = csr, shift, squares, False
    return points


def _stacked(
    pieces: list[tuple[NDArray[np.floating], NDArray[np.int32], NDArray[np.int64]]], like: NDArray[np.floating]
) -> tuple[NDArray[np.floating], NDArray[np.int32], NDArray[np.int64]]:
    """CSR values, columns and starts of all pieces, one below the other."""
    ends = np.cumsum([0, *(len(piece[0]) for piece in pieces)])
    starts = [piece[2][1:] + end for piece, end in zip(pieces, ends[:-1], strict=True)]
    values = np.concatenate([like, *(piece[0] for piece in pieces)])
    columns = np.concatenate([np.zeros(0, np.int32), *(piece[1] for piece in pieces)])
    return values, columns, np.concatenate([np.zeros(1, np.int64), *starts])


def _shifted(X: Rows, shift: NDArray[np.floating] | None, dtype: DTypeLike) -> NDArray[np.floating]:
    X = dense(X)
    return np.ascontiguousarray(X if shift is None else X - shift, dtype)


@numba.njit(inline="always")
def add_norms(tile: Reals, count: int, b: Reals, lo: int, hi: int, measure: int) -> None:  # pragma: no cover - compiled
    """Complete the sums of the measure NONZEROS to l1 distances by adding the columns' norms; no-op otherwise.

    `tile` holds `count` rows of sums with the columns lo to hi, whose l1 norms are ``b[lo:hi]``.
    """
    if measure == NONZEROS:
        norms = b[lo:hi]
        for r in range(count):
            line = tile[r, : hi - lo]
            for k in range(line.size):
                line[k] = max(norms[k] * 0, line[k] + norms[k])


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def accumulate(
    data: Reals, b: Reals, values: Reals, columns: Ints, starts: Integers, a: Reals, kernel: Parameters, lo: int,
    hi: int, coefficients: Doubles, total: Doubles, store: Reals, places: Longs,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """:meth:`Panels.add` for compiled code.

    Parameters
    ----------
    data : array of float32 or float64, shape (panels, d, width)
    b : array of that type, shape (panels * width,)
        Norms of the packed rows, from :func:`panel_norms`.
    values, columns, starts : arrays of that type, of int32, and of int32 or int64, shape (nnz,), (nnz,), (m + 1,)
        m rows as CSR.
    a : array of that type, shape (m,)
        Squared norms of these rows.
    kernel : tuple
        Parameters for :func:`cacore.kernels.evaluate.finish`, with the measure of the panels.
    lo, hi : int
    coefficients, total : arrays of float64, shape (m,) and (>= hi,), or both of shape (0,)
    store : array of float32 or float64, shape (slots, >= hi)
    places : array of int64, shape (m,) or (0,)
    """
    W, size = data.shape[2], data.shape[1] * data.shape[2]
    group = min(GROUP, max(1, CACHE_BYTES // (data.shape[1] * W * data.itemsize)))
    tile = np.empty((ROWS, group * W), data.dtype)
    for at in range(lo, hi, group * W):
        end = min(at + group * W, hi)
        for i in range(0, a.size, ROWS):
            rows = min(ROWS, a.size - i)
            for panel in range(at // W, -(-end // W)):
                for r in range(rows):
                    to = r * tile.shape[1] + panel * W - at
                    meet_at(values, columns, starts[i + r], starts[i + r + 1], data, panel * size, tile, to, kernel)
            add_norms(tile, rows, b, at, end, kernel[4])
            hand_over(tile, rows, i, at, end, a, b, kernel, coefficients, total, store, places)


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def add_rows(
    values: Reals, slots: Longs, change: Doubles, v: Doubles, lo: int, hi: int
) -> None:  # pragma: no cover - compiled
    """``v[lo:hi] += change @ values[slots, lo:hi]``, four rows per pass over a stretch of v that stays in cache.

    `values` is float32 or float64, shape (rows, >= hi); `slots` is int64 and `change` float64, shape (k,); `v` is
    float64, shape (>= hi,).
    """
    for at in range(lo, hi, 1024):
        end = min(at + 1024, hi)
        part, s = v[at:end], 0
        while s + 4 <= slots.size:
            a, b, c, d = values[slots[s]], values[slots[s + 1]], values[slots[s + 2]], values[slots[s + 3]]
            a, b, c, d = a[at:end], b[at:end], c[at:end], d[at:end]
            p, q, r, t = change[s], change[s + 1], change[s + 2], change[s + 3]
            for k in range(part.size):
                part[k] += (p * np.float64(a[k]) + q * np.float64(b[k])) + (r * np.float64(c[k]) + t * np.float64(d[k]))
            s += 4
        while s < slots.size:
            row, p = values[slots[s], at:end], change[s]
            for k in range(part.size):
                part[k] += p * np.float64(row[k])
            s += 1


@numba.njit(cache=True, nogil=True)
def put_rows(values: Reals, places: Longs, store: Reals, first: int) -> None:  # pragma: no cover - compiled
    """``store[places, first : first + n] = values``, but for rows whose place is negative.

    `values` is float32 or float64, shape (m, n), `places` int64, shape (m,), `store` of the type of `values`.
    """
    for i in range(places.size):
        if places[i] >= 0:
            row = values[i]
            line = store[places[i], first : first + row.size]
            for k in range(row.size):
                line[k] = row[k]


@numba.njit(cache=True, nogil=True)
def pack_csr(values: Reals, columns: Integers, starts: Integers, data: Reals) -> None:  # pragma: no cover - compiled
    """Add the rows of a CSR matrix to panels of zeros, shape (panels, d, width), of the type of `values`."""
    W = data.shape[2]
    for i in range(starts.size - 1):
        panel = data[i // W]
        for q in range(starts[i], starts[i + 1]):
            panel[columns[q], i % W] += values[q]


@numba.njit(cache=True, nogil=True, fastmath={"contract"})
def panel_norms(data: Reals, measure: int, out: Reals) -> None:  # pragma: no cover - compiled
    """Add the norms of packed rows to the zeros in `out`, shape (panels * width,): squared, or l1 for NONZEROS.

    Terms are added in the same order, and fused in the same way, as in a product of rows, so that a row is at distance
    0 from itself. `data`, shape (panels, d, width), has the type of `out`; `measure` is that of
    :func:`cacore.kernels.sums.meet`.
    """
    W = data.shape[2]
    if with_zeros(measure):
        return
    for p in range(data.shape[0]):
        line = out[p * W : (p + 1) * W]
        for c in range(data.shape[1]):
            x = data[p, c]
            if measure == NONZEROS:
                for k in range(W):
                    line[k] += abs(x[k])
            else:
                for k in range(W):
                    line[k] += x[k] * x[k]


@numba.njit(cache=True, nogil=True, fastmath={"contract"})
def _norms(values: Reals, starts: Integers) -> Reals:  # pragma: no cover - compiled
    """Squared norms of the n rows of a CSR matrix, shape (n,), added up as in :func:`panel_norms`."""
    out = np.zeros(starts.size - 1, values.dtype)
    for i in range(out.size):
        square = out[i]
        for q in range(starts[i], starts[i + 1]):
            square += values[q] * values[q]
        out[i] = square
    return out


@numba.njit(cache=True, nogil=True)
def _compress(
    X: Reals, rows: Longs, shift: Reals, like: Reals, whole: bool
) -> tuple[Reals, Ints, Longs]:  # pragma: no cover - compiled
    """CSR values, columns (int32) and starts (int64) of some rows of a dense `X`, shape (n, d), minus the shift.

    The values have the type of `like`; `whole` keeps the zeros, too.
    """
    starts, d = np.zeros(rows.size + 1, np.int64), X.shape[1]
    values, columns = np.empty(rows.size * d, like.dtype), np.empty(rows.size * d, np.int32)
    q = 0
    for i in range(rows.size):
        for c in range(d):
            value = like.dtype.type(X[rows[i], c] - shift[c])
            if whole or value != 0:
                values[q], columns[q] = value, c
                q += 1
        starts[i + 1] = q
    return values[:q], columns[:q], starts
