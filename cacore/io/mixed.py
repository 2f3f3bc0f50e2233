"""CSV, TSV, Parquet and Arrow files whose columns hold words, gaps or dates beside numbers.

Such a file is read as a whole by rank 0, which makes features of its columns (:mod:`cacore.data.encoding`) and
distributes the rows, so that any number of ranks has the same features, to the bit. Rows that are trained on decide on
the encoding; test rows and rows to predict get that of the training rows. A file that is converted need not fit in
memory: of a copy of it on disk, columns are learned one at a time, and features made block by block.
"""

from __future__ import annotations

import csv
import io
import json
import mmap
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.cells import WrongCellError, numbers_of
from cacore.data.containers import MISSING
from cacore.data.encoding import Columns, Encoding, clean, learned, learned_by_column
from cacore.data.kinds import CLOCK, NUMBER
from cacore.data.rows import scatter_rows
from cacore.errors import InputError
from cacore.io import arrow, delimited
from cacore.io.names import OPTION, Expected, listed, numbered
from cacore.io.stream import Lines, OnBytesRead, Part, is_compressed, open_bytes, place, reading
from cacore.io.table import BLOCK, RowsRequest, Table, Tabular
from cacore.io.words import FEW, short
from cacore.machine import memory
from cacore.machine.threads import blocks, rows_in

if TYPE_CHECKING:
    import pyarrow as pa

_SEPARATORS = ",;\t|"
_LOOKED_AT = 50  # lines that show which separator a text has
_COPIES = 4  # of the text while it is read: pyarrow's columns, features, and what is made on the way
_SEEN = 1 << 20  # bytes of a text that show, as a rule, which columns are decimal numbers
_GAPS = [*MISSING, *map(str.upper, MISSING), "NaN", "NaT", "None"]  # beside numbers, in a text
_FEATURES = 3  # times the features while they are made and handed out
_LEARNING = 80  # bytes a row while a column is learned: its words' codes, numbers, their order, and a hash of them
_TEXTS = 7  # times the text of a column, where all words differ: 120,000 words of 120 letters took 106 MB


