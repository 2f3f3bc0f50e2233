"""Tables: rows with their targets, checks that name a wrong value's place, and the base of all readers of tables.

CSV, Parquet, Arrow and NPY are read block by block.
"""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.encoding import UNNAMED, Columns, clean
from cacore.data.resolution import ColumnLabels, Mask, Moments, check_resolved
from cacore.data.rows import Rows, block_bounds, first_nonfinite
from cacore.errors import CellError, InputError
from cacore.io.names import UNKNOWN, Expected, by_place, in_table, is_repeated, listed
from cacore.io.stream import DAMAGE, REMEDY, Dealt, OnBytesRead, Part, first_error, in_order, reading
from cacore.io.words import FILL, LabelColumn, Words, first_values
from cacore.machine import memory

if TYPE_CHECKING:
    from cacore.io.scanners import Parsers

_DOUBLE = np.dtype(np.float64)


@dataclass(frozen=True)
class Targets:
    """Kinds of targets that a run accepts.

    Attributes
    ----------
    many : bool
        True if several numbers per row are accepted.
    labels : str
        "any": labels of classes, words or numbers, whole ones exactly. "words" or "numbers": the same, of a model or
        training rows whose labels are words, or numbers. "guess": words make classes of the target. Empty: the target
        is a number.
    needed : bool
        True if training rows must have a target. If False, ``--target none`` declares that a CSV file has none, and
        rows are compared without their targets.
    remedy : str
        Remedy shown if the target is text and must be a number.
    """

    many: bool = False
    labels: Literal["", "any", "words", "numbers", "guess"] = ""
    needed: bool = True
    remedy: str = "make it +1 and -1 with cacore.io convert --binarize CLASS"

    @property
    def text(self) -> bool:
        """True if the target may be words."""
        return self.labels != ""

    def like(self, y: NDArray[Any] | None) -> Targets:
        """Targets of further rows, whose labels are words or numbers as those in `y`."""
        if not self.text or not self.needed or y is None:
            return self
        return replace(self, labels="words" if y.dtype.kind == "U" else "numbers")

    def check(self, shape: tuple[int, ...], where: str) -> None:
        """Raise an InputError if targets of this shape are not accepted."""
        if len(shape) > 1 and not (self.many and len(shape) == 2 and shape[1]):
            need = "an n x t array of targets" if self.many else "one label or target per row"
            raise InputError(f"{where}: y has shape {shape}; {need} is needed")


NUMBERS = Targets()
LABELS = Targets(labels="any")  # accepted by all classifiers
NO_TARGET = "none"  # value of --target for a file without a target


