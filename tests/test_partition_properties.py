"""Properties of every partitioner, for any rows."""

from __future__ import annotations

import pickle
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.data import blobs
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from cacore.errors import InputError
from partition import BY_NAME, FCFS, BalancedKMeans
from partition.parts_model import nearest

BALANCED = ("random", "fcfs", "bkm", "kbalance")
CLUSTERED = ("fcfs", "kmeans", "bkm", "kbalance")
partitioners = pytest.mark.parametrize("name", BY_NAME)


@st.composite
def problems(draw):
    """Rows with all that is awkward, and a number of parts: duplicates, constant features, one place for all."""
    n, d = draw(st.integers(1, 60)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["normal", "few places", "constant features", "all equal", "outlier", "wide"]))
    X = rng.normal(size=(n, d))
    if kind == "few places":
        X = X[rng.integers(0, draw(st.integers(1, 4)), n) % n]
    elif kind == "constant features":
        X[:, rng.random(d) < 0.7] = 0.1
    elif kind == "all equal":
        X[:] = rng.choice([0.0, 0.1, -1e6])
    elif kind == "outlier":
        X[0] = 1e8
    elif kind == "wide":
        X *= 10.0 ** rng.integers(-12, 12, size=(n, 1))
    if draw(st.booleans()):
        X = X.astype(np.float32)
    return sp.csr_matrix(X) if draw(st.booleans()) else X, draw(st.integers(1, n)), draw(st.integers(0, 2**31 - 1))


@partitioners
@given(problem=problems(), most=st.sampled_from([1, 128]))
@settings(max_examples=60, deadline=None)
def test_parts(name, problem, most):
    """In one level, and in two from 2 parts on."""
    with patch("partition.algorithms.clusters.ONE_LEVEL", most):
        check_parts(name, *problem)


def check_parts(name, X, P, seed):
    given_max = {"max_iter": 30} if "max_iter" in BY_NAME[name]().get_params() else {}
    before = X.copy()
    part = BY_NAME[name](P, random_state=seed, **given_max).fit(X)
    assert part.labels_.shape == (X.shape[0],)
    sizes = np.bincount(part.labels_, minlength=P)
    assert sizes.tolist() == part.sizes_.tolist()
    assert (len(sizes), sizes.min() >= 1) == (P, True)  # each row in one of P parts, and none is empty
    if name in BALANCED:
        assert np.ptp(sizes) <= 1
    assert part.centers_.shape == (P, X.shape[1])
    assert np.isfinite(part.centers_).all()
    assert abs(X - before).sum() == 0


@pytest.mark.parametrize("cls", [FCFS, BalancedKMeans])
@given(problem=problems(), classes=st.integers(1, 5), data=st.data())
@settings(max_examples=60, deadline=None)
def test_ratio(cls, problem, classes, data):
    X, P, seed = problem
    y = np.array(data.draw(st.lists(st.integers(-1, classes - 1), min_size=X.shape[0], max_size=X.shape[0])))
    labels = cls(P, ratio=True, random_state=seed).fit(X, y).labels_
    for value in np.unique(y):
        assert np.ptp(np.bincount(labels[y == value], minlength=P)) <= 1
    assert np.ptp(np.bincount(labels, minlength=P)) <= 1


@pytest.mark.parametrize("cls", [FCFS, BalancedKMeans])
@pytest.mark.parametrize("y", [None, np.array(["a", "b"] * 5), np.zeros(9)], ids=["none", "text", "short"])
def test_ratio_needs_classes(cls, y):
    with pytest.raises(InputError):
        cls(2, ratio=True).fit(np.eye(10), y)


BAD = {
    "more parts than rows": (151, blobs(), "151 parts of 150 rows"),
    "no parts": (0, blobs(), "n_parts = 0"),
    "negative": (-3, blobs(), "n_parts = -3"),
    "fraction": (2.5, blobs(), "n_parts = 2.5"),
    "text": ("8", blobs(), "n_parts = '8'"),
    "nan": (2, np.where(np.eye(150, 4) > 0, np.nan, 1.0), "NaN"),
    "infinity": (2, np.where(np.eye(150, 4) > 0, np.inf, 1.0), "infinity"),
    "sparse nan": (2, sp.csr_matrix(np.where(np.eye(150, 4) > 0, np.nan, 0.0)), "NaN"),
    "one dimension": (2, np.ones(10), "2D array"),
    "words": (2, np.array([["a"], ["b"]]), "X, column 0: row 0 is 'a', not a number"),
    "no rows": (2, np.ones((0, 3)), "parts of 0 rows"),
    "no features": (2, np.ones((5, 0)), "0 feature"),
}


@partitioners
@pytest.mark.parametrize("what", BAD)
def test_refused(name, what):
    P, X, message = BAD[what]
    with pytest.raises(InputError, match=message) as caught:
        BY_NAME[name](P).fit(X)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)


