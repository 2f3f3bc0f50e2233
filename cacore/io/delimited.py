"""CSV and TSV: Python's csv module finds the columns and their names, numpy parses the numbers."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from cacore.data.missing import is_missing
from cacore.errors import InputError
from cacore.io.stream import REMEDY, Lines
from cacore.io.table import LABELS, NO_TARGET, Table, Targets
from cacore.io.words import ENCODE, FILL, as_number, short, some
from cacore.machine import memory

_CHECK_EVERY = 1024  # lines


@dataclass(frozen=True)
class _Layout:
    """The file, and what its first lines say: column names, how many columns, and where the data begin, from 1."""

    path: Path
    delimiter: str
    limit: int
    names: tuple[str, ...]
    columns: int
    first_line: int


def parse(
    path: Path,
    delimiter: str,
    target: str | None,
    n_features: int | None,
    binarize: str | None,
    usual_target: str | None,
    limit: int,
    wanted: Targets = LABELS,
) -> Table:
    """The rows of a file; parameters as for :func:`cacore.io.text.parse`.

    Holds them twice while the target is taken out.
    """
    layout = _layout(path, delimiter, limit)
    names, columns = layout.names, layout.columns
    chosen: list[int] = []
    if not wanted.needed:
        n_features = columns if target == NO_TARGET and n_features is None else n_features
        target, usual_target = (None if one == NO_TARGET else one for one in (target, usual_target))
    if target is not None or columns != n_features:
        chosen = _columns(target or usual_target or "-1", layout)
    features = [j for j in range(columns) if j not in chosen]
    if not features:
        raise InputError(f"{path}: no feature columns beside the target")
    kept = tuple(names[j] for j in features) if names else ()
    line_of = partial(_line_of, layout)
    if not chosen:
        return Table(_numbers(layout), None, str(path), line_of=line_of, names=kept)
    if len(chosen) > 1 and (binarize is not None or not wanted.many):
        raise InputError(f"{path}: --target {target or usual_target}: {len(chosen)} columns, and one is needed here")
    words, remedy = _Words(), dict.fromkeys(chosen, wanted.remedy)
    if binarize is None and not wanted.text:
        both = _numbers(layout, remedy=remedy)
        y = both[:, chosen] if len(chosen) > 1 else both[:, chosen[0]].copy()
    else:
        both = _numbers(layout, words, converters={chosen[0]: words.code}, encoding=None)
        found = words.labels() if binarize is None else words.picked(binarize, path)
        y = found[both[:, chosen[0]].astype(np.int64)]
    return Table(np.delete(both, chosen, axis=1), y, str(path), line_of=line_of, names=kept)


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

    def picked(self, positive: str, path: Path) -> NDArray[np.float64]:
        """+1 for the code of this class, which may be written in several ways, and -1 for the others'."""
        number = as_number(positive)
        hit = [word == positive or (number is not None and as_number(word) == number) for word in self._codes]
        if not any(hit):
            known = some(sorted(self._codes))
            raise InputError(f"{path}: --binarize {positive}: no row has this class; there are {known}")
        return np.where(hit, 1.0, -1.0)


def _numbers(
    layout: _Layout, words: _Words | None = None, remedy: dict[int, str] | None = None, **options: Any
) -> NDArray[np.float64]:  # fmt: skip
    """All columns; `remedy` says of some what to do about words in them."""
    lines = Lines(layout.path, layout.limit, layout.first_line)
    try:
        return np.loadtxt(
            _within(lines, layout, words), np.float64, comments=None, delimiter=layout.delimiter, ndmin=2,
            quotechar='"', **options,
        )  # fmt: skip
    except InputError:
        raise
    except ValueError as error:
        _explain(str(error), layout, lines.number, remedy or {})


def _within(lines: Lines, layout: _Layout, words: _Words | None) -> Iterator[str]:
    """The lines, while memory holds their numbers twice, the target's words, and a cell whose quote is open."""
    a_row, opened, cell = 2 * 8 * layout.columns, 0, 0
    for line in lines:
        if '"' in line and line.count('"') % 2:
            opened, cell = 0 if opened else lines.number, 0
        if opened:
            cell += len(line)
            what = f"{layout.path}: the cell that begins in line {opened}"
            memory.require(16 * cell, layout.limit, what, "close its quote")
        if words or not lines.number % _CHECK_EVERY:
            what = f"{layout.path}: to read its first {lines.rows:,} rows"
            memory.require(lines.rows * a_row + (words.held if words else 0), layout.limit, what, REMEDY)
        yield line
    memory.require(lines.rows * a_row, layout.limit, f"{layout.path}: to read its {lines.rows:,} rows", REMEDY)


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
        raise InputError(f"{where}: {ragged[2]} columns, the lines before have {ragged[1]}")
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
