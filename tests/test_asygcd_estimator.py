"""Asy-GCD as a scikit-learn estimator: the dual without a bias, solved by hand here, and what a model file keeps."""

from __future__ import annotations

import pickle
import re
import warnings
from itertools import combinations
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics.pairwise import linear_kernel, polynomial_kernel, rbf_kernel, sigmoid_kernel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import (
    check_sample_weight_equivalence_on_dense_data,
    check_sample_weight_equivalence_on_sparse_data,
    parametrize_with_checks,
)

from asygcd import AsyGCDModel, AsyGCDSVC
from cacore.errors import InputError
from cacore.io import model_file as models
from cacore.machine.memory import GIB
from casvm import SMOSVC

formats = pytest.mark.parametrize("csr", [False, True], ids=["dense", "csr"])
updates = pytest.mark.parametrize("update", ["owned", "atomic", "stochastic"])
TOL, GAMMA = 1e-6, 0.3

# -- scikit-learn's checks -------------------------------------------------------------------------

REPETITION = "gamma='scale' and the tolerance see a row twice where a weight of 2 is one row"
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": REPETITION,
    "check_sample_weight_equivalence_on_sparse_data": REPETITION,
}
ASYNCHRONOUS = {"check_fit_idempotent": "threads are never twice in the same order: fits agree within the tolerance"}


# One thread does the same in each fit.
@parametrize_with_checks(
    [AsyGCDSVC(threads=1), AsyGCDSVC(threads=2, multi_class="ovo")],
    expected_failed_checks=lambda estimator: EXPECTED | (ASYNCHRONOUS if estimator.threads > 1 else {}),
)
def test_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize("threads", [1, 2])
def test_scikit_learn_on_weights(threads):
    """Where the reason above is none: a fixed gamma, and the digits that are compared."""
    estimator = AsyGCDSVC(threads=threads, gamma=0.01, tol=1e-12)
    check_sample_weight_equivalence_on_dense_data("AsyGCDSVC", estimator)
    check_sample_weight_equivalence_on_sparse_data("AsyGCDSVC", estimator)


def rows(n=150, seed=0, classes=2, csr=False):
    """Overlapping clouds, so that there are support vectors at the bound and inside; CSR with an empty row."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    X = rng.normal(size=(n, 4)) + 1.2 * np.eye(4)[y]
    if csr:
        X[np.abs(X) < 0.5] = 0
        X[7] = 0
    return (sp.csr_matrix(X) if csr else X), y


def fitted(X, y, weights=None, **given):
    """On one thread, which does the same in each fit, unless told otherwise."""
    return AsyGCDSVC(**{"gamma": GAMMA, "tol": TOL, "threads": 1, **given}).fit(X, y, weights)


def close(got, expected, atol=1e-4):
    np.testing.assert_allclose(got, expected, rtol=0, atol=atol)


def test_composes():
    X, y = rows(classes=3)
    search = GridSearchCV(AsyGCDSVC(threads=2), {"C": [1e-2, 1.0], "gamma": [0.3, 1e3]}, cv=3).fit(X, y)
    assert search.best_params_["gamma"] == 0.3
    pipe = make_pipeline(StandardScaler(), AsyGCDSVC(threads=1))
    scaled = StandardScaler().fit_transform(X)
    alone = AsyGCDSVC(threads=1).fit(scaled, y)
    close(pipe.fit(X, y).decision_function(X), alone.decision_function(scaled), 1e-12)
    found = GridSearchCV(pipe, {"asygcdsvc__C": [0.1, 1.0], "asygcdsvc__multi_class": ["ovr", "ovo"]}, cv=3).fit(X, y)
    assert found.best_score_ == pytest.approx(found.cv_results_["mean_test_score"].max())
    assert found.score(X, y) > 0.6


@pytest.mark.parametrize("k", [2, 3])
def test_clone_and_pickle(k):
    X, y = rows(classes=k)
    model = fitted(X, y, C=3.0, class_weight={0: 2.0}, multi_class="ovo", random_state=4)
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    for call in (fresh.predict, fresh.decision_function):
        with pytest.raises(NotFittedError) as caught:
            call(X)
        assert "\n" not in str(caught.value)
    back = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(back.decision_function(X), model.decision_function(X))
    np.testing.assert_array_equal(back.predict(X), model.predict(X))
    np.testing.assert_array_equal(fresh.fit(X, y).decision_function(X), model.decision_function(X))


# -- two classes: the dual without a bias ------------------------------------------------------------


def descend(K, s, C, tol=1e-10):
    """Greedy coordinate descent with the whole matrix: alpha, and the dual's objective."""
    Q, C = K * np.outer(s, s), np.broadcast_to(np.asarray(C, float), len(s))
    alpha, g = np.zeros(len(s)), -np.ones(len(s))
    for _ in range(10**6):
        violation = np.abs(alpha - np.clip(alpha - g, 0, C))
        i = violation.argmax()
        if violation[i] <= tol:
            break
        new = np.clip(alpha[i] - g[i] / max(Q[i, i], 1e-12), 0, C[i])
        g += Q[i] * (new - alpha[i])
        alpha[i] = new
    else:
        raise AssertionError("the reference did not converge")
    return alpha, alpha.sum() - 0.5 * alpha @ Q @ alpha


