"""The exact solver as scikit-learn estimators with one real output per row: regression and one class."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import OutlierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d

from cacore.arrays import usual_errors
from cacore.checks import at_least_zero, positive
from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.data.estimators import ROWS
from cacore.data.rows import LARGEST_TARGET, Rows, RowsLike, check_targets, dense, in_memory
from cacore.data.validation import ColumnsLike, checked_weights, columns_of, validated, with_features
from cacore.errors import InputError
from cacore.learn.options import from_estimator
from cacore.svm.dual import Solution
from cacore.svm.options import DualOptions
from cacore.tuning import GridLike
from casvm.estimators.exact import OneProcess, expose_search, one_part, warn_of_limits
from casvm.model.svr_model import PartSVR, SVRModel
from casvm.options import SCALE, SCALED, UNSEARCHED_VALUES, ValueOptions, nu_share
from casvm.search.regression import search_values
from casvm.solver.problems import EpsilonRegression, NuRegression, OneClassProblem, Problem, solve_one_class
from casvm.solver.smo import PartTraining
from casvm.tasks import deviation

Vector = NDArray[np.float64]

_TRAIN = {"dtype": ("float64", "float32"), "ensure_min_samples": 2, **ROWS}


@dataclass(eq=False, repr=False, kw_only=True)
class OneProcessValues(OneProcess):
    """The base of these estimators: training, outputs and fitted attributes; subclasses define the dual."""

    columns: ColumnsLike = None

    _problem: ClassVar[type[Problem]]
    _model = SVRModel

    def _fit(self, X: Rows, y: Vector, sample_weight: ArrayLike | None) -> Self:
        n = X.shape[0]
        weights = np.ones(n) if sample_weight is None else checked_weights(sample_weight, n)
        present = np.flatnonzero(weights)
        if not present.size:
            raise InputError("sample_weight: every weight is zero; at least one row is needed to train on")
        self._check_rows(X)
        options, params = self._selected_options(X, y, weights)
        X_present = X
        if len(present) < n:
            X_present = dense(X)[np.ix_(present, present)] if self._precomputed else X[present]
        training = self._training(X_present, options, Communicator())
        solutions = self._solutions(X_present, y[present], weights[present], params, training)
        beta = np.stack([solution.beta for solution in solutions], axis=1)
        support = np.flatnonzero(beta.any(axis=1))
        rows = present[support]
        part = PartSVR(
            X[rows] if training.kernel is not None else np.zeros((len(rows), 0)), rows, self._columns(beta[support]),
            np.array([solution.b for solution in solutions]),
        )  # fmt: skip
        self.model_ = self._modeled(
            method="smo",
            svm_type=self._problem.svm_type,
            kernel=training.kernel,
            params=params,
            **self._one_part(X, part),
        )
        self._take(part, solutions, training.limits.tol)
        self.shape_fit_ = tuple(X.shape)
        return self

    def _columns(self, beta: Vector) -> Vector:
        """Coefficients, shape (s, t), as the part's model holds them."""
        return beta[:, 0]

    def _modeled(self, **fields: Any) -> SVRModel:
        """The model with these fields."""
        return SVRModel(**fields)

    def _selected_options(self, X: Rows, y: Vector, weights: Vector) -> tuple[DualOptions, dict[str, float]]:
        """Options of training on these rows, and the values of C, epsilon and nu, as far as the estimator has them."""
        options: DualOptions = from_estimator(DualOptions, self, **self._precomputed_options())
        return options, self._params()

    def _params(self) -> dict[str, float]:
        """The checked values of C, epsilon and nu, as far as the estimator has them."""
        checks = {"C": positive, "epsilon": at_least_zero, "nu": nu_share}
        return {name: float(checks[name](getattr(self, name), f"{name} =")) for name in self._problem.parameters}

    @property
    def _levels(self) -> tuple[float, ...]:
        """Levels of the quantiles, ascending."""
        return ()

    def _solutions(
        self, X: Rows, y: Vector, weights: Vector, params: dict[str, float], training: PartTraining
    ) -> list[Solution]:  # fmt: skip
        """Solutions of the duals of all outputs, with these values of C, epsilon and nu; all weights are above 0."""
        return self._problem(params, self._levels).solve(Samples(X, {"y": y, "weight": weights}), training)

    def _take(self, part: PartSVR, solutions: list[Solution], tol: float) -> None:
        """Set the fitted attributes."""
        self.support_ = part.rows.astype(np.int32 if part.rows.max(initial=0) < 2**31 else np.int64)
        self.support_vectors_, self.dual_coef_ = part.X, part.columns.T
        self.n_support_ = np.array([len(part.rows)], np.int32)
        self.intercept_ = part.b.copy()
        self.n_iter_, self.objective_, self.gap_, self.solution_ = self._statistics(solutions)
        self._warn(solutions, tol, 3, "quantiles")

    def _statistics(self, solutions: list[Solution]) -> tuple[Any, Any, Any, Any]:
        """The attributes `n_iter_`, `objective_`, `gap_` and `solution_`."""
        (solution,) = solutions
        return solution.iterations, solution.objective, solution.gap, solution

    def _linear(self, part: PartSVR) -> Vector:
        return np.asarray(in_memory(part.X).T @ part.columns).T

    def _values(self, X: RowsLike) -> Vector:
        """Outputs for `X`, shape (n, d)."""
        with usual_errors():
            X = self._rows(X)
            return self.model_.parts[0].predict(X, self.model_.kernel)


