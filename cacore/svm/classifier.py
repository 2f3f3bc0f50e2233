"""What the scikit-learn classifiers of all SVM families share: parameters, and checks of rows, labels and weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from cacore.data.dataset import Dataset
from cacore.data.validation import checked_weights, validated
from cacore.errors import InputError

_ROWS = {"accept_sparse": "csr", "accept_large_sparse": False, "order": "C"}


@dataclass(eq=False, repr=False, kw_only=True)
class KernelClassifier(ClassifierMixin, BaseEstimator):
    """Parameters of the dual problem and of its solver, and checks of what `fit` and `predict` are given."""

    C: float = 1.0
    kernel: Any = "gaussian"
    gamma: Any = "scale"
    degree: int = 3
    coef0: float = 0.0
    tol: float = 1e-3
    class_weight: Any = None
    cache_gib: float = 1.0
    max_iter: int = -1
    max_time: float | None = None

    def _class_weight(self, classes: NDArray[Any]) -> Any:
        """The weights by the classes' codes."""
        if self.class_weight is None or (isinstance(self.class_weight, str) and self.class_weight == "balanced"):
            return self.class_weight
        if not isinstance(self.class_weight, dict):
            raise InputError(f"class_weight {self.class_weight!r}: give a dict, 'balanced' or None")
        codes = dict(zip(classes.tolist(), range(len(classes)), strict=True))
        unknown = [label for label in self.class_weight if label not in codes]
        if unknown:
            raise InputError(f"class_weight: there is no class {unknown[0]!r} among the labels")
        for label, weight in self.class_weight.items():
            if not (isinstance(weight, Real) and 0 < float(weight) < float("inf")):
                raise InputError(f"class_weight of {label!r} = {weight!r}: it must be a positive number")
        return {codes[label]: float(weight) for label, weight in self.class_weight.items()}

    def _checked(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None, least: int = 1) -> Dataset:
        """Rows, labels and weights to train on, at least so many."""
        X, y = validated(self, X, y, dtype=("float64", "float32"), ensure_min_samples=least, **_ROWS)
        try:
            check_classification_targets(y)
            y = column_or_1d(y, warn=True)
        except ValueError as error:
            raise InputError(str(error)) from error
        weights = None if sample_weight is None else checked_weights(sample_weight, X.shape[0])
        return Dataset(X, np.asarray(y), X.shape[0], weights=weights)

    def _rows(self, X: Any, least: int = 1) -> Any:
        """Rows to predict, as the model has them."""
        check_is_fitted(self, "model_")
        return validated(self, X, reset=False, dtype=self.model_.dtype, ensure_min_samples=least, **_ROWS)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def printer(line: Callable[[Any], str]) -> Callable[[Any], None]:
    """Print a line about a solver's progress, about once a second."""
    last = time.perf_counter()

    def show(progress: Any) -> None:
        nonlocal last
        if time.perf_counter() - last > 1.0:
            last = time.perf_counter()
            print(line(progress), flush=True)

    return show
