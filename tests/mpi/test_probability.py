"""Probabilities of ranks together: those of one process."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import near
from helpers.data import drawn_clouds
from helpers.distributed import RANK, WORLD, R, by_one, even, labelled, refused_by_all, sent
from sklearn.metrics import log_loss

from cacore.comm import Communicator
from cacore.data.holdout import stratified
from cacore.metrics import class_scores, reliability
from cacore.probability.calibrator import Calibrator
from cacore.probability.left_out import LeftOutDecisions
from cakrr import BKRR2Classifier, DKRRClassifier
from casvm import CASVC, SVMModel, cpsvm, dcsvm, dissmo
from casvm.options import SVMOptions

pytestmark = pytest.mark.mpi(min_size=1)

N = 157
METHODS = {"cpsvm": cpsvm.METHOD, "dissmo": dissmo.METHOD, "dcsvm": dcsvm.METHOD}


@pytest.mark.parametrize("form", ["sigmoid", "isotonic"])
def test_calibrator_of_one_process(form):
    """Also where a rank has no decision."""
    rng = np.random.default_rng(0)
    f, problem = rng.normal(size=N), rng.integers(0, 3, N)
    first = rng.random(N) < 1 / (1 + np.exp(-2 * f))
    lo, hi = (RANK - 1) * N // max(1, R - 1), RANK * N // max(1, R - 1)
    own = slice(0, N) if R == 1 else slice(max(lo, 0), hi if RANK else 0)
    comm = Communicator(WORLD)
    got = Calibrator.fit(form, LeftOutDecisions(f[own], first[own], problem[own]), 3, comm)
    alone = Calibrator.fit(form, LeftOutDecisions(f, first, problem), 3, Communicator())
    D = np.tile(np.linspace(-3, 3, 50)[:, None], 3)
    near(got.first(D), alone.first(D), 1e-9)
    assert got.rows == N


def test_folds_and_scores_of_one_process(everywhere):
    rng = np.random.default_rng(1)
    codes, P, mine = rng.integers(0, 3, N), rng.dirichlet(np.ones(3), N), even(N)
    comm = Communicator(WORLD)
    np.testing.assert_array_equal(everywhere(stratified(codes[mine], 5, k=3, comm=comm)), stratified(codes, 5))
    got, alone = class_scores(codes[mine], P[mine], comm), class_scores(codes, P, Communicator())
    assert got == pytest.approx(alone)
    lines, serial = (reliability(*rows) for rows in ((codes[mine], P[mine], comm), (codes, P, Communicator())))
    for line, expected in zip(lines, serial, strict=True):
        assert line == pytest.approx(expected)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("name", METHODS)
def test_probabilities_of_one_process(name, k, everywhere, folder, tuned):
    """And those of the file, on any ranks."""
    tuned(probability_tol=1e-6)
    (X, y), (T, t) = drawn_clouds(N, k=k), drawn_clouds(41, 1, k)
    options = SVMOptions(
        partitions={"cpsvm": 5, "dcsvm": 4}.get(name), seed=2, gamma=0.4, tol=1e-6, probability="sigmoid"
    )
    model = METHODS[name](labelled(X, y, even(N)), options, WORLD).model
    P = everywhere(model.probabilities(T[even(41)]))
    near(P, by_one(METHODS[name], labelled(X, y), options).model.probabilities(T), 1e-9 if name == "cpsvm" else 1e-4)
    assert log_loss(t, P) < np.log(k)
    model.save(folder / "m.h5")
    near(everywhere(SVMModel.load(folder / "m.h5", WORLD).probabilities(T[even(41)])), P, 1e-12)


def test_parts_send_next_to_nothing():
    """A few numbers for each step of Newton's method."""
    X, y = drawn_clouds(N)

    def train(form):
        options = SVMOptions(partitions=R, gamma=0.4, probability=form)
        return sent(lambda comm: cpsvm.METHOD(labelled(X, y, even(N)), options, comm))

    plain, sure = train(None), train("sigmoid")
    assert sure["bytes"] - plain["bytes"] <= 2000 * R


@pytest.mark.parametrize("route", ["all", "soft"])
def test_routes(route, everywhere):
    (X, y), (T, _) = drawn_clouds(N, k=3), drawn_clouds(41, 1, 3)
    made = {"n_parts": 5, "partitioner": "kmeans", "route": route, "probability": True, "gamma": 0.4, "random_state": 0}
    mine = even(N)
    got = CASVC(**made, comm=WORLD).fit(X[mine], y[mine]).predict_proba(T[even(41)])
    near(everywhere(got), by_one(CASVC(**made).fit, X, y).predict_proba(T), 1e-9)


def test_a_model_without_them():
    X, y = drawn_clouds(N)
    model = CASVC(R, comm=WORLD).fit(X[even(N)], y[even(N)]).model_
    refused_by_all(model.probabilities, X[even(N)], match="the model has no probabilities")


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("cls", [BKRR2Classifier, DKRRClassifier])
def test_ridge_regression(cls, k, everywhere):
    (X, y), (T, _) = drawn_clouds(N, k=k), drawn_clouds(41, 1, k)
    given = {"sigma": 1.5, "lam": 1e-3, "probability": True, "random_state": 0}
    given |= {"n_parts": 5} if cls is BKRR2Classifier else {}
    mine = even(N)
    got = everywhere(cls(**given, comm=WORLD).fit(X[mine], y[mine]).predict_proba(T[even(41)]))
    near(got, by_one(cls(**given).fit, X, y).predict_proba(T), 1e-7)
