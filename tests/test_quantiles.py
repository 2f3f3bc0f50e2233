"""Quantile regression: the dual, the bias, quantiles that do not cross, intervals, the search, bad input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.checks import near
from helpers.data import FORMS, as_csr
from scipy.optimize import minimize
from sklearn.linear_model import QuantileRegressor
from sklearn.metrics import d2_pinball_score, mean_pinball_loss
from sklearn.metrics.pairwise import rbf_kernel

from cacore.comm import Communicator
from cacore.data.validation import shared_seed
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.metrics import quantile_metrics
from cacore.probability.conformal import closest_pair, interval_ends, quantile_pairs, rows_aside
from cacore.svm.dual import Dual, KnownProduct
from casvm import CAQuantileSVR, QuantileModel, SMOQuantileSVR, export_libsvm
from casvm.search.regression import TargetFolds, judge
from casvm.solver import near_smo
from casvm.solver.problems import solve_quantiles, start_at
from casvm.solver.smo import PartTraining, PartValues, solve_part

LEVELS = (0.1, 0.5, 0.9)
GIVEN = {"C": 1.5, "gamma": 0.5}


def rows(n=60, seed=0):
    """Rows, targets whose spread varies, and weights."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    y = np.sin(2 * X[:, 0]) + (0.1 + 0.3 * np.abs(X[:, 1])) * rng.normal(size=n)
    return X, y, rng.choice([0.0, 0.5, 1.0, 2.0], n)


def loss_of(y, predicted, levels=LEVELS):
    return np.mean([mean_pinball_loss(y, q, alpha=level) for q, level in zip(predicted.T, levels, strict=True)])


@pytest.mark.parametrize(("csr", "dtype"), FORMS.values(), ids=FORMS)
def test_solutions_are_those_of_the_quadratic_program(csr, dtype):
    """Coefficients within their bounds, and the objective and decisions of SLSQP, for each level, with weights."""
    X, y, weights = rows(40)
    X = as_csr(X.astype(dtype), csr, 0.4)
    model = SMOQuantileSVR(quantile=LEVELS, tol=1e-9, **GIVEN).fit(X, y, weights)
    kept, dense = np.flatnonzero(weights), (X.toarray() if csr else X).astype(np.float64)
    K, C, y = rbf_kernel(dense[kept], gamma=0.5), 1.5 * weights[kept], y[kept]
    beta, values = np.zeros((3, len(kept))), model.model_.decision_function(X)[kept]
    beta[:, np.searchsorted(kept, model.support_)] = model.dual_coef_
    for level, own, objective, b, decision in zip(
        LEVELS, beta, model.objective_, model.intercept_, values.T, strict=True
    ):
        expected = minimize(
            lambda a: 0.5 * a @ K @ a - y @ a, np.zeros(len(y)), jac=lambda a: K @ a - y, method="SLSQP",
            bounds=[*zip((level - 1) * C, level * C, strict=True)], options={"ftol": 1e-15, "maxiter": 1000},
            constraints={"type": "eq", "fun": np.sum, "jac": np.ones_like},
        )  # fmt: skip
        assert objective == pytest.approx(-expected.fun, rel=1e-6)
        assert ((own >= (level - 1) * C) & (own <= level * C)).all()
        assert own.sum() == pytest.approx(0, abs=1e-9)
        near(decision, K @ own + b, 1e-5 if dtype == np.float32 else 1e-9)
        near(K @ own, K @ expected.x, 1e-5)


def test_a_large_price_gives_the_quantiles_of_linear_programming():
    X, y, _ = rows(80)
    ours = SMOQuantileSVR(quantile=LEVELS, kernel="linear", C=1e4, tol=1e-7).fit(X, y)
    for level, values in zip(LEVELS, ours.predict(X).T, strict=True):
        theirs = QuantileRegressor(quantile=level, alpha=0.0).fit(X, y).predict(X)
        assert mean_pinball_loss(y, values, alpha=level) == pytest.approx(
            mean_pinball_loss(y, theirs, alpha=level), rel=1e-6
        )
    near(ours.coef_, ours.dual_coef_ @ X[ours.support_], 1e-9)


