"""scikit-learn regressors: the exact method, the methods in parts, and the two-level method.

Their parameters come first, in groups that the classifiers share.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import Tags

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.metric import expose as expose_metric
from cacore.data.rows import RowsLike, in_memory, is_sparse
from cacore.data.validation import checked_weights
from cacore.errors import InputError
from cacore.kernels.given import Precomputed, numbered, of_new_rows
from cacore.learn.options import LENGTHS
from cacore.tuning import GridLike
from cakrr.bkrr import bkrr
from cakrr.bkrr2 import bkrr2
from cakrr.dckrr import dckrr
from cakrr.dkrr import dkrr
from cakrr.estimators.ridge_base import KernelRidge, Regressor, is_auto
from cakrr.kkrr import kkrr
from cakrr.kkrr2 import kkrr2
from cakrr.options import RidgeOptions
from cakrr.ridge_model import RidgeFit
from cakrr.twolevel import twolevel


@dataclass(eq=False, repr=False, kw_only=True)
class Validated(KernelRidge):
    """Parameters of methods that compare settings on held-out rows, in a metric that they may learn."""

    validation_fraction: float = 0.1
    metric: str = "none"
    metric_rounds: int = 10

    def _expose(self, fitted: RidgeFit) -> None:
        expose_metric(self, fitted)
        self.__dict__.pop("lengths_seconds_", None)
        if self.metric == LENGTHS:
            self.lengths_seconds_ = fitted.lengths_seconds


@dataclass(eq=False, repr=False, kw_only=True)
class Calibrated(Regressor):
    """A regressor whose intervals can be calibrated."""

    calibrate: float | str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class Iterated(Validated):
    """Parameters of the exact method, and attributes of its iterations."""

    solver: str = "cholesky"
    tol: float = 1e-6
    preconditioner: str = "pivoted"
    rank: int | None = None
    near: bool = False
    early: float | None = None
    max_time: float | None = None
    scratch: str | os.PathLike[str] | None = None

    def _expose(self, fitted: RidgeFit) -> None:
        super()._expose(fitted)
        for name in ("n_iter_", "residual_", "near_"):
            if hasattr(self, name):
                delattr(self, name)
        if fitted.residual.size:
            self.residual_ = float(fitted.residual.max())
        if fitted.iteration:
            self.n_iter_ = max(fitted.iteration["iterations"])
            solutions = fitted.iteration["solutions"]
            if solutions and "near" in solutions[-1]:
                self.near_ = solutions[-1]["near"]


@dataclass(eq=False, repr=False, kw_only=True)
class DKRR(Iterated, Calibrated):
    """Exact kernel ridge regression: one system of all rows, distributed over the ranks (Algorithm 6).

    Parameters
    ----------
    sigma, lam, degree, coef0, validation_fraction, metric, metric_rounds
        See :class:`BKRR2`.
    scaling, standardize, dtype, calibrate, random_state, comm
        See :class:`BKRR2`, also for the attributes.
    kernel : as for :class:`BKRR2`, or "precomputed"
        With "precomputed", `X` is K, shape (n, n), in `fit`, and kernel values of new rows with all training rows,
        shape (n_new, n), in `predict`; only without `comm`. There are no features then: `standardize` is ignored, and
        `sigma` must be left out. Such a model cannot be saved.
    solver : {"cholesky", "cg", "auto"}
        Factor the matrix ("cholesky"); use preconditioned conjugate gradients, which need vectors of n numbers but no
        matrix ("cg"); or take the one with the lower predicted cost that fits in memory ("auto"). The parameters below
        are refused with "cholesky", and select "cg" with "auto".
    tol : float
        "cg": tolerance of the residual over the norm of the centred targets; the final residual is recomputed.
    preconditioner : {"pivoted", "nystrom", "local", "two-level"}
        "cg": a low-rank factor of K, with pivots sampled by the residual ("pivoted") or uniformly ("nystrom"); blocks
        of neighbouring rows ("local"); or a factor and blocks of its residual ("two-level").
    rank : int or None
        Rank of the factor. None adds pivots until further ones would cost more than they save.
    near : bool
        "cg": leave out kernel values of distant rows, by a bound that keeps the residual of the whole system within
        `tol`. Rows that fall apart into islands beyond reach of each other are solved as systems of their own. Only for
        kernels of Euclidean distance, and worthwhile for narrow ones.
    early : float or None
        "cg": when comparing several pairs, stop once the validation error changes by less than this share over three
        iterations. The final solution stops at the residual that the chosen pair reached.
    max_time : float or None
        "cg": time limit in seconds. The solution is then used as it is, with a warning that reports its residual; if
        there is no useful solution yet, an error is raised.
    scratch : str, Path or None
        "cg": directory for kernel values that do not fit into memory, and for a factor of the given rank.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Attributes
    ----------
    n_iter_ : int
        "cg": iterations of the solution; the maximum over all targets.
    residual_ : float
        "cg" or float32: relative residual of the solution.
    near_ : dict
        `near`: "radius" beyond which kernel values are left out, "bound" on their norm and what was "allowed", "share"
        of the pairs that is computed, and "rows", "features", "ranks" and "iterations" of each island.

    Notes
    -----
    n^2 d + n^3/3 flops per pair of sigma and lambda, of which the default grid has 25, and 8 n^2 bytes, shared by the
    ranks. With "cholesky" and fewer than 4,000 rows, the default grid is compared on five folds. More than one rank
    needs ScaLAPACK: pip install 'cakernels[scalapack]'. A round of a metric costs the search for sigma and lambda,
    another n^3/3 flops, and an Allreduce of the gradients at 2,000 rows at most. "cg" costs n^2/2 kernel values per
    iteration for all lambdas and targets together, and n k^2 flops for a factor of rank k; it runs on any number of
    ranks without ScaLAPACK.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from cakrr import DKRR
    >>> X, y = make_friedman1(400, n_features=5, random_state=0)
    >>> model = DKRR(sigma=6.0, lam=1e-6).fit(X[:300], y[:300])
    >>> mean, deviation = model.predict(X[300:], return_std=True)
    >>> mean.shape, bool((deviation > 0).all())
    ((100,), True)
    """

    _method = dkrr

    def fit(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on `X`, shape (n_local, d), dense or CSR, or (n, n) with a precomputed kernel, and `y`, (n_local,)."""
        super().fit(X, y, sample_weight)
        if self._has_matrix():  # the matrix is no longer needed: new rows bring their own kernel values
            self.model_.like = of_new_rows()
            self.centers_ = self.model_.centers = np.zeros((0, self.n_features_in_))
        return self

    def _has_matrix(self) -> bool:
        return isinstance(self.kernel, str) and self.kernel == "precomputed"

    def _problem(
        self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None, comm: Communicator
    ) -> tuple[Dataset, RidgeOptions]:
        if not self._has_matrix():
            return super()._problem(X, y, sample_weight, comm)
        with comm.agreed():
            return self._of_matrix(X, y, sample_weight, comm)

    def _of_matrix(
        self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None, comm: Communicator
    ) -> tuple[Dataset, RidgeOptions]:
        if comm.size > 1:
            raise InputError(
                f"a precomputed kernel needs a single process, but there are {comm.size} ranks: use a callable"
            )
        if self.metric != "none":
            raise InputError("metric: a precomputed kernel has no features to weight; leave it out")
        if self.sigma is not None and not is_auto(self.sigma):
            raise InputError("sigma: a precomputed kernel has no width; leave it out")
        train = self._checked(X, y, None, 1, copy=False)
        K = in_memory(train.X)
        if is_sparse(K):
            raise InputError("a precomputed kernel must be dense")
        if K.shape[0] != K.shape[1]:
            raise InputError(f"a precomputed kernel must be square; this one has shape {K.shape}")
        rows = Dataset(numbered(len(K), K.dtype), train.target())
        if sample_weight is not None:
            weights = checked_weights(sample_weight, len(K))
            weighted = weights > 0
            rows = Dataset(rows.X[weighted], rows.target()[weighted], weights=weights[weighted])
        return rows, self._checked_options(kernel=Precomputed(K), standardize=False)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self._has_matrix()
        tags.input_tags.sparse = not tags.input_tags.pairwise
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class Divided(Validated):
    """Parameters of all methods in parts, and the number of parts that was chosen."""

    n_parts: int | None = field(default=None, kw_only=False)
    n_divisions: int = 1
    route: str | None = None
    metric_init: ArrayLike | str | os.PathLike[str] | None = None

    def _expose(self, fitted: RidgeFit) -> None:
        super()._expose(fitted)
        self.n_parts_ = len(fitted.sizes) // fitted.model.divisions


