"""Options, each declared once as a field of a dataclass; options that families share; and rules between options.

A declaration has the option's type and default, the check of its values, its help text, its flag and group, and its
names in an estimator and in the report. The parser of a command, the checks, the mapping from an estimator's parameters
and the report's `params` read it (:func:`add_options`, :class:`Options`, :func:`from_estimator`, :func:`reported`).

A rule is about options that contradict each other or the method; one that is broken gives a message of one line.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from cacore.checks import FORMS, Convert, as_it_is, check_form, one_of, path, whole, yes_or_no
from cacore.errors import InputError

if TYPE_CHECKING:
    from cacore.data.labels import ClassWeight
    from cacore.io.checkpoint import Checkpoint


FILES, PARTS, KERNEL, SEARCH, METRIC, SOLVER, UNCERTAINTY, RESOURCES = GROUPS = (
    "files and reports",
    "parts and routing",
    "kernel and classes",
    "choice of parameters",
    "metric and scaling",
    "solver",
    "probabilities and intervals",
    "resources",
)

T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """Everything about an option except its name, type and default.

    Attributes
    ----------
    help : str
    convert : callable
        Converts what a user gave, text or object, to the value, or refuses it in one line.
    flag : str
        Name of the command-line option; "" if commands do not have it.
    estimator : str
        Name of the estimator's parameter; "" if estimators do not have it.
    report : str
        Key in the report's `params`; "" if it is not reported.
    group : str
        One of :data:`GROUPS`, under which ``--help`` shows it; "" for the first one, of the options that most people
        need first.
    only : callable or None
        ``only(method)`` is True if the command of `method` has the option; None if every command has it.
    parser : dict
        Further arguments of :meth:`argparse.ArgumentParser.add_argument`; ``short``, a second flag, and
        ``exclusive``, for options of which only one may be given.
    """

    help: str
    convert: Convert[object]
    flag: str
    estimator: str
    report: str
    group: str
    only: Callable[[Any], bool] | None
    parser: dict[str, object]


def option(
    default: T, text: str, convert: Convert[object] | None = None, *, flag: str | None = None,
    estimator: str | None = None, report: str | bool = False, group: str = "",
    only: Callable[[Any], bool] | None = None, **parser: object,
) -> T:  # fmt: skip
    """Declare an option, as the default of a dataclass' field; its names are the field's unless given."""
    declaration = text, convert or as_it_is, flag, estimator, report, group, only, parser
    return field(default=default, metadata={"option": declaration})


def argument(name: str, text: str, convert: Convert[T]) -> T:
    """Declare an argument of a command: a value without a flag, which has to be given."""
    return cast("T", option(None, text, convert, flag=name, metavar=name.upper()))


def declared(options: type | Any) -> tuple[tuple[Field[Any], Option], ...]:
    """The options of a dataclass, in their order."""
    return _declared(options if isinstance(options, type) else type(options))


@functools.cache
def _declared(kind: type) -> tuple[tuple[Field[Any], Option], ...]:
    declarations = []
    for option in fields(kind):
        if "option" in option.metadata:
            text, convert, flag, estimator, report, group, only, parser = option.metadata["option"]
            declaration = Option(
                text, convert, f"--{option.name.replace('_', '-')}" if flag is None else flag,
                option.name if estimator is None else estimator,
                option.name if report is True else report or "", group, only, parser,
            )  # fmt: skip
            declarations.append((option, declaration))
    return tuple(declarations)


@dataclass(frozen=True)
class Options:
    """Base of the dataclasses of options: every value is converted and checked when one is made.

    Raises
    ------
    InputError
        In one line: the option, its value, what it must be.
    """

    def __post_init__(self) -> None:
        for option, declaration in declared(self):
            value = getattr(self, option.name)
            if value is not option.default:  # a default may be None where no value a user gives can be
                object.__setattr__(self, option.name, declaration.convert(value, f"{option.name} ="))

    def check_rules(self, method: Any) -> None:
        """Raise an InputError for options that do not go together in `method`, whatever the rows are; here, none."""


def add_options(
    parser: argparse.ArgumentParser, kinds: Sequence[type], has: Callable[[str], bool],
    defaults: Mapping[str, object] | None = None, choices: Mapping[str, tuple[str, ...]] | None = None,
) -> None:  # fmt: skip
    """Give a parser the options of some dataclasses that a command `has`, in their groups.

    Defaults and choices that are given replace those of the declarations. The options of a dataclass that exclude each
    other are in one group.
    """
    defaults, choices = defaults or {}, choices or {}
    groups = {title: parser.add_argument_group(title or "common options") for title in ("", *GROUPS)}
    exclusive: dict[type, Any] = {}
    for source, record, declaration in ((kind, *option) for kind in kinds for option in _in_order(kind)):
        if not (declaration.flag and has(record.name)):
            continue
        arguments = dict(declaration.parser)
        target: Any = groups[declaration.group]
        if arguments.pop("exclusive", False):
            target = exclusive[source] = exclusive.get(source) or target.add_mutually_exclusive_group()
        words = [*([arguments.pop("short")] if "short" in arguments else []), declaration.flag]
        if record.name in choices:
            arguments["choices"] = choices[record.name]
        if declaration.flag.startswith("-"):
            arguments |= {"dest": record.name, "default": defaults.get(record.name, record.default)}
        target.add_argument(*words, help=declaration.help, **arguments)


def _in_order(kind: type) -> list[tuple[Field[Any], Option]]:
    """The options as help shows them: arguments without a flag first, and what the class inherits last."""
    annotations = vars(kind).get("__annotations__", {})
    return sorted(
        declared(kind), key=lambda option: (option[1].flag.startswith("-"), option[0].name not in annotations)
    )


def from_arguments(options: type, arguments: argparse.Namespace) -> Any:
    """The dataclass of options from parsed arguments; messages name the flags."""
    values = {}
    for option, declaration in declared(options):
        if declaration.flag and option.name in vars(arguments):
            value = getattr(arguments, option.name)
            values[option.name] = value if value is None else declaration.convert(value, declaration.flag)
    return options(**values)


def from_estimator(options: type, estimator: object, **more: object) -> Any:
    """The dataclass of options from an estimator's parameters; messages name the parameters."""
    values = dict(more)
    for option, declaration in declared(options):
        if declaration.estimator and option.name not in values:
            value = getattr(estimator, declaration.estimator, option.default)
            if value is not option.default:
                checked_later = (
                    declaration.estimator == option.name and value is not None
                )  # the dataclass has the same message
                values[option.name] = (
                    value if checked_later else declaration.convert(value, f"{declaration.estimator} =")
                )
    return options(**values)


