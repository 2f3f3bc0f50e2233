"""Where the local SMO solver begins, and when it stops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.references import matrix
from helpers.smo import HARD, LIMITS, PLENTY, check, many, reference, solve

from cacore.errors import InputError
from cacore.limits import Limits
from cacore.svm.dual import Dual
from casvm.solver import smo
from casvm.solver.active_set import ActiveSet
from casvm.solver.kernel_rows import KernelRows, gram_of

SMALL_SET = 128  # instead of 2048


# -- more rows than a working set takes ----------------------------------------------------------


@pytest.fixture
def small_set(tuned):
    """Small problems need all that large ones do: rounds, looks between pairs, and rows of K that are read again."""
    tuned(working_set=SMALL_SET, smo_chunk=1000, touch=0.0)


@pytest.fixture
def eager(tuned, small_set):
    """Rows leave at the first occasion: often too early, so that some have to come back."""
    tuned(smo_shrinking=replace(smo.SHRINKING, patience=1, share=0.05))


# -- where to begin ----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [100, 1500])
def test_from_the_solution(n, small_set):
    (X, y), (kernel, C) = many(), HARD
    X, y, bounds = X[:n], y[:n], np.full(n, C)
    cold = solve(KernelRows(X, kernel, "float64", PLENTY), y, bounds, LIMITS)
    warm = solve(KernelRows(X, kernel, "float64", PLENTY), y, bounds, LIMITS, cold.alpha)
    assert warm.converged
    assert warm.iterations <= 10
    assert warm.objective == pytest.approx(cold.objective, rel=1e-9)
    check(warm, matrix(kernel, X), y, C, 1e-4)


@pytest.mark.parametrize("n", [100, 1500])
@pytest.mark.parametrize("seed", [0, 1])
def test_from_anywhere(n, seed, small_set):
    (X, y), (kernel, C), rng = many(), HARD, np.random.default_rng(seed)
    X, y = X[:n], y[:n]
    alpha = rng.random(n) * C * (rng.random(n) < 0.7)
    sums = [alpha[y == side].sum() for side in (1, -1)]
    for side, total in zip((1, -1), sums, strict=True):
        alpha[y == side] *= min(sums) / total
    got = solve(KernelRows(X, kernel, "float64", PLENTY), y, np.full(n, C), LIMITS, alpha)
    cold = solve(KernelRows(X, kernel, "float64", PLENTY), y, np.full(n, C), LIMITS)
    check(got, matrix(kernel, X), y, C, 1e-4)
    assert got.converged
    assert got.objective == pytest.approx(cold.objective, rel=1e-6)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ([0.5, 0.5, 0.0], "4 numbers"),
        ([[0.5, 0.5, 0.0, 0.0]], "4 numbers"),
        ([0.5, -0.5, -0.5, -0.5], "4 numbers"),
        ([1.5, 1.5, 0.0, 0.0], "4 numbers"),
        ([np.nan, 0.0, 0.0, 0.0], "4 numbers"),
        ([0.5, 0.25, 0.0, 0.0], r"sum is 0\.25, and it must be 0"),
    ],
)
def test_a_start_that_is_not_feasible(start, message):
    y = np.array([1.0, -1.0, 1.0, -1.0])
    with pytest.raises(InputError, match=f"the start: .*{message}"):
        solve(gram_of(np.eye(4), None, 1.0, LIMITS.tol, PLENTY), y, np.ones(4), start=np.array(start))


# -- when to stop ------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0, 1, 50, 4000, 6500])
@pytest.mark.parametrize("eagerly", [False, True])
def test_most_pairs(most, eagerly, request):
    """Also where rows are shrunk, and in the midst of pairs."""
    request.getfixturevalue("eager" if eagerly else "small_set")
    (X, y), (kernel, C) = many(), HARD
    got = solve(KernelRows(X, kernel, "float64", PLENTY), y, np.full(1500, C), Limits(1e-6, max_iter=most))
    assert got.iterations == most
    assert not got.converged
    assert got.gap > 1e-6
    check(got, reference()[0], y, C, 1e-6)


def test_most_pairs_of_a_small_problem():
    (X, y), (kernel, C) = many(), HARD
    got = solve(KernelRows(X[:100], kernel, "float64", PLENTY), y[:100], np.full(100, C), Limits(max_iter=20))
    assert got.iterations == 20
    check(got, matrix(kernel, X[:100]), y[:100], C, 1e-3)
    assert not got.converged


def test_most_seconds(small_set):
    (X, y), (kernel, C) = many(), HARD
    got = solve(KernelRows(X, kernel, "float64", PLENTY), y, np.full(1500, C), Limits(max_time=1e-9))
    assert not got.converged
    check(got, reference()[0], y, C, 1e-3)


@pytest.mark.parametrize("name", ["tol", "max_time"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_limits_that_are_none(name, value):
    with pytest.raises(InputError, match=f"{name} = .*positive"):
        Limits(**{name: value})


def test_an_infinite_tolerance():
    with pytest.raises(InputError, match="tol = inf"):
        Limits(tol=float("inf"))


@pytest.mark.parametrize("shrinking", [True, False])
def test_watched(shrinking, small_set):
    """The dual objective never falls, and is that of the solution at last."""
    (X, y), (kernel, C), seen = many(), HARD, []
    gram = KernelRows(X, kernel, "float64", PLENTY)
    got = solve(gram, y, np.full(1500, C), Limits(1e-4, shrinking=shrinking), watch=seen.append)
    objectives, iterations = np.array([p.objective for p in seen]), np.array([p.iterations for p in seen])
    assert len(seen) > 5
    assert (np.diff(objectives) > -1e-9 * got.objective).all()
    assert (np.diff(iterations) > 0).all()
    assert all(p.gap >= 1e-4 for p in seen)
    assert seen[0].gap == 2.0
    assert seen[-1].gap < 0.1
    assert (seen[-1].iterations, seen[0].active) == (got.iterations, 1500)
    assert (min(p.active for p in seen) < 1500) == shrinking
    assert objectives[-1] == pytest.approx(got.objective, rel=1e-9)


class RowsOfOneRank:
    """A stand-in for rows of K: the active columns do not matter here."""

    dtype = np.float32

    def activate(self, rows):
        self.rows = rows


def test_a_rank_without_rows_has_a_group_for_the_rows_that_others_shrink_again():
    """Each group is a reconstruction by all ranks: a rank that lacked one would leave the others waiting."""
    of_others = iter([6, 4])  # active rows of the other ranks: at the start, and after the verification
    dual = Dual(*np.zeros((3, 0)))
    active = ActiveSet(dual, RowsOfOneRank(), smo.SHRINKING, lambda own: own + next(of_others))
    assert not active.unshrink(None, 1e-3, False)
    active.shrink_again()
    assert (active.size, [len(group.rows) for group in active.shrunk]) == (4, [0])


def test_no_rank_has_a_group_if_no_rank_shrinks_again():
    of_others = iter([6, 6])
    dual = Dual(*np.zeros((3, 0)))
    active = ActiveSet(dual, RowsOfOneRank(), smo.SHRINKING, lambda own: own + next(of_others))
    active.unshrink(None, 1e-3, False)
    active.shrink_again()
    assert active.shrunk == []
