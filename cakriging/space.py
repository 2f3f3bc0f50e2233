"""Coordinates of points, the drift as a function of them, and the division of space over ranks.

1. :class:`Space`: from given coordinates to those in which the correlation depends on distance alone.
2. :class:`Drift`: the mean of the field as a combination of known functions.
3. :class:`Regions`: one box per rank, of equal work.
4. :class:`Field`: this rank's points, with copies of other ranks' points nearby (the halo).

The halo. Correlations are 0 beyond a radius, so that a product with K needs, for a rank's points, the entries of other
ranks' points closer than the radius to its region. :meth:`Regions.lent` finds the points that each rank borrows,
:meth:`Field.arranged` copies them once, and :class:`cacore.near.halo.Halo` exchanges their entries in every product
(:class:`cakriging.kriging_system.NearSystem`): while they travel, products of inner points, which have no neighbours on
other ranks, are computed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import largest_size, largest_usable
from cacore.errors import InputError
from cacore.near.halo import Halo, Routed
from cakriging.near_matrix import Cubes

# -- coordinates -----------------------------------------------------------------------------------------

EARTH = 6371.0088  # mean radius in km
_DECIMALS = 10  # of a degree, 0.01 mm on the ground: places that agree to this many decimals are one place


@dataclass(frozen=True)
class Space:
    """The map from given coordinates to those in which distances are taken.

    Attributes
    ----------
    geographic : bool
        True if rows are longitude and latitude in degrees. Distances are then chords through the Earth in km, shorter
        than the arc by 0.1 % at 1,000 km: a kernel that is positive definite in space is so for chords, not for arcs.
    anisotropy : tuple of float
        Range along each further axis over the range along the first one; empty if all ranges are equal.
    angle : float
        Direction of the first axis in the plane of the first two coordinates, counterclockwise, in degrees.
    """

    geographic: bool = False
    anisotropy: tuple[float, ...] = ()
    angle: float = 0.0

    def check(self, d: int) -> None:
        """Raise an InputError unless the options suit rows of `d` coordinates."""
        if self.geographic and d != 2:
            raise InputError(f"geographic: rows are longitude and latitude, and these have {d} coordinates")
        if self.geographic and (self.anisotropy or self.angle):
            raise InputError("geographic: distances on the Earth have no anisotropy or angle; leave one of them out")
        if self.anisotropy and len(self.anisotropy) != d - 1:
            raise InputError(
                f"anisotropy: {len(self.anisotropy)} ratios, and {d} coordinates need {d - 1}: the range along each "
                "further axis over the range along the first one"
            )
        if self.angle and d < 2:
            raise InputError("angle: there is only one coordinate; leave it out")

    @staticmethod
    def check_latitudes(latitudes: NDArray[np.float64], option: str = "geographic") -> None:
        """Raise an InputError for a latitude beyond 90 degrees, which names the row, or another `option`."""
        wrong = np.flatnonzero(~(np.abs(latitudes) <= 90.0))
        if wrong.size:
            row = f"the latitude of row {int(wrong[0])} is" if option == "geographic" else "a latitude is"
            raise InputError(
                f"{option}: {row} {latitudes[wrong[0]]:g}; it must be from -90 to 90 degrees, after the longitude"
            )

    def coordinates(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """Coordinates of the rows of `X`, shape (n, d): shape (n, d), or (n, 3) on the Earth.

        Raises
        ------
        InputError
            A latitude beyond 90 degrees, with its row; or coordinates whose squares overflow.
        """
        if self.geographic:
            self.check_latitudes(X[:, 1])
            return _chordal(X)
        Z = np.array(X, np.float64)
        if self.angle:
            cos, sin = math.cos(math.radians(self.angle)), math.sin(math.radians(self.angle))
            Z[:, 0], Z[:, 1] = cos * X[:, 0] + sin * X[:, 1], cos * X[:, 1] - sin * X[:, 0]
        if self.anisotropy:
            with np.errstate(over="ignore"):
                Z[:, 1:] /= np.array(self.anisotropy)
            if (largest := largest_size(Z)) > largest_usable(Z.dtype):
                raise InputError(
                    f"anisotropy: coordinates over {min(self.anisotropy):g} are as large as {largest:g}, and their "
                    "squares overflow: give larger ratios"
                )
        return Z


def _chordal(X: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cartesian coordinates of longitudes and latitudes, with the same bits however a place is written.

    Longitudes that differ by 360 degrees are one place, and so are all longitudes at a pole. Rounding to 1e-10 degrees,
    0.01 mm on the ground, removes the rounding error between, say, 365.1 and 5.1.
    """
    longitude, latitude = np.fmod(X[:, 0], 360.0), np.round(X[:, 1], _DECIMALS)
    longitude = np.round(longitude - 360.0 * np.sign(longitude) * (np.abs(longitude) > 180.0), _DECIMALS)
    longitude = np.where((longitude == 180.0), -180.0, np.where(np.abs(latitude) == 90.0, 0.0, longitude))
    longitude, latitude = np.radians(longitude), np.radians(latitude)
    across = EARTH * np.cos(latitude)
    return np.column_stack([across * np.cos(longitude), across * np.sin(longitude), EARTH * np.sin(latitude)])


