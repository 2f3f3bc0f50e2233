"""Reading of rows from named arrays (:mod:`cacore.io.arrays`) of HDF5, netCDF-4, Zarr and NPY files, of one or many.

:class:`ArrayFiles` has the methods of :class:`cacore.io.native.NativeFile`. A file is a :class:`Container` of arrays,
of which a :class:`Section` is cut, rows by columns. :func:`listing` shows what a file holds.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.encoding import UNNAMED, Columns
from cacore.data.resolution import Moments, rounded_columns
from cacore.errors import InputError
from cacore.io import native, stream, text
from cacore.io.arrays import FEATURES, NATIVE, ArrayName, Arrays, is_zarr, matching
from cacore.io.names import Order
from cacore.io.native import AS_THEY_LIE, Numbers, Packing, Shape, Type
from cacore.io.table import Table, check_size, plain_targets

Box: TypeAlias = tuple[slice, ...]  # a range of positions in each dimension

_DEEPEST = 16  # links that are followed one after the other
_MOST = 20  # arrays that a message lists
_WRITTEN_BY_XARRAY = "_ARRAY_DIMENSIONS"  # attribute of its arrays in Zarr, version 2, where fill_value marks gaps


# -- one array ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredArray:
    """An array in an open file.

    Attributes
    ----------
    shape : tuple of int
    dtype : dtype
    packing : Packing
    fetch : callable
        The numbers in a box, given by a slice with a positive step per dimension.
    chunk_bytes : int
        Bytes of a chunk while it is read; 0 if there are none.
    words : bool
        True if it holds text.
    """

    shape: tuple[int, ...]
    dtype: Type
    packing: Packing
    fetch: Callable[[Box], Numbers]
    chunk_bytes: int = 0
    words: bool = False


@dataclass(frozen=True, eq=False)
class Section:
    """Part of an array, as rows and columns.

    Attributes
    ----------
    array : StoredArray
    name : ArrayName
    ranges : list of range
        Chosen positions along each dimension of the array.
    rows : list of int
        Dimensions whose points are the rows, the last one running fastest.
    along : int or None
        Dimension of the columns; None if there is one column.
    row_names : tuple of str
        Names of the dimensions of the rows; empty if they are not named.
    """

    array: StoredArray
    name: ArrayName
    ranges: list[range]
    rows: list[int]
    along: int | None
    row_names: tuple[str, ...] = ()

    @classmethod
    def of(cls, array: StoredArray, name: ArrayName, where: str) -> Section:
        """Cut a section; an InputError if the name does not fit the array's shape or type."""
        where = f"{where}: {name.text}"
        if array.dtype.kind not in "biuf" and not array.words:
            raise InputError(f"{where}: type {array.dtype}; an array of numbers is needed{_fields(array.dtype)}")
        if len(name.cut) > len(array.shape):
            raise InputError(f"{where}: {len(name.cut)} slices of an array of shape {array.shape}")
        cut = (*name.cut, *(slice(None) for _ in array.shape[len(name.cut) :]))
        ranges = [_positions(part, size, where) for part, size in zip(cut, array.shape, strict=True)]
        axes = [axis for axis, part in enumerate(cut) if isinstance(part, slice)]
        if name.dims and len(name.dims) != len(axes):
            raise InputError(f"{where}: {len(name.dims)} names of dimensions, and there are {len(axes)}")
        if not name.dims and len(axes) > 2:
            dims = ", ".join([*(f"d{axis}" for axis in range(1, len(axes))), FEATURES])
            raise InputError(
                f"{where}: {len(axes)} dimensions, of sizes {_by(len(ranges[axis]) for axis in axes)}: name them, as "
                f"in '{name.text}({dims})', where the features lie along {FEATURES}"
            )
        along = axes[1] if len(axes) == 2 and not name.dims else None
        if FEATURES in name.dims:
            along = axes[name.dims.index(FEATURES)]
        rows = [axis for axis in axes if axis != along]
        if not rows:
            raise InputError(f"{where}: it has no rows: give a slice such as 0:1 in place of a number")
        return cls(array, name, ranges, rows, along, tuple(dim for dim in name.dims if dim != FEATURES))

    def like(self, first: Section, where: str) -> Section:
        """The same section with its rows in the order of another's; an InputError if these are not the same points."""
        if self.n != first.n:
            raise InputError(f"{where}: {self.name.text} has {self.n:,} rows, and {first.name.text} has {first.n:,}")
        if len(self.rows) == 1 or len(first.rows) == 1:
            return self
        if sorted(self.row_names) != sorted(first.row_names):
            raise InputError(f"{where}: {self.name.text} and {first.name.text}: the rows of both need the same names")
        rows = [self.rows[self.row_names.index(dim)] for dim in first.row_names]
        for dim, axis, other in zip(first.row_names, rows, first.rows, strict=True):
            if len(self.ranges[axis]) != len(first.ranges[other]):
                raise InputError(
                    f"{where}: {dim} of {self.name.text} has {len(self.ranges[axis]):,} positions, and "
                    f"{len(first.ranges[other]):,} in {first.name.text}"
                )
        return replace(self, rows=rows)

    @property
    def n(self) -> int:
        """Number of rows."""
        return math.prod(len(self.ranges[axis]) for axis in self.rows)

    @property
    def d(self) -> int:
        """Number of columns."""
        return 1 if self.along is None else len(self.ranges[self.along])

    @property
    def column_names(self) -> list[str]:
        """Names of the columns: that of the array, with a column's position in it."""
        base = self.name.path or "column"
        fixed = [positions.start for axis, positions in enumerate(self.ranges) if axis not in (*self.rows, self.along)]
        columns = [] if self.along is None or self.array.shape[self.along] == 1 else self.ranges[self.along]
        places = [[*fixed, column] for column in columns] or [fixed]
        return [f"{base}[{','.join(map(str, place))}]" if place else base for place in places]

    def read(self, lo: int, hi: int) -> Numbers:
        """Rows ``lo:hi`` and no others, decoded, shape (hi - lo, d)."""
        sizes = tuple(len(self.ranges[axis]) for axis in self.rows)
        order = [*self.rows, *([] if self.along is None else [self.along])]
        fixed = tuple(axis for axis in range(len(self.ranges)) if axis not in order)
        pieces = []
        for box in _boxes(sizes, lo, hi):
            bounds = dict(zip(self.rows, box, strict=True))
            index = tuple(
                _slice_of(positions, *bounds.get(axis, (0, len(positions))))
                for axis, positions in enumerate(self.ranges)
            )
            block = self.array.fetch(index).transpose(*fixed, *order)
            pieces.append(block.reshape(-1, self.d))
        rows = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
        return rows if self.array.words else self.array.packing.decoded(rows)


