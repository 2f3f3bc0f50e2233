"""Classes by least squares: against brute force; labels of any type, weights, probabilities, commands, bad input."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from helpers.checks import close, refusal
from helpers.commands import check_metrics, reported, run
from helpers.data import drawn_clouds, formats, write_hdf5
from helpers.references import ridge
from sklearn.base import clone
from sklearn.metrics import accuracy_score, log_loss

import cakrr
from cacore.comm import Communicator
from cacore.probability.calibrator import Calibrator
from cacore.probability.left_out import LeftOutDecisions
from cakrr import BKRR2Classifier, DKRRClassifier, KRRModel, TwoLevelKRRClassifier

NAMES = ["BKRR2", "KKRR2", "DCKRR", "BKRR", "KKRR", "TwoLevelKRR", "DKRR"]
PAIR = {"sigma": 1.5, "lam": 1e-3, "standardize": False}


def brute(X, y, T, weights=None):
    """Values of a column a class, or of one of -1 and 1."""
    classes, w = np.unique(y), np.ones(len(y)) if weights is None else weights
    Y = np.where(y == classes[1], 1.0, -1.0) if len(classes) == 2 else (y[:, None] == classes).astype(float)
    mean = np.average(Y, 0, w)
    return ridge(1.5, 1e-3 * w.sum()).fit(X, Y - mean, sample_weight=w).predict(T) + mean


@formats
@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("cls", [BKRR2Classifier, DKRRClassifier])
def test_is_least_squares(cls, dtype, k, csr):
    (X, y), (T, t) = drawn_clouds(k=k, csr=csr), drawn_clouds(60, 1, k, csr)
    names = np.array(["d", "b", "a", "c"])[y]
    model, values = cls(**PAIR, dtype=dtype).fit(X, names), brute(X, names, T)
    close(model.decision_function(T), values, 1e-8 if dtype == "float64" else 1e-5)
    codes = (values > 0).astype(int) if k == 2 else values.argmax(axis=1)
    assert model.classes_.tolist() == sorted(set(names))
    assert model.predict(T).tolist() == model.classes_[codes].tolist()
    assert model.score(T, np.array(["d", "b", "a", "c"])[t]) > 0.6


@pytest.mark.parametrize("labels", [[-1, 1], [7, 3, 5], ["ham", "spam", "eggs"], [False, True], [0.5, 2.5]])
@pytest.mark.parametrize("name", NAMES)
def test_every_method(name, labels, tmp_path):
    """A grid, labels of any type, probabilities, a clone, a pickle, a file."""
    X, y = drawn_clouds(k=len(labels))
    labels, more = np.array(labels), {} if name == "DKRR" else {"n_parts": 3}
    if name == "TwoLevelKRR":
        more |= {"centers": 20, "coarse_lam": 1e-3}
    cls = getattr(cakrr, f"{name}Classifier")
    if labels.dtype.kind == "f":  # scikit-learn's rule: classes are no fractions
        refusal(cls().fit, X, labels[y], match="continuous")
        return
    model = clone(cls(sigma=[1.0, 2.0], lam=[1e-3, 1e-1], random_state=0, **more)).fit(X, labels[y])
    said = model.predict(X)
    assert said.dtype == labels.dtype
    assert model.score(X, labels[y]) == accuracy_score(labels[y], said) > 0.7
    shares = model.predict_proba(X)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert shares.min() >= 0
    assert model.classes_[shares.argmax(axis=1)].tolist() == said.tolist()
    model.model_.save(tmp_path / "model.h5")
    loaded = KRRModel.load(tmp_path / "model.h5")
    assert loaded.labels(loaded.predict(X)).tolist() == said.tolist()
    assert pickle.loads(pickle.dumps(model)).predict(X).tolist() == said.tolist()


def test_probabilities():
    X, y = drawn_clouds(k=3)
    model = BKRR2Classifier(**PAIR).fit(X, y).model_
    values = np.array([[0.6, 0.6, -0.2], [-0.1, -0.3, -0.2], [-0.5, -0.5, -0.5], [0.0, 0.0, 0.0], [2.0, 0.0, -1.0]])
    expected = [[0.5, 0.5, 0], [2 / 3, 0, 1 / 3], [1 / 3] * 3, [1 / 3] * 3, [1, 0, 0]]
    close(model.probabilities(values), np.array(expected), 1e-12)
    assert model.labels(values).tolist() == [0, 0, 0, 0, 0]  # the first of equals
    two = np.array([-3.0, -0.5, 0.0, 1.0])
    close(model.probabilities(two), np.array([[1, 0], [0.75, 0.25], [0.5, 0.5], [0, 1]]), 1e-12)


@pytest.mark.parametrize("k", [2, 3])
def test_weights(k):
    """Weights of rows and of classes; rows of weight 0, and classes of such rows, are ignored."""
    X, y = drawn_clouds(k=k)
    w = np.random.default_rng(0).integers(0, 3, len(y)).astype(float)
    close(BKRR2Classifier(**PAIR).fit(X, y, w).decision_function(X), brute(X[w > 0], y[w > 0], X, w[w > 0]))
    factors = {c: float(c + 1) for c in range(k)}
    given = BKRR2Classifier(**PAIR, class_weight=factors).fit(X, y).decision_function(X)
    close(given, brute(X, y, X, y + 1.0))
    even = len(y) / (k * np.bincount(y))
    close(BKRR2Classifier(**PAIR, class_weight="balanced").fit(X, y).decision_function(X), brute(X, y, X, even[y]))
    odd = np.r_[y[:-1], 9]
    assert BKRR2Classifier(**PAIR).fit(X, odd, np.r_[np.ones(len(y) - 1), 0]).classes_.tolist() == list(range(k))


def test_parts_without_a_class():
    """Clouds far apart: K-means makes a part of each, which has one class alone."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(90, 2)) + 50 * np.eye(3, 2)[np.arange(90) % 3], np.arange(90) % 3
    for route in ("nearest", "soft"):
        model = cakrr.KKRR2Classifier(3, route=route, standardize=False, random_state=0).fit(X, y)
        assert model.score(X, y) == 1


