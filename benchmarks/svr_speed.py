"""SMOSVR against scikit-learn's SVR (LIBSVM) and scikit-learn-intelex's (oneDAL): seconds, objective, error.

python -m benchmarks.svr_speed DATA_FOLDER [--only NAME ...] [--rows N] [--rounds N] [--most SECONDS]

Features and targets are standardised. C and epsilon are the pair of a 3 x 3 grid with the smallest error on validation
rows, after training on 3,000 rows; gamma is 1 / d. All solvers then get the same rows, the same tolerance, all cores
and a cache of 1 GB, in turn. Each runs in its own process, which is stopped after --most seconds. scikit-learn-intelex
takes part if it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics.pairwise import rbf_kernel

from benchmarks.generated import label
from benchmarks.krr_data import SETS, load
from benchmarks.race import copy_rate, headline, machine_rate
from benchmarks.results import record
from benchmarks.svm_search import within
from casvm import SMOSVR

ONLY = ("cadata", "CASP", "kin40k")
_GRID = (1.0, 10.0, 100.0), (0.03, 0.1, 0.3)
_SOME, _VALIDATION, _TEST = (
    3000,
    2000,
    3000,
)  # maximum numbers of rows; the last two are at most a tenth of the rows each
_GIB = 1.0  # cache

Rows = NDArray[np.float64]


class Fit(NamedTuple):
    """Result of one rival: seconds, dual objective, number of support vectors, mean squared test error."""

    seconds: float
    objective: float
    support: int
    error: float


def estimator(who: str, given: dict[str, float]) -> Any:
    """Make an estimator of this rival."""
    if who == "ours":
        return SMOSVR(**given, cache_gib=_GIB)
    if who == "oneDAL":
        from sklearnex.svm import SVR
    else:
        from sklearn.svm import SVR
    return SVR(**given, cache_size=1024 * _GIB)


def fit(who: str, given: dict[str, float], X: Rows, y: Rows, T: Rows, t: Rows) -> Fit:
    """Train once in a separate process, excluding compilation and loading."""
    estimator(who, given).fit(X[:200], y[:200]).predict(X[:10])
    begun = time.perf_counter()
    model = estimator(who, given).fit(X, y)
    seconds = time.perf_counter() - begun
    beta, support = np.asarray(model.dual_coef_, np.float64).ravel(), np.asarray(model.support_)
    square = sum(
        beta[lo : lo + 1000] @ (rbf_kernel(X[support[lo : lo + 1000]], X[support], given["gamma"]) @ beta)
        for lo in range(0, len(beta), 1000)
    )
    value = float(y[support] @ beta - given["epsilon"] * np.abs(beta).sum() - 0.5 * square)
    return Fit(seconds, value, len(support), float(np.mean((model.predict(T) - t) ** 2)))


def choose(X: Rows, y: Rows, T: Rows, t: Rows) -> tuple[dict[str, float], float]:
    """Choose C and epsilon on validation rows; return them and their error."""
    found = []
    for C, epsilon in itertools.product(*_GRID):
        given = {"C": C, "epsilon": epsilon, "gamma": 1.0 / X.shape[1]}
        model = SMOSVR(**given, tol=1e-2).fit(X, y)
        found.append((float(np.mean((model.predict(T) - t) ** 2)), C, given))
    error, _, best = min(found, key=lambda one: one[:2])
    return best, error


def compare(folder: Path, name: str, args: argparse.Namespace) -> None:
    """Choose the parameters, train in turn, and print the results."""
    X, y = load(folder, name)
    validation, test = min(_VALIDATION, len(y) // 10), min(_TEST, len(y) // 10)
    n = min(args.rows, len(y) - validation - test)
    order = np.random.default_rng(0).permutation(len(y))[: n + validation + test]
    X, y = X[order], y[order]
    X, y = (X - X[:n].mean(axis=0)) / X[:n].std(axis=0), (y - y[:n].mean()) / y[:n].std()
    cut = n, n + validation
    (A, V, T), (a, v, t) = np.split(X, cut), np.split(y, cut)
    given, error = choose(A[:_SOME], a[:_SOME], V, v)
    told = ", ".join(f"{key} = {value:g}" for key, value in given.items())
    print(f"\n{label(folder, name)}: {n:,} x {X.shape[1]}, {told} (validation error {error:.4f})", flush=True)
    rivals = ["ours", "libsvm", *(["oneDAL"] if importlib.util.find_spec("sklearnex") else [])]
    fits: dict[str, list[Fit]] = {who: [] for who in rivals}
    for _ in range(args.rounds):
        for who in list(rivals):
            one = within(args.most, fit, who, given, A, a, T, t)
            if one is None:
                print(f"  {who:<8} did not finish within {args.most:g} s", flush=True)
                rivals.remove(who)
                continue
            fits[who].append(one)
            rates = f"matrix product {machine_rate():.0f} GFLOP/s, memory copies {copy_rate():.1f} GB/s"
            print(f"  {who:<8} {one.seconds:8.2f} s ({rates})", flush=True)
    seconds = {who: statistics.median(one.seconds for one in some) for who, some in fits.items() if some}
    for who, value in seconds.items():
        last = fits[who][-1]
        record(race=f"{label(folder, name)}: SVR", rival=who, peer="libsvm", seconds=value, error=last.error)
        print(
            f"  {who:<8} {value:8.2f} s, {value / seconds['ours']:5.2f} times ours; dual {last.objective:.6f}, "
            f"{last.support:,} support vectors, test error {last.error:.5f}"
        )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", choices=SETS, default=ONLY)
    parser.add_argument("--rows", metavar="N", type=int, default=10_000)
    parser.add_argument("--rounds", metavar="N", type=int, default=1)
    parser.add_argument("--most", metavar="SECONDS", type=float, default=240.0)
    args = parser.parse_args()
    headline()
    for name in args.only:
        compare(args.data, name, args)


if __name__ == "__main__":
    main()
