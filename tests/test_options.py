"""An option is declared once: its parser, its checks, its estimator's parameter and its place in the report follow."""

from __future__ import annotations

import argparse
import inspect
import math
from dataclasses import FrozenInstanceError, dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from helpers.checks import refusal
from helpers.methods import METHODS, method_of, of_every_command

import asygcd
import cakriging
import cakrr
import casvm.casvm
import casvm.command
from cacore import checks
from cacore.errors import InputError
from cacore.learn import options
from cacore.learn.options import (
    Options,
    add_options,
    declared,
    from_arguments,
    from_estimator,
    option,
    reported,
)
from cacore.run import launch
from cacore.run.launch import Parser

# -- every kind of value -----------------------------------------------------------------------

# The declaration of a kind of value: what is good, and what it is then; what is refused, and what must be instead.
KINDS = {
    "whole": (
        checks.whole(1, 9),
        {1: 1, np.int32(3): 3},
        [0, 10, 2.5, 9.0, np.float32(4), Fraction(8, 2), math.nan, math.inf, True, "3", None, [3], 1j, 10**400],
        "a whole number from 1 to 9",
    ),
    "whole, from": (checks.whole(2), {2: 2, (1 << 60) + 1: (1 << 60) + 1}, [1, "x"], "a whole number of at least 2"),
    "whole, any": (checks.whole(), {-1: -1, 0: 0}, [0.5, None], "a whole number"),
    "positive": (checks.positive, {1: 1, 1e-300: 1e-300, np.float32(0.5): 0.5}, [0, -1, math.nan, math.inf, False],
                 "a positive number"),
    "finite": (checks.finite, {-1: -1, 0: 0}, [math.nan, -math.inf, "0"], "a finite number"),
    "at least 0": (checks.at_least_zero, {0: 0, 2: 2}, [-1e-9, math.nan, math.inf], "a number of at least 0"),
    "seconds": (checks.seconds, {1e-3: 1e-3, math.inf: math.inf}, [0, -1, math.nan], "a positive number of seconds"),
    "share": (checks.share, {0.5: 0.5}, [0, 1, math.nan, "0.5"], "a number between 0 and 1"),
    "one of": (checks.one_of("a", "b"), {"a": "a", "b": "b"}, ["c", 1, None, ""], "one of a, b"),
    "number or": (checks.number_or("scale", "auto"), {"auto": "auto", 3: 3.0}, ["3", "x", 0, None, True],
                  "a positive number, scale or auto"),
    "kernel": (checks.kernel, {"linear": "linear", "rbf": "gaussian", "poly": "polynomial"}, ["cosine", ""],
               "one of "),
    "kernel, a function": (checks.kernel, {}, [len, 3, None], "the name of a kernel"),
    "seed": (options.seed, {0: 0, (1 << 32) - 1: (1 << 32) - 1}, [-1, 1 << 32, 0.5],
             "a whole number from 0 to 4294967295"),
    "values": (checks.values, {(3, 1.0, 3): (1.0, 3.0), 2: (2.0,), range(1, 3): (1.0, 2.0)}, [], ""),
    "whole values": (checks.whole_values, {(30, 10): (10, 30), 5.0: (5,)}, [], ""),
    "yes or no": (
        checks.yes_or_no,
        {1: True, False: False},
        ["no", "", None, 2, math.nan, [], np.ones(2)],
        "True or False",
    ),
}  # fmt: skip
GOOD = [(name, value, made) for name, (_, good, _, _) in KINDS.items() for value, made in good.items()]
BAD = [(name, value) for name, (_, _, bad, _) in KINDS.items() for value in bad]


@pytest.mark.parametrize(("name", "value", "made"), GOOD, ids=str)
def test_values_that_are_good(name, value, made):
    got = KINDS[name][0](value, "x =")
    assert got == made
    assert type(got) is type(made)


