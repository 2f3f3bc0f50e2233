"""Classifiers that solve the whole problem exactly are scikit-learn's SVC: SMOSVC, Dis-SMO, and trees that go on."""

from __future__ import annotations

import warnings
from itertools import combinations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import near
from helpers.data import as_csr, clouds, first_classes, formats, unsorted
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import SVC, SVR, NuSVC, NuSVR, OneClassSVM

from casvm import (
    DCSVC,
    SMOSVC,
    SMOSVR,
    CascadeSVC,
    DCFilterSVC,
    DisSMOSVC,
    SMONuSVC,
    SMONuSVR,
    SMOOneClassSVM,
    SMOQuantileSVR,
)

TOL = 1e-6  # of both solvers
EXACT = {
    "smosvc": lambda **more: SMOSVC(tol=TOL, **more),
    "dcsvm": lambda **more: DCSVC(3, random_state=0, tol=TOL, **more),
    "dissmo": lambda **more: DisSMOSVC(tol=TOL, **more),
    "dissmo in rounds": lambda **more: DisSMOSVC(working_set=64, tol=TOL, **more),
    "cascade": lambda **more: CascadeSVC(3, random_state=0, passes=50, tol=TOL, **more),
    "dcfilter": lambda **more: DCFilterSVC(3, random_state=0, passes=50, tol=TOL, **more),
}
exact = pytest.mark.parametrize("name", EXACT)


def same(model, reference, T):
    """Both solved to 1e-6. Decisions to 1e-5 of the largest, coefficients to 2e-4 of C: the dual is flat."""
    np.testing.assert_array_equal(model.classes_, reference.classes_)
    assert model.classes_.dtype == reference.classes_.dtype
    np.testing.assert_array_equal(model.predict(T), reference.predict(T))
    for shape in ("ovo", "ovr") if isinstance(model, SMOSVC) else ("ovr",):
        if isinstance(model, SMOSVC):
            model.set_params(decision_function_shape=shape)
        reference.set_params(decision_function_shape=shape)
        got, expected = model.decision_function(T), reference.decision_function(T)
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        near(got, expected, 1e-5 * max(1.0, np.abs(expected).max()))
    near(model.intercept_, reference.intercept_, 1e-5 * model.C)
    np.testing.assert_array_equal(model.support_, reference.support_)
    np.testing.assert_array_equal(model.n_support_, reference.n_support_)
    for name in ("support_", "n_support_", "dual_coef_", "intercept_"):
        assert getattr(model, name).dtype == getattr(reference, name).dtype
    if model.kernel != "precomputed":
        assert abs(model.support_vectors_ - reference.support_vectors_).sum() == 0
        assert sp.issparse(model.support_vectors_) == sp.issparse(reference.support_vectors_)
    expected = reference.dual_coef_.toarray() if sp.issparse(reference.dual_coef_) else reference.dual_coef_
    assert model.dual_coef_.shape == expected.shape
    near(model.dual_coef_, expected, 2e-4 * model.C)
    if isinstance(model, SMOSVC):
        assert model.fit_status_ == reference.fit_status_ == 0


# -- all of them -------------------------------------------------------------------------------

KERNELS = {
    "rbf": {"kernel": "rbf"},
    "linear": {"kernel": "linear", "C": 0.5},
    "poly": {"kernel": "poly", "degree": 2, "coef0": 1.0, "gamma": 0.1},
    "sigmoid": {"kernel": "sigmoid", "gamma": 0.01, "C": 5.0},  # nearly linear: its kernel has one solution then
}
LABELS = {
    "words": np.array(["zero", "one", "a longer word"]), "objects": np.array(["zero", "one", "two"], object),
    "floats": np.array([-2.0, 7.0, 1e6]), "far integers": np.array([2**40, -3, 7]),
}  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("name", "k"), [*((name, k) for name in EXACT for k in (2, 3)), ("smosvc", 10)])
def test_is_svc(name, k, kernel, digits):
    X, y = first_classes(digits, k)
    model, reference = EXACT[name](**KERNELS[kernel]).fit(X, y), SVC(tol=TOL, **KERNELS[kernel]).fit(X, y)
    same(model, reference, digits[0])
    np.testing.assert_array_equal(model.support_vectors_, X[model.support_])
    if name != "smosvc":
        return
    assert len(model.objective_) == len(model.gap_) == len(model.n_iter_) == k * (k - 1) // 2
    assert (model.gap_ < TOL).all()
    assert hasattr(model, "coef_") == (kernel == "linear")
    if kernel == "linear":
        near(model.coef_, reference.coef_, 1e-5)


