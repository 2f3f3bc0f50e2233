"""Kernel ridge regression solved by conjugate gradients."""

from __future__ import annotations

from cacore.io import Dataset
from cakrr.dkrr import dkrr
from cakrr.options import RidgeOptions


def fitted(X, y, **told):
    return dkrr(Dataset(X.copy(), y.copy()), RidgeOptions(**{"sigma": (1.5,), "lam": (1e-4,), "solver": "cg", **told}))