@pytest.mark.parametrize(("name", "value"), BAD, ids=lambda value: str(value)[:30])
def test_values_that_are_refused(name, value):
    convert, _, _, need = KINDS[name]
    message = refusal(convert, value, "x =")
    assert message.startswith(f"x = {value!r}: it must be {need}")


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (0, "x 0"), ([1, -2], "x -2"), (math.nan, "x nan"), ([], "x: "), ("1,2", "x = '1,2'"), (None, "x nan"),
        (object, "x = "), ([1, 10**400], "x = "),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_grids_that_are_refused(value, named):
    """The one value among several that is wrong, and not the flag's text in place of numbers."""
    for convert in (checks.values, checks.whole_values):
        assert refusal(convert, value, "x =").startswith(named)


def test_grids_of_whole_numbers():
    assert refusal(checks.whole_values, [1, 2.5], "centers =") == "centers 2.5: it must be a whole number"


# What a user types, as text: what it is then, or the end of the one line that refuses it.
TYPED = {
    "whole": {"3": 3, "3.0": 3, "3.5": None, "x": None, "": None, "nan": None, "1e999": None},
    "positive": {"1e-3": 1e-3, "0": None, "-1": None, "inf": None, "ten": None},
    "number or": {"scale": "scale", "0.5": 0.5, "0": None, "Scale": None},
    "values": {"1": (1.0,), "2,1": (1.0, 2.0), "1:100:3": (1.0, 10.0, 100.0), "1:2": None, "0": None, "1;2": None},
    "whole values": {"20,10": (10, 20), "2.5": None},
    "one of": {"a": "a", "A": None},
    "seed": {"7": 7, "4294967296": None},
}


TEXTS = [(name, text, made) for name, some in TYPED.items() for text, made in some.items()]


@pytest.mark.parametrize(("name", "text", "made"), TEXTS)
def test_values_that_are_typed(name, text, made):
    convert = KINDS[name][0]
    if made is None:
        assert refusal(convert, text, "--flag").startswith(f"--flag {text}")
    else:
        assert convert(text, "--flag") == pytest.approx(made) if name == "values" else made


# -- one declaration, and all that follows from it ---------------------------------------------


@dataclass(frozen=True)
class Few(Options):
    """Options of each form."""

    tol: float = option(1e-3, "when to stop", checks.positive, report=True, metavar="T")
    lam: tuple = option((1.0,), "ridges", checks.values, flag="--lambda", report="lambda")
    n: int | None = option(None, "parts", checks.whole(1), flag="--parts", estimator="n_parts")
    max_time: float | None = option(None, "seconds", checks.seconds)
    route: str = option("near", "who answers", checks.one_of("near", "far", "hidden"), choices=("near", "far"))
    seed: int = option(0, "of everything", checks.whole(0), estimator="", report=True)
    inside: int = option(3, "not on a command line", checks.whole(1), flag="", report=True)
    data: str = option(None, "a file", flag="data")
    output: str | None = option(None, "another", short="-o")
    balanced: bool = option(False, "classes alike", checks.yes_or_no, action="store_true")
    quiet: bool = option(False, "nothing", checks.yes_or_no, exclusive=True, action="store_true")
    verbose: bool = option(False, "much", checks.yes_or_no, exclusive=True, action="store_true")
    limit: int = 7  # no option


def every(_):
    return True


def parsed(words, has=every, **more):
    parser = Parser(prog="few")
    add_options(parser, (Few,), has, **more)
    return from_arguments(Few, parser.parse_args(["in.h5", *words]))


def test_declared_options_have_their_names_and_flags():
    known = {one.name: what for one, what in declared(Few)}
    assert "limit" not in known
    assert {name: what.flag for name, what in known.items() if what.flag != f"--{name}"} == {
        "lam": "--lambda", "n": "--parts", "max_time": "--max-time", "inside": "", "data": "data",
    }  # fmt: skip
    assert {name: what.estimator for name, what in known.items() if what.estimator != name} == {
        "n": "n_parts",
        "seed": "",
    }
    assert {name: what.report for name, what in known.items() if what.report} == {
        "tol": "tol", "lam": "lambda", "seed": "seed", "inside": "inside",
    }  # fmt: skip


