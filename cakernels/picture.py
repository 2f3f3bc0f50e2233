"""Picture of a search: the error of every training on held-out rows, against the seconds at which it ended."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cacore.io.words import counted
from cakernels.board import BoardRow
from cakernels.search.data import REGRESSION
from cakernels.search.scores import Score

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

_SHADES = ("#6db1e8", "#2166ac", "#08264d", "#000000")  # few rows to many
_GREY, _ORANGE = "0.45", "#d95f02"
_TALL = 4.0  # the axis ends at so many times the distance from the smallest error to the median
KEPT, STOPPED, TOO_SLOW, FAILED = "kept", "not trained on more rows", "too slow for more rows", "without a result"
_MARKS = {KEPT: "o", STOPPED: "o", TOO_SLOW: "D"}


class DrawnRow(BoardRow):
    """A training with its outcome for the candidate (:func:`fates`) and its error, infinite without a score."""

    fate: str
    error: float


def drawn(board: Sequence[BoardRow], score: Score, chosen: Sequence[str] = ()) -> Figure:
    """Draw a leaderboard; `chosen` names the candidates in the final model, the most important one first.

    One mark per training: darker on more rows, and hollow if the candidate was not trained on more. A grey line joins
    the trainings of one candidate. Errors far above the others are drawn on the upper edge, and failures above it.
    """
    from cacore.run import figures

    rows: list[DrawnRow] = [{**row, "fate": fate, "error": _error(row["score"], score)}
                            for row, fate in zip(board, fates(board), strict=True)]  # fmt: skip
    good = [row for row in rows if row["fate"] != FAILED]
    failed = [row["ended"] for row in rows if row["fate"] == FAILED]
    figure = figures.blank(6.4, 5.0)
    axes = figure.add_subplot()
    if good:
        _show(axes, good, chosen)
    if failed:
        style: dict[str, Any] = {"color": _GREY, "ms": 7, "mew": 1.8, "label": f"{FAILED}: {len(failed)}"}
        above = axes.get_xaxis_transform()
        axes.plot(failed, [1.03] * len(failed), "x", clip_on=False, transform=above, **style)
    name = score.name if score.task == REGRESSION else f"1 - {score.name}"
    figure.suptitle(_title(name.replace("_", " "), len(board), chosen), x=0.02, ha="left", fontsize=12)
    if any(row["error"] >= 1e3 for row in good):
        axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlim(left=0.0)
    axes.set_xlabel("seconds since the start", fontsize=12)
    axes.tick_params(labelsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    if board:
        legend: dict[str, Any] = {
            "loc": "outside lower left",
            "frameon": False,
            "handletextpad": 0.3,
            "columnspacing": 1.5,
        }
        figure.legend(ncols=2, fontsize=10.5, **legend)
    return figure


def fates(board: Sequence[BoardRow]) -> list[str]:
    """Outcome of each training for its candidate: FAILED, KEPT, STOPPED or TOO_SLOW.

    A candidate is kept if it was trained on more rows, even without a result, and on the largest sample.
    """
    most: dict[str, int] = {}
    for row in board:
        most[row["candidate"]] = max(most.get(row["candidate"], 0), row["rows"])
    enough = max((row["rows"] for row in board if row["score"] is not None), default=0)
    found = []
    for row in board:
        kept = row["rows"] == enough or row["rows"] < most[row["candidate"]]
        lost = TOO_SLOW if row["why"] else STOPPED
        found.append(FAILED if row["score"] is None else KEPT if kept else lost)
    return found


def _title(name: str, trainings: int, chosen: Sequence[str]) -> str:
    """Text above the picture, with the choice in a line of its own."""
    first = f"{name} on held-out rows; {counted(trainings, 'training')}"
    if not chosen:
        return first
    more = f", blended with {counted(len(chosen) - 1, 'other')}" if len(chosen) > 1 else ""
    return "\n".join([first, *textwrap.wrap(f"chosen: {chosen[0]}{more}", 66)])


def _error(value: float | None, score: Score) -> float:
    if value is None:
        return math.inf
    return value if score.task == REGRESSION else 1.0 - value


def _show(axes: Axes, good: Sequence[DrawnRow], chosen: Sequence[str]) -> None:
    """Draw the trainings that succeeded, the best error so far, and what was chosen."""
    ended = np.array([row["ended"] for row in good])
    errors = np.array([row["error"] for row in good])
    names = [row["candidate"] for row in good]
    low = errors.min()
    top = min(errors.max(), low + _TALL * (np.median(errors) - low)) if len(good) > 2 else errors.max()
    shown = np.minimum(errors, top)
    for name in dict.fromkeys(names):
        mine = sorted((i for i, other in enumerate(names) if other == name), key=lambda i: ended[i])
        axes.plot(ended[mine], shown[mine], color="0.8", lw=1, zorder=1)
    order = np.argsort(ended)
    best = np.minimum.accumulate(errors[order])
    axes.step(ended[order], np.minimum(best, top), where="post", color=_GREY, lw=1.5, label="best so far", zorder=2)
    _marks(axes, good, ended, shown)
    found = [max((i for i, other in enumerate(names) if other == name), key=lambda i: good[i]["rows"])
             for name in chosen if name in names]  # fmt: skip
    if found:
        axes.plot(ended[found], shown[found], "o", mfc="none", mec=_ORANGE, ms=15, mew=2.2, zorder=4, label="chosen")


def _marks(axes: Axes, good: Sequence[DrawnRow], ended: NDArray[np.float64], shown: NDArray[np.float64]) -> None:
    """Draw one mark per training, and list colours and shapes in the legend."""
    sizes, told = sorted({row["rows"] for row in good}), [row["fate"] for row in good]
    style: dict[str, Any] = {"linestyle": "", "ms": 8, "mew": 1.8}
    for rows, color in zip(sizes, [*_SHADES, *[_SHADES[-1]] * len(sizes)], strict=False):
        for fate, marker in _MARKS.items():
            some = [i for i, row in enumerate(good) if row["rows"] == rows and told[i] == fate]
            axes.plot(
                ended[some], shown[some], marker, color=color, mfc=color if fate == KEPT else "white", zorder=3, **style
            )
        axes.plot([], [], "o", color=color, label=f"{rows:,} training rows", **style)
    for fate in (STOPPED, TOO_SLOW):
        if fate in told:
            axes.plot([], [], _MARKS[fate], color=_GREY, mfc="white", label=f"{fate}: {told.count(fate)}", **style)
