"""Routing: the parts whose models answer for a row, and the weights of their answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import AnyRows, is_sparse
from cacore.kernels import Kernel, Points
from cacore.machine.threads import blocks, for_blocks, rows_in
from partition.assign import PartRows

_FAR = 1e4  # |mean| over the range of the centres from which a feature of sparse rows is shifted
_BLOCK_BYTES = 1 << 22


def nearest(X: AnyRows, centers: NDArray[np.float64]) -> NDArray[np.int32]:
    """Index of the nearest centre of each row; ties go to the lower index.

    Parameters
    ----------
    X : ndarray or CSR, shape (n, d)
    centers : ndarray, shape (P, d)

    Returns
    -------
    ndarray of int32, shape (n,)

    Notes
    -----
    2 n P d flops on all threads; memory for one block per thread. Local: every rank routes its own rows.
    """
    labels = np.full(X.shape[0], -1, np.int32)
    if X.shape[0]:
        PartRows(X, Communicator(), seed=0).step(centers, labels, sums=False)
    return labels


def closest(X: AnyRows, centers: NDArray[np.float64], k: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Indices of the k nearest centres of each row, nearest first, and the squared distances to them.

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
    2 n P d flops on all threads; memory for one block per thread.
    """
    parts, squares = np.empty((X.shape[0], k), np.int32), np.empty((X.shape[0], k))

    def keep(lo: int, hi: int, squared: NDArray[np.float64]) -> None:
        order = np.argsort(squared, axis=1, kind="stable")[:, :k]
        parts[lo:hi] = order
        squares[lo:hi] = np.maximum(np.take_along_axis(squared, order, axis=1), 0.0)

    _squared(X, centers, keep)
    return parts, squares


def distances(X: AnyRows, centers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Euclidean distances of the rows to all centres, shape (n, P), as float64: 2 n P d flops on all threads."""
    distances = np.empty((X.shape[0], len(centers)))

    def keep(lo: int, hi: int, squared: NDArray[np.float64]) -> None:
        np.sqrt(np.maximum(squared, 0.0), out=distances[lo:hi])

    _squared(X, centers, keep)
    return distances


def _squared(X: AnyRows, centers: NDArray[np.float64], keep: Callable[[int, int, NDArray[np.float64]], None]) -> None:
    """Call ``keep(lo, hi, squares)`` for blocks of rows; rounding may make a squared distance negative."""
    mean = centers.mean(axis=0)
    shift: NDArray[np.float64] | None = mean
    if is_sparse(X):  # only where all centres lie together and far from 0, so that rows stay sparse
        far = (np.abs(mean) > _FAR * np.ptp(centers, axis=0)) & (len(centers) > 1)
        shift = np.where(far, mean, 0.0) if far.any() else None
    middle, linear = Points(centers, shift), Kernel("linear")

    def rows(lo: int, hi: int) -> None:
        points = Points(X[lo:hi].astype(np.float64), shift)
        keep(lo, hi, points.squares[:, None] + middle.squares - 2.0 * linear.block(points, middle))

    widest = len(centers) if is_sparse(X) else max(centers.shape)
    for_blocks(rows, blocks(X.shape[0], rows_in(_BLOCK_BYTES, widest)))


@dataclass(frozen=True)
class Soft:
    """Soft routing: the models of the k nearest centres answer, with weights exp(-(d^2 - d_min^2)/t).

    Attributes
    ----------
    k : int
    t : float
        Increase in squared distance, relative to the nearest centre, at which the weight falls to 1/e.
    """

    k: int
    t: float

    def weights(self, squares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weights of the models for each row, with sum 1.

        Parameters
        ----------
        squares : ndarray, shape (n, K)
            Squared distances to the K nearest centres, ascending; from the (k+1)-th on, weights are 0.
        """
        with np.errstate(over="ignore"):  # for a tiny t the quotient overflows, and the weight is 0 as it should be
            weights = np.exp(-(squares - squares[:, :1]) / max(self.t, np.finfo(float).tiny))
        weights[:, self.k :] = 0.0
        weights /= weights.sum(axis=1, keepdims=True)
        return weights

    def scaled(self, unit: float, P: int) -> Soft:
        """Return this routing with t multiplied by `unit`, and with k at most P."""
        return Soft(min(self.k, P), self.t * unit)

    def of_all(self, X: AnyRows, centers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weights of all P models for each row, shape (n, P), in the order of the centres."""
        parts, squares = closest(X, centers, len(centers))
        weights = np.empty_like(squares)
        np.put_along_axis(weights, parts, self.weights(squares), axis=1)
        return weights


SOFT = Soft(4, 0.35)  # default, if held-out rows do not choose k and t; t in units of `gap`


def gap(X: AnyRows, centers: NDArray[np.float64], comm: Communicator) -> float:
    """Mean of d_2^2 - d_1^2 over all ranks' rows, d_1 and d_2 to the two nearest centres: a unit for t; collective."""
    _, squares = closest(X, centers, 2)
    total = comm.allreduce(np.array([(squares[:, 1] - squares[:, 0]).sum(), len(squares)]))
    return float(total[0] / max(total[1], 1.0))


def double_variance(X: AnyRows, centers: NDArray[np.float64], comm: Communicator) -> float:
    """Twice the variance of all ranks' rows about their centres: with this t, weights are probabilities; collective.

    Suppose that each part's rows are Gaussian about its centre, with the same variance s^2 in the directions in which
    rows vary. The probability that a row belongs to a part is then proportional to exp(-d^2 / (2 s^2)), so t = 2 s^2.
    For covariance S, d^2 has mean tr S and variance 2 tr S^2. With s^2 = tr S^2 / tr S, t is the variance of d^2 over
    its mean, where d is the distance to the nearest centre. On this scale the centres of random parts almost coincide,
    and the centres of clusters are far apart.
    """
    _, squares = closest(X, centers, 1)
    n, total, square = comm.allreduce(np.array([len(squares), squares.sum(), np.vdot(squares, squares)]))
    return float(max(square - total**2 / max(n, 1.0), 0.0) / total) if total > 0 else 0.0
