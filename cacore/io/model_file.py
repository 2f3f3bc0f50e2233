"""Model files: HDF5 with one group per part, no pickle; any number of ranks can read them.

Their arrays are declared once, and are checked, written and documented by the declaration. A checksum in the first
block of the file, which HDF5 reserves for its user and every HDF5 library passes over, reveals any later change: a
damaged file can end the process inside libhdf5, and one changed bit of a coefficient changes predictions.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np
from numpy.typing import NDArray

from cacore import __version__
from cacore.comm import Communicator, require_same
from cacore.data.encoding import Columns
from cacore.data.rows import Rows, csr, in_memory, is_csr, is_sparse
from cacore.data.standardize import SCORES, Standardizer
from cacore.errors import InputError, OutputError
from cacore.files import check_writable, replacing
from cacore.io import training_rows
from cacore.io.native import created, is_link, lies_here, write_rows
from cacore.io.stream import BLOCK, MARK, check_seal, seal, unchanging

# Sizes that are constant or computed from other sizes.
DERIVED: dict[str, Callable[[dict[str, int]], int]] = {
    "1": lambda sizes: 1,
    "7": lambda sizes: 7,
    "1001": lambda sizes: len(SCORES),
    "k - 1": lambda sizes: sizes["k"] - 1,
    "m (m + 1) / 2": lambda sizes: sizes["m"] * (sizes["m"] + 1) // 2,
    "M (M + 1) / 2": lambda sizes: sizes["M"] * (sizes["M"] + 1) // 2,
    "k (k - 1) / 2": lambda sizes: sizes["k"] * (sizes["k"] - 1) // 2,
}
TYPES = {"int64": (np.int64,), "float64": (np.float64,), "real": (np.float64, np.float32)}


@dataclass(frozen=True)
class Array:
    """Declaration of an array in a layout.

    Attributes
    ----------
    type : {"int64", "float64", "real"}
        "real": float64 or float32.
    shape : tuple of str
        One name per dimension: a letter, which stands for the same size in all arrays, or one of :data:`DERIVED`.
    meaning : str
        Description for the documentation.
    csr : bool
        True if the array may be CSR rows: a group of data, indices and indptr, with the attribute shape.
    optional : bool
    many : str
        Letter of an additional last dimension, which exists unless its size is 0; "" if there is never one.
    """

    type: str
    shape: tuple[str, ...]
    meaning: str
    csr: bool = False
    optional: bool = False
    many: str = ""


Layout = Mapping[str, Array]


def check(layout: Layout, arrays: Mapping[str, Rows | None], sizes: dict[str, int], where: str = "") -> None:
    """Check the names, types and shapes of arrays against a layout; unknown sizes are taken from the first array.

    Raises
    ------
    InputError
        An array does not match. The message begins with `where` and the array's name.
    """
    for name, declared in layout.items():
        values = arrays.get(name)
        if values is None:
            if not declared.optional:
                raise InputError(f"{where}without {name}")
            continue
        if values.dtype not in TYPES[declared.type] or (is_sparse(values) and not declared.csr):
            raise InputError(f"{where}{name} has type {values.dtype}; {declared.type} is needed")
        shape = (*declared.shape, declared.many) if declared.many and sizes[declared.many] else declared.shape
        if len(values.shape) != len(shape):
            raise InputError(f"{where}{name} has shape {values.shape}; ({', '.join(shape)}) is needed")
        for size, length in zip(shape, values.shape, strict=True):
            need = DERIVED[size](sizes) if size in DERIVED else sizes.setdefault(size, length)
            if length != need:
                raise InputError(f"{where}{name} has shape {values.shape}; {size} is {need}")
    if unknown := set(arrays) - set(layout):
        raise InputError(f"{where}{min(unknown)} is not an array of this kind of model")


def rows(layout: Layout, folder: str = "") -> list[str]:
    """Markdown table rows that document a layout."""
    lines = []
    for name, declared in layout.items():
        form = f"{declared.type}{', dense or CSR' if declared.csr else ''}"
        note = " (optional)" if declared.optional else ""
        shape = f"({', '.join(declared.shape)})"
        if declared.many:
            shape += f" or ({', '.join((*declared.shape, declared.many))})"
        lines.append(f"| `{folder}{name}`{note} | {form} | {shape} | {declared.meaning} |")
    return lines


STANDARDIZER: dict[str, Any] = {
    "mean": Array("float64", ("d",), "mean of the training rows, subtracted from each row", optional=True),
    "scale": Array("float64", ("d",), "positive scale by which each feature is then divided", optional=True),
    "level_features": Array(
        "int64", ("d",), "columns that replace the features first: the feature of each", optional=True
    ),
    "level_values": Array(
        "float64", ("d",), "value at which such a column is 1, if its feature has several columns", optional=True
    ),
    "quantiles": Array("float64", ("1001", "d"), "quantiles that map features to normal scores", optional=True),
    "metric_weights": Array("float64", ("d",), "diagonal metric: weights that then multiply each row", optional=True),
    "metric_root": Array(
        "float64", ("d", "d"), "full metric: its root, which multiplies each row instead", optional=True
    ),
}


SCHEMA = "cakernels-model/1"
_PIECE = 30_000  # letters per attribute; JSON has ASCII alone
_LONG = ("columns", training_rows.NAME)  # entries of a model's `source` with attributes of their own

Model = TypeVar("Model")

# Exceptions raised when a damaged file is read, or a model is built from it.
_DAMAGE = (OSError, ValueError, TypeError, RuntimeError, AttributeError, IndexError, OverflowError)

Part = dict[str, Rows]


@dataclass
class StoredParts:
    """Parts of a model that this rank has read, by number, and the owner rank of every part."""

    held: dict[int, Any]
    owners: NDArray[np.int64]


# Builds a model from its attributes, its shared arrays and this rank's parts.
Maker = Callable[[dict[str, Any], dict[str, Rows], StoredParts], Model]


def save(
    path: str | Path,
    family: str,
    attributes: dict[str, Any],
    shared: dict[str, Rows],
    parts: dict[int, Part],
    owners: NDArray[np.int64],
    comm: Communicator,
) -> None:
    """Write a model whose parts are distributed over the ranks; collective, rank 0 writes the file.

    Parameters
    ----------
    path : path
    family : str
        "krr", "svm", "svr" or "asygcd".
    attributes : dict
        Values that JSON can hold.
    shared : dict of str to (ndarray or CSR)
        Arrays that are the same on all ranks.
    parts : dict of int to (dict of str to ndarray or CSR)
        This rank's parts, all with the same array names.
    owners : ndarray of int64, shape (P,)
        Rank of each part.
    comm : Communicator
        Parts are sent to rank 0 one by one, so it holds at most one additional part.

    Raises
    ------
    InputError, OutputError
        On all ranks: no file can be written at `path`, or writing failed.
    """
    path = Path(path)
    error: InputError | OutputError | None = None
    with comm.uncounted():
        require_same({"path": path}, comm)
    with comm.phase("write"):
        with comm.agreed():
            if comm.rank == 0:
                check_writable(path)
        if comm.rank == 0:
            travelling = _in_order(parts, owners, comm)
            try:
                _write(path, family, attributes, shared, travelling)
            except (InputError, OutputError) as caught:
                error = caught
            for _ in travelling:
                pass  # receive the remaining parts, which the other ranks send even if writing failed
        else:
            for part in np.flatnonzero(owners == comm.rank).tolist():
                _send(parts[part], comm)
        with comm.agreed():
            if error is not None:
                raise error


def _in_order(parts: dict[int, Part], owners: NDArray[np.int64], comm: Communicator) -> Iterator[Part]:
    """Yield all parts on rank 0 in order, receiving one at a time from the other ranks."""
    for part, owner in enumerate(owners.tolist()):
        yield parts[part] if owner == 0 else _receive(owner, comm)


def _write(path: Path, family: str, attributes: dict[str, Any], shared: dict[str, Rows], parts: Iterator[Part]) -> None:
    with replacing(path) as temporary:
        with created(temporary, userblock_size=BLOCK) as file:
            file.attrs["schema"] = SCHEMA
            file.attrs["family"] = family
            file.attrs["version"], file.attrs["date"] = __version__, _today()
            for name, text in _texts(attributes):
                file.attrs[name] = text
            for name, values in shared.items():
                write_rows(file, name, values)
            for part, fields in enumerate(parts):
                group = file.create_group(f"parts/{part:06d}")
                for name, values in fields.items():
                    write_rows(group, name, in_memory(values))
        seal(temporary)


def _today() -> str:
    """The date of SOURCE_DATE_EPOCH, by which programs agree to write the same bytes again, or of now."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH", "")
    return time.strftime("%Y-%m-%d", time.gmtime(int(seconds) if seconds.isdecimal() else None))


