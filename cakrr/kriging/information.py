"""How well a sample determines the parameters of a covariance: standard deviations of their logarithms.

They are those of maximum likelihood for large samples, from the observed information: the inverse of the second
derivatives of minus the log-likelihood at its maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

STEP = 0.01  # of the logarithms, for second derivatives
_FLAT = 1e-2  # second derivative below which the likelihood says nothing about a parameter


def deviations(cost: Callable[[NDArray[np.float64]], float], best: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard deviation of each coordinate of the maximum of a likelihood.

    Parameters
    ----------
    cost : callable
        Minus the log-likelihood of a point, shape (p,).
    best : ndarray, shape (p,)
        Where it is least; need not be exact, since differences are central.

    Returns
    -------
    ndarray, shape (p,)
        Infinity for coordinates that the likelihood does not determine.

    Notes
    -----
    1 + p + p^2 calls of `cost`.
    """
    found = np.full(len(best), np.inf)
    with np.errstate(over="ignore", invalid="ignore"):  # infinite where the covariance is singular
        H = _second_derivatives(cost, best)
    some = np.flatnonzero(np.diagonal(H) > _FLAT)
    H = H[np.ix_(some, some)]
    if len(some) and np.isfinite(H).all() and np.linalg.eigvalsh(H)[0] > 0:
        found[some] = np.sqrt(np.diagonal(np.linalg.inv(H)))
    return found


def _second_derivatives(
    cost: Callable[[NDArray[np.float64]], float], best: NDArray[np.float64]
) -> NDArray[np.float64]:  # fmt: skip
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


def in_words(known: dict[str, float]) -> str:
    """The deviations of named parameters, for a note."""
    words = [f"{name} {'undetermined' if math.isinf(std) else format(std, '.2g')}" for name, std in known.items()]
    return f"standard deviations of the logarithms: {', '.join(words)}"
