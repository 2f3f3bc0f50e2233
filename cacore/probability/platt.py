"""Platt's sigmoid: the probability 1 / (1 + exp(A f + B)) of the first class where the decision is f.

A and B minimise the cross entropy of targets (N+ + 1) / (N+ + 2) for the N+ rows of the first class and 1 / (N- + 2)
for the others (Platt, 1999), by Newton's method with backtracking (Lin, Lin and Weng, 2007, "A note on Platt's
probabilistic outputs for support vector machines").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from cacore.comm import Communicator
from cacore.probability.left_out import LeftOut

Vector = NDArray[np.float64]

_STEPS = 100
_RIDGE = 1e-12  # added to the diagonal of the Hessian, per row
_GRADIENT = 1e-10  # of a row, on average, at which Newton's method ends
_SHORTEST = 1e-10  # part of a step


@dataclass
class _Sums:
    """Of each problem at some A and B: objective, gradient and Hessian, by A and B."""

    value: Vector
    A: Vector
    B: Vector
    AA: Vector
    AB: Vector
    BB: Vector


_PRIOR = 100.0  # rows that the sigmoids of all parts count for in those of one


def fit(
    found: LeftOut, problems: int, comm: Communicator, known: tuple[Vector, Vector] | None = None
) -> tuple[Vector, Vector]:
    """A and B of each of so many problems, from the decisions of all ranks; a collective call.

    Parameters
    ----------
    found : LeftOut
        This rank's.
    problems : int
    comm : Communicator
    known : tuple of two ndarrays, shape (problems,), optional
        A and B of more rows than these, which 100 more rows are taken to agree with: a target lies between 0, or 1, and
        what is known, by its share of all rows.

    Returns
    -------
    A, B : ndarray of float64, shape (problems,)
        0 and log((N- + 1) / (N+ + 1)) where the decisions say nothing; of a problem without any, 0 and 0. Or what is
        known.

    Notes
    -----
    One Allreduce of 6 numbers a problem for each step and each one that is cut in half, about 10 in all, and one of 4;
    a few exponentials a decision. All problems take their steps together.
    """
    f, first, problem = found.decisions, found.first.astype(np.float64), found.problem

    def sums(*terms: Vector) -> Vector:
        own = [np.bincount(problem, term, problems) for term in terms]
        # Of no decision, bincount counts in whole numbers.
        return np.asarray(comm.allreduce(np.array(own, np.float64)))

    count, positive, total, square = sums(np.ones(len(f)), first, f, f * f)
    n = np.maximum(count, 1.0)
    middle = total / n
    spread = np.sqrt(np.maximum(square / n - middle**2, 0.0))
    # Rows whose decisions are all alike say nothing: they are at 0, up to rounding.
    unit = np.where(spread > 1e-7 * np.abs(middle), spread, np.abs(middle))
    unit = np.where(unit > 0, unit, 1.0)
    z = (f - middle[problem]) / unit[problem]
    negative = count - positive
    A, B = np.zeros(problems), np.log((negative + 1.0) / (positive + 1.0))
    if known is None:
        target = np.where(first > 0, ((positive + 1) / (positive + 2))[problem], (1 / (negative + 2))[problem])
    else:
        share = (_PRIOR / (_PRIOR + n))[problem]
        target = (1.0 - share) * first + share * expit(-(known[0][problem] * f + known[1][problem]))
        A, B = known[0] * unit, known[1] + known[0] * middle

    def at(A: Vector, B: Vector) -> _Sums:
        s = A[problem] * z + B[problem]
        p = expit(-s)
        slope, bend = target - p, p * (1.0 - p)
        value = np.logaddexp(0.0, s) - (1.0 - target) * s
        return _Sums(*sums(value, z * slope, slope, z * z * bend, z * bend, bend))

    here, going = at(A, B), count > 0
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
    """One step of Newton's method, cut in half until the objective falls: A, B, the sums there, and which moved."""
    AA, BB = here.AA + _RIDGE * n, here.BB + _RIDGE * n
    area = AA * BB - here.AB**2
    dA = np.where(going, (here.AB * here.B - BB * here.A) / area, 0.0)
    dB = np.where(going, (here.AB * here.A - AA * here.B) / area, 0.0)
    fall = here.A * dA + here.B * dB
    slack = 4 * np.finfo(np.float64).eps * np.abs(here.value)  # near the minimum nothing falls but by rounding
    part, left = np.ones(len(A)), going.copy()
    while True:
        there = at(A + part * dA, B + part * dB)
        left &= there.value > here.value + 1e-4 * part * fall + slack
        part = np.where(left, part / 2, part)
        failed = left & (part < _SHORTEST)
        if not left.any():
            return A + part * dA, B + part * dB, there, going
        if failed.any():
            dA, dB = np.where(failed, 0.0, dA), np.where(failed, 0.0, dB)
            going, left = going & ~failed, left & ~failed
