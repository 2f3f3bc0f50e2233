"""Two checkouts timed in turn: fits, start-up, and memory; see :mod:`benchmarks.unchanged`."""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.race import headline, machine_rate
from benchmarks.svm_data import SETS
from benchmarks.unchanged_fits import WORKS

SCRIPT = Path(__file__).with_name("unchanged_fits.py")
HELPS = ("cakrr.bkrr2", "casvm.cpsvm")
# Runs a module as `python -m` does, and says what it has loaded at the end, and its own peak of memory in KiB.
_COUNT = """
import runpy, sys
module, sys.argv = sys.argv[1], sys.argv[1:]
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
finally:
    peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(len(sys.modules), peak, file=sys.stderr)
"""
# The same; each of several ranks says when it begins to partition its rows, in seconds since the epoch.
_BEGIN = """
import runpy, sys, time
from cacore.comm import Communicator
module, sys.argv, enter, begun = sys.argv[1], sys.argv[1:], Communicator.phase, []

def phase(self, name):
    if name == "partition" and self.size > 1:
        begun.append(time.time())
    return enter(self, name)

Communicator.phase = phase
runpy.run_module(module, run_name="__main__", alter_sys=True)
sys.stdout.write(f"{begun[0]}\\n")  # one write: ranks share the stream
"""


def environment(checkout: Path) -> dict[str, str]:
    """Environment of a process that imports this checkout's packages and uses one thread."""
    one = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    return {**os.environ, **one, "PYTHONPATH": str(checkout), "COLUMNS": "100", "PYTHONWARNINGS": "default"}


def free(checkout: Path) -> dict[str, str]:
    """The same environment without a limit on threads, for timing."""
    return {key: value for key, value in environment(checkout).items() if not key.endswith("_NUM_THREADS")}


