"""Large files: seconds and peak memory of cacore.io convert beside decompression alone, and HDF5 beside a plain read.

python -m benchmarks.io_large FOLDER [--gb SIZE] [--parts NAME ...] [--ranks R ...] [--rounds N]

FOLDER keeps the files. Missing ones are GENERATED, except ijcnn1, which is read from CAKERNELS_DATA. convert is timed
as a command, including its start-up; memory is the peak resident size of the process. Decompression alone is
``gzip -dc`` or ``bzip2 -dc`` to /dev/null, including start-up. Files are in the page cache as far as they fit. HDF5 is
read by cacore.io.load on each number of ranks, and by cat.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from benchmarks.generated import MARK
from benchmarks.io_rates import copies, on_ranks
from benchmarks.race import headline
from benchmarks.results import about, record, table
from cacore.io import native

COLUMNS = {"file": "", "MB": ".0f", "rival": "", "seconds": ".2f", "MB/s": ".0f", "peak MiB": ".0f", "ratio": ".2f"}
PARTS = ("libsvm", "split", "gzip", "bz2", "csv", "parquet", "ijcnn1", "hdf5", "chunks")
ROWS, FEATURES = 515_345, 91  # of the Million Song set
BLOCK = 50_000_000  # bytes of LIBSVM text, written repeatedly
WAITING = """
import os, subprocess, sys, time
begun = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(time.perf_counter() - begun, used.ru_maxrss / 1024, status)
"""
REAL = ("ijcnn1.t.bz2",)
TOOLS = {".gz": "gzip", ".bz2": "bzip2"}


def libsvm(path: Path, size: float) -> None:
    """Write `size` bytes of rows with 40 of 5,000 features, and numbers of 3 to 17 digits."""
    rng, lines, length = np.random.default_rng(0), [], 0
    while length < min(BLOCK, size):
        at = np.sort(rng.choice(5000, 40, replace=False)) + 1
        digits = 17 if len(lines) % 10 == 0 else 6
        values = " ".join(f"{j}:{v:.{digits}g}" for j, v in zip(at, rng.normal(size=40), strict=True))
        lines.append(f"{rng.integers(2)} {values}\n")
        length += len(lines[-1])
    block = "".join(lines).encode()
    with path.open("wb") as file:
        while file.tell() < size:
            file.write(block)


def packed(path: Path, plain: Path, size: int) -> None:
    """Compress the first bytes of a file, up to the end of a line."""
    opener: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
    with plain.open("rb") as source, opener[path.suffix](path, "wb", compresslevel=6) as target:
        while source.tell() < size and (block := source.read(1 << 20)):
            target.write(block)
        target.write(source.readline())


def csv(path: Path) -> None:
    """Write numbers of 6 digits in the shape of the Million Song Dataset."""
    rows = np.random.default_rng(0).normal(size=(5005, FEATURES)) * 100
    block = "".join(",".join(f"{v:.6g}" for v in row) + "\n" for row in rows.tolist())
    with path.open("w") as file:
        for _ in range(ROWS // len(rows)):
            file.write(block)
        file.write("".join(block.splitlines(keepends=True)[: ROWS % len(rows)]))


def numbers(n: int = ROWS) -> np.ndarray:
    """Random doubles with n rows."""
    return np.random.default_rng(1).normal(size=(n, FEATURES))


def parquet(path: Path) -> None:
    """Write doubles with pyarrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({f"x{j}": column for j, column in enumerate(numbers().T)}), path)


def command(*words: object) -> tuple[float, float]:
    """Seconds and peak MiB of a process; a small parent process starts it and measures."""
    line = [sys.executable, "-S", "-c", WAITING, *map(str, words)]
    said = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=False).stdout.split()
    if said[2] != "0":
        raise SystemExit(f"{' '.join(map(str, words))}: status {said[2]}")
    return float(said[0]), float(said[1])


class Figures:
    """Records of all rivals; those of each file are compared with the last one."""

    def __init__(self, rounds: int) -> None:
        self._rounds, self.records = rounds, list[dict[str, Any]]()

    def add(
        self, path: Path, size: float, rivals: dict[str, Callable[[], tuple[float, float]]], note: str = ""
    ) -> None:
        """Run the rivals in turn; MB/s refer to `size`, the bytes after decompression."""
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in rivals}
        for _ in range(self._rounds):
            for name, work in rivals.items():
                found[name].append(work())
        medians = {name: statistics.median(seconds for seconds, _ in each) for name, each in found.items()}
        peer = list(medians.values())[-1]
        for name, seconds in medians.items():
            peak = max(peak for _, peak in found[name])
            row = {
                "file": f"{path.name}{note}{f', {MARK}' * (path.name not in REAL)}",
                "MB": size / 1e6,
                "rival": name,
                "seconds": seconds,
            }
            row |= {"MB/s": size / 1e6 / seconds, "peak MiB": peak or None, "ratio": seconds / peer}
            record(**row)
            self.records.append(row)
            print(table([row], COLUMNS).splitlines()[-1], flush=True)


def converting(path: Path, *more: object) -> Callable[[], tuple[float, float]]:
    """A function that runs convert on a file, and removes the output."""
    out = path.with_name("out.h5")

    def work() -> tuple[float, float]:
        found = command(sys.executable, "-m", "cacore.io", "convert", path, out, "--quiet", *more)
        out.unlink()
        return found

    return work


