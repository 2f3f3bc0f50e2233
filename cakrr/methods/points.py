"""Choice of the M points of a model: a random sample of the rows, pivots of the kernel matrix, K-means, or given."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.data.rows import Rows, dense, gather_rows, is_sparse
from cacore.data.shuffle import Shuffle
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.linalg.pivoted import pivoted_cholesky
from cakrr.iterative.spread import SpreadRows
from partition.divide import divide

SAMPLE = 20_000  # rows among which pivots or means are found; or ten per point, if that is more


def picked(how: str, samples: Samples, M: int, kernel: Kernel, seed: int, comm: Communicator) -> Rows:
    """At most M distinct points, in double precision, on every rank; collective.

    Parameters
    ----------
    how : {"random", "pivots", "kmeans"}
    samples : Samples
        This rank's standardised rows.
    M : int
    kernel : Kernel
        For pivots.
    seed : int
    comm : Communicator

    Notes
    -----
    The first distinct rows of a shuffled order are the random points, the same on any number of ranks; 2 M d numbers
    are sent to all ranks. Pivots and means are found among 20,000 rows of this order, or 10 M: m M^2 flops for the
    pivots among m rows, and m M d per step of K-means.
    """
    first, n = comm.offset(len(samples))
    place = Shuffle(n, seed).position(np.arange(first, first + len(samples)))
    if how == "random":
        own = place < 2 * M  # some may be repeated
        found = gather_rows(samples.X[own], comm)[np.argsort(comm.allgather(place[own]))]
        return distinct(found.astype(np.float64))[:M]
    own = place < max(SAMPLE, 10 * M)
    X = samples.X[own]
    if how == "kmeans":
        return distinct(np.asarray(divide("kmeans", M, X, comm, seed).centers, np.float64))
    weights = samples["weight"][own] if "weight" in samples.columns else None
    spread = SpreadRows(X, place[own], kernel, comm, weights)
    centers = pivoted_cholesky(spread, kernel, M, seed, lambda traces: False, np.float64).centers
    if not centers.shape[0]:  # all kernel values are 0, so any point will do
        return picked("random", samples, 1, kernel, seed, comm)
    return distinct(centers.astype(np.float64))


def distinct(points: Rows) -> Rows:
    """The points without repetitions, in their order."""
    _, first = np.unique(dense(points), axis=0, return_index=True)
    return points if len(first) == points.shape[0] else points[np.sort(first)]


def given(points: Rows, d: int | None = None) -> Rows:
    """The user's points, checked.

    Raises
    ------
    InputError
        They are not (M, d) finite numbers, or two of them coincide.
    """
    if not is_sparse(points):
        points = np.asarray(points)
        if points.ndim != 2 or points.dtype.kind not in "fiub":
            raise InputError(f"centers: an array of shape {points.shape} and type {points.dtype}; give (M, d) numbers")
    if not points.shape[0] or (d is not None and points.shape[1] != d):
        raise InputError(f"centers: their shape is {points.shape}, and the rows have {d} features")
    values: NDArray[np.float64] = dense(points).astype(np.float64)
    if not np.isfinite(values).all():
        i, j = np.argwhere(~np.isfinite(values))[0]
        raise InputError(f"centers: row {i}, column {j} is {values[i, j]}; leave this center out")
    _, first, which = np.unique(values, axis=0, return_index=True, return_inverse=True)
    which = which.ravel()
    again = np.flatnonzero(first[which] != np.arange(len(values)))
    if again.size:
        raise InputError(f"centers: rows {first[which[again[0]]]} and {again[0]} coincide; leave one of them out")
    return points.astype(np.float64)
