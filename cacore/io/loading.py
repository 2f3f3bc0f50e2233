"""Loading of a data set distributed over the ranks: every rank reads or receives its own block of rows.

With ``--out-of-core``, each rank copies its rows of an HDF5 file to a scratch file instead of into memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Keys
from cacore.data.resolution import Mask, Moments, rounded_columns
from cacore.data.rows import Rows, block_bounds, dense, scatter_rows
from cacore.data.stored import StoredRows
from cacore.errors import CellError, InputError
from cacore.io import stream, text
from cacore.io.arrays import NATIVE, Arrays, named
from cacore.io.names import UNKNOWN, Expected, Order, in_rows
from cacore.io.table import NUMBERS, RowsRequest, Table, Targets, check_size
from cacore.io.words import labels_of
from cacore.machine import memory
from cacore.machine.threads import blocks

if TYPE_CHECKING:
    from cacore.io.array_files import ArrayFiles
    from cacore.io.native import NativeFile, Shape

    Source: TypeAlias = NativeFile | ArrayFiles


TEST = "test"  # the split of rows that are not trained on
_COLUMN_BYTES = 128  # most memory per row on disk: its target, label and index, and a copy of these in a message
_COPIES = 2  # copies of the rows on disk: in the order of the file, and sorted by part
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
    arrays: Arrays = NATIVE,
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
    target, n_features, usual_target, limit, wanted, remedy, expected, training
        See :class:`cacore.io.table.RowsRequest`.
    arrays : Arrays
        Arrays of HDF5, netCDF, Zarr or NPY files that hold the rows, where the layout is not the native one.

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
    request = RowsRequest(real, target, n_features, usual_target, None, limit, wanted, expected, training, remedy)
    if _by_name(path, arrays, comm):
        with comm.phase("read"):
            return _blocks(_array_files(path, arrays, request, comm), comm, request)
    with comm.phase("read"), stream.unchanging(path, comm):
        form = _agree_on_form(path, comm)
        with comm.uncounted(), comm.agreed():
            _require_table(path, form, request)
        if form == "hdf5":
            return _blocks(_native_file(path, comm), comm, request)
        if form == "npz":
            return _handed_out(path, comm, request)
        rows = _checked(_table(path, form, request, comm), request, comm)
        if expected.key:
            rows.keys = _keys(rows, path, form, request, comm)
        return {"train": rows}


def _table(path: Path, form: str, request: RowsRequest, comm: Communicator) -> Table:
    """This rank's rows of a file that is neither HDF5 nor NPZ; collective."""
    if not _is_mixed(path, form, request, comm):
        try:
            return text.table(path, form, request, comm)
        except InputError as error:
            if not request.training or not _has_words(error, request.expected, comm):
                raise
    return _mixed(path, form, request, comm)


def _keys(rows: Dataset, path: Path, form: str, request: RowsRequest, comm: Communicator) -> dict[str, Keys]:
    """On rank 0, the keys of all rows in a further column of their file, if it has it; collective."""
    from cacore.io.mixed import column_beside, keys_of

    name = request.expected.key
    with comm.agreed(), stream.reading(path):
        cells = column_beside(path, form, name, request) if comm.rank == 0 else None
        if cells is None:
            return {}
        if len(cells) != rows.n:
            raise InputError(f"{path}: column {name} has {len(cells):,} rows, the others {rows.n:,}: save it again")
        try:
            return {name: keys_of(cells)}
        except InputError as error:
            raise InputError(f"{path}: column {name} {error}") from error


def _checked(table: Table, request: RowsRequest, comm: Communicator) -> Dataset:
    """This rank's rows of a table, checked and in the type requested; collective."""
    n = comm.offset(table.X.shape[0])[1]
    with comm.agreed():
        check_size(n, table.X.shape[1], table.where)
        table.check_features(request.dtype)
    with comm.agreed():
        table.check_finite_targets().check_targets(request.wanted)
    if request.training:
        table.check_resolved(request.dtype, comm)
    X = table.X.astype(request.dtype, copy=False)
    chosen = {"column": table.target} if table.target else {}
    more: dict[str, Any] = {"features": table.features, "columns": table.columns, "chosen": chosen}
    more |= {"notes": table.notes, "weights": table.weights}
    return Dataset(X, table.y, n, table.where, table.base, **more)


