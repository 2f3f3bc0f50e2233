"""Native data files: HDF5 with /train/X, /train/y, /test/X, /test/y, or /X and /y, and names of their columns.

The features of a table with words, gaps or dates have its columns beside them, as JSON in the array `table`.

Fill values, scales and offsets that attributes of HDF5 and netCDF arrays declare are applied as xarray applies them:
numbers equal to ``_FillValue`` or ``missing_value`` become NaN; all others are multiplied by ``scale_factor``, and then
``add_offset`` is added. netCDF's own fill values count as well: of floats in any file, of integers in files that netCDF
wrote.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
from numpy.typing import NDArray

from cacore.data.encoding import LETTERS, UNNAMED, Columns, Encoding, clean
from cacore.data.resolution import Moments, rounded_columns
from cacore.data.rows import CSR, Rows, csr, is_csr, is_sparse
from cacore.errors import InputError
from cacore.files import replacing
from cacore.io.names import Order
from cacore.io.stream import check_regular
from cacore.io.table import Table, check_size, plain_targets
from cacore.machine.threads import blocks

Numbers: TypeAlias = NDArray[Any]
Type: TypeAlias = np.dtype[Any]

FLOAT_FILL = 9.969209968386869e36  # netCDF's default for floats, of either precision
_INTEGER_FILLS = {"i2": -32767, "u2": 65535, "i4": -2147483647, "u4": 4294967295, "i8": -(2**63) + 2, "u8": 2**64 - 2}
_MOST = 100  # numbers of an attribute that are read


COLUMN_NAMES = ("names", "target_names", "kinds")
TABLE = "table"  # array with the columns of a table with words, gaps or dates
_LONGEST = 1 << 28  # bytes of all names


@dataclass(frozen=True)
class Packing:
    """Encoding of the numbers of an array.

    Attributes
    ----------
    fills : tuple of float or int
        Stored numbers that mark gaps.
    scale, offset : float
    unsigned : bool
        True if signed integers stand for unsigned ones.
    scaled : bool
        True if a scale or an offset is declared, so that the numbers are of double precision.
    label : str
        Name of the first fill value in messages; empty if none is declared.
    """

    fills: tuple[float | int, ...] = ()
    scale: float = 1.0
    offset: float = 0.0
    unsigned: bool = False
    scaled: bool = False
    label: str = ""

    @classmethod
    def of(cls, item: h5py.Dataset, where: str) -> Packing:
        """The encoding that the attributes of an array in HDF5 declare."""
        names = ("_FillValue", "missing_value", "scale_factor", "add_offset")
        attributes = {name: _numeric(item, name) for name in names if name in item.attrs}
        netcdf = "_NCProperties" in item.file.attrs
        return replace(cls.declared(attributes, item.dtype, netcdf, where), unsigned=_is_unsigned(item))

    @classmethod
    def declared(
        cls, attributes: Mapping[str, list[float] | None], dtype: Type, netcdf: bool, where: str
    ) -> Packing:  # fmt: skip
        """The encoding that attributes declare, given by their numbers, None for one that has something else."""
        declared = [(name, value) for name in ("_FillValue", "missing_value") for value in attributes.get(name) or ()]
        fills = [value for _, value in declared]
        if netcdf and dtype.kind in "iu" and not fills and (fill := _INTEGER_FILLS.get(dtype.str[1:])) is not None:
            fills = [fill]
        scale, offset = (_number(attributes, name, where) for name in ("scale_factor", "add_offset"))
        return cls(
            tuple(fills), 1.0 if scale is None else scale, 0.0 if offset is None else offset,
            scaled=scale is not None or offset is not None,
            label=f"{declared[0][0]} {declared[0][1]:g}" if declared else "",
        )  # fmt: skip

    @property
    def gap(self) -> str:
        """Description of a gap in messages."""
        return f"missing ({self.label} or nan)" if self.label else "nan or netCDF's fill value"

    @property
    def applied(self) -> str:
        """Scale and offset in messages; empty if none is declared."""
        return f"scale_factor {self.scale:g} and add_offset {self.offset:g} are applied" if self.scaled else ""

    def type_of(self, dtype: Type) -> Type:
        """Type of the decoded numbers of an array of this type, unless some are missing."""
        if self.scaled:
            return np.dtype(np.float64)
        return np.dtype(dtype.str.replace("i", "u")) if self.unsigned and dtype.kind == "i" else dtype

    def decoded(self, values: Numbers) -> Numbers:
        """The numbers that stored ones stand for, NaN for gaps; `values` themselves where nothing changes."""
        if self.unsigned and values.dtype.kind == "i":
            values = values.view(values.dtype.str.replace("i", "u"))
        gaps = self._gaps(values)
        if self.scaled:
            values = values.astype(np.float64) * self.scale + self.offset
        if gaps is not None and gaps.any():
            values = values if values.dtype.kind == "f" else values.astype(np.float64)
            values[gaps] = np.nan
        return values

    def _gaps(self, values: Numbers) -> NDArray[np.bool_] | None:
        """Mask of stored numbers that mark gaps; None if there are none."""
        gaps = None
        for fill in self.fills:
            with np.errstate(over="ignore", invalid="ignore"):
                stored = np.array(fill).astype(values.dtype)
            if values.dtype.kind == "f" or stored == fill:
                gaps = values == stored if gaps is None else gaps | (values == stored)
        if values.dtype.kind == "f" and values.size:
            with np.errstate(over="ignore", invalid="ignore"):
                if not abs(values.sum(dtype=np.float64)) < FLOAT_FILL / 2:
                    default = values.astype(np.float32) == np.float32(FLOAT_FILL)
                    gaps = default if gaps is None else gaps | default
        return gaps


def _numeric(item: h5py.Dataset, name: str) -> list[float] | None:
    """Numbers of an attribute; None if it holds something else."""
    stored = item.attrs.get_id(name)  # read only if it holds numbers: a damaged string would end the process
    if stored.dtype.kind not in "biuf" or int(np.prod(stored.shape or ())) > _MOST:
        return None
    values: list[float] = np.ravel(item.attrs[name]).tolist()
    return values


def _number(attributes: Mapping[str, list[float] | None], name: str, where: str) -> float | None:
    """Number of an attribute, None if there is no such attribute; anything but one finite number is an InputError."""
    if name not in attributes:
        return None
    values = attributes[name] or []
    if len(values) != 1 or not np.isfinite(values[0]) or (name == "scale_factor" and values[0] == 0):
        raise InputError(f"{where}: its attribute {name} is not one finite number: write the numbers themselves")
    return float(values[0])


def _is_unsigned(item: h5py.Dataset) -> bool:
    """True if the attribute ``_Unsigned`` is "true", as netCDF writes it."""
    if "_Unsigned" not in item.attrs or item.attrs.get_id("_Unsigned").dtype.kind != "S":
        return False
    return bool(np.ravel(item.attrs["_Unsigned"])[:1].tolist() == [b"true"])


BLOCK = 1 << 24  # bytes of rows per read: many chunks (`CHUNK` of cacore/io/spool.py), little beside a memory limit
# Bytes of chunks that the library keeps per open dataset: by default 1 MiB, since HDF5 2.0 8 MiB.
_KEPT = 1 << 20
# Exceptions raised when a damaged file is read.
_DAMAGE = (
    OSError, RuntimeError, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, MemoryError,
)  # fmt: skip
# Since HDF5 1.10 all metadata has checksums, so the library detects damage before it acts upon it.
FORMAT = ("v110", "v110")
_CSR = ("data", "indices", "indptr")
_WORD = 120  # bytes of a short string while it is read
AS_THEY_LIE = Order()


@dataclass(frozen=True)
class Shape:
    """Size, type and names of a split, known without reading its rows; `y` is its targets' shape, None without.

    `scaled` describes how stored numbers are scaled, see :mod:`cacore.io.native`; empty if they are not. `text` is true
    if the targets are words.
    """

    n: int
    d: int
    sparse: bool
    dtype: Type
    y: tuple[int, ...] | None
    columns: Columns = UNNAMED
    scaled: str = ""
    text: bool = False

    def ordered(self, order: Order) -> Shape:
        """Shape of the rows once their columns are in this order."""
        d = self.d if order.features is None else len(order.features)
        y = self.y
        if y is not None and order.targets is not None:
            y = None if not order.targets else y if len(y) == 1 else (y[0], len(order.targets))
        return replace(self, d=d, y=y, columns=order.columns)


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Open a file read-only; a missing, truncated or invalid file raises an InputError, also inside the block."""
    check_regular(path)
    try:
        with h5py.File(path, "r", rdcc_nbytes=_KEPT) as file:
            yield file
    except InputError:
        raise
    except _DAMAGE as error:
        if re.search("lock file|already open for", str(error)):
            raise InputError(f"{path}: another program has it open for writing: wait until it is closed") from error
        raise InputError(
            f"{path}: cannot be read as HDF5, it may be truncated ({error}); copy or convert it again"
        ) from error


