"""Choice of a memory layout for kernel values: panels, panels with lists for wide sparse rows, or matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.data.rows import Rows, dense, is_sparse, largest_size, largest_usable
from cacore.kernels import Kernel, Points
from cacore.kernels.evaluate import FACTORS, NONZEROS, PRODUCTS, with_zeros
from cacore.kernels.panels import Panels, add_rows, nonzeros, put_rows
from cacore.kernels.wide import Arranged, Features, Wide
from cacore.machine import threads
from cacore.machine.threads import blocks, for_blocks

# Measured: a matrix product is faster than panels if more than 60 % of the features are nonzero and a panel does not
# fit in the L1 cache (more than 64 features).
_DENSE, _FEW = 0.6, 64
_SPARSE = 0.5  # largest share of nonzeros for which l1 distances over nonzeros alone are cheaper (2 more flops each)
WIDEST = 4096  # features of a panel that still fits in the L2 cache
_CUT = 1024  # columns of one matrix product
_SAMPLE = 1000
# Largest rounding gain (:func:`_reach`) for single precision. A gain of 8 (ijcnn1) changes the dual objective by 5e-8,
# a gain of 128 (covtype, gamma = 32) by 1e-6.
_FAR = 32.0
# The Laplacian's derivative is taken at _NEAR times the mean |x|^2, and weighted by _RARE. With a gain of 20 (ijcnn1,
# gamma = 4) single precision does not change the violations; with 44 (covtype, gamma = 8, C = 10) C times the rounding
# is twice `tol`.
_NEAR, _RARE = 1e-3, 0.3
_SELF = 1e9  # gain at which a product's rounding shows in K(x, x); in panels a row is at distance 0 from itself


class Blocks:
    """Rows as columns of kernel values, computed by matrix products of blocks; same interface as :class:`Panels`."""

    def __init__(self, points: Points) -> None:
        self.points, self.n = points, len(points)

    def tasks(self, count: int) -> list[tuple[int, int]]:
        """At most `count` ranges of columns, cut at multiples of 1,024, so that results do not depend on `count`."""
        return blocks(self.n, max(1, -(-self.n // (count * _CUT))) * _CUT)

    def add(
        self, kernel: Kernel, A: Points, lo: int, hi: int, coefficients: NDArray[np.float64] | None = None,
        total: NDArray[np.float64] | None = None, store: NDArray[np.floating] | None = None,
        places: NDArray[np.int64] | None = None,
    ) -> None:  # fmt: skip
        """See :meth:`Panels.add`."""
        for first, last in ((lo + a, lo + b) for a, b in blocks(hi - lo, _CUT)):
            B = self.points[first:last]
            for i, end in blocks(len(A), 256):
                if total is None and store is not None and places is None and store.dtype == A.X.dtype:
                    kernel.block(A[i:end], B, store[i:end, first:last])
                    continue
                K = kernel.block(A[i:end], B)
                K = K if store is None else K.astype(store.dtype, copy=False)
                if coefficients is not None and total is not None:
                    add_rows(K, np.arange(end - i), coefficients[i:end], total[first:last], 0, last - first)
                if store is not None:
                    at = np.arange(i, end) if places is None else places[i:end]
                    put_rows(K, at, store, first)


Columns = Panels | Wide | Blocks


@dataclass(frozen=True)
class Layout:
    """Memory layout of rows for computing their kernel values; both sides of a product use the same one.

    Attributes
    ----------
    dtype : dtype
        Type of the kernel values.
    shift : ndarray, shape (d,), or None
        Vector subtracted from all rows, if the dense ones that the layout is for lie far from the origin (kernels of a
        distance only).
    packed : bool
        True for panels, False for matrix products.
    nonzeros : float
        Mean number of terms per row in a sum over features.
    measure : {PRODUCTS, NONZEROS, WHOLE, FACTORS}
        Terms that panels add up, see :func:`cacore.kernels.sums.meet`.
    features : Features, optional
        Numbering of the features of sparse rows that are too wide for panels of all features.
    """

    dtype: np.dtype[Any]
    shift: NDArray[np.float64] | None
    packed: bool
    nonzeros: float = 0.0
    measure: int = PRODUCTS
    features: Features | None = None

    @classmethod
    def of(cls, X: Rows, kernel: Kernel, dtype: DTypeLike, largest: float | None = None) -> Layout:
        """Layout for `X`, shape (n, d), chosen from a sample of its rows and the largest |x| over all rows.

        Single precision is widened to double if the rounding of distances would show in the kernel values, or if
        squares overflow or underflow. If `X` is itself a sample, `largest` is the largest |x| of all rows.
        """
        n, d = X.shape
        some = slice(None, None, max(1, n // _SAMPLE))
        if np.dtype(dtype) != np.float64:
            size = largest_size(X) if largest is None else largest
            dtype = dtype if size <= largest_usable(dtype) and kernel.fits(dtype) else np.float64
        if not kernel.compiled:
            return cls(np.dtype(np.float64), None, False, float(d))
        if is_sparse(X):
            measure = kernel.measure(nonzeros=True)
            if kernel.separable:
                return cls(np.dtype(dtype), None, d <= WIDEST, float(d), measure)
            wide = _reach(kernel, Points(X[some]), measure) > _FAR
            features = Features.of(X, every=largest is not None) if d > WIDEST else None
            met = features.met if features else X.nnz / max(1, n)
            return cls(np.dtype(np.float64 if wide else dtype), None, not features, met, measure, features)
        sample, shift = X[some], None
        nonzero = float(np.count_nonzero(sample) / max(1, sample.size))
        measure = kernel.measure(nonzero < _SPARSE)
        if kernel.shifts and n:
            mean = sample.mean(axis=0, dtype=np.float64)
            about = (sample - mean).ravel()
            # Distances lose digits far from the origin; a shift prevents this, but makes zeros nonzero.
            if mean @ mean * len(sample) > 4.0 * (about @ about):
                shift, nonzero = mean, 1.0
        # Panels of few features in double precision are right however large the gain is.
        reach = 0.0 if d <= _FEW and dtype == np.float64 else _reach(kernel, Points(sample, shift), measure)
        packed = bool(d <= _FEW or (d <= WIDEST and (measure != PRODUCTS or nonzero < _DENSE or reach > _SELF)))
        met = nonzero if packed and measure in (PRODUCTS, NONZEROS) else 1.0
        return cls(np.dtype(np.float64 if reach > _FAR else dtype), shift, packed, float(d * met), measure)

    def width(self, X: Rows) -> int:
        """Largest count of numbers stored per column for a row of `X`; for wide CSR rows, without the listed ones."""
        return int(X.shape[1]) if self.features is None or not is_sparse(X) else max(1, self.features.packed)

    @property
    def price(self) -> float:
        """Cost of computing a kernel value, in units of reading a stored one."""
        each = 3.0 if self.measure == FACTORS else 1.0  # measured: 3.5 times an l1 term
        return (3.0 + each * self.nonzeros / 4) * int(np.dtype(self.dtype).itemsize) / 4

    def columns(self, X: Rows, rows: NDArray[np.int64] | None = None) -> Columns:
        """`X`, or the given rows of it, as columns; memory: :meth:`nbytes`."""
        if self.features is not None:
            return Wide(X, self.features, self.dtype, rows, self.measure)
        return Panels(X, self.dtype, self.shift, rows, self.measure) if self.packed else Blocks(self._points(X, rows))

    def rows(self, X: Rows, rows: NDArray[np.int64] | None = None) -> Any:
        """`X`, or the given rows of it, in the form that :meth:`Panels.add` takes for `A`."""
        if self.features is not None:
            return Arranged.of(X, self.features, self.dtype, rows, self.measure)
        return nonzeros(X, self.dtype, self.shift, rows, self.measure) if self.packed else self._points(X, rows)

    def nbytes(self, X: Rows) -> int:
        """Bytes allocated by :meth:`columns`."""
        cells = X.shape[0] * X.shape[1]
        entries = X.nnz if is_sparse(X) else cells
        size = 2 * entries if is_sparse(X) and not self.packed and self.shift is None else cells
        if self.features is not None:
            size += X.shape[0] * self.features.packed + 2 * entries + 2 * self.features.listed
        return int(size * np.dtype(self.dtype).itemsize)

    def _points(self, X: Rows, rows: NDArray[np.int64] | None) -> Points:
        X = X if rows is None else X[rows]
        if self.shift is None:
            return Points(X.astype(self.dtype))
        return Points((dense(X) - self.shift).astype(self.dtype))


def weighted(
    kernel: Kernel, layout: Layout, A: Rows, rows: NDArray[np.int64], change: NDArray[np.float64], X: Rows,
    columns: NDArray[np.int64],
) -> NDArray[np.float64]:  # fmt: skip
    """``change @ K(A[rows], X[columns])`` without storing K, on all threads.

    Parameters
    ----------
    kernel : Kernel
    layout : Layout
        Layout of both `A` and `X`.
    A, X : ndarray or CSR, shape (m, d), (n, d)
    rows, columns : ndarray of int64
        Row numbers in `A` and in `X`.
    change : ndarray of float64, shape (len(rows),)
        Coefficients of ``A[rows]``.

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
    """Rounding gain: the kernel's derivative times the size of the rounded numbers; 0 if rounding does not matter.

    The size is the mean |x|^2, or |x|_1 if l1 distances are differences of norms. The derivative is taken at 0. The
    Laplacian's grows without bound towards 0; it is also taken at a short distance, which few pairs of rows have.
    """
    if not (kernel.of_distance and len(sample)) or with_zeros(measure):
        return 0.0
    with np.errstate(all="ignore"):  # the derivative may be infinite
        if measure != NONZEROS:
            sizes = sample.squares
        elif is_sparse(sample.X):
            sizes = abs(sample.X).sum(axis=1)
        else:
            sizes = np.abs(sample.X).sum(axis=1)
        size = float(np.mean(sizes))
        slopes = np.abs(kernel.derivative(np.array([0.0, _NEAR * size])))
        return float(max(slopes[0], _RARE * slopes[1])) * size
