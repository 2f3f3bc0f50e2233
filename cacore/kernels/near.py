"""Sums of kernel values over pairs of near rows, for kernels of a distance that vanish between all other pairs.

The columns are ordered so that neighbours follow each other. Each stretch of columns has a bounding box: the minimum
and maximum of every feature. A row farther from the box than the kernel's cutoff radius skips all of its columns. On
covtype with gamma = 32 this leaves 1 pair of rows in 14, since rows with different soil types (44 of them) have kernel
values that are 0 in floating point.

The distance is Euclidean; for a product over the features it is the largest difference in a feature, since the product
is at most any of its factors.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.arrays import Doubles, Flags, Integers, Ints, Longs, Reals
from cacore.data.rows import Rows, dense
from cacore.kernels.evaluate import FACTORS, PRODUCTS, Parameters
from cacore.kernels.panels import Panels, accumulate
from cacore.kernels.values import Kernel, Nonzeros, Points
from cacore.machine import threads
from cacore.machine.threads import for_blocks

STRETCH = 512  # columns per box: whole panels of either dtype (PANEL_BYTES of cacore/compiled/vectors.py)
_SAFE = 1.0001  # factor of the squared cutoff: covers the rounding of distances
_DEPTH = 48  # of the tree: limits the halving of ever smaller clusters
_GRID = 4096  # distances at which a kernel is evaluated


def squared_cutoff(kernel: Kernel, largest: float, floor: float) -> float:
    """The squared distance, up to `largest`, beyond which kernel values are at most `floor`, or infinity."""
    far = kernel.compiled and kernel.of_distance and kernel.measure() in (PRODUCTS, FACTORS)
    if not (far and 0 < largest < np.inf):
        return np.inf
    squares = largest * np.geomspace(1e-16, 1.0, _GRID)
    values = kernel.block(Points(np.zeros((1, 1))), Points(np.sqrt(squares)[:, None]))[0]
    seen = np.flatnonzero(~(np.abs(values) <= floor))
    at = int(seen[-1]) + 1 if seen.size else 0
    return float(squares[at]) * _SAFE if at < _GRID else np.inf


def spatial_order(X: Rows, leaf: int = STRETCH) -> NDArray[np.int64]:
    """An order of the rows of `X`, shape (n, d), in which neighbours follow each other.

    Parameters
    ----------
    X : ndarray or CSR
        Not changed. CSR rows are converted to dense ones.
    leaf : int
        Parts of at most this many rows are not halved further; their own order does not matter.

    Returns
    -------
    ndarray of int64, shape (n,)

    Notes
    -----
    About n d log2(n / leaf) operations. Each part is halved at the mean of its feature with the largest variance.
    """
    return spatial_groups(X, leaf)[0]


def spatial_groups(X: Rows, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """:func:`spatial_order`, and groups of at most `size` consecutive rows, none of which spans two distant leaves.

    Parameters
    ----------
    X : ndarray or CSR, shape (n, d)
        Not changed.
    size : int

    Returns
    -------
    order : ndarray of int64, shape (n,)
    ends : ndarray of int64, shape (groups + 1,)
        Group g holds the rows order[ends[g]:ends[g + 1]]. The groups are the leaves, of which small ones that follow
        each other are joined, and leaves of rows that differ too little are cut up.

    Notes
    -----
    Stretches of equal length would do without `ends`, but some contain the end of one half and the beginning of the
    other: their boxes are as wide as both halves.
    """
    order, leaves = np.arange(X.shape[0]), np.zeros(X.shape[0] + 1, np.bool_)
    _halve(np.ascontiguousarray(dense(X)), order, size, leaves)
    return order, _joined(leaves, size)


class NearPanels:
    """Dense rows packed as columns of kernel values; each stretch of columns meets only the rows near it.

    Parameters
    ----------
    X : ndarray, shape (n, d)
        Not changed.
    dtype, shift
        As for :class:`Panels`.
    rows : ndarray of int64, shape (m,)
        Row numbers of `X`, ordered so that neighbours follow each other.
    size : int
        Columns per box, a multiple of the panel width.
    measure : {PRODUCTS, FACTORS}
        That of the kernel.

    Attributes
    ----------
    n, size : int

    Notes
    -----
    Memory: m d numbers, and 2 m d / size for the boxes.
    """

    def __init__(
        self, X: NDArray[np.floating], dtype: DTypeLike, shift: NDArray[np.floating] | None, rows: NDArray[np.int64],
        size: int = STRETCH, measure: int = PRODUCTS,
    ) -> None:  # fmt: skip
        self.n, self.size = len(rows), size
        self._panels = Panels(X, dtype, shift, rows, measure)
        count = -(-self.n // size)
        self._low, self._high = np.empty((count, X.shape[1]), dtype), np.empty((count, X.shape[1]), dtype)
        for box in range(count):
            box_rows = X[rows[box * size : (box + 1) * size]]
            # The extremes of the packed values: rounding is monotone.
            ends = np.array([box_rows.min(axis=0), box_rows.max(axis=0)])
            self._low[box], self._high[box] = ends if shift is None else ends - shift

    def tasks(self, count: int) -> list[tuple[int, int]]:
        """At most `count` ranges of columns, each of whole stretches except the last."""
        step = max(1, -(-len(self._low) // count)) * self.size
        return [(lo, min(lo + step, self.n)) for lo in range(0, self.n, step)]

    def add(
        self, kernel: Kernel, A: Nonzeros, cutoff: float, coefficients: NDArray[np.float64], total: NDArray[np.float64]
    ) -> int:
        """``total += coefficients @ K(A, columns)``, without pairs beyond the squared cutoff distance.

        Parameters
        ----------
        kernel : Kernel
            A function of the squared distance, or a product over the features.
        A : Nonzeros
            From :func:`cacore.kernels.panels.nonzeros`, with this dtype, shift and measure.
        cutoff : float
            Squared distance, from :func:`squared_cutoff`.
        coefficients : ndarray of float64, shape (len(A),)
        total : ndarray of float64, shape (n,)

        Returns
        -------
        int
            Number of kernel values computed.
        """
        panels, counts = self._panels, []
        parameters = kernel.parameters(panels.data.dtype, panels.measure)

        def work(lo: int, hi: int) -> None:
            counts.append(_add_near(
                panels.data, panels.norms, A.X.data, A.X.indices, A.X.indptr, A.squares, parameters, lo, hi,
                coefficients, total, self._low, self._high, self.size, cutoff,
            ))  # fmt: skip

        for_blocks(work, self.tasks(4 * threads.current()))
        return sum(counts)

    def near(self, A: Nonzeros, cutoff: float) -> float:
        """The share of (row, column) pairs that :meth:`add` computes."""
        measure = self._panels.measure
        count = _count_near(
            A.X.data, A.X.indices, A.X.indptr, self.n, self._low, self._high, self.size, cutoff, measure
        )  # fmt: skip
        return float(count) / max(1, len(A) * self.n)


@numba.njit(cache=True, nogil=True)
def _halve(X: Reals, order: Longs, leaf: int, ends: Flags) -> None:  # pragma: no cover - compiled
    """Sort `order`, int64, shape (n,), as :func:`spatial_order` describes; `X` is an array of shape (n, d).

    `ends`, bool, shape (n + 1,), becomes True where a leaf ends.
    """
    n, d = X.shape
    parts = [(0, n, 0)]
    upper_half = np.empty_like(order)
    sums, squares = np.empty(d), np.empty(d)
    while len(parts):
        lo, hi, depth = parts.pop()
        ends[hi] = True
        if hi - lo <= leaf or depth >= _DEPTH:
            continue
        sums[:] = 0
        squares[:] = 0
        origin = X[order[lo]]
        for k in range(lo, hi):
            row = X[order[k]]
            for c in range(d):
                x = np.float64(row[c]) - np.float64(origin[c])
                sums[c] += x
                squares[c] += x * x
        widest, largest = 0, 0.0
        for c in range(d):
            spread = squares[c] - sums[c] * sums[c] / (hi - lo)
            if spread > largest:
                widest, largest = c, spread
        cut = sums[widest] / (hi - lo)
        below, above = lo, 0
        for k in range(lo, hi):
            if np.float64(X[order[k], widest]) - np.float64(origin[widest]) <= cut:
                order[below] = order[k]
                below += 1
            else:
                upper_half[above] = order[k]
                above += 1
        order[below:hi] = upper_half[:above]
        if lo < below < hi:
            parts.append((lo, below, depth + 1))
            parts.append((below, hi, depth + 1))


@numba.njit(cache=True, nogil=True)
def _joined(ends: Flags, size: int) -> Longs:  # pragma: no cover - compiled
    """Borders of groups of at most `size` rows, from the `ends` of leaves of :func:`_halve`."""
    borders, n = [0], ends.size - 1
    while borders[-1] < n:
        lo, end = borders[-1], 0
        for k in range(lo + 1, min(lo + size, n) + 1):
            if ends[k]:
                end = k
        borders.append(end if end else min(lo + size, n))
    return np.array(borders)


@numba.njit(inline="always")
def _outside(x: float, low: float, high: float) -> float:  # pragma: no cover - compiled
    """The squared distance of x from the interval [low, high]."""
    gap = max(low - x, x - high, 0 * x)
    return gap * gap


@numba.njit(inline="always")
def _from_box(
    values: Reals, columns: Ints, first: int, last: int, low: Reals, high: Reals, zero: float, measure: int
) -> float:  # pragma: no cover - compiled
    """The squared distance of a CSR row from a box; `zero` is that of the origin. FACTORS: the row has its zeros."""
    square = zero
    if measure == FACTORS:
        square = 0 * zero
        for q in range(first, last):
            square = max(square, _outside(values[q], low[columns[q]], high[columns[q]]))
        return square
    for q in range(first, last):
        lowest, highest = low[columns[q]], high[columns[q]]
        square += _outside(values[q], lowest, highest) - _outside(0 * values[q], lowest, highest)
    return square


@numba.njit(inline="always")
def _of_origin(low: Reals, high: Reals) -> float:  # pragma: no cover - compiled
    """The squared distance of the origin from a box."""
    square = 0 * low[0]
    for c in range(low.size):
        square += _outside(0 * low[c], low[c], high[c])
    return square


@numba.njit(cache=True, nogil=True)
def _meet(
    values: Reals, columns: Ints, starts: Integers, a: Reals, low: Reals, high: Reals, cutoff: float,
    near_values: Reals, where: Ints, ends: Integers, squares: Reals, who: Longs, measure: int,
) -> int:  # fmt: skip  # pragma: no cover - compiled
    """Copy the rows that are near a box, and return how many there are.

    Parameters
    ----------
    values, columns, starts, a
        Rows, as for :func:`cacore.kernels.panels.accumulate`.
    low, high : arrays of the type of `values`, shape (d,)
    cutoff : float64
        Squared distance.
    some, where, ends, squares
        Receive the near rows, in the same form.
    who : array of int64, shape (rows,)
        Receives their row numbers.
    measure : int
    """
    zero, m = _of_origin(low, high), 0
    for i in range(a.size):
        first, last = starts[i], starts[i + 1]
        if not _from_box(values, columns, first, last, low, high, zero, measure) > cutoff:
            begin = ends[m]
            for q in range(last - first):
                near_values[begin + q], where[begin + q] = values[first + q], columns[first + q]
            ends[m + 1], squares[m], who[m] = begin + last - first, a[i], i
            m += 1
    return m


@numba.njit(cache=True, nogil=True)
def _add_near(
    data: Reals, b: Reals, values: Reals, columns: Ints, starts: Integers, a: Reals, kernel: Parameters, lo: int,
    hi: int, coefficients: Doubles, total: Doubles, low: Reals, high: Reals, size: int, cutoff: float,
) -> int:  # fmt: skip  # pragma: no cover - compiled
    """Perform :meth:`NearPanels.add` for some boxes, and return the number of kernel values computed.

    Parameters
    ----------
    data, b, values, columns, starts, a, kernel, lo, hi, coefficients, total
        As for :func:`cacore.kernels.panels.accumulate`.
    low, high : arrays of the type of `values`, shape (boxes, d)
    size : int
        Columns per box.
    cutoff : float64
    """
    near_values, where, ends, squares = (
        np.empty_like(values),
        np.empty_like(columns),
        np.zeros_like(starts),
        np.empty_like(a),
    )
    who, weights = np.empty(a.size, np.int64), np.empty_like(coefficients)
    store, places, computed = np.empty((0, 0), data.dtype), np.empty(0, np.int64), 0
    for at in range(lo, hi, size):
        box, end = at // size, min(at + size, hi)
        m = _meet(
            values, columns, starts, a, low[box], high[box], cutoff, near_values, where, ends, squares, who, kernel[4]
        )  # fmt: skip
        for i in range(m):
            weights[i] = coefficients[who[i]]
        if m:
            accumulate(
                data, b, near_values, where, ends, squares[:m], kernel, at, end, weights[:m], total, store, places
            )  # fmt: skip
        computed += m * (end - at)
    return computed


@numba.njit(cache=True, nogil=True)
def _count_near(
    values: Reals, columns: Ints, starts: Integers, n: int, low: Reals, high: Reals, size: int, cutoff: float,
    measure: int,
) -> int:  # fmt: skip  # pragma: no cover - compiled
    """Number of pairs that :func:`_add_near` computes, for the same arrays and n columns."""
    count = 0
    for box in range(len(low)):
        zero, wide = _of_origin(low[box], high[box]), min(size, n - box * size)
        for i in range(starts.size - 1):
            if not _from_box(values, columns, starts[i], starts[i + 1], low[box], high[box], zero, measure) > cutoff:
                count += wide
    return count
