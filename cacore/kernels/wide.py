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
from cacore.kernels.evaluate import finish
from cacore.kernels.sums import NONZEROS, PRODUCTS, common, hand_over, meet, room, taken, width
from cacore.machine.threads import blocks, for_blocks

if TYPE_CHECKING:
    from cacore.kernels.values import Kernel

FREQUENT = 1 / 16  # share of the rows from which on a feature is packed: a list costs 20 times as much a row
MOST = 1024  # packed features, whose panel still lies in the second cache
ROWS, COLUMNS = 64, 2048  # of a tile at most: each row meets a panel while that is in cache, and some of each list
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
        Feature by feature, rows ascending.
    starts : ndarray of int64, shape (listed features + 1,)

    Notes
    -----
    The packed features of n rows, a value and a row number for each other nonzero, 8 bytes for each other feature.
    """

    def __init__(
        self, X: Rows, features: Features, dtype: Any, rows: NDArray[np.int64] | None = None, measure: int = PRODUCTS
    ) -> None:
        given = Arranged.of(X, features, dtype, rows, measure)
        self.n, self.measure, W = len(given), measure, width(dtype)
        count = -(-self.n // W)
        self.data = room((count, features.packed, W), dtype)
        self.norms = np.zeros(count * W, dtype)
        self.norms[: self.n] = given.norms

        def fill(lo: int, hi: int) -> None:
            some = slice(lo * W, hi * W)
            pack(given.values, given.features, given.starts[some], given.middles[some], self.data[lo:hi])

        for_blocks(fill, blocks(count, 4))
        self.starts = np.zeros(features.listed + 1, np.int64)
        listed = int((given.starts[1:] - given.middles).sum())
        self.values, self.rows = np.empty(listed, dtype), np.empty(listed, np.int32)
        enlist(
            given.values, given.features, given.starts, given.middles, features.packed, self.starts, self.values,
            self.rows,
        )  # fmt: skip

    def tasks(self, count: int) -> list[tuple[int, int]]:
        """At most half of `count` ranges of columns, or one, each whole panels but for the last.

        Lists are looked up in each range anew, which takes as long as 30 columns that they have there.
        """
        W, count = self.data.shape[2], max(1, count // 2)
        return [(lo * W, min(hi * W, self.n)) for lo, hi in blocks(len(self.data), max(1, -(-len(self.data) // count)))]

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
    values: Any, features: Any, starts: Any, middles: Any, packed: Any, list_starts: Any, list_values: Any,
    list_rows: Any,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """The lists of the features that are not packed; `list_starts` are zeros before."""
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
    list_starts[0] = 0


@numba.njit(cache=True, nogil=True)
def _cursors(sides: Any, lo: Any) -> Any:  # pragma: no cover - compiled
    """For each nonzero whose feature is listed, the first place in the list with a column from `lo` on."""
    data, _, _, list_rows, list_starts, _, features, starts, middles, _ = sides
    packed, found = data.shape[1], np.empty(features.size, np.int64)
    for i in range(middles.size):
        for q in range(middles[i], starts[i + 1]):
            at, end = list_starts[features[q] - packed], list_starts[features[q] - packed + 1]
            while at < end and lo > 0:
                middle = (at + end) // 2
                if list_rows[middle] < lo:
                    at = middle + 1
                else:
                    end = middle
            found[q] = at
    return found


@numba.njit(inline="always")
def _meet_list(
    x: Any, values: Any, rows: Any, p: Any, last: Any, at: Any, end: Any, line: Any, measure: Any
) -> Any:  # pragma: no cover - compiled
    """A nonzero with the columns from `at` to `end` of its list, from place `p` on; the place where these end."""
    if measure == PRODUCTS:
        while p < last and rows[p] < end:
            line[rows[p] - at] += x * values[p]
            p += 1
    else:
        while p < last and rows[p] < end:
            z = values[p]
            line[rows[p] - at] += abs(z - x) - (abs(z) + abs(x))
            p += 1
    return p


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _fill(
    sides: Any, measure: Any, i: Any, count: Any, at: Any, end: Any, cursors: Any, tile: Any
) -> None:  # pragma: no cover - compiled
    """What kernels are functions of, for `count` rows from `i` on and the columns `at` to `end`, into the tile.

    `cursors` stand at the columns `at`, and stand at `end` after.
    """
    data, norms, list_values, list_rows, list_starts, values, features, starts, middles, a = sides
    W, packed = data.shape[2], data.shape[1]
    for panel in range(at // W, -(-end // W)):
        where = panel * W - at
        for r in range(count):
            first, last, line = starts[i + r], middles[i + r], tile[r, where : where + W]
            if measure == PRODUCTS:
                meet(values, features, first, last, data[panel], line, PRODUCTS)
            else:
                common(values, features, first, last, data[panel], line)
    for r in range(count):
        line = tile[r, : end - at]
        for q in range(middles[i + r], starts[i + r + 1]):
            last = list_starts[features[q] - packed + 1]
            cursors[q] = _meet_list(values[q], list_values, list_rows, cursors[q], last, at, end, line, measure)
        if measure == NONZEROS:
            norm, others = a[i + r], norms[at:end]
            for k in range(line.size):
                line[k] = max(norm * 0, line[k] + (norm + others[k]))


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def accumulate(
    sides: Any, kernel: Any, lo: Any, hi: Any, coefficients: Any, total: Any, store: Any, places: Any
) -> None:  # pragma: no cover - compiled
    """:meth:`Wide.add` for compiled code; `sides` is what :meth:`Wide._sides` returns."""
    data, norms, a = sides[0], sides[1], sides[9]
    cursors, tile = _cursors(sides, lo), np.empty((min(ROWS, a.size), COLUMNS), data.dtype)
    for at in range(lo, hi, COLUMNS):
        end = min(at + COLUMNS, hi)
        for i in range(0, a.size, ROWS):
            count = min(ROWS, a.size - i)
            _fill(sides, kernel[4], i, count, at, end, cursors, tile)
            for r in range(count):
                line = tile[r, : end - at]
                finish(line, a[i + r], norms[at:end], kernel)
                hand_over(line, i + r, at, end, coefficients, total, store, places)


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _compare(sides: Any, measure: Any, n: Any, out: Any, ld: Any, first: Any) -> None:  # pragma: no cover - compiled
    """:meth:`Wide.compare` of `n` columns for compiled code; `sides` is what :meth:`Wide._sides` returns."""
    data, m = sides[0], sides[9].size
    cursors, tile = _cursors(sides, 0), np.empty((min(ROWS, m), COLUMNS), data.dtype)
    for at in range(0, n, COLUMNS):
        end = min(at + COLUMNS, n)
        for i in range(0, m, ROWS):
            count = min(ROWS, m - i)
            _fill(sides, measure, i, count, at, end, cursors, tile)
            for k in range(end - at):
                here = (at + k) * ld + first + i
                for r in range(count):
                    out[here + r] = tile[r, k]
