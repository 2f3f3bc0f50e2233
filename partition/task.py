"""The base of tasks that are trained in parts: the steps in which the families differ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.io.checkpoint import Checkpoint, Kept
from cacore.progress import Advance, silent
from partition.model import InParts
from partition.redistribute import Parts
from partition.routing import Soft

Part = TypeVar("Part")
Trained = TypeVar("Trained", bound=InParts)
Fitted = TypeVar("Fitted")


@dataclass
class SolvedPart(Generic[Part]):
    """The model of a part, and its statistics, shape (s,)."""

    part: Part
    numbers: NDArray[np.float64]


@dataclass(kw_only=True)
class PartTask(ABC, Generic[Part, Trained, Fitted]):
    """A task for :func:`partition.in_parts.in_parts`, such as classification, regression or one class.

    Attributes
    ----------
    P : int
        Number of parts per division.
    route : {"nearest", "soft", "all"}
    statistics : int
        Number of statistics per part.
    divisions : int
        Number of divisions of the rows.
    searches : bool
        True if settings are compared before the parts are trained.
    checkpoint : Checkpoint or None
    progress : callable
        A function as :func:`cacore.progress.bar` yields it.
    """

    P: int
    route: str
    statistics: int
    divisions: int = 1
    searches: bool = False
    checkpoint: Checkpoint | None = None
    progress: Callable[[str, int], Advance] = silent

    @abstractmethod
    def divided(self, number: int, comm: Communicator) -> Parts:
        """This rank's parts of the division with this number; collective."""

    @abstractmethod
    def check_memory(self, parts: Parts, comm: Communicator) -> None:
        """Refuse parts that do not fit in memory for training; local."""

    @abstractmethod
    def choose(self, parts: Parts, comm: Communicator) -> None:
        """Compare settings on these parts, and use the best one from now on; collective."""

    @abstractmethod
    def solve(self, number: int, rows: Samples, side_by_side: int) -> Kept:
        """Solve a part, while `side_by_side` parts are solved in parallel; returns arrays to store in a checkpoint.

        The array "statistics" has the part's statistics. :meth:`part` builds the part's model from the same arrays.
        """

    @abstractmethod
    def part(self, rows: Samples, kept: Kept) -> Part:
        """Model of the part with these rows, from the arrays of :meth:`solve`."""

    def completed(
        self, parts: Parts, solved: dict[int, SolvedPart[Part]], comm: Communicator
    ) -> dict[int, SolvedPart[Part]]:
        """The solved parts, after any fits that need all of them; collective."""
        return solved

    @abstractmethod
    def soft(self, parts: Parts, centers: NDArray[np.float64], comm: Communicator) -> Soft | None:
        """Weights for combining the models of several parts, if the route needs them; collective."""

    @abstractmethod
    def model(self, **where: Any) -> Trained:
        """The model, given the fields of :class:`partition.model.InParts` that describe where its parts are."""

    @abstractmethod
    def fit(self, model: Trained, numbers: NDArray[np.float64], busy: NDArray[np.float64]) -> Fitted:
        """The result of training; `numbers` has the statistics of each part, `busy` the seconds of each rank."""
