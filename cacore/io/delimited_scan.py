"""Parser for CSV and TSV text without quotes, in compiled code that releases the GIL."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.io.numerals import LEFT, NONE, ROUNDED, number

if TYPE_CHECKING:
    from cacore.arrays import Bytes, Doubles, Longs

SKIP = 1 << 40  # place of a column that is left out

_SPACE, _TAB, _QUOTE, _LINE_END, _RETURN = 32, 9, 34, 10, 13


class Cells(NamedTuple):
    """Rows of a block.

    Attributes
    ----------
    X, y : ndarray of float64, shape (m, d) and (m, t)
        A text target is not set in `y`.
    words : list of str
        Target of each row if it may be text; otherwise empty.
    rounded : ndarray of bool, shape (columns,)
        Columns with whole numbers that were rounded to doubles.
    """

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    words: list[str]
    rounded: NDArray[np.bool_]


def scan(block: bytes, delimiter: str, place: NDArray[np.int64], as_words: bool) -> Cells | None:
    """Parse a block of whole lines; None if it has anything but plain numbers, which may still be valid input.

    Parameters
    ----------
    block : bytes
        Text that ends with a newline.
    delimiter : str
    place : ndarray of int64, shape (columns,)
        For each column its index j among the features, or -1 - j among the targets, or :data:`SKIP`.
    as_words : bool
        True if the target may be text.
    """
    text = np.frombuffer(block, np.uint8)
    lines, targets = int(np.count_nonzero(text == _LINE_END)), int(np.count_nonzero(place < 0))
    X, y = np.empty((lines, int(np.count_nonzero(place < SKIP)) - targets)), np.empty((lines, targets))
    spans = np.empty((lines if as_words else 0, 2), np.int64)
    left = np.empty((lines * len(place), 4), np.int64)  # pages never written take no memory
    rounded = np.zeros(len(place), np.bool_)
    rows, n_left = _scan(text, ord(delimiter), place, X, y, spans, left, rounded)
    if rows < 0:
        return None
    for row, to, first, last in left[:n_left].tolist():
        part, column = (X, to) if to >= 0 else (y, -1 - to)
        part[row, column] = float(block[first:last])
    words = [block[first:last].decode(errors="replace").strip() for first, last in spans[:rows].tolist()]
    return Cells(X[:rows], y[:rows], words, rounded)


@numba.njit(inline="always")
def _after_spaces(text: Bytes, p: int, delimiter: int) -> int:  # pragma: no cover - compiled
    """Offset after blanks that do not separate columns."""
    while text[p] == _SPACE or (text[p] == _TAB and delimiter != _TAB):
        p += 1
    return p


@numba.njit(inline="always")
def _after_word(text: Bytes, p: int, delimiter: int) -> int:  # pragma: no cover - compiled
    """Offset after a word."""
    while text[p] not in (delimiter, _QUOTE, _LINE_END):
        p += 1
    return p


@numba.njit(inline="always")
def _after_end(text: Bytes, p: int, end: int) -> int:  # pragma: no cover - compiled
    """Offset after the end of a cell (delimiter or newline); -1 if `end` is not found there."""
    if end == _LINE_END and text[p] == _RETURN:
        p += 1
    return p + 1 if text[p] == end else -1


@numba.njit(inline="always")
def _put(X: Doubles, y: Doubles, row: int, to: int, value: float) -> None:  # pragma: no cover - compiled
    """Store a number among the features, or among the targets if `to` is negative."""
    if to >= 0:
        X[row, to] = value
    else:
        y[row, -1 - to] = value


@numba.njit(inline="always")
def _is_empty(text: Bytes, p: int) -> bool:  # pragma: no cover - compiled
    """True if the line that begins at `p` is empty."""
    return text[p] == _LINE_END or (text[p] == _RETURN and text[p + 1] == _LINE_END)


@numba.njit(cache=True, nogil=True)
def _scan(
    text: Bytes,
    delimiter: int,
    place: Longs,
    X: Doubles,
    y: Doubles,
    spans: Longs,
    left: Longs,
    rounded: NDArray[np.bool_],
) -> tuple[int, int]:  # pragma: no cover - compiled
    """Fill the rows; return their number, or -1 if a cell is not plain, and the number of values left to ``float``."""
    p = row = n_left = 0
    while p < len(text):
        if _is_empty(text, p):
            p += 1 + (text[p] == _RETURN)
            continue
        for j in range(len(place)):
            to = place[j]
            p = _after_spaces(text, p, delimiter)
            start = p
            if to == SKIP:
                p = _after_word(text, p, delimiter)
            elif to < 0 and len(spans):
                p = _after_word(text, p, delimiter)
                spans[row, 0], spans[row, 1] = start, p
            else:
                value, p, found = number(text, p)
                if found == NONE:
                    return -1, 0
                if found == ROUNDED:
                    rounded[j] = True
                if found == LEFT:
                    left[n_left, 0], left[n_left, 1], left[n_left, 2], left[n_left, 3] = row, to, start, p
                    n_left += 1
                _put(X, y, row, to, value)
                p = _after_spaces(text, p, delimiter)
            p = _after_end(text, p, delimiter if j + 1 < len(place) else _LINE_END)
            if p < 0:
                return -1, 0
        row += 1
    return row, n_left
