"""The record of a method that trains classifiers, and its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cacore import checks
from cacore.errors import InputError
from cacore.kernels.registry import declaration
from cacore.learn import options as groups
from cacore.learn import shared
from cacore.learn.method import Method
from cacore.learn.options import FILES, METRIC, PARTS, SOLVER, option
from cacore.learn.rules import check
from cacore.progress import Advance, silent
from cacore.svm.options import DualOptions
from cacore.svm.solvers import DEFAULT, solver_names
from casvm.rules import GRID, PLAIN, RULES, SEARCH

if TYPE_CHECKING:
    from cacore.io.checkpoint import Checkpoint
    from cacore.tuning.results import Results

ROUTES = ("nearest", "soft", "all")
AUTO = "auto"  # the route that suits the parts
INITIAL = ("local", "root")
UNNAMED = None  # default of a command: a grid if neither C nor gamma is given, otherwise 1 and "scale"
UNSEARCHED = "a class, or every part, has one row only: C = 1 and gamma = scale, unless given"


def _scorer(value: object, name: str) -> str:
    from cacore.tuning.scorers import scorer

    return scorer(value, name)


def _many_models(method: SVMMethod) -> bool:
    return not method.one_model


def _solver(value: object, name: str) -> str:
    return str(checks.one_of(*solver_names())(value, name))


def part_solver_option(only: Callable[[Any], bool] | None = None) -> str:
    """Option --solver, the solver of each part in :mod:`cacore.svm.solvers`, for methods that `only` accepts."""
    text = "solver of each part: SMO (smo), or asynchronous and without a bias term (asygcd, for classes)"
    return option(DEFAULT, text, _solver, report=True, group=SOLVER, only=only, choices=solver_names())


@dataclass(frozen=True)
class SVMOptions(DualOptions):
    """Options of a training run, besides those of the dual problem; each option's help text describes it.

    C and gamma may be a number, a tuple of several, or :data:`GRID`; a search chooses among them before training.
    `partitions` None means one part per rank, and `route` :data:`AUTO` the method's own. `progress` is a function as
    :func:`cacore.progress.bar` yields it.
    """

    C: Any = option(
        1.0, "upper bound of the coefficients alpha: a number, comma list, lo:hi:COUNT, or 'grid': default values to "
        "compare (used by methods in parts if neither --C nor --gamma is given)",
        checks.one_or(checks.positive, GRID), metavar="C",
    )  # fmt: skip
    gamma: Any = option(
        "scale", "kernel parameter gamma, same forms as --C; 'grid': around 1 / median squared distance; 'scale': 1 / "
        "(features x variance); 'auto': 1 / features; for laplacian 1 over the square roots, for l1 1 / (features x "
        "deviation)",
        checks.one_or(checks.number_or("scale", "auto"), GRID), metavar="G",
    )  # fmt: skip
    cv: int | None = option(
        None, "number of folds used to compare values of C and gamma (default: 5)", checks.whole(2),
        group=groups.SEARCH, metavar="FOLDS",
    )  # fmt: skip
    scoring: str = option(
        PLAIN, "score used for the comparison: accuracy, balanced_accuracy, f1, precision, recall, jaccard or "
        "f1_macro, ...", _scorer, group=groups.SEARCH, metavar="NAME",
    )  # fmt: skip
    per_part: bool = option(
        False, "let every part choose its own C and gamma", checks.yes_or_no, group=groups.SEARCH, only=_many_models,
        action="store_true",
    )  # fmt: skip
    quick: bool = option(
        False, "use default grids of 5 x 5 values instead of 10 x 10", checks.yes_or_no, estimator="",
        group=groups.SEARCH, action="store_true",
    )  # fmt: skip
    partitions: int | None = option(
        None, "number of parts (default: one per rank)", checks.whole(1), estimator="n_parts", metavar="P"
    )
    route: str = option(
        AUTO, "models that predict a row: the nearest centre's, a weighted mean of the nearest few, or the mean of all",
        checks.one_of(*ROUTES, AUTO), group=PARTS, choices=ROUTES,
    )  # fmt: skip
    initial: str = option(
        "local", "who reads the rows: each rank its own (local), or rank 0, which scatters them (root)",
        checks.one_of(*INITIAL), estimator="", report=True, group=FILES, only=lambda method: not method.partitioner,
        choices=INITIAL,
    )  # fmt: skip
    ratio: bool = option(
        False, "balance every class as well as the sizes of the parts", checks.yes_or_no, report=True, group=PARTS,
        only=lambda method: bool(method.partitioner), action="store_true",
    )  # fmt: skip
    passes: int = option(
        1, "maximum number of passes through the tree; training stops once the objective no longer changes",
        checks.whole(1), report=True, group=SOLVER, only=lambda method: method.merge == "support", metavar="N",
    )  # fmt: skip
    solver: str = part_solver_option(only=lambda method: not method.whole)
    working_set: int | None = option(
        None, "rows that each round optimises (default: the solver's choice; 2: one pair, as in standard SMO)",
        checks.whole(2), report=True, group=SOLVER, only=lambda method: method.whole, metavar="Q",
    )  # fmt: skip
    metric: str = shared.metric()
    metric_rounds: int = shared.metric_rounds()
    validation_fraction: float = option(
        0.1, "share of the rows that is held out to judge the rounds of --metric", checks.share, group=METRIC,
        metavar="F",
    )  # fmt: skip
    probability: str | None = shared.probability()
    out_of_core: bool = shared.out_of_core(only=_many_models)
    scratch: Path | None = shared.scratch("folder for the rows of --out-of-core", estimator="", only=_many_models)
    checkpoint: Checkpoint | None = shared.checkpoint()
    progress: Callable[[str, int], Advance] = silent

    def __post_init__(self) -> None:
        unnamed = [name for name in ("C", "gamma") if getattr(self, name) is UNNAMED]
        for name in unnamed:
            alone = 1.0 if name == "C" else "scale"
            object.__setattr__(self, name, GRID if len(unnamed) == 2 else alone)
        super().__post_init__()
        if isinstance(self.gamma, tuple) and not declaration(self.kernel).has_width:
            raise InputError("gamma: several values are given, but this kernel has no gamma; leave it out")

    @property
    def names_settings(self) -> bool:
        """True if the user gave several values of C or gamma."""
        return isinstance(self.C, tuple) or isinstance(self.gamma, tuple)

    @property
    def searches(self) -> bool:
        """True if C and gamma are chosen, or at least evaluated, by cross-validation."""
        return self.names_settings or GRID in (self.C, self.gamma) or self.cv is not None

    def with_setting(self, found: Results | None) -> SVMOptions:
        """These options with the C and gamma that a search `found`; if it is None, a grid becomes 1 and "scale"."""
        chosen: dict[str, Any] = {"C": 1.0, "gamma": "scale"} if found is None else found.chosen
        named = {"C": self.C, "gamma": self.gamma}
        C, gamma = (
            chosen.get(name, "scale") if found is not None or value == GRID else value for name, value in named.items()
        )
        return replace(self, C=C, gamma=gamma, cv=None, scoring=PLAIN, quick=False)

    def route_of(self, method: SVMMethod) -> str:
        """The given route, or the one that suits the method's parts."""
        return method.route if self.route == AUTO else self.route

    def checked(self, method: SVMMethod, ranks: int) -> int:
        """Check the options for `method` on this number of ranks, and return the number of parts.

        Raises
        ------
        InputError
            The first of :data:`casvm.rules.RULES` that the options break; fewer parts than ranks.
        """
        check(RULES, self, method)
        P = self.partitions or ranks
        if method.whole and ranks != P:
            raise InputError(
                f"partitions = {P} on {ranks} ranks: {method.name} solves one problem of all ranks' rows; "
                "leave the option out"
            )
        if ranks > P:
            raise InputError(f"partitions = {P} on {ranks} ranks: every rank needs a part; ask for {ranks} or more")
        return P

    def check_out_of_core(self, libsvm: bool) -> None:
        """Refuse options that need all rows in memory, if rows are kept in a file.

        Raises
        ------
        InputError
        """
        given = {"--metric": self.metric != "none", "--initial root": self.initial == "root", "--libsvm": libsvm}
        shared.check_out_of_core(self.out_of_core, self.scratch, given)

    def check_search(self) -> None:
        """Refuse search options if there is nothing to search, for estimators without a method.

        Raises
        ------
        InputError
        """
        check(SEARCH, self, None)


