"""Narrow Gaussian kernels, most of whose values are left out: what is near, and solutions beside the whole matrix."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.references import libsvm, matrix

from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.kernels.near import spatial_order, squared_cutoff
from cacore.kernels.panels import nonzeros
from cacore.limits import Limits
from cacore.near.boxes import Boxes
from cacore.svm.dual import Dual
from casvm.solver import near_rows, near_smo, smo
from casvm.solver.kernel_rows import KernelRows
from casvm.solver.near_rows import NearRows
from casvm.solver.near_smo import NearSets

PLENTY, KERNEL, LIMITS = 1 << 28, Kernel("gaussian", gamma=30.0), Limits(tol=1e-5)


@pytest.fixture(autouse=True)
def few_rows(tuned):
    """Small problems are taken, too, in which many blocks have rows of several clusters."""
    tuned(near_problem_rows=200, near_problem_share=0.6)


def clusters(n=1511, seed=0):
    """Rows in fourteen clusters of different sizes, and targets that change within each."""
    rng = np.random.default_rng(seed)
    which = rng.choice(14, n, p=np.arange(3, 17) / np.arange(3, 17).sum())
    X = np.zeros((n, 16))
    X[np.arange(n), which] = np.where(which == 13, 0.0, 1.0)
    X[which == 13, 12] = 0.6
    X[:, 14:] = rng.uniform(0, 1, (n, 2))
    y = np.where(np.sin(7 * X[:, 14]) + X[:, 15] + 0.3 * rng.normal(size=n) > 1, 1.0, -1.0)
    return X, y


def problems(y):
    """The duals that the solver meets, by name."""
    n = len(y)
    weights = np.random.default_rng(1).choice([0.0, 1.0, 5.0], n)
    return {
        "classes": Dual.classification(y, np.full(n, 10.0)),
        "weights": Dual.classification(y, weights),
        "start": Dual.classification(y, np.full(n, 10.0), np.full(n, 3.0)).repaired(),
        "regression": Dual.regression(np.cos(3 * np.arange(n)), np.full(n, 2.0), 0.1),
        "one class": Dual.one_class(np.ones(n), 0.1),
        "nu": Dual.nu_classification(y, np.ones(n), 0.2),
    }


@pytest.mark.parametrize("leaf", [8, 64])
def test_the_order_is_one_of_all_rows_and_puts_neighbours_together(leaf):
    X, _ = clusters()
    order = spatial_order(X, leaf)
    np.testing.assert_array_equal(np.sort(order), np.arange(len(X)))
    np.testing.assert_array_equal(spatial_order(sp.csr_matrix(X), leaf), order)
    steps = np.abs(np.diff(X[order], axis=0)).sum(axis=1).mean()
    assert steps < 0.3 * np.abs(np.diff(X, axis=0)).sum(axis=1).mean()


@pytest.mark.parametrize("rows", [np.zeros((5, 3)), np.full((300, 2), 7.0), 2.0 ** np.arange(300)[:, None]])
def test_the_order_of_equal_rows_and_of_rows_of_all_magnitudes(rows):
    np.testing.assert_array_equal(np.sort(spatial_order(rows, 8)), np.arange(len(rows)))


def test_near_are_all_groups_with_rows_within_the_distance():
    X, _ = clusters(803)
    X = X[spatial_order(X, 8)]
    points, squared = nonzeros(X, "float64"), 0.9
    some = np.flatnonzero(np.arange(len(X)) % 3 > 0)
    runs = Boxes.of_points(points, np.arange(len(X)), 8).near(Boxes.of_points(points, some, 16), squared)
    D = ((X[:, None] - X[some][None]) ** 2).sum(axis=2)
    for group in range(-(-len(X) // 8)):
        found = [
            block
            for k in range(runs.starts[group], runs.starts[group + 1])
            for block in range(runs.first[k], runs.last[k])
        ]
        needed = np.unique(np.flatnonzero((D[group * 8 : (group + 1) * 8] <= squared).any(axis=0)) // 16)
        assert set(needed) <= set(found)
        assert found == sorted(set(found))
        assert len(found) == runs.blocks[group]
    assert runs.blocks.mean() < 0.5 * -(-len(some) // 16)


def solve_near(X, kernel, dual, limits, cache_bytes, watch=None):
    found = near_smo.near_values(X, kernel, dual, limits, cache_bytes)
    return None if found is None else found.solve(dual, limits, watch)


def solve_whole(X, dual):
    return smo.solve(KernelRows(X, KERNEL, "float64", PLENTY), dual, LIMITS)


@cache
def whole(kind):
    """Solution of one of the problems with the whole matrix."""
    X, y = clusters()
    return solve_whole(X, problems(y)[kind])


@pytest.mark.parametrize("kind", problems(np.resize([1.0, -1.0], 10)))
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_solutions_are_those_of_the_whole_matrix(kind, form):
    X, y = clusters()
    dual, expected, seen = problems(y)[kind], whole(kind), []
    got = solve_near(form(X), KERNEL, dual, LIMITS, PLENTY, seen.append)
    assert got is not None
    assert got.converged
    assert got.gap < LIMITS.tol
    assert got.objective == pytest.approx(expected.objective, rel=1e-7, abs=1e-9)
    assert seen[-1].objective == pytest.approx(got.objective, rel=1e-6, abs=1e-9)
    np.testing.assert_allclose(got.decision, expected.decision, rtol=0, atol=20 * LIMITS.tol)
    K = matrix(KERNEL, X)
    np.testing.assert_allclose(got.decision, K @ got.beta + got.b, rtol=0, atol=1e-2 * LIMITS.tol + 1e-9)
    assert got.beta.sum() == pytest.approx(dual.total, abs=1e-9)
    assert ((got.beta >= dual.lower) & (got.beta <= dual.upper)).all()


def test_the_solution_is_libsvms():
    X, y = clusters()
    got = solve_near(X, KERNEL, Dual.classification(y, np.full(len(y), 10.0)), LIMITS, PLENTY)
    beta, decision, _ = libsvm(KERNEL, X, y, 10.0, LIMITS.tol)
    K = matrix(KERNEL, X)
    assert got.objective == pytest.approx(np.abs(beta).sum() - 0.5 * beta @ K @ beta, rel=1e-7)
    np.testing.assert_allclose(got.decision, decision, rtol=0, atol=20 * LIMITS.tol)


@pytest.mark.parametrize(("kind", "gamma"), [("laplacian", 60.0), ("matern52", 200.0), ("wendland2_product", 8.0)])
def test_other_kernels_that_end_or_decay(kind, gamma):
    X, y = clusters()
    kernel, dual = (
        Kernel(kind, gamma=gamma),
        Dual.classification(y, np.full(len(y), 10.0)),
    )
    got = solve_near(X, kernel, dual, LIMITS, PLENTY)
    expected = smo.solve(KernelRows(X, kernel, "float64", PLENTY), dual, LIMITS)
    assert got.objective == pytest.approx(expected.objective, rel=1e-7)
    np.testing.assert_allclose(got.decision, expected.decision, rtol=0, atol=20 * LIMITS.tol)


def test_single_precision_rows_that_do_not_all_fit():
    """Rows are given up and computed again; the answer stays what it is."""
    X, y = clusters()
    dual = Dual.classification(y, np.full(len(y), 10.0))
    order = spatial_order(X, 128)
    same = replace(dual, linear=dual.linear[order], lower=dual.lower[order], upper=dual.upper[order])
    layout = Layout.of(X, KERNEL, np.dtype("float32"))
    found = []
    for rows in (1511, 150):
        gram = NearRows(
            X[order], KERNEL, "float32", layout, squared_cutoff(KERNEL, 64.0, 1e-3 * 1e-3 / 15110.0), PLENTY
        )
        gram.room = rows * gram.size // 1511
        found.append((near_smo._Near(gram, same, Limits(tol=1e-3), None).run(len(y)), gram.rows_computed))
    (plenty, once), (little, often) = found
    assert often > 1.5 * once
    assert little.converged
    assert little.objective == pytest.approx(plenty.objective, rel=1e-6)
    assert plenty.objective == pytest.approx(whole("classes").objective, rel=1e-6)


def test_few_values_are_computed_and_read():
    """Counts, which are the same on every machine: no more than what is near, for every row and every pair."""
    X, y = clusters(3001)
    dual = Dual.classification(y, np.full(len(y), 10.0))
    got = solve_near(X, KERNEL, dual, Limits(), PLENTY)
    whole = solve_whole(X, dual)
    assert got.kernel_values < 0.5 * whole.kernel_values
    assert (
        got.values_read < 0.6 * 2 * len(y) * got.iterations
    )  # of whole panels, which hold 128 rows in single precision
    assert got.iterations < 1.2 * whole.iterations


def test_the_same_bits_for_any_number_of_threads(tuned):
    X, y = clusters()
    dual, found = Dual.classification(y, np.full(len(y), 10.0)), []
    for count in (1, 3):
        tuned(threads=count)
        found.append(solve_near(X, KERNEL, dual, Limits(), PLENTY))
    for name in ("beta", "decision", "objective", "iterations", "kernel_values", "values_read"):
        np.testing.assert_array_equal(*(getattr(one, name) for one in found))


def test_unsuitable_problems_use_the_whole_matrix(tuned):
    X, y = clusters()
    dual = Dual.classification(y, np.ones(len(y)))

    def taken(kernel=KERNEL, cache_bytes=PLENTY):
        return solve_near(X, kernel, dual, LIMITS, cache_bytes) is not None

    assert taken()
    assert not taken(Kernel("gaussian", gamma=0.5))
    assert not taken(Kernel("l1", gamma=50.0))
    assert not taken(cache_bytes=X.nbytes + 1000)
    tuned(near_problem_rows=5000)
    assert not taken()


def test_shrunk_cached_rows_equal_recomputed_ones():
    X = clusters()[0]
    X = X[spatial_order(X, 64)]
    grams = [NearRows(X, KERNEL, "float64", Layout.of(X, KERNEL, np.dtype("float64")), 0.9, PLENTY) for _ in range(2)]
    kept = np.flatnonzero(np.arange(len(X)) % 5 > 1)
    for gram in grams:
        gram.begin()
    for now, row in enumerate(range(1510, 0, -3)):
        near_rows.row_of(grams[0].near, row, now)
    for gram in grams:
        gram.restrict(kept)
    runs = grams[0].runs
    for row in kept[kept % 3 == 1]:
        group = slice(runs.starts[row // 64], runs.starts[row // 64 + 1])
        pairs = zip(runs.first[group] * 64, runs.last[group] * 64, strict=True)
        columns = np.concatenate([np.arange(first, last) for first, last in pairs])
        places = [near_rows.row_of(gram.near, row, 10**6) for gram in grams]
        rows = [gram.near.pool[at : at + len(columns)] for gram, at in zip(grams, places, strict=True)]
        there = columns < len(kept)  # others fill up the last block
        np.testing.assert_allclose(rows[0][there], rows[1][there], rtol=1e-12, atol=1e-12)
    assert grams[0].rows_computed < 504 + 10  # none again


def test_least_recently_read_rows_are_evicted():
    X = clusters()[0]
    gram = NearRows(X, KERNEL, "float64", Layout.of(X, KERNEL, np.dtype("float64")), 0.5, PLENTY)
    gram.begin()
    kept = [near_rows.row_of(gram.near, row, now) for now, row in enumerate(range(0, 1000, 10), 1)]
    assert min(kept) >= 0
    near_rows.row_of(gram.near, 0, 1000)
    expected = [gram.near.pool[at : at + 64].copy() for at in (kept[0], kept[-1])]
    gram._pool = gram.near.pool[: gram._counts[near_rows.TAKEN]]
    gram.make_room()
    assert gram._place[10] == -1
    for row, values in zip((0, 990), expected, strict=True):
        at = gram._place[row]
        np.testing.assert_array_equal(gram.near.pool[at : at + 64], values)


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_working_sets_at_a_bias_beside_the_whole_matrix(epsilon, tuned):
    """One pass over stretches of the rows: v is that of all rows, the dual at the bias grows, and passes end it."""
    tuned(near_pool_rows=4)
    X, y = clusters()
    order = spatial_order(X, 64)
    X, y, layout = X[order], y[order], Layout.of(X, KERNEL, np.dtype("float64"))
    gram = NearRows(X, KERNEL, "float64", layout, 0.9, 0, len(X))
    gram.begin()
    dual = Dual.classification(y, np.ones(len(y))) if not epsilon else Dual.regression(y, np.ones(len(y)), epsilon)
    K, b, values = matrix(KERNEL, X, X), 0.2, []
    v, beta = -dual.linear, np.zeros(len(y))
    for _ in range(200):
        sets = NearSets(gram, dual, b, v, beta, dual.lower, dual.upper)
        sets.optimise(1e-4, 10**6)
        v, beta = sets.v, sets.beta
        np.testing.assert_allclose(v, -dual.linear - K @ beta, atol=1e-6)
        values.append(-dual.linear @ beta - epsilon * np.abs(beta).sum() - b * beta.sum() - 0.5 * beta @ K @ beta)
        if not sets.violating(1e-4):
            break
    assert sets.violating(1e-4) == 0
    assert np.all(np.diff(values) > -1e-9)
    assert np.all((beta >= dual.lower) & (beta <= dual.upper))
    lone = NearSets(gram, dual, b, -dual.linear, np.zeros(len(y)), dual.lower, dual.upper)
    lone.optimise(1e-6, 7)
    assert lone.iterations == 7
