"""
Kernels and their curves
========================

The same eighty rows, with each kernel's best width and lambda by held-out rows: smooth kernels ring at the step,
rough ones do not.
"""

import matplotlib.pyplot as plt
import numpy as np

from cakrr import DKRR

rng = np.random.default_rng(1)
x = np.sort(rng.uniform(0, 1, 80))
y = np.where(x < 0.5, np.sin(9 * x), 1.5 - x) + 0.05 * rng.normal(size=len(x))
line = np.linspace(0, 1, 400)[:, None]
figure, panels = plt.subplots(1, 4, figsize=(14, 3.2), sharey=True, layout="constrained")
for panel, kernel in zip(panels, ("gaussian", "matern52", "laplacian", "rational"), strict=True):
    model = DKRR(kernel=kernel, sigma=[0.05, 0.1, 0.2, 0.4, 0.8], lam=[1e-5, 1e-4, 1e-3, 1e-2], random_state=0).fit(
        x[:, None], y
    )
    panel.plot(x, y, ".", color="0.5", ms=4)
    panel.plot(line, model.predict(line), color="#2166ac")
    panel.set_title(f"{kernel}: sigma {model.sigma_:g}, lambda {model.lam_:g}", fontsize=10)
    panel.set_xlabel("x")
plt.show()
