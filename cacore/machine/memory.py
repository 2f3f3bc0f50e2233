"""Memory: what is available, what a rank may use, and what it has used."""

from __future__ import annotations

import ctypes
import math
import os
import resource
import sys
from pathlib import Path

import numpy as np

from cacore.comm import Communicator
from cacore.errors import InputError, MemoryLimitError

GIB = 1 << 30


def available() -> int:
    """Bytes still available on this machine, or in this process' control group if that has less."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    return min([free, *_group_room()])


def _group_room() -> list[int]:
    """Bytes left in each control group of this process (cgroup v1 and v2); file cache does not count as used."""
    groups = Path("/proc/self/cgroup")
    room: list[int] = []
    for line in groups.read_text().splitlines() if groups.exists() else []:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = Path("/sys/fs/cgroup", controllers)
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
        for folder in [Path(path.strip()), *Path(path.strip()).parents]:
            limit, used = (root / folder.relative_to("/") / name for name in names)
            if limit.exists() and used.exists() and limit.read_text().strip().isdigit():
                stat = dict(text.split() for text in limit.with_name("memory.stat").read_text().splitlines())
                cache = int(stat.get("inactive_file", "0"))
                room.append(max(0, int(limit.read_text()) - int(used.read_text()) + cache))
    return room


def process_room() -> float:
    """Bytes that this process may still allocate under its own limits (``ulimit -v`` and ``-d``); inf without one."""
    status = Path("/proc/self/status")
    used = dict(line.split(":", 1) for line in status.read_text().splitlines()) if status.exists() else {}
    room = [math.inf]
    for limit, name in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        soft = resource.getrlimit(limit)[0]
        if soft != resource.RLIM_INFINITY:
            room.append(max(0, soft - 1024 * int(used.get(name, "0").split()[0])))
    return min(room)


def limit_per_rank(comm: Communicator, requested_gib: float | None = None) -> int:
    """Bytes one rank may allocate: `requested_gib`, or its share of 90 % of the memory available on its machine.

    The share is less where the process itself has a limit, such as that of ``ulimit -v``.
    All ranks get the smallest of these limits, so that they make the same decisions.
    """
    if requested_gib is not None:
        if not (math.isfinite(requested_gib) and requested_gib > 0):
            raise InputError(f"--memory-limit {requested_gib:g}: it must be a positive number of GiB")
        return int(min(requested_gib * GIB, 2.0**62))
    room = min(available() / comm.node().size, process_room())
    share = np.array([int(0.9 * room)], np.int64)
    return int(comm.allreduce(share, "min")[0])


def require(nbytes: int, limit: int, what: str, remedy: str) -> None:
    """Raise a MemoryLimitError if `nbytes` exceeds `limit`; it names both sizes and the remedy."""
    if nbytes > limit:
        raise MemoryLimitError(
            f"{what} needs {nbytes / GIB:.3g} GiB, and a rank may use {limit / GIB:.3g} GiB: {remedy}"
        )


def enough_ranks(nbytes: int, room: int) -> str:
    """Number of ranks, in words for a message, that can share `nbytes` with `room` bytes each; "" if none can."""
    return f" (about {max(2, -(-nbytes // room))})" if room > 0 else ""


def give_back() -> None:
    """Return freed memory, which glibc would keep for later, to the system; without glibc, do nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def peak_rss_mib() -> float:
    """Largest resident size of this process so far, in MiB."""
    # On Linux, a process that was just started has the peak of the one that started it in `getrusage`.
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else []:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / (1 << 20)
