"""Ridge regression with each kernel against scikit-learn's KernelRidge."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import close
from helpers.data import as_csr, formats
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics import mean_squared_error
from sklearn.preprocessing import StandardScaler

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.io import Dataset
from cacore.io.checkpoint import Checkpoint
from cacore.kernels import Kernel
from cakrr import KRRModel
from cakrr.bkrr2 import bkrr2
from cakrr.dkrr import dkrr
from cakrr.options import Options
from cakrr.twolevel import twolevel

SIGMA, LAM, MANY = 1.3, 1e-2, tuple(np.geomspace(1e-3, 1.0, 7))  # so many lambdas are one reduction to a band
KERNELS = {
    "linear": ({}, {"kernel": "linear"}),
    "polynomial": (
        {"degree": 2, "coef0": 1.0}, {"kernel": "poly", "gamma": 1 / (2 * SIGMA**2), "degree": 2, "coef0": 1.0}
    ),
    "gaussian": ({}, {"kernel": "rbf", "gamma": 1 / (2 * SIGMA**2)}),
}  # fmt: skip
kernels = pytest.mark.parametrize("kernel", KERNELS)
METHODS = {"bkrr2": bkrr2, "dkrr": dkrr, "twolevel": twolevel}


def rows(n=150, seed=0, csr=False):
    """Far from the origin: what a shift would do to a kernel of inner products cannot be overlooked."""
    rng = np.random.default_rng(seed)
    X = rng.normal((2.0, 0.0, -1.0), size=(n, 3))
    y = 5 + np.sin(X[:, 0]) + X[:, 1] * X[:, 2]
    return as_csr(X, csr, 0.5), y


def options(kernel, **more):
    given = {"kernel": kernel, "sigma": None if kernel == "linear" else (SIGMA,), "lam": (LAM,), **KERNELS[kernel][0]}
    return Options(**{**given, **more})


def train(method, X, y, told, weights=None, test=None, comm=None):
    given = Dataset(*test, len(test[1]), "test rows") if test is not None else None
    data = Dataset(X.copy(), y.copy(), len(y), "rows", weights=weights)
    return METHODS[method](data, told, comm or Communicator(), given)


class Reference:
    """What scikit-learn says of centred targets and standardised rows."""

    def __init__(self, kernel, X, y, lam=LAM, w=None, standardize=True):
        w = np.ones(len(y)) if w is None else w
        self.scaler = StandardScaler(with_mean=not sp.issparse(X), with_std=True) if standardize else None
        self.mean = np.average(y, weights=w)
        Z = self.scaler.fit_transform(X, sample_weight=w) if standardize else X
        self.ridge = KernelRidge(alpha=lam * w.sum(), **KERNELS[kernel][1]).fit(Z, y - self.mean, sample_weight=w)

    def predict(self, T):
        return self.ridge.predict(T if self.scaler is None else self.scaler.transform(T)) + self.mean


@kernels
@formats
@pytest.mark.parametrize("method", ["bkrr2", "dkrr"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weights"])
@pytest.mark.parametrize("standardize", [False, True], ids=["as they are", "standardised"])
def test_one_model(standardize, weighted, method, csr, kernel):
    (X, y), (T, _) = rows(csr=csr), rows(40, 1, csr)
    w = np.random.default_rng(2).uniform(0.5, 2.0, len(y)) if weighted else None
    model = train(method, X, y, options(kernel, standardize=standardize), w).model
    close(model.predict(T), Reference(kernel, X, y, LAM, w, standardize).predict(T))
    assert (model.kernel.kind, model.sigma) == (kernel, 1.0 if kernel == "linear" else SIGMA)


@kernels
@formats
@pytest.mark.parametrize("method", ["bkrr2", "dkrr"])
def test_single_precision(method, csr, kernel):
    """Refined to double precision; the rows and predictions are single."""
    (X, y), (T, _) = rows(csr=csr), rows(40, 1, csr)
    X, T = X.astype(np.float32), T.astype(np.float32)
    done = train(method, X, y, options(kernel, lam=(0.1,), standardize=False))
    assert done.residual.max() <= 1e-8
    expected = Reference(kernel, X.astype(np.float64), y, 0.1, standardize=False).predict(T.astype(np.float64))
    close(done.model.predict(T), expected, 1e-5)


@kernels
@formats
@pytest.mark.parametrize("method", ["bkrr2", "dkrr"])
@pytest.mark.parametrize("lams", [MANY[:3], MANY], ids=["factors", "a band"])
def test_grid(lams, method, csr, kernel):
    """Every pair's error on the test rows, and the model of the best one."""
    (X, y), test = rows(csr=csr), rows(60, 1, csr)
    told = options(kernel, lam=lams, select="test")
    done = train(method, X, y, told, test=test)
    references = [Reference(kernel, X, y, lam) for lam in lams]
    errors = [mean_squared_error(test[1], reference.predict(test[0])) for reference in references]
    np.testing.assert_allclose([row["test_mse"] for row in done.grid], errors, rtol=1e-7)
    close(done.model.predict(test[0]), references[int(np.argmin(errors))].predict(test[0]))


