"""Duals with any linear term and bounds: both SMO solvers against SLSQP, and against LIBSVM's one-class SVM."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.svm import SVR, OneClassSVM

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.svm.dual import Dual
from casvm.methods import all_rows
from casvm.solver import smo
from casvm.solver.kernel_rows import KernelRows

KERNEL = Kernel("gaussian", gamma=0.5)
LIMITS = Limits(1e-7)
PLENTY = 1 << 26


@cache
def rows(n):
    X = np.random.default_rng(n).normal(size=(n, 3))
    X.flags.writeable = False
    return X


def alone(X, dual, limits=LIMITS):
    return smo.solve(KernelRows(X, KERNEL, "float64", PLENTY), dual, limits)


def together(X, dual, limits=LIMITS):
    return all_rows.solve(X, dual, smo.PartTraining(KERNEL, limits, PLENTY), Communicator(), 16)


solvers = pytest.mark.parametrize("solve", [alone, together])


def value(dual, K, beta):
    return 0.5 * beta @ K @ beta + dual.linear @ beta + dual.epsilon * np.abs(beta).sum()


def check(dual, K, got):
    """That it is a solution, and what it says of itself is so."""
    assert got.converged
    assert ((got.beta >= dual.lower) & (got.beta <= dual.upper)).all()
    assert got.beta.sum() == pytest.approx(dual.total, rel=1e-9, abs=1e-9)
    assert got.objective == pytest.approx(-value(dual, K, got.beta), rel=1e-9, abs=1e-9)
    np.testing.assert_allclose(got.decision, K @ got.beta + got.b, rtol=0, atol=1e-8)
    v = -dual.linear - K @ got.beta
    up = np.where(got.beta < 0, v + dual.epsilon, v - dual.epsilon)[got.beta < dual.upper]
    down = np.where(got.beta > 0, v - dual.epsilon, v + dual.epsilon)[got.beta > dual.lower]
    assert up.max(initial=-np.inf) - down.min(initial=np.inf) < LIMITS.tol


@solvers
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.filterwarnings("ignore:Values in x were outside bounds")  # of scipy 1.12's SLSQP, by a rounding error
def test_any_linear_term_and_bounds(seed, solve):
    rng, n = np.random.default_rng(seed), 40
    X, K = rows(n), rbf_kernel(rows(n), gamma=0.5)
    lower, upper = -rng.uniform(0, 2, n), rng.uniform(0, 2, n)
    lower[:5], upper[5:10] = 0, 0
    start = rng.uniform(lower, upper)
    dual = Dual(rng.normal(size=n), lower, upper, start, start.sum())
    got = solve(X, dual)
    check(dual, K, got)
    expected = minimize(
        lambda beta: value(dual, K, beta), start, jac=lambda beta: K @ beta + dual.linear, method="SLSQP",
        bounds=[*zip(lower, upper, strict=True)], options={"ftol": 1e-14, "maxiter": 1000},
        constraints={"type": "eq", "fun": lambda beta: beta.sum() - dual.total, "jac": np.ones_like},
    )  # fmt: skip
    assert expected.success
    assert got.objective == pytest.approx(-expected.fun, rel=1e-6)
    np.testing.assert_array_equal(dual.start, start)


@solvers
@pytest.mark.parametrize(("n", "nu"), [(60, 0.31), (900, 0.2)])
def test_one_class(n, nu, solve):
    X, K = rows(n), rbf_kernel(rows(n), gamma=0.5)
    start = np.clip(nu * n - np.arange(n), 0.0, 1.0)
    dual = Dual(np.zeros(n), np.zeros(n), np.ones(n), start, nu * n)
    got = solve(X, dual)
    check(dual, K, got)
    reference = OneClassSVM(gamma=0.5, nu=nu, tol=1e-7).fit(X)
    beta = np.zeros(n)
    beta[reference.support_] = reference.dual_coef_[0]
    assert got.objective == pytest.approx(-value(dual, K, beta), rel=1e-6)
    np.testing.assert_allclose(got.decision, reference.decision_function(X), rtol=0, atol=1e-4)


@solvers
def test_no_row_may_move(solve):
    """All are at their upper bounds: b is what a row that may fall allows."""
    X = rows(60)
    dual = Dual(np.zeros(60), np.zeros(60), np.ones(60), np.ones(60), 60.0)
    got = solve(X, dual)
    check(dual, rbf_kernel(X, gamma=0.5), got)
    assert got.iterations == 0
    assert got.decision.max() == pytest.approx(0, abs=1e-12)


@solvers
def test_regression(solve):
    """Two rows of the dual for each row of the data, as LIBSVM has them; and one, with a kink at 0."""
    X, epsilon, C = rows(150), 0.1, 2.0
    y = np.sin(2 * X[:, 0]) + 0.1 * X[:, 1]
    none, bound = np.zeros(150), np.full(150, C)
    dual = Dual(np.r_[epsilon - y, -epsilon - y], np.r_[none, -bound], np.r_[bound, none])
    twice = np.r_[X, X]
    got = solve(twice, dual)
    check(dual, rbf_kernel(twice, gamma=0.5), got)
    reference = SVR(C=C, gamma=0.5, epsilon=epsilon, tol=1e-7).fit(X, y)
    np.testing.assert_allclose(got.decision[:150], reference.predict(X), rtol=0, atol=1e-4)
    once = Dual(-y, -bound, bound, epsilon=epsilon)
    short = solve(X, once)
    check(once, rbf_kernel(X, gamma=0.5), short)
    assert short.objective == pytest.approx(got.objective, rel=1e-9)
    np.testing.assert_allclose(short.decision, got.decision[:150], rtol=0, atol=1e-6)
    again = solve(X, replace(once, start=np.where(np.arange(150) % 7, short.beta, 0.0)).repaired())
    check(once, rbf_kernel(X, gamma=0.5), again)
    assert again.objective == pytest.approx(got.objective, rel=1e-9)


def test_classification():
    dual = Dual.classification([1, -1, 1], [2.0, 3.0, 0.0], [0.5, 0.5, 0.0])
    assert dual.linear.tolist() == [-1, 1, -1]
    assert (dual.lower.tolist(), dual.upper.tolist()) == ([0, -3, 0], [2, 0, 0])
    assert dual.start.tolist() == [0.5, -0.5, 0]
    assert (dual.n, dual.total, dual.largest_bound) == (3, 0.0, 3.0)
    assert Dual.classification([1, -1], [1.0, 1.0]).start is None


ZERO, ONE = np.zeros(3), np.ones(3)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((ZERO, ZERO[:2], ONE), "the lower bounds: 3 numbers are needed, one per row, not the shape \\(2,\\)"),
        ((ZERO, ZERO, ONE[:, None]), "the upper bounds: 3 numbers"),
        ((ZERO, ZERO, ONE, ONE[:1]), "the start: 3 numbers"),
        ((ZERO, ONE, ZERO), "a lower one is above the upper one"),
        ((ZERO, ZERO, np.full(3, np.nan)), "a lower one is above the upper one"),
    ],
)
def test_arrays_that_do_not_fit(arrays, message):
    with pytest.raises(InputError, match=message):
        Dual(*arrays)


@solvers
@pytest.mark.parametrize(
    ("lower", "start", "total", "message"),
    [
        (ONE, None, 0.0, "within the bounds"),
        (ZERO, 2.5 * ONE, 7.5, "within the bounds"),
        (ZERO, np.full(3, np.nan), 0.0, "within the bounds"),
        (ZERO, ONE, 2.0, "its sum is 3, and it must be 2"),
        (ZERO, None, 1.0, "its sum is 0, and it must be 1"),
    ],
)
def test_starts_that_are_not_feasible(lower, start, total, message, solve):
    with pytest.raises(InputError, match=f"the start: .*{message}"):
        solve(rows(3), Dual(ZERO, lower, 2 * ONE, start, total))
