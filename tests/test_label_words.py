"""Labels keep what the file says: large whole numbers, leading zeros, words; gaps and stray words are refused."""

from importlib import import_module

import h5py
import numpy as np
import pytest
from helpers.checks import refusal
from helpers.commands import read, run
from helpers.data import separate_clouds, write_hdf5

from cacore.comm import Communicator
from cacore.data.labels import all_classes, class_codes, from_file
from cacore.io import load
from cacore.io.loading import load_in_file
from cacore.io.table import LABELS, RowsRequest, Targets
from cacore.io.text import parse
from cacore.io.words import Words, is_same, numeral
from cakernels.search.data import CLASSIFICATION, REGRESSION, guessed

GUESS = Targets(many=True, labels="guess")
BIG = 2**53


def labels(path, wanted=LABELS):
    return load(path, Communicator(), wanted=wanted)["train"].y


def column(folder, words, name="a.csv"):
    """A file with a feature and this target."""
    (folder / name).write_text("x,y\n" + "".join(f"{i}.5,{word}\n" for i, word in enumerate(words)))
    return folder / name


@pytest.mark.parametrize(("word", "number"), [
    ("7", 7), ("+1", 1), ("-1.0", -1), ("1e3", 1000), (".5", 0.5), ("007", None), ("1_2", None), ("-01", None),
    ("0", 0), ("0.50", 0.5), ("00.5", 0.5), ("9007199254740993", BIG + 1), ("9007199254740993.", BIG + 1), ("x", None),
    ("", None), ("nan", None), ("٣", None), ("1e400", float("inf")), (7.0, 7),
])  # fmt: skip
def test_numerals(word, number):
    assert numeral(word) == number


@pytest.mark.parametrize(("words", "kept"), [
    (["1", "2", "1.0"], [1, 2, 1]),
    ([str(BIG + k) for k in range(4)], [BIG + k for k in range(4)]),
    (["18446744073709551615", "18446744073709551614"], [2**64 - 1, 2**64 - 2]),
    (["18446744073709551617", "-1"], ["18446744073709551617", "-1"]),
    (["007", "7", "07"], ["007", "7", "07"]),
    (["1_2", "12"], ["1_2", "12"]),
    (["none", "-", "?", "na na"], ["none", "-", "?", "na na"]),
    (["0.5", "-0.5"], [0.5, -0.5]),
])  # fmt: skip
def test_words_are_numbers_or_words(tmp_path, words, kept):
    got = labels(column(tmp_path, words))
    assert got.tolist() == kept
    np.testing.assert_array_equal(labels(column(tmp_path, [f'"{word}"' for word in words])), got)


def test_words_stay_words_beside_a_model_of_words(tmp_path):
    path = column(tmp_path, ["7", "12"])
    assert labels(path, LABELS.like(np.array(["007", "7"]))).tolist() == ["7", "12"]
    assert labels(path, LABELS.like(np.array([7, 12]))).tolist() == [7, 12]
    refusal(
        lambda: labels(column(tmp_path, ["7", "b", "9"]), LABELS.like(np.arange(3))),
        match="line 3, column 1 (y): 'b' is not",
    )


@pytest.mark.parametrize(("words", "message"), [
    (["1.5", "", "2.5"], "line 3, column 1 (y): '' is not a label, but missing: remove the row"),
    (["1", "NA", "2", "NA"], "lines 3, 5, column 1 (y): 'NA' is not a label, but missing"),
    (["1", "?", "2", "-", "3", "none", "None"], "lines 3, 5, 7 and 1 more, column 1 (y): '?' is not a label, but"),
    (["yes", "no", "n/a"], "line 4, column 1 (y): 'n/a' is not a label, but missing"),
])  # fmt: skip
@pytest.mark.parametrize("wanted", [LABELS, GUESS])
def test_gaps(tmp_path, words, message, wanted):
    refusal(lambda: labels(column(tmp_path, words), wanted), match=message)


