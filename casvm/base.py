"""What the scikit-learn classifiers of the package share: parameters, checks, fitted attributes."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from cacore.errors import InputError
from cacore.memory import GIB
from cacore.validation import checked_weights, validated
from casvm.model import SVMModel
from casvm.options import Options
from casvm.prepare import Labelled
from casvm.smo import Limits

_ALIASES = {"rbf": "gaussian", "poly": "polynomial"}
_KINDS = ("float64", "float32")


class BaseSVC(ClassifierMixin, BaseEstimator):
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

    def _options(self, classes: NDArray[Any], limit: int, kernel: Any, **more: Any) -> Options:
        if not isinstance(kernel, str):
            raise InputError(f"kernel {kernel!r}: give the name of one")
        for name in ("C", "gamma", "degree", "coef0", "tol", "cache_gib", "max_iter", "max_time"):
            value = getattr(self, name)
            usual = (name == "gamma" and isinstance(value, str)) or (name == "max_time" and value is None)
            if not (usual or isinstance(value, Real)):
                raise InputError(f"{name} = {value!r}: it must be a number")
        if not 0 <= self.cache_gib < float("inf"):
            raise InputError(f"cache_gib = {self.cache_gib:g}: it must be a number of at least 0")
        return Options(
            C=self.C, kind=_ALIASES.get(kernel, kernel), gamma=self.gamma, degree=self.degree,
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

    def _expose(self, model: SVMModel) -> None:
        """The fitted attributes that SVC has, of this process' parts together."""
        self.model_, self.classes_ = model, model.classes
        k, two = len(model.classes), len(model.classes) == 2
        parts = list(model.parts.values())
        codes = np.concatenate([part.classes.repeat(part.n_support) for part in parts])
        rows = np.concatenate([part.rows for part in parts])
        order = np.lexsort((rows, codes))
        self.support_ = rows[order].astype(np.int32 if rows.size == 0 or rows.max() < 2**31 else np.int64)
        self.n_support_ = np.bincount(codes, minlength=k).astype(np.int32)
        coef = np.concatenate([part.spread(k) for part in parts], axis=1)[:, order]
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
