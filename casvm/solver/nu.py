"""The nu-SVMs by SMO: their duals keep the sums of positive and negative coefficients, so pairs have equal sign.

Chang and Lin (2001, 2002): what replaces C or epsilon is found by the solution itself, as half of what separates b of
the rows of one sign from b of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from cacore.data.rows import Rows, concatenate
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.svm.dual import Dual, Progress, Solution
from cacore.svm.problem import precision
from casvm.solver.kernel_rows import KernelRows
from casvm.solver.pair import Index, Vector
from casvm.solver.row_cache import Table
from casvm.solver.smo import solve

_SAMPLE = 1000  # rows by which the precision is chosen


def margins_of_one(solution: Solution) -> Solution:
    """A solution of nu-SVC in the scale of C-SVC, as LIBSVM returns it: the margin is 1, and C is 1 / r.

    Raises
    ------
    InputError
        There is no margin.
    """
    r = -solution.margin
    if not r > 0 or not np.isfinite(1.0 / r**2):
        raise InputError("nu is too small: there is no margin between the classes; use a larger nu, or another kernel")
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
        As for :class:`cacore.svm.dual.PartSolver`.
    y, C, nu
        As for :meth:`cacore.svm.dual.Dual.nu_regression`.

    Returns
    -------
    Solution
        Of the n rows: beta = alpha - alpha*, and `margin` is epsilon.

    Notes
    -----
    SMO on 2n rows, of which a row of K is computed and kept once, 2n values wide.
    """
    if kernel is None:
        from cacore.kernels.given import Precomputed, given_kernel, numbered

        X, kernel = numbered(X.shape[0], np.float64), given_kernel(Precomputed(np.asarray(X)))
    n, dual = X.shape[0], Dual.nu_regression(y, C, nu)
    dtype = precision(2 * n, X[:: max(1, n // _SAMPLE)], kernel, dual.largest_bound, limits.tol)
    twice = solve(_Twice(X, kernel, dtype, cache_bytes), dual, limits, watch)
    return replace(twice, beta=twice.beta[:n] + twice.beta[n:], decision=twice.decision[:n])


class _Twice(KernelRows):
    """The kernel matrix of `X` and `X` again, whose rows i and n + i are one."""

    def __init__(self, X: Rows, kernel: Kernel, dtype: object, cache_bytes: int) -> None:
        super().__init__(concatenate([X, X]), kernel, dtype, cache_bytes, sources=X)

    def _asked(self, columns: Index) -> Index | None:
        return np.unique(columns % self.n_rows)

    def square(self, rows: Index) -> np.ndarray:
        """See :class:`casvm.solver.gram.Gram`."""
        return super().square(rows % self.n_rows)

    def subtract(self, rows: Index, change: Vector, v: Vector, keep: np.ndarray) -> None:
        """See :class:`casvm.solver.gram.Gram`."""
        once, place = np.unique(rows % self.n_rows, return_inverse=True)
        kept = np.zeros(len(once), np.bool_)
        np.logical_or.at(kept, place, keep)
        super().subtract(once, np.bincount(place, change, len(once)).astype(np.float64), v, kept)

    def outside(self, rows: Index, change: Vector, columns: Index) -> Vector:
        """See :class:`casvm.solver.gram.Gram`."""
        return super().outside(rows % self.n_rows, change, columns)

    def quadratic(self, rows: Index, beta: Vector) -> float:
        """See :class:`casvm.solver.gram.Gram`."""
        return super().quadratic(rows % self.n_rows, beta)

    def fetch(self, rows: Index) -> None:
        """See :class:`casvm.solver.gram.Gram`."""
        super().fetch(np.unique(rows % self.n_rows))

    def table(self) -> Table:
        """See :class:`casvm.solver.gram.Gram`."""
        return self._cache.table(self.active % self.n_rows)
