"""Rows in arrays of any name and shape, as h5py, netCDF4, xarray, zarr and NumPy write them."""

import shutil
import warnings

import h5py
import numpy as np
import pytest
from helpers.commands import read, run

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.io import Arrays, load
from cacore.io.array_files import ArrayFiles, _boxes
from cacore.io.arrays import ArrayName
from cacore.io.table import LABELS, Targets

N, D = 240, 9
_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(N, D))
Y = X[:, 0] - X[:, 1]
FIELDS, ENERGY = X.reshape(10, 4, 6, D), Y.reshape(10, 4, 6)  # time, y, x, variable
AXES = ("time", "y", "x", "variable")


def _netcdf(path):
    import netCDF4

    with netCDF4.Dataset(path, "w") as file:
        for name, size in zip(AXES, FIELDS.shape, strict=True):
            file.createDimension(name, size)
        file.createVariable("fields", "f8", AXES)[:] = FIELDS
        file.createVariable("e", "f8", AXES[:3])[:] = ENERGY


def _xarray(path, form, order=AXES):
    import xarray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of zarr about consolidated metadata
        fields = FIELDS.transpose([AXES.index(name) for name in order])
        rows = xarray.Dataset({"fields": (order, fields), "e": (AXES[:3], ENERGY)})
        rows.to_netcdf(path) if form == 0 else rows.to_zarr(path, zarr_format=form)


