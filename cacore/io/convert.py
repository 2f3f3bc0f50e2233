"""Conversion of data to the native HDF5 layout, and what a file holds."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cacore.data.rows import is_sparse, nbytes
from cacore.errors import InputError
from cacore.files import check_apart, check_writable
from cacore.io import native, text
from cacore.io.fingerprints import row_hashes
from cacore.io.stream import REMEDY
from cacore.io.table import Table, Targets, plain
from cacore.io.words import printable
from cacore.machine import memory

_ANY = Targets(many=True, remedy="choose a class with --binarize CLASS")


def read_all(
    path: Path,
    target: str | None = None,
    binarize: str | None = None,
    dtype: np.dtype[Any] | None = None,
    limit: int = 1 << 62,
) -> dict[str, Table]:
    """Every row of a file of any format, checked: numbers as the file has them, which a given `dtype` can hold."""
    if text.kind(path) != "hdf5":
        tables = text.parse(path, target, None, binarize, limit=limit, wanted=_ANY)
        return {split: table.checked(dtype) for split, table in tables.items()}
    if binarize is not None or target is not None:
        raise InputError(f"{path}: --target and --binarize are for sources that are not HDF5")
    shapes = {split: replace(shape, dtype=plain(shape.dtype)) for split, shape in native.describe(path).items()}
    size = sum(native.needed(path, split, 0, shape.n, shape.dtype, limit) for split, shape in shapes.items())
    memory.require(size, limit, f"{path}: to read its rows", REMEDY)
    blocks = {split: native.read_block(path, split, 0, shape.n, shape.dtype) for split, shape in shapes.items()}
    return {split: table.checked(dtype) for split, table in blocks.items()}


def convert(args: argparse.Namespace, limit: int) -> None:
    """The ``convert`` command, in `limit` bytes."""
    check_apart([("the destination", args.destination)], [("the source", args.source), ("--test", args.test)])
    check_writable(args.destination)
    tables = read_all(args.source, args.target, args.binarize, np.dtype(args.dtype), limit)
    if args.test is not None or args.drop_duplicates or args.split is not None:
        _require_twice(tables, args.source, limit)
    if args.drop_duplicates:
        tables = {split: _without_duplicates(table) for split, table in tables.items()}
    if args.test is not None:
        tables = _with_test(tables, args, limit)
    if args.split is not None:
        if "test" in tables:
            raise InputError(f"--split {args.split}: there are test rows already")
        tables = _split(tables["train"], args.split, args.seed)
    for table in tables.values():
        table.check_numeric("choose a class with --binarize CLASS")
    if any(table.X.dtype != args.dtype for table in tables.values()):
        _require_twice(tables, args.source, limit)
    for table in tables.values():
        table.X = table.X.astype(args.dtype, copy=False)
    native.write(args.destination, tables, np.dtype(args.dtype))
    _print(args.destination, tables)


def _require_twice(tables: dict[str, Table], path: Path, limit: int) -> None:
    """What takes or changes rows makes others of them."""
    size = sum(nbytes(table.X) + (0 if table.y is None else table.y.nbytes) for table in tables.values())
    memory.require(2 * size, limit, f"{path}: to hold its rows twice", REMEDY)


def _with_test(tables: dict[str, Table], args: argparse.Namespace, limit: int) -> dict[str, Table]:
    """The rows of a second source as the test rows."""
    if "test" in tables:
        raise InputError(f"{args.source}: has test rows already; drop --test")
    held = sum(nbytes(table.X) for table in tables.values())
    other = read_all(args.test, args.target, args.binarize, np.dtype(args.dtype), max(0, limit - held))
    if "train" not in other:
        raise InputError(f"{args.test}: test rows alone; rows named train, or not named, are needed")
    tables = _same_width({**tables, "test": other["train"]}, limit)
    if args.drop_duplicates:
        tables["test"] = _without_overlap(tables["train"], tables["test"])
    return tables


def _without_duplicates(table: Table) -> Table:
    y = np.zeros(table.X.shape[0]) if table.y is None else table.y
    _, first = np.unique(row_hashes(table.X, y), return_index=True)
    return _take(table, np.sort(first))


def _take(table: Table, rows: NDArray[Any]) -> Table:
    """Some rows of a table; what line each stood on is not known any more."""
    return replace(table, X=table.X[rows], y=None if table.y is None else table.y[rows], line_of=None)


def _without_overlap(train: Table, test: Table) -> Table:
    """The test rows that are not training rows."""
    if train.y is None or test.y is None or train.y.dtype.kind == "U" or test.y.dtype.kind == "U":
        return test
    if train.y.shape[1:] != test.y.shape[1:]:
        raise InputError(f"{test.where}: y has shape {test.y.shape}, and {train.y.shape} in {train.where}")
    return _take(test, ~np.isin(row_hashes(test.X, test.y), row_hashes(train.X, train.y)))


def _same_width(tables: dict[str, Table], limit: int) -> dict[str, Table]:
    """LIBSVM files leave out features that are 0 in all their rows: give both the wider one's."""
    if {table.base for table in tables.values()} == {0, 1}:
        for table in tables.values():
            if table.base == 1:  # the other one has a feature 0, and so has this
                table.X = sp.hstack([sp.csr_matrix((table.X.shape[0], 1)), table.X], format="csr")
    width = max(table.X.shape[1] for table in tables.values())
    for table in tables.values():
        missing = width - table.X.shape[1]
        if missing and table.base is None:
            raise InputError(f"{table.where}: {table.X.shape[1]} features, and {width} in the other file")
        if missing and is_sparse(table.X):
            table.X.resize(table.X.shape[0], width)
        elif missing:
            size = table.X.itemsize * len(table.X) * (width + table.X.shape[1])
            memory.require(size, limit, f"{table.where}: {width:,} features, as in the other file,", REMEDY)
            table.X = np.pad(table.X, ((0, 0), (0, missing)))
    return tables