def is_solution(model, K, y, T_kernel, T, C=1.0, atol=1e-4, rel=1e-6):
    """Objective and decisions are those of the reference. `T_kernel` has a line a row of `T`."""
    s = np.where(y == model.classes_[1], 1.0, -1.0)
    alpha, objective = descend(K, s, C)
    assert model.objective_.tolist() == [pytest.approx(objective, rel=rel)]
    expected = T_kernel @ (alpha * s)
    got = model.decision_function(T)
    assert (got.dtype, got.shape) == (np.float64, (T.shape[0],))
    close(got, expected, atol)
    sure = np.abs(expected) > atol
    np.testing.assert_array_equal(model.predict(T)[sure], model.classes_[(expected > 0).astype(int)][sure])
    assert model.fit_status_ == 0


@updates
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@formats
def test_is_the_solution(csr, dtype, threads, update):
    (X, y), (T, _) = rows(csr=csr), rows(60, seed=1, csr=csr)
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
    (X, y), (T, _) = rows(csr=csr), rows(60, seed=1, csr=csr)
    given, value = KERNELS[kernel]
    model = fitted(X, y, kernel=kernel, threads=threads, **given)
    is_solution(model, value(X, X), y, value(T, X), T, C=given.get("C", 1.0), atol=1e-3)


def test_names_of_kernels():
    X, y = rows()
    for name, known in (("rbf", "gaussian"), ("poly", "polynomial")):
        expected = fitted(X, y, kernel=known).decision_function(X)
        np.testing.assert_array_equal(fitted(X, y, kernel=name).decision_function(X), expected)


@pytest.mark.parametrize("C", [1e-2, 1.0, 100.0])
def test_gamma_scale(C):
    """1 / (d var), of CSR too, and far from 0, where a variance by squares loses its digits."""
    for X, y in (rows(), (rows()[0] + 1e4, rows()[1]), rows(csr=True)):
        dense = X.toarray() if sp.issparse(X) else X
        K = rbf_kernel(dense, gamma=1 / (4 * dense.var()))
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
    """More than are in play at a time, and values in single precision."""
    X, y = rows(2100)
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
    X, y = rows(classes=3)
    expected = fitted(X, y)
    for threads in (1, 2):
        model = fitted(X, y, threads=threads, cache_gib=11_000 / GIB)
        assert model.cache_misses_.sum() > expected.cache_misses_.sum()
        np.testing.assert_allclose(model.objective_, expected.objective_, rtol=1e-6)
        close(model.decision_function(X), expected.decision_function(X))


@updates
def test_one_thread_does_the_same_again(update):
    X, y = rows(classes=3)
    first, second = (fitted(X, y, update=update, tol=1e-3, random_state=3) for _ in range(2))
    np.testing.assert_array_equal(first.dual_coef_, second.dual_coef_)
    np.testing.assert_array_equal(first.n_iter_, second.n_iter_)


@pytest.mark.parametrize("C", [1e-3, 1e-5])
def test_bound_below_the_tolerance(C):
    """No violation can be larger than C: a model all the same, that of all rows at the bound."""
    X, y = rows()
    model = AsyGCDSVC(C=C, gamma=GAMMA, threads=1).fit(X, y)
    expected = rbf_kernel(X, gamma=GAMMA) @ np.where(y, C, -C)
    assert len(model.support_) == 150
    close(model.decision_function(X), expected, 1e-2 * np.abs(expected).max())
    assert model.score(X, y) > 0.7


# -- what is known after a fit -----------------------------------------------------------------------


@formats
@pytest.mark.parametrize("multi_class", ["ovr", "ovo"])
@pytest.mark.parametrize("k", [2, 3, 4])
def test_attributes(k, multi_class, csr):
    X, y = rows(160, classes=k, csr=csr)
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
    close(model.model_.decisions(X), decisions, 1e-9)
    if k == 2 or multi_class == "ovr":
        close(model.decision_function(X).reshape(160, -1), decisions, 1e-9)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("update", ["owned", "atomic"])
@pytest.mark.parametrize("tol", [1e-2, 1e-3, 1e-6])
def test_gap(tol, update, threads):
    """Within the tolerance, and what it says: the violation by hand."""
    X, y = rows()
    model = fitted(X, y, update=update, threads=threads, tol=tol)
    s = np.where(y, 1.0, -1.0)
    beta = np.zeros(150)
    beta[model.support_] = model.dual_coef_[0]
    alpha, g = beta * s, s * (rbf_kernel(X, gamma=GAMMA) @ beta) - 1
    assert 0 <= model.gap_[0] <= tol
    assert model.gap_[0] == pytest.approx(np.abs(alpha - np.clip(alpha - g, 0, 1)).max(), abs=1e-12)
    assert model.objective_[0] == pytest.approx(alpha.sum() - 0.5 * alpha @ (g + 1), rel=1e-12)


@updates
@pytest.mark.parametrize("threads", [1, 2])
def test_gap_at_a_limit(threads, update):
    """Also where it stopped half way."""
    X, y = rows()
    model = AsyGCDSVC(gamma=GAMMA, update=update, threads=threads, max_iter=90, tol=1e-6)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    s = np.where(y, 1.0, -1.0)
    beta = np.zeros(150)
    beta[model.support_] = model.dual_coef_[0]
    alpha, g = beta * s, s * (rbf_kernel(X, gamma=GAMMA) @ beta) - 1
    assert model.gap_[0] == pytest.approx(np.abs(alpha - np.clip(alpha - g, 0, 1)).max(), abs=1e-9)
    assert model.objective_[0] == pytest.approx(alpha.sum() - 0.5 * alpha @ (g + 1), rel=1e-9)


