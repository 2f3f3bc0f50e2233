"""Asy-GCD's solver on rows of every form, kernels, weights and bounds, and on problems that degenerate."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.asygcd_solver import (
    CLOSE,
    DOUBLE,
    LONG,
    PLENTY,
    SINGLE,
    SLACK,
    SUPPORT,
    check,
    check_small,
    drawn,
    machine,
    objective,
    problem,
    solve,
)
from helpers.references import descend, matrix

from asygcd.solver.asygcd import UPDATES, AsyGCD
from cacore.kernels import Kernel

PRECISION = {DOUBLE: 1e-9, SINGLE: 1e-6}
KERNELS = [Kernel("gaussian", 0.4), Kernel("linear"), Kernel("polynomial", 0.3, degree=3, coef0=1.0)]
FORMS = ["dense", "sparse", "wide sparse", "wide dense"]


def formed(form, X, dtype):
    """The rows as they are given: some of their features 0, far apart among thousands that are 0."""
    X = np.where(np.abs(X) < 0.4, 0.0, X)
    if form.startswith("wide"):
        wide = np.zeros((len(X), 4111))
        wide[:, :: 4111 // X.shape[1] + 1] = X
        X = wide
    X = X.astype(dtype)
    return sp.csr_matrix(X) if form.endswith("sparse") else X


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.kind)
def test_rows_of_every_form(kernel, form):
    X, y = drawn(107, seed=11)
    C = np.full(107, 0.5)
    for rows, values in ((DOUBLE, DOUBLE), (SINGLE, SINGLE), (SINGLE, DOUBLE), (DOUBLE, SINGLE)):
        if form == "wide dense" and (rows, values) != (SINGLE, SINGLE):
            continue  # slow to look for blocks
        Z = formed(form, X, rows)
        got = solve(AsyGCD(Z, kernel, 3, PLENTY, values), y, C, tol=1e-4)
        check(got, matrix(kernel, Z), y, C, tol=1e-4, precision=PRECISION[values])


@pytest.mark.parametrize("update", ["atomic", "stochastic"])
@pytest.mark.parametrize("form", FORMS[:3])
def test_rows_of_every_form_in_the_textbook_forms(form, update):
    X, y = drawn(61, seed=12)
    C, Z = np.full(61, 0.5), formed(form, X, SINGLE)
    for kernel in KERNELS:
        got = solve(AsyGCD(Z, kernel, 2, PLENTY, SINGLE, update), y, C, tol=1e-4)
        check(got, matrix(kernel, Z), y, C, tol=1e-4, precision=PRECISION[SINGLE], slack=SLACK[update])


def test_rows_however_they_lie_in_memory():
    p, locked = problem(), problem().X.copy()
    locked.flags.writeable = False
    apart, longer = sp.csr_matrix(p.X), sp.csr_matrix(p.X)
    apart.indices, apart.indptr = apart.indices.astype(np.int64), apart.indptr.astype(np.int64)
    longer.data, longer.indices = np.append(longer.data, 7.0), np.append(longer.indices, longer.indices[:1])
    forms = [np.asfortranarray(p.X), locked, np.repeat(p.X, 2, axis=1)[:, ::2], p.X[::-1].copy()[::-1], apart, longer]
    for X in forms:
        got = solve(AsyGCD(X, p.kernel, 2, PLENTY, DOUBLE), p.y, p.C)
        check_small(got)


@pytest.mark.parametrize("array", [sp.csr_matrix, sp.csr_array])
def test_entries_in_pieces_and_in_any_order(array):
    X, y = drawn(83, seed=13)
    whole = sp.csr_matrix(formed("dense", X, DOUBLE))
    pieces = [np.concatenate([part[::-1] * 0.25, part * 0.75]) for part in np.split(whole.data, whole.indptr[1:-1])]
    columns = [np.concatenate([part[::-1], part]) for part in np.split(whole.indices, whole.indptr[1:-1])]
    X = array((np.concatenate(pieces), np.concatenate(columns), 2 * whole.indptr), whole.shape)
    got = solve(AsyGCD(X, KERNELS[0], 3, PLENTY, DOUBLE), y, np.ones(83))
    check(got, matrix(KERNELS[0], whole), y, np.ones(83))


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("coef0", [0.0, -1.0, 1.0])
def test_a_sigmoid_kernel_ends(update, coef0):
    X, y = drawn(71, seed=14)
    C, kernel = np.full(71, 10.0), Kernel("sigmoid", 0.8, coef0=coef0)
    for threads in (1, 3):
        got = solve(AsyGCD(X, kernel, threads, PLENTY, DOUBLE, update), y, C, max_iter=3000)
        assert ((got.alpha >= 0) & (got.alpha <= C)).all()
        assert got.converged or got.iterations >= 3000
        assert got.iterations <= 3000 + 2 * 71
        np.testing.assert_allclose(got.gradient, (matrix(kernel, X) * np.outer(y, y)) @ got.alpha - 1, atol=1e-8)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("threads", [1, 3])
def test_weights(threads, update):
    p, rng = problem(), np.random.default_rng(15)
    C = np.where(rng.random(203) < 0.3, 0.0, rng.exponential(2.0, 203))
    best = objective(p.Q, descend(p.Q, C))
    for start in (None, rng.uniform(0, 5, 203)):
        got = solve(machine(threads, update), p.y, C, start=start)
        check(got, p.K, p.y, C, slack=SLACK[update])
        assert not got.alpha[C == 0].any()
        assert got.objective == pytest.approx(best, rel=CLOSE[update])


@pytest.mark.parametrize("update", UPDATES)
def test_no_weight_at_all(update):
    p = problem()
    got = solve(machine(2, update), p.y, np.zeros(203), start=np.ones(203))
    assert got.converged
    assert not got.alpha.any()
    assert (got.iterations, got.objective, got.gap) == (0, 0.0, 0.0)
    assert (got.gradient == -1).all()


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_class(update, sign):
    p = problem()
    y = np.full(203, sign)
    check(solve(machine(3, update), y, p.C), p.K, y, p.C, slack=SLACK[update])


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_few_rows(n, update):
    X, y = drawn(n, seed=n)
    kernel, C = Kernel("gaussian", 0.1), np.full(n, 3.0)
    K = matrix(kernel, X)
    for threads in (1, 2, 3, 8):
        same = AsyGCD(X, kernel, threads, PLENTY, DOUBLE, update)
        assert same.threads == min(n, threads)
        assert len(same.sizes) == same.threads
        assert same.sizes.min() >= 1
        got = solve(same, y, C)
        check(got, K, y, C, slack=SLACK[update])
        if n == 1:
            assert got.alpha == pytest.approx(1.0)
            assert got.objective == pytest.approx(-0.5)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("labels", ["equal", "opposite"])
def test_rows_many_times(labels, update):
    rng, kernel = np.random.default_rng(16), Kernel("gaussian", 0.3)
    which = rng.integers(0, 5, 130)
    X = rng.normal(size=(5, 3))[which]
    y = np.array([1.0, -1.0, 1.0, -1.0, -1.0])[which] if labels == "equal" else rng.choice([-1.0, 1.0], 130)
    C, K = np.full(130, 0.4), matrix(kernel, X)
    for threads in (1, 3):
        check(solve(AsyGCD(X, kernel, threads, PLENTY, DOUBLE, update), y, C), K, y, C, slack=SLACK[update])


@pytest.mark.parametrize("update", UPDATES)
def test_all_rows_equal(update):
    kernel, C = Kernel("gaussian", 1.0), np.full(60, 0.25)
    for X in (np.ones((60, 3)), np.zeros((60, 3)), sp.csr_matrix((60, 3))):
        same = AsyGCD(X, kernel, 4, PLENTY, DOUBLE, update)
        for y in (np.ones(60), np.resize([1.0, -1.0], 60), np.resize([1.0, -1.0, -1.0], 60)):
            got = solve(same, y, C)
            check(got, np.ones((60, 60)), y, C, slack=SLACK[update])
            if abs(y.sum()) < 60:
                # f = (sum of beta)^2 / 2 - sum of alpha: the fewer rise to C, the others as far as they help.
                fewer = 0.25 * min((y > 0).sum(), (y < 0).sum())
                more = min(0.25 * max((y > 0).sum(), (y < 0).sum()), fewer + 1)
                expected = 0.5 * (more - fewer) ** 2 - more - fewer
            else:
                expected = -0.5
            assert got.objective == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("update", UPDATES)
def test_rows_of_zeros_in_a_linear_kernel(update):
    # Their curvature is 0: whatever they are at, the best they can do is their bound.
    X, y = drawn(64, seed=17)
    X[::4] = 0
    C = np.full(64, 0.5)
    for Z in (X, sp.csr_matrix(X)):
        got = solve(AsyGCD(Z, Kernel("linear"), 3, PLENTY, DOUBLE, update), y, C)
        check(got, matrix(Kernel("linear"), Z), y, C, slack=SLACK[update])
        assert (got.alpha[::4] == 0.5).all()


@pytest.mark.parametrize("value", [0.0, 1.0, -300.0])
def test_constant_features(value):
    X, y = drawn(95, seed=18)
    X[:, 2:] = value
    C = np.ones(95)
    got = solve(AsyGCD(X, Kernel("gaussian", 0.7), 3, PLENTY, DOUBLE), y, C)
    check(got, matrix(Kernel("gaussian", 0.7), X[:, :2]), y, C)


@pytest.mark.parametrize("values", [DOUBLE, SINGLE])
@pytest.mark.parametrize("gamma", [1e-8, 1e8])
def test_extreme_gamma(gamma, values):
    X, y = drawn(101, seed=19)
    C, kernel = np.full(101, 2.0), Kernel("gaussian", gamma)
    for rows in (X, sp.csr_matrix(X)):
        got = solve(AsyGCD(rows, kernel, 3, PLENTY, values), y, C, tol=1e-5)
        check(got, matrix(kernel, X), y, C, tol=1e-5, precision=PRECISION[values])
        if gamma > 1:
            np.testing.assert_allclose(got.alpha, 1.0, atol=1e-6)


@pytest.mark.parametrize("values", [DOUBLE, SINGLE])
def test_far_from_the_origin(values):
    X, y = drawn(111, seed=20)
    C, kernel, near = np.full(111, 2.0), Kernel("gaussian", 0.5), np.round(X * 2**20) / 2**20
    K = matrix(kernel, near)
    got = solve(AsyGCD(near + 2.0**20, kernel, 3, PLENTY, values), y, C, tol=1e-5)
    check(got, K, y, C, tol=1e-5, precision=1e-8 if values is DOUBLE else 1e-6)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("bound", [1e-12, 1e-3, 1e6, 1e10])
def test_small_and_large_bounds(bound, update):
    X, y = drawn(77, seed=21)
    C, kernel = np.full(77, bound), Kernel("gaussian", 4.0)
    K = matrix(kernel, X)
    for threads in (1, 3):
        tol = min(SUPPORT, 1e-3 * bound)  # no row violates more than C
        got = solve(AsyGCD(X, kernel, threads, PLENTY, DOUBLE, update), y, C, tol)
        check(got, K, y, C, tol, slack=SLACK[update])
        if bound < 1e-6:
            assert (got.alpha == C).all()


@pytest.mark.parametrize("update", UPDATES)
def test_a_bound_is_met_exactly(update):
    # (C - alpha) + alpha is not C: both sums are halfway between two numbers and are rounded up.
    unit = 2.0**-52
    C, start = np.array([1 + 3 * unit]), np.array([1.5 * unit])
    assert start + (C - start) > C
    got = solve(AsyGCD(np.full((1, 1), 0.5), Kernel("linear"), 1, PLENTY, DOUBLE, update), np.ones(1), C, start=start)
    assert got.alpha == C


@pytest.mark.parametrize("update", UPDATES)
def test_steps_too_small_for_the_variable(update):
    # The first row violates the tolerance, but 1 and a step of 2^-53 are 1: nobody may try for ever.
    X, y, C = np.full((2, 2), 2.0**26), np.array([1.0, -1.0]), np.array([2.0, 1.0])
    same = AsyGCD(X, Kernel("linear"), 1, PLENTY, DOUBLE, update)
    got = solve(same, y, C, start=np.ones(2), max_iter=1000)
    assert got.seconds < LONG  # it is not the time that has ended it
    assert (got.alpha == 1).all()
