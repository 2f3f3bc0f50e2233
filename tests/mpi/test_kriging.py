"""Kriging on several ranks: the answers of one process, and messages that carry only the halo."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.distributed import RANK, WORLD, R

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.kernels import Kernel
from cakriging import Kriging, KrigingModel, interpolate
from cakriging.kriging_system import NearSystem
from cakriging.near_matrix import Correlation
from cakriging.space import Field, PointColumns

pytestmark = pytest.mark.mpi(min_size=1)


def rows(n=301):
    rng = np.random.default_rng(0)
    X = rng.random((n, 2))
    X[n // 2 :: 40] = X[::40][: len(X[n // 2 :: 40])]  # some places twice, on different ranks
    return X, np.sin(5 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=n), rng.random((23, 2))


@pytest.mark.parametrize(
    "given",
    [
        {"solver": "cg", "taper": 0.3},
        {"solver": "cholesky"},
        {"range": None, "sample": 203},
        {"range": None, "estimation": "blocks"},
    ],
)
def test_same_answers(given, comm, mine, everywhere, folder):
    X, y, Q = rows()
    options = {"range": 0.3, "sill": 1.0, "nugget": 0.05, "tol": 1e-8, "random_state": 0, "drift": "linear", **given}
    my, some = mine(len(X)), mine(len(Q))
    model = Kriging(**options, comm=comm).fit(X[my], y[my])
    got = [everywhere(one) for one in model.predict(Q[some], return_std=True)]
    model.save(folder / "model.h5")
    again = everywhere(KrigingModel.load(folder / "model.h5", comm).predict(Q[some]))
    want = Kriging(**options).fit(X, y).predict(Q, return_std=True)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
    np.testing.assert_allclose(again, want[0], rtol=0, atol=1e-6)


def test_a_model_with_a_column_of_the_drift_is_loaded_by_ranks_without_points(comm, mine, everywhere, folder):
    X, y, Q = rows()
    X, Q = np.column_stack([X, X[:, 0] ** 2]), np.column_stack([Q, Q[:, 0] ** 2])
    my, some = mine(len(X)), mine(len(Q))
    options = {"range": 0.3, "sill": 1.0, "nugget": 0.05, "taper": 0.3, "solver": "cg", "tol": 1e-8, "drift": [2]}
    model = Kriging(**options, random_state=0, comm=comm).fit(X[my], y[my])
    model.save(folder / "column.h5")
    again = KrigingModel.load(folder / "column.h5", comm)
    np.testing.assert_allclose(everywhere(again.predict(Q[some])), everywhere(model.predict(Q[some])), atol=1e-9)


def test_windows_give_the_same_numbers(comm, mine, everywhere, folder):
    """Parameters, means, deviations and draws; on a lattice, where many points are equally near."""
    X, Q = np.stack(np.meshgrid(np.arange(38.0), np.arange(34.0)), axis=-1).reshape(-1, 2), rows()[2] * 30
    y = np.sin(X[:, 0] / 5) + X[:, 1] / 30 + 0.1 * np.random.default_rng(1).normal(size=len(X))
    options = {
        "neighbours": 12,
        "sill": 1.0,
        "nugget": 0.02,
        "kernel": "laplacian",
        "drift": "linear",
        "random_state": 0,
    }
    my, some = mine(len(X)), mine(len(Q))
    model = Kriging(**options, comm=comm).fit(X[my], y[my])
    got = [everywhere(values) for values in model.predict(Q[some], return_std=True)]
    draws = everywhere(model.simulate(Q[some], 2, random_state=5).T).T
    model.save(folder / "windows.h5")
    again = everywhere(KrigingModel.load(folder / "windows.h5", comm).predict(Q[some]))
    alone = Kriging(**options).fit(X, y)
    want = alone.predict(Q, return_std=True)
    np.testing.assert_allclose([model.range_, model.nugget_], [alone.range_, alone.nugget_], rtol=1e-8)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-8)
    np.testing.assert_allclose(again, want[0], rtol=0, atol=1e-8)
    np.testing.assert_allclose(draws, alone.simulate(Q, 2, random_state=5), rtol=0, atol=1e-8)


def test_the_same_choice_of_kernel_and_drift(comm, mine, everywhere, tuned):
    X, y, Q = rows()
    tuned(screened=150, compared=200, first_ranges=(0.1,), estimate_digits=0.1)
    my, some = mine(len(X)), mine(len(Q))
    model, alone = Kriging(random_state=0, comm=comm).fit(X[my], y[my]), Kriging(random_state=0).fit(X, y)
    assert (model.model_.kernel.kind, len(model.beta_)) == (alone.model_.kernel.kind, len(alone.beta_))
    assert model.left_out_ == pytest.approx(alone.left_out_, rel=1e-8)
    np.testing.assert_allclose([model.range_, model.nugget_], [alone.range_, alone.nugget_], rtol=1e-8)
    np.testing.assert_allclose(everywhere(model.predict(Q[some])), alone.predict(Q), rtol=0, atol=1e-8)


@pytest.mark.parametrize("given", [{"solver": "cg", "taper": 0.2}, {"solver": "cholesky"}])
def test_the_same_draws(given, comm, mine, everywhere):
    """Conditional simulation: the same draws, in row order, with places at points, twice, and on ranks' borders."""
    X, y, Q = rows()
    Q = np.concatenate([Q, X[:4], Q[:3]])
    options = {"range": 0.2, "sill": 1.0, "nugget": 0.05, "tol": 1e-8, "random_state": 0, "drift": "linear", **given}
    my, some = mine(len(X)), mine(len(Q))
    got = Kriging(**options, comm=comm).fit(X[my], y[my]).simulate(Q[some], 3, random_state=5)
    want = Kriging(**options).fit(X, y).simulate(Q, 3, random_state=5)
    np.testing.assert_allclose(everywhere(got.T).T, want, rtol=0, atol=1e-6)
    assert np.abs(want[0] - want[1]).min() > 1e-4