@partitioners
def test_predict(name):
    X, T = blobs(), blobs(31, seed=1)
    part = BY_NAME[name](6, random_state=0).fit(X)
    np.testing.assert_array_equal(part.predict(T), nearest(T, part.centers_))
    if name == "kmeans":
        np.testing.assert_array_equal(part.predict(X), part.labels_)
    with pytest.raises(InputError, match="3 features"):
        part.predict(T[:, :3])
    with pytest.raises(ValueError, match="not fitted"):
        BY_NAME[name](6).predict(T)


@partitioners
@pytest.mark.parametrize("spread", [1.0, 0.05])
@pytest.mark.parametrize("seed", range(4))
def test_float32_far_from_origin(name, spread, seed):
    """Rows that are 1e4 away are told apart as well in float32 as in float64: the same labels, the same centres."""
    X = (1e4 + spread * blobs(500, seed=seed)).astype(np.float32)
    single = BY_NAME[name](6, random_state=seed).fit(X)
    double = BY_NAME[name](6, random_state=seed).fit(X.astype(np.float64))
    assert single.labels_.dtype == np.int32
    np.testing.assert_array_equal(single.labels_, double.labels_)
    np.testing.assert_allclose(single.centers_, double.centers_, rtol=1e-12)


@pytest.mark.parametrize("name", CLUSTERED)
def test_float64_far_from_origin(name):
    """A shift of all rows, exact in float64, changes no label."""
    X = blobs().round(3)
    X = np.round(X * 1024) / 1024
    near = BY_NAME[name](6, random_state=0).fit(X)
    far = BY_NAME[name](6, random_state=0).fit(X + 2.0**30)
    np.testing.assert_array_equal(near.labels_, far.labels_)
    np.testing.assert_allclose(near.centers_, far.centers_ - 2.0**30, atol=1e-5)


@partitioners
@pytest.mark.parametrize("csr", [False, True], ids=["dense", "csr"])
def test_same_seed(name, csr):
    X = sp.csr_matrix(blobs()) if csr else blobs()
    first, again = (BY_NAME[name](7, random_state=5).fit(X) for _ in range(2))
    assert first.labels_.tobytes() == again.labels_.tobytes()
    assert first.centers_.tobytes() == again.centers_.tobytes()
    other = BY_NAME[name](7, random_state=6).fit(X)
    assert not np.array_equal(first.labels_, other.labels_)
    assert first.labels_.tobytes() == BY_NAME[name](7, random_state=5).fit_predict(X).tobytes()


@partitioners
def test_random_state_object(name):
    one = BY_NAME[name](5, random_state=np.random.RandomState(3)).fit(blobs())
    same = BY_NAME[name](5, random_state=np.random.RandomState(3)).fit(blobs())
    np.testing.assert_array_equal(one.labels_, same.labels_)
    assert BY_NAME[name](5).fit(blobs()).sizes_.sum() == 150  # random_state=None


@partitioners
def test_csr_as_dense(name):
    X = np.where(np.random.default_rng(0).random((150, 4)) < 0.6, 0, blobs())
    sparse, dense = BY_NAME[name](6, random_state=2).fit(sp.csr_matrix(X)), BY_NAME[name](6, random_state=2).fit(X)
    np.testing.assert_array_equal(sparse.labels_, dense.labels_)
    np.testing.assert_allclose(sparse.centers_, dense.centers_, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(sparse.predict(sp.csr_matrix(X)), dense.predict(X))


@partitioners
def test_is_an_estimator(name):
    part = BY_NAME[name](n_parts=6, random_state=2)
    assert part.get_params()["n_parts"] == 6
    assert clone(part).get_params() == part.get_params()
    assert part.set_params(n_parts=4).fit(blobs()).sizes_.shape == (4,)
    back = pickle.loads(pickle.dumps(part))
    np.testing.assert_array_equal(back.predict(blobs()), part.predict(blobs()))
    assert not hasattr(clone(part), "labels_")


@partitioners
def test_input_stays(name):
    for X in (blobs(), blobs().astype(np.float32), np.asfortranarray(blobs()), (1e5 + blobs()).astype(np.float32)):
        before = X.copy()
        X.flags.writeable = False
        BY_NAME[name](5, random_state=0).fit(X).predict(X)
        np.testing.assert_array_equal(X, before)


@partitioners
def test_lists_and_integers(name):
    X = blobs().round().astype(int)
    part = BY_NAME[name](5, random_state=0).fit(X)
    np.testing.assert_array_equal(part.labels_, BY_NAME[name](5, random_state=0).fit(X.tolist()).labels_)
    np.testing.assert_array_equal(part.labels_, BY_NAME[name](5, random_state=0).fit(X.astype(float)).labels_)
