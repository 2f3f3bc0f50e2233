"""Standard deviations, intervals and order statistics over all ranks: against references of all rows."""

from __future__ import annotations

import os

import numpy as np
import pytest
from helpers.checks import near
from helpers.data import smooth
from helpers.distributed import RANK, WORLD, R, by_one, even, refused_by_all, sent
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from cacore.comm import Communicator
from cacore.data.selection import order_statistics
from cacore.linalg import scalapack
from cakrr import BKRR2, DCKRR, DKRR, KRRModel, TwoLevelKRR
from cakrr.solver.variance import NoiseRows, fit
from cakrr.uncertainty.answer import calibration_counts

pytestmark = pytest.mark.mpi(min_size=1)
MISSING = R > 1 and not os.environ.get(scalapack.VARIABLE) and not scalapack._files("mkl")

# -- order statistics ----------------------------------------------------------------------------

SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, 5e-324, -5e-324, np.finfo(float).max, np.finfo(float).min, 1.0, 1.0])


@pytest.mark.parametrize("n", [1, 10, 157, 3001])
def test_order_statistics(n, mine):
    """To the bit those of sorted values: ties, infinities, the smallest numbers; ranks without values."""
    rng = np.random.default_rng(n)
    values = np.where(rng.random(n) < 0.3, rng.choice(SPECIAL, n), rng.normal(size=n) * 10.0 ** rng.integers(-9, 9, n))
    ranks = np.unique(rng.integers(1, n + 1, 40))[::-1]
    got = order_statistics(values[mine(n)], ranks, Communicator(WORLD))
    np.testing.assert_array_equal(got, np.partition(values, ranks - 1)[ranks - 1])


def test_one_order_statistic_is_eight_small_messages():
    values = np.random.default_rng(RANK).normal(size=5000)

    def work(comm):
        with comm.phase("train"):
            order_statistics(values, [R * 2500], comm)

    counted = sent(work)
    if R > 1:
        assert (counted["messages"], counted["bytes"]) == (8 * R, 8 * R * 256 * 8)


# -- models --------------------------------------------------------------------------------------

FIXED = {"sigma": 1.3, "lam": 1e-3, "random_state": 0}
METHODS = {
    "nearest": (BKRR2, {"n_parts": 5}),
    "soft": (BKRR2, {"n_parts": 5, "route": "soft"}),
    "all": (DCKRR, {"n_parts": 5}),
    "two levels": (TwoLevelKRR, {"n_parts": 5, "centers": 20, "coarse_sigma": 3.0, "coarse_lam": 1e-4}),
    "exact": (DKRR, {}),
}
exact = pytest.mark.skipif(MISSING, reason="no ScaLAPACK: the mkl package is not installed")


@pytest.mark.parametrize("cls", [BKRR2, pytest.param(DKRR, marks=exact)])
def test_is_a_gaussian_process(cls, mine, everywhere):
    (X, y), (T, _), my, our = smooth(), smooth(41, 1), mine(157), even(41)
    more = {"n_parts": 1} if cls is BKRR2 else {}
    model = cls(**FIXED, **more, comm=WORLD).fit(X[my], y[my])
    mean, std = (everywhere(values) for values in model.predict(T[our], return_std=True))
    Z, U = ((rows - X.mean(axis=0)) / X.std(axis=0) for rows in (X, T))
    process = GaussianProcessRegressor(RBF(1.3), alpha=0.157, optimizer=None).fit(Z, y - y.mean())
    expected, deviation = process.predict(U, return_std=True)
    inverse = np.linalg.inv(RBF(1.3)(Z) + 0.157 * np.eye(157))
    s2 = np.mean((inverse @ (y - y.mean())) ** 2 / np.diag(inverse))
    near(mean, expected + y.mean(), 1e-8 * np.abs(y).max())
    near(std, np.sqrt(s2 * (deviation**2 + 0.157)), 1e-8 * std.max())


