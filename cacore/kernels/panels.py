"""Products of sparse rows with packed ones: kernel values where most features are 0, or few.

A matrix product of rows with d features multiplies all d of them. Most data have many zeros: a9a 14
nonzeros in 123, covtype 12 in 54, mnist 150 in 784. Here the columns lie in panels, feature by feature,
so that each nonzero of a row meets a whole panel in vector registers; the kernel function follows while
the panel's values are in cache, and their product with coefficients while they still are.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import scipy.sparse as sp
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from cacore.data.rows import Rows
from cacore.kernels.evaluate import finish
from cacore.kernels.values import Kernel, Points
from cacore.machine.threads import blocks, for_blocks

VECTORS = 8  # accumulators of 64 bytes: enough to hide the latency of multiply-and-add
GROUP, ROWS = 8, 16  # most panels and rows of a tile: pages of kernel values at a time
CACHE_BYTES = 1 << 19  # of the panels of a tile, which every row meets
PANEL_BYTES = 64 * VECTORS


def width(dtype: Any) -> int:
    """Rows of a panel."""
    return PANEL_BYTES // int(np.dtype(dtype).itemsize)


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

    Attributes
    ----------
    n : int
    data : ndarray, shape (ceil(n / width), d, width)
    squares : ndarray, shape (ceil(n / width) * width,)

    Notes
    -----
    n d numbers of `dtype`; packing passes once over them, on all threads.
    """

    def __init__(
        self, X: Rows, dtype: Any, shift: NDArray[Any] | None = None, rows: NDArray[np.int64] | None = None
    ) -> None:
        self.n = int(X.shape[0] if rows is None else len(rows))
        count, W = -(-self.n // width(dtype)), width(dtype)
        self.data = np.empty((count, X.shape[1], W), dtype)
        self.squares = np.zeros(count * W, dtype)

        def pack(lo: int, hi: int) -> None:
            self.data[lo:hi] = 0
            these = slice(lo * W, hi * W)
            block = X[these if rows is None else rows[these]]
            if sp.issparse(block):
                pack_csr(block.data, block.indices, block.indptr, self.data[lo:hi])
            else:
                _pack(_shifted(block, shift, dtype), self.data[lo:hi])
            panel_squares(self.data[lo:hi], self.squares[lo * W : hi * W])

        for_blocks(pack, blocks(count, 4))

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
            From :func:`nonzeros`, with this dtype and shift.
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
        if coefficients is None or total is None:
            coefficients, total = np.empty(0), np.empty(0)
        if store is None:
            store, places = np.empty((0, 0), self.data.dtype), np.empty(0, np.int64)
        elif places is None:
            places = np.arange(len(A))
        # Compiled code does not look.
        assert not total.size or (total.size >= hi and len(coefficients) == len(A))
        assert not places.size or (store.shape[1] >= hi and len(store) > places.max() and len(places) == len(A))
        accumulate(
            self.data, self.squares, A.X.data, A.X.indices, A.X.indptr, A.squares,
            kernel.parameters(self.data.dtype), lo, hi, coefficients, total, store, places,
        )  # fmt: skip


def nonzeros(X: Rows, dtype: Any, shift: NDArray[Any] | None = None, rows: NDArray[np.int64] | None = None) -> Points:
    """The nonzeros of `X`, shifted, as rows for :class:`Panels`; a pass over its values.

    Parameters
    ----------
    X : ndarray or CSR, shape (m, d)
        Not changed.
    dtype, shift
        Those of the panels.
    rows : ndarray of int64, optional
        Which rows of `X`; all by default.
    """
    points = object.__new__(Points)
    m = X.shape[0] if rows is None else len(rows)
    if sp.issparse(X):
        X = X if rows is None else X[rows]
        csr = sp.csr_matrix((X.data.astype(dtype), X.indices.astype(np.int32), X.indptr.astype(np.int64)), X.shape)
        csr.sum_duplicates()  # of these copies: an entry given in pieces has one square
    else:
        # A few rows at a time: large temporary arrays cost more than what is done with them.
        cut = [slice(lo, hi) for lo, hi in blocks(m, 256)]
        pieces = [_compress(_shifted(X[one if rows is None else rows[one]], shift, dtype)) for one in cut]
        ends = np.cumsum([0, *(len(piece[0]) for piece in pieces)])
        starts = [piece[2][1:] + end for piece, end in zip(pieces, ends[:-1], strict=True)]
        values = np.concatenate([np.zeros(0, dtype), *(piece[0] for piece in pieces)])
        columns = np.concatenate([np.zeros(0, np.int32), *(piece[1] for piece in pieces)])
        csr = sp.csr_matrix((values, columns, np.concatenate([np.zeros(1, np.int64), *starts])), (m, X.shape[1]))
    points.X, points.shift, points.squares = csr, shift, _norms(csr.data, csr.indptr)
    return points


def _shifted(X: NDArray[Any], shift: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
    return np.ascontiguousarray(X if shift is None else X - shift, dtype)


@intrinsic
def _dots(typingctx: Any, values: Any, columns: Any, first: Any, last: Any, panel: Any, out: Any) -> Any:
    """``out[:width] = sum of values[q] * panel[columns[q], :width] for first <= q < last``, in registers."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds, real = signature.args, context.get_value_type(signature.args[0].dtype)
        align = values.dtype.bitwidth // 8
        lanes = 64 // align
        vector, i32, i64 = ir.VectorType(real, lanes), ir.IntType(32), ir.IntType(64)
        v, c, p, o = (context.make_array(kinds[k])(context, builder, args[k]).data for k in (0, 1, 4, 5))
        zero, nothing = ir.Constant(vector, [0.0] * lanes), ir.Constant(vector, ir.Undefined)
        before = builder.block
        loop, done = builder.append_basic_block("nonzero"), builder.append_basic_block("done")
        builder.cbranch(builder.icmp_signed("<", args[2], args[3]), loop, done)

        builder.position_at_end(loop)
        q = builder.phi(i64)
        sums = [builder.phi(vector) for _ in range(VECTORS)]
        value = builder.insert_element(nothing, builder.load(builder.gep(v, [q])), ir.Constant(i32, 0))
        value = builder.shuffle_vector(value, nothing, ir.Constant(ir.VectorType(i32, lanes), [0] * lanes))
        row = builder.mul(builder.sext(builder.load(builder.gep(c, [q])), i64), ir.Constant(i64, lanes * VECTORS))
        added = []
        for k, total in enumerate(sums):
            at = builder.gep(p, [builder.add(row, ir.Constant(i64, k * lanes))])
            x = builder.load(builder.bitcast(at, vector.as_pointer()), align=align)
            fused = ("contract",)
            added.append(builder.fadd(total, builder.fmul(value, x, flags=fused), flags=fused))
        after = builder.add(q, ir.Constant(i64, 1))
        for phi, start, following in ((q, args[2], after), *((s, zero, a) for s, a in zip(sums, added, strict=True))):
            phi.add_incoming(start, before)
            phi.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", after, args[3]), loop, done)

        builder.position_at_end(done)
        results = [builder.phi(vector) for _ in range(VECTORS)]
        for result, following in zip(results, added, strict=True):
            result.add_incoming(zero, before)
            result.add_incoming(following, loop)
        for k, result in enumerate(results):
            at = builder.gep(o, [ir.Constant(i64, k * lanes)])
            builder.store(result, builder.bitcast(at, vector.as_pointer()), align=align)
        return context.get_dummy_value()

    return types.void(values, columns, types.int64, types.int64, panel, out), build


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
        Squared norms of the packed rows.
    values, columns, starts : arrays of that type, of int32 and of int64
        m rows as CSR.
    a : array of that type, shape (m,)
        Their squared norms.
    kernel : tuple
        What :func:`cacore.kernels.evaluate.finish` takes.
    lo, hi : int
    coefficients, total : arrays of float64, shape (m,) and (>= hi,), or both of shape (0,)
    store : array of float32 or float64, shape (slots, >= hi)
    places : array of int64, shape (m,) or (0,)
    """
    W, kept = data.shape[2], store.dtype.type
    group = min(GROUP, max(1, CACHE_BYTES // (data.shape[1] * W * data.itemsize)))
    tile = np.empty((ROWS, group * W), data.dtype)
    for at in range(lo, hi, group * W):
        end = min(at + group * W, hi)
        squares = b[at:end]
        for i in range(0, a.size, ROWS):
            rows = min(ROWS, a.size - i)
            for panel in range(at // W, -(-end // W)):
                where = panel * W - at
                for r in range(rows):
                    out = tile[r, where : where + W]
                    _dots(values, columns, starts[i + r], starts[i + r + 1], data[panel], out)
            for r in range(rows):
                line = tile[r, : end - at]
                finish(line, a[i + r], squares, kernel)
                if places.size and places[i + r] >= 0:
                    row = store[places[i + r], at:end]
                    for k in range(line.size):
                        row[k] = line[k]
                if total.size:
                    c, sums = coefficients[i + r], total[at:end]
                    for k in range(line.size):
                        sums[k] += c * np.float64(kept(line[k]))


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
def _pack(X: Any, data: Any) -> None:  # pragma: no cover - compiled
    """Dense rows, shape (n, d), into panels of zeros, shape (ceil(n / width), d, width)."""
    W = data.shape[2]
    for p in range(data.shape[0]):
        panel = data[p]
        for k in range(min(W, X.shape[0] - p * W)):
            for c in range(X.shape[1]):
                panel[c, k] = X[p * W + k, c]


@numba.njit(cache=True, nogil=True)
def pack_csr(values: Any, columns: Any, starts: Any, data: Any) -> None:  # pragma: no cover - compiled
    """Rows of a CSR matrix added to panels of zeros, shape (panels, d, width), of the type of `values`."""
    W = data.shape[2]
    for i in range(starts.size - 1):
        panel = data[i // W]
        for q in range(starts[i], starts[i + 1]):
            panel[columns[q], i % W] += values[q]


@numba.njit(cache=True, nogil=True, fastmath={"contract"})
def panel_squares(data: Any, out: Any) -> None:  # pragma: no cover - compiled
    """Squared norms of packed rows, shape (panels * width,), added to zeros in `out`.

    In the order of a product and fused alike: a row is at distance 0 from itself.
    """
    W = data.shape[2]
    for p in range(data.shape[0]):
        line = out[p * W : (p + 1) * W]
        for c in range(data.shape[1]):
            x = data[p, c]
            for k in range(W):
                line[k] += x[k] * x[k]


@numba.njit(cache=True, nogil=True, fastmath={"contract"})
def _norms(values: Any, starts: Any) -> Any:  # pragma: no cover - compiled
    """Squared norms of the n rows of a CSR matrix, shape (n,), as :func:`panel_squares`."""
    out = np.zeros(starts.size - 1, values.dtype)
    for i in range(out.size):
        square = out[i]
        for q in range(starts[i], starts[i + 1]):
            square += values[q] * values[q]
        out[i] = square
    return out


@numba.njit(cache=True, nogil=True)
def _compress(X: Any) -> Any:  # pragma: no cover - compiled
    """Values, columns (int32) and starts (int64) of the nonzeros of dense rows, shape (n, d)."""
    starts = np.zeros(X.shape[0] + 1, np.int64)
    for i in range(X.shape[0]):
        count = 0
        for c in range(X.shape[1]):
            count += X[i, c] != 0
        starts[i + 1] = starts[i] + count
    values, columns = np.empty(starts[-1], X.dtype), np.empty(starts[-1], np.int32)
    q = 0
    for i in range(X.shape[0]):
        for c in range(X.shape[1]):
            if X[i, c] != 0:
                values[q], columns[q] = X[i, c], c
                q += 1
    return values, columns, starts
