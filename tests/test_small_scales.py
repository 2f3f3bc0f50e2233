"""Features so small that squares of their differences underflow: right predictions, or one line that refuses."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from asygcd import AsyGCDSVC
from cacore.errors import InputError
from cakriging import Kriging
from cakrr import BKRR2, DKRR
from casvm import CASVC, SMOSVC, SMOSVR


def drawn():
    rng = np.random.default_rng(4)
    X = rng.random((60, 2))
    return X, np.sin(7 * X[:, 0])


def of(name, scale):
    """An estimator whose kernel is as wide as 0.2 of the features."""
    gamma = min(1e307, 12.5 / scale / scale)
    return {
        "DKRR": lambda: DKRR(sigma=0.2 * scale, lam=1e-6, standardize=False),
        "DKRR laplacian": lambda: DKRR(kernel="laplacian", sigma=0.2 * scale, lam=1e-6, standardize=False),
        "BKRR2": lambda: BKRR2(n_parts=1, sigma=0.2 * scale, lam=1e-6, standardize=False),
        "Kriging": lambda: Kriging(range=0.2 * scale, sill=1.0, nugget=1e-6, kernel="gaussian"),
        "SMOSVR": lambda: SMOSVR(gamma=gamma, C=10.0),
        "SMOSVC": lambda: SMOSVC(gamma=gamma, C=10.0),
        "CASVC": lambda: CASVC(n_parts=1, gamma=gamma, C=10.0, standardize=False),
        "AsyGCDSVC": lambda: AsyGCDSVC(gamma=gamma, C=10.0, standardize=False),
    }[name]()


@pytest.mark.parametrize(
    "name", ["DKRR", "DKRR laplacian", "BKRR2", "Kriging", "SMOSVR", "SMOSVC", "CASVC", "AsyGCDSVC"]
)
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_tiny_features_are_right_or_refused(name, offset):
    X, y = drawn()
    y = np.where(y > 0, 1, -1) if name.endswith("SVC") else y
    wanted = of(name, 1.0).fit(X + offset, y).predict(X[:9] + offset)
    for scale in (1e-120, 1e-149, 1e-152):
        if scale < 1e-140:
            with pytest.raises(InputError, match="underflow"):
                of(name, scale).fit((X + offset) * scale, y)
        else:
            ours = of(name, scale).fit((X + offset) * scale, y).predict((X[:9] + offset) * scale)
            np.testing.assert_allclose(ours, wanted, atol=2e-3)


def test_tiny_sparse_features_are_refused():
    X, y = drawn()
    with pytest.raises(InputError, match="no feature varies by more than"):
        DKRR(sigma=1e-148, standardize=False).fit(sp.csr_matrix(X * 1e-148), y)


def test_equal_rows_are_no_error_however_small():
    assert DKRR(sigma=1.0, standardize=False).fit(np.full((5, 2), 1e-148), np.arange(5.0)).predict(
        np.zeros((1, 2))
    ) == pytest.approx(2.0)
