"""Prediction of the exact SVM beside scikit-learn's SVC (LIBSVM) and oneDAL (scikit-learn-intelex), alternating.

python -m benchmarks.svm_predict [--features D ...] [--vectors S ...] [--rows N] [--rounds R] [--rivals NAME ...]

Rows are standard normal in double precision, the kernel is Gaussian with gamma = 1/d, and C is so small that all
training rows are support vectors. All rivals get the same rows and all cores; compile time is excluded.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.svm import SVC

from benchmarks.race import copy_rate, headline, keep, machine_rate, race
from casvm import SMOSVC

FEATURES, VECTORS, ROWS = (10, 18, 30, 60), (1_000, 5_000, 13_000, 20_000), 27_000
_C = 1e-3  # small enough that every row is at its bound


def makers(rivals: list[str]) -> dict[str, Callable[..., Any]]:
    """Makers of estimators: ours, and those of the requested rivals that are installed."""
    found: dict[str, Callable[..., Any]] = {"ours": SMOSVC}
    if "libsvm" in rivals:
        found["libsvm"] = SVC
    if "oneDAL" in rivals:
        try:
            from sklearnex import svm as onedal
        except ImportError:
            print("scikit-learn-intelex is not installed: without oneDAL")
        else:
            found["oneDAL"] = onedal.SVC
    return found


def drawn(n: int, d: int, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Random rows, and labels with equal classes."""
    X = rng.standard_normal((n, d))
    score = X[:, 0] + rng.standard_normal(n)
    return X, (score > np.median(score)).astype(np.int64)


def cell(d: int, s: int, rows: int, rounds: int, field: dict[str, Callable[..., Any]]) -> None:
    """Print seconds and ratios for `s` support vectors with `d` features."""
    rng = np.random.default_rng(d + s)
    (X, y), (Xt, _) = drawn(s, d, rng), drawn(rows, d, rng)
    models = {who: make(C=_C, gamma=1.0 / d, tol=1e-3).fit(X, y) for who, make in field.items()}
    results = race({who: partial(model.decision_function, Xt) for who, model in models.items()}, rounds)
    title, ours = f"predict {rows} x {d}, {s} vectors", results["ours"].median
    keep(title, results, list(field)[-1])
    values = rows * float(s)
    decided = {who: np.ravel(model.decision_function(Xt[:500])) for who, model in models.items()}
    apart = max(float(np.abs(other - decided["ours"]).max()) for other in decided.values())
    print(
        f"{title} ({models['ours'].support_.size:,}): ours {ours:.3f} s, {ours / values * 1e9:.3f} ns per value; "
        + ", ".join(f"{who} {one.median:.3f} s ({one.median / ours:.2f})" for who, one in results.items())
        + f"; decisions apart by {apart:.1e}",
        flush=True,
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", nargs="+", type=int, default=FEATURES)
    parser.add_argument("--vectors", nargs="+", type=int, default=VECTORS)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rivals", nargs="+", default=["oneDAL"], choices=["libsvm", "oneDAL"])
    args = parser.parse_args()
    headline()
    print(f"memory copies at {copy_rate():.1f} GB/s")
    field = makers(args.rivals)
    for d in args.features:
        for s in args.vectors:
            cell(d, s, args.rows, args.rounds, field)
    print(f"matrix product {machine_rate():.0f} GFLOP/s, memory copies at {copy_rate():.1f} GB/s")


if __name__ == "__main__":
    main()
