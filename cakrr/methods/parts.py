"""Training in parts: divide the rows, choose sigma and lambda, solve every part (Algorithms 8, 10 and 11).

Other features wrap these steps: comparison of scalings (:mod:`cakrr.methods.choose`), rounds of a metric
(:mod:`cakrr.methods.rounds`), folds (:mod:`cakrr.methods.folds`), refinement of a coarse model
(:mod:`cakrr.methods.refined`), several divisions (:mod:`cakrr.methods.parts`), and intervals
(:mod:`cakrr.methods.calibrated`).

Solving every part with the chosen setting (Algorithm 10, lines 9 to 12).

Several divisions of the rows into parts, all trained with the setting chosen on the first one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.stored import some
from cacore.errors import InputError
from cacore.io.checkpoint import remembered
from cacore.machine.clock import working_time
from cakrr.grid_search import larger_lambda
from cakrr.methods.choose import Chosen, choose, scalings
from cakrr.methods.prepare import prepare
from cakrr.methods.refined import refine_coarse
from cakrr.methods.rounds import in_rounds
from cakrr.methods.task import RidgeTask, divided
from cakrr.options import RidgeMethod, RidgeOptions
from cakrr.ridge_model import KRRModel, PartModel, RidgeFit
from cakrr.solver import refine
from cakrr.solver.local import ridge_system


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


def solve_parts(task: RidgeTask, chosen: Chosen) -> RidgeFit:
    """Train one model per part on all rows of the part; collective, but sends nothing in phase "train".

    Raises
    ------
    InputError
        On all ranks: a part's matrix is not positive definite.
    """
    comm, parts, model = task.comm, task.parts, empty_model(task, chosen)
    mixed = task.workspace.dtype == np.float32
    fitted = RidgeFit(model, parts.sizes, seconds=np.zeros(len(parts.sizes)))
    residual, failed = np.zeros(len(parts.sizes)), -1
    advance = task.options.progress("training", len(parts.parts))
    division = f"division-{task.division}-" if task.division else ""

    def work(part: int, rows: slice) -> dict[str, NDArray[np.float64]]:
        done = remembered(
            task.options.checkpoint, f"{division}part-{part:06d}", lambda: solve_part(task, chosen, part, rows)
        )
        advance()
        return done

    def take(part: int, rows: slice, done: dict[str, NDArray[np.float64]]) -> None:
        nonlocal failed
        weights = task.weights(rows)
        if model.classes is not None and task.options.probability is None:
            weights = None  # not needed afterwards
        model.parts[part] = PartModel(some(parts.X, rows), done["alpha"], weights)
        fitted.seconds[part] += done["seconds"]
        residual[part] = done["residual"]
        failed = failed if done["solved"] else part

    with comm.phase("train"):
        task.workspace.over_parts(work, parts, take)
    comm.wait()
    with comm.phase("predict"), comm.agreed():
        if failed >= 0:
            raise InputError(not_definite(f"part {failed} ({parts.sizes[failed]:,} rows)", model, failed))
    if mixed:
        with comm.uncounted():
            fitted.residual = comm.allreduce(residual)
    return fitted


def solve_part(task: RidgeTask, chosen: Chosen, part: int, rows: slice) -> dict[str, NDArray[np.float64]]:
    """Solve one part of m rows; returns the arrays to store in a checkpoint. m^2 d + m^3/3 flops."""
    begun = working_time()
    X, y = task.parts.X[rows], task.y[rows]
    if chosen.coarse is not None:
        y = y - chosen.coarse.predict(X)
    width, lam = chosen.setting(part)
    system = ridge_system(X, task.workspace, width.kernel, task.weights(rows))
    if task.workspace.dtype == np.float32:
        alpha, residual = refine.solve_part(system, width.kernel, lam, y)
        solved = residual <= refine.ACCEPTED
    else:
        alphas, good = system.solve(width.kernel, (lam,), y.reshape(len(y), -1).T)
        alpha, residual, solved = np.ascontiguousarray(alphas[0].T).reshape(y.shape), 0.0, good[0]
    return {
        "alpha": alpha, "residual": np.array(residual), "solved": np.array(solved),
        "seconds": np.array(working_time() - begun),
    }  # fmt: skip


def empty_model(task: RidgeTask, chosen: Chosen) -> KRRModel:
    """A model with the chosen setting, still without the models of its parts."""
    parts = task.parts
    return KRRModel(
        method=task.method.name, route=task.route, soft=chosen.soft, like=chosen.like, sigma=chosen.sigma,
        lam=chosen.lam, sigmas=chosen.sigmas, lams=chosen.lams, coarse=chosen.coarse, offset=task.rows.offset,
        classes=task.rows.classes, centers=parts.centers, sizes=parts.sizes, owners=parts.owners,
        standardizer=task.standardizer, dtype=str(parts.X.dtype),
    )  # fmt: skip


def not_definite(where: str, model: KRRModel, part: int = 0) -> str:
    """Error message for a system that is not positive definite."""
    pair = f"sigma {model.sigma_of(part):g}, lambda {model.lam_of(part):g}"
    return f"{where}: K + lambda m I is not positive definite at {pair}; use {larger_lambda(model.dtype)}"


Solver = Callable[[RidgeTask, Chosen], RidgeFit]


def in_divisions(solve: Solver) -> Solver:
    """Wrap `solve` to train on every division; returns one model with the parts of all divisions."""

    def every(task: RidgeTask, chosen: Chosen) -> RidgeFit:
        fitted = solve(task, chosen)
        for number in range(1, task.options.divisions if len(task.parts.sizes) > 1 else 1):
            fitted.add(solve(task.divided_again(number), chosen))
        return fitted

    return every
