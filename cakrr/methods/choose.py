"""The choice of settings in parts: sigma, lambda, the coarse model, the soft route and the scaling.

The settings that training in parts compares, and the one it chooses.

The choice of sigma, lambda and the coarse model (Algorithm 10, lines 8 and 13 to 23).

The choice of sigma and lambda for each part, on its own held-out rows.

The choice of the soft route: number k of models per row, and decay t of their weights with distance.

Scalings of the features to compare: by standard deviation, or by normal scores of their quantiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.data.rows import dense, is_sparse
from cacore.data.standardize import normal_scores, quantiles_of
from cacore.errors import InputError
from cacore.kernels import Kernel
from cakrr.grid_search import CHOOSING, Judges, Search, best, best_of_each, cost, least, left_out, next_widths, table
from cakrr.methods.folds import Fold, GridErrors, held_rows, judges, over_folds
from cakrr.methods.prepare import RidgeRows
from cakrr.methods.task import RidgeTask
from cakrr.options import LEVELS, CoarseGrid, RidgeOptions, Width, few_rows
from cakrr.ridge_model import RidgeFit
from cakrr.solver.coarse import Candidates, CoarseModel, candidates
from partition.routing import SOFT, Soft, gap


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
        See :class:`cakrr.ridge_model.RidgeFit`.
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


def choose(task: RidgeTask, grid: RidgeGrid) -> Chosen:
    """Choose sigma, lambda, the coarse model and the soft route on held-out rows; collective.

    Raises
    ------
    InputError
        On all ranks: no rows can be held out, or no pair can be solved.

    Notes
    -----
    m^2 d flops per part and sigma, and m^3/3 per lambda, or 4/3 m^3 for many lambdas. One Allreduce of the errors per
    fold, counted in phase "predict"; see :meth:`cakrr.grid_search.Search.errors`.
    """
    options, soft, chosen = task.options, task.route == "soft", grid.first(task)
    settings = len(grid.widths) * len(grid.lams)
    compared = settings > 1 or soft or options.compares
    if options.select != "test" and (compared or task.method.coarse):
        chosen.held = held_rows(task)
    if task.method.coarse:
        chosen.candidates = candidates(
            task.parts, chosen.held, grid.coarse, options.memory_limit, options.checkpoint, task.comm,
            task.piece("coarse"),
        )  # fmt: skip
        settings *= len(chosen.candidates.settings)
        chosen.reasons += chosen.candidates.reasons
    if compared or settings > 1:
        first = Fold.of(task, task.parts, chosen.held, chosen.candidates)
        chosen.targets = first.targets
        unit = unit_of(task, first) if soft else 1.0
        if settings > 1 or not soft:
            _choose_pair(task, grid, first, SOFT.scaled(unit, len(task.parts.sizes)), chosen)
        if soft:
            choose_soft_route(task, first, unit, chosen)
    if compared and task.folds > 1 and options.cv is None:
        chosen.reasons.append(few_rows(task.folds))
    if chosen.candidates is not None:
        chosen.coarse = chosen.candidates.chosen(chosen.candidate)
        chosen.params |= chosen.candidates.facts(chosen.candidate, options.chooses_kernel)
    if chosen.soft is not None:
        chosen.params |= {"soft_k": chosen.soft.k, "soft_t": chosen.soft.t}
    return chosen


def _choose_pair(task: RidgeTask, grid: RidgeGrid, first: Fold, route: Soft, chosen: Chosen) -> None:
    """Take the sigma, lambda and coarse-model candidate with the smallest error, for all parts or per part."""
    steps = task.folds * len(grid.widths) * sum(cost(rows) for _, rows in task.parts)
    advance = task.options.progress(CHOOSING, steps)

    def judge(fold: Fold, before: NDArray[np.float64]) -> GridErrors:
        # Line 8: every sigma and lambda. A search trains (lines 9 to 12), predicts (13 to 17) and reduces (18 to 22).
        loo = task.options.select == "loo"
        search = Search(
            fold.parts, fold.targets, np.zeros_like(fold.held) if loo else fold.held, grid.widths, grid.lams,
            task.workspace, task.options.checkpoint, task.piece(f"{fold.name}grid"), chosen.seconds, advance,
            before=before,
        )  # fmt: skip
        if loo:
            errors, failed = search.left_out_errors(task.comm)
        elif task.options.per_part:
            errors, failed = search.errors(Judges.of_own_parts(fold.parts, fold.held, fold.targets), task.comm)
        else:
            errors, failed = search.errors(judges(task, fold, [route]), task.comm)
        return GridErrors(errors, failed, search.by_part)

    found = over_folds(judge, task, first)
    errors = found.errors
    chosen.grid = table(errors, grid.widths, grid.lams, task.options, chosen.candidates)
    # No warning for pairs that nobody asked for.
    notes = chosen.reasons if task.options.default_widths else chosen.notes
    notes += left_out(found.failed, grid.widths, grid.lams)
    if task.options.per_part:
        middle = choose_per_part(task, grid, found.by_part, chosen)
        if not np.isfinite(errors).any():  # no pair suits all parts: take the median part's pair for the next round
            errors[0, *middle] = chosen.error
    # Line 23: the pair with the smallest error.
    with task.comm.phase("predict"):
        chosen.candidate, s, ell = best(errors, grid.widths, grid.lams, task.workspace.dtype, task.comm)
    chosen.errors = errors
    chosen.like, chosen.sigma, chosen.lam = grid.widths[s].like, grid.widths[s].sigma, grid.lams[ell]
    if not task.options.per_part:
        chosen.error = float(errors[chosen.candidate, s, ell])


def choose_per_part(
    task: RidgeTask, grid: RidgeGrid, by_part: dict[int, NDArray[np.float64]], chosen: Chosen
) -> tuple[int, int]:
    """Choose the best pair of each part; one Allreduce of 2 P + 2 numbers.

    Parameters
    ----------
    task : RidgeTask
    grid : RidgeGrid
    by_part : dict of int to ndarray, shape (S, L)
        Sums of squared errors of each part of this rank.
    chosen : Chosen
        Its `sigmas`, `lams` and `error` are set.

    Returns
    -------
    tuple of int
        Indices in the grid of the pair whose part has the median sigma.
    """
    P, comm = len(task.parts.sizes), task.comm
    with comm.agreed():
        best = best_of_each(by_part)
    settings, total = np.zeros((2, P)), np.zeros(2)
    for part, (s, ell) in best.items():
        settings[:, part] = s, ell
        total[0] += by_part[part][s, ell]
    every = task.folds > 1 or task.options.select == "loo"  # every row counts, or only held-out ones
    total[1] = task.parts.row_weights()[slice(None) if every else chosen.held].sum()
    with comm.phase("predict"):
        *pairs, error, weight = comm.allreduce(np.concatenate([settings.ravel(), total]))
    widths, lams = np.reshape(pairs, (2, P)).astype(np.int64)
    chosen.sigmas = np.array([grid.widths[s].sigma for s in widths])
    chosen.lams = np.array(grid.lams)[lams]
    chosen.error = float(error / weight)
    middle = np.argsort(chosen.sigmas, kind="stable")[P // 2]
    return int(widths[middle]), int(lams[middle])


# Sigma and lambda are chosen with partition.routing.SOFT; then these routes are compared.
SOFT_TRIED = (Soft(1, 1.0), *(Soft(k, t) for k in (3, 8) for t in (0.1, 0.2, 0.4, 0.8)))


def unit_of(task: RidgeTask, fold: Fold) -> float:
    """Unit of t, from the distances of the held-out rows; collective."""
    with task.comm.phase("partition"):
        return gap(fold.judging.X, task.parts.centers, task.comm)


def choose_soft_route(task: RidgeTask, first: Fold, unit: float, chosen: Chosen) -> None:
    """Choose the k and t with the smallest error, given the chosen pair; one Allreduce per fold.

    Parameters
    ----------
    task : RidgeTask
    first : Fold
    unit : float
        Unit of t.
    chosen : Chosen
        Its `soft` and `error` are set.
    """
    routes = list(dict.fromkeys(one.scaled(unit, len(task.parts.sizes)) for one in SOFT_TRIED))
    steps = task.folds * sum(cost(rows) for _, rows in task.parts)
    advance = task.options.progress("choosing the soft route", steps)

    def judge(fold: Fold, before: NDArray[np.float64]) -> GridErrors:
        fold = fold.of_candidate(chosen.candidate)
        own = {} if chosen.sigmas is None else {part: chosen.setting(part) for part, _ in fold.parts}
        search = Search(
            fold.parts, fold.targets, fold.held, (chosen.width,), (chosen.lam,), task.workspace,
            task.options.checkpoint, task.piece(f"{fold.name}soft"), chosen.seconds, advance, own, before,
        )  # fmt: skip
        errors, failed = search.errors(judges(task, fold, routes), task.comm, len(routes))
        return GridErrors(errors, failed, search.by_part)

    errors = over_folds(judge, task, first).errors
    with task.comm.phase("predict"):
        number = best(errors, (chosen.width,), (chosen.lam,), task.workspace.dtype, task.comm)[0]
    chosen.soft, chosen.error = routes[number], float(errors[number, 0, 0])


def scalings(rows: RidgeRows, options: RidgeOptions, comm: Communicator) -> list[RidgeRows]:
    """The rows with one scaling, or with both if validation chooses between them; collective.

    Raises
    ------
    InputError
        On all ranks: quantiles of sparse rows.
    """
    if options.scaling in ("deviation", LEVELS):
        return [rows]  # levels have been prepared
    if is_sparse(rows.samples.X):
        with comm.agreed():
            raise InputError(f"scaling {options.scaling}: normal scores would make the sparse rows dense; leave it out")
    scored = _scored(rows, options.seed, comm)
    return [scored] if options.scaling == "quantile" else [rows, scored]


def _scored(rows: RidgeRows, seed: int, comm: Communicator) -> RidgeRows:
    """The rows with features replaced by their normal scores; collective."""
    assert rows.standardizer is not None
    X = dense(rows.samples.X)
    with comm.phase("read"):
        quantiles = quantiles_of(X, seed, comm)
    samples = Samples(normal_scores(X, quantiles), dict(rows.samples.columns))
    standardizer = replace(rows.standardizer, quantiles=quantiles)
    return replace(rows, samples=samples, standardizer=standardizer, scaling="quantile")
