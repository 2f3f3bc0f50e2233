"""Detection of file formats, and reading of all formats but HDF5."""

from __future__ import annotations

from pathlib import Path

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.io import stream
from cacore.io.arrays import is_zarr
from cacore.io.stream import MARK
from cacore.io.table import RowsRequest, Table, Tabular
from cacore.io.words import OneClass

TABLES = ("csv", "tsv", "npy", "parquet", "arrow")
MIXED = ("csv", "tsv", "parquet", "arrow")  # whose columns may hold anything
_BINARY = (
    (b"\x89HDF\r\n\x1a\n", "hdf5"), (b"PK\x03\x04", "npz"), (b"\x93NUMPY", "npy"), (b"PAR1", "parquet"),
    (b"ARROW1", "arrow"),
)  # fmt: skip
_HEAD = 1 << 16  # bytes by which a format is detected


def kind(path: Path) -> str:
    """Format of a file: "hdf5", "npz", "libsvm" or one of :data:`TABLES`; any other or empty file is an InputError."""
    if is_zarr(path):
        raise InputError(f"{path}: a Zarr store: name its arrays with --input and --output; cakernels info lists them")
    stream.check_regular(path)
    try:
        with stream.open_bytes(path) as opened:
            head = opened.read(_HEAD)
        compressed = stream.is_compressed(path)
    except stream.DAMAGE as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    if not head.strip():
        raise InputError(f"{path}: the file is empty")
    form = next((form for magic, form in _BINARY if head.startswith(magic)), None)
    if form not in (None, "npz") and compressed:
        name = {"hdf5": "HDF5", "npy": "NPY"}.get(str(form), str(form).capitalize())
        raise InputError(f"{path}: {name} is read by blocks, which a compressed file does not allow: decompress it")
    if form is not None:
        return form
    return _text_kind(path, head)


def _text_kind(path: Path, head: bytes) -> str:
    if head.startswith(MARK):
        raise InputError(f"{path}: a model that this package saved; name a file that holds rows")
    if b"\x00" in head:
        raise InputError(f"{path}: not HDF5, NPZ, NPY, Parquet, Arrow, nor CSV, TSV or LIBSVM text (in UTF-8)")
    stem = [suffix for suffix in path.suffixes if suffix not in (".gz", ".bz2", ".xz")]
    if stem and stem[-1] in (".csv", ".tsv"):
        return stem[-1][1:]
    rows = (line.split(b"#")[0].strip() for line in head.splitlines())
    line = next((row for row in rows if row), None)
    if line is None:
        raise InputError(f"{path}: comments and no rows")
    if b"," in line or (b"\t" in line and b":" not in line):
        return "csv" if b"," in line else "tsv"
    # A line with a single number is a LIBSVM row of zeros with its target.
    return "libsvm" if b":" in line or len(line.split()) == 1 else "csv"


def parse(path: Path, request: RowsRequest = RowsRequest()) -> dict[str, Table]:  # noqa: B008  it is frozen
    """Read all rows of a file that is not HDF5: "train", and "test" if the file has both; numbers keep their type."""
    form = kind(path)
    if form == "npz":
        from cacore.io import npz

        check_target(path, request.target, form)
        with stream.reading(path):
            tables = npz.parse(path, request.limit)
    else:
        tables = {"train": table(path, form, request, Communicator())}
    if form in TABLES or request.binarize is None:
        return tables
    for rows in tables.values():
        if rows.y is not None:
            signs = OneClass(request.binarize)
            rows.y = signs.signs(rows.y, rows.where)
            signs.check(rows.where)
    return tables


def table(path: Path, form: str, request: RowsRequest, comm: Communicator) -> Table:
    """Read this rank's even block of the rows of a LIBSVM file or one of :data:`TABLES`; collective.

    Each rank reads and parses its part of plain text. Compressed text is decompressed by rank 0 and parsed by the
    others. Other formats, and text with quotes, are read by rank 0, which distributes the rows. No rank holds more than
    its own rows.
    """
    with comm.agreed():
        check_target(path, request.target, form)
    if form == "libsvm":
        from cacore.io import libsvm

        return libsvm.parse(path, request.n_features, request.limit, comm)
    with comm.agreed(), stream.reading(path):
        read = tabular(path, form, request)
    return read.table(comm)


def tabular(path: Path, form: str, request: RowsRequest) -> Tabular:
    """Reader of a file of one of the formats in :data:`TABLES`; its module is imported only now."""
    if form in ("csv", "tsv"):
        from cacore.io.delimited import Delimited

        return Delimited(path, form, request)
    if form == "npy":
        from cacore.io.npz import Npy

        return Npy(path, request)
    from cacore.io.arrow import Arrow

    return Arrow(path, form, request)


def check_target(path: Path, target: str | None, form: str) -> None:
    """Raise an InputError if ``--target`` is blank, or if the file's format determines the target itself."""
    if target is not None and not target.strip():
        raise InputError(f"{path}: --target {target!r}: give the name or the number of a column")
    if target is not None and form in ("npz", "libsvm"):
        raise InputError(f"{path}: --target {target} is for files with columns; this one names its target itself")