def _positions(cut: slice | int, size: int, where: str) -> range:
    """Chosen positions along a dimension of this size."""
    if isinstance(cut, slice):
        return range(*cut.indices(size))
    if not -size <= cut < size:
        raise InputError(f"{where}: position {cut} of a dimension of {size}")
    return range(cut % size, cut % size + 1)


def _slice_of(positions: range, lo: int, hi: int) -> slice:
    """The positions from number `lo` to before `hi`."""
    chosen = positions[lo:hi]
    return slice(chosen.start, max(chosen.start, chosen[-1] + 1 if chosen else 0), chosen.step)


def _boxes(sizes: tuple[int, ...], lo: int, hi: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Boxes of an array of these sizes that hold its elements ``lo:hi``, counted in C order, and no others."""
    if len(sizes) <= 1:
        yield ((lo, hi),) if sizes else ()
        return
    inner = math.prod(sizes[1:])
    whole = tuple((0, size) for size in sizes[1:])
    first, last = -(-lo // max(1, inner)), hi // max(1, inner)
    if first > last:  # within one position of the first dimension
        for box in _boxes(sizes[1:], lo - last * inner, hi - last * inner):
            yield ((last, last + 1), *box)
        return
    if lo < first * inner:
        for box in _boxes(sizes[1:], lo - (first - 1) * inner, inner):
            yield ((first - 1, first), *box)
    if first < last or lo == hi:
        yield ((first, last), *whole)
    if last * inner < hi:
        for box in _boxes(sizes[1:], 0, hi - last * inner):
            yield ((last, last + 1), *box)


def _by(sizes: Iterable[int]) -> str:
    return " x ".join(f"{size:,}" for size in sizes)


def _fields(dtype: Type) -> str:
    """Advice on a compound type."""
    return f": name one of its fields, {', '.join(dtype.names)}, after a slash" if dtype.names else ""


# -- open files -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Container:
    """An open file with arrays.

    Attributes
    ----------
    path : Path
    find : callable
        The array at a path, or None.
    arrays : callable
        Paths of all arrays, without links.
    """

    path: Path
    find: Callable[[str], StoredArray | None]
    arrays: Callable[[], list[str]]

    def section(self, word: str) -> Section:
        """A section of an array, by its name; an InputError if there is no such array."""
        name = ArrayName.of(word)
        array = self.find(name.path)
        if array is None:
            raise InputError(f"{self.path}: no array {name.path!r}; {self.listed()}")
        return Section.of(array, name, str(self.path))

    def listed(self) -> str:
        """Names and shapes of the first arrays, in words."""
        paths = self.arrays()
        more = f" and {len(paths) - _MOST:,} more" if len(paths) > _MOST else ""
        shown = [f"{path or 'one array'} ({_by(self.shape(path))})" for path in paths[:_MOST]]
        return f"it has {', '.join(shown)}{more}" if shown else "there is no array in it"

    def shape(self, path: str) -> tuple[int, ...]:
        """Shape of an array that :attr:`arrays` lists."""
        array = self.find(path)
        return () if array is None else array.shape


@contextmanager
def opened(path: Path, follow: bool = False) -> Iterator[Container]:
    """Open a file with arrays; an InputError if it is none, or damaged."""
    if is_zarr(path):
        yield _zarr(path)
        return
    form = text.kind(path)
    if form == "npy":
        yield _npy(path)
    elif form == "hdf5":
        with native.opened(path) as file, ExitStack() as stack:
            yield _hdf5(path, file, follow, stack)
    else:
        raise InputError(f"{path}: arrays are read from HDF5, netCDF-4, Zarr and NPY files, one after the other")


def _npy(path: Path) -> Container:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path}: cannot be read as NPY ({error}); save it again") from error
    stored = StoredArray(array.shape, array.dtype, Packing(), lambda box: np.array(array[box]))
    return Container(path, lambda name: None if name else stored, lambda: [""])


def _zarr(path: Path) -> Container:
    try:
        import zarr
    except ImportError as error:
        raise InputError(f"{path}: Zarr stores need zarr: pip install 'cakernels[zarr]'") from error
    try:
        store = zarr.open(path, mode="r")
    except Exception as error:  # zarr raises errors of many kinds for damaged stores
        raise InputError(f"{path}: cannot be read as Zarr ({error}); copy it again") from error
    is_group = isinstance(store, zarr.Group)

    def find(name: str) -> StoredArray | None:
        if not is_group:
            return None if name else _of_zarr(store, "", path)
        array, member = store.get(name) if name else None, ""
        if array is None and "/" in name:  # a field of a compound type
            parent, _, member = name.rpartition("/")
            array = store.get(parent)
        return _of_zarr(array, member, path) if isinstance(array, zarr.Array) else None

    def paths() -> list[str]:
        return sorted(name for name, _ in store.members(max_depth=None) if name in store) if is_group else [""]

    return Container(path, find, lambda: [name for name in paths() if find(name) is not None])


def _of_zarr(array: Any, member: str, path: Path) -> StoredArray | None:
    attributes = {key: _attribute(value) for key, value in dict(array.attrs).items()}
    fill = getattr(array, "fill_value", None)
    if array.metadata.zarr_format == 2 and _WRITTEN_BY_XARRAY in attributes and fill is not None:
        attributes.setdefault("_FillValue", [np.asarray(fill).item()])
    chunk = 2 * math.prod(array.chunks) * array.dtype.itemsize
    packing = Packing.declared(attributes, array.dtype, False, f"{path}: {array.path}")
    packing = replace(packing, unsigned=array.attrs.get("_Unsigned") == "true")
    return _member(StoredArray(tuple(array.shape), np.dtype(array.dtype), packing, array.__getitem__, chunk), member)


def _attribute(value: object) -> list[float] | None:
    """Numbers of a Zarr attribute, which xarray writes as text in base 64 if they are floats; None if it has none."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9+/]{11}=", value):
        return [struct.unpack("<d", base64.b64decode(value))[0]]
    values = value if isinstance(value, list) else [value]
    numbers = [number for number in values if isinstance(number, int | float)]
    return numbers if len(numbers) == len(values) else None


