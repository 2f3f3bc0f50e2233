"""Intervals of kernel ridge regression: against brute force and counting."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from helpers.checks import near
from helpers.data import noisy_waves
from sklearn.gaussian_process.kernels import RBF

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.probability.conformal import Calibration, kept_ranks, rank_of, shared_classes
from cakrr import BKRR2, DCKRR, DKRR, KRRModel, TwoLevelKRR
from partition.parts_model import nearest

SIGMA, LAM = 1.3, 1e-3
FIXED = {"sigma": SIGMA, "lam": LAM, "standardize": False, "random_state": 0}


def calibration(n, rows="held out", scaled=False):
    errors = np.random.default_rng(n).standard_t(2, n)
    return np.sort(np.abs(errors)), Calibration.of(rows, errors, np.full(n, 2.0) if scaled else None, Communicator())


@pytest.mark.parametrize("n", [1, 9, 19, 200, 2000, 2001, 12345])
def test_the_error_of_a_coverage(n):
    """The ceil((n + 1) coverage)-th smallest; of many rows, between thousandths, the next that is kept."""
    errors, kept = calibration(n, scaled=True)
    assert len(kept.errors) == len(kept_ranks(n)) <= min(n, 2000)
    for coverage in ("0.001", "0.07", "0.5", "0.9", "0.95", "0.999"):
        rank = -(-(n + 1) * Fraction(coverage) // 1)
        if rank > n:
            with pytest.raises(InputError, match=rf"needs {int(1 / (1 - Fraction(coverage))) - 1:,} rows to calibrate"):
                kept.half_width(float(coverage))
            continue
        assert kept.half_width(float(coverage)) == errors[int(rank) - 1]
        assert kept.half_width(float(coverage), scaled=True) == errors[int(rank) - 1] / 2
    if n > 2000:
        got = np.searchsorted(errors, kept.half_width(0.90051)) + 1
        assert (n + 1) * 0.90051 <= got <= (n + 1) * 0.901 + 1


def test_coverages_that_are_refused():
    kept = calibration(100)[1]
    for coverage in (0, 1, 1.5, -0.1, np.nan, "0.9", True, None, [0.5]):
        with pytest.raises(InputError, match="must be a number between 0 and 1"):
            kept.half_width(coverage)
    with pytest.raises(InputError, match=r"coverage 0.995 needs 199 rows to calibrate on, and the model has 100"):
        kept.half_width(0.995)
    with pytest.raises(InputError, match="train it with keep_factors"):
        kept.half_width(0.9, scaled=True)
    X, y = noisy_waves()
    with pytest.raises(InputError, match="trained without calibrate"):
        BKRR2(2, **FIXED).fit(X, y).predict_interval(X)
    with pytest.raises(InputError, match="adaptive = 'both': it must be one of True, False, std, parts"):
        BKRR2(2, **FIXED, calibrate=0.2).fit(X, y).predict_interval(X, adaptive="both")
    for model in (DCKRR(2, **FIXED, calibrate=0.2), BKRR2(2, **FIXED, calibrate="loo")):
        with pytest.raises(InputError, match="adaptive parts: the model has no calibration errors per part"):
            model.fit(X, y).predict_interval(X, 0.5, "parts")


def test_rows_that_are_set_aside_are_not_learned_from(tmp_path):
    """Training without them gives the same model; errors are those of that model; a file keeps them."""
    X, y = noisy_waves(300)
    grid = {"sigma": [1.0, 2.0], "lam": [1e-3, 1e-2], "random_state": 0}
    model = BKRR2(3, **grid, calibrate=0.2, keep_factors=True).fit(X, y)
    kept = model.model_.calibration
    assert (kept.n, kept.rows, len(kept.errors)) == (60, "held out", 60)
    learned = np.concatenate([part.X for part in model.model_.parts.values()])
    learned = model.model_.standardizer.scale * learned + model.model_.standardizer.mean
    aside = np.array([np.abs(learned - row).max(axis=1).min() > 1e-9 for row in X])
    assert aside.sum() == 60
    other = BKRR2(3, **grid).fit(X[~aside], y[~aside])
    near(model.predict(X), other.predict(X), 1e-9)
    mean, std = other.predict(X[aside], return_std=True)
    near(kept.errors, np.sort(np.abs(y[aside] - mean)), 1e-9)
    near(kept.scaled, np.sort(np.abs(y[aside] - mean) / std / factor(model, X)[aside]), 1e-7)
    model.model_.save(tmp_path / "m.h5")
    near_to = nearest(model.model_.standardizer.apply(X), model.centers_)
    by_part = [np.sort(np.abs(y[aside] - mean)[near_to[aside] == part]) for part in range(3)]
    ranks = [-(-8 * (len(errors) + 1) // 10) for errors in by_part]
    widths = {
        None: kept.errors[48], "std": kept.scaled[48] * model.predict(X, return_std=True)[1] * factor(model, X),
        "parts": np.array([errors[rank - 1] for errors, rank in zip(by_part, ranks, strict=True)])[near_to],
    }  # fmt: skip
    for adaptive, width in widths.items():
        lower, upper = KRRModel.load(tmp_path / "m.h5").predict_interval(X, 0.8, adaptive)
        np.testing.assert_array_equal((lower, upper), model.predict_interval(X, 0.8, adaptive))
        near(upper - lower, 2 * width, 1e-9)


def factor(estimator, X):
    """By what adaptive intervals multiply deviations."""
    model = estimator.model_
    mean, std = model.predict_std(X)
    return model.noise(model.standardizer.apply(X), mean - model.offset, std)


@pytest.mark.parametrize("targets", [1, 2])
def test_parts_with_too_few_errors(targets):
    """They share a width, from the errors of all of them."""
    X, y = noisy_waves(300)
    if targets == 2:
        y = np.column_stack([y, 3 * X[:, 0]])
    model = BKRR2(20, **FIXED, calibrate=0.2).fit(X, y).model_
    errors = [np.zeros((0, *y.shape[1:])) if p.errors is None else p.errors for _, p in sorted(model.parts.items())]
    counts = np.array([len(own) for own in errors])
    assert sum(counts) == 60
    assert 0 < sum(counts < 4) < 20
    lower, upper = model.predict_interval(X, 0.8, "parts")
    part = nearest(X, model.centers)
    together = np.sort(np.concatenate([own for own in errors if len(own) <= 4]), axis=0)
    few = counts[part] < 4
    near((upper - lower)[few] - 2 * together[-(-8 * (len(together) + 1) // 10) - 1], 0, 1e-12)
    assert len(np.unique(np.round(upper - lower, 9)[~few])) > 1


@pytest.mark.parametrize(
    ("counts", "classes"),
    [
        ([10, 12, 30], {}),
        ([2, 40, 5, 8], {0: [0, 2, 3], 2: [0, 2, 3], 3: [0, 2, 3]}),
        ([2, 40, 30, 1], {0: [0, 2, 3], 2: [0, 2, 3], 3: [0, 2, 3]}),
        ([0, 40, 0, 30], {0: [0, 2, 3], 2: [0, 2, 3]}),
        ([9, 11, 12], {1: [0, 1]}),
    ],
    ids=["enough", "three small parts", "too few together", "no rows", "a new row would decide"],
)
def test_classes_of_parts_with_few_calibration_rows(counts, classes):
    shared = shared_classes(np.array(counts), 0.9)
    assert {part: list(members) for part, members in shared.items()} == classes


def test_small_noisy_parts_hold_as_many_targets_as_were_asked_for():
    """Over many draws of the calibration rows: of all new rows, and of those whose part shares a width."""
    rng, coverage, inside, shares = np.random.default_rng(0), 0.8, [], []
    noise, frequency = np.array([1, 1, 3, 0.2, 10, 30]), [0.4, 0.3, 0.1, 0.1, 0.05, 0.05]
    for _ in range(4000):
        part = rng.choice(6, 61, p=frequency)
        errors = np.abs(rng.normal(size=61)) * noise[part]
        classes = shared_classes(np.bincount(part[:-1], minlength=6), coverage)
        own = np.sort(errors[:-1][np.isin(part[:-1], classes.get(part[-1], part[-1]))])
        inside.append(errors[-1] <= own[rank_of(coverage, len(own)) - 1])
        shares.append(part[-1] in classes)
    assert np.mean(inside) > coverage
    assert np.mean(np.array(inside)[shares]) > coverage


@pytest.mark.parametrize("cls", [BKRR2, DKRR])
def test_rows_left_out_one_at_a_time(cls):
    """Leave-one-out errors equal those of solving each part's system without the row."""
    X, y = noisy_waves(60)
    model = cls(**FIXED, calibrate="loo").fit(X, y).model_
    G, centred = RBF(SIGMA)(X) + LAM * 60 * np.eye(60), y - y.mean()
    errors, variances = [], []
    for i in range(60):
        rest = np.delete(np.arange(60), i)
        solved = np.linalg.solve(G[np.ix_(rest, rest)], np.c_[centred[rest], G[rest, i]])
        errors.append(abs(centred[i] - G[i, rest] @ solved[:, 0]))
        variances.append(G[i, i] - G[i, rest] @ solved[:, 1])
    s2 = np.mean(np.square(errors) / variances)
    assert model.calibration.rows == "left out"
    near(model.calibration.errors, np.sort(errors), 1e-8)
    near(model.calibration.scaled, np.sort(errors / np.sqrt(s2 * np.array(variances))), 1e-8)


