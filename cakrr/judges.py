"""The rows on which settings are compared (held-out or test rows), and the models that predict them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.data.rows import AnyRows, gather_rows
from cacore.data.stored import some
from partition.redistribute import Parts, redistribute
from partition.routing import Soft, closest, nearest


@dataclass
class JudgedRows:
    """The judging rows that the model of one part predicts.

    Attributes
    ----------
    X : ndarray or CSR, shape (q, d)
    number : ndarray of int64, shape (q,)
        Places of these rows in :class:`Judges`.
    share : ndarray, shape (K, q)
        Weight of this model's prediction, in each of K soft routes.
    """

    X: AnyRows
    number: NDArray[np.int64]
    share: NDArray[np.float64]


@dataclass
class Judges:
    """The judging rows, on which settings are compared: validation rows of the training set, or test rows.

    Attributes
    ----------
    rule : {"nearest", "shared", "oracle"}
        One model predicts each row, weighted predictions of several models add up, or only the best model counts.
    parts : dict of int to JudgedRows
        The rows that each of this rank's parts predicts.
    y : ndarray, shape (q, C, t)
        Targets per candidate; of this rank's judging rows for "nearest", of all ranks' otherwise.
    weights : ndarray, shape (q,)
    """

    rule: str
    parts: dict[int, JudgedRows]
    y: NDArray[np.float64]
    weights: NDArray[np.float64]

    @classmethod
    def routed(
        cls, rows: Samples, route: str, soft: list[Soft], centers: NDArray[np.float64], owners: NDArray[np.int64],
        comm: Communicator,
    ) -> Judges:  # fmt: skip
        """Send each of this rank's judging rows to the models that predict it; collective.

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
                p: JudgedRows(some(owned.X, r), np.arange(r.start, r.stop), np.ones((1, r.stop - r.start)))
                for p, r in owned
            }
            return cls("nearest", parts, owned["y"], owned["weight"])
        everywhere = comm.allgather(y), comm.allgather(weights)
        if route == "soft":
            first, _ = comm.offset(X.shape[0])
            k = min(max(one.k for one in soft), P)
            labels, squares = closest(X, centers, k)
            columns = {"number": np.repeat(np.arange(first, first + len(labels)), k)}
            columns |= {f"share{i}": one.weights(squares).ravel() for i, one in enumerate(soft)}
            repeated = Samples(some(X, np.arange(len(labels)).repeat(k)), columns)
            owned = redistribute(repeated, labels.ravel(), owners, comm)
            share = np.stack([owned[f"share{i}"] for i in range(len(soft))])
            parts = {p: JudgedRows(some(owned.X, r), owned["number"][r], share[:, r]) for p, r in owned}
            return cls("shared", parts, *everywhere)
        gathered = gather_rows(X, comm)
        number, share = np.arange(gathered.shape[0]), np.full((1, gathered.shape[0]), 1.0 / P)
        parts = {int(p): JudgedRows(gathered, number, share) for p in np.flatnonzero(owners == comm.rank)}
        return cls("oracle" if route == "oracle" else "shared", parts, *everywhere)

    @classmethod
    def of_own_parts(cls, parts: Parts, held: NDArray[np.bool_], y: NDArray[np.float64]) -> Judges:
        """Each part's held-out rows, predicted by the part's own model; nothing is sent. `y`: shape (n_local, 1, t)."""
        first, judged = 0, {}
        for part, rows in parts:
            count = int(held[rows].sum())  # the first ones
            X = some(parts.X, slice(rows.start, rows.start + count))
            judged[part] = JudgedRows(X, np.arange(first, first + count), np.ones((1, count)))
            first += count
        return cls("nearest", judged, y[held], parts.row_weights()[held])

    def totals(self, shape: tuple[int, int, int]) -> NDArray[np.float64]:
        """Array in which the parts' contributions are added up, for all C x S x L settings."""
        if self.rule == "nearest":
            return np.zeros((*shape, 1))
        # Ordered by target. The last entry shows if any part, even one without judging rows, had no solution.
        return np.full((*shape, len(self.y) * self.y.shape[2] + 1), np.inf if self.rule == "oracle" else 0.0)

    def judge(self, part: int, predicted: NDArray[np.floating]) -> NDArray[np.float64]:
        """Contribution of one part's predictions, shape (L, C, t, q).

        Shape (C, L, t, q), or (C, L, 1) for "nearest".
        """
        judged = self.parts[part]
        predicted = predicted.astype(np.float64).transpose(1, 0, 2, 3)
        if self.rule == "shared":
            return predicted * judged.share[:, None, None, :]
        gap = np.square(predicted - self.y[judged.number].transpose(1, 2, 0)[:, None])
        return gap if self.rule == "oracle" else weighted_sum(gap, self.weights[judged.number])[..., None]

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
    """Sum of gaps, shape (..., L, t, q), over q judging rows with these weights and over t targets."""
    *shape, t, q = gap.shape
    by_target = gap.reshape(*shape[:-1], shape[-1] * t, q) @ weights
    return np.asarray(by_target.reshape(*shape, t).sum(axis=-1))


def held_out(m: int, fraction: float) -> int:
    """Number of validation rows in a part of m rows: `fraction` of them, leaving at least one to train on."""
    return max(0, min(m - 1, max(1, round(fraction * m)))) if fraction else 0


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


def fold(parts: Parts, number: int, folds: int) -> tuple[Parts, NDArray[np.bool_]]:
    """The parts, reordered so that the rows of this fold come first, and a mask of these rows.

    A fold is a range of the shuffled order of all rows, so it has the same rows for any parts and ranks. At least one
    row of each part is left to train on.
    """
    n = int(parts.sizes.sum())
    if number:
        order, first = parts["order"], -(-number * n // folds)
        index = np.arange(len(order))
        for _, rows in parts:
            index[rows] = np.roll(index[rows], -int(np.searchsorted(order[rows], first)))
        columns = {name: values[index] for name, values in parts.columns.items()}
        parts = replace(parts, X=parts.X[index], columns=columns)
    return parts, hold_out(parts, 0.0, parts["order"] * folds // n == number)
