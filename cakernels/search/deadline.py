"""The time that a search may take, and its end by SIGTERM."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from cacore.comm import Communicator
from cacore.machine.clock import working_time
from cacore.machine.interrupts import raising


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

    def left(self) -> float | None:
        """Seconds to the end by this rank's clock; None if there is no limit."""
        return None if self.seconds is None else self.seconds - (time.perf_counter() - self._started)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Raise :class:`Terminated` in the block on SIGTERM, for a command."""
    with raising(signal.SIGTERM, Terminated):
        yield