def _is_mixed(path: Path, form: str, request: RowsRequest, comm: Communicator) -> bool:
    """True if features are to be made of the columns, as the model, the options or the separators say; collective."""
    expected = request.expected
    if expected.columns.table is not None or (request.training and expected.overrides.any):
        return True
    if not request.training or form not in ("csv", "tsv"):
        return False
    from cacore.io.mixed import separator

    with comm.uncounted(), comm.agreed(), stream.reading(path):
        usual = separator(path, request.limit, form) == ("," if form == "csv" else "\t")
    return comm.all(expected.overrides.gaps == "fill") and not comm.all(usual)


def _has_words(error: InputError, expected: Expected, comm: Communicator) -> bool:
    """True if features are to be made of columns that a reader of numbers has refused; collective."""
    return comm.all(expected.overrides.gaps == "fill") and not comm.all(not isinstance(error, CellError))


def _mixed(path: Path, form: str, request: RowsRequest, comm: Communicator) -> Table:
    """This rank's rows of a file with words, gaps or dates; collective."""
    from cacore.io.mixed import Mixed

    with comm.agreed(), stream.reading(path):
        reader = Mixed(path, form, request)
    table = reader.table(comm)
    table.notes = reader.notes
    return table


def _require_table(path: Path, form: str, request: RowsRequest) -> None:
    """Raise an InputError for other files than tables, where a model or options need columns with names and kinds."""
    if form in text.MIXED:
        return
    if request.expected.overrides.any:
        options = request.expected.overrides.flags
        verb = "are" if " and " in options else "is"
        raise InputError(f"{path}: {options} {verb} for CSV, TSV, Parquet and Arrow files")
    if request.expected.columns.table is not None and form != "hdf5":
        where = request.expected.where
        raise InputError(f"{path}: {where} has columns of words, gaps or dates: give a CSV, Parquet or Arrow file")


def _agree_on_form(path: Path, comm: Communicator) -> str:
    """Kind of the file (see :func:`cacore.io.text.kind`), detected by rank 0 and broadcast."""
    form = np.zeros(0, np.uint8)
    with comm.agreed():
        if comm.rank == 0:
            form = np.frombuffer(text.kind(path).encode(), np.uint8)
    return comm.bcast(form).tobytes().decode()


def _by_name(path: Path, arrays: Arrays, comm: Communicator) -> bool:
    """True if rows are in named arrays, or in several files, as rank 0 sees them; collective."""
    named_here = np.zeros(1, np.int64)
    with comm.uncounted(), comm.agreed():
        if comm.rank == 0:
            named_here[0] = named(path, arrays)
    with comm.uncounted():
        return bool(comm.bcast(named_here)[0])


def _native_file(path: Path, comm: Communicator) -> Source:
    """The rows of an HDF5 file in the native layout; another layout is an InputError. Collective."""
    from cacore.io import native  # loads h5py, which --help does not need

    with comm.agreed():
        if comm.rank == 0 and not native.is_native(path):
            from cacore.io import array_files

            with array_files.opened(path) as container:
                raise array_files.foreign(container)
    return native.NativeFile(path)


def _array_files(path: Path, arrays: Arrays, request: RowsRequest, comm: Communicator) -> Source:
    """The rows in named arrays; collective."""
    from cacore.io.array_files import ArrayFiles

    with comm.agreed():
        if request.expected.overrides.any:
            options = request.expected.overrides.flags
            raise InputError(f"{path}: {options}: for tables, not for arrays, whose columns --input names")
    return ArrayFiles.of(path, arrays, comm)


def _blocks(source: Source, comm: Communicator, request: RowsRequest) -> dict[str, Dataset]:
    """Read this rank's block of rows of an HDF5 file, or of named arrays."""
    with comm.agreed():
        splits = _Splits.of(source, comm, request)
        size = sum(
            source.needed(split, *rows, request.dtype, request.limit, splits.orders[split])
            for split, rows in splits.bounds.items()
        )
        enough = memory.enough_ranks(2 * size * comm.size, request.limit)  # leaves half of the memory for the work
        what = f"{source.path}: a rank's block of the rows"
        memory.require(size, request.limit, what, f"use {request.remedy}more ranks{enough} or --dtype float32")
        tables = {
            split: source.read_block(split, *rows, request.dtype, splits.orders[split], splits.moments.get(split))
            for split, rows in splits.bounds.items()
        }
        for table in tables.values():
            table.check_targets(request.wanted)
    return splits.datasets(tables, request, comm)


