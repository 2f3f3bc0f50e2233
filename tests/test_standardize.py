"""Means and scales against scikit-learn's StandardScaler."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.preprocessing import StandardScaler

from cacore.comm import Communicator
from cacore.data.standardize import Standardizer

RNG = np.random.default_rng(0)
DENSE = RNG.standard_normal((9000, 5)) * [1, 10, 0.01, 1, 3] + [0, 50, -2, 0, 1e3]  # more than two blocks of rows
SPARSE = sp.csr_matrix(DENSE * (RNG.random(DENSE.shape) < 0.3))
WEIGHTS = RNG.random(9000) * 3
EPS = {"float64": 1e-12, "float32": 1e-5}


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
@pytest.mark.parametrize("dtype", EPS)
def test_dense(dtype, weights):
    X = DENSE.astype(dtype)
    ours = Standardizer.fit(X, Communicator(), weights)
    ref = StandardScaler().fit(X.astype(np.float64), sample_weight=weights)
    np.testing.assert_allclose(ours.mean, ref.mean_, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(ours.scale, ref.scale_, rtol=1e-10)
    got = ours.apply(X)
    assert got.dtype == dtype
    # The rounding of the data and of a sum of 9,000 of them, seen after division by the scale.
    atol = np.finfo(dtype).eps * 50 * (np.abs(X).max(axis=0) / ref.scale_).max()
    np.testing.assert_allclose(got, ref.transform(X.astype(np.float64)), rtol=0, atol=atol)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
@pytest.mark.parametrize("dtype", EPS)
def test_sparse_is_scaled_only(dtype, weights):
    X = SPARSE.astype(dtype)
    ours = Standardizer.fit(X, Communicator(), weights)
    ref = StandardScaler(with_mean=False).fit(X.astype(np.float64), sample_weight=weights)
    assert (ours.mean == 0).all()
    np.testing.assert_allclose(ours.scale, ref.scale_, rtol=EPS[dtype])
    got = ours.apply(X)
    assert got.dtype == dtype
    assert got.nnz == X.nnz
    np.testing.assert_allclose(got.toarray(), ref.transform(X.astype(np.float64)).toarray(), rtol=EPS[dtype])


@pytest.mark.parametrize("form", [np.array, sp.csr_matrix])
@pytest.mark.parametrize(("size", "unit"), [(1e-37, 2.0**-924), (1e-100, 2.0**-1000), (1e120, 2.0**1000)])
def test_the_unit_of_the_weights_does_not_matter(size, unit, form):
    X = form(DENSE[:100] * size)
    ours, ref = (Standardizer.fit(X, Communicator(), WEIGHTS[:100] * one) for one in (unit, 1.0))
    np.testing.assert_array_equal([ours.mean, ours.scale], [ref.mean, ref.scale])


@pytest.mark.parametrize("offset", [1e4, 1e8])
def test_columns_far_from_0_lose_nothing(offset):
    X = DENSE[:, :1] + offset
    scale = Standardizer.fit(X, Communicator()).scale
    np.testing.assert_allclose(scale, np.sqrt(np.mean((X - offset - (X - offset).mean()) ** 2)), rtol=1e-10)


@pytest.mark.parametrize("form", [np.array, sp.csr_matrix])
@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("value", [0.0, 0.1, -3.7, 1e5 / 3, 1e-20])
def test_constant_column_has_scale_1(value, dtype, form):
    X = np.column_stack([np.full(1003, value), DENSE[:1003, 0]]).astype(dtype)
    ours = Standardizer.fit(form(X), Communicator())
    assert ours.scale[0] == 1.0
    np.testing.assert_allclose(ours.scale[1], X[:, 1].std(dtype=np.float64), rtol=1e-5)


def test_small_but_not_constant():
    X = 1.0 + 1e-9 * DENSE[:, :1]
    scale = Standardizer.fit(X, Communicator()).scale
    np.testing.assert_allclose(scale, X.std(axis=0), rtol=1e-6)


@pytest.mark.parametrize("form", [np.array, sp.csr_matrix])
def test_one_row(form):
    assert (Standardizer.fit(form([[1.5, -2.0]]), Communicator()).scale == 1.0).all()


def test_weights_are_repetitions():
    counts = np.arange(200) % 4
    weighted = Standardizer.fit(DENSE[:200], Communicator(), counts)
    repeated = Standardizer.fit(np.repeat(DENSE[:200], counts, axis=0), Communicator())
    np.testing.assert_allclose(weighted.mean, repeated.mean, rtol=1e-12)
    np.testing.assert_allclose(weighted.scale, repeated.scale, rtol=1e-12)


@pytest.mark.parametrize("X", [DENSE, SPARSE], ids=["dense", "csr"])
def test_rows_and_weights_are_not_changed(X):
    before, weights = X.copy(), WEIGHTS.copy()
    Standardizer.fit(X, Communicator(), weights).apply(X)
    assert abs(X - before).max() == 0
    np.testing.assert_array_equal(weights, WEIGHTS)


def test_in_place():
    X = DENSE.copy()
    fitted = Standardizer.fit(X, Communicator())
    want = fitted.apply(X)
    got = fitted.apply(X, in_place=True)
    assert got is X
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
def test_indicators_of_a_category_count_as_one_feature(weights):
    levels = RNG.choice(4, 9000, p=[0.5, 0.3, 0.195, 0.005])
    X = np.column_stack([DENSE[:, 0], np.zeros(9000), levels[:, None] == np.arange(4), DENSE[:, 1], DENSE[:, 2] > 0])
    kinds = "f" + "clll" + "l" + "fb"  # a category of five levels, of which the first is not there, between two numbers
    plain = Standardizer.fit(X, Communicator(), weights)
    ours = Standardizer.fit(X, Communicator(), weights, kinds)
    np.testing.assert_array_equal(ours.scale[[0, 6, 7]], plain.scale[[0, 6, 7]])
    Z = ours.apply(X)
    variances = np.cov(Z.T, aweights=weights, ddof=0).diagonal()
    np.testing.assert_allclose([variances[1:6].sum(), variances[0], variances[6]], 1.0, rtol=1e-10)
    assert len(set(ours.scale[1:6])) == 1
    np.testing.assert_array_equal(ours.mean, plain.mean)


def test_levels_that_do_not_occur_leave_the_scale_at_1():
    X = np.column_stack([DENSE[:50, 0], np.zeros((50, 2))])
    assert Standardizer.fit(X, Communicator(), kinds="fcl").scale[1:].tolist() == [1.0, 1.0]
