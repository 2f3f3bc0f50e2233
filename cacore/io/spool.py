"""Spooling of files of any format into one HDF5 file, with only a few blocks of rows in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from cacore.comm import Communicator
from cacore.data.columns import Columns
from cacore.data.resolution import Mask, Moments
from cacore.data.rows import csr, is_sparse
from cacore.errors import InputError
from cacore.io import native, stream, text
from cacore.io.column_names import write_columns
from cacore.io.crew import Crew
from cacore.io.dataset import ordered
from cacore.io.growing import GrowingRows
from cacore.io.libsvm import checked, row_ends
from cacore.io.libsvm_scan import Scanned
from cacore.io.names import UNKNOWN, Expected, Order
from cacore.io.native import AS_THEY_LIE, Shape
from cacore.io.one_class import OneClass
from cacore.io.table import Table, Targets, check_size, plain
from cacore.io.tabular import ColumnRequest, Tabular
from cacore.machine.threads import blocks

ANY = Targets(many=True, remedy="choose a class with --binarize CLASS")

Watch = Callable[[Path], stream.OnBytesRead]  # returns the progress callback for a file


@dataclass(frozen=True)
class ReadOptions:
    """Options of ``convert`` for reading files, with the memory limit in bytes and the progress callbacks.

    Text is parsed by `crew`, or by this process if it is None. The names of the first file's columns are expected of
    the others, as `expected` says.
    """

    target: str | None
    binarize: str | None
    dtype: np.dtype[Any]
    limit: int
    watch: Watch
    crew: Crew | None = None
    expected: Expected = UNKNOWN


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
    options : ReadOptions
    """

    def __init__(self, file: h5py.File, path: Path, options: ReadOptions) -> None:
        self._file, self._path, self._options = file, path, options
        self._written: dict[str, GrowingRows] = {}
        self._readers: list[Tabular] = []
        self._expected = options.expected
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
            moments.check(np.float64, Communicator(), stored[name].where, columns, rounded, kind)
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
        target = self._options.target
        if self._options.binarize is not None or (target is not None and not self._expected.columns.target):
            raise InputError(f"{path}: --target and --binarize are for sources that are not HDF5")
        stamp = stream.stamp(path)
        found = {split: shape for split, shape in native.describe(path).items() if split in names}
        shapes, orders = ordered(path, found, self._expected, target)
        return {
            names[split]: Stored(path, split, shape, f"{path} ({split})", stamp=stamp, order=orders[split])
            for split, shape in shapes.items()
        }

    def _append(self, block: Table, name: str, stored: dict[str, Stored]) -> None:
        """Append a block to the rows stored under a name, which must have the same form."""
        block.checked(self._options.dtype, whole=False)
        text = block.y is not None and block.y.dtype.kind == "U"
        y = None if block.y is None else block.y.shape[1:]
        if name not in stored:
            self._written[name] = GrowingRows(self._file.create_group(name), self._options.dtype)
            size = None if y is None else (0, *y)
            shape = Shape(
                0, block.X.shape[1], is_sparse(block.X), self._options.dtype, size, block.columns, text=text
            )  # fmt: skip
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
        options = self._options
        if kind in text.TABLES:
            text.check_target(path, options.target, kind)
            with stream.reading(path):
                request = ColumnRequest(
                    options.target, None, options.binarize, None, options.limit, ANY, False, options.crew,
                    self._expected,
                )  # fmt: skip
                read = text.tabular(path, kind, request)
                self._readers.append(read)
                for block in read.blocks(options.watch(path)):
                    yield "train", block
        elif kind == "hdf5":
            for split, stored in self._in_place(path, {"train": "train", "test": "test"}).items():
                step = max(1, native.step_bytes(options.limit) // native.row_bytes(path, split, stored.shape))
                for lo, hi in blocks(stored.shape.n, step):
                    block = native.read_block(path, split, lo, hi, plain(stored.shape.dtype), stored.order)
                    block.columns = stored.shape.columns
                    yield split, block
                stored.check_unchanged()
        else:
            yield from text.parse(path, options.target, None, options.binarize, limit=options.limit, wanted=ANY).items()

    def _take_libsvm(self, paths: Sequence[Path], names: dict[str, str]) -> dict[str, Stored]:
        options, name = self._options, names["train"]
        text.check_target(paths[0], options.target, "libsvm")
        rows = _LibsvmRows(self._file.create_group(name), options)
        for path in paths:
            for part in self._libsvm_parts(path):
                rows.append(part, str(path))
        self._written[name] = rows.written
        return {name: rows.stored(self._path, name, str(paths[0]))}

    def _libsvm_parts(self, path: Path) -> Iterator[Scanned]:
        options = self._options
        with stream.reading(path):
            yield from checked(path, options.dtype, options.limit, options.watch(path), options.crew)

    def close(self, widths: dict[str, int]) -> None:
        """Write the remaining rows; `widths` are the numbers of features by name."""
        for name, rows in self._written.items():
            rows.close(widths[name])
            if name in self._stored:
                write_columns(self._file[name], self._stored[name].shape.columns)


class _LibsvmRows:
    """CSR rows written from LIBSVM text, whose first feature number and width are known only at the end."""

    def __init__(self, group: h5py.Group, options: ReadOptions) -> None:
        self.written = GrowingRows(group, options.dtype)
        self._one = None if options.binarize is None else OneClass(options.binarize)
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
        for j in part.rounded:
            self._rounded.setdefault(int(j), Moments(1)).add_columns(rows, np.array([j]))
        if part.rounded_y and self._one is None:
            self._rounded.setdefault(-1, Moments(1)).add(y[:, None])
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
            moments.check(np.float64, Communicator(), where, (), np.ones(1, np.bool_), kind, np.array([number]))
        d = max(1, self._most + 1) - base
        check_size(n, d, where)
        return Stored(path, name, Shape(n, d, True, self.written.dtype, (n,)), where, base, entries)
