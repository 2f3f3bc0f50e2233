"""The local SMO solver on more rows than a working set takes: every cache and form of rows gives one solution."""

from __future__ import annotations

import gc
import math
import weakref
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.references import dual, libsvm, matrix
from helpers.smo import HARD, LIMITS, PLENTY, check, many, reference, solve

from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.limits import Limits
from casvm.solver import active_set, kernel_rows, smo
from casvm.solver.kernel_rows import TOUCH, KernelRows, gram_of, padded

SMALL_SET = 128  # instead of 2048


# -- more rows than a working set takes ----------------------------------------------------------


def budget(X, kernel, dtype, rows):
    """Bytes for the packed rows of `X` and that many rows of K."""
    return Layout.of(X, kernel, dtype).nbytes(X) + rows * padded(X.shape[0]) * np.dtype(dtype).itemsize


@pytest.fixture
def small_set(tuned):
    """Small problems need all that large ones do: rounds, looks between pairs, and rows of K that are read again."""
    tuned(working_set=SMALL_SET, smo_chunk=1000, touch=0.0)


@pytest.fixture
def eager(tuned, small_set):
    """Rows leave at the first occasion: often too early, so that some have to come back."""
    tuned(smo_shrinking=replace(smo.SHRINKING, patience=1, share=0.05))


@pytest.fixture
def counts(monkeypatch):
    """How often what happens in the solver and its cache happens."""
    count = Counter()

    def watched(owner, name, tell):
        original = getattr(owner, name)

        def call(*args, **keywords):
            before = args[0].slot >= 0 if owner is kernel_rows.RowCache else None
            result = original(*args, **keywords)
            count.update(tell(result, before, args))
            return result

        monkeypatch.setattr(owner, name, call)

    solver, cached = smo._Serial, kernel_rows.RowCache
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
def test_support_vectors_exceeding_one_block(rows, small_set, tuned):
    (X, y), (kernel, C), (K, expected, decision) = many(), HARD, reference()
    tuned(support_block=50)
    got = solve(KernelRows(X, kernel, "float64", budget(X, kernel, "float64", rows)), y, np.full(1500, C), LIMITS)
    assert np.count_nonzero(got.alpha) > 200
    check(got, K, y, C, 1e-4)
    agrees(got, expected, decision)


def test_least_recently_used_rows_make_room():
    """The least recently used does, and what was never read before that."""
    cached = kernel_rows.RowCache(np.zeros(4 * padded(10)), 10, 10)

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
def test_threads_do_not_change_a_bit(dtype, rows, small_set, tuned):
    (X, y), (kernel, C) = many(), HARD
    found = []
    for number in (1, 2, 3):
        tuned(threads=number)
        gram = KernelRows(X, kernel, dtype, budget(X, kernel, dtype, rows))
        found.append(solve(gram, y, np.full(1500, C), LIMITS))
    for other in found[1:]:
        assert np.array_equal(other.alpha, found[0].alpha)
        assert np.array_equal(other.decision, found[0].decision)
        assert (other.b, other.iterations, other.objective) == (found[0].b, found[0].iterations, found[0].objective)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("form", ["dense", "csr"])
def test_wide_rows_with_any_number_of_threads(form, dtype, small_set, tuned):
    """Kernel values by matrix products, whose last bits depend on how the work is shared."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 300)) if form == "dense" else sp.random(400, 5000, 0.01, "csr", random_state=0)
    y = np.where(rng.normal(size=400) > 0.5, 1.0, -1.0)
    kernel = Kernel("gaussian", gamma=0.003 if form == "dense" else 0.05)
    K = matrix(kernel, X)
    expected = dual(K, libsvm(kernel, X, y, 10.0, 1e-5)[0])
    for number, rows in ((1, 400), (2, 400), (2, 100)):
        tuned(threads=number)
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
def test_all_kernels_survive_eager_shrinking(name, rows, eager):
    (X, y), (kernel, C) = many(seed=1), OTHERS[name]
    K, expected, _ = reference(1500, 1, kernel, C)
    got = solve(KernelRows(X, kernel, "float64", budget(X, kernel, "float64", rows)), y, np.full(1500, C), LIMITS)
    assert got.converged
    check(got, K, y, C, 1e-4)
    assert got.objective == pytest.approx(expected, rel=1e-6)


# -- that all of it was needed -----------------------------------------------------------------


def test_kernel_values_are_freed_with_the_solver(small_set):
    """No cycle of references keeps a part's kernel cache until the next garbage collection."""
    X, y = many(400)[:2]
    C = np.ones(len(y))
    gram = gram_of(X, Kernel("gaussian", 0.5), 1.0, LIMITS.tol, 1 << 24)
    gc.collect()
    gc.disable()
    try:
        assert solve(gram, y, C, LIMITS).iterations
        freed = weakref.ref(gram)
        del gram
        assert freed() is None
    finally:
        gc.enable()


def test_large_cache_keeps_rows_over_all_and_over_some_columns(small_set, counts):
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


def test_small_cache_evicts_and_cuts_rows(small_set, counts):
    """Rows make room, and those that stay are cut to the columns that stay."""
    (X, y), (kernel, C) = many(), HARD
    got = solve(KernelRows(X, kernel, "float64", budget(X, kernel, "float64", 200)), y, np.full(1500, C), LIMITS)
    agrees(got, *reference()[1:])
    assert min(counts[what] for what in ("rounds", "pairs", "fetched", "shrunk", "cut", "evicted")) > 0
    assert counts["second cache"] == 0


def test_shrinking_can_be_disabled(small_set, counts):
    (X, y), (kernel, C) = many(), HARD
    solve(KernelRows(X, kernel, "float64", PLENTY), y, np.full(1500, C), Limits(shrinking=False))
    assert counts["rounds"] > 0
    assert counts["shrunk"] == counts["unshrunk"] == 0


@pytest.mark.parametrize("most", [20, 0], ids=["some come back", "all come back"])
@pytest.mark.parametrize("rows", [200, 1500])
def test_wrongly_shrunk_rows_are_reactivated(rows, most, eager, counts, tuned):
    tuned(smo_shrinking=replace(smo.SHRINKING, unshrinks=most))
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
def test_expensive_cached_values_are_reused(dtype, tuned):
    """The square of some rows, of which none, some or all are kept, over all columns and over some."""
    X, kernel = many()[0][:300], HARD[0]
    K = matrix(kernel, X)
    gram = KernelRows(X, kernel, dtype, PLENTY)
    tuned(expensive_value=0.0)
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
def test_few_rows_are_computed(small_set, tuned, touch):
    """Bounds, not numbers that a better choice of rows would change."""
    tuned(touch=touch)
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
def test_row_is_cached_once_recomputing_costs_more(price, times):
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
    got = solve(gram_of(given, None, C, LIMITS.tol, PLENTY), y, np.full(n, C), LIMITS)
    other = solve(KernelRows(X, kernel, "float64", PLENTY), y, np.full(n, C), LIMITS)
    assert got.converged
    assert np.array_equal(given, before)
    assert got.objective == pytest.approx(other.objective, rel=1e-6)
    np.testing.assert_allclose(got.decision, other.decision, rtol=0, atol=1e-3)
    check(got, given.astype(np.float64), y, C, 1e-4)
