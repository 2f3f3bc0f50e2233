"""The halo: copies of other ranks' points that are near a rank's own, and the exchange of their entries in vectors."""

from __future__ import annotations

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
    :meth:`begin` sends t numbers per lent point and one message to each rank that borrows any; :meth:`bring_home` sends
    as much in the other direction. Only neighbours are looked at, so that the cost does not grow with the number of
    ranks. In the plane, a region of n points lends about 4 radius sqrt(n density).
    """

    def __init__(self, X: NDArray[np.float64], regions: Regions, radius: float, comm: Communicator) -> None:
        self.comm, self.own = comm, len(X)
        none = np.zeros(0, np.int64)
        self.lent = [
            none if rank == comm.rank else np.flatnonzero(regions.near(X, rank, radius)) for rank in range(comm.size)
        ]
        self._out = [rank for rank, some in enumerate(self.lent) if len(some)]  # ranks that borrow from this one
        self.borrowed = np.zeros(comm.size, np.int64)
        self._in: dict[int, int] = {}

    def points(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows of `columns`, shape (own, c), followed by those that this rank borrows; collective, once per array."""
        counts = np.array([len(some) for some in self.lent], np.int64)
        arrived, self.borrowed = self.comm.alltoall(columns[np.concatenate(self.lent)], counts)
        self._in = {rank: count for rank, count in enumerate(self.borrowed.tolist()) if count}
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
        border[np.concatenate(self.lent)] = True
        return border

    def begin(self, V: NDArray[np.float64]) -> BorrowedEntries:
        """Begin to fetch the entries of borrowed points in `V`, shape (t, own)."""
        here = {rank: np.ascontiguousarray(V[:, self.lent[rank]]) for rank in self._out}
        there = {rank: np.empty((len(V), count)) for rank, count in self._in.items()}
        return BorrowedEntries(self._exchanged(here, there), len(V), there, here)

    def bring_home(self, H: NDArray[np.float64], out: NDArray[np.float64]) -> None:
        """Add `H`, shape (t, size), the entries of borrowed points, to their owners' `out`, shape (t, own)."""
        here, lo = {}, 0
        for rank, count in self._in.items():
            here[rank] = np.ascontiguousarray(H[:, lo : lo + count])
            lo += count
        there = {rank: np.empty((len(H), len(self.lent[rank]))) for rank in self._out}
        BorrowedEntries(self._exchanged(here, there), len(H), there, here).wait()
        for rank, entries in there.items():
            out[:, self.lent[rank]] += entries

    def _exchanged(
        self, here: dict[int, NDArray[np.float64]], there: dict[int, NDArray[np.float64]]
    ) -> list[Exchange]:  # fmt: skip
        none = np.zeros((1, 0))
        return [
            self.comm.exchange(here.get(rank, none), rank, there.get(rank, none), rank)
            for rank in sorted({*here, *there})
        ]


class BorrowedEntries:
    """Entries of borrowed points that are on their way."""

    def __init__(
        self, exchanges: list[Exchange], t: int, there: dict[int, NDArray[np.float64]],
        here: dict[int, NDArray[np.float64]],
    ) -> None:  # fmt: skip
        self._exchanges, self._t, self._there = exchanges, t, there
        self._here = here  # must live until they have left

    def wait(self) -> NDArray[np.float64]:
        """Wait for all of them; shape (t, size)."""
        for one in self._exchanges:
            one.wait()
        return np.concatenate([np.zeros((self._t, 0)), *self._there.values()], axis=1)
