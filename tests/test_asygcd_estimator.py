"""Asy-GCD as an estimator: attributes, gaps, weights, warm starts, limits, and what it prints.

What it shares with the other classifiers is in test_svm_classifiers.py, its model files in test_saved_models.py.
"""

from __future__ import annotations

import re
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.asygcd_fits import GAMMA, TOL, fitted, is_solution, updates
from helpers.checks import limit_warning, near
from helpers.data import clouds, formats
from helpers.references import violations
from sklearn.base import clone
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from asygcd import AsyGCDModel, AsyGCDSVC


def test_composes():
    X, y = clouds(k=3)
    search = GridSearchCV(AsyGCDSVC(threads=2), {"C": [1e-2, 1.0], "gamma": [0.3, 1e3]}, cv=3).fit(X, y)
    assert search.best_params_["gamma"] == 0.3
    pipe = make_pipeline(StandardScaler(), AsyGCDSVC(threads=1))
    scaled = StandardScaler().fit_transform(X)
    alone = AsyGCDSVC(threads=1).fit(scaled, y)
    near(pipe.fit(X, y).decision_function(X), alone.decision_function(scaled), 1e-12)
    found = GridSearchCV(pipe, {"asygcdsvc__C": [0.1, 1.0], "asygcdsvc__multi_class": ["ovr", "ovo"]}, cv=3).fit(X, y)
    assert found.best_score_ == pytest.approx(found.cv_results_["mean_test_score"].max())
    assert found.score(X, y) > 0.6


# -- what is known after a fit -----------------------------------------------------------------------


@formats
@pytest.mark.parametrize("multi_class", ["ovr", "ovo"])
@pytest.mark.parametrize("k", [2, 3, 4])
def test_attributes(k, multi_class, csr):
    X, y = clouds(160, k=k, csr=csr)
    names = np.array(["d", "a", "c", "b"])[y]
    model = fitted(X, names, threads=2, C=2.0, multi_class=multi_class)
    m = 1 if k == 2 else k if multi_class == "ovr" else k * (k - 1) // 2
    assert model.classes_.tolist() == sorted(set(names))
    s = len(model.support_)
    assert model.dual_coef_.shape == (m, s)
    assert model.dual_coef_.any(axis=0).all()
    assert (np.diff(model.support_) > 0).all()
    assert sp.issparse(model.support_vectors_) == csr
    assert model.support_vectors_.shape == (s, 4)
    assert abs(model.support_vectors_ - X[model.support_]).sum() == 0
    assert model.intercept_.tolist() == [0.0] * m
    for name in ("objective_", "gap_", "n_iter_"):
        assert getattr(model, name).shape == (m,)
    assert (model.objective_ > 0).all()
    assert ((model.gap_ >= 0) & (model.gap_ <= TOL)).all()
    assert (model.n_iter_ > 0).all()
    assert model.fit_status_ == 0
    for name in ("cache_hits_", "cache_misses_", "block_sizes_"):
        assert getattr(model, name).shape == (2,)
        assert getattr(model, name).dtype == np.int64
        assert (getattr(model, name) > 0).all()
    last_pair = np.isin(names, model.classes_[-2:]).sum()
    assert model.block_sizes_.sum() == (last_pair if multi_class == "ovo" else 160)
    assert model.n_features_in_ == 4
    assert isinstance(model.model_, AsyGCDModel)
    # Of every decision, a coefficient's sign is the class, and its size at most C.
    assert np.abs(model.dual_coef_).max() == 2.0
    code = np.searchsorted(model.classes_, names[model.support_])
    for column, coefficients in enumerate(model.dual_coef_):
        positive = 1 if k == 2 else column
        if k > 2 and multi_class == "ovo":
            positive, other = list(combinations(range(k), 2))[column]
            assert (coefficients[~np.isin(code, [positive, other])] == 0).all()
        assert (coefficients[code == positive] >= 0).all()
        assert (coefficients[code != positive] <= 0).all()
    decisions = rbf_kernel(X, model.support_vectors_, gamma=GAMMA) @ model.dual_coef_.T
    near(model.model_.decisions(X), decisions, 1e-9)
    if k == 2 or multi_class == "ovr":
        near(model.decision_function(X).reshape(160, -1), decisions, 1e-9)


