"""The estimators that choose by themselves, and blends of several models."""

from __future__ import annotations

import io
import pickle
from contextlib import redirect_stderr
from threading import Thread

import h5py
import numpy as np
import pytest
from helpers.checks import near, refusal
from helpers.data import clouds, saddle, sealed, separate_clouds
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import log_loss

import cakernels
import cakernels.search.race
from cacore.comm import Communicator
from cacore.probability.calibrator import Calibrator
from cakernels import BKRR2, SMOSVC, SMOSVR, AutoKernelClassifier, AutoKernelRegressor, BKRR2Classifier
from cakernels.families import Blend, ClassBlend, blended, classified, for_classes, outputs
from cakernels.search.candidates import Candidate
from cakernels.search.data import CLASSIFICATION, Data
from cakernels.search.scores import SCORES
from cakrr import KRRModel

PATIENCE = 600  # seconds
QUICK = {"max_time": None, "max_candidates": 2, "random_state": 0}


def test_every_estimator_is_here():
    for name in cakernels.__all__:
        assert getattr(cakernels, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'SVC'"):
        _ = cakernels.SVC


class Impatient(io.StringIO):
    """A stream whose reader presses Ctrl-C at the second line."""

    def write(self, text):
        super().write(text)
        if self.getvalue().count("\n") == 2:
            raise KeyboardInterrupt
        return len(text)


def test_ctrl_c_leaves_the_best_model_so_far():
    """Without a limit on the time the search would go through a hundred candidates."""
    X, y = saddle(80)
    model = AutoKernelRegressor(max_time=None, max_candidates=100, random_state=0, verbose=True)
    with redirect_stderr(Impatient()) as lines, pytest.warns(ConvergenceWarning, match="ended by Ctrl-C before"):
        model.fit(X, y)
    assert [line.split()[-1] for line in lines.getvalue().splitlines()] == ["part", "part"]
    assert len(model.leaderboard_) == 2
    assert model.score(X, y) > 0.9
    assert set(model.rival_scores_) == {"linear", "trees"}  # they were trained before the candidates


@pytest.mark.filterwarnings("ignore:.*there was no time for more")  # on a slow machine
def test_the_time_ends_a_search_in_a_thread():
    X, y = saddle(80)
    model = AutoKernelRegressor(max_time=2.0, random_state=0)
    worker = Thread(target=lambda: model.fit(X, y))
    worker.start()
    worker.join(PATIENCE)
    assert not worker.is_alive()
    assert model.n_rows_used_ > 0


@pytest.fixture(scope="module")
def regressor():
    X, y = saddle(160)
    return AutoKernelRegressor(**QUICK).fit(X[:120], y[:120])


def test_regressor(regressor, tmp_path):
    X, y = saddle(160)
    assert regressor.score(X[120:], y[120:]) > 0.9
    assert [set(row) for row in regressor.leaderboard_] == [
        {"candidate", "rows", "score", "seconds", "ended", "why"}
    ] * 2
    assert regressor.best_score_ == regressor.leaderboard_[0]["score"]
    near(sum(regressor.weights_), 1.0, 1e-12)
    expected = regressor.predict(X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(regressor)).predict(X), expected)
    np.testing.assert_array_equal(clone(regressor).fit(X[:120], y[:120]).predict(X), expected)
    regressor.save(tmp_path / "m.h5")
    kind = KRRModel if len(regressor.weights_) == 1 else Blend
    np.testing.assert_array_equal(kind.load(tmp_path / "m.h5").predict(X), expected)