def test_gap_of_the_stochastic_form():
    """What is told to have met the tolerance has met it."""
    X, y = rows()
    for seed in range(12):
        model = fitted(X, y, update="stochastic", tol=1e-3, gamma=0.05, random_state=seed)
        assert model.fit_status_ == int(model.gap_[0] > 1e-3)


def test_columns_are_shared():
    """One against the rest: no column is computed twice if there is room for all."""
    X, y = rows(classes=4)
    assert fitted(X, y, update="atomic").cache_misses_.sum() <= 150
    assert fitted(X, y).cache_misses_.sum() <= 150


def test_more_threads_than_rows():
    X, y = rows(6, classes=3)
    for multi_class in ("ovr", "ovo"):
        model = fitted(X, y, threads=9, multi_class=multi_class)
        size = 6 if multi_class == "ovr" else 4
        assert model.block_sizes_.tolist() == [1] * size
        assert len(model.cache_hits_) == len(model.cache_misses_) == size
        np.testing.assert_allclose(model.objective_, fitted(X, y, multi_class=multi_class).objective_, rtol=1e-6)


def test_threads_by_default():
    X, y = rows()
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
        X, y = rows(classes=k)
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
    (X, y), (T, _) = rows(classes=k, csr=csr), rows(60, seed=1, classes=k, csr=csr)
    names = np.array(["d", "a", "c", "b"])[y]
    model = fitted(X, names, threads=threads)
    decisions = model.decision_function(T)
    assert decisions.shape == (60, k)
    for column, label in enumerate(model.classes_):
        two = fitted(X, names == label)
        close(decisions[:, column], two.decision_function(T))
        assert model.objective_[column] == pytest.approx(two.objective_[0], rel=1e-6)
    np.testing.assert_array_equal(model.predict(T), model.classes_[decisions.argmax(axis=1)])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("k", [3, 4])
@formats
def test_each_pair(csr, k, threads):
    (X, y), (T, _) = rows(classes=k, csr=csr), rows(60, seed=1, classes=k, csr=csr)
    names = np.array([7.0, -1.0, 3.0, 2.0])[y]
    model = fitted(X, names, threads=threads, multi_class="ovo")
    pairs, ballots = model.model_.decisions(T), np.zeros((60, k))
    assert pairs.shape == (60, k * (k - 1) // 2)
    for column, (i, j) in enumerate(combinations(range(k), 2)):
        one = np.isin(names, model.classes_[[i, j]])
        two = fitted(X[one], names[one])
        close(pairs[:, column], -two.decision_function(T))  # positive for the first of the pair
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
    X, y = rows(classes=3)
    X = X * [1, 5, 1, 1]
    scale = fitted(X, y, multi_class="ovo", gamma="scale")
    by_hand = fitted(X, y, multi_class="ovo", gamma=1 / (4 * X.var()))
    close(scale.decision_function(X), by_hand.decision_function(X))


def test_two_classes_are_one_problem():
    X, y = rows()
    first, second = (fitted(X, y, multi_class=name).decision_function(X) for name in ("ovr", "ovo"))
    np.testing.assert_array_equal(first, second)


# -- weights ---------------------------------------------------------------------------------------------


@formats
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("multi_class", ["ovr", "ovo"])
@pytest.mark.parametrize("threads", [1, 2])
def test_weights_are_repetitions(threads, multi_class, k, csr):
    X, y = rows(classes=k, csr=csr)
    w = np.random.default_rng(1).integers(0, 4, 150)
    twice = np.repeat(np.arange(150), w)
    given = {"threads": threads, "multi_class": multi_class, "C": 0.4}
    weighted, repeated = fitted(X, y, w, **given), fitted(X[twice], y[twice], **given)
    np.testing.assert_allclose(weighted.objective_, repeated.objective_, rtol=1e-6)
    for mine, other in ((weighted.model_.decisions(X), repeated.model_.decisions(X)),):
        close(mine, other)
    assert (w[weighted.support_] > 0).all()


@formats
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("multi_class", ["ovr", "ovo"])
@pytest.mark.parametrize("standardize", [False, True])
def test_weight_zero_is_absence(standardize, multi_class, k, csr):
    """The same bits on one thread; and the row numbers are the caller's."""
    X, y = rows(classes=k, csr=csr)
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


def test_class_of_weight_zero_is_absent():
    X, y = rows(classes=3)
    model = fitted(X, y, (y < 2).astype(float))
    assert model.classes_.tolist() == [0, 1]
    assert model.decision_function(X).shape == (150,)


@pytest.mark.parametrize("threads", [1, 2])
def test_weights_scale_the_bound(threads):
    """Of each row, times its class's."""
    X, y = rows()
    w = np.random.default_rng(1).uniform(0.1, 3, 150)
    K = rbf_kernel(X, gamma=GAMMA)
    model = fitted(X, y, w, C=0.3, class_weight={1: 2.5}, threads=threads)
    is_solution(model, K, y, K, X, C=0.3 * w * np.where(y, 2.5, 1.0))
    assert model.class_weight_.tolist() == [1.0, 2.5]


@pytest.mark.parametrize("multi_class", ["ovr", "ovo"])
@pytest.mark.parametrize("weighted", [False, True], ids=["rows alike", "rows weighted"])
def test_class_weight(weighted, multi_class):
    X, y = rows(classes=3)
    kept = (y > 0) | (np.arange(150) % 4 == 0)
    X, y = X[kept], y[kept]
    names = np.array(["rare", "common", "other"])[y]
    w = np.random.default_rng(1).uniform(0.5, 2, len(y)) if weighted else np.ones(len(y))
    given = {"multi_class": multi_class, "C": 0.5}
    by_class = fitted(X, names, w, class_weight={"rare": 4.0, "other": 0.5}, **given)
    by_row = fitted(X, names, w * np.array([4.0, 1.0, 0.5])[y], **given)
    close(by_class.decision_function(X), by_row.decision_function(X))
    np.testing.assert_allclose(by_class.objective_, by_row.objective_, rtol=1e-6)
    count = np.bincount(y, w)
    balanced = fitted(X, names, w, class_weight="balanced", **given)
    by_row = fitted(X, names, w * (count.sum() / (3 * count))[y], **given)
    close(balanced.decision_function(X), by_row.decision_function(X))
    np.testing.assert_allclose(balanced.class_weight_, (count.sum() / (3 * count))[[1, 2, 0]])  # by label


# -- warm starts -------------------------------------------------------------------------------------------


@updates
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("k", "multi_class"), [(2, "ovr"), (3, "ovr"), (3, "ovo")])
def test_warm_start(k, multi_class, threads, update):
    X, y = rows(classes=k)
    given = {"tol": 1e-4, "threads": threads, "update": update, "multi_class": multi_class}
    model = fitted(X, y, warm_start=True, **given)
    first, objective, decisions = model.n_iter_.sum(), model.objective_, model.decision_function(X)
    model.fit(X, y)
    if update != "stochastic" or threads == 1:  # on two threads it changes much that needs no change
        assert model.n_iter_.sum() < 0.1 * first
    np.testing.assert_allclose(model.objective_, objective, rtol=1e-5)
    close(model.decision_function(X), decisions, 1e-2)
    assert model.fit_status_ == 0


