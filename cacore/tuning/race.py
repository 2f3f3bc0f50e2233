"""Early stopping of settings: those significantly worse than the best are not tried on the remaining folds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cacore.tuning.scorers import Counts, scores, spread

ERRORS = 2.0  # standard errors of the difference by which a setting must trail the best to be dropped
_TELLING = 2000  # rows per fold from which on a round with one fold saves more than it costs


def rounds(folds: int, rows: int) -> list[list[int]]:
    """Folds of each round; settings are dropped after every round: the first fold, the second, the others.

    With few rows the first two folds make one round, because one fold alone rules out almost nothing, and every round
    computes the kernel values again.
    """
    first = [[0], [1]] if rows >= _TELLING * folds else [[0, 1]]
    return [some for some in (*first, list(range(2, folds))) if some]


def survivors(name: str, counts: Counts, alive: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Drop the settings that are significantly worse than the best.

    Parameters
    ----------
    name : str
        Name of a scorer.
    counts : ndarray, shape (settings, 3, k)
        Counts added up over the folds so far.
    alive : ndarray of bool, shape (settings,)
        Settings that have not been dropped so far.

    Returns
    -------
    ndarray of bool, shape (settings,)
        `alive` without the settings that trail the best by more than :data:`ERRORS` standard errors of the difference.

    Notes
    -----
    The standard error is that of two shares on independent rows. All settings are judged by the same rows, so the true
    error of the difference is smaller, often by half or more.
    """
    score, error = scores(name, counts), spread(name, counts)
    best = int(np.argmax(np.where(alive, np.nan_to_num(score, nan=-np.inf), -np.inf)))
    behind = score[best] - score
    return np.asarray(alive & ~(behind > ERRORS * np.sqrt(np.square(error) + error[best] ** 2)))
