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
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.compiled.vectors import AT_KINK, FALL, RISE
from cacore.data.rows import Rows, is_sparse, largest_size, largest_usable
from cacore.kernels import Kernel, Points
from cacore.kernels.evaluate import DIFFERENCES
from cacore.kernels.precision import WIDEST, Accuracy, Extent, cheapest, value_rounding
from cacore.machine import threads
from cacore.machine.deadline import poll
from cacore.machine.threads import blocks
from cacore.svm.decision import counted as votes_of
from cacore.svm.decision import decisions_of_pairs, votes
from cacore.svm.problem import overflow
from cacore.tuning import counted
from casvm.solver.active_set import line_extremes, optimise_some
from casvm.solver.kernel_rows import padded
from casvm.solver.units import Origin

if TYPE_CHECKING:
    from cacore.arrays import Bytes, Doubles, Longs, Reals
    from cacore.io.checkpoint import Kept

# Reasoned, not measured.
LOOSE = 0.1  # tolerance for a pair's violation that suffices to compare settings; the margin is 1
PAIRS = 50  # limit of pairs per row and solution; a well-behaved problem takes 1 to 10

# Most bytes of the coefficients of several gammas, which share distances.
COEFFICIENTS = 1 << 28

Told = TypeVar("Told")
Vector = NDArray[np.float64]


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


