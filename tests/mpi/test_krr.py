"""Distributed training and prediction against the same on one rank: 1e-8, relative to the largest prediction."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import close, names
from helpers.data import formats
from helpers.data import smooth as rows
from helpers.distributed import RANK, WORLD, R, by_one, dataset, even, refused_by_all

from cacore.comm import Communicator
from cacore.errors import InputError
from cakrr import BKRR2, DCKRR, KKRR2, KRRModel, bkrr2, dckrr, kkrr2
from cakrr.options import RidgeOptions

pytestmark = pytest.mark.mpi(min_size=1)

METHODS = {"bkrr2": bkrr2.METHOD, "kkrr2": kkrr2.METHOD, "dckrr": dckrr.METHOD}
ESTIMATORS = {"bkrr2": BKRR2, "kkrr2": KKRR2, "dckrr": DCKRR}
methods = pytest.mark.parametrize("name", METHODS)


@methods
@formats
def test_fixed_pair(name, csr, mine, everywhere):
    (X, y), (T, _) = rows(csr=csr), rows(41, seed=1, csr=csr)
    options = RidgeOptions(partitions=6, sigma=(1.5,), lam=(1e-3,), seed=2)
    comm = Communicator(WORLD)
    model = METHODS[name](dataset(X, y, mine(157)), options, comm).model
    got = everywhere(model.predict(T[mine(41)], comm))
    traffic, _ = comm.totals()
    serial = by_one(METHODS[name], dataset(X, y), options).model
    close(got, serial.predict(T))
    assert model.sizes.tolist() == serial.sizes.tolist()
    assert traffic["train"] == {"bytes": 0, "messages": 0}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("select", ["validation", "test"])
def test_grid(name, select, mine):
    (X, y), (T, t) = rows(), rows(41, seed=1)
    options = RidgeOptions(partitions=5, sigma=(0.5, 1.5, 4.0), lam=(1e-5, 1e-3, 1e-1), select=select, seed=2)
    comm = Communicator(WORLD)
    result = METHODS[name](dataset(X, y, mine(157)), options, comm, dataset(T, t, mine(41)))
    traffic, _ = comm.totals()
    serial = by_one(METHODS[name], dataset(X, y), options, test=dataset(T, t))
    assert (result.model.sigma, result.model.lam) == (serial.model.sigma, serial.model.lam)
    column = f"{select}_mse"
    assert [(r["sigma"], r["lambda"]) for r in result.grid] == [(r["sigma"], r["lambda"]) for r in serial.grid]
    np.testing.assert_allclose([r[column] for r in result.grid], [r[column] for r in serial.grid], rtol=1e-8)
    assert traffic["train"] == {"bytes": 0, "messages": 0}
    assert (result.seconds > 0).all()  # of every part, on every rank


def test_one_reduction_for_the_grid():
    """A larger grid does not send more messages."""
    X, y = rows(80)
    messages = []
    for lam in ((1e-4, 1e-3), tuple(np.geomspace(1e-5, 1e-1, 20))):
        comm = Communicator(WORLD)
        METHODS["bkrr2"](dataset(X, y, even(80)), RidgeOptions(partitions=4, sigma=(1.0, 2.0), lam=lam), comm)
        messages.append(sum(phase["messages"] for phase in comm.totals()[0].values()))
    assert messages[0] == messages[1]


@methods
@pytest.mark.parametrize(("csr", "standardize"), [(False, True), (False, False), (True, True)])
def test_model_file(name, csr, standardize, folder, everywhere):
    (X, y), (T, _) = rows(csr=csr), rows(41, seed=1, csr=csr)
    options = RidgeOptions(partitions=6, sigma=(2.0,), standardize=standardize)
    comm, my, our = Communicator(WORLD), even(157), even(41)
    model = METHODS[name](dataset(X, y, my), options, comm).model
    model.save(folder / "many.h5", comm)
    serial = by_one(METHODS[name], dataset(X, y), options).model
    if RANK == 0:
        serial.save(folder / "one.h5")
    WORLD.Barrier()
    got = everywhere(model.predict(T[our], comm))
    back = everywhere(KRRModel.load(folder / "one.h5", comm).predict(T[our], comm))
    alone = KRRModel.load(folder / "many.h5").predict(T)
    close(alone, got, 1e-13)
    close(back, serial.predict(T), 1e-13)
    assert names(folder) == ["many.h5", "one.h5"]


@pytest.mark.mpi(min_size=2)
def test_model_of_other_ranks():
    X, y = rows(60)
    model = METHODS["bkrr2"](dataset(X, y), RidgeOptions(partitions=4)).model
    with pytest.raises(InputError, match="load it on the ranks"):
        model.predict(X, WORLD)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("csr", [False, True])
def test_estimator(name, csr, mine, everywhere):
    (X, y), (T, _) = rows(csr=csr), rows(41, seed=1, csr=csr)
    make, given = ESTIMATORS[name], {"n_parts": 5, "sigma": 2.0, "lam": [1e-4, 1e-2], "random_state": 7}
    distributed = make(**given, comm=WORLD).fit(X[mine(157)], y[mine(157)])
    got = everywhere(distributed.predict(T[mine(41)]))
    serial = by_one(make(**given).fit, X, y)
    assert (distributed.sigma_, distributed.lam_) == (serial.sigma_, serial.lam_)
    close(got, serial.predict(T))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("absent", [False, True])
def test_weights(name, absent, mine, everywhere):
    """Rows of weight 0 count as absent, also if they are all that a rank has."""
    (X, y), (T, _), my = rows(), rows(41, seed=1), mine(157)
    weights = np.random.default_rng(4).integers(0, 3, 157).astype(float)[my]
    if absent and R > 1 and RANK % 4 == 1:
        weights[:] = 0
    everyone = everywhere(weights)
    make, given = ESTIMATORS[name], {"n_parts": 5, "sigma": 2.0, "lam": 1e-3, "random_state": 7}
    got = everywhere(make(**given, comm=WORLD).fit(X[my], y[my], weights).predict(T[mine(41)]))
    close(got, by_one(make(**given).fit, X, y, everyone).predict(T))


@methods
def test_float32(name, mine, everywhere):
    (X, y), (T, _) = rows(), rows(41, seed=1)
    given = {"n_parts": 5, "sigma": 2.0, "lam": 1e-2, "dtype": "float32", "random_state": 0}
    distributed = ESTIMATORS[name](**given, comm=WORLD).fit(X[mine(157)], y[mine(157)])
    got = everywhere(distributed.predict(T[mine(41)]))
    assert got.dtype == np.float64
    close(got, by_one(ESTIMATORS[name](**given).fit, X, y).predict(T), 1e-6)  # standardised in single precision


def test_default_parts():
    X, y = rows(40)
    assert len(BKRR2(comm=WORLD, random_state=0).fit(X[even(40)], y[even(40)]).sizes_) == R


@pytest.mark.mpi(min_size=2)
def test_bad_row_of_one_rank():
    X, y = rows(40)
    if RANK == 1:
        y[3] = np.inf
    with pytest.raises(InputError, match="infinity"):
        BKRR2(comm=WORLD).fit(X, y)
    if RANK == 1:
        y[3] = 1.0
    model = BKRR2(comm=WORLD, random_state=0).fit(X, y)
    with pytest.raises(InputError, match="features"):
        model.predict(X[:, : 3 if RANK == 1 else 4])


def test_bad_rows_of_a_model_name_their_rank():
    """A model that is asked itself says which rank's rows are wrong, as estimators do."""
    model = BKRR2(n_parts=R, sigma=1.0, lam=1e-3, random_state=0, comm=WORLD).fit(*rows(40, RANK)).model_
    X = rows(5, RANK)[0]
    if RANK == R - 1:
        X[2, 1] = np.nan
    rank = f"rank {R - 1}: " if R > 1 else ""
    refused_by_all(model.predict, X, WORLD, match=f"^{rank}X, column 1: row 2 is NaN")


