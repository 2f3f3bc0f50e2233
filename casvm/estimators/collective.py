"""The methods that train on many ranks as scikit-learn classifiers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning

from cacore.comm import CommLike, Communicator
from cacore.data.dataset import Dataset
from cacore.data.labels import all_classes
from cacore.data.metric import expose as expose_metric
from cacore.data.rows import RowsLike
from cacore.data.validation import shared_seed
from cacore.errors import InputError
from cacore.learn.options import from_estimator
from cacore.machine import memory
from cacore.svm.classifier import KernelClassifier
from casvm.bkmsvm import bkmsvm
from casvm.cascade import cascade
from casvm.casvm import casvm
from casvm.cpsvm import cpsvm
from casvm.dcfilter import dcfilter
from casvm.dcsvm import dcsvm
from casvm.dissmo import dissmo
from casvm.estimators.all_ranks import AllRanks
from casvm.estimators.exact import expose, expose_search
from casvm.fcfssvm import fcfssvm
from casvm.fit import SVMFit
from casvm.model.model import SVMModel
from casvm.options import UNSEARCHED, SVMMethod, SVMOptions
from partition import Partitioner
from partition.base import REGISTERED

_METHODS = {"random": casvm, "fcfs": fcfssvm, "bkm": bkmsvm, "kmeans": cpsvm}


@dataclass(eq=False, repr=False, kw_only=True)
class CollectiveSVC(KernelClassifier, AllRanks[SVMModel]):
    """A classifier whose `fit` and `predict` take each rank's own rows, if it is given `comm`."""

    metric: str = "none"
    metric_rounds: int = 10
    validation_fraction: float = 0.1
    standardize: bool = False
    cv: int | None = None
    scoring: str = "accuracy"
    comm: CommLike = None

    _method: ClassVar[SVMMethod]

    def _trained_by(self) -> tuple[SVMMethod, dict[str, object]]:
        """The method, and options that do not come from the parameter of their name."""
        return self._method, {}

    def fit(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on `X`, shape (n_local, d), dense or CSR, and labels `y`; neither is changed.

        Rows of weight 0 count as absent. Raises InputError, a ValueError, on what cannot be used; warns with
        ConvergenceWarning if a limit was reached.
        """
        fitted, options = self._trained(X, y, sample_weight)
        for note in fitted.notes:
            warnings.warn(note, ConvergenceWarning, stacklevel=2)
        if options.searches and fitted.search is None:
            warnings.warn(UNSEARCHED, stacklevel=2)
        return self

    def _training_rows(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None, least: int) -> Dataset:
        return self._labelled(X, y, sample_weight, least)

    def _asked(self, train: Dataset, comm: Communicator) -> tuple[SVMMethod, SVMOptions]:
        classes = all_classes(train.target()[train.row_weights() > 0], comm)
        seed, limit = shared_seed(getattr(self, "random_state", 0), comm), memory.limit_per_rank(comm)
        with comm.agreed():
            method, chosen = self._trained_by()
            options = from_estimator(SVMOptions, self, class_weight=self._class_weight(classes), **chosen)
        return method, replace(options, seed=seed, memory_limit=limit)

    def _take(self, fitted: SVMFit[SVMModel], comm: Communicator) -> None:
        expose(self, fitted.model)
        self.sizes_, self.solver_ = fitted.sizes, fitted.solver
        self.n_iter_ = fitted.solver["iterations"]
        expose_metric(self, fitted)
        expose_search(self, fitted.search)

    def decision_function(self, X: RowsLike) -> NDArray[np.float64]:
        """Decisions for `X`, shape (n_local,) with two classes, else (n_local, k); with `comm`, collective."""
        return self._answer("decision_function", X)

    def predict(self, X: RowsLike) -> NDArray[Any]:
        """Labels for `X`, shape (n_local, d); with `comm`, a collective call."""
        return self._answer("predict", X)

    def _probabilities(self, X: RowsLike) -> NDArray[np.float64]:
        return self._answer("probabilities", X)


@dataclass(eq=False, repr=False, kw_only=True)
class CASVC(CollectiveSVC):
    """Kernel SVM in parts: nothing is sent while the parts are trained (Algorithm 5).

    The parameters are in the order of the groups of ``python -m casvm.casvm --help``: common ones (`n_parts` to
    `gamma`); parts and routing (`partitioner` to `route`); kernel and classes (`degree` to `class_weight`); choice of
    parameters (`cv` to `per_part`); metric and scaling (`metric` to `standardize`); solver (`solver` to `max_time`);
    probabilities; resources.

    Parameters
    ----------
    n_parts : int or None
        Number of parts, P. None: one per rank.
    C, kernel, gamma
        As for :class:`SMOSVC`, the same for every part, without "precomputed"; a callable needs the exact solver.
    partitioner : {"random", "fcfs", "bkm", "kmeans", "kbalance"}, another registered name, or Partitioner
        "random" is CA-SVM, "fcfs" FCFS-SVM, "bkm" BKM-SVM and "kmeans" CP-SVM. A Partitioner keeps its own
        parameters, except `random_state` and, if it is given here, `n_parts`.
    ratio : bool
        Balance every class as well as the sizes of the parts: "fcfs" and "bkm".
    route : {"nearest", "soft", "all"}
        The model of the nearest centre answers; the nearest four's decisions, weighted by distance; or the mean of
        all decisions, which suits "random". With more than two classes the parts' shares are added, not decisions
        (:func:`cacore.svm.decision.shares`), and "all" weights them by distance, too.
    degree, coef0, class_weight
        As for :class:`SMOSVC`; "balanced" counts the rows of all parts.
    cv, scoring
        As for :class:`SMOSVC`; C and gamma are chosen inside the parts, from the sum of the parts' counts.
    per_part : bool
        Let every part choose the C and gamma that are best for itself.
    metric : {"none", "diagonal", "full"}
        Learn, in rounds of training, how much each feature counts, or each direction of them: rows are mapped by the
        root of the mean of grad f grad f^T, where f are the decisions. The round with the smallest share of wrong
        answers on validation rows is trained again on all rows. It may be the one without a metric, for SVMs gain less
        than regression does. "full" takes at most 4,096 features, and makes CSR rows dense.
    metric_rounds : int
        Most rounds after the first one; training stops after three in a row without an improvement.
    validation_fraction : float
        Share of the rows that judges the rounds; without a metric none is held out.
    standardize : bool
        Scale features by the training rows' mean and standard deviation. CSR rows are scaled, not shifted.
    solver : {"smo", "asygcd"}
        Solver of each part: exact; or asynchronous greedy coordinate descent, whose models have no bias; or another one
        that is registered in :mod:`cacore.svm.solvers`.
    tol, max_iter, max_time
        As for :class:`SMOSVC`, for every part.
    probability : bool or {"sigmoid", "isotonic"}
        As for :class:`SMOSVC`; rows are left out of their own parts, and only sums are sent. All parts share one
        sigmoid, or curve, per pair of classes.
    cache_gib : float
        Memory of a rank for kernel values and packed rows of the parts that it works on.
    random_state : int, RandomState or None
        Seed of the random number generator.
    comm : mpi4py communicator or None
        With one, `fit` and `predict` take this rank's own rows and are collective calls.

    Attributes
    ----------
    model_ : SVMModel
    cv_results_, best_params_, best_score_, best_index_
        As of :class:`SMOSVC`. With `per_part`, `best_params_` has arrays with one entry per part, `best_score_` is the
        score of all parts' own settings together, and there is no `best_index_`.
    classes_ : ndarray, shape (k,)
    sizes_ : ndarray of int64, shape (P,)
    centers_ : ndarray, shape (P, d)
    support_ : ndarray, shape (s,)
        Global rows of the support vectors of this rank's parts, class by class.
    support_vectors_, n_support_, dual_coef_
        Theirs, in scikit-learn's layout; a part without a class has 0 for the pairs of that class.
    solver_ : dict of str to ndarray
        One entry per part: iterations, n_support, objective, gap, seconds, kernel_rows, kernel_values.
    n_iter_ : ndarray of int64, shape (P,)
    metric_ : ndarray, shape (d, d) or (d,)
        With trace d, where one was asked for; the identity if the first round was the best.
    feature_importances_ : ndarray, shape (d,)
        Its diagonal as shares, sum 1; all alike if the first round was the best.
    metric_errors_ : ndarray, shape (rounds,)
        Share of wrong answers for the validation rows in every round; the first one is without a metric.
    n_features_in_ : int

    Notes
    -----
    What :class:`SMOSVC` costs on a part's rows, for each part. Training moves no bytes between ranks. A choice of C and
    gamma costs what :func:`casvm.search.choose.search` does, and sends counts alone. A metric costs
    one more training per round, and rows are sent to their parts anew in each; then 2,000 rows to all ranks and one
    Allreduce of d x d numbers, or d.
    """

    n_parts: int | None = field(default=None, kw_only=False)
    partitioner: str | Partitioner = "random"
    solver: str = "smo"
    route: str = "nearest"
    ratio: bool = False
    per_part: bool = False
    random_state: int | np.random.RandomState | None = None

    def _take(self, fitted: SVMFit[SVMModel], comm: Communicator) -> None:
        super()._take(fitted, comm)
        self.centers_ = fitted.model.centers

    def _trained_by(self) -> tuple[SVMMethod, dict[str, object]]:
        own = self.partitioner
        if isinstance(own, str) and own in REGISTERED:
            return _METHODS.get(own) or replace(cpsvm, name=own, summary=f"parts by {own}", partitioner=own), {}
        if isinstance(own, Partitioner):
            name = type(own).__name__.lower()
            method = replace(cpsvm, name=name, summary=f"parts by {name}", partitioner=own)
            return method, {"partitions": own.n_parts} if self.n_parts is None else {}
        need = f"choose one of {', '.join(REGISTERED)}" if isinstance(own, str) else "give a name or a Partitioner"
        raise InputError(f"partitioner {own!r}: {need}")


@dataclass(eq=False, repr=False, kw_only=True)
class OneModelSVC(CollectiveSVC):
    """The base of the classifiers whose training ends in one model."""

    def _take(self, fitted: SVMFit[SVMModel], comm: Communicator) -> None:
        super()._take(fitted, comm)
        self.n_iter_ = self.n_iter_.sum(keepdims=True)  # a layer's start may leave nothing to do
        b = fitted.model.intercepts()
        self.intercept_ = -b if len(self.classes_) == 2 else b
        if "layers" in fitted.more:
            self.layers_ = fitted.more["layers"]


@dataclass(eq=False, repr=False, kw_only=True)
class DCSVC(OneModelSVC):
    """DC-SVM: parts by K-means, all of whose rows are merged two by two (section 2.2): exact.

    Parameters
    ----------
    n_parts, C, kernel, gamma, degree, coef0, tol, class_weight, max_iter, max_time, solver
        As for :class:`CASVC`, of every part and every merged problem.
    metric, metric_rounds, validation_fraction, standardize, cv, scoring, cache_gib, random_state, comm
        As for :class:`CASVC`. C and gamma are chosen in parts of about 2,000 rows that are made for that, or
        by one of all rows if there are 6,000 at most.
    probability : bool or {"sigmoid", "isotonic"}
        As for :class:`SMOSVC`; the method trains anew without each of one to five folds of all rows.

    Attributes
    ----------
    model_ : SVMModel
        In pieces, one a rank, whose decisions add up.
    classes_, support_, support_vectors_, n_support_, dual_coef_, n_features_in_
        As of :class:`CASVC`, of this rank's piece.
    metric_, feature_importances_, metric_errors_, cv_results_, best_params_, best_score_, best_index_
        As of :class:`CASVC`.
    intercept_ : ndarray, shape (k (k - 1) / 2,)
    sizes_ : ndarray of int64, shape (P,)
        Rows of the parts.
    solver_ : dict of str to ndarray
        An entry a layer, and a pass: iterations, n_support, objective, gap, seconds, kernel_rows, kernel_values.
    layers_ : list of dict
        The problems of each layer: rows, iterations, support vectors, seconds.
    n_iter_ : ndarray of int64, shape (1,)
        Pairs of rows optimised, of all problems together.

    Notes
    -----
    Half of the rows move at most, log2 P times; the last problem holds all rows on one rank.
    """

    n_parts: int | None = field(default=None, kw_only=False)
    solver: str = "smo"
    random_state: int | np.random.RandomState | None = None

    _method = dcsvm


@dataclass(eq=False, repr=False, kw_only=True)
class CascadeSVC(DCSVC):
    """Cascade SVM: random parts, whose support vectors are merged two by two (Fig. 2.1).

    Parameters, attributes and cost of a problem are those of :class:`DCSVC`, but that support vectors and their
    coefficients move, log2 P times at most; and

    Parameters
    ----------
    passes : int
        Most passes through the tree; the next one begins with the last support vectors in all parts, and is made
        while the objective changes. Many passes end at the exact solution, one may be far from it.
    """

    passes: int = 2

    _method = cascade


@dataclass(eq=False, repr=False, kw_only=True)
class DCFilterSVC(CascadeSVC):
    """DC-Filter: parts by K-means, whose support vectors are merged two by two (section 2.3).

    Parameters, attributes and cost are those of :class:`CascadeSVC`, and the partitioning; one pass is
    usually enough here, so that `passes` is 1 unless the user says otherwise.
    """

    passes: int = 1

    _method = dcfilter


@dataclass(eq=False, repr=False, kw_only=True)
class DisSMOSVC(OneModelSVC):
    """Dis-SMO: exact, one problem of which every rank holds a share of the rows (sections 2.2 and 2.3).

    Parameters
    ----------
    C, kernel, gamma, degree, coef0, tol, class_weight, max_iter, max_time
        As for :class:`SMOSVC`, without "precomputed".
    working_set : int or None
        Rows of a round; None leaves it to the solver, 2 is the textbook's pair.
    metric, metric_rounds, validation_fraction, standardize, cv, scoring, cache_gib, probability, comm
        As for :class:`DCSVC`, and so are the attributes; `sizes_` has the rows that each rank holds, and `solver_`
        one entry.

    Notes
    -----
    See :func:`casvm.solver.distributed.solve`; without `comm` it is :class:`SMOSVC`'s solver.
    """

    working_set: int | None = None

    _method = dissmo
