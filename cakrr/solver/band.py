"""Reduction to band form, K = Q B Q^T, after which each lambda costs only O(m w^2) for a band of width w.

Reducing K to tridiagonal form spends half of its 4/3 m^3 flops in matrix-vector products, which are limited by memory
bandwidth: at m = 6,000 it takes as long as 11 Cholesky factorisations. Reducing K to a band of `width` diagonals uses
matrix-matrix products only (the first stage of LAPACK's two-stage reduction: Dongarra, Hammarling and Sorensen, 1989).
Shifting the band, factoring it and solving with it is so cheap that the second stage is not needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.linalg.lapack import at, call
from cacore.machine import threads

if TYPE_CHECKING:
    from cacore.arrays import Doubles, Flags

TILE = 320  # rows per tile
MANY, FEW, STEPS = 512, 64, 8  # right-hand sides from which Q is applied in blocks, rows per block, steps at a time
LANES = 8  # lambdas factored at once, one per SIMD lane


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