# -- the drift -------------------------------------------------------------------------------------------

DEGREES = {"none": -1, "constant": 0, "linear": 1, "quadratic": 2}
_ROUNDING = 8 * float(np.finfo(np.float64).eps)  # rounding error of a value minus its drift, over the largest value
_DEPENDENT = 1e-9  # smallest eigenvalue of the drift's scaled Gram matrix over the largest, for independence


@dataclass(frozen=True)
class Drift:
    """Mean of the field: functions of the place, whose coefficients are estimated together with the field.

    The functions are polynomials of the coordinates, or further columns of the rows.

    Attributes
    ----------
    degree : int
        Degree of the polynomials; -1 for no function, not even a constant: the mean is known to be 0.
    columns : tuple of int
        Columns of the rows that are functions of the drift, not coordinates.
    ignored : tuple of int
        Columns of the rows that are neither coordinates nor functions.
    width : int
        Number of columns of the rows.
    center, scale : tuple of float
        One number per column of the rows: the functions are evaluated at (x - center) / scale.
    """

    degree: int
    columns: tuple[int, ...]
    ignored: tuple[int, ...]
    width: int
    center: tuple[float, ...]
    scale: tuple[float, ...]

    @classmethod
    def of(
        cls, drift: str | Sequence[int | str], X: NDArray[np.float64], comm: Communicator, names: Sequence[str] = (),
        ignored: tuple[int, ...] = (),
    ) -> Drift:  # fmt: skip
        """The drift by name, or a constant and columns, scaled by all ranks' rows; collective."""
        d = X.shape[1]
        with comm.agreed():
            columns = () if isinstance(drift, str) else tuple(column_of(column, d, names, "drift") for column in drift)
            if len(set(columns)) < len(columns):
                raise InputError(f"drift: a column is named twice in {list(drift)}")
            if len({*columns, *ignored}) >= d:
                raise InputError(f"drift: {len(columns)} of {d} columns, which leaves no coordinates")
        ends = comm.allreduce(np.concatenate([X.min(axis=0, initial=np.inf), -X.max(axis=0, initial=-np.inf)]), "min")
        low, high = ends[:d], -ends[d:]
        scale = np.where(high > low, (high - low) / 2.0, 1.0)
        degree = DEGREES[drift] if isinstance(drift, str) else 0
        return cls(degree, columns, ignored, d, tuple(((low + high) / 2.0).tolist()), tuple(scale.tolist()))

    @property
    def coordinates(self) -> list[int]:
        """Columns of the rows that are coordinates."""
        return [j for j in range(self.width) if j not in self.columns and j not in self.ignored]

    def functions(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values of the functions for rows `X`, shape (n, width): shape (n, p)."""
        Z = (X - np.array(self.center)) / np.array(self.scale)
        functions = [Z[:, j] for j in self.columns]
        for degree in range(self.degree + 1):
            for factors in itertools.combinations_with_replacement(self.coordinates, degree):
                functions.append(np.prod(Z[:, list(factors)], axis=1) if factors else np.ones(len(Z)))
        return np.column_stack(functions) if functions else np.zeros((len(Z), 0))


def independent(gram: NDArray[np.float64], n: int) -> bool:
    """True if the drift's functions, with this Gram matrix over n points, are linearly independent."""
    size = np.sqrt(np.diagonal(gram))
    values = np.linalg.eigvalsh(gram / np.outer(size, size)) if (size > 0).all() else np.zeros(1)
    return n >= len(gram) and bool(values[0] > _DEPENDENT * values[-1])


def check_independent(gram: NDArray[np.float64], n: int) -> None:
    """Raise an InputError if the drift's functions, with this Gram matrix over n points, are linearly dependent."""
    p = len(gram)
    if p and not independent(gram, n):
        raise InputError(
            f"drift: its {p} functions depend on each other at the {n:,} points, as those of points on a line do; use "
            "a drift of lower degree, or fewer columns"
        )


def subtracted(
    y: NDArray[np.float64], F: NDArray[np.float64], gram: NDArray[np.float64], comm: Communicator
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Values minus their least squares fit by the drift, its coefficients, and a bound on the rounding error.

    Without this, the squares in a likelihood would cancel for values far from 0. Collective: two Allreduces of p
    numbers; the second solution corrects the rounding of the first.

    Parameters
    ----------
    y : ndarray, shape (n_local,)
    F : ndarray, shape (n_local, p)
        Functions of the drift.
    gram : ndarray, shape (p, p)
        Gram matrix of the functions over all ranks' rows.
    comm : Communicator
    """
    base, residual = np.zeros(F.shape[1]), y
    for _ in range(2 if base.size else 0):
        step = np.linalg.solve(gram, comm.allreduce(F.T @ residual))
        base, residual = base + step, residual - F @ step
    largest = np.append(np.abs(y), np.abs(F) @ np.abs(base)).max(initial=0.0)
    with comm.uncounted():
        largest = float(comm.allreduce(np.array([largest]), "max")[0])
    return residual, base, _ROUNDING * largest


def column_of(column: object, d: int, names: Sequence[str], option: str) -> int:
    """Number of the column that `option` gives by number or name."""
    if isinstance(column, str) and column in names:
        return list(names).index(column)
    try:
        number = int(column)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise InputError(f"{option}: there is no column {column!r}; give a number or a name of the table") from None
    if not -d <= number < d:
        raise InputError(f"{option}: there is no column {number}; the rows have {d}")
    return int(number % d)


# -- regions ---------------------------------------------------------------------------------------------

_BINS, _ROUNDS = 256, 5  # a cut lies within 256^-5 of the width of its box
# Neighbours per point whose products cost as much as a point's regression in the preconditioner. Reasoned, not
# measured: a regression takes 30^3/3 flops and 450 correlations, a neighbour 2 flops and 12 bytes in each of 5 to 15
# iterations. It only balances the ranks' time.
_PAIRS = 200.0
_COARSE = 4096  # boxes of the histogram that estimates the work per point: one Allreduce of 32 KiB


@dataclass(frozen=True)
class Cut:
    """A plane between the boxes of ranks `first` to `middle` - 1, which own its points, and `middle` to `last` - 1."""

    first: int
    middle: int
    last: int
    axis: int
    at: float


@dataclass(frozen=True)
class Regions:
    """Boxes, one per rank, that divide space by recursive bisection into equal work.

    A point on a plane between boxes belongs to the lower one.

    Attributes
    ----------
    low, high : ndarray, shape (R, d)
        Corners of the boxes; infinite on the outside.
    cuts : tuple of Cut
        The planes between boxes: an outer plane comes before those that divide its two sides.
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
            halves: list[tuple[int, int]] = []
            after = np.empty_like(group)
            for g, (first, last) in enumerate(groups):
                here, middle = group == g, (first + last) // 2
                if last - first == 1:
                    after[here] = len(halves)
                    halves.append((first, last))
                    continue
                axis, at = int(axes[g]), float(planes[g])
                cuts.append(Cut(first, middle, last, axis, at))
                high[first:middle, axis] = np.minimum(high[first:middle, axis], at)
                low[middle:last, axis] = np.maximum(low[middle:last, axis], at)
                after[here] = len(halves) + (X[here, axis] > at)
                halves += [(first, middle), (middle, last)]
            group, groups = after, halves
        return cls(low, high, tuple(cuts))

    def owners(self, X: NDArray[np.float64]) -> NDArray[np.int64]:
        """Rank that owns each point, shape (n,)."""
        ranks = np.zeros(len(X), np.int64)
        ends = np.full(len(X), len(self.low), np.int64)
        for cut in self.cuts:
            here = (ranks == cut.first) & (ends == cut.last)
            upper = here & (X[:, cut.axis] > cut.at)
            ends[here & ~upper] = cut.middle
            ranks[upper] = cut.middle
        return ranks

    def near(self, X: NDArray[np.float64], rank: int, radius: float) -> NDArray[np.bool_]:
        """True for the points closer to the box of `rank` than `radius`, with a margin for rounding."""
        if math.isinf(radius):
            return np.ones(len(X), np.bool_)
        gaps = np.maximum(np.maximum(self.low[rank] - X, X - self.high[rank]), 0.0)
        return np.asarray(np.einsum("ij,ij->i", gaps, gaps) <= radius * radius * (1.0 + 1e-9))

    def lent(self, X: NDArray[np.float64], radius: float, rank: int) -> list[NDArray[np.int64]]:
        """Points of `rank` that each other rank borrows, because they are closer to its region than `radius`.

        All other points of `rank` have no neighbours on other ranks. In the plane, a region of n points lends about
        4 radius sqrt(n density) points.
        """
        none = np.zeros(0, np.int64)
        others = range(len(self.low))
        return [none if borrower == rank else np.flatnonzero(self.near(X, borrower, radius)) for borrower in others]


@dataclass(frozen=True)
class Histogram:
    """Numbers of points in equal boxes that cover all ranks' points.

    Attributes
    ----------
    edge : ndarray, shape (d,)
    counts : ndarray of float64, shape (boxes,)
    box : ndarray of int64, shape (n_local,)
        Box of each of this rank's points.
    side : int
        Number of boxes along each coordinate.
    """

    edge: NDArray[np.float64]
    counts: NDArray[np.float64]
    box: NDArray[np.int64]
    side: int

    @classmethod
    def of(cls, X: NDArray[np.float64], max_boxes: int, comm: Communicator) -> Histogram:
        """Count all ranks' points in at most `max_boxes` boxes; two Allreduces, of 2 d and of `max_boxes` numbers."""
        d = X.shape[1]
        ends = np.concatenate([X.min(axis=0, initial=np.inf), -X.max(axis=0, initial=-np.inf)])
        ends = comm.allreduce(ends, "min")
        low, span = ends[:d], -ends[d:] - ends[:d]
        side = max(1, int(max_boxes ** (1.0 / d) + 1e-9))
        edge = np.where(span > 0, span / side, 1.0)
        places = np.minimum((X - low) // edge, side - 1).astype(np.int64)
        box = np.ravel_multi_index(tuple(places.T), (side,) * d) if len(X) else np.zeros(0, np.int64)
        return cls(edge, comm.allreduce(np.bincount(box, minlength=side**d).astype(np.float64)), box, side)

    def pairs(self, radius: float) -> float:
        """Estimated mean number of points closer than `radius` to a point, from the counts of boxes."""
        d, (corners, counts) = len(self.edge), self.occupied()
        share = math.pi ** (d / 2) / math.gamma(d / 2 + 1) * float(np.prod(np.minimum(radius / self.edge, 1e3)))
        squares = np.zeros((len(counts), len(counts)))
        for x in corners.T:
            squares += np.square(x[:, None] - x)
        near = (squares <= radius * radius).astype(np.float64)
        near[np.diag_indices(len(near))] = min(1.0, share)
        return float(counts @ near @ counts / counts.sum())

    def occupied(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower corners of the boxes with points, shape (b, d), relative to the lowest corner, and their counts."""
        there = np.flatnonzero(self.counts)
        corners = np.stack(np.unravel_index(there, (self.side,) * len(self.edge)), axis=1)
        return corners * self.edge, self.counts[there]


def _work(X: NDArray[np.float64], radius: float, comm: Communicator) -> NDArray[np.float64]:
    """Estimated work per point: 1 for its regression, plus that of products with its neighbours, by local density."""
    d, histogram = X.shape[1], Histogram.of(X, _COARSE, comm)
    ball = np.pi ** (d / 2) / math.gamma(d / 2 + 1)
    share = min(1.0, float(ball * np.prod(np.minimum(radius / histogram.edge, 1e3))))
    return np.asarray(1.0 + histogram.counts[histogram.box] * share / _PAIRS)


def _planes(
    X: NDArray[np.float64], work: NDArray[np.float64], group: NDArray[np.int64], groups: list[tuple[int, int]],
    comm: Communicator,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:  # fmt: skip
    """Axis and position of the plane that divides each group's work in proportion to its ranks; collective."""
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
    work_below = np.full(G, np.nan)  # work between the low end of the interval and the plane
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
        work_below = np.where(np.isnan(work_below), share * sums[:, -1], work_below)
        at = np.minimum((sums < work_below[:, None]).sum(axis=1), _BINS - 1)
        work_below = work_below - np.where(at > 0, sums[np.arange(G), at - 1], 0.0)
        low, width = low + at * unit, np.where(width > 0, unit, 0.0)
    return axes, low + width


# -- points on the ranks of their regions ----------------------------------------------------------------


@dataclass
class PointColumns:
    """Columns of points: numbers that move with each point.

    Attributes
    ----------
    X : ndarray, shape (n, d)
        Coordinates in which the correlation is a function of distance.
    noise : ndarray, shape (n,)
        Variance of the noise.
    place : ndarray of int64, shape (n,)
        Place in the shuffled order of all points, the same for any number of ranks.
    values : ndarray, shape (n, c)
        Further columns.
    """

    X: NDArray[np.float64]
    noise: NDArray[np.float64]
    place: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.X)

    def packed(self) -> NDArray[np.float64]:
        """All columns in one array; places are below 2^53 and so exact as float64."""
        return np.column_stack([self.X, self.noise, self.place, self.values])

    @classmethod
    def unpacked(cls, packed: NDArray[np.float64], d: int) -> PointColumns:
        """The points of :meth:`packed`, for d coordinates."""
        return cls(
            np.ascontiguousarray(packed[:, :d]), packed[:, d].copy(), packed[:, d + 1].astype(np.int64),
            np.ascontiguousarray(packed[:, d + 2 :]),
        )  # fmt: skip

    def subset(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> PointColumns:
        """A subset of the points."""
        return PointColumns(self.X[rows], self.noise[rows], self.place[rows], self.values[rows])


@dataclass
class Field:
    """This rank's points, the points that it borrows from other ranks, and the regions of all ranks.

    Attributes
    ----------
    points : PointColumns
        Rows 0 to `inner`: this rank's points without neighbours on other ranks. Rows `inner` to `n_owned`: its border,
        which other ranks borrow. Further rows: the halo, points borrowed from other ranks, rank by rank. The first two
        are in the order of cubes.
    n_owned, inner : int
        Number of this rank's points, and of those without neighbours on other ranks.
    radius : float
        Distance beyond which correlations are 0; infinity for a dense system.
    """

    points: PointColumns
    n_owned: int
    inner: int
    radius: float
    regions: Regions
    halo: Halo
    comm: Communicator

    @classmethod
    def spread(cls, points: PointColumns, radius: float, comm: Communicator) -> Field:
        """Move points to the ranks that own their regions, and copies to those nearby; collective.

        Notes
        -----
        Each point travels once, and once more to every rank whose region is closer than `radius`: d + 2 + c numbers.
        """
        regions = Regions.divide(points.X, radius, comm)
        moved = Routed.to(points.packed(), regions.owners(points.X), comm)
        return cls.arranged(moved.rows, points.X.shape[1], regions, radius, comm)

    @classmethod
    def arranged(
        cls, packed: NDArray[np.float64], d: int, regions: Regions, radius: float, comm: Communicator
    ) -> Field:
        """Points on the ranks of their regions, with copies of those nearby; collective.

        `packed` is the result of :meth:`PointColumns.packed`, for d coordinates.
        """
        X = packed[:, :d]
        lent = regions.lent(X, radius, comm.rank)
        border = Halo(len(X), lent, comm).border  # these points come last
        order = np.argsort(packed[:, d + 1], kind="stable")  # independent of the ranks that read the points
        if math.isfinite(radius) and len(X):
            order = order[Cubes(X[order], radius).order]
        order = order[np.argsort(border[order], kind="stable")]
        packed, position = packed[order], np.argsort(order)
        halo = Halo(len(packed), [np.sort(position[rows]) for rows in lent], comm)
        inner = int(len(packed) - np.count_nonzero(border))
        all_points = np.concatenate([packed, halo.fetch(packed)])
        return cls(PointColumns.unpacked(all_points, d), len(packed), inner, radius, regions, halo, comm)

    @property
    def owned(self) -> PointColumns:
        """This rank's points, without borrowed ones."""
        return self.points.subset(np.arange(self.n_owned))

    def cubes(self) -> Cubes:
        """All points on this rank, own and borrowed, sorted into cubes as wide as the radius."""
        return Cubes(self.points.X, self.radius)
