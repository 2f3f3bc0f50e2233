"""The matrix of correlations between near points: kept as sparse rows while it fits in memory, else computed again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cacore.machine.threads import blocks, current, for_blocks
from cacore.near.correlation import Correlation, correlate
from cacore.near.cubes import Cubes, gather, widest

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from cacore.arrays import Doubles, Ints, Longs
    from cacore.kernels.evaluate import Parameters

BLOCK = 4096  # rows of a task
ENTRY = 12  # bytes of a stored value with its column
_STRETCH = 1 << 15  # most rows of a stored sparse matrix
_MOST = 1 << 30  # most values of one, whose index has 32 bits


def stretches(inner: int, n: int, widest: int = 1) -> list[tuple[int, int]]:
    """Ranges of n rows for stored sparse matrices, as long as the threads allow, since each one costs a call.

    Parameters
    ----------
    inner : int
        A row that no range contains, except as its first.
    n : int
    widest : int
        Most values in a row.
    """
    height = max(1, min(_STRETCH, max(BLOCK, -(-n // current())), _MOST // max(1, widest)))
    return [*blocks(inner, height), *((inner + a, inner + b) for a, b in blocks(n - inner, height))]


class NearMatrix:
    """Correlations of some points with all points, as a linear operator.

    Parameters
    ----------
    Q : ndarray of float64, shape (q, d)
        The points of the rows.
    cubes : Cubes
        The points of the columns, and the radius beyond which correlations are 0 or left out.
    correlation : Correlation
    limit : int
        Bytes that stored values may take.
    inner : int
        A row at which products may begin or end without a copy of stored values.

    Attributes
    ----------
    nnz : int
        Number of pairs closer than the radius; a point of `Q` that is also a column is a pair with itself.
    kept : bool
        True if the values are stored.

    Notes
    -----
    12 bytes per pair if the values are stored, and 2 flops per pair, product and vector. Otherwise every product finds
    the pairs again: 3 d flops per candidate, of which there are 2.9 per pair in the plane and 6.4 in space, and one
    correlation per pair.
    """

    def __init__(
        self, Q: NDArray[np.float64], cubes: Cubes, correlation: Correlation, limit: int, inner: int = 0
    ) -> None:
        self.Q, self.cubes, self.correlation = np.ascontiguousarray(Q), cubes, correlation
        self.which, self.ends = cubes.around(self.Q)
        self.counts = np.zeros(len(self.Q), np.int64)
        self._room = int(widest(self.ends))
        for_blocks(self._count, blocks(len(self.Q), BLOCK))
        self.nnz = int(self.counts.sum())
        self.kept = ENTRY * self.nnz <= limit
        self._rows = self._stored(inner) if self.kept else []

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return len(self.Q), len(self.cubes.order)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored values."""
        return ENTRY * self.nnz if self.kept else 0

    def product(self, V: NDArray[np.float64], out: NDArray[np.float64], lo: int = 0, hi: int | None = None) -> None:
        """Write rows `lo` to `hi` of ``K V.T`` to the same columns of `out`, on all threads.

        Parameters
        ----------
        V : ndarray, shape (t, columns)
        out : ndarray, shape (t, rows)
        lo, hi : int
        """
        hi = len(self.Q) if hi is None else hi
        if self.kept:
            columns = np.ascontiguousarray(V.T) if len(V) > 1 else V[0]
            for_blocks(
                lambda first, last, rows: multiply(rows, first, max(first, lo), min(last, hi), columns, out),
                [task for task in self._rows if task[0] < hi and task[1] > lo],
            )
            return
        sorted_ = np.ascontiguousarray(V[:, self.cubes.order])
        for_blocks(
            lambda lo, hi: self._again(lo, hi, sorted_, out), [(lo + a, lo + b) for a, b in blocks(hi - lo, BLOCK)]
        )

    def _count(self, lo: int, hi: int) -> None:
        _count(
            self.Q,
            self.which,
            self.ends,
            self.cubes.points,
            self.cubes.square,
            self._room,
            self.counts,
            lo,
            hi,
        )

    def _stored(self, inner: int) -> list[tuple[int, int, csr_array]]:
        """All values: first row, one past the last, and the rows, each time."""
        starts = np.concatenate([[0], np.cumsum(self.counts)])
        columns, values = np.empty(self.nnz, np.int32), np.empty(self.nnz)

        def fill(lo: int, hi: int) -> None:
            _fill(
                self.Q, self.which, self.ends, self.cubes.points, self.cubes.square, self._room, self.cubes.order,
                *self.correlation.compiled, starts, columns, values, lo, hi,
            )  # fmt: skip

        for_blocks(fill, blocks(len(self.Q), BLOCK))
        found = []
        for lo, hi in stretches(inner, len(self.Q), int(self.counts.max(initial=0))):
            some, indptr = slice(starts[lo], starts[hi]), (starts[lo : hi + 1] - starts[lo]).astype(np.int32)
            shape = hi - lo, self.shape[1]
            found.append((lo, hi, sp.csr_array((values[some], columns[some], indptr), shape=shape)))
        return found

    def _again(self, lo: int, hi: int, V: NDArray[np.float64], out: NDArray[np.float64]) -> None:
        _multiply_again(
            self.Q, self.which, self.ends, self.cubes.points, self.cubes.square, self._room,
            *self.correlation.compiled, V, out, lo, hi,
        )  # fmt: skip


