"""SMO (Algorithm 1): the active rows, those it temporarily leaves out (shrinking), its loop, and one pair of rows.

A row at a bound is idle if no pair would move it away; updating its gradient costs kernel values for nothing. Rows that
stay idle are shrunk. When the active rows meet the stopping criterion, the gradient of the shrunk rows is reconstructed
from the change of beta since, and rows that violate the criterion become active again (unshrinking).

:class:`SMO` is the loop, whose steps the serial, the distributed and the sparse solver define. The problem of a working
set is solved by :class:`Pairs`, one pair of rows at a time (:func:`optimise_pairs`). The terms v, rise and fall are
those of :mod:`cacore.svm.dual`; v is the listing's -f.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.compiled.vectors import AT_KINK, FALL, RISE, partner, update
from cacore.errors import InputError
from cacore.kernels.panels import add_rows
from cacore.kernels.precision import value_rounding
from cacore.limits import Limits
from cacore.machine.clock import working_time
from cacore.machine.deadline import poll
from cacore.svm.dual import Dual, Progress, Solution
from cacore.svm.problem import overflow
from casvm.solver.kernel_rows import Index, RowSource, Shrinkable, Vector, fetch, padded

if TYPE_CHECKING:
    from cacore.arrays import Bytes, Doubles, Longs, Reals

LEAST = 1e-12  # least curvature of a pair, as in LIBSVM
# Single-precision pairs before v is recomputed in double precision. Reasoned: roundings of either sign mostly cancel;
# 10,000 of them are about 100 units in the last place, and _SINGLE_ROUNDING allows for 300.
_STEPS = 10_000
_SINGLE_ROUNDING = 300 * float(np.finfo(np.float32).eps)  # error of v after these steps, relative to the largest |v|
_LARGEST = 1e18  # largest |v| whose square fits in single precision
_ROUNDING = 64 * float(np.finfo(np.float64).eps)  # of decisions on training rows, relative to b

Reconstruct = Callable[[Index, Vector, Index, Vector], None]
OverRanks = Callable[[NDArray[Any]], NDArray[Any]]

# Rows within so many tolerances of the extremes are verified. Measured: float32 moves v by 0.1 to 2 tolerances (ijcnn1,
# covtype).
_MARGIN = 5.0
HIDDEN = 25.0  # error of v over that of C K_ij (measured: ijcnn1 17 with C = 32, and 33 with C = 1)
# Share of the steps after which v is verified again, and most verifications but the last. Reasoned: a tenth of the
# steps adds little rounding.
_DRIFT = 0.1
_VERIFICATIONS = 3


@dataclass(frozen=True)
class Shrinking:
    """Rules for shrinking rows.

    Attributes
    ----------
    patience : int
        Number of consecutive checks a row must be idle before it is shrunk.
    share, share_if_copied : float
        Least share of the active rows to shrink at once; the same if shrinking copies the kernel cache.
    unshrinks : int
        Number of unshrinkings after which all rows stay active.
    """

    patience: int
    share: float
    share_if_copied: float
    unshrinks: int = 20


@dataclass(frozen=True)
class _Shrunk:
    """Rows that were shrunk together, with their v and the beta of all rows at that time."""

    rows: Index
    v: Vector
    beta: Vector


class ActiveSet:
    """The active and shrunk rows of a dual; if rows lie on many ranks, those of this rank.

    Parameters
    ----------
    dual : Dual
        With a feasible start, if any.
    gram : Shrinkable
        Its active columns follow the active rows.
    policy : Shrinking
    add, largest : callable
        Elementwise sum and maximum of an array over the ranks.

    Attributes
    ----------
    rows : ndarray of int64
        The active rows, ascending.
    v, beta, lower, upper : ndarray of float64, shape (len(rows),)
        Values of the active rows.
    place : ndarray of int64, shape (n,)
        Position of each row in `rows`, or -1.
    size : int
        Number of active rows on all ranks.
    top, bottom : float
        Of the active rows of all ranks, set by :meth:`update_extremes`: the largest v of a row that may rise, and the
        smallest of one that may fall. :meth:`extremes` is this rank's.
    levels : tuple of float
        For sums by sign: b of the rows with positive beta and b of the others, each midway between its extremes. Their
        v is compared relative to the level, so that one top and one bottom serve both.
    ends : list of tuple of float
        For sums by sign: the extremes of both signs.
    shrunk : list
        Groups of shrunk rows.
    """

    def __init__(
        self, dual: Dual, gram: Shrinkable, policy: Shrinking, add: OverRanks = np.array, largest: OverRanks = np.array
    ) -> None:
        self.dual, self.gram, self.policy, self.add, self.largest = dual, gram, policy, add, largest
        self._all_beta, self._all_v = dual.initial(), -dual.linear
        sums = np.array([self._all_beta.sum(), np.abs(self._all_beta).sum()])
        total, size = sums if dual.start is None else add(sums)
        if abs(total - dual.total) > 1e-9 * max(1.0, size):
            raise InputError(f"the start: its sum is {total:g}, and it must be {dual.total:g}")
        self.shrunk: list[_Shrunk] = []
        self.unshrinks, self.levels, self.ends = 0, (0.0, 0.0), list[tuple[float, float]]()
        self._activate(np.arange(dual.n))
        self.size = self._n = self._total(dual.n)

    def _total(self, count: int) -> int:
        return int(self.add(np.array([count]))[0])

    def _activate(self, rows: Index) -> None:
        self.rows, self.v, self.beta = rows, self._all_v[rows], self._all_beta[rows]
        self.lower, self.upper = self.dual.lower[rows], self.dual.upper[rows]
        self._idle_looks = np.zeros(len(rows), np.int8)
        self.place = np.full(self.dual.n, -1)
        self.place[rows] = np.arange(len(rows))

    def _store(self) -> None:
        self._all_v[self.rows], self._all_beta[self.rows] = self.v, self.beta

    def all_beta(self) -> Vector:
        """Beta of all rows, shape (n,)."""
        self._store()
        return self._all_beta

    def _leave_out(self, rows: Index) -> None:
        self.shrunk.append(_Shrunk(rows, self._all_v[rows], self._all_beta.copy()))

    def free(self, places: Index) -> NDArray[np.bool_]:
        """Mask of these active rows that lie between their bounds and not at the kink."""
        beta = self.beta[places]
        between = (self.lower[places] < beta) & (beta < self.upper[places])
        return between & (beta != 0) if self.dual.epsilon else between

    def sides(self) -> list[NDArray[np.bool_]]:
        """Masks of the active rows from which pairs are formed: all rows, or one mask per sign."""
        positive = self.upper > 0
        return [positive, ~positive] if self.dual.by_sign else [np.ones(len(self.rows), np.bool_)]

    def extremes(self) -> tuple[float, float]:
        """The :func:`extremes` of the active rows; updates the levels."""
        if self.dual.by_sign:
            ends = [
                extremes(self.v[side], self.beta[side], self.lower[side], self.upper[side]) for side in self.sides()
            ]
            self.levels, self.ends = (middle(*ends[0]), middle(*ends[1])), ends
            above = [(top - level, bottom - level) for (top, bottom), level in zip(ends, self.levels, strict=True)]
            return max(top for top, _ in above), min(bottom for _, bottom in above)
        return extremes(self.v, self.beta, self.lower, self.upper, self.dual.epsilon)

    def rising(self) -> Vector:
        """The v of active rows that rise, relative to their level."""
        return rising(self._leveled(), self.beta, self.dual.epsilon)

    def falling(self) -> Vector:
        """The v of active rows that fall, relative to their level."""
        return falling(self._leveled(), self.beta, self.dual.epsilon)

    def _leveled(self) -> Vector:
        return self.v - np.where(self.upper > 0, *self.levels) if self.dual.by_sign else self.v

    def idle(self, top: float, bottom: float) -> NDArray[np.bool_]:
        """Mask of the active rows at a bound, or at the kink, that no pair would move away now."""
        may_rise, may_fall = self.beta < self.upper, self.beta > self.lower
        return (~may_rise | (self.rising() < bottom)) & (~may_fall | (self.falling() > top))

    def shrink(self, idle: NDArray[np.bool_]) -> Index | None:
        """Shrink rows that have stayed idle, if they are enough; return the former places of the others."""
        patience = self.policy.patience
        self._idle_looks[~idle] = 0
        self._idle_looks[idle & (self._idle_looks < patience)] += 1
        leaving = self._idle_looks >= patience
        count = self._total(int(np.count_nonzero(leaving)))
        if count < self.policy.share * self.size:
            return None
        if count < self.policy.share_if_copied * self.size and self.gram.copies(self.size - count):
            return None
        self._store()
        staying = np.flatnonzero(~leaving)
        self._leave_out(self.rows[leaving])
        self.gram.restrict(staying)
        self._activate(self.rows[staying])
        self.size = self._total(len(staying))
        return staying

    def unshrink(self, reconstruct: Reconstruct, tol: float, ending: bool) -> bool:
        """Update v of all rows and activate them; if work is left, activate only those that are not idle.

        Parameters
        ----------
        reconstruct : callable
            :meth:`SMO._reconstruct`.
        tol : float
            Violation below which no work is left.
        ending : bool
            True if the solver stops anyway.

        Returns
        -------
        bool
            True if work is left.
        """
        self._store()
        for group in self.shrunk:
            moved = np.flatnonzero(self._all_beta != group.beta)
            reconstruct(moved, self._all_beta[moved] - group.beta[moved], group.rows, group.v)
            self._all_v[group.rows] = group.v
        some_were, self.shrunk, self._in_gram = bool(self.shrunk), [], self.rows
        self._activate(np.arange(self.dual.n))
        self.update_extremes()
        if ending or not some_were or self.top - self.bottom < tol:
            return False
        self.unshrinks += 1
        left_out = self.idle(self.top, self.bottom)
        if self.unshrinks > self.policy.unshrinks:
            left_out[:] = False
        self._leave_out(np.flatnonzero(left_out))
        rows = np.flatnonzero(~left_out)
        self.gram.activate(rows)
        self._activate(rows)
        self.size = self._total(len(rows))
        return True

    def update_extremes(self) -> None:
        """Set `top` and `bottom` from the active rows of all ranks."""
        top, bottom = self.extremes()
        self.top, negative = self.largest(np.array([top, -bottom])).tolist()
        self.bottom = -negative

    def contenders(self, margin: float) -> NDArray[np.bool_]:
        """Mask of the active rows within `margin` of being one of the extremes."""
        up = (self.beta < self.upper) & (self.rising() > self.top - margin)
        return up | ((self.beta > self.lower) & (self.falling() < self.bottom + margin))

    def shrink_again(self) -> None:
        """Return to the rows that were active before :meth:`unshrink`, whose kernel values are kept, and violators."""
        rows, violating = self._in_gram, np.flatnonzero(~self.idle(self.top, self.bottom))
        if not np.isin(violating, rows, assume_unique=True).all():
            rows = np.union1d(rows, violating)
            self.gram.activate(rows)
        self.size = self._total(len(rows))
        # On all ranks, or on none: each group of shrunk rows is one reconstruction by all ranks.
        if self.size < self._n:
            others = np.ones(self.dual.n, np.bool_)
            others[rows] = False
            self._store()
            self._leave_out(np.flatnonzero(others))
        if len(rows) < self.dual.n:
            self._activate(rows)


class SMO(ABC):
    """The loop of SMO; the serial, the distributed and the sparse solver define its steps.

    Attributes
    ----------
    active : ActiveSet
    iterations, rounds : int
        Pairs of rows optimised; working sets solved.
    objective : float
        Value of the dual, updated by the steps.
    limits, tol : Limits, float
        Limits, with the violation at which v is verified; tolerance of the solution.
    relax : float
        Share of the violation that a round leaves among its rows.
    exact : bool
        False if the solution's objective is the one that the steps have added up; True if it is computed again.
    """

    relax, exact = 0.1, True
    active: ActiveSet
    objective: float

    def __init__(self, limits: Limits, watch: Callable[[Progress], None] | None) -> None:
        self.limits, self.tol, self.watch, self.begun = limits, limits.tol, watch, working_time()
        self.iterations = self.rounds = 0
        self._verified: list[int] = []  # iterations at which v was computed anew in double precision

    def _out_of_time(self) -> bool:
        return working_time() - self.begun > self.limits.max_time

    @abstractmethod
    def _reconstruct(self, moved: Index, change: Vector, rows: Index, v: Vector) -> None:
        """Subtract ``K(rows, moved) @ change`` from `v`, shape (len(rows),); the moved rows of all ranks count."""

    def _look(self) -> tuple[float, float, bool]:
        """The largest v of an active row that may rise, the smallest of one that may fall, and True if time is up.

        Of all ranks; collective where there are several.
        """
        return *self.active.extremes(), self._out_of_time()

    def _meets_criterion(self, gap: float) -> bool:
        """True if the active rows meet the stopping criterion with this violation."""
        return gap < self.limits.tol

    @abstractmethod
    def _shrink(self, top: float, bottom: float) -> None:
        """Shrink idle rows, if a check is due."""

    @abstractmethod
    def _step(self, top: float, bottom: float, max_pairs: int) -> bool:
        """Optimise at most `max_pairs` pairs; return True if anything moved."""

    def _unshrunk(self) -> None:
        """Reset the solver's state for the new active rows; the sparse solvers have none."""
        return

    def _resumed(self) -> None:
        """Reset the solver's state after v has changed, but hardly the active rows."""
        self._unshrunk()

    @abstractmethod
    def _square(self, rows: Index, beta: Vector) -> float:
        """This rank's share of ``beta'K beta`` in double precision; `rows` are those with nonzero beta."""

    @abstractmethod
    def _products(self, rows: Index, beta: Vector, others: Index) -> tuple[Vector, Vector]:
        """``K beta`` in double precision at the rows with nonzero beta, and at others; the rows of all ranks count."""

    def run(self, n: int) -> Solution:
        """Step until the stopping criterion or a limit is met, or nothing moves; `n` counts the rows of all ranks."""
        active, max_pairs, moved = self.active, self.limits.iterations(n), True
        limits = self.limits = replace(self.limits, tol=self._goal())
        while True:
            poll()
            top, bottom, late = self._look()
            if math.isnan(top - bottom):  # on all ranks, or on none
                raise overflow()
            ending = late or not moved or self.iterations >= max_pairs
            if self._meets_criterion(top - bottom) or ending:
                if not active.unshrink(self._reconstruct, limits.tol, ending):
                    if self._due_for_verification():
                        self._verify()
                    if ending or active.top - active.bottom < self.tol or len(self._verified) > _VERIFICATIONS:
                        return self._solution()
                    active.shrink_again()
                    self._resumed()
                    continue
                self._unshrunk()
                continue
            if limits.shrinking and active.unshrinks <= active.policy.unshrinks:
                self._shrink(top, bottom)
            moved = self._step(top, bottom, max_pairs - self.iterations)
            if self.watch is not None:
                self.watch(Progress(self.iterations, top - bottom, self.objective, active.size))

    def _goal(self) -> float:
        """Violation at which v is verified: below the tolerance by what single precision is expected to hide."""
        if self.active.gram.dtype != np.float32:
            return self.tol
        largest = float(self.active.largest(np.array([self.active.dual.largest_bound]))[0])
        return self.tol - min(0.5 * self.tol, HIDDEN * value_rounding(largest, np.float32))

    def _due_for_verification(self) -> bool:
        """True if kernel values are rounded to single precision, and many steps have used them since v was exact."""
        if self.active.gram.dtype != np.float32 or len(self._verified) > _VERIFICATIONS:
            return False
        return not self._verified or self.iterations - self._verified[-1] > _DRIFT * self.iterations

    def _verify(self) -> None:
        """Compute v anew in double precision at the rows that decide about the violation, and the objective.

        Rounded kernel values add up in v. The rows are the support vectors and those that are nearly extremes; all
        rows, if v was off by half of that margin.
        """
        active, margin = self.active, _MARGIN * self.limits.tol
        support = np.flatnonzero(active.beta)
        near = np.flatnonzero(active.contenders(margin) & (active.beta == 0))
        error = self._replace(support, near)
        if error > 0.5 * margin:
            self._replace(support, np.flatnonzero(active.beta == 0))
        active.update_extremes()
        self._verified.append(self.iterations)

    def _replace(self, support: Index, others: Index) -> float:
        """Set v at these rows to its value in double precision, and the objective; return the largest change of v."""
        active, dual = self.active, self.active.dual
        beta = active.beta[support]
        sums, other_sums = self._products(support, beta, others)
        exact = -dual.linear[support] - sums
        changes = np.abs(exact - active.v[support])
        active.v[support], active.v[others] = exact, -dual.linear[others] - other_sums
        terms, square = active.add(np.array([dual.terms(active.beta), beta @ sums])).tolist()
        self.objective = -terms - 0.5 * square
        return float(active.largest(np.array([changes.max(initial=0.0)]))[0])

    def _solve(
        self, K: NDArray[np.floating], v: Vector, beta: Vector, lower: Vector, upper: Vector, gap: float, max_pairs: int
    ) -> Pairs:
        """Solve the problem of a working set; `K` is from :meth:`casvm.solver.kernel_rows.KernelRows.square`."""
        size, dual = len(v), self.active.dual
        problem = Pairs(v, beta, lower, upper, np.diagonal(K)[:size].astype(np.float64), dual.epsilon, dual.by_sign)
        problem.optimise(K, np.arange(size), *self._effort(size, gap, max_pairs))
        return problem

    def _effort(self, size: int, gap: float, max_pairs: int) -> tuple[float, int]:
        """Tolerance and largest number of pairs for a working set of this size."""
        tol = self.limits.tol
        return tol if size == self.active.size else max(0.5 * tol, self.relax * gap), min(100 * size, max_pairs)

    def _solution(self) -> Solution:
        active, dual, gram = self.active, self.active.dual, self.active.gram
        beta, gap, support = active.beta, active.top - active.bottom, np.flatnonzero(active.beta)
        if self.exact and not self._verified:
            terms, square = active.add(np.array([dual.terms(beta), self._square(support, beta[support])])).tolist()
            self.objective = -terms - 0.5 * square
        converged = gap < self.tol
        ends = active.ends if dual.by_sign else [(active.top, active.bottom)]
        levels = biases(ends, dual, converged, gram.dtype)
        b = 0.5 * (levels[0] + levels[1])
        return Solution(
            beta, b, self.iterations, self.objective, gap, converged, gram.rows_computed,
            gram.values_computed, working_time() - self.begun, -dual.linear - active.v + b, self.rounds,
            gram.values_read, 0.5 * (levels[0] - levels[1]),
        )  # fmt: skip


