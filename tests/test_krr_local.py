"""The local solver against scikit-learn's KernelRidge and LAPACK's own answer."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import close_in_norm as close
from helpers.data import as_csr, formats
from helpers.references import ridge
from sklearn.metrics.pairwise import rbf_kernel

from cacore.kernels import Kernel
from cakrr.ridge_predictor import PartModel
from cakrr.solver.local import PartSystem, Workspace

LAMS = (1e-6, 1e-3, 10.0)


def rows(m, d=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(m, d)), rng.normal(size=m)


def solved(X, y, sigma, lams=LAMS, weights=None, room=0):
    kernel = Kernel.gaussian(sigma)
    workspace = Workspace(X.shape[0] + room, X.dtype)
    workspace.matrix(X.shape[0] + room)[:] = np.nan  # what an earlier part may have left
    alphas, good = PartSystem(X, workspace, kernel, weights, grid=len(lams) > 1).solve(kernel, lams, y[None, :])
    return alphas[:, 0], good.tolist()


@formats
@pytest.mark.parametrize("m", [1, 2, 65, 300, 1100])  # the factorisation goes by blocks of 1,024 rows
@pytest.mark.parametrize("sigma", [0.3, 2.0])
def test_as_kernel_ridge(m, sigma, csr):
    X, y = rows(m)
    X = as_csr(X, csr, 0.5)
    alphas, good = solved(X, y, sigma, room=5)
    assert (alphas.shape, alphas.dtype, good) == ((3, m), np.float64, [True] * 3)
    for alpha, lam in zip(alphas, LAMS, strict=True):
        close(alpha, ridge(sigma, lam * m).fit(X, y).dual_coef_, 1e-8)


@pytest.mark.parametrize("sigma", [0.3, 2.0])
def test_weights(sigma):
    """Weights w minimise sum w (f(x) - y)^2 + lambda sum(w) |f|^2, which scikit-learn does with alpha = lambda sum(w).

    Its (sqrt(w) K sqrt(w) + alpha I) c = sqrt(w) y, dual = sqrt(w) c, is ours: (K + lambda sum(w) diag(1/w)) dual = y.
    """
    X, y = rows(120)
    w = np.random.default_rng(1).uniform(0.1, 5, 120)
    alphas, good = solved(X, y, sigma, weights=w)
    assert good == [True] * 3
    for alpha, lam in zip(alphas, LAMS, strict=True):
        close(alpha, ridge(sigma, lam * w.sum()).fit(X, y, sample_weight=w).dual_coef_, 1e-8)


def test_equal_weights_change_nothing():
    X, y = rows(50)
    plain, _ = solved(X, y, 1.0)
    for same in (1.0, 7.0):
        close(solved(X, y, 1.0, weights=np.full(50, same))[0], plain, 1e-10)


def test_weight_two_is_a_row_twice():
    X, y = rows(60)
    counts = np.random.default_rng(0).integers(1, 4, 60)
    weighted, _ = solved(X, y, 1.0, (1e-2,), weights=counts.astype(float))
    repeated, _ = solved(np.repeat(X, counts, axis=0), np.repeat(y, counts), 1.0, (1e-2,))
    first = np.cumsum(counts) - counts
    close(np.add.reduceat(repeated[0], first), weighted[0], 1e-10)


def test_float32():
    """Single precision keeps what the condition, at most 1 + 1/lambda, leaves of its 7 digits."""
    X, y = rows(200)
    alphas, good = solved(X.astype(np.float32), y, 1.0, (1e-2, 1.0))
    exact, _ = solved(X, y, 1.0, (1e-2, 1.0))
    assert (alphas.dtype, good) == (np.float32, [True, True])
    for alpha, reference, lam in zip(alphas, exact, (1e-2, 1.0), strict=True):
        close(alpha, reference, 2e-6 * (1 + 1 / lam))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_not_positive_definite(dtype):
    """A pair that cannot be solved says so, and does not harm the others."""
    X, y = rows(40)
    X = np.concatenate([X, X]).astype(dtype)  # every row twice: K is singular
    alphas, good = solved(X, np.concatenate([y, y + 1]), 1.0, (1e-30, 0.1))
    assert good == [False, True]
    assert np.isnan(alphas[0]).all()
    K = rbf_kernel(X.astype(float), gamma=0.5)
    close(alphas[1], np.linalg.solve(K + 0.1 * 80 * np.eye(80), np.concatenate([y, y + 1])), 1e-5)


def test_overflow_is_not_a_solution():
    X, y = rows(10)
    alphas, good = solved(X.astype(np.float32), 1e37 * y.astype(np.float32), 5.0, (1e-7,))
    assert not np.isfinite(alphas).all()
    assert good == [False]


@formats
def test_input_stays(csr):
    X, y = rows(70)
    before = X.copy(), y.copy()
    given = sp.csr_matrix(X) if csr else X
    solved(given, y, 1.0, weights=np.ones(70))
    np.testing.assert_array_equal(given.toarray() if csr else given, before[0])
    np.testing.assert_array_equal(y, before[1])


def test_no_lambda_depends_on_another():
    X, y = rows(150)
    together, _ = solved(X, y, 1.0)
    for alpha, lam in zip(together, LAMS, strict=True):
        np.testing.assert_array_equal(alpha, solved(X, y, 1.0, (lam,))[0][0])


@formats
def test_prediction(csr):
    (X, y), (T, _) = rows(130), rows(1300, seed=1)
    X, T = as_csr(X, csr, 0.5), as_csr(T, csr, 0.5)
    alphas, _ = solved(X, y, 0.8, (1e-3,))
    model = PartModel(X, alphas[0])
    got = model.predict(T, Kernel.gaussian(0.8))
    close(got, rbf_kernel(T, X, gamma=1 / (2 * 0.8**2)) @ alphas[0], 1e-11)
    assert model.predict(T[:0], Kernel.gaussian(0.8)).shape == (0,)
