"""New rows that visit only the ranks that have rows near them, for kernels that vanish beyond a radius."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import AnyRows, dense, is_sparse
from cacore.data.stored import is_stored
from cacore.kernels import Kernel
from cacore.kernels.near import spatial_groups
from cacore.machine.threads import blocks
from cacore.near.boxes import Boxes
from cacore.near.expansion import GROUP, Piece, pays, reach

ROWS = 1 << 16  # rows of all ranks that visit at a time
_SHARE = 0.7  # share of the pairs of a row and a rank from which on every row visits every rank

Answer = Callable[[NDArray[np.floating]], NDArray[np.float64]]


def near_ranks(
    kernel: Kernel, pieces: Sequence[Piece], X: AnyRows, comm: Communicator
) -> NDArray[np.bool_] | None:  # fmt: skip
    """Ranks that each of this rank's new rows has to visit; None if all of them, for most rows. Collective.

    Parameters
    ----------
    kernel : Kernel
    pieces : sequence of (A, coefficients)
        This rank's rows of an expansion, shape (m, d), and their coefficients, shape (m,) or (m, t).
    X : ndarray, CSR or rows in a file, shape (n, d)
        Only an ndarray has near ranks; other rows visit all.

    Returns
    -------
    ndarray of bool, shape (n, R), or None

    Notes
    -----
    The bound is that of :func:`cacore.near.expansion.expansion`, for the rows of all ranks. The ranks share the order
    of the rows. Allreduces of 2 d + 2 t + 2 numbers, and an Allgather of 2 d numbers per group of `GROUP` rows.
    """
    d = X.shape[1]
    rows = comm.allreduce(np.array([X.shape[0], sum(A.shape[0] for A, _ in pieces)]))
    plain = not any(is_sparse(A) or is_stored(A) for A in [X, *(A for A, _ in pieces)])
    if comm.size == 1 or not comm.all(plain) or not pays(kernel, int(rows[1]), int(rows[0]), d):
        return None
    Z = dense(X)
    squared = reach(kernel, pieces, Z, comm.allreduce)
    if not math.isfinite(squared):
        return None
    mine = [_boxes(dense(A), kernel) for A, _ in pieces]
    table = np.concatenate([np.zeros((0, 2 * d)), *(np.concatenate([one.lower, one.upper]).T for one in mine)])
    every, counts = comm.allgather_parts(table)
    lower, upper = (np.ascontiguousarray(side.T) for side in np.split(every, 2, axis=1))
    owner = np.repeat(np.arange(comm.size), counts)
    order, ends = spatial_groups(Z, GROUP)
    runs = Boxes.of_rows(Z[order], ends, kernel.separable).near(Boxes(lower, upper, kernel.separable), squared)
    near = np.zeros((len(ends) - 1, comm.size), np.bool_)
    for group, some in enumerate(zip(runs.starts[:-1].tolist(), runs.starts[1:].tolist(), strict=True)):
        for first, last in zip(runs.first[slice(*some)].tolist(), runs.last[slice(*some)].tolist(), strict=True):
            near[group, owner[first:last]] = True
    found = np.empty((X.shape[0], comm.size), np.bool_)
    found[order] = np.repeat(near, np.diff(ends), axis=0)
    visits = int(comm.allreduce(np.array([np.count_nonzero(found)]))[0])
    return found if visits < _SHARE * int(rows[0]) * comm.size else None


def visit_near(
    X: NDArray[np.floating], near: NDArray[np.bool_], answer: Answer, comm: Communicator, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """Sum of the answers of the ranks in `near`, from :func:`near_ranks`, for each row, (n_local, *shape); collective.

    Rows that this rank answers itself are not sent. Each other visit sends d numbers there and the answer back.
    """
    out = np.zeros((X.shape[0], *shape))
    longest = int(comm.allreduce(np.array([X.shape[0]]), "max")[0])
    for lo, hi in blocks(longest, max(1, ROWS // comm.size)):
        rank, row = np.nonzero(near[lo:hi].T)
        counts = np.bincount(rank, minlength=comm.size).astype(np.int64)
        rows, arrived = comm.alltoall(X[lo:hi][row], counts)
        given = np.ascontiguousarray(answer(rows)) if len(rows) else np.zeros((0, *shape))
        home, _ = comm.alltoall(given, arrived)
        for first, last in pairwise(np.append(0, np.cumsum(counts)).tolist()):
            out[lo + row[first:last]] += home[first:last]
    return out


def _boxes(A: NDArray[np.floating], kernel: Kernel) -> Boxes:
    """Boxes of groups of neighbouring rows."""
    order, ends = spatial_groups(A, GROUP)
    return Boxes.of_rows(A[order], ends, kernel.separable)
