"""Routing of rows to parts, and assignment of parts to ranks."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from partition.parts_model import nearest
from partition.redistribute import assign_owners


@pytest.mark.parametrize("csr", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d", "P"), [(1, 1, 1), (700, 3, 1), (700, 3, 17), (5000, 30, 300), (9, 4, 40)])
def test_nearest(n, d, P, dtype, csr):
    rng = np.random.default_rng(n + P)
    X, centers = rng.normal(size=(n, d)).astype(dtype), rng.normal(size=(P, d))
    if csr:
        X[rng.random(X.shape) < 0.5] = 0
    labels = nearest(sp.csr_matrix(X) if csr else X, centers)
    distance = cdist(X, centers)
    assert (labels.dtype, labels.shape) == (np.int32, (n,))
    # float32 cannot tell centres apart whose distances agree to 1e-5; float64 must.
    own = distance[np.arange(n), labels]
    np.testing.assert_allclose(own, distance.min(axis=1), rtol=1e-5 if dtype == np.float32 else 1e-13)
    if dtype == np.float64:
        np.testing.assert_array_equal(labels, distance.argmin(axis=1))


def test_ties_go_to_the_lower_number():
    X = np.array([[0.0], [1.0], [2.0], [-1.0]])
    assert nearest(X, np.array([[2.0], [0.0], [2.0], [0.0]])).tolist() == [1, 0, 0, 1]


def test_no_rows():
    assert nearest(np.empty((0, 3)), np.ones((2, 3))).shape == (0,)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_far_from_the_origin(dtype):
    """Centres 1 apart, rows 1e4 away: |x|^2 - 2 x.c alone would have no digit left in float32."""
    rng = np.random.default_rng(0)
    X = (1e4 + rng.random((400, 3))).astype(dtype)
    centers = 1e4 + rng.random((5, 3)).astype(np.float32).astype(np.float64)
    distance = cdist(X.astype(np.float64), centers)
    labels = nearest(X, centers)
    np.testing.assert_allclose(distance[np.arange(400), labels], distance.min(axis=1), rtol=1e-5)


def test_does_not_depend_on_the_other_rows():
    """A row's route is its own, whatever rows it comes with."""
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(60, 2)), 1e6 + rng.normal(size=(60, 2))])
    centers = X[::10] + 0.01
    together = nearest(X, centers)
    alone = np.concatenate([nearest(X[i : i + 1], centers) for i in range(120)])
    np.testing.assert_array_equal(together, alone)


@given(sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=40), ranks=st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_owners(sizes, ranks):
    owners = assign_owners(np.array(sizes), ranks)
    assert ((owners >= 0) & (owners < ranks)).all()
    load = np.bincount(owners, weights=np.array(sizes, float) ** 3, minlength=ranks)
    # Largest first is within 4/3 of the best there can be (Graham, 1969).
    best = max(load.sum() / ranks, max(sizes) ** 3)
    if len(sizes) > ranks:
        by_cost = sorted((m**3 for m in sizes), reverse=True)
        best = max(best, by_cost[ranks - 1] + by_cost[ranks])
    assert load.max() <= 4 / 3 * best * (1 + 1e-12)
    if len(sizes) >= ranks:
        assert (np.bincount(owners, minlength=ranks) > 0).all()


def test_equal_parts_are_dealt_evenly():
    assert np.ptp(np.bincount(assign_owners(np.full(22, 50), 4), minlength=4)) <= 1
