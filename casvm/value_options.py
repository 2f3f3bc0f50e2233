"""What SVMs whose answer is a number a row have in common: the record of a command, its options, what training returns.

They are regression and one class; :mod:`casvm.options` has the classifiers'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from cacore.errors import InputError
from cacore.run import job
from cacore.run import options as declare
from cacore.run.method import Method as AnyMethod
from cacore.run.options import option
from cacore.run.progress import Advance, silent
from cacore.svm.options import DualOptions
from casvm.options import ROUTES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cacore.io.checkpoint import Checkpoint
    from casvm.model.svr import SVRModel
    from casvm.value_family import Values

SCALE = "scale"  # of C, epsilon and tol: these numbers times the targets' deviation
SCALED = {"C": 1.0, "epsilon": 0.1, "tol": 1e-3}
NU = 0.5  # of one class
PARTITIONERS = ("kbalance", "kmeans", "bkm", "fcfs", "random")  # of the commands; the first one by default

nu_share = declare.number(lambda nu: 0 < nu <= 1, "a number above 0 and at most 1")


def _partitioner(value: Any, name: str) -> Any:
    """A registered name, or a partitioner."""
    from partition.base import Algorithm
    from partition.divide import named

    if not isinstance(value, str | Algorithm):
        raise declare.refused(name, value, "the name of a partitioner, or a Partitioner")
    named(value)
    return value


def _at_least_zero_or_scale(value: Any, name: str) -> Any:
    if value == SCALE:
        return value
    try:
        return declare.at_least_zero(value, name)
    except InputError as error:
        raise InputError(f"{error}, or {SCALE}") from None


@dataclass(frozen=True)
class Options(DualOptions):
    """Options of a training run, beside those of the dual problem; each option's text says what it is.

    Where `epsilon` and `nu` are both None, epsilon is "scale"; of one class, nu is :data:`NU`. `partitions` None is one
    part a rank, `partitioner` None the first of :data:`PARTITIONERS`; `progress` is as
    :func:`cacore.run.progress.bar` yields it.
    """

    C: Any = option(
        1.0, "bound of the coefficients; scale = the targets' deviation", declare.number_or(SCALE), metavar="C"
    )
    epsilon: Any = option(
        None, "errors up to it cost nothing; scale = 0.1 of the targets' deviation (default, without --nu)",
        _at_least_zero_or_scale, metavar="E",
    )  # fmt: skip
    nu: float | None = option(
        None, "at most this share of the rows is outside, at least this share are support vectors; of a regression it "
        "finds epsilon", nu_share, estimator="", metavar="NU",
    )  # fmt: skip
    tol: Any = option(
        1e-3, "largest violation at which training stops; scale = 0.001 of the targets' deviation",
        declare.number_or(SCALE), metavar="T",
    )  # fmt: skip
    partitions: int | None = option(
        None, "number of parts (default: one a rank)", declare.whole(1), estimator="n_parts", metavar="P"
    )  # fmt: skip
    partitioner: Any = option(
        None, f"makes the parts (default: {PARTITIONERS[0]}); random leaves rows where they are", _partitioner,
        choices=PARTITIONERS, exclusive=True,
    )  # fmt: skip
    exact: bool = option(
        False, "one problem of all rows, of which every rank holds a share", declare.yes_or_no, estimator="",
        report=True, action="store_true", exclusive=True,
    )  # fmt: skip
    route: str = option("nearest", "which models answer for a row", declare.one_of(*ROUTES), choices=ROUTES)
    working_set: int | None = option(
        None, "rows of a round of --exact (default: the solver's; 2: the textbook's)", declare.whole(2), metavar="Q"
    )
    checkpoint: Checkpoint | None = job.checkpoint()
    progress: Callable[[str, int], Advance] = silent

    def checked(self, ranks: int) -> int:
        """The number of parts, if so many ranks can do what is asked for.

        Raises
        ------
        InputError
        """
        if self.nu is not None and self.epsilon is not None:
            raise InputError("nu, epsilon: nu finds epsilon; give one of them")
        P = self.partitions or ranks
        if not self.exact:
            if self.working_set is not None:
                raise InputError("working_set: parts are solved each by one rank; it is of --exact")
            if ranks > P:
                raise InputError(f"partitions = {P} on {ranks} ranks: every rank needs a part; ask for {ranks} or more")
            return P
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name in ("partitions", "partitioner", "route") and value != one.default:
                raise InputError(f"{one.name} = {value}: exact is one problem of all rows; leave one of them out")
        return 1


@dataclass(frozen=True, kw_only=True)
class Method(AnyMethod):
    """Regression, or one class.

    Attributes
    ----------
    one_class : bool
    """

    package: ClassVar[str] = "casvm"
    options: ClassVar[type] = Options

    one_class: bool = False

    def has(self, name: str) -> bool:
        """Whether its command has the option `name`."""
        return name not in ("class_weight", "plot") and not (self.one_class and name in ("C", "epsilon"))

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Of its command's options."""
        if self.one_class:
            return {"nu": NU}
        return {"C": SCALE, "tol": SCALE}

    def family(self) -> Values:
        """What its command needs of the family."""
        from casvm.value_family import Values

        return Values()


@dataclass
class Fit:
    """What training returns: the model, and what the report says about it.

    Attributes
    ----------
    model : SVRModel
    sizes : ndarray of int64, shape (P,)
        Rows of the parts; where one problem lies on all ranks, of these.
    solver : dict of str to ndarray
        An entry a part: iterations, n_support, objective, gap, seconds, kernel_rows, kernel_values, converged.
    busy : ndarray, shape (R,)
        Seconds each rank worked on its problems.
    tol : float
        As a number.
    notes : list of str
        That a solver did not meet its rule.
    """

    model: SVRModel
    sizes: NDArray[np.int64]
    solver: dict[str, NDArray[Any]]
    busy: NDArray[np.float64]
    tol: float
    notes: list[str] = field(default_factory=list)
