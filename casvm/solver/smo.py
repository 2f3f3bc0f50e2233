"""The exact solver of one part, on one process: SMO (Algorithm 1) with working sets, to LIBSVM's stopping rule.

:func:`fit_part` trains the classes of a part: one problem per pair of classes, C-SVC or nu-SVC. Each is solved by
:func:`solve_part`, or with many classes by :mod:`casvm.solver.class_pairs`.

SMO starts in rounds: a round chooses many violating rows, solves their problem in cache, and updates the gradient of
all active rows by a product. Once the rows of K that matter are in memory, it continues pair by pair over all active
rows, which takes far fewer steps than rounds near the solution. Narrow kernels, whose values are mostly negligible, use
a sparse solver, :mod:`casvm.solver.near_smo`. The dual and its terms: :mod:`cacore.svm.dual`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows, power_of_two
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.machine import threads
from cacore.svm.dual import Dual, Progress, Solution
from cacore.svm.options import DEFAULT, part_solver, register
from casvm.model.part_svm import PartSVM
from casvm.solver.active_set import SMO, ActiveSet, Pairs, Shrinking
from casvm.solver.class_pairs import ClassRows, WholeRows, solve_classes
from casvm.solver.kernel_rows import Index, KernelRows, Vector, gram_of
from casvm.solver.near_smo import near_values
from casvm.solver.units import Origin, Unit

# The figures below were reasoned, not raced one by one; docs/methods/smo.md has the times of the whole.
WORKING_SET = 2048  # most rows per round: their square, 16 MiB in single precision, stays near the cores
# Shrinking cuts all kept rows of K, so it waits until many rows are idle; more of them if the cut is a copy.
SHRINKING = Shrinking(patience=3, share=0.4, share_if_copied=0.65)
# Most pairs, and rows they pass (about 0.2 s at 0.4 ns each), between two checks for inactive rows and of the clock.
_CHUNK, _PASSED = 8000, 4 * 10**8
# Most rows of a precomputed kernel that are solved pair by pair, in working sets, for bounds up to 10 and above. In ms,
# so and in rounds: C = 10, 3,000 rows 45 and 99, 6,000 rows 227 and 284; C = 100, 1,000 rows 7 and 13, 4,100 rows 360
# and 239.
_GIVEN_SETS, _GIVEN_BOUND = (4, 1), 10.0
_MISSED = 500  # rows of K that pairs may always compute before rounds are faster
_FETCH = 64  # rows of K computed together when a pair needs one: one alone would leave the threads and panels idle
_SURE = 10.0  # margin, in tolerances, from which decisions of margin 1 are right to a tenth
_FINER, _FINEST = 0.01, 1e-3  # factors of the tolerance: of the next try, and at which the last try begins
_LEAST = 2.0**-511  # squares of margins between this and its inverse are finite, and so are their inverses


@dataclass(frozen=True)
class PartTraining:
    """Settings with which the problems of a part are solved, except the bounds of the coefficients.

    Attributes
    ----------
    kernel : Kernel or None
        None if rows are kernel values with all rows of the part.
    limits : Limits
        For each problem.
    cache_bytes : int
        Memory for kernel values and packed rows.
    solver : str
        A name of :mod:`cacore.svm.options`.
    watch : callable, optional
        Called at intervals with the progress of a problem.
    """

    kernel: Kernel | None
    limits: Limits
    cache_bytes: int
    solver: str = DEFAULT
    watch: Callable[[Progress], None] | None = None

    def solve(self, X: Rows, dual: Dual) -> Solution:
        """The solution of a dual of these rows, by the named solver."""
        return part_solver(self.solver)(X, self.kernel, dual, self.limits, self.cache_bytes, self.watch)


def fit_part(
    X: Rows, codes: NDArray[np.int64], C: NDArray[np.float64], rows: NDArray[np.int64], training: PartTraining,
    start: NDArray[np.float64] | None = None, nu: float | None = None,
) -> tuple[PartSVM, list[Solution]]:  # fmt: skip
    """Train one-vs-one classifiers.

    Parameters
    ----------
    X : ndarray or CSR, shape (m, d)
        Not changed.
    codes : ndarray of int64, shape (m,)
        Class of each row.
    C : ndarray of float64, shape (m,)
        Bound of each row's alpha; a row with 0 counts as absent.
    rows : ndarray of int64, shape (m,)
        Global row numbers.
    training : PartTraining
    start : ndarray, shape (n_classes - 1, m), optional
        Initial coefficients alpha y in the layout of :meth:`casvm.model.part_svm.PartSVM.spread`; need not be feasible.
    nu : float, optional
        Solve nu-SVC, without a `start`; `C` bounds alpha before it is scaled to a margin of 1.

    Returns
    -------
    part : PartSVM
    solutions : list of Solution
        One per pair of classes.

    Raises
    ------
    InputError
        If no solver has this name, or the solver raises it.
    """
    part_solver(training.solver)  # an unknown name is refused even if there is no pair of classes
    kernel, limits = training.kernel, training.limits
    present = C > 0
    classes = np.flatnonzero(np.bincount(codes[present]))
    members = [np.flatnonzero(present & (codes == code)) for code in classes]
    k = len(classes)
    alphas = np.zeros((max(k - 1, 0), len(codes)))
    solutions: list[Solution] = []
    tasks = list(combinations(range(k), 2))

    # Many pairs are solved in parallel; a few are solved one after the other, each with all threads.
    together = len(tasks) >= 2 * threads.current()
    shared, origin = None, Origin(X, None)
    if k > 2 and training.solver == DEFAULT:
        largest_bound = 1.0 if nu is not None else float(C.max())
        side_by_side = threads.current() if together else 1
        origin = Origin.of(X, kernel, largest_bound, limits.tol)
        shared = ClassRows.of(origin.X, members, kernel, largest_bound, limits, training.cache_bytes, side_by_side)

    def pair(i: int, j: int) -> tuple[NDArray[np.int64], NDArray[np.float64], Solution]:
        chosen = np.concatenate([members[i], members[j]])
        if shared is None:
            chosen.sort()
        y = np.where(codes[chosen] == classes[i], 1.0, -1.0)
        alpha = None
        if start is not None:
            alpha = y * np.where(y > 0, start[classes[j] - 1, chosen], start[classes[i], chosen])
        if nu is not None:
            weights = C[chosen] / power_of_two(float(C[chosen].max()))  # the answer does not depend on their unit
            dual = Dual.nu_classification(y, weights, nu)
            largest = float(np.abs(np.diagonal(np.asarray(X)) if kernel is None else kernel.diagonal(X[chosen])).max())
            return chosen, y, with_margin(partial(solved_by, i, j, chosen), dual, limits, largest)
        return chosen, y, solved_by(i, j, chosen, Dual.classification(y, C[chosen], alpha), limits)

    def solved_by(i: int, j: int, chosen: NDArray[np.int64], dual: Dual, limits: Limits) -> Solution:
        if shared is not None:
            with shared.pair(i, j) as rows_of_k:
                return origin.solution(solve_classes(rows_of_k, dual, limits, training.watch), chosen)
        if kernel is None:
            K = np.asarray(X)
            whole = np.array_equal(np.arange(K.shape[1]), rows[chosen]) and len(chosen) == len(K)
            X_pair: Rows = K if whole else K[np.ix_(chosen, rows[chosen])]
        else:
            X_pair = X if len(chosen) == X.shape[0] else X[chosen]
        return replace(training, limits=limits).solve(X_pair, dual)

    with threads.in_order(pair, tasks, parallel=together) as solved:
        for (i, j), (chosen, y, solution) in zip(tasks, solved, strict=True):
            first = y > 0
            alphas[j - 1, chosen[first]] = solution.alpha[first]
            alphas[i, chosen[~first]] = -solution.alpha[~first]
            solutions.append(solution)
    moved = np.asarray(alphas.any(axis=0))
    support = [places[moved[places]] for places in members] if k > 1 else []
    places = np.concatenate([np.zeros(0, np.int64), *support])
    part = PartSVM(
        classes, X[places] if kernel is not None else np.zeros((len(places), 0)), rows[places],
        np.ascontiguousarray(alphas[:, places]), np.array([pair_solution.b for pair_solution in solutions]),
        np.array([len(group) for group in support], np.int64) if k > 1 else np.zeros(k, np.int64),
    )  # fmt: skip
    return part, solutions


def with_margin(solve: Callable[[Dual, Limits], Solution], dual: Dual, limits: Limits, largest: float) -> Solution:
    """A solution of nu-SVC in the scale of C-SVC, as LIBSVM returns it: margin 1 and C = 1 / r.

    Decisions are divided by the margin r. Where r is not clearly above the tolerance, their signs would be arbitrary;
    the solution is then continued with smaller tolerances until r is. `largest` is the largest K_ii, of whose size
    margins are.

    Raises
    ------
    InputError
        There is no margin, at any tolerance.
    """
    tol, least = limits.tol, _FINEST * limits.tol * min(1.0, largest)
    solution = solve(dual, limits)
    while solution.converged and -solution.margin <= _SURE * tol and tol > least:
        tol *= _FINER
        solution = solve(replace(dual, start=solution.beta), replace(limits, tol=tol))
    r = -solution.margin
    if not max(_SURE * tol if solution.converged else 0.0, _LEAST) < r < 1 / _LEAST:
        raise InputError(
            f"nu is too small: there is no margin between the classes above {_SURE * tol:.1g}, and labels would be "
            "arbitrary; use a larger nu or another kernel"
        )
    return replace(
        solution, beta=solution.beta / r, b=solution.b / r, objective=solution.objective / r**2,
        decision=solution.decision / r, margin=1.0 / r,
    )  # fmt: skip


@register("smo")
def solve_part(
    X: Rows, kernel: Kernel | None, dual: Dual, limits: Limits, cache_bytes: int,
    watch: Callable[[Progress], None] | None = None,
) -> Solution:  # fmt: skip
    """Solve the dual of a part's rows from its start, made feasible; see :class:`cacore.svm.dual.PartSolver`."""
    whole = None
    if kernel is None and dual.n <= _GIVEN_SETS[dual.largest_bound > _GIVEN_BOUND] * WORKING_SET:
        whole = WholeRows.of_matrix(np.asarray(X), dual.largest_bound, limits.tol, cache_bytes)
    elif dual.n <= WORKING_SET:
        whole = WholeRows.of(X, kernel, dual.largest_bound, limits.tol, cache_bytes)
    if whole is not None:
        return whole.solve(dual, limits, watch)
    alone = ClassRows.of_one_problem(X, kernel, dual.largest_bound, limits, cache_bytes)
    if alone is not None:
        with alone.pair(0, 1) as rows:
            return solve_classes(rows, dual, limits, watch)
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


