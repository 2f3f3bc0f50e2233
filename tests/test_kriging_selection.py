"""Kernel, drift and criterion that kriging chooses by default; left-out blocks of the size of gaps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.commands import flat, read, run
from scipy.spatial.distance import cdist

from cacore.comm import Communicator
from cacore.kernels import Kernel
from cakriging import Kriging
from cakriging.estimation import Parameters, Sample
from cakriging.near_matrix import Correlation
from cakriging.selection import ENDING, KERNELS, CovarianceChoice, GapBlocks, block_count, candidates, preferred


def field(kind, n=500, length=0.2, nugget=0.05, slope=0.0, seed=0):
    """Places, and values of a field of variance 1 with noise and a slope."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, 2))
    K = Correlation(Kernel(kind).with_sigma(length)).matrix(X, X) + nugget * np.eye(n)
    return X, np.linalg.cholesky(K) @ rng.normal(size=n) + slope * X[:, 0] + 7.0


@pytest.fixture
def small(tuned):
    """Short searches: fits of 300 points."""
    tuned(screened=300, compared=500, likelihood_rows=100)
    tuned(estimate_digits=0.1, first_ranges=(0.03, 0.3))


def test_the_defaults_suit_the_field(small):
    """A rough field and a smooth one with a slope; predictions are as good as those of the true covariance."""
    for kind, length, slope in (("laplacian", 0.2, 0.0), ("gaussian", 0.1, 40.0)):
        X, y = field(kind, 600, length, slope=slope)
        model = Kriging(random_state=0).fit(X[:500], y[:500])
        smooth = KERNELS.index(model.model_.kernel.kind)
        assert (smooth <= 1) == (kind == "laplacian")
        assert len(model.beta_) == 3 or not slope
        drift = "linear" if slope else "constant"
        true = Kriging(kernel=kind, range=length, sill=1.0, nugget=0.05, drift=drift).fit(X[:500], y[:500])
        error, least = (np.sqrt(np.mean((m.predict(X[500:]) - y[500:]) ** 2)) for m in (model, true))
        assert error < 1.1 * least
        assert model.left_out_["rmse"] > 0.9 * least
        assert 0.9 < model.left_out_["coverage_of_95_%"] <= 1.0


def test_what_is_named_stays(small):
    X, y = field("laplacian", 120, slope=40.0)
    named = Kriging(kernel="matern52", random_state=0).fit(X, y)
    assert (named.model_.kernel.kind, len(named.beta_), named.left_out_) == ("matern52", 1, {})
    fixed = Kriging(nugget=0.2, drift="none", estimation="likelihood", random_state=0).fit(X, y)
    assert (fixed.nugget_, len(fixed.beta_)) == (0.2, 0)
    assert set(fixed.log_std_) == {"range", "sill"}
    assert Kriging(range=0.3, random_state=0).fit(X, y).model_.kernel.kind == "matern32"
    near = Kriging(solver="cg", random_state=0).fit(X, y)
    assert near.model_.kernel.kind in ENDING


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (np.random.default_rng(0).random((49, 2)), None),  # too few points to choose from
        (np.linspace(0, 1, 80)[:, None] * [1, 2], None),  # on a line
        (np.repeat(np.random.default_rng(0).random((30, 2)), 3, axis=0), None),  # each place three times
        (np.random.default_rng(0).random((80, 2)) + 1e5 * (np.arange(80) < 40)[:, None], None),  # two distant clusters
        (np.random.default_rng(0).random((80, 2)), "plane"),  # nothing but the drift
        (np.random.default_rng(0).random((80, 5)), None),  # more coordinates than a wendland kernel has
    ],
    ids=["few", "line", "repeated", "clusters", "plane", "five"],
)
def test_awkward_points_have_an_answer(X, y, small):
    y = X[:, 0] + 3.0 if y == "plane" else np.sin(np.arange(len(X)))
    mean, std = Kriging(random_state=0).fit(X, y).predict(X[:9], return_std=True)
    assert np.isfinite([mean, std]).all()
    assert (np.abs(mean) < 10).all()


