"""The end of a search: weights of the best candidates, and their training on all rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import CommLike, Communicator
from cacore.errors import InputError, RankError
from cacore.machine.deadline import TimeIsUp, until
from cacore.probability.calibrator import Calibrator
from cacore.probability.conformal import Calibration
from cakernels.blend import blended
from cakernels.class_blend import classified
from cakernels.search.candidates import Candidate, first, load_trainers
from cakernels.search.data import FOLDS, REGRESSION, Data, Split
from cakernels.search.deadline import Budget
from cakernels.search.mixture import Mixture, alone, combined
from cakernels.search.race import Race
from cakernels.search.scores import Score
from cakernels.search.standings import FINAL
from cakernels.search.trial import Trial

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

_DIVISIONS = 4  # most divisions of the rows whose models are averaged
_WIDER = 2.0  # times as many rows, for which an equally good candidate is trained instead of the best
_SHARE = 0.8  # of the time that a last training may take, up to which it is made longer by folds and divisions
_OVERTIME = 3.0  # times the seconds of a training after the end of the time, that the last one may take
_STEP = 6  # times as many rows, beyond which the time of a last training is uncertain: one on fewer rows comes first,
_SURE, _FIRST = 0.5, 0.2  # unless it is expected to take half of the time that is left; the first takes a fifth of that
_MORE = 0.35  # time of a further division, as a share of that of a training with its search


@dataclass
class Found:
    """Result of a search.

    Attributes
    ----------
    estimators : list of estimator
        Fitted; the one with the largest weight first.
    weights : ndarray of float64, shape (k,)
        Their weights in a prediction, which add up to 1.
    candidates : list of Candidate
        What was trained, in the same order.
    rows : list of int
        Number of training rows of each.
    error : float
        Error on held-out rows of the best candidate, before it was trained on all rows; infinite if there is none.
    trials : list of Trial
        All candidates that were tried, in order.
    calibrators : list of Calibrator
        Those of a classifier's estimators, if it is a blend or has probabilities.
    calibration : Calibration or None
        Errors on the rows that judged, for the intervals of a regression.
    baseline : float
        Error on the same held-out rows of the mean target, or of the most frequent class.
    notes : list of str
        What users should know of the search.
    at_grid_end : list of dict
        Of each estimator, chosen values that are an end of their grid; see :func:`cacore.tuning.results.grid_ends`.
    """

    estimators: list[BaseEstimator]
    weights: NDArray[np.float64]
    candidates: list[Candidate]
    rows: list[int]
    error: float
    trials: list[Trial]

    calibrators: list[Calibrator] = field(default_factory=list)
    calibration: Calibration | None = None
    baseline: float = math.inf
    notes: list[str] = field(default_factory=list)
    at_grid_end: list[dict[str, float]] = field(default_factory=list)

    @property
    def rows_used(self) -> int:
        """Number of rows that trained the model; samples contain the smaller ones."""
        return max(self.rows)

    def model(self, comm: CommLike) -> Any:
        """The model that predicts: that of the only estimator, or a blend."""
        models = [one.model_ for one in self.estimators]
        if hasattr(self.estimators[0], "classes_"):
            return classified(models, self.weights, self.calibrators, comm)
        return blended(models, self.weights, comm, self.calibration)


def search(race: Race) -> Found:
    """Run the race, blend the best, and train them on all rows; collective.

    Raises
    ------
    InputError
        On all ranks: no candidate could be trained; the message is the first one's.
    """
    race.run()
    if race.best is None and not race.rescued():
        return _without_judges(race)
    best = race.best
    assert best is not None
    last = _last(race, best)
    mixed = combined(race, best) if last is best else alone(race, last)
    trained: list[tuple[BaseEstimator, int]] = []
    for i, trial in enumerate(mixed.trials):
        after = sum(race.predicting(one, rows) for one, (_, rows) in zip(mixed.trials, trained, strict=False))
        begun, later = race.budget.worked(race.comm), mixed.trials[i + 1 :]
        fitted, rows = _trained_on_all(race, trial, later, after)
        if i == 0:
            fitted, rows = _trained_further(race, trial, fitted, rows, race.budget.worked(race.comm) - begun, later)
        trained.append((fitted, rows))
    return _found(race, last, mixed, trained)


def _last(race: Race, best: Trial) -> Trial:
    """The best trial, or another that only chance sets apart from it and that has time for twice as many rows."""
    left = _left(race)

    def reached(one: Trial) -> int:
        return _rows(race, one, left) or one.rows

    alike = [one for one in race.leading() if one.error <= best.error + best.deviation]
    widest = max(alike, key=reached, default=best)
    return widest if reached(widest) >= _WIDER * reached(best) else best


def _left(race: Race) -> float:
    """Seconds to the end, by rank 0's clock; infinite without a limit. Collective."""
    left = race.budget.left()
    with race.comm.uncounted():
        return math.inf if left is None else float(race.comm.bcast(np.array([left]))[0])


