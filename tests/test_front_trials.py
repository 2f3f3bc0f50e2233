"""Trials of a search: which one is the best, and what a training on more rows keeps."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from cacore.comm import Communicator
from cacore.probability.calibrator import Calibrator
from cakernels.leaderboard import command
from cakernels.search.blending import search, started
from cakernels.search.candidates import SVM_POWER, Candidate, first, further
from cakernels.search.data import CLASSIFICATION, REGRESSION, Data
from cakernels.search.scores import SCORES
from cakernels.search.trial import FINAL, Budget, Trial, ranked
from cakrr import BKRR2

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

    def sure(score):
        return SCORES[score].squared(data, every, P, ALONE), SCORES[score].rated(data, every, told, ALONE)[1]

    squared, deviation = sure("accuracy")
    assert squared == pytest.approx(np.average(squares, weights=w))
    assert deviation == pytest.approx(np.sqrt(variance(every)))
    squared, deviation = sure("balanced_accuracy")
    each = [labels == one for one in range(3)]
    assert squared == pytest.approx(np.mean([np.average(squares[rows], weights=w[rows]) for rows in each]))
    assert deviation == pytest.approx(np.sqrt(sum(variance(rows) for rows in each)) / 3)


def test_classifier_trials_carry_error_deviations():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 2))
    y = np.where(X[:, 0] + 0.3 * rng.normal(size=90) > 0, "b", "a")
    race = started(Data.of(X, y, None, CLASSIFICATION, ALONE), SCORES["accuracy"], Budget(None), ALONE, None, 0, 2)
    made = race.tried(Candidate("BKRR2Classifier", {"sigma": 1.0, "lam": 1e-3}, 0), 72)
    P = made.calibrator.of_classes(made.held)
    right = made.predicted == y[race.validation_rows]
    assert made.squared == pytest.approx(2 * np.mean((P[:, 1] - (y[race.validation_rows] == "b")) ** 2))
    assert made.deviation == pytest.approx(np.sqrt(right.mean() * (1 - right.mean()) / len(right)))
    assert 0 < made.squared < 0.5


@pytest.mark.parametrize("form", ["sigmoid", "isotonic"])
def test_scores_of_probabilities_know_no_curve_of_their_own_rows(form):
    """The order of the rows is that of the outputs; a row's log loss has a curve of the other groups' rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 2))
    y = np.where(X[:, 0] + 0.8 * rng.normal(size=90) > 0, "b", "a")
    data, trials = Data.of(X, y, None, CLASSIFICATION, ALONE), {}
    for score in ("roc_auc", "log_loss"):
        race = started(data, SCORES[score], Budget(None), ALONE, None, 0, 2)
        race.probability = form
        trials[score] = race.tried(Candidate("BKRR2Classifier", {"sigma": 1.0, "lam": 1e-3}, 0), 72)
    held, group = trials["roc_auc"].held, race.split.groups(race.folds)
    assert 1 - trials["roc_auc"].error == pytest.approx(roc_auc_score(y, held[:, 0]))
    assert sorted(np.bincount(group)) == [18] * 5
    P = np.empty((90, 2))
    for number in range(5):
        others = group != number
        calibrator = Calibrator.of_outputs(form, held[others], (y == "b")[others].astype(int), ALONE)
        P[~others] = calibrator.of_classes(held[~others])
    assert trials["log_loss"].error == pytest.approx(log_loss(y, P))


