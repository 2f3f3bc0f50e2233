"""Correlations between near points: a kernel with a cutoff radius, the neighbours of points, and the sparse matrix.

Nothing here communicates: a rank's points come first, followed by copies of points of other ranks that are near them.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.kernels.evaluate import Parameters, finish
from cacore.kernels.registry import SQUARED
from cacore.machine.threads import blocks, current, for_blocks

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from cacore.arrays import Doubles, Ints, Longs

# -- correlations ----------------------------------------------------------------------------------------

# A correlation in compiled code: the kernel's parameters, and 1 / taper, or 0 without one.
Compiled = tuple[Parameters, float]

_BLOCK = 1 << 18  # correlations computed at a time: 2 MiB, which stay in a core's cache


@dataclass(frozen=True)
class Correlation:
    """The function rho(|x-z|) = k(|x-z|) w(|x-z| / taper) of distance, with w Wendland's function of smoothness 2.

    A product of two positive definite functions is positive definite. So a taper gives any kernel compact support, and
    keeps K positive definite for points of at most three coordinates.

    Attributes
    ----------
    kernel : Kernel
        A kernel of Euclidean distance, k(x, x) = 1.
    taper : float
        Radius beyond which the correlation is 0; infinity for no taper.
    """

    kernel: Kernel
    taper: float = math.inf

    def __post_init__(self) -> None:
        if self.kernel.declared.of != SQUARED or not self.kernel.compiled:
            raise InputError(f"kernel {self.kernel.kind}: it must be a function of Euclidean distance")
        if not self.taper > 0:
            raise InputError(f"taper = {self.taper:g}: it must be a positive radius")

    @property
    def reach(self) -> float:
        """Radius of the support: the correlation is exactly 0 beyond it; infinity if it is positive everywhere."""
        ends = self.kernel.declared.limited
        return min(self.taper, 1.0 / self.kernel.gamma if ends else math.inf)

    @property
    def compiled(self) -> Compiled:
        """Arguments of :func:`correlate`."""
        return self.kernel.parameters(np.dtype(np.float64)), 0.0 if math.isinf(self.taper) else 1.0 / self.taper

    def __call__(self, distances: NDArray[np.float64]) -> NDArray[np.float64]:
        """Correlations at these distances, in an array of the same shape."""
        values = np.square(np.asarray(distances, np.float64)).ravel()
        correlate(values, np.zeros_like(values), np.empty_like(values), *self.compiled)
        return values.reshape(np.shape(distances))

    def matrix(self, X: NDArray[np.float64], Z: NDArray[np.float64]) -> NDArray[np.float64]:
        """Correlations of all points `X`, shape (n, d), with all points `Z`, (m, d): n m (3 d + about 10) flops.

        Beside the result, two blocks of at most 2 MiB, or of a row, per thread.
        """
        K = np.empty((len(X), len(Z)))

        def fill(lo: int, hi: int) -> None:
            squares, gap = K[lo:hi], np.empty((hi - lo, len(Z)))
            squares[:] = 0.0
            for x, z in zip(X[lo:hi].T, Z.T, strict=True):
                np.subtract(x[:, None], z, out=gap)
                squares += np.square(gap, out=gap)
            correlate(squares.reshape(-1), np.zeros(squares.size), gap.reshape(-1), *self.compiled)

        for_blocks(fill, blocks(len(X), max(1, _BLOCK // max(1, len(Z)))))
        return K

    def cut(
        self, corners: NDArray[np.float64], counts: NDArray[np.float64], edge: NDArray[np.float64], bound: float
    ) -> tuple[float, float]:  # fmt: skip
        """The smallest radius at which the correlation may be cut, and a bound on the error of K.

        Parameters
        ----------
        corners : ndarray, shape (b, d)
            Lower corners of boxes that hold all points.
        counts : ndarray, shape (b,)
            Number of points in each.
        edge : ndarray, shape (d,)
            Size of the boxes.
        bound : float
            Largest admissible spectral norm of the part of K that is dropped.

        Returns
        -------
        radius : float
            Infinity if there is none below the diameter of the points.
        norm : float
            The largest row sum of the dropped part, which bounds its spectral norm.

        Notes
        -----
        The correlation must decrease with distance. Each pair of boxes is bounded by the correlation at the least
        distance between them: b^2 correlations, and b^2 products for each of about 12 radii.
        """
        least = np.zeros((len(corners), len(corners)))
        for x, width in zip(corners.T, edge, strict=True):
            least += np.square(np.maximum(np.abs(x[:, None] - x) - width, 0.0))
        least = np.sqrt(least)
        values, longest = self(least), float(least.max())

        def dropped(radius: float) -> float:
            # Pairs of boxes closer than the radius may contain dropped pairs, whose correlation is at most that at it.
            return float((np.minimum(values, self(np.array([radius]))) @ counts).max())

        low, high = 1e-9, 1.0  # radii over the largest distance
        if not dropped(longest) <= bound:
            return math.inf, 0.0
        while high > 1.01 * low:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if dropped(longest * middle) <= bound else (middle, high)
        return longest * high, dropped(longest * high)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def correlate(squares: Doubles, zeros: Doubles, factors: Doubles, kernel: Parameters, taper: float) -> None:
    """Replace squared distances by correlations, in place.

    Parameters
    ----------
    squares : contiguous array of float64, shape (n,)
    zeros : contiguous array of float64, shape (>= n,)
        Zeros.
    factors : array of float64, shape (>= n,)
        Work space.
    kernel, taper
        From :attr:`Correlation.compiled`.

    Notes
    -----
    Kernels compute |x|^2 + |z|^2 - 2 x.z. With norms of 0 and a product of -|x-z|^2 / 2, there is no rounding error.
    """  # pragma: no cover - compiled
    n = squares.size
    if taper > 0.0:
        for k in range(n):
            r = taper * math.sqrt(squares[k])
            x = max(0.0, 1.0 - r)
            factors[k] = x * x * x * x * (1.0 + 4.0 * r) if x > 0.0 else 0.0
    for k in range(n):
        squares[k] *= -0.5
    finish(squares, 0.0, zeros, kernel)
    if taper > 0.0:
        for k in range(n):
            squares[k] *= factors[k]


# -- neighbours ------------------------------------------------------------------------------------------

_MOST_CUBES = 1 << 20  # cubes along one coordinate: in three, their numbers stay below 2^63


class Cubes:
    """Points sorted into cubes as wide as a radius: the neighbours of a point lie in the cubes around it.

    Parameters
    ----------
    X : ndarray of float64, shape (n, d)
    radius : float
        Distance below which points are neighbours, positive.

    Attributes
    ----------
    points : ndarray, shape (d, n)
        The points in the order of their cubes, one coordinate per row.
    order : ndarray of int64, shape (n,)
        Row of `X` of each point.
    square : float
        Squared radius.
    runs : int
        Number of runs of consecutive points that hold the neighbours of any point: 3^(d-1).

    Notes
    -----
    n log n comparisons, and n (d + 2) numbers of memory. In the plane, the cubes around a point hold 9 / pi = 2.9
    times as many points as the circle of the radius; in space, 27 / (4 pi / 3) = 6.4 times.
    """

    def __init__(self, X: NDArray[np.float64], radius: float) -> None:
        d = X.shape[1]
        self.radius, self.runs = float(radius), 3 ** (d - 1)
        self.square = self.radius * self.radius  # infinite for a huge radius, which a power would refuse
        self.low = X.min(axis=0) if len(X) else np.zeros(d)
        span = (X.max(axis=0) if len(X) else np.zeros(d)) - self.low
        self.edge = np.maximum(self.radius, span / _MOST_CUBES)
        self.shape = (
            np.minimum(np.floor(span / self.edge), _MOST_CUBES).astype(np.int64) + 1
        )  # by the division of `_cube`
        keys = self._keys(self._cube(X))
        self.order = np.argsort(keys, kind="stable")
        self.points = np.ascontiguousarray(X[self.order].T)
        self.keys, first = np.unique(keys[self.order], return_index=True)
        self.starts = np.append(first, len(X)).astype(np.int64)

    def _cube(self, X: NDArray[np.float64]) -> NDArray[np.int64]:
        """Cube of each point; points outside are put into a cube next to the outermost ones."""
        with np.errstate(invalid="ignore", over="ignore"):
            return np.clip(np.floor((X - self.low) / self.edge), -2, self.shape + 1).astype(np.int64)

    def _keys(self, cubes: NDArray[np.int64]) -> NDArray[np.int64]:
        """One number per cube; cubes that differ by 1 in the last coordinate have consecutive numbers."""
        keys = np.zeros(len(cubes), np.int64)
        for count, column in zip(self.shape, cubes.T, strict=True):
            keys = keys * count + column
        return keys

    def around(self, Q: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Runs of points that hold all neighbours of each point of `Q`, shape (q, d).

        Returns
        -------
        which : ndarray of int64, shape (q,)
            Index in `ends` for each point of `Q`.
        ends : ndarray of int64, shape (u, runs, 2)
            First point of each run, and one past the last, for each of the u cubes of `Q`.
        """
        cubes, which = np.unique(self._cube(Q), axis=0, return_inverse=True)
        ends = np.zeros((len(cubes), self.runs, 2), np.int64)
        for run, offset in enumerate(itertools.product((-1, 0, 1), repeat=Q.shape[1] - 1)):
            line = cubes.copy()
            line[:, :-1] += np.array(offset, np.int64)
            inside = ((line[:, :-1] >= 0) & (line[:, :-1] < self.shape[:-1])).all(axis=1)
            for side, column in ((0, line[:, -1] - 1), (1, line[:, -1] + 1)):
                line_end = line.copy()
                line_end[:, -1] = np.clip(column, 0, self.shape[-1] - 1)
                at = np.searchsorted(self.keys, self._keys(line_end), side="left" if side == 0 else "right")
                ends[:, run, side] = np.where(inside, self.starts[at], 0)
        return which.reshape(-1).astype(np.int64), ends


