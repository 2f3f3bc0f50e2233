"""Every rank's rows, put together, are the file."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
from importlib import import_module

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import equal_fields, names, refusal
from helpers.data import dense, formats, write_hdf5, write_libsvm
from helpers.distributed import RANK, WORLD, R

from cacore.comm import Communicator
from cacore.data.rows import block_bounds
from cacore.errors import InputError
from cacore.io import Arrays, delimited, load, native, stream
from cacore.io import loading as dataset
from cacore.io.__main__ import _parser as parser
from cacore.io.convert import convert
from cacore.io.fingerprints import overlap
from cacore.io.table import LABELS, NUMBERS

pytestmark = pytest.mark.mpi(min_size=1)


def table(n, d=7, seed=0, zeros=0.7):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).round(6)
    X[rng.random(X.shape) < zeros] = 0
    X[0, -1] = 1.5  # LIBSVM files do not say how many features there are
    return X, rng.normal(size=n).round(6)


def write_text(path, X, y):
    lines = [",".join(map(repr, row)) for row in np.column_stack([X, y]).tolist()]
    return "\n".join([",".join(f"x{j}" for j in range(X.shape[1])) + ",y", *lines]) + "\n"


def check(dataset, X, y, everywhere, dtype="float64"):
    """The rows of all ranks are X and y, and each rank holds its even block."""
    got, target = everywhere(dataset.X), everywhere(dataset.y)
    lo, hi = block_bounds(len(X), R, RANK)
    assert (dataset.n, dataset.X.shape, dataset.X.dtype) == (len(X), (hi - lo, X.shape[1]), np.dtype(dtype))
    np.testing.assert_array_equal(dense(got), X.astype(dtype))
    np.testing.assert_array_equal(target, y, strict=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_named_arrays_of_several_files(dtype, folder, everywhere):
    X, y = table(61)
    if RANK == 0:
        for number, (lo, hi) in enumerate(((0, 20), (20, 21), (21, 61))):
            with h5py.File(folder / f"run-{number}.h5", "w") as file:
                file["state/fields"], file["energy"] = X[lo:hi], y[lo:hi]
    WORLD.Barrier()
    arrays = Arrays(("state/fields[:, 0:3]", "state/fields[:, 3:]"), ("energy",))
    rows = load(folder / "run-*.h5", Communicator(WORLD), dtype, arrays=arrays)["train"]
    check(rows, X, y, everywhere, dtype)
    with pytest.raises(InputError, match=r"run-0\.h5: no array 'nothing'"):
        load(folder / "run-*.h5", Communicator(WORLD), dtype, arrays=Arrays(("nothing",), ("energy",)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@formats
@pytest.mark.parametrize("n", [53, 3, 1])
def test_hdf5(n, csr, dtype, folder, everywhere):
    splits = {"train": table(n), "test": table(5, seed=1)}
    if RANK == 0:
        write_hdf5(folder / "a.h5", csr, **splits)
    WORLD.Barrier()
    comm = Communicator(WORLD)
    loaded = load(folder / "a.h5", comm, dtype)
    assert list(loaded) == ["train", "test"]
    for split, (X, y) in splits.items():
        assert sp.issparse(loaded[split].X) == csr
        check(loaded[split], X, y, everywhere, dtype)
    # Each rank reads its own rows: what is sent is one flag, and what ranks agree on.
    assert comm.totals()[0]["read"]["bytes"] < 200 * R


def test_hdf5_without_splits(folder, everywhere):
    X, y = table(20)
    if RANK == 0:
        write_hdf5(folder / "a.h5", **{"": (X, y)})
    WORLD.Barrier()
    loaded = load(folder / "a.h5", Communicator(WORLD))
    assert list(loaded) == ["train"]
    check(loaded["train"], X, y, everywhere)


@pytest.mark.parametrize(
    ("form", "n"),
    [("csv", 53), ("csv", 3), ("tsv.gz", 3), ("libsvm.bz2", 53), ("libsvm", 3), ("npz", 53), ("npz", 3)],
)
def test_handed_out(form, n, folder, everywhere):
    zeros = 0.2 if form == "libsvm" else 0.8  # dense and CSR
    X, y = table(n, zeros=zeros)
    path = folder / f"a.{form}"
    if RANK == 0:
        if form == "csv":
            path.write_text(write_text(path, X, y))
        elif form == "tsv.gz":
            path.write_bytes(gzip.compress(write_text(path, X, y).replace(",", "\t").encode()))
        elif form == "npz":
            np.savez(path, x_train=X, y_train=y)
        else:
            write_libsvm(folder / "plain", X, y)
            plain = (folder / "plain").read_bytes()
            path.write_bytes(bz2.compress(plain) if form.endswith("bz2") else plain)
    WORLD.Barrier()
    for dtype in ("float32", "float64"):
        loaded = load(path, Communicator(WORLD), dtype)
        assert list(loaded) == ["train"]
        assert sp.issparse(loaded["train"].X) == (form == "libsvm.bz2")
        check(loaded["train"], X, y, everywhere, dtype)


def libsvm_text(n=47, d=40):
    """LIBSVM text with all its variants: byte order mark, returns, comments, blank lines, no final newline."""
    rng = np.random.default_rng(5)
    lines = []
    for i in range(n):
        at = np.append(np.sort(rng.choice(np.arange(1, d), 4, replace=False)), 2**31 - 1)
        words = [repr(rng.normal()), *(f"{j}:{rng.normal():.{rng.integers(1, 25)}g}" for j in at)]
        lines.append(" ".join(words) + ("", "\r", " # 1:2", "\n", "\n# words")[i % 5])
    return ("\ufeff" + "\n".join(lines)).encode()


def csv_text(n=47, words=False, quoted=False, header=True):
    """The same of CSV, and words for targets, of which rank 0 may not see all."""
    rng = np.random.default_rng(6)
    lines = []
    for i in range(n):
        last = "abc"[(3 * i) // n] if words else repr(rng.normal())
        first = f'"{rng.normal()}"' if quoted and i > 30 else repr(rng.normal())
        lines.append(f"{first},{rng.normal():.3g},{last}" + ("", "\r", "\n\r")[i % 3])
    return ("\ufeff" + '"a, in m",b,c\r\n' * header + "\n".join(lines)).encode()


TEXTS = {
    "libsvm": libsvm_text, "libsvm.bz2": lambda: bz2.compress(libsvm_text()), "a row": lambda: b"1 2:3",
    "csv": csv_text, "csv.gz": lambda: gzip.compress(csv_text()),
    "tsv": lambda: csv_text(header=False).replace(b",", b"\t"),
    "words.csv": lambda: csv_text(words=True), "words.csv.gz": lambda: gzip.compress(csv_text(words=True)),
    "quoted words.csv": lambda: csv_text(words=True, quoted=True),
}  # fmt: skip
WRONG = {
    "libsvm": libsvm_text() + b"\n1 1:?\n2 2:?", "libsvm.gz": gzip.compress(libsvm_text() + b"\n1 1:?\n2 2:?"),
    "cut.gz": gzip.compress(libsvm_text())[:-20], "csv": csv_text() + b"\n1,2,3,4\n1,x,3",
    "csv.gz": gzip.compress(csv_text() + b"\n1,2,3,4\n1,x,3"), "nan.csv": csv_text() + b"\n1,2,nan\nnan,2,3",
    "nan.bz2": bz2.compress(libsvm_text() + b"\n1 1:nan\nnan 2:1"),
}  # fmt: skip


@pytest.fixture
def small_blocks(tuned):
    """Files of some KiB are many blocks."""
    tuned(text_block=100, table_block=200)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("form", [*TEXTS, "npy", "columns.npy", "parquet"])
def test_divided(form, folder, everywhere):
    """Text and other tables: the rows, and their order, are those of one rank, bit by bit."""
    path = folder / f"a.{form}"
    if RANK == 0:
        X = np.random.default_rng(0).normal(size=(43, 5))
        if form in TEXTS:
            path.write_bytes(TEXTS[form]())
        elif form == "parquet":
            pa = import_module("pyarrow")
            columns = dict(zip("abcde", X.T, strict=True))
            import_module("pyarrow.parquet").write_table(pa.table(columns), path, row_group_size=9)
        else:
            np.save(path, np.asfortranarray(X) if form.startswith("columns") else X)
    WORLD.Barrier()
    wanted = LABELS if "words" in form else NUMBERS
    alone = load(path, Communicator(), wanted=wanted)["train"]
    divided = load(path, Communicator(WORLD), wanted=wanted)["train"]
    assert (divided.n, divided.base, divided.where) == (alone.n, alone.base, alone.where)
    lo, hi = block_bounds(alone.n, R, RANK)
    got, expected = divided.X, alone.X[lo:hi]
    assert (got.shape, got.dtype, sp.issparse(got)) == (expected.shape, expected.dtype, sp.issparse(expected))
    if sp.issparse(got):  # of 2^31 columns
        equal_fields(got, expected, "data", "indices", "indptr")
    else:
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(divided.y, alone.y[lo:hi], strict=True)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("what", WRONG)
def test_divided_and_wrong(what, folder):
    """All ranks say what one rank says, of what is first in the file; a conversion leaves nothing."""
    path = folder / f"a.{what}"
    if RANK == 0:
        path.write_bytes(WRONG[what])
    WORLD.Barrier()
    alone, divided = Communicator(), Communicator(WORLD)
    told = [refusal(load, path, comm) for comm in (alone, divided)]
    told += [
        refusal(converted, path, folder / out, [], comm) for comm, out in ((alone, f"{RANK}.h5"), (divided, "out.h5"))
    ]
    for one, other in (told[:2], told[2:]):
        assert set(WORLD.allgather(other)) == {one}
    WORLD.Barrier()
    assert names(folder) == [path.name]


def converted(source, out, options, comm):
    """Every array of the file that the command makes."""
    args = parser(0).parse_args(["convert", str(source), str(out), "--quiet", *options])
    convert(args, 1 << 30, comm)
    with h5py.File(out) as file:
        found = {}
        file.visititems(lambda name, item: found.update({name: item[:]} if isinstance(item, h5py.Dataset) else {}))
    return found


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("form", [form for form in TEXTS if "tsv" not in form])
def test_converted(form, folder):
    """Rank 0 writes what the others parse: the file is that of one rank alone."""
    path, options = folder / f"a.{form}", ["--binarize", "b"] * ("words" in form)
    if RANK == 0:
        path.write_bytes(TEXTS[form]())
    WORLD.Barrier()
    with contextlib.redirect_stdout(io.StringIO()):
        alone = converted(path, folder / f"{RANK}.h5", options, Communicator())
        divided = converted(path, folder / "out.h5", options, Communicator(WORLD))
    assert list(divided) == list(alone)
    for name, values in alone.items():
        np.testing.assert_array_equal(divided[name], values, strict=True)


BAD = {
    "missing": (None, "no such file"),
    "nan in the last row": ("nan", "row 39, feature 2 is nan"),
    "no rows": ("empty", "0 rows"),
    "text": (b"1 2:x\n", "line 1"),
    "damaged": (b"\x89HDF\r\n\x1a\n and no more", "truncated"),
    "damaged archive": (b"PK\x03\x04 and no more", "damaged"),
    "too large": (b"1 2:1\n1 2:-1e39\n", r"line 2\), feature 1 is -1e\+39, too large for float32"),
    "bomb": (gzip.compress(b"1,2,3\n" * 1500000, 1), "needs .* GiB, and a rank may use 0.00781 GiB"),
    "wide": (b"1 1:1\n1 2147483647:1\n", "2 rows of 2,147,483,647 features needs 16 GiB"),
    "promise": ("promise", "a rank's block of the rows needs .* GiB, and a rank may use 0.00781 GiB"),
}


@pytest.mark.parametrize("what", BAD)
def test_all_ranks_refuse(what, folder):
    content, message = BAD[what]
    X, y = table(40)
    if RANK == 0 and isinstance(content, bytes):
        (folder / "a").write_bytes(content)
    elif RANK == 0 and content is not None:
        X[39, 2] = np.nan
        kept = {"nan": 40, "empty": 0, "promise": 1}[content]
        write_hdf5(folder / "a", train=(X[:kept], y[:kept]))
        if content == "promise":
            with h5py.File(folder / "a", "a") as file:
                del file["train/y"], file["train/X"]
                file.create_dataset("train/X", (1 << 30, 1024), "f8")
    WORLD.Barrier()
    with pytest.raises(InputError, match=message) as caught:
        load(folder / "a", Communicator(WORLD), "float32", limit=1 << 23)
    messages = set(WORLD.allgather(str(caught.value)))
    assert len(messages) == 1
    assert messages.pop().startswith(str(folder / "a"))


def another_file(path):
    """Once rank 0 has read, another file takes the place of this one."""
    WORLD.recv(source=0)
    (path.parent / "other").replace(path)


def reading_in_turn(path):
    """Stand-in for ``reading``: the second time that a rank reads in a text, it reads its rows."""
    begun = []

    @contextlib.contextmanager
    def reading(place):
        begun.append(place)
        if len(begun) == 2 and RANK == R - 1:
            another_file(path)
        with stream.reading(place):
            yield
        if len(begun) == 2 and RANK == 0:
            WORLD.send(None, dest=R - 1)

    return reading


def blocks_in_turn(path, before=dataset._blocks):
    def blocks(*args):
        if RANK == R - 1:
            another_file(path)
        return before(*args)

    return blocks


def read_block(*args, before=native.NativeFile.read_block):
    found = before(*args)
    if RANK == 0:
        WORLD.send(None, dest=R - 1)
    return found


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("form", ["h5", "csv"])
def test_another_file_between_two_ranks(form, folder, monkeypatch):
    """The last rank begins when rank 0 has read, and another file has taken the place of its: all refuse it."""
    path = folder / f"a.{form}"
    if RANK == 0:
        for seed, place in enumerate([path, folder / "other"]):
            X, y = table(40, seed=seed)
            write_hdf5(place, train=(X, y)) if form == "h5" else place.write_text(write_text(place, X, y))
    WORLD.Barrier()
    monkeypatch.setattr(delimited, "reading", reading_in_turn(path))
    monkeypatch.setattr(native.NativeFile, "read_block", read_block)
    monkeypatch.setattr(dataset, "_blocks", blocks_in_turn(path))
    with pytest.raises(InputError, match="it changed while it was read") as caught:
        load(path, Communicator(WORLD))
    messages = set(WORLD.allgather(str(caught.value)))
    assert len(messages) == 1
    assert messages.pop().startswith(str(path))


@pytest.mark.parametrize("shared", [[], [0], [4, 9, 10]])
def test_overlap(shared, folder):
    (X, y), (T, t) = table(40), table(11, seed=1)
    for row in shared:
        T[row], t[row] = X[39 - row], y[39 - row]
    if RANK == 0:
        write_hdf5(folder / "a.h5", train=(X, y), test=(T, t))
    WORLD.Barrier()
    comm = Communicator(WORLD)
    loaded = load(folder / "a.h5", comm)
    assert np.flatnonzero(overlap(loaded["train"], loaded["test"], comm)).tolist() == shared


@pytest.mark.parametrize("form", ["csv", "h5"])
def test_offsets_that_single_precision_loses(folder, form):
    """Unix times: the mean and deviation of all ranks decide, before any rank rounds its rows."""
    X, y = table(40, 3)
    X[:, 1] = 1.7e9 + np.arange(40) // (40 // R + 1)  # on each rank one number
    path = folder / f"rows.{form}"
    if RANK == 0:
        if form == "h5":
            write_hdf5(path, train=(X, y))
        else:
            path.write_text(write_text(path, X, y))
    comm = Communicator(WORLD)
    comm.wait()
    assert load(path, comm, "float64", training=True)["train"].n == 40
    if R > 1:
        refusal(lambda: load(path, comm, "float32", training=True), match="but numbers of type float32 are 128 apart")
