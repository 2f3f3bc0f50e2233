"""
Rounds of the front door
========================

``AutoKernelRegressor`` trains candidates on small samples first, and those that lead on more rows. Each dot is one
training.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import make_friedman1

from cakernels import AutoKernelRegressor

X, y = make_friedman1(1000, noise=1.0, random_state=0)
model = AutoKernelRegressor(max_time=20, random_state=0).fit(X, y)
board = [row for row in model.leaderboard_ if row["score"] is not None]
figure, panel = plt.subplots(figsize=(8, 4.6), layout="constrained")
for rows, color in zip(
    sorted({row["rows"] for row in board}), ("#9ecae1", "#4292c6", "#2166ac", "#08306b"), strict=False
):
    some = [row for row in board if row["rows"] == rows]
    panel.plot([row["ended"] for row in some], [row["score"] for row in some], "o", color=color, label=f"{rows:,} rows")
panel.axhline(1.0, color="0.7", linestyle="dashed")
panel.set(xlabel="seconds since the start", ylabel="RMSE on held-out rows; dashed: the noise", yscale="log")
panel.set_title(f"best: {board[0]['candidate']}", fontsize=10)
figure.legend(loc="outside lower center", ncols=4, frameon=False)
plt.show()
