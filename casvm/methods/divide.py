"""Rows in parts: dealt at random where they are, or divided by a partitioner and sent to their parts' owners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows
from cacore.data.shuffle import Shuffle
from cacore.errors import InputError
from casvm.methods.prepare import Prepared
from casvm.options import Method, Options
from partition.redistribute import OwnedRows, redistribute


@dataclass
class Divided:
    """Rows in the hands of their parts' owners.

    Attributes
    ----------
    parts : OwnedRows
        This rank's, with the columns "code", "C" and "row".
    centers : ndarray, shape (P, d), or None
        Where all ranks know them already.
    rounds : int
        Of K-means.
    """

    parts: OwnedRows
    centers: NDArray[np.float64] | None
    rounds: int


def divide(
    method: Method, given: Prepared, options: Options, comm: Communicator,
    assign: Callable[[NDArray[np.int64], int], NDArray[np.int64]],
) -> Divided:  # fmt: skip
    """Divide the rows, which are taken from `given`; collective.

    ``assign(sizes, ranks)`` names the owner of each part of a partitioner; rows that are dealt stay where they are.
    """
    X, columns, P = given.X, given.columns, given.P
    del given.X
    if method.partitioner is None:
        return Divided(_deal(X, columns, P, options, comm), None, 0)
    chosen = {"ratio": True} if options.ratio else {}
    partitioner = method.partitioner(P, random_state=options.seed, **chosen)
    classes = columns["code"] if partitioner.balances_classes and partitioner.ratio else None
    divided = partitioner.divide(X, classes, comm)
    owners = assign(divided.sizes, comm.size)
    first, n = comm.offset(X.shape[0])
    place = np.arange(first, first + X.shape[0])  # not the row's number, for rows of weight 0 have one as well
    order = {**columns, "order": Shuffle(n, options.seed).position(place)}
    parts = redistribute(X, divided.labels, owners, comm, order, order="order")
    return Divided(parts, divided.centers, divided.n_iter)


def _deal(X: Rows, columns: dict[str, NDArray[Any]], P: int, options: Options, comm: Communicator) -> OwnedRows:
    """This rank's rows, dealt at random to its own parts: line 1 of Algorithm 5. Sends nothing."""
    lo, hi = P * comm.rank // comm.size, P * (comm.rank + 1) // comm.size
    n = X.shape[0]
    with comm.uncounted(), comm.agreed():
        if n < hi - lo:
            raise InputError(
                f"{hi - lo} parts of the {n} rows of rank {comm.rank}: every part needs a row; ask for fewer"
            )
    place = np.random.default_rng([options.seed, comm.rank]).permutation(n)
    cuts = [n * k // (hi - lo) for k in range(hi - lo + 1)]
    if hi - lo > 1:
        X, columns = X[place], {name: values[place] for name, values in columns.items()}
    return OwnedRows(np.arange(lo, hi), np.array(cuts, np.int64), X, columns)
