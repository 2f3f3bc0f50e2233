"""scikit-learn classifiers: the exact solver, and the methods that train in parts."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data

from cacore import memory, threads
from cacore.comm import Communicator, as_communicator
from cacore.errors import InputError
from cacore.memory import GIB
from casvm import bkmsvm, casvm, cpsvm, fcfssvm
from casvm.model import SVMModel
from casvm.options import Fit, Method, Options
from casvm.part import Learning, PartSVM, fit_part, votes
from casvm.smo import Limits, Progress, Solution
from casvm.training import Labelled, all_classes, fit, numeric_gamma, one_class
from partition import KBalance, Partitioner

_ALIASES = {"rbf": "gaussian", "poly": "polynomial"}
_NAMED = {
    "random": casvm.METHOD, "fcfs": fcfssvm.METHOD, "bkm": bkmsvm.METHOD, "kmeans": cpsvm.METHOD,
    "kbalance": Method("kbalance", "parts by K-balance", KBalance),
}  # fmt: skip
_KINDS = ("float64", "float32")


class _SVC(ClassifierMixin, BaseEstimator):
    """What both classifiers share."""

    C: Any
    kernel: Any
    gamma: Any
    degree: Any
    coef0: Any
    tol: Any
    cache_gib: Any
    max_iter: Any
    max_time: Any
    class_weight: Any
    model_: SVMModel

    def _options(self, classes: NDArray[Any], limit: int, **more: Any) -> Options:
        if not isinstance(self.kernel, str):
            raise InputError(f"kernel {self.kernel!r}: give the name of one")
        for name in ("C", "gamma", "degree", "coef0", "tol", "cache_gib", "max_iter", "max_time"):
            value = getattr(self, name)
            usual = (name == "gamma" and isinstance(value, str)) or (name == "max_time" and value is None)
            if not (usual or isinstance(value, Real)):
                raise InputError(f"{name} = {value!r}: it must be a number")
        if not 0 <= self.cache_gib < float("inf"):
            raise InputError(f"cache_gib = {self.cache_gib:g}: it must be a number of at least 0")
        return Options(
            C=self.C, kind=_ALIASES.get(self.kernel, self.kernel), gamma=self.gamma, degree=self.degree,
            coef0=self.coef0, class_weight=self._class_weight(classes), cache_bytes=int(self.cache_gib * GIB),
            limits=Limits(self.tol, self.max_iter, float("inf") if self.max_time is None else self.max_time),
            memory_limit=limit, **more,
        ).checked()  # fmt: skip

    def _class_weight(self, classes: NDArray[Any]) -> Any:
        if self.class_weight is None or self.class_weight == "balanced":
            return self.class_weight
        if not isinstance(self.class_weight, dict):
            raise InputError(f"class_weight {self.class_weight!r}: give a dict, 'balanced' or None")
        known = dict(zip(classes.tolist(), range(len(classes)), strict=True))
        unknown = [label for label in self.class_weight if label not in known]
        if unknown:
            raise InputError(f"class_weight: there is no class {unknown[0]!r} among the labels")
        for label, weight in self.class_weight.items():
            if not (isinstance(weight, Real) and 0 < float(weight) < float("inf")):
                raise InputError(f"class_weight of {label!r} = {weight!r}: it must be a positive number")
        return {known[label]: float(weight) for label, weight in self.class_weight.items()}

    def _checked(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None, least: int = 1) -> Labelled:
        try:
            X, y = validate_data(
                self, X, y, accept_sparse="csr", dtype=_KINDS, order="C", accept_large_sparse=False,
                ensure_min_samples=least,
            )  # fmt: skip
            check_classification_targets(y)
            y = column_or_1d(y, warn=True)
        except ValueError as error:
            raise InputError(str(error)) from error
        y = np.asarray(y)
        if sample_weight is None:
            return Labelled(X, y)
        try:
            weights = check_array(sample_weight, ensure_2d=False, dtype=np.float64, ensure_min_samples=0)
        except ValueError as error:
            raise InputError(f"sample_weight: {error}") from error
        if weights.shape != (X.shape[0],):
            raise InputError(f"sample_weight has shape {weights.shape}; {X.shape[0]} rows need {X.shape[0]} weights")
        if (weights < 0).any():
            raise InputError("sample_weight: negative weights cannot be used")
        return Labelled(X, y, weights)

    def _rows(self, X: Any, least: int = 1) -> Any:
        """Rows to predict, as the model has them."""
        check_is_fitted(self, "model_")
        try:
            X = validate_data(
                self, X, reset=False, accept_sparse="csr", dtype=self.model_.dtype, order="C",
                accept_large_sparse=False, ensure_min_samples=least,
            )  # fmt: skip
        except ValueError as error:
            raise InputError(str(error)) from error
        return X

    def _expose(self, model: SVMModel, X: Any) -> None:
        """The fitted attributes that SVC has, of this process' parts together."""
        self.model_, self.classes_ = model, model.classes
        k, two = len(model.classes), len(model.classes) == 2
        parts = list(model.parts.values())
        codes = np.concatenate([part.classes.repeat(part.n_support) for part in parts])
        rows = np.concatenate([part.rows for part in parts])
        order = np.lexsort((rows, codes))
        self.support_ = rows[order].astype(np.int32 if rows.size == 0 or rows.max() < 2**31 else np.int64)
        self.n_support_ = np.bincount(codes, minlength=k).astype(np.int32)
        coef = np.concatenate([_spread(part, k) for part in parts], axis=1)[:, order]
        self.dual_coef_ = -coef if two else coef  # a positive decision is for the second class
        vectors = [part.X for part in parts]
        if len(parts) == 1 and (np.diff(order) == 1).all():
            self.support_vectors_ = vectors[0]
        else:
            stacked = sp.vstack(vectors, format="csr") if sp.issparse(vectors[0]) else np.concatenate(vectors)
            self.support_vectors_ = stacked[order]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _spread(part: PartSVM, k: int) -> NDArray[np.float64]:
    """A part's coefficients in the layout of all k classes; the pairs that it does not hold have 0."""
    out = np.zeros((k - 1, len(part.rows)))
    mine = part.classes.repeat(part.n_support)
    for i, code in enumerate(part.classes):
        here = mine == code
        for j, other in enumerate(part.classes):
            if i != j:
                out[other - (other > code)][here] = part.coef[j - (j > i)][here]
    return out


