"""Kriging of counts and presence: beside a dense Laplace approximation, its intervals, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import h5py
import numpy as np
import pytest
from helpers.checks import close
from helpers.commands import reported, run
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import expit, gammaln
from scipy.stats import norm
from sklearn.metrics import r2_score
from test_kriging import KNOWN, NUGGET, SILL, covariance

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.errors import InputError, MemoryLimitError
from cacore.kernels import Kernel
from cakriging import Kriging, KrigingModel
from cakriging.counts import MODE_TOL, Counts, deviance, mode, response
from cakriging.estimation import LaplaceLikelihood, Sample
from cakriging.kriging_method import METHOD
from cakriging.options import KrigingOptions

CASES = [("poisson", "ones"), ("poisson", "decades"), ("binomial", "ones"), ("binomial", "trials")]


def counted(likelihood, exposures="ones", n=300, q=40):
    """Points, counts, exposures, places, and the latent field at points and places."""
    rng = np.random.default_rng(3)
    X = rng.random((n + q, 2))
    K = covariance(X, X) / SILL + NUGGET * np.eye(n + q)
    eta = np.linalg.cholesky(K) @ rng.normal(size=n + q) + 0.5 + X[:, 0]
    exposure = {"ones": np.ones(n), "decades": 10.0 ** rng.uniform(-3, 3, n), "trials": rng.integers(1, 50, n) + 0.0}
    e = exposure[exposures]
    y = rng.poisson(e * np.exp(eta[:n])) if likelihood == "poisson" else rng.binomial(e.astype(int), expit(eta[:n]))
    return X[:n], y.astype(float), e, X[n:], eta


def laplace(X, y, e, Q, likelihood, taper=None):
    """Dense Laplace approximation with a linear drift: latent means, deviations, log-likelihood."""
    F, G = (np.column_stack([np.ones(len(A)), A]) for A in (X, Q))
    C, k = covariance(X, X, taper) + NUGGET * np.eye(len(X)), covariance(Q, X, taper)
    eta = np.full(len(X), np.log(y.sum() / e.sum())) if likelihood == "poisson" else np.zeros(len(X))
    for _ in range(100):
        p = np.exp(eta) if likelihood == "poisson" else expit(eta)
        W = e * p if likelihood == "poisson" else e * p * (1 - p)
        z = eta + (y - e * p) / W
        inverse = np.linalg.inv(C + np.diag(1 / W))
        S = F.T @ inverse @ F
        beta = np.linalg.solve(S, F.T @ inverse @ z)
        dual = inverse @ (z - F @ beta)
        step = F @ beta + C @ dual - eta
        eta = eta + step * min(1, 2 / np.abs(step).max())
    gap = G - k @ inverse @ F
    variance = SILL + NUGGET - np.einsum("ij,jk,ik->i", k, inverse, k)
    variance += np.einsum("ij,ij->i", gap, np.linalg.solve(S, gap.T).T)
    density = y @ eta - e @ (np.exp(eta) if likelihood == "poisson" else np.logaddexp(0, eta))
    determinants = np.linalg.slogdet(inverse)[1] - np.linalg.slogdet(S)[1] - np.log(W).sum()
    return G @ beta + k @ dual, np.sqrt(variance), density - dual @ (eta - F @ beta) / 2 + determinants / 2


@pytest.mark.parametrize(("likelihood", "exposures"), CASES)
def test_dense_systems_and_all_neighbours_equal_a_dense_laplace_approximation(likelihood, exposures, tmp_path):
    X, y, e, Q, _ = counted(likelihood, exposures, 150)
    *want, loglikelihood = laplace(X, y, e, Q, likelihood)
    options = {"likelihood": likelihood, "kernel": "matern32", "drift": "linear", **KNOWN}
    dense = Kriging(**options).fit(X, y, exposure=e)
    close(dense.model_.latent(Q), want, 1e-10)
    windows = Kriging(neighbours=len(X), **options).fit(X.astype(np.float32), y, exposure=e)
    close(windows.model_.latent(Q), laplace(X.astype(np.float32), y, e, Q, likelihood)[:2], 1e-8)
    close(Kriging(neighbours=len(X), **options).fit(X, y, exposure=e).model_.latent(Q), want, 1e-8)
    dense.model_.save(tmp_path / "model.h5")
    again = KrigingModel.load(tmp_path / "model.h5")
    close(again.predict_std(Q), dense.predict(Q, return_std=True), 1e-12)
    sample = Sample(X, y, dense.model_.drift.functions(X), e).of_counts(likelihood, y.sum() / e.sum() / 1.01)
    criterion = LaplaceLikelihood(sample, Kernel("matern32"), np.inf, Communicator())
    criterion.tol = MODE_TOL
    shift = np.linalg.slogdet(np.linalg.lstsq(np.column_stack([np.ones(150), X]), sample.F, rcond=None)[0])[1]
    assert -criterion(KNOWN["range"], SILL, NUGGET, None)[0] / 2 == pytest.approx(loglikelihood - shift, abs=1e-7)


@pytest.mark.parametrize(("likelihood", "exposures"), CASES)
def test_near_points_equal_a_dense_laplace_approximation(likelihood, exposures):
    X, y, e, Q, _ = counted(likelihood, exposures)
    X[7] = X[8]
    options = {"likelihood": likelihood, "kernel": "matern32", "drift": "linear", "taper": 0.35, "solver": "cg"}
    model = Kriging(tol=1e-9, **options, **KNOWN).fit(X, y, exposure=e)
    close(model.model_.latent(Q), laplace(X, y, e, Q, likelihood, 0.35)[:2], 1e-6)
    assert model.solver_["newton_steps"] < 12


def test_steps_that_overshoot_are_halved(tuned):
    """From a probability of .95, full steps towards 3 of 10 successes leave every bound; halved ones find the root."""
    y, variance = np.array([3.0]), 1e4
    counts = Counts("binomial", y, np.full(1, 10.0), 0.3)

    def solve(z, error, _):
        dual = z / (variance + error)
        return np.stack([variance * dual, dual, np.zeros(1)])

    root = brentq(lambda eta: y[0] - 10 * expit(eta) - eta / variance, -5, 5, xtol=1e-13)
    assert mode(counts, np.full(1, 3.0), solve).eta[0] == pytest.approx(root, abs=1e-8)
    tuned(halvings=1)  # full steps
    assert mode(counts, np.full(1, 3.0), solve) is None


def test_a_first_count_far_above_its_expectation_has_a_mode():
    """One count of 400 where 1 is expected: the exponential of a full step from 0 would be 1e130."""
    y, variance = np.array([400.0]), 25.0
    counts = Counts("poisson", y, np.ones(1), 1.0)

    def solve(z, error, _):
        dual = z / (variance + error)
        return np.stack([variance * dual, dual, np.zeros(1)])

    latent = mode(counts, counts.start(), solve)
    assert y[0] - np.exp(latent.eta[0]) == pytest.approx(latent.eta[0] / variance, abs=1e-6)


@pytest.mark.parametrize("likelihood", ["poisson", "binomial"])
def test_few_neighbours_are_close_to_a_dense_laplace_approximation(likelihood):
    """Likelihood and field: of values each conditioned on 30 earlier ones, within a tenth of the deviation."""
    X, y, e, Q, _ = counted(likelihood)
    *want, loglikelihood = laplace(X, y, e, Q, likelihood)
    model = Kriging(neighbours=60, likelihood=likelihood, kernel="matern32", drift="linear", **KNOWN).fit(X, y)
    mean, std = model.model_.latent(Q)
    assert np.sqrt(np.mean(((mean - want[0]) / want[1]) ** 2)) < 0.1
    assert np.abs(std / want[1] - 1).max() < 0.1
    sample = Sample(X, y, np.column_stack([np.ones(300), X]), e).of_counts(likelihood, 1.0 / 3)
    few = LaplaceLikelihood(sample, Kernel("matern32"), np.inf, Communicator(), 30, exact=False)
    assert -few(KNOWN["range"], SILL, NUGGET, None)[0] / 2 == pytest.approx(loglikelihood, abs=1.0)


@pytest.mark.parametrize("std", [0.0, 0.05, 0.9, 1.1, 3.0, 20.0])
def test_moments_of_rates_and_probabilities_are_integrals(std):
    means = np.array([-3.0, 0.0, 0.7, 8.0])
    got = response("binomial", means, np.full(4, std))
    for i, mean in enumerate(means):
        first, second = expit(mean), expit(mean) ** 2
        if std:
            ends = {"points": [mean, 0.0], "limit": 400, "epsabs": 1e-13}
            first, second = (
                quad(lambda t: expit(t) ** p * norm.pdf(t, mean, std), mean - 12 * std, mean + 12 * std, **ends)[0]  # noqa: B023
                for p in (1, 2)
            )
        assert got[0][i] == pytest.approx(first, abs=1e-11)
        assert got[1][i] ** 2 == pytest.approx(second - first**2, abs=1e-11)
    rate, deviation = response("poisson", np.array([0.3]), np.array([0.5]))
    assert (rate[0], deviation[0]) == pytest.approx((np.exp(0.425), np.exp(0.425) * np.sqrt(np.expm1(0.25))))


def test_deviance_is_twice_the_loss_of_log_density():
    y, mean, e = np.array([0.0, 3.0, 7.0]), np.array([0.5, 2.0, 6.5]), np.array([8.0, 9.0, 7.0])
    log = lambda m: y * np.log(np.maximum(m, 1e-300)) - m - gammaln(y + 1)  # noqa: E731
    close(deviance("poisson", y, mean, e), 2 * (log(y) - log(mean)), 1e-12)
    p, s = np.clip(mean / e, 0, 1), y / e
    log = lambda p: y * np.log(np.maximum(p, 1e-300)) + (e - y) * np.log(np.maximum(1 - p, 1e-300))  # noqa: E731
    close(deviance("binomial", y, mean, e), 2 * (log(s) - log(p)), 1e-12)


@pytest.mark.parametrize(
    ("likelihood", "exposures"), [("poisson", "ones"), ("poisson", "decades"), ("binomial", "trials")]
)
def test_intervals_hold_the_rates_and_estimates_are_near_the_truth(likelihood, exposures, tuned):
    """95 % intervals at 400 places: 91 to 98 % are within four standard errors, and room for the approximation."""
    tuned(first_ranges=(0.1,), estimate_digits=0.1)
    X, y, e, Q, eta = counted(likelihood, exposures, 400, 400)
    model = Kriging(kernel="matern32", drift="linear", likelihood=likelihood, random_state=0).fit(X, y, exposure=e)
    true = np.exp(eta[400:]) if likelihood == "poisson" else expit(eta[400:])
    lower, upper = model.predict_interval(Q)
    assert 0.9 < np.mean((lower < true) & (true < upper)) < 0.99
    assert 0.3 < model.sill_ + model.nugget_ < 3
    assert 0.5 * KNOWN["range"] < model.range_ < 2 * KNOWN["range"]
    mean, std = model.predict(Q, return_std=True)
    assert np.mean((mean - true) ** 2) < 0.6 * np.var(true)
    assert (std > 0).all()


def test_draws_are_rates_of_the_latent_field():
    X, y, e, Q, _ = counted("poisson", "decades")
    for more in ({}, {"neighbours": 300}):
        model = Kriging(likelihood="poisson", kernel="matern32", **KNOWN, **more).fit(X, y, exposure=e)
        logs = np.log(model.simulate(Q, 1000))
        mean, std = model.model_.latent(Q)
        field = np.sqrt(std**2 - NUGGET)
        assert (np.abs(logs.mean(axis=0) - mean) < 4.5 * field / np.sqrt(1000)).all()
        assert (np.abs(logs.std(axis=0) / field - 1) < 4.5 / np.sqrt(2000)).all()


def test_kernel_and_drift_are_chosen(tuned):
    tuned(first_ranges=(0.1,), estimate_digits=0.2, screened=120)
    X, y, e, Q, _ = counted("poisson", "decades", 120)
    model = Kriging(likelihood="poisson", random_state=0).fit(X, y, exposure=e)
    assert model.model_.kernel.kind != "auto"
    assert np.isfinite(model.predict(Q)).all()
    assert model.left_out_ == {}


def test_presence_has_no_nugget_unless_it_is_named(tuned):
    tuned(first_ranges=(0.1,), estimate_digits=0.2)
    X, y, _, Q, _ = counted("binomial")
    options = {"kernel": "matern32", "likelihood": "binomial", "random_state": 0}
    assert Kriging(**options).fit(X, y).nugget_ == 0
    assert Kriging(nugget=0.2, **options).fit(X, y).nugget_ == 0.2
    p = Kriging(**options).fit(X, y).predict(Q)
    assert ((p > 0) & (p < 1)).all()


@pytest.mark.parametrize("likelihood", ["poisson", "binomial"])
def test_awkward_points_of_counts(likelihood):
    """Coinciding points, one count alone, and counts of one class without a drift have answers."""
    X, y, _, Q, _ = counted(likelihood, n=60)
    options = {"likelihood": likelihood, **KNOWN, "nugget": 0.0}
    X[10:20] = X[0]
    for more in ({}, {"neighbours": 5}):
        assert np.isfinite(Kriging(**options, **more).fit(X, y).predict(Q, return_std=True)).all()
    assert np.isfinite(Kriging(**options).fit(X[:1], np.ones(1), exposure=np.full(1, 3.0)).predict(Q)).all()
    for same in (np.zeros(60), np.ones(60)):
        mean = Kriging(drift="none", **options).fit(X, same).predict(Q)
        assert np.isfinite(mean).all()
        assert (mean[:5] < 1).all() or same[0] == 1


@pytest.mark.parametrize(
    ("likelihood", "change", "match"),
    [
        ("poisson", {"y": (3, -1.0)}, "poisson: the count of row 3 is -1; it must be a whole number of at least 0"),
        ("poisson", {"y": (3, 1.5)}, "the count of row 3 is 1.5; it must be a whole number"),
        ("poisson", {"e": (4, 0.0)}, "the exposure of row 4 is 0; it must be a positive exposure"),
        ("poisson", {"e": (4, -2.0)}, "the exposure of row 4 is -2"),
        ("poisson", {"e": (4, np.nan)}, "the exposure of row 4 is nan"),
        ("poisson", {"e": (4, np.inf)}, "the exposure of row 4 is inf"),
        ("binomial", {"e": (4, 1.5)}, "the exposure of row 4 is 1.5; it must be a whole number of trials"),
        ("binomial", {"y": (2, 2.0)}, "the count of row 2 is 2; it must be at most the number of trials"),
        ("poisson", {"y": (slice(None), 0.0)}, "all counts are 0, so the mean has no finite estimate"),
        ("binomial", {"y": (slice(None), 0.0)}, "all counts are 0"),
        ("binomial", {"y": (slice(None), 1.0)}, "all trials succeed"),
    ],
)
def test_what_is_no_count_is_refused_in_one_line(likelihood, change, match):
    X, y, e, _, _ = counted(likelihood, n=60)
    for name, (row, value) in change.items():
        {"y": y, "e": e}[name][row] = value
    with pytest.raises(InputError, match=match) as error:
        Kriging(likelihood=likelihood, **KNOWN).fit(X, y, exposure=e)
    assert "\n" not in str(error.value)


def test_counts_that_are_all_alike_have_no_covariance():
    X = counted("poisson", n=60)[0]
    with pytest.raises(InputError, match="all counts are 3, so there is no covariance to estimate"):
        Kriging(likelihood="poisson").fit(X, np.full(60, 3.0))
    with pytest.raises(InputError, match="no covariance to estimate: give range, sill and nugget beside drift none"):
        Kriging(likelihood="poisson", drift="none", kernel="matern32").fit(X, np.zeros(60))


@pytest.mark.parametrize(
    ("options", "fits", "match"),
    [
        ({}, {"exposure": np.ones(60)}, "^exposure needs counts: set likelihood='poisson' or 'binomial'$"),
        ({"likelihood": "poisson"}, {"errors": np.ones(60)}, "leave errors out"),
        ({"likelihood": "poisson", "average": True}, {}, "leave --average out"),
        ({"likelihood": "binomial", "estimation": "blocks"}, {}, "leave --estimation blocks out"),
        ({"likelihood": "poisson"}, {"exposure": np.ones(3)}, "exposure has shape"),
        (
            {"likelihood": "poisson"},
            {"exposure": ["a"] * 60},
            "exposure: could not convert string to float: .*give num",
        ),
        ({}, {"errors": ["b"] * 60}, "errors: could not convert string to float: .*give numbers alone"),
        ({"likelihood": "gamma"}, {}, "likelihood = 'gamma'"),
    ],
)
def test_options_that_exclude_each_other_are_named(options, fits, match):
    X, y, _, _, _ = counted("poisson", n=60)
    with pytest.raises(InputError, match=match):
        Kriging(**options, **KNOWN).fit(X, y, **fits)


@pytest.mark.parametrize(("likelihood", "exposures"), [("poisson", "decades"), ("binomial", "trials")])
def test_the_score_is_that_of_expected_counts(likelihood, exposures):
    X, y, e, _, _ = counted(likelihood, exposures)
    model = Kriging(likelihood=likelihood, kernel="matern32", **KNOWN).fit(X, y, exposure=e)
    weights = np.linspace(1, 2, 300)
    want = r2_score(y, e * model.predict(X), sample_weight=weights)
    assert model.score(X, y, weights, exposure=e) == pytest.approx(want)
    assert want > 0.5
    with pytest.raises(InputError, match="the model was fitted with exposures: pass those of these rows, exposure="):
        model.score(X, y)
    with pytest.raises(InputError, match="exposure has shape"):
        model.score(X, y, exposure=e[1:])
    ones = Kriging(likelihood=likelihood, kernel="matern32", **KNOWN).fit(X, (y > 0) + 0.0, exposure=None)
    if likelihood == "poisson":
        assert ones.score(X, y) == pytest.approx(r2_score(y, ones.predict(X)))


def test_memory_for_a_mode_names_both_remedies():
    X, y, _, _, _ = counted("poisson", n=60)
    options = KrigingOptions(likelihood="poisson", kernel="matern32", range=0.2, sill=1.0, nugget=0.1, neighbours=20)
    with pytest.raises(MemoryLimitError, match="use --taper or fewer --neighbours"):
        METHOD(Dataset(X, y, 60), replace(options, memory_limit=20_000))


def test_the_command_takes_a_column_of_exposures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    X, y, e, Q, eta = counted("poisson", "decades")
    rows, places = np.column_stack([X, e]), np.column_stack([Q, np.full(40, 10.0)])
    counts = np.random.default_rng(0).poisson(10 * np.exp(eta[300:]))
    with h5py.File(tmp_path / "counts.h5", "w") as file:
        file["train/X"], file["train/y"], file["test/X"], file["test/y"] = rows, y, places, counts
    options = {"kernel": "matern32", "range": 0.2, "sill": 2.0, "nugget": 0.1}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    words += ["--likelihood", "poisson", "--exposure", "2", "--seed", "0", "--model", tmp_path / "m.h5"]
    metrics = reported("cakriging", [tmp_path / "counts.h5", *words], tmp_path)["metrics"]
    model = Kriging(likelihood="poisson", random_state=0, **options).fit(X, y, exposure=e)
    rates = model.predict(Q)
    assert metrics["deviance"] == pytest.approx(deviance("poisson", counts + 0.0, 10 * rates, np.ones(40)).mean())
    assert metrics["rmse"] == pytest.approx(np.sqrt(np.mean((counts - 10 * rates) ** 2)))
    np.savetxt(tmp_path / "new.csv", places, delimiter=",")
    words = [tmp_path / "m.h5", tmp_path / "new.csv", "-o", tmp_path / "p.csv", "--interval", "0.9", "--quiet"]
    run("cakriging.predict", words)
    close(np.genfromtxt(tmp_path / "p.csv", delimiter=",", skip_header=1)[:, 0], rates, 1e-10)
    lower = np.genfromtxt(tmp_path / "p.csv", delimiter=",", names=True)["lower"]
    close(lower, model.predict_interval(Q, 0.9)[0], 1e-10)
    np.savetxt("tested.csv", np.column_stack([places, counts]), delimiter=",", header="0,1,2,y", comments="")
    answered = reported("cakriging.predict", ["m.h5", "tested.csv", "--target", "y", "--interval", "0.9"], tmp_path)
    assert answered["metrics"] == pytest.approx(metrics)
    assert "coverage" not in answered["intervals"]
    assert answered["intervals"]["mean_width"] > 0
    counts = counts.astype(float)
    counts[5] = -3
    np.savetxt("tested.csv", np.column_stack([places, counts]), delimiter=",", header="0,1,2,y", comments="")
    with pytest.raises(SystemExit):
        run("cakriging.predict", ["m.h5", "tested.csv", "--target", "y"])
    assert "poisson: the count of row 5 of tested.csv is -3; it must be" in capsys.readouterr().err


def test_exposures_that_no_column_has_leave_metrics_out(tmp_path, monkeypatch, capsys):
    X, y, e, _, _ = counted("poisson", "decades")
    monkeypatch.chdir(tmp_path)
    np.savetxt("new.csv", np.column_stack([X, y]), delimiter=",", header="0,1,y", comments="")
    Kriging(likelihood="poisson", **KNOWN).fit(X, y, exposure=e).save("m.h5")
    answered = reported("cakriging.predict", ["m.h5", "new.csv", "--target", "y"], tmp_path)
    assert answered["metrics"] == {}
    assert any("fitted with exposures that no column has" in note for note in answered["notes"])
    Kriging(likelihood="poisson", **KNOWN).fit(X, y).save("m.h5")
    assert "deviance" in reported("cakriging.predict", ["m.h5", "new.csv", "--target", "y"], tmp_path)["metrics"]


@pytest.mark.parametrize(
    ("likelihood", "change", "match"),
    [
        (
            "binomial",
            {"y": 9},
            "binomial: the count of row 2 of tests.csv is 9; it must be at most the number of trials",
        ),
        ("poisson", {"e": 0}, "poisson: the exposure of row 2 of tests.csv is 0; it must be a positive exposure"),
        ("poisson", {"y": -3}, "poisson: the count of row 2 of tests.csv is -3; it must be a whole number"),
    ],
)
def test_test_rows_that_are_no_counts_are_refused_before_training(
    likelihood, change, match, elsewhere, forbidden, capsys
):
    X, _, _, _, _ = counted("poisson", n=60)
    table = np.column_stack([X, np.full(60, 4.0), np.arange(60) % 3])
    for name in ("rows.csv", "tests.csv"):
        np.savetxt(name, table, delimiter=",", header="a,b,e,y", comments="")
        table = table + np.array([1e-3, 0, 0, 0])
        table[2, 2:] = change.get("e", 4), change.get("y", 1)
    with forbidden("cakriging.kriging_fit.fit"), pytest.raises(SystemExit) as end:
        run("cakriging", ["rows.csv", "--test", "tests.csv", "--likelihood", likelihood, "--exposure", "e", "--quiet"])
    assert end.value.code == 2
    assert match in capsys.readouterr().err


def test_a_model_without_shapley_values_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    X, y, _, _, _ = counted("poisson", n=60)
    np.savetxt("rows.csv", X, delimiter=",")
    Kriging(**KNOWN).fit(X, y).save("m.h5")
    with pytest.raises(SystemExit) as end:
        run("cakernels", ["explain", "m.h5", "rows.csv"])
    assert end.value.code == 2
    assert "m.h5: a kriging model has no Shapley values" in capsys.readouterr().err


def test_the_command_names_its_option_for_exposures_without_counts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savetxt("rows.csv", np.eye(4), delimiter=",")
    with pytest.raises(SystemExit):
        run("cakriging", ["rows.csv", "--exposure", "2"])
    assert "--exposure: exposure needs counts: add --likelihood poisson or binomial" in capsys.readouterr().err
