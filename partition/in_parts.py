"""Training in parts, for every task: divide, choose, train, route; follows Algorithms 5 and 10 line by line.

:class:`PartTask` has the steps in which the families differ, and :func:`in_parts` is the listing that all share.
Whatever goes around the training of a part is applied in one order, from the outside in. Wrappers of a trainer, which
may also be that of one model of all rows, come first; :func:`around` applies them:

1. intervals: rows set aside that calibrate them; for ridge regression, also factors and probabilities
2. lengths: length scales of the features, for SVMs
3. settings: a search in parts of its own, for SVMs that are one model or learn a metric
4. metric: rounds of training, each in the metric of the last, for classes by SVMs
5. probability: folds whose decisions calibrate an SVM that is one model

Then the steps of the listing:

6. `choose`: scalings, kernels, rounds of a metric, folds of held-out rows, settings, soft routes, refinement; each
   family has some of these
7. divisions of the rows
8. `solve`: one part
9. `completed`: folds of each part, whose decisions calibrate probabilities
10. `soft`: weights of the models of several parts
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.io.checkpoint import Checkpoint, Kept, remembered
from cacore.machine import threads
from cacore.machine.clock import working_time
from cacore.progress import Advance, silent
from partition.parts_model import InParts, Soft
from partition.redistribute import Parts

Part = TypeVar("Part")
Trained = TypeVar("Trained", bound=InParts)
Fitted = TypeVar("Fitted")

Trainer = Callable[..., Fitted]  # (method, training rows, options, comm, ...)
AROUND = ("intervals", "lengths", "settings", "metric", "probability")  # from the outside in


def around(fit: Trainer[Fitted], **wrappers: Callable[..., Fitted]) -> Trainer[Fitted]:
    """The trainer `fit` in these wrappers, which apply in the order of :data:`AROUND`, whatever theirs.

    ``wrapper(fit, method, train, options, comm, ...)`` trains with `fit`, any number of times and on any rows; if the
    options do not request its feature, once with its own arguments.
    """
    if unplaced := wrappers.keys() - set(AROUND):
        raise ValueError(f"wrappers {', '.join(sorted(unplaced))}: AROUND has no place for them")
    for name in sorted(wrappers, key=AROUND.index, reverse=True):
        fit = partial(wrappers[name], fit)
    return fit


@dataclass
class SolvedPart(Generic[Part]):
    """The model of a part, and its statistics, shape (s,)."""

    part: Part
    numbers: NDArray[np.float64]


@dataclass(kw_only=True)
class PartTask(ABC, Generic[Part, Trained, Fitted]):
    """A task for :func:`in_parts`, such as classification, regression or one class.

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
    busy : float
        Seconds that this rank has worked on its parts before they are trained, if the report counts them.
    """

    P: int
    route: str
    statistics: int
    divisions: int = 1
    searches: bool = False
    checkpoint: Checkpoint | None = None
    progress: Callable[[str, int], Advance] = silent
    busy: float = 0.0

    @abstractmethod
    def divided(self, number: int, comm: Communicator) -> Parts:
        """This rank's parts of the division with this number; collective."""

    def check_memory(self, parts: Parts, comm: Communicator) -> None:
        """Refuse parts that do not fit in memory for training, unless :meth:`divided` has; collective."""

    @abstractmethod
    def choose(self, parts: Parts, comm: Communicator) -> Parts:
        """Compare settings on these parts, and use the best one from now on; collective.

        Returns the parts to train: these, or the same rows in another scaling or metric.
        """

    @abstractmethod
    def solve(self, number: int, rows: Samples, side_by_side: int) -> Kept:
        """Solve a part, while `side_by_side` parts are solved in parallel; returns arrays to store in a checkpoint.

        :meth:`part` and :meth:`numbers` make the part's model and statistics from the same arrays.
        """

    def alone(self, rows: int) -> bool:
        """True if a part of this many rows is solved by itself, on all threads."""
        return False

    @abstractmethod
    def part(self, rows: Samples, arrays: Kept) -> Part:
        """Model of the part with these rows, from the arrays of :meth:`solve`."""

    def numbers(self, arrays: Kept) -> NDArray[np.float64]:
        """Statistics of a part, from the arrays of :meth:`solve`."""
        return arrays["statistics"]

    def completed(
        self, parts: Parts, solved: dict[int, SolvedPart[Part]], comm: Communicator
    ) -> dict[int, SolvedPart[Part]]:
        """The solved parts, after any fits that need all of them; collective."""
        return solved

    def accept(self, parts: Parts, solved: dict[int, SolvedPart[Part]], comm: Communicator) -> None:
        """Raise an InputError on all ranks if a part has no solution; collective."""

    def places(
        self, parts: Parts, comm: Communicator
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """Centres, sizes and owners of all parts, on every rank; collective."""
        return gathered(parts, comm)

    @abstractmethod
    def soft(self, parts: Parts, centers: NDArray[np.float64], comm: Communicator) -> Soft | None:
        """Weights for combining the models of several parts, if the route needs them; collective."""

    @abstractmethod
    def model(self, **where: Any) -> Trained:
        """The model, given the fields of :class:`partition.parts_model.InParts` that describe where its parts are."""

    @abstractmethod
    def fit(self, model: Trained, numbers: NDArray[np.float64], busy: NDArray[np.float64]) -> Fitted:
        """The result of training; `numbers` has the statistics of each part, `busy` the seconds of each rank."""


def in_parts(task: PartTask[Part, Trained, Fitted], comm: Communicator) -> Fitted:
    """Train one model per part; collective.

    Notes
    -----
    Training the parts sends nothing. Dividing the rows sends what the partitioner does, and each row once per division.
    A search sends its reductions.
    """
    # Algorithm 10, lines 1 to 7 (Algorithm 5, line 1): divide the rows.
    with comm.phase("partition"):
        parts = task.divided(0, comm)
    task.check_memory(parts, comm)
    # Lines 8 and 13 to 23: compare the settings by one reduction of their scores, and take the best one.
    if task.searches:
        parts = task.choose(parts, comm)
    # Lines 9 to 12 (Algorithm 5, lines 2 and 3), with all rows, for every division of them.
    model, numbers, busy = _trained(task, parts, 0, comm)
    for number in range(1, task.divisions):
        del parts  # frees memory before the next division
        with comm.phase("partition"):
            parts = task.divided(number, comm)
        division_model, lines, seconds = _trained(task, parts, number, comm)
        model.add(division_model)
        numbers, busy = np.concatenate([numbers, lines]), busy + seconds
    with comm.uncounted():
        all_seconds = comm.allgather(np.array([task.busy + busy]))
    return task.fit(model, numbers, all_seconds)


def _trained(
    task: PartTask[Part, Trained, Fitted], parts: Parts, division: int, comm: Communicator
) -> tuple[Trained, NDArray[np.float64], float]:
    """Train these parts: the model, statistics per part, and this rank's seconds; collective."""
    held = dict(parts)
    name = f"division-{division}-part" if division else "part"

    def load(number: int) -> tuple[str, Samples]:
        return f"{name}-{number:06d}", parts.subset(held[number])

    # Algorithm 5, line 2 (Algorithm 10, lines 9 to 12): train each part by itself, without sending anything.
    with comm.phase("train"):
        begun = working_time()
        sizes = {number: rows.stop - rows.start for number, rows in held.items()}
        solved = task.completed(parts, solve_all(task, sizes, load, "training"), comm)
        busy = working_time() - begun
    comm.wait()
    # Line 3: all ranks need the centres to route new rows.
    with comm.phase("predict"):
        task.accept(parts, solved, comm)
        centers, sizes_of_all, owners = task.places(parts, comm)
        soft = task.soft(parts, centers, comm) if task.P > 1 else None
    model = task.model(
        route=task.route, centers=centers, sizes=sizes_of_all, owners=owners, soft=soft,
        parts={number: solution.part for number, solution in solved.items()},
    )  # fmt: skip
    numbers = np.zeros((task.P, task.statistics))
    for number, solution in solved.items():
        numbers[number] = solution.numbers
    with comm.uncounted():
        return model, comm.allreduce(numbers), busy


def solve_all(
    task: PartTask[Part, Trained, Fitted], sizes: dict[int, int], load: Callable[[int], tuple[str, Samples]], label: str
) -> dict[int, SolvedPart[Part]]:
    """Solve this rank's problems, the largest first: those of :meth:`PartTask.alone`, then as many at once as threads.

    Parameters
    ----------
    task : PartTask
    sizes : dict of int to int
        Number of rows of each problem.
    load : callable
        ``load(number)`` returns the name of a problem in a checkpoint, and its rows. Rows in a file are read while the
        problem is solved.
    label : str
        Name of the progress bar.

    Returns
    -------
    dict of int to SolvedPart
        The largest problem first.
    """
    todo = sorted(sizes, key=lambda number: -sizes[number])
    large = [number for number in todo if task.alone(sizes[number])]
    advance, lock = task.progress(label, len(todo)), threading.Lock()

    def solve(number: int, side_by_side: int) -> SolvedPart[Part]:
        name, rows = load(number)
        arrays = remembered(task.checkpoint, name, lambda: task.solve(number, rows, side_by_side))
        with lock:
            advance()
        return SolvedPart(task.part(rows, arrays), task.numbers(arrays))

    solved: dict[int, SolvedPart[Part]] = {}
    for numbers, parallel in ((large, False), (todo[len(large) :], True)):
        side_by_side = max(1, min(threads.current(), len(numbers))) if parallel else 1
        with threads.in_order(solve, [(number, side_by_side) for number in numbers], parallel) as results:
            solved |= zip(numbers, results, strict=True)
    return solved


def gathered(parts: Parts, comm: Communicator) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Centres, sizes and owners of all parts, on every rank; collective."""
    numbers = comm.allgather(parts.parts)
    order = np.argsort(numbers)
    sizes = comm.allgather(np.diff(parts.bounds).astype(np.int64))[order]
    owners = comm.allgather(np.full(len(parts.parts), comm.rank))[order]
    centers = parts.centers
    if not len(centers):
        means = [np.asarray(parts.X[rows].mean(axis=0, dtype=np.float64)).ravel() for _, rows in parts]
        centers = comm.allgather(np.array(means).reshape(-1, parts.X.shape[1]))[order]
    return centers, sizes, owners
