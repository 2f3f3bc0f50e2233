"""Choosing C and gamma in one call: search, final training and test, beside GridSearchCV and liquidSVM.

python -m benchmarks.svm_search DATA_FOLDER [--only NAME ...] [--settings G] [--liquidsvm FOLDER]
    [--grid-search ROWS] [--path ROWS] [--limit S]

Seconds are wall-clock time and, in brackets, processor time of all cores, which depends less on other load. liquidSVM
uses its own 10 x 10 grid and 5 folds, with cells of at most 2,000 rows; it takes part if it is installed, or built in
FOLDER (its wheel does not import on Python 3.11). --grid-search compares the choice on ROWS rows of covtype with that
of GridSearchCV over SVC on two cores, with the same grid and folds. --path runs 50 values of C and 10 folds on rows
with 1,000 features, beside TorchKM if it is installed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.generated import label
from benchmarks.race import headline, machine_rate
from benchmarks.results import record
from benchmarks.svm_data import SETS, Problem
from cacore.data.holdout import stratified
from cacore.tuning import spaced
from casvm import CASVC, SMOSVC

ROWS = 2000  # approximate number of rows per part
CHOSEN = ("ijcnn1", "covtype50k")


def cpu() -> float:
    """Processor seconds of this process and of the children it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Result of `work`, wall-clock seconds, and processor seconds."""
    begun, used = time.perf_counter(), cpu()
    made = work()
    return made, time.perf_counter() - begun, cpu() - used


def within(limit: float, work: Callable[..., Any], *given: Any) -> Any:
    """Result of `work` in a separate process, or None if it did not finish within `limit` seconds and was stopped."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, work, *given))
    process.start()
    there.close()  # so that a failing process is noticed
    try:
        return here.recv() if here.poll(limit) else None
    finally:
        process.kill()
        process.join()


def _send(there: Connection, work: Callable[..., Any], *given: Any) -> None:
    there.send(work(*given))


