"""
Two ranks by mpiexec
====================

Each rank makes its own rows: rank 0 those on the left, rank 1 those on the right. ``comm=`` makes ``fit`` and
``predict`` collective calls. Rows move once, to the rank of their part; the training sends nothing.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

PROGRAM = """
import numpy as np
from mpi4py import MPI

from cakernels import CASVC, KMeans

comm = MPI.COMM_WORLD
rng = np.random.default_rng(comm.rank)
left = 4 * comm.rank - 4  # other rows on each rank
X = rng.uniform([left, -2], [left + 4, 2], size=(600, 2))
labels = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 > 1
parts = KMeans(n_parts=4, random_state=0).fit(X, comm=comm)
model = CASVC(4, partitioner=KMeans(), C=10, gamma=1, random_state=0, comm=comm)
model.fit(X, labels)
half = np.linspace(-2, 2, 100)[50 * comm.rank :][:50]  # of the picture
x, y = np.meshgrid(np.linspace(-4, 4, 200), half)
regions = model.predict(np.c_[x.ravel(), y.ravel()]).reshape(x.shape)
results = {"X": X, "labels": labels, "parts": parts.labels_, "regions": regions}
np.savez(f"{comm.rank}.npz", **results)
"""
folder = Path(tempfile.mkdtemp())
(folder / "program.py").write_text(PROGRAM)
mpiexec = Path(sys.executable).with_name("mpiexec")
words = [
    mpiexec if mpiexec.exists() else "mpiexec",
    "-n",
    "2",
    sys.executable,
    "program.py",
]
subprocess.run(words, cwd=folder, check=True)
ranks = [np.load(folder / f"{rank}.npz") for rank in range(2)]

figure, panels = plt.subplots(
    3, 1, figsize=(7, 9), sharex=True, layout="constrained"
)
for rank, (found, marker) in enumerate(zip(ranks, "o^", strict=True)):
    panels[0].plot(*found["X"].T, marker, ms=3, label=f"made by rank {rank}")
    for part in range(4):
        panels[1].plot(
            *found["X"][found["parts"] == part].T,
            marker,
            ms=3,
            color=f"C{part + 2}",
        )
panels[2].imshow(
    np.vstack([found["regions"] for found in ranks]),
    origin="lower",
    extent=(-4, 4, -2, 2),
    cmap="RdBu",
    alpha=0.4,
    aspect="auto",
)
for found in ranks:
    panels[2].scatter(*found["X"].T, c=found["labels"], cmap="RdBu", s=6)
panels[0].legend(
    loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False
)
panels[1].set_title("four parts, by colour", fontsize=10)
panels[2].set_title(
    "predictions of the nearest centre's model, and the labels", fontsize=10
)
for panel in panels:
    panel.set(ylabel="second feature")
panels[2].set_xlabel("first feature")
plt.show()
