"""Results of a search: rows of a report, a table, the command that repeats the choice, and a picture.

Results of a search: rows of a report, a table, and the command that repeats its choice.

Picture of a search: the error of every training on held-out rows, against the seconds at which it ended.
"""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from cacore.comm import Communicator
from cacore.data.validation import shared_seed
from cacore.io.words import counted
from cacore.learn.options import declared
from cakernels.search.data import REGRESSION
from cakernels.search.scores import Score
from cakernels.search.trial import OUT_OF_TIME, Trial, ranked

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from sklearn.base import BaseEstimator

    from cacore.learn.method import Method


_SHOWN = 8  # candidates in the table


class BoardRow(TypedDict):
    """A training on the leaderboard: the sample's rows, the score, if it has one, and the seconds that it took.

    It ended that many seconds after the start; `why` says why it has no score, or is not trained on more rows.
    """

    candidate: str
    rows: int
    score: float | None
    seconds: float
    ended: float
    why: str


def leaderboard(trials: Sequence[Trial], score: Score) -> list[BoardRow]:
    """One dict per trial, those on most rows first, and the best of them first."""
    judged = ranked(one for one in trials if math.isfinite(one.error))
    failed = (one for one in trials if not math.isfinite(one.error))
    return [
        {
            "candidate": one.candidate.name, "rows": one.rows,
            "score": score.value(one.error) if math.isfinite(one.error) else None,
            "seconds": one.seconds, "ended": one.ended, "why": one.why,
        }
        for one in [*sorted(judged, key=lambda one: -one.rows), *failed]
    ]  # fmt: skip


def lines(board: Sequence[BoardRow], score: Score) -> Iterator[str]:
    """Lines of the table: the best candidates, then how many others there are."""
    for known, row in [(one["score"], one) for one in board if one["score"] is not None][:_SHOWN]:
        error = known if score.task == REGRESSION else 1.0 - known
        yield f"{score.shown(error):>10}  {row['rows']:>8,} rows  {row['seconds']:7.1f} s  {row['candidate']}"
    late = sum(row["why"] == OUT_OF_TIME for row in board)
    failed = sum(row["score"] is None for row in board) - late
    ends = [f", {number} {what}" for number, what in ((failed, "failed"), (late, OUT_OF_TIME)) if number]
    yield counted(len(board), "training") + "".join(ends)


def command(estimator: BaseEstimator, data: str, parts: int) -> str:
    """The command that trains this estimator's model on all rows of the file `data`, in so many parts."""
    method, chosen = _method(estimator)
    words = [f"python -m {method.prog}", shlex.quote(data), *_model_words(estimator, method, chosen, parts)]
    return " ".join(words)


def _method(estimator: BaseEstimator) -> tuple[Method, dict[str, object]]:
    """The record of the estimator's method, and options that none of its parameters sets."""
    own = getattr(estimator, "_trained_by", None)
    return (estimator._method, {}) if own is None else own()


def _model_words(estimator: BaseEstimator, method: Method, chosen: dict[str, object], parts: int) -> Iterator[str]:
    """Flags that set what the estimator's parameters, or the values it has chosen, set."""
    options, given = method.options, estimator.get_params(deep=False)
    given |= {**({"n_parts": parts} if "n_parts" in given else {}), **getattr(estimator, "best_params_", {})}
    given["kernel"] = _kernel(estimator)
    if given.get("route") == "auto":
        given["route"] = estimator.model_.route
    # Searched anew where a metric is learned, in each of its rounds, or where few rows may have been compared in folds.
    in_folds = given.get("validation_fraction") == getattr(options, "validation_fraction", None)
    anew = given.get("metric", "none") != "none" or ("validation_fraction" in given and in_folds)
    for name in ("sigma", "lam"):
        if isinstance(given.get(name), str | list):
            found = getattr(estimator, f"{name}_")
            given[name] = None if anew or np.ndim(found) else found
    for one, known in declared(options):
        value = given.get(known.estimator) if known.estimator else chosen.get(one.name)
        usual = method.defaults.get(one.name, one.default)
        left_out = value is None or value == usual or (value is False and usual is None)
        if not known.flag or left_out or not method.has(one.name):
            continue
        if isinstance(value, bool):
            no = known.flag.replace("--", "--no-", 1)
            yield known.flag if value else no
        else:
            yield f"{known.flag} {value:.6g}" if isinstance(value, float) else f"{known.flag} {value}"
    if hasattr(estimator, "classes_") and any(one.name == "classify" for one, _ in declared(options)):
        yield "--classify"
    if getattr(estimator, "random_state", None) is not None:
        yield f"--seed {shared_seed(estimator.random_state, Communicator())}"  # as the estimator draws it


def _kernel(estimator: BaseEstimator) -> str:
    """Name of the model's kernel."""
    model = estimator.model_
    like = getattr(model, "like", None) or model.kernel
    return str(like.kind)


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
