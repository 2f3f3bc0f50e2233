"""Length scales of the features for a regression or quantiles, learned before training with any method.

They minimise the leave-one-out errors of kernel ridge regression on a sample of the training rows, in closed form
(:mod:`cacore.data.lengths`), and are used if ridge regression with them predicts other training rows better than with
the best common scale. Features that matter for the mean matter for the quantiles as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.lengths import LeftOut, best_scales
from cacore.data.metric import Root, mapped, next_root
from cacore.data.rows import Rows, check_squares, dense, gather_rows
from cacore.data.shuffle import Shuffle
from cacore.data.standardize import Standardizer
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.svm.problem import numeric_gamma
from casvm.fit import SVMFit
from casvm.model.svr import SVRModel
from casvm.value_options import ValueMethod, ValueOptions

LEARN, JUDGE = 1000, 1000  # most rows whose errors are minimised, and most rows that judge the result
EVALUATIONS, MOST, FIRST = 20, 80, 8  # of the error: of `LEARN` rows, of few rows; for a common scale
LAM = 1e-4  # ridge parameter at which the search starts

Trainer = Callable[[ValueMethod, Dataset, ValueOptions, Communicator], SVMFit[SVRModel]]


def fit(
    train: Trainer, method: ValueMethod, rows: Dataset, options: ValueOptions, comm: Communicator
) -> SVMFit[SVRModel]:  # fmt: skip
    """Learn length scales, then train with them; collective.

    Arguments and result are those of the trainer; `errors` of the result are the mean squared errors of ridge
    regression with a common scale and with one scale per feature.

    Notes
    -----
    `LEARN` + `JUDGE` rows are gathered on all ranks, and the first rank does the rest: 3 m^3 flops per evaluation of
    the error of m rows; `EVALUATIONS` of them if m is `LEARN`, and up to `MOST` if m is smaller. Two copies of this
    rank's rows.
    """
    with comm.agreed():
        options.checked(method, comm.size)
    with comm.phase("read"):
        y, weights = rows.target(), rows.weights
        X, standardizer = rows.give(), None
        if options.standardize:
            present = slice(None) if weights is None else weights > 0  # rows of weight 0 count as absent
            standardizer = Standardizer.fit(X[present], comm, None if weights is None else weights[present])
            X = standardizer.apply(X)
        check_squares(X, comm)
    root, errors = _learned(Dataset(X, y, weights=weights), options, comm)
    inner = replace(options, standardize=False, metric="none")
    fitted = train(method, Dataset(mapped(X, root), y, weights=weights), inner, comm)
    fitted.model.standardizer = Standardizer.with_root(standardizer, root)
    fitted.errors = errors
    return fitted


def _learned(rows: Dataset, options: ValueOptions, comm: Communicator) -> tuple[Root | None, list[float]]:
    """Root of the metric, None if it is not better than a common scale, and both errors; collective."""
    sample, d = _Sample.of(rows, options.seed, comm), rows.X.shape[1]
    told = np.zeros(d + 2)
    with comm.phase("train"):
        with comm.agreed():
            if comm.rank == 0:
                told = sample.learned(options)
        told = comm.bcast(told)
    errors = told[:2].tolist()
    return (next_root(None, np.square(told[2:])) if errors[1] < errors[0] else None), errors


@dataclass(frozen=True, eq=False)
class _Sample:
    """Sampled rows, the same on all ranks: the first `learning` ones make the scales, the others judge them.

    Attributes
    ----------
    X : ndarray of float64, shape (m, d)
    y, weights : ndarray of float64, shape (m,)
    learning : int
    """

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    weights: NDArray[np.float64]
    learning: int

    @classmethod
    def of(cls, rows: Dataset, seed: int, comm: Communicator) -> _Sample:
        """A random sample that does not depend on the number of ranks; collective."""
        weights = rows.row_weights()
        counted = np.flatnonzero(weights > 0)
        first, n = comm.offset(len(counted))
        with comm.agreed():
            if n < 2:
                raise InputError(f"metric lengths: {n} row{'s' * (n != 1)} with a weight above 0; it needs 2 or more")
        learning = min(LEARN, n - max(1, n // 5))
        place = Shuffle(n, seed).position(np.arange(first, first + len(counted)))
        mine = np.flatnonzero(place < min(n, learning + JUDGE))
        chosen = counted[mine]
        columns = np.column_stack([place[mine], rows.target()[chosen], weights[chosen]]).astype(np.float64)
        with comm.phase("train"):
            X: Rows = gather_rows(rows.X[chosen], comm)
            columns = comm.allgather(columns)
        order = np.argsort(columns[:, 0])
        return cls(dense(X[order]).astype(np.float64), columns[order, 1], columns[order, 2], learning)

    def learned(self, options: ValueOptions) -> NDArray[np.float64]:
        """Errors of a common scale and of a scale per feature, and the d factors of the features."""
        alone, d = Communicator(), self.X.shape[1]
        gamma = numeric_gamma(self.X, "scale", alone, options.kernel)
        kernel = options.kernel_with(gamma).suited(d)
        own, w = slice(self.learning), self.weights[: self.learning]
        y = self.y[own] - np.average(self.y[own], weights=w)
        left = LeftOut(self.X[own], (y / (np.abs(y).max() or 1.0))[:, None], LAM * w.sum() / w, w)
        common = best_scales(kernel, [left.first(-(-self.learning // 2))], d, FIRST, alone, tied=True)
        begun = replace(left, X=left.X * common[:d], ridge=left.ridge * common[d])
        evaluations = min(MOST, round(EVALUATIONS * (LEARN / self.learning) ** 2))
        factors = common * best_scales(kernel, [begun], d, evaluations, alone)
        return np.concatenate([[self._error(kernel, left.ridge, one) for one in (common, factors)], factors[:d]])

    def _error(self, kernel: Kernel, ridge: NDArray[np.float64], factors: NDArray[np.float64]) -> float:
        """Mean squared error of ridge regression, with scales and ridge times these factors, on the other rows."""
        m, d = self.learning, self.X.shape[1]
        points = kernel.points(self.X * factors[:d])
        K = kernel.block(points, points)
        level = np.average(self.y[:m], weights=self.weights[:m])
        G = K[:m, :m] + np.diag(factors[d] * ridge)
        try:
            alpha = scipy.linalg.solve(G, self.y[:m] - level, assume_a="pos")
        except np.linalg.LinAlgError:
            return float("inf")
        gap = self.y[m:] - level - K[m:, :m] @ alpha
        return float(np.average(np.square(gap), weights=self.weights[m:]))
