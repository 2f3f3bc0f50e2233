"""Rows of the kernel matrix for Dis-SMO, computed only where they do not vanish.

Values over the active columns are computed anew each time; a working set's own values are kept while it is solved.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.arrays import Reals
from cacore.data.rows import Rows, dense, is_sparse
from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.kernels.near import STRETCH, NearPanels, spatial_order
from cacore.kernels.sums import width
from cacore.machine.threads import blocks
from cacore.svm.dual import Dual
from casvm.solver.kernel_rows import KernelRows
from casvm.solver.near_pairs import NearPairs
from casvm.solver.near_rows import NearRows
from casvm.solver.pair import Index, Vector

_SAMPLE = 200
# Largest share of near columns at which computing a row of K is faster than reading it from memory: of many columns, of
# few, whose boxes are small.
_NEAR, _NEAR_FINE = 0.25, 0.5
_FINE, _FEW = 128, 5000  # columns per box, a whole panel, of fewer rows than this
_SOME, _COLUMNS = 2048, 1 << 16  # rows and columns per product


class NearColumns(KernelRows):
    """:class:`KernelRows` without a cache, for dense rows and a kernel that vanishes beyond a cutoff radius.

    Parameters
    ----------
    X, kernel, dtype, layout, sources
        See :class:`KernelRows`; the layout is packed.
    cutoff : float
        Squared distance beyond which kernel values count as 0.
    cache_bytes : int
        Memory for a working set's rows of K.

    Notes
    -----
    A row of K costs one kernel value per column of the stretches near it, and no memory.
    """

    def __init__(
        self, X: Reals, kernel: Kernel, dtype: DTypeLike, layout: Layout, sources: Rows, cutoff: float, cache_bytes: int
    ) -> None:  # fmt: skip
        self.cutoff, self.cache_bytes, self._order = cutoff, cache_bytes, spatial_order(X, _stretch(len(X)))
        super().__init__(X, kernel, dtype, 0, layout, sources)

    @classmethod
    def pays(cls, X: Rows, kernel: Kernel, layout: Layout, cutoff: float, sample: Rows) -> bool:
        """True if rows like the sample are near so few rows of `X` that computing K is faster than reading it."""
        if is_sparse(X) or not (layout.packed and np.isfinite(cutoff)):
            return False
        if not len(X):
            return True
        some = sample[:: max(1, sample.shape[0] // _SAMPLE)]
        size = _stretch(len(X))
        columns = NearPanels(X, layout.dtype, layout.shift, spatial_order(X, size), size, layout.measure)
        return columns.near(layout.rows(some), cutoff) < (_NEAR if size == STRETCH else _NEAR_FINE)

    def _turn_to(self, rows: Index) -> None:
        self.active = rows
        place = np.full(self.n, -1)
        place[rows] = np.arange(len(rows))
        self._place = place[self._order]
        self._place = self._place[self._place >= 0]
        self._near = self._packed(self.layout, rows[self._place])

    def _packed(self, layout: Layout, columns: Index) -> NearPanels:
        """These columns, in spatial order."""
        return NearPanels(dense(self.X), layout.dtype, layout.shift, columns, _stretch(len(columns)), layout.measure)

    def _subtract(self, rows: Index, change: Vector, v: Vector, keep: NDArray[np.bool_]) -> None:
        v -= self._sums(rows, change)

    def _sums(self, rows: Index, change: Vector) -> Vector:
        total, sums = np.zeros(len(self.active)), np.empty(len(self.active))
        values = self._near.add(self.kernel, self.layout.rows(self.sources, rows), self.cutoff, change, total)
        sums[self._place] = total
        self.rows_computed += len(rows)
        self.values_computed += values
        return sums

    def sums(self, rows: Index, change: Vector) -> Vector:
        """``change @ K(rows, active)``."""
        total = np.zeros(len(self.active))
        for lo, hi in blocks(len(rows), _SOME):
            total += self._sums(rows[lo:hi], change[lo:hi])
        return total

    def arranged(self, rows: Index, numbers: Index) -> tuple[Index, Index]:
        """The spatial order, see :meth:`KernelRows.arranged`; no values are kept from the last working set."""
        return spatial_order(self.sources[rows], width(self.layout.dtype)), numbers[:0]

    def pairs(self, rows: Index, dual: Dual, v: Vector, beta: Vector, lower: Vector, upper: Vector) -> NearPairs:
        """The problem of a working set in the order of :meth:`arranged`; allocates memory for its rows of K."""
        gram = NearRows(self.sources[rows], self.kernel, self.dtype, self.layout, self.cutoff, self.cache_bytes)
        gram.begin()
        return NearPairs(gram, dual, v, beta, lower, upper)

    def count(self, problem: NearPairs) -> None:
        """Add the kernel values that a working set's problem computed and read."""
        self.values_computed += problem.gram.values_computed
        self.values_read += problem.gram.values_read

    def product(self, X: Rows, rows: Index, change: Vector, columns: Index, exact: bool = False) -> Vector:
        """See :meth:`KernelRows.product`."""
        layout = replace(self.layout, dtype=np.dtype(np.float64)) if exact else self.layout
        rank = np.empty(self.n, np.int64)
        rank[self._order] = np.arange(self.n)
        order, sums = np.argsort(rank[columns]), np.zeros(len(columns))
        for first, last in blocks(len(columns), _COLUMNS):
            some = order[first:last]
            side, total = self._packed(layout, columns[some]), np.zeros(len(some))
            for lo, hi in blocks(len(rows), _SOME):
                A = layout.rows(X, rows[lo:hi])
                side.add(self.kernel, A, self.cutoff, change[lo:hi], total)
            sums[some] = total
        return sums


def _stretch(columns: int) -> int:
    """Columns per box: with few columns, a box of many would be as large as space.

    Of 100,000 rows of covtype on 64 ranks, a row is near 0.19 of a rank's columns in boxes of 128 and 0.56 in boxes of
    512.
    """
    return STRETCH if columns >= _FEW else _FINE


def near_round_size(most: int, row_bytes: int, cache_bytes: int) -> int:
    """Rows per round, at most `most`: if memory allows, more than there will be support vectors.

    With fewer, the support vectors move repeatedly. For 20,000 rows with 10,500 support vectors, rounds of 2,048, 8,192
    and 12,000 rows number 954, 114 and 17; each support vector moves 41, 16 and 7 times.
    """
    return max(2048, min(most, cache_bytes // (8 * row_bytes)))
