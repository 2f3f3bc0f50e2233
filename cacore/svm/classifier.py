"""What the scikit-learn estimators of all SVM families share: their parameters, and checks of rows to predict."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from cacore.data.classifier import ROWS, Labelled
from cacore.data.validation import validated


@dataclass(eq=False, repr=False, kw_only=True)
class KernelMachine(BaseEstimator):
    """Parameters of the kernel and of the solver, and checks of what `predict` is given."""

    kernel: Any = "gaussian"
    gamma: Any = "scale"
    degree: int = 3
    coef0: float = 0.0
    tol: float = 1e-3
    cache_gib: float = 1.0
    max_iter: int = -1
    max_time: float | None = None

    def _rows(self, X: Any, least: int = 1) -> Any:
        """Rows to predict, as the model has them."""
        check_is_fitted(self, "model_")
        return validated(self, X, reset=False, dtype=self.model_.dtype, ensure_min_samples=least, **ROWS)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class KernelClassifier(Labelled, KernelMachine):
    """Classifiers with a bound of the coefficients."""

    C: float = 1.0


def printer(line: Callable[[Any], str]) -> Callable[[Any], None]:
    """Print a line about a solver's progress, about once a second."""
    last = time.perf_counter()

    def show(progress: Any) -> None:
        nonlocal last
        if time.perf_counter() - last > 1.0:
            last = time.perf_counter()
            print(line(progress), flush=True)

    return show
