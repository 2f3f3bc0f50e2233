"""Rows with their targets, and the checks that name the place of what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from cacore.data.rows import Rows, first_nonfinite
from cacore.errors import InputError


@dataclass
class Table:
    """Some rows of a data set.

    Attributes
    ----------
    X : ndarray or CSR, shape (m, d)
    y : ndarray, shape (m,), or None
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
    """

    X: Rows
    y: NDArray[Any] | None
    where: str
    first: int = 0
    line_of: Callable[[int], int] | None = None
    base: int | None = None
    names: tuple[str, ...] = ()

    def checked(self, whole: bool = True) -> Table:
        """This table, if all its numbers are finite, and it has some unless it is a block of a larger one.

        If not, an InputError names the file, the row (and line) and the column.
        """
        if whole:
            check_size(self.X.shape[0], self.X.shape[1], self.where)
        if self.y is not None and len(self.y) != self.X.shape[0]:
            raise InputError(f"{self.where}: {self.X.shape[0]} rows of features and {len(self.y)} targets")
        found = first_nonfinite(self.X)
        if found is not None:
            row, column, value = found
            name = f" ({self.names[column]})" if column < len(self.names) else ""
            raise InputError(
                f"{self.where}: {self._row(row)}, feature {column}{name} is {value}: remove the row or fill the gap"
            )
        found = None if self.y is None else first_nonfinite(self.y)
        if found is not None:
            raise InputError(f"{self.where}: {self._row(found[0])}, the target is {found[2]}: remove the row")
        return self

    def check_numeric(self, remedy: str) -> None:
        """Refuse targets that are text."""
        if self.y is not None and self.y.dtype.kind not in "biuf":
            raise InputError(f"{self.where}: the target is text; {remedy}")

    def _row(self, row: int) -> str:
        row += self.first
        return f"row {row} (line {self.line_of(row)})" if self.line_of else f"row {row}"


def check_size(n: int, d: int, where: str) -> None:
    """Refuse a table without rows or features."""
    if n == 0 or d == 0:
        raise InputError(f"{where}: {n} rows of {d} features; there is nothing to learn")
