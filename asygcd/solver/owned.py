"""Asy-GCD whose gradient has one writer a row: each thread keeps its block's, and hears of other updates by logs.

Algorithm 14, but for step 3: instead of adding to everybody's gradient atomically, a thread appends its update to
its own log, and every thread takes it into the rows that it owns. No element has two writers, loops become
vector instructions, and a column of Q is shared out over the threads' caches by rows. A thread hears of the others
right before it steps, so that a step is exact up to what happened within some nanoseconds.
"""

from __future__ import annotations

from typing import Any

import numba

from asygcd.solver.atomics import borrowed, give_way, publish, seen
from asygcd.solver.board import BUSY, IDLE, LIMIT, LINE, STOPPED, over, quiet
from asygcd.solver.cache import resident, store
from asygcd.solver.greedy import advance, greediest, optimum, share, violation
from asygcd.solver.working_set import (
    BEST,
    FIRST,
    FRESH,
    GOAL,
    MOST,
    PENDING,
    ROOM,
    ROWS,
    SHOWN,
    STEPS,
    TAKE,
    bring,
    choose,
    look,
    note,
    settle,
)
from cacore.kernels.panels import add_rows

_RELAX = 0.3  # of the violation, what is left of it in the working set
_DEEP = 0.5  # of the tolerance, where that is less: rows at the very edge would violate it again at once
_CYCLE = 10  # steps a row of the working set, at most, before others may join it
_ZEAL = 0.5  # a thread works where its violation is at least this share of the others'
_SWEEPS = 4  # times that a thread listens to all others, while there is something to hear, before it goes on
_TELL = 64  # of others' updates, after how many a thread says that it has them
_MANY = 512  # pending steps that a calm thread lets come together while others work


