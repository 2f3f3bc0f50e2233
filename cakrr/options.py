"""Ridge methods and their options: the record of a method, the options of training, and the rules between them.

The rules say which options exclude each other or a method, in the order of the checks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cacore import checks, tuning
from cacore.errors import InputError
from cacore.kernels.registry import KINDS, MOST_DEGREE
from cacore.learn import options
from cacore.learn.method import Method
from cacore.learn.options import (
    KERNEL,
    LENGTHS,
    METRIC,
    PARTS,
    SEARCH,
    SOLVER,
    UNCERTAINTY,
    Options,
    Rule,
    check,
    declared,
    option,
)
from cacore.progress import Advance, silent

if TYPE_CHECKING:
    from cacore.data.labels import ClassWeight
    from cacore.io.checkpoint import Checkpoint
    from cacore.kernels import Kernel


ROUTES = ("nearest", "soft", "all")
LEFT_OUT, JACKKNIFE = "loo", "jackknife+"  # intervals from leave-one-out errors
LEAST_LAM = 1e-30  # smallest lambda of cg, whose directions grow with 1 / lambda


def _route_rule(o: RidgeOptions, m: RidgeMethod) -> str:
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


def _compared_on_test(name: str) -> Rule[RidgeOptions, RidgeMethod]:
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
    Rule(
        lambda o, m: o.metric_rounds == 0 and o.metric != "none" and o.metric_init is None,
        "metric_rounds 0: no metric would be learned; give 1 or more, or leave out the metric",
    ),
    Rule(
        lambda o, m: o.metric_init is not None and o.metric == "none",
        "metric_init: it is the first metric of those that are learned; choose a metric (metric_rounds=0 keeps it)",
    ),
    Rule(
        lambda o, m: o.metric_init is not None and not m.partitioner,
        lambda o, m: f"metric_init: {m.name} has no parts; leave it out",
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
        lambda o, m: o.select == "loo" and (m.coarse or _route_rule(o, m) not in ("nearest", "soft")),
        lambda o, m: (
            f"select loo: leave-one-out errors are those of a part's own model, but {m.name} answers otherwise; use "
            f"select validation{'' if m.coarse or m.oracle or not m.partitioner else ', or route nearest'}"
        ),
    ),
    Rule(lambda o, m: o.divisions > 1 and m.oracle, "divisions = {o.divisions}: {m.name} is an oracle; leave it out"),
    Rule(
        lambda o, m: o.divisions > 1 and not m.partitioner,
        "divisions = {o.divisions}: {m.name} has one model of all rows; leave it out",
    ),
    SCALED,
    _has_one_model("cv"),
    _compared_on_test("cv"),
    _has_one_model("per_part"),
    _compared_on_test("per_part"),
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
        lambda o, m: o.probability is not None and (o.divisions > 1 or _route_rule(o, m) == "all"),
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
        lambda o, m: _leaves_out(o) and (m.coarse or _route_rule(o, m) == "all"),
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


SELECTIONS = ("validation", "test", "loo")
LEVELS, CATEGORIES = "levels", "categories"
OF_LEVELS = "levels: by deviation, after a column of 0 and 1 for each value of features with 3 to 20 whole numbers"
OF_CATEGORIES = "categories: by deviation, but the indicators of a column of words count as one feature"
SCALINGS = ("deviation", "quantile", LEVELS, CATEGORIES, "auto")
SOLVERS = ("cholesky", "cg", "auto")
PRECONDITIONERS = ("pivoted", "nystrom", "local", "two-level")

# Small grids that lost little against large ones on the five data sets of docs/benchmarks.md. A wide kernel needs few
# centres: it is tried with CENTERS_WIDE.
CENTERS = (500, 1000, 1500)
NARROW, WIDE = 0.5, 2.0  # in units of the kernel's natural width: for the Gaussian sqrt(number of features)
CENTERS_WIDE = (500, 1000)
LAMS = (1e-7, 1e-6, 1e-5)
LOCAL_SIGMAS = (0.125, 0.25, 0.5, 1.0)  # same units, for the parts' models of the coarse model's residual
ALONE = 1e3  # lambda for which the parts' models add almost nothing to the coarse model
LOCAL_LAMS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, ALONE)


def _route(value: object, name: str) -> str:
    """Check a route: one that the user can choose, or a method's own."""
    of_method = isinstance(value, str) and value in ("oracle", "sum")
    return str(value) if of_method else checks.one_of(*ROUTES)(value, name)


