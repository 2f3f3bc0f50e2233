"""Support vector quantile regression: the duals of several levels, which share kernel values and start from each other.

The duals differ in their bounds only, -C (1 - tau) and C tau (:meth:`cacore.svm.dual.Dual.quantile`). Levels are solved
in ascending order. The last solution f tells the next one where to start: rows far above the new quantile belong to
their upper bound, rows far below to their lower one. The first of several levels starts from a constant f.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from cacore.data.rows import Rows
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.svm.dual import Dual, Known, Progress, Solution
from cacore.svm.solvers import DEFAULT, part_solver
from casvm.solver.active_set import OverRanks, middle
from casvm.solver.pair import Vector
from casvm.solver.smo import PartValues

_ROUNDING = 1e-12  # distance from a bound, relative to that between the bounds, which counts as none


def solve_quantiles(
    X: Rows, kernel: Kernel | None, duals: Sequence[Dual], limits: Limits, cache_bytes: int, solver: str = DEFAULT,
    watch: Callable[[Progress], None] | None = None,
) -> list[Solution]:  # fmt: skip
    """Solve the duals of all levels of one part, in their order.

    Parameters
    ----------
    X, kernel, limits, cache_bytes, watch
        See :class:`cacore.svm.dual.PartSolver`. The limits apply to each level.
    duals : sequence of Dual
        In ascending order of the level.
    solver : str
        Name of the part solver. Only the default one shares kernel values between levels.

    Returns
    -------
    list of Solution

    Notes
    -----
    The first level costs what :func:`casvm.solver.smo.solve_part` does. The others read the rows of K that the cache
    has kept, and start from the level below. One product with K serves all starts, and one pass over K in double
    precision all objectives.
    """
    if solver == DEFAULT and len(duals) > 1:
        # Shrinking copies kept rows of K, which the next level reads over all columns; it pays only if few fit.
        fits = duals[0].n ** 2 * np.dtype(np.float32).itemsize <= cache_bytes
        limits = replace(limits, shrinking=limits.shrinking and not fits)
        solutions = _together(PartValues(X, kernel, _widest(duals), limits, cache_bytes), duals, watch)
    else:
        alone, solutions = part_solver(solver), []
        for dual in duals:
            start = start_at(dual, solutions[-1].decision) if solutions else None
            solutions.append(alone(X, kernel, replace(dual, start=start), limits, cache_bytes, watch))
    return [centered(one, dual) for one, dual in zip(solutions, duals, strict=True)]


def _together(values: PartValues, duals: Sequence[Dual], watch: Callable[[Progress], None] | None) -> list[Solution]:
    """Solve the duals with shared kernel values.

    Two starts differ from each other by a multiple of the distances between the bounds, but for the few rows that
    change sides. One product of K with these distances therefore saves most of each start's.
    """
    width = duals[0].upper - duals[0].lower
    product = values.product(width)

    def shifted(beta: Vector, K_beta: Vector, shift: Vector) -> Known | None:
        """Beta, moved by a multiple of the width."""
        if product is None:
            return None
        return Known(beta + shift, K_beta + shift.sum() / width.sum() * product)

    def started(k: int, last: Solution | None) -> Dual:
        dual, zero = duals[k], np.zeros(duals[k].n)
        if last is not None:
            known = shifted(last.beta, values.fitted(last), dual.upper - duals[k - 1].upper)
            return replace(dual, start=start_at(dual, last.decision), known=known)
        start = start_at(dual, zero)
        side = dual.upper if np.count_nonzero(start == dual.upper) > dual.n // 2 else dual.lower
        return replace(dual, start=start, known=shifted(zero, zero, side))

    return values.solve_in_turn(duals, started, watch)


def centered(solution: Solution, dual: Dual, largest: OverRanks = np.array) -> Solution:
    """The solution of a quantile's dual, with b midway between its ends where it is an interval.

    That is so if all rows are at a bound, for example if tau n is a whole number and the rows are alike. Rounding may
    leave a row next to its bound, whose residual would then be b.

    Parameters
    ----------
    solution : Solution
    dual : Dual
    largest : callable
        Elementwise maximum of an array over the ranks, if rows are distributed.
    """
    near = _ROUNDING * (dual.upper - dual.lower)
    rise, fall = solution.beta < dual.upper - near, solution.beta > dual.lower + near
    v = solution.b - dual.linear - solution.decision
    ends = np.max(v, where=rise, initial=-np.inf), np.max(-v, where=fall, initial=-np.inf)
    free, top, negative = largest(np.array([float((rise & fall).any()), *ends])).tolist()
    if free:
        return solution
    b = middle(top, -negative)
    return replace(solution, b=b, decision=solution.decision + (b - solution.b))


def _widest(duals: Sequence[Dual]) -> Dual:
    """The first dual, with bounds that hold those of all."""
    lower = np.min([dual.lower for dual in duals], axis=0)
    return replace(duals[0], lower=lower, upper=np.max([dual.upper for dual in duals], axis=0))


def start_at(dual: Dual, decision: Vector) -> Vector:
    """A feasible beta with rows at the bounds that their residuals from a neighbouring quantile suggest.

    Rows are sorted by y - decision: the lowest are at their lower bound, the others at the upper one, and one between
    them makes the sum 0. If the noise is the same everywhere, quantiles are parallel, and this is nearly the solution.

    Parameters
    ----------
    dual : Dual
        Its total is 0, with lower bounds of at most 0 and upper ones of at least 0.
    decision : ndarray of float64, shape (n,)
    """
    order = np.argsort(-dual.linear - decision, kind="stable")
    lower, upper = dual.lower[order], dual.upper[order]
    totals = upper.sum() + np.append(0.0, np.cumsum(lower - upper))  # with the lowest 0, 1, ..., n rows at the lower
    below = max(0, int(np.searchsorted(-totals, 0.0, side="right")) - 1)
    beta = np.where(np.arange(dual.n) < below, lower, upper)
    if below < dual.n:
        beta[below] = np.clip(beta[below] - totals[below], lower[below], upper[below])
    start = np.empty(dual.n)
    start[order] = beta
    return start
