"""The methods as scikit-learn regressors."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from cacore.comm import Communicator, collective
from cacore.data.dataset import Dataset
from cacore.data.metric import expose as expose_metric
from cacore.data.validation import checked_weights, shared_seed, validated
from cacore.errors import InputError
from cacore.kernels.given import Precomputed, numbered, of_new_rows
from cacore.machine import memory, threads
from cacore.run import report
from cacore.run.options import from_estimator, one_of
from cakrr.bkrr import bkrr
from cakrr.bkrr2 import bkrr2
from cakrr.dckrr import dckrr
from cakrr.dkrr import dkrr
from cakrr.kkrr import kkrr
from cakrr.kkrr2 import kkrr2
from cakrr.model import KRRModel
from cakrr.options import LOCAL_LAMS, Fit, Method, Options
from cakrr.twolevel import twolevel


@dataclass(eq=False, repr=False, kw_only=True)
class KernelRidge(BaseEstimator):
    """What regressors and classifiers share: parameters that all of them have, training and prediction."""

    sigma: Any = None
    lam: Any = 1e-4
    kernel: Any = "gaussian"
    degree: int = 3
    coef0: float = 0.0
    validation_fraction: float = 0.1
    metric: str = "none"
    metric_rounds: int = 10
    scaling: str = "deviation"
    standardize: bool = True
    dtype: str = "float64"
    random_state: Any = None
    comm: Any = None

    _method: ClassVar[Method]

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on `X`, shape (n_local, d), dense or CSR, and `y`; neither is changed.

        `y` is of shape (n_local,), or (n_local, t) for t targets of a regression, which share all factorisations.
        Rows of weight 0 count as absent. Raises InputError, a ValueError, on what cannot be used.
        """
        with collective(self.comm) as comm:
            threads.share_once(comm)
            with comm.agreed():
                one_of("float64", "float32")(self.dtype, "dtype =")
            train, options = self._problem(X, y, sample_weight, comm)
            train.n = comm.offset(train.X.shape[0])[1]
            with comm.agreed():
                if train.n == 0:
                    raise InputError("Sample weights must contain at least one non-zero number.")
            seed, limit = shared_seed(self.random_state, comm), memory.limit_per_rank(comm)
            fitted = self._method(train, replace(options, seed=seed, memory_limit=limit), comm)
        for note in fitted.notes:
            warnings.warn(note, stacklevel=2)
        fitted.model.comm = self.comm
        self.model_: KRRModel = fitted.model
        self.grid_ = fitted.grid
        self.sigma_: Any = fitted.model.sigma if fitted.model.sigmas is None else fitted.model.sigmas
        self.lam_: Any = fitted.model.lam if fitted.model.lams is None else fitted.model.lams
        self.params_ = fitted.params
        self.sizes_, self.centers_ = fitted.sizes, fitted.model.centers
        self._expose(fitted)
        expose_metric(self, fitted)
        return self

    def _expose(self, fitted: Fit) -> None:
        """Attributes that only some methods have."""

    def _problem(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None, comm: Communicator
    ) -> tuple[Dataset, Options]:
        """This rank's rows, and what to do with them; collective."""
        with comm.agreed():
            train = self._checked(X, y, sample_weight, int(comm.size == 1))
        return train, self._options(train, comm)

    def _checked(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None, least: int, copy: bool = True) -> Dataset:
        """A copy of this rank's rows, which training takes over, without those of weight 0."""
        raise NotImplementedError

    def _options(self, train: Dataset, comm: Communicator) -> Options:
        """The options of training; collective."""
        with comm.agreed():
            options: Options = from_estimator(Options, self, **self._automatic())
        return options

    def _automatic(self) -> dict[str, Any]:
        """The grids of the command in the place of "auto"."""
        given: dict[str, Any] = {}
        if isinstance(self.sigma, str) and self.sigma == "auto":
            given |= {"sigma": None, "wide": True}
        if isinstance(self.lam, str) and self.lam == "auto":
            given["lam"] = self._method.lams
        return given

    def _values(self, X: Any) -> NDArray[Any]:
        """The model's values for `X`, shape (n_local, d); with `comm`, a collective call."""
        check_is_fitted(self)
        with collective(self.comm) as comm:
            with comm.agreed():
                X = validated(
                    self, X, reset=False, accept_sparse="csr", dtype=self.dtype, ensure_min_samples=int(comm.size == 1)
                )
            return self.model_.predict(X, comm)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class Regressor(RegressorMixin, KernelRidge):
    """What the regressors share: targets of one or many columns, predictions of their shape, R^2."""

    def predict(self, X: Any) -> NDArray[Any]:
        """Predictions for `X`, shape (n_local, d), of the shape that `y` had; with `comm`, a collective call."""
        return self._values(X)

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """R^2, of many targets their mean; with `comm`, over all ranks' rows, the same on each: a collective call."""
        if self.comm is None:
            return float(super().score(X, y, sample_weight))
        predicted = self.predict(X)
        with collective(self.comm) as comm:
            with comm.agreed():
                weights = None if sample_weight is None else checked_weights(sample_weight, len(predicted))
            r2 = report.regression_metrics(np.asarray(y), predicted, comm, weights)["r2"]
        return float("nan") if r2 is None else r2

    def _checked(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None, least: int, copy: bool = True) -> Dataset:
        if issparse(y):
            raise InputError("y: sparse targets cannot be used; give y.toarray()")
        rows = {"accept_sparse": "csr", "dtype": self.dtype, "order": "C", "copy": copy, "ensure_min_samples": least}
        targets = {"ensure_2d": False, "dtype": None, "ensure_min_samples": 0, "ensure_min_features": 0}
        X, given = validated(self, X, y, validate_separately=(rows, targets))
        if not given.ndim or not all(given.shape[1:]):
            raise InputError(f"y has shape {given.shape}: there is no target")
        if len(given) != X.shape[0]:
            raise InputError(f"Found input variables with inconsistent numbers of samples: {[X.shape[0], len(given)]}")
        try:
            y = np.asarray(given, np.float64)
        except (ValueError, TypeError) as error:
            raise InputError(
                f"y: {error}; the targets of a regression are numbers, and {type(self).__name__}Classifier has classes"
            ) from error
        if not np.isfinite(y).all():
            raise InputError("y: contains NaN or infinity")
        if sample_weight is None:
            return Dataset(X, y)
        weights = checked_weights(sample_weight, X.shape[0])
        kept = weights > 0
        return Dataset(X[kept], y[kept], weights=weights[kept])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class InParts:
    """Parameters of the methods in parts."""

    n_parts: int | None = field(default=None, kw_only=False)
    n_divisions: int = 1
    select: str = "validation"
    cv: int | None = None
    per_part: bool = False
    route: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class OnTwoLevels:
    """Parameters of the method with a coarse model."""

    n_parts: int | None = field(default=None, kw_only=False)
    lam: Any = LOCAL_LAMS
    centers: Any = None
    coarse_sigma: Any = None
    coarse_lam: Any = None
    refine: int = 0
    n_divisions: int = 1
    route: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class BKRR2(InParts, Regressor):
    """Balanced parts by K-balance; the nearest centre's model answers (Algorithm 10).

    Parameters
    ----------
    n_parts : int or None
        Parts, P. None: one a rank, or as many as keep a part at 8,000 rows and its matrix in memory.
    sigma : float, sequence of float, "auto" or None
        Width: gamma = 1 / (2 sigma^2), for the Gaussian exp(-|x-z|^2 / (2 sigma^2)), and 1 / sigma of "laplacian" and
        "l1"; None is the square root of the number of features, of "l1" their number. With a sequence here or in `lam`,
        the pair with the least validation error is chosen, and all rows are used for the final fit.
    lam : float, sequence of float or "auto"
        Ridge, lambda: a part of m rows solves (K + lambda m I) alpha = y. "auto", here and for `sigma`, is the grid
        that the command tries: five widths around the kernel's natural one, five lambdas from 1e-7 to 1e-3.
    kernel : {"gaussian", "laplacian", "matern32", "matern52", "l1", "rational", "linear", "polynomial", "sigmoid"}
        Or a callable ``k(A, B) -> K`` on blocks of rows, shape (len(A), len(B)), which may be called from several
        threads at once; its model is not written to a file. scikit-learn's names "rbf" and "poly" are understood, and
        its "laplacian" is "l1". The linear kernel and a callable have no width. With s for sigma and r for |x-z|/s:
        laplacian exp(-r); matern32 (1 + q) exp(-q), q = sqrt(3) r; matern52 (1 + q + q^2/3) exp(-q), q = sqrt(5) r;
        l1 exp(-|x-z|_1 / s); rational (1 + r^2 / (2 degree))^-degree. "auto" tries "gaussian", "matern52", "laplacian"
        and "l1", as candidates like those of sigma.
    degree : int
        For "rational" the exponent, at least 1; it costs about `degree` units of rounding.
    coef0 : float
        (gamma x.z + coef0)^degree; tanh(gamma x.z + coef0).
    n_divisions : int
        How many times the rows are divided, at the setting that was chosen on the first division: the mean of the
        divisions' models answers, which smooths what the borders of the parts break, at so many times the rows sent,
        models kept and seconds of the last fit.
    select : {"validation", "loo"}
        What judges the pairs: rows held out, or every row left out of its part's model, in closed form.
    validation_fraction : float
        Share of each part's rows that is held out.
    cv : int or None
        So many folds judge, each row once, in the place of one share held out: so many times the seconds of choosing.
    per_part : bool
        Every part chooses its own `sigma` and `lam`, by its own held-out rows, which are not sent; `sigma_` and `lam_`
        are then arrays.
    route : {"nearest", "soft", "all"} or None
        Other than the method's own: the nearest centre's model; the k nearest ones', weighted by
        exp(-(d^2 - d_min^2)/t), with k and t chosen on held-out rows; the mean of all.
    metric : {"none", "diagonal", "full"}
        Learn, in rounds of training, how much each feature counts, or each direction of them: rows are mapped by the
        root of the mean of grad f grad f^T, f the model that answers. The round with the least validation error is
        kept, which may be the one without a metric. "full" takes 4,096 features at most, and makes CSR rows dense.
    metric_rounds : int
        Most rounds after the first one; three in a row without an improvement are the last.
    scaling : {"deviation", "quantile", "auto"}
        "quantile" replaces each feature, dense ones only, by the normal score of its rank, as far as 10,000 rows show:
        right where features have heavy tails. "auto" takes whichever has the lesser validation error.
    standardize : bool
        Scale features by the training rows' mean and deviation. CSR rows are scaled, not shifted.
    dtype : {"float64", "float32"}
        Of the rows and the factors. float32 halves the memory; the solutions are refined to double precision.
    random_state : int, RandomState or None
    comm : mpi4py communicator or None
        With one, `fit` and `predict` take this rank's own rows and are collective calls.

    Attributes
    ----------
    model_ : KRRModel
        ``model_.save(path)`` writes it, ``KRRModel.load(path)`` reads it.
    sigma_, lam_ : float, or ndarray, shape (P,)
        The pair in use, or that of each part.
    grid_ : list of dict
        Validation error of every pair, if there was a choice.
    params_ : dict
        What else was chosen: soft_k and soft_t; centers, coarse_sigma and coarse_lambda.
    metric_ : ndarray, shape (d, d) or (d,)
        Of standardised features, with trace d, where one was asked for; the identity if the first round was the best.
    feature_importances_ : ndarray, shape (d,)
        Its diagonal as shares, sum 1; all alike if the first round was the best.
    metric_errors_ : ndarray, shape (rounds,)
        Validation error of every round; the first one is without a metric.
    sizes_ : ndarray of int64, shape (P,)
    centers_ : ndarray, shape (P, d)
        In standardised features, in the metric.
    n_features_in_ : int

    Notes
    -----
    m^2 d + m^3/3 flops and 8 m^2 bytes a part of m rows. Training moves no bytes between ranks. A metric costs the
    choice of sigma and lambda in each round, (rounds + 1) times, and rows are sent to their parts anew in each; then
    one Allreduce of d x d numbers, or d, a round, and up to 2000 m d flops a part for the gradients.
    """

    _method = bkrr2


