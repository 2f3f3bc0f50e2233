"""Every partitioner on covtype (581,012 x 54), as from a notebook: python -m benchmarks.covtype_partition FILE."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from benchmarks.race import headline, machine_rate
from cacore.io.convert import read_all
from partition import BY_NAME


def main() -> None:
    """Time each, and say how good its parts are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="covtype.data.xz, or a native file of it")
    parser.add_argument("--parts", type=int, default=64)
    args = parser.parse_args()
    headline()
    X = read_all(args.data)["train"].X
    low, high = X.min(axis=0), X.max(axis=0)
    X = (X - low) / np.where(high > low, high - low, 1.0)
    for name, partitioner in BY_NAME.items():
        partitioner(4, random_state=0).fit(X[:2000])
        before = machine_rate()
        begun = time.perf_counter()
        p = partitioner(args.parts, random_state=0).fit(X)
        seconds = time.perf_counter() - begun
        means = np.stack([X[p.labels_ == j].mean(axis=0) for j in range(args.parts)])
        inertia = np.square(X - means[p.labels_]).sum(axis=1).mean()
        print(
            f"{name:<9} {seconds:6.2f} s  rounds {getattr(p, 'n_iter_', 0):3d}  sizes {p.sizes_.min():,} to "
            f"{p.sizes_.max():,}  mean squared distance to the part's mean {inertia:.4f}  "
            f"(machine {before:.0f}, {machine_rate():.0f} GFLOP/s)"
        )


if __name__ == "__main__":
    main()
