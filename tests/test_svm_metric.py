"""Kernel SVMs that learn a metric: which round is kept, what a model and its file say, checkpoints, what is refused."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import close, near, refusal, same_content
from helpers.running import Interrupted, interruptible
from sklearn.base import clone
from sklearn.svm import SVC

from cacore.data.dataset import Dataset
from cacore.data.metric import FLOOR
from cacore.data.shuffle import Shuffle
from cacore.io.checkpoint import Checkpoint
from casvm import CASVC, DCSVC, CascadeSVC, DCFilterSVC, DisSMOSVC, SVMModel, cpsvm, dissmo, export_libsvm
from casvm.options import SVMOptions

metrics = pytest.mark.parametrize("metric", ["diagonal", "full"])
PARTS = {"n_parts": 2, "partitioner": "kmeans"}
METHODS = {"CASVC": (CASVC, PARTS), "CascadeSVC": (CascadeSVC, {"n_parts": 2}), "DCSVC": (DCSVC, {"n_parts": 2}),
           "DCFilterSVC": (DCFilterSVC, {"n_parts": 2}), "DisSMOSVC": (DisSMOSVC, {})}  # fmt: skip
methods = pytest.mark.parametrize("name", METHODS)


def rows(n=300, seed=0, k=2):
    """A border in two of six features; the last one is constant."""
    X = np.random.default_rng(seed).normal(size=(n, 6))
    X[:, 5] = 3.0
    return X, np.digitize(np.sin(3 * X[:, 0]) + 0.5 * X[:, 1], [0] if k == 2 else [-0.5, 0.5])


def made(name, metric="full", rounds=2, **more):
    make, given = METHODS[name]
    seed = {} if make is DisSMOSVC else {"random_state": 0}
    return make(**given, **seed, C=10.0, standardize=True, metric=metric, metric_rounds=rounds, **more)


@methods
@metrics
@pytest.mark.parametrize("k", [2, 3])
def test_methods(k, metric, name):
    """Fewer wrong answers, the function's importances, and the first round with the least error."""
    (X, y), (T, t) = rows(k=k), rows(300, 1, k)
    model = made(name, metric).fit(X, y)
    assert model.score(T, t) > made(name, "none").fit(X, y).score(T, t) + 0.03
    shares, errors = model.feature_importances_, model.metric_errors_
    assert errors.argmin() > 0
    assert shares[0] > (0.7 if k == 2 else 0.45)
    assert shares[1] > 0.02
    assert shares[2:].max() < (0.1 if k == 2 else 0.2)
    assert shares[5] < 1e-5
    assert model.metric_.shape == ((6, 6) if metric == "full" else (6,))
    held = Shuffle(300, np.random.RandomState(0).randint(2**31 - 1)).position(np.arange(300)) < 30
    wrong = errors * held.sum()
    near(wrong, np.round(wrong), 1e-9)
    again = clone(model).fit(X, y)
    np.testing.assert_array_equal(again.decision_function(T), model.decision_function(T))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(T), model.predict(T))


@metrics
def test_one_round(metric):
    """The exact method against scikit-learn's SVC: the metric from finite differences of its decisions."""
    X, y = rows(160)
    X[:, 5] = X[:, 0] ** 2
    options = SVMOptions(C=2.0, gamma=0.2, tol=1e-8, metric=metric, metric_rounds=1, seed=3)
    fitted = dissmo.METHOD(Dataset(X.copy(), y), options)
    order = Shuffle(160, 3).position(np.arange(160))
    learn = order >= 16
    exact = SVC(C=2.0, gamma=0.2, tol=1e-8).fit(X[learn], y[learn])
    G = np.empty((144, 6))
    for k in range(6):
        step = 1e-5 * (np.arange(6) == k)
        G[:, k] = (exact.decision_function(X[learn] + step) - exact.decision_function(X[learn] - step)) / 2e-5
    M = np.diag(np.square(G).sum(axis=0)) if metric == "diagonal" else G.T @ G
    w, V = np.linalg.eigh(M * 6 / np.trace(M))
    root = (V * np.sqrt(np.maximum(w, FLOOR * w.max()))) @ V.T
    second = SVC(C=2.0, gamma=0.2, tol=1e-8).fit(X[learn] @ root, y[learn])
    errors = [(exact.predict(X[~learn]) != y[~learn]).mean(), (second.predict(X[~learn] @ root) != y[~learn]).mean()]
    near(fitted.errors, errors, 1e-12)
    assert errors[1] < errors[0]
    found = fitted.model.standardizer.root
    close(np.diag(found) if metric == "diagonal" else found, root, 1e-4)
    whole = SVC(C=2.0, gamma=0.2, tol=1e-8).fit(X @ root, y)
    near(fitted.model.decision_function(X).ravel(), whole.decision_function(X @ root), 1e-3)


def test_useless_metric_is_discarded():
    """If rounds are equally good, the first is kept: the model is that of a fit without a metric."""
    X, y = rows()
    y = (X[:, :5].sum(axis=1) > 0).astype(int)  # all features count alike
    one, other = made("CASVC", kernel="linear").fit(X, y), made("CASVC", "none", kernel="linear").fit(X, y)
    kept = int(np.argmin(one.metric_errors_))
    assert len(one.metric_errors_) <= kept + 3
    if kept == 0:
        np.testing.assert_array_equal(one.decision_function(X), other.decision_function(X))
        np.testing.assert_array_equal(one.metric_, np.eye(6))
    assert not {"metric_", "metric_errors_", "feature_importances_"} & set(vars(other))


