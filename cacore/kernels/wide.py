"""Kernel values of sparse rows with very many features, such as text: frequent features packed, the others listed.

A few features occur in many rows, and most in very few. Frequent features lie in panels (:mod:`cacore.kernels.panels`):
a nonzero meets a whole panel in vector registers, zeros included. Every other feature has a list of the rows that
contain it, and a nonzero meets only these. So the work is proportional to the pairs of nonzeros that meet, and the
memory to the nonzeros: a packed feature stores at most 1 / FREQUENT numbers per nonzero.

:class:`Arranged` and :class:`Wide` hold the arrays, and the compiled passes over them follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike, NDArray

from cacore.arrays import Doubles, Integers, Ints, Longs, Reals
from cacore.compiled.pointers import prefetch
from cacore.compiled.vectors import common, products
from cacore.data.rows import CSR, Rows, is_sparse
from cacore.kernels.evaluate import NONZEROS, PRODUCTS, KernelFormula, Parameters
from cacore.kernels.sums import hand_over, portions, room, taken, width
from cacore.machine import threads
from cacore.machine.threads import blocks, for_blocks

FREQUENT = 1 / 16  # smallest share of rows for a feature to be packed; a listed entry costs 20 times a packed one
MOST = 1024  # packed features at most: a panel of them still fits in the L2 cache
COLUMNS = 2048  # columns of a tile, about; every row looks its lists up once per tile
_PIECE = 4096  # rows arranged per task


@dataclass(frozen=True, eq=False)
class Features:
    """New numbering of the features: packed ones first, then listed ones.

    Attributes
    ----------
    number : ndarray of int32, shape (d,)
        New number of each feature: packed features by falling frequency, then listed ones; -1 for features that occur
        in no row.
    packed, count : int
        Number of packed features, and of packed and listed features together.
    met : float
        Mean cost of a kernel value, in units of a nonzero that meets a panel.
    """

    number: NDArray[np.int32]
    packed: int
    count: int
    met: float

    @property
    def listed(self) -> int:
        """Number of listed features."""
        return self.count - self.packed

    @classmethod
    def of(cls, X: CSR, all_features: bool = False) -> Features:
        """Numbering for CSR rows, shape (n, d): one pass over the nonzeros and the features.

        Only features that both sides of a kernel value contain matter, so it is enough if one side is among the rows
        of `X`. If `X` is a sample and neither side is, `all_features` gives a number to every feature.
        """
        n, d = X.shape
        counts = np.bincount(X.indices, minlength=d)
        often = np.flatnonzero(counts > FREQUENT * n)
        often = often[np.argsort(-counts[often], kind="stable")][:MOST]
        number = np.full(d, -1, np.int32)
        number[often] = np.arange(len(often))
        rare = np.flatnonzero(((counts > 0) | all_features) & (number < 0))
        number[rare] = np.arange(len(often), len(often) + len(rare))
        share, alone = counts[often] / max(1, n), counts[rare] / max(1, n)
        met = float(share.sum() + alone @ alone / FREQUENT)
        return cls(number, len(often), len(often) + len(rare), met)


@dataclass(frozen=True, eq=False)
class Arranged:
    """CSR rows with features renumbered by :class:`Features`, the packed ones first in each row.

    Attributes
    ----------
    values, features : ndarray, ndarray of int32, shape (nnz,)
        Nonzeros; features without a number are left out.
    starts, middles : ndarray of int64, shape (m + 1,), (m,)
        Start of each row, and of its listed features.
    norms : ndarray, shape (m,)
        Squared norms, or l1 norms for the measure NONZEROS; features without a number are included.
    """

    values: NDArray[np.floating]
    features: NDArray[np.int32]
    starts: NDArray[np.int64]
    middles: NDArray[np.int64]
    norms: NDArray[np.floating]

    def __len__(self) -> int:
        return len(self.norms)

    @classmethod
    def of(
        cls, X: Rows, features: Features, dtype: DTypeLike, rows: NDArray[np.int64] | None = None,
        measure: int = PRODUCTS,
    ) -> Arranged:  # fmt: skip
        """Arrange `X`, shape (n, d), or the given rows of it; two passes over the nonzeros, on all threads."""
        chosen = X if rows is None else X[rows]
        X = chosen if is_sparse(chosen) else sp.csr_matrix(chosen)
        if not X.has_canonical_format:  # norms need the square of the sum of duplicate entries
            X = X.copy() if rows is None else X
            X.sum_duplicates()
        m, number, first = X.shape[0], features.number, features.packed
        numbered, packed, pieces = np.zeros(m, np.int64), np.zeros(m, np.int64), blocks(m, _PIECE)
        for_blocks(
            lambda lo, hi: count_known(X.indices, X.indptr[lo : hi + 1], number, first, numbered[lo:hi], packed[lo:hi]),
            pieces,
        )
        starts = np.append(0, np.cumsum(numbered))
        values, places = np.empty(starts[-1], dtype), np.empty(starts[-1], np.int32)
        norms, middles = np.zeros(m, dtype), starts[:-1] + packed
        for_blocks(
            lambda lo, hi: arrange(
                X.data, X.indices, X.indptr[lo : hi + 1], number, first, measure, starts[lo : hi + 1], middles[lo:hi],
                values, places, norms[lo:hi],
            ),
            pieces,
        )  # fmt: skip
        return cls(values, places, starts, middles, norms)


def _tiles(n: int, panels: int, nonzeros: int, features: int) -> int:
    """Number of tiles for n columns with these listed nonzeros and features: the same for each thread.

    Tiles are larger if lists are short: list starts are stored per tile, at most two per nonzero.
    """
    share = threads.current()
    wanted = share * -(-n // (share * COLUMNS))
    return max(1, min(wanted, panels, 1 + 2 * nonzeros // (features + 1)))


class Wide:
    """Sparse rows as columns of kernel values; same interface as :class:`cacore.kernels.panels.Panels`.

    Parameters
    ----------
    X : CSR or ndarray, shape (n, d)
        Not changed.
    features : Features
    dtype : dtype
        float32 or float64.
    rows : ndarray of int64, optional
        Numbers of the rows of `X` to take, in order; all rows by default.
    measure : {PRODUCTS, NONZEROS}
        Terms of the sums, see :func:`cacore.kernels.sums.meet`.

    Attributes
    ----------
    n : int
        Number of columns.
    data : ndarray, shape (ceil(n / width), packed features, width)
    norms : ndarray, shape (ceil(n / width) * width,)
        Norms as in :class:`Arranged`.
    values, rows : ndarray, ndarray of int32, shape (listed nonzeros,)
        Lists by tile, then by feature, with ascending rows; rows are counted from 0 within each tile.
    starts : ndarray of int32 or int64, shape (tiles, listed features + 1)
        Start of each list of each tile. All tiles but the last have the same number of panels.

    Notes
    -----
    Stores the packed features of n rows; a value and a row number per listed nonzero; and list starts, at most two per
    listed nonzero plus one per feature.
    """

    def __init__(
        self, X: Rows, features: Features, dtype: DTypeLike, rows: NDArray[np.int64] | None = None,
        measure: int = PRODUCTS,
    ) -> None:  # fmt: skip
        arranged = Arranged.of(X, features, dtype, rows, measure)
        self.n, self.measure, W = len(arranged), measure, width(dtype)
        count, before = -(-self.n // W), np.append(0, np.cumsum(arranged.starts[1:] - arranged.middles))
        self.data = room((count, features.packed, W), dtype)
        self.norms = np.zeros(count * W, dtype)
        self.norms[: self.n] = arranged.norms
        listed = int(before[-1])
        tiles = _tiles(self.n, count, listed, features.listed)
        self.starts = np.zeros((tiles, features.listed + 1), np.int32 if listed < 1 << 31 else np.int64)
        self.values, self.rows = np.empty(listed, dtype), np.empty(listed, np.int32)

        def fill(lo: int, hi: int) -> None:
            part = slice(lo * W, hi * W)
            pack(arranged.values, arranged.features, arranged.starts[part], arranged.middles[part], self.data[lo:hi])

        def enter(tile: int, lo: int, hi: int) -> None:
            enlist(
                arranged.values, arranged.features, arranged.starts[lo : hi + 1], arranged.middles[lo:hi],
                features.packed, before[lo], self.starts[tile], self.values, self.rows,
            )  # fmt: skip

        for_blocks(fill, portions(count, features.packed * W))
        for_blocks(enter, [(tile, *ends) for tile, ends in enumerate(blocks(self.n, self._span))])

    @property
    def _span(self) -> int:
        """Columns per tile."""
        return int(columns_per_tile(self.data, self.starts))

    def tasks(self, count: int) -> list[tuple[int, int]]:
        """At most count / 2 ranges of columns, and at least one; all but the last end at a panel's end.

        Every range looks its lists up again, so ranges are whole tiles if there are enough tiles.
        """
        parts, span = max(1, count // 2), self._span
        step = span if -(-self.n // span) >= parts else self.data.shape[2]
        units = -(-self.n // step)
        return [(lo * step, min(hi * step, self.n)) for lo, hi in blocks(units, max(1, -(-units // parts)))]

    def add(
        self, kernel: KernelFormula, A: Arranged, lo: int, hi: int, coefficients: NDArray[np.float64] | None = None,
        total: NDArray[np.float64] | None = None, store: NDArray[np.floating] | None = None,
        places: NDArray[np.int64] | None = None,
    ) -> None:  # fmt: skip
        """See :meth:`cacore.kernels.panels.Panels.add`; `A` has the same features, dtype and measure.

        2 (hi - lo) flops per packed nonzero of `A`, and 2 per pair of listed nonzeros that meet. The sums of a column
        do not depend on the range that contains it.
        """
        outputs = taken(len(A), hi, self.data.dtype, coefficients, total, store, places)
        assert (self.measure == PRODUCTS) == (kernel.measure() == PRODUCTS)
        accumulate(self._sides(A), kernel.parameters(self.data.dtype, self.measure), lo, hi, *outputs)

    def compare(self, A: Arranged, out: NDArray[np.floating], ld: int, first: int) -> None:
        """Inner products or l1 distances (:func:`cacore.kernels.values.compare`) of these columns with the rows `A`.

        Parameters
        ----------
        A : Arranged
        out : ndarray of float32 or float64, shape (>= (n - 1) ld + first + len(A),)
            Contiguous; the value of column j and row i goes to index ``j * ld + first + i``.
        ld, first : int
        """
        compare(self._sides(A), self.measure, self.n, out, ld, first)

    def _sides(self, A: Arranged) -> Sides:
        return (
            self.data, self.norms, self.values, self.rows, self.starts, A.values, A.features, A.starts, A.middles,
            A.norms,
        )  # fmt: skip


# Reasoned, not measured alone: a tile of AREA floats is 2 MiB; more rows share a panel's load, fewer a list's look-up.
ROWS, LEAST = 256, 16  # most and fewest rows of a tile, which meet a panel while it is in cache
AREA = 1 << 19  # numbers of a tile
# Columns, then rows: data, norms, values, rows and starts of ``Wide``; values, features, starts, middles and norms of
# ``Arranged``.
Sides: TypeAlias = "tuple[Reals, Reals, Reals, Ints, Integers, Reals, Ints, Integers, Longs, Reals]"

AHEAD = 8  # nonzeros by which prefetches run ahead


@numba.njit(cache=True, nogil=True)
def count_known(
    indices: Integers, starts: Integers, number: Ints, first: int, numbered: Longs, packed: Longs
) -> None:  # pragma: no cover - compiled
    """Count the features of each row that have a number (`numbered`), and one below `first` (`packed`)."""
    for i in range(numbered.size):
        for p in range(starts[i], starts[i + 1]):
            k = number[indices[p]]
            numbered[i] += k >= 0
            packed[i] += 0 <= k < first


@numba.njit(cache=True, nogil=True, fastmath={"contract"})
def arrange(
    data: Reals, indices: Integers, starts: Integers, number: Ints, first: int, measure: int, new_starts: Longs,
    middles: Longs, values: Reals, features: Ints, norms: Reals,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Fill the arrays of ``Arranged`` for some rows of a CSR matrix, which begin at `starts`.

    Norms are added up in the order of the products, or of the l1 terms, so that equal rows are at distance 0.
    """
    real = values[:0].dtype.type
    for i in range(norms.size):
        at, to, unnumbered, norm = new_starts[i], middles[i], real(0), real(0)
        for p in range(starts[i], starts[i + 1]):
            k, x = number[indices[p]], real(data[p])
            if k >= first:
                values[to], features[to] = x, k
                to += 1
            elif k >= 0:
                values[at], features[at] = x, k
                at += 1
            else:
                unnumbered += abs(x) if measure == NONZEROS else x * x
        for q in range(new_starts[i], new_starts[i + 1]):
            norm += abs(values[q]) if measure == NONZEROS else values[q] * values[q]
        norms[i] = norm + unnumbered


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
def _within(
    rows: Ints, p: int, end: int, first_column: int, end_column: int
) -> tuple[int, int]:  # pragma: no cover - compiled
    """First index and end of the stretch of p:end whose rows are in left:right."""
    if p < end and rows[p] < first_column:
        p = _first(rows, p, end, first_column)
    if p < end and rows[end - 1] >= end_column:
        end = _first(rows, p, end, end_column)
    return p, end


