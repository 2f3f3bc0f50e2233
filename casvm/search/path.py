"""Solutions of one dual along C, on a kernel matrix in memory, of which some rows are left out.

The rows that are left out keep bounds of 0: they take no part, and no row of the matrix is copied for a fold. The
gradient of all rows is brought up to date with every step in any case, so that the decisions on the left-out rows are
there, exact, when the solver stops.
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
    """A solution.

    Attributes
    ----------
    decision : ndarray of float64, shape (m,)
        Of all rows, also of those left out; positive for +1.
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
    """Solve C-SVC for each C, from the one before it.

    Parameters
    ----------
    K : ndarray, shape (m, >= padded(m)), C-contiguous
        Kernel values; columns from m on hold any finite values. See :func:`casvm.solver.pair.padded`.
    y : ndarray of float64, shape (m,)
        +1 and -1.
    factor : ndarray of float64, shape (m,)
        What C is multiplied by to bound a row's alpha; 0 of a row that is left out.
    Cs : tuple of float
        Ascending.
    tol : float
        Violation of a pair at which a solution is good.
    most : int
        Pairs that one solution may take.

    Yields
    ------
    Solved
        For each C.

    Raises
    ------
    InputError
        Numbers overflow.

    Notes
    -----
    Pairs as :class:`casvm.solver.pair.Pairs` takes them; beside `K` a few numbers a row. The start is t times the last
    solution, feasible for t from 1 to the ratio of the C's, with the t that makes most of the dual: sum(alpha) / beta'K
    beta, cut to that range. Its gradient costs one pass over m numbers.
    """
    bound = factor * y
    return _path(K, y, np.minimum(bound, 0.0), np.maximum(bound, 0.0), 0.0, Cs, tol, most)


def along_regression(
    K: NDArray[np.floating], y: Vector, factor: Vector, Cs: tuple[float, ...], epsilon: float, tol: float, most: int
) -> Iterator[Solved]:  # fmt: skip
    """Solve epsilon-SVR for each C, from the one before it: as :func:`along`, with targets `y` and this epsilon."""
    return _path(K, y, -factor, factor, epsilon, Cs, tol, most)


def _path(
    K: NDArray[np.floating], y: Vector, low: Vector, high: Vector, epsilon: float, Cs: tuple[float, ...], tol: float,
    most: int,
) -> Iterator[Solved]:  # fmt: skip
    """The path of the dual with p = -y and the bounds C `low` and C `high`."""
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
            if by == C / last:  # rounding must not leave a row that was at its bound just below it
                beta = np.where(at_high, upper, np.where(at_low, lower, beta))
            beta = np.clip(beta, lower, upper)  # nor take one over it
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
    """The t from 1 to `most` for which t beta has the largest dual objective t gain - t^2/2 beta'K beta."""
    if square <= 0.0:
        return most
    return float(np.clip(gain / square, 1.0, most))
