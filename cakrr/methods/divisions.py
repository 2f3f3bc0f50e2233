"""Several divisions of the rows into parts, all trained with the setting chosen on the first one."""

from __future__ import annotations

from collections.abc import Callable

from cakrr.fit import RidgeFit
from cakrr.methods.settings import Chosen
from cakrr.methods.task import RidgeTask

Solver = Callable[[RidgeTask, Chosen], RidgeFit]


def in_divisions(solve: Solver) -> Solver:
    """Wrap `solve` to train on every division; returns one model with the parts of all divisions."""

    def every(task: RidgeTask, chosen: Chosen) -> RidgeFit:
        fitted = solve(task, chosen)
        for number in range(1, task.options.divisions if len(task.parts.sizes) > 1 else 1):
            fitted.add(solve(task.divided_again(number), chosen))
        return fitted

    return every
