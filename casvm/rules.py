"""Rules for the options of kernel SVMs: which exclude each other or a method, in the order of the checks."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from cacore.kernels.registry import declaration
from cacore.learn.rules import Rule
from cacore.learn.shared import LENGTHS
from cacore.svm.solvers import DEFAULT

if TYPE_CHECKING:
    from casvm.options import SVMMethod, SVMOptions
    from casvm.value_options import ValueMethod, ValueOptions

PLAIN = "accuracy"
GRID = "grid"  # default values of C, epsilon or gamma, scaled by the data
OF_PARTS = ("partitions", "partitioner", "divisions", "overlap", "route", "solver")

SEARCH: tuple[Rule[SVMOptions, Any], ...] = (
    Rule(
        lambda o, m: o.scoring != PLAIN and not o.searches,
        "scoring = {o.scoring}: there is one value of C and of gamma; give several, or cv",
    ),
    Rule(
        lambda o, m: o.quick and GRID not in (o.C, o.gamma),
        f"quick: it shortens a default grid, and neither C nor gamma is {GRID}; leave it out",
    ),
)

OF_LENGTHS: tuple[Rule[Any, Any], ...] = (
    Rule(
        lambda o, m: o.metric == LENGTHS and callable(o.kernel),
        "metric: it needs the derivative of the kernel, and a callable has none; name a kernel",
    ),
    Rule(
        lambda o, m: o.metric == LENGTHS and not declaration(o.kernel).of_distance,
        f"metric {LENGTHS}: the {{o.kernel}} kernel is not a function of distance; use another, or leave out metric",
    ),
)

RULES: tuple[Rule[SVMOptions, SVMMethod], ...] = (
    Rule(
        lambda o, m: o.ratio and not m.partitioner,
        "ratio: {m.name} has no partitioner that could balance classes; leave it out",
    ),
    Rule(
        lambda o, m: o.ratio and not m.balances_classes,
        "ratio: the partitioner of {m.name} does not balance classes; leave it out",
    ),
    Rule(
        lambda o, m: o.per_part and m.one_model,
        "per_part: training of {m.name} ends in one model; leave it out",
    ),
    Rule(
        lambda o, m: o.per_part and o.metric not in ("none", LENGTHS),
        f"per_part: a metric in rounds has one setting for all parts; leave out per_part, or take metric {LENGTHS}",
    ),
    Rule(
        lambda o, m: o.per_part and not o.searches,
        "per_part: there is one value of C and of gamma; give several",
    ),
    *OF_LENGTHS,
    *SEARCH,
)


def _of_parts(o: ValueOptions) -> str:
    """The first option of training in parts that was given, with its value; empty if there is none."""
    given = {one.name: getattr(o, one.name) for one in fields(o) if getattr(o, one.name) != one.default}
    return next((f"{name} = {given[name]}" for name in given if name in OF_PARTS), "")


VALUE_RULES: tuple[Rule[ValueOptions, ValueMethod], ...] = (
    Rule(
        lambda o, m: o.searches and m.one_class,
        "gamma: without targets, several values cannot be compared; give one",
    ),
    Rule(
        lambda o, m: o.searches and o.nu is not None,
        "nu: several settings can only be compared with epsilon; give one value of C and of gamma",
    ),
    Rule(
        lambda o, m: o.nu is not None and not m.one_class and o.solver != DEFAULT,
        f"nu, solver = {{o.solver}}: only {DEFAULT} can solve nu-SVR; give epsilon instead of nu",
    ),
    Rule(
        lambda o, m: o.quantile is not None and m.one_class,
        "quantile: one class has no targets; use casvm.svr",
    ),
    Rule(
        lambda o, m: o.metric != "none" and m.one_class,
        "metric: one class has no targets to learn length scales from; leave it out",
    ),
    *OF_LENGTHS,
    Rule(
        lambda o, m: not o.exact and o.working_set is not None,
        "working_set: it only applies to --exact, since each part is solved by one rank; leave it out",
    ),
    Rule(
        lambda o, m: not o.exact and bool(o.overlap) and o.partitioner == "random",
        "overlap: random parts have no borders at which to overlap; choose another partitioner",
    ),
    Rule(
        lambda o, m: o.exact and bool(_of_parts(o)),
        lambda o, m: f"{_of_parts(o)}: it applies to parts, and exact solves one problem of all rows; leave one out",
    ),
)
