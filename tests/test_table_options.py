"""Options about the columns of a table: files of them, keys, weights; and where predictions go."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import h5py
import numpy as np
import pandas as pd
import pytest
from helpers.commands import flat, reported, run

from cacore import __version__
from cacore.checks import column_names, columns_file
from cacore.comm import Communicator
from cacore.data.containers import arrow_table
from cacore.data.encoding import Encoding, learned
from cacore.data.kinds import Overrides
from cacore.errors import InputError
from cacore.io import load, predictions
from cacore.io.mixed import keys_of
from cacore.io.names import Expected
from cacore.io.table import Targets
from cacore.io.words import number
from cacore.learn.options import add_options, from_arguments
from cacore.run.launch import Parser, Training
from cakrr import DKRR
from casvm import SMOSVC

N = 120
RIDGE = ("--sigma", "2", "--lambda", "1e-3", "--partitions", "1", "--no-standardize", "--quiet")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Training rows, with and without words, and rows to predict; their keys and weights in further columns."""
    folder = tmp_path_factory.mktemp("options")
    rng = np.random.default_rng(0)
    table = pd.DataFrame({
        "key": [f"{j:03d}" for j in range(N)], "town": rng.choice(["Oslo", "Rome"], N), "size": rng.normal(size=N),
        "zip": rng.integers(1, 4, N), "y": rng.normal(size=N), "w": rng.integers(0, 3, N),
    })  # fmt: skip
    table["y"] += table["size"] + (table.town == "Rome")
    table["class"] = np.where(table.y > 0, "high", "low")
    table.drop(columns="class").to_csv(folder / "train.csv", index=False)
    table.drop(columns=["y", "town"]).to_csv(folder / "classes.csv", index=False)
    table.drop(columns=["town", "class", "w"]).to_csv(folder / "numbers.csv", index=False)
    table.drop(columns=["key", "town", "class", "w"]).to_csv(folder / "plain.csv", index=False)
    new = table.drop(columns=["y", "w", "class"]).iloc[::-1]
    new.to_csv(folder / "new.csv", index=False)
    new.to_parquet(folder / "new.parquet")
    for name, words in {"table": ["train.csv", "--id", "key", "--weight", "w"], "plain": ["plain.csv"]}.items():
        run("cakrr.dkrr", [folder / words[0], *words[1:], "--model", folder / f"{name}.h5", *RIDGE])
    return folder


def predicting(model, data, out, *words):
    run("cakernels", ["predict", model, data, "-o", out, "--quiet", *words])
    return out


def refused(capfd, program, words):
    """The one line with which a command ends that refuses its input."""
    with pytest.raises(SystemExit) as end:
        run(program, words)
    shown = capfd.readouterr().err
    assert (end.value.code, shown.count("\n")) == (2, 1)
    return shown


def refused_prediction(capfd, model, data, out, *words):
    return refused(capfd, "cakernels", ["predict", model, data, "-o", out, "--quiet", *words])


# -- what the user says of columns ------------------------------------------------------------