def test_classifier_of_words(tmp_path):
    X, y = separate_clouds(90, k=3)
    words = np.array(["ant", "bee", "cat"])[np.searchsorted(np.unique(y), y)]
    weighted = dict.fromkeys(["ant", "bee"], 1.0) | {"cat": 5.0}
    model = AutoKernelClassifier(**QUICK, scoring="balanced_accuracy", class_weight=weighted).fit(X, words)
    assert model.score(X, words) > 0.9
    assert model.classes_.tolist() == ["ant", "bee", "cat"]
    assert model.confusion_.sum(axis=1).tolist() == [30, 30, 30]  # each row is held out once
    near(model.recall_, np.diagonal(model.confusion_) / 30, 0)
    near(model.best_score_, model.recall_.mean(), 1e-12)
    assert model.best_estimator_.class_weight == weighted
    model.save(tmp_path / "m.h5")
    np.testing.assert_array_equal(ClassBlend.load(tmp_path / "m.h5").predict(X), model.predict(X))


@pytest.mark.parametrize("kind", ["CASVC", "BKRR2Classifier"])
def test_labels_of_every_kind_of_classifier(kind, tuned):
    X, y = separate_clouds(60)
    tuned(first_candidates=lambda *_: [Candidate(kind, {"kernel": "gaussian"}, 0)])
    model = AutoKernelClassifier(**QUICK | {"max_candidates": 1}).fit(X, y)
    assert type(model.best_estimator_).__name__ == kind
    assert model.score(X, y) == 1.0


def test_targets_and_weights():
    """Two targets; and rows of weight 0, which count neither in training nor in judging."""
    X, y = saddle(90)
    several = AutoKernelRegressor(**QUICK | {"max_candidates": 1}).fit(X, np.c_[y, -y])
    assert several.predict(X).shape == (90, 2)
    w = np.r_[np.ones(60), np.zeros(30)]
    spoilt = np.r_[y[:60], np.full(30, 1e6)]
    few = [AutoKernelRegressor(**QUICK | {"max_candidates": 1}) for _ in range(2)]
    weighted, less = few[0].fit(X, spoilt, w), few[1].fit(X[:60], y[:60])
    np.testing.assert_array_equal(weighted.predict(X), less.predict(X))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [({"max_time": 0}, "max_time ="), ({"max_time": None, "max_candidates": None}, "one of them must end the search"),
     ({"max_candidates": 0}, "max_candidates ="), ({"scoring": "accuracy"}, "scoring =")],
)  # fmt: skip
def test_refused(parameters, message):
    X, y = saddle(30)
    refusal(AutoKernelRegressor(**parameters).fit, X, y, match=message)
    refusal(AutoKernelRegressor().predict, X, error=NotFittedError)


def test_probabilities_of_a_search():
    """They add up to 1, are right more often the surer they are, and change no label."""
    X, y = clouds(300, k=3, d=4)
    plain = AutoKernelClassifier(**QUICK, probability=False).fit(X[:200], y[:200])
    model = AutoKernelClassifier(**QUICK).fit(X[:200], y[:200])
    P = model.predict_proba(X[200:])
    near(P.sum(axis=1), np.ones(100), 1e-12)
    np.testing.assert_array_equal(model.predict(X), plain.predict(X))
    assert log_loss(y[200:], P) < 0.8 * np.log(3)
    assert not hasattr(plain, "predict_proba")
    refusal(AutoKernelClassifier(probability="sure").fit, X, y, match="probability = 'sure'")
    refusal(AutoKernelClassifier(probability=False, scoring="log_loss").fit, X, y, match="judges probabilities")
    for one in (plain, model):
        decisions = one.decision_function(X)
        assert decisions.shape == (300, 3)
        np.testing.assert_array_equal(one.classes_[decisions.argmax(axis=1)], one.predict(X))


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("scoring", ["log_loss", "roc_auc", "average_precision", "f1"])
def test_classifiers_are_chosen_by_any_score(k, scoring, tuned):
    """The best of two is the one that scikit-learn's score finds on new rows; the held-out score is near that one."""
    wide, narrow = ({"sigma": sigma, "lam": 1e-3} for sigma in (1.0, 0.05))
    tuned(first_candidates=lambda *_: [Candidate("BKRR2Classifier", one, 0) for one in (narrow, wide)])
    X, y = clouds(1200, k=k, d=4)
    model = AutoKernelClassifier(**QUICK, scoring=scoring).fit(X[:400], y[:400])
    assert model.best_estimator_.sigma == 1.0
    score, u = SCORES[scoring], y[400:]
    predicted = (model.predict_proba if score.of_probabilities else model.predict)(X[400:])
    new = Data(X[400:], u, None, CLASSIFICATION, len(u), model.classes_)
    on_new_rows = score.value(score.error(new, np.ones(len(u), bool), predicted, Communicator()))
    assert model.best_score_ == pytest.approx(on_new_rows, abs=0.08)
    f1_of_first_class = 0.0 if k == 2 else 1 / 6
    constant = {"log_loss": np.log(k), "average_precision": 1 / k, "roc_auc": 0.5, "f1": f1_of_first_class}
    near(model.baseline_score_, constant[scoring], 0.01)
    if k == 2:
        np.testing.assert_array_equal(model.predict(X), model.classes_[(model.decision_function(X) > 0).astype(int)])


