"""Predictive variance of a part's model: that of a Gaussian process, scaled by the leave-one-out errors.

With G = K + lambda m I and k = K(rows, x), a new target at x has the variance s^2 (k(x, x) + lambda m - k^T G^-1 k):
the variance of the function and of the noise (Rasmussen and Williams, 2006, eqs. 2.26 and 2.9). Ridge regression does
not determine s^2. The leave-one-out error of row i is alpha_i / (G^-1)_ii, with variance s^2 / (G^-1)_ii (their
eqs. 5.12). s^2 is therefore the mean of alpha_i^2 / (G^-1)_ii: the errors over their standard deviations then have a
mean square of 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import AnyRows, Rows
from cacore.kernels import Kernel, Points
from cacore.linalg import lapack
from cacore.machine import threads
from cakrr.solver.local import PartSystem, Workspace

_BLOCK_BYTES = 64 << 20  # of kernel values per block


@dataclass(eq=False)
class Variance:
    """Predictive variance of a part's model, and the factor that it is computed from.

    Attributes
    ----------
    points : Points
        The part's rows in double precision, prepared for the kernel.
    kernel : Kernel
    noise : float
        lambda m.
    L : ndarray of float64, shape (m, m)
        Cholesky factor of K + lambda m I, in the lower triangle; the entries above the diagonal are undefined.
    unit : float or ndarray, shape (t,)
        s^2 of each target.
    """

    points: Points
    kernel: Kernel
    noise: float
    L: NDArray[np.floating]
    unit: float | NDArray[np.float64]

    def __call__(self, X: AnyRows) -> NDArray[np.float64]:
        """Variances of new targets at the rows of `X`, shape (n, d); the result has shape (n,) or (n, t).

        n m^2 flops in triangular solves on all threads, n kernel rows in blocks of 64 MiB; in double precision.
        """
        open_ = np.empty(X.shape[0])
        for rows, some, B in self._compared(X):
            lapack.solve_lower(self.L, B)
            open_[rows] = self.kernel.diagonal(some) - np.einsum("ij,ij->i", B, B)
        variance: NDArray[np.float64] = np.multiply.outer(np.maximum(open_, 0.0) + self.noise, self.unit)
        return variance

    def weights(self, X: AnyRows) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Weights of the part's targets in the predictions at the rows of `X`: G^-1 K(rows, x).

        Yields a slice of rows and their weights, shape (rows, m), which the next block overwrites. 2 n m^2 flops in
        triangular solves on all threads, and n kernel rows.
        """
        for rows, _, B in self._compared(X):
            lapack.cholesky_solve(self.L, B)
            yield rows, B

    def _compared(self, X: AnyRows) -> Iterator[tuple[slice, Rows, NDArray[np.float64]]]:
        """Yield a slice of rows, these rows, and their kernel values with the part's rows, in blocks of 64 MiB."""
        n, m = X.shape[0], len(self.L)
        step = int(np.clip(_BLOCK_BYTES // (8 * m), 64, 4096))
        buffer = np.empty((min(step, n), m))
        for lo, hi in threads.blocks(n, step):
            some, B = X[lo:hi].astype(np.float64), buffer[: hi - lo]
            self.kernel.fill(self.kernel.points(some, like=self.points), self.points, B)
            yield slice(lo, hi), some, B

    def packed(self) -> NDArray[np.float64]:
        """The factor row by row, shape (m (m + 1) / 2,), as a file holds it."""
        return np.concatenate([row[: i + 1] for i, row in enumerate(self.L)])


@dataclass
class LeftOutRows:
    """Leave-one-out errors of a part's rows, and their standard deviations, shape (m,) or (m, t)."""

    errors: NDArray[np.float64]
    deviations: NDArray[np.float64]


def factored(
    rows: Rows, alpha: NDArray[np.floating], kernel: Kernel, lam: float, weights: NDArray[np.float64] | None = None
) -> tuple[Variance, LeftOutRows] | None:
    """Variance of a model with these coefficients, and its leave-one-out errors; None if there is no factor.

    Parameters
    ----------
    rows : ndarray or CSR, shape (m, d)
    alpha : ndarray, shape (m,) or (m, t)
    kernel : Kernel
    lam : float
    weights : ndarray, shape (m,), optional
        Sample weights: the noise of row i is then lambda m mean(w) / w_i, and that of a new row lambda m.

    Notes
    -----
    2/3 m^3 + m^2 d flops; 8 m^2 bytes, which the result keeps.
    """
    m = len(alpha)
    system = PartSystem(rows.astype(np.float64), Workspace(m, np.float64), kernel, weights)
    if not system.factor(kernel, lam):
        return None
    inverse = lapack.diagonal_of_inverse(system.K)
    if alpha.ndim > 1:
        inverse = inverse[:, None]
    alpha = alpha.astype(np.float64)
    unit: NDArray[np.float64] = np.mean(np.square(alpha) / inverse, axis=0)
    variance = Variance(system.points, kernel, lam * m, system.K, unit if alpha.ndim > 1 else float(unit))
    return variance, LeftOutRows(alpha / inverse, np.sqrt(unit / inverse))


def unpacked(
    rows: Rows, kernel: Kernel, lam: float, factor: NDArray[np.float64], unit: NDArray[np.float64], many: bool
) -> Variance:
    """Rebuild a variance from the array of :meth:`Variance.packed`; `many` is True for targets of shape (m, t)."""
    m = rows.shape[0]
    L, at = np.empty((m, m)), 0
    for i in range(m):
        L[i, : i + 1] = factor[at : at + i + 1]
        at += i + 1
    points = kernel.points(rows.astype(np.float64))
    return Variance(points, kernel, lam * m, L, unit if many else float(unit[0]))
