"""A metric learned in rounds: the next root, the best round, and kernel ridge regression that learns one."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import close, near, refusal, same_content
from helpers.data import dense
from helpers.running import Interrupted, interruptible
from sklearn.base import clone
from sklearn.kernel_ridge import KernelRidge

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.metric import FLOOR, best_round, importances, mapped, matrix, next_root
from cacore.data.shuffle import Shuffle
from cacore.data.standardize import Standardizer
from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint
from cacore.kernels import Kernel
from cacore.linalg import scalapack
from cakrr import (
    BKRR2,
    DCKRR,
    DKRR,
    KKRR2,
    BKRR2Classifier,
    DKRRClassifier,
    KRRModel,
    TwoLevelKRR,
    TwoLevelKRRClassifier,
)  # fmt: skip
from cakrr.bkrr2 import bkrr2
from cakrr.dkrr import dkrr
from cakrr.grid_search import next_widths
from cakrr.options import AUTO, Options, Width
from cakrr.solver.lengths import slope
from cakrr.solver.local import PartSystem

metrics = pytest.mark.parametrize("metric", ["diagonal", "full"])
COARSE = {"centers": 40, "coarse_lam": 1e-5, "lam": [1e-5, 1e-3]}
IN_PARTS = {"BKRR2": (BKRR2, {}), "KKRR2": (KKRR2, {}), "DCKRR": (DCKRR, {}), "soft": (BKRR2, {"route": "soft"}),
            "loo": (BKRR2, {"select": "loo"}), "TwoLevelKRR": (TwoLevelKRR, COARSE)}  # fmt: skip


def rows(n=240, seed=0):
    """A function of two of six features, one four times as fast as the other; the last is constant."""
    X = np.random.default_rng(seed).normal(size=(n, 6)) * [1, 10, 1, 1, 0.1, 0] + [0, 0, 5, 0, 0, 3]
    return X, np.sin(2 * X[:, 0]) + 0.05 * X[:, 1]


# -- the root ------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [False, True])
def test_next_root(before):
    """Symmetric, of trace d when it is squared, and the chain rule of rows that were mapped already."""
    rng, d = np.random.default_rng(0), 5
    G = rng.normal(size=(40, d)) * [1, 2, 3, 4, 5]
    A = rng.normal(size=(d, d))
    root = A @ A.T if before else None
    M = (G if root is None else G @ root).T @ (G if root is None else G @ root)
    got = next_root(root, G.T @ G)
    close(got @ got, M * d / np.trace(M), 1e-12)
    close(matrix(got), M * d / np.trace(M), 1e-12)
    np.testing.assert_array_equal(np.abs(got - got.T) < 1e-13, True)
    close(importances(got), np.diagonal(M) / np.trace(M), 1e-12)
    weights = None if root is None else np.diagonal(root)
    squares = np.square(G).sum(axis=0) * (1.0 if weights is None else weights**2)
    close(matrix(next_root(weights, np.square(G).sum(axis=0))), squares * d / squares.sum(), 1e-12)


def test_floor_of_the_root():
    """No direction is lost for good: the least eigenvalue is a millionth of the largest."""
    g = np.array([3.0, 4.0, 0.0])
    near(
        np.linalg.eigvalsh(next_root(None, np.outer(g, g)))[[0, 1, 2]], np.sqrt(3 * np.array([FLOOR, FLOOR, 1])), 1e-12
    )
    near(next_root(None, g**2) ** 2, 3 / 25 * np.array([9, 16, 16 * FLOOR]), 1e-12)


@pytest.mark.parametrize("moments", [np.zeros(3), np.zeros((3, 3)), np.full(3, np.inf), np.full((3, 3), np.nan)])
def test_root_of_nothing(moments):
    assert "gradients vanish, or overflow" in refusal(next_root, None, moments)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_mapped_rows(dtype):
    X = np.random.default_rng(0).normal(size=(7, 3)).astype(dtype)
    S, root, full = sp.csr_matrix(X), np.array([1.0, 2.0, 0.5]), np.arange(9.0).reshape(3, 3)
    assert mapped(X, None) is X
    for form in (X, S):
        near(dense(mapped(form, root)), X * root, 1e-6)
        near(mapped(form, full), X @ full, 1e-5)
        assert {mapped(form, root).dtype, mapped(form, full).dtype} == {np.dtype(dtype)}
    assert sp.issparse(mapped(S, root))
    both = Standardizer.with_root(Standardizer(np.ones(3), np.full(3, 2.0)), root)
    near(both.apply(X), (X - 1) / 2 * root, 1e-6)


class Told:
    """Rounds whose errors are known."""

    def __init__(self, errors, number=0, moments=1.0):
        self.errors, self.number, self.root, self.error = errors, number, None, np.inf
        self.moment = moments

    def choose(self):
        self.error = self.errors[self.number]
        if self.error is None:
            raise InputError("no memory")

    def moments(self):
        return np.full(2, self.moment)

    def again(self, root):
        return Told(self.errors, self.number + 1, self.moment)


@pytest.mark.parametrize(
    ("errors", "best", "made"),
    [
        ([5, 4, 3], 2, 3),
        ([5, 6, 4, 7, 8, 9, 1], 2, 6),
        ([5, 6, 7, 8, 1], 0, 4),
        ([3] * 4, 0, 4),
        ([5, 2, 2, 2, 2], 1, 5),
    ],
)
def test_best_round(errors, best, made):
    """The first one with the least error; three rounds without an improvement are the last ones."""
    run, seen, notes = best_round([[Told(errors)]], len(errors) - 1, Communicator())
    assert (run.number, seen, notes) == (best, errors[:made], [])


def test_a_round_that_fails():
    """The first one's failure is training's; a later one's costs the rounds after it, and is told."""
    run, seen, notes = best_round([[Told([3, 2, None, 1])]], 5, Communicator())
    assert (run.number, seen, notes) == (1, [3, 2], ["the metric is of the best of 2 rounds; round 2: no memory"])
    with pytest.raises(InputError, match="no memory"):
        best_round([[Told([None, 1])]], 5, Communicator())


