"""Base of the solvers of one dual on many ranks: facts about all rows that all ranks share, and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numba
import numpy as np

from cacore.comm import Communicator
from cacore.data.rows import Rows, gather_rows, largest_size, nbytes
from cacore.io.checkpoint import Kept, Unfinished
from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.kernels.near import squared_cutoff
from cacore.kernels.precision import Accuracy, Extent, sampled, shift_of
from cacore.limits import Limits
from cacore.machine.clock import working_time
from cacore.svm.dual import Dual
from cacore.svm.problem import precision
from casvm.solver.active_set import SMO
from casvm.solver.kernel_rows import KernelRows
from casvm.solver.near import VANISHED
from casvm.solver.near_columns import NearColumns, near_round_size
from casvm.solver.near_rows import NearRows
from casvm.solver.pair import Index, Vector

_SAMPLE = 1000
_LEAST_ROWS = 64  # per rank, for shares
_FEW = 2048  # rows that every rank has room for


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
        most = comm.allreduce(np.array([*sizes, *ends, *extent.norms]), "max")
        largest, size, value, top, negative = most[:5].tolist()
        dtype: np.dtype[np.floating] = np.dtype(precision((n, X.shape[1]), value, largest, limits.tol))
        accuracy = Accuracy.of_solution(largest, limits.tol, 0.5 * (top + negative) or 1.0)
        layout = Layout.of(sample, kernel, dtype, size, accuracy, extent.over_ranks(most[5:]))
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

    def round_size(self, most: int) -> int:
        """Rows per round of near rows, at most `most`."""
        return near_round_size(most, self.row_bytes, self.cache_bytes)


class OnRanks(SMO):
    """SMO on all ranks, with checkpoints."""

    unfinished: Unfinished | None = None
    comm: Communicator
    gram: KernelRows | NearRows

    def _due(self) -> bool:
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

    def _begun(self) -> float:
        """The objective at the start. Collective."""
        active, dual = self.active, self.active.dual
        beta = active.beta
        terms = 0.5 * float((active.v - dual.linear) @ beta) - dual.epsilon * float(np.abs(beta).sum())
        return float(self.comm.allreduce(np.array([terms]))[0])
