"""Weights of several models, from their predictions for rows that none of them was trained on.

Predictions are numbers, or probabilities of the classes, whose targets are 1 for a row's class and 0 for the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from cacore.comm import Communicator

Judge = Callable[[NDArray[np.float64]], bool]  # true if predictions whose weights know other rows are good enough

_PAYS = 0.995  # a blend is kept if its error is below this share of the best model's
_LEAST = 0.05  # least weight of a model
MOST = 4  # models in a blend


def weights(
    held: Sequence[NDArray[np.float64]], y: NDArray[np.float64], w: NDArray[np.float64], half: NDArray[np.bool_],
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
    half : ndarray of bool, shape (m,)
        Mask of the rows that judge weights fitted to the others, and the other way round.
    comm : Communicator
    judge : callable or None
        Decides, on all ranks alike, from predictions for this rank's rows by weights that do not know them; None leaves
        the decision to their squared error alone.

    Returns
    -------
    ndarray of float64, shape (k,)

    Notes
    -----
    Non-negative least squares on the sums P'P and P'y of each half: one Allreduce of 2 (k + 1)^2 numbers. A blend is
    kept if its error on rows that its weights do not know is .5 % below the best model's.
    """
    k = len(held)
    alone: NDArray[np.float64] = np.eye(1, k)[0]
    if k < 2:
        return alone
    P = np.stack([*held, y])
    P = P.reshape(k + 1, len(y), math.prod(y.shape[1:]))
    sums = np.stack([np.einsum("aij,bij,i->ab", P[:, rows], P[:, rows], w[rows]) for rows in (half, ~half)])
    with comm.uncounted():
        sums = comm.allreduce(sums)
    both = sums.sum(axis=0)
    if not np.isfinite(both).all():
        return alone
    others = [_fitted(sums[1 - i]) for i in range(2)]
    crossed = sum(_squares(others[i], sums[i]) for i in range(2))
    if not math.sqrt(max(crossed, 0.0)) < _PAYS * math.sqrt(_squares(alone, both)):
        return alone
    if judge is not None:
        unknown = np.where(half, *(np.tensordot(one, P[:k], 1).T for one in others)).T
        if not judge(unknown.reshape(held[0].shape)):
            return alone
    found = _fitted(both)
    kept = np.argsort(-found, kind="stable")[:MOST]
    kept = np.sort(kept[found[kept] >= _LEAST])
    few = np.zeros(k)
    few[kept] = _fitted(both[np.ix_([*kept, k], [*kept, k])])
    return few if _squares(few, both) < _squares(alone, both) else alone


def _fitted(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Non-negative weights with sum 1 that minimise the squared error, from P'P bordered by P'y.

    That they add up to 1 keeps constants right: a heavy row of ones asks for it.
    """
    k = len(sums) - 1
    scale = float(np.trace(sums)) / (k + 1) or 1.0
    G, b = sums[:k, :k] / scale, sums[:k, k] / scale
    values, vectors = np.linalg.eigh(G)
    root = np.sqrt(np.clip(values, 1e-12 * max(values[-1], 1e-300), None))
    A = np.vstack([root[:, None] * vectors.T, np.full(k, 1e3)])
    found = nnls(A, np.append((vectors.T @ b) / root, 1e3))[0]
    total = found.sum()
    return np.asarray(found / total if total > 0 else np.eye(1, k)[0])


def _squares(weights: NDArray[np.float64], sums: NDArray[np.float64]) -> float:
    """Sum of squared errors of a blend, from P'P bordered by P'y."""
    signed = np.append(weights, -1.0)
    return float(signed @ sums @ signed)
