"""CSV and TSV files, read in blocks of rows.

Python's csv module finds the columns and their names, compiled code parses plain numbers, and numpy parses the rest.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.containers import is_missing
from cacore.data.dataset import clean
from cacore.errors import InputError
from cacore.io.crew import ScanArguments
from cacore.io.names import listed
from cacore.io.scanners import SKIP, Cells, scan_delimited
from cacore.io.stream import Block, Lines, OnBytesRead, Part, Share, blocks_of_lines, first_error, open_bytes, reading
from cacore.io.table import ColumnRequest, Tabular
from cacore.io.words import ENCODE, FILL, Words, as_number, short
from cacore.machine import memory, threads

_CHECK_EVERY = 1024  # lines
_LOOKED_AT = 200  # lines below one of words and numbers that show whether it has names
_LINE = re.compile(rb"[^\r\n]*(\r\n|\r|\n)")


@dataclass(frozen=True)
class _Layout:
    """Path and layout of a file: column names, number of columns, and number (from 1) of the first line of data."""

    path: Path
    delimiter: str
    limit: int
    names: tuple[str, ...]
    columns: int
    first_line: int


class Delimited(Tabular):
    """Rows of a CSV or TSV file (`form`), block by block."""

    def __init__(self, path: Path, form: str, request: ColumnRequest) -> None:
        self._layout = layout = _layout(path, "," if form == "csv" else "\t", request.limit)
        super().__init__(path, layout.names, layout.columns, request)
        self._remedy = dict.fromkeys(self.chosen, request.wanted.remedy)
        if any(as_number(name) is not None for name in layout.names):
            request.expected.tell(
                f"note: {path}: the first line is taken for names of the columns: {listed(layout.names)}"
            )

    def line_of(self) -> Callable[[int], int]:
        """Function that finds the line of a row by reading the file again."""
        return partial(_line_of, self._layout)

    def parts(self, on_read: OnBytesRead | None) -> Iterator[Part]:
        """Yield features and targets in blocks of rows; a target that may be text is given as codes.

        Compiled code reads plain numbers. From the first block with anything else, such as quotes or invalid words,
        numpy reads the rest and reports errors.
        """
        rows, line = 0, self._layout.first_line
        blocks, crew = self._raw(on_read), self.request.crew
        found = crew.cells(self._scan_arguments, blocks) if crew else threads.ahead(self._scanned, blocks)
        for block, cells in found:
            line = block.first
            if cells is None:
                break
            rows += len(cells.X)
            self.require(rows)
            yield self._part(cells)
        else:
            return
        lines = Lines(self._layout.path, self._layout.limit, line, on_read)
        for both in self._numbers(lines, rows):
            self.rounded |= (np.abs(both) > 2**53).any(axis=0)  # how they were written is not known
            whole = self.features == list(range(both.shape[1]))
            yield (both if whole else both[:, self.features]), both[:, self.chosen]

    def _part(self, cells: Cells) -> Part:
        self.rounded |= cells.rounded
        if self.words is None:
            return cells.X, cells.y
        return cells.X, np.array([[self.words.code(word)] for word in cells.words]).reshape(-1, 1)

    def shared(self, comm: Communicator) -> tuple[list[int], list[Part]] | None:
        """Blocks of rows that this rank has parsed, and their numbers.

        None if any rank has found anything but plain numbers: rank 0 then reads the whole file and reports errors.
        """
        if comm.size == 1:
            return None
        layout = self._layout
        with comm.agreed(), reading(layout.path):
            share = Share(layout.path, layout.limit, comm, _header(layout))
        parts: list[Part] = []
        rows, plain = 0, True
        blocks = share.blocks()
        with first_error(comm, lambda: share.place(len(parts))), reading(layout.path), closing(blocks):
            for _, cells in threads.ahead(self._scanned, blocks):
                plain = cells is not None
                if cells is None:
                    break
                rows += len(cells.X)
                self.require(rows)
                parts.append(self._part(cells))
        if comm.all(plain):
            return share.numbers, parts
        self.words = None if self.words is None else Words()
        return None

    def _raw(self, on_read: OnBytesRead | None) -> Iterator[Block]:
        """Yield blocks of the lines of the rows, with the number of each first line; CR ends a line, too."""
        layout, first = self._layout, 1
        for _, block in blocks_of_lines(layout.path, layout.limit, on_read):
            following = first + block.count(b"\n") + block.count(b"\r") - block.count(b"\r\n")
            while first < layout.first_line and block:
                block, first = _LINE.sub(b"", block, count=1), first + 1
            if block:
                yield Block(0, first, block)
            first = following

    @property
    def _scan_arguments(self) -> ScanArguments:
        """Arguments of the scanner after the text."""
        place = np.full(self._layout.columns, SKIP, np.int64)
        place[self.features] = np.arange(len(self.features))
        place[self.chosen] = -1 - np.arange(len(self.chosen))
        return self._layout.delimiter, place, self.words is not None

    def _scanned(self, *block: Any) -> tuple[Block, Cells | None]:
        return Block(*block), scan_delimited(block[2], *self._scan_arguments)

    def _numbers(self, lines: Lines, before: int) -> Iterator[NDArray[np.float64]]:
        """Yield all columns in blocks of rows, read by numpy; `before` rows were read earlier."""
        layout = self._layout
        used = {*self.features, *self.chosen}
        converters: dict[int, Callable[[str], float]] = {j: _nothing for j in range(layout.columns) if j not in used}
        if self.words is not None:
            converters[self.chosen[0]] = self.words.code
        options: dict[str, Any] = {"converters": converters, "encoding": None} if converters else {}
        rows = self._within(lines, before)
        try:
            for line in rows:
                _check_columns(line, lines.number, layout)
                yield np.loadtxt(
                    chain([line], rows), np.float64, comments=None, delimiter=layout.delimiter, ndmin=2, quotechar='"',
                    max_rows=self.step, **options,
                )  # fmt: skip
        except InputError:
            raise
        except ValueError as error:
            _explain(str(error), layout, lines.number, self._remedy)

    def _within(self, lines: Lines, before: int) -> Iterator[str]:
        """Yield the lines, and raise an error when the rows, or a cell with an open quote, exceed the memory limit."""
        layout, opened, cell = self._layout, 0, 0
        for line in lines:
            if '"' in line and line.count('"') % 2:
                opened, cell = 0 if opened else lines.number, 0
            if opened:
                cell += len(line)
                what = f"{layout.path}: the cell that begins in line {opened}"
                memory.require(16 * cell, layout.limit, what, "close its quote")
            if self.words or not lines.number % _CHECK_EVERY:
                self.require(before + lines.rows)
            if opened or line != "\n":  # skip empty lines
                yield line
        self.require(before + lines.rows)


def _nothing(word: str) -> float:
    """Value of a cell in a column that is left out."""
    return 0.0


def _check_columns(line: str, number: int, layout: _Layout) -> None:
    """Raise an InputError if the number of columns changes between blocks, which numpy cannot see."""
    if line.count('"') % 2 == 0:
        columns = len(next(csv.reader([line], delimiter=layout.delimiter)))
        if columns != layout.columns:
            raise InputError(_ragged(f"{layout.path}: line {number}", columns, layout.columns))


def _ragged(where: str, columns: int | str, before: int | str) -> str:
    return f"{where}: {columns} columns, the lines before have {before}"


def _explain(message: str, layout: _Layout, line: int, remedies: dict[int, str]) -> NoReturn:
    """Raise an InputError for numpy's error message, with the line, the column's name, and the remedy."""
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
    """Remedy for a word, quoted as in numpy's message, that is not a number; `of_target`: remedy in a target column."""
    if re.fullmatch(r"'\s*[+-]?\d+,\d+\s*'", word):
        return "; write decimal points"
    if is_missing(word.strip("'")):
        return f", but missing: {FILL if of_target is None else 'remove the row'}"
    return f"; {of_target or ENCODE}"


