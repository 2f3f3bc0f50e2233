"""The exact solver as scikit-learn classifiers in one process, C-SVC and nu-SVC, and the base of all exact estimators.

:class:`OneProcess`, the base, has the parameters, the kernel, and the warnings about convergence.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from cacore.arrays import usual_errors
from cacore.checks import one_of, yes_or_no
from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.data.encoding import Columns
from cacore.data.estimators import Labelled
from cacore.data.labels import ClassWeight, all_classes, class_factors, require_classes
from cacore.data.resolution import check_resolved
from cacore.data.rows import Rows, RowsLike, check_range, check_squares, concatenate, in_memory
from cacore.errors import InputError
from cacore.kernels.given import Precomputed, numbered
from cacore.learn.options import from_estimator
from cacore.machine import memory
from cacore.probability.calibrator import Calibrator, coupled
from cacore.probability.left_out import folds_to_leave_out
from cacore.svm.classifier import KernelMachine, Probabilistic, printer
from cacore.svm.dual import Progress, Solution
from cacore.svm.options import DualOptions
from cacore.svm.problem import numeric_gamma
from cacore.tuning import GridLike, Results
from casvm.estimators import Documented
from casvm.methods.probability import left_out
from casvm.model.libsvm_files import NU_SVC
from casvm.model.part_svm import PartSVM
from casvm.model.svm_model import SVMModel
from casvm.model.svr_model import PartSVR
from casvm.options import UNSEARCHED, SVMOptions, nu_share
from casvm.search.classes import search_classes
from casvm.solver.smo import PartTraining, fit_part
from partition.redistribute import Parts

Options = TypeVar("Options", bound=DualOptions)

_SURE = 1 << 26  # bytes that any machine has: to look up how many are free would take a quarter of a tiny fit


@dataclass(eq=False, repr=False, kw_only=True)
class OneProcess(Documented, KernelMachine):
    """Parameters of the solver, and the steps of training that all problems share."""

    shrinking: bool = True
    verbose: bool = False

    @property
    def _precomputed(self) -> bool:
        return isinstance(self.kernel, str) and self.kernel == "precomputed"

    def _precomputed_options(self) -> dict[str, object]:
        """Options that replace this estimator's parameters, since a precomputed kernel is not evaluated."""
        return {"kernel": "linear"} if self._precomputed else {}

    def _check_rows(self, X: Rows) -> None:
        """Refuse training rows that do not suit the kernel."""
        if not self._precomputed:
            comm = Communicator()
            check_resolved(X, X.dtype, comm)
            check_squares(X, comm)
            return
        if X.shape[0] != X.shape[1]:
            raise InputError(f"a precomputed kernel must be square; this one has shape {tuple(X.shape)}")
        if sp.issparse(X):
            raise InputError("a precomputed kernel must be dense")

    def _switches(self) -> tuple[bool, bool]:
        """The checked values of `shrinking` and `verbose`."""
        shrinking, verbose = (yes_or_no(getattr(self, name), f"{name} =") for name in ("shrinking", "verbose"))
        return shrinking, verbose

    def _training(self, X: Rows, options: DualOptions, comm: Communicator) -> PartTraining:
        """Settings with which the rows of positive weight, `X`, are trained."""
        shrinking, verbose = self._switches()
        kernel = None
        if not self._precomputed:
            kernel = options.kernel_with(numeric_gamma(X, options.gamma, comm, options.kernel)).suited(X.shape[1])
        n, d = X.shape
        budget = min(options.cache_bytes, n * n * 8 + 2 * n * d * 8)
        if budget > _SURE:
            memory.require(budget, memory.limit_per_rank(comm), "the kernel cache", "use a smaller cache_gib")
        limits = replace(options.limits, shrinking=shrinking)
        return PartTraining(kernel, limits, budget, watch=printer(_line) if verbose else None)

    def _warn(self, solutions: list[Solution], tol: float, depth: int, what: str = "pairs of classes") -> None:
        """Store whether all problems met the tolerance, and warn if one did not; `fit` is `depth` calls above."""
        late = [solution for solution in solutions if not solution.converged]
        self.fit_status_ = int(bool(late))
        if late:
            worst = max(late, key=lambda solution: solution.gap)
            of = "" if len(solutions) == 1 else f" ({len(late)} of {len(solutions)} {what})"
            warnings.warn(
                f"{type(self).__name__} stopped after {worst.iterations:,} iterations at a violation of "
                f"{worst.gap:.3g}, above tol = {tol:g}{of}: raise tol, max_iter or max_time, or "
                "scale the features",
                ConvergenceWarning,
                stacklevel=depth + 2,
            )

    def _one_part(self, X: Rows, part: PartSVM | PartSVR) -> dict[str, Any]:
        """Fields of a model with a single part trained on all rows."""
        n, d = X.shape
        return {
            "route": "nearest", "centers": np.zeros((1, d)), "sizes": np.array([n]), "owners": np.zeros(1, np.int64),
            "standardizer": None, "dtype": X.dtype.name, "parts": {0: part},
        }  # fmt: skip

    def _keep_names(self, columns: Columns) -> None:
        """Store the names of a DataFrame's columns in the model, whose file then has them."""
        if not self._precomputed:
            columns.put(self.model_.source)

    @property
    def coef_(self) -> NDArray[np.float64] | sp.csr_matrix:
        """Weights of the features, one row per problem; only for the linear kernel."""
        check_is_fitted(self)
        if self.kernel != "linear":
            raise AttributeError("coef_ is only available for the linear kernel")
        part = self.model_.parts[0]
        coef = self._linear(part)
        return sp.csr_matrix(coef) if sp.issparse(part.X) else np.ascontiguousarray(coef)

    def _linear(self, part: Any) -> NDArray[np.float64]:
        """Compute `coef_` from the part's model."""
        raise NotImplementedError

    def _rows(self, X: RowsLike, least: int = 1) -> Rows:
        X = super()._rows(X, least)
        if self.model_.kernel is not None:
            check_range(X)
        return X

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self._precomputed
        tags.input_tags.sparse = not self._precomputed
        return tags


