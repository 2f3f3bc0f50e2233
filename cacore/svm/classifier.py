"""Base classes of the scikit-learn SVM estimators: common parameters, checks of rows to predict, probabilities."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from types import MethodType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from cacore.checks import check_form
from cacore.data.estimators import ROWS, Labelled, Loaded
from cacore.data.rows import Rows, RowsLike
from cacore.data.validation import validated
from cacore.errors import InputError
from cacore.explain.explanation import Explains
from cacore.probability.calibrator import Calibrator
from cacore.terminal import say
from cacore.tuning import GridLike

Told = TypeVar("Told")


@dataclass(eq=False, repr=False, kw_only=True)
class KernelMachine(Loaded, Explains, BaseEstimator):
    """Parameters of the kernel and of the solver, and checks of the rows passed to `predict`."""

    kernel: str | Callable[[Rows, Rows], np.ndarray] = "gaussian"
    gamma: GridLike = "scale"
    degree: int = 3
    coef0: float = 0.0
    tol: float | str | None = 1e-3
    cache_gib: float = 1.0
    max_iter: int = -1
    max_time: float | None = None

    def _rows(self, X: RowsLike, least: int = 1) -> Rows:
        """Validated rows to predict, in the model's dtype."""
        check_is_fitted(self, "model_")
        rows: Rows = validated(self, X, reset=False, dtype=self.model_.dtype, ensure_min_samples=least, **ROWS)
        return rows

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


NEEDED = "is not available without probabilities: fit with probability=True"


class OnRequest:
    """Decorator of a method that estimators have only if their parameter `probability` asks for it.

    Like scikit-learn's `available_if`, which has no place for the remedy: its message always reads "This 'SMOSVC' has
    no attribute 'predict_proba'".
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        update_wrapper(self, method)  # type: ignore[arg-type]

    def __get__(self, estimator: Probabilistic | None, owner: type) -> Callable[..., Any]:
        if estimator is None:
            return self._method
        name = self._method.__name__
        if not _asks(estimator):
            raise AttributeError(f"This {owner.__name__!r} has no attribute {name!r}, which {NEEDED}")
        return MethodType(self._method, estimator)


def _asks(estimator: Probabilistic) -> bool:
    """True if the parameter `probability` asks for probabilities; False also if its value is invalid."""
    try:
        return check_form(estimator.probability, "probability =") is not None
    except InputError:
        return False


@dataclass(eq=False, repr=False, kw_only=True)
class Probabilistic(BaseEstimator):
    """Class probabilities, if the parameter `probability` asks for them."""

    probability: bool | str = False

    @OnRequest
    def predict_proba(self, X: RowsLike) -> NDArray[np.float64]:
        """Probabilities for `X`, shape (n, k), in the order of `classes_`; with `comm`, a collective call.

        The most probable class may differ from `predict`, which uses the signs of the decisions.
        """
        self._fitted_calibrator()
        return self._probabilities(X)

    @OnRequest
    def predict_log_proba(self, X: RowsLike) -> NDArray[np.float64]:
        """Logarithms of :meth:`predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.predict_proba(X)))

    @property
    def probA_(self) -> NDArray[np.float64]:  # noqa: N802 - scikit-learn's name
        """A of the sigmoids 1 / (1 + exp(A f + B)), with f the decision for the first class of a pair, as in SVC."""
        return self._of_sigmoids("A")

    @property
    def probB_(self) -> NDArray[np.float64]:  # noqa: N802 - scikit-learn's name
        """B of the sigmoids, see :attr:`probA_`."""
        return self._of_sigmoids("B")

    def _of_sigmoids(self, name: str) -> NDArray[np.float64]:
        values = getattr(getattr(getattr(self, "model_", None), "calibrator", None), name, None)
        if values is None:
            raise AttributeError(f"prob{name}_ is available only after fit with probability=True or 'sigmoid'")
        return np.asarray(values)

    def _fitted_calibrator(self) -> Calibrator:
        check_is_fitted(self, "model_")
        if self.model_.calibrator is None:
            raise NotFittedError(f"predict_proba {NEEDED}")
        calibrator: Calibrator = self.model_.calibrator
        return calibrator

    def _probabilities(self, X: RowsLike) -> NDArray[np.float64]:
        raise NotImplementedError


@dataclass(eq=False, repr=False, kw_only=True)
class KernelClassifier(Probabilistic, Labelled, KernelMachine):
    """Base of the SVM classifiers with parameter C, the upper bound of the coefficients."""

    C: float = 1.0


def printer(line: Callable[[Told], str]) -> Callable[[Told], None]:
    """Callback that prints a line about a solver's progress, at most once per second."""
    last = time.perf_counter()

    def show(progress: Told) -> None:
        nonlocal last
        if time.perf_counter() - last > 1.0:
            last = time.perf_counter()
            say(line(progress))

    return show
