"""Routing: which part's model answers for a row. The one place that decides."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.rows import Rows
from partition.assign import PartRows


def nearest(X: Rows, centers: NDArray[np.float64]) -> NDArray[np.int32]:
    """Number of the nearest centre of each row (ties to the lower number).

    Parameters
    ----------
    X : ndarray or CSR, shape (n, d)
    centers : ndarray, shape (P, d)

    Returns
    -------
    ndarray of int32, shape (n,)

    Notes
    -----
    2 n P d flops on all threads; block-sized memory. Local: every rank routes its own rows.
    """
    labels = np.full(X.shape[0], -1, np.int32)
    if X.shape[0]:
        PartRows(X, Communicator(), seed=0).step(centers, labels, sums=False)
    return labels
