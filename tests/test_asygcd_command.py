"""``python -m asygcd`` and its predictions: a file in; a report, a model, a table out; bad input ends in one line."""

from __future__ import annotations

import bz2
import re
from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import names, near
from helpers.commands import FIELDS, flat, predicted, read, reported, run
from helpers.data import split_rows, write_rare_class
from sklearn.datasets import load_svmlight_file
from sklearn.metrics import balanced_accuracy_score, confusion_matrix

from asygcd import AsyGCDModel, AsyGCDSVC
from casvm import SMOSVC

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
    run("asygcd", words)
    shown, err = capsys.readouterr()
    assert err == ""
    assert "150 training, 40 test, 3 features" in shown
    assert f"asygcd on {inputs}"[:20] in shown
    assert "balanced accuracy" in shown
    assert names(tmp_path) == ["m.h5", "r.json"]

    made = read(tmp_path / "r.json")
    assert set(made) == FIELDS
    assert (made["schema"], made["method"]) == ("cakernels-report/1", "asygcd")
    assert made["data"] == {"path": str(inputs / "three.h5"), "n_train": 150, "n_test": 40, "n_features": 3}
    assert (made["ranks"], made["threads_per_rank"], made["partitions"], made["grid"]) == (1, T, T, [])
    ovo = "ovo" in words
    last_pair = int((split_rows("train", 3)[1] > 0).sum())
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
    X, y = split_rows("test", 3)
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
    words, (X, y), (T, _) = COMMANDS[what][0], split_rows("train", 3), split_rows("test", 3)
    made = reported("asygcd", [inputs / "three.h5", *words, "--tol", "1e-6", "--model", tmp_path / "m.h5"], tmp_path)
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
    near(decisions, model.decision_function(T.astype(dtype)), 1e-3)