class KKRR2(BKRR2):
    """Parts by K-means, of whatever size; the nearest centre's model answers (section 3.4).

    Parameters, attributes and cost of a part are those of :class:`BKRR2`.
    """

    _method = kkrr2


class DCKRR(BKRR2):
    """Random even parts; the mean of all models answers (Algorithm 8; Zhang, Duchi and Wainwright, 2013).

    Parameters, attributes and cost are those of :class:`BKRR2`.
    """

    _method = dckrr


class BKRR(BKRR2):
    """Balanced parts by K-balance; the mean of all models answers (section 3.4).

    Parameters, attributes and cost are those of :class:`BKRR2`.
    """

    _method = bkrr


class KKRR(BKRR2):
    """Parts by K-means; the mean of all models answers (section 3.4).

    Parameters, attributes and cost of a part are those of :class:`BKRR2`.
    """

    _method = kkrr


@dataclass(eq=False, repr=False, kw_only=True)
class TwoLevelKRR(OnTwoLevels, Regressor):
    """A coarse model of all rows, and balanced parts' models of its residual: the one to use for accuracy.

    Parameters
    ----------
    n_parts : int or None
        Parts, P. None: one a rank, or as many as keep a part at 8,000 rows and its matrix in memory.
    centers : int, sequence of int or None
        Centres of the coarse model, M; None tries 500, 1,000 and 1,500.
    coarse_sigma, coarse_lam : float, sequence of float or None
        Width and ridge of the coarse model; None tries a small grid.
    sigma, lam : float or sequence of float
        Of the parts' models; None for `sigma` tries a small grid.
    refine : int
        Iterations of conjugate gradients from the chosen coarse model towards the exact one of its kernel and ridge,
        whose centres are all rows; the parts' models are of what that leaves over. All rows are then on every rank.
    kernel, degree, coef0, n_divisions, validation_fraction, route, metric, metric_rounds
        As for :class:`BKRR2`.
    scaling, standardize, dtype, random_state, comm
        As for :class:`BKRR2`, and so are the attributes. All is chosen on held-out rows.

    Notes
    -----
    n M^2 flops a coarse sigma, shared by the ranks, M^3 a candidate on each, and what BKRR2 costs.
    Training moves M x M + 3 M numbers a rank and coarse sigma, whatever n. All of it anew in each round of a metric,
    and one Allreduce of d x d numbers, or d.
    """

    _method = twolevel


