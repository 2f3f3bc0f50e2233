"""Kernel matrices and predictions of KernelRidge; imported when the first is taken over."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cacore.data.rows import Rows, check_range
from cacore.kernels import Kernel, Points
from cacore.machine.threads import blocks, for_blocks
from cakernels.dropin.ledger import UnsuitedError

Array = NDArray[np.floating]

_STEP = 1 << 21  # kernel values per task


def kernel_matrix(
    X: Rows, Y: Rows | None, name: str, gamma: float, degree: int, coef0: float, *, single: bool
) -> Array:
    """Kernel values of the rows of `X` with those of `Y`, or with themselves, shape (n, m), in double precision.

    2 n m d flops, on all threads. If `single`, each block of values is rounded to float32.
    """
    kernel = Kernel(name, gamma, degree, coef0)
    other = kernel.points(_rows(X if Y is None else Y))
    rows = other if Y is None else kernel.points(_rows(X), other)
    K = np.empty((len(rows), len(other)), np.float32 if single else np.float64)

    def block(lo: int, hi: int) -> None:
        K[lo:hi] = kernel.block(rows[lo:hi], other)

    _by_blocks(block, rows, other)
    if Y is None and kernel.of_distance:
        np.fill_diagonal(K, 1.0)
    if not np.isfinite(K.sum()) and not np.isfinite(K).all():
        raise UnsuitedError("kernel values that are not finite")
    return K


def predictions(
    X: Rows, train: Rows, name: str, gamma: float, degree: int, coef0: float, coefficients: Array, single: bool
) -> Array:
    """``K(X, train) @ coefficients`` by blocks of rows; 2 n m (d + t) flops for t targets."""
    kernel = Kernel(name, gamma, degree, coef0)
    other = kernel.points(_rows(train))
    rows = kernel.points(_rows(X), other)
    kept = np.float32 if single else np.float64
    out = np.empty((len(rows), *coefficients.shape[1:]), np.result_type(kept, coefficients.dtype))

    def block(lo: int, hi: int) -> None:
        K = kernel.block(rows[lo:hi], other)
        out[lo:hi] = K @ coefficients

    _by_blocks(block, rows, other)
    return out


def _rows(X: Rows) -> Rows:
    """The rows in double precision, dense or CSR."""
    rows: Rows = sp.csr_matrix(X, dtype=np.float64) if sp.issparse(X) else np.asarray(X, np.float64)
    check_range(rows)
    return rows


def _by_blocks(work: Callable[[int, int], None], rows: Points, other: Points) -> None:
    """Call `work` for blocks of rows on all threads."""
    for_blocks(work, blocks(len(rows), max(64, _STEP // max(1, len(other)))))