@dataclass(frozen=True)
class Contents:
    """A model file without its arrays.

    Attributes
    ----------
    family : str
    saved : str
        Date and version; empty if the file is of a version that did not write them.
    attributes : dict
    columns : Columns
    training : dict
        Numbers of `rows` and `features`, and the `error` on other rows, as far as they are known.
    parts : int
    """

    family: str
    saved: str
    attributes: dict[str, Any]
    columns: Columns
    training: dict[str, Any]
    parts: int

    @classmethod
    def of(cls, path: Path) -> Contents:
        """Read the attributes of a model file; an InputError if it is damaged or none."""
        _check_file(path)
        try:
            with h5py.File(path, "r") as file:
                require(file.attrs.get("schema") == SCHEMA, "not of this package")
                attributes, date = _attributes(file), file.attrs.get("date")
                saved = f"{date}, by cakernels {file.attrs.get('version')}" if date else ""
                columns, training = Columns.of_source(attributes["source"]), attributes["source"].get("training", {})
                require(
                    {"score", "value"} <= set(training.get("error", ("score", "value"))), "an error without a value"
                )
                parts = len(_items(file["parts"]))
                return cls(str(file.attrs["family"]), saved, attributes, columns, training, parts)
        except (KeyError, *_DAMAGE, InputError) as error:
            raise InputError(f"{path}: not a model file, or a damaged one ({error})") from error


