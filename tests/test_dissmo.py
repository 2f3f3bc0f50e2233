"""Dis-SMO's solver on one rank, where `working_set` asks for it: against LIBSVM, and what it is made of.

On more ranks: tests/mpi/test_dissmo.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import equal_fields, inodes, near, same_part
from helpers.data import as_csr, curved, drawn_clouds
from helpers.references import dual, libsvm, matrix, violation
from hypothesis import given, settings
from hypothesis import strategies as st

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint, Unfinished
from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.limits import Limits
from cacore.machine.memory import MemoryLimitError
from cacore.svm.dual import Dual
from cacore.svm.options import GIB
from casvm.dissmo import dissmo
from casvm.options import Options
from casvm.solver import distributed, kernel_rows
from casvm.solver.active_set import ActiveSet
from casvm.solver.kernel_rows import KernelRows
from casvm.solver.pair import padded
from casvm.solver.pool import Pool
from casvm.solver.row_cache import RowCache

PLENTY = 1 << 26
KERNELS = {
    "linear": (Kernel("linear"), 0.1),
    "polynomial": (Kernel("polynomial", gamma=0.2, degree=2, coef0=1.0), 0.3),
    "gaussian": (Kernel("gaussian", gamma=0.5), 2.0),
    "smooth": (Kernel("gaussian", gamma=0.05), 100.0),
    "sharp": (Kernel("gaussian", gamma=5.0), 1.0),
    "sigmoid": (Kernel("sigmoid", gamma=0.01), 10.0),  # nearly linear: it has one solution then
}
N, (KERNEL, C) = 240, KERNELS["gaussian"]
FORMS = {"dense": np.array, "csr": sp.csr_matrix, "dense float32": np.float32,
         "csr float32": lambda X: sp.csr_matrix(np.float32(X))}  # fmt: skip
LIMITS = Limits(1e-3)


def problem(n=N, seed=0):
    return curved(n, seed, np.float32)


@cache
def reference(name="gaussian", n=N, seed=0):
    """K, and LIBSVM's objective."""
    (X, y), (kernel, bound) = problem(n, seed), KERNELS[name]
    K = matrix(kernel, X)
    return K, dual(K, libsvm(kernel, X, y, bound, 1e-6)[0])


def solve(X, y, C, *more):
    """The dual of C-SVC."""
    return distributed.solve(X, Dual.classification(y, C), *more)


def run(form="dense", working_set=8, limits=LIMITS, name="gaussian", budget=PLENTY, watch=None, n=N, seed=0):
    (X, y), (kernel, bound) = problem(n, seed), KERNELS[name]
    return solve(FORMS[form](X), y, np.full(n, bound), kernel, limits, budget, Communicator(), working_set, watch)


def check(share, K, y, bounds, tol, precision=1e-8):
    """That it is feasible, and what it says of itself is so; whether it is a solution, is for the caller to ask."""
    alpha, scale = share.alpha, max(1.0, np.abs(K).max()) * max(1.0, share.alpha.sum())
    assert ((alpha >= 0) & (alpha <= bounds)).all()
    assert abs(alpha @ y) <= 1e-9 * max(1.0, alpha.sum())
    assert share.objective == pytest.approx(dual(K, alpha * y), rel=1e-9, abs=1e-9)
    assert share.gap == pytest.approx(violation(K, y, bounds, alpha), abs=precision * scale)
    assert share.converged == (share.gap < tol)
    v, beta = y - K @ (alpha * y), alpha * y
    rise, fall = beta < np.maximum(0, bounds * y), beta > np.minimum(0, bounds * y)
    assert share.b == pytest.approx(0.5 * (v[rise].max() + v[fall].min()), abs=precision * scale)


@pytest.fixture
def eager(monkeypatch):
    """Rows leave at the first occasion: often too early, so that some have to come back."""
    monkeypatch.setattr(kernel_rows, "TOUCH", 0.0)
    monkeypatch.setattr(distributed, "_LOOK", 1)
    eagerly = replace(distributed.SHRINKING, patience=1, share=0.05, share_if_copied=0.05)
    monkeypatch.setattr(distributed, "SHRINKING", eagerly)


