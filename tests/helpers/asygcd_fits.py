"""Fits of Asy-GCD's estimator, and the check that one is the solution."""

from __future__ import annotations

import numpy as np
import pytest

from asygcd import AsyGCDSVC
from helpers.checks import near
from helpers.references import descend

updates = pytest.mark.parametrize("update", ["owned", "atomic", "stochastic"])
TOL, GAMMA = 1e-6, 0.3


def fitted(X, y, weights=None, **given):
    """On one thread, which does the same in each fit, unless told otherwise."""
    return AsyGCDSVC(**{"gamma": GAMMA, "tol": TOL, "threads": 1, **given}).fit(X, y, weights)


def is_solution(model, K, y, T_kernel, T, C=1.0, atol=1e-4, rel=1e-6):
    """Objective and decisions are those of the reference. `T_kernel` has a line a row of `T`."""
    s = np.where(y == model.classes_[1], 1.0, -1.0)
    Q = K * np.outer(s, s)
    alpha = descend(Q, C, 1e-10)
    assert model.objective_.tolist() == [pytest.approx(alpha.sum() - 0.5 * alpha @ Q @ alpha, rel=rel)]
    expected = T_kernel @ (alpha * s)
    got = model.decision_function(T)
    assert (got.dtype, got.shape) == (np.float64, (T.shape[0],))
    near(got, expected, atol)
    sure = np.abs(expected) > atol
    np.testing.assert_array_equal(model.predict(T)[sure], model.classes_[(expected > 0).astype(int)][sure])
    assert model.fit_status_ == 0
