"""Regions: a division of space into boxes, one per rank, by recursive bisection of equal work."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator

_BINS, _ROUNDS = 256, 5  # a cut lies within 256^-5 of the width of its box
_PAIRS = 200.0  # neighbours whose products cost as much as the regression of a point in the preconditioner
_COARSE = 4096  # cells of the histogram by which the work of a point is estimated


@dataclass(frozen=True)
class Cut:
    """A plane that divides the ranks `first` to `last` - 1: those below `middle` own the points at or below it."""

    first: int
    middle: int
    last: int
    axis: int
    at: float


@dataclass(frozen=True)
class Regions:
    """Boxes, one per rank, that divide all space: a point on a plane belongs to the lower box.

    Attributes
    ----------
    low, high : ndarray, shape (R, d)
        Ends of the boxes; infinite where nothing bounds them.
    cuts : tuple of Cut
        The planes, an outer one before those inside its boxes.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    cuts: tuple[Cut, ...]

    @classmethod
    def divide(cls, X: NDArray[np.float64], radius: float, comm: Communicator) -> Regions:
        """Divide all ranks' points `X`, shape (n_local, d), into regions of equal work; collective.

        Parameters
        ----------
        X : ndarray, shape (n_local, d)
        radius : float
            Distance up to which points are neighbours.
        comm : Communicator

        Notes
        -----
        A box is cut across its widest side, in the proportion of the ranks on the two sides. One Allreduce of 4,096
        counts, and for each of log2(R) levels six of at most 256 R numbers.
        """
        d, R = X.shape[1], comm.size
        low, high, cuts = np.full((R, d), -np.inf), np.full((R, d), np.inf), []
        work = _work(X, radius, comm) if R > 1 else np.ones(len(X))
        group, groups = np.zeros(len(X), np.int64), [(0, R)]
        while any(last - first > 1 for first, last in groups):
            axes, planes = _planes(X, work, group, groups, comm)
            some: list[tuple[int, int]] = []
            after = np.empty_like(group)
            for g, (first, last) in enumerate(groups):
                here, middle = group == g, (first + last) // 2
                if last - first == 1:
                    after[here] = len(some)
                    some.append((first, last))
                    continue
                axis, at = int(axes[g]), float(planes[g])
                cuts.append(Cut(first, middle, last, axis, at))
                high[first:middle, axis] = np.minimum(high[first:middle, axis], at)
                low[middle:last, axis] = np.maximum(low[middle:last, axis], at)
                after[here] = len(some) + (X[here, axis] > at)
                some += [(first, middle), (middle, last)]
            group, groups = after, some
        return cls(low, high, tuple(cuts))

    def owners(self, X: NDArray[np.float64]) -> NDArray[np.int64]:
        """Rank that owns each point, shape (n,)."""
        found = np.zeros(len(X), np.int64)
        ends = np.full(len(X), len(self.low), np.int64)
        for cut in self.cuts:
            here = (found == cut.first) & (ends == cut.last)
            upper = here & (X[:, cut.axis] > cut.at)
            ends[here & ~upper] = cut.middle
            found[upper] = cut.middle
        return found

    def near(self, X: NDArray[np.float64], rank: int, radius: float) -> NDArray[np.bool_]:
        """True for the points closer to the box of `rank` than `radius`, with a margin for rounding."""
        if math.isinf(radius):
            return np.ones(len(X), np.bool_)
        gaps = np.maximum(np.maximum(self.low[rank] - X, X - self.high[rank]), 0.0)
        return np.asarray(np.einsum("ij,ij->i", gaps, gaps) <= radius * radius * (1.0 + 1e-9))

    def lent(self, X: NDArray[np.float64], radius: float, rank: int) -> list[NDArray[np.int64]]:
        """Points of `rank` that each other rank borrows: those closer to its region than `radius`.

        Only these have neighbours among the points that `rank` borrows. In the plane, a region of n points lends about
        4 radius sqrt(n density).
        """
        none = np.zeros(0, np.int64)
        others = range(len(self.low))
        return [none if other == rank else np.flatnonzero(self.near(X, other, radius)) for other in others]