@pytest.fixture
def counts(monkeypatch):
    """How often what happens in the solver happens."""
    count = Counter()

    def watched(owner, name, tell):
        original = getattr(owner, name)

        def call(self, *args, **keywords):
            before = tell(self, None)
            result = original(self, *args, **keywords)
            count.update({name: tell(self, result) - before})
            return result

        monkeypatch.setattr(owner, name, call)

    watched(ActiveSet, "shrink", lambda active, _: len(active.shrunk))
    watched(ActiveSet, "unshrink", lambda _, again: int(bool(again)))
    watched(Pool, "free", lambda pool, _: -len(pool._slot))
    return count


# -- against LIBSVM ------------------------------------------------------------------------------


@pytest.mark.parametrize("working_set", [2, 3, 8, 64, 10**6])
@pytest.mark.parametrize("name", [name for name in KERNELS if name != "smooth"])  # which takes many pairs
def test_as_libsvm(name, working_set):
    (_, y), (K, expected) = problem(), reference(name)
    share = run(name=name, working_set=working_set)
    check(share, K, y, KERNELS[name][1], 1e-3)
    assert share.converged
    assert share.objective == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("working_set", [2, 16])
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_rows(form, working_set):
    (_, y), (K, expected) = problem(), reference()
    share = run(form, working_set)
    check(share, K, y, C, 1e-3)
    assert share.objective == pytest.approx(expected, rel=1e-6)


def test_a_bound_of_its_own_for_each_row():
    X, y = problem()
    bounds = C * np.random.default_rng(0).choice([1e-3, 0.3, 1.0, 4.0], N)
    K = reference()[0]
    expected = dual(K, libsvm(KERNEL, X, y, C, 1e-6, bounds / C)[0])
    share = solve(X, y, bounds, KERNEL, LIMITS, PLENTY, Communicator(), 32)
    check(share, K, y, bounds, 1e-3)
    assert share.objective == pytest.approx(expected, rel=1e-6)


def test_rows_enough_for_single_precision():
    """Which kernel values are computed in from 2000 rows on; what is told in the end is not."""
    (_, y), (K, expected) = problem(3001), reference(n=3001)
    share = run(n=3001, working_set=128)
    check(share, K, y, C, 1e-3, 1e-7)
    assert share.converged
    assert share.objective == pytest.approx(expected, rel=1e-6)


def test_few_rows():
    """Also fewer than a working set has: two rows of two classes are the least."""
    X = problem()[0]
    for n in (2, 3, 5, 17):
        Z, z = X[:n], np.where(np.arange(n) % 3 == 1, 1.0, -1.0)
        share = solve(Z, z, np.full(n, C), KERNEL, Limits(1e-6), PLENTY, Communicator(), 64)
        K = matrix(KERNEL, Z)
        check(share, K, z, C, 1e-6)
        assert share.objective == pytest.approx(dual(K, libsvm(KERNEL, Z, z, C, 1e-8)[0]), rel=1e-6)


@pytest.mark.parametrize("working_set", [2, 8, 64])
def test_rows_all_equal(working_set):
    """There is nothing to learn but which class has more rows."""
    y = problem()[1]
    share = solve(np.ones((N, 2)), y, np.ones(N), KERNEL, LIMITS, PLENTY, Communicator(), working_set)
    assert share.converged
    assert abs(share.alpha @ y) < 1e-9
    assert share.objective == pytest.approx(2 * min((y > 0).sum(), (y < 0).sum()), rel=1e-6)
    assert share.b == pytest.approx(np.sign(y.sum()), abs=1e-3)


# -- the working set, shrinking, the pool ---------------------------------------------------------


def test_a_working_set_is_even_and_an_eighth_of_the_rows_at_most():
    for asked, other in ((3, 2), (9, 8), (32, 31), (None, 30)):
        one, same = run(working_set=asked), run(working_set=other)
        np.testing.assert_array_equal(one.alpha, same.alpha)
        assert (one.iterations, one.rounds) == (same.iterations, same.rounds)
    assert not np.array_equal(run(working_set=30).alpha, run(working_set=8).alpha)


