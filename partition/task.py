"""A task that is learnt in parts: the steps in which the families differ from each other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.io.checkpoint import Checkpoint
from cacore.progress import Advance, silent
from partition.model import InParts
from partition.redistribute import Parts
from partition.routing import Soft

Part = TypeVar("Part")
Trained = TypeVar("Trained", bound=InParts)
Fitted = TypeVar("Fitted")


@dataclass
class SolvedPart(Generic[Part]):
    """The model of a part, and its line of statistics, shape (s,)."""

    part: Part
    numbers: NDArray[np.float64]


@dataclass(kw_only=True)
class PartTask(ABC, Generic[Part, Trained, Fitted]):
    """A task for :func:`partition.in_parts.in_parts`: classes, values of a regression, one class.

    Attributes
    ----------
    P : int
        Parts of a division.
    route : {"nearest", "soft", "all"}
    statistics : int
        Numbers in a part's line of statistics.
    divisions : int
        How many times the rows are divided.
    searches : bool
        True if settings are compared before the parts are trained.
    checkpoint : Checkpoint or None
    progress : callable
        As :func:`cacore.progress.bar` yields it.
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
        """This rank's parts of the n-th division of the rows; collective."""

    @abstractmethod
    def check_memory(self, parts: Parts, comm: Communicator) -> None:
        """Refuse parts that do not fit in memory while they are solved; local."""

    @abstractmethod
    def choose(self, parts: Parts, comm: Communicator) -> None:
        """Compare settings in these parts, and take the best one for all that follows; collective."""

    @abstractmethod
    def solve(self, number: int, rows: Samples, side_by_side: int) -> dict[str, NDArray[Any]]:
        """Solve a part while so many are solved side by side: the arrays that a checkpoint keeps.

        "statistics" is the part's line. The same arrays make the part's model in :meth:`part`.
        """

    @abstractmethod
    def part(self, rows: Samples, kept: dict[str, NDArray[Any]]) -> Part:
        """The model of the part with these rows, from what :meth:`solve` returned."""

    def completed(
        self, parts: Parts, solved: dict[int, SolvedPart[Part]], comm: Communicator
    ) -> dict[int, SolvedPart[Part]]:
        """The solved parts with what is fitted to them afterwards; collective."""
        return solved

    @abstractmethod
    def soft(self, parts: Parts, centers: NDArray[np.float64], comm: Communicator) -> Soft | None:
        """Weights of the models of several parts, if the route needs them; collective."""

    @abstractmethod
    def model(self, **where: Any) -> Trained:
        """The model, given the fields of :class:`partition.model.InParts` that say where its parts are."""

    @abstractmethod
    def fit(self, model: Trained, numbers: NDArray[np.float64], busy: NDArray[np.float64]) -> Fitted:
        """The result of training: `numbers` has a line per part, `busy` the seconds per rank."""
