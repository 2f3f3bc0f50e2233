"""Length scales for SVMs of classes: what they find, with each method and with a search, and when they are left out."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import close, near, refusal, same_content
from helpers.lengths import not_kept, resumed

from cacore.data.dataset import Dataset
from cacore.io.checkpoint import Checkpoint
from casvm import CASVC, DCSVC, CascadeSVC, DisSMOSVC, SVMModel, cpsvm
from casvm.methods import length_scales
from casvm.options import SVMOptions

MAKE = {
    "CASVC": lambda **given: CASVC(2, random_state=0, **given),
    "CascadeSVC": lambda **given: CascadeSVC(2, random_state=0, **given),
    "DCSVC": lambda **given: DCSVC(2, random_state=0, **given),
    "DisSMOSVC": lambda **given: DisSMOSVC(**given),
}
LABELS = {2: np.array(["no", "yes"]), 3: np.array([7, 8, 9])}


def rows(n=300, seed=0, k=2):
    """A border in two of six features; the last one is constant."""
    X = np.random.default_rng(seed).normal(size=(n, 6))
    X[:, 5] = 3.0
    return X, LABELS[k][np.digitize(np.sin(3 * X[:, 0]) + 0.5 * X[:, 1], [0] if k == 2 else [-0.5, 0.5])]


def made(name, metric="lengths", **more):
    return MAKE[name](**{"C": 10.0, "standardize": True, "metric": metric, **more})


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize(("k", "kernel"), [(2, "laplacian"), (3, "matern32")])
def test_learnt_scales_rank_informative_features_first(name, k, kernel):
    (X, y), (T, t) = rows(k=k), rows(300, 1, k)
    model, plain = made(name, kernel=kernel).fit(X, y), made(name, "none", kernel=kernel).fit(X, y)
    assert set(np.argsort(model.feature_importances_)[-2:]) == {0, 1}
    near(model.metric_.sum(), 6.0, 1e-3)
    assert model.metric_errors_[1] < model.metric_errors_[0]
    assert model.score(T, t) > plain.score(T, t) + 0.03


def test_pieces_share_one_set_of_scales(monkeypatch, tuned):
    """The error is minimised inside each of four pieces; the scales are close to those of all rows in one."""
    X, y = rows(400)
    one = made("CASVC").fit(X, y)
    tuned(scales_rows=80)
    sizes = []
    best = length_scales.best_scales
    monkeypatch.setattr(length_scales, "best_scales", lambda k, parts, *more, **tied: sizes.append(
        [len(part.Y) for part in parts]) or best(k, parts, *more, **tied))  # fmt: skip
    four = made("CASVC").fit(X, y)
    assert sizes == [[40] * 4, [80] * 4]
    close(four.feature_importances_, one.feature_importances_, 0.25)


def test_the_search_is_in_the_lengths():
    """C and gamma are chosen for the scaled features; with several settings a part, too."""
    X, y = rows()
    searched = made("CASVC", C=[1.0, 10.0], gamma=[0.3, 1.0, 3.0], per_part=True).fit(X, y)
    fixed = made("CASVC", C=10.0, gamma=1.0).fit(X, y)
    np.testing.assert_array_equal(searched.metric_, fixed.metric_)
    one = made("DisSMOSVC", C=[1.0, 10.0], gamma=[0.3, 1.0, 3.0]).fit(X, y)
    T, t = rows(300, 1)
    again = made("DisSMOSVC", **one.best_params_).fit(X, y)
    np.testing.assert_array_equal(one.predict(T), again.predict(T))
    assert one.score(T, t) > 0.9


def test_useless_scales_are_discarded():
    """Nothing can be learned from noise: the model is that without a metric, to the last bit."""
    (X, _), y = rows(), np.random.default_rng(5).integers(0, 2, 300)
    model, plain = made("CASVC").fit(X, y), made("CASVC", "none").fit(X, y)
    not_kept(model, plain, "decision_function", X)


def test_rows_of_weight_0_are_absent():
    """Even if they have a class of their own."""
    X, y = rows(200)
    weights = np.arange(200) % 4 / 2.0
    kept = np.flatnonzero(weights)
    got = made("CASVC").fit(X, np.where(weights > 0, y, "absent"), weights)
    want = made("CASVC").fit(X[kept], y[kept], weights[kept])
    close(got.metric_, want.metric_, 1e-9)
    near(got.decision_function(X), want.decision_function(X), 1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_csr_files_and_probabilities(dtype, tmp_path):
    rng = np.random.default_rng(0)
    X, T = (np.where(rng.random((n, 5)) < 0.5, rng.normal(size=(n, 5)), 0).astype(dtype) for n in (200, 100))
    y = np.sin(3 * X[:, 0]) + 0.3 * X[:, 1] > 0.1
    given = {"C": 10.0, "kernel": "matern52", "metric": "lengths", "random_state": 0, "probability": True}
    model, other = CASVC(2, **given).fit(sp.csr_matrix(X), y), CASVC(2, **given).fit(X, y)
    close(model.metric_, other.metric_, 1e-6)
    near(model.decision_function(sp.csr_matrix(T)), other.decision_function(T), 2e-2)
    near(model.predict_proba(sp.csr_matrix(T)), other.predict_proba(T), 2e-2)
    model.model_.save(tmp_path / "m.h5")
    loaded = SVMModel.load(tmp_path / "m.h5")
    same_content(loaded, model.model_)
    np.testing.assert_array_equal(loaded.predict(T), model.model_.predict(T))


def test_a_checkpoint_is_resumed(tmp_path):
    X, y = rows(160)
    given = {"partitions": 3, "C": 10.0, "metric": "lengths", "seed": 1, "checkpoint": Checkpoint(tmp_path / "c")}
    resumed(lambda: cpsvm.METHOD(Dataset(X.copy(), y), SVMOptions(**given)))


X4, Y4 = rows(40)
BAD = {
    "a function": (CASVC(kernel=lambda A, B: A @ B.T, metric="lengths"), X4, Y4, "needs the derivative of the kernel"),
    "of products": (DCSVC(kernel="linear", metric="lengths"), X4, Y4, "linear kernel is not a function of"),
    "one row": (CASVC(metric="lengths"), X4, Y4, "1 row with a weight above 0; it needs 2 or more"),
    "one class": (CASVC(metric="lengths"), X4, np.zeros(40), "there is one class only, 0.0"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_refused(what):
    estimator, X, y, message = BAD[what]
    weights = np.eye(1, len(y))[0] if what == "one row" else None
    assert message in refusal(estimator.fit, X, y, weights)


def test_dense_rows_that_do_not_fit_are_refused():
    given = SVMOptions(partitions=1, metric="lengths", memory_limit=1 << 27)
    said = refusal(cpsvm.METHOD, Dataset(sp.eye_array(40, 200_000, format="csr"), Y4), given)
    assert "40 dense rows for length scales" in said
    assert "leave out metric" in said
