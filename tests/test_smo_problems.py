"""The local SMO solver against LIBSVM (scikit-learn's SVC): small, degenerate, real and indefinite problems."""

from __future__ import annotations

import bz2
import io
import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.references import by_differences, dual, libsvm, matrix, violation
from helpers.smo import HARD, PLENTY, check, many, solve
from sklearn.datasets import load_breast_cancer, load_svmlight_file, load_wine
from sklearn.metrics.pairwise import pairwise_kernels

from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.svm.dual import Dual
from casvm.solver.class_pairs import ClassRows, solve_classes
from casvm.solver.kernel_rows import KernelRows
from casvm.solver.smo import solve_part

SMALL_SET = 128  # instead of 2048


# -- small problems ----------------------------------------------------------------------------


def drawn(kind, seed):
    """Rows, targets, kernel and C: few or many rows, classes that overlap or hardly, in balance or not, rows twice."""
    rng = np.random.default_rng([seed, len(kind)])
    n, d = int(rng.integers(4, 151)), int(rng.integers(1, 9))
    y = np.where(rng.random(n) < rng.choice([0.5, 0.1]), 1.0, -1.0)
    y[:2] = 1, -1
    X = rng.normal(size=(n, d)) + rng.uniform(0, 1.5) * y[:, None] / np.sqrt(d)
    again = rng.integers(0, n, n // 5)
    X[again] = X[rng.integers(0, n, len(again))]
    if rng.random() < 0.3:
        X[np.abs(X) < 0.5] = 0
        X = sp.csr_matrix(X)
    gamma, coef0 = 10 ** rng.uniform(-1.5, 0.5) / d, rng.uniform(0, 1) * (-1 if kind == "sigmoid" else 1)
    kernel = Kernel(kind, gamma=gamma, degree=int(rng.integers(2, 4)), coef0=coef0)
    return X, y, kernel, 10 ** rng.uniform(-2, 2)


@pytest.mark.parametrize("kind", ["linear", "polynomial", "gaussian"])
def test_random_problems_as_libsvm_solves_them(kind):
    compared = 0
    for seed in range(50):
        X, y, kernel, C = drawn(kind, seed)
        K = matrix(kernel, X)
        got = solve(KernelRows(X, kernel, "float64", PLENTY), y, np.full(len(y), C), Limits(tol=1e-6))
        assert got.converged
        check(got, K, y, C, 1e-6)
        beta, decision, ended = libsvm(kernel, X, y, C, 1e-6, most=300_000)
        best = dual(K, beta)
        assert got.objective >= best - 1e-6 * abs(best), seed
        if not ended:  # some linear ones take it more than 10^8 pairs
            continue
        compared += 1
        assert got.objective == pytest.approx(best, rel=1e-6), seed
        np.testing.assert_allclose(got.decision, decision, rtol=1e-3, atol=1e-3, err_msg=str(seed))
        clear = np.abs(decision) > 1e-2
        assert (np.sign(got.decision) == np.sign(decision))[clear].all()
    assert compared >= 40


@pytest.mark.parametrize("small_set", [False, True])
def test_random_problems_with_kernels_that_are_not_positive_definite(small_set, tuned):
    """There is no one solution then: what is found ends, is feasible and meets the stopping rule."""
    if small_set:
        tuned(working_set=16)
    for seed in range(50):
        X, y, kernel, C = drawn("sigmoid", seed)
        limits = Limits(tol=1e-6, max_iter=10**6)
        got = solve(KernelRows(X, kernel, "float64", PLENTY), y, np.full(len(y), C), limits)
        assert got.converged, seed
        check(got, matrix(kernel, X), y, C, 1e-6)


@pytest.mark.parametrize("kind", ["linear", "polynomial", "gaussian"])
def test_random_problems_with_a_bound_of_its_own_for_each_row(kind):
    """LIBSVM's sample weights, which drop rows of weight 0."""
    for seed in range(10):
        X, y, kernel, C = drawn(kind, seed)
        C, weights = min(C, 1.0), np.random.default_rng(seed).choice([0.0, 0.3, 1.0, 4.0], len(y))
        weights[:2] = 1
        K = matrix(kernel, X)
        got = solve(KernelRows(X, kernel, "float64", PLENTY), y, C * weights, Limits(tol=1e-6))
        assert got.converged
        check(got, K, y, C * weights, 1e-6)
        assert (got.alpha[weights == 0] == 0).all()
        beta, decision, ended = libsvm(kernel, X, y, C, 1e-6, weights, most=300_000)
        if ended:
            assert got.objective == pytest.approx(dual(K, beta), rel=1e-6), seed
            np.testing.assert_allclose(got.decision, decision, rtol=1e-3, atol=1e-3, err_msg=str(seed))


def test_two_rows():
    """Both meet at alpha = 2 / |x - z|^2 for a linear kernel, or at C."""
    X, y = np.array([[1.0, 2.0], [3.0, -1.0]]), np.array([1.0, -1.0])
    for C, expected in ((10.0, 2 / 13), (0.1, 0.1)):
        got = solve(KernelRows(X, Kernel("linear"), "float64", PLENTY), y, np.full(2, C))
        np.testing.assert_allclose(got.alpha, expected, rtol=1e-12)


# -- more rows than a working set takes ----------------------------------------------------------


@pytest.fixture
def small_set(tuned):
    """Small problems need all that large ones do: rounds, looks between pairs, and rows of K that are read again."""
    tuned(working_set=SMALL_SET, smo_chunk=1000, touch=0.0)


# -- rows that make trouble --------------------------------------------------------------------


def trouble():
    X, y = (part[:300] for part in many())
    Z = X.copy()
    Z[::3] = 0
    same, opposite = np.ones((300, 4)), np.tile([1.0, -1.0], 150)
    twice = np.repeat(X[:150], 2, axis=0)
    return {
        "gamma 1e6": (X, y, Kernel("gaussian", gamma=1e6)),
        "gamma 1e300": (X, y, Kernel("gaussian", gamma=1e300)),
        "gamma 1e-12": (X, y, Kernel("gaussian", gamma=1e-12)),
        "gamma 1e-300": (X, y, Kernel("gaussian", gamma=1e-300)),
        "all rows equal": (same, y, Kernel("gaussian")),
        "all rows equal, linear": (same, y, Kernel("linear")),
        "twice, opposite": (twice, opposite, Kernel("gaussian")),
        "twice, opposite, linear": (twice, opposite, Kernel("linear")),
        "zeros": (sp.csr_matrix((300, 4)), y, Kernel("linear")),
        "some zeros": (sp.csr_matrix(Z), y, Kernel("gaussian")),
        "some zeros, linear": (sp.csr_matrix(Z), y, Kernel("linear")),
        "large values": (1e3 * X, y, Kernel("polynomial", degree=5, coef0=1.0)),
        "tiny values": (1e-15 * X, y, Kernel("linear")),
    }


@pytest.mark.parametrize("size", [16, 2048])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", trouble())
def test_degenerate_rows_terminate(name, dtype, size, tuned):
    tuned(working_set=size)
    X, y, kernel = trouble()[name]
    got = solve(KernelRows(X, kernel, dtype, PLENTY), y, np.full(300, 10.0), Limits(max_iter=10**5))
    assert got.converged == (got.gap < 1e-3)
    assert np.isfinite(got.alpha).all()
    assert np.isfinite(got.b)
    assert ((got.alpha >= 0) & (got.alpha <= 10)).all()
    assert abs(got.alpha @ y) <= 1e-9 * got.alpha.sum()
    # That one would take anybody millions of pairs.
    assert got.converged or name == "large values"


@pytest.mark.parametrize("C", [1e-12, 1e12])
def test_any_bound(C):
    X, y = (part[:300] for part in many())
    got = solve(KernelRows(X, HARD[0], "float64", PLENTY), y, np.full(300, C))
    assert got.converged
    check(got, matrix(HARD[0], X), y, C, 1e-3)


@pytest.mark.parametrize("scale", [1.0, 1e-12])
def test_one_row_against_many(scale):
    X = many()[0][:200]
    y = np.where(np.arange(200) == 77, 1.0, -1.0)
    got = solve(KernelRows(X, HARD[0], "float64", PLENTY), y, np.full(200, scale))
    assert got.converged
    check(got, matrix(HARD[0], X), y, scale, 1e-3)


# -- real rows ---------------------------------------------------------------------------------


def first_rows(path, count):
    with bz2.open(path) as file:
        X, y = load_svmlight_file(io.BytesIO(b"".join(itertools.islice(file, count))), n_features=22)
    return X.toarray(), y


def test_ijcnn1(data):
    (X, y), (Z, z) = first_rows(data / "ijcnn1.bz2", 5000), first_rows(data / "ijcnn1.t.bz2", 5000)
    kernel, C = Kernel("gaussian", gamma=2.0), 32.0
    got = solve(KernelRows(X, kernel, "float32", PLENTY), y, np.full(len(y), C))
    beta = libsvm(kernel, X, y, C, 1e-3)[0]
    K = matrix(kernel, X)
    assert got.converged
    check(got, K, y, C, 1e-3, 1e-7)
    assert got.objective == pytest.approx(dual(K, beta), rel=1e-6)
    support = np.count_nonzero(beta)
    assert abs(np.count_nonzero(got.alpha) - support) <= 0.01 * support
    rows = np.flatnonzero((got.alpha > 0) | (beta != 0))
    K = pairwise_kernels(Z, X[rows], metric="rbf", gamma=2.0)
    v = y - matrix(kernel, X) @ beta
    free = (beta != 0) & (np.abs(beta) < C)
    right = [
        np.count_nonzero(np.where(decision > 0, 1, -1) == z)
        for decision in (K @ (got.alpha * y)[rows] + got.b, K @ beta[rows] + v[free].mean())
    ]
    assert abs(right[0] - right[1]) <= 0.0002 * len(z)


# -- duals that are flat: far bounds, and rows that are alike ---------------------------------------


@pytest.mark.parametrize("load", [load_wine, load_breast_cancer])
def test_unscaled_features_and_large_bounds_end_near_the_exact_solution(load):
    """A violation within the tolerance had left decisions up to 342 tolerances away, after a million pairs."""
    X, labels = load(return_X_y=True)
    y = np.where(labels > 0, 1.0, -1.0)
    kernel, C = Kernel("gaussian", 1 / (X.shape[1] * X.var())), np.full(len(y), 1e6)
    K = by_differences(kernel, X, X)
    ours, finer = (solve_part(X, kernel, Dual.classification(y, C), Limits(tol), PLENTY) for tol in (1e-3, 1e-7))
    assert violation(K, y, C, finer.alpha) < 1e-6  # so that it is the exact solution, whatever found it
    assert violation(K, y, C, ours.alpha) < 1.01e-3
    np.testing.assert_allclose(ours.decision, finer.decision, rtol=0, atol=1e-2)
    assert ours.objective == pytest.approx(finer.objective, rel=1e-8)
    assert ours.iterations < 500 * len(y)


@pytest.mark.parametrize("name", ["linear", "regression", "one class"])
def test_flat_duals_stay_feasible_and_end_within_the_tolerance(name):
    """Rows that occur five times, whose kernel matrix is singular, and coefficients with a kink at 0."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.normal(size=(60, 3)), 5, axis=0)
    problem = {
        "linear": Dual.classification(np.where(rng.random(300) < 0.5, 1.0, -1.0), np.full(300, 1e3)),
        "regression": Dual.regression(np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=300), np.full(300, 1e5), 0.05),
        "one class": Dual.one_class(np.full(300, 1e4), 0.02),
    }[name]
    kernel = Kernel("linear") if name == "linear" else Kernel("gaussian", 0.05)
    solution = solve_part(X, kernel, problem, Limits(1e-4), PLENTY)
    beta, v = solution.beta, -problem.linear - matrix(kernel, X) @ solution.beta
    assert solution.converged
    assert (beta >= problem.lower).all()
    assert (beta <= problem.upper).all()
    assert beta.sum() == pytest.approx(problem.total, abs=1e-9 * np.abs(beta).sum())
    rise = v + np.where(beta < 0, problem.epsilon, -problem.epsilon)
    fall = v + np.where(beta > 0, -problem.epsilon, problem.epsilon)
    scale = np.abs(beta).sum()
    assert rise[beta < problem.upper].max() - fall[beta > problem.lower].min() < 1e-4 + 1e-12 * scale


@pytest.mark.parametrize(("gamma", "C"), [(0.5, 10.0), (0.05, 30.0), (1.0, 3.0)])
def test_free_rows_that_never_moved_have_their_kernel_values(gamma, C, tuned):
    """Without an epsilon a coefficient of 0 is free, though its row of K was not computed when the others were."""
    tuned(pairs_per_row=1)
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(200, 2)), 100.0 + 50.0 * np.arange(40)[:, None] * np.ones((1, 2))])
    y = np.concatenate([rng.choice([-3.0, 3.0], 200) + rng.normal(size=200), 0.01 * rng.normal(size=40)])
    problem, kernel, limits = Dual.regression(y, np.full(240, C), 0.0), Kernel("gaussian", gamma), Limits(1e-3)
    halves = ClassRows.of(X, np.array_split(np.arange(240), 2), kernel, C, limits, PLENTY, 1)
    with halves.pair(0, 1) as rows:
        solution = solve_classes(rows, problem, limits)
    v = y - matrix(kernel, X) @ solution.beta
    assert solution.converged
    assert v[solution.beta < C].max() - v[solution.beta > -C].min() < 1.01e-3


# -- a kernel that is not positive semidefinite ------------------------------------------------


def indefinite(seed):
    rng = np.random.default_rng(seed)
    n, d = rng.integers(6, 120), rng.integers(1, 6)
    X = rng.normal(size=(n, d)) * 10 ** rng.uniform(-1, 1)
    y = np.where(X[:, 0] + 0.5 * rng.normal(size=n) > 0, 1.0, -1.0)
    y[:2] = 1.0, -1.0
    return X, y, 10 ** rng.uniform(-3, 1.5), rng.uniform(-5, 5), 10 ** rng.uniform(-1, 3)


def test_sigmoid_as_good_as_libsvm():
    """Its dual has many stationary points: ours ends in one, which on average of many problems is no worse."""
    ratios = []
    for seed in range(150):
        X, y, gamma, coef0, C = indefinite(seed)
        kernel = Kernel("sigmoid", gamma, coef0=coef0)
        K, bounds = matrix(kernel, X), np.full(len(y), C)
        ours = solve(KernelRows(X, kernel, "float64", PLENTY), y, bounds)
        beta, _, ended = libsvm(kernel, X, y, C, 1e-3, most=10**6)
        assert ours.converged
        assert ended
        assert violation(K, y, bounds, ours.alpha) < 1e-3 + 1e-12 * C * len(y)
        ratios.append(ours.objective / dual(K, beta))
    assert np.log(ratios).mean() > -0.1
    assert np.isclose(ratios, 1.0, rtol=1e-3).mean() > 0.5