def without_each(kernel, X, Y, T, noise):
    """Predictions without each row, for it and for new rows, by brute force: shapes (n,) and (n, len(T))."""
    G, k = kernel(X) + noise * np.eye(len(X)), kernel(T, X)
    errors, answers = [], []
    for i in range(len(X)):
        rest = np.delete(np.arange(len(X)), i)
        alpha = np.linalg.solve(G[np.ix_(rest, rest)], Y[rest])
        errors.append(Y[i] - G[i, rest] @ alpha)
        answers.append(k[:, rest] @ alpha)
    return np.array(errors), np.array(answers)


def jackknifed(kernel, X, y, T, noise, coverage):
    """Jackknife+ intervals as Barber et al. define them."""
    errors, answers = without_each(kernel, X, y, T, noise)
    n = len(X)
    low, high = math.floor((n + 1) * (1 - Fraction(coverage))) - 1, math.ceil((n + 1) * Fraction(coverage)) - 1
    sizes = np.abs(errors)[:, None]
    return np.sort(answers - sizes, axis=0)[low], np.sort(answers + sizes, axis=0)[high]


@pytest.mark.parametrize("kind", ["nearest", "soft", "exact"])
def test_jackknife_plus(kind, tmp_path):
    """Ends follow from the models without each row, in each part; if several predict a row, ends are averaged."""
    (X, y), (T, _) = noisy_waves(90), noisy_waves(25, 1)
    cls, more = {"nearest": (BKRR2, {}), "soft": (BKRR2, {"route": "soft"}), "exact": (DKRR, {})}[kind]
    more = more | ({} if cls is DKRR else {"n_parts": 2})
    fitted = cls(**FIXED, **more, calibrate="jackknife+").fit(X, y)
    fitted.model_.save(tmp_path / "m.h5")
    model, every = fitted.model_, []
    for part in sorted(model.parts):
        own = model.parts[part].X
        targets = np.array([y[np.abs(X - row).max(axis=1).argmin()] for row in own]) - y.mean()
        every.append(jackknifed(RBF(SIGMA), own, targets, T, LAM * len(own), "0.8"))
    if kind == "exact":
        expected = every[0]
    else:
        share = np.eye(2)[nearest(T, model.centers)] if model.soft is None else model.soft.of_all(T, model.centers)
        expected = np.einsum("peT,Tp->eT", np.array(every), share)
    for one in (fitted.predict_interval(T, 0.8), KRRModel.load(tmp_path / "m.h5").predict_interval(T, 0.8)):
        near(np.array(one), expected + y.mean(), 1e-8 * np.abs(y).max())


