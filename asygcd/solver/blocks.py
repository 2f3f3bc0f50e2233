"""Which thread owns which rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows
from partition.algorithms.kmeans import KMeans
from partition.routing import nearest

_SAMPLE = 20_000  # rows that K-means sees
_CLUSTERS = 16  # a thread
_ROUNDS = 20


def blocks(X: Rows, threads: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Blocks of rows that lie close to each other, as many rows in each.

    K-means on at most 20,000 rows, and the nearest centre for all (section 4.4); but with more clusters than
    threads, which get as many rows each: clusters differ in size, and the slowest thread decides.

    Parameters
    ----------
    X : ndarray or CSR, shape (n, d)
    threads : int
        T, at most n.
    seed : int

    Returns
    -------
    order : ndarray of int64, shape (n,)
        The rows, block by block.
    bounds : ndarray of int64, shape (T + 1,)
        Where each block begins in `order`; sizes differ by at most 1.

    Notes
    -----
    2 x 16 T d flops a row, for all rows and for each of at most 20 rounds on the sample.
    """
    n = int(X.shape[0])
    if threads == 1:
        return np.arange(n), np.array([0, n])
    count = int(np.clip(n // 8, threads, _CLUSTERS * threads))
    rng = np.random.default_rng(seed)
    sample = np.sort(rng.choice(n, min(n, _SAMPLE), replace=False))
    centers = KMeans(count, max_iter=_ROUNDS, random_state=int(rng.integers(1 << 31))).divide(X[sample]).centers
    order = np.argsort(nearest(X, centers), kind="stable")
    return order, np.arange(threads + 1) * n // threads
