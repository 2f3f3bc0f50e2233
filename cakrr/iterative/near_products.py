"""Products with K cut to near rows, over ranks: each rank borrows the rows that its tiles need, once.

A product then exchanges the entries of these rows only: those of the vectors before, those of the result after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import dense
from cacore.kernels import Kernel, Points
from cacore.near.halo import Halo
from cakrr.iterative.islands import Tiles
from cakrr.iterative.preconditioner import SpreadRows
from cakrr.iterative.products import Keep, KernelProducts, Strip, strips_with


@dataclass(frozen=True)
class Borrowing:
    """Rows that ranks borrow from each other for the tiles that they compute.

    Attributes
    ----------
    lent : list of ndarray of int64
        Rows of this rank that each rank borrows.
    borrowed : list of ndarray of int64
        Rows that this rank borrows, by their places on each rank.
    """

    lent: list[NDArray[np.int64]]
    borrowed: list[NDArray[np.int64]]

    @classmethod
    def of(cls, counts: NDArray[np.int64], tiles: Tiles, rank: int) -> Borrowing:
        """Every rank knows all boxes, so nothing is sent."""
        R = len(counts)
        none = np.zeros(0, np.int64)
        lent, borrowed = [none] * R, [none] * R
        for step in range(1, R // 2 + 1):
            after, before = (rank + step) % R, (rank - step) % R
            borrowed[after] = _columns(strips_with(counts, rank, step, tiles))
            lent[before] = _columns(strips_with(counts, before, step, tiles))
        return cls(lent, borrowed)

    @property
    def size(self) -> int:
        """Number of rows borrowed."""
        return sum(map(len, self.borrowed))


def _columns(strips: list[Strip]) -> NDArray[np.int64]:
    """The columns of all tiles, each once."""
    ends = sorted({tile for strip in strips for tile in strip.tiles})
    return np.unique(np.concatenate([np.zeros(0, np.int64), *(np.arange(a, b) for a, b in ends)]))


class NearProducts(KernelProducts):
    """:class:`KernelProducts` of tiles, without rows that no tile has; construction is collective.

    Parameters
    ----------
    spread, kernel, keep, tiles
        As for :class:`KernelProducts`.
    borrowing : Borrowing

    Attributes
    ----------
    borrowed : int
        Number of rows borrowed by all ranks.

    Notes
    -----
    Per product and right side, the ranks send one number for each row borrowed, in the precision of the product, and
    one home in double precision: two messages for each pair of ranks of which one borrows from the other.
    """

    def __init__(self, spread: SpreadRows, kernel: Kernel, keep: Keep, tiles: Tiles, borrowing: Borrowing) -> None:
        self.borrowing, self.borrowed = borrowing, 0
        super().__init__(spread, kernel, keep, False, tiles)

    @property
    def rows(self) -> str:
        """See :attr:`KernelProducts.rows`."""
        return "halo"

    def _meet(self) -> None:
        spread, comm = self.spread, self.spread.comm
        self._halo = Halo(spread.X.shape[0], self.borrowing.lent, comm)
        self._gathered = self._halo.fetch(np.ascontiguousarray(dense(spread.X)))
        with comm.uncounted():
            self.borrowed = int(comm.allreduce(np.array([self._halo.size]))[0])
        starts = np.cumsum(self._halo.borrowed) - self._halo.borrowed
        away = [
            replace(strip, rank=comm.size, tiles=[self._placed(strip, tile, starts) for tile in strip.tiles])
            for strips in self.steps[1:] for strip in strips
        ]  # fmt: skip
        self.steps = [self.steps[0], away]

    def _placed(self, strip: Strip, tile: tuple[int, int], starts: NDArray[np.int64]) -> tuple[int, int]:
        """Place of a tile's columns, which follow each other on their rank, among the rows borrowed."""
        first = int(starts[strip.rank] + np.searchsorted(self.borrowing.borrowed[strip.rank], tile[0]))
        return first, first + tile[1] - tile[0]

    def _visits(
        self, mine: NDArray[np.floating], dtype: np.dtype[np.floating]
    ) -> Iterator[tuple[list[Strip], Points, NDArray[np.floating], Callable[[], None]]]:
        own_strips, away = self.steps
        arriving = self._halo.begin(mine)
        yield own_strips, self.spread.points(dtype), mine, arriving.move
        theirs = arriving.wait()[:, self._halo.n_owned :]
        if away:
            points = self._points_of(self.spread.comm.size, 0, self._halo.size, dtype)
            yield away, points, np.ascontiguousarray(theirs), arriving.move

    def _bring_home(self, back: dict[int, NDArray[np.float64]], out: NDArray[np.float64]) -> None:
        entries = back.get(self.spread.comm.size, np.zeros((len(out), self._halo.size)))
        self._halo.begin_home(np.ascontiguousarray(entries.T)).add(out.T)

    def predicted_bytes(self, t: int, single: bool) -> int:
        """See :meth:`KernelProducts.predicted_bytes`."""
        return t * self.borrowed * (8 + (4 if single and self.single else 8))

    def setup_bytes(self) -> int:
        """Bytes that all ranks together send to borrow the rows."""
        R = self.spread.comm.size
        return int(self.borrowed * self.spread.X.shape[1] * self.spread.X.dtype.itemsize) + 8 * R * (R - 1) + 8 * R


def borrows(borrowing: Borrowing, n_owned: int, gathered: bool, comm: Communicator) -> bool:
    """True if the rows borrowed fit into the memory that is set aside for other ranks' rows; collective.

    That is for all rows if they are to be gathered, and otherwise for twice this rank's rows, as in a ring.
    """
    return gathered or comm.all(borrowing.size <= 2 * n_owned)
