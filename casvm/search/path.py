"""Solutions of one dual for ascending C, on a kernel matrix in memory, with some rows left out.

The bounds of left-out rows are 0, which excludes these rows without copying the matrix for each fold. The solver
updates the gradient of all rows in every step anyway, so exact decisions on the left-out rows are available when it
stops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.svm.problem import overflow
from casvm.solver.active_set import extremes
from casvm.solver.pair import Pairs

Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Solved:
    """A solution for one C.

    Attributes
    ----------
    decision : ndarray of float64, shape (m,)
        Decisions on all rows, including left-out ones; positive for +1.
    beta : ndarray of float64, shape (m,)
        alpha y.
    b : float
    iterations : int
        Pairs of rows optimised.
    converged : bool
    """

    decision: Vector
    beta: Vector
    b: float
    iterations: int
    converged: bool


def along(
    K: NDArray[np.floating], y: Vector, factor: Vector, Cs: tuple[float, ...], tol: float, most: int
) -> Iterator[Solved]:
    """Solve C-SVC for each C, starting from the solution for the previous C.

    Parameters
    ----------
    K : ndarray, shape (m, >= padded(m)), C-contiguous
        Kernel values; columns from m on hold any finite values. See :func:`casvm.solver.pair.padded`.
    y : ndarray of float64, shape (m,)
        +1 and -1.
    factor : ndarray of float64, shape (m,)
        Factor of C in the bound of each row's alpha; 0 for a left-out row.
    Cs : tuple of float
        Ascending.
    tol : float
        Tolerance for the largest violation of a pair.
    most : int
        Limit of pairs per solution.

    Yields
    ------
    Solved
        The solution for each C.

    Raises
    ------
    InputError
        Numbers overflow.

    Notes
    -----
    The solver is :class:`casvm.solver.pair.Pairs`; it needs a few numbers per row besides `K`. The start is t times the
    last solution, which is feasible for t from 1 to the ratio of the two C. The t that maximises the dual is
    sum(alpha) / beta'K beta, clipped to this range. The gradient at the start costs one pass over m numbers.
    """
    bound = factor * y
    return _path(K, y, np.minimum(bound, 0.0), np.maximum(bound, 0.0), 0.0, Cs, tol, most)


def along_regression(
    K: NDArray[np.floating], y: Vector, factor: Vector, Cs: tuple[float, ...], epsilon: float, tol: float, most: int
) -> Iterator[Solved]:  # fmt: skip
    """Solve epsilon-SVR for each C, like :func:`along`, with targets `y` and this epsilon."""
    return _path(K, y, -factor, factor, epsilon, Cs, tol, most)


def along_quantile(
    K: NDArray[np.floating], y: Vector, factor: Vector, Cs: tuple[float, ...], tau: float, tol: float, most: int
) -> Iterator[Solved]:  # fmt: skip
    """Solve the regression of the tau-quantile for each C, like :func:`along`, with targets `y`."""
    return _path(K, y, (tau - 1.0) * factor, tau * factor, 0.0, Cs, tol, most)


def _path(
    K: NDArray[np.floating], y: Vector, low: Vector, high: Vector, epsilon: float, Cs: tuple[float, ...], tol: float,
    most: int,
) -> Iterator[Solved]:  # fmt: skip
    """Solve the dual with p = -y and bounds C `low` and C `high` for each C."""
    m = len(y)
    beta, v, last = np.zeros(m), y.copy(), 0.0
    diagonal, where = np.diagonal(K)[:m].astype(np.float64), np.arange(m)
    for C in Cs:
        lower, upper = C * low, C * high
        if last:
            gain = float((y * beta).sum() - epsilon * np.abs(beta).sum())
            by = _best_multiple(gain, float(beta @ (y - v)), C / last)
            v = y - by * (y - v)
            at_low, at_high = beta == last * low, beta == last * high
            beta = by * beta
            if by == C / last:  # rows at a bound must stay exactly at it, despite rounding
                beta = np.where(at_high, upper, np.where(at_low, lower, beta))
            beta = np.clip(beta, lower, upper)  # and none may exceed it
        problem = Pairs(v, beta, lower, upper, diagonal, epsilon)
        problem.optimise(K, where, tol, most)
        v, beta, last = problem.v.copy(), problem.beta.copy(), C
        top, bottom = extremes(v, beta, lower, upper, epsilon)
        if np.isnan(v).any():
            raise overflow()
        sides = [side for side in (top, bottom) if np.isfinite(side)] or [0.0]
        b = 0.5 * (sides[0] + sides[-1])
        yield Solved(y - v + b, beta, b, problem.iterations, top - bottom < tol)


def _best_multiple(gain: float, square: float, most: float) -> float:
    """The t from 1 to `most` that maximises the dual objective of t beta, t gain - t^2/2 beta'K beta."""
    if square <= 0.0:
        return most
    return float(np.clip(gain / square, 1.0, most))
