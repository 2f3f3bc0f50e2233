"""The choice of settings in parts: sigma, lambda, the coarse model, the soft route, and a metric in rounds.

Follows Algorithm 10, lines 8 and 13 to 23. From the inside out: settings are compared on folds of held-out rows
(:func:`compare_on_folds`), then soft routes with the best setting (:func:`choose_soft_route`), in every round of a
metric, for every scaling and, with a metric, every kernel (:func:`choose_in_rounds`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore import tuning
from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.data.lengths import LeftOut, best_scales
from cacore.data.metric import SAMPLE, best_round
from cacore.data.rows import dense, take_rows
from cacore.data.standardize import Root
from cacore.errors import InputError
from cacore.io.checkpoint import remembered
from cacore.kernels import Kernel
from cacore.kernels.gradients import moments, stacked
from cacore.learn.options import LENGTHS
from cacore.machine.clock import working_time
from cakrr.grid_search import (
    CHOOSING,
    GridErrors,
    Search,
    ValidationRows,
    best,
    cost,
    fold_first,
    hold_out,
    least,
    left_out,
    next_widths,
    table,
)
from cakrr.methods.prepare import RidgeParts
from cakrr.options import CoarseGrid, Width, few_rows
from cakrr.ridge_model import RidgeFit
from cakrr.solver.coarse import Candidates, CoarseModel, candidates
from cakrr.solver.local import ridge_system
from partition.parts_model import SOFT, Soft, gap
from partition.redistribute import Parts


def choose_in_rounds(starts: Sequence[RidgeParts], comm: Communicator) -> tuple[RidgeParts, Chosen]:
    """Choose in every round of a metric, and take the division and the setting with the smallest error; collective.

    Each kernel that is compared with a metric has its own rounds, and begins from the best of `starts`, such as the
    better scaling. Without a metric there is one round.
    """
    options = starts[0].options
    alternatives = [
        [PartsRound(replace(division, options=of_kernel)) for division in starts] for of_kernel in options.per_kernel()
    ]
    best, errors, notes = best_round(alternatives, options.rounds, comm)
    best.chosen.rounds, best.chosen.lengths_seconds = errors, sum(best.lengths_seconds)
    best.chosen.notes += notes
    return best.division, best.chosen


class PartsRound:
    """One round; see :class:`cacore.data.metric.Round`.

    Parameters
    ----------
    division : RidgeParts
    grid : RidgeGrid, optional
        Settings to try; by default the whole grid.
    lengths_seconds : list of float, optional
        Seconds in which the rounds before have learned length scales; this one adds its own.

    Attributes
    ----------
    chosen : Chosen
        Set by :meth:`choose`.
    """

    chosen: Chosen

    def __init__(
        self, division: RidgeParts, grid: RidgeGrid | None = None, lengths_seconds: list[float] | None = None
    ) -> None:
        self.division, self.grid = division, grid or RidgeGrid.whole(division)
        self.lengths_seconds = [] if lengths_seconds is None else lengths_seconds
        self.root: Root | None = division.root
        self.error = math.inf
        self.stretch: float | None = None  # factor by which the next metric changes distances, if known

    def choose(self, comm: Communicator) -> None:
        """Choose in this round's metric; collective."""
        self.chosen = choose(self.division, self.grid, comm)
        self.error = self.chosen.error

    def moments(self, comm: Communicator) -> NDArray[np.float64]:
        """Moments of the gradients, see :func:`gradient_moments`, or squares of the length scales; collective."""
        if self.division.options.metric != LENGTHS:
            return gradient_moments(self.division, self.chosen, comm)
        begun = working_time()
        factors = scales(self.division, self.chosen, comm)
        self.lengths_seconds.append(working_time() - begun)
        weights = factors if self.root is None else factors * self.root
        self.stretch = math.sqrt(len(weights) / np.square(weights).sum())  # the metric's trace will be d
        return np.asarray(np.square(factors))

    def again(self, root: Root, comm: Communicator) -> PartsRound:
        """The next round, which searches around the setting chosen in this one; collective."""
        grid = self.grid.around(self.chosen, self.stretch, comm)
        return PartsRound(self.division.in_metric(root, comm), grid, self.lengths_seconds)


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
    def whole(cls, division: RidgeParts) -> RidgeGrid:
        """The grid of the options, for the first round."""
        n, d = int(division.parts.sizes.sum()), division.parts.centers.shape[1]
        coarse = division.options.coarse_grid(n, d) if division.method.coarse else []
        return cls(division.options.widths(division.method, d), division.options.lam, coarse)

    def first(self, division: RidgeParts) -> Chosen:
        """The first setting, without comparing any."""
        width = self.widths[0]
        held, seconds = np.zeros(len(division.y), np.bool_), np.zeros(len(division.parts.sizes))
        return Chosen(width.like, width.sigma, self.lams[0], held, division.y[:, None], seconds)

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


