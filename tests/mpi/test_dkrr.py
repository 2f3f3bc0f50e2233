"""The exact method over all ranks against scikit-learn's KernelRidge on all rows: 1e-8, relative to the largest."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import close, inodes, names
from helpers.data import formats
from helpers.data import smooth as rows
from helpers.distributed import RANK, WORLD, R, by_one, dataset, even, refused_by_all
from helpers.references import ridge
from sklearn.preprocessing import StandardScaler

from cacore.comm import Communicator
from cacore.data.shuffle import Shuffle
from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint
from cacore.linalg import scalapack
from cakrr import DKRR, KRRModel
from cakrr.dkrr import dkrr
from cakrr.methods.factored import PIECE
from cakrr.methods.whole_system import fit
from cakrr.options import RidgeOptions

MISSING = R > 1 and not os.environ.get(scalapack.VARIABLE) and not scalapack._files("mkl")

pytestmark = [
    pytest.mark.mpi(min_size=1),
    pytest.mark.skipif(MISSING, reason="no ScaLAPACK: the mkl package is not installed"),
]
SIGMA, LAM = 1.5, 1e-3


def kernel_ridge(X, y, T, sigma=SIGMA, lam=LAM, weights=None):
    """The reference, on the rows of all ranks."""
    w = np.ones(len(y)) if weights is None else weights
    scaler, mean = StandardScaler(with_mean=not sp.issparse(X)).fit(X, sample_weight=weights), np.average(y, weights=w)
    model = by_one(ridge(sigma, lam * w.sum()).fit, scaler.transform(X), y - mean, sample_weight=weights)
    return model.predict(scaler.transform(T)) + mean


@pytest.fixture(autouse=True)
def block(request, tuned):
    """Rows of ScaLAPACK's blocks: several a rank, if not told otherwise."""
    size = getattr(request, "param", 48)
    tuned(scalapack_block=size, scalapack_layout=(size,))


OWN = scalapack.BLOCK
blocks = pytest.mark.parametrize("block", [48, OWN], indirect=True)


@blocks
@formats
def test_is_kernel_ridge(csr, mine, everywhere):
    (X, y), (T, _) = rows(csr=csr), rows(41, seed=1, csr=csr)
    comm = Communicator(WORLD)
    result = dkrr(dataset(X, y, mine(157)), RidgeOptions(sigma=(SIGMA,), lam=(LAM,), seed=2), comm)
    close(everywhere(result.model.predict(T[mine(41)], comm)), kernel_ridge(X, y, T))
    assert result.sizes.tolist() == [157]
    with scalapack.BlockCyclic(157, comm) as matrix:
        assert result.library_bytes == matrix.predicted_bytes()
    assert (max(WORLD.allgather(result.library_bytes)) > 0) == (R > 1 and scalapack.BLOCK < 157)


@pytest.mark.parametrize(("n", "block"), [(1, 2), (2, 2), (5, 2), (800, OWN)], indirect=["block"])
def test_other_numbers_of_rows(n, everywhere):
    """Fewer rows than ranks, and three blocks of ScaLAPACK's own size."""
    (X, y), (T, _) = rows(n), rows(41, seed=1)
    comm = Communicator(WORLD)
    model = dkrr(dataset(X, y, even(n)), RidgeOptions(sigma=(SIGMA,), lam=(LAM,)), comm).model
    close(everywhere(model.predict(T[even(41)], comm)), kernel_ridge(X, y, T))


@formats
def test_float32(csr, everywhere):
    """Refined in double precision: as the exact solution for rows that were rounded to single."""
    (X, y), (T, _) = rows(csr=csr), rows(41, seed=1, csr=csr)
    X, T = X.astype(np.float32), T.astype(np.float32)
    comm = Communicator(WORLD)
    data = dataset(X, y, even(157), np.float32)
    result = dkrr(data, RidgeOptions(sigma=(SIGMA,), lam=(LAM,), standardize=False), comm)
    got = everywhere(result.model.predict(T[even(41)], comm))
    X, T = X.astype(np.float64), T.astype(np.float64)
    reference = by_one(ridge(SIGMA, LAM * 157).fit, X, y - y.mean())
    close(got, reference.predict(T) + y.mean(), 1e-6)
    assert 0 < result.residual[0] < 1e-11


def test_float32_standardised(everywhere):
    (X, y), (T, _) = rows(), rows(41, seed=1)
    comm = Communicator(WORLD)
    model = dkrr(dataset(X, y, even(157), np.float32), RidgeOptions(sigma=(SIGMA,), lam=(LAM,)), comm).model
    got = everywhere(model.predict(T[even(41)].astype(np.float32), comm))
    close(got, kernel_ridge(X.astype(np.float32).astype(float), y, T.astype(np.float32).astype(float)), 1e-5)
    serial = by_one(dkrr, dataset(X, y, dtype=np.float32), RidgeOptions(sigma=(SIGMA,), lam=(LAM,))).model
    close(got, serial.predict(T.astype(np.float32)), 1e-6)


