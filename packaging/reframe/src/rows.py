"""Rows of a known function for a training: rows.csv, the target last."""

import numpy as np

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, (4000, 3))
np.savetxt("rows.csv", np.c_[X, np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2]], delimiter=",")
