"""Range, sill and nugget of a covariance, estimated from a sample of the points that every rank has.

1. :class:`Sample`: all points, or random ones and blocks of neighbours.
2. A criterion that scores parameters: :class:`Likelihood`, or :class:`LeftOutBlocks`.
3. :func:`estimate`: the search for the parameters of the best score, and their standard deviations.
4. :class:`Variogram`: the sample's semivariances by distance, and the fitted curve, for figures and reports.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.spatial import cKDTree
from scipy.spatial.distance import pdist

from cacore.comm import Communicator
from cacore.data.rows import block_bounds
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.kernels.near import spatial_order
from cacore.machine import threads
from cacore.tuning import choose
from cakriging.counts import MODE_TOL, SEARCH_TOL, Counts, LaplaceMode, Solve, mode
from cakriging.kriging_system import nearest_of_all, regressions
from cakriging.near_matrix import Correlation
from cakriging.windows import NearestEarlier

if TYPE_CHECKING:
    from cacore.io.checkpoint import Kept

# -- the sample ------------------------------------------------------------------------------------------

BLOCKS = 10  # blocks of neighbouring points in a sample


@dataclass
class Sample:
    """Points on every rank, in their shuffled order.

    Half of a sample that is smaller than all points are random points. The other half are 10 blocks of neighbouring
    points, which show the covariance at short distances.

    Attributes
    ----------
    X : ndarray, shape (s, d)
    y : ndarray, shape (s,)
    F : ndarray, shape (s, p)
        Functions of the drift.
    errors : ndarray, shape (s,)
        Known variance of each value's error.
    blocks : int
        Number of points that were sampled as neighbours. They come last, after the random points.
    counts : Counts or None
        Counts, for which `y` and `errors` are working responses and the variances of their errors.
    """

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    F: NDArray[np.float64]
    errors: NDArray[np.float64]
    blocks: int = 0
    counts: Counts | None = None

    @classmethod
    def of(
        cls, X: NDArray[np.float64], values: NDArray[np.float64], place: NDArray[np.int64], n: int, count: int,
        comm: Communicator,
    ) -> Sample:  # fmt: skip
        """All n points, or a sample of at most `count` of them; collective.

        Parameters
        ----------
        X : ndarray, shape (n_local, d)
        values : ndarray, shape (n_local, 2 + p)
            Value, variance of its error, functions of the drift.
        place : ndarray of int64, shape (n_local,)
            Places in the shuffled order.
        n : int
            Number of points on all ranks.
        count : int
            Largest size of the sample, at least 2 `BLOCKS`.

        Notes
        -----
        Every rank receives d + p + 3 numbers per sampled point. A random point that also lies in a block is taken once,
        so a sample has slightly fewer than `count` points.
        """
        near = count // 2 // BLOCKS  # points of a block
        random = n if n <= count else count - BLOCKS * near
        chosen = place < random
        if random < n:
            chosen |= _blocks(X, place, near, comm)
        d = X.shape[1]
        rows = comm.allgather(np.column_stack([place, X, values])[chosen])
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        X, values = np.ascontiguousarray(rows[:, 1 : d + 1]), rows[:, d + 1 :]
        return cls(X, values[:, 0].copy(), values[:, 2:].copy(), values[:, 1].copy(), len(rows) - random)

    def __len__(self) -> int:
        return len(self.X)

    def of_counts(self, likelihood: str, rate: float) -> Sample:
        """The sample with its values as counts, and its variances of errors as exposures."""
        counts = Counts(likelihood, self.y, self.errors, rate)
        z, variance = counts.working(counts.start())
        return replace(self, y=z, errors=variance, counts=counts)

    def part(self, count: int) -> Sample:
        """At most `count` points: the first ones, half of them, and the nearest ones of each of the first 10."""
        if len(self) <= count:
            return self
        near = count // 2 // BLOCKS
        rows = np.zeros(len(self), np.bool_)
        rows[: count - BLOCKS * near] = True
        rows[cKDTree(self.X).query(self.X[:BLOCKS], [*range(1, near + 1)])[1]] = True
        blocks = int(np.count_nonzero(rows)) - (count - BLOCKS * near)
        counts = None if self.counts is None else self.counts.subset(rows)
        return Sample(self.X[rows], self.y[rows], self.F[rows], self.errors[rows], blocks, counts)

    def residual(self) -> NDArray[np.float64]:
        """Values minus their least squares fit by the functions of the drift, shape (s,)."""
        if not self.F.shape[1]:
            return self.y
        return np.asarray(self.y - self.F @ np.linalg.lstsq(self.F, self.y, rcond=None)[0])

    def noise(self, sill: float | None, nugget: float, ratio: float | None) -> NDArray[np.float64]:
        """Variance of each value's noise over the sill; `ratio` of nugget to sill if the sill is unknown."""
        return np.full(len(self), ratio) if ratio is not None else (nugget + self.errors) / (sill or 1.0)


