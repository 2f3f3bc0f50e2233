"""Whole scikit-learn programs, as they are and patched by cakernels, in turn in fresh processes.

python -m benchmarks.dropin DATA_FOLDER [--only NAME ...] [--rows N] [--rounds N]

The programs import nothing of this package; ``python -m cakernels.patch`` runs them patched. Times are of the whole
process: wall-clock, and processor seconds of all threads. The first patched run compiles into an empty cache and is
stated apart. Decisions on rows that were not trained on are compared relative to the largest of them; status 1 if they
differ by more than 1e-3, at scikit-learn's default tolerance of 1e-3.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_iris

from benchmarks import krr_data, svm_data
from benchmarks.generated import label
from benchmarks.race import headline
from benchmarks.results import record

TEST = 2000  # rows that are predicted
ALLOWED = 1e-3  # difference of decisions, relative to the largest of them

Vector = NDArray[np.float64]
Arrays = tuple[Vector, Vector, Vector]  # training rows, targets, rows to predict

_PROGRAM = """import sys

import numpy as np
{imports}

given = np.load(sys.argv[1])
model = {model}.fit(given["X"], given["y"])
np.save(sys.argv[2], model.{method}(given["T"]))
"""
_SEARCH = (
    "from sklearn.model_selection import GridSearchCV\nfrom sklearn.svm import SVC",
    'GridSearchCV(SVC(), {"C": [1, 32], "gamma": [0.5, 2.0]}, cv=3)',
    "decision_function",
)
_RIDGE = "from sklearn.kernel_ridge import KernelRidge", 'KernelRidge(kernel="rbf", alpha=0.01, gamma=0.1)', "predict"
_ONE_CLASS = "from sklearn.svm import OneClassSVM", "OneClassSVM(nu=0.1, gamma=0.0078125)", "decision_function"
_SVR = "from sklearn.svm import SVR", "SVR()", "predict"
_SVC = "from sklearn.svm import SVC", "SVC()", "decision_function"


def _classes(folder: Path, name: str) -> Arrays:
    problem = svm_data.SETS[name](folder)
    return problem.X, problem.y, problem.Xt


def _values(folder: Path, name: str) -> Arrays:
    X, y = krr_data.load(folder, name)
    X, y = (X - X.mean(axis=0)) / X.std(axis=0), (y - y.mean()) / y.std()
    order = np.random.default_rng(0).permutation(len(y))
    test = min(TEST, len(y) // 5)
    return X[order[test:]], y[order[test:]], X[order[:test]]


def _iris(folder: Path, name: str) -> Arrays:
    X, y = load_iris(return_X_y=True)
    return X, y, X


# Name: data set, its rows, and imports, model and method of the program.
CASES: dict[str, tuple[str, Callable[[Path, str], Arrays], tuple[str, str, str]]] = {
    "search": ("ijcnn1", _classes, _SEARCH),
    "svr": ("cadata", _values, _SVR),
    "one-class": ("usps", _classes, _ONE_CLASS),
    "ridge": ("CASP", _values, _RIDGE),
    "iris": ("iris", _iris, _SVC),
}


class Run(NamedTuple):
    """A finished process: wall-clock and processor seconds, and the decisions."""

    wall: float
    processor: float
    decisions: Vector


def run(program: Path, patched: bool, data: Path, cache: Path) -> Run:
    """Run the program in a fresh process, whose compiled code is kept in `cache`."""
    out = data.with_name("decisions.npy")
    before = ["-m", "cakernels.patch"] if patched else []
    begun, used = time.perf_counter(), os.times()
    subprocess.run(
        [sys.executable, *before, str(program), str(data), str(out)],
        check=True,
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache)},
    )
    wall, now = time.perf_counter() - begun, os.times()
    spent = now.children_user - used.children_user + now.children_system - used.children_system
    return Run(wall, spent, np.load(out))


def compare(folder: Path, name: str, rows: int, rounds: int, scratch: Path) -> bool:
    """Run a case in turn and print its row of the table; True if the decisions agree."""
    data, load, (imports, model, method) = CASES[name]
    X, y, T = load(folder, data)
    some = np.random.default_rng(0).permutation(len(y))[:rows]
    np.savez(scratch / "data.npz", X=X[some], y=y[some], T=T[:TEST])
    program = scratch / "program.py"
    program.write_text(_PROGRAM.format(imports=imports, model=model, method=method))
    cache = scratch / "cache" / name
    first = run(program, True, scratch / "data.npz", cache)
    runs: dict[bool, list[Run]] = {False: [], True: []}
    for _ in range(rounds):
        for patched, some_runs in runs.items():
            some_runs.append(run(program, patched, scratch / "data.npz", cache))
    wall = {who: statistics.median(one.wall for one in some_runs) for who, some_runs in runs.items()}
    spent = {who: statistics.median(one.processor for one in some_runs) for who, some_runs in runs.items()}
    theirs, ours = runs[False][-1].decisions, runs[True][-1].decisions
    apart = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    race = f"{label(folder, data)}: {name}"
    for patched, rival in ((False, "scikit-learn"), (True, "patched")):
        record(race=race, rival=rival, peer="scikit-learn", seconds=wall[patched], processor=spent[patched])
    record(race=race, rival="patched", difference=apart, first=first.processor)
    print(
        f"{race:<22} {len(some):>7,} {wall[False]:8.1f} {wall[True]:8.1f} {spent[False]:8.1f} {spent[True]:8.1f} "
        f"{spent[False] / spent[True]:7.2f} {first.processor:8.1f} {apart:9.1e}",
        flush=True,
    )
    return apart <= ALLOWED


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rows", metavar="N", type=int, default=10_000)
    parser.add_argument("--rounds", metavar="N", type=int, default=3)
    args = parser.parse_args()
    headline()
    print("seconds: wall-clock and processor, without and with the patch, ratio of the latter; first use; difference")
    with tempfile.TemporaryDirectory() as scratch:
        agree = [compare(args.data, name, args.rows, args.rounds, Path(scratch)) for name in args.only]
    if not all(agree):
        sys.exit(1)


if __name__ == "__main__":
    main()
