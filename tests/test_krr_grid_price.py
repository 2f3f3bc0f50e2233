"""The optimisations of a grid change no result: stored inner products, one reduction per sigma, closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import close_in_norm as close
from helpers.data import dense, formats
from helpers.references import matrix, ridge
from sklearn.metrics.pairwise import rbf_kernel

from cacore.errors import InputError
from cacore.io import Dataset
from cacore.kernels import Kernel
from cakrr import bkrr2, dckrr, dkrr, kkrr, kkrr2, kkrr3, twolevel
from cakrr.options import RidgeOptions
from cakrr.solver.local import PartSystem, Workspace
from partition import KBalance, KMeans

LAMS = tuple(np.geomspace(1e-6, 1.0, 13))
# Kernels, and how much larger their lambdas are: a sigmoid's matrix is indefinite.
KERNELS = {
    "gaussian": (Kernel.gaussian(0.9), 1), "linear": (Kernel("linear"), 100),
    "polynomial": (Kernel("polynomial", 0.3, 2, 1.0), 100), "sigmoid": (Kernel("sigmoid", 0.1, coef0=0.5), 1e6),
}  # fmt: skip
kernels = pytest.mark.parametrize(("kernel", "scale"), KERNELS.values(), ids=KERNELS)
weighting = pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weights"])


def rows(m, csr=False, seed=0):
    rng = np.random.default_rng(seed)
    X, w = rng.normal(size=(m, 3)), rng.uniform(0.2, 4.0, m)
    if csr:
        X[np.abs(X) < 0.5] = 0
    return (sp.csr_matrix(X) if csr else X), rng.normal(size=m), w


def system(X, weights=None, kernel=None, room=3):
    """A part's system as the grid makes it, in a workspace with an earlier part's values."""
    workspace = Workspace(X.shape[0] + room, X.dtype)
    workspace.matrix(X.shape[0] + room)[:] = np.nan
    return PartSystem(X, workspace, kernel or Kernel(), weights, grid=True)


# -- inner products, computed once -------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("m", [1, 2, 63, 64, 65, 300])
@formats
@pytest.mark.parametrize("kind", ["gaussian", "polynomial", "linear", "l1"])
def test_inner_products_survive_every_sigma(kind, m, dtype, csr):
    X = rows(m, csr)[0].astype(dtype)
    prototype = Kernel(kind, degree=2, coef0=0.5)
    points = prototype.points(X)
    G, formed = np.full((m, m), np.nan, dtype), np.empty((m, m), dtype)
    prototype.compare(points, G)
    above = G[np.triu_indices(m, 1)].copy()
    for sigma in (0.1, 1.0, 30.0):
        kernel = prototype.with_sigma(sigma)
        kernel.gram_from(G, points)
        kernel.gram(points, formed)
        # Two orders of the same sums: a few roundings of |x|^2 times the kernel's slope, of values up to the largest.
        slope = float(np.abs(kernel.derivative(0.0 if kernel.of_distance else points.squares)).max())
        largest = max(1.0, float(np.abs(np.tril(formed)).max()), float(np.max(points.squares)) * slope)
        np.testing.assert_allclose(np.tril(G), np.tril(formed), rtol=0, atol=4 * np.finfo(dtype).eps * largest)
        np.testing.assert_array_equal(G[np.triu_indices(m, 1)], above)
        if kernel.of_distance:
            np.testing.assert_array_equal(np.diag(G), 1.0)
    if kind == "l1":
        return
    shifted = dense(points.X).astype(np.float64)
    exact = (shifted @ shifted.T)[np.triu_indices(m, 1)]
    np.testing.assert_allclose(above, exact, rtol=0, atol=100 * np.finfo(dtype).eps)


@formats
def test_a_system_solved_again_and_again(csr):
    """No sigma, lambda or factor leaves anything behind for the next one, whatever the order."""
    X, y, w = rows(90, csr)
    shared = system(X, w)
    for sigma, lams in ((0.3, LAMS), (2.0, LAMS[:2]), (1.0, LAMS), (0.3, LAMS[5:6]), (1.0, LAMS)):
        got, good = shared.solve(Kernel.gaussian(sigma), lams, y[None])
        expected, _ = system(X, w).solve(Kernel.gaussian(sigma), lams, y[None])
        assert good.all()
        np.testing.assert_array_equal(got, expected)
        shared.left_out(Kernel.gaussian(sigma), lams[:1], y[None])


# -- one reduction for many lambdas ------------------------------------------------------------


# Each pair of values.
@pytest.mark.parametrize(
    ("sigma", "weighted", "csr"), [(0.3, False, False), (0.3, True, True), (2.0, True, False), (2.0, False, True)]
)
@pytest.mark.parametrize("m", [3, 40, 330])
@kernels
def test_band_is_cholesky(kernel, scale, m, sigma, weighted, csr, tuned):
    X, y, w = rows(m, csr)
    weights, Y = w if weighted else None, np.stack([y, np.cos(y), w])
    kernel, lams, before = kernel.with_sigma(sigma), tuple(lam * scale for lam in LAMS), Y.copy()
    banded, good = system(X, weights, kernel).solve(kernel, lams, Y)
    tuned(band_from=len(LAMS) + 1)
    factored, also = system(X, weights, kernel).solve(kernel, lams, Y)
    assert good.all()
    assert also.all()
    assert banded.shape == factored.shape == (len(LAMS), 3, m)
    for one, other in zip(banded, factored, strict=True):
        assert (one != other).any()  # it did go another way
        close(one, other, 1e-8)
    np.testing.assert_array_equal(Y, before)


@weighting
def test_band_is_kernel_ridge(weighted):
    X, y, w = rows(120)
    got, _ = system(X, w if weighted else None).solve(Kernel.gaussian(0.8), LAMS, y[None])
    total = w.sum() if weighted else 120
    for alpha, lam in zip(got[:, 0], LAMS, strict=True):
        expected = ridge(0.8, lam * total).fit(X, y, sample_weight=w if weighted else None).dual_coef_
        close(alpha, expected, 1e-8)


def test_band_in_single_precision():
    """Accuracy is what the condition number, at most 1 + 1/lambda, leaves of 7 digits; in the rows' dtype."""
    X, y, _ = rows(200)
    lams = tuple(np.geomspace(1e-2, 1.0, 7))
    got, good = system(X.astype(np.float32)).solve(Kernel.gaussian(1.0), lams, y[None])
    exact, _ = system(X).solve(Kernel.gaussian(1.0), lams, y[None])
    assert (got.dtype, good.all()) == (np.float32, True)
    for alpha, reference, lam in zip(got[:, 0], exact[:, 0], lams, strict=True):
        close(alpha, reference, 2e-6 * (1 + 1 / lam))


