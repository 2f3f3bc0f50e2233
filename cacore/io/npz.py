"""NPY and NPZ files.

An NPY file is one array of features and target, read in blocks of rows. An NPZ file has rows and targets by their usual
names: x and y, or x_train, y_train, x_test and y_test.
"""

from __future__ import annotations

import math
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.data.resolution import rounded_columns
from cacore.data.rows import Rows
from cacore.errors import InputError
from cacore.io.stream import REMEDY, OnBytesRead, Part, in_memory, is_compressed
from cacore.io.table import RowsRequest, Table, Tabular
from cacore.io.words import first_values, short
from cacore.machine import memory

_DAMAGED_NPY = (ValueError, OSError, EOFError, SyntaxError, OverflowError, TypeError, tokenize.TokenError)


class Npy(Tabular):
    """Rows of an NPY file that holds an array of shape (n, columns)."""

    def __init__(self, path: Path, request: RowsRequest) -> None:
        try:
            mapped = np.load(path, mmap_mode="r", allow_pickle=False)  # for its header
        except _DAMAGED_NPY as error:
            what = f"it may be damaged or truncated ({short(str(error), 200)})"
            raise InputError(f"{path}: cannot be read, {what}; save the rows again, as an array of numbers") from error
        shape, dtype = mapped.shape, mapped.dtype
        if len(shape) != 2 or dtype.kind not in "biuf":
            raise InputError(f"{path}: shape {shape} and type {dtype}; rows of numbers are needed")
        self._shape, self._dtype, self._by_rows = shape, dtype, bool(mapped.flags.c_contiguous)
        self._begin = int(mapped.offset)
        super().__init__(path, (), shape[1], request)

    def parts(self, on_read: OnBytesRead | None) -> Iterator[Part]:
        """Yield features and targets in blocks of rows; a target that may be text is given as codes."""
        n, columns = self._shape
        for lo in range(0, n, self.step):
            hi = min(lo + self.step, n)
            self.require(hi)
            stored = self._rows(lo, hi)
            self.rounded |= rounded_columns(stored)
            with np.errstate(over="ignore"):  # what overflows is refused as infinite, with its place
                rows = stored.astype(np.float64)
            y = rows[:, self.chosen]
            if self.words is not None:
                values = (stored if stored.dtype.kind in "iu" else rows)[:, self.chosen[0]].tolist()
                y = np.array([[self.words.code(repr(value))] for value in values])
            if on_read is not None:
                on_read(hi * columns * self._dtype.itemsize)
            yield (rows[:, self.features] if self.chosen else rows), y

    def _rows(self, lo: int, hi: int) -> NDArray[Any]:
        """Read rows ``lo:hi`` unmapped: if a mapped file were truncated by others, this process would be killed."""
        n, columns = self._shape
        if self._by_rows:
            return self._read(lo * columns, (hi - lo) * columns).reshape(hi - lo, columns)
        return np.stack([self._read(j * n + lo, hi - lo) for j in range(columns)], axis=1)

    def _read(self, first: int, count: int) -> NDArray[Any]:
        values = np.fromfile(self.path, self._dtype, count, offset=self._begin + first * self._dtype.itemsize)
        if len(values) < count:
            raise EOFError("it is shorter than its header says")
        return values


_SPLITS = (("train", "x_train", "y_train"), ("test", "x_test", "y_test"), ("train", "x", "y"))

# Exceptions raised by damaged members: zipfile's own (RuntimeError: encryption or unknown compression), and numpy's for
# a header that is not a Python literal or claims more than there is memory.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError, TypeError, KeyError, IndexError,
    SyntaxError, OverflowError, MemoryError, tokenize.TokenError,
)  # fmt: skip


def parse(path: Path, limit: int) -> dict[str, Table]:
    """Read the arrays of rows and their targets; other arrays in the file are not read."""
    tables = {}
    with _opened(path, limit) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns about old headers
        members = _members(path, file)
        wanted = {name: members[name] for split in _SPLITS for name in split[1:] if name in members}
        size = sum(info.file_size for info in wanted.values())  # zipfile reads no more than this
        memory.require(2 * size, limit, f"{path}: reading {first_values(sorted(wanted))}", REMEDY)
        for split, x_name, y_name in _SPLITS:
            if x_name in wanted and split not in tables:
                X = _matrix(_array(path, file, wanted[x_name]), path, x_name)
                y = _target(_array(path, file, wanted[y_name]), path, y_name) if y_name in wanted else None
                tables[split] = Table(X, y, f"{path} ({x_name})")
    if not tables:
        raise InputError(f"{path}: no array x_train or x; the file has {first_values(sorted(members))}")
    return tables


def _opened(path: Path, limit: int) -> zipfile.ZipFile:
    source = in_memory(path, limit // 2) if is_compressed(path) else path
    try:
        return zipfile.ZipFile(source)
    except _DAMAGE as error:
        raise InputError(f"{path}: damaged or truncated ({error}); copy it again") from error


def _members(path: Path, file: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Arrays by lower-case name; two arrays with the same name are refused."""
    members: dict[str, zipfile.ZipInfo] = {}
    for info in file.infolist():
        name = info.filename.removesuffix(".npy").lower()
        if name in members:
            raise InputError(f"{path}: two arrays are called {name}; rename or remove one")
        members[name] = info
    return members


def _array(path: Path, file: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """Read an array, whose size must be exactly that in its header."""
    where = f"{path}: {info.filename.removesuffix('.npy')}"
    try:
        with file.open(info) as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
            if stream.read(1):
                raise ValueError("there is more than its header says")
    except _DAMAGE as error:
        raise InputError(
            f"{where} cannot be read, it may be damaged or truncated ({short(str(error), 200)}); save the rows again, "
            "as an array of numbers"
        ) from error
    return array


def _matrix(array: NDArray[Any], path: Path, name: str) -> Rows:
    if array.ndim < 2 or array.dtype.kind not in "biuf":
        raise InputError(f"{path}: {name} has shape {array.shape} and type {array.dtype}; rows of numbers are needed")
    return np.ascontiguousarray(array.reshape(len(array), math.prod(array.shape[1:])))


def _target(array: NDArray[Any] | None, path: Path, name: str) -> NDArray[Any] | None:
    if array is None:
        return None
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim not in (1, 2) or 0 in array.shape[1:]:
        raise InputError(f"{path}: {name} has shape {array.shape}; one or more numbers per row are needed")
    if array.dtype.kind not in ("biufU" if array.ndim == 1 else "biuf"):
        raise InputError(f"{path}: {name} is of type {array.dtype}; numbers, or text to --binarize, are needed")
    return array
