"""Kernels of distances in every family, against scikit-learn's models of their precomputed matrices."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.data import dense, formats, moved
from helpers.references import DISTANCES, PRODUCTS, matrix
from scipy.spatial.distance import cdist
from sklearn.kernel_ridge import KernelRidge
from sklearn.svm import SVC

from asygcd import AsyGCDSVC
from asygcd.asygcd_model import AsyGCDModel
from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.kernels import KINDS, Kernel
from cacore.kernels.columns import Layout
from cacore.kernels.registry import FEATURES
from cacore.svm.problem import numeric_gamma
from cakrr import BKRR2, DKRR, KRRModel, TwoLevelKRR
from cakrr.bkrr2 import bkrr2
from cakrr.options import RidgeOptions
from casvm import CASVC, SMOSVC, SVMModel, export_libsvm

GAMMA, C, SIGMA = {"laplacian": 0.6, "l1": 0.4, "wendland2": 0.1, "wendland2_product": 0.2}, 3.0, 1.3
kinds = pytest.mark.parametrize(
    "kind", [*(kind for kind in DISTANCES if kind not in ("wendland0", "wendland4")), "wendland2_product"]
)
dtypes = pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])


def kernel_of(kind):
    return Kernel(kind, GAMMA.get(kind, 0.5), degree=4)


def rounding(values, dtype):
    return max(1.0, float(np.abs(values).max())) * (1e-13 if dtype == "float64" else 1e-5)


@kinds
@formats
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("d", [1, 9, 65, 4500])
def test_values_of_odd_sizes(d, dtype, csr, kind):
    """Blocks, triangles and panels against scipy's distances; rows that are there twice are at distance 0."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(131 if d < 1000 else 33, d)) * (rng.random((1, d)) < 0.6)
    X[7] = X[3]
    X = (sp.csr_matrix if csr else np.array)(X.astype(dtype))
    kernel = Kernel(kind, degree=4).with_sigma(2 * KINDS[kind].typical_distance(d))
    n, want, points = X.shape[0], matrix(kernel, X), kernel.points(X)
    K, G = np.empty((2, n, n), dtype)
    kernel.gram(points, K)
    kernel.compare(points, G)
    kernel.gram_from(G, points)
    layout = Layout.of(X, kernel, dtype)
    columns, kept = layout.columns(X), np.empty((n, n), dtype)
    for lo, hi in columns.tasks(3):
        columns.add(kernel, layout.rows(X), lo, hi, store=kept)
    lower = np.tril_indices(n)
    # In one dimension rows come so close that their distance is rounding: the root loses half the digits there.
    tolerance = {"float64": 1e-12, "float32": 1e-5}[dtype] if d > 1 else {"float64": 1e-7, "float32": 2e-3}[dtype]
    if KINDS[kind].separable and dtype == "float32":
        tolerance *= max(1.0, d / 1000)  # one rounding per factor
    for got in (K[lower], G[lower], kept[lower]):
        np.testing.assert_allclose(got, want[lower], rtol=0, atol=tolerance)
    if kind != "rational":
        assert K[7, 3] == G[7, 3] == 1
    assert (np.diagonal(K) == 1).all()


@pytest.mark.parametrize("kind", ["laplacian", "matern32", "matern52", "l1"])
def test_smallest_and_largest_widths(kind):
    """Nothing is infinite or not a number, and far rows are next to 0."""
    X = np.random.default_rng(0).normal(size=(20, 3))
    for dtype in ("float64", "float32"):
        for sigma in (1e-300, 1e-30, 1e30, 1e100):
            points = Kernel(kind).points(X.astype(dtype))
            K = Kernel(kind).with_sigma(sigma).block(points, points)
            np.testing.assert_allclose(K, np.eye(20) if sigma < 1 else np.ones((20, 20)), rtol=0, atol=1e-13)


