"""The processor and the threads of this rank: how many it may use, and how to run blocks of work on them."""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import lru_cache
from itertools import chain, islice, starmap
from pathlib import Path
from typing import TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.machine import deadline


def cpu_name() -> str:
    """Model name of this machine's processor."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


T = TypeVar("T")

_MOST = 1 << 16  # threads that may be asked for: more are a typing error
SMALL = 512  # rows, and half the features: a factorisation of so many takes 1 ms
_here = threading.local()
_limit: int | None = None  # set once at start by a command line


def cores() -> set[int]:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def share(comm: Communicator, requested: int | None = None) -> int:
    """Number of threads for this rank: `requested`, or its cores divided by the number of ranks that share them."""
    if requested is not None:
        if not 1 <= requested <= _MOST:
            raise InputError(f"--threads {requested}: it must be from 1 to {_MOST:,}")
        return requested
    usable = cores()
    node = comm.node()
    mask = np.zeros((1, max(os.cpu_count() or 1, max(usable) + 1)), np.uint8)
    mask[0, list(usable)] = 1
    masks = node.allgather(mask)
    sharers = int(np.count_nonzero((masks & mask).any(axis=1)))
    return max(1, len(usable) // sharers)


def set_threads(count: int) -> None:
    """Limit this process to `count` threads; call it once, at start."""
    global _limit
    _limit = count
    with _loading_with(count):
        _controller().limit(limits=count)


@contextlib.contextmanager
def _loading_with(count: int) -> Iterator[None]:
    """Let a BLAS loaded in this block start `count` threads, not one per core, since new threads spin for a while."""
    names = [f"{library}_NUM_THREADS" for library in ("OPENBLAS", "MKL")]
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, str(count)))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def share_once(comm: Communicator) -> None:
    """Limit threads to this rank's share of the cores, if there are several ranks and it has no limit; collective.

    Ranks may have a limit already, from a command, or from a call on some of the ranks.
    """
    if comm.size > 1 and not comm.all(_limit is not None):
        count = share(comm)
        if _limit is None:
            set_threads(count)


def current() -> int:
    """Number of threads that :func:`for_blocks` and the BLAS use: the limit, or else the BLAS's own number."""
    return _limit if _limit is not None else _of_blas()


def available() -> int:
    """Number of threads that the caller may use: one inside :func:`for_blocks`, otherwise :func:`current`."""
    return 1 if getattr(_here, "busy", False) else current()


@lru_cache(maxsize=1)
def _of_blas() -> int:
    blas = [int(lib["num_threads"]) for lib in _controller().info() if lib["user_api"] == "blas"]
    return max(1, min([len(cores()), *([max(blas)] if blas else [])]))


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401  threadpoolctl finds only a loaded BLAS; numba loads this one in any case

    return ThreadpoolController()


@lru_cache(maxsize=4)
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="cakernels")


class _Shared:
    """Context manager of a process-wide setting that several threads may need at once.

    The first thread to enter makes the setting and the last one to leave undoes it, in any order of entry and exit.

    Parameters
    ----------
    make : callable
        Makes the setting, and returns a function that undoes it.
    """

    def __init__(self, make: Callable[[], Callable[[], object]]) -> None:
        self._make, self._users, self._guard = make, 0, threading.Lock()
        self._take_back: Callable[[], object] = _nothing

    def __enter__(self) -> None:
        with self._guard:
            if self._users == 0:
                self._take_back = self._make()
            self._users += 1

    def __exit__(self, *error: object) -> None:
        with self._guard:
            self._users -= 1
            if self._users == 0:
                self._take_back()

    def after_fork(self) -> None:
        """Undo the setting in a child process, which has none of the threads that entered."""
        if self._users:
            self._take_back()
        self._users, self._guard = 0, threading.Lock()


def _nothing() -> None:
    pass


def _limit_blas() -> Callable[[], object]:
    current()  # caches the BLAS's own number of threads before it is limited
    _release_blas()
    limiter = _controller().limit(limits=1, user_api="blas")

    def take_back() -> None:
        _release_blas()
        limiter.restore_original_limits()
        _release_blas()

    return take_back


def _release_blas() -> None:
    """Let any thread set the limit next; threadpoolctl 3.8 reserves that for the thread that set it first."""
    for library in _controller().lib_controllers:
        if hasattr(library, "clear_controlling_thread"):
            library.clear_controlling_thread(force=True)


def _stop_collecting() -> Callable[[], object]:
    if not gc.isenabled():
        return _nothing
    gc.disable()
    return gc.enable


_one_blas_thread, _no_collections = _Shared(_limit_blas), _Shared(_stop_collecting)


def one_blas_thread() -> AbstractContextManager[None]:
    """Context in which every BLAS call uses one thread."""
    return _one_blas_thread


def suited_to(n: int, d: int = 0, most: int = SMALL) -> AbstractContextManager[None]:
    """Context for work on `n` rows of `d` features: every BLAS call uses one thread if the matrices are small.

    These have at most `most` rows, and twice as many features.

    The threads of a BLAS wait for each other by spinning, which no small matrix pays back: an exact ridge regression of
    250 x 784 took 4 s with one thread and 120 s with two on two cores that had other work.
    """
    return one_blas_thread() if max(n, d / 2) <= most else contextlib.nullcontext()


