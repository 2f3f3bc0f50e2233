"""
Borders between parts: exact, soft and nearest
==============================================

An exact SVM, and SVMs of four parts. With the nearest route, one model answers for each row, and the decision has
steps where two parts meet (dashed). The soft route weights the four nearest models and smooths them.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons

from casvm import CASVC, SMOSVC

X, labels = make_moons(1200, noise=0.3, random_state=0)
models = {
    "exact": SMOSVC(C=10, gamma=2).fit(X, labels),
    "four parts, soft": CASVC(
        n_parts=4, C=10, gamma=2, route="soft", random_state=0
    ).fit(X, labels),
    "four parts, nearest": CASVC(
        n_parts=4, C=10, gamma=2, route="nearest", random_state=0
    ).fit(X, labels),
}
x, y = np.meshgrid(np.linspace(-2, 3, 200), np.linspace(-1.6, 2.1, 160))
plane = np.c_[x.ravel(), y.ravel()]
figure, panels = plt.subplots(
    1, 3, figsize=(10, 3.6), sharey=True, layout="constrained"
)
for panel, (name, model) in zip(panels, models.items(), strict=True):
    decision = model.decision_function(plane).reshape(x.shape)
    image = panel.contourf(
        x, y, decision, np.linspace(-3, 3, 13), cmap="RdBu", extend="both"
    )
    panel.contour(x, y, decision, [0], colors="k")
    if name != "exact":
        nearest = (
            ((plane[:, None] - model.centers_) ** 2)
            .sum(axis=2)
            .argmin(axis=1)
            .reshape(x.shape)
        )
        for part in range(4):
            panel.contour(
                x,
                y,
                nearest == part,
                [0.5],
                colors="0.4",
                linestyles="dashed",
                linewidths=0.8,
            )
    panel.scatter(
        *X.T, c=labels, cmap="RdBu", s=5, edgecolors="0.3", linewidths=0.2
    )
    panel.set_title(
        f"{name}\n{model.score(X, labels):.1%} of the training rows are right",
        fontsize=10,
    )
    panel.set_xlabel("first feature")
panels[0].set_ylabel("second feature")
figure.colorbar(image, ax=panels, label="decision")
plt.show()
