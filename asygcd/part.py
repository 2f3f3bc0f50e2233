"""Asynchronous greedy coordinate descent as a solver of parts, registered as "asygcd"."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from asygcd.solver.asygcd import AsyGCD, AsyGCDProgress
from asygcd.solver.kernel_columns import least_cache
from cacore.data.rows import Rows
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.kernels.precision import Accuracy
from cacore.limits import Limits
from cacore.machine import threads
from cacore.svm.dual import Dual, Progress, Solution
from cacore.svm.options import register
from cacore.svm.problem import precision


@register("asygcd")
def solve_part(
    X: Rows, kernel: Kernel | None, dual: Dual, limits: Limits, cache_bytes: int,
    watch: Callable[[Progress], None] | None = None,
) -> Solution:  # fmt: skip
    """Solve the dual of C-SVC without a bias; see :class:`cacore.svm.dual.PartSolver`.

    The cache holds at least two kernel columns per thread, even if `cache_bytes` is smaller. A warm start is clipped to
    the bounds.

    Raises
    ------
    InputError
        If there is no kernel, or the dual is not that of C-SVC.

    Notes
    -----
    See :meth:`asygcd.solver.asygcd.AsyGCD.solve`.
    """
    y = -dual.linear
    one_sided = (np.where(y > 0, dual.lower, dual.upper) == 0).all()
    if kernel is None or dual.epsilon or not ((np.abs(y) == 1).all() and one_sided):
        raise InputError("solver 'asygcd': it needs a kernel that it can compute, and the dual of a classifier")
    count, C = threads.available(), dual.upper - dual.lower
    dtype = precision(X.shape, kernel.largest(X, np.float64), dual.largest_bound, limits.tol)

    def seen(progress: AsyGCDProgress) -> None:
        if watch is not None:
            watch(Progress(progress.iterations, progress.gap, -progress.objective, dual.n))

    solver = AsyGCD(
        X, kernel, count, max(cache_bytes, least_cache(dual.n, count, dtype)), dtype,
        accuracy=Accuracy.of_solution(dual.largest_bound, limits.tol),
    )  # fmt: skip
    start = None if dual.start is None else y * dual.start
    solution = solver.solve(y, C, limits, start, None if watch is None else seen)
    return Solution(
        y * solution.alpha, 0.0, solution.iterations, -solution.objective, solution.gap, solution.converged,
        int(solution.misses.sum()), solution.kernel_values, solution.seconds, y * (solution.gradient + 1.0),
    )  # fmt: skip
