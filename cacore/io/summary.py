"""Summary lines of data files: number, type and sparsity of the rows, and a summary of their targets."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import is_sparse
from cacore.files import printing
from cacore.io import native
from cacore.io.names import listed
from cacore.io.table import Table
from cacore.io.words import printable
from cacore.machine.threads import blocks, rows_in
from cacore.terminal import say

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
    for split, shape in native.describe(path).items():
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
        if table.columns.features:
            lines.append(f"{printable(path)} {split}: features {listed(table.columns.features)}")
    return lines


def _line(
    path: Path, split: str, shape: tuple[int, int], dtype: np.dtype[Any], entries: int | None, targets: TargetSummary
) -> str:  # fmt: skip
    n, d = shape
    form = "dense" if entries is None else f"CSR, {entries / max(1, n):.1f} nonzeros per row"
    return f"{printable(path)} {split}: {n:,} rows x {d} features, {dtype}, {form}; {targets}"


def show(lines: list[str]) -> None:
    """Print the lines."""
    with printing():
        say(*lines)