def test_a_pair_a_round():
    """The textbook's algorithm; more rows make fewer rounds."""
    textbook = run(working_set=2)
    assert textbook.rounds >= textbook.iterations > 0.99 * textbook.rounds
    assert 3 * run(working_set=30).rounds < 2 * run(working_set=8).rounds < textbook.rounds


@pytest.mark.parametrize("working_set", [2, 8, 64])
def test_shrinking_does_not_show(working_set, eager, counts):
    (_, y), (K, expected) = problem(), reference()
    shares = []
    for shrinking in (True, False):
        counts.clear()
        seen = []
        shares.append(run(working_set=working_set, limits=Limits(1e-3, shrinking=shrinking), watch=seen.append))
        assert (counts["shrink"] > 0) == shrinking
        assert (min(one.active for one in seen) < N) == shrinking
        check(shares[-1], K, y, C, 1e-3)
        assert shares[-1].converged
        assert shares[-1].objective == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("most", [20, 0], ids=["some come back", "all come back"])
@pytest.mark.parametrize("form", ["dense", "csr"])
def test_rows_that_left_too_early_come_back(form, most, eager, counts, monkeypatch):
    monkeypatch.setattr(distributed, "SHRINKING", replace(distributed.SHRINKING, unshrinks=most))
    monkeypatch.setattr(distributed, "_VISITORS", 50)  # so that they visit in several goes
    for seed in (0, 2):
        (_, y), (K, expected) = problem(seed=seed), reference("smooth", seed=seed)
        share = run(form, 30, name="smooth", seed=seed)
        check(share, K, y, 100.0, 1e-3)
        assert share.objective == pytest.approx(expected, rel=1e-6)
    assert counts["unshrink"] > 0


@pytest.mark.parametrize("budget", [0, 1 << 17], ids=["no budget", "little"])
@pytest.mark.parametrize("capacity", [1, 2], ids=["smallest pool", "small pool"])
@pytest.mark.parametrize("form", ["dense", "csr"])
def test_a_small_pool(form, capacity, budget, counts, monkeypatch):
    """Rows are told of again, and what was cached of others in their slots is forgotten."""
    monkeypatch.setattr(distributed._Distributed, "_capacity", lambda self, *_: capacity * self.q)
    (_, y), (K, expected) = problem(), reference()
    for working_set in (4, 30):
        counts.clear()
        share = run(form, working_set, budget=budget)
        assert counts["free"] > 100  # rows that were given up
        check(share, K, y, C, 1e-3)
        assert share.converged
        assert share.objective == pytest.approx(expected, rel=1e-6)


def test_a_pool_of_all_rows_is_never_full(counts, monkeypatch):
    monkeypatch.setattr(distributed._Distributed, "_capacity", lambda *_: N)
    share = run(working_set=32)
    assert share.converged
    assert counts["free"] == 0


def test_processors_that_differ(monkeypatch):
    """Then one rank alone decides; here it finds what it would have found."""
    alike, told, original = run(), [], distributed._Distributed.__init__

    def different(self, *args):
        original(self, *args)
        assert self.alike
        self.alike = False

    monkeypatch.setattr(distributed._Distributed, "__init__", different)
    monkeypatch.setattr(Communicator, "bcast", lambda _, array, root=0: told.append(root) or array)
    share = run()
    assert told == [0] * share.rounds
    np.testing.assert_array_equal(share.alpha, alike.alpha)
    assert (share.b, share.objective, share.iterations) == (alike.b, alike.objective, alike.iterations)


# -- when to stop --------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0, 1, 50, 700])
@pytest.mark.parametrize("working_set", [2, 32])
def test_most_pairs(most, working_set, eager):
    """Also where rows are shrunk."""
    (_, y), (K, _) = problem(), reference()
    share = run(working_set=working_set, limits=Limits(1e-6, max_iter=most))
    assert share.iterations == most
    assert not share.converged
    check(share, K, y, C, 1e-6)


def test_most_seconds():
    (_, y), (K, _) = problem(), reference()
    share = run(limits=Limits(1e-6, max_time=1e-9))
    assert not share.converged
    check(share, K, y, C, 1e-6)