def solve(
    gram: KernelRows, dual: Dual, limits: Limits | None = None, watch: Callable[[Progress], None] | None = None,
    exact: bool = True,
) -> Solution:  # fmt: skip
    """Solve a dual.

    Parameters
    ----------
    gram : KernelRows
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
        self, gram: KernelRows, dual: Dual, limits: Limits, watch: Callable[[Progress], None] | None, exact: bool
    ) -> None:
        super().__init__(limits, watch)
        self.exact = exact
        self.gram, self.last = gram, np.zeros(dual.n, np.bool_)  # mask of the rows in the last working set
        active = self.active = ActiveSet(dual, gram, SHRINKING)
        self.room = min(WORKING_SET, round_size(dual.n, gram.price, dual.epsilon > 0, dual.near_start is not None))
        self.by_pairs = False
        active.v, change = dual.unknown(active.beta)
        moved = np.flatnonzero(change)
        gram.subtract(moved, change[moved], active.v, active.free(moved))
        self.objective = 0.5 * float(np.sum(-dual.linear * active.beta) + active.beta @ active.v)
        self.objective -= dual.epsilon * float(np.abs(active.beta).sum())

    def _reconstruct(self, moved: Index, change: Vector, rows: Index, v: Vector) -> None:
        v -= self.gram.outside(moved, change, rows)

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
