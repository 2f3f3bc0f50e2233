"""Shrunken means of targets by the levels of a category, and those of training rows without the row's own fold.

The prior is the mean of all rows (Micci-Barreca, 2001), and folds are as in scikit-learn's TargetEncoder.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FOLDS = 5


def level_means(
    codes: NDArray[np.int32], n_levels: int, targets: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Shrunken means of the targets of each level and of gaps, of all rows, and for each row without its own fold.

    Parameters
    ----------
    codes : ndarray of int32, shape (n,)
        Level of each row; -1 for a gap.
    n_levels : int
    targets : ndarray of float64, shape (n, t)
    weights : ndarray of float64, shape (n,)
        Weights of the rows, whose sum is n.

    Returns
    -------
    ndarray of float64, shapes (n_levels + 1, t), (t,) and (n, t)

    Notes
    -----
    Three passes over the rows per target, and 16 FOLDS n_levels bytes.
    """
    k = n_levels + 1
    fold = np.random.default_rng(0).permutation(len(codes)) % FOLDS
    cell = fold * k + np.where(codes < 0, n_levels, codes)
    middle = (weights @ targets) / weights.sum()  # sums of squares are small around it
    counts = np.bincount(cell, weights, FOLDS * k).reshape(FOLDS, k)
    sums, squares = np.empty((FOLDS, k, targets.shape[1])), np.empty((FOLDS, targets.shape[1]))
    for t, y in enumerate((targets - middle).T):
        wy = weights * y
        sums[:, :, t] = np.bincount(cell, wy, FOLDS * k).reshape(FOLDS, k)
        squares[:, t] = np.bincount(fold, wy * y, FOLDS)
    # The sum of the other folds, not the difference to that of all, which rounding would keep from being 0.
    others = [np.flatnonzero(np.arange(FOLDS) != f) for f in range(FOLDS)]
    by_fold = np.stack([_shrunken(*(a[f].sum(axis=0) for a in (counts, sums, squares)))[0] for f in others])
    means, overall = (middle + a for a in _shrunken(*(a.sum(axis=0) for a in (counts, sums, squares))))
    return means, overall, (middle + by_fold).reshape(FOLDS * k, -1)[cell]


def _shrunken(
    counts: NDArray[np.float64], sums: NDArray[np.float64], squares: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weighted means of the targets by level, shape (k, t), shrunken towards those of all rows, shape (t,).

    The share of a level's own mean is n / (n + s2 / v), for the sum n of the weights of its rows, the variance s2
    within levels and v between them.

    Parameters
    ----------
    counts : ndarray, shape (k,)
        Sums of the weights by level; their total is about the number of rows.
    sums : ndarray, shape (k, t)
        Weighted sums of the targets by level.
    squares : ndarray, shape (t,)
        Weighted sums of the squares of the targets of all rows.
    """
    n, levels = float(counts.sum()), int(np.count_nonzero(counts))
    overall = sums.sum(axis=0) / n
    level = sums / np.where(counts > 0.0, counts, 1.0)[:, None]
    within = np.maximum(0.0, squares - (level * sums).sum(axis=0)) / max(1.0, n - levels)
    between = np.maximum(0.0, counts @ (level - overall) ** 2 - within * levels) / n
    of_level = counts[:, None] * between
    return overall + of_level / np.maximum(of_level + within, 1e-300) * (level - overall), overall