def test_defaults_are_not_converted():
    """None stands for "not given" where no value of a user's can be None."""
    made = Few()
    assert (made.tol, made.lam, made.n, made.limit, made.data) == (1e-3, (1.0,), None, 7, None)


def test_checked_when_made():
    made = Few(tol=1, lam=[2, 1], n=np.int64(4))
    assert (made.tol, made.lam, made.n) == (1.0, (1.0, 2.0), 4)
    assert [type(value) for value in (made.tol, made.lam, made.n)] == [int, tuple, int]  # as they were given
    assert refusal(lambda: Few(tol=0)) == "tol = 0: it must be a positive number"
    assert refusal(lambda: Few(tol="1e-3")) == "tol = '1e-3': it must be a positive number"
    assert refusal(lambda: replace(made, n=0)) == "n = 0: it must be a whole number of at least 1"
    with pytest.raises(FrozenInstanceError):
        made.tol = -1


def test_on_a_command_line():
    made = parsed(["--lambda", "1:100:3", "--parts", "4", "--max-time", "2", "-o", "out", "--balanced", "--quiet"])
    assert made == Few(lam=(1.0, 10.0, 100.0), n=4, max_time=2.0, output="out", balanced=True, quiet=True, data="in.h5")
    assert parsed([]) == Few(data="in.h5")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tol", "0"], "--tol 0: it must be a positive number"),
        (["--lambda", "1:2"], "--lambda 1:2: give a number, a comma list, or lo:hi:COUNT"),
        (["--parts", "x"], "--parts x: it must be a whole number of at least 1"),
        (["--route", "hidden"], "argument --route: invalid choice: 'hidden'"),
        (["--quiet", "--verbose"], "argument --verbose: not allowed with argument --quiet"),
        (["--n", "3"], "unrecognized arguments: --n 3"),
        (["--tol"], "argument --tol: expected one argument"),
    ],
)
def test_messages_name_the_flag(words, message):
    assert refusal(parsed, words).startswith(message)


def test_some_of_the_options():
    """A command has those that it names, with defaults and choices of its own."""
    some = {"has": ["data", "tol", "route"].__contains__, "defaults": {"tol": "0.5"}, "choices": {"route": ("far",)}}
    made = parsed([], **some)
    assert (made.tol, made.route) == (0.5, "near")
    with pytest.raises(InputError, match="unrecognized arguments: --parts 2"):
        parsed(["--parts", "2"], **some)
    with pytest.raises(InputError, match="invalid choice: 'near'"):
        parsed(["--route", "near"], **some)


def test_of_an_estimator():
    class Estimator:
        n_parts, tol, lam, max_time, seed, limit = 3, 0.5, [2, 1], None, "not asked", "nor this"

    made = from_estimator(Few, Estimator(), seed=9)
    assert made == Few(n=3, tol=0.5, lam=(1.0, 2.0), seed=9)
    Estimator.n_parts = 0
    assert refusal(from_estimator, Few, Estimator()) == "n_parts = 0: it must be a whole number of at least 1"
    Estimator.n_parts, Estimator.tol = None, None
    assert refusal(from_estimator, Few, Estimator()) == "tol = None: it must be a positive number"


def test_reported():
    made = Few(tol=0.5, seed=3)
    assert reported(made, every) == {"tol": 0.5, "lambda": (1.0,), "seed": 3, "inside": 3}
    assert reported(made, ["tol", "n"].__contains__) == {"tol": 0.5}


