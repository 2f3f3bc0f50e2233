"""``python -m asygcd`` and its predictions: a file in; a report, a model, a table out; bad input ends in one line."""

from __future__ import annotations

import bz2
import json
import re
from itertools import islice

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file, load_svmlight_file
from sklearn.metrics import balanced_accuracy_score, confusion_matrix

from asygcd import AsyGCDModel, AsyGCDSVC, cli, predict
from casvm import SMOSVC

SIZE = {"train": 150, "test": 40}
SHIFT = np.array([[0.0, 0, 0], [2.5, 0, 0], [0, 2.5, 0]])  # the classes overlap


def rows(split="train", k=2, d=3):
    rng = np.random.default_rng(len(split))
    y = rng.integers(0, k, SIZE[split])
    return rng.normal(size=(SIZE[split], d)) + SHIFT[y][:, :d], np.array([-1.0, 1.0, 4.0])[y]


def write(path, splits=("train", "test"), k=2):
    with h5py.File(path, "w") as file:
        for split in splits:
            file[f"{split}/X"], file[f"{split}/y"] = rows(split, k)


def write_csv(path, split="test", target=True):
    X, y = rows(split)
    table = np.column_stack([X, y]) if target else X
    names = ["a", "b", "c"] + ["label"] * target
    np.savetxt(path, table, delimiter=",", header=",".join(names), comments="", fmt="%.17g")


