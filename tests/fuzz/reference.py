"""Kernel values, optimality and ridge systems in double precision, from formulas, for the fuzzer `numbers`.

Nothing here calls the package. Rows are centred in extended precision before they are rounded to double, so that kernel
values of rows far from the origin have all their digits.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import cholesky, lstsq, solve
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from scipy.special import expit

EPS = np.finfo(float).eps
# Kernels of the inner product; of the squared distance; of distances, whose gamma is the inverse of a length.
PRODUCTS = ("linear", "polynomial", "sigmoid")
SQUARES = ("gaussian", "matern32", "matern52", "rational")
LENGTHS = ("laplacian", "l1", "wendland0", "wendland2", "wendland4", "wendland0_product", "wendland2_product",
           "wendland4_product")  # fmt: skip
KERNELS = (*PRODUCTS, *SQUARES, *LENGTHS)


def centred(X, about):
    """Rows X minus the mean of the rows `about`, subtracted in extended precision, in double."""
    return (X.astype("g") - about.astype("g").mean(axis=0)).astype(float)


def kernel_matrix(kernel, A, B, gamma=1.0, coef0=1.0, degree=3):
    """K(A, B); for kernels of distances the rows are centred already."""
    if kernel in PRODUCTS:
        inner = (A.astype("g") @ B.astype("g").T).astype(float)
        if kernel == "linear":
            return inner
        return (gamma * inner + coef0) ** degree if kernel == "polynomial" else np.tanh(gamma * inner + coef0)
    if kernel == "l1":
        return np.exp(-gamma * cdist(A, B, "cityblock"))
    if kernel.endswith("_product"):
        factors = (_ending(kernel, gamma * cdist(A[:, k : k + 1], B[:, k : k + 1]), None) for k in range(A.shape[1]))
        return np.prod(list(factors), axis=0)
    return _of_distance(kernel, cdist(A, B), gamma, degree)


def _of_distance(kernel, r, gamma, degree):
    if kernel == "gaussian":
        return np.exp(-gamma * r**2)
    if kernel == "laplacian":
        return np.exp(-gamma * r)
    if kernel == "rational":
        return (1 + gamma * r**2 / degree) ** -float(degree)
    if kernel.startswith("matern"):
        smooth = kernel == "matern52"
        r = np.sqrt((10 if smooth else 6) * gamma) * r
        return (1 + r + (r**2 / 3 if smooth else 0)) * np.exp(-r)
    return _ending(kernel, gamma * r, degree)


def _ending(kernel, r, degree):
    """Wendland's functions of r, for rows of `degree` features, or factors of one feature."""
    order = int(kernel[8])
    rest = np.maximum(1 - r, 0.0)
    if degree is None:
        return rest * (1, 0, rest**2 * (1 + 3 * r), 0, rest**4 * (1 + 5 * r + 8 * r**2))[order]
    ell = degree // 2 + order // 2 + 1
    if order == 0:
        return rest**ell
    if order == 2:
        return rest ** (ell + 1) * (1 + (ell + 1) * r)
    return rest ** (ell + 2) * (1 + (ell + 2) * r + (ell**2 + 4 * ell + 3) * r**2 / 3)


def width(kernel, X, rng):
    """Typical distance of rows, or for kernels of products the root mean square of a row; never 0."""
    pairs = rng.integers(len(X), size=(2, 500))
    gaps = X[pairs[0]] - X[pairs[1]]
    if kernel in PRODUCTS:
        size = np.sqrt(np.mean(np.sum(X**2, axis=1)))
    elif kernel == "l1":
        size = np.median(np.abs(gaps).sum(axis=1))
    elif kernel.endswith("_product"):
        size = np.median(np.abs(gaps).max(axis=1))
    else:
        size = np.median(np.sqrt(np.sum(gaps**2, axis=1)))
    return float(size) if size > 0 else 1.0


class Optimality:
    """Largest violation of the optimality conditions by beta, the interval of the bias, and the noise of double.

    Minimise 1/2 beta'K beta - y'beta + epsilon |beta|_1 within bounds, with a fixed sum unless `bias` is False. Then
    epsilon is 0, and the violation is that of Asy-GCD, the longest projected gradient step (eq. 4.11).
    """

    def __init__(self, K, y, beta, lower, upper, epsilon=0.0, bias=True):
        v = y - K @ beta
        self.noise = 64 * EPS * float(np.max(np.abs(K) @ np.abs(beta) + np.abs(y), initial=1e-300))
        slack = 1e-12 * (upper - lower)
        rises = (v - np.where(beta >= 0, epsilon, -epsilon))[beta < upper - slack]
        falls = (v + np.where(beta <= 0, epsilon, -epsilon))[beta > lower + slack]
        if bias:
            self.highest, self.lowest = rises.max(initial=-np.inf), falls.min(initial=np.inf)
            self.violation = float(max(0.0, self.highest - self.lowest))
        else:
            self.highest = self.lowest = 0.0
            self.violation = float(np.max(np.abs(beta - np.clip(beta + v, lower, upper)), initial=0.0))
        outside = np.max(np.maximum(lower - beta, beta - upper) / (upper - lower), initial=0.0)
        self.outside = float(outside)

    def off(self, b):
        """Distance of a bias to the interval that is optimal."""
        ends = sorted((self.highest, self.lowest))
        return float(max(0.0, ends[0] - b, b - ends[1]))


def ridge(K, y, lam):
    """Coefficients of (K + lam n I) alpha = y, and an estimate of the condition."""
    n = len(y)
    ridge = lam * n
    return solve(K + ridge * np.eye(n), y, assume_a="sym"), float(np.trace(K)) / ridge + 1


def on_points(A, K, y, lam):
    """Coefficients c that minimise |A c - y|^2 + lam n c'K c; LinAlgError if K is not positive definite."""
    scale = np.sqrt(lam * len(y))
    stacked = np.vstack([A, scale * cholesky(K)])
    return lstsq(stacked, np.concatenate([y, np.zeros(len(K))]))[0]


def platt(decisions, positive, prior=None):
    """A and B of the sigmoid 1 / (1 + exp(A f + B)), see Platt (1999), by a general minimiser.

    A part has a `prior` A and B, those of all parts, which count as 100 rows.
    """
    counts = positive.sum(), (~positive).sum()
    targets = np.where(positive, (counts[0] + 1) / (counts[0] + 2), 1 / (counts[1] + 2))
    start = [0.0, np.log((counts[1] + 1) / (counts[0] + 1))]
    unit = np.abs(decisions).mean() or 1.0
    if prior is not None:
        share = 100 / (100 + len(decisions))
        targets = (1 - share) * positive + share * expit(-(prior[0] * decisions + prior[1]))
        start = [prior[0] * unit, prior[1]]

    def loss(parameters):
        z = parameters[0] * decisions / unit + parameters[1]
        slope = targets - expit(-z)
        value = np.sum(np.logaddexp(0, z) - (1 - targets) * z)
        return value, np.array([np.sum(slope * decisions / unit), np.sum(slope)])

    A, B = minimize(loss, start, jac=True, method="BFGS").x
    return A / unit, B
