"""The reference of the fuzzer `numbers`: its kernels are all kernels, and a wrong solution is seen."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz import numbers, reference
from fuzz.runner import run
from sklearn.svm import SVC

from cacore.kernels import Kernel
from cacore.kernels.registry import KINDS


@pytest.mark.parametrize("name", reference.KERNELS)
def test_formulas(name):
    rng = np.random.default_rng(0)
    A = rng.normal(size=(20, 3))
    kernel = Kernel(name, gamma=0.3, degree=3, coef0=1.0)
    points = kernel.points(A)
    expected = kernel.block(points, points)
    assert np.allclose(reference.kernel_matrix(name, A, A, 0.3, 1.0, 3), expected, rtol=1e-10, atol=1e-13)


def test_every_kernel_has_a_formula():
    home = "cacore.kernels.functions"  # other tests declare kernels of their own
    assert set(reference.KERNELS) == {name for name, kind in KINDS.items() if kind.derivative.__module__ == home}


def test_a_perturbed_solution_is_seen():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(80, 2))
    y = np.where(X[:, 0] + 0.3 * rng.normal(size=80) > 0, 1.0, -1.0)
    K = reference.kernel_matrix("gaussian", X, X, 0.5)
    svc = SVC(C=10.0, kernel="precomputed", tol=1e-4).fit(K, y)
    beta = np.zeros(80)
    beta[svc.support_] = svc.dual_coef_[0]
    bounds = np.minimum(0, 10 * y), np.maximum(0, 10 * y)
    assert numbers._judged(K, y, beta, *bounds, svc.intercept_[0], 1e-3) == ""
    assert "bias off" in numbers._judged(K, y, beta, *bounds, svc.intercept_[0] + 0.01, 1e-3)
    free = np.flatnonzero((np.abs(beta) > 0.01) & (np.abs(beta) < 9.99))[:2]
    beta[free] += (0.01, -0.01)
    assert "violation" in numbers._judged(K, y, beta, *bounds, svc.intercept_[0], 1e-3)


def test_an_error_of_the_package_is_seen(monkeypatch):
    """Coefficients that are off by a thousandth, as those of wrong kernel values would be."""
    fit = numbers.SMOSVC.fit

    def wrong(self, X, y):
        fit(self, X, y)
        next(iter(self.model_.parts.values())).coef *= 1.001
        return self

    ends = {numbers.case("svc", number, 0, None) for number in range(4)}
    monkeypatch.setattr(numbers.SMOSVC, "fit", wrong)
    seen = {numbers.case("svc", number, 0, None) for number in range(4)}
    assert ends == {"right"}
    assert all("violation" in end or "outside" in end for end in seen)


def test_cases_of_every_form():
    ends = run("numbers", numbers.FORMS, 1, seed=0)
    assert {end for told in ends.values() for end in told} <= set(numbers.GOOD)
