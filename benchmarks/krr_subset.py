"""Least squares on M points: digits, error against M beside others, seconds against the flops, the tree of ranks.

python -m benchmarks.krr_subset DATA_FOLDER [--only condition|error|large|tree ...] [--data NAME ...] [--points M ...]
    [--rows N] [--columns M] [--out FILE.json]

"condition" solves small systems of known coefficients by the triangle, by LAPACK's drivers and by normal equations.
"error" trains on real data beside others (benchmarks.krr_points; --methods names some). "large" folds N generated rows
of M columns, and compares its seconds with the flops at the rate of dgeqrf on this machine, just before and just after.
"tree" combines triangles on virtual ranks.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.linalg import lapack

from benchmarks.cluster.timeline import replay
from benchmarks.cluster.world import World
from benchmarks.krr_data import SETS, load, split
from benchmarks.krr_points import RIVALS, errors
from benchmarks.race import copy_rate, headline
from benchmarks.results import Results, table
from benchmarks.scaling import keep_memory
from cacore.comm import Communicator
from cacore.linalg import tsqr
from cacore.machine import threads
from cacore.machine.memory import peak_rss_mib
from cakernels.plan.machine import PRESETS

Array = NDArray[np.float64]
CONDITIONS = [10.0**e for e in range(0, 15, 2)]
RATED = 4000  # most columns of the matrix whose factorisation gives the machine's rate
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


def qr_rate(M: int) -> float:
    """GFLOP/s of LAPACK's dgeqrf on 4 M x M random numbers, the better of two runs."""
    seconds = np.inf
    for _ in range(2):
        A = np.asfortranarray(np.random.default_rng(0).normal(size=(4 * M, M)))
        begun = time.perf_counter()
        lapack.dgeqrf(A, overwrite_a=1, lwork=64 * M)
        seconds = min(seconds, time.perf_counter() - begun)
    return (8 - 2 / 3) * M**3 / seconds / 1e9


def _folded(n: int, M: int, allowed: int) -> tuple[float, float]:
    """Seconds of folding n x M generated numbers, without making them, and MiB beyond Python; in its own process."""
    threads.set_threads(allowed)
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

    kept, begun = peak_rss_mib(), time.perf_counter()
    found = tsqr.tsqr(blocks, M, 1, leaves, ALONE)
    seconds = time.perf_counter() - begun - spent
    assert found.rows == n
    return seconds, peak_rss_mib() - kept


def large(n: int, M: int, allowed: int) -> Iterator[dict[str, Any]]:
    """Seconds and memory of folding n x M generated numbers, beside the flops at LAPACK's rate before and after."""
    copied, before = copy_rate(), qr_rate(min(M, RATED))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        seconds, mib = pool.submit(_folded, n, M, allowed).result()
    rate = (before + qr_rate(min(M, RATED))) / 2
    leaves = tsqr.leaves_of(n, M + 1)
    yield {
        "rows": n, "columns": M, "leaves": leaves, "seconds": seconds, "dgeqrf, GFLOP/s": rate, "copy GB/s": copied,
        "over the flops": seconds / ((2 * n * M**2 - 2 / 3 * M**3) / rate / 1e9),
        "MiB": mib, "formula MiB": tsqr.memory_bytes(M + 1, leaves, 1) / 2**20, "squares MiB": 8 * M * M / 2**20,
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
    parser.add_argument("--points", nargs="+", type=int, default=[500, 1000, 2000, 4000, 8000])
    parser.add_argument("--methods", nargs="+", choices=RIVALS, default=list(RIVALS))
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
        forms = {name: ".3g" if isinstance(value, float) else "" for name, value in found[0].items() if name != "ended"}
        print(table(found, forms))

    for part in args.only or ("condition", "error", "large", "tree"):
        if part == "condition":
            shown(condition())
        elif part == "error":
            for name in args.data:
                data = split(*load(args.folder, name), seed=0)
                shown(errors(data, args.points, args.methods, args.threads), data=name)
        elif part == "large":
            shown(large(args.rows, args.columns, args.threads))
        else:
            threads.set_threads(1)
            keep_memory()
            shown(tree(args.columns // 4, args.ranks))


if __name__ == "__main__":
    main()
