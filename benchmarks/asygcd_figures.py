"""Plots of the measurements of :mod:`benchmarks.asygcd_speed`: Figs. 4.1 to 4.3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from asygcd.solver.asygcd import UPDATES
from benchmarks.asygcd_speed import GOAL, RIVALS, Trial, against, middle
from cacore.run import figures


def draw(trials: list[Trial], folder: Path) -> None:
    """Draw Figs. 4.1 to 4.3, with a column of panels per data set."""
    drawn = [Figure((5.2 * len(trials), height), layout="constrained") for height in (4.2, 4.2, 7.5)]
    panels: list[Any] = [figure.subplots(1 + k // 2, len(trials), squeeze=False) for k, figure in enumerate(drawn)]
    styles = (("training", "", False), ("with blocks and packing", "", True), ("columns cached", ", cached", False))
    for trial, way, scaling, error, accuracy in zip(trials, *panels[0], *panels[1], *panels[2], strict=True):
        paths(way, trial, {f"owned {t}": f"{t} thread{'s' * (t > 1)}" for t in trial.counts}, False)
        way.set_xscale("linear")
        for (label, end, blocks), marker in zip(styles if "owned 1" in trial.runs else (), "os^", strict=False):
            several = [trial.runs[f"owned {t}{end}"] for t in trial.counts]
            values = [against(several[0], runs, blocks)[0] for runs in several]
            scaling.plot(trial.counts, values, f"{marker}-", label=label)
        scaling.plot(trial.counts, trial.counts, ":", color="gray", label="ideal")
        scaling.set(xticks=trial.counts, xlabel="threads", ylabel="speed-up")
        labels = zip(UPDATES, ("Asy-GCD, owned", "Asy-GCD, atomic", "PSCD"), strict=True)
        names = {f"{update} {trial.args.threads}": label for update, label in labels}
        paths(error, trial, names, False)
        paths(accuracy, trial, names, True)
        for rival, marker in zip(RIVALS, "sD^v", strict=True):
            for last in trial.runs.get(rival, [])[-1:]:
                at = middle(trial.runs[rival])
                accuracy.plot(at, 100 * last.accuracy, f"k{marker}", fillstyle="none", label=rival)
        for axis in (way, scaling, error, accuracy):
            axis.set_title(trial.name)
            axis.grid(alpha=0.3)
            axis.legend(fontsize=8)
    for number, figure in enumerate(drawn, start=1):
        figures.save(figure, folder / f"fig_4_{number}.png")


def paths(axis: Any, trial: Trial, names: dict[str, str], accuracy: bool) -> None:
    """Plot the error of the objective, or the accuracy, against seconds, for the first round of these runs."""
    for name, label in names.items():
        for curve in trial.curves.get(name, [])[:1]:
            values = 100 * curve.accuracy if accuracy else curve.error(trial.best)
            axis.plot(np.array(curve.seconds) + curve.took.blocks, values, ".-", markersize=4, label=label)
    axis.set(xscale="log", xlabel="seconds, with blocks and packing")
    axis.tick_params(axis="x", which="minor", labelsize=6)  # they overlap if the axis spans less than a decade
    axis.set_ylabel("test accuracy, %" if accuracy else "(f - f*) / |f*|")
    if not accuracy:
        axis.set_yscale("log")
        axis.axhline(GOAL, color="gray", linestyle=":", label="goal")
