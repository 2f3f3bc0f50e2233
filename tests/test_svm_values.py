"""SVR, one-class and nu-SVMs by the exact solver, against LIBSVM (scikit-learn's)."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import limit_warning, near, refusal, same_content
from helpers.data import as_csr, forms
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel
from sklearn.svm import SVR, NuSVC, NuSVR, OneClassSVM

from cacore.errors import InputError
from casvm import SMOSVC, SMOSVR, SMONuSVC, SMONuSVR, SMOOneClassSVM, SMOQuantileSVR, SVRModel

PEERS = {SMOSVR: SVR, SMONuSVR: NuSVR, SMONuSVC: NuSVC, SMOOneClassSVM: OneClassSVM}
every = pytest.mark.parametrize("estimator", PEERS)


def problem(n=120, seed=0, d=3):
    """Rows, some of them twice, targets with noise, and weights, some of them 0."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X[: n // 6] = X[n // 6 : 2 * (n // 6)]
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, -1] + rng.choice([0.05, 0.5]) * rng.normal(size=n)
    return X, y, rng.choice([0.0, 0.5, 1.0, 2.0], n)


def targets(estimator, y):
    return (y > np.median(y)).astype(int) if estimator is SMONuSVC else y


def fitted(estimator, X, y, weights=None, **params):
    """Ours and LIBSVM's."""
    y = targets(estimator, y)
    known = {"gaussian": "rbf", "polynomial": "poly"}
    other = {**params, "kernel": known.get(params.get("kernel", "gaussian"), params.get("kernel", "gaussian"))}
    ours, theirs = estimator(tol=1e-7, **params), PEERS[estimator](tol=1e-7, **other)
    return ours.fit(X, y, sample_weight=weights), theirs.fit(X, y, sample_weight=weights)


def values(model, X):
    return model.decision_function(X) if hasattr(model, "decision_function") else model.predict(X)


def coefficients(model, n):
    """beta of all rows; LIBSVM's support_ is numbered without the rows of weight 0, of which there are none here."""
    beta = np.zeros(n)
    beta[model.support_] = np.asarray(model.dual_coef_).ravel()
    return beta


def objective(estimator, K, y, beta, params):
    """Dual objective, to be minimised; for nu-SVC before scaling to a margin of 1."""
    if estimator is SMONuSVC:
        beta = beta * params["nu"] * len(beta) / np.abs(beta).sum()
    linear = -y @ beta if estimator in (SMOSVR, SMONuSVR) else 0.0
    return 0.5 * beta @ K @ beta + linear + params.get("epsilon", 0.0) * np.abs(beta).sum()


def drawn(estimator, rng, X):
    """Parameters."""
    params = {"gamma": 10 ** rng.uniform(-1.5, 0.5)}
    if estimator in (SMOSVR, SMONuSVR):
        params["C"] = 10 ** rng.uniform(-2, 1.5)
    if estimator is SMOSVR:
        return {**params, "epsilon": rng.choice([0.0, 10 ** rng.uniform(-3, 0)])}
    # A nu-SVC has no margin left where nu is small.
    return {**params, "nu": rng.uniform(0.5, 0.8) if estimator is SMONuSVC else rng.uniform(0.05, 1.0)}


@every
@pytest.mark.parametrize("room", [2048, 16], ids=["one round", "many rounds"])
def test_random_problems_as_libsvm_solves_them(estimator, room, tuned):
    """The dual objective to 1e-6, decisions to 1e-4; in rounds of 16 rows, so that rows are shrunk."""
    tuned(working_set=room)
    if room < 2048:
        tuned(touch=0.0)
    for seed in range(60 if room == 2048 else 25):
        rng = np.random.default_rng([seed, room])
        X, y, _ = problem(int(rng.integers(8, 100)), seed, int(rng.integers(1, 6)))
        params = drawn(estimator, rng, X)
        ours, theirs = fitted(estimator, X, y, **params)
        K = rbf_kernel(X, gamma=params["gamma"])
        sides = [objective(estimator, K, y, coefficients(model, len(y)), params) for model in (ours, theirs)]
        assert sides[0] == pytest.approx(sides[1], rel=1e-6, abs=1e-9), seed
        scale = 0.1 * ours.model_.C if estimator is SMONuSVC else 1.0  # the tolerance is that of before the scaling
        near(values(ours, X), values(theirs, X), 1e-4 * max(1.0, scale, np.abs(values(theirs, X)).max()))
        if estimator is not SMONuSVC:
            assert ours.objective_ == pytest.approx(-sides[0], rel=1e-6, abs=1e-9)


