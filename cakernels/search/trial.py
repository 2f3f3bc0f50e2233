"""A candidate that was trained and judged, and which of several is the best."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.machine import threads
from cacore.probability.calibrator import Calibrator
from cakernels.search.candidates import NEAR_WIDTHS, Candidate
from casvm.fit import LENGTHS_SECONDS

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

OUT_OF_TIME = "out of time"  # reason of a trial that its time limit has ended
_NEAR = 4  # settings of an SVM's search on more rows
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
    solving : float
        Those of the seconds in which an SVM's final solutions were found.
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
    solving: float = 0.0
    judging: float = 0.0
    calibrator: Calibrator | None = None
    squared: float = 0.0
    deviation: float = 0.0

    def add_seconds(self, fitted: BaseEstimator, comm: Communicator) -> None:
        """Add the seconds in which an SVM has learned length scales, and those of its final solutions; collective.

        They are rank 0's, on all ranks. Several parts are solved at once.
        """
        own = getattr(fitted, "solver_", {})
        parts = np.asarray(own.get("seconds", ()), np.float64)
        at_once = max(1, min(len(parts), comm.size * threads.current()))
        with comm.uncounted():
            took = comm.bcast(np.array([own.get(LENGTHS_SECONDS, 0.0), parts.sum() / at_once], np.float64)).tolist()
        self.scales, self.solving = self.scales + took[0], self.solving + took[1]

    def share(self, last: bool) -> float:
        """Share of its time that another training takes, on as many rows, if it searches less or, the last, not at all.

        Without length scales, which are learned every time. An SVM's search takes what its solutions, if their time is
        known, and predictions do not. Ridge regression takes its time by kernels, less what routing takes.
        """
        searched = 1.0
        if self.settings and self.solving:
            rest = max(self.seconds - self.scales, 1e-9)
            needed = min(1.0, (self.solving + (0.0 if last else self.judging)) / rest)
            searched = needed if last else needed + (1.0 - needed) * min(1.0, _NEAR / self.settings)
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
