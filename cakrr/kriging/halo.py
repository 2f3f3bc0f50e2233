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
    :meth:`begin` sends 8 t numbers per lent point and one message to each rank that borrows any; :meth:`bring_home`
    sends as much in the other direction. In the plane, a region of n points lends about 4 radius sqrt(n density).
    """

    def __init__(self, X: NDArray[np.float64], regions: Regions, radius: float, comm: Communicator) -> None:
        self.comm, self.own = comm, len(X)
        none = np.zeros(0, np.int64)
        self.lent = [
            none if rank == comm.rank else np.flatnonzero(regions.near(X, rank, radius)) for rank in range(comm.size)
        ]
        self.borrowed = np.zeros(comm.size, np.int64)

    def points(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows of `columns`, shape (own, c), followed by those that this rank borrows; collective, once per array."""
        counts = np.array([len(some) for some in self.lent], np.int64)
        arrived, self.borrowed = self.comm.alltoall(columns[np.concatenate(self.lent)], counts)
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
        here = {rank: np.ascontiguousarray(V[:, some]) for rank, some in enumerate(self.lent)}
        there = {rank: np.empty((len(V), count)) for rank, count in enumerate(self.borrowed.tolist())}
        return BorrowedEntries(self._exchanged(here, there), there, here)

    def bring_home(self, H: NDArray[np.float64], out: NDArray[np.float64]) -> None:
        """Add `H`, shape (t, size), the entries of borrowed points, to their owners' `out`, shape (t, own)."""
        starts = np.cumsum(self.borrowed) - self.borrowed
        ends = starts + self.borrowed
        here = {r: np.ascontiguousarray(H[:, lo:hi]) for r, (lo, hi) in enumerate(zip(starts, ends, strict=True))}
        there = {rank: np.empty((len(H), len(some))) for rank, some in enumerate(self.lent)}
        BorrowedEntries(self._exchanged(here, there), there, here).wait()
        for rank, some in enumerate(self.lent):
            out[:, some] += there[rank]

    def _exchanged(
        self, here: dict[int, NDArray[np.float64]], there: dict[int, NDArray[np.float64]]
    ) -> list[Exchange]:  # fmt: skip
        return [
            self.comm.exchange(here[rank], rank, there[rank], rank)
            for rank in range(self.comm.size)
            if here[rank].size or there[rank].size
        ]


class BorrowedEntries:
    """Entries of borrowed points that are on their way."""

    def __init__(
        self, exchanges: list[Exchange], there: dict[int, NDArray[np.float64]], here: dict[int, NDArray[np.float64]]
    ) -> None:
        self._exchanges, self._there, self._here = exchanges, there, here  # `here` must live until they have left

    def wait(self) -> NDArray[np.float64]:
        """Wait for all of them; shape (t, size)."""
        for one in self._exchanges:
            one.wait()
        return np.concatenate(list(self._there.values()), axis=1)