@every
@forms
def test_forms_and_weights(estimator, csr, dtype):
    X, y, weights = problem()
    X = as_csr(X.astype(dtype), csr, 0.4)
    ours, theirs = fitted(estimator, X, y, weights, gamma=0.5)
    near(values(ours, X), values(theirs, X.astype(np.float64)), 1e-4)
    assert (weights[ours.support_] > 0).all()
    assert sp.issparse(ours.support_vectors_) == csr


@every
@pytest.mark.parametrize("kernel", ["linear", "polynomial"])
def test_kernels(estimator, kernel):
    X, y, _ = problem()
    X = X + 2.0  # around the origin a linear one-class SVM has no solution but 0
    more = {"nu": 0.8} if estimator is SMONuSVC else {}
    ours, theirs = fitted(estimator, X, y, kernel=kernel, gamma=0.3, coef0=0.5, degree=2, **more)
    near(values(ours, X), values(theirs, X), 1e-4 * max(1.0, np.abs(values(theirs, X)).max()))
    if kernel == "linear":
        near(ours.coef_, theirs.coef_, 1e-4 * max(1.0, np.abs(theirs.coef_).max()))
        near(values(ours, X), X @ ours.coef_[0] + ours.intercept_, 1e-9)


@every
def test_matrices_and_functions_are_the_kernels_that_they_hold(estimator):
    X, y, weights = problem()
    y = targets(estimator, y)
    weights = np.where(weights, 1.0, 0.0)
    by_name = estimator(kernel="l1", gamma=0.5, tol=1e-7).fit(X, y, sample_weight=weights)
    K = laplacian_kernel(X, gamma=0.5)
    by_matrix = estimator(kernel="precomputed", tol=1e-7).fit(K, y, sample_weight=weights)
    by_function = estimator(kernel=lambda A, B: laplacian_kernel(A, B, gamma=0.5), tol=1e-7)
    by_function.fit(X, y, sample_weight=weights)
    expected = values(by_name, X[:40])
    near(values(by_matrix, K[:40]), expected, 1e-5 * np.abs(expected).max())
    near(values(by_function, X[:40]), expected, 1e-5 * np.abs(expected).max())


def test_fitted_attributes_are_complete():
    X, y, _ = problem()
    model = SMOSVR(gamma=0.5, C=2.0, epsilon=0.2).fit(X, y)
    assert model.support_vectors_.shape == (len(model.support_), 3)
    assert (model.dual_coef_.shape, model.intercept_.shape) == ((1, len(model.support_)), (1,))
    assert np.abs(model.dual_coef_).max() <= 2.0
    assert abs(model.dual_coef_.sum()) < 1e-9
    assert model.gap_ < 1e-3
    residual = np.abs(y - model.predict(X))
    outside = np.ones(len(y), bool)
    outside[model.support_] = False
    assert (residual[outside] <= 0.2 + 1e-3).all()
    nu = SMONuSVR(gamma=0.5, nu=0.4, tol=1e-6).fit(X, y)
    near(SMOSVR(gamma=0.5, epsilon=nu.epsilon_, tol=1e-6).fit(X, y).predict(X), nu.predict(X), 1e-4)
    one = SMOOneClassSVM(gamma=0.5, nu=0.3).fit(X)
    assert np.mean(one.decision_function(X) < -1e-3) <= 0.3 <= len(one.support_) / len(X)
    np.testing.assert_array_equal(one.predict(X), np.where(one.decision_function(X) >= 0, 1, -1))
    near(one.score_samples(X) - one.offset_, one.decision_function(X), 1e-12)
    classes = SMONuSVC(gamma=0.5, nu=0.4, tol=1e-6).fit(X, y > 0)
    same = SMOSVC(gamma=0.5, C=classes.model_.C, tol=1e-6).fit(X, y > 0)  # nu-SVC is C-SVC with the C that it finds
    near(classes.decision_function(X), same.decision_function(X), 1e-3)