def extremes(v: Vector, beta: Vector, lower: Vector, upper: Vector, epsilon: float = 0.0) -> tuple[float, float]:
    """The largest v of a row that may rise, and the smallest of one that may fall."""
    top = np.max(rising(v, beta, epsilon), where=beta < upper, initial=-np.inf)
    return float(top), float(np.min(falling(v, beta, epsilon), where=beta > lower, initial=np.inf))


def biases(
    ends: Sequence[tuple[float, float]], dual: Dual, converged: bool, dtype: np.dtype[Any]
) -> tuple[float, float]:  # fmt: skip
    """The b of rows with positive beta and that of the others, which are equal unless the sums are fixed by sign.

    Each is midway between its extremes, except where nu bounds a share: of outliers, margin errors, or rows outside the
    tube. There it is the end at which only rows at their bound can be such rows: nu bounds their number. In the middle,
    half of the rows between their bounds would be such rows, too, since their exact decision is 0. The end allows for
    the rounding of kernel values of type `dtype`.

    Parameters
    ----------
    ends : sequence of tuple of float
        The :func:`extremes` of all rows, or of both signs.
    dual : Dual
    converged : bool
        False to take the middle, since the extremes may be far apart.
    dtype : dtype
    """
    first, last = middle(*ends[0]), middle(*ends[-1])
    if not converged or not (dual.by_sign or dual.total):
        return first, last
    rounding = max(_ROUNDING, 8 * float(np.finfo(dtype).eps)) * max(abs(first), abs(last))
    first = max(first, ends[0][0] + rounding)
    return first, min(last, ends[-1][1] - rounding) if dual.by_sign else first


