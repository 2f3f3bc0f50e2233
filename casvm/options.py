"""The nouns of the family: a method, what a run can be told, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.run.progress import silent
from cacore.svm.problem import check_problem, whole
from cacore.svm.solvers import solver_names
from casvm.model.model import SVMModel
from casvm.volume import Terms
from partition import Partitioner

ROUTES = ("nearest", "soft", "all")
INITIAL = ("local", "root")


@dataclass(frozen=True)
class Method:
    """A member of the family: how rows are divided.

    Attributes
    ----------
    name : str
    summary : str
        One line for the command's help.
    partitioner : type of Partitioner or None
        None: each rank's rows stay where they are, dealt at random to its own parts.
    merge : {"", "support", "all"}
        What goes up a tree of merges, which ends in one model: support vectors, or all rows. "": no tree.
    passes : int
        Of a tree of support vectors, unless told otherwise.
    whole : bool
        One problem of all rows, of which every rank holds a share.
    """

    name: str
    summary: str
    partitioner: type[Partitioner] | None = None
    merge: str = ""
    passes: int = 1
    whole: bool = False

    @property
    def one_model(self) -> bool:
        """Whether training ends in one model, so that there is nothing to route."""
        return self.whole or bool(self.merge)


@dataclass(frozen=True)
class Options:
    """What a training run can be told.

    Attributes
    ----------
    partitions : int or None
        P; None is one a rank.
    C : float
        Bound of alpha, times the weights of the class and the row.
    kind : {"gaussian", "linear", "polynomial", "sigmoid"}
    gamma : float or {"scale", "auto"}
        "scale" is 1 / (d var(X)), "auto" 1 / d.
    degree : int
    coef0 : float
    class_weight : dict, "balanced" or None
        From a class's code to its weight. "balanced" is n / (classes x rows of the class), over all ranks.
    limits : Limits
        Of the solver.
    cache_bytes : int
        Of a rank's kernel caches together.
    route : str
    ratio : bool
        Balance every class as well as the parts' sizes, for partitioners that can.
    standardize : bool
    passes : int
        Most passes through a tree of support vectors; a further one is made while the objective changes.
    solver : str
        Of the parts, and of the problems of a tree, by its name in :mod:`cacore.svm.solvers`: "smo" is exact; "asygcd"
        is asynchronous greedy coordinate descent, whose models have no bias.
    working_set : int or None
        Rows of a round of Dis-SMO; None leaves it to the solver, 2 is the textbook's.
    seed : int
    memory_limit : int
        Bytes a rank may use.
    checkpoint : Checkpoint or None
        Where finished parts are kept.
    progress : callable
        See :func:`cacore.run.progress.bar`.
    """

    partitions: int | None = None
    C: float = 1.0
    kind: str = "gaussian"
    gamma: float | str = "scale"
    degree: int = 3
    coef0: float = 0.0
    class_weight: Any = None
    limits: Limits = field(default_factory=Limits)
    cache_bytes: int = 1 << 30
    route: str = "nearest"
    ratio: bool = False
    standardize: bool = False
    passes: int = 1
    solver: str = "smo"
    working_set: int | None = None
    seed: int = 0
    memory_limit: int = 1 << 62
    checkpoint: Checkpoint | None = None
    progress: Callable[[str, int], Callable[[], None]] = silent

    def checked(self) -> Options:
        """These options, if they make sense.

        Raises
        ------
        InputError
        """
        check_problem(self.C, self.kind, self.gamma, self.degree, self.coef0)
        checks = (
            (
                whole(self.partitions, 1, True),
                f"partitions = {self.partitions!r}: it must be a whole number of at least 1",
            ),
            (self.cache_bytes >= 0, "cache: a negative budget cannot be used"),
            (whole(self.passes, 1), f"passes = {self.passes!r}: it must be a whole number of at least 1"),
            (
                whole(self.working_set, 2, True),
                f"working_set = {self.working_set!r}: it must be a whole number of at least 2",
            ),
            (self.route in ROUTES, f"route {self.route!r}: choose one of {', '.join(ROUTES)}"),
            (self.solver in solver_names(), f"solver {self.solver!r}: choose one of {', '.join(solver_names())}"),
        )
        for good, message in checks:
            if not good:
                raise InputError(message)
        return self

    def kernel(self, gamma: float) -> Kernel:
        """The kernel, with gamma as a number."""
        return Kernel(self.kind, gamma, int(self.degree), float(self.coef0))


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
    """

    model: SVMModel
    sizes: NDArray[np.int64]
    solver: dict[str, NDArray[Any]]
    busy: NDArray[np.float64]
    terms: Terms
    notes: list[str] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)
