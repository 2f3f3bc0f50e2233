"""CSV and TSV, some rows at a time.

Python's csv module finds the columns and their names, compiled code parses plain numbers, and numpy what is quoted.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from cacore.data.missing import is_missing
from cacore.errors import InputError
from cacore.io.delimited_scan import Cells, scan
from cacore.io.stream import REMEDY, Lines, Told, blocks_of_lines
from cacore.io.table import LABELS, Table, Targets
from cacore.io.words import ENCODE, FILL, as_number, short, some
from cacore.machine import memory, threads

_CHECK_EVERY = 1024  # lines
_BLOCK = 1 << 22  # bytes of the numbers of a block


@dataclass(frozen=True)
class _Layout:
    """The file, and what its first lines say: column names, how many columns, and where the data begin, from 1."""

    path: Path
    delimiter: str
    limit: int
    names: tuple[str, ...]
    columns: int
    first_line: int


class Delimited:
    """The rows of a file, block by block; parameters as for :func:`cacore.io.text.parse`.

    Parameters
    ----------
    form : {"csv", "tsv"}
    held : bool
        Whether all rows are held, twice while they are put together, and not those of a block alone.

    Attributes
    ----------
    names : tuple of str
        Of the features, where the file has a header.
    """

    def __init__(
        self,
        path: Path,
        form: str,
        target: str | None,
        n_features: int | None,
        binarize: str | None,
        usual_target: str | None,
        limit: int,
        wanted: Targets = LABELS,
        held: bool = True,
    ) -> None:
        self._layout = layout = _layout(path, "," if form == "csv" else "\t", limit)
        names, columns = layout.names, layout.columns
        self._chosen: list[int] = []
        if target is not None or columns != n_features:
            self._chosen = _columns(target or usual_target or "-1", layout)
        self._features = [j for j in range(columns) if j not in self._chosen]
        if not self._features:
            raise InputError(f"{path}: no feature columns beside the target")
        if len(self._chosen) > 1 and (binarize is not None or wanted.text or not wanted.many):
            count = len(self._chosen)
            raise InputError(f"{path}: --target {target or usual_target}: {count} columns, and one is needed here")
        self.names = tuple(names[j] for j in self._features) if names else ()
        self._held, self._binarize, self._remedy = held, binarize, dict.fromkeys(self._chosen, wanted.remedy)
        self._words = _Words() if self._chosen and (binarize is not None or wanted.text) else None

    def blocks(self, told: Told | None = None) -> Iterator[Table]:
        """The rows; targets are +1 and -1 where a class was chosen, and codes for :meth:`labels` where words may be."""
        first, layout = 0, self._layout
        for X, targets in self._parts(told):
            y = None
            if self._chosen:
                y = targets if len(self._chosen) > 1 else targets[:, 0]
            if y is not None and self._words is not None and self._binarize is not None:
                y = self._words.picked(self._binarize)[y.astype(np.int64)]
            yield Table(X, y, str(layout.path), first, partial(_line_of, layout), names=self.names)
            first += len(X)

    @property
    def has_class(self) -> bool:
        """Whether a row, of those read so far, is of the class that was chosen; True if none was."""
        if self._words is None or self._binarize is None:
            return True
        return bool((self._words.picked(self._binarize) > 0).any())

    def check_class(self) -> None:
        """Refuse a class that no row has had."""
        if not self.has_class:
            known = some([] if self._words is None else sorted(self._words.known))
            path = self._layout.path
            raise InputError(f"{path}: --binarize {self._binarize}: no row has this class; there are {known}")

    def table(self) -> Table:
        """All rows."""
        blocks = list(self.blocks())
        self.check_class()
        X = np.concatenate([block.X for block in blocks])
        y = None
        if self._chosen:
            y = np.concatenate([block.y for block in blocks if block.y is not None])
            if self._words is not None and self._binarize is None:
                y = self._words.labels()[y.astype(np.int64)]
        return Table(X, y, str(self._layout.path), line_of=partial(_line_of, self._layout), names=self.names)

    def _parts(self, told: Told | None) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Features and targets of some rows at a time; of a target that may be words the codes.

        Compiled code reads plain numbers. From the first block on that holds anything else, quotes or what is wrong,
        numpy reads, and knows what to say.
        """
        rows, line = 0, self._layout.first_line
        for first, cells in threads.in_order(self._scanned, self._raw(told)):
            line = first
            if cells is None:
                break
            rows += len(cells.X)
            y = cells.y
            if self._words is not None:
                y = np.array([[self._words.code(word)] for word in cells.words]).reshape(-1, 1)
            self._require(rows)
            yield cells.X, y
        else:
            return
        lines = Lines(self._layout.path, self._layout.limit, line, told)
        for both in self._numbers(lines, rows):
            yield (np.delete(both, self._chosen, axis=1) if self._chosen else both), both[:, self._chosen]

    def _raw(self, told: Told | None) -> Iterator[tuple[int, bytes]]:
        """The lines of the rows, in blocks, with the number of the first of each."""
        layout = self._layout
        for first, block in blocks_of_lines(layout.path, layout.limit, told):
            while first < layout.first_line and block:
                block = block[block.index(b"\n") + 1 :]
                first += 1
            if block:
                yield first, block

    def _scanned(self, first: int, block: bytes) -> tuple[int, Cells | None]:
        place = np.empty(self._layout.columns, np.int64)
        place[self._features] = np.arange(len(self._features))
        place[self._chosen] = -1 - np.arange(len(self._chosen))
        return first, scan(block, self._layout.delimiter, place, self._words is not None)

    def _numbers(self, lines: Lines, before: int) -> Iterator[NDArray[np.float64]]:
        """All columns, of some rows at a time, after as many rows."""
        layout = self._layout
        options: dict[str, Any] = {}
        if self._words is not None:
            options = {"converters": {self._chosen[0]: self._words.code}, "encoding": None}
        rows = self._within(lines, before)
        most = max(1, _BLOCK // (8 * layout.columns))
        try:
            for line in rows:
                _check_columns(line, lines.number, layout)
                yield np.loadtxt(
                    chain([line], rows), np.float64, comments=None, delimiter=layout.delimiter, ndmin=2, quotechar='"',
                    max_rows=most, **options,
                )  # fmt: skip
        except InputError:
            raise
        except ValueError as error:
            _explain(str(error), layout, lines.number, self._remedy)

    def _within(self, lines: Lines, before: int) -> Iterator[str]:
        """The lines, while memory holds what is held of them, and a cell whose quote is open."""
        layout, opened, cell = self._layout, 0, 0
        for line in lines:
            if '"' in line and line.count('"') % 2:
                opened, cell = 0 if opened else lines.number, 0
            if opened:
                cell += len(line)
                what = f"{layout.path}: the cell that begins in line {opened}"
                memory.require(16 * cell, layout.limit, what, "close its quote")
            if self._words or not lines.number % _CHECK_EVERY:
                self._require(before + lines.rows)
            if opened or line != "\n":  # an empty line is no row
                yield line
        self._require(before + lines.rows)

    def _require(self, rows: int) -> None:
        """Refuse what memory does not hold: the numbers twice, if they are held, and the target's words."""
        size = (2 * 8 * self._layout.columns * rows if self._held else 0) + (self._words.held if self._words else 0)
        memory.require(size, self._layout.limit, f"{self._layout.path}: to read its first {rows:,} rows", REMEDY)


def _check_columns(line: str, number: int, layout: _Layout) -> None:
    """Refuse a block's first line if its columns are not those of the blocks before, of which numpy is not told."""
    if line.count('"') % 2 == 0:
        columns = len(next(csv.reader([line], delimiter=layout.delimiter)))
        if columns != layout.columns:
            raise InputError(_ragged(f"{layout.path}: line {number}", columns, layout.columns))


def _ragged(where: str, columns: int | str, before: int | str) -> str:
    return f"{where}: {columns} columns, the lines before have {before}"


class _Words:
    """The words of the target's column, and a code for each.

    Attributes
    ----------
    held : int
        Bytes that they take.
    """

    def __init__(self) -> None:
        self._codes: dict[str, float] = {}
        self.held = 0

    @property
    def known(self) -> Iterable[str]:
        """The words."""
        return self._codes

    def code(self, word: str) -> float:
        """The code of a word."""
        word = word.strip()
        if word not in self._codes:
            self.held += 200 + 4 * len(word)
            self._codes[word] = float(len(self._codes))
        return self._codes[word]

    def labels(self) -> NDArray[Any]:
        """Of each code: numbers if all words are, and otherwise the words."""
        numbers = [as_number(word) for word in self._codes]
        return np.array(list(self._codes) if None in numbers else numbers)

    def picked(self, positive: str) -> NDArray[np.float64]:
        """+1 for the code of this class, which may be written in several ways, and -1 for the others'."""
        number = as_number(positive)
        hit = [word == positive or (number is not None and as_number(word) == number) for word in self._codes]
        return np.where(hit, 1.0, -1.0)


def _explain(message: str, layout: _Layout, line: int, remedies: dict[int, str]) -> NoReturn:
    """Say what numpy's message says, with the line that it had come to, the column's name, and what to do."""
    where = f"{layout.path}: line {line}"
    bad = re.search(r"could not convert string (.*) to float64 at row \d+, column (\d+)", message)
    if bad:
        column, word = int(bad[2]) - 1, short(bad[1])
        name = f" ({layout.names[column]})" if column < len(layout.names) else ""
        remedy = _remedy(word, remedies.get(column))
        raise InputError(f"{where}, column {column}{name}: {word} is not a number{remedy}")
    ragged = re.search(r"number of columns changed from (\d+) to (\d+)", message)
    if ragged:
        raise InputError(_ragged(where, ragged[2], ragged[1]))
    raise InputError(f"{where}: {message}")


def _remedy(word: str, of_target: str | None) -> str:
    """What to do about a word of a file, as numpy quotes it; `of_target` is the remedy for words of a target."""
    if re.fullmatch(r"'\s*[+-]?\d+,\d+\s*'", word):
        return "; write decimal points"
    if is_missing(word.strip("'")):
        return f", but missing: {FILL if of_target is None else 'remove the row'}"
    return f"; {of_target or ENCODE}"


def _layout(path: Path, delimiter: str, limit: int) -> _Layout:
    names: tuple[str, ...] = ()
    rows = csv.reader(Lines(path, limit), delimiter=delimiter)
    before = 0
    try:
        for words in rows:
            first_line, before = before + 1, rows.line_num
            if len(words) <= 1 and not "".join(words).strip():
                continue
            alone = words[0].split() if len(words) == 1 else []
            if not names and all(as_number(word) is None for word in alone or words):
                names = tuple(" ".join(word.strip(" \"'\n\r#").split()) for word in words)
                continue
            if len(alone) > 1 or any(re.search(r"\d\s*;\s*[-+.\d]", word) for word in words):
                raise InputError(
                    f"{path}: line {first_line}: columns are separated by commas (tabs in a .tsv file), not semicolons "
                    "or spaces, and numbers have a decimal point, not a comma: write it so"
                )
            if names and len(words) != len(names):
                raise InputError(
                    f"{path}: line {first_line}: {len(words)} columns, and the header has {len(names)} names"
                )
            return _Layout(path, delimiter, limit, names, len(words), first_line)
    except csv.Error as error:
        raise InputError(f"{path}: line {before + 1}: {error}; is a quote left open there?") from error
    raise InputError(f"{path}: {'a header and no rows' if names else 'the file is empty'}")


def _columns(target: str, layout: _Layout) -> list[int]:
    """The columns of a name or number, or of several with commas between them."""
    if "," not in target or " ".join(target.split()) in layout.names:
        return [_column(target, layout)]
    chosen = [_column(one, layout) for one in target.split(",")]
    if len(set(chosen)) < len(chosen):
        raise InputError(f"{layout.path}: --target {target}: a column is named twice")
    return chosen


def _column(target: str, layout: _Layout) -> int:
    path, names, columns = layout.path, layout.names, layout.columns
    named = [j for j, name in enumerate(names) if name == " ".join(target.split())]
    if len(named) == 1:
        return named[0]
    if named:
        raise InputError(f"{path}: --target {target}: columns {some(named)} have this name; give the number of one")
    try:
        column = int(target)
    except ValueError:
        known = f"the file has no header, give a number below {columns}"
        if names:
            known = "the columns are " + some([f'"{name}"' if "," in name else name for name in names])
        raise InputError(f"{path}: no target column {target!r}; {known}") from None
    if not -columns <= column < columns:
        raise InputError(f"{path}: no target column {column}; there are {columns}, numbered from 0")
    return column % columns


def _line_of(layout: _Layout, row: int) -> int:
    """Line in which a row ends; empty lines are none."""
    rows = csv.reader(Lines(layout.path, 1 << 62, layout.first_line), delimiter=layout.delimiter)
    for words in rows:
        if words:
            if row == 0:
                break
            row -= 1
    return rows.line_num + layout.first_line - 1