def test_jackknife_plus_covers_where_the_jackknife_fails():
    """With as many rows as features and no ridge, each row changes the predictions (section 7 of its paper)."""
    held = {"jackknife+": [], "jackknife": []}
    for seed in range(3):
        rng = np.random.default_rng(seed)
        (X, y), (T, z) = ((rng.normal(size=(n, 60)), rng.normal(size=n)) for n in (60, 500))
        model = BKRR2(1, kernel="linear", lam=1e-8, standardize=False, calibrate="jackknife+").fit(X, y)
        lower, upper = model.predict_interval(T, 0.8)
        held["jackknife+"].append(np.mean((lower <= z) & (z <= upper)))
        held["jackknife"].append(np.mean(np.abs(z - model.predict(T)) <= model.model_.calibration.half_width(0.8)))
    assert np.mean(held["jackknife"]) < 0.6
    assert np.mean(held["jackknife+"]) > 0.7


def test_jackknife_plus_that_is_refused():
    X, y = noisy_waves()
    model = BKRR2(3, **FIXED, calibrate="jackknife+").fit(X, y)
    with pytest.raises(InputError, match=r"coverage 0.99 needs 99 rows in each part, and one has 50"):
        model.predict_interval(X, 0.99)
    with pytest.raises(InputError, match="already have a width for each row"):
        model.predict_interval(X, 0.9, "std")
    K = RBF(SIGMA)(X)
    with pytest.raises(InputError, match="models do not store a precomputed kernel"):
        DKRR(kernel="precomputed", calibrate="jackknife+").fit(K, y).predict_interval(K)


