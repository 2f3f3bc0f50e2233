"""Rows to the ranks that own their parts: largest parts first, one Alltoallv."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.rows import Rows, exchange_rows


def assign_owners(
    sizes: NDArray[np.int64], ranks: int, cost: Callable[[NDArray[np.float64]], NDArray[np.float64]] = lambda m: m**3
) -> NDArray[np.int64]:
    """Rank that owns each part: largest predicted cost first, each to the least loaded rank.

    Parameters
    ----------
    sizes : ndarray of int64, shape (P,)
    ranks : int
    cost : callable
        Predicted cost of parts of m rows; m^3 for kernel ridge regression.

    Returns
    -------
    ndarray of int64, shape (P,)
    """
    price = cost(sizes.astype(np.float64))
    owners, load = np.empty(len(sizes), np.int64), np.zeros(ranks)
    parts = np.zeros(ranks)
    for part in np.argsort(-price, kind="stable"):
        rank = int(np.lexsort((parts, load))[0])
        owners[part] = rank
        load[rank] += price[part]
        parts[rank] += 1
    return owners


@dataclass
class OwnedRows:
    """The rows of this rank's parts, part after part.

    Attributes
    ----------
    parts : ndarray of int64, shape (k,)
        Numbers of the parts this rank owns, ascending.
    bounds : ndarray of int64, shape (k + 1,)
        Rows ``bounds[i]:bounds[i+1]`` are those of ``parts[i]``.
    columns : dict of str to ndarray
        What else each row carries: its target, its weight, its place in an order.
    """

    parts: NDArray[np.int64]
    bounds: NDArray[np.int64]
    X: Rows
    columns: dict[str, NDArray[Any]]

    def __iter__(self) -> Iterator[tuple[int, slice]]:
        """Number and rows of each part."""
        for part, lo, hi in zip(self.parts, self.bounds[:-1], self.bounds[1:], strict=True):
            yield int(part), slice(int(lo), int(hi))


def redistribute(
    X: Rows,
    labels: NDArray[np.int32],
    owners: NDArray[np.int64],
    comm: Communicator,
    columns: dict[str, NDArray[Any]],
    order: str | None = None,
) -> OwnedRows:
    """Send each row to the owner of its part.

    Parameters
    ----------
    X : ndarray or CSR, shape (n_local, d)
    labels : ndarray of int32, shape (n_local,)
        Part of each row.
    owners : ndarray of int64, shape (P,)
        Rank of each part.
    comm : Communicator
    columns : dict of str to ndarray
        One entry a row each.
    order : str, optional
        Column that orders the rows inside a part. Without it they keep the order of the ranks and
        of the rows on each.

    Returns
    -------
    OwnedRows

    Notes
    -----
    Collective. Sends each row at most once, and none that is in its place; one copy of the rows on
    each side.
    """
    toward = owners[labels]
    send = np.argsort(toward, kind="stable")
    counts = np.bincount(toward, minlength=comm.size).astype(np.int64)
    if comm.size > 1:
        X = exchange_rows(X[send], counts, comm)
        labels = comm.alltoall(labels[send], counts)[0]
        columns = {name: comm.alltoall(values[send], counts)[0] for name, values in columns.items()}
    keys = (labels,) if order is None else (columns[order], labels)
    place = np.lexsort(keys)
    if not np.array_equal(place, np.arange(len(place))):
        X, labels = X[place], labels[place]
        columns = {name: values[place] for name, values in columns.items()}
    parts = np.flatnonzero(owners == comm.rank)
    bounds = np.append(np.searchsorted(labels, parts), len(labels)).astype(np.int64)
    return OwnedRows(parts, bounds, X, columns)


def returned(
    values: NDArray[Any], received: NDArray[np.int64], send: NDArray[np.int64], comm: Communicator
) -> NDArray[Any]:
    """Send one value a row back to where the rows came from, in the order they had there.

    `received` tells how many rows came from each rank, `send` the order in which they were sent.
    """
    home = comm.alltoall(values, received)[0]
    out = np.empty_like(home)
    out[send] = home
    return out
