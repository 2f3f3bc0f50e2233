"""Kernel ridge regression solved by conjugate gradients."""

from __future__ import annotations

import numpy as np

from cacore.io import Dataset
from cakrr.dkrr import dkrr
from cakrr.iterative.products import strips
from cakrr.options import RidgeOptions


def fitted(X, y, **told):
    return dkrr(Dataset(X.copy(), y.copy()), RidgeOptions(**{"sigma": (1.5,), "lam": (1e-4,), "solver": "cg", **told}))


def times_computed(counts, tiles=None):
    """How often ranks with so many rows each compute every kernel value, by itself or by symmetry, shape (n, n)."""
    seen, first = np.zeros((counts.sum(),) * 2, np.int64), np.cumsum(counts) - counts
    for rank in range(len(counts)):
        for strip in (strip for group in strips(counts, rank, tiles) for strip in group):
            mine = slice(*(first[rank] + one for one in strip.rows))
            if strip.symmetric:
                seen[mine, mine] += 1
            for tile in strip.tiles:
                theirs = slice(*(first[strip.rank] + one for one in tile))
                seen[mine, theirs] += 1
                seen[theirs, mine] += 1
    return seen
