"""The restricted likelihood of a sample of points.

Up to 1,200 points it is exact. Beyond, it is Vecchia's: the product of each value's density given its 40 nearest
earlier values, in random order, so that there are neighbours on all scales.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, solve_triangular

from cacore.comm import Communicator
from cacore.data.rows import block_bounds
from cacore.kernels import Kernel
from cacore.near.correlation import Correlation
from cacore.near.inverse import nearest_of_all, regressions
from cakrr.kriging.sample import Sample

EXACT = 1200  # points up to which the likelihood is exact
NEIGHBOURS = 40


class Likelihood:
    """The restricted likelihood of a sample; construction and calls are collective, and the same on all ranks.

    Notes
    -----
    Exact: s^3/3 flops per evaluation, on every rank. Vecchia's: s m^3/3 flops, shared by the ranks, and one Allreduce
    of (p + 1)^2 + 1 numbers.
    """

    def __init__(self, sample: Sample, kernel: Kernel, taper: float, comm: Communicator) -> None:
        self.sample, self.kernel, self.taper, self.comm = sample, kernel, taper, comm
        self.exact, self.evaluations = len(sample) <= EXACT, 0
        self.mine = slice(*block_bounds(len(sample), comm.size, comm.rank))  # this rank's share of the regressions
        self._neighbours = None if self.exact else nearest_of_all(sample.X, NEIGHBOURS)

    def terms(self, length: float, noise: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Log-determinant of rho + D, and the Gram matrix of its whitened [F, y], shape (p + 1, p + 1)."""
        self.evaluations += 1
        correlation = Correlation(self.kernel.with_sigma(length), self.taper)
        columns = np.column_stack([self.sample.F, self.sample.y])
        if self._neighbours is None:
            K = correlation.matrix(self.sample.X, self.sample.X)
            K[np.diag_indices(len(K))] = 1.0 + noise
            try:
                L = cholesky(K, lower=True, overwrite_a=True, check_finite=False)
            except LinAlgError:
                return math.inf, np.eye(columns.shape[1])
            white = solve_triangular(L, columns, lower=True, check_finite=False)
            return 2.0 * float(np.log(np.diagonal(L)).sum()), white.T @ white
        white, variance = self.left(columns, noise, self._neighbours, correlation)
        white /= np.sqrt(variance)[:, None]
        sums = self.comm.allreduce(np.append((white.T @ white).ravel(), np.log(variance).sum()))
        return float(sums[-1]), sums[:-1].reshape(columns.shape[1], -1)

    def left(
        self, columns: NDArray[np.float64], noise: NDArray[np.float64], neighbours: NDArray[np.int32],
        correlation: Correlation,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
        """Residuals of this rank's rows of `columns`, regressed on their neighbours, (m, t), and the variance, (m,)."""
        X, some, near = self.sample.X, self.mine, neighbours[self.mine]
        weights, variance = regressions(X[some], noise[some], X, noise, near, correlation)
        return columns[some] - np.einsum("ij,ijk->ik", weights, columns[near]), variance

    def __call__(self, length: float, sill: float | None, nugget: float, ratio: float | None) -> tuple[float, float]:
        """Minus twice the restricted log-likelihood, and the sill.

        `length` is the range. If the sill is None, it maximises the likelihood for this `ratio` of nugget and sill.
        """
        n, p = self.sample.F.shape
        logdet, gram = self.terms(length, self.sample.noise(sill, nugget, ratio))
        if not math.isfinite(logdet):
            return math.inf, 1.0
        square = float(gram[p, p])
        if p:
            square = max(0.0, square - float(gram[:p, p] @ drift_of(gram)))
            logdet += float(np.linalg.slogdet(gram[:p, :p])[1])
        return deviance(max(1, n - p), logdet, square, sill if ratio is None else None)


def drift_of(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Coefficients of the drift by generalised least squares, from the Gram matrix of the whitened [F, y]."""
    return np.asarray(np.linalg.lstsq(gram[:-1, :-1], gram[:-1, -1], rcond=None)[0])


def deviance(free: int, logdet: float, square: float, sill: float | None) -> tuple[float, float]:
    """Minus twice the log-density of `free` normal values, and the sill: the one given, or the best.

    `logdet` and `square` are the logarithm of the determinant of their covariance, and the sum of their squares after
    whitening, both in units of the sill.
    """
    sill = max(square / free, 1e-300) if sill is None else sill
    return free * math.log(sill) + logdet + square / sill, sill
