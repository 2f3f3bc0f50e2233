"""``python -m cacore.io convert`` and ``info``."""

import h5py
import numpy as np
import pytest
from helpers.checks import names
from helpers.commands import run
from helpers.data import dense, write_hdf5
from sklearn.datasets import load_svmlight_files
from sklearn.model_selection import train_test_split

from cacore.comm import Communicator
from cacore.io import load

TEST = "--test"
RNG = np.random.default_rng(0)
ROWS = np.column_stack([RNG.integers(-9, 9, (30, 3)) / 4, RNG.integers(0, 3, 30)])


def csv(path, rows=ROWS, header=""):
    path.write_text(header + "".join(",".join(map(str, row)) + "\n" for row in np.asarray(rows).tolist()))
    return path


def put(path, text):
    path.write_text(text)
    return path


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def words(folder, source, *more, destination="out.h5"):
    return ["convert", source, folder / destination, *more]


@pytest.fixture
def convert(tmp_path):
    def call(*args):
        run("cacore.io", words(tmp_path, *args))
        return load(tmp_path / "out.h5", Communicator())

    return call


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", [None, "0", "-1", "b"])
def test_csv(tmp_path, convert, target, dtype):
    rows = convert(
        csv(tmp_path / "a.csv", header="a,b,c,d\n"), "--dtype", dtype, *(["--target", target] * bool(target))
    )
    j = {None: 3, "0": 0, "-1": 3, "b": 1}[target]
    np.testing.assert_array_equal(rows["train"].X, np.delete(ROWS, j, axis=1))
    np.testing.assert_array_equal(rows["train"].y, ROWS[:, j])
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["train/X"].dtype == dtype


def test_rows_are_split_as_scikit_learn_does(tmp_path, convert):
    got = convert(csv(tmp_path / "a.csv"), "--split", 21, "--seed", 5)
    train, test = train_test_split(ROWS, train_size=21, random_state=5)
    for split, want in (("train", train), ("test", test)):
        np.testing.assert_array_equal(got[split].X, want[:, :3])
        np.testing.assert_array_equal(got[split].y, want[:, 3])


@pytest.mark.parametrize("start", [0, 1])
def test_libsvm_files_of_different_width(tmp_path, convert, start):
    """Index 0 in one of the files alone, the highest in the other alone."""
    a = put(tmp_path / "a", f"1 {start}:5 {start + 1}:2\n-1 3:1\n")
    b = put(tmp_path / "b", "1 2:3\n-1 3:1 90:2\n-1 2:0.5\n")
    got = convert(a, "--test", b)
    X, y, X_test, y_test = load_svmlight_files([str(a), str(b)])
    for split, rows, target in (("train", X, y), ("test", X_test, y_test)):
        np.testing.assert_array_equal(dense(got[split].X), rows.toarray())
        np.testing.assert_array_equal(got[split].y, target)


def test_binarize(tmp_path, convert):
    got = convert(csv(tmp_path / "a.csv"), "--binarize", 2)["train"]
    np.testing.assert_array_equal(got.y, np.where(ROWS[:, 3] == 2, 1, -1))


def test_first_of_equal_rows_is_kept(tmp_path, convert):
    rows = np.vstack([ROWS, ROWS[:10], ROWS[5:6] * [1, 1, 1, 0] + [0, 0, 0, 7]])
    got = convert(csv(tmp_path / "a.csv", rows), "--drop-duplicates")["train"]
    _, first = np.unique(rows, axis=0, return_index=True)
    want = rows[np.sort(first)]
    np.testing.assert_array_equal(np.column_stack([got.X, got.y]), want)


def test_dropping_duplicates_drops_overlap(tmp_path, convert):
    rows = np.random.default_rng(0).random((300, 5))
    got = convert(csv(tmp_path / "a.csv", rows[:200]), TEST, csv(tmp_path / "b.csv", rows[150:]), "--drop-duplicates")
    assert (got["train"].n, got["test"].n) == (200, 100)


def test_dropping_duplicates_keeps_what_a_libsvm_file_is(tmp_path, convert):
    """Its width is what its rows use, so the narrower file is filled up, also when its rows were dropped."""
    a = put(tmp_path / "a.svm", "1 1:1 2:2\n1 1:1 2:2\n2 1:4 2:5\n")
    b = put(tmp_path / "b.svm", "3 1:6 3:7\n1 1:1 2:3\n")
    got = convert(a, TEST, b, "--drop-duplicates")
    assert [got[split].X.shape for split in ("train", "test")] == [(2, 3), (2, 3)]


def test_hdf5_to_hdf5(tmp_path, convert):
    convert(csv(tmp_path / "a.csv"), "--split", 20)
    (tmp_path / "out.h5").rename(tmp_path / "in.h5")
    got, want = convert(tmp_path / "in.h5", "--dtype", "float32"), load(tmp_path / "in.h5", Communicator())
    for split in ("train", "test"):
        np.testing.assert_array_equal(got[split].X, want[split].X)


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
@pytest.mark.parametrize("dtype", ["bool", "int16", "float32"])
def test_npz_targets(tmp_path, convert, dtype, shape):
    y = np.array([0, 1, 1, 0], dtype)
    got = convert(npz(tmp_path / "a.npz", x=np.eye(4), y=y.reshape(shape)))["train"]
    np.testing.assert_array_equal(got.y, y)


