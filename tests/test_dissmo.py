"""Dis-SMO's solver on one rank, where `working_set` asks for it: against LIBSVM, shrinking, and when it stops.

On more ranks: tests/mpi/test_dissmo.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from helpers.checks import equal_fields
from helpers.dissmo import FORMS, KERNEL, KERNELS, LIMITS, PLENTY, C, N, check, problem, reference
from helpers.references import dual, libsvm, matrix

from cacore.comm import Communicator
from cacore.limits import Limits
from cacore.svm.dual import Dual
from casvm.methods import all_rows
from casvm.solver import distributed
from casvm.solver.active_set import ActiveSet
from casvm.solver.distributed import Pool
from casvm.solver.smo import PartTraining


def solve(X, y, C, kernel, limits, budget, comm, working_set=None, watch=None):
    """The dual of C-SVC."""
    training = PartTraining(kernel, limits, budget, watch=watch)
    return all_rows.solve(X, Dual.classification(y, C), training, comm, working_set)


def run(form="dense", working_set=8, limits=LIMITS, name="gaussian", budget=PLENTY, watch=None, n=N, seed=0):
    (X, y), (kernel, bound) = problem(n, seed), KERNELS[name]
    return solve(FORMS[form](X), y, np.full(n, bound), kernel, limits, budget, Communicator(), working_set, watch)


@pytest.fixture
def eager(tuned):
    """Rows leave at the first occasion: often too early, so that some have to come back."""
    tuned(touch=0.0, look=1)
    eagerly = replace(distributed.SHRINKING, patience=1, share=0.05, share_if_copied=0.05)
    tuned(dissmo_shrinking=eagerly)


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
    watched(Pool, "free", lambda pool, _: -int((pool._number >= 0).sum()))
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


def test_per_row_bounds_match_libsvm():
    X, y = problem()
    bounds = C * np.random.default_rng(0).choice([1e-3, 0.3, 1.0, 4.0], N)
    K = reference()[0]
    expected = dual(K, libsvm(KERNEL, X, y, C, 1e-6, bounds / C)[0])
    share = solve(X, y, bounds, KERNEL, LIMITS, PLENTY, Communicator(), 32)
    check(share, K, y, bounds, 1e-3)
    assert share.objective == pytest.approx(expected, rel=1e-6)


def test_rows_enough_for_single_precision():
    """From 2000 rows on, kernel values are in single precision; the reported objective and gap are not."""
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
def test_wrongly_shrunk_rows_are_reactivated(form, most, eager, counts, tuned):
    tuned(dissmo_shrinking=replace(distributed.SHRINKING, unshrinks=most))
    tuned(visitors=50)  # so that they visit in several goes
    for seed in (0, 2):
        (_, y), (K, expected) = problem(seed=seed), reference("smooth", seed=seed)
        share = run(form, 30, name="smooth", seed=seed)
        check(share, K, y, 100.0, 1e-3)
        assert share.objective == pytest.approx(expected, rel=1e-6)
    assert counts["unshrink"] > 0


@pytest.mark.parametrize("budget", [0, 1 << 17], ids=["no budget", "little"])
@pytest.mark.parametrize("capacity", [1, 2], ids=["smallest pool", "small pool"])
@pytest.mark.parametrize("form", ["dense", "csr"])
def test_a_small_pool(form, capacity, budget, counts, tuned):
    """Rows are told of again, and what was cached of others in their slots is forgotten."""
    tuned(pool_capacity=lambda self, *_: capacity * self.q)
    (_, y), (K, expected) = problem(), reference()
    for working_set in (4, 30):
        counts.clear()
        share = run(form, working_set, budget=budget)
        assert counts["free"] > 100  # rows that were given up
        check(share, K, y, C, 1e-3)
        assert share.converged
        assert share.objective == pytest.approx(expected, rel=1e-6)


def test_a_pool_of_all_rows_is_never_full(counts, tuned):
    tuned(pool_capacity=lambda *_: N)
    share = run(working_set=32)
    assert share.converged
    assert counts["free"] == 0


def test_processors_that_differ(monkeypatch):
    """Then one rank alone decides; here it finds what it would have found."""
    alike, told, original = run(), [], distributed.Distributed.__init__

    def different(self, *args):
        original(self, *args)
        assert self.alike
        self.alike = False

    monkeypatch.setattr(distributed.Distributed, "__init__", different)
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
