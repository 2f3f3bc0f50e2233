"""Weights of several models, from their predictions for rows that none of them was trained on.

Predictions are numbers, or probabilities of the classes, whose targets are 1 for a row's class and 0 for the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from cacore.comm import Communicator

Judge = Callable[[NDArray[np.float64]], bool]  # true if predictions whose weights know other rows are good enough

_PAYS = 0.995  # a blend is kept if its error is below this share of the best model's
_LEAST = 0.05  # least weight of a model
_PRIOR = 0.1  # variance of a weight around equal weights before any rows are seen
GROUPS = 5  # of the judged rows, each judging weights that the others gave


def weights(
    held: Sequence[NDArray[np.float64]], y: NDArray[np.float64], w: NDArray[np.float64], group: NDArray[np.int64],
    comm: Communicator, judge: Judge | None = None,
) -> NDArray[np.float64]:  # fmt: skip
    """Weights of the models, which add up to 1; a single 1, of the first one, where a blend does not pay; collective.

    Parameters
    ----------
    held : sequence of ndarray, shape (m, ...)
        Each model's predictions for this rank's judged rows, the best model first.
    y : ndarray, shape (m, ...)
    w : ndarray, shape (m,)
        Weights of the rows.
    group : ndarray of int64, shape (m,)
        Number of each row's group, below `GROUPS`.
    comm : Communicator
    judge : callable or None
        Decides, on all ranks alike, from predictions for this rank's rows by weights that do not know them; None leaves
        the decision to their squared error alone.

    Returns
    -------
    ndarray of float64, shape (k,)

    Notes
    -----
    Least squares with non-negative weights of sum 1, on the sums E'E of the models' errors in each group: one Allreduce
    of `GROUPS` k (k + 1) numbers. Since weights add up to 1, the error of a blend is the blend of the errors. Sums of
    predictions would lose the errors to rounding where targets are far from 0.
    Equal weights are the prior, so that few rows move them little. A blend is kept if its error on the rows of
    each group, by weights from the other groups, is .5 % below that of the model that is best on the other groups. The
    best model on all judged rows would be too strict a measure: chosen among many by these rows, it looks better on
    them than it is.
    """
    k = len(held)
    alone: NDArray[np.float64] = np.eye(1, k)[0]
    if k < 2:
        return alone
    P = np.stack(held).reshape(k, len(y), math.prod(y.shape[1:]))
    errors = P - y.reshape(P.shape[1:])
    groups = [_Sums.of(errors[:, group == i], w[group == i]) for i in range(GROUPS)]
    with comm.uncounted():
        sums = comm.allreduce(np.stack([one.packed for one in groups]))
    every = _Sums(sums.sum(axis=0))
    if not np.isfinite(every.packed).all():
        return alone
    others = [_Sums(every.packed - one) for one in sums]
    blends = np.stack([one.fitted() for one in others])
    single = np.stack([np.eye(k)[one.best()] for one in others])
    blended, chosen = (
        sum(_Sums(one).squares(v) for v, one in zip(found, sums, strict=True)) for found in (blends, single)
    )
    if not math.sqrt(blended) < _PAYS * math.sqrt(chosen):
        return alone
    if judge is not None and not judge(np.einsum("ia,aij->ij", blends[group], P).reshape(held[0].shape)):
        return alone
    kept = np.flatnonzero(every.fitted() >= _LEAST)
    few = np.zeros(k)
    few[kept] = every.some(kept).fitted()
    return few


@dataclass(frozen=True)
class _Sums:
    """Sums over rows that give the weights: E'E of the models' errors, and the weight of all numbers of y.

    Attributes
    ----------
    packed : ndarray of float64, shape (k + 1, k)
        The last row holds the weight.
    """

    packed: NDArray[np.float64]

    @classmethod
    def of(cls, errors: NDArray[np.float64], w: NDArray[np.float64]) -> _Sums:
        """Sums of the errors, shape (k, m, t), of rows with weights."""
        squares = np.einsum("aij,bij,i->ab", errors, errors, w)
        return cls(np.vstack([squares, np.full(len(errors), errors.shape[2] * w.sum())]))

    def some(self, models: NDArray[np.intp]) -> _Sums:
        """Sums of some of the models."""
        return _Sums(self.packed[np.ix_(np.append(models, -1), models)])

    def squares(self, weights: NDArray[np.float64]) -> float:
        """Sum of squared errors of a blend."""
        return max(float(weights @ self.packed[:-1] @ weights), 0.0)

    def best(self) -> int:
        """The model with the smallest squared error."""
        return int(np.argmin(np.diagonal(self.packed[:-1])))

    def fitted(self) -> NDArray[np.float64]:
        """Non-negative weights with sum 1 that are likeliest, for errors with the variance of the best model's.

        That they add up to 1 keeps constants right: a heavy row of ones asks for it.
        """
        k = self.packed.shape[1]
        scale = float(np.trace(self.packed[:-1])) / k or 1.0
        variance = self.squares(np.eye(k)[self.best()]) / (self.packed[-1, 0] or 1.0)
        prior = variance / (_PRIOR * scale)
        G, b = self.packed[:-1] / scale + prior * np.eye(k), np.full(k, prior / k)
        values, vectors = np.linalg.eigh(G)
        root = np.sqrt(np.clip(values, 1e-12 * max(values[-1], 1e-300), None))
        A = np.vstack([root[:, None] * vectors.T, np.full(k, 1e3)])
        found = nnls(A, np.append((vectors.T @ b) / root, 1e3))[0]
        total = found.sum()
        return np.asarray(found / total if total > 0 else np.eye(1, k)[0])
