"""LIBSVM's text: blocks of lines, parsed by compiled code on all threads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import csr, first_nonfinite
from cacore.errors import InputError
from cacore.io.libsvm_scan import ENTRY, GOOD, LARGE, TARGET, Scanned, scan
from cacore.io.stream import REMEDY, Told, blocks_of_lines
from cacore.io.table import Table
from cacore.io.words import short
from cacore.machine import memory, threads

DENSE_FROM = 1 / 3  # share of nonzeros from which a file becomes a dense array


def scanned(path: Path, limit: int, told: Told | None = None) -> Iterator[Scanned]:
    """The rows of a file, block by block, in their order; the file is read while blocks are parsed.

    Raises
    ------
    InputError
        It names the line, and the word that is wrong.
    """
    return threads.in_order(partial(_scanned, path), blocks_of_lines(path, limit, told))


def checked(path: Path, dtype: np.dtype[Any], limit: int, told: Told | None = None) -> Iterator[Scanned]:
    """As :func:`scanned`, of rows whose numbers `dtype` can hold; others are an InputError that names the place."""
    first, least = 0, 1
    parts = scanned(path, limit, told)
    for part in parts:
        least = min(least, part.least)
        if first_nonfinite(part.data, dtype) is not None or first_nonfinite(part.y) is not None:
            base = int(min([least, *(rest.least for rest in parts)]) > 0)
            X = csr(part.data, part.indices - base, row_ends(part.lengths), (len(part.y), part.most + 1))
            Table(X, part.y, str(path), first, partial(line_of, path)).checked(dtype)
        yield part
        first += len(part.y)


def _scanned(path: Path, first: int, block: bytes) -> Scanned:
    """The rows of a block, which begins at line `first`."""
    found = scan(block)
    if found.wrong != GOOD:
        line = first + block.count(b"\n", 0, found.place)
        _refuse(f"{path}: line {line}", block, found)
    return found


def _refuse(where: str, block: bytes, found: Scanned) -> NoReturn:
    """Say what is wrong with a word."""
    token = re.split(rb"[\s#]", block[found.place :], maxsplit=1)[0].decode(errors="replace")
    said = f"{where}: {short(token)!r}"
    if found.wrong in (TARGET, ENTRY):
        need = "index:value" if found.wrong == ENTRY else "the target, which must be a number"
        raise InputError(f"{said} is not {need}")
    need = f"largest index is {2**31 - 1}" if found.wrong == LARGE else "indices must ascend"
    raise InputError(f"{said}: the {need}")


def parse(path: Path, n_features: int | None, limit: int) -> Table:
    """The rows of a file, dense if a third of their numbers are not zero.

    Holds them twice while their blocks are put together.
    """
    pieces: list[tuple[NDArray[Any], ...]] = []
    rows = entries = held = 0
    width = least = 1
    for part in scanned(path, limit):
        pieces.append((part.data, part.indices, part.lengths, part.y))
        rows, entries = rows + len(part.y), entries + len(part.data)
        width, least = max(width, part.most + 1), min(least, part.least)
        held += part.nbytes
        memory.require(2 * held, limit, f"{path}: to read its first {rows:,} rows", REMEDY)
    base = int(entries > 0 and least > 0)
    own = width - base
    width = max(own, n_features or 0)  # the last features may be 0 in all these rows
    dense = entries >= DENSE_FROM * rows * width
    what = f"{path}: {rows:,} rows of {width:,} features"
    memory.require(2 * held + 8 * width * (rows if dense else 1), limit, what, REMEDY)
    data, indices, lengths, y = _joined(pieces)
    indices -= indices.dtype.type(base)
    X = csr(data, indices, row_ends(lengths), (rows, width))
    return Table(X.toarray() if dense else X, y, str(path), line_of=partial(line_of, path), base=base, features=own)


def row_ends(lengths: NDArray[Any]) -> NDArray[Any]:
    """The array indptr of CSR rows of these lengths."""
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    return ends.astype(np.int32) if ends[-1] < 2**31 else ends


def _joined(pieces: list[tuple[NDArray[Any], ...]]) -> list[NDArray[Any]]:
    """Each of the columns of all blocks in one; a block gives up its part of a column once that is copied."""
    columns = [list(column) for column in zip(*pieces, strict=True)]
    pieces.clear()
    return [np.concatenate(columns.pop(0)) for _ in range(4)]


def line_of(path: Path, row: int) -> int:
    """Line of a row, in a file that is read again: blank lines, and those with a comment alone, are none."""
    for first, block in blocks_of_lines(path, 1 << 62):
        for count, line in enumerate(block.split(b"\n"), first):
            if line.split(b"#")[0].strip():
                if row == 0:
                    return count
                row -= 1
    return 0
