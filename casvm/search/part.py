"""All settings and folds of one part: its distances once, its kernel values once a gamma, a path along C for each fold.

No MPI, no routing: rows in, counts of right and predicted rows out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows
from cacore.kernels import Kernel, Points
from cacore.machine import threads
from cacore.svm.decision import counted as votes_of
from cacore.svm.decision import votes
from cacore.tuning.scorers import counted
from casvm.search.path import along
from casvm.solver.pair import padded

LOOSE = 0.1  # violation of a pair, of margins of 1, that is good enough to compare settings
PAIRS = 50  # pairs a row that one solution may take; a healthy one takes 1 to 10

Told = TypeVar("Told")


@dataclass
class FoldCounts:
    """Counts of right answers by a piece, for each setting.

    Attributes
    ----------
    counts : ndarray of int64, shape (G, L, F, 3, k)
        For each gamma, C and fold the left-out rows that were right, predicted and there of each class; 0 where a
        setting was not asked for, and of a part of one row. See :mod:`cacore.tuning.scorers`.
    solved, stopped : int
        Solutions; those among them that stopped at their limit.
    """

    counts: NDArray[np.int64]
    solved: int = 0
    stopped: int = 0


@dataclass
class ClassFolds:
    """A piece's rows with their classes, and the settings and folds that are judged.

    Attributes
    ----------
    X : ndarray or CSR, shape (m, d)
    codes : ndarray of int64, shape (m,)
        Class of each row, of all k.
    factor : ndarray of float64, shape (m,)
        What C is multiplied by for each row.
    fold : ndarray of int64, shape (m,)
        Which fold leaves the row out.
    todo : ndarray of bool, shape (G, L, F)
        Settings and folds to look at.
    """

    X: Rows
    codes: NDArray[np.int64]
    factor: NDArray[np.float64]
    fold: NDArray[np.int64]
    todo: NDArray[np.bool_] = field(repr=False)


def bytes_needed(rows: int, k: int) -> int:
    """Bytes that a thread needs for a part of so many rows of k classes, in double precision.

    Its distances, its kernel values and, of more than two classes, a copy of those of a pair of classes.
    """
    return (2 if k == 2 else 3) * 8 * rows * padded(rows)


def judge(
    task: ClassFolds, kernels: Sequence[Kernel], Cs: tuple[float, ...], k: int, tol: float = LOOSE
) -> FoldCounts:  # fmt: skip
    """Cross-validate a part's settings.

    Parameters
    ----------
    task : ClassFolds
        Nothing of it is changed.
    kernels : sequence of Kernel
        One a gamma; they differ in nothing else.
    Cs : tuple of float
        Ascending.
    k : int
        Classes of all parts.
    tol : float
        Of the solutions.

    Raises
    ------
    InputError
        Numbers overflow.

    Notes
    -----
    m^2 d multiplications for the distances, m^2 kernel values a gamma, and what :func:`casvm.search.path.along` costs
    for each fold. Gammas run side by side on the threads that the caller has: a matrix of distances, and one of kernel
    values for each thread, in single precision where that does not show.
    """
    judged = FoldCounts(np.zeros((*task.todo.shape, 3, k), np.int64))
    wanted = np.flatnonzero(task.todo.any(axis=(1, 2)))
    if len(task.codes) < 2:  # nothing to learn from where the row is left out
        return judged
    if np.ptp(task.codes) == 0:  # one class, which every model of it knows
        _of_one_class(task, judged.counts, k)
        return judged

    def of_gamma(g: int, K: NDArray[Any]) -> list[int]:
        return _Folds(task, K, Cs, k, tol).judge(task.todo[g], judged.counts[g])

    dtype = precision(task.X, kernels, max(Cs) * float(task.factor.max()), tol)
    with for_kernels(task.X, kernels, wanted, dtype, of_gamma) as steps:
        for solved, stopped in steps:
            judged.solved, judged.stopped = judged.solved + solved, judged.stopped + stopped
    return judged


def for_kernels(
    X: Rows, kernels: Sequence[Kernel], wanted: NDArray[np.intp], dtype: Any, work: Callable[[int, NDArray[Any]], Told]
) -> AbstractContextManager[Iterator[Told]]:  # fmt: skip
    """Context with an iterator of ``work(g, K)`` for each kernel g that is wanted; K holds its values of all pairs.

    Distances are computed once. Kernels run side by side on the threads that the caller has; K has columns for the
    solver beyond the rows' number (:func:`casvm.solver.pair.padded`), and its memory is used again.
    """
    points = points_of(X, kernels[0], dtype)
    compared = np.empty((len(points),) * 2, dtype)
    kernels[0].compare_all(points, compared)
    spare: list[NDArray[Any]] = []  # matrices of kernels that are done, whose memory is there already

    def of_kernel(g: int) -> Told:
        K = spare.pop() if spare else np.zeros((len(points), padded(len(points))), dtype)
        kernels[g].values_from(compared, points, K)
        told = work(g, K)
        spare.append(K)
        return told

    return threads.in_order(of_kernel, [(int(g),) for g in wanted])


def _of_one_class(task: ClassFolds, counts: NDArray[np.int64], k: int) -> None:
    for f in range(task.todo.shape[2]):
        codes = task.codes[task.fold == f]
        counts[:, :, f][task.todo[:, :, f]] = counted(codes, codes, k)


def precision(X: Rows, kernels: Sequence[Kernel], C: float, tol: float) -> Any:
    """Single precision, unless the rounding of C K_ij in it comes near the tolerance, for the largest bound C."""
    largest = max(kernel.largest(X, np.float64) for kernel in kernels)
    rounding = 8 * np.finfo(np.float32).eps * C * largest
    single = rounding <= tol and 1e-30 < largest < 1e30 and all(kernel.fits(np.float32) for kernel in kernels)
    return np.float32 if single else np.float64


def points_of(X: Rows, kernel: Kernel, dtype: Any) -> Points:
    """The rows for the kernel in this precision: shifted in double precision first, where they are far away."""
    points = kernel.points(X.astype(np.float64) if X.dtype != dtype else X)
    return points if points.X.dtype == dtype else Points(points.X.astype(dtype))


class _Folds:
    """The folds of one gamma, whose kernel values are `K`."""

    def __init__(self, task: ClassFolds, K: NDArray[Any], Cs: tuple[float, ...], k: int, tol: float) -> None:
        self.task, self.K, self.Cs, self.k, self.tol = task, K, Cs, k, tol
        self.solved = self.stopped = 0

    def judge(self, todo: NDArray[np.bool_], counts: NDArray[np.int64]) -> list[int]:
        """Fill `counts`, shape (L, F, 3, k), where `todo`, shape (L, F), says so; solutions, stopped."""
        codes, fold = self.task.codes, self.task.fold
        present = self.task.factor > 0
        said: dict[int, list[NDArray[np.float64]]] = {int(f): [] for f in np.flatnonzero(todo.any(axis=0))}
        known = {f: np.unique(codes[present & (fold != f)]) for f in said}
        for i, j in combinations(np.unique(codes[present]).tolist(), 2):
            chosen = np.flatnonzero((codes == i) | (codes == j))
            K = self._of(chosen)
            for f, decisions in said.items():
                if i in known[f] and j in known[f]:
                    decisions.append(self._pair(K, chosen, i, f, np.flatnonzero(todo[:, f])))
            del K  # before the next pair's
        for f, decisions in said.items():
            held = codes[fold == f]
            for place, ell in enumerate(np.flatnonzero(todo[:, f])):
                predicted = self._winners(known[f], [some[place] for some in decisions], len(held))
                counts[ell, f] = counted(held, predicted, self.k)
        return [self.solved, self.stopped]

    def _of(self, chosen: NDArray[np.int64]) -> NDArray[Any]:
        """The kernel values of these rows with each other, as the solver takes them."""
        if len(chosen) == len(self.K):
            return self.K
        K = np.zeros((len(chosen), padded(len(chosen))), self.K.dtype)
        for line, row in zip(K, chosen, strict=True):  # without a copy of all of them
            line[: len(chosen)] = self.K[row, chosen]
        return K

    def _pair(
        self, K: NDArray[Any], chosen: NDArray[np.int64], first: int, f: int, which: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Decisions on the left-out rows of a pair's solutions for some C, shape (len(which), rows of the fold)."""
        task, left_out = self.task, np.flatnonzero(self.task.fold == f)
        y = np.where(task.codes[chosen] == first, 1.0, -1.0)
        held = task.fold[chosen] == f
        factor = np.where(held, 0.0, task.factor[chosen])
        inside = np.isin(left_out, chosen, assume_unique=True)
        others = self.K[np.ix_(left_out[~inside], chosen)] if not inside.all() else None
        out = np.empty((len(which), len(left_out)))
        Cs = tuple(self.Cs[ell] for ell in which)
        for line, one in zip(out, along(K, y, factor, Cs, self.tol, PAIRS * len(chosen)), strict=True):
            line[inside] = one.decision[held]
            if others is not None:
                line[~inside] = others @ one.beta + one.b
            self.solved += 1
            self.stopped += not one.converged
        return out

    def _winners(self, known: NDArray[np.int64], pairs: list[NDArray[np.float64]], rows: int) -> NDArray[np.int64]:
        """The class that each left-out row is taken for, as a model of these classes does it."""
        if len(known) == 1:
            return np.full(rows, known[0])
        decisions = np.stack(pairs, axis=1)
        if len(known) == 2:
            return known[votes(-decisions)]
        return known[votes(votes_of(decisions, len(known)))]
