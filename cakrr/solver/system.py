"""Interface of the solvers of a part's ridge system, and the factory that chooses one.

To solve systems on another device, write a class with these methods in one new module and return it from
:func:`ridge_system`.
"""

from __future__ import annotations

from typing import Protocol

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
        sqrt(w / mean(w)) for sample weights w; otherwise 1.
    """

    rows: Rows
    points: Points
    scale: Vector

    def solve(
        self, kernel: Kernel, lams: tuple[float, ...], Y: NDArray[np.floating]
    ) -> tuple[NDArray[np.floating], Solved]:
        """Solve for L lambdas and k rows of centred targets `Y`, shape (k, m).

        Returns the alphas, shape (L, k, m), in the dtype of the rows, and a mask of the lambdas that are solved. Alphas
        are NaN if K + lambda m I is not numerically positive definite.
        """

    def factor(self, kernel: Kernel, lam: float) -> bool:
        """Factor the matrix of this kernel and lambda; return True if it is positive definite."""

    def apply_inverse(self, r: NDArray[np.floating]) -> None:
        """Overwrite each row of `r` by the solution with the matrix that was last factored."""

    def left_out(self, kernel: Kernel, lams: tuple[float, ...], Y: NDArray[np.floating]) -> tuple[Vector, Solved]:
        """Leave-one-out errors, shape (L, k, m), for targets `Y`, shape (k, m), and a mask of the lambdas solved."""


def ridge_system(
    rows: Rows, workspace: Workspace, kernel: Kernel, weights: NDArray[np.floating] | None = None, grid: bool = False
) -> RidgeSystem:
    """Create the system of a part; the arguments are those of :class:`cakrr.solver.local.PartSystem`."""
    return PartSystem(rows, workspace, kernel, weights, grid)
