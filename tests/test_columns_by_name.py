"""Columns are matched by name wherever both sides have names; the index of a DataFrame is none of them."""

from __future__ import annotations

import json
from importlib import import_module

import h5py
import numpy as np
import pytest
from helpers.columns import draw, write_columns
from helpers.commands import flat, predicted, read, run
from helpers.data import write_hdf5

from cacore.comm import Communicator
from cacore.data.encoding import Columns
from cacore.errors import InputError
from cacore.io import load
from cacore.io.names import Expected
from cakrr.ridge_model import KRRModel

KNOWN = Expected(Columns(("a", "b", "c"), ("y",)), "train.csv")
OTHERWISE = ("y", "c", "a", "b")
FORMS = ["csv", "tsv", "parquet", "feather", "h5"]
SMALL = ["--partitions", "1", "--sigma", "1", "--lambda", "1e-6"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with train.csv, test.csv, and a model of the first."""
    folder = tmp_path_factory.mktemp("names")
    write_columns(folder / "train.csv", draw(), ("a", "b", "c", "y"))
    write_columns(folder / "test.csv", draw(60, 1), ("a", "b", "c", "y"))
    run("cakrr.bkrr2", [folder / "train.csv", *SMALL, "--model", folder / "m.h5", "--quiet"])
    return folder


def expected(**more):
    said = []
    known = Expected(**{"columns": KNOWN.columns, "where": KNOWN.where, "tell": said.append, **more})
    return known, said


def check(rows, table):
    np.testing.assert_array_equal(np.asarray(rows.X), np.column_stack([table[name] for name in "abc"]))
    assert rows.columns.features == ("a", "b", "c")


# -- reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_another_order(form, tmp_path):
    """The features are put in order, and that is said once; the target is found by its name."""
    table, (known, said) = draw(), expected(needed=True)
    rows = load(write_columns(tmp_path / f"t.{form}", table, OTHERWISE), Communicator(), expected=known)["train"]
    check(rows, table)
    np.testing.assert_array_equal(rows.y, table["y"])
    assert (rows.columns.target, len(said)) == (("y",), 1)
    assert "another order than in train.csv" in said[0]
    known, said = expected()
    rows = load(write_columns(tmp_path / f"u.{form}", table, ("a", "b", "c")), Communicator(), expected=known)["train"]
    check(rows, table)
    assert (rows.y, said) == (None, [])


@pytest.mark.parametrize("form", FORMS)
def test_missing_and_extra(form, tmp_path):
    table = draw() | {"d": draw(seed=5)["a"], "e,f": draw(seed=6)["a"]}
    comm, path = Communicator(), tmp_path / f"t.{form}"
    write_columns(path, table, ("c", "y"))
    with pytest.raises(InputError, match=r"no columns a, b, which train.csv has"):
        load(path, comm, expected=KNOWN)
    extra = ("d", "b", "a", "c", "e,f") if form in ("parquet", "feather", "h5") else ("d", "b", "a", "c")
    write_columns(path, table, extra)
    with pytest.raises(InputError, match=r"columns? d.*, which train.csv does not have; --ignore-extra-columns"):
        load(path, comm, expected=KNOWN)
    known, _ = expected(ignore_extra=True)
    check(load(path, comm, expected=known)["train"], table)
    write_columns(path, table, ("b", "a", "c", "d"), target="d")
    with pytest.raises(InputError, match=r"no target column y, as in train.csv|column d, which train.csv does not"):
        load(path, comm, expected=expected(needed=True)[0])


@pytest.mark.parametrize("quoted", [False, True], ids=["plain", "quoted"])
def test_ignored_words(quoted, tmp_path):
    """Columns that are left out may hold anything; a line with a cell too many is still refused."""
    word, path = '"x, y"' if quoted else "word", tmp_path / "t.csv"
    path.write_text(f"b,id,a,c,y\n1,{word},2,3,4\n5,{word},6,7,8\n")
    known, _ = expected(ignore_extra=True)
    rows = load(path, Communicator(), expected=known)["train"]
    assert (rows.X.tolist(), rows.y.tolist()) == ([[2, 1, 3], [6, 5, 7]], [4, 8])
    path.write_text(f"b,id,a,c,y\n1,{word},2,3,4\n5,{word},6,7,8,9\n")
    with pytest.raises(InputError, match="line 3"):
        load(path, Communicator(), expected=known)


def test_names_that_are_there_twice(tmp_path):
    """They are no obstacle in the same order, and cannot be matched in another."""
    path = tmp_path / "t.csv"
    path.write_text("a,a,b,y\n1,2,3,4\n5,6,7,8\n")
    known = Expected(Columns(("a", "a", "b"), ("y",)), "train.csv")
    assert load(path, Communicator(), expected=known)["train"].X.tolist() == [[1, 2, 3], [5, 6, 7]]
    path.write_text("a,b,a,y\n1,2,3,4\n5,6,7,8\n")
    with pytest.raises(InputError, match=r"several columns of .*t.csv are called a"):
        load(path, Communicator(), expected=known)


@pytest.mark.parametrize("other", ["a", "# a", "'a'"])
def test_names_that_are_there_twice_on_both_sides(other, tmp_path):
    """Nothing but their order tells these columns apart, and that is said."""
    (tmp_path / "t.csv").write_text(f"{other},b,a,y\n1,2,3,4\n5,6,7,8\n")
    known, said = expected(columns=Columns(("a", "b", "a"), ("y",)))
    rows = load(tmp_path / "t.csv", Communicator(), expected=known)["train"]
    np.testing.assert_array_equal(rows.X, [[1, 2, 3], [5, 6, 7]])
    assert said == [
        f"note: {tmp_path / 't.csv'}: several columns are called a, as in train.csv: matched by their order"
    ]


def test_files_without_names_count_by_place(tmp_path):
    (tmp_path / "t.csv").write_text("1,2,3,4\n5,6,7,8\n")
    rows = load(tmp_path / "t.csv", Communicator(), n_features=3, expected=KNOWN)["train"]
    assert (rows.X.tolist(), rows.y.tolist()) == ([[1, 2, 3], [5, 6, 7]], [4, 8])
    write_hdf5(tmp_path / "t.h5", train=(rows.X, rows.y))
    assert load(tmp_path / "t.h5", Communicator(), expected=KNOWN)["train"].X.tolist() == rows.X.tolist()


@pytest.mark.parametrize("csr", [False, True], ids=["dense", "csr"])
def test_native_splits_of_different_orders(csr, tmp_path):
    X = np.arange(12.0).reshape(4, 3)
    write_hdf5(tmp_path / "t.h5", csr, train=(X, X[:, 0]), test=(X[:, [2, 0, 1]], X[:, 0]))
    with h5py.File(tmp_path / "t.h5", "a") as file:
        file["train/names"], file["test/names"] = ["a", "b", "c"], ["c", "a", "b"]
    splits = load(tmp_path / "t.h5", Communicator())
    for rows in splits.values():
        assert (rows.X.toarray() if csr else rows.X).tolist() == X.tolist()


def test_arrays_that_are_not_names(tmp_path):
    """Arrays with these names in a file from elsewhere are ignored."""
    write_hdf5(tmp_path / "t.h5", train=(np.ones((4, 3)), np.ones(4)))
    with h5py.File(tmp_path / "t.h5", "a") as file:
        file["train/names"], file["train/target_names"] = ["r1", "r2", "r3", "r4"], np.ones(3)
    assert load(tmp_path / "t.h5", Communicator())["train"].columns == Columns()


# -- commands -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_commands(form, trained, tmp_path, capfd, refuses):
    """--test, predict and convert --test answer as if the columns were in the same order, and say that they are not."""
    other = write_columns(tmp_path / f"other.{form}", draw(60, 1), OTHERWISE)
    note = f"{other.name}"
    r2 = []
    for test in (trained / "test.csv", other):
        run("cakrr.bkrr2", [trained / "train.csv", "--test", test, *SMALL, "--report", tmp_path / "r.json"])
        run("cakrr.predict", [trained / "m.h5", test, "-o", tmp_path / "p.csv", "--report", tmp_path / "p.json"])
        made = [json.loads((tmp_path / name).read_text()) for name in ("r.json", "p.json")]
        r2.append([one["metrics"]["r2"] for one in made])
        assert all(one["data"]["columns"]["features"] == ["a", "b", "c"] for one in made)
    assert r2[0] == pytest.approx(r2[1], rel=1e-12)
    assert min(r2[0]) > 0.99
    told = capfd.readouterr().err
    assert told.count("another order") == told.count(note) == 2
    run("cacore.io", ["convert", trained / "train.csv", tmp_path / "both.h5", "--test", other])
    run("cakrr.bkrr2", [tmp_path / "both.h5", *SMALL, "--report", tmp_path / "c.json", "--quiet"])
    assert json.loads((tmp_path / "c.json").read_text())["metrics"]["r2"] == pytest.approx(r2[0][0], rel=1e-12)
    assert capfd.readouterr().err.count("another order") == 1
    missing = write_columns(tmp_path / f"missing.{form}", draw(60, 1), ("c", "a", "y"))
    extra = write_columns(tmp_path / f"extra.{form}", draw(60, 1) | {"d": draw(60, 2)["a"]}, ("c", "d", "a", "b", "y"))
    for program, *words in (
        ("cakrr.bkrr2", trained / "train.csv", *SMALL, "--test"), ("cakrr.predict", trained / "m.h5"),
        ("cacore.io", "convert", trained / "train.csv", tmp_path / "no.h5", "--test"),
    ):  # fmt: skip
        refuses(program, [*words, missing], "no column b", tmp_path)
        refuses(program, [*words, extra], "--ignore-extra-columns leaves them out", tmp_path)
        run(program, [*words, extra, "--ignore-extra-columns", "--quiet"])
    assert "another order" not in capfd.readouterr().err


def test_native_files_and_models_keep_names(trained, tmp_path, capfd):
    table = draw()
    write_columns(tmp_path / "a.csv", table, OTHERWISE)
    for words in ([], ["--split", "100"]):
        run("cacore.io", ["convert", tmp_path / "a.csv", tmp_path / "b.h5", "--target", "y", "--quiet", *words])
        found = load(tmp_path / "b.h5", Communicator())
        assert {rows.columns for rows in found.values()} == {Columns(("c", "a", "b"), ("y",))}
    run("cacore.io", ["convert", tmp_path / "b.h5", tmp_path / "c.h5", "--dtype", "float32", "--quiet"])
    capfd.readouterr()
    run("cacore.io", ["info", tmp_path / "c.h5"])
    told = capfd.readouterr().out
    assert "train: features c, a, b\n" in told
    assert "; target y: " in told
    model = KRRModel.load(trained / "m.h5")
    assert model.source["columns"] == {"features": ["a", "b", "c"], "target": ["y"], "kinds": ""}


def test_many_names(tmp_path):
    """HDF5's attributes hold 64 KiB, and names of many columns are longer."""
    X = np.random.default_rng(0).normal(size=(20, 6000))
    names = tuple(f"column number {j} of a wide table" for j in range(6000))
    write_hdf5(tmp_path / "t.h5", train=(X, X[:, 0]))
    with h5py.File(tmp_path / "t.h5", "a") as file:
        file["train/names"] = np.array([name.encode() for name in names])
    run("cakrr.bkrr2", [tmp_path / "t.h5", *SMALL, "--model", tmp_path / "m.h5", "--quiet"])
    assert tuple(KRRModel.load(tmp_path / "m.h5").source["columns"]["features"]) == names


def test_several_files_in_different_orders(tmp_path, capfd):
    """Rows of several files are concatenated by name."""
    table = draw()
    write_columns(tmp_path / "a.csv", table, ("a", "b", "c", "y"))
    write_columns(tmp_path / "b.csv", table, OTHERWISE)
    run("cacore.io", ["convert", tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "o.h5"])
    assert "b.csv: its columns are in another order than in" in capfd.readouterr().err
    rows = load(tmp_path / "o.h5", Communicator())["train"]
    np.testing.assert_array_equal(rows.X[:150], rows.X[150:])
    np.testing.assert_array_equal(rows.y[:150], rows.y[150:])


def test_targets_of_predicted_rows(trained, tmp_path, refuses, capfd):
    """A column with the target's name is no feature; another one is compared with on request."""
    table = draw(60, 1)
    write_columns(tmp_path / "t.csv", table | {"other": table["y"] * 2}, ("other", "b", "a", "c"))
    refuses("cakrr.predict", [trained / "m.h5", tmp_path / "t.csv"], "column other, which the model", tmp_path)
    for name, words in (("p", ["--target", "other"]), ("q", ["--ignore-extra-columns"])):
        run("cakrr.predict", [trained / "m.h5", tmp_path / "t.csv", "-o", tmp_path / f"{name}.csv", *words])
    np.testing.assert_array_equal(*(predicted(tmp_path / f"{name}.csv") for name in ("p", "q")))
    assert "names another" not in flat(capfd.readouterr().out)


# -- the index of a DataFrame, and the target that nobody named -------------------------------------


@pytest.mark.parametrize("form", ["parquet", "feather"])
def test_index_of_a_data_frame(form, tmp_path, capfd):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(draw())
    path = tmp_path / f"t.{form}"
    some = frame[frame.a > 0]
    named = some.set_index("b")
    if form == "parquet":
        some.to_parquet(path)
        named.to_parquet(tmp_path / f"n.{form}")
    else:
        feather, pa = import_module("pyarrow.feather"), import_module("pyarrow")
        for one, name in ((some, "t"), (named, "n")):
            feather.write_feather(pa.Table.from_pandas(one, preserve_index=True), str(tmp_path / f"{name}.{form}"))
    rows = load(path, Communicator())["train"]
    np.testing.assert_array_equal(rows.y, some["y"])
    check(rows, some)
    assert rows.columns.kinds == "fff"
    check(load(tmp_path / f"n.{form}", Communicator(), expected=KNOWN)["train"], some)  # b is asked for by name
    assert load(tmp_path / f"n.{form}", Communicator())["train"].columns.features == ("a", "c")
    run("cacore.io", ["info", path])
    assert "target y: " in capfd.readouterr().out


@pytest.mark.parametrize(
    "metadata", [b"{", b"[1]", b'{"index_columns": 3}', b"\xff", b'{"index_columns": [{"kind": 1}]}']
)
def test_damaged_metadata(metadata, tmp_path):
    pa = import_module("pyarrow")
    table = pa.table(draw()).replace_schema_metadata({b"pandas": metadata})
    import_module("pyarrow.parquet").write_table(table, tmp_path / "t.parquet")
    check(load(tmp_path / "t.parquet", Communicator())["train"], draw())


def test_chosen_target_is_reported(trained, tmp_path, capfd):
    """Its name, or its number where it has none, and its range or classes; not where the user has named it."""
    test = trained / "test.csv"
    run("cakrr.bkrr2", [trained / "train.csv", *SMALL])
    assert "y: -4.2555 to 3.84265" in (told := flat(capfd.readouterr().out))
    assert "--target names another" in told
    run("cakrr.bkrr2", [trained / "train.csv", *SMALL, "--target", "y"])
    run("cakrr.predict", [trained / "m.h5", test, "--target", "-1"])
    run("cakrr.predict", [trained / "m.h5", test, "--quiet"])
    assert "names another" not in flat(capfd.readouterr().out)
    run("cakrr.predict", [trained / "m.h5", test])
    assert "names another" in flat(capfd.readouterr().out)
    (tmp_path / "u.csv").write_text("1,2,3,0\n4,5,6,1\n7,8,8,1\n9,8,1,0\n" * 5)
    run("casvm.casvm", [tmp_path / "u.csv", "--partitions", "1", "--report", tmp_path / "r.json"])
    assert "column 3: 0 to 1, 2 values" in flat(capfd.readouterr().out)
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["data"]["target"] == {"column": "column 3", "range": [0, 1], "values": 2}
    for words in (["info", tmp_path / "u.csv"], ["convert", tmp_path / "u.csv", tmp_path / "u.h5"]):
        run("cacore.io", words)
        assert "; target column 3: 0 (10), 1 (10)" in capfd.readouterr().out
    (tmp_path / "w.csv").write_text("a,b,kind\n" + "1,2,x\n4,5,z\n7,8,z\n9,1,x\n" * 5)
    run("cakrr.bkrr2", [tmp_path / "w.csv", "--classify", *SMALL])
    assert "kind: 2 classes" in flat(capfd.readouterr().out)


@pytest.mark.parametrize("header", ["x,x,x", "x,a,x", "a,a,x"])
@pytest.mark.parametrize("target", [[], ["--target", "2"], ["--target", "0"]])
def test_a_target_with_the_name_of_a_feature(header, target, tmp_path):
    """The file that was trained on, its conversion, and one without targets can be predicted, and be test rows."""
    lines = "".join(f"{i},{i % 7},{i * i % 5}\n" for i in range(30))
    for name in ("t.csv", "s.csv"):
        (tmp_path / name).write_text(f"{header}\n{lines}")
    path, model, report = tmp_path / "t.csv", tmp_path / "m.h5", tmp_path / "r.json"
    more = ["--test", tmp_path / "s.csv", "--allow-overlap", *target]
    run("cakrr.bkrr2", [path, "--partitions", "1", "--quiet", "--model", model, "--report", report, *more])
    run("cacore.io", ["convert", path, tmp_path / "t.h5", "--quiet", *target])
    for data in ("t.csv", "t.h5"):
        run("cakrr.predict", [model, tmp_path / data, "--quiet", "--report", tmp_path / f"{data}.json"])
        assert read(tmp_path / f"{data}.json")["metrics"]["mse"] == pytest.approx(read(report)["metrics"]["mse"])
