"""Cells of a column of a table: numbers, dates or words, by their type or by what all of them look like.

Cells of text stay words until the kind of their column is decided, and are then read in one form, so that the same
cells mean the same in every file and DataFrame.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cacore.data.containers import GAPS, MISSING
from cacore.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Reading: TypeAlias = "tuple[NDArray[np.float64], str]"  # values of the cells, and the form in which they are written
Coded: TypeAlias = "tuple[pa.StringArray, NDArray[np.int32]]"  # distinct words, and their numbers in the rows; -1: gap
_WHOLE = r"(0|[1-9][0-9]*)"  # 007 is a code
NUMERAL = rf"^[+-]?({_WHOLE}\.?|{_WHOLE}?\.[0-9]+)([eE][+-]?[0-9]+)?$"
_GROUPED = r"[1-9][0-9]{0,2}(,[0-9]{3})+(\.[0-9]*)?"  # 1,234,567.8
_COMMA = rf"({_WHOLE}|[1-9][0-9]{{0,2}}(\.[0-9]{{3}})+)(,[0-9]+)?"  # 1.234.567,8
TIME = "time"
FORMS = {
    "": NUMERAL, "grouped": rf"^[+-]?({_GROUPED}|{_WHOLE}(\.[0-9]*)?)$", "comma": rf"^[+-]?{_COMMA}$",
    TIME: r"^([01]?[0-9]|2[0-4]):[0-5][0-9](:[0-5][0-9](\.[0-9]+)?)?$",
}  # fmt: skip
# As pandas, R, Excel and public tables write dates; a column has one of these forms.
DATE_FORMS = (
    "%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M",
    "%Y/%m/%d", "%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%m/%d/%Y", "%m/%d/%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%d/%m/%Y",
    "%d/%m/%Y %H:%M", "%d/%m/%Y %H:%M:%S", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%b %d %Y", "%d %b %Y",
    "%d-%b-%Y", "%b %d, %Y", "%B %d, %Y", "%d %B %Y",
)  # fmt: skip
_DAY, _MINUTE = 86_400e6, 60e6  # microseconds
_MIDNIGHT, _TIMES, _HOURS = 2400.0, 30, 6  # most of a time of the day; fewest times and hours that show it for one
_LONGEST_GAP = max(map(len, MISSING))
FEW_GAPS = 0.005  # up to this share of gaps, there is no indicator of them
_FEW = 20  # words that show most forms to be wrong, before all are read


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
    times : bool
        True if the numbers are times of the day, see :func:`minutes`.
    words : pyarrow.StringArray
        Distinct words, without the blanks around them.
    codes : ndarray of int32, shape (n,)
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
    times: bool = False
    words: pa.StringArray | None = None
    codes: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    categorical: bool = False
    readings: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    _levels: Coded | None = None

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
        if types.is_time(kind):
            return cls(name, cells, numbers=_times(_whole(cells, pa.time64("us")) / _MINUTE), times=True)
        if types.is_timestamp(kind) or types.is_date(kind):
            return cls(name, cells, days=_days(cells), zone=getattr(kind, "tz", None) is not None)
        if any(fits(kind) for fits in (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)):
            return cls(name, cells, numbers=np.asarray(cells.cast("float64", safe=False).to_numpy(), np.float64))
        categorical = types.is_dictionary(kind)
        if not (categorical or types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
            raise TypeError("give a column of its own for each part of it")
        words, codes = _coded(cells)
        return cls(name, cells, words=words, codes=codes, categorical=categorical)

    def among(self, gaps: AbstractSet[str]) -> Coded:
        """Words that mark no gap, and the codes of the cells, -1 for gaps."""
        import pyarrow as pa
        import pyarrow.compute as pc

        assert self.words is not None  # cells of text
        short = np.flatnonzero(pc.binary_length(self.words).to_numpy() <= _LONGEST_GAP)
        spelled = pc.utf8_lower(self.words.take(pa.array(short)))
        marks = pc.is_in(spelled, pa.array(sorted(gaps))).to_numpy(zero_copy_only=False)
        return _without(self.words, self.codes, short[marks])

    def levels(self) -> Coded:
        """Words of the cells for a category, whatever their type, and their codes."""
        if self._levels is None:
            self._levels = self._spelled()
        return self._levels

    def ascending(self) -> Coded:
        """The levels in ascending order, which does not depend on the order of the rows or of a dictionary."""
        import pyarrow as pa
        import pyarrow.compute as pc

        words, codes = self.levels()
        order = pc.array_sort_indices(words).to_numpy()
        if (order[1:] < order[:-1]).any():
            place = np.empty(len(order) + 1, np.int32)
            place[order], place[-1] = np.arange(len(order)), -1
            self._levels = words.take(pa.array(order)), place[codes]
        return self.levels()

    def _spelled(self) -> Coded:
        import pyarrow as pa

        if self.words is not None:
            return self.among(GAPS)
        kind = self.typed.type
        if pa.types.is_boolean(kind):
            spelled = pa.array(["False", "True"]).take(self.typed.combine_chunks().cast(pa.int8()))
            return _coded(pa.chunked_array([spelled]))
        if pa.types.is_integer(kind) or self.numbers is None or self.times:
            return _coded(self.typed.cast(pa.string()))
        there = np.isfinite(self.numbers)
        distinct, places = np.unique(self.numbers[there] + 0.0, return_inverse=True)
        codes = np.full(len(self.numbers), -1, np.int32)
        codes[there] = places
        return pa.array([_word(x) for x in distinct.tolist()], pa.string()), codes

    def wrong(self, word: str, what: str) -> WrongCellError:
        """The error for the first row that has this word."""
        import pyarrow.compute as pc

        row = int(np.flatnonzero(self.codes == pc.index(self.words, word).as_py())[0])
        return WrongCellError(self.name, row, f"{word[:60]!r} is {what}")

    def as_numbers(self, form: str | None, comma: bool) -> Reading | None:
        """Numbers that words stand for, and their form: `form`, if all have it, or one in which none reads otherwise.

        None if a word is no number, or if the words that have `form` would stand for other numbers beside the rest.
        """
        import pyarrow as pa

        if form in self.readings:
            return self.readings[form], form
        words, codes = self.among(MISSING)
        if len(words) <= _FEW and {word.lower() for word in words.to_pylist()} <= {"true", "false"}:
            return np.array([*(float(word.lower() == "true") for word in words.to_pylist()), np.nan])[codes], ""
        if form is None or not all_match(words, FORMS[form]):
            usual, form = form, _form_of_numbers(words, comma)
            if usual is not None and form is not None:
                of_usual_form = words.filter(pa.array(matching(words, FORMS[usual])))
                if (_numbers(of_usual_form, usual) != _numbers(of_usual_form, form)).any():
                    return None
        return None if form is None else self._read(form, _numbers(words, form), codes)

    def as_days(self, form: str | None) -> Reading | None:
        """Days that words stand for, and their form; None if one is no date. As :meth:`as_numbers`."""
        if form and form in self.readings:
            return self.readings[form], form
        words, codes = self.among(MISSING)
        if not len(words):
            return np.full(len(codes), np.nan), form or ""
        for shape in (form,) if form else ():
            if (days := _all_dates(words, shape)) is not None:
                return self._read(shape, days, codes)
        of_usual_form = dates_of(words, form) if form else np.full(len(words), np.nan)
        for shape in DATE_FORMS if _may_be_dates(words) else ():
            if (days := _all_dates(words, shape)) is not None:
                alike = np.isnan(of_usual_form) | (of_usual_form == days)
                return self._read(shape, days, codes) if alike.all() else None
        return None

    def _read(self, form: str, values: NDArray[np.float64], codes: NDArray[np.int32]) -> Reading:
        """The values of the cells, from those of the words in this form."""
        self.readings[form] = np.append(values, np.nan)[codes]
        return self.readings[form], form


def _word(x: float) -> str:
    """A number as a level: without a point if it is whole."""
    return f"{x:.0f}" if np.isfinite(x) and x == np.rint(x) else repr(x)


def _coded(cells: pa.ChunkedArray) -> Coded:
    """Distinct words of text or of a dictionary, without the blanks around them, and their codes; -1 for nulls."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # All chunks of encoded text have the same dictionary; unify_dictionaries would hash it again for each.
    text = not pa.types.is_dictionary(cells.type)
    chunks = (cells.cast(pa.string()).dictionary_encode() if text else cells.unify_dictionaries()).chunks
    if not len(cells):
        return pa.array([], pa.string()), np.zeros(0, np.int32)
    codes = np.concatenate(
        [chunk.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False) for chunk in chunks]
    )
    codes, values = codes.astype(np.int32, copy=False), chunks[-1].dictionary
    if pa.types.is_boolean(values.type):
        values = pa.array(["False", "True"]).take(values.cast(pa.int8()))
    if pa.types.is_floating(values.type):  # as numbers that are no dictionary
        values = pa.array([None if x is None else _word(x) for x in values.to_pylist()], pa.string())
    values = values.cast(pa.string())
    words = pc.utf8_trim_whitespace(values)
    if values.null_count or not (text and words.equals(values)):
        encoded = words.dictionary_encode()
        codes = np.append(encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False), -1).astype(np.int32)[codes]
        words = encoded.dictionary
    used = np.zeros(len(words) + 1, np.bool_)
    used[codes] = True  # a dictionary may have words that no row has
    used[:-1] &= pc.binary_length(words).to_numpy() > 0
    return _without(words, codes, np.flatnonzero(~used[:-1]))


