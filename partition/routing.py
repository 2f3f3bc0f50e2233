"""Routing: which parts' models answer for a row, and with what weight. The one place that decides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows, is_sparse
from cacore.kernels import Kernel, Points
from cacore.machine.threads import blocks, for_blocks
from partition.assign import PartRows

_BLOCK_BYTES = 1 << 22


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


def closest(X: Rows, centers: NDArray[np.float64], k: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The k nearest centres of each row, the nearest first, and the squared distances to them.

    Parameters
    ----------
    X : ndarray or CSR, shape (n, d)
    centers : ndarray, shape (P, d)
    k : int
        At most P.

    Returns
    -------
    parts : ndarray of int32, shape (n, k)
    squares : ndarray of float64, shape (n, k)

    Notes
    -----
    2 n P d flops on all threads; block-sized memory.
    """
    shift = None if is_sparse(X) else centers.mean(axis=0)
    middle = Points(centers, shift)
    parts, squares = np.empty((X.shape[0], k), np.int32), np.empty((X.shape[0], k))
    linear = Kernel("linear")

    def rows(lo: int, hi: int) -> None:
        points = Points(X[lo:hi].astype(np.float64), shift)
        distances = points.squares[:, None] + middle.squares - 2.0 * linear.block(points, middle)
        order = np.argsort(distances, axis=1, kind="stable")[:, :k]
        parts[lo:hi] = order
        squares[lo:hi] = np.maximum(np.take_along_axis(distances, order, axis=1), 0.0)

    widest = len(centers) if is_sparse(X) else max(centers.shape)
    for_blocks(rows, blocks(X.shape[0], max(1, _BLOCK_BYTES // (8 * widest))))
    return parts, squares


@dataclass(frozen=True)
class Soft:
    """Soft routing: the models of the k nearest centres, weighted by exp(-(d^2 - d_min^2)/t).

    Attributes
    ----------
    k : int
    t : float
        Squared distance, beyond that of the nearest centre, at which the weight has fallen to 1/e.
    """

    k: int
    t: float

    def weights(self, squares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weights that add up to 1 in each row.

        Parameters
        ----------
        squares : ndarray, shape (n, K)
            Squared distances to the K nearest centres, ascending; beyond the k-th the weight is 0.
        """
        with np.errstate(over="ignore"):  # where t is next to nothing, so is the weight
            weights = np.exp(-(squares - squares[:, :1]) / max(self.t, np.finfo(float).tiny))
        weights[:, self.k :] = 0.0
        weights /= weights.sum(axis=1, keepdims=True)
        return weights

    def scaled(self, unit: float, P: int) -> Soft:
        """The same with t in another unit, of P models at most."""
        return Soft(min(self.k, P), self.t * unit)

    def of_all(self, X: Rows, centers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weights of the models of all P centres for each row, shape (n, P), in the order of the centres."""
        parts, squares = closest(X, centers, len(centers))
        weights = np.empty_like(squares)
        np.put_along_axis(weights, parts, self.weights(squares), axis=1)
        return weights


SOFT = Soft(4, 0.35)  # where it is not chosen by held-out rows; t in units of their `gap`


def gap(X: Rows, centers: NDArray[np.float64], comm: Communicator) -> float:
    """Mean of d_2^2 - d_1^2, of the two nearest of at least two centres, over all ranks' rows: a unit for t."""
    _, squares = closest(X, centers, 2)
    total = comm.allreduce(np.array([(squares[:, 1] - squares[:, 0]).sum(), len(squares)]))
    return float(total[0] / max(total[1], 1.0))


def double_variance(X: Rows, centers: NDArray[np.float64], comm: Communicator) -> float:
    """Twice the variance of all ranks' rows about their centres: the t with which weights are probabilities.

    If each part's rows are Gaussian about its centre, with one variance s^2 in the directions in which rows vary, a row
    is of a part with probability as exp(-d^2 / (2 s^2)). With covariance S, d^2 has mean tr S and variance 2 tr S^2,
    and s^2 = tr S^2 / tr S: t = 2 s^2 is the variance of d^2 over its mean, with d^2 to the nearest centre. Centres of
    random parts differ by next to nothing on this scale, those of clusters by a lot.
    """
    _, squares = closest(X, centers, 1)
    n, total, square = comm.allreduce(np.array([len(squares), squares.sum(), np.vdot(squares, squares)]))
    return float(max(square - total**2 / max(n, 1.0), 0.0) / total) if total > 0 else 0.0
