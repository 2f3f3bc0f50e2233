"""What a search says of itself: the rows that it used, trials that time has ended, and a baseline beside each score."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.commands import run
from helpers.data import write_csv
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from cacore.comm import Communicator
from cacore.machine.deadline import TimeIsUp
from cakernels import AutoKernelClassifier, AutoKernelRegressor
from cakernels.fit import Fitting
from cakernels.leaderboard import command, leaderboard, lines
from cakernels.search.blending import Found, search, started
from cakernels.search.candidates import Candidate
from cakernels.search.data import CLASSIFICATION, REGRESSION, Data, Split
from cakernels.search.rivals import rivals_of
from cakernels.search.scores import SCORES, Baseline
from cakernels.search.trial import OUT_OF_TIME, Budget, Trial
from casvm import CASVC

ALONE = Communicator()


def rows(n, task=REGRESSION):
    X = np.random.default_rng(0).normal(size=(n, 2))
    return Data.of(X, X[:, 0] if task == REGRESSION else X[:, 0] > 0, None, task, ALONE)


def race(data, most=2):
    return started(data, SCORES["rmse" if data.task == REGRESSION else "accuracy"], Budget(None), ALONE, None, 0, most)


def late_until(running, tuned, rows):
    """Let every candidate on more rows than these be out of time."""
    folds = type(running)._folds

    def slow(self, trial):
        if trial.rows > rows and not self.overtime:
            raise TimeIsUp
        return folds(self, trial)

    tuned(race_folds=slow)


def test_a_first_candidate_that_is_too_slow_is_tried_on_fewer_rows(tuned):
    running = race(rows(4_000), most=1)
    running._waiting = [Candidate("BKRR2", {"sigma": 1.0, "lam": 1e-6})]
    late_until(running, tuned, 1_000)
    running.run()
    assert [(one.rows, one.why) for one in running.trials][:2] == [(3_200, OUT_OF_TIME), (800, "")]
    assert running.split.folds == 1
    assert running.validation_rows.sum() == 800


@pytest.mark.parametrize("task", [REGRESSION, CLASSIFICATION])
def test_a_small_model_is_judged_where_no_candidate_ends_in_time(task, tuned):
    """It is trained after the time, and the result says so; few rows are then all used."""
    running = race(rows(900, task), most=1)
    late_until(running, tuned, 0)
    found = search(running)
    assert np.isfinite(found.error)
    assert found.trials[-1].rows == 500
    assert found.trials[-1].candidate.kernels == 1
    assert "no candidate ended within the time: one was trained on 500 rows after it" in found.notes
    assert any(note.startswith("trained on ") for note in found.notes) == (found.rows_used < 900)


def test_the_first_split_of_folds_is_kept():
    split = Split.of(rows(103, CLASSIFICATION), 0, ALONE)
    once = split.once(ALONE)
    np.testing.assert_array_equal(once.held(0), split.held(0))
    assert once.n_train == once.training(0, once.n_train).sum() == 103 - split.held(0).sum()
    assert once.training(0, 30).sum() == 30
    assert not (once.training(0, 30) & once.held(0)).any()


def test_trials_out_of_time_are_no_failures():
    trials = [Trial(Candidate("BKRR2", {}), 9, error, 1.0, 1.0, why=why)
              for error, why in [(0.5, ""), (np.inf, "bad"), (np.inf, OUT_OF_TIME), (np.inf, OUT_OF_TIME)]]  # fmt: skip
    board = leaderboard(trials, SCORES["rmse"])
    assert list(lines(board, SCORES["rmse"]))[-1] == "4 trainings, 1 failed, 2 out of time"


def test_baselines():
    X, w = np.zeros((5, 1)), np.array([1.0, 1.0, 1.0, 1.0, 4.0])
    mean = Baseline.of(Data(X, np.array([1.0, 2.0, 3.0, 4.0, 0.0]), w, REGRESSION, 5, np.zeros(0)), ALONE)
    assert mean.predicted(2).tolist() == [1.25, 1.25]
    two = Baseline.of(Data(X, np.arange(10.0).reshape(5, 2), None, REGRESSION, 5, np.zeros(0)), ALONE)
    assert two.predicted(1).tolist() == [[4.0, 5.0]]
    words = np.array(["no", "no", "no", "yes", "yes"])
    data = Data(X, words, None, CLASSIFICATION, 5, np.unique(words))
    assert Baseline.of(data, ALONE).predicted(2).tolist() == ["no", "no"]
    assert Baseline.of(Data(X, words, w, CLASSIFICATION, 5, np.unique(words)), ALONE).value == "yes"


def test_a_regressor_says_how_many_rows_it_used():
    """A time that is over before the first candidate begins."""
    X = np.random.default_rng(0).normal(size=(2_000, 2))
    with pytest.warns(ConvergenceWarning) as record:
        model = AutoKernelRegressor(max_time=1e-3, random_state=0).fit(X, X[:, 0])
    said = [str(one.message) for one in record]
    assert model.n_rows_used_ < 2_000
    assert (f"AutoKernelRegressor: trained on {model.n_rows_used_:,} of 2,000 rows: there was no time for more; "
            "increase max_time") in said  # fmt: skip
    assert model.best_score_ < 0.1 < model.baseline_score_


def test_a_classifier_that_only_knows_the_frequent_class_says_so():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 2)), np.where(np.arange(200) < 6, "yes", "no")
    with pytest.warns(ConvergenceWarning, match="not better than the most frequent class, 'no'"):
        model = AutoKernelClassifier(max_time=None, max_candidates=1, random_state=0).fit(X, y)
    assert model.n_rows_used_ == 200
    assert model.best_score_ <= model.baseline_score_ == pytest.approx(0.97)


def test_the_command_reports_rows_and_baselines(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).normal(size=(120, 2))
    write_csv("a.csv", X[:80], X[:80, 0])
    write_csv("b.csv", X[80:], X[80:, 0])
    few = ["--max-candidates", "1", "--within", "1h"]
    run("cakernels", ["fit", "a.csv", "--test", "b.csv", *few, "--report", "r.json"])
    out, progress = capfd.readouterr()
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["data"]["n_train"], report["data"]["rows_used"]) == (80, 80)
    baselines = report["baselines"]
    assert baselines["prediction"] == pytest.approx(X[:80, 0].mean(), abs=1e-4)
    assert baselines["rmse"] > 5 * report["grid"][0]["score"]
    assert baselines["test"]["rmse"] > 5 * report["metrics"]["rmse"]
    shown = " ".join(out.split())
    assert "; the mean alone: " in shown
    assert "; rmse of the mean: " in shown  # of the test rows
    assert "target: label: " in shown
    for rival, name in (("linear", "a linear model"), ("trees", "boosted trees")):
        assert set(baselines[rival]) == {"rmse", "seconds"}
        assert f" {name} " in shown
    assert baselines["linear"]["rmse"] < 0.1 * baselines["rmse"]  # the targets are linear
    assert " last " in progress


def test_rivals_are_judged_by_the_rows_of_the_candidates():
    """Beside scikit-learn's models on the same folds, and the same on any number of rows of weight 0."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (400, 6)).astype(float)
    y = np.where(X[:, 0] != X[:, 1], "odd", "even")
    y[rng.random(400) < 0.02] = "odd"
    model = AutoKernelClassifier(max_time=None, max_candidates=1, random_state=0).fit(X, y)
    assert set(model.rival_scores_) == {"linear", "trees"}
    assert model.rival_scores_["trees"] > 0.95 > 0.7 > model.rival_scores_["linear"]
    race = started(Data.of(X, y, None, CLASSIFICATION, ALONE), SCORES["accuracy"], Budget(None), ALONE, None, 0, 1)
    linear = next(rival for rival in rivals_of(race) if rival.name == "linear")
    expected = np.empty(400, y.dtype)
    for fold in range(race.folds):
        held = race.split.held(fold)
        pipeline = make_pipeline(StandardScaler(), RidgeClassifier()).fit(X[~held], y[~held])
        expected[held] = pipeline.predict(X[held])
    assert (linear.predicted == expected).all()
    assert race.error_of(linear) == pytest.approx(np.mean(expected != y))
    race = started(race.data, SCORES["log_loss"], Budget(None), ALONE, None, 0, 1)
    P = np.empty((400, 2))
    for fold in range(race.folds):
        held = race.split.held(fold)
        pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(X[~held], y[~held])
        P[held] = pipeline.predict_proba(X[held])
    linear, trees = rivals_of(race)
    np.testing.assert_array_equal(linear.predicted, P)
    assert race.error_of(linear) == pytest.approx(log_loss(y, P))
    assert race.error_of(trees) < 0.5 * race.error_of(linear)


