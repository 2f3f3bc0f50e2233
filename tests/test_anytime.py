"""The random search that the benchmark sets beside the search of `cakernels fit`, and its figures."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.data import saddle

from benchmarks import anytime
from benchmarks.anytime import below, best_at, run, space
from benchmarks.krr_data import split
from cacore.comm import Communicator
from cakernels.search import data as rows
from cakernels.search.candidates import first, further


@pytest.fixture(scope="module")
def sample():
    return split(*saddle(70), 0)


@pytest.fixture(scope="module")
def candidates(sample):
    return space(rows.Data.of(sample.X, sample.y, None, rows.REGRESSION, Communicator()))


@pytest.fixture
def known(candidates, monkeypatch):
    """The candidates of `sample`, which are listed once and not in each search."""
    monkeypatch.setattr(anytime, "space", lambda data: candidates)
    return candidates


@pytest.mark.parametrize("n", [300, 15_000])
def test_space_has_all_that_a_search_can_reach(n):
    """No change of any candidate leads out of it, with and without candidates that are one system of all rows."""
    X = np.random.default_rng(0).normal(size=(n, 3))
    data = rows.Data.of(X, X[:, 0], None, rows.REGRESSION, Communicator())
    known = space(data)
    keys = {one.key for one in known}
    assert len(keys) == len(known)
    assert {one.of(n).key for one in first(data)} < keys
    changes = zip(range(2_000), further(data, known, np.random.default_rng(5)), strict=False)
    assert {one.of(n).key for _, one in changes} <= keys


@pytest.mark.usefixtures("known")
def test_random_search_repeats_and_trains_on_all_rows(sample):
    one, again = (run("random", sample, 3, None, 2) for _ in range(2))
    assert one["rows"] == [len(sample.X) - 13] * 2  # five folds of 63 rows
    assert one["errors"] == again["errors"]
    assert len(set(one["errors"])) == 2
    assert one["test_rmse"] == again["test_rmse"] < sample.t.std()


def test_both_searches_have_the_same_judges(sample, known):
    """A search whose only candidate is the same has the same error."""
    data = rows.Data.of(sample.X, sample.y, None, rows.REGRESSION, Communicator())
    keys = [one.key for one in known]
    drawn = (keys[np.random.default_rng(seed).permutation(len(keys))[0]] for seed in range(1000))
    seed = list(drawn).index(first(data)[0].of(data.n).key)
    random, halving = (run(kind, sample, seed, None, 1) for kind in ("random", "halving"))
    assert random["errors"] == halving["errors"]
    assert random["test_rmse"] == halving["test_rmse"]


def test_best_so_far_and_share_of_the_time():
    """From 2 s to 10 s: above the other one's from 4 s to 6 s only."""
    mine = {"ended": [1.0, 2.0, 6.0, 9.0], "errors": [None, 0.5, 0.2, 0.3]}
    other = {"ended": [3.0, 4.0, 10.0], "errors": [0.9, 0.4, 0.25]}
    np.testing.assert_array_equal(best_at(mine, np.array([0.5, 1, 2, 8, 20])), [np.inf, np.inf, 0.5, 0.2, 0.2])
    assert below(mine, other) == pytest.approx(6 / 8)
    assert below(other, mine) == pytest.approx(2 / 8)
