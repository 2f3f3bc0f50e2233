"""The textbook algorithms: Algorithm 14, with atomic updates of one shared gradient, and PSCD, without a gradient."""

from __future__ import annotations

import numba
import numpy as np

from asygcd.solver.greedy import greediest, optimum, share, violation
from asygcd.solver.kernel_columns import CachedColumns, ColumnCache, resident, store
from asygcd.solver.shared_state import BUSY, DONE, IDLE, LIMIT, LINE, STOPPED, SharedState, count, over, quiet
from cacore.arrays import Doubles, Longs, Reals
from cacore.compiled.pointers import atomic_add, publish, seen

_SELDOM = 256  # turns between two computations of a thread's share of the objective


@numba.njit(cache=True, nogil=True, error_model="numpy")
def work_atomic(
    shared: SharedState, whole: ColumnCache, columns: CachedColumns, me: int, lo: int, hi: int, tol: float,
    most_steps: int, turns: int,
) -> int:  # fmt: skip  # pragma: no cover - compiled
    """Run Algorithm 14 for `turns` turns in thread `me`, which owns rows lo to hi; return BUSY, IDLE or STOPPED."""
    beta, r, low, high = shared.beta[lo:hi], shared.r[lo:hi], shared.low[lo:hi], shared.high[lo:hi]
    wanted, slot = np.empty(1, np.int64), np.empty(1, np.int64)
    for turn in range(turns):
        if seen(shared.stop, 0):
            return STOPPED
        # `written` was read before `started`: equal counts mean that no update was under way in between.
        total = count(shared.written)
        whole_gradient = count(shared.started) == total
        j, gap = greediest(beta, r, low, high)
        shared.gap[me * LINE] = gap
        if turn % _SELDOM == 0 or gap <= tol:
            shared.part[me * LINE] = share(beta, r, high)
        if total >= most_steps:
            publish(shared.stop, 0, LIMIT)
            return STOPPED
        if gap <= tol:
            if whole_gradient:
                publish(shared.calm, me * LINE, total)
                if over(shared, total):
                    return STOPPED
                if quiet(shared.started, shared.stop, total):
                    return IDLE
            continue
        _update(shared, whole, columns, lo + j, me, wanted, slot)
    return BUSY


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _update(
    shared: SharedState, whole: ColumnCache, columns: CachedColumns, row: int, me: int, wanted: Longs, slot: Longs
) -> None:  # pragma: no cover - compiled
    """Move one row to its optimum and update the gradient (steps 2 to 4)."""
    number = shared.started[me * LINE] + 1
    publish(shared.started, me * LINE, number)
    wanted[0] = row
    resident(whole, wanted, slot)
    r, diagonal = shared.r[row], shared.diagonal[row]
    new = optimum(shared.beta[row], r, shared.low[row], shared.high[row], diagonal)
    step = new - shared.beta[row]
    column = store(columns)[slot[0]]
    if step != 0.0:
        for k in range(shared.r.size):
            atomic_add(shared.r, k, step * np.float64(column[k]))
    shared.beta[row] = new
    publish(shared.written, me * LINE, number)


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _dot(column: Reals, beta: Doubles) -> float:  # pragma: no cover - compiled
    total = 0.0
    for k in range(beta.size):
        total += np.float64(column[k]) * beta[k]
    return total


@numba.njit(cache=True, nogil=True, error_model="numpy")
def work_stochastic(
    shared: SharedState, whole: ColumnCache, columns: CachedColumns, order: Longs, me: int, tol: float, most_steps: int
) -> int:  # pragma: no cover - compiled
    """Run one round of PSCD in thread `me`: visit its rows once in this random order, computing each row's gradient.

    A round is clean if it meets no violation above the tolerance. All threads stop once each has finished a clean round
    that began after the last round that was not clean; `started` holds the number of updates at the end of the latter.
    """
    wanted, slot, begun = np.empty(1, np.int64), np.empty(1, np.int64), count(shared.written)
    worst, part = 0.0, 0.0
    for row in order:
        if seen(shared.stop, 0):
            return STOPPED
        wanted[0] = row
        resident(whole, wanted, slot)
        low, high, beta = shared.low[row], shared.high[row], shared.beta[row]
        r = _dot(store(columns)[slot[0]], shared.beta) - (1.0 if high > 0.0 else -1.0)
        violated = violation(beta, r, low, high)
        worst = max(worst, violated)
        new = optimum(beta, r, low, high, shared.diagonal[row])
        part += 0.5 * new * (r + (new - beta) * shared.diagonal[row] - (1.0 if high > 0.0 else -1.0))
        shared.beta[row] = new
        publish(shared.written, me * LINE, shared.written[me * LINE] + (new != beta or violated > tol))
    shared.gap[me * LINE], shared.part[me * LINE] = worst, part
    if worst <= tol:
        publish(shared.calm, me * LINE, begun)
    else:
        publish(shared.calm, me * LINE, -1)
        publish(shared.started, me * LINE, count(shared.written))
    if count(shared.written) >= most_steps:
        publish(shared.stop, 0, LIMIT)
    elif shared.calm[::LINE].min() >= shared.started[::LINE].max():
        publish(shared.stop, 0, DONE)
    return STOPPED if seen(shared.stop, 0) else BUSY