def test_ways_of_their_own():
    """Each way has its rounds, from the best of its starts; the least error of all counts, with its way's errors."""
    comm = Communicator()
    run, seen, _ = best_round([[Told([4, 3.5, 3])], [Told([6, 1]), Told([5, 3.2, 2])]], 2, comm)
    assert (run.number, seen) == (2, [5, 3.2, 2])
    run, seen, _ = best_round([[Told([5, 1, 1, 3, 4, 4])], [Told([4, 3, 2])]], 2, comm)
    assert (run.number, seen) == (1, [5, 1, 1])
    behind = Told([5, 4, 3.4, 0])
    assert best_round([[Told([4, 3, 3, 3])], [behind]], 3, comm)[1] == [4, 3, 3, 3]  # 3.4 is above 1.1 times 3
    behind.errors[2] = 3.2
    assert best_round([[Told([4, 3, 3, 3])], [behind]], 3, comm)[1] == [5, 4, 3.2, 0]


def test_a_way_that_cannot_begin():
    run, seen, notes = best_round([[Told([None])], [Told([3, 2])]], 1, Communicator())
    assert (run.number, seen, notes) == (1, [3, 2], ["left out: no memory"])


def test_a_model_that_does_not_change_needs_no_metric():
    run, seen, notes = best_round([[Told([1, 0], moments=0.0)]], 5, Communicator())
    assert (run.number, seen, notes) == (0, [1], [])


# -- a whole round, by brute force -----------------------------------------------------------------


def test_next_widths():
    """The best width and those beside it; one alone stays alone."""
    l1 = Kernel("l1")
    widths = tuple(Width(l1, sigma) for sigma in (1.0, 4.0, 16.0))
    assert next_widths(widths, np.array([np.inf, 1.0, 4.0])) == (Width(l1, 2.0), Width(l1, 4.0), Width(l1, 8.0))
    assert next_widths((widths[0],) * 2, np.zeros(2)) == widths[:1]


