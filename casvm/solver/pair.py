"""The inner loop of SMO (Algorithm 1): one pair of rows at a time, on a working set whose kernel matrix is in memory.

The dual and the words v, rise and fall are those of :mod:`cacore.svm.dual`; v is what the listing calls -f.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.kernels.simd import STEP
from casvm.solver.passes import FALL, RISE, partner, update

LEAST = 1e-12  # least curvature of a pair, as in LIBSVM

Vector = NDArray[np.float64]
Index = NDArray[np.int64]


def padded(size: int) -> int:
    """The next multiple of what a pass takes at a time."""
    return max(1, -(-size // STEP)) * STEP


class Pairs:
    """Rows of a problem, optimised pair by pair.

    Parameters
    ----------
    v, beta, lower, upper, diagonal : ndarray of float64, shape (size,)
        `diagonal` is K_ii. Copied.

    Attributes
    ----------
    v, beta : ndarray of float64, shape (size,)
        As they are now.
    iterations : int
    """

    def __init__(self, v: Vector, beta: Vector, lower: Vector, upper: Vector, diagonal: Vector) -> None:
        self.size, self.iterations = len(v), 0
        self._state = np.zeros((5, padded(self.size)))
        for line, values in zip(self._state, (v, beta, lower, upper, diagonal), strict=True):
            line[: self.size] = values
        v, beta, lower, upper, _ = self._state
        # What a row may do; those that fill up the last lanes neither rise nor fall.
        self._may = RISE * (beta < upper) + FALL * (beta > lower)

    @property
    def v(self) -> Vector:
        """The gradient with its sign changed."""
        return self._state[0, : self.size]

    @property
    def beta(self) -> Vector:
        """The coefficients."""
        return self._state[1, : self.size]

    def optimise(
        self, K: NDArray[Any], where: Index, tol: float, max_iter: int, used: Index | None = None, now: int = 0
    ) -> int:
        """Optimise until no pair violates by `tol`, for at most `max_iter` pairs, or until a row of K is missing.

        Parameters
        ----------
        K : ndarray, shape (rows, >= padded(size)), C-contiguous
            Rows of the kernel matrix; columns from `size` on hold any finite values.
        where : ndarray of int64, shape (size,)
            The row of K that belongs to each row of the problem, or -1.
        tol : float
        max_iter : int
        used : ndarray of int64, shape (rows,), optional
            Is set to `now` for the rows of K that are read.
        now : int

        Returns
        -------
        int
            The row whose kernel values are missing, or -1.

        Notes
        -----
        Second-order choice of the pair (Fan, Chen and Lin, 2005): the largest v, and then the row that gains
        most with it. Two passes over the rows an iteration, in vector registers, about 0.5 ns a row. One thread.
        """
        v, beta, lower, upper, diagonal = self._state
        done, missing = _optimise(
            K, where, v, beta, lower, upper, diagonal.astype(K.dtype), self._may, tol, max_iter,
            np.zeros(len(K), np.int64) if used is None else used, now,
        )  # fmt: skip
        self.iterations += done
        return int(missing)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _optimise(
    K: Any, where: Any, v: Any, beta: Any, lower: Any, upper: Any, diagonal: Any, may: Any, tol: Any, max_iter: Any,
    used: Any, now: Any,
) -> Any:  # fmt: skip  # pragma: no cover - compiled
    """See :meth:`Pairs.optimise`: pairs done, and the row that is missing, or -1.

    Parameters
    ----------
    v, beta, lower, upper : float64, shape (size,), a multiple of STEP
        `v` and `beta` are updated.
    diagonal : of the type of `K`, float32 or float64, shape (size,)
    may : uint8, shape (size,)
        RISE and FALL, updated; 0 where there is no row.
    """
    most, least, gains = np.empty(STEP), np.empty(STEP), np.empty(STEP, K.dtype)
    turns, real = np.empty(STEP, np.int64), K.dtype.type
    first, second, step, done = K[0, : v.size], K[0, : v.size], 0.0, 0
    while True:
        update(v, may, first, second, step, v.size, most, turns, least)
        i, top = _winner(most, turns)
        if not top - least.min() >= tol or done >= max_iter:
            return done, -1
        if where[i] < 0:
            return done, i
        first = K[where[i], : v.size]
        partner(v, may, first, diagonal, diagonal[i], top, real(LEAST), v.size, gains, turns)
        j, _ = _winner(gains, turns)
        if where[j] < 0:
            return done, j
        second = K[where[j], : v.size]
        used[where[i]], used[where[j]] = now, now
        curvature = max(np.float64(diagonal[i]) + np.float64(diagonal[j]) - 2.0 * np.float64(first[j]), LEAST)
        up, down = upper[i] - beta[i], beta[j] - lower[j]
        step = min((v[i] - v[j]) / curvature, up, down)
        # A row that reaches its bound is put there exactly.
        beta[i] = upper[i] if step == up else min(beta[i] + step, upper[i])
        beta[j] = lower[j] if step == down else max(beta[j] - step, lower[j])
        for row in (i, j):
            may[row] = RISE * (beta[row] < upper[row]) + FALL * (beta[row] > lower[row])
        done += 1


@numba.njit(cache=True, nogil=True)
def _winner(values: Any, turns: Any) -> Any:  # pragma: no cover - compiled
    """The element with the largest value, the first of equals, from the results of the lanes.

    Parameters
    ----------
    values : float32 or float64, shape (STEP,)
        The largest value of each lane.
    turns : int64, shape (STEP,)
        The first element of the turn in which it was found.

    Returns
    -------
    element : int
    value : float
    """
    lane = 0
    for k in range(1, values.size):
        ahead = values[k] == values[lane] and turns[k] + k < turns[lane] + lane
        if values[k] > values[lane] or ahead:
            lane = k
    return turns[lane] + lane, values[lane]