def test_gaps_of_a_class_against_the_rest(tmp_path):
    path = column(tmp_path, ["a", "b", "NaN"])
    refusal(
        lambda: parse(path, RowsRequest(binarize="a")), match="line 4, column 1 (y): 'NaN' is not a label, but missing"
    )


def test_words_among_numbers_are_errors_or_few_classes(tmp_path):
    """They are errors where the file alone decides what is learnt, and classes for a classifier if there are few."""
    prices = [f"{i}.25" for i in range(30)]
    few = column(tmp_path, ["0", "1", "2", "o", "1"])
    refusal(
        lambda: labels(few, GUESS), match="line 5, column 1 (y): 'o' is not a number, as 4 of 5 targets are: correct"
    )
    assert labels(few).tolist() == ["0", "1", "2", "o", "1"]
    many = column(tmp_path, [*prices, "l8.25"])
    for wanted in (GUESS, LABELS):
        refusal(
            lambda wanted=wanted: labels(many, wanted),
            match="line 32, column 1 (y): 'l8.25' is not a number, as 30 of 31",
        )


@pytest.mark.parametrize("wanted", [LABELS, GUESS])
@pytest.mark.parametrize("form", ["n{}", "0{}"])
def test_unique_words_per_row_are_refused_as_classes(tmp_path, wanted, form):
    names = [form.format(i) for i in range(40)]
    refusal(lambda: labels(column(tmp_path, names), wanted), match="column 1 (y): 40 different words in 40 rows are")
    assert len(labels(column(tmp_path, names[:20]), wanted)) == 20
    assert len(labels(column(tmp_path, names * 5), wanted)) == 200


def test_classes_to_choose():
    words = Words()
    for word in ("12", "1_2", "12.0"):
        words.code(word)
    assert words.picked("12").tolist() == [1, -1, 1]
    assert not is_same("007", "7")
    assert is_same("+1", "1.0")


@pytest.mark.parametrize("dtype", ["i8", ">i8", "u8", "i4"])
@pytest.mark.parametrize("form", ["h5", "npy", "npz", "parquet", "on disk"])
def test_whole_numbers_of_binary_files(tmp_path, dtype, form):
    y = np.arange(6) % 3
    y = y.astype(dtype) + np.array((BIG if "8" in dtype else 100) + 1, dtype)
    X = np.arange(12.0).reshape(6, 2)
    path = tmp_path / f"a.{'h5' if form == 'on disk' else form}"
    if form == "npz":
        np.savez(path, x=X, y=y)
    elif form == "npy":
        np.save(path, np.column_stack([y, y]).astype(dtype))
    elif form == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"x": X[:, 0], "y": y.astype(y.dtype.newbyteorder("="))}), path)
    else:
        write_hdf5(path, train=(X, y))
    if form == "on disk":
        got = load_in_file(path, Communicator(), RowsRequest(wanted=LABELS), tmp_path)["train"].y
    else:
        got = labels(path)
    assert got.tolist() == y.tolist()
    assert labels(path, Targets()).dtype == np.float64


def test_floats_that_may_have_been_rounded(tmp_path):
    """HDF5 and LIBSVM files of doubles have lost what labels above 2^53 were."""
    path = write_hdf5(tmp_path / "a.h5", train=(np.eye(3), BIG + 2.0 * np.arange(3)))
    rows = load(path, Communicator(), wanted=LABELS)["train"]
    refusal(lambda: from_file(rows, Communicator()), match="labels of 2^53 and more are rounded in this file")


def test_signed_and_unsigned_labels():
    high = np.array([2**63 - 1, 2**63, 2**63 + 1], np.uint64)
    assert all_classes(high, Communicator()).tolist() == high.tolist()
    assert class_codes(np.array([2**63 - 1, -1, 5]), high).tolist() == [0, -1, -1]


