"""Tables with words, gaps and dates in commands and estimators: one model from any kind of file and number of ranks."""

from __future__ import annotations

import json
import pickle
import re

import h5py
import numpy as np
import pandas as pd
import pytest
from helpers.columns import random_table
from helpers.commands import predicted, run
from sklearn.exceptions import DataConversionWarning

import cakernels
from cacore.comm import Communicator
from cacore.data.containers import arrow_table
from cacore.data.encoding import learned
from cacore.data.kinds import Overrides
from cacore.errors import InputError
from cacore.io import load
from cacore.io.mixed import Mixed, MixedBlocks
from cacore.io.names import Expected
from cacore.io.table import LABELS, RowsRequest, Targets
from cakernels import AutoKernelClassifier, to_onnx
from cakrr import BKRR2, DKRR
from casvm import SMOSVC

N = 180
ALONE = Communicator()


def frame(n=N, seed=0):
    """Rows of a table with a number, categories, a date, gaps, a key and a target."""
    rng = np.random.default_rng(seed)
    town, size = rng.choice(["Oslo", "Rome", "Paris, Texas"], n, p=[0.5, 0.4, 0.1]), rng.normal(size=n)
    day = pd.date_range("2020-01-01", periods=n, freq="5D")
    price = (
        2.0 * size
        + (town == "Rome")
        + np.cos(2 * np.pi * day.strftime("%j").astype(float) / 365.25)
        + 0.05 * rng.normal(size=n)
    )
    table = pd.DataFrame({
        "key": [f"id{seed}-{j}" for j in range(n)], "town": town, "size": np.round(size, 6),
        "day": day.strftime("%Y-%m-%d"), "rooms": rng.integers(1, 6, n).astype(float), "price": np.round(price, 6),
    })  # fmt: skip
    table.loc[rng.random(n) < 0.1, "rooms"] = np.nan
    table.loc[rng.random(n) < 0.05, "town"] = None
    return table


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Training rows in files of every form, and test rows."""
    folder = tmp_path_factory.mktemp("tables")
    train, test = frame(), frame(60, seed=1)
    train.to_csv(folder / "train.csv", index=False)
    train.to_csv(folder / "train.csv.gz", index=False)
    train.to_csv(folder / "semicolons.csv", index=False, sep=";", decimal=",")
    train.to_csv(folder / "tabs.tsv", index=False, sep="\t")
    (folder / "quoted.csv").write_text(
        "\ufeff" + train.to_csv(index=False, quoting=1, lineterminator="\r\n"), newline=""
    )
    train.to_parquet(folder / "train.parquet")
    train.to_feather(folder / "train.arrow", compression="uncompressed")
    test.to_csv(folder / "test.csv", index=False)
    test.drop(columns=["key", "price"]).sample(frac=1, axis=1, random_state=0).to_parquet(folder / "new.parquet")
    return folder


def rows(path, **expected):
    return load(path, ALONE, wanted=Targets(), expected=Expected(**expected), training=True)["train"]


@pytest.mark.parametrize(
    "name", ["train.csv.gz", "semicolons.csv", "tabs.tsv", "quoted.csv", "train.parquet", "train.arrow"]
)
def test_every_form_of_file_has_the_same_features(files, name):
    expected, here = rows(files / "train.csv"), rows(files / name)
    assert here.columns == expected.columns
    np.testing.assert_array_equal(here.X, expected.X)
    np.testing.assert_array_equal(here.y, expected.y)
    assert "identifiers: key" in here.columns.table.notes[0]


def test_a_data_frame_has_the_features_of_its_file(files):
    table = frame()
    model = DKRR(sigma=4.0, lam=1e-3).fit(table.drop(columns="price"), table.price)
    assert model.encoding_.columns[1:] == rows(files / "train.csv").columns.table.columns[1:]
    again = pickle.loads(pickle.dumps(model))
    test = frame(60, seed=1)
    np.testing.assert_array_equal(again.predict(test), model.predict(test))
    np.testing.assert_array_equal(model.predict(test[test.columns[::-1]]), model.predict(test))
    assert model.score(test, test.price) > 0.8


CONVERTED = ["train.csv", "train.csv.gz", "semicolons.csv", "quoted.csv", "train.parquet", "train.arrow"]


@pytest.mark.parametrize("name", CONVERTED)
def test_converted_tables_have_the_features_that_commands_make(files, tmp_path, name):
    run("cacore.io", ["convert", files / name, tmp_path / "t.h5", "--test", files / "test.csv", "--quiet"])
    expected = rows(files / name)
    stored = load(tmp_path / "t.h5", ALONE, training=True)
    assert stored["train"].columns == expected.columns
    np.testing.assert_array_equal(stored["train"].X, expected.X)
    np.testing.assert_array_equal(stored["train"].y, expected.y)
    test = load(files / "test.csv", ALONE, expected=Expected(columns=expected.columns))["train"]
    np.testing.assert_array_equal(stored["test"].X, test.X)


@pytest.mark.parametrize("seed", range(0, 100, 4))
def test_random_tables_in_blocks_have_the_bits_of_those_in_memory(tmp_path, tuned, seed):
    """Blocks of 7 rows; words begin after the first cells, by which columns of decimal numbers are taken for such."""
    rng = np.random.default_rng(seed)
    table = random_table(rng).assign(y=0.0)
    table["y"] = rng.normal(size=len(table))
    if seed % 8 == 0 and len(table) > 60:
        table["late"] = [*rng.choice([0.5, 1.5], len(table) - 30), *rng.choice(["a", "b"], 30)]
    table.to_csv(tmp_path / "t.csv", index=False)
    tuned(mixed_block=7 * 8 * table.shape[1], mixed_sample=400)
    request = RowsRequest(target="y", training=True)
    try:
        whole = Mixed(tmp_path / "t.csv", "csv", request).table(ALONE)
    except InputError as error:
        with pytest.raises(InputError, match=re.escape(str(error))):
            list(MixedBlocks(tmp_path / "t.csv", "csv", request, tmp_path).blocks())
        return
    blocks = list(MixedBlocks(tmp_path / "t.csv", "csv", request, tmp_path).blocks())
    assert len(blocks) > 1 or len(table) < 8
    assert all(block.columns == whole.columns for block in blocks)
    np.testing.assert_array_equal(np.concatenate([block.X for block in blocks]), whole.X)
    np.testing.assert_array_equal(np.concatenate([block.y for block in blocks]), whole.y)
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_a_converted_table_is_trained_on_out_of_core_and_its_model_takes_both_files(files, tmp_path):
    train, test = (files / f"{part}.csv" for part in ("train", "test"))
    run("cacore.io", ["convert", train, tmp_path / "t.h5", "--test", test, "--quiet"])
    words = ["--partitions", "2", "--sigma", "2", "--lambda", "1e-3", "--quiet"]
    run("cakrr.bkrr2", [tmp_path / "t.h5", "--out-of-core", "--model", tmp_path / "blocks.h5", *words])
    run("cakrr.bkrr2", [train, "--model", tmp_path / "memory.h5", *words])
    answers = []
    for model, data in (("blocks", test), ("memory", test), ("memory", tmp_path / "t.h5")):
        run("cakrr.predict", [tmp_path / f"{model}.h5", data, "-o", tmp_path / "out.csv", "--quiet"])
        answers.append(predicted(tmp_path / "out.csv"))
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-9)
    np.testing.assert_allclose(answers[2][-len(answers[1]) :], answers[1], rtol=1e-12)


def test_odd_words_are_names_of_features_in_native_files(tmp_path):
    words = ["New  York", "C#", "'quoted'", "a\xa0b", "tab\there", "line\nbreak", "#"]
    table = pd.DataFrame({"t": np.repeat(words, 4), "x": np.arange(28.0) % 5, "y": np.arange(28.0)})
    table.to_parquet(tmp_path / "t.parquet")
    run("cacore.io", ["convert", tmp_path / "t.parquet", tmp_path / "t.h5", "--quiet"])
    stored, expected = load(tmp_path / "t.h5", ALONE)["train"], rows(tmp_path / "t.parquet")
    assert stored.columns == expected.columns
    np.testing.assert_array_equal(stored.X, expected.X)


@pytest.mark.parametrize(
    ("train", "test", "match"),
    [
        (["01/02/2020", "03/25/2020"], ["01/02/2020", "25/12/2020"], "'25/12/2020' is no date"),
        (["1,234", "1,5"], ["1,234", "1234.5e0"], "is no number"),
        (["14:35", "9:05"], ["14:35", "1435"], "is no number"),
        (["1,234", "1,500"], ["2,345", "17"], ""),
        (["2020-01-02", "2020-03-04"], ["01/02/2020", "03/25/2020"], ""),
    ],
)
def test_cells_of_a_file_are_read_in_one_form_however_many_blocks_it_has(tmp_path, tuned, train, test, match):
    """Cells of the second form stand in later blocks, as in memory they stand beside the others."""
    tuned(mixed_block=8 * 8)
    rng, paths = np.random.default_rng(0), {}
    for name, cells in (("train", train), ("test", test)):
        table = pd.DataFrame({"c": np.repeat(cells, 30), "w": rng.choice(["a", "b"], 60), "y": rng.normal(size=60)})
        table["x"] = rng.normal(size=60)
        paths[name] = tmp_path / f"{name}.csv"
        table.to_csv(paths[name], index=False)
    convert = ["convert", paths["train"], tmp_path / "t.h5", "--test", paths["test"], "--target", "y", "--quiet"]
    columns = load(paths["train"], ALONE, target="y", training=True)["train"].columns
    if match:
        with pytest.raises(InputError, match=match):
            load(paths["test"], ALONE, expected=Expected(columns=columns))
        with pytest.raises(SystemExit):
            run("cacore.io", convert)
        return
    run("cacore.io", convert)
    expected = load(paths["test"], ALONE, expected=Expected(columns=columns))["train"]
    np.testing.assert_array_equal(load(tmp_path / "t.h5", ALONE)["test"].X, expected.X)


def test_sorted_codes_are_categories_in_every_block(tmp_path, tuned):
    """Some blocks have rare levels alone, whose numbers are no other column's."""
    tuned(mixed_block=8 * 8)
    codes = np.concatenate([np.repeat([1, 2], 300), np.arange(1000, 1040)])
    table = pd.DataFrame({"c": codes, "x": np.arange(640.0) % 7, "y": np.arange(640.0)})
    table.to_parquet(tmp_path / "t.parquet")
    (tmp_path / "c.json").write_text('{"category": ["c"]}')
    options = ["--target", "y", "--columns", tmp_path / "c.json", "--quiet"]
    run("cacore.io", ["convert", tmp_path / "t.parquet", tmp_path / "t.h5", *options])
    expected = rows(tmp_path / "t.parquet", overrides=Overrides({"c": "category"}))
    np.testing.assert_array_equal(load(tmp_path / "t.h5", ALONE)["train"].X, expected.X)


