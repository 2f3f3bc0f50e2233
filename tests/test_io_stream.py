"""Files of any length are converted, and read, in blocks: the rows are those that scikit-learn and Python read."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
from importlib import import_module
from itertools import product

import h5py
import numpy as np
import pytest
from helpers.checks import names
from helpers.commands import run
from helpers.data import dense, write_hdf5
from sklearn.datasets import load_svmlight_file
from sklearn.model_selection import train_test_split

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.io import load, spool, stream, table, text

PACK = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
RNG = np.random.default_rng(7)


@pytest.fixture
def small_blocks(tuned):
    """Files of a few hundred bytes are many blocks."""
    tuned(text_block=50, spool_chunk=128, array_block=400)


@pytest.fixture
def convert(tmp_path):
    def call(*words):
        run("cacore.io", ["convert", *words, "--quiet"])
        return load(tmp_path / "out.h5", Communicator())

    return call


def libsvm(first, entries, rows=60, d=40):
    """Rows in which the first index comes late, with what such files may have."""
    lines = []
    for i in range(rows):
        at = np.sort(RNG.choice(np.arange(2, d), entries, replace=False))
        at = at if i < rows - 3 else np.append(first, at)
        words = [repr(RNG.normal()), *(f"{j}:{RNG.normal():.{RNG.integers(1, 25)}g}" for j in at)]
        lines.append(" ".join(words) + RNG.choice(["", "\r", " # 1:2", "\n", "\n# words"]))
    return ("\ufeff" + "\n".join(lines)).encode()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("first", "entries"), [(1, 4), (0, 4), (0, 30)], ids=["from 1", "from 0, late", "dense"])
@pytest.mark.parametrize("end", PACK)
def test_libsvm(tmp_path, convert, first, entries, end):
    content = libsvm(first, entries)
    (tmp_path / "a").write_bytes(PACK[end](content))
    X, y = load_svmlight_file(io.BytesIO(content.removeprefix(b"\xef\xbb\xbf")), zero_based=first == 0)
    for rows in (convert(tmp_path / "a", tmp_path / "out.h5")["train"], load(tmp_path / "a", Communicator())["train"]):
        assert isinstance(rows.X, np.ndarray) == (entries == 30)
        np.testing.assert_array_equal(dense(rows.X).view(np.int64), X.toarray().view(np.int64))
        np.testing.assert_array_equal(rows.y.view(np.int64), y.view(np.int64))
    assert names(tmp_path) == ["a", "out.h5"]


@pytest.mark.usefixtures("small_blocks")
def test_several_files_are_one(tmp_path, convert):
    """Files with different compressions are joined, with and without a final newline."""
    parts = [libsvm(1, 4, 20), libsvm(1, 3, 9), libsvm(1, 5, 20, 60)]
    paths = [tmp_path / name for name in "abc"]
    for path, part, end in zip(paths, parts, ["", ".gz", ".xz"], strict=True):
        path.write_bytes(PACK[end](part))
    whole = b"\n".join(part.removeprefix(b"\xef\xbb\xbf") for part in parts)
    X, y = load_svmlight_file(io.BytesIO(whole), zero_based=False)
    rows = convert(*paths, tmp_path / "out.h5")["train"]
    np.testing.assert_array_equal(rows.X.toarray(), X.toarray())
    np.testing.assert_array_equal(rows.y, y)
    both = convert(paths[0], tmp_path / "out.h5", "--test", paths[1], "--test", paths[2])
    np.testing.assert_array_equal(both["train"].X.toarray(), X.toarray()[:20])
    np.testing.assert_array_equal(both["test"].X.toarray(), X.toarray()[20:])


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("form", ["csv", "libsvm", "h5"])
def test_rows_are_chosen_without_being_held(tmp_path, convert, form):
    """Duplicates, and a split into scikit-learn's order, from rows on disk."""
    X, y = RNG.integers(0, 3, (90, 4)) / 8, RNG.integers(0, 2, 90)
    path = tmp_path / "a"
    if form == "csv":
        path.write_text("".join(",".join(map(repr, row)) + "\n" for row in np.column_stack([X, y]).tolist()))
    else:
        lines = [
            f"{t} " + " ".join(f"{j}:{v!r}" for j, v in enumerate(row, 1)) for row, t in zip(X.tolist(), y, strict=True)
        ]
        path.write_text("\n".join(lines))
    if form == "h5":
        convert(path, tmp_path / "out.h5")
        (tmp_path / "out.h5").rename(path)
    _, first = np.unique(np.column_stack([X, y]), axis=0, return_index=True)
    kept = np.sort(first)
    assert len(kept) < 80
    got = convert(path, tmp_path / "out.h5", "--drop-duplicates", "--split", 25, "--dtype", "float32")
    for split, rows in zip(("train", "test"), train_test_split(kept, train_size=25, random_state=0), strict=True):
        np.testing.assert_array_equal(dense(got[split].X), X[rows])
        np.testing.assert_array_equal(got[split].y, y[rows])
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["test/X"].dtype == np.float32


