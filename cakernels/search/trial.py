"""A candidate that was trained and judged, and which of several is the best."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.probability.calibrator import Calibrator
from cakernels.search.candidates import NEAR_WIDTHS, Candidate
from casvm.search import pieces

_NEAR = 4  # settings of an SVM's search on more rows
_PIECES = 0.6  # power of a piece's rows in its time, over that of all rows in as many pieces; 1 for a slow solver
_ROUTING = 0.2  # time of ridge regression that does not depend on the kernels compared, over that of one kernel


@dataclass
class Trial:
    """A candidate that was trained on a number of rows.

    Attributes
    ----------
    candidate : Candidate
    rows : int
        Number of training rows.
    error : float
        Its error on the held-out rows; infinite if it failed.
    seconds : float
        Of training and judging, in all folds, without compiling.
    ended : float
        Seconds from the beginning of the search to its end.
    held : ndarray
        Predictions for this rank's judged rows, in their order: numbers, or outputs for the classes.
    predicted : ndarray
        Predictions for the same rows: numbers, or labels.
    fitted : estimator or None
        As trained in the first fold.
    why : str
        Reason for a failure, or for going no further.
    settings : int
        Number of settings that its own search has compared, if a training on more rows compares fewer; otherwise 0.
    kernels : int
        Number of kernels that it has compared; a training on more rows has the chosen one.
    scales : float
        Those of the seconds in which an SVM learned length scales, on as many rows however many it has.
    judging : float
        Those of the seconds that predictions took.
    calibrator : Calibrator or None
        Of a classifier: it turns the outputs of the held-out rows into probabilities.
    squared : float
        Squared error of these probabilities, as a mean over the same rows as the error; 0 for a regression.
    deviation : float
        Standard deviation of the error due to chance, of a classifier; otherwise 0.
    """

    candidate: Candidate
    rows: int
    error: float
    seconds: float
    ended: float
    held: NDArray[np.generic] | None = None
    predicted: NDArray[np.generic] | None = None
    fitted: Any = None
    why: str = ""
    settings: int = 0
    kernels: int = 1
    scales: float = 0.0
    judging: float = 0.0
    calibrator: Calibrator | None = None
    squared: float = 0.0
    deviation: float = 0.0

    def share(self, last: bool) -> float:
        """Share of its time that another training takes, on as many rows, if it searches less or, the last, not at all.

        Without length scales, which are learned every time. A search of s settings in five folds is taken to cost 3 s
        trainings, since bad settings end early; less in large parts, whose settings are compared in small pieces of
        them. Ridge regression takes its time by kernels, less what routing takes.
        """
        setting = 3.0
        if self.rows > pieces.WHOLE:
            setting *= min(1.0, pieces.ROWS * self.candidate.parts(self.rows) / self.rows) ** _PIECES
        searched = (1 + (0 if last else setting * _NEAR)) / (1 + setting * self.settings) if self.settings else 1.0
        following = 1 if last or not self.candidate.on_points else len(NEAR_WIDTHS)
        searched *= (following + _ROUTING) / (self.kernels + _ROUTING)
        return min(1.0, searched)


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """The trials, the best first; of equal ones, that with more rows.

    Regressions are compared by their errors. Wrong labels among a few thousand rows hardly tell good classifiers apart:
    those whose error is within a standard deviation of the smallest one are compared by the squared error of their
    probabilities, to which every row contributes.
    """
    trials = list(trials)
    least = min(trials, key=lambda one: one.error, default=None)
    if least is None:
        return []
    bound = least.error + least.deviation

    def place(one: Trial) -> tuple[bool, float, float, int]:
        near = one.error <= bound
        return not near, one.squared if near else one.error, one.error, -one.rows

    return sorted(trials, key=place)
