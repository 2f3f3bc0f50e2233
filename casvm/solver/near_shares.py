"""Dis-SMO in shares, for kernels most of whose values vanish: each rank optimises its own stretch of all rows.

If every rank has room for all rows, these are put in spatial order and cut into one stretch per rank. Rows of different
stretches hardly know each other. In each round, a rank optimises some pairs of its own rows, and tells all ranks which
rows moved. A rank computes a row of K, its own or another's, over its own columns only, and keeps it. So all ranks
together compute each kernel value once, as one process does. Where memory holds few of these rows, a rank optimises
working sets instead (:mod:`casvm.solver.near_smo`).

What the shares have in common is the bias b. At a given b, a share is optimised without a constraint on its sum; after
each round b moves by what the sum of all rows has in excess. At the end, small changes of all free rows make up for the
rest.

Related: Hsieh, Si and Dhillon, Communication-efficient parallel block minimization for kernel machines
(arXiv 1608.02010), whose dual has no bias.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows, gather_rows
from cacore.errors import InputError
from cacore.kernels.near import spatial_order
from cacore.kernels.panels import nonzeros
from cacore.kernels.sums import width
from cacore.near.boxes import Boxes
from cacore.svm.dual import Dual, Solution
from casvm.solver.active_set import ActiveSet, Shrinking, middle
from casvm.solver.distributed import AllRows, OnRanks
from casvm.solver.kernel_rows import Index, Vector
from casvm.solver.near_rows import NearRows
from casvm.solver.near_smo import NearPairs, NearSets, at_bias
from casvm.solver.smo import PartTraining

SHRINKING = Shrinking(patience=3, share=0.4, share_if_copied=0.4)
_LOOK = 8  # rounds between two checks for idle rows
# A round has at most this many pairs per active row, and at least so many per rank. With more, shares that hardly
# violate wait for others.
_PAIRS, _LEAST_PAIRS = 0.1, 64
_RELAX = 0.1  # share of the violation that a round leaves; of the least one so far, where rows of K do not fit
_INNER = 0.3  # share of the tolerance by which a row may violate at the bias: two that do are within the tolerance
_MET = 0.75  # share of the tolerance below which the sum is put right
_STEEPEST = 0.25  # largest step of b, as a share of the violation
# Most rows that are also optimised on all ranks alike, and memory for them. Measured when they were introduced: 111
# rounds instead of 3,088.
_COMMON, _COMMON_BYTES = 2048, 1 << 28
# Measured on 100,000 rows of covtype and 16 virtual ranks: 236 rounds and 662,300 pairs; 1,812 rounds and 799,100 pairs
# if contradicting changes are left to the next round.
_FEW = 0.1  # share of the active rows up to which they are, if the shares' changes contradict each other
# Working sets are used if memory holds fewer rows of K than these shares of the active rows, and of those that violate.
# Measured: all of covtype on 2 ranks with a cache of 1 GiB took 133 to 143 s, and 527 s by pairs of all rows.
_KEPT, _HOT = 0.25, 0.0625
_GROUPS = 256  # groups of rows that show how many are near each


def in_shares(rows: AllRows, X: Rows, dual: Dual, training: PartTraining, comm: Communicator) -> Shares:
    """The solver of all ranks' rows, of which this rank has `X`; arguments as in :func:`casvm.methods.all_rows.solve`.

    Notes
    -----
    Sends each row and its 32 bytes of bounds, linear term and start once to all ranks.
    """
    with comm.agreed():
        start = dual.initial()
        if dual.by_sign:
            raise InputError("nu-SVMs: the exact nu-SVR and nu-SVC cannot be solved on several ranks")
    counts = np.diff(rows.starts)
    all_rows = np.asarray(gather_rows(X, comm, counts))
    lines = comm.allgather(np.column_stack([dual.linear, dual.lower, dual.upper, start]), counts)
    order = spatial_order(all_rows, width(rows.layout.dtype))
    ends = _cuts(rows, all_rows, order, comm.size)
    first, last = ends[comm.rank], ends[comm.rank + 1]
    mine = np.roll(order, -first)
    room = rows.cache_bytes - all_rows.nbytes
    gram = NearRows(all_rows[mine], rows.kernel, rows.dtype, rows.layout, rows.cutoff, room, last - first)
    linear, lower, upper, begun = lines[order[first:last]].T.copy()
    same = replace(
        dual, linear=linear, lower=lower, upper=upper, start=None if dual.start is None else begun, near_start=None
    )
    own_rows = slice(int(rows.starts[comm.rank]), int(rows.starts[comm.rank + 1]))
    return Shares(gram, same, order, ends, own_rows, training, comm)


def _cuts(rows: AllRows, X: NDArray[np.floating], order: Index, ranks: int) -> list[int]:
    """Ends of the ranks' stretches of the spatial order, for about the same work each, by a sample of its groups."""
    layout, size, n = rows.layout, width(rows.layout.dtype), len(order)
    step = max(1, n // (size * _GROUPS)) * size
    sample = order[np.minimum(np.arange(0, n, step)[:, None] + np.arange(size), n - 1).ravel()]
    points = nonzeros(X, layout.dtype, layout.shift, sample, layout.measure)
    boxes = Boxes.of_points(points, np.arange(len(sample)), size, rows.kernel.separable)
    weights = np.cumsum(np.repeat(1.0 + boxes.near(boxes, rows.cutoff).blocks, step)[:n])
    cuts = np.searchsorted(weights, weights[-1] * np.arange(1, ranks) / ranks)
    return [0, *cuts.tolist(), n]


class Shares(OnRanks):
    """SMO on all ranks, each of which optimises a share of the rows at one bias.

    Parameters
    ----------
    gram : NearRows
        All rows in spatial order, turned so that this rank's come first; these are its columns.
    dual : Dual
        The dual of this rank's share, with the total of all ranks.
    order : ndarray of int64, shape (n,)
        Number of the row at each place of the spatial order.
    ends : list of int, length ranks + 1
        Ends of the shares in this order.
    own_rows : slice
        Numbers of the rows that this rank was given.
    training, comm
        See :func:`casvm.methods.all_rows.solve`.

    Attributes
    ----------
    b : float or None
        The bias of the next round.
    excess : float
        The sum of all beta, less the total.
    least : float
        The least violation so far.

    Notes
    -----
    A round sends 16 bytes per row that moves to all ranks, 32 more if few do, and two reductions of a few numbers.
    A rank holds all rows, and rows of K over its own columns as far as memory allows.
    """

    gram: NearRows

    def __init__(
        self, gram: NearRows, dual: Dual, order: Index, ends: list[int], own_rows: slice, training: PartTraining,
        comm: Communicator,
    ) -> None:  # fmt: skip
        super().__init__(training.limits, training.watch)
        gram.begin()
        self.gram, self.order, self.own_rows, self.comm = gram, order, own_rows, comm
        self.first, self.sizes = ends[comm.rank], np.diff(ends)
        self.active = ActiveSet(dual, gram, SHRINKING, comm.allreduce, lambda numbers: comm.allreduce(numbers, "max"))
        self.b: float | None = None
        self.excess, self.least = 0.0, np.inf
        active = self.active
        moved = np.flatnonzero(active.beta)
        if dual.start is not None:
            self._reconstruct(moved, active.beta[moved], active.rows, active.v)
        self.objective = self._initial_objective()

    # -- what the loop asks for ----------------------------------------------------------------------------

    def _look(self) -> tuple[float, float, bool]:
        top, bottom, late, due = self._ends()
        if self.excess and (due or top - bottom < _MET * self.limits.tol):
            self._balance()
            top, bottom, *_ = self._ends()
        if due:
            self._keep(self._returned(self.active.all_beta()))
        return top, bottom, late

    def _ends(self) -> tuple[float, float, bool, bool]:
        """The extremes of all ranks' active rows, and True if time is up, and if a checkpoint is due. Collective."""
        top, bottom = self.active.extremes()
        facts = np.array([top, -bottom, float(self._out_of_time()), float(self._checkpoint_due())])
        top, negative, late, due = self.comm.allreduce(facts, "max").tolist()
        return top, -negative, late > 0, due > 0

    def _meets_criterion(self, gap: float) -> bool:
        return gap < self.limits.tol and not self.excess

    def _shrink(self, top: float, bottom: float) -> None:
        if self.rounds % _LOOK == 0:
            self.active.shrink(self.active.idle(top, bottom))

    def _reconstruct(self, moved: Index, change: Vector, rows: Index, v: Vector) -> None:
        numbers, values, _ = self._gathered_changes(moved, change)
        if len(numbers) and len(rows):
            v -= self.gram.product(numbers, values, rows)

    def _square(self, rows: Index, beta: Vector) -> float:
        numbers, values, _ = self._gathered_changes(rows, beta)
        if not len(rows):
            return 0.0
        return float(self.gram.product(numbers, values, rows, exact=True) @ beta)

    def _products(self, rows: Index, beta: Vector, others: Index) -> tuple[Vector, Vector]:
        numbers, values, _ = self._gathered_changes(rows, beta)
        columns = np.union1d(rows, others)
        sums = np.zeros(len(columns))
        if len(numbers) and len(columns):
            sums = self.gram.product(numbers, values, columns, exact=True)
        return sums[np.searchsorted(columns, rows)], sums[np.searchsorted(columns, others)]

    def _solution(self) -> Solution:
        active = self.active
        if self.excess:
            self._balance()
            active.top, active.bottom, *_ = self._ends()
        solution = super()._solution()
        return replace(solution, beta=self._returned(solution.beta), decision=self._returned(solution.decision))

    # -- a round -------------------------------------------------------------------------------------------

    def _step(self, top: float, bottom: float, max_pairs: int) -> bool:
        """Optimise pairs of every rank's share at one bias, and tell all ranks which rows moved."""
        active, comm = self.active, self.comm
        b = self.b = middle(top, bottom) if self.b is None else self.b
        gap, before, v = max(top - b, b - bottom), active.beta, active.v
        problem = self._optimised(b, gap, max_pairs // comm.size + (comm.rank < max_pairs % comm.size))
        beta = problem.beta[: len(before)]
        change = beta - before
        here = np.flatnonzero(change)
        numbers, values, mine = self._gathered_changes(active.rows[here], change[here])
        after = problem.without(np.delete(numbers, mine), np.delete(values, mine))
        kink = active.dual.epsilon * float(np.abs(beta).sum() - np.abs(before).sum())
        facts = [
            float(change @ v) - kink, float(change @ (v - after)), float(change.sum()), problem.iterations,
            np.count_nonzero(active.free(np.arange(len(v)))),
        ]  # fmt: skip
        gain, square, sum_change, done, free = comm.allreduce(np.array(facts, np.float64)).tolist()
        share = self._share(gain - b * sum_change, square)
        if share < 1.0:
            beta, after = np.clip(before + share * change, active.lower, active.upper), v + share * (after - v)
        active.v, active.beta = after, beta.copy()
        self.objective += share * (gain - 0.5 * share * square)
        self.excess += share * sum_change
        self.iterations, self.rounds = self.iterations + int(done), self.rounds + 1
        # Without this, changes that contradict each other would be halved round by round until the end.
        if len(numbers) <= (_COMMON if share == 1.0 else min(_COMMON, _FEW * active.size)):
            remaining = max(0, max_pairs - int(done))
            self.iterations += self._optimise_alike(numbers, here, b, self._tolerance(gap), remaining)
        # The larger b, the smaller the sum, by at most 1 / K_ii per free row and unit of b.
        self.b += float(np.clip(self.excess / max(1.0, free), -_STEEPEST * gap, _STEEPEST * gap))
        return done > 0 or self.b != b

    @staticmethod
    def _share(gain: float, square: float) -> float:
        """The best share of a change, by its slope and curvature: 1 unless shares did the same thing at once."""
        return min(1.0, max(gain, 0.0) / square) if square > 0 else 1.0

    def _tolerance(self, gap: float) -> float:
        """The violation at the bias that a round leaves."""
        return max(_INNER * self.limits.tol, _RELAX * gap)

    def _optimised(self, b: float, gap: float, max_pairs: int) -> NearPairs | NearSets:
        """The problem of this rank's active rows at a bias, optimised by at most `max_pairs` pairs."""
        active, gram = self.active, self.gram
        lines = gram, active.dual, b, active.v, active.beta, active.lower, active.upper
        fits, self.least = gram.holds >= _KEPT * len(active.rows), min(self.least, gap)
        tol = self._tolerance(gap if fits else self.least)
        if not fits:
            sets = NearSets(*lines)
            if sets.violating(tol) > _HOT * gram.holds:
                sets.optimise(tol, max_pairs)
                return sets
        problem = at_bias(*lines)
        problem.optimise(tol, min(max_pairs, max(_LEAST_PAIRS, int(_PAIRS * len(active.rows)))))
        return problem

    def _optimise_alike(self, numbers: Index, places: Index, b: float, tol: float, max_pairs: int) -> int:
        """Optimise rows of all shares on every rank alike, and return the number of pairs.

        `places` are those of this rank's among its active rows. Near rows of different shares, which would take many
        rounds to agree, meet here.
        """
        active, gram, comm = self.active, self.gram, self.comm
        v, beta, lower, upper = comm.allgather(
            np.column_stack([active.v[places], active.beta[places], active.lower[places], active.upper[places]])
        ).T.copy()
        common = NearRows(
            gram.X[numbers], gram.kernel, gram.dtype, gram.layout, gram.cutoff, _COMMON_BYTES, len(numbers)
        )
        common.begin()
        problem = at_bias(common, active.dual, b, v, beta, lower, upper)
        problem.optimise(tol, max_pairs)
        change = problem.beta[: len(beta)] - beta
        after = problem.v[: len(beta)]
        kink = active.dual.epsilon * float(np.abs(beta + change).sum() - np.abs(beta).sum())
        self.objective += 0.5 * float(change @ (v + after)) - kink
        self.excess += float(change.sum())
        here = (numbers < len(gram.own_columns)).nonzero()[0]
        moved = np.flatnonzero(change)
        solved = active.beta.copy()
        solved[places] = problem.beta[here]
        active.v, active.beta = gram.without(numbers[moved], change[moved], active.v), solved
        return problem.iterations

    def _balance(self) -> None:
        """Make up for the excess by small changes of free rows; of all rows that can, if these are not enough."""
        active, comm = self.active, self.comm
        excess = float(comm.allreduce(np.array([active.all_beta().sum()]))[0]) - active.dual.total
        end = active.lower if excess > 0 else active.upper
        if active.dual.epsilon:  # not beyond the kink
            end = np.where(active.beta * end < 0, 0.0, end)
        slack, free = np.abs(active.beta - end), active.free(np.arange(len(end)))
        count = max(1.0, float(comm.allreduce(np.array([np.count_nonzero(free)]))[0]))
        shares = np.where(free, np.minimum(slack, 4.0 * abs(excess) / count), 0.0)
        room, total = comm.allreduce(np.array([shares.sum(), slack.sum()])).tolist()
        if room < abs(excess):
            shares, room = slack, total
        change = -excess / room * shares if room else shares
        beta = np.clip(active.beta + change, active.lower, active.upper)
        change = beta - active.beta
        here = np.flatnonzero(change)
        numbers, values, _ = self._gathered_changes(active.rows[here], change[here])
        active.v, active.beta = self.gram.without(numbers, values, active.v), beta
        self.excess = 0.0

    def _gathered_changes(self, rows: Index, values: Vector) -> tuple[Index, Vector, slice]:
        """Rows of all ranks' shares with their values: their numbers here, and which are of this rank. Collective."""
        lines, counts = self.comm.allgather_parts(np.column_stack([(self.first + rows).astype(np.float64), values]))
        begin = int(counts[: self.comm.rank].sum())
        numbers = (lines[:, 0].astype(np.int64) - self.first) % len(self.order)
        return numbers, lines[:, 1].copy(), slice(begin, begin + len(rows))

    def _returned(self, values: Vector) -> Vector:
        """Values of the rows that this rank was given, from those of its share. Collective."""
        spread = np.empty(len(self.order))
        spread[self.order] = self.comm.allgather(values, self.sizes)
        return spread[self.own_rows]