def reported(options: object, has: Callable[[str], bool]) -> dict[str, object]:
    """The report's `params` of those options that the command `has`."""
    keys = [
        (option.name, declaration.report)
        for option, declaration in declared(options)
        if declaration.report and has(option.name)
    ]
    return {key: getattr(options, name) for name, key in keys}


LENGTHS = "lengths"  # metric of length scales that minimise the leave-one-out error
METRICS = ("none", "diagonal", "full", LENGTHS)
ADAPTIVE = ("std", "parts")  # widths of intervals that vary with the row

seed = whole(0, (1 << 32) - 1)


def _checkpoint(value: Any, name: str) -> Checkpoint:
    from cacore.io.checkpoint import Checkpoint

    return value if isinstance(value, Checkpoint) else Checkpoint(value)


def random_state() -> int:
    """Declare the seed."""
    text = "seed of the random number generator"
    return option(0, text, seed, estimator="", report=True, group=RESOURCES, metavar="S")


def checkpoint() -> Checkpoint | None:
    """Declare the folder of finished parts, a :class:`cacore.io.checkpoint.Checkpoint`."""
    text = "keep finished parts in this folder; after an interruption, rerun the same command to continue"
    return option(None, text, _checkpoint, estimator="", group=RESOURCES, metavar="DIR")


def out_of_core(only: Callable[[Any], bool] | None = None, read: str = "each part when it is trained") -> bool:
    """Declare that rows stay in a file, see :mod:`cacore.data.stored`; `read` is what is read when."""
    text = f"keep the rows in a file and read {read}, for HDF5 data larger than memory"
    return option(False, text, yes_or_no, estimator="", group=RESOURCES, only=only, action="store_true")