@pytest.mark.parametrize("estimator", [BKRR2, DKRR])
def test_rounds_leave_the_grid(estimator):
    """A later round goes on beside the last one's width, beyond the smallest one that was asked for."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = np.sin(6.0 * X[:, 0])
    model = estimator(sigma=[8.0, 16.0], lam=[1e-2], metric="diagonal", metric_rounds=4, random_state=0).fit(X, y)
    assert model.sigma_ < 8.0
    tried = sorted({row["sigma"] for row in model.grid_})
    np.testing.assert_allclose(tried, [tried[0], 2 * tried[0], 4 * tried[0]])
    assert model.sigma_ in tried


@metrics
@pytest.mark.parametrize("kernel", ["gaussian", "matern52"])
@pytest.mark.parametrize("method", [bkrr2, dkrr], ids=["bkrr2", "dkrr"])
def test_one_round(method, kernel, metric):
    """The metric from finite differences of scikit-learn's model of the learning rows, and the model in it."""
    (X, y), (T, _) = rows(90), rows(30, 1)
    sigma, lam, n = 2.0, 1e-4, 90
    parts = {} if method is dkrr else {"partitions": 1}
    options = Options(
        **parts, sigma=(sigma,), lam=(lam,), kernel=kernel, metric=metric, metric_rounds=1, seed=3
    )  # fmt: skip
    fitted = method(Dataset(X.copy(), y), options)

    def values(A, B):
        r = np.linalg.norm(A[:, None] - B, axis=2) / sigma
        q = np.sqrt(5) * r
        return np.exp(-(r**2) / 2) if kernel == "gaussian" else (1 + q + q**2 / 3) * np.exp(-q)

    mean, scale = X.mean(axis=0), np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
    Z, shuffled = (X - mean) / scale, Shuffle(n, 3).position(np.arange(n))
    learn = shuffled >= 9

    def error(W):
        exact = KernelRidge(kernel="precomputed", alpha=lam * 81).fit(values(W[learn], W[learn]), y[learn] - y.mean())
        return exact, np.mean((exact.predict(values(W[~learn], W[learn])) + y.mean() - y[~learn]) ** 2)

    exact, first = error(Z)
    G = np.empty((81, 6))
    for k in range(6):
        step = 1e-5 * (np.arange(6) == k)
        ahead, behind = (exact.predict(values(Z[learn] + way * step, Z[learn])) for way in (1, -1))
        G[:, k] = (ahead - behind) / 2e-5
    M = np.diag(np.square(G).sum(axis=0)) if metric == "diagonal" else G.T @ G
    w, V = np.linalg.eigh(M * 6 / np.trace(M))
    root = (V * np.sqrt(np.maximum(w, FLOOR * w.max()))) @ V.T
    close(np.array(fitted.errors), np.array([first, error(Z @ root)[1]]), 1e-6)
    assert fitted.errors[1] < fitted.errors[0]
    found = fitted.model.standardizer.root
    close(np.diag(found) if metric == "diagonal" else found, root, 1e-5)
    W, U = Z @ root, (T - mean) / scale @ root
    want = values(U, W) @ np.linalg.solve(values(W, W) + lam * n * np.eye(n), y - y.mean()) + y.mean()
    close(fitted.model.predict(T), want, 1e-4)


# -- methods ---------------------------------------------------------------------------------------


def check_learned(model, plain, metric, T, t):
    """The error falls, and the importances are those of the function; the round is the best one."""
    assert np.mean((model.predict(T) - t) ** 2) < 0.5 * np.mean((plain.predict(T) - t) ** 2)
    shares, errors = model.feature_importances_, model.metric_errors_
    assert shares.sum() == pytest.approx(1)
    assert shares[0] > 0.75
    assert shares[1] > 0.05
    assert shares[2:].max() < 0.02
    assert shares[5] < 1e-5  # constant
    assert model.metric_.shape == ((6, 6) if metric == "full" else (6,))
    diagonal = np.diagonal(model.metric_) if metric == "full" else model.metric_
    close(diagonal / diagonal.sum(), shares, 1e-12)
    assert errors.min() < errors[0]
    chosen = min(row["validation_mse"] for row in model.grid_ if row["validation_mse"] is not None)
    assert chosen == pytest.approx(errors.min())


@metrics
@pytest.mark.parametrize("name", ["BKRR2", "KKRR2", "DCKRR", "TwoLevelKRR"])
def test_methods(name, metric):
    (X, y), (T, t) = rows(), rows(100, 1)
    make, more = IN_PARTS[name]
    given = {"n_parts": 3, "sigma": [1, 2, 4], "lam": [1e-6, 1e-4], "random_state": 0, **more}
    given |= {"route": "nearest"} if make is TwoLevelKRR else {}
    model = make(**given, metric=metric, metric_rounds=2).fit(X, y)
    check_learned(model, make(**given).fit(X, y), metric, T, t)
    same = clone(model).fit(X, y)
    np.testing.assert_array_equal(same.predict(T), model.predict(T))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(T), model.predict(T))


