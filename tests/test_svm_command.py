"""The SVM commands: a file in; a report, a model, LIBSVM's files and predictions out; bad input ends in one line."""

from __future__ import annotations

import json
import shutil

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file
from sklearn.metrics import balanced_accuracy_score, confusion_matrix

from casvm import SVMModel, bkmsvm, casvm, cpsvm, fcfssvm, predict
from casvm.cli import main

MODULES = {"casvm": casvm, "cpsvm": cpsvm, "bkmsvm": bkmsvm, "fcfssvm": fcfssvm}
methods = pytest.mark.parametrize("method", MODULES)
SIZE = {"train": 150, "test": 40}
SHIFT = np.array([[0.0, 0, 0], [2.5, 0, 0], [0, 2.5, 0]])  # the classes overlap


def rows(split="train", k=2, d=3):
    rng = np.random.default_rng(len(split))
    y = rng.integers(0, k, SIZE[split])
    return rng.normal(size=(SIZE[split], d)) + SHIFT[y][:, :d], np.array([-1.0, 1.0, 4.0])[y]


def write(path, splits=("train", "test"), k=2, d=3):
    with h5py.File(path, "w") as file:
        for split in splits:
            file[f"{split}/X"], file[f"{split}/y"] = rows(split, k, d)


def write_csv(path, split="test", target=True):
    X, y = rows(split)
    table = np.column_stack([X, y]) if target else X
    names = ["a", "b", "c"] + ["label"] * target
    np.savetxt(path, table, delimiter=",", header=",".join(names), comments="", fmt="%.17g")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """One folder with what is good and everything that is wrong."""
    folder = tmp_path_factory.mktemp("inputs")
    write(folder / "good.h5")
    write(folder / "three.h5", k=3)
    write(folder / "train.h5", ["train"])
    with h5py.File(folder / "wide.h5", "w") as file:
        X, y = rows("test")
        file["test/X"], file["test/y"] = np.c_[X, X], y
    for split in SIZE:
        write_csv(folder / f"{split}.csv", split)
        X, y = rows(split, 3)
        wide = np.zeros((len(y), 12))  # a file with fewer zeros would be read as dense
        wide[:, [2, 5, 11]] = np.where(np.abs(X) < 0.4, 0, X)
        dump_svmlight_file(sp.csr_matrix(wide), y, str(folder / split), zero_based=False)
    write_csv(folder / "features.csv", target=False)
    whole = (folder / "good.h5").read_bytes()
    (folder / "truncated.h5").write_bytes(whole[: len(whole) // 2])
    changed(folder / "nan.h5", whole, "train/X", (7, 2), np.nan)
    changed(folder / "one.h5", whole, "train/y", slice(None), 1.0)
    changed(folder / "new.h5", whole, "test/y", slice(0, 8), 9.0)
    changed(folder / "halves.h5", whole, "train/y", slice(None), np.where(rows()[1] > 0, 0.5, -0.5))
    (folder / "text.csv").write_text("a,b,label\n1,2,spam\n3,4,ham\n")
    (folder / "empty.csv").write_text("")
    (folder / "file").write_text("not a directory\n")
    run("cpsvm", [folder / "good.h5", "--partitions", "3", "--model", folder / "model.h5", "--quiet"])
    return folder


def changed(path, whole, name, place, value):
    path.write_bytes(whole)
    with h5py.File(path, "a") as file:
        file[name][place] = value


def run(method, words):
    """The command of a method, in this process."""
    main(MODULES[method].METHOD, [str(word) for word in words])


def reported(method, words, folder):
    run(method, [*words, "--report", folder / "r.json", "--quiet"])
    return json.loads((folder / "r.json").read_text())


# -- what works ------------------------------------------------------------------------------------

FIELDS = {"schema", "method", "command", "data", "ranks", "threads_per_rank", "partitions", "partition_sizes", "params",
          "grid", "metrics", "seconds", "comm", "solver", "memory", "environment"}  # fmt: skip
PHASES = {"read", "partition", "train", "predict"}
SOLVER = {"iterations", "n_support", "objective", "gap", "seconds", "kernel_rows", "kernel_values", "busy_seconds",
          "imbalance"}  # fmt: skip
PARAMS = {"C", "kernel", "tol", "cache_gib", "route", "balanced", "standardize", "dtype", "seed", "solver"}
COMMANDS = {
    "casvm": (["--route", "all"], {"gamma", "initial"}),
    "cpsvm": (["--kernel", "polynomial", "--gamma", "0.5", "--coef0", "1"], {"gamma", "degree", "coef0", "ratio"}),
    "bkmsvm": (["--kernel", "linear", "--dtype", "float32"], {"ratio"}),
    "fcfssvm": (["--route", "soft", "--standardize", "--gamma", "auto"], {"gamma", "soft_k", "soft_t", "ratio"}),
}


def predicted(folder, name="test", k=3):
    """Labels of the test rows by the saved model, and what they are."""
    X, y = rows(name, k)
    return SVMModel.load(folder / "m.h5").predict(X), y


@methods
def test_report(method, inputs, tmp_path, capsys):
    """Three classes, three parts, each method with other options."""
    words, more = COMMANDS[method]
    words = [inputs / "three.h5", "--partitions", "3", "--threads", "2", "--seed", "5", *words]
    run(method, [*words, "--report", tmp_path / "r.json", "--model", tmp_path / "m.h5"])
    shown, err = capsys.readouterr()
    assert err == ""
    assert "150 training, 40 test, 3 features" in shown
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.h5", "r.json"]

    made = json.loads((tmp_path / "r.json").read_text())
    assert set(made) == FIELDS | {"volume"}
    assert (made["schema"], made["method"]) == ("cakernels-report/1", method)
    assert made["data"] == {"path": str(inputs / "three.h5"), "n_train": 150, "n_test": 40, "n_features": 3}
    assert (made["ranks"], made["threads_per_rank"], made["partitions"], made["grid"]) == (1, 2, 3, [])
    assert (len(made["partition_sizes"]), sum(made["partition_sizes"])) == (3, 150)
    assert set(made["params"]) == PARAMS | more
    assert set(made["comm"]) >= PHASES
    assert all(made["comm"][phase] == {"bytes": 0, "messages": 0, "seconds": 0} for phase in PHASES)
    assert made["seconds"]["total"] >= made["seconds"]["train"] > 0

    solver = made["solver"]
    assert set(solver) == SOLVER
    for name in SOLVER - {"busy_seconds", "imbalance"}:
        assert len(solver[name]) == 3
    assert all(isinstance(n, int) and n > 0 for name in ("iterations", "n_support") for n in solver[name])
    assert all(0 <= gap < 1e-3 for gap in solver["gap"])
    assert all(value > 0 for value in solver["objective"])
    assert all(s > 0 for s in solver["seconds"])
    assert (len(solver["busy_seconds"]), solver["imbalance"]) == (1, 1.0)
    model = SVMModel.load(tmp_path / "m.h5")
    assert [len(part.rows) for part in model.parts.values()] == solver["n_support"]
    assert model.sizes.tolist() == made["partition_sizes"]

    got, y = predicted(tmp_path)
    metrics = made["metrics"]
    assert set(metrics) == {"accuracy", "balanced_accuracy", "confusion"}
    assert metrics["accuracy"] == pytest.approx((got == y).mean())
    assert metrics["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, got))
    assert metrics["confusion"] == confusion_matrix(y, got).tolist()
    assert metrics["accuracy"] > 0.6


FORMATS = {"csv": ["train.csv", "--test", "test.csv", "--target", "label"], "libsvm": ["train", "--test", "test"],
           "two hdf5": ["train.h5", "--test", "test.csv"]}  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
def test_formats(form, inputs, tmp_path, monkeypatch):
    monkeypatch.chdir(inputs)
    made = reported("bkmsvm", [*FORMATS[form], "--partitions", "3", "--model", tmp_path / "m.h5"], tmp_path)
    assert (made["data"]["n_train"], made["data"]["n_test"]) == (150, 40)
    assert made["metrics"]["accuracy"] > 0.6
    model = SVMModel.load(tmp_path / "m.h5")
    assert model.classes.dtype == np.int64
    assert all(sp.issparse(part.X) == (form == "libsvm") for part in model.parts.values())


def test_as_a_program(python, inputs, tmp_path):
    """As a user starts it, and the prediction after it."""
    done = python("-W", "error", "-m", "casvm.casvm", inputs / "good.h5", "--partitions", "2", "--model", "m.h5",
                  "--report", "r.json", cwd=tmp_path)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "random parts: --route all" in " ".join(done.stdout.replace("│", " ").split())
    done = python("-W", "error", "-m", "casvm.predict", "m.h5", inputs / "good.h5", "-o", "p.csv", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.h5", "p.csv", "r.json"]


@pytest.mark.parametrize("name", ["good", "three"])
def test_predict(name, inputs, tmp_path, capsys):
    """The same accuracy and the same labels as in training."""
    k = 2 if name == "good" else 3
    options = ["--partitions", "3", "--route", "soft", "--model", tmp_path / "m.h5"]
    trained = reported("fcfssvm", [inputs / f"{name}.h5", *options], tmp_path)
    words = [tmp_path / "m.h5", inputs / f"{name}.h5", "-o", tmp_path / "p.csv", "--decisions"]
    predict.main([*map(str, words), "--report", str(tmp_path / "p.json"), "--quiet"])
    made = json.loads((tmp_path / "p.json").read_text())
    assert (made["method"], made["data"]["n_test"], made["params"]["method"]) == ("predict", 40, "fcfssvm")
    assert made["metrics"] == trained["metrics"]
    lines = [line.split(",") for line in (tmp_path / "p.csv").read_text().splitlines()]
    assert lines[0] == ["prediction", *(["decision"] if k == 2 else ["decision -1", "decision 1", "decision 4"])]
    table = np.array(lines[1:], float)
    X, y = rows("test", k)
    model = SVMModel.load(tmp_path / "m.h5")
    np.testing.assert_array_equal(table[:, 0], model.predict(X))
    np.testing.assert_array_equal(table[:, 1:], model.decision_function(X).reshape(40, -1))
    assert lines[1][0] in ("-1", "1", "4")  # as the labels are, not as 1.0
    assert (table[:, 0] == y).mean() == pytest.approx(trained["metrics"]["accuracy"])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["features.csv", "test.csv"])
def test_predict_formats(name, inputs, tmp_path):
    """Rows with or without their label; without --decisions one column."""
    predict.main([str(inputs / "model.h5"), str(inputs / name), "-o", str(tmp_path / "p.csv"), "--quiet"])
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "prediction"
    expected = SVMModel.load(inputs / "model.h5").predict(rows("test")[0])
    np.testing.assert_array_equal(np.array(lines[1:], float), expected)


def test_predict_says_how_to_keep(inputs, capsys):
    predict.main([str(inputs / "model.h5"), str(inputs / "good.h5")])
    shown = capsys.readouterr().out
    assert "give -o OUT.csv" in shown
    assert "balanced accuracy" in shown


def test_labels_that_were_not_trained(inputs, tmp_path):
    """Test rows of a class that the training rows lack are mistakes, and have a line of the confusion matrix."""
    options = ["--partitions", "2", "--model", tmp_path / "m.h5"]
    made = reported("cpsvm", [inputs / "new.h5", *options], tmp_path)["metrics"]
    X, y = rows("test")
    y[:8] = 9
    got = SVMModel.load(tmp_path / "m.h5").predict(X)
    assert made["confusion"] == confusion_matrix(y, got, labels=[-1, 1, 9]).tolist()
    assert made["accuracy"] == pytest.approx((got == y).mean())


@pytest.mark.parametrize("label", [2.5, 0.5])
def test_broken_labels_of_test_rows(label, inputs, tmp_path):
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for split in SIZE:
            file[f"{split}/X"], file[f"{split}/y"] = rows(split)
        file["test/y"][:8] = label
    made = reported("cpsvm", [tmp_path / "in.h5", "--model", tmp_path / "m.h5"], tmp_path)["metrics"]
    got = SVMModel.load(tmp_path / "m.h5").predict(rows("test")[0])
    confusion = np.zeros((3, 3), int)
    y = rows("test")[1]
    y[:8] = label
    classes = sorted({-1.0, 1.0, label})
    np.add.at(confusion, (np.searchsorted(classes, y), np.searchsorted(classes, got)), 1)
    assert made["confusion"] == confusion.tolist()


def test_broken_labels(inputs, tmp_path):
    """Labels that are not whole are labels all the same."""
    reported("cpsvm", [inputs / "halves.h5", "--model", tmp_path / "m.h5"], tmp_path)
    model = SVMModel.load(tmp_path / "m.h5")
    assert model.classes.tolist() == [-0.5, 0.5]
    predict.main([str(tmp_path / "m.h5"), str(inputs / "features.csv"), "-o", str(tmp_path / "p.csv"), "--quiet"])
    assert set((tmp_path / "p.csv").read_text().split()) == {"prediction", "-0.5", "0.5"}


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("P", [1, 3])
def test_libsvm(P, inputs, tmp_path):
    """A file a part, with its support vectors and its bias."""
    words = [inputs / "three.h5", "--partitions", P, "--libsvm", tmp_path / "l.model", "--model", tmp_path / "m.h5"]
    made = reported("bkmsvm", words, tmp_path)
    names = ["l.model"] if P == 1 else [f"l.{p:06d}.model" for p in range(P)]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*names, "m.h5", "r.json"])
    model = SVMModel.load(tmp_path / "m.h5")
    for p, name in enumerate(names):
        lines = (tmp_path / name).read_text().splitlines()
        stop = lines.index("SV")
        assert f"total_sv {made['solver']['n_support'][p]}" in lines[:stop]
        assert len(lines) - stop - 1 == made["solver"]["n_support"][p]
        (rho,) = [line.split()[1:] for line in lines[:stop] if line.startswith("rho")]
        np.testing.assert_array_equal(-np.array(rho, float), model.parts[p].b)


@methods
def test_routes(method, inputs, tmp_path):
    """Other answers by the same parts; the default is nearest."""
    metrics, coefficients = {}, {}
    for route in (None, "nearest", "soft", "all"):
        words = [inputs / "three.h5", "--partitions", "4", "--model", tmp_path / "m.h5"]
        made = reported(method, words + ([] if route is None else ["--route", route]), tmp_path)
        assert made["params"]["route"] == (route or "nearest")
        metrics[route] = made["metrics"]
        parts = SVMModel.load(tmp_path / "m.h5").parts
        coefficients[route] = np.concatenate([part.coef.ravel() for part in parts.values()])
    assert metrics[None] == metrics["nearest"]
    for route in ("soft", "all"):
        np.testing.assert_array_equal(coefficients[route], coefficients["nearest"])
    assert metrics["all"] != metrics["nearest"]


def test_initial_root(inputs, tmp_path):
    """Rank 0 deals the rows out in another order: the same problem where there is one part."""
    made = {}
    for initial in ("local", "root"):
        words = [inputs / "three.h5", "--initial", initial, "--tol", "1e-6", "--model", tmp_path / f"{initial}.h5"]
        made[initial] = reported("casvm", words, tmp_path)
        assert made[initial]["params"]["initial"] == initial
        assert made[initial]["comm"]["train"]["bytes"] == 0
    assert made["root"]["metrics"] == made["local"]["metrics"]
    X = rows("test", 3)[0]
    one, other = (SVMModel.load(tmp_path / f"{initial}.h5").decision_function(X) for initial in made)
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
    parted = reported("casvm", [inputs / "three.h5", "--initial", "root", "--partitions", "3"], tmp_path)
    assert parted["partition_sizes"] == [50, 50, 50]


def test_initial_root_without_test_rows(inputs, tmp_path):
    made = reported("casvm", [inputs / "train.h5", "--initial", "root"], tmp_path)
    assert (made["data"]["n_train"], made["data"]["n_test"], made["metrics"]) == (150, 0, {})


@pytest.mark.parametrize("method", ["fcfssvm", "bkmsvm"])
def test_ratio(method, tmp_path):
    """One class in six, to one side: every part gets its share of it, and has a model of two classes."""
    rng = np.random.default_rng(0)
    y = (np.arange(120) % 6 == 0).astype(float)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["train/X"], file["train/y"] = rng.normal(size=(120, 3)) + 3 * y[:, None], y
    held = {}
    for ratio in ([], ["--ratio"]):
        words = [tmp_path / "in.h5", "--partitions", "5", *ratio, "--model", tmp_path / "m.h5"]
        made = reported(method, words, tmp_path)
        assert made["params"]["ratio"] == bool(ratio)
        held[bool(ratio)] = [len(part.classes) for part in SVMModel.load(tmp_path / "m.h5").parts.values()]
    assert held[True] == [2] * 5
    assert min(held[False]) == 1


def test_balanced(tmp_path):
    """A rare class among the other's rows is found more often, at the price of the other."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for split, n in (("train", 400), ("test", 200)):
            y = (np.arange(n) % 12 == 0).astype(float)
            file[f"{split}/X"], file[f"{split}/y"] = rng.normal(size=(n, 3)) + 1.2 * y[:, None], y
    plain, balanced = (
        reported("casvm", [tmp_path / "in.h5", "--partitions", "2", *words], tmp_path) for words in ([], ["--balanced"])
    )
    assert (plain["params"]["balanced"], balanced["params"]["balanced"]) == (False, True)
    assert balanced["metrics"]["balanced_accuracy"] > plain["metrics"]["balanced_accuracy"] + 0.1


def test_checkpoint(inputs, tmp_path, monkeypatch):
    """The second time nothing is solved, no file is written, and the model is the same, bit for bit."""
    words = [inputs / "three.h5", "--partitions", "3", "--checkpoint", tmp_path / "kept", "--model"]
    first = reported("cpsvm", [*words, tmp_path / "first.h5"], tmp_path)
    before = {p.name: p.stat().st_ino for p in (tmp_path / "kept").iterdir()}
    assert sorted(before) == ["part-000000.npz", "part-000001.npz", "part-000002.npz", "run.json"]
    with monkeypatch.context() as patched:
        patched.setattr("casvm.cli.warm_up", lambda *_: None)  # which solves on purpose
        patched.setattr("casvm.solver.smo.solve", None)
        second = reported("cpsvm", [*words, tmp_path / "second.h5"], tmp_path)
    assert {p.name: p.stat().st_ino for p in (tmp_path / "kept").iterdir()} == before
    assert (tmp_path / "first.h5").read_bytes() == (tmp_path / "second.h5").read_bytes()
    assert second["metrics"] == first["metrics"]
    for name in ("iterations", "n_support", "objective", "gap", "seconds"):
        assert second["solver"][name] == first["solver"][name]
    (tmp_path / "kept" / "part-000001.npz").unlink()  # as if killed before
    third = reported("cpsvm", [*words, tmp_path / "third.h5"], tmp_path)
    assert (tmp_path / "first.h5").read_bytes() == (tmp_path / "third.h5").read_bytes()
    assert third["metrics"] == first["metrics"]


def test_checkpoint_of_a_sparse_run(inputs, tmp_path):
    words = [inputs / "train", "--partitions", "3", "--checkpoint", tmp_path / "kept", "--model"]
    for name in ("first.h5", "second.h5"):
        run("fcfssvm", [*words, tmp_path / name, "--quiet"])
    assert (tmp_path / "first.h5").read_bytes() == (tmp_path / "second.h5").read_bytes()


@pytest.mark.parametrize(
    ("partitions", "where"), [("1", "the solver stopped after 1 "), ("3", "3 of 3 parts stopped after 3 ")]
)
def test_limit_is_noted(partitions, where, inputs, tmp_path, capsys):
    run("casvm", [inputs / "good.h5", "--partitions", partitions, "--max-iter", "1", "--report", tmp_path / "r.json"])
    made = json.loads((tmp_path / "r.json").read_text())
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"{where}iterations at a violation of {max(made['solver']['gap']):.3g}, above tol = 0.001" in shown
    run("casvm", [inputs / "good.h5", "--max-time", "1e-9"])
    assert "stopped after" in capsys.readouterr().out


def test_notes(inputs, capsys):
    data = [inputs / "good.h5", "--partitions", "3"]
    run("casvm", data)
    assert "--route all" in capsys.readouterr().out
    run("casvm", [*data, "--route", "all"])
    assert "more accurate" not in capsys.readouterr().out
    run("cpsvm", data)
    assert "--route" not in capsys.readouterr().out
    run("cpsvm", [*data, "--quiet"])
    assert capsys.readouterr().out == ""
    run("cpsvm", [*data, "--verbose"])
    assert capsys.readouterr().out.count("support vectors") == 3
    run("cpsvm", [inputs / "train.h5"])
    assert "no test rows" in capsys.readouterr().out


def test_cache_does_not_matter(inputs, tmp_path):
    """Nor do threads: the same model."""
    metrics = [
        reported("cpsvm", [inputs / "three.h5", "--tol", "1e-6", *words], tmp_path)["solver"]["objective"]
        for words in ([], ["--cache-gib", "0"], ["--threads", "1"])
    ]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-8)
    assert metrics[0] == pytest.approx(metrics[2], rel=1e-8)


# -- what is refused: the method, its arguments, and what the line on stderr must say --------------

BAD = {
    "missing file": ("casvm", ["nosuch.h5"], "nosuch.h5: no such file"),
    "missing file at root": ("casvm", ["nosuch.h5", "--initial", "root"], "nosuch.h5: no such file"),
    "truncated": ("casvm", ["truncated.h5"], "truncated.h5"),
    "truncated at root": ("casvm", ["truncated.h5", "--initial", "root"], "truncated.h5"),
    "empty": ("casvm", ["empty.csv"], "empty.csv: the file is empty"),
    "nan": ("casvm", ["nan.h5"], "nan.h5 (train): row 7, feature 2 is nan"),
    "nan at root": ("casvm", ["nan.h5", "--initial", "root"], "row 7, feature 2 is nan"),
    "nan in parts": ("bkmsvm", ["nan.h5", "--partitions", "3"], "row 7, feature 2 is nan"),
    "text labels": ("casvm", ["text.csv"], "spam"),
    "one class": ("casvm", ["one.h5"], "at least 2 classes; there is one class only, 1"),
    "one class in parts": ("fcfssvm", ["one.h5", "--partitions", "3"], "one class only, 1"),
    "no target": ("casvm", ["train.csv", "--target", "nosuch"], "no target column 'nosuch'"),
    "test features": ("casvm", ["train.h5", "--test", "wide.h5"], "6 features, and 3"),
    "two tests": ("casvm", ["good.h5", "--test", "test.csv"], "drop --test"),
    "overlap": ("casvm", ["train.h5", "--test", "train.csv"], "training rows too"),
    "C 0": ("casvm", ["good.h5", "--C", "0"], "C = 0"),
    "C negative": ("casvm", ["good.h5", "--C", "-1"], "C = -1"),
    "C nan": ("casvm", ["good.h5", "--C", "nan"], "C = nan"),
    "C text": ("casvm", ["good.h5", "--C", "x"], "--C"),
    "gamma 0": ("casvm", ["good.h5", "--gamma", "0"], "gamma = 0"),
    "gamma x": ("casvm", ["good.h5", "--gamma", "x"], "--gamma x"),
    "gamma nan": ("casvm", ["good.h5", "--gamma", "nan"], "gamma = nan"),
    "tol 0": ("casvm", ["good.h5", "--tol", "0"], "tol = 0"),
    "time 0": ("casvm", ["good.h5", "--max-time", "0"], "max_time = 0"),
    "cache": ("casvm", ["good.h5", "--cache-gib", "-1"], "--cache-gib -1"),
    "cache inf": ("casvm", ["good.h5", "--cache-gib", "inf"], "--cache-gib inf"),
    "memory": ("casvm", ["good.h5", "--memory-limit", "0.5"], "--cache-gib"),
    "degree": ("casvm", ["good.h5", "--kernel", "polynomial", "--degree", "-1"], "degree = -1"),
    "kernel": ("casvm", ["good.h5", "--kernel", "rbf"], "--kernel"),
    "route": ("casvm", ["good.h5", "--route", "oracle"], "--route"),
    "ratio of random parts": ("casvm", ["good.h5", "--ratio"], "--ratio"),
    "ratio of k-means": ("cpsvm", ["good.h5", "--ratio"], "does not balance classes"),
    "root of others": ("cpsvm", ["good.h5", "--initial", "root"], "--initial"),
    "parts 0": ("casvm", ["good.h5", "--partitions", "0"], "partitions = 0"),
    "parts": ("casvm", ["good.h5", "--partitions", "151"], "151 parts of the 150 rows"),
    "parts of k-means": ("cpsvm", ["good.h5", "--partitions", "151"], "151 parts of 150 rows"),
    "parts of bkm": ("bkmsvm", ["good.h5", "--partitions", "151"], "151 parts of 150 rows"),
    "parts of fcfs": ("fcfssvm", ["good.h5", "--partitions", "151"], "151 parts of 150 rows"),
    "seed": ("casvm", ["good.h5", "--seed", "-1"], "--seed -1"),
    "threads": ("casvm", ["good.h5", "--threads", "0"], "--threads 0"),
    "report place": ("casvm", ["good.h5", "--report", "nosuch/r.json"], "directory"),
    "model": ("casvm", ["good.h5", "--model", "nosuch/m.h5"], "directory"),
    "model is a directory": ("casvm", ["good.h5", "--model", "."], "is a directory"),
    "libsvm": ("casvm", ["good.h5", "--libsvm", "nosuch/l.model"], "directory"),
    "checkpoint is a file": ("casvm", ["good.h5", "--checkpoint", "file"], "file: is a file"),
    "unknown option": ("casvm", ["good.h5", "--colour", "red"], "--colour"),
    "shortened option": ("casvm", ["good.h5", "--part", "3"], "--part"),
    "no file": ("casvm", [], "DATA"),
}  # fmt: skip
BAD_PREDICT = {
    "no model": (["nosuch.h5", "test.csv"], "nosuch.h5: no such model"),
    "not a model": (["good.h5", "test.csv"], "good.h5: not a model"),
    "not hdf5": (["train.csv", "test.csv"], "train.csv: not a model"),
    "truncated model": (["truncated.h5", "test.csv"], "truncated.h5: not a model"),
    "no data": (["model.h5", "nosuch.csv"], "nosuch.csv: no such file"),
    "features": (["model.h5", "wide.h5"], "6 features, the model model.h5 has 3"),
    "output": (["model.h5", "test.csv", "-o", "nosuch/p.csv"], "directory"),
    "output is a directory": (["model.h5", "test.csv", "-o", "."], "is a directory"),
    "missing argument": (["model.h5"], "DATA"),
}


def refuse(program, arguments, message, inputs, capfd, monkeypatch):
    """One line that says what is wrong, status 2, and nothing that was not there before."""
    monkeypatch.chdir(inputs)
    before = {p: p.read_bytes() for p in inputs.iterdir()}
    with pytest.raises(SystemExit) as ended:
        program(arguments)
    out, err = capfd.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert (err.count("\n"), err[-1]) == (1, "\n")
    assert message in err
    assert {p: p.read_bytes() for p in inputs.iterdir()} == before


@pytest.mark.parametrize("what", BAD)
def test_refused(what, inputs, capfd, monkeypatch):
    # Outputs that could be written must not be, either.
    method, words, message = BAD[what]
    outputs = {"--report": "out.json", "--model": "out.h5", "--libsvm": "out.model"}
    given = [*words, *(word for pair in outputs.items() if pair[0] not in words for word in pair)]
    refuse(lambda words: run(method, words), given, message, inputs, capfd, monkeypatch)


@pytest.mark.parametrize("what", BAD_PREDICT)
def test_predict_refused(what, inputs, capfd, monkeypatch):
    given = [*BAD_PREDICT[what][0], "--report", "out.json", *([] if "output" in what else ["-o", "out.csv"])]
    refuse(predict.main, given, BAD_PREDICT[what][1], inputs, capfd, monkeypatch)


def test_libsvm_of_broken_labels(inputs, capfd, monkeypatch):
    words = ["halves.h5", "--libsvm", "out.model", "--model", "out.h5", "--report", "out.json"]
    try:
        refuse(lambda words: run("casvm", words), words, "whole numbers", inputs, capfd, monkeypatch)
    finally:
        (inputs / "out.h5").unlink(missing_ok=True)


def test_model_of_the_other_family(inputs, tmp_path, capfd):
    from cakrr import bkrr2
    from cakrr.cli import main as regress

    path = tmp_path / "krr.h5"
    regress(bkrr2.METHOD, [str(inputs / "good.h5"), "--sigma", "2", "--lambda", "1", "--model", str(path), "--quiet"])
    with pytest.raises(SystemExit) as ended:
        predict.main([str(path), str(inputs / "good.h5")])
    assert ended.value.code == 2
    assert capfd.readouterr().err == f"casvm.predict: {path}: a model of the krr family; svm is needed\n"


OTHER = {
    "seed": (["--seed", "1"], "seed was 0 there and is 1 here"),
    "C": (["--C", "2"], "C was 1.0 there and is 2.0 here"),
    "kernel": (["--kernel", "linear"], 'kind was "gaussian" there and is "linear" here'),
    "tol": (["--tol", "1e-4"], "limits was"),
    "balanced": (["--balanced"], "class_weight was"),
    "dtype": (["--dtype", "float32"], "dtype was"),
    "partitions": (["--partitions", "2"], "partitions was"),
}


@pytest.fixture(scope="module")
def kept(inputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint") / "kept"
    run("cpsvm", [inputs / "good.h5", "--checkpoint", folder, "--quiet"])
    return folder


@pytest.mark.parametrize("what", OTHER)
def test_checkpoint_of_another_run(what, kept, inputs, capfd):
    words, message = OTHER[what]
    with pytest.raises(SystemExit) as ended:
        run("cpsvm", [inputs / "good.h5", "--checkpoint", kept, *words])
    assert ended.value.code == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert message in err


def test_checkpoint_of_other_rows_or_another_method(kept, inputs, tmp_path, capfd):
    shutil.copy(inputs / "good.h5", tmp_path / "other.h5")
    with h5py.File(tmp_path / "other.h5", "a") as file:
        file["train/y"][0] = -file["train/y"][0]
    others = [
        ("cpsvm", tmp_path / "other.h5", "training rows was"),
        ("casvm", inputs / "good.h5", 'method was "cpsvm" there and is "casvm" here'),
    ]
    for method, path, message in others:
        with pytest.raises(SystemExit):
            run(method, [path, "--checkpoint", kept])
        assert message in capfd.readouterr().err


def test_damaged_piece_of_a_checkpoint(inputs, tmp_path, capfd):
    run("cpsvm", [inputs / "good.h5", "--checkpoint", tmp_path / "kept", "--quiet"])
    piece = tmp_path / "kept" / "part-000000.npz"
    piece.write_bytes(piece.read_bytes()[:100])
    with pytest.raises(SystemExit):
        run("cpsvm", [inputs / "good.h5", "--checkpoint", tmp_path / "kept"])
    assert "part-000000.npz: damaged" in capfd.readouterr().err
