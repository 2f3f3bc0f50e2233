"""Checks of parameters, rows and labels that the scikit-learn classifiers share."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from cacore.data.labels import Labelled
from cacore.data.validation import checked_weights, validated
from cacore.errors import InputError

ALIASES = {"rbf": "gaussian", "poly": "polynomial"}
_KINDS = ("float64", "float32")


class KernelClassifier(ClassifierMixin, BaseEstimator):
    """Checks of parameters, rows and labels that the scikit-learn classifiers share."""

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
    model_: Any

    def _kernel_name(self, kernel: Any) -> str:
        """The package's name of `kernel`, if the other parameters are numbers where they have to be."""
        if not isinstance(kernel, str):
            raise InputError(f"kernel {kernel!r}: give the name of one")
        for name in ("C", "gamma", "degree", "coef0", "tol", "cache_gib", "max_iter", "max_time"):
            value = getattr(self, name)
            usual = (name == "gamma" and isinstance(value, str)) or (name == "max_time" and value is None)
            if not (usual or isinstance(value, Real)):
                raise InputError(f"{name} = {value!r}: it must be a number")
        if not 0 <= self.cache_gib < float("inf"):
            raise InputError(f"cache_gib = {self.cache_gib:g}: it must be a number of at least 0")
        return ALIASES.get(kernel, kernel)

    def _seconds(self) -> float:
        return float("inf") if self.max_time is None else self.max_time

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
        X, y = validated(
            self, X, y, accept_sparse="csr", dtype=_KINDS, order="C", accept_large_sparse=False,
            ensure_min_samples=least,
        )  # fmt: skip
        try:
            check_classification_targets(y)
            y = column_or_1d(y, warn=True)
        except ValueError as error:
            raise InputError(str(error)) from error
        return Labelled(X, np.asarray(y), None if sample_weight is None else checked_weights(sample_weight, X.shape[0]))

    def _rows(self, X: Any, least: int = 1) -> Any:
        """Rows to predict, as the model has them."""
        check_is_fitted(self, "model_")
        return validated(
            self, X, reset=False, accept_sparse="csr", dtype=self.model_.dtype, order="C", accept_large_sparse=False,
            ensure_min_samples=least,
        )  # fmt: skip

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