def _split(table: Table, n_train: int, seed: int) -> dict[str, Table]:
    from sklearn.model_selection import train_test_split

    n = table.X.shape[0]
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed {seed}: it must be from 0 to {2**32 - 1}")
    if not 0 < n_train < n:
        raise InputError(f"--split {n_train}: {table.where} has {n} rows; at least one must be left on each side")
    train, test = train_test_split(np.arange(n), train_size=n_train, random_state=seed)
    return {"train": _take(table, train), "test": _take(table, test)}


def show(path: Path, target: str | None = None, limit: int = 1 << 62) -> None:
    """The ``info`` command: one line a split."""
    _print(path, read_all(path, target, limit=limit))


def _print(path: Path, tables: dict[str, Table]) -> None:
    for split, table in tables.items():
        n, d = table.X.shape
        form = f"CSR, {table.X.nnz / max(1, n):.1f} nonzeros a row" if is_sparse(table.X) else "dense"
        print(f"{printable(path)} {split}: {n:,} rows x {d} features, {table.X.dtype}, {form}; {_target_text(table)}")


def _target_text(table: Table) -> str:
    if table.y is None:
        return "no target"
    if table.y.ndim > 1:
        return f"{table.y.shape[1]} targets of mean {', '.join(f'{mean:g}' for mean in table.y.mean(axis=0)[:20])}"
    values, counts = np.unique(table.y, return_counts=True)
    words = table.y.dtype.kind == "U"
    if len(values) <= 20 or words:
        shown = [f"{v if words else format(v, 'g')} ({c:,})" for v, c in zip(values[:20], counts, strict=False)]
        return "target " + ", ".join([*shown, *(["..."] if len(values) > 20 else [])])
    return f"target {values[0]:g} to {values[-1]:g}, mean {table.y.mean():g}"
