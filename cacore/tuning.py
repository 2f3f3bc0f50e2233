"""Parameter search: grids, scores that add up over parts, early stopping of settings, the choice, and results.

1. :func:`parse` reads a grid: a number, a comma list, or ``lo:hi:COUNT`` spaced by powers.
2. :func:`survivors` stops settings early: those significantly worse than the best skip the remaining folds.
3. :func:`scores` rates classifiers by scikit-learn's names, from counts of right, predicted and true rows of each
   class. No rows are sent: the counts of all parts and folds add up, and their score is that of all rows together.
   Other scores, such as the area under the ROC curve, are refused.
4. :func:`choose` takes the best setting, and :class:`Results` holds all of them for reports and tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cacore.errors import InputError
from cacore.io.words import number

# Share of solutions that stopped at the limit, above which a search is doubtful. The default grid of a smooth curve has
# useless settings, 12 of whose 192 solutions stop; where half of the solutions stopped, a good setting was missed.
DOUBTFUL = 0.2


GridLike: TypeAlias = float | Collection[float] | str  # a parameter of an estimator: a value, several, or a word


def parse(text: str, option: str) -> tuple[float, ...]:
    """Values of a grid option: positive, ascending and distinct; an InputError names the option.

    `text` is like ``"1"``, ``"0.5,1,2"`` or ``"1e-7:1e-3:9"`` (nine values from 1e-7 to 1e-3 with equal ratios).
    """
    try:
        if ":" in text:
            low, high, count = text.split(":")
            values = spaced(float(low), float(high), int(count))
        else:
            values = [float(word) for word in text.split(",")]
    except ValueError as error:
        raise InputError(f"{option} {text}: give a number, a comma list, or lo:hi:COUNT") from error
    return checked(values, option)


def listed(values: tuple[float, ...]) -> str:
    """Text for these values that :func:`parse` reads."""
    return ",".join(f"{value:g}" for value in values)


def spaced(low: float, high: float, count: int) -> list[float]:
    """`count` values from `low` to `high` with equal ratios."""
    if count < 1 or (count == 1 and low != high) or not (0 < low < math.inf and 0 < high < math.inf) or count > 10_000:
        raise ValueError("a positive range and a count are needed")
    return [float(v) for v in np.geomspace(low, high, count)]


def checked(values: object, option: str) -> tuple[float, ...]:
    """One or more positive finite numbers, as an ascending tuple."""
    try:
        array = np.atleast_1d(np.asarray(values, dtype=float))
        if array.ndim > 1:
            raise ValueError("a list in a list")
        numbers = sorted({float(v) for v in array})
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{option} = {values!r}: a number or a list of numbers is needed") from error
    for value in numbers:
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{option} {value:g}: it must be a positive number")
    if not numbers:
        raise InputError(f"{option}: give at least one value")
    return tuple(numbers)


# Reasoned, not measured: a difference of two standard errors is chance in 1 of 20 cases.
ERRORS = 2.0  # standard errors of the difference by which a setting must trail the best to be dropped
_TELLING = 2000  # rows per fold from which on a round with one fold saves more than it costs


def rounds(folds: int, rows: int) -> list[list[int]]:
    """Folds of each round; settings are dropped after every round: the first fold, the second, the others.

    With few rows the first two folds make one round, because one fold alone rules out almost nothing, and every round
    computes the kernel values again.
    """
    first = [[0], [1]] if rows >= _TELLING * folds else [[0, 1]]
    return [group for group in (*first, list(range(2, folds))) if group]


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


Counts = NDArray[Any]

RIGHT, PREDICTED, TRUE = range(3)  # indices of the counts


def counted(codes: NDArray[np.int64], predicted: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """Counts of rows by class, shape (3, k): rightly predicted, predicted, and true members of each class."""
    right = np.bincount(codes[codes == predicted], minlength=k)
    return np.stack([right, np.bincount(predicted, minlength=k), np.bincount(codes, minlength=k)])


def _divided(over: NDArray[Any], under: NDArray[Any]) -> NDArray[np.float64]:
    """Quotient that is 0 where the denominator is 0, like scikit-learn's default for ``zero_division``."""
    return np.asarray(np.divide(over, under, out=np.zeros(np.shape(over)), where=np.asarray(under) > 0))


