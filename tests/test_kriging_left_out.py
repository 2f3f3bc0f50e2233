"""Parameters of kriging by left-out blocks: the judge against brute force, and what it finds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import norm

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.kernels import Kernel
from cakriging import Kriging
from cakriging.estimation import LeftOutBlocks, Sample, nearest_of_other_blocks
from cakriging.near_matrix import Correlation

LENGTH, SILL, NUGGET = 0.2, 2.0, 0.3


def field(n, seed=0):
    """Places, values of a random field with noise and a slope, and functions of the drift."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, 2))
    K = SILL * Correlation(Kernel("matern32").with_sigma(LENGTH)).matrix(X, X) + NUGGET * np.eye(n)
    return X, np.linalg.cholesky(K) @ rng.normal(size=n) + X[:, 0], np.column_stack([np.ones(n), X])


def test_neighbours_are_the_nearest_of_other_blocks():
    X = np.random.default_rng(0).random((330, 2))
    _, nearest = nearest_of_other_blocks(X, 40)
    distances = cdist(X, X)
    assert (nearest >= 0).all()
    left_out = []
    for row, found in enumerate(nearest):
        others = np.argsort(distances[row])
        assert len(set(found)) == 40
        left_out.append(set(others[: np.flatnonzero(others == found[-1])[0]]) - set(found))
    assert all(row in out for row, out in enumerate(left_out))
    assert max(map(len, left_out)) <= 11  # at most those of the row's own block
    assert np.median([*map(len, left_out)]) >= 5


def test_a_sample_is_random_points_and_blocks_of_neighbours():
    X, place = np.random.default_rng(0).random((701, 2)), np.random.default_rng(1).permutation(701)
    columns = np.column_stack([np.arange(701.0), np.zeros(701)])
    found = Sample.of(X, columns, place, 701, 205, Communicator())
    centers = X[np.argsort(place)[:10]]
    near = {int(row) for center in cdist(centers, X) for row in np.argsort(center)[:10]}
    assert set(found.y) == near | set(np.flatnonzero(place < 105))
    assert len(Sample.of(X, columns, place, 701, 701, Communicator())) == 701


def test_more_points_of_a_sample_determine_parameters_better():
    X, y, _ = field(800)
    few, many = (Kriging(kernel="matern32", sample=n, drift="linear", random_state=0).fit(X, y) for n in (160, 600))
    assert many.log_std_["nugget"] < 0.8 * few.log_std_["nugget"]
    with pytest.raises(InputError, match="sample = 50"):
        Kriging(sample=50).fit(X, y)


@pytest.mark.parametrize("n", [3, 15, 41])
def test_few_points(n):
    _, nearest = nearest_of_other_blocks(np.random.default_rng(0).random((n, 1)), 40)
    assert nearest.shape == (n, 40)
    assert (nearest[:, 0] >= 0).all()
    assert not (nearest == np.arange(n)[:, None]).any()


@pytest.mark.parametrize("errors", [0.0, 0.1])
def test_density_of_left_out_values(errors):
    """Against a solution per value; the drift by generalised least squares of all values."""
    X, y, F = field(150)
    deviations = errors * np.arange(150) / 150
    kernel, judge = (
        Kernel("matern32"),
        LeftOutBlocks(Sample(X, y, F, deviations), Kernel("matern32"), math.inf, Communicator()),
    )
    K = 1.5 * Correlation(kernel.with_sigma(0.25)).matrix(X, X) + np.diag(0.2 + deviations)
    beta = np.linalg.solve(F.T @ np.linalg.solve(K, F), F.T @ np.linalg.solve(K, y))
    density = 0.0
    for row, near in enumerate(judge.nearest):
        weights = np.linalg.solve(K[np.ix_(near, near)], K[near, row])
        mean, variance = F[row] @ beta + weights @ (y - F @ beta)[near], K[row, row] - weights @ K[near, row]
        density += norm.logpdf(y[row], mean, math.sqrt(variance))
    value, sill = judge(0.25, 1.5, 0.2, None)
    assert -0.5 * (value + 150 * math.log(2 * math.pi)) == pytest.approx(density, rel=1e-10)
    assert sill == 1.5
    if not errors:
        best, sill = judge(0.25, None, 0.0, 0.2 / 1.5)
        assert best == pytest.approx(judge(0.25, sill, sill * 0.2 / 1.5, None)[0], rel=1e-12)
        assert best <= min(judge(0.25, c * sill, c * sill * 0.2 / 1.5, None)[0] for c in (0.9, 1.1))


def test_close_to_the_truth(tuned):
    tuned(likelihood_rows=10)  # Vecchia's factor for the drift takes less time
    X, y, _ = field(1000)
    found = Kriging(kernel="matern32", estimation="blocks", drift="linear", random_state=0).fit(X, y)
    assert (found.nugget_, found.sill_ / found.range_**3) == pytest.approx((NUGGET, SILL / LENGTH**3), rel=0.35)
