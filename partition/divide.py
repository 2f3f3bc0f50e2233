"""Division of rows into parts by a partitioner or its name, with overlap if requested, for the methods of all families.

With overlap, each part also trains on rows of other parts that lie close to its border. A part's model is least
accurate near the border, since it has seen no rows beyond it. The closest rows of the other parts give it a margin to
learn from. Prediction is unchanged: each model predicts the rows nearest to its centre.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.data.rows import AnyRows
from cacore.data.selection import smallest
from cacore.data.shuffle import Shuffle
from cacore.data.stored import StoredRows, is_stored, permuted
from cacore.errors import InputError
from cacore.machine import memory
from partition import algorithms  # noqa: F401 - its classes register themselves
from partition.assign import PartRows
from partition.base import REGISTERED, Algorithm, Division
from partition.redistribute import Parts, redistribute


def named(partitioner: str | Algorithm) -> Algorithm:
    """The partitioner of this name, with its defaults; a partitioner is returned as it is.

    Raises
    ------
    InputError
        There is no partitioner of this name.
    """
    if isinstance(partitioner, Algorithm):
        return partitioner
    if partitioner not in REGISTERED:
        raise InputError(f"partitioner {partitioner!r}: choose one of {', '.join(REGISTERED)}")
    return REGISTERED[partitioner]()


def divide(
    partitioner: str | Algorithm,
    n_parts: int,
    X: AnyRows,
    comm: Communicator,
    seed: Any,
    y: ArrayLike | None = None,
    ratio: bool = False,
) -> Division:
    """Divide all ranks' rows into `n_parts` parts, at the cost of the partitioner; collective.

    Parameters
    ----------
    partitioner : str or Algorithm
        A name, or a partitioner, whose other parameters are used; it is not changed.
    n_parts : int
    X : ndarray or CSR, shape (n_local, d)
        This rank's rows. Not changed.
    comm : Communicator
    seed : int, RandomState or None
    y : ndarray of numbers, shape (n_local,), optional
        Classes; used if `ratio` is set here or in the partitioner.
    ratio : bool
        Balance every class as well as the parts' sizes.

    Raises
    ------
    InputError
        On all ranks: more parts than rows, NaN or infinity, features that differ between ranks, or `ratio` for a
        partitioner that cannot balance classes.
    """
    chosen = copy(named(partitioner))
    chosen.n_parts, chosen.random_state = n_parts, seed
    if ratio and not chosen.balances_classes:
        raise InputError(f"ratio: {type(chosen).__name__} does not balance classes")
    if ratio:
        chosen.ratio = True
    return chosen.divide(X, y if chosen.balances_classes and chosen.ratio else None, comm)


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
        As for :func:`partition.redistribute.redistribute`.
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