def _without(words: pa.StringArray, codes: NDArray[np.int32], out: NDArray[np.int64]) -> Coded:
    """The words without some of them, whose cells have the code -1."""
    import pyarrow as pa

    if not len(out):
        return words, codes
    there = np.ones(len(words), np.bool_)
    there[out] = False
    places = np.append(np.where(there, np.cumsum(there) - 1, -1), -1).astype(np.int32)
    return words.filter(pa.array(there)), places[codes]


def _days(cells: pa.ChunkedArray) -> NDArray[np.float64]:
    """Dates and times as days since 1970; NaN for gaps."""
    import pyarrow as pa

    if pa.types.is_timestamp(cells.type) and cells.type.tz is not None:
        cells = cells.cast(pa.timestamp("us", cells.type.tz), safe=False)
    return _whole(cells, pa.timestamp("us")) / _DAY


def _whole(cells: pa.ChunkedArray, unit: pa.DataType) -> NDArray[np.float64]:
    """Whole numbers of a unit; NaN for gaps."""
    whole = cells.cast(unit, safe=False).cast("int64")
    return np.asarray(whole.cast("float64", safe=False).to_numpy(), np.float64)


def matching(words: pa.StringArray, pattern: str) -> NDArray[np.bool_]:
    """True for each word that the pattern matches, shape (k,)."""
    import pyarrow.compute as pc

    return np.asarray(pc.match_substring_regex(words, pattern).to_numpy(zero_copy_only=False), np.bool_)


