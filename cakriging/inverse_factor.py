"""A sparse triangular factor G of the inverse covariance, K^-1 ~ G'G, by regression on nearest neighbours.

In some order of the points, row i of G holds the regression of point i on its m nearest earlier points. That is
Vecchia's approximation of a Gaussian process (J. R. Stat. Soc. B 50, 1988), and in numerical analysis the factorised
sparse approximate inverse of Kolotilina and Yeremin (SIAM J. Matrix Anal. Appl. 14, 1993): of all factors with these
non-zeros it brings G K G' closest to the identity. A random order gives each point neighbours at all distances.

The rows serve as a preconditioner, for a log-determinant, and for conditional variances.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from cacore.machine.threads import blocks, current, for_blocks, in_order
from cakriging.near_matrix import Correlation, Cubes, correlate, gather, multiply, stretches, widest

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from cacore.arrays import Doubles, Ints, Longs, Unsigned
    from cacore.kernels.evaluate import Parameters

BLOCK = 2048  # rows per task
LAST = np.iinfo(np.int64).max  # place in the order of a point after all others
_LEAST = 1e-13  # pivots below this share of the variance count as 0: earlier points determine the value


def nearest_earlier(
    Q: NDArray[np.float64], place: NDArray[np.int64], cubes: Cubes, places: NDArray[np.int64], m: int
) -> NDArray[np.int32]:
    """The m nearest earlier points of each point, among those closer than the radius of `cubes`.

    Parameters
    ----------
    Q : ndarray, shape (q, d)
    place : ndarray of int64, shape (q,)
        Place of each point of `Q` in the order; :data:`LAST` for points after all others.
    cubes : Cubes
        The points to choose from.
    places : ndarray of int64, shape (n,)
        Their places in the order.
    m : int

    Returns
    -------
    ndarray of int32, shape (q, m)
        Numbers of the neighbours, nearest first; -1 where there are no more.

    Notes
    -----
    3 d flops per candidate, and m comparisons per pair at most. Equal distances are ordered by place, so that the
    choice does not depend on how points are stored.
    """
    out = np.full((len(Q), m), -1, np.int32)
    which, ends = cubes.around(Q)
    room, sorted_ = int(widest(ends)), places[cubes.order]

    def work(lo: int, hi: int) -> None:
        _select(
            Q, place, which, ends, cubes.points, sorted_, cubes.order, cubes.square, room, out, lo, hi
        )  # fmt: skip

    for_blocks(work, blocks(len(Q), BLOCK))
    return out


def nearest_of_all(X: NDArray[np.float64], m: int) -> NDArray[np.int32]:
    """Up to m nearest earlier points of each point in the given order, at any distance, shape (n, m).

    For k = 1, 2, ..., a k-d tree of the first 2^k points is queried for the neighbours of their second half: n log n
    distances. Of the 2 m + 1 nearest points, half are earlier on average; some rows have fewer than m of them.
    """
    n = len(X)
    out = np.full((n, m), -1, np.int32)
    lo = 1
    while lo < n:
        hi = min(2 * lo, n)
        _, nearest = cKDTree(X[:hi]).query(X[lo:hi], min(2 * m + 1, hi), workers=current())
        nearest = nearest.reshape(hi - lo, -1)
        early = nearest < np.arange(lo, hi)[:, None]
        first = np.argsort(~early, axis=1, kind="stable")[:, :m]
        chosen = np.where(np.take_along_axis(early, first, 1), np.take_along_axis(nearest, first, 1), -1)
        out[lo:hi, : chosen.shape[1]] = chosen
        lo = hi
    return out


def regressions(
    Q: NDArray[np.float64], own_noise: NDArray[np.float64], X: NDArray[np.float64], noise: NDArray[np.float64],
    neighbours: NDArray[np.int32], correlation: Correlation,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """Regression of each point's value on those of its neighbours.

    Parameters
    ----------
    Q : ndarray, shape (q, d)
    own_noise : ndarray, shape (q,)
        Variance of the noise of these points, in units of the correlation.
    X : ndarray, shape (n, d)
        The points that neighbours are numbers of.
    noise : ndarray, shape (n,)
        Variance of their noise.
    neighbours : ndarray of int32, shape (q, m)
        Numbers; -1 where there are no more.
    correlation : Correlation

    Returns
    -------
    weights : ndarray, shape (q, m)
        Weights of the neighbours; 0 for a neighbour whose value nearer ones determine.
    variance : ndarray, shape (q,)
        Variance of the residuals.

    Notes
    -----
    m^3/3 flops and m^2/2 correlations per point.
    """
    weights, variance = np.zeros(neighbours.shape), np.empty(len(Q))

    def work(lo: int, hi: int) -> None:
        _regress(Q, own_noise, X, noise, neighbours, *correlation.compiled, weights, variance, lo, hi)

    for_blocks(work, blocks(len(Q), BLOCK))
    return weights, variance


class InverseFactor:
    """The rows of G that belong to this rank's points.

    Parameters
    ----------
    X : ndarray, shape (n, d)
        This rank's points, followed by copies of those of other ranks that are near.
    own : int
        Number of this rank's points.
    noise : ndarray, shape (n,)
        Variance of the noise of each point, in units of the correlation.
    place : ndarray of int64, shape (n,)
        Place of each point in the order of all ranks' points.
    cubes : Cubes
        All n points.
    correlation : Correlation
    m : int
        Most neighbours of a point.
    inner : int
        A row at which products may begin or end.

    Attributes
    ----------
    logdet : float
        This rank's share of the log-determinant of (G'G)^-1.
    nnz : int
        Number of values stored.

    Notes
    -----
    m^3/3 flops per point, 12 bytes per value, 4 flops per value and product with G'G.
    """

    def __init__(
        self, X: NDArray[np.float64], n_owned: int, noise: NDArray[np.float64], place: NDArray[np.int64], cubes: Cubes,
        correlation: Correlation, m: int, inner: int = 0,
    ) -> None:  # fmt: skip
        self.shape, self.logdet = (n_owned, len(X)), 0.0
        self._rows: list[tuple[int, int, csr_array]] = []

        def work(lo: int, hi: int) -> tuple[csr_array, float]:
            mine = slice(lo, hi)
            neighbours = nearest_earlier(X[mine], place[mine], cubes, place, m)
            weights, variance = regressions(X[mine], noise[mine], X, noise, neighbours, correlation)
            return _triangular(neighbours, weights, variance, lo, self.shape[1]), float(np.log(variance).sum())

        parts = [
            (lo, hi, [(lo + a, lo + b) for a, b in blocks(hi - lo, BLOCK)]) for lo, hi in stretches(inner, n_owned)
        ]
        with in_order(work, [task for _, _, tasks in parts for task in tasks]) as rows:
            for lo, hi, tasks in parts:
                pieces, shares = zip(*islice(rows, len(tasks)), strict=True)
                self._rows.append((lo, hi, sp.vstack(pieces, format="csr")))
                self.logdet += sum(shares)
        self.nnz = sum(int(G.nnz) for _, _, G in self._rows)

    def apply(self, V: NDArray[np.float64], out: NDArray[np.float64], lo: int = 0, hi: int | None = None) -> None:
        """Write rows `lo` to `hi` of ``G V.T`` to the same columns of `out`.

        Parameters
        ----------
        V : ndarray, shape (t, n)
        out : ndarray, shape (t, n_owned)
        lo, hi : int
            Each is 0, the number of own points, or `inner`.
        """
        columns = np.ascontiguousarray(V.T) if len(V) > 1 else V[0]
        for_blocks(
            lambda first, last, G: multiply(G, first, first, last, columns, out), self._between(lo, hi)
        )  # fmt: skip

    def add_transposed(
        self, U: NDArray[np.float64], total: NDArray[np.float64], lo: int = 0, hi: int | None = None
    ) -> None:
        """Add rows `lo` to `hi` of G, transposed, times the same columns of `U`, to `total`.

        Parameters
        ----------
        U : ndarray, shape (t, n_owned)
        total : ndarray, shape (n, t)
            C-contiguous. The caller adds it up over ranks.
        lo, hi : int
            As for :meth:`apply`.
        """
        columns, rows = np.ascontiguousarray(U.T), self._between(lo, hi)
        share = max(1, -(-len(rows) // max(1, current())))

        def work(first: int, last: int) -> NDArray[np.float64]:
            part = total if first == 0 else np.zeros_like(total)
            for lo, hi, G in rows[first:last]:
                _scatter(G.indptr.view(np.uint32), G.indices.view(np.uint32), G.data, columns[lo:hi], part)
            return part

        with in_order(work, blocks(len(rows), share)) as parts:
            for part in islice(parts, 1, None):
                total += part

    def _between(self, lo: int, hi: int | None) -> list[tuple[int, int, csr_array]]:
        """Stored matrices of the rows `lo` to `hi`: first row, one past the last, matrix."""
        hi = self.shape[0] if hi is None else hi
        return [task for task in self._rows if lo <= task[0] and task[1] <= hi]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _scatter(indptr: Unsigned, indices: Unsigned, values: Doubles, U: Doubles, total: Doubles) -> None:
    """Add the transpose of CSR rows times `U`, shape (rows, t), to `total`, shape (n, t).

    With unsigned indices, numba does not check for negative ones, which count from the end.
    """  # pragma: no cover - compiled
    if U.shape[1] == 1:
        u, sums = U[:, 0], total[:, 0]
        for i in range(u.size):
            for k in range(indptr[i], indptr[i + 1]):
                sums[indices[k]] += values[k] * u[i]
        return
    for i in range(U.shape[0]):
        for k in range(indptr[i], indptr[i + 1]):
            for c in range(U.shape[1]):
                total[indices[k], c] += values[k] * U[i, c]


def _triangular(
    neighbours: NDArray[np.int32], weights: NDArray[np.float64], variance: NDArray[np.float64], first: int, n: int
) -> csr_array:
    """Rows of G: (1 at the point itself, minus the weights) / standard deviation, shape (rows, n)."""
    rows = len(variance)
    columns = np.hstack([neighbours, np.arange(first, first + rows, dtype=np.int32)[:, None]])
    values = np.hstack([-weights, np.ones((rows, 1))]) / np.sqrt(variance)[:, None]
    there = columns >= 0
    indptr = np.concatenate([[0], np.cumsum(there.sum(axis=1))]).astype(np.int32)
    return sp.csr_array((values[there], columns[there], indptr), shape=(rows, n))


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _select(
    Q: Doubles, place: Longs, which: Longs, ends: Longs, points: Doubles, places: Longs, order: Longs, square: float,
    room: int, out: Ints, lo: int, hi: int,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Rows lo to hi of :func:`nearest_earlier`, by insertion; `places` are those of `points`."""
    m = out.shape[1]
    squares, where = np.empty(room), np.empty(room, np.int64)
    least, best = np.empty(m + 1), np.empty(m + 1, np.int64)
    for i in range(lo, hi):
        count = 0
        for j in range(gather(Q[i], ends[which[i]], points, square, squares, where)):
            k = where[j]
            if places[k] >= place[i]:
                continue
            t = squares[j]
            if count == m and (t > least[m - 1] or (t == least[m - 1] and places[k] > places[best[m - 1]])):
                continue
            at = min(count, m - 1)
            while at > 0 and (t < least[at - 1] or (t == least[at - 1] and places[k] < places[best[at - 1]])):
                least[at], best[at] = least[at - 1], best[at - 1]
                at -= 1
            least[at], best[at] = t, k
            count = min(count + 1, m)
        for j in range(count):
            out[i, j] = order[best[j]]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _regress(
    Q: Doubles, own_noise: Doubles, X: Doubles, noise: Doubles, neighbours: Ints, kernel: Parameters, taper: float,
    weights: Doubles, variance: Doubles, lo: int, hi: int,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Rows lo to hi of :func:`regressions`."""
    width, d = neighbours.shape[1] + 1, Q.shape[1]
    size = width * (width + 1) // 2
    A, zeros, factors = np.empty(size), np.zeros(size), np.empty(size)
    P, diagonal = np.empty((width, d)), np.empty(width)
    for i in range(lo, hi):
        m = 0
        while m < width - 1 and neighbours[i, m] >= 0:
            P[m], diagonal[m] = X[neighbours[i, m]], 1.0 + noise[neighbours[i, m]]
            m += 1
        P[m], diagonal[m] = Q[i], 1.0 + own_noise[i]
        _squares(P, m + 1, A)
        correlate(A[: (m + 1) * (m + 2) // 2], zeros, factors, kernel, taper)
        _factorise(A, diagonal, m)
        variance[i] = A[m * (m + 1) // 2 + m] ** 2
        _solve_last(A, m, weights[i])


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _squares(P: Doubles, n: int, A: Doubles) -> None:
    """Squared distances of n points, the lower triangle row after row."""  # pragma: no cover - compiled
    at = 0
    for a in range(n):
        for b in range(a + 1):
            t = 0.0
            for k in range(P.shape[1]):
                gap = P[a, k] - P[b, k]
                t += gap * gap
            A[at] = t
            at += 1


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _factorise(A: Doubles, diagonal: Doubles, last: int) -> None:
    """Cholesky factor of the lower triangle `A`, row after row, with this diagonal; in place.

    A row, other than the last, whose value earlier rows determine gets an infinite pivot: its column and its weight
    become 0. Row a begins at a (a + 1) / 2.
    """  # pragma: no cover - compiled
    at = 0
    for a in range(last + 1):
        before = 0
        for b in range(a):
            s = A[at + b]
            for k in range(b):
                s -= A[at + k] * A[before + k]
            A[at + b] = s / A[before + b]
            before += b + 1
        s = diagonal[a]
        for k in range(a):
            s -= A[at + k] * A[at + k]
        least = _LEAST * diagonal[a]
        A[at + a] = np.inf if s <= least and a < last else math.sqrt(max(s, least))
        at += a + 1


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _solve_last(A: Doubles, m: int, g: Doubles) -> None:
    """Weights of m points for the last one: L' g = the last row of L."""  # pragma: no cover - compiled
    last = m * (m + 1) // 2
    for a in range(m - 1, -1, -1):
        s = A[last + a]
        for b in range(a + 1, m):
            s -= A[b * (b + 1) // 2 + a] * g[b]
        g[a] = s / A[a * (a + 1) // 2 + a]
