"""The inner loop of SMO for mostly negligible kernel values: a pair changes only the rows near it.

The rest of the gradient does not change, nor do its extremes, which are stored per block. The search for the pair that
violates most scans the block extremes. Its partner is the row with the largest gain among the near rows and, outside
them, the row that falls with the least v.

The passes over one block are in :mod:`cacore.compiled.vectors`. A pass takes a block, a multiple of STEP rows, and
returns its extremes. The permitted moves of rows are numbers added to their v: 0, the width of the kink, or
an infinity if a row may not rise, or fall.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from cacore.compiled.vectors import advance, extremes, largest_gain
from cacore.machine.deadline import poll
from cacore.near.boxes import Runs
from cacore.svm.dual import Dual
from casvm.solver.near_rows import Near, NearRows, row_of
from casvm.solver.pair import LEAST, Index, PairState, Vector, padded, rising

if TYPE_CHECKING:
    from cacore.arrays import Doubles, Reals


class NearPairs(PairState):
    """Rows of a problem, optimised pair by pair over near rows only; compare :class:`casvm.solver.pair.Pairs`.

    Parameters
    ----------
    gram : NearRows
        Its active rows are those of the problem.
    dual : Dual
        Provides epsilon and the rule for signs.
    v, beta, lower, upper : ndarray of float64, shape (size,)
        Values of the active rows. Copied.

    Attributes
    ----------
    iterations : int
    """

    def __init__(self, gram: NearRows, dual: Dual, v: Vector, beta: Vector, lower: Vector, upper: Vector) -> None:
        self.gram, W = gram, gram.width
        count = -(-len(v) // W)
        super().__init__(count * W, dual.epsilon, v, beta, lower, upper)
        v, beta, lower, upper = self._state
        if self.epsilon:
            v[:] = rising(v, beta, self.epsilon)
        sides = [upper > 0, upper <= 0] if dual.by_sign else [np.ones(count * W, np.bool_)]
        # Numbers added to the v of rising and falling rows: infinite if the move is not allowed, the width at the kink.
        self._up = np.array([np.where(side & (beta < upper), 0.0, -np.inf) for side in sides])
        kink = 2.0 * self.epsilon * (beta == 0)
        self._down = np.array([np.where(side & (beta > lower), kink, np.inf) for side in sides])
        self._tops, self._bottoms = (np.full((len(sides), padded(count)), end) for end in (-np.inf, np.inf))
        _begin(v, self._up, self._down, W, self._tops, self._bottoms)

    def optimise(self, tol: float, max_iter: int) -> None:
        """Optimise until no pair violates by `tol`, or for at most `max_iter` pairs.

        Notes
        -----
        Chooses pairs as :meth:`casvm.solver.pair.Pairs.optimise` does. Each takes two passes over the rows near it and
        one over the extremes of all blocks. Rows of K are computed on demand. One thread.
        """
        done = self.iterations
        while True:
            poll()
            now, remaining = int(self.gram.near.used.max(initial=0)), max_iter - (self.iterations - done)
            count, full = _optimise(
                self.gram.near, *self._state, self._up, self._down, self._tops, self._bottoms, 2.0 * self.epsilon,
                2.0 * self.gram.diagonal, tol, remaining, now,
            )  # fmt: skip
            self.iterations += count
            if not full:
                return
            self.gram.make_room()

    def without(self, rows: Index, change: Vector) -> Vector:
        """V of the active rows of `gram`, less ``change @ K(rows, active)``; the problem is not optimised further."""
        self.gram.subtract(rows, change, self._state[0])
        return self.v[: len(self.gram.active)].copy()


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _optimise(
    near: Near, v: Doubles, beta: Doubles, lower: Doubles, upper: Doubles, up: Doubles, down: Doubles, tops: Doubles,
    bottoms: Doubles, width: float, diagonals: float, tol: float, max_iter: int, now: int,
) -> tuple[int, bool]:  # fmt: skip  # pragma: no cover - compiled
    """Perform :meth:`NearPairs.optimise`; return the number of pairs, and True if the pool is full.

    Parameters
    ----------
    near : Near
    v, beta, lower, upper : float64, shape (size,), a multiple of a panel's width
        `v`, of rows that rise, and `beta` are updated.
    up, down : float64, shape (1 or 2, size)
        Numbers added to the v of rows that rise, and of rows that fall; updated.
    tops, bottoms : float64, shape (1 or 2, blocks), a multiple of STEP
        The largest v that rises and the smallest that falls, per block; updated.
    width, diagonals : float64
        2 epsilon; K_ii + K_jj.
    now : int
        Time of the last pair of the previous call.
    """
    W, runs, done = near.data.shape[2], near.runs, 0
    while True:
        side, top, bottom = _most_violating(tops, bottoms)
        if not top - bottom >= tol or done >= max_iter:
            return done, False
        now += 1
        i = _place(top, tops[side], v, up[side], W)
        group, a = near.rows[i] // W, row_of(near, near.rows[i], now)
        if a < 0:
            return done, True
        j, K_ij = _partner(v, down[side], bottoms[side], runs, group, near.pool, a, top, bottom, diagonals, W)
        partner_group, b = near.rows[j] // W, row_of(near, near.rows[j], now)
        if b < 0:
            return done, True
        if runs.blocks[group] == 0 or runs.blocks[partner_group] == 0:
            K_ij = 0.25 * diagonals  # with the row of the bias, the curvature is K_ii
        step = _step(i, j, K_ij, v, beta, lower, upper, up[side], down[side], width, diagonals)
        if _alike(runs, group, partner_group):
            _advance(v, near.pool, a, b, step, up, down, runs, group, W, tops, bottoms)
        else:
            _advance(v, near.pool, a, None, step, up, down, runs, group, W, tops, bottoms)
            _advance(v, near.pool, b, None, -step, up, down, runs, partner_group, W, tops, bottoms)
        done += 1


@numba.njit(cache=True, nogil=True)
def _begin(
    v: Doubles, up: Doubles, down: Doubles, W: int, tops: Doubles, bottoms: Doubles
) -> None:  # pragma: no cover - compiled
    """Compute the extremes of all blocks; arrays as in :func:`_optimise`."""
    for side in range(len(up)):
        for k in range(v.size // W):
            block = slice(k * W, (k + 1) * W)
            ends = advance(v[block], None, None, 0.0, up[side, block], down[side, block], W)
            tops[side, k], bottoms[side, k] = ends


@numba.njit(cache=True, nogil=True)
def _most_violating(tops: Doubles, bottoms: Doubles) -> tuple[int, float, float]:  # pragma: no cover - compiled
    """The side of the pair that violates most, and its two v; arrays as in :func:`_optimise`."""
    side = 0
    top, bottom = extremes(tops[0], bottoms[0], tops.shape[1])
    if len(tops) > 1:
        second_top, second_bottom = extremes(tops[1], bottoms[1], tops.shape[1])
        if second_top - second_bottom > top - bottom:
            side, top, bottom = 1, second_top, second_bottom
    return side, top, bottom


@numba.njit(cache=True, nogil=True)
def _place(value: float, ends: Doubles, v: Doubles, added: Doubles, W: int) -> int:  # pragma: no cover - compiled
    """The first row whose v plus `added` equals this value, the extreme of a block."""
    block = 0
    while block + 1 < v.size // W and ends[block] != value:
        block += 1
    row = block * W
    while row + 1 < (block + 1) * W and v[row] + added[row] != value:
        row += 1
    return row


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _step(
    i: int, j: int, K_ij: float, v: Doubles, beta: Doubles, lower: Doubles, upper: Doubles, up: Doubles, down: Doubles,
    width: float, diagonals: float,
) -> float:  # fmt: skip  # pragma: no cover - compiled
    """Raise row i and lower row j by the optimal step, and return the step; arrays as in :func:`_optimise`."""
    curvature = max(diagonals - 2.0 * K_ij, LEAST)
    ceiling, floor, difference = upper[i], lower[j], v[i] - v[j]
    if width > 0:  # not further than the kink
        ceiling, floor = 0.0 if beta[i] < 0 else ceiling, 0.0 if beta[j] > 0 else floor
        difference -= width * (beta[j] == 0)
    rise, fall = ceiling - beta[i], beta[j] - floor
    step = min(difference / curvature, rise, fall)
    negative_i, negative_j = beta[i] < 0, beta[j] < 0
    # A row that arrives at its bound is set to it exactly.
    beta[i] = ceiling if step == rise else min(beta[i] + step, ceiling)
    beta[j] = floor if step == fall else max(beta[j] - step, floor)
    # The v of rising rows differs below and above 0.
    v[i] -= width * (negative_i and not beta[i] < 0)
    v[j] += width * (beta[j] < 0 and not negative_j)
    for row in (i, j):
        up[row] = 0.0 if beta[row] < upper[row] else -np.inf
        down[row] = width * (beta[row] == 0) if beta[row] > lower[row] else np.inf
    return step


@numba.njit(cache=True, nogil=True)
def _alike(runs: Runs, a: int, b: int) -> bool:  # pragma: no cover - compiled
    """True if two groups of rows are near the same blocks."""
    i, j = runs.starts[a], runs.starts[b]
    if runs.starts[a + 1] - i != runs.starts[b + 1] - j:
        return False
    for k in range(runs.starts[a + 1] - i):
        if runs.first[i + k] != runs.first[j + k] or runs.last[i + k] != runs.last[j + k]:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def _advance(
    v: Doubles, pool: Reals, first: int, second: int | None, step: float, up: Doubles, down: Doubles, runs: Runs,
    group: int, W: int, tops: Doubles, bottoms: Doubles,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """``v -= step (K_i - K_j)`` over the blocks near this group, whose extremes are updated.

    `first` and `second`, if there is one, are the starts of the rows of K in the pool; both cover these blocks. Other
    arguments are as in :func:`_optimise`.
    """
    at = 0
    for k in range(runs.starts[group], runs.starts[group + 1]):
        for block in range(runs.first[k], runs.last[k]):
            part, row = slice(block * W, (block + 1) * W), pool[first + at : first + at + W]
            if second is None:
                ends = advance(v[part], row, None, step, up[0, part], down[0, part], W)
            else:
                minus = pool[second + at : second + at + W]
                ends = advance(v[part], row, minus, step, up[0, part], down[0, part], W)
            tops[0, block], bottoms[0, block] = ends
            if len(up) > 1:
                ends = advance(v[part], None, None, 0.0, up[1, part], down[1, part], W)
                tops[1, block], bottoms[1, block] = ends
            at += W


@numba.njit(cache=True, nogil=True)
def _partner(
    v: Doubles, down: Doubles, bottoms: Doubles, runs: Runs, group: int, pool: Any, at: int, top: float,
    bottom: float, diagonals: float, W: int,
) -> tuple[int, float]:  # fmt: skip  # pragma: no cover - compiled
    """The row with the largest gain as partner of a row of this group, and their kernel value.

    The row has its values at `at` in the pool, and v `top`; `bottom` is the smallest v of a row that falls. Other
    arguments are as in :func:`_optimise`, for one side.
    """
    real, row = pool.dtype.type, _place(bottom, bottoms, v, down, W)
    # Distant rows all have the same curvature, so the one with the least v gains most. If that row is near, it gains
    # more than any distant one.
    largest, best, where = real((top - bottom) ** 2 / diagonals), row // W, -1
    for k in range(runs.starts[group], runs.starts[group + 1]):
        for block in range(runs.first[k], runs.last[k]):
            part = slice(block * W, (block + 1) * W)
            gain = largest_gain(v[part], down[part], pool[at : at + W], top, real(diagonals), real(LEAST), W)
            if gain > largest or (block == best and where < 0):
                largest, best, where = gain, block, at
            at += W
    if where < 0:
        return row, 0.0
    row, largest = best * W, -1.0
    for k in range(W):
        distance = max(top - (v[best * W + k] + down[best * W + k]), 0.0)
        gain = distance * distance / max(diagonals - 2.0 * np.float64(pool[where + k]), LEAST)
        if gain > largest:
            row, largest = best * W + k, gain
    return row, np.float64(pool[where + row - best * W])
