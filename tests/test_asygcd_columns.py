"""Asy-GCD's cache of kernel columns, and the rows of its working set."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.asygcd_pieces import variables, violated
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics.pairwise import rbf_kernel

from asygcd.solver.kernel_columns import BEFORE, HITS, MISSES, NEXT, KernelCaches, _padded, forget, resident, store
from asygcd.solver.owned import (
    FREE,
    FRESH,
    PENDING,
    apply_pending,
    bring,
    choose,
    note,
    thread_state,
    working_set,
)
from asygcd.solver.shared_state import shared_state
from cacore.compiled.pointers import Bundle
from cacore.errors import InputError
from cacore.kernels import Kernel

KERNEL = Kernel("gaussian", 0.3)
EXAMPLES = settings(max_examples=60, deadline=None)


# -- the cache ---------------------------------------------------------------------------------

N, MINE = 41, slice(13, 34)  # all rows, and those of the thread in the middle
FORMS = ["panels", "sparse", "wide"]


def rows(form):
    """The same kernel values, whatever the form."""
    X = np.random.default_rng(1).normal(size=(N, 3))
    X[np.abs(X) < 0.5] = 0
    if form == "wide":
        X = np.hstack([X, np.zeros((N, 5000))])[:, np.r_[0, 100:5002, 1, 3:100, 2]]
    return X if form == "panels" else sp.csr_matrix(X)


ORDER = np.random.default_rng(2).permutation(N)
K = rbf_kernel(rows("panels"), gamma=0.3)[np.ix_(ORDER, ORDER)]


def columns_of(form, slots, by_rows=True):
    """The KernelCaches of three threads, and the cache of the middle one, which has so many slots."""
    bounds = np.array([0, MINE.start, MINE.stop, N])
    each = 2 * _padded(MINE.stop - MINE.start) if by_rows else _padded(N)
    gram = KernelCaches(rows(form), KERNEL, ORDER, bounds, 3 * 8 * slots * each, np.float64, by_rows)
    own = gram.whole[1]
    assert len(own.held) == slots
    return gram, own


def used(own):
    """Slots from the most to the least recently used, by both ways round the ring."""
    ring, found = len(own.held), {}
    for way in (NEXT, BEFORE):
        found[way], at = [], own.links[ring, way]
        while at != ring:
            found[way].append(int(at))
            at = own.links[at, way]
            assert len(found[way]) <= ring
    assert found[NEXT] == found[BEFORE][::-1]
    assert sorted(found[NEXT]) == list(range(ring))
    return found[NEXT]


class Model:
    """Reference of an LRU cache's contents, the most recent last."""

    def __init__(self, slots):
        self.slots, self.kept, self.hits, self.misses = slots, OrderedDict(), 0, 0

    def want(self, column):
        if column in self.kept:
            self.hits += 1
            self.kept.move_to_end(column)
            return
        self.misses += 1
        if len(self.kept) == self.slots:
            self.kept.popitem(last=False)
        self.kept[column] = True


def check_cache(own, model, mine):
    """Both hold the same, used in the same order, and every value is right."""
    held = {int(column): slot for slot, column in enumerate(own.held) if column >= 0}
    assert set(held) == set(model.kept)
    assert [int(own.held[slot]) for slot in used(own) if own.held[slot] >= 0] == list(model.kept)[::-1]
    np.testing.assert_array_equal(np.flatnonzero(own.slot >= 0), sorted(held))
    assert all(own.slot[column] == slot for column, slot in held.items())
    assert (own.counts[HITS], own.counts[MISSES]) == (model.hits, model.misses)
    kept = store(own.columns)
    assert kept.shape[0] >= len(own.held)
    for column, slot in held.items():
        np.testing.assert_allclose(kept[slot, : len(K[mine])], K[mine, column], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("form", "by_rows"), [("panels", True), ("sparse", True), ("wide", True), ("panels", False)])