def test_a_file_says_what_the_options_say(tmp_path):
    (tmp_path / "c.toml").write_text('category = ["a", "b"]\ndrop = "d"\nweight = "w"\nid = "k"\ngaps = "refuse"\n')
    (tmp_path / "c.json").write_text(json.dumps({"category": "a,b", "drop": ["d"], "weight": "w", "id": "k",
                                                 "gaps": "refuse"}))  # fmt: skip
    wanted = Overrides({"a": "category", "b": "category"}, ("d",), "refuse", "w", "k")
    for name in ("c.toml", "c.json"):
        assert Overrides.of(columns_file(tmp_path / name, "--columns")) == wanted
    added = Overrides.of(columns_file(tmp_path / "c.toml", "--columns"), {"number": ("n",), "weight": "v"})
    assert added == Overrides({"n": "number", "a": "category", "b": "category"}, ("d",), "refuse", "v", "k")
    assert wanted.words == ["--category", "a,b", "--drop", "d", "--weight", "w", "--id", "k", "--gaps", "refuse"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.toml", 'kind = "a"\nlevels = 3\n', r"c.toml: no such keys: kind, levels; there are category, number, drop"),
        ("c.toml", "category = 3", r"c.toml: category 3: it must be names of columns"),
        ("c.json", '{"gaps": "x"}', r"c.json: gaps x: it must be one of fill, refuse"),
        ("c.json", "[1]", r"c.json: it must hold category, number, drop, weight, id, gaps by name"),
        ("c.json", "category = 3", r"c.json: neither TOML nor JSON"),
        ("c.toml", None, r"c.toml: cannot be read \(No such file"),
    ],
)
def test_files_of_columns_that_are_refused(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        columns_file(tmp_path / name, "--columns")


def test_the_command_line_has_the_last_word_on_gaps(tmp_path):
    (tmp_path / "c.toml").write_text('gaps = "refuse"')
    words = ["data.csv", "--columns", str(tmp_path / "c.toml")]
    parser = Parser(prog="train")
    add_options(parser, (Training,), lambda name: True)
    refused, filled = (
        from_arguments(Training, parser.parse_args([*words, *more])) for more in ([], ["--gaps", "fill"])
    )
    assert (refused.overrides.gaps, filled.overrides.gaps) == ("refuse", "fill")


def test_kriging_refuses_weights_from_a_file_of_columns(files, tmp_path, capfd):
    (tmp_path / "c.toml").write_text('weight = "size"')
    shown = refused(capfd, "cakriging", [files / "plain.csv", "--columns", tmp_path / "c.toml"])
    assert "--columns: weight: cakriging has no such option: leave it out of the file" in shown


def test_all_wrong_columns_are_named_at_once(files, tmp_path, capfd):
    (tmp_path / "c.toml").write_text('category = ["zap", "zip"]\ndrop = "hair"\n')
    words = [files / "train.csv", "--columns", tmp_path / "c.toml", "--weight", "ton", *RIDGE]
    assert "train.csv: no feature column zap, hair, ton; the columns are key, town, size" in refused(
        capfd, "cakrr.dkrr", words
    )
    words = [files / "train.csv", "--columns", tmp_path / "c.toml", "--number", "zip", "--weight", "hair", *RIDGE]
    message = refused(capfd, "cakrr.dkrr", words)
    assert "column zip (category, number), hair (drop, weight): give each column one meaning" in message


def test_a_file_of_columns_trains_the_same_model(files, tmp_path):
    (tmp_path / "c.json").write_text('{"category": ["zip"], "id": "key", "weight": "w"}')
    words = [files / "train.csv", *RIDGE]
    of_file = reported("cakrr.dkrr", [*words, "--columns", tmp_path / "c.json"], tmp_path)
    of_options = reported("cakrr.dkrr", [*words, "--category", "zip", "--id", "key", "--weight", "w"], tmp_path)
    assert of_file["data"] == of_options["data"]
    kinds = {column["name"]: column["kind"] for column in of_file["data"]["columns"]["table"]}
    assert kinds == {"key": "key", "town": "category", "size": "number", "zip": "category", "w": "weight"}
    assert of_file["data"]["columns"]["target"] == ["y"]  # the last column is the weight


def test_a_name_with_a_comma_is_quoted():
    overrides = Overrides({"height, cm": "category", "age": "category"}, ("a, b",))
    words = overrides.words
    assert words == ["--category", '"height, cm",age', "--drop", '"a, b"']
    assert column_names(words[1], "--category") == ("height, cm", "age")
    assert column_names(" a ,b", "--drop") == ("a", "b")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plain.h5", "--out-of-core", "--weight", "w"], "plain.csv: --weight: --out-of-core reads HDF5, which has"),
        (["--id", "y", "--target", "y"], "plain.csv: column y is the target, and named by another option: drop one"),
        (["--id", "prediction"], "--id prediction: predictions have a column of this name; rename it in the data"),
        (["--weight", ""], "--weight : it must be the name of a column"),
    ],
)
def test_messages_name_the_option_that_is_wrong(files, capfd, words, message):
    words = [word for word in words if not word.endswith(".h5")]
    assert message in refused(capfd, "cakrr.bkrr2", [files / "plain.csv", *RIDGE, *words])