@exact
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("what", LABELS)
def test_labels(what, k, name, digits):
    X, y = first_classes(digits, k)
    labels = LABELS[what][y]
    model = EXACT[name]().fit(X, labels)
    same(model, SVC(tol=TOL).fit(X, labels), X)
    assert model.predict(X).dtype == labels.dtype or what == "objects"


@exact
@pytest.mark.parametrize("weight", [{0: 0.2, 1: 4.0}, {2: 0.05}, "balanced"], ids=str)
@pytest.mark.parametrize("weighted", [False, True], ids=["rows alike", "rows weighted"])
def test_class_weight(weight, weighted, name, digits):
    X, y = first_classes(digits, 3)
    kept = (y > 0) | (np.arange(len(y)) % 4 == 0)
    X, y = X[kept], y[kept]
    w = np.random.default_rng(1).uniform(0.5, 2, len(y)) if weighted else None
    model = EXACT[name](C=0.2, class_weight=weight).fit(X, y, w)
    if weight == "balanced" and weighted:  # by the weights, as scikit-learn's other estimators and our parts count
        count = np.bincount(y, w)
        weight = dict(enumerate(count.sum() / (3 * count)))
    reference = SVC(tol=TOL, C=0.2, class_weight=weight).fit(X, y, w)
    same(model, reference, X)
    if name == "smosvc":
        np.testing.assert_allclose(model.class_weight_, reference.class_weight_, rtol=1e-12)


@exact
def test_more_classes_in_csr(name, digits):
    X, y = first_classes(digits, 6)
    S, y = sp.csr_matrix(X[:160]), y[:160]
    same(EXACT[name](C=0.5).fit(S, y), SVC(tol=TOL, C=0.5).fit(S, y), S)


@exact
@pytest.mark.parametrize("k", [2, 3])
@formats
def test_float32(csr, k, name, digits):
    """Kept in single precision; few rows are solved in double all the same, and predicted to 1e-4."""
    X, y = first_classes(digits, k)
    X = as_csr(np.float32(X + 0.01 * np.random.default_rng(0).normal(size=X.shape) * (X > 0)), csr)
    model, reference = EXACT[name](gamma=0.05).fit(X, y), SVC(tol=TOL, gamma=0.05).fit(X, y)
    assert model.support_vectors_.dtype == np.float32
    np.testing.assert_array_equal(model.support_, reference.support_)
    near(model.intercept_, reference.intercept_, 1e-5)
    decisions = model.decision_function(X)
    assert decisions.dtype == np.float64
    near(decisions, reference.decision_function(X), 1e-4)
    np.testing.assert_array_equal(model.predict(X), reference.predict(X))


@exact
@pytest.mark.parametrize("k", [2, 3])
@formats
def test_weight_zero_is_absence(csr, k, name):
    """With a gamma that does not depend on the rows."""
    X, y = clouds(k=k, d=3)
    X = as_csr(X, csr)
    w = np.random.default_rng(0).integers(0, 3, 150).astype(float)
    kept = w > 0
    model = EXACT[name](gamma=0.5).fit(X, y, w)
    near(model.decision_function(X), SVC(gamma=0.5, tol=TOL).fit(X[kept], y[kept], w[kept]).decision_function(X), 1e-5)
    assert kept[model.support_].all()


@exact
@formats
def test_rows_all_equal(name, csr):
    """There is nothing to learn but which class has more rows, and support vectors alone do not tell that."""
    X, y = as_csr(np.ones((11, 2)), csr), np.arange(11) % 2
    decisions = EXACT[name]().fit(X, y).decision_function(X)
    assert np.ptp(decisions) == 0
    expected = SVC().fit(X, y).decision_function(X)
    near(decisions, 0 * expected if name in ("cascade", "dcfilter") else expected, 1e-2)


# -- SMOSVC alone ------------------------------------------------------------------------------


def test_names_of_kernels(digits):
    X, y = first_classes(digits, 3)
    for name, known in (("rbf", "gaussian"), ("poly", "polynomial")):
        expected = SMOSVC(kernel=known).fit(X, y).decision_function(X)
        np.testing.assert_array_equal(SMOSVC(kernel=name).fit(X, y).decision_function(X), expected)


@pytest.mark.parametrize("gamma", ["scale", "auto", 0.3])
def test_gamma(gamma):
    """Far from 0, where a variance by squares loses its digits, and with features of different size."""
    X, y = clouds(d=3)
    X = X * [1, 20, 0.1] + [1e4, 0, -50]
    same(SMOSVC(tol=TOL, gamma=gamma).fit(X, y), SVC(tol=TOL, gamma=gamma).fit(X, y), X)