def choose(division: RidgeParts, grid: RidgeGrid, comm: Communicator) -> Chosen:
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
    options, soft, chosen = division.options, division.route == "soft", grid.first(division)
    settings = len(grid.widths) * len(grid.lams)
    compared = settings > 1 or soft or options.compares
    if options.select != "test" and (compared or division.method.coarse):
        chosen.held = held_rows(division, comm)
    if division.method.coarse:
        chosen.candidates = candidates(
            division.parts, chosen.held, grid.coarse, options.memory_limit, options.checkpoint, comm,
            division.piece("coarse"),
        )  # fmt: skip
        settings *= len(chosen.candidates.settings)
        chosen.reasons += chosen.candidates.reasons
    if compared or settings > 1:
        first = Fold.of(division, division.parts, chosen.held, comm, chosen.candidates)
        chosen.targets = first.targets
        unit = 1.0
        if soft:
            with comm.phase("partition"):  # the unit of t, from the distances of the held-out rows
                unit = gap(first.validation.X, division.parts.centers, comm)
        if settings > 1 or not soft:
            _choose_pair(division, grid, first, SOFT.scaled(unit, len(division.parts.sizes)), chosen, comm)
        if soft:
            choose_soft_route(division, first, unit, chosen, comm)
    if compared and division.folds > 1 and options.cv is None:
        chosen.reasons.append(few_rows(division.folds))
    if chosen.candidates is not None:
        chosen.coarse = chosen.candidates.chosen(chosen.candidate)
        chosen.params |= chosen.candidates.facts(chosen.candidate, options.chooses_kernel)
    if chosen.soft is not None:
        chosen.params |= {"soft_k": chosen.soft.k, "soft_t": chosen.soft.t}
    return chosen


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
    lengths_seconds : float
        Seconds in which length scales were learned.
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
    lengths_seconds: float = 0.0
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
        fitted.lengths_seconds = self.lengths_seconds
        fitted.notes, fitted.reasons = self.notes + fitted.notes, self.reasons + fitted.reasons


def held_rows(division: RidgeParts, comm: Communicator) -> NDArray[np.bool_]:
    """Mask of the validation rows; collective.

    All trainings that are compared share the same validation rows, but each part keeps at least one row to train on.

    Raises
    ------
    InputError
        On all ranks: parts of one row, or more folds than rows.
    """
    parts, options = division.parts, division.options
    n, fraction = int(parts.sizes.sum()), options.validation_fraction
    with comm.agreed():
        if parts.sizes.max() < 2:
            remedy = "ask for fewer parts" if n > 1 else "n_samples = 1, and a choice needs 2"
            raise InputError(f"parts of one row leave no rows to validate on; {remedy}")
        if (options.cv or 0) > n:
            raise InputError(f"cv = {options.cv}: there are only {n} rows; ask for fewer folds")
    if division.folds > 1:
        return fold_first(parts, 0, division.folds)[1]
    if not options.compares:
        return hold_out(parts, fraction)
    held = hold_out(parts, fraction, parts["order"] < fraction * n)
    if parts.sizes.min() < 2:
        with comm.uncounted():
            if not comm.allreduce(np.array([np.count_nonzero(held)]))[0]:
                return hold_out(parts, fraction)
    return held


