"""Asy-GCD as an estimator: the dual without a bias, of two and of more classes, weighted, resumed, standardised.

What it shares with the other classifiers is in test_svm_classifiers.py, its model files in test_saved_models.py.
"""

from __future__ import annotations

import re
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import limit_warning, near, refusal
from helpers.data import clouds, dense, formats, unsorted
from helpers.references import descend, violations
from sklearn.base import clone
from sklearn.metrics.pairwise import linear_kernel, polynomial_kernel, rbf_kernel, sigmoid_kernel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from asygcd import AsyGCDModel, AsyGCDSVC
from cacore.machine.memory import GIB

updates = pytest.mark.parametrize("update", ["owned", "atomic", "stochastic"])
TOL, GAMMA = 1e-6, 0.3


def fitted(X, y, weights=None, **given):
    """On one thread, which does the same in each fit, unless told otherwise."""
    return AsyGCDSVC(**{"gamma": GAMMA, "tol": TOL, "threads": 1, **given}).fit(X, y, weights)


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


# -- two classes: the dual without a bias ------------------------------------------------------------


def is_solution(model, K, y, T_kernel, T, C=1.0, atol=1e-4, rel=1e-6):
    """Objective and decisions are those of the reference. `T_kernel` has a line a row of `T`."""
    s = np.where(y == model.classes_[1], 1.0, -1.0)
    Q = K * np.outer(s, s)
    alpha = descend(Q, C, 1e-10)
    assert model.objective_.tolist() == [pytest.approx(alpha.sum() - 0.5 * alpha @ Q @ alpha, rel=rel)]
    expected = T_kernel @ (alpha * s)
    got = model.decision_function(T)
    assert (got.dtype, got.shape) == (np.float64, (T.shape[0],))
    near(got, expected, atol)
    sure = np.abs(expected) > atol
    np.testing.assert_array_equal(model.predict(T)[sure], model.classes_[(expected > 0).astype(int)][sure])
    assert model.fit_status_ == 0


@updates
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@formats
def test_is_the_solution(csr, dtype, threads, update):
    (X, y), (T, _) = clouds(csr=csr), clouds(60, seed=1, csr=csr)
    X, T = X.astype(dtype), T.astype(dtype)
    model = fitted(X, y, threads=threads, update=update)
    assert model.support_vectors_.dtype == dtype
    K, T_kernel = (rbf_kernel(A.astype(float), X.astype(float), gamma=GAMMA) for A in (X, T))
    is_solution(model, K, y, T_kernel, T, atol=1e-4 if dtype == "float64" else 1e-3)


KERNELS = {
    "linear": ({"C": 0.5}, lambda A, B: linear_kernel(A, B)),
    "gaussian": ({"gamma": "auto"}, lambda A, B: rbf_kernel(A, B, gamma=0.25)),
    "polynomial": (
        {"gamma": 0.5, "degree": 2, "coef0": 1.0}, lambda A, B: polynomial_kernel(A, B, gamma=0.5, degree=2, coef0=1.0)
    ),
    "sigmoid": ({"gamma": 0.01, "C": 5.0}, lambda A, B: sigmoid_kernel(A, B, gamma=0.01, coef0=0.0)),
}  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kernel", KERNELS)
@formats
def test_kernels(csr, kernel, threads):
    """A sigmoid that is nearly linear has one solution; it is none of a positive definite kernel."""
    (X, y), (T, _) = clouds(csr=csr), clouds(60, seed=1, csr=csr)
    given, value = KERNELS[kernel]
    model = fitted(X, y, kernel=kernel, threads=threads, **given)
    is_solution(model, value(X, X), y, value(T, X), T, C=given.get("C", 1.0), atol=1e-3)


def test_names_of_kernels():
    X, y = clouds()
    for name, known in (("rbf", "gaussian"), ("poly", "polynomial")):
        expected = fitted(X, y, kernel=known).decision_function(X)
        np.testing.assert_array_equal(fitted(X, y, kernel=name).decision_function(X), expected)


@pytest.mark.parametrize("C", [1e-2, 1.0, 100.0])
def test_gamma_scale(C):
    """1 / (d var), of CSR too, and far from 0, where a variance by squares loses its digits."""
    for X, y in (clouds(), (clouds()[0] + 1e4, clouds()[1]), clouds(csr=True)):
        K = rbf_kernel(dense(X), gamma=1 / (4 * dense(X).var()))
        is_solution(fitted(X, y, gamma="scale", C=C), K, y, K, X, C=C, atol=1e-3)


