"""Grids of parameters."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacore.errors import InputError
from cacore.tuning import checked, parse

positive = st.floats(1e-12, 1e12)


@given(positive)
def test_a_number(value):
    assert parse(repr(value), "--sigma") == (value,)


@given(st.lists(positive, min_size=1, max_size=9))
def test_a_list_is_ascending_without_repetition(values):
    assert parse(",".join(map(repr, values)), "--sigma") == tuple(sorted(set(values)))


@given(low=positive, ratio=st.floats(1.001, 1e6), count=st.integers(2, 40))
def test_a_range_has_equal_ratios(low, ratio, count):
    values = parse(f"{low!r}:{low * ratio!r}:{count}", "--lambda")
    assert len(values) == count
    assert (values[0], values[-1]) == pytest.approx((low, low * ratio), rel=1e-12)
    np.testing.assert_allclose(np.diff(np.log(values)), np.log(ratio) / (count - 1), rtol=1e-7)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-7:1e-3:5", (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)),
        ("100:1:3", (1.0, 10.0, 100.0)),
        ("2:2:1", (2.0,)),
        ("2:2:4", (2.0,)),
        (" 1 , 0.5 ", (0.5, 1.0)),
    ],
)
def test_examples(text, values):
    assert parse(text, "--sigma") == pytest.approx(values)


@pytest.mark.parametrize(
    "text",
    [
        "", "a", "1,", ",", "1,b", "1;2", "0", "-1", "1,0", "nan", "inf", "1,-inf", "1e-400", "1e400",
        "1:2", "1:2:3:4", "1:2:0", "1:2:-1", "1:2:1", "1:2:2.5", "0:1:3", "-1:1:3", "1:x:3", ":", "::",
        "1:inf:3", "nan:1:3", "1:nan:3",
    ],
)  # fmt: skip
def test_bad_text_is_one_error_that_names_the_option(text):
    with pytest.raises(InputError, match="--sigma"):
        parse(text, "--sigma")


def test_more_values_than_memory():
    with pytest.raises(InputError, match="--sigma"):
        parse("1:2:1000000000000000", "--sigma")


@given(st.text("0123456789.,:eE+- naif", max_size=9))
def test_any_text_is_a_grid_or_an_error(text):
    values, message = (), ""
    try:
        values = parse(text, "--sigma")
    except InputError as error:
        message = str(error)
    assert values or "--sigma" in message
    assert list(values) == sorted(set(values))
    assert all(0 < value < np.inf for value in values)


@pytest.mark.parametrize(
    ("values", "want"),
    [(2, (2.0,)), ([3, 1, 3], (1.0, 3.0)), (np.array([0.5]), (0.5,)), (np.float32(0.25), (0.25,))],
)
def test_checked(values, want):
    assert checked(values, "sigma") == want


@pytest.mark.parametrize("values", [[], "x", None, [1, None], {"a": 1}, [1, 0], -2, [[1, 2], [3, 4]]])
def test_checked_refuses(values):
    with pytest.raises(InputError, match="sigma"):
        checked(values, "sigma")


def test_the_list_is_not_changed():
    values = np.array([3.0, 1.0])
    checked(values, "sigma")
    np.testing.assert_array_equal(values, [3.0, 1.0])
