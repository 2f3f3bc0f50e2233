"""Rounds of a metric, and length scales: features are scaled before the parts are trained.

Rounds of a metric: each divides the rows and chooses a setting in the metric learned in the last round.

Length scales of the features, from gradients of the leave-one-out error over the parts of all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cacore.data.lengths import LeftOut, best_scales
from cacore.data.metric import SAMPLE, Root, best_round
from cacore.data.rows import dense
from cacore.io.checkpoint import remembered
from cacore.kernels.gradients import moments, stacked
from cacore.learn.options import LENGTHS
from cakrr.methods.choose import Chosen, RidgeGrid
from cakrr.methods.task import RidgeTask
from cakrr.solver.local import ridge_system

Chooser = Callable[[RidgeTask, RidgeGrid], Chosen]
BestTask = Callable[[list[RidgeTask]], tuple[RidgeTask, Chosen]]


def in_rounds(choose: Chooser) -> BestTask:
    """Wrap `choose` to run in every round of a metric, and take the round with the smallest error.

    Without a metric, there is one round per task, and the best task is taken, for example the better scaling.
    """

    def best(tasks: list[RidgeTask]) -> tuple[RidgeTask, Chosen]:
        options, comm = tasks[0].options, tasks[0].comm
        ways = [[PartsRound(choose, replace(task, options=way)) for task in tasks] for way in options.ways()]
        found, errors, notes = best_round(ways, options.rounds, comm)
        found.chosen.rounds = errors
        found.chosen.notes += notes
        return found.task, found.chosen

    return best


class PartsRound:
    """One round; see :class:`cacore.data.metric.Round`.

    Parameters
    ----------
    choose : callable
    task : RidgeTask
    grid : RidgeGrid, optional
        Settings to try; by default the whole grid.

    Attributes
    ----------
    chosen : Chosen
        Set by :meth:`choose`.
    """

    chosen: Chosen

    def __init__(self, choose: Chooser, task: RidgeTask, grid: RidgeGrid | None = None) -> None:
        self.chooser, self.task, self.grid = choose, task, grid or RidgeGrid.whole(task)
        self.root: Root | None = task.root
        self.error = math.inf
        self.stretch: float | None = None  # factor by which the next metric changes distances, if known

    def choose(self) -> None:
        """Choose in this round's metric; collective."""
        self.chosen = self.chooser(self.task, self.grid)
        self.error = self.chosen.error

    def moments(self) -> NDArray[np.float64]:
        """Moments of the gradients, see :func:`gradient_moments`, or squares of the length scales; collective."""
        if self.task.options.metric != LENGTHS:
            return gradient_moments(self.task, self.chosen)
        factors = scales(self.task, self.chosen)
        weights = factors if self.root is None else factors * self.root
        self.stretch = math.sqrt(len(weights) / np.square(weights).sum())  # the metric's trace will be d
        return np.asarray(np.square(factors))

    def again(self, root: Root) -> PartsRound:
        """The next round, which searches around the setting chosen in this one; collective."""
        task = self.task.in_metric(root)
        return PartsRound(self.chooser, task, self.grid.around(self.chosen, self.stretch, task.comm))


def gradient_moments(task: RidgeTask, chosen: Chosen) -> NDArray[np.float64]:
    """Sum of grad f grad f^T, or its diagonal, over a sample of each part's training rows; collective.

    f is the model trained without the held-out rows. m^3/3 flops per part, plus those of the gradients; one Allreduce
    of d x d numbers, or d for the diagonal.
    """
    parts, comm, d = task.parts, task.comm, task.parts.X.shape[1]
    diagonal = task.options.metric == "diagonal"
    coarse = None if chosen.candidates is None else chosen.candidates.chosen(chosen.candidate, learned=True)

    def work(part: int, rows: slice) -> NDArray[np.float64]:
        learn = slice(rows.start + int(chosen.held[rows].sum()), rows.stop)
        X, targets = parts.X[learn], chosen.targets[learn, chosen.candidate]
        width, lam = chosen.setting(part)
        kernel = width.kernel

        def found() -> dict[str, NDArray[np.float64]]:
            system = ridge_system(X, task.workspace, kernel, task.weights(learn))
            alphas, _ = system.solve(kernel, (lam,), targets.T)
            sample, base = X[:SAMPLE], None
            if coarse is not None:
                wide = coarse.kernel.with_sigma(coarse.sigma)
                beta = coarse.beta.reshape(len(coarse.beta), -1).T / task.rows.scale[:, None]
                base = stacked(wide, sample, coarse.centers, beta)
            share = X.shape[0] / max(1, sample.shape[0])
            return {"moments": share * moments(kernel, sample, X, alphas[0], diagonal, base)}

        return remembered(task.options.checkpoint, task.piece(f"moments-{part:06d}"), found)["moments"]

    with comm.phase("train"):
        total = np.zeros(d if diagonal else (d, d))
        task.workspace.over_parts(work, parts, lambda part, rows, one: np.add(total, one, out=total))
        return comm.allreduce(total)


ROWS = 2500  # rows of all parts together whose errors are minimised: enough for d + 1 parameters
EVALUATIONS = 10  # per round; then the rows are divided again with the new lengths


def scales(task: RidgeTask, chosen: Chosen) -> NDArray[np.float64]:
    """Factors of the features, shape (d,), that minimise the leave-one-out errors inside the parts; collective.

    L-BFGS on the logarithms of the factors and of lambda starts at the chosen pair, with the same steps on all ranks.
    It uses the training rows of some parts: about `ROWS` rows in all, at most `SAMPLE` per part.

    Notes
    -----
    2 m^3 flops per part and evaluation, and one Allreduce of d + 3 numbers.
    """
    comm, parts, lam = task.comm, task.parts, chosen.lam
    P, d = len(parts.sizes), parts.X.shape[1]
    count = max(1, math.ceil(ROWS / min(SAMPLE, parts.sizes.mean())))
    sampled = np.random.default_rng((task.options.seed, task.round)).permutation(P)[:count]
    kernel = chosen.width.kernel
    mine = []
    for part, rows in parts:
        first = rows.start + int(chosen.held[rows].sum())
        learn = slice(first, min(rows.stop, first + SAMPLE))
        if part in sampled and learn.stop > learn.start + 1:
            w = parts.row_weights()[learn]
            ridge = lam * w.sum() / w
            mine.append(LeftOut(dense(parts.X[learn]).astype(np.float64), chosen.targets[learn, 0], ridge, w))
    return best_scales(kernel, mine, d, EVALUATIONS, comm)[:d]
