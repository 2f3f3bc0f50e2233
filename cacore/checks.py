"""Checks of values given by the user, as text on a command line or as Python objects.

A check takes the value and the option's name. It returns the converted value or raises a one-line InputError.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import pairwise
from numbers import Integral, Real
from pathlib import Path
from typing import TypeGuard, TypeVar

import numpy as np

from cacore import tuning
from cacore.errors import InputError
from cacore.files import STDOUT

T = TypeVar("T", covariant=True)
Convert = Callable[[object, str], T]  # (value or text, option name for messages) -> converted value, or an InputError


FORMS = ("sigmoid", "isotonic")
GAPS = ("fill", "refuse")  # treatments of cells without a value


def as_it_is(value: object, name: str) -> object:
    """Accept any value unchanged."""
    return value


def refused(name: str, value: object, need: str) -> InputError:
    """Error for an invalid value: the option's name, the value, and the kind of value needed."""
    return InputError(f"{name} {value if _is_text(value, name) else repr(value)}: it must be {need}")


def _is_text(value: object, name: str) -> TypeGuard[str]:
    """True if the value was typed on a command line, the only place where text may stand for a number."""
    return isinstance(value, str) and name.startswith("-")


def _real(value: object, name: str) -> float:
    """Value as a float; NaN if it is not a number."""
    if isinstance(value, bool) or not (isinstance(value, Real) or _is_text(value, name)):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def whole(least: int | None = None, greatest: int | None = None, types: type = Integral) -> Convert[int]:
    """Check for a whole number from `least` to `greatest`; 2.0 is accepted only if `types` is Real."""
    need = "a whole number"
    if greatest is not None:
        need += f" from {least} to {greatest}"
    elif least is not None:
        need += f" of at least {least}"

    def convert(value: object, name: str) -> int:
        real = _real(value, name)
        good = real.is_integer() and isinstance(value, (str, types))
        if not good or (least is not None and real < least) or (greatest is not None and real > greatest):
            raise refused(name, value, need)
        return int(value if isinstance(value, Integral) else real)

    return convert


def number(good: Callable[[float], bool], need: str) -> Convert[float]:
    """Check for a number that satisfies `good`; `need` describes the condition in messages."""

    def convert(value: object, name: str) -> float:
        real = _real(value, name)
        if not good(real):
            raise refused(name, value, need)
        # C=1 is reported as 1, not 1.0; but an int beyond int64 would make arrays of objects with older numpy.
        return value if isinstance(value, float) or (isinstance(value, int) and -(2**63) <= value < 2**63) else real

    return convert


positive = number(lambda x: 0 < x < math.inf, "a positive number")
finite = number(math.isfinite, "a finite number")
at_least_zero = number(lambda x: 0 <= x < math.inf, "a number of at least 0")
seconds = number(lambda x: x > 0, "a positive number of seconds")
share = number(lambda x: 0 < x < 1, "a number between 0 and 1")


def one_of(*choices: str) -> Convert[str]:
    """Check for one of these words."""

    def convert(value: object, name: str) -> str:
        if not isinstance(value, str) or value not in choices:
            raise refused(name, value, f"one of {', '.join(choices)}")
        return str(value)

    return convert


def kernel(value: object, name: str) -> str:
    """Name of a kernel; scikit-learn's names are accepted as well."""
    from cacore.kernels.registry import KINDS, canonical

    if not isinstance(value, str):
        raise refused(name, value, "the name of a kernel")
    return str(one_of(*KINDS)(canonical(value), name))


def kernel_or_callable(value: object, name: str) -> str | Callable[..., object]:
    """Name of a kernel (see :func:`kernel`), or a function of two blocks of rows."""
    return value if callable(value) else kernel(value, name)


def kernel_or_auto(value: object, name: str) -> str | Callable[..., object]:
    """Name of a kernel, a function of two blocks of rows, or "auto"."""
    return value if isinstance(value, str) and value == "auto" else kernel_or_callable(value, name)


def number_or(*words: str) -> Convert[float | str]:
    """Check for a positive number or one of these words."""

    def convert(value: object, name: str) -> float | str:
        if isinstance(value, str) and value in words:
            return value
        try:
            return float(positive(value, name))
        except InputError:
            *first, last = words
            raise refused(name, value, f"a positive number, {', '.join(first)} or {last}") from None

    return convert


_READ = ("--test", "--background", "--machine", "--check")  # options whose files are read, not written
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def duration(value: object, name: str) -> float:
    """Seconds from text such as 90s, 10m or 1.5h; a plain number counts seconds."""
    text = str(value).strip().lower()
    unit = _UNITS.get(text[-1:])
    try:
        seconds = float(text[:-1] if unit else text) * (unit or 1.0)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise refused(name, value, "a time, such as 90s, 10m or 1.5h")
    return seconds


def yes_or_no(value: object, name: str) -> bool:
    """Truth value: a Python or numpy bool, or 0 or 1."""
    try:
        good = bool(bool(value) == value)
    except (TypeError, ValueError):  # such as an array
        good = False
    if not good:
        raise refused(name, value, "True or False")
    return bool(value)


def values(value: object, name: str) -> tuple[float, ...]:
    """Grid of one or more positive numbers, or text in the form that :func:`cacore.tuning.parse` reads."""
    name = name.removesuffix(" =")
    return tuning.parse(value, name) if _is_text(value, name) else tuning.checked(value, name)


