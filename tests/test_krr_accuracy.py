"""The comparison with other packages: splits, what is skipped, and a run from files to the table."""

import itertools
import json
import os
import sys
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
from helpers.data import write_libsvm
from sklearn.ensemble import HistGradientBoostingRegressor

from benchmarks import krr_accuracy, tree_search
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


def test_unavailable_models_are_reported(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert krr_accuracy.runnable("lightgbm", "cadata", 2) == (None, "lightgbm is not installed")
    model, why = krr_accuracy.runnable("dkrr --kernel linear", "CASP", 2)
    assert (model, why) == (None, "exact methods are run on up to 12,000 rows")


def test_a_name_that_is_no_set_and_no_file_is_refused(tmp_path, python):
    done = python("-m", "benchmarks.krr_accuracy", tmp_path, "--only", "cadatta")
    assert done.returncode == 2
    assert "there is no file cadatta, and no data set of that name: mg_scale, " in done.stderr


def test_every_set_of_the_data_can_be_read(data):
    for name in ("mg_scale", "YearPredictionMSD"):
        X, y = load(data, name)
        assert len(X) == len(y) > SETS[name].train


def test_tree_search_stops_at_its_time_and_refits(monkeypatch):
    X, y = rows()
    clock = itertools.count(step=5.0)
    monkeypatch.setattr(tree_search.time, "perf_counter", lambda: next(clock))
    seen = []

    def early(A, b, held, truth, settings):
        seen.append((len(A), len(held)))
        return [3.0, 5.0, 4.0][(len(seen) - 1) % 3], len(seen)

    trees = tree_search.Trees(early, lambda A, b, rounds, settings: (len(A), rounds))
    # at 45 s, three quarters of the time, the third candidate has ended and a fourth would take 5 s more
    model, best = tree_search.searched(trees, X, y, 0, within=60.0)
    assert seen == [(180, 20)] * 3
    assert (model, best["rounds"], best["candidates"]) == ((200, 2), 2, 3)
    assert tree_search.searched(tree_search.Trees(early, trees.whole), X, y, 0)[1]["candidates"] == 6


@pytest.mark.skipif(
    "X_val" not in signature(HistGradientBoostingRegressor.fit).parameters, reason="X_val came with scikit-learn 1.7"
)
def test_from_files_to_the_table(tmp_path, monkeypatch, python):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    write_libsvm(tmp_path / "mg_scale", *rows())
    np.savetxt(tmp_path / "own.csv", np.column_stack(rows()), delimiter=",")
    own = str((tmp_path / "own.csv").resolve())
    models, out = ["bkrr2 --sigma 2 --lambda 1e-4", "hist_gradient_boosting"], tmp_path / "out.json"
    words = [tmp_path, "--out", out, "--only", "mg_scale", own, "--splits", "1", "--models", *models]
    tables = []
    for _ in range(2):  # what the file has is not run again
        done = python("-m", "benchmarks.krr_accuracy", *words)
        assert (done.returncode, done.stderr) == (0, "")
        tables.append((out.read_text(), done.stdout.split("| data |")[1]))
    assert tables[0] == tables[1]
    records = json.loads(tables[0][0])
    assert [one["data"] for one in records] == ["mg_scale", "mg_scale", own, own]
    assert records[3]["error"] == pytest.approx(records[1]["error"], abs=1e-3)  # the same rows, with rounded digits
    assert records[2]["error"] < records[0]["error"]  # a set has a number of parts, a file that of its rows
    found = {one["model"]: one for one in records[:2]}
    assert found[models[0]]["training_bytes"] == 0
    assert all(one["error"] == one["error_new"] < 0.5 and one["fit_seconds"] > 0 for one in found.values())
    assert all(f"| mg_scale | {model} | {found[model]['error']:.4f} |" in tables[0][1] for model in models)
