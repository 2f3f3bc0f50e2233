"""Time limits of a block of code, which long computations poll: nothing is interrupted between two polls."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_STARTED = 19  # place of the start time, in clock ticks after boot, behind the process' name in /proc/PID/stat


def _working_time() -> float:
    # Threads poll deadlines, and every command starts threads: numba, which the clock watches, is loaded only where a
    # block of code has a deadline.
    from cacore.machine.clock import working_time

    return working_time()


class TimeIsUp(KeyboardInterrupt):
    """The time limit of the surrounding :func:`until` has passed. It ends a training as Ctrl-C does."""


@dataclass(frozen=True)
class Deadline:
    """Moments at which a block of code must end.

    Attributes
    ----------
    end : float
        Reading of :func:`time.perf_counter`.
    work : float
        Reading of :func:`cacore.machine.clock.working_time`.
    """

    end: float
    work: float

    def passed(self) -> bool:
        """True once one of the two clocks has reached its reading."""
        return time.perf_counter() >= self.end or _working_time() >= self.work


class _Here(threading.local):
    """The deadline of this thread's innermost block."""

    deadline: Deadline | None = None


_here = _Here()


def current() -> Deadline | None:
    """The deadline of this thread; None if it has none."""
    return _here.deadline


@contextmanager
def observed(deadline: Deadline | None) -> Iterator[None]:
    """Let this thread poll `deadline` in the block, for threads that work for a thread with a deadline."""
    before, _here.deadline = _here.deadline, deadline
    try:
        yield
    finally:
        _here.deadline = before


@contextmanager
def until(seconds: float | None, working: float = math.inf) -> Iterator[None]:
    """Let :func:`poll` raise :class:`TimeIsUp` in the block after its time.

    Parameters
    ----------
    seconds : float or None
        Time limit; None for no limit at all.
    working : float
        Limit of the seconds in which this process does not compile.
    """
    limit = None if seconds is None else Deadline(time.perf_counter() + seconds, _working_time() + working)
    with observed(limit):
        yield


def poll() -> None:
    """Raise :class:`TimeIsUp` if this thread's deadline has passed; takes a fraction of a microsecond.

    Loops call it whose steps take long. It must not be called between collective calls on which ranks have not agreed
    to fail together (:meth:`cacore.comm.Communicator.guard`).
    """
    deadline = _here.deadline
    if deadline is not None and deadline.passed():
        raise TimeIsUp


def age() -> float:
    """Seconds since this process was started, to a hundredth; 0 if the system does not say."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[_STARTED])
    except (OSError, ValueError, IndexError):
        return 0.0
    if not ticks:
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
