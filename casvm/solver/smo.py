"""The exact solver of one part, on one process: SMO (Algorithm 1) with working sets, to LIBSVM's stopping rule.

It starts in rounds: a round chooses many violating rows, solves their problem in cache, and updates the gradient of
all active rows by a product. Once the rows of K that matter are in memory, it continues pair by pair over all active
rows, which takes far fewer steps than rounds near the solution. Narrow kernels, whose values are mostly negligible, use
a sparse solver, :mod:`casvm.solver.near_smo`. The dual and its terms: :mod:`cacore.svm.dual`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows, power_of_two
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.svm.dual import Dual, Progress, Solution
from cacore.svm.options import register
from casvm.solver.active_set import SMO, ActiveSet, Shrinking
from casvm.solver.kernel_rows import KernelMatrix, gram_of
from casvm.solver.near_smo import near_values
from casvm.solver.pair import Index, Pairs, Vector
from casvm.solver.units import Origin, Unit

WORKING_SET = 2048  # most rows per round
SHRINKING = Shrinking(patience=3, share=0.4, share_if_copied=0.65)
_CHUNK, _PASSED = 8000, 4 * 10**8  # most pairs, and rows they pass, between two checks for inactive rows
_MISSED = 500  # rows of K that pairs may always compute before rounds are faster
_FETCH = 64  # rows of K computed together when a pair needs one


@register("smo")
def solve_part(
    X: Rows, kernel: Kernel | None, dual: Dual, limits: Limits, cache_bytes: int,
    watch: Callable[[Progress], None] | None = None,
) -> Solution:  # fmt: skip
    """Solve the dual of a part's rows from its start, made feasible; see :class:`cacore.svm.dual.PartSolver`."""
    return PartValues(X, kernel, dual, limits, cache_bytes).solve(dual, watch)


class PartValues:
    """The kernel values of a part, which several duals of its rows share.

    Parameters
    ----------
    X, kernel, limits, cache_bytes
        See :class:`cacore.svm.dual.PartSolver`.
    dual : Dual
        Its linear term is that of all duals, and its bounds are at least as wide as theirs.
    """

    def __init__(self, X: Rows, kernel: Kernel | None, dual: Dual, limits: Limits, cache_bytes: int) -> None:
        self.tol, self.unit = limits.tol, Unit.of_dual(dual)
        dual, self.limits = self.unit.dual(dual), self.unit.limits(limits)
        self.origin = Origin.of(X, kernel, dual.largest_bound, self.limits.tol, dual)
        X = self.origin.X
        self.near = near_values(X, kernel, dual, self.limits, cache_bytes)
        if self.near is None:
            self.gram = gram_of(X, kernel, dual.largest_bound, self.limits.tol, cache_bytes, dual.half_range)
        self._counted = self._counts()

    def _counts(self) -> NDArray[np.int64]:
        """Rows and kernel values computed so far, and kernel values read again."""
        gram = self.gram if self.near is None else self.near.gram
        return np.array([gram.rows_computed, gram.values_computed, gram.values_read])

    def solve(self, dual: Dual, watch: Callable[[Progress], None] | None = None, exact: bool = True) -> Solution:
        """Solve a dual from its start, made feasible; rows of K kept over all columns are not computed again.

        If not `exact`, the objective is the one that the steps have added up. Kernel values are counted since the last
        solution.
        """
        dual, watch = self.unit.dual(dual.repaired()), self.unit.watch(watch)
        if self.near is None:
            self.gram.restart()
            solution = solve(self.gram, dual, self.limits, watch, exact)
        else:
            solution = self.near.solve(dual, self.limits, watch)
        before, self._counted = self._counted, self._counts()
        rows, values, read = (self._counted - before).tolist()
        counted = replace(solution, kernel_rows=rows, kernel_values=values, values_read=read)
        return self.origin.solution(self.unit.solution(counted, self.tol))

    def solve_in_turn(
        self, duals: Sequence[Dual], started: Callable[[int, Solution | None], Dual],
        watch: Callable[[Progress], None] | None = None,
    ) -> list[Solution]:  # fmt: skip
        """Solve duals in their order; ``started(k, last)`` is the k-th with a start from the solution before, if any.

        All objectives are computed at the end, from the same kernel values in double precision.
        """
        several, solutions = self.near is None and len(duals) > 1, list[Solution]()
        for k in range(len(duals)):
            dual = started(k, solutions[-1] if solutions else None)
            solutions.append(self.solve(dual, watch, exact=not several))
        return self._with_objectives(duals, solutions) if several else solutions

    def product(self, beta: Vector) -> Vector | None:
        """``K beta``, for `beta` of shape (n,); None for narrow kernels, for which starts cost little."""
        if self.near is not None:
            return None
        v, rows = np.zeros(len(beta)), np.flatnonzero(beta)
        self.gram.restart()
        self.gram.subtract(rows, -beta[rows], v, np.zeros(len(rows), np.bool_))
        return v

    def fitted(self, solution: Solution) -> Vector:
        """``K beta`` of a solution, shape (n,), for the same rows as :meth:`product`."""
        return solution.decision - self.origin.bias(solution)

    def _with_objectives(self, duals: Sequence[Dual], solutions: list[Solution]) -> list[Solution]:
        """The solutions with the objectives of these duals."""
        size, betas = self.unit.size, np.stack([solution.beta for solution in solutions])
        rows = np.flatnonzero(betas.any(axis=0))
        squares = self.gram.quadratics(rows, betas[:, rows] / size)
        values = [
            -self.unit.dual(dual).terms(beta / size) - 0.5 * square
            for dual, beta, square in zip(duals, betas, squares, strict=True)
        ]
        return [
            replace(solution, objective=value * size * size) for solution, value in zip(solutions, values, strict=True)
        ]


