"""Copies of rows into HDF5 files, with only a few blocks of rows in memory at a time.

Arrays grow as rows arrive, since the final length is unknown. Files of any format are spooled into one, and selected
rows are copied in another order, form or width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.comm import Communicator
from cacore.data.encoding import Columns
from cacore.data.resolution import ColumnLabels, Mask, Moments
from cacore.data.rows import Rows, concatenate, csr, is_sparse
from cacore.errors import InputError
from cacore.io import native, stream, text
from cacore.io.fingerprints import row_hashes
from cacore.io.libsvm import checked, row_ends
from cacore.io.loading import ordered
from cacore.io.mixed import MixedBlocks
from cacore.io.names import Order
from cacore.io.native import AS_THEY_LIE, NativeFile, Shape, write_columns
from cacore.io.scanners import Scanned
from cacore.io.stream import REMEDY
from cacore.io.table import RowsRequest, Table, Tabular, Targets, check_size, plain
from cacore.io.words import OneClass
from cacore.machine import memory
from cacore.machine.threads import blocks

CHUNK = 1 << 20  # bytes per chunk: a block of rows spans many chunks, and each is read once


class Growing:
    """HDF5 dataset that grows along its first axis.

    It is written in whole chunks, each once; a dataset shorter than one chunk is stored contiguously.

    Parameters
    ----------
    group : h5py.Group
    name : str
    dtype : dtype
    row : tuple of int
        Shape of a row: that of the appended arrays without the first axis.
    """

    def __init__(self, group: h5py.Group, name: str, dtype: DTypeLike, row: tuple[int, ...] = ()) -> None:
        self._group, self._name, self._dtype, self._row = group, name, np.dtype(dtype), row
        self._length = max(1, CHUNK // (self._dtype.itemsize * max(1, int(np.prod(row)))))
        self._data: h5py.Dataset | None = None
        self._waiting: list[NDArray[Any]] = []
        self._held = self._written = 0

    def append(self, values: NDArray[Any]) -> None:
        """Append values: write whole chunks, and keep the rest in memory."""
        self._waiting.append(np.array(values, self._dtype))  # a copy, since a view may keep a large array alive
        self._held += len(values)
        if self._held >= self._length:
            held = np.concatenate(self._waiting)
            whole = len(held) // self._length * self._length
            self._write(held[:whole])
            self._waiting, self._held = [held[whole:].copy()], len(held) - whole

    def _write(self, values: NDArray[Any]) -> None:
        if self._data is None:
            sizes = {"shape": (0, *self._row), "maxshape": (None, *self._row), "chunks": (self._length, *self._row)}
            self._data = self._group.create_dataset(self._name, dtype=self._dtype, **sizes)
        end = self._written + len(values)
        self._data.resize(end, axis=0)
        self._data[self._written : end] = values
        self._written = end

    def add(self, number: int) -> None:
        """Add a number to all values."""
        self._waiting = [values + self._dtype.type(number) for values in self._waiting]
        for lo in range(0, self._written, self._length):
            if self._data is not None:
                self._data[lo : lo + self._length] += self._dtype.type(number)

    def close(self) -> None:
        """Write the remaining values."""
        remainder = np.concatenate(self._waiting) if self._waiting else np.empty((0, *self._row), self._dtype)
        if self._data is None:
            self._group.create_dataset(self._name, data=remainder, dtype=self._dtype)
        elif len(remainder):
            self._write(remainder)


class GrowingRows:
    """Growing rows of a split with their targets, dense or CSR like the first rows appended.

    Parameters
    ----------
    group : h5py.Group
    dtype : dtype
        Type of the numbers of X.

    Attributes
    ----------
    dtype : dtype
    rows, entries : int
        Number of rows, and of CSR entries, appended so far; dense rows have no entries.
    """

    def __init__(self, group: h5py.Group, dtype: np.dtype[Any]) -> None:
        self._group, self.dtype = group, dtype
        self._parts: dict[str, Growing] = {}
        self.rows = self.entries = 0

    def append(self, X: Rows, y: NDArray[Any] | None) -> None:
        """Append rows of the same form as the rows before."""
        if not self._parts:
            self._begin(X, y)
        if is_sparse(X):
            self._parts["data"].append(X.data)
            self._parts["indices"].append(X.indices)
            self._parts["indptr"].append(X.indptr[1:].astype(np.int64) + (self.entries - int(X.indptr[0])))
            self.entries += len(X.data)
        else:
            self._parts["X"].append(X)
        if y is not None:
            self._parts["y"].append(y)
        self.rows += X.shape[0]

    def _begin(self, X: Rows, y: NDArray[Any] | None) -> None:
        if is_sparse(X):
            group = self._group.create_group("X")
            for name, dtype in (("data", self.dtype), ("indices", X.indices.dtype), ("indptr", np.dtype(np.int64))):
                self._parts[name] = Growing(group, name, dtype)
            self._parts["indptr"].append(np.zeros(1, np.int64))
        else:
            self._parts["X"] = Growing(self._group, "X", self.dtype, X.shape[1:])
        if y is not None:
            kind = y.dtype if y.dtype.kind in "iu" else np.dtype(np.float64)  # labels that are integers stay exact
            kind = h5py.string_dtype() if y.dtype.kind == "U" else kind
            self._parts["y"] = Growing(self._group, "y", kind, y.shape[1:])

    def shift(self, by: int) -> None:
        """Add `by` to the column index of every CSR entry; dense rows stay as they are."""
        if "indices" in self._parts:
            self._parts["indices"].add(by)

    def close(self, d: int) -> None:
        """Write the remaining rows; `d` is the number of features."""
        for part in self._parts.values():
            part.close()
        if "data" in self._parts:
            self._group["X"].attrs["shape"] = self.rows, d


ANY = Targets(many=True, remedy="choose a class with --binarize CLASS")

Watch = Callable[[Path], stream.OnBytesRead]  # returns the progress callback for a file


@dataclass
class Stored:
    """Rows of a split in an HDF5 file.

    Attributes
    ----------
    path, split : Path, str
        The HDF5 file, and the split's name there.
    shape : Shape
    where : str
        Name of the rows in messages: the file that they come from.
    base : int or None
        Number of the first feature (0 or 1) of LIBSVM rows, whose width is the largest index used; None for others.
    entries : int
        Number of CSR entries read from text.
    stamp : tuple or None
        Stamp of a file that others may write to; see :func:`cacore.io.stream.stamp`.
    order : Order
        Selection of the file's columns; `shape` is that of the rows after it.
    target : str
        For tables: name or number of the target column that was chosen, if the user did not name one.
    """

    path: Path
    split: str
    shape: Shape
    where: str
    base: int | None = None
    entries: int = 0
    stamp: stream.Stamp | None = None
    order: Order = AS_THEY_LIE
    target: str = ""

    def check_unchanged(self) -> None:
        """Raise an InputError if the file has been written to meanwhile."""
        if self.stamp is not None:
            stream.check_unchanged(self.path, self.stamp)


class Spool:
    """HDF5 file that collects the rows of other files.

    Parameters
    ----------
    file : h5py.File
    path : Path
        Path of `file`.
    request : RowsRequest
        The names of the first file's columns are expected of the others, as its `expected` says.
    watch : callable
        Returns the progress callback for a file.
    mixed : bool
        True for tables with words, gaps or dates, of whose columns features are made.
    """

    def __init__(self, file: h5py.File, path: Path, request: RowsRequest, watch: Watch, mixed: bool = False) -> None:
        self._file, self._path, self._request, self._watch, self._mixed = file, path, request, watch, mixed
        self._written: dict[str, GrowingRows] = {}
        self._readers: list[Tabular] = []
        self._expected = request.expected
        self._stored: dict[str, Stored] = {}
        self._rounded: dict[tuple[str, str], tuple[Moments, Mask, tuple[str, ...]]] = {}

    def take(self, paths: Sequence[Path], names: dict[str, str]) -> dict[str, Stored]:
        """Store the rows of several files of one kind, one after the other.

        `names` maps each split to the name under which it is stored; other splits are ignored. The rows of a single
        HDF5 file are not copied.
        """
        kinds = {path: text.kind(path) for path in paths}
        for path, kind in kinds.items():
            if kind != kinds[paths[0]]:
                raise InputError(f"{path}: {kind}, but {paths[0]} is {kinds[paths[0]]}: convert them apart")
        kind = kinds[paths[0]]
        if self._expected.columns.table is not None and kind not in (*text.MIXED, "hdf5"):
            where = self._expected.where
            raise InputError(
                f"{paths[0]}: {where} has columns of words, gaps or dates: give a CSV, Parquet or Arrow file"
            )
        if kind == "hdf5" and len(paths) == 1:
            return self._noted(self._in_place(paths[0], names))
        if kind == "libsvm":
            return self._take_libsvm(paths, names)
        return self._noted(self._take_blocks(paths, kind, names))

    def _noted(self, stored: dict[str, Stored]) -> dict[str, Stored]:
        """Expect the names of the first rows of the rows that follow."""
        self._stored |= stored
        for rows in stored.values():
            self._expect(rows.shape.columns, rows.where)
        return stored

    def _expect(self, columns: Columns, where: str) -> None:
        if not self._expected.columns.features:
            self._expected = replace(self._expected, columns=columns, where=where)

    def _take_blocks(self, paths: Sequence[Path], kind: str, names: dict[str, str]) -> dict[str, Stored]:
        stored: dict[str, Stored] = {}
        self._readers = []
        for path in paths:
            for split, block in self._blocks(path, kind):
                if kind != "hdf5":
                    block.check_numeric(ANY.remedy)
                if split in names:
                    self._append(block, names[split], stored)
        if self._readers and not any(read.has_class for read in self._readers):
            self._readers[0].check_class()
        for rows in stored.values():
            check_size(rows.shape.n, rows.shape.d, rows.where)
        for (name, kind), (moments, rounded, columns) in self._rounded.items():
            moments.check(np.float64, Communicator(), ColumnLabels(stored[name].where, columns, kind), rounded)
        self._rounded = {}
        return stored

    def _note_rounded(self, name: str, block: Table) -> None:
        """Add up the spread of columns whose whole numbers double precision rounds, where they do."""
        columns = ("feature", block.X, block.names), ("target", block.y, block.columns.target)
        for rounded, (kind, values, names) in zip(block.rounded, columns, strict=True):
            if rounded is not None and rounded.any() and isinstance(values, np.ndarray) and values.dtype.kind == "f":
                values = values.reshape(len(values), -1)
                first = Moments(values.shape[1]), np.zeros_like(rounded), names
                moments, before, _ = self._rounded.setdefault((name, kind), first)
                moments.add(values)
                before |= rounded

    def _in_place(self, path: Path, names: dict[str, str]) -> dict[str, Stored]:
        target = self._request.target
        if self._request.binarize is not None or (target is not None and not self._expected.columns.target):
            raise InputError(f"{path}: --target and --binarize are for sources that are not HDF5")
        stamp = stream.stamp(path)
        file_shapes = {split: shape for split, shape in NativeFile(path).describe().items() if split in names}
        shapes, orders = ordered(path, file_shapes, self._expected, target)
        return {
            names[split]: Stored(path, split, shape, f"{path} ({split})", stamp=stamp, order=orders[split])
            for split, shape in shapes.items()
        }

    def _append(self, block: Table, name: str, stored: dict[str, Stored]) -> None:
        """Append a block to the rows stored under a name, which must have the same form."""
        block.checked(self._request.dtype, whole=False)
        text = block.y is not None and block.y.dtype.kind == "U"
        y = None if block.y is None else block.y.shape[1:]
        if name not in stored:
            self._written[name] = GrowingRows(self._file.create_group(name), self._request.dtype)
            size = None if y is None else (0, *y)
            shape = Shape(0, block.X.shape[1], is_sparse(block.X), self._request.dtype, size, block.columns, text=text)
            stored[name] = Stored(self._path, name, shape, block.where, target=block.target)
            self._expect(block.columns, block.where)
        have = stored[name]
        if block.X.shape[1] != have.shape.d:
            raise InputError(f"{block.where}: {block.X.shape[1]} features, but {have.shape.d} in {have.where}")
        targets = None if have.shape.y is None else have.shape.y[1:]
        if (y, text, is_sparse(block.X)) != (targets, have.shape.text, have.shape.sparse):
            raise InputError(f"{block.where}: rows or targets of another form than in {have.where}: convert them apart")
        self._written[name].append(block.X, block.y)
        self._note_rounded(name, block)
        n = have.shape.n + block.X.shape[0]
        have.shape = replace(have.shape, n=n, y=None if y is None else (n, *y))

    def _blocks(self, path: Path, kind: str) -> Iterator[tuple[str, Table]]:
        """Yield the rows of a file in blocks, with the name of their split."""
        request = replace(self._request, expected=self._expected)
        if kind in text.TABLES:
            text.check_target(path, request.target, kind)
            with stream.reading(path):
                read: Tabular
                if self._mixed:
                    read = MixedBlocks(path, kind, request, self._path.parent)
                else:
                    read = text.tabular(path, kind, request)
                self._readers.append(read)
                for block in read.blocks(self._watch(path)):
                    yield "train", block
        elif kind == "hdf5":
            for split, stored in self._in_place(path, {"train": "train", "test": "test"}).items():
                step = max(1, native.step_bytes(request.limit) // NativeFile(path).row_bytes(split, stored.shape))
                for lo, hi in blocks(stored.shape.n, step):
                    block = NativeFile(path).read_block(split, lo, hi, plain(stored.shape.dtype), stored.order)
                    block.columns = stored.shape.columns
                    yield split, block
                stored.check_unchanged()
        else:
            yield from text.parse(path, request).items()

    def _take_libsvm(self, paths: Sequence[Path], names: dict[str, str]) -> dict[str, Stored]:
        request, name = self._request, names["train"]
        text.check_target(paths[0], request.target, "libsvm")
        rows = _LibsvmRows(self._file.create_group(name), request)
        for path in paths:
            with stream.reading(path):
                for part in checked(path, request.dtype, request.limit, self._watch(path), request.parsers):
                    rows.append(part, str(path))
        self._written[name] = rows.written
        return {name: rows.stored(self._path, name, str(paths[0]))}

    def close(self, widths: dict[str, int]) -> None:
        """Write the remaining rows; `widths` are the numbers of features by name."""
        for name, rows in self._written.items():
            rows.close(widths[name])
            if name in self._stored:
                write_columns(self._file[name], self._stored[name].shape.columns)


class _LibsvmRows:
    """CSR rows written from LIBSVM text, whose first feature number and width are known only at the end."""

    def __init__(self, group: h5py.Group, request: RowsRequest) -> None:
        self.written = GrowingRows(group, request.dtype)
        self._one = None if request.binarize is None else OneClass(request.binarize)
        self._guess: int | None = None  # first feature number, guessed from the first rows
        self._least, self._most = 2**31, 0
        self._rounded: dict[int, Moments] = {}  # of features whose whole numbers double precision rounds; -1: targets

    def append(self, part: Scanned, where: str) -> None:
        """Append a block of rows."""
        self._least, self._most = min(self._least, part.least), max(self._most, part.most)
        if self._guess is None:
            self._guess = int(part.least > 0)
        y = part.y if self._one is None else self._one.signs(part.y, where)
        shape = len(y), max(1, part.most + 1)
        rows = csr(part.data, part.indices, row_ends(part.lengths), shape)
        for j in part.rounded.tolist():
            if j >= 0:
                self._rounded.setdefault(j, Moments(1)).add_columns(rows, np.array([j]))
            elif self._one is None:
                self._rounded.setdefault(j, Moments(1)).add(y[:, None])
        rows.indices = part.indices - np.int32(self._guess)
        self.written.append(rows, y)

    def stored(self, path: Path, name: str, where: str) -> Stored:
        """Correct the indices if the guessed base was wrong, and describe the stored rows."""
        if self._one is not None:
            self._one.check(where)
        entries, n = self.written.entries, self.written.rows
        base = int(entries > 0 and self._least > 0)
        if self._guess != base:
            self.written.shift((self._guess or 0) - base)
        for j, moments in sorted(self._rounded.items()):
            number, kind = (0, "target") if j < 0 else (j - base, "feature")
            labels = ColumnLabels(where, kind=kind, numbers=np.array([number]))
            moments.check(np.float64, Communicator(), labels, np.ones(1, np.bool_))
        d = max(1, self._most + 1) - base
        check_size(n, d, where)
        return Stored(path, name, Shape(n, d, True, self.written.dtype, (n,)), where, base, entries)


_PER_ROW = 64  # bytes per row while rows are compared: its hash and its number, sorted


@dataclass
class Selection:
    """Selection of rows of a split, and the form in which they are wanted.

    Attributes
    ----------
    stored : Stored
    dense : bool
    width : int
        Number of features; features beyond the rows' own are 0.
    shift : int
        Number of columns by which features are moved to the right: 1 if only the other file has a feature 0.
    row_numbers : ndarray of int64, or None
        Numbers of the selected rows, in the order wanted; None for all rows.
    """

    stored: Stored
    dense: bool
    width: int
    shift: int = 0
    row_numbers: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self.stored.shape.n if self.row_numbers is None else len(self.row_numbers)

    def blocks(self, dtype: np.dtype[Any], limit: int) -> Iterator[tuple[Rows, NDArray[Any] | None]]:
        """Yield rows of type `dtype` and their targets, block by block, using at most `limit` bytes.

        Reordered rows are gathered in windows of a quarter of `limit`; the file is read once for each window.
        """
        if self.dense:
            what = "features, as many as the other file has," if self.width > self.stored.shape.d else "features"
            memory.require(16 * self.width, limit, f"{self.stored.where}: a row of {self.width:,} {what}", REMEDY)
        step = self._step(dtype, native.step_bytes(limit))
        if self.row_numbers is None:
            for lo in range(0, len(self), step):
                X, y = self._read(lo, min(lo + step, len(self)), dtype, limit)
                yield self._formed(X), y
            return
        window = max(step, self._step(dtype, limit // 4))
        for first in range(0, len(self), window):
            X, y = self._gathered(self.row_numbers[first : first + window], step, dtype, limit)
            for lo in range(0, X.shape[0], step):
                yield self._formed(X[lo : lo + step]), None if y is None else y[lo : lo + step]
            del X, y  # before the next window is read

    def hashes(self, limit: int) -> NDArray[np.uint64]:
        """Fingerprint of each row and its target; 8 bytes per row stay in memory."""
        memory.require(_PER_ROW * len(self), limit, f"{self.stored.where}: comparing its {len(self):,} rows", REMEDY)
        blocks = self.blocks(plain(self.stored.shape.dtype), limit)
        return np.concatenate([row_hashes(X, np.zeros(X.shape[0]) if y is None else y) for X, y in blocks])

    def _step(self, dtype: np.dtype[Any], nbytes: int) -> int:
        """Number of rows to read at a time into `nbytes` bytes."""
        a_row = NativeFile(self.stored.path).row_bytes(self.stored.split, self.stored.shape)
        return max(1, nbytes // max(a_row, self.width * dtype.itemsize if self.dense else 0, 1))

    def _read(self, lo: int, hi: int, dtype: np.dtype[Any], limit: int) -> tuple[Rows, NDArray[Any] | None]:
        file, split = NativeFile(self.stored.path), self.stored.split
        size = file.needed(split, lo, hi, dtype, limit, self.stored.order)
        memory.require(size, limit, f"{self.stored.where}: reading rows {lo:,} to {hi - 1:,}", REMEDY)
        table = file.read_block(split, lo, hi, dtype, self.stored.order)
        return table.X, table.y

    def _gathered(
        self, rows: NDArray[np.int64], step: int, dtype: np.dtype[Any], limit: int
    ) -> tuple[Rows, NDArray[Any] | None]:
        """Read these rows in this order; the file is read once, skipping blocks that contain none of them."""
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        X_parts: list[Rows] = []
        y_parts: list[NDArray[Any]] = []
        for lo in range(int(ascending[0]), int(ascending[-1]) + 1, step):
            first, last = np.searchsorted(ascending, (lo, lo + step))
            if first < last:
                X, y = self._read(lo, min(lo + step, self.stored.shape.n), dtype, limit)
                taken = ascending[first:last] - lo
                X_parts.append(X[taken])
                if y is not None:
                    y_parts.append(y[taken])
        X = concatenate(X_parts)
        X_parts.clear()
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return X[place], np.concatenate(y_parts)[place] if y_parts else None

    def _formed(self, X: Rows) -> Rows:
        """Rows in the form and width wanted."""
        if is_sparse(X):
            X = csr(X.data, X.indices + self.shift, X.indptr, (X.shape[0], self.width))
            return X.toarray() if self.dense else X
        return (
            X if X.shape[1] == self.width else np.pad(X, ((0, 0), (self.shift, self.width - X.shape[1] - self.shift)))
        )
