"""One model of all rows in pieces: every rank holds some of its support vectors, and their decisions add up.

Where training ends in one model, no rank need hold all of it, and all ranks share the work of prediction.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows, concatenate, scatter_rows
from casvm.model.part import PartSVM


def piece(
    X: Rows, codes: NDArray[np.int64], rows: NDArray[np.int64], coef: NDArray[np.float64], b: NDArray[np.float64]
) -> PartSVM:
    """A piece of these support vectors, class by class and in the order of the rows.

    Parameters
    ----------
    X : ndarray or CSR, shape (s, d)
    codes, rows : ndarray of int64, shape (s,)
        Class and global number.
    coef : ndarray, shape (k - 1, s)
        As :attr:`PartSVM.coef`, of all k classes.
    b : ndarray, shape (k (k - 1) / 2,)
        The whole model's in one of its pieces, 0 in the others.
    """
    k = len(coef) + 1
    order = np.lexsort((rows, codes))
    counts = np.bincount(codes, minlength=k).astype(np.int64)
    return PartSVM(np.arange(k), X[order], rows[order], np.ascontiguousarray(coef[:, order]), b, counts)


def deal(whole: PartSVM | None, k: int, root: int, comm: Communicator) -> PartSVM:
    """Every rank's even share of the model that `root` has; collective."""
    if comm.size == 1 and whole is not None:
        return whole
    s = int(comm.bcast(None if whole is None else np.array([len(whole.rows)]), root)[0])
    X = numbers = None
    if whole is not None:
        order = np.argsort(np.arange(s) % comm.size, kind="stable")  # like cards, so that all get some of each class
        X = whole.X[order]
        numbers = np.column_stack([whole.classes.repeat(whole.n_support), whole.rows, whole.coef.T])[order]
    X, numbers = scatter_rows(X, s, comm, root), scatter_rows(numbers, s, comm, root)
    b = whole.b if whole is not None else np.zeros(k * (k - 1) // 2)
    return piece(X, numbers[:, 0].astype(np.int64), numbers[:, 1].astype(np.int64), numbers[:, 2:].T, b)


def join(pieces: list[PartSVM]) -> PartSVM:
    """The pieces as one."""
    if len(pieces) == 1:
        return pieces[0]
    codes = np.concatenate([one.classes.repeat(one.n_support) for one in pieces])
    rows = np.concatenate([one.rows for one in pieces])
    coef = np.concatenate([one.coef for one in pieces], axis=1)
    return piece(concatenate([one.X for one in pieces]), codes, rows, coef, np.sum([one.b for one in pieces], axis=0))
