"""Preconditioner (F F^T + B)^-1 for every ridge, and the distributed rows that it is made of.

F is a low-rank factor of K, and B is mu I, or blocks(K - F F^T) + mu I for blocks of rows of one rank. By Woodbury's
identity

    (F F^T + B)^-1 r = B^-1 r - B^-1 F (I + F^T B^-1 F)^-1 F^T B^-1 r:

products with F, solves with the blocks, and one solve with a core of k x k numbers. Only the blocks and the core depend
on the ridge. One Allreduce of k numbers per right side.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows, is_sparse, largest_size, largest_usable, shifted
from cacore.errors import InputError
from cacore.kernels import Kernel, Points
from cacore.kernels.precision import Extent, rounding
from cacore.linalg import lapack
from cacore.linalg.cg import Vectors
from cacore.machine.clock import working_time
from cacore.machine.memory import Scratch
from cacore.machine.threads import blocks, for_blocks, in_order, one_blas_thread

# Error of a kernel value in single precision above which products with it gain nothing, and below which a factor is
# good enough whatever the ridge. Standardised rows are below; kernels of |x-z| err by more only for nearly equal rows.
COARSE, ORDINARY = 3e-2, 1e-4
FINE = 1e-8  # lambda, relative to the kernel values, below which a low-rank factor is in double precision


class SpreadRows:
    """The n rows of a system, each on the rank that read it; the construction is collective.

    Parameters
    ----------
    X : ndarray or CSR, shape (n_local, d)
        This rank's rows; not changed.
    number : ndarray of int64, shape (n_local,)
        Places of these rows among the n rows, independent of the number of ranks.
    like : Kernel
        The kernel, with any width.
    comm : Communicator
        The ranks on which the rows lie; products with these rows take them from here.
    weights : ndarray, shape (n_local,), optional
        Positive sample weights w.
    mean : float, optional
        Their mean, by default that of these rows.

    Attributes
    ----------
    counts : ndarray of int64, shape (R,)
        Number of rows on each rank.
    scale : ndarray, shape (n_local,), or None
        sqrt(w / mean(w)). With S = diag(scale), the system of S K S has the ridge lambda n for every row.
    single : bool
        True if kernel values may be in single precision: the kernel is compiled, and single precision holds the rows.

    Notes
    -----
    One Allgather of one number; one Allreduce of d + 1 numbers for the common shift, if distances are computed from
    inner products; one of 2 for the weights.
    """

    def __init__(
        self, X: Rows, number: NDArray[np.int64], like: Kernel, comm: Communicator,
        weights: NDArray[np.float64] | None = None, mean: float | None = None,
    ) -> None:  # fmt: skip
        self.X, self.number, self.comm, self.like = X, number, comm, like
        self.counts = comm.allgather(np.array([X.shape[0]], np.int64), np.ones(comm.size, np.int64))
        self.n = int(self.counts.sum())
        self.shift: NDArray[np.float64] | None = None
        if like.shifts:
            total = X.astype(np.float64).sum(axis=0) if is_sparse(X) else X.sum(axis=0, dtype=np.float64)
            middle = comm.allreduce(np.ravel(np.asarray(total))) / max(1, self.n)
            self.shift = self._stored(middle) if is_sparse(X) else middle
        self.scale: NDArray[np.float64] | None = None
        if weights is not None:
            mean = comm.allreduce(np.array([weights.sum()]))[0] / self.n if mean is None else mean
            self.scale = np.sqrt(weights / mean)
        self.single = like.compiled and comm.all(largest_size(X) <= largest_usable(np.float32))
        self._points: dict[str, Points] = {}
        self._extent: Extent | None = None

    def _stored(self, middle: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """The shift of CSR rows: their mean in the features that all rows store; None if there are none. Collective.

        Other features stay sparse.
        """
        assert is_sparse(self.X)
        full = np.bincount(self.X.indices, minlength=len(middle)) == self.X.shape[0]
        with self.comm.uncounted():
            stored_by_all = self.comm.allreduce(full.astype(np.int64), "min") > 0
        return np.where(stored_by_all, middle, 0.0) if stored_by_all.any() else None

    def rounding(self, kernel: Kernel) -> float:
        """Bound on the error of a kernel value in single precision over all pairs of rows; collective."""
        if self._extent is None:
            extent = Extent.of(self.X, self.shift)
            with self.comm.uncounted():
                self._extent = extent.over_ranks(self.comm.allreduce(extent.norms, "max"))
        return rounding(kernel, self._extent, np.float32, kernel.measure(is_sparse(self.X)))

    def holds_single(self, kernel: Kernel) -> bool:
        """True if single precision holds the values of this kernel; collective."""
        if not (self.single and kernel.fits(np.float32)):
            return False
        good = not kernel.of_distance or self.rounding(kernel) <= COARSE
        if not kernel.of_distance:
            try:
                kernel.largest(self.X, np.float32)
            except InputError:
                good = False
        return self.comm.all(good)

    def factor_dtype(self, kernel: Kernel, mu: float) -> np.dtype[np.floating]:
        """Type of a low-rank factor for the ridge `mu`: single precision if its rounding error is small beside `mu`.

        The errors of n^2 kernel values, each below a bound, have a spectral norm of about sqrt(n) times the bound.
        Collective.
        """
        enough_digits = mu >= FINE * self.n * float(self.diagonal(kernel).max(initial=0.0))
        if kernel.of_distance and kernel.compiled:
            error, ordinary = self.rounding(kernel), COARSE if kernel.declared.of_length else ORDINARY
            enough_digits &= error <= ordinary or error * np.sqrt(self.n) <= mu
        single = self.holds_single(kernel) and self.comm.all(enough_digits)
        return np.dtype(np.float32 if single else np.float64)

    def points(self, dtype: DTypeLike) -> Points:
        """This rank's rows in this precision."""
        name = np.dtype(dtype).name
        if name not in self._points:
            self._points[name] = self.ready(self.X, dtype)
        return self._points[name]

    def ready(self, X: Rows, dtype: DTypeLike) -> Points:
        """Prepare any rows in this precision, with the shift of this system's rows."""
        X = shifted(X.astype(np.float64, copy=False), self.shift)  # so that only the difference is rounded
        return Points(X.astype(dtype, copy=False))

    def diagonal(self, kernel: Kernel) -> NDArray[np.float64]:
        """Diagonal of S K S, shape (n_local,)."""
        values = kernel.diagonal(self.X)
        return values if self.scale is None else values * self.scale**2

    def scaled(self, V: NDArray[np.float64]) -> NDArray[np.float64]:
        """Columns of `V`, shape (t, n_local), times S."""
        return V if self.scale is None else V * self.scale