def test_warm_start_of_another_problem():
    """Larger and smaller C, another kernel, labels turned round, rows without weight: a start, and the solution."""
    X, y = rows()
    w = (np.arange(150) % 3 > 0).astype(float)
    model = fitted(X, y, warm_start=True, C=2.0)
    for change, labels, weights in (
        ({"C": 3.0}, y, None), ({"C": 0.5}, y, None), ({"gamma": 1.0}, y, None), ({"update": "atomic"}, 1 - y, None),
        ({"update": "owned"}, y, w), ({"threads": 2}, y, None),
    ):  # fmt: skip
        model.set_params(**change).fit(X, labels, weights)
        fresh = clone(model).fit(X, labels, weights)
        assert model.objective_[0] == pytest.approx(fresh.objective_[0], rel=1e-6)
        close(model.decision_function(X), fresh.decision_function(X))


def test_warm_start_near_by():
    X, y = rows(300)
    cold = fitted(X, y, C=2.1, tol=1e-3)
    warm = fitted(X, y, C=2.0, tol=1e-3, warm_start=True).set_params(C=2.1).fit(X, y)
    assert warm.n_iter_[0] < 0.7 * cold.n_iter_[0]


def test_warm_start_begins_anew():
    """Other rows in number, other classes, or other decisions: as if it had never been trained, bit by bit."""
    X, y = rows(classes=3)
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
    X, y = rows()
    model = fitted(X, y)
    first = model.n_iter_.tolist()
    assert model.fit(X, y).n_iter_.tolist() == first


# -- limits, and what is printed -----------------------------------------------------------------------------


def told(fit):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit()
    assert [w.category for w in caught] == [ConvergenceWarning]
    assert caught[0].filename == __file__  # the caller's line
    assert "\n" not in str(caught[0].message)
    return str(caught[0].message)


@updates
@pytest.mark.parametrize("limit", [{"max_iter": 0}, {"max_iter": 1}, {"max_iter": 40}, {"max_time": 0.05}], ids=str)
@pytest.mark.parametrize("k", [2, 3])
def test_not_converged(k, limit, update):
    """One line: how many updates, and how far it is from the tolerance. Nothing ends soon at this scale."""
    X, y = rows(classes=k)
    model = AsyGCDSVC(threads=1, kernel="linear", C=1e3, tol=1e-9, update=update, **limit)
    said = told(lambda: model.fit(1e3 * X, y))
    assert model.fit_status_ == 1
    worst = model.gap_.argmax()
    at = f"stopped after {model.n_iter_[worst]:,} updates at a violation of {model.gap_[worst]:.3g}"
    assert at in said
    assert ("3 of 3 problems" in said) == (k == 3)
    if "max_iter" in limit and update != "stochastic":
        assert model.n_iter_.tolist() == [limit["max_iter"]] * (1 if k == 2 else 3)
    assert np.isfinite(model.decision_function(X)).all()
    assert set(model.predict(X)) <= set(range(k))


def test_enough_is_not_warned_of():
    X, y = rows()
    assert fitted(X, y, max_iter=10**6, max_time=60).fit_status_ == 0