@dataclass
class Table:
    """Block of rows of a data set.

    Attributes
    ----------
    X : ndarray, CSR or StoredRows, shape (m, d)
    y : ndarray, shape (m,) or (m, t), or None
    where : str
        Name in messages: the file, and the split in it.
    first : int
        Number in the file of the first row here.
    line_of : callable or None
        For text files: function that finds the line of a row by reading the file again.
    base : int or None
        For LIBSVM rows: number of the first feature, 0 or 1.
    columns : Columns
        Names of the columns, if the file has them.
    features : int or None
        For LIBSVM rows: number of features in the file itself; further features in `X` are taken as 0.
    target : str
        For tables: name or number of the target column that was chosen, if the user did not name one.
    gaps : tuple of two str
        Description of NaN in messages, among the features and in the target; by default "nan".
    notes : list of str
        What the user should know of these rows, on rank 0.
    weights : ndarray of float64, shape (m,), or None
    numbers : ndarray of int64 or None
        Numbers in the file of all ranks' rows; None if none of the file's rows was left out.
    rounded : tuple of two ndarrays of bool, or None
        Features and targets with whole numbers that were rounded to double precision; None if that is not known.

    Examples
    --------
    >>> import numpy as np
    >>> from cacore.io import Table
    >>> rows = Table(np.array([[1.0, np.nan]]), np.array([2.0]), "rows.csv")
    >>> rows.checked()
    Traceback (most recent call last):
        ...
    cacore.errors.CellError: rows.csv: row 0, feature 1 is nan: remove the row or fill the gap, ...
    """

    X: Rows
    y: NDArray[Any] | None
    where: str
    first: int = 0
    line_of: Callable[[int], int] | None = None
    base: int | None = None
    columns: Columns = UNNAMED
    features: int | None = None
    target: str = ""
    gaps: tuple[str, str] = ("nan", "nan")
    rounded: tuple[Mask | None, Mask | None] = (None, None)
    notes: list[str] = field(default_factory=list)
    weights: NDArray[np.float64] | None = None
    numbers: NDArray[np.int64] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features, if the file has them."""
        return self.columns.features

    def checked(self, dtype: np.dtype[Any] | None = None, whole: bool = True) -> Table:
        """Check that `dtype` can hold all numbers and, for a `whole` table, that there are some; return this table.

        If not, an InputError names the file, the row (and line) and the column. Afterwards the features have a
        :func:`plain` type, and the targets are float64 unless they are text or whole numbers.
        """
        if whole:
            check_size(self.X.shape[0], self.X.shape[1], self.where)
        if self.y is not None and len(self.y) != self.X.shape[0]:
            raise InputError(f"{self.where}: {self.X.shape[0]:,} rows of features, but {len(self.y):,} targets")
        return self.check_features(plain(self.X.dtype) if dtype is None else dtype).check_finite_targets()

    def check_features(self, dtype: np.dtype[Any]) -> Table:
        """Check the features only; see :meth:`checked`."""
        nonfinite = first_nonfinite(self.X, dtype)
        if nonfinite is not None:
            row, column, value = nonfinite
            name = f" ({self.names[column]})" if column < len(self.names) else ""
            remedy = _remedy(value, dtype, FILL, self.gaps[0])
            kind = CellError if np.isnan(value) else InputError
            raise kind(f"{self.where}: {self._row(row)}, feature {column}{name} is {remedy}")
        self.X = self.X.astype(plain(self.X.dtype), copy=False)
        return self

    def check_finite_targets(self) -> Table:
        """Check the targets only; see :meth:`checked`."""
        if self.y is not None and self.y.dtype.kind in "biuf":
            nonfinite = first_nonfinite(self.y, _DOUBLE)
            if nonfinite is not None:
                row, column, value = nonfinite
                which = f"target {column}" if self.y.ndim > 1 else "the target"
                remedy = _remedy(value, _DOUBLE, "remove the row", self.gaps[1])
                raise InputError(f"{self.where}: {self._row(row)}, {which} is {remedy}")
            self.y = plain_targets(self.y)
        return self

    def check_numeric(self, remedy: str) -> None:
        """Raise an InputError if the targets are text."""
        if self.y is not None and self.y.dtype.kind not in "biuf":
            raise InputError(f"{self.where}: the target is text; {remedy}")

    def check_targets(self, wanted: Targets) -> None:
        """Raise an InputError if the targets are not of an accepted kind."""
        if not wanted.text:
            self.check_numeric(wanted.remedy)
        if self.y is not None:
            wanted.check(self.y.shape, self.where)
            if not wanted.text:
                self.y = self.y.astype(_DOUBLE, copy=False)

    def check_resolved(self, dtype: np.dtype[Any], comm: Communicator, moments: Moments | None = None) -> None:
        """Refuse training rows with a feature or a target that this precision does not resolve; collective.

        Parameters
        ----------
        dtype : dtype
        comm : Communicator
        moments : Moments, optional
            Those of rows that are in this precision already, as they were before.
        """
        (features, targets), labels = self.rounded, ColumnLabels(self.where, self.names)
        if moments is None:
            check_resolved(self.X, dtype, comm, labels, features)
        else:
            moments.check(dtype, comm, labels, features)
        if targets is not None and self.y is not None and self.y.dtype.kind == "f":  # others are labels
            y = self.y.reshape(len(self.y), -1)
            check_resolved(y, _DOUBLE, comm, ColumnLabels(self.where, self.columns.target, "target"), targets)

    def _row(self, row: int) -> str:
        row = row + self.first if self.numbers is None else int(self.numbers[row + self.first])
        if self.line_of is None:
            return f"row {row}"
        try:
            return f"row {row} (line {self.line_of(row)})"
        except (*DAMAGE, csv.Error):  # the file has been removed or written to since the row was read
            return f"row {row}"


def plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Type in which numbers of type `dtype` are kept: in native byte order, and double precision unless single."""
    return dtype.newbyteorder("=") if dtype.kind != "f" or dtype.itemsize == 4 else _DOUBLE


