"""Commands ``convert``, which rewrites data files of any size in the native HDF5 layout, and ``info``.

``info`` prints the number, type and sparsity of the rows, and a summary of their targets.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.checks import columns_file
from cacore.comm import Communicator
from cacore.data.encoding import SUMMARY, Columns
from cacore.data.kinds import NO_OVERRIDES, Overrides
from cacore.data.rows import is_sparse
from cacore.errors import CellError, InputError
from cacore.files import Temporary, check_apart, check_writable, printing, temporary
from cacore.io import native, text
from cacore.io.array_files import listing, opened, suggested
from cacore.io.arrays import is_zarr
from cacore.io.libsvm import DENSE_FROM
from cacore.io.mixed import Mixed
from cacore.io.names import Expected, listed, quiet
from cacore.io.native import NativeFile, write_columns
from cacore.io.scanners import Parsers
from cacore.io.spool import ANY, GrowingRows, Selection, Spool, Stored, Watch
from cacore.io.stream import REMEDY, OnBytesRead, first_error
from cacore.io.table import RowsRequest, Table, plain
from cacore.io.words import counted, printable
from cacore.machine import memory
from cacore.machine.threads import blocks, rows_in
from cacore.progress import Advance, bar
from cacore.terminal import say, show_table

_DRAWN = 16  # bytes per row while a random order is drawn

Begin = Callable[[str, int], Advance]


def read_all(path: Path, target: str | None = None, limit: int = 1 << 62) -> dict[str, Table]:
    """Read and check all rows of a file of any format; numbers keep the file's precision."""
    if text.kind(path) != "hdf5":
        tables = text.parse(path, RowsRequest(target=target, limit=limit, wanted=replace(ANY, labels="any")))
        return {split: table.checked() for split, table in tables.items()}
    if target is not None:
        raise InputError(f"{path}: --target does not apply to HDF5 sources")
    file = NativeFile(path)
    shapes = {split: replace(shape, dtype=plain(shape.dtype)) for split, shape in file.describe().items()}
    size = sum(file.needed(split, 0, shape.n, shape.dtype, limit) for split, shape in shapes.items())
    memory.require(size, limit, f"{path}: reading its rows", REMEDY)
    blocks = {split: file.read_block(split, 0, shape.n, shape.dtype) for split, shape in shapes.items()}
    for split, table in blocks.items():
        table.columns = shapes[split].columns
    return {split: table.checked() for split, table in blocks.items()}


def show(path: Path, target: str | None = None, limit: int = 1 << 62) -> None:
    """Run the ``info`` command: print one line per split, and the columns of a table with words, gaps or dates.

    Of a file in another layout than the native one, print its arrays, and options that would read it.
    """
    if is_zarr(path) or (text.kind(path) == "hdf5" and not native.is_native(path)):
        _show_arrays(path)
        return
    try:
        tables = read_all(path, target, limit)
    except CellError:
        if text.kind(path) not in text.MIXED:
            raise
        request = RowsRequest(target=target, limit=limit, wanted=replace(ANY, labels="any"))
        tables = {"train": Mixed(path, text.kind(path), request).table(Communicator())}
    show_summary(of_tables(path, tables))
    for table in tables.values():
        if table.columns.table is not None:
            with printing():
                show_table((column.summary for column in table.columns.table.columns), "columns", SUMMARY)


def _show_arrays(path: Path) -> None:
    """Print the arrays of a file, and options that would read it."""
    with opened(path) as container:
        rows, options = listing(container), suggested(container)
    with printing():
        show_table(rows, f"arrays of {path}", ("array", "shape", "type", "packing"))
        say(f"for example: {options}" if options else "--input ARRAY and --output ARRAY name those of the rows")


def convert(args: argparse.Namespace, limit: int, comm: Communicator) -> None:
    """Run the ``convert`` command with at most `limit` bytes of memory per rank; collective.

    Rank 0 reads and writes; the other ranks, if any, parse text.

    Rows are written to a temporary file beside the destination as they are read. If they need no further change, that
    file becomes the destination. Otherwise (reordered or selected rows, or LIBSVM rows that turn out to be dense) the
    rows are read from it and written a second time.
    """
    with first_error(comm, lambda: comm.rank):
        if comm.size == 1:
            _convert(args, limit, None)
        elif comm.rank:
            Parsers(comm).serve()
        else:
            with Parsers(comm) as parsers:
                _convert(args, limit, parsers)


