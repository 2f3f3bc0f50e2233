"""What a kernel is a function of, for all pairs of rows: inner products, or l1 distances."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cacore.data.rows import Rows, dense
from cacore.kernels.sums import GROUP, PRODUCTS, WHOLE, meet, pack, room, width

_FIRST = 1 << 15  # bytes of packed rows that stay in the first cache


def compare(measure: int, A: Rows, B: Rows, out: NDArray[Any]) -> None:
    """Inner products, ``A @ B.T``, or l1 distances of all rows of `A` and `B` into `out`, in the calling thread.

    Parameters
    ----------
    measure : {PRODUCTS, WHOLE}
    A, B : ndarray or CSR, shape (m, d), (n, d)
    out : ndarray, shape (m, n)
        Rows contiguous; it may be a slice of a larger matrix.

    Notes
    -----
    2 m n d flops, or 3 m n d for distances, of dense rows; of CSR rows m n times the nonzeros of a row of `B`.
    """
    if sp.issparse(A) and sp.issparse(B):
        if measure != PRODUCTS:
            A, B = _summed(A), _summed(B)
        row = np.zeros(A.shape[1], out.dtype)
        sparse(measure, A.data, A.indices, A.indptr, B.data, B.indices, B.indptr, out, row)
    elif measure == PRODUCTS:
        np.matmul(dense(A), dense(B).T, out=out)
    elif out.size:
        A, B = (np.ascontiguousarray(dense(rows), out.dtype) for rows in (A, B))
        d, W = A.shape[1], width(out.dtype)
        panels = min(GROUP, max(1, _FIRST // (d * W * out.itemsize)), -(-len(B) // W))
        _distances(A, B, np.arange(d, dtype=np.int32), *flat(out), room((panels, d, W), out.dtype))


def _summed(X: Rows) -> Rows:
    """CSR rows with each feature once, in ascending order."""
    if X.has_canonical_format:
        return X
    X = X.copy()
    X.sum_duplicates()
    return X


def flat(G: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """A block as one vector, and its row stride: numba vectorises only what it knows is contiguous."""
    ld = G.strides[0] // G.itemsize
    span = (G.shape[0] - 1) * ld + G.shape[1] if G.size else 0
    return np.lib.stride_tricks.as_strided(G, (span,), (G.itemsize,)), ld


@numba.njit(cache=True, nogil=True)
def sparse(
    measure: Any, a: Any, a_index: Any, a_ptr: Any, b: Any, b_index: Any, b_ptr: Any, out: Any, row: Any
) -> None:  # pragma: no cover - compiled
    """Inner products, or l1 distances unless `measure` is PRODUCTS, of CSR rows A and B into `out`, (len(A), len(B)).

    One row of A at a time is spread out into `row`, shape (d,), all zero before and after; then it meets the nonzeros
    of every row of B. All floats are of one type, indices and starts int32 or int64. For distances each feature of a
    row is there once, and |x|_1 is added last: rows whose features are in the same order are at distance 0 if equal.
    """
    zero = row[0] * 0
    for i in range(out.shape[0]):
        norm = zero
        for p in range(a_ptr[i], a_ptr[i + 1]):
            row[a_index[p]] += a[p]
            norm += abs(a[p])
        for j in range(out.shape[1]):
            total = zero
            if measure == PRODUCTS:
                for q in range(b_ptr[j], b_ptr[j + 1]):
                    total += b[q] * row[b_index[q]]
            else:
                for q in range(b_ptr[j], b_ptr[j + 1]):
                    x = row[b_index[q]]
                    total += abs(b[q] - x) - abs(x)
                total = max(zero, total + norm)
            out[i, j] = total
        for p in range(a_ptr[i], a_ptr[i + 1]):
            row[a_index[p]] = 0


@numba.njit(cache=True, nogil=True)
def _distances(A: Any, B: Any, columns: Any, G: Any, ld: Any, data: Any) -> None:  # pragma: no cover - compiled
    """l1 distances of dense rows of one type, shape (m, d) and (n, d), into `G`, 1-D, whose rows begin `ld` apart.

    Rows of B are packed in `data`, shape (panels, d, width), where they stay in cache while all rows of A meet them.
    `columns` has the numbers 0 to d - 1, int32.
    """
    (m, d), n, W = A.shape, B.shape[0], data.shape[2]
    line = np.empty(W, A.dtype)
    for at in range(0, n, data.shape[0] * W):
        count = min(data.shape[0] * W, n - at)
        panels = -(-count // W)
        pack(B[at : at + count], data[:panels])
        for i in range(m):
            row = A[i]
            for p in range(panels):
                here, left = i * ld + at + p * W, count - p * W
                if left >= W:
                    meet(row, columns, 0, d, data[p], G[here : here + W], WHOLE)
                else:
                    meet(row, columns, 0, d, data[p], line, WHOLE)
                    for k in range(left):
                        G[here + k] = line[k]
