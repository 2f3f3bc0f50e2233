"""Options of a training run by kernel ridge regression, shared by all methods of this family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cacore import checks
from cacore.errors import InputError
from cacore.kernels.registry import KINDS, MOST_DEGREE
from cacore.learn import shared
from cacore.learn.options import KERNEL, METRIC, PARTS, SEARCH, SOLVER, UNCERTAINTY, Options, option
from cacore.learn.rules import check
from cacore.progress import Advance, silent
from cacore.tuning import grid
from cakrr.rules import JACKKNIFE, LEFT_OUT, ROUTES, RULES

if TYPE_CHECKING:
    from cacore.data.labels import ClassWeight
    from cacore.io.checkpoint import Checkpoint
    from cacore.kernels import Kernel
    from cakrr.method import RidgeMethod

SELECTIONS = ("validation", "test", "loo")
LEVELS = "levels"
OF_LEVELS = "levels: by deviation, after a column of 0 and 1 for each value of features with 3 to 20 whole numbers"
SCALINGS = ("deviation", "quantile", LEVELS, "auto")
SOLVERS = ("cholesky", "cg", "auto")
PRECONDITIONERS = ("pivoted", "nystrom", "local", "two-level")
EXACT = ("solver", "preconditioner", "rank", "tol", "near", "early", "max_time", "scratch")  # of the exact method

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
    own = isinstance(value, str) and value in ("oracle", "sum")
    return str(value) if own else checks.one_of(*ROUTES)(value, name)


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
class RidgeOptions(Options):
    """Options of a training run; each option's help text describes it.

    `partitions` None means one part per rank, or as many as keep a part at 8,000 rows and its matrix within the memory
    limit. `sigma` None means the kernel's natural width, or with a coarse model :meth:`RidgeMethod.sigmas` of it.
    `class_weight` maps a class's code to its weight; "balanced" is n / (classes x rows of the class), over all ranks.
    `memory_limit` is in bytes per rank. `progress` is a function as :func:`cacore.progress.bar` yields it.
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
    centers: tuple[int, ...] | None = option(
        None, f"number of centres of the coarse model, or a list to compare (default: {grid.listed(CENTERS)})",
        checks.whole_values, group=SOLVER, only=_coarse, metavar="M",
    )  # fmt: skip
    coarse_sigma: tuple[float, ...] | None = option(
        None, "width of the coarse model's kernel, as --sigma (default: 1/2 and 2 times sqrt(features))", checks.values,
        group=SOLVER, only=_coarse, metavar="GRID",
    )  # fmt: skip
    coarse_lam: tuple[float, ...] | None = option(
        None, f"ridge parameter of the coarse model, as --lambda (default: {grid.listed(LAMS)})", checks.values,
        flag="--coarse-lambda", group=SOLVER, only=_coarse, metavar="GRID",
    )  # fmt: skip
    refine: int = option(
        0, "iterations that refine the coarse model towards the exact one of its kernel", checks.whole(0), report=True,
        group=SOLVER, only=_coarse, metavar="N",
    )  # fmt: skip
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
    scratch: Path | None = shared.scratch(
        "folder for data that does not fit in memory: kernel values, a factor, or the rows of --out-of-core",
        only=lambda method: not method.coarse,
    )
    out_of_core: bool = shared.out_of_core(only=lambda method: bool(method.partitioner) and not method.coarse)
    metric: str = shared.metric()
    metric_rounds: int = shared.metric_rounds()
    scaling: str = option(
        "deviation", "scale features by their standard deviation or by normal scores of their quantiles, or whichever "
        f"of these validates better (auto); {OF_LEVELS}", checks.one_of(*SCALINGS), report=True, group=METRIC,
        choices=SCALINGS,
    )  # fmt: skip
    standardize: bool = shared.standardize(True)
    seed: int = shared.random_state()
    classify: bool = option(
        False, "targets are classes: fit one indicator column per class; the largest output wins", checks.yes_or_no,
        estimator="", group=KERNEL, action="store_true",
    )  # fmt: skip
    class_weight: ClassWeight = shared.balanced("with --classify: weight the classes so that each counts equally")
    keep_factors: bool = option(
        False, "keep the factors that predict --std needs: 8 m^2 bytes of memory per part of m rows, half that in the "
        "file", checks.yes_or_no, group=UNCERTAINTY, only=_divides, action="store_true",
    )  # fmt: skip
    calibrate: float | str | None = option(
        None, "calibrate prediction intervals: on this share of the rows, held out; by leave-one-out errors (loo); or "
        "by these and the effect of each row on the prediction (jackknife+)", _calibrate, report=True,
        group=UNCERTAINTY, only=lambda method: not method.oracle, metavar="F",
    )  # fmt: skip
    probability: str | None = shared.probability()
    checkpoint: Checkpoint | None = shared.checkpoint()
    wide: bool = False  # if sigma is None, try the command's grid of widths instead of the natural width alone
    of_several: bool = False  # True if the kernel is one of those that `auto` tries, each in its own rounds
    memory_limit: int = 1 << 62
    progress: Callable[[str, int], Advance] = silent

    def checked(self, method: RidgeMethod) -> RidgeOptions:
        """These options, after checking them for `method`.

        Raises
        ------
        InputError
            The first of :data:`cakrr.rules.RULES` that they break.
        """
        check(RULES, self, method)
        return self

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
    def default_widths(self) -> bool:
        """True if the default widths are compared, rather than those that the user gave."""
        return self.sigma is None and self.wide

    @property
    def rounds(self) -> int:
        """Maximum number of training rounds after the first."""
        return 0 if self.metric == "none" else self.metric_rounds

    @property
    def keeps_rows(self) -> bool:
        """True if the rows are divided more than once."""
        return self.metric != "none" or self.divisions > 1

    @property
    def compares(self) -> bool:
        """True if several trainings share the validation rows: rounds of a metric, scalings."""
        return self.metric != "none" or self.scaling == "auto"

    @property
    def chooses_kernel(self) -> bool:
        """True if several kernels are compared."""
        return self.of_several or len(self.kernels()) > 1

    def ways(self) -> list[RidgeOptions]:
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
        given = {
            "--metric": self.metric != "none", "--scaling": self.scaling != "deviation",
            "--divisions": self.divisions > 1, "--cv": self.cv is not None, "--keep-factors": self.keep_factors,
            "--calibrate": self.calibrate is not None, "--probability": self.probability is not None,
        }  # fmt: skip
        if method.partitioner:
            shared.check_out_of_core(self.out_of_core, self.scratch, given)

    def of_iteration(self) -> list[str]:
        """Flags of the given options that do not apply to a factorisation."""
        given = {one.name: one.default for one in fields(self) if one.name in EXACT and one.name != "solver"}
        apart = ("scratch",) if self.out_of_core else ()
        given = {name: usual for name, usual in given.items() if name not in apart}
        return [name.replace("_", "-") for name, usual in given.items() if getattr(self, name) != usual]

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
        found: list[Width] = []
        for like in self.kernels():
            natural = like.declared.typical_distance(d)
            sigmas = self.sigma or (method.sigmas(natural) if self.wide or method.coarse else (natural,))
            found += [Width(like, sigma) for sigma in (sigmas if like.declared.has_width else (1.0,))]
        return tuple(found)

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