def test_many_targets_have_intervals_each():
    X, y = noisy_waves(300)
    Y = np.c_[y, 100 * y]
    held = BKRR2(2, **FIXED, calibrate=0.3, keep_factors=True).fit(X, Y)
    left = BKRR2(2, **FIXED, calibrate="jackknife+").fit(X, Y)
    for model, adaptive in ((held, False), (held, True), (left, False)):
        lower, upper = model.predict_interval(X, 0.9, adaptive)
        assert lower.shape == (300, 2)
        near((upper - lower)[:, 1], 100 * (upper - lower)[:, 0], 1e-6 * upper.max())


def test_coverage_of_noise_that_varies():
    """90 % of 4,000 new rows, to three deviations of the draw of 400 and 4,000; adaptive ones are narrower."""
    rng = np.random.default_rng(0)

    def drawn(n):
        X = rng.uniform(-2, 2, (n, 2))
        return X, np.sin(2 * X[:, 0]) + np.where(X[:, 1] > 0, 0.8, 0.05) * rng.standard_t(4, n)

    (X, y), (T, z) = drawn(1600), drawn(4000)
    model = BKRR2(8, sigma=1.0, lam=1e-2, calibrate=0.25, keep_factors=True, random_state=0).fit(X, y)
    widths = []
    for adaptive in (None, "std", "parts"):
        lower, upper = model.predict_interval(T, 0.9, adaptive)
        assert np.mean((lower <= z) & (z <= upper)) == pytest.approx(0.9, abs=3 * np.sqrt(0.09 / 400 + 0.09 / 4000))
        widths.append(np.mean(upper - lower))
    assert max(widths[1:]) < 0.95 * widths[0]


@pytest.mark.parametrize(
    ("cls", "given", "says"),
    [
        (BKRR2, {"calibrate": 1.5}, "calibrate = 1.5: it must be a number between 0 and 1, or loo"),
        (
            BKRR2,
            {"calibrate": "half"},
            "calibrate = 'half': it must be a number between 0 and 1, or loo, or jackknife+",
        ),
        (BKRR2, {"calibrate": 1e-4}, "this share of 150 rows is 0; both sides need rows"),
        (DCKRR, {"calibrate": "loo"}, "dckrr answers otherwise"),
        (TwoLevelKRR, {"calibrate": "jackknife+"}, r"calibrate jackknife\+: .* twolevel answers otherwise"),
        (BKRR2, {"calibrate": "loo", "n_divisions": 2}, "those of one division"),
    ],
)
def test_trainings_that_are_refused(cls, given, says):
    with pytest.raises(InputError, match=says):
        cls(2, **given).fit(*noisy_waves())


def test_damaged_calibration(tmp_path):
    model = BKRR2(2, **FIXED, calibrate=0.2).fit(*noisy_waves()).model_
    model.calibration = replace(model.calibration, n=31)
    model.save(tmp_path / "m.h5")
    with pytest.raises(InputError, match="the stored errors do not match the number of rows"):
        KRRModel.load(tmp_path / "m.h5")
