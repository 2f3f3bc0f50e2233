"""A coarse model of all rows: kernel ridge regression on M centres, from one Allreduce, and its variance.

f(x) = sum_j beta_j k(x, z_j) minimises sum_i (f(x_i) - y_i)^2 + lambda n |f|^2, so that
(K_nM^T K_nM + lambda n K_MM) beta = K_nM^T y (Smola and Schoelkopf, 2000; Rudi, Camoriano and Rosasco, 2015).
With K_MM = L L^T and W = K_nM L^-T this is (W^T W + lambda n I) L^T beta = W^T y, whose condition number is at most 1 +
|W^T W| / (lambda n). Forming K_nM^T K_nM instead would lose half of the digits, too many for small lambdas. Where
lambda is so small that this loses too many as well, a triangle of K_nM replaces it: from a condition of :data:`WORST`
on, which is up to max k(x,x) / lambda, the rows of K_nM are folded into triangles (:mod:`cacore.linalg.tsqr`), whose
condition is the square root of that. Each rank sums its rows' share of W^T W, and one Allreduce of M x M + M numbers
adds the shares (M x M + 3 M if validation rows are summed separately; M x M + (2 t + 1) M for t targets).

The predictive variance of f(x) = beta^T k(x), with k(x) = K(centers, x), comes from the same factor. The coefficients
have the prior covariance s^2 K_MM^-1, and the targets have the noise variance v = s^2 lambda n. So f(x) has the
variance

    v k^T (K_Mn K_nM + lambda n K_MM)^-1 k,

known from the subset-of-regressors approximation (Smola and Bartlett, 2001; Quinonero-Candela and Rasmussen, 2005,
eq. 16b). With K_MM = L L^T, W = K_nM L^-T and F F^T = W^T W + lambda n I, the variance is v |F^-1 L^-1 k|^2.

It does not include what lies outside the span of the centres; the parts' models account for that. v is estimated as in
generalised cross-validation (Golub, Heath and Wahba, 1979): the sum of the squared residuals over
n - tr(W F^-T F^-1 W^T). The coarse model treats its whole residual as noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import AnyRows, Rows, gather_rows
from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint
from cacore.kernels import Kernel, Points
from cacore.linalg import lapack, tsqr
from cacore.machine import memory, threads
from cacore.svm.decision import Expansion
from cakrr.options import CoarseGrid, Width
from cakrr.solver.nystrom import PointSystem
from partition.redistribute import Parts

WORST = 1e12  # condition from which the triangle is taken: normal equations keep 4 of 16 digits there
_ROWS_OF_TRIANGLE = 2048  # rows of K_nM per block


def asked(parts: Parts, kernel: Kernel, lam: float, comm: Communicator) -> bool:
    """True if normal equations with this lambda might have a condition above :data:`WORST`; collective.

    False if kernel values overflow: there is no solution then.
    """
    largest = 0.0
    for lo, hi in threads.blocks(len(parts), 8 * _ROWS_OF_TRIANGLE):
        largest = max(largest, float(np.abs(kernel.diagonal(parts.X[lo:hi])).max()))
    with comm.uncounted():
        largest = float(comm.allreduce(np.array([largest]), "max")[0])
    return WORST * lam < largest < np.inf


def coefficients(
    parts: Parts, held: NDArray[np.bool_], centers: Rows, kernel: Kernel, L: NDArray[np.float64], Ms: list[int],
    lams: tuple[float, ...], comm: Communicator,
) -> Fitted:  # fmt: skip
    """Coefficients for every M and lambda, from the learning rows and from all rows; collective.

    Parameters
    ----------
    parts, held : see :func:`candidates`
    centers : ndarray or CSR, shape (M, d)
    kernel : Kernel
    L : ndarray, shape (M, M)
        Cholesky factor of K_MM.
    Ms : list of int
    lams : tuple of float
    comm : Communicator

    Returns
    -------
    learned, whole : ndarray, shape (len(Ms) len(lams), M, t)
        Those of fewer centres are followed by zeros.

    Notes
    -----
    2 n M^2 flops, shared by the ranks, and 2/3 M^3 per candidate on each; two trees of triangles, over the ranks.
    """
    t = int(np.prod(parts["y"].shape[1:]))
    leaves = 1 << (comm.size - 1).bit_length()
    mine = int(np.flatnonzero(tsqr.owners(leaves, comm.size) == comm.rank)[0])
    triangles = []
    for rows in (np.flatnonzero(~held), np.flatnonzero(held)):

        def blocks(leaf: int, skipped: int, rows: NDArray[np.int64] = rows) -> Iterator[NDArray[np.float64]]:
            return _blocks(parts, rows, centers, kernel) if leaf == mine else iter(())

        triangles.append(tsqr.tsqr(blocks, len(L), t + 1, leaves, comm))
    learning, held_out = triangles
    systems = [PointSystem.of(triangle, L) for triangle in (learning, _stacked_triangle(learning, held_out))]
    learned, whole = (_solutions(system, Ms, lams) for system in systems)
    return learned, whole if held_out.rows else learned


def _blocks(parts: Parts, rows: NDArray[np.int64], centers: Rows, kernel: Kernel) -> Iterator[NDArray[np.float64]]:
    """Blocks [K y 1] of these rows, times the roots of their weights."""
    right, M = kernel.points(centers), centers.shape[0]
    y = parts["y"].reshape(len(parts), int(np.prod(parts["y"].shape[1:])))
    weights = parts.row_weights()
    for lo, hi in threads.blocks(len(rows), _ROWS_OF_TRIANGLE):
        chosen = rows[lo:hi]
        out = np.empty((hi - lo, M + y.shape[1] + 1))
        kernel.fill(kernel.points(parts.X[chosen].astype(np.float64), like=right), right, out[:, :M])
        out[:, M:-1], out[:, -1] = y[chosen], 1.0
        yield out * np.sqrt(weights[chosen])[:, None]


def _stacked_triangle(first: tsqr.Triangle, second: tsqr.Triangle) -> tsqr.Triangle:
    """Triangle of the rows of both."""
    squares = [
        np.hstack([np.vstack([t.R, np.zeros((len(t.s), len(t.R)))]), np.vstack([t.q, t.s])]) for t in (first, second)
    ]
    M, whole = len(first.R), tsqr.stacked(*squares)
    return tsqr.Triangle(whole[:M, :M], whole[:M, M:], whole[M:, M:], first.rows + second.rows)


def _solutions(system: PointSystem, Ms: list[int], lams: tuple[float, ...]) -> NDArray[np.float64]:
    out = np.zeros((len(Ms) * len(lams), *system.q.shape))
    for i, (M, lam) in enumerate((M, lam) for M in Ms for lam in lams):
        beta, _ = system.leading(M).solve(lam)
        out[i, :M] = beta
        if not np.isfinite(beta).all():
            out[i] = np.nan
    return out


_ROWS = 2048  # rows of K_nM per block
_REASON = (
    "the coarse model was fitted by a triangle of its kernel values: at the smallest --coarse-lambda, normal equations "
    "might lose 12 of 16 digits"
)
_JITTER = 1e-14  # times the trace of K_MM: added to its diagonal if it has no Cholesky factor, as with equal centres


@dataclass
class CoarseModel:
    """Centres, in standardised features, their coefficients, and the kernel, whose width is `sigma`.

    Attributes
    ----------
    refined : bool
        True if all rows are centres, and the coefficients come from iterations, not from a factorisation.
    factor : ndarray, shape (M (M + 1) / 2,), or None
        Packed triangle of the least-squares problem (:mod:`cakrr.solver.nystrom`), if it is stored.
    unit : ndarray, shape (1,) or (t,), or None
        Unit of the variances, with `factor`.
    weight : float
        Sum of the row weights, with `factor`.
    rows : int
        Number of rows, with `factor`.
    """

    centers: Rows
    beta: NDArray[np.float64]
    sigma: float
    lam: float
    kernel: Kernel = field(default_factory=Kernel)
    refined: bool = False
    factor: NDArray[np.float64] | None = None
    unit: NDArray[np.float64] | None = None
    weight: float = 0.0
    rows: int = 0

    def expansion(self, offset: NDArray[np.float64]) -> Expansion:
        """The model as a function, with this offset of each target."""
        beta = np.asarray(self.beta, np.float64).reshape(len(self.beta), -1)
        return Expansion(self.centers, beta, offset, self.kernel.with_sigma(self.sigma))

    def predict(self, X: AnyRows) -> NDArray[np.float64]:
        """Predictions ``K(X, centers) beta`` in double precision, by blocks: 2 len(X) M (d + t) flops for t targets."""
        return _apply(X, self.centers, self.kernel.with_sigma(self.sigma), self.beta)


@dataclass
class Candidates:
    """Coarse models, one for every (M, sigma, lambda) that was tried.

    Attributes
    ----------
    centers : ndarray or CSR, shape (M_max, d)
        A candidate with M centres uses the first M.
    settings : list of (M, width, lambda)
    learned, whole : ndarray, shape (len(settings), M_max) or (len(settings), M_max, t)
        Coefficients from the rows that are not held out, and from all rows.
    reasons : list of str
        Explanation of triangles in place of normal equations, if any; one sentence.
    """

    centers: Rows
    settings: list[tuple[int, Width, float]]
    learned: NDArray[np.float64]
    whole: NDArray[np.float64]
    reasons: list[str] = field(default_factory=list)

    def predictions(self, X: AnyRows) -> NDArray[np.float64]:
        """Predictions of the models `learned`, shape (n, len(settings), ...); forms K(X, centers) once per width."""
        out = np.empty((X.shape[0], len(self.settings), *self.learned.shape[2:]))
        for width in dict.fromkeys(width for _, width, _ in self.settings):
            columns = [c for c, (_, of, _) in enumerate(self.settings) if of == width]
            beta = np.ascontiguousarray(self.learned[columns].swapaxes(0, 1))
            flat = _apply(X, self.centers, width.kernel, beta.reshape(len(beta), -1))
            out[:, columns] = flat.reshape(len(flat), *beta.shape[1:])
        return out

    def facts(self, c: int, several: bool) -> dict[str, object]:
        """Entries of the report about the c-th candidate; `several` is True if the kernel is chosen, too."""
        M, width, lam = self.settings[c]
        kernel = {"coarse_kernel": width.like.kind} if several else {}
        return {"centers": M, **kernel, "coarse_sigma": width.sigma, "coarse_lambda": lam}

    def chosen(self, c: int, learned: bool = False) -> CoarseModel:
        """The model of the c-th candidate, trained on all rows or, if `learned`, on those not held out."""
        M, width, lam = self.settings[c]
        beta = (self.learned if learned else self.whole)[c, :M].copy()
        return CoarseModel(self.centers[:M].copy(), beta, width.sigma, lam, width.like)


def candidates(
    parts: Parts,
    held: NDArray[np.bool_],
    sets: CoarseGrid,
    limit: int,
    checkpoint: Checkpoint | None,
    comm: Communicator,
    piece: str = "coarse",
) -> Candidates:
    """Train the candidate coarse models on all ranks' rows; collective.

    Parameters
    ----------
    parts : Parts
        Rows with the columns "y" (centred targets, one or more per row), "order" (the row's place in the shuffled
        order) and, optionally, "weight".
    held : ndarray of bool, shape (n_local,)
        Validation rows: left out of `learned`, used for `whole`.
    sets : list of (width, numbers of centres, lambdas)
        Candidates; numbers of centres are ascending.
    limit : int
        Memory limit of this rank, in bytes.
    checkpoint : Checkpoint or None
    comm : Communicator
    piece : str
        Name of the candidates in the checkpoint.

    Returns
    -------
    Candidates

    Raises
    ------
    MemoryLimitError
        On all ranks.

    Notes
    -----
    n_local M^2 flops per sigma, and M^3 per candidate, the latter repeated on all ranks. The centres are sent to all
    ranks (M d numbers, phase "partition"); one Allreduce of M x M + 3 M numbers per sigma, plus 2 (phase "train").
    """
    tried = [(M, width, lam) for width, Ms, lams in sets for M in Ms for lam in lams]
    largest = max(Ms[-1] for _, Ms, _ in sets)
    with comm.agreed():
        memory.require(memory_bytes(sets), limit, f"a coarse model of {largest:,} centers", "use fewer --centers")
    with comm.phase("partition"):
        centers = _centers(parts, largest, comm)
    steep = [asked(parts, width.kernel, min(lams), comm) for width, _, lams in sets]
    with comm.agreed():
        stored = checkpoint.get(piece) if checkpoint is not None else None
    done = comm.all(stored is not None)
    if stored is not None and done:
        learned, whole = stored["learned"], stored["whole"]
    else:
        fitted = _fitted(parts, held, centers, sets, steep, comm)
        kinds = parts["y"].shape[1:]
        padded = ([np.pad(beta, ((0, 0), (0, largest - beta.shape[1]), (0, 0))) for beta in pair] for pair in fitted)
        learned, whole = (np.concatenate(rows).reshape(-1, largest, *kinds) for rows in zip(*padded, strict=True))
        if checkpoint is not None and comm.rank == 0:
            checkpoint.put(piece, learned=learned, whole=whole)
    # Drop candidates without a solution, so that the others can still be compared.
    solved = np.isfinite(learned) & np.isfinite(whole)
    good = comm.bcast(np.flatnonzero(solved.reshape(len(tried), -1).all(axis=1)))
    with comm.agreed():
        if not good.size:
            raise InputError("no coarse model could be solved: its lambda is too small; use a larger --coarse-lambda")
    return Candidates(centers, [tried[c] for c in good], learned[good], whole[good], [_REASON] * any(steep))


def memory_bytes(sets: CoarseGrid) -> int:
    """Bytes that a rank needs for the candidates of :func:`candidates`; 0 if there are none."""
    largest = max((Ms[-1] for _, Ms, _ in sets), default=0)
    return 8 * (sum(2 * Ms[-1] ** 2 for _, Ms, _ in sets) + 3 * largest**2 + 2 * largest * _ROWS)


Fitted = tuple[NDArray[np.float64], NDArray[np.float64]]  # learned and whole of one width


def _fitted(
    parts: Parts, held: NDArray[np.bool_], centers: Rows, sets: CoarseGrid,
    steep: list[bool], comm: Communicator,
) -> list[Fitted]:  # fmt: skip
    """Coefficients of every width: from normal equations, in one Allreduce, or, if `steep`, from triangles."""
    with comm.phase("train"):
        factors = [factor_of(centers[: Ms[-1]], width.kernel) for width, Ms, _ in sets]
        shares = [
            np.zeros(0) if apart else _normal_equations(parts, held, centers[: Ms[-1]], width.kernel, L)
            for (width, Ms, _), L, apart in zip(sets, factors, steep, strict=True)
        ]
        weights = parts.row_weights()
        totals = np.array([weights[~held].sum(), weights[held].sum()])
        ends = np.cumsum([share.size for share in shares])
    comm.wait()
    with comm.phase("train"):
        *sums, totals = np.split(comm.allreduce(np.concatenate([*(share.ravel() for share in shares), totals])), ends)
        return [
            coefficients(parts, held, centers[: Ms[-1]], width.kernel, L, Ms, lams, comm)
            if apart else _solve(L, packed.reshape(-1, len(L)), totals, Ms, lams)
            for (width, Ms, lams), L, packed, apart in zip(sets, factors, sums, steep, strict=True)
        ]  # fmt: skip


def _centers(parts: Parts, M: int, comm: Communicator) -> Rows:
    """The last M rows of the shuffled order, in reverse: a random sample. :mod:`cakrr.methods.refined` relies on it.

    A validation row that is also a centre would bias the choice of the coarse model. The validation rows are the first
    ones of each part, so none is a centre unless M or the number of parts is a large share of n.
    """
    order, n = parts["order"], int(parts.sizes.sum())
    last = np.flatnonzero(order >= n - M)
    gathered, places = gather_rows(parts.X[last], comm), comm.allgather(order[last])
    return gathered[np.argsort(-places)].astype(np.float64)


def factor_of(centers: Rows, kernel: Kernel) -> NDArray[np.float64]:
    """Cholesky factor of K_MM, whose diagonal grows until it exists, since rounding and equal centres may prevent it.

    NaN if kernel values are not finite; its candidates are then NaN, too.
    """
    L = np.empty((centers.shape[0],) * 2)
    points, added, diagonal = kernel.points(centers), 0.0, L.reshape(-1)[:: len(L) + 1]
    while np.isfinite(added):
        kernel.gram(points, L)
        size = float(np.abs(diagonal).sum()) or 1.0
        diagonal += added
        if lapack.cholesky(L) == 0:
            return L
        added = 10 * added or _JITTER * size
    L.fill(np.nan)
    return L


def _normal_equations(
    parts: Parts, held: NDArray[np.bool_], centers: Rows, kernel: Kernel, L: NDArray[np.float64]
) -> NDArray[np.float64]:
    """This rank's W^T W and W^T y for learning rows and for held-out rows, packed into shape (M + 1 + 2 t, M).

    The two symmetric matrices share the first M + 1 rows: that of the held-out rows takes the upper triangle, that of
    the learning rows the lower triangle, one row further down.
    """
    M = len(L)
    G, r = _products(parts, np.flatnonzero(~held), centers, kernel, L)
    packed = np.zeros((M + 1 + 2 * len(r), M))
    packed[1 : M + 1], packed[M + 1 : M + 1 + len(r)] = np.tril(G), r
    G, packed[M + 1 + len(r) :] = _products(parts, np.flatnonzero(held), centers, kernel, L)
    packed[:M] += np.tril(G).T
    return packed


def projected(
    X: AnyRows, rows: NDArray[np.int64], kernel: Kernel, points: Points, L: NDArray[np.float64],
    roots: NDArray[np.float64] | None = None,
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:  # fmt: skip
    """Yield blocks of `rows` with their W = K(X, centers) L^-T, times `roots`; the next block overwrites W."""
    buffer = np.empty((min(_ROWS, len(rows)), len(L)))
    for lo, hi in threads.blocks(len(rows), _ROWS):
        chosen = rows[lo:hi]
        new_points, W = kernel.points(X[chosen].astype(np.float64), like=points), buffer[: hi - lo]
        kernel.fill(new_points, points, W)
        if roots is not None:
            W *= roots[chosen][:, None]
        lapack.solve_lower(L, W)
        yield chosen, W


def _products(
    parts: Parts, rows: NDArray[np.int64], centers: Rows, kernel: Kernel, L: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """W^T W, in the lower triangle, and y^T W, shape (t, M), for the W of `rows`."""
    M = len(L)
    right = kernel.points(centers)
    G, kinds = np.zeros((M, M)), parts["y"].shape[1:]
    r = np.zeros((int(np.prod(kinds)), M))
    y = parts["y"].reshape(len(parts), len(r))
    roots = np.sqrt(parts.columns["weight"]) if "weight" in parts.columns else None
    for block, W in projected(parts.X, rows, kernel, right, L, roots):
        target = y[block].astype(np.float64)
        if roots is not None:
            target *= roots[block][:, None]
        lapack.add_gram(W, G)
        # Not numpy's matmul: the threads of its BLAS would keep spinning while scipy's work.
        if len(r) == 1:
            r[0] += np.einsum("ij,i->j", W, target[:, 0])
        else:
            lapack.add_product(target, W, r)
    return G, r


@np.errstate(invalid="ignore")  # kernel values may have overflowed: the solution is then NaN
def _solve(
    L: NDArray[np.float64], packed: NDArray[np.float64], weight: NDArray[np.float64], Ms: list[int],
    lams: tuple[float, ...],
) -> Fitted:  # fmt: skip
    """Coefficients for every M and lambda, from the learning rows and from all rows."""
    M = len(L)
    G = np.tril(packed[1 : M + 1])
    learning, held = np.split(packed[M + 1 :], 2)
    first = _coefficients(L, G, learning, weight[0], Ms, lams)
    if not weight[1]:
        return first, first
    G += np.triu(packed[:M]).T
    return first, _coefficients(L, G, learning + held, weight.sum(), Ms, lams)


def _coefficients(
    L: NDArray[np.float64], G: NDArray[np.float64], r: NDArray[np.float64], weight: float, Ms: list[int],
    lams: tuple[float, ...],
) -> NDArray[np.float64]:  # fmt: skip
    """Solve (G + lambda w I) L^T beta = r for each M, with the leading blocks of L, G and r, and each lambda.

    `r` has shape (t, M), and the coefficients have shape (len(Ms) len(lams), len(L), t).
    """
    out = np.zeros((len(Ms) * len(lams), len(L), len(r)))
    for i, (M, lam) in enumerate((M, lam) for M in Ms for lam in lams):
        A = G[:M, :M].copy(order="C")
        A.reshape(-1)[:: M + 1] += lam * weight
        if lapack.cholesky(A) != 0:
            out[i] = np.nan
        else:
            x = r[:, :M].copy()
            lapack.cholesky_solve(A, x)
            beta = x[0] if len(x) == 1 else x.T
            beta = scipy.linalg.solve_triangular(L[:M, :M], beta, trans="T", lower=True, check_finite=False)
            out[i, :M] = beta.reshape(M, -1)
    return out


def _apply(X: AnyRows, centers: Rows, kernel: Kernel, beta: NDArray[np.float64]) -> NDArray[np.float64]:
    right, out = kernel.points(centers), np.empty((X.shape[0], *beta.shape[1:]))
    for lo, hi in threads.blocks(X.shape[0], 8 * _ROWS):  # in double precision: not all rows at once
        out[lo:hi] = kernel.apply(kernel.points(X[lo:hi].astype(np.float64), like=right), right, beta)
    return out


@dataclass(eq=False)
class CoarseVariance:
    """Predictive variance of a coarse model, and the Cholesky factors it is computed from.

    Attributes
    ----------
    points : Points
        The centres, ready for the kernel.
    kernel : Kernel
    L, F : ndarray of float64, shape (M, M)
        Cholesky factors, in the lower triangles; the entries above the diagonals are undefined.
    unit : float or ndarray, shape (t,)
        The noise variance v, times the mean row weight.
    """

    points: Points
    kernel: Kernel
    L: NDArray[np.float64]
    F: NDArray[np.float64]
    unit: float | NDArray[np.float64]

    def __call__(self, X: AnyRows) -> NDArray[np.float64]:
        """Variance of the prediction at each row of `X`, shape (n,) or (n, t); 2 n M^2 flops."""
        explained = np.empty(X.shape[0])
        for block, W in projected(X, np.arange(X.shape[0]), self.kernel, self.points, self.L):
            lapack.solve_lower(self.F, W)
            explained[block] = np.einsum("ij,ij->i", W, W)
        variance: NDArray[np.float64] = np.multiply.outer(explained, self.unit)
        return variance


class CoarseSums:
    """Sums over rows from which the variance of a coarse model is computed; they add up over ranks.

    Attributes
    ----------
    gram : ndarray, shape (M, M)
        W^T W over the weighted rows, in the lower triangle.
    squares : ndarray, shape (max(1, t),)
        Weighted sum of squared residuals, per target.
    weight, rows : float
        Sum of the weights, and number of rows.
    """

    def __init__(self, coarse: CoarseModel, targets: tuple[int, ...]) -> None:
        self.coarse, self.targets = coarse, targets
        self.kernel = coarse.kernel.with_sigma(coarse.sigma)
        centers = coarse.centers.astype(np.float64)
        self.points, self.L = self.kernel.points(centers), factor_of(centers, self.kernel)
        self.gram = np.zeros_like(self.L)
        self.squares, self.weight, self.rows = np.zeros(int(np.prod(targets))), 0.0, 0.0

    def add(self, X: AnyRows, residuals: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
        """Add rows, given the coarse model's residuals and the sample weights; m M^2 flops for m rows."""
        for _, W in projected(X, np.arange(len(weights)), self.kernel, self.points, self.L, np.sqrt(weights)):
            lapack.add_gram(W, self.gram)
        self.squares += weights @ np.square(residuals.reshape(len(weights), -1))
        self.weight, self.rows = self.weight + float(weights.sum()), self.rows + len(weights)

    def packed(self) -> NDArray[np.float64]:
        """All sums in one array, shape (M^2 + max(1, t) + 2,); the arrays of several sets of rows may be added."""
        return np.concatenate([np.tril(self.gram).ravel(), self.squares, [self.weight, self.rows]])

    def variance(self, packed: NDArray[np.float64]) -> CoarseVariance | None:
        """Variance from `packed` sums over all rows; None if the Cholesky factorisation fails. M^3 flops."""
        M = len(self.L)
        F, squares = packed[: M * M].reshape(M, M).copy(), packed[M * M : -2]
        weight, rows = packed[-2:]
        ridge = self.coarse.lam * weight
        F.reshape(-1)[:: M + 1] += ridge
        if lapack.cholesky(F) != 0:
            return None
        free = M - ridge * lapack.diagonal_of_inverse(F).sum()
        # A row of weight w has noise variance v mean(w) / w, so squares and W^T W are weighted by w / mean(w).
        unit = squares / max(1.0, rows - free)
        return CoarseVariance(self.points, self.kernel, self.L, F, unit if self.targets else float(unit[0]))
