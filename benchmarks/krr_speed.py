"""Cost of the steps of BKRR2 against their building blocks: LAPACK, scikit-learn's KMeans, a matrix product, h5py.

python -m benchmarks.krr_speed [--rounds N] [--quick]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import scipy.linalg
from sklearn.cluster import KMeans as PeerKMeans

from benchmarks.race import headline, race, show
from cacore.comm import Communicator
from cacore.io import Dataset, load
from cacore.kernels import Kernel
from cakrr.bkrr2 import METHOD
from cakrr.methods.task import RidgeTask
from cakrr.options import RidgeOptions
from cakrr.ridge_model import RidgeFit
from cakrr.solver.local import PartSystem, Workspace
from partition import KBalance


def training(m: int, parts: int, d: int, rounds: int) -> bool:
    """Train all parts with one (sigma, lambda), against dpotrf alone on the same number of matrices of this size."""
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(m, d)) for _ in range(parts)]
    y = rng.normal(size=m)
    kernel, workspace = Kernel.gaussian(d**0.5), Workspace(m, np.float64)
    K = np.empty((m, m))
    kernel.gram(kernel.points(X[0]), K)
    K.reshape(-1)[:: m + 1] += 1e-2 * m
    K = np.asfortranarray(np.tril(K) + np.tril(K, -1).T)
    scratch = np.empty_like(K)

    def ours() -> None:
        from cacore.machine import threads

        def one(rows: np.ndarray) -> None:
            PartSystem(rows, workspace, kernel).solve(kernel, (1e-2,), y[None, :])

        threads.for_blocks(one, [(rows,) for rows in X], parallel=workspace.one_a_thread(m))

    def copies() -> None:
        for _ in range(parts):
            np.copyto(scratch, K)

    def lapack() -> None:
        for _ in range(parts):
            np.copyto(scratch, K)
            _, info = scipy.linalg.lapack.dpotrf(scratch, lower=1, overwrite_a=1, clean=0)
            assert info == 0

    results = race({"ours": ours, "dpotrf": lapack, "copies": copies}, rounds)
    # dpotrf overwrites its matrix, so each run needs a copy; the time of copying is subtracted.
    results["dpotrf"].seconds = [s - results["copies"].median for s in results["dpotrf"].seconds]
    return show(f"training {parts} parts of {m:,} x {d}, one (sigma, lambda)", results, "ours", "dpotrf", 1.5)


def clustering(n: int, d: int, P: int, rounds: int) -> bool:
    """Compare K-balance with scikit-learn's KMeans for the same number of rounds."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, d)) + 3 * rng.normal(size=(P, d))[rng.integers(P, size=n)]
    probe = KBalance(P, random_state=0).fit(X)
    iterations = max(2, probe.n_iter_)

    def peer() -> None:
        start = X[rng.choice(n, P, replace=False)].copy()
        PeerKMeans(P, init=start, n_init=1, max_iter=iterations, tol=0, algorithm="lloyd").fit(X)

    def ours() -> None:
        KBalance(P, tol=0, max_iter=iterations, random_state=0).fit(X)

    results = race({"K-balance": ours, "scikit-learn KMeans": peer}, rounds)
    title = f"{n:,} x {d} into {P} parts, {iterations} rounds of K-means in both"
    return show(title, results, "K-balance", "scikit-learn KMeans", 1.5)


def trained(n: int, d: int, P: int) -> RidgeFit:
    """Train a model of P parts."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(n, d))
    train = Dataset(X, X[:, 0] + rng.normal(size=n), n, "generated")
    return RidgeTask.train(METHOD, train, RidgeOptions(partitions=P, lam=(1e-2,), standardize=False), Communicator())


def prediction(n: int, d: int, P: int, rounds: int) -> bool:
    """Route and predict rows, against the matrix products X Z^T alone, of the same shapes."""
    model = trained(n=4000 * P, d=d, P=P).model
    X = np.random.default_rng(3).normal(size=(n, d))
    from partition.parts_model import nearest

    labels = nearest(X, model.centers)
    work = [(np.ascontiguousarray(X[labels == p]), model.parts[p].X) for p in range(P)]
    out = np.empty(max(len(a) for a, _ in work) * max(len(b) for _, b in work))

    def product() -> None:
        for a, b in work:
            np.matmul(a, b.T, out=out[: len(a) * len(b)].reshape(len(a), len(b)))

    results = race({"route and predict": lambda: model.predict(X), "matrix product": product}, rounds)
    title = f"predicting {n:,} x {d} rows with {P} parts of 4,000"
    return show(title, results, "route and predict", "matrix product", 2.0)


def reading(n: int, d: int, rounds: int) -> bool:
    """Compare our reading of HDF5, which checks for NaN, with h5py's."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.h5"
        with h5py.File(path, "w") as file:
            file["X"], file["y"] = np.random.default_rng(4).normal(size=(n, d)), np.zeros(n)

        def plain() -> None:
            with h5py.File(path, "r") as file:
                file["X"][:], file["y"][:]

        results = race({"ours": lambda: load(path, Communicator()), "h5py": plain}, rounds)
    return show(f"reading {n:,} x {d} float64 from HDF5", results, "ours", "h5py", 2.0)


def large_part(m: int) -> bool:
    """Solve one part of 20,000 rows, for which the threaded dpotrf of scipy's wheel crashes."""
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(m, 10)), rng.normal(size=m)
    kernel = Kernel.gaussian(3.0)
    points = kernel.points(X)
    alphas, solved = PartSystem(X, Workspace(m, np.float64), kernel).solve(kernel, (1e-4,), y[None, :])
    alpha = alphas[0, 0]
    residual = np.abs(kernel.apply(points, points, alpha) + 1e-4 * m * alpha - y).max()
    print(f"\none part of {m:,} rows: solved {solved[0]}, residual {residual:.1e}")
    return bool(solved[0]) and bool(residual < 1e-8)


def main() -> None:
    """Run all comparisons; exit status 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="use smaller sizes, to check that the benchmark runs")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    headline()
    small = 10 if args.quick else 1
    kept = [
        training(1152, 16, 8, args.rounds),
        training(1152, 16, 90, args.rounds),
        training(4000 // small, 4, 90, args.rounds),
        training(8000 // small, 2, 90, args.rounds),
        clustering(500_000 // small, 90, 64, max(1, args.rounds - 2)),
        prediction(50_000 // small, 8, 16, args.rounds),
        prediction(50_000 // small, 90, 16, args.rounds),
        reading(500_000 // small, 90, args.rounds),
        large_part(20_000 // small),
    ]
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