def test_only_the_halo_travels(mine):
    """Every iteration sends each lent entry twice and brings it home once; regions are even."""
    X, _, _ = rows()
    comm, my, radius = Communicator(WORLD), mine(len(X)), 0.12
    some, n = X[my], len(X[my])
    number = np.arange(my.start, my.stop)
    near = Field.spread(PointColumns(some, np.full(n, 0.1), number, some[:, :1].copy()), radius, comm)
    sizes = comm.allgather(np.array([near.n_owned], np.int64))
    system = NearSystem(near, near.points.noise, Correlation(Kernel("wendland2").with_sigma(radius)), 20, 1 << 30)
    with comm.phase("train"):
        _, residual = system.solve(
            np.ascontiguousarray(np.column_stack([near.owned.values[:, 0], np.ones(near.n_owned)]).T), 1e-8
        )
    sent = comm.sent("train")
    assert residual <= 1e-8
    assert sizes.max() <= 1.2 * len(X) / R + 2
    assert sent[:, :R].sum(axis=1).tolist() == system.predicted().tolist()
    own = near.owned.X
    lent = sum(int(near.regions.near(own, rank, radius).sum()) for rank in range(R) if rank != RANK)
    assert lent == sum(map(len, near.halo.lent))
    out, _ = near.halo.counts
    assert out.sum() == lent
    assert system.predicted()[0] == 8 * (system.fetched[0] * lent + system.returned[0] * near.halo.size)
    facts = system.facts()
    total = comm.allreduce(np.array([lent, np.count_nonzero(out)]))
    assert facts["halo_bytes_per_iteration"] == 24 * total[0]
    assert facts["halo_messages_per_iteration"] == 3 * total[1]


@pytest.mark.parametrize("likelihood", ["poisson", "binomial"])
@pytest.mark.parametrize(
    "given",
    [
        {"solver": "cholesky"},
        {"neighbours": 12},
        {"solver": "cg", "taper": 0.3, "tol": 1e-10},
        {"range": None, "neighbours": 8},
    ],
)
def test_counts_have_the_same_rates(likelihood, given, comm, mine, everywhere, tuned):
    X, y, Q = rows()
    tuned(likelihood_rows=100, first_ranges=(0.1,), estimate_digits=0.1)
    counts = np.random.default_rng(2).poisson(np.exp(y)) if likelihood == "poisson" else (y > 0.5).astype(float)
    exposure = np.where(np.arange(len(X)) % 3, 1.0, 7.0)
    options = {"range": 0.3, "sill": 1.0, "nugget": 0.05, "random_state": 0, "drift": "linear", "kernel": "matern32"}
    options |= {"likelihood": likelihood, **given}
    my, some = mine(len(X)), mine(len(Q))
    model = Kriging(**options, comm=comm).fit(X[my], counts[my], exposure=exposure[my])
    got = [everywhere(values) for values in model.predict(Q[some], return_std=True)]
    alone = Kriging(**options).fit(X, counts, exposure=exposure)
    np.testing.assert_allclose(model.range_, alone.range_, rtol=1e-8)
    np.testing.assert_allclose(got, alone.predict(Q, return_std=True), rtol=1e-7, atol=1e-8)
    score = model.score(X[my], counts[my], exposure=exposure[my])
    assert score == pytest.approx(alone.score(X, counts, exposure=exposure), rel=1e-6)


def test_counts_that_are_refused_name_their_rank(comm, mine):
    X, y, _ = rows()
    model = Kriging(likelihood="poisson", range=0.3, sill=1.0, nugget=0.05, comm=comm)
    counts, my = np.where(np.arange(len(X)) == len(X) - 1, -1.0, 1.0), mine(len(X))
    where = f"^rank {R - 1}: " if R > 1 else "^"
    with pytest.raises(InputError, match=f"{where}poisson: the count of row [0-9]+ is -1"):
        model.fit(X[my], counts[my])
    if R > 1:
        for name in ("errors", "exposure"):
            with pytest.raises(InputError, match=f"{name}.*rank"):
                model.fit(X[my], counts[my] + 2, **{name: np.ones(len(X[my])) if RANK else None})
        with pytest.raises(InputError, match=r"^comm: a grid is interpolated by one rank"):
            interpolate(X[my], y[my], (y[:3], y[:2]), comm=comm)
