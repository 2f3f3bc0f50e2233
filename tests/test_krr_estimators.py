"""The regressors as scikit-learn estimators."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import refusal
from helpers.data import LAYOUTS, as_csr, formats, read_only, saddle
from helpers.references import ridge
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from cakrr import BKRR, BKRR2, DCKRR, DKRR, KKRR, KKRR2, TwoLevelKRR

ESTIMATORS = [BKRR2, KKRR2, DCKRR]
estimators = pytest.mark.parametrize("cls", ESTIMATORS)
SMALL = TwoLevelKRR(n_parts=2, centers=20, coarse_lam=1e-4, lam=[1e-4, 1e-2], random_state=0)


def rows(n=150, seed=0, zeros=0.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)) * [1, 10, 1, 1]
    X[rng.random(X.shape) < zeros] = 0
    return X, 5 + np.sin(X[:, 0]) + 0.1 * X[:, 1] + X[:, 2] * X[:, 3]


@estimators
def test_attributes(cls):
    X, y = rows()
    model = cls(n_parts=3, sigma=[1.0, 2.0], lam=[1e-5, 1e-2], random_state=0).fit(X, y)
    assert (model.sizes_.sum(), model.sizes_.shape, model.centers_.shape) == (150, (3,), (3, 4))
    assert len(model.grid_) == 4
    best = min(model.grid_, key=lambda row: row["validation_mse"])
    assert (model.sigma_, model.lam_) == (best["sigma"], best["lambda"])
    assert model.score(*rows(80, 1)) > 0.9
    plain = cls(sigma=None, lam=1e-4, random_state=0).fit(X, y)
    assert (plain.sigma_, plain.lam_, plain.grid_) == (2.0, 1e-4, [])  # the square root of 4 features


def test_is_kernel_ridge():
    (X, y), (T, _) = rows(), rows(40, 1)
    model = BKRR2(sigma=1.5, lam=1e-3, standardize=False).fit(X, y)
    reference = ridge(1.5, 1e-3 * 150).fit(X, y - y.mean())
    np.testing.assert_allclose(model.predict(T), reference.predict(T) + y.mean(), rtol=1e-8)


@estimators
def test_composes(cls):
    X, y = rows()
    search = GridSearchCV(cls(n_parts=2, random_state=0), {"sigma": [0.1, 2.0], "n_parts": [1, 3]}, cv=3).fit(X, y)
    assert search.best_params_["sigma"] == 2.0
    pipe = make_pipeline(StandardScaler(), FunctionTransformer(), cls(n_parts=2, standardize=False, random_state=0))
    alone = cls(n_parts=2, random_state=0)
    np.testing.assert_allclose(pipe.fit(X, y).predict(X), alone.fit(X, y).predict(X), rtol=1e-8)
    assert np.isfinite(cross_val_score(pipe, X, y, cv=3)).all()


@pytest.mark.parametrize(
    "model", [*(cls(n_parts=3, sigma=2.0, lam=[1e-4, 1e-3], random_state=4) for cls in (*ESTIMATORS, BKRR, KKRR)),
              DKRR(lam=[1e-4, 1e-3], random_state=0), SMALL], ids=lambda model: type(model).__name__,
)  # fmt: skip
def test_clone_pickle_and_compose(model):
    X, y = rows()
    model = clone(model).fit(X, y)
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    refusal(fresh.predict, X, error=NotFittedError)
    expected = model.predict(X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), expected)
    np.testing.assert_array_equal(fresh.fit(X, y).predict(X), expected)
    pipe = make_pipeline(StandardScaler(), clone(model).set_params(standardize=False)).fit(X, y)
    np.testing.assert_allclose(pipe.predict(X), expected, rtol=1e-7, atol=1e-7)


@estimators
@formats
def test_weights(cls, csr):
    """Weight 0 is absence; weights count relative to each other."""
    X, y = rows(zeros=0.3 if csr else 0.0)
    w = np.random.default_rng(0).integers(0, 4, 150).astype(float)
    X, kept = as_csr(X, csr), w > 0
    model = cls(n_parts=3, sigma=2.0, lam=1e-2, random_state=1)
    expected = model.fit(X, y, w).predict(X)
    np.testing.assert_allclose(model.fit(X[kept], y[kept], w[kept]).predict(X), expected, rtol=1e-12)
    np.testing.assert_allclose(model.fit(X, y, 8 * w).predict(X), expected, rtol=1e-8)
    assert not np.allclose(model.fit(X[kept], y[kept]).predict(X), expected, rtol=1e-3)
    y[~kept] = 1e9
    np.testing.assert_allclose(model.fit(X, y, w).predict(X), expected, rtol=1e-12)


def shifted():
    """Rows that do not lie around 0."""
    X = np.random.default_rng(0).random((300, 4)) + 1
    return X, X.sum(axis=1) + np.sin(4 * X[:, 0])


def test_validation_is_weighted():
    """Rows of hardly any weight have no say in the choice: wild targets there choose as their absence does."""
    X, y = shifted()
    wild = np.concatenate([y, np.random.default_rng(1).normal(0, 1e3, 300)])
    rows, weights = np.concatenate([X, X + 0.01]), np.repeat([1.0, 1e-9], 300)
    grid = {"sigma": [0.01, 2.0], "lam": [1e-6, 1e-3], "random_state": 0}
    model = BKRR2(1, **grid).fit(rows, wild, weights)
    assert model.sigma_ == BKRR2(1, **grid).fit(X, y).sigma_ == 2.0


@pytest.mark.parametrize("make", [BKRR2, DCKRR])
def test_sparse_rows_on_a_model_of_dense_ones(make):
    """The training rows were shifted to their mean: so are rows that come as CSR."""
    X, y = shifted()
    model = make(3, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict(sp.csr_matrix(X)), model.predict(X), rtol=1e-10)


BAD_WEIGHTS = {"short": np.ones(149), "negative": np.r_[-1.0, np.ones(149)], "nan": np.r_[np.nan, np.ones(149)],
               "zero": np.zeros(150), "words": np.array(["one"] * 150)}  # fmt: skip


@pytest.mark.parametrize("what", BAD_WEIGHTS)
def test_bad_weights(what):
    refusal(BKRR2().fit, *rows(), BAD_WEIGHTS[what])


BAD = {
    "dtype": (BKRR2(dtype="int32"), "dtype"), "sigma": (BKRR2(sigma=-1.0), "sigma"), "lam": (BKRR2(lam="much"), "lam"),
    "sigma list": (BKRR2(sigma=[1.0, "a"]), "sigma"), "route": (BKRR2(route="sum"), "route"),
    "validation_fraction": (BKRR2(validation_fraction=0), "fraction"), "n_parts": (BKRR2(n_parts=151), "151 parts"),
    "n_parts 0": (BKRR2(n_parts=0), "n_parts ="), "n_parts text": (BKRR2(n_parts="2"), "n_parts ="),
    **{f"{name} {value}": (clone(SMALL).set_params(**{name: value}), name)
       for name, value in (("centers", 0), ("centers", 2.5), ("centers", "many"), ("coarse_sigma", -1.0),
                           ("coarse_lam", [1e-3, np.nan]))},
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_parameters(what):
    model, match = BAD[what]
    refusal(model.fit, *rows(), match=match)


def test_search_over_centers():
    X, y = saddle()
    search = GridSearchCV(SMALL, {"centers": [1, 40], "coarse_sigma": [2.0]}, cv=3).fit(X, y)
    assert search.best_params_ == {"centers": 40, "coarse_sigma": 2.0}


def test_attributes_of_two_levels():
    X, y = saddle()
    model = clone(SMALL).set_params(centers=[5, 20], coarse_sigma=1.0, sigma=[0.5, 1.0]).fit(X, y)
    assert len(model.grid_) == 2 * 2 * 2
    best = min(model.grid_, key=lambda row: row["validation_mse"])
    assert (model.sigma_, model.lam_) == (best["sigma"], best["lambda"])
    assert set(model.params_) == {"centers", "coarse_sigma", "coarse_lambda", "soft_k", "soft_t"}
    assert model.params_["centers"] == best["centers"] == len(model.model_.coarse.beta)


@estimators
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_csr_as_dense(cls, dtype):
    """Without standardisation the same numbers go in: 1e-8, for rows in single precision too."""
    (X, y), (T, _) = rows(zeros=0.4), rows(40, 1, zeros=0.4)
    given = {"n_parts": 3, "sigma": 3.0, "lam": 1e-2, "standardize": False, "dtype": dtype, "random_state": 0}
    dense = cls(**given).fit(X, y).predict(T)
    for kind in (sp.csr_matrix, sp.csr_array, sp.csc_matrix, sp.coo_array):
        sparse = cls(**given).fit(kind(X), y).predict(kind(T))
        assert sparse.dtype == np.float64
        np.testing.assert_allclose(sparse, dense, rtol=1e-8)


@estimators
@pytest.mark.parametrize("layout", LAYOUTS)
def test_input_stays(cls, layout):
    X, y = rows(zeros=0.3)
    X, w, dtype = LAYOUTS[layout](X), np.ones(150), "float32" if layout == "float32" else "float64"
    before = [array.copy() for array in (X, y, w)]
    read_only(X, y, w)
    for weights in (None, w):
        cls(n_parts=2, lam=[1e-3, 1e-2], dtype=dtype).fit(X, y, weights).predict(X)
    for array, copy in zip((X, y, w), before, strict=True):
        assert abs(array - copy).sum() == 0


@estimators
def test_float32(cls):
    (X, y), (T, _) = rows(), rows(40, 1)
    given = {"n_parts": 3, "lam": 1e-2, "random_state": 0}
    single = cls(**given, dtype="float32").fit(X, y).predict(T)
    assert single.dtype == np.float64
    np.testing.assert_allclose(single, cls(**given).fit(X, y).predict(T), rtol=1e-5)  # the rows were rounded


WITHOUT_MPI = """
import sys
import numpy as np
from cakrr import BKRR2
from partition import KBalance
X = np.random.default_rng(0).normal(size=(60, 3))
for _ in range(2):
    model = BKRR2(n_parts=3, random_state=0).fit(X, X[:, 0])
    assert model.predict(X).shape == (60,)
    assert KBalance(4, random_state=0).fit(X).sizes_.tolist() == [15] * 4
    assert sys.modules.get("mpi4py") is None  # not even looked for,
    sys.modules["mpi4py"] = None  # and cannot be imported the second time
