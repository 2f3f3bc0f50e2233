"""Cost model: the rank of the factor, and the choice between iterations and a factorisation.

It counts operations instead of measuring time, so every rank and every run decides alike. The unit is a flop of a
matrix product in single precision; slower operations count more (measured with AVX-512, 2 threads).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

VALUE = 130.0  # cost of a kernel value, in addition to the 2 d of its distance
SIDE = 15.0  # cost per kernel value and right side
DOUBLE = 2.5  # cost of double precision relative to single precision
LEAST = 64  # smallest rank at which the factor may stop growing: slopes of the trace are uncertain before
TYPICAL = 25  # iterations; real data took 5 to 25 when the solver was added
GROWTH = 1.25  # factor of the rank for which the extra cost is compared with the savings


@dataclass(frozen=True)
class Work:
    """Cost of a system, in flops of single precision.

    Attributes
    ----------
    n, d : int
    sides : int
        Number of right sides; see :func:`sides`.
    mu : float
        The smallest ridge, lambda n.
    tol : float
    share : float
        Share of the kernel values that are not left out.
    """

    n: int
    d: int
    sides: int
    mu: float
    tol: float
    share: float = 1.0

    def iteration(self, rank: int) -> float:
        """Cost of one iteration: half the kernel values, and two passes over the factor."""
        values = 0.5 * self.share * self.n * self.n * (VALUE + 2 * self.d + SIDE * self.sides)
        return values + 16.0 * self.n * rank * self.sides

    def factor(self, rank: int) -> float:
        """Cost of the factor, its Gram matrix in double precision, and the core."""
        return self.n * rank * (rank * (1.0 + DOUBLE) + VALUE + 2 * self.d) + DOUBLE * rank**3 / 3

    def iterations(self, residual: float) -> float:
        """Number of iterations by the theory of conjugate gradients; `residual`: its largest eigenvalue."""
        return 0.5 * math.sqrt(1.0 + max(0.0, residual) / self.mu) * math.log(2.0 / self.tol)

    def cholesky(self, pairs: int) -> float:
        """Cost of `pairs` factorisations of the whole matrix in double precision."""
        return pairs * (DOUBLE * self.n**3 / 3 + self.n * self.n * (VALUE + self.d))

    def conjugate_gradients(self, sigmas: int) -> float:
        """Cost of `sigmas` systems, with a factor of medium rank and `TYPICAL` iterations; used by `auto`."""
        rank = min(2000, self.n // 8)
        return sigmas * (self.factor(rank) + TYPICAL * self.iteration(rank))


def sides(ridges: NDArray[np.float64]) -> int:
    """Number of right sides with the smallest ridge: they converge last, so the rank is chosen for them."""
    return int((ridges == ridges.min()).sum())


def enough(work: Work, traces: NDArray[np.float64]) -> bool:
    """True if a larger rank would cost more than the iterations that it saves.

    Parameters
    ----------
    work : Work
    traces : ndarray, shape (blocks + 1, 2)
        Rank and trace of the residual, before the first block and after each. A pivot reduces the trace by about the
        largest remaining eigenvalue, which falls as a power of the rank (both observed on real data).
    """
    rank, trace = traces[-1]
    if rank < LEAST or len(traces) < 4:
        return False
    now, before = _slope(traces, len(traces) - 1), _slope(traces, max(2, (len(traces) - 1) // 2))
    at, earlier = traces[-1, 0], traces[max(2, (len(traces) - 1) // 2), 0]
    if now <= 0:
        return True
    power = math.log(max(before / now, 1.0)) / math.log(at / earlier) if at > earlier else 0.0
    larger = GROWTH * rank
    saved = work.iterations(now) - work.iterations(min(now, trace) * GROWTH**-power)
    return saved * work.iteration(int(rank)) <= work.factor(int(larger)) - work.factor(int(rank))


def _slope(traces: NDArray[np.float64], at: int) -> float:
    """Reduction of the trace per pivot near block `at`, averaged over two blocks since single blocks vary."""
    first = max(0, at - 2)
    ranks = traces[at, 0] - traces[first, 0]
    return float((traces[first, 1] - traces[at, 1]) / ranks) if ranks else 0.0


def largest_rank(room: int, n_local: int, ridges: int) -> int:
    """Largest rank of a factor in single precision that fits into `room` bytes, with its Gram matrix and cores."""
    square, line = 8.0 * (2 + ridges), 4.0 * n_local + 16.0 * 2048
    return max(0, int((-line + math.sqrt(line * line + 4 * square * max(0, room))) / (2 * square)))