@metrics
def test_exact(metric):
    (X, y), (T, t) = rows(150), rows(100, 1)
    given = {"sigma": [2, 4], "lam": 1e-5, "random_state": 0}
    model = DKRR(**given, metric=metric, metric_rounds=2).fit(X, y)
    check_learned(model, DKRR(**given).fit(X, y), metric, T, t)


@pytest.mark.parametrize("name", ["soft", "loo"])
def test_other_judges(name):
    (X, y), (T, t) = rows(), rows(100, 1)
    make, more = IN_PARTS[name]
    plain, model = (
        make(3, sigma=[2, 4], lam=1e-5, random_state=0, **more, metric=metric).fit(X, y) for metric in ("none", "full")
    )
    assert np.mean((model.predict(T) - t) ** 2) < 0.5 * np.mean((plain.predict(T) - t) ** 2)
    assert not {"metric_", "feature_importances_", "metric_errors_"} & set(vars(plain))
    assert not set(vars(model.set_params(metric="none").fit(X, y))) & {"metric_", "metric_errors_"}


@pytest.mark.parametrize("kernel", ["laplacian", "matern32", "l1", "rational"])
def test_kernels(kernel):
    (X, y), (T, t) = rows(), rows(100, 1)
    given = {"n_parts": 2, "kernel": kernel, "lam": 1e-5, "random_state": 0}
    model = BKRR2(**given, metric="diagonal", metric_rounds=2).fit(X, y)
    assert model.score(T, t) > BKRR2(**given).fit(X, y).score(T, t)
    assert model.feature_importances_[0] > 0.75


def test_a_metric_that_does_not_help_is_not_kept():
    """The first round is the best one for targets that are noise: the metric is the identity."""
    X, noise = rows()[0], np.random.default_rng(5).normal(size=240)
    model = BKRR2(2, sigma=1.0, lam=10.0, metric="full", random_state=0).fit(X, noise)
    kept = int(np.argmin(model.metric_errors_))
    assert len(model.metric_errors_) <= kept + 4
    if kept == 0:
        np.testing.assert_array_equal(model.metric_, np.eye(6))
        near(model.feature_importances_, 1 / 6, 1e-15)
        assert model.model_.standardizer.root is None


def test_targets_that_are_constant():
    X, model = rows()[0], BKRR2(2, metric="full", random_state=0)
    assert model.fit(X, np.ones(240)).metric_errors_.tolist() == [0.0]
    np.testing.assert_array_equal(model.predict(X), 1.0)


@pytest.mark.parametrize("make", [BKRR2, DKRR, TwoLevelKRR])
def test_many_targets(make):
    """One metric for all: features of any target count, whatever its unit; a constant one counts for nothing."""
    (X, y), (T, t) = rows(), rows(100, 1)
    Y, V = (np.column_stack([y, 1000 * np.sin(2 * X[:, 3]), np.ones(len(X))]) for X, y in ((X, y), (T, t)))
    given = (
        {"sigma": 2.0, "lam": 1e-5, "random_state": 0}
        if make is DKRR
        else {"n_parts": 2, "sigma": [2, 4], "random_state": 0}
    )
    given |= COARSE if make is TwoLevelKRR else {}
    model = make(**given, metric="full", metric_rounds=1).fit(X, Y)
    shares = model.feature_importances_
    assert min(shares[0], shares[3]) > 0.2
    assert max(shares[2], shares[4], shares[5]) < 0.05
    assert model.predict(T).shape == V.shape
    assert model.score(T, V) > make(**given).fit(X, Y).score(T, V)


@pytest.mark.parametrize("make", [BKRR2Classifier, DKRRClassifier, TwoLevelKRRClassifier])
def test_classifiers(make):
    (X, y), (T, t) = rows(300), rows(200, 1)
    words = np.array(["low", "middle", "top"])
    labels, expected = (words[np.digitize(values, [-0.5, 0.5])] for values in (y, t))
    given = {"lam": 1e-3, "random_state": 0} if make is DKRRClassifier else {"n_parts": 2, "random_state": 0}
    given |= {**COARSE, "lam": 1e-3} if make is TwoLevelKRRClassifier else {}
    model = make(**given, metric="diagonal", metric_rounds=2).fit(X, labels)
    assert model.score(T, expected) > make(**given).fit(X, labels).score(T, expected)
    assert model.feature_importances_[0] > 0.7
    near(model.predict_proba(T).sum(axis=1), 1.0, 1e-12)


