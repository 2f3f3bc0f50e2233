"""Options: each is declared once, as a field of a dataclass, and everything that knows it comes from there.

A declaration has the option's type and default, what values are good, its help text, its flag, and what it is called in
an estimator and in the report. The parser of a command, the checks, the mapping from an estimator's parameters and the
report's `params` read it (:func:`add_options`, :class:`Options`, :func:`from_estimator`, :func:`reported`).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from numbers import Integral, Real
from typing import Any

from cacore.errors import InputError
from cacore.run import grid

Convert = Callable[[Any, str], Any]  # (value or text, the option's name for a message) -> the value, or an InputError


@dataclass(frozen=True)
class Option:
    """What is known about an option beside its name, type and default.

    Attributes
    ----------
    help : str
    convert : callable
        Makes the value from what a user gave, text or number, or refuses it in one line.
    flag : str
        On a command line; "" where commands do not have it.
    estimator : str
        The parameter of an estimator; "" where estimators do not have it.
    report : str
        The key in the report's `params`; "" where it is not reported.
    parser : dict
        Further arguments of :meth:`argparse.ArgumentParser.add_argument`; ``short``, a second flag, and
        ``exclusive``, for options of which only one may be given.
    """

    help: str
    convert: Convert
    flag: str
    estimator: str
    report: str
    parser: dict[str, Any]


def option(
    default: Any, text: str, convert: Convert | None = None, *, flag: str | None = None, estimator: str | None = None,
    report: str | bool = False, **parser: Any,
) -> Any:  # fmt: skip
    """Declare an option, as the default of a dataclass' field; its names are the field's unless given."""
    return field(default=default, metadata={"option": (text, convert or as_it_is, flag, estimator, report, parser)})


def declared(options: type | Any) -> Iterator[tuple[Field[Any], Option]]:
    """The options of a dataclass, in their order."""
    for one in fields(options):
        if "option" in one.metadata:
            text, convert, flag, estimator, report, parser = one.metadata["option"]
            yield one, Option(
                text, convert, f"--{one.name.replace('_', '-')}" if flag is None else flag,
                one.name if estimator is None else estimator,
                one.name if report is True else report or "", parser,
            )  # fmt: skip


@dataclass(frozen=True)
class Options:
    """Base of the dataclasses of options: every value is converted and checked when one is made.

    Raises
    ------
    InputError
        In one line: the option, its value, what it must be.
    """

    def __post_init__(self) -> None:
        for one, known in declared(self):
            value = getattr(self, one.name)
            if value is not one.default:  # a default may be None where no value a user gives can be
                object.__setattr__(self, one.name, known.convert(value, f"{one.name} ="))


# -- what values are good ----------------------------------------------------------------------


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
    """A grid: one or more positive numbers, or the text that :func:`cacore.run.grid.parse` reads."""
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


# -- where they are used -----------------------------------------------------------------------


def add_options(
    parser: argparse.ArgumentParser, options: type, has: Callable[[str], bool],
    defaults: Mapping[str, Any] | None = None, choices: Mapping[str, tuple[str, ...]] | None = None,
) -> None:  # fmt: skip
    """Give a parser those options of a dataclass that a command `has`, with other defaults and choices."""
    defaults, choices = defaults or {}, choices or {}
    exclusive: Any = None
    for one, known in declared(options):
        if not (known.flag and has(one.name)):
            continue
        more = dict(known.parser)
        target: Any = parser
        if more.pop("exclusive", False):
            target = exclusive = exclusive or parser.add_mutually_exclusive_group()
        words = [*([more.pop("short")] if "short" in more else []), known.flag]
        if one.name in choices:
            more["choices"] = choices[one.name]
        if known.flag.startswith("-"):
            more |= {"dest": one.name, "default": defaults.get(one.name, one.default)}
        target.add_argument(*words, help=known.help, **more)


def from_arguments(options: type, arguments: argparse.Namespace) -> Any:
    """The dataclass of options from parsed arguments; messages name the flags."""
    given = {}
    for one, known in declared(options):
        if known.flag and one.name in vars(arguments):
            value = getattr(arguments, one.name)
            given[one.name] = value if value is None else known.convert(value, known.flag)
    return options(**given)


def from_estimator(options: type, estimator: Any, **more: Any) -> Any:
    """The dataclass of options from an estimator's parameters; messages name the parameters."""
    given = dict(more)
    for one, known in declared(options):
        if known.estimator and one.name not in given and hasattr(estimator, known.estimator):
            value = getattr(estimator, known.estimator)
            if value is not None or one.default is not None:
                given[one.name] = known.convert(value, f"{known.estimator} =")
    return options(**given)


def reported(options: Any, has: Callable[[str], bool]) -> dict[str, Any]:
    """The report's `params` of those options that the command `has`."""
    shown = [(one.name, known.report) for one, known in declared(options) if known.report and has(one.name)]
    return {key: getattr(options, name) for name, key in shown}