def bytes_needed(rows: int) -> int:
    """Bytes that a thread needs in double precision for the distances and kernel values of so many rows."""
    return 2 * 8 * rows * padded(rows)


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
    Per pair of classes with m rows: m^2 d multiplications for the distances, m^2 kernel values per gamma for all C and
    folds, and the cost of :func:`casvm.search.cross_validation.along` per fold. With more than two classes, also the
    kernel values of each left-out row with the support vectors of its fold, once per gamma for all C. The caller's
    threads process pairs, or the gammas of few pairs, in parallel, in single precision if that is accurate enough.
    """
    results = {"counts": np.zeros((*task.todo.shape, 3, k), np.int64), "solved": np.zeros((), np.int64),
               "stopped": np.zeros(task.todo.shape[:2], np.int64)}  # fmt: skip
    if len(task.codes) > 1:  # leaving out the only row would leave none to train on
        folds, wanted = _Folds(task, kernels, Cs, k, tol), np.flatnonzero(task.todo.any(axis=(1, 2)))
        each = task.todo[0].size * k * len(task.codes) * np.dtype(np.float32).itemsize
        for lo, hi in blocks(len(wanted), max(1, COEFFICIENTS // each)):
            folds.judge(task.todo, wanted[lo:hi], results)
    return results


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


@dataclass(frozen=True, eq=False)
class _FoldModels:
    """Models of all pairs of classes for one gamma, without the rows of a fold; one per C.

    Attributes
    ----------
    Cs : ndarray of int64, shape (L,)
        Numbers of the C.
    coef : ndarray, shape (L, classes - 1, m)
        As in :class:`casvm.model.part_svm.PartSVM`, of all rows.
    b : ndarray of float64, shape (L, pairs)
    decisions : ndarray of float64, shape (L, rows of the fold)
        On the left-out rows, if there is a single pair.
    converged : ndarray of bool, shape (L, pairs)
    """

    Cs: NDArray[np.int64]
    coef: NDArray[np.floating]
    b: Vector
    decisions: Vector
    converged: NDArray[np.bool_]


class _Folds:
    """A task with its rows class by class, in the precision that its solutions need."""

    def __init__(
        self, task: ClassFolds, kernels: Sequence[Kernel], Cs: tuple[float, ...], k: int, tol: float
    ) -> None:  # fmt: skip
        self.kernels, self.Cs, self.k, self.tol = kernels, Cs, k, tol
        self.classes = np.unique(task.codes[task.factor > 0])
        members = [np.flatnonzero(task.codes == code) for code in self.classes]
        self.ends, order = np.cumsum([0, *map(len, members)]).tolist(), np.concatenate(members)
        self.codes, self.factor, self.fold = task.codes[order], task.factor[order], task.fold[order]
        self.pairs = list(combinations(range(len(members)), 2))
        self.points = points_of(task.X[order], kernels, max(Cs) * float(task.factor.max()), tol)

    def judge(self, todo: NDArray[np.bool_], wanted: NDArray[np.intp], results: Kept) -> None:
        """Fill the results of the wanted kernels where `todo`, shape (G, L, F), is True; see :func:`judge`."""
        models = {(int(g), f): self._empty(todo[g, :, f], f) for g in wanted for f in _folds_of(todo[g])}
        # Many pairs are solved in parallel; of a few, the kernels are.
        together = len(self.pairs) >= 2 * threads.current()

        def of_pair(pair: int) -> None:
            i, j = self.pairs[pair]
            chosen = np.r_[self.ends[i] : self.ends[i + 1], self.ends[j] : self.ends[j + 1]]

            def of_gamma(g: int, K: NDArray[np.floating]) -> None:
                for f in _folds_of(todo[g]):
                    self._solve(K, chosen, pair, f, models[g, f])

            with for_kernels(self.points[chosen], self.kernels, wanted, of_gamma) as steps:
                for _ in steps:
                    pass

        threads.for_blocks(of_pair, [(pair,) for pair in range(len(self.pairs))], together)
        for (g, f), model in models.items():
            held = self.codes[self.fold == f]
            for ell, predicted in zip(model.Cs, self._predicted(self.kernels[g], f, model), strict=True):
                results["counts"][g, ell, f] = counted(held, self.classes[predicted], self.k)
            results["solved"] += model.converged.size
            results["stopped"][g, model.Cs] += np.count_nonzero(~model.converged, axis=1)

    def _empty(self, todo: NDArray[np.bool_], f: int) -> _FoldModels:
        """Models to be filled, for each C of `todo`, shape (L,)."""
        Cs, pairs = np.flatnonzero(todo), len(self.pairs)
        coef = np.zeros((len(Cs), len(self.classes) - 1 if pairs > 1 else 0, len(self.codes)), self.points.X.dtype)
        held = np.count_nonzero(self.fold == f) if pairs < 2 else 0
        return _FoldModels(
            Cs, coef, np.zeros((len(Cs), pairs)), np.zeros((len(Cs), held)), np.zeros((len(Cs), pairs), np.bool_)
        )

    def _solve(self, K: NDArray[np.floating], chosen: NDArray[np.int64], pair: int, f: int, model: _FoldModels) -> None:
        """Solve a pair without a fold, for each C; without one of its classes, the other one is always predicted."""
        (i, j), held = self.pairs[pair], self.fold[chosen] == f
        n = self.ends[i + 1] - self.ends[i]
        y = np.where(np.arange(len(chosen)) < n, 1.0, -1.0)
        factor, Cs = np.where(held, 0.0, self.factor[chosen]), tuple(self.Cs[ell] for ell in model.Cs)
        solutions = along(K, y, factor, Cs, self.tol, PAIRS * len(chosen))
        model.b[:, pair], model.converged[:, pair] = solutions.b, solutions.converged
        if len(self.pairs) == 1:
            model.decisions[:] = solutions.decision[:, held]
        else:
            model.coef[:, j - 1, self.ends[i] : self.ends[i + 1]] = solutions.beta[:, :n]
            model.coef[:, i, self.ends[j] : self.ends[j + 1]] = solutions.beta[:, n:]

    def _predicted(self, kernel: Kernel, f: int, model: _FoldModels) -> NDArray[np.int64]:
        """Place of the predicted class of each left-out row, by votes, for each C; shape (L, rows of the fold).

        A class without rows to train on has lost to all that have some.
        """
        k, P, held = len(self.classes), len(self.pairs), self.fold == f
        if P < 2:
            return (P * (model.decisions <= 0)).astype(np.int64)

        def winners(decisions: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.stack([votes(votes_of(decisions[:, at : at + P], k)) for at in range(0, P * len(model.Cs), P)], 1)

        support = np.asarray(model.coef.any(axis=(0, 1)))
        support[0] |= not support.any()  # with rows of a single class to train on
        sizes = np.array([np.count_nonzero(support[lo:hi]) for lo, hi in pairwise(self.ends)])
        X, coef = self.points.X, model.coef[:, :, support].reshape(-1, int(sizes.sum()))
        return decisions_of_pairs(
            kernel, X[support], coef, model.b.ravel(), sizes, X[held], winners, len(model.Cs)
        ).astype(np.int64).T  # fmt: skip


def _folds_of(todo: NDArray[np.bool_]) -> list[int]:
    """Folds with settings to evaluate, of a mask of shape (L, F)."""
    return [int(f) for f in np.flatnonzero(todo.any(axis=0))]


@dataclass(frozen=True, eq=False)
class Path:
    """Solutions for L values of C.

    Attributes
    ----------
    decision : ndarray of float64, shape (L, m)
        Decisions on all rows, including left-out ones; positive for +1.
    beta : ndarray of float64, shape (L, m)
        alpha y.
    b : ndarray of float64, shape (L,)
    iterations : ndarray of int64, shape (L,)
        Pairs of rows optimised.
    converged : ndarray of bool, shape (L,)
    """

    decision: Vector
    beta: Vector
    b: Vector
    iterations: NDArray[np.int64]
    converged: NDArray[np.bool_]


def along(
    K: NDArray[np.floating], y: Vector, factor: Vector, Cs: tuple[float, ...], tol: float, max_pairs: int
) -> Path:
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

    Returns
    -------
    Path

    Raises
    ------
    InputError
        Numbers overflow.

    Notes
    -----
    The solver is :func:`casvm.solver.active_set.optimise_some`; it needs a few numbers per row besides `K`. The start
    is t times the last solution, which is feasible for t from 1 to the ratio of the two C. The t that maximises the
    dual is sum(alpha) / beta'K beta, clipped to this range. The gradient at the start costs one pass over m numbers.
    """
    bound = factor * y
    return path(K, y, np.minimum(bound, 0.0), np.maximum(bound, 0.0), 0.0, Cs, tol, max_pairs)


