"""The choice of the soft route: number k of models per row, and decay t of their weights with distance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cakrr.grid_search import Search, best, cost
from cakrr.methods.folds import Fold, GridErrors, judges, over_folds
from cakrr.methods.settings import Chosen
from cakrr.methods.task import RidgeTask
from partition.routing import Soft, gap

# Sigma and lambda are chosen with partition.routing.SOFT; then these routes are compared.
SOFT_TRIED = (Soft(1, 1.0), *(Soft(k, t) for k in (3, 8) for t in (0.1, 0.2, 0.4, 0.8)))


def unit_of(task: RidgeTask, fold: Fold) -> float:
    """Unit of t, from the distances of the held-out rows; collective."""
    with task.comm.phase("partition"):
        return gap(fold.judging.X, task.parts.centers, task.comm)


def choose_soft_route(task: RidgeTask, first: Fold, unit: float, chosen: Chosen) -> None:
    """Choose the k and t with the smallest error, given the chosen pair; one Allreduce per fold.

    Parameters
    ----------
    task : RidgeTask
    first : Fold
    unit : float
        Unit of t.
    chosen : Chosen
        Its `soft` and `error` are set.
    """
    routes = list(dict.fromkeys(one.scaled(unit, len(task.parts.sizes)) for one in SOFT_TRIED))
    steps = task.folds * sum(cost(rows) for _, rows in task.parts)
    advance = task.options.progress("choosing the soft route", steps)

    def judge(fold: Fold, before: NDArray[np.float64]) -> GridErrors:
        fold = fold.of_candidate(chosen.candidate)
        own = {} if chosen.sigmas is None else {part: chosen.setting(part) for part, _ in fold.parts}
        search = Search(
            fold.parts, fold.targets, fold.held, (chosen.width,), (chosen.lam,), task.workspace,
            task.options.checkpoint, task.piece(f"{fold.name}soft"), chosen.seconds, advance, own, before,
        )  # fmt: skip
        errors, failed = search.errors(judges(task, fold, routes), task.comm, len(routes))
        return GridErrors(errors, failed, search.by_part)

    errors = over_folds(judge, task, first).errors
    with task.comm.phase("predict"):
        number = best(errors, (chosen.width,), (chosen.lam,), task.workspace.dtype, task.comm)[0]
    chosen.soft, chosen.error = routes[number], float(errors[number, 0, 0])
