"""Refinement of the coarse model towards the exact model with its kernel, in which all rows are centres.

The coarse model expands in M centres, and the exact model with the same sigma and lambda in all n rows. Since the
centres are rows, the coarse coefficients are a warm start for the exact system (K + lambda n I) alpha = y. A few
iterations of conjugate gradients follow, preconditioned by a factor of K with M pivots.

A lambda that suits M centres may be far too small for n centres, which can follow the noise of every row. So larger
lambdas are tried as well, all at once, without the held-out rows, which then choose among them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import gather_rows, nbytes
from cacore.io.checkpoint import Kept, remembered
from cacore.linalg.pivoted import pivoted_cholesky
from cacore.machine import memory
from cakrr.iterative.preconditioner import Factor, Preconditioner, SpreadRows
from cakrr.iterative.products import Keep, KernelProducts, gathers
from cakrr.iterative.solver import StoppingCriteria, solve
from cakrr.methods.choose import Chosen
from cakrr.methods.prepare import RidgeParts
from cakrr.options import RidgeOptions
from cakrr.solver.coarse import CoarseModel
from partition.redistribute import Parts

TOL = 1e-12  # relative residual at which nothing is left to refine
TIMES = (1.0, 10.0, 100.0, 1e3, 1e4)  # multiples of the coarse model's lambda to try with all rows as centres


def refine_coarse(division: RidgeParts, chosen: Chosen, comm: Communicator) -> None:
    """Refine the coarse model of the chosen setting, if there is one; collective.

    If several lambdas were tried, the held-out rows choose one for the refined model. If the coarse model has a smaller
    error on them than the refined one, it is not refined.
    """
    if chosen.candidates is None or chosen.coarse is None:
        return
    lam: float | None = chosen.coarse.lam
    if len({lam for *_, lam in chosen.candidates.settings}) > 1 and division.options.select != "test":
        learned = chosen.candidates.chosen(chosen.candidate, learned=True)
        lam = chosen_lambda(learned, division.parts, chosen.held, division.rows.scale, division.options, comm)
    if lam is None:
        chosen.reasons.append("refine: not done, since the coarse model has a smaller validation error")
        return
    chosen.params["coarse_lambda"] = lam
    chosen.coarse = refined(replace(chosen.coarse, lam=lam), division.parts, division.options, comm)


def chosen_lambda(
    coarse: CoarseModel, parts: Parts, held: NDArray[np.bool_], scale: NDArray[np.float64], options: RidgeOptions,
    comm: Communicator,
) -> float | None:  # fmt: skip
    """The lambda whose refined model has the smallest held-out error; None if the coarse model's is smaller.

    Parameters
    ----------
    coarse : CoarseModel
        The coarse model trained without the held-out rows.
    parts : Parts
        See :func:`refined`.
    held : ndarray of bool, shape (n_local,)
    scale : ndarray, shape (t,)
        Units of the targets; squared errors in these units add up.
    options : RidgeOptions
    comm : Communicator

    Raises
    ------
    MemoryLimitError
        On all ranks, as in :func:`refined`.

    Notes
    -----
    The cost is that of :func:`refined` with five times as many right-hand sides, which share all kernel values, plus n
    kernel values per held-out row and one Allreduce of 6 numbers.
    """
    lams = [coarse.lam * factor for factor in TIMES]

    def work() -> Kept:
        model = _towards(coarse, parts, ~held, lams, "refined-learned", options, comm)
        y = parts["y"][held].astype(np.float64)[:, None].reshape(-1, 1, len(scale))
        predicted = [level.predict(parts.X[held]).reshape(len(y), -1, len(scale)) for level in (model, coarse)]
        squares = np.square((np.concatenate(predicted, axis=1) - y) / scale)
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
        Its centres are the last M rows of the shuffled order, in reverse.
    parts : Parts
        The parts, with the columns "y", "order" and, optionally, "weight".
    options : RidgeOptions
    comm : Communicator

    Raises
    ------
    MemoryLimitError
        On all ranks: all rows, which are the centres, do not fit on every rank.

    Notes
    -----
    n^2/2 kernel values per iteration, and as many in double precision at the start, shared by the ranks; n M^2 flops
    for the factor. In phase "train", each iteration sends what :class:`cakrr.iterative.products.KernelProducts` does;
    in the end, all rows and coefficients are sent to all ranks.
    """
    all_rows = np.ones(len(parts), np.bool_)
    with comm.phase("train"):
        model = _towards(coarse, parts, all_rows, [coarse.lam], "refined", options, comm)
    return replace(model, beta=model.beta.reshape(len(model.beta), *coarse.beta.shape[1:]))


def _towards(
    coarse: CoarseModel, parts: Parts, chosen: NDArray[np.bool_], lams: list[float], piece: str, options: RidgeOptions,
    comm: Communicator,
) -> CoarseModel:  # fmt: skip
    """The coarse model refined on the rows `chosen`, for all `lams`; coefficients have shape (rows, L t)."""
    X, order, y = parts.X[chosen], parts["order"][chosen], parts["y"][chosen].astype(np.float64)
    weights = parts.columns["weight"][chosen] if "weight" in parts.columns else None
    M, local, kernel = len(coarse.beta), len(order), coarse.kernel.with_sigma(coarse.sigma)
    y = y.reshape(local, int(np.prod(y.shape[1:])))
    start = np.zeros_like(y)
    last = int(parts.sizes.sum()) - 1  # the first centre's place, see :func:`cakrr.solver.coarse.candidates`
    centers_here = order > last - M
    start[centers_here] = coarse.beta.reshape(M, -1)[last - order[centers_here]]
    with comm.uncounted():
        rows = int(comm.allreduce(np.array([nbytes(X)], np.int64))[0])
    spread = SpreadRows(X, order, kernel, comm, weights)
    dtype = spread.factor_dtype(kernel, min(lams) * spread.n)
    with comm.agreed():
        sides = y.shape[1] * len(lams)
        need = 2 * rows + dtype.itemsize * M * local + 24 * M * M + 8 * sides * (16 * local + 3 * spread.n)
        what = f"refining the coarse model to all {spread.n:,} rows"
        memory.require(need, options.memory_limit, what, "leave out --refine, or use more memory per rank")

    def work() -> Kept:
        targets, begin = (np.tile(values, len(lams)).T for values in (y, start))
        ridges = np.repeat(lams, y.shape[1]) * spread.n
        x = begin if spread.scale is None else begin / spread.scale
        room = Keep(max(0, options.memory_limit - need))
        products = KernelProducts(spread, kernel, room, not gathers(comm, rows, options.memory_limit))
        pivoted = pivoted_cholesky(spread, kernel, M, options.seed, lambda traces: False, dtype)
        preconditioner = Preconditioner(Factor(pivoted.rows) if pivoted.rank else None, None, ridges, comm)
        residual = spread.scaled(np.ascontiguousarray(targets)) - products(x, False) - ridges[:, None] * x
        criteria = StoppingCriteria(TOL, max_iter=options.refine, final=False)
        alpha = spread.scaled(x + solve(products, preconditioner, residual, criteria).x)
        return {"alpha": np.ascontiguousarray(alpha.T)}

    alpha = remembered(options.checkpoint, piece, work, comm)["alpha"]
    centers = gather_rows(X, comm).astype(np.float64)
    return CoarseModel(centers, comm.allgather(alpha), coarse.sigma, lams[0], coarse.kernel, refined=True)
