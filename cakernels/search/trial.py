"""The time of a search, trials of candidates, and the standings of a race.

1. :class:`Budget`: the time, which SIGTERM may end.
2. :class:`Trial`: a candidate that was trained on a number of rows.
3. :class:`Rival`: predictions of another model for the same rows.
4. :class:`Standings`: results so far, and expected times of further trainings.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.machine import threads
from cacore.machine.clock import raising, working_time
from cacore.probability.calibrator import Calibrator
from cakernels.search.candidates import NEAR_SETTINGS, Candidate, Growth
from cakernels.search.data import FOLDED, Data, Split
from casvm.svm_fit import LENGTHS_SECONDS

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator


class Terminated(KeyboardInterrupt):
    """The process was sent SIGTERM."""


class Budget:
    """The time that a search may take, by rank 0's clock.

    Parameters
    ----------
    seconds : float or None
        None for no limit.
    started : float or None
        Reading of :func:`time.perf_counter` at which the time began; None for now.
    """

    def __init__(self, seconds: float | None, started: float | None = None) -> None:
        self.seconds = seconds
        self._started = time.perf_counter() if started is None else started

    def spent(self, comm: Communicator) -> float:
        """Seconds since the beginning, the same on all ranks; collective."""
        with comm.uncounted():
            return float(comm.bcast(np.array([time.perf_counter() - self._started]))[0])

    def worked(self, comm: Communicator) -> float:
        """Rank 0's seconds that were not spent compiling; only differences have a meaning. Collective."""
        with comm.uncounted():
            return float(comm.bcast(np.array([working_time()]))[0])

    def remaining(self) -> float | None:
        """Seconds to the end by this rank's clock; None if there is no limit."""
        return None if self.seconds is None else self.seconds - (time.perf_counter() - self._started)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Raise :class:`Terminated` in the block on SIGTERM, for a command."""
    with raising(signal.SIGTERM, Terminated):
        yield


OUT_OF_TIME = "out of time"  # reason of a trial that its time limit has ended
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
    kernels : float
        Number of kernels that it has compared, see :meth:`Candidate.kernel_cost`; a training on more rows has the
        chosen one.
    scales : float
        Those of the seconds in which length scales were learned, on as many rows however many it has.
    rounds : int
        Number of rounds in which they were learned.
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
    kernels: float = 1
    scales: float = 0.0
    rounds: int = 1
    solving: float = 0.0
    judging: float = 0.0
    calibrator: Calibrator | None = None
    squared: float = 0.0
    deviation: float = 0.0

    def add_seconds(self, fitted: BaseEstimator, comm: Communicator) -> None:
        """Add the seconds in which length scales were learned, and those of an SVM's final solutions; collective.

        They are rank 0's, on all ranks. Several parts are solved at once.
        """
        statistics = getattr(fitted, "solver_", {})
        lengths_seconds = getattr(fitted, "lengths_seconds_", statistics.get(LENGTHS_SECONDS, 0.0))
        parts = np.asarray(statistics.get("seconds", ()), np.float64)
        at_once = max(1, min(len(parts), comm.size * threads.current()))
        with comm.uncounted():
            took = comm.bcast(np.array([lengths_seconds, parts.sum() / at_once], np.float64)).tolist()
        self.scales, self.solving = self.scales + took[0], self.solving + took[1]

    def scales_after(self, rows: int, last: bool) -> float:
        """Seconds in which another training learns length scales: not where it keeps those that were learned."""
        return self.scales / max(1, self.rounds) * self.candidate.rounds_after(rows, last)

    def share(self, rows: int, last: bool) -> float:
        """Share of its time that another training would take here if it searches as one on so many rows.

        The last one of an SVM does not search.

        Without length scales, which are learned every time. An SVM's search takes what its solutions, if their time is
        known, and predictions do not. Ridge regression takes its time by kernels, less what routing takes.
        """
        searched = 1.0
        if self.settings and self.solving:
            solving_and_search = max(self.seconds - self.scales, 1e-9)
            needed = min(1.0, (self.solving + (0.0 if last else self.judging)) / solving_and_search)
            searched = needed if last else needed + (1.0 - needed) * min(1.0, NEAR_SETTINGS / self.settings)
        searched *= (self.candidate.kernel_cost_after(rows, last) + _ROUTING) / (self.kernels + _ROUTING)
        return min(1.0, searched)


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """The trials, the best first; of equal ones, that with more rows.

    Regressions are compared by their errors. Wrong labels among a few thousand rows hardly tell good classifiers apart:
    those whose error is within a standard deviation of the smallest one are compared by the squared error of their
    probabilities, to which every row contributes.
    """
    trials = list(trials)
    least = min(trials, key=lambda trial: trial.error, default=None)
    if least is None:
        return []
    bound = least.error + least.deviation

    def place(trial: Trial) -> tuple[bool, float, float, int]:
        near = trial.error <= bound
        return not near, trial.squared if near else trial.error, trial.error, -trial.rows

    return sorted(trials, key=place)


# What the race and its end share. No measurement is recorded for these values; they were reasoned.
FINAL = 1.15  # factor by which the last training may take longer than expected
MANY_MORE = (
    2  # times as many rows, beyond which a time is harder to expect, and for which an equal candidate is preferred
)
# Largest error over the smallest one of its rung for a promotion outside the best third: models gain by more rows to
# different degrees (a9a: 1,500 points have 85.28 % right in 21 s, the best SVM 85.10 %; commit b5dfcd64).
CLOSE = 1.25
MUCH_MORE = 1.5  # times as many rows, or seconds, that make a difference
MODELS = 4  # most models that are averaged: of a blend, twice as many of few rows, which take little time; or divisions
# Of the time: for new candidates before all promotions, and most of it for the first training on all rows and the last.
MAIN_SHARE = 0.4
SMALL_SHARE = 0.2  # of the time: most of it for all models of a blend, and for the first of two last trainings
_LEAST = 0.05  # share of the time that is always kept, since a training before the last one may end late


@dataclass(frozen=True)
class Rival:
    """Another model's predictions for the rows that judge.

    Attributes
    ----------
    name : {"linear", "trees"}
    predicted : ndarray, shape (n_local, ...)
        Numbers, labels or probabilities for this rank's rows, as the score judges them; only those of rows that are
        held out in some fold are used.
    seconds : float
        Of training and prediction, in all folds.
    """

    name: str
    predicted: NDArray[np.generic]
    seconds: float


class Standings:
    """Trials that have ended, and predictions from them.

    Attributes
    ----------
    data : Data
    split : Split
    budget : Budget
    asked : int
        Number of rows, of all ranks, that the model will predict within the same time.
    trials : list of Trial
    folds : int
        Number of folds in which a candidate is trained and judged.
    """

    data: Data
    split: Split
    budget: Budget
    asked: int
    trials: list[Trial]
    folds: int

    @property
    def best(self) -> Trial | None:
        """The best trial, on however many rows; None if none has succeeded."""
        return next(iter(ranked(self._good())), None)

    def leading(self) -> list[Trial]:
        """The best trial of each of the candidates that a blend may have, the best first."""
        best_by_key: dict[Any, Trial] = {}
        results = set()  # of candidates that end as the same model, for instance where no metric pays
        for trial in ranked(self._good()):
            if trial.candidate.key not in best_by_key and (trial.error, trial.squared) not in results:
                best_by_key[trial.candidate.key] = trial
                results.add((trial.error, trial.squared))
        return list(best_by_key.values())[: MODELS * (1 if self.data.n > FOLDED else 2)]

    def on(self, rows: int) -> list[Trial]:
        """Trials on so many rows that succeeded, the best first."""
        return ranked(trial for trial in self._good() if trial.rows == rows)

    def _good(self) -> list[Trial]:
        return [trial for trial in self.trials if math.isfinite(trial.error)]

    def seconds(self, trial: Trial, rows: int, last: bool = False) -> float:
        """Predicted seconds of one training of this candidate on so many rows; the `last` one does not search."""
        scaled = (trial.seconds - trial.scales) * trial.share(rows, last)
        return (trial.scales_after(rows, last) + scaled * self._growth(trial).factor(rows)) / self.folds

    def _growth(self, trial: Trial) -> Growth:
        """Growth of its time, but for length scales: as measured, if it was trained on fewer rows as well."""
        key = trial.candidate.key
        before = [earlier for earlier in self._good() if earlier.candidate.key == key and earlier.rows < trial.rows]
        searched = [earlier.settings or earlier.kernels > 1 for earlier in (trial, *before[-1:])]
        usual = trial.candidate.growth(trial.rows)
        if not before or any(searched) or trial.kernels != before[-1].kernels:
            return usual
        factor = (before[-1].seconds - before[-1].scales) / max(trial.seconds - trial.scales, 1e-9)
        return usual.through(before[-1].rows, factor)

    def rows_in(self, trial: Trial, seconds: float) -> int:
        """Largest number of rows on which training this candidate, and predicting, are expected to end in time.

        That is all rows, or fewer if these are at least half as many again as the candidate has had; otherwise 0.
        """
        fixed = FINAL * trial.scales_after(self.data.n, last=True) / self.folds
        seconds_of_same = self.end(trial, trial.rows) - fixed
        rows = self._growth(trial).within(max(seconds - fixed, 0.0) / max(seconds_of_same, 1e-9))
        if rows >= self.data.n:
            return self.data.n
        rows = int(min(rows, self.split.n_train))
        return rows if self.split.folds == 1 and rows >= MUCH_MORE * trial.rows else 0

    def end(self, trial: Trial, rows: int) -> float:
        """Most seconds of the last training on so many rows, and of the predictions after it.

        Twice the usual delay is allowed for where the candidate was trained on less than half as many rows.
        """
        late = FINAL if rows <= MANY_MORE * trial.rows else FINAL**2
        return late * self.seconds(trial, rows, last=True) + self.predicting(trial, rows)

    def predicting(self, trial: Trial, rows: int) -> float:
        """Predicted seconds for the rows that are asked for, by this candidate trained on so many rows."""
        n, folds = self.data.n, self.split.folds
        judges = n - self.split.n_train if folds == 1 else n * self.folds / folds
        return self.judging(trial, rows) * self.asked / judges

    def judging(self, trial: Trial, rows: int) -> float:
        """Predicted seconds to judge it after a training on so many rows; they grow with the rows of a part."""
        parts = trial.candidate.parts
        return trial.judging * rows / parts(rows) * parts(trial.rows) / trial.rows

    def reserve(self) -> float:
        """Seconds to keep for the end: for the best candidate on all rows, and for a blend if they are few.

        At least a twentieth of the time is kept, since a training before it may end late.
        """
        best = self.best
        if best is None or self.budget.seconds is None:
            return 0.0
        rows = self.rows_in(best, MAIN_SHARE * self.budget.seconds)
        if not rows:
            return self.predicting(best, best.rows)
        blend = sum(self.end(leader, self.data.n) for leader in self.leading())
        alone = self.end(best, rows)
        return max(alone, _LEAST * self.budget.seconds, blend if blend <= SMALL_SHARE * self.budget.seconds else 0.0)
