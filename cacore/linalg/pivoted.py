"""Randomly pivoted Cholesky of a kernel matrix distributed by rows over ranks: K is about F F^T, F of k columns.

Pivots are drawn in proportion to the diagonal of the residual K - F F^T (Chen, Epperly, Tropp and Webber,
arXiv 2207.06503), in blocks. Within a block, each candidate is accepted with a probability that accounts for the ones
accepted before it (rejection sampling: Epperly, Tropp and Webber, arXiv 2410.03969). The random number of a row is a
function of the seed, the block and the row's number, so the pivots depend on the number of ranks only through rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows, concatenate, gather_rows, is_sparse
from cacore.data.shuffle import mix64
from cacore.kernels import Kernel, Points
from cacore.machine.threads import blocks, for_blocks, one_blas_thread

# Reasoned, not measured: a block is small beside ranks of 1,000 and more, so that residuals are up to date, and large
# enough for matrix products; a task's block of kernel values, 192 x 2,048 floats, is 1.5 MiB.
BLOCK = 192  # candidates per block
_COLUMNS = 2048  # rows of the system per task of a thread
_TINY = {"float32": 1e-5, "float64": 1e-13}  # residual, relative to K's largest diagonal entry, that is only rounding


class Spread(Protocol):
    """Rows distributed over ranks; see :class:`cakrr.iterative.preconditioner.SpreadRows`."""

    X: Rows
    number: NDArray[np.int64]
    counts: NDArray[np.int64]
    scale: NDArray[np.float64] | None
    comm: Communicator
    n: int

    def points(self, dtype: DTypeLike) -> Points:
        """This rank's rows in this precision."""

    def ready(self, X: Rows, dtype: DTypeLike) -> Points:
        """Any rows in this precision."""

    def diagonal(self, kernel: Kernel) -> NDArray[np.float64]:
        """This rank's part of the matrix' diagonal, shape (n_local,)."""


@dataclass
class Pivoted:
    """Result of :func:`pivoted_cholesky`: the factor, its pivots and its accuracy.

    Attributes
    ----------
    rows : ndarray, shape (k, n_local)
        F^T; its columns are this rank's rows of F.
    pivots : ndarray of int64, shape (k,)
        Global numbers of the pivot rows, in the order of their selection.
    centers : ndarray or CSR, shape (k, d)
        The pivot rows.
    traces : ndarray, shape (blocks + 1, 2)
        Rank of F and trace of K - F F^T, before the first block and after each block.
    sent : int
        Bytes sent by all ranks together, according to the cost formula.
    """

    rows: NDArray[np.floating]
    pivots: NDArray[np.int64]
    centers: Rows
    traces: NDArray[np.float64]
    sent: int = 0

    @property
    def rank(self) -> int:
        """Columns of F."""
        return len(self.rows)


# Stopping criterion: called with the traces so far before every block; returns the same on every rank.
Enough = Callable[[NDArray[np.float64]], bool]


