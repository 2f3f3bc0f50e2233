"""The halo: copies of other ranks' rows that are near a rank's own, and the exchange of their entries in vectors.

New rows visit only the ranks that have rows near them, for kernels that vanish beyond a radius.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.comm.communicator import Exchange
from cacore.data.rows import AnyRows, dense, is_sparse
from cacore.data.stored import is_stored
from cacore.kernels import Kernel
from cacore.kernels.near import spatial_groups
from cacore.machine.threads import blocks
from cacore.near.boxes import Boxes
from cacore.near.expansion import GROUP, Piece, pays, reach

Number = TypeVar("Number", bound=np.generic)


class Halo:
    """The rows that this rank lends to others, and those that it borrows.

    :meth:`fetch` copies the rows themselves, once, and so learns how many rows each rank lends. Each product then moves
    their entries: from the owners by :meth:`begin`, or sums back to the owners by :meth:`begin_home`.

    Parameters
    ----------
    n_owned : int
        Number of this rank's rows.
    lent : list of ndarray of int64
        Own rows that each rank borrows.
    comm : Communicator

    Attributes
    ----------
    lent : list of ndarray of int64
    borrowed : ndarray of int64, shape (R,)
        Number of rows from each rank; they follow the own rows in rank order.
    size : int
        Number of rows borrowed.

    Notes
    -----
    :meth:`begin` sends t numbers per lent row and one message to each rank that borrows any; :meth:`begin_home` sends
    as much in the other direction. A row's entries follow each other in memory, so that messages leave from one array
    and arrive where they are needed. Only neighbours are looked at, so that the cost does not grow with the number of
    ranks.
    """

    def __init__(self, n_owned: int, lent: list[NDArray[np.int64]], comm: Communicator) -> None:
        self.comm, self.n_owned, self.lent = comm, n_owned, lent
        self._lent = np.concatenate(self.lent)
        self._out = _parts([len(numbers) for numbers in self.lent])  # ranks that borrow from this one
        self.borrowed = np.zeros(comm.size, np.int64)
        self._in: list[tuple[int, slice]] = []

    def fetch(self, rows: NDArray[Number]) -> NDArray[Number]:
        """The borrowed ones of all ranks' `rows`, shape (own, c) here: shape (size, c); collective.

        To be called before `begin`.
        """
        counts = np.array([len(numbers) for numbers in self.lent], np.int64)
        arrived, self.borrowed = self.comm.alltoall(rows[self._lent], counts)
        self._in = _parts(self.borrowed.tolist())
        return arrived

    @property
    def size(self) -> int:
        """Number of rows borrowed."""
        return int(self.borrowed.sum())

    @property
    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Numbers of rows lent to and borrowed from each rank, shape (R,) each."""
        return np.array([len(numbers) for numbers in self.lent], np.int64), self.borrowed

    @property
    def border(self) -> NDArray[np.bool_]:
        """True for own rows that some rank borrows."""
        border = np.zeros(self.n_owned, np.bool_)
        border[self._lent] = True
        return border

    def begin(self, V: NDArray[Number]) -> BorrowedEntries[Number]:
        """Begin to fetch the entries of borrowed rows in `V`, shape (t, own); those of own rows are there at once."""
        entries = np.empty((self.n_owned + self.size, len(V)), V.dtype)
        entries[: self.n_owned] = V.T
        leaving, arriving = entries[self._lent], entries[self.n_owned :]
        moving = self.comm.exchange_all(
            [(leaving[part], rank) for rank, part in self._out], [(arriving[part], rank) for rank, part in self._in]
        )
        return BorrowedEntries(entries.T, moving)

    def begin_home(self, entries: NDArray[np.float64]) -> ReturnedEntries:
        """Begin to send the `entries` of borrowed rows, C-contiguous, shape (size, t), to their owners.

        They must not be touched until :meth:`ReturnedEntries.add` has returned.
        """
        arriving = np.empty((len(self._lent), entries.shape[1]))
        moving = self.comm.exchange_all(
            [(entries[part], rank) for rank, part in self._in], [(arriving[part], rank) for rank, part in self._out]
        )
        return ReturnedEntries(self._lent, arriving, moving)


@dataclass(frozen=True)
class BorrowedEntries(Generic[Number]):
    """Entries of borrowed rows that are on their way.

    Attributes
    ----------
    every : ndarray, shape (t, own + size)
        The entries of own rows, and room for the others; its transpose is C-contiguous.
    """

    every: NDArray[Number]
    _moving: Exchange

    def move(self) -> None:
        """Let the messages make progress while this rank computes."""
        self._moving.move()

    def wait(self) -> NDArray[Number]:
        """Wait for all of them, and return `every`."""
        self._moving.wait()
        return self.every


@dataclass(frozen=True)
class ReturnedEntries:
    """Entries of borrowed rows on their way to the owners."""

    _lent: NDArray[np.int64]
    _arriving: NDArray[np.float64]
    _moving: Exchange

    def add(self, total: NDArray[np.float64]) -> None:
        """Wait for the entries of this rank's own rows, and add them to `total`, shape (own, t)."""
        self._moving.wait()
        for column, entries in zip(total.T, self._arriving.T, strict=True):
            np.add.at(column, self._lent, entries)


