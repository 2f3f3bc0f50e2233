"""Memory: what is available, what a rank may use and has used; scratch files; and shared segments of killed ranks.

MPI libraries remove shared segments only when a job ends normally.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import resource
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.comm import Communicator
from cacore.errors import InputError, MemoryLimitError, OutputError

GIB = 1 << 30
USABLE = 0.9  # share of the free memory that ranks may use, and of a node's in plans


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
    share = np.array([int(USABLE * room)], np.int64)
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


class Scratch:
    """Scratch file of this process for arrays that do not fit into memory; it has no name and vanishes at exit.

    Parameters
    ----------
    folder : Path

    Attributes
    ----------
    written, read : int
        Bytes written and read so far.
    seconds : float
        Seconds spent reading, summed over all threads.
    end : int
        Length of the file in bytes.

    Raises
    ------
    InputError
        The folder does not exist, or no file can be made there.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._file, name = tempfile.mkstemp(dir=folder, prefix=".cakernels-")
            os.unlink(name)
        except OSError as error:
            raise InputError(f"--scratch {folder}: cannot make a file there ({error.strerror})") from error
        self.folder, self._close = folder, weakref.finalize(self, os.close, self._file)
        self.written, self.read, self.seconds, self.end = 0, 0, 0.0, 0
        self._guard = threading.Lock()

    def write(self, array: NDArray[np.generic]) -> int:
        """Append an array and return its offset in bytes."""
        with self._guard:
            at, self.end = self.end, self.end + array.nbytes
        self.put(at, array)
        return at

    def put(self, at: int, array: NDArray[np.generic]) -> None:
        """Write an array at byte offset `at`."""
        with self._guard:
            self.end = max(self.end, at + array.nbytes)
            self.written += array.nbytes
        if not array.size:
            return
        view, place = np.ascontiguousarray(array).data.cast("B"), at
        try:
            while view:
                done = os.pwrite(self._file, view, place)
                view, place = view[done:], place + done
        except OSError as error:
            raise OutputError.of(self.folder, error) from error

    def fetch(self, at: int, out: NDArray[np.generic]) -> None:
        """Fill the C-contiguous array `out` with the bytes at offset `at`."""
        begun = time.perf_counter()
        view, place = out.data.cast("B"), at
        while view:
            done = os.preadv(self._file, [view], place)
            if not done:
                raise OutputError(f"--scratch {self.folder}: the file was cut short; free space there")
            view, place = view[done:], place + done
        with self._guard:
            self.read += out.nbytes
            self.seconds += time.perf_counter() - begun

    def array(self, shape: tuple[int, int], dtype: DTypeLike) -> NDArray[Any]:
        """Append an array of zeros that is mapped into memory."""
        at = -(-self.end // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        nbytes = shape[0] * shape[1] * np.dtype(dtype).itemsize
        try:
            os.posix_fallocate(self._file, at, max(1, nbytes))
        except OSError as error:
            raise OutputError.of(self.folder, error) from error
        self.end = at + nbytes
        return np.ndarray(shape, dtype, mmap.mmap(self._file, max(1, nbytes), offset=at))

    def free(self, end: int) -> None:
        """Truncate the file to `end` bytes; arrays beyond must not be used any more."""
        os.ftruncate(self._file, end)
        self.end = end

    def count(self, nbytes: int, seconds: float) -> None:
        """Add a read from a mapped array to the statistics."""
        self.read += nbytes
        self.seconds += seconds

    @property
    def rate(self) -> float:
        """Bytes read per second, by one thread."""
        return self.read / self.seconds if self.seconds else 0.0


_NAMES = ("mpich_shm_*", "vader_segment.*", "sm_segment.*")  # of MPICH, and of Open MPI
_AGE = 60.0  # seconds after which every rank of a live job has mapped its segments


def remove_dead(folder: Path = Path("/dev/shm"), processes: Path = Path("/proc")) -> list[Path]:
    """Remove this user's MPI segments that no process has mapped, and return their paths.

    Lists one folder; only if there are old segments does it also scan this machine's processes.
    """
    old = [path for name in _NAMES for path in folder.glob(name) if _is_old(path)]
    if not old:
        return []
    mapped = set[str]()
    for maps in processes.glob("[0-9]*/maps"):
        try:
            mapped.update(line.rsplit("/", 1)[-1] for line in maps.read_text().splitlines() if str(folder) in line)
        except OSError:
            continue  # the process has ended, or belongs to another user, who cannot map this user's segments
    dead = [path for path in old if path.name not in mapped]
    for path in dead:
        path.unlink(missing_ok=True)
    return dead


def _is_old(path: Path) -> bool:
    try:
        facts = path.stat()
    except OSError:
        return False  # a job that has just ended removed it
    return facts.st_uid == os.geteuid() and time.time() - facts.st_mtime > _AGE
