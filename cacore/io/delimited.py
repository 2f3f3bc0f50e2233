"""CSV and TSV files, read in blocks of rows.

Python's csv module finds the columns and their names, and reads the rest of a file from its first quoted or otherwise
odd cell on; :func:`cacore.io.scanners.scan_delimited` parses blocks of plain numbers. Quotes are no matter for
pyarrow.csv on byte ranges: whether a newline is in a quoted cell shows only from the beginning of the file.
"""

from __future__ import annotations

import codecs
import csv
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from cacore.comm import Communicator
from cacore.data.containers import is_missing
from cacore.data.encoding import clean
from cacore.errors import CellError, InputError
from cacore.io.names import listed
from cacore.io.scanners import CellLayout, Cells, cells_of, is_numeral, scan_delimited
from cacore.io.stream import Block, Lines, OnBytesRead, Part, Share, blocks_of_lines, first_error, open_bytes, reading
from cacore.io.table import RowsRequest, Tabular
from cacore.io.words import ENCODE, FILL, Words, as_number, short
from cacore.machine import memory, threads

_CHECK_EVERY = 1024  # lines
_AT_ONCE = 1 << 18  # characters of lines with quotes that are parsed together
_LOOKED_AT = 200  # lines below one of words and numbers that show whether it has names
_LINE = re.compile(rb"[^\r\n]*(\r\n|\r|\n)")


@dataclass(frozen=True)
class Head:
    """Path, column names, number of columns, and number (from 1) of the first row of a file."""

    path: Path
    delimiter: str
    limit: int
    names: tuple[str, ...]
    columns: int
    first_line: int


class Delimited(Tabular):
    """Rows of a CSV or TSV file (`form`), block by block."""

    def __init__(self, path: Path, form: str, request: RowsRequest) -> None:
        self._head = head = head_of(path, "," if form == "csv" else "\t", request.limit)
        super().__init__(path, head.names, head.columns, request)
        self._layout = CellLayout(head.delimiter, head.columns, self.features, self.chosen, self.words is not None)
        self._scanned = partial(_scanned, self._layout)
        if any(as_number(name) is not None for name in head.names):
            request.expected.tell(
                f"note: {path}: the first line is taken for names of the columns: {listed(head.names)}"
            )

    def line_of(self) -> Callable[[int], int]:
        """Function that finds the line of a row by reading the file again."""
        return partial(line_of, self._head)

    def parts(self, on_read: OnBytesRead | None) -> Iterator[Part]:
        """Yield features and targets in blocks of rows; a target that may be text is given as codes.

        From the first block with anything but plain numbers, such as quotes or invalid words, the csv module reads the
        rest, and errors are reported.
        """
        rows, line = 0, self._head.first_line
        blocks, parsers = self._raw(on_read), self.request.parsers
        scans = parsers.cells(self._layout, blocks) if parsers else threads.ahead(self._scanned, blocks)
        for block, cells in scans:
            line = block.first
            if cells is None:
                break
            rows += len(cells.X)
            self.require(rows)
            yield self._part(cells)
        else:
            return
        for cells in self._slowly(Lines(self._head.path, self._head.limit, line, on_read), rows):
            yield self._part(cells)

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
        head = self._head
        with comm.agreed(), reading(head.path):
            share = Share(head.path, head.limit, comm, _header(head))
        parts: list[Part] = []
        rows, plain = 0, True
        blocks = share.blocks()
        with first_error(comm, lambda: share.place(len(parts))), reading(head.path), closing(blocks):
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
        head, first = self._head, 1
        for _, block in blocks_of_lines(head.path, head.limit, on_read):
            following = first + block.count(b"\n") + block.count(b"\r") - block.count(b"\r\n")
            while first < head.first_line and block:
                block, first = _LINE.sub(b"", block, count=1), first + 1
            if block:
                yield Block(0, first, block)
            first = following

    def _slowly(self, lines: Lines, before: int) -> Iterator[Cells]:
        """Yield blocks of rows read by the csv module; `before` rows were read earlier."""
        head, size = self._head, 0
        gathered: list[tuple[int, list[str]]] = []
        rows = csv.reader(self._within(lines, before), delimiter=head.delimiter)
        try:
            for words in _of_any_length(rows):
                ragged = len(words) != head.columns
                size += sum(map(len, words)) + len(words)
                if not ragged:
                    gathered.append((lines.number, words))
                if gathered and (ragged or size > _AT_ONCE):
                    yield self._cells(gathered)
                    gathered, size = [], 0
                if ragged:
                    where = f"{head.path}: line {lines.number}"
                    raise InputError(f"{where}: {len(words)} columns, the lines before have {head.columns}")
        except csv.Error as error:
            raise InputError(f"{head.path}: line {lines.number}: {error}") from error
        if gathered:
            yield self._cells(gathered)

    def _cells(self, rows: list[tuple[int, list[str]]]) -> Cells:
        """Numbers of rows, each with the number of its line; the first cell that is no number is an InputError."""
        layout = self._layout
        numbers = [[words[j].strip() for j in layout.numbers] for _, words in rows]
        labels = [words[self.chosen[0]] for _, words in rows] if layout.as_words else []
        lines = "".join(f"{word}\n" for words in numbers for word in words).encode()
        cells = cells_of(lines, len(rows), labels, layout)
        return self._refuse(rows) if cells is None else cells

    def _refuse(self, rows: list[tuple[int, list[str]]]) -> NoReturn:
        """Raise an InputError for the first cell that is no number."""
        for line, words in rows:
            for column in self._layout.numbers:
                if not is_numeral(words[column].strip().encode()):
                    names, word = self._head.names, short(repr(words[column]))
                    name = f" ({names[column]})" if names else ""
                    of_target = self.request.wanted.remedy if column in self.chosen else None
                    raise (CellError if of_target is None else InputError)(
                        f"{self._head.path}: line {line}, column {column}{name}: {word} is not a number"
                        f"{_remedy(word, of_target)}"
                    )
        raise AssertionError("pyarrow refused a number")  # the grammars are the same: tests/test_io_numerals.py

    def _within(self, lines: Lines, before: int) -> Iterator[str]:
        """Yield the lines, and raise an error when the rows, or a cell with an open quote, exceed the memory limit."""
        head, opened, cell = self._head, 0, 0
        for line in lines:
            if '"' in line and line.count('"') % 2:
                opened, cell = 0 if opened else lines.number, 0
            if opened:
                cell += len(line)
                what = f"{head.path}: the cell that begins in line {opened}"
                memory.require(16 * cell, head.limit, what, "close its quote")
            if self.words or not lines.number % _CHECK_EVERY:
                self.require(before + lines.rows)
            if opened or line != "\n":  # skip empty lines
                yield line
        self.require(before + lines.rows)


