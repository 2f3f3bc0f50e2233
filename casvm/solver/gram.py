"""What SMO asks of a kernel matrix, the factory of those that there are, and one that the caller has computed.

Kernel values from another device are one new module: a class with these methods, and a function that passes it to
:func:`casvm.solver.smo.solve`, registered as a solver (:mod:`cacore.svm.solvers`).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows
from cacore.kernels import Kernel
from cacore.machine.threads import blocks
from cacore.svm.problem import precision
from casvm.solver.kernel_rows import KernelRows
from casvm.solver.pair import Index, Vector, padded
from casvm.solver.row_cache import Table

_SAMPLE = 1000  # rows by which the precision is chosen


class Shrinkable(Protocol):
    """Kernel values of some columns, the active ones, as shrinking needs them; see :class:`Gram`."""

    @property
    def rows_computed(self) -> int:
        """Rows of K over the active columns, up to now."""

    @property
    def values_computed(self) -> int:
        """Kernel values in all."""

    @property
    def values_read(self) -> int:
        """Those read again from memory."""

    def restrict(self, kept: Index) -> None:
        """Only the active columns at these places, ascending, stay active."""

    def copies(self, columns: int) -> bool:
        """Whether restricting to so many columns copies what is kept, so that it should not be done often."""

    def activate(self, rows: Index) -> None:
        """These columns are active; what was kept is not kept any longer."""


class Gram(Shrinkable, Protocol):
    """A kernel matrix K, whose rows are called by their numbers; of its columns, some are active.

    Attributes
    ----------
    price : float
        What a kernel value costs, in units of reading one again.
    values_read : int
        The solver adds what its pairs read.
    """

    price: float
    values_read: int

    def square(self, rows: Index) -> NDArray[Any]:
        """K(rows, rows), filled up as :func:`casvm.solver.pair.padded` says; valid until the next call."""

    def subtract(self, rows: Index, change: Vector, v: Vector, keep: NDArray[np.bool_]) -> None:
        """``v -= change @ K(rows, active)``; rows marked in `keep` may be kept: they are likely to come again."""

    def outside(self, rows: Index, change: Vector, columns: Index) -> Vector:
        """``change @ K(rows, columns)``, for any columns."""

    def quadratic(self, rows: Index, beta: Vector) -> float:
        """``beta @ K(rows, rows) @ beta`` in double precision."""

    def diagonal(self) -> Vector:
        """K_ii of the active columns."""

    def fetch(self, rows: Index) -> None:
        """Compute these rows over the active columns, and keep them."""

    def table(self) -> Table:
        """The rows that are kept, over the active columns."""


def gram_of(X: Rows, kernel: Kernel | None, largest_bound: float, tol: float, cache_bytes: int) -> Gram:
    """The kernel matrix of a part.

    Parameters
    ----------
    X, kernel, cache_bytes
        As for :class:`cacore.svm.dual.PartSolver`.
    largest_bound, tol : float
        Of |beta|, and of the solver: kernel values are in single precision where that does not show.
    """
    if kernel is None:
        return Precomputed(np.asarray(X))
    dtype = precision(X.shape[0], X[:: max(1, X.shape[0] // _SAMPLE)], kernel, largest_bound, tol)
    return KernelRows(X, kernel, dtype, cache_bytes)


class Precomputed:
    """A kernel matrix that is there: ``K``, shape (n, n), not changed."""

    def __init__(self, K: NDArray[Any]) -> None:
        self.K, self.n, self.price = K, len(K), 1.0
        self.rows_computed = self.values_computed = self.values_read = 0
        self.active = np.arange(self.n)

    def square(self, rows: Index) -> NDArray[Any]:
        """See :class:`Gram`."""
        K = np.zeros((padded(len(rows)),) * 2, self.K.dtype)
        K[: len(rows), : len(rows)] = self.K[np.ix_(rows, rows)]
        return K

    def subtract(self, rows: Index, change: Vector, v: Vector, keep: NDArray[np.bool_]) -> None:
        """See :class:`Gram`."""
        v -= self.outside(rows, change, self.active)

    def outside(self, rows: Index, change: Vector, columns: Index) -> Vector:
        """See :class:`Gram`."""
        self.values_read += len(rows) * len(columns)
        total = np.zeros(len(columns))
        for lo, hi in blocks(len(rows), 64):
            total += change[lo:hi] @ self.K[np.ix_(rows[lo:hi], columns)]
        return total

    def restrict(self, kept: Index) -> None:
        """See :class:`Gram`."""
        self.active = self.active[kept]

    def copies(self, columns: int) -> bool:
        """See :class:`Gram`; nothing is kept."""
        return False

    def activate(self, rows: Index) -> None:
        """See :class:`Gram`."""
        self.active = rows

    def quadratic(self, rows: Index, beta: Vector) -> float:
        """See :class:`Gram`."""
        return float(self.outside(rows, beta, rows) @ beta)

    def diagonal(self) -> Vector:
        """See :class:`Gram`."""
        return np.diagonal(self.K)[self.active].astype(np.float64)

    def fetch(self, rows: Index) -> None:
        """See :class:`Gram`; nothing is kept."""

    def table(self) -> Table:
        """See :class:`Gram`."""
        return Table(self.K[:0], np.full(len(self.active), -1), np.zeros(0, np.int64), 0)
