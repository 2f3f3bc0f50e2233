"""The record of the methods that train regression and one-class SVMs, and its options.

:mod:`casvm.options` has the classifiers'.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from cacore import checks
from cacore.errors import InputError
from cacore.kernels.registry import declaration
from cacore.learn import shared
from cacore.learn.method import Method
from cacore.learn.options import KERNEL, METRIC, PARTS, SEARCH, SOLVER, UNCERTAINTY, option
from cacore.learn.rules import check
from cacore.progress import Advance, silent
from cacore.svm.options import DualOptions
from casvm.options import AUTO, ROUTES, part_solver_option
from casvm.rules import GRID, VALUE_RULES

if TYPE_CHECKING:
    from cacore.io.checkpoint import Checkpoint
    from cacore.tuning.results import Results
    from partition.base import Algorithm

SCALE = "scale"  # value of C, epsilon or tol: these numbers times the targets' deviation
_SEARCHED = ("C", "epsilon", "gamma")
SCALED = {"C": 1.0, "epsilon": 0.1, "tol": 1e-3}
UNSEARCHED = "there are too few rows to compare settings: C, epsilon and gamma that were not given are set to scale"
METRICS = ("none", shared.LENGTHS)
NU = 0.5  # default for one class
PARTITIONERS = ("kbalance", "kmeans", "bkm", "fcfs", "random")  # choices of the commands; the first is the default

nu_share = checks.number(lambda nu: 0 < nu <= 1, "a number above 0 and at most 1")


def _regression(method: ValueMethod) -> bool:
    return not method.one_class


def _partitioner(value: object, name: str) -> str | Algorithm:
    """A registered name, or a partitioner."""
    from partition.base import Algorithm
    from partition.divide import named

    if not isinstance(value, str | Algorithm):
        raise checks.refused(name, value, "the name of a partitioner, or a Partitioner")
    named(value)
    return value


def _at_least_zero_or_scale(value: object, name: str) -> float | str:
    if value == SCALE:
        return SCALE
    try:
        return checks.at_least_zero(value, name)
    except InputError as error:
        raise InputError(f"{error}, or {SCALE}") from None


@dataclass(frozen=True)
class ValueOptions(DualOptions):
    """Options of a training run, besides those of the dual problem; each option's help text describes it.

    C, epsilon and gamma may be a number, a tuple of several, or :data:`casvm.options.GRID`; None means not given. If
    none of them nor nu is given, all three are a grid; otherwise the missing ones are "scale". `tol` None is "scale",
    in units of the targets, if C or epsilon is "scale" or a grid, and a number otherwise. For one class, nu None is
    :data:`NU`. `partitions` None means one part per rank, `partitioner` None the first of :data:`PARTITIONERS`, and
    `route` :data:`casvm.options.AUTO` the one that suits the parts. `progress` is a function as
    :func:`cacore.progress.bar` yields it.
    """

    C: Any = option(
        1.0, "upper bound of the coefficients: a number, comma list, lo:hi:COUNT, 'grid' (default values to compare), "
        "or 'scale': the targets' standard deviation", checks.one_or(checks.number_or(SCALE), GRID), only=_regression,
        metavar="C",
    )  # fmt: skip
    epsilon: Any = option(
        SCALE, "errors up to this cost nothing; same forms as --C, 'scale' is 0.1 of the targets' standard deviation",
        checks.one_or(_at_least_zero_or_scale, GRID), only=_regression, metavar="E",
    )  # fmt: skip
    gamma: Any = option(
        SCALE, "kernel parameter gamma, same forms as --C; 'scale': 1 / (features x variance); 'auto': 1 / features; "
        "for laplacian 1 over the square roots, for l1 1 / (features x deviation)",
        checks.one_or(checks.number_or(SCALE, "auto"), GRID), metavar="G",
    )  # fmt: skip
    nu: float | None = option(
        None, "upper bound on the share of outliers and lower bound on the share of support vectors; in regression it "
        "replaces epsilon", nu_share, estimator="", group=KERNEL, metavar="NU",
    )  # fmt: skip
    quantile: float | tuple[float, ...] | None = option(
        None, "predict these quantiles of the target instead of its mean, such as 0.1,0.5,0.9; it replaces epsilon",
        checks.levels, group=KERNEL, only=_regression, metavar="TAU",
    )  # fmt: skip
    calibrate: float | None = option(
        None, "with --quantile: hold out this share of the rows, and calibrate quantiles and intervals on it",
        checks.share, group=UNCERTAINTY, only=_regression, metavar="F",
    )  # fmt: skip
    tol: Any = option(
        None, "stop when the largest violation of the optimality conditions is below this; scale = 0.001 of the "
        "targets' standard deviation", checks.number_or(SCALE), group=SOLVER, metavar="T",
    )  # fmt: skip
    cv: int | None = option(
        None, "number of folds used to compare values of C, epsilon and gamma (default: 5; above 5,000 rows one split "
        "that holds out a tenth)", checks.whole(2), group=SEARCH, only=_regression, metavar="FOLDS",
    )  # fmt: skip
    quick: bool = option(
        False, "use default grids of 3 x 1 x 4 values (C x epsilon x gamma) instead of 4 x 2 x 6", checks.yes_or_no,
        estimator="", group=SEARCH, only=_regression, action="store_true",
    )  # fmt: skip
    partitions: int | None = option(
        None, "number of parts (default: one per rank)", checks.whole(1), estimator="n_parts", metavar="P"
    )
    partitioner: Any = option(
        None, f"partitioner that makes the parts (default: {PARTITIONERS[0]}); random leaves rows where they are",
        _partitioner, group=PARTS, choices=PARTITIONERS, exclusive=True,
    )  # fmt: skip
    divisions: int = option(
        1, "number of independent divisions of the rows into parts; predictions are averaged over them",
        checks.whole(1, 1000), estimator="n_divisions", report=True, group=PARTS, metavar="N",
    )  # fmt: skip
    overlap: float = option(
        0.0, "also train each part on the closest rows of other parts, this many times its own number of rows",
        checks.number(lambda share: 0 <= share <= 100, "a number from 0 to 100"), report=True, group=PARTS,
        only=_regression, metavar="SHARE",
    )  # fmt: skip
    exact: bool = option(
        False, "solve a single problem of all rows, which are distributed over the ranks", checks.yes_or_no,
        estimator="", report=True, group=PARTS, action="store_true", exclusive=True,
    )  # fmt: skip
    route: str = option(
        AUTO, "models that predict a row: the nearest centre's, a weighted mean of the nearest few, or the mean of all "
        "(default: nearest, or all for random parts)", checks.one_of(*ROUTES, AUTO), group=PARTS, choices=ROUTES,
    )  # fmt: skip
    metric: str = option(
        "none", "learn a length scale per feature that reduces the leave-one-out error of kernel ridge regression "
        "(lengths); for kernels of a distance", checks.one_of(*METRICS), group=METRIC, only=_regression,
        choices=METRICS,
    )  # fmt: skip
    solver: str = part_solver_option()
    working_set: int | None = option(
        None, "rows that each round of --exact optimises (default: the solver's choice; 2: one pair, as in "
        "standard SMO)", checks.whole(2), group=SOLVER, metavar="Q",
    )  # fmt: skip
    checkpoint: Checkpoint | None = shared.checkpoint()
    progress: Callable[[str, int], Advance] = silent

    def __post_init__(self) -> None:
        if self.nu is not None and self.epsilon not in (None, SCALE):
            raise InputError("nu, epsilon: nu determines epsilon; give one of them")
        self._check_quantile()
        unnamed = [name for name in self.searched if getattr(self, name) is None]
        for name in unnamed:
            object.__setattr__(self, name, GRID if unnamed == self.searched and self.nu is None else SCALE)
        if self.tol is None:
            in_units = {GRID, SCALE} & {one for one in (self.C, self.epsilon) if isinstance(one, str)}
            object.__setattr__(self, "tol", SCALE if in_units else SCALED["tol"])
        super().__post_init__()
        if isinstance(self.gamma, tuple) and not declaration(self.kernel).has_width:
            raise InputError("gamma: several values are given, but this kernel has no gamma; leave it out")
        if self.quick and GRID not in (self.C, self.epsilon, self.gamma):
            raise InputError(f"quick: it shortens a default grid, and neither C, epsilon nor gamma is {GRID}")

    def _check_quantile(self) -> None:
        """Refuse options that contradict --quantile, or need it; without an epsilon there is none to choose."""
        if self.quantile is None:
            if self.calibrate is not None:
                raise InputError("calibrate: only quantiles are calibrated; give quantile as well")
            return
        for name, default in (("epsilon", SCALE), ("nu", None)):
            if getattr(self, name) not in (default, None):
                raise InputError(f"quantile, {name}: the loss of a quantile has no {name}; leave it out")
        object.__setattr__(self, "epsilon", SCALE)

    @property
    def levels(self) -> tuple[float, ...]:
        """Levels of the quantiles, ascending; none for a regression of the mean."""
        given = self.quantile
        return given if isinstance(given, tuple) else () if given is None else (given,)

    @property
    def searched(self) -> list[str]:
        """Names of the parameters that a search chooses."""
        return [name for name in _SEARCHED if name != "epsilon" or self.quantile is None]

    @property
    def searches(self) -> bool:
        """True if C, epsilon and gamma are chosen, or at least evaluated, by cross-validation."""
        return bool(self.several) or self.cv is not None

    @property
    def several(self) -> list[str]:
        """Names among C, epsilon and gamma that have several values, of which a search chooses one."""
        given = {name: getattr(self, name) for name in self.searched}
        return [name for name, value in given.items() if value == GRID or isinstance(value, tuple)]

    def route_of(self, method: ValueMethod) -> str:
        """The given route; or the nearest centre's model, or for random parts the mean of all models."""
        if self.route != AUTO:
            return self.route
        from partition.divide import named

        return "nearest" if named(self.partitioner or PARTITIONERS[0]).clusters else "all"

    def with_setting(self, found: Results | None) -> ValueOptions:
        """These options with the setting that a search `found`; if it is None, what has several values is "scale"."""
        chosen: dict[str, Any] = (
            {"gamma": SCALE, **found.chosen} if found is not None else dict.fromkeys(self.several, SCALE)
        )
        return replace(self, cv=None, quick=False, **chosen)

    def checked(self, method: ValueMethod, ranks: int) -> int:
        """Check the options for `method` on this number of ranks, and return the number of parts.

        Raises
        ------
        InputError
            The first of :data:`casvm.rules.VALUE_RULES` that the options break; fewer parts than ranks; nu-SVR on
            several ranks.
        """
        if self.exact and self.nu is not None and not method.one_class and ranks > 1 and not self.searches:
            raise InputError("nu: the exact nu-SVR cannot be solved on several ranks; give epsilon, or use one rank")
        check(VALUE_RULES, self, method)
        P = 1 if self.exact else self.partitions or ranks
        if not self.exact and ranks > P:
            raise InputError(f"partitions = {P} on {ranks} ranks: every rank needs a part; ask for {ranks} or more")
        return P


@dataclass(frozen=True, kw_only=True)
class ValueMethod(Method):
    """A method whose models have one real output per row: regression or one class.

    Attributes
    ----------
    one_class : bool
    """

    package: ClassVar[str] = "casvm"
    options: ClassVar[type] = ValueOptions

    one_class: bool = False

    @property
    def without(self) -> Collection[str]:
        """Common options that this command lacks: there are no classes, and one class has no search to plot."""
        return ("class_weight", "plot") if self.one_class else ("class_weight",)

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Defaults of the command's options that differ from the declared ones."""
        if self.one_class:
            return {"nu": NU, "tol": SCALED["tol"]}
        return {**dict.fromkeys(_SEARCHED), "tol": SCALE}