def is_model(path: Path) -> bool:
    """True if the file begins as a model file does, or is an HDF5 file that says so."""
    if not path.is_file():  # to read a pipe would empty it
        return False
    try:
        with path.open("rb") as start:
            if start.read(len(MARK)) == MARK:
                return True
        with h5py.File(path, "r") as file:
            return bool(file.attrs.get("schema") == SCHEMA)
    except OSError:  # it cannot be read, or is no HDF5 file
        return False


def load(path: str | Path, makers: Mapping[str, Maker[Model]], comm: Communicator) -> Model:
    """Read a model, built by its family's maker from attributes, shared arrays and this rank's parts; collective.

    Each rank reads only its own parts, which are distributed evenly. Rank 0 also reads the whole file once to verify
    its checksum.

    Raises
    ------
    InputError
        The file is missing, damaged, not a model, or of a family that has no maker.
    """
    path = Path(path)
    with comm.phase("read"), unchanging(path, comm, "model"):
        with comm.agreed():
            if comm.rank == 0:
                _check_file(path)
        with comm.agreed():
            return _loaded(path, makers, comm)


def metric_of(path: Path) -> NDArray[np.float64]:
    """The metric of a model, shape (d,) or (d, d); an InputError for a model without one, and for other files."""
    from cacore.data.metric import matrix  # loads scipy.linalg, which other readers of models do not need

    Contents.of(path)  # raises the errors of other and of damaged files
    with h5py.File(path, "r") as file:
        items = _items(file)
        for name in ("metric_weights", "metric_root"):
            if name in items:
                return matrix(_array(items[name]).astype(np.float64))
    raise InputError(f"{path}: this model has learned no metric that helps: train it with --metric on other rows")


def family_of(path: str | Path, comm: Communicator) -> str:
    """Family of the model in a file; collective, rank 0 reads it. :func:`load` checks the rest of the file.

    Raises
    ------
    InputError
        The file is missing, damaged, or not a model.
    """
    path, family = Path(path), ""
    with comm.phase("read"), comm.agreed():
        if comm.rank == 0:
            _check_file(path)
            try:
                with h5py.File(path, "r") as file:
                    family = str(file.attrs.get("family", "")) if file.attrs.get("schema") == SCHEMA else ""
            except _DAMAGE as error:
                raise InputError(f"{path}: not a model file, or a damaged one ({error})") from error
            if not family:
                raise InputError(f"{path}: not a model file of this package")
    return bytes(comm.bcast(np.frombuffer(family.encode(), np.uint8) if comm.rank == 0 else None)).decode()


