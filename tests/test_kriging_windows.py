"""Kriging from the nearest points of each place: beside dense kriging, its draws, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import close
from helpers.commands import predicted, read, run
from test_kriging import KNOWN, NUGGET, SILL, brute, covariance, field, moments

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.kernels import Kernel
from cakriging import Kriging, KrigingModel
from cakriging.estimation import Likelihood, Sample
from cakriging.kriging_system import earlier_blocks
from cakriging.windows import SPARSER, WINDOW


@pytest.mark.parametrize("neighbours", [150, 4000], ids=["all", "more"])
def test_all_points_as_neighbours_give_dense_kriging(neighbours, tmp_path):
    X, y, Q, K = field(150)
    Q[0] = X[0]
    want = brute(X, y, Q, K)
    model = Kriging(drift="linear", neighbours=neighbours, **KNOWN).fit(X, y)
    close(model.predict(Q, return_std=True), want, 1e-8)
    assert model.solver_["neighbours"] == 150
    model.model_.save(tmp_path / "model.h5")
    close(KrigingModel.load(tmp_path / "model.h5").predict_std(Q), want, 1e-8)


@pytest.mark.parametrize("drift", ["none", "constant", "linear"])
def test_few_neighbours_are_those_of_a_dense_solution_per_place(drift):
    """Simple kriging of the values without their drift; the standard deviation is not below that of all points."""
    X, y, Q, _ = field()
    model = Kriging(drift=drift, neighbours=25, **KNOWN).fit(X, y)
    drift_of = model.model_.drift.functions
    residual, gap = y - drift_of(X) @ model.beta_, drift_of(Q)
    mean, variance = drift_of(Q) @ model.beta_, np.full(len(Q), SILL + NUGGET)
    for i, place in enumerate(Q):
        near = np.argsort(np.linalg.norm(X - place, axis=1))[:25]
        k = covariance(place[None], X[near])[0]
        weights = np.linalg.solve(covariance(X[near], X[near]) + NUGGET * np.eye(25), k)
        mean[i] += weights @ residual[near]
        gap[i] -= weights @ drift_of(X[near])
        variance[i] -= weights @ k
    if gap.shape[1]:
        variance += SILL * np.einsum("ij,ij->i", gap, np.linalg.solve(model.model_.gram, gap.T).T)
    close(model.predict(Q, return_std=True), (mean, np.sqrt(variance)), 1e-8)
    assert (
        model.predict(Q, return_std=True)[1] > 0.999 * Kriging(drift=drift, **KNOWN).fit(X, y).predict(Q, True)[1]
    ).all()


def test_likelihood_of_all_earlier_points_is_exact(tuned):
    X, y, _, _ = field(300)
    sample = Sample(X, y, np.column_stack([np.ones(300), X]), np.zeros(300))
    exact = Likelihood(sample, Kernel("matern32"), np.inf, Communicator())
    tuned(likelihood_rows=10)
    near = Likelihood(sample, Kernel("matern32"), np.inf, Communicator(), 300)
    for length, ratio in ((0.1, 0.3), (0.5, 0.01)):
        close(near(length, None, 0.0, ratio), exact(length, None, 0.0, ratio), 1e-8)


@pytest.mark.parametrize(("first", "last"), [(0, 100), (37, 71), (64, 65), (5, 5)])
def test_earlier_points(first, last):
    X = np.random.default_rng(0).integers(0, 8, (100, 2)).astype(float)  # a lattice, with many equal distances
    whole = np.concatenate([near for _, _, near in earlier_blocks(X, 5)])
    parts = [near for _, _, near in earlier_blocks(X, 5, first, last)]
    np.testing.assert_array_equal(np.concatenate([np.zeros((0, 5), int), *parts]), whole[first:last])
    assert (whole < np.arange(100)[:, None]).all()
    assert (whole[40:, 0] >= 0).all()


def test_draws_have_the_mean_and_the_covariance_of_the_field():
    X, y, Q, K = field(150, 8)
    Q[3] = X[7]
    F, G, k = np.column_stack([np.ones(150), X]), np.column_stack([np.ones(8), Q]), covariance(Q, X)
    mean, inverse = brute(X, y, Q, K)[0], np.linalg.inv(K)
    gap = G - k @ inverse @ F
    want = covariance(Q, Q) - k @ inverse @ k.T + gap @ np.linalg.solve(F.T @ inverse @ F, gap.T)
    model = Kriging(drift="linear", neighbours=200, **KNOWN).fit(X, y)
    draws = model.simulate(Q, 1500)
    assert max(moments(draws, mean, want)) < 4.5
    np.testing.assert_array_equal(model.simulate(Q, 20), draws[:20])


@pytest.mark.parametrize(
    ("X", "n"),
    [
        (np.repeat(np.random.default_rng(0).random((20, 2)), 3, axis=0), 60),  # each place three times
        (np.linspace(0, 1, 50)[:, None] * [1, 2], 50),  # on a line
        (np.random.default_rng(0).random((60, 2)) + 1e4 * (np.arange(60) < 30)[:, None], 60),  # two distant clusters
        (np.stack(np.meshgrid(np.arange(8.0), np.arange(8.0)), axis=-1).reshape(-1, 2), 64),  # a lattice
    ],
    ids=["coinciding", "collinear", "clusters", "lattice"],
)
def test_awkward_points(X, n):
    """Beside a dense solution with as many neighbours as points, and finite with few."""
    y = np.sin(np.arange(n)) + 3.0
    known = {"range": 0.5, "sill": 1.0, "nugget": 0.1, "random_state": 0}
    Q = np.concatenate([X[:5], X[:5] + 0.01, X.mean(axis=0)[None]])
    want = Kriging(**known).fit(X, y).predict(Q, return_std=True)
    close(Kriging(neighbours=500, **known).fit(X, y).predict(Q, return_std=True), want, 1e-8)
    for values in Kriging(neighbours=4, **known).fit(X, y).predict(Q, return_std=True):
        assert np.isfinite(values).all()
        assert (np.abs(values) < 10).all()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"neighbours": 0}, "neighbours = 0: it must be a whole number from 1 to 4096"),
        ({"neighbours": 10**9}, "neighbours = 1000000000"),
        ({"neighbours": 10, "solver": "cg"}, "--neighbours 10: --solver cg uses all points"),
        ({"neighbours": 10, "nugget": 0.0}, "share their place"),
    ],
)
def test_what_is_refused_in_one_line(options, match):
    X, y, _, _ = field(20)
    X[3] = X[4]
    with pytest.raises(InputError, match=match) as caught:
        Kriging(**{**KNOWN, **options}).fit(X, y)
    assert "\n" not in str(caught.value)
    model = Kriging(neighbours=5, **KNOWN).fit(X, y)
    with pytest.raises(InputError, match="variance exact: the model predicts from 5 neighbours"):
        model.predict(X, return_std=True, variance="exact")


def test_a_long_range_does_not_need_an_option(tuned):
    """Beyond the points that are solved by a dense factor, a covariance that cannot be cut uses neighbours."""
    X, y, Q, K = field()
    tuned(kriging_dense=100)
    known = {**KNOWN, "range": 0.2, "drift": "linear"}
    model = Kriging(**known).fit(X, y)
    assert model.solver_["solver"] == "neighbours"
    close(model.predict(Q), brute(X, y, Q, K)[0], 0.05)
    assert Kriging(**{**known, "kernel": "wendland2"}).fit(X, y).solver_["solver"] == "cg"


def test_windows_at_several_distances():
    """Near points of all points, and of the first ones in the shuffled order, each of them once."""
    X, y, Q, _ = field(800)
    model = Kriging(solver="neighbours", **KNOWN).fit(X, y)
    assert (model.model_.window, model.solver_["neighbours"]) == (WINDOW, sum(WINDOW))
    model.predict(Q)
    windows = model.model_._windows
    near = windows.nearest(Q)
    distances = np.linalg.norm(windows.X - Q[:, None], axis=2)
    for row, numbers in zip(distances, near, strict=True):
        want = set()
        for level, count in enumerate(WINDOW):
            want |= set(np.argsort(row[: 800 // SPARSER**level])[:count].tolist())
        assert sorted(numbers[numbers >= 0]) == sorted(want)
    error = {}
    for neighbours in (None, 20):
        trial = Kriging(solver="neighbours", neighbours=neighbours, **KNOWN).fit(X, y)
        error[neighbours] = np.abs(trial.predict(Q) - Kriging(**KNOWN).fit(X, y).predict(Q)).max()
    assert error[None] < error[20]


def test_command(tmp_path, monkeypatch):
    X, y, Q, K = field(150)
    monkeypatch.chdir(tmp_path)
    np.savetxt("rows.csv", np.column_stack([X, y]), delimiter=",", header="east,north,value", comments="")
    np.savetxt("new.csv", Q, delimiter=",", header="east,north", comments="")
    known = f"--kernel matern32 --range 0.2 --sill {SILL} --nugget {NUGGET} --drift linear --neighbours 150"
    run("cakriging", ["rows.csv", *known.split(), "--model", "m.h5", "--report", "r.json"])
    report = read(tmp_path / "r.json")
    assert report["params"]["neighbours"] == 150
    assert report["solver"]["solver"] == "neighbours"
    run("cakriging.predict", ["m.h5", "new.csv", "-o", "p.csv", "--std", "--quiet"])
    close(predicted(tmp_path / "p.csv"), brute(X, y, Q, K)[0], 1e-8)


def test_values_that_others_determine_need_a_nugget():
    X = np.random.default_rng(0).random((1500, 2))
    smooth = {"neighbours": 60, "kernel": "gaussian", "range": 0.5, "sill": 1.0}
    with pytest.raises(InputError, match="singular in double precision: give a --nugget above 0"):
        Kriging(nugget=0.0, **smooth).fit(X, np.sin(3 * X[:, 0]))
    mean = Kriging(nugget=1e-6, **smooth).fit(X, np.sin(3 * X[:, 0])).predict(X[:20] + 1e-3)
    np.testing.assert_allclose(mean, np.sin(3 * X[:20, 0] + 3e-3), atol=1e-3)
