"""Which rows lie near each other: elsewhere a narrow kernel is 0 to any accuracy that matters.

Rows are put in an order in which neighbours follow each other, by halving them as a k-d tree does. A few rows in a row
then have a small box around them, and two such groups whose boxes are too far apart have no kernel value that counts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows, dense
from cacore.kernels import Points
from cacore.machine import threads
from cacore.machine.threads import blocks, for_blocks
from casvm.solver.pair import Index

VANISHED = 1e-3  # of the tolerance, what kernel values that count as 0 may change a gradient by
_SAMPLE = 500  # rows whose kernel values tell whether most of them vanish


def share_near(X: Rows, squared: float) -> float:
    """The share of pairs of rows within this squared distance, by a sample."""
    step = max(1, X.shape[0] // _SAMPLE)
    points = Points(dense(X[::step]).astype(np.float64), None)
    D = points.squares[:, None] + points.squares - 2.0 * (points.X @ points.X.T)
    return float(np.mean(squared >= D))


class Runs(NamedTuple):
    """The blocks of columns that are near each group of rows, in runs of neighbours.

    Attributes
    ----------
    starts : ndarray of int64, shape (groups + 1,)
        Where each group's runs begin.
    first, last : ndarray of int64, shape (runs,)
        A run is of the blocks first to last - 1.
    blocks : ndarray of int64, shape (groups,)
        Blocks of all runs of each group.
    """

    starts: Index
    first: Index
    last: Index
    blocks: Index


class Boxes:
    """The smallest boxes around groups of rows that follow each other.

    Parameters
    ----------
    points : Points
        Rows as CSR.
    rows : ndarray of int64
        Which of them, in what order.
    size : int
        Rows of a group; the last one may have fewer.

    Attributes
    ----------
    lower, upper : ndarray, shape (d, groups)
    """

    def __init__(self, points: Points, rows: Index, size: int) -> None:
        X, count = points.X, -(-len(rows) // size)
        self.lower, self.upper = np.full((X.shape[1], count), np.inf), np.full((X.shape[1], count), -np.inf)
        for_blocks(
            lambda lo, hi: _enclose(X.data, X.indices, X.indptr, rows, size, lo, hi, self.lower, self.upper),
            blocks(count, 32),
        )

    def near(self, columns: Boxes, squared: float) -> Runs:
        """The groups of columns that may hold a row within this squared distance of a row of each group of these.

        2 d operations for each pair of groups, on all threads.
        """
        groups = self.lower.shape[1]
        found = np.zeros((groups, 2), np.int64)  # runs, and blocks in them
        first, last = np.zeros(0, np.int64), np.zeros(0, np.int64)
        tasks = blocks(groups, max(1, -(-groups // (4 * threads.current()))))
        pieces: dict[int, NDArray[np.int64]] = {}

        def search(lo: int, hi: int) -> None:
            pieces[lo] = _runs(self.lower, self.upper, columns.lower, columns.upper, squared, lo, hi, found)

        for_blocks(search, tasks)
        first, last = np.concatenate([np.zeros((0, 2), np.int64), *(pieces[lo] for lo, _ in tasks)]).T.copy()
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(found[:, 0])])
        return Runs(starts, first, last, found[:, 1].copy())


@numba.njit(cache=True, nogil=True)
def _enclose(
    values: Any, columns: Any, starts: Any, rows: Any, size: Any, lo: Any, hi: Any, lower: Any, upper: Any
) -> None:  # pragma: no cover - compiled
    """The boxes `lo` to `hi` of groups of `size` rows, of CSR arrays; lower and upper ends, shape (d, groups)."""
    x = np.zeros(lower.shape[0])
    for group in range(lo, hi):
        for k in range(group * size, min(rows.size, (group + 1) * size)):
            x[:] = 0
            for q in range(starts[rows[k]], starts[rows[k] + 1]):
                x[columns[q]] = values[q]
            for c in range(x.size):
                lower[c, group] = min(lower[c, group], x[c])
                upper[c, group] = max(upper[c, group], x[c])


@numba.njit(cache=True, nogil=True, fastmath={"contract"})
def _runs(
    lower: Any, upper: Any, b_lower: Any, b_upper: Any, squared: Any, lo: Any, hi: Any, found: Any
) -> Any:  # pragma: no cover - compiled
    """Runs, int64, shape (runs, 2), of the boxes b that are near each of the boxes `lo` to `hi`; counted in `found`."""
    d, count = b_lower.shape
    runs, used, distance = np.empty((64, 2), np.int64), 0, np.empty(count)
    for group in range(lo, hi):
        distance[:] = 0
        for c in range(d):
            low, high, below, above = lower[c, group], upper[c, group], b_lower[c], b_upper[c]
            for k in range(count):
                gap = max(0.0, max(below[k] - high, low - above[k]))
                distance[k] += gap * gap
        begun = False
        for k in range(count):
            if distance[k] > squared:
                begun = False
                continue
            if not begun:
                if used == len(runs):
                    runs = np.concatenate((runs, np.empty_like(runs)))
                runs[used, 0] = k
                used += 1
                found[group, 0] += 1
                begun = True
            runs[used - 1, 1] = k + 1
            found[group, 1] += 1
    return runs[:used].copy()
