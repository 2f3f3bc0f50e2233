"""Quantiles by command: the report, the model and its predictions, intervals, explanations, ONNX."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import near
from helpers.commands import flat, read, reported, run
from helpers.data import write_hdf5
from sklearn.metrics import mean_pinball_loss

from casvm import QuantileModel

N, TESTED, LEVELS = 157, 60, (0.1, 0.5, 0.9)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A file of training and test rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N + TESTED, 3))
    y = 300 + 10 * np.sin(2 * X.sum(axis=1)) + rng.normal(size=N + TESTED)
    path = tmp_path_factory.mktemp("quantiles") / "d.h5"
    write_hdf5(path, train=(X[:N], y[:N]), test=(X[N:], y[N:]))
    return path, X, y


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """The report and the model of calibrated quantiles in two parts, of which C and gamma were searched."""
    folder = tmp_path_factory.mktemp("trained")
    words = [data[0], "--quantile", "0.1,0.5,0.9", "--calibrate", "0.2", "--partitions", "2", "--quick"]
    return reported("casvm.svr", [*words, "--model", folder / "m.h5"], folder), folder / "m.h5"


def test_the_report_and_the_model(data, trained):
    made, path = trained
    _, X, y = data
    model = QuantileModel.load(path)
    predicted = model.predict(X[N:])
    losses = [mean_pinball_loss(y[N:], q, alpha=level) for q, level in zip(predicted.T, LEVELS, strict=True)]
    assert made["metrics"]["pinball_by_quantile"] == pytest.approx(losses)
    assert made["metrics"]["pinball"] == pytest.approx(np.mean(losses))
    assert made["metrics"]["share_below"] == pytest.approx((y[N:, None] <= predicted).mean(axis=0))
    params = made["params"]
    assert (params["svm_type"], params["quantile"], params["calibrate"]) == ("quantile_svr", list(LEVELS), 0.2)
    assert "epsilon" not in params
    best = max(made["grid"], key=lambda row: row["cv_neg_pinball"])
    assert (best["C"], best["gamma"]) == (params["C"], params["gamma"])
    assert len(made["grid"]) == 12
    assert sum(made["partition_sizes"]) == N - round(0.2 * N)
    assert made["solver"]["converged"] == [True, True]


def test_length_scales(data, tmp_path, refuses):
    path, X, _ = data
    words = ["--quantile", "0.1,0.9", "--metric", "lengths", "--standardize", "--kernel", "matern32", "--C", "10"]
    made = reported("casvm.svr", [path, *words, "--model", tmp_path / "m.h5", "--plot", tmp_path / "p.png"], tmp_path)
    metric = made["metric"]
    assert metric["form"] == "lengths"
    assert metric["round"] == int(np.argmin(metric["errors"]))
    assert sum(metric["importances"]) == pytest.approx(1)
    assert (tmp_path / "p.png").stat().st_size
    model = QuantileModel.load(tmp_path / "m.h5")
    assert made["metrics"]["share_below"] == pytest.approx((data[2][N:, None] <= model.predict(X[N:])).mean(axis=0))
    refuses("casvm.svr", [path, "--metric", "lengths", "--libsvm", "m"], "--libsvm: LIBSVM's format has no", tmp_path)


def test_predictions_and_intervals(data, trained, tmp_path, capsys):
    path, X, y = data
    run(
        "casvm.predict",
        [trained[1], path, "--interval", "0.8", "-o", tmp_path / "p.csv", "--report", tmp_path / "r.json"],
    )
    assert "80 % asked" in flat(capsys.readouterr().out)
    head, *lines = (tmp_path / "p.csv").read_text().splitlines()
    assert head == "quantile 0.1,quantile 0.5,quantile 0.9,lower,upper"
    table, model = np.array([line.split(",") for line in lines], float), QuantileModel.load(trained[1])
    low, high = model.predict_interval(X[N:], 0.8)
    near(table, np.column_stack([model.predict(X[N:]), low, high]), 1e-9)
    made = read(tmp_path / "r.json")["intervals"]
    assert made["coverage"] == pytest.approx(np.mean((low <= y[N:]) & (y[N:] <= high)))
    assert (made["calibration_rows"], made["mean_width"]) == (31, pytest.approx(np.mean(high - low)))
    run("cakernels", ["predict", trained[1], path, "--quiet", "-o", tmp_path / "q.csv"])
    assert (tmp_path / "q.csv").read_text().splitlines()[0] == "quantile 0.1,quantile 0.5,quantile 0.9"


def test_explanations_add_up_to_the_quantiles_before_they_are_sorted(data, trained, tmp_path):
    run("cakernels", ["explain", trained[1], data[0], "--quiet", "-o", tmp_path / "e.csv"])
    head, *lines = (tmp_path / "e.csv").read_text().splitlines()
    assert head.split(",")[:4] == ["y 0.1: x0", "y 0.1: x1", "y 0.1: x2", "y 0.1: base"]
    values = np.array([line.split(",") for line in lines], float).reshape(TESTED, 3, 4).sum(axis=2)
    near(values, QuantileModel.load(trained[1]).decision_function(data[1][N:]), 1e-9)


def test_a_graph_has_the_same_quantiles(data, trained):
    onnxruntime = pytest.importorskip("onnxruntime")
    from cakernels import to_onnx

    model = QuantileModel.load(trained[1])
    session = onnxruntime.InferenceSession(to_onnx(model).SerializeToString())
    (got,) = session.run(None, {"X": data[1][N:]})
    near(got, model.predict(data[1][N:]), 1e-9)


@pytest.mark.parametrize(("words", "message"), [
    (["--interval", "0.99"], "coverage 0.99 needs 99 rows to calibrate on, and the model has 31"),
    (["--decisions"], "--decisions: the model is a regression's"),
    (["--probability"], "--probability: the model has no classes"),
])  # fmt: skip
def test_requests_that_cannot_be(data, trained, refuses, words, message):
    refuses("casvm.predict", [trained[1], data[0], *words], message, data[0].parent)


def test_intervals_of_another_model(data, refuses, tmp_path):
    run("casvm.svr", [data[0], "--C", "1", "--gamma", "1", "--quiet", "--model", tmp_path / "m.h5"])
    refuses(
        "casvm.predict", [tmp_path / "m.h5", data[0], "--interval", "0.9"], "--interval: the model has no", tmp_path
    )
