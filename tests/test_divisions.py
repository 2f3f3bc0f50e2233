"""Normal scores of the features, and models of several divisions of the rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import close, near, refusal, same_content
from helpers.running import Interrupted, interruptible
from scipy.stats import norm, rankdata
from sklearn.preprocessing import FunctionTransformer

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.standardize import SAMPLE, normal_scores, quantiles_of
from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint
from cacore.run.family import Run
from cacore.run.launch import Training
from cakrr import BKRR2, DCKRR, DKRR, KKRR2, BKRR2Classifier, KRRModel, TwoLevelKRR
from cakrr.bkrr2 import bkrr2
from cakrr.bkrr3 import bkrr3
from cakrr.dkrr import dkrr
from cakrr.options import RidgeOptions
from cakrr.ridge_family import Ridge
from cakrr.solver.local import PartSystem

COARSE = {"centers": 40, "coarse_sigma": 2.0, "coarse_lam": 1e-5}


def heavy(n=300, seed=0):
    """Rows with a heavy tail, a count that is often 0, a constant; targets of their ranks."""
    Z = np.random.default_rng(seed).normal(size=(n, 4))
    X = np.stack([np.exp(2 * Z[:, 0]), np.maximum(0, np.floor(2 * Z[:, 1])), np.full(n, 7.0), Z[:, 3]], axis=1)
    return X, np.sin(2 * Z[:, 0]) + 0.3 * Z[:, 3]


# -- normal scores -------------------------------------------------------------------------------------


def test_scores_are_those_of_ranks():
    """Scores of distinct values are norm.ppf((rank - 1/2) / n), to the accuracy of 1,001 quantiles."""
    x = np.random.default_rng(0).standard_cauchy(size=5000)
    scores = normal_scores(x[:, None], quantiles_of(x[:, None], 0, Communicator()))[:, 0]
    expected = norm.ppf((rankdata(x) - 0.5) / len(x))
    inner = np.abs(expected) < 2
    near(scores[inner], expected[inner], 5e-3)
    near(scores, expected, 0.3)
    np.testing.assert_array_equal(np.argsort(scores, kind="stable")[100:-100], np.argsort(x, kind="stable")[100:-100])


def test_frequent_values_and_constants():
    x = np.concatenate([np.zeros(600), np.arange(1.0, 401.0)])
    X = np.stack([x, np.full(1000, 3.0)], axis=1)
    scores = normal_scores(X, quantiles_of(X, 0, Communicator()))
    near(scores[:600, 0], norm.ppf(0.3), 0.01)
    np.testing.assert_array_equal(scores[:, 1], 0.0)
    beyond = normal_scores(np.array([[-5.0, 2.0], [1e9, 9.0]]), quantiles_of(X, 0, Communicator()))
    np.testing.assert_array_equal(beyond, [[scores[0, 0], 0.0], [scores[-1, 0], 0.0]])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_sample_of_many_rows(dtype):
    X = np.random.default_rng(1).normal(size=(3 * SAMPLE, 2)).astype(dtype)
    given = X.copy()
    scores = normal_scores(X, quantiles_of(X, 0, Communicator()))
    assert scores.dtype == X.dtype
    np.testing.assert_array_equal(X, given)
    inner = np.abs(X) < 2
    assert np.abs(scores - X)[inner].max() < 0.1  # 4 standard errors of a quantile of 10,000


# -- scaling --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [BKRR2, KKRR2, DCKRR, TwoLevelKRR, DKRR])
def test_quantile_is_training_on_scores(make, tmp_path):
    """Training equals a pipeline with the same map in front; the model carries the map, also in its file."""
    (X, y), (T, _) = heavy(), heavy(80, 1)
    given = {"sigma": 2.0, "lam": 1e-3, "random_state": 3, **(COARSE if make is TwoLevelKRR else {})}
    given |= {} if make is DKRR else {"n_parts": 3}
    model = make(**given, scaling="quantile").fit(X, y)
    standard = make(**given).fit(X, y).model_.standardizer
    mapped = FunctionTransformer(lambda A: normal_scores(standard.apply(A), model.model_.standardizer.quantiles))
    plain = make(**given, standardize=False).fit(mapped.transform(X), y)
    close(model.predict(T), plain.predict(mapped.transform(T)), 1e-9)
    model.model_.save(tmp_path / "m.h5")
    same_content(KRRModel.load(tmp_path / "m.h5"), model.model_)


@pytest.mark.parametrize("make", [BKRR2, DKRR])
def test_auto_takes_what_validation_prefers(make):
    (X, y), (T, t) = heavy(), heavy(200, 1)
    given = {"lam": [1e-4, 1e-2], "random_state": 0}
    plain, scored, auto = (make(**given, scaling=one).fit(X, y) for one in ("deviation", "quantile", "auto"))
    assert scored.score(T, t) > plain.score(T, t) + 0.1
    assert auto.params_["scaling"] == "quantile"
    close(auto.predict(T), scored.predict(T), 1e-9)
    linear = np.random.default_rng(0).uniform(-1, 1, size=(300, 2))
    other = make(**given, kernel="linear", scaling="auto").fit(linear, linear @ [1.0, 2.0])
    assert other.params_["scaling"] == "deviation"


def test_the_report_says_what_was_chosen():
    X, y = heavy()
    options = RidgeOptions(partitions=2, sigma=(2.0,), lam=(1e-3,), scaling="auto")
    fitted = bkrr2(Dataset(X, y), options)
    told = Ridge().report(Run(bkrr2, Training(data="rows.h5"), options, Communicator(), 0), fitted)
    assert told["params"]["scaling"] == "quantile"


def test_with_a_metric_and_kernels():
    (X, y), (T, t) = heavy(), heavy(200, 1)
    model = BKRR2(2, kernel="auto", metric="diagonal", metric_rounds=2, scaling="auto", random_state=0).fit(X, y)
    assert model.params_["scaling"] == "quantile"
    assert model.model_.standardizer.quantiles is not None
    assert model.score(T, t) > 0.9


# -- divisions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["nearest", "soft", "all"])
def test_the_mean_of_the_divisions(route):
    """Each division's models are those of a training with its own seed, and the mean of their answers counts."""
    X, y = heavy()
    T = heavy(50, 1)[0]
    options = RidgeOptions(partitions=3, sigma=(2.0,), lam=(1e-3,), route=route, seed=5)
    fitted = bkrr2(Dataset(X.copy(), y), replace(options, divisions=3))
    alone = [bkrr2(Dataset(X.copy(), y), replace(options, seed=5 + i)).model for i in range(3)]
    model = fitted.model
    assert model.divisions == 3
    assert len(model.sizes) == len(model.parts) == len(fitted.seconds) == 9
    close(model.centers, np.concatenate([one.centers for one in alone]), 1e-12)
    for one in alone:
        one.soft = model.soft  # which is chosen on the first division
    close(model.predict(T), np.mean([one.predict(T) for one in alone], axis=0), 1e-10)
    if route == "soft":
        nearest = np.mean([one.predict_routes(T)["nearest"] for one in alone], axis=0)
        close(model.predict_routes(T)["nearest"], nearest, 1e-10)


