"""Parquet, Arrow and NPY files: their rows are those of the same CSV file, and other columns are refused by name."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
from helpers.commands import run

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.io import load, text
from cacore.io.table import LABELS, RowsRequest

RNG = np.random.default_rng(3)
N = 41


@pytest.fixture
def pa():
    import_module("pyarrow.parquet")
    import_module("pyarrow.feather")
    return import_module("pyarrow")


@pytest.fixture
def small_blocks(tuned):
    tuned(table_block=300)


def columns():
    return {
        "a": RNG.normal(size=N).astype(np.float32), "b": RNG.integers(-9, 9, N).astype(np.int8),
        "c": RNG.random(N) < 0.5, "y": RNG.normal(size=N), "d": RNG.integers(0, 2**60, N),
    }  # fmt: skip


def write(pa, path, table):
    if path.suffix == ".parquet":
        pa.parquet.write_table(table, path, row_group_size=10)
    else:
        pa.feather.write_feather(table, str(path), chunksize=10)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("form", ["parquet", "feather"])
def test_columns_of_numbers(tmp_path, pa, form):
    data, path = columns(), tmp_path / f"a.{form}"
    write(pa, path, pa.table(data))
    run("cacore.io", ["convert", path, tmp_path / "out.h5", "--target", "y", "--quiet"])
    for rows in (load(path, Communicator(), target="y")["train"], load(tmp_path / "out.h5", Communicator())["train"]):
        np.testing.assert_array_equal(rows.X, np.column_stack([data[name] for name in "abcd"]).astype(np.float64))
        np.testing.assert_array_equal(rows.y, data["y"])
    alone = load(path, Communicator(), n_features=5)["train"]
    assert (alone.y, alone.X.shape) == (None, (N, 5))


@pytest.mark.parametrize("form", ["parquet", "feather"])
def test_words_may_be_the_target(tmp_path, pa, form):
    words = RNG.choice(["yes", "no", "?"], N)
    write(pa, path := tmp_path / f"a.{form}", pa.table({"x": np.arange(N), "y": pa.array(words).dictionary_encode()}))
    assert text.parse(path, RowsRequest(wanted=LABELS))["train"].y.tolist() == words.tolist()
    signs = text.parse(path, RowsRequest(target="y", binarize="no"))["train"].y
    np.testing.assert_array_equal(signs, np.where(words == "no", 1, -1))
    with pytest.raises(InputError, match=r"column 'y' is of type dictionary.*not of numbers; make it .*--binarize"):
        load(path, Communicator())


REFUSED = {
    "text": (lambda pa: pa.array(["a", "b", "c"]), "column 'x' is of type string, not of numbers; encode categories"),
    "categories": (lambda pa: pa.array(["a", "b", "a"]).dictionary_encode(), "column 'x' is of type dictionary"),
    "dates": (lambda pa: pa.array([1, 2, 3], pa.timestamp("s")), "column 'x' .*; write dates as numbers"),
    "lists": (lambda pa: pa.array([[1], [2], [3]]), "column 'x' is of type list"),
    "gap": (lambda pa: pa.array([1, None, 3]), r"row 1, feature 0 \(x\) is nan: remove the row or fill the gap"),
    "gap of a bool": (lambda pa: pa.array([True, False, None]), r"row 2, feature 0 \(x\) is nan"),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("form", ["parquet", "feather"])
def test_refused(tmp_path, pa, form, what):
    make, message = REFUSED[what]
    write(pa, path := tmp_path / f"a.{form}", pa.table({"x": make(pa), "y": [1.0, 2.0, 3.0]}))
    with pytest.raises(InputError, match=message):
        load(path, Communicator())


@pytest.mark.parametrize("form", ["parquet", "feather"])
def test_damaged(tmp_path, pa, form):
    write(pa, path := tmp_path / f"a.{form}", pa.table(columns()))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"it may be damaged or truncated .*copy it again"):
        load(path, Communicator())


@pytest.mark.usefixtures("small_blocks")
def test_npy_beyond_double_precision(tmp_path, refuses):
    """One line, without numpy's warning."""
    rows = np.ones((4, 3), np.longdouble)
    rows[2, 1] = np.longdouble("1e4000")
    np.save(tmp_path / "a.npy", rows)
    refuses("cacore.io", ["convert", "a.npy", "out.h5"], "row 2, feature 1 is inf", tmp_path)


def test_npy(tmp_path):
    rows = RNG.normal(size=(N, 4)).astype(np.float32)
    np.save(tmp_path / "a.npy", np.asfortranarray(rows))
    got = load(tmp_path / "a.npy", Communicator(), target="1")["train"]
    np.testing.assert_array_equal(got.X, rows[:, [0, 2, 3]])
    np.testing.assert_array_equal(got.y, rows[:, 1])
    run("cacore.io", ["convert", tmp_path / "a.npy", tmp_path / "out.h5", "--dtype", "float32", "--quiet"])
    got = load(tmp_path / "out.h5", Communicator(), "float32")["train"]
    np.testing.assert_array_equal(np.column_stack([got.X, got.y]), rows)
    for wrong, message in (
        (rows[0], "shape"),
        (rows.astype(object), "cannot be read"),
        (rows.astype("U9"), "type <U9"),
    ):
        np.save(tmp_path / "b.npy", wrong, allow_pickle=True)
        with pytest.raises(InputError, match=f"b.npy: .*{message}"):
            load(tmp_path / "b.npy", Communicator())