def _blocks(X: NDArray[np.float64], place: NDArray[np.int64], near: int, comm: Communicator) -> NDArray[np.bool_]:
    """True for the `near` points nearest to each of the first points of the shuffled order; collective."""
    first = comm.allgather(np.column_stack([place, X])[place < BLOCKS])
    centers = first[np.argsort(first[:, 0]), 1:]
    chosen = np.zeros(len(X), np.bool_)
    tree = cKDTree(X) if len(X) else None
    for center in centers:
        r, who = (np.zeros(0), np.zeros(0, np.int64)) if tree is None else tree.query(center, min(near, len(X)))
        r, who = np.atleast_1d(r), np.atleast_1d(who)
        all_distances = np.sort(comm.allgather(r))
        chosen[who[r <= all_distances[min(near, len(all_distances)) - 1]]] = True
    return chosen


# -- restricted likelihood -------------------------------------------------------------------------------

# Reasoned, not measured: a factorisation of 1,200 points takes 0.6 Gflop, Vecchia's approximation 26 Mflop.
EXACT = 1200  # points up to which the likelihood is exact
NEIGHBOURS = 40  # neighbours that each value is conditioned on beyond that
_SUMMED = 256  # groups of rows whose sums are added up in one order, so that sums do not depend on the number of ranks


