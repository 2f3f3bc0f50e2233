"""Trees of SVMs in one process: their plan, their merges, and where they end; and one model in pieces."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import combinations, pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import inodes, near, same_part, same_rows
from helpers.data import dense, drawn_clouds, forms
from helpers.references import dual, matrix
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.svm import SVC

from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.machine.memory import MemoryLimitError
from cacore.svm.dual import Dual
from casvm import SVMModel
from casvm.cascade import cascade
from casvm.dcfilter import dcfilter
from casvm.dcsvm import dcsvm
from casvm.methods.tree import filtered, merged, neighbours, plan
from casvm.model.part import PartSVM, deal, join, piece, placed
from casvm.options import Options
from casvm.solver import smo
from casvm.solver.part import fit_part

METHODS = {"cascade": cascade, "dcsvm": dcsvm, "dcfilter": dcfilter}
methods = pytest.mark.parametrize("name", METHODS)
GAMMA, C = 0.4, 2.0
KERNEL = Kernel("gaussian", GAMMA)
TOL = 1e-6


def options(**more):
    given = {"partitions": 5, "seed": 2, "C": C, "gamma": GAMMA, "tol": TOL, "cache_gib": 2**-6}
    return Options(**{**given, **more})


def train(name, X, y, weights=None, **more):
    return METHODS[name](Dataset(X, y, weights=weights), options(**more))


def of_pair(coef, codes, i, j):
    """Beta of the rows of two classes, from the layout of LIBSVM."""
    return np.where(codes == i, coef[j - 1], np.where(codes == j, coef[i], 0.0))


def pairs_of(k):
    return list(combinations(range(k), 2))


def dual_of(model):
    """Of all pairs of a model of one part together, from nothing but its coefficients."""
    (whole,) = model.parts.values()
    codes = whole.classes.repeat(whole.n_support)
    K = matrix(model.kernel, whole.X)
    return sum(dual(K, of_pair(whole.coef, codes, i, j)) for i, j in pairs_of(len(model.classes)))


def exact_dual(X, y, bounds, gamma=GAMMA):
    """LIBSVM's, of all pairs together."""
    total = 0.0
    for i, j in pairs_of(int(y.max()) + 1):
        here = np.flatnonzero(((y == i) | (y == j)) & (bounds > 0))
        Z = dense(X[here]).astype(np.float64)
        beta = SVC(C=1.0, gamma=gamma, tol=TOL).fit(Z, y[here], sample_weight=bounds[here])
        total += dual(matrix(Kernel("gaussian", gamma), Z[beta.support_]), beta.dual_coef_[0])
    return total


@cache
def problem(k=2, csr=False, dtype=np.float64):
    """Rows, labels, and LIBSVM's objective."""
    X, y = drawn_clouds(k=k, csr=csr, dtype=dtype)
    return X, y, exact_dual(X, y, np.full(len(y), C))


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


def test_rounding_takes_no_row_off_its_bound():
    bounds, y = np.array([0.1, 0.2, 0.3]), np.array([1.0, 1.0, -1.0])
    assert bounds @ y != 0  # 0.1 + 0.2 is not 0.3
    np.testing.assert_array_equal(feasible(bounds, y, bounds), bounds)


# -- what every merge begins with ----------------------------------------------------------------


@pytest.fixture
def begun(monkeypatch):
    """The solvers of a run, as they were when they began: kernel rows, dual, beta, v and objective."""
    seen, original = [], smo._Serial.__init__

    def spied(self, gram, dual, *more):
        original(self, gram, dual, *more)
        seen.append((gram, dual, self.active.beta.copy(), self.active.v.copy(), self.objective))

    monkeypatch.setattr(smo._Serial, "__init__", spied)
    return seen


@pytest.fixture
def ended(monkeypatch):
    """The kernel rows, duals and solutions of a run."""
    seen, original = [], smo.solve

    def spied(gram, dual, *more):
        got = original(gram, dual, *more)
        seen.append((gram, dual, got))
        return got

    monkeypatch.setattr(smo, "solve", spied)
    return seen


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
def test_every_merge_begins_where_its_children_ended(name, csr, dtype, k, begun, ended, repaired):
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
    problem = X[here], y[here], np.full(len(here), C), here, KERNEL, Limits(TOL), 1 << 24
    cold, before = fit_part(*problem)
    start = np.zeros((2, len(here)))
    start[:, placed(cold.rows, here)] = cold.spread(3)
    warm, after = fit_part(*problem, start=start)
    assert sum(one.iterations for one in before) > 100
    assert sum(one.iterations for one in after) <= 3
    np.testing.assert_array_equal(warm.rows, cold.rows)
    near(warm.coef, cold.coef, 1e-6)
    near(warm.b, cold.b, 1e-5)


