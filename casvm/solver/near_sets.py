"""SMO at a given bias by working sets, for rows of a kernel matrix that memory does not hold.

Pairs of all rows would compute the same rows of K again and again. Working sets of neighbours, of rows that violate and
of rows between their bounds, are optimised one after the other. Only values of their own rows with each other are kept
meanwhile. The rows that moved then change v of all rows in one product, which takes a few nanoseconds per value, where
a row of K that a pair asks for takes three to five times as long.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from cacore.svm.dual import Dual
from casvm.solver.near_pairs import NearPairs
from casvm.solver.near_rows import NearRows
from casvm.solver.pair import Index, Vector, falling, rising

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
        some = self._wanted(tol, slice(0, len(self.v)))
        # A row is near few rows of a set if the set is a small share of all rows, and at most near all of them.
        holds = max(1, self.gram.holds)
        most = max((holds * self.gram.mean) ** 0.5, holds * len(self.v) / max(1, len(some)))
        count = max(1, int(np.ceil(len(some) / most)))
        ends = [0, *some[len(some) * np.arange(1, count) // count].tolist(), len(self.v)]
        for first, last in pairwise(ends):
            self._solve(self._wanted(tol, slice(first, last)), tol, max_iter - self.iterations)

    def _violations(self, some: slice) -> Vector:
        v, beta, epsilon = self.v[some], self.beta[some], self.dual.epsilon
        up = np.where(beta < self.upper[some], rising(v, beta, epsilon) - self.b, 0.0)
        down = np.where(beta > self.lower[some], self.b - falling(v, beta, epsilon), 0.0)
        return np.asarray(np.maximum(up, down))

    def _wanted(self, tol: float, some: slice) -> Index:
        beta = self.beta[some]
        free = (beta > self.lower[some]) & (beta < self.upper[some])
        if self.dual.epsilon:
            free &= beta != 0
        return some.start + np.flatnonzero(free | (self._violations(some) > tol))

    def _solve(self, some: Index, tol: float, most: int) -> None:
        """Optimise the problem of some of the rows, and update v of all."""
        if not len(some) or most <= 0:
            return
        rows, before = self.gram.active[some], self.beta[some]
        own = self.gram.among(rows)
        problem = at_bias(own, self.dual, self.b, self.v[some], before, self.lower[some], self.upper[some])
        problem.optimise(tol, min(most, _PAIRS * len(some)))
        self.gram.resume(own.rows_computed, own.values_computed)
        self.iterations += problem.iterations
        self.beta[some] = problem.beta[: len(some)]
        change = self.beta[some] - before
        moved = np.flatnonzero(change)
        self.v = self.without(rows[moved], change[moved])

    def without(self, rows: Index, change: Vector) -> Vector:
        """V of the active rows of `gram`, less ``change @ K(rows, active)``."""
        return self.v - self.gram.product(rows, change, self.gram.active) if len(rows) else self.v