@pytest.mark.parametrize("working_set", [2, 16])
def test_watched(working_set):
    """The dual objective never falls, and is that of the solution at last."""
    seen = []
    share = run(working_set=working_set, watch=seen.append)
    objectives = np.array([one.objective for one in seen])
    assert len(seen) == share.rounds
    assert (np.diff(objectives) > -1e-9 * share.objective).all()
    assert objectives[-1] == pytest.approx(share.objective, rel=1e-9)
    assert (seen[0].gap, seen[0].active, seen[-1].iterations) == (2.0, N, share.iterations)
    assert all(one.gap >= 1e-3 for one in seen)


def test_the_same_bits_again():
    first, second = run(working_set=32), run(working_set=32)
    equal_fields(
        first, second, "alpha", "b", "objective", "gap", "iterations", "rounds", "kernel_rows", "kernel_values"
    )


def test_kernel_values_are_counted():
    share = run(working_set=32)
    support = np.count_nonzero(share.alpha)
    assert support / 2 < share.kernel_rows
    assert share.rounds * 4 <= share.kernel_values <= share.kernel_rows * N + share.rounds * 32**2 + support**2


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
def crossed(request, monkeypatch):
    """150 rows, 1500 sources, and kernel values of both with room for some rows of K, which are kept at once."""
    monkeypatch.setattr(kernel_rows, "TOUCH", 0.0)
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


def test_what_is_dropped_makes_room_first():
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


# -- as a method -------------------------------------------------------------------------------------


def classes(k):
    return drawn_clouds(200, k, k)


def trained(X, y, weights=None, **more):
    options = Options(**{"gamma": 0.4, "C": 2.0, "tol": 1e-6, "cache_gib": PLENTY / GIB, **more})
    return dissmo(Dataset(X, y, weights=weights), options)


@pytest.mark.parametrize(("k", "csr"), [(2, True), (3, True), (4, False)], ids=["2 csr", "3 csr", "4 dense"])
def test_alone_and_together(k, csr):
    """One rank is the local solver's, unless a working set is asked for: the same model, to the tolerance."""
    X, y = classes(k)
    X = as_csr(X, csr, 0.5)
    weights = np.random.default_rng(0).choice([0.0, 0.5, 1.0, 2.0], 200)
    alone, together = trained(X, y, weights), trained(X, y, weights, working_set=8)
    there = np.count_nonzero(weights)
    assert (alone.sizes.tolist(), together.sizes.tolist()) == ([there], [there])
    for name in ("n_support", "objective"):
        assert together.solver[name] == pytest.approx(alone.solver[name], rel=1e-6)
    assert together.solver["gap"][0] < 1e-6
    assert all(values.shape == (1,) for values in together.solver.values())
    (one,), (other,) = alone.model.parts.values(), together.model.parts.values()
    np.testing.assert_array_equal(one.rows, other.rows)
    assert (weights[other.rows] > 0).all()
    assert one.n_support.tolist() == other.n_support.tolist()
    near(other.coef, one.coef, 1e-3)
    near(other.b, one.b, 1e-5)
    assert abs(other.X - X[other.rows]).sum() == 0
    decisions = [result.model.decision_function(X) for result in (alone, together)]
    near(*decisions, 1e-5)


@pytest.mark.parametrize("limit", [{"max_iter": 5}, {"max_time": 1e-9}], ids=str)
def test_limit_is_noted(limit):
    X, y = classes(3)
    result = trained(X, y, working_set=4, **limit)
    (note,) = result.notes
    steps, gap = result.solver["iterations"][0], result.solver["gap"][0]
    assert note.startswith(
        f"the solver stopped after {steps} iterations at a violation of {gap:.3g}, above tol = 1e-06"
    )
    assert steps <= 15
    assert np.isfinite(result.model.decision_function(X)).all()


def test_as_a_function():
    X, y = classes(2)
    result = dissmo(Dataset(X, y), Options(working_set=8))
    assert (result.model.method, result.model.route) == ("dissmo", "sum")
    np.testing.assert_array_equal(
        result.model.predict(X), dissmo(Dataset(X, y), Options(partitions=1)).model.predict(X)
    )


