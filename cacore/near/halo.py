"""The halo: copies of other ranks' rows that are near a rank's own, and the exchange of their entries in vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.comm.mpi import Exchange

Number = TypeVar("Number", bound=np.generic)


class Halo:
    """The rows that this rank lends to others, and those that it borrows.

    Parameters
    ----------
    own : int
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

    def __init__(self, own: int, lent: list[NDArray[np.int64]], comm: Communicator) -> None:
        self.comm, self.own, self.lent = comm, own, lent
        self._lent = np.concatenate(self.lent)
        self._out = _parts([len(some) for some in self.lent])  # ranks that borrow from this one
        self.borrowed = np.zeros(comm.size, np.int64)
        self._in: list[tuple[int, slice]] = []

    def fetch(self, rows: NDArray[Number]) -> NDArray[Number]:
        """The borrowed ones of all ranks' `rows`, shape (own, c) here: shape (size, c); collective, first of all."""
        counts = np.array([len(some) for some in self.lent], np.int64)
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
        return np.array([len(some) for some in self.lent], np.int64), self.borrowed

    @property
    def border(self) -> NDArray[np.bool_]:
        """True for own rows that some rank borrows."""
        border = np.zeros(self.own, np.bool_)
        border[self._lent] = True
        return border

    def begin(self, V: NDArray[Number]) -> BorrowedEntries[Number]:
        """Begin to fetch the entries of borrowed rows in `V`, shape (t, own)."""
        every = np.empty((self.own + self.size, len(V)), V.dtype)
        every[: self.own] = V.T
        leaving, arriving = every[self._lent], every[self.own :]
        moving = self.comm.exchange_all(
            [(leaving[part], rank) for rank, part in self._out], [(arriving[part], rank) for rank, part in self._in]
        )
        return BorrowedEntries(every.T, moving)

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
        found, _ = self.comm.alltoall(answers, self._received)
        out = np.empty_like(found)
        out[self._send] = found
        return out


def _parts(counts: list[int]) -> list[tuple[int, slice]]:
    """Ranks with a positive count, each with its part of an array of all ranks' entries."""
    ends = np.cumsum(counts).tolist()
    parts = enumerate(zip(counts, ends, strict=True))
    return [(rank, slice(end - count, end)) for rank, (count, end) in parts if count]
