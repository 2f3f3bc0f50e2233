"""What `make demo` runs: BKRR2 and two-level KRR under mpiexec on 4 ranks, from a file to the test error."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import fetch_california_housing, make_friedman1

FOLDER = Path("demo")
DATA = FOLDER / "data.h5"


def run(*command: str) -> None:
    """Show a command as a user would type it, and run it."""
    print(f"\n$ {shlex.join(command)}", flush=True)
    words = [sys.executable, *command[1:]] if command[0] == "python" else list(command)
    if command[0] == "mpiexec":
        words[words.index("python")] = sys.executable
    done = subprocess.run(words, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def source() -> tuple[str, Path, int]:
    """What the demo runs on: a name, a file to convert, and how many of its rows to train on."""
    for folder in filter(None, (os.environ.get("CAKERNELS_DATA"), "../shared/data")):
        path = Path(folder) / "cal_housing.csv.bz2"
        if path.is_file():
            return f"California housing, from {path}", path, 18432
    path = FOLDER / "data.csv"
    try:
        socket.setdefaulttimeout(10)
        X, y = fetch_california_housing(return_X_y=True, n_retries=1, delay=0.1)
        name, n_train = "California housing, fetched by scikit-learn", 18432
    except OSError:
        X, y = make_friedman1(20000, noise=1.0, random_state=0)
        name, n_train = "Friedman #1, 20,000 generated rows (California housing could not be had)", 18000
    np.savetxt(path, np.column_stack([X, y]), delimiter=",", fmt="%.17g")
    return name, path, n_train


def main() -> None:
    """Convert, then train and test."""
    FOLDER.mkdir(exist_ok=True)
    name, path, n_train = source()
    print(f"data: {name}")
    run("python", "-m", "cacore.io", "convert", str(path), str(DATA), "--split", str(n_train))
    options = ["--partitions", "16", "--sigma", "0.5:4:4", "--lambda", "1e-6:1e-3:4"]
    files = ["--model", str(FOLDER / "model.h5"), "--report", str(FOLDER / "report.json")]
    run("mpiexec", "-n", "4", "python", "-m", "cakrr.bkrr2", str(DATA), *options, *files)
    print("\nWhere accuracy matters more than seconds and bytes, two levels:")
    run("mpiexec", "-n", "4", "python", "-m", "cakrr.twolevel", str(DATA), "--partitions", "16")
    print(f"\nBKRR2's model and whole report are in {FOLDER}/. Predict with:")
    print(f"  mpiexec -n 2 python -m cakrr.predict {FOLDER}/model.h5 {DATA} -o predictions.csv")


if __name__ == "__main__":
    main()
