"""Kernel values of sparse rows of very many features, as text has them: frequent features packed, the others listed.

A few features are in many rows, and most in next to none. The frequent ones lie in panels, as those of narrower rows do
(:mod:`cacore.kernels.panels`): a nonzero meets a whole panel in vector registers, zeros and all. Of every other feature
there is a list of the rows that have it: a nonzero meets these and no others. So the work follows the pairs of nonzeros
that meet, and the memory follows the nonzeros: a packed feature has at most 1 / FREQUENT numbers for each of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cacore.data.rows import Rows
from cacore.kernels.simd import prefetch
from cacore.kernels.sums import NONZEROS, PRODUCTS, common, hand_over, meet_at, portions, room, taken, width
from cacore.machine import threads
from cacore.machine.threads import blocks, for_blocks

if TYPE_CHECKING:
    from cacore.kernels.values import Kernel

FREQUENT = 1 / 16  # share of the rows from which on a feature is packed: a list costs 20 times as much a row
MOST = 1024  # packed features, whose panel still lies in the second cache
COLUMNS = 2048  # of a tile, about: each row looks its lists up in each tile
ROWS, LEAST = 256, 16  # of a tile at most, which meet a panel while it is in cache, and at least
AREA = 1 << 19  # numbers of a tile
AHEAD = 8  # nonzeros for which memory is asked in advance
_PIECE = 4096  # rows arranged in one go


@dataclass(frozen=True, eq=False)
class Features:
    """Which features are packed, and the number that each has here.

    Attributes
    ----------
    number : ndarray of int32, shape (d,)
        Packed features come first, the most frequent before the others, and then those that are listed; -1 for features
        that no row has.
    packed, count : int
        How many are packed, and how many there are with those that are listed.
    met : float
        What a kernel value costs, on average, in units of a nonzero that meets a panel.
    """

    number: NDArray[np.int32]
    packed: int
    count: int
    met: float

    @property
    def listed(self) -> int:
        """How many are listed."""
        return self.count - self.packed

    @classmethod
    def of(cls, X: Rows, every: bool = False) -> Features:
        """Those of CSR rows, shape (n, d): a pass over the nonzeros and the features.

        Kernel values have what both sides have: one of the two has to be among the rows of `X`. If neither is, because
        these are a sample, `every` feature is to have a number.
        """
        n, d = X.shape
        counts = np.bincount(X.indices, minlength=d)
        often = np.flatnonzero(counts > FREQUENT * n)
        often = often[np.argsort(-counts[often], kind="stable")][:MOST]
        number = np.full(d, -1, np.int32)
        number[often] = np.arange(len(often))
        rare = np.flatnonzero(((counts > 0) | every) & (number < 0))
        number[rare] = np.arange(len(often), len(often) + len(rare))
        share, alone = counts[often] / max(1, n), counts[rare] / max(1, n)
        met = float(share.sum() + alone @ alone / FREQUENT)
        return cls(number, len(often), len(often) + len(rare), met)


@dataclass(frozen=True, eq=False)
class Arranged:
    """CSR rows whose features have the numbers of :class:`Features`, in each row the packed ones first.

    Attributes
    ----------
    values, features : ndarray, ndarray of int32, shape (nnz,)
        Without features that have no number.
    starts, middles : ndarray of int64, shape (m + 1,), (m,)
        Where each row begins, and where its listed features do.
    norms : ndarray, shape (m,)
        Squared norms, or l1 norms where the measure is NONZEROS, with the features that have no number.
    """

    values: NDArray[Any]
    features: NDArray[np.int32]
    starts: NDArray[np.int64]
    middles: NDArray[np.int64]
    norms: NDArray[Any]

    def __len__(self) -> int:
        return len(self.norms)

    @classmethod
    def of(
        cls, X: Rows, features: Features, dtype: Any, rows: NDArray[np.int64] | None = None, measure: int = PRODUCTS
    ) -> Arranged:
        """`X`, shape (n, d), or these rows of it; two passes over their nonzeros, on all threads."""
        X = X if rows is None else X[rows]
        if not sp.issparse(X):
            X = sp.csr_matrix(X)
        if not X.has_canonical_format:  # an entry given in pieces has one square
            X = X.copy() if rows is None else X
            X.sum_duplicates()
        m, number, first = X.shape[0], features.number, features.packed
        known, packed, pieces = np.zeros(m, np.int64), np.zeros(m, np.int64), blocks(m, _PIECE)
        for_blocks(
            lambda lo, hi: _count(X.indices, X.indptr[lo : hi + 1], number, first, known[lo:hi], packed[lo:hi]), pieces
        )
        starts = np.append(0, np.cumsum(known))
        values, places = np.empty(starts[-1], dtype), np.empty(starts[-1], np.int32)
        norms, middles = np.zeros(m, dtype), starts[:-1] + packed
        for_blocks(
            lambda lo, hi: _arrange(
                X.data, X.indices, X.indptr[lo : hi + 1], number, first, measure, starts[lo : hi + 1], middles[lo:hi],
                values, places, norms[lo:hi],
            ),
            pieces,
        )  # fmt: skip
        return cls(values, places, starts, middles, norms)


def _tiles(n: int, panels: int, nonzeros: int, features: int) -> int:
    """Into how many tiles columns with so many listed nonzeros and features are cut: as many to each thread.

    Where lists are short, tiles are larger: there are no more than two beginnings of a list for each nonzero.
    """
    share = threads.current()
    wanted = share * -(-n // (share * COLUMNS))
    return max(1, min(wanted, panels, 1 + 2 * nonzeros // (features + 1)))


class Wide:
    """Sparse rows as columns of kernel values; used as :class:`cacore.kernels.panels.Panels` is.

    Parameters
    ----------
    X : CSR or ndarray, shape (n, d)
        Not changed.
    features : Features
    dtype : dtype
        float32 or float64.
    rows : ndarray of int64, optional
        Which rows of `X`, and in what order; all by default.
    measure : {PRODUCTS, NONZEROS}
        What is added up, see :func:`cacore.kernels.sums.meet`.

    Attributes
    ----------
    n : int
    data : ndarray, shape (ceil(n / width), packed features, width)
    norms : ndarray, shape (ceil(n / width) * width,)
        As those of :class:`Arranged`.
    values, rows : ndarray, ndarray of int32, shape (listed nonzeros,)
        Tile by tile, in it feature by feature, and rows ascending; a tile's rows have the numbers 0, 1, and so on.
    starts : ndarray of int32 or int64, shape (tiles, listed features + 1)
        Where the lists of each tile begin. All tiles have equally many panels, but for the last.

    Notes
    -----
    The packed features of n rows, a value and a row number for each other nonzero, and beginnings of lists, no more
    than two for each of these nonzeros and one for each feature.
    """

    def __init__(
        self, X: Rows, features: Features, dtype: Any, rows: NDArray[np.int64] | None = None, measure: int = PRODUCTS
    ) -> None:
        given = Arranged.of(X, features, dtype, rows, measure)
        self.n, self.measure, W = len(given), measure, width(dtype)
        count, before = -(-self.n // W), np.append(0, np.cumsum(given.starts[1:] - given.middles))
        self.data = room((count, features.packed, W), dtype)
        self.norms = np.zeros(count * W, dtype)
        self.norms[: self.n] = given.norms
        listed = int(before[-1])
        tiles = _tiles(self.n, count, listed, features.listed)
        self.starts = np.zeros((tiles, features.listed + 1), np.int32 if listed < 1 << 31 else np.int64)
        self.values, self.rows = np.empty(listed, dtype), np.empty(listed, np.int32)

        def fill(lo: int, hi: int) -> None:
            some = slice(lo * W, hi * W)
            pack(given.values, given.features, given.starts[some], given.middles[some], self.data[lo:hi])

        def enter(tile: int, lo: int, hi: int) -> None:
            enlist(
                given.values, given.features, given.starts[lo : hi + 1], given.middles[lo:hi], features.packed,
                before[lo], self.starts[tile], self.values, self.rows,
            )  # fmt: skip

        for_blocks(fill, portions(count, features.packed * W))
        for_blocks(enter, [(tile, *ends) for tile, ends in enumerate(blocks(self.n, self._span))])

    @property
    def _span(self) -> int:
        """Columns of a tile."""
        return int(_span(self.data, self.starts))

    def tasks(self, count: int) -> list[tuple[int, int]]:
        """At most half of `count` ranges of columns, or one, each whole panels but for the last.

        Lists are looked up in each range anew, so that these are tiles, where there are enough of them.
        """
        parts, span = max(1, count // 2), self._span
        step = span if -(-self.n // span) >= parts else self.data.shape[2]
        units = -(-self.n // step)
        return [(lo * step, min(hi * step, self.n)) for lo, hi in blocks(units, max(1, -(-units // parts)))]

    def add(
        self, kernel: Kernel, A: Arranged, lo: int, hi: int, coefficients: NDArray[np.float64] | None = None,
        total: NDArray[np.float64] | None = None, store: NDArray[Any] | None = None,
        places: NDArray[np.int64] | None = None,
    ) -> None:  # fmt: skip
        """As :meth:`cacore.kernels.panels.Panels.add`, for rows arranged by the same features, dtype and measure.

        2 (hi - lo) flops for each packed nonzero of `A`, and 2 for each of its listed ones that meets one. What is
        added up in a column does not depend on the range that it is in.
        """
        outputs = taken(len(A), hi, self.data.dtype, coefficients, total, store, places)
        assert (self.measure == PRODUCTS) == (kernel.measure() == PRODUCTS)
        accumulate(self._sides(A), kernel.parameters(self.data.dtype, self.measure), lo, hi, *outputs)

    def compare(self, A: Arranged, out: NDArray[Any], ld: int, first: int) -> None:
        """What kernels are functions of (:func:`cacore.kernels.pairs.compare`), for these columns with the rows `A`.

        Parameters
        ----------
        A : Arranged
        out : ndarray, shape (any,)
            Contiguous; takes the value of column j and row i at ``j * ld + first + i``.
        ld, first : int
        """
        _compare(self._sides(A), self.measure, self.n, out, ld, first)

    def _sides(self, A: Arranged) -> tuple[Any, ...]:
        return (
            self.data, self.norms, self.values, self.rows, self.starts, A.values, A.features, A.starts, A.middles,
            A.norms,
        )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _count(
    indices: Any, starts: Any, number: Any, first: Any, known: Any, packed: Any
) -> None:  # pragma: no cover - compiled
    """How many features of each row have a number, and one below `first`."""
    for i in range(known.size):
        for p in range(starts[i], starts[i + 1]):
            k = number[indices[p]]
            known[i] += k >= 0
            packed[i] += 0 <= k < first


@numba.njit(cache=True, nogil=True, fastmath={"contract"})
def _arrange(
    data: Any, indices: Any, starts: Any, number: Any, first: Any, measure: Any, new_starts: Any, middles: Any,
    values: Any, features: Any, norms: Any,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Fill the arrays of :class:`Arranged` for some rows of a CSR matrix, which begin at `starts`.

    Norms are added up in the order of a product, or of what l1 distances add up: equal rows are at distance 0.
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
def pack(values: Any, features: Any, starts: Any, middles: Any, data: Any) -> None:  # pragma: no cover - compiled
    """Packed features of rows into panels of zeros, shape (panels, packed, width)."""
    W = data.shape[2]
    for i in range(middles.size):
        panel = data[i // W]
        for q in range(starts[i], middles[i]):
            panel[features[q], i % W] = values[q]


@numba.njit(cache=True, nogil=True)
def enlist(
    values: Any, features: Any, starts: Any, middles: Any, packed: Any, first: Any, list_starts: Any, list_values: Any,
    list_rows: Any,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """The lists of the features that are not packed, from place `first` on; `list_starts` are zeros before."""
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
    for k in range(list_starts.size - 1, 0, -1):  # each has moved to the end of its list
        list_starts[k] = list_starts[k - 1]
    list_starts[0] = first


@numba.njit(inline="always")
def _span(data: Any, list_starts: Any) -> Any:  # pragma: no cover - compiled
    """Columns of a tile, whole panels."""
    return max(1, -(-data.shape[0] // list_starts.shape[0])) * data.shape[2]


@numba.njit(cache=True, nogil=True)
def _first(rows: Any, p: Any, end: Any, least: Any) -> Any:  # pragma: no cover - compiled
    """The first place from `p` on, before `end`, whose row is at least `least`."""
    while p < end:
        middle = (p + end) // 2
        if rows[middle] < least:
            p = middle + 1
        else:
            end = middle
    return p


@numba.njit(cache=True, nogil=True)
def _within(rows: Any, p: Any, end: Any, left: Any, right: Any) -> Any:  # pragma: no cover - compiled
    """Which places from `p` on, before `end`, have rows from `left` on, before `right`: the first, and the end."""
    if p < end and rows[p] < left:
        p = _first(rows, p, end, left)
    if p < end and rows[end - 1] >= right:
        end = _first(rows, p, end, right)
    return p, end


@numba.njit(inline="always")
def _later(q: Any, last: Any, further: Any) -> Any:  # pragma: no cover - compiled
    """A nonzero `q`, or where it lies if it is not among those before `last`."""
    return q if q < last else q + further


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _meet_lists(
    values: Any, features: Any, starts: Any, middles: Any, i: Any, count: Any, list_values: Any, list_rows: Any,
    lists: Any, packed: Any, left: Any, right: Any, whole: Any, measure: Any, tile: Any,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """The listed nonzeros of `count` rows from `i` on with the columns `left` to `right` of a tile, added to `tile`.

    `lists` says where the tile's lists begin; `whole`, that they have no other columns. Without slices, see
    :mod:`cacore.kernels.sums`.
    """
    for r in range(count):
        last = starts[i + r + 1]
        further = middles[i + r + 1] - last if r + 1 < count else 0  # from the end of a row to what is met next
        for q in range(middles[i + r], last):
            # Memory is asked for lists to come, and for where they begin before.
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
    sides: Any, measure: Any, i: Any, count: Any, number: Any, at: Any, end: Any, tile: Any
) -> None:  # pragma: no cover - compiled
    """What kernels are functions of, for `count` rows from `i` on and the columns `at` to `end` of a tile."""
    data, norms, list_values, list_rows, list_starts, values, features, starts, middles, a = sides
    W, packed = data.shape[2], data.shape[1]
    for panel in range(at // W, -(-end // W)):
        for r in range(count):
            here, to = panel * packed * W, r * tile.shape[1] + panel * W - at
            if measure == PRODUCTS:
                meet_at(values, features, starts[i + r], middles[i + r], data, here, tile, to, PRODUCTS)
            else:
                common(values, features, starts[i + r], middles[i + r], data, here, tile, to)
    span = _span(data, list_starts)
    left, right = at - number * span, end - number * span  # in the tile
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
def _rows(span: Any, count: Any) -> Any:  # pragma: no cover - compiled
    """Rows that are met at a time."""
    return max(1, min(count, ROWS, max(LEAST, AREA // span)))


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def accumulate(
    sides: Any, kernel: Any, lo: Any, hi: Any, coefficients: Any, total: Any, store: Any, places: Any
) -> None:  # pragma: no cover - compiled
    """:meth:`Wide.add` for compiled code; `sides` is what :meth:`Wide._sides` returns."""
    data, norms, a, span = sides[0], sides[1], sides[9], _span(sides[0], sides[4])
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
def _compare(sides: Any, measure: Any, n: Any, out: Any, ld: Any, first: Any) -> None:  # pragma: no cover - compiled
    """:meth:`Wide.compare` of `n` columns for compiled code; `sides` is what :meth:`Wide._sides` returns."""
    data, m, span = sides[0], sides[9].size, _span(sides[0], sides[4])
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
