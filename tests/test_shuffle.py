"""The permutation that is evaluated row by row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacore.data.shuffle import Shuffle, mix64

seeds = st.integers(0, 2**64 - 1)


@given(n=st.integers(1, 3000), seed=seeds)
def test_bijection(n, seed):
    places = Shuffle(n, seed).position(np.arange(n))
    assert places.dtype == np.int64
    np.testing.assert_array_equal(np.sort(places), np.arange(n))


@given(n=st.integers(1, 2**48), seed=seeds, draw=st.data())
def test_row_is_the_inverse_of_position(n, seed, draw):
    rows = np.array(draw.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)))
    shuffle = Shuffle(n, seed)
    places = shuffle.position(rows)
    assert ((places >= 0) & (places < n)).all()
    np.testing.assert_array_equal(shuffle.row(places), rows)
    np.testing.assert_array_equal(shuffle.position(shuffle.row(rows)), rows)


@given(n=st.integers(2, 500), seed=seeds, cut=st.integers(1, 499))
def test_permutation_does_not_depend_on_pieces(n, seed, cut):
    cut = min(cut, n)
    whole = Shuffle(n, seed).position(np.arange(n))
    pieces = [Shuffle(n, seed).position(np.arange(lo, hi)) for lo, hi in ((0, cut), (cut, n))]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_arrays_are_not_changed():
    rows = np.arange(100)
    Shuffle(100, 4).position(rows)
    Shuffle(100, 4).row(rows)
    np.testing.assert_array_equal(rows, np.arange(100))


def test_permutations_of_one_and_zero_elements():
    assert Shuffle(9, 0).position(3).shape == (1,)
    assert Shuffle(9, 0).row([]).shape == (0,)


def test_seeds_differ():
    orders = {tuple(Shuffle(40, seed).position(np.arange(40))) for seed in range(50)}
    assert len(orders) == 50


def test_places_are_spread_evenly():
    """Row i's place over 1,000 seeds: chi-squared over 20 places, 19 degrees of freedom, 1e-6 quantile 63."""
    places = np.array([Shuffle(20, seed).position(np.arange(20)) for seed in range(1000)])
    counts = np.apply_along_axis(np.bincount, 0, places, minlength=20)
    assert ((counts - 50.0) ** 2 / 50.0).sum(axis=0).max() < 63


def test_neighbours_part():
    """A sorted file must not stay sorted: rank correlation of row and place, standard deviation 0.003."""
    places = Shuffle(100_000, 1).position(np.arange(100_000))
    assert abs(np.corrcoef(np.arange(100_000), places)[0, 1]) < 0.02


@pytest.mark.parametrize("n", [0, -3])
def test_no_rows(n):
    with pytest.raises(ValueError, match=f"n = {n}"):
        Shuffle(n, 0)


def test_mix64_is_splitmix64():
    """First outputs of SplitMix64 from seed 0 (its state grows by the golden gamma)."""
    state = np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert [hex(v) for v in mix64(state)] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]