@metrics
@pytest.mark.parametrize("name", ["BKRR2", "TwoLevelKRR", "DKRR"])
def test_csr(name, metric, tmp_path):
    """As for dense rows that are scaled, not shifted; rows of a model with a diagonal metric stay sparse."""
    rng = np.random.default_rng(0)
    X, T = (np.where(rng.random((n, 5)) < 0.5, rng.normal(size=(n, 5)), 0) for n in (160, 40))
    y = np.sin(3 * X[:, 0]) + 0.3 * X[:, 1]
    make, more = (DKRR, {}) if name == "DKRR" else IN_PARTS[name]
    given = {"sigma": 2.0, "lam": 1e-4, **({} if make is DKRR else {"n_parts": 2}), **more}
    given |= {"metric": metric, "metric_rounds": 2, "random_state": 0}
    scale = X.std(axis=0)
    model = make(**given).fit(sp.csr_matrix(X), y)
    other = make(**given, standardize=False).fit(X / scale, y)
    tolerance = 1e-2 if make is TwoLevelKRR else 1e-5  # coarse coefficients are hardly determined
    close(model.metric_errors_, other.metric_errors_, tolerance)
    close(model.metric_, other.metric_, tolerance)
    close(model.predict(sp.csr_matrix(T)), other.predict(T / scale), tolerance)
    close(model.predict(T), model.predict(sp.csr_matrix(T)), 1e-9)
    sparse = metric == "diagonal" or not model.metric_errors_.argmin()
    assert all(sp.issparse(part.X) == sparse for part in model.model_.parts.values())
    model.model_.save(tmp_path / "m.h5")
    loaded = KRRModel.load(tmp_path / "m.h5")
    same_content(loaded, model.model_)
    np.testing.assert_array_equal(loaded.predict(sp.csr_matrix(T)), model.predict(sp.csr_matrix(T)))


@pytest.mark.parametrize("name", ["BKRR2", "TwoLevelKRR", "DKRR"])
def test_float32(name):
    (X, y), (T, _) = rows(160), rows(50, 1)
    make, more = (DKRR, {}) if name == "DKRR" else IN_PARTS[name]
    given = {"sigma": 2.0, "lam": 1e-3, "metric": "full", "metric_rounds": 1, "random_state": 0}
    given |= {"n_parts": 2} | more | {"lam": 1e-3} if more or name == "BKRR2" else {}
    single, double = (make(**given, dtype=dtype).fit(X, y) for dtype in ("float32", "float64"))
    close(single.metric_, double.metric_, 1e-2)
    close(single.predict(T), double.predict(T), 1e-2)
    assert single.metric_.dtype == np.float64


@pytest.mark.parametrize("make", [BKRR2, DKRR])
def test_weights(make):
    """Rows of weight 0 count as absent, and a weight that all rows have for nothing."""
    (X, y), (T, _) = rows(160), rows(50, 1)
    given = {"sigma": 2.0, "lam": 1e-4, "metric": "full", "metric_rounds": 2, "random_state": 0}
    given |= {} if make is DKRR else {"n_parts": 2}
    weights = np.arange(160) % 4 / 2
    kept = weights > 0
    got, want = make(**given).fit(X, y, weights), make(**given).fit(X[kept], y[kept], weights[kept])
    np.testing.assert_array_equal(got.metric_, want.metric_)
    np.testing.assert_array_equal(got.predict(T), want.predict(T))
    close(make(**given).fit(X, y, np.full(160, 2.0)).predict(T), make(**given).fit(X, y).predict(T), 1e-6)


def test_parts_of_hardly_a_row():
    """A validation row that is all that its part has cannot be held out: then others are."""
    X, y = rows(5)
    for seed in range(6):
        assert np.isfinite(BKRR2(4, metric="full", random_state=seed).fit(X, y).metric_errors_).all()