def _exact(method: RidgeMethod) -> bool:
    return not method.partitioner


def _coarse(method: RidgeMethod) -> bool:
    return method.coarse


def _divides(method: RidgeMethod) -> bool:
    return bool(method.partitioner) and not method.oracle


def _by_parts(method: RidgeMethod) -> bool:
    return _divides(method) and not method.coarse


def _calibrate(value: object, name: str) -> float | str:
    """Check a share of the rows, or a word for leave-one-out errors."""
    if isinstance(value, str) and value in (LEFT_OUT, JACKKNIFE):
        return value
    try:
        return float(checks.share(value, name))
    except InputError as error:
        raise InputError(f"{error}, or {LEFT_OUT}, or {JACKKNIFE}") from None


AUTO = ("gaussian", "matern52", "laplacian", "l1")  # kernels that "auto" chooses from
FEW_ROWS, FOLDS = 4000, 5  # with fewer rows, so many folds: a tenth of them is too few to tell settings apart
NEARBY = (0.5, 1.0, 2.0)  # widths that the next round of a metric tries, in units of the last choice


def few_rows(folds: int) -> str:
    """A sentence that explains why settings were compared on folds."""
    return f"fewer than {FEW_ROWS:,} rows: the settings were compared on {folds} folds, not on one held-out share"


@dataclass(frozen=True)
class Width:
    """A kernel whose width is free, and a width to try."""

    like: Kernel
    sigma: float

    @property
    def kernel(self) -> Kernel:
        """The kernel of this width."""
        return self.like.with_sigma(self.sigma)

    def nearby(self) -> tuple[Width, ...]:
        """This width and its neighbours, ascending, so that the next round of a search can leave the first grid."""
        times = NEARBY if self.like.declared.has_width else (1.0,)
        return tuple(Width(self.like, self.sigma * by) for by in times)


CoarseGrid = list[tuple[Width, list[int], tuple[float, ...]]]  # width, numbers of centres, lambdas to try


@dataclass(frozen=True)
class PartsOptions(Options):
    """The division of the rows, and the models that predict a row.

    `partitions` None means one part per rank, or as many as keep a part at 8,000 rows and its matrix within the memory
    limit.
    """

    partitions: int | None = option(
        None, "number of parts (default: at least one per rank, and no more than 8,000 rows per part)",
        checks.whole(1), estimator="n_parts", metavar="P",
    )  # fmt: skip
    divisions: int = option(
        1, "number of independent divisions of the rows into parts; predictions are averaged over them",
        checks.whole(1, 1000), estimator="n_divisions", report=True, group=PARTS, only=_divides, metavar="N",
    )  # fmt: skip
    route: str | None = option(
        None, "models that predict a row: the nearest centre's, a weighted mean of the nearest few, or the mean of all",
        _route, group=PARTS, choices=ROUTES,
    )  # fmt: skip

    def route_of(self, method: RidgeMethod, P: int) -> str:
        """The given route, or the method's; of a single part, "soft" is "nearest"."""
        route = self.route or method.route
        return "nearest" if route == "soft" and P == 1 else route