def test_invalid_options_are_refused():
    X, y = drawn_clouds()
    for cls in (BKRR2Classifier, DKRRClassifier, TwoLevelKRRClassifier):
        refusal(cls().fit, X, np.zeros(len(y)), match="one class only")
        refusal(cls().fit, X, X[:, 0], match="continuous")
        refusal(cls().fit, X, np.arange(len(y)) * 1.5, match="continuous")
        refusal(cls(class_weight={5: 1.0}).fit, X, y, match="there is no class 5")
    many = np.arange(3000) // 2
    refusal(BKRR2Classifier().fit, np.ones((3000, 2)), many, match="there are 1,500 of them: leave --classify out")
    refusal(cakrr.BKRR2().fit, X, np.where(y > 0, "a", "b"), match="BKRR2Classifier has classes")


# -- commands ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classes")
    (X, y), (T, t) = drawn_clouds(k=3), drawn_clouds(60, 1, 3)
    words = np.array(["ham", "spam", "eggs"])
    write_hdf5(folder / "rows.h5", train=(X, y), test=(T, t))
    write_hdf5(folder / "real.h5", train=(X, X[:, 0]))
    np.savez(folder / "words.npz", x_train=X, y_train=words[y], x_test=T, y_test=words[t])
    for name, (A, b) in (("train.csv", (X, y)), ("test.csv", (T, t))):
        lines = [",".join([*map(repr, a.tolist()), words[c]]) for a, c in zip(A, b, strict=True)]
        (folder / name).write_text("\n".join(["a,b,c,d,label", *lines, ""]))
    return folder


@pytest.mark.parametrize("words", [["rows.h5"], ["words.npz"], ["train.csv", "--test", "test.csv"]])
@pytest.mark.parametrize("method", ["bkrr2", "twolevel"])
def test_classify(method, words, files, tmp_path):
    paths = [files / word if "." in word else word for word in words]
    more = ["--centers", "20"] if method == "twolevel" else []
    words = [*paths, "--classify", "--balanced", "--partitions", "3", "--sigma", "1.5", "--lambda", "1e-3,1e-1", *more]
    made = reported(f"cakrr.{method}", [*words, "--model", tmp_path / "m.h5"], tmp_path)
    (T, t), model = drawn_clouds(60, 1, 3), KRRModel.load(tmp_path / "m.h5")
    true = t if paths[0].name == "rows.h5" else np.array(["ham", "spam", "eggs"])[t]
    said = model.labels(model.predict(T))
    own = {name: made["metrics"][name] for name in ("accuracy", "balanced_accuracy", "confusion", "classes")}
    check_metrics(own, true, said)
    assert (made["params"]["classify"], made["params"]["balanced"]) == (True, True)
    run("cakrr.predict", [tmp_path / "m.h5", paths[-1], "-o", tmp_path / "p.csv", "--report", tmp_path / "p.json"])
    assert (tmp_path / "p.csv").read_text().split() == ["prediction", *map(str, said)]


def test_commands_refuse_invalid_options(files, tmp_path, refuses):
    refuses("cakrr.bkrr2", [files / "words.npz"], "the target is text; use --classify for classes", tmp_path)
    refuses("cakrr.bkrr2", [files / "train.csv"], "is not a number; use --classify for classes", tmp_path)
    refuses("cakrr.bkrr2", [files / "real.h5", "--classify"], "is no whole number: leave --classify out", tmp_path)
    refuses("cakrr.kkrr3", [files / "rows.h5", "--classify"], "is an oracle for a single numeric", tmp_path)
    refuses("cakrr.bkrr2", [files / "rows.h5", "--balanced"], "no classes without --classify", tmp_path)