@pytest.mark.parametrize("metric", ["none", "diagonal"])
def test_auto(metric):
    """Of each kernel's errors the least, which are those of the kernel alone."""
    X, y = rows(90)
    y = y + np.abs(X[:, 0] - 0.3)
    given = {"sigma": [2, 4], "lam": [1e-5, 1e-3], "random_state": 0, "metric": metric, "metric_rounds": 1}
    for make, more in ((BKRR2, {"n_parts": 2}), (DKRR, {})):
        auto = make(kernel="auto", **given, **more).fit(X, y)
        if metric == "none":
            alone = {kind: make(kernel=kind, **given, **more).fit(X, y) for kind in AUTO}
            for kind, model in alone.items():
                told = [row["validation_mse"] for row in auto.grid_ if row["kernel"] == kind]
                np.testing.assert_allclose(told, [row["validation_mse"] for row in model.grid_], rtol=1e-7)
            least = {kind: min(row["validation_mse"] for row in model.grid_) for kind, model in alone.items()}
            assert auto.model_.like.kind == min(least, key=least.get)
            close(auto.predict(X), alone[auto.model_.like.kind].predict(X), 1e-6)
        chosen = min(auto.grid_, key=lambda row: row["validation_mse"])
        assert auto.model_.like.kind == chosen["kernel"]
        assert (auto.sigma_, auto.lam_) == (chosen["sigma"], chosen["lambda"])


def test_auto_of_two_levels(tmp_path):
    """The coarse model has a kernel of its own, in the report and in the file."""
    X, y = rows(160)
    model = TwoLevelKRR(2, kernel="auto", **COARSE, random_state=0).fit(X, y)
    assert model.model_.coarse.kernel.kind == model.params_["coarse_kernel"]
    assert {row["coarse_kernel"] for row in model.grid_} == {row["kernel"] for row in model.grid_} == set(AUTO)
    model.model_.save(tmp_path / "m.h5")
    np.testing.assert_array_equal(KRRModel.load(tmp_path / "m.h5").predict(X), model.predict(X))


@pytest.mark.parametrize("select", ["validation", "loo"])
def test_natural_widths_of_auto(select):
    X, y = rows(80)
    model = BKRR2(1, kernel="auto", lam=[1e-4, 1e-2], select=select, random_state=0).fit(X, y)
    assert {row["kernel"]: row["sigma"] for row in model.grid_} == dict.fromkeys(AUTO[:3], 6**0.5) | {"l1": 6.0}


# -- checkpoints -------------------------------------------------------------------------------------