@dataclass(frozen=True)
class GridOptions(Options):
    """Kernels, widths and lambdas to compare.

    `sigma` None means the kernel's natural width, or with `wide` or a coarse model :meth:`RidgeMethod.sigmas` of it.
    """

    sigma: tuple[float, ...] | None = option(
        None, "width of the kernel: a number, comma list or lo:hi:COUNT, evenly spaced in the logarithm (default: "
        "several values around the natural width: sqrt(features), features for l1 and wendland0_product, "
        "sqrt(12 or 14 features) for the other wendland products)", checks.values, metavar="GRID",
    )  # fmt: skip
    lam: tuple[float, ...] = option(
        (1e-4,), "ridge parameter: a number, comma list or lo:hi:COUNT", checks.values, flag="--lambda", metavar="GRID"
    )
    kernel: str | Callable[..., object] = option(
        "gaussian", "kernel, of width --sigma; auto tries several", checks.kernel_or_auto, report=True,
        choices=(*KINDS, "auto"),
    )  # fmt: skip
    degree: int = option(
        3, "degree of the polynomial kernel, exponent of the rational kernel, largest number of features for the "
        "wendland kernels", checks.whole(0, MOST_DEGREE),
        group=KERNEL, metavar="D",
    )  # fmt: skip
    coef0: float = option(
        0.0, "constant term of the polynomial and sigmoid kernels", checks.finite, group=KERNEL, metavar="R"
    )
    wide: bool = False  # if sigma is None, try the command's grid of widths instead of the natural width alone
    of_several: bool = False  # True if the kernel is one of those that `auto` tries, each in its own rounds

    @property
    def default_widths(self) -> bool:
        """True if the default widths are compared, rather than those that the user gave."""
        return self.sigma is None and self.wide

    @property
    def chooses_kernel(self) -> bool:
        """True if several kernels are compared."""
        return self.of_several or len(self.kernels()) > 1

    @property
    def without_width(self) -> str:
        """The first kernel without a width; empty if all have one."""
        return next((like.kind for like in self.kernels() if not like.declared.has_width), "")

    @property
    def without_distance(self) -> str:
        """The first kernel that is not a function of a distance; empty if all are."""
        return next((like.kind for like in self.kernels() if not like.of_distance), "")

    @property
    def without_near(self) -> str:
        """The first kernel without a radius beyond which it is small; empty if all have one."""
        return next((like.kind for like in self.kernels() if not (like.compiled and like.shifts)), "")

    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels to compare, with any width."""
        from cacore.kernels import Kernel

        if callable(self.kernel):
            from cacore.kernels.given import given_kernel

            return (given_kernel(self.kernel),)
        kinds = AUTO if self.kernel == "auto" else (self.kernel,)
        return tuple(Kernel(kind, degree=self.degree, coef0=self.coef0) for kind in kinds)

    def widths(self, method: RidgeMethod, d: int) -> tuple[Width, ...]:
        """The widths to try for each kernel, given d features; 1 for a kernel without a width."""
        tried: list[Width] = []
        for like in self.kernels():
            natural = like.declared.typical_distance(d)
            sigmas = self.sigma or (method.sigmas(natural) if self.wide or method.coarse else (natural,))
            tried += [Width(like, sigma) for sigma in (sigmas if like.declared.has_width else (1.0,))]
        return tuple(tried)


@dataclass(frozen=True)
class CoarseOptions(Options):
    """The coarse model of all rows: its settings to compare, and its refinement."""

    centers: tuple[int, ...] | None = option(
        None, f"number of centres of the coarse model, or a list to compare (default: {tuning.listed(CENTERS)})",
        checks.whole_values, group=SOLVER, only=_coarse, metavar="M",
    )  # fmt: skip
    coarse_sigma: tuple[float, ...] | None = option(
        None, "width of the coarse model's kernel, as --sigma (default: 1/2 and 2 times sqrt(features))", checks.values,
        group=SOLVER, only=_coarse, metavar="GRID",
    )  # fmt: skip
    coarse_lam: tuple[float, ...] | None = option(
        None, f"ridge parameter of the coarse model, as --lambda (default: {tuning.listed(LAMS)})", checks.values,
        flag="--coarse-lambda", group=SOLVER, only=_coarse, metavar="GRID",
    )  # fmt: skip
    refine: int = option(
        0, "iterations that refine the coarse model towards the exact one of its kernel", checks.whole(0), report=True,
        group=SOLVER, only=_coarse, metavar="N",
    )  # fmt: skip


@dataclass(frozen=True)
class ComparisonOptions(Options):
    """Rows on which the settings are compared."""

    select: str = option(
        "validation", "rows used to compare the settings: held-out rows, each row left out in turn (loo), or the test "
        "rows (their errors are then no longer an honest estimate)", checks.one_of(*SELECTIONS), report=True,
        group=SEARCH, choices=SELECTIONS,
    )  # fmt: skip
    validation_fraction: float = option(
        0.1, "share of each part's rows that is held out to compare the settings", checks.share, group=SEARCH,
        metavar="F",
    )  # fmt: skip
    cv: int | None = option(
        None, "number of cross-validation folds used to compare the settings, instead of one held-out share (default: "
        f"{FOLDS} for the default widths and fewer than {FEW_ROWS:,} rows)", checks.whole(2), report=True,
        group=SEARCH, only=_by_parts, metavar="FOLDS",
    )  # fmt: skip
    per_part: bool = option(
        False, "let every part choose its own sigma and lambda, on its own rows", checks.yes_or_no, report=True,
        group=SEARCH, only=_by_parts, action="store_true",
    )  # fmt: skip


@dataclass(frozen=True)
class IterationOptions(Options):
    """The solver of the exact method: a factorisation, or conjugate gradients and when they stop."""

    solver: str = option(
        "cholesky", "factorise the matrix, iterate (cg), or choose the cheaper one that fits (auto)",
        checks.one_of(*SOLVERS), group=SOLVER, only=_exact, choices=SOLVERS,
    )  # fmt: skip
    preconditioner: str = option(
        "pivoted", "preconditioner of --solver cg: low-rank factor of pivots or random rows, blocks of rows, or both",
        checks.one_of(*PRECONDITIONERS), group=SOLVER, only=_exact, choices=PRECONDITIONERS,
    )  # fmt: skip
    rank: int | None = option(
        None, "rank of the preconditioner's factor (default: as long as a larger rank saves time)", checks.whole(1),
        group=SOLVER, only=_exact, metavar="K",
    )  # fmt: skip
    tol: float = option(
        1e-6, "stop cg at this residual, relative to the targets", checks.share, group=SOLVER, only=_exact,
        metavar="TOL",
    )  # fmt: skip
    near: bool = option(
        False, "cg on near rows alone: kernel values of distant ones are left out, by a bound that keeps the residual "
        "below --tol", checks.yes_or_no, group=SOLVER, only=_exact, action="store_true",
    )  # fmt: skip
    early: float | None = option(
        None, "stop cg when the validation error changes by less than this share", checks.share, group=SOLVER,
        only=_exact, metavar="SHARE",
    )  # fmt: skip
    max_time: float | None = option(
        None, "time limit of cg, in seconds", checks.seconds, group=SOLVER, only=_exact, metavar="S"
    )


@dataclass(frozen=True)
class StorageOptions(Options):
    """Memory per rank, in bytes, and files for data that does not fit."""

    scratch: Path | None = options.scratch(
        "folder for data that does not fit in memory: kernel values, a factor, or the rows of --out-of-core",
        only=lambda method: not method.coarse,
    )
    out_of_core: bool = options.out_of_core(only=lambda method: bool(method.partitioner) and not method.coarse)
    memory_limit: int = 1 << 62


@dataclass(frozen=True)
class FeatureOptions(Options):
    """The metric and the scaling of the features."""

    metric: str = options.metric()
    metric_rounds: int = options.metric_rounds(0)
    metric_init: NDArray[np.float64] | None = options.metric_init(lambda method: bool(method.partitioner))
    scaling: str = option(
        "deviation", "scale features by their standard deviation or by normal scores of their quantiles, or whichever "
        f"of these validates better (auto); {OF_LEVELS}; {OF_CATEGORIES}",
        checks.one_of(*SCALINGS), report=True, group=METRIC, choices=SCALINGS,
    )  # fmt: skip
    standardize: bool = options.standardize(True)

    @property
    def rounds(self) -> int:
        """Maximum number of training rounds after the first."""
        return 0 if self.metric == "none" else self.metric_rounds

    @property
    def compares(self) -> bool:
        """True if several trainings share the validation rows: rounds of a metric, scalings."""
        return self.metric != "none" or self.scaling == "auto"


@dataclass(frozen=True)
class RunOptions(Options):
    """The seed and the progress of a run; `progress` is a function as :func:`cacore.progress.bar` yields it."""

    seed: int = options.random_state()
    progress: Callable[[str, int], Advance] = silent


@dataclass(frozen=True)
class ClassOptions(Options):
    """Targets that are classes.

    `class_weight` maps a class's code to its weight; "balanced" is n / (classes x rows of the class), over all ranks.
    """

    classify: bool = option(
        False, "targets are classes: fit one indicator column per class; the largest output wins", checks.yes_or_no,
        estimator="", group=KERNEL, action="store_true",
    )  # fmt: skip
    class_weight: ClassWeight = options.balanced("with --classify: weight the classes so that each counts equally")


@dataclass(frozen=True)
class ResultOptions(Options):
    """Results besides the model: factors, calibration of intervals and probabilities, and a checkpoint."""

    keep_factors: bool = option(
        False, "keep the factors that predict --std needs: 8 m^2 bytes of memory per part of m rows, half that in the "
        "file", checks.yes_or_no, group=UNCERTAINTY, only=_divides, action="store_true",
    )  # fmt: skip
    calibrate: float | str | None = option(
        None, "calibrate prediction intervals: on this share of the rows, held out; by leave-one-out errors (loo); or "
        "by these and the effect of each row on the prediction (jackknife+)", _calibrate, report=True,
        group=UNCERTAINTY, only=lambda method: not method.oracle, metavar="F",
    )  # fmt: skip
    probability: str | None = options.probability()
    checkpoint: Checkpoint | None = options.checkpoint()


@dataclass(frozen=True)
class RidgeOptions(
    ResultOptions, ClassOptions, RunOptions, FeatureOptions, StorageOptions, IterationOptions, ComparisonOptions,
    CoarseOptions, GridOptions, PartsOptions,
):  # fmt: skip
    """Options of a training run: groups of options, each described by its help text.

    A function takes the group it needs. Fields, help and report have the order of the groups, from the last base to the
    first.
    """

    def checked(self, method: RidgeMethod) -> RidgeOptions:
        """These options, after checking them for `method`.

        Raises
        ------
        InputError
            The first of :data:`RULES` that they break.
        """
        self.check_rules(method)
        return self

    def check_rules(self, method: RidgeMethod) -> None:
        """Refuse the first of :data:`RULES` that these options break; nothing is known of the rows."""
        check(RULES, self, method)

    def folds(self, n: int) -> int:
        """Number of folds on which the settings of a model of n rows are compared; 1 for one held-out share.

        Without `cv`, the default widths are compared on :data:`FOLDS` folds if there are few rows, except if several
        trainings share the validation rows.
        """
        if self.cv is not None:
            return self.cv
        usual = self.validation_fraction == type(self).validation_fraction and self.select == "validation"
        default = self.default_widths and usual and not self.compares and not self.out_of_core
        return min(FOLDS, n) if default and 1 < n < FEW_ROWS else 1

    @property
    def keeps_rows(self) -> bool:
        """True if the rows are divided more than once."""
        return self.rounds > 0 or self.divisions > 1

    def per_kernel(self) -> list[RidgeOptions]:
        """These options; or one copy per kernel, if a metric is learned and several kernels are compared."""
        if self.metric == "none" or not self.chooses_kernel:
            return [self]
        return [replace(self, kernel=like.kind, of_several=True) for like in self.kernels()]

    def check_out_of_core(self, method: RidgeMethod) -> None:
        """Refuse options that need all rows in memory or several divisions, if rows are kept in a file.

        Raises
        ------
        InputError
        """
        needs_memory = {
            "--metric": self.rounds > 0 or self.metric == "full", "--scaling": self.scaling != "deviation",
            "--divisions": self.divisions > 1, "--cv": self.cv is not None, "--keep-factors": self.keep_factors,
            "--calibrate": self.calibrate is not None, "--probability": self.probability is not None,
        }  # fmt: skip
        if method.partitioner:
            options.check_out_of_core(self.out_of_core, self.scratch, needs_memory)

    def of_iteration(self) -> list[str]:
        """Flags of the given options that do not apply to a factorisation."""
        entries = [entry for entry in fields(IterationOptions) if entry.name != "solver"]
        entries += [entry for entry in fields(StorageOptions) if entry.name == "scratch" and not self.out_of_core]
        return [entry.name.replace("_", "-") for entry in entries if getattr(self, entry.name) != entry.default]

    def coarse_grid(self, n: int, d: int) -> CoarseGrid:
        """Widths, numbers of centres and lambdas of the coarse models to try, for n rows with d features."""
        sets: list[tuple[Width, tuple[int, ...]]] = []
        for like in self.kernels():
            if not like.declared.has_width:
                sets.append((Width(like, 1.0), self.centers or CENTERS))
            elif self.coarse_sigma is None:
                natural = like.declared.typical_distance(d)
                sets.append((Width(like, NARROW * natural), self.centers or CENTERS))
                sets.append((Width(like, WIDE * natural), self.centers or CENTERS_WIDE))
            else:
                sets += [(Width(like, sigma), self.centers or CENTERS) for sigma in self.coarse_sigma]
        return [(width, sorted({min(M, n) for M in Ms}), self.coarse_lam or LAMS) for width, Ms in sets]


@dataclass(frozen=True, kw_only=True)
class RidgeMethod(Method):
    """A method of this family: how rows are divided, and which models predict a row.

    Attributes
    ----------
    route : {"nearest", "soft", "all", "oracle", "sum"}
        Models that predict a row: the nearest centre's ("nearest"), a weighted mean of the nearest few ("soft"), the
        mean of all ("all"), the one with the smallest error given the true target ("oracle"), or the sum of all pieces
        of an exact model ("sum").
    partitioner : str
        Registered name of a partitioner; if empty, one system of all rows is solved.
    coarse : bool
        True if the parts' models learn the residual of a coarse model of all rows.
    """

    package: ClassVar[str] = "cakrr"
    options: ClassVar[type] = RidgeOptions

    route: str
    partitioner: str = ""
    coarse: bool = False

    @property
    def oracle(self) -> bool:
        """True if the method needs the true targets: a bound for other methods, not a usable method."""
        return self.route == "oracle"

    def sigmas(self, width: float) -> tuple[float, ...]:
        """Widths that the command tries, around the kernel's natural one (:meth:`KernelKind.typical_distance`)."""
        if self.coarse:
            return tuple(times * width for times in LOCAL_SIGMAS)
        return tuple(tuning.spaced(width / 4, width * 4, 5))

    @property
    def lams(self) -> tuple[float, ...]:
        """Lambdas that the command tries."""
        return LOCAL_LAMS if self.coarse else (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)

    @property
    def without(self) -> Collection[str]:
        """Common options that this command lacks."""
        return ("libsvm",)

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Defaults of the command's options that differ from the declared ones."""
        return {"route": self.route, "lam": tuning.listed(self.lams)}

    @property
    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """Choices of the command's options that differ from the declared ones."""
        return {"route": tuple(dict.fromkeys([self.route, *ROUTES]))}