def _accuracy(counts: Counts) -> NDArray[np.float64]:
    return _divided(counts[..., RIGHT, :].sum(-1), counts[..., TRUE, :].sum(-1))


def _balanced_accuracy(counts: Counts) -> NDArray[np.float64]:
    there = counts[..., TRUE, :] > 0
    return _divided(_divided(counts[..., RIGHT, :], counts[..., TRUE, :]).sum(-1), there.sum(-1))


# Numerator and denominator of a class's score, from its right, predicted and true rows.
_OF_CLASSES: dict[str, Callable[[Counts, Counts, Counts], tuple[Counts, Counts]]] = {
    "f1": lambda right, predicted, true: (2.0 * right, predicted + true),
    "jaccard": lambda right, predicted, true: (right, predicted + true - right),
    "precision": lambda right, predicted, true: (right, predicted),
    "recall": lambda right, predicted, true: (right, true),
}


def _averaged(name: str, average: str, counts: Counts) -> NDArray[np.float64]:
    """A score of each class: that of the second of two, or its mean over the classes as in scikit-learn."""
    if average == "micro":
        counts = counts.sum(-1, keepdims=True)
    right, predicted, true = (counts[..., kind, :] for kind in (RIGHT, PREDICTED, TRUE))
    of_classes = _divided(*_OF_CLASSES[name](right, predicted, true))
    if average == "macro":
        there = (predicted + true) > 0  # as in scikit-learn, only labels that occur
        return _divided(np.where(there, of_classes, 0.0).sum(-1), there.sum(-1))
    if average == "weighted":
        return _divided((of_classes * true).sum(-1), true.sum(-1))
    return of_classes[..., -1]


SCORERS: dict[str, Callable[[Counts], NDArray[np.float64]]] = {
    "accuracy": _accuracy, "balanced_accuracy": _balanced_accuracy,
    **{
        f"{name}_{average}".rstrip("_"): partial(_averaged, name, average)
        for name in _OF_CLASSES for average in ("", "macro", "micro", "weighted")
    },
}  # fmt: skip


def scorer(value: object, name: str) -> str:
    """The name of a score, checked; the InputError names the option `name`."""
    if isinstance(value, str) and value in SCORERS:
        return value
    text = value if isinstance(value, str) and name.startswith("-") else repr(value)
    raise InputError(f"{name} {text}: it must be a score that adds up over parts: {', '.join(SCORERS)}")


def scores(name: str, counts: Counts) -> NDArray[np.float64]:
    """Scores, shape (...), from counts, shape (..., 3, k); NaN where no row was judged.

    Raises
    ------
    InputError
        If the score is defined for two classes only and there are more.
    """
    k = counts.shape[-1]
    if name in _OF_CLASSES and k != 2:
        raise InputError(f"scoring = {name}: it is for two classes, but there are {k}; use {name}_macro")
    scored = counts[..., TRUE, :].sum(-1) > 0
    return np.where(scored, SCORERS[name](counts), np.nan)


def spread(name: str, counts: Counts) -> NDArray[np.float64]:
    """Approximate standard error of each score, shape (...), as if it were a share of the rows that it depends on.

    Accuracy depends on all judged rows. Other scores may depend on the rarest class, so only its rows count.
    """
    true = counts[..., TRUE, :]
    rows = true.sum(-1) if name in ("accuracy", "f1_micro", "precision_micro", "recall_micro") else true.min(-1)
    score = np.clip(np.nan_to_num(scores(name, counts)), 0.0, 1.0)
    rows = np.maximum(rows, 1)
    return np.asarray(np.sqrt((score * (1.0 - score) + 1.0 / rows) / rows))


