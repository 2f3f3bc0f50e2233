"""What the methods of this family have in common: the record of a method, its options, and what training returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from cacore.errors import InputError
from cacore.run import job
from cacore.run import options as declare
from cacore.run.method import Method as AnyMethod
from cacore.run.options import option
from cacore.run.progress import silent
from cacore.svm.options import DualOptions
from cacore.svm.solvers import solver_names

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cacore.io.checkpoint import Checkpoint
    from casvm.family import SupportVectors
    from casvm.model.model import SVMModel
    from casvm.volume import Terms

ROUTES = ("nearest", "soft", "all")
INITIAL = ("local", "root")


def _solver(value: Any, name: str) -> str:
    return str(declare.one_of(*solver_names())(value, name))


@dataclass(frozen=True)
class Options(DualOptions):
    """Options of a training run, beside those of the dual problem; each option's text says what it is.

    `partitions` None is one part a rank; `progress` is as :func:`cacore.run.progress.bar` yields it.
    """

    partitions: int | None = option(
        None, "number of parts (default: one a rank)", declare.whole(1), estimator="n_parts", metavar="P"
    )  # fmt: skip
    route: str = option("nearest", "which models answer for a row", declare.one_of(*ROUTES), choices=ROUTES)
    initial: str = option(
        "local", "who reads the rows: each rank its own, or rank 0, which deals them out", declare.one_of(*INITIAL),
        estimator="", report=True, choices=INITIAL,
    )  # fmt: skip
    ratio: bool = option(
        False, "balance every class as well as the parts' sizes", declare.yes_or_no, report=True, action="store_true"
    )
    passes: int = option(
        1, "most passes, made while the objective changes", declare.whole(1), report=True, metavar="N"
    )  # fmt: skip
    solver: str = option(
        "smo", "of each part: exact, or asynchronous and without a bias", _solver, report=True, choices=solver_names(),
    )  # fmt: skip
    working_set: int | None = option(
        None, "rows of a round (default: the solver's; 2: the textbook's)", declare.whole(2), report=True, metavar="Q"
    )
    metric: str = job.metric()
    metric_rounds: int = job.metric_rounds()
    validation_fraction: float = option(
        0.1, "of the rows, that judge the rounds of --metric", declare.share, metavar="F"
    )  # fmt: skip
    checkpoint: Checkpoint | None = job.checkpoint()
    progress: Callable[[str, int], Callable[[], None]] = silent

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
        P = self.partitions or ranks
        if method.whole and ranks != P:
            raise InputError(
                f"partitions = {P} on {ranks} ranks: {method.name} solves one problem, of which every rank "
                "holds a share; leave the option out"
            )
        if ranks > P:
            raise InputError(f"partitions = {P} on {ranks} ranks: every rank needs a part; ask for {ranks} or more")
        return P


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
        }
        return only.get(name, True)

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Of its command's options."""
        return {"passes": self.passes}

    @property
    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """Of its command's options."""
        return {"route": ("nearest",)} if self.one_model else {}

    def family(self) -> SupportVectors:
        """What its command needs of the family."""
        from casvm.family import SupportVectors

        return SupportVectors()


@dataclass
class Fit:
    """What training returns: the model, and what the report says about it.

    Attributes
    ----------
    model : SVMModel
    sizes : ndarray of int64, shape (P,)
    solver : dict of str to ndarray
        An entry a part, or a layer: iterations, n_support, objective, gap, seconds, kernel_rows, kernel_values.
    busy : ndarray, shape (R,)
        Seconds each rank worked on its problems.
    terms : Terms
        What a prediction of the volume needs.
    notes : list of str
        That a solver did not meet its rule.
    more : dict
        What the report says besides: a tree's layers.
    errors : list of float
        Of every round of a metric: the share of wrong answers for the validation rows.
    """

    model: SVMModel
    sizes: NDArray[np.int64]
    solver: dict[str, NDArray[Any]]
    busy: NDArray[np.float64]
    terms: Terms
    notes: list[str] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)
    errors: list[float] = field(default_factory=list)
