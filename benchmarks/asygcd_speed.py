"""Asy-GCD: its speed-up, and against Algorithm 14, PSCD and other SVM solvers (Figs. 4.1 to 4.3).

python -m benchmarks.asygcd_speed DATA_FOLDER [--only NAME ...] [--parts PART ...] [--threads T] [--plot FOLDER]

All solvers get the same rows in memory, the same tolerance, single-precision columns in caches of the same size, and
the same number of threads (LIBSVM has one). Compile time is excluded, and rounds alternate. A run that was stopped, or
missed its goal, counts as a bound, shown as ">". Alpha is copied while threads work, and evaluated by one function
afterwards. At most two caches are in memory at a time. "Cores" are processor seconds per second, since threads may have
to share a core for a while.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asygcd.solver.asygcd import UPDATES, AsyGCD, AsyGCDProgress, Limits
from benchmarks import svm_speed
from benchmarks.generated import label
from benchmarks.race import headline, machine_rate
from benchmarks.results import record
from benchmarks.svm_data import SETS, Problem
from cacore.kernels import Kernel
from cacore.machine.memory import GIB
from cacore.machine.threads import cores, for_blocks, set_threads
from casvm import SMOSVC

NAMES = ("ijcnn1", "covtype50k", "a9a")
PARTS = ("speedup", "atomic", "pscd", "rivals")
RIVALS = {"SMOSVC": "ours", "LIBSVM": "libsvm", "oneDAL 64": "oneDAL 64", "oneDAL 32": "oneDAL 32"}  # in svm_speed
GOAL = 1e-4  # relative error of the objective that Asy-GCD and PSCD race to
_RIVAL_GIB, _TEST = 4, 20_000  # GiB of cache for the others, as in svm_speed; maximum number of test rows
_GROWTH = 1.12  # factor between the times of two copies of alpha: about 60 copies in two minutes
_SLOW, _LONG = 0.8, 30.0  # a run at less than this share of the best rate is repeated, unless it is this long


@dataclass
class Took:
    """Seconds of one run: training, and blocks and packing before it; `done` is False if the run was stopped."""

    seconds: float
    blocks: float = 0.0
    done: bool = True
    cores: float = math.nan
    solution: Any = None  # a AsyGCDSolution of Asy-GCD
    accuracy: float = math.nan


@dataclass
class Curve:
    """Progress of one run over time; its alphas are evaluated after all runs."""

    seconds: list[float] = field(default_factory=list)
    alphas: list[NDArray[np.float64]] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)
    took: Took = field(default_factory=lambda: Took(0.0))
    objective: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    accuracy: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    def look(self, progress: AsyGCDProgress) -> None:
        """Store a copy of alpha from time to time."""
        self.looks.append(progress.seconds)
        if not self.seconds or progress.seconds >= _GROWTH * self.seconds[-1]:
            self.seconds.append(progress.seconds)
            self.alphas.append(progress.alpha())

    def error(self, best: float) -> NDArray[np.float64]:
        """Relative error of the objective."""
        return np.maximum((self.objective - best) / abs(best), 1e-12)

    def reached(self, best: float) -> Took:
        """Time at which the error fell below the goal, with its logarithm interpolated linearly between two copies."""
        falls, goal = -np.log(np.minimum.accumulate(self.error(best))), -math.log(GOAL)
        done = bool(falls[-1] > goal)
        right = self.accuracy[np.argmax(falls > goal) if done else -1]
        return Took(float(np.interp(goal, falls, self.seconds)), self.took.blocks, done, accuracy=right)


def _busy(until: float) -> None:
    while time.perf_counter() < until:
        np.ones((300, 300)) @ np.ones((300, 300))


def alternate(works: dict[str, Callable[[], Any]], rounds: dict[str, int], retries: int = 6) -> dict[str, list[Any]]:
    """Run the works in turn, as :func:`benchmarks.race.race` does, but return their own measurements."""
    worst = best = max(machine_rate() for _ in range(3))
    found: dict[str, list[Any]] = {name: [] for name in works}
    for k in range(max(rounds.values())):
        for name, work in works.items():
            while k < rounds[name]:
                before = machine_rate()
                # Wait until the spinning BLAS threads sleep, but keep the cores awake, since they wake slowly.
                for_blocks(_busy, [(time.perf_counter() + 0.2,)] * len(cores()))
                begun, result = time.perf_counter(), work()
                best, rate = max(best, before), min(before, machine_rate())
                if rate >= _SLOW * best or retries <= 0 or time.perf_counter() - begun > _LONG:
                    worst = min(worst, rate)
                    found[name].append(result)
                    break
                retries -= 1
    print(f"  ran {', '.join(works)}: machine {worst:.0f} GFLOP/s or more, {best:.0f} at best", flush=True)
    return found


@dataclass
class Trial:
    """One data set with its measurements; the run "owned 2" had two threads."""

    name: str
    problem: Problem
    args: argparse.Namespace
    runs: dict[str, list[Took]] = field(default_factory=dict)
    curves: dict[str, list[Curve]] = field(default_factory=dict)
    best: float = math.nan

    def __post_init__(self) -> None:
        self.kernel = Kernel("gaussian", self.problem.gamma)
        self.counts = [t for t in (1, 2, 3, 4, 8, 16, 32, 64) if t < self.args.threads] + [self.args.threads]

    def solver(self, update: str, threads: int, gib: float | None = None) -> AsyGCD:
        """A solver with empty caches."""
        return AsyGCD(self.problem.X, self.kernel, threads, int((gib or self.args.cache_gib) * GIB), update=update)

    def solve(
        self, solver: AsyGCD, watch: Callable[[AsyGCDProgress], None] | None = None, tol: float | None = None
    ) -> Took:
        """Train."""
        limits, begun = Limits(tol or self.args.tol, max_time=self.args.max_time), time.process_time()
        found = solver.solve(self.problem.y, np.full(len(self.problem.y), self.problem.C), limits, watch=watch)
        used = (time.process_time() - begun) / found.seconds
        return Took(found.seconds, solver.seconds, found.converged, used, found)

    def watched(self, update: str, threads: int, tol: float | None = None) -> Curve:
        """Train, and store copies of alpha during training."""
        curve = Curve()
        curve.took = self.solve(self.solver(update, threads), curve.look, tol)
        # Use the last look but one: before the last, PSCD computes the gradient, which is not part of the method.
        curve.seconds.append(max(curve.looks[-2:][0], curve.seconds[-1]))
        curve.alphas.append(curve.took.solution.alpha)
        return curve

    def reference(self) -> None:
        """Compute the reference objective."""
        curve = self.watched("owned", self.args.threads, 1e-6)
        self.runs["reference, tol 1e-6"] = [curve.took]
        self.curves["reference"] = [Curve(curve.seconds[-1:], curve.alphas[-1:], took=curve.took)]

    def speedup(self) -> None:
        """Run each number of threads with empty caches, and again with the caches that the first run filled."""

        def work(threads: int) -> tuple[Took, Took]:
            solver = self.solver("owned", threads)
            return self.solve(solver), self.solve(solver)

        works = {f"owned {t}": partial(work, t) for t in self.counts}
        for name, pairs in alternate(works, dict.fromkeys(works, self.args.rounds)).items():
            self.runs[name], self.runs[f"{name}, cached"] = (list(half) for half in zip(*pairs, strict=True))
        if self.args.plot:
            self.curves = {f"owned {t}": [self.watched("owned", t)] for t in self.counts} | self.curves

    def atomic(self) -> None:
        """Compare owned and atomic on all threads, with the caches that a first run filled."""
        most = self.args.threads
        solvers = {f"{update} {most}": self.solver(update, most) for update in ("owned", "atomic")}
        self.runs |= {f"{name}, filling": [self.solve(solver)] for name, solver in solvers.items()}
        works = {f"{name}, full": partial(self.solve, solver) for name, solver in solvers.items()}
        self.runs |= alternate(works, dict.fromkeys(works, self.args.rounds))
        del solvers, works  # frees the caches before others are allocated
        if self.args.plot:
            self.curves[f"atomic {most}"] = [self.watched("atomic", most)]

    def pscd(self) -> None:
        """Compare owned and PSCD on all threads, up to a relative error of the objective; see :meth:`judge`."""
        most = self.args.threads
        rounds = {f"owned {most}": self.args.rounds, f"stochastic {most}": self.args.slow_rounds}
        found = alternate({name: partial(self.watched, name.split()[0], most) for name in rounds}, rounds)
        self.curves |= found
        self.runs |= {f"{name}, watched": [curve.took for curve in curves] for name, curves in found.items()}

    def rivals(self) -> None:
        """Run other solvers, which have a bias term, so only seconds and accuracy can be compared."""
        models: dict[str, Any] = {}

        def other(name: str, make: Callable[[], Any], X: Any) -> Took:
            begun = time.perf_counter()
            models[name] = make().set_params(tol=self.args.tol).fit(X, self.problem.y)
            return Took(time.perf_counter() - begun)

        known = svm_speed.rivals(self.problem)
        known = {name: known[key] for name, key in RIVALS.items() if key in known and name in self.args.rivals}
        works: dict[str, Callable[[], Took]] = {name: partial(other, name, *known[name][:2]) for name in known}
        works["AsyGCD"] = lambda: self.solve(self.solver("owned", self.args.threads, _RIVAL_GIB))
        rounds = {name: self.args.slow_rounds if name == "LIBSVM" else self.args.rounds for name in works}
        found = alternate(works, rounds)
        for name, model in models.items():
            found[name][-1].accuracy = float(np.mean(model.predict(known[name][2]) == self.problem.yt))
        self.curves["AsyGCD"] = [Curve([0.0], [found["AsyGCD"][-1].solution.alpha], took=found["AsyGCD"][-1])]
        self.runs |= found

    def judge(self) -> None:
        """Compute objectives and accuracies of all alphas in double precision, in one pass over the kernel matrix."""
        curves = [curve for several in self.curves.values() for curve in several]
        alphas = np.stack([alpha for curve in curves for alpha in curve.alphas], axis=1)
        some = np.flatnonzero(alphas.any(axis=1))
        support = self.kernel.points(self.problem.X[some])
        beta = alphas[some] * self.problem.y[some, None]
        values = 0.5 * np.einsum("ij,ij->j", beta, self.kernel.apply(support, support, beta)) - alphas.sum(axis=0)
        decided = self.kernel.apply(self.kernel.points(self.problem.Xt, support), support, beta)
        right = np.mean((decided > 0) == (self.problem.yt > 0)[:, None], axis=0)
        ends = np.cumsum([len(curve.alphas) for curve in curves])[:-1]
        for curve, objective, accuracy in zip(curves, np.split(values, ends), np.split(right, ends), strict=True):
            curve.objective, curve.accuracy, curve.took.accuracy = objective, accuracy, float(accuracy[-1])
            curve.alphas.clear()
        self.best = float(values.min())
        above = self.curves["reference"][0].objective[0] - self.best
        print(f"  judged {alphas.shape[1]} alphas: lowest objective {self.best:.6f}, reference {above:.2g} above")
        for short in [name.removesuffix(", watched") for name in self.runs if name.endswith(", watched")]:
            self.runs[f"{short}, to {GOAL:g}"] = [curve.reached(self.best) for curve in self.curves[short]]


def middle(runs: list[Took], blocks: bool = False) -> float:
    """Median seconds of the runs."""
    return statistics.median(took.seconds + blocks * took.blocks for took in runs)


def sped(runs: list[Took]) -> float:
    """Median number of updates per second."""
    return statistics.median(took.solution.iterations / took.solution.seconds for took in runs)


def against(slow: list[Took], fast: list[Took], blocks: bool = False) -> tuple[float, str]:
    """Ratio of the seconds, slow / fast; with ">" or "<" if one of them was stopped, "?" if both were."""
    ended = all(took.done for took in slow), all(took.done for took in fast)
    sign = {(True, True): "", (False, True): ">", (True, False): "<", (False, False): "?"}[ended]
    return middle(slow, blocks) / middle(fast, blocks), sign


def ratios(trial: Trial) -> Iterator[tuple[str, tuple[float, str], float | None]]:
    """Yield each comparison: its name, the ratio, and the target."""
    runs, most = trial.runs, trial.args.threads
    for t in trial.counts[1:] if "owned 1" in runs else ():
        one, several, target = runs["owned 1"], runs[f"owned {t}"], 1.8 if t == most else None
        yield f"speed-up from 1 to {t} threads", against(one, several), target
        yield "  with blocks and packing", against(one, several, True), None
        yield "  columns cached", against(runs["owned 1, cached"], runs[f"owned {t}, cached"]), None
    if f"atomic {most}, full" in runs:
        atomic, owned = runs[f"atomic {most}, full"], runs[f"owned {most}, full"]
        yield "atomic / owned, columns cached", against(atomic, owned), 3.0
        yield "  owned / atomic, updates a second", (sped(owned) / sped(atomic), ""), None
    if f"stochastic {most}, to {GOAL:g}" in runs:
        pair = runs[f"stochastic {most}, to {GOAL:g}"], runs[f"owned {most}, to {GOAL:g}"]
        yield f"PSCD / owned, to an error of {GOAL:g}", against(*pair), 2.7
        yield "  with blocks and packing", against(*pair, True), None
    for rival in (name for name in RIVALS if name in runs):
        ratio = against(runs[rival], runs["AsyGCD"], True)
        yield f"{rival} / AsyGCD with blocks", ratio, 1.0 if rival == "LIBSVM" else None


def row(name: str, runs: list[Took]) -> str:
    """A line of the table for one run."""
    seconds, last = [took.seconds for took in runs], runs[-1]
    sign, spread = "" if all(took.done for took in runs) else ">", f"{min(seconds):.3f} to {max(seconds):.3f}"
    told = f"  {name:<24} {sign + format(middle(runs), '.3f'):>9} {spread:>20} {middle(runs, True):9.3f}"
    for value in (statistics.median(took.cores for took in runs), 100 * last.accuracy):
        told += f" {'' if math.isnan(value) else format(value, '.2f'):>8}"
    if last.solution is None:
        return told
    cache = zip(last.solution.hits, last.solution.misses, strict=True)
    counts = ", ".join(f"{hits:,} / {misses:,}" for hits, misses in cache)
    return f"{told} {last.solution.iterations:11,} {sped(runs):10,.0f}  {counts}"


def report(trial: Trial) -> None:
    """Print the table of all runs and the ratios; a ratio that is only a bound may leave a target undecided."""
    told = "median s                range  + blocks    cores right, %     updates   a second  hits / misses by thread"
    print(" " * 28 + told)
    for name, runs in trial.runs.items():
        print(row(name, runs))
    keep(trial)
    for what, (value, sign), target in ratios(trial):
        told = f"  {what:<34} {sign + format(value, '.2f'):>9}"
        if target is not None:
            kept, unknown = value >= target, sign == "?" or sign == (">" if value < target else "<")
            verdict = "not decided: raise --max-time" if unknown else "kept" if kept else "NOT KEPT"
            told += f"   at least {target:g}: {verdict}"
        print(told, flush=True)


def keep(trial: Trial) -> None:
    """Store records of the runs that finished, with Asy-GCD on all threads as the peer."""
    ended = {name: runs for name, runs in trial.runs.items() if all(took.done for took in runs)}
    peer = next((name for name in ("AsyGCD", f"owned {trial.args.threads}") if name in ended), "")
    for name, runs in ended.items() if peer else ():
        right = {} if math.isnan(runs[-1].accuracy) else {"accuracy": runs[-1].accuracy}
        record(race=trial.name, rival=name, peer=peer, seconds=middle(runs, True), **right)


def warm(problem: Problem, cache: float) -> None:
    """Compile everything, and touch and keep the memory that a cache will take."""
    # A virtual machine returns freed memory to its host within seconds, and needs 2 s per GiB to get it back.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for option, value in ((-4, 0), (-1, -1)) if mallopt else ():  # M_MMAP_MAX, M_TRIM_THRESHOLD: the heap never shrinks
        mallopt(option, value)
    np.empty(int(min(1.25 * cache * GIB, 8 * len(problem.X) ** 2 + GIB)) // 8)[::512] = 1.0
    few = np.random.default_rng(0).permutation(len(problem.X))[:3000]
    X, y = np.ascontiguousarray(problem.X[few]), problem.y[few]
    for update in UPDATES:
        solver = AsyGCD(X, Kernel("gaussian", problem.gamma), 2, GIB // 4, np.float32, update)
        solver.solve(y, np.ones(len(y)), Limits(max_time=5.0))
    SMOSVC(C=problem.C, gamma=problem.gamma).fit(X, y).predict(X[:10])


def main() -> None:
    """Run the requested parts, one data set after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder of the data sets")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rows", metavar="N", type=int, help="use only the first N training rows")
    parser.add_argument(
        "--threads", metavar="T", type=int, default=len(cores()), help="number of threads (default: one per core)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slow-rounds", type=int, default=1, help="rounds of PSCD and LIBSVM")
    parser.add_argument("--cache-gib", metavar="GIB", type=float, default=8.0)
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument(
        "--max-time", metavar="S", type=float, default=120.0, help="time limit for each run of Asy-GCD and PSCD"
    )
    parser.add_argument("--rivals", nargs="+", choices=RIVALS, default=list(RIVALS))
    parser.add_argument("--plot", metavar="FOLDER", type=Path, help="folder for Figs. 4.1 to 4.3")
    args = parser.parse_args()
    if args.plot is not None:
        from benchmarks.asygcd_figures import draw  # fail now if matplotlib is missing, not after an hour

        args.plot.mkdir(parents=True, exist_ok=True)
    set_threads(args.threads)
    headline()
    trials: list[Trial] = []
    for name in args.only:
        problem = SETS[name](args.data)
        problem.X, problem.y = problem.X[: args.rows], problem.y[: args.rows]
        some = np.random.default_rng(0).permutation(len(problem.yt))[:_TEST]
        problem.Xt, problem.yt = problem.Xt[some], problem.yt[some]
        shown = label(args.data, name)
        print(
            f"\n{shown}: {len(problem.X):,} x {problem.X.shape[1]}, C = {problem.C:g}, gamma = {problem.gamma:g};",
            end=" ",
        )
        print(f"{len(some):,} test rows, {args.threads} threads, cache {args.cache_gib:g} GiB (rivals {_RIVAL_GIB})")
        warm(problem, args.cache_gib)
        trials.append(Trial(shown, problem, args))
        for part in ("reference", *args.parts, "judge"):
            getattr(trials[-1], part)()
        report(trials[-1])
        if args.plot is not None:
            draw(trials, args.plot)


if __name__ == "__main__":
    main()
