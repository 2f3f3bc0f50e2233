"""Two levels refined: from the coarse model, iteration by iteration, to the exact model of its kernel."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from helpers.checks import close
from helpers.data import as_csr, saddle

from cacore.errors import InputError, MemoryLimitError
from cacore.io import Dataset
from cakrr import BKRR2, DKRR, TwoLevelKRR
from cakrr.options import RidgeOptions
from cakrr.twolevel import twolevel

TOLD = {"centers": 15, "coarse_sigma": 1.5, "coarse_lam": 1e-4, "sigma": 0.7, "lam": 1e-3, "n_parts": 4,
        "random_state": 0, "standardize": False}  # fmt: skip


@pytest.mark.parametrize(("csr", "weighted", "targets"), [(False, True, 1), (True, False, 2)])
def test_refinement_converges_to_the_exact_model(csr, weighted, targets):
    X, y = saddle(120, zeros=0.4 if csr else 0)
    T, _ = saddle(40, 1)
    X, T = as_csr(X, csr), as_csr(T, csr)
    Y = y if targets == 1 else np.c_[y, y**2]
    w = np.random.default_rng(0).uniform(0.5, 2, 120) if weighted else None
    two = TwoLevelKRR(**TOLD, refine=100).fit(X, Y, w)
    exact = DKRR(sigma=1.5, lam=1e-4, standardize=False).fit(X, Y, w)
    close(two.model_.coarse.predict(T) + two.model_.offset, exact.predict(T), 1e-7)
    assert two.model_.coarse.centers.shape == (120, 3)


def test_divisions_share_the_refined_model():
    X, y = saddle(120)
    one, two = (TwoLevelKRR(**TOLD, refine=5, n_divisions=k).fit(X, y).model_.coarse for k in (1, 2))
    np.testing.assert_array_equal(one.predict(X), two.predict(X))


def test_each_iteration_comes_nearer():
    """In the norm that conjugate gradients make small: that of the system."""
    X, y = saddle(120)
    K = np.exp(-((X[:, None] - X[None]) ** 2).sum(axis=2) / (2 * 1.5**2))
    A = K + 1e-4 * 120 * np.eye(120)
    exact = np.linalg.solve(A, y - y.mean())
    away = []
    for refine in (0, 1, 2, 4, 8):
        coarse = TwoLevelKRR(**TOLD, refine=refine).fit(X, y).model_.coarse
        alpha = np.zeros(120)
        for z, beta in zip(coarse.centers, coarse.beta, strict=True):
            alpha[np.abs(X - z).sum(axis=1).argmin()] += beta
        away.append(float((alpha - exact) @ A @ (alpha - exact)))
    assert all(after < before for before, after in pairwise(away))


def test_refusals():
    X, y = saddle(120)
    with pytest.raises(InputError, match="refine = -1"):
        TwoLevelKRR(**TOLD, refine=-1).fit(X, y)
    assert not hasattr(BKRR2(), "refine")
    some = RidgeOptions(centers=(5,), coarse_sigma=(1.5,), coarse_lam=(1e-4,), sigma=(1.0,), lam=(1e-3,), partitions=60)
    wide = np.repeat(X, 40, axis=1)
    with pytest.raises(MemoryLimitError, match="leave out --refine"):
        twolevel(Dataset(wide, y), RidgeOptions(**{**vars(some), "refine": 3, "memory_limit": 200_000}))
