"""Kernel values of sparse rows with very many features, such as text: frequent features packed, the others listed.

A few features occur in many rows, and most in very few. Frequent features lie in panels (:mod:`cacore.kernels.panels`):
a nonzero meets a whole panel in vector registers, zeros included. Every other feature has a list of the rows that
contain it, and a nonzero meets only these. So the work is proportional to the pairs of nonzeros that meet, and the
memory to the nonzeros: a packed feature stores at most 1 / FREQUENT numbers per nonzero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike, NDArray

from cacore.data.rows import Rows, is_sparse
from cacore.data.sparse import CSR
from cacore.kernels.evaluate import PRODUCTS
from cacore.kernels.sums import portions, room, taken, width
from cacore.kernels.wide_passes import accumulate, arrange, columns_per_tile, compare, count_known, enlist, pack
from cacore.machine import threads
from cacore.machine.threads import blocks, for_blocks

if TYPE_CHECKING:
    from cacore.kernels.values import Kernel
    from cacore.kernels.wide_passes import Sides

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
    def of(cls, X: CSR, every: bool = False) -> Features:
        """Numbering for CSR rows, shape (n, d): one pass over the nonzeros and the features.

        Only features that both sides of a kernel value contain matter, so it is enough if one side is among the rows
        of `X`. If `X` is a sample and neither side is, `every` gives a number to every feature.
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
        some = X if rows is None else X[rows]
        X = some if is_sparse(some) else sp.csr_matrix(some)
        if not X.has_canonical_format:  # norms need the square of the sum of duplicate entries
            X = X.copy() if rows is None else X
            X.sum_duplicates()
        m, number, first = X.shape[0], features.number, features.packed
        known, packed, pieces = np.zeros(m, np.int64), np.zeros(m, np.int64), blocks(m, _PIECE)
        for_blocks(
            lambda lo, hi: count_known(X.indices, X.indptr[lo : hi + 1], number, first, known[lo:hi], packed[lo:hi]),
            pieces,
        )
        starts = np.append(0, np.cumsum(known))
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
        self, kernel: Kernel, A: Arranged, lo: int, hi: int, coefficients: NDArray[np.float64] | None = None,
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
        """Inner products or l1 distances (:func:`cacore.kernels.pairs.compare`) of these columns with the rows `A`.

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
