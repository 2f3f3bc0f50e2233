"""
A grid searched in parts
========================

Cross-validation inside the parts scores every pair of C and gamma. Settings that trail the best after two folds are
dropped (hatched).
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle
from sklearn.datasets import make_moons

from casvm import CASVC

X, labels = make_moons(3000, noise=0.35, random_state=0)
Cs, gammas = np.geomspace(0.1, 1000, 9), np.geomspace(0.05, 50, 7)
model = CASVC(n_parts=2, C=list(Cs), gamma=list(gammas), random_state=0).fit(
    X, labels
)
scores = model.cv_results_["mean_test_score"].reshape(len(Cs), len(gammas)).T
ended = model.cv_results_["ended"].reshape(len(Cs), len(gammas)).T

figure, panel = plt.subplots(figsize=(8, 4.6), layout="constrained")
image = panel.imshow(
    scores, origin="lower", aspect="auto", vmin=np.median(scores) - 0.05
)
for i, j in np.argwhere(ended):
    panel.add_patch(
        Rectangle(
            (j - 0.5, i - 0.5), 1, 1, fill=False, hatch="///", edgecolor="0.7", lw=0
        )
    )
best = np.argwhere(np.where(ended, 0, scores) == scores[~ended].max())[0]
panel.add_patch(
    Rectangle(
        (best[1] - 0.5, best[0] - 0.5), 1, 1, fill=False, edgecolor="#d95f02", lw=3
    )
)
panel.set_xticks(range(len(Cs)), [f"{C:.3g}" for C in Cs])
panel.set_yticks(range(len(gammas)), [f"{gamma:.3g}" for gamma in gammas])
panel.set(
    xlabel="C",
    ylabel="gamma",
    title="chosen: C {C:.3g}, gamma {gamma:.3g}".format(**model.best_params_),
)
figure.colorbar(image, label="accuracy on held-out rows")
plt.show()