def load_in_file(
    path: Path, comm: Communicator, request: RowsRequest, folder: Path, arrays: Arrays = NATIVE
) -> dict[str, Dataset]:  # fmt: skip
    """Load an HDF5 file like :func:`cacore.io.load`, but copy each rank's rows to a scratch file; collective.

    Parameters
    ----------
    path : Path
    comm : Communicator
    request : RowsRequest
    folder : Path
        Folder of the scratch file, with room for two copies of the rows. The file has no name, so a killed run leaves
        nothing behind.
    arrays : Arrays
        See :func:`load`.

    Raises
    ------
    InputError
        On every rank: an error of `load`, sparse rows, a file that is not HDF5, or too little space in the folder.

    Notes
    -----
    Rows are read, checked, converted and written a few MiB at a time; only their targets stay in memory.
    """
    if _by_name(path, arrays, comm):
        with comm.phase("read"):
            return _copies(_array_files(path, arrays, request, comm), comm, request, folder)
    with comm.phase("read"), stream.unchanging(path, comm):
        with comm.agreed():
            if request.expected.overrides.any:
                options = request.expected.overrides.flags
                raise InputError(
                    f"{path}: {options}: --out-of-core reads HDF5, which has numbers alone: use one of them"
                )
            if comm.rank == 0 and text.kind(path) != "hdf5":
                raise InputError(
                    f"{path}: --out-of-core reads HDF5; run python -m cacore.io convert {path} OUT.h5 first"
                )
            _require_table(path, "hdf5", request)
        return _copies(_native_file(path, comm), comm, request, folder)


def _copies(source: Source, comm: Communicator, request: RowsRequest, folder: Path) -> dict[str, Dataset]:
    """Copy this rank's rows to a scratch file; collective."""
    ranks_here = comm.node().size
    with comm.agreed():
        splits = _Splits.of(source, comm, request, dense=True)
        splits.check_room(request, folder, ranks_here)
    with comm.agreed():
        copies = {split: splits.copied(split, request, folder) for split in splits.shapes}
    return splits.datasets(copies, request, comm)


