"""Fill values, scales and offsets that HDF5 and netCDF files declare, in all that reads them; files that are open."""

import fcntl

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import refusal
from helpers.commands import read, run

from cacore.comm import Communicator
from cacore.io import load
from cacore.io.loading import load_in_file
from cacore.io.native import FLOAT_FILL, Packing
from cacore.io.table import LABELS, RowsRequest

RNG = np.random.default_rng(8)
X = RNG.normal(size=(30, 3))


def stored(path, rows, attributes=(), y=X[:, 0], of_target=(), netcdf=False):
    """A file whose rows, dense or CSR, and targets have these attributes."""
    with h5py.File(path, "w") as file:
        if sp.issparse(rows):
            group = file.create_group("train/X")
            group.attrs["shape"] = rows.shape
            for name in ("data", "indices", "indptr"):
                group[name] = getattr(rows, name)
        else:
            file["train/X"] = rows
        file["train/y"] = y
        item = file["train/X/data" if sp.issparse(rows) else "train/X"]
        for to, pairs in ((item, attributes), (file["train/y"], of_target)):
            for name, value in dict(pairs).items():
                to.attrs[name] = value
        if netcdf:
            file.attrs["_NCProperties"] = np.bytes_(b"version=2")
    return path


def loaded(path, dtype="float64", **more):
    return load(path, Communicator(), dtype, **more)["train"]


def gap_at(rows, value, dtype):
    rows = (100 * rows).round().astype(dtype)
    rows[7, 1] = value
    return rows


@pytest.mark.parametrize(("dtype", "fill", "attributes", "netcdf"), [
    ("f8", -9999, {"_FillValue": -9999.0}, False), ("f4", 1e20, {"missing_value": 1e20}, False),
    ("i2", -999, {"_FillValue": np.int16(-999)}, False), ("i4", -1, {"missing_value": np.array([-2, -1])}, False),
    ("f4", FLOAT_FILL, {}, False), ("f8", FLOAT_FILL, {"_FillValue": -5.5}, False), (">f4", FLOAT_FILL, {}, False),
    ("f8", 9.96921e36, {}, False), ("i2", -32767, {}, True), ("u8", 2**64 - 2, {}, True),
    ("i2", -999, {"_FillValue": np.int16(-999), "scale_factor": 0.1, "add_offset": 4.0}, False),
])  # fmt: skip
@pytest.mark.parametrize("where", ["dense", "CSR", "target", "on disk", "float32"])
def test_fill_values_are_gaps(tmp_path, dtype, fill, attributes, netcdf, where):
    rows = gap_at(np.abs(X) + 1, fill, dtype)
    if where == "target":
        path = stored(tmp_path / "a.h5", X, y=rows[:, 1], of_target=attributes, netcdf=netcdf)
        refusal(lambda: loaded(path), match="row 7, the target is ")
        return
    plain = {k: v for k, v in attributes.items() if k != "add_offset"} if where == "CSR" else attributes
    form = sp.csr_matrix(rows.astype(rows.dtype.newbyteorder("="))) if where == "CSR" else rows
    path = stored(tmp_path / "a.h5", form, plain, netcdf=netcdf)
    if where == "on disk":
        refusal(
            lambda: load_in_file(path, Communicator(), RowsRequest(wanted=LABELS), tmp_path),
            match="row 7, feature 1 is ",
        )
    else:
        refusal(lambda: loaded(path, "float32" if where == "float32" else "float64"), match="row 7, feature 1 is ")


@pytest.mark.parametrize(("dtype", "attributes"), [
    ("f8", {"_FillValue": -9999.0}), ("i2", {"_FillValue": -7e9}), ("i2", {"missing_value": 0.5}),
    ("f4", {"_FillValue": np.nan}), ("i4", {"missing_value": "none"}),
])  # fmt: skip
def test_fill_values_that_no_row_has(tmp_path, dtype, attributes):
    rows = (100 * X).round().astype(dtype)
    data = loaded(stored(tmp_path / "a.h5", rows, attributes, y=np.arange(30), of_target=attributes), wanted=LABELS)
    np.testing.assert_array_equal(data.X, rows)
    assert data.y.tolist() == list(range(30))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("form", ["dense", "CSR", "on disk"])
