"""Options of least squares on M points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from cacore import checks
from cacore.errors import InputError
from cacore.learn import shared
from cacore.learn.options import METRIC, SEARCH, SOLVER, declared, option
from cacore.learn.rules import check
from cakrr.method import RidgeMethod
from cakrr.options import LEVELS, OF_LEVELS, RidgeOptions
from cakrr.rules import BALANCED, SCALED

PICKS = ("random", "pivots", "kmeans")
SELECTS = ("loo", "gcv")
SCALINGS = ("deviation", LEVELS)
# Options of ridge regression that apply to points; the others are about parts, metrics and iterations.
OPTIONS = ("sigma", "lam", "kernel", "degree", "coef0", "standardize", "seed", "classify", "class_weight", "checkpoint")
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
        "deviation", f"scale features by their standard deviation; {OF_LEVELS}", checks.one_of(*SCALINGS), report=True,
        group=METRIC, choices=SCALINGS,
    )  # fmt: skip
    scratch: Path | None = shared.scratch("folder for the rows of --out-of-core", estimator="")
    out_of_core: bool = shared.out_of_core(read="them block by block")
    points: Any = None

    def checked(self, method: RidgeMethod) -> SubsetOptions:
        """These options, after checking them; raises an InputError."""
        check((BALANCED, SCALED), self, method)
        for one, known in declared(self):
            if known.flag and not method.has(one.name) and getattr(self, one.name) != one.default:
                raise InputError(f"{one.name}: {method.name} has no such option; leave it out")
        if self.sigma is not None and self.without_width:
            raise InputError(f"sigma: the {self.without_width} kernel has no width; leave it out")
        return self

    def check_out_of_core(self, method: RidgeMethod) -> None:
        """Refuse ``--scratch`` without ``--out-of-core``; blocks of rows are all that any option needs in memory."""
        shared.check_out_of_core(self.out_of_core, self.scratch, {})

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
        inherited = {one.name for one, _ in declared(RidgeOptions)} - SubsetOptions.__annotations__.keys()
        return name in OPTIONS or name not in {"libsvm", *inherited}

    @property
    def lams(self) -> tuple[float, ...]:
        """Lambdas that the command tries: one decomposition serves all of them."""
        return (1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)

    @property
    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """Choices of the command's options that differ from the declared ones."""
        return {}