def pivoted_cholesky(
    spread: Spread, kernel: Kernel, max_rank: int, seed: int, enough: Enough, dtype: DTypeLike = np.float32,
    uniform: bool = False, room: Callable[[tuple[int, int], DTypeLike], NDArray[np.floating]] = np.empty,
) -> Pivoted:  # fmt: skip
    """Factor S K S, with S the diagonal matrix of the rows' scales; a collective call.

    Parameters
    ----------
    spread : Spread
    kernel : Kernel
    max_rank : int
        The largest rank. The factorisation also stops if the residual is only rounding.
    seed : int
    enough : callable
        Stopping criterion, see :data:`Enough`.
    dtype : dtype
        Type of the factor and of its kernel values.
    uniform : bool
        Draw rows uniformly instead of by their residual: the Nystroem approximation with k random centres.
    room : callable
        Allocates the factor: ``room((most, n_local), dtype)``.

    Returns
    -------
    Pivoted

    Notes
    -----
    n k^2 + 2 n k d flops and n k kernel values, shared by the ranks, on all threads; n_local k numbers of memory. For a
    block of b candidates, all ranks together send 16 bytes per candidate that a rank offers (b, or all its rows); the
    candidates' rows, numbers, weights and rows of the factor; one byte per candidate for its acceptance; and a trace.
    """
    comm, points, diagonal = spread.comm, spread.points(dtype), spread.diagonal(kernel)
    residual = diagonal.copy()
    largest, trace = _agreed(comm, residual)
    max_rank, sent = min(max_rank, spread.n), 16 * comm.size
    F = room((max_rank, len(residual)), dtype)
    pivots, centers, traces, k, number = [], [], [(0.0, trace)], 0, 0
    tiny = _TINY[np.dtype(dtype).name] * largest
    while k < max_rank and trace > 0 and not enough(np.array(traces)):
        mine, order, owner, chances = _drawn(spread, residual, tiny, uniform, seed, number)
        sent += 16 * int(np.minimum(spread.counts, BLOCK).sum())
        if not len(order):
            break
        counts = np.bincount(owner, minlength=comm.size)
        rows = gather_rows(spread.X[mine], comm, counts)[order]
        above = comm.allgather(np.ascontiguousarray(F[:k, mine].T), counts)[order]
        scale = None if spread.scale is None else comm.allgather(spread.scale[mine], counts)[order]
        names = comm.allgather(spread.number[mine], counts)[order]
        with one_blas_thread():  # on small matrices the threads of a BLAS wait more than they work
            C = _left_of_block(spread, kernel, rows, above, scale)
        taken = comm.bcast(_accepted(C, chances, tiny, uniform).astype(np.uint8)).astype(np.bool_)
        taken[np.flatnonzero(taken)[max_rank - k :]] = False
        b = int(taken.sum())
        number += 1
        if b:
            with one_blas_thread():
                L = np.linalg.cholesky(C[np.ix_(taken, taken)] + tiny * np.eye(b))
                inverse = np.linalg.inv(L).astype(dtype)
            block = spread.ready(rows[taken], dtype)
            row_scale = None if scale is None else scale[taken]
            _append(F, residual, kernel, points, block, above[taken], inverse, (row_scale, spread.scale))
            pivots.append(names[taken])
            centers.append(rows[taken])
            k += b
        residual[mine[np.isin(spread.number[mine], names[taken])]] = 0.0
        if not b:  # the candidates' residuals are only rounding: do not draw them again
            residual[mine] = 0.0
        trace = float(comm.allreduce(np.array([residual.sum()]))[0])
        each = above.shape[1] * F.itemsize + (8 if scale is None else 16)
        sent += len(order) * each + _travelling(rows) + (comm.size - 1) * (64 + len(order)) + 8 * comm.size
        traces.append((float(k), trace))
    return Pivoted(
        F[:k], np.concatenate([np.zeros(0, np.int64), *pivots]), concatenate(centers) if centers else spread.X[:0],
        np.array(traces), sent if comm.size > 1 else 0,
    )  # fmt: skip


def _travelling(rows: Rows) -> int:
    """Bytes sent to gather these rows; for CSR rows with the length of each row."""
    return int(rows.nnz * (rows.dtype.itemsize + 8) + 8 * rows.shape[0]) if is_sparse(rows) else int(rows.nbytes)


def _agreed(comm: Communicator, diagonal: NDArray[np.float64]) -> tuple[float, float]:
    """Largest diagonal entry and trace over all ranks."""
    largest = comm.allreduce(np.array([diagonal.max(initial=0.0)]), "max")[0]
    return float(largest), float(comm.allreduce(np.array([diagonal.sum()]))[0])


