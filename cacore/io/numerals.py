"""Conversion of decimal text to doubles in compiled code, rounded exactly as by Python's ``float``.

A number of few digits is exact in double precision, and so is its power of ten: one multiplication rounds correctly
(Clinger, PLDI 1990). Any other number of up to 19 digits is a 64-bit word times 5^q, for which 128 bits suffice to
round correctly (Lemire, Software: Practice and Experience 51, 2021; proof for all cases: Mushtak and Lemire, ibid. 53,
2023). A number of more than 19 digits is cut off there, and rounded both down and up in the 19th digit. If the two
doubles differ, the number is left to ``float``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from cacore.arrays import Bytes

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
