"""A kernel is declared in one place: a new one, declared here, is one for every model, and is kept compiled on disk."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.data import dense, formats, moved
from sklearn.kernel_ridge import KernelRidge
from sklearn.svm import SVC

from asygcd import AsyGCDSVC
from asygcd.asygcd_model import AsyGCDModel
from cacore.errors import InputError
from cacore.io import Dataset
from cacore.kernels import KINDS, Kernel, KernelKind, Points, register
from cacore.kernels.registry import FEATURES, L1, PRODUCT, SQUARED, canonical, distance
from cakrr import KRRModel
from cakrr.bkrr2 import bkrr2
from cakrr.options import RidgeOptions
from casvm import SMOSVC, SVMModel, export_libsvm

GAMMA, C = 0.7, 3.0
NAMES = ("linear", "polynomial", "gaussian", "sigmoid", "laplacian", "matern32", "matern52", "l1", "rational",
         "wendland0", "wendland2", "wendland4", "wendland0_product", "wendland2_product",
         "wendland4_product")  # fmt: skip


def cauchy_row(row, a, b, gamma, coef0, degree):
    one = row.dtype.type(1.0)
    for j in range(row.size):
        row[j] = one / (one + gamma * distance(row[j], a, b[j]))


def cauchy_slope(t, gamma, coef0, degree):
    return -gamma / (1.0 + gamma * t) ** 2


CAUCHY = KernelKind(
    "cauchy", "1 / (1 + gamma |x-z|^2)", SQUARED, cauchy_row, cauchy_slope, ("gamma",), aliases=("student",)
)


@pytest.fixture(autouse=True)
def declared():
    register(CAUCHY)
    yield
    del KINDS["cauchy"]


def signs(n=130, seed=0, csr=False):
    """Rows, and on which side of 0 their targets are."""
    X, y = moved(n, seed, csr)
    return X, np.where(y > 0, 1, -1)


def brute(A, B):
    return 1.0 / (1.0 + GAMMA * ((dense(A)[:, None] - dense(B)[None]) ** 2).sum(axis=2))


@formats
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("float32", 1e-5)])
def test_values(dtype, tolerance, csr):
    (X, _), (T, _) = signs(csr=csr), signs(300, 1, csr)
    kernel = Kernel("cauchy", GAMMA)
    points = kernel.points(X.astype(dtype))
    K = kernel.block(kernel.points(T.astype(dtype), like=points), points)
    np.testing.assert_allclose(K, brute(T, X), rtol=0, atol=tolerance)
    np.testing.assert_array_equal(kernel.diagonal(X), 1.0)


@formats
def test_smo(csr, tmp_path):
    (X, y), (T, _) = signs(csr=csr), signs(60, 1, csr)
    model = SMOSVC(kernel="student", gamma=GAMMA, C=C, tol=1e-6).fit(X, y)
    exact = SVC(kernel="precomputed", C=C, tol=1e-6).fit(brute(X, X), y)
    np.testing.assert_allclose(model.decision_function(T), exact.decision_function(brute(T, X)), rtol=0, atol=1e-4)
    model.model_.save(tmp_path / "model.h5")
    np.testing.assert_array_equal(SVMModel.load(tmp_path / "model.h5").predict(T), model.predict(T))
    with pytest.raises(InputError, match="LIBSVM has no cauchy kernel"):
        export_libsvm(model.model_, tmp_path / "libsvm.model")


@formats
@pytest.mark.parametrize("update", ["owned", "atomic"])
def test_asygcd(update, csr, tmp_path):
    """The violation of each coordinate, from the brute-force matrix, is under the tolerance."""
    (X, y), (T, _) = signs(csr=csr), signs(60, 1, csr)
    fitted = AsyGCDSVC(kernel="cauchy", gamma=GAMMA, C=C, tol=1e-5, update=update, threads=2).fit(X, y)
    model = fitted.model_
    beta = np.zeros(len(y))
    beta[model.rows] = model.coef[:, 0]
    alpha, gradient = y * beta, y * (brute(X, X) @ beta) - 1.0
    assert np.abs(alpha - np.clip(alpha - gradient, 0, C)).max() < 2e-5
    np.testing.assert_allclose(fitted.decision_function(T), brute(T, X) @ beta, rtol=0, atol=1e-10)
    model.save(tmp_path / "model.h5")
    np.testing.assert_array_equal(AsyGCDModel.load(tmp_path / "model.h5").predict(T), fitted.predict(T))


@formats
def test_ridge(csr, tmp_path):
    """Gamma is 1 / (2 sigma^2), as everywhere in ridge regression."""
    (X, _), (T, _) = signs(csr=csr), signs(60, 1, csr)
    y = np.sin(dense(X)).sum(axis=1)
    told = RidgeOptions(
        partitions=1, kernel="cauchy", sigma=(0.4, (2 * GAMMA) ** -0.5), lam=tuple(np.geomspace(1e-3, 1.0, 7)),
        standardize=False, seed=1,
    )  # fmt: skip
    model = bkrr2(Dataset(X.copy(), y.copy(), len(y), "rows"), told).model
    assert model.sigma == (2 * GAMMA) ** -0.5
    exact = KernelRidge(kernel="precomputed", alpha=model.lam * len(y)).fit(brute(X, X), y - y.mean())
    np.testing.assert_allclose(model.predict(T), exact.predict(brute(T, X)) + y.mean(), rtol=0, atol=1e-8)
    model.save(tmp_path / "model.h5")
    np.testing.assert_array_equal(KRRModel.load(tmp_path / "model.h5").predict(T), model.predict(T))


# -- the registry ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*KINDS, "cauchy"])
@pytest.mark.parametrize("parameters", [(0.3, 0.7, 3), (1.5, -0.2, 1), (0.8, 0.0, 0)])
def test_derivatives(name, parameters):
    """Against differences of the values."""
    gamma, coef0, degree = parameters
    degree = max(degree, KINDS[name].least_degree)
    kernel, t, h = Kernel(name, gamma, degree, coef0), np.linspace(0.05, 4.0, 60), 1e-5

    def values(t):
        """Kernel values for rows of one number: |sqrt(t) - 0|^2 = t, |t - 0| = t, and t x 1 = t."""
        x, z = {PRODUCT: (t, 1.0), SQUARED: (np.sqrt(t), 0.0), L1: (t, 0.0), FEATURES: (t, 0.0)}[kernel.declared.of]
        return kernel.block(Points(x[:, None]), Points(np.array([[z]])))[:, 0]

    expected = (values(t + h) - values(t - h)) / (2 * h)
    slope = kernel.derivative(t) * (values(t) if kernel.separable else 1.0)  # of a factor's logarithm
    np.testing.assert_allclose(slope, expected, rtol=1e-6, atol=1e-8)


def test_names():
    assert list(KINDS) == [*NAMES, "cauchy"]
    assert [canonical(name) for name in ("rbf", "poly", "student", "linear", "no such")] == [
        "gaussian", "polynomial", "cauchy", "linear", "no such",
    ]  # fmt: skip
    for name, aliases in (("cauchy", ()), ("another", ("rbf",)), ("student", ())):
        with pytest.raises(ValueError, match="there is a kernel"):
            register(KernelKind(name, "", SQUARED, cauchy_row, cauchy_slope, aliases=aliases))
    assert "another" not in KINDS


def test_a_kernel_is_not_known_before_it_is_declared(python):
    done = python("-c", "from cacore.kernels import Kernel; Kernel('cauchy')")
    assert "kernel 'cauchy': choose one of " + ", ".join(NAMES) in done.stderr


def test_names_need_no_compiler(python):
    done = python("-c", "import sys; from cacore.kernels.registry import KINDS; print(*KINDS);"
                  "print('numba' in sys.modules)")  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{' '.join(NAMES)}\nFalse\n")


@pytest.mark.parametrize("turn", ["compiled or loaded", "loaded"])
def test_compiled_once(turn, python):
    """The second process finds on disk what the first one compiled."""
    code = """
import numpy as np
from cacore.kernels.evaluate import compiled
from cacore.kernels.registry import KINDS
print(sum(compiled(KINDS["gaussian"].row, np.dtype(dtype)).cache_hits for dtype in ("float32", "float64")))
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert turn == "compiled or loaded" or done.stdout == "2\n"
