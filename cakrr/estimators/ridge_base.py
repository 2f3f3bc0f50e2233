"""Base classes of the ridge estimators: parameters, training and prediction; and the regressors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags

from cacore.checks import one_of
from cacore.comm import CommLike, Communicator, collective
from cacore.data.dataset import Dataset
from cacore.data.estimators import Loaded, Regressing, Saved, asking, same_fit
from cacore.data.resolution import check_given
from cacore.data.rows import Rows, RowsLike
from cacore.data.validation import EncodedRows, check_same_names, shared_seed, validated, with_features
from cacore.errors import InputError
from cacore.explain.explanation import Explains
from cacore.learn.options import from_estimator
from cacore.machine import memory, threads
from cacore.tuning import GridLike
from cakrr.options import RidgeMethod, RidgeOptions
from cakrr.ridge_model import KRRModel, RidgeFit

Answer = TypeVar("Answer")


@dataclass(eq=False, repr=False, kw_only=True)
class KernelRidge(Saved, Explains, BaseEstimator):
    """Base of regressors and classifiers: common parameters, training and prediction."""

    sigma: GridLike | None = "auto"
    lam: GridLike = "auto"
    kernel: str | Callable[[Rows, Rows], np.ndarray] = "gaussian"
    degree: int = 3
    coef0: float = 0.0
    scaling: str = "deviation"
    standardize: bool = True
    dtype: str = "float64"
    random_state: int | np.random.RandomState | None = None
    comm: CommLike = None

    _method: ClassVar[RidgeMethod]

    def fit(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on `X`, shape (n_local, d), dense or CSR, and `y`; neither is changed.

        `y` has shape (n_local,), or (n_local, t) for a regression with t targets, which share all factorisations. Rows
        of weight 0 are ignored. Invalid input raises an InputError, a ValueError.
        """
        with collective(self.comm) as comm:
            same_fit(self, comm)
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
        return self._take(fitted)

    def _take(self, fitted: RidgeFit) -> Self:
        """Warn of its notes, and set the attributes."""
        for note in fitted.notes:
            warnings.warn(note, stacklevel=3)
        fitted.model.comm = self.comm
        self.model_: KRRModel = fitted.model
        self.grid_, self.at_grid_end_ = fitted.grid, fitted.at_grid_end
        self.sigma_: float | NDArray[np.float64] = (
            fitted.model.sigma if fitted.model.sigmas is None else fitted.model.sigmas
        )
        self.lam_: float | NDArray[np.float64] = fitted.model.lam if fitted.model.lams is None else fitted.model.lams
        self.params_ = fitted.params
        self.sizes_ = fitted.sizes
        self.centers_: Rows = fitted.model.centers
        self._expose(fitted)
        return self

    def _expose(self, fitted: RidgeFit) -> None:
        """Set the attributes that only some methods have."""

    def _problem(
        self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None, comm: Communicator
    ) -> tuple[Dataset, RidgeOptions]:
        """This rank's rows, and the options of training; collective."""
        X = with_features(self, X, y, sample_weight, comm)
        with comm.agreed(own_rows=True):
            train = self._checked(X, y, sample_weight, int(comm.size == 1))
        check_same_names(self, comm)
        if self.dtype == "float32":
            check_given(X.features if isinstance(X, EncodedRows) else X, train.X, comm, train.columns.features)
        return train, self._options(train, comm)

    def _checked(
        self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None, least: int, copy: bool = True
    ) -> Dataset:
        """A checked copy of this rank's rows without those of weight 0; training takes it over."""
        raise NotImplementedError

    def _options(self, train: Dataset, comm: Communicator) -> RidgeOptions:
        """The options of training; collective."""
        with comm.agreed():
            return self._checked_options()

    def _checked_options(self, **extra: Any) -> RidgeOptions:
        """The parameters, checked; `extra` are options that are no parameters."""
        options: RidgeOptions = from_estimator(RidgeOptions, self, **extra, **self._automatic())
        return options

    def _automatic(self) -> dict[str, object]:
        """The command's grids, for parameters set to "auto"."""
        options: dict[str, object] = {}
        if is_auto(self.sigma):
            options |= {"sigma": None, "wide": True}
        if is_auto(self.lam):
            options["lam"] = self._method.lams
        return options

    def _values(self, X: RowsLike, call: str = "predict") -> NDArray[np.float64]:
        """The model's outputs for `X`, shape (n_local, d); with `comm`, a collective call."""
        return self._answer_of_model(X, KRRModel.predict, call)

    def _answer_of_model(
        self, X: RowsLike, ask: Callable[[KRRModel, Rows, Communicator], Answer], call: str, **arguments: object
    ) -> Answer:  # fmt: skip
        """Result of ``ask(model, X, comm)`` once the rows of `X` are checked; `call` names the method in messages."""
        with asking(self, call, **arguments) as comm:
            with comm.agreed(own_rows=True):
                X = validated(
                    self, X, reset=False, accept_sparse="csr", dtype=self.dtype, ensure_min_samples=int(comm.size == 1)
                )
            return ask(self.model_, X, comm)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def is_auto(value: object) -> bool:
    """True for a parameter set to "auto", the command's grid."""
    return isinstance(value, str) and value == "auto"


@dataclass(eq=False, repr=False, kw_only=True)
class Regressor(Regressing, Loaded, KernelRidge):
    """Base of the regressors: one or several targets, with standard deviations and intervals."""

    _model = KRRModel

    @overload
    def predict(self, X: RowsLike, return_std: Literal[False] = False) -> NDArray[np.float64]: ...

    @overload
    def predict(self, X: RowsLike, return_std: Literal[True]) -> tuple[NDArray[np.float64], NDArray[np.float64]]: ...

    def predict(
        self, X: RowsLike, return_std: bool = False
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Predictions for `X`, shape (n_local, d), in the shape of `y`; with `comm`, a collective call.

        With `return_std`, returns the predictions and predictive standard deviations of the same shape: those of a
        Gaussian process with the model's kernel and ridge, in units estimated from leave-one-out errors. For their
        cost, see :func:`cakrr.uncertainty.deviation.predict`.
        """
        if return_std:
            return self._answer_of_model(X, KRRModel.predict_std, "predict", return_std=True)
        return self._answer_of_model(X, KRRModel.predict, "predict", return_std=False)

    def predict_interval(
        self, X: RowsLike, coverage: float = 0.9, adaptive: bool | str | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper ends of intervals for new targets at `X`, in the shape of a prediction; collective.

        If `calibrate` set a share of the rows aside, an interval contains a new target with at least this probability;
        with "loo" and "jackknife+" the coverage is approximate. Widths are the same for all rows, except with
        "jackknife+", or if `adaptive` is given: "std" or True makes them proportional to the standard deviations, for a
        model with `keep_factors`, and "parts" uses a width per part. See :mod:`cacore.probability.conformal`. A
        coverage that the model does not support raises an InputError.
        """
        lower, upper = self._answer_of_model(
            X, lambda model, X, comm: model.predict_interval(X, coverage, adaptive, comm), "predict_interval",
            coverage=coverage, adaptive=adaptive,
        )  # fmt: skip
        return lower, upper

    def _checked(
        self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None, least: int, copy: bool = True
    ) -> Dataset:
        rows = {"accept_sparse": "csr", "dtype": self.dtype, "order": "C", "copy": copy, "ensure_min_samples": least}
        return self._with_targets(X, y, sample_weight, columns=True, **rows).weighted()

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
