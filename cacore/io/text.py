"""What kind of file it is, and the rows of those that are not HDF5."""

from __future__ import annotations

from pathlib import Path

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.io import seal, stream
from cacore.io.one_class import OneClass
from cacore.io.table import LABELS, Table, Targets
from cacore.io.tabular import Asked, Tabular

TABLES = ("csv", "tsv", "npy", "parquet", "arrow")
_BINARY = (
    (b"\x89HDF\r\n\x1a\n", "hdf5"), (b"PK\x03\x04", "npz"), (b"\x93NUMPY", "npy"), (b"PAR1", "parquet"),
    (b"ARROW1", "arrow"),
)  # fmt: skip
_HEAD = 1 << 16


def kind(path: Path) -> str:
    """One of "hdf5", "npz", "libsvm" and :data:`TABLES`; a file that is none or has nothing is an InputError."""
    stream.check_regular(path)
    try:
        with stream.open_bytes(path) as opened:
            head = opened.read(_HEAD)
    except stream.DAMAGE as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    if not head.strip():
        raise InputError(f"{path}: the file is empty")
    form = next((form for magic, form in _BINARY if head.startswith(magic)), None)
    if form not in (None, "npz") and stream.is_compressed(path):
        name = {"hdf5": "HDF5", "npy": "NPY"}.get(str(form), str(form).capitalize())
        raise InputError(f"{path}: {name} is read by blocks, which a compressed file does not allow: decompress it")
    if form is not None:
        return form
    return _text_kind(path, head)


def _text_kind(path: Path, head: bytes) -> str:
    if head.startswith(seal.MARK):
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
    # A lone number is a row of zeros with its target.
    return "libsvm" if b":" in line or len(line.split()) == 1 else "csv"


def parse(
    path: Path,
    target: str | None,
    n_features: int | None,
    binarize: str | None,
    usual_target: str | None = None,
    limit: int = 1 << 62,
    wanted: Targets = LABELS,
) -> dict[str, Table]:
    """All rows of a file that is not HDF5: "train", and "test" where the file has both.

    The class `binarize` becomes +1 and the others -1; the other parameters are those of :func:`cacore.io.load`.
    """
    form = kind(path)
    if form == "npz":
        from cacore.io import npz

        check_target(path, target, form)
        with stream.reading(path):
            tables = npz.parse(path, limit)
    else:
        asked = Asked(target, n_features, binarize, usual_target, limit, wanted)
        tables = {"train": table(path, form, asked, Communicator())}
    if form in TABLES or binarize is None:
        return tables
    for one in tables.values():
        if one.y is not None:
            signs = OneClass(binarize)
            one.y = signs.signs(one.y, one.where)
            signs.check(one.where)
    return tables


def table(path: Path, form: str, asked: Asked, comm: Communicator) -> Table:
    """This rank's even block of the rows of a file of text, or of another one of :data:`TABLES`; collective.

    Plain text is read and parsed by all ranks, each a part of it; compressed text is parsed by all but rank 0, which
    decompresses it. Others, and text with quotes, rank 0 reads, and hands out. No rank holds more rows than its own.
    """
    with comm.agreed():
        check_target(path, asked.target, form)
    if form == "libsvm":
        from cacore.io import libsvm

        return libsvm.parse(path, asked.n_features, asked.limit, comm)
    with comm.agreed(), stream.reading(path):
        read = tabular(path, form, asked)
    return read.table(comm)


def tabular(path: Path, form: str, asked: Asked) -> Tabular:
    """The table of a file of one of :data:`TABLES`, which is imported with what reads it."""
    if form in ("csv", "tsv"):
        from cacore.io.delimited import Delimited

        return Delimited(path, form, asked)
    if form == "npy":
        from cacore.io.npy import Npy

        return Npy(path, asked)
    from cacore.io.arrow import Arrow

    return Arrow(path, form, asked)


def check_target(path: Path, target: str | None, form: str) -> None:
    """Refuse ``--target`` where it is no column's name, or for files that name their target themselves."""
    if target is not None and not target.strip():
        raise InputError(f"{path}: --target {target!r}: give the name or the number of a column")
    if target is not None and form in ("npz", "libsvm"):
        raise InputError(f"{path}: --target {target} is for files with columns; this one names its target itself")