def choose(errors: NDArray[np.float64], last_axes: int = 0) -> tuple[int, ...] | None:
    """Index of the smallest finite error of an array of settings; None if there is none.

    Every search of this package ends here, but the races: the front's (:mod:`cakernels.search.race`), and rounds of a
    metric (:func:`cacore.data.metric.best_round`). Ranks whose errors may differ in the last bit agree on the errors
    before, or on the index after it.

    Parameters
    ----------
    errors : ndarray
        One axis per parameter; NaN or infinite for a setting without a solution, or one that was dropped.
    last_axes : int
        Number of trailing axes along which ties go to the last setting, such as the smoothest one; along the others,
        they go to the first.
    """
    if not np.isfinite(errors).any():
        return None
    trailing = range(errors.ndim - last_axes, errors.ndim)
    flipped = np.flip(np.where(np.isfinite(errors), errors, np.inf), tuple(trailing))
    index = [int(i) for i in np.unravel_index(int(np.argmin(flipped)), flipped.shape)]
    return tuple(errors.shape[axis] - 1 - i if axis in trailing else i for axis, i in enumerate(index))


_BEST = 5  # settings shown in the table


@dataclass
class Results:
    """The settings of a grid and their cross-validation scores.

    Attributes
    ----------
    axes : mapping of str to tuple of float
        Values of each parameter; settings are numbered with the last parameter changing fastest.
    scores : ndarray, shape (settings, folds)
        NaN for folds on which a setting was not tried.
    scoring : str
        Name of the scorer; larger is better.
    seconds : float
        Time of the slowest rank.
    chosen : dict
        Chosen value by parameter; an array with one value per part if every part chooses its own.
    chosen_score : float
        Mean score of the chosen setting over the folds. If every part chooses its own, the score of all parts together.
    solved : int
        Number of dual problems solved.
    stopped : ndarray of int64, shape (settings,)
        Number of each setting's problems that stopped at the iteration limit.
    """

    axes: Mapping[str, tuple[float, ...]]
    scores: NDArray[np.float64]
    scoring: str
    seconds: float = 0.0
    chosen: dict[str, Any] = field(default_factory=dict)
    chosen_score: float = float("nan")
    solved: int = 0
    stopped: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def limit_note(self) -> str | None:
        """A note that solutions stopped at the iteration limit, or None if all met their tolerance."""
        count = int(self.stopped.sum())
        if not count:
            return None
        return (
            f"{count:,} of {self.solved:,} solutions of the search stopped at the iteration limit, so that their "
            "settings may score too low: scale the features, or leave out the largest C"
        )

    @property
    def is_doubtful(self) -> bool:
        """True if so many solutions stopped at the iteration limit that a good setting may have lost.

        A few useless settings stop in many grids: 12 of 192 solutions for the default grid of a smooth curve.
        """
        return bool(self.stopped.sum() > DOUBTFUL * self.solved)

    @property
    def at_grid_end(self) -> dict[str, float]:
        """Chosen values that are an end of their grid; see :func:`grid_ends`."""
        return grid_ends(self.axes, self.chosen)

    @property
    def settings(self) -> list[dict[str, float]]:
        """All settings, in the order of their numbers."""
        grids = np.meshgrid(*self.axes.values(), indexing="ij")
        columns = [grid.ravel().tolist() for grid in grids]
        return [dict(zip(self.axes, values, strict=True)) for values in zip(*columns, strict=True)]

    @property
    def folds(self) -> int:
        """Number of folds."""
        return int(self.scores.shape[1])

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Mask of the settings that were dropped before their last fold."""
        return np.asarray(np.isnan(self.scores).any(axis=1))

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean score of each setting over the folds on which it was tried; NaN without any."""
        tried = ~np.isnan(self.scores)
        total = np.where(tried, self.scores, 0.0).sum(axis=1)
        nothing = np.full(len(total), np.nan)
        return np.asarray(np.divide(total, tried.sum(axis=1), out=nothing, where=tried.any(axis=1)))

    @property
    def order(self) -> NDArray[np.int64]:
        """Numbers of the settings from best to worst; dropped ones come last, equal ones stay in order."""
        return np.lexsort((-np.nan_to_num(self.mean, nan=-np.inf), self.ended))

    def choose(self) -> dict[str, float]:
        """Choose the setting with the best mean among those tried on all folds; the first one among equals."""
        index = choose(np.where(self.ended, np.nan, -self.mean))
        if index is None:
            raise InputError("no setting was tried on all folds")
        self.chosen, self.chosen_score = self.settings[index[0]], float(self.mean[index])
        return self.chosen

    def cv_results(self) -> dict[str, object]:
        """The `cv_results_` of :class:`sklearn.model_selection.GridSearchCV`, with two further columns.

        "ended": tried on some folds only; "stopped": number of solutions that stopped at the iteration limit.
        """
        settings, spread = self.settings, np.full(len(self.scores), np.nan)
        tried = ~self.ended | ~np.isnan(self.mean)
        spread[tried] = np.nanstd(self.scores[tried], axis=1)
        rank = np.empty(len(settings), np.int32)
        order = self.order
        keys = list(zip(self.ended[order].tolist(), self.mean[order].tolist(), strict=True))
        for place, setting in enumerate(order):
            rank[setting] = keys.index(keys[place]) + 1  # ties share the best rank
        return {
            **{f"param_{name}": np.array([chosen_values[name] for chosen_values in settings]) for name in self.axes},
            "params": settings,
            **{f"split{f}_test_score": self.scores[:, f] for f in range(self.folds)},
            "mean_test_score": self.mean, "std_test_score": spread, "rank_test_score": rank, "ended": self.ended,
            "stopped": self.stopped,
        }  # fmt: skip

    def rows(self) -> list[dict[str, object]]:
        """The report's `grid`: one entry per setting."""
        tried = (~np.isnan(self.scores)).sum(axis=1)
        return [
            {**setting, f"cv_{self.scoring}": mean, "folds": int(count), "ended": bool(count < self.folds)}
            for setting, mean, count in zip(self.settings, self.mean.tolist(), tried.tolist(), strict=True)
        ]

    def described(self) -> dict[str, object]:
        """The report's `cv`: a summary of the search."""
        return {
            "folds": self.folds, "scoring": self.scoring, "score": self.chosen_score, "settings": len(self.scores),
            "ended": int(self.ended.sum()), "solved": self.solved, "stopped": int(self.stopped.sum()),
            "per_part": any(np.ndim(value) > 0 for value in self.chosen.values()), "seconds": self.seconds,
        }  # fmt: skip