@numba.njit(cache=True, nogil=True)
def listen(board: Any, near: Any, ws: Any, state: Any, me: Any) -> tuple[Any, Any]:  # pragma: no cover - compiled
    """Take in what the others did; how many updates of all threads are in now, and how many of them are new."""
    threads, log, n = board.log.shape[0], board.log.shape[1], state.numbers[ROWS]
    size = min(TAKE, near.held.size)
    rows, steps, slots = state.rows, state.steps, state.slots
    stride, news = board.taken.size // threads, 0
    for _ in range(_SWEEPS):
        before = news
        for t in range(threads):
            if t == me:
                continue
            at, end = state.taken[t], seen(board.written, t * LINE)
            while at < end:
                k = min(size, end - at)
                for a in range(k):
                    rows[a], steps[a] = int(board.log[t, (at + a) % log, 0]), board.log[t, (at + a) % log, 1]
                    note(state, rows[a], steps[a])
                at, news = at + k, news + k
                if at - board.taken[me * stride + t] >= min(_TELL, log // 2):
                    publish(board.taken, me * stride + t, at)
                if n:
                    resident(near, rows[:k], slots[:k])
                    add_rows(store(near), slots[:k], steps[:k], ws.r, 0, n)
            state.taken[t] = at
        if news == before:
            break
    total = board.written[me * LINE]
    for t in range(threads):
        total += state.taken[t]
    return total, news


@numba.njit(cache=True, nogil=True)
def compare(board: Any, state: Any, me: Any, most: Any) -> Any:  # pragma: no cover - compiled
    """Show this thread's violation, where it has changed enough to matter; the largest of the others'."""
    shown = state.levels[SHOWN]
    if most > 1.25 * shown or most < 0.8 * shown:
        board.eager[me * LINE] = state.levels[SHOWN] = most
    others = 0.0
    for at in range(0, board.eager.size, LINE):
        if at != me * LINE:
            others = max(others, board.eager[at])
    return others


@numba.njit(cache=True, nogil=True)
def has_room(board: Any, state: Any, me: Any) -> Any:  # pragma: no cover - compiled
    """Whether the next update has a place in the log: all others have taken in what lies there."""
    threads, at = board.log.shape[0], board.written[me * LINE]
    if at < state.numbers[ROOM] or threads == 1:
        return True
    least, stride = at, board.taken.size // threads
    for t in range(threads):
        if t != me:
            least = min(least, seen(board.taken, t * stride + me))
    state.numbers[ROOM] = least + board.log.shape[1]
    return at < state.numbers[ROOM]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def step(board: Any, near: Any, ws: Any, state: Any, me: Any, lo: Any) -> None:  # pragma: no cover - compiled
    """Move the working set's best row to its optimum, if there is anything left to do; others hear of it at once."""
    n, k, log = state.numbers[ROWS], state.numbers[BEST], board.log.shape[1]
    new = optimum(ws.beta[k], ws.r[k], ws.low[k], ws.high[k], ws.diagonal[k])
    change = new - ws.beta[k]
    if violation(ws.beta[k], ws.r[k], ws.low[k], ws.high[k]) <= state.levels[GOAL]:
        look(ws, state)
        return
    row, at = lo + ws.rows[k], board.written[me * LINE]
    board.log[me, at % log, 0], board.log[me, at % log, 1] = row, change
    publish(board.written, me * LINE, at + 1)
    ws.beta[k] = board.beta[row] = new
    note(state, row, change)
    state.numbers[STEPS] += 1
    state.rows[0] = row
    resident(near, state.rows[:1], state.slots[:1])
    state.numbers[BEST], state.levels[MOST] = advance(
        ws.beta[:n], ws.r[:n], ws.low[:n], ws.high[:n], store(near)[state.slots[0]], change
    )


@numba.njit(cache=True, nogil=True, error_model="numpy")
def refresh(
    board: Any, whole: Any, near: Any, ws: Any, state: Any, me: Any, lo: Any, hi: Any, tol: Any, total: Any
) -> None:  # pragma: no cover - compiled
    """All rows of the thread learn of all `total` updates; those that violate the tolerance join the working set."""
    numbers, r = state.numbers, board.r[lo:hi]
    settle(whole, state, r)
    _, gap = greediest(board.beta[lo:hi], r, board.low[lo:hi], board.high[lo:hi])
    board.gap[me * LINE], board.part[me * LINE] = gap, share(board.beta[lo:hi], r, board.high[lo:hi])
    numbers[STEPS] = 0
    if gap <= tol:
        for k in range(numbers[ROWS]):
            ws.r[k] = r[ws.rows[k]]
        state.levels[GOAL], numbers[FRESH] = tol, 1
        look(ws, state)
        publish(board.calm, me * LINE, total)
        return
    state.levels[GOAL] = max(_DEEP * tol, _RELAX * gap)
    numbers[ROWS] = choose(board, lo, hi, ws, 0.1 * tol, gap, FIRST // board.log.shape[0])
    bring(board, lo, ws, near, numbers[ROWS])
    look(ws, state)


@numba.njit(cache=True, nogil=True)
def calm(state: Any, tol: Any, others: Any) -> Any:  # pragma: no cover - compiled
    """Whether this thread has nothing to do but to hear of the others; their steps may come together for a while."""
    return state.levels[GOAL] == tol and others > 0.0 and state.numbers[PENDING] < _MANY


@numba.njit(cache=True, nogil=True, error_model="numpy")
def work(
    board: Any, whole: Any, near: Any, ws: Any, state: Any, me: Any, lo: Any, hi: Any, tol: Any, most_steps: Any,
    turns: Any,
) -> Any:  # fmt: skip  # pragma: no cover - compiled
    """Thread `me`, which owns the rows lo to hi, for so many turns; returns BUSY, IDLE or STOPPED."""
    board, whole, near, ws, state = borrowed(board), borrowed(whole), borrowed(near), borrowed(ws), borrowed(state)
    numbers, levels = state.numbers, state.levels
    for _ in range(turns):
        if seen(board.stop, 0):
            return STOPPED
        total, news = listen(board, near, ws, state, me)
        if total >= most_steps:
            publish(board.stop, 0, LIMIT)
            return STOPPED
        eager = levels[MOST] > levels[GOAL] and numbers[STEPS] < _CYCLE * numbers[ROWS]
        others = compare(board, state, me, levels[MOST] if eager else 0.0)
        if eager and levels[MOST] >= _ZEAL * others and has_room(board, state, me):
            step(board, near, ws, state, me, lo)
        elif news:
            look(ws, state)
        elif eager:
            give_way()
        elif numbers[FRESH]:
            if over(board, total) or quiet(board.written, board.stop, total):
                return STOPPED if seen(board.stop, 0) else IDLE
        elif calm(state, tol, others):
            give_way()
        else:
            refresh(board, whole, near, ws, state, me, lo, hi, tol, total)
    return BUSY


@numba.njit(cache=True, nogil=True)
def finish(
    board: Any, whole: Any, near: Any, ws: Any, state: Any, me: Any, lo: Any, hi: Any
) -> None:  # pragma: no cover - compiled
    """When all threads have stopped: the gradient of this one's rows is brought up to date."""
    news = 1
    while news:
        _, news = listen(board, near, ws, state, me)
    settle(whole, state, board.r[lo:hi])
