"""One problem of two classes whose rows lie on all ranks, solved exactly (Dis-SMO, in blocks).

In rounds: every rank proposes the rows of its own that violate most, one collective tells all ranks of them, and
all solve the same small problem; each brings the gradient of its own rows up to date. A row travels when it is chosen
for the first time. With a working set of two rows this is the textbook's algorithm, with one combined reduction a pair.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from zlib import crc32

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows, gather_rows, nbytes
from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.machine import threads
from cacore.run.report import cpu_name
from cacore.svm.problem import precision
from casvm.solver.gram import KernelRows
from casvm.solver.pair import Pairs
from casvm.solver.pool import Pool
from casvm.solver.smo import Limits, Progress, extremes, idle_rows, round_size

Vector = NDArray[np.float64]
Index = NDArray[np.int64]

_RELAX = 0.1  # of the violation, what a round leaves of it among its rows
_KEEP = 16  # rows of the smallest working set of which half stay for the next
_LOOK = 2000  # rows of working sets between two looks at who may leave
_PATIENCE = 2  # looks at which a row must have been idle before it leaves
_LEAVING = 0.4  # share of the rows that must be ready to leave
_RETURNS = 20  # times that all rows are looked at before all of them stay
_VISITORS = 2048  # rows that visit all ranks at a time
_SAMPLE = 1000
_HEAD = 5  # numbers before a rank's proposals: top, bottom, rows that may rise and fall, whether its time is up
_TOLD = 4  # numbers of a proposal: v, beta, signed bound, number of the row


@dataclass(frozen=True)
class Share:
    """What the solver returns on each rank.

    Attributes
    ----------
    alpha : ndarray of float64, shape (m,)
        Of this rank's rows.
    b, objective, gap : float
        As of :class:`casvm.solver.smo.Solution`.
    iterations, rounds : int
    converged : bool
    kernel_rows, kernel_values : int
        Of this rank.
    """

    alpha: Vector
    b: float
    objective: float
    gap: float
    iterations: int
    rounds: int
    converged: bool
    kernel_rows: int
    kernel_values: int


@dataclass
class _Aside:
    """Rows out of play, with what is needed to bring their gradient up to date."""

    rows: Index
    v: Vector
    beta: Vector  # of all of this rank's rows, when they left


def solve(
    X: Rows, y: Vector, C: Vector, kernel: Kernel, limits: Limits, budget: int, comm: Communicator,
    working_set: int | None = None, watch: Callable[[Progress], None] | None = None,
) -> Share:  # fmt: skip
    """Solve the dual of all ranks' rows; a collective call.

    Parameters
    ----------
    X : ndarray or CSR, shape (m, d)
        This rank's rows, maybe none. Not changed.
    y : ndarray, shape (m,)
        +1 and -1, both present on some rank.
    C : ndarray, shape (m,)
        Upper bounds of alpha, above 0.
    kernel : Kernel
    limits : Limits
    budget : int
        Bytes of this rank for kernel values, packed rows and the rows of others.
    comm : Communicator
    working_set : int, optional
        Rows of a round, q; at most an eighth of all rows are taken.
    watch : callable, optional
        Called after each round.

    Returns
    -------
    Share

    Notes
    -----
    A round costs q^2 kernel values on every rank, and m for each row that moved; it sends 32 bytes for each row that is
    proposed, about as many as are new in the working set, and a chosen row itself unless the ranks still have it.
    A rank holds its own rows and at most half of the others, or 2 q of them if those are more.
    """
    return _Rank(X, y, C, kernel, limits, budget, comm, working_set, watch).run()


class _Rank:
    """See :mod:`casvm.pair` for beta, lower, upper and v; those without ``all_`` are of this rank's active rows."""

    def __init__(
        self, X: Rows, y: Vector, C: Vector, kernel: Kernel, limits: Limits, budget: int, comm: Communicator,
        working_set: int | None, watch: Callable[[Progress], None] | None,
    ) -> None:  # fmt: skip
        self.X, self.y, self.limits, self.comm, self.watch = X, np.asarray(y, np.float64), limits, comm, watch
        self.begun, m = time.perf_counter(), len(y)
        counts = comm.allgather(np.array([m]))
        self.starts = np.append(0, np.cumsum(counts))
        self.first, self.n = int(self.starts[comm.rank]), int(self.starts[-1])
        largest = float(comm.allreduce(np.array([C.max(initial=0.0)]), "max")[0])
        sample = gather_rows(X[:: max(1, self.n // _SAMPLE)], comm)
        dtype = precision(self.n, sample, kernel, largest, limits.tol)
        layout = Layout.of(sample, kernel, dtype)
        self.q = max(2, min(working_set or round_size(self.n, layout.price), self.n // 8) // 2 * 2)
        row = max(1, nbytes(X) // max(1, len(y)))
        self.row_bytes = int(comm.allreduce(np.array([row]), "max")[0])
        capacity = self._capacity(int(counts.max()), budget)
        self.pool = Pool(X, capacity)
        with comm.agreed():
            self.gram = KernelRows(X, kernel, dtype, budget - capacity * self.row_bytes, layout, self.pool.X)
        self.bounds = np.minimum(0.0, C * self.y), np.maximum(0.0, C * self.y)
        self.all_beta, self.all_v = np.zeros(m), self.y.copy()
        self.aside: list[_Aside] = []
        self.iterations = self.rounds = self.returns = self.looks = 0
        self.objective = 0.0
        self.quota = np.full((comm.size, 2), max(1, -(-self.q // (2 * comm.size))))
        self.seen = np.inf, -np.inf  # the last top and bottom
        self._last = _Chosen.none()
        # Other processors, libraries or threads may round differently, and then only one rank may decide.
        facts = f"{cpu_name()} {threads.current()} {np.__version__} {numba.__version__}"
        same = np.array([crc32(facts.encode())], np.int64)
        self.alike = bool(comm.allreduce(same, "max")[0] == comm.allreduce(same, "min")[0])
        self._activate(np.arange(m))

    def _capacity(self, most: int, budget: int) -> int:
        """Rows of the pool, the same on all ranks."""
        budget = int(self.comm.allreduce(np.array([budget]), "min")[0])
        return max(2 * self.q, min((self.n - most) // 2, budget // (4 * self.row_bytes)))

    def _activate(self, rows: Index) -> None:
        self.active, self.v, self.beta = rows, self.all_v[rows], self.all_beta[rows]
        self.lower, self.upper = (bound[rows] for bound in self.bounds)
        self.patience = np.zeros(len(rows), np.int8)
        self.place = np.full(len(self.all_v), -1)
        self.place[rows] = np.arange(len(rows))
        self.in_play = int(self.comm.allreduce(np.array([len(rows)]))[0])

    def _settle(self) -> None:
        self.all_v[self.active], self.all_beta[self.active] = self.v, self.beta

    def run(self) -> Share:
        """Rounds until the rule is met, a limit is reached or nothing moves."""
        most, stuck = self.limits.iterations(self.n), False
        while True:
            told = self._told()
            top, bottom = float(told[:, 0].max()), float(told[:, 1].min())
            spent = stuck or self.iterations >= most or bool(told[:, 4].any())
            if top - bottom < self.limits.tol or spent:
                if not self._return(spent):
                    return self._share()
                continue
            if self.limits.shrinking and self.returns <= _RETURNS:
                self._shrink(top, bottom)
            stuck = not self._round(self._chosen(told, top, bottom), top - bottom, most - self.iterations)
            if self.watch is not None:
                self.watch(Progress(self.iterations, top - bottom, self.objective, self.in_play))

    def _told(self) -> NDArray[np.float64]:
        """Every rank's extremes and proposals, a line each, filled up with proposals of no row."""
        top, bottom = extremes(self.v, self.beta, self.lower, self.upper)
        rise, fall = self.beta < self.upper, self.beta > self.lower
        old = self._mine(self._last.numbers)
        new = np.ones(len(self.v), np.bool_)
        new[self.place[old][self.place[old] >= 0]] = False
        # A row that may do both is proposed for the side that it is nearer to; the extremes are proposed in any case,
        # for other ranks' rows may violate with them where none of this rank does.
        middle = np.inf if top == -np.inf else -np.inf if bottom == np.inf else 0.5 * (top + bottom)
        high, low = self.seen
        up = rise & new & (((self.v > middle) & (self.v > low)) | (self.v == top))
        down = fall & new & ((~up & (self.v <= middle) & (self.v < high)) | (self.v == bottom))
        line, counts = [], []
        for may, order, room in zip((up, down), (-self.v, self.v), self.quota[self.comm.rank], strict=True):
            rows = np.flatnonzero(may)
            counts.append(len(rows))
            if len(rows) > room:
                # For one row a minimum is several times faster.
                rows = rows[[order[rows].argmin()] if room == 1 else np.argpartition(order[rows], room - 1)[:room]]
            told = np.zeros((room, _TOLD))
            told[:, 3] = -1.0
            told[: len(rows)] = np.column_stack(
                [self.v[rows], self.beta[rows], self.lower[rows] + self.upper[rows], self.first + self.active[rows]]
            )
            line.append(told.ravel())
        late = time.perf_counter() - self.begun > self.limits.max_time
        mine = np.concatenate([[top, bottom, *counts, late], *line])
        lengths = _HEAD + _TOLD * self.quota.sum(axis=1)
        numbers = self.comm.allgather(mine, lengths)
        lines = np.zeros((self.comm.size, lengths.max()))
        lines[:, _HEAD + _TOLD - 1 :: _TOLD] = -1.0
        lines[np.arange(lines.shape[1]) < lengths[:, None]] = numbers
        return lines

    def _chosen(self, told: NDArray[np.float64], top: float, bottom: float) -> _Chosen:
        """The working set: what is kept of the last one, and the worst violators of all ranks."""
        share = (self.q - len(self._last.numbers)) // 2
        sides = []
        for side, sign in ((0, -1.0), (1, 1.0)):
            proposed = [
                line[_HEAD:].reshape(-1, _TOLD)[before : before + room]
                for line, before, room in zip(told, self.quota[:, 0] * side, self.quota[:, side], strict=True)
            ]
            rows = np.concatenate(proposed)
            violates = rows[:, 0] > bottom if side == 0 else rows[:, 0] < top
            rows = rows[violates & (rows[:, 3] >= 0)]
            sides.append(rows[np.argsort(sign * rows[:, 0], kind="stable")[:share]])
        # Who had more to propose may propose more the next time.
        want = np.maximum(told[:, 2:4], 1.0)
        self.quota = np.maximum(1, np.ceil(share * want / want.sum(axis=0))).astype(np.int64)
        self.seen = top, bottom
        both = np.concatenate(sides)  # a row that is both extremes of its rank may be chosen for either
        return self._last.with_rows(both[np.unique(both[:, 3], return_index=True)[1]])

    def _round(self, chosen: _Chosen, gap: float, most: int) -> bool:
        """Solve the working set's problem on every rank, and bring the own gradient up to date; whether it moved."""
        slots = self._slots(chosen.numbers)
        K, everything = self.gram.square(slots), len(slots) == self.in_play
        size = len(slots)
        problem = Pairs(
            chosen.v, chosen.beta, chosen.lower, chosen.upper, np.diagonal(K)[:size].astype(np.float64)
        )  # fmt: skip
        tol = self.limits.tol if everything else max(0.5 * self.limits.tol, _RELAX * gap)
        problem.optimise(K, np.arange(size), tol, min(100 * size, most))
        v, beta, done = problem.v.copy(), problem.beta.copy(), problem.iterations
        if not self.alike:
            v, beta, numbers = np.split(self.comm.bcast(np.concatenate([v, beta, [done]])), [size, 2 * size])
            done = int(numbers[0])
        change = beta - chosen.beta
        moved = np.flatnonzero(change)
        self.objective += 0.5 * float(change @ (chosen.v + v))
        self.iterations, self.rounds = self.iterations + done, self.rounds + 1
        if len(self.v):
            # A row that has come to a bound will hardly move again.
            free = (chosen.lower < beta) & (beta < chosen.upper)
            self.gram.subtract(slots[moved], change[moved], self.v, free[moved])
        mine = (chosen.numbers >= self.first) & (chosen.numbers < self.first + len(self.all_v))
        place = self.place[chosen.numbers[mine] - self.first]
        self.beta[place], self.v[place] = beta[mine], v[mine]
        kept = self.q // 2 if self.q >= _KEEP else 0
        self._last = _Chosen(chosen.numbers, v, beta, chosen.lower, chosen.upper).kept(kept)
        return done > 0

    def _mine(self, numbers: Index) -> Index:
        """Those of these rows that lie here, by their local numbers."""
        here = numbers - self.first
        return here[(here >= 0) & (here < len(self.all_v))]

    def _slots(self, numbers: Index) -> Index:
        """Where the pool has these rows, ascending; those it lacks are told to all ranks."""
        slots = self.pool.slots(numbers)
        missing = np.flatnonzero(slots < 0)
        if missing.size:
            counts = np.diff(np.searchsorted(numbers[missing], self.starts)).astype(np.int64)
            X = gather_rows(self.X[self._mine(numbers[missing])], self.comm, counts)
            into = self.pool.free(len(missing))
            self.gram.forget(into)
            self.pool.put(into, numbers[missing], X)
            self.gram.sources = self.pool.X
            slots[missing] = into
        return slots

    def _shrink(self, top: float, bottom: float) -> None:
        """Put rows aside that sit at a bound and could not be chosen, once they are many; those still chosen stay."""
        self.looks += 1
        if self.looks % max(1, _LOOK // self.q) or self.in_play <= 2 * self.q:
            return
        idle = idle_rows(self.v, self.beta, self.lower, self.upper, top, bottom)
        old = self.place[self._mine(self._last.numbers)]
        idle[old[old >= 0]] = False
        self.patience[~idle] = 0
        self.patience[idle & (self.patience < _PATIENCE)] += 1
        leaving = self.patience >= _PATIENCE
        count = int(self.comm.allreduce(np.array([np.count_nonzero(leaving)]))[0])
        if count < _LEAVING * self.in_play:
            return
        self._settle()
        rows = self.active[leaving]
        self.aside.append(_Aside(rows, self.all_v[rows], self.all_beta.copy()))
        kept = np.flatnonzero(~leaving)
        self.gram.restrict(kept)
        self._activate(self.active[kept])

    def _return(self, spent: bool) -> bool:
        """Look at all rows; whether there is something left to do, with those that are then active."""
        self._settle()
        for group in self.aside:
            moved = np.flatnonzero(self.all_beta != group.beta)
            for X, change in self._visit(moved, self.all_beta[moved] - group.beta[moved]):
                group.v -= self.gram.product(X, np.arange(len(change)), change, group.rows)
            self.all_v[group.rows] = group.v
        shrunk, self.aside = bool(self.aside), []
        lower, upper = self.bounds
        mine = extremes(self.all_v, self.all_beta, lower, upper)
        top, negative = self.comm.allreduce(np.array([mine[0], -mine[1]]), "max").tolist()
        self.seen = top, -negative
        if spent or not shrunk or top + negative < self.limits.tol:
            return False
        self.returns += 1
        idle = idle_rows(self.all_v, self.all_beta, lower, upper, top, -negative)
        if self.returns > _RETURNS:
            idle[:] = False
        self.aside = [_Aside(np.flatnonzero(idle), self.all_v[idle], self.all_beta.copy())]
        self._last = _Chosen.none()
        rows = np.flatnonzero(~idle)
        self.gram.activate(rows)
        self._activate(rows)
        return True

    def _visit(self, rows: Index, values: Vector) -> Iterator[tuple[Rows, Vector]]:
        """These rows of all ranks, some at a time, with their values."""
        longest = int(self.comm.allreduce(np.array([len(rows)]), "max")[0])
        step = max(1, _VISITORS // self.comm.size)
        for lo in range(0, longest, step):
            some = rows[lo : lo + step]
            given, counts = self.comm.allgather_parts(values[lo : lo + step])
            yield gather_rows(self.X[some], self.comm, counts), given

    def _share(self) -> Share:
        beta, (top, bottom) = self.all_beta, self.seen
        support = np.flatnonzero(beta)
        square = 0.0
        for X, given in self._visit(support, beta[support]):
            square += float(self.gram.product(X, np.arange(len(given)), given, support, exact=True) @ beta[support])
        linear, square = self.comm.allreduce(np.array([np.abs(beta).sum(), square])).tolist()
        return Share(
            np.abs(beta), 0.5 * (top + bottom), linear - 0.5 * square, top - bottom, self.iterations, self.rounds,
            top - bottom < self.limits.tol, self.gram.rows_computed, self.gram.values_computed,
        )  # fmt: skip


@dataclass
class _Chosen:
    """A working set, the same on all ranks: rows in the order of their numbers."""

    numbers: Index
    v: Vector
    beta: Vector
    lower: Vector
    upper: Vector

    @classmethod
    def none(cls) -> _Chosen:
        empty = np.zeros(0)
        return cls(np.zeros(0, np.int64), empty, empty, empty, empty)

    def kept(self, most: int) -> _Chosen:
        """At most so many of the rows, free ones first."""
        free = (self.lower < self.beta) & (self.beta < self.upper)
        return self._take(np.argsort(~free, kind="stable")[:most])

    def with_rows(self, told: NDArray[np.float64]) -> _Chosen:
        """With rows that ranks have told of."""
        bound = told[:, 2]
        columns = (told[:, 3].astype(np.int64), told[:, 0], told[:, 1], np.minimum(bound, 0.0), np.maximum(bound, 0.0))
        together = [np.concatenate(pair) for pair in zip(vars(self).values(), columns, strict=True)]
        every = _Chosen(*together)
        return every._take(np.argsort(every.numbers))

    def _take(self, places: NDArray[np.intp]) -> _Chosen:
        return _Chosen(*(values[places] for values in vars(self).values()))
