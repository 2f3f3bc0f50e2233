"""Sigma and lambda chosen over folds, or by each part for itself; against scikit-learn, fold by fold."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from helpers.checks import close, near, refusal, same_content
from sklearn.base import clone
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV, PredefinedSplit

from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.shuffle import Shuffle
from cacore.io.checkpoint import Checkpoint
from cakrr import BKRR, BKRR2, DCKRR, DKRR, KKRR2, BKRR2Classifier, KRRModel, TwoLevelKRR
from cakrr.bkrr2 import bkrr2
from cakrr.bkrr3 import bkrr3
from cakrr.dkrr import dkrr
from cakrr.grid_search import fold_first
from cakrr.options import RidgeOptions
from cakrr.twolevel import twolevel
from partition.algorithms import divide
from partition.redistribute import _permuted, assign_owners, hand_out

SIGMAS, LAMS = (0.5, 1.0, 2.0), (1e-4, 1e-2)


def rows(n=120, seed=0):
    X = np.random.default_rng(seed).normal(size=(n, 3))
    return X, np.sin(2 * X[:, 0]) * X[:, 1] + 0.1 * np.random.default_rng(seed + 9).normal(size=n)


def in_fold(n, folds, seed):
    """The fold of each row: a run of the shuffled order."""
    return Shuffle(n, seed).position(np.arange(n)) * folds // n


def by_sklearn(X, y, fold_of, lam_rows):
    """Mean squared error of each (sigma, lambda), all folds' rows alike, of one model; y is centred as ours."""
    X, y = (X - X.mean(axis=0)) / X.std(axis=0), y - y.mean()
    grid = {"gamma": [1 / (2 * s * s) for s in SIGMAS]}
    out = np.zeros((len(SIGMAS), len(LAMS)))
    for ell, lam in enumerate(LAMS):
        for f in np.unique(fold_of):
            learn = fold_of != f
            for s, gamma in enumerate(grid["gamma"]):
                model = KernelRidge(alpha=lam * lam_rows(learn), kernel="rbf", gamma=gamma).fit(X[learn], y[learn])
                out[s, ell] += np.square(model.predict(X[~learn]) - y[~learn]).sum() / len(y)
    return out


# -- folds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folds", [2, 3, 7])
def test_every_row_judges_once(folds):
    comm, n = Communicator(), 53
    X = np.random.default_rng(0).normal(size=(n, 2))
    division = divide("kbalance", 4, X, comm, 0)
    parts = hand_out(Samples(X, {"y": np.arange(float(n))}), division, assign_owners(division.sizes, 1), 3, comm)
    seen = []
    for number in range(folds):
        mine, held = fold_first(parts, number, folds)
        assert sorted(mine["y"]) == sorted(parts["y"])
        for (part, r), (same, q) in zip(mine, parts, strict=True):
            assert (part, r) == (same, q)
            assert set(mine["y"][r]) == set(parts["y"][r])
            count = held[r].sum()
            assert held[r][:count].all()
            assert count < r.stop - r.start
        np.testing.assert_array_equal(in_fold(n, folds, 3)[mine["y"][held].astype(int)], number)
        np.testing.assert_array_equal(X[mine["y"].astype(int)], mine.X)
        seen += mine["y"][held].tolist()
    assert sorted(seen) == list(range(n))


@pytest.mark.parametrize("kernel_rows", [120, 121])
def test_one_part_is_cross_validation_by_scikit_learn(kernel_rows):
    """Each setting's error over five folds, and the choice, are GridSearchCV's with the same folds."""
    X, y = rows(kernel_rows)
    options = RidgeOptions(partitions=1, sigma=SIGMAS, lam=LAMS, cv=5, seed=4)
    fitted = bkrr2(Dataset(X.copy(), y), options)
    fold_of = in_fold(len(y), 5, 4)
    ours = np.array([row["validation_mse"] for row in fitted.grid]).reshape(len(SIGMAS), len(LAMS))
    close(ours, by_sklearn(X, y, fold_of, np.count_nonzero), 1e-7)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    gammas = [1 / (2 * s * s) for s in SIGMAS]
    search = GridSearchCV(
        KernelRidge(kernel="rbf", alpha=0.01 * 96), {"gamma": gammas}, cv=PredefinedSplit(fold_of),
        scoring="neg_mean_squared_error",
    ).fit(Z, y - y.mean())  # fmt: skip
    assert SIGMAS[int(np.argmin(ours[:, 1]))] == pytest.approx((2 * search.best_params_["gamma"]) ** -0.5)


