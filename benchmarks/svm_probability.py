"""Probabilities of kernel SVMs: log loss on test rows, and cost beside training without them.

python -m benchmarks.svm_probability DATA_FOLDER [--only NAME ...] [--rows N] [--orders N] [--out FILE.json]

The extra seconds are those of a fit with probabilities minus those of a fit without, each the smaller of two for our
models. SVC(probability=True) solves five folds (LIBSVM). CalibratedClassifierCV fits our solver on five folds, and
keeps the five models. CASVC has 4 K-means parts. "best" is the log loss of sigmoids fitted to SMOSVC's decisions on the
test rows themselves, for two classes: a lower bound. "of_svc" is the ratio of SMOSVC's extra seconds to SVC's.

For all rivals, folds are random: `--orders` trains SMOSVC and SVC again on the same rows in other orders, with other
seeds. The log loss is then the mean, and "deviation" the standard deviation over orders.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.calibration import CalibratedClassifierCV
from sklearn.metrics import log_loss
from sklearn.svm import SVC

from benchmarks.generated import label
from benchmarks.race import copy_rate, headline, machine_rate
from benchmarks.results import Results, table
from benchmarks.svm_data import SETS, Problem
from cacore.comm import Communicator
from cacore.probability.calibrator import Calibrator, coupled
from cacore.probability.left_out import LeftOutDecisions
from casvm import CASVC, SMOSVC

CHOSEN = ("ijcnn1", "a9a", "usps", "mnist")
PARTS = 4


def drawn(problem: Problem, rows: int) -> Problem:
    """The problem with a random sample of the training rows, and at most 20,000 test rows."""
    rng = np.random.default_rng(0)
    mine, others = (rng.permutation(len(X)) for X in (problem.X, problem.Xt))
    mine, others = mine[: rows or None], others[:20_000]
    return Problem(problem.X[mine], problem.y[mine], problem.Xt[others], problem.yt[others], problem.C, problem.gamma)


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of one call, and its result."""
    begun = time.perf_counter()
    made = work()
    return time.perf_counter() - begun, made


def least(make: Callable[..., Any], problem: Problem, rounds: int) -> tuple[float, float, Any]:
    """Smallest seconds without and with probabilities, over some alternating rounds, and the last model."""
    plain, sure, model = [], [], None
    for _ in range(rounds):
        plain.append(seconds(lambda: make().fit(problem.X, problem.y))[0])
        spent, model = seconds(lambda: make(probability=True).fit(problem.X, problem.y))
        sure.append(spent)
    return min(plain), min(sure), model


def best(model: Any, problem: Problem) -> float:
    """Log loss of the model's decisions with sigmoids fitted to the test rows."""
    k = len(model.classes_)
    D = model.model_.parts[0].pairs(problem.Xt, model.model_.kernel)
    codes = np.searchsorted(model.classes_, problem.yt)
    found = LeftOutDecisions.of_pairs(D, codes, k)
    known = Calibrator.fit("sigmoid", found, D.shape[1], Communicator())
    return float(log_loss(problem.yt, coupled(known.first(D), k), labels=model.classes_))


def compare(name: str, problem: Problem, orders: int, results: Results) -> None:
    """Run all rivals on one data set."""
    given: dict[str, Any] = {"C": problem.C, "gamma": problem.gamma, "tol": 1e-3}
    few = slice(0, 2000)
    SMOSVC(**given, probability=True).fit(problem.X[few], problem.y[few]).predict_proba(problem.Xt[:10])
    about = {"data": name, "rows": len(problem.X), "gflops": machine_rate(), "copied_gbps": copy_rate()}
    labels = np.unique(problem.y)

    def loss(P: NDArray[np.float64]) -> float:
        return float(log_loss(problem.yt, P, labels=labels))

    def judged(who: str, P: NDArray[np.float64], plain: float, extra: float, losses: Any = (), **more: Any) -> None:
        every = [loss(P), *losses]
        right = float(np.mean(labels[P.argmax(axis=1)] == problem.yt))
        results.add(
            **about, method=who, orders=len(every), log_loss=float(np.mean(every)), deviation=float(np.std(every)),
            right=right, plain_seconds=plain, extra_seconds=extra, **more,
        )  # fmt: skip

    def again(make: Callable[[int], Any]) -> list[float]:
        """Log losses after training on the rows in other orders."""
        places = [np.random.default_rng(order).permutation(len(problem.X)) for order in range(1, orders)]
        fitted = (make(order).fit(problem.X[place], problem.y[place]) for order, place in enumerate(places, 1))
        return [loss(model.predict_proba(problem.Xt)) for model in fitted]

    exact = {**given, "cache_gib": 2.0}
    plain, sure, model = least(lambda **more: SMOSVC(**exact, **more), problem, 2)
    ours = sure - plain
    bound = {"best": best(model, problem)} if len(model.classes_) == 2 else {}
    others = again(lambda order: SMOSVC(**exact, probability=True))
    judged("SMOSVC", model.predict_proba(problem.Xt), plain, ours, others, **bound)
    curve = SMOSVC(**exact, probability="isotonic").fit(problem.X, problem.y)
    judged("SMOSVC, isotonic", curve.predict_proba(problem.Xt), plain, float("nan"))
    parts = {"n_parts": PARTS, "partitioner": "kmeans", "random_state": 0}
    plain, sure, model = least(lambda **more: CASVC(**given, **parts, **more), problem, 2)
    judged("CASVC", model.predict_proba(problem.Xt), plain, sure - plain)
    folds = CalibratedClassifierCV(SMOSVC(**given), cv=5, ensemble=True)
    spent, folds = seconds(lambda: folds.fit(problem.X, problem.y))
    judged("CalibratedClassifierCV", folds.predict_proba(problem.Xt), float("nan"), spent)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        plain, sure, peer = least(lambda **more: SVC(**given, cache_size=2000, random_state=0, **more), problem, 1)
        others = again(lambda order: SVC(**given, cache_size=2000, random_state=order, probability=True))
        judged("SVC", peer.predict_proba(problem.Xt), plain, sure - plain, others, of_svc=ours / (sure - plain))


def main() -> None:
    """Run the benchmark, print a table, and write the records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=SETS, default=CHOSEN)
    parser.add_argument(
        "--rows", type=int, default=10_000, help="number of training rows, drawn at random; 0 means all"
    )
    parser.add_argument(
        "--orders", type=int, default=1, help="number of orders of the rows, to measure the effect of random folds"
    )
    parser.add_argument("--out", type=Path, default=Path("svm-probability.json"))
    args = parser.parse_args()
    headline()
    results = Results("svm-probability")
    for name in args.only:
        compare(label(args.folder, name), drawn(SETS[name](args.folder), args.rows), args.orders, results)
        results.save(args.out)
        columns = {"data": "", "rows": ",d", "method": "", "log_loss": ".4f", "deviation": ".4f", "right": ".4f"}
        columns |= {
            "plain_seconds": ".2f",
            "extra_seconds": ".2f",
            "best": ".4f",
            "of_svc": ".3f",
            "gflops": ".0f",
            "copied_gbps": ".1f",
        }
        print(
            table([one for one in results.records if one["data"] == results.records[-1]["data"]], columns), flush=True
        )


if __name__ == "__main__":
    main()
