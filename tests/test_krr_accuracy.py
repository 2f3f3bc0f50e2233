"""The comparison with other packages: splits, what is skipped, and a run from files to the table."""

import json
import os
import sys
from pathlib import Path

import numpy as np
from helpers.data import write_libsvm

from benchmarks import krr_accuracy
from benchmarks.krr_data import SETS, load, split


def rows(n=200):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 6))
    return X, np.sin(X[:, 0]) + X[:, 1]


def test_a_split_counts_test_rows_that_are_training_rows():
    X, y = rows()
    assert not split(X, y, 0).seen.any()
    twice = split(np.r_[X, X], np.r_[y, y], 0)
    among = {row.tobytes() for row in np.c_[twice.X, twice.y]}
    assert twice.seen.tolist() == [row.tobytes() in among for row in np.c_[twice.T, twice.t]]
    assert (len(twice.X), len(twice.T)) == (360, 40)
    assert f"40 test rows, {twice.seen.sum()} of which are training rows" in str(twice)
    assert "1 of them constant" in str(split(np.c_[X, np.ones(len(X))], y, 0))


def test_splits_are_of_their_seed():
    X, y = rows()
    assert np.array_equal(split(X, y, 1).T, split(X, y, 1).T)
    assert not np.array_equal(split(X, y, 1).T, split(X, y, 2).T)


def test_what_cannot_be_run_says_why(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert krr_accuracy.runnable("lightgbm", "cadata", 2) == (None, "lightgbm is not installed")
    model, why = krr_accuracy.runnable("dkrr --kernel linear", "CASP", 2)
    assert (model, why) == (None, "exact methods are run on up to 12,000 rows")


def test_every_set_of_the_data_can_be_read(data):
    for name in ("mg_scale", "YearPredictionMSD"):
        X, y = load(data, name)
        assert len(X) == len(y) > SETS[name].train


def test_from_files_to_the_table(tmp_path, monkeypatch, python):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    write_libsvm(tmp_path / "mg_scale", *rows())
    models, out = ["bkrr2 --sigma 2 --lambda 1e-4", "hist_gradient_boosting"], tmp_path / "out.json"
    words = [tmp_path, "--out", out, "--only", "mg_scale", "--splits", "1", "--models", *models]
    tables = []
    for _ in range(2):  # what the file has is not run again
        done = python("-m", "benchmarks.krr_accuracy", *words)
        assert (done.returncode, done.stderr) == (0, "")
        tables.append((out.read_text(), done.stdout.split("| data |")[1]))
    assert tables[0] == tables[1]
    found = {one["model"]: one for one in json.loads(tables[0][0])}
    assert found[models[0]]["training_bytes"] == 0
    assert all(one["error"] == one["error_new"] < 0.5 and one["fit_seconds"] > 0 for one in found.values())
    assert all(f"| mg_scale | {model} | {found[model]['error']:.4f} |" in tables[0][1] for model in models)
