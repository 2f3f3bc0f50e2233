"""Kriging where rounding could show: values far from 0, places written in several ways, nearly singular systems."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from cacore.errors import InputError
from cakriging import Kriging
from cakriging.space import Space

OFFSETS = (-1e8, 1.6e9)


def sampled(n, seed=3):
    """Points in the plane with values of an exponential covariance, and places."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, 2))
    K = np.exp(-cdist(X, X) / 0.25) + 0.04 * np.eye(n)
    return X, np.linalg.cholesky(K) @ rng.normal(size=n), rng.random((30, 2))


@pytest.mark.parametrize(
    "options",
    [
        {"estimation": "likelihood"},
        {"estimation": "blocks"},
        {"drift": "quadratic"},
        {"drift": [0], "range": 0.3},
        {"estimation": "likelihood", "exact": 20},
        {"range": 0.3, "sill": 1.0, "nugget": 0.05, "taper": 0.5, "solver": "cg"},
    ],
)
def test_an_offset_of_the_values_changes_nothing_else(options, tuned):
    options = dict(options)
    if exact := options.pop("exact", None):
        tuned(likelihood_rows=exact)
    X, y, Q = sampled(80)

    def fitted(offset):
        model = Kriging(kernel="laplacian", random_state=0, **options).fit(X, y + offset)
        mean, std = model.predict(Q, return_std=True)
        draws = model.simulate(Q, 2)
        return [model.range_, model.sill_, model.nugget_], mean - offset, std, draws - offset

    near = fitted(0.0)
    for offset in OFFSETS:
        for ours, wanted in zip(fitted(offset), near, strict=True):
            np.testing.assert_allclose(ours, wanted, rtol=2e-3, atol=1e-14 * abs(offset))


def test_a_steep_trend_changes_nothing_but_the_drift():
    X, y, Q = sampled(120)
    flat = Kriging(drift="linear", random_state=0).fit(X, y)
    steep = Kriging(drift="linear", random_state=0).fit(X, y + 1e8 * X[:, 0] - 4e7 * X[:, 1])
    assert (steep.range_, steep.sill_, steep.nugget_) == pytest.approx((flat.range_, flat.sill_, flat.nugget_), 1e-3)
    trend = 1e8 * Q[:, 0] - 4e7 * Q[:, 1]
    np.testing.assert_allclose(steep.predict(Q) - trend, flat.predict(Q), atol=1e-5)


@pytest.mark.parametrize(("drift", "offset"), [("constant", 0.1), ("linear", 2e9)])
def test_values_without_a_field_are_refused(drift, offset):
    X = sampled(60)[0]
    slope = 0.0 if drift == "constant" else 7.3
    with pytest.raises(InputError, match="all values are those of the drift"):
        Kriging(drift=drift).fit(X, offset + slope * X[:, 0])


@pytest.mark.parametrize(
    "places",
    [
        [[12.0, 90.0], [-77.5, 90.0], [0.0, 90.0]],
        [[31.7, -90.0], [0.0, -90.0]],
        [[180.0, 4.1], [-180.0, 4.1], [540.0, 4.1], [180.0 - 1e-13, 4.1]],
        [[5.1, 50.3], [365.1, 50.3], [-354.9, 50.3], [5.1 + 3600.0, 50.3]],
        [[0.0, 0.0], [-0.0, -0.0], [360.0, 0.0]],
    ],
)
def test_equivalent_coordinates_are_the_same_place(places):
    same = Space(True).coordinates(np.array(places))
    assert (same == same[0]).all()
    X = np.array([*places, [100.0, 0.0], [60.0, -20.0]])
    y = np.arange(len(X), dtype=float)
    known = {"geographic": True, "range": 3000.0, "sill": 0.5, "nugget": 0.0, "kernel": "laplacian", "random_state": 0}
    with pytest.raises(InputError, match=f"{len(places)} values share their place"):
        Kriging(**known).fit(X, y)
    for solver in ("cholesky", "cg"):
        model = Kriging(**known, average=True, taper=4000.0, solver=solver).fit(X, y)
        np.testing.assert_allclose(model.predict(np.array(places)), y[: len(places)].mean(), rtol=1e-9)


def test_places_on_the_earth_keep_their_distances():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(-180, 180, 50), rng.uniform(-90, 90, 50)])
    there = Space(True).coordinates(X)
    angle = np.radians(X)
    unit = np.column_stack([
        np.cos(angle[:, 1]) * np.cos(angle[:, 0]), np.cos(angle[:, 1]) * np.sin(angle[:, 0]), np.sin(angle[:, 1]),
    ])  # fmt: skip
    np.testing.assert_allclose(there, 6371.0088 * unit, atol=1e-5)


def test_means_do_not_depend_on_other_outputs():
    X, y, Q = sampled(200)
    model = Kriging(kernel="matern52", range=5.0, sill=1.0, nugget=1e-7, random_state=0).fit(X, y)
    np.testing.assert_array_equal(model.predict(Q), model.predict(Q, return_std=True)[0])


@pytest.mark.parametrize("kernel", ["laplacian", "gaussian", "matern32"])
def test_a_nearly_singular_system_is_refused(kernel):
    X, y, _ = sampled(60)
    X[30:] = X[:30] + 1e-12
    with pytest.raises(InputError, match="singular"):
        Kriging(kernel=kernel, range=0.3, sill=1.0, nugget=0.0, random_state=0).fit(X, y)
