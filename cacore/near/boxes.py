"""Bounding boxes of groups of rows, which of them are near each other, and what is lost without the distant ones.

Two groups whose boxes are farther apart than a kernel's cutoff radius need no kernel values. The boxes may have any
number of features.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.arrays import Doubles, Integers, Ints, Longs, Reals
from cacore.kernels import Kernel
from cacore.kernels.evaluate import FACTORS, Parameters, at_distances
from cacore.kernels.values import Nonzeros
from cacore.machine import threads
from cacore.machine.threads import blocks, for_blocks

Index = NDArray[np.int64]


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

    def joined(self) -> Index:
        """Number of the connected component of each group, if the groups of rows are those of the columns."""
        return np.asarray(_joined(self.starts, self.first, self.last))


class Boxes:
    """Bounding boxes of groups of rows.

    Parameters
    ----------
    lower, upper : ndarray of float64, shape (d, groups)
        The least and the largest value of each feature.
    separable : bool
        True for a kernel that is a product over the features: the distance is then the largest difference in a feature.
        It is Euclidean otherwise.
    """

    def __init__(self, lower: NDArray[np.float64], upper: NDArray[np.float64], separable: bool = False) -> None:
        self.lower, self.upper, self.separable = lower, upper, separable

    @classmethod
    def of_points(cls, points: Nonzeros, rows: Index, size: int, separable: bool = False) -> Boxes:
        """Boxes of groups of `size` consecutive ones of `rows`; `points` are CSR. The last group may be smaller."""
        X, count = points.X, -(-len(rows) // size)
        lower, upper = np.full((X.shape[1], count), np.inf), np.full((X.shape[1], count), -np.inf)
        for_blocks(
            lambda lo, hi: _enclose(X.data, X.indices, X.indptr, rows, size, lo, hi, lower, upper), blocks(count, 32)
        )
        return cls(lower, upper, separable)

    @classmethod
    def of_rows(cls, X: NDArray[np.floating], ends: Index, separable: bool = False) -> Boxes:
        """Boxes of the dense rows ends[g] to ends[g + 1] - 1 of `X`, for each group g, none of them empty."""
        groups = range(len(ends) - 1)
        sides = [[side(X[ends[g] : ends[g + 1]], axis=0) for g in groups] for side in (np.min, np.max)]
        lower, upper = (np.array(side, np.float64).reshape(-1, X.shape[1]).T.copy() for side in sides)
        return cls(lower, upper, separable)

    def __len__(self) -> int:
        return int(self.lower.shape[1])

    def subset(self, which: Index | slice, features: Index | slice = slice(None)) -> Boxes:
        """Some of the boxes, in some of the features."""
        lower, upper = (np.ascontiguousarray(side[features][:, which]) for side in (self.lower, self.upper))
        return Boxes(lower, upper, self.separable)

    def near(self, columns: Boxes, squared: float) -> Runs:
        """For each group, the groups of `columns` whose boxes lie within this squared distance.

        2 d operations per pair of groups, on all threads.
        """
        groups = len(self)
        totals = np.zeros((groups, 2), np.int64)  # runs, and blocks in them
        tasks = _tasks(groups)
        pieces: dict[int, NDArray[np.int64]] = {}

        def search(lo: int, hi: int) -> None:
            sides = self.lower, self.upper, columns.lower, columns.upper
            pieces[lo] = _runs(*sides, self.separable, squared, lo, hi, totals)

        for_blocks(search, tasks)
        first, last = np.concatenate([np.zeros((0, 2), np.int64), *(pieces[lo] for lo, _ in tasks)]).T.copy()
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(totals[:, 0])])
        return Runs(starts, first, last, totals[:, 1].copy())

    def left_out(self, counts: Index, kernel: Kernel, squares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Bounds on the row sums of K that is left out between boxes farther apart than each squared distance.

        Parameters
        ----------
        counts : ndarray of int64, shape (groups,)
            Number of rows in each box.
        kernel : Kernel
            A function of the squared distance that decreases, or a product over the features.
        squares : ndarray, shape (s,)
            Squared distances, ascending.

        Returns
        -------
        ndarray, shape (s,)
            The largest sum, over all rows: every row of a distant box counts with the kernel value at the boxes'
            distance. It bounds the spectral norm of what is left out.

        Notes
        -----
        2 d operations and one kernel value per pair of groups, on all threads.
        """
        tasks, weights = _tasks(len(self)), counts.astype(np.float64)
        sums = np.zeros((len(tasks), len(squares)))
        parameters = kernel.parameters(np.dtype(np.float64))

        def add(number: int, lo: int, hi: int) -> None:
            _left_out(self.lower, self.upper, weights, parameters, squares, lo, hi, sums[number])

        for_blocks(add, [(number, *ends) for number, ends in enumerate(tasks)])
        return np.asarray(sums.max(axis=0, initial=0.0))