@numba.njit(cache=True, nogil=True, error_model="numpy")
def gather(x: Doubles, ends: Longs, points: Doubles, square: float, squares: Doubles, where: Longs) -> int:
    """Collect the points within the radius of one point; return their number.

    Parameters
    ----------
    x : array, shape (d,)
    ends : array of int64, shape (runs, 2)
        From :meth:`Cubes.around`.
    points : array, shape (d, n)
        :attr:`Cubes.points`.
    square : float
        The squared radius.
    squares, where : arrays
        Receive squared distances and places in `points`. They must have room for all candidates, see :func:`widest`.
    """  # pragma: no cover - compiled
    m = 0
    for run in range(ends.shape[0]):
        for j in range(ends[run, 0], ends[run, 1]):
            t = 0.0
            for k in range(x.size):
                gap = points[k, j] - x[k]
                t += gap * gap
            squares[m], where[m] = t, j
            m += t < square
    return m


@numba.njit(cache=True, nogil=True, error_model="numpy")
def widest(ends: Longs) -> int:
    """Largest number of candidates of a cube, plus 1 for the place after the last."""  # pragma: no cover - compiled
    largest = 0
    for cube in range(ends.shape[0]):
        total = 0
        for run in range(ends.shape[1]):
            total += ends[cube, run, 1] - ends[cube, run, 0]
        largest = max(largest, total)
    return largest + 1


