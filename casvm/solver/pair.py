"""The inner loop of SMO (Algorithm 1): one pair of rows at a time, on a working set whose kernel matrix is in memory.

The dual and the terms v, rise and fall are those of :mod:`cacore.svm.dual`; v is the listing's -f.

An iteration makes two passes over the rows, `update` and `partner` of :mod:`cacore.compiled.vectors`. A pass takes
STEP elements per turn. Each row's permitted moves are flags of type uint8: RISE, FALL, both or 0. If the dual has an
epsilon, v is that of rising rows; a row at the kink, marked AT_KINK, falls with a v that is larger by `width`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.compiled.vectors import AT_KINK, FALL, RISE, STEP, partner, update
from cacore.kernels.panels import add_rows
from cacore.machine.deadline import poll

if TYPE_CHECKING:
    from cacore.arrays import Bytes, Doubles, Longs, Reals


LEAST = 1e-12  # least curvature of a pair, as in LIBSVM
_STEPS = 10_000  # single-precision pairs before v is recomputed in double precision
_ROUNDING = 300 * float(np.finfo(np.float32).eps)  # error of v after these steps, relative to the largest |v|
_LARGEST = 1e18  # largest |v| whose square fits in single precision

Vector = NDArray[np.float64]
Index = NDArray[np.int64]


def padded(size: int) -> int:
    """The size rounded up to a multiple of STEP, the rows that a pass takes per turn."""
    return max(1, -(-size // STEP)) * STEP


def rising(v: Vector, beta: Vector, epsilon: float) -> Vector:
    """The v of rows that rise, in a dual with this epsilon."""
    return np.where(beta < 0, v + epsilon, v - epsilon) if epsilon else v


def falling(v: Vector, beta: Vector, epsilon: float) -> Vector:
    """The v of rows that fall, in a dual with this epsilon."""
    return np.where(beta > 0, v - epsilon, v + epsilon) if epsilon else v


class PairState:
    """State of a problem's rows while it is optimised pair by pair.

    Parameters
    ----------
    room : int
        Length of the stored arrays: the number of rows, rounded up to whole vector registers.
    epsilon : float
        The dual's epsilon.
    lines : ndarray of float64, shape (size,)
        v, beta and any further values of each row. Copied; 0 after the last row.
    """

    def __init__(self, room: int, epsilon: float, *lines: Vector) -> None:
        self.size, self.epsilon, self.iterations = len(lines[0]), epsilon, 0
        self._state = np.zeros((len(lines), room))
        for line, values in zip(self._state, lines, strict=True):
            line[: self.size] = values

    @property
    def v(self) -> Vector:
        """The negated gradient, without epsilon."""
        v = self._state[0, : self.size]
        return rising(v, self.beta, -self.epsilon) if self.epsilon else v

    @property
    def beta(self) -> Vector:
        """The coefficients."""
        return self._state[1, : self.size]


class Pairs(PairState):
    """Rows of a problem, optimised pair by pair.

    Parameters
    ----------
    v, beta, lower, upper, diagonal : ndarray of float64, shape (size,)
        `diagonal` is K_ii. Copied.
    epsilon : float
        The dual's epsilon.
    by_sign : bool
        True if both rows of a pair must have the same sign, as in the dual.

    Attributes
    ----------
    v, beta : ndarray of float64, shape (size,)
        Current values.
    iterations : int
    """

    def __init__(
        self, v: Vector, beta: Vector, lower: Vector, upper: Vector, diagonal: Vector, epsilon: float = 0.0,
        by_sign: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(padded(len(v)), epsilon, v, beta, lower, upper, diagonal)
        v, beta, lower, upper, _ = self._state
        # The padding of the last lanes neither rises nor falls.
        may = RISE * (beta < upper) + FALL * (beta > lower)
        if epsilon:
            v[:] = rising(v, beta, epsilon)
            may += AT_KINK * (beta == 0)
        self._may = np.array([may * (upper > 0), may * (upper <= 0)]) if by_sign else may[np.newaxis]

    def optimise(
        self, K: NDArray[np.floating], where: Index, tol: float, max_iter: int, used: Index | None = None, now: int = 0
    ) -> int:
        """Optimise until no pair violates by `tol`, for at most `max_iter` pairs, or until a row of K is missing.

        Parameters
        ----------
        K : ndarray, shape (rows, >= padded(size)), C-contiguous
            Rows of the kernel matrix; columns from `size` on may hold any finite values.
        where : ndarray of int64, shape (size,)
            Row of K for each row of the problem, or -1.
        tol : float
        max_iter : int
        used : ndarray of int64, shape (rows,), optional
            Set to `now` for the rows of K that are read.
        now : int

        Returns
        -------
        int
            A row whose kernel values are missing, or -1.

        Notes
        -----
        Second-order choice of the pair (Fan, Chen and Lin, 2005): the largest v, and then the row that gains
        most with it. Two vectorised passes over the rows per iteration, about 0.4 ns per row; 0.8 ns with v in
        double precision, used if K is, or if single precision cannot resolve violations of `tol`. One thread.
        """
        used = np.zeros(len(K), np.int64) if used is None else used
        max_pairs, missing, going_on = self.iterations + max_iter, -1, K.dtype == np.float32
        while going_on and missing < 0:
            poll()
            steps, before = min(_STEPS, max_pairs - self.iterations), self.iterations
            missing = self._in_single_precision(K, where, tol, steps, used, now)
            going_on = 0 < steps == self.iterations - before
        if missing < 0:
            poll()
            missing = self._optimise(self._state[0], K, where, tol, max_pairs - self.iterations, used, now)
        return missing

    def extremes(self) -> list[tuple[float, float]]:
        """The largest v of a row that may rise and the smallest of one that may fall; by sign, one such pair each."""
        v, finite = self._state[0], self._state[1]
        width = 2.0 * self.epsilon or None
        return [_extremes(v, side, finite, width) for side in self._may]

    def _in_single_precision(
        self, K: NDArray[np.floating], where: Index, tol: float, max_iter: int, used: Index, now: int
    ) -> int:
        """Optimise in single precision as far as it resolves violations; then update v in double precision."""
        sizes = np.abs(self._state[0])
        if not sizes.max() < _LARGEST:
            return -1
        largest = float(np.max(sizes, where=self._may.any(axis=0), initial=0.0))
        v, beta, single = np.array(self.v), self.beta.copy(), self._state[0].astype(np.float32)
        missing = self._optimise(single, K, where, max(tol, _ROUNDING * largest), max_iter, used, now)
        moved = np.flatnonzero(self.beta != beta)
        add_rows(K, where[moved], (beta - self.beta)[moved], v, 0, self.size)
        self._state[0, : self.size] = rising(v, self.beta, self.epsilon)
        return missing

    def _optimise(
        self, v: NDArray[np.floating], K: NDArray[np.floating], where: Index, tol: float, max_iter: int, used: Index,
        now: int,
    ) -> int:  # fmt: skip
        _, beta, lower, upper, diagonal = self._state
        done, missing = optimise_pairs(
            K, where, v, beta, lower, upper, diagonal.astype(K.dtype), self._may, 2.0 * self.epsilon or None, tol,
            max_iter, used, now,
        )  # fmt: skip
        self.iterations += done
        return int(missing)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def optimise_pairs(
    K: Reals, where: Longs, v: Reals, beta: Doubles, lower: Doubles, upper: Doubles, diagonal: Reals, may: Bytes,
    width: float | None, tol: float, max_iter: int, used: Longs, now: int,
) -> tuple[int, int]:  # fmt: skip  # pragma: no cover - compiled
    """Perform :meth:`Pairs.optimise`; return the number of pairs and the missing row, or -1.

    Parameters
    ----------
    v : float32 or float64, shape (size,), a multiple of STEP
        The v of rows that rise; updated.
    beta, lower, upper : float64, shape (size,)
        `beta` is updated.
    diagonal : of the type of `K`, float32 or float64, shape (size,)
    may : uint8, shape (1 or 2, size)
        RISE, FALL and AT_KINK, updated; 0 for padding. With two lines, both rows of a pair are of the same line.
    width : float64 or None
        2 epsilon.
    """
    real = K.dtype.type
    first, second, step, done = K[0, : v.size], K[0, : v.size], 0.0, 0
    while True:
        i, top, violation, side = _violating(v, may, first, second, step, width)
        if not violation >= tol or done >= max_iter:
            return done, -1
        if where[i] < 0:
            return done, i
        first = K[where[i], : v.size]
        j = partner(v, may[side], first, diagonal, diagonal[i], top, width, real(LEAST), v.size)
        if where[j] < 0:
            return done, j
        second = K[where[j], : v.size]
        used[where[i]], used[where[j]] = now, now
        curvature = max(np.float64(diagonal[i]) + np.float64(diagonal[j]) - 2.0 * np.float64(first[j]), LEAST)
        ceiling, floor, difference = upper[i], lower[j], np.float64(v[i]) - np.float64(v[j])
        if width is not None:  # not further than the kink
            ceiling, floor = 0.0 if beta[i] < 0 else ceiling, 0.0 if beta[j] > 0 else floor
            difference -= width * (beta[j] == 0)
        up, down = ceiling - beta[i], beta[j] - floor
        step = min(difference / curvature, up, down)
        negative_i, negative_j = beta[i] < 0, beta[j] < 0
        # A row that arrives at its bound is set to it exactly.
        beta[i] = ceiling if step == up else min(beta[i] + step, ceiling)
        beta[j] = floor if step == down else max(beta[j] - step, floor)
        if width is not None:  # the v of rising rows differs below and above 0
            v[i] -= width * (negative_i and not beta[i] < 0)
            v[j] += width * (beta[j] < 0 and not negative_j)
        for row in (i, j):
            may[side, row] = RISE * (beta[row] < upper[row]) + FALL * (beta[row] > lower[row])
            if width is not None:
                may[side, row] += AT_KINK * (beta[row] == 0)
        done += 1


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _extremes(
    v: Reals, may: Bytes, unused: Reals, width: float | None
) -> tuple[float, float]:  # pragma: no cover - compiled
    """:meth:`Pairs.extremes` of one line of `may`; `unused` are any finite numbers."""
    return update(v, may, unused, unused, 0.0, width, v.size)[1:]  # a step of 0 moves nothing


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _violating(
    v: Reals, may: Bytes, first: Reals, second: Reals, step: float, width: float | None
) -> tuple[int, float, float, int]:  # pragma: no cover - compiled
    """Apply the last step, with the rows `first` and `second` of K, shape (size,), and find the next pair's first row.

    Returns the row, its v, which is the largest, the violation of the pair, and the pair's line of `may`.
    """
    i, top, bottom = update(v, may[0], first, second, step, width, v.size)
    violation, side = top - bottom, 0
    if len(may) > 1:
        second_row, highest, lowest = update(v, may[1], first, second, 0.0, width, v.size)
        if highest - lowest > violation:
            i, top, violation, side = second_row, highest, highest - lowest, 1
    return i, top, violation, side