@pytest.mark.parametrize("make", [BKRR2, KKRR2, DCKRR, BKRR])
def test_methods(make):
    (X, y), (T, t) = rows(200), rows(100, 1)
    model = make(4, sigma=SIGMAS, lam=LAMS, cv=3, random_state=0).fit(X, y)
    fixed = make(4, sigma=model.sigma_, lam=model.lam_, random_state=0).fit(X, y)
    np.testing.assert_array_equal(model.predict(T), fixed.predict(T))
    assert len(model.grid_) == 6
    soft = make(4, sigma=SIGMAS, lam=LAMS, cv=3, route="soft", random_state=0).fit(X, y)
    assert soft.params_["soft_k"] >= 1
    assert soft.score(T, t) > 0.6


def test_with_a_metric_classes_and_weights():
    X, y = rows(200)
    learned = BKRR2(3, sigma=SIGMAS, cv=3, metric="diagonal", metric_rounds=2, scaling="auto", random_state=0).fit(X, y)
    assert len(learned.metric_errors_) >= 2
    assert learned.score(X, y) > 0.9
    classes = BKRR2Classifier(3, sigma=SIGMAS, cv=3, per_part=True, random_state=0).fit(X, y > 0)
    assert classes.score(X, y > 0) > 0.85
    twice = BKRR2(1, sigma=SIGMAS, lam=LAMS, cv=4, random_state=0)
    weighted = clone(twice).fit(X, y, sample_weight=np.full(200, 2.0))
    assert [row["validation_mse"] for row in weighted.grid_] == pytest.approx(
        [row["validation_mse"] for row in clone(twice).fit(X, y).grid_], rel=1e-9
    )


# -- each part for itself ------------------------------------------------------------------------------------


def halves(n=240, seed=0):
    """A target that is fast on one side and slow on the other."""
    X = np.random.default_rng(seed).uniform(-1, 1, size=(n, 1))
    X += np.where(X > 0, 3.0, -3.0)
    return X, np.where(X[:, 0] > 0, np.sin(25 * X[:, 0]), X[:, 0])


@pytest.mark.parametrize("select", [{}, {"cv": 4}, {"select": "loo"}, {"route": "soft"}])
def test_parts_choose(select, tmp_path):
    (X, y), (T, t) = halves(), halves(200, 1)
    grid = {"sigma": [0.02, 0.1, 1.0], "lam": [1e-7, 1e-5], "random_state": 0, **select}
    model = KKRR2(2, **grid, per_part=True).fit(X, y)
    fast, slow = (model.centers_[:, 0] > 0).argmax(), (model.centers_[:, 0] < 0).argmax()
    assert model.sigma_[fast] < model.sigma_[slow]
    assert model.sigma_.shape == model.lam_.shape == (2,)
    assert np.mean((model.predict(T) - t) ** 2) <= 1.01 * np.mean((KKRR2(2, **grid).fit(X, y).predict(T) - t) ** 2)
    model.model_.save(tmp_path / "m.h5")
    loaded = KRRModel.load(tmp_path / "m.h5")
    np.testing.assert_array_equal(loaded.sigmas, model.sigma_)
    np.testing.assert_array_equal(loaded.predict(T), model.predict(T))


