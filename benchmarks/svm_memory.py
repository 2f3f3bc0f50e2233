"""Peak memory of the exact solver beyond Python and its packages, against the rows, the cache, and 15 %.

python -m benchmarks.svm_memory DATA_FOLDER [--only NAME ...] [--cache GIB ...]
"""

from __future__ import annotations

import argparse
import multiprocessing
from pathlib import Path

import numpy as np

from benchmarks.svm_data import SETS, Problem
from cacore.machine.memory import peak_rss_mib
from casvm import SMOSVC


def train(folder: Path, name: str, cache: float) -> None:
    """Train and print the memory; runs in its own process, with rows from a file, so that parsing does not count."""
    few = np.random.default_rng(0).random((3000, 4))
    SMOSVC(gamma=1.0).fit(few, few[:, 0] > 0.5)  # compiles
    with np.load(folder / f"{name}.npz") as file:
        X, y, C, gamma = (file[key] for key in ("X", "y", "C", "gamma"))
    rows = X.nbytes / (1 << 20)
    base = peak_rss_mib() - rows
    model = SMOSVC(C=float(C), gamma=float(gamma), cache_gib=cache).fit(X, y)
    used, allowed = peak_rss_mib() - base, 1.15 * (rows + 1024 * cache)
    verdict = "kept" if used <= allowed else "NOT KEPT"
    print(
        f"{name}, cache {cache:g} GiB: {used:,.0f} MiB above {base:,.0f}; rows {rows:,.0f}, allowed {allowed:,.0f}: "
        f"{verdict} ({model.support_.size:,} support vectors)",
        flush=True,
    )


def main() -> None:
    """Start one process per measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("svm_memory"))
    parser.add_argument("--only", nargs="+", choices=SETS, default=["ijcnn1", "a9a", "covtype50k", "mnist_odd"])
    parser.add_argument("--cache", nargs="+", type=float, default=[0.5, 2.0])
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    context = multiprocessing.get_context("spawn")
    for name in args.only:
        if not (args.out / f"{name}.npz").exists():
            problem: Problem = SETS[name](args.data)
            np.savez(args.out / f"{name}.npz", X=problem.X, y=problem.y, C=problem.C, gamma=problem.gamma)
            del problem
        for cache in args.cache:
            process = context.Process(target=train, args=(args.out, name, cache))
            process.start()
            process.join()


if __name__ == "__main__":
    main()
