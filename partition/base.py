"""Base class of the partitioners: name, parameters, checks, seed, and the call that divides rows; and those rows.

Distances of one rank's rows to the centres, and sums per part, take one matrix product and one pass over it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from cacore.arrays import Doubles, Integers, Ints, Longs, Reals
from cacore.checks import Convert, whole
from cacore.comm import Communicator, as_communicator
from cacore.data.containers import unmasked
from cacore.data.rows import (
    AnyRows,
    Rows,
    RowsLike,
    check_alike,
    check_range,
    dense,
    in_blocks,
    is_sparse,
    largest_size,
    take_rows,
)
from cacore.data.shuffle import Shuffle
from cacore.data.validation import check_whole_columns, checked_rows, shared_seed
from cacore.errors import InputError
from cacore.machine import threads

REGISTERED: dict[str, type[Algorithm]] = {}

_FAR = 1e-6  # rounding of |mean|^2 over the largest |c - mean|^2 from which sparse rows meet centres about their mean
_BLOCK_BYTES = 1 << 20  # scores of a block of rows, which stay in the second-level cache until they are compared


@dataclass(frozen=True)
class Division:
    """Rows divided into P parts: the fitted attributes of :class:`partition.estimators.Partitioner`.

    `n_iter` is the number of K-means rounds, 0 for partitioners without K-means.
    """

    labels: NDArray[np.int32]
    centers: NDArray[np.float64]
    sizes: NDArray[np.int64]
    n_iter: int


@dataclass(eq=False, repr=False)
class Algorithm:
    """A partitioning algorithm, independent of scikit-learn: one abstract method, :meth:`_partition`.

    ``class Halves(Algorithm, name="halves")`` registers it under a name. For the parameters see
    :class:`partition.estimators.Partitioner`.

    Attributes
    ----------
    balances_classes : bool
        True if the algorithm can balance every class as well as the parts' sizes: `ratio` is then a parameter.
    clusters : bool
        True if the rows of a part lie close to its centre, so that its model suits new rows near this centre; False for
        random parts.
    checks : dict of str to callable
        The check of each parameter's value, by the parameter's name; see :mod:`cacore.checks`.
    """

    balances_classes: ClassVar[bool] = False
    clusters: ClassVar[bool] = True
    checks: ClassVar[dict[str, Convert[object]]] = {"n_parts": whole(1)}
    ratio = False

    n_parts: int = 8
    random_state: int | np.random.RandomState | None = field(default=None, kw_only=True)

    def __init_subclass__(cls, name: str = "", **options: object) -> None:
        super().__init_subclass__(**options)
        if name:
            registered = REGISTERED.get(name, cls)
            if (
                registered.__qualname__ != cls.__qualname__
            ):  # running a notebook cell again defines the same class again
                raise ValueError(f"partitioner {name!r}: {registered.__qualname__} has this name already")
            REGISTERED[name] = cls

    @abstractmethod
    def _partition(
        self, rows: PartRows, y: NDArray[np.generic] | None
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the labels of this rank's rows, and the centres of all parts, the same on all ranks."""

    def divide(self, X: RowsLike, y: ArrayLike | None = None, comm: Communicator | None = None) -> Division:
        """Divide the rows of `X`, together with those of the other ranks; collective.

        Arguments and exceptions are those of :meth:`partition.estimators.Partitioner.fit`.
        """
        comm = as_communicator(comm)
        with comm.phase("partition"):
            with comm.agreed(own_rows=True):
                check_whole_columns(X, "X")
                X = self._checked(X)
                target = None if y is None else np.asarray(unmasked(y, "y"))
                if target is not None and target.shape != (X.shape[0],):
                    raise InputError(f"y has shape {target.shape} for {X.shape[0]} rows of X")
            check_alike(X, comm)
            _, n = comm.offset(X.shape[0])
            with comm.agreed():
                self._check_parts(n, X.shape[0], comm)
            rows = PartRows(X, comm, shared_seed(self.random_state, comm))
            labels, centers = self._partition(rows, target)
            sizes = comm.allreduce(np.bincount(labels, minlength=self.n_parts).astype(np.int64))
        return Division(labels, centers, sizes, getattr(self, "n_iter_", 0))

    def _checked(self, X: RowsLike) -> AnyRows:
        rows = checked_rows(X, ("float64", "float32"))
        check_range(rows)
        for name, check in self.checks.items():
            check(getattr(self, name), f"{name} =")
        return rows

    def _check_parts(self, n: int, n_local: int, comm: Communicator) -> None:
        if self.n_parts > n:
            raise InputError(f"{self.n_parts:,} parts of {n:,} rows: every part needs a row; ask for {n:,} or fewer")


