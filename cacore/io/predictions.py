"""Prediction files, written atomically: one column per quantity, one row per row predicted.

The file name's suffix selects the format: Parquet (.parquet), HDF5 (.h5, .hdf5; one dataset per column), else CSV;
the name ``-`` stands for CSV on standard output.
Numbers are written with all their digits, so every format reproduces them exactly.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import h5py
import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Keys
from cacore.errors import InputError
from cacore.files import STDOUT, printing, replacing
from cacore.io import native
from cacore.machine.threads import blocks

_BLOCK = 1 << 16  # rows formatted at a time
_OTHERS = {".arrow", ".feather", ".json", ".npy", ".npz", ".xls", ".xlsx"}  # suffixes under which nobody expects CSV


class Labels(NamedTuple):
    """Column of labels.

    Attributes
    ----------
    classes : ndarray, shape (k,)
        Numbers or text.
    codes : ndarray of int64, shape (m,)
        Index in `classes` of each row's label.
    """

    classes: NDArray[Any]
    codes: NDArray[np.int64]


Column = NDArray[Any] | Labels


def check(path: Path) -> None:
    """Raise an InputError, before any work is done, for an unsupported format."""
    if path.suffix.lower() in _OTHERS:
        raise InputError(f"{path}: predictions are written as .csv, .parquet or .h5; name such a file")


def write(
    path: Path, columns: Mapping[str, Column], comm: Communicator, keys: Mapping[str, Keys] | None = None
) -> None:
    """Gather the columns of all ranks, in rank order, and write them on rank 0; collective.

    Parameters
    ----------
    path : Path
    columns : mapping of str to ndarray, shape (m,), or Labels
        This rank's rows; the same names in the same order on all ranks.
    comm : Communicator
        Rank 0 holds the rows of all ranks.
    keys : mapping of str to ndarray of int64 or text, shape (n,), optional
        Columns of all ranks' rows, which rank 0 has, to be written before the others.

    Raises
    ------
    InputError
        A column of keys has the name of another column.
    OutputError
        The file could not be written.
    """
    whole: dict[str, Column] = dict(keys or {})
    with comm.agreed():
        if both := [name for name in whole if name in columns]:
            raise InputError(f"--id {both[0]}: the predictions have a column of this name; rename it in the data")
    for name, column in columns.items():
        rows = comm.gather(column.codes if isinstance(column, Labels) else column)
        if rows is not None:
            whole[name] = Labels(column.classes, rows) if isinstance(column, Labels) else rows
    with comm.agreed():
        if comm.rank == 0 and path == STDOUT:
            with printing():
                _put(sys.stdout, whole)
        elif comm.rank == 0:
            check(path)
            writers = {".parquet": _write_parquet, ".h5": _write_hdf5, ".hdf5": _write_hdf5}
            with replacing(path) as temporary:
                writers.get(path.suffix.lower(), _write_csv)(temporary, whole)


def _write_csv(path: Path, columns: Mapping[str, Column]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        _put(file, columns)


def _put(file: TextIO, columns: Mapping[str, Column]) -> None:
    """Write the columns as CSV."""
    out = csv.writer(file, lineterminator="\n")
    out.writerow(columns)
    for lo, hi in blocks(_rows(columns), _BLOCK):
        out.writerows(zip(*(_words(column, lo, hi) for column in columns.values()), strict=True))


def _rows(columns: Mapping[str, Column]) -> int:
    first = next(iter(columns.values()))
    return len(first.codes if isinstance(first, Labels) else first)


def _words(column: Column, lo: int, hi: int) -> list[str]:
    """Rows ``lo:hi`` of a column as text."""
    if isinstance(column, Labels):
        names = [str(label) for label in column.classes]
        return [names[code] for code in column.codes[lo:hi].tolist()]
    if column.dtype.kind == "U":
        return [str(word) for word in column[lo:hi].tolist()]
    form = {np.dtype(np.float64): "%.17g", np.dtype(np.float32): "%.9g"}.get(column.dtype, "%d")
    return [form % value for value in column[lo:hi].tolist()]


def _values(column: Column) -> NDArray[Any]:
    return column.classes[column.codes] if isinstance(column, Labels) else column


def _write_hdf5(path: Path, columns: Mapping[str, Column]) -> None:
    with native.created(path, libver=native.FORMAT, track_order=True) as file:
        file.attrs["schema"] = np.bytes_(b"cakernels-predictions/1")
        for name, column in columns.items():
            values = _values(column)
            kind = h5py.string_dtype() if values.dtype.kind == "U" else values.dtype
            file.create_dataset(name.replace("/", "\N{DIVISION SLASH}"), data=values.astype(kind))


def _write_parquet(path: Path, columns: Mapping[str, Column]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({name: pa.array(_values(column)) for name, column in columns.items()})
    with pa.OSFile(os.fsencode(path), "wb") as file:  # as bytes, since the name may be no valid text
        pq.write_table(table, file)
