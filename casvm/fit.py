"""The result of training: the model, and what the report says about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from cacore.tuning.results import Results
from casvm.volume import Terms
from partition.model import InParts

LENGTHS_SECONDS = "seconds_lengths"  # of `solver`: time in which length scales were learned

Trained = TypeVar("Trained", bound=InParts)


@dataclass
class SVMFit(Generic[Trained]):
    """The result of training: the model, and what the report says about it.

    Attributes
    ----------
    model : SVMModel or SVRModel
    sizes : ndarray of int64, shape (P,)
        Number of rows of each part, or of each rank if one problem is distributed over all ranks.
    solver : mapping of str to ndarray
        One entry per part or per layer: iterations, n_support, objective, gap, seconds, kernel_rows, kernel_values; for
        regression and one class also converged. A single number of seconds_lengths, if length scales were learned.
    busy : ndarray, shape (R,)
        Seconds that each rank worked on its problems.
    tol : float
        Tolerance of the solver, as a number.
    terms : Terms or None
        Variables of the predicted communication volume, for methods that have one.
    notes : list of str
        Notes on solvers that stopped at a limit.
    more : dict
        Further fields of the report, such as a tree's layers.
    errors : list of float
        Share of wrong predictions on the validation rows, per round of a metric.
    search : Results or None
        Scores of the settings, if several were compared.
    """

    model: Trained
    sizes: NDArray[np.int64]
    solver: Mapping[str, NDArray[np.generic]]
    busy: NDArray[np.float64]
    tol: float
    terms: Terms | None = None
    notes: list[str] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)
    errors: list[float] = field(default_factory=list)
    search: Results | None = None
