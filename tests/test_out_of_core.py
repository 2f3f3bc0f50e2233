"""Rows in a file: as an array of them would be; trained on to the same bits, in less memory than they take."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from helpers.commands import read, reported, run
from helpers.data import write_hdf5
from hypothesis import given, settings
from hypothesis import strategies as st

from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.rows import check_range, in_memory, largest_size, take_rows
from cacore.data.standardize import Standardizer
from cacore.data.stored import Arriving, StoredRows, empty_like, permuted
from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint
from cacore.io.fingerprints import fingerprint
from cacore.io.native import NativeFile
from cacore.svm.problem import numeric_gamma
from cakrr import bkrr2
from cakrr.options import RidgeOptions
from casvm.casvm import casvm
from casvm.model.libsvm_files import export_libsvm
from casvm.options import SVMOptions, ValueOptions
from casvm.svr import svr
from partition.redistribute import redistribute


@pytest.fixture
def small_blocks(tuned):
    """So few bytes at a time that the rows of a test are many blocks."""
    tuned(stored_block=256, stored_gap=64)


def filed(X, folder):
    rows = StoredRows.empty(folder, *X.shape, X.dtype)
    rows[:] = X
    return rows


def table(n=157, d=3, seed=0, dtype=np.float64):
    return (np.random.default_rng(seed).normal(size=(n, d)) * [1, 20, 300] + [0, 5, 1000]).astype(dtype)


# -- as an array -------------------------------------------------------------------------------


@settings(max_examples=40)
@given(numbers=st.lists(st.integers(0, 156), max_size=60), lo=st.integers(0, 170), step=st.integers(1, 40))
@pytest.mark.usefixtures("small_blocks")
def test_rows_that_are_taken(numbers, lo, step, tmp_path_factory):
    """Slices, numbers in any order and more than once, masks; of the rows, and of some of them."""
    X = table(dtype=np.float32)
    rows, index, mask = filed(X, tmp_path_factory.getbasetemp()), np.array(numbers, np.int64), np.zeros(157, np.bool_)
    mask[index] = True
    for key in (index, mask, slice(lo, lo + 50), slice(lo, None, step)):
        np.testing.assert_array_equal(rows[key], X[key])
        view, chosen = rows.subset(key), X[key]
        assert (view.shape, view.dtype, view.nbytes) == (chosen.shape, chosen.dtype, 0)
        np.testing.assert_array_equal(view[::3], chosen[::3])
        np.testing.assert_array_equal(take_rows(view, np.arange(len(chosen))[::-1])[:], chosen[::-1])


def test_rows_that_are_not_there(tmp_path):
    rows = filed(table(), tmp_path)
    for call in (lambda: rows[np.array([3, 157])], lambda: rows[np.array([-1])], lambda: rows.subset([0, 2])[:1][5]):
        with pytest.raises(IndexError):
            call()
    with pytest.raises(IndexError, match="beside each other"):
        rows.subset(np.array([1, 3]))[:] = table(2)
    with pytest.raises(InputError, match="--scratch"):
        filed(table(), tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small_blocks")
def test_places(tmp_path):
    """Rows go to their places in whatever order they come."""
    X, place = table(), np.random.default_rng(1).permutation(157)
    np.testing.assert_array_equal(in_memory(permuted(filed(X, tmp_path), place)), X[place])
    arriving = Arriving(filed(X, tmp_path).another(157))
    for some_places in np.array_split(place, 9):
        arriving.put(some_places, X[some_places])
    np.testing.assert_array_equal(arriving.finish()[:], X)


@pytest.mark.usefixtures("small_blocks")
def test_statistics_of_stored_rows_equal_those_in_memory(tmp_path):
    """Statistics, sizes, gamma, fingerprints and parts are those of an array, to the bit."""
    X, comm = table(2500), Communicator()
    rows, y = filed(X, tmp_path), X[:, 0]
    expected = Standardizer.fit(X, comm)
    made = expected.apply(rows)
    assert made is not rows
    np.testing.assert_array_equal(made[:], expected.apply(X))
    np.testing.assert_array_equal(Standardizer.fit(rows, comm).scale, expected.scale)
    assert largest_size(rows) == np.abs(X).max()
    assert numeric_gamma(rows, "scale", comm) == numeric_gamma(X, "scale", comm) == pytest.approx(1 / (3 * X.var()))
    assert fingerprint(rows, y, None, comm) == fingerprint(X, y, None, comm)
    assert empty_like(rows).shape == X.shape
    labels, owners = (np.arange(2500) * 7 % 5).astype(np.int32), np.zeros(5, np.int64)
    columns = {"order": np.random.default_rng(2).permutation(2500)}
    for order in (None, "order"):
        got, parts = (redistribute(Samples(some, dict(columns)), labels, owners, comm, order) for some in (rows, X))
        np.testing.assert_array_equal(got.X[:], parts.X)
        np.testing.assert_array_equal(got["order"], parts["order"])
    rows[2000:2001] = np.full((1, 3), 1e200)
    with pytest.raises(InputError, match=r"row 2000, feature 0 is 1e\+200"):
        check_range(rows)


# -- commands ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    X = rng.normal(size=(960, 4)) + 3 * rng.normal(size=(6, 4))[rng.integers(6, size=960)]
    y = np.sin(X[:, 0]) + X[:, 1]
    for name, values in (("numbers.h5", y), ("classes.h5", (y > 0).astype(float))):
        write_hdf5(folder / name, train=(X[:800], values[:800]), test=(X[800:], values[800:]))
    learned = ["--partitions", "2", "--metric", "lengths", "--sigma", "1,2", "--lambda", "1e-6,1e-4"]
    run("cakrr.bkrr2", [folder / "numbers.h5", *learned, "--model", folder / "metric.h5", "--quiet"])
    (folder / "a.csv").write_text("1,2,3\n3,4,5\n")
    with h5py.File(folder / "csr.h5", "w") as file:
        group = file.create_group("X")
        group.attrs["shape"] = 4, 2
        group["data"], group["indices"], group["indptr"] = np.ones(4), np.zeros(4, int), np.arange(5)
        file["y"] = np.arange(4.0)
    return folder


TRAINED = {
    "grid": ("cakrr.bkrr2", "--sigma 1,2 --lambda 1e-4,1e-2 --partitions 5"),
    "mean of all": ("cakrr.dckrr", "--sigma 1,2 --partitions 3 --dtype float32"),
    "soft": ("cakrr.kkrr2", "--sigma 2 --route soft --partitions 5"),
    "each its own": ("cakrr.bkrr", "--sigma 1,2 --lambda 1e-4,1e-2 --partitions 5 --per-part --kernel polynomial"),
    "left out": ("cakrr.kkrr2", "--sigma 1,2 --select loo --partitions 5"),
    "tested": ("cakrr.bkrr2", "--sigma 1,2 --select test --partitions 5"),
    "a metric that is kept": (
        "cakrr.bkrr2",
        "--metric lengths --metric-init {folder}/metric.h5 --metric-rounds 0 --sigma 1,2 --route soft --partitions 4",
    ),
    "classes": ("cakrr.bkrr2", "--classify --balanced --sigma 2 --partitions 4"),
    "points": ("cakrr.subset", "--sigma 1,2 --lambda 1e-6,1e-3 --centers 10,20"),
    "pivots": ("cakrr.subset", "--sigma 1,2 --lambda 1e-6,1e-3 --centers 20 --pick pivots --select gcv"),
    "clusters": ("casvm.cpsvm", "--C 1 --partitions 5 --standardize"),
    "dealt": ("casvm.casvm", "--C 1,10 --gamma 0.1,1 --partitions 3 --route all"),
    "balanced": ("casvm.fcfssvm", "--C 1 --partitions 4 --ratio --probability"),
    "moved": ("casvm.bkmsvm", "--C 1 --partitions 4 --route soft --solver asygcd --dtype float32 --threads 1"),
}


@pytest.mark.parametrize(("program", "words"), TRAINED.values(), ids=TRAINED)
@pytest.mark.usefixtures("small_blocks")
def test_same_model(program, words, folder, tmp_path):
    """To the bit; the file is in the folder of the model, or of --scratch, and gone at the end."""
    data = folder / ("numbers.h5" if program.startswith("cakrr") and "classify" not in words else "classes.h5")
    (tmp_path / "scratch").mkdir()
    said = []
    for name, more in (("memory", []), ("disk", ["--out-of-core", "--scratch", tmp_path / "scratch"])):
        command = [data, *words.format(folder=folder).split(), "--model", tmp_path / f"{name}.h5", *more]
        said.append(reported(program, command, tmp_path))
    assert (tmp_path / "disk.h5").read_bytes() == (tmp_path / "memory.h5").read_bytes()
    for field in ("grid", "partition_sizes"):
        assert said[0][field] == said[1][field]
    for name in ("confusion", "classes"):
        assert said[0]["metrics"].pop(name, None) == said[1]["metrics"].pop(name, None)
    assert said[0]["metrics"] == pytest.approx(said[1]["metrics"], rel=1e-9)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_bound_of_the_answers(folder, tmp_path):
    """The rule also covers test rows that are in a file of their own."""
    with h5py.File(folder / "numbers.h5") as file:
        for split in ("train", "test"):
            write_hdf5(tmp_path / f"{split}.h5", **{"": (file[f"{split}/X"][:], file[f"{split}/y"][:])})
    words = [tmp_path / "train.h5", "--test", tmp_path / "test.h5", "--sigma", "2", "--partitions", "4"]
    made = [reported("cakrr.bkrr3", [*words, *more], tmp_path)["metrics"] for more in ([], ["--out-of-core"])]
    assert made[0] == pytest.approx(made[1], rel=1e-9)


@pytest.mark.parametrize("program", ["cakrr.bkrr2", "casvm.cpsvm"])
def test_resumed(program, folder, tmp_path, recorded):
    """Parts that are finished are not trained again, be it in memory or not."""
    words = [folder / "classes.h5", "--partitions", "4", "--checkpoint", tmp_path / "kept", "--quiet"]
    words += ["--sigma", "2", "--lambda", "1e-3"] if program == "cakrr.bkrr2" else ["--C", "1"]
    run(program, [*words, "--out-of-core", "--model", tmp_path / "first.h5"])
    (tmp_path / "kept" / "part-000002.npz").unlink()
    kept = recorded(Checkpoint, "put", lambda _, checkpoint, name, **done: name)
    run(program, [*words, "--out-of-core", "--model", tmp_path / "second.h5"])
    run(program, [*words, "--model", tmp_path / "third.h5"])
    assert kept == ["part-000002"]
    for name in ("second.h5", "third.h5"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "first.h5").read_bytes()


REFUSED = {
    "text": ("cakrr.bkrr2", "a.csv", "", "--out-of-core reads HDF5; run python -m cacore.io convert"),
    "csr": ("cakrr.bkrr2", "csr.h5", "", "--out-of-core takes dense rows, not CSR"),
    "folder": ("casvm.cpsvm", "classes.h5", "--scratch absent/x", "--scratch absent/x: cannot make a file there"),
    "metric": ("cakrr.bkrr2", "numbers.h5", "--metric full", "--metric: needs all rows in memory"),
    "a metric that is refined": (
        "cakrr.bkrr2", "numbers.h5", "--metric lengths --metric-rounds 1", "--metric: needs all rows in memory"
    ),
    "scaling": ("cakrr.dckrr", "numbers.h5", "--scaling auto", "--scaling: needs all rows in memory"),
    "folds": ("cakrr.bkrr2", "numbers.h5", "--cv 3", "--cv: needs all rows in memory"),
    "divisions": ("cakrr.bkrr2", "numbers.h5", "--divisions 2", "--divisions: needs all rows in memory"),
    "factors": ("cakrr.bkrr2", "numbers.h5", "--keep-factors", "--keep-factors: needs all rows in memory"),
    "intervals": ("cakrr.bkrr2", "numbers.h5", "--calibrate 0.1", "--calibrate: needs all rows in memory"),
    "metric of an SVM": ("casvm.cpsvm", "classes.h5", "--metric diagonal", "--metric: needs all rows in memory"),
    "root": ("casvm.casvm", "classes.h5", "--initial root", "--initial root: needs all rows in memory"),
    "libsvm": ("casvm.cpsvm", "classes.h5", "--libsvm x", "--libsvm: needs all rows in memory"),
    "columns": ("cakrr.bkrr2", "numbers.h5", "--memory-limit 1e-5", "keeping the targets and row numbers"),
    "levels": ("cakrr.bkrr2", "numbers.h5", "--scaling levels", "--scaling: needs all rows in memory"),
    "levels on points": ("cakrr.subset", "numbers.h5", "--scaling levels", "levels need dense rows in memory"),
    "a tree": ("casvm.cascade", "classes.h5", "", "unrecognized arguments: --out-of-core"),
    "one model": ("cakrr.dkrr", "numbers.h5", "", "unrecognized arguments: --out-of-core"),
    "parts at a time": (
        "casvm.cpsvm", "classes.h5", "--C 1 --partitions 2 --threads 2 --memory-limit 0.006",
        "2 parts at a time, of up to ",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("program", "data", "words", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(program, data, words, message, folder, tmp_path, refuses):
    refuses(program, [folder / data, *words.split(), "--out-of-core"], message, tmp_path)


def test_scratch_without_rows_in_it(folder, tmp_path, refuses):
    words = [folder / "numbers.h5", "--scratch", tmp_path]
    refuses("cakrr.bkrr2", words, "--scratch: ", tmp_path)
    refuses("cakrr.subset", words, "--scratch: ", tmp_path)
    refuses("casvm.cpsvm", [folder / "classes.h5", *words[1:]], "--scratch: ", tmp_path)


def test_file_changed_while_copied_is_refused(folder, tmp_path, monkeypatch, refuses):
    """Rows of two files are not mixed: one takes the place of the other after the first block."""
    path, read_block = tmp_path / "numbers.h5", NativeFile.read_block
    path.write_bytes((folder / "numbers.h5").read_bytes())

    def block(*args):
        found = read_block(*args)
        (tmp_path / "other").write_bytes((folder / "numbers.h5").read_bytes())
        (tmp_path / "other").replace(path)
        return found

    monkeypatch.setattr(NativeFile, "read_block", block)
    message = "numbers.h5: it changed while it was read; read it again when nothing writes to it"
    refuses("cakrr.bkrr2", [path, "--partitions", "2", "--out-of-core"], message, tmp_path)


# -- models whose rows are still in a file -----------------------------------------------------


def trained(method, options, y, folder=None):
    X = table(n=90) / 100
    return method(Dataset(X if folder is None else filed(X, folder), y), options).model


def alike(got, expected):
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_deviations_and_shares_of_features(tmp_path):
    """After the training, too, a part's rows are read from the file where they are needed."""
    options, X = RidgeOptions(partitions=2, sigma=(2.0,), lam=(1e-3,)), table(seed=1)[:9] / 100
    y = np.sin(table(n=90)[:, 0])
    model, expected = trained(bkrr2.METHOD, options, y, tmp_path), trained(bkrr2.METHOD, options, y)
    alike(model.predict_std(X), expected.predict_std(X))
    alike([model.explain(X, X).values], [expected.explain(X, X).values])


