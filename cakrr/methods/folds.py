"""Folds of held-out rows on which settings are compared, and the errors over all folds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.data.dataset import Samples
from cacore.data.stored import some
from cacore.errors import InputError
from cakrr.grid_search import Judges, fold, hold_out
from cakrr.methods.task import RidgeTask
from cakrr.solver.coarse import Candidates
from partition.redistribute import Parts
from partition.routing import Soft


@dataclass(frozen=True, eq=False)
class Fold:
    """One choice of held-out rows.

    Attributes
    ----------
    parts : Parts
        The parts, with the held-out rows first.
    held : ndarray of bool, shape (n_local,)
        Mask of the held-out rows.
    targets : ndarray, shape (n_local, C, t)
        Targets of the parts, for each of C candidates of the coarse model.
    judging : Samples
        The rows on which settings are compared, with the columns "y", shape (q, C, t), and "weight".
    name : str
        Prefix of the fold's pieces in the checkpoint.
    """

    parts: Parts
    held: NDArray[np.bool_]
    targets: NDArray[np.float64]
    judging: Samples
    name: str = ""

    @classmethod
    def of(
        cls, task: RidgeTask, parts: Parts, held: NDArray[np.bool_], tried: Candidates | None = None, name: str = ""
    ) -> Fold:
        """Make a fold; targets are in units of `RidgeRows.scale`, so that squared errors of several targets add up."""
        if task.options.select == "test":
            X, y, weights = task.rows.test_rows(task.standardizer)
        else:
            X, y, weights = some(parts.X, held), parts["y"][held].astype(np.float64), parts.row_weights()[held]
        targets, y = parts["y"].astype(np.float64)[:, None], y[:, None]
        if tried is not None:
            with task.comm.phase("train"):
                targets, y = targets - tried.predictions(parts.X), y - tried.predictions(X)
        scale = task.rows.scale
        targets, y = (values.reshape(*values.shape[:2], len(scale)) / scale for values in (targets, y))
        return cls(parts, held, targets, Samples(X, {"y": y, "weight": weights}), name)

    def of_candidate(self, c: int) -> Fold:
        """This fold, restricted to one candidate of the coarse model."""
        judging = Samples(self.judging.X, {**self.judging.columns, "y": self.judging["y"][:, [c]]})
        return Fold(self.parts, self.held, self.targets[:, [c]], judging, self.name)


@dataclass(frozen=True)
class GridErrors:
    """Errors of the settings on the held-out rows; see :class:`cakrr.grid_search.Search`.

    Attributes
    ----------
    errors : ndarray, shape (C, S, L)
    failed : ndarray of int64, shape (S, L)
    by_part : dict of int to ndarray, shape (S, L)
    """

    errors: NDArray[np.float64]
    failed: NDArray[np.int64]
    by_part: dict[int, NDArray[np.float64]]


Judge = Callable[[Fold, NDArray[np.float64]], GridErrors]  # a fold, and sums of earlier folds -> errors


def over_folds(judge: Judge, task: RidgeTask, first: Fold) -> GridErrors:
    """Mean of the errors of `judge` over all folds, weighted by their held-out rows; one Allreduce if several."""
    found: list[GridErrors] = []
    weights: list[float] = []
    for one in _folds(task, first):
        found.append(judge(one, sum((errors for fold in found for errors in fold.by_part.values()), start=np.zeros(1))))
        weights.append(one.judging["weight"].sum())
    if len(found) == 1:
        return found[0]
    with task.comm.phase("predict"):
        shares = task.comm.allreduce(np.array(weights))
    errors = np.average([one.errors for one in found], axis=0, weights=shares)
    by_part = {part: np.sum([one.by_part[part] for one in found], axis=0) for part in found[0].by_part}
    return GridErrors(errors, np.max([one.failed for one in found], axis=0), by_part)


def _folds(task: RidgeTask, first: Fold) -> Iterator[Fold]:
    """Yield all folds, with one copy of the rows at a time."""
    yield first
    for number in range(1, task.folds):
        parts, held = fold(task.parts, number, task.folds)
        yield Fold.of(task, parts, held, name=f"fold-{number}-")


def held_rows(task: RidgeTask) -> NDArray[np.bool_]:
    """Mask of the validation rows.

    All trainings that are compared share the same validation rows, but each part keeps at least one row to train on.

    Raises
    ------
    InputError
        On all ranks: parts of one row, or more folds than rows.
    """
    parts, comm, options = task.parts, task.comm, task.options
    n, fraction = int(parts.sizes.sum()), options.validation_fraction
    with comm.agreed():
        if parts.sizes.max() < 2:
            remedy = "ask for fewer parts" if n > 1 else "n_samples = 1, and a choice needs 2"
            raise InputError(f"parts of one row leave no rows to validate on; {remedy}")
        if (options.cv or 0) > n:
            raise InputError(f"cv = {options.cv}: there are only {n} rows; ask for fewer folds")
    if task.folds > 1:
        return fold(parts, 0, task.folds)[1]
    if not options.compares:
        return hold_out(parts, fraction)
    held = hold_out(parts, fraction, parts["order"] < fraction * n)
    if parts.sizes.min() < 2:
        with comm.uncounted():
            if not comm.allreduce(np.array([np.count_nonzero(held)]))[0]:
                return hold_out(parts, fraction)
    return held


def judges(task: RidgeTask, fold: Fold, routes: list[Soft]) -> Judges:
    """Send the held-out rows to the models that predict them; collective."""
    with task.comm.phase("predict" if task.options.select == "test" else "partition"):
        return Judges.routed(fold.judging, task.route, routes, task.parts.centers, task.parts.owners, task.comm)