def _member(
    array: StoredArray, member: str, fetch: Callable[[Box], Numbers] | None = None
) -> StoredArray | None:  # fmt: skip
    """A field of an array of a compound type, the array itself without a name, or None if there is no such field.

    `fetch` reads the field alone in a box of the array; by default all fields are read.
    """
    if not member:
        return array
    if array.dtype.names is None or member not in array.dtype.names:
        return None
    kind, outer = array.dtype[member], len(array.shape)
    of_field = fetch or (lambda box: array.fetch(box)[member])
    return StoredArray(
        array.shape + kind.shape, kind.base, Packing(), lambda box: _within(of_field(box[:outer]), box[outer:]),
        array.chunk_bytes,
    )  # fmt: skip


def _within(values: Numbers, box: Box) -> Numbers:
    """The box of the last dimensions."""
    return values[(slice(None),) * (values.ndim - len(box)) + box]


def _hdf5(path: Path, file: h5py.File, follow: bool, stack: ExitStack) -> Container:
    def find(name: str) -> StoredArray | None:
        item = _item(file, name, path, follow, stack)
        if isinstance(item, h5py.Dataset):
            return _of_hdf5(item, name, path)
        parent, _, member = name.rpartition("/")
        item = _item(file, parent, path, follow, stack) if item is None and parent else None
        if not isinstance(item, h5py.Dataset) or not item.dtype.names or member not in item.dtype.names:
            return None
        fields = item.fields(member)
        return _member(_of_hdf5(item, parent, path), member, lambda box: np.asarray(fields[box]))

    def paths() -> list[str]:
        datasets: list[str] = []
        file.visititems(lambda name, item: datasets.append(name) if isinstance(item, h5py.Dataset) else None)
        return [name for name in datasets if file[name].shape is not None]

    return Container(path, find, paths)


