"""Rows in a file, with the interface of an array for code that reads them block by block or part by part.

Training with ``--out-of-core`` works on such rows. A rank copies its rows to a file once, standardises them there,
divides them by the usual partitioners, and moves them once more so that the rows of a part are contiguous. Each part is
read when it is trained. Targets, weights and positions of the rows stay in memory.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.machine.memory import Scratch
from cacore.machine.threads import blocks

if TYPE_CHECKING:
    from typing_extensions import TypeIs

BLOCK_BYTES = 4 << 20  # bytes per read or write
_OVER = 32 << 10  # gaps up to this many bytes are read and dropped, which makes reads fewer and longer

RowNumbers: TypeAlias = slice | NDArray[np.integer] | NDArray[np.bool_]  # or a mask
Dense = TypeVar("Dense", NDArray[Any], "StoredRows", "NDArray[Any] | StoredRows")


class StoredRows:
    """Dense rows in a file, indexed like an ndarray of shape (n, d).

    ``X[rows]`` reads rows, given by a slice, numbers or a mask, into an ndarray; ``X[lo:hi] = block`` writes. The file
    is unnamed: it is deleted with the last object that uses it, or when the process ends.

    Parameters
    ----------
    file : Scratch
    d : int
    dtype : dtype
    rows : range or ndarray of int64, shape (n,)
        Position of each row in the file, in units of rows.
    """

    ndim = 2
    nbytes = 0  # bytes of memory

    def __init__(self, file: Scratch, d: int, dtype: DTypeLike, rows: range | NDArray[np.int64]) -> None:
        self._file, self._rows = file, rows
        self.dtype, self.shape = np.dtype(dtype), (len(rows), d)

    @classmethod
    def empty(cls, folder: Path, n: int, d: int, dtype: DTypeLike) -> StoredRows:
        """Uninitialised rows in a new file in this folder; see :class:`cacore.machine.memory.Scratch`."""
        return cls(Scratch(folder), d, dtype, range(n))

    def another(self, n: int) -> StoredRows:
        """Uninitialised rows of the same width and type, in another file in the same folder."""
        return self.empty(self._file.folder, n, self.shape[1], self.dtype)

    @property
    def row_bytes(self) -> int:
        """Bytes per row."""
        return int(self.shape[1] * self.dtype.itemsize)

    @property
    def block_rows(self) -> int:
        """Rows per read or write."""
        return max(1, BLOCK_BYTES // self.row_bytes)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: RowNumbers) -> NDArray[np.floating]:
        chosen = self._chosen(rows)
        if isinstance(chosen, range):
            out = np.empty((len(chosen), self.shape[1]), self.dtype)
            self._fetch(chosen.start, out)
            return out
        return self._gathered(chosen)

    def __setitem__(self, rows: slice, block: NDArray[np.floating]) -> None:
        chosen = self._chosen(rows)
        if not isinstance(chosen, range) or len(chosen) != len(block):
            raise IndexError(f"{len(block)} rows for {len(chosen)} in a file: they must lie beside each other")
        self._file.put(chosen.start * self.row_bytes, np.ascontiguousarray(block, self.dtype))

    def subset(self, rows: RowNumbers) -> StoredRows:
        """View of some of the rows; nothing is read."""
        return StoredRows(self._file, self.shape[1], self.dtype, self._chosen(rows))

    def _chosen(self, rows: RowNumbers) -> range | NDArray[np.int64]:
        """Positions of these rows in the file."""
        if isinstance(rows, slice):
            chosen = self._rows[rows]
            return chosen if not isinstance(chosen, range) or chosen.step == 1 else np.array(chosen, np.int64)
        selector = np.asarray(rows)
        numbers = np.flatnonzero(selector) if selector.dtype == np.bool_ else selector.astype(np.int64, copy=False)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(self):
            raise IndexError(f"rows {numbers.min()} to {numbers.max()} of {len(self)}")
        return numbers + self._rows.start if isinstance(self._rows, range) else self._rows[numbers]

    def _fetch(self, first: int, out: NDArray[np.floating]) -> None:
        if out.size:
            self._file.fetch(first * self.row_bytes, out)

    def _gathered(self, numbers: NDArray[np.int64]) -> NDArray[np.floating]:
        """Read rows by position: in file order, with one read of at most :data:`BLOCK_BYTES` for nearby rows."""
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
    """Writer that puts rows at given positions of a file, whatever order they arrive in.

    The file is divided into stretches of one block each. Arriving rows are appended to the stretch that contains their
    position; at the end, each stretch is sorted in memory. So all reads and writes are long ones.

    Parameters
    ----------
    out : StoredRows
        Newly created rows to fill.
    """

    def __init__(self, out: StoredRows) -> None:
        self._out, self._step = out, out.block_rows
        self._free = np.arange(0, max(1, len(out)), self._step)  # next free slot of each stretch
        self._place = np.empty(len(out), np.int64)  # final position of the row in each slot

    def put(self, places: NDArray[np.int64], rows: NDArray[np.floating]) -> None:
        """Write rows that have arrived; `places` holds their final positions."""
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
        """Sort each stretch and return the rows; call it when all rows have arrived."""
        for lo, hi in blocks(len(self._out), self._step):
            rows = self._out[lo:hi]
            ordered = np.empty_like(rows)
            ordered[self._place[lo:hi] - lo] = rows
            self._out[lo:hi] = ordered
        return self._out


def is_stored(X: object) -> TypeIs[StoredRows]:
    """True if the rows are in a file."""
    return isinstance(X, StoredRows)


def scaled_in_file(X: StoredRows, factors: NDArray[np.float64] | None) -> StoredRows:
    """The rows with each feature times its factor, shape (d,), written over them; as they are without factors."""
    if factors is not None:
        for lo, hi in blocks(len(X), X.block_rows):
            X[lo:hi] = X[lo:hi] * factors.astype(X.dtype)
    return X


def empty_like(X: Dense) -> Dense:
    """Uninitialised rows of the same shape and type; in another file if `X` is in a file."""
    return X.another(len(X)) if isinstance(X, StoredRows) else np.empty_like(X)


def permuted(X: StoredRows, place: NDArray[np.int64]) -> StoredRows:
    """``X[place]``, in another file; `place` holds each row once."""
    seats = np.empty(len(place), np.int64)
    seats[place] = np.arange(len(place))
    arriving = Arriving(X.another(len(place)))
    for lo, hi in blocks(len(X), X.block_rows):
        arriving.put(seats[lo:hi], X[lo:hi])
    return arriving.finish()
