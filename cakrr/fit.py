"""The result of training: the model, and what the report says about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cacore.tuning.results import grid_ends
from cakrr.options import ALONE

if TYPE_CHECKING:
    from cakrr.model import KRRModel


@dataclass
class RidgeFit:
    """The result of training: the model, and what the report says about it.

    Attributes
    ----------
    model : KRRModel
    sizes : ndarray of int64, shape (P,)
        Number of rows of each part.
    grid : list of dict
        Error of every setting that was tried.
    params : dict
        Chosen parameters other than sigma and lambda.
    seconds : ndarray, shape (P,)
        Seconds of each part's share of the grid and of its final solution.
    busy : ndarray, shape (R,)
        Seconds that each rank worked on its parts.
    residual : ndarray, shape (P,)
        Relative residual of each part's system, if it was refined.
    errors : list of float
        Validation error of every round of a metric.
    iteration : dict
        Entries of the report about conjugate gradients, if they were the solver.
    library_bytes : int
        Bytes, by a formula, that a library sent from this rank without the communicator counting them.
    notes : list of str
        Warnings for the user, one sentence each.
    reasons : list of str
        Explanations of automatic choices, one sentence each.
    """

    model: KRRModel
    sizes: NDArray[np.int64]
    grid: list[dict[str, Any]] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    seconds: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    busy: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    residual: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    errors: list[float] = field(default_factory=list)
    iteration: dict[str, Any] = field(default_factory=dict)
    library_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    @property
    def at_grid_end(self) -> dict[str, float]:
        """Chosen values that are an end of their grid; see :func:`cacore.tuning.results.grid_ends`.

        Empty if parts chose their own. Beside a coarse model, the lambda that leaves the parts out is no end: larger
        ones say the same.
        """
        model = self.model
        rows = [row for row in self.grid if row.get("kernel", model.like.kind) == model.like.kind]
        if model.sigmas is not None or not rows:
            return {}
        chosen = {"sigma": model.sigma, "lambda": model.lam}
        chosen |= {name: self.params[name] for name in ("coarse_sigma", "coarse_lambda") if name in self.params}
        if model.coarse is not None and not model.on_points and model.lam == ALONE:
            chosen.pop("lambda")
        return grid_ends({name: sorted({row[name] for row in rows if name in row}) for name in chosen}, chosen)

    def add(self, other: RidgeFit) -> None:
        """Add the models of another division of the same rows."""
        self.model.add(other.model)
        for name in ("sizes", "seconds", "residual"):
            setattr(self, name, np.concatenate([getattr(self, name), getattr(other, name)]))
        self.notes += other.notes