def _of_hdf5(item: h5py.Dataset, name: str, path: Path) -> StoredArray:
    if item.shape is None:
        raise InputError(f"{path}: {name} is empty")
    words = h5py.check_string_dtype(item.dtype) is not None
    packing = Packing() if words else Packing.of(item, f"{path}: {name}")

    def fetch(box: Box) -> Numbers:
        return np.array(item.asstr("utf-8")[box], np.str_) if words else np.asarray(item[box])

    chunk = 2 * math.prod(item.chunks) * item.dtype.itemsize if item.chunks else 0
    return StoredArray(item.shape, item.dtype, packing, fetch, chunk, words)


def _item(file: h5py.File, name: str, path: Path, follow: bool, stack: ExitStack, depth: int = 0) -> Any:
    """The object at a path in a file, or None; links are followed, within the file's folder, only if that is asked."""
    item: Any = file
    words = [word for word in name.split("/") if word]
    for at, word in enumerate(words):
        if not isinstance(item, h5py.Group) or not item.id.links.exists(word.encode()):
            return None
        link = item.get(word, getlink=True)
        if isinstance(link, h5py.HardLink):
            item = item[word]
            continue
        if not follow or depth > _DEEPEST:
            reason = "it leads to another link, and so on" if follow else "--follow-links follows it"
            raise InputError(f"{path}: {'/'.join(words[: at + 1])} is a link: {reason}")
        rest = words[at + 1 :]
        if isinstance(link, h5py.SoftLink):
            base = "" if link.path.startswith("/") else "/".join(words[:at])
            return _item(file, "/".join([base, link.path, *rest]), path, follow, stack, depth + 1)
        other = _beside(link.filename, path, f"the link {word}")
        inside = stack.enter_context(native.opened(other))
        return _item(inside, "/".join([link.path, *rest]), other, follow, stack, depth + 1)
    if isinstance(item, h5py.Dataset) and not native.lies_here(item):
        if not follow:
            raise InputError(f"{path}: the data of {name} are in other files: --follow-links reads them")
        sources = [] if not item.is_virtual else [source.file_name for source in item.virtual_sources()]
        for source in {*sources, *(outside[0] for outside in item.external or ())} - {"."}:
            _beside(source, path, name)
    return item


