"""Estimators with their defaults, beside those that they had at first: error and seconds.

python -m benchmarks defaults DATA_FOLDER [--only NAME ...] [--rows N]

Ridge regression had two parts, sigma = sqrt(d), lambda = 1e-4 and the model of the nearest part; CASVC had two random
parts and route "nearest". Those of SMOSVC are as they were. Errors are the RMSE over the deviation of the test targets,
or the share of labels that are wrong.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import krr_data, svm_data
from benchmarks.krr_accuracy import error
from benchmarks.race import headline
from benchmarks.results import Record, record, table
from cakernels import BKRR2, CASVC

VALUES = ["cadata", "CASP", "kin40k", "keggundirected", "BNG_breastTumor", "space_ga_scale", "mg_scale"]
CLASSES = ["ijcnn1", "a9a", "covtype50k", "usps", "mnist"]
TESTED = 10_000  # most test rows
COLUMNS = {"data": "", "estimator": "", "rows": ",", "old": ".4f", "new": ".4f", "old_s": ".1f", "new_s": ".1f"}
Rows = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]


def pairs(regression: bool, d: int) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Estimators with the former defaults and with those of today, for rows of d features."""
    if regression:
        return {"BKRR2": (lambda: BKRR2(2, sigma=d**0.5, lam=1e-4, route="nearest"), BKRR2)}

    def old(n_parts: int) -> CASVC:
        return CASVC(n_parts, partitioner="random", route="nearest")

    return {
        "CASVC": (lambda: old(2), CASVC),
        "CASVC, 8 parts": (lambda: old(8), lambda: CASVC(8)),
    }


def rows(folder: Path, name: str, n: int) -> Rows:
    """At most n training rows of a set, and test rows."""
    if name in VALUES:
        one = krr_data.split(*krr_data.load(folder, name), 0)
        X, y, T, t = one.X, one.y, one.T, one.t
    else:
        problem = svm_data.SETS[name](folder)
        place = np.random.default_rng(0).permutation(len(problem.X))
        X, y, T, t = problem.X[place], problem.y[place], problem.Xt, problem.yt
    return X[:n], y[:n], T[:TESTED], t[:TESTED]


def measured(make: Callable[[], Any], data: Rows, regression: bool) -> tuple[float, float]:
    """Test error and seconds of a fit."""
    X, y, T, t = data
    begun = time.perf_counter()
    model = make().fit(X, y)
    seconds = time.perf_counter() - begun
    predicted = model.predict(T)
    return error(predicted, t) if regression else float(np.mean(predicted != t)), seconds


def main() -> None:
    """Print a row per set and estimator."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", choices=VALUES + CLASSES, default=VALUES + CLASSES)
    parser.add_argument("--rows", type=int, default=20_000, help="most training rows")
    args = parser.parse_args()
    headline()
    print(table([], COLUMNS), flush=True)
    for name in args.only:
        regression = name in VALUES
        data = rows(args.data, name, args.rows)
        for estimator, (old, new) in pairs(regression, data[0].shape[1]).items():
            warm = tuple(part[:500] for part in data)
            measured(new, warm, regression)  # compiles
            found: Record = {"data": name, "estimator": estimator, "rows": len(data[0])}
            found["old"], found["old_s"] = measured(old, data, regression)
            found["new"], found["new_s"] = measured(new, data, regression)
            record(race="defaults", **found)
            print(table([found], COLUMNS).splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