def one_part(
    rows: Samples, present: NDArray[np.bool_], options: Options, precomputed: bool, comm: Communicator
) -> tuple[Parts, Options]:  # fmt: skip
    """The rows that are `present` as the single part of a search, and the options of the search.

    Those have the memory limit of this machine; if `precomputed`, the rows of K, shape (n, n), become the kernel.
    """
    if precomputed:
        options = replace(options, kernel=Precomputed(np.asarray(rows.X)))
        rows = Samples(numbered(len(rows), np.float64), rows.columns)
    rows = rows.take(np.flatnonzero(present))
    options = replace(options, memory_limit=memory.limit_per_rank(comm))
    return Parts(rows.X, rows.columns, np.zeros(1, np.int64), np.array([0, len(rows)])), options


def expose_search(estimator: BaseEstimator, results: Results | None) -> None:
    """Set the attributes that :class:`sklearn.model_selection.GridSearchCV` has, and `at_grid_end_`, after a search."""
    for name in ("cv_results_", "best_index_", "best_params_", "best_score_", "at_grid_end_"):
        vars(estimator).pop(name, None)
    if results is None:
        return
    estimator.cv_results_ = results.cv_results()
    estimator.best_params_, estimator.best_score_ = dict(results.chosen), results.chosen_score
    estimator.at_grid_end_ = results.at_grid_end
    if not any(np.ndim(value) for value in results.chosen.values()):
        estimator.best_index_ = results.settings.index(results.chosen)


def warn_of_limits(estimator: BaseEstimator, notes: Iterable[str], search: Results | None, depth: int) -> None:
    """Issue the notes on solvers that stopped at a limit, and on a doubtful search; `fit` is `depth` calls above."""
    doubts = [search.limit_note] if search is not None and search.is_doubtful else []
    for note in (*notes, *doubts):
        warnings.warn(f"{type(estimator).__name__}: {note}", ConvergenceWarning, stacklevel=depth + 2)


