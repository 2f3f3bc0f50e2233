"""The kriging system (rho(X, X) + D) x = b with D diagonal: its preconditioner, and its two solvers.

1. :class:`InverseFactor`: a sparse triangular factor G of the inverse, K^-1 ~ G'G, by regression on nearest neighbours.
2. :class:`NearSystem`: sparse and distributed over ranks; conjugate gradients on near points, preconditioned by G'G.
3. :class:`DenseSystem`: factored on every rank.

In some order of the points, row i of G holds the regression of point i on its m nearest earlier points. That is
Vecchia's approximation of a Gaussian process (J. R. Stat. Soc. B 50, 1988), and in numerical analysis the factorised
sparse approximate inverse of Kolotilina and Yeremin (SIAM J. Matrix Anal. Appl. 14, 1993): of all factors with these
non-zeros it brings G K G' closest to the identity. A random order gives each point neighbours at all distances. The
rows also serve for a log-determinant, and for conditional variances.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Protocol

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.spatial import cKDTree

from cacore.errors import InputError
from cacore.io.checkpoint import Kept, Unfinished
from cacore.linalg.cg import State, Vectors, iterate
from cacore.machine import memory
from cacore.machine.threads import blocks, current, for_blocks, in_order
from cakriging.near_matrix import ENTRY, Correlation, Cubes, NearMatrix, correlate, gather, multiply, stretches, widest
from cakriging.space import Field

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from cacore.arrays import Doubles, Ints, Longs, Unsigned
    from cacore.kernels.evaluate import Parameters

# -- the preconditioner ----------------------------------------------------------------------------------

FACTOR_BLOCK = 2048  # rows per task: many tasks per thread, since their times differ with the density of the points
NUMBERS = 1 << 21  # neighbours searched at a time: 16 MiB of distances, and as much of numbers
LAST = np.iinfo(np.int64).max  # place in the order of a point after all others
SINGULAR = "the covariance matrix is singular in double precision: give a --nugget above 0, or a smaller range"
LEAST_PIVOT = 1e-13  # pivots below this share of the variance count as 0: earlier points determine the value


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
        _select(Q, place, which, ends, cubes.points, sorted_, cubes.order, cubes.square, room, out, lo, hi)

    for_blocks(work, blocks(len(Q), FACTOR_BLOCK))
    return out


def earlier_blocks(
    X: NDArray[np.float64], m: int, first: int = 0, last: int | None = None
) -> Iterator[tuple[int, int, NDArray[np.int32]]]:
    """Yield blocks of rows, from `first` to `last`, with up to m nearest earlier points of each row, at any distance.

    Parameters
    ----------
    X : ndarray, shape (n, d)
        Points in their order.
    m : int
    first, last : int
        Rows whose neighbours are wanted.

    Yields
    ------
    lo, hi : int
        The rows of a block.
    nearest : ndarray of int32, shape (hi - lo, m)
        Numbers of the neighbours, nearest first; -1 where there are no more.

    Notes
    -----
    For k = 1, 2, ..., a k-d tree of the first 2^k points is queried for the neighbours of their second half: n log n
    distances. Of the 2 m + 1 nearest points, half are earlier on average; some rows have fewer than m of them.
    """
    last = len(X) if last is None else last
    if first == 0 < last:
        yield 0, 1, np.full((1, m), -1, np.int32)
    begin = 1
    while begin < last:
        end = min(2 * begin, len(X))
        wanted = max(begin, first), min(end, last)
        tree = cKDTree(X[:end]) if wanted[0] < wanted[1] else None
        count = min(2 * m + 1, end)
        for lo, hi in blocks(max(0, wanted[1] - wanted[0]), max(1, NUMBERS // count)):
            assert tree is not None
            rows = slice(wanted[0] + lo, wanted[0] + hi)
            _, nearest = tree.query(X[rows], [*range(1, count + 1)], workers=current())
            early = nearest < np.arange(rows.start, rows.stop)[:, None]
            order = np.argsort(~early, axis=1, kind="stable")[:, :m]
            out = np.full((hi - lo, m), -1, np.int32)
            chosen = np.where(np.take_along_axis(early, order, 1), np.take_along_axis(nearest, order, 1), -1)
            out[:, : chosen.shape[1]] = chosen
            yield rows.start, rows.stop, out
        begin = end


def nearest_of_all(X: NDArray[np.float64], m: int) -> NDArray[np.int32]:
    """Up to m nearest earlier points of each point in the given order, at any distance, shape (n, m)."""
    return np.concatenate([nearest for _, _, nearest in earlier_blocks(X, m)])


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

    for_blocks(work, blocks(len(Q), FACTOR_BLOCK))
    return weights, variance


class InverseFactor:
    """The rows of G that belong to this rank's points.

    Parameters
    ----------
    X : ndarray, shape (n, d)
        This rank's points, followed by copies of those of other ranks that are near.
    n_owned : int
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
        self.shape = n_owned, len(X)
        self._rows: list[tuple[int, int, csr_array]] = []

        def work(lo: int, hi: int) -> csr_array:
            mine = slice(lo, hi)
            neighbours = nearest_earlier(X[mine], place[mine], cubes, place, m)
            weights, variance = regressions(X[mine], noise[mine], X, noise, neighbours, correlation)
            return triangular(neighbours, weights, variance, lo, self.shape[1])

        parts = stretches(inner, n_owned)
        tasks = [[(lo + a, lo + b) for a, b in blocks(hi - lo, FACTOR_BLOCK)] for lo, hi in parts]
        with in_order(work, list(chain.from_iterable(tasks))) as rows:
            for (lo, hi), tasks_of_part in zip(parts, tasks, strict=True):
                pieces = list(islice(rows, len(tasks_of_part)))
                self._rows.append((lo, hi, sp.vstack(pieces, format="csr")))
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
        for_blocks(lambda first, last, G: multiply(G, first, first, last, columns, out), self._between(lo, hi))

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


