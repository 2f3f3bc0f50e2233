"""Folds, scores that add up over parts, settings that are ended early, and what is said of a search."""

import numpy as np
import pytest
from helpers.checks import refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import get_scorer
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.tree import DecisionTreeClassifier

from cacore.checks import one_or, positive
from cacore.comm import Communicator
from cacore.data.holdout import FOLDS, Holdout, stratified, usable
from cacore.run import figures
from cacore.tuning import (
    SCORERS,
    GridColumns,
    Results,
    best_lines,
    choose,
    counted,
    end_lines,
    grid_ends,
    rounds,
    scorer,
    scores,
    survivors,
)

# -- folds -----------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(2, 7))
def test_folds_are_stratified(codes, folds):
    codes = np.array(codes)
    fold = stratified(codes, folds)
    counts = np.bincount(fold, minlength=folds)
    assert len(counts) == folds
    assert np.ptp(counts) <= 1
    for code in range(5):
        assert np.ptp(np.bincount(fold[codes == code], minlength=folds)) <= 1


def test_folds_are_dealt_on():
    """From one part to the next: of parts of fewer rows than folds, too, no fold is empty."""
    sizes = [4, 3, 2, 1]
    dealt = [stratified(np.arange(m) % 2, 5, sum(sizes[:p])) for p, m in enumerate(sizes)]
    assert np.bincount(np.concatenate(dealt)).tolist() == [2, 2, 2, 2, 2]


@given(st.integers(2, 60), st.integers(2, 7), st.integers(0, 5))
def test_runs_of_the_shuffled_order_hold_every_row_out_once(n, folds, seed):
    holdout = Holdout.shuffled(n, seed, Communicator(), folds=folds)
    held = np.array([holdout.held(fold) for fold in range(folds)])
    assert (held.sum(axis=0) == 1).all()
    assert np.ptp(held.sum(axis=1)) <= 1


@pytest.mark.parametrize(("n", "share", "count"), [(10, 0.2, 2), (3, 0.1, 1), (2, 0.9, 1), (1, 0.5, 0), (10, 0.0, 0)])
def test_a_held_out_share_has_a_row_and_leaves_one(n, share, count):
    assert Holdout.shuffled(n, 0, Communicator(), share).held().sum() == count


def test_how_many_folds():
    counts, classes = np.array([40, 3, 1]), np.array(["a", "b", "c"])
    assert usable(None, counts[:1], classes) == FOLDS
    assert usable(None, counts[:2], classes) == 3
    assert usable(None, counts, classes) == 1
    assert usable(3, counts[:2], classes) == 3
    assert "cv = 4: class b has 3 rows; ask for 3 folds" in refusal(usable, 4, counts[:2], classes)
    assert "cv = 2: class c has 1 row;" in refusal(usable, 2, counts, classes)


# -- scores ----------------------------------------------------------------------------------------


class Said:
    """An estimator that says what it was told to."""

    def __init__(self, y, k):
        self.y, self.classes_ = y, np.arange(k)
        self._estimator_type = "classifier"

    def fit(self, X, y):
        return self

    def predict(self, X):
        return self.y

    def __sklearn_tags__(self):
        return DecisionTreeClassifier().__sklearn_tags__()


@pytest.mark.filterwarnings("ignore")  # of classes that were never predicted
@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("name", SCORERS)
def test_scores_are_those_of_scikit_learn(name, k):
    """From sums of the counts of three parts, one of which lacks a class. Tolerance: rounding."""
    if k > 2 and name in ("f1", "precision", "recall", "jaccard"):
        assert f"use {name}_macro" in refusal(scores, name, np.zeros((3, k)))
        return
    rng = np.random.default_rng(k)
    y, said = rng.integers(0, k, 90), rng.integers(0, k, 90)
    y[:30] = np.minimum(y[:30], k - 2)
    said[::2] = y[::2]
    total = sum(counted(y[part], said[part], k) for part in (slice(0, 30), slice(30, 41), slice(41, 90)))
    expected = get_scorer(name)(Said(said, k), np.zeros((90, 1)), y)
    assert scores(name, total) == pytest.approx(expected, abs=1e-14)


def test_scores_of_nothing():
    assert np.isnan(scores("accuracy", np.zeros((2, 3, 2)))).all()
    assert scores("f1", counted(np.zeros(3, int), np.zeros(3, int), 2)) == 0.0  # scikit-learn's zero_division