def is_native(path: Path) -> bool:
    """True if an HDF5 file has arrays of the native layout."""
    with opened(path) as file:
        return any(_group(file, place) is not None for place in ("train", "test", "/"))


def _group(file: h5py.File, place: str) -> h5py.Group | None:
    """Group at `place` in the file, or None if it holds no rows."""
    group = file if place == "/" else _child(file, place, file.filename)
    return group if isinstance(group, h5py.Group) and group.id.links.exists(b"X") else None


def is_link(group: h5py.Group, name: str) -> bool:
    """True if `name` is a soft or external link; asking h5py itself would open the file that it points to."""
    return bool(group.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD)


def lies_here(item: h5py.Dataset) -> bool:
    """True if an array's numbers are stored in the file itself, not in others that it refers to."""
    return not (item.is_virtual or item.external)


def _child(group: h5py.Group, name: str, where: str) -> Any:
    """Member of a group, or None; data outside this file are refused, since the user has named only this file."""
    if not group.id.links.exists(name.encode()):
        return None
    if is_link(group, name):
        raise InputError(f"{where}: {name} is a link; store the data itself in this file")
    item = group[name]
    if isinstance(item, h5py.Dataset) and not lies_here(item):
        raise InputError(f"{where}: the data of {name} are in other files; put them into this one")
    return item


