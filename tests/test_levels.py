"""Columns for the levels of features, against scikit-learn's encoder and rows that were encoded by hand."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import close, near, refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder

from cacore.comm import Communicator
from cacore.data.metric import described
from cacore.data.standardize import Levels, Standardizer, levels_of
from cakrr import BKRR2, DKRR, BKRR2Classifier, SubsetKRR, TwoLevelKRR
from cakrr.ridge_model import KRRModel

ALONE = Communicator()
CODED = (1, 4)  # features with levels


def rows(n=160, seed=0):
    """Normal numbers, three codes, two codes, 21 codes, four codes, halves and a constant; targets depend on codes."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([
        rng.normal(size=n), rng.integers(0, 3, n), rng.integers(0, 2, n), np.arange(n) % 21,
        rng.choice([-7, 0, 2, 9], n), rng.integers(0, 5, n) / 2, np.full(n, 4),
    ]).astype(np.float64)  # fmt: skip
    y = np.array([1.0, -2.0, 0.5])[X[:, 1].astype(int)] * X[:, 0] + (X[:, 4] == 2)
    return X, y


def by_hand(X, train, weights=None):
    """Standardised rows, with a column per level of the coded features, whose variances add up to 1."""
    mean, scale = np.average(train, axis=0, weights=weights), None
    scale = np.sqrt(np.average((train - mean) ** 2, axis=0, weights=weights))
    columns = []
    for j in range(X.shape[1]):
        if j not in CODED:
            columns.append((X[:, j] - mean[j]) / (scale[j] if scale[j] > 1e-9 else 1.0))
            continue
        values = np.unique(train[:, j])
        shares = np.array([np.average(train[:, j] == value, weights=weights) for value in values])
        columns += list(((X[:, [j]] == values) - shares).T / np.sqrt((shares * (1 - shares)).sum()))
    return np.column_stack(columns)


def test_features_of_few_whole_numbers_have_levels():
    X, _ = rows()
    levels = levels_of(X, ALONE)
    np.testing.assert_array_equal(levels.feature, [0, 1, 1, 1, 2, 3, 4, 4, 4, 4, 5, 6])
    np.testing.assert_array_equal(levels.value[levels.indicates], [0, 1, 2, -7, 0, 2, 9])
    assert levels.n_features == 7
    encoder = OneHotEncoder(sparse_output=False, handle_unknown="ignore").fit(X[:, CODED])
    T = np.vstack([X, X[:1] + 1])  # 10 is no level
    got = levels.apply(T.astype(np.float32))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got[:, levels.indicates], encoder.transform(T[:, CODED]))
    np.testing.assert_array_equal(got[:, ~levels.indicates], np.delete(T, CODED, axis=1).astype(np.float32))
    assert levels_of(X[:, [0, 2, 3, 5, 6]], ALONE) is None
    assert levels_of(2.0**25 * X[:, [1]], ALONE) is None  # single precision would not tell neighbours apart


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(-50, 50), min_size=1, max_size=60))
def test_a_known_value_has_one_column(values):
    X = np.array(values, np.float64)[:, None]
    levels = levels_of(X, ALONE)
    assert (levels is not None) == (3 <= len(set(values)) <= 20)
    if levels is not None:
        np.testing.assert_array_equal(levels.apply(X).sum(axis=1), 1.0)
        np.testing.assert_array_equal(levels.apply(X) @ levels.value, X[:, 0])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_variances_of_a_feature_add_up_to_1(weighted, dtype):
    X, _ = rows()
    w = np.linspace(0.0, 2.0, len(X)) if weighted else None  # the first row counts as absent
    got = Standardizer.with_levels(X.astype(dtype), ALONE, w)
    expected = by_hand(X, X, w)
    near(got.apply(X.astype(dtype)), expected, 1e-12 if dtype == "float64" else 1e-5)
    near(got.by_feature(np.average(expected**2, axis=0, weights=w)), np.append(np.ones(6), 0.0), 1e-12)