@kernels
@pytest.mark.parametrize("lams", [MANY[:2], tuple(np.geomspace(1e-3, 1.0, 13))], ids=["factors", "eigenvalues"])
def test_leave_one_out(lams, kernel):
    """Each row is left out in turn; the ridge and the mean stay."""
    X, y = rows(60)
    done = train("bkrr2", X, y, options(kernel, lam=lams, select="loo", standardize=False))
    for row, lam in zip(done.grid, lams, strict=True):
        left = []
        for i in range(60):
            kept = np.arange(60) != i
            ridge = KernelRidge(alpha=lam * 60, **KERNELS[kernel][1]).fit(X[kept], y[kept] - y.mean())
            left.append(y[i] - y.mean() - ridge.predict(X[[i]])[0])
        assert row["loo_mse"] == pytest.approx(np.mean(np.square(left)), rel=1e-7)


@formats
@pytest.mark.parametrize("kernel", ["linear", "polynomial"])
def test_two_levels(csr, kernel):
    """Centres that span all features (3, or 10 of degree 2) make the coarse model ridge regression on all rows."""
    (X, y), (T, _) = rows(csr=csr), rows(40, 1, csr)
    wide = None if kernel == "linear" else (SIGMA,)
    told = options(kernel, standardize=False, centers=(30,), coarse_sigma=wide, coarse_lam=(LAM,))
    model = train("twolevel", X, y, told).model
    coarse = Reference(kernel, X, y, standardize=False)
    close(model.coarse.predict(T) + model.offset, coarse.predict(T), 1e-6)
    rest = KernelRidge(alpha=LAM * len(y), **KERNELS[kernel][1]).fit(X, y - coarse.predict(X))
    close(model.predict(T), coarse.predict(T) + rest.predict(T), 1e-6)


@pytest.mark.parametrize("method", ["bkrr2", "dkrr"])
def test_a_kernel_that_is_not_positive_definite(method):
    X, y = rows()
    told = Options(kernel="sigmoid", sigma=(0.3,), lam=(1e-9,), coef0=-2.0)
    with pytest.raises(InputError, match=r"is not positive definite at sigma 0\.3, lambda 1e-09; use a larger"):
        train(method, X, y, told)


def test_kernel_values_that_overflow():
    X, y = rows()
    told = Options(
        kernel="polynomial",
        degree=30,
        sigma=(1e-8,),
        lam=(1.0,),
        centers=(30,),
        coarse_sigma=(1e-8,),
        coarse_lam=(1.0,),
    )
    with np.errstate(all="ignore"), pytest.raises(InputError, match="no coarse model could be solved"):
        train("twolevel", X, y, told)


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ({"kernel": "rbg"}, "'rbg'.*gaussian"),
        ({"degree": -1}, "degree = -1"),
        ({"coef0": np.inf}, "coef0 = inf"),
        ({"kernel": "linear", "sigma": 1.0}, "the linear kernel has no width"),
        ({"kernel": "linear", "coarse_sigma": 1.0}, "the linear kernel has no width"),
    ],
)
def test_refused(told, named):
    X, y = rows(30)
    with pytest.raises(InputError, match=named):
        train("bkrr2", X, y, Options(**told))


@kernels
@pytest.mark.parametrize("method", METHODS)
def test_saved(method, kernel, tmp_path):
    """The file names the kernel where it is not the Gaussian one, which no file named before."""
    (X, y), (T, _) = rows(), rows(40, 1)
    told = options(kernel, centers=(20,), coarse_sigma=None if kernel == "linear" else (2.0,), coarse_lam=(1e-3,))
    model = train(method, X, y, told).model
    model.save(tmp_path / "model.h5")
    loaded = KRRModel.load(tmp_path / "model.h5")
    np.testing.assert_array_equal(loaded.predict(T), model.predict(T))
    assert loaded.kernel == model.kernel
    with h5py.File(tmp_path / "model.h5") as file:
        assert ("kernel" in json.loads(file.attrs["attributes"])) == (kernel != "gaussian")


def test_a_checkpoint_is_of_one_kernel(tmp_path):
    (X, y), comm = rows(), Communicator()
    for kernel in ("gaussian", "linear"):
        told = options(kernel, checkpoint=Checkpoint(tmp_path / kernel))
        train("bkrr2", X, y, told, comm=comm)
    with pytest.raises(InputError, match="a checkpoint of another run"):
        train("bkrr2", X, y, options("polynomial", checkpoint=Checkpoint(tmp_path / "linear")))


def test_a_kernel_without_a_width():
    assert Kernel("linear").with_sigma(3.0) == Kernel("linear")
    assert Kernel("polynomial", degree=2, coef0=1.0).with_sigma(0.5) == Kernel("polynomial", 2.0, 2, 1.0)
    with pytest.raises(InputError, match="sigma = 0"):
        Kernel("linear").with_sigma(0.0)