def test_other_files_name_the_options_that_they_cannot_have(files, tmp_path, capfd):
    (tmp_path / "c.toml").write_text("weight = 5")
    words = [files / "plain.csv", "--columns", tmp_path / "c.toml", *RIDGE]
    assert "c.toml: weight 5: it must be the name of a column" in refused(capfd, "cakrr.bkrr2", words)
    np.savez(tmp_path / "rows.npz", x=np.eye(2))
    message = refused_prediction(capfd, files / "plain.h5", tmp_path / "rows.npz", tmp_path / "p.csv", "--id", "key")
    assert "rows.npz: --id is for CSV, TSV, Parquet and Arrow files" in message
    (tmp_path / "c.toml").write_text('drop = ["x"]')
    words = ["convert", tmp_path / "rows.npz", tmp_path / "t.h5", "--columns", tmp_path / "c.toml"]
    assert "rows.npz: --columns is for CSV, TSV, Parquet and Arrow files" in refused(capfd, "cacore.io", words)


def test_estimators_take_the_users_word_on_columns(files, tmp_path):
    table = pd.read_csv(files / "train.csv", dtype={"key": str})
    X, ridge = table[["size", "zip", "key"]], {"sigma": 2.0, "lam": 1e-3}
    word = {"category": ["zip"], "drop": "key"}
    (tmp_path / "c.json").write_text(json.dumps(word))
    model = DKRR(columns=word, **ridge).fit(X, table.y)
    assert [column.kind for column in model.encoding_.columns] == ["number", "category", "dropped"]
    again = DKRR(columns=str(tmp_path / "c.json"), **ridge).fit(X, table.y)
    assert again.encoding_ == model.encoding_
    np.testing.assert_allclose(again.predict(X), model.predict(X[["zip", "size"]]), rtol=1e-9)
    svm = SMOSVC(columns={"category": "zip"}).fit(X[["size", "zip"]], table["y"] > 0)
    assert svm.encoding_.columns[1].kind == "category"
    for word, rows, message in (
        ({"weight": "zip"}, X, "columns = weight: pass the weights of the rows as sample_weight"),
        ({"drop": "zip"}, X[["size", "zip"]].to_numpy(), "columns = names columns of a table, and X is none"),
        ({"drop": "zap"}, X, "X: no feature column zap; the columns are size, zip, key"),
        ({"kind": "zip"}, X, "columns = no such keys: kind"),
    ):
        with pytest.raises(InputError, match=message):
            DKRR(columns=word, **ridge).fit(rows, table.y)
    gaps = X[["size"]].where(X["size"] < 1)
    with pytest.raises(InputError, match="NaN"):
        DKRR(columns={"gaps": "refuse"}, **ridge).fit(gaps, table.y)


# -- keys -------------------------------------------------------------------------------------


def test_predictions_carry_the_key_of_training(files, tmp_path):
    keys = [f"{j:03d}" for j in reversed(range(N))]
    out = {data: predicting(files / "table.h5", files / data, tmp_path / "p.csv").read_text().splitlines()
           for data in ("new.csv", "new.parquet")}  # fmt: skip
    assert out["new.csv"] == out["new.parquet"]
    assert out["new.csv"][0] == "key,prediction"
    assert [line.split(",")[0] for line in out["new.csv"][1:]] == keys
    without = predicting(files / "table.h5", files / "new.csv", tmp_path / "q.csv", "--id", "zip")
    assert pd.read_csv(without).zip.tolist() == pd.read_csv(files / "new.csv").zip.tolist()
    table = pd.read_parquet(predicting(files / "table.h5", files / "new.csv", tmp_path / "p.parquet"))
    assert table.key.tolist() == keys
    with h5py.File(predicting(files / "table.h5", files / "new.csv", tmp_path / "p.h5")) as file:
        assert file["key"].asstr()[:].tolist() == keys
    pd.read_csv(files / "new.csv").drop(columns="key").to_csv(tmp_path / "bare.csv", index=False)
    assert predicting(files / "table.h5", tmp_path / "bare.csv", tmp_path / "r.csv").read_text().startswith("pred")


def test_explained_values_carry_the_key(files, tmp_path):
    for model, words, key in (("table.h5", [], "key"),
                              ("plain.h5", ["--id", "key", "--ignore-extra-columns"], "key")):  # fmt: skip
        run("cakernels", ["explain", files / model, files / "new.csv", "-o", tmp_path / "v.csv", "--quiet", *words])
        values = pd.read_csv(tmp_path / "v.csv", dtype=str)
        assert values.columns[0] == key
        assert values[key].tolist() == pd.read_csv(files / "new.csv", dtype=str)[key].tolist()


