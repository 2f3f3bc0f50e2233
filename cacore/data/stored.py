"""Rows that lie in a file: what asks for them block by block, or part by part, cannot tell them from an array.

Training with ``--out-of-core`` is training of such rows: a rank's rows are copied to a file once, standardised there,
divided by the same partitioners, and moved, once, to where those of a part lie beside each other. A part is read when
its turn comes. What a row carries, its target, its weight, its place, is a column in memory as ever.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.machine.scratch import Scratch
from cacore.machine.threads import blocks

BLOCK_BYTES = 4 << 20  # that are read, or written, at a time
_OVER = 32 << 10  # bytes that are read over rather than passed by, for the sake of fewer and longer reads


class StoredRows:
    """Dense rows in a file, as an ndarray of shape (n, d) from which rows are taken, or in which they are set.

    ``X[rows]`` reads a slice of the rows, those of these numbers, or those of a mask, and is an ndarray; ``X[lo:hi] =
    block`` writes. The file has no name, and is gone with the last that looks at it, or with the process.

    Parameters
    ----------
    file : Scratch
    d : int
    dtype : dtype
    rows : range or ndarray of int64, shape (n,)
        Where in the file they are, one after the other.
    """

    ndim = 2
    nbytes = 0  # of memory

    def __init__(self, file: Scratch, d: int, dtype: Any, rows: range | NDArray[np.int64]) -> None:
        self._file, self._rows = file, rows
        self.dtype, self.shape = np.dtype(dtype), (len(rows), d)

    @classmethod
    def empty(cls, folder: Path, n: int, d: int, dtype: Any) -> StoredRows:
        """Room for n rows in a new file of this folder; see :class:`cacore.machine.scratch.Scratch`."""
        return cls(Scratch(folder), d, dtype, range(n))

    def another(self, n: int) -> StoredRows:
        """Room for n rows of the same kind, in a file of the same folder."""
        return self.empty(self._file.folder, n, self.shape[1], self.dtype)

    @property
    def row_bytes(self) -> int:
        """Of a row."""
        return int(self.shape[1] * self.dtype.itemsize)

    @property
    def block_rows(self) -> int:
        """So many rows are read, or written, at a time."""
        return max(1, BLOCK_BYTES // self.row_bytes)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | NDArray[Any]) -> NDArray[Any]:
        chosen = self._chosen(rows)
        if isinstance(chosen, range):
            out = np.empty((len(chosen), self.shape[1]), self.dtype)
            self._fetch(chosen.start, out)
            return out
        return self._gathered(chosen)

    def __setitem__(self, rows: slice, block: NDArray[Any]) -> None:
        chosen = self._chosen(rows)
        if not isinstance(chosen, range) or len(chosen) != len(block):
            raise IndexError(f"{len(block)} rows for {len(chosen)} in a file: they must lie beside each other")
        self._file.put(chosen.start * self.row_bytes, np.ascontiguousarray(block, self.dtype))

    def some(self, rows: slice | NDArray[Any]) -> StoredRows:
        """Some of the rows, where they are: nothing is read."""
        return StoredRows(self._file, self.shape[1], self.dtype, self._chosen(rows))

    def _chosen(self, rows: slice | NDArray[Any]) -> range | NDArray[np.int64]:
        """Where in the file these rows are."""
        if isinstance(rows, slice):
            chosen = self._rows[rows]
            return chosen if not isinstance(chosen, range) or chosen.step == 1 else np.array(chosen, np.int64)
        rows = np.asarray(rows)
        numbers = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows.astype(np.int64, copy=False)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(self):
            raise IndexError(f"rows {numbers.min()} to {numbers.max()} of {len(self)}")
        return numbers + self._rows.start if isinstance(self._rows, range) else self._rows[numbers]

    def _fetch(self, first: int, out: NDArray[Any]) -> None:
        if out.size:
            self._file.fetch(first * self.row_bytes, out)

    def _gathered(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        """Rows of any numbers: in the order of the file, near ones by one read of :data:`BLOCK_BYTES` at most."""
        out = np.empty((len(numbers), self.shape[1]), self.dtype)
        if not len(numbers):
            return out
        order = np.argsort(numbers, kind="stable")
        ascending, near = numbers[order], max(1, _OVER // self.row_bytes)
        cut = (np.diff(ascending) > near) | (np.diff(ascending // self.block_rows) > 0)
        ends = [0, *(np.flatnonzero(cut) + 1).tolist(), len(numbers)]
        for a, b in pairwise(ends):
            first = int(ascending[a])
            run = np.empty((int(ascending[b - 1]) + 1 - first, self.shape[1]), self.dtype)
            self._fetch(first, run)
            out[order[a:b]] = run[ascending[a:b] - first]
        return out


class Arriving:
    """Writes rows to their places, in whatever order they come.

    A row goes behind those that came before it for the same stretch of places, and when all have come, the rows of
    each stretch are put in order, in memory. All writes and reads are long ones, wherever the rows come from.

    Parameters
    ----------
    out : StoredRows
        Newly made, with a place for each row.
    """

    def __init__(self, out: StoredRows) -> None:
        self._out, self._step = out, out.block_rows
        self._free = np.arange(0, max(1, len(out)), self._step)  # the next seat of each stretch
        self._place = np.empty(len(out), np.int64)  # of the row that has a seat

    def put(self, places: NDArray[np.int64], rows: NDArray[Any]) -> None:
        """Rows that have come, and their places."""
        order = np.argsort(places, kind="stable")
        counts = np.bincount(places // self._step, minlength=len(self._free))
        ends = np.cumsum(counts)
        for stretch in np.flatnonzero(counts).tolist():
            mine = order[ends[stretch] - counts[stretch] : ends[stretch]]
            lo = int(self._free[stretch])
            self._out[lo : lo + len(mine)] = rows[mine]
            self._place[lo : lo + len(mine)] = places[mine]
            self._free[stretch] += len(mine)

    def finish(self) -> StoredRows:
        """The rows, when all have come."""
        for lo, hi in blocks(len(self._out), self._step):
            rows = self._out[lo:hi]
            ordered = np.empty_like(rows)
            ordered[self._place[lo:hi] - lo] = rows
            self._out[lo:hi] = ordered
        return self._out


def is_stored(X: Any) -> bool:
    """Whether rows lie in a file."""
    return isinstance(X, StoredRows)


def in_memory(X: Any) -> Any:
    """The rows; read, if they lie in a file."""
    return X[:] if isinstance(X, StoredRows) else X


def some(X: Any, rows: slice | NDArray[Any]) -> Any:
    """Some of the rows; in the file, if they lie in one."""
    return X.some(rows) if isinstance(X, StoredRows) else X[rows]


def empty_like(X: Any) -> Any:
    """Room for as many rows of the same kind; in another file, if they lie in one."""
    return X.another(len(X)) if isinstance(X, StoredRows) else np.empty_like(X)


def permuted(X: StoredRows, place: NDArray[np.int64]) -> StoredRows:
    """``X[place]``, in another file; `place` holds each row once."""
    seats = np.empty(len(place), np.int64)
    seats[place] = np.arange(len(place))
    arriving = Arriving(X.another(len(place)))
    for lo, hi in blocks(len(X), X.block_rows):
        arriving.put(seats[lo:hi], X[lo:hi])
    return arriving.finish()