PICKS = ("random", "pivots", "kmeans")
SELECTS = ("loo", "gcv")
_SCALINGS = ("deviation", LEVELS)
# Options of ridge regression that apply to points; the others are about parts, metrics and iterations.
_GROUPS = (GridOptions, RunOptions, ClassOptions)
OPTIONS = (*(entry.name for group in _GROUPS for entry, _ in declared(group)), "standardize", "checkpoint")
DEFAULT = 1000  # centres, or all rows if there are fewer


@dataclass(frozen=True)
class SubsetOptions(RidgeOptions):
    """Options of a training run on M points; `points` are centres that the user gives, in standardised features."""

    centers: tuple[int, ...] | None = option(
        None, f"number of centres, M, or a list to compare, which share one triangle (default: {DEFAULT:,})",
        checks.whole_values, group=SOLVER, metavar="M",
    )  # fmt: skip
    pick: str = option(
        "random", "centres: random rows, pivots of the kernel matrix, or means of clusters", checks.one_of(*PICKS),
        report=True, group=SOLVER, choices=PICKS,
    )  # fmt: skip
    select: str = option(
        "loo", "errors that compare the settings: each row left out in turn (loo, a second pass over the rows), or "
        "generalised cross-validation, from the triangle alone (gcv)", checks.one_of(*SELECTS), report=True,
        group=SEARCH, choices=SELECTS,
    )  # fmt: skip
    scaling: str = option(
        "deviation", f"scale features by their standard deviation; {OF_LEVELS}", checks.one_of(*_SCALINGS), report=True,
        group=METRIC, choices=_SCALINGS,
    )  # fmt: skip
    scratch: Path | None = options.scratch("folder for the rows of --out-of-core", estimator="")
    out_of_core: bool = options.out_of_core(read="them block by block")
    points: Any = None

    def checked(self, method: RidgeMethod) -> SubsetOptions:
        """These options, after checking them; raises an InputError."""
        self.check_rules(method)
        return self

    def check_rules(self, method: RidgeMethod) -> None:
        """Refuse options that break a rule, whatever the rows are."""
        check((BALANCED, SCALED), self, method)
        for entry, declaration in declared(self):
            if declaration.flag and not method.has(entry.name) and getattr(self, entry.name) != entry.default:
                raise InputError(f"{entry.name}: {method.name} has no such option; leave it out")
        if self.sigma is not None and self.without_width:
            raise InputError(f"sigma: the {self.without_width} kernel has no width; leave it out")

    def check_out_of_core(self, method: RidgeMethod) -> None:
        """Refuse ``--scratch`` without ``--out-of-core``; blocks of rows are all that any option needs in memory."""
        options.check_out_of_core(self.out_of_core, self.scratch, {})

    def numbers(self, n: int) -> list[int]:
        """Numbers of centres to compare, ascending, for n rows.

        Raises
        ------
        InputError
            More centres than rows.
        """
        if self.points is not None:
            return [int(self.points.shape[0])]
        if self.centers is None:
            return [min(DEFAULT, n)]
        if max(self.centers) > n:
            raise InputError(f"centers = {max(self.centers):,}: there are {n:,} rows; use at most as many centers")
        return sorted(set(self.centers))


@dataclass(frozen=True, kw_only=True)
class SubsetMethod(RidgeMethod):
    """Least squares on M points, with those of the common options that apply."""

    options: ClassVar[type] = SubsetOptions

    def has(self, name: str) -> bool:
        """True for the options of :data:`OPTIONS`, those declared for points, and those of all commands but libsvm."""
        inherited = {entry.name for entry, _ in declared(RidgeOptions)} - SubsetOptions.__annotations__.keys()
        return name in OPTIONS or name not in {"libsvm", *inherited}

    @property
    def lams(self) -> tuple[float, ...]:
        """Lambdas that the command tries: one decomposition serves all of them."""
        return (1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)

    @property
    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """Choices of the command's options that differ from the declared ones."""
        return {}