def test_packed_numbers(tmp_path, dtype, form, tuned):
    tuned(array_block=64)
    counts, y = (100 * X).round().astype("i2"), (10 * X[:, 0]).round().astype("i1")
    scale = {"scale_factor": 0.01} | ({} if form == "CSR" else {"add_offset": 5.0})
    rows = sp.csr_matrix(counts) if form == "CSR" else counts
    path = stored(tmp_path / "a.h5", rows, scale, y, {"scale_factor": np.float32(0.5)})
    lines = []
    if form == "on disk":
        data = load_in_file(path, Communicator(), RowsRequest(np.dtype(dtype), wanted=LABELS), tmp_path)["train"]
        data.X = data.X[:]
    else:
        data = loaded(path, dtype, expected=native_expected(lines.append))
        assert "(train): scale_factor 0.01 and add_offset" in lines[0]
    got = data.X.toarray() if form == "CSR" else data.X
    np.testing.assert_allclose(got, counts * 0.01 + scale.get("add_offset", 0), rtol=1e-6)
    np.testing.assert_array_equal(data.y, y * 0.5)


def native_expected(tell):
    from cacore.io.names import Expected

    return Expected(tell=tell)


def test_unsigned_numbers(tmp_path):
    rows = np.array([[-1, 1], [2, 3]], "i1")
    path = stored(tmp_path / "a.h5", rows, {"_Unsigned": np.bytes_(b"true")}, y=np.arange(2))
    assert loaded(path).X.tolist() == [[255, 1], [2, 3]]


@pytest.mark.parametrize("attributes", [
    {"scale_factor": 0.0}, {"scale_factor": np.nan}, {"add_offset": "five"}, {"scale_factor": np.ones(3)},
])  # fmt: skip
def test_scales_that_are_not_numbers(tmp_path, attributes):
    path = stored(tmp_path / "a.h5", X, attributes)
    refusal(lambda: loaded(path), match=f"its attribute {next(iter(attributes))} is not one finite number")


def test_offset_of_csr_rows(tmp_path):
    path = stored(tmp_path / "a.h5", sp.csr_matrix(np.eye(3)), {"add_offset": 1.0}, y=np.arange(3))
    refusal(lambda: loaded(path), match="add_offset of CSR data")


def test_decoding_leaves_what_is_not_encoded():
    values = np.arange(4.0)
    assert Packing().decoded(values) is values


def test_commands(tmp_path, refuses, capfd, monkeypatch):
    """Training, conversion, info and prediction read the same numbers."""
    monkeypatch.chdir(tmp_path)
    counts, scale = (100 * X).round().astype("i2"), {"scale_factor": 0.01, "add_offset": 5.0}
    stored("a.h5", counts, scale)
    run("cacore.io", ["convert", "a.h5", "b.h5", "--quiet"])
    np.testing.assert_allclose(loaded("b.h5").X, counts * 0.01 + 5)
    run("cakrr.dkrr", ["a.h5", "--sigma", "1", "--lambda", "1e-3", "--model", "m.h5", "--quiet"])
    for name in "ab":
        run("cakrr.predict", ["m.h5", f"{name}.h5", "--report", f"{name}.json", "--quiet"])
    assert read(tmp_path / "a.json")["metrics"]["mse"] == pytest.approx(read(tmp_path / "b.json")["metrics"]["mse"])
    stored("c.h5", gap_at(X, -9999, "f8"), {"_FillValue": -9999.0})
    capfd.readouterr()
    message = "row 7, feature 1 is missing (_FillValue -9999 or nan): remove the row or fill the gap"
    for program, words in (("cakrr.predict", ["m.h5", "c.h5"]), ("cacore.io", ["info", "c.h5"]),
                           ("cacore.io", ["convert", "c.h5", "d.h5"]), ("casvm.svr", ["c.h5"])):  # fmt: skip
        refuses(program, words, message, tmp_path)


def test_a_file_that_is_open_for_writing(tmp_path, refuses):
    """HDF5 locks a file that it writes to, as is done here; or it leaves a mark in one whose writer was killed."""
    with stored(tmp_path / "a.h5", X).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        line = refuses("cakrr.dkrr", ["a.h5"], "a.h5: another program has it open for writing", tmp_path)
    assert "truncated" not in line
