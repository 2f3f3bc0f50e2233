"""The estimators that choose by themselves, and blends of several models."""

from __future__ import annotations

import pickle

import h5py
import numpy as np
import pytest
from helpers.checks import near, refusal
from helpers.data import saddle, sealed, separate_clouds
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import cakernels
import cakernels.search.race
from cakernels import BKRR2, SMOSVR, AutoKernelClassifier, AutoKernelRegressor
from cakernels.blend import Blend, blended
from cakernels.search.candidates import Candidate
from cakrr import KRRModel
from casvm import SVMModel

QUICK = {"max_time": None, "max_candidates": 2, "random_state": 0}


def test_every_estimator_is_here():
    for name in cakernels.__all__:
        assert getattr(cakernels, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'SVC'"):
        _ = cakernels.SVC


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
    assert model.best_estimator_.class_weight == weighted
    model.save(tmp_path / "m.h5")
    np.testing.assert_array_equal(SVMModel.load(tmp_path / "m.h5").predict(X), model.predict(X))


@pytest.mark.parametrize("kind", ["CASVC", "BKRR2Classifier"])
def test_labels_of_every_kind_of_classifier(kind, monkeypatch):
    X, y = separate_clouds(60)
    monkeypatch.setattr(cakernels.search.race, "first", lambda _: [Candidate(kind, {"kernel": "gaussian"}, 0)])
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
