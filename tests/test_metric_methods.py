"""Kernel ridge regression that learns a metric: every method, kernel and form of rows, and checkpoints."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import close, near, refusal, same_content
from helpers.data import fast_and_slow
from helpers.running import Interrupted, interruptible
from sklearn.base import clone

from cacore.data.dataset import Dataset
from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint
from cacore.linalg import scalapack
from cakrr import (
    BKRR2,
    DCKRR,
    DKRR,
    KKRR2,
    BKRR2Classifier,
    DKRRClassifier,
    KRRModel,
    TwoLevelKRR,
    TwoLevelKRRClassifier,
)  # fmt: skip
from cakrr.bkrr2 import bkrr2
from cakrr.dkrr import dkrr
from cakrr.options import AUTO, RidgeOptions
from cakrr.solver.local import PartSystem

metrics = pytest.mark.parametrize("metric", ["diagonal", "full"])
COARSE = {"centers": 40, "coarse_lam": 1e-5, "lam": [1e-5, 1e-3]}
IN_PARTS = {"BKRR2": (BKRR2, {}), "KKRR2": (KKRR2, {}), "DCKRR": (DCKRR, {}), "soft": (BKRR2, {"route": "soft"}),
            "loo": (BKRR2, {"select": "loo"}), "TwoLevelKRR": (TwoLevelKRR, COARSE)}  # fmt: skip


# -- methods ---------------------------------------------------------------------------------------


def check_learned(model, plain, metric, T, t):
    """The error falls, and the importances are those of the function; the round is the best one."""
    assert np.mean((model.predict(T) - t) ** 2) < 0.5 * np.mean((plain.predict(T) - t) ** 2)
    shares, errors = model.feature_importances_, model.metric_errors_
    assert shares.sum() == pytest.approx(1)
    assert shares[0] > 0.75
    assert shares[1] > 0.05
    assert shares[2:].max() < 0.02
    assert shares[5] < 1e-5  # constant
    assert model.metric_.shape == ((6, 6) if metric == "full" else (6,))
    diagonal = np.diagonal(model.metric_) if metric == "full" else model.metric_
    close(diagonal / diagonal.sum(), shares, 1e-12)
    assert errors.min() < errors[0]
    chosen = min(row["validation_mse"] for row in model.grid_ if row["validation_mse"] is not None)
    assert chosen == pytest.approx(errors.min())


@metrics
@pytest.mark.parametrize("name", ["BKRR2", "KKRR2", "DCKRR", "TwoLevelKRR"])
def test_methods(name, metric):
    (X, y), (T, t) = fast_and_slow(), fast_and_slow(100, 1)
    make, more = IN_PARTS[name]
    given = {"n_parts": 3, "sigma": [1, 2, 4], "lam": [1e-6, 1e-4], "random_state": 0, **more}
    given |= {"route": "nearest"} if make is TwoLevelKRR else {}
    model = make(**given, metric=metric, metric_rounds=2).fit(X, y)
    check_learned(model, make(**given).fit(X, y), metric, T, t)
    same = clone(model).fit(X, y)
    np.testing.assert_array_equal(same.predict(T), model.predict(T))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(T), model.predict(T))


@metrics
def test_exact(metric):
    (X, y), (T, t) = fast_and_slow(150), fast_and_slow(100, 1)
    given = {"sigma": [2, 4], "lam": 1e-5, "random_state": 0}
    model = DKRR(**given, metric=metric, metric_rounds=2).fit(X, y)
    check_learned(model, DKRR(**given).fit(X, y), metric, T, t)


@pytest.mark.parametrize("name", ["soft", "loo"])
def test_full_metric_halves_the_error(name):
    (X, y), (T, t) = fast_and_slow(), fast_and_slow(100, 1)
    make, more = IN_PARTS[name]
    plain, model = (
        make(3, sigma=[2, 4], lam=1e-5, random_state=0, **more, metric=metric).fit(X, y) for metric in ("none", "full")
    )
    assert np.mean((model.predict(T) - t) ** 2) < 0.5 * np.mean((plain.predict(T) - t) ** 2)
    assert not {"metric_", "feature_importances_", "metric_errors_"} & set(vars(plain))
    assert not set(vars(model.set_params(metric="none").fit(X, y))) & {"metric_", "metric_errors_"}


@pytest.mark.parametrize("kernel", ["laplacian", "matern32", "l1", "rational"])
def test_kernels(kernel):
    (X, y), (T, t) = fast_and_slow(), fast_and_slow(100, 1)
    given = {"n_parts": 2, "kernel": kernel, "lam": 1e-5, "random_state": 0}
    model = BKRR2(**given, metric="diagonal", metric_rounds=2).fit(X, y)
    assert model.score(T, t) > BKRR2(**given).fit(X, y).score(T, t)
    assert model.feature_importances_[0] > 0.75


def test_useless_metric_is_discarded():
    """The first round is the best one for targets that are noise: the metric is the identity."""
    X, noise = fast_and_slow()[0], np.random.default_rng(5).normal(size=240)
    model = BKRR2(2, sigma=1.0, lam=10.0, metric="full", random_state=0).fit(X, noise)
    kept = int(np.argmin(model.metric_errors_))
    assert len(model.metric_errors_) <= kept + 4
    if kept == 0:
        np.testing.assert_array_equal(model.metric_, np.eye(6))
        near(model.feature_importances_, 1 / 6, 1e-15)
        assert model.model_.standardizer.root is None


def test_targets_that_are_constant():
    X, model = fast_and_slow()[0], BKRR2(2, metric="full", random_state=0)
    assert model.fit(X, np.ones(240)).metric_errors_.tolist() == [0.0]
    np.testing.assert_array_equal(model.predict(X), 1.0)


@pytest.mark.parametrize("make", [BKRR2, DKRR, TwoLevelKRR])
def test_many_targets(make):
    """One metric for all: features of any target count, whatever its unit; a constant one counts for nothing."""
    (X, y), (T, t) = fast_and_slow(), fast_and_slow(100, 1)
    Y, V = (np.column_stack([y, 1000 * np.sin(2 * X[:, 3]), np.ones(len(X))]) for X, y in ((X, y), (T, t)))
    given = (
        {"sigma": 2.0, "lam": 1e-5, "random_state": 0}
        if make is DKRR
        else {"n_parts": 2, "sigma": [2, 4], "random_state": 0}
    )
    given |= COARSE if make is TwoLevelKRR else {}
    model = make(**given, metric="full", metric_rounds=1).fit(X, Y)
    shares = model.feature_importances_
    assert min(shares[0], shares[3]) > 0.2
    assert max(shares[2], shares[4], shares[5]) < 0.05
    assert model.predict(T).shape == V.shape
    assert model.score(T, V) > make(**given).fit(X, Y).score(T, V)


@pytest.mark.parametrize("make", [BKRR2Classifier, DKRRClassifier, TwoLevelKRRClassifier])
def test_classifiers(make):
    (X, y), (T, t) = fast_and_slow(300), fast_and_slow(200, 1)
    words = np.array(["low", "middle", "top"])
    labels, expected = (words[np.digitize(values, [-0.5, 0.5])] for values in (y, t))
    given = {"lam": 1e-3, "random_state": 0} if make is DKRRClassifier else {"n_parts": 2, "random_state": 0}
    given |= {**COARSE, "lam": 1e-3} if make is TwoLevelKRRClassifier else {}
    model = make(**given, metric="diagonal", metric_rounds=2).fit(X, labels)
    assert model.score(T, expected) > make(**given).fit(X, labels).score(T, expected)
    assert model.feature_importances_[0] > 0.7
    near(model.predict_proba(T).sum(axis=1), 1.0, 1e-12)


@pytest.mark.parametrize("name", ["BKRR2", "DCKRR", "TwoLevelKRR"])
@pytest.mark.parametrize("metric", ["diagonal", "full", "lengths"])
def test_training_begins_in_the_metric_of_another_model(name, metric, tmp_path):
    """A model in a metric that was learned is that of the learning; a further round begins from its error."""
    make, more = IN_PARTS[name]
    if (name, metric) == ("TwoLevelKRR", "lengths"):
        return
    (X, y), (T, _) = fast_and_slow(), fast_and_slow(50, 1)
    given = {"n_parts": 3, "lam": 1e-4, "random_state": 0, "metric": metric, **more}
    learned = make(**given, sigma=[1, 2, 4], metric_rounds=2).fit(X, y)
    assert learned.metric_errors_.argmin() > 0
    given |= {"sigma": learned.sigma_, "metric_init": learned.metric_, "lam": learned.lam_}
    if name == "TwoLevelKRR":
        coarse = {key: learned.params_[key] for key in ("centers", "coarse_sigma")}
        given |= coarse | {"coarse_lam": learned.params_["coarse_lambda"]}
    kept = make(**given, metric_rounds=0).fit(X, y)
    close(kept.metric_, learned.metric_, 1e-9)
    learned.model_.save(tmp_path / "m.h5")
    of_file = make(**given | {"metric_init": tmp_path / "m.h5"}, metric_rounds=0).fit(X, y)
    close(of_file.predict(T), kept.predict(T), 1e-9)
    close(kept.predict(T), learned.predict(T), 1e-6)
    assert kept.metric_errors_.shape == (1,)
    assert kept.metric_errors_[0] == pytest.approx(learned.metric_errors_.min(), rel=1e-6)
    further = make(**given, metric_rounds=1).fit(X, y)
    assert further.metric_errors_[0] == pytest.approx(kept.metric_errors_[0], rel=1e-12)
    assert len(further.metric_errors_) == 2


def test_a_diagonal_metric_begins_a_full_one():
    (X, y), (T, _) = fast_and_slow(), fast_and_slow(50, 1)
    given = {"n_parts": 3, "sigma": 2.0, "lam": 1e-4, "metric_rounds": 0, "random_state": 0}
    weights = np.array([4.0, 1.0, 0.5, 0.25, 0.25, 0.0])
    full, diagonal = (BKRR2(**given, metric=form, metric_init=weights).fit(X, y) for form in ("full", "diagonal"))
    close(full.predict(T), diagonal.predict(T), 1e-8)
    raw = BKRR2(**given, metric="diagonal", metric_init=weights / np.where(X.std(axis=0) > 0, X.var(axis=0), 1.0),
                standardize=False)  # fmt: skip
    close(raw.fit(X, y).predict(T), full.predict(T), 1e-8)
    scaled = BKRR2(**given | {"metric_rounds": 10}, standardize=False)
    scale = np.sqrt(weights) / np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
    close(scaled.fit((X - X.mean(axis=0)) * scale, y).predict((T - X.mean(axis=0)) * scale), full.predict(T), 1e-8)


METRICS_REFUSED = {
    "another shape": ({"metric_init": np.ones(3)}, r"shape (3,), and 6 features need (6,) or (6, 6)"),
    "negative": ({"metric_init": -np.ones(6)}, "no negative eigenvalue"),
    "zeros": ({"metric_init": np.zeros((6, 6)), "metric": "full"}, "not all are 0"),
    "nan": ({"metric_init": np.full(6, np.nan)}, "nan or infinite"),
    "an infinite direction": ({"metric_init": np.full((6, 6), np.inf), "metric": "full"}, "nan or infinite"),
    "complex": ({"metric_init": np.ones(6) * 1j}, "an array as `metric_`, or the file of a model, is needed"),
    "words": ({"metric_init": "lengths"}, "lengths: no such model file"),
    "directions for weights": ({"metric_init": np.eye(6)}, "begins with a weight a feature"),
    "no metric": ({"metric_init": np.ones(6), "metric": "none"}, "choose a metric"),
    "no rounds": ({"metric_rounds": 0}, "no metric would be learned"),
}


@pytest.mark.parametrize("case", METRICS_REFUSED)
def test_metrics_that_training_cannot_begin_in(case):
    parameters, message = METRICS_REFUSED[case]
    with pytest.raises(InputError, match=re.escape(message)):
        BKRR2(2, **{"metric": "diagonal", **parameters}, random_state=0).fit(*fast_and_slow(60))


@metrics
@pytest.mark.parametrize("name", ["BKRR2", "TwoLevelKRR", "DKRR"])
def test_csr(name, metric, tmp_path):
    """CSR rows act as dense rows that are scaled, not shifted; with a diagonal metric, a model's rows stay sparse."""
    rng = np.random.default_rng(0)
    X, T = (np.where(rng.random((n, 5)) < 0.5, rng.normal(size=(n, 5)), 0) for n in (160, 40))
    y = np.sin(3 * X[:, 0]) + 0.3 * X[:, 1]
    make, more = (DKRR, {}) if name == "DKRR" else IN_PARTS[name]
    given = {"sigma": 2.0, "lam": 1e-4, **({} if make is DKRR else {"n_parts": 2}), **more}
    given |= {"metric": metric, "metric_rounds": 2, "random_state": 0}
    scale = X.std(axis=0)
    model = make(**given).fit(sp.csr_matrix(X), y)
    other = make(**given, standardize=False).fit(X / scale, y)
    tolerance = 1e-2 if make is TwoLevelKRR else 1e-5  # coarse coefficients are hardly determined
    close(model.metric_errors_, other.metric_errors_, tolerance)
    close(model.metric_, other.metric_, tolerance)
    close(model.predict(sp.csr_matrix(T)), other.predict(T / scale), tolerance)
    close(model.predict(T), model.predict(sp.csr_matrix(T)), 1e-9)
    sparse = metric == "diagonal" or not model.metric_errors_.argmin()
    assert all(sp.issparse(part.X) == sparse for part in model.model_.parts.values())
    model.model_.save(tmp_path / "m.h5")
    loaded = KRRModel.load(tmp_path / "m.h5")
    same_content(loaded, model.model_)
    np.testing.assert_array_equal(loaded.predict(sp.csr_matrix(T)), model.predict(sp.csr_matrix(T)))


