"""
Error against seconds of the family
===================================

One width and one lambda for all: the exact model, two levels, and parts of several sizes. More parts are faster and
less accurate; a coarse model of all rows gives back what parts lose.
"""

import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_friedman1

from cakrr import BKRR2, DCKRR, DKRR, TwoLevelKRR

X, y = make_friedman1(4000, noise=0.5, random_state=0)
pair = {"sigma": 3.0, "lam": 1e-5}
models = {
    "exact": DKRR(**pair),
    "two levels, 8 parts": TwoLevelKRR(
        n_parts=8,
        centers=300,
        coarse_sigma=4.0,
        coarse_lam=1e-6,
        random_state=0,
        **pair,
    ),
    **{
        f"BKRR2, {parts} parts": BKRR2(n_parts=parts, random_state=0, **pair)
        for parts in (2, 4, 8, 16)
    },
    "BKRR2, 8 parts, soft": BKRR2(n_parts=8, route="soft", random_state=0, **pair),
    "DC-KRR, 8 parts": DCKRR(n_parts=8, random_state=0, **pair),
}
figure, panel = plt.subplots(figsize=(8, 4.6), layout="constrained")
for name, model in models.items():
    model.fit(X[:200], y[:200])  # compiles
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        model.fit(X[:3200], y[:3200])
        seconds.append(time.perf_counter() - begun)
    seconds = min(seconds)
    error = np.sqrt(np.mean((model.predict(X[3200:]) - y[3200:]) ** 2))
    panel.plot(
        seconds,
        error,
        "o",
        color="#2166ac" if name.startswith("BKRR2") else "#d95f02",
    )
    left = name.startswith("DC-KRR")
    place = (-6, -3) if left else (6, 6 if name == "BKRR2, 2 parts" else -10)
    panel.annotate(
        name,
        (seconds, error),
        place,
        textcoords="offset points",
        fontsize=9,
        ha="right" if left else "left",
    )
panel.axhline(0.5, color="0.7", linestyle="dashed")
panel.set(
    xscale="log",
    xlabel="seconds to train, the best of three",
    ylabel="RMSE on 800 new rows; dashed: the noise",
)
panel.margins(x=0.3)
plt.show()
