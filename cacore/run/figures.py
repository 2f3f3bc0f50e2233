"""Figures drawn with matplotlib, if it is installed, without pyplot, windows or global state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cacore.errors import InputError
from cacore.files import replacing
from cacore.io.words import amount, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.patches import Rectangle

    from cacore.data.standardize import Standardizer
    from cacore.tuning import GridColumns

_FEATURES = 20  # most important features shown, one bar each
_LABELLED = 5  # largest number of ranks for which every cell of a matrix has room for its number
_SPREAD = (
    "Contributions to reductions and allgathers have no single receiver: they are spread evenly over the other ranks."
)


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


def check(path: Path) -> None:
    """Raise an InputError, before any work is done, if :func:`save` would refuse the name or matplotlib is missing."""
    _kind(path, blank(1.0, 1.0))


def _kind(path: Path, figure: Figure) -> str:
    kind = path.suffix[1:].lower()
    known: dict[str, str] = figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise InputError(f"{path}: the name of a figure ends with one of .{', .'.join(sorted(known))}")
    return kind


def save(figure: Figure, path: Path) -> None:
    """Write a figure atomically, in the format given by the suffix of `path`."""
    kind = _kind(path, figure)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=150)


def _megabytes(value: float) -> str:
    return f"{value / 1e6:,.0f}" if value >= 1e8 else f"{value / 1e6:.3g}"


def patterns(titles: Sequence[str], matrices: Sequence[NDArray[np.float64]], phases: str) -> Figure:
    """Draw bytes by sender (x) and receiver (y), one panel per method, with a common colour scale.

    `matrices` of shape (R, R) come from :func:`cacore.traffic.pattern`; `phases` is shown in the title.
    """
    columns = min(3, len(titles))
    rows = math.ceil(len(titles) / columns)
    figure = blank(max(6.5, 3.2 * columns + 0.8), 3.2 * rows + 1.0)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    most = max(float(matrix.max()) for matrix in matrices) / 1e6
    image: Any = None
    for panel, title, matrix in zip(panels, titles, matrices, strict=False):
        shown = np.ma.masked_equal(matrix.T / 1e6, 0)  # cells without traffic stay white
        image = panel.imshow(shown, origin="lower", cmap="YlGnBu", vmin=0.0, vmax=most or 1.0)
        panel.set_title(f"{title}: {_megabytes(float(matrix.sum()))} MB")
        panel.set(xlabel="sending rank", ylabel="receiving rank")
        ticks = range(0, len(matrix), -(-len(matrix) // 8))
        panel.set(xticks=ticks, yticks=ticks)
        if len(matrix) <= _LABELLED:
            _write_numbers(panel, matrix, most * 1e6)
    for panel in panels[len(titles) :]:
        panel.set_axis_off()
    figure.colorbar(image, ax=list(panels), label="MB", shrink=0.8)
    figure.suptitle(f"Bytes sent in {phases}")
    figure.supxlabel(_SPREAD, fontsize=7)
    return figure


def _write_numbers(panel: Axes, matrix: NDArray[np.float64], most: float) -> None:
    for sender, receiver in np.argwhere(matrix > 0):
        value = float(matrix[sender, receiver])
        colour = "white" if value > 0.6 * most else "black"
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
        panel.text(total, place, f" {total:.3g} s{share}", va="center", fontsize=8)
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
    left, middle, *right = figure.subplots(1, 3 if full else 2, squeeze=True)
    order = np.argsort(-shares, kind="stable")[:_FEATURES]
    left.barh(np.arange(len(order)), shares[order], color="tab:blue")
    names = described.get("names", range(len(shares)))
    left.set_yticks(np.arange(len(order)), [_label(names[k]) for k in order])
    left.invert_yaxis()
    shown = f" ({len(order)} of {len(shares)})" if len(order) < len(shares) else ""
    left.set(xlabel="importance", ylabel=f"feature{shown}", title="Importance of each feature")
    middle.plot(errors, "o-", color="tab:gray")
    middle.plot(described["round"], errors[described["round"]], "o", color="tab:orange", label="kept")
    middle.set(xlabel="round", ylabel="error on validation rows", title="Rounds", xticks=range(len(errors)))
    middle.legend()
    if full:
        M = root @ root
        most = float(np.abs(M).max())
        image = right[0].imshow(M, cmap="RdBu_r", vmin=-most, vmax=most)
        right[0].set(xlabel="feature", ylabel="feature", title="The metric")
        if "names" in described and len(shares) == len(M) <= _FEATURES:
            words = [_label(name) for name in names]
            right[0].set_xticks(np.arange(len(words)), words, rotation=90)
            right[0].set_yticks(np.arange(len(words)), words)
        figure.colorbar(image, ax=right[0], shrink=0.8)
    return figure


def _label(name: object) -> str:
    """Name or number of a feature beside an axis; matplotlib takes $ for the begin of a formula."""
    return short(str(name), 20).replace("$", r"\$")


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
    scores = f"log loss {described['log_loss']:.4g}, Brier score {described['brier']:.4g}"
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
    width, height = max(len(one.xs) for one in maps), max(len(one.ys) for one in maps)
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
    more = "max" if columns.smaller else "min"
    figure.colorbar(image, ax=list(panels[: len(maps)]), extend=more, label=columns.title)
    said = ["hatched: ended early, mean of the folds tried"] if any(cells.ended.any() for cells in maps) else []
    said += ["empty: no solution"] if any(np.isnan(cells.scores[~cells.ended]).any() for cells in maps) else []
    figure.supxlabel("; ".join(said + ["framed: the best"] * columns.one), fontsize=7)
    return figure


def _close_to_the_best(maps: Sequence[_Cells]) -> tuple[float, float]:
    """Range of scores that the colour scale covers, from some way below the best score up to it."""
    tried = np.concatenate([cells.scores[~np.isnan(cells.scores)] for cells in maps])
    known = np.concatenate([cells.known for cells in maps])
    if not known.size:
        return 0.0, 1.0
    top = float(known.max())
    return max(float(tried.min()), top - max(4.0 * (top - float(np.median(known))), 0.02 * abs(top))), top


def _show(panel: Axes, cells: _Cells, columns: GridColumns, low: float, top: float) -> AxesImage:
    """Draw the cells with their numbers, and return the image for the colour bar."""
    shown, ends = (-cells.scores, (-top, -low)) if columns.smaller else (cells.scores, (low, top))
    colours = "viridis_r" if columns.smaller else "viridis"
    image = panel.imshow(shown, origin="lower", cmap=colours, vmin=ends[0], vmax=ends[1], aspect="auto")
    for i, j in np.argwhere(~np.isnan(shown)):
        text = f"{shown[i, j]:.4g}" if columns.smaller else f"{shown[i, j]:.3f}"
        colour = "w" if cells.scores[i, j] < 0.5 * (low + top) else "k"
        panel.text(j, i, text, ha="center", va="center", fontsize=7, color=colour)
        if cells.ended[i, j]:
            panel.add_patch(_outline(i, j, hatch="///", edgecolor="0.6", linewidth=0))
    if columns.one:
        for i, j in np.argwhere(~cells.ended & (cells.scores == top))[:1]:
            panel.add_patch(_outline(i, j, edgecolor="tab:red", linewidth=2))
    panel.set_xticks(range(len(cells.xs)), [f"{value:.4g}" for value in cells.xs], rotation=45, ha="right")
    panel.set_yticks(range(len(cells.ys)), [f"{value:.4g}" for value in cells.ys])
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
        xs, ys = ([*dict.fromkeys(row.get(axis, 0.0) for row in rows)] for axis in (columns.x, columns.y))
        made = cls(xs, ys, np.full((len(ys), len(xs)), np.nan), np.zeros((len(ys), len(xs)), np.bool_))
        for row in rows:
            place = ys.index(row.get(columns.y, 0.0)), xs.index(row.get(columns.x, 0.0))
            score = row[columns.score]
            if score is not None:
                made.scores[place] = np.fmax(made.scores[place], -score if columns.smaller else score)
            made.ended[place] |= row.get("ended", False)
        return made

    @property
    def known(self) -> NDArray[np.float64]:
        """Scores that come from all folds."""
        return self.scores[~self.ended & ~np.isnan(self.scores)]
