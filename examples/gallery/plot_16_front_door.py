"""
Rounds of the front door
========================

``cakernels fit`` and its estimators try candidates on few rows first, and give the best of them more rows in every
round. Each point is one training: its error on held-out rows, when it ended. The line is the best model at that time.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_friedman1

from cakernels import AutoKernelRegressor

X, y = make_friedman1(10_000, 5, noise=0.5, random_state=0)
model = AutoKernelRegressor(max_time=28, random_state=0).fit(X, y)
tried = [line for line in model.leaderboard_ if line["score"] is not None]
rows = sorted({line["rows"] for line in tried})

figure, panel = plt.subplots(figsize=(8, 4.6), layout="constrained")
colours = plt.get_cmap("viridis_r")(np.linspace(0.1, 1, len(rows)))
for count, colour in zip(rows, colours, strict=True):
    shown = [
        (line["ended"], line["score"]) for line in tried if line["rows"] == count
    ]
    panel.plot(*np.transpose(shown), "o", color=colour, label=f"{count:,} rows")
times = np.array(sorted((line["ended"], line["score"]) for line in tried)).reshape(
    -1, 2
)  # a slow machine: none
panel.step(
    times[:, 0],
    np.minimum.accumulate(times[:, 1]),
    where="post",
    color="0.6",
    zorder=0,
)
panel.set_ylim(0.45, 1.05)
panel.axhline(0.5, color="#d95f02", linestyle="dashed")
panel.text(
    times[:, 0].max(initial=1),
    0.5,
    "noise",
    color="#d95f02",
    ha="right",
    va="bottom",
)
panel.set(xlabel="seconds since the search began", ylabel="RMSE on held-out rows")
panel.set_title(
    f"{len(tried)} trainings; chosen: {type(model.best_estimator_).__name__}",
    fontsize=10,
)
panel.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
plt.show()
