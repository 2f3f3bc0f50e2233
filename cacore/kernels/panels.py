"""Sums over the features of sparse rows and packed ones: kernel values where most features are 0, or few.

A matrix product of rows with d features multiplies all d of them. Most data have many zeros: a9a 14
nonzeros in 123, covtype 12 in 54, mnist 150 in 784. Here the columns lie in panels, feature by feature,
so that each nonzero of a row meets a whole panel in vector registers; the kernel function follows while
the panel's values are in cache, and their product with coefficients while they still are. What a row adds up is
products, or for kernels of the l1 distance differences (:mod:`cacore.kernels.sums`).
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cacore.data.rows import Rows, dense
from cacore.kernels.sums import (
    CACHE_BYTES,
    GROUP,
    NONZEROS,
    PRODUCTS,
    WHOLE,
    hand_over,
    meet_at,
    pack,
    portions,
    room,
    taken,
    width,
)
from cacore.kernels.values import Kernel, Points
from cacore.machine.threads import blocks, for_blocks

ROWS = 16  # most rows of a tile: pages of kernel values at a time


class Panels:
    """Rows packed as columns of kernel values.

    Parameters
    ----------
    X : ndarray or CSR, shape (n, d)
        Not changed.
    dtype : dtype
        Of the packed values: float32 or float64.
    shift : ndarray, shape (d,), or None
        Subtracted from dense rows; see :class:`cacore.kernels.values.Points`.
    rows : ndarray of int64, shape (n,), optional
        Which rows of `X`, and in what order; all by default. They are gathered a few at a time.
    measure : {PRODUCTS, WHOLE, NONZEROS}
        What is added up, see :func:`cacore.kernels.sums.meet`.

    Attributes
    ----------
    n : int
    data : ndarray, shape (ceil(n / width), d, width)
    norms : ndarray, shape (ceil(n / width) * width,)
        Squared norms, or l1 norms; of the measure WHOLE 0.

    Notes
    -----
    n d numbers of `dtype`; packing passes once over them, on all threads.
    """

    def __init__(
        self, X: Rows, dtype: Any, shift: NDArray[Any] | None = None, rows: NDArray[np.int64] | None = None,
        measure: int = PRODUCTS,
    ) -> None:  # fmt: skip
        self.n, self.measure = int(X.shape[0] if rows is None else len(rows)), measure
        count, W = -(-self.n // width(dtype)), width(dtype)
        self.data = room((count, X.shape[1], W), dtype)
        self.norms = np.zeros(count * W, dtype)

        def fill(lo: int, hi: int) -> None:
            these = slice(lo * W, hi * W)
            block = X[these if rows is None else rows[these]]
            if sp.issparse(block):
                pack_csr(block.data, block.indices, block.indptr, self.data[lo:hi])
            else:
                pack(_shifted(block, shift, dtype), self.data[lo:hi])
            panel_norms(self.data[lo:hi], measure, self.norms[lo * W : hi * W])

        for_blocks(fill, portions(count, X.shape[1] * W))

    def tasks(self, count: int) -> list[tuple[int, int]]:
        """At most `count` ranges of columns, each whole panels but for the last."""
        W = self.data.shape[2]
        return [(lo * W, min(hi * W, self.n)) for lo, hi in blocks(len(self.data), max(1, -(-len(self.data) // count)))]

    def add(
        self, kernel: Kernel, A: Points, lo: int, hi: int, coefficients: NDArray[np.float64] | None = None,
        total: NDArray[np.float64] | None = None, store: NDArray[Any] | None = None,
        places: NDArray[np.int64] | None = None,
    ) -> None:  # fmt: skip
        """Kernel values of the rows `A` with columns lo to hi: added up, or kept, or both; in the calling thread.

        Parameters
        ----------
        kernel : Kernel
        A : Points
            From :func:`nonzeros`, with this dtype, shift and measure.
        lo, hi : int
            From :meth:`tasks`.
        coefficients : ndarray of float64, shape (len(A),)
        total : ndarray of float64, shape (n,), optional
            ``total[lo:hi] += coefficients @ K(A, columns lo to hi)``.
        store : ndarray, shape (slots, >= n), C-contiguous, optional
            Row places[i] takes row i's values, where places[i] is not negative. Its dtype may be the
            shorter one; what is added up is what is, or would be, kept.
        places : ndarray of int64, shape (len(A),), optional
            None: 0, 1, and so on.

        Notes
        -----
        2 nnz(A) (hi - lo) flops, with nnz(A) the nonzeros of all its rows; 8 (hi - lo) bytes are read and
        written a row for `total`, from cache, and one number a value for `store`.
        """
        outputs = taken(len(A), hi, self.data.dtype, coefficients, total, store, places)
        assert (self.measure == PRODUCTS) == (kernel.measure() == PRODUCTS)
        accumulate(
            self.data, self.norms, A.X.data, A.X.indices, A.X.indptr, A.squares,
            kernel.parameters(self.data.dtype, self.measure), lo, hi, *outputs,
        )  # fmt: skip


def nonzeros(
    X: Rows, dtype: Any, shift: NDArray[Any] | None = None, rows: NDArray[np.int64] | None = None,
    measure: int = PRODUCTS,
) -> Points:  # fmt: skip
    """The nonzeros of `X`, shifted, as rows for :class:`Panels`; a pass over its values.

    Parameters
    ----------
    X : ndarray or CSR, shape (m, d)
        Not changed.
    dtype, shift, measure
        Those of the panels. For the measure WHOLE zeros are kept with the nonzeros.
    rows : ndarray of int64, optional
        Which rows of `X`; all by default.
    """
    points = object.__new__(Points)
    m = X.shape[0] if rows is None else len(rows)
    if sp.issparse(X) and measure != WHOLE:
        X = X if rows is None else X[rows]
        csr = sp.csr_matrix((X.data.astype(dtype), X.indices.astype(np.int32), X.indptr.astype(np.int64)), X.shape)
        csr.sum_duplicates()  # of these copies: an entry given in pieces has one square
    else:
        # A few rows at a time: large temporary arrays cost more than what is done with them.
        cut = [slice(lo, hi) for lo, hi in blocks(m, 256)]
        some = (dense(X[one if rows is None else rows[one]]) for one in cut)
        pieces = [_compress(_shifted(block, shift, dtype), measure == WHOLE) for block in some]
        ends = np.cumsum([0, *(len(piece[0]) for piece in pieces)])
        starts = [piece[2][1:] + end for piece, end in zip(pieces, ends[:-1], strict=True)]
        values = np.concatenate([np.zeros(0, dtype), *(piece[0] for piece in pieces)])
        columns = np.concatenate([np.zeros(0, np.int32), *(piece[1] for piece in pieces)])
        csr = sp.csr_matrix((values, columns, np.concatenate([np.zeros(1, np.int64), *starts])), (m, X.shape[1]))
    points.X, points.shift, points.squares = csr, shift, _norms(csr.data, csr.indptr)
    return points


def _shifted(X: NDArray[Any], shift: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
    return np.ascontiguousarray(X if shift is None else X - shift, dtype)


@numba.njit(inline="always")
def _add_norms(tile: Any, count: Any, b: Any, lo: Any, hi: Any, measure: Any) -> None:  # pragma: no cover - compiled
    """l1 distances from what the measure NONZEROS adds up and the l1 norms; of other measures nothing is missing.

    Of `count` rows, the lines of `tile`, with the columns lo to hi, of norms ``b[lo:hi]``.
    """
    if measure == NONZEROS:
        norms = b[lo:hi]
        for r in range(count):
            line = tile[r, : hi - lo]
            for k in range(line.size):
                line[k] = max(norms[k] * 0, line[k] + norms[k])


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def accumulate(
    data: Any, b: Any, values: Any, columns: Any, starts: Any, a: Any, kernel: Any, lo: Any, hi: Any,
    coefficients: Any, total: Any, store: Any, places: Any,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """:meth:`Panels.add` for compiled code.

    Parameters
    ----------
    data : array of float32 or float64, shape (panels, d, width)
    b : array of that type, shape (panels * width,)
        Norms of the packed rows, as :func:`panel_norms`.
    values, columns, starts : arrays of that type, of int32 and of int64
        m rows as CSR.
    a : array of that type, shape (m,)
        Their squared norms.
    kernel : tuple
        What :func:`cacore.kernels.evaluate.finish` takes, with the measure of the panels.
    lo, hi : int
    coefficients, total : arrays of float64, shape (m,) and (>= hi,), or both of shape (0,)
    store : array of float32 or float64, shape (slots, >= hi)
    places : array of int64, shape (m,) or (0,)
    """
    W, size, measure = data.shape[2], data.shape[1] * data.shape[2], kernel[4]
    group = min(GROUP, max(1, CACHE_BYTES // (data.shape[1] * W * data.itemsize)))
    tile = np.empty((ROWS, group * W), data.dtype)
    for at in range(lo, hi, group * W):
        end = min(at + group * W, hi)
        for i in range(0, a.size, ROWS):
            rows = min(ROWS, a.size - i)
            for panel in range(at // W, -(-end // W)):
                for r in range(rows):
                    to = r * tile.shape[1] + panel * W - at
                    meet_at(
                        values, columns, starts[i + r], starts[i + r + 1], data, panel * size, tile, to, measure
                    )  # fmt: skip
            _add_norms(tile, rows, b, at, end, measure)
            hand_over(tile, rows, i, at, end, a, b, kernel, coefficients, total, store, places)


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def add_rows(values: Any, slots: Any, change: Any, v: Any, lo: Any, hi: Any) -> None:  # pragma: no cover - compiled
    """``v[lo:hi] += change @ values[slots, lo:hi]``, four rows a pass over a stretch of v that stays in cache.

    `values` is an array of float32 or float64, shape (rows, >= hi), `slots` of int64 and `change` of float64, shape
    (k,), and `v` of float64, shape (>= hi,).
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
def pack_csr(values: Any, columns: Any, starts: Any, data: Any) -> None:  # pragma: no cover - compiled
    """Rows of a CSR matrix added to panels of zeros, shape (panels, d, width), of the type of `values`."""
    W = data.shape[2]
    for i in range(starts.size - 1):
        panel = data[i // W]
        for q in range(starts[i], starts[i + 1]):
            panel[columns[q], i % W] += values[q]


@numba.njit(cache=True, nogil=True, fastmath={"contract"})
def panel_norms(data: Any, measure: Any, out: Any) -> None:  # pragma: no cover - compiled
    """Norms of packed rows, shape (panels * width,), added to zeros in `out`: squared ones, or l1 norms for NONZEROS.

    In the order of a product, or of differences, and fused alike: a row is at distance 0 from itself. `data` is an
    array, shape (panels, d, width), of the type of `out`, and `measure` as for :func:`cacore.kernels.sums.meet`.
    """
    W = data.shape[2]
    if measure == WHOLE:
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
def _norms(values: Any, starts: Any) -> Any:  # pragma: no cover - compiled
    """Squared norms of the n rows of a CSR matrix, shape (n,), as :func:`panel_norms`."""
    out = np.zeros(starts.size - 1, values.dtype)
    for i in range(out.size):
        square = out[i]
        for q in range(starts[i], starts[i + 1]):
            square += values[q] * values[q]
        out[i] = square
    return out


@numba.njit(cache=True, nogil=True)
def _compress(X: Any, whole: Any) -> Any:  # pragma: no cover - compiled
    """Values, columns (int32) and starts (int64) of the nonzeros of dense rows, shape (n, d); if `whole`, of all."""
    starts = np.zeros(X.shape[0] + 1, np.int64)
    for i in range(X.shape[0]):
        count = 0
        for c in range(X.shape[1]):
            count += whole or X[i, c] != 0
        starts[i + 1] = starts[i] + count
    values, columns = np.empty(starts[-1], X.dtype), np.empty(starts[-1], np.int32)
    q = 0
    for i in range(X.shape[0]):
        for c in range(X.shape[1]):
            if whole or X[i, c] != 0:
                values[q], columns[q] = X[i, c], c
                q += 1
    return values, columns, starts
