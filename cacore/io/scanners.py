"""Parsers of blocks of text: numbers by pyarrow.csv, CSV and TSV by their separators, and LIBSVM text.

The numerals of a block are put on lines of their own, and pyarrow.csv reads these lines as one column of doubles,
rounded as by Python's ``float``, without the interpreter's lock. A column per feature would be simpler, but costs
pyarrow 25 us per column and block: 300 rows of 20,000 columns took 12 times as long (a MiB per block, 26.0.1).

scikit-learn's ``load_svmlight_file`` takes 4 to 7 times as long as :func:`scan_libsvm` (a9a, ijcnn1, usps, 40,000 rows
of 50 doubles; one and two threads), so LIBSVM text has a scanner: compiled code that finds the numerals.

With several ranks, :class:`Parsers` of conversion do this for rank 0.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.arrays import Bytes, Ints
from cacore.comm import Communicator
from cacore.io.stream import Block
from cacore.io.words import short

# What pyarrow reads as a number, but for "nan(...)", which is no finite number either.
_NUMERAL = re.compile(rb"[+-]?(\d+\.?\d*(e[+-]?\d+)?|\.\d+(e[+-]?\d+)?|inf(inity)?|nan)", re.IGNORECASE)
_END = 10


def is_numeral(word: bytes) -> bool:
    """True if a word without blanks around it is a number."""
    return _NUMERAL.fullmatch(word) is not None


def doubles(lines: bytes | Bytes) -> NDArray[np.float64] | None:
    """Numbers of a text with one numeral per line, which may have blanks around it; None if a line has anything else.

    An array of fewer or more numbers than lines were written is returned if a line has a carriage return in it.
    """
    import pyarrow as pa
    from pyarrow import csv

    if not len(lines):
        return np.empty(0)
    if bytes(lines[:3]) == codecs.BOM_UTF8:  # pyarrow would skip it
        return None
    try:
        column = csv.read_csv(
            pa.py_buffer(lines),
            csv.ReadOptions(use_threads=False, block_size=min(len(lines), 1 << 30), column_names=["number"]),
            csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
            csv.ConvertOptions(column_types={"number": pa.float64()}, null_values=[], check_utf8=False),
            memory_pool=pa.system_memory_pool(),  # others keep what is freed, beyond --memory-limit
        )
    except pa.ArrowInvalid:
        return None
    return column.column(0).to_numpy()


def _rounded_places(
    lines: bytes | Bytes, values: NDArray[np.float64], places: NDArray[np.integer]
) -> NDArray[np.int64]:
    """Ascending places, among those of each number, at which whole numbers above 2^53 were rounded to doubles."""
    size = np.abs(values)
    large = np.flatnonzero((size > 2**53) & (size < np.inf))
    rounded: set[int] = set()
    numerals = bytes(lines).split(b"\n")
    for k, place in zip(large.tolist(), places[large].tolist(), strict=True):
        if place not in rounded:
            digits = numerals[k].strip().lstrip(b"+-0")
            if digits.isdigit() and int(digits) != int(size[k]):
                rounded.add(place)
    return np.array(sorted(rounded), np.int64)


def _may_be_rounded(values: NDArray[np.float64]) -> bool:
    """True if :func:`_rounded_places` may find some: two passes over the numbers."""
    return len(values) > 0 and not (values.max() <= 2**53 and values.min() >= -(2**53))


class CellLayout(NamedTuple):
    """Columns of a CSV or TSV file.

    Attributes
    ----------
    delimiter : str
    columns : int
        Number of columns.
    features, targets : list of int
        Columns to read; all others are left out.
    as_words : bool
        True if the target may be text.
    """

    delimiter: str
    columns: int
    features: list[int]
    targets: list[int]
    as_words: bool

    @property
    def numbers(self) -> list[int]:
        """Columns that must be numbers, in ascending order."""
        return sorted([*self.features, *([] if self.as_words else self.targets)])


class Cells(NamedTuple):
    """Rows of a block.

    Attributes
    ----------
    X, y : ndarray of float64, shape (m, d) and (m, t)
        A text target is not set in `y`.
    words : list of str
        Target of each row if it may be text; otherwise empty.
    rounded : ndarray of bool, shape (columns,)
        Columns with whole numbers that were rounded to doubles.
    """

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    words: list[str]
    rounded: NDArray[np.bool_]


def cells_of(lines: bytes | Bytes, rows: int, words: list[str], layout: CellLayout) -> Cells | None:
    """Rows whose numbers are on lines of their own, row by row; None if a line is no number."""
    numbers = layout.numbers
    values = doubles(lines)
    if values is None or len(values) != rows * len(numbers):
        return None
    rounded = np.zeros(layout.columns, np.bool_)
    if _may_be_rounded(values):
        rounded[_rounded_places(lines, values, np.tile(numbers, rows))] = True
    values = values.reshape(rows, len(numbers))
    X = values.take(np.searchsorted(numbers, layout.features), axis=1)
    if layout.as_words:
        return Cells(X, np.zeros((rows, len(layout.targets))), words, rounded)
    return Cells(X, values.take(np.searchsorted(numbers, layout.targets), axis=1), words, rounded)


def scan_delimited(block: bytes, layout: CellLayout) -> Cells | None:
    """Parse a block of whole lines; None if it has anything but plain numbers, which may still be valid input.

    Parameters
    ----------
    block : bytes
        Text that ends with a newline.
    layout : CellLayout
    """
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
    if b'"' in block or b"\r" in block:
        return None
    if b"\n\n" in block or block.startswith(b"\n"):
        block = re.sub(rb"\n\n+", b"\n", block).lstrip(b"\n")
    text, delimiter = np.frombuffer(block, np.uint8), layout.delimiter.encode()
    separators = np.flatnonzero((text == delimiter[0]) | (text == _END))
    if len(separators) % layout.columns:
        return None
    ends = separators.reshape(-1, layout.columns)
    at_end = text[ends] == _END
    if at_end[:, :-1].any() or not at_end[:, -1].all():
        return None
    lines, words = block.replace(delimiter, b"\n"), []
    others = sorted(set(range(layout.columns)).difference(layout.numbers))
    if others:
        starts = np.append(0, separators + 1)[: ends.size].reshape(ends.shape)
        if layout.as_words:
            spans = np.column_stack([starts[:, layout.targets[0]], ends[:, layout.targets[0]]])
            words = [block[first:last].decode(errors="replace").strip() for first, last in spans.tolist()]
        inside = np.zeros(len(text) + 1, np.int8)
        inside[starts[:, others]] += 1
        inside[ends[:, others] + 1] -= 1
        number_mask = np.cumsum(inside, dtype=np.int8)[:-1] == 0
        return cells_of(np.frombuffer(lines, np.uint8)[number_mask], len(ends), words, layout)
    return cells_of(lines, len(ends), words, layout)


_LARGEST_INDEX = 2**31 - 1
_COLON, _HASH = 58, 35
_QID = np.frombuffer(b"qid:", np.uint8)


class Scanned(NamedTuple):
    """Rows of a block, with indices as in the text.

    Attributes
    ----------
    data, indices : ndarray of float64 and of int32, shape (entries,)
    lengths : ndarray of int32, shape (m,)
        Number of entries of each row.
    y : ndarray of float64, shape (m,)
    rounded : ndarray of int64
        Ascending indices with whole numbers that were rounded to doubles; -1 is the target.
    fault : tuple of int and str, or None
        The first line of the block with an invalid word, counted from 0, and a message; there are no rows then.
    """

    data: NDArray[np.float64]
    indices: NDArray[np.int32]
    lengths: NDArray[np.int32]
    y: NDArray[np.float64]
    rounded: NDArray[np.int64]
    fault: tuple[int, str] | None = None

    @property
    def least(self) -> int:
        """Smallest index; larger than :attr:`most` if there are no entries."""
        return int(self.indices.min(initial=_LARGEST_INDEX))

    @property
    def most(self) -> int:
        """Largest index; -1 if there are no entries."""
        return int(self.indices.max(initial=-1))

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        return self.data.nbytes + self.indices.nbytes + self.lengths.nbytes + self.y.nbytes


def scan_libsvm(block: bytes) -> Scanned:
    """Parse a block of whole lines, the last of which ends with a newline; a faulty one is read again for the place."""
    lines = np.empty(len(block), np.uint8)
    indices, lengths = np.empty(block.count(b":"), np.int32), np.empty(block.count(b"\n"), np.int32)
    rows, entries, size = _numerals(np.frombuffer(block, np.uint8), lines, indices, lengths)
    values = None if rows < 0 else doubles(lines[:size])
    if values is None:
        none = np.zeros(0, np.int32)
        return Scanned(np.zeros(0), none, none, np.zeros(0), np.zeros(0, np.int64), _fault(block))
    indices, lengths = indices[:entries], lengths[:rows]
    is_target = np.zeros(len(values), np.bool_)
    is_target[np.cumsum(lengths, dtype=np.int64) - lengths + np.arange(rows)] = True
    rounded = np.zeros(0, np.int64)
    if _may_be_rounded(values):
        places = np.full(len(values), -1)
        places[~is_target] = indices
        rounded = _rounded_places(lines[:size], values, places)
    return Scanned(values[~is_target], indices, lengths, values[is_target], rounded)


def _fault(block: bytes) -> tuple[int, str]:
    """First line of a block, counted from 0, with an invalid word, and a message about the word."""
    for number, line in enumerate(block.split(b"\n")):
        words = line.split(b"#", 1)[0].split()
        if words and not is_numeral(words[0]):
            return number, f"{_shown(words[0])} is not the target, which must be a number"
        entries = words[2 if len(words) > 1 and re.fullmatch(rb"qid:\d+", words[1]) else 1 :]
        last = -1
        for word in entries:
            entry = re.fullmatch(rb"\+?0*(\d+):(.*)", word, re.DOTALL)
            if entry is None or not is_numeral(entry[2]):
                return number, f"{_shown(word)} is not index:value"
            if len(entry[1]) > len(str(_LARGEST_INDEX)) or int(entry[1]) > _LARGEST_INDEX:
                return number, f"{_shown(word)}: the largest index is {_LARGEST_INDEX}"
            if int(entry[1]) <= last:
                return number, f"{_shown(word)}: the indices must ascend"
            last = int(entry[1])
    raise AssertionError("pyarrow refused a number")  # the grammars are the same: tests/test_io_numerals.py


def _shown(word: bytes) -> str:
    return repr(short(word.decode(errors="replace")))


@numba.njit(inline="always")
def _is_digit(c: int) -> bool:  # pragma: no cover - compiled
    """True for the digits 0 to 9."""
    return 48 <= c <= 57


@numba.njit(inline="always")
def _is_blank(c: int) -> bool:  # pragma: no cover - compiled
    """True for white space, including the newline."""
    return c == 32 or 9 <= c <= 13


@numba.njit(inline="always")
def _after_blanks(text: Bytes, p: int) -> int:  # pragma: no cover - compiled
    """Offset of the next word of this line, or of its comment or end."""
    while _is_blank(text[p]) and text[p] != _END:
        p += 1
    return p


@numba.njit(inline="always")
def _after_qid(text: Bytes, p: int) -> int:  # pragma: no cover - compiled
    """Offset after an entry such as ``qid:7``; the same offset if there is none."""
    start = p
    for c in _QID:
        if text[p] != c:
            return start
        p += 1
    first = p
    while _is_digit(text[p]):
        p += 1
    return p if p > first and (_is_blank(text[p]) or text[p] == _HASH) else start


@numba.njit(inline="always")
def _index(text: Bytes, p: int) -> tuple[np.int64, int]:  # pragma: no cover - compiled
    """Index of an entry, and offset of its value, or -1 if the entry is invalid."""
    p += text[p] == 43
    index, start = np.int64(0), p
    while _is_digit(text[p]):
        if index <= _LARGEST_INDEX:
            index = 10 * index + np.int64(text[p] - 48)
        p += 1
    return index, p + 1 if p > start and text[p] == _COLON and index <= _LARGEST_INDEX else -1


@numba.njit(inline="always")
def _copied(text: Bytes, p: int, lines: Bytes, size: int) -> tuple[int, int]:  # pragma: no cover - compiled
    """Copy a word to a line of its own: offset after the word, and length of the lines."""
    while not (_is_blank(text[p]) or text[p] == _HASH):
        lines[size] = text[p]
        p, size = p + 1, size + 1
    lines[size] = _END
    return p, size + 1


@numba.njit(cache=True, nogil=True)
def _numerals(
    text: Bytes, lines: Bytes, indices: Ints, lengths: Ints
) -> tuple[int, int, int]:  # pragma: no cover - compiled
    """Copy targets and values to lines of their own, row by row: rows (-1: an invalid entry), entries, and bytes."""
    p = rows = entries = size = 0
    while p < len(text):
        p = _after_blanks(text, p)
        if text[p] != _END and text[p] != _HASH:
            first, last = entries, np.int64(-1)
            p, size = _copied(text, p, lines, size)
            p = _after_blanks(text, _after_qid(text, _after_blanks(text, p)))
            while text[p] != _END and text[p] != _HASH:
                index, p = _index(text, p)
                if p < 0 or index <= last:
                    return -1, 0, 0
                p, size = _copied(text, p, lines, size)
                indices[entries] = last = index
                entries += 1
                p = _after_blanks(text, p)
            lengths[rows] = entries - first
            rows += 1
        while text[p] != _END:
            p += 1
        p += 1
    return rows, entries, size


class Parsers:
    """Ranks that parse text for rank 0; rank 0 enters it as a context while the others call :meth:`serve`.

    For conversion, where parsed rows do not stay on their rank, as one process writes the output file in the order of
    the input. Each of the other ranks has one block of lines at a time.

    Parameters
    ----------
    comm : Communicator
        At least two ranks.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._working = False
        self._waiting: deque[tuple[Block, int]] = deque()  # blocks being parsed, and the rank that has each

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._finish()
        self._send_to_all(b"")

    def scanned(self, blocks: Iterable[Block]) -> Iterator[tuple[Block, Scanned]]:
        """Parse blocks of LIBSVM text; results come in the order of the blocks."""
        for block, (*arrays, fault) in self._in_turn([], blocks):
            data, indices, lengths, y, rounded = arrays
            yield block, Scanned(data, indices, lengths, y, rounded, json.loads(fault.tobytes()))

    def cells(self, layout: CellLayout, blocks: Iterable[Block]) -> Iterator[tuple[Block, Cells | None]]:
        """Parse blocks of CSV or TSV text, in their order; see :func:`cacore.io.scan_delimited`."""
        for block, arrays in self._in_turn(layout, blocks):
            if not arrays:
                yield block, None
                continue
            X, y, words, rounded = arrays
            yield block, Cells(X, y, json.loads(words.tobytes()), rounded.astype(np.bool_))

    def _in_turn(self, job: Sequence[Any], blocks: Iterable[Block]) -> Iterator[tuple[Block, list[NDArray[Any]]]]:
        others = self._comm.size - 1
        self._send_to_all(json.dumps(job).encode())
        self._working = True
        for count, block in enumerate(blocks):
            rank, done = 1 + count % others, None
            if len(self._waiting) == others:
                done = self._answer()
            self._comm.send(np.frombuffer(block.text, np.uint8), rank)
            self._waiting.append((block, rank))
            if done is not None:  # that rank parses its next block meanwhile
                yield done
        while self._waiting:
            yield self._answer()
        self._finish()

    def _answer(self) -> tuple[Block, list[NDArray[Any]]]:
        block, rank = self._waiting.popleft()
        count = int(self._comm.recv(rank)[0])
        return block, [self._comm.recv(rank) for _ in range(count)]

    def _finish(self) -> None:
        """End the current job, if any, and discard blocks that are still being parsed."""
        while self._waiting:
            self._answer()
        if self._working:
            self._send_to_all(b"")
        self._working = False

    def _send_to_all(self, message: bytes) -> None:
        for rank in range(1, self._comm.size):
            self._comm.send(np.frombuffer(message, np.uint8), rank)

    def serve(self) -> None:
        """Parse the blocks that rank 0 sends until it leaves its context."""
        while len(words := self._comm.recv(0)):
            job = json.loads(words.tobytes())
            while len(text := self._comm.recv(0)):
                arrays = _parsed(job, text.tobytes())
                for array in (np.array([len(arrays)]), *arrays):
                    self._comm.send(array, 0)


def _parsed(layout: Sequence[Any], text: bytes) -> list[NDArray[Any]]:
    """Arrays of the rows of a block: of LIBSVM text if the layout is empty, otherwise of CSV or TSV text."""
    if not layout:
        rows = scan_libsvm(text)
        return [rows.data, rows.indices, rows.lengths, rows.y, rows.rounded, _encoded(rows.fault)]
    cells = scan_delimited(text, CellLayout(*layout))
    return [] if cells is None else [cells.X, cells.y, _encoded(cells.words), cells.rounded.astype(np.int8)]


def _encoded(facts: object) -> NDArray[np.uint8]:
    return np.frombuffer(json.dumps(facts).encode(), np.uint8)
