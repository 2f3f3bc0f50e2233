"""``python -m asygcd`` and its predictions: a file in; a report, a model, a table out; bad input ends in one line."""

from __future__ import annotations

import bz2
import re
from itertools import islice

import numpy as np
import pytest
from helpers.checks import names, near
from helpers.commands import check_metrics, check_report, flat, predicted, read, reported, run
from helpers.data import split_rows
from sklearn.datasets import load_svmlight_file
from sklearn.metrics import confusion_matrix

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
    check_report(made, "asygcd", inputs / "three.h5")
    assert (made["threads_per_rank"], made["partitions"], made["grid"]) == (T, T, [])
    ovo = "ovo" in words
    last_pair = int((split_rows("train", 3)[1] > 0).sum())
    assert sum(made["partition_sizes"]) == (last_pair if ovo else 150)
    params = made["params"]
    assert set(params) == PARAMS | more
    assert params["update"] == (what if what in ("atomic", "stochastic") else "owned")
    assert params["multi_class"] == ("ovo" if ovo else "ovr")
    assert params["balanced"] == ovo
    assert params["standardize"] == (what == "atomic")
    assert params["dtype"] == ("float32" if what == "single" else "float64")
    assert (params["seed"], params["tol"], params["cache_gib"]) == (5, 1e-3, 1.0)

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
    labels = model.predict(X.astype(model.dtype))
    assert labels.dtype == np.int64
    check_metrics(made["metrics"], y, labels)
    assert made["metrics"]["accuracy"] > (0.45 if what == "stochastic" else 0.6)  # a linear kernel, and no bias


@pytest.mark.parametrize("what", COMMANDS)
def test_is_the_estimator(what, inputs, tmp_path):
    """The command gives the same model as the estimator with the same options."""
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


def test_as_a_program(python, inputs, tmp_path):
    """Training and prediction as a user starts them."""
    done = python("-W", "error", "-m", "asygcd", inputs / "good.h5", "--threads", "2", "--model", "m.h5", "--report",
                  "r.json", cwd=tmp_path)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "150 training, 40 test, 3 features" in flat(done.stdout)
    assert "1 rank of 2 threads" in flat(done.stdout)
    done = python("-W", "error", "-m", "asygcd.predict", "m.h5", inputs / "good.h5", "-o", "p.csv", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "predict on" in done.stdout
    assert names(tmp_path) == ["m.h5", "p.csv", "r.json"]
    got = predicted(tmp_path / "p.csv")
    made = read(tmp_path / "r.json")
    assert confusion_matrix(split_rows("test")[1], got).tolist() == made["metrics"]["confusion"]


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
    "nan in csv row": (["nan.csv", "--gaps", "refuse"], "nan"),
    "cache small": (["good.h5", "--cache-gib", "1e-6"], "a cache of 1,073 bytes does not hold two columns of 150"),
    "cache 0": (["good.h5", "--cache-gib", "0"], "a cache of 0 bytes does not hold two columns of 150"),
    "memory": (["good.h5", "--memory-limit", "1e-5"], "GiB"),
    "update": (["good.h5", "--update", "locked"], "--update"),
    "multi-class": (["good.h5", "--multi-class", "all"], "--multi-class"),
    "option of casvm": (["good.h5", "--partitions", "3"], "--partitions"),
    "shortened option": (["good.h5", "--multi", "ovo"], "--multi"),
}  # fmt: skip


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