REFUSED_TABLES = {
    "several sources": (["{train}"], [], "several sources"),
    "a split": ([], ["--split", "90"], "--split: test rows would be learned from"),
    "duplicates": ([], ["--drop-duplicates"], "--drop-duplicates, which compares numbers"),
    "refused gaps": ([], ["--columns", {"gaps": "refuse"}], "'id0-0' is not a number"),
    "weights": ([], ["--columns", {"weight": "size"}], "weight: an HDF5 file has neither"),
    "an unknown column": ([], ["--columns", {"drop": ["colour"]}], "no feature column colour"),
    "a word among numbers": ([], ["--columns", {"number": ["town"]}], "line 2, column 1 (town)"),
    "rows of another form": (
        ["{libsvm}"],
        ["--columns", {"drop": ["town"]}],
        "a.svm: --columns is for CSV, TSV, Parquet and Arrow files",
    ),
    "test rows of another form": ([], ["--test", "{libsvm}"], "has columns of words, gaps or dates"),
    "no rows": (["{empty}"], [], "no rows"),
    "no test rows": ([], ["--test", "{empty}"], "no rows"),
    "a target of words": ([], ["--target", "town"], "choose a class with --binarize"),
}


@pytest.mark.parametrize("case", REFUSED_TABLES)
def test_tables_that_are_not_converted(files, tmp_path, refuses, case):
    sources, options, message = REFUSED_TABLES[case]
    if options and isinstance(options[-1], dict):
        (tmp_path / "columns.json").write_text(json.dumps(options[-1]))
        options = [options[0], tmp_path / "columns.json"]
    (tmp_path / "a.svm").write_text("1 1:2\n0 1:3 2:4\n")
    frame().iloc[:0].to_parquet(tmp_path / "e.parquet")
    train = files / "train.csv"
    named = {"train": train, "libsvm": tmp_path / "a.svm", "empty": tmp_path / "e.parquet"}
    sources, options = ([str(word).format(**named) for word in words] for words in (sources, options))
    first = sources if sources and case != "several sources" else [train, *sources]
    refuses("cacore.io", ["convert", *first, tmp_path / "t.h5", *options], message, tmp_path)


