"""Defaults: estimators and commands choose alike, on few rows too, and parts have the route that suits them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from helpers.checks import refusal
from helpers.commands import reported
from helpers.data import split_rows
from sklearn.kernel_ridge import KernelRidge

import cakrr
from cacore.comm import Communicator
from cacore.data.shuffle import Shuffle
from cacore.data.validation import shared_seed
from cakrr import BKRR2, DKRR, BKRR2Classifier, KRRModel, TwoLevelKRR
from cakrr.options import RidgeOptions
from casvm import CASVC, CASVR
from casvm.model.svr_model import SVRModel
from partition import KMeans, RandomPartition

REGRESSORS = ["BKRR2", "KKRR2", "DCKRR", "BKRR", "KKRR", "TwoLevelKRR", "DKRR"]
CLASSIFIERS = [f"{name}Classifier" for name in REGRESSORS]


def waves(n, seed=0, d=3):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=n)


@pytest.mark.parametrize("name", ["BKRR2", "DKRR", "TwoLevelKRR"])
def test_an_estimator_chooses_as_its_command_does(name, inputs, tmp_path):
    method = name.lower().removesuffix("krr") if name == "TwoLevelKRR" else name.lower()
    seed = shared_seed(0, Communicator())
    words = [inputs / "good.h5", "--seed", str(seed), "--model", tmp_path / "m.h5"]
    made = reported(f"cakrr.{method}", words, tmp_path)
    (X, y), (T, _) = split_rows("train"), split_rows("test")
    model = getattr(cakrr, name)(random_state=0).fit(X, y)
    assert (model.sigma_, model.lam_) == (made["params"]["sigma"], made["params"]["lambda"])
    assert [row["validation_mse"] for row in model.grid_] == pytest.approx([r["validation_mse"] for r in made["grid"]])
    np.testing.assert_allclose(model.predict(T), KRRModel.load(tmp_path / "m.h5").predict(T), rtol=1e-9)


@pytest.mark.parametrize("make", [BKRR2, BKRR2Classifier, TwoLevelKRR])
def test_number_of_parts(make, tuned):
    tuned(rows_per_part=40)
    X, y = waves(90)
    y = y > 0 if make is BKRR2Classifier else y
    few = {"centers": 10} if make is TwoLevelKRR else {}
    assert make(**few, random_state=0).fit(X, y).n_parts_ == 3
    assert make(2, **few, n_divisions=2, random_state=0).fit(X, y).n_parts_ == 2


# -- few rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [BKRR2, DKRR])
def test_few_rows_are_compared_on_folds(make):
    X, y = waves(53)
    model = make(standardize=False, random_state=3).fit(X, y)
    fold = Shuffle(53, shared_seed(3, Communicator())).position(np.arange(53)) * 5 // 53
    y = y - y.mean()
    for row in model.grid_:
        left = np.zeros(53)
        for number in range(5):
            learn = fold != number
            ridge = KernelRidge(alpha=row["lambda"] * learn.sum(), kernel="rbf", gamma=1 / (2 * row["sigma"] ** 2))
            left[~learn] = ridge.fit(X[learn], y[learn]).predict(X[~learn])
        assert row["validation_mse"] == pytest.approx(np.mean((left - y) ** 2), rel=1e-6)
    best = min(model.grid_, key=lambda row: row["validation_mse"])
    assert (model.sigma_, model.lam_) == (best["sigma"], best["lambda"])


@pytest.mark.parametrize(
    ("given", "n", "folds"),
    [
        ({}, 3999, 5), ({}, 4000, 1), ({}, 3, 3), ({"cv": 3}, 5000, 3), ({"sigma": (1.0, 2.0)}, 99, 1),
        ({"validation_fraction": 0.3}, 99, 1), ({"select": "loo"}, 99, 1), ({"wide": False}, 99, 1),
        ({"metric": "full"}, 99, 1),
    ],
)  # fmt: skip
def test_number_of_folds(given, n, folds):
    assert RidgeOptions(**{"wide": True, **given}).folds(n) == folds


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressions_of_very_few_rows(name):
    make = getattr(cakrr, name)
    for n in (2, 3, 5, 10):
        X, y = waves(n)
        assert np.isfinite(make(random_state=0).fit(X, y).predict(X)).all()
        assert np.isfinite(make(random_state=0).fit(X[:, :1], y).predict(X[:, :1])).all()
    np.testing.assert_allclose(make(random_state=0).fit(X, np.full(10, 3.0)).predict(X), 3.0)
    refusal(make().fit, X[:1], y[:1], match="n_samples = 1")
    if name != "DKRR":
        refusal(make(10).fit, X, y, match="parts of one row leave no rows to validate on; ask for fewer parts")


@pytest.mark.parametrize("name", [*CLASSIFIERS, "CASVC"])
def test_classifications_of_very_few_rows(name):
    make = CASVC if name == "CASVC" else getattr(cakrr, name)
    X, _ = waves(9)
    for labels in (np.array([0, 1]), np.arange(6) % 2, np.array(list("abc") * 3)):
        model = make(random_state=0).fit(X[: len(labels)], labels)
        assert set(model.predict(X)) <= set(labels)


def test_unsolved_pairs_of_the_default_grid_give_no_warning():
    X, y = np.repeat(waves(30)[0], 2, axis=0), waves(60)[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = DKRR(lam=1e-300, kernel="sigmoid", random_state=0)
        refusal(model.fit, X, y, match="no pair of the grid could be solved")
        model = BKRR2(1, lam=[1e-300, 1e-3], random_state=0).fit(X, y)
    assert any(row["validation_mse"] is None for row in model.grid_)
    with pytest.warns(UserWarning, match="left out, K \\+ lambda m I is not positive definite"):
        BKRR2(1, sigma=[2.0, 50.0], lam=[1e-300, 1e-3], random_state=0).fit(X, y)


# -- parts of SVMs ----------------------------------------------------------------------------------------------


class Dealt(RandomPartition):
    """Random parts by another name."""


class Near(KMeans):
    """Clusters by another name."""


@pytest.mark.parametrize(
    ("partitioner", "route"),
    [
        (None, "nearest"), ("kmeans", "nearest"), ("fcfs", "nearest"), ("kbalance", "nearest"), ("random", "all"),
        (Dealt(3), "all"), (Near(3), "nearest"),
    ],
)  # fmt: skip
def test_route_that_suits_the_parts(partitioner, route):
    X, y = waves(60)
    given = {} if partitioner is None else {"partitioner": partitioner}
    for make, targets in ((CASVC, y > 0), (CASVR, y)):
        model = make(3, **given, random_state=0).fit(X, targets)
        own = make(3, **given, route=route, random_state=0).fit(X, targets)
        assert model.model_.route == own.model_.route == route
        np.testing.assert_array_equal(model.predict(X), own.predict(X))
    assert CASVC(3, **given, route="soft", random_state=0).fit(X, y > 0).model_.route == "soft"


def test_default_partitioners():
    X, y = waves(60)
    one, other = CASVC(3, random_state=0), CASVC(3, partitioner="kmeans", random_state=0)
    np.testing.assert_array_equal(one.fit(X, y > 0).centers_, other.fit(X, y > 0).centers_)
    one, other = CASVR(3, random_state=0), CASVR(3, partitioner="kbalance", random_state=0)
    np.testing.assert_array_equal(one.fit(X, y).centers_, other.fit(X, y).centers_)


@pytest.mark.parametrize(
    ("words", "route"),
    [
        (["casvm.casvm"], "all"), (["casvm.casvm", "--route", "nearest"], "nearest"), (["casvm.cpsvm"], "nearest"),
        (["casvm.svr"], "nearest"), (["casvm.svr", "--partitioner", "random"], "all"),
    ],
)  # fmt: skip
def test_routes_of_commands(words, route, inputs, tmp_path):
    program, *more = words
    given = [*more, "--partitions", "3", "--C", "1", "--model", tmp_path / "m.h5"]
    made = reported(program, [inputs / "three.h5", *given], tmp_path)
    assert made["params"]["route"] == route
    if program == "casvm.svr":
        assert SVRModel.load(tmp_path / "m.h5").route == route
