"""Interface of the kernel matrices that SMO uses, their factory, and a matrix computed by the caller.

Kernel values from another device need one new module: a class with these methods, and a function that passes it to
:func:`casvm.solver.smo.solve`, registered as a solver (:mod:`cacore.svm.solvers`).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows
from cacore.kernels import Kernel
from cacore.machine.threads import blocks
from cacore.svm.problem import precision
from casvm.solver.kernel_rows import KernelRows
from casvm.solver.pair import Index, Vector, padded
from casvm.solver.row_cache import RowTable

_SAMPLE = 1000  # rows from which the precision is chosen


class Shrinkable(Protocol):
    """The part of a kernel matrix that shrinking uses; see :class:`KernelMatrix`."""

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

    def outside(self, rows: Index, change: Vector, columns: Index) -> Vector:
        """``change @ K(rows, columns)``, for any columns."""

    def quadratic(self, rows: Index, beta: Vector) -> float:
        """``beta @ K(rows, rows) @ beta`` in double precision."""

    def diagonal(self) -> Vector:
        """K_ii of the active columns."""

    def fetch(self, rows: Index) -> None:
        """Compute these rows over the active columns and keep them."""

    def table(self) -> RowTable:
        """The kept rows, over the active columns."""


def gram_of(X: Rows, kernel: Kernel | None, largest_bound: float, tol: float, cache_bytes: int) -> KernelMatrix:
    """The kernel matrix of a part.

    Parameters
    ----------
    X, kernel, cache_bytes
        See :class:`cacore.svm.dual.PartSolver`.
    largest_bound, tol : float
        Bound of |beta| and tolerance of the solver, which decide whether single precision suffices.
    """
    if kernel is None:
        return GivenMatrix(np.asarray(X))
    dtype = precision(X.shape[0], X[:: max(1, X.shape[0] // _SAMPLE)], kernel, largest_bound, tol)
    return KernelRows(X, kernel, dtype, cache_bytes)


class GivenMatrix:
    """A kernel matrix computed by the caller: ``K``, shape (n, n), not changed."""

    def __init__(self, K: NDArray[np.floating]) -> None:
        self.K, self.n, self.price = K, len(K), 1.0
        self.rows_computed = self.values_computed = self.values_read = 0
        self.active = np.arange(self.n)

    def square(self, rows: Index) -> NDArray[np.floating]:
        """See :class:`KernelMatrix`."""
        K = np.zeros((padded(len(rows)),) * 2, self.K.dtype)
        K[: len(rows), : len(rows)] = self.K[np.ix_(rows, rows)]
        return K

    def subtract(self, rows: Index, change: Vector, v: Vector, keep: NDArray[np.bool_]) -> None:
        """See :class:`KernelMatrix`."""
        v -= self.outside(rows, change, self.active)

    def outside(self, rows: Index, change: Vector, columns: Index) -> Vector:
        """See :class:`KernelMatrix`."""
        self.values_read += len(rows) * len(columns)
        total = np.zeros(len(columns))
        for lo, hi in blocks(len(rows), 64):
            total += change[lo:hi] @ self.K[np.ix_(rows[lo:hi], columns)]
        return total

    def restrict(self, kept: Index) -> None:
        """See :class:`KernelMatrix`."""
        self.active = self.active[kept]

    def copies(self, columns: int) -> bool:
        """See :class:`KernelMatrix`; nothing is kept."""
        return False

    def activate(self, rows: Index) -> None:
        """See :class:`KernelMatrix`."""
        self.active = rows

    def quadratic(self, rows: Index, beta: Vector) -> float:
        """See :class:`KernelMatrix`."""
        return float(self.outside(rows, beta, rows) @ beta)

    def diagonal(self) -> Vector:
        """See :class:`KernelMatrix`."""
        return np.diagonal(self.K)[self.active].astype(np.float64)

    def fetch(self, rows: Index) -> None:
        """See :class:`KernelMatrix`; nothing is kept."""

    def table(self) -> RowTable:
        """See :class:`KernelMatrix`."""
        return RowTable(self.K[:0], np.full(len(self.active), -1), np.zeros(0, np.int64), 0)
