"""Targets, features, weights and offsets of any size: the answer of the same problem at size 1, or one line."""

import warnings

import numpy as np
import pytest
from helpers.checks import refusal
from sklearn.svm import SVR

from casvm import CASVR, SMOSVR, DisSMOSVR, SMONuSVR

TARGETS = [2.0**-100, 1e-30, 1e-8, 1e-4, 1e8, 1e30, 2.0**100]


def curve(n=300):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    return X, np.sin(X[:, 0]) + X[:, 1] + 0.05 * rng.normal(size=n)


# -- targets of regressions -------------------------------------------------------------------------


SEARCHES = {
    "parts": CASVR(n_parts=2, C="grid", gamma="grid", epsilon="grid", cv=2, random_state=0),
    "exact": DisSMOSVR(C="grid", gamma="grid", epsilon="grid", cv=2),
    "scale": CASVR(n_parts=2, C="scale", epsilon=0.0, partitioner="kmeans", random_state=0),
}


@pytest.fixture(scope="module")
def at_size_1():
    X, y = curve()
    return {name: made.fit(X[:200], y[:200]).score(X[200:], y[200:]) for name, made in SEARCHES.items()}


@pytest.mark.parametrize("size", TARGETS)
@pytest.mark.parametrize("name", SEARCHES)
def test_values_in_units_of_the_targets(name, size, at_size_1):
    """Where C or epsilon is in these units, so is the tolerance that nobody named."""
    X, y = curve()
    made = SEARCHES[name].fit(X[:200], size * y[:200])
    near = 1e-12 if size == 2.0 ** round(np.log2(size)) else 3e-3  # of two settings that are almost as good, another
    assert made.score(X[200:], size * y[200:]) == pytest.approx(at_size_1[name], abs=near)
    assert made.fit_status_ == 0


@pytest.mark.parametrize("size", TARGETS)
@pytest.mark.parametrize("made", [SMOSVR(C=2.0), SMONuSVR(C=2.0), CASVR(2, C=2.0, random_state=0), DisSMOSVR(C=2.0)])
def test_a_regression_scaled_by_hand(made, size):
    """Numbers for C, epsilon and the tolerance, all in the targets' units."""
    X, y = curve()
    own = {"C": 2.0 * size, "tol": 1e-4 * size} | ({"epsilon": 0.1 * size} if hasattr(made, "epsilon") else {})
    scaled = type(made)(**{**made.get_params(), **own}).fit(X, size * y)
    plain = type(made)(**{**made.get_params(), "tol": 1e-4}).fit(X, y)
    np.testing.assert_allclose(scaled.predict(X) / size, plain.predict(X), atol=1e-3)


@pytest.mark.parametrize("size", [1e8, 1e30])
def test_a_tolerance_that_rounding_does_not_allow(size):
    """It ends at once, at the solution, and says so; numpy's warnings are errors."""
    X, y = curve()
    with pytest.warns(UserWarning, match="raise tol") if size > 1e20 else warnings.catch_warnings():
        made = SMOSVR(C=size, epsilon=0.1 * size, tol=1e-3).fit(X, size * y)
    assert made.n_iter_ < 10**5
    np.testing.assert_allclose(
        made.predict(X) / size, SVR(C=1.0, epsilon=0.1, tol=1e-6).fit(X, y).predict(X), atol=1e-3
    )


@pytest.mark.parametrize("size", [1e8, 1e30])
@pytest.mark.parametrize("made", [SMOSVR(), DisSMOSVR(), CASVR(2, random_state=0)])
def test_plain_numbers_for_huge_targets(made, size):
    """C is out of all proportion: coefficients end at their bounds, as LIBSVM's do."""
    X, y = curve()
    got = made.fit(X, size * y)
    assert np.max(got.n_iter_) < 10**5
    if not isinstance(made, CASVR):
        np.testing.assert_allclose(got.dual_coef_.ravel(), SVR().fit(X, size * y).dual_coef_.ravel(), atol=0.2)


def test_the_tolerance_that_is_named_is_kept():
    X, y = curve()
    assert CASVR(2, C="scale", tol=1e-3, random_state=0).fit(X, 1e-8 * y).n_iter_.sum() == 0


@pytest.mark.parametrize(
    ("size", "words"), [(1e160, "row 0, the target is"), (1e-160, "squares of such numbers vanish")]
)
@pytest.mark.parametrize("made", [SMOSVR(), SMONuSVR(), CASVR(2), DisSMOSVR(C="grid", gamma="grid", epsilon="grid")])
def test_targets_without_squares(made, size, words):
    X, y = curve()
    assert refusal(lambda: made.fit(X, size * (y + 10)), match=words).endswith("scale the targets")
