"""What the threads share: the variables, the logs of what each did, and the counters by which they end together."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from asygcd.solver.atomics import give_way, publish, seen

LINE = 8  # numbers of a cache line: what different threads write lies so far apart, or they would slow each other down
LOG = 4096  # updates that a thread may be ahead of the others: the bound of the delay
_PATIENCE = 200  # looks at the others before a thread sleeps
BUSY, IDLE, STOPPED = 0, 1, 2  # what a thread's loop returns
DONE, LIMIT, ASKED = 1, 2, 3  # why all stop: converged, too many updates, asked to


class Board(NamedTuple):
    """The problem min 1/2 beta'K beta - y'beta, low <= beta <= high, rows in the order of the blocks.

    With beta = alpha y it is the dual without a bias (eq. 4.9); r = K beta - y is y times its gradient g.

    Attributes
    ----------
    beta, r, low, high, diagonal : ndarray of float64, shape (n,)
        `diagonal` is that of K.
    log : ndarray of float64, shape (T, LOG, 2)
        The latest updates of each thread, row and step, in a ring: number k lies at k % LOG.
    started, written : ndarray of int64, one a LINE
        Updates that each thread has begun, and that all may read.
    taken : ndarray of int64, shape (T x whole LINEs,)
        How many of each other thread's updates a thread has taken in.
    calm : ndarray of int64, one a LINE
        Updates of all threads together at which the thread last found all its rows within the tolerance; or -1.
    eager : ndarray of float64, one a LINE
        About the violation that the thread is working on; 0 while it has nothing to do.
    gap : ndarray of float64, one a LINE
        The largest violation when the thread last looked at all its rows.
    part : ndarray of float64, one a LINE
        Its rows' share of the objective then, 1/2 beta'(r - y).
    stop : ndarray of int64, shape (LINE,)
        Why all threads stop, or 0.
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
    """Everything at alpha = 0, where g = -1. `apart`: an update is begun some time before it is done."""
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
def count(counter: Any) -> Any:  # pragma: no cover - compiled
    """Of all threads together."""
    total = 0
    for at in range(0, counter.size, LINE):
        total += seen(counter, at)
    return total


@numba.njit(cache=True, nogil=True)
def over(board: Any, total: Any) -> Any:  # pragma: no cover - compiled
    """Whether every thread was calm after these `total` updates, and none has begun another.

    Counters only grow and a calm thread begins nothing unless it hears of something: totals that are equal are
    equal thread by thread. So each looked at the same final state, at a moment of its own, and nobody has to wait.
    """
    for at in range(0, board.calm.size, LINE):
        if seen(board.calm, at) != total:
            return False
    if count(board.started) != total:
        return False
    publish(board.stop, 0, DONE)
    return True


@numba.njit(cache=True, nogil=True)
def quiet(counter: Any, stop: Any, total: Any) -> Any:  # pragma: no cover - compiled
    """Whether the counter stays at this total for a while; no longer waited for when all stop."""
    for _ in range(_PATIENCE):
        if count(counter) != total or seen(stop, 0):
            return False
        give_way()
    return True
