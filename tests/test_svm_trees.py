"""Trees of SVMs in one process: where they end, parts of one class, what they report, and checkpoints."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from helpers.checks import inodes, near
from helpers.data import dense, drawn_clouds, forms
from helpers.references import dual, matrix
from helpers.trees import GAMMA, METHODS, TOL, C, methods, of_pair, options, pairs_of, train
from sklearn.svm import SVC

from cacore.data.dataset import Dataset
from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint
from cacore.kernels import Kernel
from cacore.machine.memory import MemoryLimitError


def dual_of(model):
    """Dual objective of all pairs of a model of one part, computed from its coefficients alone."""
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
    """From 2000 rows on, gradients are in single precision, also that of a warm start."""
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
    with pytest.raises(MemoryLimitError, match="storing a rank's rows and its kernel cache needs"):
        train("dcsvm", X, y, memory_limit=int(1.9 * size), **more)
    train("dcsvm", X, y, memory_limit=int(3.1 * size), **more)
    train("cascade", X, y, memory_limit=int(1.1 * size), **more)


# -- checkpoints ---------------------------------------------------------------------------------


@methods
def test_checkpoint(name, tmp_path, forbidden):
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
    with forbidden("casvm.solver.smo.solve"):
        second = run()
    assert inodes(tmp_path / "kept") == kept
    (tmp_path / "kept" / f"pass-{passes - 1:03d}-layer-01-node-000001.npz").unlink()
    third = run()
    for other in (second, third):
        for field in ("iterations", "n_support", "objective", "gap"):
            np.testing.assert_array_equal(other.solver[field], first.solver[field])
        np.testing.assert_array_equal(other.model.decision_function(X), first.model.decision_function(X))
    assert [one["seconds"] for one in second.more["layers"]] == [one["seconds"] for one in first.more["layers"]]
