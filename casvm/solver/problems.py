"""The problems of a part: one-vs-one classification, the nu-SVMs, and several quantiles.

:func:`fit_part` solves one binary problem per pair of classes.

The nu-SVMs (:func:`with_margin`, :func:`solve_regression`) are solved by SMO. Their duals fix the sums of positive and
of negative coefficients, so pairs have equal signs. The solution itself determines C or epsilon, as half the difference
between the biases b of the two signs (Chang and Lin, 2001, 2002).

:func:`solve_quantiles` solves the duals of several levels, which share kernel values and start from each other. The
duals differ in their bounds only, -C (1 - tau) and C tau (:meth:`cacore.svm.dual.Dual.quantile`). Levels are solved in
ascending order. The solution f of one level gives the start of the next: rows far above the new quantile belong to
their upper bound, rows far below to their lower one. The first of several levels starts from a constant f.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.data.rows import Rows, concatenate, power_of_two
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.kernels.given import Precomputed, given_kernel, numbered
from cacore.kernels.precision import Accuracy
from cacore.limits import Limits
from cacore.machine import threads
from cacore.svm.dual import Dual, Known, Progress, Solution
from cacore.svm.options import DEFAULT, part_solver
from cacore.svm.problem import precision
from casvm.model.part_svm import PartSVM
from casvm.solver import smo  # noqa: F401 - registers the default solver, also where the package is not installed
from casvm.solver.active_set import OverRanks, middle
from casvm.solver.class_pairs import ClassRows, solve_classes
from casvm.solver.kernel_rows import KernelRows, RowTable
from casvm.solver.pair import Index, Vector
from casvm.solver.smo import PartValues, solve
from casvm.solver.units import Origin, Unit


def fit_part(
    X: Rows, codes: NDArray[np.int64], C: NDArray[np.float64], rows: NDArray[np.int64], kernel: Kernel | None,
    limits: Limits, cache_bytes: int, solver: str = DEFAULT, start: NDArray[np.float64] | None = None,
    watch: Callable[[Progress], None] | None = None, nu: float | None = None,
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
    kernel, limits, cache_bytes, watch
        See :class:`cacore.svm.dual.PartSolver`, for each binary problem.
    solver : str
        A name of :mod:`cacore.svm.options`.
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
    solve = part_solver(solver)
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
    if k > 2 and solver == DEFAULT:
        largest_bound = 1.0 if nu is not None else float(C.max())
        side_by_side = threads.current() if together else 1
        origin = Origin.of(X, kernel, largest_bound, limits.tol)
        shared = ClassRows.of(origin.X, members, kernel, largest_bound, limits, cache_bytes, side_by_side)

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
                return origin.solution(solve_classes(rows_of_k, dual, limits, watch), chosen)
        if kernel is None:
            K = np.asarray(X)
            whole = np.array_equal(np.arange(K.shape[1]), rows[chosen]) and len(chosen) == len(K)
            X_pair: Rows = K if whole else K[np.ix_(chosen, rows[chosen])]
        else:
            X_pair = X if len(chosen) == X.shape[0] else X[chosen]
        return solve(X_pair, kernel, dual, limits, cache_bytes, watch)

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


_SURE = 10.0  # margin, in tolerances, from which decisions of margin 1 are right to a tenth
_FINER, _FINEST = 0.01, 1e-3  # factors of the tolerance: of the next try, and at which the last try begins
_LEAST = 2.0**-511  # squares of margins between this and its inverse are finite, and so are their inverses


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


def solve_regression(
    X: Rows, kernel: Kernel | None, y: Vector, C: Vector, nu: float, limits: Limits, cache_bytes: int,
    watch: Callable[[Progress], None] | None = None,
) -> Solution:  # fmt: skip
    """Solve nu-SVR.

    Parameters
    ----------
    X, kernel, limits, cache_bytes, watch
        See :class:`cacore.svm.dual.PartSolver`.
    y, C, nu
        See :meth:`cacore.svm.dual.Dual.nu_regression`.

    Returns
    -------
    Solution
        For the n rows: beta = alpha - alpha*; `margin` is epsilon.

    Notes
    -----
    SMO on 2n rows; rows i and n + i share one row of K, 2n values wide.
    """
    if kernel is None:
        X, kernel = numbered(X.shape[0], np.float64), given_kernel(Precomputed(np.asarray(X)))
    n, dual, tol = X.shape[0], Dual.nu_regression(y, C, nu), limits.tol
    unit = Unit.of_dual(dual)
    dual, limits = unit.dual(dual), unit.limits(limits)
    origin = Origin.of(X, kernel, dual.largest_bound, limits.tol)
    X = origin.X
    dtype = precision((2 * n, X.shape[1]), kernel.largest(X, np.float64), dual.largest_bound, limits.tol)
    accuracy = Accuracy.of_solution(dual.largest_bound, limits.tol, dual.half_range)
    layout = Layout.of(X, kernel, dtype, None, accuracy)
    gram = _Twice(X, kernel, dtype, cache_bytes, layout)
    twice = unit.solution(solve(gram, dual, limits, unit.watch(watch)), tol)
    return origin.solution(replace(twice, beta=twice.beta[:n] + twice.beta[n:], decision=twice.decision[:n]))


class _Twice(KernelRows):
    """The kernel matrix of `X` stacked twice; rows i and n + i are stored once."""

    def __init__(self, X: Rows, kernel: Kernel, dtype: DTypeLike, cache_bytes: int, layout: Layout) -> None:
        super().__init__(concatenate([X, X]), kernel, dtype, cache_bytes, layout, X)

    def _rows_to_cut(self, columns: Index) -> Index:
        return np.unique(columns % self.n_rows)

    def square(self, rows: Index) -> np.ndarray:
        """See :class:`casvm.solver.kernel_rows.KernelMatrix`."""
        return super().square(rows % self.n_rows)

    def subtract(self, rows: Index, change: Vector, v: Vector, keep: np.ndarray) -> None:
        """See :class:`casvm.solver.kernel_rows.KernelMatrix`."""
        once, place = np.unique(rows % self.n_rows, return_inverse=True)
        keep_once = np.zeros(len(once), np.bool_)
        np.logical_or.at(keep_once, place, keep)
        super().subtract(once, np.bincount(place, change, len(once)).astype(np.float64), v, keep_once)

    def outside(self, rows: Index, change: Vector, columns: Index, exact: bool = False) -> Vector:
        """See :class:`casvm.solver.kernel_rows.KernelMatrix`."""
        return super().outside(rows % self.n_rows, change, columns, exact)

    def products(self, rows: Index, betas: Vector) -> Vector:
        """See :class:`casvm.solver.kernel_rows.KernelMatrix`."""
        return super().products(rows % self.n_rows, betas)

    def fetch(self, rows: Index) -> None:
        """See :class:`casvm.solver.kernel_rows.KernelMatrix`."""
        super().fetch(np.unique(rows % self.n_rows))

    def table(self) -> RowTable:
        """See :class:`casvm.solver.kernel_rows.KernelMatrix`."""
        return self._cache.table(self.active % self.n_rows)


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
        solutions = _solve_sharing_values(PartValues(X, kernel, _widest(duals), limits, cache_bytes), duals, watch)
    else:
        alone, solutions = part_solver(solver), []
        for dual in duals:
            start = start_at(dual, solutions[-1].decision) if solutions else None
            solutions.append(alone(X, kernel, replace(dual, start=start), limits, cache_bytes, watch))
    return [centered(solution, dual) for solution, dual in zip(solutions, duals, strict=True)]


def _solve_sharing_values(
    values: PartValues, duals: Sequence[Dual], watch: Callable[[Progress], None] | None
) -> list[Solution]:
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
            product_known = shifted(last.beta, values.fitted(last), dual.upper - duals[k - 1].upper)
            return replace(dual, start=start_at(dual, last.decision), known=product_known)
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
