"""Training in parts: divide the rows, choose sigma and lambda, solve every part (Algorithms 8, 10 and 11).

Other features wrap these steps: comparison of scalings (:mod:`cakrr.methods.scaling`), rounds of a metric
(:mod:`cakrr.methods.rounds`), folds (:mod:`cakrr.methods.folds`), refinement of a coarse model
(:mod:`cakrr.methods.refined`), several divisions (:mod:`cakrr.methods.divisions`), and intervals
(:mod:`cakrr.methods.calibrated`).
"""

from __future__ import annotations

import numpy as np

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cakrr.fit import RidgeFit
from cakrr.method import RidgeMethod
from cakrr.methods.choose import choose
from cakrr.methods.divisions import in_divisions
from cakrr.methods.prepare import prepare
from cakrr.methods.refined import refine_coarse
from cakrr.methods.rounds import in_rounds
from cakrr.methods.scaling import scalings
from cakrr.methods.solve import solve_parts
from cakrr.methods.task import divided
from cakrr.options import RidgeOptions


def fit(
    method: RidgeMethod, train: Dataset, options: RidgeOptions, comm: Communicator, test: Dataset | None = None
) -> RidgeFit:
    """Train one model per part; a collective call.

    Arguments and result are those of :meth:`cacore.learn.method.Method.__call__`.

    Raises
    ------
    InputError
        On all ranks: invalid options, more parts than rows, a matrix that does not fit or is not positive definite, or
        a checkpoint of another run.

    Notes
    -----
    m^2 d flops per part and sigma, and m^3/3 per lambda, or 4/3 m^3 for many lambdas. Memory holds this rank's rows,
    and one matrix of its largest part. Training sends nothing except one Allreduce for a coarse model; the errors of
    the grid are one reduction, counted in phase "predict".
    """
    rows = prepare(method, train, options, comm, test)
    begun = comm.seconds["train"]
    # Algorithm 10, lines 1 to 7 (Algorithm 8, lines 1 to 5): divide the rows.
    tasks = [divided(method, scaled, options, comm) for scaled in scalings(rows, options, comm)]
    # Lines 8 and 13 to 23: train and predict with every pair of sigma and lambda, reduce the errors, choose the best.
    task, chosen = in_rounds(choose)(tasks)
    del tasks  # frees the rows of the other scalings
    # Lines 9 to 12 with the chosen pair and all rows, for every division.
    if options.refine:
        refine_coarse(task, chosen)
    fitted = in_divisions(solve_parts)(task, chosen)
    chosen.describe(fitted)
    if options.scaling == "auto":
        fitted.params["scaling"] = task.rows.scaling
    with comm.uncounted():
        fitted.seconds = comm.allreduce(fitted.seconds)
        fitted.busy = comm.allgather(np.array([comm.seconds["train"] - begun]))
    return fitted