def scratch(text: str, estimator: str | None = None, only: Callable[[Any], bool] | None = None) -> Path | None:
    """Declare the folder for data that does not fit in memory, see :class:`cacore.machine.memory.Scratch`."""
    return option(None, text, path, estimator=estimator, group=RESOURCES, only=only, metavar="DIR")


def check_out_of_core(wanted: bool, scratch: Path | None, needs_memory: dict[str, bool]) -> None:
    """Refuse options, of those `needs_memory`, that exclude ``--out-of-core``; and ``--scratch`` without it.

    Raises
    ------
    InputError
    """
    if not wanted:
        if scratch is not None:
            raise InputError("--scratch: there is nothing to put there; give --out-of-core as well, or leave it out")
        return
    for name, there in needs_memory.items():
        if there:
            raise InputError(f"{name}: needs all rows in memory; leave it out, or --out-of-core")


def metric() -> str:
    """Declare the learned metric, see :mod:`cacore.data.metric` and :mod:`cacore.data.metric`."""
    text = "learn, in rounds of training, how much each feature counts (diagonal) or each direction (full); or learn "
    text += f"length scales that reduce the leave-one-out error ({LENGTHS})"
    return option("none", text, one_of(*METRICS), group=METRIC, choices=METRICS)


def metric_rounds(least: int = 1) -> int:
    """Declare the number of rounds in which the metric is learned; 0 is for a metric that is given."""
    return option(
        10, "maximum number of rounds of --metric; the best round is kept", whole(least), group=METRIC, metavar="N"
    )


def metric_init(only: Callable[[Any], bool] | None = None) -> Any:
    """Declare the metric in which training begins: an array as estimators' `metric_`, or a model's file."""
    text = "begin with the metric of this model, which fewer rows may have learned; --metric-rounds 0 keeps it"
    return option(None, text, _metric, group=METRIC, only=only, metavar="MODEL.h5")


def _metric(value: object, name: str) -> NDArray[np.float64]:
    if isinstance(value, str | os.PathLike):
        from cacore.io.model_file import metric_of

        try:
            return metric_of(path(value, name))
        except InputError as error:
            raise InputError(f"{name.removesuffix(' =')}: {error}") from error
    try:
        array = np.asarray(value)
        if array.dtype.kind == "c":
            raise TypeError
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{name} {str(value)[:40]!r}: an array as `metric_`, or the file of a model, is needed"
        ) from error


def probability(
    text: str = "also fit class probabilities, from decisions on held-out rows (without a value: sigmoid)",
) -> str | None:
    """Declare that a model has probabilities, see :mod:`cacore.probability.calibrator`."""
    return option(None, text, check_form, group=UNCERTAINTY, choices=FORMS, nargs="?", const=FORMS[0])


def balanced(text: str = "weight the classes so that each counts equally") -> ClassWeight:
    """Declare that classes are weighted by the inverse of their frequency."""
    return option(None, text, flag="--balanced", estimator="", group=KERNEL, action="store_const", const="balanced")


def standardize(default: bool) -> bool:
    """Declare ``--standardize`` and ``--no-standardize``."""
    text = "scale each feature by the training rows' mean and standard deviation"
    return option(default, text, yes_or_no, report=True, group=METRIC, action=argparse.BooleanOptionalAction)


Chosen = TypeVar("Chosen")
Trained = TypeVar("Trained")


@dataclass(frozen=True)
class Rule(Generic[Chosen, Trained]):
    """A mistake in the options: the condition that detects it, and its message.

    Attributes
    ----------
    wrong : callable
        ``wrong(o, m)`` is True if options `o` contradict each other or method `m`.
    message : str or callable
        A format string with the fields ``o`` and ``m``, such as ``"{o.route}: {m.name} ..."``, or a function of both.
    """

    wrong: Callable[[Chosen, Trained], bool]
    message: str | Callable[[Chosen, Trained], str]


def check(rules: Iterable[Rule[Chosen, Trained]], options: Chosen, method: Trained) -> None:
    """Raise an InputError for the first rule that `options` break, if any."""
    for rule in rules:
        if rule.wrong(options, method):
            message = rule.message
            raise InputError(
                message.format(o=options, m=method) if isinstance(message, str) else message(options, method)
            )
