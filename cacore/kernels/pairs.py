"""Inner products or l1 distances of all pairs of rows, the argument of the kernel function; or products of factors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows, dense, is_sparse
from cacore.data.sparse import CSR
from cacore.kernels.evaluate import FACTORS, NONZEROS, PRODUCTS
from cacore.kernels.sums import GROUP, meet, pack, room, width
from cacore.kernels.wide import Arranged, Features, Wide
from cacore.machine.threads import blocks

if TYPE_CHECKING:
    from cacore.arrays import Ints, Reals
    from cacore.kernels.evaluate import Parameters

_FIRST = 1 << 15  # bytes of packed rows that fit in the L1 cache
_COLUMNS, _ROWS = 1024, 4096  # CSR rows of `A` and of `B` per block
_FEATURES = 4096  # features of CSR rows that are dense at a time


def compare(kernel: Parameters, A: Rows, B: Rows, out: NDArray[np.floating]) -> None:
    """Write what the kernel's measure says of all pairs of rows to `out`, in the calling thread.

    That is inner products, ``A @ B.T``, l1 distances, ``-|x-z|^2 / 2``, or the kernel values of a product over the
    features.

    Parameters
    ----------
    kernel : tuple
        From :meth:`cacore.kernels.Kernel.parameters` for the dtype of `out`; its measure is PRODUCTS, WHOLE, FACTORS or
        DIFFERENCES.
    A, B : ndarray or CSR, shape (m, d), (n, d)
    out : ndarray, shape (m, n)
        Rows contiguous; it may be a slice of a larger matrix.

    Notes
    -----
    2 m n d flops for dense rows, 3 m n d for distances; for CSR rows see :class:`cacore.kernels.wide.Wide`. Extra
    memory: a copy of a block of rows if both sides are CSR; a copy of the dense side if one is; dense copies for l1
    distances and for factors. These take all features that are not 0 in all CSR rows.
    """
    measure = kernel[4]
    if measure == FACTORS and is_sparse(A) and is_sparse(B):
        _sparse_factors(kernel, A, B, out)
    elif is_sparse(A) and is_sparse(B):
        _sparse(measure, A, B, out)
    elif measure == PRODUCTS and is_sparse(A):
        out[...] = A @ np.ascontiguousarray(dense(B).T)
    elif measure == PRODUCTS and is_sparse(B):
        out[...] = (B @ np.ascontiguousarray(dense(A).T)).T
    elif measure == PRODUCTS:
        np.matmul(dense(A), dense(B).T, out=out)
    elif out.size:
        A, B = (np.ascontiguousarray(dense(rows), out.dtype) for rows in (A, B))
        d, W = A.shape[1], width(out.dtype)
        panels = min(GROUP, max(1, _FIRST // (d * W * out.itemsize)), -(-len(B) // W))
        _meet_all(A, B, np.arange(d, dtype=np.int32), kernel, *flat(out), room((panels, d, W), out.dtype))


def _sparse(measure: int, A: CSR, B: CSR, out: NDArray[np.floating]) -> None:
    """:func:`compare` for CSR rows: blocks of `A` are the columns, and all rows of `B` meet each block."""
    measure = PRODUCTS if measure == PRODUCTS else NONZEROS
    for lo, hi in blocks(A.shape[0], _COLUMNS):
        some, (part, ld) = A[lo:hi], flat(out[lo:hi])
        features = Features.of(some)
        columns = Wide(some, features, out.dtype, measure=measure)
        for first, last in blocks(B.shape[0], _ROWS):
            rows = Arranged.of(B, features, out.dtype, np.arange(first, last), measure)
            columns.compare(rows, part, ld, first)


def _sparse_factors(kernel: Parameters, A: CSR, B: CSR, out: NDArray[np.floating]) -> None:
    """:func:`compare` for CSR rows and a product over the features: of those that are not all 0, some at a time."""
    present = np.unique(np.concatenate([A.indices, B.indices]))
    out[...] = 1.0
    for lo, hi in blocks(len(present), _FEATURES):
        some, part = present[lo:hi], np.empty_like(out)
        compare(kernel, dense(A[:, some]), dense(B[:, some]), part)
        out *= part


def flat(G: NDArray[np.floating]) -> tuple[NDArray[np.floating], int]:
    """A block as one vector, and its row stride: numba vectorises only arrays that it knows to be contiguous."""
    ld = G.strides[0] // G.itemsize
    span = (G.shape[0] - 1) * ld + G.shape[1] if G.size else 0
    return np.lib.stride_tricks.as_strided(G, (span,), (G.itemsize,)), ld


@numba.njit(cache=True, nogil=True)
def _meet_all(
    A: Reals, B: Reals, columns: Ints, kernel: Parameters, G: Reals, ld: int, data: Reals
) -> None:  # pragma: no cover - compiled
    """Write l1 distances, or products of factors, of dense rows, (m, d) and (n, d), to `G`, 1-D, with rows `ld` apart.

    Rows of B are packed in `data`, shape (panels, d, width), which stays in cache while all rows of A meet it.
    `columns` holds the int32 numbers 0 to d - 1.
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
                    meet(row, columns, 0, d, data[p], G[here : here + W], kernel)
                else:
                    meet(row, columns, 0, d, data[p], line, kernel)
                    for k in range(left):
                        G[here + k] = line[k]
