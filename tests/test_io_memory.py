"""Reading stays within the limit of memory: what needs more is refused with figures, before it is there."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma

import h5py
import numpy as np
import pytest
from helpers.checks import refusal
from helpers.data import write_hdf5

from cacore.comm import Communicator
from cacore.errors import MemoryLimitError
from cacore.io import load

MIB = 1 << 20
LIMIT = 24 * MIB
COMMAND = ["--memory-limit", LIMIT / (1 << 30)]


def npz(n):
    stream = io.BytesIO()
    np.savez_compressed(stream, x=np.zeros((n, 4)), y=np.zeros(n))
    return stream.getvalue()


def csr(path, n, d=100, entries=1, **more):
    with h5py.File(path, "w") as file:
        group = file.create_group("X")
        group.attrs["shape"] = n, d
        group["data"], group["indices"] = np.ones(n * entries), np.tile(np.arange(entries), n)
        group.create_dataset("indptr", data=np.arange(n + 1) * entries, **more)


def promise(path, **more):
    """Rows that were never written: they take no space in the file."""
    with h5py.File(path, "w") as file:
        file.create_dataset("X", (1 << 30, 1024), "f8", **more)


# What holds more than fits, in files of a few KiB to MiB.
BOMBS = {
    "lines.csv.gz": lambda path: path.write_bytes(gzip.compress(b"1,2,3,4,5,6,7,8\n" * (1 << 19), 1)),
    "words.csv.gz": lambda path: path.write_bytes(gzip.compress(b"".join(b"1,%d\n" % i for i in range(200000)), 1)),
    "line.csv.xz": lambda path: path.write_bytes(lzma.compress(b"1" * (32 * MIB), preset=0)),
    "quoted.csv.xz": lambda path: path.write_bytes(
        lzma.compress(b'1,2\n1,"' + (b"1" * 999 + b"\n") * (1 << 15), preset=0)
    ),
    "lines.bz2": lambda path: path.write_bytes(
        bz2.compress(b"".join(b"1 1:2 7:3 9:%d\n" % i for i in range(250000)), 1)
    ),
    "line.gz": lambda path: path.write_bytes(gzip.compress(b"1 " + b"1:1 " * MIB, 1)),
    "wide": lambda path: path.write_text("1 1:1\n-1 2147483647:1\n"),
    "rows.npz": lambda path: path.write_bytes(npz(1 << 20)),
    "rows.npz.gz": lambda path: path.write_bytes(gzip.compress(npz(1 << 20), 1)),
    "promise.h5": promise,
    "chunks.h5": lambda path: promise(path, chunks=(64, 64)),
    "a chunk.h5": lambda path: promise(path, chunks=(1 << 18, 1 << 8)),
    "csr.h5": lambda path: csr(path, 20000, entries=40),
    "a csr chunk.h5": lambda path: csr(path, 20, chunks=(1 << 23,), maxshape=(None,), compression="gzip"),
    "wide csr.h5": lambda path: csr(path, 4, 1 << 40),
    "dense.h5": lambda path: write_hdf5(path, **{"": (np.zeros((1 << 19, 8)), None)}),
}
FIT = {
    "rows.csv": lambda path: path.write_text("1.5,2.5,3.5,4\n" * 200000),
    "rows": lambda path: path.write_text("1 1:2 7:3 9:4\n" * 50000),
    "fits.npz": lambda path: path.write_bytes(npz(250000)),
    "fits csr.h5": lambda path: csr(path, 150000, entries=2),
    "fits.h5": lambda path: write_hdf5(path, **{"": (np.ones((150000, 8)), np.ones(150000))}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    for name, write in (BOMBS | FIT).items():
        write(folder / name)
    return folder


@pytest.mark.parametrize("name", BOMBS)
def test_refused(name, folder, tmp_path, refuses):
    more = ["--binarize", "7"] if name.startswith("words") else []
    if not more:
        message = refusal(
            load, folder / name, Communicator(), "float64", None, None, None, LIMIT, error=MemoryLimitError
        )
        assert message.startswith(f"{folder / name}: ")
        assert "GiB, and a rank may use 0.0234 GiB: " in message
    if more or name.endswith((".npz", ".h5")):
        words = ["convert", folder / name, "out.h5", *more] if more else ["info", folder / name]
        refuses("cacore.io", [*words, *COMMAND], "a rank may use 0.0234 GiB", tmp_path)


def test_test_rows_as_wide_as_the_other_file(tmp_path, refuses):
    (tmp_path / "a").write_text("1 1:1 2:3\n-1 1:5 2:3\n")
    (tmp_path / "b").write_text("1 1:1\n-1 1:2 2000000:4\n")
    words = ["convert", "a", "out.h5", "--test", "b", *COMMAND]
    message = "a: a row of 2,000,000 features, as many as the other file has, needs 0.0298 GiB"
    refuses("cacore.io", words, message, tmp_path)


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf", "much"])
def test_limit_that_is_none(limit, folder, tmp_path, refuses):
    refuses("cacore.io", ["info", folder / "rows", "--memory-limit", limit], "--memory-limit", tmp_path)


PROGRAM = """
import pathlib, sys
from cacore.comm import Communicator
from cacore.errors import MemoryLimitError
from cacore.io import load
from cacore.machine.memory import peak_rss_mib

small, folder, limit = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
for path in sorted(small.iterdir()):
    load(path, Communicator())  # what is loaded and compiled once
before = peak_rss_mib()
for path in sorted(folder.iterdir()):
    try:
        load(path, Communicator(), limit=limit)
        how = "fits"
    except MemoryLimitError:
        how = "refused"
    print(peak_rss_mib() - before, how, path.name)
"""


def test_resident_memory(folder, tmp_path, python):
    for name, content in (
        ("a.csv", b"1,2\n"),
        ("b", b"1 1:1\n"),
        ("c.npz", npz(2)),
        ("d.csv.gz", gzip.compress(b"1,2\n")),
    ):
        (tmp_path / name).write_bytes(content)
    for name, data in (("e.csv.xz", lzma.compress), ("f.csv.bz2", bz2.compress)):
        (tmp_path / name).write_bytes(data(b"1,2\n"))
    csr(tmp_path / "g.h5", 2)
    write_hdf5(tmp_path / "h.h5", train=(np.ones((2, 2)), np.ones(2)))
    # The limit counts arrays. glibc keeps freed ones for later, up to 9 MiB here, unless it maps each of them.
    done = python("-c", PROGRAM, tmp_path, folder, LIMIT, MALLOC_MMAP_THRESHOLD_="65536")
    assert (done.returncode, done.stderr) == (0, "")
    told = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert {name for _, how, name in told if how == "fits"} == {*FIT, "words.csv.gz"}
    assert max(float(peak) for peak, *_ in told) <= LIMIT / MIB, done.stdout
