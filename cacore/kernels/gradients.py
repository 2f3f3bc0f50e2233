"""Gradients of a kernel expansion f(x) = sum_j c_j k(x, z_j), and sums of their outer products.

With k = f(t): grad f(x) = sum_j c_j f'(t_j) z_j for t = x.z, sum_j 2 c_j f'(t_j) (x - z_j) for t = |x-z|^2, and
sum_j c_j f'(t_j) sign(x - z_j) for t = |x-z|_1. With k the product over the features l of g(|x_l - z_l|), the l-th
derivative is sum_j c_j k(x, z_j) (log g)'(|x_l - z_jl|) sign(x_l - z_jl).
"""

from __future__ import annotations

from collections.abc import Iterator

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.arrays import Doubles, Reals
from cacore.data.rows import Rows, dense
from cacore.kernels.registry import FEATURES, L1, SQUARED
from cacore.kernels.values import Kernel
from cacore.machine.threads import blocks, rows_in

_BYTES = 1 << 23  # memory per thread for the values of pairs of rows


def gradients(kernel: Kernel, X: Rows, Z: Rows, coefficients: Reals) -> Iterator[NDArray[np.float64]]:
    """Gradients of k kernel expansions at the rows of `X`, one block of rows at a time, in the calling thread.

    Parameters
    ----------
    kernel : Kernel
    X : ndarray or CSR, shape (n, d)
    Z : ndarray or CSR, shape (m, d)
    coefficients : ndarray, shape (k, m)
        One expansion per row.

    Yields
    ------
    ndarray of float64, shape (rows of the block, d)
        For every block of rows, k arrays in turn, one per expansion.

    Notes
    -----
    n m (k + 1) d products and sums, and n m derivatives (n m k d for a product over the features), in double precision.
    If the derivative is infinite at distance 0 (`laplacian`), a row of `Z` equal to a row of `X` adds nothing to its
    gradient; likewise for `l1` and `wendland0_product`, because sign(0) = 0.
    """
    c = np.asarray(coefficients, np.float64)
    Z_points = kernel.points(Z.astype(np.float64))
    of, step = kernel.declared.of, rows_in(_BYTES, max(Z.shape))
    whole = dense(Z_points.X) if of in (L1, FEATURES) else np.zeros((0, 0))
    for lo, hi in blocks(X.shape[0], step):
        rows = kernel.points(X[lo:hi].astype(np.float64), like=Z_points)
        t = kernel.arguments(rows, Z_points)
        slopes = t if of == FEATURES else kernel.derivative(t)
        for expansion in c:
            W = slopes * expansion
            if of == L1:
                out = np.zeros((hi - lo, X.shape[1]))
                _signs(dense(rows.X), whole, W, out)
            elif of == FEATURES:
                columns = zip(dense(rows.X).T, whole.T, strict=True)
                out = np.stack([np.einsum("ij,ij->i", W, slope(kernel, x, z)) for x, z in columns], axis=1)
            elif of == SQUARED:
                out = 2.0 * (W.sum(axis=1)[:, None] * dense(rows.X) - W @ Z_points.X)
            else:
                out = np.asarray(W @ Z_points.X)
            yield out


def slope(kernel: Kernel, x: Reals, z: Reals) -> NDArray[np.float64]:
    """Derivatives by x of log g(|x - z|), a factor of a product over the features, for all pairs, shape (n, m)."""
    gaps = np.asarray(x, np.float64)[:, None] - z
    return np.asarray(np.sign(gaps) * kernel.derivative(np.abs(gaps)))


def stacked(kernel: Kernel, X: Rows, Z: Rows, coefficients: Reals) -> NDArray[np.float64]:
    """Gradients of all expansions at all rows, shape (k, n, d); see :func:`gradients`."""
    k = len(coefficients)
    blocks_of_rows = list(gradients(kernel, X, Z, coefficients))
    return np.stack([np.concatenate(blocks_of_rows[i::k]) for i in range(k)])


def moments(
    kernel: Kernel, X: Rows, Z: Rows, coefficients: Reals, diagonal: bool, base: Reals | None = None
) -> NDArray[np.float64]:
    """Sum of grad f grad f^T over all rows of `X` and all expansions, shape (d, d), or its diagonal, shape (d,).

    Takes the arguments of :func:`gradients`; `base`, shape (k, n, d), is added to the gradients. Runs in the calling
    thread.
    """
    d, k, at = X.shape[1], len(coefficients), 0
    total = np.zeros(d if diagonal else (d, d))
    for i, G in enumerate(gradients(kernel, X, Z, coefficients)):
        if base is not None:
            G = G + base[i % k, at : at + len(G)]
        total += np.einsum("ij,ij->j", G, G) if diagonal else G.T @ G
        at += len(G) if i % k == k - 1 else 0
    return total


@numba.njit(cache=True, nogil=True)
def _signs(A: Doubles, B: Doubles, W: Doubles, out: Doubles) -> None:  # pragma: no cover - compiled
    """``out[i] += sum_j W[i, j] sign(A[i] - B[j])`` for float64 arrays of shape (n, d), (m, d), (n, m) and (n, d)."""
    for i in range(A.shape[0]):
        for j in range(B.shape[0]):
            w = W[i, j]
            for k in range(A.shape[1]):
                gap = A[i, k] - B[j, k]
                out[i, k] += w if gap > 0.0 else (-w if gap < 0.0 else 0.0)