def test_keys_beside_a_model_of_numbers(files, tmp_path):
    """The key is no feature there, with or without names in the model, and the target may be left out."""
    expected = pd.read_csv(predicting(files / "plain.h5", files / "plain.csv", tmp_path / "p.csv")).prediction
    rows = pd.read_csv(files / "plain.csv")
    np.savez(tmp_path / "rows.npz", x=rows[["size", "zip"]].to_numpy(float), y=rows.y.to_numpy())
    run("cakrr.dkrr", [tmp_path / "rows.npz", "--model", tmp_path / "nameless.h5", *RIDGE])
    rows["key"] = [f"row {j}" for j in range(N)]
    for model in (files / "plain.h5", tmp_path / "nameless.h5"):
        for names in (["size", "zip", "y", "key"], ["key", "size", "zip"], ["size", "zip", "key"]):
            rows[names].to_csv(tmp_path / "keyed.csv", index=False)
            written = pd.read_csv(predicting(model, tmp_path / "keyed.csv", tmp_path / "q.csv", "--id", "key"))
            assert written.key.tolist() == rows.key.tolist()
            np.testing.assert_array_equal(written.prediction, expected)


def test_an_index_without_a_name_is_a_key_by_its_number(files, tmp_path):
    rows = pd.read_csv(files / "plain.csv")
    rows.index += 7
    rows.to_csv(tmp_path / "indexed.csv")
    run("cakrr.dkrr", [tmp_path / "indexed.csv", "--id", "column 0", "--model", tmp_path / "m.h5", *RIDGE])
    expected = predicting(tmp_path / "m.h5", tmp_path / "indexed.csv", tmp_path / "p.csv")
    assert pd.read_csv(expected)["column 0"].tolist() == rows.index.tolist()
    beside = predicting(files / "plain.h5", tmp_path / "indexed.csv", tmp_path / "q.csv", "--id", "column 0")
    assert beside.read_text() == expected.read_text()


def test_a_file_without_a_header_has_its_key_by_number(files, tmp_path):
    rows = pd.read_csv(files / "plain.csv")
    expected = pd.read_csv(predicting(files / "plain.h5", files / "plain.csv", tmp_path / "p.csv"))
    for columns, key in ((["key", "size", "zip"], 0), (["size", "zip", "key"], 2), (["key", "size", "zip", "y"], 0)):
        rows.assign(key=np.arange(N) + 7)[columns].to_csv(tmp_path / "keyed.csv", index=False, header=False)
        out = predicting(files / "plain.h5", tmp_path / "keyed.csv", tmp_path / "q.csv", "--id", f"column {key}",
                         *(["--target", "3"] if "y" in columns else []))  # fmt: skip
        written = pd.read_csv(out)
        assert written[f"column {key}"].tolist() == list(range(7, N + 7))
        np.testing.assert_array_equal(written.prediction, expected.prediction)


def test_models_with_a_nameless_column_are_used_as_before(files, tmp_path):
    rows = pd.read_csv(files / "new.csv").drop(columns="key")
    rows.to_csv(tmp_path / "indexed.csv")
    encoding, X = learned(arrow_table(rows.reset_index().rename(columns={"index": ""})))
    expected = Expected(columns=replace(encoding.features, table=encoding), where="an older model")
    there = load(tmp_path / "indexed.csv", Communicator(), wanted=Targets(needed=False), expected=expected)["train"]
    np.testing.assert_array_equal(there.X, X)


def test_keys_are_written_as_they_are_read(tmp_path):
    days = pd.date_range("2024-02-28", periods=3)
    kinds = {
        "number": ([3, -1, 2], ["3", "-1", "2"]), "code": (["03", "1", "2"], ["03", "1", "2"]),
        "gap": (["a", None, ""], ["a", "", ""]), "day": (days, ["2024-02-28", "2024-02-29", "2024-03-01"]),
        "category": (pd.Categorical(["x", "y", "x"]), ["x", "y", "x"]),
        "large": ([2**62, 0, 1], [str(2**62), "0", "1"]),
    }  # fmt: skip
    for cells, written in kinds.values():
        keys = keys_of(arrow_table(pd.DataFrame({"key": cells})).column("key"))
        predictions.write(tmp_path / "p.csv", {"prediction": np.ones(3)}, Communicator(), {"key": keys})
        assert (tmp_path / "p.csv").read_text().split() == ["key,prediction", *(f"{key},1" for key in written)]