@updates
@pytest.mark.parametrize("threads", [1, 2])
def test_values_in_single_precision(threads, update):
    """More than 100,000 numbers are worth it, where the tolerance allows."""
    rng = np.random.default_rng(0)
    y = np.arange(150) % 2
    X = rng.normal(size=(150, 700)) + 0.1 * y[:, None]
    K = rbf_kernel(X, gamma=5e-4)
    model = fitted(X, y, gamma=5e-4, tol=1e-4, update=update, threads=threads)
    is_solution(model, K, y, K, X, atol=1e-2, rel=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_many_rows(threads):
    """More than are in the working set at a time, and values in single precision."""
    X, y = clouds(2100)
    K = rbf_kernel(X, gamma=GAMMA)
    model = fitted(X, y, tol=1e-4, threads=threads)
    is_solution(model, K, y, K, X, atol=1e-2, rel=1e-5)
    assert model.block_sizes_.sum() == 2100
    assert model.block_sizes_.min() >= 2100 // threads // 2


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kernel", ["gaussian", "linear"])
def test_wide_sparse_rows(kernel, threads):
    """Of more features than are packed."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 2
    X = sp.hstack([sp.random(120, 6000, 0.01, random_state=rng), (y * rng.uniform(0, 2, 120))[:, None]], "csr")
    K = linear_kernel(X, X) if kernel == "linear" else rbf_kernel(X, gamma=0.05)
    model = fitted(X, y, kernel=kernel, gamma=0.05, threads=threads)
    is_solution(model, K, y, K, X, atol=1e-3)


def test_small_cache():
    """Two columns a thread suffice."""
    X, y = clouds(k=3)
    expected = fitted(X, y)
    for threads in (1, 2):
        model = fitted(X, y, threads=threads, cache_gib=11_000 / GIB)
        assert model.cache_misses_.sum() > expected.cache_misses_.sum()
        np.testing.assert_allclose(model.objective_, expected.objective_, rtol=1e-6)
        near(model.decision_function(X), expected.decision_function(X), 1e-4)


@updates
def test_one_thread_does_the_same_again(update):
    X, y = clouds(k=3)
    first, second = (fitted(X, y, update=update, tol=1e-3, random_state=3) for _ in range(2))
    np.testing.assert_array_equal(first.dual_coef_, second.dual_coef_)
    np.testing.assert_array_equal(first.n_iter_, second.n_iter_)


@pytest.mark.parametrize("C", [1e-3, 1e-5])
def test_bound_below_the_tolerance(C):
    """No violation can be larger than C: a model all the same, that of all rows at the bound."""
    X, y = clouds()
    model = AsyGCDSVC(C=C, gamma=GAMMA, threads=1).fit(X, y)
    expected = rbf_kernel(X, gamma=GAMMA) @ np.where(y, C, -C)
    assert len(model.support_) == 150
    near(model.decision_function(X), expected, 1e-2 * np.abs(expected).max())
    assert model.score(X, y) > 0.7


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
    """What it says: the violation and the objective by hand."""
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


# -- more classes --------------------------------------------------------------------------------------

LABELS = {
    "words": np.array(["zero", "one", "a longer word", "z"]), "objects": np.array(["x", "yy", "z", "a"], object),
    "floats": np.array([-2.0, 7.0, 1e6, -0.0]), "integers": np.array([2**40, -3, 7, 0]),
    "booleans": np.array([False, True]),
}  # fmt: skip


@pytest.mark.parametrize("what", LABELS)
def test_labels(what):
    for k in (2, 3, 4)[: len(LABELS[what]) - 1]:
        X, y = clouds(k=k)
        names = LABELS[what][y]
        model = fitted(X, names, tol=1e-3)
        assert model.classes_.tolist() == np.unique(names).tolist()
        assert model.classes_.dtype == model.predict(X).dtype == names.dtype
        plain = fitted(X, np.searchsorted(np.unique(names), names), tol=1e-3)
        np.testing.assert_array_equal(model.decision_function(X), plain.decision_function(X))
        np.testing.assert_array_equal(model.predict(X), np.unique(names)[plain.predict(X)])
        assert model.score(X, names) > 0.6


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("k", [3, 4])
@formats
def test_each_against_the_rest(csr, k, threads):
    (X, y), (T, _) = clouds(k=k, csr=csr), clouds(60, seed=1, k=k, csr=csr)
    names = np.array(["d", "a", "c", "b"])[y]
    model = fitted(X, names, threads=threads)
    decisions = model.decision_function(T)
    assert decisions.shape == (60, k)
    for column, label in enumerate(model.classes_):
        two = fitted(X, names == label)
        near(decisions[:, column], two.decision_function(T), 1e-4)
        assert model.objective_[column] == pytest.approx(two.objective_[0], rel=1e-6)
    np.testing.assert_array_equal(model.predict(T), model.classes_[decisions.argmax(axis=1)])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("k", [3, 4])
@formats
def test_each_pair(csr, k, threads):
    (X, y), (T, _) = clouds(k=k, csr=csr), clouds(60, seed=1, k=k, csr=csr)
    names = np.array([7.0, -1.0, 3.0, 2.0])[y]
    model = fitted(X, names, threads=threads, multi_class="ovo")
    pairs, ballots = model.model_.decisions(T), np.zeros((60, k))
    assert pairs.shape == (60, k * (k - 1) // 2)
    for column, (i, j) in enumerate(combinations(range(k), 2)):
        one = np.isin(names, model.classes_[[i, j]])
        two = fitted(X[one], names[one])
        near(pairs[:, column], -two.decision_function(T), 1e-4)  # positive for the first of the pair
        assert model.objective_[column] == pytest.approx(two.objective_[0], rel=1e-6)
        ballots[:, i] += pairs[:, column] > 0
        ballots[:, j] += pairs[:, column] <= 0
    scores = model.decision_function(T)
    assert scores.shape == (60, k)
    assert np.abs(scores - ballots).max() <= 1 / 3
    np.testing.assert_array_equal(model.predict(T), model.classes_[ballots.argmax(axis=1)])
    clear = np.sort(ballots, axis=1)[:, -1] > np.sort(ballots, axis=1)[:, -2]
    np.testing.assert_array_equal(model.predict(T)[clear], model.classes_[scores.argmax(axis=1)][clear])


def test_pairs_know_gamma_of_all_rows():
    X, y = clouds(k=3)
    X = X * [1, 5, 1, 1]
    scale = fitted(X, y, multi_class="ovo", gamma="scale")
    by_hand = fitted(X, y, multi_class="ovo", gamma=1 / (4 * X.var()))
    near(scale.decision_function(X), by_hand.decision_function(X), 1e-4)


def test_two_classes_are_one_problem():
    X, y = clouds()
    first, second = (fitted(X, y, multi_class=name).decision_function(X) for name in ("ovr", "ovo"))
    np.testing.assert_array_equal(first, second)


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
    """Of each row, times its class's."""
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
def test_verbose(k, capsys, monkeypatch):
    """About once a second, of which many pass here between two looks."""
    X, y = clouds(k=k)
    fitted(X, y)
    assert capsys.readouterr() == ("", "")
    seconds = iter(range(0, 10**9, 2))
    monkeypatch.setattr("cacore.svm.classifier.time", SimpleNamespace(perf_counter=lambda: next(seconds)))
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


def test_verbose_for_less_than_a_second(capsys, monkeypatch):
    monkeypatch.setattr("cacore.svm.classifier.time", SimpleNamespace(perf_counter=lambda: 0.0))
    fitted(*clouds(), verbose=True)
    assert capsys.readouterr() == ("", "")


def test_verbose_after_a_warm_start(capsys, monkeypatch):
    """The objective that is shown begins with that of the start."""
    seconds = iter(range(0, 10**9, 2))
    X, y = clouds()
    model = fitted(X, y, warm_start=True)
    monkeypatch.setattr("cacore.svm.classifier.time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    model.set_params(verbose=True, C=1.5).fit(X, y)
    shown = float(capsys.readouterr().out.splitlines()[-1].split()[-1])
    assert shown == pytest.approx(model.objective_[0], rel=1e-6)


# -- standardised ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", ["scale", GAMMA])
@pytest.mark.parametrize("weighted", [False, True], ids=["rows alike", "rows weighted"])
@formats
def test_standardized(csr, weighted, gamma):
    """As scaled by hand; CSR rows are not shifted."""
    (X, y), (T, _) = clouds(csr=csr), clouds(60, seed=1, csr=csr)
    factors = np.array([1, 100, 1e-3, 7.0])
    X, T = (sp.csr_matrix(A.multiply(factors)) if csr else A * factors + 5 for A in (X, T))
    w = np.random.default_rng(1).uniform(0.5, 2, 150) if weighted else None
    scaler = StandardScaler(with_mean=not csr).fit(X, sample_weight=w)
    model = fitted(X, y, w, standardize=True, gamma=gamma)
    by_hand = fitted(scaler.transform(X), y, w, gamma=gamma)
    near(model.decision_function(T), by_hand.decision_function(scaler.transform(T)), 1e-4)
    assert model.objective_[0] == pytest.approx(by_hand.objective_[0], rel=1e-6)
    near(abs(model.support_vectors_ - scaler.transform(X)[model.support_]).max(), 0, 1e-9)
    other = T.toarray() if csr else sp.csr_matrix(T)
    near(model.decision_function(other), model.decision_function(T), 1e-9)


# -- what is refused -------------------------------------------------------------------------------------------

BAD = {
    "precomputed": ({"kernel": "precomputed"}, "kernel = 'precomputed': it must be one of"),
    "update": ({"update": "locked"}, "update = 'locked': it must be one of owned, atomic, stochastic"),
    "multi_class": ({"multi_class": "ovx"}, "multi_class = 'ovx': it must be one of ovr, ovo"),
    "threads 0": ({"threads": 0}, "threads = 0:"), "threads negative": ({"threads": -1}, "threads = -1:"),
    "threads 1.5": ({"threads": 1.5}, "threads = 1.5:"), "threads text": ({"threads": "2"}, "threads = '2':"),
    "cache 0": ({"cache_gib": 0}, "a cache of 0 bytes does not hold two columns of 150"),
    "cache small": ({"cache_gib": 1e-6}, "a cache of 1,073 bytes does not hold two columns of 150"),
    "random_state": ({"random_state": "a"}, "'a'"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_parameters(what):
    more, match = BAD[what]
    model = AsyGCDSVC(threads=1).set_params(**more)
    refusal(model.fit, *clouds(), match=match, error=ValueError)
    assert not hasattr(model, "model_")


@pytest.mark.parametrize("update", ["owned", "atomic"])
@pytest.mark.parametrize("threads", [1, 2])
def test_cache_that_just_suffices(threads, update):
    """The figure in the message is the truth."""
    X, y = clouds()

    def with_cache(nbytes):
        return fitted(X, y, threads=threads, update=update, random_state=0, cache_gib=nbytes / GIB)

    message = refusal(with_cache, 100, match="raise it, or use fewer threads")
    needed = int(re.search(r"threads: ([\d,]+) bytes would", message)[1].replace(",", ""))
    assert with_cache(needed).fit_status_ == 0
    refusal(with_cache, needed - 1, match=f"{needed:,} bytes would")


def test_memory_too_small(monkeypatch):
    monkeypatch.setattr("cacore.machine.memory.available", lambda: 10**7)
    X, y = clouds()
    assert fitted(X, y).fit_status_ == 0  # a cache of all columns is smaller than a GiB
    monkeypatch.setattr("cacore.machine.memory.available", lambda: 10**4)
    message = refusal(fitted, X, y, match="the kernel cache needs")
    assert len(re.findall(r"[\d.e-]+ GiB", message)) == 2
    assert "use a smaller cache, or fewer rows" in message


# Finite, but their squares, or kernel values, are not: refused, as casvm does, and not as a warning of numpy's.
@pytest.mark.parametrize(
    ("kernel", "scale", "match"),
    [
        ("linear", 1e200, "squares of numbers above 1e+150 may overflow in float64: standardise the features"),
        ("polynomial", 1e120, "polynomial kernel: its values overflow float64; scale the features"),
    ],
)
def test_overflow(kernel, scale, match):
    X, y = clouds()
    refusal(lambda: fitted(X * scale, y, kernel=kernel, gamma=1.0), match=match)


# -- odd, and not refused ------------------------------------------------------------------------------------


@updates
@pytest.mark.parametrize("n", [10, 11])
@pytest.mark.parametrize("threads", [1, 3])
@formats
def test_rows_all_equal(csr, threads, n, update):
    """There is nothing to learn but which class has more rows."""
    X, y = np.ones((n, 2)), np.arange(n) % 2
    X = sp.csr_matrix(X) if csr else X
    model = fitted(X, y, threads=threads, update=update)
    decisions = model.decision_function(X)
    near(decisions, -1.0 if n % 2 else 0.0, 1e-5)
    if n % 2:
        assert (model.predict(X) == 0).all()


@pytest.mark.parametrize("gamma", [1e6, 1e-12])
def test_extreme_gamma(gamma):
    """Every row alone, and no row different."""
    X, y = clouds()
    K = rbf_kernel(X, gamma=gamma)
    is_solution(fitted(X, y, gamma=gamma, threads=2), K, y, K, X)


@pytest.mark.parametrize("threads", [1, 2])
def test_duplicates_with_opposite_labels(threads):
    X, y = clouds(60)
    X, y = np.r_[X, X[:9]], np.r_[y, 1 - y[:9]]
    K = rbf_kernel(X, gamma=GAMMA)
    is_solution(fitted(X, y, threads=threads), K, y, K, X)


def test_nothing_but_zeros():
    for X in (np.zeros((20, 3)), sp.csr_matrix((20, 3))):
        for kernel in ("gaussian", "linear"):
            model = fitted(X, np.arange(20) % 2, kernel=kernel, threads=2)
            assert model.decision_function(X).tolist() == [0.0] * 20


def test_csr_with_stored_zeros_and_unsorted_indices():
    X, y = clouds()
    S = sp.csr_matrix(X)
    S.data[::7] = 0
    odd = unsorted(S)
    expected = fitted(S.toarray(), y).decision_function(S.toarray())
    near(fitted(odd, y, threads=2).decision_function(odd), expected, 1e-4)


def test_more_than_there_can_be():
    X, y = clouds()
    model = AsyGCDSVC(cache_gib=1e300, max_iter=10**30, gamma=GAMMA).fit(X, y)
    assert model.fit_status_ == 0
