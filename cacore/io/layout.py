"""The arrays of a model's file: declared once, and checked, written and documented by their declaration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cacore.data.quantiles import SCORES
from cacore.data.rows import Rows, is_sparse
from cacore.errors import InputError

# Sizes that follow from others.
DERIVED: dict[str, Callable[[dict[str, int]], int]] = {
    "1": lambda sizes: 1,
    "7": lambda sizes: 7,
    "1001": lambda sizes: len(SCORES),
    "k - 1": lambda sizes: sizes["k"] - 1,
    "m (m + 1) / 2": lambda sizes: sizes["m"] * (sizes["m"] + 1) // 2,
    "k (k - 1) / 2": lambda sizes: sizes["k"] * (sizes["k"] - 1) // 2,
}
TYPES = {"int64": (np.int64,), "float64": (np.float64,), "real": (np.float64, np.float32)}


@dataclass(frozen=True)
class Array:
    """An array of a layout.

    Attributes
    ----------
    type : {"int64", "float64", "real"}
        "real": float64 or float32.
    shape : tuple of str
        A letter for each size, which is the same wherever the letter stands, or one of :data:`DERIVED`.
    meaning : str
    csr : bool
        Whether it may be CSR rows: a group of data, indices and indptr, with the attribute shape.
    optional : bool
    many : str
        A letter for the size of one more dimension, which the array has unless that size is 0; "": it never has.
    """

    type: str
    shape: tuple[str, ...]
    meaning: str
    csr: bool = False
    optional: bool = False
    many: str = ""


Layout = Mapping[str, Array]


def check(layout: Layout, arrays: Mapping[str, Rows | None], sizes: dict[str, int], where: str = "") -> None:
    """Refuse arrays that are not those of a layout; sizes that are not known yet are learnt from the first array.

    Raises
    ------
    InputError
        It begins with `where` and the array's name.
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
        raise InputError(f"{where}{min(unknown)} is no array of such a model")


def rows(layout: Layout, folder: str = "") -> list[str]:
    """Lines of a table of a layout, in Markdown."""
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
    "mean": Array("float64", ("d",), "of the training rows, taken away from each row", optional=True),
    "scale": Array("float64", ("d",), "by which each row is divided afterwards, all above 0", optional=True),
    "quantiles": Array("float64", ("1001", "d"), "of the features, by which they become normal scores", optional=True),
    "metric_weights": Array("float64", ("d",), "by which each row is then multiplied", optional=True),
    "metric_root": Array("float64", ("d", "d"), "or by which it is multiplied, a root of the metric", optional=True),
}