@EXAMPLES
@given(data=st.data())
def test_cache_follows_its_reference_model(form, by_rows, data):
    slots = data.draw(st.integers(2, 7), "slots")
    _, own = columns_of(form, slots, by_rows)
    model, mine = Model(slots), MINE if by_rows else slice(None)
    few = st.integers(0, min(N - 1, data.draw(st.sampled_from([slots, 2 * slots, N]), "most")))
    calls = data.draw(st.lists(st.one_of(st.lists(few, min_size=1, max_size=slots), st.none()), max_size=25), "wanted")
    for wanted in calls:
        if wanted is None:
            forget(Bundle(own))
            model.kept.clear()
        else:
            places = np.full(slots, -9)
            resident(Bundle(own), np.array(wanted), places[: len(wanted)])
            for column in wanted:
                model.want(column)
            assert [int(own.held[slot]) for slot in places[: len(wanted)]] == wanted
            assert (places[len(wanted) :] == -9).all()
        check_cache(own, model, mine)


@pytest.mark.parametrize("form", FORMS)
def test_a_cache_of_all_columns_computes_each_once(form):
    _, own = columns_of(form, N)
    places = np.empty(N, np.int64)
    for wanted in (np.arange(N), np.arange(N)[::-1].copy()):
        resident(Bundle(own), wanted, places)
        np.testing.assert_allclose(store(own.columns)[places, : MINE.stop - MINE.start], K[wanted, MINE], atol=1e-12)
    assert (own.counts[HITS], own.counts[MISSES]) == (N, N)


@pytest.mark.parametrize("form", FORMS)
def test_no_columns_are_wanted(form):
    _, own = columns_of(form, 3)
    resident(Bundle(own), np.zeros(0, np.int64), np.zeros(0, np.int64))
    check_cache(own, Model(3), MINE)


@pytest.mark.parametrize("form", FORMS)
def test_cache_slots_match_the_memory_budget(form):
    with pytest.raises(InputError):
        columns_of(form, 1)
    for slots in (2, 3, N):
        gram, _ = columns_of(form, slots)
        for columns in gram.whole + gram.near:
            assert 2 <= len(columns.held) <= N
            assert len(columns.held) * columns.size[1] <= len(columns.columns.fields.memory)
    gram = KernelCaches(rows(form), KERNEL, ORDER, np.array([0, N]), 1 << 30, np.float64, True)
    assert len(gram.whole[0].held) == N  # more would never be used


# -- rows of the working set ------------------------------------------------------------------------------


def shared(n, threads, rng):
    """Shared arrays in the middle of a solution."""
    low, high, beta, r = variables(n, rng)
    state = shared_state(np.ones(n), np.ones(n), np.ones(n), threads)
    for name, values in (("beta", beta), ("r", r), ("low", low), ("high", high)):
        getattr(state, name)[:] = values
    return state


@EXAMPLES
@given(
    n=st.integers(1, 120), most=st.integers(1, 60), room=st.integers(1, 60), seed=st.integers(0, 999),
    rounded=st.booleans(), share=st.sampled_from([0.0, 0.1, 0.5, 2.0]),
)  # fmt: skip
def test_the_rows_that_join_the_working_set(n, most, room, seed, rounded, share):
    rng = np.random.default_rng(seed)
    state, lo = shared(n + 10, 2, rng), 7
    hi = lo + n
    if rounded:  # many violate alike
        state.r[:] = np.round(state.r)
    low, high, beta, r = state.low[lo:hi], state.high[lo:hi], state.beta[lo:hi], state.r[lo:hi]
    v = violated(low, high, beta, r)
    free = (low < beta) & (beta < high)
    score = np.where(free, np.maximum(v, FREE * v.max()), v)
    least, ws = share * v.max(), working_set(most)
    ws.rows[:] = -1
    chosen = choose(Bundle(state), lo, hi, Bundle(ws), least, v.max(), room)
    picked, left = ws.rows[:chosen], score > least
    assert (np.diff(picked) > 0).all()
    assert ((picked >= 0) & (picked < n)).all()
    assert left[picked].all()
    assert chosen == min(left.sum(), most, room + 2 * free.sum())
    left[picked] = False
    if left.any():
        assert score[left].max() <= score[picked].min()
    assert (ws.rows[chosen:] == -1).all()


def test_ties_are_chosen_evenly_across_the_rows():
    state, ws = shared_state(np.ones(1000), np.ones(1000), np.ones(1000), 1), working_set(500)
    for room in (1, 7, 100, 499):
        chosen = choose(Bundle(state), 0, 1000, Bundle(ws), 1e-4, 1.0, room)
        assert chosen == room
        assert np.ptp(np.diff(np.append(ws.rows[:chosen], ws.rows[0] + 1000))) <= 1


