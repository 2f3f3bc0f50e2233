"""scikit-learn regressors over the methods."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from cacore.comm import Communicator, as_communicator
from cacore.data.validation import checked_weights, shared_seed, validated
from cacore.errors import InputError
from cacore.io import Dataset
from cacore.machine import memory, threads
from cacore.run import grid, report
from cakrr import bkrr, bkrr2, dckrr, dkrr, kkrr, kkrr2, twolevel
from cakrr.methods.parts import fit
from cakrr.model import KRRModel
from cakrr.options import Method, Options, Trainer
from cakrr.solver.coarse import LOCAL_LAMS as LAMS
from cakrr.solver.coarse import Settings


class _KRR(RegressorMixin, BaseEstimator):
    """Kernel ridge regression in parts, with the Gaussian kernel.

    Parameters
    ----------
    n_parts : int or None
        Parts, P. None: one a rank, or as many as keep a part at 8,000 rows and its matrix in memory.
    sigma : float, sequence of float or None
        Width of exp(-|x-z|^2 / (2 sigma^2)); None is the square root of the number of features. With
        a sequence here or in `lam`, the pair with the least validation error is chosen, and all rows
        are used for the final fit.
    lam : float or sequence of float
        Ridge, lambda: a part of m rows solves (K + lambda m I) alpha = y.
    select : {"validation", "loo"}
        What judges the pairs: rows held out, or every row left out of its part's model, in closed form.
    validation_fraction : float
        Share of each part's rows that is held out.
    route : {"nearest", "soft", "all"} or None
        Other than the method's own: the nearest centre's model; the k nearest ones', weighted by
        exp(-(d^2 - d_min^2)/t), with k and t chosen on held-out rows; the mean of all.
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
    sigma_, lam_ : float
        The pair in use.
    grid_ : list of dict
        Validation error of every pair, if there was a choice.
    params_ : dict
        What else was chosen: soft_k and soft_t; centers, coarse_sigma and coarse_lambda.
    sizes_ : ndarray of int64, shape (P,)
    centers_ : ndarray, shape (P, d)
        In standardised features.
    n_features_in_ : int

    Notes
    -----
    m^2 d + m^3/3 flops and 8 m^2 bytes a part of m rows. Training moves no bytes between ranks.
    """

    _method: ClassVar[Method]
    _trainer: ClassVar[Trainer] = staticmethod(fit)

    def __init__(
        self,
        n_parts: int | None = None,
        *,
        sigma: Any = None,
        lam: Any = 1e-4,
        select: str = "validation",
        validation_fraction: float = 0.1,
        route: str | None = None,
        standardize: bool = True,
        dtype: str = "float64",
        random_state: Any = None,
        comm: Any = None,
    ) -> None:
        self.n_parts = n_parts
        self.sigma = sigma
        self.lam = lam
        self.select = select
        self.validation_fraction = validation_fraction
        self.route = route
        self.standardize = standardize
        self.dtype = dtype
        self.random_state = random_state
        self.comm = comm

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> _KRR:
        """Train on `X`, shape (n_local, d), dense or CSR, and `y`, shape (n_local,); neither is changed.

        Rows of weight 0 count as absent. Raises InputError, a ValueError, on what cannot be used.
        """
        comm = as_communicator(self.comm)
        with comm.guard():
            threads.share_once(comm)
            with comm.agreed():
                train, weights = self._checked(X, y, sample_weight, comm)
                sigma = None if self.sigma is None else grid.checked(self.sigma, "sigma")
                lam, coarse = grid.checked(self.lam, "lam"), self._coarse()
            train.n = comm.offset(train.X.shape[0])[1]
            with comm.agreed():
                if train.n == 0:
                    raise InputError("Sample weights must contain at least one non-zero number.")
            options = Options(
                partitions=self.n_parts,
                sigma=sigma,
                lam=lam,
                coarse=coarse,
                select=self.select,
                validation_fraction=self.validation_fraction,
                route=self.route,
                standardize=self.standardize,
                seed=shared_seed(self.random_state, comm),
                memory_limit=memory.limit_per_rank(comm),
            )
            result = self._trainer(self._method, train, options, comm, weights=weights)
        for note in result.notes:
            warnings.warn(note, stacklevel=2)
        self.model_: KRRModel = result.model
        self.grid_ = result.grid
        self.sigma_, self.lam_ = result.model.sigma, result.model.lam
        self.params_ = result.params
        self.sizes_, self.centers_ = result.sizes, result.model.centers
        return self

    def _coarse(self) -> Settings:
        return Settings()

    def predict(self, X: Any) -> NDArray[Any]:
        """Predictions for `X`, shape (n_local, d); with `comm`, a collective call."""
        check_is_fitted(self)
        comm = as_communicator(self.comm)
        with comm.guard():
            with comm.agreed():
                X = validated(
                    self, X, reset=False, accept_sparse="csr", dtype=self.dtype, ensure_min_samples=int(comm.size == 1)
                )
            return self.model_.predict(X, comm)

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """R^2; with `comm`, over all ranks' rows, the same number on each: a collective call."""
        comm = as_communicator(self.comm)
        if comm.size == 1:
            return float(super().score(X, y, sample_weight))
        predicted = self.predict(X)
        with comm.guard():
            with comm.agreed():
                weights = None if sample_weight is None else checked_weights(sample_weight, len(predicted))
            r2 = report.regression_metrics(np.asarray(y), predicted, comm, weights)["r2"]
        return float("nan") if r2 is None else r2

    def _checked(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None, comm: Communicator
    ) -> tuple[Dataset, NDArray[np.float64] | None]:
        """A copy of this rank's rows, which training takes over."""
        if self.dtype not in ("float64", "float32"):
            raise InputError(f"dtype {self.dtype!r}: choose float64 or float32")
        X, y = validated(
            self, X, y, accept_sparse="csr", dtype=self.dtype, order="C", copy=True, y_numeric=True,
            ensure_min_samples=int(comm.size == 1),
        )  # fmt: skip
        y = np.asarray(y, np.float64)
        if sample_weight is None:
            return Dataset(X, y, X.shape[0], "X"), None
        weights = checked_weights(sample_weight, X.shape[0])
        kept = weights > 0
        return Dataset(X[kept], y[kept], int(kept.sum()), "X"), weights[kept]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


