"""Fair timing of rivals on a machine whose speed varies."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.results import record

_SLOW = 0.8  # share of the best rate below which a round is repeated
QUIET, TRIES = 0.1, 3  # cores that others may use in a valid run; maximum number of tries per run
_A = np.random.default_rng(0).random((1500, 1500))


def machine_rate() -> float:
    """Current GFLOP/s of a short matrix product."""
    begun = time.perf_counter()
    for _ in range(3):
        _A @ _A
    return 3 * 2 * len(_A) ** 3 / (time.perf_counter() - begun) / 1e9


def copy_rate() -> float:
    """Current GB/s read and written by a short copy."""
    source = np.zeros(1 << 23)
    target = np.empty_like(source)
    target[:] = source  # touches the memory
    begun = time.perf_counter()
    for _ in range(3):
        target[:] = source
    return 3 * 2 * source.nbytes / (time.perf_counter() - begun) / 1e9


@dataclass
class Result:
    """Seconds of each round of one rival, and the rates of the machine around them."""

    seconds: list[float]
    rates: list[float]

    @property
    def median(self) -> float:
        """Median of the valid rounds."""
        return statistics.median(self.seconds)


def race(
    rivals: dict[str, Callable[[], object]], rounds: int = 5, retries: int = 6, warm: bool = True
) -> dict[str, Result]:
    """Run the rivals in turn, `rounds` times each.

    A matrix product before and after each timing measures the speed of the machine. A round at less than 0.8 of the
    best rate so far is repeated, at most `retries` times in all. With `warm`, each rival runs once before.
    """
    for work in rivals.values() if warm else ():
        work()  # compile, and touch the memory
    best = max(machine_rate() for _ in range(3))
    results = {name: Result([], []) for name in rivals}
    for _ in range(rounds):
        for name, work in rivals.items():
            while True:
                before = machine_rate()
                begun = time.perf_counter()
                work()
                seconds = time.perf_counter() - begun
                rate = min(before, machine_rate())
                best = max(best, before)
                if rate >= _SLOW * best or retries <= 0:
                    break
                retries -= 1
            results[name].seconds.append(seconds)
            results[name].rates.append(rate)
    return results


def show(title: str, results: dict[str, Result], ours: str, peer: str, allowed: float) -> bool:
    """Print the rounds, and the ratio ours / peer; return True if it is at most `allowed`."""
    print(f"\n{title}")
    for name, result in results.items():
        print(
            f"  {name:<34} median {result.median:8.4f} s  "
            f"({min(result.seconds):.4f} to {max(result.seconds):.4f}; machine {min(result.rates):.0f} GFLOP/s or more)"
        )
    keep(title, results, peer)
    ratio = results[ours].median / results[peer].median
    verdict = "kept" if ratio <= allowed else "NOT KEPT"
    print(f"  ratio {ours} / {peer} = {ratio:.2f}, allowed {allowed:.2f}: {verdict}")
    return ratio <= allowed


def keep(title: str, results: dict[str, Result], peer: str, **more: dict[str, float]) -> None:
    """Add a race to the benchmark's records; `more` maps names to further measurements of each rival."""
    for name, result in results.items():
        besides = {what: values[name] for what, values in more.items() if name in values}
        record(race=title, rival=name, peer=peer, seconds=result.median, **besides)


def others(work: Callable[[], float]) -> tuple[float, float]:
    """Result of `work`, which runs other processes, and the number of cores that unrelated programs used meanwhile.

    The latter is the use in /proc/stat minus the processor time of the processes that `work` waited for; NaN without
    such a file.
    """
    stat, before, begun, ours = Path("/proc/stat"), _used(), time.perf_counter(), _children()
    found = work()
    if not stat.exists():
        return found, float("nan")
    return found, max(0.0, (_used() - before - (_children() - ours)) / (time.perf_counter() - begun))


def least(work: Callable[[], float], repeats: int, quiet: float = QUIET) -> tuple[float, float]:
    """Smallest time of `repeats` runs, and the number of cores that others used meanwhile.

    Runs in which others used more than `quiet` cores are repeated, but at most `TRIES` times as many runs are made.
    """
    runs: list[tuple[float, float]] = []
    while len(runs) < TRIES * repeats and sum(not busy > quiet for _, busy in runs) < repeats:
        runs.append(others(work))
    return min([run for run in runs if not run[1] > quiet] or runs)


def _used() -> float:
    """Seconds since boot that all cores were busy, or that the host took from them."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _idle, _io, irq, soft, steal = map(int, stat.read_text().split("\n")[0].split()[1:9])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def _children() -> float:
    """Processor time of this process and of the children it waited for."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


def headline() -> None:
    """Print the machine and its speed."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    rates = ", ".join(f"{machine_rate():.0f}" for _ in range(3))
    print(f"{platform.processor() or platform.machine()}, {cores} cores, matrix product {rates} GFLOP/s (float64)")
