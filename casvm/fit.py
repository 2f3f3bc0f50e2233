"""The result of training: the model, and what the report says about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from cacore.tuning.results import Results
from casvm.volume import Terms
from partition.model import InParts

Trained = TypeVar("Trained", bound=InParts)


@dataclass
class SVMFit(Generic[Trained]):
    """The result of training: the model, and what the report says about it.

    Attributes
    ----------
    model : SVMModel or SVRModel
    sizes : ndarray of int64, shape (P,)
        Rows of the parts; where one problem lies on all ranks, of these.
    solver : dict of str to ndarray
        An entry per part, or per layer: iterations, n_support, objective, gap, seconds, kernel_rows, kernel_values; of
        regression and one class also converged.
    busy : ndarray, shape (R,)
        Seconds each rank worked on its problems.
    tol : float
        Tolerance of the solver, as a number.
    terms : Terms or None
        Terms of the predicted volume, for methods that have one.
    notes : list of str
        Solvers that stopped at a limit.
    more : dict
        Further fields of the report: a tree's layers.
    errors : list of float
        Share of wrong answers on the validation rows, per round of a metric.
    search : Results or None
        Scores of the settings that were compared.
    """

    model: Trained
    sizes: NDArray[np.int64]
    solver: dict[str, NDArray[Any]]
    busy: NDArray[np.float64]
    tol: float
    terms: Terms | None = None
    notes: list[str] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)
    errors: list[float] = field(default_factory=list)
    search: Results | None = None
