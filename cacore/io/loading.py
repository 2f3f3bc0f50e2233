"""Loading of a data set distributed over the ranks: every rank reads or receives its own block of rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.resolution import Moments, rounded_columns
from cacore.data.rows import block_bounds, scatter_rows
from cacore.errors import InputError
from cacore.io import stream, text
from cacore.io.names import UNKNOWN, Expected, in_rows
from cacore.io.table import NUMBERS, ColumnRequest, Table, Targets, check_size
from cacore.io.words import labels_of
from cacore.machine import memory

if TYPE_CHECKING:
    from cacore.io.names import Order
    from cacore.io.native import Shape


TEST = "test"  # the split of rows that are not trained on
_NOTHING, _ONE, _MANY, _WORDS = range(4)  # kind of targets: none, one number, several, text


def load(
    path: str | Path,
    comm: Communicator,
    dtype: str = "float64",
    target: str | None = None,
    n_features: int | None = None,
    usual_target: str | None = None,
    limit: int = 1 << 62,
    wanted: Targets = NUMBERS,
    remedy: str = "",
    expected: Expected = UNKNOWN,
    training: bool = False,
) -> dict[str, Dataset]:
    """Read a file and give every rank its block of each split; collective.

    Parameters
    ----------
    path : path
        HDF5: each rank reads only its own rows. LIBSVM, CSV or TSV, plain or compressed, Parquet, Arrow or NPY: each
        rank holds its rows, for a while twice (see :func:`cacore.io.text.table`). NPZ: rank 0 holds the whole file
        and distributes it.
    comm : Communicator
    dtype : {"float64", "float32"}
    target : str, optional
        Name or number of a CSV file's target column, or several separated by commas; default: the last column.
    n_features : int, optional
        Number of features that a model expects. A CSV file with exactly this many columns has no target, and LIBSVM
        rows may have fewer features.
    usual_target : str, optional
        Target column of a CSV file that has more columns than `n_features`, if `target` is not given.
    limit : int
        Bytes that a rank may use. A file that needs more is refused before it is read, or as soon as that is known.
    wanted : Targets
        Kinds of targets accepted.
    remedy : str
        Further remedy for rows that do not fit into `limit`: an option followed by a comma.
    expected : Expected
        Columns that the file must have, matched by name if both sides have names.
    training : bool
        True if the rows, other than those of the split "test", are to be trained on: columns that `dtype` does not
        resolve are refused, see :mod:`cacore.data.resolution`.

    Returns
    -------
    dict of str to Dataset
        "train" (or all rows), and "test" if the file has it.

    Raises
    ------
    InputError
        On every rank; it names the file and the place.

    Examples
    --------
    >>> from cacore.comm import Communicator
    >>> from cacore.io import load
    >>> with open("rows.csv", "w") as file:
    ...     print("a,b,y", "1,2,3", "4,5,6", sep=chr(10), file=file)
    >>> train = load("rows.csv", Communicator())["train"]
    >>> train.X.tolist(), train.y.tolist()
    ([[1.0, 2.0], [4.0, 5.0]], [3.0, 6.0])
    """
    path, real = Path(path), np.dtype(dtype)
    with comm.phase("read"), stream.unchanging(path, comm):
        form = _agree_on_form(path, comm)
        if form == "hdf5":
            return _blocks(path, comm, real, target, limit, wanted, remedy, expected, training)
        if form == "npz":
            return _handed_out(path, comm, real, target, limit, wanted, training)
        request = ColumnRequest(target, n_features, None, usual_target, limit, wanted, expected=expected)
        table = text.table(path, form, request, comm)
        n = comm.offset(table.X.shape[0])[1]
        with comm.agreed():
            check_size(n, table.X.shape[1], table.where)
            table.check_features(real)
        with comm.agreed():
            table.check_finite_targets().check_targets(wanted)
        if training:
            table.check_resolved(real, comm)
        X = table.X.astype(real, copy=False)
        chosen = {"column": table.target} if table.target else {}
        more: dict[str, Any] = {"features": table.features, "columns": table.columns, "chosen": chosen}
        return {"train": Dataset(X, table.y, n, table.where, table.base, **more)}


def _agree_on_form(path: Path, comm: Communicator) -> str:
    """Kind of the file (see :func:`cacore.io.text.kind`), detected by rank 0 and broadcast."""
    form = np.zeros(0, np.uint8)
    with comm.agreed():
        if comm.rank == 0:
            form = np.frombuffer(text.kind(path).encode(), np.uint8)
    return comm.bcast(form).tobytes().decode()


def _blocks(
    path: Path, comm: Communicator, real: np.dtype[np.floating], target: str | None, limit: int, wanted: Targets,
    remedy: str, expected: Expected, training: bool,
) -> dict[str, Dataset]:  # fmt: skip
    """Read this rank's block of rows of an HDF5 file."""
    from cacore.io import native  # loads h5py, which --help does not need

    with comm.agreed():
        shapes, orders = ordered(path, native.describe(path), expected, target)
        for split, shape in shapes.items():
            wanted.check(shape.y or (), f"{path} ({split})")
        mine = {split: block_bounds(shape.n, comm.size, comm.rank) for split, shape in shapes.items()}
        size = sum(native.needed(path, split, *rows, real, limit, orders[split]) for split, rows in mine.items())
        enough = memory.enough_ranks(2 * size * comm.size, limit)  # leaves half of the memory for the work
        what = f"{path}: a rank's block of the rows"
        memory.require(size, limit, what, f"use {remedy}more ranks{enough} or --dtype float32")
        learned = [split for split in shapes if training and split != TEST]
        small = [split for split in learned if real == np.float32 and not shapes[split].sparse]
        moments = {split: Moments(shapes[split].d) for split in small}
        tables = {
            split: native.read_block(path, split, *rows, real, orders[split], moments.get(split))
            for split, rows in mine.items()
        }
        for table in tables.values():
            table.check_targets(wanted)
    label(tables.values(), wanted, comm)
    for split in learned:
        tables[split].columns = shapes[split].columns
        tables[split].check_resolved(real, comm, moments.get(split))
    return {
        split: Dataset(t.X, t.y, shapes[split].n, t.where, columns=shapes[split].columns) for split, t in tables.items()
    }