def test_probabilities_of_a_search_know_the_weights_of_the_rows():
    """Each row of a class of weight 9 counts as nine: frequencies alone then have a log loss of .33."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 2)), rng.integers(0, 2, 200)
    w = np.where(y == 1, 9.0, 1.0)
    race = started(Data.of(X, y, w, CLASSIFICATION, ALONE), SCORES["log_loss"], Budget(None), ALONE, None, 0, 1)
    made = race.tried(Candidate("BKRR2Classifier", {"sigma": 1.0, "lam": 1.0}, 0), 160)
    assert race.baseline_error() == pytest.approx(log_loss(y, np.full(200, w[y == 1].sum() / w.sum()), sample_weight=w))
    assert made.error == pytest.approx(race.baseline_error(), abs=0.02)
    P = made.calibrator.of_classes(made.held)
    assert log_loss(y, P, sample_weight=w) == pytest.approx(race.baseline_error(), abs=0.02)


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
    assert made.share(80, last=False) == made.share(80, last=True) == pytest.approx(1.2 / 4.2)
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


def test_length_scales_take_as_long_on_all_rows():
    """An SVM's last training has no search, which takes most of the time; its length scales are learned again."""
    X = np.random.default_rng(0).normal(size=(8_000, 1))
    data = Data.of(X, X[:, 0] > 0, None, CLASSIFICATION, ALONE)
    race = started(data, SCORES["accuracy"], Budget(None), ALONE, None, 0, 2)
    candidate = Candidate("CASVC", {"kernel": "laplacian"}, 0)
    plain, scaled = (
        Trial(candidate, 1_000, 0.1, seconds, 0.0, scales=scales, solving=0.5, settings=100)
        for seconds, scales in [(6.0, 0.0), (10.0, 4.0)]
    )
    for last, share in [(True, 1 / 12), (False, 1 / 12 + 11 / 12 * 4 / 100)]:
        for one in (plain, scaled):
            more = 6.0 * share * 4**SVM_POWER
            assert race.seconds(one, 1_000, last) == pytest.approx(one.scales + 6.0 * share)
            assert race.seconds(one, 4_000, last) == pytest.approx(one.scales + more)
    assert race.rows_in(scaled, FINAL * race.seconds(scaled, 4_000, last=True) + 1e-6) == pytest.approx(4_000, abs=1)
    for rows, late in [(2_000, FINAL), (4_000, FINAL**2)]:
        assert race.end(scaled, rows) == pytest.approx(late * race.seconds(scaled, rows, last=True))
    assert race.rows_in(scaled, FINAL * scaled.scales) == 0


@pytest.mark.parametrize(("settings", "more"), [(4, 1.0), (100, 0.52)])
def test_an_svm_is_solved_again_without_its_search(settings, more):
    """A training of 20 s learned length scales for 4 s, solved for 6 and predicted for 2; the last takes 4 + 6."""
    one = Trial(Candidate("CASVC", {}), 9_000, 0.1, 20.0, 0.0, settings=settings, scales=4.0, solving=6.0, judging=2.0)
    assert one.share(200, last=True) == 6 / 16
    assert one.share(200, last=False) == pytest.approx(more)
    one.solving = 0.0
    assert one.share(200, last=True) == 1


def test_trials_know_how_long_length_scales_took():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 2))
    data = Data.of(X, X[:, 0] > 0, None, CLASSIFICATION, ALONE)
    race = started(data, SCORES["accuracy"], Budget(None), ALONE, None, 0, 2)
    settings = {"kernel": "gaussian", "C": 1.0, "gamma": 1.0}
    made = race.tried(Candidate("CASVC", settings | {"metric": "lengths"}, 0), 72)
    assert 0 < made.scales < made.scales + made.solving < made.seconds
    assert race.tried(Candidate("CASVC", settings, 0), 72).scales == 0