@pytest.mark.parametrize("first", [0, BIG, 2**63])
def test_few_whole_numbers_are_guessed_to_be_classes(first):
    y = np.array([first + k for k in (0, 1, 2, 1)], np.uint64)
    assert guessed(y, Communicator()) == CLASSIFICATION
    assert guessed(y[:1], Communicator()) == REGRESSION


def clouds_of(folder, names, name="a.csv"):
    X, y = separate_clouds(60, k=len(names))
    lines = [f"{','.join(map(str, x))},{names[code]}" for x, code in zip(X, y, strict=True)]
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder / name


@pytest.mark.parametrize(("program", "more"), [
    ("casvm.casvm", ["--partitions", "2"]), ("casvm.dissmo", []), ("asygcd", ["--threads", "1"]),
    ("casvm.casvm", ["--initial", "root", "--partitions", "1"]), ("cakrr.bkrr2", ["--classify", "--partitions", "2"]),
])  # fmt: skip
@pytest.mark.parametrize("names", [["no", "yes"], ["007", "7"]])
def test_one_rule_for_all_commands(program, more, names, tmp_path, monkeypatch):
    """Training, testing and predicting; the rows to predict may be of one class that looks like a number."""
    monkeypatch.chdir(tmp_path)
    path = clouds_of(tmp_path, names)
    run(program, [path, *more, "--test", path, "--allow-overlap", "--model", "m.h5", "--report", "t.json", "--quiet"])
    last = [line for line in path.read_text().splitlines() if line.endswith(f",{names[1]}")]
    (tmp_path / "b.csv").write_text("\n".join(last) + "\n")
    run(f"{program.split('.')[0]}.predict", ["m.h5", "b.csv", "-o", "o.csv", "--report", "p.json", "--quiet"])
    assert read(tmp_path / "t.json")["metrics"]["accuracy"] > 0.95
    assert read(tmp_path / "p.json")["metrics"]["accuracy"] > 0.95
    assert set((tmp_path / "o.csv").read_text().split()[1:]) <= set(names)


def test_test_rows_of_another_kind(tmp_path, refuses):
    path, other = clouds_of(tmp_path, ["no", "yes"]), tmp_path / "b.h5"
    with h5py.File(other, "w") as file:
        file["train/X"], file["train/y"] = np.eye(4)[:, :2], np.arange(4)
    refuses("casvm.casvm", [path, "--test", other], "the labels are words, and numbers in", tmp_path)
    words = clouds_of(tmp_path, ["no", "yes"], "c.csv")
    numbers = clouds_of(tmp_path, ["1", "2"], "d.csv")
    refuses("casvm.casvm", [numbers, "--test", words], "is not a number", tmp_path)


def test_the_front_refuses_gaps(tmp_path, refuses):
    path = column(tmp_path, [*(f"{np.sin(i):.4f}" for i in range(40)), "NA", "0.25"])
    refuses(
        "cakernels fit", [path, "--within", "2"], "line 42, column 1 (y): 'NA' is not a label, but missing", tmp_path
    )


def test_info_counts_words(tmp_path, capfd):
    run("cacore.io", ["info", column(tmp_path, ["b", "a", "b"])])
    assert "target y: a (1), b (2)" in capfd.readouterr().out


def stored(folder, form, words, test=None):
    """A binary file with these words as the targets of its rows, and of its test rows."""
    X, path = np.random.default_rng(0).normal(size=(len(words), 2)), folder / f"a.{form.split()[0]}"
    if form == "npz":
        np.savez(path, x=X, y=np.array(words))
    elif form == "parquet":
        pq = import_module("pyarrow.parquet")
        pa = import_module("pyarrow")
        pq.write_table(pa.table({"a": X[:, 0], "b": X[:, 1], "y": words}), path)
    else:
        made = np.array([word.encode() for word in words]) if form == "h5 fixed" else words
        write_hdf5(path, train=(X, made), **({} if test is None else {"test": (X[: len(test)], test)}))
    return path


FORMS = ["h5", "h5 fixed", "npz", "parquet"]


