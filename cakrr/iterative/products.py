"""Products of the kernel matrix of all ranks' rows with a few vectors; no kernel value is computed twice.

Values are stored between products as far as they fit, first in memory and then in a file (:class:`Keep`).

K is symmetric. Rank r computes the blocks between its rows and those of the ranks r, r + 1, ..., r + R/2 (modulo R)
once each, and multiplies by both the block and its transpose. If R is even, two ranks at distance R/2 compute half of
their common block each. Results for another rank's rows are sent to it: n/2 numbers per rank and right-hand side.

With K cut to near rows (:class:`NearProducts`), each rank borrows the rows that its tiles need, once. A product then
exchanges the entries of these rows only: those of the vectors before, those of the result after.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.comm.communicator import Exchange
from cacore.data.rows import Rows, csr, dense, gather_rows, is_sparse
from cacore.kernels import Kernel, Points
from cacore.linalg.thin import multiply_both
from cacore.machine.memory import Scratch
from cacore.machine.threads import blocks, in_order
from cacore.near.halo import Halo
from cakrr.iterative.islands import Tiles
from cakrr.iterative.preconditioner import SpreadRows

Tile = tuple[int, tuple[int, int]]


class Keep:
    """Store of kernel tiles in single precision; tiles that do not fit are computed again in every product.

    Parameters
    ----------
    limit : int
        Bytes of memory for the tiles.
    scratch : Scratch or None
        File for the tiles that do not fit into memory.
    """

    def __init__(self, limit: int, scratch: Scratch | None = None) -> None:
        self.limit, self.scratch = limit, scratch
        self._where: NDArray[np.int8] = np.zeros(0, np.int8)
        self._tiles: dict[Tile, NDArray[np.floating]] = {}
        self._places: dict[Tile, int] = {}
        self._here = threading.local()

    def plan(self, strips: list[Strip]) -> None:
        """Choose the strips to keep in memory: as many of the first ones as fit."""
        ends = np.cumsum([4 * strip.size for strip in strips])
        self._where = np.where(ends <= self.limit, 1, 2 if self.scratch is not None else 0).astype(np.int8)

    @property
    def share(self) -> float:
        """Share of the strips that are kept in memory."""
        return float((self._where == 1).mean()) if self._where.size else 0.0

    def forget(self) -> None:
        """Free the memory."""
        self._tiles.clear()
        self._places.clear()

    def tile(
        self, strip: Strip, columns: tuple[int, int], dtype: np.dtype[np.floating],
        compute: Callable[[NDArray[np.floating]], object],
    ) -> NDArray[np.floating]:  # fmt: skip
        """Values of a strip in some columns, valid until this thread's next call; thread-safe."""
        shape = strip.rows[1] - strip.rows[0], columns[1] - columns[0]
        where = self._where[strip.number] if dtype == np.float32 else 0
        key = strip.number, columns
        if where == 1:
            values = self._tiles.get(key)
            if values is None:
                values = np.empty(shape, dtype)
                compute(values)
                self._tiles[key] = values
            return values
        out = self._buffer(shape, dtype)
        if where == 2 and self.scratch is not None:
            if key in self._places:
                self.scratch.fetch(self._places[key], out)
                return out
            compute(out)
            self._places[key] = self.scratch.write(out)
            return out
        compute(out)
        return out

    def _buffer(self, shape: tuple[int, int], dtype: np.dtype[np.floating]) -> NDArray[np.floating]:
        """A buffer of this thread, reused by its next call."""
        name, size = dtype.name, shape[0] * shape[1]
        buffer = vars(self._here).get(name)
        if buffer is None or buffer.size < size:
            buffer = np.empty(size, dtype)
            setattr(self._here, name, buffer)
        return np.asarray(buffer[:size].reshape(shape))


_ROWS, _COLUMNS = 256, 1024  # shape of a tile, which stays in a core's cache


@dataclass(frozen=True)
class Strip:
    """A task for one thread: the kernel values between some of this rank's rows and some rows of one rank.

    Attributes
    ----------
    number : int
        Index among this rank's strips.
    rank : int
        Rank whose rows are the columns.
    rows : tuple of int
        First row, and one past the last.
    symmetric : bool
        True if the strip begins with a block on the diagonal of K.
    tiles : list of tuple of int
        Columns of each tile, without that block.
    """

    number: int
    rank: int
    rows: tuple[int, int]
    symmetric: bool
    tiles: list[tuple[int, int]]

    @property
    def width(self) -> int:
        """Number of columns in all tiles, without the block on the diagonal."""
        return sum(end - first for first, end in self.tiles)

    def placed(self) -> Iterator[tuple[tuple[int, int], slice]]:
        """The columns of each tile, and their places among those of all tiles."""
        at = 0
        for a, b in self.tiles:
            yield (a, b), slice(at, at + b - a)
            at += b - a

    @property
    def size(self) -> int:
        """Number of kernel values."""
        height = self.rows[1] - self.rows[0]
        return height * (self.width + (height if self.symmetric else 0))


