"""Interface of the kernel matrices that SMO uses, and their factory.

Kernel values from another device need one new module: a class with these methods, and a function that passes it to
:func:`casvm.solver.smo.solve`, registered as a solver (:mod:`cacore.svm.solvers`).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows
from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.kernels.given import Precomputed, given_kernel, numbered
from cacore.kernels.precision import Accuracy
from cacore.svm.problem import precision
from casvm.solver.kernel_rows import KernelRows
from casvm.solver.pair import Index, Vector
from casvm.solver.row_cache import RowTable


class Shrinkable(Protocol):
    """The part of a kernel matrix that shrinking uses; see :class:`KernelMatrix`.

    Attributes
    ----------
    dtype : dtype
        Type of the kernel values that are kept.
    """

    dtype: np.dtype[Any]

    @property
    def rows_computed(self) -> int:
        """Rows of K computed over the active columns so far."""

    @property
    def values_computed(self) -> int:
        """Kernel values computed so far."""

    @property
    def values_read(self) -> int:
        """Kernel values read again from memory so far."""

    def restrict(self, kept: Index) -> None:
        """Keep only the active columns at these places, ascending."""

    def copies(self, columns: int) -> bool:
        """True if restricting to so many columns copies the kernel cache (expensive; shrink rarely)."""

    def activate(self, rows: Index) -> None:
        """Make these columns active; kept values may be discarded."""


class KernelMatrix(Shrinkable, Protocol):
    """A kernel matrix K, addressed by row numbers, with a subset of active columns.

    Attributes
    ----------
    price : float
        Cost of a kernel value, in units of reading one from memory.
    values_read : int
        The solver adds the values that its pairs read.
    """

    price: float
    values_read: int

    def square(self, rows: Index) -> NDArray[np.floating]:
        """K(rows, rows), padded as :func:`casvm.solver.pair.padded` says; valid until the next call."""

    def subtract(self, rows: Index, change: Vector, v: Vector, keep: NDArray[np.bool_]) -> None:
        """``v -= change @ K(rows, active)``; rows marked in `keep` may be cached: they will likely recur."""

    def outside(self, rows: Index, change: Vector, columns: Index, exact: bool = False) -> Vector:
        """``change @ K(rows, columns)``, for any columns; `exact`: in double precision."""

    def products(self, rows: Index, betas: Vector) -> Vector:
        """``K(rows, rows) @ b`` in double precision for each row b of `betas`, shape (t, len(rows)); of that shape."""

    def quadratics(self, rows: Index, betas: Vector) -> Vector:
        """``b @ K(rows, rows) @ b`` in double precision for each row b of `betas`, shape (t, len(rows)); shape (t,)."""

    def restart(self) -> None:
        """Make all columns active for another dual of the same rows; values kept over all columns stay."""

    def diagonal(self) -> Vector:
        """K_ii of the active columns."""

    def fetch(self, rows: Index) -> None:
        """Compute these rows over the active columns and keep them."""

    def table(self) -> RowTable:
        """The kept rows, over the active columns."""


def gram_of(
    X: Rows, kernel: Kernel | None, largest_bound: float, tol: float, cache_bytes: int, size: float = 1.0
) -> KernelMatrix:
    """The kernel matrix of a part.

    Parameters
    ----------
    X, kernel, cache_bytes
        See :class:`cacore.svm.dual.PartSolver`.
    largest_bound, tol : float
        Bound of |beta| and tolerance of the solver, which decide whether single precision suffices.
    size : float
        Margin, or half the range of the targets; rounding of a tenth of it is refused.
    """
    if kernel is None:  # rows copied over the active columns are read much faster than the matrix itself
        X, kernel = numbered(X.shape[0], np.float64), given_kernel(Precomputed(np.asarray(X)))
    dtype = precision(X.shape, kernel.largest(X, np.float64), largest_bound, tol)
    layout = Layout.of(X, kernel, dtype, None, Accuracy.of_solution(largest_bound, tol, size))
    return KernelRows(X, kernel, dtype, cache_bytes, layout)
