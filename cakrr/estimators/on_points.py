"""Least squares on M points as a scikit-learn regressor and classifier.

The regressor also learns from observations that a user generates, in place of training rows.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from cacore.checks import whole
from cacore.comm import Communicator, collective, shared_name
from cacore.data.estimators import same_fit
from cacore.data.rows import Rows, RowsLike
from cacore.data.validation import shared_seed
from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint
from cacore.learn.options import from_estimator
from cacore.linalg.tsqr import MOST_LEAVES
from cacore.machine import memory, threads
from cakrr.estimators.classifiers import RidgeClassifier
from cakrr.estimators.ridge_base import KernelRidge, Regressor
from cakrr.methods.least_squares import fit_observed
from cakrr.methods.points import UserRows
from cakrr.options import SubsetOptions
from cakrr.ridge_model import RidgeFit
from cakrr.subset import subset


@dataclass(eq=False, repr=False, kw_only=True)
class OnPoints(KernelRidge):
    """Base of the estimators on M points: parameters, options, and the attributes of the points."""

    centers: int | list[int] | Rows | None = None
    pick: str = "random"
    select: str = "loo"
    checkpoint: str | os.PathLike[str] | None = None

    def _checked_options(self, **extra: Any) -> SubsetOptions:
        extra |= self._automatic()
        if self.checkpoint is not None:
            extra["checkpoint"] = Checkpoint(Path(self.checkpoint))
        points: Any = self.centers
        if hasattr(points, "tocsr"):
            extra |= {"centers": None, "points": points.tocsr()}
        elif np.ndim(points) == 2:
            extra |= {"centers": None, "points": np.asarray(points)}
        options: SubsetOptions = from_estimator(SubsetOptions, self, **extra)
        return options

    def _expose(self, fitted: RidgeFit) -> None:
        coarse = fitted.model.coarse
        assert coarse is not None
        self.coef_ = coarse.beta

    def _take(self, fitted: RidgeFit) -> Self:
        super()._take(fitted)
        assert fitted.model.coarse is not None
        self.centers_ = fitted.model.coarse.centers
        return self


@dataclass(eq=False, repr=False, kw_only=True)
class SubsetKRR(OnPoints, Regressor):
    """Least squares on M points, by QR over all ranks: many rows, few coefficients, any lambda.

    Parameters
    ----------
    centers : int, sequence of int, array-like or CSR of shape (M, d), or None
        Number of points, or a list of numbers to compare, which share one triangle; or the points themselves, in the
        units of `X`. None means 1,000, or all rows if there are fewer.
    sigma, lam : float, sequence of float or "auto"
        Width and ridge, see :class:`BKRR2`: the coefficients c minimise the weighted squared errors plus lam w c^T K c,
        with the sum w of the row weights. "auto" compares the command's grid.
    kernel, degree, coef0
        See :class:`BKRR2`.
    pick : {"random", "pivots", "kmeans"}
        Choice of the points: random rows; pivots of the kernel matrix, drawn by the residual of those before; or means
        of clusters. Pivots and means are found among 20,000 rows, or 10 M.
    select : {"loo", "gcv"}
        Errors that compare the settings: those of each row left out, in closed form by a second pass over the rows; or
        robust generalised cross-validation, from the triangle alone, which takes two thirds of the time, and can
        choose too small a lambda where X has outliers.
    rows : callable or iterable, or None
        Observations instead of `X` and `y`: ``rows(share, shares)`` yields the blocks of a share of the data, on
        whichever rank; or an iterable of this rank's own blocks. A block is ``(A, y)`` or ``(A, y, weights)``: A is an
        observation (:mod:`cakrr.observe`) or an array of shape (b, M), y has shape (b,) or (b, t), and weights are a
        number or have shape (b,). Then `centers` must be an array, `sigma` must be given, and nothing is standardised.
    shares : int
        Number of shares of a callable `rows`, a power of two: at most as many ranks work. The coefficients have the
        same bits on any number of ranks.
    checkpoint : str, Path or None
        Directory in which `fit` keeps its triangles, at least every five minutes and when a block of `rows` fails; the
        same call continues there.
    scaling : {"deviation", "levels"}
        See :class:`BKRR2`.
    standardize, dtype, random_state, comm
        See :class:`BKRR2`.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Attributes
    ----------
    model_ : KRRModel
        `save` writes it, `load` reads it.
    sigma_, lam_ : float
        The chosen pair.
    grid_ : list of dict
        Error of every setting, if several were compared.
    at_grid_end_ : dict
        Chosen values, by parameter, that are an end of their grid of more than two: a wider one may be better.
    params_ : dict
        centers, the number of points; leaves of the tree; condition, an estimate for the rows.
    centers_ : ndarray or CSR, shape (M, d)
        The points, standardised.
    coef_ : ndarray, shape (M,) or (M, t)
        Their coefficients.
    n_features_in_ : int

    Notes
    -----
    2 n M^2 flops per sigma, shared by the ranks, and 3 n M^2 for left-out errors; about 12 M^3 per sigma on every rank.
    Memory: the rows, up to six squares of M^2 numbers, and packed triangles. Per sigma, about 2 R triangles of
    M (M + 1) / 2 numbers are sent (:func:`cacore.linalg.tsqr.sent_bytes`). The model stores one triangle, for standard
    deviations.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from cakrr import SubsetKRR
    >>> X, y = make_friedman1(400, n_features=5, random_state=0)
    >>> model = SubsetKRR(centers=100, sigma=6.0, lam=1e-8, random_state=0).fit(X[:300], y[:300])
    >>> model.score(X[300:], y[300:]) > 0.9
    True
    """

    _method = subset

    rows: UserRows | None = None
    shares: int = 16

    def fit(
        self, X: RowsLike | None = None, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Train on `X`, shape (n_local, d), dense or CSR, and `y`, (n_local,) or (n_local, t); or on `rows`, alone."""
        if self.rows is None:
            return super().fit(X, y, sample_weight)  # type: ignore[arg-type]
        if X is not None or y is not None or sample_weight is not None:
            raise InputError("rows: its blocks have the targets and weights; fit takes no X, y or sample_weight then")
        with collective(self.comm) as comm:
            same_fit(self, comm, excluded=("rows",))
            threads.share_once(comm)
            options = self._observing(comm)
            fitted = fit_observed(self._method, self.rows, self.shares, options, comm)
            fitted.model.comm, fitted.model.identity = self.comm, shared_name(comm)
        self.n_features_in_ = int(fitted.model.n_features)
        return self._take(fitted)

    def _observing(self, comm: Communicator) -> SubsetOptions:
        """The options of training on `rows`; collective."""
        seed, limit = shared_seed(self.random_state, comm), memory.limit_per_rank(comm)
        with comm.agreed():
            if self.dtype != "float64":
                raise InputError(f"dtype = {self.dtype!r}: with rows, it must be 'float64'")
            shares = whole(1, MOST_LEAVES)(self.shares, "shares =")
            if shares & (shares - 1):
                raise InputError(f"shares = {shares}: it must be a power of two")
            if isinstance(self.sigma, str):
                raise InputError("rows: give sigma; rows of your own are not scaled, so there is no natural width")
            options = self._checked_options()
        return replace(options, seed=seed, memory_limit=limit)


