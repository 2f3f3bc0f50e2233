"""Length scales of the features for classes, a regression or quantiles, learned before training with any method.

They minimise the leave-one-out errors of kernel ridge regression on a sample of the training rows, in closed form
(:mod:`cacore.data.metric`), and are used if ridge regression with them predicts other training rows better than with
the best common scale. Features that matter for the mean matter for the quantiles as well, and those that matter for
ridge regression of the classes' codes, -1 and 1, for SVMs of the classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.labels import all_classes
from cacore.data.lengths import LeftOut, best_scales
from cacore.data.metric import next_root
from cacore.data.rows import Rows, check_squares, dense, gather_rows
from cacore.data.shuffle import Shuffle
from cacore.data.standardize import Root, Standardizer, mapped
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.machine import memory
from cacore.machine.clock import working_time
from cacore.svm.problem import numeric_gamma
from casvm.model.svm_model import SVMModel
from casvm.model.svr_model import SVRModel
from casvm.options import SVMMethod, SVMOptions, ValueMethod, ValueOptions
from casvm.svm_fit import LENGTHS_SECONDS, SVMFit

# Most rows of a piece whose errors are minimised, and most validation rows; then the most evaluations of a piece of
# `LEARN` rows, of one of few rows, and for a common scale. Reasoned: an evaluation of 1,000 rows costs 2 GFLOP.
LEARN, JUDGE = 1000, 1000
EVALUATIONS, MOST, FIRST = 20, 80, 8
LAM = 1e-4  # ridge parameter at which the search starts

MethodT = TypeVar("MethodT", SVMMethod, ValueMethod)
OptionsT = TypeVar("OptionsT", SVMOptions, ValueOptions)
ModelT = TypeVar("ModelT", SVMModel, SVRModel)
Trainer = Callable[[MethodT, Dataset, OptionsT, Communicator], SVMFit[ModelT]]


@dataclass(frozen=True)
class RidgeTargets:
    """Targets of the ridge regression whose errors are minimised.

    Attributes
    ----------
    of : callable
        The targets of this rank's rows, shape (m, t); collective.
    pieces : int
        Number of pieces of `LEARN` rows, if there are as many. A class says less about its row than a number.
    """

    of: Callable[[Dataset, Communicator], NDArray[np.float64]]
    pieces: int


def _values(rows: Dataset, comm: Communicator) -> NDArray[np.float64]:
    """The targets of a regression, one column."""
    return np.asarray(rows.target(), np.float64)[:, None]


def _codes(rows: Dataset, comm: Communicator) -> NDArray[np.float64]:
    """1 for a row's class and -1 for the others: a column per class, one for two classes; collective."""
    y = rows.target()
    with comm.uncounted():
        classes = all_classes(y[rows.row_weights() > 0], comm)
    return np.where(y[:, None] == (classes[1:] if len(classes) == 2 else classes), 1.0, -1.0)


VALUES, CODES = RidgeTargets(_values, 1), RidgeTargets(_codes, 4)


def fit(
    train: Trainer[MethodT, OptionsT, ModelT], targets: RidgeTargets, method: MethodT, rows: Dataset, options: OptionsT,
    comm: Communicator,
) -> SVMFit[ModelT]:  # fmt: skip
    """Learn length scales, then train with them, with a search for settings if one is wanted; collective.

    `targets` are those of the ridge regression. Other arguments and the result are those of the trainer; `errors` of
    the result are the mean squared errors of ridge regression with a common scale and with one scale per feature, and
    its `solver` also has this rank's seconds of learning them.

    Notes
    -----
    Pieces of `LEARN` rows, and `JUDGE` rows, are gathered on all ranks. 2 m^3 flops per evaluation of the error of a
    piece of m rows, which one rank does, and an Allreduce of d + 3 numbers; `EVALUATIONS` of them if m is `LEARN`, and
    up to `MOST` if m is smaller. Two copies of this rank's rows.
    """
    with comm.phase("read"):
        y, weights = rows.target(), rows.weights
        X, standardizer = rows.give(), None
        if options.standardize:
            present = slice(None) if weights is None else weights > 0  # rows of weight 0 count as absent
            standardizer = Standardizer.fit(X[present], comm, None if weights is None else weights[present])
            X = standardizer.apply(X)
        check_squares(X, comm)
    begun = working_time()
    sample = _Sample.of(Dataset(X, y, weights=weights), targets, options, comm)
    root, errors = _learned(sample, options, comm)
    seconds = np.array(working_time() - begun)
    inner = replace(options, standardize=False, metric="none")
    fitted = train(method, Dataset(mapped(X, root), y, weights=weights), inner, comm)
    fitted.model.standardizer = Standardizer.with_root(standardizer, root)
    fitted.errors = errors
    fitted.solver = {**fitted.solver, LENGTHS_SECONDS: seconds}
    return fitted


