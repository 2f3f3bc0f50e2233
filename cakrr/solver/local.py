"""Local solver: kernel ridge regression on one part's rows, for many sigmas and lambdas in a single m x m matrix.

To solve systems on another device, write a class with the methods of the interface in one new module and return it from
:func:`ridge_system`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike, NDArray

from cacore.data.rows import Rows
from cacore.kernels import Kernel, Points
from cacore.linalg import lapack
from cacore.machine import threads
from cakrr.solver.band import Band
from partition.redistribute import Parts

Vector = NDArray[np.float64]
Solved = NDArray[np.bool_]


class RidgeSystem(Protocol):
    """``(K + lambda m I) alpha = y`` (eq. 3.6) on the m rows of one part, for any sigma, lambda and targets.

    Attributes
    ----------
    rows : ndarray or CSR, shape (m, d)
    points : Points
        The rows, ready for their kernel.
    scale : ndarray of float64, shape (m,)
        sqrt(w / mean(w)) for sample weights w; otherwise 1.
    """

    rows: Rows
    points: Points
    scale: Vector

    def solve(
        self, kernel: Kernel, lams: tuple[float, ...], Y: NDArray[np.floating]
    ) -> tuple[NDArray[np.floating], Solved]:
        """Solve for L lambdas and k rows of centred targets `Y`, shape (k, m).

        Returns the alphas, shape (L, k, m), in the dtype of the rows, and a mask of the lambdas that are solved. Alphas
        are NaN if K + lambda m I is not numerically positive definite.
        """

    def factor(self, kernel: Kernel, lam: float) -> bool:
        """Factor the matrix of this kernel and lambda; return True if it is positive definite."""

    def apply_inverse(self, r: NDArray[np.floating]) -> None:
        """Overwrite each row of `r` by the solution with the matrix that was last factored."""

    def left_out(self, kernel: Kernel, lams: tuple[float, ...], Y: NDArray[np.floating]) -> tuple[Vector, Solved]:
        """Leave-one-out errors, shape (L, k, m), for targets `Y`, shape (k, m), and a mask of the lambdas solved."""


def ridge_system(
    rows: Rows, workspace: Workspace, kernel: Kernel, weights: NDArray[np.floating] | None = None, grid: bool = False
) -> RidgeSystem:
    """Create the system of a part; the arguments are those of :class:`PartSystem`."""
    return PartSystem(rows, workspace, kernel, weights, grid)


T = TypeVar("T")

SMALL = 32 << 20  # bytes of all threads' matrices up to which each thread factors its own

BAND_FROM = 6  # lambdas from which one band reduction beats a factorisation per lambda (`benchmarks.krr_grid`)
EIGEN_BYTES = 1 << 29
EIGEN_FROM = 12  # lambdas from which one eigendecomposition is cheaper for leave-one-out errors


def longest(squares: NDArray[np.floating]) -> NDArray[np.int64]:
    """Indices of the 16 rows with the largest squared norms: rounding affects their equations most."""
    return np.argsort(-squares, kind="stable")[:16]


def credible(residual: NDArray[np.floating], limits: NDArray[np.floating]) -> bool:
    """True if the mean squared residuals are at most `limits`, the largest squared residual of alpha = 0.

    If lambda is lost in kernel values of 1e80, say, a matrix of mere rounding errors may still have a Cholesky factor.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return bool((np.square(residual).mean(axis=0) <= limits).all())