def test_rivals_are_left_out_where_there_is_no_time():
    X = np.random.default_rng(0).normal(size=(50, 2))
    data = Data.of(X, X[:, 0], None, REGRESSION, ALONE)
    assert rivals_of(started(data, SCORES["rmse"], Budget(5.0), ALONE, None, 0, 1)) == []
    wide = Data.of(X, X, None, REGRESSION, ALONE)
    race = started(wide, SCORES["rmse"], Budget(None), ALONE, None, 0, 1)
    assert [rival.name for rival in rivals_of(race)] == ["linear"]


def test_the_note_on_trees_says_how_to_train_them():
    found = Found([SVC()], np.ones(1), [], [10], 0.2, [], rivals={"trees": (0.15, 1.0)})
    assert "what their score lacks of 1, is 25.0 % smaller" in found.trees_ahead
    assert "HistGradientBoostingRegressor().fit(X, y)" in found.trees_ahead
    assert Found([SVC()], np.ones(1), [], [10], 0.1, [], rivals={"trees": (0.15, 1.0)}).trees_ahead == ""


def test_the_command_that_trains_the_same_model_has_the_options_about_columns(tmp_path):
    job = Fitting(data=tmp_path / "a.csv", category=("a", "b c"), drop=("d",), gaps="refuse", target="y")
    fitted = CASVC(n_parts=1, C=1.0, gamma=0.1).fit([[0.0], [1.0]] * 5, [0, 1] * 5)
    words = command(fitted, "a.csv", 1, job.of_columns)
    assert "a.csv --target y --category 'a,b c' --drop d --gaps refuse" in words
