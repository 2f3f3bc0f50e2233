"""Selected rows of an HDF5 file, reordered or in another form or width, with only a few blocks in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows, concatenate, csr, is_sparse
from cacore.io import native
from cacore.io.fingerprints import row_hashes
from cacore.io.spool import Stored
from cacore.io.stream import REMEDY
from cacore.io.table import plain
from cacore.machine import memory

_PER_ROW = 64  # bytes per row while rows are compared: its hash and its number, sorted


@dataclass
class Selection:
    """Selection of rows of a split, and the form in which they are wanted.

    Attributes
    ----------
    stored : Stored
    dense : bool
    width : int
        Number of features; features beyond the rows' own are 0.
    shift : int
        Number of columns by which features are moved to the right: 1 if only the other file has a feature 0.
    kept : ndarray of int64, or None
        Numbers of the selected rows, in the order wanted; None for all rows.
    """

    stored: Stored
    dense: bool
    width: int
    shift: int = 0
    kept: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self.stored.shape.n if self.kept is None else len(self.kept)

    def blocks(self, dtype: np.dtype[Any], limit: int) -> Iterator[tuple[Rows, NDArray[Any] | None]]:
        """Yield rows of type `dtype` and their targets, block by block, using at most `limit` bytes.

        Reordered rows are gathered in windows of a quarter of `limit`; the file is read once for each window.
        """
        if self.dense:
            what = "features, as many as the other file has," if self.width > self.stored.shape.d else "features"
            memory.require(16 * self.width, limit, f"{self.stored.where}: a row of {self.width:,} {what}", REMEDY)
        step = self._step(dtype, native.step_bytes(limit))
        if self.kept is None:
            for lo in range(0, len(self), step):
                X, y = self._read(lo, min(lo + step, len(self)), dtype, limit)
                yield self._formed(X), y
            return
        window = max(step, self._step(dtype, limit // 4))
        for first in range(0, len(self), window):
            X, y = self._gathered(self.kept[first : first + window], step, dtype, limit)
            for lo in range(0, X.shape[0], step):
                yield self._formed(X[lo : lo + step]), None if y is None else y[lo : lo + step]
            del X, y  # before the next window is read

    def hashes(self, limit: int) -> NDArray[np.uint64]:
        """Fingerprint of each row and its target; 8 bytes per row stay in memory."""
        memory.require(_PER_ROW * len(self), limit, f"{self.stored.where}: comparing its {len(self):,} rows", REMEDY)
        blocks = self.blocks(plain(self.stored.shape.dtype), limit)
        return np.concatenate([row_hashes(X, np.zeros(X.shape[0]) if y is None else y) for X, y in blocks])

    def _step(self, dtype: np.dtype[Any], nbytes: int) -> int:
        """Number of rows to read at a time into `nbytes` bytes."""
        a_row = native.row_bytes(self.stored.path, self.stored.split, self.stored.shape)
        return max(1, nbytes // max(a_row, self.width * dtype.itemsize if self.dense else 0, 1))

    def _read(self, lo: int, hi: int, dtype: np.dtype[Any], limit: int) -> tuple[Rows, NDArray[Any] | None]:
        path, split = self.stored.path, self.stored.split
        size = native.needed(path, split, lo, hi, dtype, limit, self.stored.order)
        memory.require(size, limit, f"{self.stored.where}: reading rows {lo:,} to {hi - 1:,}", REMEDY)
        table = native.read_block(path, split, lo, hi, dtype, self.stored.order)
        return table.X, table.y

    def _gathered(
        self, rows: NDArray[np.int64], step: int, dtype: np.dtype[Any], limit: int
    ) -> tuple[Rows, NDArray[Any] | None]:
        """Read these rows in this order; the file is read once, skipping blocks that contain none of them."""
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        X_parts: list[Rows] = []
        y_parts: list[NDArray[Any]] = []
        for lo in range(int(ascending[0]), int(ascending[-1]) + 1, step):
            first, last = np.searchsorted(ascending, (lo, lo + step))
            if first < last:
                X, y = self._read(lo, min(lo + step, self.stored.shape.n), dtype, limit)
                taken = ascending[first:last] - lo
                X_parts.append(X[taken])
                if y is not None:
                    y_parts.append(y[taken])
        X = concatenate(X_parts)
        X_parts.clear()
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return X[place], np.concatenate(y_parts)[place] if y_parts else None

    def _formed(self, X: Rows) -> Rows:
        """Rows in the form and width wanted."""
        if is_sparse(X):
            X = csr(X.data, X.indices + self.shift, X.indptr, (X.shape[0], self.width))
            return X.toarray() if self.dense else X
        return (
            X if X.shape[1] == self.width else np.pad(X, ((0, 0), (self.shift, self.width - X.shape[1] - self.shift)))
        )
