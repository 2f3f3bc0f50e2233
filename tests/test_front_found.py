"""The end of a search: how the models of a blend share the time that is left."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_info, threadpool_limits

from cacore.comm import Communicator
from cacore.machine import threads
from cakernels.search import rivals
from cakernels.search.blending import Mixture, _at_grid_end, _trial_to_train, search, started
from cakernels.search.candidates import Candidate
from cakernels.search.data import CLASSIFICATION, REGRESSION, Data
from cakernels.search.scores import SCORES
from cakernels.search.trial import Budget, Growth, Trial

ALONE = Communicator()
N, TRAINED = 6000, 5100  # rows, and the most of them that train while the others judge


class Clock(Budget):
    """A time of which only trainings take some."""

    def __init__(self, seconds):
        super().__init__(seconds)
        self.now = 0.0

    def remaining(self):
        return self.seconds - self.now

    def worked(self, comm):
        return self.now


@pytest.fixture
def rows(tuned):
    """The rows of the last trainings of a blend, from the rows and seconds of its models so far and the time left.

    As many rows are predicted afterwards as have judged, each model in the seconds named last.
    """
    rng = np.random.default_rng(0)
    data = Data.of(rng.normal(size=(N, 2)), rng.normal(size=N), None, REGRESSION, ALONE)
    tuned(blending_until=lambda _: nullcontext(), race_run=lambda self: None)

    def found(left, *models):
        race = started(data, SCORES["rmse"], Clock(left), ALONE, None, 0, None)
        race.trials = [
            Trial(Candidate("BKRR2", {"sigma": 1.0 + i}), n, 0.1 + i, seconds, 0.0, fitted=object(), judging=sum(more))
            for i, (n, seconds, *more) in enumerate(models)
        ]
        race.asked = N - TRAINED

        def trained(self, candidate, mask, n, divisions=1):
            trial = next(one for one in self.trials if one.candidate == candidate)
            self.budget.now += self.seconds(trial, n, last=True)
            return object()

        tuned(candidate_after=lambda self, fitted, last=False: self, race_training=trained)
        mixed = Mixture(race.trials, np.full(len(models), 1 / len(models)))
        tuned(blend=lambda race, best: mixed)
        got = search(race)
        assert race.budget.now <= left
        return got.rows

    return found


def test_ample_time_trains_all_models_on_all_rows(rows):
    assert rows(40.0, (TRAINED, 10.0), (TRAINED, 10.0)) == [N, N]


def test_insufficient_shares_go_to_the_first_model(rows):
    assert rows(20.0, (TRAINED, 10.0), (TRAINED, 10.0)) == [N, TRAINED]


def test_later_model_keeps_its_reserved_time(rows):
    assert rows(36.0, (TRAINED, 25.0), (TRAINED, 2.0)) == [N, N]


def test_first_model_takes_time_that_would_suffice_for_the_second(rows):
    assert rows(30.0, (TRAINED, 25.0), (TRAINED, 10.0)) == [N, TRAINED]


def test_best_small_sample_model_gets_more_rows(rows):
    """The later one has what it leaves."""
    first, second = rows(60.0, (1000, 10.0), (1000, 2.0))
    assert 1500 <= second < first == TRAINED


@pytest.mark.parametrize(
    ("left", "error", "chosen"), [(100.0, 0.11, 1), (100.0, 0.124, 1), (100.0, 0.126, 0), (1e6, 0.11, 0)]
)
def test_faster_classifier_gets_the_last_training(left, error, chosen):
    """An equal one with twice as many rows, or one whose error is a quarter larger with eight times as many."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2))
    race = started(
        Data.of(X, X[:, 0] > 0, None, CLASSIFICATION, ALONE), SCORES["accuracy"], Clock(left), ALONE, None, 0, 1
    )
    shared = {"deviation": 0.02, "fitted": object()}
    race.trials = [
        Trial(Candidate("BKRR2Classifier", {"sigma": 1.0}), 700, 0.1, 90.0, 0.0, squared=0.1, **shared),
        Trial(Candidate("CASVC", {"C": 1.0}), 1000, error, 2.0, 0.0, squared=0.2, **shared),
    ]
    assert race.best is race.trials[0]
    assert _trial_to_train(race, race.trials[0]) is race.trials[chosen]