def test_support_vectors_for_libsvm(tmp_path):
    y, options = (table(n=90)[:, 0] > 0).astype(int), SVMOptions(partitions=2, gamma=0.5)
    written = export_libsvm(trained(casvm, options, y, tmp_path), tmp_path / "file.model")
    expected = export_libsvm(trained(casvm, options, y), tmp_path / "memory.model")
    assert [path.read_text() for path in written] == [path.read_text() for path in expected]


@pytest.mark.parametrize(("method", "options"), [
    (casvm, SVMOptions(partitions=4, C="grid", gamma="grid", quick=True)),
    (svr, ValueOptions(partitions=4, C="grid", gamma="grid", quick=True)),
], ids=["classes", "values"])  # fmt: skip
def test_a_search_reads_whole_parts_at_most(method, options, tmp_path, recorded):
    taken = recorded(StoredRows, "__getitem__", lambda _, rows, key: (len(rows), key))
    y = table(n=90)[:, 0]
    model = trained(method, options, (y > 0).astype(int) if method is casvm else y, tmp_path)
    assert len(model.parts) == 4
    whole = [size for size, key in taken if isinstance(key, slice) and key == slice(None)]
    assert whole
    assert max(whole) < 60


# -- memory ------------------------------------------------------------------------------------

LIMIT = 0.04  # GiB: 41 MiB


