"""The textbook algorithms: Algorithm 14, with atomic updates of one shared gradient, and PSCD, without a gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba
import numpy as np

from asygcd.solver.board import BUSY, DONE, IDLE, LIMIT, LINE, STOPPED, Board, count, over, quiet
from asygcd.solver.greedy import greediest, optimum, share, violation
from asygcd.solver.kernel_columns import CachedColumns, ColumnCache, resident, store
from cacore.compiled.pointers import atomic_add, publish, seen

if TYPE_CHECKING:
    from cacore.arrays import Doubles, Longs, Reals

_SELDOM = 256  # turns between two computations of a thread's share of the objective


@numba.njit(cache=True, nogil=True, error_model="numpy")
def work_atomic(
    board: Board, whole: ColumnCache, columns: CachedColumns, me: int, lo: int, hi: int, tol: float, most_steps: int,
    turns: int,
) -> int:  # fmt: skip  # pragma: no cover - compiled
    """Run Algorithm 14 for `turns` turns in thread `me`, which owns rows lo to hi; return BUSY, IDLE or STOPPED."""
    beta, r, low, high = board.beta[lo:hi], board.r[lo:hi], board.low[lo:hi], board.high[lo:hi]
    wanted, slot = np.empty(1, np.int64), np.empty(1, np.int64)
    for turn in range(turns):
        if seen(board.stop, 0):
            return STOPPED
        # `written` was read before `started`: equal counts mean that no update was under way in between.
        total = count(board.written)
        whole_gradient = count(board.started) == total
        j, gap = greediest(beta, r, low, high)
        board.gap[me * LINE] = gap
        if turn % _SELDOM == 0 or gap <= tol:
            board.part[me * LINE] = share(beta, r, high)
        if total >= most_steps:
            publish(board.stop, 0, LIMIT)
            return STOPPED
        if gap <= tol:
            if whole_gradient:
                publish(board.calm, me * LINE, total)
                if over(board, total):
                    return STOPPED
                if quiet(board.started, board.stop, total):
                    return IDLE
            continue
        _update(board, whole, columns, lo + j, me, wanted, slot)
    return BUSY


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _update(
    board: Board, whole: ColumnCache, columns: CachedColumns, row: int, me: int, wanted: Longs, slot: Longs
) -> None:  # pragma: no cover - compiled
    """Move one row to its optimum and update the gradient (steps 2 to 4)."""
    number = board.started[me * LINE] + 1
    publish(board.started, me * LINE, number)
    wanted[0] = row
    resident(whole, wanted, slot)
    r, diagonal = board.r[row], board.diagonal[row]
    new = optimum(board.beta[row], r, board.low[row], board.high[row], diagonal)
    step = new - board.beta[row]
    column = store(columns)[slot[0]]
    if step != 0.0:
        for k in range(board.r.size):
            atomic_add(board.r, k, step * np.float64(column[k]))
    board.beta[row] = new
    publish(board.written, me * LINE, number)


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _dot(column: Reals, beta: Doubles) -> float:  # pragma: no cover - compiled
    total = 0.0
    for k in range(beta.size):
        total += np.float64(column[k]) * beta[k]
    return total


@numba.njit(cache=True, nogil=True, error_model="numpy")
def work_stochastic(
    board: Board, whole: ColumnCache, columns: CachedColumns, order: Longs, me: int, tol: float, most_steps: int
) -> int:  # pragma: no cover - compiled
    """Run one round of PSCD in thread `me`: visit its rows once in this random order, computing each row's gradient.

    A round is clean if it meets no violation above the tolerance. All threads stop once each has finished a clean round
    that began after the last round that was not clean; `started` holds the number of updates at the end of the latter.
    """
    wanted, slot, begun = np.empty(1, np.int64), np.empty(1, np.int64), count(board.written)
    worst, part = 0.0, 0.0
    for row in order:
        if seen(board.stop, 0):
            return STOPPED
        wanted[0] = row
        resident(whole, wanted, slot)
        low, high, beta = board.low[row], board.high[row], board.beta[row]
        r = _dot(store(columns)[slot[0]], board.beta) - (1.0 if high > 0.0 else -1.0)
        violated = violation(beta, r, low, high)
        worst = max(worst, violated)
        new = optimum(beta, r, low, high, board.diagonal[row])
        part += 0.5 * new * (r + (new - beta) * board.diagonal[row] - (1.0 if high > 0.0 else -1.0))
        board.beta[row] = new
        publish(board.written, me * LINE, board.written[me * LINE] + (new != beta or violated > tol))
    board.gap[me * LINE], board.part[me * LINE] = worst, part
    if worst <= tol:
        publish(board.calm, me * LINE, begun)
    else:
        publish(board.calm, me * LINE, -1)
        publish(board.started, me * LINE, count(board.written))
    if count(board.written) >= most_steps:
        publish(board.stop, 0, LIMIT)
    elif board.calm[::LINE].min() >= board.started[::LINE].max():
        publish(board.stop, 0, DONE)
    return STOPPED if seen(board.stop, 0) else BUSY
