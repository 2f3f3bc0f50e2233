"""Asking the parts' models about rows that lie on other ranks: the one place where prediction moves rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows, exchange_rows, gather_rows
from cacore.machine.threads import blocks
from partition.redistribute import returned

_GATHERED_ROWS = 1 << 16  # rows that visit all models at a time


def ask(
    X: Rows, labels: NDArray[np.int32], owners: NDArray[np.int64], held: Iterable[int],
    answer: Callable[[int, Rows], NDArray[np.float64]], comm: Communicator, shape: tuple[int, ...] = (),
) -> NDArray[np.float64]:  # fmt: skip
    """What the model of part ``labels[i]`` says of row i; collective.

    Parameters
    ----------
    X : ndarray or CSR, shape (n_local, d)
    labels : ndarray of int32, shape (n_local,)
    owners : ndarray of int64, shape (P,)
        Rank of each part.
    held : iterable of int
        Parts of this rank.
    answer : callable
        ``answer(part, rows)``, shape (len(rows), *shape).
    comm : Communicator
    shape : tuple of int
        Of what is said of one row.

    Returns
    -------
    ndarray of float64, shape (n_local, *shape)

    Notes
    -----
    Each row travels to the owner of its part, if that is another rank, and the answer back.
    """
    # Sorted by owner, and by part within an owner, so that a part's rows are one block.
    send = np.lexsort((labels, owners[labels]))
    counts = np.bincount(owners[labels], minlength=comm.size).astype(np.int64)
    rows = exchange_rows(X[send], counts, comm)
    parts, received = comm.alltoall(labels[send], counts)
    place = np.argsort(parts, kind="stable")
    values = np.empty((len(parts), *shape))
    for part in held:
        here = place[np.searchsorted(parts[place], part) : np.searchsorted(parts[place], part, side="right")]
        if here.size:
            values[here] = answer(part, rows[here])
    return returned(values, received, send, comm)


def visit(
    X: Rows, answer: Callable[..., NDArray[np.float64]], comm: Communicator, shape: tuple[int, ...] = (),
    op: str = "sum", column: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:  # fmt: skip
    """The sum, or minimum, of what all ranks say of each row; collective.

    Parameters
    ----------
    X : ndarray or CSR, shape (n_local, d)
    answer : callable
        ``answer(rows)``, or ``answer(rows, values)`` with `column`: what this rank's models say together,
        shape (len(rows), *shape).
    comm : Communicator
    shape : tuple of int
    op : {"sum", "min"}
    column : ndarray of float64, shape (n_local,), optional
        A number a row that travels with it.

    Returns
    -------
    ndarray of float64, shape (n_local, *shape)

    Notes
    -----
    Every row visits every rank, and one reduction of the answers follows, for 65,536 rows at a time.
    """
    out = np.empty((X.shape[0], *shape))
    longest = int(comm.allreduce(np.array([X.shape[0]]), "max")[0])
    for lo, hi in blocks(longest, max(1, _GATHERED_ROWS // comm.size)):
        block = X[lo:hi]
        first, _ = comm.offset(block.shape[0])
        rows = gather_rows(block, comm)
        values: tuple[Any, ...] = () if column is None else (comm.allgather(column[lo:hi]),)
        total = comm.allreduce(np.ascontiguousarray(answer(rows, *values)), op)
        out[lo:hi] = total[first : first + block.shape[0]]
    return out
