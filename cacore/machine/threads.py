"""Threads of this rank: how many it may use, and running blocks of work on them."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import lru_cache
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from cacore.comm import Communicator
from cacore.errors import InputError

T = TypeVar("T")

_MOST = 1 << 16
_here = threading.local()
_limit: int | None = None  # set once at start by a command line


def cores() -> set[int]:
    """The cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def share(comm: Communicator, requested: int | None = None) -> int:
    """Threads for this rank: `requested`, or its cores divided by the ranks that share them."""
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
    """Limit this process to `count` threads, once, at start."""
    global _limit
    _limit = count
    with _loading_with(count):
        _controller().limit(limits=count)


@contextlib.contextmanager
def _loading_with(count: int) -> Iterator[None]:
    """A BLAS that is loaded in here starts `count` threads, not one a core: new ones spin, on all ranks at once."""
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
    """Where several ranks run and no command line has set the threads: this rank's share of its cores."""
    if comm.size > 1 and _limit is None:
        set_threads(share(comm))


def current() -> int:
    """Threads that :func:`for_blocks` and the BLAS use: the limit set, or what the BLAS has."""
    return _limit if _limit is not None else _of_blas()


def available() -> int:
    """Threads that the calling thread may use: one, if it is one of :func:`for_blocks` itself."""
    return 1 if getattr(_here, "busy", False) else current()


@lru_cache(maxsize=1)
def _of_blas() -> int:
    blas = [int(lib["num_threads"]) for lib in _controller().info() if lib["user_api"] == "blas"]
    return max(1, min([len(cores()), *([max(blas)] if blas else [])]))


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401  its BLAS has to be loaded to be found; numba loads it in any case

    return ThreadpoolController()


@lru_cache(maxsize=4)
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="cakernels")


class _Shared:
    """Context of a setting of the whole process, which several threads may need at once.

    The first that enters makes the setting, and the last that leaves takes it back, in whatever order they come and go.

    Parameters
    ----------
    make : callable
        Makes the setting, and returns what takes it back.
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
        """In a child, where none of these threads is."""
        if self._users:
            self._take_back()
        self._users, self._guard = 0, threading.Lock()


def _nothing() -> None:
    pass


def _limit_blas() -> Callable[[], object]:
    current()  # what the BLAS has must be seen before it is limited
    _release_blas()
    limiter = _controller().limit(limits=1, user_api="blas")

    def take_back() -> None:
        _release_blas()
        limiter.restore_original_limits()
        _release_blas()

    return take_back


def _release_blas() -> None:
    """Whichever thread comes next may set the limit, which threadpoolctl 3.8 leaves to the first that did."""
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


def collect_nothing() -> AbstractContextManager[None]:
    """Context without collections of reference cycles, which happen on whichever thread allocates.

    An HDF5 file that was left in a cycle waits for h5py's lock when it is freed: a worker that did so while the main
    thread waited for the worker stood still for ever (h5py 3.16).
    """
    return _no_collections


def _after_fork() -> None:
    """A child has the pool, but not its threads, and none of their settings."""
    _pool.cache_clear()
    _here.__dict__.clear()
    _one_blas_thread.after_fork()
    _no_collections.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def blocks(n: int, step: int) -> list[tuple[int, int]]:
    """Cut ``0 .. n-1`` into ranges of at most `step` rows."""
    return [(lo, min(lo + step, n)) for lo in range(0, n, step)]


def for_blocks(work: Callable[..., object], tasks: Iterable[tuple[Any, ...]]) -> None:
    """Call ``work(*task)`` for every task, on this rank's threads; see :func:`in_order`."""
    for _ in in_order(work, tasks):
        pass


def in_order(work: Callable[..., T], tasks: Iterable[tuple[Any, ...]], parallel: bool = True) -> Iterator[T]:
    """Yield ``work(*task)`` for every task, in the order of the tasks, computed on this rank's threads.

    Parameters
    ----------
    work : callable
        Runs with a one-threaded BLAS, and should release the interpreter's lock (BLAS, numba with
        ``nogil``, numpy on large arrays). Inside it, further calls of this function run in its own
        thread.
    tasks : iterable of tuple
        Each must write to places of its own. They are taken in the calling thread, as late as the threads allow.
    parallel : bool
        False: one after the other in the calling thread, whose BLAS keeps all threads.

    Notes
    -----
    At most two results a thread wait to be taken, so adding them up costs little memory and gives
    the same sum, bit for bit, for any number of threads.
    """
    left = iter(tasks)
    first = list(islice(left, 2))
    todo, workers = chain(first, left), min(current(), len(first))
    if not parallel or workers <= 1 or getattr(_here, "busy", False):
        for task in todo:
            yield work(*task)
        return

    def one(task: tuple[Any, ...]) -> T:
        _here.busy = True
        return work(*task)

    most, pool, waiting = 2 * current(), _pool(current()), deque[Any]()
    with one_blas_thread(), collect_nothing():
        for task in todo:
            if len(waiting) >= most:
                yield waiting.popleft().result()
            waiting.append(pool.submit(one, task))
        while waiting:
            yield waiting.popleft().result()
