"""Threads of the solver: the blocks of rows they own, the state they share, and how they run together.

The shared state is the variables, a log of each thread's updates, and counters that detect termination.
:func:`together` runs compiled loops until all threads have finished, while the caller polls them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.arrays import Longs
from cacore.compiled.pointers import give_way, publish, seen
from cacore.data.rows import Rows
from cacore.machine.clock import working_time
from cacore.machine.threads import cores
from partition.algorithms.clusters import KMeans
from partition.parts_model import nearest

LINE = 8  # numbers per cache line: values written by different threads lie this far apart, against false sharing
LOG = 4096  # updates by which a thread may be ahead of the others: the bound of the delay
_PATIENCE = 200  # times that a thread polls the others before it sleeps
BUSY, IDLE, STOPPED = 0, 1, 2  # return values of a thread's loop
# The loops of algorithm14.py and owned.py return BUSY, IDLE or STOPPED to :func:`together`, which calls them again
# until STOPPED. AsyGCD.solve reads from `stop` whether they have converged.
DONE, LIMIT, ASKED = 1, 2, 3  # reasons to stop: converged, too many updates, requested by the caller


class SharedState(NamedTuple):
    """The problem min 1/2 beta'K beta - y'beta, low <= beta <= high, rows in the order of the blocks.

    With beta = alpha y it is the dual without a bias (eq. 4.9); r = K beta - y is y times its gradient g.

    Attributes
    ----------
    beta, r, low, high, diagonal : ndarray of float64, shape (n,)
        Variables, gradient, bounds, and the diagonal of K.
    log : ndarray of float64, shape (T, LOG, 2)
        Ring buffer of each thread's latest updates, as pairs of row and step: update k is at k % LOG.
    started, written : ndarray of int64, one value per LINE
        Number of updates that each thread has begun, and that it has published in its log.
    taken : ndarray of int64, shape (T x whole LINEs,)
        Number of updates of each other thread that a thread has applied.
    calm : ndarray of int64, one value per LINE
        Number of updates of all threads when the thread last found all its rows within the tolerance; or -1.
    eager : ndarray of float64, one value per LINE
        Approximate violation that the thread is working on; 0 while it has nothing to do.
    gap : ndarray of float64, one value per LINE
        Largest violation at the thread's last check of all its rows.
    part : ndarray of float64, one value per LINE
        Share of its rows in the objective at that check, 1/2 beta'(r - y).
    stop : ndarray of int64, shape (LINE,)
        Reason why all threads stop, or 0.
    """

    beta: NDArray[np.float64]
    r: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    diagonal: NDArray[np.float64]
    log: NDArray[np.float64]
    started: NDArray[np.int64]
    written: NDArray[np.int64]
    taken: NDArray[np.int64]
    calm: NDArray[np.int64]
    eager: NDArray[np.float64]
    gap: NDArray[np.float64]
    part: NDArray[np.float64]
    stop: NDArray[np.int64]


def shared_state(
    y: NDArray[np.float64], C: NDArray[np.float64], diagonal: NDArray[np.float64], threads: int, log: int = LOG,
    apart: bool = False,
) -> SharedState:  # fmt: skip
    """Create the state at alpha = 0, where g = -1; with `apart`, begun and finished updates are counted separately."""
    n, lines = len(y), threads * LINE
    written = np.zeros(lines, np.int64)
    started = np.zeros(lines, np.int64) if apart else written
    taken = np.zeros(threads * -(-threads // LINE) * LINE, np.int64)
    levels = np.zeros(lines), np.full(lines, np.inf), np.zeros(lines)
    return SharedState(
        np.zeros(n), -y, np.minimum(0.0, C * y), np.maximum(0.0, C * y), diagonal, np.zeros((threads, log, 2)),
        started, written, taken, np.full(lines, -1), *levels, np.zeros(LINE, np.int64),
    )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def count(counter: Longs) -> int:  # pragma: no cover - compiled
    """Sum of a counter over all threads."""
    total = 0
    for at in range(0, counter.size, LINE):
        total += seen(counter, at)
    return total


@numba.njit(cache=True, nogil=True)
def over(shared: SharedState, total: int) -> bool:  # pragma: no cover - compiled
    """Return True, and stop all threads, if every thread was calm after `total` updates and none has begun another.

    Counters only grow, and a calm thread begins no update before it learns of another thread's. So equal totals mean
    equal counts thread by thread: each thread has checked the same final state, at its own time, without a barrier.
    """
    for at in range(0, shared.calm.size, LINE):
        if seen(shared.calm, at) != total:
            return False
    if count(shared.started) != total:
        return False
    publish(shared.stop, 0, DONE)
    return True


@numba.njit(cache=True, nogil=True)
def quiet(counter: Longs, stop: Longs, total: int) -> bool:  # pragma: no cover - compiled
    """Return True if the counter stays at this total while it is polled; False at once if it changes or all stop."""
    for _ in range(_PATIENCE):
        if count(counter) != total or seen(stop, 0):
            return False
        give_way()
    return True


_SAMPLE = 20_000  # rows that K-means clusters
_CLUSTERS = 16  # clusters per thread
_ROUNDS = 20  # of K-means


def blocks(X: Rows, threads: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide the rows into blocks of equal size, one per thread, of rows that lie close to each other.

    K-means clusters at most 20,000 rows, and all rows are sorted by their nearest centre (section 4.4). There are more
    clusters than threads, and blocks are cut at equal sizes: clusters differ in size, and the slowest thread decides.

    Parameters
    ----------
    X : ndarray or CSR, shape (n, d)
    threads : int
        T, at most n.
    seed : int

    Returns
    -------
    order : ndarray of int64, shape (n,)
        The rows, block by block.
    bounds : ndarray of int64, shape (T + 1,)
        Index in `order` at which each block begins; sizes differ by at most 1.

    Notes
    -----
    2 x 16 T d flops per row: once for all rows, and in each of at most 20 rounds for the rows of the sample.
    """
    n = int(X.shape[0])
    if threads == 1:
        return np.arange(n), np.array([0, n])
    count = int(np.clip(n // 8, threads, _CLUSTERS * threads))
    rng = np.random.default_rng(seed)
    sample = np.sort(rng.choice(n, min(n, _SAMPLE), replace=False))
    centers = KMeans(count, max_iter=_ROUNDS, random_state=int(rng.integers(1 << 31))).divide(X[sample]).centers
    order = np.argsort(nearest(X, centers), kind="stable")
    return order, np.arange(threads + 1) * n // threads


_NAP = 5e-5  # seconds that an idle thread sleeps
_LOOK = 0.05  # seconds between two calls of `look`


def together(turns: list[Callable[[], int]], shared: SharedState, max_time: float, look: Callable[[], None]) -> None:
    """Call each of `turns` repeatedly in its own thread, until it returns STOPPED.

    Parameters
    ----------
    turns : list of callable
        Compiled loops that release the GIL and return soon after ``shared.stop`` is set.
    shared : SharedState
    max_time : float
        Seconds after which all threads are asked to stop.
    look : callable
        Called by the calling thread about 20 times per second.

    Raises
    ------
    BaseException
        The first exception of a thread or of `look`, or an interrupt; raised after all threads have stopped.
    """
    failed: list[BaseException] = []
    places = _places(len(turns))
    threads = [
        threading.Thread(target=_repeat, args=(turn, place, shared, failed), name="asygcd")
        for turn, place in zip(turns, places, strict=True)
    ]
    end = working_time() + max_time
    try:
        for thread in threads:
            thread.start()
        while working := [thread for thread in threads if thread.is_alive()]:
            working[0].join(_LOOK)
            if working_time() > end:
                _tell(shared)
            look()
    finally:
        _tell(shared)
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    if failed:
        raise failed[0]


def _tell(shared: SharedState) -> None:
    """Ask the threads to stop, unless they have stopped by themselves."""
    if not shared.stop[0]:
        shared.stop[0] = ASKED


def _places(count: int) -> list[int | None]:
    """The core to pin each thread to, if there are exactly as many cores as threads; otherwise None.

    The operating system may leave two threads on one core for a second, and each would then step from a gradient that
    is thousands of updates old.
    """
    available = sorted(cores())
    return list(available) if 1 < count == len(available) and hasattr(os, "sched_setaffinity") else [None] * count


def _repeat(turn: Callable[[], int], place: int | None, shared: SharedState, failed: list[BaseException]) -> None:
    try:
        if place is not None:
            os.sched_setaffinity(0, {place})  # 0 is the calling thread
        while (state := turn()) != STOPPED:
            if state == IDLE:
                time.sleep(_NAP)
    except BaseException as error:
        failed.append(error)
        _tell(shared)
