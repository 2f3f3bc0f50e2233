"""Unconditional draws of the field: the first half of conditional simulation.

A draw is f = K^(1/2) z in distribution, with z standard normal numbers. With the sparse factor G of the inverse,
G K G' is close to the identity, and f = K G' (G K G')^(-1/2) z has exactly the covariance K. Lanczos' method computes
the root in a few products (E. Chow, Y. Saad: Preconditioned Krylov subspace methods for sampling multivariate Gaussian
distributions. SIAM J. Sci. Comput. 36, 2014). For dense systems, a Cholesky factor is used.

The numbers z depend on the seed, the number of the draw, and the place of a point in the shuffled order, but not on the
ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, eigh_tridiagonal
from scipy.special import ndtri

from cacore.data.shuffle import Shuffle, mix64
from cacore.errors import InputError
from cacore.linalg.cg import Vectors
from cacore.machine import memory
from cakriging.kriging_system import NearSystem
from cakriging.near_matrix import Correlation
from cakriging.space import Field, PointColumns

JITTER = 1e-10  # variance of noise, over the sill, that keeps K definite where places are close
FIELD, NOISE = 0, 1  # streams of normal numbers
_ITERATIONS = 30  # iterations that the memory of a batch is planned for


def normals(place: NDArray[np.int64], seed: int, draw: int, stream: int) -> NDArray[np.float64]:
    """Standard normal numbers, shape (n,), that depend on nothing but a point's place, the seed, draw and stream."""
    with np.errstate(over="ignore"):
        key = np.zeros(1, np.uint64)
        for word in (seed, draw, stream):
            key = mix64(key * np.uint64(0x9E3779B97F4A7C15) + np.uint64(word + 1))
        words = mix64(mix64(place.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + key) ^ key)
    return np.asarray(ndtri(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53))


@dataclass
class _JointField:
    """Points and new places in one field, without duplicates.

    Attributes
    ----------
    field : Field
    which : ndarray of int64, shape (own points + places,)
        Number of each point, and of each place, among the field's own points.
    """

    field: Field
    which: NDArray[np.int64]


def _joint_field(near: Field, Q: NDArray[np.float64], place: NDArray[np.int64]) -> _JointField:
    """One field of the points of `near` and of places `Q`, shape (q, d), on the ranks of their regions; collective."""
    owned = near.owned
    X, places = np.concatenate([owned.X, Q]), np.concatenate([owned.place, place])
    at, which = np.unique(X, axis=0, return_inverse=True)
    which = which.reshape(-1)
    least = np.full(len(at), np.iinfo(np.int64).max)
    np.minimum.at(least, which, places)
    number = np.arange(len(at), dtype=np.float64)[:, None]
    points = PointColumns(at, np.full(len(at), JITTER), least, number)
    field = Field.arranged(points.packed(), X.shape[1], near.regions, near.radius, near.comm)
    back = np.empty(len(at), np.int64)
    back[field.owned.values[:, 0].astype(np.int64)] = np.arange(len(at))
    return _JointField(field, back[which])


class Draws:
    """Draws of a field of mean 0 and variance 1 at its points and at other places; construction is collective.

    Parameters
    ----------
    near : Field
        The points.
    Q : ndarray, shape (q, d)
        New places in the region of this rank, in the coordinates of the points.
    place : ndarray of int64, shape (q,)
        Their places in the shuffled order, after those of the points.
    correlation : Correlation
    neighbours : int
        Most neighbours of a point in the factor.
    tol : float
        Relative error of a draw.
    seed : int
    limit : int
        Bytes that a rank may use.

    Attributes
    ----------
    iterations : int
        Most iterations of a draw so far; 0 for dense systems.
    batch : int
        Number of draws that fit into memory at once.
    """

    def __init__(
        self, near: Field, Q: NDArray[np.float64], place: NDArray[np.int64], correlation: Correlation, neighbours: int,
        tol: float, seed: int, limit: int,
    ) -> None:  # fmt: skip
        self._n_owned, self._tol, self._seed, self.iterations = near.n_owned, tol, seed, 0
        self._all = _joint_field(near, Q, place)
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
        """Draws by number: values at this rank's points, shape (t, n_owned), and at new places, (t, q); collective."""
        place = self._all.field.owned.place
        Z = np.stack([normals(place, self._seed, number, FIELD) for number in numbers])
        drawn, iterations = self._root(Z, self._tol)
        self.iterations = max(self.iterations, iterations)
        values = drawn[:, self._all.which]
        return values[:, : self._n_owned], values[:, self._n_owned :]


class NearRoot:
    """Sparse root K G' (G K G')^(-1/2) of the matrix of correlations, as a linear operator."""

    def __init__(self, field: Field, correlation: Correlation, neighbours: int, limit: int) -> None:
        self.system = NearSystem(field, field.points.noise, correlation, neighbours, limit)

    def __call__(self, Z: Vectors, tol: float) -> tuple[Vectors, int]:
        """The root times each row of `Z`, shape (t, n_owned), and the number of iterations; collective.

        Raises
        ------
        InputError
            On all ranks: the iterations do not converge.
        """
        system = self.system
        solved, iterations, change = inverse_root(
            lambda V: system.lower(system.product(system.upper(V))), Z, system.add_up, tol
        )
        if not change <= tol:
            with system.field.comm.agreed():
                raise InputError(
                    f"simulation: a draw still changes by {change:.1e} after {iterations} iterations, above {tol:g}: "
                    "places are too close for the range; use fewer places, more --neighbors, or a larger --tol"
                )
        return system.product(system.upper(solved)), iterations


