"""The points of a kriging system, each on the rank that owns its region, with what travels with them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.near.cubes import Cubes
from cacore.near.halo import Halo, Routed
from cakrr.kriging.regions import Regions


@dataclass
class PointColumns:
    """Columns of some points: numbers that move with each point.

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
        """All columns in one array; a place below 2^53 is exact as a float64."""
        return np.column_stack([self.X, self.noise, self.place, self.values])

    @classmethod
    def unpacked(cls, packed: NDArray[np.float64], d: int) -> PointColumns:
        """The points of :meth:`packed`, for d coordinates."""
        return cls(
            np.ascontiguousarray(packed[:, :d]), packed[:, d].copy(), packed[:, d + 1].astype(np.int64),
            np.ascontiguousarray(packed[:, d + 2 :]),
        )  # fmt: skip

    def some(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> PointColumns:
        """The given rows."""
        return PointColumns(self.X[rows], self.noise[rows], self.place[rows], self.values[rows])


@dataclass
class Field:
    """This rank's points, those that it borrows, and the regions of all ranks.

    Attributes
    ----------
    points : PointColumns
        Own points first: those that no rank borrows, then the border, each in the order of cubes; borrowed points
        follow.
    own, inner : int
        Number of own points, and of those without neighbours on other ranks.
    radius : float
        Distance beyond which correlations are 0; infinity for a dense system.
    """

    points: PointColumns
    own: int
    inner: int
    radius: float
    regions: Regions
    halo: Halo
    comm: Communicator

    @classmethod
    def spread(cls, given: PointColumns, radius: float, comm: Communicator) -> Field:
        """Move points to the ranks that own their regions, and copies to those nearby; collective.

        Notes
        -----
        Each point travels once, and once more to every rank whose region is closer than `radius`: d + 2 + c numbers.
        """
        regions = Regions.divide(given.X, radius, comm)
        moved = Routed.to(given.packed(), regions.owners(given.X), comm)
        return cls.arranged(moved.rows, given.X.shape[1], regions, radius, comm)

    @classmethod
    def arranged(
        cls, packed: NDArray[np.float64], d: int, regions: Regions, radius: float, comm: Communicator
    ) -> Field:
        """Points on the ranks of their regions, with copies of those nearby; collective.

        `packed` is of :meth:`PointColumns.packed`, for d coordinates.
        """
        X = packed[:, :d]
        lent = regions.lent(X, radius, comm.rank)
        first = Halo(len(X), lent, comm).border
        order = np.argsort(packed[:, d + 1], kind="stable")  # independent of the ranks that read the points
        if math.isfinite(radius) and len(X):
            order = order[Cubes(X[order], radius).order]
        order = order[np.argsort(first[order], kind="stable")]
        packed, place = packed[order], np.argsort(order)
        halo = Halo(len(packed), [np.sort(place[some]) for some in lent], comm)
        inner = int(len(packed) - np.count_nonzero(first))
        every = np.concatenate([packed, halo.fetch(packed)])
        return cls(PointColumns.unpacked(every, d), len(packed), inner, radius, regions, halo, comm)

    @property
    def owned(self) -> PointColumns:
        """The own points."""
        return self.points.some(np.arange(self.own))

    @property
    def n(self) -> int:
        """Number of points on all ranks; collective."""
        with self.comm.uncounted():
            return int(self.comm.allreduce(np.array([self.own]))[0])

    def cubes(self) -> Cubes:
        """All points here, own and borrowed, sorted into cubes of the radius."""
        return Cubes(self.points.X, self.radius)
