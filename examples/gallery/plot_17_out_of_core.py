"""
Memory of a run out of core
===========================

The same training twice: with all rows in memory, and with ``--out-of-core``, which reads a part when its turn comes.
The curves are the memory of the process, ten times a second; they begin with what Python and its libraries need.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import matplotlib.pyplot as plt
import numpy as np

folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
with h5py.File(folder / "rows.h5", "w") as file:
    X = file.create_dataset("train/X", (120_000, 100), "f8")
    for first in range(0, len(X), 20_000):
        X[first : first + 20_000] = rng.normal(size=(20_000, 100))
    file["train/y"] = X[:, 0] * X[:, 1] + X[:, 2]


def memory(*words):
    """Seconds and MiB while the command runs, from Linux's table of processes."""
    job = subprocess.Popen(
        [sys.executable, "-m", "cakrr.bkrr2", "rows.h5", *words], cwd=folder
    )
    begun, seen = time.perf_counter(), []
    while job.poll() is None:
        pages = int(Path(f"/proc/{job.pid}/statm").read_text().split()[1])
        seen.append((time.perf_counter() - begun, pages / 256))
        time.sleep(0.1)
    return np.array(seen[:-1]).T


options = ["--partitions", "240", "--sigma", "10", "--lambda", "1e-4", "--quiet"]
figure, panel = plt.subplots(figsize=(8, 4.2), layout="constrained")
for words, name, colour in (
    ([], "rows in memory", "#d95f02"),
    (["--out-of-core"], "--out-of-core", "#2166ac"),
):
    seconds, used = memory(*options, *words)
    panel.plot(
        seconds, used, color=colour, label=f"{name}: at most {used.max():.0f} MiB"
    )
size = (folder / "rows.h5").stat().st_size / 2**20
panel.set(
    xlabel="seconds",
    ylabel="MiB of the process",
    title=f"120,000 rows, a file of {size:.0f} MiB",
    ylim=(0, None),
)
panel.legend(loc="lower right", frameon=False)
plt.show()
