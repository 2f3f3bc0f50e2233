"""The local SMO solver against LIBSVM (scikit-learn's SVC), and against what defines a solution."""

from __future__ import annotations

import bz2
import io
import itertools
import math
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.references import dual, libsvm, matrix, violation
from sklearn.datasets import load_svmlight_file
from sklearn.metrics.pairwise import pairwise_kernels

from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.limits import Limits
from cacore.machine import threads
from cacore.svm.dual import Dual
from casvm.solver import active_set, kernel_rows, row_cache, smo
from casvm.solver.gram import GivenMatrix
from casvm.solver.kernel_rows import TOUCH, KernelRows
from casvm.solver.pair import padded

PLENTY = 1 << 28
SMALL_SET = 128  # instead of 2048


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
def test_random_problems_with_kernels_that_are_not_positive_definite(small_set, monkeypatch):
    """There is no one solution then: what is found ends, is feasible and meets the stopping rule."""
    if small_set:
        monkeypatch.setattr(smo, "WORKING_SET", 16)
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


def budget(X, kernel, dtype, rows):
    """Bytes for the packed rows of `X` and that many rows of K."""
    return Layout.of(X, kernel, dtype).nbytes(X) + rows * padded(X.shape[0]) * np.dtype(dtype).itemsize


@pytest.fixture
def small_set(monkeypatch):
    """Small problems need all that large ones do: rounds, looks between pairs, and rows of K that are read again."""
    monkeypatch.setattr(smo, "WORKING_SET", SMALL_SET)
    monkeypatch.setattr(smo, "_CHUNK", 1000)
    monkeypatch.setattr(kernel_rows, "TOUCH", 0.0)


@pytest.fixture
def eager(monkeypatch, small_set):
    """Rows leave at the first occasion: often too early, so that some have to come back."""
    monkeypatch.setattr(smo, "SHRINKING", replace(smo.SHRINKING, patience=1, share=0.05))


@pytest.fixture
def counts(monkeypatch):
    """How often what happens in the solver and its cache happens."""
    count = Counter()

    def watched(owner, name, tell):
        original = getattr(owner, name)

        def call(*args, **keywords):
            before = args[0].slot >= 0 if owner is row_cache.RowCache else None
            result = original(*args, **keywords)
            count.update(tell(result, before, args))
            return result

        monkeypatch.setattr(owner, name, call)

    solver, cached = smo._Serial, row_cache.RowCache
    watched(solver, "_round", lambda *_: {"rounds": 1})
    watched(solver, "_pairs", lambda *_: {"pairs": 1})
    watched(active_set.ActiveSet, "unshrink", lambda again, *_: {"unshrunk": int(again)})
    watched(KernelRows, "restrict", lambda *_: {"shrunk": 1})
    watched(KernelRows, "_keep_all", lambda kept, *_: {"second cache": int(kept)})
    watched(KernelRows, "fetch", lambda *_: {"fetched": 1})
    watched(cached, "places", lambda _, before, args: {"evicted": int((before & (args[0].slot < 0)).sum())})
    watched(cached, "restrict", lambda *_: {"cut": 1})
    watched(kernel_rows, "_add_columns", lambda _r, _b, args: {"read from all": len(args[1])})
    return count


def agrees(got, expected, decision, rel=1e-6):
    assert got.converged
    assert got.objective == pytest.approx(expected, rel=rel)
    np.testing.assert_allclose(got.decision, decision, rtol=0, atol=2e-3)


