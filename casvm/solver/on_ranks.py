"""Base of the solvers of one dual on many ranks: facts about all rows that all ranks share, and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from zlib import crc32

import numba
import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.arrays import Reals
from cacore.comm import Communicator
from cacore.data.rows import Rows, dense, gather_rows, is_sparse, largest_size, nbytes
from cacore.io.checkpoint import Kept, Unfinished
from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.kernels.near import STRETCH, NearPanels, spatial_order, squared_cutoff
from cacore.kernels.precision import Accuracy, Extent, sampled, shift_of
from cacore.kernels.sums import width
from cacore.limits import Limits
from cacore.machine.clock import working_time
from cacore.machine.threads import blocks
from cacore.svm.dual import Dual
from cacore.svm.problem import precision
from casvm.solver.active_set import SMO
from casvm.solver.kernel_rows import KernelRows
from casvm.solver.near_pairs import NearPairs
from casvm.solver.near_rows import VANISHED, NearRows
from casvm.solver.pair import Index, Vector

_SAMPLE = 1000
_LEAST_ROWS = 64  # per rank, for shares
_FEW = 2048  # rows that every rank has room for


_SAMPLE_OF_NEAR = 200  # rows from which the share of near rows is estimated
_FINE, _FEW_COLUMNS = 128, 5000  # columns per box, a whole panel, of fewer rows than this
_SOME, _COLUMNS = 2048, 1 << 16  # rows and columns per product


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
    def of(
        cls, X: Rows, dual: Dual, kernel: Kernel, limits: Limits, cache_bytes: int, comm: Communicator, machine: str
    ) -> AllRows:
        """The facts about all ranks' rows `X`; `machine` names what rounds here. Collective."""
        starts = np.append(0, np.cumsum(comm.allgather(np.array([dual.n]))))
        n = int(starts[-1])
        sample = gather_rows(X[:: max(1, n // _SAMPLE)], comm)
        extent = Extent.of(X, shift_of(sampled(sample), kernel))
        sizes = [dual.largest_bound, largest_size(X), kernel.largest(X, np.float64) if len(dual.linear) else 0.0]
        ends = [dual.linear.max(initial=-np.inf), -dual.linear.min(initial=np.inf)]
        maxima = comm.allreduce(np.array([*sizes, *ends, *extent.norms]), "max")
        largest, size, value, top, negative = maxima[:5].tolist()
        dtype: np.dtype[np.floating] = np.dtype(precision((n, X.shape[1]), value, largest, limits.tol))
        accuracy = Accuracy.of_solution(largest, limits.tol, 0.5 * (top + negative) or 1.0)
        layout = Layout.of(sample, kernel, dtype, size, accuracy, extent.over_ranks(maxima[5:]))
        floor = VANISHED * limits.tol / (max(1.0, largest) * n)
        cutoff = squared_cutoff(kernel, 4.0 * X.shape[1] * size**2, floor)
        near = comm.all(NearColumns.pays(X, kernel, layout, cutoff, sample))
        facts = f"{machine} {np.__version__} {numba.__version__}"
        same = np.array([crc32(facts.encode())], np.int64)
        alike = bool(comm.allreduce(same, "max")[0] == comm.allreduce(same, "min")[0])
        row = max(1, nbytes(X) // max(1, dual.n))
        row_bytes = int(comm.allreduce(np.array([row]), "max")[0])
        least = int(comm.allreduce(np.array([cache_bytes]), "min")[0])
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


# Largest share of near columns at which computing a row of K is faster than reading it from memory: of many columns, of
# few, whose boxes are small.
_NEAR, _NEAR_FINE = 0.25, 0.5


class NearColumns(KernelRows):
    """:class:`KernelRows` without a cache, for dense rows and a kernel that vanishes beyond a cutoff radius.

    Parameters
    ----------
    X, kernel, dtype, layout, sources
        See :class:`KernelRows`; the layout is packed.
    cutoff : float
        Squared distance beyond which kernel values count as 0.
    cache_bytes : int
        Memory for a working set's rows of K.

    Notes
    -----
    A row of K costs one kernel value per column of the stretches near it, and no memory.
    """

    def __init__(
        self, X: Reals, kernel: Kernel, dtype: DTypeLike, layout: Layout, sources: Rows, cutoff: float, cache_bytes: int
    ) -> None:  # fmt: skip
        self.cutoff, self.cache_bytes, self._order = cutoff, cache_bytes, spatial_order(X, _stretch(len(X)))
        super().__init__(X, kernel, dtype, 0, layout, sources)

    @classmethod
    def pays(cls, X: Rows, kernel: Kernel, layout: Layout, cutoff: float, sample: Rows) -> bool:
        """True if rows like the sample are near so few rows of `X` that computing K is faster than reading it."""
        if is_sparse(X) or not (layout.packed and np.isfinite(cutoff)):
            return False
        if not len(X):
            return True
        points = sample[:: max(1, sample.shape[0] // _SAMPLE_OF_NEAR)]
        size = _stretch(len(X))
        columns = NearPanels(X, layout.dtype, layout.shift, spatial_order(X, size), size, layout.measure)
        return columns.near(layout.rows(points), cutoff) < (_NEAR if size == STRETCH else _NEAR_FINE)

    def _turn_to(self, rows: Index) -> None:
        self.active = rows
        place = np.full(self.n, -1)
        place[rows] = np.arange(len(rows))
        self._place = place[self._order]
        self._place = self._place[self._place >= 0]
        self._near = self._packed(self.layout, rows[self._place])

    def _packed(self, layout: Layout, columns: Index) -> NearPanels:
        """These columns, in spatial order."""
        return NearPanels(dense(self.X), layout.dtype, layout.shift, columns, _stretch(len(columns)), layout.measure)

    def _subtract(self, rows: Index, change: Vector, v: Vector, keep: NDArray[np.bool_]) -> None:
        v -= self._sums(rows, change)

    def _sums(self, rows: Index, change: Vector) -> Vector:
        total, sums = np.zeros(len(self.active)), np.empty(len(self.active))
        values = self._near.add(self.kernel, self.layout.rows(self.sources, rows), self.cutoff, change, total)
        sums[self._place] = total
        self.rows_computed += len(rows)
        self.values_computed += values
        return sums

    def sums(self, rows: Index, change: Vector) -> Vector:
        """``change @ K(rows, active)``."""
        total = np.zeros(len(self.active))
        for lo, hi in blocks(len(rows), _SOME):
            total += self._sums(rows[lo:hi], change[lo:hi])
        return total

    def arranged(self, rows: Index, numbers: Index) -> tuple[Index, Index]:
        """The spatial order, see :meth:`KernelRows.arranged`; no values are kept from the last working set."""
        return spatial_order(self.sources[rows], width(self.layout.dtype)), numbers[:0]

    def pairs(self, rows: Index, dual: Dual, v: Vector, beta: Vector, lower: Vector, upper: Vector) -> NearPairs:
        """The problem of a working set in the order of :meth:`arranged`; allocates memory for its rows of K."""
        gram = NearRows(self.sources[rows], self.kernel, self.dtype, self.layout, self.cutoff, self.cache_bytes)
        gram.begin()
        return NearPairs(gram, dual, v, beta, lower, upper)

    def count(self, problem: NearPairs) -> None:
        """Add the kernel values that a working set's problem computed and read."""
        self.values_computed += problem.gram.values_computed
        self.values_read += problem.gram.values_read

    def product(self, X: Rows, rows: Index, change: Vector, columns: Index, exact: bool = False) -> Vector:
        """See :meth:`KernelRows.product`."""
        layout = replace(self.layout, dtype=np.dtype(np.float64)) if exact else self.layout
        rank = np.empty(self.n, np.int64)
        rank[self._order] = np.arange(self.n)
        order, sums = np.argsort(rank[columns]), np.zeros(len(columns))
        for first, last in blocks(len(columns), _COLUMNS):
            block = order[first:last]
            side, total = self._packed(layout, columns[block]), np.zeros(len(block))
            for lo, hi in blocks(len(rows), _SOME):
                A = layout.rows(X, rows[lo:hi])
                side.add(self.kernel, A, self.cutoff, change[lo:hi], total)
            sums[block] = total
        return sums


def _stretch(columns: int) -> int:
    """Columns per box: with few columns, a box of many would be as large as space.

    Of 100,000 rows of covtype on 64 ranks, a row is near 0.19 of a rank's columns in boxes of 128 and 0.56 in boxes of
    512.
    """
    return STRETCH if columns >= _FEW_COLUMNS else _FINE


def near_round_size(max_rows: int, row_bytes: int, cache_bytes: int) -> int:
    """Rows per round, at most `max_rows`: if memory allows, more than there will be support vectors.

    With fewer, the support vectors move repeatedly. For 20,000 rows with 10,500 support vectors, rounds of 2,048, 8,192
    and 12,000 rows number 954, 114 and 17; each support vector moves 41, 16 and 7 times.
    """
    return max(2048, min(max_rows, cache_bytes // (8 * row_bytes)))