@pytest.mark.parametrize("name", ["BKRR2", "TwoLevelKRR", "DKRR"])
def test_float32(name):
    (X, y), (T, _) = fast_and_slow(160), fast_and_slow(50, 1)
    make, more = (DKRR, {}) if name == "DKRR" else IN_PARTS[name]
    given = {"sigma": 2.0, "lam": 1e-3, "metric": "full", "metric_rounds": 1, "random_state": 0}
    given |= {"n_parts": 2} | more | {"lam": 1e-3} if more or name == "BKRR2" else {}
    single, double = (make(**given, dtype=dtype).fit(X, y) for dtype in ("float32", "float64"))
    close(single.metric_, double.metric_, 1e-2)
    close(single.predict(T), double.predict(T), 1e-2)
    assert single.metric_.dtype == np.float64


@pytest.mark.parametrize("make", [BKRR2, DKRR])
def test_weights(make):
    """Rows of weight 0 count as absent, and a weight that all rows have for nothing."""
    (X, y), (T, _) = fast_and_slow(160), fast_and_slow(50, 1)
    given = {"sigma": 2.0, "lam": 1e-4, "metric": "full", "metric_rounds": 2, "random_state": 0}
    given |= {} if make is DKRR else {"n_parts": 2}
    weights = np.arange(160) % 4 / 2
    kept = weights > 0
    got, want = make(**given).fit(X, y, weights), make(**given).fit(X[kept], y[kept], weights[kept])
    np.testing.assert_array_equal(got.metric_, want.metric_)
    np.testing.assert_array_equal(got.predict(T), want.predict(T))
    close(make(**given).fit(X, y, np.full(160, 2.0)).predict(T), make(**given).fit(X, y).predict(T), 1e-6)


