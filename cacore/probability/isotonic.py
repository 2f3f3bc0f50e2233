"""Isotonic regression: the probability of the first class as a non-decreasing function of the decision.

The fit is the least-squares fit to the rows of all ranks, by pooling adjacent violators (scipy). Decisions are rounded
to 9 bits after the leading one (0.2 %), so that ranks exchange only counts of the values that occur, and no rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.probability.left_out import LeftOutDecisions

# Reasoned: a decision moves by 0.1 % at most, and ranks count at most 2^18 values, whatever the number of rows.
_BITS = 14  # low bits of a float32 that rounding drops
_SIGN = np.uint32(1) << np.uint32(31)
_PLACES = 32 - _BITS  # bits of a rounded decision


@dataclass(eq=False)
class Steps:
    """One curve per problem: linear between points, constant before the first and after the last.

    Attributes
    ----------
    starts : ndarray of int64, shape (problems,)
        Index of each curve's first point.
    x, p : ndarray of float64, shape (points,)
        Decisions, ascending within a curve, and probabilities.
    """

    starts: NDArray[np.int64]
    x: NDArray[np.float64]
    p: NDArray[np.float64]

    def curve(self, problem: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Points of a problem's curve; a single one of probability 1/2 if the problem has no points."""
        stops = np.append(self.starts[1:], len(self.x))
        stretch = slice(self.starts[problem], stops[problem])
        if self.starts[problem] == stops[problem]:
            return np.zeros(1), np.full(1, 0.5)
        return self.x[stretch], self.p[stretch]

    def at(self, decisions: NDArray[np.float64], problem: int) -> NDArray[np.float64]:
        """Probabilities of the first class; 1/2 if the problem has no points."""
        return np.interp(decisions, *self.curve(problem))

    def check(self) -> None:
        """Raise an InputError if the arrays of a model file are inconsistent."""
        stops = np.append(self.starts[1:], len(self.x))
        if len(self.p) != len(self.x) or (self.starts < 0).any() or (stops < self.starts).any():
            raise InputError("points of an isotonic regression that are inconsistent")
        if not np.isfinite(self.x).all() or not ((self.p >= 0) & (self.p <= 1)).all():
            raise InputError("points of an isotonic regression that are not finite, or probabilities outside 0 to 1")


def rounded(decisions: NDArray[np.float64]) -> NDArray[np.float64]:
    """The decisions, rounded as in :func:`fit`."""
    return _numbers(_keys(decisions))


def fit(decisions: LeftOutDecisions, problems: int, comm: Communicator) -> Steps:
    """Fit one curve per problem to the decisions of all ranks; a collective call.

    With N decisions, or a larger sum N of weights, probabilities stay between 1 / (N + 2) and 1 - 1 / (N + 2), since a
    class that did not occur in the sample is not impossible.

    Notes
    -----
    One Allgather of 32 bytes per distinct rounded decision of a rank (some thousands per problem), then O(N log N).
    """
    from scipy.optimize import isotonic_regression  # a seventh of the start of a command, which most do not need

    there = decisions.row_weights > 0
    w, first = decisions.row_weights[there], decisions.first[there]
    keys = (decisions.problem[there] << _PLACES) | _keys(decisions.decisions[there])
    codes, place = np.unique(keys, return_inverse=True)
    sums = [np.bincount(place, column, len(codes)) for column in (np.ones(len(w)), w, w * first)]
    table = comm.allgather(np.stack([codes, *sums], axis=1).astype(np.float64).reshape(-1, 4))
    codes, place = np.unique(table[:, 0].astype(np.int64), return_inverse=True)
    rows, weight, positive = (np.bincount(place, column, len(codes)) for column in table[:, 1:].T)
    of, x = codes >> _PLACES, _numbers(codes & ((1 << _PLACES) - 1))
    starts, xs, ps = np.zeros(problems, np.int64), [np.zeros(0)], [np.zeros(0)]
    for problem in range(problems):
        of_problem = of == problem
        starts[problem] = sum(map(len, xs))
        if of_problem.any():
            p = isotonic_regression(positive[of_problem] / weight[of_problem], weights=weight[of_problem]).x
            least = 1.0 / (max(rows[of_problem].sum(), weight[of_problem].sum()) + 2.0)
            ends = np.append(True, p[1:] != p[:-1])  # a constant piece needs only its first and last point
            ends |= np.append(ends[1:], True)
            xs.append(x[of_problem][ends])
            ps.append(np.clip(p[ends], least, 1.0 - least))
    return Steps(starts, np.concatenate(xs), np.concatenate(ps))


def _keys(decisions: NDArray[np.float64]) -> NDArray[np.int64]:
    """Integers with the same order as the rounded decisions."""
    with np.errstate(over="ignore"):
        values = np.clip(decisions, *(np.finfo(np.float32).min, np.finfo(np.float32).max)).astype(np.float32)
    bits = (values + np.float32(0.0)).view(np.uint32)
    return (np.where(bits & _SIGN, ~bits, bits | _SIGN) >> np.uint32(_BITS)).astype(np.int64)


def _numbers(keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """Midpoint of the decisions that share each key."""
    bits = (keys.astype(np.uint32) << np.uint32(_BITS)) + (np.uint32(1) << np.uint32(_BITS - 1))
    return np.where(bits & _SIGN, bits ^ _SIGN, ~bits).view(np.float32).astype(np.float64)