def _zarr(path, form):
    import zarr

    group = zarr.open_group(path, mode="w", zarr_format=form)
    group.create_array("run/fields", data=X, chunks=(50, D))
    group.create_array("e", data=Y)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of the same rows in every layout."""
    folder = tmp_path_factory.mktemp("layouts")
    compound = np.zeros(N, [("pos", "f8", 3), ("charge", "f8"), ("rest", "f8", 5), ("e", "f8")])
    compound["pos"], compound["charge"], compound["rest"], compound["e"] = X[:, :3], X[:, 3], X[:, 4:], Y
    with h5py.File(folder / "names.h5", "w") as file:
        file["inputs"], file["energy"], file["count"] = X, Y, np.arange(N)
        file["label"] = np.where(Y > 0, "up", "down").astype("S4")
        file.create_dataset("run/wide", data=np.c_[X, X], chunks=(32, 2 * D), compression="gzip")
        file["run/e"], file["records"] = Y[:, None], compound
    virtual = h5py.VirtualLayout((N, D), "f8")
    for number, (lo, hi) in enumerate(((0, 70), (70, 71), (71, N))):
        with h5py.File(folder / f"run-{number}.h5", "w") as file:
            file["fields"], file["e"] = X[lo:hi], Y[lo:hi]
        virtual[lo:hi] = h5py.VirtualSource(f"run-{number}.h5", "fields", (hi - lo, D))
        np.save(folder / f"run-{number}.npy", np.c_[X, Y][lo:hi])
    with h5py.File(folder / "links.h5", "w") as file:
        file["outside"], file["e"] = h5py.ExternalLink("names.h5", "/inputs"), Y
        file["inside"] = h5py.SoftLink("/e")
        file.create_virtual_dataset("virtual", virtual)
    _netcdf(folder / "netcdf.nc")
    _xarray(folder / "xarray.nc", 0)
    _xarray(folder / "turned.nc", 0, ("time", "variable", "y", "x"))
    for form in (2, 3):
        _zarr(folder / f"zarr-{form}", form)
        _xarray(folder / f"xarray-{form}", form)
    return folder


POINTS = "fields(time, y, x, variable)"
LAYOUTS = {
    "names": ("names.h5", ["inputs"], ["energy"]),
    "pieces": ("names.h5", ["inputs[:, :4]", "inputs[:, 4:]"], ["run/e"]),
    "slices of compressed chunks": ("names.h5", ["run/wide[:, 9:]"], ["run/wide[:, 0]", "run/wide[:, 1]"]),
    "fields of a compound type": ("names.h5", ["records/pos", "records/charge", "records/rest"], ["records/e"]),
    "links": ("links.h5", ["outside"], ["inside"]),
    "a virtual array": ("links.h5", ["virtual"], ["e"]),
    "a pattern": ("run-*.h5", ["fields"], ["e"]),
    "a pattern of NPY": ("run-*.npy", [], []),
    "NPY with slices": ("run-*.npy", ["[:, 0:9]"], ["[:, -1]"]),
    "netCDF4": ("netcdf.nc", [POINTS], ["e(time, y, x)"]),
    "xarray": ("xarray.nc", [POINTS], ["e(time, y, x)"]),
    "features in the middle": ("turned.nc", ["fields(time, variable, y, x)"], ["e(time, y, x)"]),
    "Zarr 2": ("zarr-2", ["run/fields"], ["e"]),
    "Zarr 3": ("zarr-3", ["run/fields"], ["e"]),
    "Zarr 2 by xarray": ("xarray-2", [POINTS], ["e(time, y, x)"]),
    "Zarr 3 by xarray": ("xarray-3", [POINTS], ["e(time, y, x)"]),
}


def _arrays(inputs, outputs):
    return Arrays(tuple(inputs), tuple(outputs), follow_links=True)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("name", "inputs", "outputs"), LAYOUTS.values(), ids=LAYOUTS)
def test_rows_of_every_layout_are_those_of_the_arrays(folder, name, inputs, outputs, dtype):
    arrays = _arrays(inputs, outputs)
    rows = load(folder / name, Communicator(), dtype=dtype, wanted=Targets(many=True), arrays=arrays)["train"]
    assert rows.X.dtype == dtype
    np.testing.assert_array_equal(rows.X, X.astype(dtype))
    np.testing.assert_array_equal(rows.y, X[:, :2] if len(outputs) > 1 else Y)


@pytest.mark.parametrize("layout", ["a pattern", "features in the middle", "slices of compressed chunks", "Zarr 3"])
def test_a_block_of_rows_is_read_alone(folder, layout):
    name, inputs, outputs = LAYOUTS[layout]
    source = ArrayFiles.of(folder / name, _arrays(inputs, outputs), Communicator())
    for lo, hi in ((0, 0), (0, 1), (69, 72), (71, 71), (5, 190), (239, 240), (N, N)):
        block = source.read_block("train", lo, hi, np.dtype(np.float64))
        np.testing.assert_array_equal(block.X, X[lo:hi])
        assert len(block.y) == hi - lo


@pytest.mark.parametrize("sizes", [(7,), (3, 4), (2, 3, 4), (1, 5, 1, 2)])
def test_boxes_hold_a_range_of_elements_in_order_and_no_others(sizes):
    elements = np.arange(np.prod(sizes)).reshape(sizes)
    for lo in range(elements.size + 1):
        for hi in range(lo, elements.size + 1):
            boxes = [tuple(slice(*bounds) for bounds in box) for box in _boxes(sizes, lo, hi)]
            np.testing.assert_array_equal(np.concatenate([elements[box].ravel() for box in boxes]), np.arange(lo, hi))
            assert len(boxes) <= 2 * len(sizes)


def test_only_the_files_with_a_block_of_rows_are_opened(folder, tmp_path):
    for number in range(3):
        shutil.copy(folder / f"run-{number}.h5", tmp_path)
    source = ArrayFiles.of(tmp_path / "run-*.h5", Arrays(("fields",), ("e",)), Communicator())
    (tmp_path / "run-0.h5").unlink()
    np.testing.assert_array_equal(source.read_block("train", 70, N, np.dtype(np.float64)).X, X[70:])
    with pytest.raises(InputError, match=r"run-0\.h5: no such file"):
        source.read_block("train", 69, N, np.dtype(np.float64))


def test_a_file_that_changes_before_it_is_read_is_refused(folder, tmp_path):
    shutil.copy(folder / "run-0.h5", tmp_path)
    source = ArrayFiles.of(tmp_path / "run-0.h5", Arrays(("fields",), ("e",)), Communicator())
    shutil.copy(folder / "run-2.h5", tmp_path / "run-0.h5")
    with pytest.raises(InputError, match=r"run-0\.h5: 169 rows now, and 70 before"):
        source.read_block("train", 0, 70, np.dtype(np.float64))


def test_columns_are_named_by_their_arrays(folder):
    inputs = ("inputs[:, 2:4]", "records/charge", "run/wide[:, 5]")
    rows = load(folder / "names.h5", Communicator(), arrays=Arrays(inputs, ("run/e",)))["train"]
    assert rows.columns.features == ("inputs[2]", "inputs[3]", "records/charge", "run/wide[5]")
    assert rows.columns.target == ("run/e",)


@pytest.mark.parametrize("form", ["netCDF", "Zarr 2", "Zarr 3"])
def test_scales_and_missing_values_are_applied_as_xarray_applies_them(tmp_path, form):
    import xarray

    values = np.round(X[:20, :3], 2)
    packed = {"scale_factor": 0.01, "add_offset": 1.0, "dtype": "i2", "_FillValue": -999}
    values[7, 1] = np.nan
    rows = xarray.Dataset({"a": (("row", "column"), values), "b": ("row", Y[:20])}, coords={})
    path = tmp_path / "packed"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if form == "netCDF":
            rows.to_netcdf(path, encoding={"a": packed})
        else:
            rows.to_zarr(path, zarr_format=int(form[-1]), encoding={"a": packed})
    with pytest.raises(InputError, match="row 7, feature 1 is missing"):
        load(path, Communicator(), arrays=Arrays(("a",), ("b",)))
    whole = load(path, Communicator(), arrays=Arrays(("a[:, 0]", "a[:, 2]"), ("b",)))["train"]
    np.testing.assert_allclose(whole.X, values[:, [0, 2]], atol=1e-12)


def test_a_model_remembers_the_arrays_of_its_rows(folder, tmp_path):
    options = ["--partitions", "3", "--sigma", "2", "--lambda", "1e-3", "--quiet"]
    arrays = ["--input", "inputs", "--output", "energy"]
    model, out = tmp_path / "model.h5", tmp_path / "out.csv"
    run("cakrr.bkrr2", [folder / "names.h5", *arrays, *options, "--model", model])
    run("cakrr.predict", [model, folder / "names.h5", "-o", out, "--report", tmp_path / "r.json", "--quiet"])
    assert np.loadtxt(out, delimiter=",", skiprows=1, ndmin=2).shape[0] == N
    assert read(tmp_path / "r.json")["metrics"]["r2"] > 0.9


def test_test_rows_and_out_of_core_read_named_arrays(folder, tmp_path):
    arrays = ["--input", "fields", "--output", "e", "--sigma", "2", "--lambda", "1e-3", "--partitions", "3", "--quiet"]
    files = [folder / "run-0.h5", folder / "run-2.h5"]
    for more, name in (([], "memory"), (["--out-of-core"], "disk")):
        report = tmp_path / f"{name}.json"
        run("cakrr.bkrr2", [*files, "--test", folder / "run-1.h5", *arrays, *more, "--report", report])
        assert read(report)["data"]["n_train"] == N - 1
        assert read(report)["data"]["n_test"] == 1
    assert read(tmp_path / "memory.json")["metrics"] == pytest.approx(read(tmp_path / "disk.json")["metrics"])


def test_words_are_classes(folder):
    rows = load(folder / "names.h5", Communicator(), wanted=LABELS, arrays=Arrays(("inputs",), ("label",)))["train"]
    np.testing.assert_array_equal(rows.y, np.where(Y > 0, "up", "down"))


WRONG = {
    "no options": ([], "run/wide (240 x 18): name the arrays of the rows, such as --input run/wide --output energy"),
    "another name": (["--input", "nothing"], "no array 'nothing'; it has count (240), energy (240)"),
    "an open bracket": (["--input", "inputs[:, 0"], "--input 'inputs[:, 0': brackets do not match"),
    "a negative step": (["--input", "inputs[::-1]"], "the step of a slice must be positive"),
    "a word for a slice": (["--input", "inputs[a]"], "invalid literal"),
    "too many slices": (["--input", "inputs[:, :, :]"], "3 slices of an array of shape (240, 9)"),
    "a position outside": (["--input", "inputs[:, 9]"], "position 9 of a dimension of 9"),
    "no columns": (["--input", "inputs[:, 5:5]"], "240 rows of 0 features"),
    "no rows": (["--input", "inputs[240:]"], "0 rows"),
    "rows that differ": (["--input", "inputs[1:]", "--output", "energy"], "240 rows, and inputs[1:] has 239"),
    "names of dimensions": (["--input", "inputs(a, b, c)"], "3 names of dimensions, and there are 2"),
    "the same name twice": (["--input", "inputs(a, a)"], "two dimensions have the same name"),
    "a whole compound type": (["--input", "records"], "name one of its fields, pos, charge, rest, e"),
    "words as features": (["--input", "label"], "text is no feature"),
    "targets alone": (["--output", "energy"], "name the features as well, by --input"),
    "columns of tables": (["--input", "inputs", "--drop", "a"], "--drop: for tables, not for arrays"),
    "a target of tables": (["--input", "inputs", "--target", "a"], "drop --target a"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "message"), WRONG.values(), ids=WRONG)
def test_wrong_names_are_refused_in_one_line(folder, words, message, refuses):
    refuses("cakrr.bkrr2", ["names.h5", *words], message, folder)


@pytest.mark.parametrize(("words", "message"), [
    (["links.h5", "--input", "outside"], "outside is a link: --follow-links follows it"),
    (["links.h5", "--input", "virtual"], "the data of virtual are in other files: --follow-links reads them"),
    (["gone-*.h5", "--input", "fields"], "no file matches this pattern"),
    (["run-0.h5", "run-9.h5", "--input", "fields"], "run-9.h5: no such file"),
    (["run-0.h5", "names.h5", "--input", "fields"], "names.h5: no array 'fields'"),
    (["netcdf.nc", "--input", "fields"], "4 dimensions, of sizes 10 x 4 x 6 x 9: name them"),
    (["zarr-3"], "such as --input run/fields --output e"),
    (["run-0.h5", "run-1.h5", "--input", "fields", "--output", "e", "--model", "run-1.h5"], "would replace"),
])  # fmt: skip
def test_wrong_files_are_refused_in_one_line(folder, words, message, refuses):
    refuses("cakrr.bkrr2", words, message, folder)


def test_files_of_other_widths_and_links_that_leave_the_folder_are_refused(folder, tmp_path):
    shutil.copy(folder / "run-0.h5", tmp_path / "a-0.h5")
    with h5py.File(tmp_path / "a-1.h5", "w") as file:
        file["fields"], file["e"] = X[:, :5], Y
        file["away"] = h5py.ExternalLink(str(folder / "names.h5"), "/inputs")
        lone = h5py.VirtualLayout((70, D), "f8")
        lone[:] = h5py.VirtualSource("gone.h5", "fields", (70, D))
        file.create_virtual_dataset("lone", lone)
    for name, inputs, message in (
        ("a-*.h5", "fields", r"a-1\.h5: 5 features, and 9 in the first file"),
        ("a-1.h5", "away", "outside the folder of this file"),
        ("a-1.h5", "lone", r"gone\.h5, which is not there"),
    ):
        with pytest.raises(InputError, match=message):
            load(tmp_path / name, Communicator(), arrays=Arrays((inputs,), ("e",), follow_links=True))


def test_info_lists_arrays_and_the_options_that_read_them(folder, capsys):
    run("cacore.io", ["info", folder / "names.h5"])
    shown = capsys.readouterr().out
    assert {"run/wide", "240", "18", "pos,", "charge,", "rest,"} <= set(shown.split())
    assert shown.splitlines()[-1] == "for example: --input run/wide --output energy"


def test_names_of_arrays_are_parsed():
    name = ArrayName.of(" /group/fields[0, 1:9:2](row, variable)")
    assert (name.path, name.cut, name.dims) == ("group/fields", (0, slice(1, 9, 2)), ("row", "variable"))


def test_rows_of_arrays_are_paired_by_the_names_of_their_dimensions(tmp_path):
    with h5py.File(tmp_path / "turned.h5", "w") as file:
        u = _RNG.normal(size=(3, 4))
        file["u"], file["turned"], file["other"] = u, 2 * u.T, u.reshape(2, 6)
    rows = load(tmp_path / "turned.h5", Communicator(), arrays=Arrays(("u(t, x)",), ("turned(x, t)",)))["train"]
    np.testing.assert_array_equal(rows.y, 2 * rows.X[:, 0])
    for output, message in (
        ("other(t, x)", "t of other.* has 2 positions, and 3 in u"),
        ("turned(t, y)", "same names"),
    ):
        with pytest.raises(InputError, match=message):
            load(tmp_path / "turned.h5", Communicator(), arrays=Arrays(("u(t, x)",), (output,)))


@pytest.mark.parametrize(("split", "message"), [("test", "it has test rows"), ("train", "it has names of columns")])
def test_several_native_files_are_plain_or_refused(tmp_path, split, message):
    for number in range(2):
        with h5py.File(tmp_path / f"n-{number}.h5", "w") as file:
            file["train/X"], file["train/y"] = X, Y
    assert load(tmp_path / "n-*.h5", Communicator())["train"].n == 2 * N
    with h5py.File(tmp_path / "n-1.h5", "a") as file:
        if split == "test":
            file["test/X"], file["test/y"] = X, Y
        else:
            file["train/names"] = np.array([b"a%d" % place for place in range(D)])
    with pytest.raises(InputError, match=message):
        load(tmp_path / "n-*.h5", Communicator())


def test_words_beside_numbers_and_gaps_of_targets_are_named(folder, tmp_path):
    for number, y in enumerate((Y, np.full(N, b"up"))):
        with h5py.File(tmp_path / f"m-{number}.h5", "w") as file:
            file["a"], file["b"] = X, y
            file["c"] = np.where(np.arange(N) == 7, -999, 1)
            file["c"].attrs["_FillValue"] = -999
    with pytest.raises(InputError, match=r"m-1\.h5: its targets are words, and numbers in the first file"):
        load(tmp_path / "m-*.h5", Communicator(), wanted=LABELS, arrays=Arrays(("a",), ("b",)))
    with pytest.raises(InputError, match=r"row 7, the target is missing \(_FillValue -999 or nan\)"):
        load(tmp_path / "m-0.h5", Communicator(), arrays=Arrays(("a",), ("c",)))
    with pytest.raises(InputError, match="it has no rows: give a slice such as 0:1"):
        load(tmp_path / "m-0.h5", Communicator(), arrays=Arrays(("a[0, 0]",), ("c",)))


def test_links_are_followed_in_rows_to_predict_only_if_asked(folder, tmp_path):
    with h5py.File(folder / "links.h5", "a") as file:
        file["inputs"], file["energy"] = h5py.ExternalLink("names.h5", "/inputs"), Y
    model = tmp_path / "model.h5"
    arrays = ["--input", "inputs", "--output", "energy", "--sigma", "2", "--lambda", "1e-3", "--quiet"]
    run("cakrr.bkrr2", [folder / "names.h5", *arrays, "--model", model])
    out = ["-o", tmp_path / "out.csv", "--quiet"]
    with pytest.raises(SystemExit):
        run("cakrr.predict", [model, folder / "links.h5", *out])
    run("cakrr.predict", [model, folder / "links.h5", *out, "--follow-links"])
    assert (tmp_path / "out.csv").exists()
