"""Local solver: kernel ridge regression on one part's rows, for many sigmas and lambdas in a single m x m matrix.

With many lambdas, K is reduced to band form, K = Q B Q^T (:class:`Band`). Each lambda then costs only O(m w^2) for a
band of width w. Reducing K to tridiagonal form would spend half of its 4/3 m^3 flops in matrix-vector products, which
are limited by memory bandwidth: at m = 6,000 it takes as long as 11 Cholesky factorisations. Reducing K to a band uses
matrix-matrix products only (the first stage of LAPACK's two-stage reduction: Dongarra, Hammarling and Sorensen, 1989).
Shifting the band, factoring it and solving with it is so cheap that the second stage is not needed.

To solve systems on another device, write a class with the methods of the interface in one new module and return it from
:func:`ridge_system`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

import numba
import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike, NDArray

from cacore.arrays import Doubles, Flags
from cacore.data.rows import Rows
from cacore.kernels import Kernel, Points
from cacore.linalg import lapack
from cacore.linalg.lapack import at, call
from cacore.machine import threads
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

# Bytes of a matrix up to which each thread factors its own (see :class:`Workspace`), and the share of the memory limit
# that all of these may take. Measured on two threads; with more of them a BLAS loses more to waiting.
SMALL, SHARE = 16 << 20, 0.125
# Lambdas from which one band reduction is faster than a factorisation per lambda: 4 by flops, 6 by time. 50 lambdas and
# 10 sigmas take an eighth of the time (`python -m benchmarks.krr_grid`, docs/benchmarks.md).
BAND_FROM = 6
# Lambdas from which one eigendecomposition is cheaper for leave-one-out errors: it costs about 25 factorisations, the
# errors of one lambda 2. Its five matrices are beside the workspace, so their size is bounded.
EIGEN_FROM, EIGEN_BYTES = 12, 1 << 29

TILE = 320  # rows per tile: 800 kB in double precision, for the second-level cache (by size, not measured)
MANY, FEW, STEPS = 512, 64, 8  # right-hand sides from which Q is applied in blocks, rows per block, steps at a time
LANES = 8  # lambdas factored at once, one per SIMD lane


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
        """True if an m x m matrix is so small that each thread has one of its own."""
        size = m * m * self.dtype.itemsize
        return bool(size <= SMALL and threads.current() * size <= SHARE * self.limit)

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
        total (:class:`Band`). No memory besides the workspace.
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


class Band:
    """A symmetric matrix reduced to a band.

    Parameters
    ----------
    A : ndarray of float32 or float64, shape (m, m), C-contiguous
        The lower triangle is read and overwritten by the reflectors that form Q; do not change it while this object
        is in use. The strict upper triangle is neither read nor written.
    width : int, optional
        Number of diagonals below the main one.

    Notes
    -----
    The reduction takes 4/3 m^3 flops and a few m x `width` blocks of memory.
    """

    @np.errstate(invalid="ignore")  # kernel values may have overflowed: such systems have no solution
    def __init__(self, A: NDArray[np.floating], width: int | None = None) -> None:
        self.A, m = A, len(A)
        self.width = min(width or (32 if m < 1500 else 48), max(1, m - 1))
        self._T: list[NDArray[np.floating]] = []
        with threads.one_blas_thread():  # small products: threads go over tiles instead
            for k in range(0, m - self.width, self.width):
                self._step(k)
        self.diagonals = np.zeros((m, self.width + 1))
        for j in range(self.width + 1):
            self.diagonals[: m - j, j] = np.diagonal(A, -j)

    def _step(self, k: int) -> None:
        """Annihilate columns k to k + width below the band: QR of the panel, then update the trailing matrix."""
        A, w = self.A, self.width
        m, start = len(A), k + w
        r = m - start
        c = min(w, r)
        panel = np.ascontiguousarray(A[start:, k:start].T)  # Fortran order, for geqrt
        T, work = np.zeros((c, c), A.dtype), np.empty(c * w, A.dtype)
        call("geqrt", A.dtype, r, w, c, at(panel), r, at(T), c, at(work))
        A[start:, k:start] = panel.T
        self._T.append(np.ascontiguousarray(T.T))
        V = self._reflectors(k)
        Y = self._product(start, V @ self._T[-1])
        # A - V W^T - W V^T is (I - V T V^T)^T A (I - V T V^T).
        W = Y - V @ (0.5 * (T @ (V.T @ Y)))
        VW, WV = np.hstack([V, W]), np.hstack([W, V])

        def update(lo: int, hi: int) -> None:
            if lo:
                call(
                    "gemm", A.dtype, b"T", b"N", lo, hi - lo, 2 * c, -1.0, at(WV), 2 * c, at(VW, lo), 2 * c, 1.0,
                    at(A, start + lo, start), m,
                )  # fmt: skip
            corner = at(A, start + lo, start + lo)
            call("syr2k", A.dtype, b"U", b"T", hi - lo, c, -1.0, at(V, lo), c, at(W, lo), c, 1.0, corner, m)

        threads.for_blocks(update, threads.blocks(r, TILE)[::-1])

    def _reflectors(self, k: int) -> NDArray[np.floating]:
        """Reflectors V of the step at column k, read from the matrix; their unit diagonal is not stored."""
        start = k + self.width
        V = np.tril(self.A[start:, k:start], -1)[:, : len(self.A) - start]
        np.fill_diagonal(V, 1.0)
        return np.ascontiguousarray(V)

    def _product(self, start: int, V: NDArray[np.floating]) -> NDArray[np.floating]:
        """``A[start:, start:] @ V`` from the lower triangle: each tile is used twice, once transposed."""
        A, m = self.A, len(self.A)
        r, c = V.shape
        tiles = threads.blocks(r, TILE)
        strips = min(threads.current(), len(tiles))
        # One sum per strip, added up in order: the same bits however the threads are scheduled.
        sums = np.zeros((strips, r, c), A.dtype)

        def strip(s: int) -> None:
            out = sums[s]
            for lo, hi in tiles[s::strips]:
                row = at(A, start + lo, start)
                if lo:
                    call("gemm", A.dtype, b"N", b"N", c, hi - lo, lo, 1.0, at(V), c, row, m, 1.0, at(out, lo), c)
                    call("gemm", A.dtype, b"N", b"T", c, lo, hi - lo, 1.0, at(V, lo), c, row, m, 1.0, at(out), c)
                corner = at(A, start + lo, start + lo)
                call("symm", A.dtype, b"R", b"U", c, hi - lo, 1.0, corner, m, at(V, lo), c, 1.0, at(out, lo), c)

        threads.for_blocks(strip, [(s,) for s in range(strips)])
        return np.asarray(sums.sum(axis=0))

    def solve(
        self, Y: NDArray[np.floating], shifts: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Solve ``(A + shift I) x = y`` for every shift and every row y of `Y`.

        Parameters
        ----------
        Y : ndarray, shape (k, m)
        shifts : ndarray, shape (L,)

        Returns
        -------
        solutions : ndarray of float64, shape (L, k, m)
            NaN where A + shift I is not numerically positive definite.
        solved : ndarray of bool, shape (L,)
            True where A + shift I is positive definite.

        Notes
        -----
        m w^2 flops per shift, 4 m w flops per shift and right-hand side, and 2 m^2 flops to apply Q to each vector.
        Each thread needs memory for 8 m (w + 1) numbers.
        """
        k, m = Y.shape
        with threads.one_blas_thread():
            Z = self._applied(np.array(Y, np.float64), transposed=True)
        out, solved = np.empty((len(shifts), k, m)), np.zeros(len(shifts), np.bool_)

        def lanes(lo: int, hi: int) -> None:
            lane_shifts = np.full(LANES, shifts[lo])
            lane_shifts[: hi - lo] = shifts[lo:hi]
            factor, x = np.empty((m, self.width + 1, LANES)), np.empty((m, k, LANES))
            good = _solve_shifted(self.diagonals, lane_shifts, Z, factor, x)
            out[lo:hi], solved[lo:hi] = x.transpose(2, 1, 0)[: hi - lo], good[: hi - lo]

        threads.for_blocks(lanes, threads.blocks(len(shifts), LANES))
        with threads.one_blas_thread():
            self._applied(out.reshape(-1, m), transposed=False)
        out[~solved] = np.nan
        return out, solved

    def _applied(self, X: NDArray[np.float64], transposed: bool) -> NDArray[np.float64]:
        """Overwrite every row x of `X` with Q x or Q^T x, and return `X`.

        Many rows are processed in blocks, a few steps at a time, so that they stay in cache and keep all threads busy.
        """
        starts = list(range(0, len(self.A) - self.width, self.width))
        steps = list(zip(starts, self._T, strict=True))[:: 1 if transposed else -1]
        few = threads.blocks(len(X), FEW if len(X) > MANY else max(1, len(X)))
        for first in range(0, len(steps), STEPS):
            group = [(k, self._reflectors(k), T if transposed else T.T) for k, T in steps[first : first + STEPS]]

            def apply(
                lo: int, hi: int, group: list[tuple[int, NDArray[np.floating], NDArray[np.floating]]] = group
            ) -> None:
                for k, V, T in group:
                    below = X[lo:hi, k + self.width :]
                    below -= ((below @ V) @ T) @ V.T

            threads.for_blocks(apply, few)
        return X


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _load(
    band: Doubles, shifts: Doubles, Z: Doubles, factor: Doubles, x: Doubles
) -> None:  # pragma: no cover - compiled
    """Copy the band plus the lane's shift, and the right-hand sides, into every lane."""
    for j in range(band.shape[0]):
        for p in range(band.shape[1]):
            for e in range(LANES):
                factor[j, p, e] = band[j, p]
        for e in range(LANES):
            factor[j, 0, e] += shifts[e]
        for q in range(Z.shape[0]):
            for e in range(LANES):
                x[j, q, e] = Z[q, j]


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _eliminate(j: int, last: int, factor: Doubles, scaled: Doubles, x: Doubles) -> None:  # pragma: no cover - compiled
    """Compute column j of L, and subtract its contribution from the rows below."""
    for p in range(1, last + 1):
        for e in range(LANES):
            scaled[p, e] = factor[j, p, e] / factor[j, 0, e]
    for p in range(1, last + 1):
        row, y = factor[j + p], x[j + p]
        for q in range(p, last + 1):
            for e in range(LANES):
                row[q - p, e] -= scaled[p, e] * factor[j, q, e]
        for q in range(y.shape[0]):
            for e in range(LANES):
                y[q, e] -= scaled[p, e] * x[j, q, e]
    for p in range(1, last + 1):
        for e in range(LANES):
            factor[j, p, e] = scaled[p, e]


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _substitute(j: int, last: int, factor: Doubles, x: Doubles) -> None:  # pragma: no cover - compiled
    """Compute row j of the solution from the rows after it."""
    for q in range(x.shape[1]):
        for e in range(LANES):
            x[j, q, e] /= factor[j, 0, e]
    for p in range(1, last + 1):
        for q in range(x.shape[1]):
            for e in range(LANES):
                x[j, q, e] -= factor[j, p, e] * x[j + p, q, e]


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _solve_shifted(
    band: Doubles, shifts: Doubles, Z: Doubles, factor: Doubles, x: Doubles
) -> Flags:  # pragma: no cover - compiled
    """Factor the band plus each lane's shift as L D L^T, and solve; returns which lanes were positive definite."""
    m, w = band.shape[0], band.shape[1] - 1
    good, scaled = np.ones(LANES, np.bool_), np.empty((w + 1, LANES))
    _load(band, shifts, Z, factor, x)
    for j in range(m):
        for e in range(LANES):
            good[e] &= factor[j, 0, e] > 0.0
        _eliminate(j, min(w, m - 1 - j), factor, scaled, x)
    for j in range(m - 1, -1, -1):
        _substitute(j, min(w, m - 1 - j), factor, x)
    return good
