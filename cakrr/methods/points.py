"""The M points of a model, and the rows of the least-squares problem on them.

Points are a random sample of the rows, pivots of the kernel matrix, means of K-means, or given. Rows come by leaves:
kernel values at training rows, or what a user generates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.data.rows import Rows, dense, exchange_rows, gather_rows, is_sparse
from cacore.data.shuffle import Shuffle
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.linalg.pivoted import pivoted_cholesky
from cacore.linalg.tsqr import BlockError, bounds, leaves_of, named, owners
from cakrr.iterative.preconditioner import SpreadRows
from cakrr.observe import Observation, values
from partition.algorithms import divide

SAMPLE = 20_000  # rows among which pivots or means are found; or ten per point, if that is more; reasoned


def picked(how: str, samples: Samples, M: int, kernel: Kernel, seed: int, comm: Communicator) -> Rows:
    """At most M distinct points, in double precision, on every rank; collective.

    Parameters
    ----------
    how : {"random", "pivots", "kmeans"}
    samples : Samples
        This rank's standardised rows.
    M : int
    kernel : Kernel
        For pivots.
    seed : int
    comm : Communicator

    Notes
    -----
    The first distinct rows of a shuffled order are the random points, the same on any number of ranks; 2 M d numbers
    are sent to all ranks. Pivots and means are found among 20,000 rows of this order, or 10 M: m M^2 flops for the
    pivots among m rows, and m M d per step of K-means.
    """
    first, n = comm.offset(len(samples))
    place = Shuffle(n, seed).position(np.arange(first, first + len(samples)))
    if how == "random":
        chosen = place < 2 * M  # some may be repeated
        sample = gather_rows(samples.X[chosen], comm)[np.argsort(comm.allgather(place[chosen]))]
        return distinct(sample.astype(np.float64))[:M]
    chosen = place < max(SAMPLE, 10 * M)
    X = samples.X[chosen]
    if how == "kmeans":
        return distinct(np.asarray(divide("kmeans", M, X, comm, seed).centers, np.float64))
    weights = samples["weight"][chosen] if "weight" in samples.columns else None
    spread = SpreadRows(X, place[chosen], kernel, comm, weights)
    centers = pivoted_cholesky(spread, kernel, M, seed, lambda traces: False, np.float64).centers
    if not centers.shape[0]:  # all kernel values are 0, so any point will do
        return picked("random", samples, 1, kernel, seed, comm)
    return distinct(centers.astype(np.float64))


def distinct(points: Rows) -> Rows:
    """The points without repetitions, in their order."""
    _, first = np.unique(dense(points), axis=0, return_index=True)
    return points if len(first) == points.shape[0] else points[np.sort(first)]


def checked_points(points: Rows, d: int | None = None) -> Rows:
    """The user's points, checked.

    Raises
    ------
    InputError
        They are not (M, d) finite numbers, or two of them coincide.
    """
    if not is_sparse(points):
        points = np.asarray(points)
        if points.ndim != 2 or points.dtype.kind not in "fiub":
            raise InputError(f"centers: an array of shape {points.shape} and type {points.dtype}; give (M, d) numbers")
    if not points.shape[0] or (d is not None and points.shape[1] != d):
        raise InputError(f"centers: their shape is {points.shape}, and the rows have {d} features")
    values: NDArray[np.float64] = dense(points).astype(np.float64)
    if not np.isfinite(values).all():
        i, j = np.argwhere(~np.isfinite(values))[0]
        raise InputError(f"centers: row {i}, column {j} is {values[i, j]}; leave this center out")
    _, first, which = np.unique(values, axis=0, return_index=True, return_inverse=True)
    which = which.ravel()
    again = np.flatnonzero(first[which] != np.arange(len(values)))
    if again.size:
        raise InputError(f"centers: rows {first[which[again[0]]]} and {again[0]} coincide; leave one of them out")
    return points.astype(np.float64)


Array = NDArray[np.float64]
Block = tuple[Observation | Array, Array, Array]  # rows, targets of shape (b, t), weights of shape (b,)
_ROWS = 2048  # rows of kernel values per block


class Source(ABC):
    """Blocks of rows, targets and weights, for each leaf of the tree.

    Attributes
    ----------
    leaves : int
        Number of leaves, a power of two.
    targets : int
        Number of targets of a row, t.
    once : bool
        True if the blocks can be read only once.
    """

    leaves: int
    targets: int
    once: bool = False

    @abstractmethod
    def blocks(self, leaf: int, skipped: int) -> Iterator[Block]:
        """Blocks of a leaf of this rank, without its first `skipped` ones."""

    def problem(self, kernel: Kernel, centers: Rows, leaf: int, skipped: int) -> Iterator[Array]:
        """Blocks [A y 1] of the leaf, times the roots of the weights, shape (b, M + t + 1)."""
        M, t = centers.shape[0], self.targets
        for rows, y, w in self.blocks(leaf, skipped):
            A = rows.rows(kernel, centers) if isinstance(rows, Observation) else rows
            if A.ndim != 2 or A.shape[1] != M:
                raise BlockError(f"its rows have shape {A.shape}, and there are {M} centers")
            if len(A) != len(y):
                raise BlockError(f"it has {len(A)} rows and {len(y)} targets")
            root = np.sqrt(w)
            out = np.empty((len(A), M + t + 1), order="F")
            out[:, :M], out[:, M:-1], out[:, -1] = A, y, 1.0
            out *= root[:, None]
            yield out


class TrainingRows(Source):
    """This rank's training rows, moved to the owners of their leaves; the construction is collective.

    Leaves are cut by the numbers of the rows among those of all ranks, so they do not depend on the number of ranks.
    Rows near the borders of ranks' blocks are sent to another rank: n d / leaves numbers per rank, if ranks have even
    blocks.
    """

    def __init__(self, samples: Samples, M: int, comm: Communicator) -> None:
        first, n = comm.offset(len(samples))
        self.targets = int(np.prod(samples["y"].shape[1:]))
        self.leaves = leaves_of(n, M + self.targets + 1)
        self._bounds = bounds(n, self.leaves)
        owner = owners(self.leaves, comm.size)
        leaf = np.searchsorted(self._bounds, np.arange(first, first + len(samples)), side="right") - 1
        counts = np.bincount(owner[leaf], minlength=comm.size).astype(np.int64)
        self._X = exchange_rows(samples.X, counts, comm)
        self.dtype = samples.X.dtype
        y, w = samples["y"].reshape(len(samples), self.targets), samples.row_weights()
        self._y, self._w = comm.alltoall(y, counts)[0], comm.alltoall(w, counts)[0]
        own_leaves = np.flatnonzero(owner == comm.rank)
        self._first = int(self._bounds[own_leaves[0]]) if own_leaves.size else 0

    def blocks(self, leaf: int, skipped: int) -> Iterator[Block]:
        """See :meth:`Source.blocks`; a block has up to 2,048 rows."""
        lo, hi = self._bounds[leaf] - self._first, self._bounds[leaf + 1] - self._first
        for at in range(lo + skipped * _ROWS, hi, _ROWS):
            rows = slice(at, min(at + _ROWS, hi))
            yield values(self._X[rows]), self._y[rows].astype(np.float64), self._w[rows].astype(np.float64)


Given = tuple[Any, ...]  # (rows, y) or (rows, y, w)
UserRows = Callable[[int, int], Iterable[Given]] | Iterable[Given]


class GivenRows(Source):
    """Blocks that the user generates; the construction is collective.

    Parameters
    ----------
    rows : callable or iterable
        ``rows(share, shares)`` yields the blocks of a share of the data, wherever it runs; or this rank's own blocks.
        A block is ``(A, y)`` or ``(A, y, w)``, with A an :class:`cakrr.observe.Observation` or an array of shape
        (b, M), y of shape (b,) or (b, t), and w a number or an array of shape (b,).
    shares : int
        Number of shares of a callable, a power of two. An iterable has one share per rank.
    comm : Communicator
    """

    def __init__(self, rows: UserRows, shares: int, comm: Communicator) -> None:
        self._rows: Any = rows
        self._shared = callable(rows)
        self.leaves = shares if self._shared else 1 << (comm.size - 1).bit_length()
        self.once = not comm.all(self._shared or (isinstance(rows, Iterable) and iter(rows) is not rows))
        self._own = np.flatnonzero(owners(self.leaves, comm.size) == comm.rank).tolist()
        self._looked: tuple[int, Iterator[Given]] | None = None  # a share whose first block was read, and its blocks
        self._rank = comm.rank
        with comm.agreed():
            if not (self._shared or isinstance(rows, Iterable)):
                raise InputError(f"rows = {rows!r}: give a callable rows(share, shares), or an iterable of blocks")
            mine = self._look()
        largest = int(comm.allreduce(np.array([mine], np.int64), "max")[0])
        with comm.agreed():
            if not largest:
                raise InputError("rows: there is no block of rows on any rank; yield (A, y) or (A, y, w)")
        self.targets = largest

    def _look(self) -> int:
        """Number of targets in the first block of this rank, which is kept; 0 if it has none."""
        for share in self._own:
            try:
                blocks = self._generated(share)
                first = next(blocks, None)
                targets = 0 if first is None else int(_taken(first)[1].shape[1])
            except InputError:
                raise
            except Exception as error:
                raise named(error, f"rows, share {share}, block 0 (rank {self._rank})") from error
            if first is not None:
                self._looked = share, chain([first], blocks)
                return targets
        return 0

    def _generated(self, share: int) -> Iterator[Given]:
        if self._shared:
            return iter(self._rows(share, self.leaves))
        return iter(self._rows) if share == self._own[0] else iter(())

    def blocks(self, leaf: int, skipped: int) -> Iterator[Block]:
        """See :meth:`Source.blocks`; skipped blocks are generated and dropped."""
        looked, self._looked = self._looked, None
        source = looked[1] if looked is not None and looked[0] == leaf else self._generated(leaf)
        for number, block in enumerate(source):
            if number >= skipped:
                rows, y, w = _taken(block)
                if y.shape[1] != self.targets:
                    raise BlockError(f"its targets have {y.shape[1]} columns, and those of other blocks {self.targets}")
                yield rows, y, w


def _taken(block: Any) -> Block:
    """The parts of a block, as arrays; a BlockError if they do not fit together."""
    if not isinstance(block, tuple | list) or len(block) not in (2, 3):
        raise BlockError("a block must be (A, y) or (A, y, w)")
    rows = block[0] if isinstance(block[0], Observation) else np.asarray(block[0], np.float64)
    y = np.asarray(block[1], np.float64)
    y = y.reshape(1, 1) if y.ndim == 0 else y[:, None] if y.ndim == 1 else y
    if y.ndim != 2 or not y.shape[1]:
        raise BlockError(f"its targets have shape {np.shape(block[1])}; (rows,) or (rows, targets) is needed")
    if not (good := np.isfinite(y)).all():
        i, j = np.argwhere(~good)[0]
        of = f" {j}" if y.shape[1] > 1 else ""
        raise BlockError(f"row {i}: its target{of} is {y[i, j]}; correct the value, or leave the row out")
    w = np.asarray(block[2] if len(block) == 3 else 1.0, np.float64)
    if w.ndim > 1 or (w.ndim == 1 and len(w) != len(y)):
        raise BlockError(f"its weights have shape {w.shape}, and it has {len(y)} targets")
    if not (np.isfinite(w).all() and (w >= 0).all()):
        raise BlockError("a weight is negative or not finite")
    return rows, y, np.broadcast_to(w, len(y))
