"""The front door on ranks together: the same rows judge, and the answers are those of one process."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import near
from helpers.data import clouds, saddle, separate_clouds
from helpers.distributed import RANK, WORLD, R, by_one, even, refused_by_all
from sklearn.base import clone

from asygcd import AsyGCDSVC
from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.probability.calibrator import Calibrator
from cakernels import AutoKernelClassifier, AutoKernelRegressor
from cakernels.families import Blend, ClassBlend, blended, classified, outputs
from cakernels.search.candidates import Candidate
from cakernels.search.data import CLASSIFICATION, FOLDED, REGRESSION, Data, Split
from cakernels.search.scores import SCORES
from cakrr import BKRR2, DKRR, BKRR2Classifier, KRRModel, TwoLevelKRR
from casvm import DisSMOSVR

pytestmark = pytest.mark.mpi(min_size=1)
QUICK = {"max_time": None, "max_candidates": 1, "random_state": 0}


@pytest.mark.parametrize("n", [157, FOLDED + 3])
def test_the_same_rows_judge(n):
    y = np.random.default_rng(0).normal(size=n)
    comm, own = Communicator(WORLD), even(n)
    split = Split.of(Data.of(y[own, None], y[own], None, REGRESSION, comm), 5, comm)
    alone = Split.of(Data.of(y[:, None], y, None, REGRESSION, Communicator()), 5, Communicator())
    np.testing.assert_array_equal(split.fold, alone.fold[own])
    np.testing.assert_array_equal(split.order, alone.order[own])
    assert (split.folds, split.n_train, split.sizes()) == (alone.folds, alone.n_train, alone.sizes())


def test_regressor_of_one_process():
    X, y = saddle(101)
    model = AutoKernelRegressor(**QUICK, comm=WORLD).fit(X[even(101)], y[even(101)])
    alone = by_one(lambda: AutoKernelRegressor(**QUICK).fit(X, y))
    near(model.predict(X[even(101)]), alone.predict(X[even(101)]), 1e-7)
    assert [row["candidate"] for row in model.leaderboard_] == [row["candidate"] for row in alone.leaderboard_]
    near(model.best_score_, alone.best_score_, 1e-7)


@pytest.mark.parametrize(
    "model",
    [BKRR2(3, sigma=2.0, lam=1e-3, route="soft"), TwoLevelKRR(2, sigma=2.0, lam=1e-3, centers=20),
     DisSMOSVR(C=3.0, gamma=0.3), DKRR(sigma=2.0, lam=1e-3)],
    ids=["soft", "two levels", "dissmo", "dkrr"],
)  # fmt: skip
def test_explanations_of_one_process(model, everywhere):
    """Values of the ranks' rows are those of one process, also if parts lie on other ranks; they add up."""
    X, y = saddle(101)
    model.random_state = 0
    many = clone(model).set_params(comm=WORLD).fit(X[even(101)], y[even(101)])
    alone = by_one(lambda: clone(model).fit(X, y))
    found = many.explain(X[even(101)])
    near(found.values.sum(axis=1) + found.base, many.predict(X[even(101)]), 1e-12)
    near(found.values, alone.explain(X).values[even(101)], 5e-3 if isinstance(model, DisSMOSVR) else 1e-7)
    with pytest.raises(InputError, match="background"):
        many.explain(X[:2], background=X[: 1 + RANK % 2] if R > 1 else "none")


def test_explanations_by_a_model_on_every_rank():
    """The background is drawn from all ranks' rows; different groups are refused by all ranks."""
    X, y = saddle(101)
    model = AsyGCDSVC(gamma=0.3).fit(X, y > 0).model_
    mine, whole = model.explain(X[even(101)], comm=WORLD, interactions=True), model.explain(X, interactions=True)
    near(mine.values, whole.values[even(101)], 1e-12)
    near(mine.interactions, whole.interactions[even(101)], 1e-12)
    if R > 1:
        refused_by_all(lambda: model.explain(X, groups=[[0, 1]] if RANK else None, comm=WORLD), match="groups")


@pytest.mark.parametrize("part", [0, 40])
def test_svr_of_one_process(part, tuned):
    """One regression of all rows, by all ranks together; and parts, at least one per rank."""
    X, y = saddle(101)
    settings = {"kernel": "laplacian", "partitioner": "kmeans", "C": 1.0, "epsilon": 0.1, "tol": 1e-6}
    tuned(first_candidates=lambda *_: [Candidate("CASVR", settings, part)])
    model = AutoKernelRegressor(**QUICK, comm=WORLD).fit(X[even(101)], y[even(101)])
    alone = by_one(lambda: AutoKernelRegressor(**QUICK).fit(X, y))
    assert type(model.best_estimator_).__name__ == ("CASVR" if R == 1 or part else "DisSMOSVR")
    if not part or R <= 3:
        near(model.predict(X[even(101)]), alone.predict(X[even(101)]), 1e-5)


