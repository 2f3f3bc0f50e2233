"""The estimator's solution is that of the dual without a bias: two classes, more classes, standardised rows."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.asygcd_fits import GAMMA, fitted, is_solution, updates
from helpers.checks import near
from helpers.data import clouds, dense, formats
from sklearn.metrics.pairwise import linear_kernel, polynomial_kernel, rbf_kernel, sigmoid_kernel
from sklearn.preprocessing import StandardScaler

from asygcd import AsyGCDSVC
from cacore.machine.memory import GIB

# -- two classes: the dual without a bias ------------------------------------------------------------


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
    """Sparse rows with more features than are packed."""
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


# -- standardised ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", ["scale", GAMMA])
@pytest.mark.parametrize("weighted", [False, True], ids=["rows alike", "rows weighted"])
@formats
def test_standardized(csr, weighted, gamma):
    """Standardising equals scaling by hand; CSR rows are not shifted."""
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
