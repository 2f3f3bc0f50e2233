"""Numbers of a LIBSVM text are Python's, to the bit, and its grammar is the one that messages tell."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cacore.io.scanners import CellLayout, scan_delimited, scan_libsvm

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
    assert (found.fault, len(found.y)) == (None, len(words))
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
    assert (found.fault is None) == valid or (not said and "#" not in word)
    if found.fault is not None:
        shown = said or "1:2"
        assert found.fault == (1, f"{shown!r} is not the target, which must be a number")
    if said and not re.search("[:#]", word):
        assert (scan_libsvm(f"1 7:{word}\n".encode()).fault is None) == valid


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("1 2147483647:1", None),
        ("1 2147483648:1", "'2147483648:1': the largest index is 2147483647"),
        ("1 00000000000000000000000001:1 +2:1", None),
        ("1 1:1 4294967298:1", "'4294967298:1': the largest index is 2147483647"),
        ("1 3:1 3:2", "'3:2': the indices must ascend"),
        ("1 qid:3 1:1 # 1:1", None),
        ("1\t1:1\r", None),
        ("1#2:x", None),
        ("\x0b\x0c1  2:1\t", None),
        ("1 1:2:3", "'1:2:3' is not index:value"),
        ("1 1: 2", "'1:' is not index:value"),
        ("1 1:2 qid:3", "'qid:3' is not index:value"),
        ("1 1:2,3", "'1:2,3' is not index:value"),
        ('1 1:"2"', "'1:\"2\"' is not index:value"),
    ],
)
def test_entries(line, fault):
    found = scan_libsvm(f"{line}\n".encode())
    assert found.fault == (None if fault is None else (0, fault))
    if fault is not None:
        assert (len(found.y), len(found.data)) == (0, 0)


def test_a_byte_order_mark_is_no_part_of_a_number():
    assert scan_libsvm("\ufeff1 1:2\n".encode()).fault[1].endswith("is not the target, which must be a number")


@pytest.mark.parametrize("end", ["\n", "\r\n", "  \n", "\n\n"])
@pytest.mark.parametrize("delimiter", [",", "\t", " , "])
def test_cells(delimiter, end):
    """Columns left out and labels may hold any text; whole numbers that are no doubles are marked."""
    layout = CellLayout(delimiter.strip(" "), 4, [3, 0], [2], as_words=True)
    rows = [HARD[k : k + 2] for k in range(0, len(HARD) - 1, 2)]
    block = "".join(delimiter.join([a, "left out", f"word{len(a)}", b]) + end for a, b in rows).encode()
    cells = scan_delimited(block, layout)
    np.testing.assert_array_equal(cells.X, [[float(b), float(a)] for a, b in rows])
    assert cells.words == [f"word{len(a)}" for a, _ in rows]
    assert (cells.rounded.tolist(), cells.y.shape) == ([True, False, False, True], (len(rows), 1))


@pytest.mark.parametrize(
    "block", ["1,2\n3\n", "1,2\n3,4,5\n", "1\n2,3,4\n", "1,x\n", "1,\n", '1,"2"\n', "1,2\r3,4\n", "1,\r2\n", "1, 2 3\n"]
)
def test_blocks_for_the_csv_module(block):
    assert scan_delimited(block.encode(), CellLayout(",", 2, [0], [1], as_words=False)) is None
