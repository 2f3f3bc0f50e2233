"""Rules for the options of kernel ridge regression: which exclude each other or a method, in order of the checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cacore.learn.rules import Rule
from cacore.learn.shared import LENGTHS

if TYPE_CHECKING:
    from cakrr.method import RidgeMethod
    from cakrr.options import RidgeOptions

ROUTES = ("nearest", "soft", "all")
LEFT_OUT, JACKKNIFE = "loo", "jackknife+"  # intervals from leave-one-out errors
LEAST_LAM = 1e-30  # smallest lambda of cg, whose directions grow with 1 / lambda


def _route(o: RidgeOptions, m: RidgeMethod) -> str:
    return o.route or m.route


def _other_route(o: RidgeOptions, m: RidgeMethod) -> bool:
    return o.route is not None and o.route != m.route


def _of_all_rows(m: RidgeMethod) -> str:
    """Model of all rows that a method has besides parts, or instead of them, for a message."""
    return "a coarse model" if m.coarse else "one model"


def _has_one_model(name: str) -> Rule[RidgeOptions, RidgeMethod]:
    return Rule(
        lambda o, m: bool(getattr(o, name)) and (not m.partitioner or m.coarse),
        lambda o, m: f"{name}: {m.name} has {_of_all_rows(m)} of all rows, so only one held-out share; leave it out",
    )


def _judged_by_test(name: str) -> Rule[RidgeOptions, RidgeMethod]:
    return Rule(
        lambda o, m: bool(getattr(o, name)) and (m.oracle or o.select == "test"),
        f"{name}: the settings are compared on the test rows; use select validation",
    )


def _has_deviations(name: str) -> Rule[RidgeOptions, RidgeMethod]:
    return Rule(
        lambda o, m: bool(getattr(o, name)) and (m.oracle or o.classify),
        lambda o, m: (
            f"{name}: {'classes have no standard deviations' if o.classify else f'{m.name} does not predict'}; "
            "leave it out"
        ),
    )


def _leaves_out(o: RidgeOptions) -> bool:
    return o.calibrate in (LEFT_OUT, JACKKNIFE)


SCALED: Rule[RidgeOptions, RidgeMethod] = Rule(
    lambda o, m: o.scaling != "deviation" and not o.standardize,
    "scaling {o.scaling}: features are only scaled with standardize; leave one of the two out",
)
BALANCED: Rule[RidgeOptions, RidgeMethod] = Rule(
    lambda o, m: o.class_weight is not None and not o.classify,
    "class_weight, --balanced: there are no classes without --classify",
)
RULES: tuple[Rule[RidgeOptions, RidgeMethod], ...] = (
    # Routes and kernels
    Rule(
        lambda o, m: _other_route(o, m) and (m.oracle or not m.partitioner),
        "route {o.route}: {m.name} has only its own route; leave it out",
    ),
    Rule(
        lambda o, m: _other_route(o, m) and o.route not in ROUTES,
        "route {o.route!r}: choose one of " + ", ".join(ROUTES),
    ),
    Rule(
        lambda o, m: bool(o.sigma or o.coarse_sigma) and bool(o.without_width),
        "sigma: the {o.without_width} kernel has no width; leave it out",
    ),
    Rule(
        lambda o, m: o.metric != "none" and callable(o.kernel),
        "metric: it needs the derivative of the kernel, and a callable has none; name a kernel",
    ),
    # The exact method's solver
    Rule(
        lambda o, m: o.solver == "cholesky" and bool(o.of_iteration()),
        lambda o, m: f"{o.of_iteration()[0]}: it does not apply to a factorisation; use --solver cg, or leave it out",
    ),
    Rule(
        lambda o, m: o.solver == "cg" and min(o.lam) < LEAST_LAM,
        lambda o, m: f"lambda {min(o.lam):g}: cg needs {LEAST_LAM:g} or more, because it uses single precision",
    ),
    Rule(
        lambda o, m: o.near and bool(o.without_near),
        "near: the {o.without_near} kernel is not a function of Euclidean distance or a wendland product; leave it out",
    ),
    Rule(
        lambda o, m: o.near and o.early is not None,
        "near: rows beyond each other's reach are systems of their own, and early needs one; leave one of the two out",
    ),
    # Choice of parameters
    Rule(
        lambda o, m: o.select == "loo" and (m.coarse or _route(o, m) not in ("nearest", "soft")),
        lambda o, m: (
            f"select loo: leave-one-out errors are those of a part's own model, but {m.name} answers otherwise; use "
            f"select validation{'' if m.coarse or m.oracle or not m.partitioner else ', or route nearest'}"
        ),
    ),
    Rule(
        lambda o, m: o.divisions > 1 and m.oracle,
        "divisions = {o.divisions}: {m.name} is an oracle; leave it out",
    ),
    Rule(
        lambda o, m: o.divisions > 1 and not m.partitioner,
        "divisions = {o.divisions}: {m.name} has one model of all rows; leave it out",
    ),
    SCALED,
    _has_one_model("cv"),
    _judged_by_test("cv"),
    _has_one_model("per_part"),
    _judged_by_test("per_part"),
    Rule(
        lambda o, m: bool(o.cv) and o.select == "loo",
        "cv: select loo already leaves out every row; leave one of the two out",
    ),
    Rule(
        lambda o, m: o.per_part and o.chooses_kernel,
        "per_part: kernel auto chooses one kernel for all parts; name a kernel",
    ),
    Rule(
        lambda o, m: o.per_part and o.divisions > 1,
        "per_part: settings of one division's parts do not apply to another division; leave one of the two out",
    ),
    # Length scales
    Rule(
        lambda o, m: o.metric == LENGTHS and (not m.partitioner or m.coarse),
        lambda o, m: f"metric {LENGTHS}: {m.name} has {_of_all_rows(m)} of all rows; use metric diagonal",
    ),
    Rule(
        lambda o, m: o.metric == LENGTHS and bool(o.without_distance),
        f"metric {LENGTHS}: the {{o.without_distance}} kernel is not a function of distance; use metric diagonal",
    ),
    # Probabilities and intervals
    _has_deviations("keep_factors"),
    _has_deviations("calibrate"),
    Rule(
        lambda o, m: o.probability is not None and not o.classify,
        "probability: there are no classes without --classify; leave it out",
    ),
    Rule(
        lambda o, m: o.probability is not None and (o.divisions > 1 or _route(o, m) == "all"),
        "probability: leave-one-out predictions are those of a part's own model, but {m.name} combines several; "
        "leave it out for uncalibrated probabilities",
    ),
    Rule(
        lambda o, m: o.keep_factors and not m.partitioner,
        "keep_factors: {m.name} has one factor of all rows, which is not saved; leave it out: standard deviations "
        "compute it when needed",
    ),
    Rule(
        lambda o, m: _leaves_out(o) and o.divisions > 1,
        "calibrate {o.calibrate}: leave-one-out errors are those of one division; set a share of the rows aside",
    ),
    Rule(
        lambda o, m: _leaves_out(o) and (m.coarse or _route(o, m) == "all"),
        "calibrate {o.calibrate}: leave-one-out errors are those of a part's own model, but {m.name} answers "
        "otherwise; set a share of the rows aside",
    ),
    # Classes and parts
    Rule(
        lambda o, m: o.classify and m.oracle,
        "classify: {m.name} is an oracle for a single numeric target; leave it out",
    ),
    BALANCED,
    Rule(
        lambda o, m: not m.partitioner and (o.partitions or 1) != 1,
        "partitions = {o.partitions}: {m.name} has one model of all rows; leave it out",
    ),
)
