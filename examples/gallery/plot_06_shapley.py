"""
Why this answer: Shapley values
===============================

What each feature adds to the predictions of a model in parts, exactly. Friedman's function depends on the first five
of ten features.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_friedman1

from cakrr import BKRR2

X, y = make_friedman1(1500, noise=0.5, random_state=0)
model = BKRR2(n_parts=4, sigma=3.0, lam=1e-5, random_state=0).fit(X, y)
found = model.explain(X[:200], background=X[200:250])
order = np.argsort(found.importances())
jitter = np.random.default_rng(0).uniform(-0.3, 0.3, len(found.values))
figure, panel = plt.subplots(figsize=(8, 5), layout="constrained")
for line, feature in enumerate(order):
    dots = panel.scatter(
        found.values[:, feature],
        line + jitter,
        c=X[:200, feature],
        cmap="viridis",
        s=8,
        lw=0,
    )
panel.axvline(0, color="0.7", zorder=0)
panel.set_yticks(range(10), [found.players[feature] for feature in order])
panel.set(xlabel="what the feature adds to the prediction")
figure.colorbar(dots, label="value of the feature")
plt.show()
