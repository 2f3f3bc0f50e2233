"""
Intervals that follow the noise
===============================

The noise grows with x. Intervals of one width are too wide on the left and too narrow on the right. Adaptive ones,
scaled by each part's errors, follow it. Both are calibrated on a fifth of the rows that training does not see.
"""

import matplotlib.pyplot as plt
import numpy as np

from cakrr import BKRR2

rng = np.random.default_rng(0)
x = np.sort(rng.uniform(0, 10, 4000))
y = np.sin(x) + (0.03 + 0.06 * x) * rng.normal(size=len(x))
train = rng.permutation(len(x))[:3000]
new = np.setdiff1d(np.arange(len(x)), train)
model = BKRR2(n_parts=6, calibrate=0.2, random_state=0).fit(
    x[train, None], y[train]
)

figure, panels = plt.subplots(
    1, 2, figsize=(10, 4), sharey=True, layout="constrained"
)
for panel, adaptive in zip(panels, (None, "parts"), strict=True):
    lower, upper = model.predict_interval(
        x[new, None], coverage=0.9, adaptive=adaptive
    )
    inside = (lower <= y[new]) & (y[new] <= upper)
    panel.plot(x[new], y[new], ".", color="0.5", ms=3)
    panel.fill_between(x[new], lower, upper, color="#2166ac", alpha=0.25)
    panel.plot(x[new], model.predict(x[new, None]), color="#2166ac")
    halves = [inside[x[new] < 5].mean(), inside[x[new] >= 5].mean()]
    name = "one width" if adaptive is None else "adaptive, by parts"
    panel.set_title(
        f"{name}: 90 % asked\n"
        f"{halves[0]:.1%} inside on the left, {halves[1]:.1%} on the right",
        fontsize=10,
    )
    panel.set(xlabel="x", ylabel="y")
plt.show()
