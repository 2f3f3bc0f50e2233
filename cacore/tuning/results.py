"""What came of a search: scores by setting and fold, the choice, and how estimators, reports and tables show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.errors import InputError

_BEST = 5  # settings of the table


@dataclass
class Results:
    """The settings of a grid, and what cross-validation says of them.

    Attributes
    ----------
    axes : mapping of str to tuple of float
        Values of each parameter; settings are numbered with the last parameter changing fastest.
    scores : ndarray, shape (settings, folds)
        NaN for folds that a setting was not tried on.
    scoring : str
        A scorer's name; larger is better.
    seconds : float
        Of the slowest rank.
    chosen : dict
        By parameter: its value, or where every part has chosen its own an array with one a part.
    chosen_score : float
        The chosen setting's mean over the folds; of parts with settings of their own that of all parts together.
    solved, stopped : int
        Solutions; those among them that stopped at their limit of steps.
    """

    axes: Mapping[str, tuple[float, ...]]
    scores: NDArray[np.float64]
    scoring: str
    seconds: float = 0.0
    chosen: dict[str, Any] = field(default_factory=dict)
    chosen_score: float = float("nan")
    solved: int = 0
    stopped: int = 0

    @property
    def settings(self) -> list[dict[str, float]]:
        """All settings, in their order."""
        grids = np.meshgrid(*self.axes.values(), indexing="ij")
        columns = [grid.ravel().tolist() for grid in grids]
        return [dict(zip(self.axes, values, strict=True)) for values in zip(*columns, strict=True)]

    @property
    def folds(self) -> int:
        """How many there are."""
        return int(self.scores.shape[1])

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Which settings were ended before their last fold."""
        return np.asarray(np.isnan(self.scores).any(axis=1))

    @property
    def mean(self) -> NDArray[np.float64]:
        """Of each setting, over the folds that it was tried on; NaN without one."""
        tried = ~np.isnan(self.scores)
        total = np.where(tried, self.scores, 0.0).sum(axis=1)
        nothing = np.full(len(total), np.nan)
        return np.asarray(np.divide(total, tried.sum(axis=1), out=nothing, where=tried.any(axis=1)))

    @property
    def order(self) -> NDArray[np.int64]:
        """The settings, the best one first, those that were ended last; of equal ones in their order."""
        return np.lexsort((-np.nan_to_num(self.mean, nan=-np.inf), self.ended))

    def choose(self) -> dict[str, float]:
        """Take the setting with the best mean of those that were tried on all folds; of equal ones the first."""
        if self.ended.all():
            raise InputError("no setting was tried on all folds")
        best = int(self.order[0])
        self.chosen, self.chosen_score = self.settings[best], float(self.mean[best])
        return self.chosen

    def cv_results(self) -> dict[str, Any]:
        """As :class:`sklearn.model_selection.GridSearchCV` has them, and "ended": tried on some folds only."""
        settings, spread = self.settings, np.full(len(self.scores), np.nan)
        tried = ~self.ended | ~np.isnan(self.mean)
        spread[tried] = np.nanstd(self.scores[tried], axis=1)
        rank = np.empty(len(settings), np.int32)
        order = self.order
        keys = list(zip(self.ended[order].tolist(), self.mean[order].tolist(), strict=True))
        for place, setting in enumerate(order):
            rank[setting] = keys.index(keys[place]) + 1  # equal ones share the first one's rank
        return {
            **{f"param_{name}": np.array([one[name] for one in settings]) for name in self.axes},
            "params": settings,
            **{f"split{f}_test_score": self.scores[:, f] for f in range(self.folds)},
            "mean_test_score": self.mean, "std_test_score": spread, "rank_test_score": rank, "ended": self.ended,
        }  # fmt: skip

    def rows(self) -> list[dict[str, Any]]:
        """The report's `grid`: a line a setting."""
        tried = (~np.isnan(self.scores)).sum(axis=1)
        return [
            {**setting, f"cv_{self.scoring}": mean, "folds": int(count), "ended": bool(count < self.folds)}
            for setting, mean, count in zip(self.settings, self.mean.tolist(), tried.tolist(), strict=True)
        ]

    def described(self) -> dict[str, Any]:
        """The report's `cv`."""
        return {
            "folds": self.folds, "scoring": self.scoring, "score": self.chosen_score, "settings": len(self.scores),
            "ended": int(self.ended.sum()), "solved": self.solved, "stopped": self.stopped,
            "per_part": any(np.ndim(value) > 0 for value in self.chosen.values()), "seconds": self.seconds,
        }  # fmt: skip


@dataclass(frozen=True)
class Columns:
    """What the columns of a report's `grid` are, for tables and pictures.

    Attributes
    ----------
    x, y : str
        The parameters along the axes of a picture.
    score : str
        What is compared; None in rows that have none. Rows with "ended" true have it of some folds only.
    title : str
        What the score is.
    smaller : bool
        Whether a smaller one is better.
    one : bool
        Whether one setting was chosen, and not one a part.
    """

    x: str
    y: str
    score: str
    title: str
    smaller: bool = False
    one: bool = True


def best_lines(grid: Sequence[Mapping[str, Any]], names: Sequence[str], columns: Columns) -> list[str]:
    """The best settings as lines of a table, from the report's `grid`: what `names` are there, and the score."""
    rows = [row for row in grid if row[columns.score] is not None and not row.get("ended")]
    best = sorted(rows, key=lambda row: row[columns.score] * (1 if columns.smaller else -1))[:_BEST]
    score = ".6g" if columns.smaller else ".4f"
    return [
        "  ".join([*(_described(name, row[name]) for name in names), f"{row[columns.score]:{score}}"]) for row in best
    ]


def _described(name: str, value: str | float) -> str:
    return f"{value:<9}" if isinstance(value, str) else f"{name} {value:<9.4g}"


def at_the_end(axes: Mapping[str, Sequence[float]], chosen: Mapping[str, Any]) -> list[str]:
    """A line for each parameter whose chosen value is the end of its grid."""
    return [
        f"the chosen {name} {chosen[name]:g} is the end of its grid: a wider one may be better"
        for name, values in axes.items()
        if np.ndim(chosen[name]) == 0 and len(values) > 2 and chosen[name] in (values[0], values[-1])
    ]
