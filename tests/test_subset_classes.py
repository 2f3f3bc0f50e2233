"""Classes by least squares on M points, against the formula; and the command."""

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.commands import flat, reported, run
from helpers.data import write_hdf5
from helpers.references import matrix

from cacore.errors import InputError
from cacore.kernels import Kernel
from cakernels import SubsetKRR, SubsetKRRClassifier
from cakrr import KRRModel

SIGMA, LAM = 1.5, 1e-3
KERNEL = Kernel.gaussian(SIGMA)


def clouds(k, n=240, seed=0):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, k, n)
    return rng.normal(size=(n, 3)) + 1.5 * np.eye(3)[codes % 3], np.array(["c", "a", "b"])[codes]


def by_formula(X, labels, w, Z, T):
    """Outputs for T by the normal equations: indicator columns less their means, -1 and 1 for two classes."""
    classes = np.unique(labels)
    Y = (labels[:, None] == classes).astype(float)
    Y = 2 * Y[:, 1:] - 1 if len(classes) == 2 else Y
    K, mean = matrix(KERNEL, X, Z), w @ Y / w.sum()
    H = K.T * w @ K + LAM * w.sum() * matrix(KERNEL, Z)
    return matrix(KERNEL, T, Z) @ np.linalg.solve(H, K.T * w @ (Y - mean)) + mean


def fitted(X, labels, w=None, **more):
    given = {"sigma": SIGMA, "lam": LAM, "standardize": False, **more}
    return SubsetKRRClassifier(**given).fit(X, labels, w)


@pytest.mark.parametrize("form", ["dense", "csr", "float32"])
@pytest.mark.parametrize("k", [2, 3])
def test_outputs(k, form, tmp_path):
    (X, labels), (T, _) = clouds(k), clouds(k, 50, seed=1)
    w = np.random.default_rng(2).integers(1, 4, len(X)).astype(float)
    wrap = sp.csr_matrix if form == "csr" else np.asarray
    model = fitted(wrap(X), labels, w, centers=wrap(X[:40]), dtype=form if form == "float32" else "float64")
    expected = by_formula(X, labels, w, X[:40], T)
    close = 1e-7 if form != "float32" else 1e-3
    found = model.decision_function(wrap(T))
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=close, atol=close)
    codes = (expected[:, 0] > 0).astype(int) if k == 2 else expected.argmax(axis=1)
    np.testing.assert_array_equal(model.classes_, np.unique(labels))
    np.testing.assert_array_equal(model.predict(wrap(T)), model.classes_[codes])
    np.testing.assert_allclose(model.predict_proba(wrap(T)).sum(axis=1), 1.0)
    model.model_.save(tmp_path / "m.h5")
    np.testing.assert_array_equal(KRRModel.load(tmp_path / "m.h5").predict(wrap(T)), found)


def test_balanced_classes_count_alike():
    X, labels = clouds(3)
    keep = (labels != "a") | (np.arange(len(X)) % 4 == 0)
    X, labels = X[keep], labels[keep]
    model = fitted(X, labels, centers=X[:40], class_weight="balanced")
    each = {name: len(X) / (3 * np.sum(labels == name)) for name in "abc"}
    same = fitted(X, labels, np.array([each[name] for name in labels]), centers=X[:40])
    np.testing.assert_allclose(model.decision_function(X), same.decision_function(X), rtol=1e-9, atol=1e-9)
    assert np.abs(model.decision_function(X) - fitted(X, labels, centers=X[:40]).decision_function(X)).max() > 0.01


def test_the_search_takes_the_errors_of_all_columns():
    """Two classes have the left-out errors of a regression of -1 and 1."""
    given = {"centers": 40, "sigma": [0.5, 1.5], "lam": [1e-6, 1e-3], "random_state": 0}
    X, labels = clouds(2)
    found = SubsetKRRClassifier(**given).fit(X, labels)
    same = SubsetKRR(**given).fit(X, np.where(labels == found.classes_[1], 1.0, -1.0))
    assert (found.sigma_, found.lam_) == (same.sigma_, same.lam_)
    np.testing.assert_allclose(
        [row["loo_mse"] for row in found.grid_], [row["loo_mse"] for row in same.grid_], rtol=1e-9
    )
    three = SubsetKRRClassifier(**given).fit(*clouds(3))
    least = min(three.grid_, key=lambda row: row["loo_mse"])
    assert (three.sigma_, three.lam_) == (least["sigma"], least["lambda"])


def test_one_class_is_refused():
    X, _ = clouds(2)
    with pytest.raises(InputError, match="class"):
        fitted(X, np.full(len(X), "a"), centers=X[:5])


def test_command(tmp_path, capsys):
    X, labels = clouds(3)
    y = np.searchsorted(["a", "b", "c"], labels).astype(float)
    data = write_hdf5(tmp_path / "data.h5", train=(X[:200], y[:200]), test=(X[200:], y[200:]))
    words = [data, "--classify", "--balanced", "--centers", "40", "--sigma", "1.5", "--lambda", "1e-3"]
    told = reported("cakrr.subset", [*words, "--model", tmp_path / "m.h5"], tmp_path)
    model = SubsetKRRClassifier(centers=40, sigma=SIGMA, lam=LAM, class_weight="balanced", random_state=0)
    model.fit(X[:200], y[:200])
    assert told["metrics"]["accuracy"] == pytest.approx(model.score(X[200:], y[200:]))
    assert told["params"]["classify"]
    run("cakrr.predict", [tmp_path / "m.h5", data, "-o", tmp_path / "out.csv", "--quiet"])
    found = np.array([float(line.split(",")[0]) for line in (tmp_path / "out.csv").read_text().splitlines()[1:]])
    np.testing.assert_array_equal(found, model.predict(X[200:]))
    with pytest.raises(SystemExit) as end:
        run("cakrr.subset", [*words[:1], "--centers", "40", "--balanced"])
    assert end.value.code == 2
    assert "--classify" in flat(capsys.readouterr().err)
