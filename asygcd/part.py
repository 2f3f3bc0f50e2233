"""One problem of two classes for other packages: arrays in, a solution out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asygcd.solver.gram import least_cache
from asygcd.solver.team import AsyGCD, Solution
from cacore.data.rows import Rows
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.machine import threads
from cacore.svm.problem import precision

Vector = NDArray[np.float64]


def solve(
    X: Rows, kernel: Kernel, y: Vector, C: Vector, cache_bytes: int, *, tol: float = 1e-3, max_iter: int = -1,
    max_time: float = float("inf"), start: Vector | None = None,
) -> Solution:  # fmt: skip
    """Solve the dual without a bias, on the threads that the caller has.

    Parameters
    ----------
    X : ndarray or CSR, shape (n, d)
        Not changed.
    kernel : Kernel
    y : ndarray, shape (n,)
        +1 and -1.
    C : ndarray, shape (n,)
        Bound of each row's alpha.
    cache_bytes : int
        At least two columns a thread are kept, whatever it is.
    tol, max_iter, max_time
        See :class:`asygcd.solver.team.Limits`.
    start : ndarray, shape (n,), optional
        Alpha to begin with.

    Returns
    -------
    Solution

    Notes
    -----
    See :meth:`asygcd.solver.team.AsyGCD.solve`.
    """
    limits = Limits(tol, max_iter, max_time)
    dtype = precision(X.shape[0], X[:: max(1, X.shape[0] // 1000)], kernel, float(C.max()), tol)
    team = threads.available()
    return AsyGCD(X, kernel, team, max(cache_bytes, least_cache(X.shape[0], team, dtype)), dtype).solve(
        y, C, limits, start
    )