def test_kinds_of_columns_and_a_class_are_chosen_in_a_conversion(files, tmp_path):
    (tmp_path / "columns.toml").write_text('category = ["rooms"]\ndrop = ["day"]\n')
    options = ["--columns", tmp_path / "columns.toml", "--target", "town", "--binarize", "Rome"]
    frame().dropna(subset=["town"]).to_csv(tmp_path / "t.csv", index=False)
    run("cacore.io", ["convert", tmp_path / "t.csv", tmp_path / "t.h5", *options, "--quiet"])
    stored = load(tmp_path / "t.h5", ALONE)["train"]
    kinds = {column.name: column.kind for column in stored.columns.table.columns}
    assert kinds == {"key": "identifier", "size": "number", "day": "dropped", "rooms": "category", "price": "number"}
    assert set(np.unique(stored.y)) == {-1.0, 1.0}


def test_the_columns_of_a_native_file_are_shown_and_checked(files, tmp_path, capsys):
    run("cacore.io", ["convert", files / "train.csv", tmp_path / "t.h5", "--quiet"])
    capsys.readouterr()
    run("cacore.io", ["info", tmp_path / "t.h5"])
    assert "town" in capsys.readouterr().out
    other = tmp_path / "other.h5"
    run("cacore.io", ["convert", files / "test.csv", other, "--quiet"])
    expected = Expected(columns=load(tmp_path / "t.h5", ALONE)["train"].columns, where="the model")
    with pytest.raises(InputError, match="its features are not made of columns as those of the model"):
        load(other, ALONE, expected=expected)
    with h5py.File(tmp_path / "t.h5", "r+") as file:
        file["train/table"][:5] = 0
    with pytest.raises(InputError, match="table does not describe columns: it is damaged"):
        load(tmp_path / "t.h5", ALONE)