@pytest.mark.parametrize("estimator", [SMOSVR, SMONuSVR, SMOOneClassSVM])
@pytest.mark.parametrize("precomputed", [False, True])
def test_saved_and_loaded(estimator, precomputed, tmp_path):
    X, y, _ = problem()
    rows = rbf_kernel(X) if precomputed else as_csr(X, True, 0.4)
    model = estimator(kernel="precomputed" if precomputed else "gaussian").fit(rows, y).model_
    model.save(tmp_path / "m.h5")
    loaded = SVRModel.load(tmp_path / "m.h5")
    same_content(loaded, model)
    np.testing.assert_array_equal(loaded.predict(rows), model.predict(rows))
    assert set(np.unique(loaded.predict(rows))) == {-1, 1} or model.svm_type != "one_class"


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (SMOSVR(epsilon=-0.1), "epsilon = -0.1: "),
        (SMOSVR(epsilon=float("nan")), "epsilon = nan: "),
        (SMOSVR(C=0.0), "C = 0.0: it must be a positive number"),
        (SMONuSVR(nu=0.0), "nu = 0.0: it must be a number above 0 and at most 1"),
        (SMONuSVR(nu=1.5), "nu = 1.5: it must be"),
        (SMOOneClassSVM(nu=-1), "nu = -1: it must be"),
        (SMONuSVC(nu=2), "nu = 2: it must be"),
        (SMONuSVC(nu=0.9), "nu = 0.9 is infeasible: with classes of these sizes it is at most 0.0833333"),
        (SMOSVR(tol=0), "tol = 0: it must be a positive number"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_parameters_that_cannot_be(estimator, message):
    X, _, _ = problem()
    refusal(clone(estimator).fit, X, np.arange(len(X)) < 5, match=message)


@every
def test_rows_that_cannot_be(estimator):
    X, y, _ = problem()
    y = targets(estimator, y)
    refusal(estimator().fit, X[:1], y[:1], match="one class only" if estimator is SMONuSVC else "1 sample")
    refusal(
        estimator(kernel="precomputed").fit,
        X,
        y,
        match="a precomputed kernel must be square; this one has shape (120, 3)",
    )
    refusal(lambda: estimator().fit(X, y, sample_weight=np.zeros(120)), match="weight")
    if estimator is not SMOOneClassSVM:
        refusal(estimator().fit, X, np.where(np.arange(120) == 5, np.nan, y), match="NaN")
    gap = X.copy()
    gap[7, 1] = np.nan
    refusal(estimator().fit, gap, y, match="X, column 1: row 7 is NaN")


@pytest.mark.parametrize("estimator", [SMOSVR, SMONuSVR])
def test_targets_that_are_all_the_same(estimator):
    X, y, _ = problem()
    with pytest.warns(UserWarning, match=r"^all targets are 3\.5: the model is this constant$") as caught:
        model = estimator().fit(X, np.full(len(y), 3.5))
    assert [one.filename for one in caught] == [__file__]
    near(model.predict(X), 3.5, 1e-3)


@every
def test_limit_of_steps(estimator):
    X, y, _ = problem()
    text = limit_warning(lambda: estimator(max_iter=2, tol=1e-9).fit(X, targets(estimator, y)))
    assert text.startswith(f"{estimator.__name__} stopped after 2 iterations at a violation of ")


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "matern32", "precomputed"])
@pytest.mark.parametrize(("n", "gamma"), [(300, 0.3), (2500, 1.0)], ids=["double", "single precision"])
def test_nu_bounds_the_share_of_outliers(kernel, n, gamma):
    """Also a nu that few rows attain: rows between their bounds have decision 0, which rounding must not make -0."""
    X = np.random.default_rng(n).normal(size=(n, 3))
    given = rbf_kernel(X, gamma=gamma) if kernel == "precomputed" else X
    for nu in (0.3, 0.05, 0.01, 0.001):
        model = SMOOneClassSVM(nu=nu, kernel=kernel, gamma=gamma).fit(given)
        outliers = model.predict(given) < 0
        assert outliers.mean() <= nu
        support = model.support_[model.dual_coef_[0] >= 1]
        assert set(np.flatnonzero(outliers)) <= set(support)
        free = model.support_[model.dual_coef_[0] < 1]
        assert model.decision_function(given)[free].max() < 2e-3  # of the order of the tolerance


