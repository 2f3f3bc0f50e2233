"""Numbers of a LIBSVM text are Python's, to the bit, and its grammar is the one that messages tell."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cacore.io.scanners import GOOD, LARGE, ORDER, TARGET, scan_libsvm

NUMBER = re.compile(r"[+-]?(\d+\.?\d*(e[+-]?\d+)?|\.\d+(e[+-]?\d+)?|inf(inity)?|nan)", re.IGNORECASE | re.ASCII)


def halfway(x):
    """The number in the middle between a double and the next one, all its digits."""
    middle = (Fraction(float(x)) + Fraction(float(np.nextafter(x, np.inf)))) / 2
    digits = middle.denominator.bit_length() - 1  # behind the point: the denominator is a power of two
    return f"{middle.numerator * 5**digits}e-{digits}"


# Powers of two, of ten, the ends of the range, numbers half way between doubles and just beside, words of 19 digits.
HARD = [
    *(repr(2.0**k) for k in range(-1074, 1024, 17)), *(f"1e{k}" for k in range(-345, 312, 3)),
    *(f"9007199254740993{zeros}" for zeros in ("", "0", "00000", "e5", "e-5")), "9007199254740993.00000000000000000001",
    *(halfway(x).replace("e", f"{more}e") for x in (1.0, 1.5, 3e15, 0.1, 1e22, 1e23) for more in ("", ".0001")),
    "2.2250738585072011e-308", "2.2250738585072012e-308", "4.9406564584124654e-324", "2.47032822920623272e-324",
    "2.4703282292062328e-324", "1.7976931348623157e308", "1.7976931348623158e308", "1.7976931348623159e308", "1e309",
    "18446744073709551615", "18446744073709551616", "9999999999999999999e-27", "12345678901234567890123e-10",
    "0.000000000000000000000000000000000000000000000123456789012345678901", "1" + "0" * 400, "0." + "0" * 400 + "1",
    "1e99999999999999999999", "0e99999999999999999999", "1e-99999999999999999999", "-0", "+.5", "5.", "-.0e-0",
    "0" * 30 + "1" + "0" * 30 + "e-30", "inf", "-Infinity", "nan",
]  # fmt: skip


def check(words):
    """Check the words as targets: the bits of all doubles."""
    found = scan_libsvm("".join(f"{word}\n" for word in words).encode())
    assert (found.wrong, len(found.y)) == (GOOD, len(words))
    want = np.array([float(word) for word in words])
    np.testing.assert_array_equal(found.y[~np.isnan(want)].view(np.int64), want[~np.isnan(want)].view(np.int64))
    np.testing.assert_array_equal(np.isnan(found.y), np.isnan(want))


def test_hard_numbers():
    check(HARD)


@settings(max_examples=200, deadline=None)
@given(words=st.lists(st.floats(allow_nan=False).map(repr) | st.from_regex(NUMBER, fullmatch=True), min_size=1))
def test_numbers(words):
    check(words)


@settings(max_examples=150, deadline=None)
@given(bits=st.integers(0, 2**62), more=st.sampled_from(["", ".0", ".00000000000000000001"]))
def test_numbers_half_way(bits, more):
    """Nothing but all the digits tells where these belong."""
    check([halfway(np.int64(bits).view(np.float64)).replace("e", f"{more}e")])


@settings(max_examples=200, deadline=None)
@given(word=st.text("0123456789.eE+-_xinfatyNI,:#", max_size=8))
@example("1e")
@example("1e+")
@example("infinit")
@example(".")
@example("-.e1")
def test_what_a_number_is(word):
    found = scan_libsvm(f"1\n{word} 1:2\n".encode())
    said = word.split("#")[0]
    valid = NUMBER.fullmatch(said) is not None or not said
    assert (found.wrong == GOOD) == valid or (not said and "#" not in word)
    if found.wrong != GOOD:
        assert (found.wrong, found.place, len(found.y)) == (TARGET, 2 + (not said), 1)
    if said and not re.search("[:#]", word):
        assert (scan_libsvm(f"1 7:{word}\n".encode()).wrong == GOOD) == valid


@pytest.mark.parametrize(
    ("line", "wrong", "place"),
    [
        ("1 2147483647:1", GOOD, None),
        ("1 2147483648:1", LARGE, 2),
        ("1 00000000000000000000000001:1 +2:1", GOOD, None),
        ("1 1:1 4294967298:1", LARGE, 6),
        ("1 3:1 3:2", ORDER, 6),
        ("1 qid:3 1:1 # 1:1", GOOD, None),
        ("1\t1:1\r", GOOD, None),
        ("1#2:x", GOOD, None),
        ("\x0b\x0c1  2:1\t", GOOD, None),
    ],
)
def test_entries(line, wrong, place):
    found = scan_libsvm(f"{line}\n".encode())
    assert found.wrong == wrong
    if wrong != GOOD:
        assert (found.place, len(found.y), len(found.data)) == (place, 0, 0)
