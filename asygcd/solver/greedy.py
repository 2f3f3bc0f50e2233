"""The greedy choice: the row with the largest projected gradient (step 1 of Algorithm 14)."""

from __future__ import annotations

import numba
import numpy as np

from cacore.arrays import Doubles, Reals
from cacore.compiled.vectors import STEP, step_to_violator, violator


@numba.njit(cache=True, nogil=True, error_model="numpy")
def violation(beta: float, r: float, low: float, high: float) -> float:  # pragma: no cover - compiled
    """Violation |alpha - P(alpha - g)| of one row (eq. 4.11), expressed by beta = alpha y and r = y g."""
    return abs(beta - min(max(beta - r, low), high))


@numba.njit(cache=True, nogil=True, error_model="numpy")
def greediest(
    beta: Doubles, r: Doubles, low: Doubles, high: Doubles
) -> tuple[int, float]:  # pragma: no cover - compiled
    """Find the row with the largest |projected gradient|, and that value (-1 and 0 without rows); 32 bytes per row."""
    whole = beta.size // STEP * STEP
    row, best = violator(beta, r, low, high, whole) if whole else (-1, 0.0)
    return _better(beta, r, low, high, whole, row, best)


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def advance(
    beta: Doubles, r: Doubles, low: Doubles, high: Doubles, column: Reals, step: float
) -> tuple[int, float]:  # pragma: no cover - compiled
    """Execute ``r += step * column`` and search as :func:`greediest` does, in one pass."""
    whole = beta.size // STEP * STEP
    row, best = step_to_violator(beta, r, low, high, column, step, whole) if whole else (-1, 0.0)
    for j in range(whole, beta.size):
        r[j] += step * np.float64(column[j])
    return _better(beta, r, low, high, whole, row, best)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _better(
    beta: Doubles, r: Doubles, low: Doubles, high: Doubles, first: int, row: int, best: float
) -> tuple[int, float]:  # pragma: no cover - compiled
    """Return the row with the larger violation: `row`, or one from `first` on."""
    for j in range(first, beta.size):
        v = violation(beta[j], r[j], low[j], high[j])
        if v > best or row < 0:
            row, best = j, v
    return row, best


@numba.njit(cache=True, nogil=True, error_model="numpy")
def optimum(beta: float, r: float, low: float, high: float, diagonal: float) -> float:  # pragma: no cover - compiled
    """Exact minimiser of the objective in one variable (eq. 4.10)."""
    return min(max(beta - r / max(diagonal, 1e-12), low), high)


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def share(beta: Doubles, r: Doubles, high: Doubles) -> float:  # pragma: no cover - compiled
    """Contribution of these rows to the objective, 1/2 beta'(r - y); the bounds give the sign y."""
    total = 0.0
    for j in range(beta.size):
        total += beta[j] * (r[j] - (1.0 if high[j] > 0.0 else -1.0))
    return 0.5 * total
