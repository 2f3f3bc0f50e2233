"""Asy-GCD with one writer per gradient entry: each thread owns its block's gradient and reads the others' logs.

This is Algorithm 14 except for step 3. Instead of adding to a shared gradient atomically, a thread appends its update
to its own log, and every thread applies it to the rows that it owns. No entry has two writers, loops become vector
instructions, and each thread caches only its rows' share of a column of Q. A thread reads the logs right before it
steps, so it misses only the updates of the last few nanoseconds.

:func:`work` is the loop of a thread. Most steps involve few rows, its working set (:class:`ThreadWorkingSet`), so that
a step over them stays in cache. The gradient of its other rows is updated only when the working set is solved: for all
steps at once, with one pass per kernel column.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from asygcd.solver.greedy import greediest, optimum, share, violation
from asygcd.solver.kernel_columns import ColumnCache, add, advance, forget, pack, resident
from asygcd.solver.shared_state import BUSY, IDLE, LIMIT, LINE, STOPPED, SharedState, over, quiet
from cacore.arrays import Doubles, Longs
from cacore.compiled.pointers import give_way, publish, seen

ROWS, PENDING, STEPS, FRESH, ROOM, BEST = range(6)  # indices into `ThreadState.numbers`
GOAL, SHOWN, MOST = range(3)  # indices into `ThreadState.levels`
# The constants of a thread's loop were reasoned when it was written; docs/benchmarks.md has the times of the whole.
FREE = 0.3  # a row between its bounds ranks like one with at least this share of the largest violation
# Rows of all threads' working sets together, apart from rows between their bounds: 48 bytes each, which stay in cache.
FIRST = 8192
_BATCH = 64  # columns applied at once to the rows outside the working set
TAKE = 16  # updates applied at once to the working set
_RELAX = 0.3  # a working set is solved to this share of the largest violation
_DEEP = 0.5  # but at least to this share of the tolerance: rows right at the tolerance would violate it again at once
_CYCLE = 10  # most steps per row of the working set before it is chosen anew
_ZEAL = 0.5  # a thread steps if its violation is at least this share of the others' largest
_SWEEPS = 4  # most times that a thread reads all logs in a row while there are new updates
_TELL = 64  # updates of another thread after which a thread acknowledges them
_MANY = 512  # pending steps that a calm thread accumulates while others work


class ThreadWorkingSet(NamedTuple):
    """Copy of the variables of the rows in a working set.

    Attributes
    ----------
    rows : ndarray of int64, shape (most,)
        Indices among the thread's rows.
    beta, r, low, high, diagonal : ndarray of float64, shape (most,)
    """

    rows: NDArray[np.int64]
    beta: NDArray[np.float64]
    r: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    diagonal: NDArray[np.float64]


class ThreadState(NamedTuple):
    """Private state of one thread.

    Attributes
    ----------
    pending : ndarray of int64, shape (n,)
        Rows whose steps have not been applied to the gradient outside the working set.
    change : ndarray of float64, shape (n,)
        Sum of the pending steps of each row.
    waits : ndarray of uint8, shape (n,)
        1 for rows in `pending`.
    taken : ndarray of int64, shape (T,)
        Number of updates of each other thread that this one has applied.
    numbers : ndarray of int64
        ROWS of the working set; PENDING rows; STEPS since the set was chosen; FRESH is 1 if the gradient of all rows
        is up to date; ROOM is the number of updates up to which the log has space; BEST row of the working set.
    levels : ndarray of float64
        GOAL, the violation at which the working set counts as solved; the violation last SHOWN as `eager`; MOST, the
        violation of the best row.
    rows, steps, slots : ndarray, shape (TAKE,)
        Updates that are being applied.
    """

    pending: NDArray[np.int64]
    change: NDArray[np.float64]
    waits: NDArray[np.uint8]
    taken: NDArray[np.int64]
    numbers: NDArray[np.int64]
    levels: NDArray[np.float64]
    rows: NDArray[np.int64]
    steps: NDArray[np.float64]
    slots: NDArray[np.int64]


def working_set(rows: int) -> ThreadWorkingSet:
    """Create an empty working set with space for `rows` rows."""
    return ThreadWorkingSet(np.zeros(rows, np.int64), *(np.zeros(rows) for _ in range(5)))


def thread_state(n: int, threads: int, beta: NDArray[np.float64]) -> ThreadState:
    """Create the initial state of a thread; the steps from 0 to `beta` are pending."""
    nonzero = np.flatnonzero(beta)
    pending, numbers = np.zeros(n, np.int64), np.zeros(6, np.int64)
    pending[: len(nonzero)], numbers[PENDING] = nonzero, len(nonzero)
    return ThreadState(
        pending, beta.copy(), (beta != 0).astype(np.uint8), np.zeros(threads, np.int64), numbers, np.zeros(3),
        np.zeros(TAKE, np.int64), np.zeros(TAKE), np.zeros(TAKE, np.int64),
    )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def note(state: ThreadState, row: int, step: float) -> None:  # pragma: no cover - compiled
    """Add a step to those pending for the rows outside the working set."""
    if not state.waits[row]:
        state.waits[row] = 1
        state.pending[state.numbers[PENDING]] = row
        state.numbers[PENDING] += 1
    state.change[row] += step
    state.numbers[FRESH] = 0


@numba.njit(cache=True, nogil=True)
def apply_pending(whole: ColumnCache, state: ThreadState, r: Doubles) -> None:  # pragma: no cover - compiled
    """Apply all pending steps to the gradient of all rows: first those with cached columns, then the others."""
    batch = min(_BATCH, whole.held.size)
    rows, steps, slots = np.empty(batch, np.int64), np.empty(batch), np.empty(batch, np.int64)
    for turn in range(2):
        k = 0
        for at in range(state.numbers[PENDING]):
            row = state.pending[at]
            if state.waits[row] and (turn == 1 or whole.slot[row] >= 0):
                state.waits[row] = 0
                if state.change[row] != 0.0:
                    rows[k], steps[k] = row, state.change[row]
                    state.change[row] = 0.0
                    k += 1
            if k == batch or (k and at + 1 == state.numbers[PENDING]):
                resident(whole, rows[:k], slots[:k])
                add(whole.add, whole.columns, slots[:k], steps[:k], r)
                k = 0
    state.numbers[PENDING] = 0


@numba.njit(cache=True, nogil=True)
def smallest(values: Doubles, k: int) -> float:  # pragma: no cover - compiled
    """The `k`-th smallest of `values`, counted from 0, which are reordered (Hoare's selection); 8 bytes per value.

    numba's ``np.partition`` takes longer to compile than all the rest of this module.
    """
    first, last = 0, values.size - 1
    while first < last:
        pivot, i, j = values[(first + last) // 2], first, last
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i, j = i + 1, j - 1
        if k > j:
            first = i if k >= i else k
        if k < i:
            last = j if k <= j else k
    return values[k]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def choose(
    shared: SharedState, lo: int, hi: int, ws: ThreadWorkingSet, least: float, largest: float, room: int
) -> int:  # pragma: no cover - compiled
    """Choose the rows of the working set and return their number: the largest violations, and rows between bounds."""
    score, places, free = np.empty(hi - lo), np.empty(hi - lo, np.int64), 0
    count = 0
    for j in range(hi - lo):
        b, low, high = shared.beta[lo + j], shared.low[lo + j], shared.high[lo + j]
        value = violation(b, shared.r[lo + j], low, high)
        if low < b < high:
            value = max(value, FREE * largest)
            free += 1
        if value > least:
            score[count], places[count] = -value, j
            count += 1
    room = min(ws.rows.size, room + 2 * free)
    if count <= room:
        for k in range(count):
            ws.rows[k] = places[k]
        return count
    return _lowest(score[:count], places, room, ws.rows)


@numba.njit(cache=True, nogil=True)
def _lowest(score: Doubles, places: Longs, room: int, rows: Longs) -> int:  # pragma: no cover - compiled
    """Write the `places` of the `room` lowest scores to `rows`, in order, and return their number."""
    edge = smallest(score.copy(), room - 1)
    over, equal = 0, 0
    for k in range(score.size):
        over += score[k] < edge
        equal += score[k] == edge
    at, met = 0, 0
    for k in range(score.size):
        if score[k] < edge:
            rows[at] = places[k]
            at += 1
        elif score[k] == edge:
            # Rows with equal violations, as at the start, are chosen evenly from the whole block.
            if (met + 1) * (room - over) // equal > met * (room - over) // equal:
                rows[at] = places[k]
                at += 1
            met += 1
    return at


@numba.njit(cache=True, nogil=True)
def bring(
    shared: SharedState, lo: int, ws: ThreadWorkingSet, near: ColumnCache, count: int
) -> None:  # pragma: no cover - compiled
    """Copy the variables of the chosen rows, and pack the rows for evaluating the kernel."""
    for k in range(count):
        row = lo + ws.rows[k]
        ws.beta[k], ws.r[k] = shared.beta[row], shared.r[row]
        ws.low[k], ws.high[k], ws.diagonal[k] = shared.low[row], shared.high[row], shared.diagonal[row]
    pack(near.pack, near.columns, lo, ws.rows[:count])
    forget(near)


@numba.njit(cache=True, nogil=True)
def look(ws: ThreadWorkingSet, state: ThreadState) -> None:  # pragma: no cover - compiled
    """Find the best row of the working set."""
    n = state.numbers[ROWS]
    state.numbers[BEST], state.levels[MOST] = greediest(ws.beta[:n], ws.r[:n], ws.low[:n], ws.high[:n])


@numba.njit(cache=True, nogil=True)
def listen(
    shared: SharedState, near: ColumnCache, ws: ThreadWorkingSet, state: ThreadState, me: int
) -> tuple[int, int]:  # pragma: no cover - compiled
    """Apply the other threads' updates; return the number of all updates applied so far, and of new ones."""
    threads, log, n = shared.log.shape[0], shared.log.shape[1], state.numbers[ROWS]
    size = min(TAKE, near.held.size)
    rows, steps, slots = state.rows, state.steps, state.slots
    stride, news = shared.taken.size // threads, 0
    for _ in range(_SWEEPS):
        before = news
        for t in range(threads):
            if t == me:
                continue
            at, end = state.taken[t], seen(shared.written, t * LINE)
            while at < end:
                k = min(size, end - at)
                for a in range(k):
                    rows[a], steps[a] = int(shared.log[t, (at + a) % log, 0]), shared.log[t, (at + a) % log, 1]
                    note(state, rows[a], steps[a])
                at, news = at + k, news + k
                if at - shared.taken[me * stride + t] >= min(_TELL, log // 2):
                    publish(shared.taken, me * stride + t, at)
                if n:
                    resident(near, rows[:k], slots[:k])
                    add(near.add, near.columns, slots[:k], steps[:k], ws.r[:n])
            state.taken[t] = at
        if news == before:
            break
    total = shared.written[me * LINE]
    for t in range(threads):
        total += state.taken[t]
    return total, news


@numba.njit(cache=True, nogil=True)
def compare(shared: SharedState, state: ThreadState, me: int, largest: float) -> float:  # pragma: no cover - compiled
    """Publish this thread's violation if it has changed by a quarter, and return the largest of the others'."""
    published = state.levels[SHOWN]
    if largest > 1.25 * published or largest < 0.8 * published:
        shared.eager[me * LINE] = state.levels[SHOWN] = largest
    others = 0.0
    for at in range(0, shared.eager.size, LINE):
        if at != me * LINE:
            others = max(others, shared.eager[at])
    return others


@numba.njit(cache=True, nogil=True)
def has_room(shared: SharedState, state: ThreadState, me: int) -> bool:  # pragma: no cover - compiled
    """Return True if the log has a free place: all others have applied the update that it would overwrite."""
    threads, at = shared.log.shape[0], shared.written[me * LINE]
    if at < state.numbers[ROOM] or threads == 1:
        return True
    least, stride = at, shared.taken.size // threads
    for t in range(threads):
        if t != me:
            least = min(least, seen(shared.taken, t * stride + me))
    state.numbers[ROOM] = least + shared.log.shape[1]
    return at < state.numbers[ROOM]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def step(
    shared: SharedState, near: ColumnCache, ws: ThreadWorkingSet, state: ThreadState, me: int, lo: int
) -> None:  # pragma: no cover - compiled
    """Move the working set's best row to its optimum and publish the step, unless its violation is small enough."""
    n, k, log = state.numbers[ROWS], state.numbers[BEST], shared.log.shape[1]
    new = optimum(ws.beta[k], ws.r[k], ws.low[k], ws.high[k], ws.diagonal[k])
    change = new - ws.beta[k]
    if violation(ws.beta[k], ws.r[k], ws.low[k], ws.high[k]) <= state.levels[GOAL]:
        look(ws, state)
        return
    row, at = lo + ws.rows[k], shared.written[me * LINE]
    shared.log[me, at % log, 0], shared.log[me, at % log, 1] = row, change
    publish(shared.written, me * LINE, at + 1)
    ws.beta[k] = shared.beta[row] = new
    note(state, row, change)
    state.numbers[STEPS] += 1
    state.rows[0] = row
    resident(near, state.rows[:1], state.slots[:1])
    state.numbers[BEST], state.levels[MOST] = advance(
        near.advance, near.columns, state.slots[0], change, ws.beta[:n], ws.r[:n], ws.low[:n], ws.high[:n]
    )


@numba.njit(cache=True, nogil=True, error_model="numpy")
def refresh(
    shared: SharedState, whole: ColumnCache, near: ColumnCache, ws: ThreadWorkingSet, state: ThreadState, me: int,
    lo: int, hi: int, tol: float, total: int,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Apply all `total` updates to the thread's rows; if some violate the tolerance, choose a new working set."""
    numbers, r = state.numbers, shared.r[lo:hi]
    apply_pending(whole, state, r)
    _, gap = greediest(shared.beta[lo:hi], r, shared.low[lo:hi], shared.high[lo:hi])
    shared.gap[me * LINE], shared.part[me * LINE] = gap, share(shared.beta[lo:hi], r, shared.high[lo:hi])
    numbers[STEPS] = 0
    if gap <= tol:
        for k in range(numbers[ROWS]):
            ws.r[k] = r[ws.rows[k]]
        state.levels[GOAL], numbers[FRESH] = tol, 1
        look(ws, state)
        publish(shared.calm, me * LINE, total)
        return
    state.levels[GOAL] = max(_DEEP * tol, _RELAX * gap)
    numbers[ROWS] = choose(shared, lo, hi, ws, 0.1 * tol, gap, FIRST // shared.log.shape[0])
    bring(shared, lo, ws, near, numbers[ROWS])
    look(ws, state)


@numba.njit(cache=True, nogil=True)
def calm(state: ThreadState, tol: float, others: float) -> bool:  # pragma: no cover - compiled
    """Return True if this thread has converged while others work: their steps may accumulate before it applies them."""
    return state.levels[GOAL] == tol and others > 0.0 and state.numbers[PENDING] < _MANY


@numba.njit(cache=True, nogil=True, error_model="numpy")
def work(
    shared: SharedState, whole: ColumnCache, near: ColumnCache, ws: ThreadWorkingSet, state: ThreadState, me: int,
    lo: int, hi: int, tol: float, most_steps: int, turns: int,
) -> int:  # fmt: skip  # pragma: no cover - compiled
    """Run thread `me`, which owns rows lo to hi, for `turns` turns; return BUSY, IDLE or STOPPED."""
    numbers, levels = state.numbers, state.levels
    for _ in range(turns):
        if seen(shared.stop, 0):
            return STOPPED
        total, news = listen(shared, near, ws, state, me)
        if total >= most_steps:
            publish(shared.stop, 0, LIMIT)
            return STOPPED
        eager = levels[MOST] > levels[GOAL] and numbers[STEPS] < _CYCLE * numbers[ROWS]
        others = compare(shared, state, me, levels[MOST] if eager else 0.0)
        if eager and levels[MOST] >= _ZEAL * others and has_room(shared, state, me):
            step(shared, near, ws, state, me, lo)
        elif news:
            look(ws, state)
        elif eager:
            give_way()
        elif numbers[FRESH]:
            if over(shared, total) or quiet(shared.written, shared.stop, total):
                return STOPPED if seen(shared.stop, 0) else IDLE
        elif calm(state, tol, others):
            give_way()
        else:
            refresh(shared, whole, near, ws, state, me, lo, hi, tol, total)
    return BUSY


@numba.njit(cache=True, nogil=True)
def finish(
    shared: SharedState, whole: ColumnCache, near: ColumnCache, ws: ThreadWorkingSet, state: ThreadState, me: int,
    lo: int, hi: int,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Bring the gradient of this thread's rows up to date, after all threads have stopped."""
    news = 1
    while news:
        _, news = listen(shared, near, ws, state, me)
    apply_pending(whole, state, shared.r[lo:hi])