def test_keys_of_types_without_words_are_refused(files, tmp_path, capfd):
    rows = pd.read_csv(files / "plain.csv")
    for cells in ([[1, 2]] * N, [b"\xff"] * N):
        rows.assign(key=cells).to_parquet(tmp_path / "odd.parquet")
        message = refused_prediction(capfd, files / "plain.h5", tmp_path / "odd.parquet", tmp_path / "p.csv",
                                     "--id", "key")  # fmt: skip
        assert "odd.parquet: column key of type " in message
        assert "--id needs words, numbers or dates" in message


def test_keys_that_are_refused(files, tmp_path, capfd):
    message = refused_prediction(capfd, files / "plain.h5", files / "plain.csv", tmp_path / "p.csv", "--id", "key")
    assert "plain.csv: no column key; the columns are size, zip, y" in message
    np.savez(tmp_path / "rows.npz", x=np.eye(2))
    message = refused_prediction(capfd, files / "plain.h5", tmp_path / "rows.npz", tmp_path / "p.csv", "--id", "key")
    assert "--id is for CSV, TSV, Parquet and Arrow files" in message
    pd.read_csv(files / "plain.csv").assign(prediction=1).to_csv(tmp_path / "same.csv", index=False)
    words = (tmp_path / "same.csv", tmp_path / "p.csv", "--id", "prediction")
    assert "the predictions have a column of this name" in refused_prediction(capfd, files / "plain.h5", *words)
    pd.read_csv(files / "new.csv").drop(columns=["town", "size"]).to_csv(tmp_path / "less.csv", index=False)
    message = refused_prediction(capfd, files / "table.h5", tmp_path / "less.csv", tmp_path / "p.csv")
    assert "less.csv: no columns town, size" in message


# -- weights ----------------------------------------------------------------------------------


def test_weights_are_those_of_the_estimators(files, tmp_path):
    table = pd.read_csv(files / "train.csv", dtype={"key": str})
    X, new = table[["town", "size", "zip"]], pd.read_csv(files / "new.csv")[["town", "size", "zip"]]
    model = DKRR(sigma=2.0, lam=1e-3, standardize=False).fit(X, table.y, table.w)
    written = pd.read_csv(predicting(files / "table.h5", files / "new.csv", tmp_path / "p.csv"))
    np.testing.assert_allclose(written.prediction, model.predict(new), rtol=1e-9)
    assert (table.w == 0).any()

    rows = pd.read_csv(files / "classes.csv")
    words = [files / "classes.csv", "--weight", "w", "--drop", "key", "--C", "2", "--gamma", "0.5", "--tol", "1e-6"]
    for program in ("casvm.casvm", "casvm.dissmo", "asygcd"):
        run(program, [*words, "--model", tmp_path / "c.h5", "--quiet", *(
            ["--partitions", "1"] if program == "casvm.casvm" else [])])  # fmt: skip
        predicting(tmp_path / "c.h5", files / "new.csv", tmp_path / "c.csv", "--decisions", "--ignore-extra-columns")
        if program != "asygcd":  # which has no bias
            svm = SMOSVC(C=2.0, gamma=0.5, tol=1e-6).fit(rows[["size", "zip"]], rows["class"], rows.w)
            there = svm.decision_function(new[["size", "zip"]].astype(float))
            np.testing.assert_allclose(pd.read_csv(tmp_path / "c.csv").decision, there, atol=1e-4)


def loaded(path, **more):
    """Training rows of a file with weights in the column w."""
    expected = Expected(overrides=Overrides(weight="w"))
    return load(path, Communicator(), expected=expected, training=True, **more)["train"]


