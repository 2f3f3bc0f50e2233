"""Points sorted into cubes as wide as a radius, so that the neighbours of a point lie in the cubes around it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numba
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from cacore.arrays import Doubles, Longs

_MOST = 1 << 20  # cubes along one coordinate


class Cubes:
    """Points in the order of their cubes, with an index of the cubes.

    Parameters
    ----------
    X : ndarray of float64, shape (n, d)
    radius : float
        Positive: neighbours are closer than this.

    Attributes
    ----------
    points : ndarray, shape (d, n)
        The points in the order of their cubes, one coordinate per row.
    order : ndarray of int64, shape (n,)
        Row of each of them in `X`.
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
        self.edge = np.maximum(self.radius, span / _MOST)
        self.shape = np.minimum(np.floor(span / self.edge), _MOST).astype(np.int64) + 1  # by the division of `_cube`
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
    """Collect the points closer to one point than a radius; return their number.

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
        Receive squared distances, and places in `points`; the number of candidates fits.
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
    most = 0
    for cube in range(ends.shape[0]):
        total = 0
        for run in range(ends.shape[1]):
            total += ends[cube, run, 1] - ends[cube, run, 0]
        most = max(most, total)
    return most + 1
