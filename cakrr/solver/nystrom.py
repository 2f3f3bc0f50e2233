"""Ridge regression on M points from the triangle of its rows: every lambda, every leading number of points.

f(x) = sum_j c_j k(x, z_j) minimises |W^1/2 (A c - y)|^2 + lambda w c^T K c, with K = K_MM = L L^T, w the sum of the
weights, and rows A of kernel values, or of anything else that is linear in f. With the triangle of W^1/2 [A y]
(:mod:`cacore.linalg.tsqr`) this is |R c - q|^2 + |s|^2 + lambda w |L^T c|^2: a least-squares problem with R above
sqrt(lambda w) L^T, whose triangle C has C^T C = R^T R + lambda w K. No matrix is multiplied by its transpose.

All lambdas share one decomposition. With one in the middle, mu, and C its triangle, P = R C^-1 has singular values of
at most 1. P^T P = V diag(a) V^T, and the problem with lambda = rho mu has, in the coordinates V^T C c, the diagonal
matrix a + rho (1 - a). Its relative error is about eps max(rho, 1 / rho), whatever the condition of A (Van Loan, 1976:
the generalised singular values of R and L^T). The first M' of M points have the leading blocks of R, q and L.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from cacore.data.rows import AnyRows
from cacore.kernels import Kernel, Points
from cacore.linalg import lapack, tsqr
from cacore.linalg.tsqr import Triangle, stacked
from cacore.machine import threads

Array = NDArray[np.float64]
_ROWS = 2048  # rows of kernel values per block
_ROBUST = 0.3  # weight g of plain generalised cross-validation in the robust one; Lukas advises .1 to .3


@dataclass(frozen=True)
class PointSystem:
    """The least-squares problem of M points, for any lambda; the last right side is the square root of the weights.

    Attributes
    ----------
    R, q : ndarray, shapes (M, M) and (M, t)
        See :class:`cacore.linalg.tsqr.Triangle`.
    unfitted : ndarray, shape (t,)
        Sum of the squared residuals of each target without a ridge.
    L : ndarray, shape (M, M)
        Cholesky factor of K_MM, zero above the diagonal.
    weight : float
        Sum of the row weights.
    rows : int
        Number of rows.
    """

    R: Array
    q: Array
    unfitted: Array
    L: Array
    weight: float
    rows: int

    @classmethod
    def of(cls, triangle: Triangle, L: Array) -> PointSystem:
        """The system of a triangle whose last right side holds the square roots of the weights."""
        t = triangle.q.shape[1] - 1
        squares = np.square(triangle.q).sum(axis=0) + np.square(triangle.s).sum(axis=0)
        unfitted = np.square(triangle.s).sum(axis=0)[:t]
        return cls(triangle.R, triangle.q[:, :t], unfitted, np.tril(L), float(squares[t]), triangle.rows)

    def leading(self, M: int) -> PointSystem:
        """The system of the first M points."""
        dropped = np.square(self.q[M:]).sum(axis=0)
        return PointSystem(self.R[:M, :M], self.q[:M], self.unfitted + dropped, self.L[:M, :M], self.weight, self.rows)

    def triangle(self, lam: float) -> tuple[Array, Array]:
        """C and d of the problem with this lambda, whose coefficients solve C c = d; 2/3 M^3 flops."""
        M = len(self.R)
        ridge = np.sqrt(lam * self.weight) * self.L.T
        whole = stacked(np.hstack([self.R, self.q]), np.hstack([ridge, np.zeros_like(self.q)]))
        return whole[:, :M], whole[:, M:]

    def solve(self, lam: float) -> tuple[Array, Array]:
        """Coefficients, shape (M, t), and the triangle C; NaN if C is singular."""
        C, d = self.triangle(lam)
        with np.errstate(all="ignore"):
            if not np.diagonal(C).all() or not np.isfinite(C).all():
                return np.full_like(d, np.nan), C
            return np.asarray(scipy.linalg.solve_triangular(C, d, check_finite=False)), C

    def path(self, lams: tuple[float, ...]) -> RidgePath:
        """All lambdas from one decomposition: about 12 M^3 flops."""
        all_lams = np.array(lams)
        base = float(np.sqrt(all_lams.min()) * np.sqrt(all_lams.max()))
        C, _ = self.triangle(base)
        if not np.diagonal(C).all() or not np.isfinite(C).all():
            empty = np.full((len(C), len(C)), np.nan)
            return RidgePath(self, all_lams / base, C, empty, np.full(len(C), np.nan), np.full_like(self.q, np.nan))
        P = np.ascontiguousarray(scipy.linalg.solve_triangular(C, self.R.T, trans="T", check_finite=False).T)
        G = np.zeros_like(P)
        lapack.add_gram(P, G)
        driver = "evd" if len(G) > 1 else "ev"  # scipy 1.12 gives evd too little memory for one row
        a, V = scipy.linalg.eigh(G, lower=True, check_finite=False, overwrite_a=True, driver=driver)
        return RidgePath(self, all_lams / base, C, V, np.clip(a, 0.0, 1.0), V.T @ (P.T @ self.q))


@dataclass(frozen=True)
class RidgePath:
    """The solutions of all lambdas in the coordinates in which they are diagonal.

    Attributes
    ----------
    system : PointSystem
    rho : ndarray, shape (L,)
        The lambdas, in units of the one that C belongs to.
    C : ndarray, shape (M, M)
    V, a : ndarray, shapes (M, M) and (M,)
        Eigenvectors and eigenvalues of P^T P.
    p : ndarray, shape (M, t)
        V^T P^T q.
    """

    system: PointSystem
    rho: Array
    C: Array
    V: Array
    a: Array
    p: Array

    @cached_property
    def shrunk(self) -> Array:
        """1 / (a + rho (1 - a)), shape (L, M)."""
        return np.asarray(1.0 / (self.a + self.rho[:, None] * (1.0 - self.a)))

    @property
    def freedom(self) -> Array:
        """Effective degrees of freedom, the trace of the hat matrix, shape (L,)."""
        return np.asarray(self.shrunk @ self.a)

    def residuals(self) -> Array:
        """Weighted sums of squared residuals, shape (L, t), without a pass over the rows."""
        # |P u - q|^2 for u = V diag(shrunk) p: |q|^2 - 2 p.D p + D p.a.D p
        squares, D = np.square(self.system.q).sum(axis=0), self.shrunk[:, :, None]
        fitted = ((2.0 * D - D * D * self.a[:, None]) * np.square(self.p)).sum(axis=1)
        return np.asarray(np.maximum(squares - fitted, 0.0) + self.system.unfitted)

    def generalized(self) -> Array:
        """Errors of robust generalised cross-validation (Lukas, Inverse Problems 22, 2006), shape (L, t).

        Those of Golub, Heath and Wahba (1979) times 1 + (1 - g) / g trace(H^2) / n, with H the hat matrix. Theirs give
        all rows the mean leverage. Where a few rows have most of it, as outliers in X do, they choose far too small a
        lambda.
        """
        n = self.system.rows
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.maximum(1.0 - self.freedom / n, 0.0)
            plain = self.residuals() / self.system.weight / np.square(share)[:, None]
        squares = np.square(self.shrunk * self.a).sum(axis=1)  # trace(H^2)
        return np.asarray(plain * (1.0 + (1.0 - _ROBUST) / _ROBUST * squares / n)[:, None])

    def left_out(self, A: Array, y: Array) -> Array:
        """Errors of rows left out, times the roots of their weights, shape (L, rows, t).

        `A`, overwritten, shape (rows, M), and `y`, shape (rows, t), carry the roots of the weights. A row of leverage h
        has the error (y - f) / (1 - h). 3 rows M^2 flops, for all lambdas.
        """
        if not len(y):
            return np.zeros((len(self.shrunk), *y.shape))
        lapack.solve_lower(self._lower, A)
        # scipy's BLAS, as in the fold: the threads of numpy's would keep spinning.
        Z = scipy.linalg.blas.dgemm(1.0, self.V, A.T, trans_a=1)  # (M, rows)
        D = self.shrunk
        weighted = (D[:, :, None] * self.p).transpose(1, 0, 2).reshape(len(Z), -1)  # (M, L t)
        fitted = scipy.linalg.blas.dgemm(1.0, Z, weighted, trans_a=1).reshape(len(y), len(D), -1)
        np.square(Z, out=Z)
        free = np.maximum(1.0 - scipy.linalg.blas.dgemm(1.0, Z, D.T, trans_a=1), 1e-12)
        return np.asarray(((y[:, None] - fitted) / free[:, :, None]).transpose(1, 0, 2))

    @cached_property
    def _lower(self) -> Array:
        """C^T, with contiguous rows."""
        return np.ascontiguousarray(self.C.T)


@dataclass(eq=False)
class PointVariance:
    """Predictive variance of a model on M points: that of a new target whose weight is the mean weight.

    It is v (n / w + k^T (C^T C)^-1 k + (k(x,x) - |L^-1 k|^2) / (lambda w)), with k = K(points, x): the noise, what the
    rows leave open about the coefficients, and what the points cannot express (Quinonero-Candela and Rasmussen, 2005,
    eq. 24b). v is the weighted sum of squared residuals over n minus the degrees of freedom.

    Attributes
    ----------
    points : Points
    kernel : Kernel
    L, C : ndarray, shape (M, M)
        Lower triangle of K_MM, and upper triangle of the problem.
    ridge, noise : float
        lambda w, and n / w.
    unit : float or ndarray, shape (t,)
        v.
    """

    points: Points
    kernel: Kernel
    L: Array
    C: Array
    ridge: float
    noise: float
    unit: float | Array

    def __call__(self, X: AnyRows) -> Array:
        """Variance of new targets at the rows of `X`, shape (n,) or (n, t); 2 n M^2 flops."""
        open_, lower = np.empty(X.shape[0]), np.ascontiguousarray(self.C.T)
        buffer = np.empty((min(_ROWS, X.shape[0]), len(self.C)))
        for lo, hi in threads.blocks(X.shape[0], _ROWS):
            rows, B = X[lo:hi].astype(np.float64), buffer[: hi - lo]
            self.kernel.fill(self.kernel.points(rows, like=self.points), self.points, B)
            of_prior = B.copy()
            lapack.solve_lower(self.L, of_prior)
            lapack.solve_lower(lower, B)
            outside = np.maximum(self.kernel.diagonal(rows) - np.einsum("ij,ij->i", of_prior, of_prior), 0.0)
            open_[lo:hi] = self.noise + np.einsum("ij,ij->i", B, B) + outside / self.ridge
        variance: Array = np.multiply.outer(open_, self.unit)
        return variance


def memory_bytes(M: int, leaves: int, ranks: int) -> int:
    """Bytes that a rank needs on M points, besides its rows: triangles, six squares, and two blocks of rows."""
    return tsqr.memory_bytes(M + 2, leaves, ranks) + 8 * (6 * M * M + 2 * _ROWS * M)


def unit_of(system: PointSystem, coefficients: Array, C: Array) -> Array:
    """V of each target, shape (t,): residual sum of squares over n - degrees of freedom; M^3/3 flops."""
    squares = np.square(system.R @ coefficients - system.q).sum(axis=0) + system.unfitted
    P = scipy.linalg.solve_triangular(C, system.R.T, trans="T", check_finite=False)
    free = max(1.0, system.rows - float(np.square(P).sum()))
    return np.asarray(squares / free)
