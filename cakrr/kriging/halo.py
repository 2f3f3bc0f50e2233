"""The halo: copies of other ranks' points that are near a rank's own, and the exchange of their entries in vectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.comm.mpi import Exchange
from cakrr.kriging.regions import Regions


class Halo:
    """The points that this rank lends to others, and those that it borrows; construction is collective.

    Parameters
    ----------
    X : ndarray, shape (own, d)
        This rank's points.
    regions : Regions
    radius : float
        Points closer to another rank's region than this are lent to it.
    comm : Communicator

    Attributes
    ----------
    lent : list of ndarray of int64
        Own points that each rank borrows.
    borrowed : ndarray of int64, shape (R,)
        Number of points from each rank; they follow the own points in rank order.
    size : int
        Number of points borrowed.

    Notes
    -----
    :meth:`begin` sends t numbers per lent point and one message to each rank that borrows any; :meth:`begin_home` sends
    as much in the other direction. A point's entries follow each other in memory, so that messages leave from one array
    and arrive where they are needed. Only neighbours are looked at, so that the cost does not grow with the number of
    ranks. In the plane, a region of n points lends about 4 radius sqrt(n density).
    """

    def __init__(self, X: NDArray[np.float64], regions: Regions, radius: float, comm: Communicator) -> None:
        self.comm, self.own = comm, len(X)
        none = np.zeros(0, np.int64)
        self.lent = [
            none if rank == comm.rank else np.flatnonzero(regions.near(X, rank, radius)) for rank in range(comm.size)
        ]
        self._lent = np.concatenate(self.lent)
        self._out = _parts([len(some) for some in self.lent])  # ranks that borrow from this one
        self.borrowed = np.zeros(comm.size, np.int64)
        self._in: list[tuple[int, slice]] = []

    def points(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows of `columns`, shape (own, c), followed by those that this rank borrows; collective, once per array."""
        counts = np.array([len(some) for some in self.lent], np.int64)
        arrived, self.borrowed = self.comm.alltoall(columns[self._lent], counts)
        self._in = _parts(self.borrowed.tolist())
        return np.concatenate([columns, arrived])

    @property
    def size(self) -> int:
        """Number of points borrowed."""
        return int(self.borrowed.sum())

    @property
    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Numbers of points lent to and borrowed from each rank, shape (R,) each."""
        return np.array([len(some) for some in self.lent], np.int64), self.borrowed

    @property
    def border(self) -> NDArray[np.bool_]:
        """True for own points that some rank borrows: only these have neighbours among the points borrowed."""
        border = np.zeros(self.own, np.bool_)
        border[self._lent] = True
        return border

    def begin(self, V: NDArray[np.float64]) -> BorrowedEntries:
        """Begin to fetch the entries of borrowed points in `V`, shape (t, own)."""
        every = np.empty((self.own + self.size, len(V)))
        every[: self.own] = V.T
        leaving, arriving = every[self._lent], every[self.own :]
        moving = self.comm.exchange_all(
            [(leaving[part], rank) for rank, part in self._out], [(arriving[part], rank) for rank, part in self._in]
        )
        return BorrowedEntries(every.T, moving)

    def begin_home(self, total: NDArray[np.float64]) -> ReturnedEntries:
        """Begin to send the rows of borrowed points in `total`, C-contiguous, shape (own + size, t), to their owners.

        They must not be touched until :meth:`ReturnedEntries.add` has returned.
        """
        leaving, arriving = total[self.own :], np.empty((len(self._lent), total.shape[1]))
        moving = self.comm.exchange_all(
            [(leaving[part], rank) for rank, part in self._in], [(arriving[part], rank) for rank, part in self._out]
        )
        return ReturnedEntries(total, self._lent, arriving, moving)


@dataclass(frozen=True)
class BorrowedEntries:
    """Entries of borrowed points that are on their way.

    Attributes
    ----------
    every : ndarray, shape (t, own + size)
        The entries of own points, and room for the others; its transpose is C-contiguous.
    """

    every: NDArray[np.float64]
    _moving: Exchange

    def wait(self) -> NDArray[np.float64]:
        """Wait for all of them, and return `every`."""
        self._moving.wait()
        return self.every


@dataclass(frozen=True)
class ReturnedEntries:
    """Entries of borrowed points on their way to the owners."""

    _total: NDArray[np.float64]
    _lent: NDArray[np.int64]
    _arriving: NDArray[np.float64]
    _moving: Exchange

    def add(self) -> None:
        """Wait for the entries of this rank's own points, and add them to the first rows of `total`."""
        self._moving.wait()
        for column, entries in zip(self._total.T, self._arriving.T, strict=True):
            np.add.at(column, self._lent, entries)


def _parts(counts: list[int]) -> list[tuple[int, slice]]:
    """Ranks with a positive count, each with its part of an array of all ranks' entries."""
    ends = np.cumsum(counts).tolist()
    return [(rank, slice(end - count, end)) for rank, (count, end) in enumerate(zip(counts, ends, strict=True)) if count]
