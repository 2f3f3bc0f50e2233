"""How the noise varies with the rows: the regression against dense algebra, and the intervals that it makes."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import near

from cacore.comm import Communicator
from cacore.errors import InputError
from cakrr import BKRR2, KRRModel, TwoLevelKRR
from cakrr.solver.variance import Noise, NoiseRows, fit

RIDGES = 10.0 ** np.arange(-4, 2.1, 0.5)
BENDS = np.array([-1, 0, 1]) * 0.6744897501960817


def judged(n, seed=0, targets=()):
    """Rows whose errors grow with the second feature."""
    rng = np.random.default_rng(seed)
    X, shape = rng.normal(size=(n, 3)), (n, *targets)
    mean, deviations = rng.normal(size=shape), rng.uniform(0.5, 2, shape)
    errors = deviations * rng.normal(size=shape)
    return NoiseRows(X, mean, (errors.T * np.exp(np.abs(X[:, 1]))).T, deviations)


def curves(columns, of):
    """Line and bends of columns, in units of the columns of all rows."""
    U = np.clip((columns - of.mean(axis=0)) / of.std(axis=0), -3, 3)
    return np.concatenate([U, *(np.abs(U - bend) for bend in BENDS)], axis=1)


def columns_of(rows):
    return np.column_stack([rows.X, rows.mean, np.log(rows.deviations)])


def solved(B, y, penalty):
    """Intercept and slopes of a ridge regression."""
    A = np.c_[np.ones(len(B)), B]
    ridge = penalty * np.eye(A.shape[1])
    ridge[0, 0] = 0.0
    return A @ np.linalg.solve(A.T @ A + ridge, A.T), np.linalg.solve(A.T @ A + ridge, A.T @ y)


def test_is_a_ridge_regression():
    """The fit uses the ridge of generalised cross-validation, twice; the left-out factors exclude the row."""
    rows, new = judged(200), judged(50, 1)
    B, z = curves(columns_of(rows), columns_of(rows)), np.abs(rows.errors / rows.deviations)
    own, slopes, without = np.zeros(200), np.zeros(B.shape[1]), np.zeros(200)
    for _ in range(2):
        z *= np.exp(-own)
        y, scores = np.log(z + 0.3 * np.sort(z)[179]), []
        for ridge in RIDGES:
            hat, _ = solved(B, y, 200 * ridge)
            scores.append(np.sum((y - hat @ y) ** 2) / (199 - 1.4 * (np.trace(hat) - 1)) ** 2)
        assert min(scores) < np.sum((y - y.mean()) ** 2) / 199**2
        penalty = 200 * RIDGES[np.argmin(scores)]
        _, weights = solved(B, y, penalty)
        own, slopes = (B - B.mean(axis=0)) @ weights[1:], slopes + weights[1:]
        for i in range(200):
            rest = np.delete(np.arange(200), i)
            _, others = solved(B[rest], y[rest], penalty)
            without[i] += others[0] + B[i] @ others[1:] - y.mean()
    noise, left_out = fit([rows], 3, (), Communicator())
    expected = (curves(columns_of(new), columns_of(rows)) - B.mean(axis=0)) @ slopes
    near(noise(new.X, new.mean, new.deviations), np.exp(expected), 1e-9)
    near(np.log(noise(rows.X, rows.mean, rows.deviations)).mean(), 0.0, 1e-12)
    near(left_out[0], np.exp(without), 1e-9)


def test_nothing_to_see():
    """Errors of one size have the factor 1, to the bit, and so have those of no size."""
    rng = np.random.default_rng(1)
    X, ones = rng.normal(size=(300, 3)), np.ones(300)
    for errors in (rng.normal(size=300), np.zeros(300)):
        noise, left_out = fit([NoiseRows(X, ones, errors, ones)], 3, (), Communicator())
        np.testing.assert_array_equal(noise(X, ones, ones), 1.0)
        np.testing.assert_array_equal(left_out[0], 1.0)


def test_blocks_targets_and_rows_without_curves():
    """Each target has its own curves; blocks of rows act as one; sparse rows have no curves of features."""
    rows = judged(300, targets=(2,))
    noise, left_out = fit([rows], 3, (2,), Communicator())
    some = [NoiseRows(*(values[part] for values in vars(rows).values())) for part in (slice(0, 90), slice(90, 300))]
    near(fit(some, 3, (2,), Communicator())[0].table, noise.table, 1e-9)
    for j in range(2):
        one = NoiseRows(rows.X, rows.mean[:, j], rows.errors[:, j], rows.deviations[:, j])
        alone, without = fit([one], 3, (), Communicator())
        np.testing.assert_array_equal(alone.table, noise.table[..., j])
        np.testing.assert_array_equal(without[0], left_out[0][:, j])
    short = fit([rows], 0, (2,), Communicator())[0]
    assert short.table.shape == (2, 7, 2)
    assert short(rows.X, rows.mean, rows.deviations).shape == (300, 2)


def drawn(n, seed):
    """Noise of ten times the size on one side, which parts do not know."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 3))
    return X, np.sin(X[:, 0]) + np.where(X[:, 1] > 0, 1.0, 0.1) * rng.normal(size=n)


