"""HDF5 arrays that grow as rows arrive; the final length is unknown."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.data.rows import Rows, is_sparse

CHUNK = 1 << 20  # bytes per chunk: a block of rows spans many chunks, and each is read once


class Growing:
    """HDF5 dataset that grows along its first axis.

    It is written in whole chunks, each once; a dataset shorter than one chunk is stored contiguously.

    Parameters
    ----------
    group : h5py.Group
    name : str
    dtype : dtype
    row : tuple of int
        Shape of a row: that of the appended arrays without the first axis.
    """

    def __init__(self, group: h5py.Group, name: str, dtype: DTypeLike, row: tuple[int, ...] = ()) -> None:
        self._group, self._name, self._dtype, self._row = group, name, np.dtype(dtype), row
        self._length = max(1, CHUNK // (self._dtype.itemsize * max(1, int(np.prod(row)))))
        self._data: h5py.Dataset | None = None
        self._waiting: list[NDArray[Any]] = []
        self._held = self._written = 0

    def append(self, values: NDArray[Any]) -> None:
        """Append values: write whole chunks, and keep the rest in memory."""
        self._waiting.append(np.array(values, self._dtype))  # a copy, since a view may keep a large array alive
        self._held += len(values)
        if self._held >= self._length:
            held = np.concatenate(self._waiting)
            whole = len(held) // self._length * self._length
            self._write(held[:whole])
            self._waiting, self._held = [held[whole:].copy()], len(held) - whole

    def _write(self, values: NDArray[Any]) -> None:
        if self._data is None:
            sizes = {"shape": (0, *self._row), "maxshape": (None, *self._row), "chunks": (self._length, *self._row)}
            self._data = self._group.create_dataset(self._name, dtype=self._dtype, **sizes)
        end = self._written + len(values)
        self._data.resize(end, axis=0)
        self._data[self._written : end] = values
        self._written = end

    def add(self, number: int) -> None:
        """Add a number to all values."""
        self._waiting = [values + self._dtype.type(number) for values in self._waiting]
        for lo in range(0, self._written, self._length):
            if self._data is not None:
                self._data[lo : lo + self._length] += self._dtype.type(number)

    def close(self) -> None:
        """Write the remaining values."""
        left = np.concatenate(self._waiting) if self._waiting else np.empty((0, *self._row), self._dtype)
        if self._data is None:
            self._group.create_dataset(self._name, data=left, dtype=self._dtype)
        elif len(left):
            self._write(left)


class GrowingRows:
    """Growing rows of a split with their targets, dense or CSR like the first rows appended.

    Parameters
    ----------
    group : h5py.Group
    dtype : dtype
        Type of the numbers of X.

    Attributes
    ----------
    dtype : dtype
    rows, entries : int
        Number of rows, and of CSR entries, appended so far; dense rows have no entries.
    """

    def __init__(self, group: h5py.Group, dtype: np.dtype[Any]) -> None:
        self._group, self.dtype = group, dtype
        self._parts: dict[str, Growing] = {}
        self.rows = self.entries = 0

    def append(self, X: Rows, y: NDArray[Any] | None) -> None:
        """Append rows of the same form as the rows before."""
        if not self._parts:
            self._begin(X, y)
        if is_sparse(X):
            self._parts["data"].append(X.data)
            self._parts["indices"].append(X.indices)
            self._parts["indptr"].append(X.indptr[1:].astype(np.int64) + (self.entries - int(X.indptr[0])))
            self.entries += len(X.data)
        else:
            self._parts["X"].append(X)
        if y is not None:
            self._parts["y"].append(y)
        self.rows += X.shape[0]

    def _begin(self, X: Rows, y: NDArray[Any] | None) -> None:
        if is_sparse(X):
            group = self._group.create_group("X")
            for name, dtype in (("data", self.dtype), ("indices", X.indices.dtype), ("indptr", np.dtype(np.int64))):
                self._parts[name] = Growing(group, name, dtype)
            self._parts["indptr"].append(np.zeros(1, np.int64))
        else:
            self._parts["X"] = Growing(self._group, "X", self.dtype, X.shape[1:])
        if y is not None:
            kind = y.dtype if y.dtype.kind in "iu" else np.dtype(np.float64)  # labels that are integers stay exact
            kind = h5py.string_dtype() if y.dtype.kind == "U" else kind
            self._parts["y"] = Growing(self._group, "y", kind, y.shape[1:])

    def shift(self, by: int) -> None:
        """Add `by` to the column index of every CSR entry; dense rows stay as they are."""
        if "indices" in self._parts:
            self._parts["indices"].add(by)

    def close(self, d: int) -> None:
        """Write the remaining rows; `d` is the number of features."""
        for part in self._parts.values():
            part.close()
        if "data" in self._parts:
            self._group["X"].attrs["shape"] = self.rows, d
