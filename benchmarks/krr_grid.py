"""Cost of a grid: one band reduction per sigma against one Cholesky factorisation per pair.

python -m benchmarks.krr_grid DATA [--partitions P]              BKRR2 with 50 lambdas x 10 sigmas, both ways
python -m benchmarks.krr_grid DATA --crossover [--rows M ...]    number of lambdas from which a reduction is faster

DATA is a folder with California housing, or a native file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.generated import label
from benchmarks.krr_data import native
from benchmarks.race import headline, keep, race, show
from cacore.comm import Communicator
from cacore.io import load
from cacore.kernels import Kernel
from cacore.machine import threads
from cacore.tuning import spaced
from cakrr.bkrr2 import METHOD
from cakrr.methods.task import RidgeTask
from cakrr.options import RidgeOptions
from cakrr.ridge_model import RidgeFit
from cakrr.solver import local
from cakrr.solver.local import PartSystem, Workspace


def crossover(m: int, counts: list[int], rounds: int) -> None:
    """Print the seconds for one part and one sigma, with several numbers of lambdas, by Cholesky and by reduction."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(m, 8)), rng.normal(size=(1, m))
    kernel, workspace = Kernel.gaussian(2.0), Workspace(m, np.float64)
    alone = workspace.one_a_thread(m)
    parts = max(threads.current() if alone else 1, int(2e9 / m**3))  # enough work for timing

    def work(lams: tuple[float, ...], band_from: int) -> None:
        local.BAND_FROM = band_from

        def one(_: int) -> None:
            PartSystem(X, workspace, kernel, grid=True).solve(kernel, lams, y)

        threads.for_blocks(one, [(part,) for part in range(parts)], parallel=alone)

    usual = local.BAND_FROM
    print(f"m = {m:,}, {threads.current()} threads, {'one part per thread' if alone else 'all threads on one part'}")
    for count in counts:
        lams = tuple(np.geomspace(1e-6, 1, count))
        rivals = {"Cholesky": partial(work, lams, 1 << 30), "band": partial(work, lams, 0)}
        results = race(rivals, rounds)
        keep(f"{m:,} rows, {count} lambdas", results, "Cholesky")
        each, shared = (results[name].median / parts for name in ("Cholesky", "band"))
        print(f"  {count:3d} lambdas: Cholesky {each:.4f} s per part, band {shared:.4f} s ({each / shared:.2f} x)")
    local.BAND_FROM = usual
    print(f"  in use from {usual} lambdas on")


def whole(path: Path, name: str, partitions: int, rounds: int) -> bool:
    """Compare the whole training with and without the reduction: seconds, chosen pair and errors."""
    fits: dict[str, RidgeFit] = {}
    sigmas, lams = tuple(spaced(0.5, 4, 10)), tuple(spaced(1e-7, 1e-1, 50))

    def run(which: str, band_from: int) -> None:
        local.BAND_FROM = band_from
        train = load(path, Communicator())["train"]
        options = RidgeOptions(partitions=partitions, sigma=sigmas, lam=lams)
        begun = time.perf_counter()
        fits[which] = RidgeTask.train(METHOD, train, options, Communicator())
        print(f"  {which}: {time.perf_counter() - begun:.1f} s", flush=True)

    usual = local.BAND_FROM
    rivals = {"shared": lambda: run("shared", usual), "500 Cholesky": lambda: run("500 Cholesky", 1 << 30)}
    results = race(rivals, rounds, retries=2, warm=False)
    kept = show(f"{name}, {partitions} parts, 50 lambdas x 10 sigmas", results, "shared", "500 Cholesky", 1 / 3)
    errors = [np.array([row["validation_mse"] for row in one.grid], float) for one in fits.values()]
    both = np.isfinite(errors[0]) & np.isfinite(errors[1])
    apart = float(np.max(np.abs(errors[0] - errors[1])[both] / errors[1][both]))
    pairs = {which: (one.model.sigma, one.model.lam) for which, one in fits.items()}
    print(f"  chosen {pairs}; errors of {both.sum()} of {both.size} pairs differ by at most {apart:.1e}, relative")
    return kept and len(set(pairs.values())) == 1 and apart < 1e-8


def main() -> None:
    """Run the benchmark; exit status 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--crossover", action="store_true", help="time one part with few and with many lambdas")
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--rows", type=int, nargs="+", default=[500, 1037, 2000, 4000, 8000])
    parser.add_argument(
        "--lambdas", type=int, nargs="+", default=[4, 6, 8, 12, 50], help="numbers of lambdas for --crossover"
    )
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    headline()
    if args.crossover:
        for m in args.rows:
            crossover(m, args.lambdas, args.rounds)
        return
    with tempfile.TemporaryDirectory() as folder:
        data, name = args.data, args.data.stem
        if data.is_dir():
            name = label(data, "cadata")
            data = native(data, "cadata", Path(folder) / "cadata.h5")
        sys.exit(0 if whole(data, name, args.partitions, args.rounds) else 1)


if __name__ == "__main__":
    main()