COMMANDS = [
    ("cakrr.bkrr2", "{files}/train.csv", "--test", "{files}/test.csv", "--model", "{out}/m.h5", "--report",
     "{out}/r.json", "--partitions", "2", "--sigma", "2", "--lambda", "1e-3", "--quiet"),
    ("cakrr.predict", "{out}/m.h5", "{files}/test.csv", "-o", "{out}/test.csv", "--quiet"),
    ("cakrr.predict", "{out}/m.h5", "{files}/new.parquet", "-o", "{out}/new.csv", "--quiet"),
]  # fmt: skip


def written(out, files):
    return [[word.format(out=out, files=files) for word in command] for command in COMMANDS]


def test_commands_take_a_table_as_it_is_and_keep_how(files, tmp_path):
    for program, *words in written(tmp_path, files):
        run(program, words)
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["metrics"]["r2"] > 0.8
    assert any("identifiers: key" in note for note in report["notes"])
    assert [entry["name"] for entry in report["data"]["columns"]["table"]] == ["key", "town", "size", "day", "rooms"]
    # The second file has neither the key nor the target, and its columns are in another order.
    assert (tmp_path / "test.csv").read_text() == (tmp_path / "new.csv").read_text()
    run("cakernels", ["explain", tmp_path / "m.h5", files / "test.csv", "-o", tmp_path / "v.csv", "--quiet"])
    explained = pd.read_csv(tmp_path / "v.csv")
    assert list(explained) == ["town", "size", "day", "rooms", "base"]
    np.testing.assert_allclose(explained.sum(axis=1), predicted(tmp_path / "test.csv"), atol=1e-8)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_have_the_features_of_one_process(files, tmp_path, in_one_job, ranks):
    here = tmp_path / "alone"
    here.mkdir()
    for program, *words in written(here, files):
        run(program, words)
    in_one_job(ranks, *written(tmp_path, files))
    alone, together = (json.loads((folder / "r.json").read_text()) for folder in (here, tmp_path))
    assert together["data"]["columns"] == alone["data"]["columns"]
    np.testing.assert_allclose(predicted(tmp_path / "new.csv"), predicted(here / "new.csv"), rtol=1e-9)


