"""Trials of a search: which one is the best, and what a training on more rows keeps."""

import numpy as np
import pytest

from cacore.comm import Communicator
from cakernels.board import command
from cakernels.search.candidates import Candidate, first, further
from cakernels.search.data import CLASSIFICATION, REGRESSION, Data
from cakernels.search.deadline import Budget
from cakernels.search.found import started
from cakernels.search.scores import SCORES
from cakernels.search.trial import Trial, ranked

ALONE = Communicator()


def trial(error, rows=100, **more):
    return Trial(Candidate("BKRR2", {"sigma": error}, 0), rows, error, 1.0, 0.0, **more)


def test_regressions_are_ranked_by_error():
    trials = [trial(0.3), trial(0.2, 100), trial(0.2, 400), trial(0.1)]
    assert [(one.error, one.rows) for one in ranked(trials)] == [(0.1, 100), (0.2, 400), (0.2, 100), (0.3, 100)]
    assert ranked([]) == []


def test_classifiers_that_chance_may_tell_apart_are_ranked_by_their_probabilities():
    """The smallest error, .10, has a deviation of .02: errors of .12 or less are near it."""
    found = ranked(
        trial(error, squared=squared, deviation=deviation)
        for error, squared, deviation in [(0.10, 0.3, 0.02), (0.115, 0.2, 0.5), (0.12, 0.25, 0.5), (0.13, 0.1, 0.5)]
    )
    assert [one.error for one in found] == [0.115, 0.12, 0.10, 0.13]


@pytest.mark.parametrize("weights", [None, np.full(60, 2.0), np.linspace(0.5, 2.0, 60)])
def test_how_sure_scores_are(weights):
    """The deviation of equal weights is the binomial one; only relative weights count."""
    rng = np.random.default_rng(0)
    labels, told, P = rng.integers(0, 3, 60), rng.integers(0, 3, 60), rng.dirichlet(np.ones(3), 60)
    data, every = Data(np.zeros((60, 1)), labels, weights, CLASSIFICATION, 60, np.arange(3)), np.ones(60, bool)
    squares = ((P - np.eye(3)[labels]) ** 2).sum(axis=1)
    w = np.ones(60) if weights is None else weights

    def variance(rows):
        p = np.average((labels != told)[rows], weights=w[rows])
        return p * (1 - p) * (w[rows] ** 2).sum() / w[rows].sum() ** 2

    squared, deviation = SCORES["accuracy"].sure(data, every, P, told, ALONE)
    assert squared == pytest.approx(np.average(squares, weights=w))
    assert deviation == pytest.approx(np.sqrt(variance(every)))
    squared, deviation = SCORES["balanced_accuracy"].sure(data, every, P, told, ALONE)
    each = [labels == one for one in range(3)]
    assert squared == pytest.approx(np.mean([np.average(squares[rows], weights=w[rows]) for rows in each]))
    assert deviation == pytest.approx(np.sqrt(sum(variance(rows) for rows in each)) / 3)


def test_trials_of_classifiers_know_how_sure_they_are():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 2))
    y = np.where(X[:, 0] + 0.3 * rng.normal(size=90) > 0, "b", "a")
    race = started(Data.of(X, y, None, CLASSIFICATION, ALONE), SCORES["accuracy"], Budget(None), ALONE, None, 0, 2)
    made = race.tried(Candidate("BKRR2Classifier", {"sigma": 1.0, "lam": 1e-3}, 0), 72)
    P = made.calibrator.of_classes(made.held)
    right = made.predicted == y[race.judged]
    assert made.squared == pytest.approx(2 * np.mean((P[:, 1] - (y[race.judged] == "b")) ** 2))
    assert made.deviation == pytest.approx(np.sqrt(right.mean() * (1 - right.mean()) / len(right)))
    assert 0 < made.squared < 0.5


@pytest.mark.parametrize("estimator", ["BKRR2", "TwoLevelKRR", "BKRR2Classifier"])
def test_ridge_regression_keeps_its_kernel(estimator):
    """The search compares four kernels once; a training on more rows has one, in about a quarter of the time."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    y = np.abs(X).sum(axis=1)
    data = Data.of(X, y > 1.5 if "Classifier" in estimator else y, None,
                   CLASSIFICATION if "Classifier" in estimator else REGRESSION, ALONE)  # fmt: skip
    candidate = next(one for one in first(data) if one.estimator == estimator and one.kernels == 4)
    score = SCORES["accuracy" if "Classifier" in estimator else "rmse"]
    made = started(data, score, Budget(None), ALONE, None, 0, 1).tried(candidate, 64)
    assert made.kernels == 4
    assert made.share(last=False) == made.share(last=True) == pytest.approx(1.2 / 4.2)
    after = candidate.after(made.fitted)
    assert after.kernels == 1
    assert after.key == candidate.key
    assert after.make(80, 0).kernel in ("gaussian", "laplacian", "matern52", "l1")
    assert after.after(made.fitted, last=True) == after


def test_a_blend_has_no_model_twice():
    """Candidates whose metric does not pay end as the same model."""
    X = np.random.default_rng(0).normal(size=(40, 2))
    race = started(Data.of(X, X[:, 0], None, REGRESSION, ALONE), SCORES["rmse"], Budget(None), ALONE, None, 0, 2)
    names = ["none", "diagonal", "full"]
    race.trials = [
        Trial(Candidate("BKRR2", {"metric": name}, 0), 32, error, 1.0, 0.0)
        for name, error in zip(names, [0.2, 0.2, 0.3], strict=True)
    ]
    assert [one.candidate.settings["metric"] for one in race.leading()] == ["none", "full"]


def test_last_training_learns_length_scales_again():
    """An SVM's last training has no search, which takes most of the time; its length scales take half."""
    plain, scaled = (
        Trial(Candidate("CASVC", {"kernel": "laplacian", **more}, 0), 1000, 0.1, 10.0, 0.0, settings=100)
        for more in ({}, {"metric": "lengths"})
    )
    assert plain.share(last=True) == 1 / 301
    assert plain.share(last=False) == 13 / 301
    assert scaled.share(last=True) == scaled.share(last=False) == 0.5