def plain_targets(y: NDArray[Any]) -> NDArray[Any]:
    """Targets as they are kept: text, 64-bit integers or double precision, in native byte order."""
    if y.dtype.kind == "U":
        return y
    if y.dtype.kind not in "biu":
        return y.astype(_DOUBLE, copy=False)
    return y.astype(np.uint64 if y.dtype.kind == "u" and y.dtype.itemsize == 8 else np.int64, copy=False)


def _remedy(value: float, dtype: np.dtype[Any], remedy: str, gap: str) -> str:
    """Message about a number that is not finite in `dtype`, with the remedy; `gap` describes NaN."""
    if np.isfinite(value) and dtype.itemsize < 8:
        return f"{value:g}, too large for {dtype}; use --dtype float64"
    return f"{gap if np.isnan(value) else format(value, 'g')}: {remedy}"


def check_size(n: int, d: int, where: str) -> None:
    """Raise an InputError for a table without rows or features."""
    if n <= 0 or d <= 0:
        raise InputError(f"{where}: {n} rows of {d} features; there is nothing to learn")


BLOCK = 1 << 22  # bytes of numbers per block


@dataclass(frozen=True)
class RowsRequest:
    """Request for the rows of a file: which columns are the targets, in which form, and how much memory they may take.

    Attributes
    ----------
    dtype : dtype
        Type of the features once they are loaded.
    target : str, optional
        Name or number of a CSV file's target column, or several separated by commas; default: the last column.
    n_features : int, optional
        Number of features that a model expects. A CSV file with exactly this many columns has no target, and LIBSVM
        rows may have fewer features.
    usual_target : str, optional
        Target column of a CSV file that has more columns than `n_features`, if `target` is not given.
    binarize : str, optional
        Class that becomes +1, while all others become -1.
    limit : int
        Bytes that a rank may use. A file that needs more is refused before it is read, or as soon as that is known.
    wanted : Targets
        Kinds of targets accepted.
    expected : Expected
        Columns that the file must have, matched by name if both sides have names.
    training : bool
        True if the rows, other than those of the split "test", are to be trained on: columns that `dtype` does not
        resolve are refused, see :mod:`cacore.data.resolution`.
    remedy : str
        Further remedy for rows that do not fit into `limit`: an option followed by a comma.
    held : bool
        True if all rows are kept in memory (twice while they are joined), False if only one block at a time.
    parsers : Parsers, optional
        Ranks that parse text instead of this one.
    """

    dtype: np.dtype[Any] = _DOUBLE
    target: str | None = None
    n_features: int | None = None
    usual_target: str | None = None
    binarize: str | None = None
    limit: int = 1 << 62
    wanted: Targets = NUMBERS
    expected: Expected = UNKNOWN
    training: bool = False
    remedy: str = ""
    held: bool = True
    parsers: Parsers | None = None