@pytest.mark.parametrize("task", [REGRESSION, CLASSIFICATION])
def test_many_rows_have_candidates_on_points(task):
    """One model of all rows, whose time grows with them; its number of points and its kernel may change."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5_001, 2))
    y = np.abs(X).sum(axis=1) if task == REGRESSION else X[:, 0] > 0
    data, few = (Data.of(X[:n], y[:n], None, task, ALONE) for n in (5_001, 5_000))
    assert not any(one.on_points for one in first(few))
    candidate = next(one for one in first(data) if one.on_points)
    assert candidate.parts(5_001) == 1
    assert candidate.growth(6_000).factor(12_000) == 2**3  # with twice as many points
    assert candidate.growth(12_000).factor(120_000) == 10
    assert candidate.name.endswith("1,500 points")
    made = candidate.make(200, 0).fit(X[:200], y[:200])
    assert len(made.centers_) == 25  # of so few rows; an eighth
    assert candidate.make(5_001, 3).get_params() == candidate.make(5_001, 3, divisions=2, ranks=2).get_params()
    near = [one for one, _ in zip(further(data, [candidate], rng), range(60), strict=False)]
    assert all(one.on_points for one in near)
    assert {one.settings["centers"] for one in near} == {750, 1_500, 3_000}
    assert {one.settings.get("standardize", True) for one in near} == {True, False}
    words = command(made, "a.h5", 1)
    assert words.startswith("python -m cakrr.subset a.h5 ")
    assert "--centers 25" in words
    assert ("--classify" in words) == (task == CLASSIFICATION)


@pytest.mark.parametrize(("seconds", "promoted"), [(1000.0, [0.2, 0.24]), (10.0, [0.2])])
def test_fast_candidates_close_to_the_best_are_promoted(seconds, promoted):
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


@pytest.mark.parametrize(("limit", "early"), [(1000.0, True), (None, False)])
@pytest.mark.parametrize("before", [0, 1])
def test_promotion_starts_after_three_candidates(limit, early, before):
    """A good model is there soon, if there is a time. On a slow machine, the first one had a larger sample."""
    X = np.random.default_rng(0).normal(size=(9_500, 1))
    race = started(Data.of(X, X[:, 0], None, REGRESSION, ALONE), SCORES["rmse"], Budget(limit), ALONE, None, 0, None)
    small, large = race.sizes
    errors = [0.26, 0.2, 0.24, 0.3]
    race.trials = [Trial(Candidate("BKRR2", {"kernel": "l1"}), large, 0.4, 90.0, 0.0)] * before
    race._waiting = [Candidate("BKRR2", {"sigma": error}) for error in errors]
    for sigma, rows in [*((error, small) for error in errors[:3]), *[(0.2, large)] * early, (errors[3], small)]:
        candidate, n = race._next_training()
        assert (candidate.settings["sigma"], n) == (sigma, rows)
        race.trials.append(Trial(candidate, n, sigma, 60.0, 0.0))


@pytest.mark.parametrize(
    ("seconds", "order"), [(20.0, [(0.21, 10.0), (0.2, 20.0)]), (14.0, [(0.2, 14.0), (0.21, 10.0)])]
)
def test_faster_classifier_within_noise_is_promoted(seconds, order):
    """It goes before the best one if that takes much longer."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9_500, 1))
    data = Data.of(X, X[:, 0] > 0, None, CLASSIFICATION, ALONE)
    race = started(data, SCORES["accuracy"], Budget(1000.0), ALONE, None, 0, 4)
    small, large = race.sizes
    assert race._best_third(race.on(small), large) == []
    race.trials = [
        Trial(Candidate("CASVC", {"C": error}), small, error, took, 0.0, squared=error, deviation=0.02)
        for error, took in ((0.2, seconds), (0.21, 10.0), (0.21, 30.0), (0.23, 10.0))
    ]
    assert [(one.error, one.seconds) for one in race._best_third(race.on(small), large)] == order
    race.budget = Budget(None)  # and the seconds, which do not repeat, decide nothing
    assert [one.error for one in race._best_third(race.on(small), large)] == [0.2]


def test_larger_first_sample_waits_for_rivals():
    """On a slow machine it had four times as many rows as the others; the best of these comes to as many first."""
    X = np.random.default_rng(0).normal(size=(50_000, 1))
    race = started(Data.of(X, X[:, 0], None, REGRESSION, ALONE), SCORES["rmse"], Budget(1e6), ALONE, None, 0, 4)
    smallest, small, large = race.sizes[:3]
    sizes, found = [small, smallest, smallest], []
    race.trials = [
        Trial(Candidate("BKRR2", {"sigma": error}), n, error, 1e5, 0.0)
        for n, error in zip(sizes, (0.2, 0.25, 0.3), strict=True)
    ]
    for error in (0.1, 0.05):
        candidate, rows = race._promoted(1e6)
        found.append((candidate.settings["sigma"], rows))
        race.trials.append(Trial(candidate, rows, error, 1e5, 0.0))
    assert found == [(0.25, small), (0.25, large)]


@pytest.mark.parametrize(("why", "promoted"), [("", 0.1), ("1,000 rows would take too long", 0.2)])
def test_dominated_candidates_are_not_promoted(why, promoted):
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


