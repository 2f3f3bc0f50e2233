"""Sums over near rows alone: those of all pairs to the rounding, where they pay, and groups of neighbours."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import close
from helpers.dkrr import fitted
from helpers.references import matrix

from cacore.kernels import Kernel
from cacore.kernels.given import given_kernel
from cacore.kernels.near import NearPanels, spatial_groups
from cacore.near import expansion
from cacore.svm import decision
from cakrr.ridge_predictor import PartModel

NARROW = [
    Kernel("gaussian", 8000.0), Kernel("laplacian", 500.0), Kernel("matern32", 3000.0), Kernel("wendland2", 12.0),
    Kernel("wendland2_product", 12.0),
]  # fmt: skip


@pytest.fixture
def used(tuned, recorded):
    """Small groups, and the shares of the pairs of each call that leaves some out."""
    tuned(group=16, group_columns=40)
    return recorded(expansion.NearGroups, "__call__", lambda _, groups, coefficients: groups.share)


def rows(m=1203, n=911, seed=0):
    """Rows of an expansion with coefficients of two targets, and new rows, some far away."""
    rng = np.random.default_rng(seed)
    A, X = rng.random((m, 2)), rng.random((n, 2)) * 1.2
    X[:7] += 50.0
    return A, rng.normal(size=(m, 2)), X


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("kernel", NARROW, ids=lambda kernel: kernel.kind)
def test_sums_are_those_of_all_pairs(kernel, form, dtype, used):
    A, c, X = (some.astype(dtype) for some in rows())
    got = expansion.expansion(kernel, [(form(A), c)], form(X))
    assert used
    assert used[0] < 0.5
    assert got.dtype == dtype
    want = matrix(kernel, X.astype(np.float64), A.astype(np.float64)) @ c.astype(np.float64)
    points = kernel.points(A)
    rounding = np.abs(kernel.apply(kernel.points(X, like=points), points, c) - want).max()
    np.testing.assert_allclose(got, want, rtol=0, atol=3 * rounding + 10 * np.finfo(dtype).eps)
    half = len(A) // 2
    pieces = [(form(A[some]), c[some, 0]) for some in (slice(0, half), slice(half, None))]
    np.testing.assert_allclose(expansion.expansion(kernel, pieces, form(X)), got[:, 0], rtol=0, atol=3 * rounding)


def test_skipped_pairs_are_below_rounding():
    """The rounding is that of each target's largest coefficient, however unequal the targets are."""
    A, c, X = rows()
    c[5:, 1] = 0.0
    for kernel in NARROW:
        squared = expansion.reach(kernel, [(A, c)], X)
        D = np.square(X[:, None] - A)
        far = (D.max(axis=2) if kernel.separable else D.sum(axis=2)) > squared
        assert far.any()
        lost = (matrix(kernel, X, A) * far) @ np.abs(c)
        assert (lost.max(axis=0) <= np.finfo(np.float64).eps * np.abs(c).max(axis=0)).all()
    assert np.isfinite(expansion.reach(NARROW[0], [(A, 0 * c)], X))


@pytest.mark.parametrize(
    ("kernel", "form"),
    [
        (Kernel("gaussian", 1.0), np.asarray), (Kernel("rational", 300.0), np.asarray), (Kernel("linear"), np.asarray),
        (Kernel("l1", 500.0), np.asarray), (given_kernel(lambda A, B: np.exp(-abs(A[:, :1] - B[:, 0]))), np.asarray),
        (NARROW[0], lambda X: sp.csr_matrix((X.ravel(), np.arange(2 * len(X)), np.arange(len(X) + 1) * 2))),
    ],
    ids=["wide", "slow", "linear", "l1", "callable", "many features"],
)  # fmt: skip
def test_all_pairs_where_near_ones_do_not_pay(kernel, form, used):
    A, c, X = rows(700, 400)
    A, X = (form(np.vstack([A, X])[some]) for some in (slice(0, 700), slice(700, None)))
    if sp.issparse(A):
        X = sp.csr_matrix((X.data, X.indices, X.indptr), (400, A.shape[1]))
    got = expansion.expansion(kernel, [(A, c)], X)
    points = kernel.points(A)
    np.testing.assert_array_equal(got, kernel.apply(kernel.points(X, like=points), points, c))
    assert not used


def test_few_rows(used):
    A, c, X = rows()
    for some in (X[7:8], X[:16]):
        close(expansion.expansion(NARROW[0], [(A, c)], some), matrix(NARROW[0], some, A) @ c, 1e-10)
    assert expansion.expansion(NARROW[0], [(A[:0], c[:0])], X).shape == (len(X), 2)
    assert expansion.expansion(NARROW[0], [(A, c)], X[:0]).shape == (0, 2)
    assert not used