def multiply(
    rows: csr_array, first: int, lo: int, hi: int, columns: NDArray[np.float64], out: NDArray[np.float64]
) -> None:
    """Write the products of rows `lo` to `hi`, of a matrix whose first row is `first`, to columns of `out`."""
    some = rows if hi - lo == rows.shape[0] else rows[lo - first : hi - first]
    out[:, lo:hi] = (some @ columns).T


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _count(
    Q: Doubles, which: Longs, ends: Longs, points: Doubles, square: float, room: int, counts: Longs, lo: int, hi: int
) -> None:
    """Write the number of neighbours of rows lo to hi; arguments as in :func:`_fill`."""  # pragma: no cover - compiled
    squares, where = np.empty(room), np.empty(room, np.int64)
    for i in range(lo, hi):
        counts[i] = gather(Q[i], ends[which[i]], points, square, squares, where)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _fill(
    Q: Doubles, which: Longs, ends: Longs, points: Doubles, square: float, room: int, order: Longs, kernel: Parameters,
    taper: float, starts: Longs, columns: Ints, values: Doubles, lo: int, hi: int,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Write columns and correlations of the neighbours of rows lo to hi, CSR row after row.

    Parameters
    ----------
    Q, which, ends, points, square
        Points, and as for :func:`cacore.near.cubes.gather`.
    room : int
        Most candidates of a point.
    order : array of int64
        Column of each place in `points`.
    kernel, taper
        From :attr:`Correlation.compiled`.
    starts : array of int64, shape (q + 1,)
        Place of each row's first value.
    columns : array of int32
    values : array of float64
    """
    squares, where, zeros, factors = np.empty(room), np.empty(room, np.int64), np.zeros(room), np.empty(room)
    for i in range(lo, hi):
        m = gather(Q[i], ends[which[i]], points, square, squares, where)
        correlate(squares[:m], zeros, factors, kernel, taper)
        first = starts[i]
        for j in range(m):
            columns[first + j], values[first + j] = order[where[j]], squares[j]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _multiply_again(
    Q: Doubles, which: Longs, ends: Longs, points: Doubles, square: float, room: int, kernel: Parameters, taper: float,
    V: Doubles, out: Doubles, lo: int, hi: int,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Columns lo to hi of `out`, shape (t, q), from `V`, shape (t, columns in the order of `points`); see `_fill`."""
    squares, where, zeros, factors = np.empty(room), np.empty(room, np.int64), np.zeros(room), np.empty(room)
    for i in range(lo, hi):
        m = gather(Q[i], ends[which[i]], points, square, squares, where)
        correlate(squares[:m], zeros, factors, kernel, taper)
        for c in range(V.shape[0]):
            total = 0.0
            for j in range(m):
                total += squares[j] * V[c, where[j]]
            out[c, i] = total
