"""One model from rows and labels: a problem a class against the rest, or a pair of classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asygcd.model import AsyGCDModel
from asygcd.solver.gram import check_memory
from asygcd.solver.team import AsyGCD, Progress, Solution
from cacore.comm import Communicator
from cacore.data.labels import Labelled, all_classes, class_factors, one_class
from cacore.data.rows import Rows
from cacore.data.standardize import Standardizer
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.svm.problem import check_problem, numeric_gamma, precision

Vector = NDArray[np.float64]

MULTI_CLASS = ("ovr", "ovo")


@dataclass(frozen=True)
class Options:
    """What a training run can be told.

    Attributes
    ----------
    C : float
        Bound of alpha, times the weights of the class and the row.
    kind : {"gaussian", "linear", "polynomial", "sigmoid"}
    gamma : float or {"scale", "auto"}
    degree : int
    coef0 : float
    class_weight : dict, "balanced" or None
        From a class's code to its weight.
    multi_class : {"ovr", "ovo"}
    update : {"owned", "atomic", "stochastic"}
    threads : int
    limits : Limits
        Of each problem.
    cache_bytes : int
        Of kernel values, of all threads together.
    standardize : bool
    seed : int
        Of the blocks.
    memory_limit : int
        Bytes that may be used.
    watch : callable or None
        Told how far each problem is.
    """

    C: float = 1.0
    kind: str = "gaussian"
    gamma: float | str = "scale"
    degree: int = 3
    coef0: float = 0.0
    class_weight: Any = None
    multi_class: str = "ovr"
    update: str = "owned"
    threads: int = 1
    limits: Limits = Limits()  # noqa: RUF009 - frozen
    cache_bytes: int = 1 << 30
    standardize: bool = False
    seed: int = 0
    memory_limit: int = 1 << 62
    watch: Callable[[Progress], None] | None = None

    def checked(self) -> Options:
        """These options, if they make sense (the solver checks its own); raises InputError."""
        check_problem(self.C, self.kind, self.gamma, self.degree, self.coef0)
        if self.multi_class not in MULTI_CLASS:
            raise InputError(f"multi_class {self.multi_class!r}: choose one of {', '.join(MULTI_CLASS)}")
        return self


@dataclass
class Fit:
    """What training returns.

    Attributes
    ----------
    model : AsyGCDModel
    solutions : list of Solution
        Of each decision of the model.
    sizes : ndarray of int64, shape (T,)
        Rows of the threads' blocks; with "ovo", of the last pair.
    factors : ndarray, shape (k,)
        Weights of the classes.
    """

    model: AsyGCDModel
    solutions: list[Solution]
    sizes: NDArray[np.int64]
    factors: Vector

    @property
    def note(self) -> str | None:
        """One line, if a problem stopped at a limit."""
        late = [one for one in self.solutions if not one.converged]
        if not late:
            return None
        worst = max(late, key=lambda one: one.gap)
        of = "" if len(self.solutions) == 1 else f" ({len(late)} of {len(self.solutions)} problems)"
        return (
            f"the solver stopped after {worst.iterations:,} updates at a violation of {worst.gap:.3g}, above the "
            f"tolerance{of}: raise max_iter or max_time, or scale the features"
        )


def told(progress: Progress) -> str:
    """One line about how far it is."""
    return f"{progress.iterations:,} updates, violation {progress.gap:.3g}, dual objective {-progress.objective:.8g}"


def fit(train: Labelled, options: Options, start: Vector | None = None, comm: Communicator | None = None) -> Fit:
    """Train an SVM without a bias.

    Parameters
    ----------
    train : Labelled
        Rows of weight 0 count as absent.
    options : Options
    start : ndarray, shape (n, m), optional
        Coefficients alpha y of each decision to begin with.
    comm : Communicator, optional
        Of one process: it keeps the seconds of the phases "partition" (blocks and packing) and "train".

    Returns
    -------
    Fit

    Raises
    ------
    InputError
        Options that make no sense, one class only, memory that does not suffice.

    Notes
    -----
    One after the other, each on all threads, k problems of all rows with "ovr", which share one set of kernel columns;
    k (k - 1) / 2 problems of two classes' rows with "ovo". See :meth:`asygcd.solver.team.AsyGCD.solve`.
    """
    options.checked()
    comm = comm or Communicator()
    weights = np.ones(train.X.shape[0]) if train.weights is None else train.weights
    kept = np.flatnonzero(weights > 0)
    classes = all_classes(train.y[kept], comm)
    if len(classes) < 2:
        raise InputError(one_class(classes))
    rows = train.X if len(kept) == len(weights) else train.X[kept]
    standardizer = Standardizer.fit(rows, comm, weights[kept]) if options.standardize else None
    X = rows if standardizer is None else standardizer.apply(rows)
    codes = np.searchsorted(classes, train.y[kept]).astype(np.int64)
    factors = class_factors(options.class_weight, codes, weights[kept], len(classes), comm)
    gamma = numeric_gamma(X, options.gamma, comm)
    kernel = Kernel(options.kind, gamma, int(options.degree), float(options.coef0))
    check_memory(X, options.threads, options.cache_bytes, options.memory_limit)
    solver = _Problems(X, codes, options.C * factors[codes] * weights[kept], kernel, options, comm)
    coef = solver.all(len(classes), None if start is None else start[kept])
    support = np.flatnonzero(coef.any(axis=1))
    model = AsyGCDModel(
        classes, options.multi_class, kernel, float(options.C), X[support], kept[support], coef[support], standardizer,
        str(train.X.dtype),
    )  # fmt: skip
    return Fit(model, solver.solutions, solver.sizes, factors)


class _Problems:
    """The problems of two classes that make one model."""

    def __init__(
        self, X: Rows, codes: NDArray[np.int64], C: Vector, kernel: Kernel, options: Options, comm: Communicator
    ) -> None:
        self.X, self.codes, self.C, self.kernel, self.options, self.comm = X, codes, C, kernel, options, comm
        self.solutions: list[Solution] = []
        self.sizes = np.zeros(0, np.int64)

    def all(self, k: int, start: Vector | None) -> Vector:
        """Solve them; coefficients, shape (n, m)."""
        if k > 2 and self.options.multi_class == "ovo":
            problems = [
                (np.flatnonzero((self.codes == i) | (self.codes == j)), i) for i, j in combinations(range(k), 2)
            ]
        else:
            everything = np.arange(len(self.codes))
            problems = [(everything, positive) for positive in (range(k) if k > 2 else [1])]
        coef, team = np.zeros((len(self.codes), len(problems))), None
        for column, (rows, positive) in enumerate(problems):
            whole = len(rows) == len(self.codes)
            if team is None or not whole:
                team = self._team(self.X if whole else self.X[rows], self.C[rows])
            y = np.where(self.codes[rows] == positive, 1.0, -1.0)
            begin = None if start is None else y * start[rows, column]
            with self.comm.phase("train"):
                solution = team.solve(y, self.C[rows], self.options.limits, begin, self.options.watch)
            coef[rows, column] = y * solution.alpha
            self.solutions.append(solution)
        return coef

    def _team(self, X: Rows, C: Vector) -> AsyGCD:
        options = self.options
        sample = X[:: max(1, X.shape[0] // 1000)]
        dtype = precision(X.shape[0], sample, self.kernel, float(C.max()), options.limits.tol)
        with self.comm.phase("partition"):
            team = AsyGCD(X, self.kernel, options.threads, options.cache_bytes, dtype, options.update, options.seed)
        self.sizes = team.sizes
        return team
