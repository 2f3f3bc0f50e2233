"""The coarse model of two levels, brought nearer to the exact model of its kernel: all rows become its centres.

The coarse model is the exact one of its sigma and lambda, but for expanding in M centres instead of all n rows. Those
are rows themselves: so its coefficients are a beginning for the exact system (K + lambda n I) alpha = y, from which a
few iterations of conjugate gradients, preconditioned by a factor of K with M pivots, lead on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import gather_rows, nbytes
from cacore.io.checkpoint import remembered
from cacore.linalg.pivoted import pivoted_cholesky
from cacore.machine import memory
from cakrr.iterative.keep import Keep
from cakrr.iterative.preconditioner import Factor, Preconditioner
from cakrr.iterative.products import KernelProducts, gathers
from cakrr.iterative.solver import Rules, solve
from cakrr.iterative.spread import SpreadRows
from cakrr.options import Options
from cakrr.solver.coarse import CoarseModel
from partition.redistribute import Parts

TOL = 1e-12  # of the residual: nothing is left to refine


def refined(coarse: CoarseModel, parts: Parts, options: Options, comm: Communicator) -> CoarseModel:
    """The coarse model after `options.refine` iterations; a collective call.

    Parameters
    ----------
    coarse : CoarseModel
        On the last M rows of the shuffled order, the last one first.
    parts : Parts
        With the columns "y", "order" and, optionally, "weight".
    options : Options
    comm : Communicator

    Raises
    ------
    MemoryLimitError
        On all ranks: every one holds all rows, which are the centres.

    Notes
    -----
    n^2/2 kernel values an iteration, and as many in double precision to begin with, shared by the ranks; n M^2 flops
    for the factor. Phase "train": what an iteration sends, see :class:`cakrr.iterative.products.KernelProducts`, and
    at the end all rows and coefficients to all ranks.
    """
    n, M, t = int(parts.sizes.sum()), len(coarse.beta), int(np.prod(parts["y"].shape[1:]))
    with comm.uncounted():
        rows = int(comm.allreduce(np.array([nbytes(parts.X)], np.int64))[0])
    local, kernel = len(parts), coarse.kernel.with_sigma(coarse.sigma)
    with comm.phase("train"):
        spread = SpreadRows(parts.X, parts["order"], kernel, comm, parts.columns.get("weight"))
    dtype = spread.factor_dtype(kernel, coarse.lam * n)
    with comm.agreed():
        need = 2 * rows + dtype.itemsize * M * local + 24 * M * M + 8 * t * (16 * local + 3 * n)
        what = f"a coarse model that is refined to all {n:,} rows"
        memory.require(need, options.memory_limit, what, "leave out --refine, or use more memory a rank")

    def work() -> dict[str, NDArray[Any]]:
        return {"alpha": _solved(coarse, parts, options, spread, dtype, rows, options.memory_limit - need)}

    with comm.phase("train"):
        alpha = remembered(options.checkpoint, "refined", work, comm)["alpha"]
        centers = gather_rows(parts.X, comm).astype(np.float64)
        beta = comm.allgather(alpha.reshape(local, *coarse.beta.shape[1:]))
    return CoarseModel(centers, beta, coarse.sigma, coarse.lam, coarse.kernel)


def _solved(
    coarse: CoarseModel, parts: Parts, options: Options, spread: SpreadRows, dtype: np.dtype[Any], rows: int, room: int
) -> NDArray[np.float64]:
    """Coefficients of this rank's rows, shape (n_local, t)."""
    kernel, order, comm = spread.like, spread.number, spread.comm
    n, y = spread.n, parts["y"].astype(np.float64).reshape(len(order), int(np.prod(parts["y"].shape[1:])))
    start = np.zeros_like(y)
    mine = order >= n - len(coarse.beta)
    start[mine] = coarse.beta.reshape(len(coarse.beta), -1)[n - 1 - order[mine]]
    x = start.T if spread.scale is None else start.T / spread.scale
    ridges = np.full(y.shape[1], coarse.lam * n)
    products = KernelProducts(spread, kernel, Keep(max(0, room)), not gathers(comm, rows, options.memory_limit))
    found = pivoted_cholesky(spread, kernel, len(coarse.beta), options.seed, lambda traces: False, dtype)
    preconditioner = Preconditioner(Factor(found.rows) if found.rank else None, None, ridges, comm)
    left = spread.scaled(np.ascontiguousarray(y.T)) - products(x, False) - ridges[:, None] * x
    rules = Rules(TOL, max_iter=options.refine, final=False)
    return np.ascontiguousarray(spread.scaled(x + solve(products, preconditioner, left, rules).x).T)
