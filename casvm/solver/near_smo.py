"""SMO for narrow kernels of a distance, whose values are mostly negligible.

:class:`NearValues` solves a part pair by pair from the start. The cost of a pair, and of a row of K, is proportional to
the number of rows near it. Rounds and threads would save less than their additional pairs cost. Everything else follows
:mod:`casvm.solver.smo`.

:class:`NearSets` optimises working sets at a given bias, if memory does not hold the rows of the kernel matrix. Pairs
of all rows would then compute the same rows of K again and again. Working sets of neighbours, of rows that violate and
of rows between their bounds, are optimised one after the other. Only values of their own rows with each other are kept
meanwhile. The rows that moved then change v of all rows in one product, which takes a few nanoseconds per value; a row
of K that a pair asks for takes three to five times as long.

:class:`NearPairs` is the inner loop of both. A pair changes the gradient of the rows near it alone. The extremes of the
gradient are stored per block of rows, and the search for the pair that violates most scans these. Its partner is the
row with the largest gain among the near rows and, outside them, the row that falls with the least v.

:class:`NearColumns` computes rows of K for working sets of the solver on all ranks (:mod:`casvm.solver.distributed`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.arrays import Reals
from cacore.compiled.vectors import advance, extremes, largest_gain
from cacore.data.rows import Rows, dense, is_sparse, largest_size, nbytes
from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.kernels.near import STRETCH, NearPanels, spatial_order, squared_cutoff
from cacore.kernels.precision import Accuracy
from cacore.kernels.sums import width
from cacore.limits import Limits
from cacore.machine.deadline import poll
from cacore.machine.threads import blocks
from cacore.near.boxes import Runs
from cacore.svm.dual import Dual, Progress, Solution
from cacore.svm.problem import precision
from casvm.solver.active_set import LEAST, SMO, ActiveSet, PairState, Shrinking, falling, rising
from casvm.solver.kernel_rows import Index, KernelRows, Vector, padded
from casvm.solver.near_rows import VANISHED, Near, NearRows, row_of, share_near

if TYPE_CHECKING:
    from cacore.arrays import Doubles

LEAST_ROWS = 8192  # with fewer, the whole kernel matrix takes less than 256 MiB
# Largest share of kernel values that are not negligible. In covtype (50,000 rows, gamma = 32) it is a twelfth; the
# dense solver took 37 s there, 12 of them for first touches of memory.
MOST_NEAR = 0.25
SHRINKING = Shrinking(patience=3, share=0.4, share_if_copied=0.4)
_CHUNK = 2000  # pairs between two checks for inactive rows; a check passes all rows, a pair only near ones


@dataclass(frozen=True, eq=False)
class NearValues:
    """The kernel values of a part that are not negligible.

    Attributes
    ----------
    gram : NearRows
    order : ndarray of int64, shape (n,)
        The part's row at each place of `gram`.
    """

    gram: NearRows
    order: Index

    def solve(self, dual: Dual, limits: Limits, watch: Callable[[Progress], None] | None = None) -> Solution:
        """Solve a dual of the part's rows, with a feasible start, if any; kernel values are kept between calls."""
        order, start = self.order, None if dual.start is None else dual.start[self.order]
        arrays = {name: getattr(dual, name)[order] for name in ("linear", "lower", "upper")}
        same = replace(dual, start=start, near_start=None, **arrays)
        solution = _Near(self.gram, same, limits, watch).run(dual.n)
        back = np.argsort(order)
        return replace(solution, beta=solution.beta[back], decision=solution.decision[back])


def near_values(X: Rows, kernel: Kernel | None, dual: Dual, limits: Limits, cache_bytes: int) -> NearValues | None:
    """The near values of a part for duals with bounds up to those of `dual`, or None if most values matter.

    The neglected values change a gradient by at most a thousandth of the tolerance. A solution takes about one row of K
    per support vector, and two passes over the near rows per pair, in one thread.
    """
    n = dual.n
    if kernel is None or n < LEAST_ROWS or X.shape[1] * n * 8 > cache_bytes:
        return None
    largest, farthest = float(np.maximum(dual.upper, -dual.lower).sum()), 4.0 * X.shape[1] * largest_size(X) ** 2
    cutoff = squared_cutoff(kernel, farthest, VANISHED * limits.tol / largest) if largest > 0 else np.inf
    if not np.isfinite(cutoff) or share_near(X, kernel, cutoff) > MOST_NEAR:
        return None
    dtype = precision(X.shape, kernel.largest(X, np.float64), dual.largest_bound, limits.tol)
    accuracy = Accuracy.of_solution(dual.largest_bound, limits.tol)
    layout = Layout.of(X, kernel, dtype, None, accuracy)
    if not layout.packed:
        return None
    order = spatial_order(X, width(layout.dtype))
    gram = NearRows(X[order], kernel, dtype, layout, cutoff, cache_bytes - nbytes(X))
    if gram.size > MOST_NEAR * n * n or not gram.fits:
        return None
    return NearValues(gram, order)


