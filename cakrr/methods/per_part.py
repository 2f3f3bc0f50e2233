"""The choice of sigma and lambda for each part, on its own held-out rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cakrr.grid_search import best_of_each
from cakrr.methods.settings import Chosen, RidgeGrid
from cakrr.methods.task import RidgeTask


def choose_per_part(
    task: RidgeTask, grid: RidgeGrid, by_part: dict[int, NDArray[np.float64]], chosen: Chosen
) -> tuple[int, int]:
    """Choose the best pair of each part; one Allreduce of 2 P + 2 numbers.

    Parameters
    ----------
    task : RidgeTask
    grid : RidgeGrid
    by_part : dict of int to ndarray, shape (S, L)
        Sums of squared errors of each part of this rank.
    chosen : Chosen
        Its `sigmas`, `lams` and `error` are set.

    Returns
    -------
    tuple of int
        Indices in the grid of the pair whose part has the median sigma.
    """
    P, comm = len(task.parts.sizes), task.comm
    with comm.agreed():
        best = best_of_each(by_part)
    settings, total = np.zeros((2, P)), np.zeros(2)
    for part, (s, ell) in best.items():
        settings[:, part] = s, ell
        total[0] += by_part[part][s, ell]
    every = task.folds > 1 or task.options.select == "loo"  # every row counts, or only held-out ones
    total[1] = task.parts.row_weights()[slice(None) if every else chosen.held].sum()
    with comm.phase("predict"):
        *pairs, error, weight = comm.allreduce(np.concatenate([settings.ravel(), total]))
    widths, lams = np.reshape(pairs, (2, P)).astype(np.int64)
    chosen.sigmas = np.array([grid.widths[s].sigma for s in widths])
    chosen.lams = np.array(grid.lams)[lams]
    chosen.error = float(error / weight)
    middle = np.argsort(chosen.sigmas, kind="stable")[P // 2]
    return int(widths[middle]), int(lams[middle])
