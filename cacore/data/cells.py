"""Cells of a column of a table: numbers, dates or words, by their type or by what all of them look like.

Cells of text stay words until the kind of their column is decided, and are then read in one form, so that the same
cells mean the same in every file and DataFrame.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cacore.data.containers import is_gap, is_missing
from cacore.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Reading: TypeAlias = "tuple[NDArray[np.float64], str]"  # values of the cells, and the form in which they are written
_WHOLE = r"(0|[1-9][0-9]*)"  # 007 is a code
NUMERAL = rf"^[+-]?({_WHOLE}\.?|{_WHOLE}?\.[0-9]+)([eE][+-]?[0-9]+)?$"
_GROUPED = r"[1-9][0-9]{0,2}(,[0-9]{3})+(\.[0-9]*)?"  # 1,234,567.8
_COMMA = rf"({_WHOLE}|[1-9][0-9]{{0,2}}(\.[0-9]{{3}})+)(,[0-9]+)?"  # 1.234.567,8
FORMS = {"": NUMERAL, "grouped": rf"^[+-]?({_GROUPED}|{_WHOLE}(\.[0-9]*)?)$", "comma": rf"^[+-]?{_COMMA}$"}
# As pandas, R, Excel and public tables write dates; a column has one of these forms.
DATE_FORMS = (
    "%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M",
    "%Y/%m/%d", "%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%m/%d/%Y", "%m/%d/%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%d/%m/%Y",
    "%d/%m/%Y %H:%M", "%d/%m/%Y %H:%M:%S", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%b %d %Y", "%d %b %Y",
    "%d-%b-%Y", "%b %d, %Y", "%B %d, %Y", "%d %B %Y",
)  # fmt: skip
_DAY = 86_400e6  # microseconds


class WrongCellError(InputError):
    """Cell that is no number or date where one is needed.

    Attributes
    ----------
    column, what : str
        Name of the column, and what is wrong.
    row : int
        Position among the rows, from 0.
    """

    def __init__(self, column: str, row: int, what: str) -> None:
        super().__init__(f"column {column}, row {row}: {what}")
        self.column, self.row, self.what = column, row, what


@dataclass
class ColumnCells:
    """The cells of a column: numbers or days by their type, or words; gaps are NaN, or have the code -1.

    Attributes
    ----------
    name : str
    typed : pyarrow.ChunkedArray
        The cells as they came.
    numbers, days : ndarray of float64, shape (n,), or None
    zone : bool
        True if days are those of times with a time zone.
    words : list of str
        Distinct words, ascending.
    codes : ndarray of int64, shape (n,)
    categorical : bool
        True for a type of categories, as in pandas, so that words of numbers are levels.
    readings : dict of str to ndarray
        What the words stand for, by the form in which they were read: once, for the kind, its copies and features.
    """

    name: str
    typed: pa.ChunkedArray
    numbers: NDArray[np.float64] | None = None
    days: NDArray[np.float64] | None = None
    zone: bool = False
    words: list[str] = field(default_factory=list)
    codes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    categorical: bool = False
    readings: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, cells: pa.ChunkedArray) -> ColumnCells:
        """The cells of a column of an Arrow table; an InputError for types that are neither."""
        import pyarrow as pa

        try:
            return cls._of(name, cells)
        except (pa.ArrowException, OverflowError, UnicodeError, TypeError) as error:
            what = " ".join(str(error).split())[:100]
            raise InputError(
                f"column {name} of type {str(cells.type)[:60]}: no numbers, words or dates ({what}): convert or drop it"
            ) from error

    @classmethod
    def _of(cls, name: str, cells: pa.ChunkedArray) -> ColumnCells:
        import pyarrow as pa

        types, kind = pa.types, cells.type
        if types.is_null(kind):
            return cls(name, cells, numbers=np.full(len(cells), np.nan))
        if types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind):
            return cls(name, cells, days=_days(cells), zone=getattr(kind, "tz", None) is not None)
        if any(fits(kind) for fits in (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)):
            numbers = cells.cast("float64", safe=False).to_numpy().astype(np.float64)
            return cls(name, cells, numbers=numbers)
        categorical = types.is_dictionary(kind)
        if not (categorical or types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
            raise TypeError("give a column of its own for each part of it")
        words, codes = _coded(cells)
        return cls(name, cells, words=words, codes=codes, categorical=categorical)

    def among(self, marks_gap: Callable[[str], bool]) -> tuple[list[str], NDArray[np.int64]]:
        """Words that mark no gap, and the codes of the cells, -1 for gaps."""
        there = [not marks_gap(word) for word in self.words]
        places = np.append(np.where(there, np.cumsum(there) - 1, -1), -1).astype(np.int64)
        return [word for word, is_there in zip(self.words, there, strict=True) if is_there], places[self.codes]

    def levels(self) -> tuple[list[str], NDArray[np.int64]]:
        """Words of the cells for a category, whatever their type, and their codes."""
        import pyarrow as pa

        if self.numbers is None and self.days is None:
            return self.among(is_gap)
        kind = self.typed.type
        if pa.types.is_boolean(kind):
            return _distinct(np.where(self._there(), np.where(self.numbers == 1.0, "True", "False"), ""))
        if pa.types.is_integer(kind) or self.numbers is None:
            return _coded(self.typed.cast(pa.string()))
        words = [f"{x:.0f}" if x == np.rint(x) else repr(x) for x in (self.numbers + 0.0).tolist() if np.isfinite(x)]
        spelled = np.full(len(self.numbers), "", object)
        spelled[np.isfinite(self.numbers)] = words
        return _distinct(spelled)

    def _there(self) -> NDArray[np.bool_]:
        x = self.numbers if self.numbers is not None else self.days
        return np.asarray(self.codes >= 0 if x is None else ~np.isnan(x))

    def wrong(self, word: str, what: str) -> WrongCellError:
        """The error for the first row that has this word."""
        row = int(np.flatnonzero(self.codes == self.words.index(word))[0])
        return WrongCellError(self.name, row, f"{word[:60]!r} is {what}")

    def as_numbers(self, form: str | None, comma: bool) -> Reading | None:
        """Numbers that words stand for, and their form: `form`, if all have it; None if one is no number."""
        if form in self.readings:
            return self.readings[form], form
        words, codes = self.among(is_missing)
        if {word.lower() for word in words} <= {"true", "false"}:
            return np.array([*(float(word.lower() == "true") for word in words), np.nan])[codes], ""
        if form is None or not matching(words, FORMS[form]).all():
            form = _form_of_numbers(words, comma)
        return None if form is None else self._read(form, _numbers(words, form), codes)

    def as_days(self, form: str | None) -> Reading | None:
        """Days that words stand for, and their form: `form`, if all have it; None if one is no date."""
        if form and form in self.readings:
            return self.readings[form], form
        words, codes = self.among(is_missing)
        if not words:
            return np.full(len(codes), np.nan), form or ""
        if not form or np.isnan(dates_of(words, form)).any():
            form = _form_of_dates(words)
        return None if form is None else self._read(form, dates_of(words, form), codes)

    def _read(self, form: str, values: NDArray[np.float64], codes: NDArray[np.int64]) -> Reading:
        """The values of the cells, from those of the words in this form."""
        self.readings[form] = np.append(values, np.nan)[codes]
        return self.readings[form], form


def _coded(cells: pa.ChunkedArray) -> tuple[list[str], NDArray[np.int64]]:
    """Distinct words of text or of a dictionary, without the blanks around them, and their codes; -1 for nulls."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(cells.type):
        cells = cells.cast(pa.string()).dictionary_encode()
    if not cells.num_chunks or not len(cells):
        return [], np.zeros(0, np.int64)
    chunk = cells.unify_dictionaries().combine_chunks()
    chunk = chunk.chunk(0) if isinstance(chunk, pa.ChunkedArray) else chunk
    values = chunk.dictionary
    spelled = ["True" if value else "False" for value in values.to_pylist()] if pa.types.is_boolean(values.type) else (
        values.cast(pa.string()).to_pylist()
    )  # fmt: skip
    codes = pc.fill_null(chunk.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    words = np.array([*("" if word is None else word.strip() for word in spelled), ""], object)
    return _merged(words, codes)


def _merged(words: NDArray[np.object_], codes: NDArray[np.int64]) -> tuple[list[str], NDArray[np.int64]]:
    """Words that occur, each once and ascending, and their codes; an empty word, the last one, is a gap."""
    used = {words[code] for code in np.unique(codes)} - {""}
    distinct = sorted(used)
    place = {word: k for k, word in enumerate(distinct)}
    return distinct, np.array([place.get(word, -1) for word in words], np.int64)[codes]


def _distinct(spelled: NDArray[np.object_] | NDArray[np.str_]) -> tuple[list[str], NDArray[np.int64]]:
    """Distinct words, ascending, and their codes; -1 for empty ones."""
    words, codes = np.unique(spelled.astype(str), return_inverse=True)
    return _merged(np.append(words.astype(object), ""), codes)


def _days(cells: pa.ChunkedArray) -> NDArray[np.float64]:
    """Dates and times as days since 1970; times of the day as parts of a day; NaN for gaps."""
    import pyarrow as pa

    unit = pa.time64("us") if pa.types.is_time(cells.type) else pa.timestamp("us")
    if pa.types.is_timestamp(cells.type) and cells.type.tz is not None:
        cells = cells.cast(pa.timestamp("us", cells.type.tz), safe=False)
    whole = cells.cast(unit, safe=False).cast("int64")
    return np.asarray(whole.cast("float64", safe=False).to_numpy(), np.float64) / _DAY


def matching(words: Sequence[str], pattern: str) -> NDArray[np.bool_]:
    """True for each word that the pattern matches, shape (k,)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    matches = pc.match_substring_regex(pa.array(list(words), pa.string()), pattern)
    return np.asarray(matches.to_numpy(zero_copy_only=False), np.bool_)


def _form_of_numbers(words: Sequence[str], comma: bool) -> str | None:
    """How all these words are written as numbers; None if one of them is no number.

    ``1,234`` can be read in two ways: as 1.234 if the columns of the file are not separated by commas (`comma`).
    """
    forms = ("", "comma", "grouped") if comma else ("", "grouped", "comma")
    return next((form for form in forms if matching(words, FORMS[form]).all()), None)


def _numbers(words: Sequence[str], form: str) -> NDArray[np.float64]:
    """Numbers that words stand for in this form."""
    if form == "grouped":
        words = [word.replace(",", "") for word in words]
    elif form == "comma":
        words = [word.replace(".", "").replace(",", ".") for word in words]
    return np.array([float(word) for word in words]) if words else np.zeros(0)


def dates_of(words: Sequence[str], form: str) -> NDArray[np.float64]:
    """Days since 1970 that words stand for in this form; NaN for words in another one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return _days(pa.chunked_array([pc.strptime(pa.array(list(words), pa.string()), form, "us", error_is_null=True)]))


def _form_of_dates(words: Sequence[str]) -> str | None:
    """How all these words are written as dates; None if one of them is no date."""
    if not all(re.search("[0-9]", word) and 8 <= len(word) <= 30 for word in words):
        return None
    few = words[:: max(1, len(words) // 20)]
    return next((f for f in DATE_FORMS if all(np.isfinite(dates_of(w, f)).all() for w in (few, words))), None)


def numbers_of(name: str, cells: pa.ChunkedArray, comma: bool = False) -> NDArray[np.float64]:
    """The cells of a column of numbers, shape (n,); a WrongCellError for a gap or a word."""
    column = ColumnCells.of(name, cells)
    numbers = all_numbers(column, comma)
    if len(gaps := np.flatnonzero(np.isnan(numbers))):
        raise WrongCellError(name, int(gaps[0]), "missing: remove the row")
    return numbers


def all_numbers(cells: ColumnCells, comma: bool, form: str | None = None, as_where: str = "") -> NDArray[np.float64]:
    """The cells as numbers; an error for dates and words."""
    if cells.days is not None:
        raise InputError(f"column {cells.name} holds dates, and numbers are needed{as_where}")
    if cells.numbers is not None:
        return cells.numbers
    if (reading := cells.as_numbers(form, comma)) is None:
        words, _ = cells.among(is_missing)
        word = words[int(np.argmin(matching(words, FORMS[form or ""])))]
        raise cells.wrong(word, f"no number{as_where}")
    return reading[0]