def test_parts_of_hardly_a_row():
    """A validation row that is all that its part has cannot be held out: then others are."""
    X, y = fast_and_slow(5)
    for seed in range(6):
        assert np.isfinite(BKRR2(4, metric="full", random_state=seed).fit(X, y).metric_errors_).all()


@pytest.mark.parametrize("metric", ["none", "diagonal"])
def test_auto(metric):
    """The smallest error over the kernels is chosen; each kernel's errors are those of the kernel alone."""
    X, y = fast_and_slow(90)
    y = y + np.abs(X[:, 0] - 0.3)
    given = {"sigma": [2, 4], "lam": [1e-5, 1e-3], "random_state": 0, "metric": metric, "metric_rounds": 1}
    for make, more in ((BKRR2, {"n_parts": 2}), (DKRR, {})):
        auto = make(kernel="auto", **given, **more).fit(X, y)
        if metric == "none":
            alone = {kind: make(kernel=kind, **given, **more).fit(X, y) for kind in AUTO}
            for kind, model in alone.items():
                told = [row["validation_mse"] for row in auto.grid_ if row["kernel"] == kind]
                np.testing.assert_allclose(told, [row["validation_mse"] for row in model.grid_], rtol=1e-7)
            least = {kind: min(row["validation_mse"] for row in model.grid_) for kind, model in alone.items()}
            assert auto.model_.like.kind == min(least, key=least.get)
            close(auto.predict(X), alone[auto.model_.like.kind].predict(X), 1e-6)
        chosen = min(auto.grid_, key=lambda row: row["validation_mse"])
        assert auto.model_.like.kind == chosen["kernel"]
        assert (auto.sigma_, auto.lam_) == (chosen["sigma"], chosen["lambda"])