def all_match(words: pa.StringArray, pattern: str) -> bool:
    """True if the pattern matches all words."""
    return bool(matching(words[:_FEW], pattern).all() and matching(words, pattern).all())


def _form_of_numbers(words: pa.StringArray, comma: bool) -> str | None:
    """How all these words are written as numbers; None if one of them is no number.

    ``1,234`` can be read in two ways: as 1.234 if the columns of the file are not separated by commas (`comma`).
    """
    forms = ("", "comma", "grouped", TIME) if comma else ("", "grouped", "comma", TIME)
    return next((form for form in forms if all_match(words, FORMS[form])), None)


def _numbers(words: pa.StringArray, form: str) -> NDArray[np.float64]:
    """Numbers that words stand for in this form."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if form == TIME:
        hours, rest = (pc.list_element(pc.split_pattern(words, ":", max_splits=1), k) for k in (0, 1))
        parts = pc.split_pattern(pc.binary_join_element_wise(rest, "0", ":"), ":")
        values = [pc.list_element(parts, k).cast(pa.float64()).to_numpy() for k in (0, 1)]
        return np.asarray(100.0 * hours.cast(pa.float64()).to_numpy() + values[0] + values[1] / 60.0)
    if form == "grouped":
        words = pc.replace_substring(words, ",", "")
    elif form == "comma":
        words = pc.replace_substring(pc.replace_substring(words, ".", ""), ",", ".")
    try:
        return np.asarray(pc.utf8_ltrim(words, "+").cast(pa.float64()).to_numpy(zero_copy_only=False))
    except pa.ArrowInvalid:  # outside the range of doubles, where float() has infinity or 0
        return np.array([float(word) for word in words.to_pylist()])


def dates_of(words: pa.StringArray, form: str) -> NDArray[np.float64]:
    """Days since 1970 that words stand for in this form; NaN for words in another one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return _days(pa.chunked_array([pc.strptime(words, form, "us", error_is_null=True)]))


def _may_be_dates(words: pa.StringArray) -> bool:
    """True if all words have a digit, and 8 to 30 letters and digits."""
    import pyarrow.compute as pc

    lengths = pc.min_max(pc.utf8_length(words)).as_py()
    return lengths["min"] >= 8 and lengths["max"] <= 30 and all_match(words, "[0-9]")