@dataclass(eq=False, repr=False, kw_only=True)
class _Regressor(RegressorMixin, OneProcessValues):
    """The base of the regressors: they have targets and predict them."""

    C: GridLike = 1.0

    def fit(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on `X`, shape (n, d), dense or CSR, and targets `y`, shape (n,); neither is changed.

        With a precomputed kernel, `X` is K, shape (n, n). Rows of weight 0 are ignored. Invalid input raises an
        InputError, a ValueError. A ConvergenceWarning is issued if a limit was reached, and a warning if all targets
        are equal, since the model is then this constant.
        """
        with usual_errors():
            table, named = with_features(self, X, y, sample_weight), y
            X, y = validated(self, table, y, y_numeric=True, **_TRAIN)
            columns = columns_of(table, named, vars(self).get("encoding_"))
            try:
                targets = np.asarray(column_or_1d(y, warn=True), np.float64)
            except ValueError as error:
                raise InputError(f"y: {error}") from error
            check_targets(targets, "y", LARGEST_TARGET, Communicator())
            if np.ptp(targets) == 0:
                warnings.warn(f"all targets are {targets[0]:g}: the model is this constant", stacklevel=2)
            self._fit(X, targets, sample_weight)
            self._keep_names(columns)
            return self

    def predict(self, X: RowsLike) -> Vector:
        """Predictions for `X`, shape (n, d), or kernel values with all training rows, shape (n, n_train)."""
        return self._values(X)


@dataclass(eq=False, repr=False, kw_only=True)
class SearchedRegressor(_Regressor):
    """Base of the regressors whose parameters cross-validation may choose."""

    tol: float | str | None = None
    cv: int | None = None

    def _selected_options(self, X: Rows, y: Vector, weights: Vector) -> tuple[DualOptions, dict[str, float]]:
        comm = Communicator()
        options: ValueOptions = from_estimator(ValueOptions, self, **self._precomputed_options())
        unit = 1.0
        if options.searches or SCALE in (options.C, options.epsilon, options.tol):
            unit = deviation(y, weights, comm)
        if options.tol == SCALE:
            options = replace(options, tol=SCALED["tol"] * unit)
        results = None
        if options.searches:
            rows = Samples(X, {"y": y, "weight": weights})
            part, looking = one_part(rows, weights > 0, options, self._precomputed, comm)
            results = search_values(part, len(part), 1, unit, looking, comm)
            options = options.with_setting(results)
            if results is None:
                warnings.warn(UNSEARCHED_VALUES, stacklevel=4)
        expose_search(self, results)
        warn_of_limits(self, (), results, depth=3)
        return options, self._problem.of(options, unit).params


@dataclass(eq=False, repr=False, kw_only=True)
class SMOSVR(SearchedRegressor):
    """Support vector regression (epsilon-SVR) by the exact solver, in one process with all its threads.

    Parameters
    ----------
    C : float, list of float or {"scale", "grid"}
        Upper bound of the coefficients' magnitude, multiplied by the weight of the row.
    epsilon : float, list of float or {"scale", "grid"}
        Errors up to this cost nothing; at least 0. For C "scale" means the targets' standard deviation, for epsilon a
        tenth of it. With several values, or "grid" for default values, cross-validation chooses those of C, epsilon and
        gamma with the smallest squared error.
    kernel : {"gaussian", "laplacian", "matern32", "matern52", "l1", "rational", "linear", "polynomial", "sigmoid"}
        Or "precomputed", or a callable; see :class:`SMOSVC`.
    gamma : float, list of float or {"scale", "auto", "grid"}
        As for :class:`SMOSVC`; "grid" means 6 values.
    degree : int
    coef0 : float
    tol : float, "scale" or None
        Tolerance: training stops when the largest violation of the optimality conditions is below it, as in LIBSVM. In
        units of the targets; "scale" is a thousandth of their standard deviation. None means "scale" if C or epsilon is
        "scale" or "grid", and 0.001 otherwise.
    shrinking : bool
    cache_gib : float
        Memory for kernel values and packed rows.
    max_iter : int
        Maximum number of pairs of rows to optimise; -1 for no limit.
    max_time : float or None
        Time limit in seconds.
    verbose : bool
        Print progress about once per second.
    cv : int or None
        Number of folds for this choice. None means 5, or with more than 5,000 rows one held-out tenth. With more than
        6,000 rows, settings are compared inside parts of about 2,000 neighbouring rows; the final model is trained on
        all rows.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Attributes
    ----------
    support_ : ndarray, shape (s,)
        Row indices of the support vectors.
    support_vectors_ : ndarray or CSR, shape (s, d)
    n_support_ : ndarray, shape (1,)
    dual_coef_ : ndarray, shape (1, s)
        Coefficients alpha - alpha*.
    intercept_ : ndarray, shape (1,)
    coef_ : ndarray or CSR, shape (1, d)
        Weights of the features; only for the linear kernel.
    objective_ : float
        Maximum of the dual objective.
    gap_ : float
        Remaining violation.
    n_iter_ : int
        Number of pairs of rows optimised.
    fit_status_ : int
        0 if the tolerance was met, 1 otherwise.
    shape_fit_ : tuple of int
        Shape of the training rows.
    cv_results_, best_params_, best_score_, best_index_
        As in :class:`sklearn.model_selection.GridSearchCV`, if settings were compared; scores are R^2.
    at_grid_end_ : dict
        Chosen values, by parameter, that are an end of their grid of more than two: a wider one may be better.
    model_ : SVRModel
        `save` writes it, `load` reads it; :func:`casvm.export_libsvm` writes LIBSVM's text format.
    n_features_in_ : int

    Notes
    -----
    The problem is LIBSVM's, but with one variable per row, alpha - alpha*, whose objective has a kink at 0, instead of
    LIBSVM's two. So rows of K have n values, and all rows within epsilon of the model can be shrunk. Training takes
    about 2 s n nnz flops for s support vectors among n rows with nnz nonzeros each, on all threads; see
    :func:`casvm.solver.smo.solve`.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from casvm import SMOSVR
    >>> X, y = make_friedman1(400, n_features=5, random_state=0)
    >>> model = SMOSVR(C=100, epsilon=0.1, gamma=1.0).fit(X[:300], y[:300])
    >>> len(model.support_) <= 300, model.score(X[300:], y[300:]) > 0.9
    (True, True)
    """

    epsilon: GridLike = 0.1

    _problem = EpsilonRegression


@dataclass(eq=False, repr=False, kw_only=True)
class SMONuSVR(_Regressor):
    """nu-SVR by the exact solver: nu replaces epsilon, which the solution determines.

    Parameters, attributes and cost are those of :class:`SMOSVR`, except epsilon and the search: C and gamma are one
    value each, since settings are compared by squared errors of solutions with a known epsilon.

    Parameters
    ----------
    nu : float
        Upper bound on the share of rows with errors above epsilon, and lower bound on the share of support vectors;
        above 0, at most 1.
    C, kernel, gamma, degree, coef0, tol, shrinking, cache_gib, max_iter, max_time, verbose
        As for :class:`SMOSVR`.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Attributes
    ----------
    epsilon_ : float
        Epsilon at the solution.

    Notes
    -----
    Here each row has two variables, alpha and alpha*, as in LIBSVM; a row of K is computed once, and has 2n values.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from casvm import SMONuSVR
    >>> X, y = make_friedman1(400, n_features=5, random_state=0)
    >>> model = SMONuSVR(nu=0.5, C=100, gamma=1.0).fit(X[:300], y[:300])
    >>> model.epsilon_ > 0, model.score(X[300:], y[300:]) > 0.9
    (True, True)
    """

    nu: float = 0.5

    _problem = NuRegression

    C: float = 1.0

    @property
    def epsilon_(self) -> float:
        """Epsilon at the solution."""
        check_is_fitted(self)
        return float(self.solution_.margin)


@dataclass(eq=False, repr=False, kw_only=True)
class SMOOneClassSVM(OutlierMixin, OneProcessValues):
    """One-class SVM by the exact solver, in one process with all its threads.

    Parameters, attributes and cost are those of :class:`SMOSVR`, except C and epsilon.

    Parameters
    ----------
    nu : float
        Upper bound on the share of outliers, and lower bound on the share of support vectors; above 0, at most 1. The
        bound on the outliers holds exactly for training rows; in LIBSVM's solutions it is exceeded for small nu.
    kernel, gamma, degree, coef0, tol, shrinking, cache_gib, max_iter, max_time, verbose
        As for :class:`SMOSVR`.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Attributes
    ----------
    offset_ : float
        The decision function is :meth:`score_samples` minus this.

    Examples
    --------
    >>> import numpy as np
    >>> from casvm import SMOOneClassSVM
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> model = SMOOneClassSVM(nu=0.1, gamma=0.5).fit(X)
    >>> model.predict([[0.0, 0.0], [9.0, 9.0]]).tolist()
    [1, -1]
    """

    nu: float = 0.5

    _problem = OneClassProblem

    def fit(self, X: RowsLike, y: object = None, sample_weight: ArrayLike | None = None) -> Self:
        """Train on `X`, shape (n, d), dense or CSR, which is not changed; `y` is ignored.

        With a precomputed kernel, `X` is K, shape (n, n). Rows of weight 0 are ignored. Invalid input raises an
        InputError, a ValueError. A ConvergenceWarning is issued if a limit was reached.
        """
        with usual_errors():
            table = with_features(self, X, None, sample_weight)
            X = validated(self, table, **_TRAIN)
            columns = columns_of(table, None, vars(self).get("encoding_"))
            self._fit(X, np.zeros(X.shape[0]), sample_weight)
            self._keep_names(columns)
            return self

    def _solutions(
        self, X: Rows, y: Vector, weights: Vector, params: dict[str, float], training: PartTraining
    ) -> list[Solution]:  # fmt: skip
        return [solve_one_class(X, weights, params["nu"], training)]

    @property
    def offset_(self) -> float:
        """Offset of the decision function from the scores."""
        check_is_fitted(self)
        return -float(self.intercept_[0])

    def decision_function(self, X: RowsLike) -> Vector:
        """Decisions for `X`, shape (n, d): shape (n,), at least 0 for inliers."""
        return self._values(X)

    def score_samples(self, X: RowsLike) -> Vector:
        """Scores for `X`, shape (n, d): decisions plus the offset."""
        values = self._values(X)
        return values + self.offset_

    def predict(self, X: RowsLike) -> NDArray[np.int64]:
        """Predictions for `X`, shape (n, d): 1 for inliers, -1 for outliers."""
        values = self._values(X)
        return self.model_.answers(values)
