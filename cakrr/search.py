"""Choosing sigma and lambda: every pair's error, in one reduction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore import memory, threads
from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.rows import Rows, concatenate, gather_rows
from cakrr.local import Workspace, solve
from partition.redistribute import OwnedRows, redistribute
from partition.routing import nearest


@dataclass
class Judges:
    """The rows that judge a pair: validation rows of the training set, or the test rows.

    Attributes
    ----------
    rows : dict of int to (X, y, weights)
        Nearest route: for each part of this rank, the rows routed to it. Route "all": under -1, all rows.
    """

    rows: dict[int, tuple[Rows, NDArray[Any], NDArray[Any]]]

    @classmethod
    def route(
        cls,
        X: Rows,
        y: NDArray[Any],
        weights: NDArray[Any],
        centers: NDArray[np.float64],
        owners: NDArray[np.int64],
        route: str,
        comm: Communicator,
    ) -> Judges:
        """Bring each row to the models that will predict it; collective."""
        if route == "all":
            return cls({-1: (gather_rows(X, comm), comm.allgather(y), comm.allgather(weights))})
        owned = redistribute(X, nearest(X, centers), owners, comm, {"y": y, "weight": weights})
        columns = owned.columns
        return cls({part: (owned.X[rows], columns["y"][rows], columns["weight"][rows]) for part, rows in owned})


def held_out(m: int, fraction: float) -> int:
    """Validation rows of a part of m rows: `fraction` of them, and at least one row is left to learn from."""
    return min(m - 1, max(1, round(fraction * m)))


def hold_out(parts: OwnedRows, fraction: float) -> tuple[Rows, NDArray[Any], NDArray[Any]]:
    """The first rows of each part, which lie in shuffled order, as validation rows, with their weights."""
    y = parts.columns["y"]
    weights = parts.columns.get("weight", np.ones(len(y)))
    kept = [slice(rows.start, rows.start + held_out(rows.stop - rows.start, fraction)) for _, rows in parts]
    if not kept:
        return parts.X[:0], y[:0], weights[:0]
    X = concatenate([parts.X[rows] for rows in kept])
    return X, np.concatenate([y[rows] for rows in kept]), np.concatenate([weights[rows] for rows in kept])


def grid_errors(
    parts: OwnedRows,
    judges: Judges,
    n_parts: int,
    fraction: float,
    sigmas: tuple[float, ...],
    lams: tuple[float, ...],
    workspace: Workspace,
    limit: int,
    comm: Communicator,
    advance: Callable[[], None],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Mean squared error of every pair on the judging rows.

    Parameters
    ----------
    parts : OwnedRows
        With the columns "y" (centred) and, optionally, "weight".
    judges : Judges
    n_parts : int
        P; the route "all" divides by it.
    fraction : float
        Share of each part that is held out of training; 0 if the judges are test rows.
    sigmas, lams : tuple of float
    workspace : Workspace
    limit : int
        Bytes that this rank may use.
    comm : Communicator
    advance : callable
        Called once a part and sigma.

    Returns
    -------
    errors : ndarray, shape (len(sigmas), len(lams))
        NaN for a pair whose matrix is not positive definite in some part.
    failed : ndarray of int64, of the same shape
        A part in which it is not, or -1.

    Notes
    -----
    Training sends nothing. Then one Allreduce: of a number a pair for the route "nearest", of a
    number a pair and judging row for "all".
    """
    averaged = -1 in judges.rows
    shape = (len(sigmas), len(lams), len(judges.rows[-1][1]) if averaged else 1)
    if averaged:
        with comm.agreed():
            what = f"the grid's predictions ({shape[0]} x {shape[1]} pairs, {shape[2]:,} rows)"
            memory.require(8 * int(np.prod(shape)), limit, what, "use a smaller grid or --validation-fraction")
    total, failed = np.zeros(shape), np.full(shape[:2], -1, np.int64)

    def judge(part: int, rows: slice, s: int) -> NDArray[np.float64]:
        """Squared errors, or the predictions themselves, of one part's models for every lambda."""
        held = held_out(rows.stop - rows.start, fraction) if fraction else 0
        learn = slice(rows.start + held, rows.stop)
        weights = parts.columns["weight"][learn] if "weight" in parts.columns else None
        judge_X, judge_y, judge_w = judges.rows[-1 if averaged else part]
        kernel = Kernel.gaussian(sigmas[s])
        points = kernel.points(parts.X[learn])
        alphas, solved = solve(points, parts.columns["y"][learn], kernel, lams, workspace, weights)
        failed[s] = np.where(solved, failed[s], np.maximum(failed[s], part))
        predicted = kernel.apply(kernel.points(judge_X, like=points), points, np.ascontiguousarray(alphas.T))
        advance()
        if averaged:
            return predicted.T
        gap = predicted.astype(np.float64) - judge_y[:, None]
        # No judge may have come this way, and the pair has failed all the same.
        return np.where(solved, judge_w @ (gap * gap), np.nan)[:, None]

    with comm.phase("train"):
        tasks = [(part, rows, s) for part, rows in parts for s in range(len(sigmas))]
        results = threads.in_order(judge, tasks, parallel=workspace.one_a_thread)
        for (_, _, s), result in zip(tasks, results, strict=True):
            total[s] += result
    comm.wait()
    with comm.phase("predict"):
        if averaged:
            _, y, weights = judges.rows[-1]
            gap = comm.allreduce(total) / n_parts - y
            errors = (gap * gap) @ weights / weights.sum()
        else:
            weight = sum(float(w.sum()) for _, _, w in judges.rows.values())
            summed = comm.allreduce(np.append(total.ravel(), weight))
            errors = summed[:-1].reshape(shape[:2]) / summed[-1]
        if np.isnan(errors).any():  # on all ranks or on none
            failed = comm.allreduce(failed, "max")
    return errors, failed


def left_out(failed: NDArray[np.int64], sigmas: tuple[float, ...], lams: tuple[float, ...]) -> str:
    """A sentence about the pairs that could not be solved; empty if all could."""
    pairs = [f"sigma {sigmas[s]:g} lambda {lams[ell]:g} (part {failed[s, ell]})" for s, ell in np.argwhere(failed >= 0)]
    more = f" and {len(pairs) - 3} more" if len(pairs) > 3 else ""
    return f"left out, K + lambda m I is not positive definite: {', '.join(pairs[:3])}{more}" if pairs else ""


def best_pair(errors: NDArray[np.float64], sigmas: tuple[float, ...], lams: tuple[float, ...]) -> tuple[float, float]:
    """The pair with the least error; of equal ones the smoothest.

    Raises
    ------
    InputError
        No pair could be solved.
    """
    if not np.isfinite(errors).any():
        raise InputError(
            f"no pair of the grid could be solved: lambda up to {max(lams):g} is too small "
            f"for sigma {min(sigmas):g} to {max(sigmas):g}; use a larger --lambda or --dtype float64"
        )
    s, ell = np.unravel_index(int(np.nanargmin(errors[::-1, ::-1])), errors.shape)
    return sigmas[len(sigmas) - 1 - int(s)], lams[len(lams) - 1 - int(ell)]