_REST = (_KRR.__doc__ or "").split(chr(10), 2)[2]


class BKRR2(_KRR):
    """Balanced parts by K-balance; the nearest centre's model answers (Algorithm 10)."""

    __doc__ = f"{__doc__}\n\n{_REST}"
    _method = bkrr2.METHOD


class KKRR2(_KRR):
    """Parts by K-means, of whatever size; the nearest centre's model answers (section 3.4)."""

    __doc__ = f"{__doc__}\n\n{_REST}"
    _method = kkrr2.METHOD


class DCKRR(_KRR):
    """Random even parts; the mean of all models answers (Algorithm 8; Zhang, Duchi and Wainwright, 2013)."""

    __doc__ = f"{__doc__}\n\n{_REST}"
    _method = dckrr.METHOD


class BKRR(_KRR):
    """Balanced parts by K-balance; the mean of all models answers (section 3.4)."""

    __doc__ = f"{__doc__}\n\n{_REST}"
    _method = bkrr.METHOD


class KKRR(_KRR):
    """Parts by K-means; the mean of all models answers (section 3.4)."""

    __doc__ = f"{__doc__}\n\n{_REST}"
    _method = kkrr.METHOD


class TwoLevelKRR(_KRR):
    """A coarse model of all rows, and balanced parts' models of what it leaves over: the one to use for accuracy.

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
    validation_fraction, route, standardize, dtype, random_state, comm
        As for :class:`BKRR2`, and so are the attributes. All is chosen on held-out rows.

    Notes
    -----
    n M^2 flops a coarse sigma, shared by the ranks, M^3 a candidate on each, and what BKRR2 costs.
    Training moves M x M + 3 M numbers a rank and coarse sigma, whatever n.
    """

    _method = twolevel.METHOD

    def __init__(
        self,
        n_parts: int | None = None,
        *,
        centers: Any = None,
        coarse_sigma: Any = None,
        coarse_lam: Any = None,
        sigma: Any = None,
        lam: Any = LAMS,
        validation_fraction: float = 0.1,
        route: str | None = None,
        standardize: bool = True,
        dtype: str = "float64",
        random_state: Any = None,
        comm: Any = None,
    ) -> None:
        super().__init__(
            n_parts, sigma=sigma, lam=lam, validation_fraction=validation_fraction, route=route,
            standardize=standardize, dtype=dtype, random_state=random_state, comm=comm,
        )  # fmt: skip
        self.centers = centers
        self.coarse_sigma = coarse_sigma
        self.coarse_lam = coarse_lam

    def _coarse(self) -> Settings:
        return Settings(
            None if self.centers is None else grid.whole(self.centers, "centers"),
            None if self.coarse_sigma is None else grid.checked(self.coarse_sigma, "coarse_sigma"),
            None if self.coarse_lam is None else grid.checked(self.coarse_lam, "coarse_lam"),
        )


class DKRR(_KRR):
    """Exact kernel ridge regression, one system of all rows over all ranks (Algorithm 6).

    Parameters
    ----------
    sigma, lam, validation_fraction, standardize, dtype, random_state, comm
        As for :class:`BKRR2`, and so are the attributes.

    Notes
    -----
    n^2 d + n^3/3 flops and 8 n^2 bytes, shared by the ranks. More than one rank needs ScaLAPACK:
    pip install 'cakernels[scalapack]'.
    """

    _method = dkrr.METHOD
    _trainer = staticmethod(dkrr.fit)

    def __init__(
        self,
        *,
        sigma: Any = None,
        lam: Any = 1e-4,
        validation_fraction: float = 0.1,
        standardize: bool = True,
        dtype: str = "float64",
        random_state: Any = None,
        comm: Any = None,
    ) -> None:
        super().__init__(
            sigma=sigma, lam=lam, validation_fraction=validation_fraction, standardize=standardize, dtype=dtype,
            random_state=random_state, comm=comm,
        )  # fmt: skip
