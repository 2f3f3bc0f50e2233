"""Platt's sigmoid: the probability of the first class given the decision f is 1 / (1 + exp(A f + B)).

A and B minimise the cross entropy of targets (N+ + 1) / (N+ + 2) for the N+ rows of the first class and 1 / (N- + 2)
for the others (Platt, 1999), by Newton's method with backtracking (Lin, Lin and Weng, 2007, "A note on Platt's
probabilistic outputs for support vector machines").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.probability.left_out import LeftOutDecisions

Vector = NDArray[np.float64]

# As Lin, Lin and Weng (2007) and LIBSVM have them, but for the gradient: theirs, 1e-5, is a sum over the rows. Newton's
# method is quadratic, so that about ten steps reach this one.
_STEPS = 100
_RIDGE = 1e-12  # added to the diagonal of the Hessian, per row
_GRADIENT = 1e-10  # tolerance for the gradient per row
_SHORTEST = 1e-10  # shortest fraction of a Newton step


@dataclass
class _Sums:
    """Objective of each problem at some A and B, its gradient (A, B) and its Hessian (AA, AB, BB)."""

    value: Vector
    A: Vector
    B: Vector
    AA: Vector
    AB: Vector
    BB: Vector


# Log loss with 1, 10, 100, 1,000 rows, and one sigmoid for all parts: 0.302, 0.279, 0.268, 0.275, 0.281 (3,000 rows of
# usps in 4 K-means parts); 0.346, 0.346, 0.345, 0.349, 0.367 (8,000 rows of a9a); in 16 parts 100 is within 1 %.
_PRIOR = 100.0  # weight, in rows, of the sigmoids of all parts when those of one part are fitted


def fit(
    decisions: LeftOutDecisions, problems: int, comm: Communicator, prior: tuple[Vector, Vector] | None = None
) -> tuple[Vector, Vector]:
    """Fit A and B of each problem to the decisions of all ranks; a collective call.

    Parameters
    ----------
    decisions : LeftOutDecisions
        This rank's decisions.
    problems : int
    comm : Communicator
    prior : tuple of two ndarrays, shape (problems,), optional
        Prior A and B, fitted to more rows. They count as 100 additional rows: each target is a weighted mean of 0 or 1
        and of the prior probability.

    Returns
    -------
    A, B : ndarray of float64, shape (problems,)
        About 0 and log((N- + 1) / (N+ + 1)) if all decisions are alike. Without decisions, 0 and 0 or the prior.

    Notes
    -----
    A row of weight w counts as w rows; weights of a mean below 1 are scaled to 1, so that small ones do not flatten the
    sigmoid. One Allreduce of 5 numbers per problem, and one of 6 per problem for each step and each halving of a step,
    about 10 in all; a few exponentials per decision. All problems take their steps together.
    """
    from scipy.special import expit  # not loaded by commands without probabilities

    f, first, problem = decisions.decisions, decisions.first.astype(np.float64), decisions.problem
    w = decisions.row_weights

    def sums(*terms: Vector) -> Vector:
        local = [np.bincount(problem, term, problems) for term in terms]
        # Without decisions, bincount returns integers.
        return np.asarray(comm.allreduce(np.array(local, np.float64)))

    rows, *sizes, total, square = sums(np.sign(w), w, w * first, w * f, w * f * f)
    there = rows > 0
    n = np.where(there, sizes[0], 1.0)
    middle = total / n
    spread = np.sqrt(np.maximum(square / n - middle**2, 0.0))
    # If all decisions are equal up to rounding, z is 0 up to rounding.
    unit = np.where(spread > 1e-7 * np.abs(middle), spread, np.abs(middle))
    unit = np.where(unit > 0, unit, 1.0)
    z = (f - middle[problem]) / unit[problem]
    scale = np.where(there, np.maximum(rows / n, 1.0), 1.0)
    w, n = w * scale[problem], n * scale
    count, positive = sizes * scale
    negative = count - positive
    A, B = np.zeros(problems), np.log((negative + 1.0) / (positive + 1.0))
    if prior is None:
        target = np.where(first > 0, ((positive + 1) / (positive + 2))[problem], (1 / (negative + 2))[problem])
    else:
        share = (_PRIOR / (_PRIOR + n))[problem]
        target = (1.0 - share) * first + share * expit(-(prior[0][problem] * f + prior[1][problem]))
        A, B = prior[0] * unit, prior[1] + prior[0] * middle

    def at(A: Vector, B: Vector) -> _Sums:
        s = A[problem] * z + B[problem]
        p = expit(-s)
        slope, bend = target - p, p * (1.0 - p)
        value = np.logaddexp(0.0, s) - (1.0 - target) * s
        return _Sums(*sums(*(w * term for term in (value, z * slope, slope, z * z * bend, z * bend, bend))))

    here, going = at(A, B), there.copy()
    for _ in range(_STEPS):
        going &= np.maximum(np.abs(here.A), np.abs(here.B)) > _GRADIENT * n
        if not going.any():
            break
        A, B, here, moved = _stepped(at, A, B, here, going, n)
        going &= moved
    return A / unit, B - A * middle / unit


def _stepped(
    at: Callable[[Vector, Vector], _Sums], A: Vector, B: Vector, here: _Sums, going: NDArray[np.bool_], n: Vector
) -> tuple[Vector, Vector, _Sums, NDArray[np.bool_]]:  # fmt: skip
    """One Newton step, halved until the objective falls: the new A, B and sums, and a mask of problems that moved."""
    AA, BB = here.AA + _RIDGE * n, here.BB + _RIDGE * n
    area = AA * BB - here.AB**2
    dA = np.where(going, (here.AB * here.B - BB * here.A) / area, 0.0)
    dB = np.where(going, (here.AB * here.A - AA * here.B) / area, 0.0)
    fall = here.A * dA + here.B * dB
    slack = 4 * np.finfo(np.float64).eps * np.abs(here.value)  # near the minimum, differences are only rounding
    part, searching = np.ones(len(A)), going.copy()
    while True:
        there = at(A + part * dA, B + part * dB)
        searching &= there.value > here.value + 1e-4 * part * fall + slack
        part = np.where(searching, part / 2, part)
        failed = searching & (part < _SHORTEST)
        if not searching.any():
            return A + part * dA, B + part * dB, there, going
        if failed.any():
            dA, dB = np.where(failed, 0.0, dA), np.where(failed, 0.0, dB)
            going, searching = going & ~failed, searching & ~failed
