"""Search for C, epsilon and gamma of a regression by cross-validation inside the parts; no rows are sent.

Every part computes the squared errors of its models on left-out rows, or the pinball losses of all quantiles, for which
there is no epsilon. One reduction adds them up, and the setting with the smallest error is used for all parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.holdout import FOLDS
from cacore.data.rows import Rows, nbytes, power_of_two
from cacore.errors import InputError
from cacore.io.checkpoint import Kept
from cacore.kernels import Kernel
from cacore.machine import threads
from cacore.machine.clock import working_time
from cacore.metrics import pinball
from cacore.tuning import Results, spaced
from casvm.options import GRID, SCALE, SCALED, ValueOptions
from casvm.search.classes import Piece, Settings, check_settings, kernels, over_pieces, pieces
from casvm.search.cross_validation import PAIRS, for_kernels, path, points_of
from partition.redistribute import Parts

SCORE = "r2"
QUANTILE_SCORE = "neg_pinball"  # minus the mean pinball loss, in units of the targets
# Reasoned, not measured.
# Ends of the default grid, in units of the targets' deviation (C, epsilon) and of 1 / median squared distance (gamma).
CS, EPSILONS, GAMMAS = (1.0, 1000.0), (0.01, 0.1), (1 / 16, 16.0)
COUNTS = 4, 2, 6  # number of values of each
QUICK = 3, 1, 4
LOOSE = 0.02  # tolerance, in units of the targets' deviation, that suffices to compare settings
FEW = 5000  # up to this number of rows all folds are evaluated; above, one fold of a tenth


@dataclass
class TargetFolds:
    """Rows of a piece with their targets, and the folds to evaluate.

    Attributes
    ----------
    X : ndarray or CSR, shape (m, d)
    y : ndarray of float64, shape (m,)
    factor : ndarray of float64, shape (m,)
        Factor of C for each row: its weight.
    fold : ndarray of int64, shape (m,)
        Fold that leaves out the row.
    folds : int
        The folds 0 to `folds` - 1 are evaluated.
    levels : tuple of float
        Levels of the quantiles, whose pinball losses are added up; without any, errors are squared.
    """

    X: Rows
    y: NDArray[np.float64]
    factor: NDArray[np.float64]
    fold: NDArray[np.int64]
    folds: int
    levels: tuple[float, ...] = ()

    def losses(
        self, K: NDArray[np.floating], left_out: NDArray[np.bool_], Cs: tuple[float, ...], epsilon: float, tol: float
    ) -> Iterator[tuple[int, float, bool]]:
        """Yield for each solution without some rows: the number of its C, its loss on them, and if it converged."""
        learned, max_pairs = np.where(left_out, 0.0, self.factor), PAIRS * len(self.y)
        y, factor = self.y[left_out], self.factor[left_out]
        for level in self.levels or (None,):
            low, high = (-1.0, 1.0) if level is None else (level - 1.0, level)
            solutions = path(K, self.y, low * learned, high * learned, epsilon, Cs, tol, max_pairs)
            for number, decision in enumerate(solutions.decision):
                error = y - decision[left_out]
                loss = np.square(error) if level is None else pinball(error, level)
                yield number, float(factor @ loss), bool(solutions.converged[number])


def judge(
    task: TargetFolds, alike: tuple[Kernel, ...], Cs: tuple[float, ...], epsilons: tuple[float, ...], tol: float
) -> Kept:  # fmt: skip
    """Cross-validate all settings on a piece.

    Parameters
    ----------
    task : TargetFolds
        Not changed.
    alike : tuple of Kernel
        One per gamma, otherwise alike.
    Cs, epsilons : tuple of float
        `Cs` is ascending.
    tol : float
        Tolerance of the solutions.

    Returns
    -------
    dict of str to ndarray
        ``sse``, shape (G, E, L, F): weighted sum of squared errors on the left-out rows, or of pinball losses of all
        levels, for each gamma, epsilon, C and fold. ``weight``, shape (F,): sum of the weights, 0 for a fold without
        training rows. ``solved``: number of solutions. ``stopped``, shape (G, E, L): number of those that stopped at
        the iteration limit.

    Raises
    ------
    InputError
        Numbers overflow.

    Notes
    -----
    The cost is that of :func:`casvm.search.cross_validation.judge`, with one path of C per epsilon or level.
    """
    F = task.folds
    left_out = [task.fold == f for f in range(F)]
    used = [f for f in range(F) if left_out[f].any() and task.factor[~left_out[f]].any()]
    sse, weight = np.zeros((len(alike), len(epsilons), len(Cs), F)), np.zeros(F)
    for f in used:
        weight[f] = task.factor[left_out[f]].sum()
    stopped = np.zeros(sse.shape[:3], np.int64)
    if not used:
        return {"sse": sse, "weight": weight, "solved": np.array(0), "stopped": stopped}

    def of_gamma(g: int, K: NDArray[np.floating]) -> int:
        solved = 0
        for f in used:
            for e, epsilon in enumerate(epsilons):
                for ell, loss, converged in task.losses(K, left_out[f], Cs, epsilon, tol):
                    sse[g, e, ell, f] += loss
                    stopped[g, e, ell] += not converged
                    solved += 1
        return solved

    points = points_of(task.X, alike, max(Cs) * float(task.factor.max()), tol)
    with for_kernels(points, alike, np.arange(len(alike)), of_gamma) as steps:
        return {"sse": sse, "weight": weight, "solved": np.array(sum(steps)), "stopped": stopped}


def search_values(
    parts: Parts, n: int, P: int, unit: float, options: ValueOptions, comm: Communicator
) -> Results | None:
    """Choose C, epsilon and gamma; collective.

    Parameters
    ----------
    parts : Parts
        This rank's parts, with the columns target "y" and "weight", the factor of C. Not changed.
    n, P : int
        Number of rows and of parts on all ranks.
    unit : float
        Standard deviation of the targets.
    options : ValueOptions
        C, epsilon or gamma has several values.
    comm : Communicator

    Returns
    -------
    Results or None
        None if no part has both rows to train on and rows to leave out.

    Raises
    ------
    InputError
        On all ranks: more folds than rows, or insufficient memory.

    Notes
    -----
    The cost is that of :func:`judge` for every piece of :func:`casvm.search.classes.pieces`, and one reduction of one
    number per setting and fold.
    """
    with comm.phase("search"):
        with comm.agreed():
            folds, n_folds = _folds(options.cv, n)
        begun = working_time()
        searched = pieces(parts, P, options, comm)
        counts = QUICK if options.quick else COUNTS
        Cs = _values("C", options.C, CS, counts[0], unit)
        levels = options.levels
        epsilons = (0.0,) if levels else _values("epsilon", options.epsilon, EPSILONS, counts[1], unit)
        alike = kernels(options, parts.X, [piece.rows for piece in searched], GAMMAS, counts[2], comm)
        with comm.agreed():
            total = len(alike) * len(epsilons) * len(Cs)
            each, room = (3 + threads.current()) * n_folds * 8, options.memory_limit - nbytes(parts.X)
            check_settings(total, each, room, f"comparing {total:,} settings")
        tol = max(LOOSE * unit, float(options.tol))
        scale = power_of_two(unit)  # squares of targets of any size are numbers, and nothing is rounded
        settings = tuple(C / scale for C in Cs), tuple(value / scale for value in epsilons), tol / scale
        advance = options.progress("choosing C, epsilon and gamma", len(searched))

        def judge_piece(piece: Piece) -> Kept:
            fold = (piece.first + np.arange(len(piece.rows))) % folds  # rows are dealt in turn
            y, weights = parts["y"][piece.rows] / scale, parts["weight"][piece.rows]
            return judge(TargetFolds(parts.X[piece.rows], y, weights, fold, n_folds, levels), alike, *settings)

        sse = np.zeros((len(alike), len(epsilons), len(Cs), n_folds))
        weight, solved, stopped = np.zeros(n_folds), 0, np.zeros(sse.shape[:3], np.int64)
        with over_pieces(searched, "search", judge_piece, options.checkpoint, lambda _: advance()) as all_results:
            for _, result in all_results:
                sse, weight = sse + result["sse"], weight + result["weight"]
                solved, stopped = solved + int(result["solved"]), stopped + result["stopped"]
        comm.wait()
        sums = comm.allreduce(np.append(sse.ravel(), weight))
        sse, weight = sums[: sse.size].reshape(sse.shape), sums[sse.size :]
        with comm.uncounted():
            solved, *limits = comm.allreduce(np.append(solved, stopped.transpose(2, 1, 0)))
            seconds = float(comm.allreduce(np.array([working_time() - begun]), "max")[0])
    told_by = weight > 0
    if not told_by.any():
        return None
    losses = sse[..., told_by] / weight[told_by]
    scores = -losses * scale / len(levels) if levels else 1.0 - losses / (unit / scale) ** 2
    axes = Settings(Cs, alike, () if levels else epsilons).axes
    ordered = scores.transpose(2, 1, 0, 3).reshape(-1, scores.shape[-1])
    scoring = QUANTILE_SCORE if levels else SCORE
    results = Results(axes, ordered, scoring, seconds=seconds, solved=int(solved), stopped=np.array(limits))
    results.choose()
    return results


def _folds(cv: int | None, n: int) -> tuple[int, int]:
    """Number of folds that rows are dealt to, and number of folds to evaluate."""
    if cv is None:
        return (10, 1) if n > FEW else (FOLDS, FOLDS)
    if cv > n:
        raise InputError(f"cv = {cv}: there are only {n:,} rows; ask for fewer folds")
    return cv, cv


def _values(name: str, requested: Any, ends: tuple[float, float], count: int, unit: float) -> tuple[float, ...]:
    """The values of C or of epsilon to compare."""
    if requested == SCALE:
        return (SCALED[name] * unit,)
    if requested == GRID:
        return tuple(unit * value for value in (spaced(*ends, count) if count > 1 else ends[-1:]))
    return requested if isinstance(requested, tuple) else (float(requested),)
