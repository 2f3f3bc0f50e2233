"""Choice of a memory layout for kernel values: panels, panels with lists for wide sparse rows, or matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.data.rows import Rows, dense, is_sparse, largest_size, largest_usable, shifted
from cacore.kernels import Kernel, Points
from cacore.kernels.evaluate import FACTORS, NONZEROS, PRODUCTS
from cacore.kernels.panels import Panels, add_rows, nonzeros, put_rows
from cacore.kernels.precision import WIDEST, Accuracy, Extent, cheapest, sampled, shift_of
from cacore.kernels.wide import Arranged, Features, Wide
from cacore.machine import threads
from cacore.machine.threads import blocks, for_blocks

# Measured: a matrix product is faster than panels if more than 60 % of the features are nonzero and a panel does not
# fit in the L1 cache (more than 64 features).
_DENSE, _FEW = 0.6, 64
_SPARSE = 0.5  # largest share of nonzeros for which l1 distances over nonzeros alone are cheaper (2 more flops each)
# Largest error of a kernel value, by the bytes of its type, where nobody asks for less: 126 and 4.5e7 roundings.
_ALLOWED = {4: 1.5e-5, 8: 1e-8}
_CUT = 1024  # columns of one matrix product, whose result is turned into kernel values while it is in cache


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
        Vector subtracted from all rows, if they lie far from the origin (kernels of a distance only); see
        :func:`cacore.kernels.precision.shift_of`.
    packed : bool
        True for panels, False for matrix products.
    nonzeros : float
        Mean number of terms per row in a sum over features.
    measure : {PRODUCTS, NONZEROS, WHOLE, FACTORS, DIFFERENCES}
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
    def of(
        cls, X: Rows, kernel: Kernel, dtype: DTypeLike, largest: float | None = None,
        accuracy: Accuracy | None = None, extent: Extent | None = None,
    ) -> Layout:  # fmt: skip
        """The cheapest layout for `X`, shape (n, d), in which kernel values are accurate enough at all distances.

        Parameters
        ----------
        X : ndarray or CSR
            Rows, or a sample of them.
        kernel : Kernel
        dtype : dtype
            Precision of the values that are wanted; sums over the features may need a higher one.
        largest : float, optional
            If `X` is a sample: the largest |x_k| of all rows.
        accuracy : Accuracy, optional
            Of the kernel values; by default errors of 1.5e-5 in single and 1e-8 in double precision.
        extent : Extent, optional
            If `X` is a sample: the extent of all rows about ``shift_of(X, kernel)``.

        Raises
        ------
        InputError
            The error is refused in every layout.
        """
        n, d = X.shape
        if np.dtype(dtype) != np.float64:
            size = largest_size(X) if largest is None else largest
            dtype = dtype if size <= largest_usable(dtype) and kernel.fits(dtype) else np.float64
        if not kernel.compiled:
            return cls(np.dtype(np.float64), None, False, float(d))
        sample = sampled(X)
        shift = shift_of(sample, kernel)
        features = None
        if is_sparse(X):
            features = Features.of(X, all_features=largest is not None) if d > WIDEST and not kernel.separable else None
            met = features.met if features else d if kernel.separable else X.nnz / max(1, n)
            nonzero = met / max(1, d)
        else:
            filled = np.count_nonzero(dense(sample)) / max(1, n and sample.shape[0] * d)
            nonzero = float(filled) if shift is None else 1.0
            met = d * nonzero
        base = kernel.measure(is_sparse(X) or nonzero < _SPARSE)
        accuracy = accuracy or Accuracy(_ALLOWED[np.dtype(dtype).itemsize])
        extent = Extent.of(X, shift) if extent is None else extent
        gaps = features is None and d <= WIDEST
        dtype, measure = cheapest([kernel], extent, dtype, base, met, gaps, accuracy)
        by_panels = is_sparse(X) or d <= _FEW or measure != PRODUCTS or nonzero < _DENSE
        met = met if measure in (PRODUCTS, NONZEROS) and (is_sparse(X) or (by_panels and d <= WIDEST)) else float(d)
        return cls(dtype, shift, by_panels and d <= WIDEST, met, measure, features)

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
            return Wide(*self._sparse(X, rows), self.measure)
        return Panels(X, self.dtype, self.shift, rows, self.measure) if self.packed else Blocks(self._points(X, rows))

    def rows(self, X: Rows, rows: NDArray[np.int64] | None = None) -> Any:
        """`X`, or the given rows of it, in the form that :meth:`Panels.add` takes for `A`."""
        if self.features is not None:
            return Arranged.of(*self._sparse(X, rows), self.measure)
        return nonzeros(X, self.dtype, self.shift, rows, self.measure) if self.packed else self._points(X, rows)

    def nbytes(self, X: Rows) -> int:
        """Bytes allocated by :meth:`columns`."""
        cells = X.shape[0] * X.shape[1]
        entries = X.nnz if is_sparse(X) else cells
        size = 2 * entries if is_sparse(X) and not self.packed and self.shift is None else cells
        if self.features is not None:
            size += X.shape[0] * self.features.packed + 2 * entries + 2 * self.features.listed
        return int(size * np.dtype(self.dtype).itemsize)

    def _sparse(
        self, X: Rows, rows: NDArray[np.int64] | None
    ) -> tuple[Rows, Features, np.dtype[Any], NDArray[np.int64] | None]:
        """Arguments for rows of many features: with a shift, the shifted rows themselves."""
        assert self.features is not None
        if self.shift is None:
            return X, self.features, self.dtype, rows
        return shifted(X if rows is None else X[rows], self.shift), self.features, self.dtype, None

    def _points(self, X: Rows, rows: NDArray[np.int64] | None) -> Points:
        return Points(shifted(X if rows is None else X[rows], self.shift).astype(self.dtype, copy=False))


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
            block = layout.rows(A, rows[lo:hi])
            add = partial(side.add, kernel, block, coefficients=change[lo:hi], total=total[first:last])
            for_blocks(add, side.tasks(2 * threads.current()))
    return total
