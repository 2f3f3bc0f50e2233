"""The nu-SVMs by SMO: their duals fix the sums of positive and of negative coefficients, so pairs have equal signs.

Chang and Lin (2001, 2002): the solution itself determines C or epsilon, as half the difference between the biases b
of the two signs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import DTypeLike

from cacore.data.rows import Rows, concatenate
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.kernels.given import Precomputed, given_kernel, numbered
from cacore.kernels.precision import Accuracy
from cacore.limits import Limits
from cacore.svm.dual import Dual, Progress, Solution
from cacore.svm.problem import precision
from casvm.solver.kernel_rows import KernelRows
from casvm.solver.pair import Index, Vector
from casvm.solver.row_cache import RowTable
from casvm.solver.smo import solve
from casvm.solver.units import Origin, Unit

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
    unit, origin = Unit.of_dual(dual), Origin.of(X, kernel)
    X, dual, limits = origin.X, unit.dual(dual), unit.limits(limits)
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

    def _asked(self, columns: Index) -> Index:
        return np.unique(columns % self.n_rows)

    def square(self, rows: Index) -> np.ndarray:
        """See :class:`casvm.solver.gram.KernelMatrix`."""
        return super().square(rows % self.n_rows)

    def subtract(self, rows: Index, change: Vector, v: Vector, keep: np.ndarray) -> None:
        """See :class:`casvm.solver.gram.KernelMatrix`."""
        once, place = np.unique(rows % self.n_rows, return_inverse=True)
        kept = np.zeros(len(once), np.bool_)
        np.logical_or.at(kept, place, keep)
        super().subtract(once, np.bincount(place, change, len(once)).astype(np.float64), v, kept)

    def outside(self, rows: Index, change: Vector, columns: Index, exact: bool = False) -> Vector:
        """See :class:`casvm.solver.gram.KernelMatrix`."""
        return super().outside(rows % self.n_rows, change, columns, exact)

    def products(self, rows: Index, betas: Vector) -> Vector:
        """See :class:`casvm.solver.gram.KernelMatrix`."""
        return super().products(rows % self.n_rows, betas)

    def fetch(self, rows: Index) -> None:
        """See :class:`casvm.solver.gram.KernelMatrix`."""
        super().fetch(np.unique(rows % self.n_rows))

    def table(self) -> RowTable:
        """See :class:`casvm.solver.gram.KernelMatrix`."""
        return self._cache.table(self.active % self.n_rows)