@pytest.mark.parametrize("k", [2, 3])
def test_verbose(k, capsys, monkeypatch):
    """About once a second, of which many pass here between two looks."""
    X, y = rows(classes=k)
    fitted(X, y)
    assert capsys.readouterr() == ("", "")
    seconds = iter(range(0, 10**9, 2))
    monkeypatch.setattr("asygcd.estimators.time", SimpleNamespace(perf_counter=lambda: next(seconds)))
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
    monkeypatch.setattr("asygcd.estimators.time", SimpleNamespace(perf_counter=lambda: 0.0))
    fitted(*rows(), verbose=True)
    assert capsys.readouterr() == ("", "")


def test_verbose_after_a_warm_start(capsys, monkeypatch):
    """The objective that is shown begins with that of the start."""
    seconds = iter(range(0, 10**9, 2))
    X, y = rows()
    model = fitted(X, y, warm_start=True)
    monkeypatch.setattr("asygcd.estimators.time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    model.set_params(verbose=True, C=1.5).fit(X, y)
    shown = float(capsys.readouterr().out.splitlines()[-1].split()[-1])
    assert shown == pytest.approx(model.objective_[0], rel=1e-6)


# -- standardised ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", ["scale", GAMMA])
@pytest.mark.parametrize("weighted", [False, True], ids=["rows alike", "rows weighted"])
@formats
def test_standardized(csr, weighted, gamma):
    """As scaled by hand; CSR rows are not shifted."""
    (X, y), (T, _) = rows(csr=csr), rows(60, seed=1, csr=csr)
    factors = np.array([1, 100, 1e-3, 7.0])
    X, T = (sp.csr_matrix(A.multiply(factors)) if csr else A * factors + 5 for A in (X, T))
    w = np.random.default_rng(1).uniform(0.5, 2, 150) if weighted else None
    scaler = StandardScaler(with_mean=not csr).fit(X, sample_weight=w)
    model = fitted(X, y, w, standardize=True, gamma=gamma)
    by_hand = fitted(scaler.transform(X), y, w, gamma=gamma)
    close(model.decision_function(T), by_hand.decision_function(scaler.transform(T)))
    assert model.objective_[0] == pytest.approx(by_hand.objective_[0], rel=1e-6)
    close(abs(model.support_vectors_ - scaler.transform(X)[model.support_]).max(), 0, 1e-9)
    other = T.toarray() if csr else sp.csr_matrix(T)
    close(model.decision_function(other), model.decision_function(T), 1e-9)


# -- the model as a file -------------------------------------------------------------------------------------


def back(model, folder, T):
    """The model as a file brings it back, which answers with the same bits."""
    path = folder / "m.h5"
    model.save(path)
    assert sorted(p.name for p in folder.iterdir()) == ["m.h5"]
    loaded = AsyGCDModel.load(path)
    got, expected = loaded.predict(T), model.predict(T)
    np.testing.assert_array_equal(got, expected)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(loaded.decision_function(T), model.decision_function(T))
    for name in ("multi_class", "kernel", "C", "dtype", "source", "n_features"):
        assert getattr(loaded, name) == getattr(model, name)
    for name in ("classes", "rows", "coef", "sizes"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name))
    assert abs(loaded.X - model.X).sum() == 0
    assert (sp.issparse(loaded.X), loaded.X.dtype) == (sp.issparse(model.X), model.X.dtype)
    return loaded


@formats
@pytest.mark.parametrize(("k", "multi_class"), [(2, "ovr"), (3, "ovr"), (3, "ovo")])
@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_saved_and_loaded(dtype, standardize, k, multi_class, csr, tmp_path):
    (X, y), (T, _) = rows(classes=k, csr=csr), rows(50, seed=1, classes=k, csr=csr)
    X, T = X.astype(dtype), T.astype(dtype)
    model = fitted(X, np.array(["no", "yes, certainly", "może"])[y], standardize=standardize, multi_class=multi_class)
    loaded = back(model.model_, tmp_path, T)
    np.testing.assert_array_equal(loaded.predict(T), model.predict(T))
    np.testing.assert_array_equal(loaded.decision_function(T), model.decision_function(T))
    assert (loaded.standardizer is not None) == standardize
    if standardize:
        np.testing.assert_array_equal(loaded.standardizer.mean, model.model_.standardizer.mean)
        np.testing.assert_array_equal(loaded.standardizer.scale, model.model_.standardizer.scale)


@pytest.mark.parametrize("what", LABELS)
def test_saved_labels(what, tmp_path):
    X, y = rows(classes=min(3, len(LABELS[what])))
    names = LABELS[what][y]
    loaded = back(fitted(X, names).model_, tmp_path, X)
    assert loaded.classes.tolist() == np.unique(names).tolist()
    assert loaded.classes.dtype == names.dtype


@pytest.mark.parametrize("kernel", KERNELS)
def test_saved_kernels(kernel, tmp_path):
    X, y = rows()
    back(fitted(X, y, kernel=kernel, **KERNELS[kernel][0]).model_, tmp_path, X)


@formats
def test_no_support_vectors(csr, tmp_path):
    """Nothing was learnt: a model all the same."""
    X, y = rows(csr=csr)
    model = AsyGCDSVC(max_iter=0, threads=1)
    told(lambda: model.fit(X, y))
    assert model.decision_function(X).tolist() == [0.0] * 150
    assert back(model.model_, tmp_path, X).sizes.tolist() == [0]