class Mixed(Tabular):
    """Rows of a file with words, gaps or dates.

    Parameters
    ----------
    path : Path
    form : {"csv", "tsv", "parquet", "arrow"}
    request : RowsRequest
        With the encoding of the training rows in its expected columns, or without one, which is then learned.
    """

    def __init__(self, path: Path, form: str, request: RowsRequest) -> None:
        self._encoding = encoding = request.expected.columns.table
        self._block: Part | None = None
        self._alone = False  # True for a single rank, which takes all rows as they are
        self._weights: NDArray[np.float64] | None = None  # of the rows, on rank 0
        self.notes: list[str] = []  # on levels that the training rows do not have, on rank 0
        self._comma = False  # True if columns are not separated by commas, so that these may be decimal
        self._head: delimited.Head | None = None
        if form in ("csv", "tsv"):
            self._head = _head_of(path, form, request.limit)
            names, columns = self._head.names, self._head.columns
            self._comma = self._head.delimiter != ","
            self._read: Callable[[], pa.Table] = self._text
        else:
            arrow_names = arrow.names(path, form, request)
            names, columns = tuple(clean(name) for name in arrow_names), len(arrow_names)
            self._read = partial(arrow.whole, path, form, arrow_names)
        if not (names and encoding is not None and "" in {column.name for column in encoding.columns}):
            names = numbered(names, columns)  # older models have columns without names
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise InputError(f"{path}: several columns are called {listed(twice)}: rename them")
        if encoding is not None:
            request = replace(request, expected=_expected(request.expected, encoding, names, str(path)))
        super().__init__(path, names, columns, request)
        self._cells = self.features

    def table(self, comm: Communicator) -> Table:
        """Read all rows on rank 0, make their features, and give this rank its even block; collective."""
        self._alone = comm.size == 1
        with comm.agreed(), reading(self.path):
            if comm.rank == 0:
                self._block = self._made()
        text = b"" if comm.rank else json.dumps(self._required().described()).encode()
        self._encoding = Encoding.of(json.loads(comm.bcast(np.frombuffer(text, np.uint8)).tobytes()))
        self.features = list(range(len(self._encoding.column_of)))
        if not self.request.expected.overrides.weight:
            return super().table(comm)
        self.numbers = comm.bcast(self.numbers)
        rows = super().table(comm)
        weights = scatter_rows(None if self._weights is None else self._weights.reshape(-1, 1), len(self.numbers), comm)
        rows.weights = np.asarray(weights).ravel()
        return rows

    def _text(self) -> pa.Table:
        """The columns of a text; labels, categories and dates as words."""
        assert self._head is not None
        return _text_table(self._head, self._words)

    @property
    def _words(self) -> set[int]:
        """Numbers of the columns of a text that are read as words, whatever they look like."""
        encoding, kinds = self._encoding, self.request.expected.overrides.kinds
        as_words = (
            set(kinds) if encoding is None else {c.name for c in encoding.columns if c.kind not in (NUMBER, CLOCK)}
        )
        words = {j for j, name in enumerate(self._names) if name in as_words}
        return words | set(self.chosen if self.words is not None else ())

    def _required(self) -> Encoding:
        assert self._encoding is not None  # learned before it is used
        return self._encoding

    def _made(self) -> Part:
        """Features and targets of all rows; targets that may be text are codes."""
        size = self.path.stat().st_size
        if not is_compressed(self.path):
            memory.require(_COPIES * size, self.request.limit, f"{self.path}: a table with words", "use fewer rows")
        table = self._read().rename_columns(self._names)
        width = 8 * table.num_rows * (table.num_columns + 1)
        memory.require(_FEATURES * width, self.request.limit, f"{self.path}: a table with words", "use fewer rows")
        with self._placed():
            table = self._with_weight(table)
            y, cells = self._targets(table.select(self.chosen)), table.select(self._cells)
            if self._encoding is None:
                overrides = self.request.expected.overrides
                self._encoding, X = learned(cells, self._of_means(y), overrides, self._comma, self._weights)
            else:
                X = self._encoding.apply(cells, self._comma, self.notes.append)
        return X, y

    @contextmanager
    def _placed(self, first: int = 0) -> Iterator[None]:
        """Name the file and the place in errors of the block, whose rows begin at number `first`."""
        try:
            yield
        except WrongCellError as wrong:
            column = f"column {self._names.index(wrong.column)} ({wrong.column})"
            row = first + wrong.row if self.numbers is None else int(self.numbers[wrong.row])
            raise InputError(f"{self.path}: {_place(self._head, row)}, {column}: {wrong.what}") from wrong
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from error

    def _with_weight(self, table: pa.Table) -> pa.Table:
        """The rows with a positive weight; of others, no cell counts."""
        name = self.request.expected.overrides.weight
        if not name or name not in self._names:  # all unknown names are refused together, when the encoding is learned
            return table
        weights = weights_of(name, table.column(name), self._comma)
        self.numbers = np.flatnonzero(weights)
        self._weights = weights[self.numbers]
        return table if len(self.numbers) == len(weights) else table.take(self.numbers)

    def _targets(self, chosen: pa.Table) -> NDArray[np.float64]:
        """Targets, shape (n, t); those that may be text as codes."""
        if self.words is None:
            named = zip(chosen.column_names, chosen.columns, strict=True)
            columns = [numbers_of(name, column, self._comma, self.request.wanted.remedy) for name, column in named]
            return np.stack(columns, axis=1) if columns else np.empty((chosen.num_rows, 0))
        column = chosen.column(0)
        if str(column.type).startswith("dictionary"):
            column = column.cast(column.type.value_type)  # a dictionary may have words that no row has
        encoded = column.combine_chunks().dictionary_encode()
        words = ["" if word is None else str(word) for word in encoded.dictionary.to_pylist()]
        gap = [] if encoded.null_count == 0 else [self.words.code("")]
        codes = np.array([*map(self.words.code, words), *gap])
        return np.asarray(codes[encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)].reshape(-1, 1))

    def _of_means(self, y: NDArray[np.float64]) -> NDArray[np.generic] | None:
        """Targets of which levels have means: numbers, or whole numbers for classes; None without targets."""
        if self.words is None:
            return y if self.chosen else None
        codes = y[:, 0].astype(np.int64)
        if self.request.binarize is not None:
            return self.words.picked(self.request.binarize)[codes]
        labels = self.words.labels()
        if self.request.wanted.labels == "guess" and labels.dtype.kind in "iuf" and len(labels) > FEW:
            return labels[codes].astype(np.float64)
        return np.unique(labels, return_inverse=True)[1].ravel()[codes]  # in the order of labels, as of a DataFrame

    @property
    def columns(self) -> Columns:
        """Names of the features that are made, and of the targets; with the encoding."""
        target = tuple(self._names[j] for j in self.chosen)
        return replace(self._required().features, target=target, table=self._encoding)

    @property
    def _rounded(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        return np.zeros(len(self.features), np.bool_), np.zeros(len(self.chosen), np.bool_)

    def line_of(self) -> Callable[[int], int] | None:
        """Function that finds the line of a row by reading the file again; None for Parquet and Arrow files."""
        return None if self._head is None else partial(delimited.line_of, self._head)

    def parts(self, on_read: OnBytesRead | None) -> Iterator[Part]:
        """Yield features and targets in blocks of rows, on rank 0."""
        if self._block is not None:
            X, y = self._block
            self._block = None
            step = len(X) if self._alone else self.step
            for lo in range(0, len(X), step):
                yield X[lo : lo + step], y[lo : lo + step]


class MixedBlocks(Mixed):
    """Rows of such a file, block by block, of which a copy lies on disk meanwhile.

    Parameters
    ----------
    path, form, request
        As for :class:`Mixed`.
    folder : Path
        Folder of the copy, which has no name there.

    Notes
    -----
    In memory are the targets, the means of levels, and the cells of one column at a time. The file is read once, and
    once more for each column of text that looks like decimal numbers in its first MiB.
    """

    def __init__(self, path: Path, form: str, request: RowsRequest, folder: Path) -> None:
        super().__init__(path, form, request)
        self._form, self._folder = form, folder

    def parts(self, on_read: OnBytesRead | None) -> Iterator[Part]:
        """Yield features and targets in blocks of rows."""
        with tempfile.TemporaryFile(dir=self._folder) as file:
            table = self._copied(file, on_read).rename_columns(self._names)
            n, means = table.num_rows, dict[str, NDArray[np.float64]]()
            cells = table.select(self._cells)
            size = _LEARNING * n + 8 * n * len(self.chosen) * len(self._cells)
            size += _TEXTS * max(column.nbytes for column in cells.columns)
            memory.require(size, self.request.limit, f"{self.path}: a column of {n:,} cells", "use fewer rows")
            with self._placed():
                y = self._targets(table.select(self.chosen))
                if self._encoding is None:
                    overrides, targets = self.request.expected.overrides, self._of_means(y)
                    self._encoding, means = learned_by_column(cells, targets, overrides, self._comma)
                    encoding = self._encoding
                else:
                    encoding = self._encoding.in_forms_of(cells, self._comma, self.request.expected.tell)
            self.features = list(range(len(encoding.column_of)))
            for lo, hi in blocks(n, rows_in(BLOCK, len(self.features))):
                with self._placed(lo):
                    of_rows = {name: values[lo:hi] for name, values in means.items()}
                    X = encoding.apply(cells.slice(lo, hi - lo), self._comma, means=of_rows, part=True)
                yield X, y[lo:hi]

    def _copied(self, file: IO[bytes], on_read: OnBytesRead | None) -> pa.Table:
        """All columns, mapped from a copy of the rows that is written to the file."""
        import pyarrow as pa

        words = self._words
        while (column := self._copy(file, words, on_read)) is not None:
            words.add(column)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return pa.ipc.open_stream(pa.BufferReader(pa.py_buffer(mapped))).read_all()

    def _copy(self, file: IO[bytes], words: Collection[int], on_read: OnBytesRead | None) -> int | None:
        """Copy the rows; number of a column of text if it has words, and its first cells are decimal numbers."""
        import pyarrow as pa

        file.seek(0)
        file.truncate()
        head, form = self._head, self._form
        batches = arrow.batches(self.path, form, self.request) if head is None else _batches(head, words, on_read)
        writer = None
        try:
            for batch in batches:
                writer = writer or pa.ipc.new_stream(file, batch.schema)
                writer.write_batch(batch)
        except _LateWordError as error:
            return error.column
        finally:
            if writer is not None:
                writer.close()
        if writer is None:
            raise InputError(f"{self.path}: no rows")
        return None


def _expected(expected: Expected, encoding: Encoding, names: tuple[str, ...], where: str) -> Expected:
    """The columns that the encoding needs; those that it leaves out may be there or not."""
    encoded_names = {column.name for column in encoding.columns} | set(expected.columns.target) | {expected.key}
    extra = [name for name in names if name not in encoded_names]
    if extra and not expected.ignore_extra and not (expected.target is not None or not expected.columns.target):
        what = f"column{'s' if len(extra) > 1 else ''} {listed(extra)}, which {expected.where} does not have"
        raise InputError(f"{where}: {what}; {OPTION} leaves them out")
    return replace(expected, columns=Columns(encoding.names, expected.columns.target), ignore_extra=True)


def column_beside(path: Path, form: str, name: str, request: RowsRequest) -> pa.ChunkedArray | None:
    """The cells of a column, as text in a CSV or TSV file; None if the file has no such column.

    Raises
    ------
    InputError
        The user's option names the column, and the file does not have it, or has several.
    """
    head = _head_of(path, form, request.limit) if form in ("csv", "tsv") else None
    written = list(head.names) if head else arrow.names(path, form, request)
    names = numbered(tuple(map(clean, written)), head.columns if head else len(written))
    places = [j for j, other in enumerate(names) if other == name]
    if not places and not request.expected.overrides.aside:
        return None
    if len(places) != 1:
        what = "several columns" if places else "no column"
        raise InputError(f"{path}: {what} {name}; the columns are {listed(names)}")
    if head is None:
        return arrow.whole(path, form, [written[places[0]]]).column(0)
    return _parsed(head, {str(places[0]): "string"}, [str(places[0])]).column(0)


def keys_of(cells: pa.ChunkedArray) -> NDArray[np.int64] | NDArray[np.str_]:
    """Keys as whole numbers, if all are written as such, or as text; a gap is empty, and a day has no time.

    Raises
    ------
    InputError
        The cells are lists, bytes, or of another type that is not written as text.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_timestamp(cells.type) and pc.all(pc.equal(cells, pc.floor_temporal(cells, unit="day"))).as_py():
        cells = cells.cast(pa.date32())  # written as pandas writes dates
    try:
        words = cells.cast(pa.string()).fill_null("")
    except pa.ArrowException as error:
        raise InputError(f"of type {str(cells.type)[:60]}: --id needs words, numbers or dates: convert it") from error
    if pc.all(pc.match_substring_regex(words, "^(0|-?[1-9][0-9]{0,17})$")).as_py():
        return np.asarray(words.cast(pa.int64()).to_numpy())
    return np.array(words.to_pylist(), np.str_)


def weights_of(name: str, cells: pa.ChunkedArray, comma: bool) -> NDArray[np.float64]:
    """Weights of rows; an InputError for a gap, a word, a number that is no weight, and weights that are all 0."""
    weights = numbers_of(name, cells, comma)
    if len(bad := np.flatnonzero(~((weights >= 0.0) & (weights < np.inf)))):
        raise WrongCellError(name, int(bad[0]), f"{weights[bad[0]]:g} is no weight: 0 or more is needed")
    if not weights.any():
        raise InputError(f"column {name}: all weights are 0; at least one row is needed to train on")
    return weights


def _place(head: delimited.Head | None, row: int) -> str:
    """Line of a row of a text with this head, or the row's number in another file."""
    return f"row {row}" if head is None else f"line {delimited.line_of(head, row)}"


def _head_of(path: Path, form: str, limit: int) -> delimited.Head:
    """Separator, names and number of columns of a text."""
    return _with_years(delimited.head_of(path, separator(path, limit, form), limit))


def separator(path: Path, limit: int, form: str) -> str:
    """The separator of a text: the one that its first lines have most often, and equally often outside quotes."""
    usual = "\t" if form == "tsv" else ","
    lines = list(islice((line for line in Lines(path, limit) if line.strip()), _LOOKED_AT))

    def regular(mark: str) -> tuple[bool, int]:
        try:
            widths = [len(row) for row in csv.reader(lines, delimiter=mark) if row]
        except csv.Error:  # a very long cell
            return False, 0
        return bool(widths) and widths[0] > 1 and widths.count(widths[0]) >= 0.9 * len(widths), max(widths, default=0)

    if regular(usual)[0]:
        return usual
    best = max(_SEPARATORS, key=regular)
    return best if regular(best)[0] else usual


def _with_years(head: delimited.Head) -> delimited.Head:
    """The head with names, if its first row has words that are found nowhere below beside years in ascending order.

    Such a line names columns, as in ``town,2019,2020``, also if the rows below have words.
    """
    if head.names:
        return head
    rows = csv.reader(Lines(head.path, head.limit, head.first_line), delimiter=head.delimiter)
    first, *below = islice((row for row in rows if row), _LOOKED_AT)
    words = [j for j, cell in enumerate(first) if not cell.strip().isdecimal()]
    years = [int(cell) for cell in first if cell.strip().isdecimal()]
    ordered = len(years) > 0 and all(a < b for a, b in pairwise(years)) and years[0] >= 1000 and years[-1] < 3000
    if not (words and below and ordered) or any(len(row) != len(first) for row in below):
        return head
    if any(not first[j].strip() or first[j] in {row[j] for row in below} for j in words):
        return head
    return replace(head, names=tuple(clean(cell) for cell in first), first_line=head.first_line + 1)


def _text_table(head: delimited.Head, words: Collection[int]) -> pa.Table:
    """All columns of a text, by their numbers: decimal numbers where pyarrow sees nothing else, or words.

    What words are is decided for files and frames alike, and whole numbers may be codes such as 007. Columns in `words`
    are words.
    """
    words = set(words)
    while True:
        try:
            return _parsed(head, _types(head, words))
        except _LateWordError as error:
            words.add(error.column)


def _types(head: delimited.Head, words: Collection[int]) -> dict[str, str]:
    """Types of columns: double precision where pyarrow sees decimal numbers in the first MiB, and otherwise text."""
    import pyarrow as pa

    schema = _parsed(head, {str(j): "string" for j in words}, first=True).schema
    return {field.name: "float64" if pa.types.is_floating(field.type) else "string" for field in schema}


class _LateWordError(Exception):
    """Column of text whose first cells are decimal numbers, and a later one is not; `column` is its number."""

    def __init__(self, column: int) -> None:
        super().__init__(column)
        self.column = column


def _batches(head: delimited.Head, words: Collection[int], on_read: OnBytesRead | None) -> Iterator[pa.RecordBatch]:
    """The columns that :func:`_text_table` reads, in batches of rows; a _LateWordError if there are words in others."""
    import pyarrow as pa
    import pyarrow.csv as pc

    try:
        with open_bytes(head.path) as stream, pc.open_csv(stream, **_options(head, _types(head, words))) as batches:
            for batch in batches:
                yield batch
                if on_read is not None:
                    on_read(place(stream))
    except (pa.ArrowException, UnicodeError) as error:
        raise _refused(head.path, error) from error


def _parsed(
    head: delimited.Head, types: Mapping[str, str], chosen: Sequence[str] = (), first: bool = False
) -> pa.Table:  # fmt: skip
    """The chosen columns of a text, or all, of these types or those that pyarrow sees; `first`: of its first MiB."""
    import pyarrow as pa
    import pyarrow.csv as pc

    with open_bytes(head.path) as stream:
        few = stream.read(_SEEN) if first else b""
        lines = few[: few.rfind(b"\n") + 1] if len(few) == _SEEN else few
        try:
            return pc.read_csv(io.BytesIO(lines) if first else stream, **_options(head, types, chosen))
        except (pa.ArrowException, UnicodeError) as error:
            raise _refused(head.path, error) from error


def _options(head: delimited.Head, types: Mapping[str, str], chosen: Sequence[str] = ()) -> dict[str, Any]:
    """Arguments of pyarrow's readers of text; columns have their numbers for names."""
    import pyarrow as pa
    import pyarrow.csv as pc

    of_columns = {name: pa.type_for_alias(kind) for name, kind in types.items()}
    return {
        "read_options": pc.ReadOptions(
            skip_rows=head.first_line - 1, column_names=[str(j) for j in range(head.columns)]
        ),
        "parse_options": pc.ParseOptions(delimiter=head.delimiter, newlines_in_values=True),
        "convert_options": pc.ConvertOptions(column_types=of_columns, null_values=_GAPS, include_columns=list(chosen)),
    }


def _refused(path: Path, error: Exception) -> Exception:
    """The error for a text that pyarrow refuses."""
    if late := re.search(r"column #(\d+):.*CSV conversion error to double", str(error)):
        return _LateWordError(int(late[1]))
    what = short(" ".join(str(error).split()), 160)
    return InputError(f"{path}: {what}: correct the line, or save the file as UTF-8")