@pytest.mark.parametrize("k", [2, 3])
def test_objective_is_that_of_the_dual(k, digits):
    X, y = first_classes(digits, k)
    model = SMOSVC(tol=TOL, gamma=0.05).fit(X, y)
    for pair, (i, j) in enumerate(combinations(range(k), 2)):
        one = (y == i) | (y == j)
        beta = SVC(tol=TOL, gamma=0.05).fit(X[one], y[one])
        K = rbf_kernel(X[one][beta.support_], gamma=0.05)
        expected = np.abs(beta.dual_coef_).sum() - 0.5 * float((beta.dual_coef_ @ K @ beta.dual_coef_.T)[0, 0])
        assert model.objective_[pair] == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("k", [2, 3])
def test_sample_weight(k, digits):
    X, y = first_classes(digits, k)
    w = np.random.default_rng(1).uniform(0.1, 3, len(y))
    same(SMOSVC(tol=TOL, C=0.3).fit(X, y, w), SVC(tol=TOL, C=0.3).fit(X, y, w), X)


def test_class_weight_by_label(digits):
    X, y = first_classes(digits, 2)
    labels = np.array(["rare", "common"])[y]
    model, reference = (cls(tol=TOL, class_weight={"rare": 5.0}, C=0.1).fit(X, labels) for cls in (SMOSVC, SVC))
    same(model, reference, X)


@pytest.mark.parametrize("k", [2, 3])
def test_precomputed(k, digits):
    X, y = first_classes(digits, k)
    train, test = slice(0, None, 2), slice(1, None, 2)
    K, T = rbf_kernel(X[train], gamma=0.05), rbf_kernel(X[test], X[train], gamma=0.05)
    model, reference = (cls(kernel="precomputed", tol=TOL).fit(K, y[train]) for cls in (SMOSVC, SVC))
    same(model, reference, T)
    assert model.support_vectors_.shape == (len(model.support_), 0)
    by_rows = SMOSVC(gamma=0.05, tol=TOL).fit(X[train], y[train])
    near(model.decision_function(T), by_rows.decision_function(X[test]), 1e-5)
    searches = [GridSearchCV(cls(kernel="precomputed", tol=TOL), {"C": [0.1, 1.0]}, cv=3) for cls in (SMOSVC, SVC)]
    found, expected = (search.fit(K, y[train]).cv_results_["mean_test_score"] for search in searches)
    np.testing.assert_array_equal(found, expected)  # K is cut both ways


@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_csr(kernel, k, digits):
    X, y = first_classes(digits, k)
    S, T = sp.csr_matrix(X), sp.csr_matrix(digits[0])
    model, reference = (cls(tol=TOL, kernel=kernel, C=0.5).fit(S, y) for cls in (SMOSVC, SVC))
    same(model, reference, T)
    assert sp.issparse(model.support_vectors_)
    assert abs(model.support_vectors_ - S[model.support_]).sum() == 0
    if kernel == "linear":
        assert sp.issparse(model.coef_)
        near(model.coef_.toarray(), reference.coef_.toarray(), 1e-5)
    dense = SMOSVC(tol=TOL, kernel=kernel, C=0.5).fit(X, y).decision_function(digits[0])
    for other in (sp.csr_matrix, sp.csr_array, sp.csc_matrix, sp.coo_array, np.array):
        near(model.decision_function(other(digits[0])), dense, 1e-5)


@pytest.mark.parametrize("more", [{"shrinking": False}, {"cache_gib": 0}], ids=str)
def test_neither_shrinking_nor_cache_changes_what_is_found(more, digits):
    X, y = digits
    same(SMOSVC(tol=TOL, **more).fit(X, y), SMOSVC(tol=TOL).fit(X, y), X)


def test_verbose(digits, capsys):
    SMOSVC(verbose=True).fit(*first_classes(digits, 2))
    assert capsys.readouterr().err == ""


def test_one_vs_rest_is_that_of_svc(digits):
    X, y = first_classes(digits, 3)
    found, expected = (OneVsRestClassifier(cls(tol=TOL)).fit(X, y).decision_function(X) for cls in (SMOSVC, SVC))
    near(found, expected, 1e-5)