@pytest.fixture(scope="module")
def trained():
    return BKRR2(1, sigma=2.0, lam=1e-3, calibrate=0.4, keep_factors=True, random_state=0).fit(*drawn(1000, 0))


def test_intervals_follow_the_noise(trained):
    """They hold what they should, also where there is much noise, and are a fifth narrower than plain ones."""
    T, z = drawn(4000, 1)
    widths, loud = [], T[:, 1] > 0.2
    for adaptive in (None, "std"):
        lower, upper = trained.predict_interval(T, 0.9, adaptive)
        held = (lower <= z) & (z <= upper)
        assert held.mean() == pytest.approx(0.9, abs=3 * np.sqrt(0.09 / 400 + 0.09 / 4000))
        widths.append((np.mean(upper - lower), held[loud].mean()))
    assert widths[1][0] < 0.8 * widths[0][0]
    assert widths[1][1] > widths[0][1] + 0.02
    model = trained.model_
    mean, std = model.predict_std(T)
    scale = std * model.noise(model.standardizer.apply(T), mean - model.offset, std)
    near(upper - lower, 2 * scale * model.calibration.half_width(0.9, scaled=True), 1e-12)


def test_files(trained, tmp_path):
    """The factors are in the file; one of an earlier version has deviations alone; a wrong one is refused."""
    model, T = trained.model_, drawn(50, 1)[0]
    model.save(tmp_path / "m.h5")
    loaded = KRRModel.load(tmp_path / "m.h5")
    np.testing.assert_array_equal(loaded.predict_interval(T, 0.9, "std"), model.predict_interval(T, 0.9, "std"))
    noise, loaded.noise = loaded.noise, None
    loaded.save(tmp_path / "m.h5")
    lower, upper = KRRModel.load(tmp_path / "m.h5").predict_interval(T, 0.9, "std")
    near(upper - lower, 2 * model.predict_std(T)[1] * model.calibration.half_width(0.9, scaled=True), 1e-12)
    loaded.noise = Noise(noise.table[1:])
    loaded.save(tmp_path / "m.h5")
    with pytest.raises(InputError, match="curves of 4 columns, of rows of 3 features"):
        KRRModel.load(tmp_path / "m.h5")


def test_two_levels_of_an_earlier_version():
    """Their errors are not in the deviations that the model has now."""
    X, y = drawn(200, 0)
    more = {"centers": 12, "coarse_sigma": 0.8, "coarse_lam": 1e-3}
    model = TwoLevelKRR(2, sigma=2.0, lam=1e-2, calibrate=0.2, keep_factors=True, **more).fit(X, y).model_
    assert np.isfinite(model.predict_interval(X, 0.8, "std")).all()
    model.noise = None
    with pytest.raises(InputError, match=r"saved by an earlier version.*train it again"):
        model.predict_interval(X, 0.8, "std")