def _beside(name: str, path: Path, what: str) -> Path:
    """File that `what` in a file refers to; an InputError if it is not there, or not within the file's folder."""
    folder = path.resolve().parent
    other = (folder / name).resolve()
    if not other.is_relative_to(folder):
        raise InputError(f"{path}: {what} refers to {name}, outside the folder of this file: copy it there")
    if not other.is_file():
        raise InputError(f"{path}: {what} refers to {name}, which is not there")
    return other


def of_training_rows(source: Mapping[str, Any], path: Path, follow_links: bool, comm: Communicator) -> Arrays:
    """Arrays of the training rows, as a model's file describes them, if this file has them; collective."""
    stored, there = source.get("arrays"), np.zeros(2, np.int64)
    if not stored:
        return NATIVE
    arrays = Arrays(tuple(stored["input"]), tuple(stored["output"]), (), follow_links)
    with comm.agreed():
        if comm.rank == 0:
            first = matching(path)[0]
            there[:] = [_holds(first, words, arrays.follow_links) for words in (arrays.inputs, arrays.outputs)]
    features, targets = comm.bcast(there).tolist()
    return replace(arrays, outputs=arrays.outputs if targets else ()) if features else NATIVE


def _holds(path: Path, words: tuple[str, ...], follow: bool) -> bool:
    """True if a file has all of these arrays, and some are named."""
    if not (is_zarr(path) or text.kind(path) in ("hdf5", "npy")):
        return False
    with opened(path, follow) as container:
        return bool(words) and all(container.find(ArrayName.of(word).path) is not None for word in words)


