"""LIBSVM's text, parsed by scikit-learn, block by block."""

from __future__ import annotations

import io
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import csr
from cacore.errors import InputError
from cacore.io.stream import REMEDY, blocks_of_lines
from cacore.io.table import Table
from cacore.io.words import short
from cacore.machine import memory

_DENSE_FROM = 1 / 3  # share of nonzeros from which a file becomes a dense array
_NUMBER = r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf(inity)?|nan)"
_TARGET = re.compile(rf"{_NUMBER}$", re.IGNORECASE)
_ENTRY = re.compile(rf"\+?\d+:{_NUMBER}$", re.IGNORECASE)


def parse(path: Path, n_features: int | None, limit: int) -> Table:
    """The rows of a file, dense if a third of their numbers are not zero.

    Holds them twice while their blocks are put together.
    """
    from sklearn.datasets import load_svmlight_file

    pieces: list[tuple[NDArray[Any], ...]] = []
    rows = entries = held = 0
    width, least = 1, 1
    for first, block in blocks_of_lines(path, limit):
        if b"_" in block:  # Python reads 1_0 as 10
            _check(path, first, block)
        try:
            X, y = load_svmlight_file(io.BytesIO(block), dtype=np.float64, zero_based=True)
        except (ValueError, OverflowError) as error:
            _check(path, first, block)
            raise InputError(f"{path}: not LIBSVM text ({error})") from error
        pieces.append((X.data, X.indices, np.diff(X.indptr), y))
        rows, entries, width = rows + len(y), entries + X.nnz, max(width, X.shape[1])
        least = min(least, X.indices.min(initial=1))
        held += sum(part.nbytes for part in pieces[-1])
        memory.require(2 * held, limit, f"{path}: to read its first {rows:,} rows", REMEDY)
    base = int(entries > 0 and least > 0)
    own = width - base
    width = max(own, n_features or 0)  # the last features may be 0 in all these rows
    dense = entries >= _DENSE_FROM * rows * width
    what = f"{path}: {rows:,} rows of {width:,} features"
    memory.require(2 * held + 8 * width * (rows if dense else 1), limit, what, REMEDY)
    data, indices, lengths, y = _joined(pieces)
    indices -= indices.dtype.type(base)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    X = csr(data, indices, ends.astype(np.int32) if entries < 2**31 else ends, (rows, width))
    return Table(X.toarray() if dense else X, y, str(path), line_of=partial(_line_of, path), base=base, features=own)


def _joined(pieces: list[tuple[NDArray[Any], ...]]) -> list[NDArray[Any]]:
    """Each of the columns of all blocks in one; a block gives up its part of a column once that is copied."""
    columns = [list(column) for column in zip(*pieces, strict=True)]
    pieces.clear()
    return [np.concatenate(columns.pop(0)) for _ in range(4)]


def _check(path: Path, first: int, block: bytes) -> None:
    """Refuse the first line of a block, which begins at line `first`, that is not LIBSVM's: scikit-learn names none."""
    for count, line in enumerate(block.split(b"\n"), first):
        where, last = f"{path}: line {count}", -1
        for place, word in enumerate(line.split(b"#")[0].split()):
            token = word.decode(errors="replace")
            if place == 1 and re.match(r"qid:\d+$", token):
                continue
            if not (_ENTRY if place else _TARGET).match(token):
                need = "index:value" if place else "the target, which must be a number"
                raise InputError(f"{where}: {short(token)!r} is not {need}")
            if place:
                index = int(token.split(":")[0][:20])
                if index >= 2**31:
                    raise InputError(f"{where}: {short(token)!r}: the largest index is {2**31 - 1}")
                if index <= last:
                    raise InputError(f"{where}: {short(token)!r}: the indices must ascend")
                last = index


def _line_of(path: Path, row: int) -> int:
    """Line of a row: blank lines, and those with a comment alone, are none."""
    for first, block in blocks_of_lines(path, 1 << 62):
        for count, line in enumerate(block.split(b"\n"), first):
            if line.split(b"#")[0].strip():
                if row == 0:
                    return count
                row -= 1
    return 0
