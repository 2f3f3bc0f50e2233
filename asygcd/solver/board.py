"""State shared by the threads: variables, a log of each thread's updates, and counters that detect termination."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from asygcd.solver.atomics import give_way, publish, seen

if TYPE_CHECKING:
    from cacore.arrays import Longs

LINE = 8  # numbers per cache line: values written by different threads lie this far apart, against false sharing
LOG = 4096  # updates by which a thread may be ahead of the others: the bound of the delay
_PATIENCE = 200  # times that a thread polls the others before it sleeps
BUSY, IDLE, STOPPED = 0, 1, 2  # return values of a thread's loop
DONE, LIMIT, ASKED = 1, 2, 3  # reasons to stop: converged, too many updates, requested by the caller


class Board(NamedTuple):
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


def board(
    y: NDArray[np.float64], C: NDArray[np.float64], diagonal: NDArray[np.float64], threads: int, log: int = LOG,
    apart: bool = False,
) -> Board:  # fmt: skip
    """Create the board at alpha = 0, where g = -1; with `apart`, begun and finished updates are counted separately."""
    n, lines = len(y), threads * LINE
    written = np.zeros(lines, np.int64)
    started = np.zeros(lines, np.int64) if apart else written
    taken = np.zeros(threads * -(-threads // LINE) * LINE, np.int64)
    levels = np.zeros(lines), np.full(lines, np.inf), np.zeros(lines)
    return Board(
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
def over(board: Board, total: int) -> bool:  # pragma: no cover - compiled
    """Return True, and stop all threads, if every thread was calm after `total` updates and none has begun another.

    Counters only grow, and a calm thread begins no update before it learns of another thread's. So equal totals mean
    equal counts thread by thread: each thread has checked the same final state, at its own time, without a barrier.
    """
    for at in range(0, board.calm.size, LINE):
        if seen(board.calm, at) != total:
            return False
    if count(board.started) != total:
        return False
    publish(board.stop, 0, DONE)
    return True


@numba.njit(cache=True, nogil=True)
def quiet(counter: Longs, stop: Longs, total: int) -> bool:  # pragma: no cover - compiled
    """Return True if the counter stays at this total while it is polled; False at once if it changes or all stop."""
    for _ in range(_PATIENCE):
        if count(counter) != total or seen(stop, 0):
            return False
        give_way()
    return True
