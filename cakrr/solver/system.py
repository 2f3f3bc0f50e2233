"""What ridge regression asks of a part's system of equations, and the factory of those that there are.

A system on another device is one new module: a class with these methods, which :func:`ridge_system` returns where it
applies.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows
from cacore.kernels import Kernel, Points
from cakrr.solver.local import PartSystem, Workspace

Vector = NDArray[np.float64]
Solved = NDArray[np.bool_]


class RidgeSystem(Protocol):
    """``(K + lambda m I) alpha = y`` (eq. 3.6) on the m rows of one part, for any sigma, lambda and targets.

    Attributes
    ----------
    rows : ndarray or CSR, shape (m, d)
    points : Points
        The rows, ready for their kernel.
    scale : ndarray of float64, shape (m,)
        With sample weights w, the root of w over its mean; otherwise 1.
    """

    rows: Rows
    points: Points
    scale: Vector

    def solve(self, kernel: Kernel, lams: tuple[float, ...], Y: NDArray[Any]) -> tuple[NDArray[Any], Solved]:
        """Alphas, shape (L, k, m), of L lambdas and k rows of centred targets, shape (k, m); which lambdas are solved.

        In the dtype of the rows; not a number where K + lambda m I is not positive definite to the rounding.
        """

    def factor(self, kernel: Kernel, lam: float) -> bool:
        """Factor the matrix of this kernel and lambda; whether it is positive definite."""

    def apply_inverse(self, r: NDArray[Any]) -> None:
        """Put the inverse of the matrix that was last factored, times each row of `r`, in its place."""

    def left_out(self, kernel: Kernel, lams: tuple[float, ...], Y: NDArray[Any]) -> tuple[Vector, Solved]:
        """Leave-one-out errors, shape (L, k, m), of k rows of targets, shape (k, m); which lambdas are solved."""


def ridge_system(
    rows: Rows, workspace: Workspace, kernel: Kernel, weights: NDArray[Any] | None = None, grid: bool = False
) -> RidgeSystem:
    """The system of a part; arguments as for :class:`cakrr.solver.local.PartSystem`."""
    return PartSystem(rows, workspace, kernel, weights, grid)