class SMOSVC(_SVC):
    """Kernel SVM by the exact solver, in one process and all its threads.

    Parameters
    ----------
    C : float
        Bound of the coefficients.
    kernel : {"gaussian", "linear", "polynomial", "sigmoid", "precomputed"}
        scikit-learn's names "rbf" and "poly" are understood.
    gamma : float or {"scale", "auto"}
        exp(-gamma |x-z|^2); (gamma x.z + coef0)^degree; tanh(gamma x.z + coef0). "scale" is 1 / (d var(X)).
    degree : int
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
    objective_ : ndarray, shape (k (k - 1) / 2,)
        Of the dual, maximised.
    gap_, n_iter_ : ndarray, shape (k (k - 1) / 2,)
        Violation left; pairs of rows optimised.
    fit_status_ : int
        0 if all problems met the tolerance, 1 otherwise.
    model_ : SVMModel
        ``model_.save(path)`` writes it; :func:`casvm.export_libsvm` writes LIBSVM's text format.
    n_features_in_ : int

    Notes
    -----
    About 2 s n nnz flops for s support vectors among n rows of nnz nonzeros, on all threads; see
    :func:`casvm.smo.solve`. Probabilities: ``sklearn.calibration.CalibratedClassifierCV``.
    """

    def __init__(
        self,
        *,
        C: float = 1.0,
        kernel: str = "gaussian",
        gamma: Any = "scale",
        degree: int = 3,
        coef0: float = 0.0,
        tol: float = 1e-3,
        class_weight: Any = None,
        shrinking: bool = True,
        decision_function_shape: str = "ovr",
        cache_gib: float = 1.0,
        max_iter: int = -1,
        max_time: float | None = None,
        verbose: bool = False,
    ) -> None:
        self.C = C
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.tol = tol
        self.class_weight = class_weight
        self.shrinking = shrinking
        self.decision_function_shape = decision_function_shape
        self.cache_gib = cache_gib
        self.max_iter = max_iter
        self.max_time = max_time
        self.verbose = verbose

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> SMOSVC:
        """Train on `X`, shape (n, d), dense or CSR, and labels `y`, shape (n,); neither is changed.

        With a precomputed kernel, `X` is K, shape (n, n). Raises InputError, a ValueError, on what cannot
        be used; warns with ConvergenceWarning if a limit was reached.
        """
        comm = Communicator()
        train = self._checked(X, y, sample_weight)
        n, d = train.X.shape
        precomputed = self.kernel == "precomputed"
        if precomputed and n != d:
            raise InputError(f"a precomputed kernel is square; this has shape {(n, d)}")
        if precomputed and sp.issparse(train.X):
            raise InputError("a precomputed kernel has to be dense")
        if self.decision_function_shape not in ("ovr", "ovo"):
            raise InputError(f"decision_function_shape {self.decision_function_shape!r}: choose ovr or ovo")
        weights = np.ones(n) if train.weights is None else train.weights
        classes = all_classes(train.y[weights > 0], comm)
        if len(classes) < 2:
            raise InputError(one_class(classes))
        options = self._options(classes, memory.limit_per_rank(comm)) if not precomputed else self._precomputed(classes)
        kernel = None if precomputed else options.kernel(numeric_gamma(train.X, options.gamma, comm))
        budget = min(options.cache_bytes, n * n * 8 + 2 * n * d * 8)
        remedy = "use a smaller cache_gib"
        memory.require(budget, options.memory_limit, "the kernel cache", remedy)
        codes = np.clip(np.searchsorted(classes, train.y), 0, len(classes) - 1).astype(np.int64)
        factor = self._factors(options.class_weight, codes, weights, len(classes))
        limits = Limits(options.limits.tol, options.limits.max_iter, options.limits.max_time, bool(self.shrinking))
        learning = Learning(kernel, limits, budget, _printer() if self.verbose else None)
        part, solutions = fit_part(train.X, codes, options.C * factor[codes] * weights, np.arange(n), learning)
        model = SVMModel(
            "smo", "nearest", classes, kernel, float(self.C), np.zeros((1, d)), np.array([n]), np.zeros(1, np.int64),
            None, str(train.X.dtype), parts={0: part},
        )  # fmt: skip
        self._expose(model, train.X)
        self._tell(part, solutions, factor)
        return self

    def _precomputed(self, classes: NDArray[Any]) -> Options:
        kind, self.kernel = self.kernel, "linear"
        try:
            return self._options(classes, memory.limit_per_rank(Communicator()))
        finally:
            self.kernel = kind

    def _factors(
        self, class_weight: Any, codes: NDArray[np.int64], weights: NDArray[np.float64], k: int
    ) -> NDArray[np.float64]:
        if class_weight == "balanced":
            count = np.bincount(codes, weights, k)
            return np.asarray(count.sum() / (k * count))
        return np.array([1.0 if class_weight is None else class_weight.get(code, 1.0) for code in range(k)])

    def _tell(self, part: PartSVM, solutions: list[Solution], factor: NDArray[np.float64]) -> None:
        two = len(self.classes_) == 2
        if len(part.classes) < len(self.classes_):
            raise InputError("a class has no row with a positive weight")
        self.intercept_ = -part.b if two else part.b
        self.class_weight_ = factor
        self.n_iter_ = np.array([one.iterations for one in solutions])
        self.objective_ = np.array([one.objective for one in solutions])
        self.gap_ = np.array([one.gap for one in solutions])
        self.solutions_ = solutions
        late = [one for one in solutions if not one.converged]
        self.fit_status_ = int(bool(late))
        if late:
            worst = max(late, key=lambda one: one.gap)
            of = "" if len(solutions) == 1 else f" ({len(late)} of {len(solutions)} pairs of classes)"
            warnings.warn(
                f"SMOSVC stopped after {worst.iterations:,} iterations at a violation of {worst.gap:.3g}, above "
                f"tol = {self.tol:g}{of}: raise max_iter or max_time, or scale the features",
                ConvergenceWarning,
                stacklevel=3,
            )

    @property
    def coef_(self) -> Any:
        """Weights of the features, of the linear kernel."""
        check_is_fitted(self)
        if self.kernel != "linear":
            raise AttributeError("coef_ is there for the linear kernel only")
        part = self.model_.parts[0]
        coef = part.X.T @ part._weights()
        coef = coef.T if len(self.classes_) > 2 else -coef.T
        return sp.csr_matrix(coef) if sp.issparse(part.X) else np.ascontiguousarray(coef)

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Decisions for `X`, shape (n, d): shape (n,) with two classes, else (n, k), or (n, pairs) for "ovo"."""
        X = self._rows(X)
        if self.decision_function_shape == "ovo" and len(self.classes_) > 2:
            return self.model_.parts[0].pairs(X, self.model_.kernel)
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels for `X`, shape (n, d), or kernel values with all training rows, shape (n, n_train)."""
        codes = votes(self._scores(self._rows(X)))
        return np.asarray(self.classes_[codes])

    def _scores(self, X: Any) -> NDArray[np.float64]:
        return self.model_.parts[0].scores(X, self.model_.kernel, len(self.classes_))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.kernel == "precomputed"
        tags.input_tags.sparse = not tags.input_tags.pairwise
        return tags