class _Near(SMO):
    """SMO on one process, for a kernel matrix most of which is left out."""

    def __init__(self, gram: NearRows, dual: Dual, limits: Limits, watch: Callable[[Progress], None] | None) -> None:
        super().__init__(limits, watch)
        gram.begin()
        self.gram = gram
        active = self.active = ActiveSet(dual, gram, SHRINKING)
        moved = np.flatnonzero(active.beta)
        self._reconstruct(moved, active.beta[moved], active.rows, active.v)
        self.objective = 0.5 * float(np.sum((active.v - dual.linear) * active.beta))
        self.objective -= dual.epsilon * float(np.abs(active.beta).sum())

    def _reconstruct(self, moved: Index, change: Vector, rows: Index, v: Vector) -> None:
        if len(moved):
            v -= self.gram.product(moved, change, rows)

    def _shrink(self, top: float, bottom: float) -> None:
        self.active.shrink(self.active.idle(top, bottom))

    def _square(self, rows: Index, beta: Vector) -> float:
        return float(self.gram.quadratics(rows, beta[None])[0])

    def _products(self, rows: Index, beta: Vector, others: Index) -> tuple[Vector, Vector]:
        columns = np.union1d(rows, others)
        sums = self.gram.product(rows, beta, columns, exact=True) if len(rows) else np.zeros(len(columns))
        return sums[np.searchsorted(columns, rows)], sums[np.searchsorted(columns, others)]

    def _step(self, top: float, bottom: float, max_pairs: int) -> bool:
        active, dual = self.active, self.active.dual
        problem = NearPairs(self.gram, dual, active.v, active.beta, active.lower, active.upper)
        problem.optimise(self.limits.tol, min(max_pairs, _CHUNK))
        gain = 0.5 * float(np.sum((problem.beta - active.beta) * (active.v + problem.v)))
        gain -= dual.epsilon * float(np.abs(problem.beta).sum() - np.abs(active.beta).sum())
        self.objective += gain
        active.v, active.beta = problem.v.copy(), problem.beta.copy()
        self.iterations += problem.iterations
        return problem.iterations > 0


_PAIRS = 4  # most pairs per row of a working set


def at_bias(gram: NearRows, dual: Dual, b: float, v: Vector, beta: Vector, lower: Vector, upper: Vector) -> NearPairs:
    """The active rows, and behind them one without kernel values and far from its bounds, which takes and gives at b.

    Above a kink, v of rows that rise is lower by epsilon.
    """
    far = 1.0 + float(np.maximum(upper, -lower).sum() + np.abs(beta).sum())
    padding = np.zeros(len(gram.near.rows) - 1 - len(v))
    lines = (v, b + dual.epsilon), (beta, 2 * far), (lower, far), (upper, 3 * far)
    return NearPairs(gram, dual, *(np.concatenate([line, padding, [end]]) for line, end in lines))