@dataclass(frozen=True)
class _Splits:
    """The splits of an HDF5 file, or the rows of named arrays, and this rank's rows of each.

    Attributes
    ----------
    source : NativeFile or ArrayFiles
    shapes : dict of str to Shape
        Of the rows once their columns are in order.
    orders : dict of str to Order
    bounds : dict of str to tuple of two int
        First row of this rank, and the one after its last.
    moments : dict of str to Moments
        For dense training rows that are rounded to single precision.
    """

    source: Source
    shapes: dict[str, Shape]
    orders: dict[str, Order]
    bounds: dict[str, tuple[int, int]]
    moments: dict[str, Moments]

    @classmethod
    def of(cls, source: Source, comm: Communicator, request: RowsRequest, dense: bool = False) -> _Splits:
        """Describe a file without reading its rows, which must be `dense` if this is said."""
        path = source.path
        shapes, orders = ordered(path, source.describe(), request.expected, request.target)
        for split, shape in shapes.items():
            request.wanted.check(shape.y or (), f"{path} ({split})")
            if dense and shape.sparse:
                raise InputError(f"{path} ({split}): --out-of-core takes dense rows, not CSR; use more ranks instead")
        rounded = request.training and request.dtype == np.float32
        moments = {k: Moments(shape.d) for k, shape in shapes.items() if rounded and k != TEST and not shape.sparse}
        bounds = {split: block_bounds(shape.n, comm.size, comm.rank) for split, shape in shapes.items()}
        return cls(source, shapes, orders, bounds, moments)

    def check_room(self, request: RowsRequest, folder: Path, ranks: int) -> None:
        """Raise an InputError if memory cannot hold the targets, or the folder the rows of the node's `ranks` ranks."""
        path = self.source.path
        count = {split: hi - lo for split, (lo, hi) in self.bounds.items()}
        columns = sum(
            n * (_COLUMN_BYTES + 24 * int(np.prod((self.shapes[split].y or (0,))[1:]))) for split, n in count.items()
        )
        what = f"{path}: keeping the targets and row numbers of a rank's rows in memory"
        memory.require(columns, request.limit, what, f"use more ranks{memory.enough_ranks(columns, request.limit)}")
        try:
            status = os.statvfs(folder)
        except OSError as error:
            raise InputError(f"--scratch {folder}: cannot make a file there ({error.strerror})") from error
        size, free = 0, status.f_bavail * status.f_frsize
        for split, n in count.items():
            size += _COPIES * n * self.shapes[split].d * request.dtype.itemsize * ranks
        if size > free:
            raise InputError(
                f"{path}: --out-of-core needs {size / memory.GIB:.3g} GiB of disk in {folder}, where "
                f"{free / memory.GIB:.3g} GiB are free: name another folder with --scratch DIR"
            )

    def copied(self, split: str, request: RowsRequest, folder: Path) -> Table:
        """Copy this rank's rows of a split to a scratch file in the folder."""
        from cacore.io.native import step_bytes

        source, path = self.source, self.source.path
        shape, (lo, hi), order = self.shapes[split], self.bounds[split], self.orders[split]
        rows = StoredRows.empty(folder, hi - lo, shape.d, request.dtype)
        step = max(1, step_bytes(request.limit) // source.row_bytes(split, shape))
        need = source.needed(split, lo, min(lo + step, hi), request.dtype, request.limit, order)
        memory.require(need, request.limit, f"{path}: a block of {min(step, hi - lo):,} rows", "raise --memory-limit")
        none = source.read_block(split, lo, lo, request.dtype, order)  # without rows, targets have this type
        none.check_targets(request.wanted)
        targets: list[NDArray[Any]] = [] if none.y is None else [none.y]
        features, labels = none.rounded
        for a, b in blocks(hi - lo, step):
            block = source.read_block(split, lo + a, lo + b, request.dtype, order, self.moments.get(split))
            block.check_targets(request.wanted)
            features, labels = _either(features, block.rounded[0]), _either(labels, block.rounded[1])
            rows[a:b] = dense(block.X)
            if block.y is not None:
                targets.append(block.y)
        y = np.concatenate(targets) if targets else None
        return Table(cast(Rows, rows), y, f"{path} ({split})", lo, rounded=(features, labels))  # indexed like an array

    def datasets(self, tables: dict[str, Table], request: RowsRequest, comm: Communicator) -> dict[str, Dataset]:
        """Label the targets of these rows, and refuse training rows that their type does not resolve; collective."""
        label(tables.values(), request.wanted, comm)
        for split, table in tables.items():
            table.columns = self.shapes[split].columns
            if request.training and split != TEST:
                table.check_resolved(request.dtype, comm, self.moments.get(split))
        return {
            split: Dataset(t.X, t.y, self.shapes[split].n, t.where, columns=t.columns) for split, t in tables.items()
        }


def _either(first: Mask | None, second: Mask | None) -> Mask | None:
    """Columns in either mask."""
    return first if second is None else second if first is None else first | second


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


def _handed_out(path: Path, comm: Communicator, request: RowsRequest) -> dict[str, Dataset]:
    """Read an NPZ file on rank 0 and distribute its rows by blocks."""
    tables: dict[str, Table] = {}
    with comm.agreed():
        if comm.rank == 0:
            tables = text.parse(path, request)
            for split, table in tables.items():
                table.rounded = rounded_columns(table.X), None if table.y is None else rounded_columns(table.y)
                table.checked(request.dtype).check_targets(request.wanted)
                if request.training and split != TEST:
                    table.check_resolved(request.dtype, Communicator())
                table.X = table.X.astype(request.dtype, copy=False)
            label(tables.values(), request.wanted, Communicator())
    present = comm.bcast(np.array([split in tables for split in ("train", TEST)], np.int64))
    splits = [split for split, there in zip(("train", TEST), present, strict=True) if there]
    return {split: _scattered(tables.get(split), str(path), comm) for split in splits}


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
