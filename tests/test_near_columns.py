"""Kernel values of rows near each other alone: against all of them, and as what Dis-SMO works with."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import near
from helpers.data import kinds
from helpers.references import matrix

from cacore.comm import Communicator
from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.kernels.near import STRETCH, NearPanels, spatial_order, squared_cutoff
from cacore.limits import Limits
from cacore.svm.dual import Dual
from casvm.methods import all_rows
from casvm.solver import smo
from casvm.solver.active_set import Pairs
from casvm.solver.distributed import near_round_size
from casvm.solver.kernel_rows import KernelRows, padded
from casvm.solver.near_smo import NearColumns

N, PLENTY, KERNEL = 2100, 1 << 26, Kernel("gaussian", gamma=32.0)
FLOOR = 1e-13


def gram(X, dtype, kernel=KERNEL, cache_bytes=PLENTY):
    layout = Layout.of(X, kernel, np.dtype(dtype))
    cut = squared_cutoff(kernel, 4.0 * float((X**2).sum(axis=1).max()), FLOOR)
    return NearColumns(X, kernel, dtype, layout, X, cut, cache_bytes), KernelRows(X, kernel, dtype, 0, layout, X)


@pytest.mark.parametrize("kind", ["gaussian", "laplacian", "matern32", "rational", "wendland2_product"])
def test_cutoff(kind):
    """Beyond it the kernel is below the floor, and not much before; a kernel that falls slowly has none."""
    kernel = Kernel(kind, gamma=32.0, degree=1)
    cut = squared_cutoff(kernel, 40.0, 1e-6)
    if kind == "rational":
        assert cut == np.inf
        return
    origin = np.zeros((1, 1))
    for factor, below in ((1.0, True), (0.95, False)):
        value = matrix(kernel, origin, np.array([[np.sqrt(factor * cut)]]))[0, 0]
        assert (value <= 1e-6) == below


def test_kernels_without_a_cutoff():
    for kernel in (Kernel("linear"), Kernel("polynomial", gamma=1.0), Kernel("l1", gamma=32.0)):
        assert squared_cutoff(kernel, 40.0, 1e-6) == np.inf
    assert squared_cutoff(KERNEL, np.inf, 1e-6) == squared_cutoff(KERNEL, 0.0, 1e-6) == np.inf


@pytest.mark.parametrize("size", [1, 16, 3000])
def test_order(size):
    """Every row once; rows of one kind follow one another where that was asked for."""
    X = kinds(N)[0]
    order = spatial_order(X, size)
    np.testing.assert_array_equal(np.sort(order), np.arange(N))
    changes = np.count_nonzero(np.diff(X[order, :8].argmax(axis=1)))
    assert (changes == 7) == (size <= 16)
    same = np.ones((50, 3))
    np.testing.assert_array_equal(np.sort(spatial_order(same, 4)), np.arange(50))
    assert spatial_order(X[:0]).shape == (0,)


@pytest.mark.parametrize("far", [0.0, 1e4], ids=["", "far from the origin"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_as_all_kernel_values(dtype, far):
    X = kinds(N)[0] + far
    some, every = gram(X, dtype)
    assert (some.layout.shift is not None) == (far > 0)
    rng, precision = np.random.default_rng(1), (1e-5 if dtype == np.float32 else 1e-10 if far else 1e-12)
    active = np.arange(N)
    for step in ("all", "restrict", "activate"):
        if step == "restrict":
            kept = np.flatnonzero(rng.random(N) < 0.6)
            active = active[kept]
            some.restrict(kept)
        elif step == "activate":
            active = np.sort(rng.permutation(N)[:1500])
            some.activate(active)
        rows, change = rng.permutation(N)[:300], rng.normal(size=300)
        v, before = np.zeros(len(active)), some.values_computed
        some.subtract(rows, change, v, np.ones(300, np.bool_))
        near(-v, every.product(X, rows, change, active, exact=True), 10 * precision)
        assert some.values_computed - before < 0.6 * 300 * len(active)
    for columns in (np.array([149, 2, 77]), rng.permutation(N)):
        for exact in (False, True):
            expected = every.product(X, rows, change, columns, exact=True)
            near(some.product(X, rows, change, columns, exact=exact), expected, 10 * precision)


@pytest.mark.parametrize(("kind", "gamma"), [("gaussian", 32.0), ("laplacian", 32.0), ("wendland2_product", 2.5)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_working_sets(dtype, kind, gamma):
    """Problems of some rows, one after the other: what all kernel values give; in single precision without a cache."""
    X, kernel = kinds(N)[0], Kernel(kind, gamma=gamma)
    some, _ = gram(X, dtype, kernel, PLENTY if dtype == np.float64 else 0)
    rng = np.random.default_rng(2)
    for size in (900, 20):
        rows = np.sort(rng.permutation(N)[:size])
        order, _ = some.arranged(rows, rows)
        np.testing.assert_array_equal(np.sort(order), np.arange(size))
        K, y = matrix(kernel, X[rows[order]]), np.where(rng.random(size) < 0.5, 1.0, -1.0)
        dual = Dual.classification(y, np.full(size, 2.0))
        state = y, np.zeros(size), dual.lower, dual.upper
        problem, expected = some.pairs(rows[order], dual, *state), Pairs(*state, np.ones(size))
        problem.optimise(1e-5, 10**6)
        expected.optimise(filled(K), np.arange(size), 1e-5, 10**6)
        near(problem.beta, expected.beta, 1e-3)
        near(problem.v, y - K @ problem.beta, 1e-9 if dtype == np.float64 else 1e-4)
        before = some.values_computed
        some.count(problem)
        computed = some.values_computed - before
        assert computed > 0
        if dtype == np.float64:
            assert computed < size * max(size, 65)  # whole panels of columns


def filled(K):
    """With columns for whole vector registers."""
    out = np.zeros((len(K), padded(len(K))))
    out[:, : len(K)] = K
    return out


def test_share_of_pairs():
    """The estimated share of near pairs is the share that is computed."""
    X = kinds(N)[0]
    some, _ = gram(X, np.float64)
    panels = NearPanels(X, np.float64, None, spatial_order(X))
    A, total = some.layout.rows(X[:100]), np.zeros(N)
    computed = panels.add(KERNEL, A, some.cutoff, np.ones(100), total)
    assert panels.near(A, some.cutoff) == computed / (100 * N) < 0.6
    assert panels.near(A, np.inf) == 1.0
    assert panels.add(KERNEL, A, np.inf, np.ones(100), total) == 100 * N
    assert N > 4 * STRETCH  # several boxes, the last of which is not full


def test_near_columns_are_used_only_if_faster(tuned):
    """It pays for dense rows and a kernel with a cutoff radius, if few pairs are near."""
    X = kinds(N)[0]
    tuned(near_columns=0.6)
    layout = Layout.of(X, KERNEL, np.dtype(np.float64))
    cut = squared_cutoff(KERNEL, 40.0, FLOOR)
    assert NearColumns.pays(X, KERNEL, layout, cut, X)
    assert NearColumns.pays(X[:0], KERNEL, layout, cut, X)  # a rank without rows does as the others
    assert not NearColumns.pays(X, KERNEL, layout, np.inf, X)
    assert not NearColumns.pays(X, Kernel("gaussian", gamma=0.1), layout, 300.0, X)
    assert not NearColumns.pays(sp.csr_matrix(X), KERNEL, layout, cut, X)


def test_rows_of_a_round():
    assert near_round_size(1_500, 400, 1 << 30) == 2048
    assert near_round_size(30_000, 400, 1 << 30) == 30_000
    assert near_round_size(10**6 // 2, 512, 1 << 28) == 1 << 16  # twice as many rows take a quarter of the cache


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_solution(epsilon, tuned, recorded):
    """With rows that leave and come back: that of the serial solver, which computes all kernel values."""
    tuned(near_columns=0.6, look=1)
    used = recorded(NearColumns, "pairs", lambda _, columns, rows, *args: len(rows))
    X, y = kinds(N)
    bounds = np.full(N, 2.0)
    dual = Dual.regression(y, bounds, epsilon) if epsilon else Dual.classification(y, bounds)
    share = all_rows.solve(X, dual, smo.PartTraining(KERNEL, Limits(1e-4), PLENTY), Communicator(), 200)
    expected = smo.solve(KernelRows(X, KERNEL, "float64", PLENTY), dual, Limits(1e-4))
    assert share.converged
    assert share.objective == pytest.approx(expected.objective, rel=1e-7)
    near(share.decision, expected.decision, 1e-3)
    assert len(used) == share.rounds
