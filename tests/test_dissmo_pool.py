"""Dis-SMO's pool of rows, and its kernel values of some rows with others."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import near
from helpers.dissmo import FORMS, KERNEL, problem
from helpers.references import matrix
from hypothesis import given, settings
from hypothesis import strategies as st

from cacore.kernels.columns import Layout
from casvm.solver.distributed import Pool
from casvm.solver.kernel_rows import KernelRows, RowCache, padded, staying

# -- the pool --------------------------------------------------------------------------------------


@given(
    st.integers(1, 12), st.booleans(), st.integers(0, 2**32),
    st.lists(st.integers(1, 12), min_size=1, max_size=25), st.integers(1, 30),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_pool(capacity, csr, seed, sizes, variety):
    """The least recently used make room, the lower slot of equals; every row is where it is said to be."""
    rng = np.random.default_rng(seed)
    X = np.round(rng.normal(size=(variety, 3)), 1) * (rng.random((variety, 3)) < 0.7)
    X = sp.csr_matrix(X) if csr else X
    pool = Pool(X, capacity)
    held, used = [-1] * capacity, [0] * capacity  # the model: number of each slot's row, and when it was needed last
    for now, size in enumerate(sizes, 1):
        numbers = np.sort(rng.permutation(variety)[: min(size, capacity)])
        slots = pool.slots(numbers)
        assert slots.tolist() == [held.index(number) if number in held else -1 for number in numbers]
        for slot in slots[slots >= 0]:
            used[slot] = now
        missing = np.flatnonzero(slots < 0)
        into = pool.free(len(missing))
        assert into.tolist() == sorted(range(capacity), key=lambda slot: (used[slot], slot))[: len(missing)]
        assert not set(into) & set(slots)
        pool.put(into, numbers[missing], X[numbers[missing]])
        slots[missing] = into
        for number, slot in zip(numbers[missing], into, strict=True):
            held[slot], used[slot] = number, now
        assert pool.X.shape == (capacity, 3)
        for slot, number in enumerate(held):
            if number >= 0:
                row, expected = pool.X[[slot]], X[[number]]
                assert abs(row - expected).sum() == 0
    assert pool.X.dtype == X.dtype
    assert sp.issparse(pool.X) == csr


# -- kernel values of some rows with others ---------------------------------------------------------


@pytest.fixture(params=[(form, dtype) for form in ("dense", "csr") for dtype in ("float64", "float32")], ids="-".join)
def crossed(request, tuned):
    """150 rows, 1500 sources, and kernel values of both with room for some rows of K, which are kept at once."""
    tuned(touch=0.0)
    form, dtype = request.param
    X, S = FORMS[form](problem()[0][:150]), FORMS[form](problem(1700)[0][200:])
    layout = Layout.of(X, KERNEL, np.dtype(dtype))

    def make(rows_of_k):
        room = layout.nbytes(X) + rows_of_k * padded(150) * np.dtype(dtype).itemsize
        return KernelRows(X, KERNEL, dtype, room, layout, S)

    return X, S, make, 1e-12 if dtype == "float64" else 1e-5


def subtracted(gram, rows, change):
    v = np.zeros(len(gram.active))
    gram.subtract(rows, change, v, np.ones(len(rows), np.bool_))
    return -v


@pytest.mark.parametrize("room", [0, 7, 1500])
def test_sources(room, crossed):
    X, S, make, precision = crossed
    gram, rng = make(room), np.random.default_rng(0)
    K = matrix(KERNEL, S, X)
    rows, change = np.array([3, 17, 0, 1499, 21]), rng.normal(size=5)
    square = gram.square(rows)
    near(square[:5, :5], matrix(KERNEL, S[rows]), precision)
    active = np.arange(150)
    for step in ("all", "restrict", "activate", "activate"):
        if step == "restrict":
            active = active[::2]
            gram.restrict(np.arange(0, 150, 2))
        elif step == "activate":
            active = np.sort(rng.permutation(150)[: len(active) + 30])
            gram.activate(active)
        for _ in range(2):  # computed, and read again
            expected = change @ K[np.ix_(rows, active)]
            near(subtracted(gram, rows, change), expected, 10 * precision)
    columns = np.array([149, 2, 77])
    expected = change @ K[np.ix_(rows, columns)]
    near(gram.outside(rows, change, columns), expected, 10 * precision)
    for exact in (False, True):
        got = gram.product(S, rows, change, columns, exact=exact)
        near(got, expected, 1e-12 if exact else 10 * precision)
    assert gram.product(S, rows[:0], change[:0], columns).tolist() == [0.0] * 3


@pytest.mark.parametrize("price", [0.0, np.inf])
def test_squares_of_rows_that_stay(price, crossed, tuned):
    """Values of rows that stay are kept, half of the others follow by symmetry, or all are computed anew."""
    tuned(mirrored=price, square_strip=16)
    _, S, make, precision = crossed
    gram, K, rng = make(0), matrix(KERNEL, S), np.random.default_rng(1)
    last = np.zeros(0, np.int64)
    for size in (70, 70, 41, 67, 90, 3, 200):
        others = np.setdiff1d(np.arange(1500), last)
        numbers = np.sort(np.concatenate([rng.permutation(last)[: size // 2], rng.permutation(others)])[:size])
        order, stay = staying(last, numbers)
        rows = numbers[order]
        assert sorted(rows) == numbers.tolist()
        np.testing.assert_array_equal(rows[: len(stay)], last[stay])
        assert not set(rows[len(stay) :]) & set(last)
        got = gram.square_from(rows, stay)[:size, :size]
        near(got, K[np.ix_(rows, rows)], precision)
        if price == 0:
            np.testing.assert_array_equal(got, got.T)
        last = rows
    before = gram.values_computed
    gram.square_from(last, np.arange(200))
    assert gram.values_computed - before == (0 if price == 0 else 200**2)


@pytest.mark.parametrize("shrunk", [False, True])
def test_forget(shrunk, crossed):
    """A source that has become another is computed again, also where rows over all columns are kept aside."""
    X, S, make, precision = crossed
    gram, K = make(1500), matrix(KERNEL, S, X)
    rows, change = np.array([3, 17, 5]), np.array([1.0, -2.0, 0.5])
    subtracted(gram, rows, change)
    if shrunk:
        gram.restrict(np.arange(100))
        assert gram._all is not None
    active, computed = gram.active, gram.rows_computed
    subtracted(gram, rows, change)
    assert gram.rows_computed == computed  # all of them were in memory
    place = np.arange(1500)
    place[17] = 900
    gram.sources = S[place]
    gram.forget(np.array([17, 30]))
    K[17] = K[900]
    expected = change @ K[np.ix_(rows, active)]
    near(subtracted(gram, rows, change), expected, 10 * precision)
    assert gram.rows_computed == computed + 1
    if shrunk:
        expected = change @ K[np.ix_(rows, [149])]
        got = gram.outside(rows, change, np.array([149]))
        near(got, expected, 10 * precision)


def test_dropped_rows_free_their_slots_first():
    cached = RowCache(np.zeros(4 * padded(10)), 10, 12)

    def ask(*rows):
        slots, known = cached.places(np.array(rows), np.ones(len(rows), np.bool_))
        return slots.tolist(), known.tolist()

    assert ask(0, 1, 2, 3) == ([0, 1, 2, 3], [False] * 4)
    cached.drop(np.array([2, 7, 11]))
    assert (cached.count, cached.slot[[0, 1, 2, 3]].tolist()) == (3, [0, 1, -1, 3])
    assert ask(9) == ([2], [False])
    assert ask(0, 1, 3) == ([0, 1, 3], [True] * 3)
    cached.drop(np.array([1, 3]))
    assert cached.count == 2
    assert ask(1, 2) == ([1, 3], [False] * 2)
