"""scikit-learn regressors for support vector regression on many ranks: exact, and in parts."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning

from cacore.checks import whole
from cacore.comm import CommLike, Communicator
from cacore.data.classifier import ROWS
from cacore.data.dataset import Dataset
from cacore.data.metric import expose as expose_metric
from cacore.data.regressor import Regressing
from cacore.data.rows import RowsLike
from cacore.data.validation import shared_seed
from cacore.learn.options import from_estimator
from cacore.machine import memory
from cacore.svm.classifier import KernelMachine
from cacore.tuning.grid import GridLike
from casvm.estimators.all_ranks import AllRanks
from casvm.estimators.one_process import expose_search
from casvm.fit import SVMFit
from casvm.model.svr import SVRModel
from casvm.svr import svr
from casvm.value_options import ValueMethod, ValueOptions
from partition import Partitioner


@dataclass(eq=False, repr=False, kw_only=True)
class CollectiveSVR(Regressing, KernelMachine, AllRanks[SVRModel]):
    """The base of these regressors; with `comm`, `fit`, `predict` and `score` take each rank's own rows."""

    C: GridLike = 1.0
    tol: float | str | None = None
    metric: str = "none"
    standardize: bool = False
    cv: int | None = None
    comm: CommLike = None

    _model = SVRModel

    def fit(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on `X`, shape (n_local, d), dense or CSR, and targets `y`, shape (n_local,); neither is changed.

        Rows of weight 0 are ignored. Invalid input raises an InputError, a ValueError. A ConvergenceWarning is issued
        if a limit was reached.
        """
        fitted, _ = self._trained(X, y, sample_weight)
        for note in fitted.notes:
            warnings.warn(f"{type(self).__name__}: {note}", ConvergenceWarning, stacklevel=2)
        return self

    def _training_rows(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None, least: int) -> Dataset:
        own = {"dtype": ("float64", "float32"), "ensure_min_samples": 2 * least, **ROWS}
        return self._with_targets(X, y, sample_weight, **own)

    def _trained_by(self) -> tuple[ValueMethod, dict[str, object]]:
        """The method, and options that are not set by the parameter of the same name."""
        return svr, {}

    def _asked(self, train: Dataset, comm: Communicator) -> tuple[ValueMethod, ValueOptions]:
        random = hasattr(self, "random_state")
        seed = {"seed": shared_seed(self.random_state, comm)} if random else {}
        limit = memory.limit_per_rank(comm)
        with comm.agreed():
            method, chosen = self._trained_by()
            options: ValueOptions = from_estimator(ValueOptions, self, memory_limit=limit, **seed, **chosen)
        return method, options

    def _take(self, fitted: SVMFit[SVRModel], comm: Communicator) -> None:
        self.model_, self.solver_ = fitted.model, fitted.solver
        parts = [self.model_.parts[number] for number in sorted(self.model_.parts)]
        self.support_ = np.concatenate([np.zeros(0, np.int64), *(part.rows for part in parts)])
        outputs = self.model_.output_shape or (1,)
        self.dual_coef_ = np.concatenate([np.zeros((0, *outputs)), *(part.columns for part in parts)]).T
        self.n_iter_ = self.solver_["iterations"]
        self.sizes_ = self.model_.sizes
        self.fit_status_ = int(not self.solver_["converged"].all())
        expose_metric(self, fitted)
        expose_search(self, fitted.search)

    def predict(self, X: RowsLike) -> NDArray[np.float64]:
        """Predictions for `X`, shape (n_local, d); with `comm`, a collective call."""
        return self._answer("predict", X)


@dataclass(eq=False, repr=False, kw_only=True)
class DisSMOSVR(CollectiveSVR):
    """Support vector regression, exact: one problem whose rows are distributed over the ranks.

    Parameters
    ----------
    C, epsilon, gamma, cv, metric, standardize, cache_gib, comm
        As for :class:`CASVR`.
    tol
        As for :class:`CASVR`.
    kernel, degree, coef0, max_iter, max_time
        As for :class:`SMOSVR`, without "precomputed".
    working_set : int or None
        Number of rows optimised per round. None lets the solver choose; 2 is one pair, as in standard SMO.

    Attributes
    ----------
    model_ : SVRModel
        Stored in pieces, one per rank, whose outputs add up.
    support_, dual_coef_
        As for :class:`CASVR`, for this rank's piece.
    intercept_ : ndarray, shape (1,)
    objective_ : float
        Maximum of the dual objective.
    sizes_ : ndarray of int64, shape (ranks,)
        Number of support vectors of each rank.
    solver_, n_iter_, fit_status_, n_features_in_
        As for :class:`CASVR`, with one entry.
    cv_results_, best_params_, best_score_, best_index_, at_grid_end_
        As for :class:`CASVR`; the search uses parts of about 2,000 rows made for it.

    Notes
    -----
    For the cost, see :func:`casvm.solver.distributed.solve`. Without `comm`, the solver is that of :class:`SMOSVR`.
    """

    epsilon: GridLike = 0.1
    working_set: int | None = None

    def _trained_by(self) -> tuple[ValueMethod, dict[str, object]]:
        return svr, {"exact": True}

    def _take(self, fitted: SVMFit[SVRModel], comm: Communicator) -> None:
        super()._take(fitted, comm)
        self.objective_ = float(self.solver_["objective"][0])
        self.intercept_ = comm.allreduce(self.model_.parts[comm.rank].b)


@dataclass(eq=False, repr=False, kw_only=True)
class PartsSVR(CollectiveSVR):
    """The base of those in parts."""

    n_parts: int | None = field(default=None, kw_only=False)
    partitioner: str | Partitioner = "kbalance"
    n_divisions: int = 1
    overlap: float = 0.0
    route: str = "auto"
    solver: str = "smo"
    random_state: int | np.random.RandomState | None = None

    def _trained_by(self) -> tuple[ValueMethod, dict[str, object]]:
        if self.n_parts is None and isinstance(self.partitioner, Partitioner):
            return svr, {"partitions": whole(1)(self.partitioner.n_parts, "n_parts =")}
        return svr, {}

    def _take(self, fitted: SVMFit[SVRModel], comm: Communicator) -> None:
        super()._take(fitted, comm)
        self.centers_ = self.model_.centers


@dataclass(eq=False, repr=False, kw_only=True)
class CASVR(PartsSVR):
    """Support vector regression in parts, whose training sends nothing (as in Algorithm 5).

    Parameters
    ----------
    n_parts : int or None
        Number of parts, P. None means one per rank.
    partitioner : {"random", "fcfs", "bkm", "kmeans", "kbalance"}, another registered name, or Partitioner
        With `comm`, each row is sent once to the rank of its part; "random" leaves rows on their rank. A Partitioner
        keeps its own parameters, except `random_state` and, if it is given here, `n_parts`.
    n_divisions : int
        Number of independent divisions of the rows into parts; predictions are averaged over them.
    overlap : float
        Train each part also on the closest rows of other parts, this many times its own number of rows. 1 doubles the
        rows of a part, which takes about four times as long. Not for "random".
    C, epsilon, gamma
        A number as for :class:`SMOSVR`, the same for every part; or "scale": for C the targets' standard deviation, for
        epsilon a tenth of it. With several values, or "grid" for default values, the setting with the smallest squared
        error on left-out rows inside the parts is chosen; no rows are sent.
    cv : int or None
        Number of folds for this choice. None means 5, or with more than 5,000 rows one held-out tenth.
    tol : float, "scale" or None
        Largest violation of the optimality conditions at which training stops. A number is in the units of the targets,
        and "scale" is a thousandth of their standard deviation. None means "scale" if C or epsilon is "scale" or
        "grid", and 0.001 otherwise.
    kernel, degree, coef0, max_iter, max_time
        As for :class:`SMOSVR`, without "precomputed".
    solver : str
        Solver of each part: "smo", or another regression solver registered in :mod:`cacore.svm.solvers`.
    route : {"auto", "nearest", "soft", "all"}
        Models that predict a row: the model of the nearest centre; the nearest four, with predictions weighted by
        distance; or all, with the mean prediction. "auto" is "all" for random parts, and "nearest" for others.
    metric : {"none", "lengths"}
        "lengths" learns one length scale per feature, for kernels of a distance: those that minimise the leave-one-out
        errors of kernel ridge regression on 1,000 training rows. They are used if they predict 1,000 others better than
        a common scale does. The features should have similar deviations: use `standardize`.
    standardize : bool
        Scale features by the training rows' mean and standard deviation. CSR rows are scaled, not shifted.
    cache_gib : float
        Memory per rank for kernel values and packed rows of the parts being trained.
    random_state : int, RandomState or None
    comm : mpi4py communicator or None
        With one, `fit`, `predict` and `score` take this rank's own rows and are collective calls.

    Attributes
    ----------
    model_ : SVRModel
    support_ : ndarray, shape (s,)
        Global row numbers of the support vectors of this rank's parts, part by part.
    dual_coef_ : ndarray, shape (1, s)
        Coefficients alpha - alpha* of these support vectors.
    sizes_ : ndarray of int64, shape (P,)
        Number of rows each part was trained on. Attributes with one entry per part list the parts of all divisions one
        after the other.
    centers_ : ndarray, shape (P, d)
    solver_ : dict of str to ndarray
        One entry per part: iterations, n_support, objective, gap, seconds, kernel_rows, kernel_values, converged.
    n_iter_ : ndarray of int64, shape (P,)
    cv_results_, best_params_, best_score_, best_index_
        As in :class:`sklearn.model_selection.GridSearchCV`, if settings were compared; scores are R^2.
    at_grid_end_ : dict
        As for :class:`SMOSVR`.
    metric_ : ndarray, shape (d,)
        With "lengths", weights of the squared differences of the features, with mean 1; all 1 if a common scale was
        better. `gamma` refers to these.
    feature_importances_ : ndarray, shape (d,)
        `metric_` divided by its sum.
    metric_errors_ : ndarray, shape (2,)
        Mean squared errors of ridge regression, with a common scale and with one per feature.
    fit_status_ : int
        0 if all parts met the tolerance, 1 otherwise.
    n_features_in_ : int

    Notes
    -----
    Each part costs what :class:`SMOSVR` does on its rows. Training sends nothing between ranks.
    """

    epsilon: GridLike = 0.1