def test_a_score_of_classes_is_refused_for_numbers():
    X, y = saddle(40)
    refusal(AutoKernelRegressor(scoring="roc_auc").fit, X, y, match="one of rmse, mae, r2, pinball")


@pytest.mark.parametrize("kind", ["BKRR2", "CASVR"])
def test_intervals_of_a_search(kind, tuned, tmp_path):
    """90 % hold 90 % of new targets, to three deviations of that share, and are read from the file."""
    settings = {"kernel": "laplacian"} | ({"lam": 0.1} if kind == "BKRR2" else {"C": 2.0, "epsilon": 0.1})
    tuned(first_candidates=lambda *_: [Candidate(kind, settings, 0)])
    X, y = saddle(1400)
    y = y + 0.3 * np.random.default_rng(0).standard_t(3, 1400)
    model = AutoKernelRegressor(**QUICK | {"max_candidates": 1}, calibrate=True).fit(X[:400], y[:400])
    lower, upper = model.predict_interval(X[400:], coverage=0.9)
    assert abs(np.mean((lower <= y[400:]) & (y[400:] <= upper)) - 0.9) < 3 * np.sqrt(0.09 / 400 + 0.09 / 1000)
    model.save(tmp_path / "m.h5")
    loaded = (KRRModel if kind == "BKRR2" else Blend).load(tmp_path / "m.h5")
    np.testing.assert_array_equal(loaded.predict_interval(X[400:], 0.9), (lower, upper))
    refusal(model.predict_interval, X, 0.999, match="needs 999 rows")
    plain = AutoKernelRegressor(**QUICK | {"max_candidates": 1}).fit(X[:40], y[:40])
    refusal(plain.predict_interval, X, match="--calibrate")


# -- blends ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def members():
    X, y = saddle(120)
    return [
        BKRR2(3, sigma=1.0, lam=1e-4, random_state=0).fit(X, y),
        BKRR2(1, kernel="l1").fit(X, y),
        SMOSVR().fit(X, y),
    ]


def test_blend_is_a_weighted_mean(members, tmp_path):
    X, _ = saddle(40, 1)
    weights = np.array([0.5, 0.3, 0.2])
    blend = blended([one.model_ for one in members], weights, None)
    expected = sum(weight * one.predict(X) for weight, one in zip(weights, members, strict=True))
    np.testing.assert_array_equal(blend.predict(X), expected)
    blend.save(tmp_path / "b.h5")
    read = Blend.load(tmp_path / "b.h5")
    np.testing.assert_array_equal(read.predict(X), expected)
    assert (read.n_features, read.sizes.tolist(), read.dtype) == (3, [40, 40, 40, 120, 120], "float64")
    assert read.described()["models"][:2] == ["bkrr2", "bkrr2"]


