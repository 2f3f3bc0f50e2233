"""Many targets and classes over all ranks: against scikit-learn on all rows, and against the same on one rank."""

from __future__ import annotations

import os

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import close
from helpers.data import drawn_clouds, formats, smooth
from helpers.distributed import RANK, WORLD, R, by_one, even, refused_by_all
from helpers.references import ridge
from sklearn.preprocessing import StandardScaler

import cakrr
from cacore.errors import InputError
from cacore.linalg import scalapack
from cakrr import BKRR2, DKRR, BKRR2Classifier, DKRRClassifier, KRRModel, TwoLevelKRR

pytestmark = pytest.mark.mpi(min_size=1)
MISSING = R > 1 and not os.environ.get(scalapack.VARIABLE) and not scalapack._files("mkl")
exact = pytest.mark.skipif(MISSING, reason="no ScaLAPACK: the mkl package is not installed")

GRID = {"sigma": [1.0, 2.0], "lam": [1e-4, 1e-2], "random_state": 0}
COARSE = {"centers": 20, "coarse_sigma": 3.0, "coarse_lam": 1e-4}
METHODS = {
    "nearest": (BKRR2, {}),
    "soft": (BKRR2, {"route": "soft"}),
    "all": (cakrr.DCKRR, {}),
    "loo": (cakrr.KKRR2, {"select": "loo"}),
    "twolevel": (TwoLevelKRR, COARSE),
    "float32": (BKRR2, {"dtype": "float32"}),
}


def rows(n=157, seed=0, csr=False):
    X, y = smooth(n, seed, csr)
    return X, np.c_[y, 1e3 * np.cos(y), y**2]


def by_column(got, expected, tolerance=1e-8):
    for one, other in zip(got.T, expected.T, strict=True):
        close(one, other, tolerance)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("csr", [False, True])
def test_is_the_same_on_one_rank(name, csr, mine, everywhere, folder):
    (X, Y), (T, U), my, our = rows(csr=csr), rows(41, 1, csr), mine(157), even(41)
    cls, more = METHODS[name]
    model, serial = cls(5, **GRID, **more, comm=WORLD).fit(X[my], Y[my]), by_one(cls(5, **GRID, **more).fit, X, Y)
    tolerance = 1e-5 if name == "float32" else 1e-8
    got = everywhere(model.predict(T[our]))
    assert (model.sigma_, model.lam_) == (serial.sigma_, serial.lam_)
    by_column(got, serial.predict(T), tolerance)
    assert model.score(T[our], U[our]) == pytest.approx(serial.score(T, U), rel=tolerance)
    model.model_.save(folder / "many.h5")
    by_column(KRRModel.load(folder / "many.h5").predict(T), got, 1e-12)


@exact
@formats
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_exact(dtype, csr, mine, everywhere, tuned):
    """scikit-learn's KernelRidge of all ranks' rows and targets; and the same choice as on one rank."""
    tuned(scalapack_block=48, scalapack_layout=(48,))
    (X, Y), (T, _), my = rows(csr=csr), rows(41, 1, csr), mine(157)
    weights = np.random.default_rng(0).uniform(0.5, 2, 157)
    model = DKRR(sigma=1.5, lam=1e-3, dtype=dtype, random_state=0, comm=WORLD).fit(X[my], Y[my], weights[my])
    scaler, mean = StandardScaler(with_mean=not sp.issparse(X)).fit(X, sample_weight=weights), np.average(Y, 0, weights)
    one = by_one(ridge(1.5, 1e-3 * weights.sum()).fit, scaler.transform(X), Y - mean, sample_weight=weights)
    tolerance = 1e-8 if dtype == "float64" else 1e-5
    by_column(everywhere(model.predict(T[even(41)])), one.predict(scaler.transform(T)) + mean, tolerance)
    if dtype == "float64":
        chosen, serial = DKRR(**GRID, comm=WORLD).fit(X[my], Y[my]), by_one(DKRR(**GRID).fit, X, Y)
        errors = [[row["validation_mse"] for row in one.grid_] for one in (chosen, serial)]
        np.testing.assert_allclose(*errors, rtol=1e-8)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("cls", [BKRR2Classifier, pytest.param(DKRRClassifier, marks=exact)])
def test_classes(cls, k, mine, everywhere):
    """Words; the last class is one that the first rank alone has."""
    (X, y), (T, _) = drawn_clouds(k=k), drawn_clouds(41, 1, k)
    y = np.sort(y)[::-1]
    names, my = np.array(["spam", "ham", "eggs"])[y], mine(157)
    given = {"sigma": 1.5, "lam": 1e-2, "class_weight": "balanced", "random_state": 0}
    given |= {"n_parts": 5} if cls is BKRR2Classifier else {}
    model, serial = cls(**given, comm=WORLD).fit(X[my], names[my]), by_one(cls(**given).fit, X, names)
    assert model.classes_.tolist() == serial.classes_.tolist() == sorted(set(names))
    close(everywhere(model.decision_function(T[even(41)])), serial.decision_function(T))
    assert model.score(X[my], names[my]) == pytest.approx(serial.score(X, names))


@pytest.mark.mpi(min_size=2)
def test_bad_targets_of_one_rank_are_refused_by_all():
    (X, Y), my = rows(40), even(40)
    bad = Y[my].copy()
    if RANK == 1:
        bad[2, 1] = np.nan
    with pytest.raises(InputError, match="NaN"):
        BKRR2(comm=WORLD).fit(X[my], bad)
    with pytest.raises(InputError, match="not the same on all ranks"):
        BKRR2(comm=WORLD).fit(X[my], Y[my] if RANK else Y[my, 0])
    refused_by_all(BKRR2Classifier(comm=WORLD).fit, X[my], np.ones(len(bad)), match="one class only")
