"""Kriging beside PyKrige, GSTools and scikit-learn's Gaussian process, on the same points and with the same covariance.

python -m benchmarks kriging-peers [--points N ...] [--out FILE.json]        (pip install pykrige gstools)

Each package krigs in a process of its own, on all threads. "gap" is the largest difference of its means from ours,
relative to the largest mean; "std gap" likewise for standard deviations of the field. "ours" factors the dense matrix;
"ours, tapered" and "ours, wendland2" are other covariances, which need near points alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.race import headline, machine_rate
from benchmarks.results import Record, Results, table
from cacore.machine.memory import peak_rss_mib
from cakrr import Kriging

Array = NDArray[np.float64]
Answer = tuple[Array, Array]  # means, and standard deviations of the field without noise
RANGE, SILL, NUGGET = 0.1, 1.5, 0.05
PLACES = 2000


def problem(n: int) -> tuple[Array, Array, Array]:
    """Points, values and places to predict."""
    rng = np.random.default_rng(0)
    X, Q = rng.random((n, 2)), rng.random((PLACES, 2))
    y = np.sin(7 * X[:, 0]) * np.cos(5 * X[:, 1]) + 2.0 + np.sqrt(NUGGET) * rng.standard_normal(n)
    return X, y, Q


def pykrige(n: int) -> Answer:
    """Ordinary kriging by PyKrige."""
    from pykrige.ok import OrdinaryKriging

    X, y, Q = problem(n)
    parameters = {"psill": SILL, "range": 3 * RANGE, "nugget": NUGGET}
    made = OrdinaryKriging(*X.T, y, variogram_model="exponential", variogram_parameters=parameters)
    mean, variance = made.execute("points", *Q.T, backend="vectorized")
    return np.asarray(mean), np.sqrt(np.asarray(variance) - NUGGET)


def gstools(n: int) -> Answer:
    """Ordinary kriging by GSTools, with an inverse in place of its pseudo-inverse."""
    import gstools as gs

    X, y, Q = problem(n)
    model = gs.Exponential(dim=2, var=SILL, len_scale=RANGE, nugget=NUGGET)
    mean, variance = gs.krige.Ordinary(model, X.T, y, pseudo_inv=False)(Q.T)
    return mean, np.sqrt(variance - NUGGET)


def scikit_learn(n: int) -> Answer:
    """Simple kriging around the mean of the values by scikit-learn."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern

    X, y, Q = problem(n)
    kernel = ConstantKernel(SILL) * Matern(RANGE, nu=0.5)
    made = GaussianProcessRegressor(kernel, alpha=NUGGET, optimizer=None).fit(X, y - y.mean())
    mean, std = made.predict(Q, return_std=True)
    return mean + y.mean(), std


def ours(n: int, drift: str = "constant", solver: str = "cholesky", **more: object) -> Answer:
    """Kriging by this package."""
    X, y, Q = problem(n)
    shift = y.mean() if drift == "none" else 0.0
    given: Record = {"kernel": "laplacian", "range": RANGE, "sill": SILL, "nugget": NUGGET, **more}
    made = Kriging(drift=drift, solver=solver, random_state=0, **given).fit(X, y - shift)
    mean, std = made.predict(Q, return_std=True)
    return mean + shift, np.sqrt(std**2 - NUGGET)


def ours_simple(n: int) -> Answer:
    """Simple kriging by this package."""
    return ours(n, drift="none")


def ours_tapered(n: int) -> Answer:
    """The kernel times a Wendland function whose radius holds 100 points."""
    return ours(n, solver="cg", taper=float(np.sqrt(100 / n / np.pi)))


def ours_wendland(n: int) -> Answer:
    """A kernel that ends at a radius that holds 100 points."""
    return ours(n, solver="cg", kernel="wendland2", range=float(np.sqrt(100 / n / np.pi)))


RIVALS: dict[str, tuple[Callable[[int], Answer], int, str]] = {  # most points; name of the answer to compare with
    "ours": (ours, 10_000, ""), "ours, simple": (ours_simple, 10_000, ""),
    "PyKrige": (pykrige, 10_000, "ours"), "GSTools": (gstools, 10_000, "ours"),
    "scikit-learn": (scikit_learn, 10_000, "ours, simple"),
    "ours, tapered": (ours_tapered, 1_000_000, ""), "ours, wendland2": (ours_wendland, 1_000_000, ""),
}  # fmt: skip


def _measured(rival: str, n: int) -> tuple[Answer, Record]:
    work = RIVALS[rival][0]
    work(200)  # compile and import
    before, begun, used = machine_rate(), time.perf_counter(), time.process_time()
    found = work(n)
    return found, {
        "seconds": time.perf_counter() - begun, "processor": time.process_time() - used,
        "peak GiB": peak_rss_mib() / 1024, "GFLOP/s": before,
    }  # fmt: skip


def main() -> None:
    """Run the benchmark, print the table, and write the records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", nargs="+", type=int, default=[2_500, 10_000, 100_000, 1_000_000])
    parser.add_argument("--out", type=Path, default=Path("kriging-peers.json"))
    args = parser.parse_args()
    headline()
    results, context = Results("kriging-peers"), multiprocessing.get_context("spawn")
    for n in args.points:
        answers: dict[str, Answer] = {}
        for rival, (_, most, reference) in RIVALS.items():
            if n > most:
                continue
            one: Record = {"package": rival, "points": n}
            try:
                with ProcessPoolExecutor(1, mp_context=context) as pool:
                    answers[rival], facts = pool.submit(_measured, rival, n).result()
                one |= facts
            except (BrokenProcessPool, MemoryError, ModuleNotFoundError) as error:
                one["ended"] = str(error)
            if reference and rival in answers:
                (mean, std), (want, deviation) = answers[rival], answers[reference]
                one["gap"] = float(np.abs(mean - want).max() / np.abs(want).max())
                one["std gap"] = float(np.abs(std - deviation).max() / deviation.max())
            results.add(**one)
            results.save(args.out)
            print(one, flush=True)
    columns = {"package": "", "points": ",", "seconds": ".3g", "processor": ".3g", "peak GiB": ".2f", "gap": ".1e",
               "std gap": ".1e"}  # fmt: skip
    print(table(results.records, columns))


if __name__ == "__main__":
    main()
