"""Precision of kernel values: a bound that holds at all distances, and solvers whose answers are those of float64."""

from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.spatial.distance import cdist
from sklearn.base import RegressorMixin
from sklearn.model_selection import KFold, cross_val_score
from sklearn.svm import SVC, SVR

from asygcd import AsyGCDSVC
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.kernels.evaluate import DIFFERENCES, at_distances
from cacore.kernels.precision import Accuracy, Extent, cheapest, rounding
from cacore.svm.decision import expansion
from cakrr import DKRR
from casvm import (
    CASVC,
    CASVR,
    SMOSVC,
    SMOSVR,
    CAQuantileSVR,
    DisSMOSVC,
    DisSMOSVR,
    SMONuSVC,
    SMONuSVR,
    SMOOneClassSVM,
)  # fmt: skip
from partition import KBalance, KMeans

KERNELS = {
    name: Kernel(name, gamma, degree)
    for name, gamma, degree in (
        ("gaussian", 0.5, 3), ("laplacian", 0.5, 3), ("matern32", 0.5, 3), ("matern52", 0.5, 3), ("rational", 0.5, 2),
        ("wendland0", 0.3, 4), ("wendland2", 0.3, 4), ("l1", 0.5, 3), ("wendland2_product", 0.3, 3),
    )
}  # fmt: skip
FORMS = {"dense": np.array, "csr": sp.csr_matrix}


@cache
def placed(name, n=300):
    """Rows of four features, of which two decide: standard, far away, in groups, or nearly twice the same."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(n, 4))
    if name == "groups":
        X[:, 0] = 5000.0 * rng.integers(-2, 3, n)
    elif name == "wide groups":
        X[:, 0] = 1e8 * rng.integers(-2, 3, n)
    elif name == "far":
        X += 1e7
    elif name == "a far column":
        X[:, 0] += 1e8
    elif name == "pairs":
        X[1::2] = X[::2] + 1e-6 * rng.normal(size=X[1::2].shape)
    return X


PLACES = ("standard", "groups", "wide groups", "far", "a far column", "pairs")


def true_values(kernel, X):
    """Kernel values from differences of the features in double precision."""
    if kernel.kind == "l1":
        return np.exp(-kernel.gamma * cdist(X, X, "cityblock"))
    if kernel.separable:
        gaps = np.minimum(kernel.gamma * np.abs(X[:, None] - X), 1.0)
        return ((1 - gaps) ** 3 * (1 + 3 * gaps)).prod(axis=2)
    squares = cdist(X, X, "sqeuclidean").ravel()
    values = np.empty_like(squares)
    at_distances(squares, values, np.zeros_like(squares), kernel.parameters(np.dtype(float)))
    return values.reshape(len(X), -1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_layout_is_as_accurate_as_asked(kernel, place, form):
    X = placed(place)
    expected, rows = true_values(kernel, X), FORMS[form](X)
    resolution = 8 * np.finfo(float).eps * np.abs(X - X.mean(axis=0)).max()  # of the rows themselves
    for dtype in ("float32", "float64"):
        for allowed in (1e-3, 1e-6):
            layout = Layout.of(rows, kernel, dtype, None, Accuracy(allowed))
            K = np.empty(expected.shape, layout.dtype)
            columns = layout.columns(rows)
            for lo, hi in columns.tasks(2):
                columns.add(kernel, layout.rows(rows), lo, hi, store=K)
            assert np.abs(K - expected).max() <= allowed + resolution


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_blocks_of_prepared_rows_are_accurate(kernel, place, form):
    X = placed(place)
    points = kernel.points(FORMS[form](X))
    K = kernel.block(points[:40], points)
    np.testing.assert_allclose(K, true_values(kernel, X)[:40], rtol=0, atol=3e-7)
    assert sp.issparse(points.X) == (form == "csr" and not points.gaps and place != "far")


def test_the_bound_is_taken_at_all_distances():
    """A kernel that is 0 at typical distances is steep inside a group: probing one distance would miss it."""
    extent = Extent.of(placed("groups"))
    for name in ("laplacian", "wendland0"):
        assert rounding(KERNELS[name], extent, np.float32) > 0.5
        assert rounding(KERNELS[name], extent, np.float32, DIFFERENCES) < 5e-3
    assert rounding(KERNELS["gaussian"], Extent.of(placed("standard")), np.float32) < 1e-4
    assert rounding(KERNELS["gaussian"], Extent.of(placed("wide groups")), np.float64) > 0.5


def test_sums_that_cannot_be_accurate_are_refused():
    extent = Extent(1e20, 1e10, 1e10, 50_000)
    with pytest.raises(
        InputError, match=r"so far from each other .* the rounding of its values hides the solution; scale the features"
    ):
        cheapest([KERNELS["gaussian"]], extent, np.float64, 0, 20.0, False, Accuracy(1e-5, 1e-2))
    X, y = classes("standard")
    with pytest.raises(InputError, match=r"polynomial kernel: the rows lie so far .* centre and scale the features"):
        SMOSVC(kernel="polynomial", degree=2, gamma=1.0, C=1e6).fit(X + 1e10, y)
    with pytest.raises(InputError, match=r"linear kernel: the rows lie so far from 0"):  # no bias takes up the shift
        AsyGCDSVC(kernel="linear", C=1e6).fit(X + 1e10, y)


def violation(K, s, beta, C):
    """Largest violation and the dual objective of a classifier's coefficients, in double precision."""
    v = s - K @ beta
    lower, upper = np.minimum(0, C * s), np.maximum(0, C * s)
    return v[beta < upper].max() - v[beta > lower].min(), np.abs(beta).sum() - 0.5 * beta @ K @ beta