from cacore.comm import world
assert world().size == 1
"""


def test_without_mpi4py(python, tmp_path):
    done = python("-W", "error", "-c", WITHOUT_MPI, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_end_of_a_grid_stands_in_an_attribute():
    """The targets are linear, so that the widest kernel is the best."""
    X = np.random.default_rng(0).normal(size=(120, 2))
    y = X[:, 0]
    model = BKRR2(n_parts=1, sigma=[0.1, 0.3, 3.0], lam=[1e-9]).fit(X, y)
    assert model.at_grid_end_ == {"sigma": 3.0}
    assert BKRR2(n_parts=1, sigma=[0.1, 3.0, 1e5], lam=[1e-9]).fit(X, y).at_grid_end_ == {}
    assert BKRR2(n_parts=1, sigma=1.0, lam=1e-3).fit(X, y).at_grid_end_ == {}


def test_a_constant_column_beside_a_kernel_without_a_width():
    """No warning of numpy: 0 times an infinite width is no number."""
    X = np.column_stack([np.random.default_rng(0).normal(size=(60, 2)), np.ones(60)])
    model = BKRR2(n_parts=1, kernel="linear", lam=1e-9).fit(X, X[:, 0])
    assert np.abs(model.predict(X) - X[:, 0]).max() < 1e-6
