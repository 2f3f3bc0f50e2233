"""Pairwise coupling: class probabilities from those of pairs of classes.

This is the second method of Wu, Lin and Weng (2004), which LIBSVM uses as well.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

LEAST = 1e-7  # smallest probability of a class in a pair, as in LIBSVM
_BLOCK_BYTES = 1 << 25


def coupled(pairs: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """Probabilities of k classes from those of their pairs.

    Parameters
    ----------
    pairs : ndarray, shape (n, k (k - 1) / 2)
        Probability of the first class of each pair (0, 1), (0, 2), ..., (1, 2), ..., given that the row belongs to one
        of the two.
    k : int

    Returns
    -------
    ndarray, shape (n, k)
        Positive numbers with row sums 1: the p that minimises sum_i sum_{j != i} (r_ji p_i - r_ij p_j)^2, with r_ij the
        probability of class i in its pair with j.

    Notes
    -----
    Q p + b e = 0 and e'p = 1 are solved directly, with Q_ii = sum_j r_ji^2 and Q_ij = -r_ji r_ij: 2/3 (k + 1)^3 flops
    per row. LIBSVM iterates instead, until Q p is constant to 0.005 / k.
    """
    r = np.clip(pairs, LEAST, 1.0 - LEAST)
    if k == 2:
        return np.concatenate([r, 1.0 - r], axis=1)
    out = np.empty((len(r), k))
    step = max(1, _BLOCK_BYTES // (8 * (k + 1) ** 2))
    right = np.zeros((k + 1, 1))
    right[k] = 1.0
    for lo in range(0, len(r), step):
        system = _system(r[lo : lo + step], k)
        out[lo : lo + step] = np.linalg.solve(system, np.broadcast_to(right, (len(system), k + 1, 1)))[:, :k, 0]
    np.maximum(out, np.finfo(np.float64).tiny, out=out)  # positive, except for rounding
    return np.asarray(out / out.sum(axis=1, keepdims=True))


def _system(r: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """Matrices Q with a border of ones, shape (n, k + 1, k + 1)."""
    system = np.zeros((len(r), k + 1, k + 1))
    for pair, (i, j) in enumerate(combinations(range(k), 2)):
        one, other = r[:, pair], 1.0 - r[:, pair]
        system[:, i, j] = system[:, j, i] = -one * other
        system[:, i, i] += other**2
        system[:, j, j] += one**2
    system[:, :k, k] = system[:, k, :k] = 1.0
    return system