def test_auto_of_two_levels(tmp_path):
    """The coarse model has a kernel of its own, in the report and in the file."""
    X, y = fast_and_slow(160)
    model = TwoLevelKRR(2, kernel="auto", **COARSE, random_state=0).fit(X, y)
    assert model.model_.coarse.kernel.kind == model.params_["coarse_kernel"]
    assert {row["coarse_kernel"] for row in model.grid_} == {row["kernel"] for row in model.grid_} == set(AUTO)
    model.model_.save(tmp_path / "m.h5")
    np.testing.assert_array_equal(KRRModel.load(tmp_path / "m.h5").predict(X), model.predict(X))


@pytest.mark.parametrize("select", ["validation", "loo"])
def test_natural_widths_of_auto(select):
    X, y = fast_and_slow(80)
    model = BKRR2(1, kernel="auto", sigma=None, lam=[1e-4, 1e-2], select=select, random_state=0).fit(X, y)
    assert {row["kernel"]: row["sigma"] for row in model.grid_} == dict.fromkeys(AUTO[:3], 6**0.5) | {"l1": 6.0}


# -- checkpoints -------------------------------------------------------------------------------------

CHECKPOINTS = {
    "bkrr2": (bkrr2, RidgeOptions(partitions=2, sigma=(1.0, 2.0), metric="full", metric_rounds=2, seed=1)),
    "soft": (bkrr2, RidgeOptions(partitions=2, sigma=(2.0,), route="soft", metric="diagonal", metric_rounds=1, seed=1)),
    "dkrr": (dkrr, RidgeOptions(sigma=(1.0, 2.0), metric="diagonal", metric_rounds=2, seed=1)),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_interrupted_anywhere(name, monkeypatch, tmp_path):
    """Killed when it has made k systems, it makes only the others, and ends with the same bits."""
    X, y = fast_and_slow(80)
    method, options = CHECKPOINTS[name]
    place, counted = (scalapack.BlockCyclic, "cholesky") if name == "dkrr" else (PartSystem, "__init__")
    calls = interruptible(monkeypatch, place, counted)
    undisturbed = method(Dataset(X.copy(), y), options)
    total = calls.made
    for k in sorted({0, 2, total // 2, total - 1}):
        kept = replace(options, checkpoint=Checkpoint(tmp_path / str(k)))
        calls.made, calls.last = 0, k
        with pytest.raises(Interrupted):
            method(Dataset(X.copy(), y), kept)
        calls.made, calls.last = 0, -1
        resumed = method(Dataset(X.copy(), y), kept)
        assert calls.made == total - k
        assert resumed.errors == undisturbed.errors
        same_content(resumed.model, undisturbed.model)
        assert resumed.grid == undisturbed.grid
    message = refusal(method, Dataset(X.copy(), y), replace(kept, metric_rounds=3))
    assert f"metric_rounds was {options.metric_rounds} there and is 3 here" in message
