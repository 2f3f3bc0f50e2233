"""Kriging of fields of known covariance: errors beside the theory, seconds and memory against points, virtual ranks.

python -m benchmarks kriging [--only defaults|windows|counts|errors|estimates|time|ranks|draws ...] [--points N ...]
    [--neighbours K] [--cells 150x100] [--scene-ranges R ...] [--seeds S ...]

Fields are made by circulant embedding (benchmarks/gaussian_fields.py), with a Wendland kernel whose radius holds K
points on average. "errors" compares prediction errors with the kriging variance, and that one with a dense solution of
the nearest points. "estimates" compares estimated parameters with the true ones. "time" runs each number of points in a
process of its own. "ranks" times an iteration on virtual ranks. "draws" times conditional simulation.

"defaults" krigs with default options what clouds hide of a grid (--cells), beside an oracle: simple kriging with the
true covariance, drift and amplitude from 200 points per place. The field has an exponential covariance, of a range in
units of the longer side, noise, a linear drift, and an amplitude that varies by 20 %. "windows" compares numbers of
neighbours with the true parameters. "counts" does so for counts and presence of up to 10,000 --points, whose latent
field has an exponential covariance of these ranges, and fits all parameters as well.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial import cKDTree
from scipy.special import expit

from benchmarks.cluster.programs import least
from benchmarks.cluster.timeline import replay
from benchmarks.cluster.trace import Trace
from benchmarks.cluster.world import World
from benchmarks.gaussian_fields import FieldData, Scene, observed, scene
from benchmarks.race import copy_rate, headline, machine_rate
from benchmarks.results import Record, Results, table
from benchmarks.scaling import keep_memory
from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.kernels import Kernel
from cacore.machine import threads
from cacore.machine.memory import peak_rss_mib
from cakernels.plan.machine import PRESETS
from cakriging import Kriging
from cakriging.estimation import CRITERIA
from cakriging.kriging_method import METHOD
from cakriging.kriging_system import NearSystem
from cakriging.near_matrix import Correlation
from cakriging.options import KrigingOptions
from cakriging.space import Field, PointColumns
from cakriging.windows import Windows

Array = NDArray[np.float64]
PARTS = ("defaults", "windows", "counts", "errors", "estimates", "time", "ranks", "draws")
PLACES = 50_000  # to predict
TURNS = 25  # solutions on virtual ranks
NEAREST, CHECKED = 500, 100  # points of a dense solution, and places where there is one


def correlation_of(kind: str, n: int, d: int, neighbours: float) -> Correlation:
    """A Wendland kernel whose radius holds so many of n points in the unit cube, on average."""
    ball = math.pi ** (d / 2) / math.gamma(d / 2 + 1)
    return Correlation(Kernel(kind).with_sigma((neighbours / n / ball) ** (1 / d)))


def theory(data: FieldData, correlation: Correlation, nugget: float) -> Array:
    """Standard deviations of new values at the first places to predict, by a dense solution of the nearest points."""
    found, tree = np.empty(CHECKED), cKDTree(data.X)
    for i, place in enumerate(data.Q[:CHECKED]):
        near = np.ascontiguousarray(data.X[tree.query(place, NEAREST)[1]])
        factor = cho_factor(correlation.matrix(near, near) + nugget * np.eye(NEAREST))
        k, ones = correlation.matrix(near, place[None])[:, 0], np.ones(NEAREST)
        gap = 1.0 - k @ cho_solve(factor, ones)
        found[i] = 1.0 + nugget - k @ cho_solve(factor, k) + gap**2 / (ones @ cho_solve(factor, ones))
    return np.sqrt(found)


def errors(points: list[int], neighbours: float) -> Iterator[Record]:
    """Errors and intervals, with the true parameters."""
    cases = [(n, 2, "wendland2", nugget, gaps) for n in points for nugget, gaps in ((0.1, 0), (0.001, 0), (0.01, 200))]
    cases += [(n, 3, "wendland4", 0.01, 0) for n in points if n <= 10**6]
    for n, d, kind, nugget, gaps in cases:
        correlation = correlation_of(kind, n, d, neighbours)
        data = observed(correlation, n, PLACES, d, nugget, 1, gaps)
        known: Record = {"range": 1.0 / correlation.kernel.gamma, "sill": 1.0, "nugget": nugget}
        begun, used = time.perf_counter(), time.process_time()
        model = Kriging(kernel=kind, solver="cg", random_state=0, **known).fit(data.X, data.y)
        seconds, used = time.perf_counter() - begun, time.process_time() - used
        mean, std = model.predict(data.Q, return_std=True)
        error, exact = data.truth - mean, theory(data, correlation, nugget)
        yield {
            "points": len(data.X), "d": d, "kernel": kind, "nugget": nugget, "clouds": gaps,
            "rmse": float(np.sqrt(np.mean(error**2))),
            "over the theory": float(np.sqrt(np.mean(error**2) / np.mean(std**2))),
            "std over dense": float(np.max(std[:CHECKED] / exact)), "at least": float(np.min(std[:CHECKED] / exact)),
            "coverage": float(np.mean(np.abs(error) < 1.959964 * std)), "iterations": model.n_iter_,
            "residual": model.residual_, "seconds": seconds, "processor": used,
        }  # fmt: skip


ORACLE = (100, 50, 50)  # points of an oracle's windows
TRIED = ((30,), (60,), (150,), (30, 15), (30, 15, 15), (60, 30, 30))  # of windows


def oracle(data: Scene, kernel: Kernel, nugget: float, counts: tuple[int, ...]) -> tuple[Array, Array]:
    """Means and standard deviations of values under clouds, by all that the field was made of.

    From windows of these numbers of points, see :class:`cakriging.windows.Windows`.
    """
    here, there = data.amplitude(data.X), data.amplitude(data.Q)
    residual = (data.y - data.drift(data.X)) / here
    place = np.random.default_rng(0).permutation(len(data.X))
    points = PointColumns(data.X, nugget / here**2, place, residual[:, None])
    near = Windows(Field.spread(points, math.inf, Communicator()), Correlation(kernel), counts, 1 << 40)
    sums, explained = near.predict(data.Q)
    return data.drift(data.Q) + there * sums[:, 0], np.sqrt(there**2 * (1.0 - explained) + nugget)


def _scored(data: Scene, mean: Array, std: Array) -> tuple[float, float]:
    """Root mean square error, and coverage of 95 % intervals."""
    error = data.truth - mean
    return float(np.sqrt(np.mean(error**2))), float(np.mean(np.abs(error) < 1.959964 * std))


def defaults(shape: tuple[int, int], ranges: list[float], seeds: list[int], nuggets: list[float]) -> Iterator[Record]:
    """Errors and intervals with default options, beside the oracle's."""
    for length, nugget, seed in itertools.product(ranges, nuggets, seeds):
        kernel = Kernel("laplacian").with_sigma(length)
        data = scene(kernel, shape, nugget, seed)
        best, best_coverage = _scored(data, *oracle(data, kernel, nugget, ORACLE))
        used = time.process_time()
        model = Kriging(random_state=0).fit(data.X, data.y)
        fitted = time.process_time() - used
        rmse, coverage = _scored(data, *model.predict(data.Q, return_std=True))
        yield {
            "points": len(data.X), "range": length, "nugget": nugget, "seed": seed, "oracle": best,
            "rmse over the oracle's": rmse / best, "coverage": coverage, "oracle's coverage": best_coverage,
            "kernel": model.model_.kernel.kind, "functions of the drift": len(model.beta_),
            "solver": str(model.solver_["solver"]), "estimated range": model.range_,
            "estimated nugget": model.nugget_, "left out": model.left_out_["rmse"], "fit, processor": fitted,
            "all, processor": time.process_time() - used,
        }  # fmt: skip