def check_gap(model, X, y, precision, rel):
    """The reported gap and objective are those computed by hand."""
    s = np.where(y, 1.0, -1.0)
    beta = np.zeros(150)
    beta[model.support_] = model.dual_coef_[0]
    alpha, g = beta * s, s * (rbf_kernel(X, gamma=GAMMA) @ beta) - 1
    assert model.gap_[0] == pytest.approx(violations(alpha, g, 1.0).max(), abs=precision)
    assert model.objective_[0] == pytest.approx(alpha.sum() - 0.5 * alpha @ (g + 1), rel=rel)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("update", ["owned", "atomic"])
@pytest.mark.parametrize("tol", [1e-2, 1e-3, 1e-6])
def test_gap(tol, update, threads):
    X, y = clouds()
    model = fitted(X, y, update=update, threads=threads, tol=tol)
    assert 0 <= model.gap_[0] <= tol
    check_gap(model, X, y, 1e-12, 1e-12)


@updates
@pytest.mark.parametrize("threads", [1, 2])
def test_gap_at_a_limit(threads, update):
    """Also where it stopped half way."""
    X, y = clouds()
    model = AsyGCDSVC(gamma=GAMMA, update=update, threads=threads, max_iter=90, tol=1e-6)
    limit_warning(lambda: model.fit(X, y))
    check_gap(model, X, y, 1e-9, 1e-9)


def test_gap_of_the_stochastic_form():
    """Where it claims to have met the tolerance, it has met it."""
    X, y = clouds()
    for seed in range(12):
        model = fitted(X, y, update="stochastic", tol=1e-3, gamma=0.05, random_state=seed)
        assert model.fit_status_ == int(model.gap_[0] > 1e-3)


def test_columns_are_shared():
    """One against the rest: no column is computed twice if there is room for all."""
    X, y = clouds(k=4)
    assert fitted(X, y, update="atomic").cache_misses_.sum() <= 150
    assert fitted(X, y).cache_misses_.sum() <= 150


def test_more_threads_than_rows():
    X, y = clouds(6, k=3)
    for multi_class in ("ovr", "ovo"):
        model = fitted(X, y, threads=9, multi_class=multi_class)
        size = 6 if multi_class == "ovr" else 4
        assert model.block_sizes_.tolist() == [1] * size
        assert len(model.cache_hits_) == len(model.cache_misses_) == size
        np.testing.assert_allclose(model.objective_, fitted(X, y, multi_class=multi_class).objective_, rtol=1e-6)


def test_threads_by_default():
    X, y = clouds()
    assert 1 <= len(fitted(X, y, threads=None).block_sizes_) <= 64
    assert len(fitted(X, y, threads=np.int32(2)).block_sizes_) == 2


# -- weights ---------------------------------------------------------------------------------------------


@formats
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("multi_class", ["ovr", "ovo"])
@pytest.mark.parametrize("threads", [1, 2])
def test_weights_are_repetitions(threads, multi_class, k, csr):
    X, y = clouds(k=k, csr=csr)
    w = np.random.default_rng(1).integers(0, 4, 150)
    twice = np.repeat(np.arange(150), w)
    given = {"threads": threads, "multi_class": multi_class, "C": 0.4}
    weighted, repeated = fitted(X, y, w, **given), fitted(X[twice], y[twice], **given)
    np.testing.assert_allclose(weighted.objective_, repeated.objective_, rtol=1e-6)
    near(weighted.model_.decisions(X), repeated.model_.decisions(X), 1e-4)
    assert (w[weighted.support_] > 0).all()


@formats
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("multi_class", ["ovr", "ovo"])
@pytest.mark.parametrize("standardize", [False, True])
def test_weight_zero_is_absence(standardize, multi_class, k, csr):
    """The same bits on one thread; and the row numbers are the caller's."""
    X, y = clouds(k=k, csr=csr)
    w = np.random.default_rng(0).integers(0, 3, 150).astype(float)
    kept = np.flatnonzero(w > 0)
    given = {"gamma": "scale", "multi_class": multi_class, "standardize": standardize}
    with_zeros, without = fitted(X, y, w, **given), fitted(X[kept], y[kept], w[kept], **given)
    np.testing.assert_array_equal(with_zeros.decision_function(X), without.decision_function(X))
    np.testing.assert_array_equal(with_zeros.support_, kept[without.support_])
    np.testing.assert_array_equal(with_zeros.dual_coef_, without.dual_coef_)
    if not standardize:
        assert abs(with_zeros.support_vectors_ - X[with_zeros.support_]).sum() == 0
    if multi_class == "ovr":
        assert with_zeros.block_sizes_.sum() == len(kept)