def _layout(path: Path, delimiter: str, limit: int) -> _Layout:
    lines = _first_lines(path, delimiter, limit)
    names: tuple[str, ...] = ()
    row = next(lines, None)
    if row is not None:
        words = row[1]
        below: list[tuple[int, list[str]]] = []
        if all(as_number(word) is None for word in _alone(words) or words) or (
            _may_be_names(words)
            and (below := list(islice(lines, _LOOKED_AT)))
            and all(_over_numbers(words, line) for _, line in below)
        ):
            names = tuple(clean(word) for word in words)
            row = below[0] if below else next(lines, None)
    if row is None:
        raise InputError(f"{path}: {'a header and no rows' if names else 'the file is empty'}")
    first_line, words = row
    if len(_alone(words)) > 1 or any(re.search(r"\d\s*;\s*[-+.\d]", word) for word in words):
        raise InputError(
            f"{path}: line {first_line}: columns are separated by commas (tabs in a .tsv file), not semicolons "
            "or spaces, and numbers have a decimal point, not a comma: rewrite the file"
        )
    if names and len(words) != len(names):
        raise InputError(f"{path}: line {first_line}: {len(words)} columns, and the header has {len(names)} names")
    return _Layout(path, delimiter, limit, names, len(words), first_line)


def _first_lines(path: Path, delimiter: str, limit: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines that are not blank, each as its number and its cells."""
    rows = csv.reader(Lines(path, limit), delimiter=delimiter)
    before = 0
    try:
        for words in rows:
            first_line, before = before + 1, rows.line_num
            if len(words) > 1 or "".join(words).strip():
                yield first_line, words
    except csv.Error as error:
        raise InputError(f"{path}: line {before + 1}: {error}; is a quote left open there?") from error


def _alone(words: list[str]) -> list[str]:
    """Words of a line that has one cell only: its columns may be separated by spaces."""
    return words[0].split() if len(words) == 1 else []


def _may_be_names(words: list[str]) -> bool:
    """True if numbers beside words may be columns' names, such as years: whole, and in ascending or descending order.

    Anything else is a row with a cell that is wrong or missing, which is refused with its line and column.
    """
    numbers = [word.strip() for word in words if as_number(word) is not None]
    others = [word.strip() for word in words if as_number(word) is None]
    if not others or not all(re.match(r"[^\W\d]", word) and not is_missing(word) for word in others):
        return False
    if not all(re.fullmatch(r"[0-9]{1,18}", number) for number in numbers) or len(set(others)) < len(others):
        return False
    steps = np.diff([int(number) for number in numbers])
    return bool((steps > 0).all() or (steps < 0).all())


def _over_numbers(words: list[str], below: list[str]) -> bool:
    """True if a line `below` has numbers where this one has words: they are no labels of rows."""
    pairs = zip(words, below, strict=False)
    return len(words) == len(below) and all(as_number(b) is not None for word, b in pairs if as_number(word) is None)


def _header(layout: _Layout) -> int:
    """Length of the header in bytes, with a byte order mark if there is one; 0 if there is no header."""
    length, line = 0, 1
    for _, block in blocks_of_lines(layout.path, layout.limit):
        place = 0
        while line < layout.first_line and (found := _LINE.match(block, place)):
            place, line = found.end(), line + 1
        length += place
        if line == layout.first_line:
            break
    with open_bytes(layout.path) as stream:
        mark = stream.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
    return length + len(codecs.BOM_UTF8) * mark if length else 0


def _line_of(layout: _Layout, row: int) -> int:
    """Number of the line in which a row ends; empty lines are not rows."""
    rows = csv.reader(Lines(layout.path, 1 << 62, layout.first_line), delimiter=layout.delimiter)
    for words in rows:
        if words:
            if row == 0:
                break
            row -= 1
    return rows.line_num + layout.first_line - 1