def test_blocks_are_as_wide_as_gaps():
    """Discs of radius r leave places at r / 3 from the nearest point on average: blocks of side 2 r."""
    rng = np.random.default_rng(0)
    X = rng.random((20_000, 2))
    assert block_count(X, 8000) == 200
    for radius in (0.06, 0.12):
        centers = np.array([[0.25, 0.25], [0.25, 0.75], [0.75, 0.25], [0.75, 0.75]])
        outside = (cdist(X, centers) > radius).all(axis=1)
        side = math.sqrt(outside.mean() / block_count(X[outside], 8000))
        assert 1.6 * radius < side < 3.0 * radius
    assert block_count(np.zeros((30, 2)), 30) <= 3


def test_left_out_errors_are_those_of_a_solution_per_value():
    X, y = field("matern32", 150)
    sample = Sample(X, y, np.ones((150, 1)), np.zeros(150))
    judge = GapBlocks(sample, Communicator())
    block, errors, variance = judge.predicted(Kernel("matern32"), math.inf, Parameters(0.3, 2.0, 0.1))
    K = 2.0 * Correlation(Kernel("matern32").with_sigma(0.3)).matrix(X, X) + 0.1 * np.eye(150)
    for row in (3, 77, 149):
        others = np.flatnonzero(block != block[row])
        near = others[np.argsort(cdist(X[row : row + 1], X[others])[0])[:30]]
        weights = np.linalg.solve(K[np.ix_(near, near)], K[near, row])
        assert variance[row] == pytest.approx(K[row, row] - weights @ K[near, row], rel=1e-8)
    inside = np.abs(errors) < 1.959964 * np.sqrt(variance)
    assert judge.summary(Kernel("matern32"), math.inf, Parameters(0.3, 2.0, 0.1)) == pytest.approx(
        {"rmse": np.sqrt(np.mean(errors**2)), "coverage_of_95_%": inside.mean()}
    )


def test_another_fit_must_be_better_by_more_than_chance():
    rng = np.random.default_rng(0)
    best = rng.normal(size=40)
    noise = rng.normal(size=40)
    assert preferred([best, best + noise - noise.mean() + 0.1], 0) == 0
    assert preferred([best, best + 0.2 * noise + 1.0, best + 0.2 * noise + 2.0], 0) == 2
    assert preferred([best, best - 1.0], 0) == 0


def test_candidates_and_their_record():
    assert [kernel.kind for kernel in candidates("auto", math.inf, 3, 2)] == list(KERNELS)
    assert [kernel.kind for kernel in candidates("cg", math.inf, 3, 2)] == list(ENDING)
    assert "wendland2" not in [kernel.kind for kernel in candidates("auto", math.inf, 3, 4)]
    selection = CovarianceChoice("wendland2", "blocks", True, Parameters(0.1, 2.0, 0.3))
    assert CovarianceChoice.of_arrays(selection.arrays()) == selection


def test_the_command_says_what_was_chosen(tmp_path, monkeypatch, capsys, small):
    X, y = field("laplacian", 150)
    monkeypatch.chdir(tmp_path)
    np.savetxt("rows.csv", np.column_stack([X, y]), delimiter=",", header="east,north,value", comments="")
    run("cakriging", ["rows.csv", "--report", "r.json"])
    report, shown = read(tmp_path / "r.json"), flat(capsys.readouterr().out)
    assert f"chosen: {report['params']['kernel']}, drift {report['params']['drift']}, by" in shown
    assert report["params"]["kernel"] in KERNELS
    assert report["estimate"]["left_out"]["rmse"] > 0


def test_the_command_chooses_alike_on_two_ranks(in_one_job, tmp_path):
    X, y = field("laplacian", 60)
    np.savetxt(tmp_path / "rows.csv", np.column_stack([X, y]), delimiter=",")
    words = ["cakriging", "rows.csv", "--threads", "1", "--quiet", "--report"]
    run(words[0], [tmp_path / "rows.csv", *words[2:], tmp_path / "one.json"])
    in_one_job(2, [*words, "two.json"])
    one, two = (read(tmp_path / f"{name}.json")["params"] for name in ("one", "two"))
    assert [one[name] for name in ("kernel", "drift")] == [two[name] for name in ("kernel", "drift")]
    assert two["range"] == pytest.approx(one["range"], rel=1e-8)