@formats
def test_other_form_of_the_rows(csr):
    """A model of dense rows answers for CSR rows and the other way round; lists are rows too."""
    S, y = rows(csr=True)
    D = S.toarray()
    model = fitted(S if csr else D, y)
    expected = model.decision_function(S if csr else D)
    for other in (D, S, sp.csr_array(S), sp.csc_matrix(S), sp.coo_array(S), D.tolist(), np.asfortranarray(D)):
        close(model.decision_function(other), expected, 1e-10)
    assert model.model_.decision_function(D[:0]).shape == (0,)  # a rank may have no rows


# In a process of its own: what reads memory that is not its own may end it.
ROWS = """
import sys
import numpy as np
import scipy.sparse as sp
from asygcd import AsyGCDSVC
from cacore.errors import InputError

rng = np.random.default_rng(0)
y = np.arange(150) % 2
X = rng.normal(size=(150, 4)) + y[:, None]
model = AsyGCDSVC(threads=1).fit(X, y).model_
rows = {"wide": np.ones((3, 5)), "narrow": np.ones((3, 3)), "nan": np.full((3, 4), np.nan), "vector": np.ones(4),
        "wide csr": sp.csr_matrix(np.ones((3, 9))), "list": X.tolist(), "csc": sp.csc_matrix(X)}
for what in sys.argv[1:]:
    try:
        decisions = model.decision_function(rows[what])
        right = len(decisions) == 150 and np.allclose(decisions, model.decision_function(X), rtol=0, atol=1e-9)
        print(what, "right" if right else f"wrong {decisions[:3]}", flush=True)
    except InputError:
        print(what, "refused", flush=True)
    except Exception as error:
        print(what, repr(error), flush=True)
"""


def test_model_refuses_rows(python):
    """Those of other features, and numbers that are none; as casvm's."""
    names = ["wide", "narrow", "nan", "vector", "wide csr"]
    done = python("-c", ROWS, *names)
    assert (done.returncode, done.stdout.splitlines()) == (0, [f"{name} refused" for name in names])


def test_model_takes_rows(python):
    """Lists and other formats; as casvm's."""
    done = python("-c", ROWS, "list", "csc")
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, ["list right", "csc right"], "")


def attribute(name, value):
    def change(file):
        file.attrs[name] = value

    return change


def remove(name):
    def change(file):
        del file[name]

    return change


DAMAGE = {
    "schema": attribute("schema", "other/1"), "attributes": attribute("attributes", "{}"),
    "json": attribute("attributes", "{"), "list": attribute("attributes", "[]"), "part": remove("parts/000000"),
    "parts": remove("parts"), "coef": remove("parts/000000/coef"), "rows": remove("parts/000000/rows"),
    "scale": remove("scale"), "indptr": remove("parts/000000/X/indptr"),
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.h5"
    fitted(*rows(classes=3, csr=True), standardize=True).model_.save(path)
    return path.read_bytes()


def refused_file(path):
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: ") as caught:
        AsyGCDModel.load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged(what, saved, tmp_path):
    path = tmp_path / "m.h5"
    path.write_bytes(saved)
    with h5py.File(path, "r+") as file:
        DAMAGE[what](file)
    refused_file(path)


@pytest.mark.parametrize("keep", [0, 0.3, 0.9])
def test_truncated(keep, saved, tmp_path):
    path = tmp_path / "m.h5"
    path.write_bytes(saved[: int(keep * len(saved))])
    refused_file(path)


def test_no_file(tmp_path):
    assert "no such model file" in refused_file(tmp_path / "m.h5")


def test_model_of_another_family(saved, tmp_path):
    from casvm import SVMModel

    SMOSVC().fit(*rows()).model_.save(tmp_path / "svm.h5")
    assert refused_file(tmp_path / "svm.h5").endswith("a model of the svm family; asygcd is needed")
    (tmp_path / "m.h5").write_bytes(saved)
    with pytest.raises(InputError, match="a model of the asygcd family; svm is needed"):
        SVMModel.load(tmp_path / "m.h5")


def test_place_cannot_be_written(tmp_path, monkeypatch):
    model = fitted(*rows()).model_
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "none" / "m.h5", tmp_path / "folder", tmp_path / "folder" / "none" / "m.h5"):
        with pytest.raises(InputError, match=r"does not exist|is a directory") as caught:
            model.save(path)
        assert str(path) in str(caught.value)
    assert [p.name for p in tmp_path.rglob("*")] == ["folder"]
    # A disk that fills up half way leaves the old file as it was.
    (tmp_path / "m.h5").write_text("old")

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(models, "_write", full)
    with pytest.raises(OSError, match="no space left"):
        model.save(tmp_path / "m.h5")
    assert (tmp_path / "m.h5").read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "m.h5"]


# -- what is refused -------------------------------------------------------------------------------------------