@pytest.mark.usefixtures("small_blocks")
def test_csv_bits_are_pythons(tmp_path, convert):
    """Plain numbers, and from some line on quoted ones, which another reader takes."""
    cells = [
        [repr(v) for v in row] for row in (RNG.normal(size=(60, 3)) * 10.0 ** RNG.integers(-300, 300, (60, 3))).tolist()
    ]
    cells[7][1], cells[8] = "12345678901234567890123e-10", [" 1 ", "2. ", " +.5"]
    want = np.array([[float(cell) for cell in row] for row in cells])
    cells[40][2] = f'"{cells[40][2]}"'
    (tmp_path / "a.csv").write_text('"x, in m",y,z\r\n' + "\r\n\r\n".join(map(",".join, cells)))
    rows = convert(tmp_path / "a.csv", tmp_path / "out.h5", "--target", "y")["train"]
    np.testing.assert_array_equal(rows.X, want[:, [0, 2]])
    np.testing.assert_array_equal(rows.y, want[:, 1])


@pytest.mark.usefixtures("small_blocks")
def test_words_of_many_blocks(tmp_path, convert):
    """A class against the rest, and classes, which other blocks have first."""
    words = RNG.choice(["b", "a", "c c"], 50)
    (tmp_path / "a.csv").write_text("".join(f"{i},{word}\n" for i, word in enumerate(words)))
    rows = convert(tmp_path / "a.csv", tmp_path / "out.h5", "--binarize", "c c")["train"]
    np.testing.assert_array_equal(rows.y, np.where(words == "c c", 1, -1))
    rows = text.parse(tmp_path / "a.csv", table.RowsRequest(wanted=table.LABELS))["train"]
    assert rows.y.tolist() == words.tolist()


LATE = "1 1:1\n" * 40
WRONG = {
    "a line of a late block": (LATE + "1 1:?\n", "a: line 41: '1:?' is not index:value"),
    "a number, and a feature 0 after it": (LATE + "1 1:nan\n" + LATE + "1 0:1\n", "row 40 (line 41), feature 1 is nan"),
    "a class that is not there": (LATE, "--binarize 7: no row has this class; the classes are 1.0"),
    "a column too many": ("1,2\n" * 40 + "1,2,3\n", "line 41: 3 columns, the lines before have 2"),
    "a word": ("1,2\n" * 40 + "1,x\n", "line 41, column 1: 'x' is not a number"),
    "not a finite number": ("1,2\n" * 40 + "inf,2\n", "row 40 (line 41), feature 0 is inf"),
}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("what", WRONG)
def test_refused_conversion_leaves_no_files(what, tmp_path, refuses):
    content, message = WRONG[what]
    (tmp_path / "a").write_text(content)
    more = ["--binarize", "7"] if "class" in what else []
    refuses("cacore.io", ["convert", "a", "out.h5", *more], message, tmp_path)


def write_form(path, form):
    rows = np.arange(120.0).reshape(40, 3)
    if form == "npy":
        np.save(path, rows)
    elif form == "h5":
        write_hdf5(path, **{"": (rows, rows[:, 0])})
    elif form == "parquet":
        pq, pa = import_module("pyarrow.parquet"), import_module("pyarrow")
        pq.write_table(pa.table(dict(zip("abc", rows.T, strict=True))), path, row_group_size=10)
    else:
        text = b"1,2,3\n" * 40 if form.startswith("csv") else b"1 1:2\n" * 40
        path.write_bytes(PACK[".gz" if form.endswith("gz") else ""](text))


CHANGES = {
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"1 2:3\n"),
    "as long": lambda path: os.utime(path, (1, 1)),
    "shorter": lambda path: os.truncate(path, 50),
    "removed": lambda path: path.unlink(),
    "another": lambda path: another_as_old(path),
}


def another_as_old(path):
    """Another file of the same size, whose content is said to be as old."""
    before, other = path.stat(), path.with_suffix(".other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("form", "how"),
    [*product(["csv", "libsvm", "libsvm.gz", "npy", "parquet", "h5"], ["as long", "shorter"]), ("csv", "longer"),
     ("libsvm", "removed"), ("h5", "another"), ("csv", "another")],
)  # fmt: skip
def test_file_changed_while_read_is_refused(form, how, tmp_path, monkeypatch, capfd):
    """Once its first rows were written: one line, and nothing is left behind."""
    path, append, left = tmp_path / f"a.{form}", spool.GrowingRows.append, [CHANGES[how]]
    write_form(path, form)

    def appended(*args):
        if left:
            left.pop()(path)
        append(*args)

    monkeypatch.setattr(spool.GrowingRows, "append", appended)
    words = ["--split", 5] if form == "h5" else []
    with pytest.raises(SystemExit) as ended:
        run("cacore.io", ["convert", path, tmp_path / "out.h5", "--quiet", *words])
    told = capfd.readouterr().err
    assert (ended.value.code, told.count("\n")) == (2, 1)
    assert told.startswith(f"cacore.io: {path}: ")
    assert "it changed while it was read; " in told or (form == "h5" and how == "shorter")
    assert names(tmp_path) == ([] if how == "removed" else [path.name])


