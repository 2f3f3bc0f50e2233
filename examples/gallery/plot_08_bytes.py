"""
Bytes between ranks
===================

Three SVMs on four ranks. Dis-SMO sends working sets in every round, CP-SVM sends each row once, to the rank of its
part, and CA-SVM sends nothing at all.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm
from sklearn.datasets import dump_svmlight_file, make_classification

from cacore.traffic import load, pattern

folder = Path(tempfile.mkdtemp())
X, labels = make_classification(2000, 12, n_informative=8, random_state=0)
dump_svmlight_file(X, labels, str(folder / "rows"))
mpiexec = Path(sys.executable).with_name("mpiexec")
found = {}
for name in ("dissmo", "cpsvm", "casvm"):
    words = [
        "-n",
        "4",
        sys.executable,
        "-m",
        f"casvm.{name}",
        "rows",
        "--C",
        "1",
        "--gamma",
        "0.1",
        "--quiet",
    ]
    subprocess.run(
        [
            mpiexec if mpiexec.exists() else "mpiexec",
            *words,
            "--comm-matrix",
            f"{name}.npz",
        ],
        cwd=folder,
        check=True,
    )
    found[name] = pattern(load(folder / f"{name}.npz"))

figure, panels = plt.subplots(
    1, 3, figsize=(10, 3.6), sharey=True, layout="constrained"
)
for panel, (name, sent) in zip(panels, found.items(), strict=True):
    shown = np.ma.masked_equal(sent.T, 0)
    image = panel.imshow(
        shown, origin="lower", cmap="YlGnBu", norm=LogNorm(1e2, 1e6)
    )
    panel.set(
        title=f"casvm.{name}: {sent.sum() / 1e3:,.0f} kB",
        xlabel="sending rank",
        xticks=range(4),
        yticks=range(4),
    )
panels[0].set_ylabel("receiving rank")
figure.colorbar(image, ax=panels, label="bytes in partitioning and training")
plt.show()
