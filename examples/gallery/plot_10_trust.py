"""
Regions of trust
================

Standard deviations of the predictions over a plane: small where there are training rows, large where there are none.
"""

import matplotlib.pyplot as plt
import numpy as np

from cakrr import BKRR2

rng = np.random.default_rng(0)
X = rng.normal(size=(1500, 2)) @ np.array([[1.2, 0.7], [0.0, 0.5]]) + rng.choice(
    [-1.5, 1.5], size=(1500, 1)
)
y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=len(X))
model = BKRR2(n_parts=4, keep_factors=True, random_state=0).fit(X, y)
x, z = np.meshgrid(np.linspace(-6, 6, 120), np.linspace(-4.5, 4.5, 90))
mean, deviation = model.predict(np.c_[x.ravel(), z.ravel()], return_std=True)

figure, panels = plt.subplots(
    1, 2, figsize=(10, 3.6), sharey=True, layout="constrained"
)
for panel, values, name, colours in zip(
    panels,
    (mean, deviation),
    ("prediction", "standard deviation"),
    ("RdBu", "viridis"),
    strict=True,
):
    image = panel.contourf(x, z, values.reshape(x.shape), 20, cmap=colours)
    panel.plot(*X[::4].T, ".", color="k", ms=1.5)
    panel.set(title=name, xlabel="first feature", ylabel="second feature")
    figure.colorbar(image, ax=panel)
plt.show()
