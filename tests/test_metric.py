"""A metric learned in rounds: the next root, the best round, one round by brute force, refusals, length scales."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import close, near, refusal
from helpers.data import dense, fast_and_slow
from sklearn.kernel_ridge import KernelRidge

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.lengths import slope
from cacore.data.metric import FLOOR, best_round, importances, matrix, next_root
from cacore.data.shuffle import Shuffle
from cacore.data.standardize import Standardizer, mapped
from cacore.errors import InputError
from cacore.kernels import Kernel
from cakrr import (
    BKRR2,
    DKRR,
    TwoLevelKRR,
)  # fmt: skip
from cakrr.bkrr2 import bkrr2
from cakrr.dkrr import dkrr
from cakrr.grid_search import next_widths
from cakrr.options import RidgeOptions, Width

metrics = pytest.mark.parametrize("metric", ["diagonal", "full"])


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

    def choose(self, comm):
        self.error = self.errors[self.number]
        if self.error is None:
            raise InputError("no memory")

    def moments(self, comm):
        return np.full(2, self.moment)

    def again(self, root, comm):
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
    assert (run.number, seen, notes) == (1, [3, 2], ["the metric is that of the best of 2 rounds; round 2: no memory"])
    with pytest.raises(InputError, match="no memory"):
        best_round([[Told([None, 1])]], 5, Communicator())


def test_best_round_is_that_of_the_least_error_of_all_starts():
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
    (X, y), (T, _) = fast_and_slow(90), fast_and_slow(30, 1)
    sigma, lam, n = 2.0, 1e-4, 90
    parts = {} if method is dkrr else {"partitions": 1}
    options = RidgeOptions(
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


# -- what is refused ---------------------------------------------------------------------------------

X4, Y4 = fast_and_slow(40)
WIDE = np.random.default_rng(0).normal(size=(20, 5000))
NAN = np.where(np.arange(40)[:, None] == 7, np.nan, X4)
BAD = {
    "a function": (BKRR2(kernel=lambda A, B: A @ B.T, metric="full"), X4, "needs the derivative of the kernel"),
    "a matrix": (DKRR(kernel="precomputed", metric="full"), X4 @ X4.T, "has no features to weight"),
    "a word": (BKRR2(metric="x"), X4, "metric = 'x': it must be one of none, diagonal, full"),
    "no name": (DKRR(metric=None), X4, "metric = None: it must be one of none, diagonal, full"),
    "no rounds": (BKRR2(metric="full", metric_rounds=-1), X4, "metric_rounds = -1: it must be a whole number"),
    "too wide": (BKRR2(metric="full"), WIDE, "5,000 features require 5,000 x 5,000 numbers (0.2 GiB) and 1e+12 flops"),
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
    options = RidgeOptions(partitions=1, metric="full", memory_limit=6 * 8 * 300**2 - 1)
    assert "a full metric of 300 features" in refusal(bkrr2, Dataset(WIDE[:, :300].copy(), Y4[:20]), options)


# -- length scales ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    ["gaussian", "laplacian", "matern32", "matern52", "l1", "rational", "wendland0_product", "wendland2_product"],
)
@pytest.mark.parametrize("rows", [25, 10])
def test_slope_of_the_left_out_errors(kind, rows, tuned):
    """The errors of models without each row, one by one, and finite differences of their sum, by blocks of rows."""
    tuned(length_bytes=8 * 25 * rows)
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


@pytest.mark.parametrize("kernel", ["laplacian", "l1", "wendland2_product"])
def test_learnt_scales_rank_informative_features_first(kernel):
    (X, y), (T, t) = fast_and_slow(), fast_and_slow(80, 1)
    given = {"kernel": kernel, "sigma": [2.0, 4.0], "lam": [1e-5, 1e-3], "random_state": 0}
    plain = BKRR2(2, **given).fit(X, y)
    model = BKRR2(2, **given, metric="lengths", metric_rounds=2).fit(X, y)
    assert set(np.argsort(model.feature_importances_)[-2:]) == {0, 1}
    assert np.argmin(model.metric_errors_) > 0
    assert model.score(T, t) > plain.score(T, t)


def test_lengths_refused():
    X, y = fast_and_slow(40)
    for model, match in (
        (DKRR(metric="lengths"), "dkrr has one model of all rows; use metric diagonal"),
        (TwoLevelKRR(2, metric="lengths"), "twolevel has a coarse model of all rows; use metric diagonal"),
        (BKRR2(2, metric="lengths", kernel="linear"), "the linear kernel is not a function of distance; use metric"),
    ):
        assert match in refusal(model.fit, X, y)
