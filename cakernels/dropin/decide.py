"""Predictions of LIBSVM's models by this package's kernel expansions; imported when the first is taken over."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from cacore.data.rows import Rows, check_range
from cacore.probability.coupling import LEAST
from cacore.svm.decision import counted, expansion, votes
from cakernels.dropin.ledger import UnsuitedError
from cakernels.dropin.problem import TYPES, LibsvmModel, Vector
from casvm.model.part import PartSVM

_FLOOR = 1e-149  # values of kernels of a distance end here instead of at 0


def decisions(machine: LibsvmModel, X: Rows) -> Vector:
    """Decisions of all pairs of classes, or the outputs of a regression or one-class model, shape (n, pairs or 1).

    2 n nnz flops for support vectors of nnz nonzeros, on all threads; 2 n s with kernel values `X`.
    """
    kernel = machine.evaluated()
    if not len(machine.support):
        raise UnsuitedError("a model without support vectors")
    if kernel is not None:
        check_range(X)
    if machine.classifies:
        found = _part(machine).pairs(X, kernel)
    else:
        weights = np.ascontiguousarray(machine.coef.T)
        if kernel is None:
            found = np.asarray(X)[:, machine.support] @ weights
        else:
            found = expansion(kernel, machine.vectors, weights, X)
        found = found + machine.intercept
    # Far from all support vectors a decision may be exactly 0 in LIBSVM, and a tie between two classes.
    found[np.abs(found) < _FLOOR * np.abs(machine.coef).sum()] = 0.0
    return found


def _part(machine: LibsvmModel) -> PartSVM:
    k = len(machine.n_support)
    return PartSVM(
        np.arange(k), machine.vectors, machine.support.astype(np.int64), machine.coef, machine.intercept,
        machine.n_support.astype(np.int64),
    )  # fmt: skip


def answers(machine: LibsvmModel, X: Rows) -> Vector:
    """Classes, numbered from 0; 1 and -1 of a one-class model; values of a regression."""
    found = decisions(machine, X)
    if machine.classifies:
        return votes(counted(found, len(machine.n_support))).astype(np.float64)
    if TYPES[machine.svm_type] == "one_class":
        return np.where(found[:, 0] > 0, 1.0, -1.0)
    return found[:, 0]


def probabilities(machine: LibsvmModel, X: Rows) -> Vector:
    """Probabilities of the classes, shape (n, k)."""
    if not len(machine.slopes) or not machine.classifies:
        raise UnsuitedError("a model without probabilities")
    pairs = expit(-(decisions(machine, X) * machine.slopes + machine.shifts))
    return coupled_as_there(pairs, len(machine.n_support))


def coupled_as_there(pairs: Vector, k: int) -> Vector:
    """Probabilities of k classes from those of their pairs, by LIBSVM's iteration, step by step.

    It ends early, up to about 0.005 / k from the probabilities of :func:`cacore.probability.coupling.coupled`. The same
    steps are taken here, so that large batches get the answers of small ones, which scikit-learn computes.

    Parameters
    ----------
    pairs : ndarray, shape (n, k (k - 1) / 2)
        Probability of the first class of each pair.
    k : int
    """
    n = len(pairs)
    Q = np.zeros((n, k, k))
    r = np.clip(pairs, LEAST, 1.0 - LEAST)
    for pair, (i, j) in enumerate(combinations(range(k), 2)):
        one, other = r[:, pair], 1.0 - r[:, pair]
        Q[:, i, j] = Q[:, j, i] = -one * other
        Q[:, i, i] += other * other
        Q[:, j, j] += one * one
    p, left = np.full((n, k), 1.0 / k), np.arange(n)
    for _ in range(max(100, k)):
        left = left[_step(Q, p, left, k)]
        if not len(left):
            break
    return p


def _step(Q: Vector, p: Vector, left: NDArray[np.int64], k: int) -> NDArray[np.bool_]:
    """Take one step for the rows `left` of p that are not at rest; return a mask of those among them."""
    Qp = np.einsum("nij,nj->ni", Q[left], p[left])
    pQp = np.einsum("ni,ni->n", p[left], Qp)
    moving: NDArray[np.bool_] = np.abs(Qp - pQp[:, None]).max(axis=1) >= 0.005 / k
    q, some, Qp, pQp = Q[left[moving]], p[left[moving]], Qp[moving], pQp[moving]
    for t in range(k):
        change = (pQp - Qp[:, t]) / q[:, t, t]
        some[:, t] += change
        pQp = (pQp + change * (change * q[:, t, t] + 2 * Qp[:, t])) / (1 + change) ** 2
        Qp = (Qp + change[:, None] * q[:, t]) / (1 + change)[:, None]
        some /= (1 + change)[:, None]
    p[left[moving]] = some
    return moving