def one_or(convert: Convert[object], *words: str) -> Convert[object]:
    """Check for a single value (by `convert`), a grid of values (see :func:`values`), or one of these words."""

    def alone(value: object, name: str) -> object:
        lists = "a comma list, lo:hi:COUNT" if name.startswith("-") else "a list of them"
        try:
            return convert(value, name)
        except InputError as error:
            raise InputError(f"{error}, {' or '.join([lists, *words])}") from None

    def several(value: object, name: str) -> object:
        if isinstance(value, str):
            if value in words or not (_is_text(value, name) and ("," in value or ":" in value)):
                return value if value in words else alone(value, name)
        elif not isinstance(value, Collection) or isinstance(value, bytes | dict):
            return alone(value, name)
        grid = values(value, name)
        return grid if len(grid) > 1 else grid[0]

    return several


def levels(value: object, name: str) -> float | tuple[float, ...]:
    """Level of a quantile, a number between 0 and 1; or several in ascending order, on a command line a comma list."""
    several = value.split(",") if _is_text(value, name) and "," in value else value
    if isinstance(several, str) or not isinstance(several, Iterable):
        return float(share(value, name))
    items = list(several)
    numbers = tuple(_real(level, name) for level in items)
    if not numbers or not all(0 < level < 1 for level in numbers) or any(a >= b for a, b in pairwise(numbers)):
        raise refused(name, value if isinstance(value, str) else items, "levels between 0 and 1, in ascending order")
    return numbers


def whole_values(value: object, name: str) -> tuple[int, ...]:
    """Grid of whole numbers of at least 1."""
    numbers = values(value, name)
    for number in numbers:
        if not number.is_integer():
            raise InputError(f"{name.removesuffix(' =')} {number:g}: it must be a whole number")
    return tuple(int(number) for number in numbers)


def path(value: object, name: str) -> Path:
    """File name. "" is refused, since it would mean the directory, and "-", a name most commands read as an option."""
    if not isinstance(value, str | os.PathLike) or value in ("", "-"):
        name = name if name.startswith("-") or name.endswith("=") else name.upper()
        written = name.startswith("-") and name not in _READ
        hint = " (/dev/stdout prints to the terminal)" if written else ""
        raise InputError(f"{name} {value!r}: it must be the name of a file{hint}")
    file = Path(value)
    return file.absolute() if file == STDOUT else file  # ./- is a file


def paths(value: object, name: str) -> tuple[Path, ...]:
    """File names, in a list."""
    if not isinstance(value, list | tuple):
        raise refused(name, value, "a list of the names of files")
    return tuple(path(word, name) for word in value)


def array_names(value: object, name: str) -> tuple[str, ...]:
    """Names of arrays (:mod:`cacore.io.arrays`), in a list or in text with commas, which brackets protect."""
    from cacore.io.arrays import ArrayName

    words = re.findall(r"(?:\[[^]]*\]?|\([^)]*\)?|[^,(\[])+", value) if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or value == "" or not all(isinstance(word, str) for word in words):
        raise refused(name, value, "names of arrays, such as fields[:, 0:9]")
    try:
        return tuple(ArrayName.of(word).text for word in words)
    except InputError as error:
        raise InputError(f"{name} {error}") from error


def column_names(value: object, name: str) -> tuple[str, ...]:
    """Names of columns, as a list or as text with commas, each without the blanks around it.

    In text, a name that has a comma itself is quoted: ``"height, cm",age``.
    """
    words = next(csv.reader([value], skipinitialspace=True), [""]) if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) and word.strip() for word in words):
        raise refused(name, value, "names of columns, such as a,b")
    return tuple(" ".join(word.strip(" \"'#").split()) for word in words)


def path_or_stdout(value: object, name: str) -> Path:
    """File name, or "-" for standard output."""
    return STDOUT if str(value) == "-" else path(value, name)


def column_name(value: object, name: str) -> str:
    """Name of a column."""
    if not isinstance(value, str) or not value.strip():
        raise refused(name, value, "the name of a column")
    return column_names([value], name)[0]


def columns_file(value: object, name: str) -> Mapping[str, object]:
    """Options about columns in a TOML or JSON file, by their names; or such a mapping, checked."""
    import json
    import tomllib

    kinds: dict[str, Convert[object]] = dict.fromkeys(("category", "number", "drop"), column_names)
    kinds |= {"weight": column_name, "id": column_name, "gaps": one_of(*GAPS)}
    contents = value
    if not isinstance(value, Mapping):
        file = path(value, name)
        name = f"{name} {file}:"
        try:
            contents = (json if file.suffix.lower() == ".json" else tomllib).loads(file.read_text("utf-8"))
        except OSError as error:
            raise InputError(f"{name} cannot be read ({error.strerror})") from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{name} neither TOML nor JSON ({error}); name it .toml or .json") from error
    if not isinstance(contents, Mapping):
        raise InputError(f"{name} it must hold {', '.join(kinds)} by name")
    if unknown := [str(key) for key in contents if key not in kinds]:
        raise InputError(f"{name} no such keys: {', '.join(unknown)}; there are {', '.join(kinds)}")
    return {key: kinds[key](contents[key], f"{name} {key}") for key in contents}


def path_argument(word: str) -> Path:
    """File name for argparse, which adds the argument's name to the error itself; see :func:`path`."""
    try:
        return path(word, "")
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def check_form(value: object, name: str) -> str | None:
    """The form that an option asks for, or None for no probabilities; an InputError names the option."""
    if value is None or (isinstance(value, bool | np.bool_) and not value):
        return None
    if isinstance(value, bool | np.bool_):
        return FORMS[0]
    if isinstance(value, str) and value in FORMS:
        return value
    text = value if isinstance(value, str) and name.startswith("-") else repr(value)
    words = "" if name.startswith("-") else "True, False, "
    raise InputError(f"{name} {text}: it must be one of {words}{', '.join(FORMS)}")
