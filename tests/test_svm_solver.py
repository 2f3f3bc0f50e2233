"""Parts and trees whose problems Asy-GCD solves: the solution without a bias, part by part and of all rows."""

from __future__ import annotations

import json
import pickle
import warnings
from itertools import combinations

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from casvm.cli import main
from casvm.one_model import DCSVC, CascadeSVC, DCFilterSVC
from sklearn.base import clone
from sklearn.datasets import dump_svmlight_file
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import confusion_matrix
from sklearn.utils.estimator_checks import parametrize_with_checks

from asygcd import AsyGCDSVC
from cacore.errors import InputError
from casvm import CASVC, SMOSVC, SVMModel, bkmsvm, cascade, casvm, cpsvm, dcfilter, dcsvm, dissmo, predict
from casvm.methods import parts as training
from casvm.methods import tree
from partition import KMeans

formats = pytest.mark.parametrize("csr", [False, True], ids=["dense", "csr"])
TREES = [CascadeSVC, DCFilterSVC, DCSVC]
GAMMA = 0.3


def rows(n=150, seed=0, k=2, csr=False):
    """Overlapping clouds, so that there are support vectors at the bound and inside."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % k
    X = rng.normal(size=(n, 4)) + 1.2 * np.eye(4)[y]
    if csr:
        X[np.abs(X) < 0.5] = 0
        X[7] = 0
    return (sp.csr_matrix(X) if csr else X), y


def whole(X, y, weights=None, **given):
    """Of all rows at once, pairs of classes."""
    return AsyGCDSVC(**{"gamma": GAMMA, "tol": 1e-4, "multi_class": "ovo", "threads": 1, **given}).fit(X, y, weights)


def close(got, expected, atol=1e-2):
    np.testing.assert_allclose(got, expected, rtol=0, atol=atol)


def pairs(model, T, part=0):
    """Decisions of all pairs, positive for the first."""
    return model.model_.parts[part].pairs(T, model.model_.kernel)


# -- estimators ----------------------------------------------------------------------------------------

EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": "gamma='scale' and the tolerance see a row twice",
    "check_sample_weight_equivalence_on_sparse_data": "gamma='scale' and the tolerance see a row twice",
    "check_fit_idempotent": "threads are never twice in the same order: fits agree within the tolerance",
}


@parametrize_with_checks([CASVC(solver="asygcd"), DCSVC(2, solver="asygcd")], expected_failed_checks=lambda _: EXPECTED)
def test_scikit_learn(estimator, check):
    check(estimator)


@formats
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("kernel", [{}, {"kernel": "linear", "C": 0.3}, {"kernel": "poly", "coef0": 1.0, "degree": 2}])
def test_one_part_is_all_rows(kernel, k, csr):
    X, y = rows(k=k, csr=csr)
    one, reference = CASVC(1, solver="asygcd", gamma=GAMMA, tol=1e-4, **kernel).fit(X, y), whole(X, y, **kernel)
    assert one.solver_["objective"].tolist() == [pytest.approx(reference.objective_.sum(), rel=1e-5)]
    assert (one.model_.parts[0].b == 0).all()
    sign = -1 if k == 2 else 1  # of two classes, a positive decision is for the second
    close(pairs(one, X), sign * reference.model_.decisions(X))
    if k == 2:
        close(one.decision_function(X), reference.decision_function(X))
    sure = np.abs(reference.model_.decisions(X)).min(axis=1) > 0.02
    np.testing.assert_array_equal(one.predict(X)[sure], reference.predict(X)[sure])
    assert 0 <= one.solver_["gap"][0] <= 1e-4
    assert one.solver_["n_support"].tolist() == [len(one.support_)]
    assert (one.n_iter_ > 0).all()
    assert one.solver_["kernel_rows"][0] > 0


def test_it_is_another_problem():
    """With a bias, without one."""
    X, y = rows()
    y = np.where(np.arange(150) % 5 == 0, y, 0)
    exact, other = (CASVC(1, solver=solver, gamma=0.05).fit(X, y) for solver in ("smo", "asygcd"))
    assert exact.model_.parts[0].b[0] != 0
    assert np.abs(exact.decision_function(X) - other.decision_function(X)).max() > 0.05
    assert other.solver_["objective"][0] > exact.solver_["objective"][0]  # one constraint less


@pytest.mark.parametrize("k", [2, 3])
def test_weights(k):
    """Of rows, some of them 0, and of classes."""
    X, y = rows(k=k)
    w = np.random.default_rng(1).integers(0, 3, 150) / 2
    given = {"C": 0.5, "class_weight": {1: 2.0}}
    one = CASVC(1, solver="asygcd", gamma=GAMMA, tol=1e-4, **given).fit(X, y, w)
    reference = whole(X, y, w, **given)
    assert one.solver_["objective"][0] == pytest.approx(reference.objective_.sum(), rel=1e-5)
    assert (w[one.support_] > 0).all()
    close(one.decision_function(X) if k == 2 else pairs(one, X), reference.model_.decisions(X).squeeze())


@pytest.mark.parametrize("k", [2, 3])
@formats
def test_parts(csr, k):
    """Each is Asy-GCD on the rows that the partitioner put there."""
    X, y = rows(240, k=k, csr=csr)
    model = CASVC(3, partitioner="kmeans", solver="asygcd", gamma=GAMMA, tol=1e-4, random_state=1).fit(X, y)
    labels = KMeans(3, random_state=int(np.random.RandomState(1).randint(2**31 - 1))).fit(X).labels_
    np.testing.assert_array_equal(np.bincount(labels), model.sizes_)
    for p, part in model.model_.parts.items():
        mine = np.flatnonzero(labels == p)
        assert np.isin(part.rows, mine).all()
        assert len(part.classes) > 1
        assert (part.b == 0).all()
        reference = whole(X[mine], y[mine])
        assert model.solver_["objective"][p] == pytest.approx(reference.objective_.sum(), rel=1e-5)
        sign = -1 if len(part.classes) == 2 else 1
        close(pairs(model, X, p), sign * reference.model_.decisions(X))
    assert set(model.predict(X)) <= set(range(k))
    assert model.score(X, y) > 0.6


@pytest.mark.parametrize("n", [2, 4, 7, 12])
@pytest.mark.parametrize("partitioner", ["random", "kmeans", "bkm"])
def test_tiny_parts(partitioner, n):
    """Of one row, or of one class."""
    X, y = rows(n)
    for P in range(1, min(n, 4) + 1):
        model = CASVC(P, partitioner=partitioner, solver="asygcd", random_state=0).fit(X, y)
        assert model.sizes_.sum() == n
        assert np.isfinite(model.decision_function(X)).all()


@pytest.mark.parametrize("solver", ["smo", "asygcd"])
@pytest.mark.parametrize("cls", [CASVC, *TREES])
def test_clone_and_pickle(cls, solver):
    X, y = rows()
    model = cls(2, solver=solver, random_state=0).fit(X, y)
    assert clone(model).get_params()["solver"] == solver
    back = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(back.decision_function(X), model.decision_function(X))


@pytest.mark.parametrize("given", ["", "SMO", "libsvm", None, 1, ["smo"]], ids=repr)
@pytest.mark.parametrize("cls", [CASVC, *TREES])
def test_unknown_solver(cls, given):
    with pytest.raises(InputError) as caught:
        cls(2, solver=given).fit(*rows())
    assert isinstance(caught.value, ValueError)
    assert str(caught.value) == f"solver {given!r}: choose one of smo, asygcd"


@pytest.mark.parametrize("P", [1, 2, 3, 4])
@pytest.mark.parametrize("k", [2, 3])
def test_dcsvm_is_all_rows(k, P):
    X, y = rows(240, k=k)
    model = DCSVC(P, solver="asygcd", gamma=GAMMA, tol=1e-4, random_state=0).fit(X, y)
    reference = whole(X, y)
    assert model.solver_["objective"][-1] == pytest.approx(reference.objective_.sum(), rel=1e-5)
    assert (model.solver_["gap"] <= 1e-4).all()
    assert model.intercept_.tolist() == [0.0] * (k * (k - 1) // 2)
    close(model.decision_function(X), reference.decision_function(X))
    every = [layer["rows"] for layer in model.layers_]
    assert (sum(every[0]), every[-1]) == (240, [240])


def test_dcsvm_begins_with_what_is_known():
    """The problem of all rows takes fewer updates than from the start."""
    X, y = rows(400)
    P1, P2 = (DCSVC(P, solver="asygcd", gamma=10.0, tol=1e-4, random_state=0).fit(X, y) for P in (1, 2))
    assert P2.layers_[-1]["iterations"][0] < 0.5 * P1.n_iter_[0]


@pytest.mark.parametrize("cls", [CascadeSVC, DCFilterSVC])
def test_trees_of_support_vectors(cls):
    """Near the objective of all rows, from below, and with more passes nearer."""
    X, y = rows(240)
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
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = cls(2, solver="asygcd", max_iter=1, random_state=0).fit(*rows())
    assert [w.category for w in caught] == [ConvergenceWarning]
    said = str(caught[0].message)
    assert "above tol = 0.001" in said
    assert "\n" not in said
    assert np.isfinite(model.decision_function(rows()[0])).all()


@pytest.mark.parametrize("cls", [CASVC, *TREES])
def test_small_cache(cls):
    """Two columns a thread are kept, however small the cache is to be."""
    X, y = rows()
    small, large = (
        cls(2, solver="asygcd", cache_gib=cache, tol=1e-6, gamma=GAMMA, random_state=0).fit(X, y)
        for cache in (0.0, 1.0)
    )
    assert small.solver_["objective"][-1] == pytest.approx(large.solver_["objective"][-1], rel=1e-5)


def test_input_stays():
    for csr in (False, True):
        X, y = rows(csr=csr)
        before = X.copy()
        for array in (*((X.data, X.indices, X.indptr) if csr else (X,)), y):
            array.setflags(write=False)
        for cls in (CASVC, *TREES):
            cls(3, solver="asygcd", standardize=True, random_state=0).fit(X, y).predict(X)
        assert abs(X - before).sum() == 0


# -- commands ------------------------------------------------------------------------------------------

METHODS = {
    "casvm": (casvm, training.fit), "cpsvm": (cpsvm, training.fit), "bkmsvm": (bkmsvm, training.fit),
    "dcsvm": (dcsvm, tree.fit), "cascade": (cascade, tree.fit), "dcfilter": (dcfilter, tree.fit),
}  # fmt: skip
methods = pytest.mark.parametrize("method", METHODS)
SIZE = {"train": 150, "test": 40}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    for name, k in (("two", 2), ("three", 3)):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            for split, n in SIZE.items():
                X, y = rows(n, seed=len(split), k=k)
                file[f"{split}/X"], file[f"{split}/y"] = X, y.astype(float)
    X, y = rows(csr=True)
    wide = np.zeros((150, 12))  # a file with fewer zeros would be read as dense
    wide[:, [2, 5, 7, 11]] = X.toarray()
    dump_svmlight_file(sp.csr_matrix(wide), y, str(folder / "sparse"), zero_based=False)
    return folder


def split_rows(name, k):
    return rows(SIZE[name], seed=len(name), k=k)


def run(method, words):
    module, trainer = METHODS[method]
    main(module.METHOD, [str(word) for word in words], trainer)


def reported(method, words, folder):
    run(method, [*words, "--report", folder / "r.json", "--quiet"])
    return json.loads((folder / "r.json").read_text())


def written(path):
    return np.array(path.read_text().splitlines()[1:], float)


@methods
@pytest.mark.parametrize("k", [2, 3])
def test_command(k, method, inputs, tmp_path, capsys):
    data = inputs / f"{ {2: 'two', 3: 'three'}[k] }.h5"
    words = [data, "--solver", "asygcd", "--gamma", "0.3", "--tol", "1e-4", "--threads", "2"]
    made = reported(method, [*words, "--partitions", "3", "--model", tmp_path / "m.h5"], tmp_path)
    assert made["method"] == method
    assert made["params"]["solver"] == "asygcd"
    assert all(0 <= gap <= 1e-4 for gap in made["solver"]["gap"])
    (X, y), (T, u) = (split_rows(name, k) for name in SIZE)
    model = SVMModel.load(tmp_path / "m.h5")
    assert all((part.b == 0).all() for part in model.parts.values())
    if method == "dcsvm":
        reference = whole(X, y)
        assert made["solver"]["objective"][-1] == pytest.approx(reference.objective_.sum(), rel=1e-5)
        assert (model.predict(T) != reference.predict(T)).sum() <= 1
    predict.main([str(tmp_path / "m.h5"), str(data), "-o", str(tmp_path / "p.csv"), "--quiet"])
    got = written(tmp_path / "p.csv")
    assert confusion_matrix(u, got).tolist() == made["metrics"]["confusion"]
    np.testing.assert_array_equal(got, model.predict(T))
    assert made["metrics"]["accuracy"] > 0.5
    assert capsys.readouterr() == ("", "")


def test_default_solver(inputs, tmp_path):
    made = reported("casvm", [inputs / "two.h5"], tmp_path)
    assert made["params"]["solver"] == "smo"
    exact = SMOSVC().fit(*split_rows("train", 2))
    assert made["solver"]["objective"][0] == pytest.approx(exact.objective_[0], rel=1e-6)


@methods
def test_sparse_file_and_libsvm(method, inputs, tmp_path):
    """Exported with no bias."""
    words = [inputs / "sparse", "--solver", "asygcd", "--model", tmp_path / "m.h5", "--libsvm", tmp_path / "l.model"]
    reported(method, words, tmp_path)
    (rho,) = [line for line in (tmp_path / "l.model").read_text().splitlines() if line.startswith("rho")]
    assert abs(float(rho.split()[1])) == 0
    assert sp.issparse(SVMModel.load(tmp_path / "m.h5").parts[0].X)


def test_verbose(inputs, capsys):
    run("cpsvm", [inputs / "three.h5", "--solver", "asygcd", "--partitions", "3", "--verbose"])
    shown = capsys.readouterr().out
    assert shown.count(" support vectors, ") == 3
    assert "solver asygcd" in " ".join(shown.replace("│", " ").split())
    run("casvm", [inputs / "three.h5", "--solver", "asygcd", "--max-iter", "1"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "the solver stopped after 3 iterations at a violation of" in shown


@pytest.mark.parametrize("method", ["cpsvm", "cascade"])
def test_checkpoint(method, inputs, tmp_path, capsys):
    """Taken up again, bit for bit; and not by the other solver."""
    words = [inputs / "three.h5", "--partitions", "3", "--checkpoint", tmp_path / "kept", "--quiet", "--model"]
    for name in ("first.h5", "second.h5"):
        run(method, [*words, tmp_path / name, "--solver", "asygcd"])
    assert (tmp_path / "first.h5").read_bytes() == (tmp_path / "second.h5").read_bytes()
    with pytest.raises(SystemExit) as ended:
        run(method, [*words, tmp_path / "third.h5"])
    err = capsys.readouterr().err
    assert (ended.value.code, err.count("\n")) == (2, 1)
    assert 'solver was "asygcd" there and is "smo" here' in err
    assert not (tmp_path / "third.h5").exists()


BAD = {
    "unknown": ("casvm", ["--solver", "libsvm"], "--solver"),
    "unknown of a tree": ("dcsvm", ["--solver", "libsvm"], "--solver"),
    "none": ("cpsvm", ["--solver"], "--solver"),
    "update": ("casvm", ["--solver", "asygcd", "--update", "owned"], "--update"),
    "threads": ("casvm", ["--solver", "asygcd", "--threads", "0"], "--threads 0"),
}  # fmt: skip


def refused(call, inputs, folder, capfd, message):
    with pytest.raises(SystemExit) as ended:
        call([inputs / "two.h5", "--model", folder / "m.h5", "--report", folder / "r.json"])
    out, err = capfd.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert (err.count("\n"), err[-1]) == (1, "\n")
    assert message in err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("what", BAD)
def test_refused(what, inputs, tmp_path, capfd):
    method, words, message = BAD[what]
    refused(lambda given: run(method, [*given, *words]), inputs, tmp_path, capfd, message)


def test_dissmo_has_its_own(inputs, tmp_path, capfd):
    def start(given):
        main(dissmo.METHOD, [*map(str, given), "--solver", "asygcd"], dissmo.fit)

    refused(start, inputs, tmp_path, capfd, "--solver")


# -- ranks ---------------------------------------------------------------------------------------------

# All commands and their predictions one after the other in one job, each as `python -m` starts it.
ALL = """
import runpy
import sys

