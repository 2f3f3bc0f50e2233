"""Cross-validation of all settings on one part: distances once, kernel values once per gamma, a path of C per fold.

:func:`judge` takes rows and returns counts of correct and predicted rows, without MPI and routing.

:func:`along` solves one dual for ascending C, on a kernel matrix in memory, with some rows left out. Their bounds are
0, which excludes them without copying the matrix for each fold. The solver updates the gradient of all rows in every
step anyway, so exact decisions on the left-out rows are available when it stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows, is_sparse, largest_size, largest_usable
from cacore.kernels import Kernel, Points
from cacore.kernels.evaluate import DIFFERENCES
from cacore.kernels.precision import WIDEST, Accuracy, Extent, cheapest, value_rounding
from cacore.machine import threads
from cacore.svm.decision import counted as votes_of
from cacore.svm.decision import votes
from cacore.svm.problem import overflow
from cacore.tuning import counted
from casvm.solver.active_set import Pairs, extremes
from casvm.solver.kernel_rows import padded
from casvm.solver.units import Origin

if TYPE_CHECKING:
    from cacore.io.checkpoint import Kept

# Reasoned, not measured.
LOOSE = 0.1  # tolerance for a pair's violation that suffices to compare settings; the margin is 1
PAIRS = 50  # limit of pairs per row and solution; a well-behaved problem takes 1 to 10

Told = TypeVar("Told")


@dataclass
class ClassFolds:
    """Rows of a piece with their classes, and the settings and folds to evaluate.

    Attributes
    ----------
    X : ndarray or CSR, shape (m, d)
    codes : ndarray of int64, shape (m,)
        Class of each row, among all k classes.
    factor : ndarray of float64, shape (m,)
        Factor of C for each row.
    fold : ndarray of int64, shape (m,)
        Fold that leaves out the row.
    todo : ndarray of bool, shape (G, L, F)
        Mask of the settings and folds to evaluate.
    """

    X: Rows
    codes: NDArray[np.int64]
    factor: NDArray[np.float64]
    fold: NDArray[np.int64]
    todo: NDArray[np.bool_] = field(repr=False)


def bytes_needed(rows: int, k: int) -> int:
    """Bytes that a thread needs in double precision for a part with this number of rows and k classes.

    They hold distances, kernel values and, for more than two classes, the kernel values of a pair of classes.
    """
    return (2 if k == 2 else 3) * 8 * rows * padded(rows)


def judge(task: ClassFolds, kernels: Sequence[Kernel], Cs: tuple[float, ...], k: int, tol: float = LOOSE) -> Kept:
    """Cross-validate a part's settings.

    Parameters
    ----------
    task : ClassFolds
        Not changed.
    kernels : sequence of Kernel
        One per gamma, otherwise alike.
    Cs : tuple of float
        Ascending.
    k : int
        Number of classes in all parts.
    tol : float
        Tolerance of the solutions.

    Returns
    -------
    dict of str to ndarray
        ``counts``, shape (G, L, F, 3, k): for each gamma, C, fold and class, the left-out rows predicted correctly,
        predicted as this class, and truly of this class; 0 for settings that are not in `todo`, and for a part of one
        row. See :mod:`cacore.tuning`. ``solved``: number of solutions. ``stopped``, shape (G, L): number of those that
        stopped at the iteration limit.

    Raises
    ------
    InputError
        Numbers overflow.

    Notes
    -----
    m^2 d multiplications for the distances, m^2 kernel values per gamma, and the cost of
    :func:`casvm.search.cross_validation.along` per fold. The caller's threads process gammas in parallel, with one
    matrix of distances and one matrix of kernel values per thread, in single precision if that is accurate enough.
    """
    counts = np.zeros((*task.todo.shape, 3, k), np.int64)
    stopped, solved = np.zeros(counts.shape[:2], np.int64), 0
    if len(task.codes) > 1 and np.ptp(task.codes) == 0:  # a single class, which every model predicts correctly
        for f in range(task.todo.shape[2]):
            codes = task.codes[task.fold == f]
            counts[:, :, f][task.todo[:, :, f]] = counted(codes, codes, k)
    elif len(task.codes) > 1:  # leaving out the only row would leave none to train on

        def of_gamma(g: int, K: NDArray[np.floating]) -> int:
            return _Folds(task, K, Cs, k, tol).judge(task.todo[g], counts[g], stopped[g])

        points = points_of(task.X, kernels, max(Cs) * float(task.factor.max()), tol)
        wanted = np.flatnonzero(task.todo.any(axis=(1, 2)))
        with for_kernels(points, kernels, wanted, of_gamma) as steps:
            solved = sum(steps)
    return {"counts": counts, "solved": np.array(solved), "stopped": stopped}


def for_kernels(
    points: Points,
    kernels: Sequence[Kernel],
    wanted: NDArray[np.intp],
    work: Callable[[int, NDArray[np.floating]], Told],
) -> AbstractContextManager[Iterator[Told]]:
    """Context with an iterator of ``work(g, K)`` for each wanted kernel g, with its kernel matrix K of the rows.

    Distances are computed once, and the caller's threads process kernels in parallel. K is padded with columns for the
    solver (:func:`casvm.solver.kernel_rows.padded`), and its memory is reused.
    """
    dtype = points.X.dtype
    compared = np.empty((len(points),) * 2, dtype)
    kernels[0].compare_all(points, compared)
    spare: list[NDArray[np.floating]] = []  # matrices of finished kernels, for reuse

    def of_kernel(g: int) -> Told:
        K = spare.pop() if spare else np.zeros((len(points), padded(len(points))), dtype)
        kernels[g].values_from(compared, points, K)
        result = work(g, K)
        spare.append(K)
        return result

    return threads.in_order(of_kernel, [(int(g),) for g in wanted])


def points_of(X: Rows, kernels: Sequence[Kernel], C: float, tol: float) -> Points:
    """The rows prepared for kernels of one kind, in the precision that solutions with this tolerance need.

    `C` is the largest bound of a coefficient. Single precision suffices unless its rounding of C K_ij, at any distance
    of two rows, comes near the tolerance; see :func:`cacore.kernels.precision.cheapest`.
    """
    first, X = kernels[0], Origin.of(X, kernels[0], C, tol).X
    largest = max(kernel.largest(X, np.float64) for kernel in kernels)
    small = C * value_rounding(largest, np.float32) <= tol and 1e-30 < largest < 1e30
    points = first.points(X.astype(np.float64), allowed=np.inf)
    if not first.compiled:
        return points
    fits = small and largest_size(points.X) <= largest_usable(np.float32)
    dtype = np.float32 if fits and all(kernel.fits(np.float32) for kernel in kernels) else np.float64
    (m, d), sparse = points.X.shape, is_sparse(points.X)
    met = points.X.nnz / max(1, m) if is_sparse(points.X) else float(d)
    measure, extent = first.measure(sparse), Extent.of(points.X)
    accuracy = Accuracy(Accuracy.of_solution(C, tol).allowed)  # a useless setting is not refused, but scored
    real, sums = cheapest(kernels, extent, dtype, measure, met, d <= WIDEST, accuracy)
    return Points(points.X.astype(real), gaps=sums == DIFFERENCES)


class _Folds:
    """The folds for one gamma, with its kernel matrix `K`."""

    def __init__(self, task: ClassFolds, K: NDArray[np.floating], Cs: tuple[float, ...], k: int, tol: float) -> None:
        self.task, self.K, self.Cs, self.k, self.tol = task, K, Cs, k, tol
        self.solved = 0

    def judge(self, todo: NDArray[np.bool_], counts: NDArray[np.int64], stopped: NDArray[np.int64]) -> int:
        """Fill `counts`, shape (L, F, 3, k), where `todo`, shape (L, F), is True; return the number of solutions.

        `stopped`, shape (L,): those of each C that stopped at the iteration limit are added.
        """
        codes, fold = self.task.codes, self.task.fold
        present = self.task.factor > 0
        collected: dict[int, list[NDArray[np.float64]]] = {int(f): [] for f in np.flatnonzero(todo.any(axis=0))}
        trained = {f: np.unique(codes[present & (fold != f)]) for f in collected}
        for i, j in combinations(np.unique(codes[present]).tolist(), 2):
            chosen = np.flatnonzero((codes == i) | (codes == j))
            K = self._kernel_of(chosen)
            for f, decisions in collected.items():
                if i in trained[f] and j in trained[f]:
                    decisions.append(self._pair(K, chosen, i, f, np.flatnonzero(todo[:, f]), stopped))
            del K  # before the next pair's
        for f, decisions in collected.items():
            held = codes[fold == f]
            for place, ell in enumerate(np.flatnonzero(todo[:, f])):
                predicted = self._winners(trained[f], [column[place] for column in decisions], len(held))
                counts[ell, f] = counted(held, predicted, self.k)
        return self.solved

    def _kernel_of(self, chosen: NDArray[np.int64]) -> NDArray[np.floating]:
        """Kernel matrix of these rows, padded for the solver."""
        if len(chosen) == len(self.K):
            return self.K
        K = np.zeros((len(chosen), padded(len(chosen))), self.K.dtype)
        for line, row in zip(K, chosen, strict=True):  # row by row, to avoid a copy of the whole block
            line[: len(chosen)] = self.K[row, chosen]
        return K

    def _pair(
        self, K: NDArray[np.floating], chosen: NDArray[np.int64], first: int, f: int, which: NDArray[np.int64],
        stopped: NDArray[np.int64],
    ) -> NDArray[np.float64]:  # fmt: skip
        """Decisions of a pair's solutions on the left-out rows, for some C; shape (len(which), rows of the fold)."""
        task, left_out = self.task, np.flatnonzero(self.task.fold == f)
        y = np.where(task.codes[chosen] == first, 1.0, -1.0)
        held = task.fold[chosen] == f
        factor = np.where(held, 0.0, task.factor[chosen])
        inside = np.isin(left_out, chosen, assume_unique=True)
        others = self.K[np.ix_(left_out[~inside], chosen)] if not inside.all() else None
        out = np.empty((len(which), len(left_out)))
        Cs = tuple(self.Cs[ell] for ell in which)
        path = along(K, y, factor, Cs, self.tol, PAIRS * len(chosen))
        for line, ell, solution in zip(out, which, path, strict=True):
            line[inside] = solution.decision[held]
            if others is not None:
                line[~inside] = others @ solution.beta + solution.b
            self.solved += 1
            stopped[ell] += not solution.converged
        return out

    def _winners(self, classes: NDArray[np.int64], pairs: list[NDArray[np.float64]], rows: int) -> NDArray[np.int64]:
        """Predicted class of each left-out row, by the votes of a model of these classes."""
        if len(classes) == 1:
            return np.full(rows, classes[0])
        decisions = np.stack(pairs, axis=1)
        if len(classes) == 2:
            return classes[votes(-decisions)]
        return classes[votes(votes_of(decisions, len(classes)))]


Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Solved:
    """A solution for one C.

    Attributes
    ----------
    decision : ndarray of float64, shape (m,)
        Decisions on all rows, including left-out ones; positive for +1.
    beta : ndarray of float64, shape (m,)
        alpha y.
    b : float
    iterations : int
        Pairs of rows optimised.
    converged : bool
    """

    decision: Vector
    beta: Vector
    b: float
    iterations: int
    converged: bool