def test_errors_name_file_line_column_and_remedy(files, tmp_path):
    text = (files / "train.csv").read_text().splitlines()
    cells = text[5].split(",")
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("\n".join([*text[:5], ",".join([*cells[:2], "much", *cells[3:]]), *text[6:]]))
    with pytest.raises(
        InputError, match=r"wrong.csv: line 6, column 2 \(size\): 'much' is not a number, as 99 % .*--category size"
    ):
        rows(wrong)
    wrong.write_text("\n".join([*text[:5], ",".join([*cells[:5], ""]), *text[6:]]))
    with pytest.raises(InputError, match=r"wrong.csv: line 6.*column 5 \(price\): missing: remove the row"):
        rows(wrong)
    wrong.write_text("\n".join([*text[:5], "a,b,c", *text[6:]]))
    with pytest.raises(InputError, match=r"wrong.csv: .*"):
        rows(wrong)
    table = rows(files / "train.csv").columns
    frame(60).drop(columns=["town", "rooms"]).to_csv(wrong, index=False)
    with pytest.raises(InputError, match="no columns town, rooms, which model has"):
        load(wrong, ALONE, expected=Expected(columns=table, where="model"))


def test_estimators_refuse_arrays_and_other_columns_after_a_table():
    table = frame()
    X, y = table.drop(columns="price"), table.town == "Rome"
    model = SMOSVC(C=1.0, gamma=0.1).fit(X.drop(columns="town"), y)
    with pytest.raises(InputError, match="SMOSVC was fitted to a table; give one with its columns: size, day, rooms"):
        model.predict(np.zeros((2, 4)))
    with pytest.raises(InputError, match="X: no column day"):
        model.predict(X.drop(columns="day"))
    with pytest.raises(InputError, match="X: column size, row 0: 'x' is no number"):
        model.predict(X[:1].assign(size="x"))
    numbers = X[["size"]].assign(other=1.0)
    assert "encoding_" not in vars(model.fit(numbers, y))