@kinds
@formats
@dtypes
def test_smo(dtype, tolerance, csr, kind, tmp_path):
    (X, y), (T, _), kernel = moved(csr=csr, dtype=dtype), moved(60, 1, csr, dtype), kernel_of(kind)
    y = y > 3
    model = SMOSVC(kernel=kind, gamma=kernel.gamma, degree=4, C=C, tol=1e-6).fit(X, y)
    exact = SVC(kernel="precomputed", C=C, tol=1e-6).fit(matrix(kernel, X), y)
    got, want = model.decision_function(T), exact.decision_function(matrix(kernel, T, X))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)
    model.model_.save(tmp_path / "model.h5")
    np.testing.assert_array_equal(SVMModel.load(tmp_path / "model.h5").predict(T), model.predict(T))
    with pytest.raises(InputError, match=f"LIBSVM has no {kind} kernel"):
        export_libsvm(model.model_, tmp_path / "libsvm.model")


@kinds
@formats
def test_asygcd(csr, kind, tmp_path):
    """The violation of each coordinate, from the brute-force matrix, is under the tolerance."""
    (X, y), (T, _), kernel = moved(csr=csr), moved(60, 1, csr), kernel_of(kind)
    y = np.where(y > 3, 1, -1)
    fitted = AsyGCDSVC(kernel=kind, gamma=kernel.gamma, degree=4, C=C, tol=1e-5, threads=2).fit(X, y)
    model, beta = fitted.model_, np.zeros(len(y))
    beta[model.rows] = model.coef[:, 0]
    alpha, gradient = y * beta, y * (matrix(kernel, X) @ beta) - 1.0
    assert np.abs(alpha - np.clip(alpha - gradient, 0, C)).max() < 2e-5
    np.testing.assert_allclose(fitted.decision_function(T), matrix(kernel, T, X) @ beta, rtol=0, atol=1e-9)
    model.save(tmp_path / "model.h5")
    np.testing.assert_array_equal(AsyGCDModel.load(tmp_path / "model.h5").predict(T), fitted.predict(T))


@pytest.mark.parametrize("kind", ["l1", "laplacian"])
@pytest.mark.parametrize("update", ["owned", "atomic"])
def test_asygcd_of_rows_too_wide_for_panels(update, kind):
    X = sp.random(90, 5000, density=0.01, format="csr", random_state=0) * 3
    y, kernel = np.where(np.asarray(X[:, :2500].sum(axis=1)).ravel() > 37, 1, -1), Kernel(kind, 0.02)
    model = AsyGCDSVC(kernel=kind, gamma=0.02, C=C, tol=1e-5, threads=2, update=update).fit(X, y).model_
    beta = np.zeros(len(y))
    beta[model.rows] = model.coef[:, 0]
    alpha, gradient = y * beta, y * (matrix(kernel, X) @ beta) - 1.0
    assert np.abs(alpha - np.clip(alpha - gradient, 0, C)).max() < 2e-5


@kinds
@formats
@dtypes
def test_ridge(dtype, tolerance, csr, kind, tmp_path):
    """A width sigma is what the kernel's formula says."""
    (X, y), (T, _) = moved(csr=csr, dtype=dtype), moved(60, 1, csr, dtype)
    kernel = Kernel(kind, 1 / SIGMA if kind in GAMMA else 1 / (2 * SIGMA**2), degree=4)
    for model in (
        DKRR(
            kernel=kind,
            sigma=[SIGMA / 3, SIGMA],
            lam=[1e-3, 1e-2],
            degree=4,
            standardize=False,
            dtype=dtype,
            random_state=0,
        ),
        BKRR2(1, kernel=kind, sigma=SIGMA, lam=1e-3, degree=4, standardize=False, dtype=dtype),
    ):
        model.fit(X, y)
        if model.sigma_ == SIGMA:
            exact = KernelRidge(kernel="precomputed", alpha=model.lam_ * len(y)).fit(matrix(kernel, X), y - y.mean())
            want = exact.predict(matrix(kernel, T, X)) + y.mean()
            np.testing.assert_allclose(model.predict(T), want, rtol=0, atol=tolerance)
        model.model_.save(tmp_path / "model.h5")
        np.testing.assert_array_equal(KRRModel.load(tmp_path / "model.h5").predict(T), model.predict(T))


