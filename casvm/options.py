"""SVM methods and their options: records of the methods, options of training, and the rules between them.

:class:`SVMOptions` and :class:`SVMMethod` are for classifiers, :class:`ValueOptions` and :class:`ValueMethod` for
regression and one-class SVMs. The rules, which say what options exclude each other or a method, are in the order of the
checks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cacore import checks
from cacore.errors import InputError
from cacore.kernels.registry import declaration
from cacore.learn import options
from cacore.learn.method import Method
from cacore.learn.options import FILES, KERNEL, LENGTHS, METRIC, PARTS, SEARCH, SOLVER, UNCERTAINTY, Rule, check, option
from cacore.progress import Advance, silent
from cacore.svm.options import DEFAULT, DualOptions, solver_names
from partition import algorithm_names

if TYPE_CHECKING:
    from cacore.io.checkpoint import Checkpoint
    from cacore.tuning import Results
    from partition.base import Algorithm


ROUTES = ("nearest", "soft", "all")
AUTO = "auto"  # the route that suits the parts
INITIAL = ("local", "root")
UNNAMED = None  # default of a command: a grid if neither C nor gamma is given, otherwise 1 and "scale"
PLAIN = "accuracy"
GRID = "grid"  # default values of C, epsilon or gamma, scaled by the data
UNSEARCHED = "a class, or every part, has one row only: C = 1 and gamma = scale, unless given"


def _scorer(value: object, name: str) -> str:
    from cacore.tuning import scorer

    return scorer(value, name)


def _many_models(method: SVMMethod) -> bool:
    return not method.one_model


def _solver(value: object, name: str) -> str:
    return str(checks.one_of(*solver_names())(value, name))


def part_solver_option(only: Callable[[Any], bool] | None = None) -> str:
    """Option --solver, the solver of each part in :mod:`cacore.svm.options`, for methods that `only` accepts."""
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
        group=SEARCH, metavar="FOLDS",
    )  # fmt: skip
    scoring: str = option(
        PLAIN, "score used for the comparison: accuracy, balanced_accuracy, f1, precision, recall, jaccard or "
        "f1_macro, ...", _scorer, group=SEARCH, metavar="NAME",
    )  # fmt: skip
    per_part: bool = option(
        False, "let every part choose its own C and gamma", checks.yes_or_no, group=SEARCH, only=_many_models,
        action="store_true",
    )  # fmt: skip
    quick: bool = option(
        False, "use default grids of 5 x 5 values instead of 10 x 10", checks.yes_or_no, estimator="",
        group=SEARCH, action="store_true",
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
    metric: str = options.metric()
    metric_rounds: int = options.metric_rounds()
    validation_fraction: float = option(
        0.1, "share of the rows that is held out to judge the rounds of --metric", checks.share, group=METRIC,
        metavar="F",
    )  # fmt: skip
    probability: str | None = options.probability()
    out_of_core: bool = options.out_of_core(only=_many_models)
    scratch: Path | None = options.scratch("folder for the rows of --out-of-core", estimator="", only=_many_models)
    checkpoint: Checkpoint | None = options.checkpoint()
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

    def with_setting(self, results: Results | None) -> SVMOptions:
        """These options with the C and gamma of a search; if `results` is None, a grid becomes 1 and "scale"."""
        chosen: dict[str, Any] = {"C": 1.0, "gamma": "scale"} if results is None else results.chosen
        named = {"C": self.C, "gamma": self.gamma}
        C, gamma = (
            chosen.get(name, "scale") if results is not None or value == GRID else value
            for name, value in named.items()
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
            The first of :data:`RULES` that the options break; fewer parts than ranks.
        """
        self.check_rules(method)
        P = self.partitions or ranks
        if method.whole and ranks != P:
            raise InputError(
                f"partitions = {P} on {ranks} ranks: {method.name} solves one problem of all ranks' rows; "
                "leave the option out"
            )
        if ranks > P:
            raise InputError(f"partitions = {P} on {ranks} ranks: every rank needs a part; ask for {ranks} or more")
        return P

    def check_rules(self, method: SVMMethod) -> None:
        """Refuse the first of :data:`RULES` that the options break; nothing is known of the rows."""
        check(RULES, self, method)

    def check_out_of_core(self, libsvm: bool) -> None:
        """Refuse options that need all rows in memory, if rows are kept in a file.

        Raises
        ------
        InputError
        """
        needs_memory = {"--metric": self.metric != "none", "--initial root": self.initial == "root", "--libsvm": libsvm}
        options.check_out_of_core(self.out_of_core, self.scratch, needs_memory)

    def check_search(self) -> None:
        """Refuse search options if there is nothing to search, for estimators without a method.

        Raises
        ------
        InputError
        """
        check(SEARCH_RULES, self, None)


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
        from partition.algorithms import named

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


SCALE = "scale"  # value of C, epsilon or tol: these numbers times the targets' deviation
_SEARCHED = ("C", "epsilon", "gamma")
SCALED = {"C": 1.0, "epsilon": 0.1, "tol": 1e-3}
UNSEARCHED_VALUES = (
    "there are too few rows to compare settings: C, epsilon and gamma that were not given are set to scale"
)
METRICS = ("none", LENGTHS)
NU = 0.5  # default for one class
PARTITIONERS = tuple(sorted(algorithm_names(), key=lambda name: name != "kbalance"))  # the first is the default

