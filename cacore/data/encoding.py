"""Tables with words, gaps and dates, and the features that are made of their columns.

A :class:`Encoding` is learned from training rows: for each column its kind, its levels, its gaps and the features that
stand for it. The same encoding then makes the features of any other rows, so it is a part of the model.

* ``number``: numbers, truth values, text of which all words are numbers. The number itself; a gap is the median.
* ``category``: words. An indicator for each frequent level, and one for gaps.
* ``date``: dates and times. Days since 1970, and places on the circles of the year, the week and the day that vary.
* ``identifier``: words of which nearly all differ, row numbers. No features.
* ``constant``: a single value. No features.
* ``copy``: values that stand one by one for those of a column before. No features.

Many gaps have an indicator of their own. Rare levels, and those that the training rows do not have, share one.
Categories of more levels than :data:`MOST_LEVELS` have the mean target of each level, too, shrunken towards the mean of
all rows (Micci-Barreca, 2001); for the training rows without the row's own fold, as scikit-learn's TargetEncoder does.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cacore.data.containers import is_gap, is_missing
from cacore.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa


NUMBER, CATEGORY, DATE, IDENTIFIER, CONSTANT, COPY = "number", "category", "date", "identifier", "constant", "copy"
KINDS = (NUMBER, CATEGORY, DATE, IDENTIFIER, CONSTANT, COPY)
MOST_LEVELS = 30  # indicators of a category; with more, kernels see little but which rows share a level
RARE = 0.005  # least share of the rows for a level of its own
FEW_GAPS = 0.005  # up to this share of gaps, there is no indicator of them
DIFFERENT = 0.9  # share of different words from which on a column is an identifier
SMALL = 20  # least number of rows that can show an identifier
MOST_CLASSES = 12  # classes whose shares are features of a category with many levels
FOLDS = 5
MISSING, OTHER = "(missing)", "(other)"  # names of the levels of gaps, and of rare and unseen words
LEVEL, FIRST_LEVEL = "l", "c"  # letters in Columns.kinds: indicators, of which the first begins a category

_NUMERAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_GROUPED = r"^[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?$"  # 1,234,567.8
_COMMA = r"^[+-]?([0-9]+|[0-9]{1,3}(\.[0-9]{3})+)(,[0-9]+)?$"  # 1.234.567,8
# As pandas, R, Excel and public tables write dates; a column has one of these forms.
DATE_FORMS = (
    "%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M",
    "%Y/%m/%d", "%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%m/%d/%Y", "%m/%d/%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%d/%m/%Y",
    "%d/%m/%Y %H:%M", "%d/%m/%Y %H:%M:%S", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%b %d %Y", "%d %b %Y",
    "%d-%b-%Y", "%b %d, %Y", "%B %d, %Y", "%d %B %Y",
)  # fmt: skip
_DAY = 86_400e6  # microseconds
PERIODS = {"year": 365.2425, "week": 7.0, "day": 1.0}  # days


def clean(name: object) -> str:
    """Name of a column in the form in which names are compared: without quotes, #, and surplus blanks."""
    return " ".join(str(name).strip(" \"'\n\r#").split())


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