def _check_file(path: Path) -> None:
    """Raise an InputError if the file is missing or damaged, before libhdf5 opens it."""
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such model file")
    try:
        check_seal(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def _loaded(path: Path, makers: Mapping[str, Maker[Model]], comm: Communicator) -> Model:
    try:
        with h5py.File(path, "r") as file:
            if file.attrs.get("schema") != SCHEMA:
                raise InputError(f"{path}: not a model file of this package")
            family = str(file.attrs["family"])
            if family not in makers:
                raise InputError(f"{path}: a model of the {family} family; {' or '.join(makers)} is needed")
            attributes = _attributes(file)
            items = _items(file)
            groups = _items(items.pop("parts"))
            require(sorted(groups) == [f"{p:06d}" for p in range(len(groups))], "its parts are not numbered")
            shared = {name: _read(item) for name, item in items.items()}
            owners = np.arange(len(groups)) % comm.size
            parts = {
                p: {name: _read(item) for name, item in _items(groups[f"{p:06d}"]).items()}
                for p in np.flatnonzero(owners == comm.rank).tolist()
            }
        return makers[family](attributes, shared, StoredParts(parts, owners))
    except KeyError as error:
        raise InputError(f"{path}: a damaged model file, without {error}") from error
    except (*_DAMAGE, InputError) as error:
        if str(error).startswith(f"{path}: "):
            raise
        raise InputError(f"{path}: not a model file, or a damaged one ({error})") from error


def _texts(attributes: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The file's attributes of text: the model's attributes, and the long entries of its source in pieces.

    HDF5 holds at most 64 KiB in an attribute, which the names of many columns exceed.
    """
    source = dict(attributes.get("source", {}))
    texts = {name: json.dumps(source.pop(name)) for name in _LONG if name in source}
    yield "attributes", json.dumps({**attributes, "source": source} if texts else attributes)
    for name, text in texts.items():
        for piece, lo in enumerate(range(0, len(text), _PIECE)):
            yield f"{name} {piece}", text[lo : lo + _PIECE]


def _attributes(file: h5py.File) -> dict[str, Any]:
    """The model's attributes, with the long entries of its `source`, if it has any."""
    attributes: dict[str, Any] = json.loads(file.attrs["attributes"])
    require(isinstance(attributes, dict), "its attributes are not an object")
    for name in _LONG:
        pieces: list[str] = []
        while f"{name} {len(pieces)}" in file.attrs:
            pieces.append(str(file.attrs[f"{name} {len(pieces)}"]))
        if pieces:
            require(isinstance(attributes.get("source"), dict), "its source is not an object")
            attributes["source"][name] = json.loads("".join(pieces))
            require(isinstance(attributes["source"][name], dict), f"its {name} are not an object")
    return attributes


def require(true: object, what: str) -> None:
    """Raise an InputError unless `true` holds; for inconsistent model files."""
    if not true:
        raise InputError(what)


def is_real(value: object) -> bool:
    """True if a value from JSON is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_rows(dtype: object, source: object, standardizer: Standardizer | None, d: int) -> None:
    """Check what a model file says about its training rows of `d` features: type, source and standardisation."""
    require(dtype in ("float32", "float64"), f"dtype {dtype!r}")
    if not isinstance(source, dict):
        raise InputError("its source is not an object")
    require(len(Columns.of_source(source).features) in (0, d), f"names of columns that are not {d}")
    if standardizer is not None:
        standardizer.check()


def _items(group: Any) -> dict[str, Any]:
    """Members of a group. Links are refused, since they would let a model file read any other file."""
    require(isinstance(group, h5py.Group), "it has an array in place of a group")
    for name in group:
        require(not is_link(group, name), f"{group.name}/{name} is a link")
    return dict(group.items())


def _read(item: h5py.Dataset | h5py.Group) -> Rows:
    if isinstance(item, h5py.Dataset):
        return _array(item)
    fields = _items(item)
    data, indices, indptr = (_array(fields[name]) for name in ("data", "indices", "indptr"))
    shape = tuple(np.asarray(item.attrs["shape"]).tolist())
    require(is_csr(data, indices, indptr, shape), f"{item.name} is not a valid CSR matrix")
    return csr(data, indices, indptr, shape)


def _array(item: Any) -> NDArray[Any]:
    """Read an array of finite numbers, after checking that the file itself stores as many as the array claims."""
    require(isinstance(item, h5py.Dataset) and item.dtype.kind in "biuf", f"{item.name} is not an array of numbers")
    here = lies_here(item) and item.id.get_storage_size() == item.nbytes
    require(here, f"{item.name} is stored in another file, or is incomplete")
    values = np.asarray(item)
    require(np.isfinite(values).all(), f"{item.name} has a number that is not finite")
    return values


def _send(fields: Part, comm: Communicator) -> None:
    fields = {name: in_memory(values) for name, values in fields.items()}
    names = json.dumps([[name, list(v.shape) if is_sparse(v) else None] for name, v in fields.items()])
    comm.send(np.frombuffer(names.encode(), np.uint8), 0)
    for values in fields.values():
        for array in (values.data, values.indices, values.indptr) if is_sparse(values) else (values,):
            comm.send(np.asarray(array), 0)


def _receive(source: int, comm: Communicator) -> Part:
    fields: Part = {}
    for name, shape in json.loads(comm.recv(source).tobytes().decode()):
        if shape is None:
            fields[name] = comm.recv(source)
        else:
            data, indices, indptr = (comm.recv(source) for _ in range(3))
            fields[name] = csr(data, indices, indptr, tuple(shape))
    return fields
