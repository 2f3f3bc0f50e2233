"""Support vector regression on all ranks as scikit-learn regressors: exact, and in parts."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from cacore.comm import Communicator, collective
from cacore.data.classifier import ROWS
from cacore.data.regressor import Regressing
from cacore.data.validation import shared_seed
from cacore.errors import InputError
from cacore.machine import memory, threads
from cacore.run.options import at_least_zero, from_estimator, one_of, whole
from cacore.svm.classifier import KernelMachine
from cacore.svm.options import DualOptions
from casvm.methods import svr as methods
from casvm.model.svr import SVRModel
from partition import Partitioner
from partition.base import REGISTERED


@dataclass(eq=False, repr=False, kw_only=True)
class CollectiveSVR(Regressing, KernelMachine):
    """A regression whose `fit`, `predict` and `score` take each rank's own rows, if it is given `comm`."""

    C: float = 1.0
    epsilon: float = 0.1
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
                least = 2 * int(comm.size == 1)
                train = self._with_targets(
                    X, y, sample_weight, dtype=("float64", "float32"), ensure_min_samples=least, **ROWS
                )
            limit = memory.limit_per_rank(comm)
            with comm.agreed():
                options: DualOptions = from_estimator(DualOptions, self)
                epsilon = float(at_least_zero(self.epsilon, "epsilon ="))
            prepared = methods.prepare(train, replace(options, memory_limit=limit), epsilon, comm)
            self.model_, numbers = self._trained(prepared, comm)
        self.model_.comm = self.comm
        parts = [self.model_.parts[number] for number in sorted(self.model_.parts)]
        self.support_ = np.concatenate([np.zeros(0, np.int64), *(part.rows for part in parts)])
        self.dual_coef_ = np.concatenate([np.zeros(0), *(part.beta for part in parts)])[None]
        self.solver_ = dict(zip(methods.STATISTICS, numbers.T, strict=True))
        self.n_iter_ = self.solver_["iterations"].astype(np.int64)
        self.sizes_ = self.model_.sizes
        late = self.solver_["converged"] == 0
        self.fit_status_ = int(late.any())
        if late.any():
            where = "" if len(late) == 1 else f" ({np.count_nonzero(late)} of {len(late)} parts)"
            warnings.warn(
                f"{type(self).__name__} stopped after {self.n_iter_.sum():,} iterations at a violation of "
                f"{self.solver_['gap'].max():.3g}, above tol = {self.tol:g}{where}: raise max_iter or max_time, or "
                "scale the features",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _trained(self, prepared: methods.Prepared, comm: Communicator) -> tuple[SVRModel, NDArray[np.float64]]:
        """The model and the statistics of its problems; collective."""
        raise NotImplementedError

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Predictions for `X`, shape (n_local, d); with `comm`, a collective call."""
        check_is_fitted(self, "model_")
        with collective(self.comm) as comm:
            with comm.agreed():
                X = self._rows(X, int(comm.size == 1))
            return np.asarray(self.model_.predict(X, comm))


@dataclass(eq=False, repr=False, kw_only=True)
class DisSMOSVR(CollectiveSVR):
    """Support vector regression of all ranks' rows: exact, one problem of which every rank holds a share.

    Parameters
    ----------
    C, epsilon, kernel, gamma, degree, coef0, tol, max_iter, max_time
        As for :class:`SMOSVR`, without "precomputed".
    working_set : int or None
        Rows of a round; None leaves it to the solver, 2 is the textbook's pair.
    standardize, cache_gib, comm
        As for :class:`CASVR`.

    Attributes
    ----------
    model_ : SVRModel
        In pieces, one a rank, whose values add up.
    support_, dual_coef_
        As of :class:`CASVR`, of this rank's piece.
    intercept_ : ndarray, shape (1,)
    objective_ : float
        Of the dual, maximised.
    sizes_ : ndarray of int64, shape (ranks,)
        Support vectors of each rank.
    solver_, n_iter_, fit_status_, n_features_in_
        As of :class:`CASVR`, with one entry.

    Notes
    -----
    See :func:`casvm.solver.distributed.solve`; without `comm` it is :class:`SMOSVR`'s solver.
    """

    working_set: int | None = None

    def _trained(self, prepared: methods.Prepared, comm: Communicator) -> tuple[SVRModel, NDArray[np.float64]]:
        with comm.agreed():
            working_set = None if self.working_set is None else whole(2)(self.working_set, "working_set =")
        model, numbers = methods.of_all_rows(prepared, working_set, comm)
        self.objective_ = float(numbers[0, methods.STATISTICS.index("objective")])
        self.intercept_ = comm.allreduce(model.parts[comm.rank].b)
        return model, numbers


@dataclass(eq=False, repr=False, kw_only=True)
class CASVR(CollectiveSVR):
    """Support vector regression in parts: nothing is sent while the parts are trained (Algorithm 5).

    Parameters
    ----------
    n_parts : int or None
        Parts, P. None: one a rank.
    partitioner : {"random", "fcfs", "bkm", "kmeans", "kbalance"}, another registered name, or Partitioner
        "random" leaves rows where they are. Of a Partitioner its own parameters are used, but for `n_parts`, if that is
        given here, and `random_state`.
    C, epsilon, kernel, gamma, degree, coef0, tol, max_iter, max_time
        As for :class:`SMOSVR`, of every part, without "precomputed".
    route : {"nearest", "soft", "all"}
        The nearest centre's model answers; the nearest four's values, weighted by distance; or the mean of all values,
        which suits "random".
    standardize : bool
        Scale features by the training rows' mean and deviation. CSR rows are scaled, not shifted.
    cache_gib : float
        Memory of a rank for kernel values and packed rows of the parts it works on.
    random_state : int, RandomState or None
    comm : mpi4py communicator or None
        With one, `fit`, `predict` and `score` take this rank's own rows and are collective calls.

    Attributes
    ----------
    model_ : SVRModel
    support_ : ndarray, shape (s,)
        Global rows of the support vectors of this rank's parts, part by part.
    dual_coef_ : ndarray, shape (1, s)
        alpha - alpha* of these.
    sizes_ : ndarray of int64, shape (P,)
    centers_ : ndarray, shape (P, d)
    solver_ : dict of str to ndarray
        An entry a part: iterations, n_support, objective, gap, converged, seconds.
    n_iter_ : ndarray of int64, shape (P,)
    fit_status_ : int
        0 if all parts met the tolerance, 1 otherwise.
    n_features_in_ : int

    Notes
    -----
    What :class:`SMOSVR` costs on a part's rows, for each part. Training moves no bytes between ranks.
    """

    n_parts: int | None = field(default=None, kw_only=False)
    partitioner: Any = "random"
    route: str = "nearest"
    random_state: Any = None

    def _trained(self, prepared: methods.Prepared, comm: Communicator) -> tuple[SVRModel, NDArray[np.float64]]:
        own, seed = self.partitioner, shared_seed(self.random_state, comm)
        with comm.agreed():
            if not (isinstance(own, Partitioner) or (isinstance(own, str) and own in REGISTERED)):
                raise InputError(f"partitioner {own!r}: choose one of {', '.join(REGISTERED)}, or give a Partitioner")
            given = own.n_parts if self.n_parts is None and isinstance(own, Partitioner) else self.n_parts
            P = comm.size if given is None else whole(1)(given, "n_parts =")
            route = one_of("nearest", "soft", "all")(self.route, "route =")
        model, numbers = methods.in_parts(prepared, own, P, route, seed, comm)
        self.centers_ = model.centers
        return model, numbers
