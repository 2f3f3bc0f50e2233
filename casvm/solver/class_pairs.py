"""SMO for the small problems of many classes: pair by pair from the start, on rows of K computed when first needed.

Rounds would compute the square of each working set. Here a pair of rows costs two passes over the problem, which fits
in cache, and only rows that move, or were about to, are ever computed. Everything else follows
:mod:`casvm.solver.smo`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.kernels.panels import add_rows
from cacore.limits import Limits
from cacore.machine.clock import working_time
from cacore.svm.dual import Dual, Progress, Solution
from cacore.svm.problem import overflow
from casvm.solver.active_set import biases
from casvm.solver.class_rows import PairRows, RowSource, fetch
from casvm.solver.pair import Index, Pairs, optimise_pairs
from casvm.solver.units import Unit

if TYPE_CHECKING:
    from cacore.arrays import Bytes, Doubles, Longs, Reals

_PASSED = 4 * 10**8  # rows that pairs pass between two looks at the clock


def solve_classes(
    rows: PairRows, dual: Dual, limits: Limits, watch: Callable[[Progress], None] | None = None
) -> Solution:
    """Solve the dual of two classes from its start, made feasible; see :class:`cacore.svm.dual.PartSolver`.

    Notes
    -----
    One row of K per row that moves, in one thread; two passes over the rows per pair. Rows of K that are there already
    are used again. The objective is that of the kernel values in the precision of `rows`.
    """
    dual, tol = dual.repaired(), limits.tol
    unit = Unit.of_dual(dual)
    return unit.solution(_solve(rows, unit.dual(dual), unit.limits(limits), unit.watch(watch)), tol)


def _solve(rows: PairRows, dual: Dual, limits: Limits, watch: Callable[[Progress], None] | None) -> Solution:
    begun, before = working_time(), rows.count
    problem, most, moved = _Fetching(rows, dual), limits.iterations(dual.n), True
    while True:
        found = problem.extremes()
        gap, late = max(top - bottom for top, bottom in found), working_time() - begun > limits.max_time
        if gap < limits.tol or late or problem.iterations >= most or not moved:
            break
        last = problem.iterations
        problem.optimise(rows.K, rows.where, limits.tol, min(most - last, 1 + _PASSED // dual.n), rows.used)
        moved = problem.iterations > last
        if watch is not None:
            watch(Progress(problem.iterations, gap, _objective(problem, dual), dual.n))
    objective = _objective(problem, dual)
    if math.isnan(objective):
        raise overflow()
    computed, converged = rows.count - before, gap < limits.tol
    levels = biases(found, dual, converged, rows.K.dtype)
    b = 0.5 * (levels[0] + levels[1])
    return Solution(
        problem.beta.copy(), b, problem.iterations, objective, gap, converged, computed, computed * dual.n,
        working_time() - begun, b - dual.linear - problem.v, 0, 2 * problem.iterations * dual.n,
        0.5 * (levels[0] - levels[1]),
    )  # fmt: skip


class _Fetching(Pairs):
    """Pairs of rows that compute rows of K when they are missing."""

    def __init__(self, rows: PairRows, dual: Dual) -> None:
        beta, v, self.rows = dual.initial(), -dual.linear, rows
        moved = np.flatnonzero(beta)
        if moved.size:
            rows.fetch(moved[rows.where[moved] < 0])
            add_rows(rows.K, rows.where[moved], -beta[moved], v, 0, dual.n)
        super().__init__(v, beta, dual.lower, dual.upper, rows.diagonal, dual.epsilon, dual.by_sign)

    def _optimise(
        self, v: NDArray[np.floating], K: NDArray[np.floating], where: Index, tol: float, max_iter: int, used: Index,
        now: int,
    ) -> int:  # fmt: skip
        _, beta, lower, upper, diagonal = self._state
        self.iterations += _with_rows(
            self.rows.source, K, where, v, beta, lower, upper, diagonal.astype(K.dtype), self._may,
            2.0 * self.epsilon or None, tol, max_iter, used,
        )  # fmt: skip
        return -1


def _objective(problem: Pairs, dual: Dual) -> float:
    """The dual's value, from v = -p - K beta."""
    beta = problem.beta
    value = 0.5 * float(beta @ (problem.v - dual.linear))
    return value - dual.epsilon * float(np.abs(beta).sum()) if dual.epsilon else value


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _with_rows(
    source: RowSource, K: Reals, where: Longs, v: Doubles, beta: Doubles, lower: Doubles, upper: Doubles,
    diagonal: Reals, may: Bytes, width: float | None, tol: float, max_iter: int, used: Longs,
) -> int:  # fmt: skip  # pragma: no cover - compiled
    """:func:`casvm.solver.pair.optimise_pairs` that computes missing rows of K; returns the number of pairs.

    `source` is :attr:`casvm.solver.class_rows.PairRows.source`.
    """
    done = 0
    while True:
        some, missing = optimise_pairs(
            K, where, v, beta, lower, upper, diagonal, may, width, tol, max_iter - done, used, 0
        )  # fmt: skip
        done += some
        if missing < 0:
            return done
        fetch(source, missing, K, where)
