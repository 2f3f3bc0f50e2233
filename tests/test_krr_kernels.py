"""Ridge regression with each kernel against scikit-learn's KernelRidge."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import close, refusal
from helpers.commands import predicted, reported, run
from helpers.data import as_csr, formats, split_rows
from scipy.spatial.distance import cdist
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics import mean_squared_error
from sklearn.preprocessing import StandardScaler

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.io import Dataset
from cacore.io.checkpoint import Checkpoint
from cacore.kernels import Kernel
from cakrr import BKRR2, DKRR, KRRModel, TwoLevelKRR
from cakrr.bkrr2 import bkrr2
from cakrr.dkrr import dkrr
from cakrr.options import RidgeOptions
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
    return RidgeOptions(**{**given, **more})


def train(method, X, y, told, weights=None, test=None, comm=None):
    given = Dataset(*test, len(test[1]), "test rows") if test is not None else None
    data = Dataset(X.copy(), y.copy(), len(y), "rows", weights=weights)
    return METHODS[method](data, told, comm or Communicator(), given)


class Reference:
    """Reference by scikit-learn, for centred targets and standardised rows."""

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


@pytest.mark.parametrize("cls", [BKRR2, DKRR, TwoLevelKRR])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sigmoid(dtype, cls):
    """Its matrix is indefinite: the ridge makes the system positive definite."""
    (X, y), (T, _) = ((X.astype(dtype), y) for X, y in (rows(), rows(40, 1)))
    more = {"centers": 20, "coarse_sigma": 3.0, "coarse_lam": 0.1} if cls is TwoLevelKRR else {}
    given = {"sigma": 3.0, "coef0": 0.5, "lam": 0.1, "standardize": False, "dtype": dtype, "random_state": 0, **more}
    model = cls(kernel="sigmoid", **given).fit(X, y)
    once = model.model_.coarse.predict if more else lambda Z: 0.0
    ridge = KernelRidge(kernel="sigmoid", gamma=1 / 18, coef0=0.5, alpha=0.1 * len(y))
    rest = ridge.fit(X.astype(float), y - y.mean() - once(X)).predict(T.astype(float))
    close(model.predict(T), y.mean() + once(T) + rest, 1e-8 if dtype == "float64" else 1e-6)


@kernels
def test_parts(kernel):
    """The nearest centre's model, of the rows of its part."""
    (X, y), (T, _) = rows(), rows(40, 1)
    model = train("bkrr2", X, y, options(kernel, standardize=False, partitions=3)).model
    answers = np.empty((3, 40))
    for part, of_part in model.parts.items():
        own = cdist(of_part.X, X).argmin(axis=1)
        ridge = KernelRidge(alpha=LAM * len(own), **KERNELS[kernel][1])
        answers[part] = y.mean() + ridge.fit(X[own], y[own] - y.mean()).predict(T)
    close(model.predict(T), answers[cdist(T, model.centers).argmin(axis=1), np.arange(40)])


@pytest.mark.parametrize("method", ["bkrr2", "dkrr"])
def test_a_kernel_that_is_not_positive_definite(method):
    X, y = rows()
    told = RidgeOptions(kernel="sigmoid", sigma=(0.3,), lam=(1e-9,), coef0=-2.0)
    with pytest.raises(InputError, match=r"is not positive definite at sigma 0\.3, lambda 1e-09; use a larger"):
        train(method, X, y, told)


@pytest.mark.parametrize("method", ["bkrr2", "dkrr"])
def test_a_matrix_of_rounding_alone(method):
    """Kernel values of 1e70 swallow lambda; there is a Cholesky factor, and predictions of 1e30 came of it."""
    X, y = rows(n=600)
    X = np.exp(1.5 * X)
    with pytest.raises(InputError, match="not positive definite"):
        train(method, X, y, options("polynomial", degree=20, sigma=(0.7,)))


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
        train("bkrr2", X, y, RidgeOptions(**told))


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


# -- estimators and commands -------------------------------------------------------------------


@pytest.mark.parametrize("cls", [BKRR2, DKRR, TwoLevelKRR])
def test_estimator(cls):
    """Its parameters have the options' names, and scikit-learn's names of kernels; what is refused is one line."""
    X, y = rows()
    few = {"centers": 20, "random_state": 0} if cls is TwoLevelKRR else {"random_state": 0}
    model = cls(kernel="poly", degree=2, coef0=1.0, sigma=2.0, **few).fit(X, y)
    assert model.model_.kernel == Kernel("polynomial", 1 / 8, 2, 1.0)
    assert model.score(X, y) > 0.9
    assert cls(kernel="rbf", **few).fit(X, y).model_.kernel.kind == "gaussian"
    for given in ({"kernel": "cubic"}, {"kernel": None}, {"kernel": "linear", "sigma": 1.0}, {"degree": 1.5}):
        refusal(cls(**given).fit, X, y)


@pytest.mark.parametrize("method", METHODS)
def test_command(method, inputs, tmp_path):
    words = [inputs / "good.h5", "--kernel", "polynomial", "--degree", "2", "--coef0", "1", "--lambda", "1e-3,1e-2"]
    trained = reported(f"cakrr.{method}", [*words, "--model", tmp_path / "m.h5"], tmp_path)
    model = KRRModel.load(tmp_path / "m.h5")
    assert trained["params"]["kernel"] == "polynomial"
    assert model.kernel == Kernel("polynomial", 1 / (2 * trained["params"]["sigma"] ** 2), 2, 1.0)
    run("cakrr.predict", [tmp_path / "m.h5", inputs / "good.h5", "-o", tmp_path / "p.csv", "--quiet"])
    X, y = split_rows("test")
    np.testing.assert_array_equal(predicted(tmp_path / "p.csv"), model.predict(X))
    assert trained["metrics"]["mse"] == pytest.approx(np.mean((model.predict(X) - y) ** 2))


BAD = {
    "width": ("bkrr2", ["--kernel", "linear", "--sigma", "1"], "sigma: the linear kernel has no width; leave it out"),
    "coarse width": ("twolevel", ["--kernel", "linear", "--coarse-sigma", "1"], "has no width"),
    "kernel": ("bkrr2", ["--kernel", "cubic"], "--kernel"),
    "degree": ("dkrr", ["--kernel", "polynomial", "--degree", "1.5"], "--degree 1.5: it must be a whole number"),
    "coef0": ("dkrr", ["--coef0", "nan"], "--coef0 nan: it must be a finite number"),
}


@pytest.mark.parametrize("what", BAD)
def test_command_refused(what, inputs, refuses):
    method, words, message = BAD[what]
    refuses(f"cakrr.{method}", [inputs / "good.h5", *words, "--model", "out.h5"], message, inputs)
