"""
Rows unlike all others
======================

A one-class SVM learns where the rows are. ``nu`` bounds the share of training rows outside.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons

from casvm import SMOOneClassSVM

X, _ = make_moons(1500, noise=0.1, random_state=0)
x, y = np.meshgrid(np.linspace(-1.8, 2.8, 160), np.linspace(-1.2, 1.7, 120))
figure, panels = plt.subplots(
    1, 3, figsize=(10, 3.2), sharey=True, layout="constrained"
)
for panel, nu in zip(panels, (0.01, 0.1, 0.3), strict=True):
    model = SMOOneClassSVM(nu=nu, gamma=5.0).fit(X)
    decision = model.decision_function(np.c_[x.ravel(), y.ravel()]).reshape(x.shape)
    panel.contourf(
        x,
        y,
        decision,
        [decision.min(), 0, decision.max()],
        colors=["0.93", "#b7d4ea"],
    )
    outside = model.predict(X) < 0
    panel.plot(*X[~outside].T, ".", color="#2166ac", ms=2)
    panel.plot(*X[outside].T, ".", color="#d95f02", ms=4)
    panel.set_title(
        f"nu = {nu}\n{outside.mean():.1%} of the rows outside", fontsize=10
    )
panels[0].set_ylabel("second feature")
for panel in panels:
    panel.set_xlabel("first feature")
plt.show()