# -- rows of several files ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ArrayFiles:
    """The rows in arrays of some files: the methods of :class:`cacore.io.native.NativeFile`.

    Attributes
    ----------
    path : Path
        The first file.
    arrays : Arrays
    files : list of Path
    ends : list of int
        Number of the first row of each file, and that of all rows.
    shape : Shape
        Of all rows.
    chunk_bytes : int
        Bytes of a chunk while it is read.
    """

    path: Path
    arrays: Arrays
    files: list[Path]
    ends: list[int]
    shape: Shape
    chunk_bytes: int

    @classmethod
    def of(cls, path: Path, arrays: Arrays, comm: Communicator) -> ArrayFiles:
        """Look into the files, each of which one rank opens; collective.

        Raises
        ------
        InputError
            A file or an array is missing, or its shape differs from that in the first file.
        """
        files: list[Path] = []
        is_named = bool(arrays.inputs)
        with comm.uncounted():
            with comm.agreed():
                if comm.rank == 0:
                    files = [file for pattern in (path, *arrays.files) for file in matching(pattern)]
                    arrays = arrays if arrays.inputs else _usual(files[0], arrays)
            names = np.frombuffer(json.dumps([[str(file) for file in files], arrays.described()]).encode(), np.uint8)
            listed, layout = json.loads(comm.bcast(names).tobytes())
            files = [Path(name) for name in listed]
            arrays = replace(arrays, inputs=tuple(layout["input"]), outputs=tuple(layout["output"]))
            first = None
            with comm.agreed():
                if comm.rank == 0:
                    first = _Facts.of(files[0], arrays)
            first = _Facts.unpacked(comm.bcast(np.frombuffer(b"" if first is None else first.packed(), np.uint8)))
            sizes = np.zeros(len(files), np.int64)
            with comm.agreed():
                for at in range(comm.rank, len(files), comm.size):
                    if not is_named:
                        _check_plain(files[at])
                    sizes[at] = first.rows_of(files[at], arrays)
            sizes = comm.allreduce(sizes)
        ends = [0, *accumulate(sizes.tolist())]
        targets = None if not arrays.outputs else (ends[-1],) if first.t == 1 else (ends[-1], first.t)
        columns = UNNAMED
        if is_named:
            columns = Columns(tuple(first.columns[: first.d]), tuple(first.columns[first.d :]), "f" * first.d)
        check_size(ends[-1], first.d, str(path))
        shape = Shape(ends[-1], first.d, False, np.dtype(first.dtype), targets, columns, text=first.words)
        return cls(path, arrays, files, ends, shape, first.chunk_bytes)

    def describe(self) -> dict[str, Shape]:
        """The shape of the training rows."""
        return {"train": self.shape}

    def needed(self, split: str, lo: int, hi: int, dtype: Type, limit: int, order: Order = AS_THEY_LIE) -> int:
        """Upper bound on the bytes that :meth:`read_block` uses."""
        n, d = hi - lo, self.shape.d if order.features is None else len(order.features)
        block = 3 * min(native.BLOCK, n * self.row_bytes(split, self.shape)) + self.chunk_bytes
        return n * (d * dtype.itemsize + 32 * math.prod((self.shape.y or (0,))[1:])) + block

    def row_bytes(self, split: str, shape: Shape) -> int:
        """Bytes of memory per row while it is read."""
        return shape.d * max(8, shape.dtype.itemsize)

    def read_block(
        self, split: str, lo: int, hi: int, dtype: Type, order: Order = AS_THEY_LIE,
        moments: Moments | None = None,
    ) -> Table:  # fmt: skip
        """Read and check rows ``lo:hi`` of all rows; only the files with such rows are opened."""
        width = self.shape.d if order.features is None else len(order.features)
        X, rounded = np.empty((hi - lo, width), dtype), np.zeros(width, np.bool_)
        targets: list[Numbers] = []
        for file, (first, last) in zip(self.files, pairwise(self.ends), strict=True):
            a, b = max(lo, first), min(hi, last)
            if a > b or (a == b and (targets or a < hi)):
                continue
            with stream.reading(file), opened(file, self.arrays.follow_links) as container:
                features, outputs = _sections(container, self.arrays)
                if features[0].n != last - first:
                    raise InputError(f"{file}: {features[0].n:,} rows now, and {last - first:,} before: read it again")
                y = self._targets(outputs, a - first, b - first, order)

                def read(
                    start: int, stop: int, room: object, sections: list[Section] = features
                ) -> Numbers:  # fmt: skip
                    return np.concatenate([section.read(start, stop) for section in sections], axis=1)

                gaps = _gap(features), _gap(outputs)
                block = X[a - lo : b - lo]
                table = Table(block, y, str(file), a - first, gaps=gaps)
                rounded |= native.fill(
                    block, read, a - first, self.row_bytes(split, self.shape), order, table, moments
                )  # fmt: skip
                if y is not None:
                    targets.append(y)
        y = np.concatenate(targets) if targets else None
        label = None if y is None else rounded_columns(y)
        return Table(X, None if y is None else plain_targets(y), self.where, lo, rounded=(rounded, label))

    @property
    def where(self) -> str:
        """Name in messages on all rows."""
        return str(self.path) if len(self.files) == 1 else f"{self.path} and {len(self.files) - 1:,} more files"

    def _targets(self, outputs: list[Section], lo: int, hi: int, order: Order) -> Numbers | None:
        if self.shape.y is None or order.targets == []:
            return None
        y = np.concatenate([section.read(lo, hi) for section in outputs], axis=1)
        if len(self.shape.y) == 1:
            return y[:, 0]
        return y if order.targets is None else y[:, order.targets]


@dataclass(frozen=True)
class _Facts:
    """Facts of a file: numbers of rows, features and targets, names of their columns, and types."""

    n: int
    d: int
    t: int
    columns: list[str]
    dtype: str
    words: bool
    chunk_bytes: int

    @classmethod
    def of(cls, path: Path, arrays: Arrays) -> _Facts:
        with opened(path, arrays.follow_links) as container:
            features, targets = _sections(container, arrays)
            every = [*features, *targets]
            columns = [name for section in every for name in section.column_names]
            types = [section.array.packing.type_of(section.array.dtype) for section in features]
            if any(section.array.words for section in features):
                raise InputError(f"{path}: {', '.join(arrays.inputs)}: text is no feature: name arrays of numbers")
            words = any(section.array.words for section in targets)
            if words and sum(section.d for section in targets) > 1:
                raise InputError(f"{path}: {', '.join(arrays.outputs)}: of several targets none may be text")
            return cls(
                features[0].n, sum(section.d for section in features), sum(section.d for section in targets), columns,
                np.result_type(*types).str, words, max(section.array.chunk_bytes for section in every),
            )  # fmt: skip

    def rows_of(self, path: Path, arrays: Arrays) -> int:
        """Number of rows of a file; an InputError unless it is like this first one."""
        there = self.of(path, arrays)
        for what, mine, first in (("features", there.d, self.d), ("targets", there.t, self.t)):
            if mine != first:
                raise InputError(f"{path}: {mine:,} {what}, and {first:,} in the first file")
        if there.words != self.words:
            text = ("numbers", "words")
            raise InputError(f"{path}: its targets are {text[there.words]}, and {text[self.words]} in the first file")
        return there.n

    def packed(self) -> bytes:
        return json.dumps(vars(self)).encode()

    @classmethod
    def unpacked(cls, packed: NDArray[np.uint8]) -> _Facts:
        return cls(**json.loads(packed.tobytes()))


