"""Matching of columns by name: the one place that decides which column of a file is which feature.

A native file has its names in the arrays `names`, `target_names` and `kinds` beside the rows of a split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.data.encoding import UNNAMED, Columns
from cacore.data.kinds import NO_OVERRIDES, Overrides
from cacore.errors import InputError
from cacore.io.words import first_values

OPTION = "--ignore-extra-columns"


def quiet(line: str) -> None:
    """Ignore the line."""


@dataclass(frozen=True)
class Expected:
    """The columns that a file must have: those of the training rows or of a model.

    Attributes
    ----------
    columns : Columns
        Without names, nothing is matched, and columns count by their position.
    where : str
        Name, in messages, of the file or model that has these columns.
    needed : bool
        True if rows without a target are of no use.
    target : str or None
        The user's own choice of the target column in this file, which comes before the expected name.
    ignore_extra : bool
        Leave out columns that are not expected, instead of refusing them.
    tell : callable
        Called with one line if the order differs.
    overrides : Overrides
        The user's word on the columns of a table.
    key : str
        Name of a column that is read beside rows to predict, and is no feature unless the model has it as one.
    """

    columns: Columns = UNNAMED
    where: str = ""
    needed: bool = False
    target: str | None = None
    ignore_extra: bool = False
    tell: Callable[[str], object] = quiet
    overrides: Overrides = NO_OVERRIDES
    key: str = ""

    def keys(self, names: Sequence[str], columns: int) -> set[int]:
        """Number of the column with the keys, of so many, if there is one that is no feature."""
        aside = self.key and self.key not in self.columns.features
        return {j for j, name in enumerate(numbered(names, columns)) if aside and name == self.key}

    def matches(self, names: Collection[str]) -> bool:
        """True if both sides have names."""
        return bool(self.columns.features) and bool(names)


UNKNOWN = Expected()


def listed(names: Sequence[str]) -> str:
    """The first names, separated by commas; one that is empty or holds a comma is quoted."""
    return first_values([name if name and "," not in name else f'"{name}"' for name in names])


def numbered(names: Sequence[str], columns: int) -> tuple[str, ...]:
    """The names of so many columns, with numbers for those that have none, such as an index that pandas wrote."""
    return tuple(name or f"column {j}" for j, name in enumerate(names or ("",) * columns))


def in_table(
    expected: Expected, names: Sequence[str], where: str, chosen_targets: list[int] | None
) -> tuple[list[int], list[int]]:
    """Numbers of the features' columns, in the order expected, and of the targets' columns, of a table with names.

    `chosen_targets` are the numbers of the target columns that the user has chosen for this file, or None.

    Raises
    ------
    InputError
        A column is missing or not expected, or several columns have the same name.
    """
    columns = expected.columns
    targets = chosen_targets if chosen_targets is not None else _targets(expected, names, where)
    if chosen_targets is None and not columns.target:
        targets = _last(expected, names)
    aside = {*targets, *_target_columns(expected, names), *expected.keys(names, len(names))}
    return select(expected, names, where, aside), targets


def is_repeated(expected: Expected, names: Sequence[str]) -> bool:
    """True if the one target expected has the name of several columns."""
    target = expected.columns.target
    return len(target) == 1 and names.count(target[0]) > 1


def by_place(expected: Expected, names: Sequence[str], targets: list[int]) -> bool:
    """True if all columns have the names expected where they stand, with the target at its place or left out."""
    columns = expected.columns
    there = tuple(name for j, name in enumerate(names) if j not in targets)
    return there == columns.features and all(names[j] in columns.target for j in targets)


def _target_columns(expected: Expected, names: Sequence[str]) -> set[int]:
    """Numbers of the columns with a target's name, which is never that of a feature."""
    columns = expected.columns
    return {j for j, name in enumerate(names) if name in columns.target and name not in columns.features}


def _targets(expected: Expected, names: Sequence[str], where: str) -> list[int]:
    """Numbers of the columns that have the targets' names; none if one of them is not there."""
    wanted = expected.columns.target
    missing = [name for name in wanted if name not in names]
    if missing:
        if expected.needed:
            raise InputError(
                f"{where}: no target column {listed(missing)}, as in {expected.where}; the columns are {listed(names)}"
            )
        return []
    _check_single(wanted, names, where, expected.where)
    return [names.index(name) for name in wanted]


