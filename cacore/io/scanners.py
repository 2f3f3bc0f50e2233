"""Parsers of text in compiled code: decimal numbers, CSV and TSV, and LIBSVM text.

Conversion of decimal text to doubles in compiled code, rounded exactly as by Python's ``float``.

A number of few digits is exact in double precision, and so is its power of ten: one multiplication rounds correctly
(Clinger, PLDI 1990). Any other number of up to 19 digits is a 64-bit word times 5^q, for which 128 bits suffice to
round correctly (Lemire, Software: Practice and Experience 51, 2021; proof for all cases: Mushtak and Lemire, ibid. 53,
2023). A number of more than 19 digits is cut off there, and rounded both down and up in the 19th digit. If the two
doubles differ, the number is left to ``float``.

Parser for CSV and TSV text without quotes, in compiled code that releases the GIL.

Parser of LIBSVM text, in compiled code that releases the interpreter's lock.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from cacore.arrays import Bytes, Doubles, Ints, Longs


# Results of :func:`number`: a double, a number left to ``float``, no number, and a whole number above 2^53 that is not
# a double, and so was rounded.
READ, LEFT, NONE, ROUNDED = range(4)

_LOWEST, _HIGHEST = -342, 308  # exponents of ten; a word of 19 digits times any other power is 0 or infinite
_EXACT = 22  # 10^22 is the largest power of ten that is exactly a double
_DIGITS = 19  # decimal digits that fit into a 64-bit word
_LONGEST = 100_000  # exponents in the text are cut off above this, where they make no difference
_HALF, _ALL = np.uint64(32), np.uint64(0xFFFFFFFF)
_ONE, _TEN, _ZERO = np.uint64(1), np.uint64(10), np.uint64(0)
_MOST = np.uint64(2**53)


def _fives() -> NDArray[np.uint64]:
    """Leading 128 bits of 5^q in two words, shape (651, 2), truncated; from 5^-27 to 5^-1 rounded up."""
    words = []
    for q in range(_LOWEST, _HIGHEST + 1):
        power = 5 ** abs(q)
        size = power.bit_length()
        if q < 0:
            leading = (1 << (size + 127)) // power + (q >= -27)
        else:
            leading = power << max(0, 128 - size) >> max(0, size - 128)
        words.append((leading >> 64, leading & (2**64 - 1)))
    return np.array(words, np.uint64)


_TENS = 10.0 ** np.arange(_EXACT + 1)
_FIVES = _fives()


@numba.njit(inline="always")
def _product(a: np.uint64, b: np.uint64) -> tuple[np.uint64, np.uint64]:  # pragma: no cover - compiled
    """Upper and lower word of the product of two 64-bit words."""
    a1, a0, b1, b0 = a >> _HALF, a & _ALL, b >> _HALF, b & _ALL
    low, mid, other = a0 * b0, a1 * b0, a0 * b1
    carried = (low >> _HALF) + (mid & _ALL) + (other & _ALL)
    return a1 * b1 + (mid >> _HALF) + (other >> _HALF) + (carried >> _HALF), a * b


@numba.njit(cache=True, nogil=True)
def _rounded(w: np.uint64, q: Any) -> float:  # pragma: no cover - compiled
    """Double nearest to w 10^q, where w > 0 is a 64-bit word."""
    if q < _LOWEST:
        return 0.0
    if q > _HIGHEST:
        return np.inf
    zeros = 0
    for step in (32, 16, 8, 4, 2, 1):
        if w >> np.uint64(64 - step) == _ZERO:
            w <<= np.uint64(step)
            zeros += step
    high, low = _product(w, _FIVES[q - _LOWEST, 0])
    if high & np.uint64(0x1FF) == np.uint64(0x1FF):  # the bits that would be cut off may carry
        more, _ = _product(w, _FIVES[q - _LOWEST, 1])
        low += more
        if more > low:
            high += _ONE
    top = high >> np.uint64(63)
    shift = top + np.uint64(9)
    mantissa = high >> shift  # 54 bits: one more than a double has
    exponent = ((217706 * q) >> 16) + 63 + np.int64(top) - zeros + 1023
    if exponent <= 0:  # below 2^-1022 doubles have fewer bits
        if exponent <= -63:
            return 0.0
        mantissa >>= np.uint64(1 - exponent)
        mantissa += mantissa & _ONE
        return math.ldexp(float(mantissa >> _ONE), -1074)
    # Exactly half way between two doubles: round to even.
    halfway = low <= _ONE and -4 <= q <= 23 and mantissa & np.uint64(3) == _ONE and mantissa << shift == high
    if not halfway:
        mantissa += mantissa & _ONE
    mantissa >>= _ONE
    return math.ldexp(float(mantissa), exponent - 1075)


@numba.njit(inline="always")
def is_digit(c: int) -> bool:  # pragma: no cover - compiled
    """True for the digits 0 to 9."""
    return 48 <= c <= 57


@numba.njit(inline="always")
def _is_word(text: Bytes, p: int, word: Bytes) -> bool:  # pragma: no cover - compiled
    """True if the text at `p` continues with this lower-case word, ignoring case."""
    same = 0
    while same < len(word) and text[p + same] | 32 == word[same]:  # the final newline stops the loop
        same += 1
    return same == len(word)


_INFINITY, _INITY, _NAN = (np.frombuffer(word, np.uint8) for word in (b"inf", b"inity", b"nan"))


@numba.njit(inline="always")
def _word(text: Bytes, p: int) -> tuple[float, int, int]:  # pragma: no cover - compiled
    """Value of "inf", "infinity" or "nan" at `p`, offset after it, and READ or NONE."""
    if _is_word(text, p, _INFINITY):
        return np.inf, p + (8 if _is_word(text, p + 3, _INITY) else 3), READ
    if _is_word(text, p, _NAN):
        return np.nan, p + 3, READ
    return 0.0, p, NONE


@numba.njit(inline="always")
def _digits(
    text: Bytes, p: int, w: np.uint64, count: int, more: bool
) -> tuple[np.uint64, int, bool, int, int]:  # pragma: no cover - compiled
    """Append digits to the word w: w, number of digits, `more`, number of digits left out, and offset after them.

    `more` is True if any digit left out is not 0.
    """
    out = 0
    while is_digit(text[p]):
        if count < _DIGITS:
            w = w * _TEN + np.uint64(text[p] - 48)
            count += w != _ZERO
        else:
            out += 1
            more |= text[p] != 48
        p += 1
    return w, count, more, out, p


@numba.njit(inline="always")
def _exponent(text: Bytes, p: int) -> tuple[int, int, bool]:  # pragma: no cover - compiled
    """Exponent after an "e", offset after it, and True if there is one."""
    negative = text[p] == 45
    p += negative or text[p] == 43
    some = is_digit(text[p])
    e = 0
    while is_digit(text[p]):
        if e < _LONGEST:
            e = 10 * e + int(text[p] - 48)
        p += 1
    return -e if negative else e, p, some


@numba.njit(inline="always")
def _valued(w: np.uint64, q: int, more: bool) -> tuple[float, int]:  # pragma: no cover - compiled
    """Double nearest to w 10^q, and READ or ROUNDED; LEFT if digits left out of w (`more`) may change the rounding."""
    if w == _ZERO:
        return 0.0, READ
    if w <= _MOST and -_EXACT <= q <= _EXACT and not more:
        return (float(w) * _TENS[q] if q >= 0 else float(w) / _TENS[-q]), READ
    value = _rounded(w, q)
    if more and _rounded(w + _ONE, q) != value:
        return value, LEFT
    return value, ROUNDED if q >= 0 and (more or (q == 0 and np.uint64(value) != w)) else READ


@numba.njit(cache=True, nogil=True)
def number(text: Bytes, p: int) -> tuple[float, int, int]:  # pragma: no cover - compiled
    r"""Read the number that begins at offset `p` of a text.

    A number is ``[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf(inity)?|nan)``, ignoring case.

    Parameters
    ----------
    text : ndarray of uint8
        Text that ends with a newline.
    p : int

    Returns
    -------
    tuple of float, int and int
        Value, offset after the number, and :data:`READ`, :data:`LEFT`, :data:`NONE` or :data:`ROUNDED`.
    """
    negative = text[p] == 45
    p += negative or text[p] == 43
    start = p
    w, count, more, q, p = _digits(text, p, _ZERO, 0, False)
    some = p > start
    if text[p] == 46:
        start = p + 1
        w, count, more, out, p = _digits(text, start, w, count, more)
        q -= p - start - out
        some |= p > start
    if some and text[p] | 32 == 101:
        e, p, some = _exponent(text, p + 1)
        q += e
    if some:
        value, found = _valued(w, q, more)
    else:
        value, p, found = _word(text, start)
    return -value if negative else value, p, found


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


def scan_delimited(block: bytes, delimiter: str, place: NDArray[np.int64], as_words: bool) -> Cells | None:
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
    rows, n_left = _scan_delimited(text, ord(delimiter), place, X, y, spans, left, rounded)
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
def _scan_delimited(
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


GOOD, TARGET, ENTRY, LARGE, ORDER = range(5)  # errors: none, invalid target, invalid entry, index too large, order

_LARGEST_INDEX = 2**31 - 1  # largest index
_COLON, _HASH, _END = 58, 35, 10
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


def scan_libsvm(block: bytes) -> Scanned:
    """Parse a block of whole lines; the last one must end with a newline."""
    text = np.frombuffer(block, np.uint8)
    colons, lines = _most(text)
    data, indices = np.empty(colons), np.empty(colons, np.int32)
    lengths, y = np.empty(lines, np.int32), np.empty(lines)
    left = np.empty((colons + lines, 3), np.int64)  # pages never written take no memory
    marks = np.empty(colons + 2, np.int64)
    rows, entries, n_left, least, most, wrong, place = _scan_libsvm(text, data, indices, lengths, y, left, marks)
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
        lines += c == _END
    return colons, lines


@numba.njit(inline="always")
def _is_blank(c: int) -> bool:  # pragma: no cover - compiled
    """True for white space, including the newline."""
    return c == 32 or 9 <= c <= 13


@numba.njit(inline="always")
def _after_blanks(text: Bytes, p: int) -> int:  # pragma: no cover - compiled
    """Offset of the next word of this line, or of its comment or end."""
    while _is_blank(text[p]) and text[p] != _END:
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
    return c in (_END, _HASH)


@numba.njit(inline="always")
def _index(text: Bytes, p: int) -> tuple[np.int64, int]:  # pragma: no cover - compiled
    """Index of an entry, and offset of its value, or -1 if the entry is invalid."""
    p += text[p] == 43
    index, start = np.int64(0), p
    while is_digit(text[p]):
        if index <= _LARGEST_INDEX:
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
    elif index > _LARGEST_INDEX:
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
def _scan_libsvm(
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
        while text[p] != _END:
            p += 1
        p += 1
    return rows, entries, n_left, least, most, GOOD, p