def along(
    K: NDArray[np.floating], y: Vector, factor: Vector, Cs: tuple[float, ...], tol: float, max_pairs: int
) -> Iterator[Solved]:
    """Solve C-SVC for each C, starting from the solution for the previous C.

    Parameters
    ----------
    K : ndarray, shape (m, >= padded(m)), C-contiguous
        Kernel values; columns from m on hold any finite values. See :func:`casvm.solver.kernel_rows.padded`.
    y : ndarray of float64, shape (m,)
        +1 and -1.
    factor : ndarray of float64, shape (m,)
        Factor of C in the bound of each row's alpha; 0 for a left-out row.
    Cs : tuple of float
        Ascending.
    tol : float
        Tolerance for the largest violation of a pair.
    max_pairs : int
        Limit of pairs per solution.

    Yields
    ------
    Solved
        The solution for each C.

    Raises
    ------
    InputError
        Numbers overflow.

    Notes
    -----
    The solver is :class:`casvm.solver.active_set.Pairs`; it needs a few numbers per row besides `K`. The start is t
    times the last solution, which is feasible for t from 1 to the ratio of the two C. The t that maximises the dual is
    sum(alpha) / beta'K beta, clipped to this range. The gradient at the start costs one pass over m numbers.
    """
    bound = factor * y
    return path(K, y, np.minimum(bound, 0.0), np.maximum(bound, 0.0), 0.0, Cs, tol, max_pairs)


