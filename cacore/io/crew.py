"""Conversion under MPI: rank 0 reads, decompresses and writes; the other ranks parse the blocks it sends them.

Unlike in :mod:`cacore.io.stream`, parsed rows do not stay on their rank, because one process writes the output file in
the order of the input. Each of the other ranks has one block of lines at a time.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.io import scanners
from cacore.io.scanners import CellLayout, Cells, Scanned
from cacore.io.stream import Block


class Crew:
    """Ranks that parse text for rank 0; rank 0 enters it as a context while the others call :meth:`serve`.

    Parameters
    ----------
    comm : Communicator
        At least two ranks.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._working = False
        self._waiting: deque[tuple[Block, int]] = deque()  # blocks being parsed, and the rank that has each

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._finish()
        self._send_to_all(b"")

    def scanned(self, blocks: Iterable[Block]) -> Iterator[tuple[Block, Scanned]]:
        """Parse blocks of LIBSVM text; results come in the order of the blocks."""
        for block, (*arrays, fault) in self._in_turn([], blocks):
            data, indices, lengths, y, rounded = arrays
            yield block, Scanned(data, indices, lengths, y, rounded, json.loads(fault.tobytes()))

    def cells(self, layout: CellLayout, blocks: Iterable[Block]) -> Iterator[tuple[Block, Cells | None]]:
        """Parse blocks of CSV or TSV text, in their order; see :func:`cacore.io.scanners.scan_delimited`."""
        for block, arrays in self._in_turn(layout, blocks):
            if not arrays:
                yield block, None
                continue
            X, y, words, rounded = arrays
            yield block, Cells(X, y, json.loads(words.tobytes()), rounded.astype(np.bool_))

    def _in_turn(self, job: Sequence[Any], blocks: Iterable[Block]) -> Iterator[tuple[Block, list[NDArray[Any]]]]:
        others = self._comm.size - 1
        self._send_to_all(json.dumps(job).encode())
        self._working = True
        for count, block in enumerate(blocks):
            rank, done = 1 + count % others, None
            if len(self._waiting) == others:
                done = self._answer()
            self._comm.send(np.frombuffer(block.text, np.uint8), rank)
            self._waiting.append((block, rank))
            if done is not None:  # that rank parses its next block meanwhile
                yield done
        while self._waiting:
            yield self._answer()
        self._finish()

    def _answer(self) -> tuple[Block, list[NDArray[Any]]]:
        block, rank = self._waiting.popleft()
        count = int(self._comm.recv(rank)[0])
        return block, [self._comm.recv(rank) for _ in range(count)]

    def _finish(self) -> None:
        """End the current job, if any, and discard blocks that are still being parsed."""
        while self._waiting:
            self._answer()
        if self._working:
            self._send_to_all(b"")
        self._working = False

    def _send_to_all(self, message: bytes) -> None:
        for rank in range(1, self._comm.size):
            self._comm.send(np.frombuffer(message, np.uint8), rank)

    def serve(self) -> None:
        """Parse the blocks that rank 0 sends until it leaves its context."""
        while len(words := self._comm.recv(0)):
            job = json.loads(words.tobytes())
            while len(text := self._comm.recv(0)):
                arrays = _parsed(job, text.tobytes())
                for array in (np.array([len(arrays)]), *arrays):
                    self._comm.send(array, 0)


def _parsed(layout: Sequence[Any], text: bytes) -> list[NDArray[Any]]:
    """Arrays of the rows of a block: of LIBSVM text if the layout is empty, otherwise of CSV or TSV text."""
    if not layout:
        rows = scanners.scan_libsvm(text)
        return [rows.data, rows.indices, rows.lengths, rows.y, rows.rounded, _encoded(rows.fault)]
    cells = scanners.scan_delimited(text, CellLayout(*layout))
    return [] if cells is None else [cells.X, cells.y, _encoded(cells.words), cells.rounded.astype(np.int8)]


def _encoded(facts: object) -> NDArray[np.uint8]:
    return np.frombuffer(json.dumps(facts).encode(), np.uint8)