@pytest.mark.parametrize("value", ["neg_log_loss", "roc_auc", "x", 3, None])
def test_scores_that_do_not_add_up_are_refused(value):
    assert f"scoring = {value!r}: it must be a score that adds up over parts: accuracy," in refusal(
        scorer, value, "scoring ="
    )


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "made"),
    [(1, 1), ((1.0,), 1.0), ([2, 1], (1.0, 2.0)), (np.array([3.0, 1.0]), (1.0, 3.0)), ("grid", "grid"),
     (range(1, 3), (1.0, 2.0))],
    ids=str,
)  # fmt: skip
def test_one_value_or_several(value, made):
    got = one_or(positive, "grid")(value, "C =")
    assert got == made
    assert type(got) is type(made)


@pytest.mark.parametrize(
    ("text", "made"), [("1", 1.0), ("0.5,2", (0.5, 2.0)), ("1:100:3", (1.0, 10.0, 100.0)), ("grid", "grid")]
)
def test_one_value_or_several_as_text(text, made):
    assert one_or(positive, "grid")(text, "--C") == made


@pytest.mark.parametrize("text", ["1,x", "1:2", "5:1:0", "0,1", "-1:1:3", "x", "0"])
def test_ranges_that_are_bad(text):
    assert refusal(one_or(positive, "grid"), text, "--C").startswith("--C ")


@pytest.mark.parametrize("value", [[1, -1], [], "1,2", None, {1: 2}])
def test_lists_that_are_bad(value):
    assert refusal(one_or(positive, "grid"), value, "C =").startswith("C")


def test_ties_go_to_the_first_setting_or_to_the_last_of_some_axes():
    errors = np.array([[2.0, 1.0, np.nan], [1.0, 1.0, np.inf]])
    assert [choose(errors, last_axes=axes) for axes in range(3)] == [(0, 1), (0, 1), (1, 1)]
    assert choose(np.full((2, 2), np.nan)) is None


