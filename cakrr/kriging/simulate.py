"""Draws of the field without its values: the first half of conditional simulation.

A draw at some places is f = K^(1/2) z in distribution, with z standard normal numbers. With the sparse factor G of the
inverse, G K G' is close to the identity, and f = K G' (G K G')^(-1/2) z has the covariance K exactly; Lanczos' method
finds the root in a few products (E. Chow, Y. Saad: Preconditioned Krylov subspace methods for sampling multivariate
Gaussian distributions. SIAM J. Sci. Comput. 36, 2014). Dense systems are drawn with a Cholesky factor.

The numbers z depend on the seed, the draw and the place of a point in the shuffled order, not on ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky
from scipy.special import ndtri

from cacore.data.shuffle import Shuffle, mix64
from cacore.errors import InputError
from cacore.linalg.cg import Vectors
from cacore.linalg.lanczos import inverse_root
from cacore.machine import memory
from cacore.near.correlation import Correlation
from cakrr.kriging.field import Field, PointColumns
from cakrr.kriging.system import NearSystem

JITTER = 1e-10  # variance of the noise, over the sill, that keeps close places apart
FIELD, NOISE = 0, 1  # streams of normal numbers
_ITERATIONS = 30  # expected, for the memory of a batch


def normals(place: NDArray[np.int64], seed: int, draw: int, stream: int) -> NDArray[np.float64]:
    """Standard normal numbers, one per place, that depend on nothing else; shape (n,)."""
    with np.errstate(over="ignore"):
        key = np.zeros(1, np.uint64)
        for word in (seed, draw, stream):
            key = mix64(key * np.uint64(0x9E3779B97F4A7C15) + np.uint64(word + 1))
        words = mix64(mix64(place.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + key) ^ key)
    return np.asarray(ndtri(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53))


@dataclass
class _Together:
    """Points and places in one field, each place once.

    Attributes
    ----------
    field : Field
    which : ndarray of int64, shape (own points + places,)
        Where in the field's own points each point and each place is.
    """

    field: Field
    which: NDArray[np.int64]


def _together(near: Field, Q: NDArray[np.float64], place: NDArray[np.int64]) -> _Together:
    """The points of a field, and places `Q`, shape (q, d), on the ranks of their regions; collective."""
    own = near.owned
    X, places = np.concatenate([own.X, Q]), np.concatenate([own.place, place])
    at, which = np.unique(X, axis=0, return_inverse=True)
    which = which.reshape(-1)
    least = np.full(len(at), np.iinfo(np.int64).max)
    np.minimum.at(least, which, places)
    number = np.arange(len(at), dtype=np.float64)[:, None]
    given = PointColumns(at, np.full(len(at), JITTER), least, number)
    field = Field.arranged(given.packed(), X.shape[1], near.regions, near.radius, near.comm)
    back = np.empty(len(at), np.int64)
    back[field.owned.values[:, 0].astype(np.int64)] = np.arange(len(at))
    return _Together(field, back[which])


class Draws:
    """Draws of a field of mean 0 and variance 1 at its points and at other places; construction is collective.

    Parameters
    ----------
    near : Field
        The points.
    Q : ndarray, shape (q, d)
        Places on the rank of their region, in the coordinates of the points.
    place : ndarray of int64, shape (q,)
        Places of these in the shuffled order, after those of the points.
    correlation : Correlation
    neighbours : int
        Most neighbours of a point in the factor.
    tol : float
        Relative error of a draw.
    seed, limit : int
        Seed, and bytes that a rank may use.

    Attributes
    ----------
    iterations : int
        Most iterations of a draw so far; 0 for dense systems.
    batch : int
        Number of draws that fit at once.
    """

    def __init__(
        self, near: Field, Q: NDArray[np.float64], place: NDArray[np.int64], correlation: Correlation, neighbours: int,
        tol: float, seed: int, limit: int,
    ) -> None:  # fmt: skip
        self._own, self._tol, self._seed, self.iterations = near.own, tol, seed, 0
        self._all = _together(near, Q, place)
        self._root: NearRoot | _DenseRoot
        field, self.comm = self._all.field, near.comm
        if math.isinf(near.radius):
            self._root = _DenseRoot(field, correlation, limit)
            self.batch = 16
            return
        self._root = NearRoot(field, correlation, neighbours, limit)
        room = np.array([limit // 4 // (8 * _ITERATIONS * max(1, len(field.points)))])
        with self.comm.uncounted():
            self.batch = int(np.clip(self.comm.allreduce(room, "min")[0], 1, 16))

    def __call__(self, numbers: range) -> tuple[Vectors, Vectors]:
        """The draws with these numbers: values at own points, shape (t, own), and at places, (t, q); collective."""
        place = self._all.field.owned.place
        Z = np.stack([normals(place, self._seed, number, FIELD) for number in numbers])
        found, iterations = self._root(Z, self._tol)
        self.iterations = max(self.iterations, iterations)
        values = found[:, self._all.which]
        return values[:, : self._own], values[:, self._own :]


class NearRoot:
    """The root of a sparse matrix of correlations times vectors: K G' (G K G')^(-1/2)."""

    def __init__(self, field: Field, correlation: Correlation, neighbours: int, limit: int) -> None:
        self.system = NearSystem(field, field.points.noise, correlation, neighbours, limit)

    def __call__(self, Z: Vectors, tol: float) -> tuple[Vectors, int]:
        """The root times each row of `Z`, shape (t, own), and the number of iterations; collective.

        Raises
        ------
        InputError
            On all ranks: the iterations do not converge.
        """
        system = self.system
        found, iterations, change = inverse_root(
            lambda V: system.lower(system.product(system.upper(V))), Z, system.add_up, tol
        )
        if not change <= tol:
            with system.field.comm.agreed():
                raise InputError(
                    f"simulation: a draw still changes by {change:.1e} after {iterations} iterations, above {tol:g}: "
                    "places are too close for the range; use fewer places, more --neighbors, or a larger --tol"
                )
        return system.product(system.upper(found)), iterations


class _DenseRoot:
    """The Cholesky factor of all correlations, on every rank."""

    def __init__(self, field: Field, correlation: Correlation, limit: int) -> None:
        points, self.comm = field.owned, field.comm
        every = self.comm.allgather(np.column_stack([points.X, points.noise, points.place]))
        order = np.argsort(every[:, -1], kind="stable")
        every, m = every[order], len(every)
        with self.comm.agreed():
            memory.require(
                16 * m * m, limit, f"the dense matrix of {m:,} points and places", "use fewer places, or --solver cg"
            )
        self._place = every[:, -1].astype(np.int64)
        self._mine = np.searchsorted(self._place, points.place)
        K = correlation.matrix(*(np.ascontiguousarray(every[:, :-2]),) * 2)
        with self.comm.agreed():
            self._L = _factor(K, every[:, -2])
        self._comm_order = order

    def __call__(self, Z: Vectors, tol: float) -> tuple[Vectors, int]:
        """The factor times each row of `Z`, shape (t, own); collective."""
        every = self.comm.allgather(np.ascontiguousarray(Z.T))[self._comm_order]
        return np.ascontiguousarray((self._L @ every)[self._mine].T), 0


def _factor(K: NDArray[np.float64], noise: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cholesky factor of `K` with noise on its diagonal, of the least size, from 1e-10 on, that makes it definite."""
    size = 1.0
    while size < 1e5:
        K[np.diag_indices(len(K))] = 1.0 + size * noise
        try:
            return np.asarray(cholesky(K, lower=True, check_finite=False))
        except LinAlgError:
            size *= 10.0
    raise InputError("simulation: the covariance of points and places is singular; use fewer places")


def places_of(first: int, count: int, n: int, total: int, seed: int) -> NDArray[np.int64]:
    """Places in the shuffled order of rows `first` to `first + count` of `total`, after n points."""
    return n + Shuffle(max(1, total), seed).position(np.arange(first, first + count))
