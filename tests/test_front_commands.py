"""The command ``cakernels``: fit, predict, info, convert, and their messages."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import flat, predicted, read, run
from helpers.data import clouds, saddle, separate_clouds, write_csv, write_hdf5
from sklearn.metrics import f1_score, mean_squared_error, r2_score, roc_auc_score

from asygcd import AsyGCDSVC
from cacore.checks import duration
from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.machine.deadline import TimeIsUp
from cakernels import BKRR2, SMOSVC, SMOSVR, families
from cakernels.families import blended

ONE = ["--max-candidates", "1", "--within", "1h"]


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), (" 2M ", 120)])
def test_duration(text, seconds):
    assert duration(text, "--within") == seconds


@pytest.mark.parametrize("text", ["", "m", "0s", "-1", "soon", "nan", "1e999", "10 d"])
def test_no_duration(text):
    with pytest.raises(InputError, match=r"--within .*a time, such as 90s, 10m or 1\.5h"):
        duration(text, "--within")


def test_regression_from_fit_to_predict(tmp_path, monkeypatch, capfd):
    """Columns by name; test rows are judged; the picture is drawn; the command that repeats the model is right."""
    monkeypatch.chdir(tmp_path)
    X, y = saddle(160)
    write_csv("train.csv", X[:120], y[:120], names="abc", target="y")
    write_csv("test.csv", X[120:, ::-1], y[120:], names="cba", target="y")
    run("cakernels", ["fit", "train.csv", "--test", "test.csv", *ONE, "--report", "r.json", "--plot", "p.png"])
    out, err = capfd.readouterr()
    told, report = flat(out), json.loads((tmp_path / "r.json").read_text())
    assert "saved as train.model.h5; to predict: cakernels predict train.model.h5 NEW_DATA" in told
    assert re.match(r"rmse of y [\d.]+ on 120 validation rows; R\^2 [\d.]+; the mean alone: [\d.]+ rmse ", told)
    assert "96 rows  BKRR2 auto one part" in err
    assert (report["method"], report["params"]["task"], report["data"]["n_test"]) == ("fit", "regression", 40)
    ends = report.get("at_grid_end", [{}])
    said = [note.split()[2] for note in report["notes"] if "end of its grid" in note]
    assert said == [name for one in ends for name in one]
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    run("cakernels", ["predict", "train.model.h5", "test.csv", "-o", "out.csv", "--quiet"])
    mse = mean_squared_error(y[120:], predicted(tmp_path / "out.csv"))
    assert mse == pytest.approx(report["metrics"]["mse"])
    assert mse < 0.2 * y.var()
    program, *words = report["params"]["commands"][0].removeprefix("python -m ").split()
    run(program, [*words, "--model", "again.h5", "--report", "again.json", "--quiet"])
    assert read(tmp_path / "again.json")["partitions"] == 1


def test_classes_of_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y = separate_clouds(60)
    lines = [f"{','.join(map(str, x))},{'yes' if label > y.min() else 'no'}" for x, label in zip(X, y, strict=True)]
    Path("a.csv").write_text("\n".join([",".join("abcdefgh"[: X.shape[1]]) + ",label", *lines]) + "\n")
    run("cakernels", ["fit", "a.csv", *ONE, "--quiet", "--model", "m.h5", "--metric-name", "balanced_accuracy"])
    run("cakernels", ["predict", "m.h5", "a.csv", "--report", "r.json", "--quiet"])
    assert read(tmp_path / "r.json")["metrics"]["accuracy"] > 0.95


def test_probabilities_from_fit_to_predict(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y = separate_clouds(90)
    write_hdf5("a.h5", train=(X[:60], y[:60]), test=(X[60:], y[60:]))
    run("cakernels", ["fit", "a.h5", *ONE, "--quiet", "--model", "m.h5", "--report", "f.json"])
    run("cakernels", ["predict", "m.h5", "a.h5", "--probability", "-o", "p.csv", "--report", "r.json", "--quiet"])
    heads, *lines = [line.split(",") for line in Path("p.csv").read_text().splitlines()]
    assert heads == ["prediction", *(f"probability {label}" for label in np.unique(y).astype(int))]
    assert all(float(line[1]) + float(line[2]) == pytest.approx(1.0) for line in lines)
    report = read(tmp_path / "r.json")
    assert report["metrics"]["confusion"][0][1] == 0
    assert (report["probability"]["form"], report["probability"]["left_out"]) == ("sigmoid", 60)
    assert read(tmp_path / "f.json")["metrics"]["log_loss"] < np.log(2)
    run("cakernels", ["fit", "a.h5", *ONE, "--quiet", "--model", "n.h5", "--probability", "none"])
    assert families.load("n.h5").family == "svm"


@pytest.mark.parametrize("metric", ["roc_auc", "f1", "r2"])
def test_the_score_that_chooses_is_reported_for_test_rows(metric, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y = clouds(160)
    y = X.sum(axis=1) if metric == "r2" else y
    write_hdf5("a.h5", train=(X[:100], y[:100]), test=(X[100:], y[100:]))
    run("cakernels", ["fit", "a.h5", *ONE, "--quiet", "--model", "m.h5", "--metric-name", metric, "--report", "f.json"])
    report, model = read(tmp_path / "f.json"), families.load("m.h5")
    predicted = model.probabilities(X[100:])[:, 1] if metric == "roc_auc" else model.predict(X[100:])
    score = {"roc_auc": roc_auc_score, "f1": f1_score, "r2": r2_score}[metric](y[100:], predicted)
    assert report["metrics"][metric] == pytest.approx(score)
    assert report["baselines"]["test"][metric] == pytest.approx({"roc_auc": 0.5, "f1": 0.0, "r2": 0.0}[metric], abs=0.1)
    assert report["baselines"]["linear"][metric] == pytest.approx(report["grid"][0]["score"], abs=0.1)


@pytest.mark.parametrize(
    ("metric", "labels", "score"), [("balanced_accuracy", "no yes perhaps perhaps", 0.0), ("roc_auc", "yes yes", None)]
)
def test_test_rows_of_other_classes(metric, labels, score, tmp_path, monkeypatch, capsys):
    """A class that the training rows lack is predicted wrong; a ranking of rows of one class has no score."""
    monkeypatch.chdir(tmp_path)
    table = "x,label\n" + "".join(f"{i},{'yes' if i % 20 < 10 else 'no'}\n" for i in range(40))
    Path("a.csv").write_text(table)
    Path("b.csv").write_text("x,label\n" + "".join(f"{i},{label}\n" for i, label in enumerate(labels.split())))
    run("cakernels", ["fit", "a.csv", *ONE, "--model", "m.h5", "--metric-name", metric, "--test", "b.csv",
                      "--report", "f.json"])  # fmt: skip
    report, shown = read(tmp_path / "f.json"), " ".join(capsys.readouterr().out.split())
    assert "nan" not in shown
    if score is None:
        assert metric not in report["metrics"] | report["baselines"]["test"]
        assert "roc_auc is undefined: all test rows are 'yes'" in report["notes"]
    else:
        tested, matrix = report["metrics"], np.array(report["metrics"]["confusion"])
        recall = np.diagonal(matrix) / matrix.sum(axis=1)
        assert recall[tested["classes"].index("perhaps")] == score
        assert tested[metric] == pytest.approx(recall.mean())
        assert report["baselines"]["test"][metric] == pytest.approx(1 / 3)


def test_intervals_from_fit_to_predict(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y = saddle(160)
    write_hdf5("a.h5", train=(X[:120], y[:120]), test=(X[120:], y[120:]))
    run("cakernels", ["fit", "a.h5", *ONE, "--quiet", "--model", "m.h5", "--calibrate"])
    run("cakernels", ["predict", "m.h5", "a.h5", "--interval", "0.9", "-o", "p.csv", "--report", "r.json", "--quiet"])
    assert Path("p.csv").read_text().startswith("mean,lower,upper\n")
    told = read(tmp_path / "r.json")["intervals"]
    assert (told["asked"], told["rows"], told["calibration_rows"]) == (0.9, "searched", 120)
    assert abs(told["coverage"] - 0.9) < 3 * np.sqrt(0.09 / 120 + 0.09 / 40)


@pytest.mark.parametrize("kind", ["krr", "svm", "svr", "asygcd", "blend"])
def test_predict_finds_the_family_in_the_file(kind, tmp_path):
    X, y = saddle(60)
    write_hdf5(tmp_path / "rows.h5", train=(X, y))
    made = {
        "krr": lambda: BKRR2(2, random_state=0), "svm": SMOSVC, "svr": SMOSVR,
        "asygcd": lambda: AsyGCDSVC(threads=1), "blend": BKRR2,
    }  # fmt: skip
    fitted = made[kind]().fit(X, np.sign(y) if kind in ("svm", "asygcd") else y)
    model, path = fitted.model_, tmp_path / "m.h5"
    if kind == "blend":
        model = blended([model, SMOSVR().fit(X, y).model_], np.array([0.5, 0.5]), None)
    model.save(path)
    run("cakernels", ["predict", path, tmp_path / "rows.h5", "-o", tmp_path / "out.csv", "--quiet"])
    np.testing.assert_allclose(predicted(tmp_path / "out.csv"), model.predict(X), rtol=1e-12)


@pytest.fixture
def folder(tmp_path):
    X, y = saddle(40)
    write_csv(tmp_path / "a.csv", X, y, names="abc", target="y")
    write_csv(tmp_path / "one.csv", X[:1], y[:1], names="abc", target="y")
    (tmp_path / "m.h5").write_bytes(b"no model")
    BKRR2().fit(X, y).model_.save(tmp_path / "k.h5")
    blended([BKRR2().fit(X, y).model_] * 2, np.array([0.5, 0.5]), None).save(tmp_path / "b.h5")
    return tmp_path


def test_a_blend_compiles_for_its_members_alone(folder, recorded):
    """Two models of ridge regression need no code of support vectors."""
    _, blends = families.load_with_family(folder / "b.h5", Communicator())
    compiled = recorded(families, "family_named", lambda _, name: name)
    blends.warm_up_prediction("float64")
    assert compiled == ["krr"]


@pytest.mark.parametrize(
    ("words", "message"),
    [(["fit", "none.csv"], "none.csv: no such file"),
     (["fit", "a.csv", "--within", "soon"], "--within soon: it must be a time"),
     (["fit", "a.csv", "--metric-name", "roc_auc"],
      "it is for classification, and the task is regression: choose rmse, mae, r2, pinball, or another --task"),
     (["fit", "a.csv", "--task", "classification"], "the labels look like targets of a regression"),
     (["fit", "one.csv"], "at least 2 rows"), (["fit", "a.csv", "--model", "a.csv"], "a.csv"),
     (["fit", "a.csv", "--plot", "p.docx"], "docx"), (["fit"], "DATA"),
     (["fit", "a.csv", "--max-candidates", "0"], "--max-candidates 0: it must be a whole number of at least 1"),
     (["predict", "m.h5", "a.csv"], "m.h5"), (["predict", "b.h5", "a.csv", "--std"], "a blend of several models"),
     (["predict", "k.h5", "a.csv", "--probability"], "--probability"),
     (["predict", "b.h5", "a.csv", "--interval", "0.9"], "train it with calibrate (--calibrate)"),
     (["explain", "k.h5", "a.csv", "--groups", "a,b;;c"], "--groups a,b;;c: a group is empty"),
     (["explain", "k.h5", "a.csv", "--background", "none.csv"], "none.csv: no such file"),
     (["explain", "k.h5", "a.csv", "--groups", "0,7"], "groups: there is no feature 7"),
     (["explain", "k.h5", "a.csv", "-o", "k.h5"], "k.h5"), (["explain", "m.h5", "a.csv"], "m.h5"),
     (["fit", "a.csv", "--probability"], "--probability: it is for classes, and the task is regression")],
)  # fmt: skip
def test_refused(words, message, folder, refuses):
    refuses(f"cakernels {words[0]}", words[1:], message, folder)


def test_unknown_command_and_help(capfd):
    with pytest.raises(SystemExit) as ended:
        run("cakernels", ["fly"])
    known = "fit, predict, plan, explain, report, export, convert, info, warmup"
    told = f"cakernels: fly: there is no such command; choose one of {known}\n"
    assert (ended.value.code, capfd.readouterr().err) == (2, told)
    for words in (["--help"], ["fit", "--help"], ["predict", "--help"]):
        with pytest.raises(SystemExit) as ended:
            run("cakernels", words)
        assert ended.value.code == 0
        assert "usage: cakernels" in capfd.readouterr().out


def test_info_and_convert(folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    run("cakernels", ["convert", "a.csv", "a.h5", "--split", "30", "--quiet"])
    run("cakernels", ["info", "a.h5"])
    assert "train: 30 rows x 3 features" in capfd.readouterr().out


def test_sigterm_leaves_a_model_and_a_report(folder):
    """Sent as soon as there is a model; the search would go on for an hour."""
    words = ["fit", "a.csv", "--within", "1h", "--report", "r.json", "--threads", "1"]
    job = subprocess.Popen(
        [sys.executable, "-m", "cakernels", *words], cwd=folder, env=os.environ, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    while not (folder / "r.json").exists() and job.poll() is None:
        time.sleep(0.05)
    job.send_signal(signal.SIGTERM)
    out, err = job.communicate(timeout=600)
    assert job.returncode == 0, err
    assert "ended by SIGTERM before the end of the search" in flat(out)
    assert read(folder / "r.json")["params"]["within"] == 3600
    run("cakernels", ["predict", folder / "a.model.h5", folder / "a.csv", "-o", folder / "out.csv", "--quiet"])
    assert np.isfinite(predicted(folder / "out.csv")).all()


def test_explain(folder, monkeypatch, capfd):
    """Values and base add up to the predictions; the picture is there, and the report has the importances."""
    make = ["explain", "k.h5", "a.csv", "-o", "v.csv", "--groups", "0,2", "--plot", "v.png", "--report", "r.json"]
    monkeypatch.chdir(folder)
    for words in (make, ["predict", "k.h5", "a.csv", "-o", "p.csv", "--quiet"]):
        run("cakernels", words)
    values, predicted = (np.genfromtxt(folder / name, delimiter=",", names=True) for name in ("v.csv", "p.csv"))
    assert values.dtype.names == ("x0x2", "x1", "base")
    np.testing.assert_allclose(sum(values[name] for name in values.dtype.names), predicted["prediction"], atol=1e-9)
    importances = read(folder / "r.json")["params"]["importances"]
    assert importances == pytest.approx({"x0+x2": np.abs(values["x0x2"]).mean(), "x1": np.abs(values["x1"]).mean()})
    assert (folder / "v.png").stat().st_size > 1000
    assert "mean |value| over" in capfd.readouterr().out


def test_the_first_line_says_that_all_trainings_failed(tuned, tmp_path, monkeypatch, capsys):
    """On a loaded machine, every training may run out of its time: the model then has no error."""
    monkeypatch.chdir(tmp_path)

    def late(self, trial):
        raise TimeIsUp

    tuned(race_folds=late)
    X, y = saddle(60)
    write_csv("train.csv", X, y, names="abc", target="y")
    run("cakernels", ["fit", "train.csv", "--max-candidates", "1", "--within", "1m"])
    first = flat(capsys.readouterr().out).split(" target: ")[0]
    told = re.fullmatch(r"error unknown: (\d+) of (\d+) trainings failed, (\d+) out of time; ([\d.]+) s used of 60 s "
                        r"given: give more time by --within", first)  # fmt: skip
    assert told, first
    assert told[1] == told[2] == told[3]


COMMANDS = {
    "fit": ["cakernels", "fit", "train.csv", *ONE, "--model", "m.h5"],
    "bkrr2": ["cakrr.bkrr2", "train.csv", "--sigma", "1,2", "--lambda", "1e-3", "--partitions", "2"],
    "bkrr2 with test rows": ["cakrr.bkrr2", "train.csv", "--test", "train.csv", "--sigma", "1", "--lambda", "1e-3"],
    "cpsvm": ["casvm.cpsvm", "classes.csv", "--test", "classes.csv", "--partitions", "2", "--model", "c.h5"],
    "kriging": ["cakriging", "train.csv", "--test", "train.csv"],
    "predict": ["cakernels", "predict", "m.h5", "train.csv"],
    "predict without targets": ["cakernels", "predict", "m.h5", "new.csv"],
    "info": ["cakernels", "info", "m.h5"],
    "info of classes": ["cakernels", "info", "c.h5"],
}


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Text on the terminal of each command, at 80 columns."""
    folder = tmp_path_factory.mktemp("a_folder_whose_name_is_rather_long_for_a_terminal_of_eighty_columns")
    X, y = saddle(60)
    outputs = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "80")
        write_csv("train.csv", X, y, names="abc", target="y")
        write_csv("classes.csv", X, np.where(y > 0, 1, -1), names="abc", target="y")
        write_csv("new.csv", X[:, :-1], X[:, -1], names="ab", target="c")
        for name, (program, *words) in COMMANDS.items():
            with redirect_stdout(StringIO()) as out:
                run(program, words)
            outputs[name] = out.getvalue()
    return outputs


@pytest.mark.parametrize("name", COMMANDS)
def test_the_error_is_in_the_first_lines(name, printed):
    """And no line is longer than the terminal is wide, but for the words that are."""
    lines = printed[name].splitlines()
    assert re.match(r"(rmse( of y)?|accuracy) [\d.e-]+ (% )?on ", lines[0]), lines[:3]
    assert all(len(line) <= 80 or len(line.split()) < 3 for line in lines)