class Workspace(threading.local):
    """The single m x m matrix of a rank, reused for every part and every grid point.

    Small matrices are factored one per thread, and each thread has its own matrix then. This is faster than factoring
    one matrix after the other on all threads (1.5 times at m = 1,152 on 2 cores).

    Parameters
    ----------
    rows : int
        Rows of the largest part; the workspace grows if a larger part follows.
    dtype : dtype
    limit : int
        Memory limit of this rank, in bytes.
    """

    def __init__(self, rows: int, dtype: DTypeLike, limit: int = 1 << 62) -> None:
        self.rows, self.dtype, self.limit = rows, np.dtype(dtype), limit
        self._buffer = np.empty(0, dtype)

    def matrix(self, m: int) -> NDArray[np.floating]:
        """An m x m matrix in this thread's memory, not initialised."""
        if self._buffer.size < m * m:  # on first use, or if a learned metric has made a larger part
            self.rows, self._buffer = max(self.rows, m), np.empty(0, self.dtype)
            self._buffer = np.empty(self.rows * self.rows, self.dtype)
        return self._buffer[: m * m].reshape(m, m)

    def one_a_thread(self, m: int) -> bool:
        """True if one m x m matrix per thread takes at most 32 MiB in total."""
        return bool(threads.current() * m * m * self.dtype.itemsize <= SMALL)

    def over_parts(
        self, work: Callable[[int, slice], T], parts: Parts, take: Callable[[int, slice, T], object]
    ) -> None:
        """Call ``take(part, rows, work(part, rows))`` for each part: large ones on all threads, small ones in parallel.

        Parts come in order of decreasing size, so that the threads finish at about the same time.
        """
        tasks = sorted(parts, key=lambda task: (task[1].start - task[1].stop, task[0]))
        large = [task for task in tasks if not self.one_a_thread(task[1].stop - task[1].start)]
        for group, parallel in ((large, False), (tasks[len(large) :], True)):
            with threads.in_order(work, group, parallel) as results:
                for (part, rows), result in zip(group, results, strict=True):
                    take(part, rows, result)


