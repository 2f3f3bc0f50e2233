"""Age of this process, which includes what no timer of the program can see: Python's start, imports, MPI_Init."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STARTED = 19  # place of the start time, in clock ticks after boot, behind the process' name in /proc/PID/stat


def age() -> float:
    """Seconds since this process was started, to a hundredth; 0 if the system does not say."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[_STARTED])
    except (OSError, ValueError, IndexError):
        return 0.0
    if not ticks:
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
