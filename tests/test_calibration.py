"""Calibration of decisions: against scikit-learn's sigmoid and isotonic regression, and LIBSVM's own iteration."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from helpers.checks import near, refusal
from helpers.data import drawn_clouds
from scipy.optimize import minimize
from sklearn.calibration import _SigmoidCalibration
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import log_loss
from sklearn.svm import SVC

from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.data.holdout import FOLDS, stratified
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.probability import isotonic, platt
from cacore.probability.calibrator import Calibrator, coupled
from cacore.probability.left_out import LeftOutDecisions, folds_to_leave_out, pairs_of
from casvm import (
    CASVC,
    SVMModel,
    export_libsvm,
)
from casvm.methods.probability import left_out
from casvm.solver.smo import PartTraining

ALONE = Communicator()


def decisions(n, slope, seed=0, shift=0.0):
    """Decisions, and whether rows are of the first class, by a sigmoid."""
    rng = np.random.default_rng(seed)
    f = 2.0 * rng.normal(size=n) + 0.3
    return f + shift, rng.random(n) < 1 / (1 + np.exp(-slope * f))


# -- one pair of classes -----------------------------------------------------------------------


def test_sigmoids_are_those_of_scikit_learn():
    """Four problems in one go: plain, few rows of one class, far from 0, and separable."""
    every = [decisions(500, 1.5), decisions(40, 3.0, 1), decisions(300, 0.2, 2, 1e5)]
    every.append((np.r_[-2.0, -1.0, 1.0, 2.0], np.array([False, False, True, True])))
    found = LeftOutDecisions.stacked(
        [LeftOutDecisions(f, first, np.full(len(f), i)) for i, (f, first) in enumerate(every)]
    )
    A, B = platt.fit(found, 5, ALONE)
    for i, (f, first) in enumerate(every):
        shift = f.mean()
        expected = _SigmoidCalibration().fit(f - shift, first)
        near(A[i], expected.a_, 1e-6)
        near(B[i] + A[i] * shift, expected.b_, 1e-6)
    assert (A[4], B[4]) == (0, 0)  # of no row


def test_sigmoids_of_a_part():
    """The minimum of its own cross entropy and that of 100 rows which agree with what is known; without rows, that."""
    known = np.array([-1.5, -2.0]), np.array([0.3, 0.1])
    f, y = decisions(60, 3.0)
    found = LeftOutDecisions(f, y.astype(bool), np.zeros(60, np.int64))
    A, B = platt.fit(found, 2, ALONE, known)

    def entropy(x):
        p, agreed = (1 / (1 + np.exp(a * f + b)) for a, b in (x, (known[0][0], known[1][0])))
        both = ((1, y), (100 / 60, agreed))
        return -sum(one * (t * np.log(p) + (1 - t) * np.log(1 - p)).sum() for one, t in both)

    near(np.array([A[0], B[0]]), minimize(entropy, (0, 0), tol=1e-12).x, 1e-4)
    near(np.array([A[1], B[1]]), np.array([-2.0, 0.1]), 1e-15)
    alike = LeftOutDecisions(np.full(5, 0.7), np.ones(5, bool), np.zeros(5, np.int64))
    assert np.isfinite(platt.fit(alike, 2, ALONE, known)).all()


def test_parts_have_their_own(tmp_path):
    """Where one half is easy and the other is noise, that of all parts is right for neither."""
    rng = np.random.default_rng(0)

    def drawn(n):
        X = rng.uniform(-1, 1, (n, 2)) + np.array([6, 0]) * (np.arange(n) % 2)[:, None]
        p = np.where(X[:, 0] > 3, 0.5 + 0.25 * np.sign(X[:, 1]), X[:, 1] > 0)
        return X, (rng.random(n) < p).astype(int)

    (X, y), (T, t) = drawn(600), drawn(600)
    model = CASVC(2, partitioner="kmeans", gamma=1.0, probability=True, random_state=0).fit(X, y).model_
    P = model.probabilities(T)
    model.save(tmp_path / "m.h5")
    near(SVMModel.load(tmp_path / "m.h5").probabilities(T), P, 1e-12)
    plain = replace(model, parts={n: replace(one, slopes=None, shifts=None) for n, one in model.parts.items()})
    assert log_loss(t, P) < 0.97 * log_loss(t, plain.probabilities(T))
    export_libsvm(model, tmp_path / "l.model")
    for number, part in model.parts.items():
        lines = dict(line.split()[:2] for line in (tmp_path / f"l.{number:06d}.model").read_text().splitlines()[:9])
        assert (float(lines["probA"]), float(lines["probB"])) == (part.slopes[0], part.shifts[0])
    model.parts[0].slopes = None
    model.save(tmp_path / "m.h5")
    assert "slopes or shifts without the other" in refusal(SVMModel.load, tmp_path / "m.h5")


def test_decisions_that_are_all_alike():
    """They say how many rows there are of each class, and nothing else."""
    for value in (0.0, 3.0, -1e8):
        A, B = platt.fit(LeftOutDecisions(np.full(10, value), np.arange(10) < 3, np.zeros(10, np.int64)), 1, ALONE)
        p = 1 / (1 + np.exp(A[0] * value + B[0]))
        assert p == pytest.approx((3 * 4 / 5 + 7 / 9) / 10)  # the mean of the targets


def test_isotonic_regression_is_that_of_scikit_learn():
    f, first = decisions(800, 1.0)
    other = decisions(60, -0.5, 1)[0], np.ones(60, np.bool_)
    found = LeftOutDecisions.stacked(
        [LeftOutDecisions(f, first, np.zeros(800, int)), LeftOutDecisions(*other, np.full(60, 2))]
    )
    made, x = isotonic.fit(found, 3, ALONE), isotonic.rounded(f)
    assert np.abs(x / f - 1).max() < 2**-9
    expected, t = IsotonicRegression(out_of_bounds="clip").fit(x, first), np.linspace(-9, 9, 500)
    p = np.clip(expected.y_thresholds_, 1 / 802, 801 / 802)
    near(made.at(t, 0), np.interp(t, expected.X_thresholds_, p), 1e-12)
    np.testing.assert_array_equal(made.at(t, 1), 0.5)  # nothing is known
    np.testing.assert_allclose(made.at(t, 2), 61 / 62)


@pytest.mark.parametrize("form", ["sigmoid", "isotonic"])
def test_a_row_of_weight_w_counts_as_w_rows(form):
    """One of weight 0 not at all; weights of a mean below 1 say only which rows are more likely."""
    (f, first), rng = decisions(400, 1.0), np.random.default_rng(2)
    w, t, problem = rng.integers(0, 9, 400).astype(float), np.linspace(-9, 9, 300)[:, None], np.zeros(400, np.int64)

    def made(decisions_of_rows):
        return Calibrator.fit(form, decisions_of_rows, 1, ALONE).first(t)

    weighted = made(LeftOutDecisions(f, first, problem, w))
    again = np.repeat(np.arange(400), w.astype(int))
    near(weighted, made(LeftOutDecisions(f[again], first[again], problem[again])), 1e-7)
    if form == "sigmoid":
        expected = _SigmoidCalibration().fit(f, first, sample_weight=w).predict(t.ravel())
        near(weighted[:, 0], expected, 1e-6)
    else:
        curve = IsotonicRegression(out_of_bounds="clip").fit(isotonic.rounded(f), first, sample_weight=w)
        p = np.clip(curve.y_thresholds_, 1 / (w.sum() + 2), 1 - 1 / (w.sum() + 2))
        near(weighted[:, 0], np.interp(t.ravel(), curve.X_thresholds_, p), 1e-6)
    small = made(LeftOutDecisions(f, first, problem, w / w.sum()))
    near(small, made(LeftOutDecisions(f, first, problem, w / w[w > 0].mean())), 1e-7)
    assert np.abs(weighted - made(LeftOutDecisions(f, first, problem))).max() > 0.01


# -- several classes ---------------------------------------------------------------------------


def by_libsvm(r):
    """``multiclass_probability`` of LIBSVM's svm.cpp, to the end: r[i, j] of class i in the pair with j."""
    k = len(r)
    Q = -r.T * r
    np.fill_diagonal(Q, [sum(r[j, i] ** 2 for j in range(k) if j != i) for i in range(k)])
    p = np.full(k, 1 / k)
    while np.ptp(Q @ p) > 1e-12:
        for t in range(k):
            change = (-(Q @ p)[t] + p @ Q @ p) / Q[t, t]
            p[t] += change
            p /= 1 + change
    return p


