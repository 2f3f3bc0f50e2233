"""Range, sill and nugget by restricted maximum likelihood, on all points or on a sample of them.

Up to 1,200 points the likelihood is exact. Beyond, it is Vecchia's: the product of each value's density given its 40
nearest earlier values, in random order, so that there are neighbours on all scales. Of more than 20,000 points, it is
that of 10,000 random ones and of 10 blocks of 1,000 neighbouring ones, which the ranks gather.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.spatial import cKDTree

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.near.correlation import Correlation
from cacore.near.inverse import nearest_of_all, regressions

if TYPE_CHECKING:
    from cacore.io.checkpoint import Kept

EXACT, ALL = 1200, 20_000  # points up to which the likelihood is exact, and up to which all are used
RANDOM, BLOCKS, BLOCK = 10_000, 10, 1_000  # points of a sample
NEIGHBOURS = 40
_TRIED = (0.003, 0.01, 0.03, 0.1, 0.3)  # first ranges, in units of the largest distance
_RATIOS = (1e-3, 0.03, 0.5)  # first ratios of nugget and sill
_LONGEST = 20.0  # longest range, in units of the largest distance or of the taper: longer ones differ by a factor alone
_FAR = 12.0  # change of a logarithm that ends the search in its direction
_CLOSE = 1e-3  # change of the logarithms and of the likelihood at which the search ends


@dataclass(frozen=True)
class Parameters:
    """Parameters of a covariance; None for those to be estimated."""

    range: float | None
    sill: float | None
    nugget: float | None

    @property
    def known(self) -> bool:
        """True if nothing is to be estimated."""
        return None not in (self.range, self.sill, self.nugget)


@dataclass
class Sample:
    """Points on every rank, in their shuffled order.

    Attributes
    ----------
    X : ndarray, shape (s, d)
    y : ndarray, shape (s,)
    F : ndarray, shape (s, p)
        Functions of the drift.
    errors : ndarray, shape (s,)
        Known variance of each value's error.
    """

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    F: NDArray[np.float64]
    errors: NDArray[np.float64]

    @classmethod
    def of(
        cls, X: NDArray[np.float64], values: NDArray[np.float64], place: NDArray[np.int64], n: int, comm: Communicator
    ) -> Sample:
        """All n points, or a sample of them; collective.

        Parameters
        ----------
        X : ndarray, shape (n_local, d)
        values : ndarray, shape (n_local, 2 + p)
            Value, variance of its error, functions of the drift.
        place : ndarray of int64, shape (n_local,)
            Places in the shuffled order.

        Notes
        -----
        Every rank receives the sample: at most 20,000 points of d + p + 3 numbers.
        """
        chosen = np.ones(len(X), np.bool_) if n <= ALL else (place < RANDOM) | _blocks(X, place, comm)
        d = X.shape[1]
        rows = comm.allgather(np.column_stack([place, X, values])[chosen])
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        X, values = np.ascontiguousarray(rows[:, 1 : d + 1]), rows[:, d + 1 :]
        return cls(X, values[:, 0].copy(), values[:, 2:].copy(), values[:, 1].copy())

    def __len__(self) -> int:
        return len(self.X)


def _blocks(X: NDArray[np.float64], place: NDArray[np.int64], comm: Communicator) -> NDArray[np.bool_]:
    """True for the points nearest to the first points of the shuffled order; collective."""
    first = comm.allgather(np.column_stack([place, X])[place < BLOCKS])
    centers = first[np.argsort(first[:, 0]), 1:]
    chosen = np.zeros(len(X), np.bool_)
    tree = cKDTree(X) if len(X) else None
    for center in centers:
        r, who = (np.zeros(0), np.zeros(0, np.int64)) if tree is None else tree.query(center, min(BLOCK, len(X)))
        r, who = np.atleast_1d(r), np.atleast_1d(who)
        every = np.sort(comm.allgather(r))
        chosen[who[r <= every[min(BLOCK, len(every)) - 1]]] = True
    return chosen


@dataclass
class Estimate:
    """Estimated parameters, and how they were found.

    Attributes
    ----------
    range, sill, nugget : float
    loglikelihood : float
        Restricted log-likelihood of the sample at the maximum, without the constant.
    points : int
        Number of points of the sample.
    exact : bool
        True if the likelihood was that of a full factorisation.
    evaluations : int
    endless : bool
        True if the likelihood still grows with the range far beyond the points or the taper.
    """

    range: float
    sill: float
    nugget: float
    loglikelihood: float
    points: int
    exact: bool
    evaluations: int
    endless: bool

    def arrays(self) -> Kept:
        """The fields as arrays, for a checkpoint."""
        return {name: np.array(value) for name, value in vars(self).items()}

    @classmethod
    def of_arrays(cls, arrays: Kept) -> Estimate:
        """The estimate of :meth:`arrays`."""
        return cls(**{name: value.item() for name, value in arrays.items()})


class Likelihood:
    """The restricted likelihood of a sample; construction and calls are collective, and the same on all ranks.

    Notes
    -----
    Exact: s^3/3 flops per evaluation, on every rank. Vecchia's: s m^3/3 flops, shared by the ranks, and one Allreduce
    of (p + 1)^2 + 1 numbers.
    """

    def __init__(self, sample: Sample, kernel: Kernel, taper: float, comm: Communicator) -> None:
        self.sample, self.kernel, self.taper, self.comm = sample, kernel, taper, comm
        self.exact, self.evaluations = len(sample) <= EXACT, 0
        self._neighbours = None if self.exact else nearest_of_all(sample.X, NEIGHBOURS)

    def terms(self, length: float, noise: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Log-determinant of rho + D, and the Gram matrix of its whitened [F, y], shape (p + 1, p + 1)."""
        self.evaluations += 1
        correlation = Correlation(self.kernel.with_sigma(length), self.taper)
        columns = np.column_stack([self.sample.F, self.sample.y])
        if self._neighbours is None:
            K = correlation.matrix(self.sample.X, self.sample.X)
            K[np.diag_indices(len(K))] = 1.0 + noise
            try:
                L = cholesky(K, lower=True, overwrite_a=True, check_finite=False)
            except LinAlgError:
                return math.inf, np.eye(columns.shape[1])
            white = solve_triangular(L, columns, lower=True, check_finite=False)
            return 2.0 * float(np.log(np.diagonal(L)).sum()), white.T @ white
        n, R, rank = len(self.sample), self.comm.size, self.comm.rank
        some = slice(n * rank // R, n * (rank + 1) // R)
        weights, variance = regressions(
            self.sample.X[some], noise[some], self.sample.X, noise, self._neighbours[some], correlation
        )
        white = columns[some] - np.einsum("ij,ijk->ik", weights, columns[self._neighbours[some]])
        white /= np.sqrt(variance)[:, None]
        sums = self.comm.allreduce(np.append((white.T @ white).ravel(), np.log(variance).sum()))
        return float(sums[-1]), sums[:-1].reshape(columns.shape[1], -1)

    def __call__(self, length: float, sill: float | None, nugget: float, ratio: float | None) -> tuple[float, float]:
        """Minus twice the restricted log-likelihood, and the sill.

        `length` is the range. If the sill is None, it maximises the likelihood for this `ratio` of nugget and sill.
        """
        n, p = self.sample.F.shape
        noise = np.full(n, ratio) if ratio is not None else (nugget + self.sample.errors) / (sill or 1.0)
        logdet, gram = self.terms(length, noise)
        if not math.isfinite(logdet):
            return math.inf, 1.0
        square = float(gram[p, p])
        if p:
            solved = np.linalg.lstsq(gram[:p, :p], gram[:p, p], rcond=None)[0]
            square = max(0.0, square - float(gram[:p, p] @ solved))
            logdet += float(np.linalg.slogdet(gram[:p, :p])[1])
        free = max(1, n - p)
        if ratio is not None:
            sill = max(square / free, 1e-300)
        assert sill is not None
        return free * math.log(sill) + logdet + square / sill, sill


class _Search:
    """The search for the free parameters among range, sill and nugget, by their logarithms.

    The sill is eliminated (`profiled`) if it and the nugget are free, or the nugget is 0, and no value has a known
    error; the nugget is then searched for as its ratio to the sill.
    """

    def __init__(self, likelihood: Likelihood, given: Parameters) -> None:
        sample, kernel = likelihood.sample, likelihood.kernel
        self.likelihood, self.given = likelihood, given
        self.profiled = given.sill is None and given.nugget in (None, 0.0) and not sample.errors.any()
        free = {"range": given.range is None, "sill": given.sill is None, "nugget": given.nugget is None}
        self.free = [name for name, true in free.items() if true and not (self.profiled and name == "sill")]
        length = float(np.linalg.norm(np.ptp(sample.X, axis=0))) or 1.0
        self.length = 3.0 * length if kernel.declared.limited else length  # a radius is several length scales
        self.longest = _LONGEST * min(self.length, likelihood.taper)
        residual = sample.y
        if sample.F.shape[1]:
            residual = sample.y - sample.F @ np.linalg.lstsq(sample.F, sample.y, rcond=None)[0]
        self.variance = float(np.mean(residual**2)) or 1.0

    def settle(self, theta: NDArray[np.float64]) -> tuple[float, float | None, float, float | None]:
        """Arguments of the likelihood at a point of the search."""
        values = {"range": self.given.range, "sill": self.given.sill, "nugget": self.given.nugget}
        values |= dict(zip(self.free, np.exp(theta).tolist(), strict=True))
        range_, nugget = values["range"], values["nugget"]
        assert range_ is not None
        assert nugget is not None
        return (range_, None, 0.0, nugget) if self.profiled else (range_, values["sill"], nugget, None)

    def first(self) -> list[NDArray[np.float64]]:
        """Points at which the search looks first."""
        found = {}
        for share, ratio in itertools.product(_TRIED, _RATIOS):
            sill = self.variance / (1.0 + ratio) if self.given.sill is None else self.given.sill
            nugget = ratio if self.profiled else ratio * sill
            values = {"range": share * self.length, "sill": sill, "nugget": nugget}
            theta = np.log([values[name] for name in self.free])
            found[theta.tobytes()] = theta
        return list(found.values())

    def run(self) -> Estimate:
        """Search, and return the best."""
        first = self.first()
        values = [self.likelihood(*self.settle(theta))[0] for theta in first]
        best = first[int(np.argmin(values))]

        def cost(theta: NDArray[np.float64]) -> float:
            arguments = self.settle(theta)
            far = (np.abs(theta - best) > _FAR).any() or arguments[0] > self.longest  # where the data say nothing
            return math.inf if far else self.likelihood(*arguments)[0]

        if best.size and math.isfinite(min(values)):
            simplex = np.vstack([best, best + 0.5 * np.eye(best.size)])
            options = {"xatol": _CLOSE, "fatol": _CLOSE, "maxfev": 300, "initial_simplex": simplex}
            best = minimize(cost, best, method="Nelder-Mead", options=options).x
        range_, sill, nugget, ratio = self.settle(best)
        value, sill = self.likelihood(range_, sill, nugget, ratio)
        nugget = nugget if ratio is None else ratio * sill
        made = self.likelihood
        loglikelihood, endless = -value / 2.0, self.given.range is None and range_ > 0.5 * self.longest
        return Estimate(range_, sill, nugget, loglikelihood, len(made.sample), made.exact, made.evaluations, endless)


def estimate(sample: Sample, kernel: Kernel, taper: float, given: Parameters, comm: Communicator) -> Estimate:
    """The parameters that maximise the restricted likelihood, with those of `given` fixed; collective.

    A first grid of 15 ranges and ratios, then Nelder and Mead's simplex on the logarithms.

    Raises
    ------
    InputError
        On all ranks: the covariance is singular for all parameters tried.
    """
    found = _Search(Likelihood(sample, kernel, taper, comm), given).run()
    with comm.agreed():
        if not math.isfinite(found.loglikelihood):
            raise InputError("the covariance is singular for all parameters tried: give a --nugget above 0")
    return found
