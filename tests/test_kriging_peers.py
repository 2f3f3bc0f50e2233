"""Every line of the table of names in docs/kriging.md: PyKrige and GSTools krige the same, where they are installed."""

from __future__ import annotations

import numpy as np
import pytest

from cakriging import Kriging

SILL, NUGGET, S = 1.5, 0.2, 0.3
KNOWN = {"sill": SILL, "nugget": NUGGET, "random_state": 0}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X, Q = rng.random((60, 2)), rng.random((7, 2))
    return X, np.sin(5 * X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=60), Q


def ours(X, y, Q, errors=None, **options):
    """Means, and variances of new values."""
    mean, std = Kriging(**{**KNOWN, **options}).fit(X, y, errors).predict(Q, return_std=True)
    return mean, std**2


@pytest.mark.parametrize(
    ("options", "model", "length", "more"),
    [
        ({"kernel": "laplacian"}, "exponential", 3.0, {}),
        ({"kernel": "gaussian"}, "gaussian", 7 / 4 * np.sqrt(2), {}),
        ({"kernel": "laplacian", "anisotropy": 1 / 1.7, "angle": 30.0}, "exponential", 3.0,
         {"anisotropy_scaling": 1.7, "anisotropy_angle": 30.0}),
        ({"kernel": "laplacian", "drift": "linear"}, "exponential", 3.0, {"drift_terms": ["regional_linear"]}),
    ],
)  # fmt: skip
def test_pykrige(data, options, model, length, more):
    pytest.importorskip("pykrige")
    from pykrige.ok import OrdinaryKriging
    from pykrige.uk import UniversalKriging

    X, y, Q = data
    kind = UniversalKriging if "drift_terms" in more else OrdinaryKriging
    parameters = {"psill": SILL, "range": length * S, "nugget": NUGGET}
    theirs = kind(*X.T, y, variogram_model=model, variogram_parameters=parameters, **more).execute("points", *Q.T)
    np.testing.assert_allclose(theirs, ours(X, y, Q, range=S, **options), rtol=1e-6)


def test_pykrige_with_a_column_as_drift(data):
    pytest.importorskip("pykrige")
    from pykrige.uk import UniversalKriging

    X, y, Q = data
    parameters = {"psill": SILL, "range": 3 * S, "nugget": NUGGET}
    made = UniversalKriging(
        *X.T, y, variogram_model="exponential", variogram_parameters=parameters, drift_terms=["specified"],
        specified_drift=[X[:, 0] ** 2],
    )  # fmt: skip
    theirs = made.execute("points", *Q.T, specified_drift_arrays=[Q[:, 0] ** 2])
    wide, places = np.column_stack([X, X[:, 0] ** 2]), np.column_stack([Q, Q[:, 0] ** 2])
    np.testing.assert_allclose(
        theirs, ours(wide, y, places, kernel="laplacian", range=S, drift=[2]), rtol=1e-6
    )  # fmt: skip


@pytest.mark.parametrize(
    "case", ["simple", "ordinary", "gaussian", "linear", "column", "anisotropy", "errors", "earth"]
)
def test_gstools(data, case):
    gs = pytest.importorskip("gstools")
    X, y, Q = data
    given, options, model, more, at = {"range": S, "kernel": "laplacian"}, {}, {"len_scale": S}, {}, {}
    errors, kind, family = None, gs.krige.Ordinary, gs.Exponential
    A, B = X, Q
    if case == "simple":
        options, kind, more = {"drift": "none"}, gs.krige.Simple, {"mean": 0.0}
    elif case == "gaussian":
        given, family, model = {"range": S, "kernel": "gaussian"}, gs.Gaussian, {"len_scale": S * np.sqrt(np.pi / 2)}
    elif case == "linear":
        options, kind, more = {"drift": "linear"}, gs.krige.Universal, {"drift_functions": "linear"}
    elif case == "column":
        options, kind = {"drift": [2]}, gs.krige.ExtDrift
        more, at = {"ext_drift": X[:, 0] ** 2}, {"ext_drift": Q[:, 0] ** 2}
        A, B = np.column_stack([X, X[:, 0] ** 2]), np.column_stack([Q, Q[:, 0] ** 2])
    elif case == "anisotropy":
        options, model = {"anisotropy": 0.5, "angle": 30.0}, {"len_scale": S, "anis": 0.5, "angles": np.radians(30)}
    elif case == "errors":
        errors = np.linspace(0.1, 0.5, len(y))
        more = {"cond_err": NUGGET + errors**2}
    elif case == "earth":
        options, given = {"geographic": True}, {"range": 50.0, "kernel": "laplacian"}
        model = {"latlon": True, "len_scale": 50.0, "geo_scale": 6371.0088}
    size = {} if case == "earth" else {"dim": 2}
    made = kind(family(var=SILL, nugget=NUGGET, **size, **model), X.T[::-1] if case == "earth" else X.T, y, **more)
    theirs = made(Q.T[::-1] if case == "earth" else Q.T, **at)
    np.testing.assert_allclose(theirs, ours(A, y, B, errors, **given, **options), rtol=1e-6)