class Tabular(ABC):
    """Reader of the rows of a table, block by block.

    Parameters
    ----------
    path : Path
    names : tuple of str
        Column names; empty if the file has none.
    columns : int
        Number of columns.
    request : RowsRequest

    Attributes
    ----------
    features, chosen : list of int
        Numbers of the columns of the features, in their order, and of the targets; all others are left out.
    asked : bool
        True if the user named the target.
    numbers : ndarray of int64 or None
        See :class:`Table`.
    rounded : ndarray of bool, shape (columns,)
        Columns with whole numbers that were rounded to double precision, in the rows read so far.
    """

    def __init__(self, path: Path, names: tuple[str, ...], columns: int, request: RowsRequest) -> None:
        self.path, self.request, self._names = path, request, names
        target, binarize, wanted = request.target, request.binarize, request.wanted
        self.asked, self._columns = target is not None, columns
        expected_overrides = request.expected.overrides.aside
        # Numbers of the columns that are no target unless the user names them as one.
        keys = request.expected.keys(names, columns)
        self._aside = keys | {j for j, name in enumerate(names) if name in expected_overrides}
        self.rounded = np.zeros(columns, np.bool_)
        self.numbers: NDArray[np.int64] | None = None
        if request.expected.matches(names):
            user_target = request.expected.target
            none = user_target == NO_TARGET and not wanted.needed
            chosen_targets = [] if none else None if user_target is None else _chosen(user_target, path, names, columns)
            if user_target is None and is_repeated(request.expected, names):
                place = self._by_place(names, columns)
                chosen_targets = place if by_place(request.expected, names, place) else None
            self.features, self.chosen = in_table(request.expected, names, str(path), chosen_targets)
        else:
            self.chosen = self._by_place(names, columns)
            self.features = [j for j in range(columns) if j not in self.chosen and j not in keys]
        both = [
            names[j]
            for j in self.chosen
            if names and names[j] in (*expected_overrides, *request.expected.overrides.kinds)
        ]
        if both:
            raise InputError(
                f"{path}: column {listed(both)} is the target, and named by another option: drop one of them"
            )
        if not self.features:
            raise InputError(f"{path}: no feature columns other than the target")
        if len(self.chosen) > 1 and (binarize is not None or not wanted.many):
            given_target = target or request.usual_target
            raise InputError(f"{path}: --target {given_target}: {len(self.chosen)} columns, but one is needed here")
        self.words = Words() if len(self.chosen) == 1 and (binarize is not None or wanted.text) else None

    def _by_place(self, names: tuple[str, ...], columns: int) -> list[int]:
        """Numbers of the target columns: those that the user or the model names, or the last."""
        request = self.request
        target, usual, n_features = request.target, request.usual_target, request.n_features
        there = [j for j in range(columns) if j not in self._aside]
        if not request.wanted.needed:
            n_features = len(there) if target == NO_TARGET and n_features is None else n_features
            target, usual = (None if name == NO_TARGET else name for name in (target, usual))
        if target is None and len(there) == n_features:
            return []
        last = there[-1] - columns if there else -1
        return _chosen(target or usual or str(last), self.path, names, columns)

    @property
    def columns(self) -> Columns:
        """Names of the features and targets; none if the file has none."""
        names = self._names
        if not names:
            return Columns()
        return Columns(tuple(names[j] for j in self.features), tuple(names[j] for j in self.chosen), self._kinds())

    def _kinds(self) -> str:
        """Types of the features' columns, see :class:`Columns`; empty if the format has none."""
        return ""

    @property
    def target_label(self) -> str:
        """Name or number of the target column, if there is one and the user did not name it; otherwise empty."""
        if self.asked or len(self.chosen) != 1:
            return ""
        number = self.chosen[0]
        return listed([self._names[number]]) if self._names else f"column {number}"

    @property
    def step(self) -> int:
        """Number of rows read at a time."""
        return max(1, BLOCK // (8 * self._columns))

    @abstractmethod
    def parts(self, on_read: OnBytesRead | None) -> Iterator[Part]:
        """Yield features, shape (m, d), and targets, shape (m, t), block by block; text targets are given as codes."""

    def line_of(self) -> Callable[[int], int] | None:
        """Function that finds the line of a row in a text file; None for other files."""
        return None

    def blocks(self, on_read: OnBytesRead | None = None) -> Iterator[Table]:
        """Yield the rows; targets are +1 and -1 if a class was chosen, and codes if they may be text."""
        first = 0
        for X, targets in self.parts(on_read):
            block = self._table(X, targets, first)
            if block.y is not None and self.words is not None:
                codes = block.y.astype(np.int64)
                self._label_column(self.words, codes, first).refuse(self.words.gaps(), Communicator())
                if self.request.binarize is not None:
                    block.y = self.words.picked(self.request.binarize)[codes]
            yield block
            first += len(X)

    def _table(self, X: NDArray[np.float64], targets: NDArray[Any], first: int) -> Table:
        """Rows from number `first` of the file on, with one target per row or several."""
        y = None if not self.chosen else targets if len(self.chosen) > 1 else targets[:, 0]
        return Table(
            X, y, str(self.path), first, self.line_of(), columns=self.columns, target=self.target_label,
            rounded=self._rounded, numbers=self.numbers,
        )  # fmt: skip

    @property
    def _rounded(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """`rounded` of the features and of the targets; words are not rounded."""
        targets = self.rounded[self.chosen]
        return self.rounded[self.features], targets if self.words is None else np.zeros_like(targets)

    def table(self, comm: Communicator) -> Table:
        """Read this rank's even block of all rows; collective."""
        shared = self.shared(comm)
        own_codes = shared is not None
        numbers, parts = self._handed_out(comm) if shared is None else shared
        counts = [len(X) for X, _ in parts]
        empty = np.empty((0, len(self.features))), np.empty((0, len(self.chosen)))
        together = (np.concatenate(pieces) for pieces in zip(empty, *parts, strict=True))
        X, targets = parts[0] if len(parts) == 1 else together  # a single part needs no copy
        if self.words is not None:
            targets = self.words.agree(comm, own_codes)[targets.astype(np.int64)]
        self.check_class()
        parts.clear()
        X, targets = in_order(X, targets, numbers, counts, comm)
        first = block_bounds(comm.offset(len(X))[1], comm.size, comm.rank)[0]
        rows = self._table(X, targets, first)
        if rows.y is not None and self.words is not None:
            codes, binarize = rows.y.astype(np.int64), self.request.binarize
            column = self._label_column(self.words, codes, first)
            if binarize is None:
                rows.y = column.labels(self.request.wanted.labels, comm)
            else:
                column.refuse(self.words.gaps(), comm)
                rows.y = self.words.picked(binarize)[codes]
        return rows

    def _label_column(self, words: Words, codes: NDArray[np.int64], first: int) -> LabelColumn:
        """The target column as words."""
        number = self.chosen[0]
        name = f"column {number} ({self._names[number]})" if self._names else f"column {number}"
        return LabelColumn(words, codes, first, str(self.path), name, self.line_of(), self.numbers)

    def shared(self, comm: Communicator) -> tuple[list[int], list[Part]] | None:
        """Read this rank's share of the blocks, with their numbers; None if rank 0 must read all. Collective."""
        return None

    def _handed_out(self, comm: Communicator) -> tuple[list[int], list[Part]]:
        """Receive this rank's share of the blocks that rank 0 reads, with their numbers; collective."""
        copies = 2 if comm.size == 1 else 3  # rows sent, rows received, and rows in order
        if comm.size > 1:
            self.request = replace(self.request, held=False)  # rank 0 does not hold them all
        numbers: list[int] = []
        parts: list[Part] = []
        rows = 0
        dealt = Dealt(comm)
        with first_error(comm, dealt.place), reading(self.path), closing(dealt.parts(self.parts(None))) as blocks:
            for number, part in blocks:
                numbers.append(number)
                parts.append(part)
                rows += len(part[0])
                what = f"{self.path}: {rows:,} of its rows"
                memory.require(copies * 8 * self._columns * rows, self.request.limit, what, REMEDY)
        return numbers, parts

    @property
    def has_class(self) -> bool:
        """True if a row read so far has the class chosen by ``--binarize``, or if none was chosen."""
        if self.words is None or self.request.binarize is None:
            return True
        return bool((self.words.picked(self.request.binarize) > 0).any())

    def check_class(self) -> None:
        """Raise an InputError if no row has the chosen class."""
        if not self.has_class:
            classes = first_values([] if self.words is None else sorted(self.words.codes))
            raise InputError(
                f"{self.path}: --binarize {self.request.binarize}: no row has this class; the classes are {classes}"
            )

    def require(self, rows: int) -> None:
        """Raise an error if memory cannot hold this many rows (twice, if they are held) and the target's words."""
        size = (2 * 8 * self._columns * rows if self.request.held else 0) + (self.words.held if self.words else 0)
        memory.require(size, self.request.limit, f"{self.path}: reading its first {rows:,} rows", REMEDY)


def _chosen(target: str, path: Path, names: tuple[str, ...], columns: int) -> list[int]:
    """Indices of the target columns, given by name or number, or several separated by commas."""
    if "," not in target or clean(target) in names:
        return [_column(target, path, names, columns)]
    chosen = [_column(column, path, names, columns) for column in target.split(",")]
    if len(set(chosen)) < len(chosen):
        raise InputError(f"{path}: --target {target}: a column is named twice")
    return chosen


def _column(target: str, path: Path, names: tuple[str, ...], columns: int) -> int:
    named = [j for j, name in enumerate(names) if name == clean(target)]
    if len(named) == 1:
        return named[0]
    if named:
        raise InputError(
            f"{path}: --target {target}: columns {first_values(named)} have this name; give the number of one"
        )
    try:
        column = int(target)
    except ValueError:
        hint = f"the file has no header, give a number below {columns}"
        if names:
            hint = f"the columns are {listed(names)}"
        raise InputError(f"{path}: no target column {target!r}; {hint}") from None
    if not -columns <= column < columns:
        raise InputError(f"{path}: no target column {column}; the file has {columns}, numbered from 0")
    return column % columns
