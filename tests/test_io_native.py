"""The native HDF5 file: blocks of rows are the rows, and what is wrong is named."""

import os
import re

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from helpers.data import dense

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.io import Dataset, Table, load, native
from cacore.io.fingerprints import overlap

RNG = np.random.default_rng(0)
DENSE = RNG.standard_normal((25, 7)) * (RNG.random((25, 7)) < 0.5)
Y = RNG.standard_normal(25)
FORMS = {"dense": np.array, "csr": sp.csr_matrix, "csr array": sp.csr_array}


@pytest.fixture(params=FORMS, name="X")
def rows_in_a_form(request):
    return FORMS[request.param](DENSE)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_written_and_read(tmp_path, X, dtype):
    before, path = X.copy(), tmp_path / "a.h5"
    native.write(path, {"train": Table(X, Y, "x"), "test": Table(X[:5], None, "x")}, np.dtype(dtype))
    assert abs(X - before).max() == 0
    shape = native.NativeFile(path).describe()["train"]
    assert (shape.n, shape.d, shape.sparse, shape.dtype) == (25, 7, sp.issparse(X), dtype)
    rows = load(path, Communicator(), dtype)
    np.testing.assert_array_equal(dense(rows["train"].X), DENSE.astype(dtype))
    np.testing.assert_array_equal(rows["train"].target(), Y)
    np.testing.assert_array_equal(dense(rows["test"].X), DENSE[:5].astype(dtype))
    assert (rows["train"].n, rows["test"].n, rows["train"].X.dtype) == (25, 5, dtype)
    with pytest.raises(InputError, match=r"a\.h5 \(test\): there is no target"):
        rows["test"].target()


@pytest.mark.parametrize(("lo", "hi"), [(0, 25), (0, 0), (3, 4), (3, 20), (24, 25), (25, 25)])
def test_a_block_is_these_rows(tmp_path, tuned, X, lo, hi):
    tuned(array_block=3 * 7 * 8)  # three rows at a time
    path = tmp_path / "a.h5"
    native.write(path, {"train": Table(X, Y, "x")}, np.dtype(np.float64))
    block = native.NativeFile(path).read_block("train", lo, hi, np.dtype(np.float64))
    np.testing.assert_array_equal(dense(block.X), DENSE[lo:hi])
    np.testing.assert_array_equal(block.y, Y[lo:hi])


@pytest.fixture
def make(tmp_path):
    """An HDF5 file with the given data sets, attributes after a dot; its path."""

    def write(**items):
        path = tmp_path / "made.h5"
        with h5py.File(path, "w") as file:
            for name, value in items.items():
                place = name.replace("__", "/")
                if place.endswith("/shape"):
                    file[place.removesuffix("/shape")].attrs["shape"] = value
                else:
                    file.create_dataset(place, data=value)
        return path

    return write


def csr(**changes):
    parts = {"data": [1.0, 2, 3], "indices": [0, 2, 1], "indptr": [0, 2, 2, 3], "shape": (3, 3)} | changes
    return {f"train__X__{name}": value for name, value in parts.items() if value is not None}


@pytest.mark.parametrize("dtype", ["int8", "uint16", "bool", "float32", ">f8"])
def test_files_of_others(make, dtype):
    values = (DENSE > 0).astype(dtype)
    rows = load(make(X=values, y=np.arange(25)), Communicator(), "float64")["train"]
    np.testing.assert_array_equal(rows.X, values.astype(float))
    np.testing.assert_array_equal(rows.y, np.arange(25.0))
    assert rows.X.dtype == rows.y.dtype == np.float64


def test_rows_at_the_root_beside_a_group_without_any(make):
    rows = load(make(X=DENSE, train__note=np.zeros(3), test__X=DENSE[:2]), Communicator())
    np.testing.assert_array_equal(rows["train"].X, DENSE)
    np.testing.assert_array_equal(rows["test"].X, DENSE[:2])


def test_csr_of_others(make):
    np.testing.assert_array_equal(
        load(make(**csr()), Communicator())["train"].X.toarray(), [[1, 0, 2], [0, 0, 0], [0, 3, 0]]
    )


