"""A thread's working set: few enough rows that a step over them stays in cache.

Most steps involve few rows. The gradient of the other rows is updated only when the working set is solved: for all
steps at once, with one pass per kernel column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from asygcd.solver.board import Board
from asygcd.solver.greedy import greediest, violation
from asygcd.solver.kernel_columns import ColumnCache, add, forget, pack, resident

if TYPE_CHECKING:
    from cacore.arrays import Doubles, Longs

ROWS, PENDING, STEPS, FRESH, ROOM, BEST = range(6)  # indices into `ThreadState.numbers`
GOAL, SHOWN, MOST = range(3)  # indices into `ThreadState.levels`
FREE = 0.3  # a row between its bounds ranks like one with at least this share of the largest violation
FIRST = 8192  # rows of all threads' working sets together, apart from rows between their bounds
_BATCH = 64  # columns applied at once to the rows outside the working set
TAKE = 16  # updates applied at once to the working set


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
    board: Board, lo: int, hi: int, ws: ThreadWorkingSet, least: float, largest: float, room: int
) -> int:  # pragma: no cover - compiled
    """Choose the rows of the working set and return their number: the largest violations, and rows between bounds."""
    score, places, free = np.empty(hi - lo), np.empty(hi - lo, np.int64), 0
    count = 0
    for j in range(hi - lo):
        b, low, high = board.beta[lo + j], board.low[lo + j], board.high[lo + j]
        value = violation(b, board.r[lo + j], low, high)
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
    board: Board, lo: int, ws: ThreadWorkingSet, near: ColumnCache, count: int
) -> None:  # pragma: no cover - compiled
    """Copy the variables of the chosen rows, and pack the rows for evaluating the kernel."""
    for k in range(count):
        row = lo + ws.rows[k]
        ws.beta[k], ws.r[k] = board.beta[row], board.r[row]
        ws.low[k], ws.high[k], ws.diagonal[k] = board.low[row], board.high[row], board.diagonal[row]
    pack(near.pack, near.columns, lo, ws.rows[:count])
    forget(near)


@numba.njit(cache=True, nogil=True)
def look(ws: ThreadWorkingSet, state: ThreadState) -> None:  # pragma: no cover - compiled
    """Find the best row of the working set."""
    n = state.numbers[ROWS]
    state.numbers[BEST], state.levels[MOST] = greediest(ws.beta[:n], ws.r[:n], ws.low[:n], ws.high[:n])