def so_far(race: Race) -> Found | None:
    """The best model now, as it was trained on a part of the rows; None if there is none yet. Collective."""
    best = race.best
    if best is None or best.fitted is None:
        return None
    return _found(race, best, alone(race, best), [(best.fitted, best.rows)])


def _found(race: Race, best: Trial, mixed: Mixture, trained: list[tuple[BaseEstimator, int]]) -> Found:
    """The result, the estimator with the largest weight first.

    A sample may lack a rare class. A model without it cannot be blended, nor have probabilities.
    """
    order = [int(i) for i in np.argsort(-mixed.weights, kind="stable")]
    calibrated = bool(mixed.calibrators)
    if calibrated:
        whole = [i for i in order if len(trained[i][0].classes_) == len(race.data.classes)]
        calibrated, order = bool(whole), whole or order[:1]
    return Found(
        [trained[i][0] for i in order], mixed.weights[order] / mixed.weights[order].sum(),
        [mixed.trials[i].candidate for i in order], [trained[i][1] for i in order], best.error, race.trials,
        [mixed.calibrators[i] for i in order] if calibrated else [], mixed.calibration, race.baseline_error(),
        _notes(race, best, [trained[i][1] for i in order]),
        [_at_grid_end(trained[i][0], mixed.trials[i].fitted) for i in order],
    )  # fmt: skip


def _at_grid_end(fitted: BaseEstimator, before: BaseEstimator | None) -> dict[str, float]:
    """Chosen values at the end of a grid: of the last training or, if it took them over, of the one on fewer rows."""
    searched = fitted if hasattr(fitted, "at_grid_end_") else before
    return dict(getattr(searched, "at_grid_end_", {}))


def _notes(race: Race, best: Trial, rows: list[int]) -> list[str]:
    """Notes on the time, on rows that were left out, and on a model that is not better than a constant; collective."""
    notes, baseline = [], race.baseline_error()
    if race.overtime:
        notes.append(f"no candidate ended within the time: one was trained on {best.rows:,} rows after it")
    if min(rows) < race.data.n:
        used = ", ".join(f"{count:,}" for count in (rows if len(set(rows)) > 1 else rows[:1]))
        notes.append(f"trained on {used} of {race.data.n:,} rows: there was no time for more; {race.remedy}")
    if best.error >= baseline:
        notes.append(f"the model is not better than {race.baseline.name}, on rows held out from training")
    return notes


