"""Assignment of rows to centres: to the closest one, or to the closest one with room, on any number of ranks.

Distances of one rank's rows to the centres, and sums per part, take one matrix product and one pass over it.

If parts have limited room, Algorithms 3 and 9 assign the rows one after another. In matching theory this is a serial
dictatorship, and its outcome is unique for a given order of the rows. Deferred acceptance finds the same outcome in
parallel:

1. Every row applies to its closest centre.
2. Every centre accepts the earliest rows up to its capacity, and announces its cutoff: the place in the order from
   which it rejects rows.
3. Every rejected row applies to its closest centre among those whose cutoff is later than the row's place.

Cutoffs only move earlier, and each round makes at least one more of them final. Hence there are at most P rounds, in
practice some 15 to 35. The outcome is that of the listing on a shuffled file; it depends neither on the order of the
rows in the file nor on the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import AnyRows, Rows, dense, in_blocks, is_sparse, largest_size
from cacore.data.shuffle import Shuffle
from cacore.data.stored import take_rows
from cacore.machine import threads

if TYPE_CHECKING:
    from cacore.arrays import Doubles, Integers, Ints, Longs, Reals


_FAR = 1e-6  # rounding of |mean|^2 over the largest |c - mean|^2 from which sparse rows meet centres about their mean
_BLOCK_BYTES = 1 << 20


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


_BINS = 64
_MESSAGE = 1000  # numbers that a network sends in the time of one more message


def capacities(n: int, P: int, population: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Capacities with sum n that differ by at most 1; parts with the largest `population` get the extra rows."""
    room = np.full(P, n // P, np.int64)
    largest = np.arange(P) if population is None else np.argsort(-population, kind="stable")
    room[largest[: n % P]] += 1
    return room


def settle(
    rows: PartRows,
    centers: NDArray[np.float64],
    room: NDArray[np.int64],
    labels: NDArray[np.int32],
    members: NDArray[np.int64],
    labelled: bool = False,
) -> int:
    """Assign `members`, in the order ``rows.order``, each to its closest centre with room; collective.

    Parameters
    ----------
    rows : PartRows
    centers : ndarray, shape (P, d)
    room : ndarray of int64, shape (P,)
        Capacity of each part; the sum is at least the number of members on all ranks.
    labels : ndarray of int32, shape (n_local,)
        Overwritten for the members.
    members : ndarray of int64
        Indices of this rank's rows to assign.
    labelled : bool
        True if the members' labels are their closest centres already; every part must have room.

    Returns
    -------
    int
        Number of rounds, at most P.
    """
    P = len(centers)
    cutoff = np.where(room > 0, rows.n, 0)
    asking, rounds = members[:0] if labelled else members, 0
    while True:
        rows.nearest_open(centers, cutoff, labels, asking)
        rounds += 1
        held = rows.comm.allreduce(np.bincount(labels[members], minlength=P))
        over = held > room
        if not over.any():
            return rounds
        full = np.flatnonzero(over)
        cutoff[full] = smallest(rows.order, labels, members, full, room[full], rows.n, rows.comm)
        asking = members[rows.order[members] >= cutoff[labels[members]]]


def smallest(
    values: NDArray[np.int64],
    labels: NDArray[np.int32],
    members: NDArray[np.int64],
    parts: NDArray[np.int64],
    k: NDArray[np.int64],
    stop: int,
    comm: Communicator,
) -> NDArray[np.int64]:
    """The k-th smallest value (from 0) among the members of each of `parts` on all ranks; collective.

    The values lie in ``0 .. stop-1``, and every part has more than k members.

    Notes
    -----
    Either ``log64(stop)`` Allreduces of 64 x len(parts) counts, or, where parts are so many and so small that this is
    faster, one Alltoall of the members' values and one Allgather of len(parts) numbers.
    """
    slot = np.full(max(int(labels.max(initial=0)), int(parts.max())) + 1, -1, np.int64)
    slot[parts] = np.arange(len(parts))
    counted = _BINS * math.ceil(math.log(stop, _BINS)) * len(parts)
    if int(k.sum()) / comm.size + _MESSAGE * comm.size < counted:
        return _by_owners(values, slot[labels[members]], members, k, stop, comm)
    return _by_histograms(values, labels, members, slot, k, stop, comm)


def _by_owners(
    values: NDArray[np.int64], slots: NDArray[np.int64], members: NDArray[np.int64], k: NDArray[np.int64], stop: int,
    comm: Communicator,
) -> NDArray[np.int64]:  # fmt: skip
    """See :func:`smallest`: the values of each part go to one rank, which sorts them.

    `slots` has the place in `k` of each member's part, or -1. Part and value travel as one number, 8 bytes per member.
    """
    there = np.flatnonzero(slots >= 0)
    owner = slots[there] % comm.size
    keys = (slots[there] * stop + values[members[there]])[np.argsort(owner, kind="stable")]
    keys = np.sort(comm.alltoall(keys, np.bincount(owner, minlength=comm.size))[0])
    own_parts = np.arange(comm.rank, len(k), comm.size)
    chosen = keys[np.searchsorted(keys, own_parts * stop) + k[own_parts]] - own_parts * stop
    values_of_parts = np.empty(len(k), np.int64)
    values_of_parts[np.argsort(np.arange(len(k)) % comm.size, kind="stable")] = comm.allgather(chosen)
    return values_of_parts


def _by_histograms(
    values: NDArray[np.int64], labels: NDArray[np.int32], members: NDArray[np.int64], slot: NDArray[np.int64],
    k: NDArray[np.int64], stop: int, comm: Communicator,
) -> NDArray[np.int64]:  # fmt: skip
    """See :func:`smallest`: each round narrows the brackets of all parts 64-fold."""
    parts = len(k)
    low, below = np.zeros(parts, np.int64), np.zeros(parts, np.int64)
    width = np.int64(stop)
    while width > 1:
        width = -(-width // _BINS)
        counts = np.zeros((parts, _BINS), np.int64)
        _histogram(values, labels, members, slot, low, width, counts)
        reached = below[:, None] + np.cumsum(comm.allreduce(counts), axis=1)
        bin_ = (reached <= k[:, None]).sum(axis=1)
        below = np.where(bin_ > 0, np.take_along_axis(reached, np.maximum(bin_ - 1, 0)[:, None], 1)[:, 0], below)
        low = low + bin_ * width
    return low


@numba.njit(cache=True, nogil=True)
def _histogram(
    values: Longs, labels: Ints, members: Longs, slot: Longs, low: Longs, width: int, counts: Longs
) -> None:  # pragma: no cover - compiled
    """Count the members' values per part in bins of `width` that begin at the part's `low`; ignore other values.

    values: int64 (n_local,); labels: int32 (n_local,); members: int64 (m,); slot: int64, each part's row of `counts`
    or -1; low: int64 (parts,); width: int64; counts: int64 (parts, bins).
    """
    for i in members:
        s = slot[labels[i]]
        if s >= 0:
            b = values[i] - low[s]
            if b >= 0 and b < width * counts.shape[1]:
                counts[s, b // width] += 1