@dataclass(frozen=True)
class TableColumn:
    """A column of a table, and the features that stand for it.

    Attributes
    ----------
    name, kind : str
    gaps, distinct : int
        Numbers of missing cells, and of different values, in the training rows.
    form : str
        How the cells of text are written: "", "grouped" or "comma" for numbers, one of :data:`DATE_FORMS` for dates.
    fill : float
        Number in place of a gap: the median of the training rows.
    indicator : bool
        True if a further feature is 1 for gaps.
    levels, counts : tuple of str, tuple of int
        Levels with an indicator, the most frequent first, and their numbers of rows.
    means : dict of str to tuple of float
        For a category of many levels: shrunken means of the targets by level; "" has those of all rows.
    circles : tuple of str
        For dates: periods of which there are features, of "year", "week" and "day".
    original : str
        For a copy: name of the column that has its values.
    """

    name: str
    kind: str
    gaps: int = 0
    distinct: int = 0
    form: str = field(default="", compare=False)  # of text alone: a file may hold the same numbers and dates typed
    fill: float = 0.0
    indicator: bool = False
    levels: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    means: dict[str, tuple[float, ...]] = field(default_factory=dict)
    circles: tuple[str, ...] = ()
    original: str = ""

    @property
    def features(self) -> tuple[tuple[str, str], ...]:
        """Name and letter of the kind of each feature; see :class:`Columns`."""
        gap = [(f"{self.name} missing", "b")] if self.indicator else []
        if self.kind == NUMBER:
            return ((self.name, "f"), *gap)
        if self.kind == DATE:
            circles = [(f"{self.name} {part} of {period}", "f") for period in self.circles for part in ("cos", "sin")]
            return ((self.name, "f"), *circles, *gap)
        if self.kind != CATEGORY:
            return ()
        letters = FIRST_LEVEL + LEVEL * (len(self.levels) - 1)
        indicators = [(f"{self.name} = {level}", letter) for level, letter in zip(self.levels, letters, strict=False)]
        width = len(self.means.get("", ()))
        means = [f"{self.name} mean"] if width == 1 else [f"{self.name} mean {k}" for k in range(width)]
        return (*indicators, *((mean, "f") for mean in means))

    @property
    def treatment(self) -> str:
        """Treatment of the column, in words."""
        if self.kind == COPY:
            return f"left out: as {self.original}"
        if self.kind in (IDENTIFIER, CONSTANT):
            return "left out"
        filled = f"gaps are {self.fill:.6g}{', and marked' if self.indicator else ''}" if self.gaps else ""
        if self.kind == NUMBER:
            return filled or "as it is"
        if self.kind == DATE:
            circles = "".join(f", circle of the {period}" for period in self.circles)
            return f"days{circles}" + (f"; {filled}" if filled else "")
        means = ", mean target by level" if self.means else ""
        return f"{len(self.levels)} levels{means}"

    @property
    def summary(self) -> tuple[str, str, str, str, str]:
        """Name, kind, number of different values with the most frequent levels, gaps and treatment, for a table."""
        shown = [f"{level} {count:,}" for level, count in zip(self.levels, self.counts, strict=True)][:3]
        values = f"{self.distinct:,}" + (
            f": {', '.join(shown)}{', ...' if len(self.levels) > 3 else ''}" if shown else ""
        )
        return self.name, self.kind, values, f"{self.gaps:,}" if self.gaps else "", self.treatment


