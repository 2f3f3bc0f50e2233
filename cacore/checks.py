"""Checks of values that a user gives, as text on a command line or as an object in Python.

A check takes the value and the option's name, and returns the value that is used, or raises an InputError in one line.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Collection
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from cacore.errors import InputError
from cacore.tuning import grid

Convert = Callable[[Any, str], Any]  # (value or text, the option's name for a message) -> the value, or an InputError


def as_it_is(value: Any, name: str) -> Any:
    """Anything."""
    return value


def refused(name: str, value: Any, need: str) -> InputError:
    """One line about a value that cannot be used."""
    return InputError(f"{name} {value if _is_text(value, name) else repr(value)}: it must be {need}")


def _is_text(value: Any, name: str) -> bool:
    """Whether a value is what a user typed: numbers are text on a command line only."""
    return isinstance(value, str) and name.startswith("-")


def _real(value: Any, name: str) -> float:
    """The number that a value is, or not a number."""
    if isinstance(value, bool) or not (isinstance(value, Real) or _is_text(value, name)):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def whole(least: int | None = None, most: int | None = None, types: type = Integral) -> Convert:
    """A whole number within these bounds, as text or of this type: 2.0 is none, unless `types` is Real."""
    need = "a whole number"
    if most is not None:
        need += f" from {least} to {most}"
    elif least is not None:
        need += f" of at least {least}"

    def convert(value: Any, name: str) -> int:
        real = _real(value, name)
        good = real.is_integer() and isinstance(value, (str, types))
        if not good or (least is not None and real < least) or (most is not None and real > most):
            raise refused(name, value, need)
        return int(value if isinstance(value, Integral) else real)

    return convert


def number(good: Callable[[float], bool], need: str) -> Convert:
    """A number for which `good` holds."""

    def convert(value: Any, name: str) -> float:
        real = _real(value, name)
        if not good(real):
            raise refused(name, value, need)
        return value if isinstance(value, int | float) else real  # C=1 is reported as it was given

    return convert


positive = number(lambda x: 0 < x < math.inf, "a positive number")
finite = number(math.isfinite, "a finite number")
at_least_zero = number(lambda x: 0 <= x < math.inf, "a number of at least 0")
seconds = number(lambda x: x > 0, "a positive number of seconds")
share = number(lambda x: 0 < x < 1, "a number between 0 and 1")


def one_of(*choices: str) -> Convert:
    """One of some words."""

    def convert(value: Any, name: str) -> str:
        if not isinstance(value, str) or value not in choices:
            raise refused(name, value, f"one of {', '.join(choices)}")
        return str(value)

    return convert


def kernel(value: Any, name: str) -> str:
    """A kernel's name, or one of the names that scikit-learn has for it."""
    from cacore.kernels.registry import KINDS, canonical

    if not isinstance(value, str):
        raise refused(name, value, "the name of a kernel")
    return str(one_of(*KINDS)(canonical(value), name))


def kernel_or_callable(value: Any, name: str) -> Any:
    """As :func:`kernel`, or a function of two blocks of rows."""
    return value if callable(value) else kernel(value, name)


def kernel_or_auto(value: Any, name: str) -> Any:
    """As :func:`kernel_or_callable`, or "auto"."""
    return value if isinstance(value, str) and value == "auto" else kernel_or_callable(value, name)


def number_or(*words: str) -> Convert:
    """A positive number, or one of some words."""

    def convert(value: Any, name: str) -> float | str:
        if isinstance(value, str) and value in words:
            return value
        try:
            return float(positive(value, name))
        except InputError:
            *first, last = words
            raise refused(name, value, f"a positive number, {', '.join(first)} or {last}") from None

    return convert


def yes_or_no(value: Any, name: str) -> bool:
    """A truth value: a bool, numpy's or Python's, or 0 or 1."""
    try:
        good = bool(bool(value) == value)
    except (TypeError, ValueError):  # an array, for one
        good = False
    if not good:
        raise refused(name, value, "True or False")
    return bool(value)


def values(value: Any, name: str) -> tuple[float, ...]:
    """A grid: one or more positive numbers, or the text that :func:`cacore.tuning.grid.parse` reads."""
    name = name.removesuffix(" =")
    return grid.parse(value, name) if _is_text(value, name) else grid.checked(value, name)


def one_or(convert: Convert, *words: str) -> Convert:
    """What `convert` makes of one value; a grid of several, as :func:`values`; or one of some words, in either."""

    def alone(value: Any, name: str) -> Any:
        lists = "a comma list, lo:hi:COUNT" if name.startswith("-") else "a list of them"
        try:
            return convert(value, name)
        except InputError as error:
            raise InputError(f"{error}, {' or '.join([lists, *words])}") from None

    def several(value: Any, name: str) -> Any:
        if isinstance(value, str):
            if value in words or not (_is_text(value, name) and ("," in value or ":" in value)):
                return value if value in words else alone(value, name)
        elif not isinstance(value, Collection) or isinstance(value, bytes | dict):
            return alone(value, name)
        found = values(value, name)
        return found if len(found) > 1 else found[0]

    return several


def whole_values(value: Any, name: str) -> tuple[int, ...]:
    """A grid of whole numbers of at least 1."""
    numbers = values(value, name)
    for one in numbers:
        if not one.is_integer():
            raise InputError(f"{name.removesuffix(' =')} {one:g}: it must be a whole number")
    return tuple(int(one) for one in numbers)


def path(value: Any, name: str) -> Path:
    """A file's name. ``Path("")`` would be the directory, and ``-`` a file that few can name afterwards."""
    if not isinstance(value, str | os.PathLike) or value in ("", "-"):
        name = name if name.startswith("-") or name.endswith("=") else name.upper()
        raise InputError(f"{name} {value!r}: it must be the name of a file (/dev/stdout is what is printed)")
    return Path(value)


def path_argument(word: str) -> Path:
    """As :func:`path`, for argparse, which names the argument."""
    try:
        return path(word, "")
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