@dataclass(eq=False, repr=False, kw_only=True)
class RidgeInParts(Divided):
    """Parameters of the methods in parts without a coarse model."""

    select: str = "validation"
    cv: int | None = None
    per_part: bool = False


@dataclass(eq=False, repr=False, kw_only=True)
class OnTwoLevels(Divided):
    """Parameters of the method with a coarse model."""

    centers: GridLike | None = None
    coarse_sigma: GridLike | None = None
    coarse_lam: GridLike | None = None
    refine: int = 0


@dataclass(eq=False, repr=False, kw_only=True)
class Factored(Calibrated):
    """A regressor in parts that can store the factors of their matrices."""

    keep_factors: bool = False


@dataclass(eq=False, repr=False, kw_only=True)
class BKRR2(RidgeInParts, Factored):
    """Balanced parts by K-balance; predictions by the model of the nearest centre (Algorithm 10).

    Parameters
    ----------
    n_parts : int or None
        Number of parts, P. None means one per rank, or as many as keep a part at 8,000 rows and its matrix in memory.
    sigma : float, sequence of float, "auto" or None
        Width of the kernel: gamma = 1 / (2 sigma^2) for the Gaussian exp(-|x-z|^2 / (2 sigma^2)), and 1 / sigma for
        "laplacian" and "l1". "auto" compares the command's grid: five widths from 1/4 to 4 times the natural one, which
        is the square root of the number of features, or for "l1" their number. None takes the natural one. If several
        pairs of `sigma` and `lam` are compared, the one with the smallest validation error is chosen, and the final
        model is trained on all rows.
    lam : float, sequence of float or "auto"
        Ridge parameter lambda: a part of m rows solves (K + lambda m I) alpha = y. "auto" compares the command's grid:
        1e-7, 1e-6, 1e-5, 1e-4 and 1e-3.
    kernel : {"gaussian", "laplacian", "matern32", "matern52", "l1", "rational", "linear", "polynomial", "sigmoid"}
        Or a callable ``k(A, B) -> K`` on blocks of rows, with K of shape (len(A), len(B)). The callable may be called
        from several threads at once, and its model cannot be saved. scikit-learn's names "rbf" and "poly" are accepted,
        too; scikit-learn's "laplacian" is "l1" here. The linear kernel and a callable have no width. With s for sigma
        and r for |x-z|/s: laplacian exp(-r); matern32 (1 + q) exp(-q), q = sqrt(3) r; matern52 (1 + q + q^2/3) exp(-q),
        q = sqrt(5) r; l1 exp(-|x-z|_1 / s); rational (1 + r^2 / (2 degree))^-degree. "auto" compares "gaussian",
        "matern52", "laplacian" and "l1" in the search for sigma and lambda. Wendland's kernels, which are 0 beyond s,
        are "wendland0", "wendland2" and "wendland4" of |x-z|, for at most `degree` features, and their products over
        the features "wendland0_product", "wendland2_product" and "wendland4_product", for any number.
    degree : int
        For "rational" the exponent, at least 1; rounding errors grow with it.
    coef0 : float
        Constant of the polynomial kernel (gamma x.z + coef0)^degree and the sigmoid kernel tanh(gamma x.z + coef0).
    n_divisions : int
        Number of independent divisions of the rows into parts, all with the setting chosen on the first one.
        Predictions are averaged over them, which smooths the borders of the parts. Rows sent, models stored and the
        time of the final fit grow in proportion.
    select : {"validation", "loo"}
        Rows used to compare pairs: held-out rows, or each row left out of its part's model, in closed form.
    validation_fraction : float
        Share of each part's rows that is held out.
    cv : int or None
        Number of cross-validation folds, instead of one held-out share; the search takes this many times longer. None
        means one share, or five folds for ``sigma="auto"`` and fewer than 4,000 rows, unless `validation_fraction` or
        `select` is given, or a metric or a scaling is chosen.
    per_part : bool
        Choose `sigma` and `lam` separately for every part, on its own held-out rows; `sigma_` and `lam_` are then
        arrays.
    route : {"nearest", "soft", "all"} or None
        Models that predict a row: the nearest centre's model; the k nearest, weighted by exp(-(d^2 - d_min^2)/t), with
        k and t chosen on held-out rows; or the mean of all. None means the method's own route.
    metric : {"none", "diagonal", "full", "lengths"}
        Learn the importance of features ("diagonal") or of directions ("full") in rounds of training: rows are mapped
        by the square root of the mean of grad f grad f^T, where f is the model that predicts the row. "lengths", for
        kernels of a distance, scales each feature by the factor that minimises the leave-one-out errors inside the
        parts. The round with the smallest validation error is used, which may be the one without a metric. "full" takes
        at most 4,096 features, and makes CSR rows dense.
    metric_rounds : int
        Maximum number of rounds after the first; training stops after three rounds in a row without improvement.
    metric_init : array-like, shape (d,) or (d, d), file name or None
        Metric of standardised features in which the first round is trained: `metric_` of a model of fewer rows, or that
        model's file. With `metric_rounds` 0, it is the metric of the model.
    scaling : {"deviation", "quantile", "levels", "categories", "auto"}
        "quantile" replaces each feature by the normal score of its rank, estimated from 10,000 rows; it suits features
        with heavy tails, and needs dense rows. "auto" takes "deviation" or "quantile", whichever has the smaller
        validation error. "levels" replaces each feature with 3 to 20 different whole numbers, such as codes of
        categories, by a column of 0 and 1 for each of them; their variances add up to that of a feature, 1.
        With "categories", so do those of the indicators that a column of words has become.
    standardize : bool
        Scale features by the training rows' mean and standard deviation. CSR rows are scaled, not shifted.
    dtype : {"float64", "float32"}
        Type of the rows and the factors. float32 halves the memory; solutions are refined to double precision.
    keep_factors : bool
        Store the factors that standard deviations need in the model: 8 m^2 bytes and 2/3 m^3 flops per part of m rows.
        Otherwise the first call of ``predict(X, return_std=True)`` computes them.
    calibrate : float, "loo", "jackknife+" or None
        Calibration of :meth:`predict_interval`: on this share of the rows, which is set aside and not trained on; by
        leave-one-out errors ("loo"), which need no extra rows but guarantee no coverage; or by these errors and the
        effect of each row on the prediction ("jackknife+"), at 2 m^2 flops per predicted row.
    random_state : int, RandomState or None
    comm : mpi4py communicator or None
        With one, `fit` and `predict` take this rank's own rows and are collective calls.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Attributes
    ----------
    model_ : KRRModel
        `save` writes it, `load` reads it.
    sigma_, lam_ : float, or ndarray, shape (P,)
        The chosen pair, or the pair of each part.
    n_parts_ : int
        The number of parts.
    grid_ : list of dict
        Validation error of every pair, if several were compared.
    at_grid_end_ : dict
        Chosen values, by parameter, that are an end of their grid of more than two: a wider one may be better.
    params_ : dict
        Other chosen parameters: soft_k and soft_t; centers, coarse_sigma and coarse_lambda.
    metric_ : ndarray, shape (d, d) or (d,)
        Learned metric of standardised features, scaled to trace d; the identity if the first round was the best.
    feature_importances_ : ndarray, shape (d,)
        Diagonal of the metric, scaled to sum 1; all equal if the first round was the best.
    metric_errors_ : ndarray, shape (rounds,)
        Validation error of every round; the first one is without a metric, or in `metric_init`.
    lengths_seconds_ : float
        Seconds in which length scales were learned, with metric "lengths".
    sizes_ : ndarray of int64, shape (P,)
        Number of rows of each part.
    centers_ : ndarray, shape (P, d)
        Centres in standardised features, after the map of the metric.
    n_features_in_ : int

    Notes
    -----
    With one pair, m^2 d + m^3/3 flops and 8 m^2 bytes per part of m rows. The default grid takes about 20 times as
    long; with fewer than 4,000 rows, it is compared on five folds, which takes up to five times as long again. Training
    sends nothing between ranks. With a metric, the search for sigma and lambda is repeated in each of the (rounds + 1)
    rounds, and rows are sent to their parts again. Each round also sends one Allreduce of d x d numbers, or d for a
    diagonal metric, and takes up to 2000 m d flops per part for the gradients.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from cakrr import BKRR2
    >>> X, y = make_friedman1(400, n_features=5, random_state=0)
    >>> model = BKRR2(n_parts=4, sigma=[3, 6], lam=[1e-6, 1e-4], random_state=0).fit(X[:300], y[:300])
    >>> model.sigma_, model.lam_  # chosen on held-out rows
    (3.0, 1e-06)
    >>> model.score(X[300:], y[300:]) > 0.9
    True
    """

    _method = bkrr2


