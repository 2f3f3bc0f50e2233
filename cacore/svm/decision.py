"""Decisions of kernel SVMs: kernel expansions on all threads, and votes over pairs of classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numba
import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.arrays import Doubles, Longs
from cacore.data.rows import AnyRows, Rows, dense, in_memory, is_sparse, shifted
from cacore.kernels import Kernel, Points
from cacore.kernels.columns import Columns, Layout
from cacore.kernels.near import NearPanels, spatial_order
from cacore.kernels.precision import WIDEST, Accuracy, sampled, shift_of, value_rounding
from cacore.kernels.registry import SQUARED
from cacore.machine import threads
from cacore.machine.threads import blocks, for_blocks
from cacore.near.expansion import NearGroups, may_pay, reach

_BLOCK_BYTES = 1 << 25  # memory of a block of rows with their kernel values; not measured
_FEW = 1 << 20  # kernel values of all classes with a block of rows that are computed at once
_BOX, _NEAR, _SAMPLE = 256, 0.5, 1000  # rows of a box; share of near pairs that pays, and support vectors that tell it
_PAIRS, _ROWS = 64, 4096  # most pairs of classes whose coefficients near rows meet at once; least rows of a block
_OFF = 1e-3  # largest error of a decision by the rounding of stored kernel values: the default tolerance of solvers
_BALANCED = 1e-9  # sum of weights over the sum of their sizes, up to which it is rounding
# Rows times support vectors times features up to which kernel values are sums of differences in double precision,
# without a choice of a layout, which takes 0.2 ms.
_TINY = 1 << 18
_WORTH = 1 << 19  # cost of kernel values, in units of :attr:`Layout.price`, that repays handing them to a thread


def expansion(
    kernel: Kernel, A: Rows, weights: NDArray[np.float64], X: Rows, biased: bool = True, dtype: DTypeLike | None = None
) -> NDArray[np.float64]:  # fmt: skip
    """``K(X, A) @ weights`` for support vectors `A` and weights, shape (len(A), k), on all threads.

    A linear kernel has a weight per feature, which keeps the digits of rows far from 0. Others take 2 len(X) nnz(A)
    flops, fewer for wide CSR rows, and for one column of weights where the kernel ends, or falls below
    the rounding: rows meet only the support vectors near them. Memory: the result, shape (len(X), k), and one block of
    rows, or a copy of all rows that meet near support vectors.

    `dtype` is the least precision, by default that of `X`, for decisions whose margin is 1. If not `biased`, no bias is
    added to the sums, and all pairs are computed: the sign of a sum then counts however small it is, and must not
    depend on the other rows.
    """
    if kernel.kind == "linear":
        return np.asarray(X @ feature_weights(kernel, A, weights, biased), np.float64)
    K = _tiny(kernel, A, X) if biased else None
    if K is not None:
        return K.T @ weights
    out = np.zeros((X.shape[0], weights.shape[1]))
    layout = layout_of(A, kernel, X.dtype if dtype is None else dtype, weights)
    points = layout.rows(A)
    if biased and _of_near_rows(layout, kernel, points, A, weights, X, out):
        return out
    step = max(1024, _BLOCK_BYTES // (8 * max(layout.width(X), len(points) if weights.shape[1] > 1 else 1)))
    # With many blocks of rows, each is a task; with a single one, the threads work within it.
    for_blocks(lambda lo, hi: _decide(layout, kernel, points, weights, X[lo:hi], out[lo:hi]), blocks(X.shape[0], step))
    return out


def _tiny(kernel: Kernel | None, A: Rows, X: Rows) -> NDArray[np.floating] | None:
    """K(A, X) in double precision if it takes little work, or None; exact sums, so that no layout need be chosen.

    Only for kernels of squared distances, which are sums of differences, and dense rows: products of rows far from 0
    would lose their digits.
    """
    if kernel is None or not kernel.compiled or kernel.declared.of != SQUARED:
        return None
    s, d = A.shape
    if s * X.shape[0] * (d + 4) > _TINY or d > WIDEST or is_sparse(A) or is_sparse(X):
        return None
    a, x = (Points(rows.astype(np.float64, copy=False), None, gaps=True) for rows in (A, X))
    return kernel.block(a, x)


def feature_weights(kernel: Kernel, A: Rows, weights: NDArray[np.float64], biased: bool) -> NDArray[np.float64]:
    """``A.T @ weights``, the weights of the features for the linear kernel, shape (d, k).

    With a bias, columns of weights add up to 0 but for rounding. Support vectors far from 0 would multiply it, so that
    they are taken about a shift, which then counts 0 times.
    """
    shift = shift_of(sampled(A), kernel, balanced=True) if biased else None
    products = np.asarray(shifted(A, shift).T @ weights, np.float64)
    if shift is None:
        return products
    total = weights.sum(axis=0)
    total[np.abs(total) <= _BALANCED * np.abs(weights).sum(axis=0)] = 0.0
    return products + np.outer(shift, total)


def layout_of(A: Rows, kernel: Kernel, dtype: DTypeLike, weights: NDArray[np.float64]) -> Layout:
    """Layout in which the weights do not magnify rounding beyond half of the dtype's digits.

    Errors of kernel values are independent, so that those of a decision add up like the root of their squares.
    """
    size = float(np.sqrt(np.square(weights).sum(axis=0).max(initial=0.0)))
    if np.dtype(dtype) != np.float64 and size * value_rounding(kernel.largest(A, np.float64), dtype) > _OFF:
        dtype = np.float64
    allowed = math.sqrt(np.finfo(dtype).eps) / max(1.0, size)
    return Layout.of(A, kernel, dtype, None, Accuracy(allowed))


def _of_near_rows(
    layout: Layout, kernel: Kernel, points: Any, A: Rows, weights: NDArray[np.float64], X: Rows,
    out: NDArray[np.float64],
) -> bool:  # fmt: skip
    """Write the decisions without distant pairs to `out`, and return True, where these change nothing and that pays."""
    if is_sparse(A) or is_sparse(X) or not (layout.packed and weights.shape[1] == 1 and may_pay(kernel, [A], X)):
        return False
    cutoff = reach(kernel, [(A, weights.astype(layout.dtype, copy=False))], X)
    if not np.isfinite(cutoff):
        return False
    order = spatial_order(X, _BOX)
    near = NearPanels(X, layout.dtype, layout.shift, order, _BOX, layout.measure)
    if near.near(points[:: max(1, len(points) // _SAMPLE)], cutoff) > _NEAR:
        return False
    total = np.zeros(len(order))
    near.add(kernel, points, cutoff, np.ascontiguousarray(weights[:, 0]), total)
    out[order, 0] = total
    return True


def _decide(
    layout: Layout, kernel: Kernel, A: Any, weights: NDArray[np.float64], X: Rows, out: NDArray[np.float64]
) -> None:
    """Write the decisions of a block of rows to `out`; `A` is from :meth:`Layout.rows`."""
    columns = layout.columns(X)
    tasks = _tasks(columns, layout, len(A))
    if weights.shape[1] == 1:
        total = np.zeros(X.shape[0])
        column = np.ascontiguousarray(weights[:, 0])
        for_blocks(lambda lo, hi: columns.add(kernel, A, lo, hi, column, total), tasks)
        out[:, 0] = total
        return
    K = np.empty((len(A), X.shape[0]), layout.dtype)
    for_blocks(lambda lo, hi: columns.add(kernel, A, lo, hi, store=K), tasks)
    out[:] = K.T @ weights


def _tasks(columns: Columns, layout: Layout, rows: int) -> list[tuple[int, int]]:
    """Ranges of columns for the threads, as many as the kernel values of so many rows are worth."""
    worth = int(rows * columns.n * layout.price) // _WORTH
    return columns.tasks(max(1, min(2 * threads.current(), worth)))


def decisions_of_pairs(
    kernel: Kernel | None, A: Rows, coef: NDArray[Any], b: NDArray[np.float64], n_support: NDArray[np.int64],
    X: Rows, of_decisions: Callable[[NDArray[np.float64]], NDArray[np.float64]], columns: int,
) -> NDArray[np.float64]:  # fmt: skip
    """Result of `of_decisions` for the decisions of all pairs of k classes, block by block of rows, on all threads.

    Parameters
    ----------
    kernel : Kernel or None
    A : ndarray or CSR, shape (s, d)
        Support vectors, class by class. Without a `kernel`, their columns in `X`, shape (s,).
    coef : ndarray, shape (t (k - 1), s)
        Coefficients alpha y in LIBSVM's layout, see :class:`casvm.model.part_svm.PartSVM`; of t models of the same
        support vectors, one below the other.
    b : ndarray of float64, shape (t k (k - 1) / 2,)
    n_support : ndarray of int64, shape (k,)
        Support vectors of each class.
    X : ndarray or CSR, shape (n, d)
        Rows; without a `kernel`, kernel values, shape (n, n_train).
    of_decisions : callable
        Maps the decisions of some rows, shape (m, len(b)), to an array of shape (m, columns).
    columns : int

    Returns
    -------
    ndarray of float64, shape (n, columns)

    Notes
    -----
    A support vector counts in the k - 1 pairs of its class, so each class's kernel values meet k - 1 columns of
    coefficients: 2 n s (k - 1) flops beside the kernel values, a factor of k / 2 below the product with the
    coefficients of all pairs. Memory: the result, and the kernel values and the decisions of a block of rows. With few
    pairs, all with a bias, and where the kernel ends or falls below the rounding, rows meet only the support vectors
    near them; see :func:`expansion`.
    """
    K = _tiny(kernel, A, X) if b.all() else None
    if K is None:
        return _of_pairs_in_blocks(kernel, A, coef, b, n_support, X, of_decisions, columns)
    D = np.repeat(b[:, None], X.shape[0], axis=1)
    _add_pairs(D, np.ascontiguousarray(coef), K, np.concatenate([[0], np.cumsum(n_support)]))
    return of_decisions(D.T)


def _of_pairs_in_blocks(
    kernel: Kernel | None, A: Rows, coef: NDArray[Any], b: NDArray[np.float64], n_support: NDArray[np.int64],
    X: Rows, of_decisions: Callable[[NDArray[np.float64]], NDArray[np.float64]], columns: int,
) -> NDArray[np.float64]:  # fmt: skip
    """:func:`decisions_of_pairs` for more than a tiny amount of work."""
    k, out = len(n_support), np.empty((X.shape[0], columns))
    stops = np.concatenate([[0], np.cumsum(n_support)]).tolist()
    sides, pairs = [slice(lo, hi) for lo, hi in pairwise(stops)], _pairs_of_classes(k, len(b))
    linear = kernel is not None and kernel.kind == "linear"
    if kernel is not None and len(b) <= _PAIRS and (linear or (b.all() and may_pay(kernel, [A], X))):
        weights = np.zeros((stops[-1], len(b)))
        for side, mine in zip(sides, pairs, strict=True):
            weights[side, mine] = coef[:, side].T
        if linear:
            return of_decisions(expansion(kernel, A, weights, X) + b)
        if _of_near_pairs(kernel, A, weights, X, lambda sums: of_decisions(sums + b), out):
            return out
    layout = None if kernel is None else layout_of(A, kernel, X.dtype, coef)
    widest = max(1 if layout is None else layout.width(X), len(b), int(n_support.max()))
    step = max(256, _BLOCK_BYTES // (32 * widest))
    together = layout is not None and stops[-1] * min(step, X.shape[0]) <= _FEW
    points = [] if layout is None else [layout.rows(A[side]) for side in ([slice(stops[-1])] if together else sides)]

    def values(columns: Columns | None, block: Rows, i: int) -> NDArray[np.floating]:
        if columns is None or kernel is None or layout is None:
            return np.asarray(block)[:, dense(A)[sides[i]]].T
        K = np.empty((len(points[i]), block.shape[0]), layout.dtype)
        tasks = _tasks(columns, layout, len(K))
        for_blocks(lambda lo, hi: columns.add(kernel, points[i], lo, hi, store=K), tasks)
        return K

    def decide(lo: int, hi: int) -> None:
        block, D = X[lo:hi], np.empty((len(b), hi - lo))
        D[:] = b[:, None]
        columns = None if layout is None else layout.columns(block)
        all_values = values(columns, block, 0) if together else None
        for i, side in enumerate(sides):
            if n_support[i]:
                D[pairs[i]] += coef[:, side] @ (values(columns, block, i) if all_values is None else all_values[side])
        out[lo:hi] = of_decisions(D.T)

    for_blocks(decide, blocks(X.shape[0], step))
    return out


@numba.njit(cache=True, nogil=True)
def _add_pairs(D: Doubles, coef: Doubles, K: Doubles, stops: Longs) -> None:  # pragma: no cover - compiled
    """Add the kernel expansions of all pairs of k classes to `D`, shape (t k (k - 1) / 2, n).

    `coef`, shape (t (k - 1), s), is LIBSVM's layout of t models; `K` has shape (s, n), and class i its rows
    ``stops[i]`` to ``stops[i + 1]``.
    """
    k, row = stops.size - 1, 0
    for model in range(coef.shape[0] // (k - 1)):
        first = model * (k - 1)
        for i in range(k):
            for j in range(i + 1, k):
                line = D[row]
                for side, at in ((i, first + j - 1), (j, first + i)):
                    for r in range(stops[side], stops[side + 1]):
                        c, values = coef[at, r], K[r]
                        for q in range(line.size):
                            line[q] += c * values[q]
                row += 1


def _pairs_of_classes(k: int, decisions: int) -> list[NDArray[np.int64]]:
    """Numbers of the k - 1 pairs that have each of k classes, in the order of the other class, model by model."""
    number, pairs = np.zeros((k, k), np.int64), k * (k - 1) // 2
    number[np.triu_indices(k, 1)] = np.arange(pairs)
    number += number.T
    return [np.add.outer(np.arange(0, decisions, pairs), np.delete(number[i], i)).ravel() for i in range(k)]


def _of_near_pairs(
    kernel: Kernel, A: Rows, weights: NDArray[np.float64], X: Rows,
    of_decisions: Callable[[NDArray[np.float64]], NDArray[np.float64]], out: NDArray[np.float64],
) -> bool:  # fmt: skip
    """Write what is `of_decisions` of ``K(X, A) @ weights`` without distant pairs of rows to `out`, and return True.

    False where these count, or leaving them out does not pay. In double precision, since narrow kernels magnify the
    rounding of distances.
    """
    points, rounded = dense(A).astype(np.float64, copy=False), weights.astype(X.dtype, copy=False)
    for lo, hi in blocks(X.shape[0], max(_ROWS, _BLOCK_BYTES // (8 * X.shape[1]))):
        near = NearGroups.of(kernel, points, rounded, dense(X[lo:hi]).astype(np.float64, copy=False), _NEAR)
        if near is None:
            return False
        out[lo:hi] = of_decisions(np.asarray(near(weights), np.float64))
    return True


def counted(decisions: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """Scores of k classes from the decisions of all pairs: the votes, plus a term below 1/3 for their margin."""
    votes, sure = np.zeros((2, len(decisions), k))
    ends = np.cumsum([0, *range(k - 1, 0, -1)])
    for i, (lo, hi) in enumerate(pairwise(ends.tolist())):
        against = decisions[:, lo:hi]  # class i against all after it
        first = against > 0
        votes[:, i] += first.sum(axis=1)
        votes[:, i + 1 :] += ~first
        sure[:, i] += against.sum(axis=1)
        sure[:, i + 1 :] -= against
    return votes + sure / (3.0 * (np.abs(sure) + 1.0))


def shares(decisions: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """Shares of k classes, which add up to 1 in each row, from the decisions of all pairs.

    The share of a class is proportional to 1 + d, with d its smallest decision against another class, clipped to
    [-1, 1]. It is 1 for a class that beats all others by the margin, and (1 + d) / 2 with two classes. All shares are
    equal if every class clearly loses to another.

    Votes grow with k. Shares do not, so they can be added up over models that know different sets of classes.
    """
    least = np.ones((k, len(decisions)))
    for pair, (i, j) in zip(decisions.T, combinations(range(k), 2), strict=True):
        np.minimum(least[i], pair, out=least[i])
        np.minimum(least[j], -pair, out=least[j])
    share = np.maximum(1.0 + least.T, 0.0, order="C")
    share[~share.any(axis=1)] = 1.0  # each class clearly loses to another, in a cycle
    return np.asarray(share / share.sum(axis=1, keepdims=True))


def votes(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Class of each row from one model's scores: the most votes, and the first class among equals.

    A decision of 0 counts for the second class of a pair, as in LIBSVM.
    """
    if scores.shape[1] == 1:
        return (scores[:, 0] >= 0).astype(np.int64)
    return np.asarray(np.rint(scores).argmax(axis=1))


@dataclass(frozen=True)
class Expansion:
    """The function ``f(z) = K(z, X) weights + b`` of standardised rows.

    Attributes
    ----------
    X : ndarray or CSR, shape (m, d)
        Support vectors, or training rows.
    weights : ndarray of float64, shape (m, q)
    b : ndarray of float64, shape (q,)
    kernel : Kernel or None
        None if kernel values were given instead of rows.
    """

    X: AnyRows
    weights: NDArray[np.float64]
    b: NDArray[np.float64]
    kernel: Kernel | None

    def at(self, Z: Rows) -> NDArray[np.float64]:
        """Values at these rows, shape (n, q): 2 n nnz(X) flops."""
        if not len(self.weights):
            return np.tile(self.b, (Z.shape[0], 1))
        assert self.kernel is not None
        return expansion(self.kernel, in_memory(self.X), self.weights, Z, dtype=np.float64) + self.b
