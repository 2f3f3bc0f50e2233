"""The base of the tasks of kernel SVMs: checked and standardised rows, their division, one model in pieces."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from cacore import __version__
from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.resolution import check_resolved
from cacore.data.rows import check_squares
from cacore.data.standardize import Standardizer
from cacore.io.fingerprints import fingerprint
from cacore.kernels import Kernel
from cacore.svm.problem import numeric_gamma
from cacore.tuning.results import Results
from casvm.fit import SVMFit
from casvm.methods.problems import STATISTICS, predicted_cost
from casvm.options import SVMMethod, SVMOptions
from casvm.value_options import ValueMethod, ValueOptions
from partition.base import Algorithm, Division
from partition.divide import deal, divide, hand_out
from partition.redistribute import Parts, assign_owners
from partition.routing import SOFT, Soft, gap
from partition.task import Part, PartTask, Trained

# SVMOptions that do not decide about the result.
_APART = ("progress", "checkpoint", "memory_limit", "cache_gib", "initial", "out_of_core", "scratch")

Owners = Callable[[NDArray[np.int64], int], NDArray[np.int64]]


def _balanced(sizes: NDArray[np.int64], ranks: int) -> NDArray[np.int64]:
    """Owners of parts by their predicted cost."""
    return assign_owners(sizes, ranks, predicted_cost)


@dataclass(kw_only=True)
class SVMTask(PartTask[Part, Trained, SVMFit[Trained]]):
    """A task of kernel SVMs on this rank's rows.

    Attributes
    ----------
    method : SVMMethod
    options : SVMOptions
        With the setting that was chosen, once it is.
    rows : Samples
        This rank's, standardised if that was asked for, with the global number "row" among their columns. A division
        takes them, unless there is another one to come.
    kernel : Kernel
    standardizer : Standardizer or None
    ratio : bool
        True if the partitioner balances every class as well as the parts' sizes.
    found : Results or None
        Scores of the settings, where some were compared.
    n_iter : int
        Rounds of K-means.
    """

    bound: ClassVar[str]  # the column to which the bound of a row's coefficient is proportional

    method: SVMMethod | ValueMethod
    options: SVMOptions | ValueOptions
    rows: Samples = field(init=False)
    kernel: Kernel = field(init=False)
    standardizer: Standardizer | None = field(init=False)
    ratio: bool = False
    found: Results | None = None
    n_iter: int = 0
    statistics: int = len(STATISTICS) + 1

    @classmethod
    def prepared(cls, method: Any, train: Dataset, options: Any, comm: Communicator) -> Self:
        """Check what is given, on all ranks alike, and take the rows; collective.

        Raises
        ------
        InputError
            On all ranks: options that make no sense, rows or targets that cannot be used, fewer parts than ranks, a
            checkpoint of another run.
        """
        with comm.agreed():
            P = options.checked(method, comm.size)
        task = cls(
            method=method, options=options, P=P, route=options.route, searches=options.searches,
            checkpoint=options.checkpoint, progress=options.progress,
        )  # fmt: skip
        with comm.phase("read"):
            task._read(train, comm)
        return task

    def _read(self, train: Dataset, comm: Communicator) -> None:
        columns = self.columns(train.target(), train.row_weights(), comm)
        self._open_checkpoint(train, columns[self.bound], comm)
        rows, weights = Samples(train.give(), columns), train.weights
        if weights is not None:  # rows of weight 0 count as absent
            kept = np.flatnonzero(weights > 0)
            rows, weights = rows.take(kept), weights[kept]
        self.rows = rows
        self.check_rows(comm)
        self.standardizer = None
        if self.options.standardize:
            self.standardizer = Standardizer.fit(rows.X, comm, weights)
            rows.X = self.standardizer.apply(rows.X)
        else:
            check_resolved(rows.X, comm)
        check_squares(rows.X, comm)
        # A gamma that is chosen later is 1 until then.
        gamma = 1.0 if self.searches else numeric_gamma(rows.X, self.options.gamma, comm, self.options.kernel)
        self.kernel = self.options.kernel_with(gamma)
        self.measure(comm)

    @abstractmethod
    def columns(
        self, y: NDArray[Any], weights: NDArray[np.float64], comm: Communicator
    ) -> dict[str, NDArray[Any]]:  # fmt: skip
        """The columns that rows carry, from targets and weights; collective."""

    def check_rows(self, comm: Communicator) -> None:
        """Refuse rows that cannot be learnt from; collective."""

    def measure(self, comm: Communicator) -> None:
        """Measure what the report says of the rows; collective."""

    def facts(self) -> dict[str, Any]:
        """Facts that decide about the result, beside the options, for a checkpoint."""
        return {}

    def _open_checkpoint(self, train: Dataset, weights: NDArray[np.float64], comm: Communicator) -> None:
        """Take up the run that is kept in the checkpoint's directory, if there is one, or begin it."""
        if self.checkpoint is None:
            return
        facts = {name: value for name, value in vars(self.options).items() if name not in _APART}
        facts |= {
            "method": self.method.name, "ranks": comm.size, "package": __version__, "features": train.X.shape[1],
            "dtype": str(train.X.dtype), "partitions": self.P, **self.facts(),
            "training rows": fingerprint(train.X, train.target(), weights, comm),
        }  # fmt: skip
        self.checkpoint.open(facts, comm)

    @property
    @abstractmethod
    def partitioner(self) -> str | Algorithm:
        """The partitioner of the rows; "": they are dealt at random to parts of their own rank."""

    def divided(self, number: int, comm: Communicator, assign: Owners = _balanced) -> Parts:
        """This rank's parts of the n-th division; the rows stay only if there are several. Collective.

        ``assign(sizes, ranks)`` names the owner of each part of a partitioner.
        """
        options, seed = self.options, (self.options.seed + number) % 2**32
        rows = self.rows.give()
        if self.divisions > 1:
            self.rows = Samples(rows.X, dict(rows.columns))
        if not self.partitioner:
            return deal(rows, self.P, seed, comm)
        division = divide(self.partitioner, self.P, rows.X, comm, seed, rows.columns.get("code"), self.ratio)
        rows, division = self.widened(rows, division, comm)
        parts = hand_out(rows, division, assign(division.sizes, comm.size), options.seed, comm)
        self.n_iter = parts.n_iter
        return parts

    def widened(self, rows: Samples, division: Division, comm: Communicator) -> tuple[Samples, Division]:
        """The rows and their division, with what is added to the parts; collective."""
        return rows, division

    def soft(self, parts: Parts, centers: NDArray[np.float64], comm: Communicator) -> Soft | None:
        """Weights of the route "soft"; collective."""
        return SOFT.scaled(gap(parts.X, centers, comm), len(centers)) if self.route == "soft" else None

    def model_in_pieces(self, piece: Part, support: int, comm: Communicator) -> Trained:
        """The one model of which every rank has a piece, with so many support vectors; collective."""
        with comm.phase("predict"):
            every = comm.allgather(np.array([support]))
        return self.model(
            route="sum", centers=np.zeros((0, self.rows.X.shape[1])), sizes=every, owners=np.arange(comm.size),
            parts={comm.rank: piece},
        )  # fmt: skip