@pytest.mark.parametrize("make", [DCKRR, KKRR2, TwoLevelKRR])
def test_other_methods(make, tmp_path):
    (X, y), (T, t) = heavy(), heavy(100, 1)
    given = {"n_parts": 4, "sigma": 2.0, "lam": 1e-3, "scaling": "quantile", "random_state": 0}
    given |= COARSE if make is TwoLevelKRR else {}
    several, one = make(**given, n_divisions=4).fit(X, y), make(**given).fit(X, y)
    assert several.score(T, t) > one.score(T, t) - 0.01
    several.model_.save(tmp_path / "m.h5")
    loaded = KRRModel.load(tmp_path / "m.h5")
    np.testing.assert_array_equal(loaded.predict(T), several.predict(T))
    alone = make(**{**given, "n_parts": 1}, n_divisions=4).fit(X, y)
    assert len(alone.sizes_) == 1  # which can be divided in one way only


def test_classes_and_single_precision():
    X, y = heavy()
    labels = np.array(["a", "b", "c"])[np.digitize(y, [-0.5, 0.5])]
    model = BKRR2Classifier(3, sigma=1.0, n_divisions=3, scaling="quantile", dtype="float32", random_state=0)
    assert model.fit(X, labels).score(X, labels) > 0.95
    near(model.predict_proba(X).sum(axis=1), 1.0, 1e-12)


# -- checkpoints -----------------------------------------------------------------------------------------


def test_resumed_to_the_same_bits(monkeypatch, tmp_path):
    X, y = heavy(90)
    options = RidgeOptions(
        partitions=2, sigma=(1.0, 2.0), lam=(1e-3,), scaling="auto", divisions=3, route="soft", seed=1
    )
    calls = interruptible(monkeypatch, PartSystem, "__init__")
    whole = bkrr2(Dataset(X.copy(), y), options)
    total = calls.made
    for k in (1, total // 2, total - 1):
        kept = replace(options, checkpoint=Checkpoint(tmp_path / str(k)))
        calls.made, calls.last = 0, k
        with pytest.raises(Interrupted):
            bkrr2(Dataset(X.copy(), y), kept)
        calls.made, calls.last = 0, -1
        same_content(bkrr2(Dataset(X.copy(), y), kept).model, whole.model)
        assert calls.made == total - k
    assert "divisions was 3 there and is 2 here" in refusal(bkrr2, Dataset(X, y), replace(kept, divisions=2))


# -- what is refused -------------------------------------------------------------------------------------

X4, Y4 = heavy(40)
SPARSE = sp.csr_matrix(X4)
BAD = {
    "a word": (
        BKRR2(scaling="x"),
        X4,
        "one of deviation, quantile, levels, categories, auto",
    ),
    "not scaled": (BKRR2(scaling="auto", standardize=False), X4, "features are only scaled with standardize"),
    "sparse": (BKRR2(scaling="quantile"), SPARSE, "normal scores would make the sparse rows dense"),
    "sparse, exact": (DKRR(scaling="auto"), SPARSE, "normal scores would make the sparse rows dense"),
    "none": (BKRR2(n_divisions=0), X4, "n_divisions = 0: it must be a whole number"),
    "a matrix": (DKRR(kernel="precomputed", scaling="quantile"), X4 @ X4.T, "features are only scaled"),
}


@pytest.mark.parametrize("what", BAD)
def test_refused(what):
    estimator, X, message = BAD[what]
    assert message in refusal(estimator.fit, X, Y4)


@pytest.mark.parametrize("method", [dkrr, bkrr3])
def test_methods_that_divide_once(method):
    options = RidgeOptions(divisions=2, **({} if method is dkrr else {"partitions": 2}))
    assert "divisions = 2: " in refusal(method, Dataset(X4, Y4), options)


@pytest.mark.parametrize("bad", [{"divisions": 2}, {"divisions": 0}, {"divisions": "x"}])
def test_damaged_divisions(bad, tmp_path):
    model = BKRR2(3, random_state=0).fit(X4, Y4).model_
    for name, value in bad.items():
        setattr(model, name, value)
    with pytest.raises(InputError, match="divisions"):
        model._check()