@pytest.mark.parametrize("gamma", [1e6, 1e-12])
def test_extreme_gamma(gamma):
    """Every row alone, and no row different: as SVC."""
    X, y = clouds(d=3)
    model, reference = SMOSVC(gamma=gamma, tol=TOL).fit(X, y), SVC(gamma=gamma, tol=TOL).fit(X, y)
    near(model.decision_function(X), reference.decision_function(X), 1e-5)


def test_decision_of_exactly_zero():
    """A file that LIBSVM reads must say the same, and so must two classes among three."""
    K, y = np.ones((10, 10)), np.arange(10) % 2
    model, reference = (cls(kernel="precomputed").fit(K, y) for cls in (SMOSVC, SVC))
    assert model.decision_function(K).tolist() == reference.decision_function(K).tolist() == [0.0] * 10
    np.testing.assert_array_equal(model.predict(K), reference.predict(K))


def test_duplicates_with_opposite_labels():
    X, _ = clouds(40, d=3)
    X, y = np.r_[X, X], np.repeat([0, 1], 40)
    model, reference = SMOSVC(tol=TOL).fit(X, y), SVC(tol=TOL).fit(X, y)
    near(model.decision_function(X), reference.decision_function(X), 1e-5)
    X, y = clouds(60, d=3)
    X, y = np.r_[X, X[:9]], np.r_[y, 1 - y[:9]]  # some rows only
    same(SMOSVC(tol=TOL).fit(X, y), SVC(tol=TOL).fit(X, y), X)


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_zero_row_in_csr(kernel):
    X, y = clouds(d=3)
    X[[0, 17, -1]] = 0
    S = as_csr(X, True, 0.5)
    same(SMOSVC(kernel=kernel, tol=TOL).fit(S, y), SVC(kernel=kernel, tol=TOL).fit(S, y), S)


def test_csr_with_stored_zeros_and_unsorted_indices():
    X, y = clouds(d=3)
    S = sp.csr_matrix(X)
    S.data[::7] = 0
    odd = unsorted(S)
    expected = SMOSVC(tol=TOL).fit(S.toarray(), y).decision_function(S.toarray())
    near(SMOSVC(tol=TOL).fit(odd, y).decision_function(odd), expected, 1e-5)


@pytest.mark.parametrize(("ours", "theirs", "y"), [
    (SMOSVC, SVC, np.arange(30) % 3), (SMONuSVC, NuSVC, np.arange(30) % 2), (SMOSVR, SVR, np.arange(30.0)),
    (SMONuSVR, NuSVR, np.arange(30.0)), (SMOOneClassSVM, OneClassSVM, None),
    (SMOQuantileSVR, SVR, np.arange(30.0)),
])  # fmt: skip
def test_facts_of_the_fit_as_scikit_learn_names_them(ours, theirs, y):
    """Shapes of the training rows, among them one whose weight is 0, and the state of the solver."""
    X, weights = np.random.default_rng(0).normal(size=(30, 4)), np.append(0.0, np.ones(29))
    made = [one().fit(X, y, sample_weight=weights) for one in (ours, theirs)]
    assert made[0].shape_fit_ == made[1].shape_fit_ == (30, 4)
    assert made[0].fit_status_ == made[1].fit_status_ == 0
    for name in ("n_iter_", "n_support_", "support_", "intercept_", "dual_coef_"):
        assert np.size(getattr(made[0], name)) > 0
        assert (name in made[0]._repr_html_()) == (name in made[1]._repr_html_())  # from scikit-learn 1.7 on


@pytest.mark.parametrize("y", [
    np.arange(30) % 3, np.arange(30) % 2 == 0, np.array(["b", "a", "c"] * 10), np.array([2.0, 1.0] * 15),
    np.array(["b", "a"] * 15, object), (np.arange(30) % 3).tolist(),
], ids=["numbers", "booleans", "texts", "floats", "objects", "list"])  # fmt: skip
def test_labels_in_any_form(y):
    X = np.random.default_rng(0).normal(size=(30, 4))
    ours, theirs = SMOSVC().fit(X, y), SVC().fit(X, y)
    np.testing.assert_array_equal(ours.classes_, theirs.classes_)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))


def test_labels_that_hardly_repeat():
    """scikit-learn's warning that the targets may be those of a regression."""
    told = []
    for estimator in (SMOSVC(), SVC()):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            estimator.fit(np.arange(50.0)[:, None], np.arange(50) // 2 * np.tile([1, -1], 25))
        told.append([str(one.message) for one in caught])
    assert told[0] == told[1]
    assert not told[0] or "greater than 50%" in told[0][0]  # older versions do not warn