@pytest.mark.parametrize("rows", [None, 0, 5, 200, 1500], ids=lambda r: "no budget" if r is None else f"{r} rows")
@pytest.mark.parametrize("shrinking", [True, False], ids=["shrinking", "all rows"])
@pytest.mark.parametrize("form", [np.array, sp.csr_matrix], ids=["dense", "csr"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_same_solution_in_every_way(dtype, form, shrinking, rows, small_set):
    (X, y), (kernel, C), (K, expected, decision) = many(), HARD, reference()
    given = form(X)
    bytes_ = 0 if rows is None else budget(given, kernel, dtype, rows)
    gram = KernelRows(given, kernel, dtype, bytes_)
    got = solve(gram, y, np.full(1500, C), Limits(tol=1e-4, shrinking=shrinking))
    check(got, K, y, C, 1e-4, 1e-9 if dtype == "float64" else 1e-8)
    agrees(got, expected, decision)
    assert got.rounds > 5
    assert gram._memory.nbytes <= bytes_


@pytest.mark.parametrize("rows", [0, 200, 1500])
def test_more_support_vectors_than_are_computed_in_one_go(rows, small_set, monkeypatch):
    (X, y), (kernel, C), (K, expected, decision) = many(), HARD, reference()
    monkeypatch.setattr(kernel_rows, "_SOME", 50)
    got = solve(KernelRows(X, kernel, "float64", budget(X, kernel, "float64", rows)), y, np.full(1500, C), LIMITS)
    assert np.count_nonzero(got.alpha) > 200
    check(got, K, y, C, 1e-4)
    agrees(got, expected, decision)


def test_what_is_asked_for_does_not_make_room():
    """The least recently used does, and what was never read before that."""
    cached = row_cache.RowCache(np.zeros(4 * padded(10)), 10, 10)

    def ask(*rows, keep=True):
        slots, known = cached.places(np.array(rows), np.full(len(rows), keep))
        return slots.tolist(), known.tolist()

    assert ask(0, 1, 2) == ([0, 1, 2], [False] * 3)
    assert ask(5, keep=False) == ([-1], [False])
    assert ask(3) == ([3], [False])
    assert ask(0, 1) == ([0, 1], [True, True])
    assert ask(0, 7) == ([0, 2], [True, False])
    assert ask(1, 8, 9, 4) == ([1, 0, 2, 3], [True, False, False, False])
    assert ask(0, 3, 7, keep=False) == ([-1] * 3, [False] * 3)
    assert ask(1, 8, 9, 4, 6) == ([1, 0, 2, 3, -1], [True] * 4 + [False])
    cached.doubt(np.array([2]))
    assert ask(5) == ([2], [False])
    assert cached.count == 4


@pytest.mark.parametrize("rows", [0, 200, 1500])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_threads_do_not_change_a_bit(dtype, rows, small_set, monkeypatch):
    (X, y), (kernel, C) = many(), HARD
    found = []
    for number in (1, 2, 3):
        monkeypatch.setattr(threads, "_limit", number)
        gram = KernelRows(X, kernel, dtype, budget(X, kernel, dtype, rows))
        found.append(solve(gram, y, np.full(1500, C), LIMITS))
    for other in found[1:]:
        assert np.array_equal(other.alpha, found[0].alpha)
        assert np.array_equal(other.decision, found[0].decision)
        assert (other.b, other.iterations, other.objective) == (found[0].b, found[0].iterations, found[0].objective)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("form", ["dense", "csr"])
def test_wide_rows_with_any_number_of_threads(form, dtype, small_set, monkeypatch):
    """Kernel values by matrix products, whose last bits depend on how the work is shared."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 300)) if form == "dense" else sp.random(400, 5000, 0.01, "csr", random_state=0)
    y = np.where(rng.normal(size=400) > 0.5, 1.0, -1.0)
    kernel = Kernel("gaussian", gamma=0.003 if form == "dense" else 0.05)
    K = matrix(kernel, X)
    expected = dual(K, libsvm(kernel, X, y, 10.0, 1e-5)[0])
    for number, rows in ((1, 400), (2, 400), (2, 100)):
        monkeypatch.setattr(threads, "_limit", number)
        gram = KernelRows(X, kernel, dtype, budget(X, kernel, dtype, rows))
        assert not gram.layout.packed
        got = solve(gram, y, np.full(400, 10.0), LIMITS)
        assert got.converged
        check(got, K, y, 10.0, 1e-4, 1e-9 if dtype == "float64" else 1e-7)
        assert got.objective == pytest.approx(expected, rel=1e-6)


def test_a_working_set_of_the_real_size():
    (X, y), (kernel, C) = many(4500, 3), HARD
    K, expected, decision = reference(4500, 3)
    for dtype, rows in (("float64", 4500), ("float32", 100)):
        got = solve(KernelRows(X, kernel, dtype, budget(X, kernel, dtype, rows)), y, np.full(4500, C), LIMITS)
        assert got.rounds > 1
        check(got, K, y, C, 1e-4, 1e-9 if dtype == "float64" else 1e-8)
        agrees(got, expected, decision)


OTHERS = {
    "linear": (Kernel("linear"), 1.0),
    "polynomial": (Kernel("polynomial", gamma=0.5, degree=3, coef0=1.0), 1.0),
    "smooth": (Kernel("gaussian", gamma=0.05), 100.0),
    "sharp": (Kernel("gaussian", gamma=5.0), 1.0),
}


@pytest.mark.parametrize("rows", [0, 200, 1500])
@pytest.mark.parametrize("name", OTHERS)
def test_other_kernels_with_rows_that_leave_early(name, rows, eager):
    (X, y), (kernel, C) = many(seed=1), OTHERS[name]
    K, expected, _ = reference(1500, 1, kernel, C)
    got = solve(KernelRows(X, kernel, "float64", budget(X, kernel, "float64", rows)), y, np.full(1500, C), LIMITS)
    assert got.converged
    check(got, K, y, C, 1e-4)
    assert got.objective == pytest.approx(expected, rel=1e-6)


# -- that all of it was needed -----------------------------------------------------------------


def test_what_a_large_cache_does(small_set, counts):
    """Rows over all columns are kept beside those over some, for the end; then all of that with pairs."""
    (X, y), (kernel, C) = many(), OTHERS["smooth"]
    got = solve(KernelRows(X, kernel, "float64", PLENTY), y, np.full(1500, C), LIMITS)
    agrees(got, *reference(1500, 0, kernel, C)[1:])
    assert min(counts[what] for what in ("rounds", "shrunk", "second cache", "read from all")) > 0
    assert counts["evicted"] == counts["cut"] == 0
    counts.clear()
    (X, y), (kernel, C) = many(4500, 3), HARD
    got = solve(KernelRows(X, kernel, "float64", PLENTY), y, np.full(4500, C), LIMITS)
    agrees(got, *reference(4500, 3)[1:])
    assert min(counts[what] for what in ("rounds", "pairs", "fetched", "shrunk", "second cache", "read from all")) > 0


def test_what_a_small_cache_does(small_set, counts):
    """Rows make room, and those that stay are cut to the columns that stay."""
    (X, y), (kernel, C) = many(), HARD
    got = solve(KernelRows(X, kernel, "float64", budget(X, kernel, "float64", 200)), y, np.full(1500, C), LIMITS)
    agrees(got, *reference()[1:])
    assert min(counts[what] for what in ("rounds", "pairs", "fetched", "shrunk", "cut", "evicted")) > 0
    assert counts["second cache"] == 0


def test_no_shrinking_where_it_is_not_wanted(small_set, counts):
    (X, y), (kernel, C) = many(), HARD
    solve(KernelRows(X, kernel, "float64", PLENTY), y, np.full(1500, C), Limits(shrinking=False))
    assert counts["rounds"] > 0
    assert counts["shrunk"] == counts["unshrunk"] == 0


@pytest.mark.parametrize("most", [20, 0], ids=["some come back", "all come back"])
@pytest.mark.parametrize("rows", [200, 1500])
def test_rows_that_left_too_early_come_back(rows, most, eager, counts, monkeypatch):
    monkeypatch.setattr(smo, "SHRINKING", replace(smo.SHRINKING, unshrinks=most))
    (kernel, C), returned = OTHERS["smooth"], 0
    for seed in (0, 1, 2):
        X, y = many(seed=seed)
        K, expected, _ = reference(1500, seed, kernel, C)
        got = solve(KernelRows(X, kernel, "float64", budget(X, kernel, "float64", rows)), y, np.full(1500, C), LIMITS)
        check(got, K, y, C, 1e-4)
        assert got.objective == pytest.approx(expected, rel=1e-6)
        returned += counts["unshrunk"]
    assert returned > 0


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_dear_values_that_are_kept_are_not_computed_again(dtype, monkeypatch):
    """The square of some rows, of which none, some or all are kept, over all columns and over some."""
    X, kernel = many()[0][:300], HARD[0]
    K = matrix(kernel, X)
    gram = KernelRows(X, kernel, dtype, PLENTY)
    monkeypatch.setattr(kernel_rows, "_EXPENSIVE", 0.0)
    rows, tolerance = np.arange(20, 250, 3), 1e-12 if dtype == "float64" else 1e-5
    for active in (np.arange(300), np.arange(0, 300, 2)):
        gram.activate(active)
        rows = np.intersect1d(rows, active)
        for kept in (rows[:0], rows[5:20], rows):
            gram.fetch(kept)
            computed = gram.values_computed
            square = gram.square(rows)[: len(rows), : len(rows)]
            np.testing.assert_allclose(square, K[np.ix_(rows, rows)], rtol=tolerance, atol=tolerance)
            left = np.count_nonzero(gram.table().where[np.searchsorted(active, rows)] < 0)
            assert gram.values_computed == computed + left**2


@pytest.mark.parametrize("touch", [0.0, TOUCH])
def test_few_rows_are_computed(small_set, monkeypatch, touch):
    """Bounds, not numbers that a better choice of rows would change."""
    monkeypatch.setattr(kernel_rows, "TOUCH", touch)
    (X, y), (kernel, C) = many(), HARD
    gram = KernelRows(X, kernel, "float64", PLENTY)
    got, times = solve(gram, y, np.full(1500, C), LIMITS), max(1, math.ceil(touch / gram.price))
    support = np.count_nonzero(got.alpha)
    assert support / 2 < got.kernel_rows < 2 * times * support
    assert got.kernel_rows <= 1500 * times
    assert got.kernel_values <= got.kernel_rows * 1500 + (got.rounds + 1) * SMALL_SET**2 + 1500**2
    assert got.values_read > 0
    assert support < got.iterations < 50 * support
    assert got.seconds > 0


@pytest.mark.parametrize(("price", "times"), [(4.0, 4), (7.5, 2), (TOUCH, 1), (100.0, 1)])
def test_a_row_is_kept_once_it_has_cost_more_than_fresh_memory(price, times):
    """Cheap rows are computed some times before, dear ones once; all are the same rows."""
    (X, _), (kernel, _) = many(), HARD
    gram, rows, change = KernelRows(X, kernel, "float64", PLENTY), np.array([3, 700]), np.array([1.0, -2.0])
    gram.price, expected = price, change @ matrix(kernel, X[rows], X)
    for turn in range(1, times + 3):
        v = np.zeros(1500)
        gram.subtract(rows, change, v, np.array([True, True]))
        np.testing.assert_allclose(-v, expected, rtol=1e-12, atol=1e-14)
        assert gram.rows_computed == 2 * min(turn, times)
    gram.subtract(np.array([5]), np.array([1.0]), np.zeros(1500), np.array([False]))
    assert gram.table().where[[3, 5, 700]].min() == -1  # row 5 is not to be kept


def test_the_same_bits_again(small_set):
    (X, y), (kernel, C) = many(), HARD
    first, second = (solve(KernelRows(X, kernel, "float32", PLENTY), y, np.full(1500, C), LIMITS) for _ in range(2))
    assert np.array_equal(first.alpha, second.alpha)
    assert np.array_equal(first.decision, second.decision)
    for name in ("b", "objective", "gap", "iterations", "rounds", "kernel_rows", "kernel_values", "values_read"):
        assert getattr(first, name) == getattr(second, name), name


@pytest.mark.parametrize("form", [np.array, sp.csr_matrix])
def test_input_stays(form, eager):
    (X, y), (kernel, C) = many(), HARD
    given, bounds, start = form(X), np.full(1500, C), np.zeros(1500)
    before, targets = given.copy(), y.copy()
    solve(KernelRows(given, kernel, "float32", PLENTY), targets, bounds, LIMITS, start)
    assert abs(given - before).max() == 0
    assert np.array_equal(targets, y)
    assert (bounds == C).all()
    assert (start == 0).all()


# -- a matrix that is there --------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n", [100, 1500])
def test_precomputed_equals_kernel_rows(n, dtype, order, eager):
    (X, y), (kernel, C) = many(), HARD
    X, y = X[:n], y[:n]
    K = matrix(kernel, X)
    given = np.array(K, dtype, order=order)
    before = given.copy()
    given.flags.writeable = False
    got = solve(GivenMatrix(given), y, np.full(n, C), LIMITS)
    other = solve(KernelRows(X, kernel, "float64", PLENTY), y, np.full(n, C), LIMITS)
    assert got.converged
    assert np.array_equal(given, before)
    assert got.objective == pytest.approx(other.objective, rel=1e-6)
    np.testing.assert_allclose(got.decision, other.decision, rtol=0, atol=1e-3)
    check(got, given.astype(np.float64), y, C, 1e-4)


# -- where to begin ----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [100, 1500])
def test_from_the_solution(n, small_set):
    (X, y), (kernel, C) = many(), HARD
    X, y, bounds = X[:n], y[:n], np.full(n, C)
    cold = solve(KernelRows(X, kernel, "float64", PLENTY), y, bounds, LIMITS)
    warm = solve(KernelRows(X, kernel, "float64", PLENTY), y, bounds, LIMITS, cold.alpha)
    assert warm.converged
    assert warm.iterations <= 10
    assert warm.objective == pytest.approx(cold.objective, rel=1e-9)
    check(warm, matrix(kernel, X), y, C, 1e-4)


@pytest.mark.parametrize("n", [100, 1500])
@pytest.mark.parametrize("seed", [0, 1])
def test_from_anywhere(n, seed, small_set):
    (X, y), (kernel, C), rng = many(), HARD, np.random.default_rng(seed)
    X, y = X[:n], y[:n]
    alpha = rng.random(n) * C * (rng.random(n) < 0.7)
    sums = [alpha[y == side].sum() for side in (1, -1)]
    for side, total in zip((1, -1), sums, strict=True):
        alpha[y == side] *= min(sums) / total
    got = solve(KernelRows(X, kernel, "float64", PLENTY), y, np.full(n, C), LIMITS, alpha)
    cold = solve(KernelRows(X, kernel, "float64", PLENTY), y, np.full(n, C), LIMITS)
    check(got, matrix(kernel, X), y, C, 1e-4)
    assert got.converged
    assert got.objective == pytest.approx(cold.objective, rel=1e-6)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ([0.5, 0.5, 0.0], "4 numbers"),
        ([[0.5, 0.5, 0.0, 0.0]], "4 numbers"),
        ([0.5, -0.5, -0.5, -0.5], "4 numbers"),
        ([1.5, 1.5, 0.0, 0.0], "4 numbers"),
        ([np.nan, 0.0, 0.0, 0.0], "4 numbers"),
        ([0.5, 0.25, 0.0, 0.0], r"sum is 0\.25, and it must be 0"),
    ],
)
def test_a_start_that_is_not_feasible(start, message):
    y = np.array([1.0, -1.0, 1.0, -1.0])
    with pytest.raises(InputError, match=f"the start: .*{message}"):
        solve(GivenMatrix(np.eye(4)), y, np.ones(4), start=np.array(start))


# -- when to stop ------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0, 1, 50, 4000, 6500])
@pytest.mark.parametrize("eagerly", [False, True])
def test_most_pairs(most, eagerly, request):
    """Also where rows are shrunk, and in the midst of pairs."""
    request.getfixturevalue("eager" if eagerly else "small_set")
    (X, y), (kernel, C) = many(), HARD
    got = solve(KernelRows(X, kernel, "float64", PLENTY), y, np.full(1500, C), Limits(1e-6, max_iter=most))
    assert got.iterations == most
    assert not got.converged
    assert got.gap > 1e-6
    check(got, reference()[0], y, C, 1e-6)


def test_most_pairs_of_a_small_problem():
    (X, y), (kernel, C) = many(), HARD
    got = solve(KernelRows(X[:100], kernel, "float64", PLENTY), y[:100], np.full(100, C), Limits(max_iter=20))
    assert got.iterations == 20
    check(got, matrix(kernel, X[:100]), y[:100], C, 1e-3)
    assert not got.converged


def test_most_seconds(small_set):
    (X, y), (kernel, C) = many(), HARD
    got = solve(KernelRows(X, kernel, "float64", PLENTY), y, np.full(1500, C), Limits(max_time=1e-9))
    assert not got.converged
    check(got, reference()[0], y, C, 1e-3)


@pytest.mark.parametrize("name", ["tol", "max_time"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_limits_that_are_none(name, value):
    with pytest.raises(InputError, match=f"{name} = .*positive"):
        Limits(**{name: value})


def test_an_infinite_tolerance():
    with pytest.raises(InputError, match="tol = inf"):
        Limits(tol=float("inf"))


@pytest.mark.parametrize("shrinking", [True, False])
def test_watched(shrinking, small_set):
    """The dual objective never falls, and is that of the solution at last."""
    (X, y), (kernel, C), seen = many(), HARD, []
    gram = KernelRows(X, kernel, "float64", PLENTY)
    got = solve(gram, y, np.full(1500, C), Limits(1e-4, shrinking=shrinking), watch=seen.append)
    objectives, iterations = np.array([p.objective for p in seen]), np.array([p.iterations for p in seen])
    assert len(seen) > 5
    assert (np.diff(objectives) > -1e-9 * got.objective).all()
    assert (np.diff(iterations) > 0).all()
    assert all(p.gap >= 1e-4 for p in seen)
    assert seen[0].gap == 2.0
    assert seen[-1].gap < 0.1
    assert (seen[-1].iterations, seen[0].active) == (got.iterations, 1500)
    assert (min(p.active for p in seen) < 1500) == shrinking
    assert objectives[-1] == pytest.approx(got.objective, rel=1e-9)


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
def test_it_ends(name, dtype, size, monkeypatch):
    monkeypatch.setattr(smo, "WORKING_SET", size)
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
