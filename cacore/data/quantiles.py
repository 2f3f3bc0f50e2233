"""Normal scores: each value of a feature is replaced by the normal quantile of its rank (van der Waerden, 1952).

A heavy tail stretches the distances so much that all other rows look alike to a kernel. Normal scores depend only on
the order of a feature's values, like the splits of a decision tree.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.shuffle import Shuffle

SCORES = np.linspace(-3.9, 3.9, 1001)
SAMPLE = 10_000  # rows of all ranks from which the quantiles are estimated


def quantiles_of(X: NDArray[np.floating], seed: int, comm: Communicator) -> NDArray[np.float64]:
    """Value of each feature at each of `SCORES`, estimated from a sample of all ranks' rows; collective.

    Parameters
    ----------
    X : ndarray, shape (n_local, d)
        This rank's rows; finite.
    seed : int
        Seed of the sample, which does not depend on the distribution of the rows over ranks.
    comm : Communicator

    Returns
    -------
    ndarray, shape (len(SCORES), d)
        Ascending along the first axis.

    Notes
    -----
    One Allgather of at most `SAMPLE` rows, which every rank sorts.
    """
    from scipy.special import ndtr  # not loaded by commands without normal scores

    first, n = comm.offset(len(X))
    chosen = Shuffle(n, seed).position(np.arange(first, first + len(X))) < SAMPLE
    sample = comm.allgather(X[chosen].astype(np.float64, copy=False))
    return np.asarray(np.quantile(sample, ndtr(SCORES), axis=0, method="hazen"))


def normal_scores(X: NDArray[np.floating], quantiles: NDArray[np.float64]) -> NDArray[np.floating]:
    """Normal scores of rows, shape (n, d), in the dtype of `X`.

    Scores are interpolated linearly between the quantiles and constant beyond them. If several quantiles share a value,
    because it is frequent, its score is that of the middle of their probabilities. A constant feature gets 0.

    Notes
    -----
    n d log(len(SCORES)) comparisons; memory for one more array of the size of `X`.
    """
    out = np.empty_like(X)
    for j, curve in enumerate(curves(quantiles)):
        out[:, j] = np.interp(X[:, j], *curve)
    return out


def curves(quantiles: NDArray[np.float64]) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Points of the piecewise linear curve of each feature: distinct quantiles, ascending, and their normal scores."""
    from scipy.special import ndtr, ndtri

    probabilities = ndtr(SCORES)
    for column in quantiles.T:
        values, first, count = np.unique(column, return_index=True, return_counts=True)
        yield values, ndtri((probabilities[first] + probabilities[first + count - 1]) / 2.0)
