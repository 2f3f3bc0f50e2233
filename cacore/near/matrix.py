"""The matrix of correlations between near points: kept as sparse rows while it fits in memory, else computed again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cacore.machine.threads import blocks, for_blocks
from cacore.near.correlation import Correlation, correlate
from cacore.near.cubes import Cubes, gather, widest

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from cacore.arrays import Doubles, Ints, Longs
    from cacore.kernels.evaluate import Parameters

BLOCK = 4096  # rows of a task
ENTRY = 12  # bytes of a stored value with its column


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
        self._blocks = [*blocks(inner, BLOCK), *((inner + a, inner + b) for a, b in blocks(len(self.Q) - inner, BLOCK))]
        for_blocks(self._count, self._blocks)
        self.nnz = int(self.counts.sum())
        self.kept = ENTRY * self.nnz <= limit
        self._rows: list[csr_array] = []
        if self.kept:
            self._rows = [None] * len(self._blocks)
            for_blocks(self._keep, [(number, *ends) for number, ends in enumerate(self._blocks)])

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
            tasks = [
                (number, max(first, lo), min(last, hi))
                for number, (first, last) in enumerate(self._blocks) if first < hi and last > lo
            ]  # fmt: skip
            columns = np.ascontiguousarray(V.T) if len(V) > 1 else V[0]
            for_blocks(lambda number, lo, hi: self._multiply(number, lo, hi, columns, out), tasks)
            return
        sorted_ = np.ascontiguousarray(V[:, self.cubes.order])
        for_blocks(
            lambda lo, hi: self._again(lo, hi, sorted_, out), [(lo + a, lo + b) for a, b in blocks(hi - lo, BLOCK)]
        )

    def _count(self, lo: int, hi: int) -> None:
        _count(self.Q, self.which, self.ends, self.cubes.points, self.cubes.radius**2, self._room, self.counts, lo, hi)

    def _keep(self, number: int, lo: int, hi: int) -> None:
        indptr = np.concatenate([[0], np.cumsum(self.counts[lo:hi])])
        columns, values = np.empty(int(indptr[-1]), np.int32), np.empty(int(indptr[-1]))
        _fill(
            self.Q, self.which, self.ends, self.cubes.points, self.cubes.radius**2, self._room, self.cubes.order,
            *self.correlation.compiled, indptr, columns, values, lo, hi,
        )  # fmt: skip
        rows = sp.csr_array((values, columns, indptr.astype(np.int32)), shape=(hi - lo, self.shape[1]))
        self._rows[number] = rows

    def _multiply(self, number: int, lo: int, hi: int, columns: NDArray[np.float64], out: NDArray[np.float64]) -> None:
        rows, first = self._rows[number], self._blocks[number][0]
        some = rows if hi - lo == rows.shape[0] else rows[lo - first : hi - first]
        out[:, lo:hi] = (some @ columns).T

    def _again(self, lo: int, hi: int, V: NDArray[np.float64], out: NDArray[np.float64]) -> None:
        _multiply_again(
            self.Q, self.which, self.ends, self.cubes.points, self.cubes.radius**2, self._room,
            *self.correlation.compiled, V, out, lo, hi,
        )  # fmt: skip


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
    taper: float, indptr: Longs, columns: Ints, values: Doubles, lo: int, hi: int,
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
    indptr : array of int64, shape (hi - lo + 1,)
    columns : array of int32
    values : array of float64
    """
    squares, where, zeros, factors = np.empty(room), np.empty(room, np.int64), np.zeros(room), np.empty(room)
    for i in range(lo, hi):
        m = gather(Q[i], ends[which[i]], points, square, squares, where)
        correlate(squares[:m], zeros, factors, kernel, taper)
        first = indptr[i - lo]
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
