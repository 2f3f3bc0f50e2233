"""Names of the arrays that hold rows, in files of any layout, as simulations write them.

An array is named as in ``group/fields[:, 0:9]``: its path in the file, and slices of its dimensions as in NumPy. The
last name of the path may be a field of a compound type. An array of one dimension is a column, one of two has rows and
columns, and of more dimensions names say which one holds the features: of ``fields(time, y, x, variable)`` those along
`variable`, and every point in time and space is a row; without `variable` the array is a column. Columns of several
arrays are put side by side, and rows of several files below each other. :mod:`cacore.io.array_files` reads them.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cacore.errors import InputError

FEATURES = "variable"  # name of the dimension along which the features lie
_STORES = ("zarr.json", ".zgroup", ".zarray")  # files of which a Zarr store has one
_NAME = re.compile(r"(?P<path>[^\[\]()]*)(\[(?P<cut>[^\[\]()]*)\])?\s*(\((?P<dims>[^\[\]()]*)\))?")


@dataclass(frozen=True)
class ArrayName:
    """Name of an array, with slices of its dimensions, and their names.

    Attributes
    ----------
    text : str
        As the user writes it.
    path : str
    cut : tuple of slice or int
        Of the first dimensions; the others are taken whole.
    dims : tuple of str
        Names of the dimensions that are left; empty if they are not named.
    """

    text: str
    path: str
    cut: tuple[slice | int, ...] = ()
    dims: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str) -> ArrayName:
        """Parse a name; an InputError says what is wrong with it."""
        match = _NAME.fullmatch(text.strip())
        try:
            if match is None:
                raise ValueError("brackets do not match")
            cut = tuple(_slice(word) for word in _words(match["cut"]))
            dims = tuple(_words(match["dims"]))
            if len(set(dims)) < len(dims):
                raise ValueError("two dimensions have the same name")
        except ValueError as error:
            raise InputError(
                f"{text!r}: {error}; write an array as in group/fields[:, 0:9], or fields(time, y, x, {FEATURES})"
            ) from error
        return cls(text.strip(), match["path"].strip().strip("/"), cut, dims)


def _words(text: str | None) -> list[str]:
    """Words between commas; none without text."""
    words = [] if text is None else [word.strip() for word in text.split(",")]
    if not all(words):
        raise ValueError("a dimension is empty")
    return words


def _slice(word: str) -> slice | int:
    """A slice with a positive step, or a whole number."""
    if ":" not in word:
        return int(word)
    bounds = [int(number) if number.strip() else None for number in word.split(":")]
    if len(bounds) > 3 or (len(bounds) == 3 and (bounds[2] is not None and bounds[2] < 1)):
        raise ValueError(f"{word}: the step of a slice must be positive")
    return slice(*bounds)


@dataclass(frozen=True)
class Arrays:
    """The arrays that hold rows: features in `inputs`, targets in `outputs`.

    Attributes
    ----------
    inputs, outputs : tuple of str
        Names of arrays (:class:`ArrayName`). Without inputs, those of the native layout, or of NPY files all columns
        but the last one, which is then the target.
    files : tuple of Path
        Files whose rows follow those of the first one.
    follow_links : bool
        Follow links and virtual arrays to other files in the folder of a file.

    Examples
    --------
    >>> import h5py, numpy as np
    >>> from cacore.comm import Communicator
    >>> from cacore.io import Arrays, load
    >>> with h5py.File("run.h5", "w") as file:
    ...     file["fields"], file["energy"] = np.arange(6.0).reshape(2, 3), np.ones(2)
    >>> rows = load("run.h5", Communicator(), arrays=Arrays(("fields[:, 1:]",), ("energy",)))["train"]
    >>> rows.X.tolist(), rows.y.tolist()
    ([[1.0, 2.0], [4.0, 5.0]], [1.0, 1.0])
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    follow_links: bool = False

    def __bool__(self) -> bool:
        return self != Arrays()

    @property
    def words(self) -> list[str]:
        """The options of a command."""
        named = [("--input", self.inputs), ("--output", self.outputs)]
        return [
            *(word for flag, arrays in named if arrays for word in (flag, ",".join(arrays))),
            *(["--follow-links"] if self.follow_links else []),
        ]

    def described(self) -> dict[str, object]:
        """Names of the arrays, for JSON."""
        return {"input": list(self.inputs), "output": list(self.outputs)}

    @property
    def remembered(self) -> dict[str, object]:
        """Entry of a model's file, by which rows to predict are read like the training rows."""
        return {"arrays": self.described()} if self.inputs else {}


NATIVE = Arrays()  # arrays of the native layout


def named(path: Path, arrays: Arrays) -> bool:
    """True for rows in named arrays, or in several files; otherwise the file's format says how they are read."""
    return bool(arrays) or is_pattern(path) or is_zarr(path)


def is_zarr(path: Path) -> bool:
    """True for the folder of a Zarr store."""
    with suppress(OSError):  # of a folder that may not be read, which reading reports
        return path.is_dir() and any((path / name).exists() for name in _STORES)
    return False


def is_pattern(path: Path) -> bool:
    """True for a pattern that is not itself the name of a file."""
    with suppress(OSError):
        return bool(re.search(r"[*?\[]", path.name)) and not path.exists()
    return False


def matching(path: Path) -> tuple[Path, ...]:
    """The files of a pattern such as ``run-*.h5``, in order; other paths, and names of files, as they are."""
    if not is_pattern(path):
        return (path,)
    files = tuple(sorted(path.parent.glob(path.name)))
    if not files:
        raise InputError(f"{path}: no file matches this pattern")
    return files
