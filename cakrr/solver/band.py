"""One reduction for every lambda: K = Q B Q^T with B a band, after which a lambda costs O(m w^2).

A tridiagonal B takes half its 4/3 m^3 flops in products of a matrix and a vector, bound by memory: 11
Cholesky factorisations at m = 6,000. A band of `width` diagonals takes all of them in products of
matrices (the first stage of LAPACK's two-stage reduction: Dongarra, Hammarling and Sorensen, 1989),
and shifting it, factoring it and solving with it is cheap enough to stop there.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.linalg.lapack import at, call
from cacore.machine import threads

TILE = 320  # rows of a task
MANY, FEW, STEPS = 512, 64, 8  # right-hand sides that go in blocks, rows of a block, reflections at a time
LANES = 8  # lambdas that are factored side by side, one in each lane of a vector


class Band:
    """A symmetric matrix reduced to a band.

    Parameters
    ----------
    A : ndarray of float32 or float64, shape (m, m), C-contiguous
        Its lower triangle is read, and overwritten by the reflectors that make up Q; it must stay as
        it is as long as this object is used. The strict upper triangle is neither read nor written.
    width : int, optional
        Diagonals beside the main one.

    Notes
    -----
    4/3 m^3 flops, and a few m x `width` blocks of memory.
    """

    @np.errstate(invalid="ignore")  # of kernel values that overflowed: they have no solution
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
        """Annihilate columns k to k + width below the band: QR of the panel, then both sides of what is left."""
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
        left, right = np.hstack([V, W]), np.hstack([W, V])

        def update(lo: int, hi: int) -> None:
            if lo:
                call(
                    "gemm", A.dtype, b"T", b"N", lo, hi - lo, 2 * c, -1.0, at(right), 2 * c, at(left, lo), 2 * c, 1.0,
                    at(A, start + lo, start), m,
                )  # fmt: skip
            corner = at(A, start + lo, start + lo)
            call("syr2k", A.dtype, b"U", b"T", hi - lo, c, -1.0, at(V, lo), c, at(W, lo), c, 1.0, corner, m)

        threads.for_blocks(update, threads.blocks(r, TILE)[::-1])

    def _reflectors(self, k: int) -> NDArray[np.floating]:
        """V of the step at column k, from where the matrix keeps it: below a unit diagonal."""
        start = k + self.width
        V = np.tril(self.A[start:, k:start], -1)[:, : len(self.A) - start]
        np.fill_diagonal(V, 1.0)
        return np.ascontiguousarray(V)

    def _product(self, start: int, V: NDArray[np.floating]) -> NDArray[np.floating]:
        """``A[start:, start:] @ V`` from the lower triangle: each tile is used as it stands and transposed."""
        A, m = self.A, len(self.A)
        r, c = V.shape
        tiles = threads.blocks(r, TILE)
        strips = min(threads.current(), len(tiles))
        # One sum a strip, added up in order: the same bits however the threads are scheduled.
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
            Not a number where A + shift I is not positive definite to the rounding.
        solved : ndarray of bool, shape (L,)

        Notes
        -----
        m w^2 flops a shift, 4 m w a shift and right-hand side, and 2 m^2 for applying Q to each
        vector. m (w + 1) x 8 numbers of memory a thread.
        """
        k, m = Y.shape
        with threads.one_blas_thread():
            Z = self._applied(np.array(Y, np.float64), transposed=True)
        out, solved = np.empty((len(shifts), k, m)), np.zeros(len(shifts), np.bool_)

        def lanes(lo: int, hi: int) -> None:
            some = np.full(LANES, shifts[lo])
            some[: hi - lo] = shifts[lo:hi]
            factor, x = np.empty((m, self.width + 1, LANES)), np.empty((m, k, LANES))
            good = _solve_shifted(self.diagonals, some, Z, factor, x)
            out[lo:hi], solved[lo:hi] = x.transpose(2, 1, 0)[: hi - lo], good[: hi - lo]

        threads.for_blocks(lanes, threads.blocks(len(shifts), LANES))
        with threads.one_blas_thread():
            self._applied(out.reshape(-1, m), transposed=False)
        out[~solved] = np.nan
        return out, solved

    def _applied(self, X: NDArray[np.float64], transposed: bool) -> NDArray[np.float64]:
        """Q x, or Q^T x, for every row x of `X`, in place.

        Many rows go a few at a time through a few steps: they stay in cache, and all threads work.
        """
        starts = list(range(0, len(self.A) - self.width, self.width))
        steps = list(zip(starts, self._T, strict=True))[:: 1 if transposed else -1]
        few = threads.blocks(len(X), FEW if len(X) > MANY else max(1, len(X)))
        for first in range(0, len(steps), STEPS):
            some = [(k, self._reflectors(k), T if transposed else T.T) for k, T in steps[first : first + STEPS]]

            def apply(
                lo: int, hi: int, some: list[tuple[int, NDArray[np.floating], NDArray[np.floating]]] = some
            ) -> None:
                for k, V, T in some:
                    below = X[lo:hi, k + self.width :]
                    below -= ((below @ V) @ T) @ V.T

            threads.for_blocks(apply, few)
        return X


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _load(band: Any, shifts: Any, Z: Any, factor: Any, x: Any) -> None:  # pragma: no cover - compiled
    """Every lane gets the band plus its shift, and the right-hand sides."""
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
def _eliminate(j: Any, last: Any, factor: Any, scaled: Any, x: Any) -> None:  # pragma: no cover - compiled
    """Column j of L, and what it takes from the rows below it."""
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
def _substitute(j: Any, last: Any, factor: Any, x: Any) -> None:  # pragma: no cover - compiled
    """Row j of the solution, from those after it."""
    for q in range(x.shape[1]):
        for e in range(LANES):
            x[j, q, e] /= factor[j, 0, e]
    for p in range(1, last + 1):
        for q in range(x.shape[1]):
            for e in range(LANES):
                x[j, q, e] -= factor[j, p, e] * x[j + p, q, e]


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _solve_shifted(band: Any, shifts: Any, Z: Any, factor: Any, x: Any) -> Any:  # pragma: no cover - compiled
    """L D L^T of the band plus each shift, one in each lane, then x of every right-hand side; which were definite."""
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
