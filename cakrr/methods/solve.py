"""Solving every part with the chosen setting (Algorithm 10, lines 9 to 12)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cacore.data.stored import some
from cacore.errors import InputError
from cacore.io.checkpoint import remembered
from cacore.machine.clock import working_time
from cakrr.fit import RidgeFit
from cakrr.grid_search import larger_lambda
from cakrr.methods.settings import Chosen
from cakrr.methods.task import RidgeTask
from cakrr.model import KRRModel
from cakrr.part import PartModel
from cakrr.solver import refine
from cakrr.solver.system import ridge_system


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