def test_help_shows_every_option(capsys):
    parser = Parser(prog="few")
    add_options(parser, (Few,), every)
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for _, known in declared(Few):
        assert (known.help in shown) == bool(known.flag)
    assert "(default: 0.001)" in shown
    assert "None" not in shown
    assert "False" not in shown


def test_usage_errors_are_input_errors():
    with pytest.raises(InputError, match="unrecognized arguments: --nonsense"):
        Parser(prog="x").parse_args(["--nonsense"])


# -- the options of the families ---------------------------------------------------------------

FAMILIES = {
    "cakrr": (cakrr, [name for name in cakrr.__all__ if not name.endswith("Model") and not name.startswith("Subset")]),
    "cakriging": (cakriging, ["Kriging"]),
    "casvm": (casvm, [name for name in casvm.__all__ if name.endswith("SVC")]),
    "casvm.svr": (casvm, [name for name in casvm.__all__ if name.endswith("SVR") and not name.startswith("SMO")]),
    "asygcd": (asygcd, ["AsyGCDSVC"]),
}
# Parameters of estimators that are no options: they choose the method, say how a call is made, serve scikit-learn, or
# belong to a machine that has no command.
OTHERS = {
    "columns",
    "comm", "random_state", "partitioner", "dtype", "class_weight", "shrinking", "decision_function_shape", "verbose",
    "warm_start", "nu",
}  # fmt: skip


@of_every_command
def test_a_command_parses_nothing_but_its_data(program):
    """All defaults are values that can be typed, and pass the checks; no two options have one flag."""
    method = method_of(program)
    assert method.prog == program
    parser = Parser(prog=program)
    add_options(parser, (launch.Training, method.options), method.has, method.defaults, method.choices)
    arguments = parser.parse_args(["in.h5"])
    assert from_arguments(launch.Training, arguments).data == Path("in.h5")
    made = from_arguments(method.options, arguments)
    for one, known in declared(made):
        value = getattr(made, one.name)
        if value is not None:
            assert known.convert(value, one.name) == value
    for action in parser._actions:
        assert action.help, action.dest
        assert not isinstance(action, argparse._StoreAction) or action.metavar or action.choices, action.dest


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_of_an_estimator_is_an_option(family):
    package, names = FAMILIES[family]
    method = next(method_of(program) for program in METHODS if program.startswith(family))
    known = {what.estimator: one for one, what in declared(method.options) if what.estimator}
    used = set()
    for name in names:
        parameters = inspect.signature(getattr(package, name)).parameters
        assert set(parameters) - OTHERS <= set(known), name
        used |= set(parameters)
    assert set(known) <= used | {"select", "validation_fraction"}


@pytest.mark.parametrize("family", FAMILIES)
def test_an_estimator_refuses_by_its_parameters(family):
    package, names = FAMILIES[family]
    X, y = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2
    for name in names:
        make = getattr(package, name)
        for parameter, value in (("n_parts", 0), ("tol", -1), ("cache_gib", -1), ("degree", 1.5), ("coef0", math.nan),
                                 ("C", 0), ("sigma", -1), ("lam", []), ("kernel", "cosine"), ("gamma", "none"),
                                 ("passes", 0), ("working_set", 1), ("max_time", 0), ("update", "now")):  # fmt: skip
            if parameter in inspect.signature(make).parameters:
                message = refusal(make(**{parameter: value}).fit, X, y)
                assert message.startswith(parameter), (name, message)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--seed", "5000000000"], "--seed 5000000000"),
        (["--memory-limit", "-1"], "--memory-limit -1"),
        (["--threads", "0"], "--threads 0"),
        (["--lambda", "0"], "--lambda 0"),
        (["--target", "0"], "--target 0"),
    ],
)
def test_a_command_refuses_by_its_flags(words, named, refuses, tmp_path):
    (tmp_path / "a.svm").write_text("1 1:0.5 2:1\n2 1:1.5 2:3\n")
    refuses("cakrr.bkrr2", ["a.svm", *words], named, tmp_path)