_COLUMNS = 2048  # rows of the system per block, which one thread multiplies
_TILE = 512  # columns of F on each side of a tile of its Gram matrix
_CHUNK = 1024  # columns of F whose products are summed in the precision of F


@dataclass
class Factor:
    """F^T of this rank's rows, shape (k, n_local), and its products with vectors, on all threads."""

    rows: NDArray[np.floating]
    scratch: Scratch | None = None  # the file that holds the rows, if they are not in memory

    def onto(self, V: Vectors) -> NDArray[np.float64]:
        """``V F``, summed over this rank's rows, shape (t, k)."""
        F, dtype = self.rows, self.rows.dtype

        def work(lo: int, hi: int) -> NDArray[np.floating]:
            return np.asarray(F[:, lo:hi] @ np.ascontiguousarray(V[:, lo:hi].T, dtype))

        begun, total = working_time(), np.zeros((len(F), len(V)))
        with in_order(work, blocks(F.shape[1], _COLUMNS)) as parts:
            for part in parts:
                total += part
        if self.scratch is not None:
            self.scratch.count(F.nbytes, working_time() - begun)
        return np.ascontiguousarray(total.T)

    def back(self, C: NDArray[np.float64]) -> Vectors:
        """``C F^T`` for this rank's rows, shape (t, n_local)."""
        F, out = self.rows, np.zeros((len(C), self.rows.shape[1]))
        small = np.ascontiguousarray(C, F.dtype)

        def work(lo: int, hi: int) -> None:
            for at, end in blocks(len(F), _CHUNK):
                out[:, lo:hi] += small[:, at:end] @ F[at:end, lo:hi]

        for_blocks(work, blocks(F.shape[1], _COLUMNS))
        return out

    def gram(self) -> NDArray[np.float64]:
        """``F^T F`` of this rank's rows, shape (k, k), in double precision: its lower triangle, by tiles."""
        F, (k, n) = self.rows, self.rows.shape
        G, sides = np.zeros((k, k)), blocks(k, _TILE)

        def work(i: tuple[int, int], j: tuple[int, int]) -> None:
            tile = G[slice(*i), slice(*j)]
            for lo, hi in blocks(n, _COLUMNS):
                part_i, part_j = (F[slice(*side), lo:hi].astype(np.float64) for side in (i, j))
                tile += part_i @ part_j.T

        for_blocks(work, [(i, j) for i in sides for j in sides if j <= i])
        return G


