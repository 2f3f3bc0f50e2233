"""The native file: HDF5 with /train/X, /train/y, /test/X, /test/y, or /X and /y."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from cacore.data.rows import Rows, csr, is_sparse
from cacore.errors import InputError
from cacore.files import replacing
from cacore.io.table import Table, check_size

_BLOCK = 1 << 24


@dataclass(frozen=True)
class Shape:
    """What a split holds, known without reading its rows."""

    n: int
    d: int
    sparse: bool
    dtype: np.dtype[Any]


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """The file, read-only; one that is missing, truncated or not HDF5 is an InputError, also inside the block."""
    if not path.exists():
        raise InputError(f"{path}: no such file")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read as HDF5, it may be truncated ({error}); copy or convert it again"
        ) from error


def describe(path: Path) -> dict[str, Shape]:
    """The splits of a native file: "train", and "test" where there is one."""
    with opened(path) as file:
        shapes = {}
        for split, place in (("train", "train"), ("test", "test"), ("train", "/")):
            group = file.get(place)
            if isinstance(group, h5py.Group) and "X" in group and split not in shapes:
                shapes[split] = _shape(group, f"{path}:{place.rstrip('/')}/X")
    if not shapes:
        raise InputError(f"{path}: no /train/X and no /X in it; make the file with python -m cacore.io convert")
    return shapes


def _shape(group: h5py.Group, where: str) -> Shape:
    X = group["X"]
    if isinstance(X, h5py.Group):
        if not all(name in X for name in ("data", "indices", "indptr")) or "shape" not in X.attrs:
            raise InputError(f"{where}: a CSR group needs data, indices, indptr and the attribute shape")
        _check_csr(X, where)
        (n, d), dtype = X.attrs["shape"], X["data"].dtype
    else:
        if X.ndim != 2 or X.dtype.kind not in "biuf":
            raise InputError(f"{where}: shape {X.shape}, type {X.dtype}; an n x d array of numbers is needed")
        (n, d), dtype = X.shape, X.dtype
    y = group.get("y")
    if y is not None and (not isinstance(y, h5py.Dataset) or y.dtype.kind not in "biuf"):
        raise InputError(f"{where}: the target y beside it is not an array of numbers")
    if y is not None and y.shape != (n,):
        raise InputError(f"{where}: {n} rows, but y has shape {y.shape}")
    check_size(int(n), int(d), where)
    return Shape(int(n), int(d), isinstance(X, h5py.Group), dtype)


def _check_csr(X: h5py.Group, where: str) -> None:
    data, indices, indptr, shape = X["data"], X["indices"], X["indptr"], np.atleast_1d(X.attrs["shape"])
    if shape.size != 2 or indptr.shape != (int(shape[0]) + 1,):
        raise InputError(f"{where}: shape {shape.tolist()} and {indptr.size} entries of indptr; n + 1 are needed")
    whole = indices.dtype.kind in "iu" and indptr.dtype.kind in "iu"
    if data.ndim != 1 or data.dtype.kind not in "biuf" or not whole:
        raise InputError(f"{where}: data must be numbers, and indices and indptr whole numbers")
    if indices.shape != data.shape:
        raise InputError(f"{where}: {data.shape[0]} data and {indices.shape[0]} indices")


def read_block(path: Path, split: str, lo: int, hi: int, dtype: np.dtype[Any]) -> Table:
    """Rows ``lo:hi`` of a split; only these are read. Checked, in the memory of one block."""
    with opened(path) as file:
        place = split if isinstance(file.get(split), h5py.Group) and "X" in file[split] else "/"
        group = file[place]
        X, where = group["X"], f"{path} ({split})"
        y = np.asarray(group["y"][lo:hi], np.float64) if "y" in group else None
        if isinstance(X, h5py.Group):
            indptr = X["indptr"][lo : hi + 1].astype(np.int64)
            if indptr[0] < 0 or indptr[-1] > len(X["data"]) or (np.diff(indptr) < 0).any():
                raise InputError(f"{where}: indptr of the CSR rows must ascend from 0 to {len(X['data'])}")
            data = X["data"][indptr[0] : indptr[-1]].astype(dtype, copy=False)
            indices = X["indices"][indptr[0] : indptr[-1]]
            d = int(X.attrs["shape"][1])
            if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < d:
                raise InputError(f"{where}: a column number of the CSR rows is outside 0 .. {d - 1}")
            rows = csr(data, indices, indptr - indptr[0], (hi - lo, d))
            return Table(rows, y, where, lo).checked(whole=False)
        out = np.empty((hi - lo, X.shape[1]), dtype)
        step = max(1, _BLOCK // max(1, X.shape[1] * dtype.itemsize))
        for a in range(0, hi - lo, step):
            b = min(a + step, hi - lo)
            X.read_direct(out, np.s_[lo + a : lo + b], np.s_[a:b])
    return Table(out, y, where, lo).checked(whole=False)


class _Patient:
    """A new file that takes all that is written to it, and remembers the first error for later.

    A write that fails inside libhdf5 is told many times, and can end the process.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b", buffering=0)
        self._error: OSError | None = None

    def write(self, content: memoryview) -> int:
        left = memoryview(content).cast("B")
        while self._error is None and len(left):
            try:
                left = left[self._file.write(left) :]
            except OSError as error:
                self._error = error
        return content.nbytes

    def truncate(self, size: int | None = None) -> int:
        return self._file.truncate(size) if self._error is None else 0

    def close(self) -> None:
        """Close it, and raise the error."""
        self._file.close()
        if self._error is not None:
            raise self._error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def created(path: Path, **options: Any) -> Iterator[h5py.File]:
    """A new HDF5 file; an OSError at the end, if something could not be written."""
    with closing(_Patient(path)) as stream, h5py.File(stream, "w", **options) as file:
        yield file


def write(path: Path, tables: dict[str, Table], dtype: np.dtype[Any]) -> None:
    """Write splits, whole or not at all."""
    with replacing(path) as temporary, created(temporary) as file:
        file.attrs["schema"] = "cakernels-data/1"
        for split, table in tables.items():
            group = file.create_group(split)
            write_rows(group, "X", table.X.astype(dtype, copy=False))
            if table.y is not None:
                group.create_dataset("y", data=table.y)


def write_rows(group: h5py.Group, name: str, rows: Rows) -> None:
    """An array, or CSR rows as a group with the attribute shape."""
    if not is_sparse(rows):
        group.create_dataset(name, data=rows)
        return
    csr = group.create_group(name)
    csr.attrs["shape"] = rows.shape
    for field in ("data", "indices", "indptr"):
        csr.create_dataset(field, data=getattr(rows, field))