def launch(ranks: int, *words: str) -> list[str]:
    """Command line of Python, under the mpiexec beside it for several ranks."""
    python = [sys.executable, *words]
    return python if ranks == 1 else [str(Path(sys.executable).with_name("mpiexec")), "-n", str(ranks), *python]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``race`` to its parser."""
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", metavar="PATTERN", nargs="+", default=["*"], help="such as 'SMOSVC*' or 'start-*'")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("CAKERNELS_DATA", "../shared/data")))


def copy_rate() -> float:
    """Current GB/s of a memory copy: bytes read and written."""
    source, target = np.ones(1 << 24), np.empty(1 << 24)
    target[:] = source
    begun = time.perf_counter()
    for _ in range(3):
        target[:] = source
    return 3 * 2 * source.nbytes / (time.perf_counter() - begun) / 1e9


@dataclass(frozen=True)
class Ran:
    """Result of a process: its output, and the time that it and its children used."""

    out: str
    err: str
    wall: float
    processor: float


def run(checkout: Path, words: list[str]) -> Ran:
    """Run a command in a checkout; raise a RuntimeError if it fails."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        begun = time.perf_counter()
        process = subprocess.Popen(words, cwd=checkout, env=free(checkout), stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - begun
        for file in (out, err):
            file.seek(0)
        told = out.read(), err.read()
    if process.returncode != 0:
        raise RuntimeError(f"{checkout}: {' '.join(words)}: {told[1].strip()[-2000:]}")
    return Ran(*told, wall, usage.ru_utime + usage.ru_stime)


class Fits:
    """One process per checkout that fits on request, so that the fits to compare follow each other closely."""

    def __init__(self, work: str, data: Path, checkouts: list[Path]) -> None:
        words = [sys.executable, "-P", str(SCRIPT), "time", work, str(data)]
        self.processes = {
            checkout: subprocess.Popen(
                words, cwd=checkout, env=free(checkout), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            for checkout in checkouts
        }

    def __enter__(self) -> Fits:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.communicate()

    def __call__(self, checkout: Path) -> dict[str, float]:
        """Fit once; return seconds and processor seconds."""
        process = self.processes[checkout]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        told = process.stdout.readline()
        if not told:
            raise RuntimeError(f"{checkout}: a fit failed")
        seconds, processor = map(float, told.split())
        return {"seconds": seconds, "processor s": processor}


def helped(checkout: Path, module: str) -> dict[str, float]:
    """Processor seconds, number of modules and memory of a command's --help."""
    done = run(checkout, [sys.executable, "-m", module, "--help"])
    counted = run(checkout, [sys.executable, "-c", _COUNT, module, "--help"])
    modules, peak = map(float, counted.err.split()[-2:])
    return {"processor s": done.processor, "modules": modules, "peak MiB": peak / 1024}


def four_ranks(checkout: Path, data: Path) -> dict[str, float]:
    """Run a command on 4 ranks: seconds until the last one begins its work, seconds besides the work, memory."""
    report = data / "report.json"
    options = ["--partitions", "16", "--sigma", "1", "--lambda", "1e-4", "--quiet", "--report", str(report)]
    launched = time.time()
    done = run(checkout, launch(4, "-c", _BEGIN, "cakrr.bkrr2", str(data / "cadata.h5"), *options))
    told = json.loads(report.read_text())
    peaks, seconds = told["memory"]["peak_rss_mib"], told["seconds"]
    return {
        "until work s": max(map(float, done.out.split())) - launched,
        "but work s": done.wall - sum(seconds[phase] for phase in ("partition", "train", "predict")),
        "processor s": done.processor,
        "peak MiB": max(peaks),
        "least MiB": min(peaks),
    }


def prepare(source: Path, folder: Path, checkout: Path) -> None:
    """Write the rows for all fits, scaled as in the papers."""
    for name in ("ijcnn1", "a9a"):
        problem = SETS[name](source)
        np.savez(folder / f"{name}.npz", X=problem.X, y=problem.y)
    words = ["-m", "cacore.io", "convert", str(source / "cal_housing.csv.bz2"), str(folder / "cadata.h5")]
    run(checkout, [sys.executable, *words, "--split", "18432"])
    import h5py

    with h5py.File(folder / "cadata.h5") as file:
        np.savez(folder / "cadata.npz", X=file["train/X"][()], y=file["train/y"][()])


def race(args: argparse.Namespace) -> int:
    """Alternate old and new, round by round; print medians and the ratios new / old."""
    checkouts = {"old": args.old.resolve(), "new": args.new.resolve()}
    headline()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(args.data.resolve(), folder, checkouts["old"])
        works: dict[str, Any] = {f"start-{one}": lambda where, one=one: helped(where, one) for one in HELPS}
        works["start-4-ranks"] = lambda where: four_ranks(where, folder)
        for work, measure in works.items():
            if wanted(work, args.only):
                show(work, alternate(measure, checkouts, args.rounds))
        for work in WORKS:
            if wanted(work, args.only):
                with Fits(work, folder, list(checkouts.values())) as fits:
                    show(work, alternate(fits, checkouts, args.rounds))
    return 0


def wanted(work: str, patterns: list[str]) -> bool:
    """True if a name matches a pattern."""
    return any(fnmatch.fnmatch(work, pattern) for pattern in patterns)


def alternate(measure: Any, checkouts: dict[str, Path], rounds: int) -> dict[str, list[dict[str, float]]]:
    """Measurements of each round, old and new in turn, with the speed of the machine."""
    for checkout in checkouts.values():
        measure(checkout)  # compiles, and brings files into the page cache
    found: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for turn in range(rounds):
        order = list(checkouts.items())
        for name, checkout in order if turn % 2 else reversed(order):
            before = machine_rate(), copy_rate()
            values = measure(checkout)
            after = machine_rate(), copy_rate()
            values |= {"GFLOP/s": min(before[0], after[0]), "GB/s": min(before[1], after[1])}
            found[name].append(values)
    return found


def show(work: str, found: dict[str, list[dict[str, float]]]) -> None:
    """Print one line per quantity: rounds, medians, and the ratio new / old."""
    print(f"\n{work}")
    for quantity in found["old"][0]:
        rounds = {name: [one[quantity] for one in values] for name, values in found.items()}
        old, new = (statistics.median(rounds[name]) for name in ("old", "new"))
        each = "; ".join(f"{name} " + " ".join(f"{value:.4g}" for value in rounds[name]) for name in rounds)
        print(f"  {quantity:<12} old {old:9.4g}  new {new:9.4g}  new / old {new / old:6.3f}   ({each})", flush=True)
