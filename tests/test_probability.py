"""Probabilities of classes: against scikit-learn's sigmoid and isotonic regression, and LIBSVM's own iteration."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from helpers.checks import near, refusal
from helpers.commands import read, reported, run
from helpers.data import clouds, drawn_clouds, split_rows
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.calibration import _SigmoidCalibration
from sklearn.exceptions import NotFittedError
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import brier_score_loss, log_loss
from sklearn.svm import SVC

from asygcd import AsyGCDModel, AsyGCDSVC
from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.metrics.probabilistic import class_scores, reliability
from cacore.probability import isotonic, platt
from cacore.probability.calibrator import Calibrator
from cacore.probability.coupling import coupled
from cacore.probability.left_out import FOLDS, LeftOut, folds_to_leave_out, global_folds, pairs_of
from casvm import (
    CASVC,
    DCSVC,
    SMOSVC,
    CascadeSVC,
    DCFilterSVC,
    DisSMOSVC,
    SMONuSVC,
    SVMModel,
    export_libsvm,
    import_libsvm,
)
from casvm.methods import left_out as in_part
from casvm.methods.left_out import PartTraining, left_out
from casvm.model.libsvm import _calibrator
from casvm.model.libsvm_text import Header

ALONE = Communicator()
MAKERS = {
    "smo": SMOSVC, "nu": lambda **more: SMONuSVC(nu=0.3, **more),
    "parts": lambda **more: CASVC(3, partitioner="kmeans", random_state=0, **more),
    "all": lambda **more: CASVC(3, route="all", random_state=0, **more),
    "soft": lambda **more: CASVC(3, partitioner="fcfs", route="soft", random_state=0, **more),
    "parts of asygcd": lambda **more: CASVC(2, solver="asygcd", random_state=0, **more),
    "cascade": lambda **more: CascadeSVC(3, random_state=0, **more),
    "dcsvm": lambda **more: DCSVC(2, random_state=0, **more),
    "dcfilter": lambda **more: DCFilterSVC(2, random_state=0, **more), "dissmo": DisSMOSVC,
    "asygcd": lambda **more: AsyGCDSVC(threads=1, **more),
    "asygcd pairs": lambda **more: AsyGCDSVC(threads=1, multi_class="ovo", **more),
}  # fmt: skip


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
    found = LeftOut.stacked([LeftOut(f, first, np.full(len(f), i)) for i, (f, first) in enumerate(every)])
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
    found = LeftOut(f, y.astype(bool), np.zeros(60, np.int64))
    A, B = platt.fit(found, 2, ALONE, known)

    def entropy(x):
        p, agreed = (1 / (1 + np.exp(a * f + b)) for a, b in (x, (known[0][0], known[1][0])))
        both = ((1, y), (100 / 60, agreed))
        return -sum(one * (t * np.log(p) + (1 - t) * np.log(1 - p)).sum() for one, t in both)

    near(np.array([A[0], B[0]]), minimize(entropy, (0, 0), tol=1e-12).x, 1e-4)
    near(np.array([A[1], B[1]]), np.array([-2.0, 0.1]), 1e-15)
    alike = LeftOut(np.full(5, 0.7), np.ones(5, bool), np.zeros(5, np.int64))
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
        A, B = platt.fit(LeftOut(np.full(10, value), np.arange(10) < 3, np.zeros(10, np.int64)), 1, ALONE)
        p = 1 / (1 + np.exp(A[0] * value + B[0]))
        assert p == pytest.approx((3 * 4 / 5 + 7 / 9) / 10)  # the mean of the targets


def test_isotonic_regression_is_that_of_scikit_learn():
    f, first = decisions(800, 1.0)
    other = decisions(60, -0.5, 1)[0], np.ones(60, np.bool_)
    found = LeftOut.stacked([LeftOut(f, first, np.zeros(800, int)), LeftOut(*other, np.full(60, 2))])
    made, x = isotonic.fit(found, 3, ALONE), isotonic.rounded(f)
    assert np.abs(x / f - 1).max() < 2**-9
    expected, t = IsotonicRegression(out_of_bounds="clip").fit(x, first), np.linspace(-9, 9, 500)
    p = np.clip(expected.y_thresholds_, 1 / 802, 801 / 802)
    near(made.at(t, 0), np.interp(t, expected.X_thresholds_, p), 1e-12)
    np.testing.assert_array_equal(made.at(t, 1), 0.5)  # nothing is known
    np.testing.assert_allclose(made.at(t, 2), 61 / 62)


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
    """Of all ranks' rows; as many as two numbers need."""
    codes = np.random.default_rng(0).integers(0, 3, 101)
    fold = global_folds(codes, 3, ALONE)
    counts = [np.bincount(fold[codes == code], minlength=FOLDS) for code in range(3)]
    assert all(np.ptp(count) <= 1 for count in [*counts, np.sum(counts, axis=0)])
    assert [folds_to_leave_out(np.array(counts)) for counts in ([9, 9], [40_000, 5000], [30_000, 1000])] == [5, 1, 3]
    assert folds_to_leave_out(np.array([6000] * 10)) == 3