@numba.njit(inline="always")
def _later(q: int, last: int, further: int) -> int:  # pragma: no cover - compiled
    """Index `q` of a nonzero, moved on by `further` if it is past the row's end `last`."""
    return q if q < last else q + further


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _meet_lists(
    values: Reals, features: Ints, starts: Integers, middles: Longs, i: int, count: int, list_values: Reals,
    list_rows: Ints, lists: Integers, packed: int, first_column: int, end_column: int, whole: bool, measure: int,
    tile: Reals,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Add the terms of listed nonzeros to `tile`: `count` rows from `i` on, columns `first_column` to `end_column`.

    `lists` holds the starts of the tile's lists; `whole` is true if they contain no other columns. Arrays are not
    sliced, see :func:`cacore.compiled.vectors._sums`.
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
                p, stop = _within(list_rows, p, stop, first_column, end_column)
            if measure == PRODUCTS:
                for place in range(p, stop):
                    tile[r, np.uint32(list_rows[place] - first_column)] += x * list_values[place]
            else:
                for place in range(p, stop):
                    z = list_values[place]
                    tile[r, np.uint32(list_rows[place] - first_column)] += abs(z - x) - (abs(z) + abs(x))


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
    first_column, end_column = at - number * span, end - number * span  # columns counted within the tile
    whole = first_column == 0 and (end_column == span or end > norms.size - W)
    _meet_lists(
        values, features, starts, middles, i, count, list_values, list_rows, list_starts[number], packed, first_column,
        end_column, whole, measure, tile,
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
    tile_rows = _rows(span, a.size)
    tile = np.empty((tile_rows, min(span, -(-(hi - lo) // data.shape[2]) * data.shape[2])), data.dtype)
    at = lo
    while at < hi:
        number = at // span
        end = min((number + 1) * span, hi)
        for i in range(0, a.size, tile_rows):
            count = min(tile_rows, a.size - i)
            _fill(sides, kernel[4], i, count, number, at, end, tile)
            hand_over(tile, count, i, at, end, a, norms, kernel, coefficients, total, store, places)
        at = end


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def compare(sides: Sides, measure: int, n: int, out: Reals, ld: int, first: int) -> None:  # pragma: no cover - compiled
    """``Wide.compare`` for compiled code with `n` columns; `sides` is from ``Wide._sides``."""
    data, m, span = sides[0], sides[9].size, columns_per_tile(sides[0], sides[4])
    tile_rows = _rows(span, m)
    tile = np.empty((tile_rows, span), data.dtype)
    for number in range(-(-n // span)):
        at = number * span
        end = min(at + span, n)
        for i in range(0, m, tile_rows):
            count = min(tile_rows, m - i)
            _fill(sides, measure, i, count, number, at, end, tile)
            for k in range(end - at):
                here = (at + k) * ld + first + i
                for r in range(count):
                    out[here + r] = tile[r, k]