@pytest.mark.parametrize(("level", "weights", "expected"), [
    (0.5, np.ones(10), 4.5), (0.1, np.ones(10), 0.5), (0.9, np.ones(10), 8.5), (0.25, np.ones(10), 2.0),
    (0.5, [9.0, *[1.0] * 9], 0.5), (0.5, [0.0, *[1.0] * 9], 5.0),
])  # fmt: skip
def test_the_bias_where_no_row_lies_between_its_bounds(level, weights, expected):
    """Rows that are alike: the weighted quantile of the targets 0 to 9, or the middle of all that there are."""
    model = SMOQuantileSVR(quantile=level, tol=1e-6, gamma=1.0).fit(np.ones((10, 2)), np.arange(10.0), weights)
    near(model.predict(np.ones((2, 2))), expected, 1e-6)


@pytest.mark.parametrize("narrow", [False, True])
def test_sequential_levels_equal_separate_fits(narrow, tuned, recorded):
    """Kernel values are computed once where all are kept; the same solution by the solver of narrow kernels."""
    X, y, _ = rows(300)
    X = np.hstack([X, np.zeros((300, 14))])
    kernel, limits = Kernel("gaussian", gamma=100.0 if narrow else 0.5), Limits(1e-6)
    if narrow:
        tuned(near_problem_rows=100, near_problem_share=4.0)
    duals = [Dual.quantile(y, np.full(300, 2.0), level) for level in LEVELS]
    asked = recorded(near_smo.NearValues, "solve")
    solutions = solve_quantiles(X, duals, PartTraining(kernel, limits, 1 << 26))
    assert len(asked) == 3 * narrow
    for dual, one in zip(duals, solutions, strict=True):
        alone = solve_part(X, kernel, dual, limits, 1 << 26)
        assert one.objective == pytest.approx(alone.objective, rel=1e-9)
        near(one.decision, alone.decision, 1e-5)
        assert one.converged
        assert min(one.kernel_rows, one.kernel_values) >= 0
    assert narrow or solutions[2].kernel_values == 0  # all are there
    plugged = solve_quantiles(X, duals[:1], PartTraining(kernel, limits, 1 << 26))
    np.testing.assert_array_equal(plugged[0].beta, solve_part(X, kernel, duals[0], limits, 1 << 26).beta)


def test_objectives_that_share_kernel_values_are_those_of_double_precision():
    """With more rows than a tile of K holds, and targets whose unit is not 1."""
    X, y, weights = rows(1100)
    y, weights = 3e5 * y, 1e5 * (weights + 0.5)
    kernel, duals = Kernel("gaussian", gamma=0.5), [Dual.quantile(y, weights, level) for level in LEVELS]
    K = rbf_kernel(X, gamma=0.5)
    for one, dual in zip(solve_quantiles(X, duals, PartTraining(kernel, Limits(10.0), 1 << 26)), duals, strict=True):
        assert one.converged
        assert one.objective == pytest.approx(y @ one.beta - 0.5 * one.beta @ K @ one.beta, rel=1e-12)
        near(one.decision, K @ one.beta + one.b, 1.0)
        assert ((one.beta >= dual.lower) & (one.beta <= dual.upper)).all()
        assert one.objective == pytest.approx(solve_part(X, kernel, dual, Limits(10.0), 1 << 26).objective, rel=1e-6)


