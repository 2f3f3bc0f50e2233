"""Timing rivals fairly on a machine that has slow minutes."""

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

_SLOW = 0.8  # of the best rate seen
QUIET, TRIES = 0.1, 3  # cores that others may use in a run that counts; runs for each one that is wanted
_A = np.random.default_rng(0).random((1500, 1500))


def machine_rate() -> float:
    """GFLOP/s of a short matrix product, now."""
    begun = time.perf_counter()
    for _ in range(3):
        _A @ _A
    return 3 * 2 * len(_A) ** 3 / (time.perf_counter() - begun) / 1e9


def copy_rate() -> float:
    """GB/s that a short copy reads and writes, now."""
    source = np.zeros(1 << 23)
    target = np.empty_like(source)
    target[:] = source  # touches the memory
    begun = time.perf_counter()
    for _ in range(3):
        target[:] = source
    return 3 * 2 * source.nbytes / (time.perf_counter() - begun) / 1e9


@dataclass
class Result:
    """Seconds of each round of one rival, and the machine's rate around them."""

    seconds: list[float]
    rates: list[float]

    @property
    def median(self) -> float:
        """Median of the rounds that counted."""
        return statistics.median(self.seconds)


def race(
    rivals: dict[str, Callable[[], object]], rounds: int = 5, retries: int = 6, warm: bool = True
) -> dict[str, Result]:
    """Run the rivals in turn, `rounds` times each.

    A matrix product before and after each timing tells how fast the machine was; a round in a slow
    moment (below 0.8 of the best rate seen) is run again, at most `retries` times in all. With `warm`
    each is run once before.
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
    """Print the rounds, and the ratio ours / peer against what is allowed; whether it is kept."""
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
    """Put a race among the benchmark's records; `more` maps a name to what was measured of each rival besides."""
    for name, result in results.items():
        besides = {what: values[name] for what, values in more.items() if name in values}
        record(race=title, rival=name, peer=peer, seconds=result.median, **besides)


def others(work: Callable[[], float]) -> tuple[float, float]:
    """What `work`, which runs other processes, says, and the cores that yet other programs used meanwhile.

    That is what /proc/stat counts as used, without the processor time of the processes that `work` has waited for; nan
    where there is no such file.
    """
    stat, before, begun, ours = Path("/proc/stat"), _used(), time.perf_counter(), _children()
    found = work()
    if not stat.exists():
        return found, float("nan")
    return found, max(0.0, (_used() - before - (_children() - ours)) / (time.perf_counter() - begun))


def least(work: Callable[[], float], repeats: int, quiet: float = QUIET) -> tuple[float, float]:
    """The least seconds of some runs, and the cores that others used meanwhile.

    Runs in which that is more than `quiet` do not count, unless the others never stop: at most `TRIES` times as many
    runs are made.
    """
    runs: list[tuple[float, float]] = []
    while len(runs) < TRIES * repeats and sum(not busy > quiet for _, busy in runs) < repeats:
        runs.append(others(work))
    return min([run for run in runs if not run[1] > quiet] or runs)


def _used() -> float:
    """Seconds that all cores have worked, or that the host took from them, since the machine started."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _idle, _io, irq, soft, steal = map(int, stat.read_text().split("\n")[0].split()[1:9])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def _children() -> float:
    """Processor time of this process and of those that it has waited for."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


def headline() -> None:
    """Say what machine this is."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    rates = ", ".join(f"{machine_rate():.0f}" for _ in range(3))
    print(f"{platform.processor() or platform.machine()}, {cores} cores, matrix product {rates} GFLOP/s (float64)")
