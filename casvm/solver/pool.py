"""Copies of rows from all ranks."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from cacore.data.rows import Rows, is_sparse
from casvm.solver.pair import Index


class Pool:
    """Rows copied to every rank, in `capacity` slots, the same on each; the least recently used are replaced.

    `like` gives the storage, dtype and number of features of the rows. Memory besides the rows: 4 bytes per row of all
    ranks.

    Attributes
    ----------
    X : ndarray or CSR, shape (capacity, d)
        The contents of free slots are undefined.
    """

    def __init__(self, like: Rows, capacity: int) -> None:
        shape = capacity, like.shape[1]
        self.X: Rows = sp.csr_matrix(shape, dtype=like.dtype) if is_sparse(like) else np.zeros(shape, like.dtype)
        self._number = np.full(capacity, -1)
        self._used = np.zeros(capacity, np.int64)
        self._slot = np.zeros(0, np.int32)  # of each row number, or -1
        self._now = 0

    def slots(self, numbers: Index) -> Index:
        """The slot of each row, or -1; rows found are marked as used now."""
        self._now += 1
        missing = int(numbers.max(initial=-1)) + 1 - len(self._slot)
        if missing > 0:
            self._slot = np.append(self._slot, np.full(max(missing, len(self._slot) // 2), -1, np.int32))
        slots = self._slot[numbers].astype(np.int64)
        self._used[slots[slots >= 0]] = self._now
        return slots

    def free(self, count: int) -> Index:
        """Take `count` slots, free ones or those of the least recently used rows."""
        oldest = np.argsort(self._used, kind="stable")[:count]
        gone = self._number[oldest]
        self._slot[gone[gone >= 0]] = -1
        self._number[oldest] = -1
        return oldest

    def put(self, slots: Index, numbers: Index, X: Rows) -> None:
        """Store rows in slots from :meth:`free`."""
        self._number[slots], self._used[slots] = numbers, self._now
        self._slot[numbers] = slots
        if is_sparse(X):
            place = np.arange(self.X.shape[0])
            place[slots] = self.X.shape[0] + np.arange(len(slots))
            self.X = sp.vstack([self.X, X], format="csr")[place]
        else:
            assert not is_sparse(self.X)
            self.X[slots] = X
