"""Figures drawn with matplotlib, if it is installed, without pyplot or windows; for files and for pages of runs."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cacore.errors import InputError
from cacore.files import replacing
from cacore.io.words import amount, counted, number, short
from cacore.metrics import ERRORS
from cacore.terminal import escaped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.patches import Rectangle

    from cacore.data.standardize import Standardizer
    from cacore.tuning import GridColumns

# What is legible at the size of the figures; tried, not measured.
_FEATURES = 20  # most important features shown, one bar each
_LABELLED = 5  # largest number of ranks for which every cell of a matrix has room for its number
_SPREAD = (
    "Contributions to reductions and allgathers have no single receiver: they are spread evenly over the other ranks."
)

Row = Mapping[str, Any]  # of a report's grid
_PHASES = {
    "start": "#9aa6b2", "compile": "#c7b8e0", "read": "#6db1e8", "partition": "#f2b134", "search": "#d9a05b",
    "train": "#2e8b6f", "predict": "#b03a2e", "wait": "#7f6a55", "write": "#5b6773", "other": "#1b4f8a",
}  # fmt: skip
_SHADES = ("#6db1e8", "#2166ac", "#08264d", "#000000")  # few rows to many
_GREY, _ORANGE = "0.45", "#d95f02"
_TALL = 4.0  # the axis ends at so many times the distance from the smallest error to the median
KEPT, STOPPED, TOO_SLOW, FAILED = "kept", "not trained on more rows", "too slow for more rows", "without a result"
_MARKS = {KEPT: "o", STOPPED: "o", TOO_SLOW: "D"}


def blank(width: float, height: float) -> Figure:
    """Empty figure; width and height are in inches.

    Raises
    ------
    InputError
        matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("drawing needs matplotlib: pip install 'cakernels[plot]'") from error
    figure = Figure((width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def check(path: Path | None = None) -> None:
    """Raise an InputError, before any work is done, if matplotlib is missing or :func:`save` would refuse the name."""
    figure = blank(1.0, 1.0)
    if path is not None:
        _kind(path, figure)


def _kind(path: Path, figure: Figure) -> str:
    kind = path.suffix[1:].lower()
    formats: dict[str, str] = figure.canvas.get_supported_filetypes()
    if kind not in formats:
        raise InputError(f"{path}: the name of a figure ends with one of .{', .'.join(sorted(formats))}")
    return kind


def save(figure: Figure, path: Path) -> None:
    """Write a figure atomically, in the format given by the suffix of `path`."""
    kind = _kind(path, figure)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=150)


def svg(figure: Figure) -> str:
    """The figure as an SVG element for an HTML page: the same text for the same figure, and transparent.

    Its text stays text, which a reader can select, and which the browser draws in its own fonts.
    """
    from matplotlib import rc_context

    stream = StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "cakernels"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the browser has more fonts
        figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    text = stream.getvalue()
    return text[text.index("<svg") :]


def plain(axis: Axis) -> None:
    """Label an axis with numbers such as 51,500, or 1.25e9, without a power or an offset apart; at most six labels."""
    from matplotlib.ticker import MaxNLocator

    def label(x: float, place: float) -> str:
        step = min(np.diff(axis.get_majorticklocs()), default=abs(x)) or 1.0
        digits = math.floor(math.log10(max(abs(x), step) / step)) + 2  # those that tell neighbours apart
        return number(x if abs(x) > 1e-9 * step else 0.0, digits)

    axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(label)


def _megabytes(value: float) -> str:
    return f"{value / 1e6:,.0f}" if value >= 1e8 else f"{value / 1e6:.3g}"


def patterns(titles: Sequence[str], matrices: Sequence[NDArray[np.float64]], phases: str, group: int = 1) -> Figure:
    """Draw bytes by sender (x) and receiver (y), one panel per method, with a common colour scale.

    `matrices` of shape (R, R) come from :func:`cacore.traffic.pattern`; `phases` is shown in the title. Each row and
    column stands for `group` ranks.
    """
    side = "rank" if group == 1 else f"group of {group} ranks"
    columns = min(3, len(titles))
    rows = math.ceil(len(titles) / columns)
    figure = blank(max(6.5, 3.2 * columns + 0.8), 3.2 * rows + 1.0)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    largest = max(float(matrix.max()) for matrix in matrices) / 1e6
    image: Any = None
    for panel, title, matrix in zip(panels, titles, matrices, strict=False):
        megabytes = np.ma.masked_equal(matrix.T / 1e6, 0)  # cells without traffic stay white
        image = panel.imshow(megabytes, origin="lower", cmap="YlGnBu", vmin=0.0, vmax=largest or 1.0)
        panel.set_title(f"{title}: {_megabytes(float(matrix.sum()))} MB")
        panel.set(xlabel=f"sending {side}", ylabel=f"receiving {side}")
        ticks = range(0, len(matrix), -(-len(matrix) // 8))
        panel.set(xticks=ticks, yticks=ticks)
        if len(matrix) <= _LABELLED:
            _write_numbers(panel, matrix, largest * 1e6)
    for panel in panels[len(titles) :]:
        panel.set_axis_off()
    figure.colorbar(image, ax=list(panels), label="MB", shrink=0.8)
    figure.suptitle(f"Bytes sent in {phases}")
    figure.supxlabel(_SPREAD, fontsize=7)
    return figure


def _write_numbers(panel: Axes, matrix: NDArray[np.float64], largest: float) -> None:
    for sender, receiver in np.argwhere(matrix > 0):
        value = float(matrix[sender, receiver])
        colour = "white" if value > 0.6 * largest else "black"
        panel.text(sender, receiver, amount(value), ha="center", va="center", fontsize=7, color=colour)


def ratios(titles: Sequence[str], seconds: Sequence[tuple[float, float]], phases: str) -> Figure:
    """Draw mean seconds per rank inside and outside MPI calls, one bar per method.

    `seconds` inside and outside come from :func:`cacore.traffic.ratio`; `phases` is shown in the title.
    """
    figure = blank(7.5, 1.6 + 0.4 * len(titles))
    panel: Any = figure.subplots()
    places = np.arange(len(titles))
    inside, outside = np.array(seconds, np.float64).T
    panel.barh(places, inside, color="tab:orange", label="inside calls of MPI, waiting included")
    panel.barh(places, outside, left=inside, color="tab:blue", label="the rest: computing")
    for place, part, total in zip(places, inside, inside + outside, strict=True):
        share = f", {part / total:.1%} in MPI" if total > 0 else ""
        panel.text(total, place, f" {number(total)} s{share}", va="center", fontsize=8)
    panel.set_yticks(places, titles)
    panel.invert_yaxis()
    panel.margins(x=0.3)
    panel.set(xlabel="seconds, mean over ranks", title=f"Communication and computation in {phases}")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    return figure


def metric(described: dict[str, Any], standardizer: Standardizer | None) -> Figure:
    """Draw the importance of each standardised feature, the error of each round, and the matrix of a full metric.

    `described` is the report's entry `metric`, `standardizer` the model's.
    """
    shares, errors = np.array(described["importances"]), np.array(described["errors"])
    root = np.zeros(0) if standardizer is None or standardizer.root is None else standardizer.root
    full = root.ndim == 2
    figure = blank(11.0 if full else 7.5, 4.0)
    first, middle, *right = figure.subplots(1, 3 if full else 2, squeeze=True)
    order = np.argsort(-shares, kind="stable")[:_FEATURES]
    first.barh(np.arange(len(order)), shares[order], color="tab:blue")
    names = described.get("names", range(len(shares)))
    first.set_yticks(np.arange(len(order)), [_label(names[k]) for k in order])
    first.invert_yaxis()
    count = f" ({len(order)} of {len(shares)})" if len(order) < len(shares) else ""
    first.set(xlabel="importance", ylabel=f"feature{count}", title="Importance of each feature")
    middle.plot(errors, "o-", color="tab:gray")
    middle.plot(described["round"], errors[described["round"]], "o", color="tab:orange", label="kept")
    middle.set(xlabel="round", ylabel="error on validation rows", title="Rounds", xticks=range(len(errors)))
    plain(middle.yaxis)
    middle.legend()
    if full:
        M = root @ root
        largest = float(np.abs(M).max())
        image = right[0].imshow(M, cmap="RdBu_r", vmin=-largest, vmax=largest)
        right[0].set(xlabel="feature", ylabel="feature", title="The metric")
        if "names" in described and len(shares) == len(M) <= _FEATURES:
            words = [_label(name) for name in names]
            right[0].set_xticks(np.arange(len(words)), words, rotation=90)
            right[0].set_yticks(np.arange(len(words)), words)
        figure.colorbar(image, ax=right[0], shrink=0.8)
    return figure


def _label(name: object) -> str:
    """Name or number beside an axis; matplotlib takes $ for the beginning of a formula."""
    return short(escaped(name), 20).replace("$", r"\$")


def reliability(lines: Sequence[dict[str, float]], described: dict[str, Any], classes: int) -> Figure:
    """Draw a reliability diagram, and the number of rows for each predicted probability.

    `lines` and `described` come from the report's entry `probability`; see
    :func:`cacore.metrics.reliability`.
    """
    predicted, observed, rows = (np.array([line[key] for line in lines]) for key in ("predicted", "observed", "rows"))
    figure = blank(5.0, 5.5)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot([0, 1], [0, 1], color="tab:gray", linestyle=":", label="as often as predicted")
    error = 2 * np.sqrt(np.maximum(observed * (1 - observed), 0.25 / rows) / rows)
    upper.errorbar(predicted, observed, error, fmt="o-", color="tab:blue", capsize=2, label="test rows, two errors")
    what = "the second class" if classes == 2 else "the likeliest class"
    scores = f"log loss {number(described['log_loss'])}, Brier score {number(described['brier'])}"
    upper.set(ylabel="share that came true", ylim=(-0.02, 1.02))
    upper.set_title(f"Probabilities of {what}, {described['form']}:\n{scores}", fontsize=9)
    upper.legend(fontsize=8)
    lower.bar(predicted, rows, width=0.04, color="tab:blue")
    lower.set(xlabel="predicted probability", ylabel="rows", yscale="log", xlim=(-0.02, 1.02))
    return figure


def heat_map(grid: Sequence[dict[str, Any]], columns: GridColumns) -> Figure:
    """Draw the score of each setting against one or two parameters, with one panel per kernel.

    `grid` is the report's, with one line per setting; among lines that differ in other parameters, the best is shown.
    Settings that were stopped early are hatched, since their scores come from some of the folds only. If one setting
    was chosen, it is framed.
    """
    kinds = [*dict.fromkeys(row.get("kernel", "") for row in grid)]
    maps = [_Cells.of([row for row in grid if row.get("kernel", "") == kind], columns) for kind in kinds]
    width, height = (
        max(len(cells_of_kind.xs) for cells_of_kind in maps),
        max(len(cells_of_kind.ys) for cells_of_kind in maps),
    )
    across = min(2, len(maps))
    down = -(-len(maps) // across)
    cell = 0.8 if columns.smaller else 0.62  # inches; errors have more digits than shares
    figure = blank(max(4.5, 2.0 + cell * width) * across, max(3.2, 1.4 + 0.42 * height) * down)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    low, top = _close_to_the_best(maps)
    for panel, cells, kind in zip(panels, maps, kinds, strict=False):
        image = _show(panel, cells, columns, low, top)
        panel.set(xlabel=columns.x, ylabel=columns.y, title=kind)
    for panel in panels[len(maps) :]:
        panel.set_axis_off()
    beyond = "max" if columns.smaller else "min"
    bar = figure.colorbar(image, ax=list(panels[: len(maps)]), extend=beyond, label=columns.title)
    plain(bar.ax.yaxis)
    legend = ["hatched: ended early, mean of the folds tried"] if any(cells.ended.any() for cells in maps) else []
    legend += ["empty: no solution"] if any(np.isnan(cells.scores[~cells.ended]).any() for cells in maps) else []
    figure.supxlabel("; ".join(legend + ["framed: the best"] * columns.single), fontsize=7)
    return figure


def _close_to_the_best(maps: Sequence[_Cells]) -> tuple[float, float]:
    """Range of scores that the colour scale covers, from some way below the best score up to it."""
    tried = np.concatenate([cells.scores[~np.isnan(cells.scores)] for cells in maps])
    scored = np.concatenate([cells.scored for cells in maps])
    if not scored.size:
        return 0.0, 1.0
    top = float(scored.max())
    return max(float(tried.min()), top - max(4.0 * (top - float(np.median(scored))), 0.02 * abs(top))), top


def _show(panel: Axes, cells: _Cells, columns: GridColumns, low: float, top: float) -> AxesImage:
    """Draw the cells with their numbers, and return the image for the colour bar."""
    drawn, ends = (-cells.scores, (-top, -low)) if columns.smaller else (cells.scores, (low, top))
    colours = "viridis_r" if columns.smaller else "viridis"
    image = panel.imshow(drawn, origin="lower", cmap=colours, vmin=ends[0], vmax=ends[1], aspect="auto")
    for i, j in np.argwhere(~np.isnan(drawn)):
        text = number(drawn[i, j]) if columns.smaller else f"{drawn[i, j]:.3f}"
        colour = "w" if cells.scores[i, j] < 0.5 * (low + top) else "k"
        panel.text(j, i, text, ha="center", va="center", fontsize=7, color=colour)
        if cells.ended[i, j]:
            panel.add_patch(_outline(i, j, hatch="///", edgecolor="0.6", linewidth=0))
    if columns.single:
        for i, j in np.argwhere(~cells.ended & (cells.scores == top))[:1]:
            panel.add_patch(_outline(i, j, edgecolor="tab:red", linewidth=2))
    panel.set_xticks(range(len(cells.xs)), [number(value) for value in cells.xs], rotation=45, ha="right")
    panel.set_yticks(range(len(cells.ys)), [number(value) for value in cells.ys])
    return image


def _outline(i: int, j: int, **style: Any) -> Rectangle:
    """Outline of the cell in row `i` and column `j`."""
    from matplotlib.patches import Rectangle

    return Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, **style)


@dataclass
class _Cells:
    """Panel of a heat map: values of both axes, score of each cell (larger is better), and mask of early stops."""

    xs: list[float]
    ys: list[float]
    scores: NDArray[np.float64]
    ended: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]], columns: GridColumns) -> _Cells:
        """Build the panel from the rows of the report."""
        xs, ys = (sorted({row.get(axis, 0.0) for row in rows}) for axis in (columns.x, columns.y))
        cells = cls(xs, ys, np.full((len(ys), len(xs)), np.nan), np.zeros((len(ys), len(xs)), np.bool_))
        for row in rows:
            place = ys.index(row.get(columns.y, 0.0)), xs.index(row.get(columns.x, 0.0))
            score = row[columns.score]
            if score is not None:
                cells.scores[place] = np.fmax(cells.scores[place], -score if columns.smaller else score)
            cells.ended[place] |= row.get("ended", False)
        return cells

    @property
    def scored(self) -> NDArray[np.float64]:
        """Scores that come from all folds."""
        return self.scores[~self.ended & ~np.isnan(self.scores)]


