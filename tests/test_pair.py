"""The inner loop of SMO and its two passes: against numpy, and against what defines a step."""

from __future__ import annotations

import itertools

import numba
import numpy as np
import pytest
from helpers.references import matrix
from hypothesis import given, settings
from hypothesis import strategies as st

from cacore.compiled.vectors import AT_KINK, FALL, RISE, partner, update
from cacore.kernels import Kernel
from casvm.solver.active_set import Pairs
from casvm.solver.kernel_rows import padded

TYPES = [(np.float64, np.float64), (np.float64, np.float32), (np.float32, np.float32)]  # of v and of K
LEAST = 1e-12


@numba.njit
def updated(v, may, first, second, step, width):
    return update(v, may, first, second, step, width, v.size)


@numba.njit
def chosen(v, may, row, diagonal, k_ii, top, width, least):
    return partner(v, may, row, diagonal, k_ii, top, width, least, v.size)


def drawn(real, of_k, count, seed):
    """v, flags and two rows of K of so many rows; numbers that are equal now and then, and exact in either type."""
    rng = np.random.default_rng(seed)
    v, first, second = rng.integers(-8, 9, (3, padded(count))) / 8
    may = rng.choice([0, RISE, FALL, RISE | FALL, FALL | AT_KINK, RISE | FALL | AT_KINK], padded(count))
    may[count:] = 0
    return v.astype(real), may.astype(np.uint8), first.astype(of_k), second.astype(of_k)


@pytest.mark.parametrize(("real", "of_k"), TYPES)
@pytest.mark.parametrize("width", [None, 0.25])
@settings(max_examples=60)
@given(count=st.integers(1, 150), seed=st.integers(0, 1000))
def test_passes(real, of_k, width, count, seed):
    """All numbers are exact, so numpy finds the same rows: the first of equals, in whatever lane it lies."""
    v, may, first, second = drawn(real, of_k, count, seed)
    after = v - 0.5 * (first - second)
    rises, falls = may & RISE > 0, may & FALL > 0
    falling = after + (width or 0.0) * (may & AT_KINK > 0)
    row, top, bottom = updated(v, may, first, second, 0.5, width)
    assert np.array_equal(v, after)
    assert top == np.max(after, where=rises, initial=-np.inf)
    assert bottom == np.min(falling, where=falls, initial=np.inf)
    if rises.any():
        assert row == np.flatnonzero(rises & (after == top))[0]
    gains = np.maximum(1.0 - falling, 0.0).astype(of_k) ** 2 / np.maximum(2.0 - 2.0 * first, of_k(LEAST))
    j = chosen(v, may, first, np.ones(len(v), of_k), of_k(1.0), 1.0, width, of_k(LEAST))
    if falls.any():
        assert j == np.argmax(np.where(falls, gains, -1.0))


def problem(n, of_k, scale, epsilon):
    """A regression's, with targets of this size; its matrix, and its matrix with room for whole vectors."""
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, 3))
    K = matrix(Kernel("gaussian", gamma=0.3), X).astype(of_k)
    wide = np.zeros((n, padded(n)), of_k)
    wide[:, :n] = K
    y, C = scale * (np.sin(X[:, 0]) + 0.3 * rng.normal(size=n)), 5.0 * scale
    return Pairs(y, np.zeros(n), np.full(n, -C), np.full(n, C), np.ones(n), epsilon * scale), y, K, wide


@pytest.mark.parametrize(
    ("of_k", "scale"), [*itertools.product((np.float32, np.float64), (1e-3, 1.0, 1e6, 1e12)), (np.float64, 1e35)]
)
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_v_is_exact_and_no_pair_violates(of_k, scale, epsilon):
    """In whatever precision steps were taken: v = y - K beta to double precision, and the rule to the tolerance."""
    n, tol = 150, 1e-6
    pairs, y, K, wide = problem(n, of_k, scale, epsilon)
    assert pairs.optimise(wide, np.arange(n), tol * scale, 200_000) == -1
    v, beta = y - K.astype(np.float64) @ pairs.beta, pairs.beta
    np.testing.assert_allclose(pairs.v, v, rtol=0, atol=1e-11 * scale)
    assert abs(beta.sum()) <= 1e-12 * np.abs(beta).sum()
    assert 0 < pairs.iterations < 200_000
    top = np.max(v - np.where(beta < 0, -epsilon, epsilon) * scale, where=beta < 5 * scale, initial=-np.inf)
    bottom = np.min(v + np.where(beta > 0, -epsilon, epsilon) * scale, where=beta > -5 * scale, initial=np.inf)
    assert top - bottom < 1.001 * tol * scale


@pytest.mark.parametrize("most", [1, 7, 100_000])
def test_a_limit_and_rows_that_are_missing(most):
    """v is exact wherever the loop ends; rows of K come one by one, and the end is that with a whole matrix."""
    n = 100
    whole, _, K, wide = problem(n, np.float32, 1.0, 0.1)
    whole.optimise(wide, np.arange(n), 1e-3, most)
    assert whole.iterations <= most
    pairs, y, _, _ = problem(n, np.float32, 1.0, 0.1)
    where, rows, missing = np.full(n, -1), np.zeros_like(wide), 0
    while missing >= 0:
        missing = pairs.optimise(rows, where, 1e-3, most - pairs.iterations)
        np.testing.assert_allclose(pairs.v, y - K.astype(np.float64) @ pairs.beta, rtol=0, atol=1e-12)
        if missing >= 0:
            assert where[missing] == -1
            where[missing], rows[missing] = missing, wide[missing]
    if most < 10:
        assert pairs.iterations == whole.iterations == most
        np.testing.assert_allclose(pairs.beta, whole.beta, rtol=0, atol=1e-5)
    ends = [0.5 * (y + one.v) @ one.beta - 0.1 * np.abs(one.beta).sum() for one in (pairs, whole)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-5)


def test_a_row_that_may_not_move_does_not_count():
    """Its v, however large, takes nothing from the precision of the others; and one that is infinite is left alone."""
    n, tol = 60, 1e-6
    _, y, _, wide = problem(n, np.float32, 1.0, 0.1)
    ends = []
    for strange in (0.0, 1e9, np.inf):
        y[7], C = strange, np.where(np.arange(n) == 7, 0.0, 5.0)
        pairs = Pairs(y, np.zeros(n), -C, C, np.ones(n), 0.1)
        assert pairs.optimise(wide, np.arange(n), tol, 100_000) == -1
        assert pairs.beta[7] == 0
        ends.append(pairs.beta)
    for beta in ends[1:]:
        np.testing.assert_allclose(beta, ends[0], rtol=0, atol=1e-4)


def test_rounding_does_not_add_up(tuned):
    """v is brought up to date now and then: as good an end, whatever the number of steps between."""
    n, ends = 150, []
    for steps in (3, 10_000):
        tuned(pair_steps=steps)
        pairs, y, K, wide = problem(n, np.float32, 1.0, 0.1)
        pairs.optimise(wide, np.arange(n), 1e-4, 100_000)
        np.testing.assert_allclose(pairs.v, y - K.astype(np.float64) @ pairs.beta, rtol=0, atol=1e-11)
        ends.append(0.5 * (y + pairs.v) @ pairs.beta - 0.1 * np.abs(pairs.beta).sum())
    assert ends[0] == pytest.approx(ends[1], rel=1e-6)
