"""The regressors as scikit-learn estimators."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.data import formats
from helpers.references import ridge
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from cacore.errors import InputError
from cakrr import BKRR2, DCKRR, KKRR2

ESTIMATORS = [BKRR2, KKRR2, DCKRR]
estimators = pytest.mark.parametrize("cls", ESTIMATORS)


@parametrize_with_checks([cls() for cls in ESTIMATORS])
def test_scikit_learn(estimator, check):
    check(estimator)


# The same with parts: scikit-learn's checks use few rows, which the default keeps in one part.
@parametrize_with_checks(
    [cls(n_parts=2, random_state=0) for cls in ESTIMATORS],
    expected_failed_checks=lambda _: {
        "check_fit2d_1sample": "one row is not two parts",
        "check_sample_weight_equivalence_on_dense_data": "a row twice and a row of weight 2 come in another order",
        "check_sample_weight_equivalence_on_sparse_data": "a row twice and a row of weight 2 come in another order",
    },
)
def test_scikit_learn_with_parts(estimator, check):
    check(estimator)


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
    assert cls(random_state=0).fit(X, y).sigma_ == 2.0  # the square root of 4 features
    assert cls(random_state=0).fit(X, y).grid_ == []


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


@estimators
def test_clone_and_pickle(cls):
    X, y = rows()
    model = cls(n_parts=3, sigma=2.0, lam=[1e-4, 1e-3], random_state=4).fit(X, y)
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        fresh.predict(X)
    back = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(back.predict(X), model.predict(X))
    np.testing.assert_array_equal(fresh.fit(X, y).predict(X), model.predict(X))


@estimators
@formats
def test_weights(cls, csr):
    """Weight 0 is absence; weights count relative to each other."""
    X, y = rows(zeros=0.3 if csr else 0.0)
    w = np.random.default_rng(0).integers(0, 4, 150).astype(float)
    given = sp.csr_matrix(X) if csr else X
    model = cls(n_parts=3, sigma=2.0, lam=1e-2, random_state=1)
    expected = model.fit(given, y, w).predict(given)
    kept = w > 0
    np.testing.assert_allclose(model.fit(given[kept], y[kept], w[kept]).predict(given), expected, rtol=1e-12)
    np.testing.assert_allclose(model.fit(given, y, 8 * w).predict(given), expected, rtol=1e-8)
    assert not np.allclose(model.fit(given[kept], y[kept]).predict(given), expected, rtol=1e-3)
    y[~kept] = 1e9
    np.testing.assert_allclose(model.fit(given, y, w).predict(given), expected, rtol=1e-12)


BAD_WEIGHTS = {"short": np.ones(149), "negative": np.r_[-1.0, np.ones(149)], "nan": np.r_[np.nan, np.ones(149)],
               "zero": np.zeros(150), "words": np.array(["one"] * 150)}  # fmt: skip


@pytest.mark.parametrize("what", BAD_WEIGHTS)
def test_bad_weights(what):
    with pytest.raises(InputError):
        BKRR2().fit(*rows(), BAD_WEIGHTS[what])


BAD_PARAMETERS = {
    "dtype": "int32", "sigma": -1.0, "lam": "much", "route": "sum", "validation_fraction": 0, "n_parts": 151,
}  # fmt: skip


@pytest.mark.parametrize("name", [*BAD_PARAMETERS, "sigma list", "n_parts 0", "n_parts text"])
def test_bad_parameters(name):
    special = {"sigma list": {"sigma": [1.0, "a"]}, "n_parts 0": {"n_parts": 0}, "n_parts text": {"n_parts": "2"}}
    given = special.get(name) or {name: BAD_PARAMETERS[name]}
    with pytest.raises(InputError) as caught:
        BKRR2(**given).fit(*rows())
    assert "\n" not in str(caught.value)


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
@pytest.mark.parametrize("kind", ["C", "F", "float32", "csr"])
def test_input_stays(cls, kind):
    X, y = rows(zeros=0.3)
    make = {"C": np.array, "F": np.asfortranarray, "float32": np.float32, "csr": sp.csr_matrix}[kind]
    given, before = make(X), make(X).copy()
    w, dtype = np.ones(150), "float32" if kind == "float32" else "float64"
    for array in (given.data if kind == "csr" else given, y, w):
        array.setflags(write=False) if isinstance(array, np.ndarray) else None
    target = y.copy()
    for weights in (None, w):
        cls(n_parts=2, lam=[1e-3, 1e-2], dtype=dtype).fit(given, y, weights).predict(given)
    assert abs(given - before).sum() == 0
    np.testing.assert_array_equal(y, target)


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