def test_the_front_takes_a_table(tmp_path):
    table = frame()
    X, y = table.drop(columns=["price", "town"]), np.where(table.price > 0, "dear", "cheap")
    model = AutoKernelClassifier(max_time=None, max_candidates=1, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.7
    model.save(tmp_path / "m.h5")
    np.testing.assert_array_equal(cakernels.load(tmp_path / "m.h5").predict(X), model.predict(X))


def test_model_files_hold_the_columns(tmp_path):
    table = frame()
    model = BKRR2(n_parts=2, sigma=2.0, lam=1e-3, random_state=0).fit(table.drop(columns="price"), table.price)
    model.save(tmp_path / "m.h5")
    test = frame(60, seed=1)
    np.testing.assert_array_equal(BKRR2.load(tmp_path / "m.h5").predict(test), model.predict(test))


@pytest.mark.parametrize("kind", ["regression", "classes"])
def test_onnx_models_take_the_columns_by_name(kind):
    onnxruntime = pytest.importorskip("onnxruntime")
    table, test = frame(), frame(60, seed=1)
    test.loc[:3, "town"] = "Atlantis"
    columns = [f"c{j % 50}" for j in range(N)]  # a category with means
    table["code"], test["code"] = columns, [*columns[:57], "new", None, "c1"]
    X, y = table.drop(columns="price"), table.price if kind == "regression" else table.price > 0
    model = (DKRR(sigma=4.0, lam=1e-3) if kind == "regression" else SMOSVC(C=1.0, gamma=0.1)).fit(X, y)
    inputs = {name: test[[name]].astype(object).where(test[[name]].notna(), "").to_numpy() for name in ("town", "code")}
    inputs |= {name: test[[name]].to_numpy(float) for name in ("size", "rooms")}
    inputs["day"] = (pd.to_datetime(test[["day"]].squeeze()) - pd.Timestamp(0)).dt.days.to_numpy(float)[:, None]
    session = onnxruntime.InferenceSession(to_onnx(model).SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs), strict=True))
    if kind == "regression":
        np.testing.assert_allclose(outputs["prediction"].ravel(), model.predict(test), rtol=1e-6, atol=1e-8)
    else:
        np.testing.assert_array_equal(outputs["label"].ravel(), model.predict(test))


def test_info_shows_the_columns(files, capsys):
    run("cakernels", ["info", files / "train.csv"])
    shown = capsys.readouterr().out
    assert f"{N} rows x" in shown
    for name, kind in (("key", "identifier"), ("town", "category"), ("size", "number"), ("day", "date")):
        assert any({name, kind} <= set(re.split(r"[^\w]+", line)) for line in shown.splitlines())


def written_rows(folder, text, name="rows.csv", **options):
    """Training rows of a file with this text."""
    (folder / name).write_text(text, **options)
    return rows(folder / name)


def test_labels_are_words_as_they_are_written(tmp_path):
    lines = [f"{'ab'[j % 2]},{j / 7:.3f},{['007', '7', 'None', 'true'][j % 4]}" for j in range(40)]
    (tmp_path / "rows.csv").write_text("\n".join(["w,x,label", *lines]))
    table = load(tmp_path / "rows.csv", ALONE, wanted=LABELS, training=True)["train"]
    assert sorted(set(table.y.tolist())) == ["007", "7", "None", "true"]


@pytest.mark.parametrize("mark", [";", "|", "\t"])
def test_separators_of_numbers_and_words(tmp_path, mark):
    lines = [f"{'ab'[j % 2]}{mark}{j},5{mark}{j * j}" for j in range(30)]
    table = written_rows(tmp_path, "\n".join([f"w{mark}v{mark}y", *lines]))
    assert table.columns.features == ("w = a", "w = b", "v")
    np.testing.assert_array_equal(table.X[:, 2], np.arange(30) + 0.5)


def test_years_may_be_names_beside_words(tmp_path):
    lines = [f"{'Oslo' if j % 2 else 'Rome'},{j / 7:.3f},{j}" for j in range(30)]
    table = written_rows(tmp_path, "\n".join(["town,2019,2020", *lines]))
    assert (table.n, table.columns.target) == (30, ("2020",))
    assert "2019" in table.columns.features


def test_rows_without_names_are_matched_by_position(tmp_path):
    lines = [f"{'ab'[j % 2]},{j / 7:.3f},{j}" for j in range(30)]
    train = written_rows(tmp_path, "\n".join(lines))
    again = load(tmp_path / "rows.csv", ALONE, expected=Expected(columns=train.columns, where="model"))["train"]
    np.testing.assert_array_equal(again.X, train.X)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_other_encodings_are_refused_in_one_line(tmp_path, encoding):
    lines = [f"{'Köln' if j % 2 else 'Bonn'},{j / 7:.3f},{j}" for j in range(30)]
    with pytest.raises(InputError, match=r"rows.csv: .*UTF-8"):
        written_rows(tmp_path, "\n".join(["town,x,y", *lines]), encoding=encoding)


