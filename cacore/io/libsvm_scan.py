"""Parser of LIBSVM text, in compiled code that releases the interpreter's lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.io.numerals import LEFT, NONE, ROUNDED, is_digit, number

if TYPE_CHECKING:
    from cacore.arrays import Bytes, Doubles, Ints, Longs

GOOD, TARGET, ENTRY, LARGE, ORDER = range(5)  # errors: none, invalid target, invalid entry, index too large, order

_MOST = 2**31 - 1  # largest index
_COLON, _HASH, _LINE_END = 58, 35, 10
_NOTHING = np.int64(2**62)
_QID = np.frombuffer(b"qid:", np.uint8)


class Scanned(NamedTuple):
    """Rows of a block, with indices as in the text.

    Attributes
    ----------
    data, indices : ndarray of float64 and of int32, shape (entries,)
    lengths : ndarray of int32, shape (m,)
        Number of entries of each row.
    y : ndarray of float64, shape (m,)
    least, most : int
        Smallest and largest index; least > most if there are no entries.
    wrong, place : int
        Error code, and offset of the invalid word; the rows are then those before its line.
    rounded : ndarray of int32
        Ascending indices with whole numbers that were rounded to doubles.
    rounded_y : bool
        True if any target is such a number.
    """

    data: NDArray[np.float64]
    indices: NDArray[np.int32]
    lengths: NDArray[np.int32]
    y: NDArray[np.float64]
    least: int
    most: int
    wrong: int
    place: int
    rounded: NDArray[np.int32]
    rounded_y: bool

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        return self.data.nbytes + self.indices.nbytes + self.lengths.nbytes + self.y.nbytes


def scan(block: bytes) -> Scanned:
    """Parse a block of whole lines; the last one must end with a newline."""
    text = np.frombuffer(block, np.uint8)
    colons, lines = _most(text)
    data, indices = np.empty(colons), np.empty(colons, np.int32)
    lengths, y = np.empty(lines, np.int32), np.empty(lines)
    left = np.empty((colons + lines, 3), np.int64)  # pages never written take no memory
    marks = np.empty(colons + 2, np.int64)
    rows, entries, n_left, least, most, wrong, place = _scan(text, data, indices, lengths, y, left, marks)
    for at, first, last in left[:n_left].tolist():
        column, k = (data, at) if at >= 0 else (y, -1 - at)
        column[k] = float(block[first:last])
    rounded = np.unique(indices[marks[2 : 2 + marks[0]]])
    return Scanned(
        data[:entries], indices[:entries], lengths[:rows], y[:rows], least, most, wrong, place, rounded, marks[1] > 0
    )


@numba.njit(cache=True, nogil=True)
def _most(text: Bytes) -> tuple[int, int]:  # pragma: no cover - compiled
    """Number of colons and of lines in a text: upper bounds on its entries and rows."""
    colons = lines = 0
    for c in text:
        colons += c == _COLON
        lines += c == _LINE_END
    return colons, lines


@numba.njit(inline="always")
def _is_blank(c: int) -> bool:  # pragma: no cover - compiled
    """True for white space, including the newline."""
    return c == 32 or 9 <= c <= 13


@numba.njit(inline="always")
def _after_blanks(text: Bytes, p: int) -> int:  # pragma: no cover - compiled
    """Offset of the next word of this line, or of its comment or end."""
    while _is_blank(text[p]) and text[p] != _LINE_END:
        p += 1
    return p


@numba.njit(inline="always")
def _ends(c: int) -> bool:  # pragma: no cover - compiled
    """True for a byte that ends a word."""
    return _is_blank(c) or c == _HASH


@numba.njit(inline="always")
def _after_qid(text: Bytes, p: int) -> int:  # pragma: no cover - compiled
    """Offset after an entry such as ``qid:7``; the same offset if there is none."""
    start = p
    for c in _QID:
        if text[p] != c:
            return start
        p += 1
    first = p
    while is_digit(text[p]):
        p += 1
    return p if p > first and _ends(text[p]) else start


@numba.njit(inline="always")
def _is_over(c: int) -> bool:  # pragma: no cover - compiled
    """True for a byte that ends the words of a line: a newline, or the start of a comment."""
    return c in (_LINE_END, _HASH)


@numba.njit(inline="always")
def _index(text: Bytes, p: int) -> tuple[np.int64, int]:  # pragma: no cover - compiled
    """Index of an entry, and offset of its value, or -1 if the entry is invalid."""
    p += text[p] == 43
    index, start = np.int64(0), p
    while is_digit(text[p]):
        if index <= _MOST:
            index = 10 * index + np.int64(text[p] - 48)
        p += 1
    return index, p + 1 if p > start and text[p] == _COLON else -1


@numba.njit(inline="always")
def _entry(text: Bytes, p: int, last: int) -> tuple[np.int64, float, int, int, int, int]:  # pragma: no cover - compiled
    """Parse an entry that follows index `last`: index, value, start, end, result of :func:`number`, error code."""
    index, start = _index(text, p)
    if start < 0:
        return index, 0.0, start, p, NONE, ENTRY
    value, p, found = number(text, start)
    wrong = GOOD
    if found == NONE or not _ends(text[p]):
        wrong = ENTRY
    elif index > _MOST:
        wrong = LARGE
    elif index <= last:
        wrong = ORDER
    return index, value, start, p, found, wrong


@numba.njit(inline="always")
def _leave(left: Longs, count: int, at: int, start: int, stop: int) -> int:  # pragma: no cover - compiled
    """Record a number that is left to ``float``; return how many there are now."""
    left[count, 0], left[count, 1], left[count, 2] = at, start, stop
    return count + 1


@numba.njit(inline="always")
def _mark(marks: Longs, entry: int, found: int) -> None:  # pragma: no cover - compiled
    """Record an entry that is a rounded whole number, by its result of :func:`number`."""
    if found == ROUNDED:
        marks[2 + marks[0]] = entry
        marks[0] += 1


@numba.njit(cache=True, nogil=True)
def _scan(
    text: Bytes, data: Doubles, indices: Ints, lengths: Ints, y: Doubles, left: Longs, marks: Longs
) -> tuple[int, int, int, np.int64, np.int64, int, int]:  # pragma: no cover - compiled
    """Fill the arrays.

    `left`: for numbers left to ``float``, their destination (-1 - row in y), start and end. `marks`: the numbers of
    entries and of targets that are rounded whole numbers, and the numbers of these entries, shape (entries + 2,).
    """
    marks[0] = marks[1] = 0
    p = rows = entries = n_left = 0
    least, most = _NOTHING, np.int64(-1)
    while p < len(text):
        p = _after_blanks(text, p)
        if not _is_over(text[p]):
            start, first, last = p, entries, np.int64(-1)
            value, p, found = number(text, p)
            if found == NONE or not _ends(text[p]):
                return rows, first, n_left, least, most, TARGET, start
            if found == LEFT:
                n_left = _leave(left, n_left, -1 - rows, start, p)
            marks[1] += found == ROUNDED
            y[rows] = value
            p = _after_blanks(text, _after_qid(text, _after_blanks(text, p)))
            while not _is_over(text[p]):
                start = p
                index, value, begin, p, found, wrong = _entry(text, p, last)
                if wrong != GOOD:
                    return rows, first, n_left, least, most, wrong, start
                if found == LEFT:
                    n_left = _leave(left, n_left, entries, begin, p)
                _mark(marks, entries, found)
                data[entries], indices[entries] = value, index
                entries, last = entries + 1, index
                p = _after_blanks(text, p)
            lengths[rows] = entries - first
            rows += 1
            if entries > first:
                least, most = min(least, np.int64(indices[first])), max(most, last)
        while text[p] != _LINE_END:
            p += 1
        p += 1
    return rows, entries, n_left, least, most, GOOD, p