def test_a_start_whose_product_is_known_costs_only_the_difference():
    X, y, _ = rows(300)
    kernel, dual = Kernel("gaussian", gamma=0.5), Dual.quantile(y, np.ones(300), 0.3)
    values = PartValues(X, kernel, dual, Limits(1e-6), 1 << 26)
    whole, start = values.product(np.ones(300)), start_at(dual, np.zeros(300))
    near(whole, rbf_kernel(X, gamma=0.5).sum(axis=1), 1e-4)
    # All rows but those below the quantile are at their upper bound, 0.3.
    known = replace(dual, start=start, near_start=KnownProduct(np.full(300, 0.3), 0.3 * whole))
    v, change = known.unknown(start)
    assert np.count_nonzero(change) in (90, 91)
    near(v - rbf_kernel(X, gamma=0.5) @ change, y - rbf_kernel(X, gamma=0.5) @ start, 1e-4)
    objectives = [values.solve(one).objective for one in (known, dual)]
    assert objectives[0] == pytest.approx(objectives[1], rel=1e-9)


def test_a_start_from_another_level_is_feasible():
    """For any decision and weights, with no more than one row between its bounds."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        n = rng.integers(1, 20)
        dual = Dual.quantile(rng.normal(size=n), rng.uniform(0.1, 2, n), rng.uniform(0.01, 0.99))
        beta = start_at(dual, rng.normal(size=n))
        assert ((beta >= dual.lower) & (beta <= dual.upper)).all()
        assert beta.sum() == pytest.approx(0, abs=1e-12)
        assert np.count_nonzero((beta > dual.lower) & (beta < dual.upper)) <= 1


@pytest.mark.parametrize("estimator", [SMOQuantileSVR, CAQuantileSVR])
def test_quantiles_are_sorted_in_each_row(estimator):
    """Narrow kernels, whose solutions cross: the loss is at most that of the solutions as they are."""
    X, y, _ = rows(150)
    levels = (0.3, 0.4, 0.5, 0.6)
    model = estimator(quantile=levels, C=20.0, gamma=10.0).fit(X[:100], y[:100])
    raw, predicted = model.model_.decision_function(X[100:]), model.predict(X[100:])
    assert (np.diff(raw, axis=1) < 0).any()
    np.testing.assert_array_equal(predicted, np.sort(raw, axis=1))
    assert loss_of(y[100:], predicted, levels) <= loss_of(y[100:], raw, levels)
    alone = estimator(quantile=0.5, C=20.0, gamma=10.0, tol=1e-6).fit(X[:100], y[:100]).predict(X[100:])
    near(alone, raw[:, 2], 1e-2)
    assert alone.shape == (50,)


def test_score_and_metrics_are_scikit_learns():
    X, y, weights = rows()
    model = SMOQuantileSVR(quantile=LEVELS, **GIVEN).fit(X, y)
    predicted = model.predict(X)
    pairs = [*zip(predicted.T, LEVELS, strict=True)]
    assert model.score(X, y, weights) == pytest.approx(
        np.mean([d2_pinball_score(y, q, sample_weight=weights, alpha=level) for q, level in pairs])
    )
    made = quantile_metrics(y, predicted, LEVELS, Communicator())
    assert made["pinball_by_quantile"] == pytest.approx([mean_pinball_loss(y, q, alpha=level) for q, level in pairs])
    assert made["pinball"] == pytest.approx(loss_of(y, predicted))
    assert made["share_below"] == pytest.approx((y[:, None] <= predicted).mean(axis=0))


def test_losses_on_rows_left_out_are_those_of_models_without_them():
    X, y, weights = rows(90)
    fold, Cs, gammas = np.arange(90) % 4, (0.5, 5.0), (0.2, 0.8)
    alike = tuple(Kernel("gaussian", gamma) for gamma in gammas)
    told = judge(TargetFolds(X, y, weights, fold, 3, LEVELS), alike, Cs, (0.0,), 1e-7)
    for (g, e, ell, f), loss in np.ndenumerate(told["sse"]):
        out = fold == f
        model = SMOQuantileSVR(quantile=LEVELS, C=Cs[ell], gamma=gammas[g], tol=1e-7).fit(
            X[~out], y[~out], weights[~out]
        )
        raw = model.model_.decision_function(X[out])
        expected = sum(
            mean_pinball_loss(y[out], q, sample_weight=weights[out], alpha=level) * weights[out].sum()
            for q, level in zip(raw.T, LEVELS, strict=True)
        )
        assert (e, loss) == (0, pytest.approx(expected, rel=1e-4))
    assert (told["solved"], told["stopped"].sum()) == (36, 0)


@pytest.mark.parametrize("estimator", [SMOQuantileSVR, CAQuantileSVR])
def test_the_search_takes_the_smallest_pinball_loss(estimator):
    X, y, _ = rows()
    model = estimator(quantile=(0.2, 0.8), C=[0.5, 5.0], gamma=[0.1, 1.0], cv=3).fit(X, y)
    results = model.cv_results_
    assert (
        results["params"][np.argmax(results["mean_test_score"])]
        == model.best_params_
        == model.model_.params | {"gamma": model.model_.kernel.gamma}
    )
    assert -y.std() < model.best_score_ < 0


# -- intervals -----------------------------------------------------------------------------------------


def test_intervals_move_both_quantiles_by_the_order_statistic_of_the_scores():
    """The rows that are set aside are known: all others have a coefficient."""
    X, y, _ = rows(200)
    T = rows(100, seed=1)[0]
    model = SMOQuantileSVR(quantile=(0.05, 0.2, 0.8, 0.95), calibrate=0.3, random_state=3, **GIVEN).fit(X, y)
    held = np.setdiff1d(np.arange(200), model.support_)
    assert len(held) == 60
    predicted, at = (np.sort(model.model_.decision_function(some), axis=1) for some in (X[held], T))
    for coverage, low, high in ((0.9, 0, 3), (0.6, 1, 2)):
        scores = np.sort(np.maximum(predicted[:, low] - y[held], y[held] - predicted[:, high]))
        width = scores[int(np.ceil(61 * coverage)) - 1]
        near(model.predict_interval(T, coverage), [at[:, low] - width, at[:, high] + width], 1e-12)
    # They do not even have a say in the width of the kernel.
    given = {"quantile": (0.2, 0.8), "C": 1.5}
    alone = SMOQuantileSVR(**given, calibrate=0.3, random_state=3).fit(X, y)
    mine = alone.support_
    assert alone.model_.kernel == SMOQuantileSVR(**given).fit(X[mine], y[mine]).model_.kernel


def test_quantiles_are_shifted_until_the_right_share_of_held_out_rows_is_below():
    X, y, _ = rows(200)
    for quantile in ((0.1, 0.5, 0.9), 0.3):
        model = SMOQuantileSVR(quantile=quantile, C=50.0, gamma=5.0, calibrate=0.5, random_state=0).fit(X, y)
        held = np.setdiff1d(np.arange(200), model.support_)
        raw = np.sort(model.model_.decision_function(X[held]), axis=1)
        levels = np.atleast_1d(quantile)
        shifts = [np.sort(y[held] - q)[int(np.ceil(101 * level)) - 1] for q, level in zip(raw.T, levels, strict=True)]
        near(model.model_.shifts, shifts, 0)
        near(np.reshape(model.predict(X[held]), raw.shape), np.sort(raw + shifts, axis=1), 1e-12)


def test_a_negative_width_narrows_intervals_to_a_point_at_most():
    predicted = np.array([[0.0, 1.0], [0.0, 4.0]])
    near(interval_ends(predicted, (0, 1), -1.0), [[0.5, 1.0], [0.5, 3.0]], 0)


def test_pairs_are_mirror_images():
    levels = (0.05, 0.1, 0.5, 0.9, 0.95)
    assert quantile_pairs(levels) == ((0, 4), (1, 3))
    assert [closest_pair(levels, quantile_pairs(levels), share) for share in (0.99, 0.9, 0.8, 0.5)] == [0, 0, 1, 1]
    assert quantile_pairs((0.1, 0.2, 0.7)) == ((0, 2), (1, 2))


def test_coverage_holds_though_the_model_is_poor():
    """Mean coverage over 40 draws of 200 calibration rows: its deviation is about half a point."""
    held = []
    for seed in range(40):
        X, y, _ = rows(700, seed)
        model = SMOQuantileSVR(quantile=(0.3, 0.7), calibrate=200 / 300, C=0.1, gamma=0.1, random_state=seed)
        low, high = model.fit(X[:300], y[:300]).predict_interval(X[300:], 0.9)
        held.append(np.mean((low <= y[300:]) & (y[300:] <= high)))
    assert np.mean(held) == pytest.approx(0.9, abs=0.02)


def test_models_are_saved_whole(tmp_path):
    X, y, _ = rows(90)
    for number, estimator in enumerate([
        SMOQuantileSVR(quantile=LEVELS, calibrate=0.5, **GIVEN), SMOQuantileSVR(quantile=0.2, **GIVEN),
        CAQuantileSVR(2, quantile=LEVELS, route="soft", calibrate=0.5, random_state=0, **GIVEN),
        SMOQuantileSVR(quantile=LEVELS, kernel="precomputed", calibrate=0.5, C=1.0),
    ]):  # fmt: skip
        rows_ = rbf_kernel(X) if estimator.kernel == "precomputed" else X
        model = estimator.fit(rows_, y)
        model.save(tmp_path / f"{number}.h5")
        loaded = QuantileModel.load(tmp_path / f"{number}.h5")
        np.testing.assert_array_equal(loaded.predict(rows_), model.predict(rows_))
        assert loaded.quantile == (estimator.quantile if number == 1 else LEVELS)
        if number != 1:
            np.testing.assert_array_equal(loaded.predict_interval(rows_, 0.8), model.predict_interval(rows_, 0.8))
            assert model.predict_interval(rows_, 0.8)[0].shape == (90,)


# -- bad input -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [SMOQuantileSVR, CAQuantileSVR])
@pytest.mark.parametrize(("given", "message"), [
    ({"quantile": 0.0}, "quantile = 0.0: it must be a number between 0 and 1"),
    ({"quantile": 1}, "quantile = 1: it must be a number between 0 and 1"),
    ({"quantile": np.nan}, "quantile = nan: it must be a number between 0 and 1"),
    ({"quantile": None}, "quantile = None: it must be a number between 0 and 1"),
    ({"quantile": (0.1, np.nan)}, r"quantile = \[0.1, nan\]: it must be levels"),
    ({"quantile": "0.5"}, "quantile = '0.5': it must be a number between 0 and 1"),
    ({"quantile": [0.5, 0.1]}, r"quantile = \[0.5, 0.1\]: it must be levels between 0 and 1, in ascending order"),
    ({"quantile": (0.1, 0.1)}, r"quantile = \[0.1, 0.1\]: it must be levels"),
    ({"quantile": []}, r"quantile = \[\]: it must be levels"),
    ({"calibrate": 1.0}, "calibrate = 1.0: it must be a number between 0 and 1"),
    ({"quantile": LEVELS, "calibrate": 0.001}, "calibrate = 0.001: this share of 60 rows is 0; both sides need rows"),
])  # fmt: skip
def test_parameters_that_cannot_be(estimator, given, message):
    X, y, _ = rows()
    with pytest.raises(InputError, match=message):
        estimator(**GIVEN, **given).fit(X, y)


@pytest.mark.parametrize("estimator", [SMOQuantileSVR, CAQuantileSVR])
@pytest.mark.parametrize(("quantile", "needed"), [(0.98, 49), ((0.02, 0.5, 0.95), 19), ((0.1, 0.94), 16)])
def test_a_level_needs_enough_held_out_rows(estimator, quantile, needed):
    """Of weight above 0; one row more than the largest refused number is enough."""
    X, y, _ = rows()
    model = estimator(C=1.0, gamma=0.5, quantile=quantile, random_state=0)
    message = f"needs {needed} held-out rows, and {needed - 1} are held out; hold out a larger share"
    with pytest.raises(InputError, match=message):
        model.set_params(calibrate=(needed - 1) / 60).fit(X, y)
    shifts = model.set_params(calibrate=needed / 60).fit(X, y).model_.shifts
    aside = rows_aside(60, needed / 60, shared_seed(0, Communicator()), Communicator())[0]
    top = np.reshape(model.model_.decision_function(X[aside]), (needed, -1)).max(axis=1)
    near(shifts[-1], np.max(y[aside] - top), 1e-9)
    with pytest.raises(InputError, match=message):
        model.fit(X, y, np.where(np.arange(60) == np.flatnonzero(aside)[0], 0.0, 1.0))
    with pytest.raises(InputError, match="calibrate: no held-out row has a positive weight"):
        model.fit(X, y, np.where(aside, 0.0, 1.0))


def test_a_low_level_needs_one_held_out_row():
    X, y, _ = rows()
    model = SMOQuantileSVR(quantile=(0.01, 0.5), calibrate=1 / 60, random_state=0, **GIVEN).fit(X, y)
    assert np.isfinite(model.predict(X)).all()


def test_requests_that_cannot_be(tmp_path):
    X, y, _ = rows()
    model = SMOQuantileSVR(quantile=LEVELS, **GIVEN).fit(X, y)
    with pytest.raises(InputError, match="intervals: the model was trained without calibrate"):
        model.predict_interval(X)
    with pytest.raises(InputError, match="LIBSVM's format has no quantiles"):
        export_libsvm(model.model_, tmp_path / "m.model")
    model = SMOQuantileSVR(quantile=LEVELS, calibrate=0.5, **GIVEN).fit(X, y)
    for asked, message in (
        ({"coverage": 1.0}, "coverage = 1.0: it must be"), ({"method": "plain"}, "method = 'plain': it must be one of"),
        ({"coverage": 0.99}, "coverage 0.99 needs 99 rows to calibrate on, and the model has 30"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            model.predict_interval(X, **asked)
    model = SMOQuantileSVR(quantile=0.2, calibrate=0.5, **GIVEN).fit(X, y)
    with pytest.raises(InputError, match=r"intervals: quantile = 0.2 has no levels on both sides of 0.5; give"):
        model.predict_interval(X)
    words = np.where(y > 0, "up", "down")
    with pytest.raises(InputError, match="CASVC has classes"):
        CAQuantileSVR().fit(X, words)
    with pytest.raises(InputError, match=r"tau = 1.0: a quantile's level must be between 0 and 1"):
        Dual.quantile(y, np.ones(60), 1.0)


@pytest.mark.parametrize(("words", "message"), [
    (["--quantile", "0"], "--quantile 0: it must be a number between 0 and 1"),
    (["--quantile", "1"], "--quantile 1: it must be a number between 0 and 1"),
    (["--quantile", "nan"], "--quantile nan: it must be a number between 0 and 1"),
    (["--quantile", "0.5,0.1"], "--quantile 0.5,0.1: it must be levels between 0 and 1, in ascending order"),
    (["--quantile", "0.1,a"], "--quantile 0.1,a: it must be levels"),
    (["--quantile", "0.5", "--epsilon", "1"], "quantile, epsilon: the loss of a quantile has no epsilon"),
    (["--quantile", "0.5", "--nu", "0.1"], "quantile, nu: the loss of a quantile has no nu"),
    (["--calibrate", "0.1"], "calibrate: only quantiles are calibrated; give quantile as well"),
    (["--quantile", "0.5", "--libsvm", "m.model"], "--libsvm: LIBSVM's format has no quantiles"),
])  # fmt: skip
def test_commands_that_cannot_be(words, message, tmp_path, refuses):
    np.savetxt(tmp_path / "d.csv", np.column_stack(rows()[:2]), delimiter=",")
    refuses("casvm.svr", ["d.csv", *words], message, tmp_path)