@pytest.mark.parametrize("threads", [1, 2])
def test_weights_scale_the_bound(threads):
    """The bound of each row is C times its weight and its class's weight."""
    X, y = clouds()
    w = np.random.default_rng(1).uniform(0.1, 3, 150)
    K = rbf_kernel(X, gamma=GAMMA)
    model = fitted(X, y, w, C=0.3, class_weight={1: 2.5}, threads=threads)
    is_solution(model, K, y, K, X, C=0.3 * w * np.where(y, 2.5, 1.0))
    assert model.class_weight_.tolist() == [1.0, 2.5]


@pytest.mark.parametrize("multi_class", ["ovr", "ovo"])
@pytest.mark.parametrize("weighted", [False, True], ids=["rows alike", "rows weighted"])
def test_class_weight(weighted, multi_class):
    X, y = clouds(k=3)
    kept = (y > 0) | (np.arange(150) % 4 == 0)
    X, y = X[kept], y[kept]
    names = np.array(["rare", "common", "other"])[y]
    w = np.random.default_rng(1).uniform(0.5, 2, len(y)) if weighted else np.ones(len(y))
    given = {"multi_class": multi_class, "C": 0.5}
    by_class = fitted(X, names, w, class_weight={"rare": 4.0, "other": 0.5}, **given)
    by_row = fitted(X, names, w * np.array([4.0, 1.0, 0.5])[y], **given)
    near(by_class.decision_function(X), by_row.decision_function(X), 1e-4)
    np.testing.assert_allclose(by_class.objective_, by_row.objective_, rtol=1e-6)
    count = np.bincount(y, w)
    balanced = fitted(X, names, w, class_weight="balanced", **given)
    by_row = fitted(X, names, w * (count.sum() / (3 * count))[y], **given)
    near(balanced.decision_function(X), by_row.decision_function(X), 1e-4)
    np.testing.assert_allclose(balanced.class_weight_, (count.sum() / (3 * count))[[1, 2, 0]])  # by label


# -- warm starts -------------------------------------------------------------------------------------------


@updates
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("k", "multi_class"), [(2, "ovr"), (3, "ovr"), (3, "ovo")])
def test_warm_start(k, multi_class, threads, update):
    X, y = clouds(k=k)
    given = {"tol": 1e-4, "threads": threads, "update": update, "multi_class": multi_class}
    model = fitted(X, y, warm_start=True, **given)
    first, objective, decisions = model.n_iter_.sum(), model.objective_, model.decision_function(X)
    model.fit(X, y)
    if update != "stochastic" or threads == 1:  # on two threads it changes much that needs no change
        assert model.n_iter_.sum() < 0.1 * first
    np.testing.assert_allclose(model.objective_, objective, rtol=1e-5)
    near(model.decision_function(X), decisions, 1e-2)
    assert model.fit_status_ == 0


def test_warm_start_of_another_problem():
    """Larger and smaller C, another kernel, labels turned round, rows without weight: a start, and the solution."""
    X, y = clouds()
    w = (np.arange(150) % 3 > 0).astype(float)
    model = fitted(X, y, warm_start=True, C=2.0)
    for change, labels, weights in (
        ({"C": 3.0}, y, None), ({"C": 0.5}, y, None), ({"gamma": 1.0}, y, None), ({"update": "atomic"}, 1 - y, None),
        ({"update": "owned"}, y, w), ({"threads": 2}, y, None),
    ):  # fmt: skip
        model.set_params(**change).fit(X, labels, weights)
        fresh = clone(model).fit(X, labels, weights)
        assert model.objective_[0] == pytest.approx(fresh.objective_[0], rel=1e-6)
        near(model.decision_function(X), fresh.decision_function(X), 1e-4)


def test_warm_start_near_by():
    X, y = clouds(300)
    cold = fitted(X, y, C=2.1, tol=1e-3)
    warm = fitted(X, y, C=2.0, tol=1e-3, warm_start=True).set_params(C=2.1).fit(X, y)
    assert warm.n_iter_[0] < 0.7 * cold.n_iter_[0]