def _sections(container: Container, arrays: Arrays) -> tuple[list[Section], list[Section]]:
    """Sections with the features and with the targets, which all have as many rows."""
    words = [*arrays.inputs, *arrays.outputs]
    first = container.section(words[0])
    sections = [first, *(container.section(word).like(first, str(container.path)) for word in words[1:])]
    return sections[: len(arrays.inputs)], sections[len(arrays.inputs) :]


def _check_plain(path: Path) -> None:
    """Refuse a native file with more than rows of numbers, which only files read one by one give their meaning."""
    if is_zarr(path) or text.kind(path) != "hdf5":
        return
    shapes = native.NativeFile(path).describe()
    what = "names of columns" if any(shape.columns.features for shape in shapes.values()) else ""
    if len(shapes) > 1 or what:
        raise InputError(
            f"{path}: it has {what or 'test rows'}, which rows of several files lose: put the files together with "
            "python -m cacore.io convert, or name arrays with --input"
        )


def _gap(sections: list[Section]) -> str:
    """How messages call a gap in these arrays."""
    return next((section.array.packing.gap for section in sections if section.array.packing.label), "nan")


def _usual(path: Path, arrays: Arrays) -> Arrays:
    """The arrays of files for which none are named."""
    with opened(path, arrays.follow_links) as container:
        if container.arrays() == [""]:
            return replace(arrays, inputs=("[:, :-1]",), outputs=("[:, -1]",))
        for place in ("train/", ""):
            if container.find(f"{place}X") is not None:
                has_targets = container.find(f"{place}y") is not None
                outputs = arrays.outputs or ((f"{place}y",) if has_targets else ())
                return replace(arrays, inputs=(f"{place}X",), outputs=outputs)
        raise foreign(container)


def foreign(container: Container) -> InputError:
    """Error for a file without the arrays of the native layout: what it holds, and the options that would read it."""
    options = suggested(container) or "--input ARRAY --output ARRAY"
    return InputError(
        f"{container.path}: no /train/X and no /X in it; {container.listed()}: name the arrays of the rows, such as "
        f"{options}"
    )


def suggested(container: Container) -> str:
    """Options that would read a file: its array with most numbers, and a column that is as long; empty if none is."""
    arrays = {path: container.find(path) for path in container.arrays()}
    numeric = {path: array for path, array in arrays.items() if array is not None and array.dtype.kind in "biuf"}
    tables = {path: array.shape for path, array in numeric.items() if len(array.shape) == 2 and all(array.shape)}
    if not tables:
        return ""
    best = max(tables, key=lambda path: math.prod(tables[path]))
    same = [path for path, array in numeric.items() if array.shape in ((tables[best][0],), (tables[best][0], 1))]
    same.sort(key=lambda path: numeric[path].dtype.kind != "f")
    return f"--input {best}" + (f" --output {same[0]}" if same else "")


def listing(container: Container) -> list[tuple[str, str, str, str]]:
    """Name, shape, type and packing of each array of a file, for a table."""
    rows = []
    for name in container.arrays():
        array = container.find(name)
        if array is not None:
            kind = "text" if array.words else str(array.dtype)
            if array.dtype.names:
                kind = ", ".join(array.dtype.names)
            rows.append((name, _by(array.shape), kind, array.packing.applied or array.packing.label))
    return rows
