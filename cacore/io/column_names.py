"""Names of columns in a native file: the arrays `names`, `target_names` and `kinds` beside the rows of a split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np

from cacore.data.columns import Columns, clean

COLUMN_NAMES = ("names", "target_names", "kinds")
_LONGEST = 1 << 28  # bytes of all names


def write_columns(group: h5py.Group, columns: Columns) -> None:
    """Write the names beside the rows, as arrays of UTF-8 text of fixed length; nothing if the features have none."""
    if not columns.features:
        return
    for name, words in zip(COLUMN_NAMES, (columns.features, columns.target, tuple(columns.kinds)), strict=True):
        if words:
            group.create_dataset(name, data=np.array([word.encode(errors="replace") for word in words]))


def read_columns(items: Mapping[str, Any], d: int, targets: int) -> Columns:
    """The names in a group's arrays, for `d` features and `targets` targets; none unless every feature has one.

    Files from elsewhere may have arrays of these names that hold something else, such as names of the rows.
    """
    names = _words(items["names"], d)
    kinds = [word if word in ("f", "i", "u", "b") else "f" for word in _words(items["kinds"], d)]
    return Columns(names, _words(items["target_names"], targets), "".join(kinds)) if names else Columns()


def _words(item: Any, size: int) -> tuple[str, ...]:
    """The texts in an array of this size; none if it is not such an array."""
    if not isinstance(item, h5py.Dataset) or h5py.check_string_dtype(item.dtype) is None:
        return ()
    if item.shape != (size,) or item.nbytes > _LONGEST:
        return ()
    return tuple(clean(word.decode(errors="replace")) for word in item[:].tolist())
