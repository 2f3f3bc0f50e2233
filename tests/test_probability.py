"""Probabilities of classes: estimators, LIBSVM's files, commands and reports."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from helpers.checks import near, refusal
from helpers.commands import read, reported, run
from helpers.data import clouds, drawn_clouds, split_rows
from sklearn.base import clone
from sklearn.calibration import _SigmoidCalibration
from sklearn.exceptions import NotFittedError
from sklearn.metrics import brier_score_loss, log_loss
from sklearn.svm import SVC

from asygcd import AsyGCDModel, AsyGCDSVC
from cacore.comm import Communicator
from cacore.data.holdout import FOLDS, stratified
from cacore.errors import InputError
from cacore.metrics import class_scores, reliability
from cacore.probability.calibrator import Calibrator, coupled
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
from casvm.model.libsvm_files import Header, _calibrator

ALONE = Communicator()
MAKERS = {
    "smo": SMOSVC, "nu": lambda **more: SMONuSVC(nu=0.3, **more),
    "parts": lambda **more: CASVC(3, partitioner="kmeans", random_state=0, **more),
    "all": lambda **more: CASVC(3, partitioner="random", random_state=0, **more),
    "soft": lambda **more: CASVC(3, partitioner="fcfs", route="soft", random_state=0, **more),
    "parts of asygcd": lambda **more: CASVC(2, solver="asygcd", random_state=0, **more),
    "cascade": lambda **more: CascadeSVC(3, random_state=0, **more),
    "dcsvm": lambda **more: DCSVC(2, random_state=0, **more),
    "dcfilter": lambda **more: DCFilterSVC(2, random_state=0, **more), "dissmo": DisSMOSVC,
    "asygcd": lambda **more: AsyGCDSVC(threads=1, **more),
    "asygcd pairs": lambda **more: AsyGCDSVC(threads=1, multi_class="ovo", **more),
}  # fmt: skip


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
    """The decisions are the same; scikit-learn's folds differ, so its parameters differ slightly."""
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
        held = np.asarray(stratified(y, FOLDS)) == f
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
    """Without `probability`, there are no probabilities, as in scikit-learn."""
    X, y = clouds()
    model = SMOSVC().fit(X, y)
    for name in ("predict_proba", "predict_log_proba"):
        assert not hasattr(model, name)
        with pytest.raises(AttributeError, match=f"has no attribute '{name}', .*: fit with probability=True"):
            getattr(model, name)
    model.probability = True
    with pytest.raises(NotFittedError, match="fit with probability=True"):
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
