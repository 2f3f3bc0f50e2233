"""Asy-GCD, all three forms of it, against a serial solver, other packages, and what defines a solution."""

from __future__ import annotations

import re
import threading
import time
from functools import cache
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.references import descend, matrix, violations
from scipy.optimize import minimize
from sklearn.svm import LinearSVC

from asygcd.solver import team as solver
from asygcd.solver.team import UPDATES, AsyGCD
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.limits import Limits

PLENTY = 1 << 24
LONG = 600.0  # seconds, for what may hang: the first run of all compiles
DOUBLE, SINGLE = np.float64, np.float32
PRECISION = {DOUBLE: 1e-9, SINGLE: 1e-6}
SUPPORT = 1e-6  # tolerance of most runs
# PSCD looks at a row when it comes to it; while it goes on to the others, each may move as far as the tolerance.
SLACK = {"owned": 1.0, "atomic": 1.0, "stochastic": 10.0}
CLOSE = {"owned": 1e-8, "atomic": 1e-8, "stochastic": 1e-6}  # of the objective; seen: 5e-11, 5e-11, and once 1e-9


# -- what is run, and what is expected of it ---------------------------------------------------


def ends(call, seconds=LONG + 20):
    """What `call` returns or raises; a failure where it takes too long. Threads that hang do not keep Python alive."""
    came = SimpleNamespace(result=None, error=None)

    def run():
        try:
            came.result = call()
        except BaseException as error:
            came.error = error

    thread = threading.Thread(target=run, daemon=True)  # threads that it starts are daemons, too
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        pytest.fail(f"it has not ended after {seconds:g} seconds", pytrace=False)
    if came.error is not None:
        raise came.error
    return came.result


def solve(machine, y, C, tol=SUPPORT, start=None, watch=None, max_iter=-1, max_time=LONG):
    """A guarded run."""
    limits = Limits(tol, max_iter, max_time)
    return ends(lambda: machine.solve(y, C, limits, start, watch))


def working():
    """Threads of a solver that have not ended."""
    return [thread for thread in threading.enumerate() if thread.name == "asygcd"]


def objective(Q, alpha):
    return 0.5 * alpha @ Q @ alpha - alpha.sum()


def check(solution, K, y, C, tol=SUPPORT, precision=1e-9, slack=1.0, converged=True):
    """That it is a solution, and that what it says of itself is so; `precision` is that of the kernel values."""
    Q, alpha = K * np.outer(y, y), solution.alpha
    gradient = Q @ alpha - 1
    rounding = precision * max(1.0, np.abs(K).max()) * max(1.0, alpha.sum())
    assert np.isfinite(alpha).all()
    assert (alpha >= 0).all()
    assert (alpha <= C).all()
    np.testing.assert_allclose(solution.gradient, gradient, rtol=0, atol=rounding)
    assert solution.gap == pytest.approx(violations(alpha, solution.gradient, C).max(), rel=1e-6, abs=1e-14)
    scale = max(1.0, abs(solution.objective))
    assert abs(solution.objective - objective(Q, alpha)) <= rounding * max(1.0, alpha.sum()) + 1e-12 * scale
    assert solution.converged == converged
    assert len(solution.steps) == len(solution.hits) == len(solution.misses)
    assert solution.iterations == solution.steps.sum()
    if converged:
        assert solution.gap <= slack * tol
        assert violations(alpha, gradient, C).max() <= slack * tol + rounding
        # No point of the box is better by more than what the gradient allows: f is convex.
        better = np.where(gradient > 0, gradient * alpha, -gradient * (C - alpha)).sum()
        assert better <= (slack * tol + rounding) * max(1.0, C.max()) * len(y)


