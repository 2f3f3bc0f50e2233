"""SMO for one dual whose rows lie on all ranks (Dis-SMO, with working sets).

In each round every rank proposes its worst violators, one collective gives the proposals to all ranks, and all ranks
solve the same small problem (:class:`WorkingSet`). Each then updates the gradient of its own rows. A row is sent when
it is first chosen, and every rank keeps a copy of it (:class:`Pool`). With a working set of two rows this is the
textbook algorithm, with one combined reduction per pair.

The ranks agree without a leader. :meth:`Distributed._look` gathers the same lines on every rank; from these each rank
computes the same violation, the same decision to stop and the same working set (:meth:`Distributed._chosen`). All
solve it with the same arithmetic (:meth:`Distributed._step`). Where processors or libraries differ, so may the last
bits: rank 0's solution is then sent to the others. The loop that calls these steps is
:meth:`casvm.solver.active_set.SMO.run`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from zlib import crc32

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows, dense, gather_rows, is_sparse, largest_size, nbytes
from cacore.errors import InputError
from cacore.io.checkpoint import Kept, Unfinished
from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.kernels.near import squared_cutoff
from cacore.kernels.precision import Accuracy, Extent, sampled, shift_of
from cacore.machine.clock import working_time
from cacore.svm.dual import Dual
from cacore.svm.problem import precision
from casvm.solver.active_set import SMO, ActiveSet, PairState, Shrinking, falling, rising
from casvm.solver.kernel_rows import Index, KernelRows, Vector
from casvm.solver.near_rows import VANISHED, NearRows
from casvm.solver.near_smo import NearColumns
from casvm.solver.smo import PartTraining, round_size

_SAMPLE = 1000  # rows, of all ranks together, from which the layout and the share of near rows are decided
_LEAST_ROWS = 64  # rows per rank from which shares may pay
_FEW = 2048  # rows that every rank has room for
SHRINKING = Shrinking(patience=2, share=0.4, share_if_copied=0.4)
_KEEP = 16  # smallest working set of which half stays for the next round
_LOOK = 2000  # rows of working sets between two checks for idle rows, each of which passes all active rows
_VISITORS = 2048  # rows sent to all ranks at a time
_RELAX = 0.03  # share of the violation that a round leaves if the pairs of the last one cost far less than its square
# The head of a rank's line, which Distributed._look writes and Distributed._chosen reads: columns 2 and 3 are the
# numbers of violating rows that the rank could propose to rise and to fall, column 4 the flags.
_HEAD = 5  # numbers before a rank's proposals: top, bottom, rows it could propose (2), flags of what is due
_LATE, _DUE = 1, 2  # flags: time to stop; time for a checkpoint


@dataclass(frozen=True, eq=False)
class AllRows:
    """The same facts about all ranks' rows on every rank.

    Attributes
    ----------
    starts : ndarray of int64, shape (ranks + 1,)
        Number of the first row of each rank; the last is that of all rows.
    kernel : Kernel
    dtype : dtype
        Type of the kernel values.
    layout : Layout
    cutoff : float
        Squared distance beyond which kernel values count as 0.
    near : bool
        True if so few kernel values matter that only these should be computed.
    alike : bool
        True if all ranks have the same processor, libraries and thread count. Others may round differently.
    row_bytes, cache_bytes : int
        The largest size of a row, and the least memory for kernel values, over the ranks.
    """

    starts: Index
    kernel: Kernel
    dtype: np.dtype[np.floating]
    layout: Layout
    cutoff: float
    near: bool
    alike: bool
    row_bytes: int
    cache_bytes: int

    @classmethod
    def of(cls, X: Rows, dual: Dual, training: PartTraining, comm: Communicator, machine: str) -> AllRows:
        """The facts about all ranks' rows `X`; `machine` names what rounds here. Collective."""
        kernel, tol = training.kernel, training.limits.tol
        assert kernel is not None
        starts = np.append(0, np.cumsum(comm.allgather(np.array([dual.n]))))
        n = int(starts[-1])
        sample = gather_rows(X[:: max(1, n // _SAMPLE)], comm)
        extent = Extent.of(X, shift_of(sampled(sample), kernel))
        sizes = [dual.largest_bound, largest_size(X), kernel.largest(X, np.float64) if len(dual.linear) else 0.0]
        ends = [dual.linear.max(initial=-np.inf), -dual.linear.min(initial=np.inf)]
        maxima = comm.allreduce(np.array([*sizes, *ends, *extent.norms]), "max")
        largest, size, value, top, negative = maxima[:5].tolist()
        dtype: np.dtype[np.floating] = np.dtype(precision((n, X.shape[1]), value, largest, tol))
        accuracy = Accuracy.of_solution(largest, tol, 0.5 * (top + negative) or 1.0)
        layout = Layout.of(sample, kernel, dtype, size, accuracy, extent.over_ranks(maxima[5:]))
        floor = VANISHED * tol / (max(1.0, largest) * n)
        cutoff = squared_cutoff(kernel, 4.0 * X.shape[1] * size**2, floor)
        near = comm.all(NearColumns.pays(X, kernel, layout, cutoff, sample))
        facts = f"{machine} {np.__version__} {numba.__version__}"
        same = np.array([crc32(facts.encode())], np.int64)
        alike = bool(comm.allreduce(same, "max")[0] == comm.allreduce(same, "min")[0])
        row = max(1, nbytes(X) // max(1, dual.n))
        row_bytes = int(comm.allreduce(np.array([row]), "max")[0])
        least = int(comm.allreduce(np.array([training.cache_bytes]), "min")[0])
        return cls(starts, kernel, dtype, layout, cutoff, near, alike, row_bytes, least)

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.starts[-1])

    @property
    def in_shares(self) -> bool:
        """True if each rank should optimise a share of the rows, all of which must fit on every rank."""
        ranks = len(self.starts) - 1
        fits = self.n <= max(_FEW, self.cache_bytes // (2 * self.row_bytes))
        return bool(self.near and self.alike and fits and ranks > 1 and self.n >= _LEAST_ROWS * ranks)

    def round_size(self, max_rows: int) -> int:
        """Rows per round of near rows, at most `max_rows`."""
        return near_round_size(max_rows, self.row_bytes, self.cache_bytes)


class OnRanks(SMO):
    """SMO on all ranks, with checkpoints."""

    unfinished: Unfinished | None = None
    comm: Communicator
    gram: KernelRows | NearRows

    def _checkpoint_due(self) -> bool:
        """True on rank 0 if a checkpoint is due."""
        return self.unfinished is not None and self.comm.rank == 0 and self.unfinished.due()

    def _keep(self, beta: Vector) -> None:
        """Save a state: the feasible `beta` of the rows that this rank was given. Collective."""
        assert self.unfinished is not None
        counts = np.array([self.iterations, self.rounds, self.gram.rows_computed, self.gram.values_computed])
        self.unfinished.put(beta=beta, counts=counts, seconds=np.array(working_time() - self.begun))

    def go_on(self, state: Kept) -> None:
        """Resume the counts and the clock of a killed run, whose beta is the start of this one."""
        self.iterations, self.rounds, rows, values = state["counts"].tolist()
        self.gram.resume(rows, values)
        self.begun -= float(state["seconds"])

    def _initial_objective(self) -> float:
        """The objective at the start. Collective."""
        active, dual = self.active, self.active.dual
        beta = active.beta
        terms = 0.5 * float((active.v - dual.linear) @ beta) - dual.epsilon * float(np.abs(beta).sum())
        return float(self.comm.allreduce(np.array([terms]))[0])


class Distributed(OnRanks):
    """SMO on all ranks; rows are numbered globally, in the order of the ranks.

    Attributes
    ----------
    q : int
        Rows of a working set.
    pool : Pool
        Copies of rows that were in a working set, in the same slots on every rank.
    quota : ndarray of int64, shape (ranks, 2)
        Rows that each rank may propose to rise and to fall; a rank with more violators gets more of the next round.
    seen : tuple of float
        The largest v of a row that may rise, and the smallest of one that may fall, in the last round.
    looks : int
        Number of checks whether idle rows should be shrunk.
    """

    gram: KernelRows

    def __init__(
        self, rows: AllRows, X: Rows, dual: Dual, training: PartTraining, comm: Communicator, working_set: int | None
    ) -> None:
        super().__init__(training.limits, training.watch)
        self.X, self.comm, self.starts, self.n, self.alike = X, comm, rows.starts, rows.n, rows.alike
        self.first, self.stop = (int(self.starts[comm.rank + at]) for at in (0, 1))
        self.row_bytes, kernel, layout = rows.row_bytes, rows.kernel, rows.layout
        largest = self.n // 2 if rows.near else self.n // 8
        if working_set is None:
            regression = dual.epsilon > 0
            working_set = rows.round_size(largest) if rows.near else round_size(self.n, layout.price, regression)
        self.q = max(2, min(working_set, largest) // 2 * 2)
        capacity = self._capacity(int(np.diff(self.starts).max()), rows.cache_bytes)
        self.pool, room = Pool(X, capacity), training.cache_bytes - capacity * self.row_bytes
        with comm.agreed():
            dual.initial()
            if dual.by_sign:
                raise InputError("nu-SVMs: the exact nu-SVR and nu-SVC cannot be solved on several ranks")
            if rows.near:
                self.gram = NearColumns(dense(X), kernel, rows.dtype, layout, self.pool.X, rows.cutoff, room)
            else:
                self.gram = KernelRows(X, kernel, rows.dtype, room, layout, self.pool.X)
        self.one_bound = comm.all(bool(((dual.lower == 0) | (dual.upper == 0)).all()))
        self.width = 4 if self.one_bound else 5  # numbers of a proposal: v, beta, the bounds, number of the row
        self.looks = 0
        self.quota = np.full((comm.size, 2), max(1, -(-self.q // (2 * comm.size))))
        self.seen = np.inf, -np.inf  # the last top and bottom
        self._last = WorkingSet.empty()
        self.active = ActiveSet(dual, self.gram, SHRINKING, comm.allreduce, partial(comm.allreduce, op="max"))
        if dual.start is not None:
            beta, v = self.active.beta, self.active.v
            moved = np.flatnonzero(beta)
            self._reconstruct(moved, beta[moved], self.active.rows, v)
        self.objective = self._initial_objective()

    def _capacity(self, largest: int, cache_bytes: int) -> int:
        """Rows of the pool, the same on all ranks; every rank has at least this cache."""
        return max(min(2 * self.q, self.n), min(3 * (self.n - largest) // 4, cache_bytes // (4 * self.row_bytes)))

    def _look(self) -> tuple[float, float, bool]:
        """Exchange every rank's extremes and proposals, one line per rank, padded with empty proposals."""
        active = self.active
        top, bottom = active.extremes()
        rise, fall = active.beta < active.upper, active.beta > active.lower
        new = np.ones(len(active.rows), np.bool_)
        new[self._places(self._last.numbers)] = False
        # A row that may rise and fall is proposed for the nearer side. The extremes are always proposed: rows of other
        # ranks may violate with them even if none of this rank does.
        middle = np.inf if top == -np.inf else -np.inf if bottom == np.inf else 0.5 * (top + bottom)
        last_top, last_bottom = self.seen
        rising_v, falling_v = active.rising(), active.falling()
        up = rise & new & (((rising_v > middle) & (rising_v > last_bottom)) | (rising_v == top))
        down = fall & new & ((~up & (falling_v <= middle) & (falling_v < last_top)) | (falling_v == bottom))
        proposals, counts = [], []
        for may, order, room in zip((up, down), (-rising_v, falling_v), self.quota[self.comm.rank], strict=True):
            rows = np.flatnonzero(may)
            counts.append(len(rows))
            if len(rows) > room:
                # For one row, argmin is several times faster.
                rows = rows[[order[rows].argmin()] if room == 1 else np.argpartition(order[rows], room - 1)[:room]]
            lower, upper = active.lower[rows], active.upper[rows]
            bounds = [lower + upper] if self.one_bound else [lower, upper]
            proposed = np.zeros((room, self.width))
            proposed[:, -1] = -1.0
            proposed[: len(rows)] = np.column_stack(
                [active.v[rows], active.beta[rows], *bounds, self.first + active.rows[rows]]
            )
            proposals.append(proposed.ravel())
        lengths = _HEAD + self.width * self.quota.sum(axis=1)
        numbers = self.comm.allgather(np.concatenate([[top, bottom, *counts, self._flags()], *proposals]), lengths)
        lines = self._lines = np.zeros((self.comm.size, lengths.max()))
        lines[:, _HEAD + self.width - 1 :: self.width] = -1.0
        lines[np.arange(lines.shape[1]) < lengths[:, None]] = numbers
        flags = lines[:, 4].astype(np.int64)
        if (flags & _DUE).any():
            self._keep(self.active.all_beta())
        return float(lines[:, 0].max()), float(lines[:, 1].min()), bool((flags & _LATE).any())

    def _flags(self) -> int:
        """Flags that are due on this rank: _LATE, _DUE, both or 0."""
        return _LATE * self._out_of_time() + _DUE * self._checkpoint_due()

    def _chosen(self, top: float, bottom: float) -> WorkingSet:
        """The working set: rows kept from the last one, and the worst violators of all ranks."""
        count, epsilon = (self.q - len(self._last.numbers)) // 2, self.active.dual.epsilon
        sides = []
        for side, sign, compared in ((0, -1.0, rising), (1, 1.0, falling)):
            proposed = [
                line[_HEAD:].reshape(-1, self.width)[before : before + room]
                for line, before, room in zip(self._lines, self.quota[:, 0] * side, self.quota[:, side], strict=True)
            ]
            rows = np.concatenate(proposed)
            v = compared(rows[:, 0], rows[:, 1], epsilon)
            violates = (v > bottom if side == 0 else v < top) & (rows[:, -1] >= 0)
            rows, v = rows[violates], v[violates]
            sides.append(rows[np.argsort(sign * v, kind="stable")[:count]])
        # A rank that had more to propose may propose more next time.
        want = np.maximum(self._lines[:, 2:4], 1.0)
        self.quota = np.maximum(1, np.ceil(count * want / want.sum(axis=0))).astype(np.int64)
        self.seen = top, bottom
        both = np.concatenate(sides)  # a row that is both extremes of its rank may be chosen for either
        return self._last.with_rows(both[np.unique(both[:, -1], return_index=True)[1]])

    def _step(self, top: float, bottom: float, max_pairs: int) -> bool:
        """Solve a working set's problem on every rank, with the same result, and update this rank's gradient."""
        chosen, active = self._chosen(top, bottom), self.active
        slots, size = self._slots(chosen.numbers), len(chosen.numbers)
        order, stay = self.gram.arranged(slots, chosen.numbers)
        chosen, slots = chosen.taken(order), slots[order]
        problem = self._solved(slots, chosen, stay, top - bottom, max_pairs)
        v, beta, done = problem.v.copy(), problem.beta.copy(), problem.iterations
        if not self.alike:
            v, beta, numbers = np.split(self.comm.bcast(np.concatenate([v, beta, [done]])), [size, 2 * size])
            done = int(numbers[0])
        change = beta - chosen.beta
        moved = np.flatnonzero(change)
        self.objective += 0.5 * float(change @ (chosen.v + v))
        self.objective -= active.dual.epsilon * float(np.abs(beta).sum() - np.abs(chosen.beta).sum())
        self.iterations, self.rounds = self.iterations + done, self.rounds + 1
        if len(active.v):
            # A row that has arrived at a bound rarely moves again.
            free = (chosen.lower < beta) & (beta < chosen.upper)
            self.gram.subtract(slots[moved], change[moved], active.v, free[moved])
        here = self._on_this_rank(chosen.numbers)
        at = active.place[chosen.numbers[here] - self.first]
        active.beta[at], active.v[at] = beta[here], v[here]
        solved = WorkingSet(chosen.numbers, v, beta, chosen.lower, chosen.upper)
        self._last = solved.freest(self.q // 2 if self.q >= _KEEP else 0)
        return done > 0

    def _solved(self, slots: Index, chosen: WorkingSet, stay: Index, gap: float, max_pairs: int) -> PairState:
        """Solve the problem of a working set; if most kernel values vanish, over near rows only."""
        state = chosen.v, chosen.beta, chosen.lower, chosen.upper
        if not isinstance(self.gram, NearColumns):
            solved = self._solve(self.gram.square_from(slots, stay), *state, gap, max_pairs)
            self.relax = _RELAX if 32 * solved.iterations < len(slots) * self.gram.price else SMO.relax
            return solved
        near = self.gram.pairs(slots, self.active.dual, *state)
        near.optimise(*self._effort(len(slots), gap, max_pairs))
        self.gram.count(near)
        return near

    def _on_this_rank(self, numbers: Index) -> NDArray[np.bool_]:
        """Mask of these rows that lie on this rank."""
        return (numbers >= self.first) & (numbers < self.stop)

    def _places(self, numbers: Index) -> Index:
        """Places of these rows among this rank's active rows, without rows that are not active here."""
        places = self.active.place[numbers[self._on_this_rank(numbers)] - self.first]
        return places[places >= 0]

    def _slots(self, numbers: Index) -> Index:
        """Slots of these rows (ascending numbers) in the pool; missing rows are sent to all ranks."""
        slots = self.pool.slots(numbers)
        missing = np.flatnonzero(slots < 0)
        if missing.size:
            absent = numbers[missing]
            counts = np.diff(np.searchsorted(absent, self.starts)).astype(np.int64)
            X = gather_rows(self.X[absent[self._on_this_rank(absent)] - self.first], self.comm, counts)
            into = self.pool.free(len(missing))
            self.gram.forget(into)
            self.pool.put(into, absent, X)
            self.gram.sources = self.pool.X
            slots[missing] = into
        return slots

    def _shrink(self, top: float, bottom: float) -> None:
        """Shrink idle rows from time to time; rows of the last working set stay."""
        self.looks += 1
        if self.looks % max(1, _LOOK // self.q) or self.active.size <= 2 * self.q:
            return
        idle = self.active.idle(top, bottom)
        idle[self._places(self._last.numbers)] = False
        self.active.shrink(idle)

    def _unshrunk(self) -> None:
        self.seen, self._last = (self.active.top, self.active.bottom), WorkingSet.empty()

    def _reconstruct(self, moved: Index, change: Vector, rows: Index, v: Vector) -> None:
        for X, values, _ in self._visit(moved, change):
            v -= self.gram.product(X, np.arange(len(values)), values, rows)

    def _square(self, rows: Index, beta: Vector) -> float:
        square, size = 0.0, self.comm.size
        for X, values, counts in self._visit(rows, beta):
            # K is symmetric: of two ranks one computes the values of both, which count twice.
            ahead = (np.repeat(np.arange(size), counts) - self.comm.rank) % size
            half = np.flatnonzero(2 * ahead <= size)
            values = values * np.where((ahead == 0) | (2 * ahead == size), 1.0, 2.0)
            square += float(self.gram.product(X, half, values[half], rows, exact=True) @ beta)
        return square

    def _products(self, rows: Index, beta: Vector, others: Index) -> tuple[Vector, Vector]:
        columns = np.union1d(rows, others)
        sums = np.zeros(len(columns))
        for X, values, _ in self._visit(rows, beta):
            sums += self.gram.product(X, np.arange(len(values)), values, columns, exact=True)
        return sums[np.searchsorted(columns, rows)], sums[np.searchsorted(columns, others)]

    def _visit(self, rows: Index, values: Vector) -> Iterator[tuple[Rows, Vector, Index]]:
        """Yield these rows of all ranks with their values and each rank's number of them, some at a time."""
        longest = int(self.comm.allreduce(np.array([len(rows)]), "max")[0])
        step = max(1, _VISITORS // self.comm.size)
        for lo in range(0, longest, step):
            piece, counts = self.comm.allgather_parts(values[lo : lo + step])
            yield gather_rows(self.X[rows[lo : lo + step]], self.comm, counts), piece, counts


@dataclass
class WorkingSet:
    """A working set, the same on all ranks, ordered by row number."""

    numbers: Index
    v: Vector
    beta: Vector
    lower: Vector
    upper: Vector

    @classmethod
    def empty(cls) -> WorkingSet:
        """A working set without rows."""
        none = np.zeros(0)
        return cls(np.zeros(0, np.int64), none, none, none, none)

    def freest(self, count: int) -> WorkingSet:
        """At most `count` of the rows, free ones first, chosen by number and so anywhere in space."""
        free = (self.lower < self.beta) & (self.beta < self.upper)
        return self.taken(np.lexsort((self.numbers, ~free))[:count])

    def with_rows(self, proposed: NDArray[np.float64]) -> WorkingSet:
        """Add proposed rows: v, beta, the nonzero bound or both bounds, and their numbers."""
        v, beta, *bounds, number = proposed.T
        lower, upper = bounds if len(bounds) == 2 else (np.minimum(bounds[0], 0.0), np.maximum(bounds[0], 0.0))
        columns = (number.astype(np.int64), v, beta, lower, upper)
        together = [np.concatenate(pair) for pair in zip(vars(self).values(), columns, strict=True)]
        return WorkingSet(*together).taken(np.argsort(together[0]))

    def taken(self, places: NDArray[np.intp]) -> WorkingSet:
        """The rows at these places, in their order."""
        return WorkingSet(*(values[places] for values in vars(self).values()))


class Pool:
    """Rows copied to every rank, in `capacity` slots, the same on each; the least recently used are replaced.

    `like` gives the storage, dtype and number of features of the rows. Memory besides the rows: 4 bytes per row of all
    ranks.

    Attributes
    ----------
    X : ndarray or CSR, shape (capacity, d)
        The contents of free slots are undefined.
    """

    def __init__(self, like: Rows, capacity: int) -> None:
        shape = capacity, like.shape[1]
        self.X: Rows = sp.csr_matrix(shape, dtype=like.dtype) if is_sparse(like) else np.zeros(shape, like.dtype)
        self._number = np.full(capacity, -1)
        self._used = np.zeros(capacity, np.int64)
        self._slot = np.zeros(0, np.int32)  # of each row number, or -1
        self._now = 0

    def slots(self, numbers: Index) -> Index:
        """The slot of each row, or -1; rows found are marked as used now."""
        self._now += 1
        missing = int(numbers.max(initial=-1)) + 1 - len(self._slot)
        if missing > 0:
            self._slot = np.append(self._slot, np.full(max(missing, len(self._slot) // 2), -1, np.int32))
        slots = self._slot[numbers].astype(np.int64)
        self._used[slots[slots >= 0]] = self._now
        return slots

    def free(self, count: int) -> Index:
        """Take `count` slots, free ones or those of the least recently used rows."""
        oldest = np.argsort(self._used, kind="stable")[:count]
        gone = self._number[oldest]
        self._slot[gone[gone >= 0]] = -1
        self._number[oldest] = -1
        return oldest

    def put(self, slots: Index, numbers: Index, X: Rows) -> None:
        """Store rows in slots from :meth:`free`."""
        self._number[slots], self._used[slots] = numbers, self._now
        self._slot[numbers] = slots
        if is_sparse(X):
            place = np.arange(self.X.shape[0])
            place[slots] = self.X.shape[0] + np.arange(len(slots))
            self.X = sp.vstack([self.X, X], format="csr")[place]
        else:
            assert not is_sparse(self.X)
            self.X[slots] = X


def near_round_size(max_rows: int, row_bytes: int, cache_bytes: int) -> int:
    """Rows per round, at most `max_rows`: if memory allows, more than there will be support vectors.

    With fewer, the support vectors move repeatedly. For 20,000 rows with 10,500 support vectors, rounds of 2,048, 8,192
    and 12,000 rows number 954, 114 and 17; each support vector moves 41, 16 and 7 times.
    """
    return max(2048, min(max_rows, cache_bytes // (8 * row_bytes)))
