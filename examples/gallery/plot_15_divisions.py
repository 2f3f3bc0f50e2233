"""
More divisions smooth the borders
=================================

Where parts meet, their models disagree. ``n_divisions=4`` divides the rows four times with other random centres and
averages the models.
"""

import matplotlib.pyplot as plt
import numpy as np

from cakrr import BKRR2

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, size=(3000, 2))
truth = lambda Z: np.sin(4 * Z[:, 0]) * np.cos(3 * Z[:, 1])  # noqa: E731
y = truth(X) + 0.2 * rng.normal(size=len(X))
x, z = np.meshgrid(np.linspace(-1, 1, 120), np.linspace(-1, 1, 120))
plane = np.c_[x.ravel(), z.ravel()]
figure, panels = plt.subplots(
    1, 3, figsize=(10, 3.6), sharey=True, layout="constrained"
)
for panel, (divisions, route) in zip(
    panels, ((1, "nearest"), (1, "soft"), (4, "nearest")), strict=True
):
    model = BKRR2(
        n_parts=12,
        n_divisions=divisions,
        route=route,
        sigma=0.7,
        lam=1e-4,
        random_state=0,
    ).fit(X, y)
    error = np.abs(model.predict(plane) - truth(plane))
    image = panel.imshow(
        error.reshape(x.shape),
        origin="lower",
        extent=(-1, 1, -1, 1),
        vmin=0,
        vmax=0.15,
        cmap="magma_r",
    )
    panel.set_title(
        f"{divisions} division{'s' if divisions > 1 else ''}, {route}\n"
        f"RMSE {np.sqrt(np.mean(error**2)):.4f}",
        fontsize=10,
    )
panels[0].set_ylabel("second feature")
for panel in panels:
    panel.set_xlabel("first feature")
figure.colorbar(image, ax=panels, label="distance from the truth")
plt.show()
