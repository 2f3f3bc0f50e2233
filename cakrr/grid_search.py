"""Choosing sigma and lambda: every pair's error, in one reduction."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.data.rows import Rows, gather_rows
from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint, remembered
from cacore.kernels import Kernel
from cacore.machine import memory, threads
from cakrr.options import Width
from cakrr.solver.local import Workspace
from cakrr.solver.system import RidgeSystem, ridge_system
from partition.redistribute import Parts, redistribute
from partition.routing import Soft, closest, nearest


@dataclass
class Judged:
    """The judging rows that one part's model answers for.

    Attributes
    ----------
    X : ndarray or CSR, shape (q, d)
    number : ndarray of int64, shape (q,)
        Their places in :class:`Judges`.
    share : ndarray, shape (K, q)
        What this model's answer counts for, in each of K ways to share.
    """

    X: Rows
    number: NDArray[np.int64]
    share: NDArray[np.float64]


@dataclass
class Judges:
    """The rows that judge a pair: validation rows of the training set, or the test rows.

    Attributes
    ----------
    rule : {"nearest", "shared", "oracle"}
        One model answers for a row; the shares of several add up; or the best one counts.
    parts : dict of int to Judged
        For each part of this rank.
    y : ndarray, shape (q, C, t)
        The t targets that each candidate leaves; of this rank's judging rows for "nearest", of all ranks' otherwise.
    weights : ndarray, shape (q,)
    """

    rule: str
    parts: dict[int, Judged]
    y: NDArray[np.float64]
    weights: NDArray[np.float64]

    @classmethod
    def routed(
        cls, rows: Samples, route: str, soft: list[Soft], centers: NDArray[np.float64], owners: NDArray[np.int64],
        comm: Communicator,
    ) -> Judges:  # fmt: skip
        """Bring each of this rank's judging rows to the models that will answer for it; collective.

        Parameters
        ----------
        rows : Samples
            With the columns "y", shape (n_local, C, t), and "weight".
        route : {"nearest", "soft", "all", "oracle"}
        soft : list of Soft
            The ways to share that are compared, for the route "soft".
        centers : ndarray, shape (P, d)
        owners : ndarray of int64, shape (P,)
        comm : Communicator
        """
        X, y, weights, P = rows.X, rows["y"], rows["weight"], len(owners)
        if route == "nearest":
            columns = {"weight": weights, "y": y}
            owned = redistribute(Samples(X, columns), nearest(X, centers), owners, comm)
            parts = {
                p: Judged(owned.X[r], np.arange(r.start, r.stop), np.ones((1, r.stop - r.start))) for p, r in owned
            }
            return cls("nearest", parts, owned["y"], owned["weight"])
        everywhere = comm.allgather(y), comm.allgather(weights)
        if route == "soft":
            first, _ = comm.offset(X.shape[0])
            k = min(max(one.k for one in soft), P)
            labels, squares = closest(X, centers, k)
            columns = {"number": np.repeat(np.arange(first, first + len(labels)), k)}
            columns |= {f"share{i}": one.weights(squares).ravel() for i, one in enumerate(soft)}
            repeated = Samples(X[np.arange(len(labels)).repeat(k)], columns)
            owned = redistribute(repeated, labels.ravel(), owners, comm)
            share = np.stack([owned[f"share{i}"] for i in range(len(soft))])
            parts = {p: Judged(owned.X[r], owned["number"][r], share[:, r]) for p, r in owned}
            return cls("shared", parts, *everywhere)
        gathered = gather_rows(X, comm)
        number, share = np.arange(gathered.shape[0]), np.full((1, gathered.shape[0]), 1.0 / P)
        parts = {int(p): Judged(gathered, number, share) for p in np.flatnonzero(owners == comm.rank)}
        return cls("oracle" if route == "oracle" else "shared", parts, *everywhere)

    def totals(self, shape: tuple[int, int, int]) -> NDArray[np.float64]:
        """What the parts' answers are added up in, for all C x S x L settings."""
        if self.rule == "nearest":
            return np.zeros((*shape, 1))
        # Target by target. The last place tells whether all parts had a solution, also those without a judging row.
        return np.full((*shape, len(self.y) * self.y.shape[2] + 1), np.inf if self.rule == "oracle" else 0.0)

    def judge(self, part: int, predicted: NDArray[Any]) -> NDArray[np.float64]:
        """What one part's predictions, shape (L, C, t, q), contribute.

        Shape (C, L, t, q), or (C, L, 1) for "nearest".
        """
        judged = self.parts[part]
        predicted = predicted.astype(np.float64).transpose(1, 0, 2, 3)
        if self.rule == "shared":
            return predicted * judged.share[:, None, None, :]
        gap = np.square(predicted - self.y[judged.number].transpose(1, 2, 0)[:, None])
        return gap if self.rule == "oracle" else _summed(gap, self.weights[judged.number])[..., None]

    def add(
        self, totals: NDArray[np.float64], part: int, given: NDArray[np.float64], solved: NDArray[np.bool_]
    ) -> None:
        """Add one part's contribution, for all settings, to `totals`."""
        if self.rule == "nearest":
            totals += np.where(solved[None, :, :, None], given, np.nan)
            return
        number = self.parts[part].number + len(self.y) * np.arange(self.y.shape[2])[:, None]
        if self.rule == "oracle":
            totals[..., number] = np.minimum(totals[..., number], given)
        else:
            totals[..., number] += given
        totals[:, ~solved, -1] = np.nan

    def errors(self, totals: NDArray[np.float64], comm: Communicator) -> NDArray[np.float64]:
        """Weighted mean squared error of every setting, from one reduction; NaN where a part had no solution."""
        if self.rule == "nearest":
            summed = comm.allreduce(np.append(totals.ravel(), self.weights.sum()))
            return np.asarray(summed[:-1].reshape(totals.shape[:3]) / summed[-1])
        if self.rule == "oracle":
            # The least is no number where one is not a number: -infinity survives.
            gap = comm.allreduce(np.where(np.isnan(totals), -np.inf, totals), "min")
            unsolved = np.isneginf(gap[..., -1])
            gap = gap[..., :-1]
        else:
            summed = comm.allreduce(totals)
            unsolved = np.isnan(summed[..., -1])
            gap = np.square(summed[..., :-1] - self.y.transpose(1, 2, 0).reshape(self.y.shape[1], 1, 1, -1))
        gap = gap.reshape(*gap.shape[:3], self.y.shape[2], len(self.y))
        return np.where(unsolved, np.nan, _summed(gap, self.weights) / self.weights.sum())


