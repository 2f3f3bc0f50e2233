"""Redistribution: choose the rank that owns each part, and send every row to the owner of its part.

With overlap, each part also trains on rows of other parts that lie close to its border. A part's model is least
accurate near the border, since it has seen no rows beyond it. The closest rows of the other parts give it a margin to
learn from. Prediction is unchanged: each model predicts the rows nearest to its centre.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.arrays import Flags, Longs, Reals
from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.data.rows import AnyRows, Rows, concatenate, exchange_rows, is_sparse, worth_packing
from cacore.data.selection import smallest
from cacore.data.shuffle import Shuffle
from cacore.data.stored import Arriving, StoredRows, is_stored, permuted
from cacore.errors import InputError
from cacore.machine import memory
from cacore.machine.threads import blocks
from partition.base import Division, PartRows


def assign_owners(
    sizes: NDArray[np.int64], ranks: int, cost: Callable[[NDArray[np.float64]], NDArray[np.float64]] = lambda m: m**3
) -> NDArray[np.int64]:
    """Assign parts to ranks: in order of decreasing predicted cost, each part goes to the least loaded rank.

    Parameters
    ----------
    sizes : ndarray of int64, shape (P,)
    ranks : int
    cost : callable
        Predicted cost of training parts of m rows; the default, m^3, is that of kernel ridge regression.

    Returns
    -------
    ndarray of int64, shape (P,)
        Rank of each part.
    """
    price = cost(sizes.astype(np.float64))
    owners = np.empty(len(sizes), np.int64)
    loads = [(0.0, 0, rank) for rank in range(ranks)]  # the number of parts breaks ties between equal loads
    for part in np.argsort(-price, kind="stable"):
        load, parts, owners[part] = loads[0]
        heapq.heapreplace(loads, (load + price[part], parts + 1, int(owners[part])))
    return owners


_GROUPS = 16  # messages per pair of ranks; with one group at a time, a sixteenth of the rows is held twice


@dataclass
class Parts(Samples):
    """The rows of this rank's parts, part after part, and the centres, sizes and owners of all parts.

    Attributes
    ----------
    parts : ndarray of int64, shape (k,)
        Numbers of the parts this rank owns, ascending.
    bounds : ndarray of int64, shape (k + 1,)
        Rows ``bounds[i]:bounds[i+1]`` belong to ``parts[i]``.
    centers : ndarray, shape (P, d)
        Shape (0, 0) if the centres are unknown.
    sizes, owners : ndarray of int64, shape (P,)
        Number of rows and owning rank of every part.
    n_iter : int
        Number of K-means rounds.
    """

    parts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    bounds: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    centers: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    owners: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    n_iter: int = 0

    def __iter__(self) -> Iterator[tuple[int, slice]]:
        """Yield the number of each part and the slice of its rows."""
        for part, lo, hi in zip(self.parts, self.bounds[:-1], self.bounds[1:], strict=True):
            yield int(part), slice(int(lo), int(hi))


def order_of(rows: Samples, seed: int, comm: Communicator) -> NDArray[np.int64]:
    """Place of each of this rank's rows in the shuffled order of all ranks' rows; collective."""
    first, n = comm.offset(len(rows))
    # Not the row's number, since rows of weight 0 have one, too.
    return Shuffle(n, seed).position(np.arange(first, first + len(rows)))


def hand_out(
    rows: Samples, division: Division, owners: NDArray[np.int64], seed: int, comm: Communicator, consume: bool = False
) -> Parts:
    """Send the rows to the owners of their parts; collective.

    The rows of a part are in a shuffled order, independent of the ranks, so that its first rows are a random sample.

    Parameters
    ----------
    rows : Samples
        This rank's rows, as they were divided. A column "order" is added if they have none.
    division : Division
    owners : ndarray of int64, shape (P,)
        Rank of each part.
    seed : int
        Seed of the order.
    comm : Communicator
    consume : bool
        As for :func:`redistribute`.
    """
    if "order" not in rows.columns:
        rows.columns["order"] = order_of(rows, seed, comm)
    parts = redistribute(rows, division.labels, owners, comm, order="order", consume=consume)
    parts.centers, parts.sizes, parts.n_iter = division.centers, division.sizes, division.n_iter
    if is_stored(parts.X):
        memory.give_back()  # memory of all rows' numbers, before those of the parts are allocated
    return parts


def deal(rows: Samples, P: int, seed: int, comm: Communicator) -> Parts:
    """Deal this rank's rows at random to its own parts (Algorithm 5, line 1). Sends nothing.

    Raises
    ------
    InputError
        On all ranks: a rank has fewer rows than parts.
    """
    lo, hi = P * comm.rank // comm.size, P * (comm.rank + 1) // comm.size
    n, count = len(rows), hi - lo
    with comm.uncounted(), comm.agreed():
        if n < count:
            raise InputError(
                f"{count} parts of the {n} rows of rank {comm.rank}: every part needs a row; ask for fewer"
            )
    place = np.random.default_rng([seed, comm.rank]).permutation(n)
    if isinstance(rows.X, StoredRows) and count > 1:
        rows = Samples(permuted(rows.X, place), {name: values[place] for name, values in rows.columns.items()})
    elif count > 1:
        rows = rows.take(place)
    bounds = np.array([n * k // count for k in range(count + 1)], np.int64)
    return Parts(rows.X, rows.columns, np.arange(lo, hi), bounds)


def overlapping(
    X: AnyRows, division: Division, overlap: float, comm: Communicator
) -> tuple[NDArray[np.int64], Division]:
    """Add to each part of m rows the ``overlap * m`` closest rows of other parts; collective.

    The distance of a row x of part p from part q is |x - c_q|^2 - |x - c_p|^2, which is 0 half way between the centres.

    Parameters
    ----------
    X : ndarray or CSR, shape (n_local, d)
        This rank's rows, in the order in which they were divided. Not changed.
    division : Division
    overlap : float
        Number of added rows as a multiple of the part's own. If the other parts have fewer rows, all are added.
    comm : Communicator

    Returns
    -------
    places : ndarray of int64, shape (k,)
        Indices of this rank's rows: each once for its own part, in order, then once per part that it is added to.
    Division
        The division of these k rows; its sizes count the added rows.

    Notes
    -----
    3 n_local P d flops. One selection per part (:func:`cacore.data.selection.smallest`): 8 Allreduces of 256 numbers.
    The added rows do not depend on the number of ranks, nor on how the rows, in order, are distributed over them.
    """
    rows = PartRows(X, comm, 0)
    labels, sizes = division.labels, division.sizes.copy()
    own_squares = rows.squared_distances(division.centers, labels)
    places, added = [np.arange(len(rows))], [labels]
    for part, size in enumerate(division.sizes.tolist()):
        others = np.flatnonzero(labels != part)
        count = min(round(overlap * size), rows.n - size)
        closer = rows.squared_distances(division.centers, np.full_like(labels, part))[others] - own_squares[others]
        chosen = others[smallest(closer, count, comm)]
        places.append(chosen)
        added.append(np.full(len(chosen), part, labels.dtype))
        sizes[part] += count
    return np.concatenate(places), replace(division, labels=np.concatenate(added), sizes=sizes)


def redistribute(
    rows: Samples,
    labels: NDArray[np.int32],
    owners: NDArray[np.int64],
    comm: Communicator,
    order: str | None = None,
    consume: bool = False,
) -> Parts:
    """Send each row to the owner of its part; collective.

    Parameters
    ----------
    rows : Samples
        This rank's rows; their columns, shape (n_local,) or (n_local, k), travel with them.
    labels : ndarray of int32, shape (n_local,)
        Part of each row.
    owners : ndarray of int64, shape (P,)
        Rank of each part.
    comm : Communicator
    order : str, optional
        Column by which the rows of a part are sorted. By default they keep the order of the ranks and of the rows on
        each rank.
    consume : bool
        Free the memory of the caller's rows while they are sent, so that no row is held twice; the array is empty at
        the end. The rows must be dense, and nothing else may refer to their memory.

    Returns
    -------
    Parts

    Notes
    -----
    Each row is sent at most once, and not at all if its rank owns its part. The parts are sent in at most 16 groups;
    with `consume`, one group of rows is the only extra memory. Rows in a file are sent to another file, a few MiB at a
    time, with 16 extra bytes per row.
    """
    X, columns = rows.X, rows.columns
    group, groups = _groups(owners)
    toward = owners[labels]
    send = np.lexsort((group[labels], toward))
    kinds = [(name, values.dtype, values.shape[1:]) for name, values in columns.items()]
    records = np.empty(len(labels), [("", labels.dtype), *kinds])
    records["f0"] = labels
    for name, values in columns.items():
        records[name] = values
    packed = records[send].view(np.uint8).reshape(len(send), records.dtype.itemsize)
    come, arrivals = comm.alltoall(packed, np.bincount(toward, minlength=comm.size).astype(np.int64))
    arrived = come.reshape(-1).view(records.dtype)
    labels_in = arrived["f0"].copy()
    columns_in = {name: arrived[name].copy() for name in columns}
    del records, packed, come, arrived  # free memory before the rows are sent
    place = np.lexsort((labels_in,) if order is None else (columns_in[order], labels_in))
    if isinstance(X, StoredRows):
        X = _exchange_in_file(X, toward, send, place, arrivals, comm)
    elif comm.size == 1:
        X = _permuted(X, send[place], consume)
    else:
        X = _exchange(X, toward, group[labels], group[labels_in], groups, place, comm, consume)
    parts = np.flatnonzero(owners == comm.rank)
    bounds = np.append(np.searchsorted(labels_in[place], parts), len(place)).astype(np.int64)
    columns_in = {name: values[place] for name, values in columns_in.items()}
    return Parts(X, columns_in, parts, bounds, owners=owners)


def _exchange(
    X: Rows,
    toward: NDArray[np.int64],
    leaving: NDArray[np.int64],
    arriving: NDArray[np.int64],
    groups: int,
    place: NDArray[np.intp],
    comm: Communicator,
    consume: bool,
) -> Rows:
    """Send the rows group by group, the last group first; `leaving` and `arriving` are the rows' groups."""
    send = np.lexsort((toward, leaving))
    X, toward = _permuted(X, send, consume), toward[send]
    starts = np.searchsorted(leaving[send], np.arange(groups + 1))
    seats = np.empty_like(place)
    seats[place] = np.arange(len(place))
    out = None if is_sparse(X) else np.empty((len(place), X.shape[1]), X.dtype)
    pieces: list[Rows] = []
    pack = worth_packing(X, comm)
    for g in reversed(range(groups)):
        rows = slice(starts[g], starts[g + 1])
        block = exchange_rows(X[rows], np.bincount(toward[rows], minlength=comm.size).astype(np.int64), comm, pack)
        arrived = seats[arriving == g]  # contiguous, since rows are sorted by group
        if out is None:
            pieces.insert(0, block[np.argsort(arrived)])
        else:
            out[arrived] = block
            if consume and isinstance(X, np.ndarray):
                X.resize((rows.start, X.shape[1]), refcheck=False)  # frees the rows that were sent
    return concatenate(pieces) if out is None else out


