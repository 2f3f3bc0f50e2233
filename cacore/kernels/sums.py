"""Sums over the features of one row and a panel of others, in vector registers: of products or of differences.

A kernel that is a product over the features multiplies a panel by its factors, feature by feature, instead.

A panel holds `width` rows, feature by feature, so that each number of a row meets a whole vector of numbers.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.arrays import Doubles, Ints, Longs, Reals
from cacore.compiled.pointers import multiplied, prefetch_to_write
from cacore.compiled.vectors import PANEL_BYTES, differences, excesses, half_squares, products
from cacore.kernels.evaluate import DIFFERENCES, NONZEROS, PRODUCTS, WHOLE, Parameters, finish
from cacore.machine.threads import blocks

GROUP = 8  # panels of a tile at most: a row of a tile is then 8 x 512 bytes, one page
CACHE_BYTES = 1 << 19  # size of a tile's panels, which every row reads: half of an L2 cache of 1 MiB
_LINE = 64  # bytes of a cache line, and of a vector of cacore/compiled/vectors.py
# Numbers packed per task, about 1 ms: tasks of 50 microseconds cost ten times what they saved (3d3b472c).
_TASK = 1 << 18


def width(dtype: DTypeLike) -> int:
    """Rows per panel."""
    return PANEL_BYTES // int(np.dtype(dtype).itemsize)


def room(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[np.floating]:
    """An array of zeros for panels, aligned so that each vector lies in one cache line.

    Measured (Intel, AVX-512): sums took 1.5 times as long if each vector lay in two cache lines.
    """
    count = math.prod(shape)
    values = np.zeros(count + _LINE // np.dtype(dtype).itemsize, dtype)
    first = -values.ctypes.data % _LINE // values.itemsize
    return values[first : first + count].reshape(shape)


def portions(panels: int, each: int) -> list[tuple[int, int]]:
    """Ranges of panels, of `each` numbers per panel, to be packed by one task each."""
    return blocks(panels, max(4, _TASK // max(1, each)))


@numba.njit(inline="always")
def meet(
    values: Reals, columns: Ints, first: int, last: int, panel: Reals, out: Reals, kernel: Parameters
) -> None:  # pragma: no cover - compiled
    """Sums, or products, over the features of one row x and each row z of a panel, written to `out`.

    Parameters
    ----------
    values, columns : arrays of float32 or float64 and of int32, shape (nnz,)
        CSR values and features; x is entries `first` to `last`.
    first, last : int
    panel : array of that type, shape (d, width)
    out : array of that type, shape (width,)
    kernel : tuple
        From :meth:`cacore.kernels.Kernel.parameters` for that type. Its measure is PRODUCTS: sum of x_k z_k over the
        nonzeros of x. WHOLE: sum of |x_k - z_k| over all features. NONZEROS: sum of |x_k - z_k| - |z_k| over the
        nonzeros of x, which is |x-z|_1 - |z|_1. FACTORS: product of the kernel's factors over all features.
        DIFFERENCES: sum of -(x_k - z_k)^2 / 2 over all features, which is x.z of rows whose norms are taken as 0.
    """
    meet_at(values, columns, first, last, panel, 0, out, 0, kernel)


@numba.njit(inline="always")
def meet_at(
    values: Reals, columns: Ints, first: int, last: int, data: Reals, at: int, out: Reals, to: int, kernel: Parameters
) -> None:  # pragma: no cover - compiled
    """:func:`meet` with the panel that begins at index `at` of `data`, writing to `out` from index `to` on.

    `data` and `out` are contiguous, of any shape.
    """
    function, gamma, coef0, degree, measure = kernel
    if measure == PRODUCTS:
        products(values, columns, first, last, data, at, out, to)
    elif measure == WHOLE:
        differences(values, columns, first, last, data, at, out, to)
    elif measure == DIFFERENCES:
        half_squares(values, columns, first, last, data, at, out, to)
    elif measure == NONZEROS:
        excesses(values, columns, first, last, data, at, out, to)
    else:
        multiplied(function, gamma, coef0, degree, values, columns, first, last, data, at, out, to)


@numba.njit(cache=True, nogil=True)
def pack(X: Reals, data: Reals) -> None:  # pragma: no cover - compiled
    """Copy dense rows, shape (n, d), to panels, shape (ceil(n / width), d, width), of the same type."""
    W = data.shape[2]
    for p in range(data.shape[0]):
        panel = data[p]
        for k in range(min(W, X.shape[0] - p * W)):
            for c in range(X.shape[1]):
                panel[c, k] = X[p * W + k, c]


def taken(
    count: int, hi: int, dtype: DTypeLike, coefficients: NDArray[np.float64] | None, total: NDArray[np.float64] | None,
    store: NDArray[np.floating] | None, places: NDArray[np.int64] | None,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.floating], NDArray[np.int64]]:  # fmt: skip
    """Checked output arrays for the kernel values of `count` rows with columns up to `hi`; None becomes empty arrays.

    See :meth:`cacore.kernels.panels.Panels.add` for the arguments. Compiled code does not check bounds, hence the
    asserts here.
    """
    if coefficients is None or total is None:
        coefficients, total = np.empty(0), np.empty(0)
    if store is None:
        store, places = np.empty((0, 0), dtype), np.empty(0, np.int64)
    elif places is None:
        places = np.arange(count)
    assert places is not None
    assert not total.size or (total.size >= hi and len(coefficients) == count)
    assert not places.size or (store.shape[1] >= hi and len(store) > places.max() and len(places) == count)
    return coefficients, total, store, places


@numba.njit(inline="always")
def hand_over(
    tile: Reals, count: int, first: int, lo: int, hi: int, a: Reals, b: Reals, kernel: Parameters,
    coefficients: Doubles, total: Doubles, store: Reals, places: Longs,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Turn a tile of sums into kernel values, and store them, add them up, or both.

    The tile belongs to `count` rows from `first` on and the columns lo to hi.

    Parameters
    ----------
    tile : array of float32 or float64, shape (>= count, >= hi - lo)
        Inner products or distances; overwritten by kernel values.
    count, first, lo, hi : int
    a, b : arrays of that type, shape (> first + count,) and (>= hi,)
        Norms of the rows and of the columns.
    kernel : tuple
        Parameters for :func:`cacore.kernels.evaluate.finish`.
    coefficients, total, store, places
        See :func:`cacore.kernels.panels.accumulate`. Values are rounded to the type of `store` before they are added.
    """
    rounded, norms, size = store.dtype.type, b[lo:hi], hi - lo
    for r in range(count):
        if places.size and r + 1 < count and places[first + r + 1] >= 0:
            # Without a prefetch, writes to uncached memory stall: a third of the time for short rows.
            begin = places[first + r + 1] * store.shape[1] + lo
            for k in range(begin, begin + size, _LINE // store.itemsize):
                prefetch_to_write(store, k)
        line = tile[r, :size]
        finish(line, a[first + r], norms, kernel)
        if places.size and places[first + r] >= 0:
            row = store[places[first + r], lo:hi]
            for k in range(size):
                row[k] = line[k]
    if total.size:
        _add_up(tile, count, coefficients, first, total[lo:hi], rounded)


@numba.njit(inline="always")
def _add_up(
    tile: Reals, count: int, coefficients: Doubles, first: int, total: Doubles, rounded: type[np.floating]
) -> None:  # pragma: no cover - compiled
    """Add `count` rows of a tile, times coefficients from `first` on, to `total`: four rows per pass, in order."""
    r = 0
    while r + 4 <= count:
        at = first + r
        p, q, s, t = coefficients[at], coefficients[at + 1], coefficients[at + 2], coefficients[at + 3]
        w, x, y, z = tile[r], tile[r + 1], tile[r + 2], tile[r + 3]
        for k in range(total.size):
            partial = total[k] + p * np.float64(rounded(w[k]))
            partial += q * np.float64(rounded(x[k]))
            partial += s * np.float64(rounded(y[k]))
            total[k] = partial + t * np.float64(rounded(z[k]))
        r += 4
    while r < count:
        p, w = coefficients[first + r], tile[r]
        for k in range(total.size):
            total[k] += p * np.float64(rounded(w[k]))
        r += 1
