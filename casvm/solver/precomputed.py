"""A kernel matrix that the caller has: nothing is computed, and nothing is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.machine.threads import blocks
from casvm.solver.pair import padded
from casvm.solver.row_cache import Table

Index = NDArray[np.int64]
Vector = NDArray[np.float64]


class Precomputed:
    """A kernel matrix that is there: ``K``, shape (n, n), not changed."""

    def __init__(self, K: NDArray[Any]) -> None:
        self.K, self.n, self.price = K, len(K), 1.0
        self.rows_computed = self.values_computed = self.values_read = 0
        self.active = np.arange(self.n)

    def square(self, rows: Index) -> NDArray[Any]:
        """See :class:`casvm.solver.gram.Gram`."""
        K = np.zeros((padded(len(rows)),) * 2, self.K.dtype)
        K[: len(rows), : len(rows)] = self.K[np.ix_(rows, rows)]
        return K

    def subtract(self, rows: Index, change: Vector, v: Vector, keep: NDArray[np.bool_]) -> None:
        """See :class:`casvm.solver.gram.Gram`."""
        v -= self.outside(rows, change, self.active)

    def outside(self, rows: Index, change: Vector, columns: Index) -> Vector:
        """See :class:`casvm.solver.gram.Gram`."""
        self.values_read += len(rows) * len(columns)
        total = np.zeros(len(columns))
        for lo, hi in blocks(len(rows), 64):
            total += change[lo:hi] @ self.K[np.ix_(rows[lo:hi], columns)]
        return total

    def restrict(self, kept: Index) -> None:
        """See :class:`casvm.solver.gram.Gram`."""
        self.active = self.active[kept]

    def copies(self, columns: int) -> bool:
        """See :class:`casvm.solver.gram.Gram`; nothing is kept."""
        return False

    def activate(self, rows: Index) -> None:
        """See :class:`casvm.solver.gram.Gram`."""
        self.active = rows

    def quadratic(self, rows: Index, beta: Vector) -> float:
        """See :class:`casvm.solver.gram.Gram`."""
        return float(self.outside(rows, beta, rows) @ beta)

    def diagonal(self) -> Vector:
        """See :class:`casvm.solver.gram.Gram`."""
        return np.diagonal(self.K)[self.active].astype(np.float64)

    def fetch(self, rows: Index) -> None:
        """See :class:`casvm.solver.gram.Gram`; nothing is kept."""

    def table(self) -> Table:
        """See :class:`casvm.solver.gram.Gram`."""
        return Table(self.K[:0], np.full(len(self.active), -1), np.zeros(0, np.int64), 0)
