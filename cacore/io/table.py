"""Rows with their targets, and the checks that name the place of what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows, first_nonfinite
from cacore.errors import InputError
from cacore.io.words import FILL

_DOUBLE = np.dtype(np.float64)


@dataclass(frozen=True)
class Targets:
    """What targets a run can use.

    Attributes
    ----------
    many : bool
        Several numbers a row.
    text : bool
        Labels that are words.
    needed : bool
        Whether training rows must have one. If not, ``--target none`` says that a CSV file has no target, and a row is
        compared with others without its target.
    remedy : str
        What to do about text where it cannot be used.
    """

    many: bool = False
    text: bool = False
    needed: bool = True
    remedy: str = "make it +1 and -1 with cacore.io convert --binarize CLASS"

    def check(self, shape: tuple[int, ...], where: str) -> None:
        """Refuse several targets a row where one is wanted, or none at all."""
        if len(shape) > 1 and not (self.many and len(shape) == 2 and shape[1]):
            need = "an n x t array of targets" if self.many else "one label or target a row"
            raise InputError(f"{where}: y has shape {shape}; {need} is needed")


LABELS = Targets()  # of the kernel SVMs
NO_TARGET = "none"  # the target column of a file that has none


@dataclass
class Table:
    """Some rows of a data set.

    Attributes
    ----------
    X : ndarray or CSR, shape (m, d)
    y : ndarray, shape (m,) or (m, t), or None
    where : str
        What messages call it: the file, and the split in it.
    first : int
        Row number, in the file, of the first row here.
    line_of : callable or None
        Line, in a text file, of a row; it reads the file again.
    base : int or None
        Of LIBSVM rows, whose width is only what they use: the number of their first feature.
    names : tuple of str
        Column names, where the file has them.
    features : int or None
        Of LIBSVM rows: how many the file itself has; the others in `X` are taken as 0.
    """

    X: Rows
    y: NDArray[Any] | None
    where: str
    first: int = 0
    line_of: Callable[[int], int] | None = None
    base: int | None = None
    names: tuple[str, ...] = ()
    features: int | None = None

    def checked(self, dtype: np.dtype[Any] | None = None, whole: bool = True) -> Table:
        """This table, if `dtype` can hold all its numbers, and it has some unless it is a block of a larger one.

        If not, an InputError names the file, the row (and line) and the column. The numbers are of a :func:`plain` type
        afterwards, and the targets float64 unless they are text.
        """
        if whole:
            check_size(self.X.shape[0], self.X.shape[1], self.where)
        if self.y is not None and len(self.y) != self.X.shape[0]:
            raise InputError(f"{self.where}: {self.X.shape[0]:,} rows of features and {len(self.y):,} targets")
        return self.check_features(plain(self.X.dtype) if dtype is None else dtype).check_finite_targets()

    def check_features(self, dtype: np.dtype[Any]) -> Table:
        """As :meth:`checked`, of the features alone."""
        found = first_nonfinite(self.X, dtype)
        if found is not None:
            row, column, value = found
            name = f" ({self.names[column]})" if column < len(self.names) else ""
            remedy = _remedy(value, dtype, FILL)
            raise InputError(f"{self.where}: {self._row(row)}, feature {column}{name} is {remedy}")
        self.X = self.X.astype(plain(self.X.dtype), copy=False)
        return self

    def check_finite_targets(self) -> Table:
        """As :meth:`checked`, of the targets alone."""
        if self.y is not None and self.y.dtype.kind in "biuf":
            found = first_nonfinite(self.y, _DOUBLE)
            if found is not None:
                row, column, value = found
                which = f"target {column}" if self.y.ndim > 1 else "the target"
                raise InputError(
                    f"{self.where}: {self._row(row)}, {which} is {_remedy(value, _DOUBLE, 'remove the row')}"
                )
            self.y = self.y.astype(_DOUBLE, copy=False)
        return self

    def check_numeric(self, remedy: str) -> None:
        """Refuse targets that are text."""
        if self.y is not None and self.y.dtype.kind not in "biuf":
            raise InputError(f"{self.where}: the target is text; {remedy}")

    def check_targets(self, wanted: Targets) -> None:
        """Refuse targets that are not of the kind that is wanted."""
        if not wanted.text:
            self.check_numeric(wanted.remedy)
        if self.y is not None:
            wanted.check(self.y.shape, self.where)

    def _row(self, row: int) -> str:
        row += self.first
        return f"row {row} (line {self.line_of(row)})" if self.line_of else f"row {row}"


def plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which numbers of this one are kept: double precision unless it is single, in native byte order."""
    return dtype.newbyteorder("=") if dtype.kind != "f" or dtype.itemsize == 4 else _DOUBLE


def _remedy(value: float, dtype: np.dtype[Any], remedy: str) -> str:
    """A number that is not finite in `dtype`, and what to do."""
    if np.isfinite(value) and dtype.itemsize < 8:
        return f"{value:g}, too large for {dtype}; use --dtype float64"
    return f"{value:g}: {remedy}"


def check_size(n: int, d: int, where: str) -> None:
    """Refuse a table without rows or features."""
    if n <= 0 or d <= 0:
        raise InputError(f"{where}: {n} rows of {d} features; there is nothing to learn")