@pytest.mark.parametrize("csr", [False, True])
@pytest.mark.parametrize("name", ["nearest", "soft", "all", "two levels", pytest.param("exact", marks=exact)])
def test_is_the_same_on_one_rank(name, csr, everywhere, folder):
    """Standard deviations and both kinds of intervals, of a model that is trained, and of its file."""
    (X, y), (T, _), my, our = smooth(csr=csr, least=0.1), smooth(41, 1, csr, least=0.1), even(157), even(41)
    cls, more = METHODS[name]
    w = np.random.default_rng(0).uniform(0.5, 2, 157)
    more = more | ({"calibrate": "loo"} if name == "exact" else {"calibrate": 0.3, "keep_factors": True})
    model = cls(**FIXED, **more, comm=WORLD).fit(X[my], y[my], w[my])
    serial = by_one(cls(**FIXED, **more).fit, X, y, w)
    model.model_.save(folder / "m.h5")
    loaded = KRRModel.load(folder / "m.h5", WORLD)
    tolerance = 1e-8 * np.abs(y).max()
    deviations = serial.predict(T, return_std=True)
    assert (serial.model_.coarse_variance is not None) == (name == "two levels")
    for one, other in zip(loaded.predict_std(T[our]), deviations, strict=True):
        near(everywhere(one), other, tolerance)
    for adaptive in (None, "std", "parts") if name in ("nearest", "soft", "two levels") else (None, "std"):
        ends = serial.predict_interval(T, 0.8, adaptive)
        for one in (model.predict_interval, loaded.predict_interval):
            for got, other in zip(one(T[our], 0.8, adaptive), ends, strict=True):
                near(everywhere(got), other, 10 * tolerance)


@pytest.mark.parametrize("targets", [1, 2])
def test_parts_that_share_a_width(targets, everywhere):
    """Parts with few calibration rows, on different ranks, have the width that one rank finds for them."""
    (X, y), (T, _), my, our = smooth(), smooth(41, 1), even(157), even(41)
    y = y if targets == 1 else np.column_stack([y, np.sin(X[:, 0])])
    more = {"n_parts": 9, "calibrate": 0.2}
    model = BKRR2(**FIXED, **more, comm=WORLD).fit(X[my], y[my])
    serial = by_one(BKRR2(**FIXED, **more).fit, X, y)
    counts = calibration_counts(serial.model_, Communicator())
    assert np.count_nonzero(counts < 4) > 1
    ends = serial.predict_interval(T, 0.8, "parts")
    for got, other in zip(model.predict_interval(T[our], 0.8, "parts"), ends, strict=True):
        near(everywhere(got), other, 1e-7 * np.abs(y).max())


@pytest.mark.parametrize("name", ["nearest", "soft", pytest.param("exact", marks=exact)])
def test_jackknife_plus_on_one_rank(name, everywhere, folder):
    """Its intervals, of a model that is trained, and of its file."""
    (X, y), (T, _), my, our = smooth(), smooth(41, 1), even(157), even(41)
    cls, more = METHODS[name]
    model = cls(**FIXED, **more, calibrate="jackknife+", comm=WORLD).fit(X[my], y[my])
    serial = by_one(cls(**FIXED, **more, calibrate="jackknife+").fit, X, y).predict_interval(T, 0.8)
    model.model_.save(folder / "m.h5")
    for one in (model, KRRModel.load(folder / "m.h5", WORLD)):
        for got, other in zip(one.predict_interval(T[our], 0.8), serial, strict=True):
            near(everywhere(got), other, 1e-8 * np.abs(y).max())


def test_noise_of_all_rows(mine):
    """Curves of rows on all ranks are those of one, and what each sends does not grow with the rows."""
    rng, my = np.random.default_rng(0), mine(157)
    X, mean, deviations = rng.normal(size=(157, 3)), rng.normal(size=157), rng.uniform(1, 2, 157)
    errors = deviations * np.exp(X[:, 1]) * rng.normal(size=157)
    every = NoiseRows(X, mean, errors, deviations)
    serial, factors = fit([every], 3, (), Communicator())

    def work(comm):
        with comm.phase("train"):
            noise, own = fit([NoiseRows(*(values[my] for values in vars(every).values()))], 3, (), comm)
        near(noise.table, serial.table, 1e-9)
        near(own[0], factors[0][my], 1e-9)

    counted = sent(work)
    assert np.abs(serial.table[:, 2:6]).max() > 0.1
    if R > 1:
        sums = 8 * (2 * 5 + 2 * 22**2) + 2 * 8 * 256 * 8
        assert sums * R <= counted["bytes"] <= (sums + 64 * R) * R


def test_refused_by_all():
    X, y = smooth()
    model = BKRR2(4, **FIXED, calibrate=0.1, comm=WORLD).fit(X[even(157)], y[even(157)])
    refused_by_all(lambda: model.predict_interval(X[even(157)], 0.99), match="needs 99 rows to calibrate on")
    refused_by_all(lambda: model.model_.predict_std(X[even(157)], limit=8), match="factor of a part of .* needs")
