"""K-means parts (Algorithms 2 and 7): Lloyd's iteration, one Allreduce per round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from cacore.checks import at_least_zero, whole
from partition.assign import PartRows
from partition.base import Algorithm
from partition.two_levels import Found, two_levels

LLOYD = {"tol": at_least_zero, "max_iter": whole(0)}  # checks of the parameters of `k_means`
ONE_LEVEL = 128  # most parts whose centres are found in one level


@dataclass(eq=False, repr=False, kw_only=True)
class KMeans(Algorithm, name="kmeans"):
    """K-means: each row belongs to the part of its nearest centre; the sizes of the parts follow the data.

    Parameters
    ----------
    n_parts : int
    tol : float
        Stop after a round in which at most this share of the rows changes part.
    max_iter : int
        Largest number of rounds.
    random_state : int, RandomState or None

    Attributes
    ----------
    n_iter_ : int
        Number of rounds.

    Notes
    -----
    2 n P d flops and one Allreduce of P x (d+1) numbers per round. Beyond 128 parts, the centres are found in two
    levels (:mod:`partition.two_levels`). No part is empty, even if many rows are equal.
    """

    checks = Algorithm.checks | LLOYD

    tol: float = 1e-3
    max_iter: int = 500

    def _partition(
        self, rows: PartRows, y: NDArray[np.generic] | None
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        labels, centers, sizes, self.n_iter_ = k_means(rows, self.n_parts, self.tol, self.max_iter)
        _fill_empty(rows, labels, centers, sizes)
        return labels, centers


def k_means(rows: PartRows, P: int, tol: float, max_iter: int) -> Found:
    """Find P centres by K-means, in two levels if there are many; collective. The result is that of :func:`lloyd`."""
    one_level = partial(lloyd, tol=tol, max_iter=max_iter)
    return one_level(rows, P) if P <= ONE_LEVEL else two_levels(rows, P, one_level)


def lloyd(rows: PartRows, P: int, tol: float, max_iter: int) -> Found:
    """Run Lloyd's iteration from P random rows; collective.

    Returns
    -------
    labels : ndarray of int32, shape (n_local,)
        Number of the nearest of the returned centres.
    centers : ndarray, shape (P, d)
    sizes : ndarray of int64, shape (P,)
        0 is possible: with many equal rows, two centres may coincide, and the lower number takes all their rows.
    n_iter : int
        Number of rounds.
    """
    d = rows.X.shape[1]
    centers = rows.take(rows.shuffle.row(np.arange(P)))
    labels = np.full(len(rows), -1, np.int32)
    n_iter, moving, fewest = 0, True, P + 1
    while moving and n_iter < max_iter:
        n_iter += 1
        sums, counts, changed = rows.step(centers, labels)
        total = rows.comm.allreduce(np.concatenate([sums.ravel(), counts, [changed]]))
        sizes = total[P * d : P * d + P]
        centers = np.where(sizes[:, None] > 0, total[: P * d].reshape(P, d) / np.maximum(sizes, 1)[:, None], centers)
        empty = np.flatnonzero(sizes == 0)
        reseeded = _reseed(rows, labels, centers, empty)
        # Reseed only while it leaves fewer parts empty: there may be fewer distinct rows than parts.
        moving = total[-1] > float(tol) * rows.n or (reseeded > 0 and len(empty) < fewest)
        fewest = min(fewest, len(empty))
    _, counts, _ = rows.step(centers, labels, sums=False)
    return labels, centers, rows.comm.allreduce(counts), n_iter


def _reseed(rows: PartRows, labels: NDArray[np.int32], centers: NDArray[np.float64], empty: NDArray[np.intp]) -> int:
    """Move the centres of empty parts to the rows farthest from their own centres; return the number moved."""
    if not empty.size:
        return 0
    far = rows.squared_distances(centers, labels)
    here = np.lexsort((rows.order, -far))[: empty.size]
    found = rows.comm.allgather(np.column_stack([far[here], rows.first + here.astype(np.float64)]))
    found = found[np.lexsort((found[:, 1], -found[:, 0]))][: empty.size]
    # The mean of equal rows differs from them by rounding errors: such a distance must not seed a part.
    found = found[found[:, 0] > 1e-20 * np.square(centers).sum(axis=1).max()]
    if len(found):
        centers[empty[: len(found)]] = rows.take(found[:, 1].astype(np.int64))
    return len(found)


def _fill_empty(
    rows: PartRows, labels: NDArray[np.int32], centers: NDArray[np.float64], sizes: NDArray[np.int64]
) -> None:
    """Give each empty part one row of the largest part, since every part needs rows to train on."""
    for part in np.flatnonzero(sizes == 0):
        donor = int(np.argmax(sizes))
        place = rows.order[np.flatnonzero(labels == donor)].min(initial=rows.n)
        first = rows.shuffle.row(rows.comm.allreduce(np.array([place]), "min"))
        if rows.first <= first[0] < rows.first + len(rows):
            labels[first[0] - rows.first] = part
        centers[part] = rows.take(first)[0]
        sizes[donor] -= 1
        sizes[part] += 1