def _numbers(group: h5py.Group, name: str, where: str, kinds: str = "biuf") -> Any:
    item = _child(group, name, where)
    if item is not None and (not isinstance(item, h5py.Dataset) or item.shape is None or item.dtype.kind not in kinds):
        raise InputError(f"{where}: {name} is not an array of {'numbers' if 'f' in kinds else 'whole numbers'}")
    return item


def _shape(group: h5py.Group, where: str) -> Shape:
    X = _child(group, "X", where)
    if isinstance(X, h5py.Group):
        n, d = _csr_shape(X, where)
        packing = Packing.of(X["data"], where)
        if packing.offset:
            raise InputError(
                f"{where}: add_offset of CSR data, whose zeros are not stored: write the numbers themselves"
            )
        dtype = packing.type_of(X["data"].dtype)
    else:
        if X.shape is None or len(X.shape) != 2 or X.dtype.kind not in "biuf":
            raise InputError(f"{where}: shape {X.shape}, type {X.dtype}; an n x d array of numbers is needed")
        (n, d), packing = X.shape, Packing.of(X, where)
        dtype = packing.type_of(X.dtype)
    check_size(n, d, where)
    y = _child(group, "y", where)
    text = _is_text(y)
    y = y if text else _numbers(group, "y", f"{where}: the target beside it")
    if y is not None and (y.ndim not in (1, 2) or len(y) != n or not all(y.shape)):
        raise InputError(f"{where}: {n:,} rows, but y has shape {y.shape}")
    size = None if y is None else _one_or_many(y.shape)
    targets = 0 if size is None else size[1] if len(size) > 1 else 1
    columns = read_columns({name: _child(group, name, where) for name in (*COLUMN_NAMES, TABLE)}, d, targets, where)
    scaled = packing.applied or ("" if y is None or text else Packing.of(y, f"{where}: y").applied)
    if text and targets > 1:
        raise InputError(f"{where}: the target beside it: y is text of shape {y.shape}; one word per row is needed")
    return Shape(n, d, isinstance(X, h5py.Group), dtype, size, columns, scaled, text)


def _is_text(item: Any) -> bool:
    """True for an array of strings, of any or of a fixed length."""
    return isinstance(item, h5py.Dataset) and item.shape is not None and h5py.check_string_dtype(item.dtype) is not None


