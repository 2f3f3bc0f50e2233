"""A thread's working set: rows few enough that a step over them stays in cache.

Most steps are among few rows. The gradient of the others learns of all steps together, each column once, when
there is nothing left to do among these.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from asygcd.solver.cache import ALIGNED, forget, resident, store
from asygcd.solver.greedy import greediest, violation
from cacore.kernels import wide
from cacore.kernels.panels import add_rows, pack_csr, panel_norms

ROWS, PENDING, STEPS, FRESH, ROOM, BEST = range(6)  # places of a thread's numbers
GOAL, SHOWN, MOST = range(3)  # and of its levels
FREE = 0.3  # how a row between its bounds ranks: as one with this share of the largest violation
FIRST = 8192  # rows of the working sets at the beginning, of all threads together
_BATCH = 64  # columns that the rows outside the working set take in at once
TAKE = 16  # updates that the working set takes in at once


class WorkingSet(NamedTuple):
    """A copy of the variables of its rows.

    Attributes
    ----------
    rows : ndarray of int64, shape (most,)
        Places among the thread's rows.
    beta, r, low, high, diagonal : ndarray of float64, shape (most,)
    """

    rows: NDArray[np.int64]
    beta: NDArray[np.float64]
    r: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    diagonal: NDArray[np.float64]


class ThreadState(NamedTuple):
    """What one thread remembers.

    Attributes
    ----------
    pending : ndarray of int64, shape (n,)
        Rows whose steps the gradient of the rows outside the working set has not heard of.
    change : ndarray of float64, shape (n,)
        The sums of those steps.
    waits : ndarray of uint8, shape (n,)
        Whether a row is among `pending`.
    taken : ndarray of int64, shape (T,)
        Updates of each other thread that were taken in.
    numbers : ndarray of int64
        How many ROWS the working set has and how many PENDING; STEPS since they were chosen; whether everything
        is FRESH; updates up to which there is ROOM in the log; the BEST row of the working set.
    levels : ndarray of float64
        GOAL, the violation at which the working set is done with; what was last SHOWN as `eager`; the violation
        of the best row, the MOST there is.
    rows, steps, slots : ndarray, shape (TAKE,)
        Updates that are being taken in.
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


def working_set(most: int) -> WorkingSet:
    """Room for so many."""
    return WorkingSet(np.zeros(most, np.int64), *(np.zeros(most) for _ in range(5)))


def thread_state(n: int, threads: int, beta: NDArray[np.float64]) -> ThreadState:
    """How a thread begins; the gradient has not heard of `beta` yet."""
    given = np.flatnonzero(beta)
    pending, numbers = np.zeros(n, np.int64), np.zeros(6, np.int64)
    pending[: len(given)], numbers[PENDING] = given, len(given)
    return ThreadState(
        pending, beta.copy(), (beta != 0).astype(np.uint8), np.zeros(threads, np.int64), numbers, np.zeros(3),
        np.zeros(TAKE, np.int64), np.zeros(TAKE), np.zeros(TAKE, np.int64),
    )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def note(state: Any, row: Any, step: Any) -> None:  # pragma: no cover - compiled
    """Remember a step for the rows outside the working set."""
    if not state.waits[row]:
        state.waits[row] = 1
        state.pending[state.numbers[PENDING]] = row
        state.numbers[PENDING] += 1
    state.change[row] += step
    state.numbers[FRESH] = 0


@numba.njit(cache=True, nogil=True)
def settle(whole: Any, state: Any, r: Any) -> None:  # pragma: no cover - compiled
    """Take all pending steps into the gradient of all rows; first by the columns that are there, then by the others."""
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
                add_rows(store(whole), slots[:k], steps[:k], r, 0, r.size)
                k = 0
    state.numbers[PENDING] = 0


@numba.njit(cache=True, nogil=True, error_model="numpy")
def choose(
    board: Any, lo: Any, hi: Any, ws: Any, least: Any, most: Any, room: Any
) -> Any:  # pragma: no cover - compiled
    """Choose the working set: the rows that violate most, and rows between their bounds; returns how many."""
    score, places, free = np.empty(hi - lo), np.empty(hi - lo, np.int64), 0
    count = 0
    for j in range(hi - lo):
        b, low, high = board.beta[lo + j], board.low[lo + j], board.high[lo + j]
        value = violation(b, board.r[lo + j], low, high)
        if low < b < high:
            value = max(value, FREE * most)
            free += 1
        if value > least:
            score[count], places[count] = -value, j
            count += 1
    room = min(ws.rows.size, room + 2 * free)
    if count <= room:
        ws.rows[:count] = places[:count]
        return count
    edge = np.partition(score[:count], room - 1)[room - 1]
    over, equal = 0, 0
    for k in range(count):
        over += score[k] < edge
        equal += score[k] == edge
    at, met = 0, 0
    for k in range(count):
        if score[k] < edge:
            ws.rows[at] = places[k]
            at += 1
        elif score[k] == edge:
            # Of equals, as at the beginning, some from everywhere.
            if (met + 1) * (room - over) // equal > met * (room - over) // equal:
                ws.rows[at] = places[k]
                at += 1
            met += 1
    return at


@numba.njit(cache=True, nogil=True)
def bring(board: Any, lo: Any, ws: Any, near: Any, count: Any) -> None:  # pragma: no cover - compiled
    """Copy the variables of these rows, and pack the rows as columns of kernel values."""
    at = 0
    for k in range(count):
        row = lo + ws.rows[k]
        ws.beta[k], ws.r[k] = board.beta[row], board.r[row]
        ws.low[k], ws.high[k], ws.diagonal[k] = board.low[row], board.high[row], board.diagonal[row]
        near.own_starts[k] = at
        for q in range(near.starts[row], near.starts[row + 1]):
            near.own_values[at], near.own_columns[at] = near.values[q], near.columns[q]
            at += 1
        if near.list_starts.size:
            near.own_middles[k] = near.own_starts[k] + near.middles[row] - near.starts[row]
    near.own_starts[count] = at
    width = near.data.shape[2]
    panels, starts = -(-count // width), near.own_starts[: count + 1]
    data, squares = near.data[:panels], near.data_squares[: panels * width]
    data[:] = 0
    squares[:] = 0
    if near.list_starts.size:
        middles = near.own_middles[:count]
        for k in range(count):
            squares[k] = near.squares[lo + ws.rows[k]]
        near.list_starts[:] = 0
        wide.pack(near.own_values, near.own_columns, starts, middles, data)
        wide.enlist(
            near.own_values, near.own_columns, starts, middles, data.shape[1], 0, near.list_starts[0], near.list_values,
            near.list_rows,
        )  # fmt: skip
    else:
        pack_csr(near.own_values, near.own_columns, starts, data)
        panel_norms(data, near.kernel[4], squares)
    near.size[0], near.size[1] = count, -(-count // ALIGNED) * ALIGNED
    forget(near)


@numba.njit(cache=True, nogil=True)
def look(ws: Any, state: Any) -> None:  # pragma: no cover - compiled
    """Find the best row of the working set."""
    n = state.numbers[ROWS]
    state.numbers[BEST], state.levels[MOST] = greediest(ws.beta[:n], ws.r[:n], ws.low[:n], ws.high[:n])