@pytest.mark.parametrize("way", ["band", "cholesky"])
def test_lambdas_too_small_are_left_out(way, tuned):
    tuned(band_from=2 if way == "band" else 99)
    X, y, _ = rows(40)
    X, y = np.concatenate([X, X]), np.concatenate([y, y + 1])  # every row twice: K is singular
    lams = (1e-30, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
    alphas, good = system(X).solve(Kernel.gaussian(1.0), lams, y[None])
    assert good[1:].all()
    assert good[0] == np.isfinite(alphas[0]).all()  # rounding decides about the first,
    for alpha, lam in zip(alphas[1:, 0], lams[1:], strict=True):  # which harms no other
        close(alpha, np.linalg.solve(rbf_kernel(X, gamma=0.5) + lam * 80 * np.eye(80), y), 1e-8)


# -- leave-one-out -----------------------------------------------------------------------------


def refitted(X, y, kernel, lam, w=None):
    """y_i - f(x_i) of a model without row i, which keeps the others' lambda m, or lambda sum(w): by brute force."""
    w, K, out = np.ones(len(y)) if w is None else w, matrix(kernel, X), np.empty(len(y))
    for i in range(len(y)):
        kept = np.arange(len(y)) != i
        alpha = np.linalg.solve(K[np.ix_(kept, kept)] + lam * w.sum() * np.diag(1 / w[kept]), y[kept])
        out[i] = y[i] - K[i, kept] @ alpha
    return out


@formats
@weighting
@kernels
@pytest.mark.parametrize("way", ["cholesky", "eigen"])
def test_left_out_is_refitting_without_each_row(way, kernel, scale, weighted, csr, tuned):
    tuned(eigen_from=1 if way == "eigen" else 99)
    X, y, w = rows(40, csr)
    weights, lams = w if weighted else None, (1e-6 * scale, 1e-3 * scale, 0.5 * scale)
    got, good = system(X, weights, kernel).left_out(kernel, lams, np.stack([y, np.cos(y)]))
    assert (got.shape, good.tolist()) == ((3, 2, 40), [True] * 3)
    for errors, lam in zip(got, lams, strict=True):
        close(errors[0], refitted(X, y, kernel, lam, weights), 1e-8)
        close(errors[1], refitted(X, np.cos(y), kernel, lam, weights), 1e-8)


@weighting
@pytest.mark.parametrize("m", [1, 2, 130])
def test_both_ways_to_leave_out_agree(m, weighted, tuned):
    tuned(lapack_block=48)  # the factor and the diagonal of its inverse go by blocks
    X, y, w = rows(m)
    lams, answers = (1e-5, 1e-2), []
    for start in (1, 99):
        tuned(eigen_from=start)
        answers.append(system(X, w if weighted else None).left_out(Kernel.gaussian(0.7), lams, y[None])[0])
    close(answers[0], answers[1], 1e-8)
    assert m < 40 or (answers[0] != answers[1]).any()


def test_eigenvectors_only_where_they_fit(tuned, forbidden):
    """Five matrices under the limit, or factorisations, which the decomposition's failure would not harm."""
    X, y, _ = rows(50)
    expected = system(X).left_out(Kernel.gaussian(1.0), LAMS, y[None])[0]
    tuned(eigen_bytes=5 * 8 * 50 * 50 - 1)
    with forbidden("scipy.linalg.eigh"):
        close(system(X).left_out(Kernel.gaussian(1.0), LAMS, y[None])[0], expected, 1e-8)


def test_left_out_where_nothing_can_be_solved():
    X, y, _ = rows(40)
    X, y = np.concatenate([X, X]), np.concatenate([y, y + 1])
    errors, good = system(X).left_out(Kernel.gaussian(1.0), (1e-30, 1e-2), y[None])
    assert good.tolist() == [False, True]
    assert np.isnan(errors[0]).all()
    close(errors[1, 0], refitted(X, y, Kernel.gaussian(1.0), 1e-2), 1e-8)


# -- whole runs --------------------------------------------------------------------------------

GRID = RidgeOptions(partitions=3, sigma=(0.5, 1.0, 3.0), lam=(1e-5, 1e-3, 1e-1), select="loo", standardize=False)


def train(method, options, weights=None, m=75):
    X, _, _ = rows(m)
    return method(Dataset(X.copy(), target(X), weights=weights), options)


def target(X):
    return 4 + np.sin(2 * X[:, 0]) * np.cos(X[:, 1]) + 0.1 * np.random.default_rng(5).normal(size=len(X))


@pytest.mark.parametrize(
    ("name", "route", "weighted"),
    [("bkrr2", "nearest", False), ("bkrr2", "soft", True), ("kkrr2", "nearest", True), ("kkrr2", "soft", False)],
)
def test_selection_by_leaving_out(name, route, weighted):
    """Every pair's error is the brute-force one over all parts' rows; the least one is chosen, and no row is lost."""
    X, _, w = rows(75)
    method, partitioner = {"bkrr2": (bkrr2.METHOD, KBalance), "kkrr2": (kkrr2.METHOD, KMeans)}[name]
    result = train(method, replace(GRID, route=route), w if weighted else None)
    w, y = (w, target(X)) if weighted else (np.ones(75), target(X))
    y = y - np.average(y, weights=w)
    labels = partitioner(3, random_state=0).fit(X).labels_
    expected = {}
    for sigma in GRID.sigma:
        for lam in GRID.lam:
            parts = [np.flatnonzero(labels == p) for p in range(3)]
            total = sum(w[own] @ refitted(X[own], y[own], Kernel.gaussian(sigma), lam, w[own]) ** 2 for own in parts)
            expected[sigma, lam] = total / w.sum()
    got = {(row["sigma"], row["lambda"]): row["loo_mse"] for row in result.grid}
    assert list(got) == list(expected)
    np.testing.assert_allclose(list(got.values()), list(expected.values()), rtol=1e-8)
    assert (result.model.sigma, result.model.lam) == min(expected, key=expected.get)
    assert all((row["validation_mse"], row["test_mse"]) == (None, None) for row in result.grid)
    alone = replace(GRID, sigma=(result.model.sigma,), lam=(result.model.lam,))
    for part, model in train(method, alone, w if weighted else None).model.parts.items():
        np.testing.assert_array_equal(result.model.parts[part].alpha, model.alpha)


def test_other_selections_ignore_leave_one_out_rules():
    assert all("loo_mse" not in row for row in train(bkrr2.METHOD, replace(GRID, select="validation")).grid)


def test_many_lambdas_choose_as_few_do():
    """The band's errors of a whole run are those of single pairs."""
    many = replace(GRID, lam=LAMS, select="validation")
    errors = [row["validation_mse"] for row in train(bkrr2.METHOD, many).grid]
    pairs = []
    for sigma in GRID.sigma:
        for few in (LAMS[:5], LAMS[5:10], LAMS[10:]):
            grid = train(bkrr2.METHOD, replace(many, sigma=(sigma,), lam=few)).grid
            pairs += [row["validation_mse"] for row in grid]
    np.testing.assert_allclose(errors, pairs, rtol=1e-8)


REFUSED = {
    "route all": (bkrr2.METHOD, {"route": "all"}),
    "mean of all": (kkrr.METHOD, {}),
    "random parts": (dckrr.METHOD, {}),
    "oracle": (kkrr3.METHOD, {}),
    "two levels": (twolevel.METHOD, {}),
    "two levels, nearest": (twolevel.METHOD, {"route": "nearest"}),
    "exact": (dkrr.METHOD, {"partitions": None}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_leaving_out_is_refused_where_others_answer_too(what):
    method, changes = REFUSED[what]
    X, y, _ = rows(30)
    with pytest.raises(InputError, match="select loo: leave-one-out errors are those of a part's own model"):
        method(Dataset(X, y), replace(GRID, **changes))


def test_leaving_out_is_allowed_on_another_route():
    assert train(kkrr.METHOD, replace(GRID, route="nearest")).grid == train(kkrr2.METHOD, GRID).grid
