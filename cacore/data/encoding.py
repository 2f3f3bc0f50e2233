"""Tables with words, gaps and dates, and the features that are made of their columns.

A :class:`Encoding` is learned from training rows: for each column its kind, its levels, its gaps and the features that
stand for it. The same encoding then makes the features of any other rows, so it is a part of the model.

* ``number``: numbers, truth values, text of which all words are numbers. The number itself; a gap is the median.
* ``clock``: times of the day, also as whole numbers such as 1435 for 14:35. Minutes since midnight, whose differences
  are durations.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cacore.data.cells import (
    DATE_FORMS,
    FORMS,
    NUMERAL,
    TIME,
    ColumnCells,
    OrderedNumbers,
    Reading,
    WrongCellError,
    all_numbers,
    dates_of,
    matching,
    minutes,
)
from cacore.data.containers import MISSING as GAPS
from cacore.data.kinds import (
    CATEGORY,
    CLOCK,
    CONSTANT,
    COPY,
    DATE,
    DROPPED,
    IDENTIFIER,
    KEY,
    KINDS,
    MEASURED,
    NO_OVERRIDES,
    NUMBER,
    WEIGHT,
    Overrides,
)
from cacore.data.level_means import level_means
from cacore.data.resolution import check_whole_numbers
from cacore.data.rows import power_of_two
from cacore.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa


SUMMARY = ("column", "kind", "values", "gaps", "becomes")  # heads of a table of :attr:`TableColumn.summary`
MOST_LEVELS = 30  # indicators of a category; with more, kernels see little but which rows share a level
RARE = 0.005  # least share of the rows for a level of its own
DIFFERENT = 0.9  # share of different words from which on a column is an identifier
SMALL = 20  # least number of rows that can show an identifier
MOST_CLASSES = 12  # classes whose shares are features of a category with many levels
MISSING, OTHER = "(missing)", "(other)"  # names of the levels of gaps, and of rare and unseen words
LEVEL, FIRST_LEVEL = "l", "c"  # letters in Columns.kinds: indicators, of which the first begins a category
LETTERS = ("f", "i", "u", "b", LEVEL, FIRST_LEVEL)

_BLOCK = 1 << 20  # bytes of features that are written at a time: columns of all rows would miss the cache at each row
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
        if self.kind in (NUMBER, CLOCK):
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
        if self.kind == CLOCK:
            return "minutes since midnight" + (f"; {filled}" if filled else "")
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
        if names := [c.name for c in self.columns if c.kind == CLOCK and c.form != TIME]:
            option = f"--number {','.join(names)} leaves {'them' if len(names) > 1 else 'it'} as numbers"
            plural = "s" if len(names) > 1 else ""
            lines.append(f"column{plural} of times of the day, such as 1435 for 14:35: {', '.join(names)}; {option}")
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
        self, table: pa.Table, comma: bool = False, tell: Callable[[str], object] | None = None,
        means: Mapping[str, NDArray[np.float64]] = {}, part: bool = False,
    ) -> NDArray[np.float64]:  # fmt: skip
        """The features of these rows, shape (n, d).

        Parameters
        ----------
        table : pyarrow.Table of n rows
        comma : bool
            As for :func:`learned`.
        tell : callable, optional
            Called with a line on each column that has levels which no training row has.
        means : dict of str to ndarray of float64, shape (n, t)
            Of training rows: means of :func:`learned_by_column`, which replace those of the rows' levels.
        part : bool
            True for some rows of a table whose columns were learned, or have passed :meth:`in_forms_of`, as a whole.

        Raises
        ------
        InputError
            Columns are missing, or a cell is no number or date where the training rows have numbers or dates.
        """

        def featured() -> Iterator[_Featured]:
            for column, cells in self._with_cells(table):
                if not part:
                    _check_column(column, cells, tell)
                yield column, cells, means.get(column.name)

        return _features(featured(), (table.num_rows, len(self.column_of)), comma)

    def in_forms_of(self, table: pa.Table, comma: bool, tell: Callable[[str], object]) -> Encoding:
        """The encoding with the forms in which a table's numbers and dates are written; one column is in memory.

        Parts of the table then have the features that they have in :meth:`apply` of all rows. Raises its errors.
        """
        forms = {}
        for column, cells in self._with_cells(table):
            _check_column(column, cells, tell)
            if column.kind in MEASURED:
                forms[column.name] = _reading(column, cells, comma)[1]
        return Encoding(tuple(replace(column, form=forms.get(column.name, column.form)) for column in self.columns))

    def _with_cells(self, table: pa.Table) -> Iterator[tuple[TableColumn, ColumnCells]]:
        """The columns that have features, with their cells; an InputError if some are missing."""
        table = cleaned(table)
        if missing := [name for name in self.names if name not in table.column_names]:
            what = f"no column{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
            raise InputError(f"{what}, which the training rows have")
        for column in self.columns:
            if column.features:
                yield column, ColumnCells.of(column.name, table.column(column.name))


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
        kinds = kinds.replace(FIRST_LEVEL, "b").replace(LEVEL, "b")  # some of a category are no category
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
        Positive weights of the rows in medians, shares of levels and gaps, and means of levels; a common factor changes
        nothing. Numbers of rows stay such: `counts`, and the two rows that a level needs.

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
    featured = list(_learned_columns(table, y, overrides, comma, weights))
    encoding = _with_features(column for column, _, _ in featured)
    with_features = (entry for entry in featured if entry[0].features)
    return encoding, _features(with_features, (table.num_rows, len(encoding.column_of)), comma)


def learned_by_column(
    table: pa.Table, y: NDArray[np.generic] | None = None, overrides: Overrides = NO_OVERRIDES, comma: bool = False
) -> tuple[Encoding, dict[str, NDArray[np.float64]]]:  # fmt: skip
    """The encoding that :func:`learned` has, with the cells of one column in memory at a time.

    Parameters and errors are those of :func:`learned`; the table may be mapped from a file.

    Returns
    -------
    Encoding, dict of str to ndarray of float64, shape (n, t)
        By the name of a category with means: those of each row without its own fold, for :meth:`Encoding.apply`.
    """
    columns: list[TableColumn] = []
    means: dict[str, NDArray[np.float64]] = {}
    for column, _, of_rows in _learned_columns(table, y, overrides, comma, None):
        columns.append(column)
        if of_rows is not None:
            means[column.name] = of_rows
    return _with_features(columns), means


def _with_features(columns: Iterable[TableColumn]) -> Encoding:
    """The encoding of these columns; an InputError if none has features."""
    encoding = Encoding(tuple(columns))
    if not encoding.names:
        raise InputError("no column with features: all are constant or identifiers")
    return encoding


def _learned_columns(
    table: pa.Table, y: NDArray[np.generic] | None, overrides: Overrides, comma: bool,
    weights: NDArray[np.float64] | None,
) -> Iterator[_Featured]:  # fmt: skip
    """The columns one after the other, with their cells; see :func:`learned`."""
    table = cleaned(table)
    overrides.check(table.column_names)
    if not table.num_rows:
        raise InputError("no rows: there is nothing to learn")
    weights = np.ones(table.num_rows) if weights is None else weights / power_of_two(weights.max(initial=0.0))
    targets = None if y is None else _targets(y, weights)
    originals: dict[tuple[bool, int, int, bytes], str] = {}
    for name, typed in zip(table.column_names, table.columns, strict=True):
        if name in overrides.aside:
            yield TableColumn(name, overrides.aside[name]), None, None
            continue
        cells = ColumnCells.of(name, typed)
        column = _column(cells, overrides.kinds.get(name), comma, targets is not None, weights)
        if column.gaps and overrides.gaps == "refuse":
            raise WrongCellError(name, _first_gap(column, cells, comma), "missing: fill the gap or remove the row")
        if column.kind in (*MEASURED, CATEGORY):
            values = column.kind == CATEGORY, column.gaps, column.distinct, _signature(column, cells, comma)
            original = originals.setdefault(values, name)
            if original != name:
                column = TableColumn(name, COPY, column.gaps, column.distinct, original=original)
        means = None
        if column.kind == CATEGORY and targets is not None and column.distinct > MOST_LEVELS:
            words, codes = cells.ascending()
            by_level, overall, means = level_means(codes, len(words), targets, weights * (len(weights) / weights.sum()))
            named = [*words.to_pylist(), MISSING] if column.gaps else words.to_pylist()
            table_of_means = {"": overall} | dict(zip(named, by_level, strict=False))
            column = replace(column, means={level: tuple(row.tolist()) for level, row in table_of_means.items()})
        yield column, cells if column.features else None, means  # others need not be held


def cleaned(table: pa.Table) -> pa.Table:
    """The table with the names of its columns as they are compared; an InputError if two are the same."""
    names = [clean(name) for name in table.column_names]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"several columns are called {', '.join(twice)}: rename them")
    return table.rename_columns(names)


def _column(
    cells: ColumnCells, kind: str | None, comma: bool, targets: bool, weights: NDArray[np.float64]
) -> TableColumn:  # fmt: skip
    """The kind of a column and how its features are made; `kind` if the user has said it."""
    if kind == CATEGORY or (cells.categorical and kind is None):
        return _category(cells, targets, weights, said=kind == CATEGORY)
    if kind == NUMBER:
        numbers = all_numbers(cells, comma, None, ", as --number says: correct it or remove the row")
        form = "" if cells.words is None else (cells.as_numbers(None, comma) or (None, ""))[1]
        return _numeric(cells.name, numbers, form, weights, said=True)
    if cells.numbers is not None:
        _check_typed(cells)
        return _numeric(cells.name, cells.numbers, TIME if cells.times else "", weights)
    if cells.days is not None:
        return _dated(cells.name, cells.days, "", cells.zone, weights)
    if (reading := cells.as_numbers(None, comma)) is not None:
        _check_whole(cells)
        return _numeric(cells.name, *reading, weights)
    if (reading := cells.as_days(None)) is not None:
        return _dated(cells.name, *reading, reading[1].endswith("Z"), weights)
    _check_mixed(cells)
    return _category(cells, targets, weights, said=False)


def _check_whole(cells: ColumnCells) -> None:
    """Refuse words of whole numbers that double precision does not tell apart."""
    import pyarrow as pa
    import pyarrow.compute as pc

    words = cells.words
    assert words is not None  # they have been read as numbers
    long = words.filter(pa.array(pc.binary_length(words).to_numpy() > 15))
    whole = [int(word) for word in long.to_pylist() if word.lstrip("+-").isdecimal()]
    if len(whole) > 1:
        check_whole_numbers(np.array(whole, object), f"column {cells.name}")


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
    words, codes = cells.among(GAPS)
    numeric = matching(words, NUMERAL)
    counts = np.bincount(codes + 1, minlength=len(words) + 1)[1:]
    if np.count_nonzero(numeric) > MOST_LEVELS and 2 * counts[numeric].sum() >= counts.sum():
        share = 100.0 * counts[numeric].sum() / counts.sum()
        remedy = f"correct it or remove the row; --category {cells.name} takes all its cells for words"
        word = words[int(np.flatnonzero(~numeric)[0])].as_py()
        raise cells.wrong(word, f"not a number, as {share:.0f} % of the column's cells are: {remedy}")


def _numeric(
    name: str, numbers: NDArray[np.float64], form: str, weights: NDArray[np.float64], said: bool = False
) -> TableColumn:  # fmt: skip
    """A column of numbers; `said` if the user calls them so, which are then no times of the day."""
    values = OrderedNumbers.of(numbers, weights)
    if values.distinct == 0 or (values.distinct == 1 and not values.marked):
        return TableColumn(name, CONSTANT, values.gaps, values.distinct)
    if not values.gaps and len(numbers) >= SMALL and values.are_row_numbers():
        return TableColumn(name, IDENTIFIER, 0, values.distinct)
    kind = CLOCK if form == TIME or (not (said or form) and values.are_times()) else NUMBER
    fill = values.median() if kind == NUMBER else OrderedNumbers.of(minutes(numbers), weights).median()
    return TableColumn(name, kind, values.gaps, values.distinct, form, fill, values.marked)


def _dated(
    name: str, days: NDArray[np.float64], form: str, zone: bool, weights: NDArray[np.float64]
) -> TableColumn:  # fmt: skip
    values = OrderedNumbers.of(days, weights)
    if values.distinct < 2:
        return TableColumn(name, CONSTANT, values.gaps, values.distinct)
    span = float(values.ordered[-1] - values.ordered[0])
    circles = tuple(period for period, length in PERIODS.items() if span >= length and _varies(values.ordered / length))
    return TableColumn(
        name, DATE, values.gaps, values.distinct, form, values.median(), values.marked, circles=circles, zone=zone
    )


def _varies(phases: NDArray[np.float64]) -> bool:
    """True if these places on a circle, in turns, are not all the same."""
    few = len(np.unique(np.round(phases[:1000] % 1.0, 3))) <= 2
    return not few or len(np.unique(np.round(phases % 1.0, 3))) > 2


def _category(cells: ColumnCells, targets: bool, weights: NDArray[np.float64], said: bool) -> TableColumn:
    """A category: indicators of the frequent levels, the most frequent first, of gaps, and of the others."""
    words, codes = cells.levels()
    n, gaps, distinct = len(codes), int(np.count_nonzero(codes < 0)), len(words)
    if distinct + (gaps > 0) < 2:
        return TableColumn(cells.name, CONSTANT, gaps, distinct)
    if not said and n >= SMALL and distinct >= DIFFERENT * (n - gaps):
        return TableColumn(cells.name, IDENTIFIER, gaps, distinct)
    words, codes = cells.ascending()
    counts = np.bincount(codes + 1, minlength=distinct + 1)[1:]
    shares = np.bincount(codes + 1, weights, distinct + 1)[1:] / weights.sum()
    order = np.argsort(-shares, kind="stable")
    frequent = [k for k in order[:MOST_LEVELS].tolist() if counts[k] >= 2 and shares[k] >= RARE]
    levels, sizes = [words[k].as_py() for k in frequent], counts[frequent].tolist()
    rare = () if targets and distinct > MOST_LEVELS else tuple(words.take(order[~np.isin(order, frequent)]).to_pylist())
    if gaps:
        levels, sizes = [*levels, MISSING], [*sizes, gaps]
    if sum(sizes) < n:
        levels, sizes = [*levels, OTHER], [*sizes, n - sum(sizes)]
    if len(levels) < 2:  # means alone tell many rare levels apart
        if not targets or distinct <= MOST_LEVELS:
            return TableColumn(cells.name, IDENTIFIER, gaps, distinct)
        levels, sizes = [], []
    return TableColumn(cells.name, CATEGORY, gaps, distinct, levels=tuple(levels), counts=tuple(sizes), rare=rare)


def _targets(y: NDArray[np.generic], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Targets of which levels have means, shape (n, t): numbers, or a column of 0 and 1 for each frequent class."""
    if y.dtype.kind == "f":
        return y.reshape(len(y), -1).astype(np.float64)
    classes, codes = np.unique(y, return_inverse=True)
    codes = codes.ravel()
    frequent = np.argsort(-np.bincount(codes, weights), kind="stable")[: 1 if len(classes) == 2 else MOST_CLASSES]
    return np.asarray(codes.reshape(-1, 1) == np.sort(frequent), np.float64)


