"""Accuracy of ``cakernels fit`` on classes beside gradient boosted trees: the usual test rows, one table.

python -m benchmarks class-accuracy DATA_FOLDER [--only NAME ...] [--rivals NAME ...] [--within 5m]

Everything is chosen on training rows, in the same time: the front door by itself, the trees by a random search over
scikit-learn's HistGradientBoostingClassifier, or LightGBM's classifier where it is installed, with early stopping on a
tenth of the rows; the best candidate is trained on all rows with the rounds that it had then.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks import tree_search
from benchmarks.front import fitted
from benchmarks.race import headline
from benchmarks.results import Record, record, table
from benchmarks.svm_data import SETS, Problem, native
from cacore import checks
from cacore.comm import Communicator
from cakernels import families

USUAL = ["ijcnn1", "a9a", "covtype50k", "usps", "mnist20k"]
COLUMNS = {
    "data": "", "rival": "", "accuracy": ".2f", "fit_seconds": ".0f", "trainings": "", "chosen": "",
}  # fmt: skip


def problem(folder: Path, name: str) -> Problem:
    """A set of :mod:`benchmarks.svm_data`; mnist20k are the first 20,000 training rows of mnist."""
    found = SETS["mnist" if name == "mnist20k" else name](folder)
    if name == "mnist20k":
        found.X, found.y = found.X[:20_000], found.y[:20_000]
    return found


def front(rows: Problem, seconds: float, threads: int) -> tuple[NDArray[Any], Record]:
    """``cakernels fit DATA --within T``."""
    with tempfile.TemporaryDirectory() as folder:
        data = native(rows, Path(folder) / "data.h5")
        begun = time.perf_counter()
        model, told = fitted(data, threads, "--within", f"{seconds:g}", "--task", "classification")
        spent = time.perf_counter() - begun
        labels = families.labels(model, families.outputs(model, rows.Xt, Communicator()))
    chosen = f"{' + '.join(told['params']['models'])}, {max(told['params']['rows']):,} rows"
    return labels, {"fit_seconds": spent, "trainings": len(told["grid"]), "chosen": chosen}


def hist_gradient_boosting(rows: Problem, seconds: float, threads: int) -> tuple[NDArray[Any], Record]:
    """scikit-learn's trees."""
    with threadpool_limits(threads):
        return _searched(tree_search.hist_gradient_boosting(True, 0), rows, seconds)


def lightgbm(rows: Problem, seconds: float, threads: int) -> tuple[NDArray[Any], Record]:
    """LightGBM's trees."""
    return _searched(tree_search.lightgbm(True, 0, threads), rows, seconds)


def _searched(trees: tree_search.Trees, rows: Problem, seconds: float) -> tuple[NDArray[Any], Record]:
    begun = time.perf_counter()
    model, best = tree_search.searched(trees, rows.X, rows.y, 0, seconds)
    spent = time.perf_counter() - begun
    said = f"{best['rounds']} rounds, {best['max_leaf_nodes']} leaves, rate {best['learning_rate']:.2g}"
    return model.predict(rows.Xt), {"fit_seconds": spent, "trainings": best["candidates"], "chosen": said}


RIVALS: dict[str, Callable[[Problem, float, int], tuple[NDArray[Any], Record]]] = {
    "cakernels fit": front, "HistGradientBoosting": hist_gradient_boosting, "LightGBM": lightgbm,
}  # fmt: skip


def main() -> None:
    """Print a row a set and rival."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", choices=[*USUAL, *SETS], default=USUAL)
    parser.add_argument("--rivals", nargs="+", choices=RIVALS, default=["cakernels fit", "HistGradientBoosting"])
    parser.add_argument("--within", default="5m", metavar="TIME")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    headline()
    print(table([], COLUMNS), flush=True)
    for name in args.only:
        rows = problem(args.data, name)
        for rival in args.rivals:
            predicted, facts = RIVALS[rival](rows, checks.duration(args.within, "--within"), args.threads)
            accuracy = 100 * float(np.mean(predicted == rows.yt))
            row = {"data": name, "rival": rival, "accuracy": accuracy, "trainings": "", **facts}
            record(race="class accuracy", data=name, rival=rival, accuracy=accuracy, fit_seconds=facts["fit_seconds"])
            print(table([row], COLUMNS).splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