def path(
    K: NDArray[np.floating], y: Vector, low: Vector, high: Vector, epsilon: float, Cs: tuple[float, ...], tol: float,
    max_pairs: int,
) -> Path:  # fmt: skip
    """Solve the dual with p = -y, this epsilon, and bounds C `low` and C `high` for each C, like :func:`along`."""
    m, L, room = len(y), len(Cs), padded(len(y))
    state, may, diagonal = np.zeros((4, room)), np.zeros((1, room), np.uint8), np.zeros(room, K.dtype)
    state[0, :m], diagonal[:m] = y - epsilon, np.diagonal(K)[:m]
    decision, beta = np.empty((2, L, m))
    solutions = Path(decision, beta, np.empty(L), np.empty(L, np.int64), np.empty(L, np.bool_))
    single = np.empty(room, np.float32) if K.dtype == np.float32 else None
    C, place, done = np.array(Cs), 0, -1
    while place < L:
        poll()
        place, done = _follow(
            K, *state, single, diagonal, may, y, low, high, epsilon, 2.0 * epsilon or None, C, tol, max_pairs, place,
            done, solutions.decision, solutions.beta, solutions.b, solutions.iterations, solutions.converged,
        )  # fmt: skip
    if np.isnan(solutions.decision).any():
        raise overflow()
    return solutions


_STEPS, _PASSED = 10_000, 4 * 10**8  # pairs before v is exact again; rows that pairs pass between two polls


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _follow(
    K: Reals, v: Doubles, beta: Doubles, lower: Doubles, upper: Doubles, single: Reals | None, diagonal: Reals,
    may: Bytes, y: Doubles, low: Doubles, high: Doubles, epsilon: float, width: float | None, Cs: Doubles, tol: float,
    max_pairs: int, place: int, done: int, decisions: Doubles, betas: Doubles, b: Doubles, iterations: Longs,
    converged: Bytes,
) -> tuple[int, int]:  # fmt: skip  # pragma: no cover - compiled
    """Follow a path for a while: from C number `place` on, with `done` pairs, or -1 before its start; return both.

    v, beta and the bounds have the shape (padded(m),), `may` (1, padded(m)); `v` is that of rising rows. The last five
    are the fields of :class:`Path`.
    """
    m, passed = y.size, 0
    where, used = np.arange(m), np.zeros(m, np.int64)
    while place < Cs.size and passed < _PASSED:
        if done < 0:
            done = 0
            _rescale(v, beta, lower, upper, may[0], y, low, high, Cs[place - 1] if place else 0.0, Cs[place], epsilon)
        steps = min(_STEPS, max_pairs - done)
        pairs, _, _ = optimise_some(
            None, K, where, v, single, beta, lower, upper, diagonal, may, width, tol, steps, steps, used, 0
        )
        done, passed = done + pairs, passed + pairs * m
        if 0 < pairs == steps and done < max_pairs:
            continue
        top, bottom = line_extremes(v, may[0], beta, width)
        iterations[place], converged[place] = done, top - bottom < tol
        b[place] = 0.5 * (top + bottom)
        if not np.isfinite(b[place]):  # a side on which no row may move is ignored
            b[place] = top if np.isfinite(top) else bottom if np.isfinite(bottom) else 0.0
        for k in range(m):
            betas[place, k] = beta[k]
            decisions[place, k] = y[k] - v[k] + (epsilon if beta[k] < 0 else -epsilon) + b[place]
        place, done = place + 1, -1
    return place, done


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _rescale(
    v: Doubles, beta: Doubles, lower: Doubles, upper: Doubles, may: Bytes, y: Doubles, low: Doubles, high: Doubles,
    last: float, C: float, epsilon: float,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Turn from the bounds `last` times `low` and `high` to those with `C`, from the best multiple of beta.

    Without a `last`, 0, beta stays. `v` is that of rising rows; both, the bounds and `may` are updated.
    """
    gain = square = 0.0
    for k in range(y.size):
        v[k] += -epsilon if beta[k] < 0 else epsilon
        gain += y[k] * beta[k] - epsilon * abs(beta[k])
        square += beta[k] * (y[k] - v[k])
    largest = C / last if last else 1.0
    by = largest if square <= 0.0 else min(max(gain / square, 1.0), largest)
    to_bounds = last > 0 and by == largest
    for k in range(y.size):
        v[k] = y[k] - by * (y[k] - v[k])
        at_low, at_high = beta[k] == last * low[k], beta[k] == last * high[k]
        lower[k], upper[k] = C * low[k], C * high[k]
        beta[k] *= by
        if to_bounds and at_high:  # rows at a bound must stay exactly at it, despite rounding
            beta[k] = upper[k]
        elif to_bounds and at_low:
            beta[k] = lower[k]
        beta[k] = min(max(beta[k], lower[k]), upper[k])  # and none may exceed it
        v[k] += epsilon if beta[k] < 0 else -epsilon
        may[k] = RISE * (beta[k] < upper[k]) + FALL * (beta[k] > lower[k])
        if epsilon:
            may[k] += AT_KINK * (beta[k] == 0)
