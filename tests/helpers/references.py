"""Kernel matrices and solutions by scikit-learn, for comparison."""

from __future__ import annotations

import warnings

import numpy as np
import scipy.sparse as sp
from scipy.spatial.distance import cdist
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.svm import SVC

from helpers.data import dense

METRICS = {"linear": "linear", "polynomial": "poly", "gaussian": "rbf", "sigmoid": "sigmoid"}


# Of the distance and of the kernel's parameters, which scikit-learn does not have.
DISTANCES = {
    "laplacian": lambda r, gamma, _: np.exp(-gamma * r),
    "matern32": lambda r, gamma, _: (1 + np.sqrt(6 * gamma) * r) * np.exp(-np.sqrt(6 * gamma) * r),
    "matern52": lambda r, gamma, _: (1 + np.sqrt(10 * gamma) * r + 10 / 3 * gamma * r**2) * np.exp(
        -np.sqrt(10 * gamma) * r
    ),
    "l1": lambda r, gamma, _: np.exp(-gamma * r),
    "rational": lambda r, gamma, degree: (1 + gamma * r**2 / degree) ** -degree,
    "wendland0": lambda r, gamma, degree: wendland(0, r * gamma, degree // 2 + 1),
    "wendland2": lambda r, gamma, degree: wendland(1, r * gamma, degree // 2 + 2),
    "wendland4": lambda r, gamma, degree: wendland(2, r * gamma, degree // 2 + 3),
}  # fmt: skip


# Products over the features: k of Wendland's function for one dimension.
PRODUCTS = {"wendland0_product": 0, "wendland2_product": 1, "wendland4_product": 2}


def wendland(k, r, ell):
    """Wendland's function of r with 2k continuous derivatives, as Table 9.1 of his book (2005) writes it."""
    q = [1, (ell + 1) * r + 1, ((ell**2 + 4 * ell + 3) * r**2 + (3 * ell + 6) * r + 3) / 3][k]
    return np.maximum(0, 1 - r) ** (ell + k) * q


def parameters(kernel):
    """A kernel's, as scikit-learn calls them."""
    every = {"gamma": kernel.gamma, "degree": kernel.degree, "coef0": kernel.coef0}
    names = {"linear": (), "gaussian": ("gamma",), "sigmoid": ("gamma", "coef0")}.get(kernel.kind, tuple(every))
    return {name: every[name] for name in names}


def matrix(kernel, X, Z=None):
    """Kernel values of all rows with all rows of `Z`, or with each other, in double precision."""
    X, Z = (None if rows is None else dense(rows).astype(np.float64) for rows in (X, Z))
    if kernel.kind in DISTANCES:
        r = cdist(X, X if Z is None else Z, "cityblock" if kernel.kind == "l1" else "euclidean")
        return DISTANCES[kernel.kind](r, kernel.gamma, kernel.degree)
    if kernel.kind in PRODUCTS:
        k, gaps = PRODUCTS[kernel.kind], np.abs(X[:, None] - (X if Z is None else Z))
        return wendland(k, kernel.gamma * gaps, k + 1).prod(axis=2)
    return pairwise_kernels(X, Z, metric=METRICS[kernel.kind], **parameters(kernel))


def by_differences(kernel, A, B):
    """Gaussian kernel values that lose nothing far from the origin: exp(-gamma |a - b|^2), in double precision."""
    A, B = dense(A).astype(np.float64), dense(B).astype(np.float64)
    return np.exp(-kernel.gamma * ((A[:, None, :] - B[None, :, :]) ** 2).sum(axis=2))


def ridge(sigma, alpha):
    """Gaussian kernel ridge regression; `alpha` is lambda times the number of rows, or the sum of their weights."""
    return KernelRidge(kernel="rbf", gamma=1 / (2 * sigma**2), alpha=alpha)


# -- the dual of an SVM, in beta = alpha y -------------------------------------------------------


def dual(K, beta):
    """Its objective."""
    return np.abs(beta).sum() - 0.5 * beta @ K @ beta


def violation(K, y, C, alpha):
    """The largest v of a row that may rise less the smallest of one that may fall, from nothing but alpha."""
    beta, upper, lower = alpha * y, np.maximum(0, C * y), np.minimum(0, C * y)
    v = y - K @ beta
    return v[beta < upper].max() - v[beta > lower].min()


def libsvm(kernel, X, y, C, tol, weights=None, most=-1):
    """Its dual coefficients, its decisions, and whether it ended by itself."""
    model = SVC(C=C, kernel=METRICS[kernel.kind], tol=tol, max_iter=most, **parameters(kernel))
    # It leaves rows of weight 0 out of support_'s numbers.
    rows = np.arange(len(y)) if weights is None else np.flatnonzero(weights)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X[rows], y[rows], sample_weight=None if weights is None else weights[rows])
    beta, coefficients = np.zeros(len(y)), model.dual_coef_
    beta[rows[model.support_]] = (coefficients.toarray() if sp.issparse(coefficients) else coefficients)[0]
    return beta, model.decision_function(X), model.fit_status_ == 0


# -- and without the bias, in alpha ------------------------------------------------------------


def violations(alpha, gradient, C):
    return np.abs(alpha - np.clip(alpha - gradient, 0, C))


def descend(Q, C, tol=1e-11):
    """Greedy coordinate descent with the whole matrix, one coordinate after the other: alpha."""
    alpha, gradient = np.zeros(len(Q)), -np.ones(len(Q))
    C = np.broadcast_to(np.asarray(C, float), len(Q))
    for _ in range(10**6):
        violated = violations(alpha, gradient, C)
        row = violated.argmax()
        if violated[row] <= tol:
            return alpha
        change = np.clip(alpha[row] - gradient[row] / max(Q[row, row], 1e-12), 0, C[row]) - alpha[row]
        alpha[row] += change
        gradient += change * Q[row]
    raise AssertionError("the reference does not converge")


def kept(columns, kernel, A, dtype, tasks=3):
    """All kernel values of the rows `A` with these columns, as they are kept."""
    store = np.full((len(A), columns.n), np.nan, dtype)
    for lo, hi in columns.tasks(tasks):
        columns.add(kernel, A, lo, hi, store=store)
    return store
