"""How large the factor is, what lies where, and whether a factorisation would be cheaper: from counts, not from clocks.

Every rank comes to the same answer, and so does the same run tomorrow. Work is counted in flops of a matrix product in
single precision; what is slower counts for more (measured on processors with AVX-512, 2 threads).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

VALUE = 130.0  # of a kernel value, beside the 2 d of its distance
SIDE = 15.0  # of a kernel value and right side
DOUBLE = 2.5  # times the work in single precision
LEAST = 64  # rank below which nothing is asked
TYPICAL = 25  # iterations
GROWTH = 1.25  # to how much more rank the price of it is compared with what it saves


@dataclass(frozen=True)
class Work:
    """What a system costs.

    Attributes
    ----------
    n, d : int
    sides : int
        Right sides, see :func:`sides`.
    mu : float
        The smallest ridge, lambda n.
    tol : float
    """

    n: int
    d: int
    sides: int
    mu: float
    tol: float

    def iteration(self, rank: int) -> float:
        """Of one iteration: half the kernel values, and two passes over the factor."""
        values = 0.5 * self.n * self.n * (VALUE + 2 * self.d + SIDE * self.sides)
        return values + 16.0 * self.n * rank * self.sides

    def factor(self, rank: int) -> float:
        """Of the factor, its Gram matrix in double precision, and the core."""
        return self.n * rank * (rank * (1.0 + DOUBLE) + VALUE + 2 * self.d) + DOUBLE * rank**3 / 3

    def iterations(self, rest: float) -> float:
        """By the theory of conjugate gradients, where the largest eigenvalue that the factor leaves is `rest`."""
        return 0.5 * math.sqrt(1.0 + max(0.0, rest) / self.mu) * math.log(2.0 / self.tol)

    def cholesky(self, pairs: int) -> float:
        """Of so many factorisations of the whole matrix in double precision."""
        return pairs * (DOUBLE * self.n**3 / 3 + self.n * self.n * (VALUE + self.d))

    def conjugate_gradients(self, sigmas: int) -> float:
        """Of so many systems, with a factor of middling rank and `TYPICAL` iterations: what `auto` compares."""
        rank = min(2000, self.n // 8)
        return sigmas * (self.factor(rank) + TYPICAL * self.iteration(rank))


def sides(ridges: NDArray[np.float64]) -> int:
    """Right sides that stay to the end, those of the smallest ridge: the rank is theirs, for the others leave early."""
    return int((ridges == ridges.min()).sum())


def enough(work: Work, traces: NDArray[np.float64]) -> bool:
    """Whether more rank would cost more than the iterations that it saves.

    Parameters
    ----------
    work : Work
    traces : ndarray, shape (blocks + 1, 2)
        The rank and the trace of what is left, before the first block and after each. What a pivot takes from the trace
        is about the largest eigenvalue that is left, which falls by a power of the rank (both seen on real data).
    """
    rank, trace = traces[-1]
    if rank < LEAST or len(traces) < 4:
        return False
    now, before = _slope(traces, len(traces) - 1), _slope(traces, max(2, (len(traces) - 1) // 2))
    at, earlier = traces[-1, 0], traces[max(2, (len(traces) - 1) // 2), 0]
    if now <= 0:
        return True
    power = math.log(max(before / now, 1.0)) / math.log(at / earlier) if at > earlier else 0.0
    more = GROWTH * rank
    saved = work.iterations(now) - work.iterations(min(now, trace) * GROWTH**-power)
    return saved * work.iteration(int(rank)) <= work.factor(int(more)) - work.factor(int(rank))


def _slope(traces: NDArray[np.float64], at: int) -> float:
    """What a pivot takes from the trace, about there: over the last two blocks, for one alone is uneven."""
    first = max(0, at - 2)
    ranks = traces[at, 0] - traces[first, 0]
    return float((traces[first, 1] - traces[at, 1]) / ranks) if ranks else 0.0


def largest_rank(room: int, n_local: int, ridges: int) -> int:
    """The largest rank whose factor in single precision, Gram matrix and cores fit into `room` bytes of a rank."""
    square, line = 8.0 * (2 + ridges), 4.0 * n_local + 16.0 * 2048
    return max(0, int((-line + math.sqrt(line * line + 4 * square * max(0, room))) / (2 * square)))
