"""Dis-SMO as a scikit-learn regressor."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, column_or_1d

from cacore.comm import collective
from cacore.data.classifier import ROWS
from cacore.data.dataset import Dataset
from cacore.data.validation import checked_weights, validated
from cacore.errors import InputError
from cacore.machine import memory, threads
from cacore.run import report
from cacore.run.options import at_least_zero, from_estimator, whole
from cacore.svm.classifier import KernelMachine
from cacore.svm.options import DualOptions
from casvm.methods.dissmo_svr import fit


@dataclass(eq=False, repr=False, kw_only=True)
class DisSMOSVR(RegressorMixin, KernelMachine):
    """Support vector regression of all ranks' rows: exact, one problem of which every rank holds a share.

    Parameters
    ----------
    C, epsilon, kernel, gamma, degree, coef0, tol, max_iter, max_time
        As for :class:`SMOSVR`, without "precomputed".
    working_set : int or None
        Rows of a round; None leaves it to the solver, 2 is the textbook's pair.
    standardize : bool
        Scale features by the training rows' mean and deviation. CSR rows are scaled, not shifted.
    cache_gib : float
        Memory of a rank for kernel values and packed rows.
    comm : mpi4py communicator or None
        With one, `fit`, `predict` and `score` take this rank's own rows and are collective calls.

    Attributes
    ----------
    support_, support_vectors_, dual_coef_
        As of :class:`SMOSVR`, of this rank's rows, with global numbers.
    intercept_ : ndarray, shape (1,)
    objective_ : float
        Of the dual, maximised.
    gap_ : float
        Violation left.
    n_iter_ : int
        Pairs of rows optimised.
    fit_status_ : int
        0 if the tolerance was met, 1 otherwise.
    sizes_ : ndarray of int64, shape (ranks,)
        Support vectors of each rank.
    model_ : SVRModel
    n_features_in_ : int

    Notes
    -----
    See :func:`casvm.solver.distributed.solve`; without `comm` it is :class:`SMOSVR`'s solver.
    """

    C: float = 1.0
    epsilon: float = 0.1
    working_set: int | None = None
    standardize: bool = False
    comm: Any = None

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on `X`, shape (n_local, d), dense or CSR, and targets `y`, shape (n_local,); neither is changed.

        Rows of weight 0 count as absent. Raises InputError, a ValueError, on what cannot be used; warns with
        ConvergenceWarning if a limit was reached.
        """
        with collective(self.comm) as comm:
            threads.share_once(comm)
            with comm.agreed():
                train = self._checked(X, y, sample_weight, 2 * int(comm.size == 1))
            limit = memory.limit_per_rank(comm)
            with comm.agreed():
                options: DualOptions = from_estimator(DualOptions, self)
                epsilon = float(at_least_zero(self.epsilon, "epsilon ="))
                working_set = None if self.working_set is None else whole(2)(self.working_set, "working_set =")
            self.model_, solution = fit(train, replace(options, memory_limit=limit), epsilon, working_set, comm)
            part = self.model_.parts[comm.rank]
            self.intercept_ = comm.allreduce(part.b)
        self.model_.comm = self.comm
        self.support_, self.support_vectors_, self.dual_coef_ = part.rows, part.X, part.beta[None]
        self.n_iter_, self.objective_, self.gap_ = solution.iterations, solution.objective, solution.gap
        self.sizes_, self.fit_status_ = self.model_.sizes, int(not solution.converged)
        if not solution.converged:
            warnings.warn(
                f"DisSMOSVR stopped after {solution.iterations:,} iterations at a violation of {solution.gap:.3g}, "
                f"above tol = {self.tol:g}: raise max_iter or max_time, or scale the features",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _checked(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None, least: int) -> Dataset:
        rows = {"dtype": ("float64", "float32"), "ensure_min_samples": least, **ROWS}
        targets = {"ensure_2d": False, "dtype": None, "ensure_min_samples": 0, "ensure_min_features": 0}
        X, given = validated(self, X, y, validate_separately=(rows, targets))
        try:
            y = np.asarray(column_or_1d(given, warn=True), np.float64)
        except (ValueError, TypeError) as error:
            raise InputError(f"y: {error}") from error
        if len(y) != X.shape[0]:
            raise InputError(f"Found input variables with inconsistent numbers of samples: {[X.shape[0], len(y)]}")
        if not np.isfinite(y).all():
            raise InputError("y: contains NaN or infinity")
        weights = None if sample_weight is None else checked_weights(sample_weight, X.shape[0])
        return Dataset(X, y, X.shape[0], weights=weights)

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Predictions for `X`, shape (n_local, d); with `comm`, a collective call."""
        check_is_fitted(self, "model_")
        with collective(self.comm) as comm:
            with comm.agreed():
                X = self._rows(X, int(comm.size == 1))
            return np.asarray(self.model_.predict(X, comm))

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """R^2; with `comm`, over all ranks' rows, the same on each: a collective call."""
        if self.comm is None:
            return float(super().score(X, y, sample_weight))
        predicted = self.predict(X)
        with collective(self.comm) as comm:
            with comm.agreed():
                weights = None if sample_weight is None else checked_weights(sample_weight, len(predicted))
            r2 = report.regression_metrics(np.asarray(y), predicted, comm, weights)["r2"]
        return float("nan") if r2 is None else r2