def test_real_files_of_different_width(data, convert):
    got = convert(data / "a9a.bz2", "--test", data / "a9a.t.bz2")
    assert (got["train"].X.shape, got["test"].X.shape) == ((32561, 123), (16281, 123))
    assert np.unique(got["test"].y).tolist() == [-1, 1]


def test_nothing_but_the_file_is_left(tmp_path, convert):
    source = csv(tmp_path / "a.csv")
    (tmp_path / "out.h5").write_text("old")
    convert(source)
    assert names(tmp_path) == ["a.csv", "out.h5"]


WRONG = {
    "missing": (lambda d: [d / "none.csv"], "none.csv: no such file"),
    "a word alone": (lambda d: [put(d / "a.csv", "1,x,3\n")], "a.csv: no column with features"),
    "split too large": (lambda d: [csv(d / "a.csv"), "--split", 30], "a.csv has 30 rows"),
    "split of none": (lambda d: [csv(d / "a.csv"), "--split", 0], "--split 0"),
    "split of words": (lambda d: [csv(d / "a.csv"), "--split", "x"], "--split"),
    "split and test": (lambda d: [csv(d / "a.csv"), "--split", 9, TEST, csv(d / "b.csv")], "--split 9"),
    "negative seed": (lambda d: [csv(d / "a.csv"), "--split", 9, "--seed", -1], "seed"),
    "no class": (lambda d: [csv(d / "a.csv"), "--binarize", "9"], "--binarize 9"),
    "unknown target": (lambda d: [csv(d / "a.csv"), "--target", "price"], "'price'"),
    "unknown option": (lambda d: [csv(d / "a.csv"), "--colour", "red"], "--colour"),
    "text targets": (
        lambda d: [npz(d / "a.npz", x=np.eye(3), y=np.array(["a", "b", "c"]))], "a.npz (x): the target is text"
    ),
    "narrower test": (lambda d: [csv(d / "a.csv"), TEST, csv(d / "b.csv", ROWS[:, 1:])], "b.csv"),
    "narrower named test": (
        lambda d: [csv(d / "a.csv", header="a,b,c,d\n"), TEST, csv(d / "b.csv", ROWS[:, 1:], "b,c,d\n")], "b.csv"
    ),
    "test rows twice": (
        lambda d: [npz(d / "a.npz", x_train=np.eye(3), x_test=np.eye(3)), TEST, csv(d / "b.csv")], "drop --test"
    ),
    "test file without training rows": (
        lambda d: [csv(d / "a.csv", ROWS[:, :3]), TEST, npz(d / "b.npz", x_test=np.eye(2), y_test=np.ones(2))], "b.npz"
    ),
    "test file has bad rows": (lambda d: [csv(d / "a.csv"), TEST, put(d / "b.csv", "1,2,nan,4\n")], "b.csv: row 0"),
    "too large for float32": (
        lambda d: [csv(d / "a.csv", [[1.0, 2.0], [1e300, 3.0]]), "--dtype", "float32"], "row 1"
    ),
    "target of an HDF5 file": (
        lambda d: [write_hdf5(d / "a.h5", train=(ROWS[:, :3], ROWS[:, 3])), "--target", "0"], "a.h5"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_refused_and_nothing_left(tmp_path, refuses, case):
    make, message = WRONG[case]
    args = make(tmp_path)
    refuses("cacore.io", words(tmp_path, *args), message, tmp_path)
    (tmp_path / "out.h5").write_text("old")
    refuses("cacore.io", words(tmp_path, *args), message, tmp_path)


@pytest.mark.parametrize(
    ("destination", "message"), [("folder", "folder: is a directory"), ("none/out.h5", "none does not exist")]
)
def test_destination_that_cannot_be(destination, message, tmp_path, refuses):
    (tmp_path / "folder").mkdir()
    source = csv(tmp_path / "a.csv")
    refuses("cacore.io", words(tmp_path, source, destination=destination), message, tmp_path)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.eye(3), "y": np.arange(3)}, "train: 3 rows x 3 features, float64, dense; target 0 (1), 1 (1), 2 (1)"),
        ({"x": np.eye(3)}, "no target"),
        ({"x": np.eye(3), "y": np.array(["a", "b", "a"])}, "target a (2), b (1)"),
        ({"x": np.eye(3), "y": np.array([True, False, True])}, "target 0 (1), 1 (2)"),
        ({"x": np.eye(50), "y": np.arange(50) / 2}, "target 0 to 24.5, mean 12.25"),
        ({"x": np.eye(50), "y": np.array([f"class {i}" for i in range(50)])}, "class 0"),
    ],
    ids=["classes", "none", "text", "bool", "real", "many texts"],
)
def test_info(tmp_path, capsys, arrays, words):
    run("cacore.io", ["info", npz(tmp_path / "a.npz", **arrays)])
    out = capsys.readouterr().out
    assert out.startswith(f"{tmp_path / 'a.npz'} train")
    assert words in out


def test_info_of_sparse_rows(tmp_path, capsys):
    run("cacore.io", ["info", put(tmp_path / "a", "1 1:1 2:1\n0 20:1\n")])
    assert "2 rows x 20 features, float64, CSR, 1.5 nonzeros per row; target 0 (1), 1 (1)" in capsys.readouterr().out


def test_as_a_command(tmp_path, python):
    done = python("-m", "cacore.io", "info", csv(tmp_path / "a.csv"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "30 rows x 3 features" in done.stdout
    done = python("-m", "cacore.io", "info", tmp_path / "none.csv")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"cacore.io: {tmp_path / 'none.csv'}: no such file\n"
