"""How fast files are read and written, by 1, 2 and 4 ranks, beside numpy, scikit-learn, h5py and decompression alone.

python -m benchmarks.io_rates [--rows N] [--features D] [--ranks R ...] [--rounds N] [--files NAME ...]

Rows are GENERATED, and files are in the page cache, so the disk has no influence. Our reader is cacore.io.load, which
checks values and leaves every rank with its block of rows; seconds are those of the slowest rank in a second call. Each
rank reads its own block of HDF5 and its share of the bytes of text; rank 0 reads npz and decompresses. Only HDF5 is
written, since this package writes rows in no other format.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import json
import lzma
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from benchmarks.generated import MARK, rows
from benchmarks.race import Result, headline, keep
from benchmarks.results import about, table
from cacore.comm import world
from cacore.io import load, native
from cacore.io.table import Table

COLUMNS = {"file": "", "rival": "", "seconds": ".3f", "MB/s": ".0f", "ratio": ".2f"}
FILES = ("rows.h5", "rows.npz", "rows.csv", "rows.csv.gz", "rows.csv.xz", "rows.libsvm", "rows.libsvm.bz2")
COMPRESSED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
Rival = Callable[[], float]  # does the work and returns seconds


def files(folder: Path, X: NDArray[np.float64], y: NDArray[np.float64], names: list[str]) -> list[Path]:
    """Write the same rows in every format; return the paths of `names`."""
    with h5py.File(folder / "rows.h5", "w") as file:
        file["X"], file["y"] = X, y
    np.savetxt(folder / "rows.csv", np.column_stack([X, y]), "%.6g", ",")
    dump_svmlight_file(X, y, str(folder / "rows.libsvm"), zero_based=False)
    np.savez(folder / "rows.npz", X=X, y=y)
    for plain, ending in (("rows.csv", ".gz"), ("rows.csv", ".xz"), ("rows.libsvm", ".bz2")):
        if plain + ending not in names:
            continue
        with (folder / plain).open("rb") as source, COMPRESSED[ending](folder / (plain + ending), "wb") as target:
            shutil.copyfileobj(source, target)
    return [folder / name for name in names]


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def on_ranks(path: Path, ranks: int) -> float:
    """Seconds of our reader on this number of ranks."""
    command = ["mpiexec", "-n", str(ranks), sys.executable, "-m", "benchmarks.io_rates", "--rank", str(path)]
    return float(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))


def rank(path: Path) -> None:
    """Work of one of these ranks; rank 0 prints."""
    comm = world()
    load(path, comm)  # compiles, and brings the file into the page cache
    comm.barrier()
    mine = timed(lambda: load(path, comm))
    seconds = comm.allreduce(np.array([mine]), "max")
    if comm.rank == 0:
        print(json.dumps(float(seconds[0])))


def h5py_read(path: Path) -> None:
    """Read a whole file with h5py."""
    with h5py.File(path) as file:
        for name in ("X", "y"):
            file[name][:]


def npz_read(path: Path) -> None:
    """Read a whole file with numpy."""
    with np.load(path) as file:
        for name in ("X", "y"):
            file[name]


def decompress(path: Path) -> None:
    """Decompress a file, and discard the result."""
    with COMPRESSED[path.suffix](path) as stream:
        while stream.read(1 << 20):
            pass


def readers(path: Path, ranks: list[int]) -> dict[str, Rival]:
    """The readers of this file; the last one is the peer."""
    rivals: dict[str, Rival] = {f"ours, {R} rank{'s' * (R > 1)}": partial(on_ranks, path, R) for R in ranks}
    if path.suffix in COMPRESSED:
        rivals["decompression alone"] = partial(timed, partial(decompress, path))
    others: dict[str, tuple[str, Callable[[Path], object]]] = {
        ".h5": ("h5py", h5py_read),
        ".npz": ("numpy.load", npz_read),
        ".csv": ("numpy.loadtxt", partial(np.loadtxt, delimiter=",")),
        ".libsvm": ("scikit-learn", lambda path: load_svmlight_file(str(path))),
    }
    name, read = next(others[ending] for ending in path.suffixes if ending in others)
    rivals[name] = partial(timed, partial(read, path))
    return rivals


def writers(folder: Path, X: NDArray[np.float64], y: NDArray[np.float64]) -> dict[str, Rival]:
    """The writers of HDF5; the last one is the peer."""

    def plain() -> None:
        with h5py.File(folder / "peer.h5", "w") as file:
            file["X"], file["y"] = X, y

    whole = {"train": Table(X, y, "generated")}
    return {
        "ours": lambda: timed(lambda: native.write(folder / "ours.h5", whole, X.dtype)),
        "h5py": lambda: timed(plain),
    }


def race(title: str, size: int, rivals: dict[str, Rival], rounds: int) -> list[dict[str, Any]]:
    """Run the rivals in turn, and return one record each; rates refer to the size of the numbers in memory."""
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, work in rivals.items():
            seconds[name].append(work())
    peer = list(rivals)[-1]
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    rates = {name: size / 1e6 / each for name, each in medians.items()}
    keep(f"{title}, {MARK}", {name: Result(each, []) for name, each in seconds.items()}, peer, megabytes_a_second=rates)
    return [
        {"file": title, "rival": name, "seconds": each, "MB/s": rates[name], "ratio": each / medians[peer]}
        for name, each in medians.items()
    ]


def main() -> None:
    """Print one line per file and rival."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", nargs="+", choices=FILES, default=FILES, metavar="NAME", help=", ".join(FILES))
    parser.add_argument("--rank", type=Path, metavar="FILE", help="used internally under mpiexec: read this file")
    args = parser.parse_args()
    if args.rank is not None:
        rank(args.rank)
        return
    headline()
    X, y = rows(args.rows, args.features, 0)
    size = X.nbytes + y.nbytes
    about(data=MARK, rows=args.rows, features=args.features)
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in files(folder, X, y, args.files):
            title = f"reading {path.name}, {path.stat().st_size / 1e6:.0f} MB"
            found += race(title, size, readers(path, args.ranks), args.rounds)
        found += race("writing HDF5", size, writers(folder, X, y), args.rounds)
    print(f"{MARK}: {args.rows:,} rows x {args.features}, {size / 1e6:.0f} MB in memory, to which rates refer;")
    print("ratio: seconds over those of the last rival of each file")
    print(table(found, COLUMNS))
    print(f"memory copies: {copies():.1f} GB/s")


def copies() -> float:
    """GB/s read and written by memory copies."""
    a, b = np.ones(1 << 24), np.empty(1 << 24)
    return 2 * a.nbytes / min(timed(lambda: np.copyto(b, a)) for _ in range(3)) / 1e9


if __name__ == "__main__":
    main()
