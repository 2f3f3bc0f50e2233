"""Ending settings early: those that trail the best by more than chance explains do not get the remaining folds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cacore.tuning.scorers import Counts, scores, spread

ERRORS = 2.0  # standard errors of a difference by which a setting must trail


_TELLING = 2000  # rows that a fold needs to end more settings than it costs to begin another round


def rounds(folds: int, rows: int) -> list[list[int]]:
    """Folds by rounds, after each of which settings are ended: the first, the second, the others.

    Of few rows the first two are one round: a fold alone ends next to nothing, and kernel values are computed for each
    round.
    """
    first = [[0], [1]] if rows >= _TELLING * folds else [[0, 1]]
    return [some for some in (*first, list(range(2, folds))) if some]


def survivors(name: str, counts: Counts, alive: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which settings go on.

    Parameters
    ----------
    name : str
        Of a scorer.
    counts : ndarray, shape (settings, 3, k)
        Added up over the folds until now.
    alive : ndarray of bool, shape (settings,)
        Which have gone on until now.

    Returns
    -------
    ndarray of bool, shape (settings,)
        Those of `alive` but such as trail the best of them by more than :data:`ERRORS` standard errors of the
        difference of two shares, as of rows drawn for each anew. All settings are judged by the same rows, so that the
        true error of the difference is smaller, often by half or more.
    """
    score, error = scores(name, counts), spread(name, counts)
    best = int(np.argmax(np.where(alive, np.nan_to_num(score, nan=-np.inf), -np.inf)))
    behind = score[best] - score
    return np.asarray(alive & ~(behind > ERRORS * np.sqrt(np.square(error) + error[best] ** 2)))