def drawn(n, d=4, seed=1, noise=0.3):
    """Two classes that no plane parts, and that overlap."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.where(X[:, 0] * X[:, 1] + noise * rng.normal(size=n) > 0, 1.0, -1.0)


@cache
def problem():
    """A small one, with its reference: n is a multiple of nothing that matters."""
    X, y = drawn(203)
    kernel, C = Kernel("gaussian", 0.5), np.full(203, 1.0)
    K = matrix(kernel, X)
    Q = K * np.outer(y, y)
    best = objective(Q, descend(Q, C))
    return SimpleNamespace(X=X, y=y, C=C, kernel=kernel, K=K, Q=Q, best=best)


def machine(threads, update="owned", seed=0, cache_bytes=PLENTY, **more):
    """For the small problem, in double precision."""
    p = problem()
    return AsyGCD(p.X, p.kernel, threads, cache_bytes, DOUBLE, update, seed, **more)


def check_small(solution, update="owned"):
    p = problem()
    check(solution, p.K, p.y, p.C, slack=SLACK[update])
    assert solution.objective == pytest.approx(p.best, rel=CLOSE[update])


def slow_down(monkeypatch, which, pause, turns=20):
    """Threads come back from compiled code all the time; these of them sleep each time before they go on."""
    monkeypatch.setattr(solver, "TURNS", turns)
    loop = AsyGCD._loop

    def slowed(self, state, me, *limits):
        once, end = loop(self, state, me, *limits)

        def turn():
            time.sleep(pause)
            return once()

        return (turn if me in which else once), end

    monkeypatch.setattr(AsyGCD, "_loop", slowed)


# -- against other solvers ---------------------------------------------------------------------


@pytest.mark.parametrize("threads", range(1, 9))
def test_many_runs_each_as_the_serial_solver(threads):
    p = problem()
    for seed in range(5):
        same = machine(threads, seed=seed)
        assert same.threads == len(same.sizes) == threads
        for _ in range(5):
            check_small(solve(same, p.y, p.C))


@pytest.mark.parametrize("update", ["atomic", "stochastic"])
@pytest.mark.parametrize("threads", range(1, 9))
def test_the_textbook_forms_as_the_serial_solver(threads, update):
    p = problem()
    for seed in range(5):
        check_small(solve(machine(threads, update, seed), p.y, p.C), update)


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 8])
def test_rows_that_depend_on_each_other_much(threads):
    # Steps of two threads at once undo each other, as far as they do not know of each other.
    p, C, kernel = problem(), np.full(203, 50.0), Kernel("gaussian", 0.3)
    K = matrix(kernel, p.X)
    best = objective(K * np.outer(p.y, p.y), descend(K * np.outer(p.y, p.y), C))
    for seed in range(3):
        got = solve(AsyGCD(p.X, kernel, threads, PLENTY, DOUBLE, seed=seed), p.y, C, tol=1e-5)
        check(got, K, p.y, C, tol=1e-5)
        assert got.objective == pytest.approx(best, rel=CLOSE["owned"])


@pytest.mark.parametrize("update", UPDATES)
def test_as_scipy_minimises_it(update):
    X, y = drawn(90, seed=5)
    kernel, C = Kernel("polynomial", 0.5, degree=2, coef0=1.0), np.random.default_rng(6).uniform(0.1, 2.0, 90)
    K = matrix(kernel, X)
    Q = K * np.outer(y, y)
    reference = minimize(
        lambda alpha: (objective(Q, alpha), Q @ alpha - 1), np.zeros(90), jac=True, method="L-BFGS-B",
        bounds=[(0, c) for c in C], options={"maxiter": 50_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-9},
    )  # fmt: skip
    for threads in (1, 3):
        got = solve(AsyGCD(X, kernel, threads, PLENTY, DOUBLE, update), y, C)
        check(got, K, y, C, slack=SLACK[update])
        assert got.objective == pytest.approx(reference.fun, rel=1e-7)
        assert got.objective <= reference.fun + 1e-7


def test_as_liblinear_solves_its_primal():
    X, y = drawn(150, seed=7)
    C = 0.7
    model = LinearSVC(C=C, loss="hinge", dual=True, fit_intercept=False, tol=1e-9, max_iter=10**6).fit(X, y)
    primal = 0.5 * (model.coef_**2).sum() + C * np.maximum(0, 1 - y * (X @ model.coef_[0])).sum()
    got = solve(AsyGCD(X, Kernel("linear"), 3, PLENTY, DOUBLE), y, np.full(150, C))
    assert got.converged
    assert -got.objective == pytest.approx(primal, rel=1e-6)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_more_rows_than_the_working_set_holds(threads):
    # Blocks of more than 256 rows: half of them may be in the working set, so that some violate and have to wait.
    X, y = drawn(1501, d=3, seed=3)
    kernel, C = Kernel("gaussian", 2.0), np.full(1501, 1.0)
    same = AsyGCD(X, kernel, threads, 1 << 26, DOUBLE)
    got = solve(same, y, C, tol=1e-4)
    check(got, matrix(kernel, X), y, C, tol=1e-4)
    if threads > 1:
        again = solve(same, y, C, tol=1e-4)
        # f is within n C tol of the best at worst; a millionth of it was seen.
        assert again.objective == pytest.approx(got.objective, rel=1e-5)


# -- rows, kernels, bounds ---------------------------------------------------------------------

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


# -- where it begins ---------------------------------------------------------------------------


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_warm_starts(threads, update):
    p, rng = problem(), np.random.default_rng(22)
    same = machine(threads, update)
    first = solve(same, p.y, p.C, tol=1e-8)
    again = solve(same, p.y, p.C, start=first.alpha)
    check_small(again, update)
    if update == "stochastic":  # moves rows that violate less than the tolerance, too
        assert again.iterations < first.iterations
    else:
        assert again.iterations == 0
        np.testing.assert_array_equal(again.alpha, first.alpha)
    starts = [rng.uniform(0, 1, 203), rng.normal(0, 100, 203), np.full(203, 1e300), -np.ones(203), p.C.copy()]
    starts.append(np.where(rng.random(203) < 0.05, 1.0, 0.0))
    for start in starts:
        check_small(solve(same, p.y, p.C, start=start), update)
    check_small(solve(machine(threads, update), p.y, p.C, start=rng.uniform(0, 1, 203)), update)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("threads", [1, 3])
def test_other_labels_find_the_columns_that_were_computed(threads, update):
    p, rng = problem(), np.random.default_rng(23)
    same, missed = machine(threads, update), []
    for turn in range(4):
        y = p.y * np.where(rng.random(203) < (0.1 if turn else 0), -1, 1)
        Q = p.K * np.outer(y, y)
        got = solve(same, y, p.C)
        check(got, p.K, y, p.C, slack=SLACK[update])
        assert got.objective == pytest.approx(objective(Q, descend(Q, p.C)), rel=CLOSE[update])
        missed.append(int(got.misses.sum()))
    assert missed[1] < missed[0]
    assert sum(missed) <= 203 * threads  # the cache holds all


# -- limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_limit_of_updates(threads, update):
    p, rng = problem(), np.random.default_rng(24)
    same = machine(threads, update)
    for most in (0, 1, 17, 500):
        for start in (None, rng.uniform(0, 1, 203)):
            got = solve(same, p.y, p.C, max_iter=most, start=start)
            check(got, p.K, p.y, p.C, converged=False)
            # Each thread may be about to do one more; PSCD looks after each round of its rows.
            assert most <= got.iterations <= most + (threads if update != "stochastic" else 2 * 203)
            if most == 0 and update != "stochastic":
                assert got.iterations == 0
                np.testing.assert_array_equal(got.alpha, np.zeros(203) if start is None else start)


@pytest.mark.parametrize("update", UPDATES)
def test_a_limit_of_time(monkeypatch, update):
    p = problem()
    same = machine(2, update)
    solve(same, p.y, p.C)
    slow_down(monkeypatch, {0, 1}, 0.02, turns=3)
    for start in (None, np.full(203, 0.5)):
        got = solve(same, p.y, p.C, max_time=1e-9, start=start)
        check(got, p.K, p.y, p.C, converged=False)
    assert not working()


@pytest.mark.parametrize("given", [0.0, -1.0, float("nan"), float("inf")])
def test_a_tolerance_that_is_none(given):
    with pytest.raises(InputError, match=r"\Atol = .*: it must be a positive number\Z"):
        Limits(tol=given)


@pytest.mark.parametrize("given", [0.0, -1.0, float("nan")])
def test_a_time_that_is_none(given):
    with pytest.raises(InputError, match=r"\Amax_time = .*: it must be a positive number of seconds\Z"):
        Limits(max_time=given)


def test_the_limit_that_nobody_set():
    assert Limits().iterations(5) == Limits(max_iter=-7).iterations(10_000) == 10_000_000
    assert Limits().iterations(20_000) == 20_000_000
    assert Limits(max_iter=0).iterations(5) == 0
    assert Limits(max_iter=3).iterations(10**6) == 3
    p = problem()
    got = ends(lambda: machine(2).solve(p.y, p.C))
    check(got, p.K, p.y, p.C, tol=1e-3)


# -- who watches -------------------------------------------------------------------------------


@pytest.mark.parametrize("update", UPDATES)
def test_what_is_told_on_the_way(monkeypatch, update):
    p = problem()
    same, seen, copies = machine(2, update), [], []
    solve(same, p.y, p.C)
    slow_down(monkeypatch, {0, 1}, 0.01, turns=30)

    def watch(progress):
        seen.append(progress)
        copies.append(progress.alpha())

    got = solve(same, p.y, p.C, watch=watch)
    check_small(got, update)
    assert len(seen) >= 2
    assert 0 < seen[0].seconds < seen[-1].seconds <= got.seconds
    assert all(one.seconds <= other.seconds for one, other in pairwise(seen))
    assert all(one.iterations <= other.iterations for one, other in pairwise(seen))
    assert all(((alpha >= 0) & (alpha <= p.C)).all() for alpha in copies)
    assert all(np.isfinite(one.objective) and isinstance(one.gap, float) and one.gap >= 0 for one in seen)
    assert (seen[-1].iterations, seen[-1].gap) == (got.iterations, got.gap)
    np.testing.assert_array_equal(copies[-1], got.alpha)
    copies[-1][:] = -1  # they are the caller's own
    np.testing.assert_array_equal(seen[-1].alpha(), got.alpha)


@pytest.mark.parametrize("start", ["zero", "warm", "infeasible"])
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_objective_that_is_told(threads, update, start):
    p, rng = problem(), np.random.default_rng(25)
    begins = {"zero": None, "warm": rng.uniform(0, 1, 203), "infeasible": rng.normal(0, 100, 203)}[start]
    same = machine(threads, update)
    for _ in range(5):
        seen = []
        got = solve(same, p.y, p.C, start=begins, watch=seen.append)
        assert seen[-1].objective == pytest.approx(got.objective, rel=1e-8)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("update", UPDATES)
def test_a_watch_that_fails_ends_all(monkeypatch, update, error):
    p = problem()
    same = machine(3, update)
    solve(same, p.y, p.C)
    slow_down(monkeypatch, {0, 1, 2}, 0.02, turns=3)

    def watch(progress):
        assert working()
        raise error("enough")

    with pytest.raises(error, match="enough"):
        solve(same, p.y, p.C, watch=watch)
    assert not working()
    monkeypatch.undo()
    check_small(solve(same, p.y, p.C), update)  # nothing of it is left


@pytest.mark.parametrize("which", [0, 2])
@pytest.mark.parametrize("update", UPDATES)
def test_a_thread_that_fails_ends_all(monkeypatch, update, which):
    p = problem()
    same = machine(3, update)
    solve(same, p.y, p.C)
    slow_down(monkeypatch, {0, 1, 2}, 1e-3, turns=5)
    loop, calls = AsyGCD._loop, []

    def failing(self, state, me, *limits):
        once, end = loop(self, state, me, *limits)

        def turn():
            calls.append(me)
            if calls.count(which) >= 3:
                raise MemoryError("of a thread")
            return once()

        return turn, end

    monkeypatch.setattr(AsyGCD, "_loop", failing)
    with pytest.raises(MemoryError, match="of a thread"):
        solve(same, p.y, p.C, tol=1e-12)
    assert not working()
    monkeypatch.undo()
    check_small(solve(same, p.y, p.C), update)


# -- threads that get in each other's way ------------------------------------------------------


@pytest.mark.parametrize("update", ["owned", "atomic"])
@pytest.mark.parametrize("threads", [2, 3, 4])
def test_a_thread_slower_than_the_others(monkeypatch, threads, update):
    p = problem()
    same = machine(threads, update)
    slow_down(monkeypatch, {threads - 1}, 1e-3)
    check_small(solve(same, p.y, p.C), update)
    monkeypatch.undo()
    slow_down(monkeypatch, set(range(1, threads)), 1e-3, turns=50)
    check_small(solve(same, p.y, p.C), update)


def two_columns(threads, update):
    """Bytes of the smallest cache, as who asks for less is told."""
    with pytest.raises(InputError) as error:
        machine(threads, update, cache_bytes=1000)
    return int(re.search(r"([\d,]+) bytes would", str(error.value))[1].replace(",", ""))


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_a_cache_of_two_columns_a_thread(threads, update):
    p, least = problem(), two_columns(threads, update)
    with pytest.raises(InputError):
        machine(threads, update, cache_bytes=least - 1)
    same = machine(threads, update, cache_bytes=least)
    assert min(len(columns.held) for columns in same.gram.whole) == 2
    got = solve(same, p.y, p.C)
    check_small(got, update)
    assert got.misses.sum() > 203
    check_small(solve(same, -p.y, p.C), update)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("log", [1, 2, 3, 100])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_short_logs(monkeypatch, threads, log, slow):
    p = problem()
    same = machine(threads, log=log, cache_bytes=PLENTY if log != 2 else two_columns(threads, "owned"))
    if slow:
        slow_down(monkeypatch, {0}, 2e-4)
    check_small(solve(same, p.y, p.C), "owned")
    check_small(solve(same, p.y, p.C, start=np.linspace(0, 1, 203)), "owned")


def test_more_threads_than_rows_in_a_cluster():
    p = problem()
    for threads in (40, 203, 500):
        same = machine(threads)
        assert same.threads == min(threads, 203)
        if threads == 40:  # more of them take long to find out that all is done
            check_small(solve(same, p.y, p.C))


def test_two_at_once():
    """Nothing is shared by two solvers that run in threads of their own."""
    p = problem()
    machines, found = [machine(2, update) for update in UPDATES], {}

    def run(k):
        found[k] = machines[k].solve(p.y, p.C, Limits(SUPPORT, max_time=LONG))

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG + 20)
        assert not thread.is_alive()
    for k, update in enumerate(UPDATES):
        check_small(found[k], update)


# -- what it refuses ---------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, -3])
def test_no_threads(threads):
    with pytest.raises(InputError, match=rf"\Athreads = {threads}: at least 1 is needed\Z"):
        machine(threads)


def test_an_update_that_is_none():
    with pytest.raises(InputError, match=r"\Aupdate 'fast': choose one of owned, atomic, stochastic\Z"):
        machine(1, "fast")


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("given", [0, 1000])
def test_a_cache_too_small(update, given):
    with pytest.raises(InputError) as error:
        machine(3, update, cache_bytes=given)
    assert re.fullmatch(
        rf"a cache of {given:,} bytes does not hold two columns of 203 kernel values for each of 3 threads: "
        r"[\d,]+ bytes would; raise it, or use fewer threads",
        str(error.value),
    )


@pytest.mark.parametrize(("scale", "values"), [(1e20, SINGLE), (1e120, DOUBLE)])
@pytest.mark.parametrize("sparse", [False, True])
def test_kernel_values_that_overflow(scale, values, sparse):
    X = problem().X * scale
    X = sp.csr_matrix(X) if sparse else X
    kernel = Kernel("polynomial", 1.0)
    remedy = "scale the features, or use a smaller degree"
    with pytest.raises(InputError, match=rf"\Apolynomial kernel: its values overflow float..; {remedy}\Z"):
        AsyGCD(X, kernel, 2, PLENTY, values)


# -- the rest ----------------------------------------------------------------------------------


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("sparse", [False, True])
def test_what_is_given_stays_as_it_is(sparse, update):
    p = problem()
    X, y, C, start = p.X + 100.0, p.y.copy(), p.C.copy(), np.linspace(-2, 9, 203)  # far away: shifted, if dense
    if sparse:
        X = sp.csr_matrix(X)
        X.indices[: X.indptr[1]] = X.indices[: X.indptr[1]][::-1].copy()  # out of order
        X.has_sorted_indices = False
    arrays = [X.data, X.indices, X.indptr] if sparse else [X]
    arrays += [y, C, start]
    before = [array.copy() for array in arrays]
    same = AsyGCD(X, p.kernel, 2, PLENTY, DOUBLE, update)
    got = solve(same, y, C, start=start, watch=lambda progress: progress.alpha())
    for array, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, copy)
        assert not np.shares_memory(got.alpha, array)
    kept = got.alpha.copy()
    solve(same, -y, C)
    np.testing.assert_array_equal(got.alpha, kept)  # nor does the next run change what this one returned


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("plenty", [True, False])
def test_one_thread_does_the_same_each_time(update, plenty):
    p = problem()
    runs = []
    for _ in range(2):
        same = machine(1, update, cache_bytes=PLENTY if plenty else 40_000)
        got = solve(same, p.y, p.C)
        runs.append((got.iterations, *got.steps, *got.hits, *got.misses, got.objective, *got.alpha))
        used = int((same.gram.whole[0].held >= 0).sum())
        if plenty:
            assert got.misses.sum() == used  # each column once
            assert np.count_nonzero(got.alpha) <= used <= 203
            assert update != "stochastic" or used == 203
        else:
            assert got.misses.sum() > 203 > used
    assert runs[0] == runs[1]


@pytest.mark.parametrize("update", UPDATES)
def test_what_is_counted(update):
    p = problem()
    got = solve(machine(3, update), p.y, p.C)
    assert [len(counts) for counts in (got.steps, got.hits, got.misses)] == [3, 3, 3]
    assert got.steps.min() > 0
    assert got.misses.max() <= 203  # of each thread; the cache holds all
    if update == "atomic":  # one column an update, and no other
        np.testing.assert_array_equal(got.hits + got.misses, got.steps)
    assert got.seconds > 0