class Likelihood:
    """The restricted likelihood of a sample; construction and calls are collective, with the same result on all ranks.

    Up to 1,200 points it is exact. Beyond, it is Vecchia's approximation: the product of each value's density given its
    `neighbours` nearest earlier values. The order is random, so that there are neighbours at all distances.

    Notes
    -----
    Exact: s^3/3 flops per evaluation, on every rank. Vecchia's: s m^3/3 flops, shared by the ranks, and one Allreduce
    of 256 ((p + 1)^2 + 1) numbers.
    """

    def __init__(
        self, sample: Sample, kernel: Kernel, taper: float, comm: Communicator, neighbours: int = NEIGHBOURS,
        exact: bool | None = None,
    ) -> None:  # fmt: skip
        self.sample, self.kernel, self.taper, self.comm, self.m = sample, kernel, taper, comm, neighbours
        self.exact, self.evaluations = len(sample) <= EXACT if exact is None else exact, 0
        first, last = block_bounds(_SUMMED, comm.size, comm.rank)
        self._groups = [block_bounds(len(sample), _SUMMED, group)[0] for group in range(first, last + 1)]
        self._first = first
        self.mine = slice(self._groups[0], self._groups[-1])  # regressions that this rank computes
        self._neighbours = None if self.exact else nearest_of_all(sample.X, neighbours)

    def terms(self, length: float, noise: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Log-determinant of rho + D, and the Gram matrix of its whitened [F, y], shape (p + 1, p + 1)."""
        self.evaluations += 1
        correlation = Correlation(self.kernel.with_sigma(length), self.taper)
        columns = np.column_stack([self.sample.F, self.sample.y])
        if self._neighbours is None:
            L = self.factor(length, noise)
            if L is None:
                return math.inf, np.eye(columns.shape[1])
            white = solve_triangular(L, columns, lower=True, check_finite=False)
            return 2.0 * float(np.log(np.diagonal(L)).sum()), white.T @ white
        white, variance = self.regressed(columns, noise, self._neighbours, correlation)
        white /= np.sqrt(variance)[:, None]
        products = (white[:, :, None] * white[:, None, :]).reshape(len(white), -1)
        sums = self.added(np.column_stack([products, np.log(variance)]))
        return float(sums[-1]), sums[:-1].reshape(columns.shape[1], -1)

    def factor(self, length: float, noise: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Cholesky factor of rho + D; None if it is singular."""
        K = Correlation(self.kernel.with_sigma(length), self.taper).matrix(self.sample.X, self.sample.X)
        K[np.diag_indices(len(K))] = 1.0 + noise
        try:
            return np.asarray(cholesky(K, lower=True, overwrite_a=True, check_finite=False))
        except LinAlgError:
            return None

    def added(self, terms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum over all ranks' rows of `terms`, (m, c) for this rank's rows, with the same bits on any number of ranks.

        Collective. The search for parameters would otherwise take other steps on other numbers of ranks.
        """
        sums = np.zeros((_SUMMED, terms.shape[1]))
        for group, (lo, hi) in enumerate(pairwise(self._groups), self._first):
            sums[group] = terms[lo - self.mine.start : hi - self.mine.start].sum(axis=0)
        return np.asarray(self.comm.allreduce(sums).sum(axis=0))

    def regressed(
        self, columns: NDArray[np.float64], noise: NDArray[np.float64], neighbours: NDArray[np.int32],
        correlation: Correlation,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
        """Residuals, shape (m, t), and variances, (m,), of this rank's rows regressed on their neighbours."""
        weights, variance = self.weights(noise, neighbours, correlation)
        return columns[self.mine] - np.einsum("ij,ijk->ik", weights, columns[neighbours[self.mine]]), variance

    def weights(
        self, noise: NDArray[np.float64], neighbours: NDArray[np.int32], correlation: Correlation
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Weights of neighbours, shape (m, k), and variances, (m,), of this rank's rows."""
        X, mine = self.sample.X, self.mine
        return regressions(X[mine], noise[mine], X, noise, neighbours[mine], correlation)

    def gram_of(self, fit: Estimate | Parameters) -> NDArray[np.float64]:
        """Gram matrix of the whitened [F, y] for these parameters, shape (p + 1, p + 1)."""
        assert fit.range is not None
        assert fit.nugget is not None
        return self.terms(fit.range, self.sample.noise(fit.sill, fit.nugget, None))[1]

    def __call__(self, length: float, sill: float | None, nugget: float, ratio: float | None) -> tuple[float, float]:
        """Minus twice the restricted log-likelihood, and the sill.

        `length` is the range. If `sill` is None, the sill that maximises the likelihood for this `ratio` of nugget to
        sill is used and returned.
        """
        n, p = self.sample.F.shape
        logdet, gram = self.terms(length, self.sample.noise(sill, nugget, ratio))
        if not math.isfinite(logdet):
            return math.inf, 1.0
        square = float(gram[p, p])
        if p:
            square = max(0.0, square - float(gram[:p, p] @ drift_of(gram)))
            logdet += float(np.linalg.slogdet(gram[:p, :p])[1])
        return deviance(max(1, n - p), logdet, square, sill if ratio is None else None)


def drift_of(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Coefficients of the drift by generalised least squares, from the Gram matrix of the whitened [F, y]."""
    return np.asarray(np.linalg.lstsq(gram[:-1, :-1], gram[:-1, -1], rcond=None)[0])


def deviance(free: int, logdet: float, square: float, sill: float | None) -> tuple[float, float]:
    """Minus twice the log-density of `free` normal values, and the sill: the one passed, or the best one if it is None.

    `logdet` and `square` are the logarithm of the determinant of their covariance, and the sum of their squares after
    whitening, both in units of the sill.
    """
    sill = max(square / free, 1e-300) if sill is None else sill
    return free * math.log(sill) + logdet + square / sill, sill


# -- Laplace's approximation for counts ------------------------------------------------------------------

_LEAST_NOISE = 1e-8  # nugget of the latent field, over the sill, by which places that coincide differ


class LaplaceLikelihood(Likelihood):
    """Laplace's approximation of the restricted likelihood of counts, at the mode of the latent field; collective.

    The logarithm of the integral over field and drift of exp(h), with h = log p(y | eta) - a' (eta - F beta) / 2, is
    that of a normal density at the mode: h - (log|C W + 1| + log|F' (C + W^-1)^-1 F|) / 2, for the covariance C of the
    latent field, its dual a and the curvatures W. The determinants are those of the kriging of the working responses.
    Beyond 1,200 points, both the latent field and the working responses are conditioned on nearest earlier points.

    Attributes
    ----------
    latent : LaplaceMode or None
        The mode of the last evaluation; the next one starts there.
    tol : float
        Largest change of the field in the last Newton step.

    Notes
    -----
    Exact: s^3/3 flops per Newton step, of which there are two to four after the first evaluation. Vecchia's: s m^3
    flops, shared by the ranks, three Allgathers of up to m + 1 numbers per point, and on every rank about 10 iterations
    of 12 s m flops per step and function of the drift.
    """

    latent: LaplaceMode | None = None
    tol = SEARCH_TOL

    def gram_of(self, fit: Estimate | Parameters) -> NDArray[np.float64]:
        """Gram matrix of the whitened drift and working responses at the mode, shape (p + 1, p + 1)."""
        assert fit.range is not None
        assert fit.nugget is not None
        self(fit.range, fit.sill, fit.nugget, None)
        return super().gram_of(fit)

    def __call__(self, length: float, sill: float | None, nugget: float, ratio: float | None) -> tuple[float, float]:
        """Minus twice the logarithm of the approximation, and the sill, which must not be None."""
        assert sill is not None
        counts, (n, p) = self.sample.counts, self.sample.F.shape
        assert counts is not None
        solve, reached = self._solver(length, float(sill), nugget), None
        if self.latent is not None:
            reached = mode(counts, self.latent.eta, solve, tol=self.tol)
        self.latent = mode(counts, counts.start(), solve, tol=self.tol) if reached is None else reached
        if self.latent is None:
            return math.inf, float(sill)
        self.sample = replace(self.sample, y=self.latent.z, errors=self.latent.variance)
        logdet, gram = self.terms(length, self.sample.noise(sill, nugget, None))
        logdet += float(np.linalg.slogdet(gram[:p, :p])[1]) - float(np.log(self.latent.variance).sum())
        return deviance(max(1, n - p), logdet, -2.0 * self.latent.height * sill, sill)

    def _solver(self, length: float, sill: float, nugget: float) -> Solve:
        """The kriging of working responses, for :func:`cakriging.counts.mode`; collective."""
        F = self.sample.F
        if self._neighbours is not None:
            prior, reference = (
                self._regressions(length, noise)
                for noise in (np.full(len(F), max(nugget / sill, _LEAST_NOISE)), self.sample.noise(sill, nugget, None))
            )
            return NearestEarlier(self._neighbours, prior, reference, sill, F).solve

        def solve(z: NDArray[np.float64], variance: NDArray[np.float64], _: NDArray[np.float64]) -> NDArray[np.float64]:
            L = self.factor(length, (nugget + variance) / sill)
            if L is None:
                return np.full((3, len(z)), np.nan)
            white = solve_triangular(L, np.column_stack([F, z]), lower=True, check_finite=False)
            beta = drift_of(white.T @ white) if F.shape[1] else np.zeros(0)
            rest = white[:, -1] - white[:, :-1] @ beta
            dual = solve_triangular(L, rest, lower=True, trans=1, check_finite=False) / sill
            return np.stack([z - variance * dual, dual, F @ beta])

        return solve

    def _regressions(
        self, length: float, noise: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Weights and variances of all points regressed on nearest earlier ones, on every rank; collective."""
        assert self._neighbours is not None
        correlation = Correlation(self.kernel.with_sigma(length), self.taper)
        weights, variance = self.weights(noise, self._neighbours, correlation)
        rows = self.comm.allgather(np.column_stack([weights, variance]))
        return np.ascontiguousarray(rows[:, :-1]), rows[:, -1].copy()


# -- predictions of left-out blocks ----------------------------------------------------------------------

MOST_BLOCKS, SMALLEST = 50, 10  # most blocks, and fewest points per block


class LeftOutBlocks(Likelihood):
    """The density of left-out values; construction and calls are collective, with the same result on all ranks.

    The sample is divided into blocks of neighbouring points. Each value is predicted from its nearest values in other
    blocks, at the distances of gaps in a map, and scored by its predictive density. So the covariance need not be right
    at short distances, which the likelihood weighs most. The drift's coefficients are those of the whole sample.

    Notes
    -----
    Per evaluation: one evaluation of the likelihood, for the drift, and s m^3/3 flops for s points with m = 40
    neighbours, divided among the ranks. One Allreduce of 512 numbers.
    """

    def __init__(
        self, sample: Sample, kernel: Kernel, taper: float, comm: Communicator, neighbours: int = NEIGHBOURS,
        exact: bool | None = None, blocks: int = MOST_BLOCKS,
    ) -> None:  # fmt: skip
        super().__init__(sample, kernel, taper, comm, neighbours, exact)
        self.block, self.nearest = nearest_of_other_blocks(sample.X, neighbours, blocks)

    def __call__(self, length: float, sill: float | None, nugget: float, ratio: float | None) -> tuple[float, float]:
        """Minus twice the sum of the logarithms of the left-out values' densities, and the sill.

        `length` is the range. If `sill` is None, the sill that maximises the densities for this `ratio` of nugget to
        sill is used and returned.
        """
        left_out = self.left_out(length, self.sample.noise(sill, nugget, ratio))
        if left_out is None:
            return math.inf, 1.0
        errors, variance = left_out
        sums = self.added(np.column_stack([np.log(variance), errors**2 / variance]))
        return deviance(len(self.sample), float(sums[0]), float(sums[1]), sill if ratio is None else None)

    def left_out(
        self, length: float, noise: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Errors, and their variances over the sill, of this rank's left-out values; None if singular; collective."""
        y = self.sample.y
        logdet, gram = self.terms(length, noise)
        if not math.isfinite(logdet):
            return None
        residual = y - self.sample.F @ drift_of(gram) if len(gram) > 1 else y
        correlation = Correlation(self.kernel.with_sigma(length), self.taper)
        errors, variance = self.regressed(residual[:, None], noise, self.nearest, correlation)
        return errors[:, 0], variance


def nearest_of_other_blocks(
    X: NDArray[np.float64], m: int, most: int = MOST_BLOCKS
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Blocks of neighbouring points, and the m nearest points of other blocks for each point.

    There are at most `most` blocks, and each has at least 10 points if n is large enough.

    Returns
    -------
    blocks : ndarray of int64, shape (n,)
        Number of each point's block.
    nearest : ndarray of int32, shape (n, m)
        -1 where there are no more.
    """
    n = len(X)
    number, out = np.zeros(n, np.int64), np.full((n, m), -1, np.int32)
    order = spatial_order(X, SMALLEST)
    for turn, block in enumerate(np.array_split(order, max(2, min(most, n // SMALLEST)))):
        number[block] = turn
        others = np.setdiff1d(order, block)
        k = min(m, len(others))
        _, nearest = cKDTree(X[others]).query(X[block], k, workers=threads.current())
        out[block, :k] = others[nearest.reshape(len(block), k)]
    return number, out


# -- the search ------------------------------------------------------------------------------------------

CRITERIA: dict[str, type[Likelihood]] = {
    "likelihood": Likelihood,
    "blocks": LeftOutBlocks,
    "laplace": LaplaceLikelihood,
}
# Reasoned, not measured: a grid in ratios of about 3 (ranges) and 20 (ratios), from which the simplex continues.
_RANGES = (0.003, 0.01, 0.03, 0.1, 0.3)  # first ranges, in units of the largest distance
_RATIOS = (1e-3, 0.03, 0.5)  # first ratios of nugget to sill
_LONGEST = 20.0  # longest range, over the largest distance or the taper: longer ranges only rescale the covariance
_FAR = 12.0  # change of a logarithm that ends the search in its direction
_CLOSE = 1e-3  # change of the logarithms and of the score at which the search ends


@dataclass(frozen=True)
class Parameters:
    """Parameters of a covariance; None for those to be estimated."""

    range: float | None
    sill: float | None
    nugget: float | None

    @property
    def free(self) -> list[str]:
        """Names of the parameters to be estimated."""
        return [name for name, value in vars(self).items() if value is None]


@dataclass
class Estimate:
    """Estimated parameters, and facts about the search.

    Attributes
    ----------
    range, sill, nugget : float
    loglikelihood : float
        Restricted log-likelihood of the sample at the maximum, or log-density of the left-out values, without its
        constant.
    points : int
        Number of points of the sample.
    exact : bool
        True if the likelihood was computed by a full factorisation, not by Vecchia's approximation.
    evaluations : int
        Number of evaluations of the likelihood.
    endless : bool
        True if the score still improves at ranges far beyond the extent of the points or the taper.
    range_std, sill_std, nugget_std : float
        Standard deviation of the logarithm of each parameter; see :func:`deviations`. Infinity if the sample does not
        determine the parameter; NaN if it was set by the user, or not estimated by likelihood.
    """

    range: float
    sill: float
    nugget: float
    loglikelihood: float
    points: int
    exact: bool
    evaluations: int
    endless: bool
    range_std: float = math.nan
    sill_std: float = math.nan
    nugget_std: float = math.nan

    @property
    def deviations(self) -> dict[str, float]:
        """Standard deviations of the parameters' logarithms by parameter, without those that are NaN."""
        stds = {"range": self.range_std, "sill": self.sill_std, "nugget": self.nugget_std}
        return {name: std for name, std in stds.items() if not math.isnan(std)}

    def described(self) -> dict[str, object]:
        """Entries of the report; an infinite standard deviation is None, since JSON has no infinity."""
        finite = {name: std if math.isfinite(std) else None for name, std in self.deviations.items()}
        return {name: value for name, value in vars(self).items() if not name.endswith("_std")} | {"log_std": finite}

    def arrays(self) -> Kept:
        """The fields as arrays, for a checkpoint."""
        return {name: np.array(value) for name, value in vars(self).items()}

    @classmethod
    def of_arrays(cls, arrays: Kept) -> Estimate:
        """The estimate that :meth:`arrays` stored."""
        return cls(**{name: value.item() for name, value in arrays.items()})


class _Search:
    """Search for the free ones of range, sill and nugget, by their logarithms.

    The sill is free and has a closed form (`profiled`) if the nugget is free too, or is 0, and no value has a known
    error. The search is then for the range and the ratio of nugget to sill.
    """

    def __init__(self, criterion: Likelihood, fixed: Parameters) -> None:
        sample, kernel = criterion.sample, criterion.kernel
        self.criterion, self.fixed = criterion, fixed
        self.profiled = fixed.sill is None and fixed.nugget in (None, 0.0) and not sample.errors.any()
        self.free = [name for name in fixed.free if not (self.profiled and name == "sill")]
        length = float(np.linalg.norm(np.ptp(sample.X, axis=0))) or 1.0
        self.length = 3.0 * length if kernel.declared.limited else length  # a radius is several length scales
        self.longest = _LONGEST * min(self.length, criterion.taper)
        self.variance = float(np.mean(sample.residual() ** 2)) or 1.0

    def arguments(self, theta: NDArray[np.float64]) -> tuple[float, float | None, float, float | None]:
        """Arguments of the criterion at a point of the search."""
        values = vars(self.fixed) | dict(zip(self.free, np.exp(theta).tolist(), strict=True))
        range_, nugget = values["range"], values["nugget"]
        assert range_ is not None
        assert nugget is not None
        return (range_, None, 0.0, nugget) if self.profiled else (range_, values["sill"], nugget, None)

    def grid(self) -> list[NDArray[np.float64]]:
        """Points that are scored first; the search continues from the best of them."""
        points = {}
        for share, ratio in itertools.product(_RANGES, _RATIOS):
            sill = self.variance / (1.0 + ratio) if self.fixed.sill is None else self.fixed.sill
            nugget = ratio if self.profiled else ratio * sill
            values = {"range": share * self.length, "sill": sill, "nugget": nugget}
            theta = np.log([values[name] for name in self.free])
            points[theta.tobytes()] = theta
        return list(points.values())

    def start(self, first: Parameters) -> NDArray[np.float64]:
        """The point of the search of some parameters, none of which is None."""
        values = {name: float(value) for name, value in vars(first).items()}
        if self.profiled:
            values["nugget"] /= values["sill"]
        # A nugget of 0 has no logarithm, and one below a millionth of the sill changes nothing.
        values["nugget"] = max(values["nugget"], 1e-6 if self.profiled else 1e-6 * values["sill"])
        return np.log([values[name] for name in self.free])

    def run(self, first: Parameters | None = None, close: float | None = None) -> Estimate:
        """Search from the best of a grid, or from `first`, and return the estimate of the best score."""
        grid = self.grid() if first is None else [self.start(first)]
        values = np.array([self.criterion(*self.arguments(theta))[0] for theta in grid])
        setting = choose(values)
        if first is not None and setting is None:  # singular where the full matrix is used, not just neighbours
            return self.run(close=close)
        best = grid[0] if setting is None else grid[setting[0]]

        def cost(theta: NDArray[np.float64]) -> float:
            arguments = self.arguments(theta)
            far = (np.abs(theta - best) > _FAR).any() or arguments[0] > self.longest  # the data say nothing there
            return math.inf if far else self.criterion(*arguments)[0]

        # Unlike other searches, this one continues between the points of its grid.
        if best.size and setting is not None:
            simplex = np.vstack([best, best + (0.5 if first is None else 0.1) * np.eye(best.size)])
            close = _CLOSE if close is None else close
            options = {"xatol": close, "fatol": close, "maxfev": 300, "initial_simplex": simplex}
            with np.errstate(invalid="ignore"):  # differences of infinite costs
                best = minimize(cost, best, method="Nelder-Mead", options=options).x
        range_, sill, nugget, ratio = self.arguments(best)
        value, sill = self.criterion(range_, sill, nugget, ratio)
        nugget = nugget if ratio is None else ratio * sill
        criterion, endless = self.criterion, self.fixed.range is None and range_ > 0.5 * self.longest
        return Estimate(
            range_, sill, nugget, -value / 2.0, len(criterion.sample), criterion.exact, criterion.evaluations, endless
        )


def criterion_of(by: str, sample: Sample) -> type[Likelihood]:
    """Class of the criterion "likelihood" or "blocks"; the likelihood of counts is Laplace's approximation."""
    return CRITERIA[by if sample.counts is None else "laplace"]


def search(
    criterion: Likelihood, fixed: Parameters, first: Parameters | None = None, close: float | None = None
) -> Estimate:
    """The parameters of the best score, without standard deviations; collective.

    A grid of 15 ranges and ratios first, unless there are `first` parameters; then Nelder and Mead's simplex on the
    logarithms, until these and the score change by less than `close`.
    """
    return _Search(criterion, fixed).run(first, close)


def estimate(
    sample: Sample, kernel: Kernel, taper: float, fixed: Parameters, comm: Communicator, by: str = "likelihood",
    neighbours: int = NEIGHBOURS, first: Parameters | None = None,
) -> Estimate:  # fmt: skip
    """The parameters of the best score by the criterion `by`, with those that are set in `fixed`; see :func:`search`.

    Raises
    ------
    InputError
        On all ranks: the covariance is singular for all parameters tried.
    """
    criterion = criterion_of(by, sample)(sample, kernel, taper, comm, neighbours)
    best = search(criterion, fixed, first)
    with comm.agreed():
        if not math.isfinite(best.loglikelihood):
            raise InputError("the covariance is singular for all parameters tried: give a --nugget above 0")
    return _with_deviations(best, criterion, fixed) if by == "likelihood" else best


def _with_deviations(best: Estimate, likelihood: Likelihood, fixed: Parameters) -> Estimate:
    """The estimate with standard deviations of the free parameters' logarithms; collective."""
    values = {"range": best.range, "sill": best.sill, "nugget": best.nugget}
    if isinstance(likelihood, LaplaceLikelihood):
        likelihood.tol = MODE_TOL  # second differences of small steps

    def cost(theta: NDArray[np.float64]) -> float:
        now = values | dict(zip(fixed.free, np.exp(theta).tolist(), strict=True))
        return likelihood(now["range"], now["sill"], now["nugget"], None)[0] / 2.0

    stds = deviations(cost, np.log([values[name] for name in fixed.free]))
    named = {f"{name}_std": std for name, std in zip(fixed.free, stds.tolist(), strict=True)}
    return replace(best, evaluations=likelihood.evaluations, **named)


# -- standard deviations of the parameters ---------------------------------------------------------------

STEP = 0.01  # step of the logarithms in second differences
_FLAT = 1e-2  # second derivative below which the likelihood does not determine a parameter


def deviations(cost: Callable[[NDArray[np.float64]], float], best: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard deviation of each parameter of a maximum-likelihood estimate, for large samples.

    The inverse of the observed information, the second derivatives of minus the log-likelihood at its maximum.

    Parameters
    ----------
    cost : callable
        Minus the log-likelihood at a point, shape (p,).
    best : ndarray, shape (p,)
        The point at which `cost` is least. It need not be exact, since the differences are central.

    Returns
    -------
    ndarray, shape (p,)
        Infinity for parameters that the likelihood does not determine.

    Notes
    -----
    1 + p + p^2 calls of `cost`.
    """
    stds = np.full(len(best), np.inf)
    with np.errstate(over="ignore", invalid="ignore"):  # infinite where the covariance is singular
        H = _second_derivatives(cost, best)
    determined = np.flatnonzero(np.diagonal(H) > _FLAT)
    H = H[np.ix_(determined, determined)]
    if len(determined) and np.isfinite(H).all() and np.linalg.eigvalsh(H)[0] > 0:
        stds[determined] = np.sqrt(np.diagonal(np.linalg.inv(H)))
    return stds


def _second_derivatives(cost: Callable[[NDArray[np.float64]], float], best: NDArray[np.float64]) -> NDArray[np.float64]:
    """Matrix of second derivatives by central differences, shape (p, p)."""
    p, steps = len(best), STEP * np.eye(len(best))
    middle = cost(best)
    sides = np.array([cost(best + step) + cost(best - step) for step in steps]) - 2.0 * middle
    H = np.diag(sides)
    for i in range(p):
        for j in range(i):
            both = cost(best + steps[i] + steps[j]) + cost(best - steps[i] - steps[j]) - 2.0 * middle
            H[i, j] = H[j, i] = (both - sides[i] - sides[j]) / 2.0
    return np.asarray(H / STEP**2)


def in_words(stds: dict[str, float]) -> str:
    """The parameters' standard deviations as a note of the report."""
    words = [f"{name} {'undetermined' if math.isinf(std) else format(std, '.2g')}" for name, std in stds.items()]
    return f"standard deviations of the logarithms: {', '.join(words)}"


# -- the variogram ---------------------------------------------------------------------------------------

BINS, MOST_PAIRED = 20, 1500  # number of lags; most random points, and most neighbours, whose pairs are compared


@dataclass(frozen=True)
class Variogram:
    """Half the mean squared difference of values without their drift, by distance, and the fitted curve.

    Attributes
    ----------
    lags : ndarray, shape (b,)
        Mean distance of the pairs in each bin.
    values : ndarray, shape (b,)
        Half the mean squared difference.
    pairs : ndarray of int64, shape (b,)
    fitted : ndarray, shape (b,)
        nugget + sill (1 - rho(lag)).
    """

    lags: NDArray[np.float64]
    values: NDArray[np.float64]
    pairs: NDArray[np.int64]
    fitted: NDArray[np.float64]

    @classmethod
    def of(cls, sample: Sample, correlation: Correlation, sill: float, nugget: float) -> Variogram:
        """The variogram of a sample, up to the distance of a correlation of 2 %, or half the largest distance.

        It takes all pairs of 1,500 random points and, if the sample has blocks of neighbours, of 1,500 of these.
        """
        residual = sample.residual()
        first = len(sample) - sample.blocks
        kinds = [slice(0, min(MOST_PAIRED, first))] + ([slice(first, first + MOST_PAIRED)] if sample.blocks else [])
        r = np.concatenate([pdist(sample.X[kind]) for kind in kinds])
        halves = np.concatenate([pdist(residual[kind, None], "sqeuclidean") / 2.0 for kind in kinds])
        longest = float(r.max(initial=0.0)) / 2.0
        decayed = np.flatnonzero(correlation(np.linspace(0.0, longest, 1001)) < 0.02)
        if decayed.size:
            longest *= max(1, int(decayed[0])) / 1000.0
        if not longest > 0:
            return cls(np.zeros(0), np.zeros(0), np.zeros(0, np.int64), np.zeros(0))
        bins = np.floor(r / longest * BINS)
        inside = bins < BINS
        bins = bins[inside].astype(np.int64)
        pairs = np.bincount(bins, minlength=BINS)
        there = pairs > 0
        lags = np.bincount(bins, r[inside], BINS)[there] / pairs[there]
        values = np.bincount(bins, halves[inside], BINS)[there] / pairs[there]
        return cls(lags, values, pairs[there], nugget + sill * (1.0 - correlation(lags)))
