"""How sure a coarse model is: the variance of its coefficients, from the factor of its normal equations.

f(x) = beta^T k(x), k = K(centers, x), is a linear model whose coefficients have the prior s^2 K_MM^-1, and its targets
the noise v = s^2 lambda n. So f(x) has the variance

    v k^T (K_Mn K_nM + lambda n K_MM)^-1 k,

that of the subset of regressors (Smola and Bartlett, 2001; Quinonero-Candela and Rasmussen, 2005, eq. 16b). With K_MM =
L L^T and W = K_nM L^-T it is v |F^-1 L^-1 k|^2, F F^T = W^T W + lambda n I. What the centres cannot say is not in it:
that is for the parts' models to say. v is the sum of the squared residuals over n - tr(W F^-T F^-1 W^T), as in
generalised cross-validation (Golub, Heath and Wahba, 1979): to the coarse model all that it leaves over is noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows
from cacore.kernels import Kernel, Points
from cacore.linalg import lapack
from cakrr.solver.coarse import CoarseModel, factor_of, projected


@dataclass(eq=False)
class CoarseVariance:
    """Predictive variance of a coarse model, and the factors that it is computed from.

    Attributes
    ----------
    points : Points
        The centres, ready for the kernel.
    kernel : Kernel
    L, F : ndarray of float64, shape (M, M)
        Cholesky factors, in the lower triangles; what lies above them is undefined.
    unit : float or ndarray, shape (t,)
        v, times the mean weight of a row.
    """

    points: Points
    kernel: Kernel
    L: NDArray[np.float64]
    F: NDArray[np.float64]
    unit: float | NDArray[np.float64]

    def __call__(self, X: Rows) -> NDArray[np.float64]:
        """Variances of the answers at the rows of `X`, shape (n, d): of shape (n,) or (n, t); 2 n M^2 flops."""
        found = np.empty(X.shape[0])
        for some, W in projected(X, np.arange(X.shape[0]), self.kernel, self.points, self.L):
            lapack.solve_lower(self.F, W)
            found[some] = np.einsum("ij,ij->i", W, W)
        variance: NDArray[np.float64] = np.multiply.outer(found, self.unit)
        return variance


class CoarseSums:
    """The sums over rows that the variance of a coarse model is made of; ranks add theirs up.

    Attributes
    ----------
    gram : ndarray, shape (M, M)
        W^T W in the lower triangle, of weighted rows.
    squares : ndarray, shape (max(1, t),)
        Weighted squares of the residuals.
    weight, rows : float
    """

    def __init__(self, coarse: CoarseModel, targets: tuple[int, ...]) -> None:
        self.coarse, self.targets = coarse, targets
        self.kernel = coarse.kernel.with_sigma(coarse.sigma)
        centers = coarse.centers.astype(np.float64)
        self.points, self.L = self.kernel.points(centers), factor_of(centers, self.kernel)
        self.gram = np.zeros_like(self.L)
        self.squares, self.weight, self.rows = np.zeros(int(np.prod(targets))), 0.0, 0.0

    def add(self, X: Rows, residuals: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
        """Some rows, what the coarse model leaves of their targets, and their sample weights: m M^2 flops."""
        for _, W in projected(X, np.arange(len(weights)), self.kernel, self.points, self.L, np.sqrt(weights)):
            lapack.add_gram(W, self.gram)
        self.squares += weights @ np.square(residuals.reshape(len(weights), -1))
        self.weight, self.rows = self.weight + float(weights.sum()), self.rows + len(weights)

    def packed(self) -> NDArray[np.float64]:
        """All sums in one array, shape (M^2 + max(1, t) + 2,), which may be added to that of other rows."""
        return np.concatenate([np.tril(self.gram).ravel(), self.squares, [self.weight, self.rows]])

    def variance(self, packed: NDArray[np.float64]) -> CoarseVariance | None:
        """The variance from these sums over all rows; None if the equations have no factor. M^3 flops."""
        M = len(self.L)
        F, squares = packed[: M * M].reshape(M, M).copy(), packed[M * M : -2]
        weight, rows = packed[-2:]
        ridge = self.coarse.lam * weight
        F.reshape(-1)[:: M + 1] += ridge
        if lapack.cholesky(F) != 0:
            return None
        free = M - ridge * lapack.diagonal_of_inverse(F).sum()
        # A row of weight w has the noise v mean(w) / w: the squares are weighted by w / mean(w), and so is W^T W.
        unit = squares / max(1.0, rows - free)
        return CoarseVariance(self.points, self.kernel, self.L, F, unit if self.targets else float(unit[0]))