class _DenseRoot:
    """Cholesky factor of all correlations, on every rank."""

    def __init__(self, field: Field, correlation: Correlation, limit: int) -> None:
        points, self.comm = field.owned, field.comm
        all_points = self.comm.allgather(np.column_stack([points.X, points.noise, points.place]))
        order = np.argsort(all_points[:, -1], kind="stable")
        all_points, m = all_points[order], len(all_points)
        with self.comm.agreed():
            memory.require(
                16 * m * m, limit, f"the dense matrix of {m:,} points and places", "use fewer places, or --solver cg"
            )
        self._place = all_points[:, -1].astype(np.int64)
        self._mine = np.searchsorted(self._place, points.place)
        K = correlation.matrix(*(np.ascontiguousarray(all_points[:, :-2]),) * 2)
        with self.comm.agreed():
            self._L = _factor(K, all_points[:, -2])
        self._comm_order = order

    def __call__(self, Z: Vectors, tol: float) -> tuple[Vectors, int]:
        """The factor times each row of `Z`, shape (t, n_owned); collective."""
        all_Z = self.comm.allgather(np.ascontiguousarray(Z.T))[self._comm_order]
        return np.ascontiguousarray((self._L @ all_Z)[self._mine].T), 0


def _factor(K: NDArray[np.float64], noise: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cholesky factor of `K` plus the least multiple (1, 10, 100, ...) of `noise` that makes it positive definite."""
    size = 1.0
    while size < 1e5:
        K[np.diag_indices(len(K))] = 1.0 + size * noise
        try:
            return np.asarray(cholesky(K, lower=True, check_finite=False))
        except LinAlgError:
            size *= 10.0
    raise InputError("simulation: the covariance of points and places is singular; use fewer places")


def places_of(first: int, count: int, n: int, total: int, seed: int) -> NDArray[np.int64]:
    """Places in the shuffled order, after n points, of the rows `first` to `first + count` of `total` new places."""
    return n + Shuffle(max(1, total), seed).position(np.arange(first, first + count))


# -- the inverse square root -----------------------------------------------------------------------------

_LEAST = 1e-14  # smallest eigenvalue used, relative to the largest


def inverse_root(
    product: Callable[[Vectors], Vectors], Z: Vectors, add_up: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    tol: float, max_iterations: int = 300,
) -> tuple[Vectors, int, float]:  # fmt: skip
    """``M^(-1/2) z`` for each row z of `Z`, shape (t, n_local), with M symmetric positive definite; collective.

    Parameters
    ----------
    product : callable
        M times each row of an array like `Z`.
    Z : ndarray
    add_up : callable
        Sums each number over ranks, with the same bits on all ranks.
    tol : float
        Relative change between two iterations that ends them.
    max_iterations : int
        Most iterations.

    Returns
    -------
    first_columns : ndarray, shape (t, n_local)
    iterations : int
    change : float
        Largest relative change in the last iteration.

    Notes
    -----
    In the basis V of the Krylov space of z, M is a tridiagonal matrix T, and the result is |z| V T^(-1/2) e_1. Each
    iteration stores 8 t n_local bytes of V, and takes a product and two sums of t numbers over ranks. Errors fall as
    (1 - 2 / sqrt(condition))^iterations (Frommer, Guettel, Schweitzer, SIAM J. Matrix Anal. Appl. 35, 2014).
    """
    t = len(Z)
    size = np.sqrt(add_up(np.einsum("ij,ij->i", Z, Z)))
    basis = [Z / np.where(size > 0, size, 1.0)[:, None]]
    diagonal, beside = np.zeros((0, t)), np.zeros((0, t))
    last, change = np.zeros((0, t)), np.inf
    while True:
        V = basis[-1]
        W = product(V)
        if len(beside):
            W -= beside[-1][:, None] * basis[-2]
        a = add_up(np.einsum("ij,ij->i", V, W))
        W -= a[:, None] * V
        diagonal = np.vstack([diagonal, a])
        first_columns = np.stack([_first_column(diagonal[:, j], beside[:, j]) for j in range(t)], axis=1)
        gap = first_columns.copy()
        gap[:-1] -= last
        change = float((np.linalg.norm(gap, axis=0) / np.linalg.norm(first_columns, axis=0)).max(initial=0.0))
        if change <= tol or len(basis) == max_iterations:
            break
        last = first_columns
        b = np.sqrt(add_up(np.einsum("ij,ij->i", W, W)))
        beside = np.vstack([beside, b])
        basis.append(W / np.where(b > 0, b, 1.0)[:, None])
    out = np.zeros_like(Z)
    for coefficients, V in zip(first_columns, basis, strict=True):
        out += (size * coefficients)[:, None] * V
    return out, len(basis), change


def _first_column(diagonal: NDArray[np.float64], beside: NDArray[np.float64]) -> NDArray[np.float64]:
    """The first column of T^(-1/2), for a symmetric tridiagonal matrix T."""
    values, vectors = eigh_tridiagonal(diagonal, beside)
    values = np.maximum(values, _LEAST * max(float(values[-1]), 1e-300))
    return np.asarray(vectors @ (vectors[0] / np.sqrt(values)))
