"""Sums of kernel values over near rows alone, for kernels that vanish, or fall below the rounding, beyond a radius.

Both sets of rows are divided into groups of neighbours. A group of new rows meets only the groups whose boxes are
within the radius; what the others would add is below the rounding of the largest coefficient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows, concatenate, dense, is_sparse, nbytes
from cacore.kernels import Kernel, Points
from cacore.kernels.near import spatial_groups, squared_cutoff
from cacore.machine.threads import blocks, for_blocks
from cacore.near.boxes import Boxes, Index, Runs

# None of these was measured alone: they came together, in 7105afd1.
GROUP = 128  # rows of a group at most: fewer make tighter boxes, and more pairs of boxes to compare
WIDE = 4  # dense rows may take this many times the bytes of the CSR rows that they replace
_COLUMNS = 1024  # columns of a tile: GROUP x 1,024 doubles are 1 MiB, which stays in a core's L2 cache
_SHARE = 0.7  # share of near pairs from which on all cost less: whole blocks are faster per pair
_VALUE, _SORT = 30, 120  # flops that a kernel value costs beside its distance, and a number that is put in order once


Reduce = Callable[[NDArray[np.float64], str], NDArray[np.float64]]
Piece = tuple[Rows, NDArray[np.floating]]  # rows, shape (m, d), and their coefficients, shape (m,) or (m, t)


def expansion(kernel: Kernel, pieces: Sequence[Piece], X: Rows, all_pairs: bool = False) -> NDArray[np.floating]:
    """Sum of ``K(X, A) @ coefficients`` over pieces, on all threads, without distant pairs where these change nothing.

    Parameters
    ----------
    kernel : Kernel
    pieces : sequence of (A, coefficients)
        At least one; all in one dtype, and all dense or all CSR.
    X : ndarray or CSR, shape (n, d)
        New rows, of the same dtype.
    all_pairs : bool
        True if the sign of a sum counts however small it is: no pair is left out, so that the sign does not depend on
        the other new rows.

    Returns
    -------
    ndarray, shape (n,) or (n, t)

    Notes
    -----
    What is left out adds at most eps max |coefficients| to a sum of any column, eps being that of the dtype. Each pair
    of rows in near groups costs 2 d + 2 t flops and a kernel value, each pair of groups 2 d operations, and the groups
    d (m log2(m / `GROUP`) + n log2(n / `GROUP`)) for m rows in all pieces. Memory: two copies of the pieces' rows, one
    of the new ones, and the near rows of a group on each thread. All pairs are computed, piece by piece, if most are
    near, if there are too few new rows to repay the order, or if CSR rows would be much larger as dense ones.
    """
    rows = [A for A, _ in pieces]
    coefficients = pieces[0][1] if len(pieces) == 1 else np.concatenate([piece for _, piece in pieces])
    if not all_pairs and may_pay(kernel, rows, X):
        near = NearGroups.of(kernel, dense(concatenate([dense(A) for A in rows])), coefficients, dense(X))
        if near is not None:
            return near(coefficients)
    total = np.zeros((X.shape[0], *coefficients.shape[1:]), coefficients.dtype)
    for A, piece_coefficients in pieces:
        points = kernel.points(A)
        total += kernel.apply(kernel.points(X, like=points), points, piece_coefficients)
    return total


def may_pay(kernel: Kernel, rows: list[Rows], X: Rows) -> bool:
    """True if near groups may cost less than all pairs; looks at the shapes alone."""
    (n, d), m = X.shape, sum(A.shape[0] for A in rows)
    if not min(m, n) > GROUP:
        return False
    if any(is_sparse(A) and math.prod(A.shape) * A.dtype.itemsize > WIDE * nbytes(A) for A in [*rows, X]):
        return False
    return pays(kernel, m, n, d)


def pays(kernel: Kernel, m: int, n: int, d: int) -> bool:
    """True if putting m and n rows of d features in order costs little beside the kernel values of all pairs."""
    if not (kernel.compiled and kernel.of_distance and min(m, n)):
        return False
    order = _SORT * d * (m * math.log2(max(2.0, m / GROUP)) + n * math.log2(max(2.0, n / GROUP)))
    return order < 0.1 * m * n * (_VALUE + 2 * d)


def reach(
    kernel: Kernel, pieces: Sequence[Piece], X: NDArray[np.floating], reduce: Reduce = lambda values, op: values
) -> float:
    """The squared distance beyond which all rows together change no sum; infinity if there is none.

    If rows are on several ranks, `reduce` combines their arrays by "sum", "min" or "max". See :func:`expansion` for the
    bound.
    """
    sized = [(A, np.abs(c.reshape(len(c), -1)).astype(np.float64), np.finfo(c.dtype).eps) for A, c in pieces if len(c)]
    ends = np.full((2, X.shape[1]), np.inf)
    for A in [X, *(dense(A) for A, _, _ in sized)]:
        ends = np.minimum(ends, [A.min(axis=0, initial=np.inf), -A.max(axis=0, initial=-np.inf)])
    low, high = reduce(ends, "min") * [[1.0], [-1.0]]
    widest = [max((size.shape[1] for _, size, _ in sized), default=0), max((eps for _, _, eps in sized), default=0.0)]
    columns, eps = reduce(np.array(widest, np.float64), "max").tolist()
    sums, largest = np.zeros(int(columns)), np.zeros(int(columns))
    for _, size, _ in sized:
        sums, largest = sums + size.sum(axis=0), np.maximum(largest, size.max(axis=0))
    sums, largest = reduce(sums, "sum"), reduce(largest, "max")
    used, span = sums > 0, high - low
    return squared_cutoff(kernel, float(span @ span), eps * float((largest[used] / sums[used]).min(initial=1.0)))


@dataclass(frozen=True)
class NearGroups:
    """Groups of the rows of an expansion and of new rows, and which of them are near each other.

    Attributes
    ----------
    kernel : Kernel
    rows, asked : Points
        Rows of the expansion in the order of their groups; new rows in the order given.
    order, places : ndarray of int64
        Numbers of the former, and of the latter in the order of their groups.
    ends, stops : ndarray of int64
        Borders of the groups of both.
    runs : Runs
        Groups of the expansion near each group of new rows.
    """

    kernel: Kernel
    rows: Points
    asked: Points
    order: Index
    places: Index
    ends: Index
    stops: Index
    runs: Runs

    @classmethod
    def of(
        cls, kernel: Kernel, A: NDArray[np.floating], coefficients: NDArray[np.floating], X: NDArray[np.floating],
        max_share: float = _SHARE,
    ) -> NearGroups | None:  # fmt: skip
        """The near groups; None if a share of `max_share` of the pairs, or more, counts."""
        squared = reach(kernel, [(A, coefficients)], X)
        if not math.isfinite(squared):
            return None
        (order, ends), (places, stops) = spatial_groups(A, GROUP), spatial_groups(X, GROUP)
        rows = A[order]
        boxes = Boxes.of_rows(X[places], stops, kernel.separable)
        runs = boxes.near(Boxes.of_rows(rows, ends, kernel.separable), squared)
        points = kernel.points(rows)
        near = cls(kernel, points, kernel.points(X, like=points), order, places, ends, stops, runs)
        return near if near.share < max_share else None

    def columns(self, group: int) -> Index:
        """Numbers of the expansion's rows that are near a group of new rows, in the order of their groups."""
        span = slice(*self.runs.starts[group : group + 2])
        first, last = self.ends[self.runs.first[span]].tolist(), self.ends[self.runs.last[span]].tolist()
        return np.concatenate([np.zeros(0, np.int64), *map(np.arange, first, last)])

    @property
    def share(self) -> float:
        """Share of the pairs of rows that are computed."""
        each = np.append(0, np.cumsum(self.ends[self.runs.last] - self.ends[self.runs.first]))
        pairs = np.diff(self.stops) @ (each[self.runs.starts[1:]] - each[self.runs.starts[:-1]])
        return float(pairs) / (len(self.order) * len(self.places))

    def __call__(self, coefficients: NDArray[np.floating]) -> NDArray[np.floating]:
        """The sums, in the order of the new rows; `coefficients` are in the order of the expansion's rows given."""
        out = np.zeros((len(self.places), *coefficients.shape[1:]), coefficients.dtype)
        ordered = coefficients[self.order]

        def add(lo: int, hi: int) -> None:
            for group in range(lo, hi):
                mine = self.places[self.stops[group] : self.stops[group + 1]]
                points, total = self.asked[mine], np.zeros((len(mine), *ordered.shape[1:]), ordered.dtype)
                columns = self.columns(group)
                for a, b in blocks(len(columns), _COLUMNS):
                    part = columns[a:b]
                    total += self.kernel.block(points, self.rows[part]) @ ordered[part]
                out[mine] = total

        for_blocks(add, blocks(len(self.stops) - 1, 16))
        return out
