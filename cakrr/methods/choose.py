"""The choice of sigma, lambda and the coarse model (Algorithm 10, lines 8 and 13 to 23)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cakrr.grid_search import CHOOSING, Search, best, cost, left_out, table
from cakrr.judges import Judges
from cakrr.methods.folds import Fold, GridErrors, held_rows, judges, over_folds
from cakrr.methods.per_part import choose_per_part
from cakrr.methods.settings import Chosen, RidgeGrid
from cakrr.methods.soft_route import choose_soft_route, unit_of
from cakrr.methods.task import RidgeTask
from cakrr.options import few_rows
from cakrr.solver.coarse import candidates
from partition.routing import SOFT, Soft


def choose(task: RidgeTask, grid: RidgeGrid) -> Chosen:
    """Choose sigma, lambda, the coarse model and the soft route on held-out rows; collective.

    Raises
    ------
    InputError
        On all ranks: no rows can be held out, or no pair can be solved.

    Notes
    -----
    m^2 d flops per part and sigma, and m^3/3 per lambda, or 4/3 m^3 for many lambdas. One Allreduce of the errors per
    fold, counted in phase "predict"; see :meth:`cakrr.grid_search.Search.errors`.
    """
    options, soft, chosen = task.options, task.route == "soft", grid.first(task)
    settings = len(grid.widths) * len(grid.lams)
    compared = settings > 1 or soft or options.compares
    if options.select != "test" and (compared or task.method.coarse):
        chosen.held = held_rows(task)
    if task.method.coarse:
        chosen.candidates = candidates(
            task.parts, chosen.held, grid.coarse, options.memory_limit, options.checkpoint, task.comm,
            task.piece("coarse"),
        )  # fmt: skip
        settings *= len(chosen.candidates.settings)
        chosen.reasons += chosen.candidates.reasons
    if compared or settings > 1:
        first = Fold.of(task, task.parts, chosen.held, chosen.candidates)
        chosen.targets = first.targets
        unit = unit_of(task, first) if soft else 1.0
        if settings > 1 or not soft:
            _choose_pair(task, grid, first, SOFT.scaled(unit, len(task.parts.sizes)), chosen)
        if soft:
            choose_soft_route(task, first, unit, chosen)
    if compared and task.folds > 1 and options.cv is None:
        chosen.reasons.append(few_rows(task.folds))
    if chosen.candidates is not None:
        chosen.coarse = chosen.candidates.chosen(chosen.candidate)
        chosen.params |= chosen.candidates.facts(chosen.candidate, options.chooses_kernel)
    if chosen.soft is not None:
        chosen.params |= {"soft_k": chosen.soft.k, "soft_t": chosen.soft.t}
    return chosen


def _choose_pair(task: RidgeTask, grid: RidgeGrid, first: Fold, route: Soft, chosen: Chosen) -> None:
    """Take the sigma, lambda and coarse-model candidate with the smallest error, for all parts or per part."""
    steps = task.folds * len(grid.widths) * sum(cost(rows) for _, rows in task.parts)
    advance = task.options.progress(CHOOSING, steps)

    def judge(fold: Fold, before: NDArray[np.float64]) -> GridErrors:
        # Line 8: every sigma and lambda. A search trains (lines 9 to 12), predicts (13 to 17) and reduces (18 to 22).
        loo = task.options.select == "loo"
        search = Search(
            fold.parts, fold.targets, np.zeros_like(fold.held) if loo else fold.held, grid.widths, grid.lams,
            task.workspace, task.options.checkpoint, task.piece(f"{fold.name}grid"), chosen.seconds, advance,
            before=before,
        )  # fmt: skip
        if loo:
            errors, failed = search.left_out_errors(task.comm)
        elif task.options.per_part:
            errors, failed = search.errors(Judges.of_own_parts(fold.parts, fold.held, fold.targets), task.comm)
        else:
            errors, failed = search.errors(judges(task, fold, [route]), task.comm)
        return GridErrors(errors, failed, search.by_part)

    found = over_folds(judge, task, first)
    errors = found.errors
    chosen.grid = table(errors, grid.widths, grid.lams, task.options, chosen.candidates)
    # No warning for pairs that nobody asked for.
    notes = chosen.reasons if task.options.default_widths else chosen.notes
    notes += left_out(found.failed, grid.widths, grid.lams)
    if task.options.per_part:
        middle = choose_per_part(task, grid, found.by_part, chosen)
        if not np.isfinite(errors).any():  # no pair suits all parts: take the median part's pair for the next round
            errors[0, *middle] = chosen.error
    # Line 23: the pair with the smallest error.
    with task.comm.phase("predict"):
        chosen.candidate, s, ell = best(errors, grid.widths, grid.lams, task.workspace.dtype, task.comm)
    chosen.errors = errors
    chosen.like, chosen.sigma, chosen.lam = grid.widths[s].like, grid.widths[s].sigma, grid.lams[ell]
    if not task.options.per_part:
        chosen.error = float(errors[chosen.candidate, s, ell])