def windows(shape: tuple[int, int], ranges: list[float], seeds: list[int], nuggets: list[float]) -> Iterator[Record]:
    """Errors of the true covariance with few neighbours."""
    for length, nugget, seed in itertools.product(ranges, nuggets, seeds):
        kernel = Kernel("laplacian").with_sigma(length)
        data = scene(kernel, shape, nugget, seed)
        many = _scored(data, *oracle(data, kernel, nugget, ORACLE))[0]
        few = {str(m): _scored(data, *oracle(data, kernel, nugget, m))[0] / many for m in TRIED}
        yield {"points": len(data.X), "range": length, "nugget": nugget, "seed": seed, "oracle": many, **few}


LATENT = 1500, -1.0  # places to predict, and the mean of the logarithm of the rate
DENSE = 4096  # most points of a dense system


def counts(points: list[int], ranges: list[float], seeds: list[int]) -> Iterator[Record]:
    """Errors of the latent field of counts: the true covariance with few neighbours and with all, and estimates."""
    for n, length, seed in itertools.product(points, ranges, seeds):
        q, mean = LATENT
        rng = np.random.default_rng(seed)
        Z = rng.random((n + q, 2))
        covariance = Correlation(Kernel("laplacian").with_sigma(length)).matrix(Z, Z)
        field = np.linalg.cholesky(covariance + 1e-10 * np.eye(n + q)) @ rng.standard_normal(n + q)
        truth = {"kernel": "laplacian", "range": length, "sill": 1.0, "nugget": 0.0}
        ways: dict[str, dict[str, Any]] = {f"{K}": truth | {"neighbours": K} for K in (30, 60, 120)}
        if n <= DENSE:
            ways["all"] = truth | {"solver": "cholesky"}
        ways["60, estimated"] = {"kernel": "laplacian", "neighbours": 60}
        samples = {"poisson": rng.poisson(np.exp(field + mean)), "binomial": rng.binomial(1, expit(field))}
        for (likelihood, y), (way, options) in itertools.product(samples.items(), ways.items()):
            used = time.process_time()
            model = Kriging(likelihood=likelihood, random_state=0, **options).fit(Z[:n], y[:n].astype(float))
            fitted = time.process_time() - used
            latent, std = model.model_.latent(Z[n:])
            error = latent - field[n:] - (mean if likelihood == "poisson" else 0.0)
            yield {
                "points": n, "range": length, "seed": seed, "likelihood": likelihood, "neighbours": way,
                "latent rmse": float(np.sqrt(np.mean(error**2))),
                "coverage": float(np.mean(np.abs(error) < 1.959964 * std)), "estimated range": model.range_,
                "fit, processor": fitted, "all, processor": time.process_time() - used,
            }  # fmt: skip


