"""SMO for one dual whose rows lie on all ranks (Dis-SMO, with working sets).

In each round every rank proposes its worst violators, one collective gives the proposals to all ranks, and all ranks
solve the same small problem. Each then updates the gradient of its own rows. A row is sent when it is first chosen.
With a working set of two rows this is the textbook algorithm, with one combined reduction per pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from zlib import crc32

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows, gather_rows, largest_size, nbytes
from cacore.errors import InputError
from cacore.io.checkpoint import Kept, Unfinished
from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.kernels.near import squared_cutoff
from cacore.limits import Limits
from cacore.machine import threads
from cacore.machine.clock import working_time
from cacore.machine.cpu import cpu_name
from cacore.svm.dual import Dual, Progress, Solution
from cacore.svm.problem import precision
from casvm.solver import near_blocks, near_shares
from casvm.solver.active_set import SMO, ActiveSet, Shrinking, middle
from casvm.solver.kernel_rows import KernelRows
from casvm.solver.near import VANISHED
from casvm.solver.near_blocks import BlockRounds, Rounds
from casvm.solver.near_columns import NearColumns, near_round_size
from casvm.solver.near_shares import ShareRounds
from casvm.solver.pair import Index, PairState, Vector, falling, rising
from casvm.solver.pool import Pool
from casvm.solver.smo import round_size
from casvm.solver.units import Unit
from casvm.solver.working_set import WorkingSet

SHRINKING = Shrinking(patience=2, share=0.4, share_if_copied=0.4)
_KEEP = 16  # smallest working set of which half stays for the next round
_LOOK = 2000  # rows of working sets between two checks for idle rows
_VISITORS = 2048  # rows sent to all ranks at a time
_SAMPLE = 1000
_RELAX = 0.03  # share of the violation that a round leaves if the pairs of the last one cost far less than its square
_HEAD = 5  # numbers before a rank's proposals: top, bottom, rows that may rise and fall, flags of what is due
_LATE, _DUE = 1, 2  # flags: time to stop; time for a checkpoint


def solve(
    X: Rows, dual: Dual, kernel: Kernel, limits: Limits, cache_bytes: int, comm: Communicator,
    working_set: int | None = None, watch: Callable[[Progress], None] | None = None,
    unfinished: Unfinished | None = None,
) -> Solution:  # fmt: skip
    """Solve the dual of all ranks' rows; a collective call.

    Parameters
    ----------
    X : ndarray or CSR, shape (m, d)
        This rank's rows, possibly none. Not changed.
    dual : Dual
        The dual of this rank's rows, with the total of all ranks. The start, if all ranks have one, is feasible.
    kernel, limits, watch
        See :class:`cacore.svm.dual.PartSolver`; `watch` is called after each round.
    cache_bytes : int
        This rank's memory for kernel values, packed rows and copies of other ranks' rows.
    comm : Communicator
    working_set : int, optional
        Rows per round, q; at most an eighth of all rows, or half of them if most kernel values vanish.
    unfinished : Unfinished, optional
        Checkpoint from which a killed run resumes; beta is stored from time to time.

    Returns
    -------
    Solution
        The solution for this rank's rows.

    Raises
    ------
    InputError
        On all ranks: kernel values that overflow, a start that is not feasible, sums by sign.

    Notes
    -----
    A round costs q^2 kernel values on every rank, or 3/8 of them where they are expensive, and m per row that moved.
    If all near rows fit, rounds take all of them, the first in shares (:mod:`casvm.solver.near_shares`).
    From 16 ranks on, rounds of near rows are solved in blocks (:mod:`casvm.solver.near_blocks`). It sends 32 bytes per
    proposed row (40 if rows have two nonzero bounds); there are about as many proposals as new rows in the working set.
    A chosen row is sent too, unless the ranks still have it. A rank holds its own rows and copies of at most three
    quarters of the other ranks' rows, or of 2 q rows if that is more.
    """
    with comm.uncounted():
        sizes = np.array([np.abs(dual.linear).max(initial=0.0), dual.largest_bound])
        unit = Unit.of(*comm.allreduce(sizes, "max").tolist())
    state = unfinished.get() if unfinished is not None else None
    same = unit.dual(dual)
    if state is not None:
        same = replace(same, start=state["beta"])
    solver = _Distributed(X, same, kernel, unit.limits(limits), cache_bytes, comm, working_set, unit.watch(watch))
    solver.unfinished = unfinished
    if state is not None:
        solver.go_on(state)
    return unit.solution(solver.run(solver.n), limits.tol)


class _Distributed(SMO):
    """SMO on all ranks; rows are numbered globally, in the order of the ranks."""

    unfinished: Unfinished | None = None

    def __init__(
        self, X: Rows, dual: Dual, kernel: Kernel, limits: Limits, cache_bytes: int, comm: Communicator,
        working_set: int | None, watch: Callable[[Progress], None] | None,
    ) -> None:  # fmt: skip
        super().__init__(limits, watch)
        self.X, self.comm = X, comm
        counts = comm.allgather(np.array([dual.n]))
        self.starts = np.append(0, np.cumsum(counts))
        self.first, self.stop, self.n = (int(self.starts[at]) for at in (comm.rank, comm.rank + 1, -1))
        largest, size = comm.allreduce(np.array([dual.largest_bound, largest_size(X)]), "max").tolist()
        sample = gather_rows(X[:: max(1, self.n // _SAMPLE)], comm)
        dtype = precision(self.n, sample, kernel, largest, limits.tol)
        layout = Layout.of(sample, kernel, dtype, size)
        floor = VANISHED * limits.tol / (max(1.0, largest) * self.n)
        cutoff = squared_cutoff(kernel, 4.0 * X.shape[1] * size**2, floor)
        near = comm.all(NearColumns.pays(X, kernel, layout, cutoff, sample))
        # Other processors, libraries or thread counts may round differently; then rank 0 alone decides.
        facts = f"{cpu_name()} {threads.current()} {np.__version__} {numba.__version__}"
        same = np.array([crc32(facts.encode())], np.int64)
        self.alike = bool(comm.allreduce(same, "max")[0] == comm.allreduce(same, "min")[0])
        in_blocks = near and self.alike and near_blocks.pay(self.n, comm.size)
        row = max(1, nbytes(X) // max(1, dual.n))
        self.row_bytes = int(comm.allreduce(np.array([row]), "max")[0])
        least = int(comm.allreduce(np.array([cache_bytes]), "min")[0])
        most = near_blocks.most_rows(self.n) if in_blocks else self.n // 2 if near else self.n // 8
        room = near_round_size(self.n, self.row_bytes, least) if near and not in_blocks and comm.size > 1 else 0
        self.whole = working_set is None and self.n <= min(room, near_shares.MOST_ROWS)
        if self.whole:
            most = working_set = self.n
        elif working_set is None and near:
            working_set = near_round_size(most, self.row_bytes, least)
        elif working_set is None:
            working_set = round_size(self.n, layout.price, dual.epsilon > 0)
        self.q = max(2, min(working_set, most) // 2 * 2)
        capacity = self._capacity(int(counts.max()), least)
        self.pool, room = Pool(X, capacity), cache_bytes - capacity * self.row_bytes
        with comm.agreed():
            dual.initial()
            if dual.by_sign:
                raise InputError("nu-SVMs: the exact nu-SVR and nu-SVC cannot be solved on several ranks")
            if near:
                self.gram: KernelRows = NearColumns(X, kernel, dtype, layout, self.pool.X, cutoff, room)
            else:
                self.gram = KernelRows(X, kernel, dtype, room, layout, self.pool.X)
        self.one_bound = comm.all(bool(((dual.lower == 0) | (dual.upper == 0)).all()))
        self.width = 4 if self.one_bound else 5  # numbers of a proposal: v, beta, the bounds, number of the row
        self.divided: Rounds | None = ShareRounds(dual, comm) if self.whole and self.alike else None
        if in_blocks:
            self.divided = BlockRounds(sample, capacity, dual.epsilon, comm)
        self.looks = 0
        self.quota = np.full((comm.size, 2), 1 if self.whole else max(1, -(-self.q // (2 * comm.size))))
        self.seen = np.inf, -np.inf  # the last top and bottom
        self._last = WorkingSet.empty()
        self.active = ActiveSet(dual, self.gram, SHRINKING, comm.allreduce, partial(comm.allreduce, op="max"))
        self.objective = 0.0
        if dual.start is not None:
            beta, v = self.active.beta, self.active.v
            moved = np.flatnonzero(beta)
            self._reconstruct(moved, beta[moved], self.active.rows, v)
            terms = 0.5 * float(np.sum(-dual.linear * beta) + beta @ v) - dual.epsilon * float(np.abs(beta).sum())
            self.objective = float(comm.allreduce(np.array([terms]))[0])

    def _capacity(self, most: int, cache_bytes: int) -> int:
        """Rows of the pool, the same on all ranks; every rank has at least this cache."""
        return max(min(2 * self.q, self.n), min(3 * (self.n - most) // 4, cache_bytes // (4 * self.row_bytes)))

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
        high, low = self.seen
        higher, lower = active.rising(), active.falling()
        up = rise & new & (((higher > middle) & (higher > low)) | (higher == top))
        down = fall & new & ((~up & (lower <= middle) & (lower < high)) | (lower == bottom))
        proposals, counts = [], []
        for may, order, room in zip((up, down), (-higher, lower), self.quota[self.comm.rank], strict=True):
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
        numbers = self.comm.allgather(np.concatenate([[top, bottom, *counts, self._time()], *proposals]), lengths)
        lines = self._lines = np.zeros((self.comm.size, lengths.max()))
        lines[:, _HEAD + self.width - 1 :: self.width] = -1.0
        lines[np.arange(lines.shape[1]) < lengths[:, None]] = numbers
        times = lines[:, 4].astype(np.int64)
        if (times & _DUE).any():
            self._keep()
        return float(lines[:, 0].max()), float(lines[:, 1].min()), bool((times & _LATE).any())

    def _time(self) -> int:
        """Flags of what is due: _LATE, _DUE, both or 0."""
        due = self.unfinished is not None and self.comm.rank == 0 and self.unfinished.due()
        return _LATE * self._late() + _DUE * due

    def _keep(self) -> None:
        assert self.unfinished is not None
        counts = [self.iterations, self.rounds, self.gram.rows_computed, self.gram.values_computed]
        seconds = working_time() - self.begun
        self.unfinished.put(beta=self.active.all_beta(), counts=np.array(counts), seconds=np.array(seconds))

    def go_on(self, state: Kept) -> None:
        """Resume the counts and the clock of a killed run, whose beta is the start of this one."""
        self.iterations, self.rounds, rows, values = state["counts"].tolist()
        self.gram.rows_computed, self.gram.values_computed = rows, self.gram.values_computed + values
        self.begun -= float(state["seconds"])

    def _chosen(self, top: float, bottom: float) -> WorkingSet:
        """The working set: rows kept from the last one, and the worst violators of all ranks; or all rows."""
        if self.whole:
            self.seen, active = (top, bottom), self.active
            return WorkingSet.of_all(self.comm, active.v, active.beta, active.lower, active.upper)
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

    def _step(self, top: float, bottom: float, most: int) -> bool:
        """Solve a working set's problem: on every rank, or in blocks, each on one rank."""
        chosen, active = self._chosen(top, bottom), self.active
        slots, size = self._slots(chosen.numbers), len(chosen.numbers)
        rounds = self.divided
        if rounds is not None and rounds.suit(size, self.rounds) and self._in_blocks(slots, chosen, top - bottom, most):
            return True
        order, stay = self.gram.arranged(slots, chosen.numbers)
        chosen, slots = chosen.taken(order), slots[order]
        problem = self._solved(slots, chosen, stay, top - bottom, most)
        v, beta, done = problem.v.copy(), problem.beta.copy(), problem.iterations
        if not self.alike:
            v, beta, numbers = np.split(self.comm.bcast(np.concatenate([v, beta, [done]])), [size, 2 * size])
            done = int(numbers[0])
        change = beta - chosen.beta
        moved = np.flatnonzero(change)
        self.objective += 0.5 * float(change @ (chosen.v + v))
        self.objective -= active.dual.epsilon * float(np.abs(beta).sum() - np.abs(chosen.beta).sum())
        self.iterations, self.rounds = self.iterations + done, self.rounds + 1
        if len(active.v) and not self.whole:
            # A row that has arrived at a bound rarely moves again.
            free = (chosen.lower < beta) & (beta < chosen.upper)
            self.gram.subtract(slots[moved], change[moved], active.v, free[moved])
        here = self._here(chosen.numbers)
        at = active.place[chosen.numbers[here] - self.first]
        active.beta[at], active.v[at] = beta[here], v[here]
        solved = WorkingSet(chosen.numbers, v, beta, chosen.lower, chosen.upper)
        self._last = solved.kept(self.q // 2 if self.q >= _KEEP and not self.whole else 0)
        return done > 0

    def _in_blocks(self, slots: Index, chosen: WorkingSet, gap: float, most: int) -> bool:
        """Solve a working set's problem in blocks; return False, with nothing changed, if that does not help."""
        gram, active, rounds = self.gram, self.active, self.divided
        assert isinstance(gram, NearColumns)
        assert rounds is not None
        mine = rounds.mine(gram, slots, self.rounds, chosen.v, chosen.beta, chosen.lower, chosen.upper)
        found = rounds.change(mine, chosen.beta, self._bias(chosen), self.limits.tol, gap, most)
        if found is None:
            return False
        change = np.zeros(len(slots))
        change[found.places] = found.beta - chosen.beta[found.places]
        total = gram.sums(slots[found.places], change[found.places])
        here = self._here(chosen.numbers)
        at = active.place[chosen.numbers[here] - self.first]
        share, gain = rounds.step(change[here], chosen.v[here], chosen.beta[here], total[at])
        if share == 0:
            return False
        beta = chosen.beta.copy()
        beta[found.places] = found.beta
        if share < 1:
            beta = np.clip(chosen.beta + share * change, chosen.lower, chosen.upper)
        active.v -= share * total
        active.beta[at] = beta[here]
        self.objective += gain
        self.iterations, self.rounds = self.iterations + found.pairs, self.rounds + 1
        if self.whole:
            return True
        kept = WorkingSet(chosen.numbers, chosen.v, beta, chosen.lower, chosen.upper).kept(3 * self.q // 4)
        self._last = kept = kept.taken(np.argsort(kept.numbers))
        v = active.v[active.place[kept.numbers[self._here(kept.numbers)] - self.first]]
        kept.v = self.comm.allgather(v, np.diff(np.searchsorted(kept.numbers, self.starts)).astype(np.int64))
        return True

    def _bias(self, chosen: WorkingSet) -> float:
        """The mean v of the free rows of a working set, or of its extremes."""
        free = (chosen.lower < chosen.beta) & (chosen.beta < chosen.upper) & (chosen.beta != 0)
        return float(np.mean(chosen.v[free])) if free.any() else middle(*self.seen)

    def _solved(self, slots: Index, chosen: WorkingSet, stay: Index, gap: float, most: int) -> PairState:
        """Solve the problem of a working set; if most kernel values vanish, over near rows only."""
        state = chosen.v, chosen.beta, chosen.lower, chosen.upper
        if not isinstance(self.gram, NearColumns):
            solved = self._solve(self.gram.square_from(slots, stay), *state, gap, most)
            self.relax = _RELAX if 32 * solved.iterations < len(slots) * self.gram.price else SMO.relax
            return solved
        near = self.gram.pairs(slots, self.active.dual, *state)
        near.optimise(*self._effort(len(slots), 0.0 if self.whole else gap, most))
        self.gram.count(near)
        return near

    def _here(self, numbers: Index) -> NDArray[np.bool_]:
        """Mask of these rows that lie on this rank."""
        return (numbers >= self.first) & (numbers < self.stop)

    def _places(self, numbers: Index) -> Index:
        """Places of these rows among this rank's active rows, without rows that are not active here."""
        places = self.active.place[numbers[self._here(numbers)] - self.first]
        return places[places >= 0]

    def _slots(self, numbers: Index) -> Index:
        """Slots of these rows (ascending numbers) in the pool; missing rows are sent to all ranks."""
        slots = self.pool.slots(numbers)
        missing = np.flatnonzero(slots < 0)
        if missing.size:
            absent = numbers[missing]
            counts = np.diff(np.searchsorted(absent, self.starts)).astype(np.int64)
            X = gather_rows(self.X[absent[self._here(absent)] - self.first], self.comm, counts)
            into = self.pool.free(len(missing))
            self.gram.forget(into)
            self.pool.put(into, absent, X)
            if self.divided is not None:
                self.divided.put(into, np.asarray(X))
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
            some = np.flatnonzero(2 * ahead <= size)
            values = values * np.where((ahead == 0) | (2 * ahead == size), 1.0, 2.0)
            square += float(self.gram.product(X, some, values[some], rows, exact=True) @ beta)
        return square

    def _visit(self, rows: Index, values: Vector) -> Iterator[tuple[Rows, Vector, Index]]:
        """Yield these rows of all ranks with their values and each rank's number of them, some at a time."""
        longest = int(self.comm.allreduce(np.array([len(rows)]), "max")[0])
        step = max(1, _VISITORS // self.comm.size)
        for lo in range(0, longest, step):
            some, counts = self.comm.allgather_parts(values[lo : lo + step])
            yield gather_rows(self.X[rows[lo : lo + step]], self.comm, counts), some, counts