def _convert(args: argparse.Namespace, limit: int, parsers: Parsers | None) -> None:
    sources = [("the source", path) for path in args.source] + [("--test", path) for path in args.test or []]
    check_apart([("the destination", args.destination)], sources)
    check_writable(args.destination)
    if args.split is not None:
        _check_split(args)
    dtype = np.dtype(args.dtype)
    with bar(not args.quiet) as begin, temporary(args.destination) as spool:
        held = np.dtype(np.float64) if args.drop_duplicates else dtype  # compare rows before rounding
        expected = Expected(
            needed=True, ignore_extra=args.ignore_extra_columns, overrides=_overrides(args),
            tell=quiet if args.quiet else lambda line: say(line, error=True),
        )  # fmt: skip
        request = RowsRequest(
            held, args.target, binarize=args.binarize, limit=limit, wanted=ANY, expected=expected, held=False,
            parsers=parsers,
        )  # fmt: skip
        rows = _numbers_or_mixed(spool.path, request, lambda: _watch(begin, [path for _, path in sources]), args)
        spool.share()
        rows = _chosen(rows, args, limit)
        if all(_is_done(chosen, spool.path, dtype) for chosen in rows.values()):
            lines = _publish(spool, args.destination, rows)
        else:
            lines = _written(args.destination, rows, dtype, limit, begin)
    show_summary(lines)


def _numbers_or_mixed(
    path: Path, request: RowsRequest, watch: Callable[[], Watch], args: argparse.Namespace
) -> dict[str, Selection]:
    """Copy all rows to the file at `path`: numbers as they are, or features of columns with words, gaps or dates."""
    overrides, where = request.expected.overrides, args.source[0]
    is_table = text.kind(where) in text.MIXED
    if not overrides.any and (args.columns is None or is_table):
        try:
            return _spooled(path, request, watch(), args)
        except CellError as error:
            of_training = any(str(error).startswith(f"{source}:") for source in args.source)
            if overrides.gaps == "refuse" or not of_training or not is_table:
                raise
    if not is_table:
        raise InputError(f"{where}: --columns is for CSV, TSV, Parquet and Arrow files: leave it out")
    if len(args.source) > 1:
        raise InputError(f"{where}: words, gaps or dates, and several sources: write them to one file, or encode them")
    if args.split is not None:
        raise InputError(
            f"{where}: words, gaps or dates, and --split: test rows would be learned from; name them by --test"
        )
    if args.drop_duplicates:
        raise InputError(f"{where}: words, gaps or dates, and --drop-duplicates, which compares numbers: leave it out")
    rows = _spooled(path, request, watch(), args, mixed=True)
    table = rows["train"].stored.shape.columns.table
    if table is not None:
        sizes = f"{counted(len(table.column_of), 'feature')} made of {counted(len(table.columns), 'column')}"
        for line in (f"{where}: {sizes}; python -m cacore.io info {args.destination} shows them", *table.notes):
            request.expected.tell(f"note: {line}")
    return rows


def _spooled(
    path: Path, request: RowsRequest, watch: Watch, args: argparse.Namespace, mixed: bool = False
) -> dict[str, Selection]:
    """Copy all rows to the file at `path`, if need be, and select them."""
    with native.data_file(path) as file:
        store = Spool(file, path, request, watch, mixed)
        rows = _alike(_read(store, args), args)
        store.close({split: chosen.width for split, chosen in rows.items()})
    return rows


def _overrides(args: argparse.Namespace) -> Overrides:
    """The kinds of columns that ``--columns`` says."""
    if args.columns is None:
        return NO_OVERRIDES
    overrides = Overrides.of(columns_file(args.columns, "--columns"))
    if aside := [name for name, column in (("weight", overrides.weight), ("id", overrides.key)) if column]:
        raise InputError(f"--columns {args.columns}: {' and '.join(aside)}: an HDF5 file has neither; leave them out")
    return overrides


def _check_split(args: argparse.Namespace) -> None:
    if args.test:
        raise InputError(f"--split {args.split}: there are test rows already")
    if not 0 <= args.seed < 2**32:
        raise InputError(f"--seed {args.seed}: it must be from 0 to {2**32 - 1}")


def _watch(begin: Begin, paths: list[Path]) -> Watch:
    """Progress callbacks for reading these files: a function that returns the callback for one file."""
    started, done = time.monotonic(), 0
    advance: Advance | None = None

    def watch(path: Path) -> OnBytesRead:
        before = 0

        def on_read(place: int) -> None:
            nonlocal before, done, advance
            if advance is None:
                advance = begin("reading", sum(os.stat(path).st_size for path in paths))
            step, before = place - before, place
            done += step
            advance(step, f"reading, {done / 1e6 / max(1e-3, time.monotonic() - started):.0f} MB/s")

        return on_read

    return watch


