"""Trees of SVMs in one process: their plan, their merges, and where each merge begins."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import near, same_rows
from helpers.data import drawn_clouds, forms
from helpers.references import dual, matrix
from helpers.trees import GAMMA, TOL, C, methods, of_pair, pairs_of, train
from hypothesis import given, settings
from hypothesis import strategies as st

from cacore.data.dataset import Samples
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.svm.dual import Dual
from casvm.methods.tree import filtered, merged, neighbours, plan
from casvm.model.part_svm import placed
from casvm.solver import smo
from casvm.solver.smo import PartTraining, fit_part

KERNEL = Kernel("gaussian", GAMMA)


# -- the plan ----------------------------------------------------------------------------------

leaves = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 8)), min_size=1, max_size=70)


@given(leaves)
@settings(max_examples=200, deadline=None)
def test_plan(parts):
    """Every part lies below the root once, and the fewer rows move."""
    sizes, owners = zip(*parts, strict=True)
    layers = plan(sizes, owners)
    P = len(parts)
    assert len(layers) == 1 + int(np.ceil(np.log2(P)))
    assert [(place.owner, place.rows) for place in layers[0]] == [(owner, m) for m, owner in parts]
    assert len(layers[-1]) == 1
    below = [[i] for i in range(P)]
    for before, layer in pairwise(layers):
        assert [child for place in layer for child in place.children] == list(range(len(before)))
        assert all(len(place.children) == 2 for place in layer[:-1])
        assert len(layer[-1].children) in (1, 2)
        for place in layer:
            children = [before[i] for i in place.children]
            assert place.rows == sum(child.rows for child in children)
            assert place.owner in [child.owner for child in children if child.rows == max(c.rows for c in children)]
        below = [sorted(leaf for i in place.children for leaf in below[i]) for place in layer]
    assert below == [list(range(P))]


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=60), st.integers(1, 60))
@settings(max_examples=300, deadline=None)
def test_neighbours(sizes, ranks):
    """Consecutive parts for each rank, and at least one."""
    ranks = min(ranks, len(sizes))
    owners = neighbours(np.array(sizes), ranks)
    assert owners.shape == (len(sizes),)
    assert (owners[0], owners[-1]) == (0, ranks - 1)
    assert set(np.diff(owners).tolist()) <= {0, 1}


def test_neighbours_share_the_work():
    for P, ranks in ((8, 4), (12, 3), (6, 6), (9, 1)):
        assert neighbours(np.full(P, 50), ranks).tolist() == np.repeat(np.arange(ranks), P // ranks).tolist()
    assert neighbours(np.array([900, 10, 10, 10]), 2).tolist() == [0, 1, 1, 1]
    assert neighbours(np.array([10, 10, 10, 900]), 2).tolist() == [0, 0, 0, 1]


# -- merging -----------------------------------------------------------------------------------


def solution(codes, bounds, k, rng):
    """A feasible point of every pair of classes, with rows at 0, at the bound and between."""
    coef = np.zeros((k - 1, len(codes)))
    for i, j in pairs_of(k):
        alpha = bounds * np.clip(rng.uniform(-0.5, 1.5, len(codes)), 0, 1)
        sums = [alpha[codes == c].sum() for c in (i, j)]
        for c, own in zip((i, j), sums, strict=True):
            alpha[codes == c] *= min(sums) / own if own else 0.0
        coef[j - 1, codes == i] = alpha[codes == i]
        coef[i, codes == j] = -alpha[codes == j]
    return coef


@st.composite
def families(draw):
    """Two nodes of up to four classes, with rows in common or not."""
    k, n = draw(st.integers(2, 4)), draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    X, codes, bounds = rng.normal(size=(n, 3)), rng.integers(0, k, n), rng.uniform(0.1, 5, n)
    if draw(st.booleans()):
        X = sp.csr_matrix(np.where(X < 0, 0, X))
    number, side = rng.permutation(10 * n)[:n], rng.integers(0, 3 if draw(st.booleans()) else 2, n)
    nodes = []
    for own in (0, 1):
        here = rng.permutation(np.flatnonzero((side == own) | (side == 2)))
        coef = solution(codes[here], bounds[here], k, rng)
        columns = {"code": codes[here], "C": bounds[here], "row": number[here], "coef": coef.T}
        nodes.append(Samples(X[here], columns))
    return nodes, (X, codes, bounds, number), k


@given(families())
@settings(max_examples=200, deadline=None)
def test_merged(family):
    """Each row once, with what it carries; each pair's solution as feasible as those that it is made of."""
    (left, right), (X, codes, bounds, number), k = family
    got = merged(left, right)
    assert sorted(got["row"]) == sorted(set(left["row"]) | set(right["row"]))
    at = placed(got["row"], number)
    same_rows(got.X, X[at])
    np.testing.assert_array_equal(got["code"], codes[at])
    np.testing.assert_array_equal(got["C"], bounds[at])
    assert got["coef"].shape == (len(got), k - 1)
    for i, j in pairs_of(k):
        beta = of_pair(got["coef"].T, got["code"], i, j)
        assert (np.abs(beta) <= got["C"] * (1 + 1e-15)).all()
        assert (beta * np.where(got["code"] == i, 1, -1) >= 0).all()
        assert abs(beta.sum()) <= 1e-13 * max(1.0, np.abs(beta).sum())
    # Alone, a row keeps its coefficients; where some rows are in both, the mean of both solutions.
    factor = 0.5 if set(left["row"]) & set(right["row"]) else 1.0
    expected = np.zeros_like(got["coef"])
    for node in (left, right):
        expected[placed(node["row"], got["row"])] += factor * node["coef"]
    np.testing.assert_array_equal(got["coef"], expected)


