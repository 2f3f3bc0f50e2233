"""Predictions of saved models by the commands of all families, and what these commands refuse."""

from __future__ import annotations

import csv
from itertools import permutations

import h5py
import numpy as np
import pytest
from helpers.commands import FIELDS, flat, predicted, read, reported, run
from helpers.data import split_rows
from helpers.families import PREDICT, model_of, predict
from sklearn.metrics import confusion_matrix

from cacore.comm import Communicator
from cacore.io import predictions
from cacore.io.predictions import Labels

families = pytest.mark.parametrize("family", PREDICT)


# -- predictions -----------------------------------------------------------------------------------


def prediction_columns(path):
    """The columns of a file of predictions, in their order."""
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            names: list[bytes] = []  # h5py 3.10 lists names by the alphabet; the file knows the order they came in
            file.id.links.iterate(names.append, idx_type=h5py.h5.INDEX_CRT_ORDER)
            columns = {name.decode(): file[name.decode()] for name in names}
            return {k: v.asstr()[:] if h5py.check_string_dtype(v.dtype) else v[:] for k, v in columns.items()}
    if path.suffix == ".parquet":
        table = pytest.importorskip("pyarrow.parquet").read_table(path)
        return {name: table[name].to_numpy() for name in table.column_names}
    head, *rows = csv.reader(path.read_text().splitlines())
    return {name: np.array(column) for name, column in zip(head, zip(*rows, strict=True), strict=True)}


@families
@pytest.mark.parametrize("name", ["features.csv", "test.csv", "rest.h5"])
def test_predict_formats(name, family, inputs, tmp_path):
    """Rows with or without their label; without --decisions one column."""
    model, cls = PREDICT[family]
    run(f"{family}.predict", [inputs / model, inputs / name, "-o", tmp_path / "p.csv", "--quiet"])
    assert (tmp_path / "p.csv").read_text().startswith("prediction\n")
    expected = cls.load(inputs / model).predict(split_rows("test")[0])
    np.testing.assert_array_equal(predicted(tmp_path / "p.csv"), expected)


@families
def test_predict_suggests_an_output_option(family, inputs, capsys):
    run(f"{family}.predict", [inputs / PREDICT[family][0], inputs / "good.h5"])
    shown = capsys.readouterr().out
    assert "give -o OUT.csv" in shown
    assert ("mse" if family == "cakrr" else "balanced accuracy") in shown


@pytest.mark.parametrize(
    ("program", "more"), [("casvm.fcfssvm", ["--partitions", "3", "--route", "soft", "--C", "1"]), ("asygcd", []),
                          ("asygcd", ["--multi-class", "ovo"])], ids=["parts", "asygcd", "pairs"],
)  # fmt: skip
@pytest.mark.parametrize("k", [2, 3])
def test_predict(k, program, more, inputs, tmp_path, capsys):
    """The same accuracy and the same labels as in training; the decisions beside them."""
    data, method = inputs / {2: "good.h5", 3: "three.h5"}[k], program.split(".")[-1]
    trained = reported(program, [data, *more, "--model", tmp_path / "m.h5"], tmp_path)
    words = [tmp_path / "m.h5", data, "-o", tmp_path / "p.csv", "--decisions"]
    run(predict(program), [*words, "--report", tmp_path / "p.json", "--quiet"])
    made = read(tmp_path / "p.json")
    assert set(made) == FIELDS
    assert (made["method"], made["data"]["n_test"], made["data"]["n_train"]) == ("predict", 40, 0)
    model = model_of(program, tmp_path / "m.h5")
    rule = {"multi_class": model.multi_class} if program == "asygcd" else {"route": "soft"}
    assert made["params"] == {"model": str(tmp_path / "m.h5"), "method": method, "C": 1.0, **rule}
    assert made["partition_sizes"] == model.sizes.tolist()
    assert made["metrics"] == trained["metrics"]
    lines = [line.split(",") for line in (tmp_path / "p.csv").read_text().splitlines()]
    assert lines[0] == ["prediction", *(["decision"] if k == 2 else ["decision -1", "decision 1", "decision 4"])]
    assert lines[1][0] in ("-1", "1", "4")  # as the labels are, not as 1.0
    table, (X, y) = np.array(lines[1:], float), split_rows("test", k)
    np.testing.assert_array_equal(table[:, 0], model.predict(X))
    np.testing.assert_array_equal(table[:, 1:], model.decision_function(X).reshape(40, -1))
    assert confusion_matrix(y, table[:, 0]).tolist() == trained["metrics"]["confusion"]
    assert (table[:, 0] == y).mean() == pytest.approx(trained["metrics"]["accuracy"])
    for name in ("p.h5", "p.parquet"):
        run(predict(program), [*words[:3], tmp_path / name, "--decisions", "--quiet"])
        found = prediction_columns(tmp_path / name)
        assert (list(found), found["prediction"].dtype.kind) == (lines[0], "i")
        np.testing.assert_array_equal(np.column_stack(list(found.values())), table)
    assert capsys.readouterr() == ("", "")


