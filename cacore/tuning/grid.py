"""Grids of parameters: a number, a comma list, or ``lo:hi:COUNT`` spaced by powers."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TypeAlias

from cacore.errors import InputError

GridLike: TypeAlias = float | Collection[float] | str  # a parameter of an estimator: a value, several, or a word


def parse(text: str, option: str) -> tuple[float, ...]:
    """Values of a grid option: positive, ascending and distinct; an InputError names the option.

    `text` is like ``"1"``, ``"0.5,1,2"`` or ``"1e-7:1e-3:9"`` (nine values from 1e-7 to 1e-3 with equal ratios).
    """
    try:
        if ":" in text:
            low, high, count = text.split(":")
            values = spaced(float(low), float(high), int(count))
        else:
            values = [float(word) for word in text.split(",")]
    except ValueError as error:
        raise InputError(f"{option} {text}: give a number, a comma list, or lo:hi:COUNT") from error
    return checked(values, option)


def listed(values: tuple[float, ...]) -> str:
    """Text for these values that :func:`parse` reads."""
    return ",".join(f"{value:g}" for value in values)


def spaced(low: float, high: float, count: int) -> list[float]:
    """`count` values from `low` to `high` with equal ratios."""
    if count < 1 or (count == 1 and low != high) or not (0 < low < math.inf and 0 < high < math.inf) or count > 10_000:
        raise ValueError("a positive range and a count are needed")
    import numpy as np  # a command's --help need not load it

    return [float(v) for v in np.geomspace(low, high, count)]


def checked(values: object, option: str) -> tuple[float, ...]:
    """One or more positive finite numbers, as an ascending tuple."""
    import numpy as np

    try:
        given = np.atleast_1d(np.asarray(values, dtype=float))
        if given.ndim > 1:
            raise ValueError("a list in a list")
        numbers = sorted({float(v) for v in given})
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{option} = {values!r}: a number or a list of numbers is needed") from error
    for number in numbers:
        if not (math.isfinite(number) and number > 0):
            raise InputError(f"{option} {number:g}: it must be a positive number")
    if not numbers:
        raise InputError(f"{option}: give at least one value")
    return tuple(numbers)