def curve(x: Sequence[float], errors: Sequence[float], sides: tuple[str, str], best: int, log: bool) -> Figure:
    """Draw errors against one parameter or rounds, and circle the one at index `best`; `log` spaces x by powers."""
    figure = blank(5.0, 3.2)
    panel = figure.subplots()
    panel.plot(x, errors, "o-", color="tab:blue")
    panel.plot(x[best], errors[best], "o", mfc="none", mec=_ORANGE, ms=13, mew=2)
    panel.set(xlabel=sides[0], ylabel=sides[1], xscale="log" if log else "linear")
    plain(panel.yaxis)
    return figure


def residuals(true: Sequence[float], predicted: Sequence[float]) -> Figure:
    """Draw the error of each row, target less prediction (y), by its prediction (x)."""
    figure = blank(5.0, 3.2)
    panel = figure.subplots()
    panel.axhline(0.0, color="0.6", lw=1)
    panel.plot(predicted, np.subtract(true, predicted), ".", ms=4, color="tab:blue", alpha=0.5, mew=0)
    panel.set(xlabel="predicted", ylabel="true - predicted")
    plain(panel.xaxis)
    plain(panel.yaxis)
    return figure


def confusion(counts: NDArray[np.int64], labels: Sequence[str]) -> Figure:
    """Draw the rows of each true class (y) by predicted class (x), coloured by their share of the true class."""
    k = len(counts)
    figure = blank(max(3.4, 1.4 + 0.42 * k), max(3.0, 1.0 + 0.42 * k))
    panel = figure.subplots()
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    panel.imshow(np.ma.masked_equal(shares, 0.0), cmap="YlGnBu", vmin=0.0, vmax=1.0)
    for i, j in np.ndindex(k, k):
        colour = "white" if shares[i, j] > 0.6 else "black"
        panel.text(j, i, f"{counts[i, j]:,}", ha="center", va="center", fontsize=7, color=colour)
    names = [_label(label) for label in labels]
    panel.set_xticks(range(k), names, rotation=0 if max(map(len, names)) <= 4 else 90)
    panel.set_yticks(range(k), names)
    panel.set(xlabel="predicted class", ylabel="true class")
    return figure