def test_other_files_have_no_columns_to_overrule(tmp_path, capfd):
    np.savez(tmp_path / "rows.npz", x=np.eye(4), y=np.arange(4.0))
    with pytest.raises(InputError, match=r"rows.npz: --category is for CSV"):
        rows(tmp_path / "rows.npz", overrides=Overrides({"a": "category"}))


def test_data_frames_with_numbers_for_names_are_kept_in_files(tmp_path):
    table = pd.DataFrame({0: ["a", "b"] * 20, 1: np.arange(40.0) ** 2})
    model = DKRR(sigma=1.0, lam=1e-3).fit(table, np.arange(40.0))
    model.save(tmp_path / "m.h5")
    np.testing.assert_array_equal(DKRR.load(tmp_path / "m.h5").predict(table), model.predict(table))


@pytest.mark.parametrize("dtype", [object, "Float64"])
def test_means_of_levels_are_those_of_targets_of_any_type(dtype):
    level = np.arange(400) % 40
    y = np.random.default_rng(0).normal(size=400)
    models = [
        DKRR(sigma=1.0, lam=1e-3).fit(pd.DataFrame({"c": [f"c{j}" for j in level]}), pd.Series(y, dtype=kind))
        for kind in (float, dtype)
    ]
    assert models[0].encoding_ == models[1].encoding_
    assert abs(models[0].encoding_.columns[0].means[""][0] - y.mean()) < 1e-12


def test_targets_that_cannot_be_used_are_refused_before_means_are_taken():
    X = pd.DataFrame({"c": [f"c{j % 40}" for j in range(400)]})
    with pytest.raises(ValueError, match=r"None|NaN|unknown"):
        SMOSVC(C=1.0, gamma=0.1).fit(X, [None, *["a", "b"] * 199, "a"])
    with pytest.warns(DataConversionWarning):
        SMOSVC(C=1.0, gamma=0.1).fit(X, np.arange(400).reshape(-1, 1) % 2)
    with pytest.raises(InputError, match=r"0 sample|no rows"):
        DKRR(sigma=1.0, lam=1e-3).fit(X[:0], [])


def test_onnx_gaps_and_names():
    onnxruntime = pytest.importorskip("onnxruntime")
    X = pd.DataFrame({"v1": ["a", "b", None] * 20, "x": np.arange(60.0) ** 2})
    model = DKRR(sigma=1.0, lam=1e-3).fit(X, np.arange(60.0) % 3)
    session = onnxruntime.InferenceSession(to_onnx(model).SerializeToString(), providers=["CPUExecutionProvider"])
    spelled = np.array([["NA"], ["a"], ["nan"]], object)
    answers = session.run(None, {"v1": spelled, "x": np.array([[1.0], [2.0], [3.0]])})[0]
    expected = model.predict(pd.DataFrame({"v1": spelled[:, 0], "x": [1.0, 2.0, 3.0]}))
    np.testing.assert_allclose(answers.ravel(), expected, rtol=1e-6)
    clash = DKRR(sigma=1.0, lam=1e-3).fit(X.rename(columns={"v1": "prediction"}), np.arange(60.0))
    with pytest.raises(InputError, match="column 'prediction' has the name of an output"):
        to_onnx(clash)


def test_dropped_columns_may_be_there_in_other_files(files):
    train = rows(files / "train.csv", overrides=Overrides(drop=("town",)))
    assert not any(name.startswith("town") for name in train.columns.features)
    test = load(files / "test.csv", ALONE, expected=Expected(columns=train.columns, where="model"))["train"]
    assert test.columns.features == train.columns.features


def test_means_of_classes_of_equal_size_are_those_of_a_data_frame(tmp_path):
    """With more classes than have means, the first in the order of labels have them, not those first in the file."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"c": [f"level {k}" for k in rng.integers(0, 39, 300)], "b": rng.normal(size=300)})
    labels = rng.permutation(np.repeat([f"class {k:02}" for k in range(15)], 20))
    rows.assign(y=labels).to_csv(tmp_path / "rows.csv", index=False)
    table = load(tmp_path / "rows.csv", ALONE, wanted=LABELS, training=True)["train"]
    np.testing.assert_array_equal(table.X, learned(arrow_table(rows), labels)[1])
