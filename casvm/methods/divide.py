"""Rows into parts: dealt at random where they are, or divided by a partitioner and sent to their parts' owners."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.data.stored import StoredRows, permuted
from cacore.errors import InputError
from casvm.methods.prepare import Prepared
from casvm.options import Method, Options
from partition.divide import divide, hand_out
from partition.redistribute import Parts


def into_parts(
    method: Method, prepared: Prepared, options: Options, comm: Communicator,
    assign: Callable[[NDArray[np.int64], int], NDArray[np.int64]],
) -> Parts:  # fmt: skip
    """Divide the rows, which are taken from `prepared`; collective.

    ``assign(sizes, ranks)`` names the owner of each part of a partitioner; rows that are dealt stay where they are.
    """
    rows = prepared.rows.give()
    if not method.partitioner:
        return deal(rows, prepared.P, options.seed, comm)
    division = divide(method.partitioner, prepared.P, rows.X, comm, options.seed, rows["code"], options.ratio)
    return hand_out(rows, division, assign(division.sizes, comm.size), options.seed, comm)


def deal(rows: Samples, P: int, seed: int, comm: Communicator) -> Parts:
    """Deal this rank's rows at random to its own parts (Algorithm 5, line 1). Sends nothing.

    Raises
    ------
    InputError
        On all ranks: fewer rows of a rank than it has parts.
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