@pytest.mark.parametrize("task", [REGRESSION, CLASSIFICATION])
def test_many_rows_have_candidates_on_points(task):
    """One model of all rows, whose time grows with them; its number of points and its kernel may change."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5_001, 2))
    y = np.abs(X).sum(axis=1) if task == REGRESSION else X[:, 0] > 0
    data, few = (Data.of(X[:n], y[:n], None, task, ALONE) for n in (5_001, 5_000))
    assert not any(one.on_points for one in first(few))
    candidate = next(one for one in first(data) if one.on_points)
    assert candidate.growth(5_001).power == candidate.parts(5_001) == 1
    assert candidate.name.endswith("1,500 points")
    made = candidate.make(200, 0).fit(X[:200], y[:200])
    assert len(made.centers_) == 200
    assert candidate.make(5_001, 3).get_params() == candidate.make(5_001, 3, divisions=2, ranks=2).get_params()
    near = [one for one, _ in zip(further(data, [candidate], rng), range(60), strict=False)]
    assert all(one.on_points for one in near)
    assert {one.settings["centers"] for one in near} == {750, 1_500, 3_000}
    assert {one.settings.get("standardize", True) for one in near} == {True, False}
    words = command(made, "a.h5", 1)
    assert words.startswith("python -m cakrr.subset a.h5 ")
    assert "--centers 200" in words
    assert ("--classify" in words) == (task == CLASSIFICATION)


@pytest.mark.parametrize(("seconds", "promoted"), [(1000.0, [0.2, 0.24]), (10.0, [0.2])])
def test_quick_candidates_that_are_not_far_behind_go_on(seconds, promoted):
    """Besides the best third: 17 s on four times as many rows are less than 3 % of the longer time."""
    X = np.random.default_rng(0).normal(size=(9_500, 1))
    race = started(Data.of(X, X[:, 0], None, REGRESSION, ALONE), SCORES["rmse"], Budget(seconds), ALONE, None, 0, 3)
    small, large = race.sizes
    race.trials = [Trial(Candidate("BKRR2", {"sigma": error}), small, error, 4.0, 0.0) for error in (0.26, 0.2, 0.24)]
    found = []
    while (step := race._promoted(1000.0)) is not None:
        candidate, rows = step
        assert rows == large
        found.append(candidate.settings["sigma"])
        race.trials.append(Trial(candidate, rows, 0.1, 17.0, 0.0))
    assert found == promoted


def test_a_quicker_classifier_goes_on_that_only_chance_sets_apart():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9_500, 1))
    data = Data.of(X, X[:, 0] > 0, None, CLASSIFICATION, ALONE)
    race = started(data, SCORES["accuracy"], Budget(1000.0), ALONE, None, 0, 4)
    small, large = race.sizes
    race.trials = [
        Trial(
            Candidate("CASVC", {"kernel": "gaussian", "C": error}),
            small,
            error,
            seconds,
            0.0,
            squared=error,
            deviation=0.02,
        )
        for error, seconds in ((0.2, 20.0), (0.21, 10.0), (0.21, 30.0), (0.23, 10.0))
    ]
    assert [(one.error, one.seconds) for one in race._leaders(race.on(small), large)] == [(0.21, 10.0), (0.2, 20.0)]
    race.budget = Budget(None)  # and the seconds, which do not repeat, decide nothing
    assert [one.error for one in race._leaders(race.on(small), large)] == [0.2]


@pytest.mark.parametrize(("why", "promoted"), [("", 0.1), ("1,000 rows would take too long", 0.2)])
def test_no_candidate_goes_on_that_another_beats_with_fewer_rows(why, promoted):
    """The first one may have more rows than all others, if it took too long; but not without end."""
    X = np.random.default_rng(0).normal(size=(50_000, 1))
    race = started(Data.of(X, X[:, 0], None, REGRESSION, ALONE), SCORES["rmse"], Budget(1e6), ALONE, None, 0, 2)
    trials = [
        Trial(Candidate("BKRR2", {"sigma": error}), n, error, 1.0, 0.0)
        for n, error in zip(race.sizes[1::-1], (0.2, 0.1), strict=True)
    ]
    trials[1].why, race.trials = why, trials
    step = race._promoted(1e6)
    assert step is not None
    assert step[0].settings["sigma"] == promoted


def test_no_candidate_is_beaten_by_itself_on_fewer_rows():
    X = np.random.default_rng(0).normal(size=(50_000, 1))
    race = started(Data.of(X, X[:, 0], None, REGRESSION, ALONE), SCORES["rmse"], Budget(1e6), ALONE, None, 0, 2)
    candidate = Candidate("BKRR2", {"sigma": 1.0})
    slow = 2e5  # seconds: too long for a candidate that only goes on since it is quick
    race.trials = [Trial(candidate, n, error, slow, 0.0) for n, error in zip(race.sizes, (0.1, 0.11), strict=False)]
    step = race._promoted(1e6)
    assert step is not None
    assert step[1] == race.sizes[2]