def solve_one_class(
    X: Rows, kernel: Kernel | None, weights: Vector, nu: float, limits: Limits, cache_bytes: int,
    watch: Callable[[Progress], None] | None = None,
) -> Solution:  # fmt: skip
    """Solve the one-class SVM.

    Parameters
    ----------
    X, kernel, limits, cache_bytes, watch
        See :class:`cacore.svm.dual.PartSolver`.
    weights, nu
        See :meth:`cacore.svm.dual.Dual.one_class`; all weights are above 0.

    Notes
    -----
    The tolerance belongs to weights near 1, so that tiny ones do not end before the first step.
    """
    unit = Unit(power_of_two(float(weights.max())))
    dual = Dual.one_class(weights / unit.size, nu)
    solution = solve_part(X, kernel, dual, limits, cache_bytes, unit.watch(watch))
    return unit.solution(solution, limits.tol * unit.size)


def solve(
    gram: KernelMatrix, dual: Dual, limits: Limits | None = None, watch: Callable[[Progress], None] | None = None,
    exact: bool = True,
) -> Solution:  # fmt: skip
    """Solve a dual.

    Parameters
    ----------
    gram : KernelMatrix
        Kernel values of its n rows.
    dual : Dual
        With a feasible start, if any.
    limits : Limits, optional
        An iteration optimises a pair; the tolerance bounds the largest violation of a pair of rows.
    watch : callable, optional
        Called after each round, or every few thousand pairs.
    exact : bool
        True to compute the objective again in double precision, which takes half of K.

    Returns
    -------
    Solution

    Raises
    ------
    InputError
        If the start is not feasible.

    Notes
    -----
    About one row of K per support vector, n values each, computed on all threads. Near the end each pair passes over
    the active rows, on one thread and limited by memory bandwidth.
    """
    return _Serial(gram, dual, limits or Limits(), watch, exact).run(dual.n)


