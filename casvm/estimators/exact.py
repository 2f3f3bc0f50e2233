"""The exact solver as scikit-learn classifiers: C-SVC and nu-SVC."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cacore.checks import one_of
from cacore.comm import Communicator
from cacore.data.classifier import Labelled
from cacore.data.dataset import Samples
from cacore.data.labels import all_classes, class_factors, require_classes
from cacore.data.rows import concatenate
from cacore.errors import InputError
from cacore.kernels.given import Precomputed, numbered
from cacore.learn.options import from_estimator
from cacore.machine import memory
from cacore.probability.calibrator import Calibrator
from cacore.probability.coupling import coupled
from cacore.probability.left_out import folds_to_leave_out
from cacore.svm.classifier import Probabilistic
from cacore.svm.dual import Solution
from cacore.tuning.results import Results
from casvm.estimators.one_process import OneProcess, Setting
from casvm.methods.left_out import PartTraining, left_out
from casvm.model.libsvm import NU_SVC
from casvm.model.model import SVMModel
from casvm.model.part import PartSVM
from casvm.options import UNSEARCHED, SVMOptions
from casvm.search.choose import search
from casvm.solver.part import fit_part
from casvm.value_options import nu_share
from partition.redistribute import Parts


@dataclass(eq=False, repr=False, kw_only=True)
class OneProcessSVC(Probabilistic, Labelled, OneProcess):
    """Training, prediction and fitted attributes of the classifiers; C or nu is theirs."""

    decision_function_shape: str = "ovr"

    _method: ClassVar[str]

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on `X`, shape (n, d), dense or CSR, and labels `y`, shape (n,); neither is changed.

        With a precomputed kernel, `X` is K, shape (n, n). Raises InputError, a ValueError, on what cannot
        be used; warns with ConvergenceWarning if a limit was reached.
        """
        comm = Communicator()
        train = self._labelled(X, y, sample_weight)
        self._check_rows(train.X)
        one_of("ovr", "ovo")(self.decision_function_shape, "decision_function_shape =")
        self._switches()
        labels, weights = train.target(), train.row_weights()
        self.classes_ = classes = all_classes(labels[weights > 0], comm)
        require_classes(classes)
        options = self._options(self._class_weight(classes))
        codes = np.clip(np.searchsorted(classes, labels), 0, len(classes) - 1).astype(np.int64)
        factor = class_factors(options.class_weight, codes, weights, len(classes), comm)
        options = self._chosen(Samples(train.X, {"code": codes, "C": factor[codes] * weights}), options, comm)
        setting = self._setting(train.X, options, comm)
        part, solutions = fit_part(
            train.X, codes, options.C * factor[codes] * weights, np.arange(len(codes)), setting.kernel, setting.limits,
            setting.cache_bytes, watch=setting.watch, nu=self._nu(),
        )  # fmt: skip
        if len(part.classes) < len(classes):
            raise InputError("a class has no row with a positive weight")
        model = SVMModel(
            method=self._method, classes=classes, kernel=setting.kernel, C=self._bound(options, solutions),
            **self._one_part(train.X, part),
        )  # fmt: skip
        if options.probability is not None:
            rows = Samples(train.X, {"code": codes, "C": options.C * factor[codes] * weights})
            model.calibrator = self._calibrated(rows, options.probability, setting, solutions, comm)
        expose(self, model)
        self.class_weight_ = factor
        self._take(part, solutions)
        self._keep_names(train.columns)
        return self

    def _calibrated(
        self, rows: Samples, form: str, setting: Setting, solutions: list[Solution], comm: Communicator
    ) -> Calibrator:
        """The calibrator of probabilities, from rows that are left out."""
        k = len(self.classes_)
        folds = folds_to_leave_out(np.bincount(rows["code"][rows["C"] > 0], minlength=k))
        training = PartTraining(setting.kernel, setting.limits, setting.cache_bytes)
        # A solution of nu-SVC is one of C-SVC with C = 1 / r.
        bounds = None if self._nu() is None else np.array([one.margin for one in solutions])
        return Calibrator.fit(form, left_out(rows, k, folds, training, bounds), k * (k - 1) // 2, comm)

    def _options(self, factor: Any) -> SVMOptions:
        """The options of training, given the weights of the classes."""
        raise NotImplementedError

    def _chosen(self, rows: Samples, options: SVMOptions, comm: Communicator) -> SVMOptions:
        """The options with what is chosen from the rows, with the columns "code" and "C"."""
        return options

    def _nu(self) -> float | None:
        """The nu of nu-SVC; None for C-SVC."""
        return None

    def _bound(self, options: SVMOptions, solutions: list[Solution]) -> float:
        """The C of the model."""
        return float(options.C)

    def _take(self, part: PartSVM, solutions: list[Solution]) -> None:
        """The fitted attributes of the one part."""
        self.intercept_ = -part.b if len(self.classes_) == 2 else part.b
        self.n_iter_ = np.array([one.iterations for one in solutions])
        self.objective_ = np.array([one.objective for one in solutions])
        self.gap_ = np.array([one.gap for one in solutions])
        self.solutions_ = solutions
        self._warn(solutions, 2)

    def _linear(self, part: PartSVM) -> NDArray[np.float64]:
        coef = part.X.T @ part.weights()
        return np.asarray(coef.T if len(self.classes_) > 2 else -coef.T)

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Decisions for `X`, shape (n, d): shape (n,) with two classes, else (n, k), or (n, pairs) for "ovo"."""
        X = self._rows(X)
        if self.decision_function_shape == "ovo" and len(self.classes_) > 2:
            return np.asarray(self.model_.parts[0].pairs(X, self.model_.kernel))
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels for `X`, shape (n, d), or kernel values with all training rows, shape (n, n_train)."""
        scores = self._scores(self._rows(X))
        return np.asarray(self.model_.labels(scores))

    def _probabilities(self, X: Any) -> NDArray[np.float64]:
        decisions = self.model_.parts[0].pairs(self._rows(X), self.model_.kernel)
        return coupled(self._fitted_calibrator().first(decisions), len(self.classes_))

    def _scores(self, X: Any) -> NDArray[np.float64]:
        return np.asarray(self.model_.parts[0].scores(X, self.model_.kernel, len(self.classes_)))


@dataclass(eq=False, repr=False, kw_only=True)
class SMOSVC(OneProcessSVC):
    """Kernel SVM by the exact solver, in one process and all its threads.

    Parameters
    ----------
    C : float, list of float or "grid"
        Bound of the coefficients. Of several, the best one by cross-validation; "grid": 10 from 0.1 to 1,000.
    kernel : {"gaussian", "laplacian", "matern32", "matern52", "l1", "rational", "linear", "polynomial", "sigmoid"}
        Or "precomputed", or a callable ``k(A, B) -> K`` on blocks of rows, shape (len(A), len(B)), which may be called
        from several threads at once; its model is not written to a file. scikit-learn's names "rbf" and "poly" are
        understood, and its "laplacian" is "l1".
    gamma : float, list of float or {"scale", "auto", "grid"}
        Gaussian exp(-gamma |x-z|^2); laplacian exp(-gamma |x-z|); matern32 (1 + r) exp(-r), r = sqrt(6 gamma) |x-z|;
        matern52 (1 + r + r^2/3) exp(-r), r = sqrt(10 gamma) |x-z|; l1 exp(-gamma |x-z|_1); rational
        (1 + gamma |x-z|^2 / degree)^-degree; polynomial (gamma x.z + coef0)^degree; sigmoid tanh(gamma x.z + coef0).
        "scale" is 1 / (d var(X)), of laplacian its square root, of l1 1 / (d std(X)); "auto" is "scale" of a variance
        of 1. "grid": 10 around 1 over the median squared distance.
    degree : int
        For "rational" at least 1; it costs about `degree` units of rounding.
    coef0 : float
    tol : float
        Largest violation of the optimality conditions at which training stops, as LIBSVM's.
    class_weight : dict, "balanced" or None
    shrinking : bool
    decision_function_shape : {"ovr", "ovo"}
        One column a class, or one a pair of classes; nothing to choose with two classes.
    cache_gib : float
        Memory for kernel values and packed rows.
    max_iter : int
        Pairs of rows optimised, of each problem of two classes; -1 for no limit.
    max_time : float or None
        Seconds, of each problem of two classes.
    verbose : bool
        Print how far it is, about once a second.
    cv : int or None
        Stratified folds by which C and gamma are chosen, of more than 6,000 rows inside parts of about 2,000 that lie
        together; then all rows are trained on once. None: 5 where there are several, or as many as the rarest class
        has rows.
    scoring : str
        What is compared: "accuracy", "balanced_accuracy", "f1", "precision", "recall", "jaccard", or an average of
        one of the last four, as "f1_macro".
    probability : bool or {"sigmoid", "isotonic"}
        Whether there is `predict_proba`. True is "sigmoid", Platt's; either is fitted to decisions on rows that are
        left out, of one to five stratified folds: as many as 5,000 rows of each pair of classes need. Several classes
        by pairwise coupling, as in LIBSVM.

    Attributes
    ----------
    classes_ : ndarray, shape (k,)
    support_ : ndarray, shape (s,)
        Rows of the support vectors, class by class.
    support_vectors_ : ndarray or CSR, shape (s, d)
    n_support_ : ndarray, shape (k,)
    dual_coef_ : ndarray, shape (k - 1, s)
        Coefficients in scikit-learn's layout.
    intercept_ : ndarray, shape (k (k - 1) / 2,)
    coef_ : ndarray or CSR, shape (k (k - 1) / 2, d)
        Of the linear kernel.
    probA_, probB_ : ndarray, shape (k (k - 1) / 2,)
        Of the sigmoids, as SVC's.
    objective_ : ndarray, shape (k (k - 1) / 2,)
        Of the dual, maximised.
    gap_, n_iter_ : ndarray, shape (k (k - 1) / 2,)
        Violation left; pairs of rows optimised.
    fit_status_ : int
        0 if all problems met the tolerance, 1 otherwise.
    cv_results_, best_params_, best_score_, best_index_
        As of :class:`sklearn.model_selection.GridSearchCV`, where there was a choice or `cv` was given; settings that
        were ended early, "ended", have scores of their first folds only, and rank last.
    model_ : SVMModel
        ``model_.save(path)`` writes it; :func:`casvm.export_libsvm` writes LIBSVM's text format.
    n_features_in_ : int

    Notes
    -----
    About 2 s n nnz flops for s support vectors among n rows of nnz nonzeros, on all threads; see
    :func:`casvm.solver.smo.solve`. Probabilities cost what :func:`casvm.methods.left_out.left_out` does.
    """

    C: Any = 1.0
    cv: int | None = None
    scoring: str = "accuracy"

    _method = "smo"

    def _options(self, factor: Any) -> SVMOptions:
        options: SVMOptions = from_estimator(SVMOptions, self, class_weight=factor, **self._known())
        options.check_search()
        return options

    def _chosen(self, rows: Samples, options: SVMOptions, comm: Communicator) -> SVMOptions:
        """The options with the C and gamma of a search, where there is a choice."""
        found = None
        if options.searches:
            found = choose(rows, self.classes_, options, self._precomputed, comm)
            options = options.with_setting(found)
            if found is None:
                warnings.warn(UNSEARCHED, stacklevel=3)
        expose_search(self, found)
        return options


@dataclass(eq=False, repr=False, kw_only=True)
class SMONuSVC(OneProcessSVC):
    """nu-SVC by the exact solver, in one process and all its threads.

    Parameters, attributes and cost are those of :class:`SMOSVC`, but for C and its search. LIBSVM's formulation, scaled
    as LIBSVM does to a margin of 1, for each pair of classes.

    Parameters
    ----------
    nu : float
        Above 0, at most 1: at most this share of the rows are errors, at least this share support vectors. It is
        infeasible above twice the share of the smaller class.
    kernel, gamma, degree, coef0, tol, class_weight, shrinking, decision_function_shape, cache_gib, max_iter
        As for :class:`SMOSVC`. Weights multiply the bound of a row's coefficient, which is 1 before the scaling.
    max_time, verbose, probability
        As for :class:`SMOSVC`. Folds are solved as C-SVC with the C that is 1 over the margin of all rows.
    """

    nu: float = 0.5

    _method = NU_SVC

    def _options(self, factor: Any) -> SVMOptions:
        nu_share(self.nu, "nu =")
        options: SVMOptions = from_estimator(SVMOptions, self, class_weight=factor, C=1.0, **self._known())
        return options

    def _nu(self) -> float | None:
        return float(self.nu)

    def _bound(self, options: SVMOptions, solutions: list[Solution]) -> float:
        """1 / r, of the pair of classes where that is largest."""
        return max(one.margin for one in solutions)


def choose(
    rows: Samples, classes: NDArray[Any], options: SVMOptions, precomputed: bool, comm: Communicator
) -> Results | None:
    """C and gamma by cross-validation inside parts of these rows.

    Parameters
    ----------
    rows : Samples
        With the columns "code" of the class and "C", what C is multiplied by; X is K, shape (n, n), if `precomputed`.
    classes : ndarray, shape (k,)
    options : SVMOptions
        Without a limit of memory: what the machine has left is asked for here.
    precomputed : bool
    comm : Communicator

    Returns
    -------
    Results or None
        See :func:`casvm.search.choose.search`, whose cost this is.

    Raises
    ------
    InputError
        As there.
    """
    limit = memory.limit_per_rank(comm)
    if precomputed:
        options = replace(options, kernel=Precomputed(np.asarray(rows.X)))
        rows = Samples(numbered(len(rows), np.float64), rows.columns)
    rows = rows.take(np.flatnonzero(rows["C"] > 0))
    one = Parts(rows.X, rows.columns, np.zeros(1, np.int64), np.array([0, len(rows)]))
    return search(one, classes, 1, replace(options, memory_limit=limit), comm)


def expose_search(estimator: Any, found: Results | None) -> None:
    """Give an estimator the attributes of a search that :class:`sklearn.model_selection.GridSearchCV` has."""
    for name in ("cv_results_", "best_index_", "best_params_", "best_score_"):
        vars(estimator).pop(name, None)
    if found is None:
        return
    estimator.cv_results_ = found.cv_results()
    estimator.best_params_, estimator.best_score_ = dict(found.chosen), found.chosen_score
    if not any(np.ndim(value) for value in found.chosen.values()):
        estimator.best_index_ = found.settings.index(found.chosen)


def expose(estimator: Any, model: SVMModel) -> None:
    """Give an estimator the fitted attributes that SVC has, of this process' parts together."""
    estimator.model_, estimator.classes_ = model, model.classes
    k, parts = len(model.classes), list(model.parts.values())
    codes = np.concatenate([part.codes for part in parts])
    rows = np.concatenate([part.rows for part in parts])
    order = np.lexsort((rows, codes))
    estimator.support_ = rows[order].astype(np.int32 if rows.size == 0 or rows.max() < 2**31 else np.int64)
    estimator.n_support_ = np.bincount(codes, minlength=k).astype(np.int32)
    coef = np.concatenate([part.spread(k) for part in parts], axis=1)[:, order]
    estimator.dual_coef_ = -coef if k == 2 else coef  # a positive decision is for the second class
    vectors = concatenate([part.X for part in parts])
    estimator.support_vectors_ = vectors if len(parts) == 1 and (np.diff(order) == 1).all() else vectors[order]