def test_parts_are_refused():
    with pytest.raises(InputError, match="partitions = 2 on 1 ranks: dissmo solves one problem"):
        trained(*classes(2), partitions=2)


def test_memory_is_refused():
    X, y = classes(2)
    with pytest.raises(MemoryLimitError, match="a rank's rows and its kernel cache"):
        trained(X, y, memory_limit=X.nbytes + 1000, cache_gib=1001 / GIB)
    trained(X, y, memory_limit=X.nbytes + 1000, cache_gib=1000 / GIB)


@pytest.mark.parametrize("working_set", [None, 8])
def test_checkpoint(working_set, tmp_path, monkeypatch):
    """The second time nothing is solved, and the model is the same, bit for bit."""
    X, y = classes(3)

    def again():
        return trained(X, y, working_set=working_set, tol=1e-3, checkpoint=Checkpoint(tmp_path / "kept"))

    first = again()
    kept = inodes(tmp_path / "kept")
    pairs = [f"pair-{number:06d}-rank000000.npz" for number in range(3)]
    assert sorted(kept) == sorted([*(["alone.npz"] if working_set is None else pairs), "lock", "run.json"])
    with monkeypatch.context() as patched:
        patched.setattr(distributed, "solve", None)
        patched.setattr("casvm.solver.smo.solve", None)
        second = again()
    if working_set is not None:
        (tmp_path / "kept" / pairs[1]).unlink()
    third = again()
    for other in (second, third):
        for name in ("iterations", "n_support", "objective", "gap", "kernel_rows"):
            assert other.solver[name].tolist() == first.solver[name].tolist()
        same_part(other.model.parts[0], first.model.parts[0])
    with pytest.raises(InputError, match="working_set was"):
        trained(X, y, working_set=16, tol=1e-3, checkpoint=Checkpoint(tmp_path / "kept"))


# -- runs that are killed ------------------------------------------------------------------------------


class KilledError(Exception):
    """The end of a run."""


def test_a_killed_run_goes_on(tmp_path, eager):
    """From the last state that was kept, with what was counted until then."""
    X, y = problem()
    K, expected = reference()
    checkpoint = Checkpoint(tmp_path / "kept")
    checkpoint.open({}, Communicator())

    def go(watch=None):
        state = Unfinished(checkpoint, "piece", Communicator(), seconds=0.0)
        dual = Dual.classification(y, np.full(N, C))
        return distributed.solve(X, dual, KERNEL, LIMITS, PLENTY, Communicator(), 8, watch, state), state

    def kill(now):
        if now.iterations > 200:
            raise KilledError

    with pytest.raises(KilledError):
        go(kill)
    kept = Unfinished(checkpoint, "piece", Communicator()).get()
    assert 150 < kept["counts"][0] <= 250
    seen = []
    share, state = go(seen.append)
    assert seen[0].iterations > kept["counts"][0]  # not from the beginning
    assert seen[0].objective > 0.5 * expected
    assert share.rounds == kept["counts"][1] + len(seen)
    check(share, K, y, C, 1e-3)
    assert share.objective == pytest.approx(expected, rel=1e-6)
    state.remove()
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["lock", "run.json"]


def test_states_that_count(tmp_path):
    """The newest, and the one before it where not all ranks have the newest."""
    checkpoint = Checkpoint(tmp_path / "kept")
    checkpoint.open({}, Communicator())

    def state():
        return Unfinished(checkpoint, "piece", Communicator(), seconds=1e9)

    assert state().get() is None
    first = state()
    for value in range(4):
        first.put(beta=np.full(3, value))
    assert not first.due()
    second = state()
    assert second.get()["beta"].tolist() == [3, 3, 3]
    second.put(beta=np.full(3, 9))
    assert state().get()["beta"].tolist() == [9, 9, 9]
    (tmp_path / "kept" / "piece-unfinished-1-rank000000.npz").unlink()
    assert state().get()["beta"].tolist() == [3, 3, 3]
