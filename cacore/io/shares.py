"""Division of the lines of a text among ranks, and restoring the order of the file afterwards.

Each rank reads the lines of plain text that begin in its even share of the bytes. Compressed text cannot be divided by
bytes: rank 0 decompresses it and sends blocks of lines to the other ranks in turn, which parse them meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import SameRows, block_bounds, exchange_rows
from cacore.data.stored import some
from cacore.errors import InputError, OutputError
from cacore.io import stream

Part = tuple[NDArray[np.float64], NDArray[np.float64]]  # features and targets of a block of rows

_LAST = np.iinfo(np.int64).max
_A_RANK = 1 << 32  # block numbers reserved for each rank, so that those of the next rank are larger


class Block(NamedTuple):
    """Block of lines of a text.

    Attributes
    ----------
    number : int
        Block number; numbers ascend in the file.
    first : int
        Number of its first line, where the first line of the rank's share is 1.
    text : bytes
    """

    number: int
    first: int
    text: bytes


class Share:
    """This rank's share of the lines of a text; creating it and reading it are collective.

    Parameters
    ----------
    path : Path
    limit : int
        Bytes that a rank may use.
    comm : Communicator
    start : int
        Length of the header to skip, in decompressed bytes.
    on_read : callable, optional
        See :func:`cacore.io.stream.blocks_of_lines`.

    Attributes
    ----------
    numbers : list of int
        Numbers of the blocks read so far.
    """

    def __init__(
        self, path: Path, limit: int, comm: Communicator, start: int = 0, on_read: stream.OnBytesRead | None = None
    ) -> None:
        self._path, self._limit, self._comm, self._start, self._on_read = path, limit, comm, start, on_read
        self.numbers: list[int] = []
        self._dealt = comm.size > 1 and stream.is_compressed(path)
        self._bytes = start, -1
        if comm.size > 1 and not self._dealt:
            bounds = block_bounds(max(0, os.stat(path).st_size - start), comm.size, comm.rank)
            lo, hi = (stream.line_start(path, start + at) if at else start for at in bounds)
            self._bytes = lo, hi

    def blocks(self) -> Generator[Block, None, None]:
        """Yield the blocks; a caller that stops early must close this generator, which then receives pending blocks."""
        if not self._dealt:
            lines = stream.blocks_of_lines(self._path, self._limit, self._on_read, *self._bytes)
            for k, (first, text) in enumerate(lines):
                yield self._noted(Block(self._comm.rank * _A_RANK + k, first, text))
        elif self._comm.rank:
            yield from self._received()
        else:
            self._deal()

    def line(self, number: int) -> int:
        """Line number in the file of line `number` of the share."""
        return number + (0 if self._dealt else stream.lines_before(self._path, self._bytes[0]))

    def place(self, done: int) -> int:
        """Number of the block after `done` blocks; if that could not be read, one after all others of this rank."""
        if done < len(self.numbers):
            return self.numbers[done]
        return _LAST - 1 if self._dealt else (self._comm.rank + 1) * _A_RANK - 1

    def _noted(self, block: Block) -> Block:
        self.numbers.append(block.number)
        return block

    def _deal(self) -> None:
        others = self._comm.size - 1
        try:
            lines = stream.blocks_of_lines(self._path, self._limit, None, self._start)
            for number, (first, text) in enumerate(lines):
                head = np.array([number, first], np.int64).tobytes()
                self._comm.send(np.frombuffer(head + text, np.uint8), 1 + number % others)
        finally:
            for rank in range(1, self._comm.size):
                self._comm.send(np.zeros(0, np.uint8), rank)

    def _received(self) -> Iterator[Block]:
        while len(message := self._comm.recv(0)):
            number, first = message[:16].view(np.int64).tolist()
            try:
                yield self._noted(Block(number, first, message[16:].tobytes()))
            except GeneratorExit:
                while len(self._comm.recv(0)):
                    pass
                raise


class Dealt:
    """Distributor of rows that rank 0 reads, block by block, to all ranks in turn; collective."""

    def __init__(self, comm: Communicator) -> None:
        self._comm, self._number = comm, 0

    def parts(self, read: Iterable[Part]) -> Generator[tuple[int, Part], None, None]:
        """Yield this rank's blocks, with their numbers; only rank 0 uses `read`.

        A caller that stops early must close this generator, which then receives the pending blocks.
        """
        if self._comm.rank:
            yield from self._received()
            return
        try:
            for self._number, part in enumerate(read):
                rank = self._number % self._comm.size
                if rank:
                    self._send(part, rank)
                else:
                    yield self._number, part
        finally:
            for rank in range(1, self._comm.size):
                self._comm.send(np.zeros(0, np.int64), rank)

    def place(self) -> int:
        """Number of the block being read."""
        return self._number

    def _send(self, part: Part, rank: int) -> None:
        for array in (np.array([self._number]), *part):
            self._comm.send(array, rank)

    def _received(self) -> Iterator[tuple[int, Part]]:
        while len(number := self._comm.recv(0)):
            self._number = int(number[0])
            part = self._comm.recv(0), self._comm.recv(0)
            try:
                yield self._number, part
            except GeneratorExit:
                while len(self._comm.recv(0)):
                    self._comm.recv(0), self._comm.recv(0)
                raise


@contextmanager
def first_error(comm: Communicator, place: Callable[[], int]) -> Iterator[None]:
    """Raise on all ranks the error that comes first in the file: that of the rank with the smallest `place`.

    The block of code may communicate, provided that its failure leaves no other rank waiting.
    """
    error: InputError | OutputError | None = None
    try:
        yield
    except (InputError, OutputError) as caught:
        error = caught
    mine = _LAST if error is None else place()
    first = int(comm.allreduce(np.array([mine], np.int64), "min")[0])
    with comm.agreed():
        if error is not None and mine == first:
            raise error


def in_order(
    X: SameRows, y: NDArray[Any], numbers: list[int], counts: list[int], comm: Communicator
) -> tuple[SameRows, NDArray[Any]]:
    """Redistribute the rows of all ranks into even blocks in the order of the file; collective.

    Parameters
    ----------
    X : ndarray or CSR, shape (m, d)
    y : ndarray, shape (m, ...)
    numbers, counts : list of int
        Number and row count of each of this rank's blocks, in order; numbers ascend in the file.
    comm : Communicator
        Each row is sent at most once, with 8 additional bytes.

    Returns
    -------
    X, y : this rank's even block
    """
    if comm.size == 1:
        return X, y
    mine = np.array([numbers[: len(counts)], counts], np.int64).T
    every = comm.allgather(mine)
    every = every[np.argsort(every[:, 0])]
    n = int(every[:, 1].sum())
    starts = np.cumsum(every[:, 1]) - every[:, 1]
    first = starts[np.searchsorted(every[:, 0], mine[:, 0])]
    place = np.repeat(first - (np.cumsum(mine[:, 1]) - mine[:, 1]), mine[:, 1]) + np.arange(len(y))
    ends = [block_bounds(n, comm.size, rank)[1] for rank in range(comm.size)]
    leaving = np.diff(np.searchsorted(place, ends), prepend=0).astype(np.int64)
    X, (y, _), (place, _) = exchange_rows(X, leaving, comm), comm.alltoall(y, leaving), comm.alltoall(place, leaving)
    order = np.argsort(place, kind="stable")
    if (order[1:] < order[:-1]).any():
        X, y = some(X, order), y[order]
    return X, y
