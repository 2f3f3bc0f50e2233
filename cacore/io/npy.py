"""NPY files: an array whose columns are features and the target, read in blocks of rows."""

from __future__ import annotations

import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.data.resolution import rounded_columns
from cacore.errors import InputError
from cacore.io.shares import Part
from cacore.io.stream import OnBytesRead
from cacore.io.tabular import ColumnRequest, Tabular
from cacore.io.words import short

_DAMAGE = (ValueError, OSError, EOFError, SyntaxError, OverflowError, TypeError, tokenize.TokenError)


class Npy(Tabular):
    """Rows of an NPY file that holds an array of shape (n, columns)."""

    def __init__(self, path: Path, request: ColumnRequest) -> None:
        try:
            mapped = np.load(path, mmap_mode="r", allow_pickle=False)  # for its header
        except _DAMAGE as error:
            what = f"it may be damaged or truncated ({short(str(error), 200)})"
            raise InputError(f"{path}: cannot be read, {what}; save the rows again, as an array of numbers") from error
        shape, dtype = mapped.shape, mapped.dtype
        if len(shape) != 2 or dtype.kind not in "biuf":
            raise InputError(f"{path}: shape {shape} and type {dtype}; rows of numbers are needed")
        self._shape, self._dtype, self._by_rows = shape, dtype, bool(mapped.flags.c_contiguous)
        self._begin = int(mapped.offset)
        super().__init__(path, (), shape[1], request)

    def parts(self, on_read: OnBytesRead | None) -> Iterator[Part]:
        """Yield features and targets in blocks of rows; a target that may be text is given as codes."""
        n, columns = self._shape
        for lo in range(0, n, self.step):
            hi = min(lo + self.step, n)
            self.require(hi)
            stored = self._rows(lo, hi)
            self.rounded |= rounded_columns(stored)
            with np.errstate(over="ignore"):  # what overflows is refused as infinite, with its place
                rows = stored.astype(np.float64)
            y = rows[:, self.chosen]
            if self.words is not None:
                values = (stored if stored.dtype.kind in "iu" else rows)[:, self.chosen[0]].tolist()
                y = np.array([[self.words.code(repr(value))] for value in values])
            if on_read is not None:
                on_read(hi * columns * self._dtype.itemsize)
            yield (rows[:, self.features] if self.chosen else rows), y

    def _rows(self, lo: int, hi: int) -> NDArray[Any]:
        """Read rows ``lo:hi`` unmapped: if a mapped file were truncated by others, this process would be killed."""
        n, columns = self._shape
        if self._by_rows:
            return self._read(lo * columns, (hi - lo) * columns).reshape(hi - lo, columns)
        return np.stack([self._read(j * n + lo, hi - lo) for j in range(columns)], axis=1)

    def _read(self, first: int, count: int) -> NDArray[Any]:
        found = np.fromfile(self.path, self._dtype, count, offset=self._begin + first * self._dtype.itemsize)
        if len(found) < count:
            raise EOFError("it is shorter than its header says")
        return found
