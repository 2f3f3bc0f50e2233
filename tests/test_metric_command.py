"""Commands that learn a metric: the report, the figure, the model and what it predicts; what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.checks import names
from helpers.commands import FIELDS, flat, predicted, read, run
from helpers.data import ripples, write_hdf5

from cacore.data.metric import importances
from cakrr import KRRModel
from cakrr.options import AUTO
from casvm import SVMModel

metrics = pytest.mark.parametrize("metric", ["diagonal", "full"])


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A regression, and its signs."""
    folder = tmp_path_factory.mktemp("inputs")
    train, test = ripples(150, 0, constant=2.0), ripples(60, 1, constant=2.0)
    write_hdf5(folder / "r.h5", train=train, test=test)
    write_hdf5(folder / "c.h5", train=(train[0], np.sign(train[1])), test=(test[0], np.sign(test[1])))
    return folder


@metrics
@pytest.mark.parametrize("program", ["cakrr.bkrr2", "cakrr.dkrr", "casvm.cpsvm", "casvm.dissmo"])
def test_report_figure_and_predictions(program, metric, inputs, tmp_path, capsys, monkeypatch):
    """A model's file gives the numbers of the training command."""
    family, method = program.split(".")
    data = inputs / ("r.h5" if family == "cakrr" else "c.h5")
    parts = ["--partitions", "2"] if method in ("bkrr2", "cpsvm") else []
    more = ["--sigma", "2", "--lambda", "1e-4,1e-2"] if family == "cakrr" else ["--C", "10", "--standardize"]
    learn = ["--metric", metric, "--metric-rounds", "2", "--plot", "m.png"]
    monkeypatch.chdir(tmp_path)
    run(program, [data, *parts, *more, *learn, "--report", "r.json", "--model", "m.h5"])
    table = flat(capsys.readouterr().out)
    run(f"{family}.predict", ["m.h5", data, "-o", "p.csv", "--report", "p.json", "--quiet"])
    assert names(tmp_path) == ["m.h5", "m.png", "p.csv", "p.json", "r.json"]
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")

    made, said = read(tmp_path / "r.json"), read(tmp_path / "p.json")
    assert set(made) - {"at_grid_end"} == FIELDS | {"metric"}
    told = made["metric"]
    assert set(told) == {"form", "errors", "round", "importances"}
    assert told["form"] == metric
    assert 2 <= len(told["errors"]) <= 3
    assert told["round"] == int(np.argmin(told["errors"])) > 0
    assert sum(told["importances"]) == pytest.approx(1)
    assert told["importances"][0] > 0.5
    assert told["importances"][3] < 1e-5
    assert f"{metric}, of round {told['round']}, the best of rounds 0 to {len(told['errors']) - 1}" in table
    assert "most important features: 0 (" in table

    X, y = ripples(60, 1, constant=2.0)
    model = (KRRModel if family == "cakrr" else SVMModel).load(tmp_path / "m.h5")
    np.testing.assert_allclose(importances(model.standardizer.root), told["importances"], rtol=1e-12)
    np.testing.assert_array_equal(predicted(tmp_path / "p.csv"), model.predict(X))
    assert said["metrics"] == pytest.approx(made["metrics"]) if family == "cakrr" else made["metrics"]
    if family == "cakrr":
        assert made["metrics"]["mse"] == pytest.approx(np.mean((model.predict(X) - y) ** 2))
        chosen = min(row["validation_mse"] for row in made["grid"])
        assert chosen == pytest.approx(min(told["errors"]))
    else:
        assert made["metrics"]["accuracy"] == pytest.approx((model.predict(X) == np.sign(y)).mean())
    assert "metric" not in said


def test_without_a_metric(inputs, tmp_path):
    run("cakrr.bkrr2", [inputs / "r.h5", "--sigma", "2", "--report", tmp_path / "r.json", "--quiet"])
    assert set(read(tmp_path / "r.json")) - {"at_grid_end"} == FIELDS


@pytest.mark.parametrize("program", ["cakrr.bkrr2", "cakrr.twolevel"])
def test_auto(program, inputs, tmp_path):
    """The kernels are candidates like sigma; report, file and predictions are of the best one."""
    words = [inputs / "r.h5", "--partitions", "2", "--kernel", "auto", "--lambda", "1e-4"]
    words += ["--centers", "20", "--coarse-lambda", "1e-4"] if program == "cakrr.twolevel" else []
    run(program, [*words, "--report", tmp_path / "r.json", "--model", tmp_path / "m.h5", "--quiet"])
    run("cakrr.predict", [tmp_path / "m.h5", inputs / "r.h5", "--report", tmp_path / "p.json", "--quiet"])
    made = read(tmp_path / "r.json")
    least = min(made["grid"], key=lambda row: row["validation_mse"])
    assert {row["kernel"] for row in made["grid"]} == set(AUTO)
    assert made["params"]["kernel"] in AUTO
    if program == "cakrr.bkrr2":
        assert (made["params"]["kernel"], made["params"]["sigma"]) == (least["kernel"], least["sigma"])
    assert read(tmp_path / "p.json")["metrics"]["mse"] == pytest.approx(made["metrics"]["mse"])
    assert KRRModel.load(tmp_path / "m.h5").like.kind == made["params"]["kernel"]


def test_classes(inputs, tmp_path):
    words = [inputs / "c.h5", "--classify", "--partitions", "2", "--metric", "full", "--lambda", "1e-3"]
    run("cakrr.bkrr2", [*words, "--report", tmp_path / "r.json", "--quiet"])
    made = json.loads((tmp_path / "r.json").read_text())
    assert made["metrics"]["accuracy"] > 0.9
    assert made["metric"]["importances"][0] > 0.5


BAD = {
    "a figure of nothing": ("cakrr.bkrr2", "r.h5 --sigma 1 --lambda 1e-3 --plot m.png",
                            "or the settings that were compared: give several values of --sigma or --lambda"),
    "a figure of no kind": ("cakrr.bkrr2", "r.h5 --metric full --plot m.xyz --checkpoint never",
                            "m.xyz: the name of a figure ends with one of"),
    "libsvm": ("casvm.cpsvm", "c.h5 --metric full --libsvm m.model", "LIBSVM's format has no metric"),
    "a file that is no model": (
        "cakrr.bkrr2", "r.h5 --metric full --metric-init r.h5", "r.h5: not a model file, or a damaged one"
    ),
    "a file that is not there": ("cakrr.bkrr2", "r.h5 --metric full --metric-init none.h5", "none.h5: no such"),
    "a metric for a method without parts": ("cakrr.dkrr", "r.h5 --metric-init r.h5", "--metric-init"),
    "no rounds": ("casvm.dissmo", "c.h5 --metric full --metric-rounds 0", "--metric-rounds 0: it must be a whole"),
    "another form": ("cakrr.dkrr", "r.h5 --metric low", "--metric: invalid choice: 'low'"),
    "asygcd": ("asygcd", "c.h5 --metric full", "--metric full"),
    "auto of an SVM": ("casvm.cpsvm", "c.h5 --kernel auto", "--kernel: invalid choice: 'auto'"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_refused(what, inputs, refuses):
    program, words, message = BAD[what]
    refuses(program, words.split(), message, inputs)
