"""The settings that training in parts compares, and the one it chooses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.kernels import Kernel
from cakrr.fit import RidgeFit
from cakrr.grid_search import least, next_widths
from cakrr.methods.task import RidgeTask
from cakrr.options import CoarseGrid, Width
from cakrr.solver.coarse import Candidates, CoarseModel
from partition.routing import Soft


@dataclass
class Chosen:
    """The setting with the smallest error, and further results of the search.

    Attributes
    ----------
    like : Kernel
        The kernel, of any width.
    sigma, lam : float
        The common pair of all parts.
    held : ndarray of bool, shape (n_local,)
        Mask of the validation rows; with several folds, those of the first one.
    targets : ndarray, shape (n_local, C, t)
        Targets of the parts, for each of C candidates of the coarse model.
    seconds : ndarray, shape (P,)
        Seconds of each part's share of the search.
    sigmas, lams : ndarray, shape (P,), or None
        The pair of each part, if parts chose their own.
    soft : Soft or None
        Parameters of the soft route.
    candidates : Candidates or None
        Coarse models that were tried.
    candidate : int
        Index of the chosen coarse model.
    coarse : CoarseModel or None
        The chosen coarse model, trained on all rows.
    errors : ndarray, shape (C, S, L)
        Mean squared errors of the grid.
    error : float
        Mean squared error of the chosen setting.
    rounds : list of float
        Error of each round of a metric.
    grid, params, notes, reasons
        See :class:`cakrr.fit.RidgeFit`.
    """

    like: Kernel
    sigma: float
    lam: float
    held: NDArray[np.bool_]
    targets: NDArray[np.float64]
    seconds: NDArray[np.float64]
    sigmas: NDArray[np.float64] | None = None
    lams: NDArray[np.float64] | None = None
    soft: Soft | None = None
    candidates: Candidates | None = None
    candidate: int = 0
    coarse: CoarseModel | None = None
    errors: NDArray[np.float64] = field(default_factory=lambda: np.zeros((1, 1, 1)))
    error: float = math.inf
    rounds: list[float] = field(default_factory=list)
    grid: list[dict[str, Any]] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    @property
    def width(self) -> Width:
        """Kernel and width of the common pair."""
        return Width(self.like, self.sigma)

    def setting(self, part: int) -> tuple[Width, float]:
        """Width and lambda of a part: its own, or the common ones."""
        sigma = self.sigma if self.sigmas is None else float(self.sigmas[part])
        return Width(self.like, sigma), self.lam if self.lams is None else float(self.lams[part])

    def describe(self, fitted: RidgeFit) -> None:
        """Copy the search's results for the report to `fitted`, whose first parts are those of the search."""
        fitted.seconds[: len(self.seconds)] += self.seconds
        fitted.grid, fitted.params, fitted.errors = self.grid, self.params, self.rounds
        fitted.notes, fitted.reasons = self.notes + fitted.notes, self.reasons + fitted.reasons


@dataclass(frozen=True)
class RidgeGrid:
    """The settings that one round compares: S widths, L lambdas, and the coarse models.

    Attributes
    ----------
    widths : tuple of Width
    lams : tuple of float
    coarse : CoarseGrid
        Empty without a coarse model.
    """

    widths: tuple[Width, ...]
    lams: tuple[float, ...]
    coarse: CoarseGrid

    @classmethod
    def whole(cls, task: RidgeTask) -> RidgeGrid:
        """The grid of the options, for the first round."""
        n, d = int(task.parts.sizes.sum()), task.parts.centers.shape[1]
        coarse = task.options.coarse_grid(n, d) if task.method.coarse else []
        return cls(task.options.widths(task.method, d), task.options.lam, coarse)

    def first(self, task: RidgeTask) -> Chosen:
        """The first setting, without comparing any."""
        width = self.widths[0]
        held, seconds = np.zeros(len(task.y), np.bool_), np.zeros(len(task.parts.sizes))
        return Chosen(width.like, width.sigma, self.lams[0], held, task.y[:, None], seconds)

    def around(self, chosen: Chosen, stretch: float | None, comm: Communicator) -> RidgeGrid:
        """The grid of the next round: the best setting of this round and its neighbours; collective.

        Parameters
        ----------
        chosen : Chosen
        stretch : float or None
            Factor by which the next metric changes distances, if it is known: the next round then begins with the
            chosen width times this factor.
        comm : Communicator
        """
        if stretch is not None:
            return RidgeGrid(Width(chosen.like, chosen.sigma * stretch).nearby(), self.lams, [])
        with comm.uncounted():  # the ranks' errors may differ in the last bit
            errors = comm.bcast(chosen.errors)
        widths = next_widths(self.widths, least(errors, 1))
        if chosen.candidates is None:
            return RidgeGrid(widths, self.lams, [])
        tried, by_candidate = chosen.candidates.settings, least(errors, 0)
        if len(tried) == 1:
            return RidgeGrid(widths, self.lams, self.coarse)
        M, _, lam = tried[int(np.argmin(by_candidate))]
        wide = next_widths(tuple(width for _, width, _ in tried), by_candidate)
        return RidgeGrid(widths, self.lams, [(width, [M], (lam,)) for width in wide])
