"""
How many parts?
===============

Half the rows per part: a quarter of the time, and some accuracy lost at the borders. The soft route loses less.
"""

import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_friedman1

from cakrr import BKRR2

X, y = make_friedman1(5000, noise=0.5, random_state=0)
counts = [1, 2, 4, 8, 16, 32]
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
for route, color in (("nearest", "#d95f02"), ("soft", "#2166ac")):
    seconds, errors = [], []
    for parts in counts:
        model = BKRR2(
            n_parts=parts, sigma=3.0, lam=1e-5, route=route, random_state=0
        )
        begun = time.perf_counter()
        model.fit(X[:4000], y[:4000])
        seconds.append(time.perf_counter() - begun)
        errors.append(np.sqrt(np.mean((model.predict(X[4000:]) - y[4000:]) ** 2)))
    left.plot(counts, errors, "o-", color=color, label=route)
    right.plot(counts, seconds, "o-", color=color, label=route)
left.set(xscale="log", xlabel="parts", ylabel="RMSE on 1,000 new rows")
right.set(xscale="log", yscale="log", xlabel="parts", ylabel="seconds to train")
for panel in (left, right):
    panel.set_xticks(counts, counts)
    panel.minorticks_off()
    panel.legend(frameon=False)
plt.show()
