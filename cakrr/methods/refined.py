"""The coarse model of two levels, brought nearer to the exact model of its kernel: all rows become its centres.

The coarse model differs from the exact one of its sigma and lambda in expanding in M centres instead of all n rows. The
centres are rows: so its coefficients are a warm start for the exact system (K + lambda n I) alpha = y. A few iterations
of conjugate gradients follow, preconditioned by a factor of K with M pivots.

A lambda that suits M centres may be far too small for n, which can follow the noise of every row. So larger ones are
tried too, all together, on the rows that are not held out, and the held-out rows choose among them.
"""

from __future__ import annotations

from dataclasses import replace
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
from cakrr.methods.settings import Chosen
from cakrr.methods.task import RidgeTask
from cakrr.options import RidgeOptions
from cakrr.solver.coarse import CoarseModel
from partition.redistribute import Parts

TOL = 1e-12  # relative residual at which nothing is left to refine
TIMES = (1.0, 10.0, 100.0, 1e3, 1e4)  # the coarse model's lambda, for all rows as centres


def refine_coarse(task: RidgeTask, chosen: Chosen) -> None:
    """Refine the coarse model of the chosen setting, if there is one; collective.

    If several lambdas were tried, the held-out rows choose one for the refined model. It stays as it is if it errs less
    on them than the refined one.
    """
    if chosen.candidates is None or chosen.coarse is None:
        return
    lam: float | None = chosen.coarse.lam
    if len({lam for *_, lam in chosen.candidates.settings}) > 1 and task.options.select != "test":
        learned = chosen.candidates.chosen(chosen.candidate, learned=True)
        lam = chosen_lambda(learned, task.parts, chosen.held, task.rows.scale, task.options, task.comm)
    if lam is None:
        chosen.reasons.append("refine: on the validation rows the coarse model errs less than the refined one")
        return
    chosen.params["coarse_lambda"] = lam
    chosen.coarse = refined(replace(chosen.coarse, lam=lam), task.parts, task.options, task.comm)


def chosen_lambda(
    coarse: CoarseModel, parts: Parts, held: NDArray[np.bool_], scale: NDArray[np.float64], options: RidgeOptions,
    comm: Communicator,
) -> float | None:  # fmt: skip
    """The lambda with which the refined model errs least on held-out rows; None if the coarse one errs less.

    Parameters
    ----------
    coarse : CoarseModel
        From the rows that are not held out.
    parts : Parts
        See :func:`refined`.
    held : ndarray of bool, shape (n_local,)
    scale : ndarray, shape (t,)
        Units of the targets, in which their squared errors add up.
    options : RidgeOptions
    comm : Communicator

    Raises
    ------
    MemoryLimitError
        On all ranks, as :func:`refined`.

    Notes
    -----
    As :func:`refined`, with five times as many right sides, which share all kernel values; and n kernel values for each
    held-out row. One Allreduce of 6 numbers.
    """
    lams = [coarse.lam * factor for factor in TIMES]

    def work() -> dict[str, NDArray[Any]]:
        model = _towards(coarse, parts, ~held, lams, "refined-learned", options, comm)
        y = parts["y"][held].astype(np.float64)[:, None].reshape(-1, 1, len(scale))
        said = [one.predict(parts.X[held]).reshape(len(y), -1, len(scale)) for one in (model, coarse)]
        squares = np.square((np.concatenate(said, axis=1) - y) / scale)
        return {"errors": comm.allreduce(np.einsum("i,ijk->j", parts.row_weights()[held], squares))}

    with comm.phase("train"):
        errors = remembered(options.checkpoint, "refined-lambdas", work, comm)["errors"]
        least = int(comm.bcast(np.array([np.where(np.isfinite(errors), errors, np.inf).argmin()]))[0])
    return lams[least] if least < len(lams) else None


def refined(coarse: CoarseModel, parts: Parts, options: RidgeOptions, comm: Communicator) -> CoarseModel:
    """The coarse model after `options.refine` iterations; a collective call.

    Parameters
    ----------
    coarse : CoarseModel
        On the last M rows of the shuffled order, the last one first.
    parts : Parts
        With the columns "y", "order" and, optionally, "weight".
    options : RidgeOptions
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
    every = np.ones(len(parts), np.bool_)
    with comm.phase("train"):
        model = _towards(coarse, parts, every, [coarse.lam], "refined", options, comm)
    return replace(model, beta=model.beta.reshape(len(model.beta), *coarse.beta.shape[1:]))


def _towards(
    coarse: CoarseModel, parts: Parts, some: NDArray[np.bool_], lams: list[float], piece: str, options: RidgeOptions,
    comm: Communicator,
) -> CoarseModel:  # fmt: skip
    """The coarse model refined on some of the rows, for all these lambdas: coefficients of shape (rows, L t)."""
    X, order, y = parts.X[some], parts["order"][some], parts["y"][some].astype(np.float64)
    weights = parts.columns["weight"][some] if "weight" in parts.columns else None
    M, local, kernel = len(coarse.beta), len(order), coarse.kernel.with_sigma(coarse.sigma)
    y = y.reshape(local, int(np.prod(y.shape[1:])))
    start = np.zeros_like(y)
    last = int(parts.sizes.sum()) - 1  # the first centre's place
    mine = order > last - M
    start[mine] = coarse.beta.reshape(M, -1)[last - order[mine]]
    with comm.uncounted():
        rows = int(comm.allreduce(np.array([nbytes(X)], np.int64))[0])
    spread = SpreadRows(X, order, kernel, comm, weights)
    dtype = spread.factor_dtype(kernel, min(lams) * spread.n)
    with comm.agreed():
        sides = y.shape[1] * len(lams)
        need = 2 * rows + dtype.itemsize * M * local + 24 * M * M + 8 * sides * (16 * local + 3 * spread.n)
        what = f"a coarse model that is refined to all {spread.n:,} rows"
        memory.require(need, options.memory_limit, what, "leave out --refine, or use more memory a rank")

    def work() -> dict[str, NDArray[Any]]:
        targets, begin = (np.tile(values, len(lams)).T for values in (y, start))
        ridges = np.repeat(lams, y.shape[1]) * spread.n
        x = begin if spread.scale is None else begin / spread.scale
        room = Keep(max(0, options.memory_limit - need))
        products = KernelProducts(spread, kernel, room, not gathers(comm, rows, options.memory_limit))
        found = pivoted_cholesky(spread, kernel, M, options.seed, lambda traces: False, dtype)
        preconditioner = Preconditioner(Factor(found.rows) if found.rank else None, None, ridges, comm)
        left = spread.scaled(np.ascontiguousarray(targets)) - products(x, False) - ridges[:, None] * x
        rules = Rules(TOL, max_iter=options.refine, final=False)
        alpha = spread.scaled(x + solve(products, preconditioner, left, rules).x)
        return {"alpha": np.ascontiguousarray(alpha.T)}

    alpha = remembered(options.checkpoint, piece, work, comm)["alpha"]
    centers = gather_rows(X, comm).astype(np.float64)
    return CoarseModel(centers, comm.allgather(alpha), coarse.sigma, lams[0], coarse.kernel, refined=True)