@pytest.mark.parametrize("kind", ["by the solver", "in memory", "pair by pair"])
def test_left_out_decisions(kind, monkeypatch):
    """Those of a training without the fold, of the pair's rows; rows of bound 0 are absent."""
    monkeypatch.setattr(in_part, "MOST", 0 if kind == "by the solver" else 3000)
    if kind == "pair by pair":
        monkeypatch.setattr(in_part.Whole, "of", lambda *given: None)
    monkeypatch.setattr(in_part, "LOOSE", 1e-9)
    X, y = drawn_clouds(90, k=3)
    C = np.where(np.arange(90) % 10, 2.0, 0.0)
    training = PartTraining(Kernel("gaussian", 0.4), Limits(1e-8), 1 << 20)
    found = left_out(Samples(X, {"code": y, "C": C}), 3, 2, training, np.array([1.0, 3.0, 1.0]))
    fold = np.asarray(in_part.stratified(y, FOLDS))
    expected = []
    for pair, (i, j) in enumerate(combinations(range(3), 2)):
        some = (C > 0) & ((y == i) | (y == j))
        D = np.full(90, np.nan)
        for held in (fold == 0, fold == 1):
            svc = SVC(C=2.0 * (3.0 if pair == 1 else 1.0), gamma=0.4, tol=1e-8).fit(X[some & ~held], y[some & ~held])
            D[some & held] = -svc.decision_function(X[some & held])
        there = np.concatenate([np.flatnonzero(~np.isnan(D) & (y == code)) for code in (i, j)])
        expected.append(LeftOut(D[there], y[there] == i, np.full(len(there), pair)))
    every = LeftOut.stacked(expected)
    near(found.decisions, every.decisions, 1e-5)
    np.testing.assert_array_equal(found.first, every.first)
    np.testing.assert_array_equal(found.problem, every.problem)


# -- estimators --------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("name", MAKERS)
def test_probabilities(name, k, tmp_path):
    """Better than knowing how many rows each class has; in the order of the classes; the same from a file."""
    (X, y), (T, t) = drawn_clouds(k=k), drawn_clouds(300, 1, k)
    names = np.array(["c", "a", "b"])
    model = MAKERS[name](probability=True).fit(X, names[y])
    P = model.predict_proba(T)
    assert P.shape == (300, k)
    near(P.sum(axis=1), 1, 1e-12)
    blind = np.bincount(np.searchsorted(model.classes_, names[y])) / len(y)
    assert log_loss(names[t], P) < 0.85 * log_loss(names[t], np.tile(blind, (300, 1)))
    near(np.exp(model.predict_log_proba(T)), P, 1e-14)
    assert (np.asarray(model.model_.classes)[P.argmax(axis=1)] == model.predict(T)).mean() > 0.9
    model.model_.save(tmp_path / "m.h5")
    loaded = (AsyGCDModel if "asygcd" in name and "parts" not in name else SVMModel).load(tmp_path / "m.h5")
    near(loaded.probabilities(T), P, 1e-12)
    assert loaded.calibrator.rows == model.model_.calibrator.rows
    count = k if name == "asygcd" and k > 2 else k * (k - 1) // 2
    assert model.probA_.shape == model.probB_.shape == (count,)
    assert (model.probA_ < 0).all()


def test_exact_ones_are_those_of_svc():
    """Of the same decisions; scikit-learn's folds are others, and so its numbers are a little different."""
    (X, y), (T, t) = drawn_clouds(400), drawn_clouds(600, 1)
    ours = SMOSVC(probability=True).fit(X, y)
    expected = log_loss(t, coupled(1 - _SigmoidCalibration().fit(*_left_out(X, y)).predict(
        ours.decision_function(T))[:, None], 2))  # fmt: skip
    assert log_loss(t, ours.predict_proba(T)) == pytest.approx(expected, rel=5e-3)
    nu = SMONuSVC(nu=0.4, probability=True).fit(X, y)
    C = nu.model_.C
    same = SMOSVC(C=C, probability=True).fit(X, y)
    near(nu.predict_proba(T), same.predict_proba(T), 0.01)
    K, KT = (np.exp(-ours.model_.kernel.gamma * ((A[:, None] - X) ** 2).sum(-1)) for A in (X, T))
    given = SMOSVC(kernel="precomputed", probability=True).fit(K, y)
    near(given.predict_proba(KT), ours.predict_proba(T), 0.01)


