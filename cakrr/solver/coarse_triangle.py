"""Coarse models from a triangle, for lambdas so small that normal equations would lose too many digits.

The normal equations W^T W + lambda w I of :mod:`cakrr.solver.coarse` have a condition of up to max k(x,x) / lambda, and
coefficients lose as many digits. From a condition of :data:`WORST` on, the rows of K_nM are folded into triangles
instead (:mod:`cacore.linalg.tsqr`), whose condition is the square root of that.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows
from cacore.kernels import Kernel
from cacore.linalg import tsqr
from cacore.machine import threads
from cakrr.solver.nystrom import PointSystem
from partition.redistribute import Parts

WORST = 1e12  # condition from which the triangle is taken
_ROWS = 2048  # rows of K_nM per block


def asked(parts: Parts, kernel: Kernel, lam: float, comm: Communicator) -> bool:
    """True if normal equations with this lambda might have a condition above :data:`WORST`; collective.

    False if kernel values overflow: there is no solution then.
    """
    largest = 0.0
    for lo, hi in threads.blocks(len(parts), 8 * _ROWS):
        largest = max(largest, float(np.abs(kernel.diagonal(parts.X[lo:hi])).max()))
    with comm.uncounted():
        largest = float(comm.allreduce(np.array([largest]), "max")[0])
    return WORST * lam < largest < np.inf


def coefficients(
    parts: Parts, held: NDArray[np.bool_], centers: Rows, kernel: Kernel, L: NDArray[np.float64], Ms: list[int],
    lams: tuple[float, ...], width: int, comm: Communicator,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """Coefficients for every M and lambda, from the learning rows and from all rows, padded by zeros; collective.

    Parameters
    ----------
    parts, held : see :func:`cakrr.solver.coarse.candidates`
    centers : ndarray or CSR, shape (M, d)
    kernel : Kernel
    L : ndarray, shape (M, M)
        Cholesky factor of K_MM.
    Ms : list of int
    lams : tuple of float
    width : int
        Number of rows of the result, at least M.
    comm : Communicator

    Returns
    -------
    learned, whole : ndarray, shape (len(Ms) len(lams), width, t)

    Notes
    -----
    2 n M^2 flops, shared by the ranks, and 2/3 M^3 per candidate on each; two trees of triangles, over the ranks.
    """
    t = int(np.prod(parts["y"].shape[1:]))
    leaves = 1 << (comm.size - 1).bit_length()
    mine = int(np.flatnonzero(tsqr.owners(leaves, comm.size) == comm.rank)[0])
    found = []
    for rows in (np.flatnonzero(~held), np.flatnonzero(held)):

        def blocks(leaf: int, skipped: int, rows: NDArray[np.int64] = rows) -> Iterator[NDArray[np.float64]]:
            return _blocks(parts, rows, centers, kernel) if leaf == mine else iter(())

        found.append(tsqr.tsqr(blocks, len(L), t + 1, leaves, comm))
    learning, other = found
    systems = [PointSystem.of(one, L) for one in (learning, _together(learning, other))]
    learned, whole = (_solutions(one, Ms, lams, width) for one in systems)
    return learned, whole if other.rows else learned


def _blocks(parts: Parts, rows: NDArray[np.int64], centers: Rows, kernel: Kernel) -> Iterator[NDArray[np.float64]]:
    """Blocks [K y 1] of these rows, times the roots of their weights."""
    right, M = kernel.points(centers), centers.shape[0]
    y = parts["y"].reshape(len(parts), int(np.prod(parts["y"].shape[1:])))
    weights = parts.row_weights()
    for lo, hi in threads.blocks(len(rows), _ROWS):
        some = rows[lo:hi]
        out = np.empty((hi - lo, M + y.shape[1] + 1))
        kernel.fill(kernel.points(parts.X[some].astype(np.float64), like=right), right, out[:, :M])
        out[:, M:-1], out[:, -1] = y[some], 1.0
        yield out * np.sqrt(weights[some])[:, None]


def _together(one: tsqr.Triangle, other: tsqr.Triangle) -> tsqr.Triangle:
    """Triangle of the rows of both."""
    squares = [
        np.hstack([np.vstack([t.R, np.zeros((len(t.s), len(t.R)))]), np.vstack([t.q, t.s])]) for t in (one, other)
    ]
    M, whole = len(one.R), tsqr.stacked(*squares)
    return tsqr.Triangle(whole[:M, :M], whole[:M, M:], whole[M:, M:], one.rows + other.rows)


def _solutions(system: PointSystem, Ms: list[int], lams: tuple[float, ...], width: int) -> NDArray[np.float64]:
    out = np.zeros((len(Ms) * len(lams), width, system.q.shape[1]))
    for i, (M, lam) in enumerate((M, lam) for M in Ms for lam in lams):
        found, _ = system.leading(M).solve(lam)
        out[i, :M] = found
        if not np.isfinite(found).all():
            out[i] = np.nan
    return out
