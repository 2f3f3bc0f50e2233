"""Benchmarks without the data sets: files are generated, and said to be; all leave records and a picture."""

from __future__ import annotations

import os
import re
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import collect, dropin, generated, kinds, plots, race, svm_search
from benchmarks.results import Results
from cacore.io import text
from cacore.io.table import RowsRequest

SMALL = {name: replace(like, rows=600, test=min(like.test, 100)) for name, like in generated.FILES.items()}
SMALL["mg_scale"] = generated.FILES["mg_scale"]  # as many rows are to be split off
SMALL["space_ga_scale"] = replace(SMALL["space_ga_scale"], rows=200)  # two searches factorise matrices of all of them


@pytest.fixture(autouse=True)
def rate(tuned):
    """Nobody waits to know the machine's, and no moment is a slow one, whose rounds are run again."""
    tuned(race_matrix=np.ones((30, 30)), machine_rate=lambda: 1.0, asygcd_machine_rate=lambda: 1.0)


@pytest.fixture
def no_data(elsewhere, monkeypatch, tuned):
    """A machine without data sets, whose generated files are small."""
    monkeypatch.setattr(command, "BESIDE", elsewhere / "none")
    monkeypatch.delenv("CAKERNELS_DATA", raising=False)
    tuned(generated_files=SMALL)
    return elsewhere


@pytest.mark.parametrize("name", generated.FILES)
def test_generated_files(name, tmp_path, tuned):
    """Each is read as the real one is: rows, columns and classes."""
    like = SMALL[name]
    tuned(generated_files=SMALL)
    assert not generated.file(tmp_path, name).exists()  # in a folder of real data a missing file stays missing
    (tmp_path / generated.MARK).touch()
    path = generated.file(tmp_path, name)
    if like.form == "npz":
        with np.load(path) as file:
            X, y = (np.concatenate([file[f"{part}_train"], file[f"{part}_test"]]) for part in "xy")
            assert (X.dtype, len(file["x_test"])) == (np.uint8, like.test)
    else:
        features = like.features if like.form == "libsvm" else None
        table = text.parse(path, RowsRequest(target="0" if like.first else None, n_features=features))
        X, y = table["train"].X, table["train"].y
    assert X.shape == (like.rows, like.features)
    assert len(np.unique(y)) == (like.classes or like.rows) or not like.classes
    assert generated.label(tmp_path, "a") == "a, GENERATED"


RUNS = {
    "svm-engine": ["--only", "ijcnn1", "--rounds", "1", "--rivals", "ours", "libsvm"],
    "dropin": ["--only", "one-class", "--rows", "200", "--rounds", "1"],
    "svr-engine": ["--only", "mg_scale", "--rows", "300"],
    "svm-methods": ["--only", "ijcnn1", "--ranks", "2", "--methods", "casvm"],
    "svm-search": ["--only", "ijcnn1", "--settings", "2", "--no-liquidsvm"],
    "krr-methods": ["--only", "mg_scale", "--methods", "bkrr2", "--sigma", "1", "--lambda", "1e-4", "--ranks", "2"],
    "krr-grid": ["--crossover", "--rows", "800", "--lambdas", "4", "--rounds", "1"],
    "krr-time": ["--only", "mg_scale", "--methods", "bkrr3", "--pairs", "2", "--ranks", "2"],
    "krr-intervals": ["--only", "mg_scale", "--rows", "120", "--splits", "2"],
    "anytime": ["--only", "space_ga_scale", "--max-candidates", "1", "--seeds", "1"],
    "partitioners": ["--parts", "4"],
    "balance": ["--rows", "200", "--ranks", "2", "--repeats", "1", "--methods", "bkrr2", "casvm"],
    "asygcd": ["--only", "ijcnn1", "--parts", "speedup", "--rounds", "1", "--cache-gib", "0.1"],
    "io": ["--rows", "50", "--features", "3", "--rounds", "1", "--ranks", "1", "--files", "rows.csv.gz"],
}


@pytest.mark.parametrize("name", RUNS)
def test_records(name, no_data, monkeypatch, tuned, capsys):
    """Results that say GENERATED, that compare with themselves, and that can be drawn in every way they have."""
    tuned(svm_warm_up=lambda problem: None)  # which touches 5 GiB
    tuned(asygcd_warm_up=lambda problem, cache: None)
    tuned(anytime_draws=20)  # neighbours of each candidate, for a list of all
    # The compiled code of all tests, not an empty folder: nobody looks at how long it takes to compile.
    compiled, run = os.environ.get("NUMBA_CACHE_DIR", ""), dropin.run
    monkeypatch.setattr(dropin, "run", lambda program, patched, data, cache: run(program, patched, data, compiled))
    assert command.main([name, *RUNS[name], "--results", "found.json"]) == 0
    results = Results.load(no_data / "found.json")
    assert results.records
    assert results.about["data"] == generated.MARK
    assert generated.MARK in capsys.readouterr().out
    assert command.compare(no_data / "found.json", no_data / "found.json")
    for kind, (needed, _) in plots.KINDS.items():
        if any(needed <= record.keys() for record in results.records):
            assert command.main(["plot", "found.json", f"{kind}.png", "--what", kind]) == 0
            assert (no_data / f"{kind}.png").stat().st_size > 10_000