class ResidualBlocks:
    """Cholesky factors of blocks(K - F F^T) + mu I of this rank's rows, for one ridge after the other.

    Parameters
    ----------
    parts : list of ndarray of int64
        Rows of each block; together all rows of this rank.
    values : list of ndarray
        The blocks of K - F F^T, shape (m, m), in their lower triangles.
    """

    def __init__(self, parts: list[NDArray[np.int64]], values: list[NDArray[np.float64]]) -> None:
        self.parts, self._values = parts, values

    def factored(self, mu: float) -> list[NDArray[np.float64]] | None:
        """Cholesky factors of the blocks at this ridge, m^3/3 flops each; None if a block is not positive definite."""
        factors = []
        for values in self._values:
            L = values.copy()
            L.reshape(-1)[:: len(L) + 1] += mu
            if lapack.cholesky(L) != 0:
                return None
            factors.append(L)
        return factors

    def solve(self, factors: list[NDArray[np.float64]], V: Vectors) -> Vectors:
        """Multiply each row of `V` by B^-1."""
        out = np.empty_like(V)

        def work(rows: NDArray[np.int64], L: NDArray[np.float64]) -> None:
            part = np.ascontiguousarray(V[:, rows])
            lapack.cholesky_solve(L, part)
            out[:, rows] = part

        for_blocks(work, zip(self.parts, factors, strict=True))
        return out

    def gram(self, factors: list[NDArray[np.float64]], factor: Factor) -> NDArray[np.float64]:
        """``F^T B^-1 F`` of this rank's rows, shape (k, k), block by block: 4 k m numbers beside it at a time."""
        G = np.zeros((len(factor.rows),) * 2)
        for rows, L in zip(self.parts, factors, strict=True):
            solved = np.ascontiguousarray(factor.rows[:, rows], np.float64)
            transposed = np.ascontiguousarray(solved.T)
            lapack.cholesky_solve(L, solved)
            lapack.add_product(transposed, np.ascontiguousarray(solved.T), G)
        return G


def residual_blocks(
    spread: SpreadRows, kernel: Kernel, factor: Factor | None, parts: list[NDArray[np.int64]]
) -> ResidualBlocks:
    """Compute the blocks of K - F F^T, or of K without a factor: m^2 kernel values and m^2 k flops per block."""
    points, values = spread.points(np.float64), []
    for rows in parts:
        K = np.empty((len(rows), len(rows)))
        kernel.gram(points[rows], K)
        np.fill_diagonal(K, kernel.diagonal(spread.X[rows]))
        if spread.scale is not None:
            K *= spread.scale[rows][:, None] * spread.scale[rows]
        if factor is not None:
            F = factor.rows[:, rows].astype(np.float64)
            K -= F.T @ F
        values.append(K)
    return ResidualBlocks(parts, values)


@dataclass
class _Ridge:
    """Cholesky factors of the blocks and of the core, for one ridge."""

    blocks: list[NDArray[np.float64]] | None
    core: NDArray[np.float64] | None