def _of_any_length(rows: Iterator[list[str]]) -> Iterator[list[str]]:
    """Rows of a csv.reader, whose cells may exceed the module's limit, which holds for the whole process."""
    while True:
        before = csv.field_size_limit(sys.maxsize)
        try:
            words = next(rows, None)
        finally:
            csv.field_size_limit(before)
        if words is None:
            return
        yield words


def _scanned(layout: CellLayout, *block: Any) -> tuple[Block, Cells | None]:
    return Block(*block), scan_delimited(block[2], layout)


def _remedy(word: str, of_target: str | None) -> str:
    """Remedy for a word, quoted as in numpy's message, that is not a number; `of_target`: remedy in a target column."""
    if re.fullmatch(r"'\s*[+-]?\d+,\d+\s*'", word):
        return "; write decimal points"
    if is_missing(word.strip("'")):
        return f", but missing: {FILL if of_target is None else 'remove the row'}"
    return f"; {of_target or ENCODE}"


def head_of(path: Path, delimiter: str, limit: int) -> Head:
    """Names of the columns, if the first line has them, and the line of the first row."""
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
    semicolons = any(re.search(r"\d\s*;\s*[-+.\d]", word) for word in words)
    if len(_alone(words)) > 1 or semicolons:
        raise (CellError if semicolons else InputError)(
            f"{path}: line {first_line}: columns are separated by commas (tabs in a .tsv file), not semicolons "
            "or spaces, and numbers have a decimal point, not a comma: rewrite the file"
        )
    if names and len(words) != len(names):
        raise InputError(f"{path}: line {first_line}: {len(words)} columns, and the header has {len(names)} names")
    return Head(path, delimiter, limit, names, len(words), first_line)


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


def _header(head: Head) -> int:
    """Length of the header in bytes, with a byte order mark if there is one; 0 if there is no header."""
    length, line = 0, 1
    for _, block in blocks_of_lines(head.path, head.limit):
        place = 0
        while line < head.first_line and (match := _LINE.match(block, place)):
            place, line = match.end(), line + 1
        length += place
        if line == head.first_line:
            break
    with open_bytes(head.path) as stream:
        mark = stream.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
    return length + len(codecs.BOM_UTF8) * mark if length else 0


def line_of(head: Head, row: int) -> int:
    """Number of the line in which a row ends; empty lines are not rows."""
    rows = csv.reader(Lines(head.path, 1 << 62, head.first_line), delimiter=head.delimiter)
    for words in rows:
        if words:
            if row == 0:
                break
            row -= 1
    return rows.line_num + head.first_line - 1