def _summed(gap: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of gaps, shape (..., L, t, q), over q judging rows of these weights and over t targets."""
    *shape, t, q = gap.shape
    by_target = gap.reshape(*shape[:-1], shape[-1] * t, q) @ weights
    return np.asarray(by_target.reshape(*shape, t).sum(axis=-1))


def held_out(m: int, fraction: float) -> int:
    """Validation rows of a part of m rows: `fraction` of them, and at least one row is left to learn from."""
    return max(0, min(m - 1, max(1, round(fraction * m)))) if fraction else 0


def hold_out(parts: Parts, fraction: float, among: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
    """Mark the first rows of each part, which lie in shuffled order, as validation rows.

    So many that they are `fraction` of the part; or those of `among`, the first ones of all parts' rows, so that they
    are the same ones whatever the parts. A row of each part is left to learn from.
    """
    held = np.zeros(len(parts.columns["y"]), np.bool_)
    for _, rows in parts:
        m = rows.stop - rows.start
        count = held_out(m, fraction) if among is None else min(m - 1, int(among[rows].sum()))
        held[rows.start : rows.start + max(0, count)] = True
    return held


@dataclass
class Search:
    """The grid over this rank's parts.

    Attributes
    ----------
    parts : Parts
    targets : ndarray, shape (n_local, C, t)
        What the parts learn: t columns a candidate of the coarse model, or of one.
    held : ndarray of bool, shape (n_local,)
        Rows that are not learnt from; the first ones of each part.
    widths : tuple of Width
        Kernels of the same measure of distance side by side.
    lams : tuple of float
    workspace : Workspace
    checkpoint : Checkpoint or None
    name : str
        Of its pieces in the checkpoint.
    seconds : ndarray, shape (P,)
        Added to: what each part took.
    advance : callable
        Called once a part.
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
    advance: Callable[[], None]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Candidates of the coarse model, kernels of a width, lambdas."""
        return self.targets.shape[1], len(self.widths), len(self.lams)

    def errors(
        self, judges: Judges, comm: Communicator, ways: int = 1
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Mean squared error of every setting on the judging rows; collective.

        Parameters
        ----------
        judges : Judges
        comm : Communicator
        ways : int
            Ways to share that are compared, in the place of candidates; there is one candidate then.

        Returns
        -------
        errors : ndarray, shape (C or ways, S, L)
            NaN for a pair whose matrix is not positive definite in some part.
        failed : ndarray of int64, shape (S, L)
            A part in which it is not, or -1.

        Raises
        ------
        MemoryLimitError

        Notes
        -----
        Training sends nothing. Then one Allreduce: of a number a setting for the rule "nearest", of a
        number a setting, judging row and target for the others.
        """
        t = self.targets.shape[2]
        rows = 1 if judges.rule == "nearest" else len(judges.y) * t
        shape = (max(ways, self.shape[0]), *self.shape[1:])
        with comm.agreed():
            # Their sum, what the reduction makes of it, and two parts' shares a thread that wait to be added.
            need = 8 * int(np.prod(shape)) * rows * (4 + 2 * threads.current())
            if t > 1:  # and one sigma's coefficients, three times
                need += 24 * self.shape[0] * len(self.lams) * t * self.workspace.rows
            what = f"the grid's predictions ({int(np.prod(shape)):,} settings, {rows:,} rows)"
            memory.require(need, self.workspace.limit, what, "use a smaller grid or --validation-fraction")

        def judge(part: int, system: RidgeSystem, kernel: Kernel, y: NDArray[np.float64]) -> tuple[Any, Any]:
            alphas, solved = system.solve(kernel, self.lams, y.reshape(len(y), -1).T)
            judged = judges.parts[part]
            flat = np.ascontiguousarray(alphas.reshape(-1, alphas.shape[-1]).T)
            predicted = kernel.apply(kernel.points(judged.X, like=system.points), system.points, flat)
            return judges.judge(part, predicted.T.reshape(len(alphas), *y.shape[1:], -1)), solved

        return self._judged(judge, judges, shape, comm)

    def left_out_errors(self, comm: Communicator) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """As :meth:`errors`: leave-one-out errors of every row by its own part's model, in closed form."""
        weights = self.parts.row_weights()
        rows = dict(self.parts)

        def judge(part: int, system: RidgeSystem, kernel: Kernel, y: NDArray[np.float64]) -> tuple[Any, Any]:
            errors, solved = system.left_out(kernel, self.lams, y[:, 0].T)
            return _summed(np.square(errors), weights[rows[part]])[None, :, None], solved

        # Each row judges its own part's model, where it lies already.
        return self._judged(judge, Judges("nearest", {}, self.targets, weights), self.shape, comm)

    def _judged(
        self, judge: Callable[..., tuple[Any, Any]], judges: Judges, shape: tuple[int, int, int], comm: Communicator
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Let `judge` look at every part and sigma, add up part by part, in order, and reduce once."""
        totals, failed = judges.totals(shape), np.full(self.shape[1:], -1, np.int64)

        def whole(part: int, rows: slice) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
            def work() -> dict[str, NDArray[Any]]:
                begun = time.perf_counter()
                learn = slice(rows.start + int(self.held[rows].sum()), rows.stop)
                weights = self.parts.columns["weight"][learn] if "weight" in self.parts.columns else None
                y, results = self.targets[learn], []
                for _, alike in groupby(self.widths, lambda width: width.like.declared.of):
                    kernels = [width.kernel for width in alike]
                    system = ridge_system(self.parts.X[learn], self.workspace, kernels[0], weights, grid=True)
                    results += [judge(part, system, kernel, y) for kernel in kernels]
                given, solved = np.stack([r[0] for r in results], axis=1), np.stack([r[1] for r in results])
                return {"given": given, "solved": solved, "seconds": np.array(time.perf_counter() - begun)}

            done = remembered(self.checkpoint, f"{self.name}-{part:06d}", work)
            self.seconds[part] += done["seconds"]
            self.advance()
            return done["given"], done["solved"]

        with comm.phase("train"):
            for (part, _), (given, solved) in self.workspace.over_parts(whole, self.parts):
                judges.add(totals, part, given, solved)
                failed = np.where(solved, failed, np.maximum(failed, part))
        comm.wait()
        with comm.phase("predict"):
            errors = judges.errors(totals, comm)
            # All ranks see whether a pair failed somewhere; where is asked for only then.
            return errors, comm.allreduce(failed, "max") if np.isnan(errors).any() else failed


def left_out(failed: NDArray[np.int64], widths: tuple[Width, ...], lams: tuple[float, ...]) -> list[str]:
    """A sentence about the pairs that could not be solved; none if all could."""
    pairs = [
        f"sigma {widths[s].sigma:g} lambda {lams[ell]:g} (part {failed[s, ell]})"
        for s, ell in np.argwhere(failed >= 0)
    ]  # fmt: skip
    more = f" and {len(pairs) - 3} more" if len(pairs) > 3 else ""
    return [f"left out, K + lambda m I is not positive definite: {', '.join(pairs[:3])}{more}"] if pairs else []


def larger_lambda(dtype: Any) -> str:
    """The remedy for systems of this precision that have no solution, in words for options and parameters alike."""
    return "a larger lambda" + (", or float64" if dtype == np.float32 else "")


def least(errors: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """The least error along an axis of (C, S, L), infinity where nothing could be solved."""
    others = tuple(one for one in range(errors.ndim) if one != axis)
    return np.asarray(np.where(np.isfinite(errors), errors, np.inf).min(axis=others))


def next_widths(widths: tuple[Width, ...], errors: NDArray[np.float64]) -> tuple[Width, ...]:
    """What a search goes on with where distances have changed a little.

    The best of `widths` and those beside it, so that it can leave the grid, and each other kernel's best; one alone
    stays alone.
    """
    if len(set(widths)) == 1:
        return widths[:1]
    order = [widths[i] for i in np.argsort(errors, kind="stable")]
    others = {width.like: width for width in reversed(order) if width.like != order[0].like}  # the last one stays
    return (*order[0].nearby(), *others.values())


def best(
    errors: NDArray[np.float64], widths: tuple[Width, ...], lams: tuple[float, ...], dtype: Any, comm: Communicator
) -> tuple[int, int, int]:
    """The setting with the least error; of equal ones the smoothest: last sigma and lambda, first candidate.

    Collective: the ranks' errors may differ in the last bit, and their choice must not.

    Raises
    ------
    InputError
        No pair could be solved.
    """
    with comm.agreed():
        if not np.isfinite(errors).any():
            sigmas = [width.sigma for width in widths]
            raise InputError(
                f"no pair of the grid could be solved: lambda up to {max(lams):g} is too small "
                f"for sigma {min(sigmas):g} to {max(sigmas):g}; use {larger_lambda(dtype)}"
            )
    least = comm.bcast(np.array([np.nanargmin(errors[:, ::-1, ::-1])], np.int64))[0]
    c, s, ell = np.unravel_index(int(least), errors.shape)
    return int(c), len(widths) - 1 - int(s), len(lams) - 1 - int(ell)