@forms
def test_nu_bounds_the_share_of_outliers_in_every_form(csr, dtype):
    X, _, weights = problem(200, 3)
    X = as_csr(X.astype(dtype), csr, 0.4)
    outliers = SMOOneClassSVM(nu=0.03, gamma=0.3).fit(X, sample_weight=weights).predict(X) < 0
    assert weights[outliers].sum() <= 0.03 * weights.sum()


def test_nu_bounds_the_share_of_errors():
    """Rows outside the tube of nu-SVR, and margin errors of nu-SVC."""
    X, y, _ = problem(200, 5)
    for nu in (0.5, 0.1, 0.02):
        model = SMONuSVR(nu=nu, gamma=0.3).fit(X, y)
        assert np.mean(np.abs(y - model.predict(X)) > model.epsilon_) <= nu
    sign = np.where(y > np.median(y), 1, -1)
    for nu in (0.8, 0.6):
        assert np.mean(sign * SMONuSVC(nu=nu, gamma=0.3).fit(X, sign).decision_function(X) < 1) <= nu


def test_a_margin_below_the_tolerance_is_resolved():
    """Decisions are divided by it: with the tolerance alone, labels would be arbitrary."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(60, 2)) * 1e-3
    y = np.where(X[:, 0] > 0, "right", "left")
    for labels in (y, np.where(X[:, 1] > 1e-3, "up", y)):
        model = SMONuSVC(nu=0.4, kernel="linear").fit(X, labels)
        assert model.score(X, labels) > 0.8
    K = np.exp(-0.5 * cdist(*(np.vstack([X, X + 1e-5]),) * 2, "sqeuclidean") * 1e6)
    sign = rng.choice([-1, 1], 120)
    ours, other = SMONuSVC(nu=0.5, kernel="precomputed").fit(K, sign), NuSVC(nu=0.5, kernel="precomputed", tol=1e-9)
    np.testing.assert_allclose(ours.decision_function(K), other.fit(K, sign).decision_function(K), atol=0.5)


def test_nu_without_a_margin():
    """The same rows in both classes."""
    X = np.repeat(np.random.default_rng(0).normal(size=(20, 2)), 2, axis=0)
    with pytest.raises(InputError, match="nu is too small: there is no margin"):
        SMONuSVC(nu=0.5).fit(X, np.arange(40) % 2)


# -- rows of weight 0 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("csr", [False, True])
@pytest.mark.parametrize("given", [{}, {"kernel": "laplacian"}, {"kernel": "l1"}, {"kernel": "polynomial"}], ids=str)
@pytest.mark.parametrize("estimator", [*PEERS, SMOSVC, SMOQuantileSVR])
def test_zero_weight_rows_do_not_change_gamma(estimator, given, csr):
    X, y, weights = problem(80, 1)
    X = as_csr(np.where(weights[:, None] > 0, X, 30 * X), csr, 0.4)
    y = (y > np.median(y[weights > 0])).astype(int) if estimator in (SMONuSVC, SMOSVC) else y
    nu = {} if estimator in (SMOSVC, SMOSVR, SMOQuantileSVR) else {"nu": 0.6}
    kept = weights > 0
    model = estimator(**given, **nu).fit(X, y, sample_weight=weights)
    alone = estimator(**given, **nu).fit(X[kept], y[kept], sample_weight=weights[kept])
    assert model.model_.kernel == alone.model_.kernel
    near(values(model, X), values(alone, X), 1e-12 * np.abs(values(alone, X)).max())