def numbered(values: Sequence[float], xlabel: str, ylabel: str) -> Figure:
    """Draw a bar per value; `xlabel` says what they are: parts are numbered from 1, and ranks from 0."""
    figure = blank(5.0, 2.4)
    panel = figure.subplots()
    panel.bar(np.arange(len(values)) + (xlabel == "part"), values, width=0.85, color="tab:blue")
    panel.set(xlabel=xlabel, ylabel=ylabel)
    panel.locator_params(axis="x", integer=True)
    plain(panel.yaxis)
    return figure


def stacked(names: Sequence[str], parts: Mapping[str, Sequence[float]], shown: Callable[[float], str]) -> Figure:
    """Draw a bar per name, made of the `parts` in their order; phases have the same colours in all figures.

    `shown` is the text of a total, which stands behind its bar; several parts have a legend.
    """
    tall = 0.26 if len(names) <= 16 else 0.17
    figure = blank(5.0, 0.9 + tall * len(names) + 0.2 * math.ceil(len(parts) / 4))
    panel = figure.subplots()
    places, begins = np.arange(len(names)), np.zeros(len(names))
    for part, values in parts.items():
        panel.barh(places, values, left=begins, height=0.75, color=_PHASES.get(part, "tab:blue"), label=part)
        begins += values
    for place, total in zip(places, begins, strict=True):
        panel.text(float(total), float(place), f" {shown(float(total))}", va="center", fontsize=8)
    panel.set_yticks(places, [_label(name) for name in names], fontsize=8)
    panel.set(xlim=(0.0, 1.2 * (float(begins.max()) or 1.0)), xticks=[])
    panel.invert_yaxis()
    panel.spines[["top", "right", "bottom"]].set_visible(False)
    if len(parts) > 1:
        figure.legend(loc="outside lower left", ncols=4, fontsize=8, frameon=False)
    return figure