def _read(store: Spool, args: argparse.Namespace) -> dict[str, Stored]:
    """Read all files into the store; the stored rows, by split."""
    stored = store.take(args.source, {"train": "train", "test": "test"})
    if args.split is not None and "test" in stored:
        raise InputError(f"--split {args.split}: there are test rows already")
    if args.test:
        if "test" in stored:
            raise InputError(f"{args.source[0]}: has test rows already; drop --test")
        other = store.take(args.test, {"train": "test"})
        if "test" not in other:
            raise InputError(f"{args.test[0]}: test rows alone; rows named train, or not named, are needed")
        stored |= other
    return stored


def _alike(stored: dict[str, Stored], args: argparse.Namespace) -> dict[str, Selection]:
    """Select all rows, with the same number of features: LIBSVM rows are widened to those of the widest file.

    LIBSVM files omit trailing features that are 0 in all their rows.
    """
    if not args.test:  # training and test rows come from one file
        return {split: Selection(rows, _is_dense(rows), rows.shape.d, 0) for split, rows in stored.items()}
    apart = {rows.base for rows in stored.values()} == {0, 1}  # if one file has a feature 0, so has the other
    shifts = {split: int(apart and rows.base == 1) for split, rows in stored.items()}
    width = max(rows.shape.d + shifts[split] for split, rows in stored.items())
    for rows in stored.values():
        if rows.base is None and rows.shape.d < width:
            raise InputError(f"{rows.where}: {rows.shape.d} features, but {width} in the other file")
    return {split: Selection(rows, _is_dense(rows), width, shifts[split]) for split, rows in stored.items()}


def _is_dense(rows: Stored) -> bool:
    """True if the rows are to be stored dense; LIBSVM rows are if at least a third of their numbers are nonzero."""
    if rows.base is None:
        return not rows.shape.sparse
    return rows.entries >= DENSE_FROM * rows.shape.n * rows.shape.d


def _chosen(rows: dict[str, Selection], args: argparse.Namespace, limit: int) -> dict[str, Selection]:
    """Apply ``--drop-duplicates`` and ``--split`` to the selected rows."""
    if args.drop_duplicates:
        _drop_duplicates(rows, between=bool(args.test), limit=limit)
    return rows if args.split is None else _split(rows["train"], args.split, args.seed, limit)


def _drop_duplicates(rows: dict[str, Selection], between: bool, limit: int) -> None:
    """Keep the first of equal rows; with `between`, also drop test rows that are training rows."""
    hashes = {split: chosen.hashes(limit) for split, chosen in rows.items()}
    for split, chosen in rows.items():
        _, first = np.unique(hashes[split], return_index=True)
        if len(first) < len(chosen):
            chosen.row_numbers = np.sort(first)
    if not between or any(chosen.stored.shape.y is None for chosen in rows.values()):
        return
    train, test = rows["train"].stored, rows["test"].stored
    shapes = [rows.shape.y for rows in (train, test) if rows.shape.y is not None]
    if shapes[0][1:] != shapes[1][1:]:
        raise InputError(f"{test.where}: y has shape {shapes[1]}, but {shapes[0]} in {train.where}")
    test_rows = np.arange(test.shape.n) if rows["test"].row_numbers is None else rows["test"].row_numbers
    rows["test"].row_numbers = test_rows[~np.isin(hashes["test"][test_rows], hashes["train"])]
    if not len(rows["test"]):
        raise InputError(f"{test.where}: all its rows are training rows too; name other test rows")


def _split(train: Selection, n_train: int, seed: int, limit: int) -> dict[str, Selection]:
    """Draw the same training and test rows as scikit-learn's train_test_split, in the same order.

    It is reimplemented because scikit-learn takes 70 MiB to load, and three arrays with one number per row.
    """
    n = len(train)
    if not 0 < n_train < n:
        raise InputError(f"--split {n_train}: {train.stored.where} has {n:,} rows; each side needs at least one")
    memory.require(_DRAWN * n, limit, f"{train.stored.where}: drawing from its {n:,} rows", REMEDY)
    order = np.random.RandomState(seed).permutation(n)
    if train.row_numbers is not None:
        order = train.row_numbers[order]
    test, rest = order[: n - n_train], order[n - n_train :]
    return {"train": replace(train, row_numbers=rest), "test": replace(train, row_numbers=test)}


def _is_done(rows: Selection, path: Path, dtype: np.dtype[Any]) -> bool:
    """True if the file at `path` already stores the rows in the form needed."""
    stored = rows.stored
    as_read = stored.path == path and rows.row_numbers is None and rows.shift == 0
    return as_read and rows.dense != stored.shape.sparse and stored.shape.dtype == dtype


