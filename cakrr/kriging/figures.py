"""Pictures of kriging: the variogram, and maps of means and standard deviations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cacore.run.figures import blank
from cakrr.kriging.grid import Grid
from cakrr.kriging.variogram import Variogram

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def variogram(found: Variogram, title: str) -> Figure:
    """The empirical variogram as points, and the fitted one as a line."""
    figure = blank(6.0, 4.0)
    panel = figure.subplots()
    panel.plot(found.lags, found.values, "o", label="empirical")
    panel.plot(found.lags, found.fitted, "-", label="fitted")
    panel.set(xlabel="distance", ylabel="semivariance", title=title, xlim=(0, None), ylim=(0, None))
    panel.legend()
    return figure


def panels(
    grid: Grid, mean: NDArray[np.float64], std: NDArray[np.float64], draw: NDArray[np.float64] | None = None
) -> Figure:
    """Means and standard deviations on a grid of two axes, the first one to the right, and a draw if there is one."""
    shown = {"mean": mean, "standard deviation": std} | ({} if draw is None else {"a draw": draw})
    figure = blank(5.5 * len(shown), 4.6)
    ends = [end for axis in grid.axes for end in (axis[0], axis[-1])]
    for panel, (title, values) in zip(figure.subplots(1, len(shown)), shown.items(), strict=True):
        image = panel.imshow(values.T, origin="lower", extent=ends, aspect="equal")
        panel.set_title(title)
        figure.colorbar(image, ax=panel, shrink=0.8)
    return figure
