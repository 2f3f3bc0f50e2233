"""Length scales for regressions and quantiles: what they find, when they are left out, what a model says, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import close, near, refusal, same_content
from helpers.lengths import not_kept, resumed

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.validation import shared_seed
from cacore.io.checkpoint import Checkpoint
from cacore.probability.conformal import rows_aside
from casvm import CASVR, CAQuantileSVR, DisSMOSVR, QuantileModel, SVRModel, export_libsvm
from casvm.options import ValueOptions
from casvm.svr import svr

LEVELS = (0.1, 0.5, 0.9)
MAKE = {
    "CASVR": lambda **given: CASVR(2, epsilon=0.1, random_state=0, **given),
    "CAQuantileSVR": lambda **given: CAQuantileSVR(2, quantile=LEVELS, random_state=0, **given),
    "DisSMOSVR": lambda **given: DisSMOSVR(epsilon=0.1, **given),
}
names = pytest.mark.parametrize("name", MAKE)


def rows(n=300, seed=0):
    """Two of six features count; the last one is constant."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6))
    X[:, 5] = 3.0
    return X, np.sin(2 * X[:, 0]) + np.square(X[:, 1]) / 2 + 0.1 * rng.normal(size=n)


def made(name, metric="lengths", **more):
    return MAKE[name](C=10.0, standardize=True, metric=metric, **more)


@names
@pytest.mark.parametrize("kernel", ["gaussian", "matern32", "l1"])
def test_learnt_scales_rank_informative_features_first(name, kernel):
    (X, y), (T, t) = rows(), rows(150, 1)
    model, plain = made(name, kernel=kernel).fit(X, y), made(name, "none", kernel=kernel).fit(X, y)
    assert set(np.argsort(model.feature_importances_)[-2:]) == {0, 1}
    near(model.metric_.sum(), 6.0, 1e-3)
    assert model.metric_errors_[1] < model.metric_errors_[0]
    assert model.score(T, t) > plain.score(T, t)
    assert not {"metric_", "metric_errors_", "feature_importances_"} & set(vars(plain))


@names
def test_useless_scales_are_discarded(name):
    """Nothing can be learned from noise: the model is that without a metric, to the last bit."""
    (X, _), y = rows(), np.random.default_rng(7).normal(size=300)
    model, plain = made(name).fit(X, y), made(name, "none").fit(X, y)
    not_kept(model, plain, "predict", X)


def test_rows_of_weight_0_are_absent():
    X, y = rows(200)
    weights = np.arange(200) % 4 / 2.0
    kept = np.flatnonzero(weights)
    spoiled = np.where(weights > 0, y, 1e6)
    got = made("CASVR").fit(X, spoiled, weights)
    want = made("CASVR").fit(X[kept], y[kept], weights[kept])
    close(got.metric_, want.metric_, 1e-9)
    np.testing.assert_array_equal(got.support_, kept[want.support_])
    near(got.predict(X), want.predict(X), 1e-6)


def test_held_out_rows_do_not_change_scales():
    X, y = rows(200)
    alone = Communicator()
    held = rows_aside(200, 0.3, shared_seed(0, alone), alone)[0]
    model = made("CAQuantileSVR", calibrate=0.3).fit(X, y)
    again = made("CAQuantileSVR", calibrate=0.3).fit(X, np.where(held, 100.0, y))
    np.testing.assert_array_equal(again.metric_, model.metric_)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_csr_and_files(dtype, tmp_path):
    """Support vectors stay sparse; a file brings back the same answers; LIBSVM's format is refused."""
    rng = np.random.default_rng(0)
    X, T = (np.where(rng.random((n, 5)) < 0.5, rng.normal(size=(n, 5)), 0).astype(dtype) for n in (200, 100))
    y = np.sin(3 * X[:, 0]) + 0.3 * X[:, 1] + 0.05 * rng.normal(size=200)
    given = {"C": 10.0, "kernel": "matern52", "metric": "lengths", "random_state": 0}
    model, other = CASVR(2, **given).fit(sp.csr_matrix(X), y), CASVR(2, **given).fit(X, y)
    close(model.metric_, other.metric_, 1e-6)
    near(model.predict(sp.csr_matrix(T)), other.predict(T), 2e-2)
    assert all(sp.issparse(part.X) for part in model.model_.parts.values())
    model.model_.save(tmp_path / "m.h5")
    loaded = SVRModel.load(tmp_path / "m.h5")
    same_content(loaded, model.model_)
    np.testing.assert_array_equal(loaded.predict(T), model.model_.predict(T))
    assert "cannot store a metric" in refusal(export_libsvm, model.model_, tmp_path / "m.model")
    quantiles = CAQuantileSVR(2, quantile=LEVELS, **given).fit(X, y).model_
    quantiles.save(tmp_path / "q.h5")
    np.testing.assert_array_equal(QuantileModel.load(tmp_path / "q.h5").predict(T), quantiles.predict(T))


def test_a_checkpoint_is_resumed(tmp_path):
    """A second run finds all parts, in the same length scales."""
    X, y = rows(160)
    given = {"partitions": 3, "C": 10.0, "metric": "lengths", "seed": 1, "checkpoint": Checkpoint(tmp_path / "c")}
    resumed(lambda: svr(Dataset(X.copy(), y), ValueOptions(**given)))


X4, Y4 = rows(40)
BAD = {
    "a function": (CASVR(kernel=lambda A, B: A @ B.T, metric="lengths"), X4, Y4, "needs the derivative of the kernel"),
    "of products": (CAQuantileSVR(kernel="linear", metric="lengths"), X4, Y4, "linear kernel is not a function of"),
    "of all rows": (DisSMOSVR(kernel="sigmoid", metric="lengths"), X4, Y4, "sigmoid kernel is not a function of"),
    "full": (CASVR(metric="full"), X4, Y4, "metric = 'full': it must be one of none, lengths"),
    "one row": (CASVR(metric="lengths"), X4, Y4, "1 row with a weight above 0; it needs 2 or more"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_refused(what):
    estimator, X, y, message = BAD[what]
    weights = np.eye(1, len(y))[0] if what == "one row" else None
    assert message in refusal(estimator.fit, X, y, weights)
