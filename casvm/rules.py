"""Options of kernel SVMs that exclude each other, or a method: one rule each, in the order of checks."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from cacore.learn.rules import Rule
from cacore.svm.solvers import DEFAULT

if TYPE_CHECKING:
    from casvm.options import SVMMethod, SVMOptions
    from casvm.value_options import ValueMethod, ValueOptions

PLAIN = "accuracy"
GRID = "grid"  # of C, epsilon or gamma: default values around what the data suggest
OF_PARTS = ("partitions", "partitioner", "divisions", "overlap", "route", "solver")

SEARCH: tuple[Rule[SVMOptions, Any], ...] = (
    Rule(
        lambda o, m: o.scoring != PLAIN and not o.searches,
        "scoring = {o.scoring}: there is one value of C and of gamma; give several, or cv",
    ),
    Rule(
        lambda o, m: o.quick and GRID not in (o.C, o.gamma),
        f"quick: neither C nor gamma is a {GRID} that is made up; leave it out",
    ),
)

RULES: tuple[Rule[SVMOptions, SVMMethod], ...] = (
    Rule(
        lambda o, m: o.ratio and not m.partitioner,
        "ratio: {m.name} leaves the rows where they are, and does not balance classes",
    ),
    Rule(
        lambda o, m: o.ratio and not m.balances_classes,
        "ratio: the partitioner of {m.name} does not balance classes",
    ),
    Rule(
        lambda o, m: o.per_part and m.one_model,
        "per_part: training of {m.name} ends in one model; leave it out",
    ),
    Rule(
        lambda o, m: o.per_part and o.metric != "none",
        "per_part: a metric is learned at one setting; leave one of the two out",
    ),
    Rule(
        lambda o, m: o.per_part and not o.searches,
        "per_part: there is one value of C and of gamma; give several",
    ),
    *SEARCH,
)


def _of_parts(o: ValueOptions) -> str:
    """The first option of parts that is given beside --exact, and its value; "" if there is none."""
    given = {one.name: getattr(o, one.name) for one in fields(o) if getattr(o, one.name) != one.default}
    return next((f"{name} = {given[name]}" for name in given if name in OF_PARTS), "")


VALUE_RULES: tuple[Rule[ValueOptions, ValueMethod], ...] = (
    Rule(
        lambda o, m: o.searches and m.one_class,
        "gamma: there are no targets by which several values could be compared; give one",
    ),
    Rule(
        lambda o, m: o.searches and o.nu is not None,
        "nu: settings are compared with an epsilon; give one value of C and of gamma",
    ),
    Rule(
        lambda o, m: o.nu is not None and not m.one_class and o.solver != DEFAULT,
        f"nu, solver = {{o.solver}}: only {DEFAULT} finds epsilon by itself; give epsilon",
    ),
    Rule(
        lambda o, m: not o.exact and o.working_set is not None,
        "working_set: parts are solved each by one rank; it is of --exact",
    ),
    Rule(
        lambda o, m: not o.exact and bool(o.overlap) and o.partitioner == "random",
        "overlap: random parts lie everywhere and have no borders; choose another partitioner",
    ),
    Rule(
        lambda o, m: o.exact and bool(_of_parts(o)),
        lambda o, m: f"{_of_parts(o)}: exact is one problem of all rows; leave one of them out",
    ),
)
