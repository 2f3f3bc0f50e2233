"""Pairs of near row groups, the only ones whose values of a narrow kernel are not negligible.

Rows are ordered as the leaves of a k-d tree, so that neighbours follow each other. A few consecutive rows then have a
small bounding box, and two groups whose boxes are farther apart than the cutoff radius are skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows, dense
from cacore.kernels import Points
from cacore.machine import threads
from cacore.machine.threads import blocks, for_blocks
from casvm.solver.pair import Index

if TYPE_CHECKING:
    from cacore.arrays import Doubles, Integers, Ints, Longs, Reals

VANISHED = 1e-3  # largest change of a gradient by neglected kernel values, as a share of the tolerance
_SAMPLE = 500  # rows from which the share of near pairs is estimated


def share_near(X: Rows, squared: float) -> float:
    """Estimate from a sample the share of pairs of rows within this squared distance."""
    step = max(1, X.shape[0] // _SAMPLE)
    points = Points(dense(X[::step]).astype(np.float64), None)
    D = points.squares[:, None] + points.squares - 2.0 * (points.X @ points.X.T)
    return float(np.mean(squared >= D))


class Runs(NamedTuple):
    """The blocks of columns near each group of rows, as runs of consecutive blocks.

    Attributes
    ----------
    starts : ndarray of int64, shape (groups + 1,)
        Index of each group's first run.
    first, last : ndarray of int64, shape (runs,)
        A run holds the blocks first to last - 1.
    blocks : ndarray of int64, shape (groups,)
        Number of blocks in all runs of each group.
    """

    starts: Index
    first: Index
    last: Index
    blocks: Index


class Boxes:
    """Bounding boxes of groups of consecutive rows.

    Parameters
    ----------
    points : Points
        Rows as CSR.
    rows : ndarray of int64
        Row numbers, in order.
    size : int
        Rows per group; the last group may have fewer.

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
        """For each group, the groups of `columns` whose boxes lie within this squared distance.

        2 d operations per pair of groups, on all threads.
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
    values: Reals, columns: Ints, starts: Integers, rows: Longs, size: int, lo: int, hi: int, lower: Doubles,
    upper: Doubles,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Compute boxes `lo` to `hi` of groups of `size` CSR rows; `lower` and `upper` have shape (d, groups)."""
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
    lower: Doubles, upper: Doubles, b_lower: Doubles, b_upper: Doubles, squared: float, lo: int, hi: int, found: Longs
) -> Longs:  # pragma: no cover - compiled
    """Runs, int64, shape (runs, 2), of boxes b near each of the boxes `lo` to `hi`; `found` takes their counts."""
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