def test_warm_start_begins_anew():
    """Other rows in number, other classes, or other decisions: as if it had never been trained, bit by bit."""
    X, y = clouds(k=3)
    others = [
        ({}, X[:-1], y[:-1]), ({}, X, np.where(y == 2, 5, y)), ({}, X, np.array(["a", "b", "c"])[y]),
        ({}, X, y % 2), ({"multi_class": "ovo"}, X, y),
    ]  # fmt: skip
    for change, Z, labels in others:
        model = fitted(X, y, warm_start=True).set_params(**change).fit(Z, labels)
        fresh = clone(model).fit(Z, labels)
        np.testing.assert_array_equal(model.n_iter_, fresh.n_iter_)
        np.testing.assert_array_equal(model.dual_coef_, fresh.dual_coef_)


def test_without_warm_start():
    X, y = clouds()
    model = fitted(X, y)
    first = model.n_iter_.tolist()
    assert model.fit(X, y).n_iter_.tolist() == first


# -- limits, and what is printed -----------------------------------------------------------------------------


@updates
@pytest.mark.parametrize("limit", [{"max_iter": 0}, {"max_iter": 1}, {"max_iter": 40}, {"max_time": 0.05}], ids=str)
@pytest.mark.parametrize("k", [2, 3])
def test_not_converged(k, limit, update):
    """One line: how many updates, and how far it is from the tolerance. Nothing ends soon at this scale."""
    X, y = clouds(k=k)
    model = AsyGCDSVC(threads=1, kernel="linear", C=1e3, tol=1e-9, update=update, **limit)
    message = limit_warning(lambda: model.fit(1e3 * X, y))
    assert model.fit_status_ == 1
    worst = model.gap_.argmax()
    at = f"stopped after {model.n_iter_[worst]:,} updates at a violation of {model.gap_[worst]:.3g}"
    assert at in message
    assert ("3 of 3 problems" in message) == (k == 3)
    if "max_iter" in limit and update != "stochastic":
        assert model.n_iter_.tolist() == [limit["max_iter"]] * (1 if k == 2 else 3)
    assert np.isfinite(model.decision_function(X)).all()
    assert set(model.predict(X)) <= set(range(k))


def test_enough_is_not_warned_of():
    X, y = clouds()
    assert fitted(X, y, max_iter=10**6, max_time=1e6).fit_status_ == 0


@pytest.mark.parametrize("k", [2, 3])
def test_verbose(k, capsys, tuned):
    """About once a second, of which many pass here between two looks."""
    X, y = clouds(k=k)
    fitted(X, y)
    assert capsys.readouterr() == ("", "")
    seconds = iter(range(0, 10**9, 2))
    tuned(verbose_time=SimpleNamespace(perf_counter=lambda: next(seconds)))
    model = fitted(X, y, verbose=True)
    out, err = capsys.readouterr()
    assert err == ""
    pattern = re.compile(r"([\d,]+) updates, violation (\S+), dual objective (\S+)")
    lines = [pattern.fullmatch(line).groups() for line in out.splitlines()]
    assert len(lines) >= len(model.n_iter_)  # the last look at each problem is one
    last = iter(lines)
    for updates_, gap, objective in zip(model.n_iter_, model.gap_, model.objective_, strict=True):
        assert any(
            line[:2] == (f"{updates_:,}", f"{gap:.3g}") and float(line[2]) == pytest.approx(objective, rel=1e-6)
            for line in last
        )


def test_verbose_for_less_than_a_second(capsys, tuned):
    tuned(verbose_time=SimpleNamespace(perf_counter=lambda: 0.0))
    fitted(*clouds(), verbose=True)
    assert capsys.readouterr() == ("", "")


def test_verbose_after_a_warm_start(capsys, tuned):
    """The objective that is shown begins with that of the start."""
    seconds = iter(range(0, 10**9, 2))
    X, y = clouds()
    model = fitted(X, y, warm_start=True)
    tuned(verbose_time=SimpleNamespace(perf_counter=lambda: next(seconds)))
    model.set_params(verbose=True, C=1.5).fit(X, y)
    shown = float(capsys.readouterr().out.splitlines()[-1].split()[-1])
    assert shown == pytest.approx(model.objective_[0], rel=1e-6)