def test_no_pair_works():
    X, y = np.ones((30, 2)), np.arange(30.0)
    options = RidgeOptions(partitions=2, lam=(1e-30,))
    refused_by_all(METHODS["bkrr2"], dataset(X, y), options, Communicator(WORLD), match="positive definite")


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("what", ["sigma", "parts", "weights"])
def test_ranks_must_be_told_the_same(what):
    X, y = rows(40)
    last = R - 1 == RANK
    given = {"sigma": 1.0 + last * (what == "sigma"), "n_parts": 2 + last * (what == "parts")}
    with pytest.raises(InputError, match="not the same on all ranks"):
        BKRR2(**given, comm=WORLD, random_state=0).fit(X, y, np.ones(40) if what == "weights" and last else None)


def test_score_is_that_of_all_rows(mine):
    (X, y), (T, u) = rows(), rows(41, seed=1)
    given = {"n_parts": 3, "sigma": 2.0, "lam": 1e-3, "random_state": 0}
    distributed = BKRR2(**given, comm=WORLD).fit(X[even(157)], y[even(157)])
    score = distributed.score(T[mine(41)], u[mine(41)])
    assert score == pytest.approx(by_one(BKRR2(**given).fit, X, y).score(T, u), rel=1e-8)
    assert len(set(WORLD.allgather(score))) == 1


def test_saving_after_a_fit_needs_no_communicator(folder):
    X, y = rows()
    fitted = BKRR2(5, sigma=2.0, lam=1e-3, random_state=0, comm=WORLD).fit(X[even(157)], y[even(157)])
    fitted.model_.save(folder / "saved.h5")
    serial = by_one(BKRR2(5, sigma=2.0, lam=1e-3, random_state=0).fit, X, y)
    close(KRRModel.load(folder / "saved.h5").predict(X), serial.predict(X))


@pytest.mark.parametrize(
    ("name", "given"),
    [("bkrr2", {"cv": 3}), ("bkrr2", {"cv": 3, "route": "soft"}), ("dckrr", {"cv": 3, "per_part": True}),
     ("kkrr2", {"per_part": True, "route": "soft"}), ("kkrr2", {"per_part": True, "select": "loo"})],
)  # fmt: skip
def test_folds_and_parts_that_choose(name, given, mine, everywhere):
    """The same errors and settings as in one process; where parts choose by themselves, no row is sent to be judged."""
    (X, y), (T, _), comm = rows(), rows(41, seed=1), Communicator(WORLD)
    options = RidgeOptions(partitions=5, sigma=(0.5, 1.0, 2.0), lam=(1e-4, 1e-2), seed=2, **given)
    method = METHODS[name]
    got = method(dataset(X, y, mine(157)), options, comm)
    serial = by_one(method, dataset(X, y), options)
    key = f"{options.select}_mse"
    close(np.array([row[key] for row in got.grid]), np.array([row[key] for row in serial.grid]), 1e-9)
    if options.per_part:
        close(got.model.sigmas, serial.model.sigmas, 1e-15)
        close(got.model.lams, serial.model.lams, 1e-15)
    assert (got.model.sigma, got.model.lam) == (serial.model.sigma, serial.model.lam)
    close(everywhere(got.model.predict(T[mine(41)])), serial.model.predict(T), 1e-8)
    assert comm.totals()[0]["train"]["bytes"] == 0