@pytest.mark.parametrize("form", FORMS)
def test_columns_over_the_working_set(form):
    rng = np.random.default_rng(5)
    gram, _ = columns_of(form, 8)
    near, state, ws = gram.near[1], shared(N, 3, rng), working_set(MINE.stop - MINE.start)
    state.diagonal[:] = rng.random(N)
    for size in (21, 3, 1, 16, 20):
        chosen = np.sort(rng.choice(MINE.stop - MINE.start, size, replace=False))
        ws.rows[:size] = chosen
        bring(Bundle(state), MINE.start, Bundle(ws), Bundle(near), size)
        places = MINE.start + chosen
        for name in ("beta", "r", "low", "high", "diagonal"):
            np.testing.assert_array_equal(getattr(ws, name)[:size], getattr(state, name)[places])
        assert (near.held == -1).all()
        assert (near.slot == -1).all()
        for wanted in (rng.choice(N, 5, replace=False), rng.choice(N, 8, replace=False), places[:2]):
            slots = np.empty(len(wanted), np.int64)
            resident(Bundle(near), wanted, slots)
            np.testing.assert_allclose(store(near.columns)[slots, :size], K[np.ix_(wanted, places)], rtol=0, atol=1e-12)


@pytest.mark.parametrize("slots", [2, 3, 64, 150])
@pytest.mark.parametrize("given", [0, 1, 63, 64, 65, 150])
def test_pending_steps_are_taken_in(given, slots):
    rng, n = np.random.default_rng(6), 150
    X = rng.normal(size=(n, 2))
    bounds, values = np.array([0, 70, n]), rbf_kernel(X, gamma=0.3)
    gram = KernelCaches(X, KERNEL, np.arange(n), bounds, 2 * 8 * slots * 2 * _padded(80), np.float64, True)
    beta = np.zeros(n)
    beta[rng.choice(n, given, replace=False)] = rng.normal(size=given)
    for me, own in enumerate(gram.whole):
        mine, part = thread_state(n, 2, beta), slice(bounds[me], bounds[me + 1])
        r, expected = rng.normal(size=bounds[me + 1] - bounds[me]), beta.copy()
        after = r + values[part] @ beta
        apply_pending(Bundle(own), Bundle(mine), r)
        np.testing.assert_allclose(r, after, rtol=0, atol=1e-12)
        assert own.counts[MISSES] == given  # each column once
        for turn in range(2):
            mine.numbers[FRESH] = 1
            for _ in range(100):
                row, step = int(rng.integers(n)), float(rng.normal())
                note(Bundle(mine), row, step)
                expected[row] += step
                after += values[part, row] * step
            assert mine.numbers[FRESH] == 0
            assert mine.numbers[PENDING] == mine.waits.sum() == np.count_nonzero(mine.change)
            apply_pending(Bundle(own), Bundle(mine), r)
            np.testing.assert_allclose(r, after, rtol=0, atol=1e-11, err_msg=str(turn))
            assert not mine.numbers[PENDING]
            assert not mine.waits.any()
            assert not mine.change.any()


def test_steps_that_cancel_need_no_column():
    _, own = columns_of("panels", 4)
    mine, r = thread_state(N, 3, np.zeros(N)), np.ones(MINE.stop - MINE.start)
    for row in (3, 3, 40, 40):
        note(Bundle(mine), row, 0.5 if not mine.waits[row] else -0.5)
    note(Bundle(mine), 3, 0.0)
    assert mine.numbers[PENDING] == 2
    apply_pending(Bundle(own), Bundle(mine), r)
    assert (r == 1).all()
    assert not own.counts.any()
    assert not mine.numbers[PENDING]
    for row in (5, 9, 11):  # one to cancel comes last: the others are still taken in
        note(Bundle(mine), row, 1.0)
    note(Bundle(mine), 11, -1.0)
    apply_pending(Bundle(own), Bundle(mine), r)
    np.testing.assert_allclose(r, 1 + K[MINE, 5] + K[MINE, 9], rtol=0, atol=1e-12)
    assert own.counts[MISSES] == 2
