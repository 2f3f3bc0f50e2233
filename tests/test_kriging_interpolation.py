"""Interpolation to a grid by one call: the predictions of Kriging, in chunks, and the labels of xarray."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import xarray
from test_kriging import KNOWN, field

from cacore.comm import Communicator
from cacore.errors import InputError
from cakriging import Kriging, interpolate

AXES = np.linspace(1.0, 0.0, 7), np.linspace(0.0, 1.2, 9)  # the first one falls, as in rasters


def places():
    return np.stack(np.meshgrid(*AXES, indexing="ij"), axis=-1).reshape(-1, 2)


def raster():
    """A raster with a coordinate reference as rioxarray keeps it, and attributes."""
    coords = {"y": ("y", AXES[0], {"units": "m"}), "x": AXES[1], "spatial_ref": ((), 0, {"crs_wkt": "EPSG:3035"})}
    grid = xarray.DataArray(np.zeros((7, 9)), coords=coords, dims=("y", "x"), attrs={"title": "depth"})
    grid.encoding["grid_mapping"] = "spatial_ref"
    return grid


@pytest.mark.parametrize("options", [{}, {"neighbours": 20}])
def test_a_grid_has_the_predictions_of_kriging_for_any_chunks(options):
    X, y, _, _ = field(120)
    errors = np.linspace(0.0, 0.3, 120)
    want = Kriging(**KNOWN, **options).fit(X, y, errors).predict(places(), return_std=True)
    for chunks in (None, 1, 10, 1000):
        got = interpolate(X, y, AXES, errors=errors, chunks=chunks, **KNOWN, **options)
        for values, expected in zip(got, want, strict=True):
            np.testing.assert_allclose(values, expected.reshape(7, 9), rtol=0, atol=1e-12)


def test_xarray_keeps_dimensions_coordinates_attributes_and_reference():
    X, y, _, _ = field(120)
    mean, std = interpolate(X, y, AXES, **KNOWN)
    grid = raster()
    tables = ({"x": X[:, 1], "y": X[:, 0]}, xarray.Dataset({"y": ("n", X[:, 0]), "x": ("n", X[:, 1])}), X)
    for points in tables:
        for labelled in (grid, grid.to_dataset(name="old")):
            out = interpolate(points, y, labelled, **KNOWN)
            assert out["mean"].dims == out["std"].dims == ("y", "x")
            np.testing.assert_array_equal(out["mean"], mean)
            np.testing.assert_array_equal(out["std"], std)
            assert set(out.coords) == set(grid.coords)
            for name in grid.coords:
                xarray.testing.assert_identical(out[name].variable, grid[name].variable)
            assert out["mean"].encoding["grid_mapping"] == "spatial_ref"
            assert out.attrs == labelled.attrs
    np.testing.assert_array_equal(grid, np.zeros((7, 9)))


def test_counts_are_interpolated_to_rates():
    X, y, _, _ = field(60)
    counts = np.random.default_rng(0).poisson(np.exp(y / 5)).astype(float)
    for exposure in (None, np.linspace(1, 3, 60)):
        mean, _ = interpolate(X, counts, AXES, exposure=exposure, likelihood="poisson", **KNOWN)
        want = Kriging(likelihood="poisson", **KNOWN).fit(X, counts, exposure=exposure).predict(places())
        np.testing.assert_allclose(mean.ravel(), want, rtol=1e-12)


@pytest.mark.parametrize(
    ("points", "grid", "match"),
    [
        (np.zeros((9, 3)), AXES, "points has shape"),
        (np.zeros(9), AXES, "a grid of 2 dimensions needs 2 columns"),
        (np.zeros((9, 3)), raster(), r"a grid of 2 dimensions \(y, x\) needs 2 columns"),
        ({"x": np.zeros(9)}, raster(), "there is no column 'y', which is a dimension of the grid"),
        (np.zeros((9, 2)), raster().drop_vars("x"), "dimension 'x' has no coordinates"),
        (np.zeros((9, 2)), (np.array(["a"]), AXES[1]), "dimension 0 has coordinates of shape"),
        (np.zeros((9, 2)), (np.array([np.nan]), AXES[1]), "they must be finite"),
        (np.zeros((9, 2)), ([], AXES[1]), r"dimension 0 has coordinates of shape \(0,\)"),
        (
            np.zeros((9, 2)),
            raster().assign_coords(mean=1.0),
            "grid: coordinate 'mean' has the name of a result; rename it",
        ),
        (np.zeros((9, 2)), raster().rename(x="std"), "grid: coordinate 'std' has the name of a result"),
        (np.zeros((9, 2)), xarray.DataArray(np.zeros((2, 3)), dims=(0, 1)), "grid: the name of dimension 0 is no text"),
        ([["a", "b"]] * 9, AXES, "points: could not convert string to float: 'a'; give numbers alone"),
        ({"x": ["a"] * 9, "y": np.zeros(9)}, raster(), "points, column 'x': could not convert string to float"),
    ],
)
def test_grids_that_do_not_match_are_refused_in_one_line(points, grid, match):
    with pytest.raises(InputError, match=match):
        interpolate(points, np.arange(9.0), grid, **KNOWN)


def test_options_that_a_grid_excludes_are_refused():
    X, y, _, _ = field(60)
    with pytest.raises(InputError, match=r"^drift: its columns are unknown on a grid"):
        interpolate(np.column_stack([X, y]), y, (*AXES, [0.0]), drift=(0,), **KNOWN)
    assert interpolate(X, y, AXES, comm=Communicator(), **KNOWN)[0].shape == (7, 9)


def test_arrays_do_not_import_xarray():
    program = (
        "import sys, numpy as np; from cakriging import interpolate; r = np.random.default_rng(0).random; "
        "interpolate(r((20, 1)), r(20), [r(3)], kernel='matern32', range=1.0, sill=1.0, nugget=0.1); "
        "sys.exit('xarray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
