"""What the classifiers' methods have in common: the record of a method, and its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cacore import checks
from cacore.errors import InputError
from cacore.kernels.registry import declaration
from cacore.learn import shared
from cacore.learn.method import Method as AnyMethod
from cacore.learn.options import option
from cacore.progress import Advance, silent
from cacore.svm.options import DualOptions
from cacore.svm.solvers import solver_names

if TYPE_CHECKING:
    from cacore.io.checkpoint import Checkpoint
    from cacore.tuning.results import Results

PLAIN = "accuracy"
ROUTES = ("nearest", "soft", "all")
INITIAL = ("local", "root")
GRID = "grid"  # of C or gamma: several values are compared, around what the data say
UNNAMED = None  # of a command: a grid where neither C nor gamma is given, otherwise 1 and "scale"
UNSEARCHED = "a class, or every part, has one row only: C = 1 and gamma = scale, where none was named"


def _scorer(value: Any, name: str) -> str:
    from cacore.tuning.scorers import scorer

    return scorer(value, name)


def _solver(value: Any, name: str) -> str:
    return str(checks.one_of(*solver_names())(value, name))


@dataclass(frozen=True)
class Options(DualOptions):
    """Options of a training run, beside those of the dual problem; each option's text says what it is.

    Of C and gamma there may be several, as a tuple, or :data:`GRID`; they are chosen before the methods begin.
    `partitions` None is one part a rank; `progress` is as :func:`cacore.progress.bar` yields it.
    """

    C: Any = option(
        1.0, "bound of the coefficients alpha: number, comma list, lo:hi:COUNT, or grid for values that are made up "
        "(which methods in parts do where neither --C nor --gamma is given)",
        checks.one_or(checks.positive, GRID), metavar="C",
    )  # fmt: skip
    gamma: Any = option(
        "scale", "as --C, around 1 / median squared distance; scale = 1 / (features x variance; of laplacian and l1 "
        "their lengths); or auto", checks.one_or(checks.number_or("scale", "auto"), GRID), metavar="G",
    )  # fmt: skip
    cv: int | None = option(
        None, "folds by which C and gamma are chosen (default: 5 where there are several)", checks.whole(2),
        metavar="FOLDS",
    )  # fmt: skip
    scoring: str = option(
        PLAIN, "what is compared: accuracy, balanced_accuracy, f1, precision, recall, jaccard or f1_macro, ...",
        _scorer, metavar="NAME",
    )  # fmt: skip
    per_part: bool = option(False, "every part chooses its own C and gamma", checks.yes_or_no, action="store_true")
    quick: bool = option(
        False, "5 x 5 values instead of 10 x 10 where they are made up", checks.yes_or_no, estimator="",
        action="store_true",
    )  # fmt: skip
    partitions: int | None = option(
        None, "number of parts (default: one a rank)", checks.whole(1), estimator="n_parts", metavar="P"
    )  # fmt: skip
    route: str = option("nearest", "which models answer for a row", checks.one_of(*ROUTES), choices=ROUTES)
    initial: str = option(
        "local", "who reads the rows: each rank its own, or rank 0, which deals them out", checks.one_of(*INITIAL),
        estimator="", report=True, choices=INITIAL,
    )  # fmt: skip
    ratio: bool = option(
        False, "balance every class as well as the parts' sizes", checks.yes_or_no, report=True, action="store_true"
    )
    passes: int = option(
        1, "most passes, made while the objective changes", checks.whole(1), report=True, metavar="N"
    )  # fmt: skip
    solver: str = option(
        "smo", "of each part: exact, or asynchronous and without a bias", _solver, report=True, choices=solver_names(),
    )  # fmt: skip
    working_set: int | None = option(
        None, "rows of a round (default: the solver's; 2: the textbook's)", checks.whole(2), report=True, metavar="Q"
    )
    metric: str = shared.metric()
    metric_rounds: int = shared.metric_rounds()
    validation_fraction: float = option(
        0.1, "of the rows, that judge the rounds of --metric", checks.share, metavar="F"
    )  # fmt: skip
    probability: str | None = shared.probability()
    out_of_core: bool = shared.out_of_core()
    scratch: Path | None = shared.scratch("directory for the rows of --out-of-core", estimator="")
    checkpoint: Checkpoint | None = shared.checkpoint()
    progress: Callable[[str, int], Advance] = silent

    def __post_init__(self) -> None:
        unnamed = [name for name in ("C", "gamma") if getattr(self, name) is UNNAMED]
        for name in unnamed:
            alone = 1.0 if name == "C" else "scale"
            object.__setattr__(self, name, GRID if len(unnamed) == 2 else alone)
        super().__post_init__()
        if isinstance(self.gamma, tuple) and not declaration(self.kernel).has_width:
            raise InputError("gamma: several values are given, and this kernel has none; leave it out")

    @property
    def names_settings(self) -> bool:
        """Whether several values of C or gamma were named."""
        return isinstance(self.C, tuple) or isinstance(self.gamma, tuple)

    @property
    def searches(self) -> bool:
        """Whether C and gamma are chosen, or at least judged, by cross-validation."""
        return self.names_settings or GRID in (self.C, self.gamma) or self.cv is not None

    def with_setting(self, found: Results | None) -> Options:
        """These options with the C and gamma that a search has found; without one, for a grid, 1 and "scale"."""
        chosen: dict[str, Any] = {"C": 1.0, "gamma": "scale"} if found is None else found.chosen
        named = {"C": self.C, "gamma": self.gamma}
        C, gamma = (
            chosen.get(name, "scale") if found is not None or value == GRID else value for name, value in named.items()
        )
        return replace(self, C=C, gamma=gamma, cv=None, scoring=PLAIN, quick=False)

    def checked(self, method: Method, ranks: int) -> int:
        """The number of parts, if `method` on so many ranks can do what is asked for.

        Raises
        ------
        InputError
        """
        if self.ratio:
            from partition.divide import named

            if not method.partitioner:
                raise InputError(f"ratio: {method.name} leaves the rows where they are, and does not balance classes")
            if not named(method.partitioner).balances_classes:
                raise InputError(f"ratio: the partitioner of {method.name} does not balance classes")
        if self.per_part:
            self._check_per_part(method)
        self.check_search()
        P = self.partitions or ranks
        if method.whole and ranks != P:
            raise InputError(
                f"partitions = {P} on {ranks} ranks: {method.name} solves one problem, of which every rank "
                "holds a share; leave the option out"
            )
        if ranks > P:
            raise InputError(f"partitions = {P} on {ranks} ranks: every rank needs a part; ask for {ranks} or more")
        return P

    def check_out_of_core(self, libsvm: bool) -> None:
        """Refuse what looks at all rows at once where they lie in a file.

        Raises
        ------
        InputError
        """
        given = {"--metric": self.metric != "none", "--initial root": self.initial == "root", "--libsvm": libsvm}
        shared.check_out_of_core(self.out_of_core, self.scratch, given)

    def check_search(self) -> None:
        """Refuse options of a search where there is none.

        Raises
        ------
        InputError
        """
        if self.scoring != PLAIN and not self.searches:
            raise InputError(f"scoring = {self.scoring}: there is one value of C and of gamma; give several, or cv")
        if self.quick and GRID not in (self.C, self.gamma):
            raise InputError(f"quick: neither C nor gamma is a {GRID} that is made up; leave it out")

    def _check_per_part(self, method: Method) -> None:
        if method.one_model:
            raise InputError(f"per_part: training of {method.name} ends in one model; leave it out")
        if self.metric != "none":
            raise InputError("per_part: a metric is learned at one setting; leave one of the two out")
        if not self.searches:
            raise InputError("per_part: there is one value of C and of gamma; give several")


@dataclass(frozen=True, kw_only=True)
class Method(AnyMethod):
    """A method of this family: how rows are divided, and what is merged.

    Attributes
    ----------
    partitioner : str
        The registered name of a partitioner, or one itself; "": each rank's rows stay where they are, dealt at random
        to its own parts.
    merge : {"", "support", "all"}
        What goes up a tree of merges, which ends in one model: support vectors, or all rows. "": no tree.
    passes : int
        Of a tree of support vectors, unless the user says otherwise.
    whole : bool
        One problem of all rows, of which every rank holds a share.
    """

    package: ClassVar[str] = "casvm"
    options: ClassVar[type] = Options

    partitioner: Any = ""
    merge: str = ""
    passes: int = 1
    whole: bool = False

    @property
    def one_model(self) -> bool:
        """Whether training ends in one model, so that there is nothing to route."""
        return self.whole or bool(self.merge)

    def has(self, name: str) -> bool:
        """Whether its command has the option `name`."""
        only = {
            "initial": not self.partitioner,
            "ratio": bool(self.partitioner),
            "passes": self.merge == "support",
            "solver": not self.whole,
            "working_set": self.whole,
            "per_part": not self.one_model,
            "out_of_core": not self.one_model,
            "scratch": not self.one_model,
        }
        return only.get(name, True)

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Of its command's options."""
        searched = {} if self.one_model else {"C": UNNAMED, "gamma": UNNAMED}
        return {"passes": self.passes, **searched}

    @property
    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """Of its command's options."""
        return {"route": ("nearest",)} if self.one_model else {}