@dataclass(eq=False, repr=False, kw_only=True)
class SubsetKRRClassifier(OnPoints, RidgeClassifier):
    """Classifier by :class:`cakrr.SubsetKRR`: least squares of the classes' columns on M points.

    Parameters
    ----------
    centers, sigma, lam, kernel, degree, coef0, pick, select
        See :class:`cakrr.SubsetKRR`.
    checkpoint, scaling, standardize, dtype, random_state, comm
        See :class:`cakrr.SubsetKRR`.
    class_weight : dict, "balanced" or None
        Weights of the rows by their labels; "balanced" is n / (classes x rows of the class), over all ranks.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Attributes
    ----------
    classes_ : ndarray, shape (k,)
    model_ : KRRModel
        `save` writes it. ``KRRModel.load(path)`` reads it; its `predict` returns outputs, and `labels` their labels.
    sigma_, lam_, grid_, at_grid_end_, params_, centers_, coef_, n_features_in_
        See :class:`cakrr.SubsetKRR`; the errors in `grid_` are summed over the columns.

    Notes
    -----
    All classes share one triangle per sigma, which costs what it does in :class:`cakrr.SubsetKRR`.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from cakrr import SubsetKRRClassifier
    >>> X, y = make_moons(400, noise=0.2, random_state=0)
    >>> model = SubsetKRRClassifier(centers=50, sigma=0.5, lam=1e-3, random_state=0).fit(X[:300], y[:300])
    >>> model.predict_proba(X[300:]).shape
    (100, 2)
    >>> model.score(X[300:], y[300:]) > 0.9
    True
    """

    _method = subset
