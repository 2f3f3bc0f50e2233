"""Asy-GCD with one writer per gradient entry: each thread owns its block's gradient and reads the others' logs.

This is Algorithm 14 except for step 3. Instead of adding to a shared gradient atomically, a thread appends its update
to its own log, and every thread applies it to the rows that it owns. No entry has two writers, loops become vector
instructions, and each thread caches only its rows' share of a column of Q. A thread reads the logs right before it
steps, so it misses only the updates of the last few nanoseconds.
"""

from __future__ import annotations

import numba

from asygcd.solver.board import BUSY, IDLE, LIMIT, LINE, STOPPED, Board, over, quiet
from asygcd.solver.greedy import greediest, optimum, share, violation
from asygcd.solver.kernel_columns import ColumnCache, add, advance, resident
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
    ThreadState,
    ThreadWorkingSet,
    apply_pending,
    bring,
    choose,
    look,
    note,
)
from cacore.compiled.pointers import give_way, publish, seen

_RELAX = 0.3  # a working set is solved to this share of the largest violation
_DEEP = 0.5  # but at least to this share of the tolerance: rows right at the tolerance would violate it again at once
_CYCLE = 10  # most steps per row of the working set before it is chosen anew
_ZEAL = 0.5  # a thread steps if its violation is at least this share of the others' largest
_SWEEPS = 4  # most times that a thread reads all logs in a row while there are new updates
_TELL = 64  # updates of another thread after which a thread acknowledges them
_MANY = 512  # pending steps that a calm thread accumulates while others work


@numba.njit(cache=True, nogil=True)
def listen(
    board: Board, near: ColumnCache, ws: ThreadWorkingSet, state: ThreadState, me: int
) -> tuple[int, int]:  # pragma: no cover - compiled
    """Apply the other threads' updates; return the number of all updates applied so far, and of new ones."""
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
                    add(near.add, near.columns, slots[:k], steps[:k], ws.r[:n])
            state.taken[t] = at
        if news == before:
            break
    total = board.written[me * LINE]
    for t in range(threads):
        total += state.taken[t]
    return total, news


@numba.njit(cache=True, nogil=True)
def compare(board: Board, state: ThreadState, me: int, largest: float) -> float:  # pragma: no cover - compiled
    """Publish this thread's violation if it has changed by a quarter, and return the largest of the others'."""
    published = state.levels[SHOWN]
    if largest > 1.25 * published or largest < 0.8 * published:
        board.eager[me * LINE] = state.levels[SHOWN] = largest
    others = 0.0
    for at in range(0, board.eager.size, LINE):
        if at != me * LINE:
            others = max(others, board.eager[at])
    return others


@numba.njit(cache=True, nogil=True)
def has_room(board: Board, state: ThreadState, me: int) -> bool:  # pragma: no cover - compiled
    """Return True if the log has a free place: all others have applied the update that it would overwrite."""
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
def step(
    board: Board, near: ColumnCache, ws: ThreadWorkingSet, state: ThreadState, me: int, lo: int
) -> None:  # pragma: no cover - compiled
    """Move the working set's best row to its optimum and publish the step, unless its violation is small enough."""
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
        near.advance, near.columns, state.slots[0], change, ws.beta[:n], ws.r[:n], ws.low[:n], ws.high[:n]
    )


@numba.njit(cache=True, nogil=True, error_model="numpy")
def refresh(
    board: Board, whole: ColumnCache, near: ColumnCache, ws: ThreadWorkingSet, state: ThreadState, me: int, lo: int,
    hi: int, tol: float, total: int,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Apply all `total` updates to the thread's rows; if some violate the tolerance, choose a new working set."""
    numbers, r = state.numbers, board.r[lo:hi]
    apply_pending(whole, state, r)
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
def calm(state: ThreadState, tol: float, others: float) -> bool:  # pragma: no cover - compiled
    """Return True if this thread has converged while others work: their steps may accumulate before it applies them."""
    return state.levels[GOAL] == tol and others > 0.0 and state.numbers[PENDING] < _MANY


@numba.njit(cache=True, nogil=True, error_model="numpy")
def work(
    board: Board, whole: ColumnCache, near: ColumnCache, ws: ThreadWorkingSet, state: ThreadState, me: int, lo: int,
    hi: int, tol: float, most_steps: int, turns: int,
) -> int:  # fmt: skip  # pragma: no cover - compiled
    """Run thread `me`, which owns rows lo to hi, for `turns` turns; return BUSY, IDLE or STOPPED."""
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
    board: Board, whole: ColumnCache, near: ColumnCache, ws: ThreadWorkingSet, state: ThreadState, me: int, lo: int,
    hi: int,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Bring the gradient of this thread's rows up to date, after all threads have stopped."""
    news = 1
    while news:
        _, news = listen(board, near, ws, state, me)
    apply_pending(whole, state, board.r[lo:hi])