def test_less_memory_than_the_rows_take(tmp_path, python, refuses):
    """40 MB of rows and 4 of test rows are refused in memory; in a file they take less than the limit."""
    X = np.random.default_rng(0).normal(size=(11_000, 500))
    X[:, :8] += 4 * np.eye(8)[np.arange(11_000) % 8]
    y = X[:, 0]
    write_hdf5(tmp_path / "many.h5", train=(X[:10_000], y[:10_000]), test=(X[10_000:], y[10_000:]))
    write_hdf5(tmp_path / "few.h5", train=(X[:64], y[:64]), test=(X[64:80], y[64:80]))
    words = ["--partitions", "20", "--threads", "1", "--sigma", "20,40", "--lambda", "1e-3"]
    limited = [*words, "--memory-limit", LIMIT]
    message = "a rank may use 0.04 GiB: use --out-of-core, more ranks (about 3) or --dtype float32"
    refuses("cakrr.bkrr2", [tmp_path / "many.h5", *limited], message, tmp_path)
    peaks = []
    for name in ("few.h5", "many.h5"):
        command = [
            "cakrr.bkrr2",
            tmp_path / name,
            *limited,
            "--out-of-core",
            "--report",
            tmp_path / "r.json",
            "--quiet",
        ]
        done = python("-m", *command)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        peaks.append(read(tmp_path / "r.json")["memory"]["peak_rss_mib"][0])
    assert peaks[1] - peaks[0] < 1024 * LIMIT
