"""Quantile regression on rows of many ranks: in parts and exact, and intervals."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import near
from helpers.data import as_csr
from helpers.distributed import RANK, WORLD, by_one, dataset, even, refused_by_all

from cacore.comm import Communicator
from casvm import CAQuantileSVR, QuantileModel, SMOQuantileSVR
from casvm.options import ValueOptions
from casvm.svr import svr

pytestmark = pytest.mark.mpi(min_size=1)

N = 101  # no multiple of any number of ranks
GIVEN = {"quantile": (0.1, 0.5, 0.9), "C": 1.0, "gamma": 0.5, "tol": 1e-7}


def rows(csr=False):
    rng = np.random.default_rng(0)
    X = as_csr(rng.normal(size=(N, 3)), csr, 0.4)
    y = np.sin(2 * np.asarray(X.sum(axis=1)).ravel()) + 0.3 * rng.normal(size=N)
    return X, y, rng.choice([0.5, 1.0, 2.0], N)


@pytest.mark.parametrize(("csr", "route"), [(False, "nearest"), (True, "soft"), (True, "all"), (False, "soft")])
def test_parts_and_intervals_as_one_process_makes_them(csr, route, folder):
    """The same rows are set aside; the model that many ranks wrote predicts in one process."""
    X, y, weights = rows(csr)
    mine = even(N)
    params = {**GIVEN, "n_parts": 5, "calibrate": 0.2, "route": route, "random_state": 0}
    model = CAQuantileSVR(comm=WORLD, **params).fit(X[mine], y[mine], weights[mine])
    alone = by_one(CAQuantileSVR(**params).fit, X, y, weights)
    np.testing.assert_array_equal(model.sizes_, alone.sizes_)
    near(model.predict(X[mine]), alone.predict(X)[mine], 1e-5)
    ends = model.predict_interval(X[mine], 0.8)
    near(ends, np.array(alone.predict_interval(X, 0.8))[:, mine], 1e-5)
    near(model.score(X[mine], y[mine], weights[mine]), alone.score(X, y, weights), 1e-5)
    model.save(folder / "m.h5")
    near(QuantileModel.load(folder / "m.h5").predict_interval(X, 0.8)[1][mine], ends[1], 1e-12)


def test_exact_on_all_ranks():
    """One problem per level, whose rows lie on all ranks, and a bias that is the middle of an interval."""
    X, y, weights = rows()
    mine, options = even(N), {"quantile": GIVEN["quantile"], "C": 1.0, "epsilon": None, "tol": 1e-7, "exact": True}
    fitted = svr(
        dataset(X, y, mine, weights=weights), ValueOptions(**options, gamma=0.5, working_set=8), Communicator(WORLD)
    )
    alone = by_one(SMOQuantileSVR(**GIVEN).fit, X, y, weights)
    near(fitted.model.predict(X[mine], WORLD), alone.predict(X)[mine], 1e-5)
    near(fitted.solver["objective"][0], alone.objective_.sum(), 1e-6)
    same, targets = np.ones((10, 2))[RANK :: WORLD.size], np.arange(10.0)[RANK :: WORLD.size]
    fitted = svr(dataset(same, targets), ValueOptions(**options, gamma=1.0), Communicator(WORLD))
    near(fitted.model.predict(np.ones((1, 2)), WORLD), [[0.5, 4.5, 8.5]], 1e-5)


@pytest.mark.parametrize("exact", [False, True])
def test_length_scales_of_one_process(exact):
    """The same rows are sampled, and the first rank learns from them for all."""
    X, y, weights = rows()
    given = {**GIVEN, "epsilon": None, "metric": "lengths", "standardize": True}
    options = ValueOptions(**given, **({"exact": True} if exact else {"partitions": 5}))
    mine = even(N)
    fitted = svr(dataset(X, y, mine, weights=weights), options, Communicator(WORLD))
    alone = by_one(svr, dataset(X, y, weights=weights), options)
    near(fitted.model.standardizer.root, alone.model.standardizer.root, 1e-6)
    near(fitted.errors, alone.errors, 1e-9)
    near(fitted.model.predict(X[mine], WORLD), alone.model.predict(X)[mine], 1e-4)
    assert len({root.tobytes() for root in WORLD.allgather(fitted.model.standardizer.root)}) == 1


def test_refused_by_all_ranks():
    X, y, _ = rows()
    mine = even(N)
    refused_by_all(CAQuantileSVR(quantile=1.5, comm=WORLD).fit, X[mine], y[mine], match="quantile = 1.5: ")
    few = CAQuantileSVR(**{**GIVEN, "quantile": 0.99}, calibrate=0.2, comm=WORLD)
    refused_by_all(few.fit, X[mine], y[mine], match="quantile 0.99 needs 99 held-out rows")
    nothing = np.zeros(N)
    refused_by_all(few.fit, X[mine], y[mine], nothing[mine], match="weight")
    model = CAQuantileSVR(**GIVEN, comm=WORLD).fit(X[mine], y[mine])
    refused_by_all(model.predict_interval, X[mine], match="trained without calibrate")