def _trained_on_all(race: Race, trial: Trial, later: Sequence[Trial], after: float) -> tuple[BaseEstimator, int]:
    """The candidate trained on all rows, or on as many as there is time for; otherwise as it is. And how many.

    Of the time, `after` seconds are for the predictions of the models before it.
    The `later` models of a blend keep an equal share of the time that is left, if it is enough to train them anew. What
    is not enough for them, or more than they need, is this one's. The best one comes before that: more rows help it
    more than better models beside it.
    """
    left = _left(race) - after
    if race.overtime and race.end(trial, race.data.n) <= _OVERTIME * trial.seconds:
        left = _OVERTIME * trial.seconds
    models = 1 + len(later)
    share = left - sum(_use(race, one, left / models) for one in later)
    rows = (trial is not race.best and _rows(race, trial, share)) or _rows(race, trial, left)
    if rows > _STEP * trial.rows and race.end(trial, rows) > _SURE * left:
        rows = _rows(race, trial, _FIRST * left) or rows
    if not rows and trial.fitted is not None:
        return trial.fitted, trial.rows
    candidate = trial.candidate.after(trial.fitted, last=True)
    divisions, expected = 1, race.seconds(trial, rows, last=True)
    if race.split.folds > 1 and candidate.in_folds and FOLDS * expected <= _SHARE * share:
        candidate, expected = candidate.thorough(), FOLDS * expected
    if race.data.task == REGRESSION or math.isinf(left):
        spare = (_SHARE * share - expected) / max(_MORE * expected, 1e-9)
        divisions = int(np.clip(1 + spare, 1, max(1, _DIVISIONS // models)))
    every = np.ones(len(race.split.fold), np.bool_)
    mask = every if rows in (0, race.data.n) else race.split.training(0, rows)
    race.last(candidate, rows or race.data.n)
    fitted, failed = None, False
    try:
        with until(None if math.isinf(left) else left - race.predicting(trial, rows or race.data.n)):
            fitted = race.trained(candidate, mask, rows or race.data.n, divisions)
    except (TimeIsUp, InputError, RankError):
        if trial.fitted is None:
            raise
        failed = True
    if race.comm.all(not failed):
        return fitted, rows or race.data.n
    return trial.fitted, trial.rows


def _trained_further(
    race: Race, trial: Trial, fitted: BaseEstimator, rows: int, seconds: float, later: Sequence[Trial]
) -> tuple[BaseEstimator, int]:
    """The candidate trained again on more rows while there is time; each training tells how long the next one takes.

    The `later` models of a blend keep their shares of the time.
    """
    while trial.rows < rows < race.data.n:
        candidate = trial.candidate.after(trial.fitted, last=True)
        trial = replace(
            trial, candidate=candidate, rows=rows, seconds=seconds * race.folds, judging=race.judging(trial, rows),
            fitted=fitted, settings=0, kernels=1,
        )  # fmt: skip
        begun = race.budget.worked(race.comm)
        fitted, rows = _trained_on_all(race, trial, later, 0.0)
        seconds = race.budget.worked(race.comm) - begun
    return fitted, rows


def _rows(race: Race, trial: Trial, seconds: float) -> int:
    """Number of rows on which a last training ends in time, even with a delay; 0 if that is no use."""
    return race.rows_in(trial, FINAL * seconds)


def _use(race: Race, trial: Trial, seconds: float) -> float:
    """The part of this time that training the candidate for the last time, and its predictions, need."""
    rows = _rows(race, trial, seconds)
    return min(seconds, race.end(trial, rows)) if rows else race.predicting(trial, trial.rows)


def _without_judges(race: Race) -> Found:
    """The first candidate that can be trained at all, on all rows; for data too small to hold rows out."""
    reason = InputError(race.trials[0].why if race.trials else "there was no time for any candidate")
    every = np.ones(len(race.split.fold), np.bool_)
    for candidate in first(race.data):
        try:
            fitted = race.trained(candidate, every, race.data.n)
        except (InputError, RankError):
            continue
        note = f"no candidate was judged, so that the error of the model is unknown: {reason}"
        return Found([fitted], np.ones(1), [candidate], [race.data.n], math.inf, race.trials, notes=[note])
    raise reason


def started(
    data: Data, score: Score, budget: Budget, comm: Communicator, ranks: CommLike, seed: int, most: int | None
) -> Race:  # fmt: skip
    """A race that has not begun, whose candidates' modules are loaded; collective."""
    load_trainers()
    return Race(data, Split.of(data, seed, comm), score, budget, comm, ranks, seed, most)
