"""The files that the README's commands read: Friedman's first problem, generated.

    python examples/rows.py [--rows N]

values.csv and classes.csv have ten features and the target in the last column: a number with noise, and whether the
number without it is above its median. new_rows.csv has rows without a target.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import make_friedman1

NEW = 100  # rows of new_rows.csv


def main() -> None:
    """Write the three files to the current directory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000, help="rows of values.csv and of classes.csv")
    n = parser.parse_args().rows
    X, y = make_friedman1(n + NEW, random_state=0)
    noise = np.random.default_rng(0).normal(size=n)
    files = {
        "values.csv": np.c_[X[:n], y[:n] + noise], "classes.csv": np.c_[X[:n], y[:n] > np.median(y)],
        "new_rows.csv": X[n:],
    }  # fmt: skip
    for name, table in files.items():
        np.savetxt(name, table, delimiter=",", fmt="%.6g")
        print(f"{name}: {len(table):,} rows")


if __name__ == "__main__":
    main()
