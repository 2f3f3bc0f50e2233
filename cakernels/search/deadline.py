"""The end of the time: an exception in the main thread, at a moment or on SIGTERM."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from cacore.comm import Communicator
from cacore.machine.clock import in_main_thread, working_time
from cacore.machine.interrupts import raising

_LEAST = 1e-3  # seconds of a timer; none would switch it off


class TimeIsUp(KeyboardInterrupt):
    """The time for what is being done is over. It interrupts training as Ctrl-C does."""


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
def until(seconds: float | None, working: float = math.inf) -> Iterator[None]:
    """Raise :class:`TimeIsUp` in the block after so many seconds, or so many `working` ones, in which nothing compiles.

    Not outside the main thread, which alone has signals. The call that is being computed then, such as a factorisation,
    ends first.
    """
    if seconds is None or not in_main_thread():
        yield
        return
    end, done, inside = time.perf_counter() + seconds, working_time() + working, True

    def left() -> float:
        return min(end - time.perf_counter(), done - working_time())

    def early() -> bool:
        """True if some time is left; the timer, which rings once, is then set again, unless the block has ended."""
        more = left()
        if more > 0 and inside:
            signal.setitimer(signal.ITIMER_REAL, max(more, _LEAST))
        return more > 0

    with raising(signal.SIGALRM, TimeIsUp, early):
        try:
            signal.setitimer(signal.ITIMER_REAL, max(left(), _LEAST))
            yield
        finally:
            inside = False  # first: a signal that came before must not set the timer after it is switched off
            signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Raise :class:`Terminated` in the block on SIGTERM, for a command."""
    with raising(signal.SIGTERM, Terminated):
        yield
