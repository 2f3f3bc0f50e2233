"""The time of a search: its end, also by SIGTERM, and how the time of a training grows with its rows."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from cacore.comm import Communicator
from cacore.machine.clock import raising, working_time


class Terminated(KeyboardInterrupt):
    """The process was sent SIGTERM."""


class Budget:
    """The time that a search may take, by rank 0's clock.

    Parameters
    ----------
    seconds : float or None
        None for no limit.
    started : float or None
        Reading of :func:`time.perf_counter` at which the time began; None for now.
    """

    def __init__(self, seconds: float | None, started: float | None = None) -> None:
        self.seconds = seconds
        self._started = time.perf_counter() if started is None else started

    def spent(self, comm: Communicator) -> float:
        """Seconds since the beginning, the same on all ranks; collective."""
        with comm.uncounted():
            return float(comm.bcast(np.array([time.perf_counter() - self._started]))[0])

    def worked(self, comm: Communicator) -> float:
        """Rank 0's seconds that were not spent compiling; only differences have a meaning. Collective."""
        with comm.uncounted():
            return float(comm.bcast(np.array([working_time()]))[0])

    def remaining(self) -> float | None:
        """Seconds to the end by this rank's clock; None if there is no limit."""
        return None if self.seconds is None else self.seconds - (time.perf_counter() - self._started)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Raise :class:`Terminated` in the block on SIGTERM, for a command."""
    with raising(signal.SIGTERM, Terminated):
        yield


# Exponents of the rows in the time of an SVM and of a ridge system, here and in `cakernels.plan`. An SVM takes rows
# times support vectors, which are a share of the rows; a ridge system takes m^3/3 flops.
SVM_POWER, RIDGE_POWER = 2.0, 3.0
_STEEPEST = 1.2  # largest power, over the usual one
_MOST_FIXED = 0.95


@dataclass(frozen=True)
class Growth:
    """Time of a training by its number of rows, over that on `rows` of them.

    Attributes
    ----------
    rows : int
    power : float
        Exponent of the rows, up to `alone` of them. Beyond these, the time grows with the number of rows.
    alone : float
        Most rows of an SVM's only part.
    fixed : float
        Share of the time that does not depend on the rows, such as that of learning length scales.
    """

    rows: int
    power: float
    alone: float = math.inf
    fixed: float = 0.0

    def factor(self, rows: float) -> float:
        """The time on so many rows."""
        return self.fixed + (1.0 - self.fixed) * self._work(rows)

    def within(self, factor: float) -> float:
        """Number of rows on which the time is so long; 0 if the fixed share alone is longer."""
        work = max(factor - self.fixed, 0.0) / (1.0 - self.fixed)
        rows = self.rows * work ** (1.0 / self.power)
        return rows if rows <= self.alone else self.alone * work / self._work(self.alone)

    def through(self, rows: int, factor: float) -> Growth:
        """The growth that also has this time on fewer rows: with a larger power, or with a fixed share."""
        usual = self._work(rows)
        if factor > usual:
            return replace(self, fixed=min((factor - usual) / (1.0 - usual), _MOST_FIXED))
        power = math.log(max(factor, 1e-9)) / math.log(rows / self.rows)
        return replace(self, power=min(power, _STEEPEST * self.power))

    def _work(self, rows: float) -> float:
        part = min(rows, self.alone)
        return float((part / self.rows) ** self.power * rows / part)
