"""The exact SVM on sparse rows of very many features beside LIBSVM (scikit-learn) and oneDAL, alternating.

python -m benchmarks.svm_wide [--rows N] [--test N] [--features D ...] [--nonzeros K ...] [--rounds R]
    [--rivals NAME ...] [--dtype float32|float64]

Rows resemble text: features drawn by Zipf's law, values like tf-idf, norms of 1. Labels are the sign of a sparse linear
rule, with one in ten wrong. All rivals get the same CSR rows, tolerance and cores, and a cache of 2 GB; compile time is
excluded. scikit-learn-intelex takes part if it is installed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from benchmarks.race import copy_rate, headline, keep, machine_rate, race
from benchmarks.svm_predict import makers
from casvm import SMOSVC

FEATURES, NONZEROS, ROWS, TEST = (50_000, 1_000_000), (50, 500), 20_000, 5_000
_GIVEN = {"C": 10.0, "gamma": 1.0, "tol": 1e-3}
_WRONG = 0.1
_FEW = 6000  # up to this number of support vectors the dual is computed here; scipy takes minutes for 20,000


def text_like(n: int, d: int, nonzeros: int, seed: int) -> tuple[Any, NDArray[np.int64]]:
    """CSR rows, shape (n, d), with `nonzeros` different features each, and labels."""
    rng = np.random.default_rng(seed)
    names = rng.permutation(d)
    ends = np.cumsum(1.0 / np.arange(1, d + 1))
    ends /= ends[-1]
    indices = np.empty((n, nonzeros), np.int32)
    counts = np.empty((n, nonzeros))
    for i in range(n):
        drawn = np.zeros(0, np.int64)
        while True:
            drawn = np.append(drawn, np.searchsorted(ends, rng.random(4 * nonzeros)))
            features, first, often = np.unique(drawn, return_index=True, return_counts=True)
            if len(features) >= nonzeros:
                break
        some = np.sort(np.argpartition(first, nonzeros - 1)[:nonzeros])
        indices[i], counts[i] = features[some], often[some]
    frequency = np.bincount(indices.ravel(), minlength=d)
    values = (1.0 + np.log(counts)) * (1.0 + np.log(n / frequency[indices]))
    values /= np.sqrt((values**2).sum(axis=1))[:, None]
    X = sp.csr_matrix((values.ravel(), names[indices].ravel(), np.arange(0, n * nonzeros + 1, nonzeros)), (n, d))
    X.sort_indices()
    rule = np.where(rng.random(d) < 0.1, rng.standard_normal(d), 0.0)
    score = X @ rule
    y = (score > np.median(score)).astype(np.int64)
    wrong = rng.random(n) < _WRONG
    return X, np.where(wrong, 1 - y, y)


def cell(d: int, nonzeros: int, field: dict[str, Callable[..., Any]], args: argparse.Namespace) -> None:
    """Train and predict in turn; print seconds, ratios, objectives and accuracies."""
    whole, labels = text_like(args.rows + args.test, d, nonzeros, seed=d + nonzeros)
    whole = whole.astype(args.dtype)
    X, y, Xt, yt = whole[: args.rows], labels[: args.rows], whole[args.rows :], labels[args.rows :]
    models: dict[str, Any] = {}

    def train(who: str, make: Callable[..., Any]) -> None:
        size = {"cache_gib": 2000 / 1024} if who == "ours" else {"cache_size": 2000}
        models[who] = make(**_GIVEN, **size).fit(X, y)

    SMOSVC(**_GIVEN, max_iter=3000).fit(X[:3000], y[:3000]).predict(X[:5])  # compiles
    title = f"{args.rows} x {d}, {nonzeros} nonzeros, {args.dtype}"
    fits = race({who: partial(train, who, make) for who, make in field.items()}, args.rounds, warm=False)
    tests = race({who: partial(model.decision_function, Xt) for who, model in models.items()}, args.rounds)
    peer = list(field)[-1]
    right = {who: float(np.mean(model.predict(Xt) == yt)) for who, model in models.items()}
    keep(f"{title}: fit", fits, peer, accuracy=right)
    keep(f"{title}: predict", tests, peer)
    print(f"\n{title}")
    for what, results in (("fit", fits), ("predict", tests)):
        ours = results["ours"].median
        for who, one in results.items():
            spread = f"{min(one.seconds):.3f} to {max(one.seconds):.3f}"
            print(
                f"  {what:<8} {who:<7} {one.median:8.3f} s ({spread})  {one.median / ours:5.2f} times ours", flush=True
            )
    decided = {who: np.ravel(model.decision_function(Xt)) for who, model in models.items()}
    for who, model in models.items():
        few = model.support_.size <= _FEW
        apart = np.abs(decided[who] - decided["ours"]).max()
        print(
            f"  {who:<7} {model.support_.size:,} support vectors, {f'dual {dual(X, model):.6f}, ' if few else ''}"
            f"{100 * right[who]:.2f} %, decisions within {apart:.1e} of ours"
        )
    (solution,) = models["ours"].solutions_
    print(
        f"  ours: {solution.iterations:,} pairs, {solution.rounds} rounds, {solution.kernel_rows:,} rows of K, "
        f"{solution.kernel_values / 1e6:,.0f} M kernel values"
    )


def dual(X: Any, model: Any) -> float:
    """The dual objective for the Gaussian kernel in double precision, from the model's coefficients."""
    beta = model.dual_coef_
    beta = np.asarray(beta.todense() if sp.issparse(beta) else beta, np.float64).ravel()
    rows, value = X[model.support_].astype(np.float64), 0.0
    squares, across = np.asarray(rows.multiply(rows).sum(axis=1)).ravel(), rows.T.tocsr()
    for lo in range(0, len(beta), 1000):
        products = np.asarray((rows[lo : lo + 1000] @ across).todense())
        distances = squares[lo : lo + 1000, None] + squares - 2.0 * products
        value += beta[lo : lo + 1000] @ (np.exp(-_GIVEN["gamma"] * np.maximum(distances, 0.0)) @ beta)
    return float(np.abs(beta).sum() - 0.5 * value)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--test", type=int, default=TEST, help="number of rows to predict")
    parser.add_argument("--features", nargs="+", type=int, default=FEATURES)
    parser.add_argument("--nonzeros", nargs="+", type=int, default=NONZEROS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rivals", nargs="+", default=["oneDAL"], choices=["libsvm", "oneDAL"])
    parser.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    args = parser.parse_args()
    headline()
    print(f"memory copies at {copy_rate():.1f} GB/s")
    begun, field = time.perf_counter(), makers(args.rivals)
    for d in args.features:
        for nonzeros in args.nonzeros:
            cell(d, nonzeros, field, args)
    print(
        f"matrix product {machine_rate():.0f} GFLOP/s, memory copies at {copy_rate():.1f} GB/s, "
        f"{time.perf_counter() - begun:.0f} s in all"
    )


if __name__ == "__main__":
    main()