def _tasks(groups: int) -> list[tuple[int, int]]:
    """Ranges of groups, about four for each thread."""
    return blocks(groups, max(1, -(-groups // (4 * threads.current()))))


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


@numba.njit(inline="always")
def _distances(
    lower: Doubles, upper: Doubles, group: int, b_lower: Doubles, b_upper: Doubles, separable: bool, distance: Doubles
) -> None:  # pragma: no cover - compiled
    """Write the squared distances of one box from all boxes b to `distance`; `separable` is that of :class:`Boxes`."""
    distance[:] = 0
    for c in range(b_lower.shape[0]):
        low, high, below, above = lower[c, group], upper[c, group], b_lower[c], b_upper[c]
        for k in range(distance.size):
            gap = max(0.0, max(below[k] - high, low - above[k]))
            distance[k] = max(distance[k], gap * gap) if separable else distance[k] + gap * gap


@numba.njit(cache=True, nogil=True, fastmath={"contract"})
def _runs(
    lower: Doubles, upper: Doubles, b_lower: Doubles, b_upper: Doubles, separable: bool, squared: float, lo: int,
    hi: int, totals: Longs,
) -> Longs:  # fmt: skip  # pragma: no cover - compiled
    """Runs, int64, shape (runs, 2), of boxes b near each of the boxes `lo` to `hi`; `totals` takes their counts."""
    count = b_lower.shape[1]
    runs, used, distance = np.empty((64, 2), np.int64), 0, np.empty(count)
    for group in range(lo, hi):
        _distances(lower, upper, group, b_lower, b_upper, separable, distance)
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
                totals[group, 0] += 1
                begun = True
            runs[used - 1, 1] = k + 1
            totals[group, 1] += 1
    return runs[:used].copy()


@numba.njit(cache=True, nogil=True, fastmath={"contract"})
def _left_out(
    lower: Doubles, upper: Doubles, counts: Doubles, kernel: Parameters, squares: Doubles, lo: int, hi: int,
    largest: Doubles,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Raise `largest`, shape (s,), to the sums of boxes `lo` to `hi`; see :meth:`Boxes.left_out`."""
    count = lower.shape[1]
    distance, values, zeros, sums = np.empty(count), np.empty(count), np.zeros(count), np.zeros(squares.size + 1)
    for group in range(lo, hi):
        _distances(lower, upper, group, lower, upper, kernel[4] == FACTORS, distance)
        at_distances(distance, values, zeros, kernel)
        sums[:] = 0
        for k in range(count):
            sums[np.searchsorted(squares, distance[k])] += counts[k] * abs(values[k])
        total = 0.0
        for s in range(squares.size - 1, -1, -1):
            total += sums[s + 1]
            largest[s] = max(largest[s], total)


@numba.njit(cache=True, nogil=True)
def _joined(starts: Longs, first: Longs, last: Longs) -> Longs:  # pragma: no cover - compiled
    """See :meth:`Runs.joined`: a forest of groups, whose roots are the least groups of their components."""
    parent = np.arange(starts.size - 1)
    for group in range(parent.size):
        for run in range(starts[group], starts[group + 1]):
            for neighbour in range(first[run], last[run]):
                a, b = group, neighbour
                while parent[a] != a:
                    parent[a] = parent[parent[a]]
                    a = parent[a]
                while parent[b] != b:
                    parent[b] = parent[parent[b]]
                    b = parent[b]
                parent[max(a, b)] = min(a, b)
    number, count = np.empty_like(parent), 0
    for group in range(parent.size):
        if parent[group] == group:
            number[group] = count
            count += 1
        else:
            number[group] = number[parent[group]]
    return number
