"""
Five ways to divide a plane
===========================

Each partitioner divides the same rows into six parts. A new row belongs to the part of the nearest centre (black).
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_blobs

from partition import FCFS, BalancedKMeans, KBalance, KMeans, RandomPartition

X, _ = make_blobs(
    [900, 500, 300, 200], centers=[[0, 0], [5, 1], [2, 5], [6, 6]], random_state=0
)
figure, panels = plt.subplots(
    2, 3, figsize=(9, 6.6), sharex=True, sharey=True, layout="constrained"
)
for panel, kind in zip(
    panels.flat,
    (RandomPartition, FCFS, KMeans, BalancedKMeans, KBalance),
    strict=False,
):
    parts = kind(n_parts=6, random_state=0).fit(X)
    panel.scatter(*X.T, c=parts.labels_, cmap="Set2", s=6, lw=0)
    panel.plot(*parts.centers_.T, "k+", ms=10, mew=2)
    sizes = np.sort(parts.sizes_)
    panel.set_title(
        f"{kind.__name__}\n{sizes[0]} to {sizes[-1]} rows per part", fontsize=10
    )
    panel.set_aspect("equal")
for panel in (*panels[1, :2], panels[0, 2]):
    panel.set_xlabel("first feature")
    panel.xaxis.set_tick_params(labelbottom=True)
for panel in panels[:, 0]:
    panel.set_ylabel("second feature")
panels[1, 2].set_axis_off()
plt.show()
