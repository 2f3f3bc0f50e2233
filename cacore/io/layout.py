"""Declarations of the arrays in a model file, by which they are checked, written and documented."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cacore.data.quantiles import SCORES
from cacore.data.rows import Rows, is_sparse
from cacore.errors import InputError

# Sizes that are constant or computed from other sizes.
DERIVED: dict[str, Callable[[dict[str, int]], int]] = {
    "1": lambda sizes: 1,
    "7": lambda sizes: 7,
    "1001": lambda sizes: len(SCORES),
    "k - 1": lambda sizes: sizes["k"] - 1,
    "m (m + 1) / 2": lambda sizes: sizes["m"] * (sizes["m"] + 1) // 2,
    "M (M + 1) / 2": lambda sizes: sizes["M"] * (sizes["M"] + 1) // 2,
    "k (k - 1) / 2": lambda sizes: sizes["k"] * (sizes["k"] - 1) // 2,
}
TYPES = {"int64": (np.int64,), "float64": (np.float64,), "real": (np.float64, np.float32)}


@dataclass(frozen=True)
class Array:
    """Declaration of an array in a layout.

    Attributes
    ----------
    type : {"int64", "float64", "real"}
        "real": float64 or float32.
    shape : tuple of str
        One name per dimension: a letter, which stands for the same size in all arrays, or one of :data:`DERIVED`.
    meaning : str
        Description for the documentation.
    csr : bool
        True if the array may be CSR rows: a group of data, indices and indptr, with the attribute shape.
    optional : bool
    many : str
        Letter of an additional last dimension, which exists unless its size is 0; "" if there is never one.
    """

    type: str
    shape: tuple[str, ...]
    meaning: str
    csr: bool = False
    optional: bool = False
    many: str = ""


Layout = Mapping[str, Array]


def check(layout: Layout, arrays: Mapping[str, Rows | None], sizes: dict[str, int], where: str = "") -> None:
    """Check the names, types and shapes of arrays against a layout; unknown sizes are taken from the first array.

    Raises
    ------
    InputError
        An array does not match. The message begins with `where` and the array's name.
    """
    for name, declared in layout.items():
        values = arrays.get(name)
        if values is None:
            if not declared.optional:
                raise InputError(f"{where}without {name}")
            continue
        if values.dtype not in TYPES[declared.type] or (is_sparse(values) and not declared.csr):
            raise InputError(f"{where}{name} has type {values.dtype}; {declared.type} is needed")
        shape = (*declared.shape, declared.many) if declared.many and sizes[declared.many] else declared.shape
        if len(values.shape) != len(shape):
            raise InputError(f"{where}{name} has shape {values.shape}; ({', '.join(shape)}) is needed")
        for size, found in zip(shape, values.shape, strict=True):
            need = DERIVED[size](sizes) if size in DERIVED else sizes.setdefault(size, found)
            if found != need:
                raise InputError(f"{where}{name} has shape {values.shape}; {size} is {need}")
    if unknown := set(arrays) - set(layout):
        raise InputError(f"{where}{min(unknown)} is not an array of this kind of model")


def rows(layout: Layout, folder: str = "") -> list[str]:
    """Markdown table rows that document a layout."""
    lines = []
    for name, declared in layout.items():
        form = f"{declared.type}{', dense or CSR' if declared.csr else ''}"
        given = " (optional)" if declared.optional else ""
        shape = f"({', '.join(declared.shape)})"
        if declared.many:
            shape += f" or ({', '.join((*declared.shape, declared.many))})"
        lines.append(f"| `{folder}{name}`{given} | {form} | {shape} | {declared.meaning} |")
    return lines


STANDARDIZER: dict[str, Any] = {
    "mean": Array("float64", ("d",), "mean of the training rows, subtracted from each row", optional=True),
    "scale": Array("float64", ("d",), "positive scale by which each feature is then divided", optional=True),
    "level_features": Array(
        "int64", ("d",), "columns that replace the features first: the feature of each", optional=True
    ),
    "level_values": Array(
        "float64", ("d",), "value at which such a column is 1, if its feature has several columns", optional=True
    ),
    "quantiles": Array("float64", ("1001", "d"), "quantiles that map features to normal scores", optional=True),
    "metric_weights": Array("float64", ("d",), "diagonal metric: weights that then multiply each row", optional=True),
    "metric_root": Array(
        "float64", ("d", "d"), "full metric: its root, which multiplies each row instead", optional=True
    ),
}
