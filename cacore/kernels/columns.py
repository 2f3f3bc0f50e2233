"""Which way kernel values of a set of rows are computed: in panels, in panels and lists, or by matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cacore.data.rows import Rows, largest_size, largest_usable
from cacore.kernels import Kernel, Points
from cacore.kernels.panels import Panels, nonzeros
from cacore.kernels.sums import NONZEROS, PRODUCTS, WHOLE
from cacore.kernels.wide import Arranged, Features, Wide
from cacore.machine import threads
from cacore.machine.threads import blocks, for_blocks

# Measured: a matrix product does better than panels once 6 features in 10 are nonzero and a panel of all of them
# leaves the first cache.
_DENSE, _FEW = 0.6, 64
_SPARSE = 0.5  # up to so many, an l1 distance is cheaper by the nonzeros, which cost two operations more each
WIDEST = 4096  # features of a panel that still lies in the second cache
_CUT = 1024  # columns of one matrix product
_SAMPLE = 1000
# At 8 (ijcnn1) single precision changes the dual objective by 5e-8, at 128 (covtype, gamma = 32) by 1e-6.
_FAR = 32.0
# Where the Laplacian's derivative is taken, in mean |x|^2, and what it counts for. At a reach of 20 (ijcnn1, gamma = 4)
# single precision leaves violations as they are, at 44 (covtype, gamma = 8) C = 10 times its rounding is twice `tol`.
_NEAR, _RARE = 1e-3, 0.3
_SELF = 1e9  # where a product's rounding shows in K(x, x): in panels a row is at distance 0 from itself


class Blocks:
    """Rows as columns of kernel values, block by block, by matrix products; used as :class:`Panels` is."""

    def __init__(self, points: Points) -> None:
        self.points, self.n = points, len(points)

    def tasks(self, count: int) -> list[tuple[int, int]]:
        """At most `count` ranges of columns, cut where any number of tasks would be: same products, same bits."""
        return blocks(self.n, max(1, -(-self.n // (count * _CUT))) * _CUT)

    def add(
        self, kernel: Kernel, A: Points, lo: int, hi: int, coefficients: NDArray[np.float64] | None = None,
        total: NDArray[np.float64] | None = None, store: NDArray[Any] | None = None,
        places: NDArray[np.int64] | None = None,
    ) -> None:  # fmt: skip
        """As :meth:`Panels.add`."""
        for first, last in ((lo + a, lo + b) for a, b in blocks(hi - lo, _CUT)):
            B = self.points[first:last]
            for i, end in blocks(len(A), 256):
                K = kernel.block(A[i:end], B)
                if coefficients is not None and total is not None:
                    kept = K if store is None else K.astype(store.dtype)
                    total[first:last] += coefficients[i:end] @ kept.astype(np.float64)
                if store is not None:
                    at = np.arange(i, end) if places is None else places[i:end]
                    store[at[at >= 0], first:last] = K[at >= 0]


Columns = Panels | Wide | Blocks


@dataclass(frozen=True)
class Layout:
    """How rows lie in memory for their kernel values; the same for both sides.

    Attributes
    ----------
    dtype : dtype
        Of the kernel values.
    shift : ndarray, shape (d,), or None
        Subtracted from dense rows that lie far from the origin, of kernels of a distance.
    packed : bool
    nonzeros : float
        Numbers of a row that take part in a sum, on average.
    measure : {PRODUCTS, WHOLE, NONZEROS}
        What is added up in panels, see :func:`cacore.kernels.sums.meet`.
    features : Features, optional
        Of sparse rows that are too wide for panels of all their features.
    """

    dtype: Any
    shift: NDArray[np.float64] | None
    packed: bool
    nonzeros: float = 0.0
    measure: int = PRODUCTS
    features: Features | None = None

    @classmethod
    def of(cls, X: Rows, kernel: Kernel, dtype: Any, largest: float | None = None) -> Layout:
        """The layout that suits `X`, shape (n, d), by a sample of its rows, and the largest |x| of all of them.

        Single precision is widened where the rounding of distances would show in the kernel values, and where squares
        overflow or vanish. `largest` is given where `X` is itself a sample.
        """
        n, d = X.shape
        sample = X[:: max(1, n // _SAMPLE)]
        if (largest_size(X) if largest is None else largest) > largest_usable(dtype) or not kernel.fits(dtype):
            dtype = np.dtype(np.float64)
        if not kernel.compiled:
            return cls(np.dtype(np.float64), None, False, float(d))
        if sp.issparse(X):
            measure = kernel.measure(nonzeros=True)
            wide = _reach(kernel, Points(sample), measure) > _FAR
            features = Features.of(X, every=largest is not None) if d > WIDEST else None
            met = features.met if features else X.nnz / max(1, n)
            return cls(np.dtype(np.float64 if wide else dtype), None, not features, met, measure, features)
        shift, nonzero = None, np.count_nonzero(sample) / max(1, sample.size)
        measure = kernel.measure(nonzero < _SPARSE)
        if kernel.shifts and n:
            mean, about = sample.mean(axis=0, dtype=np.float64), sample.std(axis=0, dtype=np.float64)
            # Rounding in distances grows with the distance from the origin; a shift costs the zeros.
            if mean @ mean > 4.0 * (about @ about):
                shift, nonzero = mean, 1.0
        reach = _reach(kernel, Points(sample, shift), measure)
        packed = bool(d <= _FEW or (d <= WIDEST and (measure != PRODUCTS or nonzero < _DENSE or reach > _SELF)))
        met = nonzero if packed and measure in (PRODUCTS, NONZEROS) else 1.0
        return cls(np.dtype(np.float64 if reach > _FAR else dtype), shift, packed, float(d * met), measure)

    def width(self, X: Rows) -> int:
        """Numbers that a row of `X` takes as a column, at most; of wide CSR rows, without what is listed."""
        return int(X.shape[1]) if self.features is None or not sp.issparse(X) else max(1, self.features.packed)

    @property
    def price(self) -> float:
        """What a kernel value costs, in units of reading one again."""
        return (3.0 + self.nonzeros / 4) * int(np.dtype(self.dtype).itemsize) / 4

    def columns(self, X: Rows, rows: NDArray[np.int64] | None = None) -> Columns:
        """`X`, or these rows of it, as columns; memory: :meth:`nbytes`."""
        if self.features is not None:
            return Wide(X, self.features, self.dtype, rows, self.measure)
        return Panels(X, self.dtype, self.shift, rows, self.measure) if self.packed else Blocks(self._points(X, rows))

    def rows(self, X: Rows, rows: NDArray[np.int64] | None = None) -> Any:
        """`X`, or these rows of it, as rows to meet the columns."""
        if self.features is not None:
            return Arranged.of(X, self.features, self.dtype, rows, self.measure)
        return nonzeros(X, self.dtype, self.shift, rows, self.measure) if self.packed else self._points(X, rows)

    def nbytes(self, X: Rows) -> int:
        """Bytes that :meth:`columns` needs."""
        size = X.nnz * 2 if sp.issparse(X) and not self.packed else X.shape[0] * X.shape[1]
        if self.features is not None:
            size += X.shape[0] * self.features.packed + 2 * X.nnz + 2 * self.features.listed
        return int(size * np.dtype(self.dtype).itemsize)

    def _points(self, X: Rows, rows: NDArray[np.int64] | None) -> Points:
        X = X if rows is None else X[rows]
        if sp.issparse(X) or self.shift is None:
            return Points(X.astype(self.dtype))
        return Points((X - self.shift).astype(self.dtype))


def weighted(
    kernel: Kernel, layout: Layout, A: Rows, rows: NDArray[np.int64], change: NDArray[np.float64], X: Rows,
    columns: NDArray[np.int64],
) -> NDArray[np.float64]:  # fmt: skip
    """``change @ K(A[rows], X[columns])`` without ever holding K, on all threads.

    Parameters
    ----------
    kernel : Kernel
    layout : Layout
        Of both sides.
    A, X : ndarray or CSR, shape (m, d), (n, d)
    rows, columns : ndarray of int64
        Which of their rows.
    change : ndarray of float64, shape (len(rows),)

    Returns
    -------
    ndarray of float64, shape (len(columns),)

    Notes
    -----
    2 nnz(A[rows]) len(columns) flops; 8,192 columns and 2,048 rows are held at a time.
    """
    total = np.zeros(len(columns))
    for first, last in blocks(len(columns), 8192):
        side = layout.columns(X, columns[first:last])
        for lo, hi in blocks(len(rows), 2048):
            some = layout.rows(A, rows[lo:hi])
            add = partial(side.add, kernel, some, coefficients=change[lo:hi], total=total[first:last])
            for_blocks(add, side.tasks(2 * threads.current()))
    return total


def _reach(kernel: Kernel, sample: Points, measure: int) -> float:
    """The kernel's derivative, which magnifies the rounding of distances, times what is rounded; 0 where there is none.

    That is |x|^2, or |x|_1 where l1 distances are differences of norms. The derivative is that at 0; of the Laplacian,
    whose derivative grows without bound towards 0, that at a short distance, which few rows have.
    """
    if not (kernel.of_distance and len(sample)) or measure == WHOLE:
        return 0.0
    with np.errstate(all="ignore"):  # it may be infinite
        sizes = abs(sample.X).sum(axis=1) if measure == NONZEROS else sample.squares
        size = float(np.mean(sizes))
        slopes = np.abs(kernel.derivative(np.array([0.0, _NEAR * size])))
        return float(max(slopes[0], _RARE * slopes[1])) * size
