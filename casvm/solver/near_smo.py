"""SMO for narrow kernels of a distance, whose values are mostly negligible.

:class:`NearValues` solves a part pair by pair from the start. The cost of a pair, and of a row of K, is proportional to
the number of rows near it. Rounds and threads would save less than their additional pairs cost. Everything else follows
:mod:`casvm.solver.smo`.

:class:`NearSets` optimises working sets at a given bias, if memory does not hold the rows of the kernel matrix. Pairs
of all rows would then compute the same rows of K again and again. Working sets of neighbours, of rows that violate and
of rows between their bounds, are optimised one after the other. Only values of their own rows with each other are kept
meanwhile. The rows that moved then change v of all rows in one product, which takes a few nanoseconds per value; a row
of K that a pair asks for takes three to five times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from cacore.data.rows import Rows, largest_size, nbytes
from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.kernels.near import spatial_order, squared_cutoff
from cacore.kernels.precision import Accuracy
from cacore.kernels.sums import width
from cacore.limits import Limits
from cacore.svm.dual import Dual, Progress, Solution
from cacore.svm.problem import precision
from casvm.solver.active_set import SMO, ActiveSet, Shrinking
from casvm.solver.near_pairs import NearPairs
from casvm.solver.near_rows import VANISHED, NearRows, share_near
from casvm.solver.pair import Index, Vector, falling, rising

LEAST_ROWS = 8192  # with fewer, the whole kernel matrix takes less than 256 MiB
MOST_NEAR = 0.25  # largest share of kernel values that are not negligible
SHRINKING = Shrinking(patience=3, share=0.4, share_if_copied=0.4)
_CHUNK = 2000  # pairs between two checks for inactive rows


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
        same = replace(
            dual, linear=dual.linear[order], lower=dual.lower[order], upper=dual.upper[order], start=start, known=None
        )  # fmt: skip
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

    def _look(self) -> tuple[float, float, bool]:
        return *self.active.extremes(), self._out_of_time()

    def _shrink(self, top: float, bottom: float) -> None:
        self.active.shrink(self.active.idle(top, bottom))

    def _unshrunk(self) -> None:
        pass

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


def at_bias(
    gram: NearRows, dual: Dual, b: float, v: Vector, beta: Vector, lower: Vector, upper: Vector
) -> NearPairs:  # fmt: skip
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
