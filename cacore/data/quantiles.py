"""Normal scores: each feature replaced by what its rank would be in a normal distribution (van der Waerden, 1952).

One heavy tail stretches a kernel's distances so far that the other rows look alike. Scores depend on the order of a
feature's values alone, as the splits of a decision tree do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.shuffle import Shuffle

SCORES = np.linspace(-3.9, 3.9, 1001)
SAMPLE = 10_000  # rows that quantiles are taken from, on every rank


def quantiles_of(X: NDArray[np.floating], seed: int, comm: Communicator) -> NDArray[np.float64]:
    """Where each of `SCORES` lies among a feature's values, in a sample of all ranks' rows; collective.

    Parameters
    ----------
    X : ndarray, shape (n_local, d)
        This rank's rows; finite.
    seed : int
        Of the sample, which does not depend on how the rows lie on ranks.
    comm : Communicator

    Returns
    -------
    ndarray, shape (len(SCORES), d)
        Ascending along the first axis.

    Notes
    -----
    One Allgather of at most `SAMPLE` rows, and their sorting.
    """
    from scipy.special import ndtr  # which a command without normal scores does not load

    first, n = comm.offset(len(X))
    chosen = Shuffle(n, seed).position(np.arange(first, first + len(X))) < SAMPLE
    sample = comm.allgather(X[chosen].astype(np.float64, copy=False))
    return np.asarray(np.quantile(sample, ndtr(SCORES), axis=0, method="hazen"))


def normal_scores(X: NDArray[np.floating], quantiles: NDArray[np.float64]) -> NDArray[np.floating]:
    """The scores of rows, shape (n, d), in the dtype of `X`.

    Linear between the quantiles and constant beyond them. A value that several share, as a frequent one does, has the
    score of the middle of their probabilities; a constant feature has 0.

    Notes
    -----
    n d log(len(SCORES)) comparisons; one more array of the size of `X`.
    """
    from scipy.special import ndtr, ndtri

    out, probabilities = np.empty_like(X), ndtr(SCORES)
    for j, column in enumerate(quantiles.T):
        values, first, count = np.unique(column, return_index=True, return_counts=True)
        middle = (probabilities[first] + probabilities[first + count - 1]) / 2.0
        out[:, j] = np.interp(X[:, j], values, ndtri(middle))
    return out