@cache
def classes(place, n=2100):
    """More rows than are always solved in double precision."""
    X = placed(place, n)
    return X, np.where(np.sin(2 * X[:, 1]) + X[:, 2] * X[:, 3] > 0, 1, -1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["gaussian", "laplacian", "l1"])
@pytest.mark.parametrize("place", ["groups", "a far column", "pairs"])
def test_a_classifier_reports_its_true_violation(place, kind, form):
    X, y = classes(place)
    C, gamma = 30.0, 0.5
    K = true_values(Kernel(kind, gamma), X)
    model = SMOSVC(kernel=kind, C=C, gamma=gamma).fit(FORMS[form](X), y)
    beta = np.zeros(len(y))
    beta[model.support_] = model.dual_coef_.ravel()
    gap, dual = violation(K, y.astype(float), beta, C)
    assert model.fit_status_ == 0
    assert float(np.max(model.gap_)) == pytest.approx(gap, abs=1e-5)
    assert gap < 1e-3
    expected = SVC(kernel="precomputed", C=C, tol=1e-4).fit(K, y)
    assert dual == pytest.approx(np.abs(expected.dual_coef_).sum() - 0.5 * quadratic(expected, K), rel=1e-6)


def quadratic(model, K):
    beta, support = model.dual_coef_.ravel(), model.support_
    return beta @ K[np.ix_(support, support)] @ beta


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "model",
    [
        AsyGCDSVC(kernel="laplacian", C=10.0, gamma=0.5), DisSMOSVC(kernel="laplacian", C=10.0, gamma=0.5),
        CASVC(1, kernel="laplacian", C=10.0, gamma=0.5, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)  # fmt: skip
def test_solvers_agree_on_classes_in_single_precision(model, form):
    X, y = classes("groups")
    exact = SVC(kernel="precomputed", C=10.0).fit(true_values(KERNELS["laplacian"], X), y)
    model.fit(FORMS[form](X), y)
    expected = exact.score(true_values(KERNELS["laplacian"], X), y)
    assert model.score(FORMS[form](X), y) == pytest.approx(expected, abs=3e-3)


def test_one_class_in_groups():
    X, K = classes("groups")[0], true_values(KERNELS["laplacian"], classes("groups")[0])
    model = SMOOneClassSVM(kernel="laplacian", gamma=0.5, nu=0.2).fit(X)
    np.testing.assert_allclose(
        model.decision_function(X), K[:, model.support_] @ model.dual_coef_.ravel() + model.intercept_, atol=1e-6
    )
    assert 0.15 < np.mean(model.predict(X) < 0) <= 0.2


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", ["groups", "a far column"])
def test_a_search_scores_settings_as_libsvm_does(place, form):
    X = placed(place, 200)
    f = np.sin(2 * X[:, 1]) + X[:, 2] * X[:, 3]
    model = SMOSVR(C=[1.0, 30.0], gamma=[0.3, 1.0], epsilon=0.1, cv=4).fit(FORMS[form](X), f)
    for params, score in zip(model.cv_results_["params"], model.cv_results_["mean_test_score"], strict=True):
        reference = SVR(C=params["C"], gamma=params["gamma"], epsilon=0.1)
        folds = KFold(4, shuffle=True, random_state=0)
        assert score == pytest.approx(cross_val_score(reference, X - X.mean(axis=0), f, cv=folds).mean(), abs=0.08)


@pytest.mark.parametrize("form", FORMS)
def test_probabilities_of_rows_in_groups(form):
    X, y = placed("groups", 500), None
    y = np.where(np.sin(2 * X[:, 1]) + X[:, 2] * X[:, 3] > 0, 1, -1)
    model = CASVC(1, C=10.0, gamma=0.5, probability=True, random_state=0).fit(FORMS[form](X), y)
    p = model.predict_proba(FORMS[form](X))[:, 1]
    assert -np.mean(np.where(y > 0, np.log(p), np.log(1 - p))) < 0.3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", ["wide groups", "a far column"])
def test_ridge_regression_of_rows_that_products_cannot_tell_apart(place, form):
    X = placed(place, 300)
    y = np.sin(2 * X[:, 1]) + X[:, 2]
    K = true_values(Kernel("gaussian", 0.5), X)
    alpha = np.linalg.solve(K + 1e-3 * len(y) * np.eye(len(y)), y - y.mean())
    model = DKRR(sigma=1.0, lam=1e-3, standardize=False).fit(FORMS[form](X), y)
    np.testing.assert_allclose(model.predict(FORMS[form](X)), K @ alpha + y.mean(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("partitioner", [KMeans, KBalance])
def test_csr_rows_far_from_0_are_divided_as_dense_ones(partitioner):
    X = np.random.default_rng(3).normal(size=(600, 3)) * [1.0, 3.0, 3.0]
    X[:, 0] += 1e8
    dense, sparse = (partitioner(n_parts=4, random_state=0).fit(form(X)) for form in FORMS.values())
    np.testing.assert_array_equal(dense.labels_, sparse.labels_)
    np.testing.assert_array_equal(dense.predict(X), sparse.predict(sp.csr_matrix(X)))


OFFSETS = (1e3, 1e6, 1e9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("model", [SMOSVR, CASVR, DisSMOSVR, SMONuSVR, SMOSVC, CASVC, SMONuSVC])
def test_the_linear_kernel_does_not_depend_on_where_the_rows_lie(model, offset, form):
    """Offsets are whole numbers, and rows multiples of 2^-20, so that both are the same rows to the last bit."""
    X = np.round(placed("standard") * 2**20) / 2**20
    far = FORMS[form](X + offset)
    y = np.round(X[:, 0] + 0.3 * X[:, 1], 1)
    y = y if issubclass(model, RegressorMixin) else np.digitize(y, [-0.5, 0.5])  # three classes
    settings = {"tol": 1e-5, "kernel": "linear"} | (
        {"partitioner": KMeans(1)} if issubclass(model, CASVC | CASVR) else {}
    )
    near = model(**settings).fit(X, y)
    got = model(**settings).fit(far, y)
    answer = "predict" if issubclass(model, RegressorMixin) else "decision_function"
    expected, values = getattr(near, answer)(X), getattr(got, answer)(far)
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-3)
    if form == "dense":
        np.testing.assert_allclose(getattr(got, answer)(sp.csr_matrix(far)), values, rtol=0, atol=1e-9 * offset)


@pytest.mark.parametrize("offset", OFFSETS)
def test_quantiles_by_the_linear_kernel_of_rows_far_from_0(offset):
    X = np.round(placed("standard") * 2**20) / 2**20
    y = X[:, 0] + np.random.default_rng(3).normal(size=len(X))
    levels = [0.2, 0.5, 0.9]
    near = CAQuantileSVR(quantile=levels, kernel="linear", tol=1e-5, partitioner=KMeans(1)).fit(X, y)
    got = CAQuantileSVR(quantile=levels, kernel="linear", tol=1e-5, partitioner=KMeans(1)).fit(X + offset, y)
    np.testing.assert_allclose(got.predict(X + offset), near.predict(X), rtol=0, atol=1e-3)


def test_decisions_of_large_weights_are_right_in_single_precision():
    """A value of a kernel near 1 has seven digits; the sum of many large weights needs more."""
    rng = np.random.default_rng(5)
    A, X = rng.normal(size=(400, 2)).astype(np.float32), rng.normal(size=(50, 2)).astype(np.float32)
    kernel, weights = Kernel("gaussian", 1e-3), 1e5 * rng.choice([-1.0, 1.0], size=(400, 1))
    exact = np.exp(-1e-3 * cdist(X.astype(float), A.astype(float), "sqeuclidean")) @ weights
    np.testing.assert_allclose(expansion(kernel, A, weights, X), exact, rtol=0, atol=1e-2)


def test_single_precision_is_refused_for_too_narrow_kernels():
    """One row far from the others makes the deviation large."""
    rng = np.random.default_rng(5)
    X = 1e6 + rng.normal(size=(200, 2))
    X[0] += 1e5
    y = X[:, 0] - 1e6
    narrow = {"sigma": 1e-4, "lam": 1e-3, "dtype": "float32"}
    for standardize, sigma in ((True, 1e-4), (False, 0.5)):
        with pytest.raises(InputError, match=r"^feature 0: its mean is 1\.0005e\+06 and the width of the kernel"):
            DKRR(**narrow | {"sigma": sigma, "standardize": standardize}).fit(X, y)
        DKRR(**narrow | {"sigma": sigma, "standardize": standardize, "dtype": "float64"}).fit(X, y)
    constant = np.column_stack([np.full(200, 3e6), X[:, 0] - 1e6])
    DKRR(**narrow).fit(constant, y)


def test_single_precision_is_refused_for_unresolved_csr_columns():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(200, 3))
    X[:, 1] += 2e7
    y = X[:, 1] - 2e7
    for rows in (sp.csr_matrix(X), sp.csc_array(X), X):
        with pytest.raises(InputError, match=r"^feature 1: its mean is 2e\+07 and its standard deviation"):
            DKRR(dtype="float32", standardize=False).fit(rows, y)
        DKRR(standardize=False).fit(rows, y)
    counts = sp.csr_matrix(np.where(rng.random((200, 3)) < 0.3, 3e7, 0.0))  # one number and zeros
    DKRR(dtype="float32", standardize=False).fit(counts, y)