@pytest.mark.parametrize("task", [REGRESSION, CLASSIFICATION])
def test_features_of_few_levels_have_candidates(task):
    """At first, and among the changes; on points, too. Not where there are none, or far too many."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=5_001), rng.integers(0, 4, 5_001)])
    y = X[:, 0] > 0 if task == CLASSIFICATION else X[:, 0]
    data = Data.of(X, y, None, task, ALONE)
    assert data.columns == 5
    coded = [one for one in first(data) if one.settings.get("scaling") == "levels"]
    assert [one.on_points for one in coded] == [False, True]
    for one, expected in zip(coded, ({None, "levels", "quantile"}, {None, "levels"}), strict=True):
        near = [changed for changed, _ in zip(further(data, [one], rng), range(99), strict=False)]
        assert {changed.settings.get("scaling") for changed in near} == expected
    for other in (Data.of(X[:, :1], y, None, task, ALONE), replace(data, columns=501)):
        plain = first(other)
        near = [one for one, _ in zip(further(other, plain, rng), range(400), strict=False)]
        assert not any(one.settings.get("scaling") == "levels" for one in [*plain, *near])
    made = coded[1].make(200, 0).fit(X[:200], y[:200])
    assert made.centers_.shape == (25, 5)


def test_points_keep_their_width():
    """Five widths are compared once; on more rows two, and one at last, which the time is expected to show."""
    X = np.random.default_rng(0).normal(size=(200, 2))
    data = Data.of(X, X[:, 0], None, REGRESSION, ALONE)
    for kernel, compared in [("gaussian", 5), ("auto", 20)]:
        candidate = Candidate("SubsetKRR", {"kernel": kernel, "centers": 50}, 0)
        made = started(data, SCORES["rmse"], Budget(None), ALONE, None, 0, 1).tried(candidate, 160)
        assert made.kernels == candidate.kernels == compared
        assert len({(one.get("kernel"), one["sigma"]) for one in made.fitted.grid_}) == compared
        width = made.fitted.sigma_
        more, last = candidate.after(made.fitted), candidate.after(made.fitted, last=True)
        assert more.chosen["sigma"] == [width / 2, width]
        assert last.chosen["sigma"] == [width]
        assert (more.kernels, last.kernels) == (2, 1)
        assert made.share(200, last=False) == pytest.approx(2.2 / (compared + 0.2))
        assert made.share(200, last=True) == pytest.approx(1.2 / (compared + 0.2))
        assert last.make(200, 0).fit(X, X[:, 0]).sigma_ == width


def test_last_training_on_few_rows_uses_folds():
    """Ridge regression without a metric does, if there is time; the printed command leaves out the share."""
    X = np.random.default_rng(0).normal(size=(120, 2))
    race = started(Data.of(X, X[:, 0] ** 2, None, REGRESSION, ALONE), SCORES["rmse"], Budget(None), ALONE, None, 0, 1)
    race.run()
    (trial,) = race.trials
    assert trial.candidate.in_folds
    (made,) = search(race).estimators
    assert made.validation_fraction == BKRR2().validation_fraction
    ref = BKRR2(1, kernel=made.kernel, route="soft", sigma="auto", lam="auto", random_state=0).fit(X, X[:, 0] ** 2)
    assert (made.sigma_, made.lam_) == (ref.sigma_, ref.lam_)
    assert "--validation-fraction" not in command(made, "data.h5", 1)
    metric, points = Candidate("BKRR2", {"metric": "full"}, 0), Candidate("SubsetKRR", {"centers": 50}, 0)
    assert metric.thorough() == metric
    assert points.thorough() == points


def test_r2_of_the_mean_is_zero():
    y = np.random.default_rng(0).normal(size=997) + 0.1
    weights = np.full(997, 0.1)
    for mean in (y.mean(), np.nextafter(y.mean(), 1.0)):
        assert SCORES["r2"].rate(y, np.full(997, mean), weights, 0)[0] == 0.0
    assert SCORES["r2"].rate(y, np.full(997, 0.2), weights, 0)[0] < 0.0