def _left_out(X, y):
    D = np.empty(len(y))
    for f in range(FOLDS):
        held = np.asarray(in_part.stratified(y, FOLDS)) == f
        D[held] = SVC().fit(X[~held], y[~held]).decision_function(X[held])
    return D, y


def test_isotonic_ones(tmp_path):
    (X, y), (T, t) = drawn_clouds(400, k=3), drawn_clouds(300, 1, 3)
    model = CASVC(2, partitioner="kmeans", probability="isotonic", random_state=0).fit(X, y)
    P = model.predict_proba(T)
    assert log_loss(t, P) < 1.1 * log_loss(t, clone(model).set_params(probability=True).fit(X, y).predict_proba(T))
    model.model_.save(tmp_path / "m.h5")
    near(SVMModel.load(tmp_path / "m.h5").probabilities(T), P, 1e-12)
    assert not hasattr(model, "probA_")
    assert "LIBSVM's format has no isotonic probabilities" in refusal(export_libsvm, model.model_, tmp_path / "l")


def test_without_probabilities():
    """As scikit-learn has it."""
    X, y = clouds()
    model = SMOSVC().fit(X, y)
    assert not hasattr(model, "predict_proba")
    with pytest.raises(AttributeError, match="has no attribute 'predict_proba'"):
        model.predict_proba(X)
    model.probability = True
    with pytest.raises(NotFittedError, match="when fitted with probability=False"):
        model.predict_proba(X)
    message = refusal(model.model_.probabilities, X)
    assert message == "the model has no probabilities: train it with probability=True, --probability"
    for value in ("platt", 2, 0.5, ["sigmoid"]):
        assert "must be one of True, False, sigmoid, isotonic" in refusal(CASVC(probability=value).fit, X, y)


def test_a_class_that_a_part_does_not_have():
    """Gets what a row more of each class would be of the part's rows; parts of one class have no sigmoid."""
    y = np.arange(60) % 3
    X = np.random.default_rng(0).normal(size=(60, 3)) + 100.0 * np.eye(3)[y]
    model = CASVC(3, partitioner="kmeans", probability=True, random_state=2)
    P = model.fit(X, y).predict_proba(X)
    assert model.sizes_.tolist() == [20, 20, 20]
    near(P, (1 + 20 * np.eye(3)[y]) / 23, 1e-12)
    cloud, y = y, np.where(y == 0, np.arange(60) % 2, y)  # a cloud has rows of two classes
    P = model.fit(X, y).predict_proba(X)
    near(P[cloud == 0, 2], 1 / 23, 1e-12)
    near(P[cloud == 2], np.tile([1 / 23, 1 / 23, 21 / 23], (20, 1)), 1e-12)


def test_one_row_of_a_class():
    """It is never left out while another one is learned from; the other pairs know nothing of that."""
    X, y = clouds(60, k=3)
    keep = (y < 2) | (np.arange(60) == 5)
    P = SMOSVC(probability=True).fit(X[keep], y[keep]).predict_proba(X)
    near(P.sum(axis=1), 1, 1e-12)
    assert P[:, 2].mean() < 0.3


# -- LIBSVM's files ----------------------------------------------------------------------------


@pytest.mark.parametrize("k", [2, 4])
def test_libsvm_files(k, tmp_path):
    X, y = drawn_clouds(k=k)
    model = SMOSVC(probability=True).fit(X, y)
    export_libsvm(model.model_, tmp_path / "l.model")
    lines = (tmp_path / "l.model").read_text().splitlines()
    names = [line.split()[0] for line in lines[: lines.index("SV")]]
    assert names[-4:] == ["label", "probA", "probB", "nr_sv"]
    near(import_libsvm(tmp_path / "l.model").probabilities(X), model.predict_proba(X), 1e-12)
    short = [" ".join(line.split()[:-1]) if line.startswith("probB") else line for line in lines]
    (tmp_path / "bad.model").write_text("\n".join(short))
    assert "probA and probB need" in refusal(import_libsvm, tmp_path / "bad.model")