def estimates(points: list[int], neighbours: float) -> Iterator[Record]:
    """Estimates by likelihood and by left-out blocks over the true parameters, for several seeds."""
    for n, nugget in itertools.product(points, (0.1, 0.3)):
        correlation = correlation_of("wendland2", n, 2, neighbours)
        for seed in range(3):
            data = observed(correlation, n, 1000, 2, nugget, seed)
            for by in CRITERIA:
                begun = time.process_time()
                model = Kriging(kernel="wendland2", solver="cg", random_state=seed, estimation=by).fit(data.X, data.y)
                yield {
                    "points": n, "estimation": by, "nugget": nugget, "seed": seed,
                    "range, ratio": model.range_ * correlation.kernel.gamma, "sill, ratio": model.sill_,
                    "nugget, ratio": model.nugget_ / nugget, "processor": time.process_time() - begun,
                }  # fmt: skip


def _timed(path: str, kind: str, radius: float, nugget: float, workers: int, limit: int) -> Record:
    """Fit in this process, and predict a tenth as many places with standard deviations."""
    threads.set_threads(workers)
    warm = np.random.default_rng(0).random((3000, 2))
    known: Record = {"kernel": kind, "sill": 1.0, "nugget": nugget, "solver": "cg", "memory_limit": limit}
    small = KrigingOptions(range=0.1, **known)
    METHOD(Dataset(warm.copy(), warm[:, 0].copy(), len(warm)), small).model.predict_std(warm, variance="local")
    with np.load(path) as file:
        X, y, Q = file["X"], file["y"], file["Q"]
    before = machine_rate()
    begun, used = time.perf_counter(), time.process_time()
    fitted = METHOD(Dataset(X, y, len(X)), KrigingOptions(range=radius, **known))
    seconds, used = time.perf_counter() - begun, time.process_time() - used
    peak = peak_rss_mib() / 1024
    begun, asked = time.perf_counter(), time.process_time()
    fitted.model.predict_std(Q)
    asked_seconds, asked = time.perf_counter() - begun, time.process_time() - asked
    facts = fitted.solver
    return {
        "points": fitted.model.n, "near": facts["pairs_per_point"], "kept": str(facts["pairs_kept"]),
        "iterations": facts["iterations"][0],
        "residual": fitted.residual, "seconds": seconds, "processor": used, "places": len(Q),
        "predict, seconds": asked_seconds, "predict, processor": asked, "peak GiB": peak,
        "GFLOP/s": before, "GFLOP/s after": machine_rate(), "GB/s": copy_rate(),
    }  # fmt: skip


