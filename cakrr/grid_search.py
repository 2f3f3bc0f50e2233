"""The grid search for sigma and lambda: errors of all pairs, from one reduction (Algorithm 10, lines 8 to 22).

1. :class:`ValidationRows`: the rows on which pairs are compared, sent to the models that predict them.
2. :func:`hold_out`, :func:`fold_first`: the choice of these rows.
3. :class:`Search`: for each part and sigma, one system, its solutions for all lambdas, and their predictions.
4. :func:`best`: the pair with the smallest error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.data.holdout import Holdout, held_out
from cacore.data.rows import AnyRows, gather_rows, take_rows
from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint, Kept, remembered
from cacore.kernels import Kernel
from cacore.kernels.precision import steepest
from cacore.machine import memory, threads
from cacore.machine.clock import working_time
from cacore.progress import Advance
from cacore.tuning import choose
from cakrr.options import RidgeOptions, Width
from cakrr.solver.coarse import Candidates
from cakrr.solver.local import RidgeSystem, Workspace, ridge_system
from partition.parts_model import Soft, closest, nearest
from partition.redistribute import Parts, redistribute


@dataclass
class RowsOfPart:
    """The validation rows that the model of one part predicts.

    Attributes
    ----------
    X : ndarray or CSR, shape (q, d)
    number : ndarray of int64, shape (q,)
        Places of these rows in :class:`ValidationRows`.
    share : ndarray, shape (K, q)
        Weight of this model's prediction, in each of K soft routes.
    """

    X: AnyRows
    number: NDArray[np.int64]
    share: NDArray[np.float64]


@dataclass
class ValidationRows:
    """The rows on which settings are compared: held-out rows of the training set, or test rows.

    Attributes
    ----------
    rule : {"nearest", "shared", "oracle"}
        One model predicts each row, weighted predictions of several models add up, or only the best model counts.
    parts : dict of int to RowsOfPart
        The rows that each of this rank's parts predicts.
    y : ndarray, shape (q, C, t)
        Targets per candidate; of this rank's validation rows for "nearest", of all ranks' otherwise.
    weights : ndarray, shape (q,)
    """

    rule: str
    parts: dict[int, RowsOfPart]
    y: NDArray[np.float64]
    weights: NDArray[np.float64]

    @classmethod
    def routed(
        cls, rows: Samples, route: str, soft: list[Soft], centers: NDArray[np.float64], owners: NDArray[np.int64],
        comm: Communicator,
    ) -> ValidationRows:  # fmt: skip
        """Send each of this rank's validation rows to the models that predict it; collective.

        Parameters
        ----------
        rows : Samples
            With the columns "y", shape (n_local, C, t), and "weight".
        route : {"nearest", "soft", "all", "oracle"}
        soft : list of Soft
            Soft routes to compare, for the route "soft".
        centers : ndarray, shape (P, d)
        owners : ndarray of int64, shape (P,)
        comm : Communicator
        """
        X, y, weights, P = rows.X, rows["y"], rows["weight"], len(owners)
        if route == "nearest":
            columns = {"weight": weights, "y": y}
            owned = redistribute(Samples(X, columns), nearest(X, centers), owners, comm)
            parts = {
                p: RowsOfPart(take_rows(owned.X, r), np.arange(r.start, r.stop), np.ones((1, r.stop - r.start)))
                for p, r in owned
            }
            return cls("nearest", parts, owned["y"], owned["weight"])
        everywhere = comm.allgather(y), comm.allgather(weights)
        if route == "soft":
            first, _ = comm.offset(X.shape[0])
            k = min(max(weights_of_models.k for weights_of_models in soft), P)
            labels, squares = closest(X, centers, k)
            columns = {"number": np.repeat(np.arange(first, first + len(labels)), k)}
            columns |= {
                f"share{i}": weights_of_models.weights(squares).ravel() for i, weights_of_models in enumerate(soft)
            }
            repeated = Samples(take_rows(X, np.arange(len(labels)).repeat(k)), columns)
            owned = redistribute(repeated, labels.ravel(), owners, comm)
            share = np.stack([owned[f"share{i}"] for i in range(len(soft))])
            parts = {p: RowsOfPart(take_rows(owned.X, r), owned["number"][r], share[:, r]) for p, r in owned}
            return cls("shared", parts, *everywhere)
        gathered = gather_rows(X, comm)
        number, share = np.arange(gathered.shape[0]), np.full((1, gathered.shape[0]), 1.0 / P)
        parts = {int(p): RowsOfPart(gathered, number, share) for p in np.flatnonzero(owners == comm.rank)}
        return cls("oracle" if route == "oracle" else "shared", parts, *everywhere)

    @classmethod
    def of_own_parts(cls, parts: Parts, held: NDArray[np.bool_], y: NDArray[np.float64]) -> ValidationRows:
        """Each part's held-out rows, predicted by the part's own model; nothing is sent. `y`: shape (n_local, 1, t)."""
        first, own_rows = 0, {}
        for part, rows in parts:
            count = int(held[rows].sum())  # the first ones
            X = take_rows(parts.X, slice(rows.start, rows.start + count))
            own_rows[part] = RowsOfPart(X, np.arange(first, first + count), np.ones((1, count)))
            first += count
        return cls("nearest", own_rows, y[held], parts.row_weights()[held])

    def totals(self, shape: tuple[int, int, int]) -> NDArray[np.float64]:
        """Array in which the parts' contributions are added up, for all C x S x L settings."""
        if self.rule == "nearest":
            return np.zeros((*shape, 1))
        # Ordered by target. The last entry shows if any part, even one without validation rows, had no solution.
        return np.full((*shape, len(self.y) * self.y.shape[2] + 1), np.inf if self.rule == "oracle" else 0.0)

    def contribution(self, part: int, predicted: NDArray[np.floating]) -> NDArray[np.float64]:
        """Contribution of one part to the sums of :meth:`totals`, given its predictions, shape (L, C, t, q).

        Shape (C, L, 1), sums of squared errors, for "nearest". Otherwise (C, L, t, q): weighted predictions for
        "shared", squared errors for "oracle".
        """
        rows_of_part = self.parts[part]
        predicted = predicted.astype(np.float64).transpose(1, 0, 2, 3)
        if self.rule == "shared":
            return predicted * rows_of_part.share[:, None, None, :]
        gap = np.square(predicted - self.y[rows_of_part.number].transpose(1, 2, 0)[:, None])
        return gap if self.rule == "oracle" else weighted_sum(gap, self.weights[rows_of_part.number])[..., None]

    def add(
        self, totals: NDArray[np.float64], part: int, contribution: NDArray[np.float64], solved: NDArray[np.bool_]
    ) -> None:
        """Add one part's contribution, for all settings, to `totals`."""
        if self.rule == "nearest":
            totals += np.where(solved[None, :, :, None], contribution, np.nan)
            return
        number = self.parts[part].number + len(self.y) * np.arange(self.y.shape[2])[:, None]
        if self.rule == "oracle":
            totals[..., number] = np.minimum(totals[..., number], contribution)
        else:
            totals[..., number] += contribution
        totals[:, ~solved, -1] = np.nan

    def errors(self, totals: NDArray[np.float64], comm: Communicator) -> NDArray[np.float64]:
        """Weighted mean squared error of every setting, from one reduction; NaN if a part had no solution."""
        if self.rule == "nearest":
            summed = comm.allreduce(np.append(totals.ravel(), self.weights.sum()))
            return np.asarray(summed[:-1].reshape(totals.shape[:3]) / summed[-1])
        if self.rule == "oracle":
            # An MPI minimum may drop NaN, but not -infinity.
            gap = comm.allreduce(np.where(np.isnan(totals), -np.inf, totals), "min")
            unsolved = np.isneginf(gap[..., -1])
            gap = gap[..., :-1]
        else:
            summed = comm.allreduce(totals)
            unsolved = np.isnan(summed[..., -1])
            gap = np.square(summed[..., :-1] - self.y.transpose(1, 2, 0).reshape(self.y.shape[1], 1, 1, -1))
        gap = gap.reshape(*gap.shape[:3], self.y.shape[2], len(self.y))
        return np.where(unsolved, np.nan, weighted_sum(gap, self.weights) / self.weights.sum())


