"""Randomly pivoted Cholesky of a kernel matrix whose rows lie over ranks: K is about F F^T, F of k columns.

Pivots are drawn in proportion to the diagonal of what is left of K (Chen, Epperly, Tropp and Webber,
arXiv 2207.06503), a block at a time: of a block's candidates each is taken with the chance that those taken before it
have left it (rejection: Epperly, Tropp and Webber, arXiv 2410.03969). What a row draws is a function of the seed, the
block and its number, so that the pivots do not depend on the ranks but by rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows, concatenate, gather_rows, is_sparse
from cacore.data.shuffle import mix64
from cacore.kernels import Kernel, Points
from cacore.machine.threads import blocks, for_blocks, one_blas_thread

BLOCK = 192  # candidates drawn at a time
_COLUMNS = 2048  # rows of the system that a thread takes at a time
_TINY = {"float32": 1e-5, "float64": 1e-13}  # of the largest diagonal: below it, what is left is rounding


class Spread(Protocol):
    """Rows over ranks; see :class:`cakrr.iterative.spread.SpreadRows`."""

    X: Rows
    number: NDArray[np.int64]
    counts: NDArray[np.int64]
    scale: NDArray[np.float64] | None
    comm: Communicator
    n: int

    def points(self, dtype: Any) -> Points:
        """This rank's rows in this precision."""

    def ready(self, X: Rows, dtype: Any) -> Points:
        """Any rows in this precision."""

    def diagonal(self, kernel: Kernel) -> NDArray[np.float64]:
        """Of the matrix, shape (n_local,)."""


@dataclass
class Pivoted:
    """A factor, and how it came about.

    Attributes
    ----------
    rows : ndarray, shape (k, n_local)
        F^T: this rank's rows of F are its columns.
    pivots : ndarray of int64, shape (k,)
        Numbers of the rows that are the pivots, in the order in which they were taken.
    centers : ndarray or CSR, shape (k, d)
        Those rows.
    traces : ndarray, shape (blocks + 1, 2)
        The rank, and the trace of K - F F^T, before the first block and after each.
    sent : int
        Bytes, all ranks together, by the formula.
    """

    rows: NDArray[Any]
    pivots: NDArray[np.int64]
    centers: Rows
    traces: NDArray[np.float64]
    sent: int = 0

    @property
    def rank(self) -> int:
        """Columns of F."""
        return len(self.rows)


# Whether the factor is large enough, from its traces so far; it is asked after every block, on every rank alike.
Enough = Callable[[NDArray[np.float64]], bool]


def pivoted_cholesky(
    spread: Spread, kernel: Kernel, most: int, seed: int, enough: Enough, dtype: Any = np.float32,
    uniform: bool = False, room: Callable[[tuple[int, int], Any], NDArray[Any]] = np.empty,
    advance: Callable[[int], None] = lambda rank: None,
) -> Pivoted:  # fmt: skip
    """Factor S K S; a collective call.

    Parameters
    ----------
    spread : Spread
    kernel : Kernel
    most : int
        The largest rank; the factor also ends where what is left of K is rounding.
    seed : int
    enough : callable
    dtype : dtype
        Of the factor and of the kernel values in it.
    uniform : bool
        Draw rows evenly, whatever is left of them: the Nystroem approximation of as many random centres.
    room : callable
        Makes the array of the factor: ``room((most, n_local), dtype)``.
    advance : callable
        Called with the rank after every block.

    Returns
    -------
    Pivoted

    Notes
    -----
    n k^2 + 2 n k d flops and n k kernel values, shared by the ranks, on all threads, and n_local k numbers. A block of
    b candidates sends, summed over ranks: 16 bytes for each candidate that a rank offers (b, or all its rows), the
    candidates' rows, numbers, weights and their k rows of the factor, one byte each for who is taken, and a trace.
    """
    comm, points, diagonal = spread.comm, spread.points(dtype), spread.diagonal(kernel)
    left = diagonal.copy()
    largest, trace = _agreed(comm, left)
    most, sent = min(most, spread.n), 16 * comm.size
    F = room((most, len(left)), dtype)
    pivots, centers, traces, k, number = [], [], [(0.0, trace)], 0, 0
    tiny = _TINY[np.dtype(dtype).name] * largest
    while k < most and trace > 0 and not enough(np.array(traces)):
        mine, order, owner, chances = _drawn(spread, left, tiny, uniform, seed, number)
        sent += 16 * int(np.minimum(spread.counts, BLOCK).sum())
        if not len(order):
            break
        given = np.bincount(owner, minlength=comm.size)
        rows = gather_rows(spread.X[mine], comm, given)[order]
        above = comm.allgather(np.ascontiguousarray(F[:k, mine].T), given)[order]
        scale = None if spread.scale is None else comm.allgather(spread.scale[mine], given)[order]
        names = comm.allgather(spread.number[mine], given)[order]
        with one_blas_thread():  # of small matrices, where threads of a BLAS wait more than they work
            C = _left_of_block(spread, kernel, rows, above, scale)
        taken = comm.bcast(_taken(C, chances, tiny, uniform).astype(np.uint8)).astype(np.bool_)
        taken[np.flatnonzero(taken)[most - k :]] = False
        b = int(taken.sum())
        number += 1
        if b:
            with one_blas_thread():
                L = np.linalg.cholesky(C[np.ix_(taken, taken)] + tiny * np.eye(b))
                inverse = np.linalg.inv(L).astype(dtype)
            block = spread.ready(rows[taken], dtype)
            row_scale = None if scale is None else scale[taken]
            _append(F, k, b, kernel, block, points, above[taken], inverse, (row_scale, spread.scale), left)
            pivots.append(names[taken])
            centers.append(rows[taken])
            k += b
        left[mine[np.isin(spread.number[mine], names[taken])]] = 0.0
        if not b:  # candidates of which nothing is left but rounding
            left[mine] = 0.0
        trace = float(comm.allreduce(np.array([left.sum()]))[0])
        each = above.shape[1] * F.itemsize + (8 if scale is None else 16)
        sent += len(order) * each + _travelling(rows) + (comm.size - 1) * (64 + len(order)) + 8 * comm.size
        traces.append((float(k), trace))
        advance(k)
    return Pivoted(
        F[:k], np.concatenate([np.zeros(0, np.int64), *pivots]), concatenate(centers) if centers else spread.X[:0],
        np.array(traces), sent if comm.size > 1 else 0,
    )  # fmt: skip


