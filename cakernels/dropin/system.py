"""Kernel matrices, predictions and the system of scikit-learn's KernelRidge, solved in place.

Imported when the first call of KernelRidge is taken over.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from cacore.data.rows import Rows, check_range
from cacore.kernels import Kernel, Points
from cacore.linalg import lapack
from cacore.machine.threads import blocks, for_blocks
from cakernels.dropin.calls import UnsuitedError

Array = NDArray[np.floating]

_ROWS = 256  # rows changed together


class System:
    """``(K + alpha I) c = y`` for each target, weighted as scikit-learn does.

    Parameters
    ----------
    K : ndarray, shape (n, n)
        Overwritten, unless `copy`.
    y : ndarray, shape (n, t)
    alpha : ndarray, shape (1,) or (t,)
    sample_weight : float, ndarray of shape (n,), or None
    copy : bool
    """

    def __init__(self, K: Array, y: Array, alpha: ArrayLike, sample_weight: float | Array | None, copy: bool) -> None:
        self.K, self.y, self.alpha, self.copy = K, y, np.atleast_1d(alpha), copy
        self.weights = sample_weight
        self.root: Array | None = None  # root of the weights, once K and y are multiplied by it

    def solve(self) -> Array:
        """Coefficients by Cholesky, shape (n, t).

        n^3/3 flops per different alpha, in the lower triangle of K; the upper one keeps K. No further n x n memory, if
        y has the type of K.

        Raises
        ------
        UnsuitedError
            For types that LAPACK does not have, and for a matrix that is singular to rounding; :meth:`solve_there` has
            the warnings that belong to it.
        """
        n, t = self.y.shape
        dtype = np.result_type(self.K.dtype, self.y.dtype, np.float32)
        if dtype not in (np.float32, np.float64):
            raise UnsuitedError(f"numbers of type {dtype}")
        if len(self.alpha) not in (1, t):
            raise UnsuitedError(f"{len(self.alpha)} alphas for {t} targets")
        returned_dtype = self.K.dtype if (self.alpha != self.alpha[0]).any() else dtype  # as scikit-learn returns them
        self.K = np.array(self.K, dtype, order="C") if self.copy else np.ascontiguousarray(self.K, dtype)
        self.copy = False
        self._weight()
        diagonal, solutions = self.K.diagonal().copy(), np.empty((t, n), dtype)
        for number, value in enumerate(np.unique(self.alpha)):
            if number:
                self._restore(diagonal)
            targets = np.flatnonzero(np.broadcast_to(self.alpha, t) == value)
            right = np.ascontiguousarray(self.y.T[targets], dtype)
            try:
                solved = self._factored(diagonal + value, right)
            except BaseException:
                self._restore(diagonal)
                raise
            if not solved:
                self._restore(diagonal)
                raise UnsuitedError("the matrix is singular to rounding")
            solutions[targets] = right
        return np.ascontiguousarray((solutions if self.root is None else solutions * self.root).T, returned_dtype)

    def solve_there(self, original: Callable[..., Array]) -> Array:
        """Coefficients by scikit-learn's function, from here on."""
        if self.root is None:
            return original(self.K, self.y, self.alpha, self.weights, self.copy)
        return original(self.K, self.y, self.alpha) * self.root[:, None]

    def _weight(self) -> None:
        """Multiply K and y by the roots of the weights."""
        if not isinstance(self.weights, np.ndarray) and self.weights in (1.0, None):
            return
        n = len(self.K)
        root = np.broadcast_to(np.sqrt(np.atleast_1d(self.weights)), n)
        y, product = self.y * root[:, None], np.empty((min(n, _ROWS), n), self.K.dtype)
        for lo, hi in blocks(n, _ROWS):  # from here on nothing is allocated, so that all of K is weighted, or nothing
            np.multiply(root[lo:hi, None], root, out=product[: hi - lo], casting="same_kind")
            self.K[lo:hi] *= product[: hi - lo]
        self.y, self.root = y, root

    def _factored(self, diagonal: Array, right: Array) -> bool:
        """Solve in place for the rows `right`; False if the matrix is not positive definite, or nearly singular."""
        K = self.K
        np.fill_diagonal(K, diagonal)
        norm = max(float(np.abs(K[lo:hi]).sum(axis=1).max()) for lo, hi in blocks(len(K), _ROWS))
        if lapack.cholesky(K):
            return False
        (condition,) = scipy.linalg.get_lapack_funcs(("pocon",), (K,))
        # LAPACK stores by columns: its upper triangle is the lower one here. K.T is not copied.
        reciprocal, info = condition(K.T, norm, uplo="U")
        if info or not reciprocal >= np.finfo(K.dtype).eps:
            return False
        lapack.cholesky_solve(K, right)
        return bool(np.isfinite(right).all())

    def _restore(self, diagonal: Array) -> None:
        """Write the upper triangle to the lower one, which a factorisation has overwritten."""
        K = self.K
        np.fill_diagonal(K, diagonal)
        for lo, hi in blocks(len(K), _ROWS):
            K[hi:, lo:hi] = K[lo:hi, hi:].T
            corner = K[lo:hi, lo:hi]
            corner[...] = np.triu(corner) + np.triu(corner, 1).T


_STEP = 1 << 21  # kernel values per task


def kernel_matrix(
    X: Rows, Y: Rows | None, name: str, gamma: float, degree: int, coef0: float, *, single: bool
) -> Array:
    """Kernel values of the rows of `X` with those of `Y`, or with themselves, shape (n, m), in double precision.

    2 n m d flops, on all threads. If `single`, each block of values is rounded to float32.
    """
    kernel = Kernel(name, gamma, degree, coef0)
    columns = kernel.points(_rows(X if Y is None else Y))
    rows = columns if Y is None else kernel.points(_rows(X), columns)
    K = np.empty((len(rows), len(columns)), np.float32 if single else np.float64)

    def block(lo: int, hi: int) -> None:
        K[lo:hi] = kernel.block(rows[lo:hi], columns)

    _by_blocks(block, rows, columns)
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
    columns = kernel.points(_rows(train))
    rows = kernel.points(_rows(X), columns)
    kernel_dtype = np.float32 if single else np.float64
    out = np.empty((len(rows), *coefficients.shape[1:]), np.result_type(kernel_dtype, coefficients.dtype))

    def block(lo: int, hi: int) -> None:
        K = kernel.block(rows[lo:hi], columns)
        out[lo:hi] = K @ coefficients

    _by_blocks(block, rows, columns)
    return out


def _rows(X: Rows) -> Rows:
    """The rows in double precision, dense or CSR."""
    rows: Rows = sp.csr_matrix(X, dtype=np.float64) if sp.issparse(X) else np.asarray(X, np.float64)
    check_range(rows)
    return rows


def _by_blocks(work: Callable[[int, int], None], rows: Points, columns: Points) -> None:
    """Call `work` for blocks of rows on all threads."""
    for_blocks(work, blocks(len(rows), max(64, _STEP // max(1, len(columns)))))