def strips(counts: NDArray[np.int64], rank: int, tiles: Tiles | None = None) -> list[list[Strip]]:
    """Strips that `rank` computes: one list per rank that owns the columns, beginning with itself.

    With `tiles`, a strip is a box of rows, and has the columns near it.
    """
    R, number = len(counts), 0
    by_rank: list[list[Strip]] = []
    for step in range(R // 2 + 1):
        by_rank.append(strips_with(counts, rank, step, tiles, number))
        number += len(by_rank[-1])
    return by_rank


def strips_with(
    counts: NDArray[np.int64], rank: int, step: int, tiles: Tiles | None = None, number: int = 0
) -> list[Strip]:  # fmt: skip
    """Strips that `rank` computes with the rank that is `step` ranks further, the first of which has this `number`."""
    R, own_rows = len(counts), int(counts[rank])
    partner = (rank + step) % R
    rows, columns = (0, own_rows), (0, int(counts[partner]))
    if step and 2 * step == R:  # these two ranks share their block: it is halved along the lower rank's rows
        if rank < partner:
            rows = (0, own_rows // 2)
        else:
            columns = (int(counts[partner]) // 2, int(counts[partner]))
    if tiles is None:
        heights = blocks(own_rows, _ROWS)
        near = [[(0, int(counts[partner]))]] * len(heights)
    else:
        heights, near = list(pairwise(tiles.ends[rank].tolist())), tiles.near(rank, partner)
    cut: list[Strip] = []
    for (lo, end), ranges in zip(heights, near, strict=True):
        hi = min(end, rows[1])
        if lo >= hi:
            break
        beside = _cut_up(ranges, columns[0] if step else hi, columns[1])
        cut.append(Strip(number + len(cut), partner, (lo, hi), not step, beside))
    return cut


def _cut_up(ranges: list[tuple[int, int]], first: int, end: int) -> list[tuple[int, int]]:
    """The parts of ascending ranges of columns from `first` to `end`, in tiles of at most `_COLUMNS` columns."""
    inside = [(max(a, first), min(b, end)) for a, b in ranges]
    return [(a + lo, a + hi) for a, b in inside if a < b for lo, hi in blocks(b - a, _COLUMNS)]


class KernelProducts:
    """Multiplication by S K S for the rows of all ranks; construction is collective.

    Parameters
    ----------
    spread : SpreadRows
    kernel : Kernel
    keep : Keep
        Store of single-precision kernel values between products.
    ring : bool
        True to pass the ranks' rows around a ring in every product, overlapped with the computation; False to gather
        all rows on every rank once.
    tiles : Tiles or None
        The tiles of near rows, if K is cut.

    Attributes
    ----------
    calls : dict
        Number of products so far, in single and in double precision.
    sent : int
        Bytes sent by these products, summed over all ranks, by :meth:`predicted_bytes`.

    Notes
    -----
    All ranks together compute n^2/2 kernel values per product, except those that `keep` has stored, and spend 4 flops
    per value and right-hand side. Per right-hand side, each rank sends its n_local numbers to all ranks, and one number
    to the owner of each row of another rank that its strips contain. With `ring`, a rank's rows and its n_local numbers
    are passed from rank to rank, R/2 times, instead of being gathered. :meth:`predicted_bytes` returns the sum.
    """

    def __init__(
        self, spread: SpreadRows, kernel: Kernel, keep: Keep, ring: bool = False, tiles: Tiles | None = None
    ) -> None:
        self.spread, self.kernel, self.keep = spread, kernel, keep
        self.ring = ring and spread.comm.size > 1
        self.single = spread.holds_single(kernel)
        self.steps = strips(spread.counts, spread.comm.rank, tiles)
        self._gathered: Rows | None = None
        self._others: dict[int, Points] = {}
        self._nonzeros = np.zeros(spread.comm.size, np.int64)
        self.calls, self.sent = {"single": 0, "double": 0}, 0
        self._meet()
        keep.plan([strip for strips_of_rank in self.steps for strip in strips_of_rank])

    @property
    def rows(self) -> str:
        """How rows of other ranks are met, for the report."""
        return "ring" if self.ring else "gathered"

    @property
    def _passed(self) -> Rows:
        """This rank's rows as they travel in a ring: shifted, which CSR rows may not survive."""
        return self.spread.points(np.float32 if self.single else np.float64).X

    def _meet(self) -> None:
        """Make ready for the rows of other ranks; collective."""
        spread, comm = self.spread, self.spread.comm
        if comm.size > 1 and not self.ring:
            self._gathered = gather_rows(spread.X, comm, spread.counts)
        elif self.ring and is_sparse(self._passed):
            mine = np.array([self._passed.nnz], np.int64)
            self._nonzeros = comm.allgather(mine, np.ones(comm.size, np.int64))

    def __call__(self, V: NDArray[np.float64], single: bool) -> NDArray[np.float64]:
        """``V S K S`` for `V`, shape (t, n_local); collective.

        Parameters
        ----------
        V : ndarray of float64, shape (t, n_local)
        single : bool
            True to compute kernel values and products in single precision, and sums over tiles in double; False to
            compute everything in double precision.
        """
        single = single and self.single
        dtype: np.dtype[np.floating] = np.dtype(np.float32 if single else np.float64)
        self.calls["single" if single else "double"] += 1
        self.sent += self.predicted_bytes(len(V), single)
        V = self.spread.scaled(V)
        out = np.zeros_like(V)
        mine = np.ascontiguousarray(V, dtype)
        back: dict[int, NDArray[np.float64]] = {}
        for strips_of_rank, points, theirs, move in self._visits(mine, dtype):
            self._add(strips_of_rank, points, mine, theirs, out, back, dtype, move)
        self._bring_home(back, out)
        return self.spread.scaled(out)

    def _visits(
        self, mine: NDArray[np.floating], dtype: np.dtype[np.floating]
    ) -> Iterator[tuple[list[Strip], Points, NDArray[np.floating], Callable[[], None]]]:
        """Yield for each rank of columns: its strips, rows and vectors, and a function that progresses messages."""
        own_points, comm = self.spread.points(dtype), self.spread.comm
        if comm.size == 1:
            yield self.steps[0], own_points, mine, _nothing
            return
        if self.ring:
            yield from self._passing(own_points, mine, dtype)
            return
        all_vectors = comm.allgather(np.ascontiguousarray(mine.T), self.spread.counts)
        starts = np.cumsum(self.spread.counts) - self.spread.counts
        for strips_of_rank in self.steps:
            if strips_of_rank:
                lo = int(starts[strips_of_rank[0].rank])
                hi = lo + int(self.spread.counts[strips_of_rank[0].rank])
                points = (
                    own_points
                    if strips_of_rank[0].rank == comm.rank
                    else self._points_of(strips_of_rank[0].rank, lo, hi, dtype)
                )
                yield strips_of_rank, points, np.ascontiguousarray(all_vectors[lo:hi].T), _nothing

    def _points_of(self, rank: int, lo: int, hi: int, dtype: np.dtype[np.floating]) -> Points:
        """Rows of another rank: kept in single precision, prepared anew for every product in double."""
        assert self._gathered is not None
        if dtype != np.float32:
            return self.spread.ready(self._gathered[lo:hi], dtype)
        if rank not in self._others:
            self._others[rank] = self.spread.ready(self._gathered[lo:hi], dtype)
        return self._others[rank]

    def _passing(
        self, own_points: Points, mine: NDArray[np.floating], dtype: np.dtype[np.floating]
    ) -> Iterator[tuple[list[Strip], Points, NDArray[np.floating], Callable[[], None]]]:
        """Like :meth:`_visits`, in a ring: while this rank works with one rank's rows, the next rank's arrive."""
        comm, R = self.spread.comm, self.spread.comm.size
        before, after = (comm.rank - 1) % R, (comm.rank + 1) % R
        points, vectors = own_points, mine
        for step, strips_of_rank in enumerate(self.steps):
            has_next = step + 1 < len(self.steps)
            if has_next:
                leaving = [*_arrays(points), np.ascontiguousarray(vectors)]
                coming = self._room((comm.rank + step + 1) % R, leaving)
                moving = [comm.exchange(a, before, b, after) for a, b in zip(leaving, coming, strict=True)]

                def move(moving: list[Exchange] = moving) -> None:
                    for message in moving:
                        message.move()

            yield strips_of_rank, points, vectors, move if has_next else _nothing
            if has_next:
                for message in moving:
                    message.wait()
                points, vectors = _as_points(coming[:-1], own_points), coming[-1]

    def _room(self, rank: int, like: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """Allocate arrays for the rows and vectors of `rank`."""
        m, nnz = int(self.spread.counts[rank]), int(self._nonzeros[rank])
        *rows, vectors = like
        shapes = [(m, rows[0].shape[1])] if len(rows) == 1 else [(nnz,), (nnz,), (m + 1,)]
        arrays = [np.empty(shape, array.dtype) for shape, array in zip(shapes, rows, strict=True)]
        return [*arrays, np.empty((len(vectors), m), vectors.dtype)]

    def _add(
        self, strips_of_rank: list[Strip], points: Points, mine: NDArray[np.floating], theirs: NDArray[np.floating],
        out: NDArray[np.float64], back: dict[int, NDArray[np.float64]], dtype: np.dtype[np.floating],
        move: Callable[[], None],
    ) -> None:  # fmt: skip
        """Multiply by strips and their transposes; add to this rank's results and to those of the other rank."""
        if not strips_of_rank:
            return
        own_points, t = self.spread.points(dtype), len(mine)

        def work(strip: Strip) -> tuple[Strip, NDArray[np.float64], NDArray[np.float64]]:
            lo, hi = strip.rows
            for_own, for_rank = np.zeros((t, hi - lo)), np.zeros((t, strip.width))
            left_points, U = own_points[lo:hi], np.ascontiguousarray(mine[:, lo:hi])
            if strip.symmetric:
                T = self.keep.tile(strip, (lo, hi), dtype, partial(self._diagonal, left_points))
                for_own += U @ T
            for (a, b), places in strip.placed():
                T = self.keep.tile(strip, (a, b), dtype, partial(self.kernel.block, left_points, points[a:b]))
                V = np.ascontiguousarray(theirs[:, a:b])
                multiply_both(T, V, U, for_own, for_rank[:, places])
            return strip, for_own, for_rank

        rank, total = strips_of_rank[0].rank, out
        if rank != self.spread.comm.rank:
            total = back.setdefault(rank, np.zeros((t, points.X.shape[0])))
        with in_order(work, [(strip,) for strip in strips_of_rank]) as products:
            for strip, for_own, for_rank in products:
                out[:, slice(*strip.rows)] += for_own
                for (a, b), places in strip.placed():
                    total[:, a:b] += for_rank[:, places]
                move()

    def _diagonal(self, points: Points, T: NDArray[np.floating]) -> None:
        """Write the kernel values between `points` and themselves to `T`; on the diagonal the distance is exactly 0."""
        self.kernel.block(points, points, T)
        if self.kernel.of_distance:
            T[np.arange(len(T)), np.arange(len(T))] = self.kernel.of_squares(points.squares)

    def _bring_home(self, back: dict[int, NDArray[np.float64]], out: NDArray[np.float64]) -> None:
        """Send results to the ranks that own the rows, and add up those that arrive for this rank's rows."""
        comm = self.spread.comm
        if comm.size == 1:
            return
        counts = np.zeros(comm.size, np.int64)
        pieces = [np.zeros((0, len(out)))]
        for rank in sorted(back):
            counts[rank] = back[rank].shape[1]
            pieces.append(back[rank].T)
        arrived, _ = comm.alltoall(np.concatenate(pieces), counts)
        own_rows = out.shape[1]
        for lo in range(0, len(arrived), max(1, own_rows)):  # from each rank that computed with this rank's rows
            out += arrived[lo : lo + own_rows].T

    def predicted_bytes(self, t: int, single: bool) -> int:
        """Bytes that all ranks together send in one product with t right-hand sides."""
        R, counts = len(self.spread.counts), self.spread.counts
        if R == 1:
            return 0
        size, n = 4 if single and self.single else 8, self.spread.n
        home = 8 * t * sum(
            int(counts[shared[0].rank]) for rank in range(R) for shared in strips(counts, rank)[1:] if shared
        )  # fmt: skip
        frame = 8 * R * (R - 1) + 8 * R  # the counts of rows sent, and the longest message
        if not self.ring:
            return size * t * n + home + frame
        if is_sparse(passed := self._passed):
            index = passed.indices.itemsize
            rows = int((self._nonzeros * (size + index) + (counts + 1) * passed.indptr.itemsize).sum())
        else:
            rows = size * n * self.spread.X.shape[1]
        return (R // 2) * (rows + size * t * n) + home + frame


def _arrays(points: Points) -> list[NDArray[Any]]:
    X = points.X
    if not is_sparse(X):
        return [np.ascontiguousarray(X)]
    return [X.data, X.indices, X.indptr]


def _as_points(arrays: list[NDArray[Any]], like: Points) -> Points:
    if len(arrays) == 1:
        return Points(arrays[0])
    data, indices, starts = arrays
    return Points(csr(data, indices, starts, (len(starts) - 1, like.X.shape[1])))


def _nothing() -> None:
    pass


def gathers(comm: Communicator, rows: int, limit: int) -> bool:
    """True if all rows, `rows` bytes, fit in both precisions into an eighth of every rank's memory `limit`."""
    return comm.size > 1 and 2 * rows <= limit // 8


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


def borrows(borrowing: Borrowing, n_owned: int, gathered: bool, comm: Communicator) -> bool:
    """True if the rows borrowed fit into the memory that is set aside for other ranks' rows; collective.

    That is for all rows if they are to be gathered, and otherwise for twice this rank's rows, as in a ring.
    """
    return gathered or comm.all(borrowing.size <= 2 * n_owned)