# -- where they end ----------------------------------------------------------------------------


@forms
@pytest.mark.parametrize("k", [2, 3, 4])
def test_dcsvm_is_exact(csr, dtype, k):
    """For any number of parts."""
    X, y, expected = problem(k, csr, dtype)
    decisions = []
    for P in range(1, 10):
        result = train("dcsvm", X, y, partitions=P)
        assert result.solver["objective"][-1] == pytest.approx(expected, rel=1e-6), P
        assert dual_of(result.model) == pytest.approx(expected, rel=1e-6)
        assert result.solver["gap"][-1] < TOL
        decisions.append(result.model.decision_function(X))
    for other in decisions[1:]:
        near(other, decisions[0], 2e-4)


def test_dcsvm_of_rows_enough_for_single_precision():
    """Which the gradient is computed in from 2000 rows on, also that of a start."""
    X, y = drawn_clouds(3001)
    expected = exact_dual(X, y, np.full(3001, C))
    for P in (2, 5):
        assert train("dcsvm", X, y, partitions=P).solver["objective"][-1] == pytest.approx(expected, rel=1e-6)


@forms
def test_dcsvm_with_weights(csr, dtype):
    """Rows of weight 0 count as absent; the classes' weights are the whole problem's, not a part's."""
    X, y = drawn_clouds(k=3, csr=csr, dtype=dtype)
    weights, factor = np.random.default_rng(4).choice([0.0, 0.3, 1.0, 4.0], len(y)), np.array([0.5, 1.0, 3.0])
    expected = exact_dual(X, y, C * weights * factor[y])
    for P in (1, 2, 5):
        result = train("dcsvm", X, y, weights, partitions=P, class_weight={0: 0.5, 2: 3.0})
        assert result.solver["objective"][-1] == pytest.approx(expected, rel=1e-6), P
        (whole,) = result.model.parts.values()
        assert (weights[whole.rows] > 0).all()


@pytest.mark.parametrize("kind", ["linear", "polynomial", "sigmoid"])
@methods
def test_other_kernels(name, kind):
    """With passes enough all of them are exact."""
    X, y = drawn_clouds()
    more = {
        "kernel": kind,
        "gamma": 0.01 if kind == "sigmoid" else 0.05,
        "coef0": 0.5 if kind == "polynomial" else 0.0,
        "degree": 2,
        "C": 5.0 if kind == "sigmoid" else 0.5,
    }
    result = train(name, X, y, passes=1 if name == "dcsvm" else 30, **more)
    alone = train("dcsvm", X, y, partitions=1, **more)
    assert result.solver["objective"][-1] == pytest.approx(alone.solver["objective"][-1], rel=1e-6)


@pytest.mark.parametrize("name", ["cascade", "dcfilter"])
@pytest.mark.parametrize("P", [2, 5, 8])
def test_passes_end_at_the_exact_solution(name, P):
    """The objective never falls from pass to pass, and when it stays the same the passes stop by themselves."""
    X, y, expected = problem()
    result = train(name, X, y, partitions=P, passes=50)
    passes, depth = result.more["passes"], 1 + int(np.ceil(np.log2(P)))
    tops = [layer["objective"][0] for layer in result.more["layers"] if layer["layer"] == depth]
    assert 2 <= passes < 50
    assert len(tops) == passes
    assert (np.diff(tops) >= -1e-9 * expected).all()
    assert tops[0] < (1 - 1e-5) * expected  # one pass was not enough
    assert tops[-1] == pytest.approx(expected, rel=1e-6)
    assert tops[-1] - tops[-2] <= 1e-3 * TOL * tops[-1]
    assert dual_of(result.model) == pytest.approx(expected, rel=1e-6)
    once, twice = (train(name, X, y, partitions=P, passes=most) for most in (1, 2))
    assert (once.more["passes"], twice.more["passes"]) == (1, 2)
    assert once.solver["objective"][-1] == tops[0]
    assert twice.solver["objective"][-1] == tops[1]