def timed(points: list[int], neighbours: float, workers: int, limit: int) -> Iterator[Record]:
    """Seconds and peak memory, each number of points in a process of its own."""
    for n in points:
        correlation = correlation_of("wendland2", n, 2, neighbours)
        with tempfile.TemporaryDirectory() as folder:
            data = observed(correlation, n, n // 10, 2, 0.01, 0)
            path = str(Path(folder) / "field.npz")
            np.savez(path, X=data.X, y=data.y, Q=data.Q)
            del data
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                yield pool.submit(_timed, path, "wendland2", correlation.reach, 0.01, workers, limit).result()


def iteration(n: int, ranks: int, neighbours: float, network: str) -> Record:
    """Seconds of an iteration on virtual ranks; of each computation, the least over all iterations and turns counts."""
    correlation = correlation_of("wendland2", n, 2, neighbours)
    X = np.random.default_rng(0).random((n, 2))
    found: list[Any] = [None] * ranks

    def work(comm: Communicator) -> None:
        lo, hi = n * comm.rank // comm.size, n * (comm.rank + 1) // comm.size
        given = PointColumns(X[lo:hi], np.full(hi - lo, 0.01), np.arange(lo, hi), X[lo:hi, :1].copy())
        near = Field.spread(given, correlation.reach, comm)
        system = NearSystem(near, near.points.noise, correlation, 30, 1 << 40)
        B = np.ascontiguousarray(near.points.values[: near.n_owned].T)
        for turn in range(TURNS):
            system.iterations = 0
            with comm.phase(f"turn {turn}"):
                system.solve(B, 1e-6)
        found[comm.rank] = (system.iterations, near.n_owned, system.facts())

    traces = World(ranks).run(work)
    runs: list[list[Trace]] = []
    for turn in range(1, TURNS):  # the first one compiles and touches the memory
        parts = [_iterations([step for step in trace if step.phase == f"turn {turn}"], found[0][0]) for trace in traces]
        runs += [list(run) for run in zip(*parts, strict=True)]
    kept = least(runs)
    products = 10
    line = replay([trace * products for trace in kept], PRESETS[network])
    return {
        "ranks": ranks, "points": n, "iterations": found[0][0], "seconds": line.end / products,
        "computing": max(sum(step.seconds for step in trace) for trace in kept),
        "mean computing": sum(sum(step.seconds for step in trace) for trace in kept) / ranks,
        "largest region": max(own for _, own, _ in found) * ranks / n,
        "bytes per iteration": found[0][2]["halo_bytes_per_iteration"],
        "messages per iteration": found[0][2]["halo_messages_per_iteration"],
    }  # fmt: skip


def _iterations(trace: Trace, count: int) -> list[Trace]:
    """The steps of each of a solution's iterations but the first; on one rank, all of them have one step."""
    if len(trace) == 1:
        return [[replace(trace[0], seconds=trace[0].seconds / (count + 1))]]
    # A norm first; the residual takes one more product and preconditioner at the end.
    length = (len(trace) - 2) // (count + 1)
    return [trace[1 + k * length : 1 + (k + 1) * length] for k in range(1, count)]


def on_ranks(weak: int, strong: int, ranks: list[int], neighbours: float, network: str) -> Iterator[Record]:
    """Weak and strong scaling of an iteration; efficiencies relative to the fewest ranks."""
    for kind, size in (("weak", weak), ("strong", strong)):
        first: Record = {}
        for R in ranks if kind == "weak" else [1, *(R for R in ranks if R <= 64)]:
            one = iteration(size * R if kind == "weak" else size, R, neighbours, network)
            first = first or one
            more = 1.0 if kind == "weak" else one["ranks"] / first["ranks"]
            yield {"scaling": kind, **one, "efficiency": first["seconds"] / one["seconds"] / more}


def draws(points: list[int], neighbours: float) -> Iterator[Record]:
    """Seconds of conditional simulation at a tenth as many places."""
    for n in points:
        correlation = correlation_of("wendland2", n, 2, neighbours)
        data = observed(correlation, n, n // 10, 2, 0.01, 0)
        model = Kriging(kernel="wendland2", range=correlation.reach, sill=1.0, nugget=0.01, solver="cg", random_state=0)
        model.fit(data.X, data.y).simulate(data.Q[:10])
        begun, used = time.perf_counter(), time.process_time()
        found = model.simulate(data.Q, 4)
        yield {
            "points": n, "places": len(data.Q), "draws": len(found), "seconds": time.perf_counter() - begun,
            "processor": time.process_time() - used,
            "error over the theory": float(np.sqrt(np.mean((found + 0.0 - data.truth) ** 2) / _twice(model, data))),
        }  # fmt: skip


def _twice(model: Kriging, data: FieldData) -> float:
    """Mean squared difference of a draw and a new value, by theory: the variance of both, given the values."""
    _, std = model.predict(data.Q, return_std=True)
    return float(np.mean(2 * std**2 - model.nugget_))


def main() -> None:
    """Run the benchmark, print tables, and write the records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--points", nargs="+", type=lambda word: int(float(word)), default=[10**5, 10**6])
    parser.add_argument("--neighbours", type=float, default=40.0)
    parser.add_argument("--ranks", nargs="+", type=int, default=[4, 16, 64, 256])
    parser.add_argument("--rows", type=int, default=15_625, help="points per rank of weak scaling")
    parser.add_argument("--cells", type=lambda word: tuple(map(int, word.split("x"))), default=(150, 100))
    parser.add_argument("--scene-ranges", nargs="+", type=float, default=[0.02, 0.1, 0.3, 0.6])
    parser.add_argument("--scene-nuggets", nargs="+", type=float, default=[0.05])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--network", choices=PRESETS, default="aries")
    parser.add_argument("--memory", type=float, default=9.0, help="GiB that a fit may use")
    parser.add_argument("--threads", type=int, default=threads.available())
    parser.add_argument("--out", type=Path, default=Path("kriging.json"))
    args = parser.parse_args()
    threads.set_threads(args.threads)
    headline()
    results = Results("kriging")
    scenes = args.cells, args.scene_ranges, args.seeds, args.scene_nuggets
    for part in args.only:
        if part == "ranks":
            threads.set_threads(1)
            keep_memory()
        made = {
            "defaults": lambda: defaults(*scenes),
            "windows": lambda: windows(*scenes),
            "counts": lambda: counts([n for n in args.points if n <= 10_000] or [3500], args.scene_ranges, args.seeds),
            "errors": lambda: errors(args.points, args.neighbours),
            "estimates": lambda: estimates(args.points, args.neighbours),
            "time": lambda: timed(args.points, args.neighbours, args.threads, int(args.memory * 2**30)),
            "ranks": lambda: on_ranks(args.rows, 10**6, args.ranks, args.neighbours, args.network),
            "draws": lambda: draws(args.points, args.neighbours),
        }[part]()
        found = []
        for one in made:
            found.append(one)
            results.add(part=part, **one)
            results.save(args.out)
            print(part, one, flush=True)
        print(table(found, {name: ".4g" if isinstance(value, float) else "" for name, value in found[0].items()}))


if __name__ == "__main__":
    main()