def _exchange_in_file(
    X: StoredRows, toward: NDArray[np.int64], send: NDArray[np.intp], place: NDArray[np.intp],
    arrivals: NDArray[np.int64], comm: Communicator,
) -> StoredRows:  # fmt: skip
    """Send the rows block by block, each with its place among the receiver's rows."""
    seats = np.empty(len(place), np.int64)
    seats[place] = np.arange(len(place))
    seats_of_senders, seats_out = comm.alltoall(seats, arrivals)[0], np.empty(len(send), np.int64)
    seats_out[send] = seats_of_senders
    with comm.agreed():
        arriving = Arriving(X.another(len(place)))
    longest = int(comm.allreduce(np.array([len(X)]), "max")[0])
    for lo, hi in blocks(longest, max(1, X.block_rows // comm.size)):
        leaving = np.argsort(toward[lo:hi], kind="stable")
        counts = np.bincount(toward[lo:hi], minlength=comm.size).astype(np.int64)
        seat = comm.alltoall(seats_out[lo:hi][leaving], counts)[0]
        arriving.put(seat, exchange_rows(X[lo:hi][leaving], counts, comm))
    return arriving.finish()


def _groups(owners: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Return the group of each part and the number of groups; on each rank, groups ascend with the part's number."""
    seat = np.empty(len(owners), np.int64)
    for rank in np.unique(owners):
        seat[owners == rank] = np.arange(np.count_nonzero(owners == rank))
    largest = int(seat.max()) + 1
    groups = min(_GROUPS, largest)
    return seat * groups // largest, groups


def _permuted(X: Rows, place: NDArray[np.intp], consume: bool) -> Rows:
    """Return ``X[place]``, computed in the memory of `X` if that may be consumed."""
    owned = isinstance(X, np.ndarray) and X.flags.c_contiguous and X.flags.owndata and X.flags.writeable
    if not (consume and owned):
        return X[place]
    _permute(X, place, np.zeros(len(place), np.bool_), np.empty(X.shape[1], X.dtype))
    return X


@numba.njit(cache=True, nogil=True)
def _permute(X: Reals, place: Longs, done: Flags, row: Reals) -> None:  # pragma: no cover - compiled
    """Replace row i by row place[i], in place: cycle by cycle, with one row of extra memory.

    X: float32 or float64 (n, d), C-contiguous; place: int64 (n,); done: bool (n,), False; row: as X, (d,).
    """
    # Number by number: for the assignment of a row, numba compiles the message of a wrong shape, which takes seconds.
    d = row.size
    for first in range(place.size):
        if done[first]:
            continue
        for j in range(d):
            row[j] = X[first, j]
        i = first
        while place[i] != first:
            after = place[i]
            for j in range(d):
                X[i, j] = X[after, j]
            done[i] = True
            i = after
        for j in range(d):
            X[i, j] = row[j]
        done[i] = True
