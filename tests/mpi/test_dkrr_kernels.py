"""The exact method over all ranks with other kernels than the Gaussian, among them the caller's own."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import close
from helpers.data import dense, formats, smooth
from helpers.distributed import EVERY_ROW, RANK, WORLD, R, by_one, dataset, even
from helpers.references import DISTANCES, matrix
from scipy.spatial.distance import cdist
from sklearn.kernel_ridge import KernelRidge

from cacore.comm import Communicator
from cacore.errors import InputError, RankError
from cacore.linalg import scalapack
from cakrr import DKRR
from cakrr.dkrr import dkrr
from cakrr.options import RidgeOptions

pytestmark = [
    pytest.mark.mpi(min_size=1),
    pytest.mark.skipif(R > 1 and not scalapack._files("mkl"), reason="no ScaLAPACK: the mkl package is not installed"),
]
SIGMA = 1.5


@pytest.fixture(autouse=True)
def block(tuned):
    """Several of ScaLAPACK's blocks a rank."""
    tuned(scalapack_block=48, scalapack_layout=(48,))


@formats
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("kernel", "sigma", "reference"),
    [
        ("linear", None, {"kernel": "linear"}),
        ("polynomial", SIGMA, {"kernel": "poly", "gamma": 1 / (2 * SIGMA**2), "degree": 2, "coef0": 1.0}),
        *((kind, SIGMA, None) for kind in DISTANCES),
        ("wendland2_product", 2 * SIGMA, None),
    ],
)
def test_other_kernels(kernel, sigma, reference, dtype, csr, everywhere):
    (X, y), (T, _) = smooth(157, 0, csr, far=10), smooth(41, 1, csr, far=10)
    X, T = X.astype(dtype), T.astype(dtype)
    given = RidgeOptions(
        kernel=kernel,
        sigma=sigma,
        lam=(1e-3, 1.0),
        degree=4 if "wendland" in kernel else 2,
        coef0=1.0,
        standardize=False,
    )
    comm, exact = Communicator(WORLD), dtype == np.float64
    fitted = dkrr(dataset(X, y, even(157), dtype), given, comm)
    got = everywhere(fitted.model.predict(T[even(41)], comm))
    given_rows, asked = X.astype(np.float64), T.astype(np.float64)
    if reference is None:
        declared, reference = fitted.model.kernel, {"kernel": "precomputed"}
        given_rows, asked = matrix(declared, given_rows), matrix(declared, asked, given_rows)
    ridge = by_one(KernelRidge(alpha=fitted.model.lam * 157, **reference).fit, given_rows, y - y.mean())
    close(got, ridge.predict(asked) + y.mean(), 1e-8 if exact else 1e-4)
    if exact:  # in single precision the grid's errors have few digits
        serial = by_one(dkrr, dataset(X, y, EVERY_ROW), given)
        errors = [[row["validation_mse"] for row in one.grid] for one in (fitted, serial)]
        np.testing.assert_allclose(*errors, rtol=1e-7)


def matern(A, B):
    r = cdist(dense(A), dense(B)) * np.sqrt(3) / SIGMA
    return (1 + r) * np.exp(-r)


@formats
def test_callable(csr, everywhere):
    """The model of the declared kernel."""
    (X, y), (T, _), comm = smooth(157, 0, csr, far=10), smooth(41, 1, csr, far=10), Communicator(WORLD)
    given = {"lam": (1e-3, 1.0), "standardize": False}
    mine = dkrr(dataset(X, y, even(157)), RidgeOptions(kernel=matern, **given), comm)
    declared = by_one(dkrr, dataset(X, y, EVERY_ROW), RidgeOptions(kernel="matern32", sigma=(SIGMA,), **given))
    assert mine.model.lam == declared.model.lam
    close(everywhere(mine.model.predict(T[even(41)], comm)), declared.model.predict(T), 1e-8)


def test_a_callable_that_fails_on_one_rank():
    """All ranks say what it returned."""

    def odd(A, B):
        return np.full((len(A), len(B)), np.nan if RANK == R - 1 else 1.0)

    X, y = smooth(157, 0, False, far=10)
    with pytest.raises((InputError, RankError), match="returned nan for row 0 of A and row 0 of B"):
        dkrr(dataset(X, y, even(157)), RidgeOptions(kernel=odd), Communicator(WORLD))


@pytest.mark.mpi(min_size=2)
def test_precomputed_is_for_one_process():
    X, y = smooth(40, 0, False, far=10)
    with pytest.raises(InputError, match=f"a precomputed kernel needs a single process, but there are {R} ranks"):
        DKRR(kernel="precomputed", comm=WORLD).fit(X[even(40)] @ X.T, y[even(40)])