@pytest.mark.parametrize("k", [2, 3, 6])
def test_coupling_is_that_of_libsvm(k):
    rng = np.random.default_rng(k)
    pairs = rng.random((4, k * (k - 1) // 2))
    pairs[1] = rng.choice([0.05, 0.95], pairs.shape[1])  # maybe in a circle
    got = coupled(pairs, k)
    near(got.sum(axis=1), 1, 1e-14)
    for row, p in zip(pairs, got, strict=True):
        r = np.zeros((k, k))
        for value, (i, j) in zip(np.clip(row, 1e-7, 1 - 1e-7), combinations(range(k), 2), strict=True):
            r[i, j], r[j, i] = value, 1 - value
        near(p, by_libsvm(r), 1e-8)
    near(coupled(np.ones((1, k * (k - 1) // 2)), k), np.eye(k)[:1], 1e-6)


def test_pairs_of_some_classes():
    every = list(combinations(range(6), 2))
    some = np.array([1, 2, 5])
    assert [every[pair] for pair in pairs_of(some, 6)] == [(1, 2), (1, 5), (2, 5)]


# -- rows that are left out --------------------------------------------------------------------


def test_folds():
    """Folds divide the rows of all ranks, and there are as many as two parameters need."""
    codes = np.random.default_rng(0).integers(0, 3, 101)
    fold = stratified(codes, FOLDS, k=3, comm=ALONE)
    counts = [np.bincount(fold[codes == code], minlength=FOLDS) for code in range(3)]
    assert all(np.ptp(count) <= 1 for count in [*counts, np.sum(counts, axis=0)])
    assert [folds_to_leave_out(np.array(counts)) for counts in ([9, 9], [40_000, 5000], [30_000, 1000])] == [5, 1, 3]
    assert folds_to_leave_out(np.array([6000] * 10)) == 3


@pytest.mark.parametrize("kind", ["by the solver", "in memory", "row by row"])
def test_left_out_decisions(kind, tuned):
    """Decisions equal those of trainings without the fold, on the pair's rows; rows of bound 0 are ignored."""
    tuned(probability_rows=0 if kind == "by the solver" else 3000)
    if kind != "row by row":
        tuned(pairs_together=lambda *given: None)
    tuned(probability_tol=1e-9)
    X, y = drawn_clouds(90, k=3)
    C = np.where(np.arange(90) % 10, 2.0, 0.0)
    training = PartTraining(Kernel("gaussian", 0.4), Limits(1e-8), 1 << 20)
    found = left_out(Samples(X, {"code": y, "C": C}), 3, 2, training, np.array([1.0, 3.0, 1.0]))
    fold = np.asarray(stratified(y, FOLDS))
    expected = []
    for pair, (i, j) in enumerate(combinations(range(3), 2)):
        some = (C > 0) & ((y == i) | (y == j))
        D = np.full(90, np.nan)
        for held in (fold == 0, fold == 1):
            svc = SVC(C=2.0 * (3.0 if pair == 1 else 1.0), gamma=0.4, tol=1e-8).fit(X[some & ~held], y[some & ~held])
            D[some & held] = -svc.decision_function(X[some & held])
        there = np.concatenate([np.flatnonzero(~np.isnan(D) & (y == code)) for code in (i, j)])
        expected.append(LeftOutDecisions(D[there], y[there] == i, np.full(len(there), pair)))
    every = LeftOutDecisions.stacked(expected)
    near(found.decisions, every.decisions, 1e-5)
    np.testing.assert_array_equal(found.first, every.first)
    np.testing.assert_array_equal(found.problem, every.problem)