def race(trainings: Sequence[Row], params: Mapping[str, Any]) -> Figure:
    """Draw the trainings of a search (``cakernels fit``) from the report's `grid` and `params`.

    One mark per training: darker on more rows, and hollow if the candidate was not trained on more. A grey line joins
    the trainings of one candidate. Errors far above the others are drawn on the upper edge, and failures above it.
    """
    name = str(params.get("metric_name", "error"))
    smaller_is_better = name == "error" or name in ERRORS
    chosen: Sequence[str] = params.get("models", ())
    rows = [
        {**row, "fate": fate, "error": _error(row["score"], smaller_is_better)}
        for row, fate in zip(trainings, fates(trainings), strict=True)
    ]
    good = [row for row in rows if row["fate"] != FAILED]
    failed = [row["ended"] for row in rows if row["fate"] == FAILED]
    figure = blank(6.4, 5.0)
    axes = figure.add_subplot()
    if good:
        _trainings(axes, good, chosen)
    if failed:
        style: dict[str, Any] = {"color": _GREY, "ms": 7, "mew": 1.8, "label": f"{FAILED}: {len(failed)}"}
        above = axes.get_xaxis_transform()
        axes.plot(failed, [1.03] * len(failed), "x", clip_on=False, transform=above, **style)
    error = (name if smaller_is_better else f"1 - {name}").replace("_", " ")
    figure.suptitle(_title(error, len(trainings), chosen), x=0.02, ha="left", fontsize=12)
    plain(axes.yaxis)
    axes.set_xlim(left=0.0)
    axes.set_xlabel("seconds since the start", fontsize=12)
    axes.tick_params(labelsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    if trainings:
        legend: dict[str, Any] = {
            "loc": "outside lower left",
            "frameon": False,
            "handletextpad": 0.3,
            "columnspacing": 1.5,
        }
        figure.legend(ncols=2, fontsize=10.5, **legend)
    return figure


def fates(trainings: Sequence[Row]) -> list[str]:
    """Outcome of each training for its candidate: FAILED, KEPT, STOPPED or TOO_SLOW.

    A candidate is kept if it was trained on more rows, even without a result, and on the largest sample.
    """
    largest: dict[str, int] = {}
    for row in trainings:
        largest[row["candidate"]] = max(largest.get(row["candidate"], 0), row["rows"])
    enough = max((row["rows"] for row in trainings if row["score"] is not None), default=0)
    outcomes = []
    for row in trainings:
        in_race = row["rows"] == enough or row["rows"] < largest[row["candidate"]]
        lost = TOO_SLOW if row["why"] else STOPPED
        outcomes.append(FAILED if row["score"] is None else KEPT if in_race else lost)
    return outcomes


def _title(name: str, trainings: int, chosen: Sequence[str]) -> str:
    """Text above the picture, with the choice in a line of its own."""
    first = f"{name} on held-out rows; {counted(trainings, 'training')}"
    if not chosen:
        return first
    others = f", blended with {counted(len(chosen) - 1, 'other')}" if len(chosen) > 1 else ""
    return "\n".join([first, *textwrap.wrap(f"chosen: {chosen[0]}{others}", 66)])


def _error(score: float | None, smaller_is_better: bool) -> float:
    if score is None:
        return math.inf
    return score if smaller_is_better else 1.0 - score


def _trainings(axes: Axes, good: Sequence[Row], chosen: Sequence[str]) -> None:
    """Draw the trainings that succeeded, the best error so far, and what was chosen."""
    ended = np.array([row["ended"] for row in good])
    errors = np.array([row["error"] for row in good])
    names = [row["candidate"] for row in good]
    low = errors.min()
    top = min(errors.max(), low + _TALL * (np.median(errors) - low)) if len(good) > 2 else errors.max()
    heights = np.minimum(errors, top)
    for name in dict.fromkeys(names):
        mine = sorted((i for i, candidate in enumerate(names) if candidate == name), key=lambda i: ended[i])
        axes.plot(ended[mine], heights[mine], color="0.8", lw=1, zorder=1)
    order = np.argsort(ended)
    best = np.minimum.accumulate(errors[order])
    axes.step(ended[order], np.minimum(best, top), where="post", color=_GREY, lw=1.5, label="best so far", zorder=2)
    _marks(axes, good, ended, heights)
    chosen_places = [i for i, row in enumerate(good) if row.get("chosen")]
    if not chosen_places:  # the report of an earlier version
        chosen_places = [
            max((i for i, candidate in enumerate(names) if candidate == name), key=lambda i: good[i]["rows"])
            for name in chosen if name in names
        ]  # fmt: skip
    if chosen_places:
        axes.plot(
            ended[chosen_places],
            heights[chosen_places],
            "o",
            mfc="none",
            mec=_ORANGE,
            ms=15,
            mew=2.2,
            zorder=4,
            label="chosen",
        )


def _marks(axes: Axes, good: Sequence[Row], ended: NDArray[np.float64], heights: NDArray[np.float64]) -> None:
    """Draw one mark per training, and list colours and shapes in the legend."""
    sizes, outcomes = sorted({row["rows"] for row in good}), [row["fate"] for row in good]
    style: dict[str, Any] = {"linestyle": "", "ms": 8, "mew": 1.8}
    for rows, color in zip(sizes, [*_SHADES, *[_SHADES[-1]] * len(sizes)], strict=False):
        for fate, marker in _MARKS.items():
            places = [i for i, row in enumerate(good) if row["rows"] == rows and outcomes[i] == fate]
            axes.plot(
                ended[places],
                heights[places],
                marker,
                color=color,
                mfc=color if fate == KEPT else "white",
                zorder=3,
                **style,
            )
        axes.plot([], [], "o", color=color, label=f"{rows:,} training rows", **style)
    for fate in (STOPPED, TOO_SLOW):
        if fate in outcomes:
            axes.plot([], [], _MARKS[fate], color=_GREY, mfc="white", label=f"{fate}: {outcomes.count(fate)}", **style)
