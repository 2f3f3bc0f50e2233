"""Asy-GCD's solver in all three forms, against other solvers: warm starts, limits, refusals, counts."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.asygcd_solver import (
    CLOSE,
    DOUBLE,
    PLENTY,
    SINGLE,
    SLACK,
    check,
    check_small,
    drawn,
    ends,
    machine,
    objective,
    problem,
    slow_down,
    solve,
    working,
)
from helpers.references import descend, matrix
from scipy.optimize import minimize
from sklearn.svm import LinearSVC

from asygcd.solver.asygcd import UPDATES, AsyGCD
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.limits import Limits

# -- against other solvers ---------------------------------------------------------------------


@pytest.mark.parametrize("threads", range(1, 9))
def test_every_run_matches_the_serial_solver(threads):
    p = problem()
    for seed in range(3):
        same = machine(threads, seed=seed)
        assert same.threads == len(same.sizes) == threads
        for _ in range(3):
            check_small(solve(same, p.y, p.C))


@pytest.mark.parametrize("update", ["atomic", "stochastic"])
@pytest.mark.parametrize("threads", [1, 2, 3, 4, 8])
def test_the_textbook_forms_as_the_serial_solver(threads, update):
    p = problem()
    for seed in range(3):
        check_small(solve(machine(threads, update, seed), p.y, p.C), update)


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 8])
def test_strongly_coupled_rows_converge(threads):
    # Steps of two threads at once undo each other, as far as they do not know of each other.
    p, C, kernel = problem(), np.full(203, 50.0), Kernel("gaussian", 0.3)
    K = matrix(kernel, p.X)
    best = objective(K * np.outer(p.y, p.y), descend(K * np.outer(p.y, p.y), C))
    got = solve(AsyGCD(p.X, kernel, threads, PLENTY, DOUBLE, seed=threads), p.y, C, tol=1e-5)
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
def test_new_labels_reuse_cached_columns(threads, update):
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
def test_inputs_are_not_changed(sparse, update):
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
def test_updates_and_cache_hits_are_counted(update):
    p = problem()
    got = solve(machine(3, update), p.y, p.C)
    assert [len(counts) for counts in (got.steps, got.hits, got.misses)] == [3, 3, 3]
    assert got.steps.min() > 0
    assert got.misses.max() <= 203  # of each thread; the cache holds all
    if update == "atomic":  # one column an update, and no other
        np.testing.assert_array_equal(got.hits + got.misses, got.steps)
    assert got.seconds > 0