def test_libsvm_order_of_classes():
    """A pair that stands the other way round in the file has the decision with the other sign."""
    labels, A, B = np.array([3, 1, 2]), np.array([-1.0, -2.0, -3.0]), np.array([0.1, 0.2, 0.3])
    header = Header("c_svc", "rbf", 3, 1.0, 0.0, np.zeros(3), labels, np.ones(3, int), 3, A, B)
    made = _calibrator(header)
    for old, (i, j) in enumerate(combinations(range(3), 2)):
        first, second = sorted((labels[i], labels[j]))
        new = list(combinations((1, 2, 3), 2)).index((first, second))
        sign = 1.0 if labels[i] < labels[j] else -1.0
        p = made.first(np.array([[sign * 0.7]]), np.array([new]))[0, 0]
        expected = 1 / (1 + np.exp(A[old] * 0.7 + B[old]))
        assert p == pytest.approx(expected if sign > 0 else 1 - expected)


# -- commands and reports ----------------------------------------------------------------------


def test_scores():
    rng = np.random.default_rng(0)
    for k in (2, 3):
        P, codes = rng.dirichlet(np.ones(k), 50), rng.integers(0, k, 50)
        found = class_scores(codes, P, ALONE)
        assert found["log_loss"] == pytest.approx(log_loss(codes, P, labels=range(k)))
        hot = np.eye(k)[codes]
        brier = brier_score_loss(codes, P[:, 1]) if k == 2 else np.square(P - hot).sum(axis=1).mean()
        assert found["brier"] == pytest.approx(brier)
        lines = reliability(codes, P, ALONE)
        assert sum(line["rows"] for line in lines) == 50
        assert all(0 <= line["observed"] <= 1 for line in lines)
    sure = np.tile([0.02, 0.98], (10, 1))
    (line,) = reliability(np.r_[np.ones(9, int), 0], sure, ALONE)
    assert line == {"rows": 10, "predicted": pytest.approx(0.98), "observed": 0.9}
    unknown = class_scores(np.array([-1]), np.array([[0.5, 0.5]]), ALONE)
    assert unknown["log_loss"] == pytest.approx(-np.log(np.finfo(float).eps))


@pytest.mark.parametrize("program", ["casvm.cpsvm", "casvm.dissmo", "asygcd"])
def test_commands(program, inputs, tmp_path):
    """A column a class, and scores that are scikit-learn's; on three classes."""
    words = [inputs / "three.h5", "--probability", "--model", tmp_path / "m.h5"]
    plot = [] if program == "asygcd" else ["--plot", tmp_path / "p.png", "--C", "1"]
    made = reported(program, [*words, *plot], tmp_path)
    assert set(made["probability"]) == {"form", "left_out", "log_loss", "brier", "reliability"}
    assert (tmp_path / "p.png").exists() == bool(plot)
    again = [tmp_path / "m.h5", inputs / "three.h5", "--probability", "-o", tmp_path / "p.csv"]
    package = program.split(".")[0]
    told = reported(f"{package}.predict", again, tmp_path)
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "prediction,probability -1,probability 1,probability 4"
    P = np.array([line.split(",")[1:] for line in lines[1:]], float)
    expected = log_loss(split_rows("test", 3)[1], P)
    for report in (made, told):
        assert report["metrics"]["log_loss"] == pytest.approx(expected)
        assert report["metrics"]["brier"] == report["probability"]["brier"]


def test_commands_that_are_refused(inputs, tmp_path, capsys):
    """One line, before anything is written."""
    model = inputs / "svm.h5"
    for program, words, match in (
        ("casvm.predict", [model, inputs / "good.h5", "--probability"], "the model has no probabilities"),
        ("casvm.casvm", [inputs / "good.h5", "--probability", "isotonic", "--libsvm", tmp_path / "l"], "no isotonic"),
    ):
        with pytest.raises(SystemExit) as caught:
            run(program, words)
        assert caught.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert match in line
    reported("casvm.casvm", [inputs / "train.h5", "--probability", "isotonic"], tmp_path)
    assert read(tmp_path / "r.json")["probability"]["form"] == "isotonic"


def test_damaged_calibrators():
    for attributes, arrays in (
        ({"form": "platt", "rows": 1}, {}), ({"form": "sigmoid", "rows": -1}, {}), ({"form": "sigmoid", "rows": 1}, {}),
        (None, {"sigmoid_A": np.zeros(1)}),
        ({"form": "isotonic", "rows": 1}, {"isotonic_starts": np.array([5]), "isotonic_x": np.zeros(2),
                                           "isotonic_p": np.zeros(2)}),
        ({"form": "sigmoid", "rows": 1}, {"sigmoid_A": np.array([np.nan]), "sigmoid_B": np.zeros(1)}),
    ):  # fmt: skip
        with pytest.raises(InputError):
            Calibrator.stored({"probability": attributes}, arrays)
