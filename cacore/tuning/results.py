"""Results of a parameter search: scores by setting and fold, the choice, and their form in reports and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.errors import InputError

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
    solved, stopped : int
        Number of dual problems solved, and of those that stopped at the iteration limit.
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
        if self.ended.all():
            raise InputError("no setting was tried on all folds")
        best = int(self.order[0])
        self.chosen, self.chosen_score = self.settings[best], float(self.mean[best])
        return self.chosen

    def cv_results(self) -> dict[str, object]:
        """The `cv_results_` of :class:`sklearn.model_selection.GridSearchCV`, and "ended": tried on some folds only."""
        settings, spread = self.settings, np.full(len(self.scores), np.nan)
        tried = ~self.ended | ~np.isnan(self.mean)
        spread[tried] = np.nanstd(self.scores[tried], axis=1)
        rank = np.empty(len(settings), np.int32)
        order = self.order
        keys = list(zip(self.ended[order].tolist(), self.mean[order].tolist(), strict=True))
        for place, setting in enumerate(order):
            rank[setting] = keys.index(keys[place]) + 1  # ties share the best rank
        return {
            **{f"param_{name}": np.array([one[name] for one in settings]) for name in self.axes},
            "params": settings,
            **{f"split{f}_test_score": self.scores[:, f] for f in range(self.folds)},
            "mean_test_score": self.mean, "std_test_score": spread, "rank_test_score": rank, "ended": self.ended,
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
            "ended": int(self.ended.sum()), "solved": self.solved, "stopped": self.stopped,
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
    one : bool
        True if one setting was chosen for all parts, False if each part chose its own.
    """

    x: str
    y: str
    score: str
    title: str
    smaller: bool = False
    one: bool = True


def best_lines(grid: Sequence[Mapping[str, Any]], names: Sequence[str], columns: GridColumns) -> list[str]:
    """The best settings of the report's `grid` as lines of a table: the parameters `names`, and the score."""
    rows = [row for row in grid if row[columns.score] is not None and not row.get("ended")]
    best = sorted(rows, key=lambda row: row[columns.score] * (1 if columns.smaller else -1))[:_BEST]
    score = ".6g" if columns.smaller else ".4f"
    return [
        "  ".join([*(_described(name, row[name]) for name in names), f"{row[columns.score]:{score}}"]) for row in best
    ]


def _described(name: str, value: str | float) -> str:
    return f"{value:<9}" if isinstance(value, str) else f"{name} {value:<9.4g}"


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
    return [
        f"the chosen {name} {value:g} is the end of its grid: a wider one may be better" for name, value in ends.items()
    ]