@dataclass(frozen=True)
class Encoding:
    """How the columns of a table become features; see the module's table.

    Attributes
    ----------
    columns : tuple of TableColumn
        In the order of the training table, without the target.
    """

    columns: tuple[TableColumn, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that rows must have: those with features."""
        return tuple(column.name for column in self.columns if column.features)

    @property
    def features(self) -> Columns:
        """Names and kinds of the features."""
        features = [feature for column in self.columns for feature in column.features]
        return Columns(tuple(name for name, _ in features), kinds="".join(letter for _, letter in features))

    @property
    def column_of(self) -> NDArray[np.int64]:
        """Position in :attr:`names` of the column of each feature, shape (d,)."""
        sizes = [len(column.features) for column in self.columns if column.features]
        return np.repeat(np.arange(len(sizes)), sizes)

    @property
    def notes(self) -> list[str]:
        """Lines on what was left out, and on what was decided where a text can be read in two ways."""
        lines = []
        for kind, what in ((IDENTIFIER, "identifiers"), (CONSTANT, "constants")):
            if names := [column.name for column in self.columns if column.kind == kind]:
                lines.append(f"columns left out as {what}: {', '.join(names)}")
        lines += [f"column {c.name} left out: the same as {c.original}" for c in self.columns if c.kind == COPY]
        for column in self.columns:
            if column.form.startswith(("%m/%d", "%d/%m")):
                lines.append(f"column {column.name}: dates are read as {column.form}")
        return lines

    def described(self) -> list[dict[str, object]]:
        """The columns as JSON holds them, in a model's `source` and in reports."""
        empty = asdict(TableColumn("", ""))
        return [
            {key: value for key, value in asdict(column).items() if value != empty[key] or key in ("name", "kind")}
            for column in self.columns
        ]

    @classmethod
    def of(cls, described: object) -> Encoding:
        """The encoding that :meth:`described` wrote; an InputError if the entry is damaged."""
        try:
            if not isinstance(described, list):
                raise ValueError
            columns = [_of_entry(entry) for entry in described]
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError("its columns are not those of a table") from error
        return cls(tuple(columns))

    def apply(self, table: pa.Table) -> NDArray[np.float64]:
        """The features of these rows, shape (n, d).

        Raises
        ------
        InputError
            A column is missing, or a cell is no number or date where the training rows have numbers or dates.
        """
        X = np.empty((table.num_rows, len(self.column_of)))
        first = 0
        for column in self.columns:
            if not column.features:
                continue
            if column.name not in table.column_names:
                raise InputError(f"no column {column.name}, which the training rows have")
            values = _Values.of(column.name, table.column(column.name))
            last = first + len(column.features)
            X[:, first:last] = _features(column, values, _means(column, values))
            first = last
        return X


def _of_entry(entry: dict[str, object]) -> TableColumn:
    """The column that an entry of :meth:`Encoding.described` describes; a ValueError if its fields do not fit."""
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    column = TableColumn(**fields)  # type: ignore[arg-type]
    if column.kind not in KINDS or not isinstance(column.name, str) or len(column.levels) != len(column.counts):
        raise ValueError
    if column.kind == DATE and not set(column.circles) <= set(PERIODS):
        raise ValueError
    means = {level: tuple(map(float, means)) for level, means in column.means.items()}
    if means and ("" not in means or {len(row) for row in means.values()} != {len(means[""])}):
        raise ValueError
    return replace(column, means=means, fill=float(column.fill))


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a data set, as far as they are known.

    Attributes
    ----------
    features : tuple of str
        One name per feature; empty if the features have no names.
    target : tuple of str
        One name per target; empty if there is no target, or if it has no name.
    kinds : str
        numpy's letter for the type of each feature's column in the source: "f", "i", "u" or "b"; for indicators of a
        category's levels "c" for the first and "l" for the others. Empty if unknown.
    table : Encoding or None
        How the features are made of the columns of a table with words; None if they are columns themselves.
    """

    features: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    kinds: str = ""
    table: Encoding | None = None

    def taken(self, order: Iterable[int] | None) -> Columns:
        """The names of the features with these numbers, in this order; all of them if it is None."""
        if order is None or not self.features:
            return self
        numbers = list(order)
        kinds = "".join(self.kinds[j] for j in numbers) if self.kinds else ""
        return Columns(tuple(self.features[j] for j in numbers), self.target, kinds)

    def described(self) -> dict[str, object]:
        """The names as JSON holds them, in a model's `source` and in reports; empty if the features have none."""
        if not self.features:
            return {}
        table = {} if self.table is None else {"table": self.table.described()}
        return {"features": list(self.features), "target": list(self.target), "kinds": self.kinds, **table}

    def put(self, source: dict[str, object]) -> None:
        """Store the names in a model's `source`, if the features have any."""
        if self.features:
            source["columns"] = self.described()

    @classmethod
    def of_source(cls, source: dict[str, object]) -> Columns:
        """The names in a model's `source`; none in that of an older model.

        Raises
        ------
        InputError
            The entry is damaged.
        """
        entry = source.get("columns")
        if entry is None:
            return cls()
        fields = entry if isinstance(entry, dict) else {}
        lists = [fields.get(key) for key in ("features", "target")]
        words = [names for names in lists if isinstance(names, list) and all(isinstance(word, str) for word in names)]
        kinds = fields.get("kinds")
        if len(words) < 2 or not isinstance(kinds, str) or len(kinds) not in (0, len(words[0])):
            raise InputError("its columns are not lists of names")
        table = Encoding.of(fields["table"]) if "table" in fields else None
        if table is not None and table.features.features != tuple(words[0]):
            raise InputError("the features of its table are not those of its columns")
        return cls(tuple(words[0]), tuple(words[1]), kinds, table)


UNNAMED = Columns()


@dataclass
class _Values:
    """The cells of a column: numbers, dates or words; gaps are NaN, NaT or the code -1."""

    name: str
    numbers: NDArray[np.float64] | None = None
    dates: NDArray[np.float64] | None = None  # days since 1970
    words: list[str] = field(default_factory=list)
    codes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    categorical: bool = False  # by its type, as in pandas, so that words of numbers are levels

    @classmethod
    def of(cls, name: str, cells: pa.ChunkedArray) -> _Values:
        """The cells of a column of an Arrow table."""
        import pyarrow as pa
        import pyarrow.compute as pc

        types, kind = pa.types, cells.type
        if types.is_null(kind):
            return cls(name, numbers=np.full(len(cells), np.nan))
        if types.is_temporal(kind) and not types.is_duration(kind):
            return cls(name, dates=_days(cells))
        if any(fits(kind) for fits in (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)):
            return cls(name, numbers=cells.cast("float64", safe=False).to_numpy().astype(np.float64))
        if types.is_duration(kind):
            return cls(name, numbers=_micros(cells, pa.duration("us")) / 1e6)
        categorical = types.is_dictionary(kind)
        if not categorical:
            cells = cells.cast(pa.string()) if not types.is_string(kind) else cells
            cells = cells.dictionary_encode()
        if not types.is_string(cells.type.value_type):
            cells = cells.cast(pa.dictionary(pa.int32(), pa.string()))
        joined = cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells
        if isinstance(joined, pa.ChunkedArray):
            joined = joined.unify_dictionaries().chunk(0) if joined.num_chunks else pa.array([], cells.type)
        codes = pc.fill_null(joined.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        words = [word.strip() for word in joined.dictionary.to_pylist()]
        distinct, merged_codes = _merged(words, codes)
        return cls(name, words=distinct, codes=merged_codes, categorical=categorical)

    def first_gap(self) -> int:
        """Position of the first missing cell."""
        numbers = self.numbers if self.numbers is not None else self.dates
        return int(np.flatnonzero(self.codes < 0 if numbers is None else np.isnan(numbers))[0])

    def counted(self) -> NDArray[np.int64]:
        """Number of rows of each word."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.words))


def _merged(words: list[str], codes: NDArray[np.int64]) -> tuple[list[str], NDArray[np.int64]]:
    """Words, each once and in alphabetical order, and their codes; words that mark gaps have the code -1."""
    numeric = all(is_missing(word) or re.match(_NUMERAL, word) for word in words)
    used = np.unique(codes[codes >= 0])
    marks_gap = is_missing if numeric else is_gap
    distinct = sorted({words[code] for code in used if not marks_gap(words[code])})
    place = {word: k for k, word in enumerate(distinct)}
    new = np.array([place.get(word, -1) for word in words] + [-1], np.int64)
    return distinct, new[codes]


def _days(cells: pa.ChunkedArray) -> NDArray[np.float64]:
    """Dates and times as days since 1970; times of the day as parts of a day; NaN for gaps."""
    import pyarrow as pa

    if pa.types.is_time(cells.type):
        return np.asarray(_micros(cells, pa.time64("us")) / _DAY)
    stamps = cells.cast(pa.timestamp("us", getattr(cells.type, "tz", None)), safe=False)
    return np.asarray(_micros(stamps, pa.timestamp("us")) / _DAY)


def _micros(cells: pa.ChunkedArray, unit: pa.DataType) -> NDArray[np.float64]:
    """Cells of a type of time in microseconds; NaN for gaps."""
    whole = cells.cast(unit, safe=False).cast("int64")
    return np.asarray(whole.cast("float64", safe=False).to_numpy(), np.float64)


def _numbers(words: Sequence[str], form: str) -> NDArray[np.float64]:
    """Numbers that words stand for in this form."""
    if form == "grouped":
        words = [word.replace(",", "") for word in words]
    elif form == "comma":
        words = [word.replace(".", "").replace(",", ".") for word in words]
    return np.array([float(word) for word in words])


def _dates(words: Sequence[str], form: str) -> NDArray[np.float64]:
    """Days since 1970 that words stand for in this form; NaN for words in another one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return _days(pa.chunked_array([pc.strptime(pa.array(list(words), pa.string()), form, "us", error_is_null=True)]))


def _form_of_numbers(words: Sequence[str]) -> str | None:
    """How all these words are written as numbers; None if one of them is no number."""
    if any(re.match(r"[+-]?0[0-9]", word) for word in words):
        return None  # codes such as 007
    for form, pattern in (("", _NUMERAL), ("grouped", f"{_GROUPED}|{_NUMERAL}"), ("comma", _COMMA)):
        if all(re.match(pattern, word) for word in words):
            return form
    return None


def _form_of_dates(words: Sequence[str]) -> str | None:
    """How all these words are written as dates; None if one of them is no date."""
    if not all(re.search("[0-9]", word) and 8 <= len(word) <= 30 for word in words):
        return None
    few = words[:: max(1, len(words) // 20)]
    return next((f for f in DATE_FORMS if all(np.isfinite(_dates(w, f)).all() for w in (few, words))), None)


@dataclass(frozen=True)
class Overrides:
    """The user's word on columns, which comes before what their cells suggest.

    Attributes
    ----------
    kinds : dict of str to str
        "number" or "category" by the name of a column.
    drop : tuple of str
        Names of columns that are left out.
    gaps : {"fill", "refuse"}
        What is done with cells without a value.
    """

    kinds: dict[str, str] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    gaps: str = "fill"

    @property
    def any(self) -> bool:
        """True if a column is named."""
        return bool(self.kinds or self.drop)

    def check(self, names: Sequence[str]) -> None:
        """Raise an InputError for a column that a table with these names does not have, naming all of them."""
        if unknown := [name for name in (*self.kinds, *self.drop) if name not in names]:
            there = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
            raise InputError(f"no feature column {', '.join(unknown)}; the columns are {there}")


NO_OVERRIDES = Overrides()


def learned(
    table: pa.Table, y: NDArray[np.generic] | None = None, overrides: Overrides = NO_OVERRIDES
) -> tuple[Encoding, NDArray[np.float64]]:
    """The encoding of these training rows, and their features.

    Parameters
    ----------
    table : pyarrow.Table of n rows
        The columns without the target.
    y : ndarray, shape (n,) or (n, t), optional
        Numbers, or classes of any other type, for the means of categories of many levels.
    overrides : Overrides, optional

    Returns
    -------
    Encoding, ndarray of float64, shape (n, d)

    Raises
    ------
    InputError
        No column has features; a column that must hold numbers has other words.

    Notes
    -----
    n log n comparisons per column; memory for the features and a few columns.
    """
    overrides.check([clean(name) for name in table.column_names])
    targets = None if y is None else _targets(y)
    columns: list[TableColumn] = []
    blocks: list[NDArray[np.float64]] = []
    signatures: dict[bytes, str] = {}
    for name, cells in zip(table.column_names, table.columns, strict=True):
        name = clean(name)
        if name in overrides.drop:
            continue
        values = _Values.of(name, cells)
        column = _column(values, overrides.kinds.get(name))
        if column.gaps and overrides.gaps == "refuse":
            raise WrongCellError(name, values.first_gap(), "missing: fill the gap or remove the row")
        if column.features:
            signature = _signature(values)
            if signature in signatures:
                column = TableColumn(name, COPY, column.gaps, column.distinct, original=signatures[signature])
            signatures.setdefault(signature, name)
        means = None
        if column.kind == CATEGORY and targets is not None and column.distinct > MOST_LEVELS:
            column, means = _with_means(column, values, targets)
        columns.append(column)
        if column.features:
            blocks.append(_features(column, values, means))
    if not blocks:
        raise InputError("no column with features: all are constant or identifiers")
    return Encoding(tuple(columns)), np.concatenate(blocks, axis=1)


def _column(values: _Values, kind: str | None) -> TableColumn:
    """The kind of a column and how its features are made; `kind` if the user has said it."""
    if values.numbers is not None and kind == CATEGORY:
        values.words, values.codes = _words_of(values.numbers)
        values.numbers = None
    if values.categorical and kind is None:
        kind = CATEGORY
    if values.numbers is None and values.dates is None and kind != CATEGORY:
        _read_words(values, kind)
    if values.numbers is not None:
        return _numeric(values, values.numbers)
    if values.dates is not None:
        return _dated(values, values.dates)
    counts = values.counted()
    n, gaps = len(values.codes), int((values.codes < 0).sum())
    distinct = len(values.words)
    if distinct + (gaps > 0) < 2:
        return TableColumn(values.name, CONSTANT, gaps, distinct)
    if kind != CATEGORY and n >= SMALL and distinct >= DIFFERENT * (n - gaps):
        return TableColumn(values.name, IDENTIFIER, gaps, distinct)
    column = _category(values.name, values.words, counts, gaps)
    return column if len(column.levels) > 1 else TableColumn(values.name, IDENTIFIER, gaps, distinct)


def _read_words(values: _Values, kind: str | None) -> None:
    """Take words for numbers or dates if all of them are; or if `kind` says so, whatever they are."""
    if not values.words:
        values.numbers = np.full(len(values.codes), np.nan)
        return
    form = _form_of_numbers(values.words)
    if form is None and kind == NUMBER:
        wrong = next(word for word in values.words if not re.match(_NUMERAL, word))
        raise _wrong(values, wrong, "not a number, as --number says: correct it or remove the row")
    if form is not None:
        values.numbers = np.append(_numbers(values.words, form), np.nan)[values.codes]
        return
    form = _form_of_dates(values.words)
    if form is not None:
        values.dates = np.append(_dates(values.words, form), np.nan)[values.codes]
        return
    _check_mixed(values)


def _check_mixed(values: _Values) -> None:
    """Refuse a column of numbers with a few words: they are mistakes, and no levels."""
    numeric = np.array([re.match(_NUMERAL, word) is not None for word in values.words])
    counts = values.counted()
    if np.count_nonzero(numeric) > MOST_LEVELS and 2 * counts[numeric].sum() >= counts.sum():
        wrong = values.words[int(np.flatnonzero(~numeric)[0])]
        share = 100.0 * counts[numeric].sum() / counts.sum()
        remedy = f"correct it or remove the row; --category {values.name} takes all its cells for words"
        raise _wrong(values, wrong, f"not a number, as {share:.0f} % of the column's cells are: {remedy}")


def _wrong(values: _Values, word: str, what: str) -> WrongCellError:
    """The error for the first row that has this word."""
    row = int(np.flatnonzero(values.codes == values.words.index(word))[0])
    return WrongCellError(values.name, row, f"{word[:60]!r} is {what}")


def numbers_of(name: str, cells: pa.ChunkedArray) -> NDArray[np.float64]:
    """The cells of a column of numbers, shape (n,); a WrongCellError for a gap or a word."""
    values = _Values.of(name, cells)
    if values.numbers is None and values.dates is None:
        _read_words(values, NUMBER)
    if values.numbers is None:
        raise InputError(f"column {name} holds dates, and numbers are needed")
    if len(gaps := np.flatnonzero(np.isnan(values.numbers))):
        raise WrongCellError(name, int(gaps[0]), "missing: remove the row")
    return values.numbers


def _words_of(numbers: NDArray[np.float64]) -> tuple[list[str], NDArray[np.int64]]:
    """Numbers as words, and their codes; -1 for NaN."""
    there = np.isfinite(numbers)
    distinct, codes = np.unique(numbers[there], return_inverse=True)
    all_codes = np.full(len(numbers), -1)
    all_codes[there] = codes
    return [f"{value:.0f}" if value == np.rint(value) else repr(float(value)) for value in distinct], all_codes


def _numeric(values: _Values, numbers: NDArray[np.float64]) -> TableColumn:
    there = numbers[~np.isnan(numbers)]
    n, gaps, distinct = len(numbers), int(np.isnan(numbers).sum()), len(np.unique(there))
    if distinct == 0 or (distinct == 1 and not _marked(gaps, n)):
        return TableColumn(values.name, CONSTANT, gaps, distinct)
    if not gaps and n >= SMALL and _are_row_numbers(there):
        return TableColumn(values.name, IDENTIFIER, 0, distinct)
    form = (_form_of_numbers(values.words) or "") if values.words else ""
    return TableColumn(values.name, NUMBER, gaps, distinct, form, float(np.median(there)), _marked(gaps, n))


def _are_row_numbers(numbers: NDArray[np.float64]) -> bool:
    """True for different whole numbers from about 0 that fill half of their range or more, as row numbers do.

    So are those of a random half of the rows. Years are not, since they do not begin near 0.
    """
    n, least, most = len(numbers), numbers.min(), numbers.max()
    whole = bool((numbers == np.rint(numbers)).all())
    return bool(whole and 0.0 <= least < n and most - least < 2 * n and len(np.unique(numbers)) == n)


def _marked(gaps: int, n: int) -> bool:
    """True if so many gaps of n cells have an indicator."""
    return gaps > FEW_GAPS * n


def _dated(values: _Values, days: NDArray[np.float64]) -> TableColumn:
    there = days[~np.isnan(days)]
    n, gaps, distinct = len(days), int(np.isnan(days).sum()), len(np.unique(there))
    if distinct < 2:
        return TableColumn(values.name, CONSTANT, gaps, distinct)
    span = float(np.ptp(there))
    circles = [period for period, length in PERIODS.items() if span >= length and _varies(there / length)]
    form = (_form_of_dates(values.words) or "") if values.words else ""
    return TableColumn(
        values.name, DATE, gaps, distinct, form, float(np.median(there)), _marked(gaps, n), circles=tuple(circles)
    )  # fmt: skip


def _varies(phases: NDArray[np.float64]) -> bool:
    """True if these places on a circle, in turns, are not all the same."""
    return len(np.unique(np.round(phases % 1.0, 3))) > 2


def _category(name: str, words: list[str], counts: NDArray[np.int64], gaps: int) -> TableColumn:
    """A category: indicators of the frequent levels, the most frequent first, of gaps, and of the others."""
    n = int(counts.sum()) + gaps
    order = np.argsort(-counts, kind="stable")
    frequent = [k for k in order[:MOST_LEVELS] if counts[k] >= max(2, RARE * n)]
    levels, sizes = [words[k] for k in frequent], [int(counts[k]) for k in frequent]
    if gaps:
        levels, sizes = [*levels, MISSING], [*sizes, gaps]
    if sum(sizes) < n:
        levels, sizes = [*levels, OTHER], [*sizes, n - sum(sizes)]
    return TableColumn(name, CATEGORY, gaps, len(words), levels=tuple(levels), counts=tuple(sizes))


def _targets(y: NDArray[np.generic]) -> NDArray[np.float64]:
    """Targets of which levels have means, shape (n, t): numbers, or a column of 0 and 1 for each frequent class."""
    if y.dtype.kind == "f":
        return y.reshape(len(y), -1).astype(np.float64)
    classes, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    most = np.argsort(-counts, kind="stable")[: 1 if len(classes) == 2 else MOST_CLASSES]
    return np.asarray(codes[:, None] == np.sort(most), np.float64)


def _with_means(
    column: TableColumn, values: _Values, targets: NDArray[np.float64]
) -> tuple[TableColumn, NDArray[np.float64]]:
    """The category with the means of its levels, and the means for each training row, without the row's own fold."""
    codes = np.where(values.codes < 0, len(values.words), values.codes)
    k = len(values.words) + 1
    fold = np.random.default_rng(0).permutation(len(codes)) % FOLDS
    rows = np.empty_like(targets)
    for f in range(FOLDS):
        out = fold == f
        means, overall = _shrunken(codes[~out], targets[~out], k)
        rows[out] = means[codes[out]]
    means, overall = _shrunken(codes, targets, k)
    levels = [*values.words, MISSING] if column.gaps else values.words
    table = {"": tuple(overall.tolist())} | {level: tuple(means[j].tolist()) for j, level in enumerate(levels)}
    return replace(column, means=table), rows


def _shrunken(
    codes: NDArray[np.int64], targets: NDArray[np.float64], k: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means of the targets by level, shape (k, t), shrunken towards those of all rows, shape (t,).

    The weight of a level's own mean is n / (n + s2 / v), for the variance s2 within levels and v between them.
    """
    counts = np.bincount(codes, minlength=k).astype(np.float64)
    overall = targets.mean(axis=0)
    means = np.tile(overall, (k, 1))
    for t, y in enumerate(targets.T):
        level = np.bincount(codes, y, k) / np.maximum(counts, 1.0)
        n, levels = len(y), int(np.count_nonzero(counts))
        within = float(np.sum((y - level[codes]) ** 2)) / max(1, n - levels)
        between = max(0.0, float(counts @ (level - overall[t]) ** 2) - within * levels) / n
        weight = counts * between / np.maximum(counts * between + within, 1e-300)
        means[:, t] += weight * (level - overall[t])
    return means, overall


def _means(column: TableColumn, values: _Values) -> NDArray[np.float64] | None:
    """Means of the targets for rows that were not trained on, shape (n, t); None for other columns."""
    if not column.means:
        return None
    words = _as_words(values)
    of_word = [column.means.get(word, column.means[""]) for word in words[0]]
    of_gap = column.means.get(MISSING, column.means[""])
    return np.array([*of_word, of_gap])[words[1]]


def _as_words(values: _Values) -> tuple[list[str], NDArray[np.int64]]:
    """Words and codes of the cells, whatever type they have."""
    if values.numbers is not None:
        return _words_of(values.numbers)
    return values.words, values.codes


def _features(column: TableColumn, values: _Values, means: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """The features of a column, shape (n, number of features)."""
    if column.kind == CATEGORY:
        words, codes = _as_words(values)
        place = {level: j for j, level in enumerate(column.levels)}
        width = len(column.levels)
        other = place.get(OTHER, width)
        # A word called (other) or (missing) is a word that was not seen often.
        of_word = [place.get(word, other) if word not in (OTHER, MISSING) else other for word in words]
        level = np.array([*of_word, place.get(MISSING, other)], np.int64)[codes]
        out = (level[:, None] == np.arange(width)).astype(np.float64)
        return out if means is None else np.concatenate([out, means], axis=1)
    x = _measured(column, values)
    gap = np.isnan(x)
    filled = np.where(gap, column.fill, x)
    parts = [filled]
    for period in column.circles:
        angle = 2.0 * np.pi * filled / PERIODS[period]
        parts += [np.cos(angle), np.sin(angle)]
    if column.indicator:
        parts.append(gap.astype(np.float64))
    return np.stack(parts, axis=1)


def _measured(column: TableColumn, values: _Values) -> NDArray[np.float64]:
    """The column's numbers, or days of its dates; NaN for gaps."""
    x = values.numbers if column.kind == NUMBER else values.dates
    if x is not None:
        return x
    if values.numbers is not None and np.isnan(values.numbers).all():
        return values.numbers
    if not values.words:
        return np.full(len(values.codes), np.nan)
    if values.numbers is None and values.dates is None:
        if column.kind == NUMBER:
            fits = [_form_of_numbers([word]) is not None for word in values.words]
            if all(fits):
                return np.append(_numbers(values.words, column.form), np.nan)[values.codes]
        else:
            days = _dates(values.words, column.form) if column.form else np.full(len(values.words), np.nan)
            for form in DATE_FORMS:
                days = np.where(np.isnan(days), _dates(values.words, form), days) if np.isnan(days).any() else days
            fits = np.isfinite(days).tolist()
            if all(fits):
                return np.append(days, np.nan)[values.codes]
        raise _wrong(values, values.words[fits.index(False)], f"no {column.kind}, as in the training rows")
    raise InputError(f"column {column.name} holds no {column.kind}s, as in the training rows")


def _signature(values: _Values) -> bytes:
    """The same for two columns whose values stand for each other one by one."""
    x = values.numbers if values.numbers is not None else values.dates
    if x is not None:
        return hashlib.sha256(np.nan_to_num(x, nan=np.inf).tobytes()).digest()
    distinct, first, inverse = np.unique(values.codes, return_index=True, return_inverse=True)
    rank = np.empty(len(distinct), np.int64)
    rank[np.argsort(first)] = np.arange(len(distinct))
    return hashlib.sha256(rank[inverse].tobytes() + (b"gaps" if distinct[0] < 0 else b"")).digest()