def _one_or_many(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of targets, with a single column counted as one target per row."""
    return shape[:1] if shape[1:] == (1,) else shape


def _csr_shape(X: h5py.Group, where: str) -> tuple[int, int]:
    """Number of rows and columns of a CSR group, after checking the arrays' shapes without reading them."""
    data, indices, indptr = (_numbers(X, name, where, "biuf" if name == "data" else "iu") for name in _CSR)
    if data is None or indices is None or indptr is None or "shape" not in X.attrs:
        raise InputError(f"{where}: a CSR group needs data, indices, indptr and the attribute shape")
    stored = X.attrs.get_id("shape")  # read only if it holds numbers: a damaged string would end the process
    if stored.shape != (2,) or stored.dtype.kind not in "iu":
        raise InputError(f"{where}: the attribute shape must be two whole numbers")
    n, d = (int(size) for size in X.attrs["shape"])
    if indptr.shape != (n + 1,):
        raise InputError(f"{where}: shape {n} x {d} and indptr of shape {indptr.shape}; n + 1 entries are needed")
    if data.ndim != 1 or indices.shape != data.shape:
        raise InputError(f"{where}: data of shape {data.shape} and indices of shape {indices.shape}")
    return n, d


def step_bytes(limit: int) -> int:
    """Bytes of rows to read at a time if a rank may use `limit` bytes."""
    return max(1, min(BLOCK, limit // 16))


def _chunk(data: h5py.Dataset) -> int:
    """Bytes for one chunk of a dataset, compressed and decompressed; 0 if it has no chunks."""
    return 2 * math.prod(data.chunks) * data.dtype.itemsize if data.chunks else 0


def _place(file: h5py.File, split: str) -> h5py.Group:
    group = _group(file, split)
    return file if group is None else group


@dataclass(frozen=True)
class NativeFile:
    """A native file as a source of rows."""

    path: Path

    def describe(self) -> dict[str, Shape]:
        """Shapes of the splits of a native file: "train", and "test" if there is one."""
        with opened(self.path) as file:
            shapes = {}
            for split, place in (("train", "train"), ("test", "test"), ("train", "/")):
                group = _group(file, place)
                if group is not None and split not in shapes:
                    shapes[split] = _shape(group, f"{self.path}:{place.rstrip('/')}/X")
        if not shapes:
            raise InputError(
                f"{self.path}: no /train/X and no /X in it; make the file with python -m cacore.io convert"
            )
        return shapes

    def needed(self, split: str, lo: int, hi: int, dtype: Type, limit: int, order: Order = AS_THEY_LIE) -> int:
        """Upper bound on the bytes that :meth:`read_block` uses, or some number above `limit`.

        Computing the bound itself takes at most `limit` bytes.
        """
        with opened(self.path) as file:
            group, n = _place(file, split), hi - lo
            X, width = group["X"], dtype.itemsize
            size = 16 * n
            if "y" in group:
                y = group["y"]
                word = _WORD + 4 * y.dtype.itemsize if _is_text(y) else 16
                size = word * n * math.prod(y.shape[1:]) + _chunk(y)
            if not isinstance(X, h5py.Group):
                row = X.shape[1] * X.dtype.itemsize
                decoded = Packing.of(X, str(self.path)).type_of(X.dtype)
                plain = X.dtype == dtype == decoded and order.features is None
                copies = (1 if order.features is None else 2) + 2 * decoded.itemsize // X.dtype.itemsize * (
                    decoded != X.dtype
                )
                block = 0 if plain else min(BLOCK + row, n * row) * copies
                d = X.shape[1] if order.features is None else len(order.features)
                return int(size + n * d * width + block + _chunk(X))
            # Every method needs at least one dense row of all columns.
            size += 24 * n + 8 * int(X.attrs["shape"][1]) + sum(_chunk(X[name]) for name in _CSR)
            if size > limit:
                return size
            first, last = (min(int(X["indptr"][row]), len(X["data"])) for row in (lo, hi))
            entry = int(width + X["data"].dtype.itemsize + 2 * X["indices"].dtype.itemsize)
            return size + max(0, last - first) * entry * (1 if order.features is None else 2)

    def row_bytes(self, split: str, shape: Shape) -> int:
        """Bytes of memory per row while it is read; for CSR rows, the mean."""
        if not shape.sparse:
            return shape.d * max(8, shape.dtype.itemsize)
        with opened(self.path) as file:
            return int(32 + 24 * _place(file, split)["X/data"].shape[0] // max(1, shape.n))

    def read_block(
        self, split: str, lo: int, hi: int, dtype: Type, order: Order = AS_THEY_LIE,
        moments: Moments | None = None,
    ) -> Table:  # fmt: skip
        """Read and check only rows ``lo:hi`` of a split found by :meth:`describe`, with the columns in this order.

        Dense rows are added to `moments` before they are rounded to single precision.
        """
        with opened(self.path) as file:
            group = _place(file, split)
            X, where, pick = group["X"], f"{self.path} ({split})", order.features
            y, gap = _targets(group, lo, hi, order, where)
            targets = None if y is None else rounded_columns(y)
            packing = Packing.of(X["data"] if isinstance(X, h5py.Group) else X, where)
            gaps = packing.gap, gap
            if isinstance(X, h5py.Group):
                rows = _csr_rows(X, lo, hi, where)
                rows.data = packing.decoded(rows.data)
                rows = rows if pick is None else _picked(rows, pick)
                table = Table(rows, y, where, lo, gaps=gaps, rounded=(rounded_columns(rows), targets))
                table.checked(dtype, whole=False)
                table.X = table.X.astype(dtype, copy=False)
                return table
            out = np.empty((hi - lo, X.shape[1] if pick is None else len(pick)), dtype)

            def read(first: int, last: int, room: Numbers | None) -> Numbers:
                part = np.empty((last - first, X.shape[1]), X.dtype) if room is None or X.dtype != dtype else room
                X.read_direct(part, np.s_[first:last])
                return packing.decoded(part)

            row = X.shape[1] * X.dtype.itemsize
            rounded = fill(out, read, lo, row, order, Table(out, y, where, lo, gaps=gaps), moments)
        return Table(out, None if y is None else plain_targets(y), where, lo, rounded=(rounded, targets))


def fill(
    out: Numbers, read: Callable[[int, int, Numbers | None], Numbers], lo: int, row_bytes: int,
    order: Order, table: Table, moments: Moments | None = None,
) -> NDArray[np.bool_]:  # fmt: skip
    """Fill `out` with rows from number `lo` on, a block at a time, checked; the mask of columns that were rounded.

    ``read(first, last, room)`` returns rows in the file's columns, which may lie in `room`, memory of `out`, if the
    columns are wanted in this order. `table` has targets, place and gaps of these rows, for messages.
    """
    step, rounded, pick = max(1, BLOCK // max(1, row_bytes)), np.zeros(out.shape[1], np.bool_), order.features
    for a, b in blocks(len(out), step):
        part = read(lo + a, lo + b, out[a:b] if pick is None else None)
        part = part if pick is None else part[:, pick]
        y = None if table.y is None else table.y[a:b]
        replace(table, X=part, y=y, first=table.first + a).checked(out.dtype, whole=False)
        rounded |= rounded_columns(part)
        if moments is not None and out.dtype == np.float32:
            moments.add(part)
        if part.base is not out:
            out[a:b] = part
    return rounded


def _targets(group: h5py.Group, lo: int, hi: int, order: Order, where: str) -> tuple[Any, str]:
    """Targets of rows ``lo:hi``, shape (m,) or (m, t), or None; and how messages call a gap in them."""
    if "y" not in group or order.targets == []:
        return None, ""
    y = words_or_numbers(group["y"], lo, hi)
    if y.dtype.kind == "U":
        return y.reshape(hi - lo), ""
    packing = Packing.of(group["y"], f"{where}: y")
    y = packing.decoded(y)
    y = y.reshape(hi - lo, *_one_or_many(y.shape)[1:])
    return (y if order.targets is None or y.ndim == 1 else y[:, order.targets]), packing.gap


def words_or_numbers(item: h5py.Dataset, lo: int, hi: int) -> Numbers:
    """Rows ``lo:hi`` of an array of numbers, or of strings as text."""
    return np.array(item.asstr("utf-8")[lo:hi], np.str_) if _is_text(item) else np.asarray(item[lo:hi])


def _picked(rows: CSR, order: NDArray[np.int64]) -> CSR:
    """CSR rows with these columns, in this order."""
    rows = rows[:, order]
    rows.sort_indices()
    return rows


def _csr_rows(X: h5py.Group, lo: int, hi: int, where: str) -> CSR:
    d, indptr = int(X.attrs["shape"][1]), X["indptr"][lo : hi + 1].astype(np.int64)
    data, indices = (X[name][max(0, indptr[0]) : max(0, indptr[-1])] for name in ("data", "indices"))
    indptr, size = indptr - indptr[0], len(X["data"])
    if not is_csr(data, indices, indptr, (hi - lo, d)):
        raise InputError(f"{where}: of CSR rows, indptr must ascend from 0 to {size}, and indices lie in 0 .. {d - 1}")
    return csr(data, indices, indptr, (hi - lo, d))


class _Patient:
    """New file that accepts every write, and raises the first write error only when it is closed.

    A write error inside libhdf5 is reported many times and can end the process.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b", buffering=0)
        self._error: OSError | None = None

    def write(self, content: memoryview) -> int:
        remainder = memoryview(content).cast("B")
        while self._error is None and len(remainder):
            try:
                remainder = remainder[self._file.write(remainder) :]
            except OSError as error:
                self._error = error
        return content.nbytes

    def truncate(self, size: int | None = None) -> int:
        return self._file.truncate(size) if self._error is None else 0

    def close(self) -> None:
        """Close the file and raise the first write error, if any."""
        self._file.close()
        if self._error is not None:
            raise self._error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def created(path: Path, **options: Any) -> Iterator[h5py.File]:
    """Create an HDF5 file; a write error raises an OSError at the end of the block."""
    with closing(_Patient(path)) as stream, h5py.File(stream, "w", **options) as file:
        yield file


@contextmanager
def data_file(path: Path) -> Iterator[h5py.File]:
    """Create a file of the native layout."""
    with created(path, libver=FORMAT, rdcc_nbytes=0) as file:  # rows are written in whole chunks, each once
        file.attrs["schema"] = np.bytes_(b"cakernels-data/1")
        yield file


def write(path: Path, tables: dict[str, Table], dtype: Type) -> None:
    """Write a native file with these splits atomically."""
    with replacing(path) as temporary, data_file(temporary) as file:
        for split, table in tables.items():
            group = file.create_group(split)
            write_rows(group, "X", table.X.astype(dtype, copy=False))
            if table.y is not None:
                group.create_dataset("y", data=table.y)
            write_columns(group, table.columns)


def write_rows(group: h5py.Group, name: str, rows: Rows) -> None:
    """Write dense rows as a dataset, or CSR rows as a group with the attribute `shape`."""
    if not is_sparse(rows):
        group.create_dataset(name, data=rows)
        return
    csr = group.create_group(name)
    csr.attrs["shape"] = rows.shape
    for field in ("data", "indices", "indptr"):
        csr.create_dataset(field, data=getattr(rows, field))


def write_columns(group: h5py.Group, columns: Columns) -> None:
    """Write the names beside the rows, as arrays of UTF-8 text of fixed length; nothing if the features have none."""
    if not columns.features:
        return
    for name, words in zip(COLUMN_NAMES, (columns.features, columns.target, tuple(columns.kinds)), strict=True):
        if words:
            group.create_dataset(name, data=np.array([word.encode(errors="replace") for word in words]))
    if columns.table is not None:
        text = json.dumps(columns.table.described()).encode()
        group.create_dataset(TABLE, data=np.frombuffer(text, np.uint8))


def read_columns(items: Mapping[str, Any], d: int, targets: int, where: str) -> Columns:
    """The names in a group's arrays, for `d` features and `targets` targets; none unless every feature has one.

    Files from elsewhere may have arrays of these names that hold something else, such as names of the rows.
    """
    names = _words(items["names"], d)
    if not names:
        return Columns()
    kinds = [word if word in LETTERS else "f" for word in _words(items["kinds"], d)]
    if (table := _table(items[TABLE], names, f"{where}: {TABLE}")) is not None:
        names = table.features.features  # with the blanks in the names of levels
    return Columns(names, _words(items["target_names"], targets), "".join(kinds), table)


def _table(item: Any, names: tuple[str, ...], where: str) -> Encoding | None:
    """The columns in an array of bytes, of which features with these names are made; None if it is not such an array.

    An InputError if it is damaged.
    """
    if not isinstance(item, h5py.Dataset) or item.dtype != np.uint8 or item.shape is None or len(item.shape) != 1:
        return None
    if item.nbytes > _LONGEST:
        raise InputError(
            f"{where} has {item.nbytes >> 20} MiB, and {_LONGEST >> 20} are read: drop columns of many words"
        )
    try:
        table = Encoding.of(json.loads(item[:].tobytes()))
    except (ValueError, RecursionError, InputError) as error:
        raise InputError(f"{where} does not describe columns: it is damaged; convert the file again") from error
    if tuple(map(clean, table.features.features)) != names:
        raise InputError(f"{where} does not describe the features: it is damaged; convert the file again")
    return table


def _words(item: Any, size: int) -> tuple[str, ...]:
    """The texts in an array of this size; none if it is not such an array."""
    if not isinstance(item, h5py.Dataset) or h5py.check_string_dtype(item.dtype) is None:
        return ()
    if item.shape != (size,) or item.nbytes > _LONGEST:
        return ()
    return tuple(clean(word.decode(errors="replace")) for word in item[:].tolist())
