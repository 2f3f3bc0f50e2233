"""SMO for small problems: pair by pair from the start, on rows of K computed when first needed, or all at once.

With many classes, problems are small and many. So the part's rows are sorted by class and packed once
(:class:`ClassRows`), and a problem gets rows of its kernel matrix from compiled code, in memory that the next problem
uses again (:class:`PairRows`).

Rounds would compute the square of each working set. In :func:`solve_classes`, a pair of rows costs two passes over the
problem, which fits in cache, and only rows that move, or were about to, are ever computed. Everything else follows
:mod:`casvm.solver.smo`. A single small problem has its whole kernel matrix in double precision (:class:`WholeRows`),
which needs no layout, no shrinking and no verification: these take longer than a few hundred rows of K.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows, dense, is_sparse
from cacore.kernels import Kernel, Points
from cacore.kernels.columns import Layout
from cacore.kernels.panels import Panels, add_rows
from cacore.kernels.precision import WIDEST, Accuracy, Extent, rounding, value_rounding
from cacore.kernels.registry import SQUARED
from cacore.kernels.sums import width
from cacore.limits import Limits
from cacore.machine.clock import working_time
from cacore.svm.dual import Dual, Progress, Solution
from cacore.svm.problem import overflow, precision
from casvm.solver.active_set import HIDDEN, Pairs, biases
from casvm.solver.kernel_rows import Index, RowSource, Vector, fetch, padded
from casvm.solver.units import Unit

_UNVERIFIED = 0.1  # share of the tolerance that single precision may hide in violations, which are not verified
MOST = 8192  # rows of a problem at most; larger ones gain from rounds, and from sparse kernel matrices

# A single problem is solved like two classes if it has more rows than _ALONE and at most _NARROW features. In ms, in
# rounds and so: classes with C = 1 and half the labels at random, 2,500 x 10 26 and 12, 4,000 x 20 98 and 47, 4,000 x
# 100 139 and 94; a regression, 8,000 x 30 421 and 270; of 1,200 rows, whose values are in double precision, 17 and 17.
_ALONE, _NARROW = 1536, 128


class PairWorkspace:
    """Memory for one problem at a time.

    Parameters
    ----------
    rows, stride, features : int
        Largest number of rows of a problem, room for a row of its kernel matrix, and features of a row.
    dtype : dtype
    """

    def __init__(self, rows: int, stride: int, features: int, dtype: np.dtype[np.floating]) -> None:
        self.memory = np.empty(rows * stride, dtype)
        self.where, self.used = np.empty(rows, np.int64), np.zeros(rows, np.int64)
        self.row = np.empty(features, dtype), np.empty(features, np.int32)


class ClassRows:
    """Rows of a part, sorted by class and packed; :meth:`of` decides if they suit its problems.

    Parameters
    ----------
    kernel : Kernel
    panels : Panels
        The rows as columns of kernel values. Each class begins a new panel; its last panel is filled up with copies of
        a row.
    diagonal : ndarray of float64, shape (n,)
        K_ii of the rows, class by class.
    sizes : ndarray of int64, shape (k,)
        Number of rows of each class.
    """

    def __init__(self, kernel: Kernel, panels: Panels, diagonal: Vector, sizes: Index) -> None:
        _, features, W = panels.data.shape
        self.panels, dtype = panels, panels.data.dtype
        self.parameters, self.sizes = kernel.parameters(dtype, panels.measure), sizes.tolist()
        self.firsts = np.concatenate([[0], np.cumsum(-(-sizes // W))]).tolist()
        ends = np.cumsum(sizes).tolist()
        self._diagonals = [diagonal[end - n : end] for n, end in zip(self.sizes, ends, strict=True)]
        largest = int(np.sort(sizes)[-2:].sum())
        self._needed = largest, padded(largest + W), features, dtype
        self._spare: list[PairWorkspace] = []

    @classmethod
    def of(
        cls, X: Rows, members: list[Index], kernel: Kernel | None, largest_bound: float, limits: Limits,
        cache_bytes: int, side_by_side: int,
    ) -> ClassRows | None:  # fmt: skip
        """The rows of these classes; None if the problems are too large, or the kernel is not compiled.

        Parameters
        ----------
        X : ndarray or CSR, shape (m, d)
            Not changed.
        members : list of ndarray of int64
            Rows of each class.
        largest_bound : float
            Bound of alpha, from which the precision is chosen.
        side_by_side : int
            Number of problems that are solved at a time.
        """
        if kernel is None or not kernel.compiled or X.shape[1] > WIDEST:
            return None
        sizes = np.array([len(rows) for rows in members])
        largest_pair, all_rows = int(np.sort(sizes)[-2:].sum()), np.concatenate(members)
        if largest_pair > MOST:
            return None
        rows = X if kernel.of_distance else X[all_rows]  # the diagonal of a distance needs no rows
        largest = kernel.largest(rows, np.float64)
        dtype = precision((len(all_rows), X.shape[1]), largest, HIDDEN * largest_bound, _UNVERIFIED * limits.tol)
        accuracy = Accuracy.of_solution(largest_bound, limits.tol)
        layout = replace(Layout.of(X, kernel, dtype, None, accuracy), packed=True)
        W, bytes_each = width(layout.dtype), layout.dtype.itemsize
        if (
            bytes_each * (len(all_rows) * X.shape[1] + side_by_side * largest_pair * padded(largest_pair + W))
            > cache_bytes
        ):
            return None
        kernel.largest(rows, layout.dtype)
        filled = [np.append(class_rows, class_rows[:1].repeat(-len(class_rows) % W)) for class_rows in members]
        panels = layout.columns(X, np.concatenate(filled))
        assert isinstance(panels, Panels)
        return cls(kernel, panels, kernel.diagonal(rows)[: len(all_rows)], sizes)

    @classmethod
    def of_one_problem(
        cls, X: Rows, kernel: Kernel | None, bound: float, limits: Limits, cache_bytes: int
    ) -> ClassRows | None:
        """The rows of a single problem in two halves; None if rounds are faster or single precision does not suffice.

        `bound` is the largest of |beta|; only for kernels of a distance.
        """
        n, d = X.shape
        if not _ALONE < n < MOST or d > _NARROW or kernel is None or not (kernel.compiled and kernel.of_distance):
            return None
        largest = kernel.largest(X, np.float64)
        if precision((n, d), largest, HIDDEN * bound, _UNVERIFIED * limits.tol) is not np.float32:
            return None
        return cls.of(X, np.array_split(np.arange(n), 2), kernel, bound, limits, cache_bytes, 1)

    @contextmanager
    def pair(self, i: int, j: int) -> Iterator[PairRows]:
        """Context with the rows of two classes, those of the first class first."""
        try:
            space = self._spare.pop()
        except IndexError:
            space = PairWorkspace(*self._needed)
        try:
            yield PairRows(self, i, j, self._diagonals[i], self._diagonals[j], space)
        finally:
            self._spare.append(space)


class PairRows:
    """The kernel matrix of the rows of two classes; a row of it is computed when it is first needed.

    Attributes
    ----------
    n : int
    K : ndarray, shape (n, >= padded(n))
        The rows computed so far, in the order of their computation.
    where : ndarray of int64, shape (n,)
        Row of `K` with the kernel values of each row, or -1.
    used : ndarray of int64, shape (n,)
        For :func:`casvm.solver.active_set.optimise_pairs`.
    diagonal : ndarray of float64, shape (n,)
    source : RowSource
        For :func:`fetch`.
    """

    def __init__(self, rows: ClassRows, i: int, j: int, first: Vector, second: Vector, space: PairWorkspace) -> None:
        panels, W = rows.panels, rows.panels.data.shape[2]
        self.diagonal = np.concatenate([first, second])
        self.n = n = len(self.diagonal)
        stride = padded(len(first) + -(-len(second) // W) * W)
        self.K = space.memory[: n * stride].reshape(n, stride)
        self.K[0] = 0.0  # pairs read it before there is any row: 0 times a NaN would spread
        self.where, self.used = space.where[:n], space.used[:n]
        self.where.fill(-1)
        self._computed = np.zeros(1, np.int64)
        self.source: RowSource = (
            panels.data, panels.norms, *space.row, rows.parameters, rows.firsts[i], rows.firsts[j], len(first),
            self._computed,
        )  # fmt: skip

    def fetch(self, rows: Index) -> None:
        """Compute these rows of K, of which none is there yet."""
        for row in rows.tolist():
            fetch(self.source, row, self.K, self.where)

    @property
    def count(self) -> int:
        """Number of rows computed so far."""
        return int(self._computed[0])


# Most rows of a problem whose K, 18 MiB, is computed at once. In ms, in rounds and so, classes with C = 1 and with half
# the labels at random: 800 x 16 3.8 and 2.4, 6.5 and 3.0; 1,300 x 30 14 and 8, 23 and 11; 1,600 x 128 13 and 16, 40 and
# 19; 2,000 x 64 15 and 20, 50 and 26.
MOST_WHOLE = 1536
# Features up to which squared distances are sums of differences, which need no check of the rounding: of 500 rows, in
# ms, differences take 1.0 and products 0.9 for 8 features, 3.2 and 1.5 for 64.
_BY_DIFFERENCES = 32
_NUMBERS = 1 << 22  # numbers of CSR rows that may be made dense


class WholeRows:
    """The whole kernel matrix of a small problem; for :func:`solve_classes`, as :class:`PairRows`.

    Parameters
    ----------
    K : ndarray of float64, shape (n, padded(n))
        Finite.
    """

    source = None

    def __init__(self, K: Vector) -> None:
        self.K, self.n = K, len(K)
        self.where, self.used, self.diagonal = np.arange(self.n), np.zeros(self.n, np.int64), np.diagonal(K).copy()
        self.count = self.n

    @classmethod
    def of(cls, X: Rows, kernel: Kernel | None, bound: float, tol: float, cache_bytes: int) -> WholeRows | None:
        """The kernel matrix of these rows; None if it is large, or not accurate enough without further measures.

        n^2 d flops. `bound` is the largest of |beta|, and `tol` the solver's tolerance.
        """
        n, d = X.shape
        if kernel is None or not kernel.compiled or kernel.separable or n > MOST_WHOLE:
            return None
        if 8 * n * n > cache_bytes or (is_sparse(X) and n * d > _NUMBERS):
            return None
        K = np.zeros((n, padded(n)))
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is left to solvers that say where
            by_differences = kernel.declared.of == SQUARED and d <= _BY_DIFFERENCES
            points = Points(dense(X).astype(np.float64, copy=False), None, by_differences)
            square = 0.0 if by_differences else float(points.squares.max())
            extent = Extent(square, math.sqrt(d * square), math.sqrt(square), d)
            if not (by_differences or rounding(kernel, extent, np.float64) <= Accuracy.of_solution(bound, tol).allowed):
                return None
            kernel.block(points, points, K[:, :n])
            largest = float(np.abs(np.diagonal(K)).max())
        rounds_well = bound * value_rounding(largest, np.float64) <= _UNVERIFIED * tol
        return cls(K) if rounds_well and np.isfinite(K.sum()) else None

    @classmethod
    def of_matrix(cls, K: NDArray[np.floating], bound: float, tol: float, cache_bytes: int) -> WholeRows | None:
        """A kernel matrix of the caller, shape (n, n), which is copied if its rows do not end with a whole register.

        None if the copy is too large, or values need a closer look.
        """
        n, stride = len(K), padded(len(K))
        if n > MOST or 8 * n * n > cache_bytes:
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            largest, total = float(np.abs(np.diagonal(K)).max(initial=0.0)), float(K.sum(dtype=np.float64))
        if not (bound * value_rounding(largest, np.float64) <= _UNVERIFIED * tol and np.isfinite(total)):
            return None
        if n == stride and K.dtype == np.float64 and K.flags.c_contiguous:
            return cls(K.view(np.float64))
        copy = np.empty((n, stride))
        copy[:, :n], copy[:, n:] = K, 0.0
        return cls(copy)

    def fetch(self, rows: Index) -> None:
        """Do nothing: every row of K is there."""

    def solve(self, dual: Dual, limits: Limits, watch: Callable[[Progress], None] | None = None) -> Solution:
        """Solve a dual of these rows, see :func:`solve_classes`."""
        return replace(solve_classes(self, dual, limits, watch), kernel_rows=self.n, kernel_values=self.n**2)


_PASSED = 4 * 10**8  # rows that pairs pass between two looks at the clock
# Pairs per row from which free rows are solved together; most solutions each time; their m^3 flops per n^2. In ms, with
# C = 1e6 and unscaled features, by pairs alone, and so: iris 4.6 and 2.9, wine 18 and 7.3, breast cancer 1,093 and 113.
# From 5 pairs per row breast cancer takes 56, but 500 x 4 with C = 100 and labels wrong, of 20 pairs per row, 10.7
# instead of 9.8.
_HARD, _SOLUTIONS, _SHARE = 20, 64, 16
_RIDGE = 1e-12  # added to the diagonal, relative to the largest kernel value, for rows that depend on each other


def solve_classes(
    rows: PairRows | WholeRows, dual: Dual, limits: Limits, watch: Callable[[Progress], None] | None = None
) -> Solution:
    """Solve the dual of two classes from its start, made feasible; see :class:`cacore.svm.dual.PartSolver`.

    Notes
    -----
    One row of K per row that moves, in one thread; two passes over the rows per pair. Rows of K that are there already
    are used again. The objective is that of the kernel values in the precision of `rows`.
    """
    dual, tol = dual.repaired(), limits.tol
    unit = Unit.of_dual(dual)
    return unit.solution(_solve(rows, unit.dual(dual), unit.limits(limits), unit.watch(watch)), tol)


def _solve(
    rows: PairRows | WholeRows, dual: Dual, limits: Limits, watch: Callable[[Progress], None] | None
) -> Solution:
    begun, before = working_time(), rows.count
    problem, max_pairs, moved = _problem(rows, dual), limits.iterations(dual.n), True
    hard = chunk = due = max_pairs + 1 if dual.by_sign else _HARD * dual.n  # two sums: pairs alone
    while True:
        sides = problem.extremes()
        gap, late = max(top - bottom for top, bottom in sides), working_time() - begun > limits.max_time
        if gap < limits.tol or late or problem.iterations >= max_pairs or not moved:
            break
        last = problem.iterations
        most = min(max_pairs - last, 1 + _PASSED // dual.n, due - last)
        problem.optimise(rows.K, rows.where, limits.tol, most, rows.used)
        moved = problem.iterations > last
        if problem.iterations >= due:
            problem, solved = _with_free_rows_solved(problem, rows, dual)
            chunk *= 1 if solved else 2
            due = problem.iterations + chunk
        if watch is not None:
            watch(Progress(problem.iterations, gap, _objective(problem, dual), dual.n))
    if gap < limits.tol and problem.iterations >= hard:  # the dual is flat
        finer, _ = _with_free_rows_solved(problem, rows, dual)
        finer_sides = finer.extremes()
        if (finer_gap := max(top - bottom for top, bottom in finer_sides)) <= gap:
            problem, sides, gap = finer, finer_sides, finer_gap
    objective = _objective(problem, dual)
    if math.isnan(objective):
        raise overflow()
    computed, converged = rows.count - before, gap < limits.tol
    levels = biases(sides, dual, converged, rows.K.dtype)
    b = 0.5 * (levels[0] + levels[1])
    return Solution(
        problem.beta.copy(), b, problem.iterations, objective, gap, converged, computed, computed * dual.n,
        working_time() - begun, b - dual.linear - problem.v, 0, 2 * problem.iterations * dual.n,
        0.5 * (levels[0] - levels[1]),
    )  # fmt: skip


def _problem(rows: PairRows | WholeRows, dual: Dual) -> Pairs:
    """The pairs of rows of a dual at its start, which compute rows of K when they are missing."""
    beta, v = dual.initial(), -dual.linear
    moved = np.flatnonzero(beta)
    if moved.size:
        rows.fetch(moved[rows.where[moved] < 0])
        add_rows(rows.K, rows.where[moved], -beta[moved], v, 0, dual.n)
    return _pairs(v, beta, rows, dual)


def _pairs(v: Vector, beta: Vector, rows: PairRows | WholeRows, dual: Dual) -> Pairs:
    return Pairs(v, beta, dual.lower, dual.upper, rows.diagonal, dual.epsilon, dual.by_sign, rows.source)


def _with_free_rows_solved(problem: Pairs, rows: PairRows | WholeRows, dual: Dual) -> tuple[Pairs, bool]:
    """The problem after Newton steps on its free rows, and True if the last one was not cut short by a bound.

    Each step ends at the first bound that a row meets. Pairs need very many steps if bounds are far away and free rows
    are alike: then the dual is flat, and a solution within the tolerance may still be far from the exact one. m^3 flops
    per step with m free rows; no step if that costs more than the pairs.
    """
    v, beta, flops, solved = problem.v.copy(), problem.beta.copy(), 0, False
    for _ in range(_SOLUTIONS):
        free = np.flatnonzero((dual.lower < beta) & (beta < dual.upper) & ((beta != 0) | (dual.epsilon == 0)))
        m, start = len(free), beta[free]
        flops += m**3
        if m < 2 or flops > _SHARE * dual.n**2 or solved:
            break
        rows.fetch(free[rows.where[free] < 0])  # without an epsilon, rows that never moved are free
        K, A, signs = rows.K[rows.where[free]][:, free].astype(np.float64), np.zeros((m + 1, m + 1)), np.sign(start)
        A[:m, :m], A[m, :m], A[:m, m] = K + _RIDGE * np.abs(K).max() * np.eye(m), 1.0, 1.0
        gradient = v[free] - dual.epsilon * signs
        try:
            step = np.linalg.solve(A, np.append(gradient, 0.0))[:m]
        except np.linalg.LinAlgError:  # kernel values of 0
            break
        low, high = dual.lower[free], dual.upper[free]
        if dual.epsilon:  # not further than the kink
            low, high = np.where(signs > 0, 0.0, low), np.where(signs < 0, 0.0, high)
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.where(step == 0, np.inf, np.where(step > 0, high - start, low - start) / step)
        size = min(1.0, float(room.min()))
        if not float(step @ gradient) > 0.5 * size * float(step @ K @ step):
            break
        beta[free], solved = np.clip(start + size * step, low, high), size == 1.0
        if not solved:
            first = int(room.argmin())
            beta[free[first]] = high[first] if step[first] > 0 else low[first]
        add_rows(rows.K, rows.where[free], start - beta[free], v, 0, dual.n)
    if np.array_equal(beta, problem.beta):
        return problem, False
    after = _pairs(v, beta, rows, dual)
    after.iterations = problem.iterations
    return after, solved


def _objective(problem: Pairs, dual: Dual) -> float:
    """The dual's value, from v = -p - K beta."""
    beta = problem.beta
    value = 0.5 * float(beta @ (problem.v - dual.linear))
    return value - dual.epsilon * float(np.abs(beta).sum()) if dual.epsilon else value