def path(
    K: NDArray[np.floating], y: Vector, low: Vector, high: Vector, epsilon: float, Cs: tuple[float, ...], tol: float,
    max_pairs: int,
) -> Iterator[Solved]:  # fmt: skip
    """Solve the dual with p = -y, this epsilon, and bounds C `low` and C `high` for each C, like :func:`along`."""
    m = len(y)
    beta, v, last = np.zeros(m), y.copy(), 0.0
    diagonal, where = np.diagonal(K)[:m].astype(np.float64), np.arange(m)
    for C in Cs:
        lower, upper = C * low, C * high
        if last:
            gain, square = float((y * beta).sum() - epsilon * np.abs(beta).sum()), float(beta @ (y - v))
            # Of the feasible multiples of beta, the one with the largest dual objective, by gain - by^2/2 beta'K beta.
            by = C / last if square <= 0.0 else float(np.clip(gain / square, 1.0, C / last))
            v = y - by * (y - v)
            at_low, at_high = beta == last * low, beta == last * high
            beta = by * beta
            if by == C / last:  # rows at a bound must stay exactly at it, despite rounding
                beta = np.where(at_high, upper, np.where(at_low, lower, beta))
            beta = np.clip(beta, lower, upper)  # and none may exceed it
        problem = Pairs(v, beta, lower, upper, diagonal, epsilon)
        problem.optimise(K, where, tol, max_pairs)
        v, beta, last = problem.v.copy(), problem.beta.copy(), C
        top, bottom = extremes(v, beta, lower, upper, epsilon)
        if np.isnan(v).any():
            raise overflow()
        sides = [side for side in (top, bottom) if np.isfinite(side)] or [0.0]
        b = 0.5 * (sides[0] + sides[-1])
        yield Solved(y - v + b, beta, b, problem.iterations, top - bottom < tol)