def test_part_choice_equals_separate_fit():
    """By leave-one-out errors, which need no other rows: the pair that the part's rows alone choose."""
    X, y = halves()
    model = KKRR2(2, sigma=SIGMAS, lam=LAMS, select="loo", per_part=True, random_state=0).fit(X, y)
    Z = (X - X.mean()) / X.std()
    for part, center in enumerate(model.centers_[:, 0]):
        mine = (Z[:, 0] > 0) == (center > 0)
        errors = {}
        for sigma in SIGMAS:
            for lam in LAMS:
                K = np.exp(-np.square(Z[mine] - Z[mine].T) / (2 * sigma**2))
                inverse = np.linalg.inv(K + lam * mine.sum() * np.eye(mine.sum()))
                errors[sigma, lam] = np.mean(np.square(inverse @ (y[mine] - y.mean()) / np.diag(inverse)))
        assert (model.sigma_[part], model.lam_[part]) == min(errors, key=errors.get)


@pytest.mark.parametrize("select", [{}, {"cv": 4}, {"select": "loo"}])
def test_per_part_choice_of_one_part_equals_global_choice(select):
    """It is compared over the rounds of a metric: one part's own choice is the choice of all."""
    X, y = rows()
    given = {"sigma": SIGMAS, "lam": LAMS, "metric": "full", "metric_rounds": 1, "random_state": 0, **select}
    own, common = (BKRR2(1, **given, per_part=one).fit(X, y) for one in (True, False))
    close(own.metric_errors_, common.metric_errors_, 1e-9)


def small_and_large(n=120, seed=0):
    """Two clusters of one feature, in which tanh(gamma x z) is positive definite for a small gamma, or a large one."""
    rng = np.random.default_rng(seed)
    X = np.where(np.arange(n) % 2, rng.uniform(-0.5, 0.5, n), rng.uniform(2.5, 4.5, n))[:, None]
    return X, 1.0 + 0.1 * X[:, 0]


@pytest.mark.parametrize("select", [{}, {"cv": 3}, {"select": "loo"}, {"route": "soft"}])
def test_no_pair_needs_to_suit_all_parts(select):
    """Each cluster has one sigma at which it can be solved, and not the other's."""
    X, y = small_and_large()
    given = {"kernel": "sigmoid", "coef0": 0.0, "sigma": [0.5**0.5, 50**0.5], "lam": 1e-5, "standardize": False}
    maker = partial(KKRR2, 2, **given, random_state=0, **select)
    assert "no pair of the grid could be solved" in refusal(maker().fit, X, y)
    with pytest.warns(UserWarning, match="left out, K"):
        model = maker(per_part=True).fit(X, y)
    small, large = np.argsort(model.centers_[:, 0])
    assert (model.sigma_[small], model.sigma_[large]) == (50**0.5, 0.5**0.5)
    assert all(row.get("loo_mse", row["validation_mse"]) is None for row in model.grid_)
    for part, sigma in enumerate(model.sigma_):
        mine = np.argmin(np.abs(X - model.centers_.T), axis=1) == part
        K = np.tanh(X[mine] @ X[mine].T / (2 * sigma**2))
        alpha = np.linalg.solve(K + 1e-5 * mine.sum() * np.eye(mine.sum()), y[mine] - y.mean())
        if not select.get("route"):
            near(model.predict(X[mine]), y.mean() + K @ alpha, 1e-8)
    assert "no pair of the grid could be solved" in refusal(maker(per_part=True, sigma=[50**0.5, 49**0.5]).fit, X, y)


class Bar:
    """A progress bar that records its calls; appends itself to `bars`."""

    def __init__(self, bars, label, total):
        bars.append(self)
        self.first = self.label = label
        self.total, self.done = total, 0

    def __call__(self, steps=1, label=None, total=None):
        self.done, self.label = self.done + steps, label or self.label


