"""Rows of the kernel matrix that are computed where they do not vanish, every time anew, and never kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows, is_sparse
from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.kernels.near import NearPanels, spatial_order
from cacore.machine.threads import blocks
from casvm.solver.kernel_rows import KernelRows
from casvm.solver.pair import Index, Vector, padded

_SAMPLE = 200
_NEAR = 0.25  # of the columns, up to which a row of K is sooner computed than read again from memory
_BOX = 128  # rows of a box in a working set
_SOME, _COLUMNS = 2048, 1 << 16  # rows and columns that meet in one go


class NearColumns(KernelRows):
    """As :class:`KernelRows`, of dense rows and a kernel that vanishes beyond a distance, without a cache.

    Parameters
    ----------
    X, kernel, dtype, layout, sources
        As there; the layout is packed.
    reach : float
        The squared distance beyond which kernel values count as 0.

    Notes
    -----
    A row of K takes as many kernel values as there are columns near it, in stretches, and no memory.
    """

    def __init__(self, X: Rows, kernel: Kernel, dtype: Any, layout: Layout, sources: Rows, reach: float) -> None:
        self.reach, self._order = reach, spatial_order(X)
        self._block, self._there = np.zeros((0, 0), dtype), np.zeros((0, 0), np.bool_)
        super().__init__(X, kernel, dtype, 0, layout, sources)

    @classmethod
    def pays(cls, X: Rows, kernel: Kernel, layout: Layout, reach: float, sample: Rows) -> bool:
        """Whether rows like the sample are so far from most rows of `X` that reading theirs again costs more."""
        if is_sparse(X) or not (layout.packed and np.isfinite(reach)):
            return False
        if not len(X):
            return True
        some = sample[:: max(1, len(sample) // _SAMPLE)]
        columns = NearPanels(X, layout.dtype, layout.shift, spatial_order(X))
        return columns.near(layout.rows(some), reach) < _NEAR

    def _turn_to(self, rows: Index) -> None:
        self.active = rows
        place = np.full(self.n, -1)
        place[rows] = np.arange(len(rows))
        self._place = place[self._order]
        self._place = self._place[self._place >= 0]
        self._near = NearPanels(self.X, self.layout.dtype, self.layout.shift, rows[self._place])

    def _subtract(self, rows: Index, change: Vector, v: Vector, keep: NDArray[np.bool_]) -> None:
        total = np.zeros(len(v))
        values = self._near.add(self.kernel, self.layout.rows(self.sources, rows), self.reach, change, total)
        v[self._place] -= total
        self.rows_computed += len(rows)
        self.values_computed += values

    def arranged(self, rows: Index) -> Index:
        """See :meth:`KernelRows.arranged`."""
        return spatial_order(self.sources[rows], _BOX)

    def square(self, rows: Index) -> NDArray[Any]:
        """See :meth:`KernelRows.square`; what vanishes is not computed."""
        size = padded(len(rows))
        if len(self._block) != size:
            self._block, self._there = np.zeros((size, size), self.dtype), np.zeros((size, -(-size // _BOX)), np.bool_)
        A = self.layout.rows(self.sources, rows)
        side = NearPanels(self.sources, self.layout.dtype, self.layout.shift, rows, _BOX)
        self.values_computed += side.fill(self.kernel, A, self.reach, self._block, self._there)
        return self._block

    def product(self, X: Rows, rows: Index, change: Vector, columns: Index, exact: bool = False) -> Vector:
        """See :meth:`KernelRows.product`."""
        layout = replace(self.layout, dtype=np.dtype(np.float64)) if exact else self.layout
        rank = np.empty(self.n, np.int64)
        rank[self._order] = np.arange(self.n)
        order, sums = np.argsort(rank[columns]), np.zeros(len(columns))
        for first, last in blocks(len(columns), _COLUMNS):
            some = order[first:last]
            side, total = NearPanels(self.X, layout.dtype, layout.shift, columns[some]), np.zeros(len(some))
            for lo, hi in blocks(len(rows), _SOME):
                A = layout.rows(X, rows[lo:hi])
                side.add(self.kernel, A, self.reach, change[lo:hi], total)
            sums[some] = total
        return sums


def near_round_size(n: int, cache_bytes: int) -> int:
    """Rows of a round: more than where all kernel values of a working set are computed, if there is memory."""
    return max(2048, min(n // 12, 8192, int((cache_bytes // 16) ** 0.5)) // 2 * 2)