def _learned(
    sample: _Sample, options: SVMOptions | ValueOptions, comm: Communicator
) -> tuple[Root | None, list[float]]:
    """Root of the metric, None if it is not better than a common scale, and both errors; collective."""
    d = sample.X.shape[1]
    gamma = numeric_gamma(sample.X, "scale", Communicator(), options.kernel)
    kernel = options.kernel_with(gamma).suited(d)
    both = np.zeros(2)
    with comm.phase("train"):
        common, factors = sample.scales(kernel, comm)
        with comm.agreed():
            if comm.rank == 0:
                both = np.array([sample.error(kernel, scales) for scales in (common, factors)])
        errors = comm.bcast(both).tolist()
    return (next_root(None, np.square(factors[:d])) if errors[1] < errors[0] else None), errors


@dataclass(frozen=True, eq=False)
class _Sample:
    """Sampled rows, the same on all ranks: the first ones, in pieces, make the scales, and the others judge them.

    Attributes
    ----------
    X : ndarray of float64, shape (m, d)
    Y : ndarray of float64, shape (m, t)
        Targets.
    weights : ndarray of float64, shape (m,)
    pieces : list of slice
        Rows whose leave-one-out errors, inside their piece, are minimised.
    """

    X: NDArray[np.float64]
    Y: NDArray[np.float64]
    weights: NDArray[np.float64]
    pieces: list[slice]

    @classmethod
    def of(
        cls, rows: Dataset, targets: RidgeTargets, options: SVMOptions | ValueOptions, comm: Communicator
    ) -> _Sample:  # fmt: skip
        """A random sample that does not depend on the number of ranks; collective."""
        weights = rows.row_weights()
        counted = np.flatnonzero(weights > 0)
        first, n = comm.offset(len(counted))
        with comm.agreed():
            if n < 2:
                raise InputError(f"metric lengths: {n} row{'s' * (n != 1)} with a weight above 0; it needs 2 or more")
            learning = min(targets.pieces * LEARN, n - max(1, n // 5))
            count, d = min(n, learning + JUDGE), rows.X.shape[1]
            remedy = "leave out metric, or use metric diagonal where there is one"
            memory.require(3 * 8 * count * d, options.memory_limit, f"{count:,} dense rows for length scales", remedy)
        place = Shuffle(n, options.seed).position(np.arange(first, first + len(counted)))
        mine = np.flatnonzero(place < count)
        chosen = counted[mine]
        values = targets.of(rows, comm)[chosen]
        columns = np.column_stack([place[mine], weights[chosen], values]).astype(np.float64)
        with comm.phase("train"):
            X: Rows = gather_rows(rows.X[chosen], comm)
            columns = comm.allgather(columns)
        order = np.argsort(columns[:, 0])
        ends = np.linspace(0, learning, -(-learning // LEARN) + 1).astype(int).tolist()
        pieces = [slice(*both) for both in pairwise(ends)]
        return cls(dense(X[order]).astype(np.float64), columns[order, 2:], columns[order, 1], pieces)

    def scales(self, kernel: Kernel, comm: Communicator) -> list[NDArray[np.float64]]:
        """Factors of the d features and of the ridge: the best common one, and the best of each feature; collective."""
        d, longest = self.X.shape[1], self.pieces[-1].stop - self.pieces[-1].start
        held_out = [self._left_out(rows) for rows in self.pieces[comm.rank :: comm.size]]
        common = best_scales(
            kernel, [sample.first(-(-len(sample.Y) // 2)) for sample in held_out], d, FIRST, comm, tied=True
        )
        begun = [replace(sample, X=sample.X * common[:d], ridge=sample.ridge * common[d]) for sample in held_out]
        evaluations = min(MOST, round(EVALUATIONS * (LEARN / longest) ** 2))
        return [common, common * best_scales(kernel, begun, d, evaluations, comm)]

    def _left_out(self, rows: slice) -> LeftOut:
        w = self.weights[rows]
        Y = self.Y[rows] - np.average(self.Y[rows], axis=0, weights=w)
        return LeftOut(self.X[rows], Y / (np.abs(Y).max() or 1.0), LAM * w.sum() / w, w)

    def error(self, kernel: Kernel, factors: NDArray[np.float64]) -> float:
        """Mean squared error of ridge regression on the first piece, with these factors, for the rows that judge."""
        m = self.pieces[0].stop
        rows = np.r_[:m, self.pieces[-1].stop : len(self.Y)]
        points, Y, w = kernel.points(self.X[rows] * factors[:-1]), self.Y[rows], self.weights[rows]
        K = kernel.block(points, points)
        level = np.average(Y[:m], axis=0, weights=w[:m])
        G = K[:m, :m] + np.diag(factors[-1] * LAM * w[:m].sum() / w[:m])
        try:
            alpha = scipy.linalg.solve(G, Y[:m] - level, assume_a="pos")
        except np.linalg.LinAlgError:
            return float("inf")
        gap = Y[m:] - level - K[m:, :m] @ alpha
        return float(np.average(np.square(gap).sum(axis=1), weights=w[m:]))