class PartSystem:
    """``(K + lambda m I) alpha = y`` (eq. 3.6) on the rows of one part, for any sigma, lambda and targets.

    Parameters
    ----------
    rows : ndarray or CSR, shape (m, d)
        Rows of the part.
    workspace : Workspace
        Workspace for at least m rows, in the dtype of `rows`. This thread must not use it for anything else meanwhile.
    kernel : Kernel
        The kernel of the system, or the one whose values rounding of the rows changes most.
    weights : ndarray, shape (m,), optional
        Positive sample weights w: the matrix is then K + lambda sum(w) diag(1/w).
    grid : bool
        True if several (sigma, lambda) pairs will be tried. Inner products are then computed once and kept in the
        triangle that no factorisation uses, without extra memory.
    """

    def __init__(
        self, rows: Rows, workspace: Workspace, kernel: Kernel, weights: NDArray[np.floating] | None = None,
        grid: bool = False,
    ) -> None:  # fmt: skip
        self.rows, self.points = rows, kernel.points(rows)
        self.grid = grid
        self.K = workspace.matrix(len(self.points))
        w = np.ones(len(self.points)) if weights is None else np.asarray(weights, np.float64)
        self.weighted = weights is not None
        self.scale = np.sqrt(w / w.mean())  # 1/scale^2 is sum(w)/w/m
        if grid:
            kernel.compare(self.points, self.K)

    def _form(self, kernel: Kernel) -> None:
        if self.grid:
            kernel.gram_from(self.K, self.points)
        else:
            kernel.gram(self.points, self.K)

    def _form_scaled(self, kernel: Kernel) -> None:
        """Form ``S K S`` with S = diag(scale), to which every lambda adds a multiple of the identity."""
        self._form(kernel)
        if self.weighted:
            s = self.scale.astype(self.K.dtype)
            for i in range(len(s)):
                self.K[i, : i + 1] *= s[i] * s[: i + 1]

    def solve(
        self, kernel: Kernel, lams: tuple[float, ...], Y: NDArray[np.floating]
    ) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
        """See :meth:`RidgeSystem.solve`.

        m^2 d flops for K. Fewer than `BAND_FROM` lambdas take m^3/3 flops each, by Cholesky; more take 4/3 m^3 flops in
        total (:mod:`cakrr.solver.band`). No memory besides the workspace.
        """
        m, dtype = len(self.points), self.K.dtype
        Y = np.ascontiguousarray(Y)
        if len(lams) >= BAND_FROM and m > 2:
            self._form_scaled(kernel)
            solutions, solved = Band(self.K).solve(Y * self.scale, np.array(lams) * m)
            solutions *= self.scale
            with np.errstate(over="ignore"):
                alphas = solutions.astype(dtype, copy=False)
        else:
            alphas, solved = np.full((len(lams), len(Y), m), np.nan, dtype), np.zeros(len(lams), np.bool_)
            for i, lam in enumerate(lams):
                if self.factor(kernel, lam):
                    alphas[i], solved[i] = Y, True
                    self.apply_inverse(alphas[i])
        solved &= np.isfinite(alphas).all(axis=(1, 2))
        with np.errstate(over="ignore"):
            limits = np.square(Y).max(axis=1)
        for i, lam in enumerate(lams):
            solved[i] = solved[i] and self._is_credible(kernel, lam, alphas[i], Y, limits)
        return alphas, solved

    def _is_credible(
        self, kernel: Kernel, lam: float, alpha: NDArray[np.floating], Y: NDArray[np.floating],
        limits: NDArray[np.floating],
    ) -> bool:  # fmt: skip
        m = len(self.points)
        longest_rows = longest(self.points.squares)
        ridge = lam * m / self.scale[longest_rows] ** 2
        with threads.one_blas_thread():  # numpy's BLAS threads would compete with LAPACK's, which still spin
            products = kernel.block(self.points[longest_rows], self.points) @ alpha.T
        return credible(products + ridge[:, None] * alpha[:, longest_rows].T - Y[:, longest_rows].T, limits)

    def factor(self, kernel: Kernel, lam: float) -> bool:
        """Factor ``K + lambda m I`` in the workspace by Cholesky; return True if it is positive definite."""
        self._form(kernel)
        self.K.reshape(-1)[:: len(self.K) + 1] += (lam * len(self.K) / self.scale**2).astype(self.K.dtype)
        return lapack.cholesky(self.K) == 0

    def apply_inverse(self, r: NDArray[np.floating]) -> None:
        """Solve in place for each row of `r` with the factor in the workspace; 2 m^2 flops per row."""
        lapack.cholesky_solve(self.K, r)

    def left_out(
        self, kernel: Kernel, lams: tuple[float, ...], Y: NDArray[np.floating]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Leave-one-out errors in closed form: the model without row i has the error alpha_i / (G^-1)_ii at row i.

        See :meth:`RidgeSystem.left_out`. G = K + lambda m I, and the model without row i keeps the
        ridge lambda m (Wahba, 1990, for smoothing splines; Rifkin and Lippert, 2007, for this case).

        2/3 m^3 flops per lambda, by Cholesky. From `EIGEN_FROM` lambdas on, one eigendecomposition for all of them,
        which costs about 25 factorisations, if its five matrices take at most `EIGEN_BYTES`.
        """
        m = len(self.points)
        errors, solved = np.full((len(lams), len(Y), m), np.nan), np.zeros(len(lams), np.bool_)
        if len(lams) >= EIGEN_FROM and 5 * m * m * self.K.itemsize <= EIGEN_BYTES:
            self._form_scaled(kernel)
            driver = "evd" if m > 1 else "ev"  # scipy 1.12 gives evd too little memory for one row
            values, V = scipy.linalg.eigh(self.K, lower=True, driver=driver, check_finite=False)
            inverse = 1.0 / (values.astype(np.float64) + np.array(lams)[:, None] * m)  # (L, m)
            solved = (inverse > 0).all(axis=1)
            diagonal = self.scale * (inverse @ np.square(V).T)
            for k, y in enumerate(Y):
                errors[:, k] = (inverse * (V.T @ (self.scale * y))) @ V.T / diagonal
        else:
            for i, lam in enumerate(lams):
                solved[i] = self.factor(kernel, lam)
                if solved[i]:
                    alphas = np.array(Y, self.K.dtype, order="C")
                    self.apply_inverse(alphas)
                    errors[i] = alphas / lapack.inverse_diagonal(self.K)
        solved &= np.isfinite(errors).all(axis=(1, 2))
        errors[~solved] = np.nan
        return errors, solved