class PartRows:
    """This rank's rows while they are being partitioned.

    Parameters
    ----------
    X : ndarray or CSR, shape (n_local, d)
    comm : Communicator
    seed : int

    Attributes
    ----------
    first, n : int
        Global index of this rank's first row, and the number of rows on all ranks.
    order : ndarray of int64, shape (n_local,)
        Place of each row in the shuffled order of all n rows, in which rows are assigned. It depends only on the seed
        and the row's global index, not on the number of ranks.
    """

    def __init__(self, X: AnyRows, comm: Communicator, seed: int) -> None:
        self.X, self.comm, self.seed = X, comm, seed
        self.first, self.n = comm.offset(X.shape[0])
        self.shuffle = Shuffle(self.n, seed)
        self._shift = self._needed_shift()

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """Place of each row in the shuffled order."""
        return self.shuffle.position(np.arange(self.first, self.first + len(self)))

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def _needed_shift(self) -> NDArray[np.floating] | None:
        """The rows' mean if they lie much farther from the origin than from each other: |x|^2 - 2 x.c would cancel."""
        if is_sparse(self.X):
            return None
        d = self.X.shape[1]
        total = sum((block.sum(axis=0, dtype=np.float64) for block in in_blocks(self.X)), start=np.zeros(d))
        mean = self.comm.allreduce(total) / self.n
        probe = self.X[:: max(1, len(self) // 1000)].astype(np.float64) - mean
        spread, count = self.comm.allreduce(np.array([np.square(probe).sum(), len(probe)])).tolist()
        spread /= max(1.0, count)
        far = float(mean @ mean) * np.finfo(self.X.dtype).eps > 1e-6 * max(spread, np.finfo(float).tiny)
        # Rounded to the rows' precision, so that rows and centres are shifted by the same amount.
        return mean.astype(self.X.dtype).astype(np.float64) if far and d else None

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the rows with these global indices on every rank: one Allreduce of len(rows) x d numbers."""
        out = np.zeros((len(rows), self.X.shape[1]))
        here = np.flatnonzero((rows >= self.first) & (rows < self.first + len(self)))
        if here.size:
            out[here] = dense(self.X[rows[here] - self.first])
        return self.comm.allreduce(out)

    def step(
        self, centers: NDArray[np.float64], labels: NDArray[np.int32], sums: bool = True
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], int]:
        """Label every row with its nearest centre; ties go to the lower index.

        Parameters
        ----------
        centers : ndarray, shape (P, d)
        labels : ndarray of int32, shape (n_local,)
            Overwritten.
        sums : bool
            Compute the sums as well.

        Returns
        -------
        sums : ndarray, shape (P, d)
            Sum of each part's rows on this rank.
        counts : ndarray of int64, shape (P,)
            Number of each part's rows on this rank.
        changed : int
            Number of this rank's rows whose label changed.

        Notes
        -----
        2 n_local P d flops; T x P x d numbers of memory. The rows are cut into one strip per thread, so the sums are
        the same, bit for bit, for the same number of threads.
        """
        P, d = centers.shape
        strips = threads.blocks(len(self), max(1, -(-len(self) // threads.current())))
        partial = np.zeros((len(strips), P if sums else 0, d))
        counts, changed = np.zeros((len(strips), P), np.int64), np.zeros(len(strips), np.int64)

        def strip(s: int, lo: int, hi: int) -> None:
            def label(a: int, block: Rows, scores: NDArray[np.floating], half: NDArray[np.floating]) -> None:
                mine = labels[a : a + len(scores)]
                changed[s] += _nearest(scores, half, mine, counts[s])
                if sums:
                    _add_rows(block, mine, partial[s])

            self._scored(centers, lo, hi, label)

        threads.for_blocks(strip, [(s, lo, hi) for s, (lo, hi) in enumerate(strips)])
        return partial.sum(axis=0), counts.sum(axis=0), int(changed.sum())

    def nearest_open(
        self,
        centers: NDArray[np.float64],
        cutoff: NDArray[np.int64],
        labels: NDArray[np.int32],
        rows: NDArray[np.int64],
    ) -> None:
        """Label `rows` with their nearest centre among those whose `cutoff` is later than the row's place."""
        order = self.order

        def block_of(lo: int, hi: int) -> None:
            chosen = rows[lo:hi]

            def label(a: int, block: Rows, scores: NDArray[np.floating], half: NDArray[np.floating]) -> None:
                _nearest_open(scores, half, order, cutoff, chosen[a : a + len(scores)], labels)

            self._scored(
                centers, 0, len(chosen), label, take_rows(self.X, chosen) if len(chosen) < len(self) else self.X
            )

        threads.for_blocks(block_of, threads.blocks(len(rows), 4096))

    def squared_distances(self, centers: NDArray[np.float64], labels: NDArray[np.int32]) -> NDArray[np.float64]:
        """Squared distance |x - c|^2 of every row from the centre of its part."""
        out = np.empty(len(self))

        def block_of(lo: int, hi: int) -> None:
            gap = dense(self.X[lo:hi]) - centers[labels[lo:hi]]
            np.einsum("ij,ij->i", gap, gap, out=out[lo:hi])

        threads.for_blocks(block_of, threads.blocks(len(self), 4096))
        return out

    def means(self, labels: NDArray[np.int32], P: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Mean and number of each part's rows over all ranks: one Allreduce of P x (d+1) numbers."""
        d = self.X.shape[1]
        total = np.zeros((P, d + 1))
        for lo, hi in threads.blocks(len(self), 1 << 14):
            _add_rows(self.X[lo:hi], labels[lo:hi], total[:, :d])
        total[:, d] = np.bincount(labels, minlength=P)
        total = self.comm.allreduce(total)
        return total[:, :d] / np.maximum(total[:, d:], 1.0), total[:, d].astype(np.int64)

    def _scored(
        self,
        centers: NDArray[np.float64],
        lo: int,
        hi: int,
        use: Callable[[int, Rows, NDArray[np.floating], NDArray[np.floating]], None],
        X: AnyRows | None = None,
    ) -> None:
        """Call `use` for each block of rows with x.c and |c|^2/2; the nearest centre has the least |c|^2/2 - x.c.

        The arguments of `use` are the index of the first row, the rows, and the two products. Both are divided by a
        power of two near the largest number in a centre. This changes no digit, and keeps them within the range of
        single precision, which cannot hold squares of 1e20 or 1e-20.
        """
        X = self.X if X is None else X
        middle = self._shift if self._shift is not None else _middle(centers, X.dtype) if is_sparse(X) else None
        if middle is not None:
            centers = centers - middle
        unit = power_of_two(centers)
        centers = centers / unit
        half = 0.5 * unit * np.einsum("ij,ij->i", centers, centers)
        if is_sparse(X) and middle is not None:  # the rows themselves stay unshifted, and sparse
            half += centers @ middle
        small = np.ascontiguousarray(centers.T, dtype=X.dtype)
        P, d = centers.shape
        rows = int(np.clip(_BLOCK_BYTES // (8 * max(P, d if not is_sparse(X) else 1)), 64, 4096))
        scores = np.empty((min(rows, max(hi - lo, 0)), P), X.dtype)
        shift = None if self._shift is None else self._shift.astype(X.dtype)
        for a, b in threads.blocks(hi - lo, rows):
            block = X[lo + a : lo + b]
            if is_sparse(block):
                product = np.ascontiguousarray(block @ small)
            else:
                moved = np.ascontiguousarray(block) if shift is None else block - shift
                product = np.matmul(moved, small, out=scores[: b - a])
            use(lo + a, block, product, half)


def _middle(centers: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[np.float64] | None:
    """The centres' mean if it is so much farther from the origin than they from each other that x.c loses digits."""
    mean = centers.mean(axis=0)
    spread = float(np.square(centers - mean).sum(axis=1).max())
    return mean if float(mean @ mean) * np.finfo(dtype).eps > _FAR * spread > 0 else None


def power_of_two(centers: NDArray[np.float64]) -> float:
    """A power of two near the largest number in `centers`; dividing by it changes no digit."""
    return math.ldexp(1.0, min(1023, max(-500, math.frexp(largest_size(centers))[1])))


def _add_rows(block: Rows, labels: NDArray[np.int32], sums: NDArray[np.float64]) -> None:
    if is_sparse(block):
        _add_csr(block.data, block.indices, block.indptr, labels, sums)
    else:
        _add_dense(np.ascontiguousarray(block), labels, sums)


@numba.njit(cache=True, nogil=True)
def _nearest(scores: Reals, half: Doubles, labels: Ints, counts: Longs) -> int:  # pragma: no cover - compiled
    """Label each of m rows with the j of least ``half[j] - scores[i, j]``, count per part, return the labels changed.

    scores: x.c, float32 or float64 (m, P); half: |c|^2/2, float64 (P,); labels: int32 (m,); counts: int64 (P,).
    """
    changed = 0
    for i in range(scores.shape[0]):
        best, least = 0, half[0] - scores[i, 0]
        for j in range(1, scores.shape[1]):
            score = half[j] - scores[i, j]
            if score < least:
                best, least = j, score
        if labels[i] != best:
            labels[i] = best
            changed += 1
        counts[best] += 1
    return changed


@numba.njit(cache=True, nogil=True)
def _nearest_open(
    scores: Reals, half: Doubles, order: Longs, cutoff: Longs, rows: Longs, labels: Ints
) -> None:  # pragma: no cover - compiled
    """Label m rows as :func:`_nearest` does, but only with parts whose cutoff is later than the row's place; or -1.

    scores: float32 or float64 (m, P); half: float64 (P,); order: int64 (n_local,); cutoff: int64 (P,); rows: int64
    (m,); labels: int32 (n_local,).
    """
    for i in range(scores.shape[0]):
        place = order[rows[i]]
        best, least = -1, np.inf
        for j in range(scores.shape[1]):
            score = half[j] - scores[i, j]
            if place < cutoff[j] and (best < 0 or score < least):
                best, least = j, score
        labels[rows[i]] = best


@numba.njit(cache=True, nogil=True)
def _add_dense(X: Reals, labels: Ints, sums: Doubles) -> None:  # pragma: no cover - compiled
    """Add each row to the sum of its part. X: float32 or float64 (m, d); labels: int32 (m,); sums: float64 (P, d)."""
    for i in range(X.shape[0]):
        j = labels[i]
        for k in range(X.shape[1]):
            sums[j, k] += X[i, k]


@numba.njit(cache=True, nogil=True)
def _add_csr(
    data: Reals, indices: Integers, indptr: Integers, labels: Ints, sums: Doubles
) -> None:  # pragma: no cover - compiled
    """Add CSR rows as :func:`_add_dense` does dense ones. data: float32 or float64; indices, indptr: int32 or int64."""
    for i in range(labels.size):
        for p in range(indptr[i], indptr[i + 1]):
            sums[labels[i], indices[p]] += data[p]