@kinds
def test_two_levels(kind):
    (X, y), (T, t) = moved(400), moved(100, 1)
    model = TwoLevelKRR(3, kernel=kind, centers=60, degree=4, random_state=0).fit(X, y)
    assert model.score(T, t) > 0.6


def test_natural_widths():
    """sqrt(d), and of l1 distances d; of products over the features, the width at which they fall off alike."""
    X, y = moved()
    assert BKRR2(1, kernel="matern32", sigma=None, lam=1e-4).fit(X, y).sigma_ == 2.0
    assert DKRR(kernel="l1", sigma=None, lam=1e-4).fit(X, y).sigma_ == 4.0
    for kind, width in (("wendland0_product", 4.0), ("wendland2_product", 48**0.5), ("wendland4_product", 56**0.5)):
        assert KINDS[kind].typical_distance(4) == pytest.approx(width, rel=1e-5)
    sets = RidgeOptions(kernel="l1").coarse_grid(1000, 4)
    assert [width.sigma for width, _, _ in sets] == [2.0, 8.0]
    assert bkrr2.sigmas(4.0) == pytest.approx((1.0, 2.0, 4.0, 8.0, 16.0))


def test_gamma_scale():
    X, comm = moved()[0], Communicator()
    v = X.var()
    want = {"gaussian": 1 / (4 * v), "matern52": 1 / (4 * v), "rational": 1 / (4 * v), "laplacian": (4 * v) ** -0.5,
            "l1": 1 / (4 * np.sqrt(v)), "wendland2_product": (48 * v) ** -0.5}  # fmt: skip
    for kind, gamma in want.items():
        assert numeric_gamma(X, "scale", comm, kind) == pytest.approx(gamma, rel=1e-5)
        at_1 = numeric_gamma(X / np.sqrt(v), "scale", comm, kind)
        assert numeric_gamma(X, "auto", comm, kind) == pytest.approx(at_1)
        assert numeric_gamma(X, 0.25, comm, kind) == 0.25


@kinds
def test_derivative_at_0(kind):
    slope = Kernel(kind, 0.5, degree=4).derivative(np.array([0.0]))
    assert slope == (0.0 if kind == "laplacian" else pytest.approx(Kernel(kind, 0.5, degree=4).derivative(1e-20)))


def test_degree_of_the_rational_kernel():
    X, y = moved()
    for model in (SMOSVC(kernel="rational", degree=0), AsyGCDSVC(kernel="rational", degree=0)):
        with pytest.raises(InputError, match="degree = 0: the rational kernel needs"):
            model.fit(X, y > 3)
    with pytest.raises(InputError, match="degree = 0: the rational kernel needs"):
        BKRR2(1, kernel="rational", degree=0).fit(X, y)
    with pytest.raises(ValueError, match="give PRODUCT, SQUARED, L1 or FEATURES"):
        type(KINDS["l1"])("other", "", True, None, None)
    with pytest.raises(ValueError, match="a product over the features needs a factor, and no row"):
        type(KINDS["l1"])("other", "", FEATURES, None, None)


def test_products_of_rows_far_from_the_origin():
    """Single precision rounds the differences from a shift, not the rows."""
    X, kernel = np.random.default_rng(0).normal(size=(90, 3)) + 1e5, Kernel("wendland2_product", 0.3)
    layout = Layout.of(X, kernel, "float32")
    columns, kept = layout.columns(X), np.empty((90, 90), "float32")
    columns.add(kernel, layout.rows(X), 0, 90, store=kept)
    np.testing.assert_allclose(kept, matrix(kernel, X), rtol=0, atol=1e-6)
    assert (np.diagonal(kept) == 1).all()


