"""Least squares on M points: digits, error against M beside others, seconds against the flops, the tree of ranks.

python -m benchmarks.krr_subset DATA_FOLDER [--only condition|error|large|tree ...] [--data NAME ...] [--points M ...]
    [--rows N] [--columns M] [--out FILE.json]

"condition" solves small systems of known coefficients by the triangle, by LAPACK's drivers and by normal equations.
"error" trains on real data beside two levels, BKRR2 and scikit-learn's Nystroem with Ridge, which chooses on the same
grid, by a tenth of the rows held out. "large" folds N generated rows of M columns, and compares its seconds with the
flops at the rate of dgeqrf on this machine, just before and just after. "tree" combines triangles on virtual ranks.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.linalg import lapack

from benchmarks.cluster.timeline import replay
from benchmarks.cluster.world import World
from benchmarks.krr_data import SETS, Split, load, split
from benchmarks.race import headline, machine_rate
from benchmarks.results import Results, table
from benchmarks.scaling import keep_memory
from cacore.comm import Communicator
from cacore.linalg import tsqr
from cacore.machine import threads
from cakernels.plan.network import PRESETS
from cakrr import BKRR2, SubsetKRR, TwoLevelKRR

Array = NDArray[np.float64]
CONDITIONS = [10.0**e for e in range(0, 15, 2)]
SIGMAS, LAMS = (0.5, 1.0, 2.0), (1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)  # sigmas in units of sqrt(d)
ALONE = Communicator(None)


def blocks_of(rows: Array, leaves: int, step: int = 2048) -> tsqr.Blocks:
    """The rows by leaves."""
    border = tsqr.bounds(len(rows), leaves)

    def of(leaf: int, skipped: int) -> Iterator[Array]:
        for lo in range(border[leaf] + skipped * step, border[leaf + 1], step):
            yield rows[lo : min(lo + step, border[leaf + 1])]

    return of


def condition(n: int = 4000, M: int = 100) -> Iterator[dict[str, Any]]:
    """Relative errors of the coefficients, with exact right sides; NaN where there is no factor."""
    rng = np.random.default_rng(0)
    U, V = np.linalg.qr(rng.normal(size=(n, M)))[0], np.linalg.qr(rng.normal(size=(M, M)))[0]
    c = rng.normal(size=(M, 1))
    for number in CONDITIONS:
        A = U * np.geomspace(1, 1 / number, M) @ V.T
        b = A @ c

        def normal(A: Array = A, b: Array = b) -> Array:
            try:
                return np.asarray(scipy.linalg.cho_solve(scipy.linalg.cho_factor(A.T @ A), A.T @ b))
            except np.linalg.LinAlgError:
                return np.full((M, 1), np.nan)

        def driver(name: str, A: Array = A, b: Array = b) -> Array:
            return np.asarray(scipy.linalg.lstsq(A, b, cond=1e-16, lapack_driver=name)[0])

        found = tsqr.tsqr(blocks_of(np.hstack([A, b]), 16), M, 1, 16, ALONE).solve()
        answers = {"triangle": found, "gelsy": driver("gelsy"), "gelsd": driver("gelsd"), "normal equations": normal()}
        errors = {name: float(np.linalg.norm(one - c) / np.linalg.norm(c)) for name, one in answers.items()}
        residuals = {f"residual, {name}": float(np.linalg.norm(A @ one - b)) for name, one in answers.items()}
        yield {"condition": number, **errors, **residuals}


def nystroem(data: Split, M: int, sigmas: list[float]) -> Callable[[Array], Array]:
    """scikit-learn's Nystroem features and Ridge, chosen on a tenth of the rows."""
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(data.X)
    X, n = scaler.transform(data.X), len(data.X)
    held = np.random.default_rng(0).permutation(n) < n // 10
    mean, best = data.y.mean(), (np.inf, 0.0, 0.0)
    for sigma in sigmas:
        features = Nystroem(gamma=1 / (2 * sigma**2), n_components=M, random_state=0).fit(X[~held])
        F, T = features.transform(X[~held]), features.transform(X[held])
        for lam in LAMS:
            ridge = Ridge(alpha=lam * len(F), fit_intercept=False, solver="cholesky").fit(F, data.y[~held] - mean)
            best = min(best, (float(np.mean((ridge.predict(T) + mean - data.y[held]) ** 2)), sigma, lam))
    _, sigma, lam = best
    features = Nystroem(gamma=1 / (2 * sigma**2), n_components=M, random_state=0).fit(X)
    ridge = Ridge(alpha=lam * n, fit_intercept=False, solver="cholesky").fit(features.transform(X), data.y - mean)
    return lambda T: np.asarray(ridge.predict(features.transform(scaler.transform(T))) + mean)