BAD = {
    "C 0": ({"C": 0}, "C = 0:"), "C negative": ({"C": -1.0}, "C = -1:"), "C nan": ({"C": np.nan}, "C = nan:"),
    "C inf": ({"C": np.inf}, "C = inf:"), "C text": ({"C": "x"}, "C = 'x'"), "C None": ({"C": None}, "C = None"),
    "gamma 0": ({"gamma": 0}, "gamma = 0:"), "gamma negative": ({"gamma": -1}, "gamma = -1:"),
    "gamma text": ({"gamma": "x"}, "gamma = 'x':"), "gamma nan": ({"gamma": np.nan}, "gamma = nan:"),
    "gamma None": ({"gamma": None}, "gamma = None"),
    "kernel": ({"kernel": "cosine"}, "kernel 'cosine': choose one of"),
    "kernel None": ({"kernel": None}, "kernel None"),
    "kernel function": ({"kernel": np.dot}, "kernel"), "precomputed": ({"kernel": "precomputed"}, "choose one of"),
    "update": ({"update": "locked"}, "update 'locked': choose one of owned, atomic, stochastic"),
    "multi_class": ({"multi_class": "ovx"}, "multi_class 'ovx': choose one of ovr, ovo"),
    "threads 0": ({"threads": 0}, "threads = 0:"), "threads negative": ({"threads": -1}, "threads = -1:"),
    "threads 1.5": ({"threads": 1.5}, "threads = 1.5:"), "threads text": ({"threads": "2"}, "threads = '2':"),
    "tol 0": ({"tol": 0}, "tol = 0:"), "tol negative": ({"tol": -1e-3}, "tol = -0.001:"),
    "tol nan": ({"tol": np.nan}, "tol = nan:"), "tol inf": ({"tol": np.inf}, "tol = inf:"),
    "tol text": ({"tol": "x"}, "tol = 'x'"),
    "degree": ({"degree": -1}, "degree = -1:"), "degree 2.5": ({"degree": 2.5}, "degree = 2.5:"),
    "coef0": ({"coef0": np.nan}, "coef0 = nan:"),
    "cache": ({"cache_gib": -1}, "cache_gib = -1:"), "cache nan": ({"cache_gib": np.nan}, "cache_gib = nan:"),
    "cache 0": ({"cache_gib": 0}, "a cache of 0 bytes does not hold two columns of 150"),
    "cache small": ({"cache_gib": 1e-6}, "a cache of 1,073 bytes does not hold two columns of 150"),
    "max_iter text": ({"max_iter": "a"}, "max_iter = 'a'"), "time": ({"max_time": 0}, "max_time = 0:"),
    "time nan": ({"max_time": np.nan}, "max_time = nan:"),
    "class_weight": ({"class_weight": "equal"}, "class_weight 'equal'"),
    "class_weight list": ({"class_weight": [1, 2]}, "class_weight [1, 2]"),
    "class_weight label": ({"class_weight": {7: 1.0}}, "no class 7"),
    "class_weight negative": ({"class_weight": {0: -1.0}}, "class_weight of 0 = -1.0"),
    "random_state": ({"random_state": "a"}, "'a'"),
}  # fmt: skip


def refused(message, call, *given):
    """A ValueError of one line that says what is wrong."""
    with pytest.raises(ValueError, match=re.escape(message) or r"\S") as caught:
        call(*given)
    assert str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("what", BAD)
def test_bad_parameters(what):
    given, message = BAD[what]
    model = AsyGCDSVC(threads=1).set_params(**given)
    refused(message, model.fit, *rows())
    assert not hasattr(model, "model_")


@pytest.mark.parametrize("update", ["owned", "atomic"])
@pytest.mark.parametrize("threads", [1, 2])
def test_cache_that_just_suffices(threads, update):
    """The figure in the message is the truth."""
    X, y = rows()
    said = refused("raise it, or use fewer threads", fitted(X, y, threads=threads, update=update).set_params(
        cache_gib=100 / GIB, random_state=0).fit, X, y)  # fmt: skip
    needed = int(re.search(r"threads: ([\d,]+) bytes would", said)[1].replace(",", ""))
    given = {"threads": threads, "update": update, "random_state": 0}
    assert fitted(X, y, cache_gib=needed / GIB, **given).fit_status_ == 0
    refused(f"{needed:,} bytes would", lambda: fitted(X, y, cache_gib=(needed - 1) / GIB, **given))


def test_memory_too_small(monkeypatch):
    monkeypatch.setattr("cacore.machine.memory.available", lambda: 10**7)
    X, y = rows()
    assert fitted(X, y).fit_status_ == 0  # a cache of all columns is smaller than a GiB
    monkeypatch.setattr("cacore.machine.memory.available", lambda: 10**4)
    said = refused("the kernel cache needs", lambda: fitted(X, y))
    assert len(re.findall(r"[\d.e-]+ GiB", said)) == 2
    assert "use a smaller cache, or fewer rows" in said


def entry(value):
    X = rows()[0]
    X[3, 1] = value
    return X


BAD_ROWS = {
    "nan": (entry(np.nan), rows()[1], None), "inf": (entry(np.inf), rows()[1], None),
    "csr nan": (sp.csr_matrix(entry(np.nan)), rows()[1], None),
    "csr inf": (sp.csr_matrix(entry(-np.inf)), rows()[1], None),
    "one label": (rows()[0], np.ones(150), None), "one word": (rows()[0], np.full(150, "spam"), None),
    "continuous": (rows()[0], rows()[0][:, 0], None), "label nan": (rows()[0], np.r_[np.nan, np.ones(149)], None),
    "two columns": (rows()[0], np.c_[rows()[1], rows()[1]], None), "short": (rows()[0], rows()[1][:-1], None),
    "no rows": (np.ones((0, 3)), np.ones(0), None), "words": (np.full((150, 3), "word"), rows()[1], None),
    "weights 0": (*rows(), np.zeros(150)), "weights short": (*rows(), np.ones(149)),
    "weights negative": (*rows(), np.r_[-1.0, np.ones(149)]), "weights nan": (*rows(), np.r_[np.nan, np.ones(149)]),
    "weights of one class": (*rows(), rows()[1].astype(float)), "weights wide": (*rows(), np.ones((150, 2))),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_ROWS)