@pytest.mark.parametrize("form", ["csv", "h5"])
def test_file_vanished_before_reading_is_refused(form, tmp_path, monkeypatch, capfd):
    """Once its form is known, which is looked at first: one line, as for one that never was there."""
    path, kind = tmp_path / f"a.{form}", text.kind

    def looked_at(*args):
        found = kind(*args)
        path.unlink()
        return found

    monkeypatch.setattr(text, "kind", looked_at)
    write_form(path, form)
    with pytest.raises(SystemExit) as ended:
        run("cacore.io", ["convert", path, tmp_path / "out.h5"])
    assert (ended.value.code, capfd.readouterr().err) == (2, f"cacore.io: {path}: no such file\n")
    assert names(tmp_path) == []
    write_form(path, form)
    with pytest.raises(InputError, match="no such file"):
        load(path, Communicator())


def test_file_vanished_during_format_detection_is_refused(tmp_path, monkeypatch):
    """Between its first bytes and the question whether they are compressed."""
    path, opener = tmp_path / "a.h5", stream._opener

    def gone(path):
        path.unlink()
        return opener(path)

    write_form(path, "h5")
    monkeypatch.setattr(stream, "open_bytes", lambda path: path.open("rb"))
    monkeypatch.setattr(stream, "_opener", gone)
    with pytest.raises(InputError, match=r"a\.h5: cannot be read"):
        text.kind(path)


def test_bad_number_is_located_without_the_text(tmp_path, monkeypatch):
    """The row of a number that is refused is named, though the text with its line is gone."""
    path, check = tmp_path / "a.csv", table.Table.check_features
    path.write_text("1,2\n3,nan\nnan,5\n")

    def checked(rows, dtype):
        path.unlink()
        return check(rows, dtype)

    monkeypatch.setattr(table.Table, "check_features", checked)
    with pytest.raises(InputError, match=r"a\.csv: row 2, feature 0 is nan"):
        load(path, Communicator())


def test_files_that_do_not_fit_together(tmp_path, refuses):
    (tmp_path / "a.csv").write_text("1,2\n")
    (tmp_path / "b.csv").write_text("1,2,3\n")
    (tmp_path / "c").write_text("1 1:2\n")
    (tmp_path / "d.csv").write_text("x,y\n1,2\n")
    (tmp_path / "e.csv").write_text("z,y\n1,2\n")
    message = "e.csv: no column x, which d.csv has; columns are matched by name"
    refuses("cacore.io", ["convert", "d.csv", "e.csv", "out.h5"], message, tmp_path)
    refuses("cacore.io", ["convert", "a.csv", "b.csv", "out.h5"], "b.csv: 2 features, but 1 in a.csv", tmp_path)
    refuses(
        "cacore.io", ["convert", "a.csv", "c", "out.h5"], "c: libsvm, but a.csv is csv: convert them apart", tmp_path
    )


PROGRAM = """
import runpy, sys
from cacore.machine.memory import peak_rss_mib

small, large, limit, *more = sys.argv[1:]

def convert(source):
    sys.argv = ["cacore.io", "convert", source, "out.h5", "--memory-limit", limit, *more]
    runpy.run_module("cacore.io", run_name="__main__", alter_sys=True)

convert(small)
before = peak_rss_mib()
convert(large)
print(peak_rss_mib() - before)
"""


@pytest.mark.parametrize(
    ("size", "mib", "more"), [(1750000, 16, []), (400000, 32, ["--split", "5"])], ids=["all rows", "in another order"]
)
def test_memory_does_not_grow_with_the_file(tmp_path, python, size, mib, more):
    """Text of 50 MB, or rows of 30 MiB in another order, packed into a file of some KiB: the process grows less.

    That is by less than the limit; about 9 MiB of it are taken once, by threads and compiled code.
    """
    for name, rows in (("small", 10), ("large", size)):
        (tmp_path / name).write_bytes(gzip.compress(b"1 1:1 50:1 150:1 151:1 152:1\n" * rows, 1))
    done = python("-c", PROGRAM, "small", "large", str(mib / 1024), *more, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert float(done.stdout.splitlines()[-1]) < mib


def test_a_return_ends_a_line_too(tmp_path, small_blocks):
    """A carriage return ends a header, and a row before a block that numpy reads because of its quotes."""
    rows = [(i, 2 * i, 3 * i) for i in range(60)]
    lines = [f"{a},{b},{c}" for a, b, c in rows]
    lines[50] = '"50",100,150'
    path = tmp_path / "returns.csv"
    path.write_text("a,b,c\r" + "\r".join(lines[:10]) + "\n" + "\n".join(lines[10:]) + "\n", newline="")
    found = load(path, Communicator(), "float64")["train"]
    np.testing.assert_array_equal(np.c_[found.X, found.y], rows)