def test_filtered():
    """Support vectors stay, and all rows of classes that have none here."""
    codes = np.array([0, 1, 2, 0, 1, 2, 0])
    coef = np.zeros((7, 2))
    coef[0, 0], coef[1, 0] = 1.0, -1.0  # the pair of 0 and 1
    columns = {"code": codes, "C": np.ones(7), "row": np.arange(7) + 10, "coef": coef}
    node = Samples(np.arange(14.0).reshape(7, 2), columns)
    got = filtered(node)
    assert got["row"].tolist() == [10, 11, 12, 15]
    np.testing.assert_array_equal(got.X, node.X[[0, 1, 2, 5]])
    np.testing.assert_array_equal(got["coef"], coef[[0, 1, 2, 5]])
    assert (got["code"].tolist(), len(got["C"])) == ([0, 1, 2, 2], 4)
    coef[2, 1], coef[3, 1] = -1.0, 1.0  # the pair of 0 and 2
    assert filtered(node)["row"].tolist() == [10, 11, 12, 13]
    coef[:] = 0
    assert filtered(node)["row"].tolist() == node["row"].tolist()


def feasible(alpha, y, C):
    """Alpha of the repaired start."""
    return Dual.classification(y, C, alpha).repaired().start * y


@given(st.integers(1, 40), st.integers(0, 2**32), st.floats(1e-6, 1e6))
@settings(max_examples=200, deadline=None)
def test_feasible(n, seed, scale):
    rng = np.random.default_rng(seed)
    y, bounds = np.where(rng.random(n) < 0.5, 1.0, -1.0), rng.uniform(0, 1, n) * scale
    alpha = rng.uniform(-0.5, 1.5, n) * scale
    given_ = alpha.copy()
    got = feasible(alpha, y, bounds)
    assert ((got >= 0) & (got <= bounds)).all()
    assert abs(got @ y) <= 1e-12 * got.sum() + 1e-300
    assert (got <= np.clip(alpha, 0, bounds)).all()
    lighter = y * (np.clip(alpha, 0, bounds) @ y) <= 0
    np.testing.assert_array_equal(got[lighter], np.clip(alpha, 0, bounds)[lighter])
    np.testing.assert_array_equal(alpha, given_)
    np.testing.assert_allclose(feasible(got, y, bounds), got, rtol=1e-11)


def test_rounding_keeps_bound_rows_at_their_bounds():
    bounds, y = np.array([0.1, 0.2, 0.3]), np.array([1.0, 1.0, -1.0])
    assert bounds @ y != 0  # 0.1 + 0.2 is not 0.3
    np.testing.assert_array_equal(feasible(bounds, y, bounds), bounds)


# -- what every merge begins with ----------------------------------------------------------------