def test_classifier():
    X, y = separate_clouds(80)
    model = AutoKernelClassifier(**QUICK, comm=WORLD).fit(X[even(80)], y[even(80)])
    assert type(model.best_estimator_).__name__ == ("CASVC" if R == 1 else "DisSMOSVC")
    assert model.score(X[even(80)], y[even(80)]) > 0.95


def test_blend_on_ranks(folder):
    X, y = saddle(90)
    made = [BKRR2(P, sigma=1.0, random_state=0, comm=WORLD).fit(X[even(90)], y[even(90)]) for P in (5, 2)]
    blend = blended([one.model_ for one in made], np.array([0.75, 0.25]), WORLD)
    got = blend.predict(X[even(90)])
    near(got, 0.75 * made[0].predict(X[even(90)]) + 0.25 * made[1].predict(X[even(90)]), 0)
    path = folder / "blend.h5"
    blend.save(path)
    np.testing.assert_array_equal(Blend.load(path, WORLD).predict(X[even(90)]), got)
    near(Blend.load(path).predict(X[even(90)]), got, 1e-12)


@pytest.mark.parametrize("scoring", ["log_loss", "roc_auc", "f1"])
def test_scores_of_classes_on_ranks(scoring):
    """The same error as of one process, where some ranks have no rows."""
    rng = np.random.default_rng(0)
    y, P = rng.choice(["no", "yes"], 60), rng.dirichlet(np.ones(2), 60)
    predicted = P if SCORES[scoring].of_probabilities else np.where(P[:, 1] > 0.4, "yes", "no")
    for own in (even(60), slice(0, 60 if RANK == R - 1 else 0)):
        n = len(y[own])
        mine = Data(np.zeros((n, 1)), y[own], None, CLASSIFICATION, 60, np.array(["no", "yes"]))
        whole = Data(np.zeros((60, 1)), y, None, CLASSIFICATION, 60, np.array(["no", "yes"]))
        rated = SCORES[scoring].rated(mine, np.ones(n, bool), predicted[own], Communicator(WORLD))
        near(rated, SCORES[scoring].rated(whole, np.ones(60, bool), predicted, Communicator()), 1e-12)


def test_probabilities_and_class_blend_on_ranks(folder, tuned):
    settings = {"kernel": "gaussian", "partitioner": "kmeans", "gamma": 0.5, "C": 0.1, "tol": 1e-8}
    tuned(first_candidates=lambda *_: [Candidate("CASVC", settings, 0)])
    X, y = clouds(75, k=3, d=4)
    own = even(75)
    model = AutoKernelClassifier(**QUICK, scoring="log_loss", comm=WORLD).fit(X[own], y[own])
    alone = by_one(lambda: AutoKernelClassifier(**QUICK, scoring="log_loss").fit(X, y))
    near(model.predict_proba(X[own]), alone.predict_proba(X[own]), 1e-6)
    near(model.decision_function(X[own]), alone.decision_function(X[own]), 1e-6)
    near([model.best_score_, model.baseline_score_], [alone.best_score_, alone.baseline_score_], 1e-6)
    ridge = BKRR2Classifier(3, random_state=0, comm=WORLD).fit(X[own], y[own])
    codes, comm = np.searchsorted(model.classes_, y[own]), Communicator(WORLD)
    calibrator = Calibrator.of_outputs("isotonic", outputs(ridge.model_, X[own], WORLD), codes, comm)
    pair, shares = [model.best_estimator_.model_, ridge.model_], np.array([0.75, 0.25])
    blend = classified(pair, shares, [*model.model_.calibrators, calibrator], WORLD)
    P = blend.probabilities(X[own])
    near(P.sum(axis=1), np.ones(len(P)), 1e-12)
    blend.save(folder / "classes.h5")
    near(ClassBlend.load(folder / "classes.h5", WORLD).probabilities(X[own]), P, 1e-12)
    near(ClassBlend.load(folder / "classes.h5").probabilities(X[own]), P, 1e-9)


def test_intervals_of_one_process(folder):
    X, y = saddle(101)
    model = AutoKernelRegressor(**QUICK, calibrate=True, comm=WORLD).fit(X[even(101)], y[even(101)])
    alone = by_one(lambda: AutoKernelRegressor(**QUICK, calibrate=True).fit(X, y))
    ends = model.predict_interval(X[even(101)], 0.9)
    near(ends, alone.predict_interval(X[even(101)], 0.9), 1e-7)
    model.save(folder / "sure.h5")
    near(KRRModel.load(folder / "sure.h5").predict_interval(X[even(101)], 0.9), ends, 1e-9)


def test_a_rank_with_another_limit_is_refused_by_all():
    X, y = saddle(40)
    most = 1 + (RANK == R - 1)
    model = AutoKernelRegressor(max_time=None, max_candidates=most, comm=WORLD)
    if R > 1:
        refused_by_all(model.fit, X[even(40)], y[even(40)], match="max_candidates")