class KKRR2(BKRR2):
    """Parts by K-means, of any size; predictions by the model of the nearest centre (section 3.4).

    Parameters, attributes and cost of a part are those of :class:`BKRR2`.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from cakrr import KKRR2
    >>> X, y = make_friedman1(400, n_features=5, random_state=0)
    >>> model = KKRR2(n_parts=4, sigma=6.0, lam=1e-6, random_state=0).fit(X[:300], y[:300])
    >>> int(model.sizes_.sum()), model.score(X[300:], y[300:]) > 0.9
    (300, True)
    """

    _method = kkrr2


class DCKRR(BKRR2):
    """Random even parts; predictions are the mean of all models (Algorithm 8; Zhang, Duchi and Wainwright, 2013).

    Parameters, attributes and cost are those of :class:`BKRR2`.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from cakrr import DCKRR
    >>> X, y = make_friedman1(400, n_features=5, random_state=0)
    >>> model = DCKRR(n_parts=4, sigma=6.0, lam=1e-6, random_state=0).fit(X[:300], y[:300])
    >>> model.sizes_.tolist()
    [75, 75, 75, 75]
    >>> model.score(X[300:], y[300:]) > 0.9
    True
    """

    _method = dckrr


class BKRR(BKRR2):
    """Balanced parts by K-balance; predictions are the mean of all models (section 3.4).

    Parameters, attributes and cost are those of :class:`BKRR2`.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from cakrr import BKRR
    >>> X, y = make_friedman1(400, n_features=5, random_state=0)
    >>> model = BKRR(n_parts=4, sigma=6.0, lam=1e-6, random_state=0).fit(X[:300], y[:300])
    >>> model.sizes_.tolist()
    [75, 75, 75, 75]
    >>> model.score(X[300:], y[300:]) > 0.5
    True
    """

    _method = bkrr