@pytest.mark.parametrize("select", [{"cv": 3}, {"select": "loo"}])
def test_progress(select, tmp_path):
    """All steps of all folds are told once, also of parts that a checkpoint has, and the last best is the choice."""
    X, y = rows(90)
    given = {"partitions": 2, "sigma": SIGMAS, "lam": LAMS, "seed": 1, "checkpoint": Checkpoint(tmp_path), **select}
    for _ in range(2):
        bars = []
        begin = partial(Bar, bars)
        fitted = bkrr2(Dataset(X.copy(), y), RidgeOptions(**given, progress=begin))
        assert [bar.first for bar in bars] == ["choosing sigma and lambda", "training"]
        assert all(bar.done == bar.total > 0 for bar in bars)
        best = f"sigma {fitted.model.sigma:.3g} lambda {fitted.model.lam:.3g}"
        assert bars[0].label == f"choosing sigma and lambda: best of 2 of 2 parts {best}"


# -- "auto" ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [BKRR2, DKRR, TwoLevelKRR])
def test_auto_is_the_grid_of_the_command(make):
    X, y = rows(100)
    model = make(sigma="auto", lam="auto", random_state=0).fit(X, y)
    pairs = {(row["sigma"], row["lambda"]) for row in model.grid_}
    lams = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e3} if make is TwoLevelKRR else {1e-7, 1e-6, 1e-5, 1e-4, 1e-3}
    assert {lam for _, lam in pairs} == lams
    assert len({sigma for sigma, _ in pairs}) == (4 if make is TwoLevelKRR else 5)


# -- checkpoints, and what is refused ---------------------------------------------------------------------------


def test_resumed_to_the_same_bits(tmp_path):
    X, y = rows(90)
    options = RidgeOptions(partitions=2, sigma=SIGMAS, lam=LAMS, cv=3, per_part=True, route="soft", seed=1)
    whole = bkrr2(Dataset(X.copy(), y), options)
    kept = replace(options, checkpoint=Checkpoint(tmp_path / "kept"))
    same_content(bkrr2(Dataset(X.copy(), y), kept).model, whole.model)
    pieces = sorted(path for path in (tmp_path / "kept").rglob("*") if "fold-1" in path.name)
    assert pieces
    for path in pieces:
        path.unlink()
    same_content(bkrr2(Dataset(X.copy(), y), kept).model, whole.model)
    assert "cv was 3 there and is 4 here" in refusal(bkrr2, Dataset(X, y), replace(kept, cv=4))


X4, Y4 = rows(40)
BAD = {
    "one fold": (BKRR2(cv=1, lam=LAMS), "cv = 1: it must be a whole number"),
    "more folds than rows": (BKRR2(1, cv=41, lam=LAMS), "cv = 41: there are only 40 rows; ask for fewer folds"),
    "leave-one-out": (BKRR2(cv=5, select="loo", lam=LAMS), "select loo already leaves out every row"),
    "kernels": (BKRR2(per_part=True, kernel="auto"), "kernel auto chooses one kernel for all parts; name"),
    "divisions": (BKRR2(per_part=True, n_divisions=2), "do not apply to another division"),
    "a word": (BKRR2(sigma="automatic"), "sigma = 'automatic': a number or a list of numbers is needed"),
}


@pytest.mark.parametrize("what", BAD)
def test_refused(what):
    estimator, message = BAD[what]
    assert message in refusal(estimator.fit, X4, Y4)


@pytest.mark.parametrize("method", [twolevel, dkrr])
@pytest.mark.parametrize("given", [{"cv": 3}, {"per_part": True}])
def test_methods_with_a_model_of_all_rows(method, given):
    message = refusal(method, Dataset(X4, Y4), RidgeOptions(**given))
    assert "of all rows, so only one held-out share; leave it out" in message


def test_oracles_are_judged_by_test_rows():
    message = refusal(bkrr3, Dataset(X4, Y4), RidgeOptions(partitions=2, cv=3))
    assert "the settings are compared on the test rows" in message


@pytest.mark.parametrize("n", [3, 0])
def test_rows_that_cannot_be_written_are_copied(n):
    """A rank without rows keeps the caller's array, which may be read-only."""
    X, place = np.arange(2.0 * n).reshape(n, 2).copy(), np.arange(n)[::-1].copy()
    X.flags.writeable = False
    np.testing.assert_array_equal(_permuted(X, place, True), X[::-1])
