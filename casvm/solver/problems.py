"""The problems of a part that are not classification: nu-SVR, several quantiles, and one class.

:func:`solve_regression` solves nu-SVR by SMO. As that of nu-SVC, its dual fixes the sums of positive and of negative
coefficients, so pairs have equal signs. The solution itself determines epsilon, as half the difference between the
biases b of the two signs (Chang and Lin, 2001, 2002).

:func:`solve_quantiles` solves the duals of several levels, which share kernel values and start from each other. The
duals differ in their bounds only, -C (1 - tau) and C tau (:meth:`cacore.svm.dual.Dual.quantile`). Levels are solved in
ascending order. The solution f of one level gives the start of the next: rows far above the new quantile belong to
their upper bound, rows far below to their lower one. The first of several levels starts from a constant f.

:class:`Problem` and its subclasses are what tasks and estimators solve: parameters, duals, and the way to solve them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike

from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.data.rows import Rows, concatenate, in_memory, power_of_two
from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.kernels.given import Precomputed, given_kernel, numbered
from cacore.kernels.precision import Accuracy
from cacore.svm.dual import Dual, KnownProduct, Progress, Solution
from cacore.svm.options import DEFAULT
from cacore.svm.problem import precision
from casvm.options import NU, SCALE, SCALED, ValueMethod, ValueOptions
from casvm.solver.active_set import OverRanks, middle
from casvm.solver.kernel_rows import Index, KernelRows, RowTable, Vector
from casvm.solver.smo import PartTraining, PartValues, solve
from casvm.solver.units import Origin, Unit


def solve_regression(X: Rows, dual: Dual, training: PartTraining) -> Solution:
    """Solve nu-SVR.

    Parameters
    ----------
    X : ndarray or CSR, shape (n, d)
        Not changed.
    dual : Dual
        From :meth:`cacore.svm.dual.Dual.nu_regression`.
    training : PartTraining

    Returns
    -------
    Solution
        For the n rows: beta = alpha - alpha*; `margin` is epsilon.

    Notes
    -----
    SMO on 2n rows; rows i and n + i share one row of K, 2n values wide.
    """
    kernel = training.kernel
    if kernel is None:
        X, kernel = numbered(X.shape[0], np.float64), given_kernel(Precomputed(np.asarray(X)))
    n, tol = X.shape[0], training.limits.tol
    unit = Unit.of_dual(dual)
    dual, limits = unit.dual(dual), unit.limits(training.limits)
    origin = Origin.of(X, kernel, dual.largest_bound, limits.tol)
    X = origin.X
    dtype = precision((2 * n, X.shape[1]), kernel.largest(X, np.float64), dual.largest_bound, limits.tol)
    accuracy = Accuracy.of_solution(dual.largest_bound, limits.tol, dual.half_range)
    layout = Layout.of(X, kernel, dtype, None, accuracy)
    gram = _Twice(X, kernel, dtype, training.cache_bytes, layout)
    twice = unit.solution(solve(gram, dual, limits, unit.watch(training.watch)), tol)
    return origin.solution(replace(twice, beta=twice.beta[:n] + twice.beta[n:], decision=twice.decision[:n]))


class _Twice(KernelRows):
    """The kernel matrix of `X` stacked twice; rows i and n + i are stored once."""

    def __init__(self, X: Rows, kernel: Kernel, dtype: DTypeLike, cache_bytes: int, layout: Layout) -> None:
        super().__init__(concatenate([X, X]), kernel, dtype, cache_bytes, layout, X)

    def _rows_to_cut(self, columns: Index) -> Index:
        return np.unique(columns % self.n_rows)

    def square(self, rows: Index) -> np.ndarray:
        """See :class:`casvm.solver.kernel_rows.KernelRows`."""
        return super().square(rows % self.n_rows)

    def subtract(self, rows: Index, change: Vector, v: Vector, keep: np.ndarray) -> None:
        """See :class:`casvm.solver.kernel_rows.KernelRows`."""
        once, place = np.unique(rows % self.n_rows, return_inverse=True)
        keep_once = np.zeros(len(once), np.bool_)
        np.logical_or.at(keep_once, place, keep)
        super().subtract(once, np.bincount(place, change, len(once)).astype(np.float64), v, keep_once)

    def outside(self, rows: Index, change: Vector, columns: Index, exact: bool = False) -> Vector:
        """See :class:`casvm.solver.kernel_rows.KernelRows`."""
        return super().outside(rows % self.n_rows, change, columns, exact)

    def products(self, rows: Index, betas: Vector) -> Vector:
        """See :class:`casvm.solver.kernel_rows.KernelRows`."""
        return super().products(rows % self.n_rows, betas)

    def fetch(self, rows: Index) -> None:
        """See :class:`casvm.solver.kernel_rows.KernelRows`."""
        super().fetch(np.unique(rows % self.n_rows))

    def table(self) -> RowTable:
        """See :class:`casvm.solver.kernel_rows.KernelRows`."""
        return self._cache.table(self.active % self.n_rows)


_ROUNDING = 1e-12  # distance from a bound, relative to that between the bounds, which counts as none


def solve_quantiles(X: Rows, duals: Sequence[Dual], training: PartTraining) -> list[Solution]:
    """Solve the duals of all levels of one part, in their order.

    Parameters
    ----------
    X : ndarray or CSR, shape (n, d)
        Not changed.
    duals : sequence of Dual
        In ascending order of the level.
    training : PartTraining
        The limits apply to each level. Only the default solver shares kernel values between levels.

    Returns
    -------
    list of Solution

    Notes
    -----
    The first level costs what :func:`casvm.solver.smo.solve_part` does. The others read the rows of K that the cache
    has kept, and start from the level below. One product with K serves all starts, and one pass over K in double
    precision all objectives.
    """
    if training.solver == DEFAULT and len(duals) > 1:
        # Shrinking copies kept rows of K, which the next level reads over all columns; it pays only if few fit.
        fits = duals[0].n ** 2 * np.dtype(np.float32).itemsize <= training.cache_bytes
        limits = replace(training.limits, shrinking=training.limits.shrinking and not fits)
        values = PartValues(X, training.kernel, _widest(duals), limits, training.cache_bytes)
        solutions = _solve_sharing_values(values, duals, training.watch)
    else:
        solutions = []
        for dual in duals:
            start = start_at(dual, solutions[-1].decision) if solutions else None
            solutions.append(training.solve(X, replace(dual, start=start)))
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

    def shifted(beta: Vector, K_beta: Vector, shift: Vector) -> KnownProduct | None:
        """Beta, moved by a multiple of the width."""
        if product is None:
            return None
        return KnownProduct(beta + shift, K_beta + shift.sum() / width.sum() * product)

    def started(k: int, last: Solution | None) -> Dual:
        dual, zero = duals[k], np.zeros(duals[k].n)
        if last is not None:
            product_known = shifted(last.beta, values.fitted(last), dual.upper - duals[k - 1].upper)
            return replace(dual, start=start_at(dual, last.decision), near_start=product_known)
        start = start_at(dual, zero)
        side = dual.upper if np.count_nonzero(start == dual.upper) > dual.n // 2 else dual.lower
        return replace(dual, start=start, near_start=shifted(zero, zero, side))

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


def solve_one_class(X: Rows, weights: Vector, nu: float, training: PartTraining) -> Solution:
    """Solve the one-class SVM.

    Parameters
    ----------
    X : ndarray or CSR, shape (n, d)
        Not changed.
    weights, nu
        See :meth:`cacore.svm.dual.Dual.one_class`; all weights are above 0.
    training : PartTraining

    Notes
    -----
    The tolerance belongs to weights near 1, so that tiny ones do not end before the first step.
    """
    unit = Unit(power_of_two(float(weights.max())))
    dual = Dual.one_class(weights / unit.size, nu)
    solution = replace(training, watch=unit.watch(training.watch)).solve(X, dual)
    return unit.solution(solution, training.limits.tol * unit.size)


@dataclass(frozen=True)
class Problem(ABC):
    """The dual problem, or several, of rows with the columns target "y" and "weight".

    Attributes
    ----------
    svm_type : str
        Name in models; LIBSVM's, if it has one.
    parameters : tuple of str
        The ones of C, epsilon and nu that the problem has.
    has_targets : bool
    params : dict of str to float
        Their values.
    levels : tuple of float
        Levels of quantiles, ascending; each is a dual of its own.
    """

    svm_type: ClassVar[str]
    parameters: ClassVar[tuple[str, ...]]
    has_targets: ClassVar[bool] = True

    params: dict[str, float]
    levels: tuple[float, ...] = ()

    @classmethod
    def of(cls, options: ValueOptions, unit: float) -> Self:
        """The problem with these options, whose scales are in units of the targets."""
        values = {name: NU if value is None else value for name in cls.parameters for value in [getattr(options, name)]}
        params = {name: float(SCALED[name] * unit if value == SCALE else value) for name, value in values.items()}
        return cls(params, options.levels)

    @abstractmethod
    def duals(self, rows: Samples, comm: Communicator) -> list[Dual]:
        """The duals of these rows, which are distributed over the ranks: one, or one per level; collective."""

    def solve(self, rows: Samples, training: PartTraining) -> list[Solution]:
        """Solve the duals of these rows on this rank alone, by the chosen solver."""
        X = in_memory(rows.X)
        return [training.solve(X, dual) for dual in self.duals(rows, Communicator())]

    def finished(self, solution: Solution, dual: Dual, comm: Communicator) -> Solution:
        """The solution of a dual of all ranks' rows; collective."""
        return solution

    def share(self, rows: int, mean_rows: float) -> float:
        """Factor by which coefficients of a part of so many rows become those of a part of the mean size."""
        return 1.0