class KKRR(BKRR2):
    """Parts by K-means; predictions are the mean of all models (section 3.4).

    Parameters, attributes and cost of a part are those of :class:`BKRR2`.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from cakrr import KKRR
    >>> X, y = make_friedman1(400, n_features=5, random_state=0)
    >>> model = KKRR(n_parts=4, sigma=6.0, lam=1e-6, random_state=0).fit(X[:300], y[:300])
    >>> model.score(X[300:], y[300:]) > 0.5
    True
    """

    _method = kkrr


@dataclass(eq=False, repr=False, kw_only=True)
class TwoLevelKRR(OnTwoLevels, Factored):
    """A coarse model of all rows, and models of its residual on balanced parts: the most accurate method in parts.

    Parameters
    ----------
    n_parts : int or None
        Number of parts, P. None means one per rank, or as many as keep a part at 8,000 rows and its matrix in memory.
    centers : int, sequence of int or None
        Number of centres of the coarse model, M; None compares 500, 1,000 and 1,500.
    coarse_sigma, coarse_lam : float, sequence of float or None
        Width and ridge of the coarse model; None compares a small grid.
    sigma, lam : float, sequence of float or "auto"
        Width and ridge of the parts' models; "auto" compares the command's grid.
    refine : int
        Number of conjugate gradient iterations that refine the chosen coarse model towards the exact model with its
        kernel and ridge, in which all rows are centres. Every rank then holds all rows. The parts' models learn the
        residual of the refined model.
    kernel, degree, coef0, n_divisions, validation_fraction, route, metric, metric_rounds, metric_init
        See :class:`BKRR2`.
    scaling, standardize, dtype, keep_factors, calibrate, random_state, comm
        See :class:`BKRR2`, also for the attributes. All parameters are chosen on held-out rows.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Notes
    -----
    n M^2 flops per coarse sigma, shared by the ranks; M^3 flops per candidate on each rank; and the cost of BKRR2.
    Training sends M x M + 3 M numbers per rank and coarse sigma, independent of n. All of this is repeated in each
    round of a metric, which adds one Allreduce of d x d numbers, or d for a diagonal metric.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from cakrr import TwoLevelKRR
    >>> X, y = make_friedman1(400, n_features=5, random_state=0)
    >>> model = TwoLevelKRR(n_parts=4, centers=50, sigma=6.0, lam=1e-6, random_state=0).fit(X[:300], y[:300])
    >>> len(model.params_)
    5
    >>> model.score(X[300:], y[300:]) > 0.9
    True
    """

    _method = twolevel
