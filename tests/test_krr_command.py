"""The commands of kernel ridge regression in parts: a file in, a report, a model and predictions out."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from helpers.checks import names
from helpers.commands import check_report, flat, predicted, read, reported, run
from helpers.data import changed, write_csv, write_hdf5, write_libsvm

from cacore.io.words import number
from cakrr import KRRModel

SIZE = {"train": 120, "test": 30}


def rows(split="train", d=3):
    X = np.random.default_rng(len(split)).normal(size=(SIZE[split], d))
    return X, 100 + np.sin(X).sum(axis=1)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """The same rows in three formats, and what is wrong with some."""
    folder = tmp_path_factory.mktemp("inputs")
    write_hdf5(folder / "good.h5", **{split: rows(split) for split in SIZE})
    for split in SIZE:
        write_csv(folder / f"{split}.csv", *rows(split), target="price")
        write_libsvm(folder / split, *rows(split))
    write_csv(folder / "features.csv", rows("test")[0])
    write_csv(folder / "wide.csv", *rows("test", 5), target="price")
    (folder / "text.csv").write_text("a,b\n1,2\n3,x\n")
    changed(folder / "overlap.h5", folder / "good.h5", "test/X", 4, rows()[0][9])
    with h5py.File(folder / "overlap.h5", "a") as file:
        file["test/y"][4] = file["train/y"][9]
    run("cakrr.bkrr2", [folder / "good.h5", "--sigma", "2", "--model", folder / "model.h5", "--quiet"])
    return folder


# -- what works --------------------------------------------------------------------------------

FORMATS = {
    "hdf5": ["good.h5"],
    "csv": ["train.csv", "--test", "test.csv", "--target", "price"],
    "libsvm": ["train", "--test", "test"],
}


@pytest.mark.parametrize("method", ["bkrr2", "kkrr2", "dckrr"])
def test_report(method, python, inputs, tmp_path):
    """Report of the command as a user starts it; each method reads one of the formats."""
    form = dict(zip(("bkrr2", "kkrr2", "dckrr"), FORMATS, strict=True))[method]
    files = [str(inputs / word) if (inputs / word).exists() else word for word in FORMATS[form]]
    options = ["--partitions", "3", "--seed", "5", "--threads", "2", "--sigma", "0.5:2:3", "--lambda", "1e-6,1e-3"]
    out = ["--report", "r.json", "--model", "m.h5"]
    done = python("-W", "error", "-m", f"cakrr.{method}", *files, *options, *out, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "120 training, 30 test" in done.stdout
    assert names(tmp_path) == ["m.h5", "r.json"]

    made = read(tmp_path / "r.json")
    check_report(made, f"cakrr.{method}", files[0], (120, 30, 3))
    assert made["command"][1:] == [*files, *options, *out]
    assert (made["threads_per_rank"], made["partitions"], sum(made["partition_sizes"])) == (2, 3, 120)
    pairs = [(sigma, lam) for sigma in (0.5, 1.0, 2.0) for lam in (1e-6, 1e-3)]
    np.testing.assert_allclose([(g["sigma"], g["lambda"]) for g in made["grid"]], pairs, rtol=1e-12)
    best = min(made["grid"], key=lambda g: g["validation_mse"])
    assert (made["params"]["sigma"], made["params"]["lambda"]) == (best["sigma"], best["lambda"])
    assert all(g["test_mse"] is None for g in made["grid"])
    assert set(made["solver"]) == {
        "iterations", "n_support", "objective", "gap", "seconds", "busy_seconds", "imbalance"
    }  # fmt: skip
    assert made["solver"]["imbalance"] == 1.0
    assert len(made["solver"]["seconds"]) == 3

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
    assert (tmp_path / "p.csv").read_text().startswith("prediction\n")
    expected = KRRModel.load(inputs / "model.h5").predict(X)
    np.testing.assert_array_equal(predicted(tmp_path / "p.csv"), expected)
    made = read(tmp_path / "r.json")
    assert (made["method"], made["data"]["n_test"]) == ("predict", 30)
    assert made["metrics"]["mse"] == pytest.approx(np.mean((expected - y) ** 2))


@pytest.mark.parametrize("name", ["features.csv", "test.csv", "test"])
def test_predict_formats(name, inputs, tmp_path, capsys):
    """Rows with or without their target, of any format."""
    run("cakrr.predict", [inputs / "model.h5", inputs / name, "-o", tmp_path / "p.csv", "--quiet"])
    expected = KRRModel.load(inputs / "model.h5").predict(rows("test")[0])
    np.testing.assert_allclose(predicted(tmp_path / "p.csv"), expected, rtol=1e-12)
    assert capsys.readouterr() == ("", "")


def test_a_model_knows_its_target_column(tmp_path):
    """Rows with the target where it was, and rows without one, get the same answers."""
    X, y = rows()
    with_target, without = tmp_path / "a.csv", tmp_path / "b.csv"
    np.savetxt(with_target, np.column_stack([y, X]), delimiter=",")
    np.savetxt(without, X, delimiter=",")
    words = [with_target, "--target", "0", "--sigma", "1", "--lambda", "1e-4", "--quiet"]
    run("cakrr.bkrr2", [*words, "--model", tmp_path / "m.h5"])
    for data in (with_target, without):
        run("cakrr.predict", [tmp_path / "m.h5", data, "--quiet", "-o", data.with_suffix(".out")])
    assert (tmp_path / "a.out").read_text() == (tmp_path / "b.out").read_text()


def test_notes(inputs, capsys):
    def shown(*words):
        run("cakrr.bkrr2", [inputs / "good.h5", "--partitions", "3", "--sigma", "1,2", *words])
        return capsys.readouterr().out

    assert "chosen by the test error" in flat(shown("--select", "test"))
    assert shown("--quiet") == ""
    verbose = shown("--verbose")
    assert verbose.count("mse") >= 10
    assert verbose.count("part 2:") == 1
    assert "mean squared error on rows held out, 10 settings" in flat(verbose)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("bkrr2", ["--per-part"]),
        ("dkrr", ["--kernel", "linear"]),
        ("twolevel", ["--sigma", "2", "--lambda", "1e-3", "--centers", "20"]),
    ],
)
def test_a_picture_of_the_settings(method, words, inputs, tmp_path, capsys):
    """A plot of the settings, also for default grids, and for those of a coarse model."""
    pytest.importorskip("matplotlib")
    run(f"cakrr.{method}", [inputs / "good.h5", *words, "--plot", tmp_path / "p.png", "--report", tmp_path / "r.json"])
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    best = min(row["validation_mse"] for row in read(tmp_path / "r.json")["grid"])
    assert number(best, 4) in flat(capsys.readouterr().out)


def test_overlap_on_request(inputs):
    run("cakrr.bkrr2", [inputs / "overlap.h5", "--sigma", "1", "--lambda", "1e-3", "--allow-overlap"])


def test_real_file(data, tmp_path):
    """MG as it is: half of the spread is explained (measured: 0.7)."""
    lines = (data / "mg_scale").read_text().splitlines(keepends=True)
    (tmp_path / "train").write_text("".join(lines[::2]))
    (tmp_path / "test").write_text("".join(lines[1::2]))
    options = ["--partitions", "4", "--sigma", "1,2", "--lambda", "1e-3", "--allow-overlap"]
    made = reported("cakrr.bkrr2", [tmp_path / "train", "--test", tmp_path / "test", *options], tmp_path)
    assert made["metrics"]["r2"] > 0.5


# -- what is refused: arguments, and what the line on stderr must say ---------------------------

BAD = {
    "not a number": (["text.csv"], "line 3"),
    "partitions": (["good.h5", "--partitions", "121"], "121 parts of 120 rows"),
    "no partitions": (["good.h5", "--partitions", "0"], "--partitions 0"),
    "partitions text": (["good.h5", "--partitions", "two"], "--partitions"),
    "sigma 0": (["good.h5", "--sigma", "0"], "--sigma 0"),
    "sigma text": (["good.h5", "--sigma", "abc"], "--sigma abc"),
    "sigma range": (["good.h5", "--sigma", "1:2"], "--sigma 1:2"),
    "lambda": (["good.h5", "--lambda", "-1"], "--lambda -1"),
    "lambda nan": (["good.h5", "--lambda", "nan"], "--lambda nan"),
    "test features": (["train.csv", "--test", "wide.csv"], "wide.csv: columns d, e, which train.csv does not have"),
    "overlap": (["overlap.h5", "--strict"], "1 of 30 test rows"),
    "memory": (["good.h5", "--partitions", "1", "--memory-limit", "0.0001"], "--partitions"),
    "memory negative": (["good.h5", "--memory-limit", "-1"], "--memory-limit -1"),
    "fraction": (["good.h5", "--validation-fraction", "2"], "fraction 2"),
    "select": (["train.csv", "--select", "test"], "no test rows"),
    "target of LIBSVM rows": (["train", "--target", "0"], "--target 0"),
    "shortened option": (["good.h5", "--part", "3"], "--part"),
}


@pytest.mark.parametrize("what", BAD)
def test_refused(what, inputs, refuses):
    # An output that could be written must not be, either.
    words, message = BAD[what]
    refuses("cakrr.bkrr2", [*words, "--report", "out.json", "--model", "out.h5"], message, inputs)


def test_predict_refused(inputs, refuses):
    message = "5 features, the model model.h5 has 3"
    refuses("cakrr.predict", ["model.h5", "wide.csv", "--report", "out.json"], message, inputs)


@pytest.mark.parametrize(
    ("module", "arguments"), [("bkrr2", ["text.csv"]), ("predict", ["good.h5", "test.csv"])], ids=["train", "predict"]
)
def test_refused_as_a_program(module, arguments, python, inputs):
    done = python("-m", f"cakrr.{module}", *arguments, cwd=inputs)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert done.stderr.startswith(f"cakrr.{module}: {arguments[0]}")