@dataclass(frozen=True)
class GridColumns:
    """Meaning of the columns of a report's `grid`, for tables and figures.

    Attributes
    ----------
    x, y : str
        Parameters along the axes of a heat map.
    score : str
        Column with the score; None in rows without one. In rows with "ended" true it covers only some folds.
    title : str
        Description of the score.
    smaller : bool
        True if smaller scores are better.
    single : bool
        True if one setting was chosen for all parts, False if each part chose its own.
    """

    x: str
    y: str
    score: str
    title: str
    smaller: bool = False
    single: bool = True


def best_lines(grid: Sequence[Mapping[str, Any]], names: Sequence[str], columns: GridColumns) -> list[str]:
    """The best settings of the report's `grid` as lines of a table: the parameters `names`, and the score."""
    rows = [row for row in grid if row[columns.score] is not None and not row.get("ended")]
    best = sorted(rows, key=lambda row: row[columns.score] * (1 if columns.smaller else -1))[:_BEST]
    return [
        "  ".join([*(_described(name, row[name]) for name in names), number(row[columns.score], 4)]) for row in best
    ]


def _described(name: str, value: str | float) -> str:
    return f"{value:<9}" if isinstance(value, str) else f"{name} {number(value):<9}"


def grid_ends(axes: Mapping[str, Sequence[float]], chosen: Mapping[str, Any]) -> dict[str, float]:
    """Chosen values that are an end of their grid, by parameter, so that a wider grid may have better ones.

    Parameters
    ----------
    axes : mapping of str to sequence of float
        Values of each parameter. Of two values or one, the chosen one is always an end, which says nothing.
    chosen : mapping of str to float
        An array, one value per part, has no ends. A chosen 0 is none: no parameter can be smaller.
    """
    compared = {name: values for name, values in axes.items() if len(values) > 2 and np.ndim(chosen[name]) == 0}
    ends = {name: chosen[name] for name, values in compared.items() if chosen[name] in (min(values), max(values))}
    return {name: value for name, value in ends.items() if value != 0}


def end_lines(ends: Mapping[str, float]) -> list[str]:
    """One line of advice for each parameter of :func:`grid_ends`."""
    remark = "is the end of its grid: a wider one may be better"
    return [f"the chosen {name} {number(value)} {remark}" for name, value in ends.items()]
