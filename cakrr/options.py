"""Options of a training run: what the methods of this family have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cacore import checks
from cacore.errors import InputError
from cacore.kernels.registry import KINDS, MOST_DEGREE
from cacore.learn import shared
from cacore.learn.options import Options as AnyOptions
from cacore.learn.options import option
from cacore.progress import Advance, silent
from cacore.tuning import grid

if TYPE_CHECKING:
    from cacore.io.checkpoint import Checkpoint
    from cacore.kernels import Kernel
    from cakrr.method import Method

SELECTIONS = ("validation", "test", "loo")
ROUTES = ("nearest", "soft", "all")
SCALINGS = ("deviation", "quantile", "auto")
SOLVERS = ("cholesky", "cg", "auto")
LEAST_LAM = 1e-30  # of cg, whose directions grow with 1 / lambda
PRECONDITIONERS = ("pivoted", "nystrom", "local", "two-level")
EXACT = ("solver", "preconditioner", "rank", "tol", "early", "max_time", "scratch")  # options of the exact method

# Small grids that lost little against large ones on the five data sets of docs/benchmarks.md. A wide kernel needs few
# centres: it is tried with CENTERS_WIDE.
CENTERS = (500, 1000, 1500)
NARROW, WIDE = 0.5, 2.0  # times the kernel's natural width, of the Gaussian the square root of the number of features
CENTERS_WIDE = (500, 1000)
LAMS = (1e-7, 1e-6, 1e-5)
LOCAL_SIGMAS = (0.125, 0.25, 0.5, 1.0)  # likewise, of the parts' models of the coarse model's residual
ALONE = 1e3  # a lambda so large that the parts' models add next to nothing to the coarse model
LOCAL_LAMS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, ALONE)


LENGTHS = "lengths"  # the metric of length scales that lessen the leave-one-out error


def _route(value: Any, name: str) -> str:
    """A route that can be asked for, or one of those that methods have of their own."""
    own = isinstance(value, str) and value in ("oracle", "sum")
    return str(value) if own else checks.one_of(*ROUTES)(value, name)


LEFT_OUT, JACKKNIFE = "loo", "jackknife+"  # rows that are left out one at a time, for intervals


def _calibrate(value: Any, name: str) -> float | str:
    """A share of the rows, or a word for rows that are left out one at a time."""
    if isinstance(value, str) and value in (LEFT_OUT, JACKKNIFE):
        return value
    try:
        return float(checks.share(value, name))
    except InputError as error:
        raise InputError(f"{error}, or {LEFT_OUT}, or {JACKKNIFE}") from None


AUTO = ("gaussian", "matern52", "laplacian", "l1")  # kernels that "auto" chooses from
NEARBY = (0.5, 1.0, 2.0)  # times the width that the last round of a metric chose: what the next one tries


@dataclass(frozen=True)
class Width:
    """A kernel of any width, and a width to try."""

    like: Kernel
    sigma: float

    @property
    def kernel(self) -> Kernel:
        """The kernel of this width."""
        return self.like.with_sigma(self.sigma)

    def nearby(self) -> tuple[Width, ...]:
        """This one and its neighbours, ascending: so that a search that goes on can leave the grid it began with."""
        times = NEARBY if self.like.declared.has_width else (1.0,)
        return tuple(Width(self.like, self.sigma * by) for by in times)


CoarseGrid = list[tuple[Width, list[int], tuple[float, ...]]]  # width, numbers of centres, lambdas to try


@dataclass(frozen=True)
class Options(AnyOptions):
    """Options of a training run; each option's text says what it is.

    `partitions` None is one part a rank, or as many as keep a part at 8,000 rows and its matrix inside the limit;
    `sigma` None is the kernel's natural width, or with a coarse model :meth:`Method.sigmas` of it.
    `class_weight` maps a class's code to its weight; "balanced" is n / (classes x rows of the class), over all ranks.
    `memory_limit` is in bytes a rank; `progress` is as :func:`cacore.progress.bar` yields it.
    """

    partitions: int | None = option(
        None, "number of parts (default: what ranks and memory ask for)", checks.whole(1), estimator="n_parts",
        metavar="P",
    )  # fmt: skip
    divisions: int = option(
        1, "divide the rows so many times: the mean of the divisions' models answers", checks.whole(1, 1000),
        estimator="n_divisions", report=True, metavar="N",
    )  # fmt: skip
    route: str | None = option(None, "which models answer for a row", _route, choices=ROUTES)
    sigma: tuple[float, ...] | None = option(
        None,
        "number, comma list or lo:hi:COUNT (default: 5 around sqrt(features), l1: features; 4 from 1/8 of it with "
        "centers)", checks.values, metavar="GRID",
    )  # fmt: skip
    lam: tuple[float, ...] = option(
        (1e-4,), "number, comma list or lo:hi:COUNT", checks.values, flag="--lambda", metavar="GRID"
    )
    kernel: Any = option("gaussian", "sigma is its width", checks.kernel_or_auto, report=True, choices=(*KINDS, "auto"))
    degree: int = option(
        3, "of the polynomial kernel; exponent of the rational one", checks.whole(0, MOST_DEGREE), metavar="D"
    )
    coef0: float = option(0.0, "of the polynomial and sigmoid kernels", checks.finite, metavar="R")
    centers: tuple[int, ...] | None = option(
        None, f"of the coarse model, or a list (default: {grid.listed(CENTERS)})", checks.whole_values, metavar="M"
    )
    coarse_sigma: tuple[float, ...] | None = option(
        None, "as --sigma (default: 1/2 and 2 of sqrt(features))", checks.values, metavar="GRID"
    )
    coarse_lam: tuple[float, ...] | None = option(
        None, f"as --lambda (default: {grid.listed(LAMS)})", checks.values, flag="--coarse-lambda", metavar="GRID"
    )
    refine: int = option(
        0, "iterations from the coarse model towards the exact one of its kernel", checks.whole(0), report=True,
        metavar="N",
    )  # fmt: skip
    select: str = option(
        "validation", "what judges the grid: rows held out, rows left out one by one, or the test rows, which leaks",
        checks.one_of(*SELECTIONS), report=True, choices=SELECTIONS,
    )  # fmt: skip
    validation_fraction: float = option(0.1, "of each part's rows", checks.share, metavar="F")
    cv: int | None = option(
        None, "judge by so many folds, every row once, instead of one share held out", checks.whole(2), report=True,
        metavar="FOLDS",
    )  # fmt: skip
    per_part: bool = option(
        False, "every part chooses its own sigma and lambda, by its own rows", checks.yes_or_no, report=True,
        action="store_true",
    )  # fmt: skip
    solver: str = option(
        "cholesky", "factor the matrix, iterate, or whichever costs less and fits", checks.one_of(*SOLVERS),
        choices=SOLVERS,
    )  # fmt: skip
    preconditioner: str = option(
        "pivoted", "of --solver cg: a factor of pivots or of random rows, blocks of rows, or both",
        checks.one_of(*PRECONDITIONERS), choices=PRECONDITIONERS,
    )  # fmt: skip
    rank: int | None = option(
        None, "of the factor (default: until more costs more than it saves)", checks.whole(1), metavar="K"
    )
    tol: float = option(1e-6, "residual over the targets' size at which cg stops", checks.share, metavar="TOL")
    early: float | None = option(
        None, "cg stops where the validation error moves by less than this share", checks.share, metavar="SHARE"
    )
    max_time: float | None = option(None, "seconds after which a run of cg stops", checks.seconds, metavar="S")
    scratch: Path | None = shared.scratch(
        "directory for what does not fit into memory: kernel values or a factor, or the rows of --out-of-core"
    )
    out_of_core: bool = shared.out_of_core()
    metric: str = shared.metric(LENGTHS)
    metric_rounds: int = shared.metric_rounds()
    scaling: str = option(
        "deviation", "features by their deviation, by normal scores of their quantiles, or as validation prefers",
        checks.one_of(*SCALINGS), report=True, choices=SCALINGS,
    )  # fmt: skip
    standardize: bool = shared.switch(True, "scale features by the training rows' mean and deviation", report=True)
    seed: int = option(0, "of everything random", shared.seed, estimator="", report=True, metavar="S")
    classify: bool = option(
        False, "targets are classes: one column a class, the largest answers", checks.yes_or_no, estimator="",
        action="store_true",
    )  # fmt: skip
    class_weight: Any = option(
        None, "with --classify: weigh the classes so that each counts as much", flag="--balanced", estimator="",
        action="store_const", const="balanced",
    )  # fmt: skip
    keep_factors: bool = option(
        False, "keep what standard deviations need: 8 m^2 bytes of memory a part of m rows, half in the file",
        checks.yes_or_no, action="store_true",
    )  # fmt: skip
    calibrate: float | str | None = option(
        None, "for intervals: set this share of the rows aside; or leave each row out of its part's model: loo, their "
        "errors alone, or jackknife+, and what a row does to each answer", _calibrate, report=True, metavar="F",
    )  # fmt: skip
    probability: str | None = shared.probability()
    checkpoint: Checkpoint | None = shared.checkpoint()
    wide: bool = False  # the command's grid of sigmas, where none is given, and not the natural width alone
    of_several: bool = False  # whether the kernel is one of `auto`, with rounds of its own
    memory_limit: int = 1 << 62
    progress: Callable[[str, int], Advance] = silent

    def checked(self, method: Method) -> Options:
        """These options, if `method` can do what they ask for.

        Raises
        ------
        InputError
        """
        if self.route is not None and self.route != method.route:
            if method.oracle or not method.partitioner:
                raise InputError(f"route {self.route}: {method.name} has a route of its own; leave it out")
            if self.route not in ROUTES:
                raise InputError(f"route {self.route!r}: choose one of {', '.join(ROUTES)}")
        self._check_kernel()
        self._check_solver()
        if self.select == "loo" and (method.coarse or (self.route or method.route) not in ("nearest", "soft")):
            fixed = method.coarse or method.oracle or not method.partitioner
            raise InputError(
                f"select loo: a row is left out of its own part's model, and {method.name} answers otherwise; "
                f"use select validation{'' if fixed else ', or route nearest'}"
            )
        if self.divisions > 1 and (method.oracle or not method.partitioner):
            why = "looks at the answers" if method.oracle else "has one model of all rows"
            raise InputError(f"divisions = {self.divisions}: {method.name} {why}; leave it out")
        if self.scaling != "deviation" and not self.standardize:
            raise InputError(f"scaling {self.scaling}: features are not scaled without standardize; leave one out")
        self._check_judges(method)
        self._check_lengths(method)
        self._check_uncertainty(method)
        if self.classify and method.oracle:
            raise InputError(f"classify: {method.name} looks at the one number that is the answer; leave it out")
        if self.class_weight is not None and not self.classify:
            raise InputError("class_weight, --balanced: there are no classes without --classify")
        if not method.partitioner and (self.partitions or 1) != 1:
            raise InputError(f"partitions = {self.partitions}: {method.name} has one model of all rows; leave it out")
        return self

    def _check_uncertainty(self, method: Method) -> None:
        """Refuse factors and rows for intervals where there can be none."""
        for name, value in (("keep_factors", self.keep_factors), ("calibrate", self.calibrate)):
            if value and (method.oracle or self.classify):
                why = "classes have no standard deviations" if self.classify else f"{method.name} does not predict"
                raise InputError(f"{name}: {why}; leave it out")
        if self.probability is not None:
            self._check_probability(method)
        if self.keep_factors and not method.partitioner:
            raise InputError(
                f"keep_factors: {method.name} has one factor of all rows, which no file keeps; leave it out, and "
                "standard deviations make it when they are asked for"
            )
        if self.calibrate not in (LEFT_OUT, JACKKNIFE):
            return
        if self.divisions > 1:
            raise InputError(
                f"calibrate {self.calibrate}: a row is left out of one division's model; set a share of the rows aside"
            )
        if method.coarse or (self.route or method.route) == "all":
            raise InputError(
                f"calibrate {self.calibrate}: a row is left out of its own part's model, and {method.name} answers "
                "otherwise; set a share of the rows aside"
            )

    def _check_probability(self, method: Method) -> None:
        """Refuse probabilities from left-out rows where several models answer for a row, or there are no classes."""
        if not self.classify:
            raise InputError("probability: there are no classes without --classify; leave it out")
        if self.divisions > 1 or (self.route or method.route) == "all":
            raise InputError(
                f"probability: a row is left out of its own part's model, and several models of {method.name} answer; "
                "leave it out, and values are clipped"
            )

    def _check_judges(self, method: Method) -> None:
        """Refuse folds, and choices of parts, where something else judges."""
        for name, value in (("cv", self.cv), ("per_part", self.per_part)):
            if not value:
                continue
            if not method.partitioner or method.coarse:
                why = "a coarse model" if method.coarse else "one model"
                raise InputError(f"{name}: {method.name} has {why} of all rows, which one share judges; leave it out")
            if method.oracle or self.select == "test":
                raise InputError(f"{name}: the test rows judge; use select validation")
        if self.cv and self.select == "loo":
            raise InputError("cv: select loo leaves out every row already; leave one of them out")
        if self.per_part and self.chooses_kernel:
            raise InputError("per_part: parts choose sigma and lambda, and kernel auto is one choice; name a kernel")
        if self.per_part and self.divisions > 1:
            raise InputError(
                "per_part: what the parts of one division choose does not fit those of another; leave out one"
            )

    def _check_lengths(self, method: Method) -> None:
        """Refuse length scales where there is no leave-one-out error of parts, or no distance."""
        if self.metric != LENGTHS:
            return
        if not method.partitioner or method.coarse:
            why = "a coarse model" if method.coarse else "one model"
            raise InputError(f"metric {LENGTHS}: {method.name} has {why} of all rows; use metric diagonal")
        for like in self.kernels():
            if not like.of_distance:
                raise InputError(f"metric {LENGTHS}: the {like.kind} kernel is of no distance; use metric diagonal")

    @property
    def rounds(self) -> int:
        """Most rounds of training after the first one."""
        return 0 if self.metric == "none" else self.metric_rounds

    @property
    def keeps_rows(self) -> bool:
        """True if the rows are divided more than once."""
        return self.metric != "none" or self.divisions > 1

    @property
    def compares(self) -> bool:
        """True if the same validation rows judge several trainings: rounds of a metric, scalings."""
        return self.metric != "none" or self.scaling == "auto"

    @property
    def chooses_kernel(self) -> bool:
        """True if several kernels are tried."""
        return self.of_several or len(self.kernels()) > 1

    def ways(self) -> list[Options]:
        """These options; where a metric is learned and several kernels are tried, those of each kernel by itself."""
        if self.metric == "none" or not self.chooses_kernel:
            return [self]
        return [replace(self, kernel=like.kind, of_several=True) for like in self.kernels()]

    def check_out_of_core(self, method: Method) -> None:
        """Refuse what looks at all rows at once, or more often than once, where they lie in a file.

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

    def _check_solver(self) -> None:
        if self.solver == "cholesky" and (told := self.of_iteration()):
            raise InputError(f"{told[0]}: a factorisation has none; use --solver cg, or leave it out")
        if self.solver == "cg" and min(self.lam) < LEAST_LAM:
            raise InputError(
                f"lambda {min(self.lam):g}: cg needs {LEAST_LAM:g} or more, a ridge that single precision holds"
            )

    def of_iteration(self) -> list[str]:
        """Options that are given, and mean nothing to a factorisation, by the names of their flags."""
        given = {one.name: one.default for one in fields(self) if one.name in EXACT and one.name != "solver"}
        apart = ("scratch",) if self.out_of_core else ()
        given = {name: usual for name, usual in given.items() if name not in apart}
        return [name.replace("_", "-") for name, usual in given.items() if getattr(self, name) != usual]

    def _check_kernel(self) -> None:
        from cacore.data.metric import check_kernel

        for like in self.kernels():
            if not like.declared.has_width and (self.sigma or self.coarse_sigma):
                raise InputError(f"sigma: the {like.kind} kernel has no width; leave it out")
        check_kernel(self.metric, self.kernel)

    def kernels(self) -> tuple[Kernel, ...]:
        """The kernel, of any width, or those that are tried."""
        from cacore.kernels import Kernel

        if callable(self.kernel):
            from cacore.kernels.given import given_kernel

            return (given_kernel(self.kernel),)
        kinds = AUTO if self.kernel == "auto" else (self.kernel,)
        return tuple(Kernel(kind, degree=self.degree, coef0=self.coef0) for kind in kinds)

    def widths(self, method: Method, d: int) -> tuple[Width, ...]:
        """The widths to try of each kernel, for d features; 1 of a kernel without a width."""
        found: list[Width] = []
        for like in self.kernels():
            natural = like.declared.typical_distance(d)
            sigmas = self.sigma or (method.sigmas(natural) if self.wide or method.coarse else (natural,))
            found += [Width(like, sigma) for sigma in (sigmas if like.declared.has_width else (1.0,))]
        return tuple(found)

    def coarse_grid(self, n: int, d: int) -> CoarseGrid:
        """Width, numbers of centres and lambdas of the coarse models to try, for n rows of d features."""
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