def _last(expected: Expected, names: Sequence[str]) -> list[int]:
    """Number of the last column if it alone is not a feature: the target, where its name is not known."""
    features = set(expected.columns.features)
    there = [j for j in range(len(names)) if j not in expected.keys(names, len(names))]
    others = [j for j in there if names[j] not in features]
    return others if others == there[-1:] else []


def select(expected: Expected, names: Sequence[str], where: str, aside: Collection[int] = ()) -> list[int]:
    """Numbers of the expected features among columns with these names, without those put `aside`, in order.

    Raises
    ------
    InputError
        See :func:`in_table`.
    """
    wanted, there = expected.columns.features, [j for j in range(len(names)) if j not in aside]
    if tuple(names[j] for j in there) == wanted:
        _tell_several(expected, where)
        return there
    place = {names[j]: j for j in there}
    missing = [name for name in wanted if name not in place]
    if missing:
        raise InputError(
            f"{where}: no column{'s' if len(missing) > 1 else ''} {listed(missing)}, which {expected.where} has; "
            "columns are matched by name: add or rename them"
        )
    _check_single(wanted, [names[j] for j in there], where, expected.where)
    expected_names = set(wanted)
    extra = [names[j] for j in there if names[j] not in expected_names]
    if extra and not expected.ignore_extra:
        raise InputError(
            f"{where}: column{'s' if len(extra) > 1 else ''} {listed(extra)}, which {expected.where} does not have; "
            f"{OPTION} leaves them out"
        )
    order = [place[name] for name in wanted]
    if order != sorted(order):
        expected.tell(f"note: {where}: its columns are in another order than in {expected.where}: matched by name")
    return order


def _tell_several(expected: Expected, where: str) -> None:
    """Tell that columns of one name are matched by their order, if there are such columns."""
    if same := _several((*expected.columns.features, *expected.columns.target)):
        both = f"{where}: several columns are called {listed(same)}, as in {expected.where}"
        expected.tell(f"note: {both}: matched by their order")


def _several(names: Sequence[str]) -> list[str]:
    """The names of more than one column."""
    return [name for name, count in Counter(names).items() if count > 1]


def _check_single(wanted: Sequence[str], names: Sequence[str], where: str, other: str) -> None:
    """Raise an InputError if several columns, on either side, have the same one of these names."""
    for several, here, there in ((names, where, other), (wanted, other, where)):
        wanted_names = set(wanted)
        twice = [name for name in _several(several) if name in wanted_names]
        if twice:
            raise InputError(
                f"{where}: several columns of {here} are called {listed(twice)}, and columns are matched by name with "
                f"{there}: rename them"
            )


@dataclass(frozen=True)
class Order:
    """Selection of the columns of rows in a native file; None means all of them, in the file's order.

    Attributes
    ----------
    features : ndarray of int64, or None
    targets : list of int or None
        Numbers of the targets; an empty list leaves all of them out.
    columns : Columns
        Names of the selected columns.
    """

    features: NDArray[np.int64] | None = None
    targets: list[int] | None = None
    columns: Columns = UNNAMED


def in_rows(expected: Expected, header: Columns, where: str) -> Order:
    """Selection of the features and targets of rows whose targets are known to the file itself.

    Raises
    ------
    InputError
        See :func:`in_table`.
    """
    if expected.columns.table is not None and header.table != expected.columns.table:
        raise InputError(
            f"{where}: its features are not made of columns as those of {expected.where}: give the table itself, or "
            "convert it with --test beside the training rows"
        )
    if not expected.matches(header.features):
        return Order(columns=header)
    if (header.features, header.target) == (expected.columns.features, expected.columns.target):
        _tell_several(expected, where)
        return Order(columns=header)
    d, target = len(header.features), expected.columns.target
    names, targets = [*header.features, *header.target], list(range(d, d + len(header.target)))
    if header.target and target:
        targets = _targets(expected, names, where)
        if any(j < d for j in targets):
            raise InputError(
                f"{where}: {listed(target)}, the target in {expected.where}, is a feature here: convert it again"
            )
    features = select(expected, names, where, {*targets, *_target_columns(expected, names)})
    if any(j >= d for j in features):
        raise InputError(
            f"{where}: {listed(header.target)}, a feature in {expected.where}, is the target here: convert it again"
        )
    order = None if features == list(range(d)) else np.array(features, np.int64)
    target_numbers = [j - d for j in targets]
    columns = Columns(header.features, tuple(header.target[j] for j in target_numbers), header.kinds).taken(features)
    return Order(order, None if target_numbers == list(range(len(header.target))) else target_numbers, columns)