def weighted_sum(gap: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of gaps, shape (..., L, t, q), over q validation rows with these weights and over t targets."""
    *shape, t, q = gap.shape
    by_target = gap.reshape(*shape[:-1], shape[-1] * t, q) @ weights
    return np.asarray(by_target.reshape(*shape, t).sum(axis=-1))


def hold_out(parts: Parts, fraction: float, among: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
    """Mask of the validation rows: the first rows of each part, which are in shuffled order.

    They are `fraction` of the part; or, with `among`, the rows marked there, which come first in every part, so that
    they are the same rows for any parts. At least one row of each part is left to train on.
    """
    held = np.zeros(len(parts.columns["y"]), np.bool_)
    for _, rows in parts:
        m = rows.stop - rows.start
        count = held_out(m, fraction) if among is None else min(m - 1, int(among[rows].sum()))
        held[rows.start : rows.start + max(0, count)] = True
    return held


def fold_first(parts: Parts, number: int, folds: int) -> tuple[Parts, NDArray[np.bool_]]:
    """The parts, reordered so that the rows of this fold come first, and a mask of these rows.

    A fold is a range of the shuffled order of all rows, so it has the same rows for any parts and ranks. At least one
    row of each part is left to train on.
    """
    holdout = Holdout(parts["order"], int(parts.sizes.sum()), folds=folds)
    if number:
        first, _ = holdout.run(number)
        index = np.arange(len(holdout.place))
        for _, rows in parts:
            index[rows] = np.roll(index[rows], -int(np.searchsorted(holdout.place[rows], first)))
        columns = {name: values[index] for name, values in parts.columns.items()}
        parts, holdout = replace(parts, X=parts.X[index], columns=columns), replace(holdout, place=columns["order"])
    return parts, hold_out(parts, 0.0, holdout.held(number))


@dataclass(frozen=True)
class GridErrors:
    """Errors of all settings on the held-out rows.

    Attributes
    ----------
    errors : ndarray, shape (C, S, L)
        Mean squared error for each of C coarse models or soft routes, S widths and L lambdas; NaN for a pair whose
        matrix is not positive definite in some part.
    failed : ndarray of int64, shape (S, L)
        A part in which the matrix is not positive definite, or -1.
    by_part : dict of int to ndarray, shape (S, L)
        Sum of squared errors of every part of this rank, NaN for an unsolved pair, if one model predicts each row.
    """

    errors: NDArray[np.float64]
    failed: NDArray[np.int64]
    by_part: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    @classmethod
    def over_folds(cls, folds: Sequence[GridErrors], weights: Sequence[float] | NDArray[np.float64]) -> GridErrors:
        """Mean of the errors of several folds, weighted by their held-out rows."""
        errors = np.average([fold.errors for fold in folds], axis=0, weights=weights)
        by_part = {part: np.sum([fold.by_part[part] for fold in folds], axis=0) for part in folds[0].by_part}
        return cls(errors, np.max([fold.failed for fold in folds], axis=0), by_part)


_PREDICTED = 1 << 14  # validation rows predicted at a time
CHOOSING = "choosing sigma and lambda"  # label of the progress bar


@dataclass
class Search:
    """The grid search over this rank's parts.

    Attributes
    ----------
    parts : Parts
    targets : ndarray, shape (n_local, C, t)
        Targets of the parts: t columns per candidate of the coarse model; C is 1 without a coarse model.
    held : ndarray of bool, shape (n_local,)
        Held-out rows; they are the first rows of each part.
    widths : tuple of Width
        Kernels and widths; kernels with the same distance follow each other.
    lams : tuple of float
    workspace : Workspace
    checkpoint : Checkpoint or None
    name : str
        Prefix of the search's pieces in the checkpoint.
    seconds : ndarray, shape (P,)
        Seconds per part; the search adds its time.
    advance : callable
        Progress callback; called with :func:`cost` of a part for each width, and with the best pair so far.
    per_part : dict of int to (Width, float)
        Setting of each part, if parts chose their own; it replaces the grid, which then has one pair.
    before : ndarray, shape (S, L), or 0
        Sums of squared errors of this rank's parts in earlier folds, for the progress display.
    """

    parts: Parts
    targets: NDArray[np.float64]
    held: NDArray[np.bool_]
    widths: tuple[Width, ...]
    lams: tuple[float, ...]
    workspace: Workspace
    checkpoint: Checkpoint | None
    name: str
    seconds: NDArray[np.float64]
    advance: Advance
    per_part: dict[int, tuple[Width, float]] = field(default_factory=dict)
    before: NDArray[np.float64] | float = 0.0

    @property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of coarse-model candidates, of widths and of lambdas, (C, S, L)."""
        return self.targets.shape[1], len(self.widths), len(self.lams)

    def errors(self, validation: ValidationRows, comm: Communicator, routes: int = 1) -> GridErrors:
        """Mean squared error of every setting on the validation rows; collective.

        Parameters
        ----------
        validation : ValidationRows
        comm : Communicator
        routes : int
            Number of soft routes to compare, in place of candidates; there is only one candidate then.

        Raises
        ------
        MemoryLimitError

        Notes
        -----
        Training sends nothing. One Allreduce follows: one number per setting for the rule "nearest", and one number
        per setting, validation row and target for other rules.
        """
        t = self.targets.shape[2]
        rows = 1 if validation.rule == "nearest" else len(validation.y) * t
        shape = (max(routes, self.shape[0]), *self.shape[1:])
        with comm.agreed():
            # The sums, a copy for the reduction, and two parts' contributions per thread that wait to be added.
            need = 8 * int(np.prod(shape)) * rows * (4 + 2 * threads.current())
            if t > 1:  # and three copies of one sigma's coefficients
                need += 24 * self.shape[0] * len(self.lams) * t * self.workspace.rows
            what = f"the grid's predictions ({int(np.prod(shape)):,} settings, {rows:,} rows)"
            memory.require(need, self.workspace.limit, what, "use a smaller grid or --validation-fraction")

        def contribution_of(part: int, system: RidgeSystem, kernel: Kernel, y: NDArray[np.float64]) -> tuple[Any, Any]:
            alphas, solved = system.solve(kernel, self._lams(part), y.reshape(len(y), -1).T)
            rows_of_part = validation.parts[part]
            coefficients = alphas.reshape(-1, alphas.shape[-1]).T
            predicted = np.empty((rows_of_part.X.shape[0], coefficients.shape[1]), coefficients.dtype)
            for lo, hi in threads.blocks(len(predicted), _PREDICTED):
                rows = kernel.points(rows_of_part.X[lo:hi], like=system.points)
                predicted[lo:hi] = kernel.apply(rows, system.points, coefficients)
            return validation.contribution(part, predicted.T.reshape(len(alphas), *y.shape[1:], -1)), solved

        return self._totals(contribution_of, validation, shape, comm)

    def left_out_errors(self, comm: Communicator) -> GridErrors:
        """Leave-one-out errors in closed form, each row by its own part's model; returns what :meth:`errors` does."""
        weights = self.parts.row_weights()
        rows = dict(self.parts)

        def contribution_of(part: int, system: RidgeSystem, kernel: Kernel, y: NDArray[np.float64]) -> tuple[Any, Any]:
            errors, solved = system.left_out(kernel, self._lams(part), y[:, 0].T)
            return weighted_sum(np.square(errors), weights[rows[part]])[None, :, None], solved

        # Each row evaluates the model of its own part, on the rank where it is.
        return self._totals(contribution_of, ValidationRows("nearest", {}, self.targets, weights), self.shape, comm)

    def _lams(self, part: int) -> tuple[float, ...]:
        return (self.per_part[part][1],) if self.per_part else self.lams

    def _totals(
        self, contribution_of: Callable[..., tuple[Any, Any]], validation: ValidationRows, shape: tuple[int, int, int],
        comm: Communicator,
    ) -> GridErrors:  # fmt: skip
        """Call `contribution_of` for every part and sigma, add up the results in the order of the parts, reduce once.

        Lines 9 to 17 are `of_all_pairs`, of one part; line 18, the sum over this rank's parts, is `add`.
        """
        totals, failed = validation.totals(shape), np.full(self.shape[1:], -1, np.int64)
        by_part: dict[int, NDArray[np.float64]] = {}

        def of_all_pairs(part: int, rows: slice) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
            work_left, step = cost(rows) * shape[1], cost(rows)

            def work() -> Kept:
                nonlocal work_left
                begun = working_time()
                learn = slice(rows.start + int(self.held[rows].sum()), rows.stop)
                weights = self.parts.columns["weight"][learn] if "weight" in self.parts.columns else None
                y, results = self.targets[learn], []
                widths = (self.per_part[part][0],) if self.per_part else self.widths
                for _, alike in groupby(widths, lambda width: width.like.declared.of):
                    kernels = [width.kernel for width in alike]
                    X = self.parts.X[learn]
                    system = ridge_system(X, self.workspace, steepest(kernels, X), weights, grid=True)
                    for kernel in kernels:
                        results.append(contribution_of(part, system, kernel, y))
                        self.advance(step)
                        work_left -= step
                contributions, solved = np.stack([r[0] for r in results], axis=1), np.stack([r[1] for r in results])
                return {"given": contributions, "solved": solved, "seconds": np.array(working_time() - begun)}

            done = remembered(self.checkpoint, f"{self.name}-{part:06d}", work)
            self.seconds[part] += done["seconds"]
            self.advance(work_left)  # the checkpoint already has the part
            return done["given"], done["solved"]

        parts_done = 0

        def add(part: int, rows: slice, result: tuple[NDArray[np.float64], NDArray[np.bool_]]) -> None:
            nonlocal parts_done
            parts_done += 1
            contributions, solved = result
            validation.add(totals, part, contributions, solved)
            if validation.rule == "nearest":
                by_part[part] = np.where(solved, contributions[0, ..., 0], np.nan)
                self._tell(totals[..., 0] + self.before, parts_done)
            failed[...] = np.where(solved, failed, np.maximum(failed, part))

        with comm.phase("train"):
            self.workspace.over_parts(of_all_pairs, self.parts, add)
        comm.wait()
        with comm.phase("predict"):
            errors = validation.errors(totals, comm)
            if np.isnan(errors).any():  # on all ranks: a pair failed, and only then is the part needed
                failed = comm.allreduce(failed, "max")
            return GridErrors(errors, failed, by_part)

    def _tell(self, totals: NDArray[np.float64], done: int) -> None:
        """Show the best pair of this rank's first `done` parts on the progress bar."""
        if self.per_part or not np.isfinite(totals).any():
            return
        _, s, ell = np.unravel_index(int(np.nanargmin(totals)), totals.shape)
        width = self.widths[s]
        kernel = f"{width.like.kind} " if len({width_tried.like for width_tried in self.widths}) > 1 else ""
        best = f"{kernel}sigma {width.sigma:.3g} lambda {self.lams[ell]:.3g}"
        self.advance(0, f"{CHOOSING}: best of {done} of {len(self.parts.parts)} parts {best}")


def cost(rows: slice) -> int:
    """Approximate flops of a part per width."""
    return int(rows.stop - rows.start) ** 3


def left_out(
    failed: NDArray[np.int64], widths: tuple[Width, ...], lams: tuple[float, ...],
    reason: str = "K + lambda m I is not positive definite", words: NDArray[np.str_] | None = None,
) -> list[str]:  # fmt: skip
    """A note on the pairs that could not be solved, with a word or the part for each; empty if there are none."""
    pairs = []
    for s, ell in np.argwhere(failed >= 0):
        word = f"part {failed[s, ell]}" if words is None else words[s, ell]
        pairs.append(f"sigma {widths[s].sigma:g} lambda {lams[ell]:g} ({word})")
    beyond = f" and {len(pairs) - 3} more" if len(pairs) > 3 else ""
    return [f"left out, {reason}: {', '.join(pairs[:3])}{beyond}"] if pairs else []


def larger_lambda(dtype: DTypeLike) -> str:
    """Remedy for a system without a solution in this precision, for messages of commands and estimators."""
    return "a larger lambda" + (", or float64" if dtype == np.float32 else "")


def not_definite(where: str, sigma: float, lam: float, dtype: DTypeLike) -> str:
    """Error message for a system that is not positive definite."""
    pair = f"sigma {sigma:g}, lambda {lam:g}"
    return f"{where}: K + lambda m I is not positive definite at {pair}; use {larger_lambda(dtype)}"


def least(errors: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """Smallest error along an axis of (C, S, L); infinite where no pair could be solved."""
    others = tuple(dimension for dimension in range(errors.ndim) if dimension != axis)
    return np.asarray(np.where(np.isfinite(errors), errors, np.inf).min(axis=others))


def next_widths(widths: tuple[Width, ...], errors: NDArray[np.float64]) -> tuple[Width, ...]:
    """Widths for the next round of a search, after distances have changed a little.

    They are the best of `widths`, which have one kernel, and its neighbours, so that the search can leave the grid. A
    single width is kept as it is.
    """
    return widths[:1] if len(set(widths)) == 1 else widths[int(np.argmin(errors))].nearby()


def best(
    errors: NDArray[np.float64], widths: tuple[Width, ...], lams: tuple[float, ...], dtype: DTypeLike,
    comm: Communicator, hopeless: str = "",
) -> tuple[int, int, int]:  # fmt: skip
    """The setting with the smallest error; ties go to the smoothest: last sigma and lambda, first candidate.

    Collective, because the ranks' errors may differ in the last bit, but their choices must not. `hopeless` is the
    reason and remedy for the message if no pair could be solved, unless lambda is too small.

    Raises
    ------
    InputError
        No pair could be solved.
    """
    index = choose(errors, last_axes=2)
    with comm.agreed():
        if index is None:
            if hopeless:
                raise InputError(f"no pair of the grid could be solved: {hopeless}")
            sigmas = [width.sigma for width in widths]
            raise InputError(
                f"no pair of the grid could be solved: lambda up to {max(lams):g} is too small "
                f"for sigma {min(sigmas):g} to {max(sigmas):g}; use {larger_lambda(dtype)}"
            )
    number = comm.bcast(np.array([np.ravel_multi_index(index, errors.shape)], np.int64))[0]
    c, s, ell = (int(at) for at in np.unravel_index(number, errors.shape))
    return c, s, ell


def table(
    errors: NDArray[np.float64], widths: tuple[Width, ...], lams: tuple[float, ...], options: RidgeOptions,
    tried: Candidates | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The grid for the report; errors, shape (C, S, L), go to the column named after the validation rows."""
    select, several = options.select, options.chooses_kernel
    columns = [f"{name}_mse" for name in ("validation", "test", *(["loo"] if select == "loo" else []))]
    return [
        {
            **({} if tried is None else tried.facts(c, several)),
            **({"kernel": widths[s].like.kind} if several else {}),
            "sigma": widths[s].sigma, "lambda": lams[ell],
            **dict.fromkeys(columns), f"{select}_mse": float(mse) if np.isfinite(mse) else None,
        }
        for (c, s, ell), mse in np.ndenumerate(errors)
    ]  # fmt: skip
