"""Each partitioner against its listing (Algorithms 2 to 4 and 9), written out row by row."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.data import as_csr, formats
from helpers.data import blobs as far_apart
from scipy.spatial.distance import cdist
from scipy.stats import chi2
from sklearn.cluster import KMeans as SklearnKMeans

from cacore.comm import Communicator
from cacore.data.validation import shared_seed
from cacore.io.text import parse
from partition import FCFS, BalancedKMeans, KBalance, KMeans, RandomPartition
from partition.base import PartRows

SHAPES = [(200, 2, 1), (200, 2, 8), (203, 5, 8), (97, 3, 13), (40, 4, 40), (331, 20, 3)]
shapes = pytest.mark.parametrize(("n", "d", "P"), SHAPES)
seeds = pytest.mark.parametrize("seed", range(3))


def blobs(n, d):
    return far_apart(n, d, apart=4)


def in_order(part, X):
    """Row numbers in the order in which rows come first: that of ``PartRows.order``, for this partitioner's seed."""
    comm = Communicator()
    return np.argsort(PartRows(X, comm, shared_seed(part.random_state, comm)).order)


def capacities(n, P, population):
    """Rows a part: n // P, and one more for the n % P most populated (ties to the lower number)."""
    room = [n // P] * P
    for j in sorted(range(P), key=lambda j: (-population[j], j))[: n % P]:
        room[j] += 1
    return room


def closest_with_room(X, centers, rows, room, labels):
    """Lines 5 to 15 of Algorithm 3, 3 to 12 of Algorithm 9."""
    distance, taken = cdist(X, centers), [0] * len(centers)
    for i in rows:
        best = None
        for j in range(len(centers)):
            if taken[j] < room[j] and (best is None or distance[i, j] < distance[i, best]):
                best = j
        taken[best] += 1
        labels[i] = best
    return labels


@shapes
@seeds
def test_random(n, d, P, seed):
    X = blobs(n, d)
    part = RandomPartition(P, random_state=seed).fit(X)
    assert np.ptp(part.sizes_) <= 1
    np.testing.assert_array_equal(part.sizes_, np.bincount(part.labels_, minlength=P))
    for j in range(P):
        np.testing.assert_allclose(part.centers_[j], X[part.labels_ == j].mean(axis=0), rtol=1e-12, atol=1e-12)


def test_random_is_uniform():
    """Every row meets every part equally often, and neighbours are apart: chi-square, at 1 in 10,000."""
    n, P, trials = 60, 4, 400
    labels = np.array([RandomPartition(P, random_state=s).fit(np.zeros((n, 1))).labels_ for s in range(trials)])
    counts = np.array([np.bincount(labels[:, i], minlength=P) for i in range(n)])
    assert ((counts - trials / P) ** 2 / (trials / P)).sum() < chi2.isf(1e-4, n * (P - 1))
    together = np.array([(labels[:, i] == labels[:, i + 1]).sum() for i in range(n - 1)])
    share = (n / P - 1) / (n - 1)
    assert ((together - trials * share) ** 2).sum() / (trials * share * (1 - share)) < chi2.isf(1e-4, n - 1)


@shapes
@seeds
def test_fcfs(n, d, P, seed):
    X = blobs(n, d)
    part = FCFS(P, recompute_centers=False, random_state=seed).fit(X)
    order = in_order(part, X)
    np.testing.assert_array_equal(part.centers_, X[order[:P]])
    expected = closest_with_room(X, part.centers_, order, capacities(n, P, [0] * P), np.empty(n, int))
    np.testing.assert_array_equal(part.labels_, expected)


@shapes
@seeds
def test_kbalance(n, d, P, seed):
    X = blobs(n, d)
    part = KBalance(P, random_state=seed).fit(X)
    nearest = cdist(X, part.centers_).argmin(axis=1)
    room = capacities(n, P, np.bincount(nearest, minlength=P))
    expected = closest_with_room(X, part.centers_, in_order(part, X), room, np.empty(n, int))
    np.testing.assert_array_equal(part.labels_, expected)
    np.testing.assert_array_equal(part.centers_, KMeans(P, random_state=seed).fit(X).centers_)


@shapes
@seeds
def test_bkm(n, d, P, seed):
    """Full parts keep exactly their nearest rows; each row that leaves goes to its closest part with room."""
    X = blobs(n, d)
    part = BalancedKMeans(P, random_state=seed).fit(X)
    order = in_order(part, X)
    distance = cdist(X, part.centers_)
    labels, place = distance.argmin(axis=1), np.argsort(order)
    sizes = np.bincount(labels, minlength=P)
    room, leaving = capacities(n, P, sizes), []
    for j in range(P):
        members = sorted(np.flatnonzero(labels == j), key=lambda i: (distance[i, labels[i]], place[i]))
        leaving += members[room[j] :]
    left = [room[j] - min(room[j], sizes[j]) for j in range(P)]
    expected = closest_with_room(X, part.centers_, sorted(leaving, key=lambda i: place[i]), left, labels)
    np.testing.assert_array_equal(part.labels_, expected)


@seeds
def test_bkm_ties(seed):
    """Rows at one distance: the earliest stay."""
    X = np.repeat([[0.0], [1.0], [9.0]], [30, 6, 4], axis=0)
    part = BalancedKMeans(4, random_state=seed).fit(X)
    assert part.sizes_.tolist() == [10] * 4
    full = np.flatnonzero(np.bincount(part.predict(X), minlength=4) > 10)
    place = np.argsort(in_order(part, X))
    for j in full:
        own, distance = part.predict(X) == j, np.abs(X[:, 0] - part.centers_[j, 0])
        kept = own & (part.labels_ == j)
        last = max(zip(distance[kept], place[kept], strict=True))
        assert last < min(zip(distance[own & ~kept], place[own & ~kept], strict=True))


@pytest.mark.parametrize("cls", [FCFS, BalancedKMeans, KBalance])
def test_recomputed_centers(cls):
    X = blobs(120, 3)
    part = cls(7, recompute_centers=True, random_state=1).fit(X)
    kept = cls(7, recompute_centers=False, random_state=1).fit(X)
    np.testing.assert_array_equal(part.labels_, kept.labels_)
    means = [X[part.labels_ == j].mean(axis=0) for j in range(7)]
    np.testing.assert_allclose(part.centers_, means, rtol=1e-12, atol=1e-12)
    assert not np.allclose(part.centers_, kept.centers_)


@shapes
@seeds
@formats
def test_kmeans(n, d, P, seed, csr):
    """Against scikit-learn from the same rows, run until nothing moves: the same minimum, to rounding."""
    X = blobs(n, d)
    part = KMeans(P, tol=0, random_state=seed).fit(as_csr(X, csr))
    start = X[in_order(part, X)[:P]]
    reference = SklearnKMeans(P, init=start, n_init=1, tol=0, max_iter=500, algorithm="lloyd").fit(X)
    inertia = ((X - part.centers_[part.labels_]) ** 2).sum()
    assert inertia == pytest.approx(reference.inertia_, rel=1e-9, abs=1e-9)
    distance = cdist(X, part.centers_)
    np.testing.assert_allclose(distance[np.arange(n), part.labels_], distance.min(axis=1), rtol=1e-9, atol=1e-9)


def test_kmeans_stops():
    """The defaults stop once 0.1 % of the rows moves, or after max_iter rounds."""
    X = np.random.default_rng(0).random((5000, 2))
    rounds = {tol: KMeans(20, tol=tol, random_state=0).fit(X).n_iter_ for tol in (0, 1e-3, 0.5)}
    assert rounds[0] > rounds[1e-3] > rounds[0.5] > 1
    assert KMeans(20, max_iter=3, random_state=0).fit(X).n_iter_ == 3


@seeds
@pytest.mark.parametrize("far", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_kmeans_of_few_places(dtype, far, seed):
    """Fewer places than parts: there is nothing to search for, so it must not take all the rounds it may."""
    X = (far + np.repeat(np.random.default_rng(seed).normal(size=(4, 3)), 20, axis=0)).astype(dtype)
    part = KMeans(8, random_state=seed).fit(X)
    assert part.sizes_.min() >= 1
    assert part.n_iter_ < 20


@pytest.mark.parametrize("cls", [KMeans, BalancedKMeans, KBalance])
def test_on_real_rows(cls, data):
    """Against scikit-learn's best of 3: K-means within 10 %, balanced parts within 1.9 times (random ones: 3.6)."""
    X = parse(data / "space_ga_scale")["train"].X
    part = cls(8, random_state=0).fit(X)
    inertia = sum(((X[part.labels_ == j] - X[part.labels_ == j].mean(axis=0)) ** 2).sum() for j in range(8))
    best = SklearnKMeans(8, n_init=3, random_state=0).fit(X).inertia_
    assert inertia < (1.1 if cls is KMeans else 1.9) * best