def _travelling(rows: Rows) -> int:
    """Bytes of rows that all ranks gather; of CSR rows with the length of each."""
    return int(rows.nnz * (rows.dtype.itemsize + 8) + 8 * rows.shape[0]) if is_sparse(rows) else int(rows.nbytes)


def _agreed(comm: Communicator, diagonal: NDArray[np.float64]) -> tuple[float, float]:
    """The largest number of the diagonal of all ranks, and the trace."""
    largest = comm.allreduce(np.array([diagonal.max(initial=0.0)]), "max")[0]
    return float(largest), float(comm.allreduce(np.array([diagonal.sum()]))[0])


def uniform_numbers(seed: int, block: int, number: NDArray[np.int64], salt: int = 0) -> NDArray[np.float64]:
    """A number in (0, 1) for each row number of each block, the same on every machine."""
    step = np.array([2 * block + salt + 1], np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    start = mix64(mix64(np.array([seed], np.uint64)) + step)
    bits = mix64(start + mix64(number.astype(np.uint64)))
    return np.asarray(((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)


def _drawn(
    spread: Spread, left: NDArray[np.float64], tiny: float, uniform: bool, seed: int, block: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Candidates without replacement, with chances in proportion to `left` (Efraimidis and Spirakis, 2006).

    Those of this rank; then, of all that the ranks hand in, their order, their owners in the order of the ranks, and a
    number in (0, 1) for each in order.
    """
    comm = spread.comm
    there = np.flatnonzero(left > tiny)
    chance = np.ones(len(there)) if uniform else left[there]
    key = -np.log(uniform_numbers(seed, block, spread.number[there])) / chance
    first = np.argsort(key, kind="stable")[:BLOCK]
    mine, key = there[first], key[first]
    offers = np.minimum(spread.counts, BLOCK)
    table = np.full((int(offers[comm.rank]), 2), np.inf)
    table[: len(mine), 0], table[: len(mine), 1] = key, spread.number[mine]
    every = comm.allgather(table, offers)
    best = np.lexsort((every[:, 1], every[:, 0]))[:BLOCK]
    best = best[np.isfinite(every[best, 0])]
    owner = np.repeat(np.arange(comm.size), offers)[best]
    names = every[best, 1].astype(np.int64)
    mine = mine[np.isin(spread.number[mine], names[owner == comm.rank])]
    # They are handed in by each rank in the order of its keys, and taken in the order of all.
    arrival = np.lexsort((np.arange(len(best)), owner))
    order = np.empty(len(best), np.int64)
    order[arrival] = np.arange(len(best))
    return mine, order, owner[arrival], uniform_numbers(seed, block, names, 1)


def _left_of_block(
    spread: Spread, kernel: Kernel, rows: Rows, above: NDArray[Any], scale: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """What the factor leaves of the candidates' kernel values with each other, in double precision."""
    points = spread.ready(rows, np.float64)
    C = kernel.block(points, points)
    np.fill_diagonal(C, kernel.diagonal(rows))
    if scale is not None:
        C *= scale[:, None] * scale
    wide = above.astype(np.float64)
    return np.asarray(C - wide @ wide.T)


def _taken(C: NDArray[np.float64], chances: NDArray[np.float64], tiny: float, uniform: bool) -> NDArray[np.bool_]:
    """Which candidates are taken, one after the other: each with the chance that is left of its diagonal."""
    M, before = C.copy(), np.diagonal(C).copy()
    taken = np.zeros(len(M), np.bool_)
    for i in range(len(M)):
        share = 0.0 if uniform else chances[i] * before[i]
        if M[i, i] > max(tiny, share, 1e-3 * before[i]):
            taken[i] = True
            rest = M[i + 1 :, i] / M[i, i]
            M[i + 1 :, i + 1 :] -= np.outer(rest, M[i, i + 1 :])
    return taken


def _append(
    F: NDArray[Any], k: int, b: int, kernel: Kernel, block: Points, points: Points, above: NDArray[Any],
    inverse: NDArray[Any], scales: tuple[NDArray[np.float64] | None, NDArray[np.float64] | None],
    left: NDArray[np.float64],
) -> None:  # fmt: skip
    """Rows k to k + b of F^T, from kernel values of the pivots with all rows of this rank; takes them from `left`."""
    above = np.ascontiguousarray(above[:, :k])

    def fill(lo: int, hi: int) -> None:
        G = kernel.block(block, points[lo:hi])
        if scales[0] is not None and scales[1] is not None:
            G *= (scales[0][:, None] * scales[1][lo:hi]).astype(G.dtype)
        if k:
            G -= above @ F[:k, lo:hi]
        new = inverse @ G
        F[k : k + b, lo:hi] = new
        left[lo:hi] = np.maximum(0.0, left[lo:hi] - np.einsum("ij,ij->j", new, new, dtype=np.float64))

    for_blocks(fill, blocks(len(left), _COLUMNS))