BAD = {
    "no X": ({"features": DENSE}, "no /train/X and no /X"),
    "vector": ({"X": Y}, r"X: shape \(25,\)"),
    "text": ({"X": np.full((2, 2), b"a")}, "an n x d array of numbers"),
    "short y": ({"X": DENSE, "y": Y[:24]}, r"25 rows, but y has shape \(24,\)"),
    "two targets": ({"X": DENSE, "y": np.ones((25, 2))}, r"y has shape \(25, 2\); one label or target per row"),
    "text y": ({"X": DENSE, "y": np.full(25, b"cat")}, r"(\by\b|target)"),
    "group y": ({"X": DENSE, "y__values": Y}, r"(\by\b|target)"),
    "no rows": ({"X": DENSE[:0], "y": Y[:0]}, "0 rows of 7 features"),
    "no columns": ({"X": DENSE[:, :0], "y": Y}, "25 rows of 0 features"),
    "nan": ({"X": np.where(np.arange(7) == 3, np.nan, DENSE)}, r"\(train\): row 0, feature 3 is nan"),
    "inf in y": ({"X": DENSE, "y": np.where(np.arange(25) == 9, np.inf, Y)}, "row 9, the target is inf"),
    "csr without indptr": (csr(indptr=None), "needs data, indices, indptr and the attribute shape"),
    "csr without shape": (csr(shape=None), "needs data, indices, indptr and the attribute shape"),
    "csr of one dimension": (csr(shape=(3,)), "shape"),
    "csr column too large": (csr(indices=[0, 3, 1]), "indices lie in 0 .. 2"),
    "csr column negative": (csr(indices=[0, -1, 1]), "indices lie in 0 .. 2"),
    "csr pointers too few": (csr(indptr=[0, 2, 3]), "indptr"),
    "csr pointers descend": (csr(indptr=[0, 3, 2, 3]), "indptr"),
    "csr pointers beyond": (csr(indptr=[0, 2, 2, 9]), "indptr"),
    "csr pointers negative": (csr(indptr=[-1, 2, 2, 3]), "indptr"),
    "csr indices too few": (csr(indices=[0, 2]), "indices"),
    "csr nan": (csr(data=[1, 2, np.nan]), "row 2, feature 1 is nan"),
    "csr text": (csr(data=[b"a", b"b", b"c"]), "number"),
    "csr shape of text": (csr(shape="3 x 3"), "the attribute shape must be two whole numbers"),
    "csr shape broken": (csr(shape=(3.0, 3.0)), "the attribute shape must be two whole numbers"),
    "csr shape negative": (csr(indptr=[], shape=(-1, 3)) | {"train__X__indptr": np.zeros(0, int)}, "-1 rows"),
    "csr columns negative": (csr(shape=(3, -1)), "-1 features"),
    "csr arrays of two dimensions": (csr(data=np.ones((3, 1)), indices=np.ones((3, 1), int)), "data of shape"),
    "csr indptr of a group": (csr(indptr=None) | {"train__X__indptr__a": [0]}, "indptr is not an array of whole"),
    "no values at all": ({"X": h5py.Empty("f8")}, "shape None"),
    "complex": ({"X": DENSE * 1j}, "an n x d array of numbers"),
    "too large": ({"X": np.where(np.arange(7) == 3, np.longdouble("1e4000"), DENSE)}, "row 0, feature 3 is inf"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_file(make, case):
    items, message = BAD[case]
    path = make(**items)
    with pytest.raises(InputError, match=f"{re.escape(str(path))}.*{message}"):
        load(path, Communicator())


@pytest.mark.parametrize("form", ["dense", "csr", "int", ">f8"])
def test_numbers_too_large_for_single_precision(make, form):
    X = np.where(np.arange(25 * 7).reshape(25, 7) == 17, 1e39, DENSE)
    if form == "csr":
        rows = sp.csr_matrix(X)
        parts = {name: getattr(rows, name) for name in ("data", "indices", "indptr")}
        path = make(**{f"X__{name}": value for name, value in parts.items()}, X__shape=X.shape)
    else:
        path = make(X=np.minimum(X, 2.0**62).astype("i8") if form == "int" else X.astype(form.replace("dense", "f8")))
    load(path, Communicator())
    if form == "int":
        assert load(path, Communicator(), "float32")["train"].X.max() == 2.0**62
    else:
        message = r"\(train\): row 2, feature 3 is 1e\+39, too large for float32; use --dtype float64"
        with pytest.raises(InputError, match=message):
            load(path, Communicator(), "float32")


def test_numbers_that_single_precision_rounds_down(make):
    """The largest double that is no infinity in single precision."""
    most = np.nextafter(np.float64(2**128 - 2**103), 0)
    rows = load(make(X=np.full((2, 2), most)), Communicator(), "float32")["train"]
    assert np.unique(rows.X).tolist() == [np.finfo(np.float32).max]


def other(folder):
    """Another file with rows, of which nothing may be read."""
    with h5py.File(folder / "other.h5", "w") as file:
        file["X"], file["y"] = DENSE, Y
    return folder / "other.h5"


def linked(file, folder):
    file["X"] = h5py.ExternalLink(other(folder), "/X")


def linked_to_a_pipe(file, folder):
    os.mkfifo(folder / "pipe")
    file["train"] = h5py.ExternalLink(folder / "pipe", "/")


def linked_in_the_file(file, folder):
    file["deep/X"] = DENSE
    file["X"] = h5py.SoftLink("/deep/X")


def stored_elsewhere(file, folder):
    (folder / "raw").write_bytes(DENSE.tobytes())
    file.create_dataset("X", DENSE.shape, DENSE.dtype, external=[(str(folder / "raw"), 0, DENSE.nbytes)])


def virtual(file, folder):
    layout = h5py.VirtualLayout(DENSE.shape, DENSE.dtype)
    layout[:] = h5py.VirtualSource(other(folder), "X", DENSE.shape)
    file.create_virtual_dataset("X", layout)


def linked_target(file, folder):
    file["X"] = DENSE
    file["y"] = h5py.ExternalLink(other(folder), "/y")


def linked_csr(file, folder):
    group = file.create_group("X")
    group.attrs["shape"] = 3, 3
    group["data"], group["indices"] = [1.0], [0]
    group["indptr"] = h5py.SoftLink("/nowhere")


@pytest.mark.parametrize(
    ("write", "message"),
    [(linked, "X is a link"), (linked_to_a_pipe, "train is a link"), (linked_in_the_file, "X is a link"),
     (stored_elsewhere, "the data of X are in other files"), (virtual, "the data of X are in other files"),
     (linked_target, "y is a link"), (linked_csr, "indptr is a link")],
)  # fmt: skip
def test_data_of_other_files(write, message, tmp_path, refuses):
    """A file of data is the one that the user has named."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        write(file, tmp_path)
    refuses("cacore.io", ["info", "a.h5"], message, tmp_path)


def test_damaged_files_fail_their_checksum(tmp_path):
    """All but the numbers has checksums."""
    path = tmp_path / "a.h5"
    native.write(path, {"train": Table(np.ones((3, 2)), np.ones(3), "x")}, np.dtype(np.float64))
    whole, found = path.read_bytes(), 0
    for place in range(0, len(whole), 9):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            assert load(path, Communicator())["train"].X.shape == (3, 2)
        except InputError:
            found += 1
    assert found > 70


def test_row_numbers_are_the_files(make):
    X = DENSE.copy()
    X[17, 2] = np.nan
    with pytest.raises(InputError, match="row 17, feature 2 is nan"):
        native.NativeFile(make(X=X)).read_block("train", 10, 20, np.dtype(np.float64))


@pytest.mark.parametrize("keep", [8, 100, 0.5, 0.999])
def test_truncated(tmp_path, keep):
    path = tmp_path / "a.h5"
    native.write(path, {"train": Table(np.ones((500, 9)), np.ones(500), "x")}, np.dtype(np.float64))
    whole = path.read_bytes()
    path.write_bytes(whole[: keep if keep > 1 else int(keep * len(whole))])
    with pytest.raises(InputError, match=r"a\.h5: cannot be read as HDF5, it may be truncated .* copy or convert"):
        load(path, Communicator())


def test_missing(tmp_path):
    with pytest.raises(InputError, match=r"a\.h5: no such file"):
        native.NativeFile(tmp_path / "a.h5").describe()


def test_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.h5"
    path.write_text("old")
    with pytest.raises((TypeError, ValueError)):
        native.write(path, {"train": Table(DENSE, np.array([object()] * 25), "x")}, np.dtype(np.float64))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("first", FORMS)
@pytest.mark.parametrize("second", FORMS)
def test_overlap_is_counted_whatever_the_form(first, second):
    train = Dataset(FORMS[first](DENSE), Y, 25, "train")
    X, y = np.vstack([RNG.standard_normal((3, 7)), DENSE[[4, 9]], DENSE[[5]]]), np.append(Y[:3], [Y[4], Y[9], -77.0])
    test = Dataset(FORMS[second](X), y, 6, "test")
    assert overlap(train, test, Communicator()).tolist() == [False] * 3 + [True] * 2 + [False]
    none = Dataset(FORMS[second](X[:3]), y[:3], 3, "test")
    assert overlap(train, none, Communicator()).tolist() == [False] * 3
