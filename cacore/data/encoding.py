"""Tables with words, gaps and dates, and the features that are made of their columns.

A :class:`Encoding` is learned from training rows: for each column its kind, its levels, its gaps and the features that
stand for it. The same encoding then makes the features of any other rows, so it is a part of the model.

* ``number``: numbers, truth values, text of which all words are numbers. The number itself; a gap is the median.
* ``category``: words. An indicator for each frequent level, and one for gaps.
* ``date``: dates and times. Days since 1970, and places on the circles of the year, the week and the day that vary.
* ``identifier``: words of which nearly all differ, row numbers. No features.
* ``constant``: a single value. No features.
* ``copy``: values that stand one by one for those of a column before. No features.
* ``key``, ``weight``, ``dropped``: columns that the user has put aside. No features.

Many gaps have an indicator of their own. Rare levels, and those that the training rows do not have, share one.
Categories of more levels than :data:`MOST_LEVELS` have the mean target of each level, too, shrunken towards the mean of
all rows (Micci-Barreca, 2001); for the training rows without the row's own fold, as scikit-learn's TargetEncoder does.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cacore.data.cells import DATE_FORMS, FORMS, NUMERAL, ColumnCells, WrongCellError, all_numbers, dates_of, matching
from cacore.data.containers import is_missing
from cacore.data.resolution import check_whole_numbers
from cacore.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa


NUMBER, CATEGORY, DATE, IDENTIFIER, CONSTANT, COPY = "number", "category", "date", "identifier", "constant", "copy"
SUMMARY = ("column", "kind", "values", "gaps", "becomes")  # heads of a table of :attr:`TableColumn.summary`
DROPPED, KEY, WEIGHT = "dropped", "key", "weight"  # by the user
KINDS = (NUMBER, CATEGORY, DATE, IDENTIFIER, CONSTANT, COPY, DROPPED, KEY, WEIGHT)
MOST_LEVELS = 30  # indicators of a category; with more, kernels see little but which rows share a level
RARE = 0.005  # least share of the rows for a level of its own
FEW_GAPS = 0.005  # up to this share of gaps, there is no indicator of them
DIFFERENT = 0.9  # share of different words from which on a column is an identifier
SMALL = 20  # least number of rows that can show an identifier
MOST_CLASSES = 12  # classes whose shares are features of a category with many levels
FOLDS = 5
MISSING, OTHER = "(missing)", "(other)"  # names of the levels of gaps, and of rare and unseen words
LEVEL, FIRST_LEVEL = "l", "c"  # letters in Columns.kinds: indicators, of which the first begins a category

PERIODS = {"year": 365.2425, "week": 7.0, "day": 1.0}  # days


def clean(name: object) -> str:
    """Name of a column in the form in which names are compared: without quotes, #, and surplus blanks."""
    return " ".join(str(name).strip(" \"'\n\r#").split())


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
    rare : tuple of str
        Levels without an indicator, if there are no `means`.
    means : dict of str to tuple of float
        For a category of many levels: shrunken means of the targets by level; "" has those of all rows.
    circles : tuple of str
        For dates: periods of which there are features, of "year", "week" and "day".
    original : str
        For a copy: name of the column that has its values.
    zone : bool
        True for dates with a time zone.
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
    rare: tuple[str, ...] = ()
    means: dict[str, tuple[float, ...]] = field(default_factory=dict)
    circles: tuple[str, ...] = ()
    original: str = ""
    zone: bool = False

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
        if self.kind in (KEY, WEIGHT):
            return f"left out: {'kept beside predictions' if self.kind == KEY else 'weights of the rows'}"
        if self.kind in (IDENTIFIER, CONSTANT, DROPPED):
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
        values = (f"{self.distinct:,}" if self.distinct else "") + (
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
    def key(self) -> str:
        """Name of the column that is kept beside predictions; empty if there is none."""
        return next((column.name for column in self.columns if column.kind == KEY), "")

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
            if column.form in ("comma", "grouped"):
                value = "1.234" if column.form == "comma" else "1234"
                lines.append(f"column {column.name}: numbers such as 1,234 are read as {value}")
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

    def apply(
        self, table: pa.Table, comma: bool = False, tell: Callable[[str], object] | None = None
    ) -> NDArray[np.float64]:
        """The features of these rows, shape (n, d).

        Parameters
        ----------
        table : pyarrow.Table of n rows
        comma : bool
            As for :func:`learned`.
        tell : callable, optional
            Called with a line on each column that has levels which no training row has.

        Raises
        ------
        InputError
            Columns are missing, or a cell is no number or date where the training rows have numbers or dates.
        """
        table = cleaned(table)
        if missing := [name for name in self.names if name not in table.column_names]:
            what = f"no column{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
            raise InputError(f"{what}, which the training rows have")

        def featured() -> Iterator[_Featured]:
            for column in self.columns:
                if column.features:
                    cells = ColumnCells.of(column.name, table.column(column.name))
                    if tell is not None and (note := _of_new_levels(column, cells)):
                        tell(note)
                    yield column, cells, None

        return _features(featured(), (table.num_rows, len(self.column_of)), comma)


def _of_entry(entry: dict[str, object]) -> TableColumn:
    """The column that an entry of :meth:`Encoding.described` describes; a ValueError if its fields do not fit."""
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    column = TableColumn(**fields)  # type: ignore[arg-type]
    for name, usual in vars(TableColumn("", "")).items():
        if type(fields.get(name, usual)) is not type(usual) and not (name == "fill" and type(fields[name]) is int):
            raise ValueError
    texts = (*column.levels, *column.rare, *column.circles, *column.means)
    means = {level: tuple(map(float, row)) for level, row in column.means.items()}
    fits = (
        column.kind in KINDS and len(column.levels) == len(column.counts) and all(isinstance(t, str) for t in texts),
        all(type(count) is int for count in column.counts) and np.isfinite(column.fill),
        set(column.circles) <= set(PERIODS) and column.form in {*FORMS, *DATE_FORMS},
        not means or ("" in means and {len(row) for row in means.values()} == {len(means[""])}),
    )
    if not all(fits):
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
    weight, key : str
        Names of the columns with the weights of the rows, and with what is kept beside predictions; empty for none.
    """

    kinds: dict[str, str] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    gaps: str = "fill"
    weight: str = ""
    key: str = ""

    @classmethod
    def of(cls, *sources: Mapping[str, Any]) -> Overrides:
        """The overrides of several sources, by the options' names: lists add up, other values replace those before.

        Raises
        ------
        InputError
            Columns have several meanings; it names all of them.
        """
        meanings = defaultdict[str, set[str]](set)
        values: dict[str, str] = {}
        for source in sources:
            values |= {key: source[key] for key in ("weight", "id", "gaps") if source.get(key)}
            for key in ("category", "number", "drop"):
                for name in source.get(key, ()):
                    meanings[name].add(key)
        for key in ("weight", "id"):
            if key in values:
                meanings[values[key]].add(key)
        if several := [f"{name} ({', '.join(sorted(keys))})" for name, keys in meanings.items() if len(keys) > 1]:
            raise InputError(f"column {', '.join(several)}: give each column one meaning")
        kinds = {name: kind for kind in (NUMBER, CATEGORY) for name, keys in meanings.items() if kind in keys}
        dropped = tuple(name for name, keys in meanings.items() if "drop" in keys)
        return cls(kinds, dropped, values.get("gaps", "fill"), values.get("weight", ""), values.get("id", ""))

    @property
    def aside(self) -> dict[str, str]:
        """Kinds of the columns that are no features, by name."""
        named = {self.weight: WEIGHT, self.key: KEY}
        return dict.fromkeys(self.drop, DROPPED) | {name: kind for name, kind in named.items() if name}

    @property
    def any(self) -> bool:
        """True if a column is named."""
        return bool(self.kinds or self.aside)

    @property
    def words(self) -> list[str]:
        """The options that say the same, as they are written in a command."""
        lists = {kind: [name for name, of_name in self.kinds.items() if of_name == kind] for kind in (CATEGORY, NUMBER)}
        options = {key: ",".join(names) for key, names in (lists | {"drop": list(self.drop)}).items()}
        options |= {"weight": self.weight, "id": self.key, "gaps": self.gaps if self.gaps != "fill" else ""}
        return [word for key, value in options.items() if value for word in (f"--{key}", value)]

    def check(self, names: Sequence[str]) -> None:
        """Raise an InputError for a column that a table with these names does not have, naming all of them."""
        if unknown := [name for name in (*self.kinds, *self.aside) if name not in names]:
            there = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
            raise InputError(f"no feature column {', '.join(unknown)}; the columns are {there}")


NO_OVERRIDES = Overrides()


def learned(
    table: pa.Table, y: NDArray[np.generic] | None = None, overrides: Overrides = NO_OVERRIDES, comma: bool = False,
    weights: NDArray[np.float64] | None = None,
) -> tuple[Encoding, NDArray[np.float64]]:  # fmt: skip
    """The encoding of these training rows, and their features.

    Parameters
    ----------
    table : pyarrow.Table of n rows
        The columns without the target.
    y : ndarray, shape (n,) or (n, t), optional
        Numbers, or classes of any other type, for the means of categories of many levels.
    overrides : Overrides, optional
    comma : bool
        Read ``1,234`` as 1.234.
    weights : ndarray of float64, shape (n,), optional
        Positive weights of the rows in the means of levels; a common factor changes nothing.

    Returns
    -------
    Encoding, ndarray of float64, shape (n, d)

    Raises
    ------
    InputError
        No column has features, two have the same name, or one holds neither numbers nor words nor dates.

    Notes
    -----
    n log n comparisons per column; memory for the features and a few columns.
    """
    table = cleaned(table)
    overrides.check(table.column_names)
    if not table.num_rows:
        raise InputError("no rows: there is nothing to learn")
    targets = None if y is None else _targets(y)
    weights = np.ones(table.num_rows) if weights is None else weights * (table.num_rows / weights.sum())
    columns: list[TableColumn] = []
    featured: list[_Featured] = []
    signatures: dict[bytes, str] = {}
    for name, typed in zip(table.column_names, table.columns, strict=True):
        if name in overrides.aside:
            columns.append(TableColumn(name, overrides.aside[name]))
            continue
        cells = ColumnCells.of(name, typed)
        column = _column(cells, overrides.kinds.get(name), comma, targets is not None)
        if column.gaps and overrides.gaps == "refuse":
            raise WrongCellError(name, _first_gap(column, cells, comma), "missing: fill the gap or remove the row")
        if column.kind in (NUMBER, CATEGORY, DATE):
            signature = _signature(column, cells, comma)
            if signature in signatures:
                column = TableColumn(name, COPY, column.gaps, column.distinct, original=signatures[signature])
            signatures.setdefault(signature, name)
        means = None
        if column.kind == CATEGORY and targets is not None and column.distinct > MOST_LEVELS:
            column, means = _with_means(column, cells.levels(), targets, weights)
        columns.append(column)
        if column.features:
            featured.append((column, cells, means))
    if not featured:
        raise InputError("no column with features: all are constant or identifiers")
    encoding = Encoding(tuple(columns))
    return encoding, _features(featured, (table.num_rows, len(encoding.column_of)), comma)


def cleaned(table: pa.Table) -> pa.Table:
    """The table with the names of its columns as they are compared; an InputError if two are the same."""
    names = [clean(name) for name in table.column_names]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"several columns are called {', '.join(twice)}: rename them")
    return table.rename_columns(names)


def _column(cells: ColumnCells, kind: str | None, comma: bool, targets: bool) -> TableColumn:
    """The kind of a column and how its features are made; `kind` if the user has said it."""
    if kind == CATEGORY or (cells.categorical and kind is None):
        return _category(cells, targets, said=kind == CATEGORY)
    if kind == NUMBER:
        numbers = all_numbers(cells, comma, None, ", as --number says: correct it or remove the row")
        return _numeric(cells.name, numbers, (cells.as_numbers(None, comma) or (None, ""))[1] if cells.words else "")
    if cells.numbers is not None:
        _check_typed(cells)
        return _numeric(cells.name, cells.numbers, "")
    if cells.days is not None:
        return _dated(cells.name, cells.days, "", cells.zone)
    if (reading := cells.as_numbers(None, comma)) is not None:
        whole = [int(word) for word in cells.words if len(word) > 15 and word.lstrip("+-").isdecimal()]
        if len(whole) > 1:
            check_whole_numbers(np.array(whole, object), f"column {cells.name}")
        return _numeric(cells.name, *reading)
    if (reading := cells.as_days(None)) is not None:
        return _dated(cells.name, *reading, reading[1].endswith("Z"))
    _check_mixed(cells)
    return _category(cells, targets, said=False)


def _check_typed(cells: ColumnCells) -> None:
    """Refuse typed whole numbers that double precision does not tell apart."""
    import pyarrow as pa

    numbers = cells.numbers
    if (
        numbers is not None
        and pa.types.is_integer(cells.typed.type)
        and np.nanmax(np.abs(numbers), initial=0.0) > 2**53
    ):
        check_whole_numbers(np.array(cells.typed.drop_null().to_pylist(), object), f"column {cells.name}")


def _check_mixed(cells: ColumnCells) -> None:
    """Refuse a column of numbers with a few words: they are mistakes, and no levels."""
    words, codes = cells.among(is_missing)
    numeric = matching(words, NUMERAL)
    counts = np.bincount(codes[codes >= 0], minlength=len(words))
    if np.count_nonzero(numeric) > MOST_LEVELS and 2 * counts[numeric].sum() >= counts.sum():
        share = 100.0 * counts[numeric].sum() / counts.sum()
        remedy = f"correct it or remove the row; --category {cells.name} takes all its cells for words"
        word = words[int(np.flatnonzero(~numeric)[0])]
        raise cells.wrong(word, f"not a number, as {share:.0f} % of the column's cells are: {remedy}")


def _numeric(name: str, numbers: NDArray[np.float64], form: str) -> TableColumn:
    there = numbers[~np.isnan(numbers)]
    n, gaps, distinct = len(numbers), int(np.isnan(numbers).sum()), len(np.unique(there))
    if distinct == 0 or (distinct == 1 and not _marked(gaps, n)):
        return TableColumn(name, CONSTANT, gaps, distinct)
    if not gaps and n >= SMALL and _are_row_numbers(there):
        return TableColumn(name, IDENTIFIER, 0, distinct)
    return TableColumn(name, NUMBER, gaps, distinct, form, float(np.median(there)), _marked(gaps, n))


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


def _dated(name: str, days: NDArray[np.float64], form: str, zone: bool) -> TableColumn:
    there = days[~np.isnan(days)]
    n, gaps, distinct = len(days), int(np.isnan(days).sum()), len(np.unique(there))
    if distinct < 2:
        return TableColumn(name, CONSTANT, gaps, distinct)
    span = float(np.ptp(there))
    circles = tuple(period for period, length in PERIODS.items() if span >= length and _varies(there / length))
    middle = float(np.median(there))
    return TableColumn(name, DATE, gaps, distinct, form, middle, _marked(gaps, n), circles=circles, zone=zone)


def _varies(phases: NDArray[np.float64]) -> bool:
    """True if these places on a circle, in turns, are not all the same."""
    return len(np.unique(np.round(phases % 1.0, 3))) > 2


def _category(cells: ColumnCells, targets: bool, said: bool) -> TableColumn:
    """A category: indicators of the frequent levels, the most frequent first, of gaps, and of the others."""
    words, codes = cells.levels()
    n, gaps, distinct = len(codes), int((codes < 0).sum()), len(words)
    counts = np.bincount(codes[codes >= 0], minlength=distinct)
    if distinct + (gaps > 0) < 2:
        return TableColumn(cells.name, CONSTANT, gaps, distinct)
    if not said and n >= SMALL and distinct >= DIFFERENT * (n - gaps):
        return TableColumn(cells.name, IDENTIFIER, gaps, distinct)
    order = np.argsort(-counts, kind="stable")
    frequent = [k for k in order[:MOST_LEVELS] if counts[k] >= max(2, RARE * n)]
    levels, sizes = [words[k] for k in frequent], [int(counts[k]) for k in frequent]
    rare = () if targets and distinct > MOST_LEVELS else tuple(words[k] for k in order if k not in frequent)
    if gaps:
        levels, sizes = [*levels, MISSING], [*sizes, gaps]
    if sum(sizes) < n:
        levels, sizes = [*levels, OTHER], [*sizes, n - sum(sizes)]
    if len(levels) < 2:  # means alone tell many rare levels apart
        if not targets or distinct <= MOST_LEVELS:
            return TableColumn(cells.name, IDENTIFIER, gaps, distinct)
        levels, sizes = [], []
    return TableColumn(cells.name, CATEGORY, gaps, distinct, levels=tuple(levels), counts=tuple(sizes), rare=rare)


def _targets(y: NDArray[np.generic]) -> NDArray[np.float64]:
    """Targets of which levels have means, shape (n, t): numbers, or a column of 0 and 1 for each frequent class."""
    if y.dtype.kind == "f":
        return y.reshape(len(y), -1).astype(np.float64)
    classes, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    most = np.argsort(-counts, kind="stable")[: 1 if len(classes) == 2 else MOST_CLASSES]
    return np.asarray(codes.reshape(-1, 1) == np.sort(most), np.float64)


def _with_means(
    column: TableColumn, levels: tuple[list[str], NDArray[np.int64]], targets: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> tuple[TableColumn, NDArray[np.float64]]:  # fmt: skip
    """The category with the means of its levels, and the means for each training row, without the row's own fold."""
    words, all_codes = levels
    codes = np.where(all_codes < 0, len(words), all_codes)
    k = len(words) + 1
    fold = np.random.default_rng(0).permutation(len(codes)) % FOLDS
    rows = np.empty_like(targets)
    for f in range(FOLDS):
        out = fold == f
        means, _ = _shrunken(codes[~out], targets[~out], weights[~out], k)
        rows[out] = means[codes[out]]
    means, overall = _shrunken(codes, targets, weights, k)
    named = [*words, MISSING] if column.gaps else words
    table = {"": tuple(overall.tolist())} | {level: tuple(means[j].tolist()) for j, level in enumerate(named)}
    return replace(column, means=table), rows


def _shrunken(
    codes: NDArray[np.int64], targets: NDArray[np.float64], weights: NDArray[np.float64], k: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weighted means of the targets by level, shape (k, t), shrunken towards those of all rows, shape (t,).

    The share of a level's own mean is n / (n + s2 / v), for the sum n of the weights of its rows, the variance s2
    within levels and v between them.
    """
    counts = np.bincount(codes, weights, k)
    overall = (weights[:, None] * targets).sum(axis=0) / weights.sum()
    means = np.tile(overall, (k, 1))
    for t, y in enumerate(targets.T):
        level = np.bincount(codes, weights * y, k) / np.where(counts > 0.0, counts, 1.0)
        n, levels = float(weights.sum()), int(np.count_nonzero(counts))
        within = float(np.sum(weights * (y - level[codes]) ** 2)) / max(1.0, n - levels)
        between = max(0.0, float(counts @ (level - overall[t]) ** 2) - within * levels) / n
        share = counts * between / np.maximum(counts * between + within, 1e-300)
        means[:, t] += share * (level - overall[t])
    return means, overall


# A column with its cells and, of training rows, the means of its levels without each row's own fold.
_Featured: TypeAlias = tuple[TableColumn, ColumnCells, NDArray[np.float64] | None]


def _features(featured: Iterable[_Featured], shape: tuple[int, int], comma: bool) -> NDArray[np.float64]:
    """The features of columns, side by side."""
    X = np.zeros(shape)
    first = 0
    for column, cells, means in featured:
        last = first + len(column.features)
        _put_features(X[:, first:last], column, cells, means, comma)
        first = last
    return X


def _put_features(
    out: NDArray[np.float64], column: TableColumn, cells: ColumnCells, means: NDArray[np.float64] | None, comma: bool
) -> None:
    """Write a column's features into `out`, zeros of shape (n, k).

    `means` are those of training rows, each without its own fold.
    """
    if column.kind == CATEGORY:
        return _put_indicators(out, column, cells, means)
    x = _measured(column, cells, comma)
    gap = np.isnan(x)
    filled = out[:, 0] = np.where(gap, column.fill, x)
    for i, period in enumerate(column.circles):
        angle = 2.0 * np.pi * filled / PERIODS[period]
        out[:, 1 + 2 * i], out[:, 2 + 2 * i] = np.cos(angle), np.sin(angle)
    if column.indicator:
        out[:, -1] = gap
    return None


def _put_indicators(
    out: NDArray[np.float64], column: TableColumn, cells: ColumnCells, means: NDArray[np.float64] | None
) -> None:
    """Write a category's indicators and means into zeros."""
    words, codes = cells.levels()
    if cells.numbers is not None and words and not set(words) & {*column.levels, *column.means}:
        raise InputError(
            f"column {column.name} holds numbers such as {words[0]}, and the training rows have words such as "
            f"{next(iter([*column.levels, *column.means]))!r}: read it as text"
        )
    place, width = {level: j for j, level in enumerate(column.levels)}, len(column.levels)
    other = place.get(OTHER, width)
    # A word called (other) or (missing) is a word that was not seen often.
    of_word = [place.get(word, other) if word not in (OTHER, MISSING) else other for word in words]
    level = np.array([*of_word, place.get(MISSING, other)], np.int64)[codes]
    rows = np.flatnonzero(level < width)
    out[rows, level[rows]] = 1.0
    if column.means and means is None:
        of_words = [column.means.get(word, column.means[""]) for word in words]
        means = np.array([*of_words, column.means.get(MISSING, column.means[""])])[codes]
    if means is not None:
        out[:, width:] = means


def _of_new_levels(column: TableColumn, cells: ColumnCells) -> str:
    """Note on levels that no training row has; empty without them, or if the model does not know its rare levels."""
    if column.kind != CATEGORY or (OTHER in column.levels and not (column.rare or column.means)):
        return ""
    words, codes = cells.levels()
    levels = {*column.levels, *column.rare, *column.means}
    new = [code for code, word in enumerate(words) if word not in levels]
    if not new:
        return ""
    count, listed = np.count_nonzero(np.isin(codes, new)), ", ".join(words[code] for code in new[:12])
    what = f"{count:,} of {len(codes):,} rows have levels that training had not: {listed}"
    return f"column {column.name}: {what}{', ...' if len(new) > 12 else ''}"


def _measured(column: TableColumn, cells: ColumnCells, comma: bool) -> NDArray[np.float64]:
    """The column's numbers, or days of its dates; NaN for gaps."""
    as_where = ", as in the training rows"
    if cells.numbers is not None and np.isnan(cells.numbers).all():
        return cells.numbers
    if column.kind == NUMBER:
        return all_numbers(cells, comma, column.form, as_where)
    if cells.numbers is not None:
        raise InputError(f"column {column.name} holds numbers, and dates are needed{as_where}")
    if cells.days is not None:
        days, zone = cells.days, cells.zone
    elif (reading := cells.as_days(column.form)) is not None:
        days, zone = reading[0], reading[1].endswith("Z") if reading[1] else column.zone
    else:
        words, _ = cells.among(is_missing)
        bad = np.isnan(dates_of(words, column.form)) if column.form else np.ones(len(words), np.bool_)
        raise cells.wrong(words[int(np.argmax(bad))], f"no date{as_where}")
    if zone != column.zone:
        here, there = ("a time zone", "none") if zone else ("no time zone", "one")
        raise InputError(f"column {column.name} has {here}, and the training rows have {there}: write both alike")
    return days


def _first_gap(column: TableColumn, cells: ColumnCells, comma: bool) -> int:
    """Position of the first missing cell."""
    if column.kind in (NUMBER, DATE):
        return int(np.flatnonzero(np.isnan(_measured(column, cells, comma)))[0])
    return int(np.flatnonzero(cells.levels()[1] < 0)[0])


def _signature(column: TableColumn, cells: ColumnCells, comma: bool) -> bytes:
    """The same for two columns whose values stand for each other one by one."""
    if column.kind in (NUMBER, DATE):
        return hashlib.sha256(np.nan_to_num(_measured(column, cells, comma), nan=np.inf).tobytes()).digest()
    codes = cells.levels()[1]
    distinct, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    rank = np.empty(len(distinct), np.int64)
    rank[np.argsort(first)] = np.arange(len(distinct))
    return hashlib.sha256(rank[inverse].tobytes() + (b"gaps" if distinct[0] < 0 else b"")).digest()
