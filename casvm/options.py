"""The nouns of the family: a method, what a run can be told, and what it returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.checkpoint import Checkpoint
from cacore.errors import InputError
from cacore.kernels import KINDS, Kernel
from cacore.progress import silent
from casvm.model import SVMModel
from casvm.smo import Limits
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
    """

    name: str
    summary: str
    partitioner: type[Partitioner] | None = None


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
    seed : int
    memory_limit : int
        Bytes a rank may use.
    checkpoint : Checkpoint or None
        Where finished parts are kept.
    progress : callable
        See :func:`cacore.progress.bar`.
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
        if self.partitions is not None and not (isinstance(self.partitions, Integral) and self.partitions >= 1):
            raise InputError(f"partitions = {self.partitions!r}: it must be a whole number of at least 1")
        if not (math.isfinite(self.C) and self.C > 0):
            raise InputError(f"C = {self.C:g}: it must be a positive number")
        if self.kind not in KINDS:
            raise InputError(f"kernel {self.kind!r}: choose one of {', '.join(KINDS)}")
        if isinstance(self.gamma, str) and self.gamma not in ("scale", "auto"):
            raise InputError(f"gamma {self.gamma!r}: it must be a positive number, 'scale' or 'auto'")
        if not isinstance(self.gamma, str) and not (math.isfinite(self.gamma) and self.gamma > 0):
            raise InputError(f"gamma = {self.gamma:g}: it must be a positive number")
        if not (isinstance(self.degree, Integral) and self.degree >= 0):
            raise InputError(f"degree = {self.degree!r}: it must be a whole number of at least 0")
        if not math.isfinite(self.coef0):
            raise InputError(f"coef0 = {self.coef0:g}: it must be a finite number")
        if self.cache_bytes < 0:
            raise InputError("cache: a negative budget cannot be used")
        if self.route not in ROUTES:
            raise InputError(f"route {self.route!r}: choose one of {', '.join(ROUTES)}")
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
        An entry a part: iterations, n_support, objective, gap, seconds, kernel_rows, kernel_values.
    converged : bool
        Whether every part's solver met its rule.
    busy : ndarray, shape (R,)
        Seconds each rank worked on its parts.
    notes : list of str
    """

    model: SVMModel
    sizes: NDArray[np.int64]
    solver: dict[str, NDArray[Any]]
    converged: bool
    busy: NDArray[np.float64]
    notes: list[str] = field(default_factory=list)
