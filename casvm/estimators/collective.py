"""scikit-learn estimators for SVMs on all ranks: each rank passes its own rows and receives its own predictions.

:class:`AllRanks` is their base. Classifiers follow, in parts (:class:`CASVC`) and with one model at the end, and then
the regressors: in parts (:class:`CASVR`) and exact (:class:`DisSMOSVR`).
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cacore.checks import whole
from cacore.comm import CommLike, Communicator, collective
from cacore.data.dataset import Dataset
from cacore.data.estimators import ROWS, Regressing, asking, same_fit
from cacore.data.labels import all_classes
from cacore.data.metric import expose as expose_metric
from cacore.data.rows import Rows, RowsLike
from cacore.data.validation import check_same_names, shared_seed, with_features
from cacore.errors import InputError
from cacore.learn.method import Method
from cacore.learn.options import from_estimator
from cacore.machine import memory, threads
from cacore.svm.classifier import KernelClassifier, KernelMachine
from cacore.tuning import GridLike
from casvm.bkmsvm import bkmsvm
from casvm.cascade import cascade
from casvm.casvm import casvm
from casvm.cpsvm import cpsvm
from casvm.dcfilter import dcfilter
from casvm.dcsvm import dcsvm
from casvm.dissmo import dissmo
from casvm.estimators import Documented
from casvm.estimators.exact import expose, expose_search, warn_of_limits
from casvm.fcfssvm import fcfssvm
from casvm.model.svm_model import SVMModel
from casvm.model.svr_model import SVRModel
from casvm.options import UNSEARCHED, SVMMethod, SVMOptions, ValueMethod, ValueOptions
from casvm.svm_fit import SVMFit, Trained
from casvm.svr import svr
from partition import Partitioner
from partition.base import REGISTERED


class AllRanks(Documented, Generic[Trained]):
    """Training and prediction on the ranks of `comm`, or in one process without it."""

    comm: CommLike
    model_: Trained

    def _trained(
        self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None
    ) -> tuple[SVMFit[Trained], SVMOptions | ValueOptions]:
        """Train on this rank's rows and set the fitted attributes; return the fit and its options. Collective."""
        with collective(self.comm) as comm:
            same_fit(self, comm)
            threads.share_once(comm)
            X = with_features(self, X, y, sample_weight, comm)
            with comm.agreed(own_rows=True):
                train = self._training_rows(X, y, sample_weight, int(comm.size == 1))
            check_same_names(self, comm)
            method, options = self._selected_options(train, comm)
            fitted: SVMFit[Trained] = method(train, options, comm)
            self._take(fitted, comm)
        self.model_.comm = self.comm
        return fitted, options

    @abstractmethod
    def _training_rows(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None, least: int) -> Dataset:
        """Checked training rows; there must be `least` of them, 1 in one process and 0 on many ranks."""

    @abstractmethod
    def _selected_options(self, train: Dataset, comm: Communicator) -> tuple[Method, SVMOptions | ValueOptions]:
        """The method and the options that the parameters select; collective."""

    @abstractmethod
    def _take(self, fitted: SVMFit[Trained], comm: Communicator) -> None:
        """Set the fitted attributes; collective."""

    @abstractmethod
    def _rows(self, X: RowsLike, least: int = 1) -> Rows:
        """Checked rows to predict; there must be `least` of them."""

    def _answer(self, question: str, X: RowsLike) -> NDArray[Any]:
        """Result of the model's method `question` for `X`; collective."""
        with asking(self, question) as comm:
            with comm.agreed(own_rows=True):
                X = self._rows(X, int(comm.size == 1))
            return np.asarray(getattr(self.model_, question)(X, comm))


_METHODS = {"random": casvm, "fcfs": fcfssvm, "bkm": bkmsvm, "kmeans": cpsvm}