def _all_dates(words: pa.StringArray, form: str) -> NDArray[np.float64] | None:
    """Days that all words stand for in this form; None if one of them is written otherwise."""
    if not np.isfinite(dates_of(words[:: max(1, len(words) // _FEW)], form)).all():
        return None
    days = dates_of(words, form)
    return days if np.isfinite(days).all() else None


def minutes(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Minutes since midnight of times of the day such as 1435; NaN for gaps."""
    return np.asarray(times - 40.0 * (times // 100.0))


def _times(since_midnight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Times of the day such as 1435 of minutes since midnight."""
    return np.asarray(since_midnight + 40.0 * (since_midnight // 60.0))


def numbers_of(name: str, cells: pa.ChunkedArray, comma: bool = False, of_word: str = "") -> NDArray[np.float64]:
    """The cells of a column of numbers, shape (n,); a WrongCellError for a gap or a word, whose remedy is `of_word`."""
    column = ColumnCells.of(name, cells)
    numbers = all_numbers(column, comma, as_where=of_word and f": {of_word}")
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
        words, _ = cells.among(MISSING)
        fits = matching(words, FORMS[form or ""]) | matching(words, "^(?i:true|false)$")
        word = words[int(np.argmin(fits))].as_py()
        raise cells.wrong(word, f"no number{as_where}")
    return reading[0]


@dataclass(frozen=True)
class OrderedNumbers:
    """Numbers of a column in ascending order, and its gaps; one sort serves all that is asked.

    Attributes
    ----------
    ordered, weights : ndarray of float64, shape (n - gaps,)
        The numbers, and the weights of their rows.
    gaps : int
    marked : bool
        True if the gaps are enough for an indicator.
    distinct : int
    """

    ordered: NDArray[np.float64]
    weights: NDArray[np.float64]
    gaps: int
    marked: bool
    distinct: int

    @classmethod
    def of(cls, values: NDArray[np.float64], weights: NDArray[np.float64]) -> OrderedNumbers:
        """The numbers, NaN for gaps, in order; n log n comparisons."""
        there = ~np.isnan(values)
        gaps = len(values) - int(np.count_nonzero(there))
        marked = bool(gaps and weights[~there].sum() > FEW_GAPS * weights.sum())
        if gaps:
            values, weights = values[there], weights[there]
        if (weights == 1.0).all():  # a sort is ten times as fast as an order
            ordered = np.sort(values)
        else:
            order = np.argsort(values)
            ordered, weights = values[order], weights[order]
        return cls(
            ordered, weights, gaps, marked, int(np.count_nonzero(ordered[1:] != ordered[:-1]) + (ordered.size > 0))
        )

    def median(self) -> float:
        """Weighted median: that of the numbers, each as often as its weight says."""
        total = np.cumsum(self.weights)
        middle = total[-1] / 2.0 * (1.0 + np.array([-1e-10, 1e-10]))  # both sides of a half, in spite of rounding
        low, high = self.ordered[np.searchsorted(total, middle).clip(0, len(total) - 1)]
        return float((low + high) / 2.0)

    def are_times(self) -> bool:
        """True for whole numbers that are times of the day, as in 5, 905 and 1435 for 0:05, 9:05 and 14:35.

        No number has 60 or more in its last two digits, and some have more than 50; there are 30 times in 6 hours or
        more. Of 30 random numbers one in 5 million sets is such.
        """
        least, most = (self.ordered[k] for k in (0, -1))
        if not (least >= 0.0 and 600.0 <= most <= _MIDNIGHT and self.distinct >= _TIMES):
            return False
        times = np.unique(self.ordered)
        last = times % 100.0
        whole = (times == np.rint(times)).all() and last.max() < 60.0
        return bool(whole and last.max() > 50.0 and len(np.unique(times // 100.0)) >= _HOURS)

    def are_row_numbers(self) -> bool:
        """True for different whole numbers from about 0 that fill half of their range or more, as row numbers do.

        So are those of a random half of the rows. Years are not, since they do not begin near 0.
        """
        n, least, most = len(self.ordered), self.ordered[0], self.ordered[-1]
        ends = 0.0 <= least < n and most - least < 2 * n and self.distinct == n
        return bool(ends and (self.ordered == np.rint(self.ordered)).all())