def judged(right, n=1000):
    """Counts of settings that were right for so many of n rows, half of each class."""
    right = np.array(right)
    half = np.full(len(right), n // 2)
    return np.stack([np.stack([right // 2, right - right // 2], -1), np.stack([half, half], -1),
                     np.stack([half, half], -1)], axis=1)  # fmt: skip


def test_settings_that_trail_are_ended():
    """0.9 of 1,000 rows has a standard error of 0.0095, a difference of two of them one of 0.013."""
    alive = np.array([True, True, True, True, False])
    kept = survivors("accuracy", judged([900, 880, 868, 600, 990]), alive)
    assert kept.tolist() == [True, True, False, False, False]
    assert survivors("accuracy", judged([9, 8, 7, 5, 9], 10), alive).tolist() == [True, True, True, True, False]


@given(st.lists(st.integers(0, 100), min_size=1, max_size=8), st.sampled_from(sorted(SCORERS)))
def test_the_best_is_never_ended(right, name):
    counts, alive = judged(right, 100), np.ones(len(right), bool)
    kept = survivors(name, counts, alive)
    assert kept[np.argmax(scores(name, counts))]


def test_every_fold_has_its_round():
    for folds in (2, 3, 5, 10):
        for rows, count in ((2000 * folds, min(3, folds)), (2000 * folds - 1, min(2, folds - 1))):
            made = rounds(folds, rows)
            assert sorted(f for some in made for f in some) == list(range(folds))
            assert len(made) == count


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000))
def test_results_are_those_of_grid_search_cv(seed):
    """With the same scores: means, deviations, ranks, and the choice among ties. Tolerance: rounding."""
    rng = np.random.default_rng(seed)
    X, y, fold = rng.normal(size=(24, 2)), np.arange(24) % 2, np.arange(24) // 2 % 4
    axes = {"max_depth": [1, 2, 3], "min_samples_leaf": [1, 4]}
    theirs = GridSearchCV(DecisionTreeClassifier(random_state=0), axes, cv=PredefinedSplit(fold)).fit(X, y)
    expected = theirs.cv_results_
    found = Results(
        {name: tuple(values) for name, values in axes.items()},
        np.stack([expected[f"split{f}_test_score"] for f in range(4)], axis=1), "accuracy",
    )  # fmt: skip
    assert found.choose() == theirs.best_params_
    assert found.chosen_score == pytest.approx(theirs.best_score_, abs=1e-14)
    got = found.cv_results()
    assert got["params"] == expected["params"]
    assert not got["ended"].any()
    for name in ("mean_test_score", "std_test_score"):
        np.testing.assert_allclose(got[name], expected[name], rtol=0, atol=1e-14)
    np.testing.assert_array_equal(got["rank_test_score"], expected["rank_test_score"])


def ended_early():
    scores = np.array([[0.9, 0.8], [0.95, np.nan], [0.7, 0.8], [np.nan, np.nan]])
    return Results({"C": (1.0, 2.0), "gamma": (0.1, 0.2)}, scores, "accuracy")


def test_ended_settings_are_reported():
    """They are last, whatever the folds say that they were tried on."""
    found = ended_early()
    assert found.choose() == {"C": 1.0, "gamma": 0.1}
    assert found.cv_results()["rank_test_score"].tolist() == [1, 3, 2, 4]
    rows = found.rows()
    assert [row["folds"] for row in rows] == [2, 1, 2, 0]
    assert [row["ended"] for row in rows] == [False, True, False, True]
    said = found.described()
    assert (said["settings"], said["ended"], said["score"]) == (4, 2, pytest.approx(0.85))
    lines = best_lines(rows, ("C", "gamma"), GridColumns("gamma", "C", "cv_accuracy", "accuracy"))
    assert [line.split() for line in lines] == [["C", "1", "gamma", "0.1", "0.85"],
                                                ["C", "2", "gamma", "0.1", "0.75"]]  # fmt: skip


def test_the_best_of_errors():
    """The least ones; None is no error."""
    grid = [{"kernel": "l1", "sigma": s, "mse": mse} for s, mse in ((1.0, 3.0), (2.0, 2.0), (4.0, None))]
    lines = best_lines(grid, ("kernel", "sigma"), GridColumns("sigma", "lambda", "mse", "error", smaller=True))
    assert [line.split() for line in lines] == [["l1", "sigma", "2", "2"], ["l1", "sigma", "1", "3"]]


def test_the_end_of_a_grid():
    axes = {"C": (1.0, 2.0, 4.0), "gamma": (1.0, 2.0)}
    assert grid_ends(axes, {"C": 2.0, "gamma": 1.0}) == {}
    assert grid_ends(axes, {"C": 4.0, "gamma": 1.0}) == {"C": 4.0}
    (line,) = end_lines({"C": 4.0})
    assert line.startswith("the chosen C 4 is the end of its grid")
    assert grid_ends(axes, {"C": np.array([1.0, 4.0]), "gamma": np.ones(2)}) == {}
    assert grid_ends({"epsilon": (0.0, 0.1, 1.0)}, {"epsilon": 0.0}) == {}  # none is smaller
    assert grid_ends({"epsilon": (0.0, 0.1, 1.0)}, {"epsilon": 1.0}) == {"epsilon": 1.0}
    assert grid_ends({"C": (1.0,)}, {"C": 1.0}) == {}


def test_a_heat_map_has_a_cell_for_each_setting():
    pytest.importorskip("matplotlib")
    found = ended_early()
    columns = GridColumns("gamma", "C", "cv_accuracy", "accuracy")
    panel = figures.heat_map(found.rows(), columns).axes[0]
    assert sorted(text.get_text() for text in panel.texts) == ["0.750", "0.850", "0.950"]
    assert [label.get_text() for label in panel.get_xticklabels()] == ["0.1", "0.2"]
    hatched = [patch for patch in panel.patches if patch.get_hatch()]
    (frame,) = [patch for patch in panel.patches if not patch.get_hatch()]
    assert [patch.get_xy() for patch in hatched] == [(0.5, -0.5)]
    assert frame.get_xy() == (-0.5, -0.5)
    assert len(figures.heat_map([{**row, "gamma": 0.0} for row in found.rows()[::2]], columns).axes[0].texts) == 2


def test_a_heat_map_of_errors_has_a_panel_for_each_kernel():
    """The least error is framed, the best of several candidates is shown, and a pair without a solution is empty."""
    pytest.importorskip("matplotlib")
    errors = {("gaussian", 1.0): [3.0, 2.0], ("gaussian", 2.0): [None], ("l1", 4.0): [2.5]}
    grid = [
        {"kernel": kind, "sigma": sigma, "lambda": 0.1, "mse": error}
        for (kind, sigma), some in errors.items() for error in some
    ]  # fmt: skip
    figure = figures.heat_map(grid, GridColumns("sigma", "lambda", "mse", "error", smaller=True))
    first, second = figure.axes[:2]
    assert [[text.get_text() for text in panel.texts] for panel in (first, second)] == [["2"], ["2.5"]]
    assert [panel.get_title() for panel in (first, second)] == ["gaussian", "l1"]
    assert [len(panel.patches) for panel in (first, second)] == [1, 0]
    assert figure.get_supxlabel() == "empty: no solution; framed: the best"
    own = figures.heat_map(grid, GridColumns("sigma", "lambda", "mse", "error", smaller=True, single=False))
    assert not own.axes[0].patches