def changed(path, whole, name, place, value):
    path.write_bytes(whole)
    with h5py.File(path, "a") as file:
        file[name][place] = value


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """One folder with what is good and everything that is wrong."""
    folder = tmp_path_factory.mktemp("inputs")
    write(folder / "good.h5")
    write(folder / "three.h5", k=3)
    write(folder / "train.h5", ["train"])
    write(folder / "rest.h5", ["test"])
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
    lines = (folder / "train.csv").read_text().splitlines(keepends=True)
    lines[5] = "1.5,nan,0.5,1\n"
    (folder / "nan.csv").write_text("".join(lines))
    lines[5] = "1.5,0.25,two,1\n"
    (folder / "word.csv").write_text("".join(lines))
    whole = (folder / "good.h5").read_bytes()
    (folder / "truncated.h5").write_bytes(whole[: len(whole) // 2])
    changed(folder / "nan.h5", whole, "train/X", (7, 2), np.nan)
    changed(folder / "one.h5", whole, "train/y", slice(None), 1.0)
    changed(folder / "new.h5", whole, "test/y", slice(0, 8), 9.0)
    changed(folder / "halves.h5", whole, "train/y", slice(None), np.where(rows()[1] > 0, 0.5, -0.5))
    (folder / "empty.csv").write_text("")
    (folder / "file").write_text("not a directory\n")
    run([folder / "good.h5", "--model", folder / "model.h5", "--quiet"])
    model = (folder / "model.h5").read_bytes()
    (folder / "half.h5").write_bytes(model[: len(model) // 2])
    SMOSVC().fit(*rows()).model_.save(folder / "svm.h5")
    return folder


def run(words):
    """The command, in this process."""
    cli.main([str(word) for word in words])


def reported(words, folder):
    run([*words, "--report", folder / "r.json", "--quiet"])
    return json.loads((folder / "r.json").read_text())


def flat(text):
    """What a table says, without its lines."""
    return " ".join(text.replace("│", " ").split())


# -- what works ------------------------------------------------------------------------------------

FIELDS = {"schema", "method", "command", "data", "ranks", "threads_per_rank", "partitions", "partition_sizes", "params",
          "grid", "metrics", "seconds", "comm", "solver", "memory", "environment"}  # fmt: skip
PARAMS = {"C", "kernel", "tol", "cache_gib", "update", "multi_class", "balanced", "standardize", "dtype", "seed"}
A_PROBLEM = {"iterations", "n_support", "objective", "gap", "seconds", "kernel_values"}
A_THREAD = {"steps", "hits", "misses"}
# Options of a run, what they add to "params", problems, and threads.
COMMANDS = {
    "plain": (["--threads", "2"], {"gamma"}, 3, 2),
    "pairs": (["--threads", "2", "--multi-class", "ovo", "--balanced"], {"gamma"}, 3, 2),
    "atomic": (["--threads", "1", "--update", "atomic", "--standardize", "--gamma", "auto"], {"gamma"}, 3, 1),
    "stochastic": (["--threads", "2", "--update", "stochastic", "--kernel", "linear", "--C", "0.1"], set(), 3, 2),
    "single": (
        ["--threads", "1", "--dtype", "float32", "--kernel", "polynomial", "--gamma", "0.5", "--coef0", "1",
         "--degree", "2"], {"gamma", "degree", "coef0"}, 3, 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", COMMANDS)
def test_report(what, inputs, tmp_path, capsys):
    """Three classes."""
    words, more, problems, T = COMMANDS[what]
    words = [inputs / "three.h5", "--seed", "5", *words, "--report", tmp_path / "r.json", "--model", tmp_path / "m.h5"]
    run(words)
    shown, err = capsys.readouterr()
    assert err == ""
    assert "150 training, 40 test, 3 features" in shown
    assert f"asygcd on {inputs}"[:20] in shown
    assert "balanced accuracy" in shown
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.h5", "r.json"]

    made = json.loads((tmp_path / "r.json").read_text())
    assert set(made) == FIELDS
    assert (made["schema"], made["method"]) == ("cakernels-report/1", "asygcd")
    assert made["data"] == {"path": str(inputs / "three.h5"), "n_train": 150, "n_test": 40, "n_features": 3}
    assert (made["ranks"], made["threads_per_rank"], made["partitions"], made["grid"]) == (1, T, T, [])
    ovo = "ovo" in words
    last_pair = int((rows(k=3)[1] > 0).sum())
    assert (len(made["partition_sizes"]), sum(made["partition_sizes"])) == (T, last_pair if ovo else 150)
    params = made["params"]
    assert set(params) == PARAMS | more
    assert params["update"] == (what if what in ("atomic", "stochastic") else "owned")
    assert params["multi_class"] == ("ovo" if ovo else "ovr")
    assert params["balanced"] == ovo
    assert params["standardize"] == (what == "atomic")
    assert params["dtype"] == ("float32" if what == "single" else "float64")
    assert (params["seed"], params["tol"], params["cache_gib"]) == (5, 1e-3, 1.0)
    for phase in ("read", "partition", "train", "predict"):
        assert made["comm"][phase] == {"bytes": 0, "messages": 0, "seconds": 0}
    assert made["seconds"]["total"] >= made["seconds"]["train"] > 0
    assert made["memory"]["peak_rss_mib"][0] > 0

    solver = made["solver"]
    assert set(solver) == A_PROBLEM | A_THREAD
    assert all(len(solver[name]) == problems for name in A_PROBLEM | A_THREAD)
    assert all(len(line) == T for name in A_THREAD for line in solver[name])
    assert all(isinstance(n, int) and n > 0 for name in ("iterations", "n_support") for n in solver[name])
    assert all(0 <= gap <= 1e-3 * (1 if what != "stochastic" else 10) for gap in solver["gap"])
    assert all(value > 0 for name in ("objective", "seconds") for value in solver[name])
    assert [sum(line) for line in solver["steps"]] == solver["iterations"]
    assert solver["kernel_values"][0] > 0
    assert sum(sum(line) for line in solver["misses"]) > 0

    model = AsyGCDModel.load(tmp_path / "m.h5")
    assert np.count_nonzero(model.coef, axis=0).tolist() == solver["n_support"]
    assert (model.multi_class, model.C, model.dtype) == (params["multi_class"], params["C"], params["dtype"])
    assert (model.standardizer is not None) == params["standardize"]
    X, y = rows("test", 3)
    got, metrics = model.predict(X.astype(model.dtype)), made["metrics"]
    assert got.dtype == np.int64
    assert set(metrics) == {"accuracy", "balanced_accuracy", "confusion"}
    assert metrics["accuracy"] == pytest.approx((got == y).mean())
    assert metrics["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, got))
    assert metrics["confusion"] == confusion_matrix(y, got).tolist()
    assert metrics["accuracy"] > (0.45 if what == "stochastic" else 0.6)  # a linear kernel, and no bias


@pytest.mark.parametrize("what", COMMANDS)
def test_is_the_estimator(what, inputs, tmp_path):
    """Of the same options."""
    words, (X, y), (T, _) = COMMANDS[what][0], rows(k=3), rows("test", 3)
    made = reported([inputs / "three.h5", *words, "--tol", "1e-6", "--model", tmp_path / "m.h5"], tmp_path)
    given = {"tol": 1e-6, "threads": int(words[1])}
    dtype = np.float32 if what == "single" else np.float64
    given |= {
        "plain": {}, "pairs": {"multi_class": "ovo", "class_weight": "balanced"},
        "atomic": {"update": "atomic", "standardize": True, "gamma": "auto"},
        "stochastic": {"update": "stochastic", "kernel": "linear", "C": 0.1},
        "single": {"kernel": "poly", "gamma": 0.5, "coef0": 1, "degree": 2},
    }[what]  # fmt: skip
    model = AsyGCDSVC(**given).fit(X.astype(dtype), y)
    np.testing.assert_allclose(made["solver"]["objective"], model.objective_, rtol=1e-6)
    decisions = AsyGCDModel.load(tmp_path / "m.h5").decision_function(T.astype(dtype))
    np.testing.assert_allclose(decisions, model.decision_function(T.astype(dtype)), rtol=0, atol=1e-3)


def test_threads_and_caches_do_not_matter(inputs, tmp_path):
    found = [
        reported([inputs / "three.h5", "--tol", "1e-6", *words], tmp_path)["solver"]["objective"]
        for words in (["--threads", "1"], ["--threads", "2"], ["--cache-gib", "2e-5"], ["--update", "atomic"],
                      ["--seed", "7"])
    ]  # fmt: skip
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-6)


FORMATS = {"csv": ["train.csv", "--test", "test.csv", "--target", "label"], "libsvm": ["train", "--test", "test"],
           "two hdf5": ["train.h5", "--test", "test.csv"]}  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
def test_formats(form, inputs, tmp_path, monkeypatch):
    monkeypatch.chdir(inputs)
    made = reported([*FORMATS[form], "--standardize", "--model", tmp_path / "m.h5"], tmp_path)
    sparse = form == "libsvm"
    assert made["data"] == {"path": FORMATS[form][0], "n_train": 150, "n_test": 40, "n_features": 12 if sparse else 3}
    assert made["metrics"]["accuracy"] > 0.6
    model = AsyGCDModel.load(tmp_path / "m.h5")
    assert model.classes.tolist() == ([-1, 1, 4] if sparse else [-1, 1])
    assert model.classes.dtype == np.int64
    assert sp.issparse(model.X) == sparse
    assert (np.abs(model.standardizer.mean).max() == 0) == sparse
    predict.main([str(tmp_path / "m.h5"), FORMATS[form][2], "-o", str(tmp_path / "p.csv"), "--quiet"])
    got = np.array((tmp_path / "p.csv").read_text().splitlines()[1:], float)
    y = rows("test", 3 if sparse else 2)[1]
    assert confusion_matrix(y, got).tolist() == made["metrics"]["confusion"]


def test_as_a_program(python, inputs, tmp_path):
    """As a user starts it, and the prediction after it."""
    done = python("-W", "error", "-m", "asygcd", inputs / "good.h5", "--threads", "2", "--model", "m.h5", "--report",
                  "r.json", cwd=tmp_path)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "150 training, 40 test, 3 features" in flat(done.stdout)
    assert "1 ranks of 2 threads" in flat(done.stdout)
    done = python("-W", "error", "-m", "asygcd.predict", "m.h5", inputs / "good.h5", "-o", "p.csv", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "predict on" in done.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.h5", "p.csv", "r.json"]
    got = np.array((tmp_path / "p.csv").read_text().splitlines()[1:], float)
    made = json.loads((tmp_path / "r.json").read_text())
    assert confusion_matrix(rows("test")[1], got).tolist() == made["metrics"]["confusion"]


def test_help(capsys):
    for program, words in ((cli.main, ["--update", "--multi-class", "--cache-gib"]), (predict.main, ["--decisions"])):
        with pytest.raises(SystemExit) as ended:
            program(["--help"])
        out, err = capsys.readouterr()
        assert (ended.value.code or 0, err) == (0, "")
        assert all(word in out for word in words)


@pytest.mark.parametrize(("name", "multi_class"), [("good", "ovr"), ("three", "ovr"), ("three", "ovo")])
def test_predict(name, multi_class, inputs, tmp_path, capsys):
    """The same accuracy and the same labels as in training."""
    k = 2 if name == "good" else 3
    trained = reported([inputs / f"{name}.h5", "--multi-class", multi_class, "--model", tmp_path / "m.h5"], tmp_path)
    words = [tmp_path / "m.h5", inputs / f"{name}.h5", "-o", tmp_path / "p.csv", "--decisions"]
    predict.main([*map(str, words), "--report", str(tmp_path / "p.json"), "--quiet"])
    made = json.loads((tmp_path / "p.json").read_text())
    assert set(made) == FIELDS
    assert (made["method"], made["data"]["n_test"], made["data"]["n_train"]) == ("predict", 40, 0)
    model = AsyGCDModel.load(tmp_path / "m.h5")
    told = {"model": str(tmp_path / "m.h5"), "method": "asygcd", "C": 1.0, "multi_class": multi_class}
    assert (made["params"], made["partition_sizes"]) == (told, [len(model.rows)])
    assert made["metrics"] == trained["metrics"]
    lines = [line.split(",") for line in (tmp_path / "p.csv").read_text().splitlines()]
    assert lines[0] == ["prediction", *(["decision"] if k == 2 else ["decision -1", "decision 1", "decision 4"])]
    table = np.array(lines[1:], float)
    X, y = rows("test", k)
    np.testing.assert_array_equal(table[:, 0], model.predict(X))
    np.testing.assert_array_equal(table[:, 1:], model.decision_function(X).reshape(40, -1))
    assert lines[1][0] in ("-1", "1", "4")  # as the labels are, not as 1.0
    assert confusion_matrix(y, table[:, 0]).tolist() == trained["metrics"]["confusion"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["features.csv", "test.csv", "rest.h5"])
def test_predict_formats(name, inputs, tmp_path):
    """Rows with or without their label; without --decisions one column."""
    predict.main([str(inputs / "model.h5"), str(inputs / name), "-o", str(tmp_path / "p.csv"), "--quiet"])
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "prediction"
    expected = AsyGCDModel.load(inputs / "model.h5").predict(rows("test")[0])
    np.testing.assert_array_equal(np.array(lines[1:], float), expected)


def test_predict_says_how_to_keep(inputs, capsys):
    predict.main([str(inputs / "model.h5"), str(inputs / "good.h5")])
    shown = capsys.readouterr().out
    assert "give -o OUT.csv" in shown
    assert "balanced accuracy" in shown


def test_predict_on_two_ranks(mpiexec, inputs, tmp_path):
    """The same file as on none."""
    run([inputs / "three.h5", "--model", tmp_path / "m.h5", "--quiet"])
    words = [tmp_path / "m.h5", inputs / "three.h5", "--decisions"]
    predict.main([*map(str, words), "--quiet", "-o", str(tmp_path / "one.csv"), "--report", str(tmp_path / "one.json")])
    out = ["-o", tmp_path / "two.csv", "--report", tmp_path / "two.json"]
    done = mpiexec(2, "-W", "error", "-m", "asygcd.predict", *words, *out)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("predict on") == 1
    assert (tmp_path / "two.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()
    one, two = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two"))
    assert (one["ranks"], two["ranks"]) == (1, 2)
    assert (one["metrics"], one["data"]) == (two["metrics"], two["data"])


def test_two_ranks_are_refused(mpiexec, inputs, tmp_path):
    done = mpiexec(2, "-m", "asygcd", inputs / "good.h5", "--model", "m.h5", "--report", "r.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("asygcd: ")
    assert "2 ranks: start it without mpiexec, or use python -m casvm.casvm --solver asygcd" in line
    assert list(tmp_path.iterdir()) == []


def test_labels_that_were_not_trained(inputs, tmp_path):
    """Test rows of a class that the training rows lack are mistakes, and have a line of the confusion matrix."""
    made = reported([inputs / "new.h5", "--model", tmp_path / "m.h5"], tmp_path)["metrics"]
    X, y = rows("test")
    y[:8] = 9
    got = AsyGCDModel.load(tmp_path / "m.h5").predict(X)
    assert made["confusion"] == confusion_matrix(y, got, labels=[-1, 1, 9]).tolist()


def test_broken_labels(inputs, tmp_path):
    """Labels that are not whole are labels all the same."""
    reported([inputs / "halves.h5", "--model", tmp_path / "m.h5"], tmp_path)
    assert AsyGCDModel.load(tmp_path / "m.h5").classes.tolist() == [-0.5, 0.5]
    predict.main([str(tmp_path / "m.h5"), str(inputs / "features.csv"), "-o", str(tmp_path / "p.csv"), "--quiet"])
    assert set((tmp_path / "p.csv").read_text().split()) == {"prediction", "-0.5", "0.5"}


def test_balanced(tmp_path):
    """A rare class among the other's rows is found more often, at the price of the other."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for split, n in (("train", 400), ("test", 200)):
            y = (np.arange(n) % 12 == 0).astype(float)
            file[f"{split}/X"], file[f"{split}/y"] = rng.normal(size=(n, 3)) + 1.2 * y[:, None], y
    plain, balanced = (reported([tmp_path / "in.h5", *words], tmp_path) for words in ([], ["--balanced"]))
    assert (plain["params"]["balanced"], balanced["params"]["balanced"]) == (False, True)
    assert balanced["metrics"]["balanced_accuracy"] > plain["metrics"]["balanced_accuracy"] + 0.1


def test_limits_are_noted(inputs, tmp_path, capsys):
    words = [inputs / "good.h5", "--threads", "1", "--report", tmp_path / "r.json"]
    run([*words, "--max-iter", "7"])
    made = json.loads((tmp_path / "r.json").read_text())
    assert made["solver"]["iterations"] == [7]
    gap = made["solver"]["gap"][0]
    said = f"the solver stopped after 7 updates at a violation of {gap:.3g}, above the tolerance: raise"
    assert said in flat(capsys.readouterr().out)
    # What does not end by itself.
    run([*words, "--kernel", "polynomial", "--gamma", "1e3", "--tol", "1e-9", "--max-time", "0.05"])
    assert "stopped after" in flat(capsys.readouterr().out)
    run([inputs / "three.h5", "--max-iter", "1", "--quiet"])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("T", [1, 2])
def test_notes_and_threads(T, inputs, capsys):
    run([inputs / "three.h5", "--threads", T, "--verbose"])
    out, err = capsys.readouterr()
    assert err == ""
    number = r"[\d,]+"
    problems = re.findall(
        rf"^problem (\d): {number} support vectors, violation \S+, [\d.]+ s$", out, re.MULTILINE
    )  # fmt: skip
    assert problems == ["0", "1", "2"]
    threads = re.findall(
        rf"^  thread (\d): {number} updates, {number} columns from its cache, {number} computed$", out, re.MULTILINE
    )
    assert threads == [str(t) for _ in range(3) for t in range(T)]
    run([inputs / "good.h5", "--quiet"])
    assert capsys.readouterr() == ("", "")
    run([inputs / "good.h5"])
    out = capsys.readouterr().out
    assert "thread 0" not in out
    assert "no test rows" not in out
    run([inputs / "train.h5"])
    assert "no test rows: give --test" in flat(capsys.readouterr().out)


def test_real_rows(data, tmp_path):
    """ijcnn1's first rows: as good as the exact solver's with its bias, and those of one thread."""
    with bz2.open(data / "ijcnn1.bz2", "rt") as file:
        (tmp_path / "train").write_text("".join(islice(file, 3000)))
        (tmp_path / "test").write_text("".join(islice(file, 1500)))
    words = [tmp_path / "train", "--test", tmp_path / "test", "--allow-overlap", "--gamma", "2", "--C", "8"]
    made = reported([*words, "--threads", "2", "--model", tmp_path / "m.h5"], tmp_path)
    assert made["data"]["n_features"] == 22
    (X, y), (T, u) = (load_svmlight_file(str(tmp_path / name), n_features=22) for name in ("train", "test"))
    for S in (X, T):  # the estimators ask for these
        S.indices, S.indptr = S.indices.astype(np.int32), S.indptr.astype(np.int32)
    alone = AsyGCDSVC(gamma=2, C=8, threads=1).fit(X, y)
    assert made["solver"]["objective"][0] == pytest.approx(alone.objective_[0], rel=1e-4)
    got = AsyGCDModel.load(tmp_path / "m.h5").predict(T)
    assert (got != alone.predict(T)).sum() <= 5
    assert made["metrics"]["confusion"] == confusion_matrix(u, got).tolist()
    assert made["metrics"]["accuracy"] > 0.9
    assert made["metrics"]["accuracy"] > SMOSVC(gamma=2, C=8).fit(X, y).score(T, u) - 0.02


# -- what is refused: the arguments, and what the line on stderr must say ------------------------------

BAD = {
    "missing file": (["nosuch.h5"], "nosuch.h5: no such file"),
    "truncated": (["truncated.h5"], "truncated.h5"),
    "empty": (["empty.csv"], "empty.csv: the file is empty"),
    "nan": (["nan.h5"], "nan.h5 (train): row 7, feature 2 is nan"),
    "nan in csv": (["nan.csv"], "nan.csv"),
    "nan in csv row": (["nan.csv"], "nan"),
    "word in csv": (["word.csv"], "word.csv"),
    "test rows alone": (["rest.h5"], "rest.h5: test rows alone"),
    "one label": (["one.h5"], "the labels must be of at least 2 classes; there is one class only, 1"),
    "two tests": (["good.h5", "--test", "test.csv"], "drop --test"),
    "features": (["train.h5", "--test", "wide.h5"], "wide.h5"),
    "target": (["train.csv", "--target", "nosuch"], "nosuch"),
    "C 0": (["good.h5", "--C", "0"], "C = 0: it must be a positive number"),
    "C negative": (["good.h5", "--C", "-1"], "C = -1: it must be a positive number"),
    "C nan": (["good.h5", "--C", "nan"], "C = nan: it must be a positive number"),
    "C word": (["good.h5", "--C", "one"], "--C"),
    "gamma": (["good.h5", "--gamma", "nonsense"], "--gamma nonsense: it must be a positive number, scale or auto"),
    "gamma 0": (["good.h5", "--gamma", "0"], "gamma = 0.0: it must be a positive number"),
    "gamma nan": (["good.h5", "--gamma", "nan"], "gamma = nan: it must be a positive number"),
    "tol 0": (["good.h5", "--tol", "0"], "tol = 0: it must be a positive number"),
    "tol nan": (["good.h5", "--tol", "nan"], "tol = nan: it must be a positive number"),
    "max-time": (["good.h5", "--max-time", "0"], "max_time = 0: it must be a positive number"),
    "max-iter": (["good.h5", "--max-iter", "many"], "--max-iter"),
    "cache small": (["good.h5", "--cache-gib", "1e-6"], "a cache of 1,073 bytes does not hold two columns of 150"),
    "cache 0": (["good.h5", "--cache-gib", "0"], "a cache of 0 bytes does not hold two columns of 150"),
    "cache negative": (["good.h5", "--cache-gib", "-1"], "--cache-gib -1"),
    "cache inf": (["good.h5", "--cache-gib", "inf"], "--cache-gib inf"),
    "memory": (["good.h5", "--memory-limit", "1e-5"], "GiB"),
    "memory 0": (["good.h5", "--memory-limit", "0"], "--memory-limit 0"),
    "degree": (["good.h5", "--kernel", "polynomial", "--degree", "-1"], "degree = -1"),
    "coef0": (["good.h5", "--kernel", "sigmoid", "--coef0", "inf"], "coef0 = inf"),
    "kernel": (["good.h5", "--kernel", "rbf"], "--kernel"),
    "update": (["good.h5", "--update", "locked"], "--update"),
    "multi-class": (["good.h5", "--multi-class", "all"], "--multi-class"),
    "dtype": (["good.h5", "--dtype", "float16"], "--dtype"),
    "seed": (["good.h5", "--seed", "-1"], "--seed -1"),
    "threads 0": (["good.h5", "--threads", "0"], "--threads 0: at least 1 is needed"),
    "threads negative": (["good.h5", "--threads", "-2"], "--threads -2: at least 1 is needed"),
    "threads 1.5": (["good.h5", "--threads", "1.5"], "--threads"),
    "report place": (["good.h5", "--report", "nosuch/r.json"], "nosuch/r.json: the directory nosuch does not exist"),
    "model place": (["good.h5", "--model", "nosuch/m.h5"], "nosuch/m.h5: the directory nosuch does not exist"),
    "model is a directory": (["good.h5", "--model", "."], "is a directory"),
    "unknown option": (["good.h5", "--colour", "red"], "--colour"),
    "option of casvm": (["good.h5", "--partitions", "3"], "--partitions"),
    "shortened option": (["good.h5", "--multi", "ovo"], "--multi"),
    "loud and quiet": (["good.h5", "--quiet", "--verbose"], "--verbose"),
    "no file": ([], "DATA"),
}  # fmt: skip
BAD_PREDICT = {
    "no model": (["nosuch.h5", "test.csv"], "nosuch.h5: no such model"),
    "not a model": (["good.h5", "test.csv"], "good.h5: not a model"),
    "not hdf5": (["train.csv", "test.csv"], "train.csv: not a model"),
    "truncated model": (["half.h5", "test.csv"], "half.h5: not a model"),
    "another family": (["svm.h5", "test.csv"], "svm.h5: a model of the svm family; asygcd is needed"),
    "no data": (["model.h5", "nosuch.csv"], "nosuch.csv: no such file"),
    "truncated data": (["model.h5", "truncated.h5"], "truncated.h5"),
    "features": (["model.h5", "wide.h5"], "6 features, the model model.h5 has 3"),
    "nan": (["model.h5", "nan.csv"], "nan.csv"),
    "output": (["model.h5", "test.csv", "-o", "nosuch/p.csv"], "directory"),
    "output is a directory": (["model.h5", "test.csv", "-o", "."], "is a directory"),
    "threads": (["model.h5", "test.csv", "--threads", "0"], "--threads 0"),
    "unknown option": (["model.h5", "test.csv", "--colour", "red"], "--colour"),
    "missing argument": (["model.h5"], "DATA"),
}


def refuse(program, prog, arguments, message, inputs, capfd, monkeypatch):
    """One line that says what is wrong, status 2, and nothing that was not there before."""
    monkeypatch.chdir(inputs)
    before = {p: p.read_bytes() for p in inputs.iterdir()}
    with pytest.raises(SystemExit) as ended:
        program(arguments)
    out, err = capfd.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert (err.count("\n"), err[-1]) == (1, "\n")
    assert err.startswith(f"{prog}: ")
    assert message in err
    assert {p: p.read_bytes() for p in inputs.iterdir()} == before
    return err


@pytest.mark.parametrize("what", BAD)
def test_refused(what, inputs, capfd, monkeypatch):
    # Outputs that could be written must not be, either.
    words, message = BAD[what]
    outputs = {"--report": "out.json", "--model": "out.h5"}
    given = [*words, *(word for pair in outputs.items() if pair[0] not in words for word in pair)]
    err = refuse(cli.main, "asygcd", given, message, inputs, capfd, monkeypatch)
    if what == "memory":
        assert len(re.findall(r"[\d.e-]+ GiB", err)) >= 2
    if what == "nan in csv row":
        assert re.search(r"nan\.csv.*(row|line) [456]", err)  # the sixth line, the fifth row, number 4 from 0


@pytest.mark.parametrize("what", BAD_PREDICT)
def test_predict_refused(what, inputs, capfd, monkeypatch):
    words, message = BAD_PREDICT[what]
    given = [*words, "--report", "out.json", *([] if "output" in what else ["-o", "out.csv"])]
    refuse(predict.main, "asygcd.predict", given, message, inputs, capfd, monkeypatch)


def test_model_of_this_family_elsewhere(inputs, capfd, monkeypatch):
    from casvm import predict as other

    message = "model.h5: a model of the asygcd family; svm is needed"
    refuse(other.main, "casvm.predict", ["model.h5", "test.csv", "-o", "out.csv"], message, inputs, capfd, monkeypatch)
