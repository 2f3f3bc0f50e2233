"""The local solver: the dual of the kernel SVM with its bias constraint, exactly, on one process (Algorithm 1).

Maximise sum alpha - 1/2 sum alpha_i alpha_j y_i y_j K_ij with 0 <= alpha_i <= C_i and sum alpha_i y_i = 0,
to LIBSVM's stopping rule. It begins in rounds: many violating rows at once, their problem solved in cache,
the gradient of all rows brought up to date by a product. Once the rows of K that matter are in memory, it
goes on pair by pair over all rows in play, which takes far fewer steps than rounds do near the solution.
Rows that stay at a bound leave the game until the end (shrinking).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore import limits as common
from cacore.errors import InputError
from casvm.solver.gram import Gram
from casvm.solver.pair import Pairs

Vector = NDArray[np.float64]
Index = NDArray[np.int64]

WORKING_SET = 2048  # most rows of a round
_RELAX = 0.1  # of the violation, what a round leaves of it among its rows
_PAIRS = 1.0  # pairs are worth it while a step costs less than this many times a round's
_CHUNK = 1000  # pairs between two looks at the rows in play
_FETCH = 64  # rows of K computed at once when pairs ask for one
_PATIENCE = 3  # looks at which a row must have been idle before it leaves
_LEAVING, _LEAVING_COPY = 0.4, 0.65  # share of the rows that must be ready to leave; where that copies the cache
_RETURNS = 20  # times that all rows are looked at before all of them stay


@dataclass(frozen=True)
class Progress:
    """How far a solver is: pairs optimised, the largest violation, the dual objective, rows in play."""

    iterations: int
    gap: float
    objective: float
    active: int


@dataclass(frozen=True)
class Limits(common.Limits):
    """When to stop: the tolerance is that of the largest violation of a pair of rows, an iteration optimises a pair.

    Attributes
    ----------
    tol, max_iter, max_time
        See :class:`cacore.limits.Limits`.
    shrinking : bool
        Whether rows that stay at a bound leave the game until the end.
    """

    shrinking: bool = True


@dataclass(frozen=True)
class Solution:
    """What the solver returns.

    Attributes
    ----------
    alpha : ndarray of float64, shape (n,)
    b : float
        The decision is sum alpha_i y_i K(x_i, x) + b.
    iterations, rounds : int
        Pairs optimised; rounds of working sets.
    objective : float
        Of the dual, in double precision.
    gap : float
        The largest violation left, over all rows.
    converged : bool
    kernel_rows, kernel_values, values_read : int
        Rows of K computed, kernel values in all, values read again from memory.
    seconds : float
    decision : ndarray of float64, shape (n,)
        Of the training rows.
    """

    alpha: Vector
    b: float
    iterations: int
    rounds: int
    objective: float
    gap: float
    converged: bool
    kernel_rows: int
    kernel_values: int
    values_read: int
    seconds: float
    decision: Vector


def solve(
    gram: Gram, y: Vector, C: Vector, limits: Limits | None = None, start: Vector | None = None,
    watch: Callable[[Progress], None] | None = None,
) -> Solution:  # fmt: skip
    """Solve the dual.

    Parameters
    ----------
    gram : Gram
        Kernel values of the n rows.
    y : ndarray, shape (n,)
        +1 and -1, both present with C above 0.
    C : ndarray, shape (n,)
        Upper bound of each row's alpha, at least 0.
    limits : Limits, optional
    start : ndarray, shape (n,), optional
        A feasible alpha to begin with.
    watch : callable, optional
        Called after each round, or thousand pairs.

    Returns
    -------
    Solution

    Raises
    ------
    InputError
        A start that is not feasible.

    Notes
    -----
    About as many rows of K as there are support vectors, n values each, computed on all threads; a pass
    over the rows in play for each pair near the end, on one thread, bound by the memory's speed.
    """
    return _Solver(gram, y, C, limits or Limits(), start, watch).run()


@dataclass
class _Aside:
    """Rows out of play, with what is needed to bring their gradient up to date."""

    rows: Index
    v: Vector
    beta: Vector  # of all n rows, when they left


class _Solver:
    """See :mod:`casvm.pair` for beta, lower, upper and v; all of them here are of the active rows."""

    def __init__(
        self, gram: Gram, y: Vector, C: Vector, limits: Limits, start: Vector | None,
        watch: Callable[[Progress], None] | None,
    ) -> None:  # fmt: skip
        self.gram, self.y, self.limits, self.watch = gram, np.asarray(y, np.float64), limits, watch
        self.n, self.begun = len(y), time.perf_counter()
        self.bounds = np.minimum(0.0, C * self.y), np.maximum(0.0, C * self.y)
        self.all_beta = np.zeros(self.n) if start is None else _checked(start, self.y, C)
        self.all_v = self.y.copy()
        self.aside: list[_Aside] = []
        self.iterations = self.rounds = self.returns = 0
        self.by_pairs = False
        self.room = min(WORKING_SET, round_size(self.n, gram.price))
        self._activate(np.arange(self.n))
        moved = np.flatnonzero(self.all_beta)
        self.gram.subtract(moved, self.all_beta[moved], self.v, self._free(moved))
        self.objective = 0.5 * float(np.abs(self.beta).sum() + self.beta @ self.v)

    def _activate(self, rows: Index) -> None:
        self.active, self.v, self.beta = rows, self.all_v[rows], self.all_beta[rows]
        self.lower, self.upper = (bound[rows] for bound in self.bounds)
        self.patience = np.zeros(len(rows), np.int8)
        self.last = np.zeros(len(rows), np.bool_)  # whether a row was in the last working set

    def _settle(self) -> None:
        self.all_v[self.active], self.all_beta[self.active] = self.v, self.beta

    def run(self) -> Solution:
        """Rounds and pairs until the rule is met, a limit is reached or nothing moves."""
        most, stuck = self.limits.iterations(self.n), False
        while True:
            top, bottom = extremes(self.v, self.beta, self.lower, self.upper)
            spent = stuck or self.iterations >= most or time.perf_counter() - self.begun > self.limits.max_time
            if top - bottom < self.limits.tol or spent:
                if not self._return(spent):
                    return self._solution()
                continue
            if self.limits.shrinking and self.returns <= _RETURNS:
                self._shrink(top, bottom)
            step = self._pairs if self.by_pairs else self._round
            stuck = not step(top, bottom, most - self.iterations)
            if self.watch is not None:
                self.watch(Progress(self.iterations, top - bottom, self.objective, len(self.active)))

    def _round(self, top: float, bottom: float, most: int) -> bool:
        """Solve a working set's problem, and bring the gradient up to date; whether anything moved."""
        gram, chosen = self.gram, self._working_set(top, bottom)
        rows, before = self.active[chosen], (gram.rows_computed, gram.values_computed, gram.values_read)
        K, everything = gram.square(rows), len(rows) == len(self.active)
        problem = Pairs(
            self.v[chosen], self.beta[chosen], self.lower[chosen], self.upper[chosen],
            np.diagonal(K)[: len(rows)].astype(np.float64),
        )  # fmt: skip
        tol = self.limits.tol if everything else max(0.5 * self.limits.tol, _RELAX * (top - bottom))
        problem.optimise(K, np.arange(len(rows)), tol, min(100 * len(rows), most))
        change = problem.beta - self.beta[chosen]
        moved = np.flatnonzero(change)
        self.objective += 0.5 * float(change @ (self.v[chosen] + problem.v))
        self.beta[chosen] = problem.beta
        self.iterations, self.rounds = self.iterations + problem.iterations, self.rounds + 1
        if everything:
            self.v[:] = problem.v
            return problem.iterations > 0
        # A row that has come to a bound will hardly move again.
        gram.subtract(rows[moved], change[moved], self.v, self._free(chosen[moved]))
        now = (gram.rows_computed, gram.values_computed, gram.values_read)
        computed, values, read = (after - earlier for after, earlier in zip(now, before, strict=True))
        table = gram.table()
        absent = np.count_nonzero(self._free(np.arange(len(self.v))) & (table.where < 0))
        self.by_pairs = bool(
            computed < 0.1 * len(moved)
            and _PAIRS * problem.iterations * len(self.v) < values * gram.price + read
            and absent + _FETCH < len(table.K) // 2
        )
        return problem.iterations > 0

    def _pairs(self, top: float, bottom: float, most: int) -> bool:
        """Pairs among all active rows, from rows of K that are in memory, and some that are added to them."""
        problem = Pairs(self.v, self.beta, self.lower, self.upper, self.gram.diagonal())
        most, computed = min(most, _CHUNK), 0
        while True:
            table = self.gram.table()
            missing = problem.optimise(
                table.K, table.where, self.limits.tol, most - problem.iterations, table.used, table.now
            )
            if missing < 0 or computed > _CHUNK // 2:
                break
            wanted = self._wanted(problem, missing, table.where)
            self.gram.fetch(self.active[wanted])
            computed += len(wanted)
        # Where rows have to be computed again and again, rounds are the better way.
        self.by_pairs = computed <= _CHUNK // 2
        change = problem.beta - self.beta
        self.objective += 0.5 * float(change @ (self.v + problem.v))
        self.v, self.beta = problem.v.copy(), problem.beta.copy()
        self.iterations += problem.iterations
        return problem.iterations > 0 or not self.by_pairs

    def _wanted(self, problem: Pairs, missing: int, where: Index) -> Index:
        """Places of rows without kernel values that are likely to be asked for soon, and of the one that was."""
        absent = np.flatnonzero(where < 0)
        v, beta = problem.v[absent], problem.beta[absent]
        top, bottom = extremes(problem.v, problem.beta, self.lower, self.upper)
        rise, fall = beta < self.upper[absent], beta > self.lower[absent]
        worst = np.maximum(np.where(rise, v - bottom, 0.0), np.where(fall, top - v, 0.0))
        absent, worst = absent[worst > 0], worst[worst > 0]
        if len(absent) > _FETCH:
            absent = absent[np.argpartition(-worst, _FETCH)[:_FETCH]]
        return np.unique(np.append(absent, missing))

    def _free(self, places: Index) -> NDArray[np.bool_]:
        return (self.lower[places] < self.beta[places]) & (self.beta[places] < self.upper[places])

    def _working_set(self, top: float, bottom: float) -> Index:
        """Places of the rows to work on: half of the last ones, free rows first, and the worst violators."""
        if len(self.v) <= self.room:
            return np.arange(len(self.v))
        rise, fall = self.beta < self.upper, self.beta > self.lower
        old = np.flatnonzero(self.last)
        if len(old) > self.room // 2:
            free = rise[old] & fall[old]
            old = old[np.argsort(~free, kind="stable")[: self.room // 2]]
        chosen = np.zeros(len(self.v), np.bool_)
        chosen[old] = True
        share = (self.room - len(old)) // 2
        for may, score in ((rise & (self.v > bottom), -self.v), (fall & (self.v < top), self.v)):
            rows = np.flatnonzero(may & ~chosen)
            if len(rows) > share:
                rows = rows[np.argpartition(score[rows], share)[:share]]
            chosen[rows] = True
        self.last = chosen
        return np.flatnonzero(chosen)

    def _shrink(self, top: float, bottom: float) -> None:
        """Put rows aside that sit at a bound and could not be chosen, once they are many."""
        if len(self.v) <= self.room // 2:
            return
        idle = idle_rows(self.v, self.beta, self.lower, self.upper, top, bottom)
        self.patience[~idle] = 0
        self.patience[idle & (self.patience < _PATIENCE)] += 1
        leaving = self.patience >= _PATIENCE
        count = int(np.count_nonzero(leaving))
        if count < _LEAVING * len(leaving):
            return
        if count < _LEAVING_COPY * len(leaving) and self.gram.copies(len(leaving) - count):
            return
        self._settle()
        rows = self.active[leaving]
        self.aside.append(_Aside(rows, self.all_v[rows], self.all_beta.copy()))
        kept, last = np.flatnonzero(~leaving), self.last
        self.gram.restrict(kept)
        self._activate(self.active[kept])
        self.last = last[kept]

    def _return(self, spent: bool) -> bool:
        """Look at all rows; whether there is something left to do, with those that are then active."""
        self._settle()
        for group in self.aside:
            moved = np.flatnonzero(self.all_beta != group.beta)
            change = self.all_beta[moved] - group.beta[moved]
            self.all_v[group.rows] = group.v - self.gram.outside(moved, change, group.rows)
        self.aside = []
        lower, upper = self.bounds
        top, bottom = extremes(self.all_v, self.all_beta, lower, upper)
        if spent or top - bottom < self.limits.tol:
            return False
        self.returns += 1
        idle = idle_rows(self.all_v, self.all_beta, lower, upper, top, bottom)
        rest = np.flatnonzero(idle) if self.returns <= _RETURNS else np.zeros(0, np.int64)
        if len(rest):
            self.aside = [_Aside(rest, self.all_v[rest], self.all_beta.copy())]
        rows = np.setdiff1d(np.arange(self.n), rest, assume_unique=True)
        self.gram.activate(rows)
        self._activate(rows)
        self.by_pairs = False
        return True

    def _solution(self) -> Solution:
        beta, (lower, upper) = self.all_beta, self.bounds
        top, bottom = extremes(self.all_v, beta, lower, upper)
        b, support = 0.5 * (top + bottom), np.flatnonzero(beta)
        objective = float(np.abs(beta).sum() - 0.5 * self.gram.quadratic(support, beta[support]))
        return Solution(
            np.abs(beta), b, self.iterations, self.rounds, objective, top - bottom, top - bottom < self.limits.tol,
            self.gram.rows_computed, self.gram.values_computed, self.gram.values_read,
            time.perf_counter() - self.begun, self.y - self.all_v + b,
        )  # fmt: skip


def round_size(n: int, price: float) -> int:
    """Rows of a round: fewer where their own kernel values are a large share of all that will be needed."""
    return 2048 if n >= 16_384 else 1024 if price < 30.0 else 512


def extremes(v: Vector, beta: Vector, lower: Vector, upper: Vector) -> tuple[float, float]:
    """The largest v of a row that may rise, and the smallest of one that may fall."""
    top = np.max(v, where=beta < upper, initial=-np.inf)
    return float(top), float(np.min(v, where=beta > lower, initial=np.inf))


def idle_rows(v: Vector, beta: Vector, lower: Vector, upper: Vector, top: float, bottom: float) -> NDArray[np.bool_]:
    """Whether a row sits at a bound and, as things are, no pair would take it away from there."""
    return ((beta >= upper) & (v > top)) | ((beta <= lower) & (v < bottom))


def feasible(alpha: Vector, y: Vector, C: Vector) -> Vector:
    """A start from any alpha: clipped to [0, C], and the heavier class scaled down until sum alpha y = 0."""
    alpha = np.clip(alpha, 0.0, C)
    rise, fall = alpha[y > 0].sum(), alpha[y < 0].sum()
    if abs(rise - fall) > 1e-12 * max(rise, fall):  # rounding alone must not take rows off their bound
        alpha[y * (rise - fall) > 0] *= min(rise, fall) / max(rise, fall)
    return alpha


def _checked(alpha: Vector, y: Vector, C: Vector) -> Vector:
    """Beta of a start, if it is one."""
    alpha = np.asarray(alpha, np.float64)
    if alpha.shape != y.shape or not np.isfinite(alpha).all() or (alpha < 0).any() or (alpha > C).any():
        raise InputError(f"the start: {len(y)} numbers from 0 to C are needed, one a row")
    if abs(alpha @ y) > 1e-9 * max(1.0, alpha.sum()):
        raise InputError(f"the start: sum alpha y = {alpha @ y:g}, and it must be 0")
    return alpha * y