@pytest.mark.parametrize("labels", ["", "guess"])
@pytest.mark.parametrize("end", ["csv", "parquet"])
def test_rows_of_weight_0_are_as_if_deleted(tmp_path, labels, end):
    """Features, targets and weights are the same to the bit; levels, words and targets of such rows count nowhere."""
    rng = np.random.default_rng(1)
    n = 400
    rows = pd.DataFrame({
        "many": [f"t{j % 40}" for j in range(n)], "few": rng.choice(["a", "b"], n), "x": rng.normal(size=n).round(3),
        "w": rng.choice([0.5, 2.0, 0.0], n), "y": rng.normal(size=n).round(2),
    }).astype({"x": object})  # fmt: skip
    out = rows.w == 0
    rows.loc[out, "y"], rows.loc[out, "few"] = 1e6, [f"out {j}" for j in range(out.sum())]
    rows.loc[out & (np.arange(n) % 2 == 0), "x"] = None
    if labels:
        rows["y"] = np.where(out, "nobody", np.where(rows.y > 0, "1", "2"))
    rows = rows.astype({"y": "category"} if labels else {})
    write = {"csv": lambda rows, path: rows.to_csv(path, index=False), "parquet": lambda rows, path: rows.to_parquet(
        path, index=False)}[end]  # fmt: skip
    write(rows.astype({"x": float}), tmp_path / f"all.{end}")
    kept = rows[~out].astype({"x": float})
    write(kept.assign(y=kept.y.astype(str)) if labels else kept, tmp_path / f"kept.{end}")
    wanted = Targets(labels=labels)
    there, expected = (loaded(tmp_path / f"{name}.{end}", wanted=wanted) for name in ("all", "kept"))
    assert there.columns == expected.columns
    assert there.columns.table.columns[0].means
    assert there.n == len(kept)
    assert there.y.dtype == expected.y.dtype
    for mine, other in ((there.X, expected.X), (there.y, expected.y), (there.weights, expected.weights)):
        np.testing.assert_array_equal(mine, other)
    assert there.weights.tolist() == kept.w.tolist()


def test_means_of_levels_are_weighted():
    rng = np.random.default_rng(2)
    n = 300
    table, y = pd.DataFrame({"c": [f"t{j % 40}" for j in range(n)]}), rng.normal(size=n)
    weights = rng.uniform(0.1, 5.0, n)
    plain, X = learned(arrow_table(table), y)
    same, again = learned(arrow_table(table), y, weights=np.full(n, 3.0))
    assert same == plain
    np.testing.assert_array_equal(again, X)
    means = learned(arrow_table(table), y, weights=weights)[0].columns[0].means
    scaled = weights * n / weights.sum()
    overall = np.average(y, weights=weights)
    rows = pd.DataFrame({"c": table.c, "w": scaled, "wy": scaled * y})
    counts, sums = (rows.groupby("c")[name].sum() for name in ("w", "wy"))
    level = sums / counts
    within = (scaled * (y - level[table.c].to_numpy()) ** 2).sum() / (n - 40)
    between = max(0.0, (counts * (level - overall) ** 2).sum() - 40 * within) / n
    shrunken = overall + counts * between / (counts * between + within) * (level - overall)
    np.testing.assert_allclose(means[""], overall)
    for name, mean in shrunken.items():
        np.testing.assert_allclose(means[name], mean, err_msg=name)


def test_medians_shares_and_means_count_weights_as_repeated_rows():
    rng = np.random.default_rng(3)
    n = 500
    table = pd.DataFrame({
        "x": np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)), "few": rng.choice(list("abcd"), n),
        "many": rng.choice([f"t{j}" for j in range(60)], n),
        "rare gap": np.where(np.arange(n) < 2, np.nan, rng.random(n)),
        "day": pd.date_range("2020-01-01", periods=n).where(rng.random(n) < 0.9),
    })  # fmt: skip
    weights, y = rng.integers(1, 4, n).astype(float), rng.normal(size=n)
    weights[table.few == "d"] *= 5
    weights[:2] = 50.0  # 2 of 500 gaps are not marked, 100 of some 2,000 are
    again = np.repeat(np.arange(n), weights.astype(int))
    weighted, repeated = (
        learned(arrow_table(table), y, weights=weights)[0], learned(arrow_table(table.iloc[again]), y[again])[0]
    )  # fmt: skip
    for mine, other in zip(weighted.columns, repeated.columns, strict=True):
        assert (mine.fill, mine.indicator, mine.levels) == (other.fill, other.indicator, other.levels)
    assert [column.indicator for column in weighted.columns] == [True, False, False, True, True]
    assert weighted.columns[1].levels[0] == "d"
    plain = learned(arrow_table(table), y)[0]
    assert plain.columns[0].fill == table.x.median() != weighted.columns[0].fill
    assert not plain.columns[3].indicator


@pytest.mark.parametrize("end", ["csv", "parquet"])
def test_rows_of_weight_0_count_in_messages(tmp_path, end):
    """A wrong cell's line or row is that in the file."""
    rows = pd.DataFrame({"x": [1.0, 2, 3, 4, 5], "w": [0, 1, 0, 1, 1], "y": ["a", "b", "a", None, "b"]})
    numbers = rows.assign(x=[1, 2, 3, np.inf, 5], y=range(5))
    for table, message in ((rows, "line 5, " if end == "csv" else "row 3, "), (numbers, "row 3")):
        path = tmp_path / f"w.{end}"
        table.to_csv(path, index=False) if end == "csv" else table.to_parquet(path)
        with pytest.raises(InputError, match=message):
            loaded(path, wanted=Targets(labels="any"))