def test_threads_and_caches_do_not_matter(inputs, tmp_path):
    found = [
        reported("asygcd", [inputs / "three.h5", "--tol", "1e-6", *words], tmp_path)["solver"]["objective"]
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
    made = reported("asygcd", [*FORMATS[form], "--standardize", "--model", tmp_path / "m.h5"], tmp_path)
    sparse = form == "libsvm"
    assert made["data"] == {"path": FORMATS[form][0], "n_train": 150, "n_test": 40, "n_features": 12 if sparse else 3}
    assert made["metrics"]["accuracy"] > 0.6
    model = AsyGCDModel.load(tmp_path / "m.h5")
    assert model.classes.tolist() == ([-1, 1, 4] if sparse else [-1, 1])
    assert model.classes.dtype == np.int64
    assert sp.issparse(model.X) == sparse
    assert (np.abs(model.standardizer.mean).max() == 0) == sparse
    run("asygcd.predict", [tmp_path / "m.h5", FORMATS[form][2], "-o", tmp_path / "p.csv", "--quiet"])
    got = predicted(tmp_path / "p.csv")
    y = split_rows("test", 3 if sparse else 2)[1]
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
    assert names(tmp_path) == ["m.h5", "p.csv", "r.json"]
    got = predicted(tmp_path / "p.csv")
    made = read(tmp_path / "r.json")
    assert confusion_matrix(split_rows("test")[1], got).tolist() == made["metrics"]["confusion"]


def test_help(capsys):
    for program, words in (
        ("asygcd", ["--update", "--multi-class", "--cache-gib"]),
        ("asygcd.predict", ["--decisions"]),
    ):
        with pytest.raises(SystemExit) as ended:
            run(program, ["--help"])
        out, err = capsys.readouterr()
        assert (ended.value.code or 0, err) == (0, "")
        assert all(word in out for word in words)


@pytest.mark.parametrize(("k", "multi_class"), [(2, "ovr"), (3, "ovr"), (3, "ovo")])
def test_predict(k, multi_class, inputs, tmp_path, capsys):
    """The same accuracy and the same labels as in training."""
    data = inputs / {2: "good.h5", 3: "three.h5"}[k]
    trained = reported("asygcd", [data, "--multi-class", multi_class, "--model", tmp_path / "m.h5"], tmp_path)
    words = [tmp_path / "m.h5", data, "-o", tmp_path / "p.csv", "--decisions"]
    run("asygcd.predict", [*words, "--report", tmp_path / "p.json", "--quiet"])
    made = read(tmp_path / "p.json")
    assert set(made) == FIELDS
    assert (made["method"], made["data"]["n_test"], made["data"]["n_train"]) == ("predict", 40, 0)
    model = AsyGCDModel.load(tmp_path / "m.h5")
    expected = {"model": str(tmp_path / "m.h5"), "method": "asygcd", "C": 1.0, "multi_class": multi_class}
    assert (made["params"], made["partition_sizes"]) == (expected, [len(model.rows)])
    assert made["metrics"] == trained["metrics"]
    lines = [line.split(",") for line in (tmp_path / "p.csv").read_text().splitlines()]
    assert lines[0] == ["prediction", *(["decision"] if k == 2 else ["decision -1", "decision 1", "decision 4"])]
    table = np.array(lines[1:], float)
    X, y = split_rows("test", k)
    np.testing.assert_array_equal(table[:, 0], model.predict(X))
    np.testing.assert_array_equal(table[:, 1:], model.decision_function(X).reshape(40, -1))
    assert lines[1][0] in ("-1", "1", "4")  # as the labels are, not as 1.0
    assert confusion_matrix(y, table[:, 0]).tolist() == trained["metrics"]["confusion"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["features.csv", "test.csv", "rest.h5"])
def test_predict_formats(name, inputs, tmp_path):
    """Rows with or without their label; without --decisions one column."""
    run("asygcd.predict", [inputs / "asygcd.h5", inputs / name, "-o", tmp_path / "p.csv", "--quiet"])
    assert (tmp_path / "p.csv").read_text().startswith("prediction\n")
    expected = AsyGCDModel.load(inputs / "asygcd.h5").predict(split_rows("test")[0])
    np.testing.assert_array_equal(predicted(tmp_path / "p.csv"), expected)


def test_predict_says_how_to_keep(inputs, capsys):
    run("asygcd.predict", [inputs / "asygcd.h5", inputs / "good.h5"])
    shown = capsys.readouterr().out
    assert "give -o OUT.csv" in shown
    assert "balanced accuracy" in shown


def test_predict_on_two_ranks(mpiexec, inputs, tmp_path):
    """The same file as on none."""
    run("asygcd", [inputs / "three.h5", "--model", tmp_path / "m.h5", "--quiet"])
    words = [tmp_path / "m.h5", inputs / "three.h5", "--decisions"]
    run("asygcd.predict", [*words, "--quiet", "-o", tmp_path / "one.csv", "--report", tmp_path / "one.json"])
    out = ["-o", tmp_path / "two.csv", "--report", tmp_path / "two.json"]
    done = mpiexec(2, "-W", "error", "-m", "asygcd.predict", *words, *out)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("predict on") == 1
    assert (tmp_path / "two.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()
    one, two = (read(tmp_path / f"{name}.json") for name in ("one", "two"))
    assert (one["ranks"], two["ranks"]) == (1, 2)
    assert (one["metrics"], one["data"]) == (two["metrics"], two["data"])


def test_two_ranks_are_refused(mpiexec, inputs, tmp_path):
    done = mpiexec(2, "-m", "asygcd", inputs / "good.h5", "--model", "m.h5", "--report", "r.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("asygcd: ")
    assert "2 ranks: start it without mpiexec, or use python -m casvm.casvm --solver asygcd" in line
    assert names(tmp_path) == []


def test_labels_that_were_not_trained(inputs, tmp_path):
    """Test rows of a class that the training rows lack are mistakes, and have a line of the confusion matrix."""
    made = reported("asygcd", [inputs / "new.h5", "--model", tmp_path / "m.h5"], tmp_path)["metrics"]
    X, y = split_rows("test")
    y[:8] = 9
    got = AsyGCDModel.load(tmp_path / "m.h5").predict(X)
    assert made["confusion"] == confusion_matrix(y, got, labels=[-1, 1, 9]).tolist()


def test_broken_labels(inputs, tmp_path):
    """Labels that are not whole are labels all the same."""
    reported("asygcd", [inputs / "halves.h5", "--model", tmp_path / "m.h5"], tmp_path)
    assert AsyGCDModel.load(tmp_path / "m.h5").classes.tolist() == [-0.5, 0.5]
    run("asygcd.predict", [tmp_path / "m.h5", inputs / "features.csv", "-o", tmp_path / "p.csv", "--quiet"])
    assert set((tmp_path / "p.csv").read_text().split()) == {"prediction", "-0.5", "0.5"}


def test_balanced(tmp_path):
    """A rare class among the other's rows is found more often, at the price of the other."""
    write_rare_class(tmp_path / "in.h5")
    plain, balanced = (reported("asygcd", [tmp_path / "in.h5", *words], tmp_path) for words in ([], ["--balanced"]))
    assert (plain["params"]["balanced"], balanced["params"]["balanced"]) == (False, True)
    assert balanced["metrics"]["balanced_accuracy"] > plain["metrics"]["balanced_accuracy"] + 0.1


def test_limits_are_noted(inputs, tmp_path, capsys):
    words = [inputs / "good.h5", "--threads", "1", "--report", tmp_path / "r.json"]
    run("asygcd", [*words, "--max-iter", "7"])
    made = read(tmp_path / "r.json")
    assert made["solver"]["iterations"] == [7]
    gap = made["solver"]["gap"][0]
    said = f"the solver stopped after 7 updates at a violation of {gap:.3g}, above the tolerance: raise"
    assert said in flat(capsys.readouterr().out)
    # What does not end by itself.
    run("asygcd", [*words, "--kernel", "polynomial", "--gamma", "1e3", "--tol", "1e-9", "--max-time", "0.05"])
    assert "stopped after" in flat(capsys.readouterr().out)
    run("asygcd", [inputs / "three.h5", "--max-iter", "1", "--quiet"])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("T", [1, 2])
def test_notes_and_threads(T, inputs, capsys):
    run("asygcd", [inputs / "three.h5", "--threads", T, "--verbose"])
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
    run("asygcd", [inputs / "good.h5", "--quiet"])
    assert capsys.readouterr() == ("", "")
    run("asygcd", [inputs / "good.h5"])
    out = capsys.readouterr().out
    assert "thread 0" not in out
    assert "no test rows" not in out
    run("asygcd", [inputs / "train.h5"])
    assert "no test rows: give --test" in flat(capsys.readouterr().out)


def test_real_rows(data, tmp_path):
    """ijcnn1's first rows: as good as the exact solver's with its bias, and those of one thread."""
    with bz2.open(data / "ijcnn1.bz2", "rt") as file:
        (tmp_path / "train").write_text("".join(islice(file, 3000)))
        (tmp_path / "test").write_text("".join(islice(file, 1500)))
    words = [tmp_path / "train", "--test", tmp_path / "test", "--allow-overlap", "--gamma", "2", "--C", "8"]
    made = reported("asygcd", [*words, "--threads", "2", "--model", tmp_path / "m.h5"], tmp_path)
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
    "no data": (["asygcd.h5", "nosuch.csv"], "nosuch.csv: no such file"),
    "truncated data": (["asygcd.h5", "truncated.h5"], "truncated.h5"),
    "features": (["asygcd.h5", "wide.h5"], "6 features, the model asygcd.h5 has 3"),
    "nan": (["asygcd.h5", "nan.csv"], "nan.csv"),
    "output": (["asygcd.h5", "test.csv", "-o", "nosuch/p.csv"], "directory"),
    "output is a directory": (["asygcd.h5", "test.csv", "-o", "."], "is a directory"),
    "threads": (["asygcd.h5", "test.csv", "--threads", "0"], "--threads 0"),
    "unknown option": (["asygcd.h5", "test.csv", "--colour", "red"], "--colour"),
    "missing argument": (["asygcd.h5"], "DATA"),
}


@pytest.mark.parametrize("what", BAD)
def test_refused(what, inputs, refuses):
    # Outputs that could be written must not be, either.
    words, message = BAD[what]
    outputs = {"--report": "out.json", "--model": "out.h5"}
    out = [word for pair in outputs.items() if pair[0] not in words for word in pair]
    line = refuses("asygcd", [*words, *out], message, inputs)
    if what == "memory":
        assert len(re.findall(r"[\d.e-]+ GiB", line)) >= 2
    if what == "nan in csv row":
        assert re.search(r"nan\.csv.*(row|line) [456]", line)  # the sixth line, the fifth row, number 4 from 0


@pytest.mark.parametrize("what", BAD_PREDICT)
def test_predict_refused(what, inputs, refuses):
    words, message = BAD_PREDICT[what]
    out = ["--report", "out.json", *([] if "output" in what else ["-o", "out.csv"])]
    refuses("asygcd.predict", [*words, *out], message, inputs)


def test_model_of_this_family_elsewhere(inputs, refuses):
    message = "asygcd.h5: a model of the asygcd family; svm is needed"
    refuses("casvm.predict", ["asygcd.h5", "test.csv", "-o", "out.csv"], message, inputs)