def test_weights(mine, everywhere):
    """Estimator: rows of weight 0 count as absent."""
    (X, y), (T, _), my = rows(), rows(41, seed=1), mine(157)
    weights = np.random.default_rng(4).integers(0, 3, 157) * 0.7
    fitted = DKRR(sigma=SIGMA, lam=LAM, random_state=7, comm=WORLD).fit(X[my], y[my], weights[my])
    got = everywhere(fitted.predict(T[mine(41)]))
    kept = weights > 0
    close(got, kernel_ridge(X[kept], y[kept], T, weights=weights[kept]))


# -- the grid ----------------------------------------------------------------------------------

GRID = RidgeOptions(sigma=(0.5, 1.5), lam=(1e-5, 1e-2), seed=2)


@pytest.mark.parametrize(("select", "csr"), [("validation", True), ("test", False)])
def test_grid(select, csr, mine):
    """The choice and the errors are those of one rank."""
    (X, y), (T, t) = rows(csr=csr), rows(41, seed=1, csr=csr)
    options, comm = replace(GRID, select=select), Communicator(WORLD)
    result = dkrr(dataset(X, y, mine(157)), options, comm, dataset(T, t, mine(41)))
    serial = by_one(dkrr, dataset(X, y), options, test=dataset(T, t))
    column = f"{select}_mse"
    assert (result.model.sigma, result.model.lam) == (serial.model.sigma, serial.model.lam)
    assert [(g["sigma"], g["lambda"]) for g in result.grid] == [(s, ell) for s in GRID.sigma for ell in GRID.lam]
    errors = [g[column] for g in result.grid]
    np.testing.assert_allclose(errors, [g[column] for g in serial.grid], rtol=1e-8)


def test_errors_on_the_test_rows():
    (X, y), (T, t) = rows(), rows(41, seed=1)
    options = replace(GRID, select="test")
    result = dkrr(dataset(X, y, even(157)), options, Communicator(WORLD), dataset(T, t, even(41)))
    expected = [np.mean((kernel_ridge(X, y, T, g["sigma"], g["lambda"]) - t) ** 2) for g in result.grid]
    np.testing.assert_allclose([g["test_mse"] for g in result.grid], expected, rtol=1e-8)
    best = result.grid[int(np.argmin(expected))]
    assert (result.model.sigma, result.model.lam) == (best["sigma"], best["lambda"])


def test_validation_errors():
    """A tenth of the rows, the first ones of the shuffled order, judges the model of the others; weights count."""
    X, y = rows()
    w = np.random.default_rng(5).uniform(0.5, 3, 157)
    options = replace(GRID, standardize=False)
    result = dkrr(dataset(X, y, even(157), weights=w), options, Communicator(WORLD))
    held, mean = Shuffle(157, GRID.seed).position(np.arange(157)) < 16, np.average(y, weights=w)
    expected = []
    for g in result.grid:
        model = ridge(g["sigma"], g["lambda"] * w[~held].sum())
        predicted = model.fit(X[~held], y[~held] - mean, sample_weight=w[~held]).predict(X[held]) + mean
        expected.append(np.average((predicted - y[held]) ** 2, weights=w[held]))
    np.testing.assert_allclose([g["validation_mse"] for g in result.grid], expected, rtol=1e-8)


def test_grid_with_weights():
    X, y = rows()
    weights = np.random.default_rng(4).uniform(0.5, 3, 157)
    result = dkrr(dataset(X, y, even(157), weights=weights), GRID, Communicator(WORLD))
    serial = by_one(dkrr, dataset(X, y, weights=weights), GRID)
    assert (result.model.sigma, result.model.lam) == (serial.model.sigma, serial.model.lam)
    errors = [[g["validation_mse"] for g in one.grid] for one in (result, serial)]
    np.testing.assert_allclose(errors[0], errors[1], rtol=1e-8)


def test_failing_pairs_are_left_out():
    X, y = rows(50)
    X, y = np.tile(X, (3, 1)), np.tile(y, 3)
    result = dkrr(dataset(X, y, even(150)), replace(GRID, lam=(1e-25, 1e-2)), Communicator(WORLD))
    assert [g["validation_mse"] is None for g in result.grid] == [True, False] * 2
    assert result.model.lam == 1e-2
    (note,) = result.notes
    assert "sigma 0.5 lambda 1e-25" in note


# -- the estimator and the model ---------------------------------------------------------------


@formats
def test_estimator(csr, everywhere):
    (X, y), (T, _) = rows(csr=csr), rows(41, seed=1, csr=csr)
    given = {"sigma": [1.0, 2.0], "lam": [1e-4, 1e-2], "random_state": 7}
    distributed = DKRR(**given, comm=WORLD).fit(X[even(157)], y[even(157)])
    got = everywhere(distributed.predict(T[even(41)]))
    serial = by_one(DKRR(**given).fit, X, y)
    assert (distributed.sigma_, distributed.lam_) == (serial.sigma_, serial.lam_)
    close(got, serial.predict(T))
    close(got, kernel_ridge(X, y, T, serial.sigma_, serial.lam_))