@pytest.fixture(scope="module", params=[2, 3])
def classifiers(request):
    """Classifiers of both kinds, a blend of them, and new rows."""
    X, y = clouds(240, k=request.param, d=4)
    made = [BKRR2Classifier(2, random_state=0).fit(X[:120], y[:120]), SMOSVC().fit(X[:120], y[:120])]
    codes, found = np.searchsorted(made[0].classes_, y[:120]), []
    for one in made:
        found.append(Calibrator.of_outputs("sigmoid", outputs(one.model_, X[:120]), codes, Communicator()))
    return made, classified([one.model_ for one in made], np.array([0.75, 0.25]), found, None), X[120:]


def test_class_blend_is_a_weighted_mean_of_probabilities(classifiers, tmp_path):
    made, blend, X = classifiers
    P = blend.probabilities(X)
    own = [one.of_classes(outputs(member.model_, X)) for one, member in zip(blend.calibrators, made, strict=True)]
    near(P, 0.75 * own[0] + 0.25 * own[1], 1e-15)
    near(P.sum(axis=1), np.ones(len(X)), 1e-12)
    np.testing.assert_array_equal(blend.predict(X), made[0].classes_[P.argmax(axis=1)])
    blend.save(tmp_path / "b.h5")
    read = ClassBlend.load(tmp_path / "b.h5")
    np.testing.assert_array_equal(read.probabilities(X), P)
    np.testing.assert_array_equal(read.predict(X), blend.predict(X))
    assert read.described()["weights"] == [0.75, 0.25]


def test_calibrated_classifier_keeps_its_labels(classifiers):
    made, blend, X = classifiers
    for one, calibrator in zip(made, blend.calibrators, strict=True):
        alone = classified([one.model_], np.ones(1), [calibrator], None)
        np.testing.assert_array_equal(alone.predict(X), one.predict(X))
        near(alone.probabilities(X), calibrator.of_classes(outputs(one.model_, X)), 0)


@pytest.mark.parametrize(
    ("old", "new"),
    [('"form": "sigmoid"', '"form": "sigmund"'), ('"classes": [', '"classes": [9, '),
     ('"sigmoid", "rows": ', '"sigmoid", "rows": -')],
)  # fmt: skip
def test_damaged_class_blend(classifiers, old, new, tmp_path):
    path = tmp_path / "b.h5"
    classifiers[1].save(path)
    with h5py.File(path, "r+") as file:
        assert old in file.attrs["attributes"]
        file.attrs["attributes"] = new.join(file.attrs["attributes"].rsplit(old, 1))
    sealed(path)
    refusal(ClassBlend.load, path, match=str(path))


def test_class_that_a_model_does_not_know_is_the_least_likely():
    X, y = clouds(60, k=3, d=4)
    few = SMOSVC().fit(X[y != np.unique(y)[1]], y[y != np.unique(y)[1]])
    every = for_classes(few.model_, outputs(few.model_, X), np.unique(y))
    assert (every.argmin(axis=1) == 1).all()
    np.testing.assert_array_equal(np.unique(y)[every.argmax(axis=1)], few.predict(X))


def test_one_model_is_no_blend(members):
    assert blended([members[0].model_], np.ones(1), None) is members[0].model_


@pytest.mark.parametrize(
    ("old", "new"),
    [('"weights": [0.5, 0.5]', '"weights": [0.5, -.5]'), ('"weights": [0.5, 0.5]', '"weights": [0.5]     '),
     ('"family": "krr"', '"family": "svm"'), ('"parts": 3', '"parts": 2'), ('"parts": 3', '"parts": 9')],
)  # fmt: skip
def test_damaged_blend(members, old, new, tmp_path):
    path = tmp_path / "b.h5"
    blended([members[0].model_, members[1].model_], np.array([0.5, 0.5]), None).save(path)
    with h5py.File(path, "r+") as file:
        assert old in file.attrs["attributes"]
        file.attrs["attributes"] = file.attrs["attributes"].replace(old, new, 1)
    sealed(path)
    refusal(Blend.load, path, match=str(path))
