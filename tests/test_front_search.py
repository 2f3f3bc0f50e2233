"""The search behind the front door: rows that judge, scores, blends, candidates and the race."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import near, refusal
from helpers.data import clouds, saddle
from sklearn import metrics

import cakernels.search.blending
import cakernels.search.race
import casvm
from cacore.comm import Communicator
from cacore.machine.deadline import TimeIsUp
from cakernels.fit import METRICS
from cakernels.leaderboard import command, leaderboard
from cakernels.search.blending import combined, search, so_far, started
from cakernels.search.candidates import KERNELS, Candidate, first, further
from cakernels.search.data import CLASSIFICATION, FOLDED, REGRESSION, Data, Split, guessed, target_notes
from cakernels.search.scores import DEFAULTS, SCORES
from cakernels.search.trial import Budget, Trial

ALONE = Communicator()


def regression(n=240, weights=None):
    X, y = saddle(n)
    return Data.of(X, y, weights, REGRESSION, ALONE)


def classes(n=150):
    X, y = clouds(n, k=3)
    return Data.of(X, y, None, CLASSIFICATION, ALONE)


@pytest.mark.parametrize(
    ("y", "task"),
    [(np.array(["a", "b"]), "classification"), (np.array([0.0, 1, 1]), "classification"),
     (np.arange(30.0), "regression"), (np.array([0.5, 1.0]), "regression"), (np.array([3.0, 3.0]), "regression"),
     (np.eye(3), "regression")],
)  # fmt: skip
def test_guessed_task(y, task):
    assert guessed(y, ALONE) == task


@pytest.mark.parametrize(("y", "name", "note"), [
    (np.arange(60) % 30, "rings", "target rings: 0 to 29, taken as a number; --task classification makes 30 classes"),
    (np.arange(60) % 6 + 3, "quality",
     "target quality: 3 to 8, taken as 6 classes; --task regression takes it as a number"),
    (np.arange(60) % 6 + 3, "", None), (np.arange(60) % 2, "y", None), (np.arange(200), "id", None),
    (np.linspace(0, 1, 60), "y", None), (np.where(np.arange(60) < 7, "b", "a"), "y", None),
    (np.where(np.arange(60) < 3, "b", "a"), "y",
     "classes of unequal size: 'b' 5 % of the rows, 'a' 95 %: accuracy says little of the small ones; --metric-name "
     "balanced_accuracy or average_precision"),
])  # fmt: skip
def test_notes_on_the_target(y, name, note):
    X = np.zeros((len(y), 1))
    data = Data.of(X, y if y.dtype.kind == "U" else y.astype(float), None, None, ALONE)
    assert target_notes(data, name, data.task == CLASSIFICATION, ALONE) == [note] * (note is not None)


def test_folds_hold_every_row_out_once_and_keep_the_classes():
    data = classes()
    split = Split.of(data, 0, ALONE)
    masks = np.array([split.held(fold) for fold in range(split.folds)])
    assert (masks.sum(axis=0) == 1).all()
    assert split.sizes() == (120,)
    for fold, held in enumerate(masks):
        np.testing.assert_array_equal(split.training(fold, 120), ~held)
        assert np.ptp(np.bincount(data.y[held]) - np.bincount(data.y) / split.folds) <= 1


def test_training_samples_grow_and_exclude_validation_rows():
    n = 5 * FOLDED
    rng = np.random.default_rng(0)
    split = Split.of(Data.of(rng.normal(size=(n, 1)), rng.normal(size=n), None, REGRESSION, ALONE), 0, ALONE)
    held, before = split.held(0), np.zeros(n, bool)
    assert split.folds == 1
    assert held.sum() == split.validation_rows(1).sum() == int(0.15 * n)
    for rows in split.sizes():
        sample = split.training(0, rows)
        assert sample.sum() == rows
        assert not (sample & held).any()
        assert (sample >= before).all()
        before = sample
    assert split.sizes()[:-1] == (1_328, 5_312)
    assert split.sizes()[-1] == split.n_train == n - held.sum()


WEIGHTS = pytest.mark.parametrize("weights", [None, np.linspace(0.5, 2.0, 40)])
EVERY = np.ones(40, bool)


@WEIGHTS
@pytest.mark.parametrize("shape", [(40,), (40, 2)])
def test_scores_of_numbers_are_those_of_scikit_learn(weights, shape):
    rng = np.random.default_rng(0)
    y, f = rng.normal(size=shape), rng.normal(size=shape)
    data = Data(np.zeros((40, 1)), y, weights, REGRESSION, 40, np.zeros(0))
    mse = metrics.mean_squared_error(y, f, sample_weight=weights)
    expected = {"rmse": np.sqrt(mse), "mae": metrics.mean_absolute_error(y, f, sample_weight=weights),
                "r2": metrics.r2_score(y, f, sample_weight=weights),
                "pinball": metrics.mean_pinball_loss(y, f, sample_weight=weights)}  # fmt: skip
    for name, value in expected.items():
        assert SCORES[name].value(SCORES[name].error(data, EVERY, f, ALONE)) == pytest.approx(value)
        assert SCORES[name].error(data, EVERY, np.full(shape, np.inf), ALONE) == np.inf


@WEIGHTS
@pytest.mark.parametrize("k", [2, 3])
def test_scores_of_classes_are_those_of_scikit_learn(weights, k):
    rng = np.random.default_rng(0)
    classes = np.array(["no", "perhaps", "yes"])[:k]
    y, predicted, P = rng.choice(classes, 40), rng.choice(classes, 40), rng.dirichlet(np.ones(k), 40)
    P[0, y[0] == classes] = 0.0  # a surprise that log loss clips
    P /= P.sum(axis=1, keepdims=True)
    data = Data(np.zeros((40, 1)), y, weights, CLASSIFICATION, 40, classes)
    shared = {"sample_weight": weights}
    f1 = {"average": "macro"} if k > 2 else {"pos_label": classes[1]}
    one, ranked_by = (y == classes[1], P[:, 1]) if k == 2 else (y, P)
    expected = {"accuracy": metrics.accuracy_score(y, predicted, **shared),
                "balanced_accuracy": metrics.balanced_accuracy_score(y, predicted, **shared),
                "f1": metrics.f1_score(y, predicted, **f1, **shared),
                "log_loss": metrics.log_loss(y, P, **shared),
                "roc_auc": metrics.roc_auc_score(one, ranked_by, multi_class="ovr", **shared),
                "average_precision": metrics.average_precision_score(one, ranked_by, **shared)}  # fmt: skip
    assert set(expected) == {name for name, score in SCORES.items() if score.task == CLASSIFICATION}
    for name, value in expected.items():
        score = SCORES[name]
        error = score.error(data, EVERY, P if score.of_probabilities else predicted, ALONE)
        assert score.value(error) == pytest.approx(value)
    alone = np.full(40, classes[0])
    data = Data(np.zeros((40, 1)), alone, weights, CLASSIFICATION, 40, classes)
    assert SCORES["roc_auc"].error(data, EVERY, P, ALONE) == np.inf  # undefined where all rows are of one class


@pytest.mark.parametrize("k", [2, 3])
def test_rows_of_a_label_that_the_model_does_not_know(k):
    """They are wrong, and a class of their own, as in scikit-learn; of a ranking they are rows of another class."""
    rng = np.random.default_rng(0)
    y, predicted, P = rng.integers(0, k + 1, 40), rng.integers(0, k, 40), rng.dirichlet(np.ones(k), 40)
    data = Data(np.zeros((40, 1)), y, None, CLASSIFICATION, 40, np.arange(k))

    def mean(ranking):
        return np.mean([ranking(y == c, P[:, c]) for c in ([1] if k == 2 else range(k))])

    labels = {"labels": [1]} if k == 2 else {}
    expected = {"accuracy": metrics.accuracy_score(y, predicted),
                "balanced_accuracy": metrics.balanced_accuracy_score(y, predicted),
                "f1": metrics.f1_score(y, predicted, average="macro", **labels),
                "log_loss": metrics.log_loss(y, np.c_[P, np.zeros(40)]),
                "roc_auc": mean(metrics.roc_auc_score),
                "average_precision": mean(metrics.average_precision_score)}  # fmt: skip
    assert set(expected) == {name for name, score in SCORES.items() if score.task == CLASSIFICATION}
    for name, value in expected.items():
        score, answers = SCORES[name], P if SCORES[name].of_probabilities else predicted
        assert score.value(score.error(data, EVERY, answers, ALONE)) == pytest.approx(value)
        assert not score.clearly_better(data, EVERY, answers, answers, ALONE)


def test_several_targets_are_clearly_better():
    """By the mean over the targets of a row."""
    y, shift = np.random.default_rng(0).normal(size=(40, 2)), np.array([0.5, 0.1])
    data = Data(np.zeros((40, 1)), y, None, REGRESSION, 40, np.zeros(0))
    for name in ("rmse", "mae", "pinball"):
        assert SCORES[name].clearly_better(data, EVERY, y + 0.1, y + 0.5, ALONE)
        assert not SCORES[name].clearly_better(data, EVERY, y + shift, y + shift[::-1], ALONE)


def test_the_deviation_of_f1_is_that_of_new_rows():
    """Beside the spread of the score over samples of so many rows."""
    rng = np.random.default_rng(0)
    for k in (2, 3):
        values, deviations = [], []
        for _ in range(400):
            y = rng.integers(0, k, 300)
            predicted = np.where(rng.random(300) < 0.7, y, rng.integers(0, k, 300))
            data = Data(np.zeros((300, 1)), y, None, CLASSIFICATION, 300, np.arange(k))
            error, deviation = SCORES["f1"].rated(data, np.ones(300, bool), predicted, ALONE)
            values.append(error)
            deviations.append(deviation)
        assert np.mean(deviations) == pytest.approx(np.std(values), rel=0.15)


def test_labels_are_clearly_better():
    """By more than the root of the number of rows that one of two classifiers has right and the other wrong."""
    y = np.r_[np.zeros(90), np.ones(10)].astype(int)
    data, every = Data(np.zeros((100, 1)), y, None, CLASSIFICATION, 100, np.arange(2)), np.ones(100, bool)

    def wrong(*rows):
        labels = y.copy()
        labels[list(rows)] = 1 - labels[list(rows)]
        return labels

    def better(score, new, old):
        return SCORES[score].clearly_better(data, every, new, old, ALONE)

    assert better("accuracy", wrong(0), wrong(1, 2, 3, 4))  # 3 > sqrt(5)
    assert not better("accuracy", wrong(0), wrong(1, 2))  # 1 < sqrt(3)
    assert not better("accuracy", wrong(0), wrong(0))
    assert not better("balanced_accuracy", wrong(99), wrong(1, 2, 3, 4))  # 4 / 90 < 1 / 10
    assert better("balanced_accuracy", wrong(0, 1), wrong(97, 98))


def test_classifiers_are_blended_if_validation_improves(monkeypatch):
    """Two candidates that see half of the features each are better together on the rows that judge."""
    X, y = clouds(900, k=3, d=4)
    running = race(Data.of(X[:600], y[:600], None, CLASSIFICATION, ALONE), Budget(None), 2)
    running._waiting = [Candidate("BKRR2Classifier", {"sigma": s, "lam": 1e-3}, 0) for s in (1.0, 2.0)]
    told = type(running)._predictions

    def blind(self, fitted, rows):
        rows = rows.copy()
        rows[:, [0, 1] if fitted.sigma == 1.0 else [2, 3]] = 0.0
        return told(self, fitted, rows)

    monkeypatch.setattr(type(running), "_predictions", blind)
    running.run()
    mixed = combined(running, running.best)
    assert len(mixed.trials) == len(mixed.calibrators) == 2
    near(mixed.weights.sum(), 1.0, 1e-12)
    held = [c.of_classes(one.held) for c, one in zip(mixed.calibrators, mixed.trials, strict=True)]
    labels = running.data.classes[np.tensordot(mixed.weights, held, 1).argmax(axis=1)]
    assert np.mean(labels != running.data.y) < running.best.error


@pytest.mark.parametrize(
    ("data", "score"), [(regression(), "rmse"), (regression(), "mae"), (classes(), "accuracy")],
    ids=["regression", "absolute", "classes"],
)  # fmt: skip
def test_candidates_differ_and_can_be_made(data, score):
    rng = np.random.default_rng(0)
    begun = first(data, score)
    known = {one.of(data.n).key: one for one in begun}
    for one in (one.of(data.n) for one in further(data, begun, rng)):
        known[one.key] = one
        if len(known) >= 30:
            break
    assert len({one.name for one in known.values()}) == len(known)
    for one in known.values():
        estimator = one.make(10_000, 3)
        assert (estimator.random_state, estimator.n_parts) == (3, one.parts(10_000))


def test_svr_candidates_for_few_rows_or_absolute_errors():
    """On few rows, and for absolute errors; never for several targets."""

    def kernels(data, score):
        return [one.settings["kernel"] for one in first(data, score) if one.estimator == "CASVR"]

    few = regression()
    many = replace(few, n=1_000_000)
    assert kernels(few, "rmse") == ["laplacian"]
    assert kernels(many, "rmse") == []
    assert kernels(few, "mae") == kernels(many, "mae") == ["laplacian", "gaussian"]
    assert kernels(replace(few, y=np.c_[few.y, few.y]), "mae") == []


@pytest.mark.parametrize(("estimator", "exact"), [("CASVC", "DisSMOSVC"), ("CASVR", "DisSMOSVR")])
def test_one_svm_of_all_rows_is_trained_by_all_ranks(estimator, exact):
    candidate = Candidate(estimator, {"kernel": "laplacian", "partitioner": "kmeans", "C": "grid"}, 100)
    assert [type(candidate.make(n, 0, ranks=2)).__name__ for n in (100, 101)] == [exact, estimator]
    assert candidate.make(101, 0, ranks=3).n_parts == 3


def test_svr_keeps_its_choice_on_more_rows():
    data = regression(80)
    candidate = Candidate("CASVR", {"kernel": "gaussian", "C": [1.0, 2.0], "epsilon": "grid", "gamma": [0.5]}, 0)
    fitted = race(data, Budget(None), 1).trained(candidate, np.ones(80, bool), 80)
    found = fitted.best_params_
    more = {"C": [found["C"], 4 * found["C"]], "epsilon": found["epsilon"], "gamma": [0.5, 1.0]}
    assert candidate.after(fitted).chosen == more
    assert candidate.after(fitted, last=True).chosen == found


def test_svr_wins_where_the_noise_has_heavy_tails():
    X, y = saddle(200)
    y = y + 0.2 * np.random.default_rng(1).standard_cauchy(200)
    running = race(Data.of(X, y, None, REGRESSION, ALONE), Budget(None), 3, "mae")
    running.run()
    assert running.best.candidate.estimator == "CASVR"


def test_candidates_of_sparse_rows_keep_them_sparse():
    data = Data.of(sp.random(50, 9, 0.3, "csr", random_state=0), np.arange(50.0), None, REGRESSION, ALONE)
    learned = {one.settings.get("metric") for one in first(data)} | {one.settings.get("scaling") for one in first(data)}
    assert learned == {None}
    everything = Candidate("BKRR2", {"kernel": "gaussian"})
    changed = [one for one, _ in zip(further(data, [everything], np.random.default_rng(0)), range(50), strict=False)]
    assert not any({"metric", "scaling"} & set(one.settings) for one in changed)


def test_svms_of_classes_may_learn_length_scales():
    """At first by default, and among the changes, for dense rows of not too many features."""
    data = classes()
    assert any(one.svm and one.settings.get("metric") == "lengths" for one in first(data))
    wide = replace(data, X=np.zeros((150, 5000)))
    assert not any(one.svm and "metric" in one.settings for one in first(wide))
    plain = Candidate("CASVC", {"kernel": "laplacian"}, 0)
    changed = [one for one, _ in zip(further(data, [plain], np.random.default_rng(0)), range(60), strict=False)]
    assert {one.settings.get("metric") for one in changed} == {None, "diagonal", "full", "lengths"}
    fitted = next(one for one in changed if one.settings.get("metric") == "lengths").make(150, 0).fit(data.X, data.y)
    assert fitted.metric_.shape == (data.d,)


class Stepped(Budget):
    """A clock that goes on when it is told to."""

    now = compiled = 0.0

    def spent(self, comm):
        return self.now

    def worked(self, comm):
        return self.now - self.compiled

    def remaining(self):
        return self.seconds - self.now


def race(data, budget, most=None, score=None):
    score = SCORES[score or ("rmse" if data.task == REGRESSION else "accuracy")]
    return started(data, score, budget, ALONE, None, 0, most)


def test_the_command_offers_every_score_and_the_defaults_first():
    assert tuple(SCORES) == METRICS
    assert [METRICS[0], METRICS[4]] == [DEFAULTS[REGRESSION], DEFAULTS[CLASSIFICATION]]


def test_a_quick_candidate_is_trained_on_all_rows_early():
    """Once: the best one whose training takes at most a tenth of the time, or 40 % after an eighth of it."""
    X = np.random.default_rng(0).normal(size=(40_000, 1))
    running = race(Data.of(X, X[:, 0], None, REGRESSION, ALONE), Stepped(100.0))
    few, most = running.sizes[0], running.sizes[-1]
    slow = Candidate("BKRR2", {"kernel": "gaussian", "metric": "full"})
    quick = Candidate("BKRR2", {"kernel": "gaussian", "sigma": "auto", "lam": "auto"})
    running._waiting = []
    running.trials = [Trial(slow, few, 0.2, 9.0, 9.0), Trial(quick, few, 0.24, 2.0, 10.0)]  # 16.7 s on all rows
    running.budget.now = 12.0
    assert running._next_training()[1] == running.sizes[1]
    running.budget.now = 13.0
    assert running._next_training() == (quick, most)
    running.trials[1].seconds, running.budget.now = 1.0, 1.0
    assert running._next_training() == (quick, most)
    running.trials[1].error = 0.26  # over 1.25 times the smallest one
    assert running._next_training()[1] == running.sizes[1]
    running.trials = [Trial(quick, few, 0.2, 1.0, 10.0), Trial(quick, most, 0.1, 9.0, 19.0)]
    assert running._next_training()[1] < most


def test_ridge_regression_of_very_many_rows_looks_around_what_it_has_found():
    candidate = Candidate("BKRR2", {"kernel": "auto", "sigma": "auto", "lam": "auto"}, 100)
    fitted = race(regression(), Budget(None), 1).trained(candidate, np.ones(240, bool), 240)
    after = candidate.after(fitted)
    many, few = after.make(25_001, 0), after.make(25_000, 0)
    assert many.sigma == [fitted.sigma_ / 2, fitted.sigma_]
    assert many.lam == [fitted.lam_ / 10, fitted.lam_]
    assert few.sigma == few.lam == "auto"
    assert many.kernel == few.kernel == fitted.model_.kernel.kind
    assert (candidate.kernel_cost(25_001), after.kernel_cost(25_000), after.kernel_cost(25_001)) == (4, 1, 0.33)
    assert (candidate.kernel_cost_after(25_000, True), candidate.kernel_cost_after(25_001, True)) == (1, 0.33)


@pytest.mark.parametrize(
    ("metric", "rounds", "standardize"), [("lengths", 3, True), ("full", 4, True), ("diagonal", 4, False)]
)
def test_a_metric_is_learned_on_few_rows_refined_on_more_and_then_kept(metric, rounds, standardize):
    settings = {"kernel": "laplacian", "sigma": "auto", "lam": "auto", "metric": metric, "metric_rounds": rounds}
    settings |= {"standardize": standardize}
    candidate = Candidate("BKRR2", settings, 100)
    fitted = race(regression(), Budget(None), 1).trained(candidate, np.ones(240, bool), 240)
    after, last = candidate.after(fitted), candidate.after(fitted, last=True)
    few, many, final = after.make(60_000, 0), after.make(60_001, 0), last.make(240, 0)
    assert [made.metric_rounds for made in (few, many, final)] == [1, 0, 0]
    assert [made.metric for made in (few, many, final)] == [metric] * 3
    np.testing.assert_array_equal(many.metric_init, fitted.metric_)
    assert few.sigma == [fitted.sigma_ / 2, fitted.sigma_]
    assert many.sigma == final.sigma == fitted.sigma_
    assert few.lam == many.lam == [fitted.lam_ / 10, fitted.lam_]
    costs = candidate.kernel_cost(240), after.kernel_cost(60_000), after.kernel_cost(60_001), last.kernel_cost(240)
    assert costs == (10.0, 2.0, 0.4, 0.4)
    assert (candidate.rounds, after.rounds) == (3, 1)
    assert [candidate.rounds_after(rows, end) for rows, end in ((99, False), (99, True), (60_001, False))] == [1, 0, 0]
    again = race(regression(), Budget(None), 1).trained(last, np.ones(240, bool), 240)
    words = command(again, "a.csv", 3).split()  # learns the metric from the beginning
    assert words[words.index("--metric") + 1] == metric
    assert words[words.index("--metric-rounds") + 1] == str(rounds)
    assert not {"--metric-init", "--sigma", "--lambda"} & set(words)
    np.testing.assert_allclose(again.predict(regression().X), fitted.predict(regression().X), atol=0.2)


def test_seconds_of_length_scales_grow_by_rounds_and_not_by_rows():
    """A training on 1,000 rows takes 9 s, in 6 s of which it learns length scales, in three rounds."""
    settings = {"kernel": "laplacian", "sigma": "auto", "lam": "auto", "metric": "lengths", "metric_rounds": 3}
    candidate = Candidate("BKRR2", settings)
    running = race(regression(), Budget(100.0))
    trial = Trial(candidate, 1000, 0.2, 9.0, 9.0, kernels=10.0, scales=6.0, rounds=3)
    running.folds = 1
    refined = 2.0 + 3.0 * (2.0 + 0.2) / (10.0 + 0.2) * 4**1.05
    assert running.seconds(trial, 4000) == pytest.approx(refined)
    assert running.seconds(trial, 4000, last=True) == pytest.approx(3.0 * (0.4 + 0.2) / (10.0 + 0.2) * 4**1.05)


@pytest.mark.parametrize(("seconds", "trials"), [(5.4, 4), (5.5, 5)])
def test_race_reserves_time_for_the_last_training(seconds, trials, monkeypatch, tuned):
    """Candidates take a second each, and the last training of one .45 s; those of a blend are kept if a fifth do."""
    for module in (cakernels.search.race, cakernels.search.blending):
        monkeypatch.setattr(module, "until", lambda *_: nullcontext())
    running = race(regression(60), Stepped(seconds))
    running._waiting = [Candidate("BKRR2", {"kernel": kernel}, 0) for kernel in KERNELS]
    folds = type(running)._folds

    def a_second_later(self, *what):
        done = folds(self, *what)
        self.budget.now += 1.0
        return done

    tuned(race_folds=a_second_later)
    found = search(running)
    assert len(running.trials) == running.budget.now == trials
    assert found.rows == [60] * len(found.rows)
    blend = sum(running.end(leader, 60) for leader in running.leading())
    for seconds, kept in ((4.9 * blend, blend / trials), (5.1 * blend, blend)):
        running.budget.seconds = seconds
        assert running.reserve() == pytest.approx(max(kept, 0.05 * seconds))
    running.budget.seconds = 1000.0
    assert running.reserve() == 50.0  # a twentieth, if the last training is short


@pytest.mark.parametrize(("compiling", "trials"), [(0.0, 2), (20.0, 2), (40.0, 1)])
def test_no_candidate_begins_that_may_compile_beyond_the_end(compiling, trials, tuned):
    """The next candidate is allowed the compilation time of the first one; it begins if 60 s hold both."""
    tuned(race_until=lambda *_: nullcontext())
    running = race(regression(60), Stepped(60.0), 2)
    folds = type(running)._folds

    def compiled(self, *what):
        self.budget.now += compiling
        self.budget.compiled += compiling
        return folds(self, *what)

    tuned(race_folds=compiled)
    running.run()
    assert len(running.trials) == trials


def test_a_race_repeats_to_the_bit():
    found = [search(race(regression(80), Budget(None), 2)) for _ in range(2)]
    X = found[0].estimators[0].model_.parts[0].X
    np.testing.assert_array_equal(*(one.estimators[0].predict(X) for one in found))
    assert [one.error for one in found[0].trials] == [one.error for one in found[1].trials]


def test_failed_candidate_is_reported_and_race_continues():
    data = regression(80)
    running = race(data, Budget(None), 2)
    running._waiting = [Candidate("BKRR2", {"kernel": "no such kernel"}), Candidate("BKRR2", {"sigma": 1.0})]
    found = search(running)
    bad, good = running.trials
    assert "no such kernel" in bad.why
    assert bad.error == np.inf
    assert good.error == found.error < np.inf
    board = leaderboard(running.trials, SCORES["rmse"])
    assert [row["score"] for row in board] == [good.error, None]
    assert board[1]["why"] == bad.why
    assert so_far(running).candidates == [good.candidate]


def test_late_candidate_is_dropped(tuned):
    running = race(regression(80), Budget(None), 1)
    tuned(race_folds=lambda *_: (_ for _ in ()).throw(TimeIsUp()))
    trial = running.tried(Candidate("BKRR2", {}), 64)
    assert (trial.why, trial.error, trial.fitted) == ("out of time", np.inf, None)


def test_too_few_rows_for_validation_still_train():
    """Two rows of one class each: without one of them there is no second class."""
    data = Data.of(np.array([[0.0], [1.0]]), np.array(["a", "b"]), None, CLASSIFICATION, ALONE)
    found = search(race(data, Budget(None), 1))
    np.testing.assert_array_equal(found.estimators[0].predict(data.X), ["a", "b"])
    assert found.error == np.inf
    assert found.trials[0].error == np.inf


def test_refused():
    refusal(Data.of, np.zeros((3, 1)), np.zeros(3), None, CLASSIFICATION, ALONE, match="2 classes")
    refusal(Data.of, np.zeros((1, 1)), np.zeros(1), None, REGRESSION, ALONE, match="n_samples = 1")


def test_samples_are_halved_successively():
    """Two sizes: all first candidates on the small one, and the best third of them on the large one."""
    X, y = saddle(9_500)
    running = race(Data.of(X, y, None, REGRESSION, ALONE), Budget(None), 3)
    running._waiting = [Candidate("BKRR2", {"sigma": s, "lam": 1e-6}) for s in (0.01, 1.0, 0.02)]
    running.run()
    small, large = running.sizes
    assert [one.rows for one in running.trials] == [small] * 3 + [large]
    assert running.trials[-1].candidate.settings["sigma"] == 1.0
    assert running.best is running.trials[-1]


@pytest.mark.parametrize(("kind", "flags"), [("CASVR", "--partitioner kmeans"), ("DisSMOSVR", "--exact")])
def test_command_that_repeats_a_regression_by_vectors(kind, flags):
    X, y = saddle(60)
    more = {"partitioner": "kmeans"} if kind == "CASVR" else {}
    fitted = getattr(casvm, kind)(C=2.0, epsilon=0.25, gamma=0.5, kernel="laplacian", **more).fit(X, y)
    told = command(fitted, "a.csv", 1)
    assert told.startswith("python -m casvm.svr a.csv ")
    for words in ("--C 2", "--epsilon 0.25", "--gamma 0.5", "--kernel laplacian", flags):
        assert words in told
    assert ("--partitions" in told) == (kind == "CASVR")


@pytest.mark.parametrize("name", ["BKRR2", "CASVC"])
def test_command_that_repeats(name):
    if name == "BKRR2":
        data, candidate = (
            regression(80),
            Candidate(
                "BKRR2", {"kernel": "laplacian", "sigma": "auto", "lam": "auto", "validation_fraction": 0.15}, 40
            ),
        )
        words = "python -m cakrr.bkrr2 'my data.csv' --partitions 2"
    else:
        data = classes(80)
        candidate = Candidate("CASVC", {"partitioner": "kmeans", "C": [1.0, 4.0], "standardize": True}, 40)
        words = "python -m casvm.cpsvm 'my data.csv' --C "
    fitted = race(data, Budget(None), 1).trained(candidate, np.ones(data.n, bool), data.n)
    told = command(fitted, "my data.csv", 2)
    assert told.startswith(words)
    if name == "BKRR2":
        assert f"--sigma {fitted.sigma_:.6g} --lambda {fitted.lam_:.6g} --kernel laplacian" in told
    else:
        assert f"--C {fitted.best_params_['C']:.6g}" in told
        assert "--standardize" in told
        assert "--partitions 2" in told


def test_slow_machine_judges_in_fewer_folds_and_on_smaller_samples():
    few = race(regression(60), Budget(100.0))
    few._adapt(0, 8.0)  # most of which may be code that is loaded
    assert few.folds == 5
    few._adapt(1, 1.4)
    assert few.folds == 2
    assert few.validation_rows.sum() == 24
    slow = race(regression(60), Budget(100.0))
    slow._adapt(0, 10.0)
    assert slow.folds == 1
    many = race(regression(18_700), Budget(100.0))
    assert many.sizes == (3_973, 15_895)
    many._adapt(0, 4.0)
    assert (many.folds, many.sizes) == (1, (993, 3_973, 15_895))
    before = many.sizes
    many.trials.append(None)  # only the first one may change how all are judged
    many._adapt(0, 99.0)
    assert many.sizes == before


@pytest.mark.parametrize("task", [REGRESSION, CLASSIFICATION])
def test_candidates_know_the_indicators_of_a_column_of_words(task):
    """One of them counts these as one feature, and none takes the numbers beside words as they are."""
    X, y = saddle(120)
    town = np.arange(120) % 3
    X = np.column_stack([X[:, 0], town[:, None] == np.arange(3)])
    y = y if task == REGRESSION else np.where(y > np.median(y), "high", "low")
    running = race(Data.of(X, y, None, task, ALONE, "fcll"), Budget(None), 1)
    (candidate,) = (candidate for candidate in running._waiting if candidate.settings.get("scaling") == "categories")
    fitted = running.trained(candidate, np.ones(120, np.bool_), 120)
    np.testing.assert_allclose(fitted.model_.standardizer.scale[1:], np.sqrt(3 * (1 / 3) * (2 / 3)), rtol=1e-12)
    assert fitted.columns is None
    names = [candidate.name for candidate in islice(further(running.data, running._waiting, running._rng), 300)]
    assert not any("not standardized" in name for name in names)
