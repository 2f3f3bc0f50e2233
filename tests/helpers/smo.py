"""Problems for the local SMO solver, and the check of its solution."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.svm.dual import Dual
from casvm.solver import smo
from helpers.references import dual, libsvm, matrix, violation

PLENTY = 1 << 28


def solve(gram, y, C, limits=None, start=None, watch=None):
    """The dual of C-SVC."""
    return smo.solve(gram, Dual.classification(y, C, start), limits, watch)


def check(solution, K, y, C, tol, precision=1e-9):
    """That it is a solution, and that what it says of itself is so; `precision` is that of the kernel values."""
    alpha = solution.alpha
    scale = max(1.0, np.abs(K).max()) * max(1.0, alpha.sum())
    assert np.isfinite(alpha).all()
    assert (alpha >= 0).all()
    assert (alpha <= C).all()
    assert abs(alpha @ y) <= 1e-9 * alpha.sum()
    assert solution.converged == (solution.gap < tol)
    assert solution.gap == pytest.approx(violation(K, y, C, alpha), abs=precision * scale)
    np.testing.assert_allclose(solution.decision, K @ (alpha * y) + solution.b, rtol=0, atol=precision * scale)
    assert solution.objective == pytest.approx(dual(K, alpha * y), rel=1e-9, abs=1e-9)


HARD = Kernel("gaussian", gamma=0.5), 10.0
LIMITS = Limits(tol=1e-4)


@cache
def many(n=1500, seed=0):
    """Two classes with a curved border and 5 targets in 100 wrong; zeros, so that CSR is something else."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    y = np.where(np.sin(2 * X[:, 0]) + X[:, 1] > 0, 1.0, -1.0)
    y[rng.random(n) < 0.05] *= -1
    X[np.abs(X) < 0.2] = 0
    X.flags.writeable = False
    y.flags.writeable = False
    return X, y


@cache
def reference(n=1500, seed=0, kernel=HARD[0], C=HARD[1]):
    """K, and LIBSVM's objective and decisions."""
    X, y = many(n, seed)
    K = matrix(kernel, X)
    beta, decision, _ = libsvm(kernel, X, y, C, 1e-5)
    return K, dual(K, beta), decision
