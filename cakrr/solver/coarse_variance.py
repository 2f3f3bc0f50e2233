"""Predictive variance of the coarse model, from the factor of its normal equations.

The coarse model f(x) = beta^T k(x), with k(x) = K(centers, x), is linear in beta. The coefficients have the prior
covariance s^2 K_MM^-1, and the targets have the noise variance v = s^2 lambda n. So f(x) has the variance

    v k^T (K_Mn K_nM + lambda n K_MM)^-1 k,

known from the subset-of-regressors approximation (Smola and Bartlett, 2001; Quinonero-Candela and Rasmussen, 2005,
eq. 16b). With K_MM = L L^T, W = K_nM L^-T and F F^T = W^T W + lambda n I, the variance is v |F^-1 L^-1 k|^2.

It does not include what lies outside the span of the centres; the parts' models account for that. v is estimated as in
generalised cross-validation (Golub, Heath and Wahba, 1979): the sum of the squared residuals over
n - tr(W F^-T F^-1 W^T). The coarse model treats its whole residual as noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import AnyRows
from cacore.kernels import Kernel, Points
from cacore.linalg import lapack
from cakrr.solver.coarse import CoarseModel, factor_of, projected


@dataclass(eq=False)
class CoarseVariance:
    """Predictive variance of a coarse model, and the Cholesky factors it is computed from.

    Attributes
    ----------
    points : Points
        The centres, ready for the kernel.
    kernel : Kernel
    L, F : ndarray of float64, shape (M, M)
        Cholesky factors, in the lower triangles; the entries above the diagonals are undefined.
    unit : float or ndarray, shape (t,)
        The noise variance v, times the mean row weight.
    """

    points: Points
    kernel: Kernel
    L: NDArray[np.float64]
    F: NDArray[np.float64]
    unit: float | NDArray[np.float64]

    def __call__(self, X: AnyRows) -> NDArray[np.float64]:
        """Variance of the prediction at each row of `X`, shape (n,) or (n, t); 2 n M^2 flops."""
        found = np.empty(X.shape[0])
        for some, W in projected(X, np.arange(X.shape[0]), self.kernel, self.points, self.L):
            lapack.solve_lower(self.F, W)
            found[some] = np.einsum("ij,ij->i", W, W)
        variance: NDArray[np.float64] = np.multiply.outer(found, self.unit)
        return variance


class CoarseSums:
    """Sums over rows from which the variance of a coarse model is computed; they add up over ranks.

    Attributes
    ----------
    gram : ndarray, shape (M, M)
        W^T W over the weighted rows, in the lower triangle.
    squares : ndarray, shape (max(1, t),)
        Weighted sum of squared residuals, per target.
    weight, rows : float
        Sum of the weights, and number of rows.
    """

    def __init__(self, coarse: CoarseModel, targets: tuple[int, ...]) -> None:
        self.coarse, self.targets = coarse, targets
        self.kernel = coarse.kernel.with_sigma(coarse.sigma)
        centers = coarse.centers.astype(np.float64)
        self.points, self.L = self.kernel.points(centers), factor_of(centers, self.kernel)
        self.gram = np.zeros_like(self.L)
        self.squares, self.weight, self.rows = np.zeros(int(np.prod(targets))), 0.0, 0.0

    def add(self, X: AnyRows, residuals: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
        """Add rows, given the coarse model's residuals and the sample weights; m M^2 flops for m rows."""
        for _, W in projected(X, np.arange(len(weights)), self.kernel, self.points, self.L, np.sqrt(weights)):
            lapack.add_gram(W, self.gram)
        self.squares += weights @ np.square(residuals.reshape(len(weights), -1))
        self.weight, self.rows = self.weight + float(weights.sum()), self.rows + len(weights)

    def packed(self) -> NDArray[np.float64]:
        """All sums in one array, shape (M^2 + max(1, t) + 2,); the arrays of several sets of rows may be added."""
        return np.concatenate([np.tril(self.gram).ravel(), self.squares, [self.weight, self.rows]])

    def variance(self, packed: NDArray[np.float64]) -> CoarseVariance | None:
        """Variance from `packed` sums over all rows; None if the Cholesky factorisation fails. M^3 flops."""
        M = len(self.L)
        F, squares = packed[: M * M].reshape(M, M).copy(), packed[M * M : -2]
        weight, rows = packed[-2:]
        ridge = self.coarse.lam * weight
        F.reshape(-1)[:: M + 1] += ridge
        if lapack.cholesky(F) != 0:
            return None
        free = M - ridge * lapack.diagonal_of_inverse(F).sum()
        # A row of weight w has noise variance v mean(w) / w, so squares and W^T W are weighted by w / mean(w).
        unit = squares / max(1.0, rows - free)
        return CoarseVariance(self.points, self.kernel, self.L, F, unit if self.targets else float(unit[0]))