def middle(top: float, bottom: float) -> float:
    """The b midway between the :func:`extremes`; a side on which no row may move is ignored."""
    sides = [side for side in (top, bottom) if np.isfinite(side)] or [0.0]
    return 0.5 * (sides[0] + sides[-1])


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
    source : RowSource, optional
        Computes rows of K when they are missing.

    Attributes
    ----------
    v, beta : ndarray of float64, shape (size,)
        Current values.
    iterations : int
    """

    def __init__(
        self, v: Vector, beta: Vector, lower: Vector, upper: Vector, diagonal: Vector, epsilon: float = 0.0,
        by_sign: bool = False, source: RowSource | None = None,
    ) -> None:  # fmt: skip
        super().__init__(padded(len(v)), epsilon, v, beta, lower, upper, diagonal)
        self._source = source
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
        v, beta, lower, upper, diagonal = self._state
        single = np.empty(len(v), np.float32) if K.dtype == np.float32 else None
        width, last = 2.0 * self.epsilon or None, self.iterations + max_iter
        while True:
            poll()
            done, missing, unfinished = optimise_some(
                self._source, K, where, v, single, beta, lower, upper, diagonal.astype(K.dtype), self._may, width, tol,
                last - self.iterations, _STEPS, used, now,
            )  # fmt: skip
            self.iterations += done
            if not unfinished:
                return int(missing)

    def extremes(self) -> list[tuple[float, float]]:
        """The largest v of a row that may rise and the smallest of one that may fall; by sign, one such pair each."""
        v, finite = self._state[0], self._state[1]
        width = 2.0 * self.epsilon or None
        return [line_extremes(v, side, finite, width) for side in self._may]


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
def optimise_some(
    source: RowSource | None, K: Reals, where: Longs, v: Doubles, single: Reals | None, beta: Doubles, lower: Doubles,
    upper: Doubles, diagonal: Reals, may: Bytes, width: float | None, tol: float, max_iter: int, steps: int,
    used: Longs, now: int,
) -> tuple[int, int, bool]:  # fmt: skip  # pragma: no cover - compiled
    """:meth:`Pairs.optimise` for at most `steps` pairs in single precision, after which v is exact again.

    Parameters
    ----------
    source : tuple or None
        :attr:`casvm.solver.class_pairs.PairRows.source`.
    single : float32, shape (size,), or None
        Scratch for v, if K is float32: pairs are in single precision as far as it resolves violations.

    Others are those of :func:`optimise_pairs`. Returns the number of pairs, the missing row or -1, and True if pairs
    in single precision are not finished.
    """
    done = 0
    if single is not None:
        largest, fits = 0.0, True
        for k in range(v.size):
            size, moves = abs(v[k]), may[0, k] | may[-1, k]
            fits &= size < _LARGEST
            single[k] = v[k]
            largest = max(largest, size if moves else 0.0)
        if fits:
            before, least, most = beta.copy(), max(tol, _SINGLE_ROUNDING * largest), min(steps, max_iter)
            done, missing = _optimise_fetching(
                source, K, where, single, beta, lower, upper, diagonal, may, width, least, most, used, now
            )
            moved = np.flatnonzero(beta != before)
            add_rows(K, where[moved], before[moved] - beta[moved], v, 0, where.size)
            if width is not None:
                for row in moved:
                    v[row] += width * (np.int64(beta[row] < 0) - np.int64(before[row] < 0))
            if missing >= 0 or steps <= done < max_iter:
                return done, missing, missing < 0
    others, missing = _optimise_fetching(
        source, K, where, v, beta, lower, upper, diagonal, may, width, tol, max_iter - done, used, now
    )
    return done + others, missing, False


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _optimise_fetching(
    source: RowSource | None, K: Reals, where: Longs, v: Reals, beta: Doubles, lower: Doubles, upper: Doubles,
    diagonal: Reals, may: Bytes, width: float | None, tol: float, max_iter: int, used: Longs, now: int,
) -> tuple[int, int]:  # fmt: skip  # pragma: no cover - compiled
    """:func:`optimise_pairs` that computes missing rows of K, if it has their source."""
    done = 0
    while True:
        pairs, missing = optimise_pairs(
            K, where, v, beta, lower, upper, diagonal, may, width, tol, max_iter - done, used, now
        )
        done += pairs
        if source is None or missing < 0:
            return done, missing
        if source is not None:  # so that numba leaves this out without a source
            fetch(source, missing, K, where)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def line_extremes(
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
