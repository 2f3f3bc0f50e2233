"""Compiled passes over sparse rows with very many features, for :mod:`cacore.kernels.wide`.

They take the arrays of its classes ``Arranged`` and ``Wide``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numba
import numpy as np

from cacore.kernels.evaluate import NONZEROS, PRODUCTS
from cacore.kernels.simd import prefetch
from cacore.kernels.sums import common, hand_over, products

if TYPE_CHECKING:
    from cacore.arrays import Doubles, Integers, Ints, Longs, Reals
    from cacore.kernels.evaluate import Parameters

ROWS, LEAST = 256, 16  # most and fewest rows of a tile, which meet a panel while it is in cache
AREA = 1 << 19  # numbers of a tile
# Columns, then rows: data, norms, values, rows and starts of ``Wide``; values, features, starts, middles and norms of
# ``Arranged``.
Sides: TypeAlias = "tuple[Reals, Reals, Reals, Ints, Integers, Reals, Ints, Integers, Longs, Reals]"

AHEAD = 8  # nonzeros by which prefetches run ahead


@numba.njit(cache=True, nogil=True)
def count_known(
    indices: Integers, starts: Integers, number: Ints, first: int, known: Longs, packed: Longs
) -> None:  # pragma: no cover - compiled
    """Count the features of each row that have a number (`known`), and one below `first` (`packed`)."""
    for i in range(known.size):
        for p in range(starts[i], starts[i + 1]):
            k = number[indices[p]]
            known[i] += k >= 0
            packed[i] += 0 <= k < first


@numba.njit(cache=True, nogil=True, fastmath={"contract"})
def arrange(
    data: Reals, indices: Integers, starts: Integers, number: Ints, first: int, measure: int, new_starts: Longs,
    middles: Longs, values: Reals, features: Ints, norms: Reals,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Fill the arrays of ``Arranged`` for some rows of a CSR matrix, which begin at `starts`.

    Norms are added up in the order of the products, or of the l1 terms, so that equal rows are at distance 0.
    """
    one = values[:0].dtype.type
    for i in range(norms.size):
        at, to, rest, norm = new_starts[i], middles[i], one(0), one(0)
        for p in range(starts[i], starts[i + 1]):
            k, x = number[indices[p]], one(data[p])
            if k >= first:
                values[to], features[to] = x, k
                to += 1
            elif k >= 0:
                values[at], features[at] = x, k
                at += 1
            else:
                rest += abs(x) if measure == NONZEROS else x * x
        for q in range(new_starts[i], new_starts[i + 1]):
            norm += abs(values[q]) if measure == NONZEROS else values[q] * values[q]
        norms[i] = norm + rest