def errors(data: Split, Ms: list[int]) -> Iterator[dict[str, Any]]:
    """Test errors and seconds of training, parameters chosen by each method itself."""
    sigmas = [one * data.X.shape[1] ** 0.5 for one in SIGMAS]
    parts = max(2, len(data.X) // 2000)
    rivals: list[tuple[str, int, Callable[[], Callable[[Array], Array]]]] = []

    def ours(M: int, **more: Any) -> Callable[[], Callable[[Array], Array]]:
        given = {"centers": M, "sigma": sigmas, "lam": LAMS, "random_state": 0, **more}
        return lambda: SubsetKRR(**given).fit(data.X, data.y).predict

    for M in Ms:
        rivals.append(("subset, left out", M, ours(M)))
        rivals.append(("subset, gcv", M, ours(M, select="gcv")))
        rivals.append(("subset, gcv, pivots", M, ours(M, select="gcv", pick="pivots")))
        rivals.append(("Nystroem + Ridge", M, lambda M=M: nystroem(data, M, sigmas)))  # type: ignore[misc]
    rivals.append(("two levels", 1500, lambda: TwoLevelKRR(parts, random_state=0).fit(data.X, data.y).predict))
    rivals.append(("BKRR2", 0, lambda: BKRR2(parts, random_state=0).fit(data.X, data.y).predict))
    for method, M, train in rivals:
        begun = time.perf_counter()
        predict = train()
        seconds = time.perf_counter() - begun
        mse = float(np.mean(np.square(predict(data.T) - data.t)))
        yield {"method": method, "M": M, "mse": mse, "seconds": seconds, "gflops": machine_rate()}


def qr_rate(M: int) -> float:
    """GFLOP/s of LAPACK's dgeqrf on 4 M x M random numbers."""
    A = np.asfortranarray(np.random.default_rng(0).normal(size=(4 * M, M)))
    begun = time.perf_counter()
    lapack.dgeqrf(A, overwrite_a=1, lwork=64 * M)
    return (8 - 2 / 3) * M**3 / (time.perf_counter() - begun) / 1e9


def large(n: int, M: int) -> Iterator[dict[str, Any]]:
    """Seconds of folding n x M generated numbers, without the time that generates them."""
    leaves, spent = tsqr.leaves_of(n, M + 1), 0.0
    border = tsqr.bounds(n, leaves)

    def blocks(leaf: int, skipped: int) -> Iterator[Array]:
        nonlocal spent
        rng = np.random.default_rng(leaf)
        for lo in range(border[leaf], border[leaf + 1], 2048):
            begun = time.perf_counter()
            block = rng.standard_normal((min(2048, border[leaf + 1] - lo), M + 1))
            spent += time.perf_counter() - begun
            yield block

    before = qr_rate(M)
    kept = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.perf_counter()
    found = tsqr.tsqr(blocks, M, 1, leaves, ALONE)
    seconds = time.perf_counter() - begun - spent
    after = qr_rate(M)
    assert found.rows == n
    flops = 2 * n * M**2 - 2 / 3 * M**3
    yield {
        "rows": n, "columns": M, "leaves": leaves, "seconds": seconds, "dgeqrf, GFLOP/s": (before + after) / 2,
        "over the flops": seconds / (flops / ((before + after) / 2) / 1e9),
        "peak MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "before MiB": kept / 1024,
        "squares MiB": 8 * M * M / 2**20,
    }  # fmt: skip


def tree(M: int, ranks: list[int]) -> Iterator[dict[str, Any]]:
    """Seconds from the first message to the last of combining triangles, on virtual ranks."""
    rows = np.random.default_rng(0).normal(size=(2 * M, M))
    for R in ranks:
        folded: list[float] = [0.0] * R

        def work(comm: Communicator, R: int = R, folded: list[float] = folded) -> None:
            with comm.phase("train"):
                begun = time.thread_time()
                tsqr.tsqr(lambda leaf, skipped: iter([rows]), M - 1, 1, R, comm)
                folded[comm.rank] = time.thread_time() - begun

        traces = World(R).run(work)
        kept = [[step for step in trace if step.phase == "train"] for trace in traces]
        first = max(trace[0].seconds for trace in kept)
        whole = replay(kept, PRESETS["aries"]).end
        yield {
            "ranks": R, "columns": M, "seconds": whole - first, "folding": first, "busiest": max(folded),
            "MB": tsqr.sent_bytes(M, R, R, shared=False) / 1e6, "messages": tsqr.messages(R, R),
        }  # fmt: skip


def main() -> None:
    """Run the benchmark, print tables, and write the records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=("condition", "error", "large", "tree"))
    parser.add_argument("--data", nargs="+", choices=SETS, default=["kin40k", "CASP"])
    parser.add_argument("--points", nargs="+", type=int, default=[500, 1000, 2000, 4000])
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--columns", type=int, default=1000)
    parser.add_argument("--ranks", nargs="+", type=int, default=[4, 16, 64, 256, 1024])
    parser.add_argument("--threads", type=int, default=threads.available())
    parser.add_argument("--out", type=Path, default=Path("krr-subset.json"))
    args = parser.parse_args()
    threads.set_threads(args.threads)
    headline()
    results = Results("krr-subset")

    def shown(records: Iterator[dict[str, Any]], **about: Any) -> None:
        found = []
        for one in records:
            found.append(one)
            results.add(**about, **one)
            results.save(args.out)
            print(about, one, flush=True)
        forms = {name: ".3g" if isinstance(value, float) else "" for name, value in found[0].items()}
        print(table(found, forms))

    for part in args.only or ("condition", "error", "large", "tree"):
        if part == "condition":
            shown(condition())
        elif part == "error":
            for name in args.data:
                shown(errors(split(*load(args.folder, name), seed=0), args.points), data=name)
        elif part == "large":
            shown(large(args.rows, args.columns))
        else:
            threads.set_threads(1)
            keep_memory()
            shown(tree(args.columns // 4, args.ranks))


if __name__ == "__main__":
    main()