def _line(progress: Progress) -> str:
    return (
        f"{progress.iterations:>12,} iterations, violation {progress.gap:.3g}, "
        f"objective {progress.objective:.8g}, {progress.active:,} active rows"
    )


@dataclass(eq=False, repr=False, kw_only=True)
class OneProcessSVC(Probabilistic, Labelled, OneProcess):
    """The base of the classifiers: training, prediction and fitted attributes; subclasses add C or nu."""

    decision_function_shape: str = "ovr"

    _method: ClassVar[str]
    _model = SVMModel

    def fit(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on `X`, shape (n, d), dense or CSR, and labels `y`, shape (n,); neither is changed.

        With a precomputed kernel, `X` is K, shape (n, n). Invalid input raises an InputError, a ValueError. A
        ConvergenceWarning is issued if a limit was reached.
        """
        with usual_errors():
            comm = Communicator()
            train = self._labelled(X, y, sample_weight)
            X_checked = in_memory(train.X)
            self._check_rows(X_checked)
            one_of("ovr", "ovo")(self.decision_function_shape, "decision_function_shape =")
            self._switches()
            labels, weights = train.target(), train.row_weights()
            self.classes_ = classes = all_classes(labels[weights > 0], comm)
            require_classes(classes)
            options = self._options(self._class_weight(classes))
            codes = np.searchsorted(classes, labels).clip(0, len(classes) - 1).astype(np.int64, copy=False)
            factor = class_factors(options.class_weight, codes, weights, len(classes), comm)
            options = self._chosen(Samples(train.X, {"code": codes, "C": factor[codes] * weights}), options, comm)
            present = X_checked if (weights > 0).all() else X_checked[np.flatnonzero(weights)]
            training = self._training(present, options, comm)
            part, solutions = fit_part(
                X_checked, codes, options.C * factor[codes] * weights, np.arange(len(codes)), training, nu=self._nu()
            )
            if len(part.classes) < len(classes):
                raise InputError("sample_weight: a class has no row with a positive weight")
            model = SVMModel(
                method=self._method, classes=classes, kernel=training.kernel, C=self._bound(options, solutions),
                **self._one_part(X_checked, part),
            )  # fmt: skip
            if options.probability is not None:
                rows = Samples(train.X, {"code": codes, "C": options.C * factor[codes] * weights})
                model.calibrator = self._calibrated(rows, options.probability, training, solutions, comm)
            expose(self, model)
            self.class_weight_, self.shape_fit_ = factor, tuple(train.X.shape)
            self._take(part, solutions, training.limits.tol)
            self._keep_names(train.columns)
            return self

    def _calibrated(
        self, rows: Samples, form: str, training: PartTraining, solutions: list[Solution], comm: Communicator
    ) -> Calibrator:
        """Calibrator of probabilities, fitted to decisions on left-out rows."""
        k = len(self.classes_)
        folds = folds_to_leave_out(np.bincount(rows["code"][rows["C"] > 0], minlength=k))
        # A solution of nu-SVC also solves C-SVC with C = 1 / r.
        bounds = None if self._nu() is None else np.array([solution.margin for solution in solutions])
        return Calibrator.fit(form, left_out(rows, k, folds, training, bounds), k * (k - 1) // 2, comm)

    def _options(self, factor: ClassWeight) -> SVMOptions:
        """Options of training, given the weights of the classes."""
        raise NotImplementedError

    def _chosen(self, rows: Samples, options: SVMOptions, comm: Communicator) -> SVMOptions:
        """The options after a search on the rows, which have the columns "code" and "C"."""
        return options

    def _nu(self) -> float | None:
        """The nu of nu-SVC; None for C-SVC."""
        return None

    def _bound(self, options: SVMOptions, solutions: list[Solution]) -> float:
        """C of the model."""
        return float(options.C)

    def _take(self, part: PartSVM, solutions: list[Solution], tol: float) -> None:
        """Set the fitted attributes from the single part."""
        self.intercept_ = -part.b if len(self.classes_) == 2 else part.b
        self.n_iter_ = np.array([solution.iterations for solution in solutions])
        self.objective_ = np.array([solution.objective for solution in solutions])
        self.gap_ = np.array([solution.gap for solution in solutions])
        self.solutions_ = solutions
        self._warn(solutions, tol, 2)

    def _linear(self, part: PartSVM) -> NDArray[np.float64]:
        coef = in_memory(part.X).T @ part.weights()
        return np.asarray(coef.T if len(self.classes_) > 2 else -coef.T)

    def decision_function(self, X: RowsLike) -> NDArray[np.float64]:
        """Decisions for `X`, shape (n, d): shape (n,) with two classes, else (n, k), or (n, pairs) for "ovo"."""
        with usual_errors():
            X = self._rows(X)
            if self.decision_function_shape == "ovo" and len(self.classes_) > 2:
                return np.asarray(self.model_.parts[0].pairs(X, self.model_.kernel))
            scores = self._scores(X)
            return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: RowsLike) -> NDArray[np.generic]:
        """Labels for `X`, shape (n, d), or kernel values with all training rows, shape (n, n_train)."""
        with usual_errors():
            scores = self._scores(self._rows(X))
            return np.asarray(self.model_.labels(scores))

    def _probabilities(self, X: RowsLike) -> NDArray[np.float64]:
        with usual_errors():
            decisions = self.model_.parts[0].pairs(self._rows(X), self.model_.kernel)
            return coupled(self._fitted_calibrator().first(decisions), len(self.classes_))

    def _scores(self, X: RowsLike) -> NDArray[np.float64]:
        return np.asarray(self.model_.parts[0].scores(X, self.model_.kernel, len(self.classes_)))


@dataclass(eq=False, repr=False, kw_only=True)
class SMOSVC(OneProcessSVC):
    """Kernel SVM by the exact solver, in one process with all its threads.

    Parameters
    ----------
    C : float, list of float or "grid"
        Upper bound of the coefficients. If several values are given, cross-validation chooses the best; "grid" means 10
        values from 0.1 to 1,000.
    kernel : {"gaussian", "laplacian", "matern32", "matern52", "l1", "rational", "linear", "polynomial", "sigmoid"}
        Or "precomputed", or a callable ``k(A, B) -> K`` on blocks of rows, with K of shape (len(A), len(B)). The
        callable may be called from several threads at once, and its model cannot be saved. scikit-learn's names "rbf"
        and "poly" are accepted, too; scikit-learn's "laplacian" is "l1" here. Wendland's kernels, which end, are
        "wendland0", "wendland2" and "wendland4", for at most `degree` features, and "wendland0_product",
        "wendland2_product" and "wendland4_product", for any number of features.
    gamma : float, list of float or {"scale", "auto", "grid"}
        Gaussian exp(-gamma |x-z|^2); laplacian exp(-gamma |x-z|); matern32 (1 + r) exp(-r), r = sqrt(6 gamma) |x-z|;
        matern52 (1 + r + r^2/3) exp(-r), r = sqrt(10 gamma) |x-z|; l1 exp(-gamma |x-z|_1); rational
        (1 + gamma |x-z|^2 / degree)^-degree; polynomial (gamma x.z + coef0)^degree; sigmoid tanh(gamma x.z + coef0).
        "scale" is 1 / (d var(X)); for laplacian the square root of this, for l1 1 / (d std(X)). "auto" is "scale" with
        a variance of 1. "grid" means 10 values around 1 over the median squared distance.
    degree : int
        At least 1 for "rational", where rounding errors grow with `degree`.
    coef0 : float
    tol : float
        Tolerance: training stops when the largest violation of the optimality conditions is below it, as in LIBSVM.
    class_weight : dict, "balanced" or None
    shrinking : bool
    decision_function_shape : {"ovr", "ovo"}
        One column per class, or one per pair of classes; ignored with two classes.
    cache_gib : float
        Memory for kernel values and packed rows.
    max_iter : int
        Maximum number of pairs of rows to optimise in each two-class problem; -1 for no limit.
    max_time : float or None
        Time limit in seconds for each two-class problem.
    verbose : bool
        Print progress about once per second.
    cv : int or None
        Number of stratified folds for choosing C and gamma. With more than 6,000 rows, more than 3,000 of them in the
        two largest classes, settings are compared inside parts of about 2,000 neighbouring rows; the final model is
        trained on all rows. None means 5 folds, or as many as the rarest class has rows, if C or gamma has several
        values.
    scoring : str
        Score to compare: "accuracy", "balanced_accuracy", "f1", "precision", "recall", "jaccard", or an average of one
        of the last four, such as "f1_macro".
    probability : bool or {"sigmoid", "isotonic"}
        Enable `predict_proba`. True means "sigmoid" (Platt scaling). The sigmoid or isotonic curve is fitted to
        decisions on left-out rows, from one to five stratified folds: enough for 5,000 rows of each pair of classes.
        More than two classes use pairwise coupling, as in LIBSVM.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Attributes
    ----------
    classes_ : ndarray, shape (k,)
    support_ : ndarray, shape (s,)
        Row indices of the support vectors, class by class.
    support_vectors_ : ndarray or CSR, shape (s, d)
    n_support_ : ndarray, shape (k,)
    dual_coef_ : ndarray, shape (k - 1, s)
        Coefficients in scikit-learn's layout.
    intercept_ : ndarray, shape (k (k - 1) / 2,)
    coef_ : ndarray or CSR, shape (k (k - 1) / 2, d)
        Weights of the features; only for the linear kernel.
    probA_, probB_ : ndarray, shape (k (k - 1) / 2,)
        Parameters of the sigmoids, as in SVC.
    objective_ : ndarray, shape (k (k - 1) / 2,)
        Maximum of the dual objective.
    gap_, n_iter_ : ndarray, shape (k (k - 1) / 2,)
        Remaining violation, and number of pairs of rows optimised.
    fit_status_ : int
        0 if all problems met the tolerance, 1 otherwise.
    shape_fit_ : tuple of int
        Shape of the training rows.
    cv_results_, best_params_, best_score_, best_index_
        As in :class:`sklearn.model_selection.GridSearchCV`, if settings were compared or `cv` was given. Settings
        marked "ended" were dropped early: they have scores of their first folds only, and rank last. "stopped": number
        of a setting's solutions that stopped at the iteration limit, so that it may score too low; `fit` warns of many.
    at_grid_end_ : dict
        Chosen values, by parameter, that are an end of their grid of more than two: a wider one may be better.
    model_ : SVMModel
        `save` writes it, `load` reads it; :func:`casvm.export_libsvm` writes LIBSVM's text format.
    n_features_in_ : int

    Notes
    -----
    Training takes about 2 s n nnz flops for s support vectors among n rows with nnz nonzeros each, on all threads; see
    :func:`casvm.solver.smo.solve`. Probabilities cost what :func:`casvm.methods.probability.left_out` does.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from casvm import SMOSVC
    >>> X, y = make_moons(400, noise=0.2, random_state=0)
    >>> model = SMOSVC(C=[1, 10], gamma=[0.1, 1]).fit(X[:300], y[:300])
    >>> sorted(model.best_params_)
    ['C', 'gamma']
    >>> model.score(X[300:], y[300:]) > 0.9
    True
    """

    C: GridLike = 1.0
    cv: int | None = None
    scoring: str = "accuracy"

    _method = "smo"

    def _options(self, factor: ClassWeight) -> SVMOptions:
        options: SVMOptions = from_estimator(SVMOptions, self, class_weight=factor, **self._precomputed_options())
        options.check_search()
        return options

    def _chosen(self, rows: Samples, options: SVMOptions, comm: Communicator) -> SVMOptions:
        """The options with the C and gamma that a search chose, if there are several."""
        results = None
        if options.searches:
            results = choose(rows, self.classes_, options, self._precomputed, comm)
            options = options.with_setting(results)
            if results is None:
                warnings.warn(UNSEARCHED, stacklevel=3)
        expose_search(self, results)
        warn_of_limits(self, (), results, depth=2)
        return options


@dataclass(eq=False, repr=False, kw_only=True)
class SMONuSVC(OneProcessSVC):
    """nu-SVC by the exact solver, in one process with all its threads.

    Parameters, attributes and cost are those of :class:`SMOSVC`, except C and the search. The formulation is LIBSVM's:
    for each pair of classes, the solution is scaled to a margin of 1.

    Parameters
    ----------
    nu : float
        Upper bound on the share of margin errors, and lower bound on the share of support vectors; above 0, at most 1.
        The problem is infeasible if nu exceeds twice the share of the smaller class.
    class_weight, kernel, gamma, degree, coef0, tol, shrinking, decision_function_shape, cache_gib, max_iter
        As for :class:`SMOSVC`. Weights multiply the bound of a row's coefficient, which is 1 before scaling.
    probability, max_time, verbose
        As for :class:`SMOSVC`. Folds are solved as C-SVC with C = 1 / margin of the solution on all rows.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from casvm import SMONuSVC
    >>> X, y = make_moons(400, noise=0.2, random_state=0)
    >>> model = SMONuSVC(nu=0.2, gamma=1.0).fit(X[:300], y[:300])
    >>> int(model.n_support_.sum()) >= 0.2 * 300  # nu is the least share of support vectors
    True
    >>> model.score(X[300:], y[300:]) > 0.9
    True
    """

    nu: float = 0.5

    _method = NU_SVC

    def _options(self, factor: ClassWeight) -> SVMOptions:
        nu_share(self.nu, "nu =")
        options: SVMOptions = from_estimator(
            SVMOptions, self, class_weight=factor, C=1.0, **self._precomputed_options()
        )
        return options

    def _nu(self) -> float | None:
        return float(self.nu)

    def _bound(self, options: SVMOptions, solutions: list[Solution]) -> float:
        """The largest 1 / r of any pair of classes, where r is the margin."""
        return max(solution.margin for solution in solutions)


def choose(
    rows: Samples, classes: NDArray[np.generic], options: SVMOptions, precomputed: bool, comm: Communicator
) -> Results | None:
    """Search for C and gamma by cross-validation inside parts of these rows.

    Parameters
    ----------
    rows : Samples
        Columns: "code" of the class, and "C", the factor of C. X is K, shape (n, n), if `precomputed`.
    classes : ndarray, shape (k,)
    options : SVMOptions
        Its memory limit is ignored; the memory available on this machine is used instead.
    precomputed : bool
    comm : Communicator

    Returns
    -------
    Results or None
        See :func:`casvm.search.classes.search_classes`, also for the cost.

    Raises
    ------
    InputError
        As raised there.
    """
    part, options = one_part(rows, rows["C"] > 0, options, precomputed, comm)
    return search_classes(part, classes, 1, options, comm)


def expose(estimator: BaseEstimator, model: SVMModel) -> None:
    """Set the fitted attributes that SVC has, from all parts of this process."""
    estimator.model_, estimator.classes_ = model, model.classes
    k, parts = len(model.classes), list(model.parts.values())
    codes = np.concatenate([part.codes for part in parts])
    rows = np.concatenate([part.rows for part in parts])
    order = np.lexsort((rows, codes))
    estimator.support_ = rows[order].astype(np.int32 if rows.size == 0 or rows.max() < 2**31 else np.int64)
    estimator.n_support_ = np.bincount(codes, minlength=k).astype(np.int32)
    coef = np.concatenate([part.spread(k) for part in parts], axis=1)[:, order]
    estimator.dual_coef_ = -coef if k == 2 else coef  # positive decisions mean the second class
    vectors = concatenate([part.X for part in parts])
    estimator.support_vectors_ = vectors if len(parts) == 1 and (np.diff(order) == 1).all() else vectors[order]
