"""Counts and presence: a latent Gaussian field with a log or logit link, by Laplace's approximation.

1. :class:`Counts`: log-density and derivatives of counts, given the latent field.
2. :func:`mode`: Newton's method for the most probable field. A step is the kriging of working responses
   z = eta + g / W with errors of variance 1 / W, for the gradient g and the curvature W of the log-densities
   (C. E. Rasmussen, C. K. I. Williams: Gaussian Processes for Machine Learning, MIT Press 2006, section 3.4). At the
   mode, the kriging of these responses is Laplace's approximation: a normal distribution of the latent field.
3. :func:`response` and :func:`inverse_link`: from the latent field to rates and probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtr, xlogy

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.machine.threads import blocks

MODE_TOL = 1e-9  # largest change of the latent field in the last Newton step
# The same while parameters are searched: 1e-3 of the likelihood's change at which the search ends.
SEARCH_TOL = 1e-4
MOST_STEPS = 50  # counts over six decades of exposure took 5 to 9
_HALVINGS = 30
_ROUNDING = 1e-9  # falls of the objective, over its size, that do not shorten a step
_LEAST_CURVATURE = 1e-12  # of a trial: probabilities closer to 0 or 1 determine nothing more

Solve = Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True)
class Counts:
    """Counts at points.

    Attributes
    ----------
    likelihood : {"poisson", "binomial"}
        Poisson counts of mean exposure x exp(eta), or successes of `exposure` trials of probability
        1 / (1 + exp(-eta)).
    y, exposure : ndarray, shape (n,)
    rate : float
        Sum of all counts over that of all exposures, on all ranks.
    """

    likelihood: str
    y: NDArray[np.float64]
    exposure: NDArray[np.float64]
    rate: float

    def subset(self, rows: NDArray[np.bool_]) -> Counts:
        """The counts of some points."""
        return Counts(self.likelihood, self.y[rows], self.exposure[rows], self.rate)

    def start(self) -> NDArray[np.float64]:
        """First values of the latent field: each count's own, shrunken towards the mean by one count or trial."""
        if self.likelihood == "poisson":
            return np.log((self.y + 1.0) / (self.exposure + 1.0 / self.rate))
        return np.asarray(logit((self.y + self.rate) / (self.exposure + 1.0)))

    def log_density(self, eta: NDArray[np.float64]) -> float:
        """Sum of the log-densities given the latent field, without terms that do not depend on it."""
        if self.likelihood == "poisson":
            with np.errstate(over="ignore"):
                return float(self.y @ eta - self.exposure @ np.exp(eta))
        return float(self.y @ eta - self.exposure @ np.logaddexp(0.0, eta))

    def working(self, eta: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Working responses z and the variances 1 / W of their errors, for Newton's step from `eta`."""
        if self.likelihood == "poisson":
            mean = self.exposure * np.exp(eta)
            weight = np.maximum(mean, _LEAST_CURVATURE * self.exposure)
        else:
            share = expit(eta)
            mean = self.exposure * share
            weight = self.exposure * np.maximum(share * expit(-eta), _LEAST_CURVATURE)
        return eta + (self.y - mean) / weight, 1.0 / weight


@dataclass(frozen=True)
class LaplaceMode:
    """The most probable latent field, and the working responses that lead to it.

    Attributes
    ----------
    eta, z, variance : ndarray, shape (n,)
    height : float
        Log-density of the counts minus half the square of the field, over all ranks.
    steps : int
    """

    eta: NDArray[np.float64]
    z: NDArray[np.float64]
    variance: NDArray[np.float64]
    height: float
    steps: int


def mode(
    counts: Counts, eta: NDArray[np.float64], solve: Solve, comm: Communicator | None = None, tol: float = MODE_TOL
) -> LaplaceMode | None:
    """The mode of the latent field by Newton's method; None if it does not converge. Collective if `comm` is passed.

    Parameters
    ----------
    counts : Counts
    eta : ndarray, shape (n,)
        First values. The first step is a full one.
    solve : callable
        Kriging of working responses with errors: (z, variance, state) -> the next state, which has shape (3, n): the
        latent means eta, the dual a = C^-1 (eta - F beta) and the drift F beta, where C is the covariance of the latent
        field. The first state is 0. Solutions need only be accurate relative to the change.
    comm : Communicator or None
        Ranks over which sums are taken; None if all counts are here.
    tol : float
        Largest change in the last step.

    Notes
    -----
    From the second step on, steps are halved until log p(y | eta) - a' (eta - F beta) / 2 does not fall.
    """
    state, height = np.zeros((3, len(eta))), -np.inf
    for steps in range(1, MOST_STEPS + 1):
        z, variance = counts.working(eta)
        target = solve(z, variance, state)
        change = float(np.abs(target[0] - eta).max(initial=0.0))
        if comm is not None:
            change = float(comm.allreduce(np.array([change]), "max")[0])
        if not np.isfinite(change):
            return None
        share = 1.0
        for _ in range(_HALVINGS):
            new = state + share * (target - state) if share < 1.0 else target
            reached = _height(counts, new, comm)
            if steps == 1 or reached >= height - _ROUNDING * (1.0 + abs(height)):
                break
            share /= 2.0
        state, height, eta = new, reached, new[0]
        if change <= tol:
            return LaplaceMode(eta, z, variance, height, steps)
    return None


def _height(counts: Counts, state: NDArray[np.float64], comm: Communicator | None) -> float:
    """The objective of :func:`mode` for a field, its dual and its drift; minus infinity where it overflows."""
    eta, dual, drift = state
    height = counts.log_density(eta) - 0.5 * float(dual @ (eta - drift))
    if comm is not None:
        height = float(comm.allreduce(np.array([height]))[0])
    return height if np.isfinite(height) else -np.inf


def checked(y: NDArray[np.float64], exposure: NDArray[np.float64], likelihood: str, where: str = "") -> None:
    """Raise an InputError, which names the row, unless these are counts and their exposures or numbers of trials."""
    unit = "exposure" if likelihood == "poisson" else "number of trials"
    rules = [
        (exposure > 0, exposure, "exposure", f"a positive {unit}: leave rows without any out"),
        ((y >= 0) & (y == np.round(y)), y, "count", "a whole number of at least 0"),
    ]
    if likelihood == "binomial":
        rules.insert(1, (exposure == np.round(exposure), exposure, "exposure", "a whole number of trials"))
        rules.append((y <= exposure, y, "count", "at most the number of trials (--exposure; 1 if there is none)"))
    for right, values, name, rule in rules:
        wrong = np.flatnonzero(~(right & np.isfinite(values)))
        if wrong.size:
            row = f"row {wrong[0]} of {where}" if where else f"row {wrong[0]}"
            raise InputError(f"{likelihood}: the {name} of {row} is {values[wrong[0]]:g}; it must be {rule}")


def check_totals(likelihood: str, total: float, exposure: float, drift: bool) -> None:
    """Raise an InputError if all counts are 0, or all trials succeed, and there is a drift, which then has no end."""
    if drift and (total == 0 or (likelihood == "binomial" and total == exposure)):
        what = "all counts are 0" if total == 0 else "all trials succeed"
        raise InputError(
            f"{likelihood}: {what}, so the mean has no finite estimate; give more rows, or --drift none with --range, "
            "--sill and --nugget"
        )


# -- from the latent field to responses ------------------------------------------------------------------

_NODES = 0.4 * np.arange(-23, 24)  # trapezoidal rule for a standard normal: within 1e-15
_LOGISTIC = 0.5 * np.arange(-76, 77)  # and for a standard logistic distribution
_PLACES = 1 << 13  # places integrated at a time: 10 MiB


def inverse_link(likelihood: str, eta: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rates per unit of exposure, or probabilities, of latent values."""
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(eta) if likelihood == "poisson" else expit(eta))


def deviance(
    likelihood: str, y: NDArray[np.float64], expected: NDArray[np.float64], exposure: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Twice the log-density of each count above that for its expectation, shape (n,)."""
    terms = xlogy(y, y) - xlogy(y, expected)
    if likelihood == "poisson":
        return np.asarray(2.0 * (terms - (y - expected)))
    others = exposure - y
    return np.asarray(2.0 * (terms + xlogy(others, others) - xlogy(others, exposure - expected)))


def response(
    likelihood: str, mean: NDArray[np.float64], std: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of the rate, or of the probability, for a normal latent value.

    Parameters
    ----------
    likelihood : {"poisson", "binomial"}
    mean, std : ndarray, shape (q,)
        Of the latent value.

    Notes
    -----
    Rates are log-normal. Means and variances of probabilities are integrals, by the trapezoidal rule, whose error is
    below 1e-12: over the normal distribution where its deviation is below 1, else over the logistic one.
    """
    if likelihood == "poisson":
        square = np.square(std)
        with np.errstate(over="ignore"):
            rate = np.exp(mean + square / 2.0)
            return rate, rate * np.sqrt(np.expm1(square))
    first, second = np.empty(len(mean)), np.empty(len(mean))
    for lo, hi in blocks(len(mean), _PLACES):
        first[lo:hi], second[lo:hi] = _logistic_moments(mean[lo:hi, None], std[lo:hi, None])
    return first, np.sqrt(np.maximum(second - first**2, 0.0))


def _logistic_moments(
    mean: NDArray[np.float64], std: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means of s and s^2 for s = 1 / (1 + exp(-x)) and x normal; by parts over ds/dx where x is wide."""
    weights = np.exp(-0.5 * _NODES**2)
    weights /= weights.sum()
    narrow = expit(mean + np.minimum(std, 1.0) * _NODES)
    s = expit(_LOGISTIC)
    slope = 0.5 * s * (1.0 - s)
    above = ndtr((mean - _LOGISTIC) / np.maximum(std, 1.0))
    wide = std[:, 0] > 1.0
    first = np.where(wide, above @ slope, narrow @ weights)
    return first, np.where(wide, above @ (2.0 * s * slope), narrow**2 @ weights)
