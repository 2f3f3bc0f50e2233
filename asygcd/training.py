"""One model from rows and labels: a problem a class against the rest, or a pair of classes."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asygcd.model import AsyGCDModel
from asygcd.options import Fit, Method, Options
from asygcd.solver.gram import check_memory
from asygcd.solver.team import AsyGCD, Progress, Solution
from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.labels import all_classes, class_factors, one_class
from cacore.data.rows import Rows
from cacore.data.standardize import Standardizer
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.machine import threads
from cacore.svm.problem import numeric_gamma, precision

Vector = NDArray[np.float64]


def described(progress: Progress) -> str:
    """One line about how far a problem is."""
    return f"{progress.iterations:,} updates, violation {progress.gap:.3g}, dual objective {-progress.objective:.8g}"


def fit(method: Method, train: Dataset, options: Options, comm: Communicator, test: Any = None) -> Fit:
    """Train an SVM without a bias.

    Arguments and result are those of :meth:`cacore.run.method.Method.__call__`.

    Raises
    ------
    InputError
        Options that make no sense, one class only, memory that does not suffice.

    Notes
    -----
    One after the other, each on all threads, k problems of all rows with "ovr", which share one set of kernel columns;
    k (k - 1) / 2 problems of two classes' rows with "ovo". See :meth:`asygcd.solver.team.AsyGCD.solve`.
    """
    y, weights = train.target(), train.row_weights()
    kept = np.flatnonzero(weights > 0)
    classes = all_classes(y[kept], comm)
    if len(classes) < 2:
        raise InputError(one_class(classes))
    rows = train.X if len(kept) == len(weights) else train.X[kept]
    standardizer = Standardizer.fit(rows, comm, weights[kept]) if options.standardize else None
    X = rows if standardizer is None else standardizer.apply(rows)
    codes = np.searchsorted(classes, y[kept]).astype(np.int64)
    factors = class_factors(options.class_weight, codes, weights[kept], len(classes), comm)
    kernel = options.kernel_with(numeric_gamma(X, options.gamma, comm))
    team = options.threads or threads.available()
    options = replace(options, threads=team)
    check_memory(X, team, options.cache_bytes, options.memory_limit)
    solver = _Problems(X, codes, options.C * factors[codes] * weights[kept], kernel, options, comm)
    coef = solver.all(len(classes), None if options.start is None else options.start[kept])
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
            team = AsyGCD(
                X, self.kernel, options.threads or 1, options.cache_bytes, dtype, options.update, options.seed
            )
        self.sizes = team.sizes
        return team