def test_weights_have_decimal_commas_as_other_columns(tmp_path):
    (tmp_path / "w.csv").write_text("x;w;y\n" + "".join(f"{j},5;{j},024;{j % 3}\n" for j in range(1, 6)))
    assert loaded(tmp_path / "w.csv").weights.tolist() == [1.024, 2.024, 3.024, 4.024, 5.024]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("1,2,-1,3", r"w.csv: line 4, column 2 \(w\): -1 is no weight: 0 or more is needed"),
        ("1,,2,3", r"w.csv: line 3, column 2 \(w\): missing"),
        ("1,2,3,x", r"w.csv: line 5, column 2 \(w\): 'x' is no number"),
        ("0,0,0,0", r"w.csv: column w: all weights are 0"),
    ],
)
def test_weights_that_are_refused(tmp_path, weights, message):
    lines = [f"{j},{j % 3},{weight}" for j, weight in enumerate(weights.split(","))]
    (tmp_path / "w.csv").write_text("\n".join(["x,y,w", *lines]))
    with pytest.raises(InputError, match=message):
        loaded(tmp_path / "w.csv")


@pytest.mark.parametrize("program", ["cakrr.dkrr", "casvm.svr"])
def test_ranks_have_the_weights_and_keys_of_one_process(files, tmp_path, in_one_job, program):
    words = [files / "train.csv", "--id", "key", "--weight", "w", "--quiet"]
    words += RIDGE[:-1] if program == "cakrr.dkrr" else ["--exact", "--C", "1", "--gamma", "0.5", "--epsilon", "0.1"]
    run(program, [*words, "--model", tmp_path / "m.h5"])
    expected = pd.read_csv(predicting(tmp_path / "m.h5", files / "new.csv", tmp_path / "p.csv"))
    predict = ("cakernels", "predict", tmp_path / "n.h5", files / "new.csv", "-o", tmp_path / "q.csv", "--quiet")
    in_one_job(3, [program, *words, "--model", tmp_path / "n.h5"], list(map(str, predict)))
    together = pd.read_csv(tmp_path / "q.csv")
    assert together.key.tolist() == expected.key.tolist()
    np.testing.assert_allclose(together.prediction, expected.prediction, atol=2e-3)


# -- predictions ------------------------------------------------------------------------------


def test_standard_output_has_predictions_alone(files, tmp_path, capsys):
    run("cakernels", ["predict", files / "table.h5", files / "new.csv", "-o", "-"])
    shown = capsys.readouterr()
    assert shown.out == predicting(files / "table.h5", files / "new.csv", tmp_path / "p.csv").read_text()
    assert "predict on" in shown.err
    assert not (tmp_path / "-").exists()


