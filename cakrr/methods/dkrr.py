"""The exact method: one n x n system over all ranks, solved by factorisation or iteration (Algorithm 6)."""

from __future__ import annotations

import numpy as np

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.metric import best_round
from cakrr.fit import RidgeFit
from cakrr.method import RidgeMethod
from cakrr.methods.automatic import cheaper
from cakrr.methods.factored import Exact
from cakrr.methods.iterative import Iterative
from cakrr.methods.prepare import RidgeRows, prepare
from cakrr.methods.scaling import scalings
from cakrr.options import RidgeOptions


def fit(
    method: RidgeMethod, train: Dataset, options: RidgeOptions, comm: Communicator, test: Dataset | None = None
) -> RidgeFit:
    """Solve (K + lambda n I) alpha = y on all rows; arguments as for :func:`cakrr.methods.parts.fit`.

    Raises
    ------
    InputError
        On all ranks: invalid options, a matrix that does not fit or is not positive definite, or several ranks without
        ScaLAPACK.

    Notes
    -----
    n^2 d + n^3/3 flops per (sigma, lambda) pair, and n^2 numbers of memory, shared by the R ranks. On a grid of Pr x Pc
    ranks, each rank also holds two panels of n/Pr + n/Pc rows. Rows are sent where they are needed, once for the grid
    search and once for the final fit. ScaLAPACK sends about s n^2/2 (1/Pr + 1/Pc) bytes per rank and pair, with s bytes
    per number.
    """
    prepared = prepare(method, train, options, comm, test)
    begun = comm.seconds["train"]
    kind, reasons = _solver(method, prepared, options, comm)
    scaled = scalings(prepared, options, comm)
    ways = [[kind(method, one, way, comm) for one in scaled] for way in options.ways()]
    # Algorithm 6, lines 1 to 14: train and predict with every pair of sigma and lambda, and compare the errors.
    run, errors, notes = best_round(ways, options.rounds, comm)
    del ways
    # Lines 3 to 6 once more, with the chosen pair and all rows.
    alpha, residual = run.solve()
    model = run.model(alpha)
    run.accept(residual, model)
    with comm.uncounted():
        busy = comm.allgather(np.array([comm.seconds["train"] - begun]))
    fitted = RidgeFit(
        model, np.array([run.n]), run.grid, seconds=np.array([busy.max()]), busy=busy, library_bytes=run.sent,
        notes=run.notes + notes, errors=errors, iteration=run.iteration, reasons=reasons + run.reasons,
    )  # fmt: skip
    if options.scaling == "auto":
        fitted.params["scaling"] = run.prepared.scaling
    if str(run.X.dtype) == "float32" or run.iteration:
        fitted.residual = np.array([residual])
    return fitted


def _solver(
    method: RidgeMethod, prepared: RidgeRows, options: RidgeOptions, comm: Communicator
) -> tuple[type[Exact], list[str]]:
    """Class of the requested solver, or of the cheaper one, and a sentence that explains the choice; collective."""
    if options.solver == "cholesky":
        return Exact, []
    if options.solver == "cg":
        return Iterative, []
    solver, reason = cheaper(method, prepared, options, comm)
    return (Exact if solver == "cholesky" else Iterative), [reason]