# A column, its cells (None without features) and, of training rows, the means of its levels without each row's fold.
_Featured: TypeAlias = tuple[TableColumn, ColumnCells | None, NDArray[np.float64] | None]


# Writes the features of some rows of a column into zeros, shape (m, k).
_Write: TypeAlias = Callable[[NDArray[np.float64], slice], None]


def _features(featured: Iterable[_Featured], shape: tuple[int, int], comma: bool) -> NDArray[np.float64]:
    """The features of columns, side by side."""
    writers: list[tuple[slice, _Write]] = []
    for column, cells, means in featured:
        first = writers[-1][0].stop if writers else 0
        assert cells is not None  # a column with features
        writer = _writer_of_levels(column, cells, means) if column.kind == CATEGORY else _writer(column, cells, comma)
        writers.append((slice(first, first + len(column.features)), writer))
    X = np.empty(shape)
    step = max(1, _BLOCK // (8 * max(1, shape[1])))
    for lo in range(0, len(X), step):
        rows = slice(lo, lo + step)
        block = X[rows]
        block.fill(0.0)
        for place, write in writers:
            write(block[:, place], rows)
    return X


def _writer(column: TableColumn, cells: ColumnCells, comma: bool) -> _Write:
    """The writer of a column's numbers, or of the days of its dates."""
    values = _measured(column, cells, comma)

    def write(out: NDArray[np.float64], rows: slice) -> None:
        x = values[rows]
        gap = np.isnan(x)
        filled = out[:, 0] = np.where(gap, column.fill, x)
        for i, period in enumerate(column.circles):
            angle = 2.0 * np.pi * filled / PERIODS[period]
            out[:, 1 + 2 * i], out[:, 2 + 2 * i] = np.cos(angle), np.sin(angle)
        if column.indicator:
            out[:, -1] = gap

    return write


def _writer_of_levels(column: TableColumn, cells: ColumnCells, means: NDArray[np.float64] | None) -> _Write:
    """The writer of a category's indicators and means; `means` are those of training rows without their own folds."""
    words, codes = cells.levels()
    place, width = {level: j for j, level in enumerate(column.levels)}, len(column.levels)
    other = place.get(OTHER, width)
    # A word called (other) or (missing) is a word that was not seen often.
    of_word = _places(words, ["" if level in (OTHER, MISSING) else level for level in column.levels])
    of_code = np.append(np.where(of_word < 0, other, of_word), place.get(MISSING, other))
    if column.means and means is None:
        levels = list(column.means)
        of_word = _places(words, levels)  # other words have the mean of all rows, which is that of ""
        of_gap = MISSING if MISSING in column.means else ""
        by_code = np.append(np.where(of_word < 0, levels.index(""), of_word), levels.index(of_gap))
        means = np.array(list(column.means.values()))[by_code][codes]

    def write(out: NDArray[np.float64], rows: slice) -> None:
        level = of_code[codes[rows]]
        there = np.flatnonzero(level < width)
        out[there, level[there]] = 1.0
        if means is not None:
            out[:, width:] = means[rows]

    return write


def _places(words: pa.StringArray, levels: Iterable[str]) -> NDArray[np.int64]:
    """Place of each word among the levels, -1 for others."""
    import pyarrow as pa
    import pyarrow.compute as pc

    places = pc.index_in(words, pa.array(levels, pa.string())).fill_null(-1)
    return np.asarray(places.to_numpy(zero_copy_only=False), np.int64)


def _check_column(column: TableColumn, cells: ColumnCells, tell: Callable[[str], object] | None) -> None:
    """Refuse numbers where training rows have words, and tell of levels that no training row has."""
    if column.kind != CATEGORY:
        return
    words, named = cells.levels()[0], (*column.levels, *column.means)
    if cells.numbers is not None and len(words) and (_places(words, named) < 0).all():
        raise InputError(
            f"column {column.name} holds numbers such as {words[0]}, and the training rows have words such as "
            f"{named[0]!r}: read it as text"
        )
    if tell is not None and (note := _of_new_levels(column, cells)):
        tell(note)


def _of_new_levels(column: TableColumn, cells: ColumnCells) -> str:
    """Note on levels that no training row has; empty without them, or if the model does not know its rare levels."""
    if OTHER in column.levels and not (column.rare or column.means):
        return ""
    words, codes = cells.ascending()
    new = np.flatnonzero(_places(words, [*column.levels, *column.rare, *column.means]) < 0)
    if not len(new):
        return ""
    count, listed = np.count_nonzero(np.isin(codes, new)), ", ".join(words.take(new[:12]).to_pylist())
    what = f"{count:,} of {len(codes):,} rows have levels that training had not: {listed}"
    return f"column {column.name}: {what}{', ...' if len(new) > 12 else ''}"


def _measured(column: TableColumn, cells: ColumnCells, comma: bool) -> NDArray[np.float64]:
    """The column's numbers, minutes, or days of its dates; NaN for gaps."""
    values = _reading(column, cells, comma)[0]
    return minutes(values) if column.kind == CLOCK else values


def _reading(column: TableColumn, cells: ColumnCells, comma: bool) -> Reading:
    """The column's numbers or days, and the form in which they are written; that of training rows for typed cells."""
    as_where = ", as in the training rows"
    if cells.numbers is not None and np.isnan(cells.numbers).all():
        return cells.numbers, column.form
    if column.kind in (NUMBER, CLOCK):
        reading = None if cells.words is None else cells.as_numbers(column.form, comma)
        return reading or (all_numbers(cells, comma, column.form, as_where), column.form)
    if cells.numbers is not None:
        raise InputError(f"column {column.name} holds numbers, and dates are needed{as_where}")
    if cells.days is not None:
        days, zone, form = cells.days, cells.zone, column.form
    elif (reading := cells.as_days(column.form)) is not None:
        days, form = reading
        zone = form.endswith("Z") if form else column.zone
    else:
        words, _ = cells.among(GAPS)
        bad = np.isnan(dates_of(words, column.form)) if column.form else np.ones(len(words), np.bool_)
        raise cells.wrong(words[int(np.argmax(bad))].as_py(), f"no date{as_where}")
    if zone != column.zone:
        here, there = ("a time zone", "none") if zone else ("no time zone", "one")
        raise InputError(f"column {column.name} has {here}, and the training rows have {there}: write both alike")
    return days, form


def _first_gap(column: TableColumn, cells: ColumnCells, comma: bool) -> int:
    """Position of the first missing cell."""
    if column.kind in MEASURED:
        return int(np.flatnonzero(np.isnan(_measured(column, cells, comma)))[0])
    return int(np.flatnonzero(cells.levels()[1] < 0)[0])


def _signature(column: TableColumn, cells: ColumnCells, comma: bool) -> bytes:
    """The same for two columns whose values stand for each other one by one."""
    if column.kind in MEASURED:
        return hashlib.sha256(np.nan_to_num(_measured(column, cells, comma), nan=np.inf).tobytes()).digest()
    codes = cells.levels()[1]
    first = np.full(codes.max(initial=-1) + 2, len(codes))
    first[codes[::-1]] = np.arange(len(codes))[::-1]  # the last one written is the first row of a level; -1 is a gap
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first)] = np.arange(len(first))
    return hashlib.sha256(rank[codes].tobytes() + (b"gaps" if (codes < 0).any() else b"")).digest()