@dataclass(frozen=True, kw_only=True)
class SVMMethod(Method):
    """A method of this family: how rows are divided, and how models are merged.

    Attributes
    ----------
    partitioner : str
        A partitioner or its registered name; if empty, each rank deals its own rows to its parts at random.
    route : {"nearest", "all"}
        Models that predict a row by default: the nearest centre's, or the mean of all, which suits random parts.
    merge : {"", "support", "all"}
        Rows passed up a tree of merges that ends in one model: support vectors, or all rows. If empty, no tree.
    passes : int
        Default number of passes through a tree of support vectors.
    whole : bool
        True if one problem of all rows is solved, which are distributed over the ranks.
    """

    package: ClassVar[str] = "casvm"
    options: ClassVar[type] = SVMOptions

    partitioner: Any = ""
    route: str = "nearest"
    merge: str = ""
    passes: int = 1
    whole: bool = False

    @property
    def one_model(self) -> bool:
        """True if training ends in one model, so that no routing is needed."""
        return self.whole or bool(self.merge)

    @property
    def balances_classes(self) -> bool:
        """True if the partitioner can balance every class as well as the sizes of the parts."""
        from partition.divide import named

        return bool(self.partitioner) and named(self.partitioner).balances_classes

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Defaults of the command's options that differ from the declared ones."""
        searched = {} if self.one_model else {"C": UNNAMED, "gamma": UNNAMED}
        return {"passes": self.passes, "route": self.route, **searched}

    @property
    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """Choices of the command's options that differ from the declared ones."""
        return {"route": ("nearest",)} if self.one_model else {}