@dataclass(eq=False, repr=False, kw_only=True)
class Iterated:
    """Parameters of the exact method, and what it tells of its iterations."""

    solver: str = "cholesky"
    tol: float = 1e-6
    preconditioner: str = "pivoted"
    rank: int | None = None
    early: float | None = None
    max_time: float | None = None
    scratch: Any = None

    def _expose(self, fitted: Fit) -> None:
        for name in ("n_iter_", "residual_"):
            if hasattr(self, name):
                delattr(self, name)
        if fitted.residual.size:
            self.residual_ = float(fitted.residual.max())
        if fitted.iteration:
            self.n_iter_ = max(fitted.iteration["iterations"])


@dataclass(eq=False, repr=False, kw_only=True)
class DKRR(Iterated, Regressor):
    """Exact kernel ridge regression, one system of all rows over all ranks (Algorithm 6).

    Parameters
    ----------
    sigma, lam, degree, coef0, validation_fraction, metric, metric_rounds
        As for :class:`BKRR2`.
    scaling, standardize, dtype, random_state, comm
        As for :class:`BKRR2`, and so are the attributes.
    kernel : as for :class:`BKRR2`, or "precomputed"
        With "precomputed" `X` is K, shape (n, n), in `fit`, and kernel values of new rows with all training rows, shape
        (n_new, n), in `predict`; in one process. There are no features then: `standardize` is ignored, and `sigma` has
        to be left out. The model is not written to a file.
    solver : {"cholesky", "cg", "auto"}
        Factor the matrix; or conjugate gradients with a preconditioner, which need n numbers a vector and no matrix; or
        whichever is predicted to cost less and fits. "cholesky" refuses the parameters below, and "auto" takes "cg" if
        one is given.
    tol : float
        "cg": residual over the norm of the centred targets, at most; computed from scratch at the end.
    preconditioner : {"pivoted", "nystrom", "local", "two-level"}
        A factor of K of low rank, whose pivots are drawn where K is not explained yet, or evenly; blocks of rows that
        lie together; blocks of what the factor leaves.
    rank : int or None
        Of the factor; None adds pivots until more would cost more than they save.
    early : float or None
        With a choice: stop where the validation error has moved by less than this share of it over three iterations;
        the final solution goes as far as the chosen pair did.
    max_time : float or None
        Seconds after which the solution is taken as it is, with a warning that has its residual; an error if there is
        none yet.
    scratch : str, Path or None
        A directory for kernel values that do not fit into memory, and for a factor of the given rank.

    Attributes
    ----------
    n_iter_ : int
        "cg": iterations of the solution; of many targets the most.
    residual_ : float
        "cg", or float32: its relative residual.

    Notes
    -----
    n^2 d + n^3/3 flops and 8 n^2 bytes, shared by the ranks. More than one rank needs ScaLAPACK:
    pip install 'cakernels[scalapack]'. A round of a metric costs the choice of sigma and lambda, one more n^3/3, and
    an Allreduce of the gradients at 2,000 rows at most. "cg": n^2/2 kernel values an iteration for all lambdas and
    targets together, and n k^2 flops for a factor of rank k; any number of ranks, without ScaLAPACK.
    """

    _method = dkrr

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on `X`, shape (n_local, d), dense or CSR, or (n, n) with a precomputed kernel, and `y`, (n_local,)."""
        super().fit(X, y, sample_weight)
        if self._has_matrix():  # which is not needed any longer: new rows bring their kernel values
            self.model_.like = of_new_rows()
            self.centers_ = self.model_.centers = np.zeros((0, self.n_features_in_))
        return self

    def _has_matrix(self) -> bool:
        return isinstance(self.kernel, str) and self.kernel == "precomputed"

    def _problem(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None, comm: Communicator
    ) -> tuple[Dataset, Options]:
        if not self._has_matrix():
            return super()._problem(X, y, sample_weight, comm)
        with comm.agreed():
            return self._of_matrix(X, y, sample_weight, comm)

    def _of_matrix(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None, comm: Communicator
    ) -> tuple[Dataset, Options]:
        if comm.size > 1:
            raise InputError(
                f"a precomputed kernel is for one process, and these are {comm.size} ranks: use a callable"
            )
        if self.metric != "none":
            raise InputError("metric: a precomputed kernel has no features to weigh; leave it out")
        if self.sigma is not None:
            raise InputError("sigma: a precomputed kernel has no width; leave it out")
        train = self._checked(X, y, None, 1, copy=False)
        if issparse(train.X):
            raise InputError("a precomputed kernel has to be dense")
        if train.X.shape[0] != train.X.shape[1]:
            raise InputError(f"a precomputed kernel is square; this has shape {train.X.shape}")
        K, rows = train.X, Dataset(numbered(len(train.X), train.X.dtype), train.target())
        if sample_weight is not None:
            weights = checked_weights(sample_weight, len(K))
            kept = weights > 0
            rows = Dataset(rows.X[kept], rows.target()[kept], weights=weights[kept])
        return rows, from_estimator(Options, self, kernel=Precomputed(K), standardize=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self._has_matrix()
        tags.input_tags.sparse = not tags.input_tags.pairwise
        return tags