@pytest.mark.parametrize("kernel", ["gaussian", "wendland2", "wendland2_product"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_predictions_of_a_model_of_near_rows(kernel, dtype, used):
    A, _, X = rows()
    sigma = 0.011 if kernel == "gaussian" else 0.08
    y = np.sin(9 * A[:, 0])
    told = {"kernel": kernel, "sigma": (sigma,), "lam": (1e-4,), "standardize": False, "near": True}
    model = fitted(A.astype(dtype), y, **told).model
    got = model.predict(X.astype(dtype))
    assert len(used) == 1
    part = model.parts[0]
    assert isinstance(part, PartModel)
    want = matrix(model.kernel, X, np.asarray(part.X, np.float64)) @ part.alpha.astype(np.float64) + model.offset
    close(got, want, 2e-5 if dtype == "float32" else 1e-10)


@pytest.mark.parametrize("size", [1, 16, 128, 5000])
def test_groups_hold_neighbours_alone(size):
    """Groups are at most `size` rows, all in order, and none is about as wide as all rows."""
    X = np.random.default_rng(0).random((3000, 2))
    order, ends = spatial_groups(X, size)
    np.testing.assert_array_equal(np.sort(order), np.arange(len(X)))
    assert ends[0] == 0
    assert ends[-1] == len(X)
    lengths = np.diff(ends)
    assert lengths.min() > 0
    assert lengths.max() <= size
    assert len(lengths) <= 2 * -(-len(X) // size)
    widths = [np.ptp(X[order[a:b]], axis=0).max() for a, b in pairwise(ends)]
    assert max(widths) <= 6 * np.sqrt(size / len(X))


@pytest.mark.parametrize("X", [np.zeros((0, 2)), np.ones((50, 3)), 2.0 ** np.arange(300)[:, None]])
def test_groups_of_equal_rows_and_of_rows_of_all_magnitudes(X):
    order, ends = spatial_groups(X, 8)
    np.testing.assert_array_equal(np.sort(order), np.arange(len(X)))
    assert ends.tolist()[0] == 0
    assert ends.tolist()[-1] == len(X)
    assert (np.diff(ends) <= 8).all()
    assert len(ends) <= 2 * -(-len(X) // 8) + 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", NARROW, ids=lambda kernel: kernel.kind)
def test_decisions_of_an_svm_are_those_of_all_pairs(kernel, dtype, tuned, recorded):
    """With one column of weights; several compute all pairs."""
    counts = recorded(NearPanels, "add", lambda count, *args: count)
    tuned(decision_box=128)  # a whole panel of either dtype
    tuned(group=16, sort_cost=1)
    A, c, X = rows()
    A, X, kernel = A.astype(dtype), X.astype(dtype), replace(kernel, gamma=40 * kernel.gamma)
    every = decision.expansion(kernel, A, c, X)
    assert not counts
    got = decision.expansion(kernel, A, c[:, :1], X)
    assert counts[0] < 0.5 * len(A) * len(X)
    tuned(decision_near=-1.0)
    want = decision.expansion(kernel, A, c[:, :1], X)
    assert len(counts) == 1
    np.testing.assert_allclose(got, want, rtol=0, atol=np.finfo(dtype).eps * np.abs(c).max() + 1e-13)
    close(want, every[:, :1], 1e-4 if dtype == "float32" else 1e-10)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", NARROW, ids=lambda kernel: kernel.kind)
def test_decisions_of_several_classes_are_those_of_all_pairs(kernel, dtype, form, used, tuned):
    """Four classes, one without support vectors; new rows in several blocks."""
    tuned(decision_rows=400, decision_bytes=1)
    A, c, X = (some.astype(dtype) for some in rows())
    sizes, kernel = np.array([500, 0, 400, len(A) - 900]), replace(kernel, gamma=40 * kernel.gamma)
    coef, b, label = np.column_stack([c, c[:, 0]]).T, np.arange(1.0, 7.0), np.repeat(np.arange(4), sizes)
    got = decision.decisions_of_pairs(kernel, form(A), coef, b, sizes, form(X), lambda some: some, 6)
    assert len(used) == 3
    K = matrix(kernel, X.astype(np.float64), A.astype(np.float64))
    for column, (i, j) in enumerate(combinations(range(4), 2)):
        first, second = K[:, label == i] @ coef[j - 1, label == i], K[:, label == j] @ coef[i, label == j]
        np.testing.assert_allclose(
            got[:, column], first + second + b[column], rtol=0, atol=1e-9 + 20 * np.finfo(dtype).eps
        )
