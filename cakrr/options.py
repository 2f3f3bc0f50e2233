"""The nouns of the family: a method, what a run can be told, and what it returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.io import Dataset
from cacore.io.checkpoint import Checkpoint
from cacore.run import grid
from cacore.run.progress import silent
from cakrr.model import KRRModel
from cakrr.solver.coarse import LOCAL_LAMS, LOCAL_SIGMAS, Settings
from partition.base import Algorithm

SELECTIONS = ("validation", "test", "loo")
ROUTES = ("nearest", "soft", "all")


class Trainer(Protocol):
    """What trains a method on all ranks' rows; :func:`cakrr.methods.parts.fit` is one."""

    def __call__(
        self,
        method: Method,
        train: Dataset,
        options: Options,
        comm: Communicator,
        test: Dataset | None = None,
        weights: NDArray[Any] | None = None,
    ) -> Fit:
        """Train; a collective call."""


@dataclass(frozen=True)
class Method:
    """A member of the family: how rows are divided, and which models answer.

    Attributes
    ----------
    name : str
    route : {"nearest", "all", "oracle", "sum"}
        The nearest centre's model, the mean of all, the one that is best when the answer is known, or,
        for a model whose rows lie in pieces, the sum.
    summary : str
        One line for the command's help.
    partitioner : type of Algorithm or None
        None: one system of all rows.
    coarse : bool
        Whether the parts' models are of what a coarse model of all rows leaves over.
    """

    name: str
    route: str
    summary: str
    partitioner: type[Algorithm] | None = None
    coarse: bool = False

    @property
    def oracle(self) -> bool:
        """Whether it looks at the answers: a bound for the others, not a method to use."""
        return self.route == "oracle"

    def sigmas(self, d: int) -> tuple[float, ...]:
        """Widths that its command tries, for d features."""
        if self.coarse:
            return tuple(times * math.sqrt(d) for times in LOCAL_SIGMAS)
        return tuple(grid.spaced(math.sqrt(d) / 4, math.sqrt(d) * 4, 5))

    @property
    def lams(self) -> tuple[float, ...]:
        """Ridges that its command tries."""
        return LOCAL_LAMS if self.coarse else (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)


@dataclass(frozen=True)
class Options:
    """What a training run can be told.

    Attributes
    ----------
    partitions : int or None
        P; None is one a rank, or as many as keep a part at 8,000 rows and its matrix inside the limit.
    sigma : tuple of float or None
        Widths to try; None is the square root of the number of features, or with a coarse model
        :meth:`Method.sigmas`.
    lam : tuple of float
        Ridges to try.
    coarse : Settings
        Of the coarse model, for the method that has one.
    select : {"validation", "test", "loo"}
        Which rows judge a pair. "test" is the listings' rule, and leaks.
    validation_fraction : float
    route : str or None
        Other than the method's own.
    standardize : bool
    seed : int
    memory_limit : int
        Bytes a rank may use.
    checkpoint : Checkpoint or None
        Where finished parts are kept.
    progress : callable
        See :func:`cacore.run.progress.bar`.
    """

    partitions: int | None = None
    sigma: tuple[float, ...] | None = None
    lam: tuple[float, ...] = (1e-4,)
    coarse: Settings = field(default_factory=Settings)
    select: str = "validation"
    validation_fraction: float = 0.1
    route: str | None = None
    standardize: bool = True
    seed: int = 0
    memory_limit: int = 1 << 62
    checkpoint: Checkpoint | None = None
    progress: Callable[[str, int], Callable[[], None]] = silent

    def checked(self, method: Method) -> Options:
        """These options, if they make sense for `method`.

        Raises
        ------
        InputError
        """
        for name, count in (("partitions", self.partitions), *(("centers", M) for M in self.coarse.centers or ())):
            if count is not None and not (isinstance(count, Integral) and count >= 1):
                raise InputError(f"{name} = {count!r}: it must be a whole number of at least 1")
        if not 0 < self.validation_fraction < 1:
            raise InputError(f"validation fraction {self.validation_fraction:g}: it must lie between 0 and 1")
        if self.select not in SELECTIONS:
            raise InputError(f"select {self.select!r}: choose one of {', '.join(SELECTIONS)}")
        if self.route is not None and self.route != method.route:
            self._check_route(method)
        if self.select == "loo" and (method.coarse or (self.route or method.route) not in ("nearest", "soft")):
            fixed = method.coarse or method.oracle or method.partitioner is None
            raise InputError(
                f"select loo: a row is left out of its own part's model, and {method.name} answers otherwise; "
                f"use select validation{'' if fixed else ', or route nearest'}"
            )
        if method.partitioner is None and (self.partitions or 1) != 1:
            raise InputError(f"partitions = {self.partitions}: {method.name} has one model of all rows; leave it out")
        for values, name in (
            (self.sigma, "sigma"), (self.lam, "lambda"), (self.coarse.sigma, "coarse sigma"),
            (self.coarse.lam, "coarse lambda"),
        ):  # fmt: skip
            if values is not None:
                grid.checked(values, name)
        return self

    def _check_route(self, method: Method) -> None:
        if self.route not in ROUTES:
            raise InputError(f"route {self.route!r}: choose one of {', '.join(ROUTES)}")
        if method.oracle or method.partitioner is None:
            raise InputError(f"route {self.route}: {method.name} has a route of its own; leave it out")


@dataclass
class Fit:
    """What training returns: the model, and what the report says about it.

    Attributes
    ----------
    model : KRRModel
    sizes : ndarray of int64, shape (P,)
        Rows of each part.
    grid : list of dict
        Error of every pair tried.
    params : dict
        Chosen parameters beside sigma and lambda.
    seconds : ndarray, shape (P,)
        Of each part's share of the grid and its final solution.
    busy : ndarray, shape (R,)
        Seconds each rank worked on its parts.
    residual : ndarray, shape (P,)
        Relative residual of each part's system, where it was refined.
    library_bytes : int
        What a library sent outside the communicator's count, by this rank, from a formula.
    notes : list of str
    """

    model: KRRModel
    sizes: NDArray[np.int64]
    grid: list[dict[str, Any]] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    seconds: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    busy: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    residual: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    library_bytes: int = 0
    notes: list[str] = field(default_factory=list)