def triangular(
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
        least = LEAST_PIVOT * diagonal[a]
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


# -- the two solvers --------------------------------------------------------------------------------------

DENSE = 4096  # points up to which the matrix is dense and factored: 16 n^2 bytes are 256 MiB
_CHECKED = 8  # right-hand sides of a dense system whose residuals are computed: y, and seven functions of the drift
_ACCURATE = 1e-6  # largest relative residual of a dense system: the default of --tol, unless a larger one is given
# Most runs of conjugate gradients, each from the recomputed residual of the last: rounding sets it apart from the
# updated one.
_PASSES = 6


class KrigingSystem(Protocol):
    """A solver of the kriging system for this rank's points."""

    field: Field

    def solve(self, B: Vectors, tol: float, checkpoint: Unfinished | None = None) -> tuple[Vectors, float]:
        """Solutions for right-hand sides `B`, shape (t, n_owned), and the largest relative residual; collective.

        `checkpoint` saves states of the iteration; a later call continues from there, with the same bits.

        Raises
        ------
        InputError
            On all ranks: the residual is too large.
        """
        ...

    def facts(self) -> dict[str, object]:
        """Entries of the report; collective."""
        ...


class NearSystem:
    """The sparse system, solved by preconditioned conjugate gradients; construction is collective.

    Parameters
    ----------
    field : Field
    noise : ndarray, shape (points,)
        Diagonal of D, for own and borrowed points, in units of the sill.
    correlation : Correlation
    neighbours : int
        Most neighbours of a point in the preconditioner.
    limit : int
        Bytes that a rank may use.

    Attributes
    ----------
    iterations : int
        Iterations so far.
    fetched, returned : ndarray of int64, shape (2,)
        Number of vectors exchanged so far, and number of exchanges, each of several vectors: entries fetched from other
        ranks, and contributions returned to them.
    matrix : NearMatrix
    factor : InverseFactor

    Notes
    -----
    An iteration exchanges the halo's entries of each vector three times: for the product with K, for G, and back for
    G'. Two Allreduces, of 2 t + 1 and 2 t numbers, add up inner products. :meth:`predicted` gives the bytes.
    """

    def __init__(
        self, field: Field, noise: NDArray[np.float64], correlation: Correlation, neighbours: int, limit: int
    ) -> None:
        self.field, self.noise, self.correlation = field, noise[: field.n_owned], correlation
        self.neighbours, self.iterations = neighbours, 0
        self.fetched, self.returned = np.zeros(2, np.int64), np.zeros(2, np.int64)
        points, cubes = field.points, field.cubes()
        self._check(limit)
        room = limit // 2 - (ENTRY + 16) * (neighbours + 1) * field.n_owned
        self.matrix = NearMatrix(points.X[: field.n_owned], cubes, correlation, max(0, room), field.inner)
        self.factor = InverseFactor(
            points.X, field.n_owned, noise, points.place, cubes, correlation, neighbours, field.inner
        )  # fmt: skip

    def _check(self, limit: int) -> None:
        """Raise a MemoryLimitError if the factor does not fit; the matrix of pairs need not be stored."""
        n, m = self.field.n_owned, self.neighbours
        need = n * (ENTRY * (m + 1) + 8 * 24) + 16 * len(self.field.points)
        with self.field.comm.agreed():
            memory.require(need, limit, f"the preconditioner of {n:,} points", "use fewer --neighbors, or more ranks")

    def product(self, V: Vectors, which: NDArray[np.int64] | None = None) -> Vectors:
        """See :meth:`cacore.linalg.cg.LinearSystem.product`."""
        out = self._rows_of(self.matrix.product, V)
        out += V * self.noise
        return out

    def _rows_of(self, multiply: Callable[..., None], V: Vectors) -> Vectors:
        """Rows of `multiply` for own points; those of inner points are computed while the halo travels. Collective."""
        field, out = self.field, np.empty_like(V)
        arriving = field.halo.begin(V)
        multiply(arriving.every, out, 0, field.inner)
        multiply(arriving.wait(), out, field.inner, field.n_owned)
        self.fetched += (len(V), 1)
        return out

    def precondition(
        self, R: Vectors, which: NDArray[np.int64], sums: NDArray[np.float64]
    ) -> tuple[Vectors, NDArray[np.float64]]:
        """See :meth:`cacore.linalg.cg.LinearSystem.precondition`: ``G' G r``."""
        return self.upper(self.lower(R)), self.add_up(sums)

    def lower(self, V: Vectors) -> Vectors:
        """``G v`` for each row v of `V`, shape (t, n_owned); collective."""
        return self._rows_of(self.factor.apply, V)

    def upper(self, U: Vectors) -> Vectors:
        """``G' u`` for each row u of `U`, shape (t, n_owned); collective, overlapped like :meth:`lower`."""
        field, total = self.field, np.zeros((len(self.field.points), len(U)))
        self.factor.add_transposed(U, total, field.inner, field.n_owned)
        returning = field.halo.begin_home(total[field.n_owned :])
        self.factor.add_transposed(U, total[: field.n_owned], 0, field.inner)
        returning.add(total[: field.n_owned])
        self.returned += (len(U), 1)
        return np.ascontiguousarray(total[: field.n_owned].T)

    def add_up(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """See :meth:`cacore.linalg.cg.LinearSystem.add_up`."""
        return self.field.comm.allreduce(sums)

    def solve(self, B: Vectors, tol: float, checkpoint: Unfinished | None = None) -> tuple[Vectors, float]:
        """See :meth:`KrigingSystem.solve`."""
        size = np.sqrt(self.add_up(np.einsum("ij,ij->i", B, B)))
        target = tol * np.where(size > 0, size, 1.0)
        X, R, first, saved = np.zeros_like(B), B.copy(), 0, None
        if checkpoint is not None and (stored := checkpoint.get()) is not None:
            X, first, self.iterations = stored.pop("X"), int(stored.pop("turn")), int(stored.pop("before"))
            saved = State(**{name: stored[name] for name in vars(State.first(R))})
        for turn in range(first, _PASSES):
            state, saved = State.first(R) if saved is None else saved, None
            about = {"X": X, "turn": np.array(turn), "before": np.array(self.iterations)}

            def keep(state: State, about: Kept = about) -> None:
                if checkpoint is not None:
                    checkpoint.put_if_due(**about, **state.arrays())

            iterate(self, state, lambda state, _, late: state.residual[state.which] <= target[state.which], keep=keep)
            self.iterations += int(state.iterations.max(initial=0))
            X += state.x
            R = B - self.product(X)
            norms = np.sqrt(self.add_up(np.einsum("ij,ij->i", R, R)))
            if (norms <= target).all():
                break
        worst = float((norms / np.where(size > 0, size, 1.0)).max())
        if not worst <= tol:
            with self.field.comm.agreed():
                raise InputError(
                    f"conjugate gradients reached a relative residual of {worst:.1e}, above {tol:g}: the system is "
                    "nearly singular; use a larger --nugget, more --neighbors, or a larger --tol"
                )
        return X, worst

    def predicted(self) -> NDArray[np.int64]:
        """Predicted bytes and messages that this rank has sent in products and preconditioners, shape (2,)."""
        lent, borrowed = self.field.halo.counts
        (out, outs), (home, homes) = self.fetched.tolist(), self.returned.tolist()
        return np.array([
            8 * (out * int(lent.sum()) + home * int(borrowed.sum())),
            outs * np.count_nonzero(lent) + homes * np.count_nonzero(borrowed),
        ])  # fmt: skip

    def facts(self) -> dict[str, object]:
        """Entries of the report; collective."""
        field, factor = self.field, self.factor
        lent = field.halo.counts[0]
        neighbours = np.count_nonzero(lent)
        mine = [
            self.matrix.nnz,
            factor.nnz,
            field.n_owned,
            lent.sum(),
            neighbours,
            self.matrix.nbytes + ENTRY * factor.nnz,
        ]
        with field.comm.uncounted():
            sums = field.comm.allreduce(np.array([*mine, *self.predicted()], np.int64)).tolist()
        nnz, entries, n, halo, pairs, nbytes, sent, messages = sums
        return {
            "solver": "cg", "iterations": [self.iterations], "pairs": nnz, "pairs_per_point": nnz / n,
            "pairs_kept": self.matrix.stored, "neighbors": entries / n - 1.0, "halo": halo, "bytes": nbytes,
            "halo_bytes_per_iteration": 24 * halo, "halo_messages_per_iteration": 3 * pairs,
            "predicted_bytes": sent, "predicted_messages": messages,
        }  # fmt: skip


class DenseSystem:
    """The dense system of few points, factored on every rank; construction is collective.

    Notes
    -----
    n^3/3 flops and 16 n^2 bytes on every rank; a solution gathers n numbers per right-hand side. The residual is that
    of the first 8 right-hand sides.
    """

    def __init__(self, field: Field, noise: NDArray[np.float64], correlation: Correlation) -> None:
        self.field, comm = field, field.comm
        points = field.owned
        all_points = comm.allgather(np.column_stack([points.X, noise[: field.n_owned], points.place]))
        self._order = np.argsort(all_points[:, -1], kind="stable")
        all_points = all_points[self._order]
        counts = comm.allgather(np.array([field.n_owned], np.int64))
        self._mine = slice(int(counts[: comm.rank].sum()), int(counts[: comm.rank + 1].sum()))
        self.X, self.noise = np.ascontiguousarray(all_points[:, :-2]), all_points[:, -2]
        self._K = correlation.matrix(self.X, self.X)
        self._K[np.diag_indices(len(self._K))] = 1.0 + self.noise
        with comm.agreed():
            try:
                self._factor = cho_factor(self._K, lower=True, check_finite=False)
            except LinAlgError:
                raise InputError(SINGULAR) from None

    def solve(self, B: Vectors, tol: float, checkpoint: Unfinished | None = None) -> tuple[Vectors, float]:
        """See :meth:`KrigingSystem.solve`; there is no state to save."""
        all_B = self.field.comm.allgather(np.ascontiguousarray(B.T))[self._order]
        X = cho_solve(self._factor, all_B, check_finite=False)
        B_checked, X_checked = all_B[:, :_CHECKED], X[:, :_CHECKED]  # a product with K costs as much as a solution
        size = np.linalg.norm(B_checked, axis=0)
        worst = float(
            (np.linalg.norm(B_checked - self._K @ X_checked, axis=0) / np.where(size > 0, size, 1.0)).max(initial=0.0)
        )
        with self.field.comm.agreed():
            if not worst <= max(tol, _ACCURATE):
                raise InputError(
                    f"the covariance matrix is nearly singular: its solution has a relative residual of {worst:.1e}, "
                    f"above {max(tol, _ACCURATE):g}; give a --nugget above 0, a smaller range, or a larger --tol"
                )
        home = np.empty_like(X)
        home[self._order] = X
        return np.ascontiguousarray(home[self._mine].T), worst

    def facts(self) -> dict[str, object]:
        """Entries of the report."""
        return {"solver": "cholesky", "iterations": [0], "pairs": len(self.X) ** 2, "bytes": self._K.nbytes}
