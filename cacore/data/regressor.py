"""Base class of all scikit-learn regressors: checks of targets and row weights, and the score."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import column_or_1d

from cacore.comm import collective
from cacore.data.asking import asking
from cacore.data.dataset import Dataset
from cacore.data.rows import RowsLike
from cacore.data.validation import checked_weights, columns_of, place_in_targets, validated
from cacore.errors import InputError
from cacore.metrics import errors


class Regressing(RegressorMixin, BaseEstimator):
    """Checks of the rows, targets and weights passed to `fit`, and R^2 over all ranks."""

    def _with_targets(
        self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None, *, columns: bool = False, **rows: Any
    ) -> Dataset:
        """Validated rows, targets and weights; `columns` allows several targets; `rows` is as in `Labelled`."""
        if issparse(y):
            raise InputError("y: sparse targets cannot be used; give y.toarray()")
        targets = {"ensure_2d": False, "dtype": None, "ensure_min_samples": 0, "ensure_min_features": 0}
        names = columns_of(X, y)
        X, given = validated(self, X, y, validate_separately=(rows, targets))
        if not given.ndim or not all(given.shape[1:]):
            raise InputError(f"y has shape {given.shape}: there is no target")
        try:
            y = np.asarray(given if columns else column_or_1d(given, warn=True), np.float64)
        except (ValueError, TypeError) as error:
            remedy = f"the targets of a regression are numbers, and {_classifier(type(self))} has classes"
            raise InputError(f"y: {error}; {remedy}") from error
        if len(y) != X.shape[0]:
            raise InputError(f"Found input variables with inconsistent numbers of samples: {[X.shape[0], len(y)]}")
        if (place := place_in_targets(y)) is not None:
            raise InputError(place)
        weights = None if sample_weight is None else checked_weights(sample_weight, X.shape[0])
        return Dataset(X, y, X.shape[0], weights=weights, columns=names)

    def score(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """R^2, averaged over targets. With `comm`, a collective call that returns R^2 over all ranks' rows."""
        ranks = getattr(self, "comm", None)
        if ranks is None:
            return float(super().score(X, y, sample_weight))
        with asking(self, "score"):
            pass  # all ranks score, before any of them predicts
        predicted = self.predict(X)
        with collective(ranks) as comm:
            with comm.agreed():
                weights = None if sample_weight is None else checked_weights(sample_weight, len(predicted))
            r2 = errors.regression_metrics(np.asarray(y), predicted, comm, weights)["r2"]
        return float("nan") if r2 is None else r2


def _classifier(kind: type) -> str:
    """Name of the package's classifier by the method of this regressor, or of a class that it extends; else any."""
    for base in kind.__mro__:
        name, home = base.__name__, base.__module__.partition(".")[0]
        stem = name.removesuffix("Regressor").replace("Quantile", "")
        other = f"{stem[:-1]}C" if stem.endswith("SVR") else f"{stem}Classifier"
        if home in ("asygcd", "cakernels", "cakriging", "cakrr", "casvm") and hasattr(import_module(home), other):
            return other
    return "a classifier"