nu_share = checks.number(lambda nu: 0 < nu <= 1, "a number above 0 and at most 1")


def _regression(method: ValueMethod) -> bool:
    return not method.one_class


def _partitioner(value: object, name: str) -> str | Algorithm:
    """A registered name, or a partitioner."""
    from partition.algorithms import named
    from partition.base import Algorithm

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

    C, epsilon and gamma may be a number, a tuple of several, or :data:`GRID`; None means not given. If
    none of them nor nu is given, all three are a grid; otherwise the missing ones are "scale". `tol` None is "scale",
    in units of the targets, if C or epsilon is "scale" or a grid, and a number otherwise. For one class, nu None is
    :data:`NU`. `partitions` None means one part per rank, `partitioner` None the first of :data:`PARTITIONERS`, and
    `route` :data:`AUTO` the one that suits the parts. `progress` is a function as
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
    checkpoint: Checkpoint | None = options.checkpoint()
    progress: Callable[[str, int], Advance] = silent

    def __post_init__(self) -> None:
        if self.nu is not None and self.epsilon not in (None, SCALE):
            raise InputError("nu, epsilon: nu determines epsilon; give one of them")
        self._check_quantile()
        unnamed = [name for name in self.searched if getattr(self, name) is None]
        for name in unnamed:
            object.__setattr__(self, name, GRID if unnamed == self.searched and self.nu is None else SCALE)
        if self.tol is None:
            in_units = {GRID, SCALE} & {value for value in (self.C, self.epsilon) if isinstance(value, str)}
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
        quantile = self.quantile
        return quantile if isinstance(quantile, tuple) else () if quantile is None else (quantile,)

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
        values = {name: getattr(self, name) for name in self.searched}
        return [name for name, value in values.items() if value == GRID or isinstance(value, tuple)]

    def route_of(self, method: ValueMethod) -> str:
        """The given route; or the nearest centre's model, or for random parts the mean of all models."""
        if self.route != AUTO:
            return self.route
        from partition.algorithms import named

        return "nearest" if named(self.partitioner or PARTITIONERS[0]).clusters else "all"

    def with_setting(self, results: Results | None) -> ValueOptions:
        """These options with the setting of a search; if `results` is None, what has several values is "scale"."""
        chosen: dict[str, Any] = (
            {"gamma": SCALE, **results.chosen} if results is not None else dict.fromkeys(self.several, SCALE)
        )
        return replace(self, cv=None, quick=False, **chosen)

    def check_rules(self, method: ValueMethod) -> None:
        """Refuse the first of :data:`VALUE_RULES` that the options break; nothing is known of the rows."""
        check(VALUE_RULES, self, method)

    def checked(self, method: ValueMethod, ranks: int) -> int:
        """Check the options for `method` on this number of ranks, and return the number of parts.

        Raises
        ------
        InputError
            The first of :data:`VALUE_RULES` that the options break; fewer parts than ranks; nu-SVR on
            several ranks.
        """
        if self.exact and self.nu is not None and not method.one_class and ranks > 1 and not self.searches:
            raise InputError("nu: the exact nu-SVR cannot be solved on several ranks; give epsilon, or use one rank")
        self.check_rules(method)
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


SEARCH_RULES: tuple[Rule[SVMOptions, Any], ...] = (
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
    Rule(lambda o, m: o.per_part and m.one_model, "per_part: training of {m.name} ends in one model; leave it out"),
    Rule(
        lambda o, m: o.per_part and o.metric not in ("none", LENGTHS),
        f"per_part: a metric in rounds has one setting for all parts; leave out per_part, or take metric {LENGTHS}",
    ),
    Rule(lambda o, m: o.per_part and not o.searches, "per_part: there is one value of C and of gamma; give several"),
    *OF_LENGTHS,
    *SEARCH_RULES,
)


def _of_parts(o: ValueOptions) -> str:
    """The first option of training in parts that was given, with its value; empty if there is none."""
    of_parts = [entry for entry, kind in options.declared(o) if kind.group == PARTS and entry.name != "exact"]
    others = [entry for entry in fields(o) if entry.name in ("partitions", "solver")]
    changed = [entry.name for entry in of_parts + others if getattr(o, entry.name) != entry.default]
    return f"{changed[0]} = {getattr(o, changed[0])}" if changed else ""


VALUE_RULES: tuple[Rule[ValueOptions, ValueMethod], ...] = (
    Rule(
        lambda o, m: o.searches and m.one_class, "gamma: without targets, several values cannot be compared; give one"
    ),
    Rule(
        lambda o, m: o.searches and o.nu is not None,
        "nu: several settings can only be compared with epsilon; give one value of C and of gamma",
    ),
    Rule(
        lambda o, m: o.nu is not None and not m.one_class and o.solver != DEFAULT,
        f"nu, solver = {{o.solver}}: only {DEFAULT} can solve nu-SVR; give epsilon instead of nu",
    ),
    Rule(lambda o, m: o.quantile is not None and m.one_class, "quantile: one class has no targets; use casvm.svr"),
    Rule(
        lambda o, m: o.metric != "none" and m.one_class,
        "metric: one class has no targets to learn length scales from; leave it out",
    ),
    *OF_LENGTHS,
    Rule(
        lambda o, m: o.exact and o.nu is not None and not m.one_class and o.working_set is not None,
        "nu, working_set: nu-SVR is not solved in rounds of a working set; leave working_set out, or give epsilon",
    ),
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