@dataclass
class Routed:
    """Rows of all ranks on other ranks, and the way back.

    Attributes
    ----------
    rows : ndarray, shape (m, c)
        The rows that have arrived here.
    """

    rows: NDArray[np.float64]
    comm: Communicator
    _received: NDArray[np.int64]
    _send: NDArray[np.int64]

    @classmethod
    def to(cls, rows: NDArray[np.float64], toward: NDArray[np.int64], comm: Communicator) -> Routed:
        """Send each of `rows`, shape (n_local, c), to its rank in `toward`; collective."""
        send = np.argsort(toward, kind="stable")
        counts = np.bincount(toward, minlength=comm.size).astype(np.int64)
        arrived, received = comm.alltoall(rows[send], counts)
        return cls(arrived, comm, received, send)

    def home(self, answers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Answers to the rows, shape (m, k), back on the ranks that sent them, shape (n_local, k); collective."""
        returned, _ = self.comm.alltoall(answers, self._received)
        out = np.empty_like(returned)
        out[self._send] = returned
        return out


def _parts(counts: list[int]) -> list[tuple[int, slice]]:
    """Ranks with a positive count, each with its part of an array of all ranks' entries."""
    ends = np.cumsum(counts).tolist()
    parts = enumerate(zip(counts, ends, strict=True))
    return [(rank, slice(end - count, end)) for rank, (count, end) in parts if count]


ROWS = 1 << 16  # rows of all ranks that visit at a time
_SHARE = 0.7  # share of the pairs of a row and a rank from which on every row visits every rank; as in expansion.py

Answer = Callable[[NDArray[np.floating]], NDArray[np.float64]]


def near_ranks(kernel: Kernel, pieces: Sequence[Piece], X: AnyRows, comm: Communicator) -> NDArray[np.bool_] | None:
    """Ranks that each of this rank's new rows has to visit; None if all of them, for most rows. Collective.

    Parameters
    ----------
    kernel : Kernel
    pieces : sequence of (A, coefficients)
        This rank's rows of an expansion, shape (m, d), and their coefficients, shape (m,) or (m, t).
    X : ndarray, CSR or rows in a file, shape (n, d)
        Only an ndarray has near ranks; other rows visit all.

    Returns
    -------
    ndarray of bool, shape (n, R), or None

    Notes
    -----
    The bound is that of :func:`cacore.near.expansion.expansion`, for the rows of all ranks. The ranks share the order
    of the rows. Allreduces of 2 d + 2 t + 2 numbers, and an Allgather of 2 d numbers per group of `GROUP` rows.
    """
    d = X.shape[1]
    rows = comm.allreduce(np.array([X.shape[0], sum(A.shape[0] for A, _ in pieces)]))
    plain = not any(is_sparse(A) or is_stored(A) for A in [X, *(A for A, _ in pieces)])
    if comm.size == 1 or not comm.all(plain) or not pays(kernel, int(rows[1]), int(rows[0]), d):
        return None
    Z = dense(X)
    squared = reach(kernel, pieces, Z, comm.allreduce)
    if not math.isfinite(squared):
        return None
    mine = [_boxes(dense(A), kernel) for A, _ in pieces]
    table = np.concatenate([np.zeros((0, 2 * d)), *(np.concatenate([box.lower, box.upper]).T for box in mine)])
    corners, counts = comm.allgather_parts(table)
    lower, upper = (np.ascontiguousarray(side.T) for side in np.split(corners, 2, axis=1))
    owner = np.repeat(np.arange(comm.size), counts)
    order, ends = spatial_groups(Z, GROUP)
    runs = Boxes.of_rows(Z[order], ends, kernel.separable).near(Boxes(lower, upper, kernel.separable), squared)
    near = np.zeros((len(ends) - 1, comm.size), np.bool_)
    for group, span in enumerate(zip(runs.starts[:-1].tolist(), runs.starts[1:].tolist(), strict=True)):
        for first, last in zip(runs.first[slice(*span)].tolist(), runs.last[slice(*span)].tolist(), strict=True):
            near[group, owner[first:last]] = True
    visited = np.empty((X.shape[0], comm.size), np.bool_)
    visited[order] = np.repeat(near, np.diff(ends), axis=0)
    visits = int(comm.allreduce(np.array([np.count_nonzero(visited)]))[0])
    return visited if visits < _SHARE * int(rows[0]) * comm.size else None


def visit_near(
    X: NDArray[np.floating], near: NDArray[np.bool_], answer: Answer, comm: Communicator, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """Sum of the answers of the ranks in `near`, from :func:`near_ranks`, for each row, (n_local, *shape); collective.

    Rows that this rank answers itself are not sent. Each other visit sends d numbers there and the answer back.
    """
    out = np.zeros((X.shape[0], *shape))
    longest = int(comm.allreduce(np.array([X.shape[0]]), "max")[0])
    for lo, hi in blocks(longest, max(1, ROWS // comm.size)):
        rank, row = np.nonzero(near[lo:hi].T)
        counts = np.bincount(rank, minlength=comm.size).astype(np.int64)
        rows, arrived = comm.alltoall(X[lo:hi][row], counts)
        values = np.ascontiguousarray(answer(rows)) if len(rows) else np.zeros((0, *shape))
        home, _ = comm.alltoall(values, arrived)
        for first, last in pairwise(np.append(0, np.cumsum(counts)).tolist()):
            out[lo + row[first:last]] += home[first:last]
    return out


def _boxes(A: NDArray[np.floating], kernel: Kernel) -> Boxes:
    """Boxes of groups of neighbouring rows."""
    order, ends = spatial_groups(A, GROUP)
    return Boxes.of_rows(A[order], ends, kernel.separable)