@dataclass(frozen=True, eq=False)
class Fold:
    """One choice of held-out rows.

    Attributes
    ----------
    parts : Parts
        The parts, with the held-out rows first.
    held : ndarray of bool, shape (n_local,)
        Mask of the held-out rows.
    targets : ndarray, shape (n_local, C, t)
        Targets of the parts, for each of C candidates of the coarse model.
    validation : Samples
        The rows on which settings are compared, with the columns "y", shape (q, C, t), and "weight".
    name : str
        Prefix of the fold's pieces in the checkpoint.
    """

    parts: Parts
    held: NDArray[np.bool_]
    targets: NDArray[np.float64]
    validation: Samples
    name: str = ""

    @classmethod
    def of(
        cls, division: RidgeParts, parts: Parts, held: NDArray[np.bool_], comm: Communicator,
        tried: Candidates | None = None, name: str = "",
    ) -> Fold:  # fmt: skip
        """Make a fold; targets are in units of `RidgeRows.scale`, so that squared errors of several targets add up."""
        if division.options.select == "test":
            X, y, weights = division.rows.test_rows(division.standardizer)
        else:
            X, y, weights = take_rows(parts.X, held), parts["y"][held].astype(np.float64), parts.row_weights()[held]
        targets, y = parts["y"].astype(np.float64)[:, None], y[:, None]
        if tried is not None:
            with comm.phase("train"):
                targets, y = targets - tried.predictions(parts.X), y - tried.predictions(X)
        scale = division.rows.scale
        targets, y = (values.reshape(*values.shape[:2], len(scale)) / scale for values in (targets, y))
        return cls(parts, held, targets, Samples(X, {"y": y, "weight": weights}), name)

    def of_candidate(self, c: int) -> Fold:
        """This fold, restricted to one candidate of the coarse model."""
        validation = Samples(self.validation.X, {**self.validation.columns, "y": self.validation["y"][:, [c]]})
        return Fold(self.parts, self.held, self.targets[:, [c]], validation, self.name)


def _choose_pair(
    division: RidgeParts, grid: RidgeGrid, first: Fold, route: Soft, chosen: Chosen, comm: Communicator
) -> None:
    """Take the sigma, lambda and coarse-model candidate with the smallest error, for all parts or per part."""
    grid_errors = compare_on_folds(division, grid, in_folds(division, first, comm), [route], "grid", chosen, comm)
    errors = grid_errors.errors
    chosen.grid = table(errors, grid.widths, grid.lams, division.options, chosen.candidates)
    # No warning for pairs that nobody asked for.
    notes = chosen.reasons if division.options.default_widths else chosen.notes
    notes += left_out(grid_errors.failed, grid.widths, grid.lams)
    if division.options.per_part:
        middle = choose_per_part(division, grid, grid_errors.by_part, chosen, comm)
        if not np.isfinite(errors).any():  # no pair suits all parts: take the median part's pair for the next round
            errors[0, *middle] = chosen.error
    # Line 23: the pair with the smallest error.
    with comm.phase("predict"):
        chosen.candidate, s, ell = best(errors, grid.widths, grid.lams, division.workspace.dtype, comm)
    chosen.errors = errors
    chosen.like, chosen.sigma, chosen.lam = grid.widths[s].like, grid.widths[s].sigma, grid.lams[ell]
    if not division.options.per_part:
        chosen.error = float(errors[chosen.candidate, s, ell])