MAKE = {
    "bkrr2": lambda **given: BKRR2(3, sigma=2.0, lam=1e-3, random_state=0, **given),
    "dkrr": lambda **given: DKRR(sigma=2.0, lam=1e-3, **given),
    "subset": lambda **given: SubsetKRR(centers=40, sigma=2.0, lam=1e-4, random_state=0, **given),
    "twolevel": lambda **given: TwoLevelKRR(3, centers=30, sigma=2.0, lam=1e-3, random_state=0, **given),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", MAKE)
def test_the_same_as_on_rows_encoded_by_hand(name, weighted, tmp_path):
    (X, y), (T, _) = rows(), rows(50, 1)
    w = np.linspace(0.5, 2.0, len(X)) if weighted else None
    model = MAKE[name](scaling="levels").fit(X, y, sample_weight=w)
    ref = MAKE[name](standardize=False).fit(by_hand(X, X, w), y, sample_weight=w)
    close(model.predict(T), ref.predict(by_hand(T, X, w)), 1e-9)
    assert model.n_features_in_ == model.model_.n_features == 7
    assert model.model_.n_columns == 12
    refusal(model.model_.predict, by_hand(T, X), match="12 features in the rows to predict, 7 in the model")
    model.save(tmp_path / "model.h5")
    np.testing.assert_array_equal(KRRModel.load(tmp_path / "model.h5").predict(T), model.predict(T))


def test_classes():
    (X, y), (T, t) = rows(400), rows(200, 1)
    plain, coded = (BKRR2Classifier(1, lam=1e-4, scaling=one).fit(X, y > 0) for one in ("deviation", "levels"))
    assert coded.score(T, t > 0) > plain.score(T, t > 0)


def test_levels_pay_where_codes_have_no_order():
    X, y = rows(600)
    X[:, 1] = np.array([1.0, 0.0, 2.0])[X[:, 1].astype(int)]
    (X, T), (y, t) = np.split(X, [400]), np.split(y, [400])
    plain, coded = (BKRR2(1, lam=1e-4, scaling=one).fit(X, y).predict(T) for one in ("deviation", "levels"))
    assert np.square(coded - t).mean() < 0.8 * np.square(plain - t).mean()


def test_importances_are_of_the_features():
    X, y = rows()
    for metric, shape in [("diagonal", (12,)), ("full", (12, 12))]:
        model = BKRR2(1, sigma=2.0, lam=1e-3, metric=metric, metric_rounds=1, scaling="levels").fit(X, y)
        assert model.metric_.shape == shape
        assert model.feature_importances_.shape == (7,)
        near(model.feature_importances_.sum(), 1.0, 1e-12)
    unmapped = replace(model.model_.standardizer, root=None)
    near(described("full", [0.5], unmapped, 7)["importances"], np.full(7, 1 / 7), 1e-12)


def test_standard_deviations_are_those_of_rows_encoded_by_hand():
    (X, y), (T, _) = rows(), rows(50, 1)
    model = BKRR2(2, sigma=2.0, lam=1e-2, scaling="levels", keep_factors=True, random_state=0).fit(X, y)
    ref = BKRR2(2, sigma=2.0, lam=1e-2, standardize=False, keep_factors=True, random_state=0).fit(by_hand(X, X), y)
    close(model.predict(T, return_std=True)[1], ref.predict(by_hand(T, X), return_std=True)[1], 1e-7)


def test_without_levels_nothing_changes():
    X, y = rows()
    X = X[:, [0, 2, 3]]
    plain, coded = (
        BKRR2(2, sigma=2.0, lam=1e-3, random_state=0, scaling=one).fit(X, y) for one in ("deviation", "levels")
    )
    np.testing.assert_array_equal(plain.predict(X), coded.predict(X))
    assert coded.model_.standardizer.levels is None


REFUSED = {
    "csr": (BKRR2(2, scaling="levels"), sp.csr_matrix, "scaling levels: columns for levels need dense rows in memory"),
    "not scaled": (
        BKRR2(2, scaling="levels", standardize=False),
        np.array,
        "features are only scaled with standardize",
    ),
    "points": (SubsetKRR(scaling="levels", standardize=False), np.array, "features are only scaled with standardize"),
    "quantiles": (SubsetKRR(scaling="quantile"), np.array, "scaling = 'quantile': it must be one of deviation, levels"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    estimator, form, match = REFUSED[name]
    X, y = rows()
    refusal(estimator.fit, form(X), y, match=match)


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"level_features": np.array([0, 2])}, "level_features alone: levels have features and values"),
        (
            {"level_features": np.array([0, 2]), "level_values": np.zeros(2)},
            "level_features: not the features in their",
        ),
        (
            {"level_features": np.array([1, 1]), "level_values": np.zeros(2)},
            "level_features: not the features in their",
        ),
    ],
)
def test_damaged_arrays_are_refused(arrays, match):
    given = {"mean": np.zeros(2), "scale": np.ones(2)}
    refusal(lambda: Standardizer.stored(given | arrays).check(), match=match)
    refusal(Standardizer.stored, arrays, match="without mean")
    fine = {"level_features": np.array([0, 0]), "level_values": np.array([3.0, 4.0])}
    found = Standardizer.stored(given | fine)
    found.check()
    assert isinstance(found.levels, Levels)
    np.testing.assert_array_equal(list(found.arrays), list(given | fine))


@pytest.mark.parametrize("groups", [None, [[0, 1], [4, 5]]])
def test_explanations_are_of_the_features(groups):
    """Values of the features, or groups, add up to the prediction; a feature without an effect has none."""
    (X, y), (T, _) = rows(), rows(20, 1)
    model = BKRR2(2, sigma=2.0, lam=1e-3, scaling="levels", route="soft", random_state=0).fit(X, y)
    found = model.model_.explain(T, background=X[:9], groups=groups)
    assert found.values.shape == (20, 7 if groups is None else 5)
    near(found.base + found.values.sum(axis=1), model.predict(T), 1e-9)
    assert np.abs(found.values[:, 0]).max() > 0.1
    near(found.values[:, -1], np.zeros(20), 1e-12)  # the constant
