"""
A learned metric
================

The target depends on two directions of eight features. ``metric="full"`` finds them in rounds of training: the error
falls, and the matrix M shows which features matter together.
"""

import matplotlib.pyplot as plt
import numpy as np

from cakrr import BKRR2

rng = np.random.default_rng(0)
X = rng.normal(size=(2000, 8))
y = np.sin(2 * (X[:, 0] + X[:, 1])) + 0.5 * X[:, 2] + 0.1 * rng.normal(size=2000)
options = {
    "n_parts": 4,
    "sigma": [2, 4, 8],
    "lam": [1e-5, 1e-4, 1e-3],
    "random_state": 0,
}
plain = BKRR2(**options).fit(X[:1500], y[:1500])
learned = BKRR2(metric="full", metric_rounds=4, **options).fit(X[:1500], y[:1500])
M = np.asarray(learned.metric_)

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
most = np.abs(M).max()
image = left.imshow(M, cmap="RdBu_r", vmin=-most, vmax=most)
left.set(title="Learned metric M", xlabel="feature", ylabel="feature")
figure.colorbar(image, ax=left)
errors = [
    np.sqrt(np.mean((model.predict(X[1500:]) - y[1500:]) ** 2))
    for model in (plain, learned)
]
right.bar(["one width for all", "learned metric"], errors, color=["0.6", "#2166ac"])
right.axhline(0.1, color="#d95f02", linestyle="dashed")
right.text(1.45, 0.105, "noise", color="#d95f02", ha="right", va="bottom")
right.set(title="Root mean squared error on 500 new rows", ylabel="RMSE")
plt.show()