def label(tables: Iterable[Table], wanted: Targets, comm: Communicator) -> None:
    """Make labels of targets that are text, of the same type in all splits: numbers if all are numerals; collective."""
    for table in tables:
        if table.y is not None and table.y.dtype.kind == "U" and wanted.text:
            table.y = labels_of(table.y, wanted.labels, comm, table.first, table.where)
        wanted = wanted.like(table.y)


def ordered(
    path: Path, shapes: dict[str, Shape], expected: Expected, target: str | None
) -> tuple[dict[str, Shape], dict[str, Order]]:  # fmt: skip
    """The order of the columns of each split of an HDF5 file, and the splits' shapes once they are in it.

    Without expected names, test rows have the columns of the training rows. Raises an InputError for a `target` asked
    for by the user, unless the expected names say which one it is.
    """
    if target is not None and not (expected.columns.target and expected.target is None):
        raise InputError(f"{path}: HDF5 files name their target themselves; drop --target {target}")
    orders: dict[str, Order] = {}
    for split, shape in shapes.items():
        if shape.scaled:
            expected.tell(f"note: {path} ({split}): {shape.scaled}")
        if not expected.columns.features:
            expected = replace(expected, columns=shape.columns, where=f"{path} ({split})")
        orders[split] = in_rows(expected, shape.columns, f"{path} ({split})")
    return {split: shape.ordered(orders[split]) for split, shape in shapes.items()}, orders


def _handed_out(
    path: Path, comm: Communicator, real: np.dtype[np.floating], target: str | None, limit: int, wanted: Targets,
    training: bool,
) -> dict[str, Dataset]:  # fmt: skip
    """Read an NPZ file on rank 0 and distribute its rows by blocks."""
    tables: dict[str, Table] = {}
    with comm.agreed():
        if comm.rank == 0:
            tables = text.parse(path, target, None, None, None, limit, wanted)
            for split, table in tables.items():
                table.rounded = rounded_columns(table.X), None if table.y is None else rounded_columns(table.y)
                table.checked(real).check_targets(wanted)
                if training and split != TEST:
                    table.check_resolved(real, Communicator())
                table.X = table.X.astype(real, copy=False)
            label(tables.values(), wanted, Communicator())
    return {split: _scattered(tables.get(split), str(path), comm) for split in _splits(tables, comm)}


def _splits(tables: dict[str, Table], comm: Communicator) -> list[str]:
    present = comm.bcast(np.array([split in tables for split in ("train", "test")], np.int64))
    return [split for split, there in zip(("train", "test"), present, strict=True) if there]


def _scattered(table: Table | None, where: str, comm: Communicator) -> Dataset:
    """Distribute rank 0's table in even blocks of rows."""
    facts = np.zeros(2, np.int64)
    column: NDArray[Any] | None = None
    words = np.zeros(0, np.uint8)
    if table is not None:
        where = table.where  # on rank 0, whose errors count first, it also names the array in the file
        kind, column = _NOTHING, table.y
        if column is not None:
            kind = _ONE if column.ndim == 1 else _MANY
            if column.dtype.kind == "U":
                kind, (classes, codes) = _WORDS, np.unique(column, return_inverse=True)
                words, column = np.frombuffer(json.dumps(classes.tolist()).encode(), np.uint8), codes.astype(np.int64)
        facts[:] = table.X.shape[0], kind
    n, kind = comm.bcast(facts).tolist()
    X = scatter_rows(None if table is None else table.X, n, comm)
    y = None
    if kind != _NOTHING:
        y = np.asarray(scatter_rows(None if column is None else column.reshape(n, -1), n, comm))
        y = y if kind == _MANY else y.ravel()
    if kind == _WORDS and y is not None:
        y = np.array(json.loads(comm.bcast(words).tobytes()))[y]
    return Dataset(X, y, n, where)
