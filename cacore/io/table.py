"""Rows with their targets, and checks whose errors name the place of an invalid value."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.columns import UNNAMED, Columns
from cacore.data.resolution import Mask, Moments, check_resolved
from cacore.data.rows import Rows, first_nonfinite
from cacore.errors import InputError
from cacore.io.stream import DAMAGE
from cacore.io.words import FILL

_DOUBLE = np.dtype(np.float64)


@dataclass(frozen=True)
class Targets:
    """Kinds of targets that a run accepts.

    Attributes
    ----------
    many : bool
        True if several numbers per row are accepted.
    labels : str
        "any": labels of classes, words or numbers, whole ones exactly. "words" or "numbers": the same, of a model or
        training rows whose labels are words, or numbers. "guess": words make classes of the target. Empty: the target
        is a number.
    needed : bool
        True if training rows must have a target. If False, ``--target none`` declares that a CSV file has none, and
        rows are compared without their targets.
    remedy : str
        Remedy shown if the target is text and must be a number.
    """

    many: bool = False
    labels: Literal["", "any", "words", "numbers", "guess"] = ""
    needed: bool = True
    remedy: str = "make it +1 and -1 with cacore.io convert --binarize CLASS"

    @property
    def text(self) -> bool:
        """True if the target may be words."""
        return self.labels != ""

    def like(self, y: NDArray[Any] | None) -> Targets:
        """Targets of further rows, whose labels are words or numbers as those in `y`."""
        if not self.text or not self.needed or y is None:
            return self
        return replace(self, labels="words" if y.dtype.kind == "U" else "numbers")

    def check(self, shape: tuple[int, ...], where: str) -> None:
        """Raise an InputError if targets of this shape are not accepted."""
        if len(shape) > 1 and not (self.many and len(shape) == 2 and shape[1]):
            need = "an n x t array of targets" if self.many else "one label or target per row"
            raise InputError(f"{where}: y has shape {shape}; {need} is needed")


NUMBERS = Targets()
LABELS = Targets(labels="any")  # accepted by all classifiers
NO_TARGET = "none"  # value of --target for a file without a target


@dataclass
class Table:
    """Block of rows of a data set.

    Attributes
    ----------
    X : ndarray, CSR or StoredRows, shape (m, d)
    y : ndarray, shape (m,) or (m, t), or None
    where : str
        Name in messages: the file, and the split in it.
    first : int
        Number in the file of the first row here.
    line_of : callable or None
        For text files: function that finds the line of a row by reading the file again.
    base : int or None
        For LIBSVM rows: number of the first feature, 0 or 1.
    columns : Columns
        Names of the columns, if the file has them.
    features : int or None
        For LIBSVM rows: number of features in the file itself; further features in `X` are taken as 0.
    target : str
        For tables: name or number of the target column that was chosen, if the user did not name one.
    gaps : tuple of two str
        Description of NaN in messages, among the features and in the target; by default "nan".
    rounded : tuple of two ndarrays of bool, or None
        Features and targets with whole numbers that were rounded to double precision; None if that is not known.
    """

    X: Rows
    y: NDArray[Any] | None
    where: str
    first: int = 0
    line_of: Callable[[int], int] | None = None
    base: int | None = None
    columns: Columns = UNNAMED
    features: int | None = None
    target: str = ""
    gaps: tuple[str, str] = ("nan", "nan")
    rounded: tuple[Mask | None, Mask | None] = (None, None)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features, if the file has them."""
        return self.columns.features

    def checked(self, dtype: np.dtype[Any] | None = None, whole: bool = True) -> Table:
        """Check that `dtype` can hold all numbers and, for a `whole` table, that there are some; return this table.

        If not, an InputError names the file, the row (and line) and the column. Afterwards the features have a
        :func:`plain` type, and the targets are float64 unless they are text or whole numbers.
        """
        if whole:
            check_size(self.X.shape[0], self.X.shape[1], self.where)
        if self.y is not None and len(self.y) != self.X.shape[0]:
            raise InputError(f"{self.where}: {self.X.shape[0]:,} rows of features, but {len(self.y):,} targets")
        return self.check_features(plain(self.X.dtype) if dtype is None else dtype).check_finite_targets()

    def check_features(self, dtype: np.dtype[Any]) -> Table:
        """Check the features only; see :meth:`checked`."""
        found = first_nonfinite(self.X, dtype)
        if found is not None:
            row, column, value = found
            name = f" ({self.names[column]})" if column < len(self.names) else ""
            remedy = _remedy(value, dtype, FILL, self.gaps[0])
            raise InputError(f"{self.where}: {self._row(row)}, feature {column}{name} is {remedy}")
        self.X = self.X.astype(plain(self.X.dtype), copy=False)
        return self

    def check_finite_targets(self) -> Table:
        """Check the targets only; see :meth:`checked`."""
        if self.y is not None and self.y.dtype.kind in "biuf":
            found = first_nonfinite(self.y, _DOUBLE)
            if found is not None:
                row, column, value = found
                which = f"target {column}" if self.y.ndim > 1 else "the target"
                remedy = _remedy(value, _DOUBLE, "remove the row", self.gaps[1])
                raise InputError(f"{self.where}: {self._row(row)}, {which} is {remedy}")
            self.y = plain_targets(self.y)
        return self

    def check_numeric(self, remedy: str) -> None:
        """Raise an InputError if the targets are text."""
        if self.y is not None and self.y.dtype.kind not in "biuf":
            raise InputError(f"{self.where}: the target is text; {remedy}")

    def check_targets(self, wanted: Targets) -> None:
        """Raise an InputError if the targets are not of an accepted kind."""
        if not wanted.text:
            self.check_numeric(wanted.remedy)
        if self.y is not None:
            wanted.check(self.y.shape, self.where)
            if not wanted.text:
                self.y = self.y.astype(_DOUBLE, copy=False)

    def check_resolved(self, dtype: np.dtype[Any], comm: Communicator, moments: Moments | None = None) -> None:
        """Refuse training rows with a feature or a target that this precision does not resolve; collective.

        Parameters
        ----------
        dtype : dtype
        comm : Communicator
        moments : Moments, optional
            Those of rows that are in this precision already, as they were before.
        """
        features, targets = self.rounded
        if moments is None:
            check_resolved(self.X, dtype, comm, self.where, self.names, features)
        else:
            moments.check(dtype, comm, self.where, self.names, features)
        if targets is not None and self.y is not None and self.y.dtype.kind == "f":  # others are labels
            y = self.y.reshape(len(self.y), -1)
            check_resolved(y, _DOUBLE, comm, self.where, self.columns.target, targets, "target")

    def _row(self, row: int) -> str:
        row += self.first
        if self.line_of is None:
            return f"row {row}"
        try:
            return f"row {row} (line {self.line_of(row)})"
        except (*DAMAGE, csv.Error):  # the file has been removed or written to since the row was read
            return f"row {row}"


def plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Type in which numbers of type `dtype` are kept: in native byte order, and double precision unless single."""
    return dtype.newbyteorder("=") if dtype.kind != "f" or dtype.itemsize == 4 else _DOUBLE


def plain_targets(y: NDArray[Any]) -> NDArray[Any]:
    """Targets as they are kept: text, 64-bit integers or double precision, in native byte order."""
    if y.dtype.kind == "U":
        return y
    if y.dtype.kind not in "biu":
        return y.astype(_DOUBLE, copy=False)
    return y.astype(np.uint64 if y.dtype.kind == "u" and y.dtype.itemsize == 8 else np.int64, copy=False)


def _remedy(value: float, dtype: np.dtype[Any], remedy: str, gap: str) -> str:
    """Message about a number that is not finite in `dtype`, with the remedy; `gap` describes NaN."""
    if np.isfinite(value) and dtype.itemsize < 8:
        return f"{value:g}, too large for {dtype}; use --dtype float64"
    return f"{gap if np.isnan(value) else format(value, 'g')}: {remedy}"


def check_size(n: int, d: int, where: str) -> None:
    """Raise an InputError for a table without rows or features."""
    if n <= 0 or d <= 0:
        raise InputError(f"{where}: {n} rows of {d} features; there is nothing to learn")
