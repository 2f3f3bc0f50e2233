"""Targets, features, weights and offsets of any size: the answer of the same problem at size 1, or one line."""

import warnings

import numpy as np
import pytest
from helpers.checks import refusal
from sklearn.svm import SVR

from cakrr import BKRR2, DKRR
from casvm import CASVR, SMOSVR, DisSMOSVR, SMONuSVC, SMONuSVR, SMOOneClassSVM

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


@pytest.mark.parametrize(("size", "words"), [(1e160, "row 0, the target is"), (1e-160, "so squares underflow")])
@pytest.mark.parametrize("made", [SMOSVR(), SMONuSVR(), CASVR(2), DisSMOSVR(C="grid", gamma="grid", epsilon="grid")])
def test_targets_without_squares(made, size, words):
    X, y = curve()
    assert refusal(lambda: made.fit(X, size * (y + 10)), match=words).endswith("scale the targets")


# -- features ---------------------------------------------------------------------------------------


def run_svr(X, y, folder, *words):
    from casvm.command import main
    from casvm.svr import METHOD

    np.savetxt(folder / "rows.csv", np.c_[X, y], delimiter=",")
    with pytest.raises(SystemExit) as end:
        main(METHOD, [str(folder / "rows.csv"), "--report", str(folder / "r.json"), "--quick", *words])
    return end.value.code


@pytest.mark.parametrize("size", [1e-310, 1e-300, 1e-170, 1e-160, 1e-155, 1e-151])
def test_features_whose_squares_vanish(size, tmp_path, capsys):
    """Between 1e-155 and 1e-160 their distances are subnormal, and 1 over them is infinite; below they are 0."""
    X, y = curve()
    assert run_svr(size * X, y, tmp_path) == 2
    assert "so squares underflow in float64: standardise the features" in capsys.readouterr().err


@pytest.mark.parametrize("size", [1e-138, 1e140])
@pytest.mark.parametrize("made", [CASVR(2, C="grid", gamma="grid", epsilon="grid", cv=2, random_state=0)])
def test_grids_around_tiny_and_huge_distances(made, size, at_size_1):
    X, y = curve()
    score = made.fit(size * X[:200] * 8, y[:200]).score(size * X[200:] * 8, y[200:])
    assert score == pytest.approx(at_size_1["parts"], abs=3e-3)


# -- weights ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-12, 1e-6, 1e6, 1e12])
@pytest.mark.parametrize("made", [SMOSVR(tol=1e-5), DisSMOSVR(tol=1e-5), CASVR(2, tol=1e-5, random_state=0)])
def test_weights_multiply_c(made, size):
    X, y = curve()
    plain = made.set_params(C=1.0).fit(X, y).predict(X)
    weighted = made.set_params(C=1.0 / size).fit(X, y, sample_weight=np.full(len(y), size)).predict(X)
    np.testing.assert_allclose(weighted, plain, atol=1e-4)


@pytest.mark.parametrize("size", [1e-12, 1e12])
@pytest.mark.parametrize(
    "made", [DKRR(sigma=1.5, lam=1e-3), BKRR2(2, sigma=1.5, lam=1e-3)], ids=lambda m: type(m).__name__
)
def test_weights_of_a_ridge_regression_are_relative(made, size):
    X, y = curve()
    made.set_params(random_state=0)
    w = np.random.default_rng(1).uniform(0.5, 2.0, len(y))
    plain, weighted = (made.fit(X, y, sample_weight=by * w).predict(X) for by in (1.0, size))
    np.testing.assert_allclose(weighted, plain, atol=1e-8)


@pytest.mark.parametrize("size", [2.0**-600, 2.0**-22, 2.0**-10, 2.0**10, 2.0**300])
@pytest.mark.parametrize("kind", [SMONuSVC, SMOOneClassSVM])
def test_weights_of_a_nu_svm_are_relative(kind, size):
    """Tiny ones met the absolute tolerance before the first step: an accuracy of .78 instead of .98, in silence."""
    X, y = curve()
    w, labels = np.random.default_rng(1).uniform(0.5, 2.0, len(y)), y > 0
    plain, weighted = (kind(nu=0.2).fit(X, labels, sample_weight=by * w).decision_function(X) for by in (1.0, size))
    unit = size if kind is SMOOneClassSVM else 1.0
    np.testing.assert_allclose(weighted, unit * plain, rtol=0, atol=1e-12 * unit * np.abs(plain).max())


# -- again ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "n"),
    [
        (DKRR(sigma=1.5, lam=1e-4), 600), (DKRR(lam=[1e-5, 1e-4, 1e-3]), 150),
        (DKRR(sigma=1.5, lam=1e-4, solver="cg"), 600), (BKRR2(2, lam=[1e-5, 1e-3]), 600),
        (DKRR(sigma=1.5, lam=1e-4, dtype="float32"), 600),
    ],
)  # fmt: skip
def test_a_refit_has_the_same_bits(made, n):
    """With the same seed, wherever in memory the rows are; without one the order of the rows is another each time."""
    X, y = curve(n)
    made.set_params(random_state=0)
    first = made.fit(X, y).predict(X)
    for shift in range(1, 8):
        moved = np.empty(X.size + shift)[shift:].reshape(X.shape)
        moved[:] = X
        np.testing.assert_array_equal(made.fit(moved, y.copy()).predict(moved), first)