def uniform_numbers(seed: int, block: int, number: NDArray[np.int64], salt: int = 0) -> NDArray[np.float64]:
    """Pseudo-random number in (0, 1) for each row number of a block; the same on every machine."""
    step = np.array([2 * block + salt + 1], np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    start = mix64(mix64(np.array([seed], np.uint64)) + step)
    bits = mix64(start + mix64(number.astype(np.uint64)))
    return np.asarray(((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)


def _drawn(
    spread: Spread, residual: NDArray[np.float64], tiny: float, uniform: bool, seed: int, block: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Draw candidates without replacement, with probability proportional to `residual` (Efraimidis and Spirakis, 2006).

    Returns this rank's candidates as local row numbers. Then, for the candidates of all ranks: the permutation from
    rank order to selection order, the owner of each in rank order, and a number in (0, 1) each in selection order.
    """
    comm = spread.comm
    there = np.flatnonzero(residual > tiny)
    chance = np.ones(len(there)) if uniform else residual[there]
    key = -np.log(uniform_numbers(seed, block, spread.number[there])) / chance
    first = np.argsort(key, kind="stable")[:BLOCK]
    mine, key = there[first], key[first]
    offers = np.minimum(spread.counts, BLOCK)
    table = np.full((int(offers[comm.rank]), 2), np.inf)
    table[: len(mine), 0], table[: len(mine), 1] = key, spread.number[mine]
    table_of_ranks = comm.allgather(table, offers)
    best = np.lexsort((table_of_ranks[:, 1], table_of_ranks[:, 0]))[:BLOCK]
    best = best[np.isfinite(table_of_ranks[best, 0])]
    owner = np.repeat(np.arange(comm.size), offers)[best]
    names = table_of_ranks[best, 1].astype(np.int64)
    mine = mine[np.isin(spread.number[mine], names[owner == comm.rank])]
    # Each rank sends its candidates in the order of its own keys; selection follows the order of all keys.
    arrival = np.lexsort((np.arange(len(best)), owner))
    order = np.empty(len(best), np.int64)
    order[arrival] = np.arange(len(best))
    return mine, order, owner[arrival], uniform_numbers(seed, block, names, 1)


def _left_of_block(
    spread: Spread, kernel: Kernel, rows: Rows, above: NDArray[np.floating], scale: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """Residual of the candidates' kernel matrix, K - F F^T, in double precision."""
    points = spread.ready(rows, np.float64)
    C = kernel.block(points, points)
    np.fill_diagonal(C, kernel.diagonal(rows))
    if scale is not None:
        C *= scale[:, None] * scale
    wide = above.astype(np.float64)
    return np.asarray(C - wide @ wide.T)


def _accepted(C: NDArray[np.float64], chances: NDArray[np.float64], tiny: float, uniform: bool) -> NDArray[np.bool_]:
    """Mask of accepted candidates; each is accepted with the share of its diagonal that earlier ones have left."""
    M, before = C.copy(), np.diagonal(C).copy()
    taken = np.zeros(len(M), np.bool_)
    for i in range(len(M)):
        share = 0.0 if uniform else chances[i] * before[i]
        if M[i, i] > max(tiny, share, 1e-3 * before[i]):
            taken[i] = True
            factor = M[i + 1 :, i] / M[i, i]
            M[i + 1 :, i + 1 :] -= np.outer(factor, M[i, i + 1 :])
    return taken


def _append(
    F: NDArray[np.floating], residual: NDArray[np.float64], kernel: Kernel, points: Points, block: Points,
    above: NDArray[np.floating], inverse: NDArray[np.floating],
    scales: tuple[NDArray[np.float64] | None, NDArray[np.float64] | None],
) -> None:  # fmt: skip
    """Compute rows k to k + b of F^T for this rank's rows, and subtract their squares from the residual.

    `above`, shape (b, k), has the pivots' rows of F so far; `inverse`, shape (b, b), is that of their Cholesky factor.
    """
    (b, k), above = above.shape, np.ascontiguousarray(above)

    def fill(lo: int, hi: int) -> None:
        G = kernel.block(block, points[lo:hi])
        if scales[0] is not None and scales[1] is not None:
            G *= (scales[0][:, None] * scales[1][lo:hi]).astype(G.dtype)
        if k:
            G -= above @ F[:k, lo:hi]
        new = inverse @ G
        F[k : k + b, lo:hi] = new
        residual[lo:hi] = np.maximum(0.0, residual[lo:hi] - np.einsum("ij,ij->j", new, new, dtype=np.float64))

    for_blocks(fill, blocks(len(residual), _COLUMNS))