# -- calibrated probabilities ------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("cls", [BKRR2Classifier, DKRRClassifier])
def test_sigmoids_are_fitted_to_leave_one_out_decisions(cls, k, weighted):
    """The sigmoids match trainings without each row, with the ridge and the mean of all rows."""
    X, y = drawn_clouds(40, k=k)
    w = np.where(np.arange(40) % 3, 1.0, 2.0) if weighted else np.ones(40)
    model = cls(**PAIR, probability=True).fit(X, y, w if weighted else None)
    Y = np.where(y == 1, 1.0, -1.0)[:, None] if k == 2 else np.eye(k)[y]
    mean, values = np.average(Y, 0, w), np.empty((40, Y.shape[1]))
    for i in range(40):
        rest = np.arange(40) != i
        one = ridge(1.5, 1e-3 * w.sum()).fit(X[rest], Y[rest] - mean, sample_weight=w[rest])
        values[i] = one.predict(X[i : i + 1]) + mean
    found = (
        LeftOutDecisions(-values[:, 0], y == 0, np.zeros(40, int))
        if k == 2
        else LeftOutDecisions.of_classes(values, y, k)
    )
    expected = Calibrator.fit("sigmoid", found, Y.shape[1], Communicator())
    close(model.model_.calibrator.A, expected.A, 1e-6)
    close(model.model_.calibrator.B, expected.B, 1e-6)
    P = model.predict_proba(X)
    np.testing.assert_allclose(P.sum(axis=1), 1.0)
    assert (P > 0).all()


@pytest.mark.parametrize("k", [2, 3])
def test_calibrated_ones_are_better(k, tmp_path):
    """In parts, on two levels and by a curve; the same from a file."""
    (X, y), (T, t) = drawn_clouds(300, k=k), drawn_clouds(300, 1, k)
    for cls, more in (
        (BKRR2Classifier, {"n_parts": 3, "probability": True}), (BKRR2Classifier, {"probability": "isotonic"}),
        (TwoLevelKRRClassifier, {"n_parts": 2, "centers": 20, "coarse_lam": 1e-3, "probability": True}),
    ):  # fmt: skip
        model = cls(sigma=1.0, lam=1e-5, random_state=0, **more).fit(X, y)
        P = model.predict_proba(T)
        plain = clone(model).set_params(probability=None).fit(X, y).predict_proba(T)
        assert log_loss(t, P) < log_loss(t, plain)
        model.model_.save(tmp_path / "m.h5")
        loaded = KRRModel.load(tmp_path / "m.h5")
        np.testing.assert_allclose(loaded.probabilities(loaded.predict(T)), P, rtol=1e-12)


def test_probabilities_that_are_refused():
    X, y = drawn_clouds()
    for cls, more in ((BKRR2Classifier, {"n_divisions": 2}), (cakrr.DCKRRClassifier, {"n_parts": 2})):
        assert "leave-one-out predictions are those" in refusal(cls(probability=True, **more).fit, X, y)


def test_columns_of_probabilities(tmp_path):
    """Calibrated or not; log loss and Brier score in the report."""
    X, y = drawn_clouds(k=3)
    write_hdf5(tmp_path / "d.h5", train=(X, y), test=drawn_clouds(50, 1, 3))
    for more, form in (([], "clipped"), (["--probability"], "sigmoid")):
        words = [tmp_path / "d.h5", "--classify", "--sigma", "1", "--model", tmp_path / "m.h5", *more]
        made = reported("cakrr.bkrr2", words, tmp_path)
        assert ("log_loss" in made["metrics"]) == bool(more)
        asked = [tmp_path / "m.h5", tmp_path / "d.h5", "--probability", "-o", tmp_path / "p.csv"]
        told = reported("cakrr.predict", asked, tmp_path)
        lines = (tmp_path / "p.csv").read_text().splitlines()
        assert lines[0] == "prediction,probability 0,probability 1,probability 2"
        P = np.array([line.split(",")[1:] for line in lines[1:]], float)
        assert told["metrics"]["log_loss"] == pytest.approx(log_loss(drawn_clouds(50, 1, 3)[1], P))
        assert told["probability"]["form"] == form


@pytest.mark.parametrize("name", ["BKRR2", "BKRR", "DKRR"])
def test_labels_of_rows_far_from_all_training_rows(name):
    """The sign of the smallest output of equally large classes counts, and does not depend on the other rows."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(1000, 3)), np.repeat([0, 1], 500)
    far = 4.0 + rng.random((40, 3))
    model = getattr(cakrr, f"{name}Classifier")(
        sigma=0.4, lam=1e-3, standardize=False, **({} if name == "DKRR" else {"n_parts": 2, "random_state": 0})
    ).fit(X, y)
    assert model.model_.offset == 0.0
    some = model.decision_function(far)
    assert some.all()
    assert abs(some).max() < 1e-15
    many = np.concatenate([far, far.mean(axis=0) + 30.0 * rng.random((2000, 3))])
    close(model.decision_function(many)[:40], some, 1e-12)
    np.testing.assert_array_equal(model.predict(many)[:40], model.predict(far))
