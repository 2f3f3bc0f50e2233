"""What regression and one-class SVMs have in common: the record of a command, and its options.

:mod:`casvm.options` has the classifiers'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from cacore import checks
from cacore.errors import InputError
from cacore.kernels.registry import declaration
from cacore.learn import shared
from cacore.learn.method import Method
from cacore.learn.options import option
from cacore.progress import Advance, silent
from cacore.svm.options import DualOptions
from casvm.options import GRID, ROUTES

if TYPE_CHECKING:
    from cacore.io.checkpoint import Checkpoint

SCALE = "scale"  # of C, epsilon and tol: these numbers times the targets' deviation
_SEARCHED = ("C", "epsilon", "gamma")
SCALED = {"C": 1.0, "epsilon": 0.1, "tol": 1e-3}
NU = 0.5  # of one class
PARTITIONERS = ("kbalance", "kmeans", "bkm", "fcfs", "random")  # of the commands; the first one by default

nu_share = checks.number(lambda nu: 0 < nu <= 1, "a number above 0 and at most 1")


def _partitioner(value: Any, name: str) -> Any:
    """A registered name, or a partitioner."""
    from partition.base import Algorithm
    from partition.divide import named

    if not isinstance(value, str | Algorithm):
        raise checks.refused(name, value, "the name of a partitioner, or a Partitioner")
    named(value)
    return value


def _at_least_zero_or_scale(value: Any, name: str) -> Any:
    if value == SCALE:
        return value
    try:
        return checks.at_least_zero(value, name)
    except InputError as error:
        raise InputError(f"{error}, or {SCALE}") from None


@dataclass(frozen=True)
class Options(DualOptions):
    """Options of a training run, beside those of the dual problem; each option's text says what it is.

    Of C, epsilon and gamma there may be several, as a tuple, or :data:`casvm.options.GRID`. Where none of them, nor nu,
    is named (None), all three are a grid; otherwise those that are not are "scale". Of one class, nu None is
    :data:`NU`. `partitions` None is one part a rank, `partitioner` None the first of :data:`PARTITIONERS`; `progress`
    is as :func:`cacore.progress.bar` yields it.
    """

    C: Any = option(
        1.0, "bound of the coefficients: number, comma list, lo:hi:COUNT, grid for values that are made up, or scale = "
        "the targets' deviation", checks.one_or(checks.number_or(SCALE), GRID), metavar="C",
    )  # fmt: skip
    epsilon: Any = option(
        SCALE, "errors up to it cost nothing; as --C, scale = 0.1 of the targets' deviation",
        checks.one_or(_at_least_zero_or_scale, GRID), metavar="E",
    )  # fmt: skip
    gamma: Any = option(
        SCALE, "as --C, scale = 1 / (features x variance; of laplacian and l1 their lengths); or auto",
        checks.one_or(checks.number_or(SCALE, "auto"), GRID), metavar="G",
    )  # fmt: skip
    nu: float | None = option(
        None, "at most this share of the rows is outside, at least this share are support vectors; of a regression it "
        "finds epsilon", nu_share, estimator="", metavar="NU",
    )  # fmt: skip
    tol: Any = option(
        1e-3, "largest violation at which training stops; scale = 0.001 of the targets' deviation",
        checks.number_or(SCALE), metavar="T",
    )  # fmt: skip
    cv: int | None = option(
        None, "folds by which C, epsilon and gamma are chosen (default, where there are several: 5; of more than 5,000 "
        "rows a tenth judges)", checks.whole(2), metavar="FOLDS",
    )  # fmt: skip
    quick: bool = option(
        False, "3 x 1 x 4 values instead of 4 x 2 x 6 where they are made up", checks.yes_or_no, estimator="",
        action="store_true",
    )  # fmt: skip
    partitions: int | None = option(
        None, "number of parts (default: one a rank)", checks.whole(1), estimator="n_parts", metavar="P"
    )  # fmt: skip
    partitioner: Any = option(
        None, f"makes the parts (default: {PARTITIONERS[0]}); random leaves rows where they are", _partitioner,
        choices=PARTITIONERS, exclusive=True,
    )  # fmt: skip
    divisions: int = option(
        1, "divide the rows so many times: the mean of the divisions' models answers", checks.whole(1, 1000),
        estimator="n_divisions", report=True, metavar="N",
    )  # fmt: skip
    overlap: float = option(
        0.0, "each part learns from so many times its own rows beside them, the closest ones of other parts",
        checks.number(lambda share: 0 <= share <= 100, "a number from 0 to 100"), report=True, metavar="SHARE",
    )  # fmt: skip
    exact: bool = option(
        False, "one problem of all rows, of which every rank holds a share", checks.yes_or_no, estimator="",
        report=True, action="store_true", exclusive=True,
    )  # fmt: skip
    route: str = option("nearest", "which models answer for a row", checks.one_of(*ROUTES), choices=ROUTES)
    working_set: int | None = option(
        None, "rows of a round of --exact (default: the solver's; 2: the textbook's)", checks.whole(2), metavar="Q"
    )
    checkpoint: Checkpoint | None = shared.checkpoint()
    progress: Callable[[str, int], Advance] = silent

    def __post_init__(self) -> None:
        if self.nu is not None and self.epsilon not in (None, SCALE):
            raise InputError("nu, epsilon: nu finds epsilon; give one of them")
        unnamed = [name for name in _SEARCHED if getattr(self, name) is None]
        for name in unnamed:
            object.__setattr__(self, name, GRID if unnamed == list(_SEARCHED) and self.nu is None else SCALE)
        super().__post_init__()
        if isinstance(self.gamma, tuple) and not declaration(self.kernel).has_width:
            raise InputError("gamma: several values are given, and this kernel has none; leave it out")
        if self.quick and GRID not in (self.C, self.epsilon, self.gamma):
            raise InputError(f"quick: neither C, epsilon nor gamma is a {GRID} that is made up; leave it out")

    @property
    def searches(self) -> bool:
        """Whether C, epsilon and gamma are chosen, or at least judged, by rows that are left out."""
        given = [getattr(self, name) for name in _SEARCHED]
        return GRID in given or any(isinstance(value, tuple) for value in given) or self.cv is not None

    def checked(self, method: ValueMethod, ranks: int) -> int:
        """The number of parts, if `method` on so many ranks can do what is asked for.

        Raises
        ------
        InputError
        """
        if self.searches and method.one_class:
            raise InputError("gamma: there are no targets by which several values could be compared; give one")
        if self.searches and self.nu is not None:
            raise InputError("nu: settings are compared with an epsilon; give one value of C and of gamma")
        if self.exact and self.nu is not None and not method.one_class and ranks > 1:
            raise InputError("nu: rows on many ranks keep one sum, and not one of each sign; give epsilon, or one rank")
        P = self.partitions or ranks
        if not self.exact:
            if self.working_set is not None:
                raise InputError("working_set: parts are solved each by one rank; it is of --exact")
            if self.overlap and self.partitioner == "random":
                raise InputError("overlap: random parts lie everywhere and have no borders; choose another partitioner")
            if ranks > P:
                raise InputError(f"partitions = {P} on {ranks} ranks: every rank needs a part; ask for {ranks} or more")
            return P
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name in ("partitions", "partitioner", "divisions", "overlap", "route") and value != one.default:
                raise InputError(f"{one.name} = {value}: exact is one problem of all rows; leave one of them out")
        return 1


@dataclass(frozen=True, kw_only=True)
class ValueMethod(Method):
    """A method whose models answer with a number per row: regression, or one class.

    Attributes
    ----------
    one_class : bool
    """

    package: ClassVar[str] = "casvm"
    options: ClassVar[type] = Options

    one_class: bool = False

    def has(self, name: str) -> bool:
        """Whether its command has the option `name`."""
        of_regression = ("C", "epsilon", "cv", "overlap", "quick", "plot")
        return name != "class_weight" and not (self.one_class and name in of_regression)

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Of its command's options."""
        if self.one_class:
            return {"nu": NU}
        return {**dict.fromkeys(_SEARCHED), "tol": SCALE}
