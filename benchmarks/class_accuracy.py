"""Accuracy of ``cakernels fit`` on classes beside gradient boosted trees: the usual test rows, one table.

python -m benchmarks class-accuracy DATA_FOLDER [--only NAME ...] [--rivals NAME ...] [--within 5m]

Everything is chosen on training rows, in the same time: the front door by itself, the trees by a random search over
scikit-learn's HistGradientBoostingClassifier, or LightGBM's classifier where it is installed, with early stopping on a
tenth of the rows; the best candidate is trained on all rows with the rounds that it had then.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from threadpoolctl import threadpool_limits

from benchmarks.krr_peers import PATIENCE, ROUNDS, held_out
from benchmarks.race import headline
from benchmarks.results import Record, record, table
from benchmarks.svm_data import SETS, Problem, native
from cacore import checks
from cacore.comm import Communicator
from cakernels import class_blend
from cakernels.families import AllModels

USUAL = ["ijcnn1", "a9a", "covtype50k", "usps", "mnist20k"]
COLUMNS = {
    "data": "", "rival": "", "accuracy": ".2f", "fit_seconds": ".0f", "trainings": "", "chosen": "",
}  # fmt: skip
RESERVE = 0.75  # share of the time that the trees' search may use before the last training


def problem(folder: Path, name: str) -> Problem:
    """A set of :mod:`benchmarks.svm_data`; mnist20k are the first 20,000 training rows of mnist."""
    found = SETS["mnist" if name == "mnist20k" else name](folder)
    if name == "mnist20k":
        found.X, found.y = found.X[:20_000], found.y[:20_000]
    return found


def front(rows: Problem, seconds: float, threads: int) -> tuple[NDArray[Any], Record]:
    """``cakernels fit DATA --within T``, as a user types it."""
    with tempfile.TemporaryDirectory() as folder:
        data, model, report = (Path(folder) / name for name in ("data.h5", "model.h5", "report.json"))
        native(rows, data)
        begun = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "cakernels", "fit", str(data), "--within", f"{seconds:g}", "--task",
             "classification", "--threads", str(threads), "--model", str(model), "--report", str(report), "--quiet"],
            check=True,
        )  # fmt: skip
        spent = time.perf_counter() - begun
        alone = Communicator()
        loaded: Any = AllModels().load(model, alone)
        told = json.loads(report.read_text())
        chosen = f"{' + '.join(told['params']['models'])}, {max(told['params']['rows']):,} rows"
        labels = class_blend.labels(loaded, class_blend.outputs(loaded, rows.Xt, alone))
        return labels, {"fit_seconds": spent, "trainings": len(told["grid"]), "chosen": chosen}


def _drawn(seed: int) -> Iterator[dict[str, Any]]:
    """scikit-learn's defaults first, then draws around them."""
    rng = np.random.default_rng(seed)
    yield {"max_leaf_nodes": 31, "learning_rate": 0.1, "l2_regularization": 0.0, "max_features": 1.0}
    while True:
        yield {
            "max_leaf_nodes": int(rng.choice([15, 31, 63, 127, 255])),
            "learning_rate": float(np.exp(rng.uniform(np.log(0.02), np.log(0.3)))),
            "l2_regularization": float(rng.choice([0.0, 1e-3, 0.1, 1.0, 10.0])),
            "max_features": float(rng.choice([0.3, 0.5, 1.0])),
        }


def hist_gradient_boosting(rows: Problem, seconds: float, threads: int) -> tuple[NDArray[Any], Record]:
    """scikit-learn's trees."""

    def early(X: Any, y: Any, judges: Any, truth: Any, chosen: dict[str, Any]) -> tuple[float, int]:
        both = HistGradientBoostingClassifier(
            max_iter=ROUNDS, early_stopping=True, n_iter_no_change=PATIENCE, random_state=0, **chosen
        ).fit(X, y, X_val=judges, y_val=truth)  # fmt: skip
        return float(both.score(judges, truth)), both.n_iter_

    def whole(X: Any, y: Any, rounds: int, chosen: dict[str, Any]) -> Any:
        return HistGradientBoostingClassifier(
            max_iter=rounds, early_stopping=False, random_state=0, **chosen
        ).fit(X, y)  # fmt: skip

    with threadpool_limits(threads):
        return _searched(rows, seconds, early, whole)


def lightgbm(rows: Problem, seconds: float, threads: int) -> tuple[NDArray[Any], Record]:
    """LightGBM's trees."""
    import lightgbm as lgb

    def made(rounds: int, chosen: dict[str, Any]) -> Any:
        return lgb.LGBMClassifier(
            n_estimators=rounds, num_leaves=chosen["max_leaf_nodes"], learning_rate=chosen["learning_rate"],
            reg_lambda=chosen["l2_regularization"], colsample_bytree=chosen["max_features"], n_jobs=threads,
            random_state=0, verbosity=-1,
        )  # fmt: skip

    def early(X: Any, y: Any, judges: Any, truth: Any, chosen: dict[str, Any]) -> tuple[float, int]:
        stop = lgb.early_stopping(PATIENCE, verbose=False)
        one = made(ROUNDS, chosen).fit(X, y, eval_set=[(judges, truth)], callbacks=[stop])
        return float(one.score(judges, truth)), int(one.best_iteration_)

    def whole(X: Any, y: Any, rounds: int, chosen: dict[str, Any]) -> Any:
        return made(rounds, chosen).fit(X, y)

    return _searched(rows, seconds, early, whole)


def _searched(
    rows: Problem, seconds: float, early: Callable[..., tuple[float, int]], whole: Callable[..., Any]
) -> tuple[NDArray[Any], Record]:
    """Random search until a candidate might not end in time; the best one on all rows."""
    begun, tried, longest = time.perf_counter(), [], 0.0
    mine, judges = held_out(len(rows.X), 0)
    for chosen in _drawn(0):
        start = time.perf_counter()
        score, rounds = early(rows.X[mine], rows.y[mine], rows.X[judges], rows.y[judges], chosen)
        tried.append((score, rounds, chosen))
        longest = max(longest, time.perf_counter() - start)
        if time.perf_counter() - begun + longest > RESERVE * seconds:
            break
    _, rounds, chosen = max(tried, key=lambda one: one[0])
    model = whole(rows.X, rows.y, rounds, chosen)
    spent = time.perf_counter() - begun
    said = f"{rounds} rounds, {chosen['max_leaf_nodes']} leaves, rate {chosen['learning_rate']:.2g}"
    return model.predict(rows.Xt), {"fit_seconds": spent, "trainings": len(tried), "chosen": said}


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