def ours(name: str, problem: Problem, count: int) -> None:
    """Run CP-SVM with parts of about 2,000 rows: search, training and test."""
    grid: Any = "grid"
    C, gamma = (grid, grid) if count == 10 else (spaced(0.1, 1000, count), spaced(0.1, 100, count))
    parts = max(1, len(problem.X) // ROWS)

    def run() -> tuple[CASVC, float]:
        model = CASVC(parts, partitioner="kmeans", C=C, gamma=gamma, random_state=0).fit(problem.X, problem.y)
        return model, model.score(problem.Xt, problem.yt)

    (model, accuracy), seconds, used = timed(run)
    record(data=name, method="CASVC", seconds=seconds, cpu_seconds=used, accuracy=accuracy, parts=parts)
    ended = int(model.cv_results_["ended"].sum())
    chosen = ", ".join(f"{name} {value:.4g}" for name, value in model.best_params_.items())
    print(
        f"  CASVC      {seconds:7.1f} s ({used:6.1f})  {100 * accuracy:.3f} %  {chosen}; {ended} settings ended early"
    )


def liquid(name: str, problem: Problem, folder: Path | None) -> None:
    """Run liquidSVM's own search, selection and test."""
    if folder is not None:
        sys.path.insert(0, str(folder))
    try:
        from liquidSVM import mcSVM
    except (ImportError, NameError, TypeError) as error:
        print(f"  liquidSVM: not installed ({error})")
        return

    def run() -> Any:
        model = mcSVM(problem.X, problem.y, partition_choice=4, threads=2, folds=5, grid_choice=0, display=0)
        return model.test(problem.Xt, problem.yt)[0]

    said, seconds, used = timed(run)
    accuracy = float(np.mean(said[:, 0] == problem.yt))
    record(data=name, method="liquidSVM", seconds=seconds, cpu_seconds=used, accuracy=accuracy)
    print(f"  liquidSVM  {seconds:7.1f} s ({used:6.1f})  {100 * accuracy:.3f} %")


def grid_search(problem: Problem, n: int, count: int) -> None:
    """Compare choices for the first `n` rows by scikit-learn's folds; ours runs before and after theirs."""
    from joblib.externals.loky import get_reusable_executor
    from sklearn.model_selection import GridSearchCV, PredefinedSplit
    from sklearn.svm import SVC

    X, y = problem.X[:n], problem.y[:n]
    grid = {"C": spaced(1, 100, count), "gamma": spaced(1, 100, count)}
    runs = [timed(lambda: SMOSVC(**grid, cv=5).fit(X, y))]
    folds = PredefinedSplit(stratified((y > 0).astype(np.int64), 5))

    def run() -> Any:
        found = GridSearchCV(SVC(cache_size=1000), grid, cv=folds, n_jobs=2).fit(X, y)
        get_reusable_executor().shutdown(wait=True)  # so that the processor time of its processes is counted
        return found

    theirs, slow, slow_used = timed(run)
    print(f"  GridSearchCV  {slow:7.1f} s ({slow_used:6.1f})  {theirs.best_params_}")
    runs.append(timed(lambda: SMOSVC(**grid, cv=5).fit(X, y)))
    for model, seconds, used in runs:
        print(f"  SMOSVC        {seconds:7.1f} s ({used:6.1f})  {model.best_params_}")
    model, seconds, used = min(runs, key=lambda run: run[1])
    scores = theirs.cv_results_["mean_test_score"]
    for name, mine, all_cores, which in (
        ("SMOSVC", seconds, used, model.best_index_), ("GridSearchCV", slow, slow_used, theirs.best_index_)
    ):  # fmt: skip
        record(
            data=f"covtype of {n:,}", method=name, seconds=mine, cpu_seconds=all_cores, accuracy=float(scores[which])
        )
    faster = f"{slow / seconds:.0f} times faster by the clock, {slow_used / used:.0f} times by the cores' seconds"
    print(f"  {faster}; accuracy of its folds: {100 * scores[model.best_index_]:.2f} % at our choice,", end=" ")
    print(f"{100 * scores.max():.2f} % at most")


def mixture(n: int, d: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Two classes of ten clusters each, with centres at a quarter of a deviation from 0 in each of d features."""
    rng = np.random.default_rng(0)
    y = np.where(np.arange(n) % 2, 1.0, -1.0)
    middles = rng.normal(size=(20, d))
    return middles[rng.integers(0, 10, n) + 10 * (y > 0)] * 0.25 + rng.normal(size=(n, d)), y


def along_path(name: str, n: int) -> tuple[float, float, float]:
    """Wall-clock seconds, processor seconds, and accuracy on 2,000 more rows, of one rival on `n` rows."""
    X, y = mixture(n + 2000)
    if name == "TorchKM":
        from torchkm.estimators import TorchKMSVC

        model = TorchKMSVC(kernel="rbf", cv=10, device="cpu")
    else:
        model = SMOSVC(C=spaced(1e-3, 1e3, 50), gamma=1e-3, cv=10)
    _, seconds, used = timed(lambda: model.fit(X[:n], y[:n]))
    return seconds, used, float(np.mean(np.asarray(model.predict(X[n:])).ravel() == y[n:]))


def path(n: int, limit: float) -> None:
    """Run 50 values of C and 10 folds, as TorchKM's authors do, on `n` rows with 1,000 features, and 2,000 test rows.

    TorchKM, which does not stop by itself, is stopped after `limit` seconds.
    """
    rivals = ["SMOSVC", "TorchKM"]
    if find_spec("torchkm") is None:
        print("  TorchKM: not installed")
        rivals.pop()
    for name in rivals:
        found = along_path(name, n) if name == "SMOSVC" else within(limit, along_path, name, n)
        if found is None:
            print(f"  {name:8} did not finish within {limit:.0f} s", flush=True)
            continue
        seconds, used, accuracy = found
        record(data=f"mixture of {n:,}", method=name, seconds=seconds, cpu_seconds=used, accuracy=accuracy)
        print(f"  {name:8} {seconds:7.2f} s ({used:6.2f})  {100 * accuracy:.2f} %", flush=True)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=tuple(SETS), default=CHOSEN)
    parser.add_argument("--settings", type=int, default=10, metavar="G", help="compare G x G settings")
    parser.add_argument("--liquidsvm", type=Path, metavar="FOLDER", help="folder where liquidSVM was built")
    parser.add_argument("--no-liquidsvm", action="store_true")
    parser.add_argument("--grid-search", type=int, metavar="ROWS", help="run only this, on ROWS rows of covtype")
    parser.add_argument("--path", type=int, metavar="ROWS", help="run only this: 50 values of C beside TorchKM")
    parser.add_argument(
        "--limit", type=float, default=360.0, metavar="S", help="seconds after which TorchKM is stopped"
    )
    args = parser.parse_args()
    headline()
    small = np.random.default_rng(0).normal(size=(200, 3))
    for model in (CASVC(2, C=[1, 2], gamma=[0.1, 1]), SMOSVC(C=[1, 2], gamma=[0.1, 1])):
        model.fit(small, np.arange(200) % 2).predict(small)  # compiles
    print(machine_rate())
    if args.grid_search:
        grid_search(SETS["covtype50k"](args.folder), args.grid_search, args.settings)
    if args.path:
        path(args.path, args.limit)
    for name in () if args.grid_search or args.path else args.only:
        problem = SETS[name](args.folder)
        count = f"{args.settings} x {args.settings} settings"
        print(f"{name}: {len(problem.X):,} + {len(problem.Xt):,} rows, {count}")
        ours(label(args.folder, name), problem, args.settings)
        if not args.no_liquidsvm:
            liquid(label(args.folder, name), problem, args.liquidsvm)
    print(machine_rate())


if __name__ == "__main__":
    main()
