"""NPY: an array whose columns are features and the target, mapped into memory and read some rows at a time."""

from __future__ import annotations

import tokenize
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cacore.errors import InputError
from cacore.io.stream import Told
from cacore.io.tabular import Asked, Part, Tabular
from cacore.io.words import short

_DAMAGE = (ValueError, OSError, EOFError, SyntaxError, OverflowError, TypeError, tokenize.TokenError)


class Npy(Tabular):
    """The rows of an array of shape (n, columns)."""

    def __init__(self, path: Path, asked: Asked) -> None:
        try:
            self._array = np.load(path, mmap_mode="r", allow_pickle=False)
        except _DAMAGE as error:
            what = f"it may be damaged or truncated ({short(str(error), 200)})"
            raise InputError(f"{path}: cannot be read, {what}; save the rows again, as an array of numbers") from error
        shape, dtype = self._array.shape, self._array.dtype
        if len(shape) != 2 or dtype.kind not in "biuf":
            raise InputError(f"{path}: shape {shape} and type {dtype}; rows of numbers are needed")
        super().__init__(path, (), shape[1], asked)

    def parts(self, told: Told | None) -> Iterator[Part]:
        """Features and targets of some rows at a time; of a target that may be words the codes."""
        n, columns = self._array.shape
        for lo in range(0, n, self.step):
            self.require(min(lo + self.step, n))
            rows = self._array[lo : lo + self.step].astype(np.float64)
            y = rows[:, self.chosen]
            if self.words is not None:
                y = np.array([[self.words.code(repr(value))] for value in y[:, 0].tolist()])
            if told is not None:
                told((lo + len(rows)) * columns * self._array.itemsize)
            yield (rows[:, self.features] if self.chosen else rows), y