@pytest.mark.parametrize("name", ["cascade", "dcfilter"])
def test_passes_of_more_classes_end_at_the_exact_solution(name):
    for k in (3, 4):
        X, y, expected = problem(k, "csr")
        result = train(name, X, y, partitions=6, passes=50)
        assert result.more["passes"] < 50
        assert result.solver["objective"][-1] == pytest.approx(expected, rel=1e-6)
        assert train(name, X, y, partitions=6).solver["objective"][-1] < (1 - 1e-5) * expected


def test_one_part_is_done_after_one_pass():
    """It has seen all rows."""
    X, y, expected = problem()
    result = train("cascade", X, y, partitions=1, passes=9)
    assert (result.more["passes"], len(result.more["layers"])) == (1, 1)
    assert result.solver["objective"][-1] == pytest.approx(expected, rel=1e-6)


# -- parts that hold one class only --------------------------------------------------------------


def clouds(k=2, each=30):
    """Clouds far apart, each of one class and two to a class."""
    rng = np.random.default_rng(0)
    cloud = np.arange(2 * k * each) % (2 * k)
    return rng.normal(size=(len(cloud), 2)) + 20.0 * np.c_[cloud, cloud**2 % 5], cloud % k


@methods
@pytest.mark.parametrize("k", [2, 3])
def test_parts_of_one_class(name, k):
    """Their models are constants; their rows go up, since there they may matter."""
    X, y = clouds(k)
    more = {"partitions": 2 * k, "gamma": 0.01, "seed": {2: 6, 3: 5}[k]}  # with which K-means finds the clouds
    result = train(name, X, y, **more)
    layers = result.more["layers"]
    if name != "cascade":  # whose parts are random
        assert layers[0]["rows"] == [30] * 2 * k
        assert layers[0]["n_support"] == layers[0]["iterations"] == [0] * 2 * k
        assert layers[1]["rows"] == [60] * k  # all rows of the parts of one class
    np.testing.assert_array_equal(result.model.predict(X), y)
    expected = exact_dual(X, y, np.full(len(y), C), 0.01)
    if name != "dcsvm":
        result = train(name, X, y, passes=30, **more)
    assert result.solver["objective"][-1] == pytest.approx(expected, rel=1e-6)


@methods
@pytest.mark.parametrize("P", [2, 5, 8])
def test_one_row_of_a_class(name, P):
    """All parts but one lack it."""
    X = drawn_clouds()[0]
    y = (np.arange(157) == 77).astype(int)
    result = train(name, X, y, partitions=P, passes=1 if name == "dcsvm" else 30, C=10.0)
    assert result.solver["objective"][-1] == pytest.approx(exact_dual(X, y, np.full(157, 10.0)), rel=1e-6)
    (whole,) = result.model.parts.values()
    assert 77 in whole.rows


@methods
def test_rows_all_equal(name):
    X, y = np.ones((12, 2)), np.arange(12) % 2
    result = train(name, X, y, partitions=3 if name == "cascade" else 1)
    assert np.isfinite(result.model.decision_function(X)).all()


@methods
def test_as_many_parts_as_rows(name):
    X, y = drawn_clouds(24)
    result = train(name, X, y, partitions=24, passes=1 if name == "dcsvm" else 30)
    assert result.sizes.tolist() == [1] * 24
    assert result.solver["objective"][-1] == pytest.approx(exact_dual(X, y, np.full(24, C)), rel=1e-6)


# -- what is told --------------------------------------------------------------------------------