def test_early_last_training_is_repeated_on_more_rows(monkeypatch, tuned):
    """Each takes a second by the clock of the search, whatever was expected of it."""
    rng = np.random.default_rng(0)
    X, seen = rng.normal(size=(N, 2)), []
    race = started(Data.of(X, X[:, 0], None, REGRESSION, ALONE), SCORES["rmse"], Clock(30.0), ALONE, None, 0, 1)
    race.trials = [Trial(Candidate("BKRR2", {"sigma": 1.0}), 1000, 0.1, 10.0, 0.0, fitted=object())]

    def trained(self, candidate, mask, n, divisions=1):
        seen.append(n)
        self.budget.now += 1.0
        return object()

    tuned(race_run=lambda self: None, race_training=trained)
    monkeypatch.setattr(Clock, "worked", lambda self, comm: self.now)
    tuned(blending_until=lambda _: nullcontext())
    tuned(blend=lambda race, best: Mixture([best], np.ones(1)))
    assert search(race).rows == [N]
    assert len(seen) == 2
    assert 1500 <= seen[0] < seen[1] == N


def test_time_is_reserved_for_predictions(rows):
    """A training takes 11.9 s, and predictions take 1.2 times as long by parts of 1,200 rows as by parts of 1,020."""
    assert rows(12.5, (TRAINED, 10.0)) == [N]
    assert rows(12.5, (TRAINED, 10.0, 1.0)) == [TRAINED]
    assert rows(13.2, (TRAINED, 10.0, 1.0)) == [N]
    assert rows(25.5, (TRAINED, 10.0, 1.0), (TRAINED, 10.0)) == [N, N]
    assert rows(24.5, (TRAINED, 10.0, 1.0), (TRAINED, 10.0)) == [N, TRAINED]


def test_reserve_includes_prediction_time():
    X = np.random.default_rng(0).normal(size=(N, 2))
    race = started(Data.of(X, X[:, 0], None, REGRESSION, ALONE), SCORES["rmse"], Budget(100.0), ALONE, None, 0, 1)
    race.trials = [race.tried(Candidate("BKRR2", {"sigma": 1.0, "lam": 1e-3}), TRAINED)]
    (trial,) = race.trials
    assert 0 < trial.judging < trial.seconds
    trial.judging, before = 2.0, race.reserve()
    race.asked = 10 * (N - TRAINED)
    assert race.predicting(trial, TRAINED) == 20.0
    assert race.reserve() > before + 10.0


@pytest.mark.parametrize(
    ("before", "rows", "factor"), [(500, 1000, 4), (500, 4000, 16), (2000, 4000, 2), (500, 250, 0.25)]
)
def test_svm_time_grows_by_parts(before, rows, factor):
    svm = Candidate("CASVC", {"kernel": "gaussian"}, 1000)
    assert svm.growth(before).factor(rows) == factor
    assert svm.growth(before).within(factor) == rows


def test_ridge_time_grows_by_parts():
    ridge = Candidate("BKRR2", {"kernel": "gaussian"}, 1000)
    assert ridge.growth(500).factor(4000) == pytest.approx(8**1.05)
    assert ridge.growth(500).within(8**1.05) == pytest.approx(4000)