@pytest.fixture
def begun(tuned, recorded):
    """The solvers of a run, as they were when they began: kernel rows, dual, beta, v and objective.

    Pairs of more than two classes use the same solver here as two classes do; tests/test_class_pairs.py has their own.
    """
    tuned(pairs_together=lambda *_: None)

    def state(_, solver, gram, dual, *more):
        return gram, dual, solver.active.beta.copy(), solver.active.v.copy(), solver.objective

    return recorded(smo._Serial, "__init__", state)


@pytest.fixture
def ended(recorded, tuned):
    """The kernel rows, duals and solutions of a run, in rounds."""
    tuned(most_whole=0)
    return recorded(smo, "solve", lambda solution, gram, dual, *more: (gram, dual, solution))


@pytest.fixture
def repaired(monkeypatch):
    """Starts before and after they were made feasible."""
    seen, original = [], Dual.repaired

    def spied(dual):
        got = original(dual)
        if dual.start is not None:
            seen.append((dual.start.copy(), got.start.copy()))
        return got

    monkeypatch.setattr(Dual, "repaired", spied)
    return seen


@methods
@forms
@pytest.mark.parametrize("k", [2, 3])
def test_merges_start_from_the_solutions_of_their_children(name, csr, dtype, k, begun, ended, repaired):
    """Sum alpha y = 0 to rounding, and the gradient is the recomputed one: what the first public code gets wrong."""
    X, y = drawn_clouds(k=k, csr=csr, dtype=dtype)
    result = train(name, X, y, passes=3 if name == "cascade" else 1)
    warm = [one for one in begun if one[1].start is not None]
    problems = sum(len(layer["rows"]) for layer in result.more["layers"])
    first = sum(len(layer["rows"]) for layer in result.more["layers"] if layer["pass"] == layer["layer"] == 1)
    assert (len(begun), len(warm)) == (problems * len(pairs_of(k)), (problems - first) * len(pairs_of(k)))
    assert all(before.any() for before, _ in repaired)
    for before, after in repaired:
        np.testing.assert_allclose(after, before, rtol=1e-11, atol=0)
        np.testing.assert_array_equal(after == 0, before == 0)
    for gram, problem, beta, v, objective in begun:
        K = matrix(KERNEL, gram.X)
        assert abs(beta.sum()) <= 1e-12 * max(1.0, np.abs(beta).sum())
        assert ((beta >= problem.lower) & (beta <= problem.upper)).all()
        near(v, -problem.linear - K @ beta, 1e-10)
        assert objective == pytest.approx(dual(K, beta), rel=1e-9, abs=1e-9)
        assert problem.start is None or np.array_equal(beta, problem.start)
    for gram, problem, got in ended:
        K, beta = matrix(KERNEL, gram.X), got.beta
        assert got.converged
        assert abs(beta.sum()) <= 1e-12 * max(1.0, got.alpha.sum())
        assert ((beta >= problem.lower) & (beta <= problem.upper)).all()
        near(got.decision, K @ beta + got.b, 1e-10)


def test_a_start_spares_iterations():
    """The same rows in two places that do not see each other: what is merged is solved already."""
    X, y = drawn_clouds(100)
    result = train("dcsvm", np.r_[X, X + 100.0], np.r_[y, y], partitions=2)
    first, second = result.more["layers"]
    assert first["rows"] == [100, 100]
    assert sum(first["iterations"]) > 100
    assert sum(second["iterations"]) <= 3
    assert second["objective"][0] == pytest.approx(sum(first["objective"]), rel=1e-9)


@pytest.mark.parametrize("held", [[0, 1, 2], [0, 2], [1, 2], [0, 1]], ids=str)
def test_a_part_begins_with_coefficients_of_all_classes(held):
    """Also where it lacks a class: from its own solution it takes next to no steps."""
    X, y = drawn_clouds(k=3)
    here = np.flatnonzero(np.isin(y, held))
    problem = X[here], y[here], np.full(len(here), C), here, PartTraining(KERNEL, Limits(TOL), 1 << 24)
    cold, before = fit_part(*problem)
    start = np.zeros((2, len(here)))
    start[:, placed(cold.rows, here)] = cold.spread(3)
    warm, after = fit_part(*problem, start=start)
    assert sum(one.iterations for one in before) > 100
    assert sum(one.iterations for one in after) <= 3
    np.testing.assert_array_equal(warm.rows, cold.rows)
    near(warm.coef, cold.coef, 1e-6)
    near(warm.b, cold.b, 1e-5)
