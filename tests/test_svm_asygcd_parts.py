"""Parts and trees whose problems Asy-GCD solves: the solution without a bias, part by part and of all rows."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import limit_warning, near
from helpers.commands import flat, predicted, read, reported, run
from helpers.data import SIZE, clouds, formats, split_rows
from sklearn.metrics import confusion_matrix

from asygcd import AsyGCDSVC
from casvm import CASVC, DCSVC, SMOSVC, CascadeSVC, DCFilterSVC, SVMModel
from partition import KMeans

TREES = [CascadeSVC, DCFilterSVC, DCSVC]
GAMMA = 0.3


def whole(X, y, weights=None, **given):
    """Train on all rows at once, for all pairs of classes."""
    return AsyGCDSVC(**{"gamma": GAMMA, "tol": 1e-4, "multi_class": "ovo", "threads": 1, **given}).fit(X, y, weights)


def pairs(model, T, part=0):
    """Decisions of all pairs, positive for the first."""
    return model.model_.parts[part].pairs(T, model.model_.kernel)


# -- estimators ----------------------------------------------------------------------------------------


@formats
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("kernel", [{}, {"kernel": "linear", "C": 0.3}, {"kernel": "poly", "coef0": 1.0, "degree": 2}])
def test_one_part_is_all_rows(kernel, k, csr):
    X, y = clouds(k=k, csr=csr)
    one, reference = CASVC(1, solver="asygcd", gamma=GAMMA, tol=1e-4, **kernel).fit(X, y), whole(X, y, **kernel)
    assert one.solver_["objective"].tolist() == [pytest.approx(reference.objective_.sum(), rel=1e-5)]
    assert (one.model_.parts[0].b == 0).all()
    sign = -1 if k == 2 else 1  # of two classes, a positive decision is for the second
    near(pairs(one, X), sign * reference.model_.decisions(X), 1e-2)
    if k == 2:
        near(one.decision_function(X), reference.decision_function(X), 1e-2)
    sure = np.abs(reference.model_.decisions(X)).min(axis=1) > 0.02
    np.testing.assert_array_equal(one.predict(X)[sure], reference.predict(X)[sure])
    assert 0 <= one.solver_["gap"][0] <= 1e-4
    assert one.solver_["n_support"].tolist() == [len(one.support_)]
    assert (one.n_iter_ > 0).all()
    assert one.solver_["kernel_rows"][0] > 0


def test_solutions_without_a_bias_differ_from_smo():
    """With a bias, without one."""
    X, y = clouds()
    y = np.where(np.arange(150) % 5 == 0, y, 0)
    exact, other = (CASVC(1, solver=solver, gamma=0.05).fit(X, y) for solver in ("smo", "asygcd"))
    assert exact.model_.parts[0].b[0] != 0
    assert np.abs(exact.decision_function(X) - other.decision_function(X)).max() > 0.05
    assert other.solver_["objective"][0] > exact.solver_["objective"][0]  # one constraint less


@pytest.mark.parametrize("k", [2, 3])
def test_weights(k):
    """Weights of rows, some of them 0, and of classes."""
    X, y = clouds(k=k)
    w = np.random.default_rng(1).integers(0, 3, 150) / 2
    given = {"C": 0.5, "class_weight": {1: 2.0}}
    one = CASVC(1, solver="asygcd", gamma=GAMMA, tol=1e-4, **given).fit(X, y, w)
    reference = whole(X, y, w, **given)
    assert one.solver_["objective"][0] == pytest.approx(reference.objective_.sum(), rel=1e-5)
    assert (w[one.support_] > 0).all()
    near(one.decision_function(X) if k == 2 else pairs(one, X), reference.model_.decisions(X).squeeze(), 1e-2)


@pytest.mark.parametrize("k", [2, 3])
@formats
def test_parts(csr, k):
    """Each is Asy-GCD on the rows that the partitioner put there."""
    X, y = clouds(240, k=k, csr=csr)
    model = CASVC(3, partitioner="kmeans", solver="asygcd", gamma=GAMMA, tol=1e-4, random_state=1).fit(X, y)
    labels = KMeans(3, random_state=int(np.random.RandomState(1).randint(2**31 - 1))).fit(X).labels_
    np.testing.assert_array_equal(np.bincount(labels), model.sizes_)
    for p, part in model.model_.parts.items():
        here = np.flatnonzero(labels == p)
        assert np.isin(part.rows, here).all()
        assert len(part.classes) > 1
        assert (part.b == 0).all()
        reference = whole(X[here], y[here])
        assert model.solver_["objective"][p] == pytest.approx(reference.objective_.sum(), rel=1e-5)
        sign = -1 if len(part.classes) == 2 else 1
        near(pairs(model, X, p), sign * reference.model_.decisions(X), 1e-2)
    assert set(model.predict(X)) <= set(range(k))
    assert model.score(X, y) > 0.6


@pytest.mark.parametrize("n", [2, 4, 7, 12])
@pytest.mark.parametrize("partitioner", ["random", "kmeans", "bkm"])
def test_tiny_parts(partitioner, n):
    """Parts with one row, or with one class."""
    X, y = clouds(n)
    for P in range(1, min(n, 4) + 1):
        model = CASVC(P, partitioner=partitioner, solver="asygcd", random_state=0).fit(X, y)
        assert model.sizes_.sum() == n
        assert np.isfinite(model.decision_function(X)).all()


@pytest.mark.parametrize("P", [1, 2, 3, 4])
@pytest.mark.parametrize("k", [2, 3])
def test_dcsvm_is_all_rows(k, P):
    X, y = clouds(240, k=k)
    model = DCSVC(P, solver="asygcd", gamma=GAMMA, tol=1e-4, random_state=0).fit(X, y)
    reference = whole(X, y)
    assert model.solver_["objective"][-1] == pytest.approx(reference.objective_.sum(), rel=1e-5)
    assert (model.solver_["gap"] <= 1e-4).all()
    assert model.intercept_.tolist() == [0.0] * (k * (k - 1) // 2)
    near(model.decision_function(X), reference.decision_function(X), 1e-2)
    every = [layer["rows"] for layer in model.layers_]
    assert (sum(every[0]), every[-1]) == (240, [240])


def test_dcsvm_starts_from_the_parts_solutions():
    """The problem of all rows takes fewer updates than from the start."""
    X, y = clouds(400)
    P1, P2 = (DCSVC(P, solver="asygcd", gamma=10.0, tol=1e-4, random_state=0).fit(X, y) for P in (1, 2))
    assert P2.layers_[-1]["iterations"][0] < 0.5 * P1.n_iter_[0]


@pytest.mark.parametrize("cls", [CascadeSVC, DCFilterSVC])
def test_trees_of_support_vectors(cls):
    """Near the objective of all rows, from below, and with more passes nearer."""
    X, y = clouds(240)
    best = whole(X, y).objective_[0]
    reached = []
    for passes in (1, 8):
        model = cls(4, solver="asygcd", gamma=GAMMA, tol=1e-4, passes=passes, random_state=0).fit(X, y)
        assert model.intercept_.tolist() == [0.0]
        assert (model.model_.parts[0].b == 0).all()
        reached.append(model.solver_["objective"][-1])
        assert model.score(X, y) > 0.7
    assert reached[0] <= best * (1 + 1e-5)
    assert reached[1] == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize("cls", [CASVC, *TREES])
def test_limit_is_warned_of(cls):
    (X, y), model = clouds(), cls(2, solver="asygcd", max_iter=1, random_state=0)
    assert "above tol = 0.001" in limit_warning(lambda: model.fit(X, y))
    assert np.isfinite(model.decision_function(X)).all()


@pytest.mark.parametrize("cls", [CASVC, *TREES])
def test_small_cache(cls):
    """Two columns a thread are kept, however small the cache is to be."""
    X, y = clouds()
    small, large = (
        cls(2, solver="asygcd", cache_gib=cache, tol=1e-6, gamma=GAMMA, random_state=0).fit(X, y)
        for cache in (0.0, 1.0)
    )
    assert small.solver_["objective"][-1] == pytest.approx(large.solver_["objective"][-1], rel=1e-5)


# -- commands ------------------------------------------------------------------------------------------

METHODS = ["casvm", "cpsvm", "bkmsvm", "dcsvm", "cascade", "dcfilter"]
methods = pytest.mark.parametrize("method", METHODS)


@methods
@pytest.mark.parametrize("k", [2, 3])
def test_command(k, method, inputs, tmp_path, capsys):
    data = inputs / {2: "good.h5", 3: "three.h5"}[k]
    words = [data, "--solver", "asygcd", "--gamma", "0.3", "--tol", "1e-4", "--threads", "2"]
    made = reported(f"casvm.{method}", [*words, "--partitions", "3", "--model", tmp_path / "m.h5"], tmp_path)
    assert made["method"] == method
    assert made["params"]["solver"] == "asygcd"
    assert all(0 <= gap <= 1e-4 for gap in made["solver"]["gap"])
    (X, y), (T, u) = (split_rows(split, k) for split in SIZE)
    model = SVMModel.load(tmp_path / "m.h5")
    assert all((part.b == 0).all() for part in model.parts.values())
    if method == "dcsvm":
        reference = whole(X, y)
        assert made["solver"]["objective"][-1] == pytest.approx(reference.objective_.sum(), rel=1e-5)
        assert (model.predict(T) != reference.predict(T)).sum() <= 1
    run("casvm.predict", [tmp_path / "m.h5", data, "-o", tmp_path / "p.csv", "--quiet"])
    got = predicted(tmp_path / "p.csv")
    assert confusion_matrix(u, got).tolist() == made["metrics"]["confusion"]
    np.testing.assert_array_equal(got, model.predict(T))
    assert made["metrics"]["accuracy"] > 0.5
    assert capsys.readouterr() == ("", "")


def test_default_solver(inputs, tmp_path):
    made = reported("casvm.casvm", [inputs / "good.h5", "--C", "1"], tmp_path)
    assert made["params"]["solver"] == "smo"
    exact = SMOSVC().fit(*split_rows("train", 2))
    assert made["solver"]["objective"][0] == pytest.approx(exact.objective_[0], rel=1e-6)


@methods
def test_sparse_file_and_libsvm(method, inputs, tmp_path):
    """Exported with no bias."""
    words = [inputs / "train", "--solver", "asygcd", "--model", tmp_path / "m.h5", "--libsvm", tmp_path / "l.model"]
    reported(f"casvm.{method}", words, tmp_path)
    (rho,) = [line for line in (tmp_path / "l.model").read_text().splitlines() if line.startswith("rho")]
    assert abs(float(rho.split()[1])) == 0
    assert sp.issparse(SVMModel.load(tmp_path / "m.h5").parts[0].X)


def test_verbose(inputs, capsys):
    run("casvm.cpsvm", [inputs / "three.h5", "--solver", "asygcd", "--partitions", "3", "--verbose"])
    shown = capsys.readouterr().out
    assert shown.count(" support vectors, ") == 3
    assert "solver asygcd" in flat(shown)
    run("casvm.casvm", [inputs / "three.h5", "--solver", "asygcd", "--max-iter", "1"])
    assert "the solver stopped after 3 iterations at a violation of" in flat(capsys.readouterr().out)


@pytest.mark.parametrize("method", ["cpsvm", "cascade"])
def test_checkpoint(method, inputs, tmp_path, refuses):
    """Taken up again, bit for bit; and not by the other solver."""
    words = [inputs / "three.h5", "--partitions", "3", "--checkpoint", tmp_path / "kept", "--quiet", "--model"]
    for name in ("first.h5", "second.h5"):
        run(f"casvm.{method}", [*words, tmp_path / name, "--solver", "asygcd"])
    assert (tmp_path / "first.h5").read_bytes() == (tmp_path / "second.h5").read_bytes()
    message = 'solver was "asygcd" there and is "smo" here'
    refuses(f"casvm.{method}", [*words, tmp_path / "third.h5"], message, tmp_path)


BAD = {
    "unknown": ("casvm", ["--solver", "libsvm"], "--solver"),
    "unknown of a tree": ("dcsvm", ["--solver", "libsvm"], "--solver"),
    "none": ("cpsvm", ["--solver"], "--solver"),
    "update": ("casvm", ["--solver", "asygcd", "--update", "owned"], "--update"),
    "threads": ("casvm", ["--solver", "asygcd", "--threads", "0"], "--threads 0"),
    "dissmo has its own": ("dissmo", ["--solver", "asygcd"], "--solver"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_refused(what, inputs, tmp_path, refuses):
    method, words, message = BAD[what]
    refuses(f"casvm.{method}", [inputs / "good.h5", "--model", "m.h5", "--report", "r.json", *words], message, tmp_path)


# -- ranks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "parts"), [(2, 2), (3, 5)])
def test_ranks(ranks, parts, in_one_job, inputs, tmp_path):
    """All commands and their predictions."""
    methods, data, commands = ("casvm", "cpsvm", "dcsvm", "cascade"), inputs / "three.h5", []
    options = ["--solver", "asygcd", "--gamma", "0.3", "--tol", "1e-4", "--quiet", "--partitions", parts]
    for name in methods:
        out = ["--model", f"{name}.h5", "--report", f"{name}.json"]
        commands.append([f"casvm.{name}", data, *options, *out])
        commands.append(["casvm.predict", f"{name}.h5", data, "-o", f"{name}.csv", "--quiet"])
    in_one_job(ranks, *commands)
    (X, y), (T, u) = (split_rows(split, 3) for split in SIZE)
    reference = whole(X, y)
    for method in methods:
        made = read(tmp_path / f"{method}.json")
        assert (made["ranks"], made["partitions"], made["params"]["solver"]) == (ranks, parts, "asygcd")
        assert sum(made["partition_sizes"]) == 150
        assert all(0 <= gap <= 1e-4 for gap in made["solver"]["gap"])
        model = SVMModel.load(tmp_path / f"{method}.h5")
        assert all((part.b == 0).all() for part in model.parts.values())
        got = predicted(tmp_path / f"{method}.csv")
        assert confusion_matrix(u, got).tolist() == made["metrics"]["confusion"]
        if method in ("casvm", "cpsvm"):
            assert made["comm"]["train"]["bytes"] == 0
            for p, part in model.parts.items():
                assert len(part.b) == len(list(combinations(part.classes, 2)))
                assert made["solver"]["n_support"][p] == len(part.rows)
        if method == "dcsvm":
            assert made["solver"]["objective"][-1] == pytest.approx(reference.objective_.sum(), rel=1e-5)
            assert (got != reference.predict(T)).sum() <= 1
