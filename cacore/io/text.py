"""LIBSVM, CSV, TSV and NPZ, plain or compressed; numpy and scikit-learn do the parsing."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import re
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows
from cacore.errors import InputError
from cacore.io.table import Table

_OPENERS: tuple[tuple[bytes, Callable[..., Any]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\x00", lzma.open),
)
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_DENSE_FROM = 1 / 3  # share of nonzeros from which a LIBSVM file becomes a dense array


def open_bytes(path: Path) -> BinaryIO:
    """The file's bytes, decompressed; its first bytes say what it is, not its name."""
    with path.open("rb") as raw:
        magic = raw.read(8)
    for start, opener in _OPENERS:
        if magic.startswith(start):
            stream: BinaryIO = opener(path, "rb")
            return stream
    return path.open("rb")


def open_text(path: Path) -> io.TextIOWrapper:
    """The file's lines, decompressed, without a byte order mark."""
    return io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", errors="replace")


def _line_of(path: Path, first: int, comment: str, row: int) -> int:
    """Line of a row: blank lines, and those with a comment alone, are none."""
    with open_text(path) as lines:
        for count, line in enumerate(lines, 1):
            if count >= first and (line.split(comment)[0] if comment else line).strip():
                if row == 0:
                    return count
                row -= 1
    return 0


def kind(path: Path) -> str:
    """One of "hdf5", "npz", "csv", "tsv", "libsvm"; a file that is none of them or has nothing is an InputError."""
    try:
        with open_bytes(path) as stream:
            head = stream.read(1 << 16)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    if not head.strip():
        raise InputError(f"{path}: the file is empty")
    if head.startswith(HDF5_MAGIC):
        return "hdf5"
    if head.startswith(b"PK\x03\x04"):
        return "npz"
    return _text_kind(path, head)


def _text_kind(path: Path, head: bytes) -> str:
    stem = [suffix for suffix in path.suffixes if suffix not in (".gz", ".bz2", ".xz")]
    if stem and stem[-1] in (".csv", ".tsv"):
        return stem[-1][1:]
    if b"\x00" in head:
        raise InputError(f"{path}: not HDF5, NPZ, CSV, TSV or LIBSVM text")
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
) -> dict[str, Table]:
    """All rows of a file that is not HDF5: "train", and "test" where the file has both.

    The class `binarize` becomes +1 and the others -1; the other parameters are those of :func:`cacore.io.load`.
    """
    form = kind(path)
    if target is not None and form in ("npz", "libsvm"):
        raise InputError(f"{path}: --target {target} is for CSV and TSV files; this one names its target itself")
    try:
        if form == "npz":
            tables = _parse_npz(path)
        elif form == "libsvm":
            tables = {"train": _parse_libsvm(path, n_features)}
        else:
            tables = {
                "train": _parse_csv(path, "," if form == "csv" else "\t", target, n_features, binarize, usual_target)
            }
    except (OSError, EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: damaged or truncated ({error}); copy it again") from error
    for table in tables.values():
        if table.y is not None and binarize is not None:
            table.y = _binarized(table.y, binarize, table.where)
    return tables


def _binarized(y: NDArray[Any], positive: str, where: str) -> NDArray[np.float64]:
    number = _number(positive)
    if y.dtype.kind == "U":
        hit = np.array([word == positive or (number is not None and _number(word) == number) for word in y.tolist()])
    else:
        hit = np.zeros(len(y), bool) if number is None else y == number
    if not np.any(hit):
        raise InputError(f"{where}: --binarize {positive}: no row has this class; there are {_some(np.unique(y))}")
    return np.where(hit, 1.0, -1.0)


def _some(values: Any, most: int = 12) -> str:
    words = [str(v) for v in values[:most]]
    return ", ".join(words) + (", ..." if len(values) > most else "")


# -- LIBSVM ------------------------------------------------------------------------------------


def _parse_libsvm(path: Path, n_features: int | None) -> Table:
    from sklearn.datasets import load_svmlight_file

    try:
        with open_bytes(path) as stream:
            X, y = load_svmlight_file(stream, dtype=np.float64, zero_based=True)
    except (ValueError, OverflowError) as error:
        raise _libsvm_error(path, error) from error
    base = int(X.nnz > 0 and X.indices.min() > 0)
    X = X[:, base:]
    if n_features is not None and X.shape[1] < n_features:
        X.resize(X.shape[0], n_features)  # the last features are 0 in all these rows
    dense = X.nnz >= _DENSE_FROM * X.shape[0] * X.shape[1]
    X.sort_indices()
    return Table(X.toarray() if dense else X, y, str(path), line_of=partial(_line_of, path, 1, "#"), base=base)


def _libsvm_error(path: Path, error: Exception) -> InputError:
    """scikit-learn does not say where: look for the line."""
    number = r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf|nan)"
    good = re.compile(rf"{number}(,{number})*$"), re.compile(rf"(qid:\d+|\d+:{number})$", re.IGNORECASE)
    with open_text(path) as lines:
        for count, line in enumerate(lines, 1):
            last = -1
            for place, token in enumerate(line.split("#")[0].split()):
                if not good[place > 0].match(token):
                    form = "index:value" if place else "the target"
                    return InputError(f"{path}: line {count}: {token!r} is not {form}")
                if place and not token.startswith("qid"):
                    index = int(token.split(":")[0])
                    if index <= last:
                        return InputError(f"{path}: line {count}: {token!r}: the indices must ascend")
                    last = index
    return InputError(f"{path}: not LIBSVM text ({error})")