def test_products_of_wide_sparse_rows():
    X = sp.random(40, 5000, density=0.01, format="csr", random_state=0)
    y, kernel = np.arange(40) % 2, Kernel("wendland2_product", 0.02)
    with pytest.raises(InputError, match="Asy-GCD: the wendland2_product kernel needs dense rows"):
        AsyGCDSVC(kernel=kernel.kind, gamma=kernel.gamma).fit(X, y)
    got = SMOSVC(kernel=kernel.kind, gamma=kernel.gamma, C=C, tol=1e-6).fit(X, y).decision_function(X)
    exact = SVC(kernel="precomputed", C=C, tol=1e-6).fit(matrix(kernel, X), y)
    np.testing.assert_allclose(got, exact.decision_function(matrix(kernel, X)), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", PRODUCTS)
def test_products_are_positive_definite(kind):
    """In six dimensions, where radial ones of less degree are not; 0 where a feature differs by the radius."""
    X = np.random.default_rng(0).uniform(size=(200, 6))
    kernel = Kernel(kind, 1 / 0.7)
    points = kernel.points(X)
    K = kernel.block(points, points)
    np.testing.assert_allclose(K, matrix(kernel, X), rtol=0, atol=1e-15)
    np.testing.assert_array_equal(K == 0, np.abs(X[:, None] - X).max(axis=2) >= 0.7)
    assert 0.2 < (K == 0).mean() < 0.8
    assert np.linalg.eigvalsh(K)[0] > 0
    assert kernel.suited(6) is kernel


# -- kernels that the caller evaluates ---------------------------------------------------------


def city(A, B):
    return np.exp(-0.4 * cdist(dense(A), dense(B), "cityblock"))


@formats
@pytest.mark.parametrize("route", ["DKRR", "parts"])
def test_callable_ridge(route, csr):
    """The models of the declared kernel."""
    (X, y), (T, _) = moved(csr=csr), moved(60, 1, csr)
    make = DKRR if route == "DKRR" else lambda **given: BKRR2(3, **given)
    lams = {"lam": [1e-3, 1e-1], "standardize": False, "random_state": 0}
    mine, declared = make(kernel=city, **lams).fit(X, y), make(kernel="l1", sigma=2.5, **lams).fit(X, y)
    assert mine.lam_ == declared.lam_
    np.testing.assert_allclose(mine.predict(T), declared.predict(T), rtol=0, atol=1e-9)


def test_callable_on_two_levels():
    X, y = moved()
    given = {"centers": 20, "random_state": 0, "standardize": False, "coarse_lam": 1e-3, "lam": 1e-3}
    mine = TwoLevelKRR(2, kernel=city, **given).fit(X, y)
    declared = TwoLevelKRR(2, kernel="l1", sigma=2.5, coarse_sigma=2.5, **given).fit(X, y)
    np.testing.assert_allclose(mine.predict(X), declared.predict(X), rtol=0, atol=1e-8)


@formats
def test_callable_svm(csr):
    (X, y), (T, _) = moved(csr=csr), moved(60, 1, csr)
    for make in (SMOSVC, lambda **given: CASVC(2, random_state=0, **given)):
        mine, declared = (make(kernel=k, gamma=0.4, C=C, tol=1e-6).fit(X, y > 3) for k in (city, "l1"))
        np.testing.assert_allclose(mine.decision_function(T), declared.decision_function(T), rtol=0, atol=1e-4)


RETURNED = {
    "shape": (lambda A, B: np.ones((len(B), len(A) + 1)), r"returned the shape \(\d+, \d+\): numbers of shape"),
    "nan": (lambda A, B: np.full((len(A), len(B)), np.nan), "returned nan for row 0 of A and row 0 of B"),
    "infinity": (lambda A, B: np.full((len(A), len(B)), np.inf), "returned inf for row 0 of A"),
    "nothing": (lambda A, B: None, "returned NoneType: numbers of shape"),
    "failure": (lambda A, B: A @ B[:1], r"failed for rows of shape \(\d+, 4\) and \(\d+, 4\): ValueError: matmul"),
    "words": (lambda A, B: np.full((len(A), len(B)), "k"), "returned an array of <U1: numbers"),
}


@pytest.mark.parametrize("what", RETURNED)
def test_callables_returning_bad_blocks_are_refused(what):
    (function, message), (X, y) = RETURNED[what], moved()
    for model, target in ((DKRR(kernel=function), y), (SMOSVC(kernel=function), y > 3), (BKRR2(2, kernel=function), y)):
        with pytest.raises(InputError, match=f"the callable kernel .*lambda.* {message}") as refused:
            model.fit(X, target)
        assert "\n" not in str(refused.value)


def test_options_are_refused_with_callables(tmp_path):
    X, y = moved()
    for model in (AsyGCDSVC(kernel=city), CASVC(2, kernel=city, solver="asygcd")):
        with pytest.raises(InputError, match="Asy-GCD cannot evaluate a callable kernel"):
            model.fit(X, y > 3)
    with pytest.raises(InputError, match="sigma: the callable kernel has no width"):
        DKRR(kernel=city, sigma=1.0).fit(X, y)
    for model in (DKRR(kernel=city).fit(X, y), SMOSVC(kernel=city).fit(X, y > 3)):
        with pytest.raises(InputError, match="a model of the callable kernel city cannot be written to a file: pickle"):
            model.model_.save(tmp_path / "model.h5")
    with pytest.raises(InputError, match="LIBSVM has no callable kernel"):
        export_libsvm(model.model_, tmp_path / "libsvm.model")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="a callable kernel has no derivative"):
        DKRR(kernel=city).fit(X, y).model_.kernel.derivative(1.0)