class Preconditioner:
    """The preconditioner of all right sides; its construction is collective.

    Parameters
    ----------
    factor : Factor or None
    blocks : ResidualBlocks or None
    ridges : ndarray, shape (t,)
        mu of each right side.
    comm : Communicator

    Attributes
    ----------
    sent : int
        Bytes sent by :meth:`apply` on all ranks, according to its formula.

    Notes
    -----
    n k^2 flops for F^T F and one Allreduce of k^2 numbers, once; k^3/3 flops on every rank per distinct ridge. With
    blocks, m^3/3 flops per block and ridge; with both, also 2 n k (m + k) flops and an Allreduce of k^2 numbers per
    ridge.

    Raises
    ------
    InputError
        On all ranks, if the core has no Cholesky factor since the factor is not finite.
    """

    def __init__(
        self, factor: Factor | None, blocks: ResidualBlocks | None, ridges: NDArray[np.float64], comm: Communicator
    ) -> None:
        self.factor, self.blocks, self.ridges = factor, blocks, ridges
        self._of: dict[float, _Ridge] = {}
        self.sent = 0
        gram = None
        if factor is not None and blocks is None:
            gram = comm.allreduce(factor.gram())
        each = np.unique(ridges).tolist()
        if gram is not None:
            # One core per thread, even for a single core: BLAS threads stall each other when several calls run at once.
            with (
                comm.agreed(),
                one_blas_thread(),
                in_order(partial(_core_factored, gram), [(mu,) for mu in each]) as cores,
            ):
                self._of = {mu: _Ridge(None, core) for mu, core in zip(each, cores, strict=True)}
        else:
            self._of = {mu: self._prepared(mu, comm) for mu in each}

    @property
    def rank(self) -> int:
        """Number of columns of F."""
        return 0 if self.factor is None else len(self.factor.rows)

    def _prepared(self, mu: float, comm: Communicator) -> _Ridge:
        """Factor the blocks, if there are any, and the core of their combination with F."""
        if self.blocks is None:
            return _Ridge(None, None)
        factors = self.blocks.factored(mu)
        if not comm.all(factors is not None):
            return _Ridge(None, None)  # without factors of the blocks, r is not preconditioned
        if self.factor is None or factors is None:
            return _Ridge(factors, None)
        core = comm.allreduce(self.blocks.gram(factors, self.factor))
        with comm.agreed():
            return _Ridge(factors, _core_factored((core + core.T) / 2, 1.0))

    def apply(
        self, R: Vectors, which: NDArray[np.int64], sums: NDArray[np.float64], comm: Communicator
    ) -> tuple[Vectors, NDArray[np.float64]]:
        """See :meth:`cacore.linalg.cg.LinearSystem.precondition`; one Allreduce of k numbers per row, and of `sums`."""
        ridges = self.ridges[which]
        inner = self._inner(R, ridges)
        k = self.rank
        if comm.size > 1:
            self.sent += 8 * comm.size * (k * len(R) + len(sums))
        if self.factor is None:
            return inner, comm.allreduce(sums)
        together = comm.allreduce(np.concatenate([self.factor.onto(inner).ravel(), sums]))
        u, sums = together[: len(R) * k].reshape(len(R), k), together[len(R) * k :]

        def work(mu: float) -> None:
            core, of_ridge = self._of[mu].core, ridges == mu
            if core is None:
                u[of_ridge] = 0.0
                return
            part = np.ascontiguousarray(u[of_ridge])
            lapack.cholesky_solve(core, part)
            # Of B = mu I the core is mu I + F^T F, and u is F^T r / mu.
            u[of_ridge] = part * mu if self.blocks is None else part

        with one_blas_thread():
            for_blocks(work, [(mu,) for mu in np.unique(ridges).tolist()])
        return inner - self._inner(self.factor.back(u), ridges), sums

    def _inner(self, R: Vectors, ridges: NDArray[np.float64]) -> Vectors:
        """Multiply each row by B^-1 of its ridge."""
        if self.blocks is None:
            return np.asarray(R / ridges[:, None])
        out = np.empty_like(R)
        for mu in np.unique(ridges):
            of_ridge, factors = ridges == mu, self._of[float(mu)].blocks
            out[of_ridge] = R[of_ridge] if factors is None else self.blocks.solve(factors, R[of_ridge])
        return out


def _core_factored(gram: NDArray[np.float64], ridge: float) -> NDArray[np.float64]:
    """Cholesky factor of ``gram + ridge I``; the diagonal grows if rounding errors have made the matrix indefinite."""
    size, shift = float(np.trace(gram)) + len(gram) * ridge, 0.0
    while np.isfinite(size) and shift <= size:
        L = gram.copy()
        L.reshape(-1)[:: len(L) + 1] += ridge + shift
        if lapack.cholesky(L) == 0:
            return L
        shift = max(10 * shift, 1e-14 * size)
    raise InputError(
        "the preconditioner's core is not finite, or far from positive definite: "
        "use --preconditioner local, a larger lambda, or features of ordinary size"
    )