def length(path: Path) -> int:
    """Bytes of a file after decompression."""
    if path.suffix not in TOOLS:
        return path.stat().st_size
    with subprocess.Popen([TOOLS[path.suffix], "-dc", path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        return sum(map(len, iter(partial(process.stdout.read, 1 << 20), b"")))


def plain(figures: Figures, path: Path, *more: object) -> None:
    """Compare convert with a plain read of the file."""
    more = more or ("--memory-limit", 1)
    rivals = {" ".join(map(str, ["convert", *more])): converting(path, *more), "cat": lambda: command("cat", path)}
    figures.add(path, path.stat().st_size, rivals)


def compressed(figures: Figures, path: Path, folder: Path | None = None) -> None:
    """Compare convert with decompression alone; the output goes beside the file, or to `folder`."""
    if folder is not None:
        path = Path(shutil.copy(path, folder / path.name))
    alone = {f"{TOOLS[path.suffix]} -dc": lambda: command(TOOLS[path.suffix], "-dc", path)}
    figures.add(path, length(path), {"convert": converting(path, "--memory-limit", 1), **alone})


def contiguous(figures: Figures, path: Path, ranks: list[int]) -> None:
    """Read contiguous rows, as other programs may write them."""
    with h5py.File(path, "w") as file:
        file["X"] = numbers()
    hdf5(figures, path, ranks)


def hdf5(figures: Figures, path: Path, ranks: list[int], note: str = "") -> None:
    """Read a file on each number of ranks, and with cat."""
    rivals: dict[str, Callable[[], tuple[float, float]]] = {
        f"load, {R} rank{'s' * (R > 1)}": lambda R=R: (on_ranks(path, R), 0.0) for R in ranks
    }
    rivals["cat"] = lambda: (command("cat", path)[0], 0.0)
    figures.add(path, path.stat().st_size, rivals, note)


def chunked(figures: Figures, folder: Path, ranks: list[int]) -> None:
    """Read the same rows in chunks of several sizes, aligned or not, and contiguous."""
    rows, path = numbers(), folder / "chunks.h5"
    for chunk in (None, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24):
        for aligned in (False, True) if chunk else (False,):
            options = {"alignment_threshold": 1 << 16, "alignment_interval": 1 << 20} if aligned else {}
            sizes = {"chunks": (max(1, chunk // (8 * FEATURES)), FEATURES)} if chunk else {}
            with native.created(path, libver=native.FORMAT, **options) as file:
                file.create_dataset("X", data=rows, **sizes)
            said = f", chunks of {chunk >> 10} KiB{', aligned' * aligned}" if chunk else ", one piece"
            hdf5(figures, path, ranks, said)
    path.unlink()


def files(folder: Path, size: int, parts: list[str]) -> dict[str, Path]:
    """The files of these parts; missing ones are generated."""
    plain = folder / "rows.svm"
    makers: dict[str, tuple[Path, Callable[[Path], None]]] = {
        "libsvm": (plain, lambda path: libsvm(path, size)),
        "gzip": (folder / "rows.svm.gz", lambda path: packed(path, plain, size // 5)),
        "bz2": (folder / "rows.svm.bz2", lambda path: packed(path, plain, size // 25)),
        "csv": (folder / "song.csv", csv), "parquet": (folder / "song.parquet", parquet),
    }  # fmt: skip
    needed = [*({"libsvm"} if {"split", "gzip", "bz2"} & set(parts) else ()), *parts]
    for part, (path, make) in makers.items():
        if part in needed and not path.exists():
            make(path)
    return {part: path for part, (path, _) in makers.items()}


def main() -> None:
    """Print one line per file and rival."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--gb",
        type=float,
        default=5,
        help="size of the LIBSVM text in GB; a fifth of it is used as gzip, a 25th as bz2",
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="NAME", help=", ".join(PARTS))
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    folder, figures = args.folder, Figures(args.rounds)
    headline()
    about(data=MARK, gigabytes=args.gb)
    path = files(folder, int(args.gb * 1e9), args.parts)
    command(sys.executable, "-c", "import cacore.io.convert")  # brings the imported files into the page cache
    works: dict[str, Callable[[], None]] = {
        "libsvm": lambda: plain(figures, path["libsvm"]),
        "split": lambda: plain(figures, path["libsvm"], "--memory-limit", 0.125, "--split", 1000),
        "gzip": lambda: compressed(figures, path["gzip"]),
        "bz2": lambda: compressed(figures, path["bz2"]),
        "csv": lambda: plain(figures, path["csv"]),
        "parquet": lambda: plain(figures, path["parquet"]),
        "ijcnn1": lambda: compressed(figures, Path(os.environ["CAKERNELS_DATA"]) / REAL[0], folder),
        "hdf5": lambda: contiguous(figures, folder / "song.h5", args.ranks),
        "chunks": lambda: chunked(figures, folder, args.ranks),
    }
    for part in args.parts:
        works[part]()
    print(table(figures.records, COLUMNS))
    print(f"memory copies: {copies():.1f} GB/s")


if __name__ == "__main__":
    main()
