"""Pieces of Asy-GCD: atomics, searches, the end, and the blocks."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import NamedTuple

import numba
import numpy as np
import pytest
import scipy.sparse as sp
from helpers.asygcd_pieces import variables, violated
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core import types

from asygcd.solver.greedy import advance, greediest, optimum, violation
from asygcd.solver.owned import smallest
from asygcd.solver.shared_state import DONE, LINE, blocks, count, over, quiet, shared_state
from cacore.compiled.pointers import Bundle, address, atomic_add, caller, give_way, publish, seen

EXAMPLES = settings(max_examples=60, deadline=None)


def together(calls, seconds=600):
    """Run these at once, each in a thread of its own; a failure where one fails or takes too long."""
    results, failed = [None] * len(calls), []

    def run(k):
        try:
            results[k] = calls[k]()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        if thread.is_alive():
            pytest.fail(f"it has not ended after {seconds} seconds", pytrace=False)
    if failed:
        raise failed[0]
    return results


# -- atomics -----------------------------------------------------------------------------------


@numba.njit(nogil=True)
def add_up(totals, value, times):
    for k in range(times):
        atomic_add(totals, k % totals.size, value)


@pytest.mark.parametrize("size", [1, 7])
def test_atomic_adds_lose_nothing(size):
    totals = np.zeros(size)
    together([lambda value=value: add_up(totals, value, 100_000) for value in (1.0, 2.0, -0.5, 0.25)])
    # Sums of quarters are exact.
    expected = np.bincount(np.arange(100_000) % size, minlength=size) * 2.75
    np.testing.assert_array_equal(totals, expected)


@numba.njit(nogil=True)
def tell(values, counter, times):
    for k in range(times):
        values[k] = 3 * k + 1
        publish(counter, 0, k + 1)


@numba.njit(nogil=True)
def hear(values, counter, times):
    """How many values were not there when they should have been; and whether the counter ever fell."""
    known, wrong = 0, 0
    while known < times:
        at = seen(counter, 0)
        if at < known:
            return -1
        if at == known:
            give_way()
        while known < at:
            wrong += values[known] != 3 * known + 1
            known += 1
    return wrong


def test_what_is_published_brings_all_before_it():
    for _ in range(5):
        values, counter = np.zeros(200_000, np.int64), np.zeros(LINE, np.int64)
        calls = [lambda v=values, c=counter: tell(v, c, len(v))]
        calls += [lambda v=values, c=counter: hear(v, c, len(v))] * 2
        assert together(calls) == [None, 0, 0]


# -- bundles, and calls by address ---------------------------------------------------------------


class Inner(NamedTuple):
    table: np.ndarray
    flags: np.ndarray


class Outer(NamedTuple):
    inner: Bundle
    added: int
    places: np.ndarray


@numba.njit
def added(inner, places, factor):
    """Sum of some places of a table, and how many these are; a ValueError beyond it."""
    total = 0.0
    for k in places:
        if k >= inner.table.size:
            raise ValueError("beyond")
        total += factor * inner.table[k // 3, k % 3]
        inner.flags[k] += 1
    return total, places.size


_SUM, _PLACES = types.Tuple([types.float64, types.int64]), types.int64[::1]
by_address = caller(_SUM, types.int64, _PLACES, types.float64)


@numba.njit
def added_by_address(outer, factor):
    return by_address(outer.added, outer.inner, outer.places[1:], factor), outer.places.shape


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_bundle_reaches_a_function_by_address(dtype):
    inner = Inner(np.arange(6, dtype=dtype).reshape(2, 3), np.zeros(6, np.uint8))
    own, places = Bundle(inner), np.array([5, 1, 2, 4])
    at = address(added, _SUM, (own.kind, _PLACES, types.float64))
    outer = Bundle(Outer(own, at, places))
    assert added_by_address(outer, 2) == ((14.0, 3), (4,))  # the whole number is converted
    np.testing.assert_array_equal(inner.flags, [0, 1, 1, 0, 1, 0])
    places[3] = 6  # the bundle has the array itself
    with pytest.raises(ValueError, match="beyond"):
        added_by_address(outer, 2.0)


def test_bundles_hold_contiguous_arrays():
    with pytest.raises(AssertionError, match="table"):
        Bundle(Inner(np.zeros((4, 4))[:, ::2], np.zeros(1, np.uint8)))


@pytest.mark.parametrize("count", [1, 2, 3, 10, 257])
def test_the_smallest_in_order(count):
    rng = np.random.default_rng(count)
    for values in (rng.normal(size=count), rng.integers(0, 4, count).astype(float), np.zeros(count), np.arange(count)):
        for k in {0, count // 3, count - 1}:
            assert smallest(values.astype(float), k) == np.sort(values)[k]


# -- searches ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_greedy_choice_as_numpy_makes_it(dtype):
    rng = np.random.default_rng(3)
    for n in [*range(201), 1000, 1023, 1024, 1025]:
        low, high, beta, r = variables(n, rng)
        v = violated(low, high, beta, r)
        row, most = greediest(beta, r, low, high)
        assert (row, most) == ((v.argmax(), v.max()) if n else (-1, 0.0))
        # The column is one of a cache: it goes on where the rows have ended.
        column, before, step = rng.normal(size=n + 5).astype(dtype), r.copy(), float(rng.normal())
        row, most = advance(beta, r, low, high, column, step)
        np.testing.assert_allclose(r, before + step * column[:n].astype(np.float64), rtol=1e-14, atol=1e-15)
        v = violated(low, high, beta, r)
        assert (row, most) == ((v.argmax(), v.max()) if n else (-1, 0.0))


@pytest.mark.parametrize("n", [1, 31, 32, 33, 64, 100])
def test_every_place_is_found(n):
    low, high, beta = np.full(n, -5.0), np.full(n, 5.0), np.zeros(n)
    for where in range(n):
        for value in (3.0, -3.0, 1e300):
            r = np.full(n, 1e-3)
            r[where] = value
            assert greediest(beta, r, low, high) == (where, min(5.0, abs(value)))


@pytest.mark.parametrize("n", [1, 32, 50])
def test_nothing_is_violated(n):
    zero = np.zeros(n)
    row, most = greediest(zero, np.ones(n), zero, np.ones(n))
    assert 0 <= row < n
    assert most == 0


def test_one_row():
    rng = np.random.default_rng(4)
    low, high, beta, r = variables(300, rng)
    found = [violation(*one) for one in zip(beta, r, low, high, strict=True)]
    np.testing.assert_array_equal(found, violated(low, high, beta, r))
    best = [optimum(*one, 2.0) for one in zip(beta, r, low, high, strict=True)]
    np.testing.assert_array_equal(best, np.clip(beta - r / 2, low, high))
    # Without curvature, or with a negative one, down to the bound.
    assert optimum(0.5, 1.0, 0.0, 1.0, 0.0) == optimum(0.5, 1.0, 0.0, 1.0, -1.0) == 0.0
    assert optimum(0.5, -1.0, 0.0, 1.0, 0.0) == optimum(0.5, -1.0, 0.0, 1.0, -1.0) == 1.0
    assert optimum(0.5, 0.0, 0.0, 1.0, 0.0) == 0.5


# -- how it ends -------------------------------------------------------------------------------


@EXAMPLES
@given(
    totals=st.lists(st.integers(0, 3), min_size=1, max_size=9), calm=st.integers(-1, 12), apart=st.booleans(),
    odd=st.one_of(st.none(), st.integers(0, 8)), late=st.integers(0, 1),
)  # fmt: skip
def test_it_is_over_only_if_all_are_calm_at_the_same_total(totals, calm, apart, odd, late):
    threads, total = len(totals), sum(totals)
    state = shared_state(np.ones(12), np.ones(12), np.ones(12), threads, apart=apart)
    state.written[::LINE] = totals
    state.started[::LINE] = totals
    state.calm[::LINE] = total
    if odd is not None:
        state.calm[odd % threads * LINE] = calm
    begun = late and apart
    state.started[0] += begun  # an update under way
    assert count(state.written) == total
    expected = (state.calm[::LINE] == total).all() and not begun
    assert over(Bundle(state), total) == expected
    assert state.stop[0] == (DONE if expected else 0)
    state.stop[0] = 0
    state.calm[::LINE] = np.minimum(state.calm[::LINE], total)
    assert not over(Bundle(state), total + 1)  # somebody counts what the others have not seen
    assert state.stop[0] == 0


def test_quiet_while_nothing_happens():
    state = shared_state(np.ones(3), np.ones(3), np.ones(3), 2)
    assert quiet(state.written, state.stop, 0)
    assert not quiet(state.written, state.stop, 1)
    state.written[LINE] = 1
    assert quiet(state.written, state.stop, 1)
    state.stop[0] = DONE
    assert not quiet(state.written, state.stop, 1)


def test_a_board_at_zero():
    y, C = np.array([1.0, -1.0, 1.0, -1.0]), np.array([2.0, 3.0, 0.0, 0.0])
    state = shared_state(y, C, np.ones(4), 3, log=5)
    assert not state.beta.any()
    np.testing.assert_array_equal(state.r, -y)
    np.testing.assert_array_equal(state.low, [0, -3, 0, 0])
    np.testing.assert_array_equal(state.high, [2, 0, 0, 0])
    assert state.log.shape == (3, 5, 2)
    assert state.started is state.written
    assert (state.calm == -1).all()
    for threads in (1, 2, 8, 9, 17):
        state = shared_state(y, C, np.ones(4), threads, apart=True)
        assert not np.shares_memory(state.started, state.written)
        # What a thread writes lies in cache lines of its own.
        assert state.taken.size % (threads * LINE) == 0
        assert state.taken.size // threads >= threads
        for counter in (state.started, state.written, state.calm, state.eager, state.gap, state.part):
            assert counter.size == threads * LINE


# -- blocks ------------------------------------------------------------------------------------


def check_blocks(X, threads, seed=0, even=True):
    n = X.shape[0]
    order, bounds = blocks(X, threads, seed)
    np.testing.assert_array_equal(np.sort(order), np.arange(n))
    assert (len(bounds), bounds[0], bounds[-1]) == (threads + 1, 0, n)
    assert all(a < b for a, b in pairwise(bounds))
    sizes = np.diff(bounds)
    assert sizes.min() >= 0.5 * n // threads
    if even:
        assert sizes.max() <= -(-2 * n // threads)
    return order, bounds


@EXAMPLES
@given(
    n=st.integers(1, 300), threads=st.integers(1, 20), distinct=st.integers(1, 300), skew=st.floats(0, 3),
    seed=st.integers(0, 99), sparse=st.booleans(),
)  # fmt: skip
def test_blocks_of_any_rows(n, threads, distinct, skew, seed, sparse):
    rng, threads = np.random.default_rng(seed), min(n, threads)
    # Some rows come much more often than others.
    share = (1.0 + np.arange(distinct)) ** -skew
    X = rng.normal(size=(distinct, 3))[rng.choice(distinct, n, p=share / share.sum())]
    X[np.abs(X) < 0.3] = 0
    X = sp.csr_matrix(X) if sparse else X
    order, bounds = check_blocks(X, threads, seed)
    again = blocks(X, threads, seed)
    np.testing.assert_array_equal(order, again[0])
    np.testing.assert_array_equal(bounds, again[1])


@pytest.mark.parametrize("threads", [2, 3, 4, 8])
@pytest.mark.parametrize("share", [0.3, 0.4, 0.5, 0.55, 0.6, 0.7, 0.9])
def test_blocks_of_data_with_one_row_many_times(share, threads):
    rng, many = np.random.default_rng(7), int(share * 1000)
    X = np.concatenate([np.ones((many, 4)), 10 * rng.normal(size=(1000 - many, 4))])[rng.permutation(1000)]
    check_blocks(X, threads)


@pytest.mark.parametrize("sparse", [False, True])
def test_blocks_of_rows_that_are_all_equal(sparse):
    X = np.ones((77, 3))
    for threads in (1, 2, 5, 76, 77):
        check_blocks(sp.csr_matrix(X) if sparse else X, threads)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 40])
def test_as_many_threads_as_rows(n):
    X = np.random.default_rng(8).normal(size=(n, 2))
    for rows_ in (X, np.zeros((n, 2)), sp.csr_matrix(X)):
        _, bounds = check_blocks(rows_, n)
        np.testing.assert_array_equal(np.diff(bounds), np.ones(n))


def test_blocks_are_rows_that_lie_close_to_each_other():
    rng = np.random.default_rng(9)
    centers = 100 * rng.normal(size=(64, 3))
    group = np.arange(64).repeat(30)
    order, bounds = check_blocks(centers[group] + 0.01 * rng.normal(size=(len(group), 3)), 4)
    owner = np.empty(len(group), np.int64)
    owner[order] = np.arange(4).repeat(np.diff(bounds))
    alone = sum(len(np.unique(owner[group == one])) == 1 for one in range(64))
    assert alone >= 48  # K-means parts some, and so do three cuts