@pytest.mark.parametrize("name", ["CASVC", "DisSMOSVC"])
def test_weights(name):
    """Rows of weight 0 count as absent, and support vectors have the numbers of the rows that were given."""
    X, y = rows(200)
    weights = np.arange(200) % 4 / 2.0
    kept = np.flatnonzero(weights)
    got = made(name).fit(X, y, weights)
    want = made(name).fit(X[kept], y[kept], weights[kept])
    np.testing.assert_array_equal(got.metric_errors_, want.metric_errors_)
    close(got.metric_, want.metric_, 1e-9)
    np.testing.assert_array_equal(got.support_, kept[want.support_])
    near(got.decision_function(X), want.decision_function(X), 1e-6)
    root = got.model_.standardizer.root
    near(got.support_vectors_, ((X - X[kept].T @ weights[kept] / weights.sum()) / got.model_.standardizer.scale
                                @ root)[got.support_], 1e-9)  # fmt: skip


@metrics
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_csr(dtype, metric, tmp_path):
    """Support vectors of a diagonal metric stay sparse; a file brings back the same answers."""
    rng = np.random.default_rng(0)
    X, T = (np.where(rng.random((n, 5)) < 0.5, rng.normal(size=(n, 5)), 0).astype(dtype) for n in (200, 100))
    y = (np.sin(3 * X[:, 0]) + 0.3 * X[:, 1] > 0).astype(int)
    model = CASVC(**PARTS, C=10.0, metric=metric, metric_rounds=2, random_state=0).fit(sp.csr_matrix(X), y)
    other = CASVC(**PARTS, C=10.0, metric=metric, metric_rounds=2, random_state=0).fit(X, y)
    near(model.metric_errors_, other.metric_errors_, 1e-12)
    close(model.metric_, other.metric_, 1e-3)
    assert (model.predict(sp.csr_matrix(T)) == other.predict(T)).mean() > 0.97
    assert model.metric_errors_.argmin() > 0
    assert sp.issparse(model.support_vectors_) == (metric == "diagonal")
    assert model.support_vectors_.dtype == dtype
    model.model_.save(tmp_path / "m.h5")
    loaded = SVMModel.load(tmp_path / "m.h5")
    same_content(loaded, model.model_)
    np.testing.assert_array_equal(loaded.decision_function(T), model.model_.decision_function(T))
    assert "cannot store a metric" in refusal(export_libsvm, model.model_, tmp_path / "m.model")


@pytest.mark.parametrize("method", [cpsvm, dissmo], ids=["cpsvm", "dissmo"])
def test_interrupted_anywhere(method, monkeypatch, tmp_path):
    """Killed when it has kept k pieces it makes only the others, and ends with the same bits."""
    X, y = rows(160)
    parts = {"partitions": 3} if method is cpsvm else {}
    options = SVMOptions(**parts, C=10.0, metric="full", metric_rounds=2, seed=1)
    calls = interruptible(monkeypatch, Checkpoint, "put")
    undisturbed = method.METHOD(Dataset(X.copy(), y), options)
    whole = method.METHOD(Dataset(X.copy(), y), replace(options, checkpoint=Checkpoint(tmp_path / "whole")))
    same_content(whole.model, undisturbed.model)
    total = calls.made
    assert total >= 4
    for k in sorted({0, 2, total // 2, total - 1}):
        kept = replace(options, checkpoint=Checkpoint(tmp_path / str(k)))
        calls.made, calls.last = 0, k
        with pytest.raises(Interrupted):
            method.METHOD(Dataset(X.copy(), y), kept)
        calls.made, calls.last = 0, -1
        resumed = method.METHOD(Dataset(X.copy(), y), kept)
        assert calls.made == total - k
        assert resumed.errors == undisturbed.errors
        same_content(resumed.model, undisturbed.model)


X4, Y4 = rows(40)
ALONE = (np.arange(40) == 35).astype(int)
WIDE = np.random.default_rng(0).normal(size=(20, 5000))
BAD = {
    "a function": (CASVC(kernel=lambda A, B: A @ B.T, metric="full"), X4, Y4, "needs the derivative of the kernel"),
    "of all rows": (DisSMOSVC(kernel=lambda A, B: A @ B.T, metric="diagonal"), X4, Y4, "needs the derivative"),
    "a matrix": (CASVC(kernel="precomputed", metric="full"), X4, Y4, "kernel = 'precomputed'"),
    "a word": (CASVC(metric="x"), X4, Y4, "metric = 'x': it must be one of none, diagonal, full"),
    "no rounds": (DisSMOSVC(metric="full", metric_rounds=0), X4, Y4, "metric_rounds = 0: it must be a whole number"),
    "too wide": (CASVC(metric="full"), WIDE, Y4[:20], "5,000 features require 5,000 x 5,000 numbers"),
    "one row": (CASVC(metric="full"), X4[:1], Y4[:1], "n_samples = 1, and a metric needs 2"),
    "one class": (CASVC(metric="full"), X4, np.zeros(40), "there is one class only"),
    "a class in one row": (CASVC(metric="full", random_state=0, validation_fraction=0.9), X4, ALONE,
                           "all rows are of class 0 but those held out to judge it"),
    "NaN": (CASVC(metric="full"), np.where(X4 > 2, np.nan, X4), Y4, "is NaN"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_refused(what):
    estimator, X, y, message = BAD[what]
    assert message in refusal(estimator.fit, X, y)
