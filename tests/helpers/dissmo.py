"""A problem for Dis-SMO's solver on one rank, and the check of its solution."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp

from cacore.kernels import Kernel
from cacore.limits import Limits
from helpers.data import curved
from helpers.references import dual, libsvm, matrix, violation

PLENTY = 1 << 26
KERNELS = {
    "linear": (Kernel("linear"), 0.1),
    "polynomial": (Kernel("polynomial", gamma=0.2, degree=2, coef0=1.0), 0.3),
    "gaussian": (Kernel("gaussian", gamma=0.5), 2.0),
    "smooth": (Kernel("gaussian", gamma=0.05), 100.0),
    "sharp": (Kernel("gaussian", gamma=5.0), 1.0),
    "sigmoid": (Kernel("sigmoid", gamma=0.01), 10.0),  # nearly linear: it has one solution then
}
N, (KERNEL, C) = 240, KERNELS["gaussian"]
FORMS = {"dense": np.array, "csr": sp.csr_matrix, "dense float32": np.float32,
         "csr float32": lambda X: sp.csr_matrix(np.float32(X))}  # fmt: skip
LIMITS = Limits(1e-3)


def problem(n=N, seed=0):
    return curved(n, seed, np.float32)


@cache
def reference(name="gaussian", n=N, seed=0):
    """K, and LIBSVM's objective."""
    (X, y), (kernel, bound) = problem(n, seed), KERNELS[name]
    K = matrix(kernel, X)
    return K, dual(K, libsvm(kernel, X, y, bound, 1e-6)[0])


def check(share, K, y, bounds, tol, precision=1e-8):
    """That it is feasible, and what it says of itself is so; whether it is a solution, is for the caller to ask."""
    alpha, scale = share.alpha, max(1.0, np.abs(K).max()) * max(1.0, share.alpha.sum())
    assert ((alpha >= 0) & (alpha <= bounds)).all()
    assert abs(alpha @ y) <= 1e-9 * max(1.0, alpha.sum())
    assert share.objective == pytest.approx(dual(K, alpha * y), rel=1e-9, abs=1e-9)
    assert share.gap == pytest.approx(violation(K, y, bounds, alpha), abs=precision * scale)
    assert share.converged == (share.gap < tol)
    v, beta = y - K @ (alpha * y), alpha * y
    rise, fall = beta < np.maximum(0, bounds * y), beta > np.minimum(0, bounds * y)
    assert share.b == pytest.approx(0.5 * (v[rise].max() + v[fall].min()), abs=precision * scale)
