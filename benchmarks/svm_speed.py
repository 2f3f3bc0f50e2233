"""The exact solver against LIBSVM (scikit-learn's SVC) and oneDAL (scikit-learn-intelex), alternating.

python -m benchmarks.svm_speed DATA_FOLDER [--only NAME ...] [--rounds N] [--rivals NAME ...] [--small]

All solvers get the same rows in memory, the same tolerance, all cores and a cache of 4 GB; compile time is excluded.
scikit-learn-intelex takes part if it is installed, with rows in double and in single precision.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.svm import SVC

from benchmarks.generated import label
from benchmarks.race import headline, keep, machine_rate, race
from benchmarks.svm_data import SETS, Problem
from casvm import SMOSVC

EXACT = ("ijcnn1", "a9a", "covtype50k", "mnist_odd")


def rivals(problem: Problem) -> dict[str, tuple[Callable[[], Any], Any, Any]]:
    """For each installed rival: a maker of estimators, and the rows to train on and to predict."""
    given = {"C": problem.C, "gamma": problem.gamma, "tol": 1e-3}
    double = problem.X, problem.Xt
    found: dict[str, tuple[Callable[[], Any], Any, Any]] = {
        "ours": (lambda: SMOSVC(**given, cache_gib=4.0), *double),
        "libsvm": (lambda: SVC(**given, cache_size=4000), *double),
    }
    try:
        from sklearnex import svm as onedal
    except ImportError:
        print("scikit-learn-intelex is not installed: without oneDAL")
        return found
    single = tuple(np.ascontiguousarray(X, np.float32) for X in double)
    found["oneDAL 64"] = lambda: onedal.SVC(**given, cache_size=4000), *double
    found["oneDAL 32"] = lambda: onedal.SVC(**given, cache_size=4000), *single
    return found


def objective(problem: Problem, model: Any) -> float:
    """The dual objective in double precision, from the model's coefficients."""
    beta = np.asarray(model.dual_coef_, np.float64).ravel()
    X = problem.X[model.support_]
    squares, value = np.einsum("ij,ij->i", X, X), 0.0
    for lo in range(0, len(X), 2000):
        D = squares[lo : lo + 2000, None] + squares - 2.0 * X[lo : lo + 2000] @ X.T
        value += beta[lo : lo + 2000] @ (np.exp(-problem.gamma * np.maximum(D, 0.0)) @ beta)
    return float(np.abs(beta).sum() - 0.5 * value)


def compare(name: str, problem: Problem, chosen: list[str], rounds: int) -> None:
    """Train and predict in turn; print seconds, ratios, and the agreement of predictions."""
    print(f"\n{name}: {len(problem.X):,} x {problem.X.shape[1]}, C = {problem.C:g}, gamma = {problem.gamma:g}")
    field = {k: v for k, v in rivals(problem).items() if k in chosen}
    models: dict[str, Any] = {}

    def train(who: str) -> Callable[[], object]:
        make, X, _ = field[who]

        def work() -> None:
            models[who] = make().fit(X, problem.y)

        return work

    _warm(problem)
    fits = race({who: train(who) for who in field}, rounds, warm=False)
    for who, model in models.items():
        if who == "oneDAL 32":
            continue
        print(f"  {who:<10} dual {objective(problem, model):.6f}, support vectors {model.support_.size:,}")
    right = {who: np.mean(models[who].predict(field[who][2]) == problem.yt) for who in field}
    tests = race({who: lambda who=who: models[who].predict(field[who][2]) for who in field}, rounds, warm=False)
    peer = next(who for who in ("libsvm", *field) if who in field)
    for what, results in (("fit", fits), ("predict", tests)):
        ours = results["ours"].median
        keep(f"{name}: {what}", results, peer, accuracy={who: float(rate) for who, rate in right.items()})
        for who, result in results.items():
            spread = f"{min(result.seconds):.3f} to {max(result.seconds):.3f}"
            rate = f"machine {min(result.rates):.0f} GFLOP/s or more"
            told = f"  {what:<8} {who:<10} {result.median:9.3f} s ({spread}; {rate})"
            print(f"{told}  {result.median / ours:6.2f} times ours" + f", accuracy {100 * right[who]:.3f}")
    _roofline(problem, models["ours"])


def _warm(problem: Problem) -> None:
    """Compile both precisions, and touch the memory that the caches will take."""
    few = np.random.default_rng(0).permutation(len(problem.X))[:3000]
    for dtype in (np.float32, np.float64):
        SMOSVC(C=1.0, gamma=problem.gamma, max_iter=2000).fit(problem.X[few].astype(dtype), problem.y[few]).predict(
            problem.X[few[:10]].astype(dtype)
        )
    SMOSVC(C=1e5, gamma=problem.gamma, max_iter=2000).fit(problem.X[few], problem.y[few])
    np.zeros(5 << 27)[::512] = 1.0


def _roofline(problem: Problem, model: SMOSVC) -> None:
    """Print the rates of our solver beside those of the machine."""
    (solution,) = model.solutions_
    nonzeros = np.count_nonzero(problem.X) / len(problem.X)
    flops = 2.0 * nonzeros * solution.kernel_values
    moved = 4.0 * solution.values_read
    print(
        f"  ours: {solution.iterations:,} pairs, {solution.rounds} rounds, {solution.kernel_rows:,} rows of K; "
        f"{solution.kernel_values / 1e6:,.0f} M kernel values of {nonzeros:.1f} nonzeros: "
        f"{flops / solution.seconds / 1e9:.1f} GFLOP/s (matrix product in float64: {machine_rate():.0f}), "
        f"{solution.kernel_values / solution.seconds / 1e6:,.0f} M values/s; read again "
        f"{moved / solution.seconds / 1e9:.1f} GB/s (memory copies at {_copy_rate():.0f})"
    )


def _copy_rate() -> float:
    a, b = np.ones(1 << 26), np.empty(1 << 26)
    b[:] = a
    begun = time.perf_counter()
    b[:] = a
    return 2 * a.nbytes / (time.perf_counter() - begun) / 1e9


def small(rounds: int) -> None:
    """Compare training on 1,000 rows, after compiling, and print the time to compile."""
    rng, field = np.random.default_rng(0), {"ours": SMOSVC, "libsvm": SVC}
    for d, noise in ((5, 0.5), (20, 1.0), (100, 1.0)):
        X = rng.normal(size=(1000, d))
        y = (X[:, 0] + X[:, 1] ** 2 + noise * rng.normal(size=1000) > 0.5).astype(int)
        results = race({who: lambda make=make, X=X, y=y: make().fit(X, y) for who, make in field.items()}, rounds)
        keep(f"1,000 x {d}", results, "libsvm")
        ours, theirs = results["ours"].median, results["libsvm"].median
        print(f"1,000 x {d}: ours {1e3 * ours:.1f} ms, LIBSVM {1e3 * theirs:.1f} ms: {theirs / ours:.2f} times ours")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", choices=SETS, default=EXACT)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rivals", nargs="+", default=["ours", "libsvm", "oneDAL 64", "oneDAL 32"])
    parser.add_argument("--small", action="store_true", help="run only 1,000 rows")
    args = parser.parse_args()
    headline()
    begun = time.perf_counter()
    SMOSVC(gamma=1.0).fit([[0.0], [1.0]], [0, 1]).predict([[0.5]])
    print(f"first fit and predict, including compilation and loading: {time.perf_counter() - begun:.1f} s")
    if args.small:
        small(max(args.rounds, 9))
        return
    for name in args.only:
        compare(label(args.data, name), SETS[name](args.data), args.rivals, args.rounds)


if __name__ == "__main__":
    main()
