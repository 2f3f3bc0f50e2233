"""The command lines: a file in, a report, a model and predictions out; bad input ends in one line."""

from __future__ import annotations

import json
import shutil

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from cakrr.cli import main
from sklearn.datasets import dump_svmlight_file

from cakrr import KRRModel, bkrr2, predict

SIZE = {"train": 120, "test": 30}


def rows(split="train", d=3):
    rng = np.random.default_rng(len(split))
    X = rng.normal(size=(SIZE[split], d))
    return X, 100 + np.sin(X).sum(axis=1)


def write_hdf5(path, splits=("train", "test"), d=3):
    with h5py.File(path, "w") as file:
        for split in splits:
            file[f"{split}/X"], file[f"{split}/y"] = rows(split, d)


def write_csv(path, split="train", d=3, target=True):
    X, y = rows(split, d)
    table = np.column_stack([X, y]) if target else X
    names = [f"x{j}" for j in range(d)] + ["price"] * target
    np.savetxt(path, table, delimiter=",", header=",".join(names), comments="", fmt="%.17g")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """One folder with the same rows in three formats, and everything that is wrong."""
    folder = tmp_path_factory.mktemp("inputs")
    write_hdf5(folder / "good.h5")
    for split in SIZE:
        write_csv(folder / f"{split}.csv", split)
        dump_svmlight_file(sp.csr_matrix(rows(split)[0]), rows(split)[1], str(folder / split), zero_based=False)
    write_csv(folder / "features.csv", "test", target=False)
    write_csv(folder / "wide.csv", "test", d=5)
    whole = (folder / "good.h5").read_bytes()
    (folder / "truncated.h5").write_bytes(whole[: len(whole) // 2])
    (folder / "token").write_text("1 1:0.5 2:1\n2 1:0.5 2;3\n")
    (folder / "text.csv").write_text("a,b\n1,2\n3,x\n")
    (folder / "empty.csv").write_text("")
    shutil.copy(folder / "good.h5", folder / "nan.h5")
    with h5py.File(folder / "nan.h5", "a") as file:
        file["train/X"][7, 2] = np.nan
    shutil.copy(folder / "good.h5", folder / "overlap.h5")
    with h5py.File(folder / "overlap.h5", "a") as file:
        file["test/X"][4], file["test/y"][4] = file["train/X"][9], file["train/y"][9]
    with h5py.File(folder / "no-target.h5", "w") as file:
        file["train/X"] = rows()[0]
    main(bkrr2.METHOD, [str(folder / "good.h5"), "--sigma", "2", "--model", str(folder / "model.h5"), "--quiet"])
    return folder


# -- what works --------------------------------------------------------------------------------

FORMATS = {
    "hdf5": ["good.h5"],
    "csv": ["train.csv", "--test", "test.csv", "--target", "price"],
    "libsvm": ["train", "--test", "test"],
}
FIELDS = {"schema", "method", "command", "data", "ranks", "threads_per_rank", "partitions", "partition_sizes", "params",
          "grid", "metrics", "seconds", "comm", "solver", "memory", "environment"}  # fmt: skip
PHASES = {"read", "partition", "train", "predict"}


@pytest.mark.parametrize("method", ["bkrr2", "kkrr2", "dckrr"])
def test_report(method, python, inputs, tmp_path):
    """As a user starts it; each method on one of the formats."""
    form = dict(zip(("bkrr2", "kkrr2", "dckrr"), FORMATS, strict=True))[method]
    files = [str(inputs / word) if (inputs / word).exists() else word for word in FORMATS[form]]
    options = ["--partitions", "3", "--seed", "5", "--threads", "2", "--sigma", "0.5:2:3", "--lambda", "1e-6,1e-3"]
    out = ["--report", "r.json", "--model", "m.h5"]
    done = python("-W", "error", "-m", f"cakrr.{method}", *files, *options, *out, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "120 training, 30 test" in done.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.h5", "r.json"]

    made = json.loads((tmp_path / "r.json").read_text())
    assert set(made) == FIELDS
    assert (made["schema"], made["method"]) == ("cakernels-report/1", method)
    assert made["data"] == {"path": files[0], "n_train": 120, "n_test": 30, "n_features": 3}
    assert made["command"][1:] == [*files, *options, *out]
    assert (made["ranks"], made["threads_per_rank"], made["partitions"]) == (1, 2, 3)
    assert (len(made["partition_sizes"]), sum(made["partition_sizes"])) == (3, 120)
    pairs = [(sigma, lam) for sigma in (0.5, 1.0, 2.0) for lam in (1e-6, 1e-3)]
    np.testing.assert_allclose([(g["sigma"], g["lambda"]) for g in made["grid"]], pairs, rtol=1e-12)
    best = min(made["grid"], key=lambda g: g["validation_mse"])
    assert (made["params"]["sigma"], made["params"]["lambda"]) == (best["sigma"], best["lambda"])
    assert all(g["test_mse"] is None for g in made["grid"])
    assert set(made["comm"]) >= PHASES
    assert all(made["comm"][p] == {"bytes": 0, "messages": 0, "seconds": 0} for p in PHASES)
    assert set(made["seconds"]) >= PHASES | {"total"}
    assert made["seconds"]["total"] >= made["seconds"]["train"] > 0
    assert set(made["solver"]) == {
        "iterations", "n_support", "objective", "gap", "seconds", "busy_seconds", "imbalance"
    }  # fmt: skip
    assert made["solver"]["imbalance"] == 1.0
    assert len(made["solver"]["seconds"]) == 3
    assert len(made["memory"]["peak_rss_mib"]) == 1
    assert set(made["environment"]) == {"python", "mpi", "numpy", "blas", "cpu", "package"}

    X, y = rows("test")
    gap = KRRModel.load(tmp_path / "m.h5").predict(X) - y
    assert made["metrics"]["mse"] == pytest.approx(np.mean(gap**2), rel=1e-6)  # LIBSVM files round
    assert made["metrics"]["rmse"] == pytest.approx(np.sqrt(made["metrics"]["mse"]))
    assert made["metrics"]["r2"] == pytest.approx(1 - np.mean(gap**2) / y.var(), abs=1e-6)


def test_predict(python, inputs, tmp_path):
    done = python("-m", "cakrr.predict", inputs / "model.h5", inputs / "good.h5", "-o", "p.csv", "--report", "r.json",
                  cwd=tmp_path)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    X, y = rows("test")
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "prediction"
    expected = KRRModel.load(inputs / "model.h5").predict(X)
    np.testing.assert_array_equal(np.array(lines[1:], float), expected)
    made = json.loads((tmp_path / "r.json").read_text())
    assert (made["method"], made["data"]["n_test"]) == ("predict", 30)
    assert made["metrics"]["mse"] == pytest.approx(np.mean((expected - y) ** 2))


@pytest.mark.parametrize("name", ["features.csv", "test.csv", "test"])
def test_predict_formats(name, inputs, tmp_path, capsys):
    """Rows with or without their target, of any format."""
    predict.main([str(inputs / "model.h5"), str(inputs / name), "-o", str(tmp_path / "p.csv"), "--quiet"])
    got = np.loadtxt(tmp_path / "p.csv", skiprows=1)
    np.testing.assert_allclose(got, KRRModel.load(inputs / "model.h5").predict(rows("test")[0]), rtol=1e-12)
    assert capsys.readouterr() == ("", "")


def run(arguments, capsys):
    """Report of ``cakrr.bkrr2``, in this process."""
    main(bkrr2.METHOD, arguments)
    return capsys.readouterr().out


def test_notes(inputs, capsys):
    data = [str(inputs / "good.h5"), "--partitions", "3", "--sigma", "1,2"]
    assert "chosen by the test error" in " ".join(run([*data, "--select", "test"], capsys).split())
    assert run([*data, "--quiet"], capsys) == ""
    shown = run([*data, "--verbose"], capsys)
    assert shown.count("mse") >= 10
    assert shown.count("part 2:") == 1
    assert "no test rows" in run([str(inputs / "train.csv"), "--sigma", "1", "--lambda", "1e-3"], capsys)


def test_overlap_on_request(inputs, capsys):
    run([str(inputs / "overlap.h5"), "--sigma", "1", "--lambda", "1e-3", "--allow-overlap"], capsys)


def test_real_file(data, capsys, tmp_path):
    """MG as it is: half of the spread is explained (measured: 0.7)."""
    lines = (data / "mg_scale").read_text().splitlines(keepends=True)
    (tmp_path / "train").write_text("".join(lines[::2]))
    (tmp_path / "test").write_text("".join(lines[1::2]))
    options = ["--partitions", "4", "--sigma", "1,2", "--lambda", "1e-3", "--report", str(tmp_path / "r.json")]
    run([str(tmp_path / "train"), "--test", str(tmp_path / "test"), "--allow-overlap", *options], capsys)
    assert json.loads((tmp_path / "r.json").read_text())["metrics"]["r2"] > 0.5


# -- what is refused: arguments, and what the line on stderr must say ---------------------------

BAD = {
    "missing file": (["nosuch.h5"], "nosuch.h5: no such file"),
    "directory": (["."], "cannot be read"),
    "truncated": (["truncated.h5"], "truncated.h5"),
    "token": (["token"], "token: line 2: '2;3'"),
    "not a number": (["text.csv"], "line 3"),
    "empty": (["empty.csv"], "empty.csv: the file is empty"),
    "nan": (["nan.h5"], "row 7, feature 2 is nan"),
    "no target": (["no-target.h5"], "no target"),
    "partitions": (["good.h5", "--partitions", "121"], "121 parts of 120 rows"),
    "no partitions": (["good.h5", "--partitions", "0"], "--partitions 0"),
    "partitions text": (["good.h5", "--partitions", "two"], "--partitions"),
    "sigma 0": (["good.h5", "--sigma", "0"], "--sigma 0"),
    "sigma text": (["good.h5", "--sigma", "abc"], "--sigma abc"),
    "sigma range": (["good.h5", "--sigma", "1:2"], "--sigma 1:2"),
    "lambda": (["good.h5", "--lambda", "-1"], "--lambda -1"),
    "lambda nan": (["good.h5", "--lambda", "nan"], "--lambda nan"),
    "target": (["train.csv", "--target", "nosuch"], "no target column 'nosuch'"),
    "test features": (["train.csv", "--test", "wide.csv"], "5 features, and 3"),
    "two tests": (["good.h5", "--test", "test.csv"], "drop --test"),
    "overlap": (["overlap.h5"], "1 of 30 test rows"),
    "memory": (["good.h5", "--partitions", "1", "--memory-limit", "0.0001"], "--partitions"),
    "memory 0": (["good.h5", "--memory-limit", "0"], "--memory-limit 0"),
    "threads": (["good.h5", "--threads", "0"], "--threads 0"),
    "seed": (["good.h5", "--seed", "-1"], "--seed -1"),
    "fraction": (["good.h5", "--validation-fraction", "2"], "fraction 2"),
    "select": (["train.csv", "--select", "test"], "no test rows"),
    "report": (["good.h5", "--report", "nosuch/r.json"], "directory"),
    "model": (["good.h5", "--model", "nosuch/m.h5"], "directory"),
    "model is a directory": (["good.h5", "--model", "."], "is a directory"),
    "unknown option": (["good.h5", "--colour", "red"], "--colour"),
    "shortened option": (["good.h5", "--part", "3"], "--part"),
    "no file": ([], "DATA"),
}
BAD_PREDICT = {
    "no model": (["nosuch.h5", "test.csv"], "nosuch.h5: no such model"),
    "not a model": (["good.h5", "test.csv"], "good.h5: not a model"),
    "not hdf5": (["train.csv", "test.csv"], "train.csv: not a model"),
    "truncated model": (["truncated.h5", "test.csv"], "truncated.h5: not a model"),
    "no data": (["model.h5", "nosuch.csv"], "nosuch.csv: no such file"),
    "features": (["model.h5", "wide.csv"], "5 features, the model model.h5 has 3"),
    "output": (["model.h5", "test.csv", "-o", "nosuch/p.csv"], "directory"),
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
    # An output that could be written must not be, either.
    given = [*BAD[what][0], *([] if "report" in what else ["--report", "out.json"])]
    refuse(lambda words: main(bkrr2.METHOD, words), given, BAD[what][1], inputs, capfd, monkeypatch)


@pytest.mark.parametrize("what", BAD_PREDICT)
def test_predict_refused(what, inputs, capfd, monkeypatch):
    given = [*BAD_PREDICT[what][0], "--report", "out.json"]
    refuse(predict.main, given, BAD_PREDICT[what][1], inputs, capfd, monkeypatch)


@pytest.mark.parametrize(
    ("module", "arguments"), [("bkrr2", ["nan.h5"]), ("predict", ["good.h5", "test.csv"])], ids=["train", "predict"]
)
def test_refused_as_a_program(module, arguments, python, inputs):
    done = python("-m", f"cakrr.{module}", *arguments, cwd=inputs)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert done.stderr.startswith(f"cakrr.{module}: {arguments[0]}")