class EpsilonRegression(Problem):
    """Epsilon-SVR."""

    svm_type = "epsilon_svr"
    parameters = ("C", "epsilon")

    def duals(self, rows: Samples, comm: Communicator) -> list[Dual]:
        """See :meth:`Problem.duals`."""
        return [Dual.regression(rows["y"], self.params["C"] * rows["weight"], self.params["epsilon"])]


class NuRegression(Problem):
    """Nu-SVR, of rows on one rank; always by SMO."""

    svm_type = "nu_svr"
    parameters = ("C", "nu")

    def duals(self, rows: Samples, comm: Communicator) -> list[Dual]:
        """The dual of twice as many rows."""
        return [Dual.nu_regression(rows["y"], self.params["C"] * rows["weight"], self.params["nu"])]

    def solve(self, rows: Samples, training: PartTraining) -> list[Solution]:
        """See :func:`solve_regression`."""
        (dual,) = self.duals(rows, Communicator())
        return [solve_regression(in_memory(rows.X), dual, training)]


class QuantileRegression(Problem):
    """Quantile regression: duals that differ in their bounds only."""

    svm_type = "quantile_svr"
    parameters = ("C",)

    def duals(self, rows: Samples, comm: Communicator) -> list[Dual]:
        """See :meth:`Problem.duals`."""
        return [Dual.quantile(rows["y"], self.params["C"] * rows["weight"], level) for level in self.levels]

    def solve(self, rows: Samples, training: PartTraining) -> list[Solution]:
        """See :func:`solve_quantiles`."""
        return solve_quantiles(in_memory(rows.X), self.duals(rows, Communicator()), training)

    def finished(self, solution: Solution, dual: Dual, comm: Communicator) -> Solution:
        """See :func:`centered`."""
        return centered(solution, dual, partial(comm.allreduce, op="max"))


class OneClassProblem(Problem):
    """One class: no targets, and coefficients of a part of m rows that add up to nu m."""

    svm_type = "one_class"
    parameters = ("nu",)
    has_targets = False

    def duals(self, rows: Samples, comm: Communicator) -> list[Dual]:
        """See :meth:`Problem.duals`."""
        sums = comm.allgather(np.array([rows["weight"].sum()]))
        before, after = float(sums[: comm.rank].sum()), float(sums[comm.rank + 1 :].sum())
        return [Dual.one_class(rows["weight"], self.params["nu"], before, after)]

    def share(self, rows: int, mean_rows: float) -> float:
        """See :meth:`Problem.share`."""
        return mean_rows / rows


def problem_of(method: ValueMethod, options: ValueOptions) -> type[Problem]:
    """The problem that a method solves with these options."""
    if method.one_class:
        return OneClassProblem
    if options.nu is not None:
        return NuRegression
    return QuantileRegression if options.levels else EpsilonRegression