def collect_nothing() -> AbstractContextManager[None]:
    """Context without garbage collection, which otherwise runs on whichever thread allocates.

    Freeing an HDF5 file left in a reference cycle takes h5py's lock. A worker that did so while the main thread waited
    for it caused a deadlock (h5py 3.16).
    """
    return _no_collections


def _after_fork() -> None:
    """Reset pools and settings in a child process, which inherits the pool objects but not their threads."""
    _pool.cache_clear()
    _here.__dict__.clear()
    _one_blas_thread.after_fork()
    _no_collections.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def blocks(n: int, step: int) -> list[tuple[int, int]]:
    """Cut ``0 .. n-1`` into ranges of at most `step` rows."""
    return [(lo, min(lo + step, n)) for lo in range(0, n, step)]


def rows_in(nbytes: int, width: int) -> int:
    """Number of rows of `width` numbers in double precision that take at most so many bytes; at least 1."""
    return max(1, nbytes // (8 * max(1, width)))


def for_blocks(work: Callable[..., object], tasks: Iterable[tuple[object, ...]], parallel: bool = True) -> None:
    """Call ``work(*task)`` for every task on this rank's threads; see :func:`in_order`."""
    with in_order(work, tasks, parallel) as results:
        for _ in results:
            pass


@contextlib.contextmanager
def in_order(
    work: Callable[..., T], tasks: Iterable[tuple[object, ...]], parallel: bool = True
) -> Iterator[Iterator[T]]:
    """Context with an iterator of ``work(*task)`` for every task, in their order, computed on this rank's threads.

    Parameters
    ----------
    work : callable
        Runs with a single-threaded BLAS and should release the interpreter's lock (BLAS, numba with ``nogil``, numpy
        on large arrays). Nested calls of this function run in the thread of `work`.
    tasks : iterable of tuple
        Tasks must write to disjoint memory. The calling thread takes each one as late as the threads allow.
    parallel : bool
        If False, run the tasks one after the other in the calling thread, with a multithreaded BLAS.

    Notes
    -----
    At most two results per thread wait to be taken. Summing them therefore costs little memory and gives the same
    result, bit for bit, for any number of threads. Within the context BLAS has one thread, for the caller too. Tasks
    that have not begun when the context ends never do.

    A generator must not enter this context: if it is never finished, the settings stay. It uses :func:`ahead`.
    """
    todo, parallel = _planned(tasks, parallel)
    if not parallel:
        yield starmap(work, todo)
        return
    with _quiet_and_narrow(), contextlib.closing(_by_pool(_quiet_and_narrow, work, todo)) as results:
        yield results


def ahead(work: Callable[..., T], tasks: Iterable[tuple[object, ...]]) -> Iterator[T]:
    """Yield ``work(*task)`` for every task, in their order, while threads compute the next few; for generators.

    Unlike :func:`in_order`, an iterator that is abandoned half-way leaves no process-wide setting changed: only a
    running task and the wait for one are without garbage collection. `work` must not call BLAS.
    """
    todo, parallel = _planned(tasks, True)
    return _by_pool(collect_nothing, work, todo) if parallel else starmap(work, todo)


def _planned(tasks: Iterable[tuple[object, ...]], parallel: bool) -> tuple[Iterator[tuple[object, ...]], bool]:
    """The tasks again, and True if there are several of them and several threads for them."""
    tasks_left = _polled(tasks)
    first = list(islice(tasks_left, 2))
    return chain(first, tasks_left), parallel and min(current(), len(first)) > 1 and not getattr(_here, "busy", False)


def _polled(tasks: Iterable[tuple[object, ...]]) -> Iterator[tuple[object, ...]]:
    """The same tasks; the time limit of the caller is polled before each of them."""
    for task in tasks:
        deadline.poll()
        yield task


@contextlib.contextmanager
def _quiet_and_narrow() -> Iterator[None]:
    with one_blas_thread(), collect_nothing():
        yield


def _by_pool(
    setting: Callable[[], AbstractContextManager[None]], work: Callable[..., T], todo: Iterator[tuple[object, ...]]
) -> Generator[T, None, None]:
    """Yield the results of tasks that run in `setting` on the pool's threads; holds no setting between two results."""
    limit = deadline.current()

    def run(task: tuple[object, ...]) -> T:
        _here.busy = True
        with setting(), deadline.observed(limit):  # until the task ends, even if nobody waits for it any more
            return work(*task)

    def result() -> T:
        with collect_nothing():  # for the thread that ends the task, too
            return waiting.popleft().result()

    max_waiting, pool, waiting = 2 * current(), _pool(current()), deque[Future[T]]()
    try:
        for task in todo:
            if len(waiting) >= max_waiting:
                yield result()
            waiting.append(pool.submit(run, task))
        while waiting:
            yield result()
    finally:
        for future in waiting:
            future.cancel()