@methods
@pytest.mark.parametrize("P", [1, 2, 5, 7, 8])
def test_layers(name, P):
    """Rows, and the other figures of each problem; equation 2.13."""
    X, y = drawn_clouds(k=3)
    passes = 1 if name == "dcsvm" else 3
    result = train(name, X, y, partitions=P, passes=passes, tol=1e-4)
    layers, depth, done = result.more["layers"], 1 + int(np.ceil(np.log2(P))), result.more["passes"]
    assert done <= passes
    assert [(one["pass"], one["layer"]) for one in layers] == [
        (turn, layer) for turn in range(1, done + 1) for layer in range(1, depth + 1)
    ]
    # A problem that finds no partner is not solved again.
    counts = [P]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2 + counts[-1] % 2)
    merges = [P] + [count // 2 for count in counts[:-1]]
    assert [len(one["rows"]) for one in layers] == merges * done
    assert layers[0]["rows"] == result.sizes.tolist()
    assert result.sizes.sum() == 157
    if name == "dcsvm":
        assert layers[-1]["rows"] == [157]
    else:  # support vectors alone go up
        assert sum(layers[1]["rows"] if P in (2, 8) else [0]) <= sum(layers[0]["n_support"])
    for field in ("iterations", "n_support", "objective", "gap", "seconds", "kernel_rows", "kernel_values"):
        assert [len(one[field]) for one in layers] == merges * done
        total = [max(one[field]) if field == "gap" else sum(one[field]) for one in layers]
        if field == "seconds":
            total = [one["layer_seconds"] for one in layers]
        np.testing.assert_allclose(result.solver[field], total, rtol=1e-12)
    (whole,) = result.model.parts.values()
    assert result.solver["n_support"][-1] == len(whole.rows)
    assert result.model.sizes.tolist() == [len(whole.rows)]
    assert result.solver["objective"][-1] == pytest.approx(dual_of(result.model), rel=1e-9)
    assert {one["ranks"] for one in layers} == {1}
    assert result.more["average_parallelism"] == pytest.approx(1.0)  # of one process
    assert result.notes == []


@methods
def test_limit_is_noted(name):
    X, y = drawn_clouds()
    result = train(name, X, y, partitions=4, tol=1e-3, max_iter=1)
    (note,) = result.notes
    problems, steps = sum(len(one["rows"]) for one in result.more["layers"]), result.solver["iterations"].sum()
    late = sum(gap >= 1e-3 for one in result.more["layers"] for gap in one["gap"])
    assert late > 0
    assert note.startswith(f"{late} of {problems} problems stopped after {steps} iterations")
    assert np.isfinite(result.model.decision_function(X)).all()


@methods
def test_the_same_bits_again(name):
    X, y = drawn_clouds(k=3)
    first, second = (train(name, X, y, passes=3) for _ in range(2))
    for one, other in zip(first.model.parts.values(), second.model.parts.values(), strict=True):
        for field in ("X", "rows", "coef", "b", "n_support"):
            np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
    assert first.solver["iterations"].tolist() == second.solver["iterations"].tolist()


@pytest.mark.parametrize("call", METHODS.values(), ids=METHODS)
def test_as_functions(call):
    """Without a communicator, one process; the rows are taken."""
    X, y = drawn_clouds()
    given_ = Dataset(X, y)
    result = call(given_, options(seed=1))
    expected = train(call.name, X, y, seed=1)
    assert result.model.method == call.name
    assert result.solver["objective"].tolist() == expected.solver["objective"].tolist()
    assert given_.X.shape == (0, 4)


@methods
@pytest.mark.parametrize("standardize", [False, True])
def test_standardized(name, standardize):
    X, y = drawn_clouds()
    X = X * [1, 30, 0.01, 1] + [0, 5, 0, 0]
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    got = train(name, X, y, standardize=standardize).model
    assert (got.standardizer is not None) == standardize
    if standardize:
        near(got.decision_function(X), train(name, Z, y).model.decision_function(Z), 1e-4)


@methods
def test_more_parts_than_rows(name):
    X, y = drawn_clouds(12)
    y[:] = np.arange(12) % 2
    with pytest.raises(InputError, match="every part needs a row"):
        train(name, X, y, partitions=13)


def test_all_rows_are_refused_where_they_do_not_fit():
    """DC-SVM's last problem has all rows, and while it is merged twice as many are there."""
    X, y = clouds(each=500)
    size = X.nbytes
    more = {"partitions": 4, "gamma": 0.01, "cache_gib": 0, "tol": 1e-3}
    with pytest.raises(MemoryLimitError, match="a rank's rows and its kernel cache"):
        train("dcsvm", X, y, memory_limit=int(1.9 * size), **more)
    train("dcsvm", X, y, memory_limit=int(3.1 * size), **more)
    train("cascade", X, y, memory_limit=int(1.1 * size), **more)


# -- checkpoints ---------------------------------------------------------------------------------


@methods
def test_checkpoint(name, tmp_path, monkeypatch):
    """The second time nothing is solved; a problem that is missing is solved again, and all ends with the same bits."""
    X, y = drawn_clouds(k=3)
    passes = 1 if name == "dcsvm" else 2

    def run():
        return train(name, X, y, passes=passes, checkpoint=Checkpoint(tmp_path / "kept"))

    first = run()
    kept = inodes(tmp_path / "kept")
    counts = Counter((one["pass"] - 1, one["layer"] - 1) for one in first.more["layers"] for _ in one["rows"])
    assert len(kept) == 2 + sum(counts.values())
    for (turn, layer), count in counts.items():
        assert sum(p.startswith(f"pass-{turn:03d}-layer-{layer:02d}-node-") for p in kept) == count
    with monkeypatch.context() as patched:
        patched.setattr(smo, "solve", None)
        second = run()
    assert inodes(tmp_path / "kept") == kept
    (tmp_path / "kept" / f"pass-{passes - 1:03d}-layer-01-node-000001.npz").unlink()
    third = run()
    for other in (second, third):
        for field in ("iterations", "n_support", "objective", "gap"):
            np.testing.assert_array_equal(other.solver[field], first.solver[field])
        np.testing.assert_array_equal(other.model.decision_function(X), first.model.decision_function(X))
    assert [one["seconds"] for one in second.more["layers"]] == [one["seconds"] for one in first.more["layers"]]


# -- one model in pieces -------------------------------------------------------------------------


def whole_and_pieces(count, k=2, csr=False, dtype=np.float64):
    """A model, and its support vectors dealt out at random; a piece may be empty."""
    X, y = drawn_clouds(k=k, csr=csr, dtype=dtype)
    model = train("cascade", X, y, partitions=1).model  # whose rows lie in their order
    (whole,) = model.parts.values()
    codes = whole.classes.repeat(whole.n_support)
    of = np.random.default_rng(k).integers(0, count, len(codes))
    of[of == count // 2] = 0  # that one gets nothing
    made = []
    for number in range(count):
        here = np.random.default_rng(number).permutation(np.flatnonzero(of == number))
        b = whole.b if number == count - 1 else np.zeros_like(whole.b)
        made.append(piece(whole.X[here], codes[here], whole.rows[here], whole.coef[:, here], b))
    return model, whole, made


@forms
@pytest.mark.parametrize("k", [2, 3])
def test_pieces_joined_are_the_whole(csr, dtype, k):
    _, whole, made = whole_and_pieces(4, k, csr, dtype)
    assert [len(one.rows) == 0 for one in made] == [False, False, True, False]
    for one in made:
        assert one.classes.tolist() == list(range(k))
        assert (one.n_support.sum(), one.coef.shape) == (len(one.rows), (k - 1, len(one.rows)))
    same_part(join(made), whole)
    assert join([whole]) is whole


@forms
@pytest.mark.parametrize("k", [2, 3])
def test_decisions_of_pieces_add_up(csr, dtype, k, tmp_path):
    """In memory, and from the file, where they are one piece again."""
    model, whole, made = whole_and_pieces(4, k, csr, dtype)
    T = drawn_clouds(41, 1, k, csr, dtype)[0]
    sizes = np.array([len(one.rows) for one in made])
    pieces = SVMModel(
        method="dcsvm", route="sum", classes=model.classes, kernel=model.kernel, C=C, centers=np.zeros((0, 4)),
        sizes=sizes, owners=np.zeros(4, np.int64), standardizer=None, dtype=model.dtype, parts=dict(enumerate(made)),
        comm=Communicator(),
    )  # fmt: skip
    expected = model.decision_function(T)
    tolerance = 1e-12 if model.dtype == "float64" else 1e-5
    near(pieces.decision_function(T), expected, tolerance)
    np.testing.assert_array_equal(pieces.intercepts(), whole.b)
    np.testing.assert_array_equal(model.intercepts(), whole.b)
    pieces.save(tmp_path / "m.h5")
    loaded = SVMModel.load(tmp_path / "m.h5")
    assert (loaded.route, list(loaded.parts), loaded.sizes.tolist()) == ("sum", [0], [len(whole.rows)])
    same_part(loaded.parts[0], whole)
    np.testing.assert_array_equal(loaded.decision_function(T), expected)
    np.testing.assert_array_equal(loaded.intercepts(), whole.b)
    np.testing.assert_array_equal(loaded.predict(T), model.predict(T))


def test_one_rank_keeps_the_whole():
    _, whole, _ = whole_and_pieces(2)
    assert deal(whole, 2, 0, Communicator()) is whole


def test_a_model_without_support_vectors():
    """Of a solver that was allowed no step: b alone decides."""
    X, y = drawn_clouds()
    model = train("dcsvm", X, y, tol=1e-3, max_iter=0).model
    (whole,) = model.parts.values()
    assert isinstance(whole, PartSVM)
    assert len(whole.rows) == 0
    np.testing.assert_array_equal(model.decision_function(X), np.full(157, -whole.b[0]))