@dataclass(eq=False, repr=False, kw_only=True)
class CollectiveSVC(KernelClassifier, AllRanks[SVMModel]):
    """The base of these classifiers; with `comm`, `fit` and `predict` take each rank's own rows."""

    metric: str = "none"
    metric_rounds: int = 10
    validation_fraction: float = 0.1
    standardize: bool = False
    cv: int | None = None
    scoring: str = "accuracy"
    comm: CommLike = None

    _method: ClassVar[SVMMethod]
    _model = SVMModel

    def _trained_by(self) -> tuple[SVMMethod, dict[str, object]]:
        """The method, and options that are not set by the parameter of the same name."""
        return self._method, {}

    def fit(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on `X`, shape (n_local, d), dense or CSR, and labels `y`; neither is changed.

        Rows of weight 0 are ignored. Invalid input raises an InputError, a ValueError. A ConvergenceWarning is issued
        if a limit was reached.
        """
        fitted, options = self._trained(X, y, sample_weight)
        warn_of_limits(self, fitted.notes, fitted.search, depth=1)
        if options.searches and fitted.search is None:
            warnings.warn(UNSEARCHED, stacklevel=2)
        return self

    def _training_rows(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None, least: int) -> Dataset:
        return self._labelled(X, y, sample_weight, least)

    def _selected_options(self, train: Dataset, comm: Communicator) -> tuple[SVMMethod, SVMOptions]:
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
    """Kernel SVM in parts, whose training sends nothing (Algorithm 5, by default with parts by K-means).

    The parameters are grouped as in ``python -m casvm.casvm --help``: common parameters (`n_parts` to `gamma`), parts
    and routing (`partitioner` to `route`), kernel and classes (`degree` to `class_weight`), parameter search (`cv` to
    `per_part`), metric and scaling (`metric` to `standardize`), solver (`solver` to `max_time`), probabilities, and
    resources.

    Parameters
    ----------
    n_parts : int or None
        Number of parts, P. None: one per rank.
    kernel, C, gamma
        As for :class:`SMOSVC`, the same for every part; "precomputed" is not available, and a callable needs
        ``solver="smo"``.
    partitioner : {"random", "fcfs", "bkm", "kmeans", "kbalance"}, another registered name, or Partitioner
        "kmeans" is CP-SVM, "random" CA-SVM, "fcfs" FCFS-SVM and "bkm" BKM-SVM. A Partitioner keeps its own
        parameters, except `random_state` and, if it is given here, `n_parts`. With `comm`, each row is sent once to the
        rank of its part, and K-means sends one Allreduce of about P x (d+1) numbers per round; "random" leaves rows on
        their rank, and sends nothing.
    ratio : bool
        Balance every class as well as the sizes of the parts; for "fcfs" and "bkm".
    route : {"auto", "nearest", "soft", "all"}
        Models that predict a row: the model of the nearest centre; the nearest four, with decisions weighted by
        distance; or all, with the mean decision. With more than two classes, the parts' shares of the classes are
        averaged instead of decisions (:func:`cacore.svm.decision.shares`), and "all" also weights by distance. "auto"
        is "all" for random parts, whose centres lie close to each other, and "nearest" for others.
    class_weight, degree, coef0
        As for :class:`SMOSVC`; "balanced" refers to the class counts of all parts together.
    cv, scoring
        As for :class:`SMOSVC`; folds lie inside the parts, and the counts of all parts are added up.
    per_part : bool
        Choose C and gamma separately for every part.
    metric : {"none", "diagonal", "full", "lengths"}
        "lengths" learns one length scale per feature, for kernels of a distance, before anything else: those that
        minimise the leave-one-out errors of kernel ridge regression of the classes, coded as -1 and 1, on up to 4,000
        training rows. They are used if they predict 1,000 other rows better than a common scale does. "diagonal" and
        "full" learn the importance of features, or of directions, in rounds of training: rows are mapped by the square
        root of the mean of grad f grad f^T, where f is the decision function. The round with the smallest validation
        error is trained again on all rows; it may be the first one, without a metric. "full" takes at most 4,096
        features, and makes CSR rows dense.
    metric_rounds : int
        Maximum number of rounds after the first; training stops after three rounds in a row without improvement.
    validation_fraction : float
        Share of rows held out to evaluate the rounds; without a metric, no rows are held out.
    standardize : bool
        Scale features by the training rows' mean and standard deviation. CSR rows are scaled, not shifted.
    solver : {"smo", "asygcd"}
        Solver of each part: SMO; asynchronous greedy coordinate descent, whose models have no bias; or another one
        registered in :mod:`cacore.svm.options`.
    tol, max_iter, max_time
        As for :class:`SMOSVC`, for every part.
    probability : bool or {"sigmoid", "isotonic"}
        As for :class:`SMOSVC`; rows are left out of their own parts, and only sums are sent. All parts share one
        sigmoid or isotonic curve per pair of classes.
    cache_gib : float
        Memory per rank for kernel values and packed rows of the parts being trained.
    random_state : int, RandomState or None
        Seed of the random number generator.
    comm : mpi4py communicator or None
        With one, `fit` and `predict` take this rank's own rows and are collective calls.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Attributes
    ----------
    model_ : SVMModel
    best_params_, cv_results_, best_score_, best_index_, at_grid_end_
        As for :class:`SMOSVC`. With `per_part`, `best_params_` has arrays with one entry per part, `best_score_` is the
        score of all parts with their own settings, and there is no `best_index_`.
    classes_ : ndarray, shape (k,)
    sizes_ : ndarray of int64, shape (P,)
        Number of rows of each part.
    centers_ : ndarray, shape (P, d)
    support_ : ndarray, shape (s,)
        Global row numbers of the support vectors of this rank's parts, class by class.
    support_vectors_, n_support_, dual_coef_
        Attributes of these support vectors, in scikit-learn's layout; coefficients are 0 in pairs with a class that the
        part lacks.
    solver_ : dict of str to ndarray
        One entry per part: iterations, n_support, objective, gap, seconds, kernel_rows, kernel_values.
    n_iter_ : ndarray of int64, shape (P,)
    metric_ : ndarray, shape (d, d) or (d,)
        The learned metric, scaled to trace d, if requested; the identity if the first round, or a common scale, was
        the best. `gamma` refers to it.
    feature_importances_ : ndarray, shape (d,)
        Diagonal of the metric, scaled to sum 1; all equal if it is the identity.
    metric_errors_ : ndarray, shape (rounds,)
        Validation error of every round; the first one is without a metric. With "lengths", mean squared errors of
        ridge regression, with a common scale and with one per feature.
    n_features_in_ : int

    Notes
    -----
    Each part costs what :class:`SMOSVC` does on its rows. Training sends nothing between ranks. A search for C and
    gamma costs what :func:`casvm.search.classes.search_classes` does, and sends counts only. A metric costs one more
    training
    per round, in which rows are sent to their parts again; each round also sends 2,000 rows to all ranks, and one
    Allreduce of d x d numbers, or d for a diagonal metric.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from casvm import CASVC
    >>> X, y = make_moons(400, noise=0.2, random_state=0)
    >>> model = CASVC(n_parts=2, C=10, gamma=1.0, route="soft", random_state=0).fit(X[:300], y[:300])
    >>> int(model.sizes_.sum()), model.score(X[300:], y[300:]) > 0.9
    (300, True)
    """

    n_parts: int | None = field(default=None, kw_only=False)
    partitioner: str | Partitioner = "kmeans"
    solver: str = "smo"
    route: str = "auto"
    ratio: bool = False
    per_part: bool = False
    random_state: int | np.random.RandomState | None = None

    def _take(self, fitted: SVMFit[SVMModel], comm: Communicator) -> None:
        super()._take(fitted, comm)
        self.centers_ = fitted.model.centers

    def _trained_by(self) -> tuple[SVMMethod, dict[str, object]]:
        partitioner = self.partitioner
        if isinstance(partitioner, str) and partitioner in REGISTERED:
            return _METHODS.get(partitioner) or _method_by(
                partitioner, partitioner, REGISTERED[partitioner].clusters
            ), {}
        if isinstance(partitioner, Partitioner):
            method = _method_by(type(partitioner).__name__.lower(), partitioner, partitioner.clusters)
            return method, {"partitions": partitioner.n_parts} if self.n_parts is None else {}
        need = (
            f"choose one of {', '.join(REGISTERED)}" if isinstance(partitioner, str) else "give a name or a Partitioner"
        )
        raise InputError(f"partitioner {partitioner!r}: {need}")


def _method_by(name: str, partitioner: str | Partitioner, clusters: bool) -> SVMMethod:
    """The method in parts by a partitioner that has no command."""
    route = "nearest" if clusters else "all"
    return replace(cpsvm, name=name, summary=f"parts by {name}", partitioner=partitioner, route=route)


@dataclass(eq=False, repr=False, kw_only=True)
class OneModelSVC(CollectiveSVC):
    """The base of classifiers whose training ends in one model."""

    def _take(self, fitted: SVMFit[SVMModel], comm: Communicator) -> None:
        super()._take(fitted, comm)
        self.n_iter_ = self.n_iter_.sum(keepdims=True)  # a warm start may leave a layer without iterations
        b = fitted.model.intercepts()
        self.intercept_ = -b if len(self.classes_) == 2 else b
        if "layers" in fitted.more:
            self.layers_ = fitted.more["layers"]


@dataclass(eq=False, repr=False, kw_only=True)
class DCSVC(OneModelSVC):
    """DC-SVM, exact: parts by K-means, all of whose rows are merged two by two (section 2.2).

    Parameters
    ----------
    tol, n_parts, C, kernel, gamma, degree, coef0, class_weight, max_iter, max_time, solver
        As for :class:`CASVC`, and for every merged problem.
    cv, scoring, metric, metric_rounds, validation_fraction, standardize, cache_gib, random_state, comm
        As for :class:`CASVC`. C and gamma are chosen in parts of about 2,000 rows made for the search, or on all rows
        if there are at most 6,000.
    probability : bool or {"sigmoid", "isotonic"}
        As for :class:`SMOSVC`; training is repeated without each of one to five folds of all rows.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Attributes
    ----------
    model_ : SVMModel
        Stored in pieces, one per rank, whose decisions add up.
    support_, support_vectors_, n_support_, dual_coef_, classes_, n_features_in_
        As for :class:`CASVC`, for this rank's piece.
    metric_, feature_importances_, metric_errors_, cv_results_, best_params_, best_score_, best_index_, at_grid_end_
        As for :class:`CASVC`.
    intercept_ : ndarray, shape (k (k - 1) / 2,)
    sizes_ : ndarray of int64, shape (P,)
        Number of rows of each part.
    solver_ : dict of str to ndarray
        One entry per pass and layer: iterations, n_support, objective, gap, seconds, kernel_rows, kernel_values.
    layers_ : list of dict
        The problems of each layer: rows, iterations, support vectors, seconds.
    n_iter_ : ndarray of int64, shape (1,)
        Number of pairs of rows optimised in all problems together.

    Notes
    -----
    At most half of the rows are sent per layer, in log2 P layers; one rank holds all rows for the last problem.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from casvm import DCSVC
    >>> X, y = make_moons(400, noise=0.2, random_state=0)
    >>> model = DCSVC(n_parts=4, C=10, gamma=1.0, random_state=0).fit(X[:300], y[:300])
    >>> len(model.layers_)
    3
    >>> model.score(X[300:], y[300:]) > 0.9
    True
    """

    n_parts: int | None = field(default=None, kw_only=False)
    solver: str = "smo"
    random_state: int | np.random.RandomState | None = None

    _method = dcsvm


@dataclass(eq=False, repr=False, kw_only=True)
class CascadeSVC(DCSVC):
    """Cascade SVM: random parts, whose support vectors are merged two by two (Fig. 2.1).

    Attributes and the cost of each problem are those of :class:`DCSVC`, but only support vectors and their coefficients
    are sent, at most log2 P times per pass.

    Parameters
    ----------
    passes : int
        Maximum number of passes through the tree. Each further pass adds the last support vectors to all parts; passes
        stop when the objective no longer changes. Many passes converge to the exact solution; a single pass may end far
        from it.
    n_parts, C, kernel, gamma, degree, coef0, tol, class_weight, max_iter, max_time, solver
    cv, scoring, metric, metric_rounds, validation_fraction, standardize, cache_gib, probability, random_state, comm
        As for :class:`DCSVC`.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from casvm import CascadeSVC
    >>> X, y = make_moons(400, noise=0.2, random_state=0)
    >>> model = CascadeSVC(n_parts=4, passes=2, C=10, gamma=1.0, random_state=0).fit(X[:300], y[:300])
    >>> model.score(X[300:], y[300:]) > 0.9
    True
    """

    passes: int = 2

    _method = cascade


@dataclass(eq=False, repr=False, kw_only=True)
class DCFilterSVC(CascadeSVC):
    """DC-Filter: parts by K-means, whose support vectors are merged two by two (section 2.3).

    Attributes and cost are those of :class:`CascadeSVC`, plus the cost of partitioning. One pass is usually enough
    here, so `passes` is 1 by default.

    Parameters
    ----------
    passes : int
    n_parts, C, kernel, gamma, degree, coef0, tol, class_weight, max_iter, max_time, solver
    cv, scoring, metric, metric_rounds, validation_fraction, standardize, cache_gib, probability, random_state, comm
        As for :class:`CascadeSVC`.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from casvm import DCFilterSVC
    >>> X, y = make_moons(400, noise=0.2, random_state=0)
    >>> model = DCFilterSVC(n_parts=4, C=10, gamma=1.0, random_state=0).fit(X[:300], y[:300])
    >>> model.score(X[300:], y[300:]) > 0.9
    True
    """

    passes: int = 1

    _method = dcfilter


@dataclass(eq=False, repr=False, kw_only=True)
class DisSMOSVC(OneModelSVC):
    """Dis-SMO, exact: one problem whose rows are distributed over the ranks (sections 2.2 and 2.3).

    Parameters
    ----------
    kernel, C, gamma, degree, coef0, tol, class_weight, max_iter, max_time
        As for :class:`SMOSVC`, without "precomputed".
    working_set : int or None
        Number of rows optimised per round. None lets the solver choose; 2 is one pair, as in standard SMO.
    metric, metric_rounds, validation_fraction, standardize, cv, scoring, cache_gib, probability, comm
        As for :class:`DCSVC`.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Notes
    -----
    The attributes are those of :class:`DCSVC`, but `sizes_` has the number of rows of each rank, and `solver_` has one
    entry.

    For the cost, see :func:`casvm.methods.all_rows.solve`. Without `comm`, the solver is that of :class:`SMOSVC`.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from casvm import DisSMOSVC
    >>> X, y = make_moons(400, noise=0.2, random_state=0)
    >>> model = DisSMOSVC(C=10, gamma=1.0).fit(X[:300], y[:300])
    >>> model.score(X[300:], y[300:]) > 0.9
    True
    """

    working_set: int | None = None

    _method = dissmo


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
        warn_of_limits(self, fitted.notes, fitted.search, depth=1)
        return self

    def _training_rows(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None, least: int) -> Dataset:
        requirements = {"dtype": ("float64", "float32"), "ensure_min_samples": 2 * least, **ROWS}
        return self._with_targets(X, y, sample_weight, **requirements)

    def _trained_by(self) -> tuple[ValueMethod, dict[str, object]]:
        """The method, and options that are not set by the parameter of the same name."""
        return svr, {}

    def _selected_options(self, train: Dataset, comm: Communicator) -> tuple[ValueMethod, ValueOptions]:
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
    kernel, degree, coef0
        As for :class:`SMOSVC`, without "precomputed".
    max_iter : int
        Maximum number of pairs of rows that a part's solver optimises; -1 for no limit.
    max_time : float or None
        Time limit of a part's solver, in seconds.
    solver : str
        Solver of each part: "smo", or another regression solver registered in :mod:`cacore.svm.options`.
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
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

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
    at_grid_end_
        As for :class:`SMOSVC`.
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

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from casvm import CASVR
    >>> X, y = make_friedman1(400, n_features=5, random_state=0)
    >>> model = CASVR(n_parts=2, C=100, epsilon=0.1, gamma=1.0, random_state=0).fit(X[:300], y[:300])
    >>> int(model.sizes_.sum()), model.score(X[300:], y[300:]) > 0.7
    (300, True)
    """

    epsilon: GridLike = 0.1


@dataclass(eq=False, repr=False, kw_only=True)
class DisSMOSVR(CollectiveSVR):
    """Support vector regression, exact: one problem whose rows are distributed over the ranks.

    Parameters
    ----------
    C, epsilon, gamma, tol, cv, metric, standardize, cache_gib, comm
        As for :class:`CASVR`.
    kernel, degree, coef0, max_iter, max_time
        As for :class:`CASVR`.
    working_set : int or None
        Number of rows optimised per round. None lets the solver choose; 2 is one pair, as in standard SMO.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

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
    For the cost, see :func:`casvm.methods.all_rows.solve`. Without `comm`, the solver is that of :class:`SMOSVR`.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from casvm import DisSMOSVR
    >>> X, y = make_friedman1(400, n_features=5, random_state=0)
    >>> model = DisSMOSVR(C=100, epsilon=0.1, gamma=1.0).fit(X[:300], y[:300])
    >>> model.score(X[300:], y[300:]) > 0.9
    True
    """

    epsilon: GridLike = 0.1
    working_set: int | None = None

    def _trained_by(self) -> tuple[ValueMethod, dict[str, object]]:
        return svr, {"exact": True}

    def _take(self, fitted: SVMFit[SVRModel], comm: Communicator) -> None:
        super()._take(fitted, comm)
        self.objective_ = float(self.solver_["objective"][0])
        self.intercept_ = comm.allreduce(self.model_.parts[comm.rank].b)