def test_callables_are_cloned_and_pickled():
    import pickle

    from sklearn.base import clone

    X, y = moved()
    for model, target in ((DKRR(kernel=city), y), (SMOSVC(kernel=city), y > 3)):
        fitted = clone(model).fit(X, target)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), fitted.predict(X))


@dtypes
def test_precomputed_ridge(dtype, tolerance):
    """With weights, of which some are 0, and a choice of lambda."""
    from sklearn.model_selection import GridSearchCV

    (X, y), (T, _) = moved(), moved(60, 1)
    K, L = city(X, X), city(T, X)
    w = np.random.default_rng(0).integers(0, 3, len(y)).astype(float)
    model = DKRR(kernel="precomputed", lam=1e-2, dtype=dtype).fit(K, y, w)
    declared = DKRR(kernel="l1", sigma=2.5, lam=1e-2, standardize=False).fit(X, y, w)
    np.testing.assert_allclose(model.predict(L), declared.predict(T), rtol=0, atol=tolerance)
    exact = KernelRidge(kernel="precomputed", alpha=1e-2 * len(y)).fit(K, y - y.mean())
    got = DKRR(kernel="precomputed", lam=1e-2, dtype=dtype).fit(K, y).predict(L)
    np.testing.assert_allclose(got, exact.predict(L) + y.mean(), rtol=0, atol=tolerance)
    choice = DKRR(kernel="precomputed", lam=[1e-4, 1e-2, 1.0], random_state=0, dtype=dtype).fit(K, y)
    chosen = DKRR(kernel="l1", sigma=2.5, lam=[1e-4, 1e-2, 1.0], random_state=0, standardize=False).fit(X, y)
    assert choice.lam_ == chosen.lam_
    search = GridSearchCV(DKRR(kernel="precomputed"), {"lam": [1e-4, 1e-2]}, cv=3).fit(K, y)
    assert search.best_score_ > 0.5


def test_precomputed_ridge_refused(tmp_path):
    X, y = moved()
    K = city(X, X)
    for given, data, message in (
        ({}, K[:, :50], r"a precomputed kernel must be square; this one has shape \(130, 50\)"),
        ({}, sp.csr_matrix(K), "a precomputed kernel must be dense"),
        ({"sigma": 1.0}, K, "sigma: a precomputed kernel has no width"),
    ):
        with pytest.raises(InputError, match=message):
            DKRR(kernel="precomputed", **given).fit(data, y)
    model = DKRR(kernel="precomputed").fit(K, y)
    with pytest.raises(InputError, match="X has 50 features, but DKRR is expecting 130"):
        model.predict(K[:, :50])
    with pytest.raises(InputError, match="a model of a precomputed kernel cannot be written to a file"):
        model.model_.save(tmp_path / "model.h5")
    with pytest.raises(InputError, match="kernel = 'precomputed': it must be one of"):
        BKRR2(2, kernel="precomputed").fit(K, y)