def start(module, *words):
    sys.argv[1:] = words
    runpy.run_module("casvm." + module, run_name="__main__")

data, parts = sys.argv[1:]
for name in ("casvm", "cpsvm", "dcsvm", "cascade"):
    start(name, data, "--solver", "asygcd", "--gamma", "0.3", "--tol", "1e-4", "--quiet", "--model", name + ".h5",
          "--report", name + ".json", "--partitions", parts)
    start("predict", name + ".h5", data, "-o", name + ".csv", "--quiet")
"""


@pytest.mark.parametrize(("ranks", "parts"), [(2, 2), (3, 5)])
def test_ranks(ranks, parts, mpiexec, inputs, tmp_path):
    (tmp_path / "all.py").write_text(ALL)
    done = mpiexec(ranks, "-W", "error", "all.py", inputs / "three.h5", parts, cwd=tmp_path, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (X, y), (T, u) = (split_rows(name, 3) for name in SIZE)
    reference = whole(X, y)
    for method in ("casvm", "cpsvm", "dcsvm", "cascade"):
        made = json.loads((tmp_path / f"{method}.json").read_text())
        assert (made["ranks"], made["partitions"], made["params"]["solver"]) == (ranks, parts, "asygcd")
        assert sum(made["partition_sizes"]) == 150
        assert all(0 <= gap <= 1e-4 for gap in made["solver"]["gap"])
        model = SVMModel.load(tmp_path / f"{method}.h5")
        assert all((part.b == 0).all() for part in model.parts.values())
        got = written(tmp_path / f"{method}.csv")
        assert confusion_matrix(u, got).tolist() == made["metrics"]["confusion"]
        if method in ("casvm", "cpsvm"):
            assert made["comm"]["train"]["bytes"] == 0
            for p, part in model.parts.items():
                assert len(part.b) == len(list(combinations(part.classes, 2)))
                assert made["solver"]["n_support"][p] == len(part.rows)
        if method == "dcsvm":
            assert made["solver"]["objective"][-1] == pytest.approx(reference.objective_.sum(), rel=1e-5)
            assert (got != reference.predict(T)).sum() <= 1
