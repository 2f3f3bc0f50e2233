"""SVMs trained in a tree of merges, and their dual."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from cacore.data.dataset import Dataset
from casvm.cascade import cascade
from casvm.dcfilter import dcfilter
from casvm.dcsvm import dcsvm
from casvm.options import SVMOptions

METHODS = {"cascade": cascade, "dcsvm": dcsvm, "dcfilter": dcfilter}
methods = pytest.mark.parametrize("name", METHODS)
GAMMA, C = 0.4, 2.0
TOL = 1e-6


def options(**more):
    given = {"partitions": 5, "seed": 2, "C": C, "gamma": GAMMA, "tol": TOL, "cache_gib": 2**-6}
    return SVMOptions(**{**given, **more})


def train(name, X, y, weights=None, **more):
    return METHODS[name](Dataset(X, y, weights=weights), options(**more))


def of_pair(coef, codes, i, j):
    """Beta of the rows of two classes, from the layout of LIBSVM."""
    return np.where(codes == i, coef[j - 1], np.where(codes == j, coef[i], 0.0))


def pairs_of(k):
    return list(combinations(range(k), 2))
