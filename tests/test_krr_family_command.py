"""The command lines of the whole family, their refusals, and runs that are killed and go on from their checkpoint."""

from __future__ import annotations

import gc
import shutil

import h5py
import numpy as np
import pytest
from helpers.checks import inodes, names, scalapack_is_missing
from helpers.commands import check_report, flat, read, reported, run
from helpers.data import write_hdf5

from cakrr import KRRModel

needs_library = pytest.mark.skipif(scalapack_is_missing(), reason="no ScaLAPACK: the mkl package is not installed")


def write(path, n=120, seed=0):
    """Training and test rows of a smooth function with noise."""
    rng, splits = np.random.default_rng(seed), {}
    for split, count in (("train", n), ("test", 30)):
        X = rng.normal(size=(count, 3))
        splits[split] = X, 100 + np.sin(2 * X).sum(axis=1) + 0.1 * rng.normal(size=count)
    write_hdf5(path, **splits)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Rows, other rows, and a checkpoint of three parts."""
    folder = tmp_path_factory.mktemp("family")
    write(folder / "good.h5")
    write(folder / "other.h5", seed=1)
    (folder / "file").write_text("not a directory\n")
    run("cakrr.bkrr2", [folder / "good.h5", *PAIR, "--partitions", "3", "--quiet", "--checkpoint", folder / "kept"])
    for copy, size in (("cut", 100), ("empty", 0)):
        shutil.copytree(folder / "kept", folder / copy)
        piece = folder / copy / "part-000001.npz"
        piece.write_bytes(piece.read_bytes()[:size])
    (folder / "full").mkdir()
    (folder / "full" / "thesis.tex").write_text("not a checkpoint\n")
    return folder


# -- what works --------------------------------------------------------------------------------

PAIR = ["--sigma", "1.5", "--lambda", "1e-3"]
PARAMS = {"sigma", "lambda", "kernel", "route", "select", "scaling", "standardize", "dtype", "seed"}
COARSE = {"centers", "coarse_sigma", "coarse_lambda"}
COMMANDS = {
    "kkrr": [],
    "bkrr": ["--select", "test"],
    "kkrr3": [],
    "bkrr3": ["--dtype", "float32"],
    "twolevel": ["--centers", "10,20", "--coarse-sigma", "1,3", "--coarse-lambda", "1e-4"],
    "dkrr": [],
}


@pytest.mark.parametrize("method", COMMANDS)
def test_report(method, inputs, tmp_path, monkeypatch, capfd):
    """Report of the command without MPI; test_krr_command.py has commands as a user starts them."""
    oracle, whole = method.endswith("3"), method == "dkrr"
    words = ["--sigma", "0.5,1.5", "--lambda", "1e-3,1e-1", "--threads", "1", *COMMANDS[method], "--report", "r.json"]
    words += ([] if whole else ["--partitions", "3"]) + ([] if oracle else ["--model", "m.h5"])
    monkeypatch.chdir(tmp_path)
    run(f"cakrr.{method}", [inputs / "good.h5", *words])
    out, err = capfd.readouterr()
    assert err == ""
    assert names(tmp_path) == ["m.h5"] * (not oracle) + ["r.json"]
    made = read(tmp_path / "r.json")
    check_report(made, f"cakrr.{method}", inputs / "good.h5", (120, 30, 3))
    assert (made["partitions"], sum(made["partition_sizes"])) == (1 if whole else 3, 120)
    params, more = made["params"], {"oracle"} if oracle else set()
    if method == "twolevel":
        more = {*COARSE, "soft_k", "soft_t"}
        candidates = {(row["centers"], row["coarse_sigma"], row["coarse_lambda"]) for row in made["grid"]}
        assert candidates == {(M, sigma, 1e-4) for M in (10, 20) for sigma in (1.0, 3.0)}
    own = set() if oracle or whole else {"divisions"} | ({"refine"} if method == "twolevel" else {"cv", "per_part"})
    own |= set() if oracle else {"calibrate"}
    assert set(params) == PARAMS | more | own
    column = "test_mse" if "--select" in words else "validation_mse"
    best = min(made["grid"], key=lambda row: row[column])
    assert len(made["grid"]) == (16 if method == "twolevel" else 4)
    assert {name: params[name] for name in best if not name.endswith("_mse")} == {
        name: value for name, value in best.items() if not name.endswith("_mse")
    }
    assert ("oracle" in out) == oracle
    assert ("residual" in made["solver"]) == (params["dtype"] == "float32")
    with h5py.File(inputs / "good.h5") as file:
        X, y = file["test/X"][:], file["test/y"][:]
    if oracle:
        assert params["oracle"] is True
        assert params["route"] == "oracle"
        assert "oracle True" in flat(out)
        assert "a bound, not a prediction" in flat(out)
    else:
        gap = KRRModel.load(tmp_path / "m.h5").predict(X) - y
        assert made["metrics"]["mse"] == pytest.approx(np.mean(gap**2), rel=1e-10)
    assert made["metrics"]["r2"] == pytest.approx(1 - made["metrics"]["mse"] / y.var(), rel=1e-10)
    assert ("nearest_mse" in made["metrics"]) == (method == "twolevel")


def test_an_oracle_is_the_best_of_its_models(inputs, tmp_path):
    """The error of the nearest one, and of the mean, are no less."""
    errors = {}
    for method, route in (("bkrr3", None), ("bkrr2", "nearest"), ("bkrr2", "all"), ("bkrr2", "soft")):
        words = [inputs / "good.h5", *PAIR, "--partitions", "3", *(["--route", route] if route else [])]
        errors[route] = reported(f"cakrr.{method}", words, tmp_path)["metrics"]["mse"]
    assert errors[None] < min(errors["nearest"], errors["all"], errors["soft"])


def test_taken_up(inputs, tmp_path, capsys):
    """The same command reads all pieces, writes none, sweeps what was half written, and ends with the same bytes."""
    shutil.copytree(inputs / "kept", tmp_path / "kept")
    before = inodes(tmp_path / "kept")
    (tmp_path / "kept" / ".part-000001.npz.x1y2.part").write_bytes(b"PK")
    words = [inputs / "good.h5", *PAIR, "--partitions", "3"]
    run("cakrr.bkrr2", [*words, "--checkpoint", tmp_path / "kept", "--model", tmp_path / "m.h5"])
    run("cakrr.bkrr2", [*words, "--model", tmp_path / "undisturbed.h5"])
    assert inodes(tmp_path / "kept") == before
    assert len(before) == 5
    assert (tmp_path / "m.h5").read_bytes() == (tmp_path / "undisturbed.h5").read_bytes()


# -- what is refused: the method, its arguments, and what the line on stderr must say -----------

KEPT = [*PAIR, "--partitions", "3", "--checkpoint"]
BAD = {
    "no centers": ("twolevel", ["good.h5", "--centers", "0"], "--centers 0"),
    "half a center": ("twolevel", ["good.h5", "--centers", "1.5"], "--centers 1.5"),
    "centers text": ("twolevel", ["good.h5", "--centers", "x"], "--centers x"),
    "coarse sigma": ("twolevel", ["good.h5", "--coarse-sigma", "-1"], "--coarse-sigma -1"),
    "coarse lambda": ("twolevel", ["good.h5", "--coarse-lambda", "1:2"], "--coarse-lambda 1:2"),
    "centers of others": ("bkrr2", ["good.h5", "--centers", "10"], "--centers"),
    "parts of the exact": ("dkrr", ["good.h5", "--partitions", "3"], "partitions = 3: dkrr has one model"),
    "route of the exact": ("dkrr", ["good.h5", "--route", "soft"], "route soft: dkrr has only its own route"),
    "route of an oracle": ("bkrr3", ["good.h5", "--route", "nearest"], "route nearest: bkrr3 has only its own route"),
    "unknown route": ("bkrr2", ["good.h5", "--route", "oracle"], "--route"),
    "loo of a mean": ("dckrr", ["good.h5", "--select", "loo"], "select loo"),
    "loo of two levels": ("twolevel", ["good.h5", "--select", "loo"], "select loo"),
    "loo of the exact": ("dkrr", ["good.h5", "--select", "loo"], "select loo"),
    "loo of an oracle": ("kkrr3", ["good.h5", "--select", "loo"], "select loo"),
    "model of an oracle": ("kkrr3", ["nosuch.h5", "--model", "m.h5"], "--model: kkrr3 is an oracle"),
    "model of the other": ("bkrr3", ["good.h5", "--model", "m.h5"], "--model: bkrr3 is an oracle"),
    "memory": ("dkrr", ["good.h5", "--memory-limit", "0.0001"], "bkrr2 or twolevel"),
    "memory of centers": ("twolevel", ["good.h5", "--partitions", "60", "--memory-limit", "0.0002"], "--centers"),
    "checkpoint is a file": ("bkrr2", ["good.h5", *KEPT, "file"], "file: is a file"),
    "checkpoint below a file": ("bkrr2", ["good.h5", *KEPT, "file/kept"], "file/kept"),
    "no checkpoint": ("bkrr2", ["good.h5", *KEPT, "full"], "full: not empty"),
    "other seed": ("bkrr2", ["good.h5", *KEPT, "kept", "--seed", "1"], "seed was 0 there and is 1 here"),
    "other lambda": ("bkrr2", ["good.h5", *KEPT, "kept", "--lambda", "1"], "lam was [0.001] there and is [1.0] here"),
    "other method": ("kkrr", ["good.h5", *KEPT, "kept"], 'method was "bkrr2" there and is "kkrr" here'),
    "other rows": ("bkrr2", ["other.h5", *KEPT, "kept"], "training rows was"),
    "other numbers": ("bkrr2", ["good.h5", *KEPT, "kept", "--dtype", "float32"], "dtype was"),
    "empty piece": ("bkrr2", ["good.h5", *KEPT, "empty"], "empty/part-000001.npz: damaged"),
    "truncated piece": ("bkrr2", ["good.h5", *KEPT, "cut"], "cut/part-000001.npz: damaged"),
}


@pytest.mark.parametrize("what", BAD)
def test_refused(what, inputs, refuses):
    method, words, message = BAD[what]
    refuses(f"cakrr.{method}", [*words, "--report", "out.json"], message, inputs)
    if "piece" in what:  # a file that was left open is noticed now
        gc.collect()


@pytest.mark.parametrize(
    ("method", "words", "message"),
    [("dckrr", ["good.h5", "--select", "loo"], "select loo"), ("bkrr2", ["nosuch.h5"], "no such file")],
    ids=["option", "data"],
)
def test_refused_without_making_the_checkpoint(method, words, message, inputs, refuses):
    refuses(f"cakrr.{method}", [*words, "--checkpoint", "new"], message, inputs)


# -- without ScaLAPACK -------------------------------------------------------------------------

HIDDEN = """
import os, runpy
from cacore.linalg import scalapack

os.environ.pop(scalapack.VARIABLE, None)
scalapack._files = lambda package: {}
runpy.run_module("cakrr.dkrr", run_name="__main__")
"""


@pytest.mark.parametrize("way", ["not installed", "not there"])
def test_no_scalapack(way, mpiexec, inputs, tmp_path):
    (tmp_path / "hidden.py").write_text(HIDDEN)
    words = [inputs / "good.h5", *PAIR, "--model", "m.h5", "--report", "r.json"]
    if way == "not installed":
        done, message = mpiexec(2, "hidden.py", *words, cwd=tmp_path), "pip install 'cakernels[scalapack]'"
    else:
        done = mpiexec(2, "-m", "cakrr.dkrr", *words, cwd=tmp_path, CAKRR_SCALAPACK="/nonexistent.so")
        message = "CAKRR_SCALAPACK: cannot open /nonexistent.so"
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("cakrr.dkrr: ")
    assert message in line
    assert names(tmp_path) == ["hidden.py"]
