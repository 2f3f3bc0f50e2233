"""The base of the kernel SVM tasks: checking, standardising and dividing rows, and models in pieces."""

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
from partition.in_parts import in_parts
from partition.redistribute import Parts, assign_owners
from partition.routing import SOFT, Soft, gap
from partition.task import Part, PartTask, Trained

# SVMOptions that do not affect the result.
_APART = ("progress", "checkpoint", "memory_limit", "cache_gib", "initial", "out_of_core", "scratch")

Owners = Callable[[NDArray[np.int64], int], NDArray[np.int64]]


def _balanced(sizes: NDArray[np.int64], ranks: int) -> NDArray[np.int64]:
    """Owners of parts, balanced by predicted cost."""
    return assign_owners(sizes, ranks, predicted_cost)


@dataclass(kw_only=True)
class SVMTask(PartTask[Part, Trained, SVMFit[Trained]]):
    """A kernel SVM task on this rank's rows.

    Attributes
    ----------
    method : SVMMethod
    options : SVMOptions
        The options; after a search, with the chosen setting.
    rows : Samples
        This rank's rows, standardised if requested, with their global number as column "row". The last division takes
        the rows, so that they are not held twice.
    kernel : Kernel
    standardizer : Standardizer or None
    ratio : bool
        True if the partitioner balances every class as well as the sizes of the parts.
    found : Results or None
        Scores of the settings, if several were compared.
    n_iter : int
        Number of K-means rounds.
    """

    bound: ClassVar[str]  # column to which the bound of a row's coefficient is proportional

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
        """Check the input, with the same result on all ranks, and take the rows; collective.

        Raises
        ------
        InputError
            On all ranks: invalid options, rows or targets, fewer parts than ranks, or a checkpoint of another run.
        """
        with comm.agreed():
            P = options.checked(method, comm.size)
        task = cls(
            method=method, options=options, P=P, route=options.route_of(method), searches=options.searches,
            checkpoint=options.checkpoint, progress=options.progress,
        )  # fmt: skip
        with comm.phase("read"):
            task._read(train, comm)
        return task

    @classmethod
    def in_parts(cls, method: Any, train: Dataset, options: Any, comm: Communicator) -> SVMFit[Trained]:
        """Train one model per part (Algorithm 5 and its clustered relatives); a collective call.

        Arguments and result are those of :meth:`cacore.learn.method.Method.__call__`.

        Raises
        ------
        InputError
            On all ranks: invalid options, rows or targets, more parts than rows, insufficient memory, or a checkpoint
            of another run.

        Notes
        -----
        A search for settings comes first, if requested. Each part then costs what :func:`casvm.solver.smo.solve` does.
        Memory holds this rank's rows and the kernel caches. Training sends nothing; partitioning sends nothing for
        random parts.
        """
        return in_parts(cls.prepared(method, train, options, comm), comm)

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
            check_resolved(rows.X, rows.X.dtype, comm)
        check_squares(rows.X, comm)
        # A search replaces this gamma of 1.
        gamma = 1.0 if self.searches else numeric_gamma(rows.X, self.options.gamma, comm, self.options.kernel)
        self.kernel = self.options.kernel_with(gamma).suited(rows.X.shape[1])
        self.measure(comm)

    @abstractmethod
    def columns(self, y: NDArray[Any], weights: NDArray[np.float64], comm: Communicator) -> dict[str, NDArray[Any]]:
        """The columns stored with the rows, from targets and weights; collective."""

    def check_rows(self, comm: Communicator) -> None:
        """Refuse rows that cannot be trained on; collective."""

    def measure(self, comm: Communicator) -> None:
        """Compute the statistics of the rows that the report needs; collective."""

    def facts(self) -> dict[str, object]:
        """Facts besides the options that affect the result; a checkpoint compares them."""
        return {}

    def _open_checkpoint(self, train: Dataset, weights: NDArray[np.float64], comm: Communicator) -> None:
        """Resume the run in the checkpoint's directory, or begin one."""
        if self.checkpoint is None:
            return
        facts: dict[str, Any] = {"method": self.method.name}
        facts |= {name: value for name, value in vars(self.options).items() if name not in _APART}
        facts |= {
            "ranks": comm.size, "package": __version__, "features": train.X.shape[1],
            "dtype": str(train.X.dtype), "partitions": self.P, **self.facts(),
            "training rows": fingerprint(train.X, train.target(), weights, comm),
        }  # fmt: skip
        self.checkpoint.open(facts, comm, {"parts": self.P})

    @property
    @abstractmethod
    def partitioner(self) -> str | Algorithm:
        """The partitioner; if empty, each rank deals its rows to its own parts at random."""

    def divided(self, number: int, comm: Communicator, assign: Owners = _balanced) -> Parts:
        """This rank's parts of the division with this number; collective.

        The task keeps its rows only if there are several divisions. ``assign(sizes, ranks)`` returns the owner of each
        part that a partitioner made.
        """
        options, seed = self.options, (self.options.seed + number) % 2**32
        rows = self.rows.give()
        if self.divisions > 1:
            self.rows = Samples(rows.X, dict(rows.columns))
        if not self.partitioner or self.P == 1:  # a single part keeps the order of the rows, without a copy
            return deal(rows, self.P, seed, comm)
        division = divide(self.partitioner, self.P, rows.X, comm, seed, rows.columns.get("code"), self.ratio)
        rows, division = self.widened(rows, division, comm)
        parts = hand_out(rows, division, assign(division.sizes, comm.size), options.seed, comm)
        self.n_iter = parts.n_iter
        return parts

    def widened(self, rows: Samples, division: Division, comm: Communicator) -> tuple[Samples, Division]:
        """The rows and their division after adding overlapping rows to the parts; collective."""
        return rows, division

    def soft(self, parts: Parts, centers: NDArray[np.float64], comm: Communicator) -> Soft | None:
        """Parameters of the route "soft", or None; collective."""
        return SOFT.scaled(gap(parts.X, centers, comm), len(centers)) if self.route == "soft" else None

    def model_in_pieces(self, piece: Part, support: int, comm: Communicator) -> Trained:
        """One model of which every rank holds a piece, here with `support` support vectors; collective."""
        with comm.phase("predict"):
            every = comm.allgather(np.array([support]))
        return self.model(
            route="sum", centers=np.zeros((0, self.rows.X.shape[1])), sizes=every, owners=np.arange(comm.size),
            parts={comm.rank: piece},
        )  # fmt: skip
