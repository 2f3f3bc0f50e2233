"""Pictures of Shapley values: a dot per row and feature, or the bars of one row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from cacore.comm import Communicator
from cacore.explain.explanation import Explanation
from cacore.io.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEATURES = 12  # most important features shown
_DOTS = 2000  # rows shown, spread over all
_UP, _DOWN = "#d95f02", "#2166ac"


def gathered(found: Explanation, comm: Communicator) -> Explanation:
    """Up to 2,000 rows of all ranks, on every rank; collective."""
    with comm.uncounted():
        n = int(comm.allreduce(np.array([len(found.values)]))[0])
        step = max(1, -(-n // _DOTS))
        values, base, data = (comm.allgather(np.ascontiguousarray(one[::step]))
                              for one in (found.values, found.base, found.data))  # fmt: skip
    return Explanation(values, base, data, found.players, found.members, found.outputs)


def drawn(found: Explanation, importances: NDArray[np.float64]) -> Figure:
    """One panel per output, at most four; `importances`, shape (g, q), choose and order the features."""
    from cacore.run import figures

    values, base = found.values, found.base
    if values.ndim == 2:
        values, base = values[:, :, None], base[:, None]
    outputs = range(min(values.shape[2], 4))
    order = np.argsort(-importances.mean(axis=1), kind="stable")[:_FEATURES][::-1]
    figure = figures.blank(1.5 + 5.0 * len(outputs), 1.6 + 0.36 * len(order))
    panels = figure.subplots(1, len(outputs), sharey=True, squeeze=False)[0]
    for k, axes in zip(outputs, panels, strict=True):
        axes.axvline(0.0, color="0.7", lw=1, zorder=0)
        if len(values) == 1:
            _bars(axes, values[0, order, k])
        else:
            _swarm(axes, values[:, order, k], _levels(found, order))
        axes.set_yticks(range(len(order)), [found.players[j] for j in order], fontsize=11)
        start = f", from {base[0, k]:.4g}" if len(values) == 1 else ""
        axes.set_xlabel(f"what the feature adds to {found.outputs[k]}{start}", fontsize=11)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(left=False)
    figure.suptitle(f"Shapley values; {counted(len(values), 'row')}", x=0.02, ha="left", fontsize=12)
    if len(values) > 1:
        _legend(figure)
    return figure


def _levels(found: Explanation, order: NDArray[np.intp]) -> NDArray[np.float64]:
    """Rank of each row by the feature, from 0 to 1, shape (n, features); of a group, its first feature."""
    firsts = [found.members[j][0] for j in order]
    ranks = rankdata(found.data[:, firsts], "average", axis=0) - 1.0
    return np.asarray(ranks / max(1, len(ranks) - 1))


def _swarm(axes: Axes, values: NDArray[np.float64], levels: NDArray[np.float64]) -> None:
    for line, (x, level) in enumerate(zip(values.T, levels.T, strict=True)):
        axes.scatter(x, line + 0.38 * _heights(x), c=level, cmap="viridis", s=9, lw=0, alpha=0.8, rasterized=True)


def _heights(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Heights from -1 to 1 that fan out the dots where they are dense."""
    if np.ptp(x) <= 1e-12 * np.abs(x).max():
        return np.linspace(-1.0, 1.0, len(x))
    counts, edges = np.histogram(x, 60)
    cell = np.clip(np.searchsorted(edges, x, "right") - 1, 0, len(counts) - 1)
    place = np.zeros(len(x))
    for one in np.unique(cell):
        here = np.flatnonzero(cell == one)
        place[here] = np.linspace(-1.0, 1.0, len(here)) if len(here) > 1 else 0.0
    return np.asarray(place * np.sqrt(counts[cell] / counts.max()))


def _bars(axes: Axes, values: NDArray[np.float64]) -> None:
    axes.barh(range(len(values)), values, color=[_UP if one > 0 else _DOWN for one in values], height=0.6)
    for line, value in enumerate(values):
        style: dict[str, Any] = {"va": "center", "ha": "left" if value > 0 else "right", "fontsize": 10}
        axes.annotate(f"{value:+.3g}", (value, line), (4 if value > 0 else -4, 0), textcoords="offset points", **style)
    axes.margins(x=0.2)


def _legend(figure: Figure) -> None:
    from matplotlib.cm import ScalarMappable

    bar = figure.colorbar(ScalarMappable(cmap="viridis"), ax=figure.axes, shrink=0.6, aspect=30, pad=0.02)
    bar.set_ticks([0.0, 1.0], labels=["low", "high"])
    bar.set_label("feature value", fontsize=10, labelpad=-12)
    bar.outline.set_visible(False)
