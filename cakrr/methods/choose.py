"""What every training in parts chooses: sigma, lambda, a coarse model, the soft route; over folds, or part by part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.data.standardize import Standardizer
from cacore.data.stored import some
from cacore.errors import InputError
from cacore.progress import Advance
from cakrr.fit import Fit
from cakrr.grid_search import CHOOSING, Search, best, best_of_each, cost, left_out, table
from cakrr.judges import Judges, fold, hold_out
from cakrr.method import Method
from cakrr.methods.prepare import Prepared
from cakrr.model import KRRModel
from cakrr.options import CoarseGrid, Options, Width
from cakrr.solver.coarse import Candidates, candidates
from cakrr.solver.local import Workspace
from partition.redistribute import Parts
from partition.routing import SOFT, Soft, gap

# Sigma and lambda are chosen under the soft route SOFT; then these are tried.
SOFT_TRIED = (Soft(1, 1.0), *(Soft(k, t) for k in (3, 8) for t in (0.1, 0.2, 0.4, 0.8)))


@dataclass
class _Fold:
    """One way to hold rows out: the parts, with these rows first, what they learn, and the rows that judge."""

    parts: Parts
    targets: NDArray[np.float64]
    held: NDArray[np.bool_]
    judging: Samples
    name: str


class Choice:
    """The choosing half of a training: the parts and what is tried are given, the model is told what was best.

    Attributes
    ----------
    held : ndarray of bool, shape (n_local,)
        Rows that judge; of several folds those of the first one.
    targets : ndarray, shape (n_local, C, t)
        What the parts learn, for each of C candidates of the coarse model.
    tried : Candidates or None
    candidate : int
        Of the coarse model, which was chosen.
    errors : ndarray, shape (C, S, L)
        Of every setting.
    error : float
        Of what was chosen.
    """

    method: Method
    options: Options
    prepared: Prepared
    parts: Parts
    comm: Communicator
    workspace: Workspace
    route: str
    number: int
    widths: tuple[Width, ...]
    lams: tuple[float, ...]
    coarse: CoarseGrid
    standardizer: Standardizer | None
    model: KRRModel
    fitted: Fit
    held: NDArray[np.bool_]
    targets: NDArray[np.float64]
    tried: Candidates | None
    candidate: int
    errors: NDArray[np.float64]
    error: float

    def choose(self) -> None:
        """Sigma, lambda, and what else there is to choose: the loop of Algorithm 10 around lines 9 to 22."""
        options, parts, soft = self.options, self.parts, self.route == "soft"
        pairs, compares = len(self.widths) * len(self.lams), options.compares
        validated = options.select != "test" and (pairs > 1 or soft or self.method.coarse or compares)
        if validated:
            self.held = self._held_out()
        if self.method.coarse:
            self.tried = candidates(
                parts, self.held, self.coarse, options.memory_limit, options.checkpoint, self.comm,
                self._piece("coarse"),
            )  # fmt: skip
        settings = pairs * (1 if self.tried is None else len(self.tried.settings))
        if settings > 1 or soft or compares:
            self.targets, judging = self._judging(parts, self.held, self.tried)
            unit = 1.0
            if soft:
                with self.comm.phase("partition"):
                    unit = gap(judging.X, parts.centers, self.comm)
            if settings > 1 or not soft:
                self._grid(judging, [SOFT.scaled(unit, len(parts.sizes))])
            if soft:
                routes = dict.fromkeys(one.scaled(unit, len(parts.sizes)) for one in SOFT_TRIED)
                self._soften(judging, list(routes))
        if self.tried is not None:
            self.model.coarse = self.tried.chosen(self.candidate)
            self.fitted.params |= self.tried.facts(self.candidate, options.chooses_kernel)
        if self.model.soft is not None:
            self.fitted.params |= {"soft_k": self.model.soft.k, "soft_t": self.model.soft.t}

    def _folds(self, judging: Samples) -> Iterator[_Fold]:
        """What is learnt and what judges, once, or once a fold: a copy of the rows at a time."""
        yield _Fold(self.parts, self.targets, self.held, judging, "")
        for number in range(1, self.options.cv or 1):
            parts, held = fold(self.parts, number, self.options.cv or 1)
            targets, judging = self._judging(parts, held, None)
            yield _Fold(parts, targets, held, judging, f"fold-{number}-")

    def _held_out(self) -> NDArray[np.bool_]:
        """Validation rows; the same ones in all that is compared, unless each is all that its part has."""
        parts, comm, options = self.parts, self.comm, self.options
        n, fraction = int(parts.sizes.sum()), options.validation_fraction
        with comm.agreed():
            if parts.sizes.max() < 2:
                remedy = "ask for fewer parts" if n > 1 else "n_samples = 1, and a choice needs 2"
                raise InputError(f"parts of one row leave no rows to validate on; {remedy}")
            if (options.cv or 0) > n:
                raise InputError(f"cv = {options.cv}: there are {n} rows; ask for fewer folds")
        if options.cv:
            return fold(parts, 0, options.cv)[1]
        if not options.compares:
            return hold_out(parts, fraction)
        held = hold_out(parts, fraction, parts["order"] < fraction * n)
        if parts.sizes.min() < 2:
            with comm.uncounted():
                if not comm.allreduce(np.array([np.count_nonzero(held)]))[0]:
                    return hold_out(parts, fraction)
        return held

    def _piece(self, name: str) -> str:
        """The name of a piece of this round in the checkpoint."""
        return self.prepared.piece(name, self.number, self.options)

    def _judging(
        self, parts: Parts, held: NDArray[np.bool_], tried: Candidates | None
    ) -> tuple[NDArray[np.float64], Samples]:
        """What the parts learn, shape (n_local, C, t), for each candidate of the coarse model; and the rows that judge.

        Each target is in units of `Prepared.scale`, so that squared errors add up.
        """
        if self.options.select == "test":
            X, y, weights = self.prepared.test_rows(self.standardizer)
        else:
            X, y, weights = some(parts.X, held), parts["y"][held].astype(np.float64), parts.row_weights()[held]
        targets, y = parts["y"].astype(np.float64)[:, None], y[:, None]
        if tried is not None:
            with self.comm.phase("train"):
                targets, y = targets - tried.predictions(parts.X), y - tried.predictions(X)
        scale = self.prepared.scale
        targets, y = (values.reshape(*values.shape[:2], len(scale)) / scale for values in (targets, y))
        return targets, Samples(X, {"y": y, "weight": weights})

    def _grid(self, judging: Samples, routes: list[Soft]) -> None:
        """Choose sigma and lambda, and the candidate of the coarse model that goes with them."""
        errors, failed, by_part = self._errors("grid", judging, routes)
        self.fitted.grid = table(errors, self.widths, self.lams, self.options, self.tried)
        self.fitted.notes += left_out(failed, self.widths, self.lams)
        if self.options.per_part:
            middle = self._let_parts_choose(by_part)
            if not np.isfinite(errors).any():  # no pair suits all parts: one stands for them, and for the next round
                errors[0, *middle] = self.error
        with self.comm.phase("predict"):
            self.candidate, s, ell = best(errors, self.widths, self.lams, self.workspace.dtype, self.comm)
        self.errors = errors
        self.model.like, self.model.sigma = self.widths[s].like, self.widths[s].sigma
        self.model.lam = self.lams[ell]
        if not self.options.per_part:
            self.error = float(errors[self.candidate, s, ell])

    def _let_parts_choose(self, by_part: dict[int, NDArray[np.float64]]) -> tuple[int, int]:
        """Take each part's own pair; one Allreduce of 2 P numbers and 2. Returns where the pair in the middle is."""
        P, comm = len(self.parts.sizes), self.comm
        with comm.agreed():
            chosen = best_of_each(by_part)
        settings, total = np.zeros((2, P)), np.zeros(2)
        for part, (s, ell) in chosen.items():
            settings[:, part] = s, ell
            total[0] += by_part[part][s, ell]
        every = self.options.cv or self.options.select == "loo"  # row judges, or those held out
        total[1] = self.parts.row_weights()[slice(None) if every else self.held].sum()
        with comm.phase("predict"):
            *pairs, error, weight = comm.allreduce(np.concatenate([settings.ravel(), total]))
        chosen_widths, chosen_lams = np.reshape(pairs, (2, P)).astype(np.int64)
        self.model.sigmas = np.array([self.widths[s].sigma for s in chosen_widths])
        self.model.lams = np.array(self.lams)[chosen_lams]
        self.error = float(error / weight)
        middle = np.argsort(self.model.sigmas, kind="stable")[P // 2]
        return int(chosen_widths[middle]), int(chosen_lams[middle])

    def _soften(self, judging: Samples, routes: list[Soft]) -> None:
        """Choose k and t of soft routing, at the chosen pair."""
        errors, _, _ = self._errors("soft", judging, routes)
        width = (Width(self.model.like, self.model.sigma),)
        with self.comm.phase("predict"):
            chosen = best(errors, width, (self.model.lam,), self.workspace.dtype, self.comm)[0]
        self.model.soft, self.error = routes[chosen], float(errors[chosen, 0, 0])

    def _errors(
        self, name: str, judging: Samples, routes: list[Soft]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], dict[int, NDArray[np.float64]]]:
        """The errors of the grid, or of the ways to share at the chosen pair, over all folds; see :class:`Search`."""
        comm, options = self.comm, self.options
        soften, own = name == "soft", options.per_part and name == "grid"
        steps = (options.cv or 1) * (1 if soften else len(self.widths)) * sum(cost(rows) for _, rows in self.parts)
        advance = options.progress("choosing the soft route" if soften else CHOOSING, steps)
        found: list[tuple[NDArray[Any], NDArray[np.int64], dict[int, NDArray[np.float64]], float]] = []
        for one in self._folds(judging):
            loo = options.select == "loo" and not soften
            held = np.zeros_like(one.held) if loo else one.held
            search = self._search(one, name, held, soften, advance)
            search.before = sum((errors for fold in found for errors in fold[2].values()), start=np.zeros(1))
            if loo:
                errors, failed = search.left_out_errors(comm)
            elif own:
                errors, failed = search.errors(Judges.of_own_parts(one.parts, held, one.targets), comm)
            else:
                columns = one.judging.columns
                y = columns["y"][:, [self.candidate]] if soften else columns["y"]
                judges = self._judges(Samples(one.judging.X, {**columns, "y": y}), routes)
                errors, failed = search.errors(judges, comm, len(routes) if soften else 1)
            found.append((errors, failed, search.by_part, one.judging["weight"].sum()))
        if len(found) == 1:
            return found[0][:3]
        with comm.phase("predict"):
            weights = comm.allreduce(np.array([weight for *_, weight in found]))
        errors = np.average([one[0] for one in found], axis=0, weights=weights)
        by_part = {part: np.sum([one[2][part] for one in found], axis=0) for part in found[0][2]}
        return errors, np.max([one[1] for one in found], axis=0), by_part

    def _judges(self, judging: Samples, routes: list[Soft]) -> Judges:
        parts = self.parts
        with self.comm.phase("predict" if self.options.select == "test" else "partition"):
            return Judges.routed(judging, self.route, routes, parts.centers, parts.owners, self.comm)

    def _search(self, one: _Fold, name: str, held: NDArray[np.bool_], soften: bool, advance: Advance) -> Search:
        """The search of a fold: of the whole grid, or at the setting, or settings, that were chosen."""
        targets, widths, lams, own = one.targets, self.widths, self.lams, {}
        if soften:
            targets = targets[:, [self.candidate]]
            widths, lams = (Width(self.model.like, self.model.sigma),), (self.model.lam,)
            if self.model.sigmas is not None:
                own = {part: self._setting(part) for part, _ in one.parts}
        return Search(
            one.parts, targets, held, widths, lams, self.workspace, self.options.checkpoint,
            self._piece(f"{one.name}{name}"), self.fitted.seconds, advance, own,
        )  # fmt: skip

    def _setting(self, part: int) -> tuple[Width, float]:
        """A part's kernel and lambda: its own, or that of all."""
        return Width(self.model.like, self.model.sigma_of(part)), self.model.lam_of(part)
