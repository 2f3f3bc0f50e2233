"""Extrapolation to more ranks than can run here: quantities that grow with R are fitted to the existing runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.optimize

from benchmarks.cluster.costs import collective, summary
from benchmarks.cluster.trace import Trace, collectives
from cakernels.plan.machine import Network

# In case of ties, the first. The maximum over R random loads grows as the logarithm.
GROWTHS: tuple[Callable[[Any], Any], ...] = (np.log2, np.sqrt, np.asarray)


@dataclass
class Load:
    """The load of a phase on its ranks.

    Attributes
    ----------
    compute : float
        Seconds of the busiest rank.
    calls : dict of str to (count, most, total)
        For each collective call, the number of calls, and the means of the results of :func:`summary`.
    """

    compute: float = 0.0
    calls: dict[str, tuple[float, float, float]] = field(default_factory=dict)

    def seconds(self, network: Network, R: int) -> float:
        """Seconds of the phase on a network, assuming that the ranks wait for the busiest one once."""
        sent = sum(n * collective(network, call, R, most, total) for call, (n, most, total) in self.calls.items())
        return self.compute + sent


def loads(traces: list[Trace]) -> dict[str, Load]:
    """Load of each phase of a run, without point-to-point messages."""
    found: dict[str, Load] = defaultdict(Load)
    for trace in traces:
        mine: dict[str, float] = defaultdict(float)
        for step in trace:
            mine[step.phase] += step.seconds
        for phase, seconds in mine.items():
            found[phase].compute = max(found[phase].compute, seconds)
    sums: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for steps in collectives(traces):
        phase, call = steps[0].phase, steps[0].call
        sums[phase, call].append(summary(call, [step.sizes for step in steps]))
    for (phase, call), each in sums.items():
        most, total = np.mean(each, axis=0)
        found[phase].calls[call] = (float(len(each)), float(most), float(total))
    return dict(found)


def at(runs: dict[int, dict[str, Load]], R: int) -> dict[str, Load]:
    """Loads of R ranks, extrapolated from runs on fewer ranks by :func:`fitted`."""
    sizes = sorted(runs)
    found = {}
    for phase in dict.fromkeys(phase for run in runs.values() for phase in run):
        each = [runs[size].get(phase, Load()) for size in sizes]
        found[phase] = Load(fitted(sizes, [load.compute for load in each], R))
        for call in dict.fromkeys(call for load in each for call in load.calls):
            columns = zip(*(load.calls.get(call, (0.0, 0.0, 0.0)) for load in each), strict=True)
            n, most, total = (fitted(sizes, list(values), R) for values in columns)
            found[phase].calls[call] = (n, most, total)
    return found


def fitted(sizes: list[int], values: list[float], R: int) -> float:
    """Value at R of the best fit a + b f(R) by relative errors, with a, b >= 0 and f among `GROWTHS`."""
    value, size = np.array(values), np.array(sizes, np.float64)
    if not value.any():
        return 0.0
    weight = 1.0 / np.maximum(value, value.max() * 1e-3)

    def curve(growth: Callable[[Any], Any]) -> tuple[float, float]:
        (a, b), gap = scipy.optimize.nnls(np.column_stack([weight, weight * growth(size)]), weight * value)
        return gap, float(a + b * growth(float(R)))

    return min((curve(growth) for growth in GROWTHS), key=lambda one: one[0])[1]