@pytest.mark.parametrize("standardize", [False, True])
def test_bad_rows(standardize, what):
    said = refused("", AsyGCDSVC(threads=2, standardize=standardize).fit, *BAD_ROWS[what])
    if what in ("one label", "one word"):
        label = {"one label": "1.0", "one word": "spam"}[what]
        assert said == f"the labels must be of at least 2 classes; there is one class only, {label}"
    if "nan" in what or "inf" in what:
        assert "NaN" in said or "infinity" in said
    if what == "weights 0":
        assert "non-zero" in said


@pytest.mark.parametrize("multi_class", ["ovr", "ovo"])
def test_bad_rows_to_predict(multi_class):
    X, y = rows(classes=3, csr=True)
    model = fitted(X, y, multi_class=multi_class)
    bad = (np.ones((3, 3)), np.ones((3, 5)), sp.csr_matrix(np.ones((3, 9))), np.full((3, 4), np.nan), np.ones(4),
           np.ones((0, 4)), entry(np.inf))  # fmt: skip
    for T in bad:
        for call in (model.predict, model.decision_function):
            with pytest.raises(ValueError, match=r"\S"):
                call(T)
    refused("X has 5 features, but AsyGCDSVC is expecting 4 features as input", model.predict, np.ones((3, 5)))


# Finite, but their squares are not: refused, as casvm does, and not as a warning of numpy's.
@pytest.mark.parametrize("kernel", ["linear", "polynomial"])
def test_overflow(kernel):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        refused("its values overflow float64; scale the features", lambda: fitted(rows()[0] * 1e200, rows()[1],
                                                                                  kernel=kernel))  # fmt: skip


@pytest.mark.parametrize("kind", ["C", "F", "float32", "csr"])
@pytest.mark.parametrize("update", ["owned", "stochastic"])
def test_input_stays(update, kind):
    X, y = rows(60)
    X[np.abs(X) < 0.3] = 0
    make = {"C": np.array, "F": np.asfortranarray, "float32": np.float32, "csr": sp.csr_matrix}[kind]
    given, before, w = make(X), make(X).copy(), np.arange(60) % 3 + 1.0
    labels, weights = y.copy(), w.copy()
    for array in (*((given.data, given.indices, given.indptr) if kind == "csr" else (given,)), y, w):
        array.setflags(write=False)
    for standardize, sample_weight in ((False, None), (True, None), (True, w), (False, w)):
        model = fitted(
            given, y, sample_weight, standardize=standardize, update=update, threads=2, class_weight="balanced",
            warm_start=True,
        )  # fmt: skip
        model.fit(given, y, sample_weight)
        model.predict(given)
        model.decision_function(given)
    assert abs(given - before).sum() == 0
    np.testing.assert_array_equal(y, labels)
    np.testing.assert_array_equal(w, weights)


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
    close(decisions, -1.0 if n % 2 else 0.0, 1e-5)
    if n % 2:
        assert (model.predict(X) == 0).all()


@pytest.mark.parametrize("gamma", [1e6, 1e-12])
def test_extreme_gamma(gamma):
    """Every row alone, and no row different."""
    X, y = rows()
    K = rbf_kernel(X, gamma=gamma)
    is_solution(fitted(X, y, gamma=gamma, threads=2), K, y, K, X)


@pytest.mark.parametrize("threads", [1, 2])
def test_duplicates_with_opposite_labels(threads):
    X, y = rows(60)
    X, y = np.r_[X, X[:9]], np.r_[y, 1 - y[:9]]
    K = rbf_kernel(X, gamma=GAMMA)
    is_solution(fitted(X, y, threads=threads), K, y, K, X)


def test_nothing_but_zeros():
    for X in (np.zeros((20, 3)), sp.csr_matrix((20, 3))):
        for kernel in ("gaussian", "linear"):
            model = fitted(X, np.arange(20) % 2, kernel=kernel, threads=2)
            assert model.decision_function(X).tolist() == [0.0] * 20


def test_csr_with_stored_zeros_and_unsorted_indices():
    X, y = rows()
    S = sp.csr_matrix(X)
    S.data[::7] = 0
    odd = sp.csr_matrix((S.data.copy(), S.indices.copy(), S.indptr.copy()), shape=S.shape)
    for i in range(odd.shape[0]):
        row = slice(odd.indptr[i], odd.indptr[i + 1])
        odd.data[row], odd.indices[row] = odd.data[row][::-1].copy(), odd.indices[row][::-1].copy()
    odd.has_sorted_indices = False
    expected = fitted(S.toarray(), y).decision_function(S.toarray())
    close(fitted(odd, y, threads=2).decision_function(odd), expected)


def test_one_feature_and_two_rows():
    for threads in (1, 2):
        model = AsyGCDSVC(threads=threads).fit([[0.0], [1.0]], ["a", "b"])
        assert model.predict([[-0.5], [1.5]]).tolist() == ["a", "b"]


def test_predictions_do_not_change_the_model():
    X, y = rows()
    model = fitted(X, y)
    first = model.decision_function(X)
    model.predict(X[:7])
    np.testing.assert_array_equal(model.decision_function(X), first)


def test_more_than_there_can_be():
    X, y = rows()
    model = AsyGCDSVC(cache_gib=1e300, max_iter=10**30, gamma=GAMMA).fit(X, y)
    assert model.fit_status_ == 0
