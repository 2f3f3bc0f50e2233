"""Pairs of predicted quantiles, whose intervals are widened until they hold on rows that were held out.

Romano, Patterson and Candes (2019); the order statistics of the scores are in :mod:`cacore.probability.conformal`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cacore.errors import InputError
from cacore.probability.conformal import rank_of, rows_for

Pair = tuple[int, int]  # places of the lower and the upper quantile among the levels


def quantile_pairs(levels: tuple[float, ...]) -> tuple[Pair, ...]:
    """Pairs that make intervals: each level below 1/2, with the level above 1/2 that is closest to its mirror image.

    Raises
    ------
    InputError
        All levels are on one side of 1/2.
    """
    above = [place for place, level in enumerate(levels) if level > 0.5]
    below = [place for place, level in enumerate(levels) if level < 0.5]
    if not above or not below:
        shown = ",".join(f"{level:g}" for level in levels)
        raise InputError(
            f"intervals: quantile = {shown} has no levels on both sides of 0.5; give a lower and an upper one, such as "
            "0.05,0.95"
        )
    return tuple((low, min(above, key=lambda high: abs(levels[low] + levels[high] - 1.0))) for low in below)


def check_held_out(levels: tuple[float, ...], n: int) -> None:
    """Raise an InputError if `n` held-out rows are too few for the highest of these levels.

    The quantile tau is moved by the ceil((n + 1) tau)-th smallest of n residuals, of which tau / (1 - tau) are needed.
    A low level needs one row.
    """
    if not n:
        raise InputError("calibrate: no held-out row has a positive weight; hold out a larger share")
    if rank_of(max(levels), n) > n:
        raise InputError(
            f"calibrate: quantile {max(levels):g} needs {rows_for(max(levels)):,} held-out rows, and {n:,} are held "
            "out; hold out a larger share, or give a level closer to 0.5"
        )


def pair_scores(predicted: NDArray[np.float64], y: NDArray[np.float64], pairs: tuple[Pair, ...]) -> NDArray[np.float64]:
    """Scores max(q_lo - y, y - q_hi) of each row and pair, shape (n, len(pairs)); below 0 inside the interval.

    Parameters
    ----------
    predicted : ndarray of float64, shape (n, t)
        Predicted quantiles, ascending in each row.
    y : ndarray of float64, shape (n,)
    pairs : tuple of Pair
    """
    low, high = (list(places) for places in zip(*pairs, strict=True))
    return np.maximum(predicted[:, low] - y[:, None], y[:, None] - predicted[:, high])


def closest_pair(levels: tuple[float, ...], pairs: tuple[Pair, ...], coverage: float) -> int:
    """Number of the pair whose levels differ by about this coverage."""
    return min(range(len(pairs)), key=lambda k: abs(levels[pairs[k][1]] - levels[pairs[k][0]] - coverage))


def interval_ends(
    predicted: NDArray[np.float64], pair: Pair, width: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ends of the intervals of a pair of quantiles, each moved outwards by `width`.

    Where a negative width makes them pass each other, both are midway between the quantiles.
    """
    low, high = predicted[:, pair[0]], predicted[:, pair[1]]
    middle = 0.5 * (low + high)
    return np.minimum(low - width, middle), np.maximum(high + width, middle)