# -- CSV and TSV -------------------------------------------------------------------------------


def _parse_csv(
    path: Path,
    delimiter: str,
    target: str | None,
    n_features: int | None,
    binarize: str | None,
    usual_target: str | None,
) -> Table:
    names, first_line, columns = _layout(path, delimiter)
    chosen: int | None = None
    if target is not None or columns != n_features:
        chosen = _column(target or usual_target or "-1", names, columns, path)
    features = [j for j in range(columns) if j != chosen]
    if not features:
        raise InputError(f"{path}: no feature columns beside the target")
    line_of = partial(_line_of, path, first_line, "")
    read = _Reader(path, delimiter, first_line, names)
    if chosen is None:
        return Table(read.numbers(), None, str(path), line_of=line_of, names=names)
    kept = tuple(names[j] for j in features) if names else ()
    if binarize is not None:
        both, y = read.numbers_and_words(chosen)
    else:
        both = read.numbers()
        y = both[:, chosen].copy()
    return Table(np.delete(both, chosen, axis=1), y, str(path), line_of=line_of, names=kept)


@dataclass(frozen=True)
class _Reader:
    """numpy.loadtxt on a compressed or plain file, with messages that name the line."""

    path: Path
    delimiter: str
    first_line: int
    names: tuple[str, ...]

    def numbers(self, **options: Any) -> NDArray[np.float64]:
        try:
            with open_text(self.path) as lines:
                return np.loadtxt(
                    lines, np.float64, comments=None, delimiter=self.delimiter, skiprows=self.first_line - 1, ndmin=2,
                    quotechar='"', **options,
                )  # fmt: skip
        except ValueError as error:
            raise self._explain(str(error)) from error

    def numbers_and_words(self, column: int) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """All columns, and the words of one, whose numbers mean nothing."""
        known: dict[str, float] = {}
        code = {column: lambda word: known.setdefault(word.strip(), float(len(known)))}
        both = self.numbers(converters=code, encoding=None)
        return both, np.array(list(known))[both[:, column].astype(np.int64)]

    def _explain(self, message: str) -> InputError:
        bad = re.search(r"could not convert string (.*) to float64 at row (\d+), column (\d+)", message)
        if bad:
            column = int(bad[3])
            name = f" ({self.names[column - 1]})" if column <= len(self.names) else ""
            line = _line_of(self.path, self.first_line, "", int(bad[2]))
            return InputError(f"{self.path}: line {line}, column {column - 1}{name}: {bad[1]} is not a number")
        ragged = re.search(r"number of columns changed from (\d+) to (\d+) at row (\d+)", message)
        if ragged:
            line = _line_of(self.path, self.first_line, "", int(ragged[3]) - 1)
            return InputError(f"{self.path}: line {line}: {ragged[2]} columns, the lines before have {ragged[1]}")
        return InputError(f"{self.path}: {message}")


def _layout(path: Path, delimiter: str) -> tuple[tuple[str, ...], int, int]:
    """Column names, the number of the first line of data, from 1, and how many columns it has."""
    names: tuple[str, ...] = ()
    first_line = 1
    with open_text(path) as lines:
        for count, line in enumerate(lines, 1):
            if not line.strip():
                continue
            words = [word.strip(" \"'\n\r#") for word in line.split(delimiter)]
            if names or any(_number(word) is not None for word in words):
                return names, first_line if names else count, len(words)
            names, first_line = tuple(words), count + 1
    raise InputError(f"{path}: {'a header and no rows' if names else 'the file is empty'}")


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _column(target: str, names: tuple[str, ...], columns: int, path: Path) -> int:
    if target in names:
        return names.index(target)
    try:
        column = int(target)
    except ValueError:
        known = f"the columns are {_some(names)}" if names else f"the file has no header, give a number below {columns}"
        raise InputError(f"{path}: no target column {target!r}; {known}") from None
    if not -columns <= column < columns:
        raise InputError(f"{path}: no target column {column}; there are {columns}, numbered from 0")
    return column % columns


# -- NPZ ---------------------------------------------------------------------------------------


def _parse_npz(path: Path) -> dict[str, Table]:
    try:
        with open_bytes(path) as stream, np.load(io.BytesIO(stream.read()), allow_pickle=False) as archive:
            arrays = {name.lower(): archive[name] for name in archive.files}
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    tables = {}
    for split, x_name, y_name in (("train", "x_train", "y_train"), ("test", "x_test", "y_test"), ("train", "x", "y")):
        if x_name in arrays and split not in tables:
            X, y = _matrix(arrays[x_name], path, x_name), _target(arrays.get(y_name), path, y_name)
            tables[split] = Table(X, y, f"{path} ({x_name})")
    if not tables:
        raise InputError(f"{path}: no array x_train or x; there are {_some(sorted(arrays))}")
    return tables


def _matrix(array: NDArray[Any], path: Path, name: str) -> Rows:
    if array.ndim < 2 or array.dtype.kind not in "biuf":
        raise InputError(f"{path}: {name} has shape {array.shape} and type {array.dtype}; rows of numbers are needed")
    return array.reshape(len(array), math.prod(array.shape[1:]))


def _target(array: NDArray[Any] | None, path: Path, name: str) -> NDArray[Any] | None:
    if array is not None and array.ndim == 2 and array.shape[1] == 1:
        return array[:, 0]
    if array is not None and array.ndim != 1:
        raise InputError(f"{path}: {name} has shape {array.shape}; one number a row is needed")
    return array