def test_predictions_of_words(tmp_path):
    """Labels with what CSV must quote, and numbers of either precision, of all digits in every form of file."""
    names, codes = np.array(["a,b", 'c "d"', "\N{SNOWMAN}/e"]), np.array([2, 0, 1, 1])
    rng = np.random.default_rng(0)
    columns = {
        "prediction": Labels(names, codes), "decision": rng.normal(size=4), "probability a,b": rng.random(4, np.float32)
    }  # fmt: skip
    for name in ("p.csv", "p.h5", "p.parquet"):
        predictions.write(tmp_path / name, columns, Communicator())
        found = prediction_columns(tmp_path / name)
        assert list(found) == list(columns)
        assert [str(label) for label in found["prediction"]] == names[codes].tolist()
        for column in list(columns)[1:]:
            np.testing.assert_array_equal(found[column].astype(columns[column].dtype), columns[column])


def test_predictions_that_are_not_written(inputs, tmp_path, refuses):
    words = [inputs / "svm.h5", inputs / "good.h5", "-o", "p.xlsx"]
    refuses("casvm.predict", words, "p.xlsx: predictions are written as .csv, .parquet or .h5", tmp_path)


@families
def test_libsvm_files_of_fewer_features(family, inputs, tmp_path, refuses, capfd, monkeypatch):
    """They leave out features that are 0 in all their rows: that is said, and refused where training rows have all."""
    program, narrow = {"cakrr": "cakrr.bkrr2", "casvm": "casvm.cpsvm", "asygcd": "asygcd"}[family], tmp_path / "narrow"
    narrow.write_text("1 1:0.5 3:1\n-1 2:0.5\n4 1:3\n")
    monkeypatch.chdir(tmp_path)
    run(program, [inputs / "train", "--test", "narrow", "--model", "m.h5"])
    note = "narrow has 3 of 12 features; the others are taken as 0"
    assert note in flat(capfd.readouterr().out)
    run(f"{family}.predict", ["m.h5", "narrow"])
    assert note in flat(capfd.readouterr().out)
    narrow.write_text("1 1:0.5 2:1\n-1 2:0.5\n")
    line = refuses(program, ["train.h5", "--test", narrow], f"{narrow}: 2 features, but 3 in train.h5", inputs)
    assert "convert both files together" in line
    refuses(f"{family}.predict", [PREDICT[family][0], narrow], "features, but 3 in the training rows of", inputs)


# -- what is refused: the arguments, and what the line on stderr must say ----------------------------

BAD_PREDICT = {
    "no model": (["nosuch.h5", "test.csv"], "nosuch.h5: no such model"),
    "not a model": (["good.h5", "test.csv"], "good.h5: not a model"),
    "not hdf5": (["train.csv", "test.csv"], "train.csv: not a model"),
    "truncated model": (["half.h5", "test.csv"], "half.h5: damaged: it has changed since it was written"),
    "another truncated file": (["truncated.h5", "test.csv"], "truncated.h5: not a model"),
    "no data": (["MODEL", "nosuch.csv"], "nosuch.csv: no such file"),
    "truncated data": (["MODEL", "truncated.h5"], "truncated.h5"),
    "features": (["MODEL", "wide.h5"], "6 features, the model MODEL has 3"),
    "nan": (["MODEL", "nan.csv"], "nan.csv"),
    "output": (["MODEL", "test.csv", "-o", "nosuch/p.csv"], "directory"),
    "output is a directory": (["MODEL", "test.csv", "-o", "."], "is a directory"),
    "threads": (["MODEL", "test.csv", "--threads", "0"], "--threads 0"),
    "unknown option": (["MODEL", "test.csv", "--colour", "red"], "--colour"),
    "missing argument": (["MODEL"], "DATA"),
}


@families
@pytest.mark.parametrize("what", BAD_PREDICT)
def test_predict_refused(what, family, inputs, refuses):
    words, message = BAD_PREDICT[what]
    name = PREDICT[family][0]
    out = ["--report", "out.json", *([] if "output" in what else ["-o", "out.csv"])]
    words = [name if word == "MODEL" else word for word in words]
    refuses(f"{family}.predict", [*words, *out], message.replace("MODEL", name), inputs)


@pytest.mark.parametrize(("family", "other"), [*permutations(PREDICT, 2)])
def test_model_of_another_family(other, family, inputs, refuses):
    path, kinds = inputs / PREDICT[other][0], {"cakrr": "krr", "casvm": "svm", "asygcd": "asygcd"}
    needed = "svm or svr or quantiles" if family == "casvm" else kinds[family]
    message = f"{family}.predict: {path}: a model of the {kinds[other]} family; {needed} is needed\n"
    assert refuses(f"{family}.predict", [path, "test.csv", "-o", "out.csv"], "", inputs) == message