class _Serial(SMO):
    """SMO on one process: rounds first, pairs later."""

    def __init__(
        self, gram: KernelMatrix, dual: Dual, limits: Limits, watch: Callable[[Progress], None] | None, exact: bool
    ) -> None:
        super().__init__(limits, watch)
        self.exact = exact
        self.gram, self.last = gram, np.zeros(dual.n, np.bool_)  # mask of the rows in the last working set
        active = self.active = ActiveSet(dual, gram, SHRINKING)
        self.room = min(WORKING_SET, round_size(dual.n, gram.price, dual.epsilon > 0, dual.known is not None))
        self.by_pairs = False
        active.v, change = dual.unknown(active.beta)
        moved = np.flatnonzero(change)
        gram.subtract(moved, change[moved], active.v, active.free(moved))
        self.objective = 0.5 * float(np.sum(-dual.linear * active.beta) + active.beta @ active.v)
        self.objective -= dual.epsilon * float(np.abs(active.beta).sum())

    def _reconstruct(self, moved: Index, change: Vector, rows: Index, v: Vector) -> None:
        v -= self.gram.outside(moved, change, rows)

    def _look(self) -> tuple[float, float, bool]:
        return *self.active.extremes(), self._out_of_time()

    def _shrink(self, top: float, bottom: float) -> None:
        active = self.active
        if active.size > self.room // 2:
            places = active.shrink(active.idle(top, bottom))
            if places is not None:
                self.last = self.last[places]

    def _unshrunk(self) -> None:
        self.by_pairs, self.last = False, np.zeros(self.active.size, np.bool_)

    def _resumed(self) -> None:
        self.last = np.zeros(self.active.size, np.bool_)

    def _step(self, top: float, bottom: float, max_pairs: int) -> bool:
        return (self._pairs if self.by_pairs else self._round)(top, bottom, max_pairs)

    def _square(self, rows: Index, beta: Vector) -> float:
        return float(self.gram.quadratics(rows, beta[None])[0])

    def _products(self, rows: Index, beta: Vector, others: Index) -> tuple[Vector, Vector]:
        return self.gram.products(rows, beta[None])[0], self.gram.outside(rows, beta, others, exact=True)

    def _round(self, top: float, bottom: float, max_pairs: int) -> bool:
        """Solve a working set's problem and update the gradient; return True if anything moved."""
        gram, active, chosen = self.gram, self.active, self._working_set(top, bottom)
        rows, before = active.rows[chosen], (gram.rows_computed, gram.values_computed, gram.values_read)
        problem = self._solve(
            gram.square(rows), active.v[chosen], active.beta[chosen], active.lower[chosen], active.upper[chosen],
            top - bottom, max_pairs,
        )  # fmt: skip
        change = problem.beta - active.beta[chosen]
        moved = np.flatnonzero(change)
        self.objective += self._gain(active.v[chosen], active.beta[chosen], problem)
        active.beta[chosen] = problem.beta
        self.iterations, self.rounds = self.iterations + problem.iterations, self.rounds + 1
        if len(rows) == active.size:
            active.v[:] = problem.v
            return problem.iterations > 0
        # A row that has arrived at a bound rarely moves again.
        gram.subtract(rows[moved], change[moved], active.v, active.free(chosen[moved]))
        now = (gram.rows_computed, gram.values_computed, gram.values_read)
        computed, values, read = (after - earlier for after, earlier in zip(now, before, strict=True))
        table = gram.table()
        absent = np.count_nonzero(active.free(np.arange(active.size)) & (table.where < 0))
        self.by_pairs = bool(
            computed < 0.1 * len(moved)
            and problem.iterations * active.size < values * gram.price + read  # a step by pairs is cheaper
            and absent + _FETCH < len(table.K) // 2
        )
        return problem.iterations > 0

    def _pairs(self, top: float, bottom: float, max_pairs: int) -> bool:
        """Optimise pairs among all active rows, with the rows of K in memory and a few that are added."""
        active, v, beta, dual = self.active, self.active.v, self.active.beta, self.active.dual
        problem = Pairs(v, beta, active.lower, active.upper, self.gram.diagonal(), dual.epsilon, dual.by_sign)
        max_pairs, computed = min(max_pairs, _CHUNK, 1 + _PASSED // active.size), 0
        while True:
            table = self.gram.table()
            missing = problem.optimise(
                table.K, table.where, self.limits.tol, max_pairs - problem.iterations, table.used, table.now
            )
            # A pair reads two rows: at this limit computing costs half as much as the pairs.
            too_many = computed > _MISSED + problem.iterations / self.gram.price
            if missing < 0 or too_many:
                break
            active.v, active.beta = problem.v, problem.beta
            wanted = self._wanted(missing, table.where)
            self.gram.fetch(active.rows[wanted])
            computed += len(wanted)
        self.by_pairs = not too_many
        self.objective += self._gain(v, beta, problem)
        active.v, active.beta = problem.v.copy(), problem.beta.copy()
        self.iterations += problem.iterations
        self.gram.values_read += 2 * problem.iterations * active.size
        return problem.iterations > 0 or not self.by_pairs

    def _gain(self, v: Vector, beta: Vector, after: Pairs) -> float:
        """Increase of the objective of these rows, from their former v and beta."""
        gain = 0.5 * float((after.beta - beta) @ (v + after.v))
        return gain - self.active.dual.epsilon * float(np.abs(after.beta).sum() - np.abs(beta).sum())

    def _wanted(self, missing: int, where: Index) -> Index:
        """Places of the missing row and of other rows without kernel values that will likely be needed soon."""
        active, absent = self.active, np.flatnonzero(where < 0)
        top, bottom = active.extremes()
        above, below = active.rising()[absent] - bottom, top - active.falling()[absent]
        rise, fall = (active.beta < active.upper)[absent], (active.beta > active.lower)[absent]
        worst = np.maximum(np.where(rise, above, 0.0), np.where(fall, below, 0.0))
        absent, worst = absent[worst > 0], worst[worst > 0]
        if len(absent) > _FETCH:
            absent = absent[np.argpartition(-worst, _FETCH)[:_FETCH]]
        return np.unique(np.append(absent, missing))

    def _working_set(self, top: float, bottom: float) -> Index:
        """Places of the working set: up to half from the last one, free rows first, and the worst violators."""
        active = self.active
        if active.size <= self.room:
            return np.arange(active.size)
        rise, fall = active.beta < active.upper, active.beta > active.lower
        old = np.flatnonzero(self.last)
        if len(old) > self.room // 2:
            old = old[np.argsort(~active.free(old), kind="stable")[: self.room // 2]]
        chosen = np.zeros(active.size, np.bool_)
        chosen[old] = True
        up, down, sides = active.rising(), active.falling(), active.sides()
        count = (self.room - len(old)) // (2 * len(sides))
        for side in sides:
            for may, score in ((side & rise & (up > bottom), -up), (side & fall & (down < top), down)):
                rows = np.flatnonzero(may & ~chosen)
                if len(rows) > count:
                    rows = rows[np.argpartition(score[rows], count)[:count]]
                chosen[rows] = True
        self.last = chosen
        return np.flatnonzero(chosen)


def round_size(n: int, price: float, regression: bool = False, started: bool = False) -> int:
    """Rows per round: fewer if their own kernel values are a large share of all that will be needed.

    A regression has several times the support vectors of a classifier, so large rounds pay from smaller n on. A start
    near the solution leaves few rows to move.
    """
    if started and 1024 < n < 5120:
        return 512 if n < 3072 else 768
    return 2048 if n >= (4_096 if regression else 16_384) else 1024 if price < 30.0 else 512
