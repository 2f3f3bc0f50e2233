"""Isotonic regression: the probability of the first class never falls as the decision rises, and is not said otherwise.

The least squares fit of all ranks' rows, by pooling adjacent violators (scipy's), to decisions that are rounded to 9
bits after the first one, 0.2 % of them: ranks exchange counts of the decisions that occur, and no row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.probability.left_out import LeftOut

_BITS = 14  # of a float32, that are left off
_SIGN = np.uint32(1) << np.uint32(31)
_PLACES = 32 - _BITS  # bits of a rounded decision


@dataclass(eq=False)
class Steps:
    """A curve for each problem: straight lines between points, constant beyond the first and the last.

    Attributes
    ----------
    starts : ndarray of int64, shape (problems,)
        The first point of each.
    x, p : ndarray of float64, shape (points,)
        Decisions, which ascend within a problem, and probabilities.
    """

    starts: NDArray[np.int64]
    x: NDArray[np.float64]
    p: NDArray[np.float64]

    def at(self, decisions: NDArray[np.float64], problem: int) -> NDArray[np.float64]:
        """Probabilities of the first class; 1/2 of a problem without points."""
        stops = np.append(self.starts[1:], len(self.x))
        own = slice(self.starts[problem], stops[problem])
        if self.starts[problem] == stops[problem]:
            return np.full(decisions.shape, 0.5)
        return np.interp(decisions, self.x[own], self.p[own])

    def check(self) -> None:
        """Refuse what does not fit together."""
        stops = np.append(self.starts[1:], len(self.x))
        if len(self.p) != len(self.x) or (self.starts < 0).any() or (stops < self.starts).any():
            raise InputError("points of an isotonic regression that do not fit together")
        if not np.isfinite(self.x).all() or not ((self.p >= 0) & (self.p <= 1)).all():
            raise InputError("points of an isotonic regression that are no decisions and probabilities")


def rounded(decisions: NDArray[np.float64]) -> NDArray[np.float64]:
    """The decisions as they are counted."""
    return _numbers(_keys(decisions))


def fit(found: LeftOut, problems: int, comm: Communicator) -> Steps:
    """The curves of so many problems, from the decisions of all ranks; a collective call.

    Probabilities stay within 1 / (N + 2) and 1 - 1 / (N + 2) for N decisions: a class that did not occur may.

    Notes
    -----
    One Allgather of 24 bytes for each different decision of a rank, some thousands of a problem, then O(N log N).
    """
    codes, place = np.unique((found.problem << _PLACES) | _keys(found.decisions), return_inverse=True)
    count = np.bincount(place, minlength=len(codes)).astype(np.int64)
    first = np.bincount(place, found.first, len(codes)).astype(np.int64)
    table = comm.allgather(np.stack([codes, count, first], axis=1).reshape(-1, 3))
    codes, place = np.unique(table[:, 0], return_inverse=True)
    count, first = (np.bincount(place, column, len(codes)) for column in table[:, 1:].T)
    of, x = codes >> _PLACES, _numbers(codes & ((1 << _PLACES) - 1))
    starts, xs, ps = np.zeros(problems, np.int64), [np.zeros(0)], [np.zeros(0)]
    for problem in range(problems):
        own = of == problem
        starts[problem] = sum(map(len, xs))
        if own.any():
            p = isotonic_regression(first[own] / count[own], weights=count[own]).x
            least = 1.0 / (count[own].sum() + 2.0)
            ends = np.append(True, p[1:] != p[:-1])  # of a constant piece the first and the last point are enough
            ends |= np.append(ends[1:], True)
            xs.append(x[own][ends])
            ps.append(np.clip(p[ends], least, 1.0 - least))
    return Steps(starts, np.concatenate(xs), np.concatenate(ps))


def _keys(decisions: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole numbers in the order of the rounded decisions."""
    with np.errstate(over="ignore"):
        values = np.clip(decisions, *(np.finfo(np.float32).min, np.finfo(np.float32).max)).astype(np.float32)
    bits = (values + np.float32(0.0)).view(np.uint32)
    return (np.where(bits & _SIGN, ~bits, bits | _SIGN) >> np.uint32(_BITS)).astype(np.int64)


def _numbers(keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """The middle of the decisions that have a key."""
    bits = (keys.astype(np.uint32) << np.uint32(_BITS)) + (np.uint32(1) << np.uint32(_BITS - 1))
    return np.where(bits & _SIGN, bits ^ _SIGN, ~bits).view(np.float32).astype(np.float64)