class NearSets:
    """Rows of a problem at a bias; what :func:`at_bias` returns is used in the same way.

    Parameters
    ----------
    gram : NearRows
        Its active rows are those of the problem.
    dual : Dual
    b : float
    v, beta, lower, upper : ndarray of float64, shape (size,)
        Values of the active rows. Not changed.

    Attributes
    ----------
    v, beta : ndarray of float64, shape (size,)
    iterations : int

    Notes
    -----
    A working set costs its rows of K over the set, and each row that moved its row over all active columns.
    """

    def __init__(
        self, gram: NearRows, dual: Dual, b: float, v: Vector, beta: Vector, lower: Vector, upper: Vector
    ) -> None:  # fmt: skip
        self.gram, self.dual, self.b, self.lower, self.upper = gram, dual, b, lower, upper
        self.v, self.beta, self.iterations = v, beta.copy(), 0

    def violating(self, tol: float) -> int:
        """Number of rows that violate by more than `tol`."""
        return int(np.count_nonzero(self._violations(slice(None)) > tol))

    def optimise(self, tol: float, max_iter: int) -> None:
        """Optimise every working set once, until none of its rows violates by `tol`, or for at most `max_iter` pairs.

        The sets are stretches of the rows, such that the kernel values of each fit in memory.
        """
        rows = self._wanted(tol, slice(0, len(self.v)))
        # A row is near few rows of a set if the set is a small share of all rows, and at most near all of them.
        holds = max(1, self.gram.holds)
        set_size = max((holds * self.gram.mean) ** 0.5, holds * len(self.v) / max(1, len(rows)))
        count = max(1, int(np.ceil(len(rows) / set_size)))
        ends = [0, *rows[len(rows) * np.arange(1, count) // count].tolist(), len(self.v)]
        for first, last in pairwise(ends):
            self._solve(self._wanted(tol, slice(first, last)), tol, max_iter - self.iterations)

    def _violations(self, part: slice) -> Vector:
        v, beta, epsilon = self.v[part], self.beta[part], self.dual.epsilon
        up = np.where(beta < self.upper[part], rising(v, beta, epsilon) - self.b, 0.0)
        down = np.where(beta > self.lower[part], self.b - falling(v, beta, epsilon), 0.0)
        return np.asarray(np.maximum(up, down))

    def _wanted(self, tol: float, part: slice) -> Index:
        beta = self.beta[part]
        free = (beta > self.lower[part]) & (beta < self.upper[part])
        if self.dual.epsilon:
            free &= beta != 0
        return part.start + np.flatnonzero(free | (self._violations(part) > tol))

    def _solve(self, places: Index, tol: float, max_pairs: int) -> None:
        """Optimise the problem of some of the rows, and update v of all."""
        if not len(places) or max_pairs <= 0:
            return
        rows, before = self.gram.active[places], self.beta[places]
        subset = self.gram.among(rows)
        problem = at_bias(subset, self.dual, self.b, self.v[places], before, self.lower[places], self.upper[places])
        problem.optimise(tol, min(max_pairs, _PAIRS * len(places)))
        self.gram.resume(subset.rows_computed, subset.values_computed)
        self.iterations += problem.iterations
        self.beta[places] = problem.beta[: len(places)]
        change = self.beta[places] - before
        moved = np.flatnonzero(change)
        self.v = self.without(rows[moved], change[moved])

    def without(self, rows: Index, change: Vector) -> Vector:
        """V of the active rows of `gram`, less ``change @ K(rows, active)``."""
        return self.v - self.gram.product(rows, change, self.gram.active) if len(rows) else self.v


class NearPairs(PairState):
    """Rows of a problem, optimised pair by pair over near rows only; compare :class:`casvm.solver.active_set.Pairs`.

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
        Chooses pairs as :meth:`casvm.solver.active_set.Pairs.optimise` does. Each takes two passes over the rows near
        it and one over the extremes of all blocks. Rows of K are computed on demand. One thread.
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


_SAMPLE_OF_NEAR = 200  # rows from which the share of near rows is estimated
_FINE, _FEW_COLUMNS = 128, 5000  # columns per box, a whole panel, of fewer rows than this
_SOME, _COLUMNS = 2048, 1 << 16  # rows and columns per product
# Largest share of near columns at which computing a row of K is faster than reading it from memory: of many columns, of
# few, whose boxes are small.
_NEAR, _NEAR_FINE = 0.25, 0.5


class NearColumns(KernelRows):
    """:class:`KernelRows` without a cache, for dense rows and a kernel that vanishes beyond a cutoff radius.

    Parameters
    ----------
    X, kernel, dtype, layout, sources
        See :class:`KernelRows`; the layout is packed.
    cutoff : float
        Squared distance beyond which kernel values count as 0.
    cache_bytes : int
        Memory for a working set's rows of K.

    Notes
    -----
    A row of K costs one kernel value per column of the stretches near it, and no memory.
    """

    def __init__(
        self, X: Reals, kernel: Kernel, dtype: DTypeLike, layout: Layout, sources: Rows, cutoff: float, cache_bytes: int
    ) -> None:  # fmt: skip
        self.cutoff, self.cache_bytes, self._order = cutoff, cache_bytes, spatial_order(X, _stretch(len(X)))
        super().__init__(X, kernel, dtype, 0, layout, sources)

    @classmethod
    def pays(cls, X: Rows, kernel: Kernel, layout: Layout, cutoff: float, sample: Rows) -> bool:
        """True if rows like the sample are near so few rows of `X` that computing K is faster than reading it."""
        if is_sparse(X) or not (layout.packed and np.isfinite(cutoff)):
            return False
        if not len(X):
            return True
        points = sample[:: max(1, sample.shape[0] // _SAMPLE_OF_NEAR)]
        size = _stretch(len(X))
        columns = NearPanels(X, layout.dtype, layout.shift, spatial_order(X, size), size, layout.measure)
        return columns.near(layout.rows(points), cutoff) < (_NEAR if size == STRETCH else _NEAR_FINE)

    def _turn_to(self, rows: Index) -> None:
        self.active = rows
        place = np.full(self.n, -1)
        place[rows] = np.arange(len(rows))
        self._place = place[self._order]
        self._place = self._place[self._place >= 0]
        self._near = self._packed(self.layout, rows[self._place])

    def _packed(self, layout: Layout, columns: Index) -> NearPanels:
        """These columns, in spatial order."""
        return NearPanels(dense(self.X), layout.dtype, layout.shift, columns, _stretch(len(columns)), layout.measure)

    def _subtract(self, rows: Index, change: Vector, v: Vector, keep: NDArray[np.bool_]) -> None:
        v -= self._sums(rows, change)

    def _sums(self, rows: Index, change: Vector) -> Vector:
        total, sums = np.zeros(len(self.active)), np.empty(len(self.active))
        values = self._near.add(self.kernel, self.layout.rows(self.sources, rows), self.cutoff, change, total)
        sums[self._place] = total
        self.rows_computed += len(rows)
        self.values_computed += values
        return sums

    def sums(self, rows: Index, change: Vector) -> Vector:
        """``change @ K(rows, active)``."""
        total = np.zeros(len(self.active))
        for lo, hi in blocks(len(rows), _SOME):
            total += self._sums(rows[lo:hi], change[lo:hi])
        return total

    def arranged(self, rows: Index, numbers: Index) -> tuple[Index, Index]:
        """The spatial order, see :meth:`KernelRows.arranged`; no values are kept from the last working set."""
        return spatial_order(self.sources[rows], width(self.layout.dtype)), numbers[:0]

    def pairs(self, rows: Index, dual: Dual, v: Vector, beta: Vector, lower: Vector, upper: Vector) -> NearPairs:
        """The problem of a working set in the order of :meth:`arranged`; allocates memory for its rows of K."""
        gram = NearRows(self.sources[rows], self.kernel, self.dtype, self.layout, self.cutoff, self.cache_bytes)
        gram.begin()
        return NearPairs(gram, dual, v, beta, lower, upper)

    def count(self, problem: NearPairs) -> None:
        """Add the kernel values that a working set's problem computed and read."""
        self.values_computed += problem.gram.values_computed
        self.values_read += problem.gram.values_read

    def product(self, X: Rows, rows: Index, change: Vector, columns: Index, exact: bool = False) -> Vector:
        """See :meth:`KernelRows.product`."""
        layout = replace(self.layout, dtype=np.dtype(np.float64)) if exact else self.layout
        rank = np.empty(self.n, np.int64)
        rank[self._order] = np.arange(self.n)
        order, sums = np.argsort(rank[columns]), np.zeros(len(columns))
        for first, last in blocks(len(columns), _COLUMNS):
            block = order[first:last]
            side, total = self._packed(layout, columns[block]), np.zeros(len(block))
            for lo, hi in blocks(len(rows), _SOME):
                A = layout.rows(X, rows[lo:hi])
                side.add(self.kernel, A, self.cutoff, change[lo:hi], total)
            sums[block] = total
        return sums


def _stretch(columns: int) -> int:
    """Columns per box: with few columns, a box of many would be as large as space.

    Of 100,000 rows of covtype on 64 ranks, a row is near 0.19 of a rank's columns in boxes of 128 and 0.56 in boxes of
    512.
    """
    return STRETCH if columns >= _FEW_COLUMNS else _FINE
