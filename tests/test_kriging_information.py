"""Standard deviations of estimated covariance parameters: beside the Cramer-Rao bound, and where there is none."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.checks import close
from helpers.commands import flat, run

from cacore.kernels import Kernel
from cakriging import Kriging
from cakriging.estimation import deviations
from cakriging.near_matrix import Correlation

N, RANGE = 600, 0.2


def correlations(X, length):
    return Correlation(Kernel("matern32").with_sigma(length)).matrix(X, X)


def bound(X, nugget):
    """Least standard deviations of unbiased estimates of log range, log sill and log nugget; the sill is 1."""
    K, step, eye = correlations(X, RANGE), 1e-4, np.eye(len(X))
    longer, shorter = (correlations(X, RANGE * np.exp(sign * step)) for sign in (1, -1))
    slopes = [np.linalg.solve(K + nugget * eye, D) for D in ((longer - shorter) / (2 * step), K, nugget * eye)]
    return np.sqrt(np.diagonal(np.linalg.inv([[np.sum(A * B.T) / 2 for B in slopes] for A in slopes])))


def field(nugget, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.random((N, 2))
    return X, np.linalg.cholesky(correlations(X, RANGE) + nugget * np.eye(N)) @ rng.normal(size=N)


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "vecchia"])
@pytest.mark.parametrize("nugget", [0.1, 0.01])
def test_standard_errors_match_the_scatter_of_estimates(nugget, exact, tuned):
    """That is the Cramer-Rao bound: no other estimate of these values could do better."""
    tuned(likelihood_rows=N if exact else 0)
    X, y = field(nugget)
    model = Kriging(kernel="matern32", random_state=0).fit(X, y)
    said = np.array([model.log_std_[name] for name in ("range", "sill", "nugget")])
    np.testing.assert_allclose(said, bound(X, nugget), rtol=0.5)
    off = np.log([model.range_ / RANGE, model.sill_, model.nugget_ / nugget])
    assert (np.abs(off) < 3 * said).all()


def test_parameters_that_are_not_estimated_by_likelihood():
    X, y = (values[:150] for values in field(0.1))
    assert list(Kriging(range=RANGE, random_state=0).fit(X, y).log_std_) == ["sill", "nugget"]
    assert Kriging(range=RANGE, sill=1.0, nugget=0.1, random_state=0).fit(X, y).log_std_ == {}
    assert Kriging(kernel="matern32", estimation="blocks", random_state=0).fit(X, y).log_std_ == {}


def test_a_nugget_that_the_values_do_not_determine(tmp_path, capsys):
    """Values without noise do not: the command says so, and the report has no number."""
    X, y = (some[:300] for some in field(1e-12, 2))
    np.savetxt(tmp_path / "rows.csv", np.column_stack([X, y]), delimiter=",", header="x,y,z", comments="")
    run("cakriging", [tmp_path / "rows.csv", "--kernel", "matern32", "--report", tmp_path / "report.json"])
    assert "standard deviations of the logarithms: range 0." in (said := flat(capsys.readouterr().out))
    assert "nugget undetermined" in said
    known = json.loads((tmp_path / "report.json").read_text())["estimate"]["log_std"]
    assert known["nugget"] is None
    assert 0 < known["range"] < 1


def test_deviations():
    """A normal density has known deviations; one that is flat or saddle-shaped has none."""
    A = np.random.default_rng(0).normal(size=(3, 3))
    H = A @ A.T + np.eye(3)
    best = np.array([1.0, -2.0, 0.5])
    close(deviations(lambda x: (x - best) @ H @ (x - best) / 2 + 7, best), np.sqrt(np.diagonal(np.linalg.inv(H))), 1e-6)
    flat_in_one = deviations(lambda x: float(x[0] ** 2 + 1e-4 * x[1] ** 2), np.zeros(2))
    np.testing.assert_allclose(flat_in_one, [np.sqrt(0.5), np.inf])
    assert np.isinf(deviations(lambda x: float(x[0] * x[1] + x @ x / 4), np.zeros(2))).all()
    assert deviations(lambda x: 0.0, np.zeros(0)).shape == (0,)
