"""Blocks of rows, one per thread."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows
from partition.algorithms.kmeans import KMeans
from partition.routing import nearest

_SAMPLE = 20_000  # rows that K-means clusters
_CLUSTERS = 16  # clusters per thread
_ROUNDS = 20  # of K-means


def blocks(X: Rows, threads: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide the rows into blocks of equal size, one per thread, of rows that lie close to each other.

    K-means clusters at most 20,000 rows, and all rows are sorted by their nearest centre (section 4.4). There are more
    clusters than threads, and blocks are cut at equal sizes: clusters differ in size, and the slowest thread decides.

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
        Index in `order` at which each block begins; sizes differ by at most 1.

    Notes
    -----
    2 x 16 T d flops per row: once for all rows, and in each of at most 20 rounds for the rows of the sample.
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
