"""The exact method: one n x n system over all ranks, factored or solved by iteration (Algorithm 6, section 3.3)."""

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
        On all ranks: options that make no sense, a matrix that cannot fit, one that is not positive
        definite, more than one rank and no ScaLAPACK.

    Notes
    -----
    n^2 d + n^3/3 flops a pair, and n^2 numbers, shared by the R ranks; n/Pr + n/Pc rows a rank for its
    panels on a grid of Pr x Pc. Rows are sent to where they are needed once for the grid and once for the
    final fit; ScaLAPACK sends about s n^2/2 (1/Pr + 1/Pc) bytes a rank and pair (s bytes a number).
    """
    prepared = prepare(method, train, options, comm, test)
    begun = comm.seconds["train"]
    kind, reasons = _solver(method, prepared, options, comm)
    scaled = scalings(prepared, options, comm)
    ways = [[kind(method, one, way, comm) for one in scaled] for way in options.ways()]
    # Algorithm 6, lines 1 to 14: train, predict and judge every pair of sigma and lambda.
    run, errors, notes = best_round(ways, options.rounds, comm)
    del ways
    # Lines 3 to 6 once more, at the pair that was chosen, with all rows.
    alpha, residual = run.solve()
    model = run.model(alpha)
    run.accept(residual, model)
    with comm.uncounted():
        busy = comm.allgather(np.array([comm.seconds["train"] - begun]))
    fitted = RidgeFit(
        model, np.array([run.n]), run.grid, seconds=np.array([busy.max()]), busy=busy, library_bytes=run.sent,
        notes=run.notes + notes, errors=errors, iteration=run.iteration, reasons=reasons,
    )  # fmt: skip
    if options.scaling == "auto":
        fitted.params["scaling"] = run.prepared.scaling
    if str(run.X.dtype) == "float32" or run.iteration:
        fitted.residual = np.array([residual])
    return fitted


def _solver(
    method: RidgeMethod, prepared: RidgeRows, options: RidgeOptions, comm: Communicator
) -> tuple[type[Exact], list[str]]:
    """The runs of the solver that is asked for, or of the one that costs less; why, in a sentence; collective."""
    if options.solver == "cholesky":
        return Exact, []
    if options.solver == "cg":
        return Iterative, []
    solver, reason = cheaper(method, prepared, options, comm)
    return (Exact if solver == "cholesky" else Iterative), [reason]