# -- the matrix ------------------------------------------------------------------------------------------

BLOCK = 4096  # rows of a task: many tasks per thread, since their times differ with the density of the points
ENTRY = 12  # bytes of a stored value with its column
_STRETCH = 1 << 15  # most rows of one stored sparse matrix, so that threads that end early take another one
_MOST_STORED = 1 << 30  # most values of one stored sparse matrix, whose indices have 32 bits


def stretches(inner: int, n: int, widest: int = 1) -> list[tuple[int, int]]:
    """Ranges of rows, each stored as one sparse matrix: as long as all threads have work, since each costs a call.

    Parameters
    ----------
    inner : int
        A row at which a range must begin.
    n : int
        Number of rows.
    widest : int
        Most values in a row.
    """
    height = max(1, min(_STRETCH, max(BLOCK, -(-n // current())), _MOST_STORED // max(1, widest)))
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
        Bytes that stored values may take. If they do not fit, every product computes them again.
    inner : int
        A row at which products may begin or end without copying stored values.

    Attributes
    ----------
    nnz : int
        Number of pairs closer than the radius; a point of `Q` that is also a column is a pair with itself.
    stored : bool
        True if the values are stored.

    Notes
    -----
    Stored values take 12 bytes per pair, and 2 flops per pair, product and vector. Otherwise every product searches the
    pairs again: 3 d flops per candidate (2.9 candidates per pair in the plane, 6.4 in space) and one correlation per
    pair.
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
        self.stored = ENTRY * self.nnz <= limit
        self._rows = self._stored(inner) if self.stored else []

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return len(self.Q), len(self.cubes.order)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored values."""
        return ENTRY * self.nnz if self.stored else 0

    def product(self, V: NDArray[np.float64], out: NDArray[np.float64], lo: int = 0, hi: int | None = None) -> None:
        """Write rows `lo` to `hi` of ``K V.T`` to the same columns of `out`, on all threads.

        Parameters
        ----------
        V : ndarray, shape (t, columns)
        out : ndarray, shape (t, rows)
        lo, hi : int
        """
        hi = len(self.Q) if hi is None else hi
        if self.stored:
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
        _count(self.Q, self.which, self.ends, self.cubes.points, self.cubes.square, self._room, self.counts, lo, hi)

    def _stored(self, inner: int) -> list[tuple[int, int, csr_array]]:
        """All values, as sparse matrices of ranges of rows: first row, one past the last, matrix."""
        starts = np.concatenate([[0], np.cumsum(self.counts)])
        columns, values = np.empty(self.nnz, np.int32), np.empty(self.nnz)

        def fill(lo: int, hi: int) -> None:
            _fill(
                self.Q, self.which, self.ends, self.cubes.points, self.cubes.square, self._room, self.cubes.order,
                *self.correlation.compiled, starts, columns, values, lo, hi,
            )  # fmt: skip

        for_blocks(fill, blocks(len(self.Q), BLOCK))
        pieces = []
        for lo, hi in stretches(inner, len(self.Q), int(self.counts.max(initial=0))):
            entries, indptr = slice(starts[lo], starts[hi]), (starts[lo : hi + 1] - starts[lo]).astype(np.int32)
            shape = hi - lo, self.shape[1]
            pieces.append((lo, hi, sp.csr_array((values[entries], columns[entries], indptr), shape=shape)))
        return pieces

    def _again(self, lo: int, hi: int, V: NDArray[np.float64], out: NDArray[np.float64]) -> None:
        _multiply_again(
            self.Q, self.which, self.ends, self.cubes.points, self.cubes.square, self._room,
            *self.correlation.compiled, V, out, lo, hi,
        )  # fmt: skip


def multiply(
    rows: csr_array, first: int, lo: int, hi: int, columns: NDArray[np.float64], out: NDArray[np.float64]
) -> None:
    """Write the products of rows `lo` to `hi`, of a matrix whose first row is `first`, to columns of `out`."""
    part = rows if hi - lo == rows.shape[0] else rows[lo - first : hi - first]
    out[:, lo:hi] = (part @ columns).T


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
        Points, and as for :func:`cakriging.near_matrix.gather`.
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