def _written(path: Path, rows: dict[str, Selection], dtype: np.dtype[Any], limit: int, begin: Begin) -> list[str]:
    """Write the splits atomically; return the lines to print about them."""
    advance = begin("writing", sum(map(len, rows.values())))
    with temporary(path) as made:
        with native.data_file(made.path) as file:
            for split, chosen in rows.items():
                written = GrowingRows(file.create_group(split), dtype)
                for X, y in chosen.blocks(dtype, limit):
                    written.append(X, y)
                    advance(X.shape[0])
                written.close(chosen.width)
                columns = chosen.stored.shape.columns
                write_columns(file[split], columns if len(columns.features) == chosen.width else Columns())
        made.share()
        for chosen in rows.values():
            chosen.stored.check_unchanged()
        return _publish(made, path, rows)


def _publish(made: Temporary, path: Path, rows: dict[str, Selection]) -> list[str]:
    """Move a temporary file to its destination; return the lines to print about it."""
    lines = of_file(made.path, path, {split: chosen.stored.target for split, chosen in rows.items()})
    made.keep()
    return lines


_MOST = 20  # classes, or targets per row, that are shown
_BLOCK = 1 << 20  # bytes of targets to read at a time


class TargetSummary:
    """Summary of targets that arrive block by block and are not stored; `name` is that of their column, if known."""

    def __init__(self, name: str = "") -> None:
        self._title = f"target {name}:" if name else "target"
        self._counts: dict[Any, int] | None = {}
        self._low, self._high = np.inf, -np.inf
        self._total: Any = 0.0
        self._n, self._kind = 0, ""

    def add(self, y: NDArray[Any]) -> None:
        """Add a block of targets: numbers or text, one or several per row."""
        self._n, self._kind = self._n + len(y), y.dtype.kind
        if self._kind != "U":
            self._total = self._total + y.sum(axis=0)
        if y.ndim > 1 or not len(y):
            return
        values, counts = np.unique(y, return_counts=True)
        if self._kind != "U":
            self._low, self._high = min(self._low, values[0]), max(self._high, values[-1])
        if self._counts is not None:
            for value, count in zip(values.tolist(), counts.tolist(), strict=True):
                self._counts[value] = self._counts.get(value, 0) + count
            if len(self._counts) > _MOST and self._kind != "U":
                self._counts = None

    def __str__(self) -> str:
        if not self._n:
            return "no target"
        if np.ndim(self._total):
            means = ", ".join(f"{mean:g}" for mean in (self._total / self._n)[:_MOST])
            return f"{len(self._total)} targets{self._title.removeprefix('target')} of mean {means}"
        if self._counts is None:
            return f"{self._title} {self._low:g} to {self._high:g}, mean {self._total / self._n:g}"
        classes = [f"{v if self._kind in 'Uiu' else format(v, 'g')} ({c:,})" for v, c in sorted(self._counts.items())]
        return f"{self._title} " + ", ".join([*classes[:_MOST], *(["..."] if len(classes) > _MOST else [])])


def of_file(path: Path, name: Path, chosen: dict[str, str]) -> list[str]:
    """One summary line per split of a native file; `name` is the name shown.

    `chosen` has the number of a split's target column if it has no name and the user did not name it.
    """
    lines = []
    for split, shape in NativeFile(path).describe().items():
        targets, entries = TargetSummary(listed(shape.columns.target) or chosen.get(split, "")), None
        with native.opened(path) as file:
            group = file[split]
            if shape.sparse:
                entries = group["X/data"].shape[0]
            if shape.y is not None:
                for lo, hi in blocks(shape.n, rows_in(_BLOCK, math.prod(shape.y[1:]))):
                    targets.add(native.words_or_numbers(group["y"], lo, hi))
        lines.append(_line(name, split, (shape.n, shape.d), shape.dtype, entries, targets))
    return lines


def of_tables(path: Path, tables: dict[str, Table]) -> list[str]:
    """One summary line per split, and one line with the names of its columns if it has any."""
    lines = []
    for split, table in tables.items():
        targets = TargetSummary(listed(table.columns.target) or table.target)
        if table.y is not None:
            targets.add(table.y)
        entries = table.X.nnz if is_sparse(table.X) else None
        lines.append(_line(path, split, table.X.shape, table.X.dtype, entries, targets))
        if table.columns.features and table.columns.table is None:
            lines.append(f"{printable(path)} {split}: features {listed(table.columns.features)}")
    return lines


def _line(
    path: Path, split: str, shape: tuple[int, int], dtype: np.dtype[Any], entries: int | None, targets: TargetSummary
) -> str:  # fmt: skip
    n, d = shape
    form = "dense" if entries is None else f"CSR, {entries / max(1, n):.1f} nonzeros per row"
    return f"{printable(path)} {split}: {n:,} rows x {d} features, {dtype}, {form}; {targets}"


def show_summary(lines: list[str]) -> None:
    """Print the lines."""
    with printing():
        say(*lines)
