"""The methods in parts, and the one on two levels, as scikit-learn regressors."""

from __future__ import annotations

from dataclasses import dataclass, field

from cacore.tuning.grid import GridLike
from cakrr.bkrr import bkrr
from cakrr.bkrr2 import bkrr2
from cakrr.dckrr import dckrr
from cakrr.estimators.base import Regressor
from cakrr.kkrr import kkrr
from cakrr.kkrr2 import kkrr2
from cakrr.options import LOCAL_LAMS
from cakrr.twolevel import twolevel


@dataclass(eq=False, repr=False, kw_only=True)
class RidgeInParts:
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
    lam: GridLike = LOCAL_LAMS
    centers: GridLike | None = None
    coarse_sigma: GridLike | None = None
    coarse_lam: GridLike | None = None
    refine: int = 0
    n_divisions: int = 1
    route: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class Factors:
    """The parameter of regressions in parts that keep the factors of their matrices."""

    keep_factors: bool = False


@dataclass(eq=False, repr=False, kw_only=True)
class BKRR2(RidgeInParts, Factors, Regressor):
    """Balanced parts by K-balance; the nearest centre's model answers (Algorithm 10).

    Parameters
    ----------
    n_parts : int or None
        Number of parts, P. None: one per rank, or as many as keep a part at 8,000 rows and its matrix in memory.
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
        Number of divisions of the rows, at the setting that was chosen on the first one. Predictions are averaged over
        them, which smooths the borders of the parts. Rows sent, models kept and seconds of the last fit grow with it.
    select : {"validation", "loo"}
        Rows that judge the pairs: rows held out, or every row left out of its part's model, in closed form.
    validation_fraction : float
        Share of each part's rows that is held out.
    cv : int or None
        Number of folds, which judge each row once, in place of one held-out share; the search takes so many times
        longer.
    per_part : bool
        Every part chooses its own `sigma` and `lam`, by its own held-out rows, which are not sent; `sigma_` and `lam_`
        are then arrays.
    route : {"nearest", "soft", "all"} or None
        Other than the method's own: the nearest centre's model; the k nearest ones', weighted by
        exp(-(d^2 - d_min^2)/t), with k and t chosen on held-out rows; the mean of all.
    metric : {"none", "diagonal", "full", "lengths"}
        Learn, in rounds of training, how much each feature counts, or each direction of them: rows are mapped by the
        root of the mean of grad f grad f^T, f the model that answers. "lengths", of kernels of a distance: each feature
        by the factor that lessens the leave-one-out errors inside the parts. The round with the least validation error
        is kept, which may be the one without a metric. "full" takes 4,096 features at most, and makes CSR rows dense.
    metric_rounds : int
        Most rounds after the first one; three in a row without an improvement are the last.
    scaling : {"deviation", "quantile", "auto"}
        "quantile" replaces each feature, dense ones only, by the normal score of its rank, as far as 10,000 rows show:
        right where features have heavy tails. "auto" takes whichever has the lesser validation error.
    standardize : bool
        Scale features by the training rows' mean and deviation. CSR rows are scaled, not shifted.
    dtype : {"float64", "float32"}
        Type of the rows and the factors. float32 halves the memory; the solutions are refined to double precision.
    keep_factors : bool
        Keep in the model the factors that standard deviations need, 8 m^2 bytes a part of m rows, for 2/3 m^3 flops;
        otherwise ``predict(X, return_std=True)`` makes them when it is first called.
    calibrate : float, "loo", "jackknife+" or None
        Rows for :meth:`predict_interval`: the share of the rows that is set aside for it, and not learned from;
        or "loo", the errors of rows left out of their part's model, which cost no rows and guarantee no coverage; or
        "jackknife+", with what each row does to an answer as well, which costs 2 m^2 flops a row to be predicted.
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
        Metric of standardised features, with trace d, if one was learned; the identity if the first round was best.
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
    m^2 d + m^3/3 flops and 8 m^2 bytes per part of m rows. Training moves no bytes between ranks. A metric costs the
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
class TwoLevelKRR(OnTwoLevels, Factors, Regressor):
    """A coarse model of all rows, and balanced parts' models of its residual: the one to use for accuracy.

    Parameters
    ----------
    n_parts : int or None
        Number of parts, P. None: one per rank, or as many as keep a part at 8,000 rows and its matrix in memory.
    centers : int, sequence of int or None
        Centres of the coarse model, M; None tries 500, 1,000 and 1,500.
    coarse_sigma, coarse_lam : float, sequence of float or None
        Width and ridge of the coarse model; None tries a small grid.
    sigma, lam : float or sequence of float
        Setting of the parts' models; None for `sigma` tries a small grid.
    refine : int
        Iterations of conjugate gradients from the chosen coarse model towards the exact one of its kernel and ridge,
        whose centres are all rows; the parts' models are of what that leaves over. All rows are then on every rank.
    kernel, degree, coef0, n_divisions, validation_fraction, route, metric, metric_rounds
        See :class:`BKRR2`.
    scaling, standardize, dtype, keep_factors, calibrate, random_state, comm
        See :class:`BKRR2`, also for the attributes. All is chosen on held-out rows.

    Notes
    -----
    n M^2 flops a coarse sigma, shared by the ranks, M^3 a candidate on each, and what BKRR2 costs.
    Training moves M x M + 3 M numbers a rank and coarse sigma, whatever n. All of it anew in each round of a metric,
    and one Allreduce of d x d numbers, or d.
    """

    _method = twolevel
