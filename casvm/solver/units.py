"""The unit and the origin in which a dual is solved: numbers near 1, and rows of a linear kernel near 0.

Beta, b, the bounds, epsilon and the tolerance are all in the units of p. Dividing them by a power of two rounds
nothing, so ordinary targets give the same bits, and tiny or huge ones neither vanish nor overflow in single precision.

The inner products of rows far from 0 hide their differences. While coefficients add up to 0, a linear kernel may take
all rows about any point: the solution is the same but for b.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows, power_of_two, shifted
from cacore.kernels import Kernel
from cacore.kernels.precision import Accuracy, Extent, rounding, sampled, shift_of
from cacore.limits import Limits
from cacore.svm.dual import Dual, KnownProduct, Progress, Solution

ROUNDING = 16 * float(np.finfo(np.float64).eps)  # violation, relative to the largest |p|, that steps may not get below
_LARGEST = 2.0**1000  # a bound in units of p is at most twice this

_ALL = slice(None)
_WELL_BELOW = 0.01  # share of the allowed error of kernel values from which on rows are shifted
Watch = Callable[[Progress], None]


@dataclass(frozen=True)
class Unit:
    """A unit of the numbers of a dual.

    Attributes
    ----------
    size : float
        A power of two.
    """

    size: float

    @classmethod
    def of(cls, largest: float, bound: float) -> Unit:
        """The unit for a largest |p| and a largest bound; it is 1 for classes and for one class."""
        return cls(max(power_of_two(largest), power_of_two(bound) / _LARGEST))

    @classmethod
    def of_dual(cls, dual: Dual) -> Unit:
        """The unit for all rows of a dual."""
        return cls.of(float(np.abs(dual.linear).max(initial=0.0)), dual.largest_bound)

    def dual(self, dual: Dual) -> Dual:
        """The dual in this unit."""
        if self.size == 1.0:
            return dual
        start = None if dual.start is None else dual.start / self.size
        near = dual.near_start and KnownProduct(dual.near_start.beta / self.size, dual.near_start.product / self.size)
        return replace(
            dual, linear=dual.linear / self.size, lower=dual.lower / self.size, upper=dual.upper / self.size,
            start=start, total=dual.total / self.size, epsilon=dual.epsilon / self.size, near_start=near,
        )  # fmt: skip

    def limits(self, limits: Limits) -> Limits:
        """The limits in this unit; a tolerance below the rounding of the gradient is raised to it."""
        tol = max(float(limits.tol) / self.size, ROUNDING)
        return limits if tol == limits.tol else replace(limits, tol=tol)

    def watch(self, watch: Watch | None) -> Watch | None:
        """A callback that gets the progress in the original units."""
        if watch is None or self.size == 1.0:
            return watch

        def scaled(now: Progress) -> None:
            watch(replace(now, gap=now.gap * self.size, objective=now.objective * self.size * self.size))

        return scaled

    def solution(self, solution: Solution, tol: float) -> Solution:
        """The solution in the original units; it has converged if it meets the original tolerance."""
        size = self.size
        converged = solution.converged and solution.gap * size < tol
        if size == 1.0:
            return solution if converged == solution.converged else replace(solution, converged=converged)
        return replace(
            solution, beta=solution.beta * size, b=solution.b * size, objective=solution.objective * size * size,
            gap=solution.gap * size, converged=converged, decision=solution.decision * size,
            margin=solution.margin * size,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Origin:
    """Rows about a point, for a kernel and duals that do not depend on it.

    Attributes
    ----------
    X : ndarray or CSR, shape (n, d)
        The rows about the shift: a copy in double precision if there is one.
    shift : ndarray of float64, shape (d,), or None
    """

    X: Rows
    shift: NDArray[np.float64] | None

    @classmethod
    def of(cls, X: Rows, kernel: Kernel | None, C: float, tol: float, dual: Dual | None = None) -> Origin:
        """The rows about their mean, for the linear kernel of rows far from 0, if the coefficients add up to 0.

        Rows stay as they are if the rounding of their inner products is well below what the largest bound `C` of a
        coefficient and the solver's tolerance allow.
        """
        free = dual is None or dual.by_sign or dual.total == 0
        if kernel is None or kernel.kind != "linear" or not free:
            return cls(X, None)
        if rounding(kernel, Extent.of(X), np.float64) <= _WELL_BELOW * Accuracy.of_solution(C, tol).allowed:
            return cls(X, None)
        shift = shift_of(sampled(X), kernel, balanced=True)
        return cls(shifted(X, shift), shift)

    def solution(self, solution: Solution, rows: NDArray[np.intp] | slice = _ALL) -> Solution:
        """The solution with b for the rows as they are; `rows` are its rows among all."""
        return solution if self.shift is None else replace(solution, b=solution.b - self._moved(solution, rows))

    def bias(self, solution: Solution) -> float:
        """The b for the rows about the shift, of a solution for the rows as they are."""
        return solution.b if self.shift is None else solution.b + self._moved(solution, _ALL)

    def _moved(self, solution: Solution, rows: NDArray[np.intp] | slice) -> float:
        """Product of the features' weights with the shift; as in predictions, weights are about the support vectors."""
        assert self.shift is not None
        support = np.flatnonzero(solution.beta)
        if not len(support):
            return 0.0
        X, beta = self.X[rows][support], solution.beta[support]
        mean = np.asarray(X.mean(axis=0, dtype=np.float64)).ravel()
        return float((np.asarray(X.T @ beta) - beta.sum() * mean) @ self.shift)
