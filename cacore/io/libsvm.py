"""LIBSVM text: blocks of lines, parsed by compiled code on all threads."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import block_bounds, csr, first_nonfinite
from cacore.errors import InputError
from cacore.io.scanners import Parsers, Scanned, scan_libsvm
from cacore.io.stream import REMEDY, Block, OnBytesRead, Share, blocks_of_lines, first_error, in_order, reading
from cacore.io.table import Table
from cacore.machine import memory, threads

DENSE_FROM = 1 / 3  # least share of nonzeros for which a file becomes a dense array


def scanned(path: Path, share: Share, parsers: Parsers | None = None) -> Generator[Scanned, None, None]:
    """Yield the rows of a share of a file, block by block and in order; reading and parsing overlap.

    Blocks are parsed by this rank's threads, or by other ranks. A caller that stops early must close this generator.

    Raises
    ------
    InputError
        A word is invalid; the message gives the line and the word.
    """
    with closing(share.blocks()) as blocks:
        if parsers is None:
            yield from threads.ahead(partial(_scanned, path, share), blocks)
            return
        for block, rows in parsers.scanned(blocks):
            _check(rows, block, path, share)
            yield rows


def checked(
    path: Path, dtype: np.dtype[np.floating], limit: int, on_read: OnBytesRead | None = None,
    parsers: Parsers | None = None,
) -> Iterator[Scanned]:  # fmt: skip
    """Yield the rows of a file like :func:`scanned`, and raise an InputError for a number that `dtype` cannot hold."""
    first, least = 0, 1
    parts = scanned(path, Share(path, limit, Communicator(), on_read=on_read), parsers)
    for part in parts:
        least = min(least, part.least)
        if first_nonfinite(part.data, dtype) is not None or first_nonfinite(part.y) is not None:
            base = int(min([least, *(rest.least for rest in parts)]) > 0)
            X = csr(part.data, part.indices - base, row_ends(part.lengths), (len(part.y), part.most + 1))
            Table(X, part.y, str(path), first, partial(line_of, path)).checked(dtype)
        yield part
        first += len(part.y)


def _scanned(path: Path, share: Share, *block: Any) -> Scanned:
    """Rows of one block of a share."""
    rows = scan_libsvm(block[2])
    _check(rows, Block(*block), path, share)
    return rows


def _check(rows: Scanned, block: Block, path: Path, share: Share) -> None:
    """Raise an InputError if the block has an invalid word."""
    if rows.fault is not None:
        line, message = rows.fault
        raise InputError(f"{path}: line {share.line(block.first + line)}: {message}")


def parse(path: Path, n_features: int | None, limit: int, comm: Communicator) -> Table:
    """Read this rank's even block of the rows of a file, dense if at least a third of all numbers are nonzero.

    The call is collective. Memory holds the rows twice while blocks are joined, and, with several ranks, four times
    while rows are exchanged.
    """
    with comm.agreed(), reading(path):
        share = Share(path, limit, comm)
    copies = 2 if comm.size == 1 else 4
    pieces: list[tuple[NDArray[Any], ...]] = []
    rows = held = 0
    width = least = 1
    rounded = np.zeros(0, np.int64)
    parts = scanned(path, share)
    with first_error(comm, lambda: share.place(len(pieces))), reading(path), closing(parts):
        for part in parts:
            pieces.append((part.data, part.indices, part.lengths, part.y))
            rows, held = rows + len(part.y), held + part.nbytes
            width, least = max(width, part.most + 1), min(least, part.least)
            rounded = np.union1d(rounded, part.rounded)
            memory.require(copies * held, limit, f"{path}: reading its first {rows:,} rows", REMEDY)
    counts = [len(y) for *_, y in pieces]
    data, indices, lengths, y = _joined(pieces)
    entries, n = comm.allreduce(np.array([len(data), rows], np.int64)).tolist()
    least, widest = comm.allreduce(np.array([least, -width], np.int64), "min").tolist()
    base = int(entries > 0 and least > 0)
    file_width = -widest - base
    width = max(file_width, n_features or 0)  # trailing features may be 0 in all these rows
    dense = entries >= DENSE_FROM * n * width
    lo, hi = block_bounds(n, comm.size, comm.rank)
    with comm.agreed():
        what = f"{path}: storing {n:,} rows of {width:,} features"
        memory.require(copies * held + 8 * width * (hi - lo if dense else 1), limit, what, REMEDY)
    indices -= indices.dtype.type(base)
    X = csr(data, indices, row_ends(lengths), (rows, width))
    del data, indices
    X, y = in_order(X, y, share.numbers, counts, comm)
    features = np.zeros(width, np.bool_)
    features[rounded[rounded >= 0] - base] = True
    marks = features, np.array([-1 in rounded])
    block = X.toarray() if dense else X
    return Table(block, y, str(path), lo, partial(line_of, path), base, features=file_width, rounded=marks)


def row_ends(lengths: NDArray[Any]) -> NDArray[Any]:
    """Array `indptr` of CSR rows with these numbers of entries."""
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    return ends.astype(np.int32) if ends[-1] < 2**31 else ends


def _joined(pieces: list[tuple[NDArray[Any], ...]]) -> list[NDArray[Any]]:
    """Concatenate each column over all blocks; the blocks' arrays are freed column by column."""
    if not pieces:
        return [np.empty(0), np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0)]
    columns = [list(column) for column in zip(*pieces, strict=True)]
    pieces.clear()
    return [np.concatenate(columns.pop(0)) for _ in range(4)]


def line_of(path: Path, row: int) -> int:
    """Find the line of a row by reading the file again; blank lines and pure comments are not rows."""
    for first, block in blocks_of_lines(path, 1 << 62):
        for count, line in enumerate(block.split(b"\n"), first):
            if line.split(b"#")[0].strip():
                if row == 0:
                    return count
                row -= 1
    return 0