@pytest.mark.parametrize(("csr", "standardize"), [(False, True), (False, False), (True, True)])
def test_model_file(csr, standardize, folder, everywhere, tuned):
    """Saved by all ranks it loads on one, and the other way round; the pieces are dealt anew."""
    tuned(model_piece=20)
    (X, y), (T, _) = rows(csr=csr), rows(41, seed=1, csr=csr)
    options = RidgeOptions(sigma=(2.0,), lam=(LAM,), standardize=standardize)
    comm = Communicator(WORLD)
    model = dkrr(dataset(X, y, even(157)), options, comm).model
    assert len(model.sizes) >= 8 > 157 / PIECE
    model.save(folder / "many.h5", comm)
    if RANK == 0:
        serial = dkrr(dataset(X, y), options).model
        serial.save(folder / "one.h5")
    WORLD.Barrier()
    got = everywhere(model.predict(T[even(41)], comm))
    again = KRRModel.load(folder / "many.h5", comm)
    back = everywhere(again.predict(T[even(41)], comm))
    other = everywhere(KRRModel.load(folder / "one.h5", comm).predict(T[even(41)], comm))
    held = WORLD.allgather(len(again.parts))
    alone = KRRModel.load(folder / "many.h5").predict(T)
    close(alone, got, 1e-13)
    close(back, got, 1e-13)
    close(other, got)
    assert max(held) - min(held) <= 1
    assert names(folder) == ["many.h5", "one.h5"]


def test_resumed(folder):
    """Stopped after two pairs, it goes on from them, and ends with the same bits as a run that was not stopped."""

    def stopping(what, total):
        pairs = iter(range(total))

        def advance(*_, **__):
            if next(pairs) == 1:
                raise KeyboardInterrupt

        return advance

    def again(**more):
        comm = Communicator(WORLD)
        if more.pop("kept", True):
            more["checkpoint"] = Checkpoint(folder / "kept")
        return fit(dkrr, dataset(X, y, even(157)), replace(GRID, **more), comm)

    X, y = rows()
    with pytest.raises(KeyboardInterrupt):
        again(progress=stopping)
    WORLD.Barrier()
    left = inodes(folder, "kept/*.npz")
    WORLD.Barrier()
    resumed, undisturbed = again(), again(kept=False)
    ended = inodes(folder, "kept/*.npz")
    assert (len(left), len(ended)) == (2 * R, 5 * R)
    assert left == {name: ended[name] for name in left}
    assert resumed.grid == undisturbed.grid
    for part, model in undisturbed.model.parts.items():
        np.testing.assert_array_equal(resumed.model.parts[part].alpha, model.alpha)


# -- refusals ----------------------------------------------------------------------------------


def refused(message, data, options):
    refused_by_all(dkrr, data, options, Communicator(WORLD), match=message)


@pytest.mark.parametrize("block", [OWN], indirect=True)
@pytest.mark.parametrize("grid", [False, True], ids=["pair", "grid"])
def test_memory(grid):
    """The first rank, which has the most, refuses; the matrix alone would fit."""
    X, y = rows()
    lam = (1e-3, 1e-2) if grid else (1e-3,)
    refused("157 x 157 matrix.*more ranks", dataset(X, y, even(157)), RidgeOptions(memory_limit=8 * 157**2, lam=lam))


def test_memory_of_the_grid():
    X, y = rows()
    options = RidgeOptions(memory_limit=8 * 157**2 + 7 * X.nbytes, lam=tuple(np.geomspace(1e-5, 1, 2000)))
    refused("smaller grid", dataset(X, y, even(157)), options)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("lam", [(1e-30,), (1e-31, 1e-30)])
def test_not_definite(lam, dtype):
    X, y = np.ones((30, 2)), np.arange(30.0)
    refused("positive definite|no pair", dataset(X, y, even(30), dtype), RidgeOptions(lam=lam))


def test_a_matrix_of_rounding_alone():
    X, y = rows(401)
    told = RidgeOptions(kernel="polynomial", degree=60, coef0=1.0, sigma=(0.7,), lam=(1e-4,))
    refused("positive definite", dataset(np.exp(1.5 * X), y, even(401)), told)


def test_one_row_leaves_none_to_validate():
    X, y = rows(1)
    refused("none to validate", dataset(X, y, even(1)), GRID)


@pytest.mark.mpi(min_size=2)
def test_no_library(tuned):
    @staticmethod
    def lacking():
        raise InputError("needs ScaLAPACK")

    X, y = rows(40)
    tuned(scalapack_library=lacking)
    refused("needs ScaLAPACK", dataset(X, y, even(40)), RidgeOptions(lam=(1e-3,)))
