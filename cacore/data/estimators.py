"""The base of all scikit-learn estimators: agreement of the ranks, checks of labels and targets, scores, and files.

All ranks make the same call with the same parameters, before anything else. `save` writes the model alone; `load`
returns a model, which predicts as the estimator does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from cacore import metrics
from cacore.comm import CommLike, Communicator, Unquoted, collective, require_same
from cacore.data.dataset import Dataset
from cacore.data.labels import ClassWeight
from cacore.data.rows import RowsLike
from cacore.data.validation import (
    ColumnsLike,
    checked_weights,
    columns_of,
    is_plain_column,
    place_in_targets,
    validated,
    with_features,
)
from cacore.errors import InputError


def same_fit(estimator: BaseEstimator, comm: Communicator, excluded: tuple[str, ...] = ()) -> None:
    """Raise an InputError on all ranks if they fit estimators of other classes or parameters; collective.

    `excluded` names parameters of which each rank has its own.
    """
    if comm.size > 1:
        parameters = estimator.get_params(deep=False)
        for name in ("comm", *excluded):
            parameters.pop(name, None)
        _same_call(estimator, "fit", comm, parameters)


@contextmanager
def asking(estimator: BaseEstimator, call: str, **arguments: Any) -> Iterator[Communicator]:
    """Provide the communicator for a call of a fitted estimator, once all ranks make the same call; collective.

    Raises
    ------
    InputError
        On all ranks: another call, other arguments, or an estimator that only some ranks have fitted.
    NotFittedError
        No rank has fitted the estimator.
    """
    fitted = hasattr(estimator, "model_")
    if fitted or estimator.comm is not None:
        with collective(estimator.comm) as comm:
            _same_call(estimator, call, comm, {"fitted": fitted, **arguments})
            if fitted:
                yield comm
                return
    check_is_fitted(estimator, "model_")


def _same_call(estimator: BaseEstimator, call: str, comm: Communicator, parameters: dict[str, Any]) -> None:
    with comm.uncounted():
        require_same({"call": Unquoted(f"{type(estimator).__name__}.{call}"), **parameters}, comm)


ROWS: dict[str, Any] = {"accept_sparse": "csr", "accept_large_sparse": False, "order": "C"}


@dataclass(eq=False, repr=False, kw_only=True)
class Labelled(ClassifierMixin, BaseEstimator):
    """Checks of the rows, labels and weights passed to `fit`, and accuracy over all ranks."""

    class_weight: dict[Any, float] | Literal["balanced"] | None = None
    columns: ColumnsLike = None

    def _class_weight(self, classes: NDArray[Any]) -> ClassWeight:
        """`class_weight`, checked, with the classes' codes as keys of a dict."""
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

    def _labelled(
        self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None, least: int = 1, **rows: Any
    ) -> Dataset:  # fmt: skip
        """Validated rows, labels and weights of at least `least` rows; `rows`: options of ``validate_data`` for `X`."""
        table, named = with_features(self, X, y, sample_weight), y
        X, y = validated(
            self, table, y, ensure_min_samples=least, **(rows or {"dtype": ("float64", "float32"), **ROWS})
        )
        columns = columns_of(table, named, vars(self).get("encoding_"), self.columns)
        try:
            # Repeated whole numbers, booleans or texts need no check, which takes a third of a fit to 150 rows.
            if not (is_plain_column(y) and 2 * len(np.unique(y)) <= np.size(y)):
                with np.errstate(invalid="ignore"):  # it casts labels of any size to integers
                    check_classification_targets(y)
                y = column_or_1d(y, warn=True)
        except ValueError as error:
            raise InputError(str(error)) from error
        weights = None if sample_weight is None else checked_weights(sample_weight, X.shape[0])
        return Dataset(X, np.asarray(y), X.shape[0], weights=weights, columns=columns)

    def score(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy. With `comm`, a collective call that returns the accuracy over all ranks' rows on each rank."""
        ranks = getattr(self, "comm", None)
        if ranks is None:
            return float(super().score(X, y, sample_weight))
        with asking(self, "score"):
            pass  # all ranks score, before any of them predicts
        predicted = self.predict(X)
        with collective(ranks) as comm:
            weights = np.ones(len(predicted)) if sample_weight is None else np.asarray(sample_weight, np.float64)
            right, total = comm.allreduce(np.array([weights @ (predicted == np.asarray(y)), weights.sum()]))
        return float(right / total)


@dataclass(eq=False, repr=False, kw_only=True)
class Regressing(RegressorMixin, BaseEstimator):
    """Checks of the rows, targets and weights passed to `fit`, and R^2 over all ranks."""

    columns: ColumnsLike = None

    def _with_targets(
        self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None, *, columns: bool = False, **rows: Any
    ) -> Dataset:
        """Validated rows, targets and weights; `columns` allows several targets; `rows` is as in `Labelled`."""
        if issparse(y):
            raise InputError("y: sparse targets cannot be used; give y.toarray()")
        targets = {"ensure_2d": False, "dtype": None, "ensure_min_samples": 0, "ensure_min_features": 0}
        table = with_features(self, X, y, sample_weight)
        X, read_targets = validated(self, table, y, validate_separately=(rows, targets))
        names = columns_of(table, y, vars(self).get("encoding_"), self.columns)
        if not read_targets.ndim or not all(read_targets.shape[1:]):
            raise InputError(f"y has shape {read_targets.shape}: there is no target")
        try:
            y = np.asarray(read_targets if columns else column_or_1d(read_targets, warn=True), np.float64)
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
        if getattr(self, "comm", None) is not None:
            with asking(self, "score"):
                pass  # all ranks score, before any of them predicts
        return self._r2(y, self.predict(X), sample_weight)

    def _r2(self, y: ArrayLike, predicted: NDArray[np.float64], sample_weight: ArrayLike | None) -> float:
        """R^2 of predictions over all ranks' rows; collective."""
        from sklearn.metrics import r2_score

        ranks = getattr(self, "comm", None)
        if ranks is None:
            return float(r2_score(y, predicted, sample_weight=sample_weight))
        with collective(ranks) as comm:
            with comm.agreed():
                weights = None if sample_weight is None else checked_weights(sample_weight, len(predicted))
            r2 = metrics.regression_metrics(np.asarray(y), predicted, comm, weights)["r2"]
        return float("nan") if r2 is None else r2


def _classifier(kind: type) -> str:
    """Name of the package's classifier by the method of this regressor, or of a class that it extends; else any."""
    for base in kind.__mro__:
        name, home = base.__name__, base.__module__.partition(".")[0]
        stem = name.removesuffix("Regressor").replace("Quantile", "")
        classifier = f"{stem[:-1]}C" if stem.endswith("SVR") else f"{stem}Classifier"
        if home in ("asygcd", "cakernels", "cakriging", "cakrr", "casvm") and hasattr(import_module(home), classifier):
            return classifier
    return "a classifier"


class Saved:
    """Base of the estimators whose fitted model can be written to a file."""

    def save(self, path: str | Path) -> None:
        """Write the fitted model, `model_`, to one HDF5 file without pickle; with `comm`, a collective call.

        Any number of ranks can read it, and so can ``python -m PACKAGE.predict``. The file has what predictions need,
        and not the estimator's parameters: to keep those, pickle the estimator.

        Raises
        ------
        InputError, OutputError
            No file can be written at `path`, or the kernel is a callable, which a file cannot hold.
        NotFittedError
        """
        if getattr(self, "comm", None) is None:
            check_is_fitted(self, "model_")
            vars(self)["model_"].save(path)
            return
        with asking(self, "save") as comm:
            vars(self)["model_"].save(path, comm)


class Loaded(Saved):
    """Base of those whose model has their `predict`, so that it can be loaded in their place."""

    _model: ClassVar[Any]  # the model's class

    @classmethod
    def load(cls, path: str | Path, comm: CommLike = None) -> Any:
        """Read a saved model: its `predict` is that of the estimator which saved it.

        What is returned is the model, `model_`, and not an estimator, whose parameters the file does not have. With
        `comm`, a collective call on any number of ranks, whatever number trained the model.

        Raises
        ------
        InputError
            The file is missing, damaged, not a model, or one of another family.
        """
        return cls._model.load(path, comm)