def test_length_scales_cost_a_fixed_time():
    """Covtype, 7,656 and 30,625 rows: 155 and 183 s; on 122,500 rows it took 321 s."""
    times = {7_656: 155.5, 30_625: 183.5}
    ridge = Candidate("BKRR2Classifier", {"kernel": "laplacian", "metric": "lengths"}, 2_400)
    growth = ridge.growth(30_625).through(7_656, times[7_656] / times[30_625])
    assert 183.5 * growth.factor(7_656) == pytest.approx(155.5)
    assert 280 < 183.5 * growth.factor(122_500) < 340
    assert growth.within(growth.factor(122_500)) == pytest.approx(122_500)
    assert growth.within(0.5 * growth.fixed) == 0


@pytest.mark.parametrize(("seconds", "power", "fixed"), [(1.0, 2.4, 0.0), (4.0, 2.2, 0.0), (30.0, 2.0, 0.95)])
def test_growth_through_a_time_on_fewer_rows(seconds, power, fixed):
    """At most a fifth steeper than usual, and never without any growth."""
    growth = Growth(1_000, 2.0).through(500, seconds * 0.25 / 4.6)
    assert growth.power == pytest.approx(power, abs=0.05)
    assert growth.fixed == pytest.approx(fixed)


def test_compile_time_is_not_charged_to_candidates(tuned):
    """The clock of a candidate stands still meanwhile; that of the whole search goes on."""
    X = np.random.default_rng(0).normal(size=(60, 2))
    race = started(Data.of(X, X[:, 0], None, REGRESSION, ALONE), SCORES["rmse"], Budget(None), ALONE, None, 0, 1)
    clock = iter(range(0, 1000, 3))
    tuned(budget_clock=lambda: float(next(clock)))
    trial = race.tried(Candidate("BKRR2", {"sigma": 1.0}), 48)
    readings = next(clock) // 3
    assert trial.seconds == 3.0 * (readings - 1)
    assert trial.ended < trial.seconds


def test_large_last_training_is_preceded_by_a_smaller_one(tuned):
    """The time on 6,000 rows is uncertain after a trial on 900 of them: 73 s are expected of 100."""
    data = Data.of(np.zeros((N, 1)), np.arange(float(N)), None, REGRESSION, ALONE)
    race, begun = started(data, SCORES["rmse"], Clock(100.0), ALONE, None, 0, None), []
    race.trials = [Trial(Candidate("BKRR2", {}), 900, 0.1, 10.0, 0.0, fitted=object())]
    race.last = lambda candidate, rows: begun.append((rows, race.budget.now))

    def trained(self, candidate, mask, n, divisions=1):
        self.budget.now += 10.0 * n / 900
        return object()

    tuned(candidate_after=lambda self, fitted, last=False: self, race_training=trained, race_run=lambda self: None)
    tuned(blending_until=lambda _: nullcontext(), race_baseline=lambda self: np.inf)
    found = search(race)
    assert begun[0][0] < N / 3
    assert begun[1][0] > begun[0][0]
    assert found.rows == [begun[-1][0]]
    assert race.budget.now <= 100.0


def test_grid_end_comes_from_the_last_search():
    """A last training that takes over what was found on fewer rows has no grid; one with a grid of its own counts."""
    before, none = SimpleNamespace(at_grid_end_={"C": 1000.0}), SimpleNamespace()
    assert _at_grid_end(none, before) == {"C": 1000.0}
    assert _at_grid_end(SimpleNamespace(at_grid_end_={}), before) == {}
    assert _at_grid_end(none, none) == _at_grid_end(none, None) == {}


@pytest.mark.parametrize("numbers", [9_000, 1 << 23, (1 << 23) + 1])
def test_trees_of_few_rows_have_one_thread(numbers):
    """OpenMP's threads wait for each other in loops, which other processes on the cores prolong without a limit."""
    HistGradientBoostingRegressor(max_iter=1).fit(np.arange(60.0)[:, None], np.arange(60.0))  # loads OpenMP
    count = 1 if numbers <= 1 << 23 else min(2, threads.current())
    with threadpool_limits(2, user_api="openmp"), rivals._threads_for(numbers):
        assert {library["num_threads"] for library in threadpool_info() if library["user_api"] == "openmp"} == {count}