@dataclass(frozen=True)
class Histogram:
    """Numbers of points in equal boxes that cover all points, on every rank.

    Attributes
    ----------
    edge : ndarray, shape (d,)
    counts : ndarray of float64, shape (boxes,)
    box : ndarray of int64, shape (n_local,)
        Box of each of this rank's points.
    side : int
        Boxes along each coordinate.
    """

    edge: NDArray[np.float64]
    counts: NDArray[np.float64]
    box: NDArray[np.int64]
    side: int

    @classmethod
    def of(cls, X: NDArray[np.float64], most: int, comm: Communicator) -> Histogram:
        """Count all ranks' points in at most `most` boxes; two Allreduces, of 2 d and of `most` numbers."""
        d = X.shape[1]
        ends = np.concatenate([X.min(axis=0, initial=np.inf), -X.max(axis=0, initial=-np.inf)])
        ends = comm.allreduce(ends, "min")
        low, span = ends[:d], -ends[d:] - ends[:d]
        side = max(1, int(most ** (1.0 / d) + 1e-9))
        edge = np.where(span > 0, span / side, 1.0)
        places = np.minimum((X - low) // edge, side - 1).astype(np.int64)
        box = np.ravel_multi_index(tuple(places.T), (side,) * d) if len(X) else np.zeros(0, np.int64)
        return cls(edge, comm.allreduce(np.bincount(box, minlength=side**d).astype(np.float64)), box, side)

    def occupied(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower corners of the boxes that hold points, shape (b, d), from the lowest one; and their counts."""
        there = np.flatnonzero(self.counts)
        corners = np.stack(np.unravel_index(there, (self.side,) * len(self.edge)), axis=1)
        return corners * self.edge, self.counts[there]


def _work(X: NDArray[np.float64], radius: float, comm: Communicator) -> NDArray[np.float64]:
    """Estimated work of each point: 1 for its regression, and its neighbours' share by the density around it."""
    d, found = X.shape[1], Histogram.of(X, _COARSE, comm)
    ball = np.pi ** (d / 2) / math.gamma(d / 2 + 1)
    share = min(1.0, float(ball * np.prod(np.minimum(radius / found.edge, 1e3))))
    return np.asarray(1.0 + found.counts[found.box] * share / _PAIRS)


def _planes(
    X: NDArray[np.float64], work: NDArray[np.float64], group: NDArray[np.int64], groups: list[tuple[int, int]],
    comm: Communicator,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:  # fmt: skip
    """Axis and place of the plane that divides the work of each group in the proportion of its ranks; collective."""
    G, d = len(groups), X.shape[1]
    ends = np.full((2, G, d), np.inf)
    np.minimum.at(ends[0], group, X)
    np.minimum.at(ends[1], group, -X)
    ends = comm.allreduce(ends, "min")
    span = np.where(np.isfinite(ends[0]), -ends[1] - ends[0], 0.0)
    axes = np.argmax(span, axis=1)
    low = np.where(np.isfinite(ends[0]), ends[0], 0.0)[np.arange(G), axes]
    width = span[np.arange(G), axes]
    x = X[np.arange(len(X)), axes[group]]
    share = np.array([((first + last) // 2 - first) / (last - first) for first, last in groups])
    left = np.full(G, np.nan)  # work that is still to be found below the plane
    for _ in range(_ROUNDS):
        unit = np.where(width > 0, width / _BINS, 1.0)
        bins = np.floor((x - low[group]) / unit[group])
        inside = (bins >= 0) & (bins <= _BINS) & (x <= low[group] + width[group])
        keys = group[inside] * _BINS + np.minimum(bins[inside], _BINS - 1).astype(np.int64)
        sums = (
            comm.allreduce(np.bincount(keys, work[inside], G * _BINS).astype(np.float64))
            .reshape(G, _BINS)
            .cumsum(axis=1)
        )
        left = np.where(np.isnan(left), share * sums[:, -1], left)
        at = np.minimum((sums < left[:, None]).sum(axis=1), _BINS - 1)
        left = left - np.where(at > 0, sums[np.arange(G), at - 1], 0.0)
        low, width = low + at * unit, np.where(width > 0, unit, 0.0)
    return axes, low + width