MADE = {
    "svm-wide": ["--rows", "150", "--test", "40", "--features", "5000", "--nonzeros", "20", "--rivals", "libsvm"],
    "svm-predict": ["--rows", "60", "--vectors", "100", "--features", "4", "--rounds", "1", "--rivals", "libsvm"],
}


@pytest.mark.parametrize("name", MADE)
def test_rows_that_are_made(name, tmp_path, capsys):
    """Both rivals' answers beside each other."""
    assert command.main([name, *MADE[name], "--results", str(tmp_path / "found.json")]) == 0
    records, out = Results.load(tmp_path / "found.json").records, capsys.readouterr().out
    assert {record["rival"] for record in records} == {"ours", "libsvm"}
    if name == "svm-wide":
        ours, theirs = re.findall(r"([\d,]+) support vectors, dual ([\d.]+)", out)
        assert ours[0] == theirs[0]
        assert float(ours[1]) == pytest.approx(float(theirs[1]), rel=1e-6)
    else:
        assert "(100)" in out
        assert float(re.findall(r"apart by (.*)", out)[0]) < 1e-4


@pytest.mark.parametrize("main", [collect.main, lambda: sys.exit(command.main(sys.argv[1:]))])
def test_help(main, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "python -m benchmarks" in capsys.readouterr().out


def test_no_picture(no_data, capsys):
    Results("x", [{"race": "one", "rival": "a", "peer": "a", "seconds": 1.0}]).save(no_data / "x.json")
    assert command.main(["plot", "x.json", "x.png", "--what", "matrix"]) == 2
    assert "no plot of matrix, but of race" in capsys.readouterr().err


def test_a_folder_that_is_not_there(monkeypatch, capsys):
    monkeypatch.setenv("CAKERNELS_DATA", "/there/is/none")
    assert command.main(["partitioners"]) == 2
    assert "CAKERNELS_DATA: there is no folder" in capsys.readouterr().err


def test_a_bound_that_is_not_kept(no_data, monkeypatch):
    """The status of the script, and its records all the same."""
    from benchmarks import krr_grid, results

    def main():
        results.record(race="one", rival="a", peer="a", seconds=1.0)
        raise SystemExit(1)

    monkeypatch.setattr(krr_grid, "main", main)
    with pytest.raises(SystemExit):
        command.main(["krr-grid", "--results", "kept.json"])
    assert len(Results.load(no_data / "kept.json").records) == 1


@pytest.mark.parametrize(("retries", "runs"), [(6, 3), (1, 2), (0, 1)])
def test_rounds_in_slow_moments_are_run_again(retries, runs, tuned):
    """Slow after the first run, and before the second; the best of the first three rates is 10."""
    rates, made = iter([9.0, 10.0, 9.0, 9.0, 7.9, 7.9, 9.0, 8.0, 9.0]), []
    tuned(machine_rate=lambda: next(rates))
    results = race.race({"one": lambda: made.append(0)}, rounds=1, retries=retries, warm=False)
    assert len(made) == runs
    assert len(results["one"].seconds) == 1
    assert results["one"].rates == [8.0 if runs == 3 else 7.9]


@pytest.mark.parametrize("who", ["ours", "libsvm"])
@pytest.mark.parametrize("name", ["SVC", "NuSVC", "SVR", "NuSVR", "OneClassSVM"])
def test_violation_and_objective_of_a_model_follow_from_its_coefficients(name, who):
    X, labels, _ = kinds._clusters(300, 3, 3)
    y = np.sin(X[:, 0]) if "SVR" in name else labels
    weights = {"C": 2.0, "class_weight": {0: 1.0, 1: 3.0, 2: 0.5}} if name == "SVC" else {}
    kind = kinds.Kind(lambda: (X, y, X), name, weights)
    model = kinds._estimator(who, kind).fit(X, y)
    objective, violation = kinds._checked(model, X, y, kind)
    assert 0 < violation < 1.01e-3
    if name != "NuSVC":
        ours = model if who == "ours" else kinds._estimator("ours", kind).fit(X, y)
        assert objective == pytest.approx(np.sum(ours.objective_), rel=1e-9 if who == "ours" else 1e-4)
    assert kinds._checked(Changed(model), X, y, kind)[1] > 10 * violation


class Changed:
    """A model whose coefficients below the largest one are a fifth smaller."""

    def __init__(self, model):
        self.__dict__.update({key: getattr(model, key) for key in ("support_", "n_support_")})
        self.classes_, size = getattr(model, "classes_", None), np.abs(model.dual_coef_)
        self.dual_coef_ = model.dual_coef_ * np.where(size < size.max(), 0.8, 1.0)


def test_a_rival_that_is_not_done_is_ended():
    assert svm_search.within(60.0, pow, 2, 3) == 8
    begun = time.monotonic()
    assert svm_search.within(0.5, time.sleep, 600) is None
    assert time.monotonic() - begun < 60
