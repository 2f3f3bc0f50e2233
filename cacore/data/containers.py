"""Arrays, tables and sparse matrices as users pass them: what is refused before other code reads them.

numpy and scikit-learn treat masked values as data and dates as their count of ticks, and trust the index arrays of a
sparse matrix, which compiled code reads without bounds checks. Here masks and dates are refused, and the index arrays
are checked. Words that mark missing values are known here, for tables of objects and for files.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import CSR, csr, is_csr, is_sparse
from cacore.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

GAPS = {"", "na", "n/a", "#n/a", "nan", "<na>", "nat", "null"}
MISSING = GAPS | {"-", ".", "?", "none"}  # in lower case
_REBUILD = "build the matrix again from rows, columns and values"
_MASK = "masked: fill masked cells, as numpy.ma.MaskedArray.filled does, or leave their rows out"
# Names of types in numpy, pandas, polars and Arrow whose values are not real numbers, and a remedy for each.
_OTHER_TYPES = (
    (r"timedelta|duration", "write durations as numbers, such as seconds"),
    (r"datetime|date|timestamp|period|time", "write dates as numbers, such as days since the first"),
    (r"interval", "give the ends as two columns"),
    (r"complex", "Complex data not supported: give real and imaginary parts as two columns"),
)
_OTHER_CELLS = (np.datetime64, np.timedelta64, datetime.date, datetime.timedelta, type(np.ma.masked))
_TOO_LARGE = 2**1024 - 2**970  # from here on a whole number rounds to infinity


def is_missing(word: str) -> bool:
    """True if this word marks a missing value."""
    return word.strip().lower() in MISSING


def is_gap(word: str) -> bool:
    """True if this word marks a missing value even among words, where "none", "-", "." and "?" may be classes."""
    return word.strip().lower() in GAPS


def other_type(kind: str) -> str | None:
    """Remedy for a type, given by its name, whose values are not real numbers; None for any other type."""
    return next((remedy for form, remedy in _OTHER_TYPES if re.match(form, kind, re.IGNORECASE)), None)


def column_types(X: object) -> list[tuple[Any, str]] | None:
    """Name and type of each column of a pandas or polars DataFrame or an Arrow table; None for other input."""
    if hasattr(X, "column_names") and hasattr(X, "schema"):
        return [(name, str(X.schema.field(j).type)) for j, name in enumerate(X.column_names)]
    if hasattr(X, "columns") and hasattr(X, "dtypes"):
        return list(zip(X.columns, map(str, X.dtypes), strict=True))
    return None


_PLAIN = re.compile(r"(u?int|float)[0-9]+$|bool$")  # numpy's types of numbers, which have no gaps but NaN


def table_with_words(X: object) -> pa.Table | None:
    """A DataFrame or Arrow table that has words, dates or gaps, as an Arrow table; None for other input.

    Columns of intervals, durations and complex numbers are left to :func:`plain`, which refuses them.
    """
    types = column_types(X)
    if not types or any(re.match("interval|complex|timedelta|duration", kind, re.IGNORECASE) for _, kind in types):
        return None
    for j, (name, kind) in enumerate(types):
        if kind == "object" and {int, Fraction} & set(map(type, cells := column_of(X, j))):
            _check_sizes(np.asarray(cells), f"X, column {name!r}")
    if all(_PLAIN.match(kind) for _, kind in types) and not np.isnan(np.asarray(X, np.float64)).any():
        return None
    import pyarrow as pa
    import pyarrow.compute as pc

    table = arrow_table(X)
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    for column in table.columns:
        if column.null_count or not any(fits(column.type) for fits in numbers):
            return table
        if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
            return table
    return None


def arrow_table(X: Any) -> pa.Table:
    """The columns of a DataFrame as an Arrow table, whose gaps are null; cells of mixed types are text."""
    import pyarrow as pa

    if hasattr(X, "to_arrow"):
        return X.to_arrow()
    if isinstance(X, pa.Table):
        return X
    columns = []
    for j in range(X.shape[1]):
        cells = X.iloc[:, j]
        if str(cells.dtype).startswith("period"):
            cells = cells.dt.to_timestamp()
        try:
            columns.append(pa.array(cells, from_pandas=True))
        except (pa.ArrowException, OverflowError, TypeError):
            gaps = cells.isna().to_numpy()
            columns.append(pa.array([None if gap else str(cell) for cell, gap in zip(cells, gaps, strict=True)]))
    return pa.Table.from_arrays(columns, names=[str(name) for name in X.columns])


def column_of(X: Any, j: int) -> NDArray[Any]:
    """The cells of a column, for input of any kind."""
    if hasattr(X, "column_names"):
        return np.asarray(X.column(j))
    return np.asarray(X.iloc[:, j] if hasattr(X, "iloc") else X[:, j])


def plain(X: Any, name: str = "X") -> Any:
    """The same numbers, without the mask of a masked array and with sound index arrays of a sparse matrix.

    Rows without a fault are returned as they are. Costs one pass over index arrays, and over lists and arrays of
    objects.

    Raises
    ------
    InputError
        Masked values; dates, durations, complex numbers or records; column numbers out of range.
    """
    if is_sparse(X) or hasattr(X, "tocsr"):
        return sound(X, name)
    X, columns = unmasked(X, name), column_types(X)
    if columns is not None:
        for j, (column, kind) in enumerate(columns):
            where = f"{name}, column {column!r}"
            _check_type(kind, where)
            if kind == "object":
                _check_cells(column_of(X, j), where)
        return X
    if isinstance(X, list | tuple):
        _check_cells(_objects(X), name)
        return X
    if hasattr(X, "__array__") and not (isinstance(X, np.ndarray) or hasattr(X, "iloc")):
        X = unmasked(np.asarray(X), name)
    if hasattr(X, "dtype"):
        if getattr(X.dtype, "names", None):
            fields = "numpy.lib.recfunctions.structured_to_unstructured makes columns of its fields"
            raise InputError(f"{name}: records of {', '.join(X.dtype.names)[:60]}, not numbers: {fields}")
        _check_type(str(getattr(X.dtype, "name", X.dtype)), name)
        _check_cells(X, name)
    return X


def unmasked(X: Any, name: str) -> Any:
    """The array without its mask; an InputError if it, or a row of a list, has masked values."""
    rows = X if isinstance(X, list | tuple) else [X]
    if any(isinstance(row, np.ma.MaskedArray) and np.ma.is_masked(row) for row in rows):
        mask = np.ma.getmaskarray(X) if rows is not X else np.array([np.ma.is_masked(row) for row in X])
        at = np.argwhere(mask)[0].tolist()
        raise InputError(f"{_where(name, at)} is {_MASK}")
    return X.data if isinstance(X, np.ma.MaskedArray) else X


def _check_type(kind: str, where: str) -> None:
    remedy = other_type(kind)
    if remedy is not None:
        raise InputError(f"{where}: of type {kind[:60]}, not numbers: {remedy}")


def _objects(X: object) -> NDArray[Any]:
    """Cells of a list as an array of objects; none if its rows differ in length."""
    try:
        return np.asarray(X, object)
    except ValueError:
        return np.zeros(0, object)


def _check_cells(cells: Any, name: str) -> None:
    """Raise an InputError for dates and durations in an array of objects, which numpy would convert to numbers.

    Also for whole numbers and fractions above the largest double, with which numpy cannot do that.
    """
    if not isinstance(cells, np.ndarray) or cells.dtype != object:
        return
    kinds = set(map(type, cells.flat))
    if int in kinds or Fraction in kinds:
        _check_sizes(cells, name)
    if not any(issubclass(kind, _OTHER_CELLS) for kind in kinds):
        return
    at, value = next((at, value) for at, value in np.ndenumerate(cells) if isinstance(value, _OTHER_CELLS))
    where = _where(name, at)
    if value is np.ma.masked:
        raise InputError(f"{where} is {_MASK}")
    remedy = other_type("timedelta" if isinstance(value, np.timedelta64 | datetime.timedelta) else "datetime")
    raise InputError(f"{where} is {str(value)[:60]}, not a number: {remedy}")


def _check_sizes(cells: NDArray[Any], name: str) -> None:
    """Raise an InputError for a whole number or a fraction above the largest double."""
    for at, value in np.ndenumerate(cells):
        if isinstance(value, int | Fraction) and (size := abs(int(value))) >= _TOO_LARGE:
            digits = int(math.log10(size)) + 1
            raise InputError(f"{_where(name, at)} has {digits} digits, and the largest double is about 1.8e308")


def _where(name: str, at: Sequence[int]) -> str:
    """Name of a cell by its indices, in messages."""
    return f"{name}, column {at[1]}: row {at[0]}" if len(at) == 2 else f"{name}: row {at[0] if len(at) else 0}"


def sound(X: Any, name: str = "X") -> Any:
    """CSR rows whose index arrays are valid, with 32-bit indices where they suffice and without duplicates.

    `X` itself, if it is such; duplicate entries are summed, as scipy does. Raises an InputError for invalid arrays.
    """
    if len(X.shape) != 2:
        return X  # scikit-learn refuses it
    if X.format == "coo":
        for axis, numbers in enumerate((X.row, X.col)):
            _check_numbers(numbers, X.shape[axis], ("row", "column")[axis], name)
    elif X.format in ("csr", "csc", "bsr"):
        _check_arrays(X, name)
    if X.format == "csr":
        rows = X
    else:
        rows = X.tocsr()
        _check_arrays(rows, name)  # lists of lists may hold any column number
    return _canonical(rows)


def _check_arrays(X: Any, name: str) -> None:
    """Raise an InputError unless the arrays of a CSR, CSC or BSR matrix are valid."""
    size = X.blocksize if X.format == "bsr" else (1, 1)
    shape = tuple(n // by for n, by in zip(X.shape, size, strict=True))
    shape, axes = (shape[::-1], ("column", "row")) if X.format == "csc" else (shape, ("row", "column"))
    indices, indptr = np.asarray(X.indices), np.asarray(X.indptr)
    used = int(indptr[-1]) if indptr.ndim == 1 and len(indptr) else -1
    entries = np.asarray(X.data)[:used] if X.format != "bsr" else np.empty(min(used, len(X.data)))
    if used >= 0 and indices.ndim == 1 and is_csr(entries, indices[:used], indptr, shape):
        return
    if indices.ndim == 1 and indices.dtype.kind in "iu":
        _check_numbers(indices[: max(0, used)], shape[1], axes[1], name)
    need = f"indptr must ascend from 0 to the number of entries and have one number per {axes[0]} and one more"
    raise InputError(f"{name}: the index arrays of this {X.format.upper()} matrix are not valid ({need}): {_REBUILD}")


def _check_numbers(numbers: NDArray[Any], count: int, axis: str, name: str) -> None:
    """Raise an InputError for a row or column number that is not below `count`."""
    if not numbers.size or 0 <= numbers.min() <= numbers.max() < count:
        return
    first = int(numbers[(numbers < 0) | (numbers >= count)][0])
    raise InputError(f"{name}: an entry has the {axis} number {first}, and {axis}s are 0 to {count - 1}: {_REBUILD}")


def _canonical(X: CSR) -> CSR:
    """Valid CSR rows with ascending column numbers, each once in its row."""
    used = int(X.indptr[-1])
    rows = csr(X.data[:used], X.indices[:used], X.indptr, X.shape)  # a new matrix, without flags cached for the old one
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
        return rows
    same = rows.indices.dtype == X.indices.dtype == X.indptr.dtype and len(X.data) == len(X.indices) == used
    return X if same else rows
