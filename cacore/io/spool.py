"""Rows of files of any format in an HDF5 file, written as they are read: a few blocks are in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from cacore.data.rows import csr, is_sparse
from cacore.errors import InputError
from cacore.io import native, stream, text
from cacore.io.crew import Crew
from cacore.io.growing import GrowingRows
from cacore.io.libsvm import checked, row_ends
from cacore.io.libsvm_scan import Scanned
from cacore.io.native import Shape
from cacore.io.one_class import OneClass
from cacore.io.table import Table, Targets, check_size, plain
from cacore.io.tabular import Asked, Tabular
from cacore.machine.threads import blocks

ANY = Targets(many=True, remedy="choose a class with --binarize CLASS")

Watch = Callable[[Path], stream.Told]  # what is told of the bytes of a file


@dataclass(frozen=True)
class Wanted:
    """How files are read: options of ``convert``, the bytes that may be used, who is told what has been read.

    A `crew` parses text, or this process, if it is None.
    """

    target: str | None
    binarize: str | None
    dtype: np.dtype[Any]
    limit: int
    watch: Watch
    crew: Crew | None = None


@dataclass
class Stored:
    """Rows of a split in an HDF5 file.

    Attributes
    ----------
    path, split : Path, str
        The HDF5 file, and the split's name there.
    shape : Shape
    where : str
        What messages call the rows: the file that they come from.
    base : int or None
        Number of the first feature of LIBSVM rows, whose width is only what they use.
    entries : int
        Of CSR rows that were read from text.
    stamp : tuple or None
        Of a file that others may write to, see :func:`cacore.io.stream.stamp`.
    """

    path: Path
    split: str
    shape: Shape
    where: str
    base: int | None = None
    entries: int = 0
    stamp: stream.Stamp | None = None

    def check_unchanged(self) -> None:
        """Refuse a file that has been written to meanwhile."""
        if self.stamp is not None:
            stream.check_unchanged(self.path, self.stamp)


class Spool:
    """An HDF5 file that takes the rows of others.

    Parameters
    ----------
    file : h5py.File
    path : Path
        Where it is.
    wanted : Wanted
    """

    def __init__(self, file: h5py.File, path: Path, wanted: Wanted) -> None:
        self._file, self._path, self._wanted = file, path, wanted
        self._written: dict[str, GrowingRows] = {}
        self._readers: list[Tabular] = []
        self._names: dict[str, tuple[str, ...]] = {}

    def take(self, paths: Sequence[Path], names: dict[str, str]) -> dict[str, Stored]:
        """The rows of some files, one after the other, which are all of one kind.

        `names` says by what name a split of theirs is stored; others are not. An HDF5 file is stored where it is.
        """
        kinds = {path: text.kind(path) for path in paths}
        for path, kind in kinds.items():
            if kind != kinds[paths[0]]:
                raise InputError(f"{path}: {kind}, and {paths[0]} is {kinds[paths[0]]}: convert them apart")
        kind = kinds[paths[0]]
        if kind == "hdf5" and len(paths) == 1:
            return self._in_place(paths[0], names)
        if kind == "libsvm":
            return self._take_libsvm(paths, names)
        stored: dict[str, Stored] = {}
        self._readers = []
        for path in paths:
            for split, block in self._blocks(path, kind):
                if split in names:
                    self._append(block, names[split], stored)
        if self._readers and not any(read.has_class for read in self._readers):
            self._readers[0].check_class()
        for rows in stored.values():
            check_size(rows.shape.n, rows.shape.d, rows.where)
        return stored

    def _in_place(self, path: Path, names: dict[str, str]) -> dict[str, Stored]:
        if self._wanted.binarize is not None or self._wanted.target is not None:
            raise InputError(f"{path}: --target and --binarize are for sources that are not HDF5")
        stamp = stream.stamp(path)
        shapes = native.describe(path)
        return {
            names[split]: Stored(path, split, shape, f"{path} ({split})", stamp=stamp)
            for split, shape in shapes.items()
            if split in names
        }

    def _append(self, block: Table, name: str, stored: dict[str, Stored]) -> None:
        """Append rows to those of a name, which they must be like."""
        block.checked(self._wanted.dtype, whole=False).check_numeric(ANY.remedy)
        y = None if block.y is None else block.y.shape[1:]
        if name not in stored:
            self._written[name] = GrowingRows(self._file.create_group(name), self._wanted.dtype)
            shape = Shape(0, block.X.shape[1], is_sparse(block.X), self._wanted.dtype, None if y is None else (0, *y))
            stored[name] = Stored(self._path, name, shape, block.where)
            self._names[name] = block.names
        have = stored[name]
        if block.X.shape[1] != have.shape.d:
            raise InputError(f"{block.where}: {block.X.shape[1]} features, and {have.shape.d} in {have.where}")
        if block.names and self._names[name] and block.names != self._names[name]:
            told = next(pair for pair in zip(block.names, self._names[name], strict=True) if pair[0] != pair[1])
            raise InputError(
                f"{block.where}: a column {told[0]}, where {have.where} has {told[1]}: give them one order"
            )
        targets = None if have.shape.y is None else have.shape.y[1:]
        if y != targets or is_sparse(block.X) != have.shape.sparse:
            raise InputError(f"{block.where}: rows or targets of another form than in {have.where}: convert them apart")
        self._written[name].append(block.X, block.y)
        n = have.shape.n + block.X.shape[0]
        have.shape = Shape(n, have.shape.d, have.shape.sparse, have.shape.dtype, None if y is None else (n, *y))

    def _blocks(self, path: Path, kind: str) -> Iterator[tuple[str, Table]]:
        """The rows of a file by split, some at a time."""
        wanted = self._wanted
        if kind in text.TABLES:
            text.check_target(path, wanted.target, kind)
            with stream.reading(path):
                asked = Asked(wanted.target, None, wanted.binarize, None, wanted.limit, ANY, False, wanted.crew)
                read = text.tabular(path, kind, asked)
                self._readers.append(read)
                for block in read.blocks(wanted.watch(path)):
                    yield "train", block
        elif kind == "hdf5":
            for split, stored in self._in_place(path, {"train": "train", "test": "test"}).items():
                step = max(1, native.step_bytes(wanted.limit) // native.row_bytes(path, split, stored.shape))
                for lo, hi in blocks(stored.shape.n, step):
                    yield split, native.read_block(path, split, lo, hi, plain(stored.shape.dtype))
                stored.check_unchanged()
        else:
            yield from text.parse(path, wanted.target, None, wanted.binarize, limit=wanted.limit, wanted=ANY).items()

    def _take_libsvm(self, paths: Sequence[Path], names: dict[str, str]) -> dict[str, Stored]:
        wanted, name = self._wanted, names["train"]
        text.check_target(paths[0], wanted.target, "libsvm")
        rows = _LibsvmRows(self._file.create_group(name), wanted)
        for path in paths:
            for part in self._libsvm_parts(path):
                rows.append(part, str(path))
        self._written[name] = rows.written
        return {name: rows.stored(self._path, name, str(paths[0]))}

    def _libsvm_parts(self, path: Path) -> Iterator[Scanned]:
        wanted = self._wanted
        with stream.reading(path):
            yield from checked(path, wanted.dtype, wanted.limit, wanted.watch(path), wanted.crew)

    def close(self, widths: dict[str, int]) -> None:
        """Write what is left; `widths` are the numbers of features by name."""
        for name, rows in self._written.items():
            rows.close(widths[name])


class _LibsvmRows:
    """LIBSVM rows as CSR rows: it shows at the end whether there is a feature 0, and how many there are."""

    def __init__(self, group: h5py.Group, wanted: Wanted) -> None:
        self.written = GrowingRows(group, wanted.dtype)
        self._one = None if wanted.binarize is None else OneClass(wanted.binarize)
        self._guess: int | None = None  # of the base, by the first rows
        self._least, self._most = 2**31, 0

    def append(self, part: Scanned, where: str) -> None:
        """Append rows."""
        self._least, self._most = min(self._least, part.least), max(self._most, part.most)
        if self._guess is None:
            self._guess = int(part.least > 0)
        y = part.y if self._one is None else self._one.signs(part.y, where)
        shape = len(y), max(1, part.most + 1)
        self.written.append(csr(part.data, part.indices - np.int32(self._guess), row_ends(part.lengths), shape), y)

    def stored(self, path: Path, name: str, where: str) -> Stored:
        """What all rows are, their indices right."""
        if self._one is not None:
            self._one.check(where)
        entries, n = self.written.entries, self.written.rows
        base = int(entries > 0 and self._least > 0)
        if self._guess != base:
            self.written.shift((self._guess or 0) - base)
        d = max(1, self._most + 1) - base
        check_size(n, d, where)
        return Stored(path, name, Shape(n, d, True, self.written.dtype, (n,)), where, base, entries)
