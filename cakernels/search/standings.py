"""The standings of a race: its trials so far, and what further trainings are expected to take."""

from __future__ import annotations

import math
from typing import Any

from cakernels.search.data import FOLDED, Data, Split
from cakernels.search.deadline import Budget
from cakernels.search.growth import Growth
from cakernels.search.trial import Trial, ranked

FINAL = 1.15  # factor by which the last training may take longer than expected
_FAR = 2  # times as many rows, beyond which it is harder to expect
_MODELS = 4  # most models in a blend; twice as many of few rows, which take little time
_LAST = 0.4  # most of the time that is kept for the last training
_LEAST, _BLENDED = 0.05, 0.2  # least of the time that is kept, and most of it for all candidates of a blend


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
        found: dict[Any, Trial] = {}
        results = set()  # of candidates that end as the same model, for instance where no metric pays
        for one in ranked(self._good()):
            if one.candidate.key not in found and (one.error, one.squared) not in results:
                found[one.candidate.key] = one
                results.add((one.error, one.squared))
        return list(found.values())[: _MODELS * (1 if self.data.n > FOLDED else 2)]

    def on(self, rows: int) -> list[Trial]:
        """Trials on so many rows that succeeded, the best first."""
        return ranked(one for one in self._good() if one.rows == rows)

    def _good(self) -> list[Trial]:
        return [one for one in self.trials if math.isfinite(one.error)]

    def seconds(self, trial: Trial, rows: int, last: bool = False) -> float:
        """Predicted seconds of one training of this candidate on so many rows; the `last` one does not search."""
        rest = (trial.seconds - trial.scales) * trial.share(last)
        return (trial.scales + rest * self._growth(trial).factor(rows)) / self.folds

    def _growth(self, trial: Trial) -> Growth:
        """Growth of its time, but for an SVM's length scales: as measured, if it was trained on fewer rows as well."""
        key = trial.candidate.key
        before = [one for one in self._good() if one.candidate.key == key and one.rows < trial.rows]
        if not before or any(one.settings or one.kernels > 1 for one in (trial, before[-1])):
            return trial.candidate.growth(trial.rows)
        alike = trial.candidate.growth(trial.rows, lengths=False)
        factor = (before[-1].seconds - before[-1].scales) / max(trial.seconds - trial.scales, 1e-9)
        return alike.through(before[-1].rows, factor)

    def rows_in(self, trial: Trial, seconds: float) -> int:
        """Largest number of rows on which training this candidate, and predicting, are expected to end in time.

        That is all rows, or fewer if these are at least half as many again as the candidate has had; otherwise 0.
        """
        fixed = FINAL * trial.scales / self.folds
        one = self.end(trial, trial.rows) - fixed
        rows = self._growth(trial).within(max(seconds - fixed, 0.0) / max(one, 1e-9))
        if rows >= self.data.n:
            return self.data.n
        rows = int(min(rows, self.split.n_train))
        return rows if self.split.folds == 1 and rows >= 1.5 * trial.rows else 0

    def end(self, trial: Trial, rows: int) -> float:
        """Most seconds of the last training on so many rows, and of the predictions after it.

        Twice the usual delay is allowed for where the candidate was trained on less than half as many rows.
        """
        late = FINAL if rows <= _FAR * trial.rows else FINAL**2
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
        rows = self.rows_in(best, _LAST * self.budget.seconds)
        if not rows:
            return self.predicting(best, best.rows)
        blend = sum(self.end(one, self.data.n) for one in self.leading())
        alone = self.end(best, rows)
        return max(alone, _LEAST * self.budget.seconds, blend if blend <= _BLENDED * self.budget.seconds else 0.0)