@numba.njit(cache=True, nogil=True)
def pack(
    values: Reals, features: Ints, starts: Longs, middles: Longs, data: Reals
) -> None:  # pragma: no cover - compiled
    """Write the packed features of rows to panels of zeros, shape (panels, packed, width)."""
    W = data.shape[2]
    for i in range(middles.size):
        panel = data[i // W]
        for q in range(starts[i], middles[i]):
            panel[features[q], i % W] = values[q]


@numba.njit(cache=True, nogil=True)
def enlist(
    values: Reals, features: Ints, starts: Longs, middles: Longs, packed: int, first: int, list_starts: Integers,
    list_values: Reals, list_rows: Ints,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Fill the lists of the listed features, from index `first` on; `list_starts` must be zeros on entry."""
    list_starts[0] = first
    for i in range(middles.size):
        for q in range(middles[i], starts[i + 1]):
            list_starts[features[q] - packed + 1] += 1
    for k in range(1, list_starts.size):
        list_starts[k] += list_starts[k - 1]
    for i in range(middles.size):
        for q in range(middles[i], starts[i + 1]):
            k = features[q] - packed
            at = list_starts[k]
            list_values[at], list_rows[at] = values[q], i
            list_starts[k] = at + 1
    for k in range(list_starts.size - 1, 0, -1):  # each start has moved to the end of its list
        list_starts[k] = list_starts[k - 1]
    list_starts[0] = first


@numba.njit(cache=True, inline="always")
def columns_per_tile(data: Reals, list_starts: Integers) -> int:  # pragma: no cover - compiled
    """Columns per tile, a multiple of the panel width."""
    return max(1, -(-data.shape[0] // list_starts.shape[0])) * data.shape[2]


@numba.njit(cache=True, nogil=True)
def _first(rows: Ints, p: int, end: int, least: int) -> int:  # pragma: no cover - compiled
    """First index in p:end whose row is at least `least`, by bisection; `end` if there is none."""
    while p < end:
        middle = (p + end) // 2
        if rows[middle] < least:
            p = middle + 1
        else:
            end = middle
    return p


@numba.njit(cache=True, nogil=True)
def _within(rows: Ints, p: int, end: int, left: int, right: int) -> tuple[int, int]:  # pragma: no cover - compiled
    """First index and end of the stretch of p:end whose rows are in left:right."""
    if p < end and rows[p] < left:
        p = _first(rows, p, end, left)
    if p < end and rows[end - 1] >= right:
        end = _first(rows, p, end, right)
    return p, end


@numba.njit(inline="always")
def _later(q: int, last: int, further: int) -> int:  # pragma: no cover - compiled
    """Index `q` of a nonzero, moved on by `further` if it is past the row's end `last`."""
    return q if q < last else q + further


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _meet_lists(
    values: Reals, features: Ints, starts: Integers, middles: Longs, i: int, count: int, list_values: Reals,
    list_rows: Ints, lists: Integers, packed: int, left: int, right: int, whole: bool, measure: int, tile: Reals,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Add the terms of listed nonzeros, of `count` rows from `i` on and columns `left` to `right`, to `tile`.

    `lists` holds the starts of the tile's lists; `whole` is true if they contain no other columns. Arrays are not
    sliced, see :func:`cacore.kernels.sums._sums`.
    """
    for r in range(count):
        last = starts[i + r + 1]
        further = middles[i + r + 1] - last if r + 1 < count else 0  # from a row's end to the next listed nonzero
        for q in range(middles[i + r], last):
            # Prefetch the starts of later lists, and then the lists.
            ahead = _later(q + 2 * AHEAD, last, further)
            if ahead < features.size and features[ahead] >= packed:
                prefetch(lists, features[ahead] - packed)
            ahead = _later(q + AHEAD, last, further)
            if ahead < features.size and features[ahead] >= packed:
                place = lists[features[ahead] - packed]
                prefetch(list_values, place)
                prefetch(list_rows, place)
            x, k = values[q], features[q] - packed
            p, stop = np.int64(lists[k]), np.int64(lists[k + 1])
            if not whole:
                p, stop = _within(list_rows, p, stop, left, right)
            if measure == PRODUCTS:
                for place in range(p, stop):
                    tile[r, np.uint32(list_rows[place] - left)] += x * list_values[place]
            else:
                for place in range(p, stop):
                    z = list_values[place]
                    tile[r, np.uint32(list_rows[place] - left)] += abs(z - x) - (abs(z) + abs(x))


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _fill(
    sides: Sides, measure: int, i: int, count: int, number: int, at: int, end: int, tile: Reals
) -> None:  # pragma: no cover - compiled
    """Inner products or l1 distances of `count` rows from `i` on with the columns `at` to `end`, into `tile`."""
    data, norms, list_values, list_rows, list_starts, values, features, starts, middles, a = sides
    W, packed = data.shape[2], data.shape[1]
    for panel in range(at // W, -(-end // W)):
        for r in range(count):
            here, to = panel * packed * W, r * tile.shape[1] + panel * W - at
            if measure == PRODUCTS:
                products(values, features, starts[i + r], middles[i + r], data, here, tile, to)
            else:
                common(values, features, starts[i + r], middles[i + r], data, here, tile, to)
    span = columns_per_tile(data, list_starts)
    left, right = at - number * span, end - number * span  # columns counted within the tile
    whole = left == 0 and (right == span or end > norms.size - W)
    _meet_lists(
        values, features, starts, middles, i, count, list_values, list_rows, list_starts[number], packed, left, right,
        whole, measure, tile,
    )  # fmt: skip
    if measure == NONZEROS:
        others = norms[at:end]
        for r in range(count):
            norm, line = a[i + r], tile[r, : end - at]
            for k in range(line.size):
                line[k] = max(norm * 0, line[k] + (norm + others[k]))


@numba.njit(inline="always")
def _rows(span: int, count: int) -> int:  # pragma: no cover - compiled
    """Rows of a tile."""
    return max(1, min(count, ROWS, max(LEAST, AREA // span)))


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def accumulate(
    sides: Sides, kernel: Parameters, lo: int, hi: int, coefficients: Doubles, total: Doubles, store: Reals,
    places: Longs,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """``Wide.add`` for compiled code; `sides` is from ``Wide._sides``."""
    data, norms, a, span = sides[0], sides[1], sides[9], columns_per_tile(sides[0], sides[4])
    some = _rows(span, a.size)
    tile = np.empty((some, min(span, -(-(hi - lo) // data.shape[2]) * data.shape[2])), data.dtype)
    at = lo
    while at < hi:
        number = at // span
        end = min((number + 1) * span, hi)
        for i in range(0, a.size, some):
            count = min(some, a.size - i)
            _fill(sides, kernel[4], i, count, number, at, end, tile)
            hand_over(tile, count, i, at, end, a, norms, kernel, coefficients, total, store, places)
        at = end


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def compare(sides: Sides, measure: int, n: int, out: Reals, ld: int, first: int) -> None:  # pragma: no cover - compiled
    """``Wide.compare`` for compiled code with `n` columns; `sides` is from ``Wide._sides``."""
    data, m, span = sides[0], sides[9].size, columns_per_tile(sides[0], sides[4])
    some = _rows(span, m)
    tile = np.empty((some, span), data.dtype)
    for number in range(-(-n // span)):
        at = number * span
        end = min(at + span, n)
        for i in range(0, m, some):
            count = min(some, m - i)
            _fill(sides, measure, i, count, number, at, end, tile)
            for k in range(end - at):
                here = (at + k) * ld + first + i
                for r in range(count):
                    out[here + r] = tile[r, k]