@pytest.mark.parametrize(("words", "kept"), [
    (["jä", "no", "jä"], ["jä", "no", "jä"]), (["7", "12", "7.0"], [7, 12, 7]),
    (["007", "7", "07"], ["007", "7", "07"]),
])  # fmt: skip
@pytest.mark.parametrize("form", FORMS)
def test_words_in_binary_files(tmp_path, form, words, kept):
    path = stored(tmp_path, form, words)
    assert labels(path).tolist() == kept
    assert labels(path, LABELS.like(np.array(["a"]))).tolist() == words
    if form.startswith("h5"):
        got = load_in_file(path, Communicator(), RowsRequest(wanted=LABELS), tmp_path)["train"].y
        assert got.tolist() == kept
    refusal(lambda: labels(path, Targets()), match="is text; " if form != "parquet" else "is of type string")


@pytest.mark.parametrize("form", FORMS)
def test_words_in_binary_files_that_are_no_labels(tmp_path, form):
    refusal(lambda: labels(stored(tmp_path, form, ["1.5", "", "2.5"])), match="row 1, ")
    path = stored(tmp_path, form, ["1", "b", "2"])
    refusal(lambda: labels(path, LABELS.like(np.arange(3))), match="'b' is not a number, and the model's labels are")


def test_labels_of_all_splits_are_of_one_type(tmp_path):
    got = load(stored(tmp_path, "h5", ["7", "b", "7"], ["7", "7"]), Communicator(), wanted=LABELS)
    assert [rows.y.tolist() for rows in got.values()] == [["7", "b", "7"], ["7", "7"]]
    path = stored(tmp_path, "h5", ["7", "8", "7"], ["7", "b"])
    refusal(lambda: load(path, Communicator(), wanted=LABELS), match="(test): row 1, the target: 'b' is not a number")


@pytest.mark.parametrize("program", ["casvm.casvm --partitions 2", "casvm.dissmo", "cakrr.bkrr2 --classify", "asygcd"])
def test_commands_learn_the_words_of_hdf5_files(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (X, y), names = separate_clouds(k=2), np.array(["ham", "spam"])
    path = write_hdf5(tmp_path / "a.h5", train=(X, names[y].tolist()), test=(X, names[y].tolist()))
    name, *more = program.split()
    run(name, [path, *more, "--allow-overlap", "--model", "m.h5", "--report", "t.json", "--quiet"])
    run(f"{name.split('.')[0]}.predict", ["m.h5", path, "-o", "o.csv", "--report", "p.json", "--quiet"])
    for report in ("t.json", "p.json"):
        assert read(tmp_path / report)["metrics"]["accuracy"] > 0.95
    assert set((tmp_path / "o.csv").read_text().split()[1:]) == set(names)


def test_convert_keeps_words_of_hdf5_files(tmp_path, refuses, capfd):
    words = ["b", "a", "b", "é"]
    path = stored(tmp_path, "h5", words)
    run("cacore.io", ["convert", path, tmp_path / "b.h5", "--dtype", "float32"])
    assert "target a (1), b (2), é (1)" in capfd.readouterr().out
    run("cacore.io", ["convert", path, tmp_path / "b.h5", tmp_path / "c.h5", "--quiet"])
    assert "a (2), b (4), é (2)" in capfd.readouterr().out
    assert labels(tmp_path / "c.h5").tolist() == words * 2
    numbers = write_hdf5(tmp_path / "d.h5", train=(np.eye(2), np.arange(2)))
    refuses("cacore.io", ["convert", path, numbers, "e.h5"], "of another form than in", tmp_path)
    refuses("cacore.io", ["convert", stored(tmp_path, "npz", words), "e.h5"], "the target is text", tmp_path)
    two = write_hdf5(tmp_path / "f.h5", train=(np.eye(2), [["a", "b"], ["a", "b"]]))
    refuses("casvm.casvm", [two], "one word per row is needed", tmp_path)