def _printer() -> Callable[[Progress], None]:
    last = time.perf_counter()

    def show(progress: Progress) -> None:
        nonlocal last
        if time.perf_counter() - last > 1.0:
            last = time.perf_counter()
            print(
                f"{progress.iterations:>12,} iterations, violation {progress.gap:.3g}, "
                f"objective {progress.objective:.8g}, {progress.active:,} rows in play",
                flush=True,
            )

    return show


class CASVC(_SVC):
    """Kernel SVM in parts: nothing is sent while the parts are trained (Algorithm 5).

    Parameters
    ----------
    n_parts : int or None
        Parts, P. None: one a rank.
    partitioner : {"random", "fcfs", "bkm", "kmeans", "kbalance"} or Partitioner
        "random" is CA-SVM, "fcfs" FCFS-SVM, "bkm" BKM-SVM and "kmeans" CP-SVM. Of a Partitioner its own
        parameters are used, but for `n_parts`, if that is given here, and `random_state`.
    C, kernel, gamma, degree, coef0, tol, class_weight, max_iter, max_time
        As for :class:`SMOSVC`, of every part. "balanced" counts the rows of all parts.
    route : {"nearest", "soft", "all"}
        The nearest centre's model answers; the nearest four's decisions, weighted by distance; or the mean of
        all decisions, which suits "random".
    ratio : bool
        Balance every class as well as the parts' sizes: "fcfs" and "bkm".
    standardize : bool
        Scale features by the training rows' mean and deviation. CSR rows are scaled, not shifted.
    cache_gib : float
        Memory of a rank for kernel values and packed rows of the parts it works on.
    random_state : int, RandomState or None
    comm : mpi4py communicator or None
        With one, `fit` and `predict` take this rank's own rows and are collective calls.

    Attributes
    ----------
    model_ : SVMModel
    classes_ : ndarray, shape (k,)
    sizes_ : ndarray of int64, shape (P,)
    centers_ : ndarray, shape (P, d)
    support_ : ndarray, shape (s,)
        Global rows of the support vectors of this rank's parts, class by class.
    support_vectors_, n_support_, dual_coef_
        Theirs, in scikit-learn's layout; a part without a class has 0 for the pairs of that class.
    solver_ : dict of str to ndarray
        An entry a part: iterations, n_support, objective, gap, seconds, kernel_rows, kernel_values.
    n_iter_ : ndarray of int64, shape (P,)
    n_features_in_ : int

    Notes
    -----
    What :class:`SMOSVC` costs on a part's rows, for each part. Training moves no bytes between ranks.
    """

    def __init__(
        self,
        n_parts: int | None = None,
        *,
        partitioner: Any = "random",
        C: float = 1.0,
        kernel: str = "gaussian",
        gamma: Any = "scale",
        degree: int = 3,
        coef0: float = 0.0,
        tol: float = 1e-3,
        class_weight: Any = None,
        route: str = "nearest",
        ratio: bool = False,
        standardize: bool = False,
        cache_gib: float = 1.0,
        max_iter: int = -1,
        max_time: float | None = None,
        random_state: Any = None,
        comm: Any = None,
    ) -> None:
        self.n_parts = n_parts
        self.partitioner = partitioner
        self.C = C
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.tol = tol
        self.class_weight = class_weight
        self.route = route
        self.ratio = ratio
        self.standardize = standardize
        self.cache_gib = cache_gib
        self.max_iter = max_iter
        self.max_time = max_time
        self.random_state = random_state
        self.comm = comm

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> CASVC:
        """Train on `X`, shape (n_local, d), dense or CSR, and labels `y`; neither is changed.

        Rows of weight 0 count as absent. Raises InputError, a ValueError, on what cannot be used; warns with
        ConvergenceWarning if a limit was reached.
        """
        comm = as_communicator(self.comm)
        with comm.guard():
            threads.share_once(comm)
            with comm.agreed():
                train = self._checked(X, y, sample_weight, int(comm.size == 1))
            if train.weights is not None:
                kept = train.weights > 0
                train = Labelled(train.X[kept], train.y[kept], train.weights[kept])
            classes = all_classes(train.y, comm)
            drawn = check_random_state(self.random_state).randint(2**31 - 1)
            seed = int(comm.bcast(np.array([drawn], np.int64))[0])
            with comm.agreed():
                method, partitions = self._method()
                options = self._options(
                    classes, memory.limit_per_rank(comm), partitions=partitions, route=self.route, ratio=self.ratio,
                    standardize=self.standardize, seed=seed,
                )  # fmt: skip
            result = fit(method, train, options, comm)
        self._take(result, X)
        return self

    def _method(self) -> tuple[Method, int | None]:
        if isinstance(self.partitioner, str):
            if self.partitioner not in _NAMED:
                raise InputError(f"partitioner {self.partitioner!r}: choose one of {', '.join(_NAMED)}")
            return _NAMED[self.partitioner], self.n_parts
        if not isinstance(self.partitioner, Partitioner):
            raise InputError(f"partitioner {self.partitioner!r}: give a name or a Partitioner")
        own = self.partitioner
        parameters = {k: v for k, v in own.get_params().items() if k not in ("n_parts", "random_state")}

        class Chosen(type(own)):  # type: ignore[misc]
            def __init__(self, n_parts: int, *, random_state: Any = None, **more: Any) -> None:
                super().__init__(n_parts, random_state=random_state, **{**parameters, **more})

        name = type(own).__name__.lower()
        return Method(name, f"parts by {name}", Chosen), own.n_parts if self.n_parts is None else self.n_parts

    def _take(self, result: Fit, X: Any) -> None:
        self._expose(result.model, X)
        self.sizes_, self.centers_, self.solver_ = result.sizes, result.model.centers, result.solver
        self.n_iter_ = result.solver["iterations"]
        for note in result.notes:
            warnings.warn(note, ConvergenceWarning, stacklevel=3)

    def _input(self, X: Any) -> tuple[Any, Communicator]:
        comm = as_communicator(self.comm)
        with comm.agreed():
            X = self._rows(X, int(comm.size == 1))
        return X, comm

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Decisions for `X`, shape (n_local,) with two classes, else (n_local, k); with `comm`, collective."""
        check_is_fitted(self, "model_")
        with as_communicator(self.comm).guard():
            return self.model_.decision_function(*self._input(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels for `X`, shape (n_local, d); with `comm`, a collective call."""
        check_is_fitted(self, "model_")
        with as_communicator(self.comm).guard():
            return self.model_.predict(*self._input(X))

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy; with `comm`, over all ranks' rows, the same number on each: a collective call."""
        comm = as_communicator(self.comm)
        if comm.size == 1:
            return float(super().score(X, y, sample_weight))
        predicted = self.predict(X)
        with comm.guard():
            weights = np.ones(len(predicted)) if sample_weight is None else np.asarray(sample_weight, np.float64)
            right, every = comm.allreduce(np.array([weights @ (predicted == np.asarray(y)), weights.sum()]))
        return float(right / every)