CHECKPOINTS = {
    "bkrr2": (bkrr2, Options(partitions=2, sigma=(1.0, 2.0), metric="full", metric_rounds=2, seed=1)),
    "soft": (bkrr2, Options(partitions=2, sigma=(2.0,), route="soft", metric="diagonal", metric_rounds=1, seed=1)),
    "dkrr": (dkrr, Options(sigma=(1.0, 2.0), metric="diagonal", metric_rounds=2, seed=1)),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_interrupted_anywhere(name, monkeypatch, tmp_path):
    """Killed when it has made k systems, it makes only the others, and ends with the same bits."""
    X, y = rows(80)
    method, options = CHECKPOINTS[name]
    place, counted = (scalapack.BlockCyclic, "cholesky") if name == "dkrr" else (PartSystem, "__init__")
    calls = interruptible(monkeypatch, place, counted)
    undisturbed = method(Dataset(X.copy(), y), options)
    total = calls.made
    for k in sorted({0, 2, total // 2, total - 1}):
        kept = replace(options, checkpoint=Checkpoint(tmp_path / str(k)))
        calls.made, calls.last = 0, k
        with pytest.raises(Interrupted):
            method(Dataset(X.copy(), y), kept)
        calls.made, calls.last = 0, -1
        resumed = method(Dataset(X.copy(), y), kept)
        assert calls.made == total - k
        assert resumed.errors == undisturbed.errors
        same_content(resumed.model, undisturbed.model)
        assert resumed.grid == undisturbed.grid
    message = refusal(method, Dataset(X.copy(), y), replace(kept, metric_rounds=3))
    assert f"metric_rounds was {options.metric_rounds} there and is 3 here" in message


# -- what is refused ---------------------------------------------------------------------------------

X4, Y4 = rows(40)
WIDE = np.random.default_rng(0).normal(size=(20, 5000))
NAN = np.where(np.arange(40)[:, None] == 7, np.nan, X4)
BAD = {
    "a function": (BKRR2(kernel=lambda A, B: A @ B.T, metric="full"), X4, "needs the derivative of the kernel"),
    "a matrix": (DKRR(kernel="precomputed", metric="full"), X4 @ X4.T, "has no features to weigh"),
    "a word": (BKRR2(metric="x"), X4, "metric = 'x': it must be one of none, diagonal, full"),
    "no name": (DKRR(metric=None), X4, "metric = None: it must be one of none, diagonal, full"),
    "no rounds": (BKRR2(metric="full", metric_rounds=0), X4, "metric_rounds = 0: it must be a whole number"),
    "too wide": (BKRR2(metric="full"), WIDE, "5,000 features ask for 5,000 x 5,000 numbers (0.2 GiB) and 1e+12 flops"),
    "too wide for the exact one": (DKRR(metric="full"), WIDE, "use --metric diagonal (metric='diagonal')"),
    "one row": (BKRR2(metric="full"), X4[:1], "n_samples = 1, and a choice needs 2"),
    "one row of the exact one": (DKRR(metric="full"), X4[:1], "n_samples = 1, and a choice needs 2"),
    "NaN": (TwoLevelKRR(metric="full"), NAN, "is NaN"),
}


@pytest.mark.parametrize("what", BAD)
def test_refused(what):
    estimator, X, message = BAD[what]
    assert message in refusal(estimator.fit, X, Y4[: len(X)])


def test_a_diagonal_metric_of_many_features():
    model = BKRR2(1, metric="diagonal", metric_rounds=1, lam=1e-2).fit(WIDE, WIDE[:, 0])
    assert model.metric_.shape == (5000,)


def test_memory_of_a_full_metric():
    options = Options(partitions=1, metric="full", memory_limit=6 * 8 * 300**2 - 1)
    assert "a full metric of 300 features" in refusal(bkrr2, Dataset(WIDE[:, :300].copy(), Y4[:20]), options)


# -- length scales ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gaussian", "laplacian", "matern32", "matern52", "l1", "rational"])
def test_slope_of_the_left_out_errors(kind):
    """The errors of models without each row, one by one, and finite differences of their sum."""
    rng, m, d = np.random.default_rng(0), 25, 3
    X, Y, w, ridge = rng.normal(size=(m, d)), rng.normal(size=(m, 2)), rng.random(m) + 0.5, 0.1 + rng.random(m)
    kernel = Kernel(kind, gamma=0.4)
    points = kernel.points(X)
    G, expected = kernel.block(points, points) + np.diag(ridge), 0.0
    for i in range(m):
        rest = np.delete(np.arange(m), i)
        gap = Y[i] - G[i, rest] @ np.linalg.solve(G[np.ix_(rest, rest)], Y[rest])
        expected += w[i] * gap @ gap
    total, slopes = slope(kernel, X, Y, ridge, w)
    close(total, expected, 1e-9)
    for k in range(d + 1):
        by = np.exp(1e-5 * (np.arange(d + 1) == k))
        more, less = (slope(kernel, X * f[:d], Y, ridge * f[d], w)[0] for f in (by, 1 / by))
        np.testing.assert_allclose((more - less) / 2e-5, slopes[k], rtol=1e-6, atol=1e-6 * np.abs(slopes).max())
    assert slope(kernel, X, Y, np.full(m, -5.0), w)[0] == np.inf


@pytest.mark.parametrize("kernel", ["laplacian", "l1"])
def test_lengths_find_what_counts(kernel):
    (X, y), (T, t) = rows(), rows(80, 1)
    given = {"kernel": kernel, "sigma": [2.0, 4.0], "lam": [1e-5, 1e-3], "random_state": 0}
    plain = BKRR2(2, **given).fit(X, y)
    model = BKRR2(2, **given, metric="lengths", metric_rounds=2).fit(X, y)
    assert set(np.argsort(model.feature_importances_)[-2:]) == {0, 1}
    assert np.argmin(model.metric_errors_) > 0
    assert model.score(T, t) > plain.score(T, t)


def test_lengths_refused():
    X, y = rows(40)
    for model, match in (
        (DKRR(metric="lengths"), "dkrr has one model of all rows; use metric diagonal"),
        (TwoLevelKRR(2, metric="lengths"), "twolevel has a coarse model of all rows; use metric diagonal"),
        (BKRR2(2, metric="lengths", kernel="linear"), "the linear kernel is of no distance; use metric diagonal"),
    ):
        assert match in refusal(model.fit, X, y)