def choose_per_part(
    division: RidgeParts, grid: RidgeGrid, by_part: dict[int, NDArray[np.float64]], chosen: Chosen, comm: Communicator
) -> tuple[int, int]:
    """Choose the best pair of each part; one Allreduce of 2 P + 2 numbers.

    Parameters
    ----------
    division : RidgeParts
    grid : RidgeGrid
    by_part : dict of int to ndarray, shape (S, L)
        Sums of squared errors of each part of this rank.
    chosen : Chosen
        Its `sigmas`, `lams` and `error` are set.
    comm : Communicator

    Returns
    -------
    tuple of int
        Indices in the grid of the pair whose part has the median sigma.
    """
    P = len(division.parts.sizes)
    settings, total = np.zeros((2, P)), np.zeros(2)
    with comm.agreed():
        for part, errors in by_part.items():
            pair = tuning.choose(errors, last_axes=2)
            if pair is None:
                raise InputError(f"part {part}: no pair of the grid could be solved; use a larger lambda")
            settings[:, part] = pair
            total[0] += errors[pair]
    all_rows = division.folds > 1 or division.options.select == "loo"  # every row counts, or only held-out ones
    total[1] = division.parts.row_weights()[slice(None) if all_rows else chosen.held].sum()
    with comm.phase("predict"):
        *pairs, error, weight = comm.allreduce(np.concatenate([settings.ravel(), total]))
    widths, lams = np.reshape(pairs, (2, P)).astype(np.int64)
    chosen.sigmas = np.array([grid.widths[s].sigma for s in widths])
    chosen.lams = np.array(grid.lams)[lams]
    chosen.error = float(error / weight)
    middle = np.argsort(chosen.sigmas, kind="stable")[P // 2]
    return int(widths[middle]), int(lams[middle])


# Sigma and lambda are chosen with partition.parts_model.SOFT; then these routes are compared: reasoned, not measured.
SOFT_TRIED = (Soft(1, 1.0), *(Soft(k, t) for k in (3, 8) for t in (0.1, 0.2, 0.4, 0.8)))


def choose_soft_route(division: RidgeParts, first: Fold, unit: float, chosen: Chosen, comm: Communicator) -> None:
    """Choose the k and t with the smallest error, given the chosen pair; one Allreduce per fold.

    Parameters
    ----------
    division : RidgeParts
    first : Fold
    unit : float
        Unit of t.
    chosen : Chosen
        Its `soft` and `error` are set.
    comm : Communicator
    """
    routes = list(dict.fromkeys(route.scaled(unit, len(division.parts.sizes)) for route in SOFT_TRIED))
    folds = (fold.of_candidate(chosen.candidate) for fold in in_folds(division, first, comm))
    grid = RidgeGrid((chosen.width,), (chosen.lam,), [])
    errors = compare_on_folds(division, grid, folds, routes, "soft", chosen, comm).errors
    with comm.phase("predict"):
        number = best(errors, grid.widths, grid.lams, division.workspace.dtype, comm)[0]
    chosen.soft, chosen.error = routes[number], float(errors[number, 0, 0])


def compare_on_folds(
    division: RidgeParts, grid: RidgeGrid, folds: Iterable[Fold], routes: list[Soft], name: str, chosen: Chosen,
    comm: Communicator,
) -> GridErrors:  # fmt: skip
    """Errors of all settings of the grid, or of several soft routes with one setting; collective.

    The mean over the folds, weighted by their held-out rows; one further Allreduce if there are several. `name` is the
    searches' name in the checkpoint. If parts have chosen their own pairs, these replace the grid.
    """
    options = division.options
    steps = division.folds * len(grid.widths) * sum(cost(rows) for _, rows in division.parts)
    advance = options.progress(CHOOSING if name == "grid" else "choosing the soft route", steps)
    results: list[GridErrors] = []
    weights: list[float] = []
    for fold in folds:
        # Line 8: every sigma and lambda. A search trains (lines 9 to 12), predicts (13 to 17) and reduces (18 to 22).
        loo, own_parts = (name == "grid" and value for value in (options.select == "loo", options.per_part))
        held = np.zeros_like(fold.held) if loo else fold.held
        per_part = {} if chosen.sigmas is None else {part: chosen.setting(part) for part, _ in fold.parts}
        before = sum((errors for earlier in results for errors in earlier.by_part.values()), start=np.zeros(1))
        search = Search(
            fold.parts, fold.targets, held, grid.widths, grid.lams, division.workspace, options.checkpoint,
            division.piece(f"{fold.name}{name}"), chosen.seconds, advance, per_part, before,
        )  # fmt: skip
        if loo:
            results.append(search.left_out_errors(comm))
        elif own_parts:
            results.append(search.errors(ValidationRows.of_own_parts(fold.parts, fold.held, fold.targets), comm))
        else:
            with comm.phase("predict" if options.select == "test" else "partition"):
                centers, owners = division.parts.centers, division.parts.owners
                validation = ValidationRows.routed(fold.validation, division.route, routes, centers, owners, comm)
            results.append(search.errors(validation, comm, len(routes)))
        weights.append(fold.validation["weight"].sum())
    if len(results) == 1:
        return results[0]
    with comm.phase("predict"):
        return GridErrors.over_folds(results, comm.allreduce(np.array(weights)))


def in_folds(division: RidgeParts, first: Fold, comm: Communicator) -> Iterator[Fold]:
    """Yield all folds, with one copy of the rows at a time."""
    yield first
    for number in range(1, division.folds):
        parts, held = fold_first(division.parts, number, division.folds)
        yield Fold.of(division, parts, held, comm, name=f"fold-{number}-")


def gradient_moments(division: RidgeParts, chosen: Chosen, comm: Communicator) -> NDArray[np.float64]:
    """Sum of grad f grad f^T, or its diagonal, over a sample of each part's training rows; collective.

    f is the model trained without the held-out rows. m^3/3 flops per part, plus those of the gradients; one Allreduce
    of d x d numbers, or d for the diagonal.
    """
    parts, d = division.parts, division.parts.X.shape[1]
    diagonal = division.options.metric == "diagonal"
    coarse = None if chosen.candidates is None else chosen.candidates.chosen(chosen.candidate, learned=True)

    def work(part: int, rows: slice) -> NDArray[np.float64]:
        learn = slice(rows.start + int(chosen.held[rows].sum()), rows.stop)
        X, targets = parts.X[learn], chosen.targets[learn, chosen.candidate]
        width, lam = chosen.setting(part)
        kernel = width.kernel

        def of_part() -> dict[str, NDArray[np.float64]]:
            system = ridge_system(X, division.workspace, kernel, division.weights(learn))
            alphas, _ = system.solve(kernel, (lam,), targets.T)
            sample, base = X[:SAMPLE], None
            if coarse is not None:
                wide = coarse.kernel.with_sigma(coarse.sigma)
                beta = coarse.beta.reshape(len(coarse.beta), -1).T / division.rows.scale[:, None]
                base = stacked(wide, sample, coarse.centers, beta)
            share = X.shape[0] / max(1, sample.shape[0])
            return {"moments": share * moments(kernel, sample, X, alphas[0], diagonal, base)}

        return remembered(division.options.checkpoint, division.piece(f"moments-{part:06d}"), of_part)["moments"]

    with comm.phase("train"):
        total = np.zeros(d if diagonal else (d, d))
        division.workspace.over_parts(work, parts, lambda part, rows, moments: np.add(total, moments, out=total))
        return comm.allreduce(total)


# Reasoned, not measured.
ROWS = 2500  # rows of all parts together whose errors are minimised: enough for d + 1 parameters
EVALUATIONS = 10  # per round; then the rows are divided again with the new lengths


def scales(division: RidgeParts, chosen: Chosen, comm: Communicator) -> NDArray[np.float64]:
    """Factors of the features, shape (d,), that minimise the leave-one-out errors inside the parts; collective.

    L-BFGS on the logarithms of the factors and of lambda starts at the chosen pair, with the same steps on all ranks.
    It uses the training rows of some parts: about `ROWS` rows in all, at most `SAMPLE` per part.

    Notes
    -----
    2 m^3 flops per part and evaluation, and one Allreduce of d + 3 numbers.
    """
    parts, lam = division.parts, chosen.lam
    P, d = len(parts.sizes), parts.X.shape[1]
    count = max(1, math.ceil(ROWS / min(SAMPLE, parts.sizes.mean())))
    sampled = np.random.default_rng((division.options.seed, division.round)).permutation(P)[:count]
    kernel = chosen.width.kernel
    pieces = []
    for part, rows in parts:
        first = rows.start + int(chosen.held[rows].sum())
        learn = slice(first, min(rows.stop, first + SAMPLE))
        if part in sampled and learn.stop > learn.start + 1:
            w = parts.row_weights()[learn]
            ridge = lam * w.sum() / w
            pieces.append(LeftOut(dense(parts.X[learn]).astype(np.float64), chosen.targets[learn, 0], ridge, w))
    return best_scales(kernel, pieces, d, EVALUATIONS, comm)[:d]
