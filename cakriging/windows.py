"""Kriging from the nearest points of each place: moving window kriging, for covariances of any range.

1. :class:`Windows`: means and variances from near points, and the drift by Vecchia's approximation.
2. :class:`WindowDraws`: conditional simulation, each place given its nearest points and places drawn before it.
3. :class:`NearestEarlier`: Newton's steps for the latent field of counts, a product of the same conditional densities.

Every rank has all points, in their shuffled order, and a k-d tree of them. Ranks share the work: each predicts the
places of its own rows. A rank's neighbours do not depend on the number of ranks, also where distances are equal, since
all build the same tree.

A window is the K nearest points, or by default 60 points at several distances: the 30 nearest of all, the 15 nearest
of a random sixteenth of the points, and the 15 nearest of a random 256th. In the gaps of dense points, the nearest ones
lie on one side and say much the same.

Both are conditional distributions of one approximation (Vecchia, J. R. Stat. Soc. B 50, 1988; Katzfuss and others,
J. Agric. Biol. Environ. Stat. 25, 2020): the drift is that of all points, not of each window, so that maps have no
jumps where a window loses a point and no window is too small for the drift. With K at least the number of points, all
results are those of the dense system.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from cacore.data.rows import block_bounds
from cacore.errors import InputError
from cacore.linalg.cg import State, Vectors, iterate
from cacore.machine import memory
from cacore.machine.threads import blocks, current
from cakriging.kriging_system import LEAST_PIVOT, NUMBERS, SINGULAR, earlier_blocks, regressions, triangular
from cakriging.near_matrix import Correlation
from cakriging.space import Field

if TYPE_CHECKING:
    from cacore.arrays import Doubles, Ints

# Near points of a place by default, among all points, a 16th and a 256th of them. 67,200 points of a lattice with gaps
# like clouds, exponential covariance of range 0.6 (0.1) of the extent, nugget 0.05, true parameters (python -m
# benchmarks kriging --only windows --cells 400x240 --seeds 1): RMSE of the 60 nearest 0.329 (0.564), of the 150 nearest
# 0.326 (0.557), of 30 + 15 among a 16th 0.325 (0.558), of 30 + 15 + 15 0.317 (0.552), of 60 + 30 + 30 0.317 (0.551).
WINDOW = (30, 15, 15)
SPARSER = 16  # points of a level over those of the next one
_BYTES = 200  # bytes per point, beside 8 per column: the tree, the order, and copies while the points are sorted


class Windows:
    """All ranks' points on this rank, and predictions from the nearest of them; construction is local.

    Parameters
    ----------
    field : Field
        All points, with an infinite radius. Further columns of the points are those that predictions combine.
    correlation : Correlation
    counts : tuple of int
        Numbers of the nearest points of a place among all points, among the first sixteenth in the shuffled order, and
        so on; all of them if there are fewer.
    limit : int
        Bytes that this rank may use.

    Attributes
    ----------
    X : ndarray, shape (n, d)
        In the shuffled order, like all columns.
    noise : ndarray, shape (n,)
    values : ndarray, shape (n, v)
    m : int
        Most points of a window.

    Notes
    -----
    About 200 + 8 (d + v + 1) bytes per point on every rank. A prediction takes m^3/3 flops and m^2/2 correlations:
    25 to 45 microseconds for m = 60, on a core.
    """

    def __init__(self, field: Field, correlation: Correlation, counts: tuple[int, ...], limit: int) -> None:
        points, self.comm, self.correlation = field.points, field.comm, correlation
        n = len(points)
        need = n * (_BYTES + 8 * (points.X.shape[1] + points.values.shape[1] + 1))
        with self.comm.agreed():
            memory.require(need, limit, f"{n:,} points, which every rank has,", "use fewer ranks per node, or a taper")
        order = np.argsort(points.place, kind="stable")
        self.X, self.noise = np.ascontiguousarray(points.X[order]), points.noise[order]
        self.values = points.values[order]
        sizes = [max(1, n // SPARSER**level) for level in range(len(counts))]
        self._levels = [(cKDTree(self.X[:size]), min(count, size)) for count, size in zip(counts, sizes, strict=True)]
        self.m = min(n, sum(counts))

    def nearest(self, Q: NDArray[np.float64]) -> NDArray[np.int32]:
        """Numbers of the near points of each row of `Q`, shape (q, m): level by level, without repetition; then -1."""
        numbers = [tree.query(Q, [*range(1, count + 1)], workers=current())[1] for tree, count in self._levels]
        near = np.hstack(numbers).astype(np.int32)
        if len(numbers) == 1:
            return near
        order = np.argsort(near, axis=1, kind="stable")
        ordered = np.take_along_axis(near, order, axis=1)
        repeated = np.zeros(near.shape, np.bool_)
        np.put_along_axis(repeated, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
        near[repeated] = -1
        return np.take_along_axis(near, np.argsort(repeated, axis=1, kind="stable"), axis=1)[:, : self.m]

    def predict(self, Q: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Combinations of the points' columns, shape (q, v), and the variance explained, shape (q,), at places `Q`.

        Both are in units of the sill: k' A^-1 V and k' A^-1 k, with A and k restricted to the place's window.
        """
        sums, explained = np.empty((len(Q), self.values.shape[1])), np.empty(len(Q))
        for lo, hi in blocks(len(Q), max(1, NUMBERS // self.m)):
            nearest = self.nearest(Q[lo:hi])
            weights, unexplained = regressions(
                Q[lo:hi], np.zeros(hi - lo), self.X, self.noise, nearest, self.correlation
            )
            sums[lo:hi] = np.einsum("ij,ijk->ik", weights, self.values[nearest])
            explained[lo:hi] = 1.0 - unexplained
        return sums, explained

    def gram(self) -> NDArray[np.float64]:
        """V' A^-1 V of the points' columns by Vecchia's approximation, shape (v, v); collective.

        Each value is conditioned on its m nearest earlier ones. m^3/3 flops per point, shared by the ranks; one
        Allreduce of v^2 numbers. An InputError if earlier values determine one, as far as rounding shows.
        """
        least = np.inf
        gram = np.zeros((self.values.shape[1],) * 2)
        lo, hi = block_bounds(len(self.X), self.comm.size, self.comm.rank)
        for first, last, earlier in earlier_blocks(self.X, self.m, lo, hi):
            rows = slice(first, last)
            weights, variance = regressions(
                self.X[rows], self.noise[rows], self.X, self.noise, earlier, self.correlation
            )
            least = min(least, float(variance.min()))
            white = self.values[rows] - np.einsum("ij,ijk->ik", weights, self.values[earlier])
            white /= np.sqrt(variance)[:, None]
            gram += white.T @ white
        with self.comm.agreed():
            if least <= 2.0 * LEAST_PIVOT:
                raise InputError(SINGULAR)
        return self.comm.allreduce(gram)


# -- conditional simulation ------------------------------------------------------------------------------


class WindowDraws:
    """The field at new places, drawn one after another, each given its nearest points and places before it; collective.

    Parameters
    ----------
    windows : Windows
        Its columns are the values minus their drift, and the functions of the drift.
    Q : ndarray, shape (q, d)
        All ranks' places, in their shuffled order.

    Notes
    -----
    Ranks share the weights: m^3/3 flops and 12 m bytes per place, which then every rank has; an Allgather of these.
    A draw takes 2 m flops per place on every rank.
    """

    def __init__(self, windows: Windows, Q: NDArray[np.float64], limit: int) -> None:
        comm, self.windows, n = windows.comm, windows, len(windows.X)
        with comm.agreed():
            need = len(Q) * (24 * windows.m + 8 * Q.shape[1])
            memory.require(need, limit, f"draws at {len(Q):,} places", "use fewer places, or fewer --neighbours")
        X, noise = np.concatenate([windows.X, Q]), np.concatenate([windows.noise, np.zeros(len(Q))])
        lo, hi = block_bounds(len(Q), comm.size, comm.rank)
        count, weights, variance, numbers = hi - lo, [], [], []
        for first, last, earlier in earlier_blocks(X, windows.m, n + lo, n + hi) if count else ():
            rows = slice(first, last)
            shares, unexplained = regressions(X[rows], noise[rows], X, noise, earlier, windows.correlation)
            weights.append(shares)
            variance.append(unexplained)
            numbers.append(earlier)
        m = windows.m
        self.weights = comm.allgather(np.concatenate([np.zeros((0, m)), *weights]))
        self.variance = comm.allgather(np.concatenate([np.zeros(0), *variance]))
        self.nearest = comm.allgather(np.concatenate([np.zeros((0, m), np.int32), *numbers]))

    def __call__(self, Z: NDArray[np.float64], slopes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Draws, without their drift, from standard normal numbers.

        Parameters
        ----------
        Z : ndarray, shape (q, t)
            One number per place and draw, in units of the field's standard deviation.
        slopes : ndarray, shape (p, t)
            Coefficients of each draw's drift, minus those of the mean.

        Returns
        -------
        ndarray, shape (q, t)
        """
        values, n = self.windows.values, len(self.windows.X)
        field = np.empty((n + len(Z), Z.shape[1]))
        field[:n] = values[:, :1] - values[:, 1:] @ slopes
        np.multiply(Z, np.sqrt(self.variance)[:, None], out=field[n:])
        _sequence(self.weights, self.nearest, field, n)
        return field[n:]


@numba.njit(cache=True, nogil=True)
def _sequence(weights: Doubles, nearest: Ints, field: Doubles, n: int) -> None:
    """Add the regressions on earlier rows to each row of `field` from n on, in order; shape (n + q, t)."""
    # pragma: no cover - compiled
    for i in range(weights.shape[0]):
        for j in range(weights.shape[1]):
            k = nearest[i, j]
            if k < 0:
                break
            for c in range(field.shape[1]):
                field[n + i, c] += weights[i, j] * field[k, c]


# -- the latent field of counts --------------------------------------------------------------------------

_STEP_TOL = 1e-6  # relative residual of a Newton step; the next step corrects the error


class NearestEarlier:
    """The system C + E, with C a covariance by Vecchia's approximation and E diagonal, for Newton's steps.

    C = B^-1 D B^-T is the covariance of a field whose values are regressed on nearest earlier ones, B = 1 - weights,
    with variances D. The system is solved by conjugate gradients in the form 1 + E^-1/2 C E^-1/2. The preconditioner is
    the same factor of C plus other errors E, near those of the steps. Everything is on every rank.

    Parameters
    ----------
    nearest : ndarray of int32, shape (n, m)
        Earlier points of each point; -1 where there are no more.
    prior, reference : tuple of ndarray, of shapes (n, m) and (n,)
        Weights and variances over the sill, of the field and of its noisy values.
    sill : float
    F : ndarray, shape (n, p)
        Functions of the drift.

    Notes
    -----
    An iteration takes 12 m flops per point and right side, on one thread.
    """

    def __init__(
        self, nearest: NDArray[np.int32], prior: tuple[NDArray[np.float64], NDArray[np.float64]],
        reference: tuple[NDArray[np.float64], NDArray[np.float64]], sill: float, F: NDArray[np.float64],
    ) -> None:  # fmt: skip
        self.nearest, self.prior, self.sill, self.F = nearest, prior, sill, F
        self._factor = triangular(nearest, *reference, 0, len(F))
        self._root = np.ones(len(F))

    def covariance(self, V: Vectors) -> Vectors:
        """``C v`` for each row v of `V`, shape (t, n)."""
        weights, variance = self.prior
        columns = np.array(V.T, order="C")
        _sequence_back(weights, self.nearest, columns)
        columns *= self.sill * variance[:, None]
        _sequence(weights, self.nearest, columns, 0)
        return np.ascontiguousarray(columns.T)

    def product(self, V: Vectors, which: NDArray[np.int64]) -> Vectors:
        """See :meth:`cacore.linalg.cg.LinearSystem.product`."""
        return V + self._root * self.covariance(self._root * V)

    def precondition(
        self, R: Vectors, which: NDArray[np.int64], sums: NDArray[np.float64]
    ) -> tuple[Vectors, NDArray[np.float64]]:
        """See :meth:`cacore.linalg.cg.LinearSystem.precondition`."""
        products = self._factor.T @ (self._factor @ np.ascontiguousarray((R / self._root).T))
        return np.ascontiguousarray(products.T) / (self.sill * self._root), sums

    def add_up(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """See :meth:`cacore.linalg.cg.LinearSystem.add_up`: nothing, as every rank has all points."""
        return sums

    def solve(
        self, z: NDArray[np.float64], variance: NDArray[np.float64], state: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Newton's step for working responses with errors E, from a state; see :func:`cakriging.counts.mode`.

        The dual gains d = A^-1 (r - F b), for the residual r of the state and A = C + E, with b such that F' a = 0.
        """
        eta, dual, drift = state
        self._root = 1.0 / np.sqrt(variance)
        B = self._root * np.concatenate([(z - eta - variance * dual)[None], self.F.T])
        target = _STEP_TOL * np.sqrt(np.einsum("ij,ij->i", B, B))
        progress = State.first(B)
        iterate(self, progress, lambda now, _, late: now.residual[now.which] <= target[now.which])
        solved = self._root * progress.x
        dual = dual + solved[0]
        if self.F.shape[1]:
            slopes = np.linalg.lstsq(solved[1:] @ self.F, dual @ self.F, rcond=None)[0]
            dual, drift = dual - slopes @ solved[1:], drift + self.F @ slopes
        return np.stack([drift + self.covariance(dual[None])[0], dual, drift])


@numba.njit(cache=True, nogil=True)
def _sequence_back(weights: Doubles, nearest: Ints, field: Doubles) -> None:
    """Solve with the transpose of the system of :func:`_sequence`, in place; shape (n, t)."""
    # pragma: no cover - compiled
    for i in range(weights.shape[0] - 1, -1, -1):
        for j in range(weights.shape[1]):
            k = nearest[i, j]
            if k < 0:
                break
            for c in range(field.shape[1]):
                field[k, c] += weights[i, j] * field[i, c]
