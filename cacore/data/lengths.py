"""Length scales of the features that minimise leave-one-out errors of kernel ridge regression, by their gradient.

With G = K + diag(ridge) and H its inverse, the error of row i by the model without it is e_i = alpha_i / H_ii. If G
changes by dG, alpha changes by -H dG alpha and H by -H dG H. The weighted sum of e_i^2 then changes by -<dG, B> with
B = (H u) alpha^T + H diag(v) H, u_i = 2 w_i e_i / H_ii and v_i = -2 w_i e_i^2 / H_ii.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.optimize
from numpy.typing import NDArray
from scipy.linalg import lapack

from cacore.comm import Communicator
from cacore.data.rows import dense
from cacore.kernels.gradients import slope as slope_of_factor
from cacore.kernels.registry import L1
from cacore.kernels.values import Kernel

FARTHEST = 4.0  # largest change of a scale's logarithm


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Rows whose leave-one-out errors, inside this part, count.

    Attributes
    ----------
    X : ndarray of float64, shape (m, d)
    Y : ndarray of float64, shape (m, t)
        Centred targets.
    ridge, weights : ndarray of float64, shape (m,)
        Added to the diagonal of K; weights of the squared errors.
    """

    X: NDArray[np.float64]
    Y: NDArray[np.float64]
    ridge: NDArray[np.float64]
    weights: NDArray[np.float64]

    def first(self, count: int) -> LeftOut:
        """The first rows alone, with a ridge that has the same share in fewer rows."""
        share = count / len(self.Y)
        return LeftOut(self.X[:count], self.Y[:count], share * self.ridge[:count], self.weights[:count])


def best_scales(
    kernel: Kernel, parts: Sequence[LeftOut], d: int, evaluations: int, comm: Communicator, tied: bool = False
) -> NDArray[np.float64]:  # fmt: skip
    """Factors of the d features and of the ridge, shape (d + 1,), that minimise the errors in all parts; collective.

    Parameters
    ----------
    kernel : Kernel
        A kernel of a distance.
    parts : sequence of LeftOut
        This rank's.
    d, evaluations : int
        Number of features, and of evaluations of the error at most.
    comm : Communicator
    tied : bool
        True for one factor that all features share, which changes the kernel's width only.

    Notes
    -----
    L-BFGS on the logarithms, with the same steps on all ranks. 3 m^3 flops per part and evaluation, and one Allreduce
    of d + 3 numbers.
    """
    spread = np.eye(d + 1)
    if tied:
        spread = np.vstack([spread[:d].any(axis=0), spread[d]]).astype(np.float64)

    def error(free: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Logarithm of the mean squared error, the same on all ranks, and its gradient."""
        total, factors = np.zeros(d + 3), np.exp(free @ spread)
        for one in parts:
            left, slopes = slope(kernel, one.X * factors[:d], one.Y, factors[d] * one.ridge, one.weights)
            total += np.concatenate([[left, one.weights.sum()], slopes])
        with comm.phase("train"):
            total = comm.allreduce(total)
        with comm.uncounted():  # the ranks' sums may differ in the last bit
            total = comm.bcast(total)
        if not 0.0 < total[0] < np.inf:
            return 1e3, np.zeros(len(free))  # no solution: L-BFGS backtracks
        return math.log(total[0] / total[1]), spread @ (total[2:] / total[0])

    found = scipy.optimize.minimize(
        error, np.zeros(len(spread)), jac=True, method="L-BFGS-B", bounds=[(-FARTHEST, FARTHEST)] * len(spread),
        options={"maxfun": evaluations},
    )  # fmt: skip
    factors = np.exp(found.x @ spread)
    flat = (spread.T @ found.jac)[:d] == 0.0  # a constant feature has no effect
    return np.append(np.where(flat, factors[:d].min(), factors[:d]), factors[d])


def slope(
    kernel: Kernel, X: NDArray[np.float64], Y: NDArray[np.float64], ridge: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> tuple[float, NDArray[np.float64]]:  # fmt: skip
    """Sum of squared leave-one-out errors, and its derivatives by the logarithms of the scales and the ridge.

    Parameters
    ----------
    kernel : Kernel
        A kernel of a distance.
    X : ndarray of float64, shape (m, d)
    Y : ndarray of float64, shape (m, t)
        Centred targets.
    ridge : ndarray of float64, shape (m,)
        Added to the diagonal of K.
    weights : ndarray of float64, shape (m,)
        Weights of the rows' squared errors.

    Returns
    -------
    total : float
        Infinite if the matrix is not positive definite.
    slopes : ndarray of float64, shape (d + 1,)
        Derivatives by the logarithm of each feature's scale, and by that of a common factor of the ridge.

    Notes
    -----
    3 m^3 + 2 m^2 (d + 2 t) flops; for l1 distances 3 m^2 d instead of the products with d, and about 20 m^2 d for a
    product over the features. Five m x m matrices.
    """
    m, d = X.shape
    points = kernel.points(X)
    t = kernel.arguments(points, points)
    G = kernel.block(points, points)
    G.reshape(-1)[:: m + 1] = kernel.diagonal(X) + ridge
    factor, info = lapack.dpotrf(G.T, lower=1)
    if info:
        return np.inf, np.zeros(d + 1)
    H = lapack.dpotri(factor, lower=1)[0]
    H = np.tril(H) + np.tril(H, -1).T
    alpha, diagonal = H @ Y, np.diagonal(H)
    errors = alpha / diagonal[:, None]
    u = 2.0 * weights[:, None] * errors / diagonal[:, None]
    v = -2.0 * weights * np.square(errors).sum(axis=1) / diagonal
    B = (H @ u) @ alpha.T + (H * v) @ H
    by_ridge = -(ridge @ np.diagonal(B))
    W = B * (t if kernel.separable else kernel.derivative(t))
    W = (W + W.T) / 2.0
    if kernel.separable:
        by_scale = np.array([-np.vdot(W, (x[:, None] - x) * slope_of_factor(kernel, x, x)) for x in X.T])
    elif kernel.declared.of == L1:
        by_scale = np.array([-np.vdot(W, np.abs(x[:, None] - x)) for x in X.T])
    else:
        Z = dense(points.X)
        by_scale = -4.0 * (W.sum(axis=1) @ np.square(Z) - np.einsum("ij,ij->j", Z, W @ Z))
    total = float(weights @ np.square(errors).sum(axis=1))
    return total, np.append(by_scale, by_ridge)