def test_a_file_may_be_called_as_standard_output(files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    predicting(files / "table.h5", files / "new.csv", "./-")
    assert capsys.readouterr().out == ""
    assert (tmp_path / "-").read_text().startswith("key,prediction")


def test_a_reader_that_leaves_ends_no_command_with_an_error(files, tmp_path):
    new = pd.read_csv(files / "new.csv")
    pd.concat([new] * 200).to_csv(tmp_path / "many.csv", index=False)
    words = [sys.executable, "-m", "cakernels", "predict", files / "table.h5", tmp_path / "many.csv", "-o", "-"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        assert command.stdout.readline() == "key,prediction\n"
        command.stdout.close()
        shown = command.stderr.read()
        assert command.wait() == 0
    assert "Traceback" not in shown
    assert "Broken pipe" not in shown


def test_levels_that_training_has_not_are_counted(files, tmp_path):
    new = pd.read_csv(files / "new.csv")
    new.loc[[3, 5, 8], "town"] = ["XY", "ZZ", "XY"]
    new.to_csv(tmp_path / "new.csv", index=False)
    report = reported("cakernels", ["predict", files / "table.h5", tmp_path / "new.csv"], tmp_path)
    assert f"column town: 3 of {N} rows have levels that training had not: XY, ZZ" in report["notes"]
    rare = pd.DataFrame({"c": ["a"] * 500 + ["b"] * 500 + ["rare"]})
    lines = []
    encoding = Encoding.of(json.loads(json.dumps(learned(arrow_table(rare))[0].described())))
    encoding.apply(arrow_table(rare), tell=lines.append)
    assert lines == []  # a level without an indicator of its own is none that training had not
    encoding.apply(arrow_table(pd.DataFrame({"c": ["a", "new", None]})), tell=lines.append)
    assert lines == ["column c: 1 of 3 rows have levels that training had not: new"]


# -- what models say of themselves ------------------------------------------------------------


def shown(capsys, *words):
    """The text of a command's tables, without frames."""
    run("cakernels", words)
    return flat(capsys.readouterr().out)


def test_a_model_says_what_it_is(files, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    words = [files / "train.csv", "--test", files / "train.csv", "--id", "key", "--weight", "w", *RIDGE]
    report = reported("cakrr.dkrr", [*words, "--model", tmp_path / "m.h5"], tmp_path)
    text = shown(capsys, "info", tmp_path / "m.h5")
    weights = pd.read_csv(files / "train.csv").w
    for line in (
        "method dkrr", f"saved 1970-01-02, by cakernels {__version__}", "target y", "kernel gaussian", "sigma 2",
        f"training rows {np.count_nonzero(weights)} ", f"rmse {number(report['metrics']['rmse'])} on {N} test rows",
        "key key", "town category", "left out: kept beside predictions", "left out: weights of the rows",
    ):  # fmt: skip
        assert line in text, line
    run("cakernels", ["fit", files / "numbers.csv", "--drop", "key", "--within", "10m", "--max-candidates", "1",
                      "--model", tmp_path / "f.h5", "--quiet"])  # fmt: skip
    text = shown(capsys, "info", tmp_path / "f.h5")
    assert f"training rows {N} of {N}" in text
    assert re.match(rf"rmse [\d.]+ on {N} validation rows ", text)
    with h5py.File(tmp_path / "f.h5") as file:
        assert "key dropped" in text
        assert file.attrs["version"] == __version__


def test_models_of_numbers_and_classes_say_what_they_are(files, tmp_path, capsys):
    rows = pd.read_csv(files / "classes.csv")
    SMOSVC(C=2.0, gamma=0.5).fit(rows[["size", "zip"]].to_numpy(float), rows["class"]).save(tmp_path / "c.h5")
    assert "classes high, low parameters kernel gaussian, gamma 0.5" in shown(capsys, "info", tmp_path / "c.h5")
    text = shown(capsys, "info", files / "plain.h5")
    assert "features 2: numbers size, zip" in text


def test_a_model_file_of_an_older_version_is_read(files, tmp_path, capsys):
    (tmp_path / "old.h5").write_bytes((files / "plain.h5").read_bytes()[512:])
    with h5py.File(tmp_path / "old.h5", "r+") as file:
        attributes = json.loads(file.attrs["attributes"])
        del file.attrs["version"], file.attrs["date"], attributes["source"]["training"]
        file.attrs["attributes"] = json.dumps(attributes)
    text = shown(capsys, "info", tmp_path / "old.h5")
    assert "method dkrr target y" in text
    assert "saved" not in text
    for model, out in ((tmp_path / "old.h5", "old.csv"), (files / "plain.h5", "new.csv")):
        predicting(model, files / "plain.csv", tmp_path / out)
    assert (tmp_path / "old.csv").read_text() == (tmp_path / "new.csv").read_text()


def test_a_damaged_model_is_not_described(files, tmp_path, capfd):
    (tmp_path / "bad.h5").write_bytes((files / "plain.h5").read_bytes()[:-100])
    assert "bad.h5: damaged" in refused(capfd, "cakernels", ["info", tmp_path / "bad.h5"])
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        file.attrs["schema"], file.attrs["attributes"] = "cakernels-model/1", "{}"
    assert "odd.h5: not a model file, or a damaged one" in refused(capfd, "cakernels", ["info", tmp_path / "odd.h5"])


def test_info_says_that_it_describes_files(capsys):
    run("cakernels", ["info", "--help"])
    text = flat(capsys.readouterr().out)
    assert "DATA or MODEL" in text
    assert "the kind of each column" in text


def test_the_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        run("cakernels", ["--version"])
    assert capsys.readouterr().out == f"cakernels {__version__}\n"
