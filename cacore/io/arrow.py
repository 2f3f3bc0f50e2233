"""Parquet and Arrow (Feather) files, read by pyarrow in batches of rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cacore.data.encoding import clean
from cacore.data.resolution import rounded_columns
from cacore.errors import CellError, InputError
from cacore.io.stream import OnBytesRead, Part
from cacore.io.table import RowsRequest, Tabular
from cacore.io.words import ENCODE, Words, short

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_ROWS = 1 << 16  # rows of any types that are read at a time
_DATES = "write dates as numbers, such as days since the first"


class Arrow(Tabular):
    """Rows of a "parquet" or "arrow" file with numeric and boolean columns; missing values become NaN.

    The index of a DataFrame, which pandas stores as further columns, is left out, unless it is asked for by its name.
    """

    def __init__(self, path: Path, form: str, request: RowsRequest) -> None:
        import pyarrow as pa

        self._form, self._errors = form, (pa.ArrowException, OSError)
        self._file, schema = _with_schema(path, form)
        self._fields = _fields(schema, request)
        names = tuple(clean(schema.names[j]) for j in self._fields)
        super().__init__(path, names, len(names), request)
        self._schema = schema
        for j in self.features if self.words is not None else sorted([*self.features, *self.chosen]):
            self._check_type(schema.field(self._fields[j]), request.wanted.remedy if j in self.chosen else None)

    def _kinds(self) -> str:
        """Types of the features' columns."""
        return "".join(_kind(self._schema.field(self._fields[j]).type) for j in self.features)

    def _numbers(self, batch: pa.RecordBatch, columns: list[int]) -> NDArray[np.float64]:
        """Columns of a batch as an array of doubles."""
        out = np.empty((batch.num_rows, len(columns)))
        for k, j in enumerate(columns):
            column = batch.column(self._fields[j])
            if str(column.type) in ("int64", "uint64"):
                self.rounded[j] |= rounded_columns(column.drop_null().to_numpy(zero_copy_only=False)).any()
            values = column.cast("float64", safe=False)
            out[:, k] = values.to_numpy(zero_copy_only=False)
        return out

    def _check_type(self, field: pa.Field, of_target: str | None) -> None:
        """Raise an InputError that names the column, unless it holds numbers; `of_target`: remedy in a target."""
        import pyarrow as pa

        kind = field.type
        types = pa.types
        if any(fits(kind) for fits in (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)):
            return
        remedy = _DATES if types.is_temporal(kind) else of_target or ENCODE
        raise (CellError if of_target is None else InputError)(
            f"{self.path}: column {field.name!r} is of type {short(str(kind))}, not of numbers; {remedy}"
        )

    def parts(self, on_read: OnBytesRead | None) -> Iterator[Part]:
        """Yield features and targets in batches of rows; a target that may be text is yielded as integer codes."""
        rows = 0
        try:
            for batch in _batches(self._file, self._form, self.step):
                self.require(rows + batch.num_rows)
                y = self._numbers(batch, self.chosen) if self.words is None else self._codes(batch, self.words)
                yield self._numbers(batch, self.features), y
                rows += batch.num_rows
        except self._errors as error:
            raise _damaged(self.path, error) from error
        if on_read is not None:
            on_read(self.path.stat().st_size)

    def _codes(self, batch: pa.RecordBatch, words: Words) -> NDArray[np.float64]:
        """Codes of the target's values, shape (m, 1)."""
        values = batch.column(self._fields[self.chosen[0]]).to_pylist()
        return np.array([[words.code("" if value is None else str(value))] for value in values])


def whole(path: Path, form: str, names: list[str]) -> pa.Table:
    """All rows of the columns with these names, of any types."""
    import pyarrow as pa

    file, _ = _with_schema(path, form)
    try:
        table = file.read() if form == "parquet" else file.read_all()
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from error
    return table.select(names)


def batches(path: Path, form: str, request: RowsRequest) -> Iterator[pa.RecordBatch]:
    """The same columns as :func:`names`, of any types, in batches of rows."""
    import pyarrow as pa

    file, schema = _with_schema(path, form)
    columns = _fields(schema, request)
    try:
        for batch in _batches(file, form, _ROWS):
            yield batch.select(columns)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from error


def names(path: Path, form: str, request: RowsRequest) -> list[str]:
    """Names of the columns, without the index of a DataFrame."""
    _, schema = _with_schema(path, form)
    return [schema.names[j] for j in _fields(schema, request)]


def _fields(schema: pa.Schema, request: RowsRequest) -> list[int]:
    """Numbers of the columns, without the index of a DataFrame unless it is asked for."""
    index = _index(schema)
    asked = {*request.expected.columns.features, *request.expected.columns.target, request.expected.key}
    asked |= {*request.expected.overrides.aside, *request.expected.overrides.kinds}
    asked |= {clean(word) for target in (request.target, request.usual_target) if target for word in target.split(",")}
    return [j for j, name in enumerate(schema.names) if name not in index or clean(name) in asked]


def _with_schema(path: Path, form: str) -> tuple[pa.RecordBatchFileReader | pq.ParquetFile, pa.Schema]:
    """The opened file and its schema."""
    import pyarrow as pa

    try:
        file = _opened(path, form)
        return file, file.schema_arrow if form == "parquet" else file.schema
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(
        f"{path}: cannot be read, it may be damaged or truncated ({short(str(error), 200)}); copy it again"
    )


def _opened(path: Path, form: str) -> pa.RecordBatchFileReader | pq.ParquetFile:
    import pyarrow as pa

    # Not mapped into memory: if another process truncated a mapped file, this process would be killed. As bytes, the
    # name may be no valid text.
    file = pa.OSFile(os.fsencode(path))
    if form == "parquet":
        import pyarrow.parquet as pq

        return pq.ParquetFile(file)
    return pa.ipc.open_file(file)


def _batches(file: pa.RecordBatchFileReader | pq.ParquetFile, form: str, most: int) -> Iterator[pa.RecordBatch]:
    """Yield record batches of at most `most` rows."""
    if form == "parquet":
        yield from file.iter_batches(batch_size=most)
        return
    for i in range(file.num_record_batches):
        batch = file.get_batch(i)
        for lo in range(0, batch.num_rows, most):
            yield batch.slice(lo, most)


def _index(schema: pa.Schema) -> set[str]:
    """Names of the columns that are the index of a DataFrame, by pandas' own description of the file."""
    try:
        described = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
        return {name for name in described.get("index_columns", []) if isinstance(name, str)}
    except (ValueError, AttributeError, TypeError, RecursionError):  # not pandas', or damaged
        return set()


def _kind(kind: pa.DataType) -> str:
    """Numpy's letter for a type of numbers."""
    import pyarrow as pa

    types = pa.types
    if types.is_boolean(kind):
        return "b"
    if types.is_unsigned_integer(kind):
        return "u"
    return "i" if types.is_integer(kind) else "f"
